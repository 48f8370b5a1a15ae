//! Hosts behind ports of one namespace, and `weir up` there.

use std::time::Duration;

use anyhow::{Context, Result};
use weir_lab::bed::{End, Namespace, plain_veth, veth};
use weir_lab::clock::wait_until;
use weir_lab::iperf::{Flood, Load};
use weir_lab::process::run;
pub use weir_lab::up::Up;

use crate::weir_binary;

const PATIENCE: Duration = Duration::from_secs(60);

/// A namespace with ports `p0`, `p1`, ..., and at each a host with the other end, `veth0`.
pub struct Hosts {
    /// The namespace of the ports.
    pub middle: Namespace,
    /// The hosts.
    pub hosts: Vec<Namespace>,
}

impl Hosts {
    /// So many hosts, on pairs of so many queues, or as container runtimes make them.
    pub fn new(count: usize, queues: Option<u32>) -> Result<Hosts> {
        let middle = Namespace::new("middle")?;
        let mut hosts = Vec::new();
        for number in 0..count {
            let host = Namespace::new(&format!("h{number}"))?;
            let port = format!("p{number}");
            let ends = [End { namespace: &host, name: "veth0" }, End { namespace: &middle, name: &port }];
            let [a, b] = ends;
            match queues {
                Some(queues) => veth(number as u8 + 1, a, b, queues)?,
                None => plain_veth(number as u8 + 1, a, b)?,
            }
            hosts.push(host);
        }
        Ok(Hosts { middle, hosts })
    }

    /// Gives a host an address, with the length of its prefix.
    pub fn address(&self, host: usize, address: &str) -> Result<()> {
        let nodad = if address.contains(':') { "nodad" } else { "" };
        self.hosts[host].ip(&format!("addr add {address} dev veth0 {nodad}")).map(drop)
    }

    /// Runs a file until it is stopped, and waits until it carries packets.
    pub fn up(&self, file: &str) -> Result<Up> {
        self.up_with(file, &[])
    }

    /// Runs a file so, with these arguments.
    pub fn up_with(&self, file: &str, arguments: &[&str]) -> Result<Up> {
        Up::start_with(&weir_binary()?, &self.middle, file, arguments)
    }
}

/// Starts a flood between hosts that have heard of each other: for a neighbour that has not answered yet the kernel keeps 92 packets of
/// 1500 bytes, and drops those beyond (`unres_qlen_bytes` of arp(7)).
pub fn flood<'a>(load: &Load<'a>) -> Result<Flood<'a>> {
    let mut command = load.from.command("ping");
    command.args(["-n", "-q", "-c", "1", "-W", "2", load.address]);
    // The answer is not tested here.
    run(&mut command, Duration::from_secs(10))?;
    Flood::start(load)
}

/// Waits until an address answers the first host's pings.
pub fn answers(hosts: &Hosts, address: &str) -> Result<()> {
    wait_until(&format!("{address} answers"), PATIENCE, || {
        let mut command = hosts.hosts[0].command("ping");
        Ok(run(command.args(["-c", "1", "-W", "1", address]), PATIENCE)?.success().is_ok())
    })
}

/// Waits until a port of a topology, by its place in the file, is in this state.
pub fn wait_for_port(up: &Up, port: usize, state: &str) -> Result<()> {
    let is_so = || Ok(up.stat_rows("ports")?.swap_remove(port)["state"] == state);
    wait_until(&format!("port {port} is {state}"), PATIENCE, is_so)
        .with_context(|| format!("weir said: {}", up.stderr()))
}
