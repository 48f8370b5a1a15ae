//! `weir lab netisr`: work now or later, and a feeder that is faster than the work.
//!
//! A path in memory ([`weir_run::memory`]): generators, the dispatch stages by which `weir up` deals flows to workers
//! ([`weir_path::dispatch`]), and work of adjustable cost behind them, which stands in for IPsec's. The systems are the modes of `ip`:
//! `direct` works on the receiver itself, `deferred` hands every packet to the worker its flow has, `hybrid` only those of flows that are
//! not the receiver's own. Each also with `-drop`, netisr's rule on the same path: a packet that a queue or the device's ring has no room
//! for is dropped, and nobody is told.
//!
//! | case | load and machine |
//! |---|---|
//! | `1` .. `150` | percent of the most that `deferred` can do, measured first; the work of every flow is worker 1's |
//! | `271` | as published: 1.488 Mpps against the 0.549 Mpps that direct dispatch reached |
//! | `N-long` | the same with a queue limit 32 times longer |
//! | `N-rss` | the flows are dealt to both workers, the receiver being one |
//! | `N-one-core` | receiver and worker share one core |
//! | `1-worker`, `2-workers` | more than they can do; a network card's queue brings each worker the flows of its own |
//!
//! The systems and cases of IPsec itself, which review D9721 measured, are in `netisr/esp.rs`.
//!
//! - `kpps`: packets worked on / time to the end of the last one's work; median of the repeats.
//! - Ratios are of kpps in the same repeat, and the median of the repeats: in percent of
//!   `of_best_pct` (hybrid) the better of direct and deferred, `of_peak_pct` the same system in the load where it did most, on
//!   the same cores and steering, `of_short_pct` (`-long`) the same without the long queue, `per_worker_pct` (2-workers) the
//!   rate of one worker alone.
//! - `dropped`, `reordered`: sums over the repeats; `dropped_pct` of the packets that were sent.
//! - `p50_us`, `p99_us`: from the poll that brought a packet to the end of the work, all repeats together.
//! - `held_pct`: by so much of the time the senders were kept back. `cpu_pct`: CPU time of both threads, of one core.
//! - `kpps_per_core` = packets worked on / CPU time of both threads: on one core the part of it that the worker keeps.
//!
//! The threads are real-time, as the path's workers are, so that other programs disturb them little; on one core they are not, and never
//! spin.
//!
//! Runs are short and every repeat goes through all cases and systems, the next one backwards, so that a drift
//! of the machine falls on all alike.
//!
//! Source: FreeBSD review D9721.
//! Limits: two threads. Everything else that the machine does meanwhile is in every figure. Packets come at even gaps, as a generator of
//! the review's kind sends them; the time in the ring of `-drop` before a packet is polled is in no latency.

mod case;
mod dispatch;
mod drive;
mod esp;
mod work;

use std::str::FromStr;

use anyhow::{Result, ensure};

use crate::machine::Machine;
use crate::progress::{Progress, Steps};
use crate::report::{Field, Plot, Report, Scale};
use crate::turns;
pub use case::{Case, CaseError, Place, System};
pub use esp::{EspCase, EspSystem};

const FIELDS: &[Field] = &[
    Field { name: "kpps", heading: "worked on", unit: "kpps", decimals: 1 },
    Field { name: "seed_kpps", heading: "published", unit: "kpps", decimals: 1 },
    Field { name: "diff_pct", heading: "differs", unit: "%", decimals: 2 },
    Field { name: "diff_ci_pct", heading: "+/-", unit: "%", decimals: 2 },
    Field { name: "near_diff_pct", heading: "near", unit: "%", decimals: 2 },
    Field { name: "near_diff_ci_pct", heading: "+/-", unit: "%", decimals: 2 },
    Field { name: "seed_diff_pct", heading: "published", unit: "%", decimals: 2 },
    Field { name: "seed_diff_ci_pct", heading: "+/-", unit: "%", decimals: 2 },
    Field { name: "of_best_pct", heading: "of best", unit: "%", decimals: 1 },
    Field { name: "per_worker_pct", heading: "per worker", unit: "%", decimals: 1 },
    Field { name: "of_peak_pct", heading: "of peak", unit: "%", decimals: 1 },
    Field { name: "of_short_pct", heading: "of short", unit: "%", decimals: 1 },
    Field { name: "dropped", heading: "dropped", unit: "packets", decimals: 0 },
    Field { name: "dropped_pct", heading: "dropped", unit: "%", decimals: 1 },
    Field { name: "seed_dropped_pct", heading: "published", unit: "%", decimals: 1 },
    Field { name: "reordered", heading: "reordered", unit: "packets", decimals: 0 },
    Field { name: "p50_us", heading: "p50", unit: "us", decimals: 1 },
    Field { name: "p99_us", heading: "p99", unit: "us", decimals: 1 },
    Field { name: "held_pct", heading: "held", unit: "%", decimals: 1 },
    Field { name: "cpu_pct", heading: "CPU", unit: "% of one", decimals: 0 },
    Field { name: "kpps_per_core", heading: "for its CPU", unit: "kpps/core", decimals: 1 },
    Field { name: "stack_bytes", heading: "stack", unit: "bytes", decimals: 0 },
];

const PLOTS: &[Plot] = &[
    Plot { field: "kpps", title: "Packets worked on, kpps", scale: Scale::Linear, reference: None },
    Plot { field: "dropped_pct", title: "Dropped, % of sent", scale: Scale::Linear, reference: None },
    Plot { field: "p50_us", title: "From poll to done, median, us", scale: Scale::Log, reference: None },
    Plot { field: "p99_us", title: "The same, 99th percentile, us", scale: Scale::Log, reference: None },
    Plot {
        field: "cpu_pct",
        title: "CPU of all threads, % of one core",
        scale: Scale::Linear,
        reference: None,
    },
];

const NOTES: &[&str] = &[
    "The published figures are of another machine and of real IPsec (null encryption, four receiving threads, one netisr thread). \
     Compare ratios: there, deferring cost 22 %, and a queue 32 times longer half of what was left.",
    "Without -drop a full queue holds its feeder: packets wait with their senders, and held is by how much these were kept back. \
     Latency begins with the poll that takes a packet in.",
    "In direct mode nothing is queued. What its receiver is too slow for, the sender keeps or, by the other rule, the device's ring of 512 \
     slots drops: in the published run so did the network card, uncounted.",
    "The rows of esp seal real packets on the plan of a gateway, and differ from esp-direct under the same rule, or a long queue from the short \
     one, in the mean of the runs by what Student's t says at 95 %. Published is the same of the review: use_netisr=1 against 0, 8192 against 256.",
    "Near is the mean difference of the two runs of a repeat, of those repeats before and after whose runs a cache line went from one core to \
     the other and back in 160 ns or less, as between cores that share a cache; by what Student's t says of pairs at 95 %. A host may move \
     a virtual machine's processors further apart, and every packet that is deferred changes cores.",
    "On one core a receiver that drops takes as much of the core as the scheduler gives it and works for nothing; one that is \
     held sleeps.",
];

/// The time of a run, about, in seconds.
const RUN_SECONDS: f64 = 0.05;
/// After each run the machine is left to others for one part in this many of its time.
const REST_SHARE: u64 = 8;

/// The fewest runs of which a spread says something.
const ROUNDS_MIN: usize = 3;

/// The options of a run.
#[derive(Debug, Clone)]
pub struct Options {
    /// The time that each system runs in each case, all repeats together, in seconds.
    pub seconds: f64,
    /// The systems, in the order they take turns.
    pub systems: Vec<System>,
    /// The cases, in the order they take turns.
    pub cases: Vec<Case>,
    /// The systems of IPsec.
    pub esp_systems: Vec<EspSystem>,
    /// Their cases.
    pub esp_cases: Vec<EspCase>,
    /// The number of runs of each system in each case, 3 or more.
    pub rounds: usize,
    /// The cost of the work on a packet, in nanoseconds.
    pub cost_ns: u64,
    /// Settings of dispatch and steering, as key and text.
    pub settings: Vec<(String, String)>,
}

impl Default for Options {
    /// Every system and case, in about three minutes.
    fn default() -> Options {
        Options {
            seconds: 0.5,
            systems: System::ALL.to_vec(),
            cases: Case::defaults(),
            esp_systems: EspSystem::ALL.to_vec(),
            esp_cases: EspCase::ALL.to_vec(),
            rounds: esp::RUNS,
            cost_ns: 1000,
            settings: Vec::new(),
        }
    }
}

/// A case as it is named on the command line.
#[derive(Debug, Clone)]
pub enum NamedCase {
    /// A case of dispatch.
    Dispatch(Case),
    /// A case of IPsec.
    Esp(EspCase),
}

impl FromStr for NamedCase {
    type Err = CaseError;

    fn from_str(name: &str) -> Result<NamedCase, CaseError> {
        match EspCase::from_name(name) {
            Some(case) => Ok(NamedCase::Esp(case)),
            None => name.parse().map(NamedCase::Dispatch),
        }
    }
}

/// A system as it is named on the command line.
#[derive(Debug, Clone, Copy)]
pub enum NamedSystem {
    /// A system of dispatch.
    Dispatch(System),
    /// A system of IPsec.
    Esp(EspSystem),
}

impl NamedSystem {
    /// All of them, with their names.
    pub fn all() -> Vec<(String, NamedSystem)> {
        let dispatch = System::ALL.map(|system| (system.name(), NamedSystem::Dispatch(system)));
        let esp = EspSystem::ALL.map(|system| (system.name(), NamedSystem::Esp(system)));
        dispatch.into_iter().chain(esp).collect()
    }
}

impl Options {
    /// The options with these systems alone, and none of the others.
    #[must_use]
    pub fn with_systems(mut self, systems: &[NamedSystem]) -> Options {
        (self.systems, self.esp_systems) = (Vec::new(), Vec::new());
        for system in systems {
            match *system {
                NamedSystem::Dispatch(system) => self.systems.push(system),
                NamedSystem::Esp(system) => self.esp_systems.push(system),
            }
        }
        self
    }

    /// The options with these cases alone.
    #[must_use]
    pub fn with_cases(mut self, cases: &[NamedCase]) -> Options {
        (self.cases, self.esp_cases) = (Vec::new(), Vec::new());
        for case in cases {
            match case {
                NamedCase::Dispatch(case) => self.cases.push(case.clone()),
                NamedCase::Esp(case) => self.esp_cases.push(*case),
            }
        }
        self
    }
}

/// Tells a fault of settings, naming the key.
pub fn check(settings: &[(String, String)]) -> Result<()> {
    case::queue_limit(settings).map(|_| ())
}

/// Runs the lab.
pub fn run(options: &Options, progress: &mut dyn Progress) -> Result<Report> {
    dispatch::check(options)?;
    ensure!(
        options.rounds >= ROUNDS_MIN,
        "{} rounds: give {ROUNDS_MIN} or more, for there is a spread",
        options.rounds
    );
    let cores = turns::two_cores()?;
    let machine = Machine::measure()?;
    let of_dispatch = dispatch::steps(options);
    ensure!(of_dispatch + esp::steps(options) > 0, "none of these systems has any of these cases");
    let mut steps = Steps::new(of_dispatch + esp::steps(options), progress);
    let mut rows = dispatch::rows(options, cores, &mut steps)?;
    let (of_esp, appendix) = esp::rows(options, cores, of_dispatch, &mut steps)?;
    rows.extend(of_esp);
    steps.finish();
    Ok(Report {
        lab: "netisr",
        title: "Work now or later, and a feeder that is faster than the work",
        case_heading: "case",
        notes: NOTES,
        fields: FIELDS,
        plots: PLOTS,
        machine,
        rows,
        bounds: Vec::new(),
        appendix,
    })
}

#[cfg(test)]
mod tests;
