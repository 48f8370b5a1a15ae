//! Classes that share a wire: floors and borrowing, a quiet class beside a full one, exemptions, packets that rules drop and mark.

use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use weir_lab::clock::{let_pass, now, wait_until};
use weir_lab::iperf::{Flood, HEADERS_V4_BYTES, Load, PAYLOAD_BYTES, parse_csv, serve};
use weir_lab::ping::Ping;
use weir_lab::process::{Process, run};
use weir_lab::wire::Wire;
use weir_tests::classes::{File, row, two_classes};
use weir_tests::host::Host;
use weir_tests::rig::{MANY_QUEUES, Rig, require_lossless};
use weir_tests::{harness, kernel, plain, privileged, weir_binary};

const PATIENCE: Duration = Duration::from_secs(30);

fn main() -> ExitCode {
    harness::main(&[
        plain!(what_is_wrong_with_a_file_is_told_with_its_place).together(),
        plain!(what_is_perhaps_not_as_meant_is_warned_of_with_its_place).together(),
        privileged!(floors_are_met_and_what_is_idle_is_borrowed),
        privileged!(a_quiet_class_is_quick_beside_a_blocked_flood),
        privileged!(what_is_free_passes_the_limit),
        privileged!(a_class_that_drops_counts_what_it_drops).flooding(),
        privileged!(a_class_with_ecn_marks_and_drops_nothing),
        privileged!(what_waits_too_long_is_dropped_and_counted).flooding(),
        privileged!(a_program_is_run_behind_classes),
        privileged!(classes_are_removed_under_a_flood).flooding(),
        privileged!(a_wrong_file_changes_nothing).together(),
    ])
}

/// The rates of packets that left each class while `time` passed, in bits per second.
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
    require_share_between(what, [rate, rate], expected)
}

/// The rate is between these two, as the looks at its counter took time.
fn require_share_between(what: &str, [least, most]: [f64; 2], expected: f64) -> Result<()> {
    ensure!(
        least <= 1.03 * expected,
        "{what}: {:.1} Mbit/s are more than {:.1}",
        least / 1e6,
        expected / 1e6
    );
    weir_tests::require_timing!(
        most >= 0.97 * expected,
        "{what}: {:.1} Mbit/s, {:.1} % of {:.0}",
        most / 1e6,
        100.0 * most / expected,
        expected / 1e6
    );
    Ok(())
}

fn floors_are_met_and_what_is_idle_is_borrowed() -> Result<()> {
    let rig = Rig::new(MANY_QUEUES, 1)?;
    let file = File::new(&two_classes("150mbit", "50mbit"))?;
    let wire = rig.wire(&["--classes", file.path()])?;
    let address = rig.right_address().v4;
    let load_a = Load::new(&rig.left, &rig.right, &address, 1, 3.5);
    let load_b = Load { first_port: 6001, seconds: 6.0, ..load_a.clone() };
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
    let load = Load::new(&rig.left, &rig.right, &address, 4, 3.5);
    let flood = Flood::start(&load)?;
    let trips = Ping::start_series(&rig.left, &address, 120, 0.02)?.finish()?;
    let flows = flood.finish(PATIENCE)?;
    let p99_ms = trips.percentile_ms(0.99).context("no ping came back")?;
    println!("    p50 {:.2} ms, p99 {p99_ms:.2} ms", trips.percentile_ms(0.5).unwrap_or(0.0));
    trips.require_all()?;
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
    let cluster = Load::new(&rig.left, &rig.right, &v4, 1, 3.0);
    let internet =
        Load { payload_bytes: 1450, first_port: 6001, ..Load::new(&rig.left, &rig.right, &v6, 1, 4.0) };
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
        "rate = \"20mbit\"\nceil = \"200mbit\"",
        "rate = \"20mbit\"\nfull = \"drop\"",
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
    // Datagrams that iperf's server missed, and those after the last that arrived.
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

/// TCP that understands marks is slowed by them alone.
fn a_class_with_ecn_marks_and_drops_nothing() -> Result<()> {
    let rig = Rig::new(MANY_QUEUES, MANY_QUEUES)?;
    let text = "[[class]]\nname = \"all\"\nrate = \"50mbit\"\nfull = \"ecn\"\nqueue = \"50ms\"\n";
    let file = File::new(text)?;
    let wire = rig.wire(&["--classes", file.path()])?;
    for namespace in [&rig.left, &rig.right] {
        namespace.sh("sysctl -q -w net.ipv4.tcp_ecn=1")?;
    }
    let mut command = rig.right.command("iperf3");
    let mut server = Process::spawn(command.args(["-s", "-1", "--forceflush"]))?;
    server.wait_for_output("Server listening", PATIENCE)?;
    let mut command = rig.left.command("iperf3");
    command.args(["-c", &rig.right_address().v4, "-J", "-t", "4"]);
    let done = run(&mut command, PATIENCE)?.success()?;
    let report: Value = serde_json::from_str(&done.stdout).context("iperf3 printed no JSON")?;
    let rate = report["end"]["sum_received"]["bits_per_second"].as_f64().context("iperf3 reports no rate")?;
    let marked = congestion_marks(&rig)?;
    let row = row(&wire, "all")?.0;
    println!("    {:.1} Mbit/s, {marked} marks, dropped {}", rate / 1e6, row["dropped"]);
    ensure!(marked > 0, "nothing was marked");
    ensure!(row["marked"] == marked, "{marked} marks arrived: {row}");
    ensure!(
        row["dropped"].as_object().is_some_and(serde_json::Map::is_empty),
        "something was dropped: {row}"
    );
    // 50 Mbit/s of frames are 47.8 of data.
    weir_tests::require_timing!(rate > 40e6, "TCP reached {:.1} Mbit/s", rate / 1e6);
    ensure!(rate < 50e6, "TCP reached {:.1} Mbit/s: the limit does not hold", rate / 1e6);
    wire.check()?;
    wire.stop()?;
    Ok(())
}

/// Packets that the right host's kernel has seen arrive with a congestion mark.
fn congestion_marks(rig: &Rig) -> Result<u64> {
    kernel::counter(&rig.right, "IpExt", "InCEPkts")
}

fn what_waits_too_long_is_dropped_and_counted() -> Result<()> {
    const MAX_WAIT_NS: u64 = 50_000_000;
    let rig = Rig::new(MANY_QUEUES, 1)?;
    // The packets that may wait take 400 ms to leave.
    let text = "[[class]]\nname = \"all\"\nrate = \"2mbit\"\nqueue = \"400ms\"\nmax_wait = \"50ms\"\n";
    let file = File::new(text)?;
    let wire = rig.wire(&["--classes", file.path()])?;
    let mut client = rig.left.command("iperf");
    client.args(["-u", "-c", &rig.right_address().v4, "-b", "1G", "-t", "3"]);
    run(&mut client, PATIENCE)?;
    let row = row(&wire, "all")?.0;
    let count = |reason: &str| row["dropped"][reason].as_u64().unwrap_or(0);
    println!("    delivered {}, dropped {}", row["delivered"], row["dropped"]);
    ensure!(count("max-wait") > 0, "nothing waited too long: {row}");
    ensure!(row["dropped"].as_object().is_some_and(|reasons| reasons.len() == 1), "other drops: {row}");
    let longest_ns = row["delay_ns_max"].as_u64().context("no delay_ns_max")?;
    ensure!(longest_ns <= MAX_WAIT_NS, "a packet that had waited {longest_ns} ns was sent");
    ensure!(row["delivered"].as_u64() > Some(100), "hardly anything passed: {row}");
    wire.check()?;
    wire.stop()?;
    Ok(())
}

/// A guarantee that is also a ceiling, and the rest of `--rate` for all else.
fn a_program_is_run_behind_classes() -> Result<()> {
    const SECONDS: f64 = 4.0;
    let host = Host::alone()?;
    let text = two_classes("30mbit", "20mbit").replace("\"200mbit\"", "\"50mbit\"").replacen(
        "rate = \"30mbit\"\nceil = \"50mbit\"",
        "rate = \"30mbit\"",
        1,
    );
    let file = File::new(&text)?;
    let start = |port| serve(&host.namespace, port, &["-u", "-P", "1", "-w", "4M"]);
    let servers = [5001, 5002].map(start).into_iter().collect::<Result<Vec<_>>>()?;
    let client = |port| format!("iperf -u -c $gateway -b 1G -t {SECONDS} -p {port} >/dev/null & ");
    let script =
        format!("gateway=$(ip route show default | cut -d ' ' -f 3); {}{}wait", client(5001), client(5002));
    // The options of a run come after the rate, and the last one that is given counts.
    let mut process = Process::spawn(&mut host.weir_run(&["--classes", file.path()], &script))?;
    let (name, begin) = (format!("run-{}", process.id()), now());
    let look = || -> Result<[f64; 4]> {
        let begin_s = begin.elapsed().as_secs_f64();
        let done = run(&mut host.weir(&["stat", &name, "--json", "--check"]), PATIENCE)?.success()?;
        let end_s = begin.elapsed().as_secs_f64();
        let stat: Value = serde_json::from_str(&done.stdout)?;
        let classes = stat["limits"][0]["classes"].as_array().context("no classes")?;
        let bits = |name| -> Result<f64> {
            let class = classes.iter().find(|class| class["name"] == name).context("no class")?;
            Ok(class["delivered_bytes"].as_f64().context("no bytes")? * 8.0)
        };
        Ok([bits("a")?, bits("b")?, begin_s, end_s])
    };
    wait_until("both clients send", PATIENCE, || {
        ensure!(process.is_running()?, "the run ended early: {}", process.stderr());
        Ok(look().is_ok_and(|[a, b, ..]| a > 2e6 && b > 2e6))
    })?;
    let before = look()?;
    let_pass(Duration::from_secs_f64(SECONDS / 2.0), |_| ())?;
    let after = look()?;
    let (longest_s, shortest_s) = (after[3] - before[2], after[2] - before[3]);
    let [a, b] = [0, 1].map(|index| [longest_s, shortest_s].map(|s| (after[index] - before[index]) / s));
    println!("    a {:.1}, b {:.1} Mbit/s", a[0] / 1e6, b[0] / 1e6);
    let done = process.wait(PATIENCE)?.success()?;
    ensure!(done.stderr.contains("dropped none"), "something was dropped: {}", done.stderr);
    for server in servers {
        let flow = parse_csv(&server.wait(PATIENCE)?.stdout)?;
        ensure!(flow.lost == 0 && flow.out_of_order == 0, "lost or reordered: {flow:?}");
        let frames = (PAYLOAD_BYTES + HEADERS_V4_BYTES) as f64 / PAYLOAD_BYTES as f64;
        ensure!(flow.bits_per_s * frames < 50.5e6, "the link's ceiling does not hold: {flow:?}");
    }
    require_share_between("a", a, 30e6)?;
    require_share_between("b", b, 20e6)?;
    Ok(())
}

fn a_wrong_file_changes_nothing() -> Result<()> {
    let rig = Rig::new(4, 1)?;
    let good = File::new(&two_classes("150mbit", "50mbit"))?;
    let wrong = File::new(&two_classes("150mbit", "0mbit"))?;
    let wire = rig.wire(&["--classes", good.path()])?;
    let done = wire.weir(&["set", wire.name(), "--classes", wrong.path()])?;
    ensure!(done.status.code() == Some(2), "it ended with {}", done.status);
    ensure!(done.stderr.contains(&format!("{}:21:8: ", wrong.path())), "no place: {}", done.stderr);
    ensure!(row(&wire, "b")?.0["rate_bits_per_s"] == 50_000_000, "the class changed");
    // A class that nothing leads to is kept, and what a wire keeps is a file.
    let unreached =
        format!("{}[[class]]\nname = \"c\"\nrate = \"1mbit\"\n", two_classes("150mbit", "40mbit"));
    let unreached = File::new(&unreached)?;
    let done = wire.weir(&["set", wire.name(), "--classes", unreached.path()])?.success()?;
    ensure!(done.stderr.contains("warning: ") && done.stderr.contains("nothing leads to"), "{}", done.said());
    ensure!(row(&wire, "b")?.0["rate_bits_per_s"] == 40_000_000, "the class did not change");
    let shown = File::new(&wire.weir(&["show", wire.name()])?.success()?.stdout)?;
    let done = wire.weir(&["apply", "--dry-run", shown.path()])?.success()?;
    ensure!(done.stdout.starts_with("nothing to change: 2 ports as"), "{}", done.stdout);
    wire.stop()?;
    Ok(())
}

fn classes_are_removed_under_a_flood() -> Result<()> {
    let rig = Rig::new(MANY_QUEUES, 1)?;
    let file = File::new(&two_classes("30mbit", "20mbit"))?;
    let wire = rig.wire(&["--rate", "50mbit", "--classes", file.path()])?;
    let address = rig.right_address().v4;
    let load = Load::new(&rig.left, &rig.right, &address, 4, 3.0);
    let flood = Flood::start(&load)?;
    let_pass(Duration::from_secs(1), |_| ())?;
    let remove = || wire.weir(&["set", wire.name(), "--no-classes"])?.success();
    let done = remove()?;
    ensure!(done.stdout.ends_with(" changed: no classes any more\n"), "{}", done.stdout);
    require_lossless(&flood.finish(PATIENCE)?, &load)?;
    let direction = wire.counters()?["classes"][0].clone();
    ensure!(direction["classes"] == serde_json::json!([]), "{direction}");
    ensure!(direction["rate_bits_per_s"] == 50_000_000, "the limit went too: {direction}");
    let done = remove()?;
    ensure!(done.stdout.ends_with(": it was so already\n"), "{}", done.stdout);
    wire.check()?;
    wire.stop()?;
    Ok(())
}

/// The message of `weir wire` on a file, and its exit status.
fn said_of(text: &str) -> Result<(String, Option<i32>)> {
    let file = File::new(text)?;
    let mut command = Command::new(weir_binary()?);
    command.args(["wire", "no-such-a", "no-such-b", "--classes", file.path()]);
    let done = run(&mut command, PATIENCE)?;
    Ok((done.stderr.replace(file.path(), "FILE"), done.status.code()))
}

fn what_is_wrong_with_a_file_is_told_with_its_place() -> Result<()> {
    let class = |name: &str, rest: &str| format!("[[class]]\nname = \"{name}\"\n{rest}\n");
    let hundred_thousand: String =
        (0..100_000).map(|number| class(&format!("c{number}"), "rate = \"1mbit\"")).collect();
    let cycle =
        class("a", "rate = \"1mbit\"\nparent = \"b\"") + &class("b", "rate = \"1mbit\"\nparent = \"a\"");
    let table = [
        (class("a", "rate = \"0mbit\""), "FILE:3:8: \"0mbit\" is not a rate: it must be more than zero"),
        (
            class("a", "rate = \"2mbit\"\nceil = \"1mbit\""),
            "FILE:4:8: the ceiling 1mbit is below the rate 2mbit",
        ),
        (
            class("a", "rate = \"10mbit\"\nburst = \"1000b\""),
            "FILE:4:9: a burst of 1000b is below one frame of 1514 bytes; give 2kb or more\n  4 | burst = \"1000b\"\n    |         ^^^^^^^\n",
        ),
        (cycle, "FILE:4:10: a cycle of parents: a -> b -> a"),
        (hundred_thousand, "FILE:12290:8: 100000 classes are more than 4096"),
    ];
    for (text, expected) in table {
        let (said, status) = said_of(&text)?;
        ensure!(status == Some(2), "it ended with {status:?}: {said}");
        ensure!(said.starts_with(&format!("weir: {expected}")), "expected {expected}, it said {said}");
    }
    Ok(())
}

/// The wire is refused later, for want of the interfaces.
fn what_is_perhaps_not_as_meant_is_warned_of_with_its_place() -> Result<()> {
    let text =
        two_classes("150mbit", "60mbit") + "[[filter]]\nprotocol = \"udp\"\nto_ports = 5001\nclass = \"b\"\n";
    let filter = text.lines().count();
    let text = text + "[[class]]\nname = \"c\"\nrate = \"1mbit\"\n";
    let (said, _) = said_of(&text)?;
    let first = filter - 4;
    let expected = [
        format!(
            "weir: warning: FILE:{filter}:9: this filter can never match: the one in line {first} takes all its packets"
        ),
        "weir: warning: FILE:6:8: the children of \"link\" have 210mbit together, more than its 200mbit"
            .to_string(),
        format!("weir: warning: FILE:{}:8: nothing leads to the class \"c\"", filter + 2),
    ];
    for line in expected {
        ensure!(said.contains(&line), "expected {line}, it said {said}");
    }
    Ok(())
}
