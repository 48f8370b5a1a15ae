//! Weir's beds: the path runtime itself, with the published bed or two links that have one worker in common.
//!
//! The bed on one worker is served directly, on two with deferred dispatch, as the published machine's was.
//! Limits: it counts no waits; its wake-ups are those of all workers.

use anyhow::{Result, ensure};
use weir_core::dispatch::protocol::Mode;
use weir_path::traffic::generator::Until;
use weir_run::path::run::run;
use weir_run::path::testbed::{testbed, two_links};

use super::design::Counts;
use super::drive::{Load, Outcome, Plan};

/// Runs the bed of a plan once.
pub fn run_bed(plan: &Plan) -> Result<Outcome> {
    let until = Until::Elapsed(plan.duration.as_nanos() as u64);
    // The places in the path of the two links that are looked at.
    let (spec, links) = match plan.load {
        Load::TwoLinks => (two_links(until), [0, 1]),
        Load::TestBed(1) => (testbed(1, Mode::Direct, None, until), [1, 2]),
        Load::TestBed(workers) => (testbed(workers, Mode::Deferred, None, until), [1, 2]),
        Load::Numbers => unreachable!("numbers are for the designs"),
    };
    let summary = run(&spec, &mut |_| true)?;
    ensure!(summary.balances(), "the books do not balance: {summary:?}");
    let seen = summary.sequences();
    let sum = |of: fn(&weir_run::path::summary::WorkerSummary) -> u64| summary.workers.iter().map(of).sum();
    Ok(Outcome {
        sent: summary.account.accepted.packets,
        left: links.map(|link| summary.links[link][1]).to_vec(),
        lost: summary.account.accepted.packets - summary.account.delivered.packets,
        reordered: seen.reordered + seen.duplicated,
        seconds: summary.elapsed_ns as f64 / 1e9,
        wakes: sum(|worker| worker.doorbell.blocks),
        cpu_s: summary.workers.iter().map(|worker| worker.cpu_ns).max().unwrap_or(0) as f64 / 1e9,
        counts: Counts {
            dropped: 0,
            kicks: Some(sum(|worker| worker.doorbell.kicks_sent)),
            kicks_redundant: Some(sum(|worker| worker.doorbell.kicks_redundant)),
        },
        ..Outcome::default()
    })
}
