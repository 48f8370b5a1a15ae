//! The limits of a direction as a user gives them: their defaults, and their fate in a live change.
//!
//! ```text
//! burst = 2 ms of the rate, 20 kb at least        queue = 5 ms of the rate
//! ```
//!
//! A burst that nobody asked for follows the rate; one that was asked for stays.

use serde::{Deserialize, Serialize};
use weir_core::limit::{is_long_burst, is_short_burst};
use weir_core::rate::Rate;
use weir_core::shaper::tbf::{Limit, TbfConfig, TbfError};
use weir_core::shaper::token_bucket::BURST_BYTES_MAX;
use weir_core::units::{size_text, time_text};
use weir_path::classes::QUEUE_NS_DEFAULT;

use crate::classes::FRAME_BYTES;

/// The refusal of a burst or queue of a direction without a rate; its name comes first.
pub const NO_LIMIT: &str = "has no limit that a burst or queue would be of: give a rate as well";

/// The burst that goes with a rate where none is asked for: 2 ms of it, and 20 kb at least.
pub fn burst_bytes_default(rate: Rate) -> u64 {
    rate.bytes_in(2_000_000).clamp(20 * 1024, BURST_BYTES_MAX)
}

/// The limits of a direction; a burst and a queue that are not asked for have their defaults.
///
/// # Errors
/// No bucket is so large.
pub fn direction(rate: Rate, burst_bytes: Option<u64>, queue_ns: Option<u64>) -> Result<TbfConfig, TbfError> {
    let limits = TbfConfig {
        rate,
        burst_bytes: burst_bytes.unwrap_or_else(|| burst_bytes_default(rate)),
        limit: Limit::TimeNs(queue_ns.unwrap_or(QUEUE_NS_DEFAULT)),
    };
    limits.check().map(|()| limits)
}

/// Checks a burst that was asked for.
///
/// # Errors
/// It lets no frame pass.
pub fn check_burst(burst_bytes: u64) -> Result<(), String> {
    if burst_bytes < FRAME_BYTES {
        return Err(format!(
            "a burst of {} is below one frame of {FRAME_BYTES} bytes, which could then never pass: give 2kb or more",
            size_text(burst_bytes)
        ));
    }
    Ok(())
}

/// Returns whether a wire or a topology can be called so, by which a control socket is found. A word that ends in `.toml` is a file to `weir down`.
pub fn is_path_name(name: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || "-_.@".contains(c);
    let is_free = !name.starts_with('.') && !name.ends_with(".toml");
    !name.is_empty() && name.len() <= 64 && is_free && name.chars().all(fits)
}

/// The rule for names of wires and topologies, in words.
pub const PATH_NAME_IS: &str =
    "1 to 64 letters, digits or any of -_.@ (and no dot in front, and no .toml behind)";

/// Returns whether a limit in place can be called so, which may be any interface's name. The name is text in the limit's memory, and a
/// file's name where a wire is looked for by it.
pub fn is_name(name: &str) -> bool {
    let fits = |c: char| !c.is_control() && !c.is_whitespace() && c != '/';
    !name.is_empty() && name.len() <= 64 && !name.starts_with('.') && name.chars().all(fits)
}

/// The rule for names of limits in place, in words.
pub const NAME_IS: &str =
    "1 to 64 bytes without spaces, control characters and slashes (and no dot in front)";

/// Warnings of a burst that was asked for of a limit in place, each with `usual BURST` as the cure, such as `--burst 20kb`. The default is
/// long enough.
pub fn burst_warnings(rate: Rate, burst_bytes: u64, usual: impl Fn(&str) -> String) -> Vec<String> {
    let mut warnings = Vec::new();
    let cure = usual(&size_text(burst_bytes_default(rate).next_multiple_of(1024)));
    if is_long_burst(rate, burst_bytes) && burst_bytes > burst_bytes_default(rate) {
        warnings.push(format!(
            "a burst of {} is {} of {rate}: for so long nothing is held after a pause; {cure} is usual",
            size_text(burst_bytes),
            time_text(rate.ns_for(burst_bytes) / 1_000_000 * 1_000_000),
        ));
    }
    if is_short_burst(rate, burst_bytes) {
        let cure = match burst_bytes < burst_bytes_default(rate) {
            true => format!("{cure} makes up for it"),
            false => format!("no burst is longer than {}", size_text(BURST_BYTES_MAX)),
        };
        warnings.push(format!(
            "a burst of {} is {} of {rate}: whenever the kernel's timer is later than that, as on a busy virtual machine, rate is lost; \
             {cure}",
            size_text(burst_bytes),
            time_text(rate.ns_for(burst_bytes) / 1000 * 1000),
        ));
    }
    warnings
}

/// The changes to the limits of one direction; a limit that is absent stays as it is.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetLimits {
    /// The direction: of a wire 0 from the first interface to the second, 1 back; of a topology the place of the port where it ends.
    pub direction: usize,
    /// The new rate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate_bits_per_s: Option<u64>,
    /// The new burst.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub burst_bytes: Option<u64>,
    /// The new queue, as a time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue_ns: Option<u64>,
}

impl SetLimits {
    /// The present limits with the changes made; a direction without a rate, and given none, stays without limits.
    ///
    /// # Errors
    /// A rate of 0; a burst or queue where there is no limit and none is set.
    pub fn apply(&self, present: Option<TbfConfig>) -> Result<Option<TbfConfig>, String> {
        let rate = match (self.rate_bits_per_s, present) {
            (Some(bits_per_s), _) => Rate::from_bits_per_s(bits_per_s).ok_or("a rate of 0 passes nothing")?,
            (None, Some(present)) => present.rate,
            (None, None) if self.burst_bytes.is_none() && self.queue_ns.is_none() => return Ok(None),
            (None, None) => {
                return Err(format!("it {NO_LIMIT}"));
            }
        };
        // A burst that nobody asked for follows the rate.
        let kept = present
            .filter(|present| present.burst_bytes != burst_bytes_default(present.rate))
            .map(|present| present.burst_bytes);
        Ok(Some(TbfConfig {
            rate,
            burst_bytes: self.burst_bytes.or(kept).unwrap_or_else(|| burst_bytes_default(rate)),
            limit: match (self.queue_ns, present) {
                (Some(time_ns), _) => Limit::TimeNs(time_ns),
                (None, Some(present)) => present.limit,
                (None, None) => Limit::TimeNs(QUEUE_NS_DEFAULT),
            },
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(rate_bits_per_s: u64, burst_bytes: Option<u64>) -> SetLimits {
        SetLimits { direction: 0, rate_bits_per_s: Some(rate_bits_per_s), burst_bytes, queue_ns: None }
    }

    #[test]
    fn a_burst_that_is_too_short_is_cured_by_a_longer_one_if_there_is_one() {
        let said = |mbit: u64, burst_bytes: Option<u64>| {
            let rate = Rate::from_bits_per_s(mbit * 1_000_000).unwrap();
            burst_warnings(rate, burst_bytes.unwrap_or(burst_bytes_default(rate)), |usual| usual.into())
                .concat()
        };
        assert!(said(200, Some(20_480)).ends_with("49kb makes up for it"), "{}", said(200, Some(20_480)));
        assert_eq!(said(1_000_000, None), "");
        assert!(
            said(10_000_000, None).ends_with("no burst is longer than 1gb"),
            "{}",
            said(10_000_000, None)
        );
        assert!(said(10_000_000, Some(20_480)).ends_with("1gb makes up for it"));
    }

    #[test]
    fn what_is_a_file_to_weir_down_is_no_name() {
        assert!(["veth-a", "eth0.7", "a@b", "toml"].into_iter().all(is_path_name));
        assert!(["q.toml", ".toml", ".a", "", "a/b"].into_iter().all(|name| !is_path_name(name)));
    }

    #[test]
    fn a_burst_or_queue_without_a_limit_is_refused() {
        let nothing = SetLimits { direction: 0, rate_bits_per_s: None, burst_bytes: None, queue_ns: None };
        assert_eq!(nothing.apply(None), Ok(None));
        for asked in [
            SetLimits { burst_bytes: Some(40 << 10), ..nothing.clone() },
            SetLimits { queue_ns: Some(40_000_000), ..nothing.clone() },
        ] {
            assert!(asked.apply(None).unwrap_err().contains("give a rate as well"), "{asked:?}");
        }
    }

    #[test]
    fn a_burst_follows_the_rate_unless_it_was_asked_for() {
        let at = |present, change: SetLimits| change.apply(present).unwrap();
        let first = at(None, set(500_000_000, None));
        assert_eq!(first.unwrap().burst_bytes, 125_000);
        assert_eq!(at(first, set(1_000_000, None)).unwrap().burst_bytes, 20 * 1024);
        let asked = at(first, set(500_000_000, Some(30_000)));
        assert_eq!(at(asked, set(1_000_000, None)).unwrap().burst_bytes, 30_000);
    }
}
