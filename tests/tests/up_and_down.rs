//! An interface of a wire that goes down and comes up again carries traffic as before, and the books still balance.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use weir_lab::bed::End;
use weir_lab::clock::wait_until;
use weir_lab::iperf::{Flood, Load};
use weir_lab::process::run;
use weir_lab::wire::Wire;
use weir_tests::crowd::{Arrived, Crowd};
use weir_tests::harness;
use weir_tests::privileged;
use weir_tests::raw::RawSocket;
use weir_tests::rig::{Rig, require_lossless, stat_of};

const LIMIT: Duration = Duration::from_secs(10);
const PATIENCE: Duration = Duration::from_secs(30);

fn main() -> ExitCode {
    harness::main(&[
        privileged!(where_packets_come_in).flooding(),
        privileged!(where_packets_go_out).flooding(),
        privileged!(at_the_senders_end).flooding(),
        privileged!(the_senders_end_last).flooding(),
        privileged!(time_and_again).flooding(),
        privileged!(under_a_crowd).flooding(),
        privileged!(far_end_without_carrier).flooding(),
    ])
}

fn where_packets_come_in() -> Result<()> {
    up_and_down(Rig::a, 1)
}

fn where_packets_go_out() -> Result<()> {
    up_and_down(Rig::b, 1)
}

/// The routes and neighbours of the end's owner go with it, so programs must begin anew.
fn at_the_senders_end() -> Result<()> {
    let rig = Rig::new(8, 1)?;
    let wire = rig.wire(&["--rate", "100mbit", "--burst", "20kb"])?;
    let address = rig.right_address().v4;
    let flood = Flood::start(&Load::new(&rig.left, &rig.right, &address, 3, 60.0))?;
    for state in ["down", "up"] {
        rig.left.ip(&format!("link set veth0 {state}"))?;
    }
    drop(flood);
    wait_until("the far host answers", LIMIT, || {
        let mut ping = rig.left.command("ping");
        Ok(run(ping.args(["-n", "-c", "1", "-W", "0.3", &address]), LIMIT)?.status.success())
    })?;
    require_as_before(&rig, &wire)
}

/// Both ends of a pair go down under programs that send all the while, and the senders' end comes up last: until then the queues cannot be
/// owned again, because no first packet gets through. The order of datagrams is not looked at: the senders' kernel lets some by those that
/// wait for a neighbour, which it has to find anew.
fn the_senders_end_last() -> Result<()> {
    let rig = Rig::new(8, 1)?;
    let wire = rig.wire(&["--rate", "100mbit", "--burst", "20kb"])?;
    let crowd = Crowd::start(&rig.left, &rig.right, &rig.right_address().v4, 2, 1000)?;
    let End { namespace, name } = rig.a();
    let state = || -> Result<String> {
        let stat = stat_of(&wire)?;
        Ok(stat["ports"][0]["device"]["state"].as_str().context("no state")?.into())
    };
    for _ in 0..3 {
        let before = delivered(&wire)?;
        rig.left.ip("link set veth0 down")?;
        namespace.ip(&format!("link set {name} down"))?;
        wait_until("the wire knows that its end is down", LIMIT, || Ok(state()? == "down"))?;
        namespace.ip(&format!("link set {name} up"))?;
        wait_until("the wire knows that its end is up alone", LIMIT, || Ok(state()? == "no-carrier"))?;
        rig.left.ip("link set veth0 up")?;
        wait_until("traffic flows again", LIMIT, || Ok(delivered(&wire)? > before + 1000))?;
        require_balance(&wire)?;
    }
    crowd.finish()?;
    let port = stat_of(&wire)?["ports"][0].clone();
    ensure!(port["kernel_dropped"] == 0, "the kernel lost packets of owned queues: {port}");
    require_as_before(&rig, &wire)
}

fn time_and_again() -> Result<()> {
    up_and_down(Rig::a, 5)
}

/// The wire's end goes down under programs that send all the while, into one queue, and with others that look on at each packet the kernel
/// takes: it is still polling a full ring when the queue is owned again.
fn under_a_crowd() -> Result<()> {
    const SENDERS: usize = 8;
    const SIZE_BYTES: usize = 100;
    const ONLOOKERS: usize = 20;
    const TIMES: u32 = 8;
    const SENT_IN_VAIN: u64 = 20_000;
    let rig = Rig::new(1, 1)?;
    let wire = rig.wire(&["--rate", "100mbit", "--burst", "20kb"])?;
    let _onlookers = (0..ONLOOKERS).map(|_| RawSocket::onlooker(rig.a())).collect::<Result<Vec<_>>>()?;
    let crowd = Crowd::start(&rig.left, &rig.right, &rig.right_address().v4, SENDERS, SIZE_BYTES)?;
    let End { namespace, name } = rig.a();
    for _ in 0..TIMES {
        let before = delivered(&wire)?;
        namespace.ip(&format!("link set {name} down"))?;
        let sent_before = crowd.sent();
        wait_until("the kernel takes what goes nowhere", LIMIT, || {
            Ok(crowd.sent() > sent_before + SENT_IN_VAIN)
        })?;
        namespace.ip(&format!("link set {name} up"))?;
        wait_until("traffic flows again", LIMIT, || Ok(delivered(&wire)? > before + 1000))?;
        require_balance(&wire)?;
    }
    let Arrived { count, reordered } = crowd.finish()?;
    ensure!(reordered == 0, "{reordered} of {count} datagrams arrived out of order");
    require_as_before(&rig, &wire)
}

/// Packets to an interface without a carrier wait, and their senders are held; those that the device had are lost.
fn far_end_without_carrier() -> Result<()> {
    const WITH_THE_DEVICE_MAX: u64 = 8;
    let rig = Rig::new(8, 1)?;
    let wire = rig.wire(&["--rate", "100mbit", "--burst", "20kb"])?;
    let address = rig.right_address().v4;
    let flood = Flood::start(&Load::new(&rig.left, &rig.right, &address, 3, 60.0))?;
    wait_until("traffic flows", LIMIT, || Ok(delivered(&wire)? > 1000))?;
    rig.right.ip("link set veth0 down")?;
    let (before, blocked_before_ns) = (delivered(&wire)?, blocked_ns(&wire)?);
    // At the rate some 4000 packets would pass meanwhile.
    wait_until("senders are held for half a second", LIMIT, || {
        Ok(blocked_ns(&wire)? > blocked_before_ns + 500_000_000)
    })?;
    ensure!(delivered(&wire)? <= before + 1, "it goes on delivering");
    rig.right.ip("link set veth0 up")?;
    wait_until("traffic flows again", LIMIT, || Ok(delivered(&wire)? > before + 1000))?;
    drop(flood);
    let class = stat_of(&wire)?["wires"][0]["classes"][0].clone();
    let dropped = class["dropped"].as_object().context("no dropped")?;
    let count: u64 = dropped.values().filter_map(serde_json::Value::as_u64).sum();
    ensure!(count <= WITH_THE_DEVICE_MAX, "it dropped {class}");
    require_as_before(&rig, &wire)
}

fn up_and_down(end: impl Fn(&Rig) -> End, times: u32) -> Result<()> {
    let rig = Rig::new(8, 1)?;
    let wire = rig.wire(&["--rate", "100mbit", "--burst", "20kb"])?;
    let address = rig.right_address().v4;
    let flood = Flood::start(&Load::new(&rig.left, &rig.right, &address, 3, 60.0))?;
    for _ in 0..times {
        let End { namespace, name } = end(&rig);
        namespace.ip(&format!("link set {name} down"))?;
        let before = delivered(&wire)?;
        namespace.ip(&format!("link set {name} up"))?;
        wait_until("traffic flows again", LIMIT, || Ok(delivered(&wire)? > before + 1000))?;
        require_balance(&wire)?;
    }
    drop(flood);
    require_as_before(&rig, &wire)?;
    let said = wire.stop()?.stderr;
    let of_end = format!("weir: {} is ", end(&rig).name);
    let told: Vec<&str> = said.lines().filter(|line| line.starts_with(&of_end)).collect();
    let is_pair = |pair: &[&str]| pair[0].contains("is down:") && pair[1].contains("is up again:");
    ensure!(told.len() == 2 * times as usize && told.chunks(2).all(is_pair), "it says: {said}");
    Ok(())
}

/// Requires that the queues are owned by sockets, that every frame is somewhere, and that a flood loses nothing.
fn require_as_before(rig: &Rig, wire: &Wire) -> Result<()> {
    let stat = stat_of(wire)?;
    for port in stat["ports"].as_array().context("no ports")? {
        ensure!(port["poller"] == "socket", "it is polled otherwise now, though nothing is filtered: {port}");
    }
    let frames = &stat["wires"][0]["frames"];
    let count = |name: &str| frames[name].as_u64().with_context(|| format!("no frames.{name}"));
    ensure!(count("total")? == count("free")? + count("lent")? + count("held")?, "{frames}");
    let address = rig.right_address().v4;
    let load = Load { first_port: 6001, ..Load::new(&rig.left, &rig.right, &address, 3, 1.0) };
    let flows = Flood::start(&load)?.finish(PATIENCE)?;
    require_lossless(&flows, &load)?;
    require_balance(wire)
}

fn blocked_ns(wire: &Wire) -> Result<u64> {
    stat_of(wire)?["wires"][0]["classes"][0]["blocked_ns"].as_u64().context("no blocked_ns")
}

fn delivered(wire: &Wire) -> Result<u64> {
    stat_of(wire)?["wires"][0]["classes"][0]["delivered"].as_u64().context("no delivered")
}

fn require_balance(wire: &Wire) -> Result<()> {
    wire.weir(&["stat", wire.name(), "--check"])?.success()?;
    Ok(())
}
