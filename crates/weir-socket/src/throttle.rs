//! The time for which a socket was throttled: its application wanted to send and there was no frame.
//!
//! ```text
//! not throttled    time in all               throttled    start, less that time, with the top bit
//! ```
//!
//! Rule: one word holds all of it, so a reader sees one moment: a time that has just ended is counted once, and never left out.
//!
//! Ordering: `R3` (begun) `<-> A3` (found begun): the number of throttlings was counted before.
//!
//! Owner: the application begins the time, and the application or a worker ends it. Limits: nanoseconds of a clock that has run for less than 292
//! years.

use std::sync::atomic::{AtomicU64, Ordering};

const IS_ON: u64 = 1 << 63;

/// See the head of the file.
#[derive(Debug, Default)]
pub(crate) struct ThrottleClock(AtomicU64);

impl ThrottleClock {
    /// Starts the time, if it does not run.
    pub(crate) fn begin(&self, now_ns: u64) {
        let begun = |word| (word & IS_ON == 0).then(|| now_ns.saturating_sub(word) | IS_ON);
        // R3. A time that runs already stays as it is.
        let _ = self.0.fetch_update(Ordering::Release, Ordering::Relaxed, begun);
    }

    /// Ends the time.
    pub(crate) fn end(&self, now_ns: u64) {
        let ended = |word| (word & IS_ON != 0).then(|| now_ns.saturating_sub(word & !IS_ON));
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, ended);
    }

    /// Returns whether the socket is throttled.
    pub(crate) fn is_on(&self) -> bool {
        // A3.
        self.0.load(Ordering::Acquire) & IS_ON != 0
    }

    /// Returns whether the socket is throttled, and the time for which it was in all, in nanoseconds. The word is the same before the clock is read
    /// and after, so the time is that of one moment, however long the reader is stopped meanwhile.
    pub(crate) fn told(&self, now_ns: impl Fn() -> u64) -> (bool, u64) {
        loop {
            // A3.
            let word = self.0.load(Ordering::Acquire);
            if word & IS_ON == 0 {
                return (false, word);
            }
            let now_ns = now_ns();
            if self.0.load(Ordering::Relaxed) == word {
                return (true, now_ns.saturating_sub(word & !IS_ON));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_adds_up_and_is_told_once() {
        let clock = ThrottleClock::default();
        clock.end(5);
        assert_eq!(clock.told(|| 10), (false, 0));
        clock.begin(10);
        clock.begin(12);
        assert_eq!((clock.is_on(), clock.told(|| 15)), (true, (true, 5)));
        clock.end(20);
        clock.end(25);
        assert_eq!((clock.is_on(), clock.told(|| 100)), (false, (false, 10)));
        clock.begin(100);
        assert_eq!((clock.told(|| 100), clock.told(|| 107)), ((true, 10), (true, 17)));
    }

    #[test]
    fn whoever_reads_meanwhile_never_sees_less_than_before_nor_more_than_there_was() {
        const ROUNDS: u64 = 20_000;
        let (clock, now) = (ThrottleClock::default(), AtomicU64::new(1));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..ROUNDS {
                    clock.begin(now.fetch_add(1, Ordering::SeqCst));
                    clock.end(now.fetch_add(1, Ordering::SeqCst));
                }
            });
            let mut before = 0;
            while now.load(Ordering::SeqCst) <= 2 * ROUNDS {
                let (_, told) = clock.told(|| now.load(Ordering::SeqCst));
                // The thread that ends the time has read the clock before: then the clock has gone on by one.
                assert!(told + 1 >= before && told <= now.load(Ordering::SeqCst), "{told} after {before}");
                before = told;
            }
        });
        assert_eq!(clock.told(|| 0), (false, ROUNDS));
    }
}
