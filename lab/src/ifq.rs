//! `weir lab ifq`: two inputs forwarded to one output device, and the fight for it.
//!
//! | system | design |
//! |---|---|
//! | `locked` | one lock around the device and its queue; the core that has a packet starts the device |
//! | `spin-dispatch` | the published patch: a queue with a spin lock of its own, the device started on its own core |
//! | `weir` | a plan of the path: the inputs and the device on a bridge, one owner for the device, one wake-up for a batch |
//!
//! | case | load |
//! |---|---|
//! | `2x1` | both inputs always have packets |
//! | `2x1-20k`, `2x1-200k` | so many packets a second by each input, at random times |
//!
//! One core has an input, the other the second input and the device's interrupts. Forwarding costs [`FORWARD_NS`] a packet; the
//! device costs the same for all (`design`).
//!
//! - `kpps`: packets that the device sent / time; median of the repeats. `least_pct`: the part of it from the input that had less.
//! - `enter`, `try`, `tryfail`, `sleep`, `kicks_sent`, `kicks_saved`: by the published names, for each million packets sent; the
//!   head of each design says what it counts as each. `tryfail_pct` of the tries, `sleep_pct` of the entries.
//! - `lost`, `reordered`: sums over the repeats. Weir may do neither: its row fails if it does.
//!
//! Source: S. Ziehau, "altq spinlock and if_start dispatch", DragonFly kernel list, 2008.
//! Limits: the device is in memory. Everything else that the machine does meanwhile is in every figure.

mod design;
mod drive;
mod locked;
mod port;
mod sender;
mod spin_dispatch;
mod weir;

use std::thread;
use std::time::Duration;

use anyhow::Result;

use crate::cost::Cost;
use crate::interrupt;
use crate::machine::Machine;
use crate::progress::{Progress, Steps};
use crate::report::{Field, Plot, Report, Row, Scale, Value};
use crate::turns;
use design::{Costs, Counts};
use drive::{Outcome, Plan};

const FIELDS: &[Field] = &[
    Field { name: "kpps", heading: "sent", unit: "kpps", decimals: 0 },
    Field { name: "least_pct", heading: "least input", unit: "%", decimals: 0 },
    Field { name: "enter", heading: "enter", unit: "per M", decimals: 0 },
    Field { name: "try", heading: "try", unit: "per M", decimals: 0 },
    Field { name: "tryfail", heading: "tryfail", unit: "per M", decimals: 0 },
    Field { name: "tryfail_pct", heading: "of tries", unit: "%", decimals: 1 },
    Field { name: "seed_tryfail_pct", heading: "published", unit: "%", decimals: 1 },
    Field { name: "sleep", heading: "sleep", unit: "per M", decimals: 0 },
    Field { name: "sleep_pct", heading: "of entries", unit: "%", decimals: 1 },
    Field { name: "seed_sleep_pct", heading: "published", unit: "%", decimals: 1 },
    Field { name: "kicks_sent", heading: "kicks sent", unit: "per M", decimals: 0 },
    Field { name: "kicks_saved", heading: "kicks saved", unit: "per M", decimals: 0 },
    Field { name: "lost", heading: "lost", unit: "packets", decimals: 0 },
    Field { name: "reordered", heading: "reordered", unit: "packets", decimals: 0 },
];

const PLOTS: &[Plot] = &[
    Plot { field: "kpps", title: "Packets sent, kpps", scale: Scale::Linear, reference: None },
    Plot {
        field: "tryfail_pct",
        title: "Tries that failed, %",
        scale: Scale::Linear,
        reference: Some("seed_tryfail_pct"),
    },
    Plot {
        field: "kicks_sent",
        title: "Interrupts of the device's core, per million packets",
        scale: Scale::Log,
        reference: None,
    },
];

const NOTES: &[&str] = &[
    "The published machine had one input on one core and the output on the other: in 30 s, 7084821 entries of the device's lock, \
     635969 of them slept, and 5077636 tries, of which 2402027 failed. No rate was published for it.",
    "An interrupt of a core that is awake is a flag here; on a real machine spin-dispatch pays for each kick it sent.",
    "What a full queue drops is lost with locked and spin-dispatch, as published. Weir holds the input.",
    "Weir's row is the path itself: beside what forwarding costs in every design, its packets are frames that are polled, bridged, booked \
     and queued. Its egress queue serves both inputs alike, so a flood goes as fast as the core with the device serves its own input.",
    "With locked the device is told of every packet by itself, with the others of as many as a pass has found.",
];

/// The cost of forwarding a packet, in nanoseconds.
pub const FORWARD_NS: u64 = 200;
/// After each run the machine is left to others for one part in this many of its time: the threads are real-time.
const REST_SHARE: u64 = 8;
/// More than any machine can forward.
const FLOOD_PACKETS_PER_S: f64 = 50e6;

/// The published counters of `locked`: tries that failed, entries that slept.
const SEED_TRYFAIL_PCT: f64 = 100.0 * 2_402_027.0 / 5_077_636.0;
const SEED_SLEEP_PCT: f64 = 100.0 * 635_969.0 / 7_084_821.0;

/// A way to transmit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum System {
    /// One lock around the device.
    Locked,
    /// The published patch.
    SpinDispatch,
    /// A plan of the path.
    Weir,
}

impl System {
    /// All of them, in the order they take turns.
    pub const ALL: [System; 3] = [System::Locked, System::SpinDispatch, System::Weir];

    /// The name in reports and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            System::Locked => "locked",
            System::SpinDispatch => "spin-dispatch",
            System::Weir => "weir",
        }
    }

    fn run(self, plan: &Plan, costs: Costs) -> Result<Outcome> {
        match self {
            System::Locked => drive::run(plan, locked::sides(costs)),
            System::SpinDispatch => drive::run(plan, spin_dispatch::sides(costs)?),
            System::Weir => weir::run(plan, costs),
        }
    }
}

const CASES: [(&str, f64); 3] = [("2x1", FLOOD_PACKETS_PER_S), ("2x1-20k", 20e3), ("2x1-200k", 200e3)];

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
    /// Every system, in a quarter of a minute.
    fn default() -> Options {
        Options { seconds: 1.4, repeats: 7, systems: System::ALL.to_vec() }
    }
}

/// Runs the lab.
pub fn run(options: &Options, progress: &mut dyn Progress) -> Result<Report> {
    let (seconds, repeats, systems) = (options.seconds, options.repeats, &options.systems);
    turns::check(seconds, repeats)?;
    let cores = turns::two_cores()?;
    let machine = Machine::measure()?;
    let (forward, costs) = (Cost::of_ns(FORWARD_NS), Costs::measure());
    let duration_ns = (seconds / repeats as f64 * 1e9) as u64;
    let mut steps = Steps::new(repeats * CASES.len() * systems.len(), progress);
    let mut outcomes = vec![Vec::new(); CASES.len() * systems.len()];
    let wake_cost_ns = (machine.eventfd_wake_us.unwrap_or_default() * 1000.0) as u64;
    for (step, index) in turns::order(repeats, outcomes.len()).enumerate() {
        let (name, packets_per_s) = CASES[index / systems.len()];
        steps.begin(step, name);
        let plan = Plan { packets_per_s, duration_ns, forward, cores, wake_cost_ns };
        outcomes[index].push(systems[index % systems.len()].run(&plan, costs)?);
        thread::sleep(Duration::from_nanos(duration_ns / REST_SHARE));
        interrupt::check()?;
    }
    steps.finish();
    let rows = outcomes.iter().enumerate();
    let rows =
        rows.map(|(index, runs)| row(systems[index % systems.len()], CASES[index / systems.len()].0, runs));
    Ok(Report {
        lab: "ifq",
        title: "Two inputs forwarded to one device",
        case_heading: "case",
        notes: NOTES,
        fields: FIELDS,
        plots: PLOTS,
        machine,
        rows: rows.collect(),
        bounds: Vec::new(),
        appendix: String::new(),
    })
}

fn row(system: System, case: &str, runs: &[Outcome]) -> Row {
    let mut rates: Vec<f64> = runs.iter().map(|run| run.sent() as f64 / run.seconds / 1e3).collect();
    rates.sort_by(f64::total_cmp);
    let sum = |of: fn(&Outcome) -> u64| runs.iter().map(of).sum::<u64>();
    let (sent, offered, reordered) = (sum(Outcome::sent), sum(|run| run.offered), sum(|run| run.reordered));
    let least = sum(|run| run.sent_by[0]).min(sum(|run| run.sent_by[1]));
    let counts = runs.iter().fold(Counts::default(), |counts, run| counts.add(run.counts));
    // A packet that was sent twice is a fault as well.
    let lost = offered as i64 - sent as i64;
    let per_million = |count: u64| Value::from(count as f64 * 1e6 / sent as f64);
    let percent = |part: u64, whole: u64| Value::from(100.0 * part as f64 / whole.max(1) as f64);
    let kicks = |count| if system == System::Locked { Value::Missing } else { per_million(count) };
    let seed = |figure: f64| Value::from((system == System::Locked && case == "2x1").then_some(figure));
    let values: Vec<(&'static str, Value)> = vec![
        ("kpps", rates[(rates.len() - 1) / 2].into()),
        ("least_pct", percent(least, sent)),
        ("enter", per_million(counts.enter)),
        ("try", per_million(counts.tried)),
        ("tryfail", per_million(counts.tryfail)),
        ("tryfail_pct", percent(counts.tryfail, counts.tried)),
        ("seed_tryfail_pct", seed(SEED_TRYFAIL_PCT)),
        ("sleep", per_million(counts.sleep)),
        ("sleep_pct", percent(counts.sleep, counts.enter)),
        ("seed_sleep_pct", seed(SEED_SLEEP_PCT)),
        ("kicks_sent", kicks(counts.kicks_sent)),
        ("kicks_saved", kicks(counts.kicks_saved)),
        ("lost", (lost.unsigned_abs()).into()),
        ("reordered", reordered.into()),
    ];
    if reordered > 0 || lost != counts.dropped as i64 || (system == System::Weir && lost != 0) {
        let error = format!(
            "of {offered} packets, {sent} were sent, {} dropped and {reordered} reordered",
            counts.dropped
        );
        return Row::failed(system.name(), case, values, error);
    }
    Row::new(system.name(), case, values)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::cores;
    use crate::progress::Silent;

    /// The fields that scripts rely on.
    const PROMISED: [&str; 9] =
        ["kpps", "enter", "try", "tryfail", "sleep", "kicks_sent", "kicks_saved", "lost", "reordered"];

    #[test]
    fn the_whole_lab_in_a_second() {
        if cores().unwrap().len() < 2 {
            return;
        }
        let report = run(&Options { seconds: 0.04, repeats: 2, ..Options::default() }, &mut Silent).unwrap();
        let json = report.to_json();
        assert_eq!(json["lab"], "ifq");
        let rows = json["rows"].as_array().unwrap();
        assert_eq!(rows.len(), CASES.len() * System::ALL.len());
        for row in rows {
            PROMISED.iter().for_each(|field| assert!(row.get(field).is_some(), "no {field} in {row}"));
            assert!(row["kpps"].as_f64() > Some(0.0) && row.get("error").is_none(), "{row}");
            let first = row["system"] == "locked" && row["case"] == "2x1";
            assert_eq!(row["seed_tryfail_pct"].is_number(), first, "{row}");
            if row["system"] == "weir" {
                assert_eq!((&row["lost"], &row["reordered"]), (&0.into(), &0.into()), "{row}");
            }
        }
    }

    #[test]
    fn what_is_lost_without_being_dropped_fails_its_row() {
        let run = |sent, dropped| Outcome {
            offered: 10,
            sent_by: [sent, 0],
            seconds: 1.0,
            counts: Counts { dropped, ..Counts::default() },
            ..Outcome::default()
        };
        let fails = |system, outcome| row(system, "2x1", &[outcome]).error.is_some();
        assert!(!fails(System::Weir, run(10, 0)) && !fails(System::Locked, run(8, 2)));
        assert!(fails(System::Locked, run(8, 1)), "one is missing");
        assert!(fails(System::Weir, run(8, 2)), "weir drops nothing");
        assert!(fails(System::Weir, Outcome { reordered: 1, ..run(10, 0) }));
    }
}
