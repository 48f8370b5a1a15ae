//! Weir between two interfaces: kernel queues that are not drained, and `weir-core`'s intake and class, driven as
//! `weir-run` drives one direction of a wire.
//!
//! ```text
//! socket --charged--> kernel queue q (qdisc, then a ring of the pair) --poll--> class, flow q --tokens, DRR--> out
//! ```
//!
//! A packet stays charged to its socket until a poll takes it: that is what holds the sender. A poll takes up to
//! `poll_packets` of one queue, and only while `Class::room_bytes` is above 0; or, of a quiet queue with nothing in the
//! class, while twice the credit is not used up. So a wake always finds room for half a send buffer, and what is sent is
//! never refused: no empty wakes, no losses.
//!
//! The worker makes a step (in, then out), the next one when that one's work is done, and after a step that moved nothing
//! it parks, until the next tokens or the intake's next look. A sender announces its packet just before it enters the
//! queue; the first announcement of a queue that is not known to have packets kicks the worker if it is parked, once.
//!
//! Owner: one worker. Intake, token bucket, DRR, credit and books are `weir-core`'s, not a model of them.
//! Source: ARCHITECTURE.md; the mechanism verified on a live kernel (veth, owned NAPI instances).
//! Limits: the far side never refuses, frames never run out, the worker does not spin; a queue's ring and qdisc are one
//! FIFO, bounded by `queue_packets`. After `end_ns` an empty wire's worker sleeps for good, so that a run ends.

use std::collections::VecDeque;

use weir_core::{
    drops::{Count, DropReason},
    intake::Intake,
    packet::Packet,
    shaper::{
        backlog::Dequeue,
        class::{Class, ClassSize},
        tbf::{TbfConfig, TbfError},
    },
};

use crate::{effects::Effects, packet::SimPacket};

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
    /// Until when the worker looks for packets even if nothing is inside.
    pub end_ns: u64,
}

/// The longest packet, an Ethernet frame with a VLAN tag; also the quantum of the class's fair queues.
pub const QUANTUM_BYTES: u32 = 1518;
/// The most packets handed to the device in one step.
const BURST: usize = 64;
/// The shortest packet: a bare Ethernet, IPv4 and UDP header.
const LEN_BYTES_MIN: u64 = 42;

/// A wire in one direction.
#[derive(Debug)]
pub struct WeirWire {
    parameters: WeirParameters,
    queues: Vec<KernelQueue>,
    /// Queues whose `pending` was set since the worker looked last.
    announced: Vec<usize>,
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

/// One transmit queue's qdisc and ring, and the word in which its packets are announced.
#[derive(Debug, Default)]
struct KernelQueue {
    /// Each with the time from which a poll finds it.
    packets: VecDeque<(u64, SimPacket)>,
    pending: bool,
}

#[derive(Debug)]
struct Worker {
    parked: bool,
    /// When its next step is, and which of the scheduled ones that is.
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
        let poll_bytes = parameters.poll_packets as u64 * u64::from(QUANTUM_BYTES);
        let inside_bytes_max = 2 * parameters.limits.limit_bytes().max(u64::from(QUANTUM_BYTES));
        let size = ClassSize {
            flows: parameters.queues,
            packets_max: inside_bytes_max.div_ceil(LEN_BYTES_MIN) as usize + parameters.poll_packets,
            quantum_bytes: QUANTUM_BYTES,
            poll_budget_bytes: u64::from(QUANTUM_BYTES),
        };
        let mut queues = Vec::new();
        queues.resize_with(parameters.queues, KernelQueue::default);
        Ok(WeirWire {
            parameters,
            queues,
            announced: Vec::new(),
            kernel_held: Count::default(),
            intake: Intake::new(parameters.queues, poll_bytes as u32, 0),
            class: Class::new(size, Some(parameters.limits), 0)?,
            worker: Worker { parked: true, next: None, generation: 0 },
            counts: WeirCounts { parks: 1, ..WeirCounts::default() },
        })
    }

    /// A process sends: it announces its packet, kicks the worker if that is parked, and has put the packet into its
    /// queue by `entered_ns`.
    pub fn send(&mut self, packet: SimPacket, entered_ns: u64, effects: &mut Effects) {
        let index = packet.sender as usize % self.queues.len();
        let queue = &mut self.queues[index];
        if !std::mem::replace(&mut queue.pending, true) {
            self.announced.push(index);
            if std::mem::take(&mut self.worker.parked) {
                self.counts.kicks += 1;
                effects.kicked = true;
            }
        }
        if queue.packets.len() == self.parameters.queue_packets {
            return effects.drop(DropReason::ClassFull, packet);
        }
        self.kernel_held.add(packet.len_bytes());
        queue.packets.push_back((entered_ns, packet));
    }

    /// Asks for a step at `at_ns`: the generation to schedule it with, or nothing if an earlier one stands.
    pub fn schedule(&mut self, at_ns: u64) -> Option<u64> {
        if self.worker.next.is_some_and(|(next_ns, _)| next_ns <= at_ns) {
            return None;
        }
        self.worker.generation += 1;
        self.worker.next = Some((at_ns, self.worker.generation));
        Some(self.worker.generation)
    }

    /// One step of the worker, if it is the one that stands. It goes on as long as something moves, and then parks.
    pub fn step(&mut self, generation: u64, now_ns: u64, effects: &mut Effects) {
        if self.worker.next.is_none_or(|(_, next)| next != generation) {
            return;
        }
        self.worker.next = None;
        self.worker.parked = false;
        let taken = self.take_in(now_ns, effects);
        let (released, release_ns) = self.release(now_ns, effects);
        let done_ns = now_ns + effects.work_ns;
        if taken + released > 0 {
            effects.step_at_ns = Some(done_ns);
            return;
        }
        self.worker.parked = true;
        self.counts.parks += 1;
        if now_ns < self.parameters.end_ns || self.held() != Count::default() {
            let wake_ns = self.intake.wake_ns().min(release_ns.unwrap_or(u64::MAX));
            effects.wake_at_ns = Some(wake_ns.max(done_ns));
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
        self.queues.iter().flat_map(|queue| queue.packets.iter().map(|(_, packet)| packet))
    }

    /// The class.
    pub fn class(&self) -> &Class<SimPacket> {
        &self.class
    }

    /// What the worker did so far.
    pub fn counts(&self) -> WeirCounts {
        self.counts
    }

    /// What the class may hold at the most: twice the credit, and what one poll brings more.
    pub fn class_bytes_max(&self) -> u64 {
        2 * self.class.limit_bytes() + self.parameters.poll_packets as u64 * u64::from(QUANTUM_BYTES)
    }

    /// A pass over the queues, as `weir-run`'s `Direction::take_in`.
    fn take_in(&mut self, now_ns: u64, effects: &mut Effects) -> usize {
        self.announced.sort_unstable();
        for queue in self.announced.drain(..) {
            self.intake.announce(queue);
        }
        self.intake.begin_pass(now_ns);
        let mut moved = 0;
        loop {
            let room = self.class.room_bytes() > 0;
            // As much again as the credit is for those that have nothing here yet.
            let door = self.class.held().bytes / 2 < self.class.limit_bytes();
            let class = &self.class;
            let may = |queue| room || (door && class.held_of(queue).packets == 0);
            let quiet = self.intake.next_quiet(may);
            let queue = quiet.or_else(|| self.intake.next_active(|_| room));
            let Some(queue) = queue else { return moved };
            moved += self.poll(queue, now_ns, effects);
        }
    }

    fn poll(&mut self, index: usize, now_ns: u64, effects: &mut Effects) -> usize {
        let queue = &mut self.queues[index];
        let (mut count, mut bytes) = (0, 0);
        while count < self.parameters.poll_packets
            && let Some((_, mut packet)) = queue.packets.pop_front_if(|(entered_ns, _)| *entered_ns <= now_ns)
        {
            count += 1;
            bytes += u64::from(packet.len_bytes());
            self.kernel_held.sub(packet.len_bytes());
            effects.freed.push((packet.sender, packet.truesize_bytes));
            packet.meta_mut().arrival_ns = now_ns;
            packet.meta_mut().queue = index as u16;
            let taken = self.class.enqueue(index, packet);
            assert!(taken.is_ok(), "there are slots for all that the credit can bring");
        }
        // A full poll means that there are more: their senders announce nothing until one is not.
        let full = count == self.parameters.poll_packets;
        queue.pending = full;
        self.intake.polled(index, count, bytes, full, now_ns);
        self.counts.grants += 1;
        effects.work_ns += self.parameters.poll_ns;
        count
    }

    /// What the class admits leaves; how many, and when it admits the next.
    fn release(&mut self, now_ns: u64, effects: &mut Effects) -> (usize, Option<u64>) {
        for count in 0..BURST {
            match self.class.dequeue(now_ns) {
                Dequeue::Packet(_, packet) => {
                    effects.work_ns += self.parameters.packet_ns;
                    effects.left.push(packet);
                }
                // Its buffer went back to its socket when it was polled.
                Dequeue::Dropped(reason, packet) => effects.dropped.push((reason, packet)),
                Dequeue::NotBefore(at_ns) => {
                    return (count, Some(at_ns.max(now_ns + self.parameters.gather_ns)));
                }
                Dequeue::Empty => return (count, None),
            }
        }
        (BURST, None)
    }
}
