//! The forwarding of a wire without limits, beside the kernel's bridge and DPDK's `testpmd` (AF_XDP) between the same two veth pairs.
//!
//! The systems take turns, ABCCBA, so that a drift of the machine hits all alike; medians, and the ratio to each peer with its
//! spread over the turns. Needs root; `testpmd` is left out, and said so, where it is not installed (`apt-get install dpdk-dev`).
//!
//! `WEIR_BEFORE=FILE` measures another build of `weir` as the only peer, ten turns each, with one worker and with two: a change of the
//! path may cost 2 % at most.

#[path = "../../benches/floors.rs"]
mod floors;

use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use floors::Floors;
use weir_lab::bed::{self, End, Namespace};
use weir_lab::blast::{self, Counter};
use weir_lab::iperf3::Stream;
use weir_lab::machine::Machine;
use weir_lab::process::{Process, run};
use weir_lab::wire::{Wire, built_weir};

const PAYLOAD_BYTES: usize = 18;
const TIME: Duration = Duration::from_secs(2);
const ROUNDS: usize = 4;
/// The comparison with another build: how many turns, and the least share of its rate.
const ROUNDS_BEFORE: usize = 10;
const BEFORE_LEAST: f64 = 0.98;
const PORT: u16 = 5001;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum System {
    Weir,
    Testpmd,
    Bridge,
}

/// The figures of one turn.
#[derive(Clone, Copy, Debug, Default)]
struct Figures {
    datagrams_per_s: f64,
    tcp_bits_per_s: f64,
    ping_ms: f64,
}

/// The least share of `testpmd`'s packets a second: in five runs 0.85 to 1.10.
const TESTPMD_LEAST: f64 = 0.75;

fn main() -> Result<ExitCode> {
    if !bed::is_privileged() {
        println!("forward: needs root to make network namespaces: left out");
        return Ok(ExitCode::SUCCESS);
    }
    bed::begin()?;
    let weir = built_weir()?;
    if let Some(before) = std::env::var_os("WEIR_BEFORE") {
        return beside(&weir, Path::new(&before));
    }
    let mut systems = vec![System::Weir, System::Testpmd, System::Bridge];
    if !Path::new("/usr/bin/dpdk-testpmd").exists() {
        println!("forward: dpdk-testpmd is not installed (apt-get install dpdk-dev): left out");
        systems.retain(|&system| system != System::Testpmd);
    }
    println!("{}", Machine::measure()?.to_line());
    let mut figures: Vec<Vec<Figures>> = vec![Vec::new(); systems.len()];
    for round in 0..ROUNDS {
        let mut order: Vec<usize> = (0..systems.len()).collect();
        if round % 2 == 1 {
            order.reverse();
        }
        for index in order {
            let turn = turn(systems[index], &weir, &[]).with_context(|| format!("{:?}", systems[index]))?;
            figures[index].push(turn);
        }
    }
    println!("{:>9}  {:>16}  {:>12}  {:>10}", "", "64-byte UDP k/s", "TCP Gbit/s", "ping ms");
    for (system, figures) in systems.iter().zip(&figures) {
        println!(
            "{:>9}  {:>16.0}  {:>12.2}  {:>10.3}",
            format!("{system:?}").to_lowercase(),
            median(figures.iter().map(|one| one.datagrams_per_s)) / 1e3,
            median(figures.iter().map(|one| one.tcp_bits_per_s)) / 1e9,
            median(figures.iter().map(|one| one.ping_ms)),
        );
    }
    let mut floors = Floors::default();
    for (system, peer) in systems.iter().zip(&figures).skip(1) {
        let ratios = |pick: fn(&Figures) -> f64| {
            let mut ratios: Vec<f64> =
                figures[0].iter().zip(peer).map(|(ours, theirs)| pick(ours) / pick(theirs)).collect();
            ratios.sort_by(f64::total_cmp);
            format!(
                "{:.2} ({:.2} to {:.2})",
                median(ratios.iter().copied()),
                ratios[0],
                ratios[ratios.len() - 1]
            )
        };
        println!(
            "weir / {}: UDP {}, TCP {}",
            format!("{system:?}").to_lowercase(),
            ratios(|one| one.datagrams_per_s),
            ratios(|one| one.tcp_bits_per_s)
        );
        if *system == System::Testpmd {
            let pairs = figures[0].iter().zip(peer);
            let ratio = median(pairs.map(|(ours, theirs)| ours.datagrams_per_s / theirs.datagrams_per_s));
            floors.at_least("weir / testpmd, UDP", ratio, TESTPMD_LEAST);
        }
    }
    Ok(floors.finish())
}

/// Two builds of `weir` in turn.
fn beside(weir: &Path, before: &Path) -> Result<ExitCode> {
    println!("{}", Machine::measure()?.to_line());
    let mut floors = Floors::default();
    for workers in ["1", "2"] {
        let options = ["--workers", workers];
        let mut ratios: [Vec<f64>; 2] = Default::default();
        for round in 0..ROUNDS_BEFORE {
            let mut pair = [None; 2];
            for index in if round % 2 == 0 { [0, 1] } else { [1, 0] } {
                pair[index] = Some(turn(System::Weir, [weir, before][index], &options)?);
            }
            let [Some(ours), Some(theirs)] = pair else { unreachable!("both had their turn") };
            ratios[0].push(ours.datagrams_per_s / theirs.datagrams_per_s);
            ratios[1].push(ours.tcp_bits_per_s / theirs.tcp_bits_per_s);
        }
        for (what, ratios) in ["64-byte UDP", "TCP"].into_iter().zip(&mut ratios) {
            ratios.sort_by(f64::total_cmp);
            let name = format!("weir / before, {workers} workers, {what}");
            println!("{name}: {:.3} to {:.3} in {} pairs", ratios[0], ratios[ratios.len() - 1], ratios.len());
            floors.at_least(&name, median(ratios.iter().copied()), BEFORE_LEAST);
        }
    }
    Ok(floors.finish())
}

/// A fresh bed, one system in the middle, three measurements.
fn turn(system: System, weir: &Path, options: &[&str]) -> Result<Figures> {
    let [left, middle, right] =
        [Namespace::new("left")?, Namespace::new("middle")?, Namespace::new("right")?];
    let (a, b) = (End { namespace: &left, name: "veth0" }, End { namespace: &right, name: "veth1" });
    bed::veth(1, a, End { namespace: &middle, name: "wa" }, 1)?;
    bed::veth(2, b, End { namespace: &middle, name: "wb" }, 1)?;
    bed::address(1, a, b)?;
    let mut forwarder: Option<Process> = None;
    let mut wire: Option<Wire> = None;
    match system {
        System::Weir => wire = Some(Wire::start(weir, &middle, ["wa", "wb"], options)?),
        System::Bridge => {
            middle.ip("link add name bridge0 type bridge")?;
            for name in ["bridge0", "wa", "wb"] {
                middle.ip(&format!("link set {name} up"))?;
            }
            for name in ["wa", "wb"] {
                middle.ip(&format!("link set {name} master bridge0"))?;
            }
        }
        System::Testpmd => {
            for end in [a, b] {
                end.namespace.sh(&format!("ethtool -K {} tx off", end.name))?;
            }
            let mut command = middle.command("dpdk-testpmd");
            let prefix = format!("--file-prefix=weir{}", std::process::id());
            command.args(["--no-huge", "--no-pci", "--no-telemetry", &prefix, "-m", "512", "-l", "0,1"]);
            command.args([
                "--vdev=net_af_xdp0,iface=wa",
                "--vdev=net_af_xdp1,iface=wb",
                "--",
                "--no-mlockall",
            ]);
            command.args([
                "--total-num-mbufs=16384",
                "--forward-mode=io",
                "--nb-cores=1",
                "--burst=32",
                "--stats-period=1",
            ]);
            let mut process = Process::spawn(&mut command)?;
            process.wait_for_output("Port statistics", Duration::from_secs(20))?;
            forwarder = Some(process);
        }
    }
    let to = bed::names(1, 2).v4.parse().context("an address of the bed")?;
    let figures = Figures {
        ping_ms: ping(&left, &bed::names(1, 2).v4)?,
        datagrams_per_s: datagrams(&left, &right, to)?,
        tcp_bits_per_s: tcp(&left, &right, &bed::names(1, 2).v4)?,
    };
    if let Some(wire) = wire {
        wire.check()?;
        wire.stop()?;
    }
    if let Some(process) = forwarder {
        process.stop(Duration::from_secs(10))?;
    }
    Ok(figures)
}

fn datagrams(left: &Namespace, right: &Namespace, to: std::net::Ipv4Addr) -> Result<f64> {
    let counter = right.enter(|| Counter::bind(PORT))??;
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let counting = scope.spawn(|| counter.count(TIME + Duration::from_secs(3), &is_over));
        let sent = left.enter(|| blast::send(to, PORT, PAYLOAD_BYTES, TIME));
        is_over.store(true, Ordering::Relaxed);
        sent??;
        let arrived = counting.join().expect("the counter does not panic");
        ensure!(arrived.datagrams > 0, "nothing arrived");
        Ok(arrived.per_s)
    })
}

fn tcp(left: &Namespace, right: &Namespace, to: &str) -> Result<f64> {
    Ok(Stream::start(left, right, to, 5201, TIME.as_secs(), &[])?.finish()?.bits_per_s)
}

fn ping(left: &Namespace, to: &str) -> Result<f64> {
    let done = run(left.command("ping").args(["-q", "-c", "50", "-i", "0.01", to]), Duration::from_secs(10))?
        .success()?;
    let summary = done.stdout.lines().last().unwrap_or_default();
    let average = summary.split('/').nth(4).context("ping prints a summary")?;
    Ok(average.parse()?)
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
