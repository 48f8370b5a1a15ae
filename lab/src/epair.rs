//! `weir lab epair`: packets handed from one thread to another, by the historical designs of FreeBSD's epair, by today's
//! channels, and by Weir.
//!
//! | case | load |
//! |---|---|
//! | `handoff` | one transmitter that always has packets, one worker |
//! | `fairness` | the same, and the worker feeds what it takes to a second link of its own: the published chain of two epairs. Of Weir, two links that do not know of each other, one saturated from another worker, the other from this one |
//! | `testbed-1` | Weir alone: generator, bridge, epair, router, epair, bridge, sink on one worker |
//! | `testbed-2` | the same on two threads: generator and first bridge on one, the rest on the other |
//! | `wakes-10k`, `wakes-100k`, `wakes-1m` | packets at random times, so many a second |
//!
//! - `mpps`: packets that left the last link / time; median of the repeats, `mpps_spread_pct` their interquartile range in
//!   percent of it.
//! - `wait_*`: the time that the worker waited while work was there (see `drive`), of all repeats together.
//! - `wakes_per_million`: times the worker slept and was woken, for each million packets; median of the repeats.
//! - `redundant_kicks_pct` = 100 x kicks that met a worker awake / kicks.
//! - `cpu_mpps`: packets for each second of processor time of the busiest thread, spinning included; other programs are not in it.
//! - `second_link_share` = packets that left the second link / packets that left either; half is fair.
//! - `lost`, `reordered`: sums over the repeats. Weir may do neither: its row fails if it does.
//!
//! The repeats of a case go through the systems forwards and backwards in turn (ABBA), so that a slow drift of the machine falls
//! on all alike.
//!
//! Source: FreeBSD review D38843.
//! Limits: two threads. Everything else that the machine does meanwhile is in every figure.

mod bed;
mod crossbeam;
mod design;
mod drive;
pub mod histogram;
mod mutex_drain;
mod mutex_flush;
mod path;
mod rtrb;
mod task_queue;
mod tokio;
mod two_ring;
mod weir;

use std::time::Duration;

use anyhow::Result;

use crate::interrupt;
use crate::machine::Machine;
use crate::progress::{Progress, Steps};
use crate::report::{Field, Plot, Report, Row, Scale, Value};
use crate::turns;
use drive::{Load, Outcome, Plan};
use histogram::Histogram;

const FIELDS: &[Field] = &[
    Field { name: "mpps", heading: "packets", unit: "M/s", decimals: 3 },
    Field { name: "mpps_spread_pct", heading: "spread", unit: "%", decimals: 0 },
    Field { name: "cpu_mpps", heading: "of CPU time", unit: "M/s", decimals: 3 },
    Field { name: "seed_mpps", heading: "published", unit: "M/s", decimals: 3 },
    Field { name: "wait_hist", heading: "waited", unit: "ns", decimals: 0 },
    Field { name: "wait_p50_ns", heading: "wait p50", unit: "ns", decimals: 0 },
    Field { name: "wait_p999_ns", heading: "p99.9", unit: "ns", decimals: 0 },
    Field { name: "wait_max_ns", heading: "longest", unit: "ns", decimals: 0 },
    Field { name: "wakes_per_million", heading: "wakes", unit: "per M", decimals: 0 },
    Field { name: "redundant_kicks_pct", heading: "redundant kicks", unit: "%", decimals: 2 },
    Field { name: "second_link_share", heading: "second link", unit: "share", decimals: 3 },
    Field { name: "lost", heading: "lost", unit: "packets", decimals: 0 },
    Field { name: "reordered", heading: "reordered", unit: "packets", decimals: 0 },
];

const PLOTS: &[Plot] = &[
    Plot {
        field: "mpps",
        title: "Million packets a second",
        scale: Scale::Log,
        reference: Some("seed_mpps"),
    },
    Plot {
        field: "wait_hist",
        title: "How long the worker waited while work was there, ns",
        scale: Scale::Log,
        reference: Some("seed_wait_hist"),
    },
    Plot {
        field: "wait_p999_ns",
        title: "The same, 99.9th percentile, ns",
        scale: Scale::Log,
        reference: None,
    },
    Plot {
        field: "second_link_share",
        title: "Share of the worker that the second link keeps",
        scale: Scale::Linear,
        reference: None,
    },
    Plot {
        field: "wakes_per_million",
        title: "Wake-ups for each million packets",
        scale: Scale::Log,
        reference: None,
    },
];

const NOTES: &[&str] = &[
    "two-ring is FreeBSD's epair before the review, mutex-drain the review's first revision, mutex-flush what landed; \
     crossbeam, rtrb (with a parked thread) and tokio are today's channels.",
    "The review's bed of two epairs, two bridges and a router did 889 Kpps with two-ring, 42 Kpps with mutex-drain, which \
     starved its second epair, and about 1.016 Mpps with mutex-flush, on another machine and with the kernel's work for each \
     packet: that is the published column. Here testbed-2 is that bed; compare the second link's share, and what was lost.",
    "The published waits are those of the epair thread between two runs, over many short connections on a machine of 32 cores, \
     with two-ring before and with mutex-flush after.",
    "A wait is counted when a worker that had found nothing finds something, from the moment the first packet it takes was \
     offered. A worker that never finds its links empty has none.",
    "A full link holds the transmitter. A worker cannot wait for itself: the historical designs drop what does not fit the \
     second link, as published; the others take no more than it has room for.",
    "Wake-ups are what the kernel counts for the worker's thread. A dash: the system cannot tell.",
    "At a given rate, packets that fall due while the machine keeps the transmitter off its core go together afterwards: on a \
     busy machine fewer wake-ups are needed than on a quiet one, by every system alike.",
    "Outside the beds a packet is its number and a time; no body is moved. In testbed-2 all systems generate, bridge and route \
     the same packets by the same code, but not only the hand-off differs: the others hand over a number, copy the packet's cache \
     lines into a slot under an uncontended lock and out again, and work in bursts of 32; Weir hands over the frame itself, in bursts of 64.",
    "Weir's fairness is the harder case: neither link feeds the other, and the first is saturated from another worker.",
];

/// The published histogram before the review: `two-ring`.
const SEED_TWO_RING: &[[u64; 2]] = &[
    [512, 8586],
    [1024, 22289],
    [2048, 74280],
    [4096, 427404],
    [8192, 454310],
    [16384, 182130],
    [32768, 10542],
    [65536, 16049],
    [131072, 29988],
    [262144, 57646],
    [524288, 226848],
    [1048576, 43],
    [8388608, 1],
    [33554432, 60],
    [67108864, 1],
];

/// The published histogram with the review: `mutex-flush`.
const SEED_MUTEX_FLUSH: &[[u64; 2]] = &[
    [512, 4484],
    [1024, 50911],
    [2048, 204025],
    [4096, 1351324],
    [8192, 1711604],
    [16384, 744126],
    [32768, 40140],
    [65536, 51524],
    [131072, 82192],
    [262144, 153183],
    [524288, 896605],
    [1048576, 5],
];

/// A way of handing packets over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum System {
    /// FreeBSD's epair before the review.
    TwoRing,
    /// The first revision of the review.
    MutexDrain,
    /// The review as it landed.
    MutexFlush,
    /// `crossbeam-channel`.
    Crossbeam,
    /// `rtrb` and a parked thread.
    Rtrb,
    /// `tokio`'s channel.
    Tokio,
    /// `weir-ring`.
    Weir,
}

impl System {
    /// All of them, in the order they take turns.
    pub const ALL: [System; 7] = [
        System::TwoRing,
        System::MutexDrain,
        System::MutexFlush,
        System::Crossbeam,
        System::Rtrb,
        System::Tokio,
        System::Weir,
    ];

    /// The name in reports and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            System::TwoRing => "two-ring",
            System::MutexDrain => "mutex-drain",
            System::MutexFlush => "mutex-flush",
            System::Crossbeam => "crossbeam",
            System::Rtrb => "rtrb",
            System::Tokio => "tokio",
            System::Weir => "weir",
        }
    }

    fn run(self, plan: &Plan) -> Result<Outcome> {
        if self == System::Weir && plan.load != Load::Numbers {
            return path::run_bed(plan);
        }
        match self {
            System::TwoRing => drive::run::<task_queue::Tasks<two_ring::TwoRing>>(plan),
            System::MutexDrain => drive::run::<task_queue::Tasks<mutex_drain::MutexDrain>>(plan),
            System::MutexFlush => drive::run::<task_queue::Tasks<mutex_flush::MutexFlush>>(plan),
            System::Crossbeam => drive::run::<crossbeam::Crossbeam>(plan),
            System::Rtrb => drive::run::<rtrb::Rtrb>(plan),
            System::Tokio => drive::run::<tokio::Tokio>(plan),
            System::Weir => drive::run::<weir::Weir>(plan),
        }
    }

    /// The rate of the published machine with its bed, in millions of packets a second.
    fn seed_mpps(self) -> Option<f64> {
        match self {
            System::TwoRing => Some(0.889_672),
            System::MutexDrain => Some(0.042_635),
            System::MutexFlush => Some(1.016),
            _ => None,
        }
    }

    fn seed_waits(self) -> Option<&'static [[u64; 2]]> {
        match self {
            System::TwoRing => Some(SEED_TWO_RING),
            System::MutexFlush => Some(SEED_MUTEX_FLUSH),
            _ => None,
        }
    }
}

/// A load: its name, the links of the chain, the packets that go through them, packets a second if they are limited.
struct Case {
    name: &'static str,
    links: usize,
    load: Load,
    packets_per_s: Option<f64>,
}

const CASES: [Case; 7] = [
    Case { name: "handoff", links: 1, load: Load::Numbers, packets_per_s: None },
    Case { name: "testbed-1", links: 2, load: Load::TestBed(1), packets_per_s: None },
    Case { name: "testbed-2", links: 2, load: Load::TestBed(2), packets_per_s: None },
    Case { name: "fairness", links: 2, load: Load::TwoLinks, packets_per_s: None },
    Case { name: "wakes-10k", links: 1, load: Load::Numbers, packets_per_s: Some(10e3) },
    Case { name: "wakes-100k", links: 1, load: Load::Numbers, packets_per_s: Some(100e3) },
    Case { name: "wakes-1m", links: 1, load: Load::Numbers, packets_per_s: Some(1e6) },
];

impl Case {
    /// Returns whether a system runs the case: the designs need two threads.
    fn is_for(&self, system: System) -> bool {
        self.load != Load::TestBed(1) || system == System::Weir
    }
}

/// The options of a run.
#[derive(Debug, Clone)]
pub struct Options {
    /// The time that each system runs in each case, all repeats together, in seconds.
    pub seconds: f64,
    /// The number of runs that this time is cut into.
    pub repeats: usize,
    /// The systems, in the order they take turns.
    pub systems: Vec<System>,
}

impl Default for Options {
    /// Every system, in under a minute.
    fn default() -> Options {
        Options { seconds: 1.2, repeats: 7, systems: System::ALL.to_vec() }
    }
}

/// Runs the lab.
pub fn run(options: &Options, progress: &mut dyn Progress) -> Result<Report> {
    turns::check(options.seconds, options.repeats)?;
    let cores = turns::two_cores()?;
    let machine = Machine::measure()?;
    let wake_cost_ns = (machine.eventfd_wake_us.unwrap_or_default() * 1000.0) as u64;
    let duration = Duration::from_secs_f64(options.seconds / options.repeats as f64);
    let systems_of = |case: &Case| -> Vec<System> {
        options.systems.iter().copied().filter(|&system| case.is_for(system)).collect()
    };
    let (runs, mut step) = (CASES.iter().map(|case| systems_of(case).len()).sum::<usize>(), 0);
    let mut steps = Steps::new(runs * options.repeats, progress);
    let mut rows = Vec::new();
    for case in &CASES {
        let plan = Plan {
            links: case.links,
            load: case.load,
            packets_per_s: case.packets_per_s,
            duration,
            cores,
            wake_cost_ns,
        };
        let systems = systems_of(case);
        let mut outcomes = vec![Vec::new(); systems.len()];
        for index in turns::order(options.repeats, systems.len()) {
            steps.begin(step, case.name);
            outcomes[index].push(systems[index].run(&plan)?);
            step += 1;
            interrupt::check()?;
        }
        rows.extend(systems.iter().zip(outcomes).map(|(system, runs)| row(*system, case, &runs)));
    }
    steps.finish();
    Ok(Report {
        lab: "epair",
        title: "Packets handed from one thread to another",
        case_heading: "case",
        notes: NOTES,
        fields: FIELDS,
        plots: PLOTS,
        machine,
        rows,
        bounds: Vec::new(),
        appendix: String::new(),
    })
}

fn row(system: System, case: &Case, runs: &[Outcome]) -> Row {
    let delivered = |run: &Outcome| run.left[case.links - 1] as f64;
    let mpps = Spread::of(runs, |run| delivered(run) / run.seconds / 1e6);
    let wakes = Spread::of(runs, |run| run.wakes as f64 * 1e6 / delivered(run));
    let mut waits = Histogram::default();
    runs.iter().for_each(|run| waits.merge(&run.waits));
    let kicks: Option<u64> = runs.iter().map(|run| run.counts.kicks).sum();
    let redundant: Option<u64> = runs.iter().map(|run| run.counts.kicks_redundant).sum();
    let redundant_pct = kicks.zip(redundant).map(|(kicks, redundant)| match kicks {
        0 => 0.0,
        _ => 100.0 * redundant as f64 / kicks as f64,
    });
    let cpu = Spread::of(runs, |run| delivered(run) / run.cpu_s / 1e6);
    let second = (case.name == "fairness")
        .then(|| Spread::of(runs, |run| run.left[1] as f64 / (run.left[0] + run.left[1]) as f64).median);
    let (lost, reordered) = (sum(runs, |run| run.lost), sum(runs, |run| run.reordered));
    let mut values: Vec<(&'static str, Value)> = vec![
        ("mpps", mpps.median.into()),
        ("mpps_spread_pct", (100.0 * mpps.range / mpps.median).into()),
        ("cpu_mpps", cpu.median.into()),
        ("wakes_per_million", wakes.median.into()),
        ("redundant_kicks_pct", redundant_pct.into()),
        ("second_link_share", second.into()),
        ("lost", lost.into()),
        ("reordered", reordered.into()),
        ("wait_hist", waits.powers_of_two().into()),
        ("wait_p50_ns", waits.quantile_ns(0.5).into()),
        ("wait_p999_ns", waits.quantile_ns(0.999).into()),
        ("wait_max_ns", waits.max_ns().into()),
    ];
    if case.name == "testbed-2" {
        values.push(("seed_mpps", system.seed_mpps().into()));
    }
    if case.name == "handoff" {
        values.push(("seed_wait_hist", system.seed_waits().map(<[_]>::to_vec).into()));
    }
    if system == System::Weir && lost + reordered > 0 {
        let error =
            format!("{lost} packets lost and {reordered} reordered, of {}", sum(runs, |run| run.sent));
        return Row::failed(system.name(), case.name, values, error);
    }
    Row::new(system.name(), case.name, values)
}

fn sum(runs: &[Outcome], of: impl Fn(&Outcome) -> u64) -> u64 {
    runs.iter().map(of).sum()
}

/// The median of some runs and their interquartile range.
struct Spread {
    median: f64,
    range: f64,
}

impl Spread {
    fn of(runs: &[Outcome], figure: impl Fn(&Outcome) -> f64) -> Spread {
        let mut figures: Vec<f64> = runs.iter().map(figure).collect();
        figures.sort_by(f64::total_cmp);
        let at = |quarter: usize| figures[(figures.len() - 1) * quarter / 4];
        Spread { median: at(2), range: at(3) - at(1) }
    }
}

#[cfg(test)]
mod tests;
