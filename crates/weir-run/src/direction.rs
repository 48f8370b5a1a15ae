//! One direction of a wire up to where it leaves: packets are taken in at a port, and wait in a class until it admits them.
//!
//! ```text
//! port `from` --poll, if there is room--> class --when admitted--> departure at port `to` --completion--> done
//!     ^                                                                     |
//!     +------------------------------- credit ------------------------------+
//! ```
//!
//! Rule: a queue is polled only while its class has room, the pool has frames for all that one poll may bring, and fewer than
//! `held_packets_max` of this direction are inside, in its classes or departing. A quiet queue with nothing in the class may be polled without room, up to twice the credit in
//! all, so that a quiet flow does not wait for the credit of others. What is not polled stays with its sender.
//!
//! Where there are several classes, a queue's class is not known before its packets are here: it is taken to be the last
//! that its last poll fed, or rather the last of those that this filled (`gates`). So a poll may bring a class up to one poll
//! budget over its credit, once for each queue; and a queue that feeds several waits while one of them is full. The sending
//! end gives each flow a queue of its own while there are enough, so neither is the rule.
//!
//! Conservation (invariant 1), at every instant: accepted = released + dropped + held, in the classes; `departure.rs` has
//! the rest of the way. Owner: the worker that owns port `from`.

use std::sync::Arc;

use weir_core::intake::Intake;
use weir_core::packet::Meta;
use weir_core::shaper::backlog::{Dequeue, Refused};
use weir_core::shaper::tbf::{TbfConfig, TbfError};
use weir_port::frames::{Frames, Received};
use weir_port::napi;
use weir_port::port::Port;

use crate::classes::Classes;
use crate::packet::{Ecn, WirePacket, bytes_of};
use crate::shaping::{FREE, Shaping, Size};
use crate::workstreams::Tally;

/// The most packets that leave in one step.
const BURST: usize = 64;
/// The quantum of the class's fair queues: a longest Ethernet frame with a VLAN tag.
const QUANTUM_BYTES: u32 = 1518;

/// One direction and its state.
pub struct Direction {
    intake: Intake,
    shaping: Shaping,
    /// For each queue the class that it waits for.
    gates: Box<[usize]>,
    /// The classes that are full and keep a queue with packets from being polled.
    blocked: Vec<usize>,
    held_packets_max: u64,
    poll_budget_max: u32,
    poll_budget: u32,
    backlogged: Box<[bool]>,
    received: Vec<Received>,
    tally: Tally,
}

impl Direction {
    /// From port `interface` (0 or 1), with so many queues, holding at most `held_packets_max` packets at a time, and taking at
    /// most `poll_budget_max` in at a poll.
    pub fn new(
        interface: u16,
        queues: usize,
        held_packets_max: u64,
        poll_budget_max: u32,
        limits: Option<TbfConfig>,
        now_ns: u64,
    ) -> Result<Direction, TbfError> {
        let size = Size {
            queues,
            // The last poll before the bound may overshoot it, and what all queues have on offer may come in without a poll.
            packets_max: held_packets_max as usize + (queues + 1) * poll_budget_max as usize,
            quantum_bytes: QUANTUM_BYTES,
            interface,
        };
        let shaping = Shaping::new(size, limits, now_ns)?;
        let mut intake = Intake::new(queues, napi::BUDGET * QUANTUM_BYTES, now_ns);
        intake.make_room(shaping.classes_max());
        Ok(Direction {
            intake,
            shaping,
            gates: vec![0; queues].into_boxed_slice(),
            blocked: Vec::with_capacity(queues),
            held_packets_max,
            poll_budget_max,
            poll_budget: poll_budget_max,
            backlogged: vec![false; queues].into_boxed_slice(),
            received: Vec::with_capacity(napi::BUDGET as usize * 2),
            tally: Tally { qlimit: held_packets_max, ..Tally::default() },
        })
    }

    /// Changes the limits; nothing that waits is touched.
    pub fn set_limits(
        &mut self,
        limits: Option<TbfConfig>,
        from: &mut Port,
        now_ns: u64,
    ) -> Result<(), TbfError> {
        self.shaping.set_limits(limits, now_ns)?;
        self.tune(from);
        Ok(())
    }

    /// Shapes by these classes from now on; nothing that waits is lost, and no flow reordered.
    pub fn set_classes(&mut self, classes: Arc<Classes>, from: &mut Port, frames: &mut Frames, now_ns: u64) {
        for class in self.blocked.drain(..) {
            if let Some(blocked) = self.shaping.blocked_mut(class) {
                blocked.end(now_ns);
            }
        }
        let gates = &mut self.gates;
        let mut moved = vec![None; gates.len()];
        self.shaping
            .set_classes(classes, &mut frames.pool, now_ns, |queue, class| moved[queue] = Some(class));
        let otherwise = self.shaping.default_class();
        gates.iter_mut().zip(moved).for_each(|(gate, moved)| *gate = moved.unwrap_or(otherwise));
        self.intake.make_room(self.shaping.classes_max());
        self.gates.iter().enumerate().for_each(|(queue, &class)| self.intake.set_group(queue, group(class)));
        self.tune(from);
    }

    /// Notes what senders' MTU is: how long packets are that come from now on.
    pub fn note_mtu(&mut self, from: &Port, now_ns: u64) {
        const ETHERNET_HEADER_BYTES: u64 = 14;
        let bytes = u64::from(from.sender().mtu_bytes) + ETHERNET_HEADER_BYTES;
        self.shaping.set_packet_bytes_max(bytes, now_ns);
    }

    /// Makes a poll bring an eighth of the credit or less at a time, and a queue as much a round.
    pub fn tune(&mut self, from: &mut Port) {
        let share = self.shaping.limit_bytes_min() / (8 * u64::from(QUANTUM_BYTES));
        self.poll_budget = from.set_poll_budget(share.clamp(4, u64::from(self.poll_budget_max)) as u32);
        self.intake.set_quantum_bytes(self.poll_budget * QUANTUM_BYTES);
    }

    /// Whether a packet was announced that the intake does not know of: the last look before parking.
    pub fn is_announced(&self, from: &Port) -> bool {
        (0..from.queues()).any(|queue| self.intake.is_quiet(queue) && from.announcements().is_pending(queue))
    }

    /// Whether a packet that came now would be taken, `departing` of this direction being on their way out.
    pub fn has_room(&self, frames: &Frames, departing: u64) -> bool {
        self.shaping.has_room(self.shaping.default_class()) && self.has_room_for_poll(frames, departing)
    }

    /// Whether queues with packets are not polled because frames or credit are missing, which come back without a word.
    pub fn is_starved(&self, frames: &Frames, departing: u64) -> bool {
        self.intake.has_work() && !self.has_room_for_poll(frames, departing)
    }

    /// Frames for all that a poll may bring, and for offering as many again.
    fn has_room_for_poll(&self, frames: &Frames, departing: u64) -> bool {
        self.shaping.held().packets + departing < self.held_packets_max
            && frames.pool.available() >= 2 * napi::BUDGET
    }

    /// Takes in what there is room for, `departing` being on their way out; how many that were.
    pub fn take_in(&mut self, from: &mut Port, frames: &mut Frames, departing: u64, now_ns: u64) -> usize {
        for queue in 0..from.queues() {
            if self.intake.is_quiet(queue) && from.announcements().is_pending(queue) {
                self.intake.announce(queue);
            }
        }
        self.intake.begin_pass(now_ns);
        let mut moved = 0;
        while self.has_room_for_poll(frames, departing) {
            let (shaping, gates) = (&self.shaping, &self.gates);
            let room = |queue: usize| shaping.has_room(gates[queue]);
            let quiet = self.intake.next_quiet(|queue| room(queue) || shaping.has_door(gates[queue], queue));
            let Some(queue) = quiet.or_else(|| self.intake.next_active(room)) else { break };
            moved += self.poll(queue, from, frames, now_ns);
        }
        let stuck = !self.has_room_for_poll(frames, departing);
        self.note_blocked(stuck, now_ns);
        moved
    }

    /// Tells the classes that keep a queue with packets from being polled, and those that no longer do.
    fn note_blocked(&mut self, stuck: bool, now_ns: u64) {
        if self.blocked.is_empty() && !self.intake.has_work() {
            return;
        }
        let mut blocked = std::mem::take(&mut self.blocked);
        let before = blocked.len();
        for (queue, &class) in self.gates.iter().enumerate() {
            if !self.intake.is_quiet(queue)
                && (stuck || !self.shaping.has_room(class))
                && !blocked[before..].contains(&class)
            {
                blocked.push(class);
            }
        }
        for class in &blocked[..before] {
            if !blocked[before..].contains(class)
                && let Some(times) = self.shaping.blocked_mut(*class)
            {
                times.end(now_ns);
            }
        }
        blocked.drain(..before);
        self.tally.blocked += u64::from(before == 0 && !blocked.is_empty());
        for &class in &blocked {
            if let Some(times) = self.shaping.blocked_mut(class) {
                times.begin(now_ns);
            }
        }
        self.blocked = blocked;
    }

    fn poll(&mut self, queue: usize, from: &mut Port, frames: &mut Frames, now_ns: u64) -> usize {
        from.offer(queue, frames);
        // Asked for before the poll: a packet that comes after it is announced.
        from.announcements().expect_none(queue);
        let count = from.poll(queue, frames, &mut self.received);
        // As many as a poll brings: there are more, and their senders need ring no bell while those wait for room.
        let full = count as u32 >= self.poll_budget;
        if full {
            from.announcements().set_pending(queue);
        }
        let bytes = self.received.iter().map(|received| u64::from(received.len_bytes)).sum();
        self.intake.polled(queue, count, bytes, full, now_ns);
        if self.backlogged[queue] != full {
            self.backlogged[queue] = full;
            from.announcements().set_backlog(queue, full);
        }
        self.enqueue_received(queue, frames, now_ns);
        count
    }

    /// Takes in what has arrived without a poll, room or not: the class has slots for it.
    pub fn collect(&mut self, from: &mut Port, frames: &mut Frames, now_ns: u64) {
        for queue in 0..from.queues() {
            from.collect(queue, frames, &mut self.received);
            self.enqueue_received(queue, frames, now_ns);
        }
    }

    fn enqueue_received(&mut self, queue: usize, frames: &mut Frames, now_ns: u64) {
        let mut is_full = false;
        for received in self.received.drain(..) {
            let bytes = bytes_of(&received, frames.pool.memory());
            let class = self.shaping.class_of(bytes);
            let ecn = Ecn::of(bytes, self.shaping.marks(class));
            let meta = Meta { arrival_ns: now_ns, queue: queue as u16, ..Meta::default() };
            match self.shaping.enqueue(class, queue, WirePacket { received, meta, ecn }) {
                Ok(()) => {}
                Err(Refused::Dropped(_, packet)) => frames.pool.give(packet.received.frame),
                Err(Refused::NoSlot(_)) => panic!("a class has slots for all that its intake may bring"),
            }
            let fills = !self.shaping.has_room(class);
            if fills || !is_full {
                self.gates[queue] = class;
                self.intake.set_group(queue, group(class));
            }
            is_full |= fills;
        }
        self.tally.held_max = self.tally.held_max.max(self.shaping.held().packets);
    }

    /// Lets out what the classes admit, `room` packets at the most; how many, and when they admit the next.
    pub fn release(
        &mut self,
        room: u32,
        frames: &mut Frames,
        now_ns: u64,
        mut out: impl FnMut(WirePacket, &mut Frames),
    ) -> (usize, Option<u64>) {
        let most = BURST.min(room as usize);
        let mut count = 0;
        while count < most {
            match self.shaping.dequeue(now_ns) {
                Dequeue::Packet(_, packet) => {
                    count += 1;
                    self.tally.dispatched += u64::from(packet.meta.arrival_ns == now_ns);
                    out(packet, frames);
                }
                Dequeue::Dropped(_, packet) => frames.pool.give(packet.received.frame),
                Dequeue::NotBefore(ready_ns) => {
                    return (count, Some(ready_ns.max(now_ns + self.shaping.gather_ns())));
                }
                Dequeue::Empty => return (count, None),
            }
        }
        (count, None)
    }

    /// When to look at the queues again if nothing is announced.
    pub fn wake_ns(&self) -> u64 {
        self.intake.wake_ns()
    }

    /// Its classes, to look at.
    pub fn shaping(&self) -> &Shaping {
        &self.shaping
    }

    /// What it counts for its workstream.
    pub fn tally(&self) -> Tally {
        self.tally
    }

    /// Polls that brought nothing.
    pub fn empty_polls(&self) -> u64 {
        self.intake.empty_polls()
    }

    /// Times that a blocked queue was given room and had nothing.
    pub fn empty_wakes(&self) -> u64 {
        self.intake.empty_wakes()
    }
}

/// The intake's group of the queues that wait for a class.
#[inline]
fn group(class: usize) -> usize {
    if class == FREE { 0 } else { class + 1 }
}
