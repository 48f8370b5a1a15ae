//! The way in at one port: its queues are polled while there is room for the packets that a poll brings.
//!
//! ```text
//! port --poll, if there is room--> way --> place --when admitted--> exit at another port --completion--> done
//!   ^                                                                     |
//!   +------------------------------------ credit -------------------------+
//! ```
//!
//! Rule: a queue is polled only while the places that it waits for have room ([`crate::egress`]) and the pool has frames for all that one
//! poll may bring. A quiet queue with no packet at a place may be polled without room, up to twice the credit in all, so that a quiet flow
//! does not wait for the credit of others. A packet that is not polled stays with its sender.
//!
//! The places that a poll feeds are not known before its packets are here: they are taken to be those of the last poll
//! ([`crate::place::Gate`]). So a poll may bring a place up to one poll budget over its credit, once for each queue; and a queue that feeds
//! several waits while one of them is full. The sending end gives each flow a queue of its own while there are enough, so neither is the
//! rule. Where a stage decides, the next packets of a queue may go elsewhere than its last, so a queue waits for a place only while packets
//! of its own wait there: a port that takes no packets holds no queue that has none for it.
//!
//! Where packets go on at another worker the places are that worker's, whose board tells the room of each ([`crate::board`]).
//!
//! Owner: the worker that owns the port.

use std::cell::Cell;

use weir_core::drops::Count;
use weir_core::packet::{Meta, count_of};
use weir_core::poll_order::PollOrder;

use crate::between::{Between, Way};
use crate::departures::{Crosses, Departures};
use crate::egress::{EgressQueues, Landed};
use crate::frames::Frames;
use crate::packet::PathPacket;
use crate::place::{Gate, Place};
use crate::port::{POLL_PACKETS_MAX, ReceiveQueues};

/// The quantum of the classes' fair queues: a longest Ethernet frame with a VLAN tag.
pub const QUANTUM_BYTES: u32 = 1518;
/// The number of groups for places at other workers; more places than that share groups.
const GROUPS_OVER: usize = 64;

/// The way in at one port.
pub struct Intake {
    /// The port, by its place in the plan.
    port: u16,
    way: Way,
    /// The egress queues that the port's packets may come to.
    reach: Box<[usize]>,
    /// The other workers that the port's packets come to.
    crosses: Crosses,
    /// True for each queue that other workers kept from being polled at its last turn.
    kept_out: Box<[Cell<bool>]>,
    order: PollOrder,
    /// The places that each queue waits for.
    gates: Box<[Gate]>,
    /// The places that are full and keep a queue with packets from being polled.
    blocked: Vec<Place>,
    poll_budget_max: u32,
    poll_budget: u32,
    backlogged: Box<[bool]>,
    received: Vec<PathPacket>,
    /// Packets of other ports that came to a full place by way of this one.
    filled: Vec<Landed>,
    /// Polls and wakes that brought no packet, from before the queues began anew.
    empty_before: [u64; 2],
}

impl Intake {
    /// The intake of a port of `queues` queues whose packets go by `way` and may come to the egress queues of `reach`. A poll takes in at
    /// most `poll_budget_max` packets.
    pub fn new(
        port: u16,
        queues: usize,
        way: Way,
        (reach, crosses): (Box<[usize]>, Crosses),
        poll_budget_max: u32,
        egress: &EgressQueues,
        now_ns: u64,
    ) -> Intake {
        let place = way.place(egress);
        Intake {
            port,
            way,
            reach,
            crosses,
            kept_out: vec![Cell::new(false); queues].into_boxed_slice(),
            order: PollOrder::new(queues, POLL_PACKETS_MAX * QUANTUM_BYTES, now_ns),
            gates: vec![Gate::new(place); queues].into_boxed_slice(),
            blocked: Vec::with_capacity(queues),
            poll_budget_max,
            poll_budget: poll_budget_max,
            backlogged: vec![false; queues].into_boxed_slice(),
            received: Vec::with_capacity(POLL_PACKETS_MAX as usize * 2),
            filled: Vec::new(),
            empty_before: [0; 2],
        }
    }

    /// Begins anew with `queues` queues, of which nothing is known: the port is another.
    pub(crate) fn begin_anew(&mut self, queues: usize, egress: &EgressQueues, now_ns: u64) {
        let (port, way) = (self.port, self.way);
        let ways = (std::mem::take(&mut self.reach), std::mem::take(&mut self.crosses));
        let empty_before = [self.empty_polls(), self.empty_wakes()];
        *self = Intake {
            empty_before,
            ..Intake::new(port, queues, way, ways, self.poll_budget_max, egress, now_ns)
        };
        self.follow(egress, None, &[]);
    }

    /// The way of the port's packets.
    pub(crate) fn way(&self) -> Way {
        self.way
    }

    /// Puts the queues into the groups of their places, which have other numbers now. If the classes of an egress queue have changed,
    /// `moved` says for ports and their queues in which places the packets wait now that waited there.
    pub(crate) fn follow(
        &mut self,
        egress: &EgressQueues,
        changed: Option<usize>,
        moved: &[(u16, u16, Place)],
    ) {
        let otherwise = self.way.place(egress);
        self.order.make_room(egress.places().count() + GROUPS_OVER);
        for (queue, gate) in self.gates.iter_mut().enumerate() {
            if let Some(changed) = changed {
                let now =
                    moved.iter().filter(|(port, of, _)| (*port, usize::from(*of)) == (self.port, queue));
                gate.follow(changed, now.map(|(.., place)| *place), otherwise);
            }
            self.order.set_group(queue, egress.places().number(gate.first()));
        }
    }

    /// Makes a poll bring at most an eighth of the least credit, but 4 packets or more, and a queue as much a round.
    pub fn tune(&mut self, port: &mut impl ReceiveQueues, egress: &EgressQueues, over: Option<&Departures>) {
        let limits = self.reach.iter().map(|&queue| egress.queues()[queue].shaping.limit_bytes_min());
        let limits = limits.chain(over.map(|over| over.credit_bytes(&self.crosses)));
        let share = limits.min().unwrap_or(u64::MAX) / (8 * u64::from(QUANTUM_BYTES));
        self.poll_budget = port.set_poll_budget(share.clamp(4, u64::from(self.poll_budget_max)) as u32);
        self.order.set_quantum_bytes(self.poll_budget * QUANTUM_BYTES);
    }

    /// Returns whether a packet was announced on a queue that is taken to have none: the last look before parking.
    pub fn is_announced(&self, port: &impl ReceiveQueues) -> bool {
        (0..port.queues()).any(|queue| self.order.is_quiet(queue) && port.is_announced(queue))
    }

    /// Returns whether packets wait in its queues, as far as is known.
    pub fn has_waiting(&self, port: &impl ReceiveQueues) -> bool {
        self.order.has_work() || self.is_announced(port)
    }

    /// Returns whether the intake would take in a packet that came now, as far as is known.
    pub fn has_room(&self, between: &Between) -> bool {
        let Between { egress, frames, .. } = between;
        let has_room = |&queue: &usize| egress.has_room(egress.default_place(queue));
        has_frames(frames)
            && !self.is_held(between)
            && (self.reach.iter().any(has_room) || !self.crosses.is_empty())
    }

    /// Returns whether packets wait in a stage, so that the port's packets may not come to it.
    fn is_held(&self, between: &Between) -> bool {
        self.way.mixes() && (between.is_waiting() || between.holds(self.way, self.port))
    }

    /// Returns whether the intake takes no packets in, whatever place has room.
    fn is_stuck(&self, is_inner: bool, between: &Between) -> bool {
        match is_inner {
            true => between.holds(self.way, self.port),
            false => !has_frames(&between.frames) || self.is_held(between),
        }
    }

    /// The ports by which the port's packets may leave, at whatever worker.
    pub fn exits<'a>(&'a self, egress: &'a EgressQueues) -> impl Iterator<Item = usize> + 'a {
        self.reach.iter().map(|&queue| egress.queues()[queue].port).chain(self.crosses.exits())
    }

    /// Returns whether queues with packets are not polled for want of frames, or because an egress queue holds as many packets as it may.
    /// Both pass without a word.
    pub fn is_starved(&self, between: &Between) -> bool {
        let Between { egress, frames, .. } = between;
        let mut waited_for =
            self.order.groups_with_work().map(|number| egress.places().place_or_none(number));
        self.order.has_work() && (!has_frames(frames) || waited_for.any(|place| egress.is_at_bound(place)))
    }

    /// Takes in the packets that there is room for; returns their number.
    pub fn take_in(&mut self, port: &mut impl ReceiveQueues, between: &mut Between, now_ns: u64) -> usize {
        for queue in 0..port.queues() {
            if self.order.is_quiet(queue) && port.is_announced(queue) {
                self.order.announce(queue);
            }
        }
        self.order.begin_pass(now_ns);
        // A packet that is inside has a frame and is not held for a place: its receive queue is, by the place that the packet comes to.
        let is_inner = port.is_inner();
        let mixes = self.way.mixes();
        let mut moved = 0;
        while !self.is_stuck(is_inner, between) {
            let (gates, egress, number) = (&self.gates, &between.egress, self.port);
            let (crosses, over, kept_out) = (&self.crosses, &between.over, &self.kept_out);
            let few = self.poll_budget_max;
            let admits = |queue, is_quiet| {
                let admits = crosses.is_empty()
                    || over.as_ref().is_some_and(|over| over.admits(crosses, queue, few, is_quiet));
                kept_out[queue].set(!admits);
                admits
            };
            let quiet = self.order.next_quiet(|queue| {
                is_inner
                    || admits(queue, true)
                        && gates[queue].places().iter().all(|&place| {
                            let has_none = || mixes && egress.has_none(place, number, queue);
                            egress.has_room(place) || egress.has_door(place, number, queue) || has_none()
                        })
            });
            // A place with room is looked for first: many queues may wait for one.
            let has_room = |group: usize| egress.has_room(egress.places().place_or_none(group));
            let active = || {
                if !is_inner && !mixes && !self.order.groups_with_work().any(has_room) {
                    return None;
                }
                self.order.next_active(|queue| {
                    let may =
                        |&place| egress.has_room(place) || mixes && egress.has_none(place, number, queue);
                    is_inner || admits(queue, false) && gates[queue].places().iter().all(may)
                })
            };
            let Some(queue) = quiet.or_else(active) else { break };
            moved += self.poll(queue, port, between, now_ns);
        }
        self.note_blocked(between);
        self.tell_waiting(between, |queue| !self.order.is_quiet(queue));
        moved
    }

    /// Tells the other workers in which queues packets wait: a full place there holds the senders of these.
    fn tell_waiting(&self, between: &Between, is_waiting: impl Fn(usize) -> bool) {
        if let Some(over) = between.over.as_ref().filter(|_| !self.crosses.is_empty()) {
            let queues = 0..self.gates.len();
            queues.for_each(|queue| over.tell_waiting(&self.crosses, queue, is_waiting(queue)));
        }
    }

    /// Tells the other workers that the port is gone: nothing waits in its queues.
    pub(crate) fn leave(&self, between: &Between) {
        self.tell_waiting(between, |_| false);
    }

    /// The queues with packets that others keep from being polled.
    fn kept_out(&self) -> impl Iterator<Item = usize> + '_ {
        let is_kept_out = |&queue: &usize| self.kept_out[queue].get() && !self.order.is_quiet(queue);
        (0..self.kept_out.len()).filter(is_kept_out)
    }

    /// Returns whether the intake waits for other workers' gates to open, and whether for packets to land there.
    pub(crate) fn waits_over(&self, over: &Departures) -> [bool; 2] {
        let waits = self.kept_out().map(|queue| over.waits_for(&self.crosses, queue));
        waits.fold([false; 2], |all, one| [all[0] | one[0], all[1] | one[1]])
    }

    /// Returns whether other workers let a queue be polled that they kept out: the last look before parking.
    pub(crate) fn is_let_in(&self, over: &Departures) -> bool {
        let few = self.poll_budget_max;
        self.kept_out().any(|queue| over.admits(&self.crosses, queue, few, self.order.is_fresh(queue)))
    }

    /// Notes which places keep a queue with packets from being polled.
    fn note_blocked(&mut self, between: &Between) {
        self.blocked.clear();
        let Between { egress, frames, .. } = between;
        let is_stuck = !has_frames(frames) || self.is_held(between);
        let waited_for = self.order.groups_with_work().map(|number| egress.places().place_or_none(number));
        self.blocked.extend(waited_for.filter(|&place| is_stuck || !egress.has_room(place)));
    }

    /// The places that keep a queue with packets from being polled.
    pub fn blocked(&self) -> &[Place] {
        &self.blocked
    }

    fn poll(
        &mut self,
        queue: usize,
        port: &mut impl ReceiveQueues,
        between: &mut Between,
        now_ns: u64,
    ) -> usize {
        // The announcement is asked for before the poll: a packet that comes after the poll is announced.
        port.expect(queue);
        let count = port.poll(queue, &mut between.frames, &mut self.received);
        // A full poll means that the queue has more packets: their senders need not announce others while those wait for room.
        let is_full = count as u32 >= self.poll_budget;
        if is_full {
            port.set_announced(queue);
        }
        let received = count_of(&self.received);
        // The packets that the poll brought and that did not come here had a turn too.
        let elsewhere = count.saturating_sub(self.received.len()) as u64;
        let bytes = received.bytes + elsewhere * u64::from(QUANTUM_BYTES);
        self.order.polled(queue, count, bytes, is_full, now_ns);
        if self.backlogged[queue] != is_full {
            self.backlogged[queue] = is_full;
            port.set_backlog(queue, is_full);
        }
        self.move_on(queue, received, port.is_inner(), between, now_ns);
        count
    }

    /// Takes in the packets that have arrived without a poll, room or not: the classes have slots for them.
    pub fn collect(&mut self, port: &mut impl ReceiveQueues, between: &mut Between, now_ns: u64) {
        for queue in 0..port.queues() {
            port.collect(queue, &mut between.frames, &mut self.received);
            self.move_on(queue, count_of(&self.received), port.is_inner(), between, now_ns);
        }
    }

    /// Takes packets off the queues that end here, of each `packets_max` and those of one poll more; returns their count.
    pub(crate) fn leave_behind(
        &mut self,
        port: &mut impl ReceiveQueues,
        packets_max: usize,
        frames: &mut Frames,
    ) -> Count {
        let mut left = Count::default();
        for queue in 0..port.queues() {
            let mut brought = 0;
            while brought < packets_max {
                let count = port.poll(queue, frames, &mut self.received);
                if count == 0 {
                    break;
                }
                brought += count;
                left.merge(count_of(&self.received));
                // At once: the next poll is to have frames, however many packets are inside.
                self.received.drain(..).for_each(|packet| frames.pool.give(packet.frame));
            }
        }
        left
    }

    fn move_on(&mut self, queue: usize, count: Count, is_inner: bool, between: &mut Between, now_ns: u64) {
        if self.received.is_empty() {
            return;
        }
        if !is_inner {
            let origin = Meta { arrival_ns: now_ns, port: self.port, queue: queue as u16, flow_hash: 0 };
            // A port may know the hash of a packet's flow.
            let of = |packet: &PathPacket| Meta { flow_hash: packet.meta.flow_hash, ..origin };
            self.received.iter_mut().for_each(|packet| packet.meta = of(packet));
        }
        let gate = &mut self.gates[queue];
        gate.begin();
        let mut is_here = self.crosses.is_empty();
        let filled = &mut self.filled;
        between.take(self.way, &mut self.received, count, now_ns, |landed| {
            is_here = true;
            match is_inner {
                false => gate.note(landed.place, landed.fills),
                true if landed.fills => filled.push(landed),
                true => {}
            }
        });
        let places = between.egress.places();
        let there = between.over.as_ref().filter(|_| !is_here);
        let group = match there.and_then(|over| over.place(&self.crosses, queue)) {
            Some(place) => places.count() + place % GROUPS_OVER,
            None => places.number(gate.first()),
        };
        self.order.set_group(queue, group);
    }

    /// Notes that a packet of a queue, which has waited inside since it was polled, came to a full place.
    pub(crate) fn note_filled(&mut self, queue: usize, place: Place, egress: &EgressQueues) {
        if let Some(gate) = self.gates.get_mut(queue) {
            gate.note(place, true);
            self.order.set_group(queue, egress.places().number(gate.first()));
        }
    }

    /// The packets of other ports that came to a full place by way of this one, to be taken.
    pub(crate) fn filled_mut(&mut self) -> &mut Vec<Landed> {
        &mut self.filled
    }

    /// The time at which to look at the queues again if nothing is announced.
    pub fn wake_ns(&self) -> u64 {
        self.order.wake_ns()
    }

    /// Polls that brought no packet.
    pub fn empty_polls(&self) -> u64 {
        self.empty_before[0] + self.order.empty_polls()
    }

    /// Times that a blocked queue was given room and had no packet.
    pub fn empty_wakes(&self) -> u64 {
        self.empty_before[1] + self.order.empty_wakes()
    }
}

/// Returns whether there are frames for all packets that a poll may bring, and for offering as many again.
fn has_frames(frames: &Frames) -> bool {
    frames.pool.available() >= 2 * POLL_PACKETS_MAX
}
