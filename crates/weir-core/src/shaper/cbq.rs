//! CBQ, class-based queueing: a class is over its limit when, on a weighted average, its packets follow each
//! other sooner than its rate allows.
//!
//! For each packet of a class, of `len` bytes, leaving at `now`:
//!
//! ```text
//! idle     = (now - last) - len * 8e9 / rate                 by how much it came later than the rate asks
//! avgidle' = min(max_idle, avgidle + 2^-w (idle - avgidle))  kept multiplied by 2^w, as `avgidle_scaled_ns`
//! over limit  <=>  avgidle <= 0, until the next packet of this length would bring it back to 0
//! ```
//!
//! | over limit | bounded | mode |
//! |---|---|---|
//! | no | any | `CanSend` |
//! | yes | no | `MayBorrow` |
//! | yes | yes | `CantSend` |
//!
//! The average forgets debt along with idleness, and that is CBQ's inaccuracy: over every window of `t`
//! seconds,
//!
//! ```text
//! (1 - 2^-w) * bytes out of a class that does not borrow <= burst + 2 L + rate * t
//! ```
//!
//! so at the default `w = 5` it may run over its rate by up to 3.2 %, when the worker is late or lengths
//! vary; served on time with packets of one length it keeps its rate exactly. `max_idle` is the burst's time
//! at the rate.
//!
//! Every packet is charged to its leaf and all ancestors, borrowed or not, so a class that borrowed must pay; its debt is kept to the time
//! of two packets (`min_idle`), or a class that borrowed for long would lose its own share afterwards. An *isolated* class lends nothing to
//! those outside it. It is a link of its own: packets that it sends within its own rate are not charged to its ancestors, packets that it
//! borrows for are charged to them alone, and the rate its parent has to lend is reduced by its rate ([`Cbq::set_config`]).
//!
//! Borrowing follows the formal link-sharing guideline, priorities and weighted round robin are the tree's; a
//! class's weight is its quantum.
//!
//! Source: Floyd and Jacobson, *Link-sharing and resource management models for packet networks*, IEEE/ACM
//! ToN 3(4), 1995, sections 3 and 4 and appendix A (estimator); Linux `net/sched/sch_cbq.c` before its
//! removal in 2023 (scaled average, `undertime`).
//!
//! Limits: those of the tree. An inner class and a root should forget nothing, or the rate they forget is lent out too early: give them an
//! `ewma_log` of [`EWMA_LOG_MAX`] (the paper's simulations give them exact shares likewise), and since leaves may run over, give the tree
//! the link's own rate ([`Tree::set_link`]). The top-level and ancestors-only approximations, with which the paper saves work, are not
//! needed and not offered.

use std::fmt;

use super::tree::{ClassMode, Meter, Tree, TreeError};
use crate::{
    packet::Packet,
    rate::{NS_PER_S, Rate},
};

/// A tree of CBQ classes.
pub type Cbq<P> = Tree<P, CbqMeter>;

/// The share and the flags of one class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CbqConfig {
    /// Its share of the link.
    pub rate: Rate,
    /// The bytes that may pass at once after a pause.
    pub burst_bytes: u64,
    /// The longest packet.
    pub mtu_bytes: u64,
    /// The weight `2^-ewma_log` of the last packet in the average; [`EWMA_LOG`] unless there is a reason.
    pub ewma_log: u8,
    /// True if it never borrows.
    pub bounded: bool,
    /// True if it never lends to classes outside it.
    pub isolated: bool,
}

/// The kernel's weight of the last packet: 1/32.
pub const EWMA_LOG: u8 = 5;
/// The lightest weight that is taken: 2^-16.
pub const EWMA_LOG_MAX: u8 = 16;

/// The reason why a class cannot be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CbqError {
    /// The weight is not from 1 to [`EWMA_LOG_MAX`].
    EwmaLog {
        /// The weight asked for.
        ewma_log: u8,
    },
    /// The class's isolated children take all its rate.
    IsolatedAboveParent {
        /// The rate that they take.
        isolated: Rate,
        /// The rate of the class.
        rate: Rate,
    },
    /// The tree has no place for the class.
    Tree(TreeError),
}

impl fmt::Display for CbqError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CbqError::EwmaLog { ewma_log } => {
                write!(f, "an average over 2^{ewma_log} packets is not kept; write 1 to {EWMA_LOG_MAX}")
            }
            CbqError::IsolatedAboveParent { isolated, rate } => write!(
                f,
                "the isolated children take {isolated} of {rate}, which leaves nothing; lower theirs or raise it"
            ),
            CbqError::Tree(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for CbqError {}

/// The estimator of a class.
#[derive(Clone, Debug)]
pub struct CbqMeter {
    config: CbqConfig,
    /// The rate less that of isolated children.
    rate: Rate,
    max_idle_ns: i64,
    min_idle_ns: i64,
    /// `avgidle * 2^ewma_log`: invariant: within `min_idle_ns ..= max_idle_ns`.
    avgidle_scaled_ns: i64,
    last_ns: u64,
    /// The remainder of the last packet's cost, in 1 / rate ns.
    remainder: u64,
    /// The time at which it will no longer be over its limit.
    under_ns: u64,
}

impl CbqConfig {
    /// Checks that this configuration can be kept.
    pub fn check(&self) -> Result<(), CbqError> {
        if (1..=EWMA_LOG_MAX).contains(&self.ewma_log) {
            Ok(())
        } else {
            Err(CbqError::EwmaLog { ewma_log: self.ewma_log })
        }
    }
}

impl CbqMeter {
    /// The estimator of a class that has been idle for long.
    pub fn new(config: CbqConfig, now_ns: u64) -> Result<CbqMeter, CbqError> {
        config.check()?;
        let mut meter = CbqMeter {
            config,
            rate: config.rate,
            max_idle_ns: 0,
            min_idle_ns: 0,
            avgidle_scaled_ns: 0,
            last_ns: now_ns,
            remainder: 0,
            under_ns: now_ns,
        };
        meter.set_bounds();
        meter.avgidle_scaled_ns = meter.max_idle_ns;
        Ok(meter)
    }

    /// The configuration.
    pub fn config(&self) -> &CbqConfig {
        &self.config
    }

    /// Changes the rate. Times are worth as many bytes after it as before: the same debt, the same idleness, at another rate. So it does
    /// not matter how often a rate is changed.
    fn set_config(&mut self, config: CbqConfig, rate: Rate, now_ns: u64) {
        let (old, new) = (u128::from(self.rate.bits_per_s()), u128::from(rate.bits_per_s()));
        let rescaled = |ns: u64| u64::try_from(u128::from(ns) * old / new).unwrap_or(u64::MAX);
        let since_ns = rescaled(now_ns.saturating_sub(self.last_ns));
        self.last_ns = now_ns.saturating_sub(since_ns);
        self.under_ns = now_ns.saturating_add(rescaled(self.under_ns.saturating_sub(now_ns)));
        let average_ns = signed(rescaled(self.avgidle_scaled_ns.unsigned_abs()));
        (self.config, self.rate, self.remainder) = (config, rate, 0);
        self.set_bounds();
        self.avgidle_scaled_ns =
            (average_ns * self.avgidle_scaled_ns.signum()).clamp(self.min_idle_ns, self.max_idle_ns);
    }

    fn set_bounds(&mut self) {
        self.max_idle_ns = signed(self.rate.ns_for(self.config.burst_bytes)).min(i64::MAX / 4);
        self.min_idle_ns = -signed(self.rate.ns_for(2 * self.config.mtu_bytes)).min(i64::MAX / 4);
    }

    fn set_under(&mut self, len_bytes: u32, now_ns: u64) {
        self.under_ns = if self.avgidle_scaled_ns > 0 {
            now_ns
        } else {
            let debt_ns =
                (self.avgidle_scaled_ns - (self.avgidle_scaled_ns >> self.config.ewma_log)).unsigned_abs();
            now_ns.saturating_add(self.rate.ns_for(len_bytes.into())).saturating_add(debt_ns)
        };
    }
}

impl Meter for CbqMeter {
    #[inline]
    fn mode(&self, now_ns: u64) -> (ClassMode, u64) {
        match (self.under_ns <= now_ns, self.config.bounded) {
            (true, _) => (ClassMode::CanSend, now_ns),
            (false, false) => (ClassMode::MayBorrow, self.under_ns),
            (false, true) => (ClassMode::CantSend, self.under_ns),
        }
    }

    #[inline]
    fn charge(&mut self, len_bytes: u32, own: bool, now_ns: u64) -> bool {
        if self.config.isolated && !own {
            return true;
        }
        let cost = u128::from(len_bytes) * u128::from(8 * NS_PER_S) + u128::from(self.remainder);
        let rate = u128::from(self.rate.bits_per_s());
        let cost_ns = i64::try_from(cost / rate).unwrap_or(i64::MAX);
        self.remainder = (cost % rate) as u64;
        let idle_ns = signed(now_ns.saturating_sub(self.last_ns)).saturating_sub(cost_ns);
        let average_ns = self.avgidle_scaled_ns - (self.avgidle_scaled_ns >> self.config.ewma_log);
        self.avgidle_scaled_ns = average_ns.saturating_add(idle_ns).clamp(self.min_idle_ns, self.max_idle_ns);
        self.last_ns = self.last_ns.max(now_ns);
        self.set_under(len_bytes, now_ns);
        !self.config.isolated
    }
}

impl<P: Packet> Cbq<P> {
    /// Changes a class's share and flags from now on; the average is kept. On an error nothing has changed.
    ///
    /// The rate of isolated children is taken off anew for the class and its parent: call this for an isolated class once it is added, and
    /// for the parent of one that was removed.
    pub fn set_config(
        &mut self,
        class: usize,
        config: CbqConfig,
        quantum_bytes: u32,
        now_ns: u64,
    ) -> Result<(), CbqError> {
        config.check()?;
        let rate = self.own_rate(class, config.rate, class, &config)?;
        let parent = self.parent(class);
        let parent_rate = match parent.and_then(|parent| Some((parent, self.meter(parent)?.config().rate))) {
            Some((parent, rate)) => Some(self.own_rate(parent, rate, class, &config)?),
            None => None,
        };
        self.change(class, quantum_bytes, now_ns, |meter| meter.set_config(config, rate, now_ns))
            .map_err(CbqError::Tree)?;
        if let Some((parent, rate)) = parent.zip(parent_rate) {
            let meter = self.meter(parent).expect("it was there above");
            let (config, quantum_bytes) = (*meter.config(), self.quantum_bytes(parent));
            self.change(parent, quantum_bytes, now_ns, |meter| meter.set_config(config, rate, now_ns))
                .map_err(CbqError::Tree)?;
        }
        Ok(())
    }

    /// A class's rate less that of its isolated children, one of which is taken to have a new configuration.
    fn own_rate(
        &self,
        class: usize,
        rate: Rate,
        changed: usize,
        config: &CbqConfig,
    ) -> Result<Rate, CbqError> {
        let isolated_bits_per_s = self
            .classes()
            .filter(|&child| self.parent(child) == Some(class))
            .filter_map(
                |child| if child == changed { Some(config) } else { Some(self.meter(child)?.config()) },
            )
            .filter(|child| child.isolated)
            .fold(0u64, |sum, child| sum.saturating_add(child.rate.bits_per_s()));
        Rate::from_bits_per_s(rate.bits_per_s().saturating_sub(isolated_bits_per_s)).ok_or_else(|| {
            let isolated = Rate::from_bits_per_s(isolated_bits_per_s).unwrap_or(rate);
            CbqError::IsolatedAboveParent { isolated, rate }
        })
    }
}

fn signed(ns: u64) -> i64 {
    i64::try_from(ns).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests;
