//! The rows of dispatch: each system in each case, in turns, and its figures.

use std::thread;
use std::time::Duration;

use anyhow::{Result, ensure};
use weir_run::memory::WorkerSeat;

use super::case::{self, Case, Place, System};
use super::drive::{self, Outcome, Plan};
use super::{Options, REST_SHARE, RUN_SECONDS};
use crate::cost::Cost;
use crate::epair::histogram::Histogram;
use crate::interrupt;
use crate::progress::Steps;
use crate::report::{Row, Value};
use crate::turns;

/// The queue limit of a `-long` case, over that of the others: 8192 against 256 in review D9721.
pub(super) const LONG: usize = 32;
/// The longest queue that there is memory for.
const QUEUE_PACKETS_MAX: usize = 1 << 17;

/// The machine's part in a run.
struct Bed {
    cores: [usize; 2],
    cost: Cost,
    duration_ns: u64,
}

impl Bed {
    /// Runs a system at so many packets a second, or as many as will go.
    fn run(
        &self,
        options: &Options,
        system: System,
        case: &Case,
        packets_per_s: Option<f64>,
    ) -> Result<Outcome> {
        let configuration = case::configure(&options.settings, system, case, LONG)?;
        let is_shared = case.place == Place::OneCore;
        let seat = |worker: usize| WorkerSeat {
            core: match is_shared {
                // Two threads of one core share it as the scheduler will have it, and neither spins: the other could not run.
                true => Some(self.cores[0]),
                false => configuration.bindthreads.then_some(self.cores[worker]),
            },
            is_realtime: !is_shared,
            is_shared,
        };
        let plan = Plan {
            configuration: &configuration,
            place: case.place,
            packets_per_s: packets_per_s.map(|rate| rate.ceil() as u64),
            drops: system.drops,
            duration_ns: self.duration_ns,
            cost: self.cost,
            seats: (0..configuration.workers).map(seat).collect(),
        };
        let outcome = drive::run(&plan);
        // Real-time threads would otherwise be stopped by the kernel now and then, for all others' sake.
        thread::sleep(Duration::from_nanos(self.duration_ns / REST_SHARE));
        outcome
    }
}

/// The number of turns of each system in each case.
fn repeats(options: &Options) -> usize {
    (options.seconds / RUN_SECONDS).round().max(1.0) as usize
}

/// The number of steps of the rows.
pub(super) fn steps(options: &Options) -> usize {
    let runs = options.cases.len() * options.systems.len();
    if runs == 0 { 0 } else { 1 + repeats(options) * runs }
}

/// Refuses options that cannot be run.
pub(super) fn check(options: &Options) -> Result<()> {
    let (seconds, cost_ns) = (options.seconds, options.cost_ns);
    turns::check(seconds, 1)?;
    ensure!((50..=1_000_000).contains(&cost_ns), "the work costs 50 to 1000000 ns a packet, not {cost_ns}");
    let qlimit = case::queue_limit(&options.settings)?;
    ensure!(
        LONG * qlimit <= QUEUE_PACKETS_MAX,
        "a queue limit of {qlimit} packets: at most {} here, as {LONG} times as many must fit as well",
        QUEUE_PACKETS_MAX / LONG
    );
    Ok(())
}

/// The rows, in [`steps`] steps from the first.
pub(super) fn rows(options: &Options, cores: [usize; 2], steps: &mut Steps<'_>) -> Result<Vec<Row>> {
    let (systems, cases) = (&options.systems, &options.cases);
    let mut outcomes = vec![Vec::new(); cases.len() * systems.len()];
    let runs = outcomes.len();
    if runs == 0 {
        return Ok(Vec::new());
    }
    let repeats = repeats(options);
    let duration_ns = (options.seconds / repeats as f64 * 1e9) as u64;
    let bed = Bed { cores, cost: Cost::of_ns(options.cost_ns), duration_ns };
    steps.begin(0, "capacity");
    let capacity = capacity(options, &bed)?;
    for (step, index) in turns::order(repeats, runs).enumerate() {
        let (case, system) = (&cases[index / systems.len()], systems[index % systems.len()]);
        steps.begin(1 + step, &format!("load {}", case.name));
        let packets_per_s = Some(capacity * case.load_pct / 100.0);
        outcomes[index].push(bed.run(options, system, case, packets_per_s)?);
        interrupt::check()?;
    }
    let results = Results { options, outcomes };
    Ok((0..runs).map(|index| results.row(index)).collect())
}

/// The packets a second that `deferred` can do when senders never stop: the highest of some runs, as disturbance only ever lowers it. More
/// runs while it is less than half of the rate that the work alone would allow.
fn capacity(options: &Options, bed: &Bed) -> Result<f64> {
    let system = System::from_name("deferred").expect("it is one");
    let case: Case = "100".parse().expect("a load");
    let expected = 1e9 / options.cost_ns as f64;
    let mut highest = 0f64;
    for attempt in 0..20 {
        if attempt >= 3 && highest > expected / 2.0 {
            break;
        }
        let outcome = bed.run(options, system, &case, None)?;
        highest = highest.max(outcome.handled as f64 / outcome.seconds);
        interrupt::check()?;
    }
    ensure!(highest > 0.0, "nothing was worked on");
    Ok(highest)
}

pub(super) struct Results<'a> {
    pub options: &'a Options,
    /// Case by case, system by system, the repeats.
    pub outcomes: Vec<Vec<Outcome>>,
}

impl Results<'_> {
    pub fn row(&self, index: usize) -> Row {
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
        let lost = sum(|run| run.lost);
        let forbidden = if system.drops { 0 } else { dropped };
        if lost != 0 || reordered + forbidden > 0 {
            let error =
                format!("of {offered} packets, {lost} lost, {reordered} reordered, {dropped} dropped");
            return Row::failed(&system.name(), &case.name, values, error);
        }
        Row::new(&system.name(), &case.name, values)
    }

    /// The rate of hybrid beside the better of the two modes that it chooses between, in percent.
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

    /// The rate of a worker beside another one, in percent of that of a worker alone.
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

    /// The rows of the same system, one for each case.
    fn sames(&self, index: usize) -> impl Iterator<Item = usize> + use<> {
        let systems = self.options.systems.len();
        (index % systems..self.outcomes.len()).step_by(systems)
    }

    /// The throughput of this by that of the other in the same repeat; median.
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
