//! `weir lab qdisc`: the set-up of the 2022 "qdisc backpressure" RFC with real `iperf` 2, on a stock kernel and
//! behind Weir.
//!
//! ```text
//!  stock:  clients -> [tbf] veth ------------------------------- veth -> servers
//!  weir:   clients -> veth (128 queues) --- veth  [weir wire]  veth --- veth -> servers
//! ```
//! Every client sends with `iperf -u -b 1G`; the limit is 200 Mbit/s with a burst of 20 kB. For one number of
//! clients after another, each system has its turn in fresh namespaces, so all systems share the machine's moods.
//!
//! - `lost_pct` = 100 x missing / sent: sums over the data that the clients sent and that the servers never saw, after the last
//!   arrival too. `reordered` is of the servers' reports.
//! - `rate_share` = bits of Ethernet frames that carried datagrams received / (200 Mbit/s x time), between the
//!   moment all clients are under way and shortly before they end (a tenth of the time is left out at either end).
//! - `jain`: of the servers' received rates.
//! - `cpu_s_per_gbit` = CPU seconds of the whole machine, clients and servers and all / gigabits of frames that
//!   arrived, between the same two moments. Everything else that the machine does is in it.
//! - `ping_p50_ms`, `ping_p99_ms`: of the echo requests that were answered.
//!
//! Rows of trees of classes are in [`tree`].
//!
//! Source: `lore.kernel.org`, `cover.1651800598.git.peilin.ye@bytedance.com`, sections I, III and V.
//!
//! Limits: one run of each, no confidence interval. Neighbour entries are permanent, so no system is charged for
//! datagrams lost to address resolution.

pub mod peers;
pub mod tree;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value as Json;

use crate::bed::{self, End, Namespace};
use crate::clock::{Punctual, let_pass};
use crate::interrupt;
use crate::iperf::{Flood, Flow, HEADERS_V4_BYTES, Load, PAYLOAD_BYTES, jain};
use crate::machine::{Machine, busy_seconds};
use crate::ping::{Ping, RoundTrips};
use crate::process;
use crate::progress::{Progress, Steps};
use crate::report::{Field, Plot, Report, Row, Scale, Value};
use crate::wire::Wire;
use peers::Peer;
use tree::TREES;

/// The least time of a case.
pub const SECONDS_MIN: f64 = 1.0;
/// The most clients of a case.
pub const CLIENTS_MAX: usize = 256;
/// The end of an error that tells nothing of a system: the machine was too slow to measure it.
pub const TOO_BUSY: &str = "too busy a machine";
const RATE_BITS_PER_S: f64 = 200e6;
const RATE: &str = "200mbit";
const BURST: &str = "20kb";
const FRAME_BYTES: u64 = PAYLOAD_BYTES + HEADERS_V4_BYTES;
/// One queue for each of the sender's flows, so that none waits behind another.
const WEIR_QUEUES: u32 = 128;
/// After the clients have ended: a deep queue drains, the last datagram is asked for ten times.
const PATIENCE: Duration = Duration::from_secs(40);
/// The time limit of a command that only sets something up.
const TOOL_LIMIT: Duration = Duration::from_secs(20);

pub(crate) const FIELDS: &[Field] = &[
    Field { name: "lost_pct", heading: "lost", unit: "%", decimals: 3 },
    Field { name: "seed_lost_pct", heading: "in the RFC", unit: "%", decimals: 1 },
    Field { name: "rate_share", heading: "rate share", unit: "of 200 Mbit/s", decimals: 3 },
    Field { name: "floor_share", heading: "floor share", unit: "of its floor", decimals: 3 },
    Field { name: "jain", heading: "fairness", unit: "Jain", decimals: 5 },
    Field { name: "reordered", heading: "reordered", unit: "packets", decimals: 0 },
    Field { name: "ping_p50_ms", heading: "ping p50", unit: "ms", decimals: 2 },
    Field { name: "ping_p99_ms", heading: "ping p99", unit: "ms", decimals: 2 },
    Field { name: "cpu_s_per_gbit", heading: "CPU", unit: "s/Gbit", decimals: 2 },
    Field { name: "empty_wakes", heading: "empty wakes", unit: "", decimals: 0 },
];

const PLOTS: &[Plot] = &[
    Plot {
        field: "lost_pct",
        title: "Datagrams lost, %",
        scale: Scale::Linear,
        reference: Some("seed_lost_pct"),
    },
    Plot {
        field: "rate_share",
        title: "Share of the 200 Mbit/s that arrived",
        scale: Scale::Linear,
        reference: None,
    },
    Plot {
        field: "floor_share",
        title: "What a class of a tree got, as a share of its floor",
        scale: Scale::Linear,
        reference: None,
    },
    Plot {
        field: "ping_p50_ms",
        title: "Ping beside the floods, median, ms",
        scale: Scale::Log,
        reference: None,
    },
    Plot {
        field: "ping_p99_ms",
        title: "Ping beside the floods, 99th percentile, ms",
        scale: Scale::Log,
        reference: None,
    },
    Plot {
        field: "cpu_s_per_gbit",
        title: "CPU seconds of the whole machine per gigabit delivered",
        scale: Scale::Linear,
        reference: None,
    },
];

const NOTES: &[&str] = &[
    "Each client is an unmodified `iperf -u -b 1G`; the limit is 200 Mbit/s with a burst of 20 kB. tbf has the RFC's \
     limit of 200k; tbf-large has a limit that the clients' socket buffers cannot fill. weir is a wire through user space, weir-limit the \
     kernel's own queue on the clients' pair as `weir limit` sets it.",
    "The RFC's figures are its kernel before the patch. With the patch it lost 3.2 % with 2 clients and 38 % with 3. \
     They were measured on another machine.",
    "With --sim, none, rfc and weir-sim are simulated on a virtual clock, on a model of the RFC's machine: its kernel \
     before the patch, with the patch, and Weir. Figures in the RFC's column beside them are of the same case; \
     \"under 5 %\" is shown as 5.",
    "fq paces each client to its share of the limit, fq_codel and tbf-fq have a queue for each flow below tbf (tbf-fq: fq, or sfq \
     where there is no fq) or HTB (htb-fq), cake does all in one. htb-leaves is HTB with a leaf and a filter for each client's port, what a \
     careful script reaches that knows its clients. What this kernel lacks is said.",
    "Lost is what the clients sent and the servers never saw; reordered is what the servers report. The rate counts Ethernet frames.",
    "Ping percentiles are of the requests that were answered: a system that drops also drops pings.",
    "CPU is that of the whole machine, clients and servers included, and of whatever else ran meanwhile.",
    "htb, weir-htb and weir-cbq share the 200 Mbit/s between classes, each flooded: tenants are gold (floor 80 Mbit/s), \
     silver (floor and ceiling 60), noisy (floor 20, 16 clients) and quiet, the pings' (floor 10); nested are gold \
     (floor 100: web 60, batch 40), noisy (floor 50: left 25, right 25) and quiet. What is over is borrowed in \
     proportion to the floors. TREE/CLASS is one class; the floor share and fairness of the whole are its worst class's.",
    "Empty wakes are wake-ups of a held sender that sent nothing; a dash where the system cannot tell.",
];

/// A way of limiting the rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum System {
    /// The kernel's token bucket with the RFC's parameters.
    Tbf,
    /// That bucket with a limit that is never reached.
    TbfLarge,
    /// Another queueing discipline of the kernel's.
    Peer(Peer),
    /// `weir wire`.
    Weir,
    /// `weir limit`, on the clients' own pair.
    WeirLimit,
    /// The kernel's HTB, with a tree.
    Htb,
    /// `weir wire --classes` with the same tree.
    WeirHtb,
    /// `weir wire --classes` with the same tree, as a tree of CBQ.
    WeirCbq,
}

impl System {
    /// All of them, in the order they take turns.
    pub const ALL: [System; 13] = [
        System::Tbf,
        System::TbfLarge,
        System::Peer(Peer::Fq),
        System::Peer(Peer::FqCodel),
        System::Peer(Peer::Cake),
        System::Peer(Peer::TbfFq),
        System::Peer(Peer::HtbFq),
        System::Peer(Peer::HtbLeaves),
        System::Weir,
        System::WeirLimit,
        System::Htb,
        System::WeirHtb,
        System::WeirCbq,
    ];

    /// The name in reports and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            System::Tbf => "tbf",
            System::TbfLarge => "tbf-large",
            System::Peer(peer) => peer.name(),
            System::Weir => "weir",
            System::WeirLimit => "weir-limit",
            System::Htb => "htb",
            System::WeirHtb => "weir-htb",
            System::WeirCbq => "weir-cbq",
        }
    }

    /// Returns whether it shares a limit between the classes of a tree, and so has cases of its own.
    fn has_classes(self) -> bool {
        matches!(self, System::Htb | System::WeirHtb | System::WeirCbq)
    }

    /// The system of that name.
    pub fn from_name(name: &str) -> Option<System> {
        System::ALL.into_iter().find(|system| system.name() == name)
    }
}

/// The options of a run.
#[derive(Debug, Clone)]
pub struct Options {
    /// The program under test.
    pub weir_binary: PathBuf,
    /// Numbers of clients, one case each.
    pub clients: Vec<usize>,
    /// The time for which the clients of a case send, in seconds.
    pub seconds: f64,
    /// The systems, in the order they take turns; with none, only the extra rows are reported, and nobody need be root.
    pub systems: Vec<System>,
    /// Rows that were measured elsewhere (a simulation) and go into the same report, after ours.
    pub extra_rows: Vec<Row>,
}

impl Options {
    /// The published cases and more, ten seconds each.
    pub fn new(weir_binary: PathBuf) -> Options {
        let clients = vec![2, 3, 8, 16, 64];
        Options { weir_binary, clients, seconds: 10.0, systems: System::ALL.to_vec(), extra_rows: Vec::new() }
    }
}

/// Runs the lab. A case that fails becomes a row with an error; only an interruption ends the run.
pub fn run(options: &Options, progress: &mut dyn Progress) -> Result<Report> {
    if options.systems.is_empty() {
        return Ok(report(Machine::measure()?, options.extra_rows.clone()));
    }
    ensure!(
        bed::is_privileged(),
        "this lab makes network namespaces: run it as root, or with --sim for the simulated rows alone"
    );
    ensure!(options.seconds >= SECONDS_MIN, "a case needs at least one second, not {}", options.seconds);
    ensure!(
        options.clients.iter().all(|clients| (1..=CLIENTS_MAX).contains(clients)),
        "the number of clients must be from 1 to {CLIENTS_MAX}"
    );
    bed::begin()?;
    let machine = Machine::measure()?;
    let _punctual = Punctual::new()?;
    let (with_classes, plain): (Vec<System>, Vec<System>) =
        options.systems.iter().partition(|system| system.has_classes());
    let count = options.clients.len() * plain.len() + TREES.len() * with_classes.len();
    let mut steps = Steps::new(count, progress);
    let mut rows = Vec::new();
    let mut absent = Vec::new();
    for system in &plain {
        if let System::Peer(peer) = system
            && !peer.is_here()?
        {
            absent.push(*system);
        }
    }
    for clients in &options.clients {
        for system in &plain {
            let case = clients.to_string();
            steps.begin(rows.len(), &format!("{}, {case} clients", system.name()));
            if absent.contains(system) {
                rows.push(Row::absent(system.name(), &case));
                continue;
            }
            let row = run_case(options, *system, *clients, &mut steps);
            interrupt::check()?;
            // The RFC measured its kernel's TBF with these parameters; the others have nothing to stand beside.
            let published = seed_lost_pct(*clients).filter(|_| *system == System::Tbf);
            let published = ("seed_lost_pct", published.into());
            rows.push(match row {
                Ok(mut values) => {
                    values.push(published);
                    Row::new(system.name(), &case, values)
                }
                Err(error) => Row::failed(system.name(), &case, vec![published], format!("{error:#}")),
            });
        }
    }
    let turns = TREES.iter().flat_map(|tree| with_classes.iter().map(move |system| (tree, *system)));
    for (index, (tree, system)) in (rows.len()..).zip(turns) {
        steps.begin(index, &format!("{}, the tree of {}", system.name(), tree.name));
        rows.extend(tree::rows(options, tree, system, &mut steps));
        interrupt::check()?;
    }
    steps.finish();
    rows.extend(options.extra_rows.iter().cloned());
    Ok(report(machine, rows))
}

fn report(machine: Machine, mut rows: Vec<Row>) -> Report {
    // The systems of a case stand together; the sort keeps their order.
    let cases: Vec<String> = rows.iter().map(|row| row.case.clone()).collect();
    rows.sort_by_cached_key(|row| cases.iter().position(|case| *case == row.case));
    Report {
        lab: "qdisc",
        title: "A 200 Mbit/s limit under UDP floods",
        case_heading: "clients or tree",
        notes: NOTES,
        fields: FIELDS,
        plots: PLOTS,
        machine,
        rows,
        bounds: Vec::new(),
        appendix: String::new(),
    }
}

type Values = Vec<(&'static str, Value)>;

fn run_case(options: &Options, system: System, clients: usize, steps: &mut Steps) -> Result<Values> {
    let from = Namespace::new("clients")?;
    let to = Namespace::new("servers")?;
    let (c, s) = (End { namespace: &from, name: "veth0" }, End { namespace: &to, name: "veth1" });
    let address = bed::names(0, 2).v4;
    let load = Load::new(&from, &to, &address, clients, options.seconds);
    match system {
        System::Tbf | System::TbfLarge => {
            bed::veth(0, c, s, 1)?;
            bed::address(0, c, s)?;
            let limit = if system == System::Tbf { "200k" } else { "256mb" };
            from.tc(&format!(
                "qdisc replace dev veth0 handle 1: root tbf rate {RATE} burst {BURST} limit {limit}"
            ))?;
            measure(&load, steps, || Ok(()))
        }
        System::Peer(peer) => {
            bed::veth(0, c, s, 1)?;
            bed::address(0, c, s)?;
            ensure!(peer.set_up(&from, clients)?, "{} was there a moment ago", peer.name());
            measure(&load, steps, || Ok(()))
        }
        System::Weir => {
            let middle = Namespace::new("weir")?;
            let (a, b) = (End { namespace: &middle, name: "wa" }, End { namespace: &middle, name: "wb" });
            bed::veth(0, c, a, WEIR_QUEUES)?;
            bed::veth(1, b, s, 1)?;
            bed::address(0, c, s)?;
            let limit = ["--rate", RATE, "--burst", BURST];
            let wire = Wire::start(&options.weir_binary, &middle, ["wa", "wb"], &limit)?;
            let mut values = measure(&load, steps, || wire.check())?;
            wire.check()?;
            values.push(("empty_wakes", empty_wakes(&wire.counters()?).into()));
            wire.stop()?;
            Ok(values)
        }
        System::WeirLimit => {
            bed::veth(0, c, s, 1)?;
            bed::address(0, c, s)?;
            let name = format!("lab-{}", std::process::id());
            let weir = |arguments: &[&str]| -> Result<()> {
                let mut command = to.command(&options.weir_binary);
                process::run(command.args(arguments), TOOL_LIMIT)?.success().map(drop)
            };
            // The limit is of all packets that clients send by their end of the pair, named by the servers'.
            weir(&["limit", s.name, "--rate", RATE, "--burst", BURST, "--name", &name])?;
            let values = measure(&load, steps, || weir(&["stat", &name, "--check"]))?;
            weir(&["stat", &name, "--check"])?;
            weir(&["limit", s.name, "--off"])?;
            Ok(values)
        }
        System::Htb | System::WeirHtb | System::WeirCbq => unreachable!("their cases are trees"),
    }
}

/// Floods through the system between the namespaces, with a ping beside, and calls `halfway` meanwhile.
fn measure(load: &Load, steps: &mut Steps, halfway: impl Fn() -> Result<()>) -> Result<Values> {
    let flood = Flood::start(load)?;
    // At either end, while clients start and stop, the rate is not the limit's to decide.
    let margin = Duration::from_secs_f64(load.seconds * 0.1);
    let ping = Ping::start(load.from, load.address, Duration::from_secs_f64(load.seconds * 0.8))?;
    let_pass(margin, |part| steps.within(part * 0.1))?;
    let (busy_before_s, before) = (busy_seconds()?, flood.deliveries()?);
    let half = flood.remaining().saturating_sub(margin) / 2;
    let_pass(half, |part| steps.within(0.1 + part * 0.4))?;
    halfway().context("while the floods ran")?;
    let_pass(flood.remaining().saturating_sub(margin), |part| steps.within(0.5 + part * 0.4))?;
    let after = flood.deliveries()?;
    let window = Window {
        seconds: after.seconds_since(&before),
        frame_bits: (after.packets_since(&before) * FRAME_BYTES * 8) as f64,
        busy_s: busy_seconds()? - busy_before_s,
    };
    let trips = ping.finish()?;
    summarise(&flood.finish(PATIENCE)?, &trips, &window)
}

/// The time in which every client sends.
struct Window {
    seconds: f64,
    frame_bits: f64,
    busy_s: f64,
}

fn summarise(flows: &[Flow], trips: &RoundTrips, window: &Window) -> Result<Values> {
    ensure!(flows.iter().any(|flow| flow.bytes > 0) && window.frame_bits > 0.0, "no datagram arrived");
    let rates: Vec<f64> = flows.iter().map(|flow| flow.bits_per_s).collect();
    Ok(vec![
        ("lost_pct", lost_pct(flows).into()),
        ("rate_share", (window.frame_bits / window.seconds / RATE_BITS_PER_S).into()),
        ("jain", jain(&rates).into()),
        ("reordered", flows.iter().map(|flow| flow.out_of_order).sum::<u64>().into()),
        ("ping_p50_ms", trips.percentile_ms(0.50).into()),
        ("ping_p99_ms", trips.percentile_ms(0.99).into()),
        ("cpu_s_per_gbit", (window.busy_s / (window.frame_bits / 1e9)).into()),
    ])
}

/// Data that the clients sent and the servers never saw, also after the last arrival, in percent.
fn lost_pct(flows: &[Flow]) -> f64 {
    let sent: u64 = flows.iter().map(|flow| flow.sent_bytes).sum();
    let missing: u64 = flows.iter().map(Flow::missing).sum();
    100.0 * missing as f64 / sent as f64
}

/// The published loss of sections I and III of the RFC: its kernel before the patch.
fn seed_lost_pct(clients: usize) -> Option<f64> {
    match clients {
        2 => Some(74.7),
        3 => Some(87.0),
        _ => None,
    }
}

/// Wake-ups of held senders that sent nothing, if the daemon counts them.
fn empty_wakes(wire: &Json) -> Option<u64> {
    wire["classes"].as_array()?.iter().map(|class| class["empty_wakes"].as_u64()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The flow of a server that saw no loss before the last arrival.
    fn flow(bytes: u64, sent_bytes: u64) -> Flow {
        let total = bytes / PAYLOAD_BYTES;
        Flow { bytes, bits_per_s: bytes as f64, total, out_of_order: 1, sent_bytes, ..Flow::default() }
    }

    #[test]
    fn a_row_sums_over_the_flows() {
        let trips = RoundTrips { sent: 4, sorted_ms: vec![1.0, 2.0, 3.0] };
        let values =
            |name: &'static str, row: &Values| row.iter().find(|(n, _)| *n == name).unwrap().1.clone();
        let window = Window { seconds: 2.0, frame_bits: 300e6, busy_s: 1.5 };
        let flows = [flow(14_700, 58_800), flow(14_700, 29_400)];
        let row = summarise(&flows, &trips, &window).unwrap();
        assert_eq!(values("lost_pct", &row), Value::Number(100.0 * 2.0 / 3.0));
        assert_eq!(values("reordered", &row), Value::Count(2));
        assert_eq!(values("jain", &row), Value::Number(1.0));
        assert_eq!(values("ping_p99_ms", &row), Value::Number(3.0));
        assert_eq!(values("rate_share", &row), Value::Number(0.75));
        assert_eq!(values("cpu_s_per_gbit", &row), Value::Number(5.0));
    }

    #[test]
    fn published_figures_stand_where_they_were_published() {
        assert_eq!([2, 3, 8].map(seed_lost_pct), [Some(74.7), Some(87.0), None]);
    }

    #[test]
    fn systems_are_known_by_name() {
        for system in System::ALL {
            assert_eq!(System::from_name(system.name()), Some(system));
        }
        assert_eq!(System::from_name("none"), None);
    }

    #[test]
    fn a_daemon_that_does_not_count_empty_wakes_has_none_to_tell() {
        let wire = serde_json::json!({"classes": [{"empty_wakes": 2}, {"empty_wakes": 1}]});
        assert_eq!(empty_wakes(&wire), Some(3));
        assert_eq!(empty_wakes(&serde_json::json!({})), None);
    }
}
