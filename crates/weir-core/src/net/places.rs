//! The memory of neighbours: a bounded number of known ones, and a bounded number of others, of which neither takes the room of the other.
//!
//! ```text
//! incomplete <= incomplete_max       INCOMPLETE, FAILED; none gives way
//! known <= known_max                 all others; one may give way to a new one
//! free + incomplete + known = incomplete_max + known_max
//! learned of an interface            its known ones but for those that are configured
//! ```
//!
//! | a new neighbour that | takes the place of one that |
//! |---|---|
//! | spoke, or answered | is idle |
//! | spoke, or answered | only spoke (STALE), on an interface with at least two more learned than its own |
//! | answered | only spoke, on any interface |
//! | answered | is in any state but PERMANENT, on an interface with at least two more learned than its own |
//!
//! An entry is idle if no packet went to it for [`IDLE_NS`] after its address was not trusted any more: a packet would have made it PROBE.
//! So a packet need write nothing for an entry to stay, and an entry that packets need is thrown out only on an interface that has more
//! than its share, for a neighbour that packets need too: whatever the stations of one interface say, those of another have places. Packets
//! for a neighbour that was thrown out wait while it is asked for again.
//!
//! Owner: the neighbours. Source: RFC 6583 section 7 (resolved entries first). Limits: for a neighbour that only spoke the entry that gives
//! way is the next that may, not the oldest. Stations of one interface share its places.

use std::cmp::Reverse;
use std::net::IpAddr;

use super::near::{NOBODY, Near};
use super::neighbour::{NeighbourState, REACHABLE_NS};
use super::station::Station;
use super::table::Table;
use crate::shaper::slab::Fifo;

/// The time for which an entry stays without packets after its address is not trusted any more (as RFC 4861's `DELAY_FIRST_PROBE_TIME`).
pub(super) const IDLE_NS: u64 = 5_000_000_000;
/// The due time of an entry that is not to be asked again.
pub(super) const NEVER: u64 = u64::MAX;

/// The entries looked at for one that gives way, for each new neighbour.
const EVICT_LOOKS: usize = 32;

/// The entries of all neighbours and the ways to find them; see the head of the file.
#[derive(Debug)]
pub(super) struct Places {
    table: Table<Station, u32>,
    /// The entries of `table` in each interface's IPv4 network.
    near: Box<[Near]>,
    pub(super) entries: Box<[Entry]>,
    free: Vec<u32>,
    incomplete: usize,
    known: usize,
    known_max: usize,
    /// The learned entries of each interface.
    learned: Box<[usize]>,
    /// The entry at which the search for one that gives way goes on.
    hand: usize,
}

// An entry has one cache line, as each packet reads one.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct Entry {
    /// The destination's address and ours, in the order of a frame's beginning.
    pub(super) front: [u8; 12],
    pub(super) state: NeighbourState,
    pub(super) requests: u8,
    pub(super) promised: u32,
    pub(super) station: Station,
    pub(super) confirmed_ns: u64,
    pub(super) due_ns: u64,
    pub(super) waiting: Fifo,
}

impl Places {
    pub(super) fn new(near: Box<[Near]>, known_max: usize, incomplete_max: usize, seed: u64) -> Places {
        let entry = |_| Entry {
            front: [0; 12],
            state: NeighbourState::Failed,
            requests: 0,
            promised: 0,
            station: Station::v4(0, [0; 4]),
            confirmed_ns: 0,
            due_ns: NEVER,
            waiting: Fifo::default(),
        };
        let places_max = known_max + incomplete_max;
        Places {
            table: Table::new(places_max, seed),
            learned: vec![0; near.len()].into(),
            near,
            entries: (0..places_max).map(entry).collect(),
            free: (0..places_max as u32).rev().collect(),
            incomplete: 0,
            known: 0,
            known_max,
            hand: 0,
        }
    }

    #[inline(always)]
    pub(super) fn find(&self, station: Station) -> Option<u32> {
        self.table.get(station).copied()
    }

    /// The entry of an IPv4 station.
    #[inline(always)]
    pub(super) fn find_v4(&self, interface: u16, address: [u8; 4]) -> Option<u32> {
        match self.near[usize::from(interface)].get(address) {
            Some(at) => Some(at),
            None => self.find(Station::v4(interface, address)),
        }
    }

    /// The numbers of known entries and of incomplete ones.
    pub(super) fn taken(&self) -> [usize; 2] {
        [self.known, self.incomplete]
    }

    /// A new entry, INCOMPLETE, for which there must be a place. `None` where too many stations have nearly its hash.
    pub(super) fn create_incomplete(&mut self, station: Station, own: [u8; 6]) -> Option<u32> {
        let at = self.create(station, own)?;
        self.incomplete += 1;
        Some(at)
    }

    /// A new entry, STALE and without an address yet, if there is a place.
    pub(super) fn create_known(&mut self, station: Station, own: [u8; 6], now_ns: u64) -> Option<u32> {
        if !self.make_room(station.interface, now_ns) {
            return None;
        }
        let at = self.create(station, own)?;
        self.known += 1;
        self.learned[usize::from(station.interface)] += 1;
        let entry = &mut self.entries[at as usize];
        (entry.state, entry.confirmed_ns) = (NeighbourState::Stale, now_ns);
        Some(at)
    }

    /// Returns whether there is a place for one more known entry, of an interface on which it spoke.
    fn make_room(&mut self, interface: u16, now_ns: u64) -> bool {
        let looks = if self.known < self.known_max { 0 } else { EVICT_LOOKS.min(self.entries.len()) };
        for _ in 0..looks {
            self.hand = (self.hand + 1) % self.entries.len();
            let entry = &self.entries[self.hand];
            let only_spoke = entry.may_give_way() && entry.state == NeighbourState::Stale;
            if entry.is_idle(now_ns) || only_spoke && self.has_more(entry.station.interface, interface) {
                self.forget(self.hand as u32);
                break;
            }
        }
        self.known < self.known_max
    }

    /// Returns whether there is a place for one more known entry, that of a neighbour of this interface that packets wait for and that
    /// answered. All entries are looked at, as often as new questions are put.
    pub(super) fn make_room_for_answer(&mut self, interface: u16, now_ns: u64) -> bool {
        if self.make_room(interface, now_ns) {
            return true;
        }
        let gives_way = |entry: &Entry| {
            let only_spoke = entry.state == NeighbourState::Stale;
            entry.may_give_way() && (only_spoke || self.has_more(entry.station.interface, interface))
        };
        // Those that only spoke come first, those of the interface with most of all before others, and the oldest of them.
        let order = |entry: &Entry| {
            let learned = self.learned[usize::from(entry.station.interface)];
            (entry.state != NeighbourState::Stale, Reverse(learned), entry.confirmed_ns)
        };
        let entries = self.entries.iter().enumerate().filter(|(_, entry)| gives_way(entry));
        let Some((at, _)) = entries.min_by_key(|(_, entry)| order(entry)) else { return false };
        self.forget(at as u32);
        true
    }

    /// Returns whether an interface would have no fewer learned entries than another if one of its places became the other's.
    fn has_more(&self, interface: u16, other: u16) -> bool {
        self.learned[usize::from(interface)] > self.learned[usize::from(other)] + 1
    }

    /// Sets the state of an entry. For one that becomes known there must be a place.
    pub(super) fn set_state(&mut self, at: u32, state: NeighbourState) {
        let entry = &mut self.entries[at as usize];
        let (was_known, was_learned) = (entry.is_known(), entry.is_learned());
        entry.state = state;
        if entry.is_known() && !was_known {
            (self.incomplete, self.known) = (self.incomplete - 1, self.known + 1);
        }
        let learned = &mut self.learned[usize::from(entry.station.interface)];
        *learned = *learned + usize::from(entry.is_learned()) - usize::from(was_learned);
    }

    /// Frees an entry that no packet waits for.
    pub(super) fn forget(&mut self, at: u32) {
        let entry = &mut self.entries[at as usize];
        debug_assert!(entry.waiting.is_empty() && entry.promised == 0, "no packet is forgotten");
        *(if entry.is_known() { &mut self.known } else { &mut self.incomplete }) -= 1;
        self.learned[usize::from(entry.station.interface)] -= usize::from(entry.is_learned());
        (entry.state, entry.due_ns) = (NeighbourState::Failed, NEVER);
        let station = entry.station;
        self.table.remove(station);
        self.note_near(station, NOBODY);
        self.free.push(at);
    }

    fn create(&mut self, station: Station, own: [u8; 6]) -> Option<u32> {
        let at = *self.free.last()?;
        self.table.insert(station, at).ok()?;
        self.note_near(station, at);
        self.free.pop();
        let entry = &mut self.entries[at as usize];
        entry.front = [0; 12];
        entry.front[6..].copy_from_slice(&own);
        (entry.state, entry.station) = (NeighbourState::Incomplete, station);
        (entry.requests, entry.promised, entry.due_ns) = (0, 0, NEVER);
        Some(at)
    }

    fn note_near(&mut self, station: Station, at: u32) {
        if let (IpAddr::V4(address), Some(near)) =
            (station.ip(), self.near.get_mut(usize::from(station.interface)))
        {
            near.set(address.octets(), at);
        }
    }
}

impl Entry {
    pub(super) fn is_known(&self) -> bool {
        !matches!(self.state, NeighbourState::Incomplete | NeighbourState::Failed)
    }

    /// Returns whether the entry is known and not configured.
    fn is_learned(&self) -> bool {
        self.is_known() && self.state != NeighbourState::Permanent
    }

    /// Returns whether the entry may be forgotten to give its place to another.
    fn may_give_way(&self) -> bool {
        self.is_learned() && self.promised == 0
    }

    /// Returns whether the entry is idle: no packet went to it for [`IDLE_NS`], or it would be in PROBE.
    fn is_idle(&self, now_ns: u64) -> bool {
        let stays_ns = match self.state {
            NeighbourState::Stale => IDLE_NS,
            NeighbourState::Reachable => REACHABLE_NS + IDLE_NS,
            _ => return false,
        };
        self.promised == 0 && now_ns.saturating_sub(self.confirmed_ns) >= stays_ns
    }
}
