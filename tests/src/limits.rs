//! The benches of `weir limit`: a host that sends by a pair made without queue options, and the hosts behind.
//!
//! ```text
//!  left                 middle                       right
//!  veth0 -------------- wa  bridge or routes  wb --- veth0
//! ```

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use weir_lab::bed::{End, Name4and6, Namespace, address, is_of_others, names};
use weir_lab::clock::wait_until;
use weir_lab::iperf::overflowed_datagrams;
use weir_lab::process::{Finished, Process, Signal, run};

use crate::crowd::{Arrived, Crowd};
use crate::{drops, weir_binary};

const LIMIT: Duration = Duration::from_secs(60);
/// The time in which all datagrams arrive that are on their way.
const ALL_ARRIVE: Duration = Duration::from_secs(10);

/// The device between the two pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Between {
    /// The kernel's bridge.
    Bridge,
    /// The kernel's routing.
    Routes,
}

/// A process in a namespace that does nothing, for `--pid`. It is there when this returns: `ip netns exec` has become `sleep`.
pub fn idle_process(host: &Namespace) -> Result<Process> {
    let process = Process::spawn(host.command("sleep").arg("1000"))?;
    let name = format!("/proc/{}/comm", process.id());
    wait_until("the process is in its namespace", LIMIT, || {
        Ok(std::fs::read_to_string(&name)?.trim() == "sleep")
    })?;
    Ok(process)
}

/// Three hosts in a row.
#[derive(Debug)]
pub struct Row {
    /// The host that sends.
    pub left: Namespace,
    /// The host that carries.
    pub middle: Namespace,
    /// The host that receives.
    pub right: Namespace,
    weir: PathBuf,
}

impl Row {
    /// Joins them.
    pub fn new(between: Between) -> Result<Row> {
        Row::with_pair(between, "")
    }

    /// Joins them, each end of the left pair made with `options`.
    pub fn with_pair(between: Between, options: &str) -> Result<Row> {
        let row = Row {
            left: Namespace::new("left")?,
            middle: Namespace::new("middle")?,
            right: Namespace::new("right")?,
            weir: weir_binary()?,
        };
        for (host, name, options) in [(&row.left, "wa", options), (&row.right, "wb", "")] {
            row.middle.ip(&format!(
                "link add {name} {options} type veth peer name veth0 {options} netns {}",
                host.name()
            ))?;
            row.middle.ip(&format!("link set {name} up"))?;
            host.ip("link set veth0 up")?;
        }
        match between {
            Between::Bridge => {
                row.middle.ip("link add br0 type bridge")?;
                row.middle.ip("link set wa master br0")?;
                row.middle.ip("link set wb master br0")?;
                row.middle.ip("link set br0 up")?;
                let end = |namespace| End { namespace, name: "veth0" };
                address(0, end(&row.left), end(&row.right))?;
            }
            Between::Routes => {
                for (host, name, net) in [(&row.left, "wa", 0u8), (&row.right, "wb", 1)] {
                    let inner = End { namespace: &row.middle, name };
                    address(net, End { namespace: host, name: "veth0" }, inner)?;
                    let gateway = names(net, 2);
                    host.ip(&format!("route add default via {}", gateway.v4))?;
                    host.ip(&format!("-6 route add default via {}", gateway.v6))?;
                }
                row.middle.sh("sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1")?;
            }
        }
        Ok(row)
    }

    /// Sets the MTU of both pairs and of the bridge between them.
    pub fn set_mtu(&self, bytes: u32) -> Result<()> {
        [
            (&self.left, "veth0"),
            (&self.middle, "wa"),
            (&self.middle, "wb"),
            (&self.right, "veth0"),
            (&self.middle, "br0"),
        ]
        .into_iter()
        .try_for_each(|(host, name)| host.ip(&format!("link set {name} mtu {bytes}")).map(drop))
    }

    /// The address of the receiving host.
    pub fn right_address(&self, between: Between) -> String {
        Row::right_addresses(between).v4
    }

    /// Both of its addresses.
    pub fn right_addresses(between: Between) -> Name4and6 {
        match between {
            Between::Bridge => names(0, 2),
            Between::Routes => names(1, 1),
        }
    }

    /// The sender's interface.
    pub fn sender(&self) -> End<'_> {
        End { namespace: &self.left, name: "veth0" }
    }

    /// The other end of the sender's pair.
    pub fn far_end(&self) -> End<'_> {
        End { namespace: &self.middle, name: "wa" }
    }

    /// The packets that the row's interfaces have dropped, and those that the machine's processors have for full lists, so far.
    pub fn losses(&self) -> Result<BTreeMap<String, u64>> {
        let mut losses = BTreeMap::from([("softnet".to_string(), drops::of_processors()?)]);
        for host in [&self.left, &self.middle, &self.right] {
            losses.extend(drops::of_links(host)?);
        }
        Ok(losses)
    }

    /// Ends senders to the right and requires that all of their datagrams arrive, but for as many as have overflowed the sockets there.
    /// Returns those that arrived.
    pub fn all_arrived(&self, mut crowd: Crowd) -> Result<Arrived> {
        crowd.end_senders();
        let (sent, overflowed) = (crowd.sent(), || overflowed_datagrams(&self.right));
        // Those that are missing are judged below.
        let _ = wait_until("all have arrived", ALL_ARRIVE, || Ok(crowd.received() + overflowed()? >= sent));
        let (arrived, overflowed) = (crowd.finish()?, overflowed()?);
        let told = drops::told(&[&self.left, &self.middle, &self.right])?;
        ensure!(
            arrived.count <= sent && arrived.count + overflowed >= sent,
            "{} of {sent} arrived, {overflowed} overflowed the receivers' sockets{told}",
            arrived.count
        );
        Ok(arrived)
    }

    /// Runs `weir ARGUMENTS` (split at spaces) in the middle.
    pub fn weir(&self, arguments: &str) -> Result<Finished> {
        let mut command: Command = self.middle.command(&self.weir);
        run(command.args(arguments.split_whitespace()), LIMIT)
    }

    /// Runs `weir ARGUMENTS` (split at spaces) in the middle, and kills it once the sender has so many classes, if it runs so long.
    pub fn kill_at_leaves(&self, arguments: &str, least: usize) -> Result<()> {
        let mut command: Command = self.middle.command(&self.weir);
        let mut weir = Process::spawn(command.args(arguments.split_whitespace()))?;
        wait_until("as many classes are made", LIMIT, || {
            let classes = self.left.tc("class show dev veth0 parent 7769:")?;
            Ok(classes.lines().count() >= least || !weir.is_running()?)
        })?;
        weir.signal(Signal::KILL)?;
        weir.wait(LIMIT).map(drop)
    }

    /// `weir stat --json`: the limits of this name, those of tests that run beside this one left out.
    pub fn limits(&self, name: &str) -> Result<Vec<Value>> {
        let done = self.weir(&format!("stat {name} --json"))?.success()?;
        let value: Value = serde_json::from_str(&done.stdout)?;
        let limits = value["limits"].as_array().context("no list of limits")?;
        let is_ours = |limit: &&Value| !limit["netns"].as_str().is_some_and(is_of_others);
        Ok(limits.iter().filter(is_ours).cloned().collect())
    }

    /// The one limit of this name, which must have dropped nothing. A packet that the interface sent of itself while the kernel put the
    /// queue there (`swap`: a neighbour's or a group's message) is counted and told by the command; no test's packets are sent by then.
    pub fn lossless_limit(&self, name: &str) -> Result<Value> {
        let limits = self.limits(name)?;
        let [limit] = limits.as_slice() else { anyhow::bail!("{} limits called {name}", limits.len()) };
        let dropped = limit["dropped"].as_object().context("no drops")?;
        ensure!(dropped.iter().all(|(reason, count)| count == 0 || reason == "swap"), "dropped: {dropped:?}");
        Ok(limit.clone())
    }
}

/// Returns whether somebody has steered the packets that come to a host's end.
pub fn is_steered(host: &Namespace) -> Result<bool> {
    let mask = host.sh("cat /sys/class/net/veth0/queues/rx-0/rps_cpus")?;
    Ok(mask.trim().chars().any(|digit| !"0,".contains(digit)))
}
