//! Weir's beds: the path itself, with the published bed or two links that have one worker in common.
//!
//! Limits: it counts no waits; its wake-ups are those of all workers.

use anyhow::{Result, ensure};
use weir_path::traffic::generator::Until;
use weir_run::memory::summary::WorkerRow;
use weir_run::testbed::{STAGES, testbed, two_links};

use super::design::Counts;
use super::drive::{Load, Outcome, Plan};

/// Runs the bed of a plan once.
pub fn run_bed(plan: &Plan) -> Result<Outcome> {
    let until = Until::Elapsed(plan.duration.as_nanos() as u64);
    let spec = match plan.load {
        Load::TwoLinks => two_links(until),
        Load::TestBed(workers) => testbed(workers, None, until),
        Load::Numbers => unreachable!("numbers are for the designs"),
    };
    let summary = spec.run(&mut |_, _| true)?;
    ensure!(summary.balances(), "the books do not balance: {summary:?}");
    let seen = summary.sequences();
    let sum = |of: fn(&WorkerRow) -> u64| summary.workers.iter().map(of).sum();
    // Packets that came out of the two links: to the sinks, or of the epairs to the stages behind them.
    let left = match plan.load {
        Load::TwoLinks => [2, 3].map(|sink: usize| summary.delivered[sink].packets),
        _ => [STAGES[1], STAGES[2]].map(|stage| summary.stages[stage].accepted.packets),
    };
    Ok(Outcome {
        sent: summary.account.accepted.packets,
        left: left.to_vec(),
        lost: summary.account.accepted.packets - summary.account.delivered.packets,
        reordered: seen.reordered + seen.duplicated,
        seconds: summary.seconds(),
        wakes: sum(|worker| worker.doorbell.blocks),
        cpu_s: summary.workers.iter().map(|worker| worker.told.cpu_ns).max().unwrap_or(0) as f64 / 1e9,
        counts: Counts {
            dropped: 0,
            kicks: Some(sum(|worker| worker.doorbell.kicks_sent)),
            kicks_redundant: Some(sum(|worker| worker.doorbell.kicks_redundant)),
        },
        ..Outcome::default()
    })
}
