//! `weir lab netisr`: now or later, and what happens to a feeder that is faster than the work.
//!
//! One thread receives, another works, each on a core of its own, as netisr's thread did for IPsec. The work is of adjustable
//! cost and stands in for IPsec's. The systems are the modes of `esp` ([`weir_core::dispatch`]): `direct` works on the receiver
//! itself, `deferred` hands every packet to the worker its flow has, `hybrid` only those of flows that are not the receiver's
//! own. Each also with `-drop`, netisr's rule: what a queue or the device's ring has no room for is dropped, and nobody is told.
//!
//! | case | load and machine |
//! |---|---|
//! | `1` .. `150` | percent of what `deferred` can do at most, measured first; the work of every flow is worker 1's |
//! | `271` | as published: 1.488 Mpps against the 0.549 Mpps that direct dispatch reached |
//! | `N-long` | the same with a queue limit 32 times longer |
//! | `N-rss` | the flows are dealt to both workers, the receiver being one |
//! | `N-one-core` | receiver and worker share one core |
//! | `1-worker`, `2-workers` | more than can be done; a network card's queue brings each worker the flows of its own |
//!
//! - `kpps`: packets worked on / time to the end of the last one's work; median of the repeats.
//! - Ratios are of kpps in the same repeat, and the median of the repeats: in percent of
//!   `of_best_pct` (hybrid) the better of direct and deferred, `of_peak_pct` the same system in the load where it did most, on
//!   the same cores and steering, `of_short_pct` (`-long`) the same without the long queue, `per_worker_pct` (2-workers) what
//!   one worker does alone.
//! - `dropped`, `reordered`: sums over the repeats; `dropped_pct` of what was sent.
//! - `p50_us`, `p99_us`: from the device's ring to the end of the work, all repeats together.
//! - `held_pct`: of the time, the senders were held. `cpu_pct`: CPU time of both threads, of one core.
//! - `kpps_per_core` = packets worked on / CPU time of both threads: on one core what the worker keeps of it.
//!
//! The threads are real-time, as the path's workers are, so that what else the machine does disturbs them little; on one core
//! they are not, and never spin.
//!
//! Runs are short and every repeat goes through all cases and systems, the next one backwards, so that a drift
//! of the machine falls on all alike.
//!
//! Source: seed `netisr-ipsec` (FreeBSD review D9721).
//! Limits: two threads. What the machine does meanwhile is in every figure.

mod case;
pub(crate) mod credit;
mod drive;
mod plan;
pub(crate) mod sender;
mod threads;
pub(crate) mod work;

use std::thread;
use std::time::Duration;

use anyhow::{Result, ensure};
use weir_ring::memory::FrameMemory;
use weir_ring::pool::Pool;

use crate::epair::histogram::Histogram;
use crate::interrupt;
use crate::machine::Machine;
use crate::progress::{Progress, Steps};
use crate::report::{Field, Plot, Report, Row, Scale, Value};
use crate::turns;
pub use case::{Case, Place, System};
use drive::Outcome;
use plan::Plan;
use work::Cost;

const FIELDS: &[Field] = &[
    Field { name: "kpps", heading: "worked on", unit: "kpps", decimals: 1 },
    Field { name: "seed_kpps", heading: "published", unit: "kpps", decimals: 1 },
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
];

const PLOTS: &[Plot] = &[
    Plot { field: "kpps", title: "Packets worked on, kpps", scale: Scale::Linear, reference: None },
    Plot { field: "dropped_pct", title: "Dropped, % of sent", scale: Scale::Linear, reference: None },
    Plot { field: "p50_us", title: "From ring to done, median, us", scale: Scale::Log, reference: None },
    Plot { field: "p99_us", title: "The same, 99th percentile, us", scale: Scale::Log, reference: None },
    Plot {
        field: "cpu_pct",
        title: "CPU of both threads, % of one core",
        scale: Scale::Linear,
        reference: None,
    },
];

const NOTES: &[&str] = &[
    "The published figures are of another machine and of real IPsec (null encryption, four receiving threads, one netisr thread). \
     Compare ratios: there, deferring cost 22 %, and a queue 32 times longer half of what was left.",
    "Without -drop a full queue holds its feeder: packets wait with their senders, and held is the time that these stood still. \
     Latency begins where a packet enters the device's ring of 512 slots.",
    "In direct mode nothing is queued. What its receiver is too slow for, the device's ring holds or, by the other rule, drops: \
     in the published run so did the network card, uncounted.",
    "On one core a receiver that drops takes as much of the core as the scheduler gives it and works for nothing; one that is \
     held sleeps.",
];

/// The queue limit of a `-long` case, over that of the others: 8192 against 256 in the seed.
const LONG: usize = 32;
/// More frames than twice the longest queue: the ring, bursts under way, and what sits in the pools' magazines.
const FRAMES_BESIDE: usize = 4096;
/// An odd number of cache lines: the first lines of frames then lie in all sets of a cache alike.
const FRAME_BYTES: u32 = 2048 + 64;
/// About half a gibibyte of frames.
const FRAMES_MAX: usize = 1 << 18;
/// How long a run takes, about.
const RUN_SECONDS: f64 = 0.05;
/// After each run the machine is left to others for one part in this many of its time.
const REST_SHARE: u64 = 8;
/// More than any machine can work on.
const FLOOD_PACKETS_PER_S: f64 = 50e6;

/// What to run.
#[derive(Debug, Clone)]
pub struct Options {
    /// How long each system runs in each case, all repeats together.
    pub seconds: f64,
    /// The systems, in the order they take turns.
    pub systems: Vec<System>,
    /// The cases, in the order they take turns.
    pub cases: Vec<Case>,
    /// What the work on a packet costs, in nanoseconds.
    pub cost_ns: u64,
    /// Settings of dispatch and steering, as key and text.
    pub settings: Vec<(String, String)>,
}

impl Default for Options {
    /// Every system and case, in about a minute.
    fn default() -> Options {
        Options {
            seconds: 0.5,
            systems: System::ALL.to_vec(),
            cases: Case::defaults(),
            cost_ns: 1000,
            settings: Vec::new(),
        }
    }
}

/// The machine's part in a run.
struct Bed {
    cores: [usize; 2],
    wake_cost_ns: u64,
    cost: Cost,
    duration_ns: u64,
    pools: Vec<Pool>,
}

impl Bed {
    fn run(&mut self, options: &Options, system: System, case: &Case, packets_per_s: f64) -> Result<Outcome> {
        let configuration = case::configure(&options.settings, system, case, LONG)?;
        // Two threads of one core share it as the scheduler will have it, and neither spins: the other could not run.
        let is_alone = case.place != Place::OneCore;
        let cores = match is_alone {
            true => configuration.bindthreads.then_some(self.cores),
            false => Some([self.cores[0]; 2]),
        };
        let plan = Plan {
            configuration: &configuration,
            packets_per_s,
            ring_drops: system.drops,
            duration_ns: self.duration_ns,
            cost: self.cost,
            cores,
            shares_core: !is_alone,
            wake_cost_ns: if is_alone { self.wake_cost_ns } else { 0 },
        };
        let outcome = match case.place {
            Place::Workers(workers) => {
                drive::run_receivers(&plan, &mut self.pools, workers.min(configuration.workers))
            }
            _ => drive::run(&plan, &mut self.pools),
        };
        // Real-time threads would otherwise be stopped by the kernel now and then, for all others' sake.
        thread::sleep(Duration::from_nanos(self.duration_ns / REST_SHARE));
        outcome
    }
}

/// The same dispatch on 1 to 64 workers in virtual time, and what limits them.
pub fn simulated() -> String {
    weir_sim::scaling::table()
}

/// Says what is wrong with settings, naming the key.
pub fn check(settings: &[(String, String)]) -> Result<()> {
    case::queue_limit(settings).map(|_| ())
}

/// Runs the lab.
pub fn run(options: &Options, progress: &mut dyn Progress) -> Result<Report> {
    let (seconds, cost_ns) = (options.seconds, options.cost_ns);
    turns::check(seconds, 1)?;
    ensure!((50..=1_000_000).contains(&cost_ns), "the work costs 50 to 1000000 ns a packet, not {cost_ns}");
    let repeats = (seconds / RUN_SECONDS).round().max(1.0) as usize;
    let qlimit = case::queue_limit(&options.settings)?;
    let frames = 2 * LONG * qlimit + FRAMES_BESIDE;
    ensure!(
        frames <= FRAMES_MAX,
        "a queue limit of {qlimit} packets: at most {} here, as {LONG} times as many must fit as well",
        (FRAMES_MAX - FRAMES_BESIDE) / (2 * LONG)
    );
    let cores = turns::two_cores()?;
    let machine = Machine::measure()?;
    let mut bed = Bed {
        cores,
        wake_cost_ns: (machine.eventfd_wake_us.unwrap_or_default() * 1000.0) as u64,
        cost: Cost::of_ns(cost_ns),
        duration_ns: (seconds / repeats as f64 * 1e9) as u64,
        pools: Pool::for_workers(FrameMemory::new(frames as u32, FRAME_BYTES)?, 2),
    };
    let (systems, cases) = (&options.systems, &options.cases);
    let mut steps = Steps::new(1 + repeats * cases.len() * systems.len(), progress);
    steps.begin(0, "capacity");
    let capacity = capacity(options, &mut bed)?;
    let mut outcomes = vec![Vec::new(); cases.len() * systems.len()];
    let runs = outcomes.len();
    for (step, index) in turns::order(repeats, runs).enumerate() {
        let (case, system) = (&cases[index / systems.len()], systems[index % systems.len()]);
        steps.begin(1 + step, &format!("load {}", case.name));
        outcomes[index].push(bed.run(options, system, case, capacity * case.load_pct / 100.0)?);
        interrupt::check()?;
    }
    steps.finish();
    let results = Results { options, outcomes };
    let rows = (0..runs).map(|index| results.row(index)).collect();
    Ok(Report {
        lab: "netisr",
        title: "Work now or later, and a feeder that is faster than the work",
        case_heading: "load %",
        notes: NOTES,
        fields: FIELDS,
        plots: PLOTS,
        machine,
        rows,
        bounds: Vec::new(),
    })
}

/// What `deferred` can do when senders never stop: the highest of some runs, as disturbance only ever lowers it. More runs
/// while it is less than half of what the work alone would allow.
fn capacity(options: &Options, bed: &mut Bed) -> Result<f64> {
    let system = System::from_name("deferred").expect("it is one");
    let case: Case = "100".parse().expect("a load");
    let expected = 1e9 / options.cost_ns as f64;
    let mut highest = 0f64;
    for attempt in 0..20 {
        if attempt >= 3 && highest > expected / 2.0 {
            break;
        }
        let outcome = bed.run(options, system, &case, FLOOD_PACKETS_PER_S)?;
        highest = highest.max(outcome.handled as f64 / outcome.seconds);
        interrupt::check()?;
    }
    ensure!(highest > 0.0, "nothing was worked on");
    Ok(highest)
}

struct Results<'a> {
    options: &'a Options,
    /// Case by case, system by system, the repeats.
    outcomes: Vec<Vec<Outcome>>,
}

impl Results<'_> {
    fn row(&self, index: usize) -> Row {
        let Options { systems, cases, .. } = self.options;
        let (case, system) = (&cases[index / systems.len()], systems[index % systems.len()]);
        let runs = &self.outcomes[index];
        let sum = |of: fn(&Outcome) -> u64| runs.iter().map(of).sum::<u64>();
        let (offered, dropped) = (sum(|run| run.offered), sum(|run| run.dropped));
        let reordered = sum(|run| run.reordered);
        let mut latency = Histogram::default();
        runs.iter().for_each(|run| latency.merge(&run.latency));
        let us = |share| latency.quantile_ns(share).map(|ns| ns as f64 / 1000.0);
        let share = |of: fn(&Outcome) -> f64| median(runs.iter().map(|run| 100.0 * of(run) / run.seconds));
        let (seed_kpps, seed_dropped_pct) = case::published(system, case);
        let values: Vec<(&'static str, Value)> = vec![
            ("kpps", median(runs.iter().map(kpps)).into()),
            ("seed_kpps", seed_kpps.into()),
            ("of_best_pct", self.of_best_pct(index).into()),
            ("per_worker_pct", self.per_worker_pct(index).into()),
            ("of_peak_pct", self.of_peak_pct(index).into()),
            ("of_short_pct", self.of_short_pct(index).into()),
            ("dropped", dropped.into()),
            ("dropped_pct", (100.0 * dropped as f64 / offered as f64).into()),
            ("seed_dropped_pct", seed_dropped_pct.into()),
            ("reordered", reordered.into()),
            ("p50_us", us(0.5).into()),
            ("p99_us", us(0.99).into()),
            ("held_pct", share(|run| run.held_seconds).into()),
            ("cpu_pct", share(|run| run.cpu_seconds).into()),
            (
                "kpps_per_core",
                median(runs.iter().map(|run| run.handled as f64 / run.cpu_seconds / 1e3)).into(),
            ),
        ];
        let lost: i64 = runs.iter().map(|run| run.lost).sum();
        let forbidden = if system.drops { 0 } else { dropped };
        if lost != 0 || reordered + forbidden > 0 {
            let error =
                format!("of {offered} packets, {lost} lost, {reordered} reordered, {dropped} dropped");
            return Row::failed(&system.name(), &case.name, values, error);
        }
        Row::new(&system.name(), &case.name, values)
    }

    /// Hybrid beside the better of the two modes that it chooses between.
    fn of_best_pct(&self, index: usize) -> Option<f64> {
        let systems = &self.options.systems;
        let case_start = index - index % systems.len();
        let of = |mode: &str| Some(case_start + systems.iter().position(|system| system.name() == mode)?);
        if Some(index) != of("hybrid") {
            return None;
        }
        let (direct, deferred) = of("direct").zip(of("deferred"))?;
        let best = if self.ratio(direct, deferred) > 1.0 { direct } else { deferred };
        Some(100.0 * self.ratio(index, best))
    }

    /// What a worker does beside another one, of what it does alone.
    fn per_worker_pct(&self, index: usize) -> Option<f64> {
        let alone = self.sames(index).find(|other| self.case(*other).place == Place::Workers(1))?;
        (self.case(index).place == Place::Workers(2)).then(|| 100.0 * self.ratio(index, alone) / 2.0)
    }

    fn of_peak_pct(&self, index: usize) -> f64 {
        let place = self.case(index).place;
        let loads = self.sames(index).filter(|other| {
            let case = self.case(*other);
            case.place == place && !case.is_long
        });
        100.0 * loads.map(|load| self.ratio(index, load)).fold(1.0, f64::min)
    }

    fn of_short_pct(&self, index: usize) -> Option<f64> {
        let long = self.case(index);
        let is_short =
            |case: &Case| !case.is_long && (case.load_pct, case.place) == (long.load_pct, long.place);
        let short = self.sames(index).find(|other| is_short(self.case(*other)))?;
        long.is_long.then(|| 100.0 * self.ratio(index, short))
    }

    fn case(&self, index: usize) -> &Case {
        &self.options.cases[index / self.options.systems.len()]
    }

    /// The same system in every case.
    fn sames(&self, index: usize) -> impl Iterator<Item = usize> + use<> {
        let systems = self.options.systems.len();
        (index % systems..self.outcomes.len()).step_by(systems)
    }

    /// How many times the throughput of the other this has, in the same repeat; median.
    fn ratio(&self, index: usize, other: usize) -> f64 {
        let pairs = self.outcomes[index].iter().zip(&self.outcomes[other]);
        median(pairs.map(|(this, other)| kpps(this) / kpps(other)))
    }
}

fn kpps(run: &Outcome) -> f64 {
    run.handled as f64 / run.seconds / 1000.0
}

fn median(figures: impl Iterator<Item = f64>) -> f64 {
    let mut figures: Vec<f64> = figures.collect();
    figures.sort_by(f64::total_cmp);
    figures[(figures.len() - 1) / 2]
}

#[cfg(test)]
mod tests;
