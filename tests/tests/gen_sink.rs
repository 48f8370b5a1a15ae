//! `weir gen` and `weir sink`: in memory, and at the two ends of a veth pair, where nothing may be lost either.

use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use weir_lab::bed::{End, Namespace, veth};
use weir_lab::clock::wait_until;
use weir_lab::process::{Process, run};
use weir_tests::harness;
use weir_tests::kernel::{require_same, traces};
use weir_tests::{plain, privileged, weir_binary};

const LIMIT: Duration = Duration::from_secs(60);

fn main() -> ExitCode {
    harness::main(&[
        plain!(in_memory_on_one_worker),
        plain!(in_memory_through_the_test_bed_on_two_workers),
        plain!(what_makes_no_sense_is_refused),
        privileged!(as_fast_as_it_goes_over_a_veth),
        privileged!(at_a_rate_over_a_veth),
        privileged!(an_interface_that_is_none),
    ])
}

fn json_of(text: &str) -> Result<Value> {
    serde_json::from_str(text).with_context(|| format!("no JSON: {text}"))
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
    if std::thread::available_parallelism()?.get() < 2 {
        return Ok(());
    }
    let options = ["--through", "testbed", "--workers", "2", "--dispatch", "deferred", "--count", "300000"];
    let report = in_memory(&options)?;
    require_clean(&report)?;
    ensure!(report["numbered"] == 300_000 && report["balances"] == true, "{report}");
    Ok(())
}

fn what_makes_no_sense_is_refused() -> Result<()> {
    for (options, said) in [
        (&["--workers", "0"][..], "a path needs at least 1"),
        (&["--workers", "4000"], "each worker wants one of its own"),
        (&["--ring", "1000", "--time", "1s"], "give a power of two"),
        (&["--size", "20"], "give 60 to 1514"),
        (&["--rate", "fast"], "such as 500pps"),
        (&["--src", "10.0.0.2-10.0.0.1"], "runs backwards"),
        (&["--flows", "9", "--dst", "10.0.0.1"], "make 1"),
    ] {
        let mut command = Command::new(weir_binary()?);
        let done = run(command.arg("gen").args(options), LIMIT)?;
        ensure!(done.status.code() == Some(2), "{options:?} ended with {}", done.status);
        ensure!(done.stderr.contains(said), "{options:?}: {}", done.stderr);
    }
    Ok(())
}

/// A sink at one end of a pair, a generator at the other; what each reports.
fn over_a_veth(options: &[&str], packets: u64) -> Result<(Value, Value)> {
    let (left, right) = (Namespace::new("left")?, Namespace::new("right")?);
    veth(0, End { namespace: &left, name: "veth0" }, End { namespace: &right, name: "veth1" }, 1)?;
    let before = (traces(&left)?, traces(&right)?);
    let weir = weir_binary()?;
    let mut sink = right.command(&weir);
    sink.args(["sink", "veth1", "--json", "--time", "50s", "--count", &packets.to_string()]);
    let mut sink = Process::spawn(&mut sink)?;
    wait_until("the sink is ready", Duration::from_secs(20), || {
        ensure!(sink.is_running()?, "it ended: {}", sink.stderr());
        Ok(sink.stderr().contains("ready"))
    })?;
    let mut generator = left.command(&weir);
    generator.args(["gen", "veth0", "--json", "--count", &packets.to_string()]).args(options);
    let sent = run(&mut generator, LIMIT)?.success()?;
    let received = sink.wait(LIMIT)?.success()?;
    require_same(&before.0, &traces(&left)?)?;
    require_same(&before.1, &traces(&right)?)?;
    Ok((json_of(&sent.stdout)?, json_of(&received.stdout)?))
}

fn require_all_arrived(sent: &Value, received: &Value, packets: u64) -> Result<()> {
    require_clean(received)?;
    ensure!(sent["sent"] == packets && sent["delivered"] == packets, "{sent}");
    ensure!(sent["balances"] == true && sent["held"] == 0, "{sent}");
    ensure!(received["numbered"] == packets && received["kernel_lost"] == 0, "{received}");
    Ok(())
}

fn as_fast_as_it_goes_over_a_veth() -> Result<()> {
    const PACKETS: u64 = 300_000;
    let (sent, received) = over_a_veth(&["--flows", "2000", "--size", "100"], PACKETS)?;
    require_all_arrived(&sent, &received, PACKETS)
}

fn at_a_rate_over_a_veth() -> Result<()> {
    const PACKETS: u64 = 5_000;
    let (sent, received) = over_a_veth(&["--rate", "5kpps"], PACKETS)?;
    require_all_arrived(&sent, &received, PACKETS)?;
    let elapsed_ns = sent["elapsed_ns"].as_u64().context("a time")?;
    ensure!(elapsed_ns > 950_000_000, "5000 packets at 5 kpps in {elapsed_ns} ns");
    Ok(())
}

fn an_interface_that_is_none() -> Result<()> {
    for command in ["gen", "sink"] {
        let done = run(Command::new(weir_binary()?).args([command, "nosuch0"]), LIMIT)?;
        ensure!(!done.status.success() && done.stderr.contains("nosuch0"), "{command}: {}", done.stderr);
    }
    Ok(())
}
