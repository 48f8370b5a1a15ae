//! A wire is told new rates and asked for its counters while it is under load.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use weir_lab::clock::let_pass;
use weir_lab::iperf::{Flood, Load};
use weir_lab::process::run;
use weir_tests::rig::{MANY_QUEUES, Rig, require_lossless};
use weir_tests::{at_length, harness, privileged, weir_binary};

const PATIENCE: Duration = Duration::from_secs(30);

fn main() -> ExitCode {
    harness::main(&[
        privileged!(changes_under_eight_floods),
        privileged!(the_rate_follows_within_a_tenth_of_a_second),
        privileged!(counters_add_up).flooding(),
        privileged!(a_change_that_is_wrong_changes_nothing).together(),
        privileged!(a_change_is_told_also_where_the_counters_are_not).together(),
        privileged!(a_change_that_one_direction_cannot_have_changes_neither).together(),
    ])
}

fn changes_under_eight_floods() -> Result<()> {
    const RATES: [&str; 5] = ["200mbit", "50mbit", "120mbit", "400mbit", "80mbit"];
    let (changes, seconds) = (at_length(150, 500), at_length(8, 25) as f64);
    let rig = Rig::new(MANY_QUEUES, 1)?;
    let wire = rig.wire(&["--rate", "200mbit", "--burst", "20kb"])?;
    let address = rig.right_address().v4;
    let load = Load::new(&rig.left, &rig.right, &address, 8, seconds);
    let flood = Flood::start(&load)?;
    for (change, rate) in (0..changes).zip(RATES.into_iter().cycle()) {
        wire.set_rate(rate).with_context(|| format!("change {change}"))?;
        weir_tests::require_timing!(
            !flood.remaining().is_zero(),
            "only {change} of {changes} changes in {seconds} s"
        );
    }
    wire.check().context("after the changes")?;
    let flows = flood.finish(PATIENCE)?;
    require_lossless(&flows, &load)?;
    wire.check()?;
    wire.stop()?;
    Ok(())
}

fn the_rate_follows_within_a_tenth_of_a_second() -> Result<()> {
    let rig = Rig::plain()?;
    let wire = rig.wire(&["--rate", "200mbit", "--burst", "20kb"])?;
    let address = rig.right_address().v4;
    let load = Load::new(&rig.left, &rig.right, &address, 8, 6.0);
    let flood = Flood::start(&load)?;
    for (rate, bits_per_s) in [("50mbit", 50e6), ("150mbit", 150e6), ("20mbit", 20e6), ("200mbit", 200e6)] {
        wire.set_rate(rate)?;
        let_pass(Duration::from_millis(100), |_| ())?;
        let before = flood.deliveries()?;
        let_pass(Duration::from_millis(600), |_| ())?;
        let measured = flood.deliveries()?.per_s_since(&before) * load.frame_bytes() as f64 * 8.0;
        let ratio = measured / bits_per_s;
        weir_tests::require_timing!(
            (0.93..=1.05).contains(&ratio),
            "{:.1} Mbit/s after `--rate {rate}`",
            measured / 1e6
        );
    }
    let flows = flood.finish(PATIENCE)?;
    require_lossless(&flows, &load)?;
    wire.stop()?;
    Ok(())
}

/// `weir stat --json` against the servers' counts.
fn counters_add_up() -> Result<()> {
    let rig = Rig::plain()?;
    let wire = rig.wire(&["--rate", "200mbit"])?;
    let address = rig.right_address().v4;
    let load = Load::new(&rig.left, &rig.right, &address, 2, 2.0);
    let flood = Flood::start(&load)?;
    let first = wire.stat()?;
    let flows = flood.finish(PATIENCE)?;
    let last = wire.stat()?;
    let total = |stat: &serde_json::Value, name: &str| -> Result<u64> {
        stat["totals"][name].as_u64().with_context(|| format!("no totals.{name} in {stat}"))
    };
    let dropped: u64 = last["totals"]["dropped"]
        .as_object()
        .context("totals.dropped is no object")?
        .values()
        .filter_map(serde_json::Value::as_u64)
        .sum();
    ensure!(dropped == 0, "{dropped} packets dropped: {}", last["totals"]["dropped"]);
    for stat in [&first, &last] {
        let (accepted, delivered, held) =
            (total(stat, "accepted")?, total(stat, "delivered")?, total(stat, "held")?);
        ensure!(accepted == delivered + held, "{accepted} accepted, {delivered} delivered, {held} held");
    }
    let received: u64 = flows.iter().map(|flow| flow.total - flow.lost).sum();
    let delivered = total(&last, "delivered")?;
    ensure!(delivered >= received, "{delivered} delivered, but the servers received {received}");
    ensure!(total(&last, "accepted")? > total(&first, "accepted")?, "the counters do not move");
    ensure!(wire.counters()?["name"] == wire.name(), "the wire is not listed under its name");
    wire.stop()?;
    Ok(())
}

fn a_change_that_is_wrong_changes_nothing() -> Result<()> {
    let rig = Rig::plain()?;
    let wire = rig.wire(&["--rate", "100mbit"])?;
    let before = wire.counters()?["classes"][0]["rate_bits_per_s"].clone();
    for (arguments, word) in [
        (["set", wire.name(), "--rate", "0"], "0"),
        (["set", wire.name(), "--rate", "12furlongs"], "furlongs"),
        (["set", "no-such-wire", "--rate", "10mbit"], "no-such-wire"),
    ] {
        let done = wire.weir(&arguments)?;
        ensure!(matches!(done.status.code(), Some(1 | 2)), "`{}` ended with {}", done.what, done.status);
        ensure!(done.stderr.contains(word), "`{}` does not say what is wrong: {}", done.what, done.stderr);
    }
    ensure!(wire.counters()?["classes"][0]["rate_bits_per_s"] == before, "the rate changed");
    wire.stop()?;
    Ok(())
}

/// A direction without a limit has no burst, whichever of the two it is.
fn a_change_that_one_direction_cannot_have_changes_neither() -> Result<()> {
    let rig = Rig::plain()?;
    let wire = rig.wire(&[])?;
    let bursts = || -> Result<_> {
        let counters = wire.counters()?;
        Ok([0, 1].map(|direction| counters["classes"][direction]["burst_bytes"].clone()))
    };
    wire.weir(&["set", wire.name(), "--port", "wb", "--rate", "10mbit"])?.success()?;
    let before = bursts()?;
    ensure!(before[0].is_u64() && before[1].is_null(), "{before:?}");
    for option in [["--burst", "60kb"], ["--queue", "20ms"]] {
        let done = wire.weir(&[&["set", wire.name()], &option[..]].concat())?;
        ensure!(bursts()? == before, "{option:?}: {:?} became {:?}", before, bursts()?);
        ensure!(done.status.code() == Some(1), "{option:?}: {} {}", done.status, done.said());
        ensure!(done.stderr.contains("wb->wa has no limit"), "{option:?}: {}", done.said());
    }
    wire.stop()?;
    Ok(())
}

/// A wire whose workers are busy, or of another version, may not tell its counters, and is changed all the same.
fn a_change_is_told_also_where_the_counters_are_not() -> Result<()> {
    let name = format!("weir-live-{}", std::process::id());
    let path = PathBuf::from(format!("/run/weir/{name}.sock"));
    std::fs::create_dir_all("/run/weir")?;
    let listener = UnixListener::bind(&path)?;
    let answering = std::thread::spawn(move || -> Result<Vec<String>> {
        let mut changes = Vec::new();
        loop {
            let (mut stream, _) = listener.accept()?;
            let mut asked = String::new();
            BufReader::new(stream.try_clone()?).read_line(&mut asked)?;
            let is_set = asked.contains("\"set\"");
            let answer = if is_set { "\"ok\": null" } else { "\"error\": \"it is busy\"" };
            // Whoever only looks has gone.
            let _ = writeln!(stream, "{{\"version\": 3, {answer}}}");
            match is_set {
                true => changes.push(asked),
                false if asked == "end\n" => return Ok(changes),
                false => {}
            }
        }
    });
    let done = run(Command::new(weir_binary()?).args(["set", &name, "--rate", "10mbit"]), PATIENCE);
    UnixStream::connect(&path)?.write_all(b"end\n")?;
    std::fs::remove_file(&path)?;
    let changes = answering.join().ok().context("it panicked")??;
    ensure!(changes.len() == 2, "{changes:?}");
    let said = done?.success()?.stdout;
    let told = format!("{name} is as asked, and from what to what is not known: it is busy\n");
    ensure!(said == told, "{said}");
    Ok(())
}
