//! Classes that share a wire: floors and borrowing, a quiet class beside a full one, exemptions, drops by rule, live change.

use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use weir_lab::clock::let_pass;
use weir_lab::iperf::{Flood, Load};
use weir_lab::ping::Ping;
use weir_lab::process::run;
use weir_lab::wire::Wire;
use weir_tests::rig::{MANY_QUEUES, Rig, require_lossless};
use weir_tests::{harness, plain, privileged, weir_binary};

const PATIENCE: Duration = Duration::from_secs(30);

fn main() -> ExitCode {
    harness::main(&[
        plain!(what_is_wrong_with_a_file_is_told_with_its_place),
        privileged!(floors_are_met_and_what_is_idle_is_borrowed),
        privileged!(a_quiet_class_is_quick_beside_a_blocked_flood),
        privileged!(what_is_free_passes_the_limit),
        privileged!(a_class_that_drops_counts_what_it_drops),
        privileged!(live_changes_of_classes_lose_and_reorder_nothing),
        privileged!(a_wrong_file_changes_nothing),
    ])
}

/// A classes file, removed with this value.
struct File(PathBuf);

impl File {
    fn new(text: &str) -> Result<File> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name =
            format!("weir-classes-{}-{}.toml", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, text).with_context(|| path.display().to_string())?;
        Ok(File(path))
    }

    fn path(&self) -> &str {
        self.0.to_str().expect("the folder for temporary files and the name are text")
    }
}

impl Drop for File {
    fn drop(&mut self) {
        // A leftover in the folder for temporary files is all that a failure means.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// A link of 200 Mbit/s shared by `a`, port 5001, and `b`, all else. The bursts cover a worker that a busy machine wakes 8 ms
/// late; over the seconds that are measured they are less than a hundredth.
fn two_classes(rate_a: &str, rate_b: &str) -> String {
    format!(
        r#"
default = "b"

[[class]]
name = "link"
rate = "200mbit"
burst = "200kb"
cburst = "200kb"

[[class]]
name = "a"
parent = "link"
rate = "{rate_a}"
burst = "200kb"
cburst = "200kb"

[[class]]
name = "b"
parent = "link"
rate = "{rate_b}"
burst = "200kb"
cburst = "200kb"

[[filter]]
protocol = "udp"
to_ports = 5001
class = "a"
"#
    )
}

/// The row of a class in the first direction, and the time it was taken.
fn row(wire: &Wire, name: &str) -> Result<(Value, f64)> {
    // This wire's alone: others may be going down meanwhile.
    let done = wire.weir(&["stat", wire.name(), "--json"])?.success()?;
    let stat: Value = serde_json::from_str(&done.stdout).context("`weir stat --json` printed no JSON")?;
    let counters = &stat["wires"][0];
    let seconds = counters["worker"]["now_ns"].as_f64().context("no worker.now_ns")? / 1e9;
    let rows = counters["classes"][0]["classes"].as_array().context("no rows of classes")?;
    let row =
        rows.iter().find(|row| row["name"] == name).with_context(|| format!("no row of class {name}"))?;
    Ok((row.clone(), seconds))
}

/// What left each class while `time` passed, in bits per second.
fn rates(wire: &Wire, names: [&str; 2], time: Duration) -> Result<[f64; 2]> {
    let look = || -> Result<[(f64, f64); 2]> {
        let bits = |name| -> Result<(f64, f64)> {
            let (row, seconds) = row(wire, name)?;
            Ok((row["delivered_bytes"].as_f64().context("no delivered_bytes")? * 8.0, seconds))
        };
        Ok([bits(names[0])?, bits(names[1])?])
    };
    let before = look()?;
    let_pass(time, |_| ())?;
    let after = look()?;
    Ok([0, 1].map(|index| (after[index].0 - before[index].0) / (after[index].1 - before[index].1)))
}

fn require_share(what: &str, rate: f64, expected: f64) -> Result<()> {
    let share = rate / expected;
    ensure!(
        (0.97..=1.03).contains(&share),
        "{what}: {:.1} Mbit/s, {:.1} % of {:.0}",
        rate / 1e6,
        share * 100.0,
        expected / 1e6
    );
    Ok(())
}

fn floors_are_met_and_what_is_idle_is_borrowed() -> Result<()> {
    let rig = Rig::new(MANY_QUEUES, 1)?;
    let file = File::new(&two_classes("150mbit", "50mbit"))?;
    let wire = rig.wire(&["--classes", file.path()])?;
    let address = rig.right_address().v4;
    let load_a = Load::new(&rig.left, &rig.right, &address, 1, 6.0);
    let load_b = Load { first_port: 6001, seconds: 10.0, ..load_a.clone() };
    let (flood_a, flood_b) = (Flood::start(&load_a)?, Flood::start(&load_b)?);
    let_pass(Duration::from_millis(300), |_| ())?;
    let time = flood_a.remaining().saturating_sub(Duration::from_secs(1));
    let [a, b] = rates(&wire, ["a", "b"], time)?;
    wire.check().context("while both flood")?;
    let flows_a = flood_a.finish(PATIENCE)?;
    let time = flood_b.remaining().saturating_sub(Duration::from_secs(1));
    ensure!(time > Duration::from_millis(500), "the second flood is over too soon to see it borrow");
    let [_, alone] = rates(&wire, ["a", "b"], time)?;
    let flows_b = flood_b.finish(PATIENCE)?;
    println!("    a {:.1}, b {:.1}, b alone {:.1} Mbit/s", a / 1e6, b / 1e6, alone / 1e6);
    require_share("a beside b", a, 150e6)?;
    require_share("b beside a", b, 50e6)?;
    require_share("b alone", alone, 200e6)?;
    require_lossless(&flows_a, &load_a)?;
    require_lossless(&flows_b, &load_b)?;
    ensure!(row(&wire, "b")?.0["blocked_ns"].as_u64() > Some(1_000_000_000), "b's sender was never blocked");
    ensure!(
        row(&wire, "link")?.0["parent"].is_null() && row(&wire, "a")?.0["parent"] == "link",
        "no parents"
    );
    wire.check()?;
    wire.stop()?;
    Ok(())
}

fn a_quiet_class_is_quick_beside_a_blocked_flood() -> Result<()> {
    let rig = Rig::new(MANY_QUEUES, MANY_QUEUES)?;
    let text =
        two_classes("10mbit", "190mbit").replace(r#""udp""#, r#""icmp""#).replace("to_ports = 5001\n", "");
    let file = File::new(&text)?;
    let wire = rig.wire(&["--classes", file.path()])?;
    let address = rig.right_address().v4;
    let load = Load::new(&rig.left, &rig.right, &address, 4, 8.0);
    let flood = Flood::start(&load)?;
    let trips = Ping::start_series(&rig.left, &address, 300, 0.02)?.finish()?;
    let flows = flood.finish(PATIENCE)?;
    let p99_ms = trips.percentile_ms(0.99).context("no ping came back")?;
    println!("    p50 {:.2} ms, p99 {p99_ms:.2} ms", trips.percentile_ms(0.5).unwrap_or(0.0));
    ensure!(trips.sorted_ms.len() as u64 == trips.sent, "pings were lost");
    weir_tests::require_timing!(p99_ms < 2.0, "p99 is {p99_ms:.2} ms");
    ensure!(row(&wire, "b")?.0["blocked_ns"].as_u64() > Some(1_000_000_000), "the flood was never blocked");
    ensure!(
        // And perhaps a few "port unreachable" that answer the servers' last words.
        row(&wire, "a")?.0["delivered"]
            .as_u64()
            .is_some_and(|count| (trips.sent..trips.sent + 20).contains(&count)),
        "the pings were not in their class"
    );
    require_lossless(&flows, &load)?;
    wire.check()?;
    wire.stop()?;
    Ok(())
}

/// The cluster (here all of IPv4) is free, the internet (IPv6) is limited.
fn what_is_free_passes_the_limit() -> Result<()> {
    const FILE: &str = "[[filter]]\nto = [\"10.0.0.0/8\", \"192.168.0.0/16\"]\nclass = \"free\"\n\
                        [[class]]\nname = \"internet\"\nrate = \"20mbit\"\n";
    let rig = Rig::new(MANY_QUEUES, 1)?;
    let file = File::new(FILE)?;
    let wire = rig.wire(&["--classes", file.path()])?;
    let (v4, v6) = (rig.right_address().v4, rig.right_address().v6);
    let cluster = Load::new(&rig.left, &rig.right, &v4, 1, 4.0);
    let internet =
        Load { payload_bytes: 1450, first_port: 6001, ..Load::new(&rig.left, &rig.right, &v6, 1, 6.0) };
    let (flood_v6, flood_v4) = (Flood::start(&internet)?, Flood::start(&cluster)?);
    let time = flood_v4.remaining().saturating_sub(Duration::from_secs(1));
    let [limited, free] = rates(&wire, ["internet", "free"], time)?;
    println!("    limited {:.1}, free {:.1} Mbit/s", limited / 1e6, free / 1e6);
    wire.check().context("while both flood")?;
    flood_v4.finish(PATIENCE)?;
    let flows = flood_v6.finish(PATIENCE)?;
    require_share("the internet", limited, 20e6)?;
    ensure!(free > 100e6, "what is free reached {:.1} Mbit/s", free / 1e6);
    require_lossless(&flows, &internet)?;
    wire.check()?;
    wire.stop()?;
    Ok(())
}

fn a_class_that_drops_counts_what_it_drops() -> Result<()> {
    let rig = Rig::new(MANY_QUEUES, 1)?;
    let text = two_classes("20mbit", "50mbit").replacen(
        "rate = \"20mbit\"",
        "rate = \"20mbit\"\nceil = \"20mbit\"\nfull = \"drop\"",
        1,
    );
    let file = File::new(&text)?;
    let wire = rig.wire(&["--classes", file.path()])?;
    let address = rig.right_address().v4;
    let dropping = Load::new(&rig.left, &rig.right, &address, 1, 3.0);
    let blocking = Load { first_port: 6001, ..dropping.clone() };
    let (flood_a, flood_b) = (Flood::start(&dropping)?, Flood::start(&blocking)?);
    let flows_a = flood_a.finish(PATIENCE)?;
    let flows_b = flood_b.finish(PATIENCE)?;
    let dropped = row(&wire, "a")?.0["dropped"].clone();
    let count = |reason: &str| dropped[reason].as_u64().unwrap_or(0);
    println!("    dropped {dropped}");
    ensure!(count("class-full") > 0, "nothing was dropped: {dropped}");
    // What iperf's server missed, and datagrams after the last that arrived.
    let missing: u64 = flows_a.iter().map(|flow| flow.missing() / dropping.payload_bytes).sum();
    let counted = count("class-full") + count("codel");
    ensure!(
        counted.abs_diff(missing) <= 20 + weir_lab::iperf::overflowed_datagrams(&rig.right)?,
        "{missing} datagrams never arrived, {counted} were counted"
    );
    ensure!(row(&wire, "b")?.0["dropped"] == serde_json::json!({}), "a class that blocks dropped");
    require_lossless(&flows_b, &blocking)?;
    wire.check()?;
    wire.stop()?;
    Ok(())
}

/// Flows move between classes, classes come and go, the kind of tree changes.
fn live_changes_of_classes_lose_and_reorder_nothing() -> Result<()> {
    const CHANGES: usize = 100;
    let rig = Rig::new(MANY_QUEUES, 1)?;
    let first = two_classes("150mbit", "50mbit");
    let files = [
        File::new(&first)?,
        File::new(&first.replace("\"a\"", "\"other\""))?,
        File::new(&two_classes("20mbit", "80mbit").replace("5001", "\"5002-5003\""))?,
        File::new(&format!("shaper = \"cbq\"\n{}", first.replace("cburst = \"200kb\"\n", "")))?,
        File::new("[[class]]\nname = \"a\"\nrate = \"100mbit\"\n")?,
    ];
    let wire = rig.wire(&["--rate", "200mbit"])?;
    let address = rig.right_address().v4;
    let load = Load::new(&rig.left, &rig.right, &address, 4, 20.0);
    let flood = Flood::start(&load)?;
    for change in 0..CHANGES {
        let file = &files[change % files.len()];
        wire.weir(&["set", wire.name(), "--classes", file.path()])?
            .success()
            .with_context(|| format!("change {change}"))?;
        ensure!(!flood.remaining().is_zero(), "only {change} of {CHANGES} changes in 20 s");
    }
    wire.check().context("after the changes")?;
    let flows = flood.finish(PATIENCE)?;
    require_lossless(&flows, &load)?;
    wire.check()?;
    wire.stop()?;
    Ok(())
}

fn a_wrong_file_changes_nothing() -> Result<()> {
    let rig = Rig::new(4, 1)?;
    let good = File::new(&two_classes("150mbit", "50mbit"))?;
    let wrong = File::new(&two_classes("150mbit", "0mbit"))?;
    let wire = rig.wire(&["--classes", good.path()])?;
    let done = wire.weir(&["set", wire.name(), "--classes", wrong.path()])?;
    ensure!(done.status.code() == Some(2), "it ended with {}", done.status);
    ensure!(done.stderr.contains(&format!("{}:20:8: ", wrong.path())), "no place: {}", done.stderr);
    ensure!(row(&wire, "b")?.0["rate_bits_per_s"] == 50_000_000, "the class changed");
    wire.stop()?;
    Ok(())
}

fn what_is_wrong_with_a_file_is_told_with_its_place() -> Result<()> {
    let file = File::new("[[class]]\nname = \"a\"\nrate = \"10mbit\"\nburst = \"1000b\"\n")?;
    let mut command = Command::new(weir_binary()?);
    command.args(["wire", "a", "b", "--classes", file.path()]);
    let done = run(&mut command, PATIENCE)?;
    ensure!(done.status.code() == Some(2), "it ended with {}", done.status);
    let expected = format!(
        "weir: {}:4:9: a burst of 1000b is below one frame of 1514 bytes; give 2kb or more\n  4 | burst = \"1000b\"\n    |         ^^^^^^^\n",
        file.path()
    );
    ensure!(done.stderr == expected, "it said {}", done.stderr);
    Ok(())
}
