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
//! A static entry is PERMANENT and leaves that state never. A packet that is sent nowhere else than to STALE or
//! PROBE goes to the old address. There is no DELAY: a router sees no transport whose progress it could wait for
//! (RFC 4861 section 7.3.1 allows a probe at once). An unasked message (a request, a gratuitous reply) makes a new
//! address STALE, never REACHABLE.
//!
//! Order: packets of one neighbour leave in the order they came. One may be sent at once only while
//! `promised`, the packets told to wait and not yet let go, is 0; so none overtakes those that wait.
//!
//! Owner: one worker. Every part is bounded: entries, packets for each entry, packets together. When all entries are
//! taken, one that is STALE, or has been REACHABLE for longer than 30 s, gives way.
//!
//! Source: RFC 826, RFC 1122 section 2.3.2 (flushing, a queue for each destination), RFC 4861 sections 7.3.2, 7.3.3,
//! 10 (states, and the constants below), 7.2.5 (answers).
//!
//! Limits: a flood of addresses that do not answer can hold every entry for 3 s; see `neighbours_max`.

use std::collections::VecDeque;
use std::net::IpAddr;

use super::near::{NOBODY, Near};
use super::station::Station;
use super::table::Table;
use crate::drops::{Count, DropReason};
use crate::packet::Packet;
use crate::shaper::slab::{Fifo, Slab};

/// How long an answer is trusted (`REACHABLE_TIME`).
pub const REACHABLE_NS: u64 = 30_000_000_000;
/// Time between two requests (`RETRANS_TIMER`).
pub const RETRANS_NS: u64 = 1_000_000_000;
/// Requests without an answer until a neighbour is given up (`MAX_MULTICAST_SOLICIT`).
pub const REQUESTS_MAX: u8 = 3;

/// What is known of a station.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// No address yet; asked for.
    Incomplete,
    /// The address was confirmed lately.
    Reachable,
    /// The address was right once.
    Stale,
    /// The same, and it is being asked whether it still is.
    Probe,
    /// Configured.
    Permanent,
    /// It did not answer, and the packets that waited for it are to be taken.
    Failed,
}

/// An entry's place, as long as packets wait for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NeighbourId(u32);

/// What to do with a packet for a station.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Resolved {
    /// Send it, with these addresses at its front.
    Send([u8; 12]),
    /// Keep it: [`Neighbours::hold`] is to be called.
    Wait(NeighbourId),
    /// Drop it.
    Drop(DropReason),
}

/// A packet that waited.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Released<P> {
    /// Send it out of this interface, with these addresses at its front.
    Send(P, u16, [u8; 12]),
    /// Its station did not answer.
    Unreachable(P),
}

/// A question to be put on a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) interface: u16,
    pub(super) target: IpAddr,
    /// To this station alone, for a probe.
    pub(super) mac: Option<[u8; 6]>,
}

/// All neighbours of a router.
#[derive(Debug)]
pub(super) struct Neighbours<P> {
    places: Table<Station, u32>,
    /// Of each interface, what `places` says of its IPv4 network.
    near: Box<[Near]>,
    entries: Box<[Entry]>,
    free: Vec<u32>,
    held: Slab<P>,
    held_bytes: u64,
    held_packets: u64,
    /// Packets that may still be told to wait.
    room_packets: usize,
    waiting_max: u16,
    /// Whom to ask again, in the order of time; an entry asked since, or resolved, has another `due_ns`.
    due: VecDeque<(u64, u32)>,
    /// To be asked for the first time.
    asks: Vec<u32>,
    /// Entries whose packets may go.
    released: VecDeque<u32>,
    /// Where to look for the next entry that gives way.
    hand: usize,
}

// One cache line, as each packet reads one.
#[derive(Debug)]
#[repr(align(64))]
struct Entry {
    /// The destination's address and ours, as a frame begins.
    front: [u8; 12],
    state: State,
    requests: u8,
    promised: u16,
    station: Station,
    confirmed_ns: u64,
    due_ns: u64,
    waiting: Fifo,
}

/// Entries looked at for one that gives way, for each new neighbour.
const EVICT_LOOKS: usize = 32;
const NEVER: u64 = u64::MAX;

impl<P: Packet> Neighbours<P> {
    pub(super) fn new(
        near: Box<[Near]>,
        entries_max: usize,
        held_max: usize,
        waiting_max: u16,
        seed: u64,
    ) -> Neighbours<P> {
        let entry = |_| Entry {
            front: [0; 12],
            state: State::Failed,
            requests: 0,
            promised: 0,
            station: Station::v4(0, [0; 4]),
            confirmed_ns: 0,
            due_ns: NEVER,
            waiting: Fifo::default(),
        };
        Neighbours {
            places: Table::new(entries_max, seed),
            near,
            entries: (0..entries_max).map(entry).collect(),
            free: (0..entries_max as u32).rev().collect(),
            held: Slab::new(held_max),
            held_bytes: 0,
            held_packets: 0,
            room_packets: held_max,
            waiting_max,
            due: VecDeque::with_capacity(2 * entries_max),
            asks: Vec::with_capacity(entries_max),
            released: VecDeque::with_capacity(entries_max),
            hand: 0,
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
        let Some(at) = self.find(station).or_else(|| self.create(station, own, now_ns)) else {
            return false;
        };
        self.settle(at, mac, State::Permanent, now_ns);
        true
    }

    /// The addresses at the front of a packet for `station`, if it may go at once and nothing else is to be done: what
    /// [`Neighbours::resolve`] would say, for nearly all packets.
    #[inline(always)]
    pub(super) fn ready(&self, station: Station, now_ns: u64) -> Option<&[u8; 12]> {
        self.ready_at(*self.places.get(station)?, now_ns)
    }

    /// The same for an IPv4 station.
    #[inline(always)]
    pub(super) fn ready_v4(&self, interface: u16, address: [u8; 4], now_ns: u64) -> Option<&[u8; 12]> {
        let at = match self.near[usize::from(interface)].get(address) {
            Some(at) => at,
            None => *self.places.get(Station::v4(interface, address))?,
        };
        self.ready_at(at, now_ns)
    }

    #[inline(always)]
    fn ready_at(&self, at: u32, now_ns: u64) -> Option<&[u8; 12]> {
        let entry = self.entries.get(at as usize)?;
        let trusted = match entry.state {
            State::Permanent | State::Probe => true,
            State::Reachable => now_ns.saturating_sub(entry.confirmed_ns) < REACHABLE_NS,
            State::Stale | State::Incomplete | State::Failed => false,
        };
        (trusted && entry.promised == 0).then_some(&entry.front)
    }

    /// What to do with a packet for `station`, on an interface whose own address is `own`.
    pub(super) fn resolve(&mut self, station: Station, own: [u8; 6], now_ns: u64) -> Resolved {
        if let Some(&front) = self.ready(station, now_ns) {
            return Resolved::Send(front);
        }
        let at = match self.find(station) {
            Some(at) => {
                let entry = &mut self.entries[at as usize];
                if entry.promised == 0 && matches!(entry.state, State::Reachable | State::Stale) {
                    let front = entry.front;
                    entry.state = State::Stale;
                    // With no room to ask, the next packet tries again.
                    self.ask(at, State::Probe);
                    return Resolved::Send(front);
                }
                at
            }
            None => {
                let created = self.create(station, own, now_ns);
                let Some(at) = created else {
                    return Resolved::Drop(DropReason::NeighbourFull);
                };
                if !self.ask(at, State::Incomplete) {
                    self.forget(at);
                    return Resolved::Drop(DropReason::NeighbourFull);
                }
                at
            }
        };
        let entry = &mut self.entries[at as usize];
        if entry.state == State::Failed {
            return Resolved::Drop(DropReason::NoNeighbour);
        }
        if entry.promised == self.waiting_max || self.room_packets == 0 {
            return Resolved::Drop(DropReason::NeighbourFull);
        }
        entry.promised += 1;
        self.room_packets -= 1;
        Resolved::Wait(NeighbourId(at))
    }

    /// Keeps a packet that was told to wait.
    ///
    /// # Panics
    /// If none was told to wait for this neighbour.
    pub(super) fn hold(&mut self, neighbour: NeighbourId, packet: P) {
        let entry = &mut self.entries[neighbour.0 as usize];
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
            let entry = &mut self.entries[at as usize];
            if let Some(packet) = self.held.pop(&mut entry.waiting) {
                entry.promised -= 1;
                self.room_packets += 1;
                self.held_bytes -= u64::from(packet.len_bytes());
                self.held_packets -= 1;
                return Some(match entry.state {
                    State::Failed => Released::Unreachable(packet),
                    _ => Released::Send(packet, entry.station.interface, entry.front),
                });
            }
            self.released.pop_front();
            self.room_packets += usize::from(std::mem::take(&mut entry.promised));
            if entry.state == State::Failed {
                self.forget(at);
            }
        }
        None
    }

    /// A station answered what it was asked: confirms an entry, makes none (RFC 4861 section 7.2.5).
    pub(super) fn answered(&mut self, station: Station, mac: [u8; 6], now_ns: u64) {
        if let Some(at) = self.find(station)
            && !matches!(self.entries[at as usize].state, State::Permanent | State::Failed)
        {
            self.settle(at, mac, State::Reachable, now_ns);
        }
    }

    /// A station said its address unasked: makes or changes an entry, confirms none (RFC 826, RFC 4861 section 7.2.3).
    pub(super) fn heard(&mut self, station: Station, mac: [u8; 6], own: [u8; 6], now_ns: u64) {
        let Some(at) = self.find(station).or_else(|| self.create(station, own, now_ns)) else {
            return;
        };
        let entry = &self.entries[at as usize];
        let changed = entry.front[..6] != mac;
        match entry.state {
            State::Permanent | State::Failed => {}
            State::Incomplete => self.settle(at, mac, State::Stale, now_ns),
            _ if changed => self.settle(at, mac, State::Stale, now_ns),
            _ => {}
        }
    }

    /// The next question to put, if any is due.
    pub(super) fn next_request(&mut self, now_ns: u64) -> Option<Request> {
        loop {
            if let Some(at) = self.asks.pop() {
                // What was created and answered within a burst needs no question.
                if let Some(request) = self.request(at, now_ns) {
                    return Some(request);
                }
                continue;
            }
            let &(due_ns, at) = self.due.front()?;
            if due_ns > now_ns {
                return None;
            }
            self.due.pop_front();
            let entry = &mut self.entries[at as usize];
            if entry.due_ns != due_ns {
                continue;
            }
            if entry.requests < REQUESTS_MAX {
                if let Some(request) = self.request(at, now_ns) {
                    return Some(request);
                }
                continue;
            }
            // Not answered: those that wait are dropped, and there is nothing to remember.
            entry.due_ns = NEVER;
            if entry.promised == 0 {
                self.forget(at);
            } else {
                if entry.state == State::Incomplete {
                    self.released.push_back(at);
                }
                entry.state = State::Failed;
            }
        }
    }

    /// When [`Neighbours::next_request`] is to be called again.
    pub(super) fn next_due_ns(&self) -> Option<u64> {
        if self.asks.is_empty() { self.due.front().map(|&(due_ns, _)| due_ns) } else { Some(0) }
    }

    /// What waits.
    pub(super) fn held(&self) -> Count {
        Count { packets: self.held_packets, bytes: self.held_bytes }
    }

    /// What is known of a station.
    pub(super) fn state(&self, station: Station) -> Option<State> {
        self.find(station).map(|at| self.entries[at as usize].state)
    }

    /// The addresses at the front of a frame for `station`, if they are known; nothing is asked.
    pub(super) fn front(&self, station: Station) -> Option<[u8; 12]> {
        let entry = &self.entries[self.find(station)? as usize];
        (!matches!(entry.state, State::Incomplete | State::Failed)).then_some(entry.front)
    }

    fn find(&self, station: Station) -> Option<u32> {
        self.places.get(station).copied()
    }

    /// A new entry, INCOMPLETE and not asked for.
    fn create(&mut self, station: Station, own: [u8; 6], now_ns: u64) -> Option<u32> {
        if self.free.is_empty() {
            self.evict(now_ns);
        }
        let at = *self.free.last()?;
        self.places.insert(station, at).ok()?;
        self.note_near(station, at);
        self.free.pop();
        let entry = &mut self.entries[at as usize];
        entry.front = [0; 12];
        entry.front[6..].copy_from_slice(&own);
        (entry.state, entry.station) = (State::Incomplete, station);
        (entry.requests, entry.promised, entry.due_ns) = (0, 0, NEVER);
        Some(at)
    }

    fn forget(&mut self, at: u32) {
        let entry = &mut self.entries[at as usize];
        debug_assert!(entry.waiting.is_empty() && entry.promised == 0, "no packet is forgotten");
        (entry.state, entry.due_ns) = (State::Failed, NEVER);
        let station = entry.station;
        self.places.remove(station);
        self.note_near(station, NOBODY);
        self.free.push(at);
    }

    fn note_near(&mut self, station: Station, at: u32) {
        if let (IpAddr::V4(address), Some(near)) =
            (station.ip(), self.near.get_mut(usize::from(station.interface)))
        {
            near.set(address.octets(), at);
        }
    }

    fn evict(&mut self, now_ns: u64) {
        for _ in 0..EVICT_LOOKS.min(self.entries.len()) {
            self.hand = (self.hand + 1) % self.entries.len();
            let entry = &self.entries[self.hand];
            let old = now_ns.saturating_sub(entry.confirmed_ns) >= REACHABLE_NS;
            let gives_way = entry.state == State::Stale || (entry.state == State::Reachable && old);
            if gives_way && entry.promised == 0 {
                return self.forget(self.hand as u32);
            }
        }
    }

    /// Gives an entry its address, and lets its packets go.
    fn settle(&mut self, at: u32, mac: [u8; 6], state: State, now_ns: u64) {
        let entry = &mut self.entries[at as usize];
        entry.front[..6].copy_from_slice(&mac);
        if entry.state == State::Incomplete && entry.promised > 0 {
            self.released.push_back(at);
        }
        (entry.state, entry.confirmed_ns, entry.due_ns) = (state, now_ns, NEVER);
    }

    /// Starts to ask. False if too many are being asked for.
    fn ask(&mut self, at: u32, state: State) -> bool {
        // Each entry asked for is at most once in `asks`, and `due` must hold every one of them.
        if self.asks.len() + self.due.len() >= self.due.capacity().min(2 * self.entries.len()) {
            return false;
        }
        let entry = &mut self.entries[at as usize];
        (entry.state, entry.requests) = (state, 0);
        self.asks.push(at);
        true
    }

    fn request(&mut self, at: u32, now_ns: u64) -> Option<Request> {
        let entry = &mut self.entries[at as usize];
        if entry.due_ns == now_ns + RETRANS_NS {
            return None; // Asked just now.
        }
        let mac = match entry.state {
            State::Incomplete => None,
            State::Probe => entry.front.first_chunk().copied(),
            _ => return None,
        };
        entry.requests += 1;
        entry.due_ns = now_ns + RETRANS_NS;
        self.due.push_back((entry.due_ns, at));
        Some(Request { interface: entry.station.interface, target: entry.station.ip(), mac })
    }
}

#[cfg(test)]
#[path = "neighbour_tests.rs"]
mod tests;
