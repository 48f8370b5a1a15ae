//! The places where packets wait, by number: the classes of all egress queues of a worker.
//!
//! ```text
//! place           an egress queue and a class of it
//! number          a place's index in one list, dense: the group of the queues that wait for it (`weir_core::poll_order`)
//! ```
//!
//! A receive queue's packets come out at one place or at several, and the places are not known before the packets are here. So a queue
//! waits for the places that its last poll filled, or if it filled none, for the last that it fed ([`Gate`]).
//!
//! Owner: one worker. Limits: a gate that remembers more than four places, as of broadcasts, has memory of its own for them.

use smallvec::{SmallVec, smallvec};

use crate::departures::UNDER_WAY_MAX;
use crate::shaping::FREE;

/// The places that a gate remembers in place.
const PLACES_INLINE: usize = 4;

/// A class of an egress queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The egress queue, by its place in the worker.
    pub egress: usize,
    /// The class, or [`FREE`].
    pub class: usize,
}

/// The place of a receive queue of which no packet has come to wait yet: not known.
pub const NOWHERE: Place = Place { egress: usize::MAX, class: FREE };

/// The numbers of all places.
#[derive(Debug, Default)]
pub struct Places {
    /// The number of each egress queue's first place.
    first: Vec<usize>,
    places: Vec<Place>,
}

impl Places {
    /// The places of egress queues whose classes are below these numbers.
    pub fn new(classes_max: impl Iterator<Item = usize>) -> Places {
        let mut numbers = Places { first: Vec::new(), places: vec![NOWHERE] };
        for (egress, classes_max) in classes_max.enumerate() {
            numbers.first.push(numbers.places.len());
            let classes = [FREE].into_iter().chain(0..classes_max);
            numbers.places.extend(classes.map(|class| Place { egress, class }));
        }
        numbers
    }

    /// The number of places.
    pub fn count(&self) -> usize {
        self.places.len()
    }

    /// The number of a place.
    #[inline]
    pub fn number(&self, place: Place) -> usize {
        let Some(first) = self.first.get(place.egress) else { return 0 };
        first + if place.class == FREE { 0 } else { place.class + 1 }
    }

    /// The place with a number; [`NOWHERE`] if this worker has none of that number.
    #[inline]
    pub fn place_or_none(&self, number: usize) -> Place {
        self.places.get(number).copied().unwrap_or(NOWHERE)
    }
}

/// The number of packets that may be under way to a worker while a receive queue is polled whose packets come to a place there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credit {
    /// The packets for a queue that has had its turn.
    pub packets: u16,
    /// The packets for a quiet queue with none at the place, which a full place has a door for.
    pub door: u16,
}

impl Credit {
    /// No packets: a closed gate.
    pub const NONE: Credit = Credit { packets: 0, door: 0 };
    /// As many packets as may be under way at all.
    pub const MOST: Credit = Credit { packets: UNDER_WAY_MAX as u16, door: UNDER_WAY_MAX as u16 };

    /// The lesser of both.
    #[must_use]
    pub fn min(self, other: Credit) -> Credit {
        Credit { packets: self.packets.min(other.packets), door: self.door.min(other.door) }
    }

    /// Returns whether this credit admits packets where `before` admitted none.
    pub(crate) fn opens(self, before: Credit) -> bool {
        before.packets == 0 && self.packets > 0 || before.door == 0 && self.door > 0
    }
}

/// The places that a receive queue waits for.
#[derive(Clone, Debug)]
pub struct Gate {
    /// One place at least.
    places: SmallVec<[Place; PLACES_INLINE]>,
    /// True if `places` are those that the last poll filled.
    is_full: bool,
}

impl Gate {
    /// A gate that waits for one place.
    pub fn new(place: Place) -> Gate {
        Gate { places: smallvec![place], is_full: false }
    }

    /// Begins a poll: the places that it feeds are noted from here on.
    pub fn begin(&mut self) {
        self.is_full = false;
    }

    /// Notes that a packet of the poll came to a place, and whether it filled that.
    #[inline]
    pub fn note(&mut self, place: Place, fills: bool) {
        if !self.is_full {
            if !fills && self.places[..] == [place] {
                return;
            }
            self.places.clear();
            self.places.push(place);
            self.is_full = fills;
        } else if fills && !self.places.contains(&place) {
            self.places.push(place);
        }
    }

    /// Waits, instead of for places of an egress queue whose classes have changed, for the places of it that the packets moved to which
    /// waited there, or for `otherwise` where none is left.
    pub(crate) fn follow(&mut self, changed: usize, moved: impl Iterator<Item = Place>, otherwise: Place) {
        if self.places.iter().all(|place| place.egress != changed) {
            return;
        }
        self.places.retain(|place| place.egress != changed);
        self.places.extend(moved);
        if self.places.is_empty() {
            self.places.push(otherwise);
        }
    }

    /// Returns whether the gate waits for places that were filled.
    pub fn is_full(&self) -> bool {
        self.is_full
    }

    /// The places that the gate waits for.
    #[inline]
    pub fn places(&self) -> &[Place] {
        &self.places
    }

    /// The first of them.
    #[inline]
    pub fn first(&self) -> Place {
        self.places[0]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(egress: usize, class: usize) -> Place {
        Place { egress, class }
    }

    #[test]
    fn places_have_dense_numbers() {
        let places = Places::new([1, 3].into_iter());
        let all =
            [NOWHERE, place(0, FREE), place(0, 0), place(1, FREE), place(1, 0), place(1, 1), place(1, 2)];
        assert_eq!(places.count(), all.len());
        for (number, &place) in all.iter().enumerate() {
            assert_eq!((places.number(place), places.place_or_none(number)), (number, place));
        }
    }

    #[test]
    fn a_gate_follows_classes_that_change_and_forgets_no_other_place() {
        let mut gate = Gate::new(place(0, 0));
        gate.note(place(0, 0), true);
        gate.note(place(1, 0), true);
        gate.note(place(0, 1), true);
        gate.follow(2, [place(2, 0)].into_iter(), NOWHERE);
        assert_eq!(
            gate.places(),
            [place(0, 0), place(1, 0), place(0, 1)],
            "it waits for nothing of that one"
        );
        gate.follow(0, [place(0, 4), place(0, 5)].into_iter(), NOWHERE);
        assert_eq!(gate.places(), [place(1, 0), place(0, 4), place(0, 5)]);
        gate.follow(1, [].into_iter(), NOWHERE);
        assert_eq!(gate.places(), [place(0, 4), place(0, 5)]);
        gate.follow(0, [].into_iter(), NOWHERE);
        assert_eq!((gate.places(), gate.is_full()), (&[NOWHERE][..], true));
    }

    #[test]
    fn a_gate_waits_for_what_was_filled_or_for_the_last() {
        let mut gate = Gate::new(place(0, 0));
        gate.begin();
        gate.note(place(1, 0), false);
        gate.note(place(2, 0), false);
        assert_eq!(gate.places(), [place(2, 0)]);
        gate.note(place(1, 0), true);
        gate.note(place(3, 0), false);
        gate.note(place(2, 0), true);
        gate.note(place(1, 0), true);
        assert_eq!(gate.places(), [place(1, 0), place(2, 0)]);
        gate.begin();
        assert_eq!(gate.places(), [place(1, 0), place(2, 0)], "a poll that brings nothing changes nothing");
        (4..10).for_each(|egress| gate.note(place(egress, 0), true));
        assert_eq!(gate.places(), [4, 5, 6, 7, 8, 9].map(|egress| place(egress, 0)), "all that were filled");
        gate.begin();
        gate.note(place(5, 0), false);
        assert_eq!(gate.places(), [place(5, 0)]);
    }
}
