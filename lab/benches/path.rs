//! Paths in memory: forwarding by one bridge beside DPDK's `testpmd`, and the published bed on one worker and on two.
//!
//! - `bridge`: generator, link, learning bridge, link, sink, on one worker; 64-byte packets, each written, checked and counted.
//! - `testpmd`: `macswap` from `net_pcap`, which plays 256 packets over and over, to `net_null`, on one core: it copies each
//!   packet, swaps its addresses and throws it away. Left out, and said so, where it is not installed (`apt-get install dpdk-dev`).
//! - `testbed-1`, `testbed-2`: the bed of `weir lab epair`.
//!
//! Systems take turns. Figures are packets for each second of processor time of the busiest thread, spinning included, so that other
//! programs on the machine are mostly left out of both; and by the clock. Medians, and the ratio with its spread.
//!
//! `cargo bench -p weir-lab --bench path -- bridge` runs the rows named alone, for a profiler.

#[path = "../../benches/floors.rs"]
mod floors;

use std::io::{BufRead, BufReader};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result, ensure};
use floors::Floors;
use weir_core::net::bridge::AGEING_NS;
use weir_lab::machine::{Machine, process_seconds};
use weir_path::owners::Owners;
use weir_path::plan::{Attachment, Plan, StageKind, StagePlan};
use weir_path::traffic::flows::{Flows, Traffic};
use weir_path::traffic::generator::{GenSpec, Until};
use weir_run::memory::{MemoryEnd, MemoryPath};
use weir_run::testbed::{FLOWS, SINK, port, testbed, traffic};

const TURNS: usize = 5;
const TIME: Until = Until::Elapsed(500_000_000);
const SIZE_BYTES: u16 = 64;
const PEER: &str = "/usr/bin/dpdk-testpmd";

/// Millions of packets for each second of processor time, and by the clock.
type Figures = [f64; 2];

const ROWS: [&str; 4] = ["bridge", "testpmd", "testbed-1", "testbed-2"];

fn main() -> Result<ExitCode> {
    println!("{}", Machine::measure()?.to_line());
    let named: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with("--")).collect();
    if let Some(name) = named.iter().find(|name| !ROWS.contains(&name.as_str())) {
        anyhow::bail!("there is no row {name}: give some of {}", ROWS.join(", "));
    }
    let [ours, mut peer, one, mut two] =
        ROWS.map(|row| named.is_empty() || named.iter().any(|name| name == row));
    if peer && !std::path::Path::new(PEER).exists() {
        println!("path: dpdk-testpmd is not installed (apt-get install dpdk-dev): left out");
        peer = false;
    }
    if two && std::thread::available_parallelism()?.get() < 2 {
        println!("path: testbed-2 needs two processors: left out");
        two = false;
    }
    let mut figures: [Vec<Figures>; 4] = Default::default();
    for _ in 0..TURNS {
        if ours {
            figures[0].push(weir(&bridge())?);
        }
        if peer {
            figures[1].push(testpmd()?);
        }
        if one {
            figures[2].push(weir(&testbed(1, None, TIME))?);
        }
        if two {
            figures[3].push(weir(&testbed(2, None, TIME))?);
        }
    }
    println!("{:>10}  {:>12}  {:>12}", "", "of CPU, M/s", "by clock");
    for (name, figures) in ROWS.iter().zip(&figures) {
        if !figures.is_empty() {
            let median = |of: usize| sorted(figures.iter().map(|one| one[of]))[figures.len() / 2];
            println!("{name:>10}  {:>12.2}  {:>12.2}", median(0), median(1));
        }
    }
    let mut floors = Floors::default();
    // The least share of the peer's packets for each second of processor time, in the same turn; in a run beside compilers 0.37 and 0.15.
    for (row, least) in [(2, 0.25), (3, 0.1)] {
        let turns = figures[row].iter().zip(&figures[1]);
        let ratios = sorted(turns.map(|(bed, peer)| bed[0] / peer[0]));
        if let Some(&ratio) = ratios.get(ratios.len() / 2) {
            floors.at_least(&format!("{} / testpmd", ROWS[row]), ratio, least);
        }
    }
    if ours && peer {
        let ratios = sorted(figures[0].iter().zip(&figures[1]).map(|(ours, theirs)| ours[0] / theirs[0]));
        println!("bridge / testpmd: {:.2} ({:.2} to {:.2})", ratios[TURNS / 2], ratios[0], ratios[TURNS - 1]);
        floors.at_least("bridge / testpmd", ratios[TURNS / 2], 0.6);
    }
    Ok(floors.finish())
}

fn weir(spec: &MemoryPath) -> Result<Figures> {
    let summary = spec.run(&mut |_, _| true)?;
    let seen = summary.sequences();
    ensure!(summary.balances() && summary.lost() == 0, "{summary:?}");
    ensure!(seen.missing + seen.duplicated + seen.reordered == 0, "{seen:?}");
    Ok([summary.packets_per_cpu_s() / 1e6, summary.packets_per_s() / 1e6])
}

/// As many flows as the peer has packets.
fn l2_traffic() -> Traffic {
    Traffic { size_bytes: SIZE_BYTES, flows: 256, dst_mac: SINK, ..traffic() }
}

fn bridge() -> MemoryPath {
    let kind = StageKind::Bridge { ports: 2, stations_max: 1024, ageing_ns: AGEING_NS };
    let plan = Plan {
        ports: ["gen", "sink"].map(port).into(),
        stages: vec![StagePlan { name: "bridge".into(), kind }],
        links: [0, 1].map(|at| [Attachment::Port(at), Attachment::Stage(0, at as u16)]).into(),
        ..Plan::default()
    };
    let generator = GenSpec { traffic: l2_traffic(), packets_per_s: None, until: TIME };
    MemoryPath {
        owners: Owners::alone(&plan),
        plan,
        ends: vec![MemoryEnd::Generator(generator), MemoryEnd::Sink { flows: FLOWS }],
        workers: 1,
        frames: 2048,
        held_packets_max: 256,
    }
}

/// Runs the peer for some of its reports, one a second.
fn testpmd() -> Result<Figures> {
    const REPORTS: usize = 3;
    let pcap = std::env::temp_dir().join(format!("weir-path-{}.pcap", std::process::id()));
    std::fs::write(&pcap, as_pcap(&l2_traffic())?)?;
    let arguments = format!(
        "--no-huge --no-pci --no-telemetry --file-prefix=weir{} -m 512 -l 0,1 \
         --vdev=net_pcap0,rx_pcap={},infinite_rx=1 --vdev=net_null0,no-rx=1 -- --no-mlockall \
         --total-num-mbufs=16384 --forward-mode=macswap --nb-cores=1 --burst=32 --stats-period=1",
        std::process::id(),
        pcap.display()
    );
    let mut child = Command::new(PEER)
        .args(arguments.split_whitespace())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    let mut seen = Vec::new();
    for line in BufReader::new(child.stdout.take().context("its output")?).lines() {
        let line = line?;
        let count = line.trim().strip_prefix("RX-packets:").and_then(|rest| rest.split_whitespace().next());
        // The null device receives nothing, and reports so.
        if let Some(packets) = count.and_then(|count| count.parse::<u64>().ok()).filter(|&n| n > 0) {
            seen.push((packets, process_seconds(child.id())?, weir_lab::clock::now()));
            if seen.len() == REPORTS {
                break;
            }
        }
    }
    child.kill()?;
    child.wait()?;
    std::fs::remove_file(&pcap)?;
    let [first, .., last] = &seen[..] else {
        anyhow::bail!("dpdk-testpmd reports nothing: run it by hand with {arguments}")
    };
    let packets = (last.0 - first.0) as f64 / 1e6;
    Ok([packets / (last.1 - first.1), packets / last.2.duration_since(first.2).as_secs_f64()])
}

/// The first packet of each flow, in libpcap's format (Ethernet is link type 1).
fn as_pcap(traffic: &Traffic) -> Result<Vec<u8>> {
    let mut file: Vec<u8> = [0xa1b2_c3d4_u32, 0x0004_0002, 0, 0, 65_535, 1].map(u32::to_le_bytes).concat();
    let mut flows = Flows::new(traffic)?;
    for _ in 0..traffic.flows {
        let mut bytes = [0; 64];
        flows.write_next(&mut bytes);
        let len_bytes = u32::from(SIZE_BYTES);
        file.extend([0, 0, len_bytes, len_bytes].map(u32::to_le_bytes).concat());
        file.extend(&bytes[..usize::from(SIZE_BYTES)]);
    }
    Ok(file)
}

fn sorted(figures: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut figures: Vec<f64> = figures.collect();
    figures.sort_by(f64::total_cmp);
    figures
}
