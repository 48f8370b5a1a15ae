//! The way in at one port: its queues are polled while there is room for what that brings, and packets go to their classes.
//!
//! ```text
//! port --poll, if there is room--> class --when admitted--> exit at another port --completion--> done
//!   ^                                                             |
//!   +------------------------------- credit ----------------------+
//! ```
//!
//! Rule: a queue is polled only while its class has room, the pool has frames for all that one poll may bring, and fewer than
//! `held_packets_max` of this intake are inside, in its classes or departing. A quiet queue with nothing in the class may be polled
//! without room, up to twice the credit in all, so that a quiet flow does not wait for the credit of others. What is not polled stays
//! with its sender.
//!
//! Where there are several classes, a queue's class is not known before its packets are here: it is taken to be the last
//! that its last poll fed, or rather the last of those that this filled (`gates`). So a poll may bring a class up to one poll
//! budget over its credit, once for each queue; and a queue that feeds several waits while one of them is full. The sending
//! end gives each flow a queue of its own while there are enough, so neither is the rule.
//!
//! Owner: the worker that owns the port.

use std::sync::Arc;

use weir_core::packet::Meta;
use weir_core::poll_order::PollOrder;
use weir_core::shaper::backlog::Refused;

use crate::classes::Classes;
use crate::frames::Frames;
use crate::packet::{Ecn, PathPacket};
use crate::port::{POLL_PACKETS_MAX, ReceiveQueues};
use crate::shaping::{FREE, Shaping, Size};

/// The quantum of the classes' fair queues: a longest Ethernet frame with a VLAN tag.
pub const QUANTUM_BYTES: u32 = 1518;

/// One port's way in.
pub struct Intake {
    order: PollOrder,
    /// For each queue the class that it waits for.
    gates: Box<[usize]>,
    /// The classes that are full and keep a queue with packets from being polled.
    blocked: Vec<usize>,
    held_packets_max: u64,
    poll_budget_max: u32,
    poll_budget: u32,
    backlogged: Box<[bool]>,
    received: Vec<PathPacket>,
    counts: IntakeCounts,
}

/// What an intake counts, apart from the books of its classes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IntakeCounts {
    /// Packets that were put into a class.
    pub entered: u64,
    /// Packets that a class refused.
    pub refused: u64,
    /// The most packets that waited.
    pub held_max: u64,
    /// Times that senders began to be held.
    pub blocked: u64,
    /// The most packets that may be inside.
    pub qlimit: u64,
}

impl Intake {
    /// For a port of so many queues, holding at most `held_packets_max` packets at a time, and taking at most `poll_budget_max` in at a
    /// poll.
    pub fn new(queues: usize, held_packets_max: u64, poll_budget_max: u32, now_ns: u64) -> Intake {
        let mut order = PollOrder::new(queues, POLL_PACKETS_MAX * QUANTUM_BYTES, now_ns);
        // For the one class that there is before others are set.
        order.make_room(group(0));
        Intake {
            order,
            gates: vec![0; queues].into_boxed_slice(),
            blocked: Vec::with_capacity(queues),
            held_packets_max,
            poll_budget_max,
            poll_budget: poll_budget_max,
            backlogged: vec![false; queues].into_boxed_slice(),
            received: Vec::with_capacity(POLL_PACKETS_MAX as usize * 2),
            counts: IntakeCounts { qlimit: held_packets_max, ..IntakeCounts::default() },
        }
    }

    /// The size of the classes for what comes in here, at a port that filters know by `interface`.
    pub(crate) fn shaping_size(&self, interface: u16) -> Size {
        let queues = self.gates.len();
        Size {
            queues,
            // The last poll before the bound may overshoot it, and what all queues have on offer may come in without a poll.
            packets_max: self.held_packets_max as usize + (queues + 1) * self.poll_budget_max as usize,
            quantum_bytes: QUANTUM_BYTES,
            interface,
        }
    }

    /// Shapes by these classes from now on.
    pub(crate) fn set_classes(
        &mut self,
        shaping: &mut Shaping,
        classes: Arc<Classes>,
        frames: &mut Frames,
        now_ns: u64,
    ) {
        for class in self.blocked.drain(..) {
            if let Some(blocked) = shaping.blocked_mut(class) {
                blocked.end(now_ns);
            }
        }
        let gates = &mut self.gates;
        let mut moved = vec![None; gates.len()];
        shaping.set_classes(classes, &mut frames.pool, now_ns, |queue, class| moved[queue] = Some(class));
        let otherwise = shaping.default_class();
        gates.iter_mut().zip(moved).for_each(|(gate, moved)| *gate = moved.unwrap_or(otherwise));
        self.order.make_room(shaping.classes_max());
        self.gates.iter().enumerate().for_each(|(queue, &class)| self.order.set_group(queue, group(class)));
    }

    /// Makes a poll bring an eighth of the credit or less at a time, and a queue as much a round.
    pub fn tune(&mut self, port: &mut impl ReceiveQueues, shaping: &Shaping) {
        let share = shaping.limit_bytes_min() / (8 * u64::from(QUANTUM_BYTES));
        self.poll_budget = port.set_poll_budget(share.clamp(4, u64::from(self.poll_budget_max)) as u32);
        self.order.set_quantum_bytes(self.poll_budget * QUANTUM_BYTES);
    }

    /// Whether a packet was announced that is not known of: the last look before parking.
    pub fn is_announced(&self, port: &impl ReceiveQueues) -> bool {
        (0..port.queues()).any(|queue| self.order.is_quiet(queue) && port.is_announced(queue))
    }

    /// Whether a packet that came now would be taken, `departing` of this intake being on their way out.
    pub fn has_room(&self, shaping: &Shaping, frames: &Frames, departing: u64) -> bool {
        shaping.has_room(shaping.default_class()) && self.has_room_for_poll(shaping, frames, departing)
    }

    /// Whether queues with packets are not polled because frames or credit are missing, which come back without a word.
    pub fn is_starved(&self, shaping: &Shaping, frames: &Frames, departing: u64) -> bool {
        self.order.has_work() && !self.has_room_for_poll(shaping, frames, departing)
    }

    /// Frames for all that a poll may bring, and for offering as many again.
    fn has_room_for_poll(&self, shaping: &Shaping, frames: &Frames, departing: u64) -> bool {
        shaping.held().packets + departing < self.held_packets_max
            && frames.pool.available() >= 2 * POLL_PACKETS_MAX
    }

    /// Takes in what there is room for, `departing` being on their way out; how many that were.
    pub fn take_in(
        &mut self,
        port: &mut impl ReceiveQueues,
        shaping: &mut Shaping,
        frames: &mut Frames,
        departing: u64,
        now_ns: u64,
    ) -> usize {
        for queue in 0..port.queues() {
            if self.order.is_quiet(queue) && port.is_announced(queue) {
                self.order.announce(queue);
            }
        }
        self.order.begin_pass(now_ns);
        let mut moved = 0;
        while self.has_room_for_poll(shaping, frames, departing) {
            let gates = &self.gates;
            let room = |queue: usize| shaping.has_room(gates[queue]);
            let quiet = self.order.next_quiet(|queue| room(queue) || shaping.has_door(gates[queue], queue));
            let Some(queue) = quiet.or_else(|| self.next_active(shaping)) else { break };
            moved += self.poll(queue, port, shaping, frames, now_ns);
        }
        let is_stuck = !self.has_room_for_poll(shaping, frames, departing);
        self.note_blocked(shaping, is_stuck, now_ns);
        moved
    }

    /// The queue whose turn it is of those that wait for a class with room. Whether there is such a class is asked first: many queues may
    /// wait for one.
    fn next_active(&mut self, shaping: &Shaping) -> Option<usize> {
        if !self.order.groups_with_work().any(|group| shaping.has_room(class_of(group))) {
            return None;
        }
        let gates = &self.gates;
        self.order.next_active(|queue| shaping.has_room(gates[queue]))
    }

    /// Tells the classes that keep a queue with packets from being polled, and those that no longer do.
    fn note_blocked(&mut self, shaping: &mut Shaping, is_stuck: bool, now_ns: u64) {
        if self.blocked.is_empty() && !self.order.has_work() {
            return;
        }
        let mut blocked = std::mem::take(&mut self.blocked);
        let before = blocked.len();
        let waited_for = self.order.groups_with_work().map(class_of);
        blocked.extend(waited_for.filter(|&class| is_stuck || !shaping.has_room(class)));
        for class in &blocked[..before] {
            if !blocked[before..].contains(class)
                && let Some(times) = shaping.blocked_mut(*class)
            {
                times.end(now_ns);
            }
        }
        blocked.drain(..before);
        self.counts.blocked += u64::from(before == 0 && !blocked.is_empty());
        for &class in &blocked {
            if let Some(times) = shaping.blocked_mut(class) {
                times.begin(now_ns);
            }
        }
        self.blocked = blocked;
    }

    fn poll(
        &mut self,
        queue: usize,
        port: &mut impl ReceiveQueues,
        shaping: &mut Shaping,
        frames: &mut Frames,
        now_ns: u64,
    ) -> usize {
        // Asked for before the poll: a packet that comes after it is announced.
        port.expect(queue);
        let count = port.poll(queue, frames, &mut self.received);
        // As many as a poll brings: there are more, and their senders need ring no bell while those wait for room.
        let is_full = count as u32 >= self.poll_budget;
        if is_full {
            port.set_announced(queue);
        }
        let bytes = self.received.iter().map(|packet| u64::from(packet.len_bytes)).sum();
        self.order.polled(queue, count, bytes, is_full, now_ns);
        if self.backlogged[queue] != is_full {
            self.backlogged[queue] = is_full;
            port.set_backlog(queue, is_full);
        }
        self.enqueue_received(queue, shaping, frames, now_ns);
        count
    }

    /// Takes in what has arrived without a poll, room or not: the classes have slots for it.
    pub fn collect(
        &mut self,
        port: &mut impl ReceiveQueues,
        shaping: &mut Shaping,
        frames: &mut Frames,
        now_ns: u64,
    ) {
        for queue in 0..port.queues() {
            port.collect(queue, frames, &mut self.received);
            self.enqueue_received(queue, shaping, frames, now_ns);
        }
    }

    fn enqueue_received(&mut self, queue: usize, shaping: &mut Shaping, frames: &mut Frames, now_ns: u64) {
        let mut is_full = false;
        for mut packet in self.received.drain(..) {
            let bytes = packet.bytes(frames.pool.memory());
            let class = shaping.class_of(bytes);
            packet.ecn = Ecn::of(bytes, shaping.marks(class));
            packet.meta = Meta { arrival_ns: now_ns, queue: queue as u16, ..Meta::default() };
            match shaping.enqueue(class, queue, packet) {
                Ok(()) => self.counts.entered += 1,
                Err(Refused::Dropped(_, packet)) => {
                    self.counts.refused += 1;
                    frames.pool.give(packet.frame);
                }
                Err(Refused::NoSlot(_)) => panic!("a class has slots for all that its intake may bring"),
            }
            let fills = !shaping.has_room(class);
            if fills || !is_full {
                self.gates[queue] = class;
                self.order.set_group(queue, group(class));
            }
            is_full |= fills;
        }
        self.counts.held_max = self.counts.held_max.max(shaping.held().packets);
    }

    /// When to look at the queues again if nothing is announced.
    pub fn wake_ns(&self) -> u64 {
        self.order.wake_ns()
    }

    /// What it counts.
    pub fn counts(&self) -> IntakeCounts {
        self.counts
    }

    /// Polls that brought nothing.
    pub fn empty_polls(&self) -> u64 {
        self.order.empty_polls()
    }

    /// Times that a blocked queue was given room and had nothing.
    pub fn empty_wakes(&self) -> u64 {
        self.order.empty_wakes()
    }
}

/// The group in the order of polls of the queues that wait for a class.
#[inline]
fn group(class: usize) -> usize {
    if class == FREE { 0 } else { class + 1 }
}

/// The class that the queues of a group wait for.
#[inline]
fn class_of(group: usize) -> usize {
    if group == 0 { FREE } else { group - 1 }
}
