//! Hosts behind ports of one namespace, and `weir up` there.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::Value;
use weir_lab::bed::{End, Namespace, plain_veth, veth};
use weir_lab::process::{Finished, Process, Signal, run};

use crate::weir_binary;

/// A hundred wires take 15 s on an idle machine.
const READY_LIMIT: Duration = Duration::from_secs(60);
const COMMAND_LIMIT: Duration = Duration::from_secs(20);

/// A namespace with ports `p0`, `p1`, ..., and at each a host with the other end, `veth0`.
pub struct Hosts {
    /// Where the ports are.
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
        let name = self.middle.name().to_string();
        let path = std::env::temp_dir().join(format!("{name}.toml"));
        std::fs::write(&path, format!("name = \"{name}\"\n{file}"))?;
        let mut command = self.middle.command(weir_binary()?);
        let mut daemon = Process::spawn(command.arg("up").arg(&path))?;
        daemon.wait_for_output("ready", READY_LIMIT)?;
        Ok(Up { daemon, name, path })
    }
}

/// A topology that is up.
pub struct Up {
    /// The process.
    pub daemon: Process,
    /// What it is called.
    pub name: String,
    path: PathBuf,
}

impl Up {
    /// Runs `weir ARGUMENTS`.
    pub fn weir(&self, arguments: &[&str]) -> Result<Finished> {
        run(Command::new(weir_binary()?).args(arguments), COMMAND_LIMIT)
    }

    /// Fails unless every packet is accounted for.
    pub fn check(&self) -> Result<()> {
        self.weir(&["stat", &self.name, "--check"])?.success().map(drop)
    }

    /// Its counters.
    pub fn stat(&self) -> Result<Value> {
        let done = self.weir(&["stat", &self.name, "--json"])?.success()?;
        let all: Value = serde_json::from_str(&done.stdout)?;
        Ok(all["topologies"][0].clone())
    }

    /// Ends it with `weir down`.
    pub fn down(self) -> Result<Finished> {
        let path = self.path.to_str().context("a path in UTF-8")?.to_string();
        self.weir(&["down", &path])?.success()?;
        self.daemon.wait(COMMAND_LIMIT)?.success()
    }

    /// Ends it at once.
    pub fn kill(mut self) -> Result<()> {
        self.daemon.signal(Signal::KILL)?;
        let path = self.path.clone();
        self.daemon.wait(COMMAND_LIMIT)?;
        Ok(std::fs::remove_file(path)?)
    }
}
