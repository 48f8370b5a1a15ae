//! `weir doctor` tells the truth, and leaves nothing; a feature that it calls second best works.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use weir_lab::bed::Namespace;
use weir_lab::clock::{now, wait_until};
use weir_lab::iperf::{Flood, Load};
use weir_lab::process::{Process, Signal, run};
use weir_tests::kernel::{belongings, require_same, traces};
use weir_tests::lacking::Lacking;
use weir_tests::rig::{Rig, require_lossless, stat_of};
use weir_tests::{harness, nobody, plain, privileged, require_timing, weir_binary};

const LIMIT: Duration = Duration::from_secs(30);

fn main() -> ExitCode {
    harness::main(&[
        plain!(without_root_it_says_what_it_could_not_try).together(),
        privileged!(weir_can_run_here),
        privileged!(without_tcx_only_limits_can_run),
        privileged!(a_filtered_namespace_is_noticed_and_loses_nothing).flooding(),
        privileged!(a_filtered_namespace_with_little_memory_is_refused).flooding(),
        privileged!(a_far_end_that_filters_what_it_sends_is_polled_by_io_uring).flooding(),
        privileged!(a_far_end_that_filters_later_is_taken_over_again).flooding(),
        privileged!(interrupted_it_leaves_nothing),
    ])
}

fn without_root_it_says_what_it_could_not_try() -> Result<()> {
    let done = nobody::weir(&["doctor"], LIMIT)?;
    ensure!(done.status.code() == Some(1), "it ended with {}", done.status);
    ensure!(done.stdout.contains("skip  holds"), "it does not say what it left out: {}", done.stdout);
    ensure!(
        done.stdout.lines().last().is_some_and(|line| line.contains("sudo weir doctor")),
        "{}",
        done.stdout
    );
    Ok(())
}

fn weir_can_run_here() -> Result<()> {
    let place = Namespace::new("doctor")?;
    let before = (traces(&place)?, belongings()?);
    let started = now();
    let report = doctor(&place)?;
    let elapsed = started.elapsed();
    println!("    took {:.2} s", elapsed.as_secs_f64());
    for check in [
        "limit",
        "veth",
        "bpf",
        "tcx",
        "xdp",
        "af_xdp",
        "napi-set",
        "checksums",
        "holds",
        "goes on",
        "priming",
    ] {
        let found = self::check(&report, check)?;
        ensure!(found["status"] == "ok", "{found}");
    }
    ensure!(report["can_run"] == true, "{report:#}");
    let text = run(place.command(weir_binary()?).arg("doctor"), LIMIT)?.success()?.stdout;
    let verdict = text.lines().last().unwrap_or_default();
    ensure!(verdict.starts_with("weir can run here"), "{text}");
    require_same(&before.0, &traces(&place)?)?;
    // The kernel frees programs and namespaces a little after their last user has gone.
    wait_until("nothing is left behind", LIMIT, || Ok(belongings()?.new_since(&before.1).is_empty()))
}

/// As under Debian 12's kernel: a wire says in one sentence that tcx is missing, and a limit works without.
fn without_tcx_only_limits_can_run() -> Result<()> {
    /// `BPF_PROG_QUERY` of `include/uapi/linux/bpf.h`, with which a kernel without tcx shows that it has none.
    const BPF_PROG_QUERY: u32 = 16;
    let lacking = Lacking { call: libc::SYS_bpf, first: Some(BPF_PROG_QUERY), error: libc::EINVAL };
    let rig = Rig::plain()?;
    let before = traces(&rig.middle)?;
    let weir = |arguments: &[&str]| run(lacking.apply(&mut rig.weir(arguments)), LIMIT);
    let done = weir(&["wire", "wa", "wb", "--rate", "200mbit"])?;
    ensure!(done.status.code() == Some(1) && done.stderr.lines().count() == 1, "{}", done.stderr);
    for words in ["this kernel lacks tcx", "Linux 6.16", "`weir limit` does without"] {
        ensure!(done.stderr.contains(words), "{}", done.stderr);
    }
    require_same(&before, &traces(&rig.middle)?)?;
    let done = weir(&["doctor"])?;
    let verdict = done.stdout.lines().last().unwrap_or_default();
    ensure!(
        done.status.code() == Some(1) && verdict.starts_with("`weir limit` can run here, wires cannot"),
        "{}",
        done.stdout
    );
    weir(&["limit", "wa", "--rate", "20mbit"])?.success()?;
    weir(&["stat", "wa", "--check"])?.success()?;
    weir(&["limit", "wa", "--off"])?.success()?;
    require_same(&before, &traces(&rig.middle)?)
}

fn a_filtered_namespace_is_noticed_and_loses_nothing() -> Result<()> {
    let rig = Rig::plain()?;
    drop_input(&rig.middle)?;
    let report = doctor(&rig.middle)?;
    ensure!(report["can_run"] == true && status(&report, "priming")? == "warn", "{report:#}");
    ensure!(
        check(&report, "priming")?["what"].as_str().unwrap_or_default().contains("io_uring"),
        "{report:#}"
    );

    let wire = rig.wire(&["--rate", "200mbit", "--burst", "20kb"])?;
    for port in stat_of(&wire)?["ports"].as_array().context("no ports")? {
        ensure!(port["poller"] == "io_uring", "{port}");
    }
    let address = rig.right_address().v4;
    let load = Load::new(&rig.left, &rig.right, &address, 3, 3.0);
    let flows = Flood::start(&load)?.finish(LIMIT)?;
    require_lossless(&flows, &load)?;
    wire.weir(&["stat", wire.name(), "--check"])?.success()?;
    wire.stop()?;
    Ok(())
}

fn a_far_end_that_filters_what_it_sends_is_polled_by_io_uring() -> Result<()> {
    let rig = Rig::plain()?;
    drop_first_packets(&rig.left)?;
    let wire = rig.wire(&["--rate", "200mbit", "--burst", "20kb"])?;
    ensure!(stat_of(&wire)?["ports"][0]["poller"] == "io_uring", "{}", stat_of(&wire)?["ports"]);
    require_flood(&rig)?;
    wire.weir(&["stat", wire.name(), "--check"])?.success()?;
    wire.stop().map(drop)
}

fn a_far_end_that_filters_later_is_taken_over_again() -> Result<()> {
    /// One would do where frames come in time.
    const TRIES_MAX: u64 = 3;
    let rig = Rig::plain()?;
    let wire = rig.wire(&["--rate", "200mbit", "--burst", "20kb"])?;
    ensure!(stat_of(&wire)?["ports"][0]["poller"] == "socket", "{}", stat_of(&wire)?["ports"]);
    drop_first_packets(&rig.left)?;
    for state in ["down", "up"] {
        rig.middle.ip(&format!("link set wa {state}"))?;
    }
    wait_until(
        "it is polled by io_uring",
        LIMIT,
        || Ok(stat_of(&wire)?["ports"][0]["poller"] == "io_uring"),
    )?;
    // Each further try would wait twice as long as the one before, and all ports of the worker with it.
    let tries = filtered(&rig.left)?;
    ensure!((1..=TRIES_MAX).contains(&tries), "a filtered packet is sent {tries} times");
    require_flood(&rig)?;
    wire.weir(&["stat", wire.name(), "--check"])?.success()?;
    wire.stop().map(drop)
}

fn require_flood(rig: &Rig) -> Result<()> {
    let address = rig.right_address().v4;
    let load = Load::new(&rig.left, &rig.right, &address, 3, 3.0);
    require_lossless(&Flood::start(&load)?.finish(LIMIT)?, &load)
}

/// A poll by io_uring brings 16 packets of each queue, for which such a memory has no frames beside those that are held.
fn a_filtered_namespace_with_little_memory_is_refused() -> Result<()> {
    let rig = Rig::new(16, 16)?;
    drop_input(&rig.middle)?;
    let done = run(&mut rig.weir(&["wire", "wa", "wb", "--memory", "2mb"]), LIMIT)?;
    ensure!(!done.status.success(), "it began, and would have stood");
    ensure!(done.stderr.contains("io_uring") && done.stderr.contains("--memory"), "{}", done.stderr);
    let wire = rig.wire(&["--memory", "16mb", "--rate", "200mbit"])?;
    let address = rig.right_address().v4;
    let load = Load::new(&rig.left, &rig.right, &address, 8, 2.0);
    let flows = Flood::start(&load)?.finish(LIMIT)?;
    require_lossless(&flows, &load)?;
    wire.stop()?;
    Ok(())
}

/// The doctor is interrupted while it waits for a packet that a filter drops: its interface is there to be seen then.
fn interrupted_it_leaves_nothing() -> Result<()> {
    let place = Namespace::new("doctor")?;
    drop_input(&place)?;
    let before = (traces(&place)?, belongings()?);
    let probe_is_there = || Ok(place.ip("-br link")?.contains("weirprobe"));
    let mut process = Process::spawn(place.command(weir_binary()?).arg("doctor"))?;
    wait_until("its interface is there", LIMIT, probe_is_there)?;
    process.signal(Signal::INT)?;
    let done = process.wait(LIMIT)?;
    require_timing!(done.stdout.is_empty(), "it ended before it was interrupted: {}", done.stdout);
    ensure!(!done.status.success(), "it was not interrupted");
    wait_until("its interface is gone", LIMIT, || Ok(!probe_is_there()?))?;
    require_same(&before.0, &traces(&place)?)?;
    wait_until("nothing is left behind", LIMIT, || Ok(belongings()?.new_since(&before.1).is_empty()))
}

/// Drops packets that come in, as a host's firewall does.
fn drop_input(namespace: &Namespace) -> Result<()> {
    namespace.sh("nft add table inet filter")?;
    namespace.sh("nft add chain inet filter input { type filter hook input priority 0 ; policy drop ; }")?;
    Ok(())
}

/// Drops packets from no address on their way out, as a filter against forged ones does.
fn drop_first_packets(sender: &Namespace) -> Result<()> {
    sender.sh("nft add table netdev filter")?;
    sender.sh("nft add chain netdev filter out { type filter hook egress device veth0 priority 0 ; }")?;
    sender.sh("nft add rule netdev filter out ip saddr 0.0.0.0 counter drop")?;
    Ok(())
}

/// The packets that [`drop_first_packets`] has dropped.
fn filtered(sender: &Namespace) -> Result<u64> {
    let listed = run(sender.command("nft").args(["list", "chain", "netdev", "filter", "out"]), LIMIT)?;
    let listed = listed.success()?.stdout;
    let count = listed.split("counter packets ").nth(1).and_then(|rest| rest.split(' ').next());
    Ok(count.with_context(|| format!("no counter: {listed}"))?.parse()?)
}

fn doctor(namespace: &Namespace) -> Result<Value> {
    let done = run(namespace.command(weir_binary()?).args(["doctor", "--json"]), LIMIT)?.success()?;
    serde_json::from_str(&done.stdout).with_context(|| format!("no JSON: {}", done.stdout))
}

fn check<'a>(report: &'a Value, name: &str) -> Result<&'a Value> {
    let mut checks = report["checks"].as_array().context("no checks")?.iter();
    checks.find(|check| check["name"] == name).with_context(|| format!("no check called {name}: {report:#}"))
}

fn status<'a>(report: &'a Value, name: &str) -> Result<&'a str> {
    check(report, name)?["status"].as_str().context("a check without a status")
}
