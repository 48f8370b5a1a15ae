//! A router of `weir up`, and a stack of `weir-socket`, behind a bridge that passes multicast on only to who has asked for it.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use weir_lab::bed::{End, Namespace, plain_veth};
use weir_lab::clock::wait_until;
use weir_lab::process::{Finished, run};
use weir_socket::Stack;
use weir_tests::pair::Pair;
use weir_tests::topology::Hosts;
use weir_tests::{harness, privileged, weir_binary};

const PATIENCE: Duration = Duration::from_secs(40);
/// The longest time until a ping is answered.
const ANSWERED: Duration = Duration::from_secs(15);

fn main() -> ExitCode {
    harness::main(&[
        privileged!(a_router_is_found_behind_a_bridge_that_snoops).together(),
        privileged!(a_stack_is_found_behind_a_bridge_that_snoops).together(),
    ])
}

fn a_router_is_found_behind_a_bridge_that_snoops() -> Result<()> {
    let hosts = Hosts::new(1, None)?;
    let bridge = &hosts.hosts[0];
    let guest = guest_of(bridge)?;
    wait_for_reports(&guest, End { namespace: &hosts.middle, name: "p0" })?;
    let up = hosts.up(
        "[[port]]\ninterface = \"p0\"\n[[router]]\nname = \"gw\"\n[[router.interface]]\nport = \"p0\"\n\
         address = [\"fd99:1::1/64\"]\n",
    )?;
    wait_until("the router answers", ANSWERED, || Ok(ping(&guest, "fd99:1::1")?.status.success()))
        .context(bridge.sh("bridge mdb show")?)?;
    up.check()?;
    up.down()?;
    Ok(())
}

/// The kernel reports the groups of its own addresses alone.
fn a_stack_is_found_behind_a_bridge_that_snoops() -> Result<()> {
    let pair = Pair::new(1)?;
    let guest = guest_of(&pair.left)?;
    wait_for_reports(&guest, pair.right_end())?;
    let builder = Stack::builder().address("fd99:1::1/64").guardian(weir_binary()?);
    let stack = pair.right.enter(|| builder.open("veth1"))??;
    wait_until("the stack answers", ANSWERED, || Ok(ping(&guest, "fd99:1::1")?.status.success()))
        .context(pair.left.sh("bridge mdb show")?)?;
    let books = stack.books()?;
    ensure!(books.balances, "{books:?}");
    Ok(stack.stop()?)
}

/// A host on a bridge, whose other port is `veth0`. Somebody asks on its link who listens, so it passes a solicitation on to nobody but who has
/// reported its group (RFC 4541 section 3).
fn guest_of(bridge: &Namespace) -> Result<Namespace> {
    let at_once = "mcast_query_response_interval 100 mcast_startup_query_interval 100";
    bridge.ip(&format!("link add br0 type bridge mcast_snooping 1 mcast_querier 1 {at_once}"))?;
    let guest = Namespace::new("guest")?;
    plain_veth(9, End { namespace: &guest, name: "veth0" }, End { namespace: bridge, name: "w0" })?;
    ["veth0 master br0", "w0 master br0", "br0 up"]
        .iter()
        .try_for_each(|what| bridge.ip(&format!("link set {what}")).map(drop))?;
    guest.ip("addr add fd99:1::2/64 dev veth0 nodad")?;
    Ok(guest)
}

/// Waits until the bridge before an interface goes by reports: until then it floods the group of addresses that nobody has.
fn wait_for_reports(guest: &Namespace, End { namespace, name }: End<'_>) -> Result<()> {
    for line in [
        "add table netdev seen".into(),
        format!("add chain netdev seen {name} {{ type filter hook ingress device {name} priority 0 ; }}"),
        format!("add rule netdev seen {name} ether daddr 33:33:ff:99:99:99 counter"),
    ] {
        namespace.sh(&format!("nft {line}"))?;
    }
    let mut nobody = 0;
    wait_until("the bridge goes by reports", PATIENCE, || {
        let seen = namespace.sh("nft list ruleset")?;
        nobody += 1;
        ping(guest, &format!("fd99:1::{nobody}:0:99:9999"))?;
        Ok(namespace.sh("nft list ruleset")? == seen)
    })?;
    namespace.sh("nft delete table netdev seen")?;
    Ok(())
}

fn ping(from: &Namespace, address: &str) -> Result<Finished> {
    run(from.command("ping").args(["-n", "-c", "1", "-W", "1", address]), PATIENCE)
}
