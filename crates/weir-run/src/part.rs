//! A worker's part of a datapath on the kernel's interfaces: events of these while its packets move.
//!
//! [`weir_path::worker::Worker`] moves the packets. This file has the events that it must not know: an interface goes down, comes up with other NAPI
//! instances, gets another name or MTU, or is gone; and the packets that the kernel lost.
//!
//! Owner: the thread that runs it ([`crate::worker`]).

use std::collections::BTreeMap;
use std::sync::Arc;

use weir_path::either_port::EitherPort;
use weir_path::end::End;
use weir_path::loop_port::LoopPort;
use weir_path::worker::Worker;
use weir_port::link::Link;
use weir_port::port::Port;
use weir_port::prepared::PreparedPort;
use weir_port::view::Pair;
use weir_port::xsk::umem::Umem;

use crate::clock::asleep_ns;
use crate::report::port_stats;
use crate::stage_mtu::{StageMtus, taken_bytes};
use crate::stats::PortStats;
use crate::stats::association::AgedAssociation;

/// Ethernet header, which comes on top of an MTU.
const ETHERNET_HEADER_BYTES: u64 = 14;

/// A port of a datapath: the kernel's, or one that leads back.
pub type PartPort = EitherPort<Port, LoopPort>;

/// The names of stages, and the ports that lead back to them.
#[derive(Debug, Default)]
pub struct PartStages {
    /// The name of each stage.
    pub names: Vec<String>,
    /// The number of each port that leads back, the place of its stage here, and the port there.
    pub loops: Vec<(usize, usize, u16)>,
    /// The longest packet that may come by these, in bytes.
    pub looped_bytes_max: u64,
    /// The MTUs of the routers and ESPs among them.
    pub(crate) stage_mtus: StageMtus,
}

/// The part of a datapath that one worker owns.
pub struct Part {
    /// The worker of the path, which moves its packets.
    pub path: Worker<PartPort>,
    /// The names of its stages.
    pub stages: PartStages,
    /// The last counters of ports that are gone, or were: their counters go on from there.
    pub left: BTreeMap<usize, PortStats>,
    /// The time asleep that its associations know of.
    asleep_ns: u64,
    // Last: the sockets go first.
    _umem: Arc<Umem>,
}

impl Part {
    /// The part of a worker whose ports' sockets use this memory.
    pub fn new(path: Worker<PartPort>, stages: PartStages, umem: Arc<Umem>, now_ns: u64) -> Part {
        let mut part = Part { path, stages, left: BTreeMap::new(), asleep_ns: asleep_ns(), _umem: umem };
        part.tell_looped_bytes_max(now_ns);
        let Part { path, stages, .. } = &mut part;
        stages.stage_mtus.all().for_each(|(stage, interface, mtu)| path.set_stage_mtu(stage, interface, mtu));
        part
    }

    /// Tells its ESP stages how long the machine has slept since this was last called: for a change, and by each look of the watcher, so what
    /// passes before the first look after a wake-up is not asked for that.
    pub fn note_asleep(&mut self) {
        let slept_ns = asleep_ns().saturating_sub(self.asleep_ns);
        if slept_ns > 0 {
            self.asleep_ns += slept_ns;
            self.path.note_asleep(slept_ns);
        }
    }

    /// The associations of its ESP stages that are not alive: a limit is reached, or the numbers are used up.
    pub fn aged_associations(&self, now_ns: u64) -> Vec<AgedAssociation> {
        let esps = self.path.between().stages().filter_map(|stage| stage.esp());
        let associations = esps.flat_map(|esp| esp.associations());
        associations.filter_map(|running| AgedAssociation::of(running, now_ns)).collect()
    }

    /// Takes a port out whose interface is gone. The thread that closes it says so by [`Part::note_closed`].
    pub fn take_port(&mut self, index: usize, now_ns: u64) -> Option<Port> {
        let EitherPort::Kernel(mut port) = self.path.take_port(index, now_ns)? else { return None };
        // Packets that the kernel lost at the port's end are no fault.
        port.note_down();
        let before = self.left.remove(&index).unwrap_or_default();
        // A port that cannot be asked any more has told its counters before.
        let last = port_stats(&mut port).unwrap_or_default().after(&before);
        self.left.insert(index, last);
        Some(*port)
    }

    /// Has the frames back that were with a port, which is closed.
    pub fn note_closed(&mut self, borrower: u16) {
        let frames = self.path.frames_mut();
        // SAFETY: its sockets are closed, at which the kernel waits for every writer (kernel `net/xdp/xsk.c:xsk_unbind_dev`); it has copied the
        // packets that it transmits (`xsk_build_skb`, for a device that is not `IFF_TX_SKB_NO_LINEAR`, as a veth is not).
        let back = unsafe { frames.loans.recall(borrower) };
        frames.pool.give_all(back);
    }

    /// Takes in a port whose interface is there, or there again.
    ///
    /// # Errors
    /// If there are too few frames, or the port is not missing.
    pub fn give_port(&mut self, index: usize, prepared: PreparedPort, now_ns: u64) -> Result<(), String> {
        let frames = std::slice::from_mut(self.path.frames_mut());
        let borrower = prepared.borrower();
        let port = prepared.finish(frames).map_err(|error| {
            // Frames that were on offer until there were no more.
            self.note_closed(borrower);
            error.to_string()
        })?;
        let bytes = packet_bytes_max(port.sender());
        if let Err(port) = self.path.give_port(index, EitherPort::Kernel(Box::new(port)), now_ns) {
            drop(port);
            self.note_closed(borrower);
            return Err("there is no room for its queues".into());
        }
        self.path.set_packet_bytes_max(index, bytes, now_ns);
        self.path.tune();
        Ok(())
    }

    /// A port, if it is here and not gone.
    fn port(&mut self, index: usize) -> Option<&mut Port> {
        let is_here = self.path.ends().iter().any(|end| end.index == index);
        if is_here { self.path.end_mut(index).0.port.kernel_mut() } else { None }
    }

    /// Returns whether an interface of it is gone, or in another namespace.
    pub fn has_lost_an_end(&self) -> bool {
        let mut ports = self.path.ends().iter().filter_map(|end| end.port.kernel());
        ports.any(|port| Link::by_index(port.link().ifindex).is_err_and(|error| error.is_no_interface()))
    }

    /// Notes that an interface went down.
    pub fn note_down(&mut self, index: usize) {
        if let Some(port) = self.port(index) {
            port.note_down();
        }
    }

    /// Notes that an interface, of this worker or another, or its other end has another name or MTU now, or that the other end is in
    /// another namespace.
    pub fn follow(&mut self, index: usize, pair: Pair, now_ns: u64) {
        let bytes = packet_bytes_max(&pair.sender);
        self.follow_mtu(index, &pair.port, &pair.sender);
        if let Some(port) = self.port(index) {
            port.follow(pair);
        }
        self.path.set_packet_bytes_max(index, bytes, now_ns);
        self.stages.looped_bytes_max = self.stages.looped_bytes_max.max(bytes);
        self.tell_looped_bytes_max(now_ns);
    }

    /// Has routers and ESPs send no longer packets to a port than it takes.
    fn follow_mtu(&mut self, index: usize, port: &Link, other_end: &Link) {
        for (stage, interface, mtu_bytes) in
            self.stages.stage_mtus.follow(index, taken_bytes(port, other_end))
        {
            self.path.set_stage_mtu(stage, interface, mtu_bytes);
        }
    }

    /// Tells how long packets are that come by ports which lead back.
    fn tell_looped_bytes_max(&mut self, now_ns: u64) {
        let PartStages { loops, looped_bytes_max, .. } = &self.stages;
        loops.iter().for_each(|(port, ..)| self.path.set_packet_bytes_max(*port, *looped_bytes_max, now_ns));
    }

    /// Owns the queues of an interface again that came up again, with other NAPI instances than before. Packets received before it went
    /// down are taken in, since its rings are not the new instances'. An interface that went down and up twice is told of twice, and may be
    /// owned again by the first time. One that has other queues now is left to the watcher, which closes the port or ends the wire; so is one
    /// whose other end has just moved, which the watcher follows and tells of again.
    pub fn retake(&mut self, index: usize, now_ns: u64) -> weir_port::Result<()> {
        if self.port(index).is_none() {
            return Ok(());
        }
        let result = self.own_again(index, now_ns);
        self.path.tune();
        match self.port(index) {
            Some(port)
                if result.is_err()
                    && (port.is_overtaken() || port.has_other_queues() || port.is_left_by_sender()) =>
            {
                Ok(())
            }
            _ => result,
        }
    }

    fn own_again(&mut self, index: usize, now_ns: u64) -> weir_port::Result<()> {
        let Some(port) = self.port(index) else { return Ok(()) };
        if !port.is_disowned()? {
            return port.note_up();
        }
        port.let_go()?;
        self.path.collect(index, now_ns);
        match self.path.end_mut(index) {
            (End { port: EitherPort::Kernel(port), .. }, frames) => port.retake(frames),
            _ => Ok(()),
        }
    }
}

/// The longest packets that come in at a port from this other end, in bytes.
pub fn packet_bytes_max(sender: &Link) -> u64 {
    u64::from(sender.mtu_bytes) + ETHERNET_HEADER_BYTES
}
