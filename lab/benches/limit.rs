//! What a limit in place costs: four TCP streams behind 1 Gbit/s, with the kernel's TBF and with `weir limit`, as it ships.
//!
//! The two take turns, ABBA, so that a drift of the machine hits both alike; the ratio is of medians, with its spread over the pairs.
//! Processor time is the whole machine's: on one that is shared, the spread says what it is worth. Needs root.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use weir_lab::bed::{self, End, Namespace};
use weir_lab::machine::{Machine, busy_seconds};
use weir_lab::process::{Process, run};

const RATE: &str = "1gbit";
const RATE_BITS_PER_S: f64 = 1e9;
const SECONDS: u64 = 5;
const ROUNDS: usize = 4;
const TOOL_LIMIT: Duration = Duration::from_secs(20);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum System {
    Tbf,
    Limit,
}

/// What one turn measured.
#[derive(Clone, Copy, Debug)]
struct Figures {
    busy_s: f64,
    bits_per_s: f64,
}

fn main() -> Result<()> {
    if !bed::is_privileged() {
        println!("limit: needs root to make network namespaces; not run");
        return Ok(());
    }
    let weir = binary()?;
    println!("{}", Machine::measure()?.to_line());
    let mut ratios = Vec::new();
    let mut all: [Vec<Figures>; 2] = Default::default();
    for round in 0..ROUNDS {
        let order = if round % 2 == 0 { [0, 1] } else { [1, 0] };
        let mut pair = [0.0; 2];
        for index in order {
            let system = [System::Tbf, System::Limit][index];
            let figures = turn(system, &weir).with_context(|| format!("{system:?}"))?;
            pair[index] = figures.busy_s;
            all[index].push(figures);
        }
        ratios.push(pair[1] / pair[0]);
    }
    for (name, figures) in ["tbf", "weir limit"].iter().zip(&all) {
        println!(
            "{name:>10}  busy {:.2} s in {SECONDS} s  {:.0} Mbit/s",
            median(figures.iter().map(|figures| figures.busy_s)),
            median(figures.iter().map(|figures| figures.bits_per_s)) / 1e6
        );
    }
    let (least, most) = ratios.iter().fold((f64::MAX, 0.0f64), |(a, b), r| (a.min(*r), b.max(*r)));
    println!("limit: {:.2} times TBF's processor time ({least:.2} to {most:.2})", median(ratios.into_iter()));
    Ok(())
}

fn binary() -> Result<PathBuf> {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| "target".into(), PathBuf::from);
    let path = target.join("release/weir");
    let path =
        if path.is_relative() { Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path) } else { path };
    path.canonicalize().context("no release build of weir: `make build` first")
}

/// A fresh pair, one limit, the streams.
fn turn(system: System, weir: &Path) -> Result<Figures> {
    let [left, right] = [Namespace::new("left")?, Namespace::new("right")?];
    let (a, b) = (End { namespace: &left, name: "veth0" }, End { namespace: &right, name: "veth1" });
    bed::veth(1, a, b, 1)?;
    bed::address(1, a, b)?;
    match system {
        System::Tbf => {
            drop(left.tc(&format!("qdisc add dev veth0 root tbf rate {RATE} burst 250kb limit 4mb"))?)
        }
        System::Limit => {
            let mut command = right.command(weir);
            drop(run(command.args(["limit", "veth1", "--rate", RATE]), TOOL_LIMIT)?.success()?);
        }
    }
    let mut server = Process::spawn(right.command("iperf3").args(["-s", "-1", "--forceflush"]))?;
    server.wait_for_output("listening", Duration::from_secs(5))?;
    let to = bed::names(1, 2).v4;
    let seconds = SECONDS.to_string();
    let before_s = busy_seconds()?;
    let mut client = left.command("iperf3");
    let done = run(client.args(["-c", &to, "-P", "4", "-t", &seconds, "-J"]), TOOL_LIMIT)?.success()?;
    let busy_s = busy_seconds()? - before_s;
    let report: serde_json::Value = serde_json::from_str(&done.stdout)?;
    let bits_per_s = report["end"]["sum_received"]["bits_per_second"].as_f64().context("iperf3 reports")?;
    ensure!(bits_per_s > 0.9 * RATE_BITS_PER_S, "only {:.0} Mbit/s arrived", bits_per_s / 1e6);
    Ok(Figures { busy_s, bits_per_s })
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
