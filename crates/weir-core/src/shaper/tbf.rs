//! TBF, the token bucket filter: a rate with a burst, and a limit on waiting bytes.
//!
//! Over every window of `t` seconds, for packets no longer than `L`:
//!
//! ```text
//! bytes out <= max(burst_bytes, L) + rate * t
//! ```
//!
//! The inequality is the token bucket's own. The limit is not a point to drop at: it is the credit, the bytes that may be held here before
//! feeders are stopped. Written as a time it is `rate * time`, and a packet that finds the place full of earlier ones leaves within that
//! time.
//!
//! Owner: one worker. Source: tc-tbf(8), Linux `net/sched/sch_tbf.c`.
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
    /// The limit on bytes that wait here.
    pub limit: Limit,
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
        match self.burst_bytes > BURST_BYTES_MAX {
            true => Err(TbfError { burst_bytes: self.burst_bytes }),
            false => Ok(()),
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

/// A burst that is more than [`BURST_BYTES_MAX`]: such a TBF cannot be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TbfError {
    /// The burst asked for.
    pub burst_bytes: u64,
}

impl fmt::Display for TbfError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "a burst of {} is more than a bucket holds; write {} or less",
            size_text(self.burst_bytes),
            size_text(BURST_BYTES_MAX)
        )
    }
}

impl std::error::Error for TbfError {}

/// The state of a TBF: its bucket.
#[derive(Clone, Debug)]
pub struct Tbf {
    config: TbfConfig,
    bucket: TokenBucket,
}

impl Tbf {
    /// A TBF with a full bucket.
    pub fn new(config: TbfConfig, now_ns: u64) -> Result<Tbf, TbfError> {
        config.check()?;
        Ok(Tbf { config, bucket: TokenBucket::new(config.rate, config.burst_bytes, now_ns) })
    }

    /// The earliest time at which a packet of `len_bytes` is admitted; `now_ns` if it already is.
    pub fn ready_at(&self, len_bytes: u32, now_ns: u64) -> u64 {
        self.bucket.ready_at(len_bytes, now_ns)
    }

    /// Charges a packet that leaves now, after [`Self::ready_at`] said `now_ns`.
    pub fn take(&mut self, len_bytes: u32, now_ns: u64) {
        self.bucket.take(len_bytes, now_ns);
    }

    /// Changes the configuration from now on. The level is kept, so a change grants no second burst. On an error nothing has changed.
    pub fn set_config(&mut self, config: TbfConfig, now_ns: u64) -> Result<(), TbfError> {
        config.check()?;
        self.config = config;
        self.bucket.set_rate(config.rate, config.burst_bytes, now_ns);
        Ok(())
    }

    /// The configuration.
    pub fn config(&self) -> &TbfConfig {
        &self.config
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rate(bits_per_s: u64) -> Rate {
        Rate::from_bits_per_s(bits_per_s).unwrap()
    }

    fn config() -> TbfConfig {
        TbfConfig { rate: rate(200_000_000), burst_bytes: 20 * 1024, limit: Limit::TimeNs(5_000_000) }
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
        let error = tbf.set_config(TbfConfig { burst_bytes: 2 << 30, ..config() }, 0).unwrap_err();
        assert_eq!(error.to_string(), "a burst of 2gb is more than a bucket holds; write 1gb or less");
        assert_eq!(*tbf.config(), config());
    }
}
