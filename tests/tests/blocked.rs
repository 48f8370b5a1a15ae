//! A worker that cannot go on and is not told when it can: it looks ever more rarely, and does not sleep while there is work.
//!
//! ```text
//!  left            middle              right                    beyond
//!  veth0 ---- wa [weir wire] wb ---- veth0 [weir wire] vx ---- veth0
//!                                    10 kbit/s: the far end of wb is full
//! ```

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use weir_lab::bed::{End, Namespace, plain_veth};
use weir_lab::clock::{let_pass, now, wait_until};
use weir_lab::iperf::{Flood, Load};
use weir_lab::machine::process_seconds;
use weir_lab::wire::Wire;
use weir_tests::crowd::Crowd;
use weir_tests::rig::{Demand, Rig, measure_rate, require_lossless, require_rate, stat_of};
use weir_tests::{harness, privileged, weir_binary};

const LIMIT: Duration = Duration::from_secs(20);
const TIME: Duration = Duration::from_secs(2);
/// The looks that a far end that takes nothing may cost: one each millisecond at the device, and one at the other worker.
const LOOKS_PER_S: u64 = 2500;

fn main() -> ExitCode {
    harness::main(&[
        privileged!(a_far_end_that_is_full_is_asked_rarely),
        privileged!(a_far_end_that_is_full_is_asked_rarely_by_two_workers),
        privileged!(two_workers_with_little_memory_keep_the_rate),
    ])
}

fn a_far_end_that_is_full_is_asked_rarely() -> Result<()> {
    full_far_end("1")
}

fn a_far_end_that_is_full_is_asked_rarely_by_two_workers() -> Result<()> {
    full_far_end("2")
}

fn full_far_end(workers: &str) -> Result<()> {
    let rig = Rig::plain()?;
    let beyond = Namespace::new("beyond")?;
    let near = End { namespace: &rig.right, name: "vx" };
    plain_veth(2, End { namespace: &beyond, name: "veth0" }, near)?;
    let slow = Wire::start(&weir_binary()?, &rig.right, ["veth0", "vx"], &["--rate", "10kbit"])?;
    let wire = rig.wire(&["--workers", workers])?;
    let crowd = Crowd::start(&rig.left, &rig.right, &rig.right_address().v4, 8, 1400)?;
    let mut before = u64::MAX;
    wait_until("the far end takes no more", LIMIT, || {
        let_pass(TIME / 4, |_| ())?;
        let (accepted, held) = accepted_and_held(&stat_of(&wire)?)?;
        let is_full = held > 0 && accepted.abs_diff(before) <= 2;
        before = accepted;
        Ok(is_full)
    })?;
    let begin = now();
    let (parks, used_s) = (parks(&stat_of(&wire)?)?, process_seconds(wire.id())?);
    let_pass(TIME, |_| ())?;
    let looks = self::parks(&stat_of(&wire)?)? - parks;
    let seconds = begin.elapsed().as_secs_f64();
    let share = (process_seconds(wire.id())? - used_s) / seconds;
    println!("    {looks} looks in {seconds:.1} s, {:.1} % of a core", share * 100.0);
    ensure!(
        looks as f64 <= LOOKS_PER_S as f64 * seconds,
        "it slept {looks} times in {seconds:.1} s in which nothing could leave"
    );
    weir_tests::require_timing!(share < 0.2, "{:.1} % of a core while nothing could leave", share * 100.0);
    drop(crowd);
    slow.stop()?;
    wire.check()?;
    wire.stop()?;
    Ok(())
}

/// The packets that the direction from left to right has accepted and holds.
fn accepted_and_held(stat: &Value) -> Result<(u64, u64)> {
    let class = &stat["wires"][0]["classes"][0];
    let count = |name: &str| class[name].as_u64().with_context(|| format!("no {name}: {class}"));
    Ok((count("accepted")?, count("held")?))
}

fn parks(stat: &Value) -> Result<u64> {
    stat["wires"][0]["worker"]["parks"].as_u64().context("no count of parks")
}

/// With as little as such a wire starts with, each worker waits for frames that the other gives back, all the time.
fn two_workers_with_little_memory_keep_the_rate() -> Result<()> {
    const RATE_BITS_PER_S: f64 = 100e6;
    let rig = Rig::plain()?;
    let start = |kilobytes: u32| {
        let memory = format!("{kilobytes}kb");
        rig.wire(&["--rate", "100mbit", "--workers", "2", "--memory", &memory])
    };
    let (kilobytes, wire) = (1..=32)
        .map(|quarters| 256 * quarters)
        .find_map(|kilobytes| Some((kilobytes, start(kilobytes).ok()?)))
        .context("no wire with 8 MiB of packet memory")?;
    let address = rig.right_address().v4;
    let load = Load::new(&rig.left, &rig.right, &address, 3, 3.0);
    let flood = Flood::start(&load)?;
    let rate = measure_rate(&flood, &load)?;
    println!("    {kilobytes} kB: {:.1} Mbit/s", rate / 1e6);
    let flows = flood.finish(LIMIT)?;
    require_lossless(&flows, &load)?;
    require_rate(&flows, rate, Demand { share_min: 0.9, jain_min: 0.0, rate_bits_per_s: RATE_BITS_PER_S })?;
    wire.check()?;
    wire.stop()?;
    Ok(())
}
