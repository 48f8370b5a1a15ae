//! The virtual clock and the events scheduled on it.
//!
//! Events leave in the order of `(at_ns, sequence)`: two events of the same instant leave in the order in which they were scheduled, so a
//! run depends only on its scenario and its seed. Taking an event moves the time.
//!
//! Owner: the simulation's loop. No event is ever removed from the middle: a model that changes its mind keeps a generation number and
//! ignores the event that no longer matches it.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// A queue of events of kind `E`, and the time.
#[derive(Debug)]
pub struct Events<E> {
    now_ns: u64,
    sequence: u64,
    heap: BinaryHeap<Reverse<Scheduled<E>>>,
}

impl<E> Default for Events<E> {
    fn default() -> Events<E> {
        Events { now_ns: 0, sequence: 0, heap: BinaryHeap::new() }
    }
}

impl<E> Events<E> {
    /// The virtual time: that of the last event taken.
    pub fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// Schedules `event` at `at_ns`, or now if that has passed.
    pub fn at(&mut self, at_ns: u64, event: E) {
        let at_ns = at_ns.max(self.now_ns);
        self.heap.push(Reverse(Scheduled { at_ns, sequence: self.sequence, event }));
        self.sequence += 1;
    }

    /// Schedules `event` after `delay_ns`.
    pub fn after(&mut self, delay_ns: u64, event: E) {
        self.at(self.now_ns.saturating_add(delay_ns), event);
    }

    /// Takes the next event that is due before `end_ns` and moves the clock to it.
    pub fn next_before(&mut self, end_ns: u64) -> Option<E> {
        if self.heap.peek()?.0.at_ns >= end_ns {
            return None;
        }
        let Reverse(next) = self.heap.pop()?;
        self.now_ns = next.at_ns;
        Some(next.event)
    }
}

#[derive(Debug)]
struct Scheduled<E> {
    at_ns: u64,
    sequence: u64,
    event: E,
}

impl<E> Scheduled<E> {
    fn key(&self) -> (u64, u64) {
        (self.at_ns, self.sequence)
    }
}

impl<E> PartialEq for Scheduled<E> {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl<E> Eq for Scheduled<E> {}

impl<E> PartialOrd for Scheduled<E> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for Scheduled<E> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key().cmp(&other.key())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_leave_by_time_then_by_the_order_they_were_scheduled_in() {
        let mut events = Events::default();
        for (at_ns, name) in [(30, 'd'), (10, 'a'), (20, 'b'), (20, 'c'), (40, 'e')] {
            events.at(at_ns, name);
        }
        let mut seen = String::new();
        while let Some(name) = events.next_before(40) {
            seen.push(name);
        }
        assert_eq!(seen, "abcd");
        assert_eq!(events.now_ns(), 30);
        events.at(5, 'f');
        assert_eq!(events.next_before(40), Some('f'), "the past is now");
        assert_eq!(events.now_ns(), 30);
        assert_eq!(events.next_before(u64::MAX), Some('e'));
        assert_eq!(events.next_before(u64::MAX), None);
    }
}
