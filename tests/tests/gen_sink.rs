//! `weir gen` and `weir sink`: in memory, and at the two ends of a veth pair, where nothing may be lost either.

use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use weir_lab::bed::{End, Namespace};
use weir_lab::clock::wait_until;
use weir_lab::process::{Process, Signal, run};
use weir_tests::kernel::{require_same, traces};
use weir_tests::pair::{LIMIT, Pair, json_of};
use weir_tests::raw::{Random, RawSocket, frame};
use weir_tests::{fill, harness, plain, privileged, weir_binary};

fn main() -> ExitCode {
    harness::main(&[
        plain!(in_memory_on_one_worker).flooding(),
        plain!(in_memory_through_the_test_bed_on_two_workers).on_two_processors().flooding(),
        plain!(what_makes_no_sense_is_refused).together(),
        plain!(a_sink_of_wrong_settings_is_refused).together(),
        privileged!(as_fast_as_it_goes_over_a_veth).flooding(),
        privileged!(as_many_queues_as_there_may_be).flooding(),
        privileged!(at_a_rate_over_a_veth),
        privileged!(two_workers_share_one_queue).on_two_processors().flooding(),
        privileged!(two_workers_have_two_queues_each).on_two_processors().flooding(),
        privileged!(any_mode_and_policy_keeps_everything_in_order).on_two_processors().flooding(),
        privileged!(what_a_rule_drops_is_counted).flooding(),
        privileged!(what_is_no_packet_is_counted_by_its_reason).flooding(),
        privileged!(the_other_end_of_a_sink_moves).together(),
        privileged!(the_other_end_of_a_generator_moves).together(),
        privileged!(an_interface_that_is_none).together(),
        privileged!(a_sink_that_nobody_reads_ends_all_the_same).together(),
    ])
}

fn require_clean(report: &Value) -> Result<()> {
    for fault in ["missing", "duplicated", "reordered"] {
        ensure!(report[fault] == 0, "{fault}: {report}");
    }
    Ok(())
}

fn in_memory(options: &[&str]) -> Result<Value> {
    let mut command = Command::new(weir_binary()?);
    command.arg("gen").args(options).arg("--json");
    json_of(&run(&mut command, LIMIT)?.success()?.stdout)
}

fn in_memory_on_one_worker() -> Result<()> {
    let report = in_memory(&["--flows", "2000", "--size", "100", "--count", "500000"])?;
    require_clean(&report)?;
    ensure!(
        report["sent"] == 500_000 && report["numbered"] == 500_000 && report["balances"] == true,
        "{report}"
    );
    ensure!(report["held"] == 0 && report["lost"] == 0, "{report}");
    Ok(())
}

fn in_memory_through_the_test_bed_on_two_workers() -> Result<()> {
    let options = ["--through", "testbed", "--workers", "2", "--count", "300000"];
    let report = in_memory(&options)?;
    require_clean(&report)?;
    ensure!(report["numbered"] == 300_000 && report["balances"] == true, "{report}");
    Ok(())
}

fn what_makes_no_sense_is_refused() -> Result<()> {
    for (options, said) in [
        (&["--workers", "0"][..], "--workers 0: give 1 to"),
        (&["--workers", "4000"], "each worker has a core of its own"),
        (&["--workers", "two"], "write a whole number"),
        (&["nosuch0", "--workers", "1"], "--workers is for traffic in memory"),
        (&["--flows", "1", "--workers", "2"], "1 flow for 2 workers"),
        (&["--count", "0"], "write a whole number, 1 or more"),
        (&["--size", "20"], "from 60 to 1514"),
        (&["--rate", "fast"], "such as 500pps"),
        (&["--src", "10.0.0.2-10.0.0.1"], "runs backwards"),
        (&["--flows", "9", "--dst", "10.0.0.1"], "weir: 9 flows"),
    ] {
        let mut command = Command::new(weir_binary()?);
        let done = run(command.arg("gen").args(options), LIMIT)?;
        ensure!(done.status.code() == Some(2), "{options:?} ended with {}", done.status);
        ensure!(done.stderr.contains(said), "{options:?}: {}", done.stderr);
    }
    Ok(())
}

fn a_sink_of_wrong_settings_is_refused() -> Result<()> {
    for (options, said) in [
        (&["--workers", "0"][..], "--workers 0: give 1 to"),
        (&["--workers", "65"], "--workers 65: give 1 to"),
        (&["--workers", "x"], "write a whole number"),
        (&["--count", "0"], "write a whole number, 1 or more"),
        (&["--set", "=1"], "KEY=VALUE"),
        (&["--set", "maxqlimit=1"], "--set maxqlimit: 1 is below defaultqlimit, 256"),
        (&["--set", "rss.bucket.0=0", "--set", "rss.bucket.00=0"], "--set rss.bucket.00: set before"),
        (&["--workers", "1", "--set", "maxthreads=1"], "give one of them"),
        (&["--set", "maxthreads=0"], "--set maxthreads: `0` is no number of at least 1"),
        (&["--set", "dispatch"], "KEY=VALUE"),
        (&["--set", "dispatch=later"], "--set dispatch: unknown mode `later`"),
        (&["--set", "dispatch=direct", "--set", "dispatch=hybrid"], "--set dispatch: set before"),
        (&["--set", "proto.ip.policy=fast"], "--set proto.ip.policy: unknown policy `fast`"),
        (&["--set", "proto.esp.qlimit=9"], "--set proto.esp.qlimit: unknown protocol `esp`"),
        (&["--set", "defaultqlimit=20000"], "--set defaultqlimit: 20000 is above maxqlimit, 10240"),
        (
            &["--set", "rss.bucket.0=1"],
            "--set rss.bucket.0: bucket 0 is given to worker 1, which does not exist",
        ),
        (&["--set", "rss.key=secret"], "--set rss.key: "),
    ] {
        let mut command = Command::new(weir_binary()?);
        let done = run(command.args(["sink", "nosuch0"]).args(options), LIMIT)?;
        ensure!(done.status.code() == Some(2), "{options:?} ended with {}", done.status);
        ensure!(done.stderr.contains(said), "{options:?}: {}", done.stderr);
    }
    Ok(())
}

/// The reports of a generator at one end of a pair, and of a sink at the other.
fn over_a_veth(queues: u32, sink: &[&str], generator: &[&str], packets: u64) -> Result<(Value, Value)> {
    let pair = Pair::new(queues)?;
    let before = (traces(&pair.left)?, traces(&pair.right)?);
    let sink = pair.sink(&[sink, &["--count", &packets.to_string()]].concat())?;
    let sent = pair.generate(generator, packets)?;
    let received = sink.wait(LIMIT)?.success()?;
    require_same(&before.0, &traces(&pair.left)?)?;
    require_same(&before.1, &traces(&pair.right)?)?;
    Ok((sent, json_of(&received.stdout)?))
}

fn require_all_arrived(sent: &Value, received: &Value, packets: u64) -> Result<()> {
    require_clean(received)?;
    ensure!(sent["sent"] == packets && sent["delivered"] == packets, "{sent}");
    ensure!(sent["balances"] == true && sent["held"] == 0, "{sent}");
    ensure!(received["numbered"] == packets && received["kernel_lost"] == 0, "{received}");
    ensure!(received["split_flows"] == 0, "{received}");
    require_books(received)
}

/// received = delivered + dropped + held, nothing is held at the end, and netisr's tables say the same.
fn require_books(received: &Value) -> Result<()> {
    let count = |value: &Value| value.as_u64().with_context(|| format!("no number in {received}"));
    let mut dropped = 0;
    for reason in received["dropped"].as_object().context("reasons")?.values() {
        dropped += count(reason)?;
    }
    let (delivered, held) = (count(&received["delivered"])?, count(&received["held"])?);
    ensure!(count(&received["received"])? == delivered + dropped + held && held == 0, "{received}");
    ensure!(received["balances"] == true, "{received}");
    for row in received["netisr"]["workstreams"].as_array().context("rows")? {
        let done = count(&row["dispatched"])? + count(&row["hybrid_dispatched"])? + count(&row["queued"])?;
        ensure!(done == count(&row["handled"])? && row["len"] == 0, "{row}");
    }
    Ok(())
}

/// A figure of each worker.
fn of_workers(received: &Value, figure: &str) -> Result<Vec<u64>> {
    let workers = received["workers"].as_array().context("workers")?;
    workers
        .iter()
        .map(|worker| worker[figure].as_u64().with_context(|| format!("no {figure}: {worker}")))
        .collect()
}

/// The packets that each worker put into ether's queue.
fn queued_by_ether(received: &Value) -> Result<Vec<u64>> {
    let rows = received["netisr"]["workstreams"].as_array().context("rows")?;
    let of_ether = rows.iter().filter(|row| row["name"] == "ether");
    of_ether.map(|row| row["queued"].as_u64().with_context(|| format!("no count: {row}"))).collect()
}

/// Each queue has packets on offer, which are no part of those that a generator makes.
fn as_many_queues_as_there_may_be() -> Result<()> {
    const PACKETS: u64 = 20_000;
    let (sent, received) = over_a_veth(128, &[], &["--flows", "2000"], PACKETS)?;
    require_all_arrived(&sent, &received, PACKETS)
}

fn as_fast_as_it_goes_over_a_veth() -> Result<()> {
    const PACKETS: u64 = 300_000;
    for queues in [1, 4] {
        let (sent, received) = over_a_veth(queues, &[], &["--flows", "2000", "--size", "100"], PACKETS)?;
        require_all_arrived(&sent, &received, PACKETS)?;
        ensure!(of_workers(&received, "flows")? == [2000], "{received}");
    }
    Ok(())
}

fn two_workers_share_one_queue() -> Result<()> {
    const PACKETS: u64 = 300_000;
    let (sent, received) = over_a_veth(1, &["--workers", "2"], &["--flows", "2000"], PACKETS)?;
    require_all_arrived(&sent, &received, PACKETS)?;
    let flows = of_workers(&received, "flows")?;
    ensure!(flows.iter().sum::<u64>() == 2000 && flows.iter().all(|flows| *flows > 500), "{received}");
    ensure!(of_workers(&received, "queues")? == [1, 0], "{received}");
    ensure!(of_workers(&received, "received")?[1] == 0, "{received}");
    ensure!(received["steering"] == "toeplitz", "{received}");
    ensure!(
        queued_by_ether(&received)?[1] >= PACKETS / 4,
        "what the second worker has was handed over: {received}"
    );
    Ok(())
}

fn two_workers_have_two_queues_each() -> Result<()> {
    const PACKETS: u64 = 300_000;
    let (sent, received) = over_a_veth(4, &["--workers", "2"], &["--flows", "2000"], PACKETS)?;
    require_all_arrived(&sent, &received, PACKETS)?;
    let flows = of_workers(&received, "flows")?;
    ensure!(flows.iter().sum::<u64>() == 2000 && flows.iter().all(|flows| *flows > 500), "{received}");
    ensure!(of_workers(&received, "queues")? == [2, 2], "{received}");
    ensure!(received["steering"] == "queues", "{received}");
    ensure!(queued_by_ether(&received)? == [0, 0], "nothing is handed over: {received}");
    ensure!(of_workers(&received, "received")? == of_workers(&received, "delivered")?, "{received}");
    Ok(())
}

fn any_mode_and_policy_keeps_everything_in_order() -> Result<()> {
    const PACKETS: u64 = 30_000;
    for (queues, settings) in [
        (1, &["dispatch=hybrid", "proto.ip.policy=source"][..]),
        (1, &["dispatch=deferred", "proto.ip.policy=cpu", "bindthreads=0"]),
        (1, &["dispatch=deferred", "defaultqlimit=1"]),
        (1, &["dispatch=deferred", "proto.ether.dispatch=direct", "rss.key=symmetric", "rss.hash=2-tuple"]),
        (2, &["dispatch=deferred", "proto.ip.policy=source", "defaultqlimit=1"]),
        (4, &["dispatch=hybrid", "proto.ip.policy=cpu"]),
        (4, &["dispatch=deferred", "rss.bucket.0=1", "rss.bucket.1=0"]),
    ] {
        let set = settings.iter().flat_map(|setting| ["--set", setting]);
        let sink: Vec<&str> = ["--workers", "2"].into_iter().chain(set).collect();
        let (sent, received) = over_a_veth(queues, &sink, &["--flows", "200"], PACKETS)?;
        require_all_arrived(&sent, &received, PACKETS)
            .with_context(|| format!("{queues} queues, {settings:?}"))?;
    }
    Ok(())
}

fn what_a_rule_drops_is_counted() -> Result<()> {
    const PACKETS: u64 = 100_000;
    let options = ["--set", "dispatch=deferred", "--set", "defaultqlimit=1", "--set", "proto.ip.full=drop"];
    let pair = Pair::new(1)?;
    let sink = pair.sink(&[&options[..], &["--count", &PACKETS.to_string()]].concat())?;
    let sent = pair.generate(&["--flows", "2000"], PACKETS)?;
    ensure!(sent["delivered"] == PACKETS, "{sent}");
    // The drops were asked for, so this is success.
    let received = json_of(&sink.wait(LIMIT)?.success()?.stdout)?;
    require_books(&received)?;
    require_clean(&received)?;
    ensure!(received["numbered"] == PACKETS, "{received}");
    ensure!(received["dropped"]["workstream-full"].as_u64().is_some_and(|dropped| dropped > 0), "{received}");
    Ok(())
}

/// Frames that no generator makes, before some that one does: when those have come, so have these.
fn what_is_no_packet_is_counted_by_its_reason() -> Result<()> {
    const PACKETS: u64 = 1_000;
    let pair = Pair::new(1)?;
    let sink = pair.sink(&["--count", &PACKETS.to_string()])?;
    let raw = RawSocket::open(pair.left_end())?;
    let ethernet = |ethertype: [u8; 2]| [&[0xff; 6][..], &[2, 0, 0, 0, 0, 9], &ethertype].concat();
    let mut random = Random(7);
    for number in 0..5 {
        raw.send(&frame(number, 60, (number > 2).then_some(9), &mut random))?;
    }
    for ethertype in [[0x08, 0x00], [0x86, 0xdd], [0x08, 0x06]] {
        // A version, or a length, that no packet has.
        raw.send(&[ethernet(ethertype), vec![0xff; 46]].concat())?;
        raw.send(&[ethernet(ethertype), vec![0x00; 2]].concat())?;
    }
    let mut wrong = [ethernet([0x08, 0x00]), vec![0; 46]].concat();
    wrong[14..18].copy_from_slice(&[0x45, 0, 0, 46]);
    raw.send(&wrong)?;
    let sent = pair.generate(&[], PACKETS)?;
    let received = json_of(&sink.wait(LIMIT)?.success()?.stdout)?;
    require_all_arrived(&sent, &received, PACKETS)?;
    let dropped = &received["dropped"];
    ensure!(
        dropped["no-handler"] == 5 && dropped["malformed"] == 6 && dropped["bad-checksum"] == 1,
        "{received}"
    );
    Ok(())
}

fn at_a_rate_over_a_veth() -> Result<()> {
    const PACKETS: u64 = 5_000;
    let (sent, received) = over_a_veth(1, &[], &["--rate", "5kpps"], PACKETS)?;
    require_all_arrived(&sent, &received, PACKETS)?;
    let elapsed_ns = sent["elapsed_ns"].as_u64().context("a time")?;
    ensure!(elapsed_ns > 950_000_000, "5000 packets at 5 kpps in {elapsed_ns} ns");
    Ok(())
}

fn the_other_end_of_a_sink_moves() -> Result<()> {
    let pair = Pair::new(2)?;
    let features = features(pair.left_end())?;
    let sink = pair.sink(&[])?;
    goes_along(sink, pair.left_end(), &features)
}

fn the_other_end_of_a_generator_moves() -> Result<()> {
    let pair = Pair::new(2)?;
    let features = features(pair.right_end())?;
    let generator = pair.generator(&["--rate", "1000pps"])?;
    goes_along(generator, pair.right_end(), &features)
}

/// Moves the other end to another namespace: a program goes on there, and puts back there what was so `before`.
fn goes_along(mut program: Process, other_end: End<'_>, before: &str) -> Result<()> {
    let End { namespace, name } = other_end;
    let elsewhere = Namespace::new("elsewhere")?;
    namespace.ip(&format!("link set {name} netns {}", elsewhere.name()))?;
    elsewhere.ip(&format!("link set {name} up"))?;
    let moved = End { namespace: &elsewhere, name };
    wait_until("its queue holds packets there", LIMIT, || {
        ensure!(program.is_running()?, "it ended: {}", program.stderr());
        Ok(elsewhere.tc(&format!("qdisc show dev {name} root"))?.contains(" 7765: "))
    })?;
    ensure!(features(moved)? != before, "its packets may leave without checksums");
    program.signal(Signal::INT)?;
    program.wait(LIMIT)?;
    ensure!(features(moved)? == before, "{}", features(moved)?);
    let queue = elsewhere.tc(&format!("qdisc show dev {name} root"))?;
    ensure!(!queue.contains("7765:"), "{queue}");
    Ok(())
}

fn features(End { namespace, name }: End<'_>) -> Result<String> {
    namespace.sh(&format!("ethtool -k {name}"))
}

fn an_interface_that_is_none() -> Result<()> {
    for command in ["gen", "sink"] {
        let done = run(Command::new(weir_binary()?).args([command, "nosuch0"]), LIMIT)?;
        ensure!(!done.status.success() && done.stderr.contains("nosuch0"), "{command}: {}", done.stderr);
    }
    Ok(())
}

/// Its standard output is a full pipe.
fn a_sink_that_nobody_reads_ends_all_the_same() -> Result<()> {
    let pair = Pair::new(1)?;
    let (_nobody_reads, lines) = std::io::pipe()?;
    fill(&lines)?;
    let mut sink = pair.right.command(weir_binary()?);
    let mut sink =
        sink.args(["sink", "veth1", "--time", "1s"]).stdout(lines).stderr(Stdio::null()).spawn()?;
    let ended = wait_until("it ends", LIMIT, || Ok(sink.try_wait()?.is_some()));
    // The process goes in any case.
    let _ = sink.kill();
    let status = sink.wait()?;
    ended?;
    ensure!(status.success(), "it ended with {status}");
    Ok(())
}
