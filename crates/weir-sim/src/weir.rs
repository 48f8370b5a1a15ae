//! Weir between two interfaces: the path that ships, [`weir_path::worker::Worker`], on modelled ports and a virtual clock.
//!
//! The worker makes a pass, the next one when that one's work is done, and after a pass that moved no packet it parks, until the next
//! tokens or the intake's next look. The first announcement of a queue that is not known to have packets kicks the worker if it is parked,
//! once.
//!
//! This file has only the part of `weir-run`'s thread around a pass, and the costs of a poll and a packet. Intake, credit, classes, exit
//! and books are the product's.
//!
//! Owner: one worker. Source: ARCHITECTURE.md. Limits: the worker does not spin. After `end_ns` an empty wire's worker sleeps for good,
//! so that a run ends.

use std::cell::RefCell;
use std::rc::Rc;

use weir_core::drops::{Count, DropReason};
use weir_core::shaper::tbf::TbfConfig;
use weir_path::assembly::Shares;
use weir_path::end::End;
use weir_path::frames::Frames;
use weir_path::intake::QUANTUM_BYTES;
use weir_path::owners::{Owners, Portion};
use weir_path::plan::{Plan, PortPlan};
use weir_path::port::POLL_PACKETS_MAX;
use weir_path::shaping::Shaping;
use weir_path::worker::Worker;
use weir_ring::memory::FrameMemory;
use weir_ring::pool::Pool;

use crate::effects::Effects;
use crate::packet::SimPacket;
use crate::port::{Fault, Inside, SimPort};

/// The parameters of a wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WeirParameters {
    /// The class's limit.
    pub limits: TbfConfig,
    /// Transmit queues of the sending end; sender `i` uses queue `i mod queues`.
    pub queues: usize,
    /// The most packets one queue's qdisc and ring hold together; the kernel drops above.
    pub queue_packets: usize,
    /// The most packets one poll takes, unless the path is to decide.
    pub poll_packets: Option<u32>,
    /// A poll's cost.
    pub poll_ns: u64,
    /// A packet's cost, in and out together, the far side's included.
    pub packet_ns: u64,
    /// The time until which the worker looks for packets even if none is inside.
    pub end_ns: u64,
    /// The fault of the kernel.
    pub fault: Option<Fault>,
}

/// Frames of packet memory, as many as a wire has by default, each long enough for an Ethernet frame.
const FRAMES: u32 = 8192;
const FRAME_BYTES: u32 = 1536;

/// A wire, of which one direction is used.
pub struct WeirWire {
    parameters: WeirParameters,
    worker: Worker<SimPort>,
    inside: Rc<RefCell<Inside>>,
    is_parked: bool,
    /// The time of its next pass, and the generation of that.
    next: Option<(u64, u64)>,
    generation: u64,
    counts: WeirCounts,
}

/// The counts of the worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WeirCounts {
    /// Times it waited with its state word on `Parked`.
    pub parks: u64,
    /// Times a sender kicked it.
    pub kicks: u64,
}

impl WeirWire {
    /// An idle wire whose worker is parked.
    ///
    /// # Errors
    /// If the limits cannot be kept, or there is no memory.
    pub fn new(parameters: WeirParameters) -> Result<WeirWire, String> {
        let memory = FrameMemory::new(FRAMES, FRAME_BYTES).map_err(|error| error.to_string())?;
        let inside = Rc::new(RefCell::new(Inside::default()));
        let poll_budget_max = parameters.poll_packets.unwrap_or(0).max(POLL_PACKETS_MAX);
        let port = |queues: usize| {
            let WeirParameters { queue_packets, poll_packets, fault, .. } = parameters;
            let mut port = SimPort::new(queues, queue_packets, poll_packets, Rc::clone(&inside));
            port.set_fault(fault);
            port
        };
        let planned =
            |limits| PortPlan { interface: "modelled".into(), limits, classes: None, is_optional: false };
        let plan = Plan::wire([planned(None), planned(Some(parameters.limits))]);
        let shares =
            Shares { held_packets_max: u64::from(FRAMES / 2), poll_budget_max, queues_gone: 0, seed: 0 };
        let ports = vec![(0, port(parameters.queues)), (1, port(1))];
        let worker = Worker::new(
            Portion { plan: &plan, owners: &Owners::alone(&plan), worker: 0 },
            ports,
            Frames::new(Pool::new(memory)),
            None,
            shares,
            0,
        )
        .map_err(|error| error.to_string())?;
        Ok(WeirWire {
            parameters,
            worker,
            inside,
            is_parked: true,
            next: None,
            generation: 0,
            counts: WeirCounts { parks: 1, ..WeirCounts::default() },
        })
    }

    /// Has a process send: it announces its packet, kicks the worker if that is parked, and has put the packet into its queue by
    /// `entered_ns`.
    pub fn send(&mut self, packet: SimPacket, entered_ns: u64, effects: &mut Effects) {
        let queue = packet.sender as usize % self.parameters.queues;
        let (is_announced, refused) = self.worker.end_mut(0).0.port.send(queue, packet, entered_ns);
        if is_announced && std::mem::take(&mut self.is_parked) {
            self.counts.kicks += 1;
            effects.kicked = true;
        }
        if let Some(packet) = refused {
            effects.drop(DropReason::ClassFull, packet);
        }
    }

    /// Asks for a pass at `at_ns`: returns the generation to schedule it with, or `None` if an earlier one stands.
    pub fn schedule(&mut self, at_ns: u64) -> Option<u64> {
        if self.next.is_some_and(|(next_ns, _)| next_ns <= at_ns) {
            return None;
        }
        self.generation += 1;
        self.next = Some((at_ns, self.generation));
        Some(self.generation)
    }

    /// Makes one pass of the worker, if it is the one that stands. The worker goes on as long as packets move, and then parks.
    pub fn step(&mut self, generation: u64, now_ns: u64, effects: &mut Effects) {
        if self.next.is_none_or(|(_, next)| next != generation) {
            return;
        }
        self.next = None;
        self.is_parked = false;
        self.inside.borrow_mut().now_ns = now_ns;
        let pass = self.worker.pass(now_ns).expect("a modelled device does not fail");
        let inside = &mut *self.inside.borrow_mut();
        effects.work_ns += std::mem::take(&mut inside.polls) * self.parameters.poll_ns;
        effects.work_ns += inside.left.len() as u64 * self.parameters.packet_ns;
        effects.freed.append(&mut inside.freed);
        effects.left.append(&mut inside.left);
        let done_ns = now_ns + effects.work_ns;
        if pass.moved > 0 || !self.worker.park(|_| Ok(())).expect("a model does not fail to wait") {
            effects.step_at_ns = Some(done_ns);
            return;
        }
        self.is_parked = true;
        self.counts.parks += 1;
        if now_ns < self.parameters.end_ns || self.held() != Count::default() {
            let is_lost = self.parameters.fault == Some(Fault::TimerLost) && self.held() != Count::default();
            effects.wake_at_ns = pass.wake_ns.filter(|_| !is_lost).map(|wake_ns| wake_ns.max(done_ns));
        }
    }

    /// The packets inside, by the counters of kernel queues and classes.
    pub fn held(&self) -> Count {
        let mut held = self.sender().port.held();
        held.merge(self.held_in_classes());
        held
    }

    /// The packets in its classes, by their counters.
    pub fn held_in_classes(&self) -> Count {
        self.shaping().held()
    }

    /// The packets still charged to their sockets, one by one.
    pub fn queued(&self) -> impl Iterator<Item = &SimPacket> {
        self.sender().port.queued()
    }

    /// The counts of the worker so far.
    pub fn counts(&self) -> WeirCounts {
        self.counts
    }

    /// The most bytes that the class may hold: twice the credit, and the bytes that one poll brings more.
    pub fn class_bytes_max(&self) -> u64 {
        2 * self.shaping().limit_bytes_min()
            + u64::from(self.sender().port.poll_budget()) * u64::from(QUANTUM_BYTES)
    }

    /// The shaping in which packets wait that have come in.
    fn shaping(&self) -> &Shaping {
        &self.worker.egress(1).expect("what leaves by the second port").shaping
    }

    /// The end at which packets come in.
    fn sender(&self) -> &End<SimPort> {
        &self.worker.ends()[0]
    }
}
