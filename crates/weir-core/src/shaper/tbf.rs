//! TBF, the token bucket filter: a rate with a burst, optionally a peak rate, and a limit on waiting bytes.
//!
//! Over every window of `t` seconds, for packets no longer than `L`:
//!
//! ```text
//! bytes out <= max(burst_bytes, L) + rate * t
//! bytes out <= max(peak.mtu_bytes, L) + peak.rate * t        where a peak is set
//! ```
//!
//! A packet leaves when both buckets admit it, so each inequality is the token bucket's own. The limit is not a point to drop at: it is the
//! credit, the bytes that may be held here before feeders are stopped. Written as a time it is `rate * time`, and a packet that finds the
//! place full of earlier ones leaves within that time.
//!
//! Owner: one worker. Source: tc-tbf(8), Linux `net/sched/sch_tbf.c` (two buckets, both must cover the
//! packet).
//!
//! Limits: tc's `latency` also counts the burst into its limit; ours does not, because a full bucket delays no packet. A packet longer than
//! a bucket leaves it in debt instead of being dropped (see the token bucket).

use std::fmt;

use super::token_bucket::{BURST_BYTES_MAX, TokenBucket};
use crate::{
    rate::Rate,
    units::{size_text, time_text},
};

/// The configuration of a TBF.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TbfConfig {
    /// The long-run rate.
    pub rate: Rate,
    /// The bytes that may pass at once after a pause.
    pub burst_bytes: u64,
    /// The rate at which a burst itself may pass; unlimited if absent.
    pub peak: Option<Peak>,
    /// The limit on bytes that wait here.
    pub limit: Limit,
}

/// The second, faster bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peak {
    /// The peak rate; above the long-run rate, or it would be the limit itself.
    pub rate: Rate,
    /// The size of its bucket: the longest packet, so that two never leave back to back at full line rate.
    pub mtu_bytes: u64,
}

/// A limit on waiting bytes, as a time at the current rate or as bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// As many bytes as the rate passes in this many nanoseconds.
    TimeNs(u64),
    /// This many bytes, whatever the rate.
    Bytes(u64),
}

impl TbfConfig {
    /// Checks that this configuration can be kept; otherwise returns the fault and the remedy.
    pub fn check(&self) -> Result<(), TbfError> {
        let largest_bytes = self.burst_bytes.max(self.peak.map_or(0, |peak| peak.mtu_bytes));
        if largest_bytes > BURST_BYTES_MAX {
            return Err(TbfError::BurstTooLarge { burst_bytes: largest_bytes });
        }
        match self.peak {
            Some(peak) if peak.rate <= self.rate => {
                Err(TbfError::PeakNotAboveRate { peak: peak.rate, rate: self.rate })
            }
            _ => Ok(()),
        }
    }

    /// The credit in bytes.
    pub fn limit_bytes(&self) -> u64 {
        match self.limit {
            Limit::TimeNs(time_ns) => self.rate.bytes_in(time_ns),
            Limit::Bytes(bytes) => bytes,
        }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&match *self {
            Limit::TimeNs(time_ns) => time_text(time_ns),
            Limit::Bytes(bytes) => size_text(bytes),
        })
    }
}

/// The reason why a TBF cannot be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TbfError {
    /// The burst is more than [`BURST_BYTES_MAX`].
    BurstTooLarge {
        /// The burst asked for.
        burst_bytes: u64,
    },
    /// The peak rate limits nothing, or more than the rate itself does.
    PeakNotAboveRate {
        /// The peak rate.
        peak: Rate,
        /// The rate it must exceed.
        rate: Rate,
    },
}

impl fmt::Display for TbfError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TbfError::BurstTooLarge { burst_bytes } => write!(
                f,
                "a burst of {} is more than a bucket holds; write {} or less",
                size_text(*burst_bytes),
                size_text(BURST_BYTES_MAX)
            ),
            TbfError::PeakNotAboveRate { peak, rate } => {
                write!(f, "the peak rate {peak} must be above the rate {rate}; raise it or leave it out")
            }
        }
    }
}

impl std::error::Error for TbfError {}

/// The state of a TBF: its one or two buckets.
#[derive(Clone, Debug)]
pub struct Tbf {
    config: TbfConfig,
    bucket: TokenBucket,
    peak: Option<TokenBucket>,
}

impl Tbf {
    /// A TBF with full buckets.
    pub fn new(config: TbfConfig, now_ns: u64) -> Result<Tbf, TbfError> {
        config.check()?;
        Ok(Tbf {
            config,
            bucket: TokenBucket::new(config.rate, config.burst_bytes, now_ns),
            peak: config.peak.map(|peak| TokenBucket::new(peak.rate, peak.mtu_bytes, now_ns)),
        })
    }

    /// The earliest time at which a packet of `len_bytes` is admitted; `now_ns` if it already is.
    pub fn ready_at(&self, len_bytes: u32, now_ns: u64) -> u64 {
        let ready_ns = self.bucket.ready_at(len_bytes, now_ns);
        self.peak.as_ref().map_or(ready_ns, |peak| ready_ns.max(peak.ready_at(len_bytes, now_ns)))
    }

    /// Charges a packet that leaves now, after [`Self::ready_at`] said `now_ns`.
    pub fn take(&mut self, len_bytes: u32, now_ns: u64) {
        self.bucket.take(len_bytes, now_ns);
        if let Some(peak) = &mut self.peak {
            peak.take(len_bytes, now_ns);
        }
    }

    /// Changes the configuration from now on. Levels are kept, so a change grants no second burst; a peak that was not there before begins
    /// full. On an error nothing has changed.
    pub fn set_config(&mut self, config: TbfConfig, now_ns: u64) -> Result<(), TbfError> {
        config.check()?;
        self.config = config;
        self.bucket.set_rate(config.rate, config.burst_bytes, now_ns);
        self.peak = config.peak.map(|peak| match self.peak.take() {
            Some(mut bucket) => {
                bucket.set_rate(peak.rate, peak.mtu_bytes, now_ns);
                bucket
            }
            None => TokenBucket::new(peak.rate, peak.mtu_bytes, now_ns),
        });
        Ok(())
    }

    /// The configuration.
    pub fn config(&self) -> &TbfConfig {
        &self.config
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::rate::NS_PER_S;

    fn rate(bits_per_s: u64) -> Rate {
        Rate::from_bits_per_s(bits_per_s).unwrap()
    }

    fn config() -> TbfConfig {
        TbfConfig {
            rate: rate(200_000_000),
            burst_bytes: 20 * 1024,
            peak: Some(Peak { rate: rate(1_000_000_000), mtu_bytes: 1514 }),
            limit: Limit::TimeNs(5_000_000),
        }
    }

    #[test]
    fn the_limit_is_a_time_at_the_current_rate() {
        let mut tbf = Tbf::new(config(), 0).unwrap();
        assert_eq!(tbf.config().limit_bytes(), 125_000);
        tbf.set_config(TbfConfig { rate: rate(10_000_000), ..config() }, 0).unwrap();
        assert_eq!(tbf.config().limit_bytes(), 6_250);
        tbf.set_config(TbfConfig { limit: Limit::Bytes(300 << 10), ..config() }, 0).unwrap();
        assert_eq!(tbf.config().limit_bytes(), 300 << 10);
        assert_eq!(format!("{} {}", Limit::TimeNs(5_000_000), Limit::Bytes(200 << 10)), "5ms 200kb");
    }

    #[test]
    fn what_cannot_be_kept_is_refused_and_changes_nothing() {
        let mut tbf = Tbf::new(config(), 0).unwrap();
        let peak_low =
            TbfConfig { peak: Some(Peak { rate: rate(200_000_000), mtu_bytes: 1514 }), ..config() };
        let error = tbf.set_config(peak_low, 0).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the peak rate 200mbit must be above the rate 200mbit; raise it or leave it out"
        );
        let error = tbf.set_config(TbfConfig { burst_bytes: 2 << 30, ..config() }, 0).unwrap_err();
        assert_eq!(error.to_string(), "a burst of 2gb is more than a bucket holds; write 1gb or less");
        assert_eq!(*tbf.config(), config());
    }

    #[test]
    fn a_burst_passes_at_the_peak_rate_not_at_once() {
        let mut tbf = Tbf::new(config(), 0).unwrap();
        tbf.take(1514, 0);
        assert_eq!(
            tbf.ready_at(1514, 0),
            1514 * 8,
            "1514 bytes at 1 Gbit/s, though 20 kB of burst are there"
        );
        let mut plain = Tbf::new(TbfConfig { peak: None, ..config() }, 0).unwrap();
        plain.take(1514, 0);
        assert_eq!(plain.ready_at(1514, 0), 0);
    }

    proptest! {
        #[test]
        fn every_window_conforms_to_rate_and_peak_through_changes_of_the_peak(
            lens in prop::collection::vec((1u32..2000, any::<bool>()), 1..120),
        ) {
            let mut tbf = Tbf::new(config(), 0).unwrap();
            let (mut now_ns, mut departures) = (0, Vec::new());
            for &(len_bytes, change) in &lens {
                if change {
                    tbf.set_config(config(), now_ns).unwrap();
                }
                now_ns = tbf.ready_at(len_bytes, now_ns);
                tbf.take(len_bytes, now_ns);
                departures.push((now_ns, len_bytes));
            }
            for (limit, burst_bytes) in [(rate(200_000_000), 20 * 1024), (rate(1_000_000_000), 2000)] {
                for (first, &(start_ns, _)) in departures.iter().enumerate() {
                    let mut bits = 0;
                    for &(end_ns, len_bytes) in &departures[first..] {
                        bits += u128::from(len_bytes) * 8;
                        let earned = u128::from(limit.bits_per_s()) * u128::from(end_ns - start_ns);
                        prop_assert!(bits * u128::from(NS_PER_S) <= burst_bytes * 8 * u128::from(NS_PER_S) + earned);
                    }
                }
            }
        }
    }
}
