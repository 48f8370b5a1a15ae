//! Neighbours: the link-layer address of each station on a link, and the packets that wait for one.
//!
//! ```text
//!            needed                 answered                    30 s
//!   (none) ---------> INCOMPLETE ---------------> REACHABLE ------------> STALE
//!                      |   ^ asked each second       ^  ^ answered         | needed
//!         3 s no answer|                  confirmed -+  +------- PROBE <---+
//!                      v                                           | 3 s no answer
//!                   (none), waiting packets drop `no-neighbour`    +-> (none)
//! ```
//!
//! A static entry is PERMANENT and never leaves that state. A packet for a station in STALE or PROBE goes to the old address. There is no
//! DELAY: a router sees no transport whose progress it could wait for (RFC 4861 section 7.3.1 allows a probe at once). An unasked message
//! (a request, a gratuitous reply) makes a new address STALE, never REACHABLE.
//!
//! Order: packets of one neighbour leave in the order they came. A packet may be sent at once only while `promised`, the packets told to
//! wait and not yet released, is 0; so none overtakes those that wait.
//!
//! A scan of a network asks for neighbours that do not exist, and takes nothing from those that do (RFC 6583):
//!
//! | of addresses that nobody has answered for | bound |
//! |---|---|
//! | entries (INCOMPLETE) | `incomplete_max`, in places of their own: no other entry gives way for one; a host shares these out |
//! | new questions | `limit`; each is put three times at most |
//! | packets that wait | `waiting_max` for each, `held_max` together; a host shares these out too (`router/waiting.rs`) |
//!
//! A packet beyond these bounds is dropped as `neighbour-full`. An answer makes the entry one of at most `entries_max` known ones. When all
//! of those are taken, one gives way that no packet went to for 5 s after it was heard, or had been REACHABLE for 30 s: a packet would have
//! made it PROBE. If there is none, one gives way that was only heard, or one of an interface with more than its share (`places.rs`);
//! otherwise the answer has no effect. Known neighbours are asked before unknown ones, and a question to one that could not be sent is
//! sent again and does not count.
//!
//! Owner: one worker. Every part is bounded.
//!
//! Source: RFC 826, RFC 1122 section 2.3.2 (flushing, a queue for each destination), RFC 4861 sections 7.3.2, 7.3.3,
//! 10 (states, and the constants below), 7.2.5 (answers); RFC 6583 sections 6 and 7 (scans).
//!
//! Limits: during a scan a neighbour that has never spoken is hardly found, as it cannot be told from the addresses scanned. A neighbour
//! that asks for the router's address is heard, and needs no place among the unknown.

use std::collections::VecDeque;
use std::net::IpAddr;

use super::limit::Limiter;
use super::near::Near;
use super::places::{NEVER, Places};
use super::questions::Questions;
use super::station::Station;
use crate::drops::{Count, DropReason};
use crate::due::sooner;
use crate::packet::Packet;
use crate::shaper::slab::Slab;

/// The time for which an answer is trusted (`REACHABLE_TIME`).
pub const REACHABLE_NS: u64 = 30_000_000_000;
/// Time between two requests (`RETRANS_TIMER`).
pub const RETRANS_NS: u64 = 1_000_000_000;
/// The requests without an answer after which a neighbour is given up (`MAX_MULTICAST_SOLICIT`).
pub const REQUESTS_MAX: u8 = 3;

/// The state of a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NeighbourState {
    /// The station has no address yet, and is being asked for.
    Incomplete,
    /// The address was confirmed lately.
    Reachable,
    /// The address was confirmed once, and is trusted no longer.
    Stale,
    /// The address was confirmed once, and the station is being asked whether it still is right.
    Probe,
    /// The address is configured.
    Permanent,
    /// The station did not answer, and the packets that waited for it are to be taken.
    Failed,
}

/// An entry's place, as long as packets wait for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NeighbourId(u32);

/// The treatment of a packet for a station.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Resolved {
    /// The packet is sent, with these addresses at its front.
    Send([u8; 12]),
    /// The packet waits: [`Neighbours::hold`] is to be called.
    Wait(NeighbourId),
    /// The packet is dropped.
    Drop(DropReason),
}

/// The room for packets whose neighbours are not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Room {
    /// True if they may be told to wait; otherwise they are dropped.
    pub(super) may_wait: bool,
    /// The addresses that may be asked for at once if one of them is for such a packet.
    pub(super) asked_max: usize,
}

/// A packet that no longer waits.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Released<P> {
    /// The packet is sent by this interface, with these addresses at its front.
    Send(P, u16, [u8; 12]),
    /// The packet's station did not answer.
    Unreachable(P),
}

/// A question to be sent on a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) interface: u16,
    pub(super) target: IpAddr,
    /// The station that alone is asked, for a probe.
    pub(super) mac: Option<[u8; 6]>,
}

/// The bounds of all parts.
#[derive(Debug)]
pub(super) struct Bounds {
    /// Known neighbours.
    pub(super) entries_max: usize,
    /// Addresses that are being asked for.
    pub(super) incomplete_max: usize,
    /// Packets that wait.
    pub(super) held_max: usize,
    /// Packets that wait for one neighbour.
    pub(super) waiting_max: u32,
    /// The limit on new addresses asked for.
    pub(super) solicits: Limiter,
}

/// All neighbours of a router.
#[derive(Debug)]
pub(super) struct Neighbours<P> {
    places: Places,
    waiting_max: u32,
    incomplete_max: usize,
    /// The room for the packets that are being decided.
    room: Room,
    /// The limit on new questions.
    limit: Limiter,
    held: Slab<P>,
    held_bytes: u64,
    held_packets: u64,
    /// Packets that may still be told to wait.
    room_packets: usize,
    /// The questions to entries in PROBE, and to those in INCOMPLETE.
    probes: Questions,
    solicits: Questions,
    solicits_limited: u64,
    /// Entries whose packets may go.
    released: VecDeque<u32>,
}

impl<P: Packet> Neighbours<P> {
    pub(super) fn new(near: Box<[Near]>, bounds: Bounds, seed: u64) -> Neighbours<P> {
        Neighbours {
            places: Places::new(near, bounds.entries_max, bounds.incomplete_max, seed),
            waiting_max: bounds.waiting_max,
            incomplete_max: bounds.incomplete_max,
            room: Room { may_wait: true, asked_max: bounds.incomplete_max },
            limit: bounds.solicits,
            held: Slab::new(bounds.held_max),
            held_bytes: 0,
            held_packets: 0,
            room_packets: bounds.held_max,
            probes: Questions::new(bounds.entries_max),
            solicits: Questions::new(bounds.incomplete_max),
            solicits_limited: 0,
            released: VecDeque::with_capacity(bounds.entries_max + bounds.incomplete_max),
        }
    }

    /// Makes an entry that never changes. False if there is no place.
    pub(super) fn add_permanent(
        &mut self,
        station: Station,
        mac: [u8; 6],
        own: [u8; 6],
        now_ns: u64,
    ) -> bool {
        let Some(at) = self.places.find(station).or_else(|| self.places.create_known(station, own, now_ns))
        else {
            return false;
        };
        self.settle(at, mac, NeighbourState::Permanent, now_ns)
    }

    /// The addresses at the front of a packet for `station`, if it may go at once and nothing else is to be done: the answer of
    /// [`Neighbours::resolve`] for nearly all packets.
    #[inline(always)]
    pub(super) fn ready(&self, station: Station, now_ns: u64) -> Option<&[u8; 12]> {
        self.ready_at(self.places.find(station)?, now_ns)
    }

    /// The addresses at the front of a packet for an IPv4 station, as [`Neighbours::ready`] gives them.
    #[inline(always)]
    pub(super) fn ready_v4(&self, interface: u16, address: [u8; 4], now_ns: u64) -> Option<&[u8; 12]> {
        let at = self.places.find_v4(interface, address)?;
        self.ready_at(at, now_ns)
    }

    #[inline(always)]
    fn ready_at(&self, at: u32, now_ns: u64) -> Option<&[u8; 12]> {
        let entry = self.places.entries.get(at as usize)?;
        let trusted = match entry.state {
            NeighbourState::Permanent | NeighbourState::Probe => true,
            NeighbourState::Reachable => now_ns.saturating_sub(entry.confirmed_ns) < REACHABLE_NS,
            NeighbourState::Stale | NeighbourState::Incomplete | NeighbourState::Failed => false,
        };
        (trusted && entry.promised == 0).then_some(&entry.front)
    }

    /// The treatment of a packet for `station`, on an interface whose own address is `own`.
    pub(super) fn resolve(&mut self, station: Station, own: [u8; 6], now_ns: u64) -> Resolved {
        if let Some(&front) = self.ready(station, now_ns) {
            return Resolved::Send(front);
        }
        let at = match self.places.find(station) {
            Some(at) => {
                let entry = &mut self.places.entries[at as usize];
                if entry.promised == 0
                    && matches!(entry.state, NeighbourState::Reachable | NeighbourState::Stale)
                {
                    let front = entry.front;
                    // Without room to ask, the next packet tries again.
                    self.probe(at);
                    return Resolved::Send(front);
                }
                at
            }
            None => match self.create_incomplete(station, own, now_ns) {
                Some(at) => at,
                None => return Resolved::Drop(DropReason::NeighbourFull),
            },
        };
        let entry = &mut self.places.entries[at as usize];
        if entry.state == NeighbourState::Failed {
            return Resolved::Drop(DropReason::NoNeighbour);
        }
        if entry.promised == self.waiting_max || self.room_packets == 0 || !self.room.may_wait {
            return Resolved::Drop(DropReason::NeighbourFull);
        }
        entry.promised += 1;
        self.room_packets -= 1;
        Resolved::Wait(NeighbourId(at))
    }

    /// Keeps a packet that was told to wait.
    ///
    /// # Panics
    /// If no packet was told to wait for this neighbour.
    pub(super) fn hold(&mut self, neighbour: NeighbourId, packet: P) {
        let entry = &mut self.places.entries[neighbour.0 as usize];
        assert!(entry.promised > 0, "a packet is held that was not told to wait");
        self.held_bytes += u64::from(packet.len_bytes());
        self.held_packets += 1;
        if self.held.push(&mut entry.waiting, packet).is_err() {
            unreachable!("room was promised");
        }
    }

    /// The next packet that need not wait any longer.
    pub(super) fn release(&mut self) -> Option<Released<P>> {
        while let Some(&at) = self.released.front() {
            let entry = &mut self.places.entries[at as usize];
            if let Some(packet) = self.held.pop(&mut entry.waiting) {
                entry.promised -= 1;
                self.room_packets += 1;
                self.held_bytes -= u64::from(packet.len_bytes());
                self.held_packets -= 1;
                return Some(match entry.state {
                    NeighbourState::Failed => Released::Unreachable(packet),
                    _ => Released::Send(packet, entry.station.interface, entry.front),
                });
            }
            self.released.pop_front();
            self.room_packets += std::mem::take(&mut entry.promised) as usize;
            if entry.state == NeighbourState::Failed {
                self.places.forget(at);
            }
        }
        None
    }

    /// Notes that a station answered a question: confirms an entry, makes none (RFC 4861 section 7.2.5).
    pub(super) fn answered(&mut self, station: Station, mac: [u8; 6], now_ns: u64) {
        if let Some(at) = self.places.find(station)
            && !matches!(
                self.places.entries[at as usize].state,
                NeighbourState::Permanent | NeighbourState::Failed
            )
        {
            self.settle(at, mac, NeighbourState::Reachable, now_ns);
        }
    }

    /// Notes that a station told its address unasked: makes or changes an entry, confirms none (RFC 826, RFC 4861 section 7.2.3).
    pub(super) fn heard(&mut self, station: Station, mac: [u8; 6], own: [u8; 6], now_ns: u64) {
        let Some(at) = self.places.find(station).or_else(|| self.places.create_known(station, own, now_ns))
        else {
            return;
        };
        let entry = &self.places.entries[at as usize];
        let changed = entry.front[..6] != mac;
        if entry.state == NeighbourState::Incomplete
            || changed && !matches!(entry.state, NeighbourState::Permanent | NeighbourState::Failed)
        {
            self.settle(at, mac, NeighbourState::Stale, now_ns);
        }
    }

    /// The next question to send, if any is due: to known neighbours first.
    pub(super) fn next_request(&mut self, now_ns: u64) -> Option<Request> {
        for state in [NeighbourState::Probe, NeighbourState::Incomplete] {
            while let Some((due_ns, at)) = self.questions(state).pop(now_ns) {
                if !self.is_due(at, state, due_ns) {
                    continue;
                }
                if let Some(request) = self.request(at, now_ns) {
                    return Some(request);
                }
                self.give_up(at);
            }
        }
        None
    }

    /// Notes that a question was not sent. One to a known neighbour does not count.
    pub(super) fn note_unasked(&mut self, request: Request) {
        if let Some(at) = self.places.find(Station::new(request.interface, request.target))
            && self.places.entries[at as usize].state == NeighbourState::Probe
        {
            self.places.entries[at as usize].requests -= 1;
        }
    }

    /// The time at which [`Neighbours::next_request`] is to be called again.
    #[inline]
    pub(super) fn next_due_ns(&self) -> Option<u64> {
        sooner(self.probes.next_due_ns(), self.solicits.next_due_ns())
    }

    /// Neighbours that are known, and addresses that are being asked for.
    pub(super) fn taken(&self) -> [usize; 2] {
        self.places.taken()
    }

    /// Packets for whose address no question was sent, because too many were, or were lately.
    pub(super) fn solicits_limited(&self) -> u64 {
        self.solicits_limited
    }

    /// The number of packets that may still be told to wait.
    pub(super) fn room_packets(&self) -> usize {
        self.room_packets
    }

    /// The number of packets that may wait, together.
    pub(super) fn held_max(&self) -> usize {
        self.held.packets_max()
    }

    /// The number of addresses that may be asked for at once.
    pub(super) fn incomplete_max(&self) -> usize {
        self.incomplete_max
    }

    /// Sets the room for packets from now on, which is no more than there is.
    pub(super) fn set_room(&mut self, room: Room) {
        self.room = room;
    }

    /// The packets that wait.
    pub(super) fn held(&self) -> Count {
        Count { packets: self.held_packets, bytes: self.held_bytes }
    }

    /// Forgets the neighbours of an interface that were learned, are not being asked, and have no packets waiting.
    pub(super) fn forget(&mut self, interface: u16) {
        for at in 0..self.places.entries.len() {
            let entry = &self.places.entries[at];
            let is_learned = matches!(entry.state, NeighbourState::Reachable | NeighbourState::Stale);
            if is_learned && entry.station.interface == interface && entry.promised == 0 {
                self.places.forget(at as u32);
            }
        }
    }

    /// The state of a station, if it has an entry.
    pub(super) fn state(&self, station: Station) -> Option<NeighbourState> {
        self.places.find(station).map(|at| self.places.entries[at as usize].state)
    }

    /// The addresses at the front of a frame for `station`, if they are known; no question is sent.
    pub(super) fn front(&self, station: Station) -> Option<[u8; 12]> {
        let entry = &self.places.entries[self.places.find(station)? as usize];
        (!matches!(entry.state, NeighbourState::Incomplete | NeighbourState::Failed)).then_some(entry.front)
    }

    /// A new entry, INCOMPLETE and to be asked for.
    fn create_incomplete(&mut self, station: Station, own: [u8; 6], now_ns: u64) -> Option<u32> {
        let entries = &self.places.entries;
        let is_valid = |due_ns, at: u32| entries[at as usize].due_ns == due_ns;
        let [_, asked] = self.places.taken();
        if asked < self.room.asked_max && self.solicits.has_room(is_valid) && self.limit.admit(now_ns) {
            let at = self.places.create_incomplete(station, own)?;
            self.solicits.push(at);
            return Some(at);
        }
        self.solicits_limited += 1;
        None
    }

    /// Gives an entry its address, and releases its packets. False if there is no place for one more known entry.
    fn settle(&mut self, at: u32, mac: [u8; 6], state: NeighbourState, now_ns: u64) -> bool {
        let entry = &self.places.entries[at as usize];
        let was_known = entry.is_known();
        let interface = entry.station.interface;
        if !was_known && !self.places.make_room_for_answer(interface, now_ns) {
            return false;
        }
        self.places.set_state(at, state);
        let entry = &mut self.places.entries[at as usize];
        entry.front[..6].copy_from_slice(&mac);
        (entry.confirmed_ns, entry.due_ns) = (now_ns, NEVER);
        if !was_known && entry.promised > 0 {
            self.released.push_back(at);
        }
        true
    }

    /// Starts to ask a neighbour whether its address still is right, if there is room for the question.
    fn probe(&mut self, at: u32) {
        let entries = &self.places.entries;
        if self.probes.has_room(|due_ns, at| entries[at as usize].due_ns == due_ns) {
            let entry = &mut self.places.entries[at as usize];
            (entry.state, entry.requests) = (NeighbourState::Probe, 0);
            self.probes.push(at);
        }
    }

    /// Returns whether an entry noted in this state is still to be asked; `due_ns` is its time if it was asked before.
    fn is_due(&self, at: u32, state: NeighbourState, due_ns: Option<u64>) -> bool {
        let entry = &self.places.entries[at as usize];
        // An entry created and answered within a burst needs no question.
        entry.state == state && due_ns.unwrap_or(NEVER) == entry.due_ns
    }

    /// Asks an entry, unless it has been asked often enough.
    fn request(&mut self, at: u32, now_ns: u64) -> Option<Request> {
        let entry = &mut self.places.entries[at as usize];
        if entry.requests == REQUESTS_MAX {
            return None;
        }
        entry.requests += 1;
        entry.due_ns = now_ns + RETRANS_NS;
        let (due_ns, state) = (entry.due_ns, entry.state);
        let mac = entry.front.first_chunk().copied().filter(|_| state == NeighbourState::Probe);
        let request = Request { interface: entry.station.interface, target: entry.station.ip(), mac };
        self.questions(state).again(due_ns, at);
        Some(request)
    }

    /// The questions to entries in this state.
    fn questions(&mut self, state: NeighbourState) -> &mut Questions {
        if state == NeighbourState::Probe { &mut self.probes } else { &mut self.solicits }
    }

    /// Gives up a neighbour that does not answer: packets that wait are dropped, and the entry is forgotten.
    fn give_up(&mut self, at: u32) {
        let entry = &mut self.places.entries[at as usize];
        entry.due_ns = NEVER;
        match entry.state {
            _ if entry.promised == 0 => self.places.forget(at),
            NeighbourState::Incomplete => {
                entry.state = NeighbourState::Failed;
                self.released.push_back(at);
            }
            // The packets that waited for its first answer have not been taken yet.
            _ => entry.state = NeighbourState::Stale,
        }
    }
}

#[cfg(test)]
#[path = "neighbour_tests.rs"]
mod tests;
