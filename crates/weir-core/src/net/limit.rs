//! A limit on the messages of one kind that a router sends by itself: errors, and questions for addresses that no station has answered for.
//!
//! It admits `rate` a second, with bursts of `burst`. With `T = 1 s / rate` and `free_ns` the time at which the next one would have been
//! due had they come evenly, one is allowed if
//!
//! ```text
//! free_ns <= now + (burst - 1) T              and then       free_ns = max(free_ns, now) + T
//! ```
//!
//! Owner: one worker. Source: ITU-T I.371 (virtual scheduling).

/// The limit on messages of one kind; see the head of the file.
#[derive(Clone, Copy, Debug)]
pub struct Limiter {
    interval_ns: u64,
    burst_ns: u64,
    free_ns: u64,
}

impl Limiter {
    /// A limit of `per_second` messages a second, after a pause up to `burst` at once; none at all if either is 0.
    pub fn new(per_second: u32, burst: u32) -> Limiter {
        let none = per_second == 0 || burst == 0;
        let interval_ns = if none { u64::MAX } else { 1_000_000_000 / u64::from(per_second) };
        let burst_ns = interval_ns.saturating_mul(u64::from(burst.saturating_sub(1)));
        Limiter { interval_ns, burst_ns, free_ns: if none { u64::MAX } else { 0 } }
    }

    /// Returns whether one more message may be sent now; if so, it is counted.
    pub fn admit(&mut self, now_ns: u64) -> bool {
        if self.interval_ns == u64::MAX || self.free_ns > now_ns.saturating_add(self.burst_ns) {
            return false;
        }
        self.free_ns = self.free_ns.max(now_ns) + self.interval_ns;
        true
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Over any window, messages <= burst + rate x time.
        #[test]
        fn never_more_than_the_limit(
            per_second in 1u32..5000, burst in 1u32..20,
            waits in prop::collection::vec(0u64..3_000_000, 1..300),
        ) {
            let mut limit = Limiter::new(per_second, burst);
            let mut now_ns = 0;
            let mut sent = Vec::new();
            for wait_ns in waits {
                now_ns += wait_ns;
                if limit.admit(now_ns) {
                    sent.push(now_ns);
                }
            }
            let interval_ns = 1_000_000_000 / u64::from(per_second);
            for (first, &from_ns) in sent.iter().enumerate() {
                for (last, &to_ns) in sent.iter().enumerate().skip(first) {
                    let allowed = u64::from(burst) + (to_ns - from_ns) / interval_ns;
                    prop_assert!((last - first + 1) as u64 <= allowed);
                }
            }
            prop_assert!(!sent.is_empty(), "the first is always allowed");
        }
    }

    #[test]
    fn nothing_is_allowed_by_zero() {
        assert!(!Limiter::new(0, 5).admit(0) && !Limiter::new(5, 0).admit(u64::MAX));
    }
}
