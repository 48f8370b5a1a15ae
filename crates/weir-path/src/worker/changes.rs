//! Changes of a worker while packets are inside: limits, classes, the longest packet of a port, associations and policies, the bindings of
//! sockets.
//!
//! Rule: a change comes between two passes, whole or not at all. No packet that waits is lost by it, and no flow reordered; the intakes
//! learn which places are gone, so that none waits for a place that is gone.

use std::sync::Arc;

use weir_core::net::sockets::{BindError, Binding};
use weir_core::shaper::tbf::{TbfConfig, TbfError};
use weir_ring::spsc::{Consumer, Producer};

use super::{Feeding, Worker};
use crate::between::Between;
use crate::classes::Classes;
use crate::egress::{EgressQueue, OWN_PORT, origin};
use crate::end::End;
use crate::esp::plan::EspChange;
use crate::esp::sealer::SealerRun;
use crate::place::Place;
use crate::port::{ReceiveQueues, TransmitRing};
use crate::shape::PortShape;

impl<P: ReceiveQueues + TransmitRing> Worker<P> {
    /// Gives an ESP stage, by its place here, the ring by which it tells a sealer its runs.
    pub(crate) fn join_sealer(&mut self, stage: usize, sealer: usize, runs: Producer<SealerRun>) {
        self.between.stage_mut(stage).join_sealer(sealer, runs);
    }

    /// Gives a sealer, by its place here, the ring by which it is told its runs.
    pub(crate) fn join_home(&mut self, stage: usize, runs: Consumer<SealerRun>) {
        self.between.stage_mut(stage).join_home(runs);
    }

    /// Changes the limits of the packets that leave by a port, if its egress queue is here; no packet that waits is touched.
    ///
    /// # Errors
    /// If the limits cannot be kept; nothing has changed then.
    pub fn set_limits(
        &mut self,
        port: usize,
        limits: Option<TbfConfig>,
        now_ns: u64,
    ) -> Result<(), TbfError> {
        self.limit(port, limits, now_ns)?;
        self.tune();
        Ok(())
    }

    /// As [`Worker::set_limits`], but that polls are not tuned.
    fn limit(&mut self, port: usize, limits: Option<TbfConfig>, now_ns: u64) -> Result<(), TbfError> {
        match self.between.egress.of_port(port) {
            Some(egress) => self.between.egress.queue_mut(egress).shaping.set_limits(limits, now_ns),
            None => Ok(()),
        }
    }

    /// The shapes of the ports whose egress queues are here.
    pub fn shapes(&self) -> Vec<PortShape> {
        let queues = self.between.egress.queues().iter().map(|queue| PortShape {
            port: queue.port,
            limits: queue.shaping.limits().copied(),
            classes: queue.shaping.classes().cloned(),
        });
        queues.collect()
    }

    /// Checks whether these shapes can be kept, for the ports whose egress queues are here.
    ///
    /// # Errors
    /// The first port whose shape cannot be kept, and why.
    pub fn check_shapes(&self, shapes: &[PortShape]) -> Result<(), (usize, String)> {
        shapes.iter().try_for_each(|PortShape { port, limits, classes }| {
            let fits = |queue: &EgressQueue| queue.shaping.check(limits.as_ref(), classes.as_deref());
            self.egress(*port).map_or(Ok(()), fits).map_err(|why| (*port, why))
        })
    }

    /// Shapes the packets that leave by these ports so from now on, for the ports whose egress queues are here: all of them or none. No
    /// packet that waits is lost, and no flow reordered.
    ///
    /// # Errors
    /// Those of [`Worker::check_shapes`]; nothing has changed then.
    pub fn reshape(&mut self, shapes: &[PortShape], now_ns: u64) -> Result<(), (usize, String)> {
        self.check_shapes(shapes)?;
        for PortShape { port, limits, classes } in shapes {
            self.limit(*port, *limits, now_ns).expect("the limits were checked");
            let is_same = match (self.egress(*port).and_then(|queue| queue.shaping.classes()), classes) {
                (Some(before), Some(after)) => Arc::ptr_eq(before, after),
                (None, None) => true,
                _ => false,
            };
            if !is_same {
                self.share(*port, classes.as_ref(), now_ns);
            }
        }
        // Once, after all: it asks the kernel for something of each receive queue.
        self.tune();
        Ok(())
    }

    /// Shapes the packets that leave by a port by these classes from now on, or by its limits alone, if its egress queue is here; no packet
    /// that waits is lost unless the rule of its new class drops it, and no flow reordered.
    pub fn set_classes(&mut self, port: usize, classes: Option<&Arc<Classes>>, now_ns: u64) {
        self.share(port, classes, now_ns);
        self.tune();
    }

    /// As [`Worker::set_classes`], but that polls are not tuned.
    pub(crate) fn share(&mut self, port: usize, classes: Option<&Arc<Classes>>, now_ns: u64) {
        let Some(changed) = self.between.egress.of_port(port) else { return };
        let Between { egress, frames, .. } = &mut self.between;
        egress.end_blocked(changed, now_ns);
        let mut moved = Vec::new();
        let shaping = &mut egress.queue_mut(changed).shaping;
        shaping.set_classes(classes.cloned(), &mut frames.pool, now_ns, |meta, class| {
            let (port, queue) = origin(meta);
            // No queue is held for packets that a stage has made.
            if port != OWN_PORT {
                moved.push((port, queue, Place { egress: changed, class }));
            }
        });
        moved.sort_unstable();
        moved.dedup();
        egress.number_places();
        if let Some(landings) = &mut self.landings {
            landings.follow(&self.between.egress, changed, &moved);
        }
        self.follow(Some(changed), &moved);
    }

    /// Makes the intakes know the places, of which those of one egress queue may have changed.
    pub(super) fn follow(&mut self, changed: Option<usize>, moved: &[(u16, u16, Place)]) {
        for End { intake, .. } in &mut self.ends {
            intake.follow(&self.between.egress, changed, moved);
        }
    }

    /// Makes polls as small as the least credit that they may use up asks for.
    pub fn tune(&mut self) {
        let Between { egress, over, .. } = &self.between;
        if let Some(over) = over {
            let credit = egress.queues().iter().map(|queue| (queue.port, queue.shaping.limit_bytes_min()));
            credit.for_each(|(port, bytes)| over.board().set_credit_bytes(port, bytes));
        }
        for End { port, intake, .. } in &mut self.ends {
            intake.tune(port, egress, over.as_ref());
        }
    }

    /// Notes the longest packet that comes in by a port, of whatever worker, from now on, in bytes.
    pub fn set_packet_bytes_max(&mut self, port: usize, bytes: u64, now_ns: u64) {
        let Feeding { feeders, packet_bytes_max } = &mut self.feeding;
        packet_bytes_max[port] = bytes;
        for (queue, feeders) in feeders.iter().enumerate().filter(|(_, feeders)| feeders.contains(&port)) {
            let longest = feeders.iter().map(|&feeder| packet_bytes_max[feeder]).max().unwrap_or(0);
            self.between.egress.queue_mut(queue).shaping.set_packet_bytes_max(longest, now_ns);
        }
    }

    /// Binds a socket of a host, by the place of its stage here, between two passes.
    ///
    /// # Errors
    /// If another socket is bound so, or there is no such bucket; nothing has changed then.
    pub fn bind(&mut self, stage: usize, binding: Binding, socket: u16) -> Result<(), BindError> {
        let host = self.between.stage_mut(stage).router_mut();
        host.map_or(Ok(()), |host| host.bind(binding, socket))
    }

    /// Unbinds a socket of a host: packets that come for it from now on find no socket.
    pub fn unbind(&mut self, stage: usize, socket: u16) {
        self.between.stage_mut(stage).router_mut().into_iter().for_each(|host| host.unbind(socket));
    }

    /// Carries out a change of an ESP stage, by its place here, between two passes: no packet that is inside is lost by it.
    pub fn change_esp(&mut self, stage: usize, change: EspChange, now_ns: u64) {
        self.between.stage_mut(stage).change_esp(change, now_ns);
    }

    /// Notes that the machine slept for so long while the clock of the path stood still: associations of ESP stages are older by that.
    pub fn note_asleep(&mut self, slept_ns: u64) {
        self.between.note_asleep(slept_ns);
    }

    /// Sets the longest IP packet that goes by an interface of a router, or outside of an ESP, by the place of its stage here.
    pub fn set_stage_mtu(&mut self, stage: usize, interface: u16, mtu_bytes: u16) {
        self.between.stage_mut(stage).set_mtu_bytes(interface, mtu_bytes);
    }
}
