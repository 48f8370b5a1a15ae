//! ESP in memory, sealed and opened again, beside the cipher alone and beside other libraries.
//!
//! - `bridges`: generator, two bridges, sink, on one worker: the path without ESP.
//! - `null`: the same with two gateways in place of the bridges, and an association without encryption or proof.
//! - `tunnel`: the same by AES-256-GCM.
//! - `aws-lc-rs`: the same cipher alone, sealing and opening one buffer as long as a packet in the tunnel.
//! - `openssl`: `openssl speed` of the same, both ways.
//! - `dpdk`: `dpdk-test-crypto-perf` with `crypto_aesni_gcm`, bursts of 32, both ways. Left out, and said so, where it is not installed.
//!
//! - `esp-sealers-2`: the tunnel on two workers, each of its two associations shared by two sealers, beside `copies`: two such tunnels,
//!   each whole on a worker of its own. Packets a second of time; left out where there is one core.
//! - `esp-hybrid-2`: the tunnel on two workers by hybrid dispatch with two sealers, beside the two ways between which it chooses: deferred
//!   dispatch with two sealers, and the home alone.
//!
//! Systems take turns. Figures are cycles of the time-stamp counter for each packet, of processor time; medians. The cost of ESP beyond the
//! cipher is `tunnel` less `bridges` and `aws-lc-rs` together; for sealing or opening one packet it is the half of that.
//!
//! `cargo bench -p weir-lab --bench ipsec -- tunnel` runs the rows named alone, for a profiler.

#[path = "../../benches/cycles.rs"]
mod cycles;
#[path = "../../benches/floors.rs"]
mod floors;

use std::process::{Command, ExitCode};

use anyhow::{Context, Result, ensure};
use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use floors::Floors;
use weir_core::dispatch::protocol::Mode;
use weir_ipsec::algorithm::Algorithm;
use weir_lab::machine::Machine;
use weir_lab::tunnel::{Between, tunnel, tunnels};
use weir_path::esp::plan::EspDispatch;
use weir_path::traffic::generator::Until;
use weir_run::clock::thread_cpu_ns;
use weir_run::memory::summary::MemorySummary;

const TURNS: usize = 5;
const TIME: Until = Until::Elapsed(500_000_000);
/// IP packets in the tunnel, in bytes.
const SIZES: [u16; 2] = [64, 1420];
const LINK_BYTES: u16 = 14;
const CIPHER_PACKETS: u32 = 400_000;
const DPDK: &str = "/usr/bin/dpdk-test-crypto-perf";
const OPENSSL: &str = "/usr/bin/openssl";

const ROWS: [&str; 8] =
    ["bridges", "null", "tunnel", "aws-lc-rs", "openssl", "dpdk", "esp-sealers-2", "esp-hybrid-2"];

fn main() -> Result<ExitCode> {
    println!("{}", Machine::measure()?.to_line());
    let named: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with("--")).collect();
    if let Some(name) = named.iter().find(|name| !ROWS.contains(&name.as_str())) {
        anyhow::bail!("there is no row {name}: give some of {}", ROWS.join(", "));
    }
    let is_asked = |row: &str| named.is_empty() || named.iter().any(|name| name == row);
    let is_there = |row: &str, program: &str| {
        let there = std::path::Path::new(program).exists();
        if is_asked(row) && !there {
            println!("ipsec: {program} is not installed: left out");
        }
        is_asked(row) && there
    };
    let (openssl_is, dpdk_is) = (is_there("openssl", OPENSSL), is_there("dpdk", DPDK));
    let has_cores = std::thread::available_parallelism()?.get() > 1;
    for row in ROWS[6..].iter().filter(|row| is_asked(row) && !has_cores) {
        println!("ipsec: {row} needs two processors: left out");
    }
    let tsc_hz = cycles::tsc_hz();
    let mut floors = Floors::default();
    for size in SIZES {
        let mut figures: [Vec<f64>; ROWS.len()] = Default::default();
        for _ in 0..TURNS {
            let path = |between| path(between, size, tsc_hz);
            for (row, between) in [
                Between::Bridges,
                Between::Gateways(Algorithm::Null),
                Between::Gateways(Algorithm::Aes256Gcm),
            ]
            .into_iter()
            .enumerate()
            {
                if is_asked(ROWS[row]) {
                    figures[row].push(path(between)?);
                }
            }
            if is_asked("aws-lc-rs") {
                figures[3].push(cipher(size, tsc_hz)?);
            }
            if openssl_is {
                figures[4].push(openssl(size, tsc_hz)?);
            }
            if dpdk_is {
                figures[5].push(dpdk(size)?);
            }
        }
        if is_asked("esp-sealers-2") && has_cores {
            sealers(size, &mut floors)?;
        }
        if is_asked("esp-hybrid-2") && has_cores {
            hybrid(size, &mut floors)?;
        }
        println!("{size} bytes in the tunnel");
        println!("{:>10}  {:>15}  {:>10}", "", "cycles a packet", "spread");
        for (name, figures) in ROWS.iter().zip(&figures) {
            if let [least, .., most] = sorted(figures)[..] {
                println!("{name:>10}  {:>15.0}  {least:.0}-{most:.0}", median(figures));
            }
        }
        if figures[..4].iter().any(Vec::is_empty) {
            continue;
        }
        let turns = figures[2].iter().zip(&figures[0]).zip(&figures[3]);
        let beyond: Vec<f64> =
            turns.map(|((tunnel, bridges), cipher)| (tunnel - bridges - cipher) / 2.0).collect();
        let sorted = sorted(&beyond);
        println!(
            "beyond the cipher: {:.0} cycles a packet sealed or opened ({:.0} to {:.0})",
            median(&beyond),
            sorted[0],
            sorted[TURNS - 1]
        );
        floors.at_most(&format!("ESP beyond the cipher, {size} bytes"), median(&beyond), 1000.0);
    }
    Ok(floors.finish())
}

/// One association over two sealers beside two associations, in turns.
fn sealers(size: u16, floors: &mut Floors) -> Result<()> {
    let shared = EspDispatch { mode: Mode::Deferred, sealers: 2, ..EspDispatch::default() };
    let (mut rates, mut ratios) = ([Vec::new(), Vec::new()], Vec::new());
    for _ in 0..TURNS {
        let [copies, sealers] = [rate(2, [EspDispatch::default(); 2], size)?, rate(1, [shared; 2], size)?];
        rates[0].push(copies);
        rates[1].push(sealers);
        ratios.push(sealers / copies);
    }
    let [copies, sealers] = rates.map(|rates| median(&rates) / 1e6);
    let sorted = sorted(&ratios);
    println!(
        "{size} bytes on two workers: esp-sealers-2 {sealers:.2} Mpps, copies {copies:.2} Mpps: {:.2} ({:.2} to {:.2})",
        median(&ratios),
        sorted[0],
        sorted[TURNS - 1]
    );
    floors.at_least(
        &format!("one association over two sealers beside two, {size} bytes"),
        median(&ratios),
        0.3,
    );
    Ok(())
}

/// Hybrid dispatch beside the two ways between which it chooses, in turns.
fn hybrid(size: u16, floors: &mut Floors) -> Result<()> {
    let dispatch = |mode, sealers| EspDispatch { mode, sealers, ..EspDispatch::default() };
    let systems = [dispatch(Mode::Hybrid, 2), dispatch(Mode::Deferred, 2), dispatch(Mode::Deferred, 0)];
    let mut rates: [Vec<f64>; 3] = Default::default();
    for turn in 0..TURNS {
        // Systems take turns in being the first, too.
        for system in (turn..turn + 3).map(|number| number % 3) {
            // With the owners of hybrid dispatch, which cannot choose others.
            rates[system].push(rate(1, [systems[system], systems[0]], size)?);
        }
    }
    let [mine, sealers, alone] = [0, 1, 2].map(|system| median(&rates[system]) / 1e6);
    let better = if sealers > alone { &rates[1] } else { &rates[2] };
    let ratios: Vec<f64> = rates[0].iter().zip(better).map(|(mine, better)| mine / better).collect();
    let sorted = sorted(&ratios);
    println!(
        "{size} bytes on two workers: esp-hybrid-2 {mine:.2} Mpps, sealers {sealers:.2} Mpps, the home alone {alone:.2} Mpps: \
         {:.2} of the better ({:.2} to {:.2})",
        median(&ratios),
        sorted[0],
        sorted[TURNS - 1]
    );
    floors.at_least(&format!("hybrid beside the better of its ways, {size} bytes"), median(&ratios), 0.7);
    Ok(())
}

/// The packets a second of so many tunnels on two workers: their dispatch, and that by which they are dealt to the workers.
fn rate(count: usize, dispatch: [EspDispatch; 2], size: u16) -> Result<f64> {
    let summary = tunnels(count, dispatch, 2, size + LINK_BYTES, TIME).run(&mut |_, _| true)?;
    require_clean(&summary)?;
    Ok(summary.packets_per_s())
}

fn require_clean(summary: &MemorySummary) -> Result<()> {
    let seen = summary.sequences();
    ensure!(summary.balances() && summary.lost() == 0, "{summary:?}");
    ensure!(summary.account.dropped.total().packets == 0, "{summary:?}");
    ensure!(seen.missing + seen.duplicated + seen.reordered == 0, "{seen:?}");
    Ok(())
}

fn path(between: Between, size: u16, tsc_hz: f64) -> Result<f64> {
    let summary = tunnel(between, size + LINK_BYTES, TIME).run(&mut |_, _| true)?;
    require_clean(&summary)?;
    Ok(tsc_hz / summary.packets_per_cpu_s())
}

/// Padding to four bytes, pad length and next header (RFC 4303 section 2.4).
fn sealed_bytes(size: u16) -> usize {
    (usize::from(size) + 2).next_multiple_of(4)
}

fn cipher(size: u16, tsc_hz: f64) -> Result<f64> {
    const SPI: u32 = 0x1001;
    let key = UnboundKey::new(&AES_256_GCM, &[7; 32]).ok().context("a key of 32 bytes")?;
    let key = LessSafeKey::new(key);
    let mut buffer = vec![0x5a; sealed_bytes(size)];
    let nonce = |number: u64| {
        let mut nonce = [0; 12];
        nonce[4..].copy_from_slice(&number.to_be_bytes());
        Nonce::assume_unique_for_key(nonce)
    };
    let start_ns = thread_cpu_ns();
    for number in 0..u64::from(CIPHER_PACKETS) {
        let mut associated = [0; 12];
        associated[..4].copy_from_slice(&SPI.to_be_bytes());
        associated[4..].copy_from_slice(&number.to_be_bytes());
        let tag = key.seal_in_place_separate_tag(nonce(number), Aad::from(&associated), &mut buffer);
        let tag = tag.ok().context("sealing")?;
        buffer.extend_from_slice(tag.as_ref());
        let opened = key.open_in_place(nonce(number), Aad::from(&associated), &mut buffer);
        let len = opened.ok().context("opening")?.len();
        buffer.truncate(len);
    }
    let cpu_s = (thread_cpu_ns() - start_ns) as f64 / 1e9;
    ensure!(buffer.iter().all(|&byte| byte == 0x5a), "what was opened is not what was sealed");
    Ok(tsc_hz * cpu_s / f64::from(CIPHER_PACKETS))
}

fn openssl(size: u16, tsc_hz: f64) -> Result<f64> {
    let bytes = sealed_bytes(size);
    let mut cycles = 0.0;
    for way in [&["-evp", "aes-256-gcm"][..], &["-decrypt", "-evp", "aes-256-gcm"]] {
        let output = Command::new(OPENSSL)
            .args(["speed", "-mr", "-seconds", "1", "-bytes", &bytes.to_string()])
            .args(way)
            .output()?;
        let text = String::from_utf8_lossy(&output.stdout);
        let line =
            text.lines().find(|line| line.starts_with("+F:")).context("openssl speed printed no figure")?;
        let bytes_per_s: f64 = line.rsplit(':').next().context("no figure")?.parse()?;
        cycles += tsc_hz / (bytes_per_s / bytes as f64);
    }
    Ok(cycles)
}

fn dpdk(size: u16) -> Result<f64> {
    let mut cycles = 0.0;
    for way in ["encrypt", "decrypt"] {
        let arguments = format!(
            "--no-huge -m 512 --no-pci --no-telemetry --file-prefix=weir{} -l 0,1 --vdev crypto_aesni_gcm -- \
             --devtype crypto_aesni_gcm --ptest throughput --silent --optype aead --aead-algo aes-gcm --aead-op {way} \
             --aead-key-sz 32 --aead-iv-sz 12 --aead-aad-sz 12 --digest-sz 16 --buffer-sz {} --total-ops 1000000 \
             --burst-sz 32 --csv-friendly",
            std::process::id(),
            sealed_bytes(size)
        );
        let output = Command::new(DPDK).args(arguments.split_whitespace()).output()?;
        let text = String::from_utf8_lossy(&output.stdout);
        let mut figure = text.lines().filter(|line| line.starts_with(|digit: char| digit.is_ascii_digit()));
        let figure = figure.next_back().and_then(|line| line.rsplit(',').next()?.trim().parse::<f64>().ok());
        cycles += figure
            .with_context(|| format!("dpdk-test-crypto-perf printed no figure: run it with {arguments}"))?;
    }
    Ok(cycles)
}

fn median(figures: &[f64]) -> f64 {
    sorted(figures)[figures.len() / 2]
}

fn sorted(figures: &[f64]) -> Vec<f64> {
    let mut figures = figures.to_vec();
    figures.sort_by(f64::total_cmp);
    figures
}
