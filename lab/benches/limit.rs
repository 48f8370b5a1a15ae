//! The cost of a limit in place: four TCP streams behind 1 Gbit/s, with the kernel's TBF and with `weir limit`, as it ships, on one pair;
//! and one stream through the kernel's bridge with a limit far away, 20 Gbit/s, beside the bridge alone. TBF is run as it is, and with the
//! far end's receive steering to one processor, as a limit in place sets it at this rate: without that a shaper's packets may overtake each
//! other there.
//!
//! Those of each take turns, forth and back, so that a drift of the machine hits all alike; the ratio is the median of those of each round,
//! with its spread. Processor time is the whole machine's, counted by a loop on each processor ([`weir_lab::looper`]); on a machine that is
//! shared, the spread says what it is worth. Needs root, and no other such loop beside it: `make bench` leaves `scripts/awake.sh` out here.
//!
//! `cargo bench -p weir-lab --bench limit -- far` runs the second alone, `-- near` the first.

#[path = "../../benches/floors.rs"]
mod floors;

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use floors::Floors;
use weir_lab::bed::{self, End, Namespace};
use weir_lab::looper::{self, Looper};
use weir_lab::machine::Machine;
use weir_lab::process::{Process, run};
use weir_lab::wire::built_weir;

const RATE: &str = "1gbit";
const RATE_BITS_PER_S: f64 = 1e9;
const FAR_RATE: &str = "20gbit";
const SECONDS: u64 = 5;
/// Two figures that differ by a tenth and spread by a half take so many to tell apart.
const NEAR_ROUNDS: usize = 20;
const FAR_ROUNDS: usize = 10;
const TOOL_LIMIT: Duration = Duration::from_secs(20);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum System {
    Tbf,
    SteeredTbf,
    Limit,
    FarLimit,
    None,
}

impl System {
    fn streams(self) -> &'static str {
        match self {
            System::Tbf | System::SteeredTbf | System::Limit => "4",
            System::FarLimit | System::None => "1",
        }
    }

    fn has_bridge(self) -> bool {
        matches!(self, System::FarLimit | System::None)
    }
}

/// The figures of one turn.
#[derive(Clone, Copy, Debug)]
struct Figures {
    busy_s: f64,
    bits_per_s: f64,
}

fn main() -> Result<ExitCode> {
    if !bed::is_privileged() {
        println!("limit: needs root to make network namespaces: left out");
        return Ok(ExitCode::SUCCESS);
    }
    if let Err(error) = looper::require_quick_clock() {
        println!("limit: {error}: left out");
        return Ok(ExitCode::SUCCESS);
    }
    bed::begin()?;
    let weir = built_weir()?;
    println!("{}", Machine::measure()?.to_line());
    let named: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with("--")).collect();
    let is_asked = |part: &str| named.is_empty() || named.iter().any(|name| name == part);
    let mut floors = Floors::default();
    if is_asked("near") {
        near(&weir, &mut floors)?;
    }
    if is_asked("far") {
        far(&weir, &mut floors)?;
    }
    Ok(floors.finish())
}

/// The cost of holding a rate, beside the kernel's TBF.
fn near(weir: &Path, floors: &mut Floors) -> Result<()> {
    let rounds = turns(NEAR_ROUNDS, [System::Tbf, System::SteeredTbf, System::Limit], weir)?;
    for (index, name) in ["tbf", "tbf, steered", "weir limit"].iter().enumerate() {
        let bits_per_s = median(rounds.iter().map(|round| round[index].bits_per_s));
        let busy_s = median(rounds.iter().map(|round| round[index].busy_s));
        println!("{name:>12}  busy {busy_s:.2} s in {SECONDS} s  {:.0} Mbit/s", bits_per_s / 1e6);
        ensure!(bits_per_s > 0.9 * RATE_BITS_PER_S, "{name} misses the rate");
    }
    for (peer, name) in ["tbf", "tbf, steered"].iter().enumerate() {
        let ratios = || rounds.iter().map(|round| round[2].busy_s / round[peer].busy_s);
        let what = format!("weir limit / {name}, processor time{}", spread(ratios()));
        floors.at_most(&what, median(ratios()), 1.1);
    }
    Ok(())
}

/// The cost of a limit that is never reached.
fn far(weir: &Path, floors: &mut Floors) -> Result<()> {
    let pairs = turns(FAR_ROUNDS, [System::None, System::FarLimit], weir)?;
    let of = || pairs.iter().map(|[none, limit]| limit.bits_per_s / none.bits_per_s);
    println!(
        "one stream by a bridge: {:.1} Gbit/s without a limit, {:.1} with one of {FAR_RATE}",
        median(pairs.iter().map(|pair| pair[0].bits_per_s)) / 1e9,
        median(pairs.iter().map(|pair| pair[1].bits_per_s)) / 1e9
    );
    floors.at_least(&format!("limit far away / the bridge alone, TCP{}", spread(of())), median(of()), 0.8);
    Ok(())
}

/// So many rounds of the systems, one after the other, forth and back.
fn turns<const N: usize>(count: usize, systems: [System; N], weir: &Path) -> Result<Vec<[Figures; N]>> {
    let mut rounds = Vec::new();
    for round in 0..count {
        let mut figures = [Figures { busy_s: 0.0, bits_per_s: 0.0 }; N];
        for step in 0..N {
            let index = if round % 2 == 0 { step } else { N - 1 - step };
            let system = systems[index];
            figures[index] = turn(system, weir).with_context(|| format!("{system:?}"))?;
        }
        rounds.push(figures);
    }
    Ok(rounds)
}

fn spread(ratios: impl Iterator<Item = f64>) -> String {
    let (least, most) = ratios.fold((f64::MAX, 0.0f64), |(a, b), ratio| (a.min(ratio), b.max(ratio)));
    format!(" ({least:.2} to {most:.2})")
}

/// Two hosts on a fresh pair or on a bridge, one limit, the streams.
fn turn(system: System, weir: &Path) -> Result<Figures> {
    let [left, middle, right] =
        [Namespace::new("left")?, Namespace::new("middle")?, Namespace::new("right")?];
    let (a, b) = (End { namespace: &left, name: "veth0" }, End { namespace: &right, name: "veth0" });
    let between = End { namespace: if system.has_bridge() { &middle } else { &right }, name: "veth1" };
    if system.has_bridge() {
        bed::plain_veth(1, a, between)?;
        bed::plain_veth(2, b, End { namespace: &middle, name: "veth2" })?;
        middle.ip("link add name bridge0 type bridge")?;
        for name in ["veth1", "veth2"] {
            middle.ip(&format!("link set {name} master bridge0"))?;
        }
        middle.ip("link set bridge0 up")?;
        bed::address(1, a, b)?;
    } else {
        bed::veth(1, a, between, 1)?;
        bed::address(1, a, between)?;
    }
    match system {
        System::Tbf | System::SteeredTbf => {
            left.tc(&format!("qdisc add dev veth0 root tbf rate {RATE} burst 250kb limit 4mb"))?;
            if system == System::SteeredTbf {
                // To one processor, as `weir limit` does at this rate.
                let to_one = "echo 1 > /sys/class/net/veth1/queues/rx-0/rps_cpus";
                run(between.namespace.command("sh").args(["-c", to_one]), TOOL_LIMIT)?.success()?;
            }
        }
        System::Limit | System::FarLimit => {
            let rate = if system == System::Limit { RATE } else { FAR_RATE };
            let mut command = between.namespace.command(weir);
            drop(run(command.args(["limit", "veth1", "--rate", rate]), TOOL_LIMIT)?.success()?);
        }
        System::None => {}
    }
    let mut server = Process::spawn(right.command("iperf3").args(["-s", "-1", "--forceflush"]))?;
    server.wait_for_output("listening", Duration::from_secs(5))?;
    let to = bed::names(1, 2).v4;
    let seconds = SECONDS.to_string();
    let looper = Looper::start()?;
    let before = looper.read();
    let mut client = left.command("iperf3");
    let done =
        run(client.args(["-c", &to, "-P", system.streams(), "-t", &seconds, "-J"]), TOOL_LIMIT)?.success()?;
    let busy_s = looper.read().busy_s_since(&before);
    let report: serde_json::Value = serde_json::from_str(&done.stdout)?;
    let bits_per_s = report["end"]["sum_received"]["bits_per_second"].as_f64().context("iperf3 reports")?;
    Ok(Figures { busy_s, bits_per_s })
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
