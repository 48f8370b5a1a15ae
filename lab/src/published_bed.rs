//! `weir lab bed`: the published bed (bridge, epair, router, epair, bridge) on real veth pairs with the kernel's programs at both
//! ends: Weir's, beside the kernel's own bridges and routing, in one run.
//!
//! | case | load |
//! |---|---|
//! | `quiet`, `load`, `flood` | short connections to a real web server, one after another, a thousand a second at most: alone, beside 200 Mbit/s of TCP and 100 Mbit/s of UDP, beside a TCP stream at full speed |
//! | `tcp` | one stream of `iperf3` |
//! | `packets` | as many frames of 64 bytes as one thread can send |
//!
//! - `p50_ms`, `p99_ms`, `p999_ms`, `max_ms`, `latency_hist`: from before `connect` to the end of the answer, of all rounds together, to a
//!   sixteenth; `failed`: connections that brought no page.
//! - `mbit_per_s`: payload of the TCP stream. `kpps`: small datagrams that arrived. `cpu_s_per_gbit`: processor seconds of the whole
//!   machine, programs included, for each gigabit that arrived. Medians of the rounds.
//! - `lost`, `overflowed`, `reordered`, `retransmits`: sums over the rounds. Lost are datagrams that did not come to the server's host;
//!   overflowed those that came and found the program's socket full, which is the program's loss. Weir may lose nothing, and fail no
//!   connection: its row fails if it does.
//! - `ratio`: to `kernel` in the same round, of p99 in the first three cases, of `mbit_per_s` and of `kpps` in the others: the median, and
//!   `ratio_least` to `ratio_most`.
//!
//! All beds stand while one has its turn; an idle one costs next to nothing. The rounds go through the systems forwards and backwards
//! in turn (ABBA).
//!
//! Source: review D38843: `nc` to nginx in a jail, which took hundreds of milliseconds now and then.
//!
//! Limits: the kernel's bed has four veth pairs, Weir's two and two epairs in memory. The kernel moves up to 64 KB of a stream as one
//! packet; `kernel-frames` is the kernel with frames as they are on a wire. On a machine of two cores programs, web server and Weir's
//! worker share them.

mod stand;
mod turn;

use std::path::PathBuf;

use anyhow::{Result, ensure};

pub use stand::System;
pub use turn::Case;

use crate::bed;
use crate::bound::{Bound, stolen};
use crate::interrupt;
use crate::machine::Machine;
use crate::progress::{Progress, Steps};
use crate::report::{Field, Plot, Report, Row, Scale, Value};
use crate::turns;
use crate::web::Connections;
use stand::Stand;
use turn::Turn;

/// The bound on the 99.9th percentile, in milliseconds; the published complaint is hundreds.
const P999_MS_MAX: f64 = 10.0;
/// The bound on the 99th percentile, in times the kernel's.
const P99_RATIO_MAX: f64 = 2.0;

const FIELDS: &[Field] = &[
    Field { name: "connections", heading: "connections", unit: "", decimals: 0 },
    Field { name: "failed", heading: "failed", unit: "", decimals: 0 },
    Field { name: "p50_ms", heading: "p50", unit: "ms", decimals: 2 },
    Field { name: "p99_ms", heading: "p99", unit: "ms", decimals: 2 },
    Field { name: "p999_ms", heading: "p99.9", unit: "ms", decimals: 2 },
    Field { name: "max_ms", heading: "longest", unit: "ms", decimals: 2 },
    Field { name: "latency_hist", heading: "latency", unit: "ns", decimals: 0 },
    Field { name: "mbit_per_s", heading: "TCP", unit: "Mbit/s", decimals: 0 },
    Field { name: "kpps", heading: "packets", unit: "k/s", decimals: 0 },
    Field { name: "cpu_s_per_gbit", heading: "CPU", unit: "s/Gbit", decimals: 2 },
    Field { name: "lost", heading: "lost", unit: "datagrams", decimals: 0 },
    Field { name: "overflowed", heading: "overflowed", unit: "sockets", decimals: 0 },
    Field { name: "reordered", heading: "reordered", unit: "datagrams", decimals: 0 },
    Field { name: "retransmits", heading: "sent again", unit: "segments", decimals: 0 },
    Field { name: "ratio", heading: "ratio", unit: "to kernel", decimals: 2 },
    Field { name: "ratio_least", heading: "from", unit: "", decimals: 2 },
    Field { name: "ratio_most", heading: "to", unit: "", decimals: 2 },
    Field { name: "stolen_pct", heading: "host took", unit: "% of busy", decimals: 1 },
];

const PLOTS: &[Plot] = &[
    Plot {
        field: "latency_hist",
        title: "From connect to the end of the answer, ns",
        scale: Scale::Log,
        reference: None,
    },
    Plot { field: "p999_ms", title: "The same, 99.9th percentile, ms", scale: Scale::Log, reference: None },
    Plot { field: "mbit_per_s", title: "The TCP stream, Mbit/s", scale: Scale::Linear, reference: None },
    Plot {
        field: "kpps",
        title: "Small datagrams, thousands a second",
        scale: Scale::Linear,
        reference: None,
    },
    Plot {
        field: "cpu_s_per_gbit",
        title: "CPU seconds of the whole machine per gigabit delivered",
        scale: Scale::Log,
        reference: None,
    },
];

const NOTES: &[&str] = &[
    "Host, bridge, epair, router, epair, bridge, host. weir is `weir up`; kernel is Linux's bridges and routing, with a veth pair where \
     Weir has an epair in memory: four pairs, of which Weir has two. kernel-frames has the hosts' offloads off, so that its packets are frames \
     with checksums, as Weir's are and those of a wire; otherwise the kernel moves up to 64 KB as one packet.",
    "A connection is `connect`, a request, a page of a real web server (nginx, else busybox's httpd, else python3's), and the end. \
     quiet has nothing beside, load 200 Mbit/s of TCP and 100 Mbit/s of UDP, flood a TCP stream that takes what it gets, which is more on the \
     kernel's bed: with it the processors are the limit, and the programs wait for them.",
    "The review's users waited several hundred milliseconds now and then for such a connection on an idle machine of 32 cores.",
    "Lost datagrams never came to the server's host, overflowed ones found its program's socket full. What does not fit the kernel's list \
     of a processor is dropped; Weir holds its sender instead.",
    "The ratio is to kernel in the same round: of p99 of connections, of Mbit/s, of packets. Figures of connections are of all \
     rounds together, others medians.",
    "CPU is that of the whole machine, programs included, and of whatever else ran meanwhile.",
];

/// The options of a run.
#[derive(Debug, Clone)]
pub struct Options {
    /// The program under test.
    pub weir_binary: PathBuf,
    /// The time of a turn, in seconds.
    pub seconds: f64,
    /// Turns of each system in each case.
    pub rounds: usize,
    /// The systems, in the order they take turns.
    pub systems: Vec<System>,
    /// The cases, in the order they run.
    pub cases: Vec<Case>,
}

impl Options {
    /// Everything, in about two minutes.
    pub fn new(weir_binary: PathBuf) -> Options {
        let (systems, cases) = (System::ALL.to_vec(), Case::ALL.to_vec());
        Options { weir_binary, seconds: 3.0, rounds: 2, systems, cases }
    }
}

/// The turns of a system in one case, and why the last of them failed if it did.
type Turns = (Vec<Turn>, Option<String>);

/// Runs the lab. A turn that fails becomes a row with an error; only an interruption ends the run.
pub fn run(options: &Options, progress: &mut dyn Progress) -> Result<Report> {
    ensure!(bed::is_privileged(), "this lab makes network namespaces: run it as root");
    ensure!(options.seconds >= 1.0, "a turn needs at least one second, not {}", options.seconds);
    turns::check(options.seconds, options.rounds)?;
    bed::begin()?;
    let machine = Machine::measure()?;
    let systems = &options.systems;
    let stands: Vec<Result<Stand, String>> = systems
        .iter()
        .map(|system| Stand::new(*system, &options.weir_binary).map_err(|error| format!("{error:#}")))
        .collect();
    interrupt::check()?;
    let web = stands.iter().flatten().next().map_or("none", |stand| stand.web.program);
    let (mut rows, mut bounds) = (Vec::new(), Vec::new());
    let (count, mut step) = (options.cases.len() * systems.len() * options.rounds, 0);
    let mut steps = Steps::new(count, progress);
    for case in &options.cases {
        let mut turns: Vec<Turns> = systems.iter().map(|_| (Vec::new(), None)).collect();
        for index in turns::order(options.rounds, systems.len()) {
            steps.begin(step, &format!("{}, {}", systems[index].name(), case.name()));
            let turn = match &stands[index] {
                Ok(stand) => turn::run(stand, *case, options.seconds).map_err(|error| format!("{error:#}")),
                Err(error) => Err(error.clone()),
            };
            interrupt::check()?;
            match turn {
                Ok(turn) => turns[index].0.push(turn),
                Err(error) => turns[index].1 = Some(error),
            }
            step += 1;
        }
        let kernel = systems.iter().position(|system| *system == System::Kernel);
        let kernel = kernel.map(|index| &turns[index].0[..]);
        let own: Vec<Row> =
            systems.iter().zip(&turns).map(|(system, turns)| row(*system, *case, turns, kernel)).collect();
        bounds.extend(own.iter().filter(|row| row.system == System::Weir.name()).flat_map(|weir| {
            bounds_of(*case, web, weir, own.iter().find(|row| row.system == System::Kernel.name()))
        }));
        rows.extend(own);
    }
    steps.finish();
    Ok(Report {
        lab: "bed",
        title: "The published bed between two hosts, Weir's and the kernel's own",
        case_heading: "case",
        notes: NOTES,
        fields: FIELDS,
        plots: PLOTS,
        machine,
        rows,
        bounds,
        appendix: String::new(),
    })
}

fn row(system: System, case: Case, (turns, error): &Turns, kernel: Option<&[Turn]>) -> Row {
    let mut connections = Connections::default();
    turns.iter().filter_map(|turn| turn.connections.as_ref()).for_each(|some| connections.merge(some));
    let has_connections = turns.iter().any(|turn| turn.connections.is_some());
    let ms = |ns: Option<u64>| ns.map(|ns| ns as f64 / 1e6);
    let sum = |of: fn(&Turn) -> Option<u64>| turns.iter().filter_map(of).reduce(|a, b| a + b);
    let median_of = |of: fn(&Turn) -> Option<f64>| median(turns.iter().filter_map(of).collect());
    let lost = sum(|turn| turn.lost);
    let mut values: Vec<(&'static str, Value)> = vec![
        ("mbit_per_s", median_of(|turn| turn.bits_per_s).map(|bits| bits / 1e6).into()),
        ("kpps", median_of(|turn| turn.packets_per_s).map(|packets| packets / 1e3).into()),
        ("cpu_s_per_gbit", median_of(|turn| turn.cpu_s_per_gbit).into()),
        ("lost", lost.into()),
        ("overflowed", sum(|turn| turn.overflowed).into()),
        ("reordered", sum(|turn| turn.reordered).into()),
        ("retransmits", sum(|turn| turn.retransmits).into()),
        ("stolen_pct", turns.iter().map(|turn| 100.0 * turn.stolen).reduce(f64::max).into()),
    ];
    if has_connections {
        let took = &connections.took;
        values.extend([
            ("connections", connections.count.into()),
            ("failed", connections.failed.into()),
            ("p50_ms", ms(took.quantile_ns(0.5)).into()),
            ("p99_ms", ms(took.quantile_ns(0.99)).into()),
            ("p999_ms", ms(took.quantile_ns(0.999)).into()),
            ("max_ms", ms(took.max_ns()).into()),
            ("latency_hist", took.powers_of_two().into()),
        ]);
    }
    if let Some(kernel) = kernel.filter(|_| system != System::Kernel) {
        let mut ratios: Vec<f64> = turns
            .iter()
            .zip(kernel)
            .filter_map(|(own, kernel)| Some(figure(own)? / figure(kernel)?))
            .collect();
        ratios.sort_by(f64::total_cmp);
        values.extend([
            ("ratio_least", ratios.first().copied().into()),
            ("ratio_most", ratios.last().copied().into()),
            ("ratio", median(ratios).into()),
        ]);
    }
    let reordered = sum(|turn| turn.reordered).unwrap_or(0);
    let error = match error {
        Some(error) => Some(error.clone()),
        None if system != System::Weir => None,
        None if connections.failed > 0 => Some(format!(
            "{} connections failed, the first: {}",
            connections.failed,
            connections.failure.unwrap_or_default()
        )),
        None if lost.unwrap_or(0) + reordered > 0 => {
            Some(format!("{} datagrams lost, {reordered} reordered", lost.unwrap_or(0)))
        }
        None => None,
    };
    match error {
        Some(error) => Row::failed(system.name(), case.name(), values, error),
        None => Row::new(system.name(), case.name(), values),
    }
}

/// The figure by which a turn is compared.
fn figure(turn: &Turn) -> Option<f64> {
    match &turn.connections {
        Some(connections) => connections.took.quantile_ns(0.99).map(|ns| ns as f64),
        None => turn.packets_per_s.or(turn.bits_per_s),
    }
}

/// The two bounds on connections under load; of the other cases there are figures alone.
fn bounds_of(case: Case, web: &str, weir: &Row, kernel: Option<&Row>) -> Vec<Bound> {
    let figure = |row: &Row, name: &str| row.value(name).as_f64();
    if case != Case::Load {
        return Vec::new();
    }
    let stolen_pct = kernel.into_iter().chain([weir]).filter_map(|row| figure(row, "stolen_pct"));
    let was_stolen = stolen(stolen_pct.fold(0.0, f64::max) / 100.0);
    let bound = |what: &str, figure: f64, at_most, unit| Bound {
        what: format!("connections to {web} under load, {what}"),
        figure,
        at_most,
        unit,
        excuse: was_stolen.clone(),
    };
    // Where the kernel's own bed takes as long, the fault is the machine's.
    let busy = kernel.and_then(|kernel| figure(kernel, "p999_ms")).filter(|ms| *ms > P999_MS_MAX);
    let busy = busy.map(|ms| format!("the kernel's own was {ms:.2} ms"));
    let p999 = figure(weir, "p999_ms").map(|ms| {
        let bound = bound("p99.9", ms, P999_MS_MAX, "ms");
        Bound { excuse: bound.excuse.or(busy), ..bound }
    });
    let ratio = kernel.and_then(|kernel| Some(figure(weir, "p99_ms")? / figure(kernel, "p99_ms")?));
    let p99 = ratio.map(|ratio| bound("p99 to the kernel's", ratio, P99_RATIO_MAX, ""));
    p999.into_iter().chain(p99).collect()
}

/// The lower one of the two in the middle, if there are two.
fn median(mut figures: Vec<f64>) -> Option<f64> {
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len().saturating_sub(1) / 2).copied()
}

#[cfg(test)]
mod tests;
