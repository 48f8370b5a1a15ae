//! Floods of real clients through `weir wire`: nothing is lost, nothing overtakes, the rate is there and even.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use weir_lab::bed::Namespace;
use weir_lab::iperf::{Flood, Flow, Load};
use weir_lab::wire::Wire;
use weir_tests::harness;
use weir_tests::privileged;
use weir_tests::rig::{
    Demand, MANY_QUEUES, Rig, measure_rate, payload_for_mtu, require_lossless, require_rate,
};

const PATIENCE: Duration = Duration::from_secs(30);
const LIMIT: [&str; 4] = ["--rate", "200mbit", "--burst", "20kb"];

fn main() -> ExitCode {
    harness::main(&[
        privileged!(two_clients),
        privileged!(three_clients).long(),
        privileged!(eight_clients).long(),
        privileged!(sixty_four_clients),
        privileged!(plain_pairs_of_one_queue),
        privileged!(ipv6),
        privileged!(both_directions_at_once),
        privileged!(directions_with_limits_of_their_own),
        privileged!(two_workers).on_two_processors(),
        privileged!(datagrams_of_odd_sizes).flooding(),
        privileged!(a_larger_mtu),
    ])
}

/// The time that each flood lasts, in seconds: long enough to see loss, unless `make soak` asks for more.
fn seconds() -> f64 {
    std::env::var("WEIR_FLOOD_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(2.0)
}

fn two_clients() -> Result<()> {
    one_way(&Rig::new(MANY_QUEUES, 1)?, 2, false)
}

fn three_clients() -> Result<()> {
    one_way(&Rig::new(MANY_QUEUES, 1)?, 3, false)
}

fn eight_clients() -> Result<()> {
    one_way(&Rig::new(MANY_QUEUES, 1)?, 8, false)
}

fn sixty_four_clients() -> Result<()> {
    one_way(&Rig::new(MANY_QUEUES, 1)?, 64, false)
}

/// The pairs can never have more than one queue.
fn plain_pairs_of_one_queue() -> Result<()> {
    one_way(&Rig::new(1, 1)?, 3, false)
}

fn ipv6() -> Result<()> {
    one_way(&Rig::plain()?, 3, true)
}

fn one_way(rig: &Rig, clients: usize, ipv6: bool) -> Result<()> {
    let wire = rig.wire(&LIMIT)?;
    let address = if ipv6 { rig.right_address().v6 } else { rig.right_address().v4 };
    let mut load = Load::new(&rig.left, &rig.right, &address, clients, seconds());
    if ipv6 {
        load.payload_bytes = 1450;
    }
    flood(&load, &wire, Demand::of_rate(200e6))?;
    wire.stop()?;
    Ok(())
}

/// One flood, with the sum of all packets proved while it runs and after.
fn flood(load: &Load, wire: &Wire, demand: Demand) -> Result<Vec<Flow>> {
    let flood = Flood::start(load)?;
    wire.check().context("while the flood runs")?;
    let rate = measure_rate(&flood, load)?;
    let flows = flood.finish(PATIENCE)?;
    wire.check().context("after the flood")?;
    require_lossless(&flows, load)?;
    require_rate(&flows, rate, demand)?;
    Ok(flows)
}

fn both_directions_at_once() -> Result<()> {
    two_ways(&["--rate", "100mbit"], 100e6, 100e6)
}

fn directions_with_limits_of_their_own() -> Result<()> {
    two_ways(&["--rate", "120mbit", "--rate-back", "40mbit"], 120e6, 40e6)
}

fn two_ways(options: &[&str], there_bits_per_s: f64, back_bits_per_s: f64) -> Result<()> {
    let rig = Rig::plain()?;
    let wire = rig.wire(options)?;
    let (right, left) = (rig.right_address().v4, rig.left_address().v4);
    let there = Load::new(&rig.left, &rig.right, &right, 3, seconds());
    let back = Load { first_port: 6001, ..Load::new(&rig.right, &rig.left, &left, 3, seconds()) };
    let (flood_there, flood_back) = (Flood::start(&there)?, Flood::start(&back)?);
    wire.check().context("while both floods run")?;
    // The second began later, so the first ends first: measure while both run.
    let margin = Duration::from_secs_f64(there.seconds * 0.1);
    let before = [flood_there.deliveries()?, flood_back.deliveries()?];
    weir_lab::clock::let_pass(flood_there.remaining().saturating_sub(margin), |_| ())?;
    let after = [flood_there.deliveries()?, flood_back.deliveries()?];
    let flows_there = flood_there.finish(PATIENCE)?;
    let flows_back = flood_back.finish(PATIENCE)?;
    wire.check().context("after both floods")?;
    let cases = [(flows_there, &there, there_bits_per_s), (flows_back, &back, back_bits_per_s)];
    for (index, (flows, load, limit)) in cases.iter().enumerate() {
        require_lossless(flows, load)?;
        let rate = after[index].per_s_since(&before[index]) * load.frame_bytes() as f64 * 8.0;
        require_rate(flows, rate, Demand::of_rate(*limit))?;
    }
    wire.stop()?;
    Ok(())
}

/// Each end has an owner, and packets cross over. The limits leave the clients of a small machine time beside two workers, which go
/// first.
fn two_workers() -> Result<()> {
    two_ways(&["--rate", "40mbit", "--rate-back", "20mbit", "--workers", "2"], 40e6, 20e6)
}

/// iperf's own least is 16 bytes and a few; the raw frames of `frames.rs` go below that.
fn datagrams_of_odd_sizes() -> Result<()> {
    let rig = Rig::plain()?;
    let wire = rig.wire(&["--rate", "50mbit"])?;
    let address = rig.right_address().v4;
    for payload_bytes in [61, 333, 1001, payload_for_mtu(1500)] {
        let load = Load { payload_bytes, ..Load::new(&rig.left, &rig.right, &address, 2, 1.0) };
        let flows = Flood::start(&load)?.finish(PATIENCE)?;
        require_lossless(&flows, &load).with_context(|| format!("datagrams of {payload_bytes} bytes"))?;
        let total: u64 = flows.iter().map(|flow| flow.total).sum();
        ensure!(total > 500, "only {total} datagrams of {payload_bytes} bytes in a second");
    }
    wire.check()?;
    wire.stop()?;
    Ok(())
}

fn a_larger_mtu() -> Result<()> {
    const MTU: u64 = 3000;
    let rig = Rig::plain()?;
    for end in [rig.left_end(), rig.a(), rig.b(), rig.right_end()] {
        set_mtu(end.namespace, end.name, MTU)?;
    }
    let wire = rig.wire(&LIMIT)?;
    let address = rig.right_address().v4;
    let payload_bytes = payload_for_mtu(MTU);
    let load = Load { payload_bytes, ..Load::new(&rig.left, &rig.right, &address, 2, seconds()) };
    flood(&load, &wire, Demand::of_rate(200e6))?;
    wire.stop()?;
    Ok(())
}

fn set_mtu(namespace: &Namespace, name: &str, mtu: u64) -> Result<()> {
    namespace.ip(&format!("link set {name} mtu {mtu}"))?;
    Ok(())
}
