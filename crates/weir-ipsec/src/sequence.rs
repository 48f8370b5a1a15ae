//! The sequence numbers that an association sends with: each used once, also if the process is killed.
//!
//! ```text
//! 1 <= ... used ... < next <= ... may be used ... < reserved        last = 2^32 - 1, or 2^64 - 1 if extended
//! ```
//!
//! Rule: a number may be used only after a mark above it is safe on disk. A process that starts again begins at the mark, so numbers
//! between are left out, which the receiver's window allows. The mark is moved on while half of the reserved numbers are still unused, so
//! that the disk is waited for only if it takes longer than that half lasts.
//!
//! Reason: with GCM and ChaCha20 two packets of one number and one key give away the content of both, and with GCM the key of the proof.
//!
//! Owner: the association; the writer of the mark tells it with [`SequenceNumbers::reserve`]. Source: RFC 4303 section 3.3.3, RFC 4106
//! section 3.1.

/// The numbers that are reserved at once.
pub const AHEAD_DEFAULT: u64 = 1 << 22;

/// The sequence numbers of one association.
#[derive(Clone, Debug)]
pub struct SequenceNumbers {
    next: u64,
    reserved: u64,
    last: u64,
    ahead: u64,
}

/// The reason why there is no number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoNumber {
    /// The mark on disk has to be moved first; no packet is lost by waiting.
    NotReserved,
    /// All numbers have been used: the association needs a successor.
    Overflow,
}

impl SequenceNumbers {
    /// The numbers from `mark` on, the first that no earlier start could use: 1 for a new key. `ahead` are reserved at once.
    ///
    /// # Panics
    /// If `ahead` or `mark` is zero.
    pub fn from_mark(mark: u64, extended: bool, ahead: u64) -> SequenceNumbers {
        assert!(mark >= 1 && ahead >= 1, "numbers from {mark}, {ahead} ahead");
        let last = if extended { u64::MAX } else { u32::MAX.into() };
        SequenceNumbers { next: mark, reserved: mark, last, ahead }
    }

    /// The mark to be written now, if there is one.
    #[inline]
    pub fn wanted_mark(&self) -> Option<u64> {
        // Asked of each packet, and mostly answered by this.
        if self.reserved - self.next > self.ahead / 2 {
            return None;
        }
        let end = self.end();
        (self.reserved < end).then(|| self.next.saturating_add(self.ahead).min(end))
    }

    /// Notes that the mark is safe on disk.
    pub fn reserve(&mut self, mark: u64) {
        self.reserved = self.reserved.max(mark.min(self.end()));
    }

    /// Takes the next number, and never gives it out again.
    #[inline]
    pub fn take(&mut self) -> Result<u64, NoNumber> {
        if self.next < self.reserved {
            self.next += 1;
            return Ok(self.next - 1);
        }
        Err(if self.next >= self.end() { NoNumber::Overflow } else { NoNumber::NotReserved })
    }

    /// The number that is taken next.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// The numbers that are left for the key.
    pub fn left(&self) -> u64 {
        self.end() - self.next.min(self.end())
    }

    /// The number after the last that may be used. Of extended ones the very last is left out, so that it has a successor.
    fn end(&self) -> u64 {
        self.last.saturating_add(1)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_number_needs_a_mark() {
        let mut numbers = SequenceNumbers::from_mark(1, false, 8);
        assert_eq!(numbers.take(), Err(NoNumber::NotReserved));
        assert_eq!(numbers.wanted_mark(), Some(9));
        numbers.reserve(9);
        assert_eq!(numbers.wanted_mark(), None);
        for expected in 1..=4 {
            assert_eq!(numbers.take(), Ok(expected));
        }
        assert_eq!(numbers.wanted_mark(), Some(13), "half of them are used");
    }

    #[test]
    fn numbers_end() {
        for (extended, last) in [(false, u64::from(u32::MAX)), (true, u64::MAX - 1)] {
            let mut numbers = SequenceNumbers::from_mark(last - 1, extended, 100);
            numbers.reserve(numbers.wanted_mark().unwrap());
            assert_eq!(numbers.left(), 2);
            assert_eq!(numbers.take(), Ok(last - 1));
            assert_eq!(numbers.take(), Ok(last));
            assert_eq!(numbers.take(), Err(NoNumber::Overflow));
            assert_eq!(numbers.wanted_mark(), None);
            assert_eq!(numbers.left(), 0);
            let mut again = SequenceNumbers::from_mark(last + 1, extended, 100);
            assert_eq!(again.take(), Err(NoNumber::Overflow), "after a start at the end");
        }
    }

    proptest! {
        /// The disk keeps a mark late or loses it, and the process is killed at any time.
        #[test]
        fn none_is_used_twice(ahead in 1u64..64, steps in prop::collection::vec(0u8..10, 1..600)) {
            let mut on_disk = 1;
            let mut written = None;
            let mut used = HashSet::new();
            let mut numbers = SequenceNumbers::from_mark(on_disk, true, ahead);
            for step in steps {
                match step {
                    0 => {
                        written = None;
                        numbers = SequenceNumbers::from_mark(on_disk, true, ahead);
                    }
                    1 => written = numbers.wanted_mark(),
                    2 => {
                        // The mark is on disk, and the process is killed before it was told.
                        on_disk = written.unwrap_or(on_disk).max(on_disk);
                    }
                    3 => {
                        if let Some(mark) = written.take() {
                            on_disk = mark.max(on_disk);
                            numbers.reserve(mark);
                        }
                    }
                    _ => {
                        if let Ok(number) = numbers.take() {
                            prop_assert!(used.insert(number), "{} twice", number);
                            prop_assert!(number < on_disk);
                        }
                    }
                }
            }
        }
    }
}
