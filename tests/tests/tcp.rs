//! TCP behind a limit, with nothing tuned by the user.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use weir_lab::bed::Namespace;
use weir_lab::process::{Process, run};
use weir_tests::harness;
use weir_tests::privileged;
use weir_tests::rig::{MANY_QUEUES, Rig};

const SECONDS: u64 = 3;
const LIMIT_BITS_PER_S: f64 = 200e6;
/// Ethernet, IPv4 and TCP with timestamps, around 1448 bytes of data in a frame of 1514.
const FRAME_PER_DATA: f64 = 1514.0 / 1448.0;

fn main() -> ExitCode {
    harness::main(&[
        privileged!(there),
        privileged!(there_with_many_queues),
        privileged!(back),
        privileged!(over_ipv6),
        privileged!(eight_streams),
    ])
}

fn there() -> Result<()> {
    behind_a_limit(&Rig::plain()?, &[], false)
}

fn there_with_many_queues() -> Result<()> {
    behind_a_limit(&Rig::new(MANY_QUEUES, MANY_QUEUES)?, &[], false)
}

fn back() -> Result<()> {
    behind_a_limit(&Rig::plain()?, &["-R"], false)
}

fn over_ipv6() -> Result<()> {
    behind_a_limit(&Rig::plain()?, &[], true)
}

fn eight_streams() -> Result<()> {
    behind_a_limit(&Rig::plain()?, &["-P", "8"], false)
}

/// Requires that 95 % of the limit arrive, counted as the limit counts: in frames.
fn behind_a_limit(rig: &Rig, options: &[&str], ipv6: bool) -> Result<()> {
    let wire = rig.wire(&["--rate", "200mbit", "--burst", "20kb"])?;
    let address = if ipv6 { rig.right_address().v6 } else { rig.right_address().v4 };
    let data_bits_per_s = iperf3(&rig.left, &rig.right, &address, options)?;
    let frames = if ipv6 { 1514.0 / 1428.0 } else { FRAME_PER_DATA };
    let share = data_bits_per_s * frames / LIMIT_BITS_PER_S;
    weir_tests::require_timing!(share >= 0.95, "TCP reached {:.1} % of the limit", share * 100.0);
    ensure!(share <= 1.01, "TCP reached {:.1} % of the limit: it does not hold", share * 100.0);
    wire.check()?;
    wire.stop()?;
    Ok(())
}

/// Data bits per second that arrived.
fn iperf3(from: &Namespace, to: &Namespace, address: &str, options: &[&str]) -> Result<f64> {
    let mut command = to.command("iperf3");
    let mut server = Process::spawn(command.args(["-s", "-1", "--forceflush"]))?;
    server.wait_for_output("Server listening", Duration::from_secs(10))?;
    let mut command = from.command("iperf3");
    command.args(["-c", address, "-J", "-t", &SECONDS.to_string()]).args(options);
    let done = run(&mut command, Duration::from_secs(SECONDS + 20))?.success()?;
    let report: Value = serde_json::from_str(&done.stdout).context("iperf3 printed no JSON")?;
    report["end"]["sum_received"]["bits_per_second"].as_f64().context("iperf3 reports no rate")
}
