//! The tables of IPsec of review D9721: five runs of each system in each case, compared by Student's t ([`crate::ministat`]).
//!
//! Systems are the times at which ESP seals a packet, `esp-direct`, `esp-hybrid` and `esp-deferred`, each also with `-drop`, netisr's rule
//! on the same path. The sealed packets are 2,000 flows of UDP, in one tunnel, that a router sends there ([`run`]).
//!
//! | case | |
//! |---|---|
//! | `null-64`, `gcm-64`, `gcm-1420` | no encryption or AES-128-GCM, smallest packets or of 1,420 bytes, at 1.5 times the load that `esp-direct` carries |
//! | `null-64-long` | with a queue 32 times longer |
//! | `null-64-271` | at 2.71 times that load, as published |
//! | `null-64-one-core`, `null-64-priority` | the worker that receives and the one that seals on one core; and the one that seals goes before the other |
//! | `null-64-maxthreads-1`, `-4` | so many workers, and as many generators; one defers to itself |
//! | `nested-1`, `nested-16` | so many tunnels, one in the other, for the stack |
//!
//! - `kpps`: packets that left sealed / time to the last of them; median of the runs.
//! - `diff_pct` with `diff_ci_pct`: how the mean of kpps differs, at a confidence of 95 %: of a long queue from the same system with the
//!   short one, otherwise from sealing at once under the same rule.
//! - `near_diff_pct` with `near_diff_ci_pct`: the mean difference of the two runs of a repeat, of the repeats in which the cores of both were
//!   near each other before and after ([`crate::machine::NEAR_NS_MAX`]).
//! - `reordered`: packets whose sequence number was not due when they left.
//! - `p50_us`, `p99_us`: from the poll that brought a packet until it left, all runs together.
//! - `stack_bytes`: how deep a pass goes; with 16 tunnels it may be no deeper than with one.

pub(super) mod case;
mod compare;
mod run;

use std::thread;
use std::time::Duration;

use anyhow::{Result, ensure};
use weir_core::dispatch::protocol::Mode;
use weir_ipsec::algorithm::Algorithm;

use super::{Options, REST_SHARE};
use crate::interrupt;
use crate::progress::Steps;
use crate::report::Row;
use crate::turns;
pub use case::{EspCase, EspSystem};
use compare::Results;
use run::EspOutcome;

/// The number of runs of each row, unless said otherwise: as in the review.
pub(super) const RUNS: usize = 5;
/// Runs that find the load that sealing at once carries: the highest counts, as disturbance only ever lowers it.
const CAPACITY_RUNS: usize = 3;

/// A system in a case, which have a row.
pub(super) type Pair = (EspSystem, EspCase);

/// The pairs that have a row, case by case.
fn pairs(options: &Options) -> Vec<Pair> {
    let of_case = |case: &EspCase| {
        let case = *case;
        let systems = options.esp_systems.iter().filter(move |system| !case.is_nested() || !system.drops);
        systems.map(move |system| (*system, case)).collect::<Vec<_>>()
    };
    options.esp_cases.iter().flat_map(of_case).collect()
}

/// The cipher, size and tunnels of the packets that are sealed, which decide how many a core carries.
type Sealed = (Algorithm, u16, usize);

fn sealed(case: &EspCase) -> Sealed {
    (case.algorithm, case.size_bytes, case.tunnels)
}

/// All kinds of sealed packets, each once, with a case of it.
fn kinds(pairs: &[Pair]) -> Vec<EspCase> {
    let mut kinds: Vec<EspCase> = Vec::new();
    for (_, case) in pairs {
        if !kinds.iter().any(|other| sealed(other) == sealed(case)) {
            kinds.push(*case);
        }
    }
    kinds
}

/// The number of steps of the rows.
pub(super) fn steps(options: &Options) -> usize {
    let pairs = pairs(options);
    kinds(&pairs).len() + (options.rounds + 1) * pairs.len()
}

/// The rows, in [`steps`] steps from `first`, and the text that is printed below them.
pub(super) fn rows(
    options: &Options,
    cores: [usize; 2],
    first: usize,
    steps: &mut Steps<'_>,
) -> Result<(Vec<Row>, String)> {
    let pairs = pairs(options);
    let duration_ns = (options.seconds / options.rounds as f64 * 1e9) as u64;
    let mut step = first;
    let mut begin = |name: &str| {
        steps.begin(step, name);
        step += 1;
        interrupt::check()
    };
    let mut capacities = Vec::new();
    for case in kinds(&pairs) {
        begin(&format!("{}, capacity", case.name))?;
        capacities.push((sealed(&case), capacity(&case, duration_ns, cores)?));
    }
    let mut outcomes: Vec<Vec<EspOutcome>> = vec![Vec::new(); pairs.len()];
    for index in turns::order(options.rounds, pairs.len()) {
        let (system, case) = &pairs[index];
        begin(&format!("{} {}", system.name(), case.name))?;
        let carried =
            capacities.iter().find(|(kind, _)| *kind == sealed(case)).map_or(0.0, |(_, rate)| *rate);
        let packets_per_s = Some((carried * case.load_pct / 100.0).ceil() as u64);
        outcomes[index].push(run::run(*system, case, packets_per_s, duration_ns, cores)?);
        // The machine rests as between the other runs of this lab.
        thread::sleep(Duration::from_nanos(duration_ns / REST_SHARE));
    }
    let mut stacks = Vec::new();
    for (system, case) in &pairs {
        begin(&format!("{} {}, stack", system.name(), case.name))?;
        stacks.push(run::stack_bytes(*system, case)?);
    }
    let results = Results { pairs: &pairs, outcomes: &outcomes, stacks: &stacks };
    Ok(((0..pairs.len()).map(|index| results.row(index)).collect(), results.appendix()))
}

/// The packets a second that a core carries when packets are sealed at once.
fn capacity(case: &EspCase, duration_ns: u64, cores: [usize; 2]) -> Result<f64> {
    let system = EspSystem { mode: Mode::Direct, drops: false };
    let case = EspCase { seating: case::Seating::Threads(1), ..*case };
    let mut highest = 0f64;
    for _ in 0..CAPACITY_RUNS {
        let outcome = run::run(system, &case, None, duration_ns, cores)?;
        highest = highest.max(outcome.sealed as f64 / outcome.seconds);
    }
    ensure!(highest > 0.0, "nothing was sealed");
    Ok(highest)
}
