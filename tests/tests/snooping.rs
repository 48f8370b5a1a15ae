//! A router of `weir up` behind a bridge that passes multicast on only to who has asked for it.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use weir_lab::bed::{End, Namespace, plain_veth};
use weir_lab::clock::wait_until;
use weir_lab::process::run;
use weir_tests::topology::Hosts;
use weir_tests::{harness, privileged};

const PATIENCE: Duration = Duration::from_secs(40);

fn main() -> ExitCode {
    harness::main(&[privileged!(a_router_is_found_behind_a_bridge_that_snoops).together()])
}

/// A bridge on whose link somebody asks who listens passes a solicitation on to nobody but who has reported its group (RFC 4541 section 3).
fn a_router_is_found_behind_a_bridge_that_snoops() -> Result<()> {
    let hosts = Hosts::new(1, None)?;
    let bridge = &hosts.hosts[0];
    let at_once = "mcast_query_response_interval 100 mcast_startup_query_interval 100";
    bridge.ip(&format!("link add br0 type bridge mcast_snooping 1 mcast_querier 1 {at_once}"))?;
    let guest = Namespace::new("guest")?;
    plain_veth(9, End { namespace: &guest, name: "veth0" }, End { namespace: bridge, name: "w0" })?;
    ["veth0 master br0", "w0 master br0", "br0 up"]
        .iter()
        .try_for_each(|what| bridge.ip(&format!("link set {what}")).map(drop))?;
    guest.ip("addr add fd99:1::2/64 dev veth0 nodad")?;
    // The group of addresses that nobody has is flooded until the bridge goes by reports.
    for line in [
        "add table netdev seen",
        "add chain netdev seen p0 { type filter hook ingress device p0 priority 0 ; }",
        "add rule netdev seen p0 ether daddr 33:33:ff:99:99:99 counter",
    ] {
        hosts.middle.sh(&format!("nft {line}"))?;
    }
    let ping = |address: &str| {
        let mut command = guest.command("ping");
        run(command.args(["-n", "-c", "1", "-W", "1", address]), PATIENCE)
    };
    let mut nobody = 0;
    wait_until("the bridge goes by reports", PATIENCE, || {
        let seen = hosts.middle.sh("nft list ruleset")?;
        nobody += 1;
        ping(&format!("fd99:1::{nobody}:0:99:9999"))?;
        Ok(hosts.middle.sh("nft list ruleset")? == seen)
    })?;
    let up = hosts.up(
        "[[port]]\ninterface = \"p0\"\n[[router]]\nname = \"gw\"\n[[router.interface]]\nport = \"p0\"\n\
         address = [\"fd99:1::1/64\"]\n",
    )?;
    wait_until("the router answers", Duration::from_secs(15), || Ok(ping("fd99:1::1")?.status.success()))
        .context(bridge.sh("bridge mdb show")?)?;
    up.check()?;
    up.down()?;
    Ok(())
}
