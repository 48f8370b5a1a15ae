//! A port of a topology comes up with more receive queues than it had when it went down: that port is closed, and all others go on. Fewer
//! the kernel refuses while there are sockets at the queues.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use weir_lab::clock::wait_until;
use weir_lab::process::run;
use weir_tests::topology::{Hosts, Up};
use weir_tests::{harness, privileged};

const PATIENCE: Duration = Duration::from_secs(60);
const QUEUES: u32 = 3;
const QUEUES_LATER: u32 = 4;
/// The port whose queues change.
const LAST: usize = 2;

const BRIDGE: &str = r#"
[[port]]
interface = "p0"
[[port]]
interface = "p1"
[[port]]
interface = "p2"
[[bridge]]
name = "lan"
ports = ["p0", "p1", "p2"]
"#;

fn main() -> ExitCode {
    harness::main(&[privileged!(a_port_that_comes_up_with_more_queues_leaves_the_others).together()])
}

fn wait_for_state(up: &Up, state: &str) -> Result<()> {
    let is_so = || Ok(up.stat_rows("ports")?.swap_remove(LAST)["state"] == state);
    wait_until(&format!("p2 is {state}"), PATIENCE, is_so)
        .with_context(|| format!("weir said: {}", up.daemon.stderr()))
}

fn answers(hosts: &Hosts, address: &str) -> Result<()> {
    wait_until(&format!("{address} answers"), PATIENCE, || {
        let mut command = hosts.hosts[0].command("ping");
        Ok(run(command.args(["-c", "1", "-W", "1", address]), PATIENCE)?.success().is_ok())
    })
}

fn a_port_that_comes_up_with_more_queues_leaves_the_others() -> Result<()> {
    let hosts = Hosts::new(LAST + 1, Some(QUEUES_LATER))?;
    for host in 0..=LAST {
        hosts.address(host, &format!("10.99.1.{}/24", host + 1))?;
    }
    let set_queues = |count: u32| hosts.middle.sh(&format!("ethtool -L p2 rx {count}"));
    hosts.hosts[LAST].sh(&format!("ethtool -L veth0 tx {QUEUES}"))?;
    set_queues(QUEUES)?;
    let up = hosts.up(BRIDGE)?;
    answers(&hosts, "10.99.1.3")?;
    hosts.middle.ip("link set p2 down")?;
    set_queues(QUEUES_LATER)?;
    hosts.middle.ip("link set p2 up")?;
    wait_for_state(&up, "unfit")?;
    let said = up.daemon.stderr();
    let why = format!("p2 receives on {QUEUES_LATER} queues now, and the topology was made for {QUEUES}");
    ensure!(said.contains(&why), "{said}");
    answers(&hosts, "10.99.1.2")?;
    set_queues(QUEUES)?;
    wait_for_state(&up, "up")?;
    answers(&hosts, "10.99.1.3")?;
    up.check()?;
    up.down().map(drop)
}
