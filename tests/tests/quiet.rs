//! A sender of little is quick, and a sender of much gets an equal share: within a class, beside the class of a flood.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use weir_lab::iperf::{Flood, HEADERS_V4_BYTES, Load, PAYLOAD_BYTES, jain, serve};
use weir_lab::ping::Ping;
use weir_lab::process::run;
use weir_tests::classes::{File, row, two_classes};
use weir_tests::rig::{MANY_QUEUES, Rig, require_lossless};
use weir_tests::{harness, privileged};

const PATIENCE: Duration = Duration::from_secs(30);

fn main() -> ExitCode {
    harness::main(&[
        privileged!(a_quiet_flow_beside_8_floods_of_its_class),
        privileged!(a_quiet_flow_beside_16_floods_of_its_class).long(),
        privileged!(a_quiet_flow_beside_64_floods_of_its_class),
        privileged!(a_quiet_flow_on_plain_pairs_arrives).flooding(),
        privileged!(sixteen_equal_senders_of_udp_and_tcp_share_evenly),
    ])
}

fn a_quiet_flow_beside_8_floods_of_its_class() -> Result<()> {
    quiet_flow(8)
}

fn a_quiet_flow_beside_16_floods_of_its_class() -> Result<()> {
    quiet_flow(16)
}

fn a_quiet_flow_beside_64_floods_of_its_class() -> Result<()> {
    quiet_flow(64)
}

/// Pings and floods are all of class `b`, which borrows the part of 200 Mbit/s that `a` leaves.
fn quiet_flow(floods: usize) -> Result<()> {
    let rig = Rig::new(MANY_QUEUES, MANY_QUEUES)?;
    let file = File::new(&two_classes("10mbit", "190mbit"))?;
    let wire = rig.wire(&["--classes", file.path()])?;
    let address = rig.right_address().v4;
    let load = Load { first_port: 6001, ..Load::new(&rig.left, &rig.right, &address, floods, 4.0) };
    let flood = Flood::start(&load)?;
    let trips = Ping::start_series(&rig.left, &address, 120, 0.02)?.finish()?;
    weir_tests::require_timing!(!flood.remaining().is_zero(), "the floods ended before the pings");
    let flows = flood.finish(PATIENCE)?;
    let p99_ms = trips.percentile_ms(0.99).context("no ping came back")?;
    println!("    p50 {:.2} ms, p99 {p99_ms:.2} ms", trips.percentile_ms(0.5).unwrap_or(0.0));
    require_lossless(&flows, &load)?;
    trips.require_all()?;
    ensure!(row(&wire, "b")?.0["blocked_ns"].as_u64() > Some(1_000_000_000), "the floods were never blocked");
    ensure!(row(&wire, "a")?.0["delivered"] == 0, "something was not of the floods' class");
    weir_tests::require_timing!(p99_ms < 2.0, "p99 is {p99_ms:.2} ms");
    let rates: Vec<f64> = flows.iter().map(|flow| flow.bits_per_s).collect();
    weir_tests::require_timing!(jain(&rates) >= 0.98, "Jain index {:.4} over {rates:?} bit/s", jain(&rates));
    wire.check()?;
    wire.stop()?;
    Ok(())
}

/// All flows share one queue there, so the pings wait behind the floods, in the ring and in the qdisc; none is lost for it.
fn a_quiet_flow_on_plain_pairs_arrives() -> Result<()> {
    let rig = Rig::plain()?;
    let wire = rig.wire(&["--rate", "200mbit"])?;
    let address = rig.right_address().v4;
    let load = Load::new(&rig.left, &rig.right, &address, 8, 3.0);
    let flood = Flood::start(&load)?;
    let trips = Ping::start_series(&rig.left, &address, 60, 0.02)?.finish()?;
    let flows = flood.finish(PATIENCE)?;
    println!("    p50 {:.2} ms", trips.percentile_ms(0.5).unwrap_or(0.0));
    require_lossless(&flows, &load)?;
    trips.require_all()?;
    wire.check()?;
    wire.stop()?;
    Ok(())
}

/// Eight UDP senders have half of the link as their class, eight TCP senders the other half.
fn sixteen_equal_senders_of_udp_and_tcp_share_evenly() -> Result<()> {
    const EACH: usize = 8;
    let rig = Rig::new(MANY_QUEUES, MANY_QUEUES)?;
    let text = two_classes("100mbit", "100mbit")
        .replace("ceil = \"200mbit\"", "ceil = \"100mbit\"")
        .replace("to_ports = 5001\n", "");
    let file = File::new(&text)?;
    let wire = rig.wire(&["--classes", file.path()])?;
    let address = rig.right_address().v4;
    let server = serve(&rig.right, 7001, &["-P", &EACH.to_string()])?;
    let load = Load::new(&rig.left, &rig.right, &address, EACH, 7.0);
    let flood = Flood::start(&load)?;
    let mut command = rig.left.command("iperf");
    command.args(["-c", &address, "-P", &EACH.to_string(), "-t", "5", "-p", "7001"]);
    run(&mut command, PATIENCE)?.success()?;
    let flows = flood.finish(PATIENCE)?;
    let done = server.wait(PATIENCE)?;
    let tcp = tcp_rates(&done.stdout);
    ensure!(tcp.len() == EACH, "{} reports of {EACH} streams: {}", tcp.len(), done.stdout);
    // In frames, as the classes count: 1470 bytes of payload in each with UDP, 1448 of 1514 with TCP.
    let udp_share = (PAYLOAD_BYTES + HEADERS_V4_BYTES) as f64 / PAYLOAD_BYTES as f64;
    let udp = flows.iter().map(|flow| flow.bits_per_s * udp_share);
    let rates: Vec<f64> = udp.chain(tcp.into_iter().map(|rate| rate * 1514.0 / 1448.0)).collect();
    println!("    Jain index {:.5}", jain(&rates));
    require_lossless(&flows, &load)?;
    wire.check()?;
    for class in ["a", "b"] {
        let row = row(&wire, class)?.0;
        ensure!(row["dropped"] == serde_json::json!({}), "{class} dropped: {row}");
    }
    weir_tests::require_timing!(jain(&rates) >= 0.99, "Jain index {:.4} over {rates:?} bit/s", jain(&rates));
    wire.stop()?;
    Ok(())
}

/// The rates in the report of `iperf -s -y C` on each TCP stream: `date,ip,port,ip,port,id,begin-end,bytes,bits/s`; a sum has the id -1.
fn tcp_rates(text: &str) -> Vec<f64> {
    let streams = text.lines().map(|line| line.split(',').collect::<Vec<_>>());
    let streams = streams.filter(|fields| fields.len() >= 9 && fields[5] != "-1");
    streams.filter_map(|fields| fields[8].parse().ok()).collect()
}
