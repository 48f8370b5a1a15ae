//! The time to look again at something that cannot go on and does not say when it can: soon, and ever later while nothing moves.
//!
//! ```text
//! 30 us, 60 us, 120 us, ... 1 ms; something moved: 30 us again
//! ```
//!
//! So a look comes late by as long as has been waited already, or 1 ms, and a far end that stays blocked costs a thousand looks a second
//! of a worker that goes before all other programs, not thirty thousand.
//!
//! Owner: one worker. Time is an argument.

/// The first and the longest pause, in nanoseconds.
const PAUSE_NS_MIN: u64 = 30_000;
const PAUSE_NS_MAX: u64 = 1_000_000;

/// The present length of the pauses.
#[derive(Debug)]
pub struct Backoff {
    progress: u64,
    pause_ns: u64,
    look_ns: u64,
}

impl Default for Backoff {
    fn default() -> Backoff {
        Backoff { progress: 0, pause_ns: PAUSE_NS_MIN, look_ns: 0 }
    }
}

impl Backoff {
    /// The time at which to look again; `progress` is a count that changes when something moves. Asked before that time, the answer is the
    /// same.
    pub fn look_ns(&mut self, progress: u64, now_ns: u64) -> u64 {
        if progress != self.progress {
            *self = Backoff { progress, ..Backoff::default() };
        }
        if now_ns >= self.look_ns {
            self.look_ns = now_ns + self.pause_ns;
            self.pause_ns = (2 * self.pause_ns).min(PAUSE_NS_MAX);
        }
        self.look_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The number of looks within a time in which nothing moves.
    fn looks(backoff: &mut Backoff, progress: u64, from_ns: u64, until_ns: u64) -> u32 {
        let (mut now_ns, mut count) = (from_ns, 0);
        while now_ns < until_ns {
            now_ns = backoff.look_ns(progress, now_ns);
            count += 1;
        }
        count
    }

    #[test]
    fn what_stays_blocked_is_looked_at_ever_more_rarely() {
        let mut backoff = Backoff::default();
        assert!(looks(&mut backoff, 7, 0, 1_000_000) <= 6);
        assert!((999..=1001).contains(&looks(&mut backoff, 7, 1_000_000, 1_001_000_000)));
    }

    #[test]
    fn what_moves_is_looked_at_soon() {
        let mut backoff = Backoff::default();
        looks(&mut backoff, 7, 0, 1_000_000_000);
        let now_ns = 2_000_000_000;
        assert_eq!(backoff.look_ns(8, now_ns), now_ns + PAUSE_NS_MIN);
        assert_eq!(backoff.look_ns(8, now_ns + 10), now_ns + PAUSE_NS_MIN, "asked in between");
    }
}
