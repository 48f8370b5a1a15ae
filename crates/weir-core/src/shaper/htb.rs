//! HTB, the hierarchical token bucket: classes with a guaranteed rate and a ceiling, which borrow rate that others leave.
//!
//! | tokens of `ceil` | tokens of `rate` | mode |
//! |---|---|---|
//! | in debt | any | `CantSend` |
//! | not | in debt | `MayBorrow` |
//! | not | not | `CanSend` |
//!
//! Over every window of `t` seconds, for packets no longer than `mtu`:
//!
//! ```text
//! bytes out of a leaf       <= max(cburst, mtu) + ceil * t
//! bytes out of an inner one <= max(cburst, mtu) + ceil * t + sum over all classes below it of max(burst, mtu)
//! bytes of a busy leaf      >= rate * t - 2 mtu
//! ```
//!
//! the second if the rates of its children sum to no more than its own, and theirs likewise; the third if it is served no later than its
//! burst covers, `(burst - mtu) / rate`. The rest of the rate is borrowed in proportion to the quanta, level by level.
//!
//! A packet is charged to the ceiling of its leaf and of every ancestor, and to the rate of the lender and
//! its ancestors, not of the classes below, which borrowed it. A bucket admits a packet while it is not in
//! debt, whatever the packet's length; it is therefore filled to `burst - mtu` only, and the inequalities
//! hold without a packet on top.
//!
//! Source: tc-htb(8); Devera, *HTB Linux queuing discipline theory*, 2002; Linux `net/sched/sch_htb.c`.
//!
//! Limits: those of the tree. Unlike the kernel's, buckets hold bits, not time, so that a packet's cost is
//! exact; there is no hysteresis; debt is bounded by 1 GiB and not by 60 s.

use std::fmt;

use super::{
    token_bucket::{BURST_BYTES_MAX, TokenBucket},
    tree::{ClassMode, Meter, Tree, TreeError},
};
use crate::{packet::Packet, rate::Rate, units::size_text};

/// A tree of HTB classes.
pub type Htb<P> = Tree<P, HtbMeter>;

/// The rates and bursts of one class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HtbConfig {
    /// The guaranteed rate.
    pub rate: Rate,
    /// The ceiling, the most it may reach by borrowing.
    pub ceil: Rate,
    /// The bytes of the guarantee that may pass at once.
    pub burst_bytes: u64,
    /// The bytes that may pass at once in all.
    pub cburst_bytes: u64,
    /// The longest packet.
    pub mtu_bytes: u64,
}

/// The reason why a class cannot be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HtbError {
    /// The class could not even use its guarantee.
    CeilBelowRate {
        /// The ceiling.
        ceil: Rate,
        /// The guarantee.
        rate: Rate,
    },
    /// The burst is more than [`BURST_BYTES_MAX`].
    BurstTooLarge {
        /// The burst asked for.
        burst_bytes: u64,
    },
    /// The tree has no place for the class.
    Tree(TreeError),
}

impl fmt::Display for HtbError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HtbError::CeilBelowRate { ceil, rate } => {
                write!(f, "the ceiling {ceil} is below the rate {rate}; raise it to {rate} or more")
            }
            HtbError::BurstTooLarge { burst_bytes } => write!(
                f,
                "a burst of {} is more than a bucket holds; write {} or less",
                size_text(*burst_bytes),
                size_text(BURST_BYTES_MAX)
            ),
            HtbError::Tree(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for HtbError {}

impl HtbConfig {
    /// Checks that this configuration can be kept.
    pub fn check(&self) -> Result<(), HtbError> {
        if self.ceil < self.rate {
            return Err(HtbError::CeilBelowRate { ceil: self.ceil, rate: self.rate });
        }
        let burst_bytes = self.burst_bytes.max(self.cburst_bytes);
        if burst_bytes > BURST_BYTES_MAX {
            return Err(HtbError::BurstTooLarge { burst_bytes });
        }
        Ok(())
    }
}

/// The two buckets of a class.
#[derive(Clone, Debug)]
pub struct HtbMeter {
    rate: TokenBucket,
    ceil: TokenBucket,
    config: HtbConfig,
}

impl HtbMeter {
    /// A meter with full buckets.
    pub fn new(config: HtbConfig, now_ns: u64) -> Result<HtbMeter, HtbError> {
        config.check()?;
        let depth_bytes = |burst_bytes: u64| burst_bytes.saturating_sub(config.mtu_bytes);
        Ok(HtbMeter {
            rate: TokenBucket::new(config.rate, depth_bytes(config.burst_bytes), now_ns),
            ceil: TokenBucket::new(config.ceil, depth_bytes(config.cburst_bytes), now_ns),
            config,
        })
    }

    /// The configuration.
    pub fn config(&self) -> &HtbConfig {
        &self.config
    }

    fn set_config(&mut self, config: HtbConfig, now_ns: u64) {
        let depth_bytes = |burst_bytes: u64| burst_bytes.saturating_sub(config.mtu_bytes);
        self.rate.set_rate(config.rate, depth_bytes(config.burst_bytes), now_ns);
        self.ceil.set_rate(config.ceil, depth_bytes(config.cburst_bytes), now_ns);
        self.config = config;
    }
}

impl Meter for HtbMeter {
    #[inline]
    fn mode(&self, now_ns: u64) -> (ClassMode, u64) {
        let ceil_ns = self.ceil.ready_at(0, now_ns);
        if ceil_ns > now_ns {
            return (ClassMode::CantSend, ceil_ns);
        }
        let rate_ns = self.rate.ready_at(0, now_ns);
        if rate_ns > now_ns { (ClassMode::MayBorrow, rate_ns) } else { (ClassMode::CanSend, now_ns) }
    }

    #[inline]
    fn charge(&mut self, len_bytes: u32, own: bool, now_ns: u64) -> bool {
        if own {
            self.rate.take(len_bytes, now_ns);
        }
        self.ceil.take(len_bytes, now_ns);
        true
    }
}

impl<P: Packet> Htb<P> {
    /// Changes a class's rates and bursts from now on; levels are kept. On an error nothing has changed.
    pub fn set_config(
        &mut self,
        class: usize,
        config: HtbConfig,
        quantum_bytes: u32,
        now_ns: u64,
    ) -> Result<(), HtbError> {
        config.check()?;
        self.change(class, quantum_bytes, now_ns, |meter| meter.set_config(config, now_ns))
            .map_err(HtbError::Tree)
    }
}

#[cfg(test)]
mod tests;
