//! The bench of `weir run`: a host of our own to run it on, and where asked for an internet beyond it.
//!
//! ```text
//!  [weir run] == weir0   host   veth0 ---------- veth0   internet
//!                           10.99.0.1      10.99.0.2, and beyond: 198.51.100.7, 2001:db8:7::7
//! ```
//!
//! The internet knows no way to the program's addresses, so an answer from it proves masquerading.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use weir_lab::bed::{End, Namespace, address, names, veth};
use weir_lab::process::{Finished, run};

/// An address of the internet that no interface of the host is near to.
pub const INTERNET_V4: &str = "198.51.100.7";
/// Such an address of IPv6.
pub const INTERNET_V6: &str = "2001:db8:7::7";

const LIMIT: Duration = Duration::from_secs(30);
const FORWARDING: [&str; 4] = [
    "net.ipv4.ip_forward",
    "net.ipv4.conf.veth0.forwarding",
    "net.ipv6.conf.all.forwarding",
    "net.ipv6.conf.veth0.force_forwarding",
];

/// A host.
#[derive(Debug)]
pub struct Host {
    /// The host's namespace.
    pub namespace: Namespace,
    /// The internet's, if there is one.
    pub internet: Option<Namespace>,
    weir: PathBuf,
}

impl Host {
    /// A host on its own, with no way out.
    pub fn alone() -> Result<Host> {
        Ok(Host { namespace: Namespace::new("host")?, internet: None, weir: crate::weir_binary()? })
    }

    /// A host with default routes to an internet. It forwards nothing.
    pub fn with_internet() -> Result<Host> {
        let host = Host::alone()?;
        let internet = Namespace::new("internet")?;
        let [near, far] = [&host.namespace, &internet].map(|namespace| End { namespace, name: "veth0" });
        veth(0, near, far, 1)?;
        address(0, near, far)?;
        let gateway = names(0, 2);
        host.namespace.ip(&format!("route add default via {}", gateway.v4))?;
        host.namespace.ip(&format!("route add default via {}", gateway.v6))?;
        internet.ip(&format!("addr add {INTERNET_V4}/32 dev lo"))?;
        internet.ip(&format!("addr add {INTERNET_V6}/128 dev lo nodad"))?;
        for setting in &FORWARDING[..3] {
            host.namespace.sh(&format!("sysctl -q -w {setting}=0"))?;
        }
        Ok(Host { internet: Some(internet), ..host })
    }

    /// `weir run OPTIONS -- sh -c SCRIPT` on the host.
    pub fn weir_run(&self, options: &[&str], script: &str) -> Command {
        let mut command = self.weir(&["run", "--rate", "200mbit"]);
        command.args(options).args(["--", "sh", "-c", script]);
        command
    }

    /// `weir ARGUMENTS` on the host.
    pub fn weir(&self, arguments: &[&str]) -> Command {
        // Where the tests run in the background of a shell some signals are ignored, and no trap of a script undoes that.
        let mut command = self.namespace.command("env");
        command.arg("--default-signal").arg(&self.weir).args(arguments);
        command
    }

    /// Runs a script by [`Host::weir_run`] to its end.
    pub fn finished(&self, script: &str) -> Result<Finished> {
        run(&mut self.weir_run(&[], script), LIMIT)
    }

    /// The state of the host that a run could change, as text: interfaces, addresses, routes, tables, forwarding.
    pub fn state(&self) -> Result<String> {
        let mut state = String::new();
        for what in ["-br link", "-br addr", "route show table all", "-6 route show table all"] {
            state.push_str(&self.namespace.ip(what)?);
        }
        // A neighbour's link-local address is learned when that neighbour asks of itself, some seconds after it came.
        let neighbours = self.namespace.ip("neigh")?;
        state.extend(
            neighbours.lines().filter(|line| !line.starts_with("fe80:")).map(|line| format!("{line}\n")),
        );
        // Times and counters of routes change by themselves; none is shown without -s.
        state.push_str(&self.namespace.sh("nft list ruleset")?);
        for setting in FORWARDING {
            state.push_str(&format!("{setting} {}\n", self.forwarding(setting)?));
        }
        Ok(state)
    }

    /// A forwarding setting of the host's; `-` where there is no such.
    fn forwarding(&self, setting: &str) -> Result<String> {
        let path = format!("/proc/sys/{}", setting.replace('.', "/"));
        let text = self.namespace.enter(|| std::fs::read_to_string(path))?;
        Ok(text.map_or("-".into(), |text| text.trim().to_string()))
    }

    /// Returns whether the host forwards packets that come in from the internet.
    pub fn forwards(&self) -> Result<bool> {
        Ok(self.forwarding("net.ipv4.conf.veth0.forwarding")? == "1")
    }

    /// The first address of a kind that a script printed with `ip -o addr show dev eth0`.
    pub fn address_in(output: &str, kind: &str) -> Result<String> {
        let mut words = output.split_whitespace();
        ensure!(words.any(|word| word == kind), "no {kind} address in {output:?}");
        let address = words.next().and_then(|word| word.split('/').next()).context("no address")?;
        Ok(address.to_string())
    }
}

/// The number after `word` in a summary, thousands set apart or not.
pub fn summary_number(summary: &str, word: &str) -> Result<u64> {
    let (_, after) = summary.split_once(word).with_context(|| format!("no {word:?} in {summary:?}"))?;
    let digits: String = after.chars().take_while(|c| *c != ' ').filter(|c| *c != ',').collect();
    digits.parse().with_context(|| format!("no number after {word:?} in {summary:?}"))
}
