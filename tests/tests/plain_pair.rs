//! Pairs as container runtimes make them: `ip link add ... type veth`, one queue in use and room for as many as there can be
//! processors. Floods through them are neither lost nor reordered, with one worker and with two.
//!
//! `WEIR_ROUNDS` repeats each flood; `make verify` asks for ten.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use weir_lab::iperf::{Flood, Load};

use weir_tests::rig::{Rig, require_lossless};
use weir_tests::{harness, privileged, rounds};

const PATIENCE: Duration = Duration::from_secs(30);
const SECONDS: f64 = 2.0;

fn main() -> ExitCode {
    harness::main(&[
        privileged!(one_client).flooding(),
        privileged!(three_clients).flooding(),
        privileged!(sixteen_clients).flooding(),
        privileged!(one_client_with_two_workers).flooding(),
        privileged!(three_clients_with_two_workers).flooding(),
        privileged!(sixteen_clients_with_two_workers).flooding(),
        privileged!(queues_to_come_have_a_qdisc_each).flooding(),
    ])
}

fn one_client() -> Result<()> {
    floods(1, "1")
}

fn three_clients() -> Result<()> {
    floods(3, "1")
}

fn sixteen_clients() -> Result<()> {
    floods(16, "1")
}

fn one_client_with_two_workers() -> Result<()> {
    floods(1, "2")
}

fn three_clients_with_two_workers() -> Result<()> {
    floods(3, "2")
}

fn sixteen_clients_with_two_workers() -> Result<()> {
    floods(16, "2")
}

fn floods(clients: usize, workers: &str) -> Result<()> {
    for round in 1..=rounds().unwrap_or(1) {
        let rig = Rig::plain()?;
        let wire = rig.wire(&["--rate", "200mbit", "--workers", workers])?;
        let address = rig.right_address().v4;
        let load = Load::new(&rig.left, &rig.right, &address, clients, SECONDS);
        let flows = Flood::start(&load)?.finish(PATIENCE)?;
        wire.check().with_context(|| format!("round {round}"))?;
        require_lossless(&flows, &load).with_context(|| format!("round {round}"))?;
        wire.stop()?;
    }
    Ok(())
}

/// Queues that `ethtool -L` can bring into use later have one too.
fn queues_to_come_have_a_qdisc_each() -> Result<()> {
    let rig = Rig::plain()?;
    let links: serde_json::Value = serde_json::from_str(&rig.left.ip("-d -j link show dev veth0")?)?;
    let possible = links[0]["num_tx_queues"].as_u64().context("no number of queues")?;
    ensure!(possible > 1, "this machine can have one processor alone: its pairs have one queue");
    let wire = rig.wire(&["--rate", "200mbit"])?;
    let qdiscs = rig.left.tc("qdisc show dev veth0")?;
    let below =
        qdiscs.lines().filter(|line| line.starts_with("qdisc pfifo ") && line.contains(" parent ")).count();
    ensure!(below as u64 == possible, "{below} of {possible} queues have a pfifo of their own:\n{qdiscs}");
    wire.stop()?;
    Ok(())
}
