//! A token bucket: the limit `burst + rate x time`, kept exactly.
//!
//! Over every window of `t` seconds, for packets no longer than `L`:
//!
//! ```text
//! bytes out <= max(burst, L) + rate * t                  (the conformance inequality)
//! ```
//!
//! and a backlogged bucket falls behind `rate * t` by nothing at all: the level is kept in units of 1e-9 bit (bit/s x ns), so a refill of
//! `elapsed_ns * bits_per_s` and a charge of `len_bytes * 8e9` are both integers and no remainder is ever lost. There is no refill timer;
//! the level is brought up to date when it is read.
//!
//! A packet is admitted when the level reaches its length. One longer than the burst, which could never be,
//! is admitted when the bucket is full and leaves it in debt; hence `max(burst, L)` above, and a burst of 0
//! is plain pacing.
//!
//! Owner: one worker. Source: Linux `net/sched/sch_tbf.c` (the inequality and the packet form of its opening
//! comment; it rounds the time of each packet, this does not).
//!
//! Limits: burst and packet are at most [`BURST_BYTES_MAX`]. The time of admission is rounded up to a whole nanosecond, and the caller's
//! timer is later still. Lateness up to `(burst - L) / rate` costs nothing: the level goes on rising meanwhile. Any later than that, the
//! bucket being full, rate is lost; a burst of just one packet loses the rounding of each.

use crate::rate::Rate;

/// The largest burst a bucket can hold, in bytes (1 GiB), so that its level fits 64 bits.
pub const BURST_BYTES_MAX: u64 = 1 << 30;

/// The level units in a byte: 8 bits of 1e9.
const UNITS_PER_BYTE: i64 = 8_000_000_000;

/// The state of one limit.
#[derive(Clone, Debug)]
pub struct TokenBucket {
    rate: Rate,
    /// The burst in level units. Invariant: `level <= full`.
    full: i64,
    /// The credit that may still pass, in level units, as of `updated_ns`; negative is debt.
    level: i64,
    updated_ns: u64,
}

impl TokenBucket {
    /// A full bucket. Bursts over [`BURST_BYTES_MAX`] are cut to it.
    pub fn new(rate: Rate, burst_bytes: u64, now_ns: u64) -> TokenBucket {
        let full = burst_units(burst_bytes);
        TokenBucket { rate, full, level: full, updated_ns: now_ns }
    }

    /// The earliest time at which a packet of `len_bytes` is admitted; `now_ns` if it already is.
    pub fn ready_at(&self, len_bytes: u32, now_ns: u64) -> u64 {
        let missing = units(len_bytes).min(self.full).saturating_sub(self.level_at(now_ns));
        if missing <= 0 {
            return now_ns;
        }
        let wait_ns = missing.unsigned_abs().div_ceil(self.rate.bits_per_s());
        now_ns.max(self.updated_ns).saturating_add(wait_ns)
    }

    /// Charges a packet that leaves now. To keep the inequality, only after [`Self::ready_at`] said `now_ns`.
    pub fn take(&mut self, len_bytes: u32, now_ns: u64) {
        self.refill(now_ns);
        self.level = self.level.saturating_sub(units(len_bytes));
    }

    /// Changes rate and burst from now on. Earned credit stays earned, up to the new burst; debt stays debt.
    pub fn set_rate(&mut self, rate: Rate, burst_bytes: u64, now_ns: u64) {
        self.refill(now_ns);
        self.rate = rate;
        self.full = burst_units(burst_bytes);
        self.level = self.level.min(self.full);
    }

    /// The rate.
    pub fn rate(&self) -> Rate {
        self.rate
    }

    /// The burst in bytes.
    pub fn burst_bytes(&self) -> u64 {
        (self.full / UNITS_PER_BYTE).unsigned_abs()
    }

    /// Brings the level up to date. A clock that steps back earns nothing until it has caught up.
    fn refill(&mut self, now_ns: u64) {
        self.level = self.level_at(now_ns);
        self.updated_ns = self.updated_ns.max(now_ns);
    }

    fn level_at(&self, now_ns: u64) -> i64 {
        let elapsed_ns = now_ns.saturating_sub(self.updated_ns);
        // A refill beyond 64 bits is more than any debt and burst together can take.
        match elapsed_ns.checked_mul(self.rate.bits_per_s()) {
            Some(earned) => self.level.saturating_add_unsigned(earned).min(self.full),
            None => self.full,
        }
    }
}

fn units(len_bytes: u32) -> i64 {
    i64::from(len_bytes).saturating_mul(UNITS_PER_BYTE)
}

fn burst_units(burst_bytes: u64) -> i64 {
    i64::try_from(burst_bytes.min(BURST_BYTES_MAX)).unwrap_or(i64::MAX).saturating_mul(UNITS_PER_BYTE)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::rate::NS_PER_S;

    fn rate(bits_per_s: u64) -> Rate {
        Rate::from_bits_per_s(bits_per_s).unwrap()
    }

    /// Checks every window that begins and ends with a departure; wider ones only weaken the inequality.
    fn assert_conforms(departures: &[(u64, u32)], rate: Rate, burst_bytes: u64) {
        for (first, &(start_ns, _)) in departures.iter().enumerate() {
            let mut bytes = 0;
            for &(end_ns, len_bytes) in &departures[first..] {
                bytes += u128::from(len_bytes);
                let longest = departures.iter().map(|d| d.1).max().unwrap_or(0);
                let allowed = u128::from(burst_bytes.max(longest.into())) * 8 * u128::from(NS_PER_S)
                    + u128::from(rate.bits_per_s()) * u128::from(end_ns - start_ns);
                assert!(
                    bytes * 8 * u128::from(NS_PER_S) <= allowed,
                    "{bytes} bytes in [{start_ns}, {end_ns}] ns at {rate}, burst {burst_bytes}"
                );
            }
        }
    }

    #[test]
    fn no_remainder_is_lost_at_an_awkward_rate() {
        // 7 bits/s and 3-byte packets: 24/7 s each, never a whole number of nanoseconds.
        let mut bucket = TokenBucket::new(rate(7), 4, 0);
        bucket.take(1, 0);
        let mut now_ns = 0;
        for sent in 0..70_000u64 {
            now_ns = bucket.ready_at(3, now_ns);
            assert_eq!(now_ns, (sent * 24 * NS_PER_S).div_ceil(7), "packet {sent}, after one that was free");
            bucket.take(3, now_ns);
        }
    }

    #[test]
    fn a_packet_beyond_the_burst_waits_for_a_full_bucket_and_leaves_debt() {
        let mut bucket = TokenBucket::new(rate(8_000), 100, 0);
        assert_eq!(bucket.ready_at(1500, 0), 0);
        bucket.take(1500, 0);
        assert_eq!(bucket.ready_at(1500, 0), 1500 * 1_000_000, "1 byte each ms: back to full after 1500 ms");
        assert_eq!(bucket.ready_at(60, 0), 1460 * 1_000_000, "short ones wait for the debt too");
    }

    #[test]
    fn the_largest_rates_bursts_and_times_do_not_overflow() {
        for bits_per_s in [1, 1_000_000_000_000, u64::MAX] {
            let mut bucket = TokenBucket::new(rate(bits_per_s), u64::MAX, 0);
            assert_eq!(bucket.burst_bytes(), BURST_BYTES_MAX);
            for now_ns in [0, 1, u64::MAX / 2, u64::MAX] {
                for _ in 0..5 {
                    assert!(bucket.ready_at(u32::MAX, now_ns) >= now_ns);
                    bucket.take(u32::MAX, now_ns);
                }
            }
        }
    }

    proptest! {
        #[test]
        fn every_window_conforms_and_nothing_is_earned_late(
            bits_per_s in 1u64..10_000_000_000,
            burst_bytes in 0u64..20_000,
            packets in prop::collection::vec((1u32..3000, 0u64..2_000_000, any::<bool>()), 1..60),
        ) {
            let mut bucket = TokenBucket::new(rate(bits_per_s), burst_bytes, 0);
            let (mut now_ns, mut departures) = (0, Vec::new());
            for &(len_bytes, gap_ns, late) in &packets {
                let ready_ns = bucket.ready_at(len_bytes, now_ns);
                if ready_ns > now_ns {
                    prop_assert!(bucket.ready_at(len_bytes, ready_ns - 1) > ready_ns - 1, "one ns before is too early");
                }
                prop_assert_eq!(bucket.ready_at(len_bytes, ready_ns), ready_ns, "at the time it named it is ready");
                now_ns = if late { ready_ns + gap_ns } else { ready_ns };
                bucket.take(len_bytes, now_ns);
                departures.push((now_ns, len_bytes));
            }
            assert_conforms(&departures, rate(bits_per_s), burst_bytes);
        }

        #[test]
        fn a_busy_bucket_is_never_behind_its_rate(
            bits_per_s in 1_000u64..10_000_000_000,
            lens in prop::collection::vec(1u32..3000, 1..200),
        ) {
            // Served on time, packet n leaves when the exact sum is covered, rounded up to a nanosecond.
            let mut bucket = TokenBucket::new(rate(bits_per_s), 4000, 0);
            bucket.take(4000, 0);
            let (mut now_ns, mut bits) = (0, 0u128);
            for &len_bytes in &lens {
                now_ns = bucket.ready_at(len_bytes, now_ns);
                bucket.take(len_bytes, now_ns);
                bits += u128::from(len_bytes) * 8;
                let exact_ns = (bits * u128::from(NS_PER_S)).div_ceil(u128::from(bits_per_s));
                prop_assert_eq!(u128::from(now_ns), exact_ns);
            }
        }

        #[test]
        fn a_change_of_rate_grants_nothing_and_takes_nothing(
            changes in prop::collection::vec((1u64..1_000_000_000, 1600u64..20_000, 1u64..100_000_000), 1..20),
        ) {
            let mut bucket = TokenBucket::new(rate(1_000_000), 20_000, 0);
            bucket.take(20_000, 0);
            let (mut now_ns, mut earned, mut spent) = (0u64, 0u128, 0u128);
            for &(bits_per_s, burst_bytes, hold_ns) in &changes {
                bucket.set_rate(rate(bits_per_s), burst_bytes, now_ns);
                let end_ns = now_ns + hold_ns;
                earned += u128::from(bits_per_s) * u128::from(hold_ns);
                loop {
                    let ready_ns = bucket.ready_at(1500, now_ns);
                    if ready_ns > end_ns {
                        break;
                    }
                    now_ns = ready_ns;
                    bucket.take(1500, now_ns);
                    spent += 1500 * 8 * u128::from(NS_PER_S);
                }
                now_ns = end_ns;
                prop_assert!(spent <= earned, "over the sum of what each rate allowed");
                prop_assert!(earned - spent < 1500 * 8 * u128::from(NS_PER_S), "a whole packet's worth was lost");
            }
        }
    }
}
