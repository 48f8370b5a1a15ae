//! Packets that are forwarded into a pair have no socket that could be held for them. They may wait in front of a slow wire up to a bound
//! in bytes, beyond which they are dropped, counted under their own name; senders with a socket at the same end lose nothing.
//!
//! ```text
//!  behind veth0 ----- veth1  left  veth0 ===== wa [weir wire] wb ===== veth0  right
//!  floods                 routes; has senders of its own
//! ```

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use weir_lab::bed::{End, Namespace, address, mac_of, names, veth};
use weir_lab::clock::{let_pass, wait_until};
use weir_tests::crowd::Crowd;
use weir_tests::rig::Rig;
use weir_tests::{harness, privileged};

const LIMIT: Duration = Duration::from_secs(60);
const MIB: u64 = 1 << 20;
/// The kernel's bytes for each packet, as the bound counts them.
const OVERHEAD_BYTES: u64 = 768;
/// As long as an Ethernet payload may be, with its headers.
const DATAGRAM_BYTES: usize = 1472;
const SENDERS: usize = 2;
/// An address that nobody has, behind the wire.
const NOBODY: &str = "10.99.0.9";

fn main() -> ExitCode {
    harness::main(&[
        privileged!(a_pair_of_one_queue_holds_16_mib_of_a_flood_from_behind),
        privileged!(each_of_many_queues_holds_1_mib),
    ])
}

fn a_pair_of_one_queue_holds_16_mib_of_a_flood_from_behind() -> Result<()> {
    flood_from_behind(&Rig::plain()?, 16 * MIB)
}

fn each_of_many_queues_holds_1_mib() -> Result<()> {
    flood_from_behind(&Rig::new(64, 64)?, SENDERS as u64 * MIB)
}

/// Floods with datagrams of which `bytes_max` may wait, beside the packets of senders with sockets.
fn flood_from_behind(rig: &Rig, bytes_max: u64) -> Result<()> {
    let behind = Namespace::new("behind")?;
    let near = End { namespace: &rig.left, name: "veth1" };
    let far = End { namespace: &behind, name: "veth0" };
    veth(2, near, far, 1)?;
    address(1, near, far)?;
    behind.ip(&format!("route add default via {}", names(1, 1).v4))?;
    rig.left.sh("sysctl -q -w net.ipv4.ip_forward=1 net.ipv4.conf.all.rp_filter=0")?;
    let mac = mac_of(rig.right_end())?;
    rig.left.ip(&format!("neigh replace {NOBODY} lladdr {mac} dev veth0 nud permanent"))?;

    let wire = rig.wire(&["--rate", "100mbit"])?;
    let mut held = Crowd::start(&rig.left, &rig.right, &rig.right_address().v4, SENDERS, DATAGRAM_BYTES)?;
    let flood = Crowd::start(&behind, &behind, NOBODY, SENDERS, DATAGRAM_BYTES)?;
    let (mut most, mut told_most) = (0, 0);
    let mut looks = 0;
    let port = |name: &str| -> Result<u64> {
        wire.stat()?["ports"][0][name].as_u64().with_context(|| format!("no {name} of a port"))
    };
    wait_until("the flood has gone on for a while", LIMIT, || {
        most = most.max(waiting_bytes(&rig.left)?);
        looks += 1;
        let_pass(Duration::from_millis(20), |_| ())?;
        Ok(looks >= 100)
    })?;
    // The packets of senders with sockets, and a packet or two that are on their way.
    let slack = SENDERS as u64 * 300_000 + 100_000;
    println!("    at most {most} bytes waited, of {bytes_max}");
    ensure!(most <= bytes_max + slack, "{most} bytes waited, where {bytes_max} may");
    wait_until("the flood is too much", LIMIT, || {
        told_most = told_most.max(port("forwarded_bytes")?);
        Ok(port("forwarded_dropped")? > 1000)
    })?;
    // Processors that look at the same moment may each let one packet in.
    let racing = 100_000;
    ensure!(told_most <= bytes_max + racing, "{told_most} bytes are told, where {bytes_max} may wait");
    ensure!(told_most >= bytes_max / SENDERS as u64 / 2, "no more than {told_most} bytes are told to wait");
    wire.check().context("what is dropped by this rule is no fault")?;
    ensure!(flood.finish()?.count == 0, "the flood comes back");
    wait_until("what waited has left", LIMIT, || Ok(port("forwarded_bytes")? == 0))?;
    held.end_senders();
    wait_until("what was held has left", LIMIT, || {
        Ok(waiting_bytes(&rig.left)? == 0 && wire.stat()?["totals"]["held"] == 0)
    })?;
    let sent = held.sent();
    let arrived = held.finish()?;
    println!("    {} of {sent} of senders with a socket arrived", arrived.count);
    ensure!(arrived.count == sent, "{} of {sent} datagrams with a socket arrived", arrived.count);
    ensure!(arrived.reordered == 0, "{} datagrams out of order", arrived.reordered);
    let text = wire.weir(&["stat", wire.name()])?.success()?.stdout;
    ensure!(text.contains("without a socket (forwarded) dropped"), "{text}");
    wire.check()?;
    let done = wire.stop()?.success()?;
    let said = done.stdout + &done.stderr;
    ensure!(said.contains(" forwarded"), "nothing is said of it at the end: {said}");
    Ok(())
}

/// The bytes that wait in the queue of a namespace's `veth0`, with the kernel's overhead.
fn waiting_bytes(namespace: &Namespace) -> Result<u64> {
    let text = namespace.tc("-j -s qdisc show dev veth0")?;
    let queues: serde_json::Value = serde_json::from_str(&text)?;
    let queues = queues.as_array().context("a list of queues")?;
    // `mq` adds its children up.
    let is_leaf = |queue: &&serde_json::Value| queue["kind"] == "pfifo";
    let number = |queue: &serde_json::Value, name: &str| queue[name].as_u64().unwrap_or(0);
    let bytes = |queue| number(queue, "backlog") + OVERHEAD_BYTES * number(queue, "qlen");
    Ok(queues.iter().filter(is_leaf).map(bytes).sum())
}
