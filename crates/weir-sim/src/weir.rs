//! Weir between two interfaces: kernel queues that are not drained, an intake that takes only what it has credit for,
//! and the class of `weir-core` that paces and shares.
//!
//! ```text
//! socket --charged--> kernel queue q (qdisc, then a ring of the pair) --poll--> class, flow q --tokens, DRR--> out
//! ```
//!
//! A packet stays charged to its socket until a poll takes it: that is what holds the sender. A poll takes up to
//! `poll_packets` of one queue, and only while `Class::room_bytes` is above 0. So a wake always finds room for half a
//! send buffer, and what is sent is never refused: no empty wakes, no losses.
//!
//! [`Intake`] says which queue is polled next. The worker waits for a kick whenever it has room left, with a timer for
//! the next tokens if something is inside: then its state word is `Parked` and the first sender kicks it, once. While
//! there is no room a kick would be of no use and there is none.
//!
//! Owner: one worker. Token bucket, DRR, credit and books are `weir-core`'s, not a model of them.
//! Source: design.md sections 2 and 3; the mechanism verified on a live kernel (veth, owned NAPI instances).
//! Limits: the far side never refuses; a queue's ring and qdisc are one FIFO, bounded by `queue_packets`; which
//! queues have packets is known from the mark that the egress program leaves, not by polling all of them.

use std::collections::VecDeque;

use weir_core::{
    drops::{Count, DropReason},
    packet::Packet,
    shaper::{
        backlog::Dequeue,
        class::{Class, ClassSize},
        tbf::{TbfConfig, TbfError},
    },
};

use crate::{effects::Effects, intake::Intake, packet::SimPacket};

/// How a wire is set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WeirParameters {
    /// The class's limit.
    pub limits: TbfConfig,
    /// Transmit queues of the sending end; sender `i` uses queue `i mod queues`.
    pub queues: usize,
    /// The most packets one queue's qdisc and ring hold together; the kernel drops above.
    pub queue_packets: usize,
    /// The most packets one poll takes.
    pub poll_packets: usize,
    /// For how long departures are gathered at least, to save wake-ups.
    pub gather_ns: u64,
    /// A poll's cost.
    pub poll_ns: u64,
    /// A packet's cost, in and out together, the far side's included.
    pub packet_ns: u64,
}

/// The longest packet, a frame's worth on Ethernet.
const LEN_BYTES_MAX: u64 = 1514;

/// A wire in one direction.
#[derive(Debug)]
pub struct WeirWire {
    parameters: WeirParameters,
    /// Each transmit queue's qdisc and ring.
    queues: Vec<VecDeque<SimPacket>>,
    kernel_held: Count,
    intake: Intake,
    class: Class<SimPacket>,
    worker: Worker,
    counts: WeirCounts,
}

/// What the worker did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WeirCounts {
    /// Times it waited with its state word on `Parked`.
    pub parks: u64,
    /// Times a sender kicked it.
    pub kicks: u64,
    /// Polls; each is a grant to the senders whose buffers it freed.
    pub grants: u64,
}

#[derive(Debug)]
struct Worker {
    parked: bool,
    /// When its next pass is, and which of the scheduled ones that is.
    next: Option<(u64, u64)>,
    generation: u64,
}

impl WeirWire {
    /// An idle wire whose worker is parked.
    ///
    /// # Panics
    ///
    /// When it has no queue or polls take nothing.
    pub fn new(parameters: WeirParameters) -> Result<WeirWire, TbfError> {
        assert!(parameters.queues > 0 && parameters.poll_packets > 0, "a wire has a queue and polls it");
        let poll_budget_bytes = parameters.poll_packets as u64 * LEN_BYTES_MAX;
        let limit_bytes = parameters.limits.limit_bytes().max(poll_budget_bytes);
        // The shortest packet is a bare header: so many can be inside before the credit is used up, and one poll more.
        let frames_max = limit_bytes.div_ceil(42) as usize + parameters.poll_packets;
        let size = ClassSize {
            flows: parameters.queues,
            packets_max: frames_max,
            quantum_bytes: LEN_BYTES_MAX as u32,
            poll_budget_bytes,
        };
        Ok(WeirWire {
            parameters,
            queues: vec![VecDeque::new(); parameters.queues],
            kernel_held: Count::default(),
            intake: Intake::new(parameters.queues, poll_budget_bytes as u32),
            class: Class::new(size, Some(parameters.limits), 0)?,
            worker: Worker { parked: true, next: None, generation: 0 },
            counts: WeirCounts { parks: 1, ..WeirCounts::default() },
        })
    }

    /// A process sends: into its queue, and a kick if the worker is parked.
    pub fn send(&mut self, packet: SimPacket, effects: &mut Effects) {
        let index = packet.sender as usize % self.queues.len();
        let queue = &mut self.queues[index];
        if queue.len() == self.parameters.queue_packets {
            return effects.drop(DropReason::ClassFull, packet);
        }
        self.kernel_held.add(packet.len_bytes());
        queue.push_back(packet);
        self.intake.activate(index);
        if self.worker.parked {
            self.worker.parked = false;
            self.counts.kicks += 1;
            effects.kicked = true;
        }
    }

    /// Asks for a pass at `at_ns`: the generation to schedule it with, or nothing if an earlier one stands.
    pub fn schedule(&mut self, at_ns: u64) -> Option<u64> {
        if self.worker.next.is_some_and(|(next_ns, _)| next_ns <= at_ns) {
            return None;
        }
        self.worker.generation += 1;
        self.worker.next = Some((at_ns, self.worker.generation));
        Some(self.worker.generation)
    }

    /// One pass of the worker, if it is the one that stands: in, out, and in again for the room that became free.
    pub fn pass(&mut self, generation: u64, now_ns: u64, effects: &mut Effects) {
        if self.worker.next.is_none_or(|(_, next)| next != generation) {
            return;
        }
        self.worker.next = None;
        self.poll(now_ns, effects);
        let not_before_ns = loop {
            match self.class.dequeue(now_ns) {
                Dequeue::Packet(_, packet) => {
                    effects.work_ns += self.parameters.packet_ns;
                    effects.left.push(packet);
                }
                // Its buffer went back to its socket when it was polled.
                Dequeue::Dropped(reason, packet) => effects.dropped.push((reason, packet)),
                Dequeue::NotBefore(at_ns) => break at_ns.max(now_ns + self.parameters.gather_ns),
                Dequeue::Empty => break now_ns,
            }
        };
        self.poll(now_ns, effects);
        self.worker.parked = self.class.room_bytes() > 0;
        self.counts.parks += u64::from(self.worker.parked);
        if self.class.held().packets > 0 {
            effects.pass_at_ns = Some(not_before_ns.max(now_ns + effects.work_ns));
        }
    }

    /// What its counters say is inside: kernel queues and class.
    pub fn held(&self) -> Count {
        let mut held = self.kernel_held;
        held.merge(self.class.held());
        held
    }

    /// The packets still charged to their sockets, one by one.
    pub fn queued(&self) -> impl Iterator<Item = &SimPacket> {
        self.queues.iter().flatten()
    }

    /// The class.
    pub fn class(&self) -> &Class<SimPacket> {
        &self.class
    }

    /// What the worker did so far.
    pub fn counts(&self) -> WeirCounts {
        self.counts
    }

    /// The bound of the credit: what the class may hold at the most.
    pub fn class_bytes_max(&self) -> u64 {
        self.class.limit_bytes() + self.parameters.poll_packets as u64 * LEN_BYTES_MAX
    }

    /// Polls queues in their turn while there is credit.
    fn poll(&mut self, now_ns: u64, effects: &mut Effects) {
        while self.class.room_bytes() > 0
            && let Some(index) = self.intake.next_queue()
        {
            let queue = &mut self.queues[index];
            let taken = queue.len().min(self.parameters.poll_packets);
            let mut bytes = 0;
            for mut packet in queue.drain(..taken) {
                bytes += u64::from(packet.len_bytes());
                self.kernel_held.sub(packet.len_bytes());
                effects.freed.push((packet.sender, packet.truesize_bytes));
                packet.meta_mut().arrival_ns = now_ns;
                packet.meta_mut().queue = index as u16;
                let taken = self.class.enqueue(index, packet);
                assert!(taken.is_ok(), "there are slots for all that the credit can bring");
            }
            self.intake.polled(index, bytes, !queue.is_empty());
            self.counts.grants += 1;
            effects.work_ns += self.parameters.poll_ns;
        }
    }
}
