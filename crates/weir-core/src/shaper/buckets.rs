//! A queue of times: items in buckets of `2^shift` nanoseconds, the first full one of which is found by `ffs.rs`.
//!
//! ```text
//! bucket(at_ns) = ceil(at_ns / 2^shift)      so at_ns <= taken < at_ns + 2^shift, if asked on time
//! ```
//!
//! The buckets are a ring of [`BUCKETS`] = 64^3, the window of time that begins at the last bucket taken.
//!
//! Items are numbers of the owner's, linked through the owner's memory: [`Buckets::push`] returns the item that must follow the new one,
//! [`Buckets::take_due`] the first item of a whole bucket, taken at once. An item that is put into the present bucket meanwhile waits for
//! the next, so later items never pass a due one for ever. An owner that also links items backwards can take one out early
//! ([`Buckets::set_head`]).
//!
//! Owner: one worker. Source: Saeed et al., *Eiffel*, NSDI 2019 (circular hierarchical find-first-set queue).
//!
//! Limits: items of one bucket leave in the reverse of the order they came. A time beyond the window goes
//! into its last bucket, a time past into its first; the owner looks at each item's own time again when it is
//! taken.

use super::ffs::{FindFirstSet, PLACES, boxed};

/// The number of buckets, and so the window: `BUCKETS * 2^shift` nanoseconds.
pub const BUCKETS: u64 = PLACES;

/// No item: the end of a bucket's list.
pub const NONE: u32 = u32::MAX;

/// No bucket: past any time.
const ALL_EMPTY: u64 = u64::MAX;

/// A queue of times.
#[derive(Debug)]
pub struct Buckets {
    shift: u32,
    /// The buckets that are not empty.
    full: FindFirstSet,
    /// The bucket taken last, as an absolute number: invariant: no item is in an earlier one.
    base: u64,
    /// The first full bucket, as an absolute number; `ALL_EMPTY` if there is none. It is looked for once for each bucket that is taken,
    /// however often it is asked for.
    first: u64,
    heads: Box<[u32; BUCKETS as usize]>,
}

impl Buckets {
    /// An empty queue whose window begins at `now_ns`.
    ///
    /// # Panics
    ///
    /// If `shift` is 32 or more: buckets of four seconds.
    pub fn new(shift: u32, now_ns: u64) -> Buckets {
        assert!(shift < 32, "a bucket of 2^{shift} ns");
        Buckets {
            shift,
            base: now_ns >> shift,
            first: ALL_EMPTY,
            full: FindFirstSet::new(),
            heads: boxed(NONE),
        }
    }

    /// Puts an item in; returns the item that follows it, which the owner must remember for it.
    #[inline]
    pub fn push(&mut self, at_ns: u64, item: u32) -> u32 {
        self.push_placed(at_ns, item).1
    }

    /// Puts an item in; returns its place as well, for [`Self::set_head`].
    #[inline]
    pub fn push_placed(&mut self, at_ns: u64, item: u32) -> (u32, u32) {
        let rounds_up = u64::from(at_ns & ((1 << self.shift) - 1) != 0);
        let bucket = ((at_ns >> self.shift) + rounds_up).max(self.base).min(self.base + (BUCKETS - 1));
        let place = (bucket % BUCKETS) as usize;
        self.first = self.first.min(bucket);
        self.full.insert(place);
        (place as u32, std::mem::replace(&mut self.heads[place], item))
    }

    /// Makes `item` the first of a place, instead of the present one: for an owner that takes its first item out.
    pub fn set_head(&mut self, place: u32, item: u32) {
        if item == NONE {
            self.clear(place as usize);
            if self.first % BUCKETS == u64::from(place) {
                self.first = self.find();
            }
        } else {
            self.heads[place as usize] = item;
        }
    }

    /// Takes the first bucket that is due out; returns its first item.
    #[inline]
    pub fn take_due(&mut self, now_ns: u64) -> Option<u32> {
        let now = now_ns >> self.shift;
        if self.first > now {
            // Every bucket up to now is empty, so the window may move on.
            self.base = self.base.max(now);
            return None;
        }
        self.base = self.first;
        let item = self.clear((self.base % BUCKETS) as usize);
        self.first = self.find();
        Some(item)
    }

    /// The time at which the first bucket is due; `None` if all are empty.
    #[inline]
    pub fn next_ns(&self) -> Option<u64> {
        (self.first != ALL_EMPTY).then(|| self.first << self.shift)
    }

    #[inline]
    fn find(&self) -> u64 {
        self.full.first_from(self.base).unwrap_or(ALL_EMPTY)
    }

    #[inline]
    fn clear(&mut self, place: usize) -> u32 {
        self.full.remove(place);
        std::mem::replace(&mut self.heads[place], NONE)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Copy, Debug)]
    enum Operation {
        Push { ahead_ns: u64 },
        Advance { by_ns: u64 },
    }

    fn operation() -> impl Strategy<Value = Operation> {
        let near = prop_oneof![0u64..100, 0u64..100_000, 0u64..1 << 22, 0u64..1 << 40];
        prop_oneof![
            near.clone().prop_map(|ahead_ns| Operation::Push { ahead_ns }),
            near.prop_map(|by_ns| Operation::Advance { by_ns }),
        ]
    }

    proptest! {
        /// The queue against a sorted map of buckets: the same items at the same times in the same order, whatever the clock does, through
        /// many turns of the ring.
        #[test]
        fn items_leave_in_order_of_time_and_never_early(
            operations in prop::collection::vec(operation(), 1..300),
            start_ns in prop_oneof![Just(0), any::<u64>().prop_map(|ns| ns >> 1)],
            shift in 0u32..12,
        ) {
            let mut now_ns = start_ns;
            let mut buckets = Buckets::new(shift, now_ns);
            let mut next = Vec::new();
            let mut model: BTreeMap<u64, Vec<u32>> = BTreeMap::new();
            for &operation in &operations {
                match operation {
                    Operation::Push { ahead_ns } => {
                        let (item, at_ns) = (next.len() as u32, now_ns + ahead_ns);
                        next.push(buckets.push(at_ns, item));
                        let bucket = at_ns.div_ceil(1 << shift).clamp(buckets.base, buckets.base + BUCKETS - 1);
                        model.entry(bucket).or_default().push(item);
                    }
                    Operation::Advance { by_ns } => {
                        now_ns += by_ns;
                        while let Some(mut item) = buckets.take_due(now_ns) {
                            let (bucket, items) = model.pop_first().expect("nothing is taken that is not there");
                            prop_assert!(bucket << shift <= now_ns, "early");
                            for &expected in items.iter().rev() {
                                prop_assert_eq!(item, expected);
                                item = next[item as usize];
                            }
                            prop_assert_eq!(item, NONE);
                        }
                    }
                }
                let first = model.first_key_value().map(|(bucket, _)| bucket << shift);
                prop_assert_eq!(buckets.next_ns(), first);
                let advanced = matches!(operation, Operation::Advance { .. });
                prop_assert!(!advanced || first.is_none_or(|ns| ns > now_ns), "late");
            }
        }
    }

    #[test]
    fn a_clock_that_steps_back_takes_nothing_and_loses_nothing() {
        let mut buckets = Buckets::new(10, 1 << 30);
        assert_eq!(buckets.push((1 << 30) + 5000, 7), NONE);
        assert_eq!(buckets.take_due(0), None);
        assert_eq!(buckets.push(0, 8), NONE, "a time past goes into the first bucket");
        assert_eq!(buckets.take_due(1 << 30), Some(8));
        assert_eq!(buckets.take_due((1 << 30) + 5120), Some(7));
    }
}
