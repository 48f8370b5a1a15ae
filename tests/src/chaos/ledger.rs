//! The arrivals of one flow, by the numbers that its datagrams bear: the missing, the late, and those that came twice.
//!
//! Rule: a number below the highest that has arrived is either missing or was late. So the missing numbers of a range are known as soon as
//! a number behind the range has arrived, and a number that fills a hole later was overtaken.
//!
//! Owner: the flow's receiver; holes that were judged are forgotten, so it stays small however long a flow lasts.

use std::collections::BTreeMap;
use std::ops::Range;

/// The arrivals of one flow.
#[derive(Debug, Default)]
pub struct Ledger {
    next: u64,
    /// Start to end of each range that has not arrived.
    holes: BTreeMap<u64, u64>,
    late: Vec<u64>,
    twice: u64,
}

impl Ledger {
    /// Notes a datagram.
    pub fn arrive(&mut self, number: u64) {
        if number >= self.next {
            if number > self.next {
                self.holes.insert(self.next, number);
            }
            self.next = number + 1;
            return;
        }
        let hole = self.holes.range(..=number).next_back().map(|(&start, &end)| (start, end));
        let Some((start, end)) = hole.filter(|&(_, end)| number < end) else {
            self.twice += 1;
            return;
        };
        self.late.push(number);
        self.holes.remove(&start);
        if start < number {
            self.holes.insert(start, number);
        }
        if number + 1 < end {
            self.holes.insert(number + 1, end);
        }
    }

    /// One more than the highest number that has arrived.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// The number of datagrams of a range that have not arrived, or not yet.
    pub fn missing(&self, range: &Range<u64>) -> u64 {
        let holes =
            self.holes.iter().map(|(&start, &end)| end.min(range.end).saturating_sub(start.max(range.start)));
        holes.sum::<u64>() + range.end.saturating_sub(self.next.max(range.start))
    }

    /// The number of datagrams of a range that came after a later one.
    pub fn late(&self, range: &Range<u64>) -> u64 {
        self.late.iter().filter(|number| range.contains(number)).count() as u64
    }

    /// The number of datagrams that came twice.
    pub fn twice(&self) -> u64 {
        self.twice
    }

    /// Forgets the missing and the late below a number. A datagram of these that arrives afterwards counts as come twice.
    pub fn forget_below(&mut self, number: u64) {
        let mut kept = self.holes.split_off(&number);
        if let Some((_, &end)) = self.holes.iter().next_back().filter(|&(_, &end)| end > number) {
            kept.insert(number, end);
        }
        self.holes = kept;
        self.late.retain(|&late| late >= number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ledger(numbers: &[u64]) -> Ledger {
        let mut ledger = Ledger::default();
        numbers.iter().for_each(|&number| ledger.arrive(number));
        ledger
    }

    #[test]
    fn a_hole_is_missing_until_it_is_filled_and_then_was_late() {
        let mut ledger = ledger(&[0, 1, 6]);
        assert_eq!(ledger.missing(&(0..7)), 4);
        assert_eq!(ledger.missing(&(3..5)), 2);
        ledger.arrive(3);
        assert_eq!((ledger.missing(&(0..7)), ledger.late(&(0..7)), ledger.late(&(4..7))), (3, 1, 0));
        for number in [2, 4, 5] {
            ledger.arrive(number);
        }
        assert_eq!((ledger.missing(&(0..7)), ledger.late(&(0..7)), ledger.twice()), (0, 4, 0));
    }

    #[test]
    fn what_has_not_arrived_yet_is_missing_and_what_comes_again_is_told() {
        let mut ledger = ledger(&[0, 1, 2, 2, 0]);
        assert_eq!((ledger.missing(&(1..10)), ledger.twice(), ledger.next()), (7, 2, 3));
        ledger.arrive(1);
        assert_eq!(ledger.twice(), 3);
    }

    #[test]
    fn what_was_judged_is_forgotten_up_to_the_middle_of_a_hole() {
        let mut ledger = ledger(&[5, 10, 7]);
        ledger.forget_below(8);
        assert_eq!((ledger.missing(&(0..11)), ledger.late(&(0..11))), (2, 0));
    }

    /// The ledger agrees with a list of all numbers, over random arrivals.
    #[test]
    fn agrees_with_a_list_of_all_numbers() {
        let mut random = crate::raw::Random(5);
        for _ in 0..200 {
            let (mut ledger, mut seen) = (Ledger::default(), Vec::new());
            for _ in 0..100 {
                let number = random.between(0, 60) as u64;
                ledger.arrive(number);
                seen.push(number);
                let (from, to) = (random.between(0, 30) as u64, random.between(30, 60) as u64);
                let missing = (from..to).filter(|number| !seen.contains(number)).count() as u64;
                assert_eq!(ledger.missing(&(from..to)), missing);
            }
            let distinct = seen.iter().collect::<std::collections::BTreeSet<_>>().len();
            assert_eq!(ledger.twice(), (seen.len() - distinct) as u64);
        }
    }
}
