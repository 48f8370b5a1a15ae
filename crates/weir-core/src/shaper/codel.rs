//! CoDel: decides when a queue has stood too long, and how often its senders must then get a signal.
//!
//! A queue is good while its packets' delay falls below `target_ns` at least once in every `interval_ns`.
//! When it has not, senders get a signal (a mark, or a drop), and then one more each time
//!
//! ```text
//! signal_next_ns = signal_ns + interval_ns / sqrt(count)
//! ```
//!
//! has passed, until the delay is below target. So the time between signals falls as 1 / sqrt(n), to which a
//! TCP's rate is inversely proportional, and the rate of signals finds the one that the senders obey.
//!
//! One state for each queue, consulted for each packet at the moment it leaves. Owner: the queue's.
//!
//! Source: RFC 8289 sections 4.2 to 4.4 and 5.5 (`dodequeue`, `dequeue`, control law); the RFC's loop over
//! packets is turned inside out, so that the caller disposes of each packet before it asks about the next.
//!
//! Limits: the interval is at most [`INTERVAL_NS_MAX`], so that its square fits 64 bits and the square root
//! is exact to a nanosecond. The time of the next signal is set with the signal, not with the packet that
//! follows it (the RFC does the latter); the two differ only in how soon a queue that stood again remembers
//! its count.

/// The longest interval, about 4.29 s.
pub const INTERVAL_NS_MAX: u64 = u32::MAX as u64;

/// The standing delay and the interval that a queue is measured against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CodelConfig {
    /// The standing delay that is acceptable: 5 to 10 % of the interval.
    pub target_ns: u64,
    /// About the longest round trip of the senders; at most [`INTERVAL_NS_MAX`].
    pub interval_ns: u64,
    /// The longest packet. A queue of one such packet is no standing queue, however long that takes.
    pub mtu_bytes: u64,
}

impl Default for CodelConfig {
    /// The values of RFC 8289 section 4.4: 5 ms and 100 ms, right for most of the Internet.
    fn default() -> CodelConfig {
        CodelConfig { target_ns: 5_000_000, interval_ns: 100_000_000, mtu_bytes: 1514 }
    }
}

/// The recent delays of one queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Codel {
    /// The time at which the delay will have been above target for an interval; 0 while it is below.
    first_above_ns: u64,
    /// The time at which the next signal is due, while `signalling`.
    signal_next_ns: u64,
    /// Signals since this state was entered, the rate carried over included.
    count: u32,
    /// The value that `count` began with.
    count_first: u32,
    signalling: bool,
}

impl Codel {
    /// Returns whether the senders of a packet that leaves now must get a signal. `delay_ns` is the packet's wait, `held_bytes` the bytes
    /// of its queue, itself included.
    pub fn must_signal(&mut self, config: &CodelConfig, now_ns: u64, delay_ns: u64, held_bytes: u64) -> bool {
        if !self.stood_too_long(config, now_ns, delay_ns, held_bytes) {
            self.signalling = false;
            return false;
        }
        if !self.signalling {
            // A queue that stood a short while ago goes on from the rate of signals that had drained it.
            let signalled = self.count - self.count_first;
            let recent = now_ns.saturating_sub(self.signal_next_ns) < 16 * config.interval_ns;
            self.count = if signalled > 1 && recent { signalled } else { 1 };
            self.count_first = self.count;
            self.signalling = true;
            self.signal_next_ns = control_law(config, now_ns, self.count);
            return true;
        }
        if now_ns < self.signal_next_ns {
            return false;
        }
        self.count = self.count.saturating_add(1);
        self.signal_next_ns = control_law(config, self.signal_next_ns, self.count);
        true
    }

    fn stood_too_long(&mut self, config: &CodelConfig, now_ns: u64, delay_ns: u64, held_bytes: u64) -> bool {
        if delay_ns < config.target_ns || held_bytes <= config.mtu_bytes {
            self.first_above_ns = 0;
            return false;
        }
        if self.first_above_ns == 0 {
            self.first_above_ns = now_ns + config.interval_ns;
            return false;
        }
        now_ns >= self.first_above_ns
    }
}

fn control_law(config: &CodelConfig, signal_ns: u64, count: u32) -> u64 {
    let interval_ns = config.interval_ns.min(INTERVAL_NS_MAX);
    signal_ns + (interval_ns * interval_ns / u64::from(count.max(1))).isqrt()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MS: u64 = 1_000_000;

    /// Packets of 1 ms that wait for `delay_ms(number)`; returns the times, in ms, at which signals came.
    fn signals_ms(packets: u64, delay_ms: impl Fn(u64) -> u64) -> Vec<u64> {
        let (config, mut codel) = (CodelConfig::default(), Codel::default());
        (1..=packets).filter(|&ms| codel.must_signal(&config, ms * MS, delay_ms(ms) * MS, 100_000)).collect()
    }

    #[test]
    fn a_standing_queue_is_signalled_after_an_interval_and_then_ever_more_often() {
        // 1 + 100, then + 100/sqrt(1), 100/sqrt(2), 100/sqrt(3), ... each at the next packet's ms.
        assert_eq!(signals_ms(500, |_| 20), [101, 201, 272, 330, 380, 425, 465]);
    }

    #[test]
    fn one_dip_below_target_in_each_interval_is_a_good_queue() {
        assert!(signals_ms(5_000, |ms| if ms % 100 == 0 { 4 } else { 90 }).is_empty());
        let (config, mut codel) = (CodelConfig::default(), Codel::default());
        assert!(
            (1..5_000).all(|ms| !codel.must_signal(&config, ms * MS, 90 * MS, 1514)),
            "one packet is no queue"
        );
    }

    #[test]
    fn a_queue_that_stands_again_soon_is_signalled_at_the_rate_that_drained_it() {
        let delay_ms = |ms| if (480..490).contains(&ms) { 0 } else { 20 };
        let all = signals_ms(900, delay_ms);
        let again: Vec<_> = all.into_iter().filter(|&ms| ms > 490).collect();
        // The first entry signalled 7 times, 6 of them after its own count of 1.
        assert_eq!(again[..3], [590, 590 + 41, 590 + 41 + 38]);
    }

    proptest! {
        /// The control law, summed: while a queue stands, the signal after `n` more comes no sooner than
        /// `interval / sqrt(count)` for each of the `n`; and none comes before the first interval.
        #[test]
        fn signals_keep_their_distance(
            steps in prop::collection::vec((1u64..3 * MS, prop::bool::weighted(0.99)), 100..1500),
        ) {
            let (config, mut codel) = (CodelConfig::default(), Codel::default());
            let (mut now_ns, mut above_since_ns, mut due_ns) = (0, None, 0);
            for &(step_ns, is_above) in &steps {
                now_ns += step_ns;
                let delay_ns = if is_above { config.target_ns } else { config.target_ns - 1 };
                let was_signalling = codel.signalling;
                let signal = codel.must_signal(&config, now_ns, delay_ns, 100_000);
                if !is_above {
                    prop_assert!(!signal, "below target");
                    above_since_ns = None;
                    continue;
                }
                let since_ns = *above_since_ns.get_or_insert(now_ns);
                prop_assert!(!signal || now_ns - since_ns >= config.interval_ns, "before an interval");
                if signal {
                    due_ns = if was_signalling { due_ns } else { now_ns };
                    prop_assert!(now_ns >= due_ns, "{now_ns} before {due_ns}");
                    let gap_ns = (config.interval_ns as f64 / f64::from(codel.count).sqrt()).floor();
                    due_ns += gap_ns as u64;
                }
            }
        }
    }
}
