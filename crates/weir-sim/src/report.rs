//! The results of a run, as numbers with names.
//!
//! ```text
//! lost_pct    = dropped by the limit / sent, over the flooding and TCP senders, in percent
//! rate_share  = bytes that left the limit while senders sent / (rate x time)
//! jain        = the lowest of the groups' Jain indices, of bytes delivered while senders sent; quiet groups apart
//! jain_all    = the same index over all senders of those groups together
//! delays      = from `send` to arrival, of the quiet senders' datagrams
//! ```

use crate::checks::fairness::{jain, quantile_ns};

/// The numbers of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// The loss of the flooding and TCP senders; see the header.
    pub lost_pct: f64,
    /// The loss of the quiet senders, likewise.
    pub quiet_lost_pct: f64,
    /// The load that each flooding sender offered on average, payload bits per second.
    pub offered_mbit: f64,
    /// The bytes that left, as a share of the rate; see the header.
    pub rate_share: f64,
    /// The lowest Jain index of a group; see the header.
    pub jain: f64,
    /// The Jain index over all senders; see the header.
    pub jain_all: f64,
    /// Packets that arrived after a later one of their flow.
    pub reordered: u64,
    /// Median delay.
    pub p50_ms: f64,
    /// The 99th percentile of the delay.
    pub p99_ms: f64,
    /// The longest delay.
    pub max_ms: f64,
    /// Senders woken for room.
    pub wakes: u64,
    /// Senders woken for room that then sent nothing.
    pub empty_wakes: u64,
    /// Threads woken again by the same grant.
    pub repeated_wakes: u64,
    /// Kicks of Weir's worker.
    pub kicks: u64,
    /// Times Weir's worker waited to be kicked.
    pub parks: u64,
    /// The largest number of bytes in the limit's own queue.
    pub standing_bytes_max: u64,
    /// Packets delivered, of all senders, drained ones included.
    pub delivered: u64,
}

/// The machine's counts of one sender.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally {
    pub sent: u64,
    pub sent_payload_bytes: u64,
    pub dropped: u64,
    /// The bytes delivered while senders sent, without the drain.
    pub delivered_bytes: u64,
    pub delays_ns: Vec<u64>,
}

impl Report {
    /// The value named `name` in a scenario's `expect`.
    pub fn value(&self, name: &str) -> Option<f64> {
        Some(match name {
            "lost_pct" => self.lost_pct,
            "quiet_lost_pct" => self.quiet_lost_pct,
            "offered_mbit" => self.offered_mbit,
            "rate_share" => self.rate_share,
            "jain" => self.jain,
            "jain_all" => self.jain_all,
            "reordered" => self.reordered as f64,
            "p50_ms" => self.p50_ms,
            "p99_ms" => self.p99_ms,
            "max_ms" => self.max_ms,
            "wakes" => self.wakes as f64,
            "empty_wakes" => self.empty_wakes as f64,
            "repeated_wakes" => self.repeated_wakes as f64,
            "redundant_kicks" => self.kicks.saturating_sub(self.parks) as f64,
            "standing_bytes_max" => self.standing_bytes_max as f64,
            "delivered" => self.delivered as f64,
            _ => return None,
        })
    }
}

/// The percentage of `sent` that was `dropped`; 0 if nothing was sent.
pub(crate) fn lost_pct<'a>(tallies: impl Iterator<Item = &'a Tally>) -> f64 {
    let (sent, dropped) =
        tallies.fold((0, 0), |(sent, dropped), tally| (sent + tally.sent, dropped + tally.dropped));
    if sent == 0 { 0.0 } else { 100.0 * dropped as f64 / sent as f64 }
}

/// Jain's index of the bytes that `tallies` had delivered.
pub(crate) fn jain_of<'a>(tallies: impl IntoIterator<Item = &'a Tally>) -> f64 {
    jain(&tallies.into_iter().map(|tally| tally.delivered_bytes).collect::<Vec<u64>>())
}

/// Median, 99th percentile and longest of all delays of `tallies`, in milliseconds.
pub(crate) fn delays_ms<'a>(tallies: impl Iterator<Item = &'a Tally>) -> [f64; 3] {
    let mut delays_ns: Vec<u64> = tallies.flat_map(|tally| tally.delays_ns.iter().copied()).collect();
    [500, 990, 1000].map(|permille| quantile_ns(&mut delays_ns, permille) as f64 / 1e6)
}
