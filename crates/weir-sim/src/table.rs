//! The comparison of `weir lab qdisc --sim`: the kernel's TBF, the RFC and Weir, with 2 to 64 clients, in one run.
//!
//! The published cases have their figures beside ours. Beside the clients, in every row, runs a quiet sender of a datagram
//! of 56 bytes every 10 ms, a ping, whose delays are the row's; it is not in the losses.
//!
//! Weir's limit is a time, 5 ms; the other systems' is the case's size.

use weir_core::shaper::tbf::Limit;

use crate::{
    machine::{RunError, run},
    scenario::{Group, Scenario, System},
    seed::{FIGURES, Lost},
    sender::Program,
};

/// One line of the table.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// `none`, `rfc` or `weir`.
    pub system: &'static str,
    /// The number of clients that flood, and TBF's limit if it is not the published 200k: `3`, `3 limit 300k`.
    pub case: String,
    /// The number of clients that flood.
    pub clients: usize,
    /// The loss of the clients.
    pub lost_pct: f64,
    /// The loss that was published for this case.
    pub seed_lost_pct: Option<Lost>,
    /// The bytes that left, as a share of the rate.
    pub rate_share: f64,
    /// The Jain index of the clients' shares.
    pub jain: f64,
    /// Packets out of order.
    pub reordered: u64,
    /// Median delay of the quiet sender's datagrams that arrived.
    pub p50_ms: f64,
    /// The 99th percentile.
    pub p99_ms: f64,
    /// Wakes after which the woken client sent nothing.
    pub empty_wakes: u64,
}

/// The numbers of clients in the table.
const CLIENTS: [usize; 5] = [2, 3, 8, 16, 64];
const TIME_NS: u64 = 10_000_000_000;
const QUIET: Program = Program::Quiet { payload_bytes: 56, interval_ns: 10_000_000 };

/// A published client: `iperf -u -b 1G`.
pub const CLIENT: Program = Program::Flood { payload_bytes: 1470, interval_ns: 11_760 };

/// Runs the whole comparison, ten virtual seconds for each row; a few real ones in all.
pub fn qdisc_table(seed: u64) -> Result<Vec<Row>, RunError> {
    let mut rows = Vec::new();
    for system in [System::None, System::Rfc, System::Weir] {
        for clients in CLIENTS {
            rows.push(row(system, clients, 200 << 10, seed)?);
        }
    }
    for figure in FIGURES.iter().filter(|figure| figure.limit_bytes != 200 << 10) {
        rows.push(row(system_of(figure.rfc), figure.clients, figure.limit_bytes, seed)?);
    }
    Ok(rows)
}

fn system_of(rfc: bool) -> System {
    if rfc { System::Rfc } else { System::None }
}

fn row(system: System, clients: usize, limit_bytes: u64, seed: u64) -> Result<Row, RunError> {
    let limit = if system == System::Weir { Limit::TimeNs(5_000_000) } else { Limit::Bytes(limit_bytes) };
    let scenario = Scenario {
        system,
        limit,
        time_ns: TIME_NS,
        groups: vec![Group::new(clients, CLIENT), Group::new(1, QUIET)],
        ..Scenario::default()
    };
    let report = run(&scenario, seed)?;
    let published = FIGURES.iter().find(|figure| {
        system != System::Weir
            && system_of(figure.rfc) == system
            && figure.clients == clients
            && figure.limit_bytes == limit_bytes
    });
    Ok(Row {
        system: system.name(),
        case: match limit_bytes >> 10 {
            200 => clients.to_string(),
            limit_kb => format!("{clients} limit {limit_kb}k"),
        },
        clients,
        lost_pct: report.lost_pct,
        seed_lost_pct: published.map(|figure| figure.lost_pct),
        rate_share: report.rate_share,
        jain: report.jain,
        reordered: report.reordered,
        p50_ms: report.p50_ms,
        p99_ms: report.p99_ms,
        empty_wakes: report.empty_wakes,
    })
}
