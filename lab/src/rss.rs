//! `weir lab rss`: an echo server with a thread for each bucket of flows, on 1 core to all of them.
//!
//! | system | sockets |
//! |---|---|
//! | `kernel` | the kernel's sockets, one for each core (`SO_REUSEPORT`, steered by core), `recvmmsg` and `sendmmsg`; clients that wait for their echoes |
//! | `kernel-flood` | the same, with clients that do not wait, as published |
//! | `weir` | a stack of `weir-socket` in memory: a worker and a thread for each bucket, and a generator that is held like any sender |
//! | `weir-copies` | the same flows, to as many stacks of one worker each as there are buckets, all at once: the rate of workers that share nothing |
//! | `kernel-veth`, `weir-veth` | the servers of `kernel` and of `weir` at one end of a veth, the clients of `kernel` at the other; as many receive queues as buckets |
//!
//! A case is the number of buckets, and of cores: all of a run, clients included, is on so many cores, bucket by bucket. Frames are of
//! [`FRAME_BYTES`], as published, of [`CLIENTS`] clients.
//!
//! - `kpps`: echoes a second that came back to the clients, median of the repeats, and `kpps_spread_pct` how far the least and the most of
//!   them are apart, of the median; `kpps_per_core` those for each of the cores. The published machine had its clients elsewhere, so their
//!   cost is in our figures and not in its.
//! - `cpu_ns`: processor time of the process for each echo, clients and servers together (softirqs that run outside it are not in it).
//! - `client_cpu_ns`: the part of `cpu_ns` that the clients' threads take: the kernel's stack at the client, and in their `sendmmsg` also what
//!   the kernel does at once at the server's end, up to its sockets or to the packet memory of a stack.
//! - `ratio_to_one`: `kpps_per_core` by that with one bucket.
//! - `ratio_to_copies`: of `weir`, the median of its runs by those of `weir-copies` in the same turns, and `copies_spread_pct` as above.
//! - `dropped_full_socket`: datagrams for which a server's socket had no room, and `dropped_pct` of those sent; `lost` and
//!   `reordered` of those that were to come back. With Weir any of these fails the row.
//!
//! Source: A. Chadd's thread on receive-side scaling of UDP. Limits: the kernel's path is loopback, which has no device, or a veth. The
//! generator of `weir` is cheaper than a client with a socket.

mod clients;
mod kernel;
mod weir;

use std::thread;
use std::time::Duration;

use anyhow::Result;

use crate::machine::Machine;
use crate::ministat::Series;
use crate::progress::{Progress, Steps};
use crate::report::{Field, Plot, Report, Row, Scale, Value};
use crate::{bed, interrupt, machine, turns};

/// The published length of a frame.
pub const FRAME_BYTES: u16 = 510;
/// The published number of clients.
pub const CLIENTS: u16 = 8;
/// The UDP payload of a frame.
const PAYLOAD_BYTES: usize = FRAME_BYTES as usize - 14 - 20 - 8;
/// The published counters of each core, of 6773040390 datagrams received, 1634117674 of them dropped due to full socket buffers.
const SEED_KPPS_PER_CORE: f64 = 215.0;
const SEED_DROPPED_PCT: f64 = 100.0 * 1_634_117_674.0 / 6_773_040_390.0;
/// Between two runs the machine is left to others for a moment.
const REST: Duration = Duration::from_millis(50);

const FIELDS: &[Field] = &[
    Field { name: "kpps", heading: "echoed", unit: "kpps", decimals: 0 },
    Field { name: "kpps_spread_pct", heading: "spread", unit: "%", decimals: 0 },
    Field { name: "kpps_per_core", heading: "each core", unit: "kpps", decimals: 0 },
    Field { name: "seed_kpps_per_core", heading: "published", unit: "kpps", decimals: 0 },
    Field { name: "ratio_to_one", heading: "to 1 core", unit: "", decimals: 2 },
    Field { name: "ratio_to_copies", heading: "to copies", unit: "", decimals: 2 },
    Field { name: "copies_spread_pct", heading: "spread", unit: "%", decimals: 0 },
    Field { name: "cpu_ns", heading: "CPU", unit: "ns/echo", decimals: 0 },
    Field { name: "client_cpu_ns", heading: "clients", unit: "ns/echo", decimals: 0 },
    Field { name: "dropped_full_socket", heading: "socket full", unit: "datagrams", decimals: 0 },
    Field { name: "dropped_pct", heading: "of sent", unit: "%", decimals: 1 },
    Field { name: "seed_dropped_pct", heading: "published", unit: "%", decimals: 1 },
    Field { name: "lost", heading: "lost", unit: "datagrams", decimals: 0 },
    Field { name: "reordered", heading: "reordered", unit: "datagrams", decimals: 0 },
];

const PLOTS: &[Plot] = &[
    Plot {
        field: "kpps_per_core",
        title: "Echoes a second for each core, clients included, kpps",
        scale: Scale::Log,
        reference: Some("seed_kpps_per_core"),
    },
    Plot { field: "ratio_to_one", title: "Each core, by 1 core", scale: Scale::Linear, reference: None },
    Plot {
        field: "dropped_pct",
        title: "Dropped due to full socket buffers, %",
        scale: Scale::Linear,
        reference: Some("seed_dropped_pct"),
    },
];

const NOTES: &[&str] = &[
    "Everything of a run is on as many cores as there are buckets, clients included; the published machine had its clients elsewhere.",
    "Published: 215000 frames a second in and out on each core, from 1 to 8 cores, with 24 % of what was received dropped due to full \
     socket buffers.",
    "The clients of kernel wait for their echoes, 16 on their way for each; those of kernel-flood do not, as published.",
    "Those of weir-copies are as many stacks, each with one worker and its share of the same flows and buckets, all at once and on the same cores.",
    "The generator of weir is a port in memory, and held when the servers do not keep up.",
];

/// A way to echo.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum System {
    /// The kernel's sockets over loopback, with clients that wait.
    Kernel,
    /// The kernel's sockets over loopback, with clients that do not wait.
    KernelFlood,
    /// `weir-socket` in memory.
    Weir,
    /// As many stacks of one worker each, at once.
    WeirCopies,
    /// The kernel's sockets over a veth.
    KernelVeth,
    /// `weir-socket` on a veth, with the kernel's clients.
    WeirVeth,
}

impl System {
    /// All of them, in the order they take turns.
    pub const ALL: [System; 6] = [
        System::Kernel,
        System::KernelFlood,
        System::Weir,
        System::WeirCopies,
        System::KernelVeth,
        System::WeirVeth,
    ];

    /// The name in reports and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            System::Kernel => "kernel",
            System::KernelFlood => "kernel-flood",
            System::Weir => "weir",
            System::WeirCopies => "weir-copies",
            System::KernelVeth => "kernel-veth",
            System::WeirVeth => "weir-veth",
        }
    }

    fn needs_root(self) -> bool {
        matches!(self, System::KernelVeth | System::WeirVeth)
    }

    fn is_weirs(self) -> bool {
        matches!(self, System::Weir | System::WeirCopies | System::WeirVeth)
    }

    fn run(self, plan: &RssPlan) -> Result<Outcome> {
        match self {
            System::Kernel => kernel::over_loopback(plan, clients::Pace::Windowed),
            System::KernelFlood => kernel::over_loopback(plan, clients::Pace::Flood),
            System::Weir => weir::in_memory(plan),
            System::WeirCopies => weir::copies(plan),
            System::KernelVeth => kernel::over_veth(plan),
            System::WeirVeth => weir::over_veth(plan),
        }
    }
}

/// One run.
#[derive(Debug, Clone)]
struct RssPlan {
    /// One core for each bucket.
    cores: Vec<usize>,
    duration: Duration,
    /// The program whose guardian puts interfaces back.
    weir: std::path::PathBuf,
}

/// The outcome of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Outcome {
    sent: u64,
    /// Echoes that came back, and those of them that came in the measured time.
    echoed: u64,
    in_time: u64,
    seconds: f64,
    cpu_seconds: f64,
    /// The part of the clients, if they are threads.
    client_cpu_seconds: Option<f64>,
    dropped_full_socket: u64,
    reordered: u64,
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
    /// The program `weir`.
    pub weir: std::path::PathBuf,
}

impl Options {
    /// Every system that this user may run, in half a minute.
    pub fn new(weir: std::path::PathBuf) -> Options {
        let mut systems = System::ALL.to_vec();
        systems.retain(|system| !system.needs_root() || bed::is_privileged());
        Options { seconds: 3.0, repeats: 3, systems, weir }
    }
}

/// Runs the lab.
pub fn run(options: &Options, progress: &mut dyn Progress) -> Result<Report> {
    let (seconds, repeats, systems) = (options.seconds, options.repeats, &options.systems);
    turns::check(seconds, repeats)?;
    if systems.iter().any(|system| system.needs_root()) {
        bed::begin()?;
    }
    let cores = machine::cores()?;
    // Powers of two, as buckets are.
    let cases: Vec<usize> = (0..).map(|bits| 1 << bits).take_while(|count| *count <= cores.len()).collect();
    let machine = Machine::measure()?;
    let mut steps = Steps::new(repeats * cases.len() * systems.len(), progress);
    let mut outcomes = vec![Vec::new(); cases.len() * systems.len()];
    for (step, index) in turns::order(repeats, outcomes.len()).enumerate() {
        let (buckets, system) = (cases[index / systems.len()], systems[index % systems.len()]);
        steps.begin(step, &format!("{} with {buckets}", system.name()));
        let plan = RssPlan {
            cores: cores[..buckets].to_vec(),
            duration: Duration::from_secs_f64(seconds / repeats as f64),
            weir: options.weir.clone(),
        };
        outcomes[index].push(system.run(&plan)?);
        thread::sleep(REST);
        interrupt::check()?;
    }
    steps.finish();
    let of_one = |system: usize| outcomes.get(system).map(|runs| kpps(runs));
    let copies = systems.iter().position(|system| *system == System::WeirCopies);
    let rows = outcomes.iter().enumerate().map(|(index, runs)| {
        let (case, system) = (index / systems.len(), index % systems.len());
        let is_beside = systems[system] == System::Weir;
        let copies =
            copies.filter(|_| is_beside).and_then(|copies| outcomes.get(case * systems.len() + copies));
        row(systems[system], cases[case], runs, of_one(system), copies.map(Vec::as_slice))
    });
    Ok(Report {
        appendix: String::new(),
        lab: "rss",
        title: "UDP echoes by a thread for each bucket",
        case_heading: "buckets",
        notes: NOTES,
        fields: FIELDS,
        plots: PLOTS,
        machine,
        rows: rows.collect(),
        bounds: Vec::new(),
    })
}

impl Outcome {
    fn kpps(&self) -> f64 {
        self.in_time as f64 / self.seconds / 1e3
    }
}

/// The median rate.
fn kpps(runs: &[Outcome]) -> f64 {
    rates(runs).map_or(f64::NAN, |rates| rates.median)
}

fn rates(runs: &[Outcome]) -> Option<Series> {
    Series::of(&runs.iter().map(Outcome::kpps).collect::<Vec<_>>())
}

/// The rates by those of the runs in the same turns.
fn ratios(runs: &[Outcome], beside: &[Outcome]) -> Option<Series> {
    Series::of(&runs.iter().zip(beside).map(|(run, beside)| run.kpps() / beside.kpps()).collect::<Vec<_>>())
}

fn spread_pct(series: Series) -> f64 {
    100.0 * (series.max - series.min) / series.median
}

fn row(
    system: System,
    buckets: usize,
    runs: &[Outcome],
    of_one: Option<f64>,
    copies: Option<&[Outcome]>,
) -> Row {
    let to_copies = copies.and_then(|copies| ratios(runs, copies));
    let sum = |of: fn(&Outcome) -> u64| runs.iter().map(of).sum::<u64>();
    let (sent, echoed) = (sum(|run| run.sent), sum(|run| run.echoed));
    let (dropped, reordered) = (sum(|run| run.dropped_full_socket), sum(|run| run.reordered));
    let lost = sent.saturating_sub(echoed);
    let cpu_seconds: f64 = runs.iter().map(|run| run.cpu_seconds).sum();
    let client_cpu_seconds: Option<f64> = runs.iter().map(|run| run.client_cpu_seconds).sum();
    let for_each = |seconds: f64| seconds * 1e9 / echoed as f64;
    let each = kpps(runs) / buckets as f64;
    let seed = |figure: f64| Value::from((system == System::KernelFlood).then_some(figure));
    let values: Vec<(&'static str, Value)> = vec![
        ("kpps", kpps(runs).into()),
        ("kpps_spread_pct", rates(runs).map(spread_pct).into()),
        ("kpps_per_core", each.into()),
        ("seed_kpps_per_core", seed(SEED_KPPS_PER_CORE)),
        ("ratio_to_one", of_one.map(|one| each / one).into()),
        ("ratio_to_copies", to_copies.map(|ratios| ratios.median).into()),
        ("copies_spread_pct", to_copies.map(spread_pct).into()),
        ("cpu_ns", for_each(cpu_seconds).into()),
        ("client_cpu_ns", client_cpu_seconds.map(for_each).into()),
        ("dropped_full_socket", dropped.into()),
        ("dropped_pct", (100.0 * dropped as f64 / sent.max(1) as f64).into()),
        ("seed_dropped_pct", seed(SEED_DROPPED_PCT)),
        ("lost", lost.into()),
        ("reordered", reordered.into()),
    ];
    let case = buckets.to_string();
    let is_at_fault = system.is_weirs() && (lost > 0 || dropped > 0 || reordered > 0);
    if echoed == 0 || is_at_fault {
        let error =
            format!("of {sent} datagrams {echoed} came back, {dropped} dropped, {reordered} reordered");
        return Row::failed(system.name(), &case, values, error);
    }
    Row::new(system.name(), &case, values)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::progress::Silent;

    #[test]
    fn what_needs_no_root_in_a_second() {
        let systems = vec![System::Kernel, System::KernelFlood, System::Weir, System::WeirCopies];
        let options = Options { seconds: 0.1, repeats: 1, systems, ..Options::new("weir".into()) };
        let json = run(&options, &mut Silent).unwrap().to_json();
        assert_eq!(json["lab"], "rss");
        for row in json["rows"].as_array().unwrap() {
            for field in ["kpps_per_core", "ratio_to_one", "dropped_full_socket"] {
                assert!(row.get(field).is_some(), "no {field} in {row}");
            }
            assert!(row["kpps_per_core"].as_f64() > Some(0.0) && row.get("error").is_none(), "{row}");
            if row["case"] == "1" {
                assert_eq!(row["ratio_to_one"], 1.0, "{row}");
            }
            assert_eq!(row["ratio_to_copies"].is_number(), row["system"] == "weir", "{row}");
        }
    }

    #[test]
    fn a_datagram_that_does_not_come_back_fails_weirs_row_alone() {
        let run = Outcome { sent: 10, echoed: 9, in_time: 9, seconds: 1.0, ..Outcome::default() };
        for weirs in [System::Weir, System::WeirCopies, System::WeirVeth] {
            assert!(row(weirs, 1, &[run], None, None).error.is_some());
        }
        assert!(row(System::KernelFlood, 1, &[run], None, None).error.is_none());
        assert!(row(System::Kernel, 1, &[Outcome { echoed: 0, ..run }], None, None).error.is_some());
    }

    /// The comparison is turn by turn, so that a drift of the machine falls on both.
    #[test]
    fn workers_are_compared_with_copies_of_the_same_turn() {
        let runs = |in_time: [u64; 3]| {
            in_time.map(|in_time| Outcome { sent: 9, echoed: 9, in_time, seconds: 1.0, ..Outcome::default() })
        };
        let (workers, copies) = (runs([100, 50, 30]), runs([100, 100, 40]));
        let ratios = ratios(&workers, &copies).unwrap();
        assert_eq!((ratios.min, ratios.median, ratios.max), (0.5, 0.75, 1.0));
        assert!((spread_pct(ratios) - 100.0 * 0.5 / 0.75).abs() < 1e-9);
    }

    #[test]
    fn the_published_figures_stand_beside_what_was_published() {
        assert!((SEED_DROPPED_PCT - 24.1).abs() < 0.1);
    }
}
