//! Network namespaces joined by veth pairs, as values that remove themselves.
//!
//! A namespace is named `weir-bed-PID-N-ROLE` after this process, so runs beside each other never meet, and it
//! goes when its value is dropped: at the end, on an error, on a panic, after Ctrl-C. Deleting it deletes the veth
//! ends inside. A run that was killed outright leaves its namespaces; [`sweep`] removes those whose process is
//! gone. Hardware addresses are ours to choose, so every neighbour entry is permanent and no datagram is lost to
//! address resolution.
//!
//! Addresses: side A of a pair number `n` is 10.99.n.1 and fd99:n::1, side B ends in 2.
//!
//! Limits: needs root and iproute2. Processes inside are not the namespace's to end: declare their values after
//! it, and they go first.

use std::fs;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::interrupt;
use crate::process::run;

const PREFIX: &str = "weir-bed-";
const NETNS_FOLDER: &str = "/run/netns";
const TOOL_LIMIT: Duration = Duration::from_secs(20);

static NEXT: AtomicU32 = AtomicU32::new(0);

/// Returns whether this process may make namespaces.
pub fn is_privileged() -> bool {
    rustix::process::geteuid().is_root()
}

/// Begins a run that makes namespaces: Ctrl-C ends it in good order, and those of earlier runs that were killed go.
pub fn begin() -> Result<()> {
    interrupt::install();
    sweep()
}

/// Removes the namespaces of earlier runs that were killed before they could.
pub fn sweep() -> Result<()> {
    let Ok(entries) = fs::read_dir(NETNS_FOLDER) else { return Ok(()) };
    for entry in entries {
        let name = entry?.file_name().to_string_lossy().into_owned();
        let owner = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next());
        if let Some(owner) = owner
            && !Path::new("/proc").join(owner).exists()
        {
            tool(Command::new("ip").args(["netns", "del", &name]))?;
        }
    }
    Ok(())
}

/// Returns whether the words name a namespace that another process made here.
pub fn is_of_others(words: &str) -> bool {
    let own = format!("{PREFIX}{}-", std::process::id());
    words.contains(PREFIX) && !words.contains(&own)
}

/// A network namespace that lives as long as this value.
#[derive(Debug)]
pub struct Namespace {
    name: String,
}

impl Namespace {
    /// A new namespace with its loopback up. `role` only makes its name readable.
    pub fn new(role: &str) -> Result<Namespace> {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("{PREFIX}{}-{number}-{role}", std::process::id());
        tool(Command::new("ip").args(["netns", "add", &name]))?;
        let namespace = Namespace { name };
        // No duplicate address detection: an address is usable at once, and no probe takes part in a test.
        namespace.enter(|| -> Result<()> {
            for scope in ["all", "default"] {
                let knob = format!("/proc/sys/net/ipv6/conf/{scope}/accept_dad");
                if Path::new(&knob).exists() {
                    fs::write(&knob, "0").with_context(|| knob.clone())?;
                }
            }
            Ok(())
        })??;
        namespace.ip("link set lo up")?;
        Ok(namespace)
    }

    /// Its name, as `ip netns` knows it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A command that will run inside.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name]).arg(program);
        command
    }

    /// Runs `ip ARGUMENTS` (split at spaces) inside and returns its output.
    pub fn ip(&self, arguments: &str) -> Result<String> {
        tool(Command::new("ip").args(["-n", &self.name]).args(arguments.split_whitespace()))
    }

    /// Runs one `ip` inside for all of these lines of arguments, in their order, up to the first that fails.
    fn ip_lines(&self, lines: &str) -> Result<()> {
        let mut file = fs::File::from(memfd_create("lines", MemfdFlags::CLOEXEC)?);
        file.write_all(lines.as_bytes())?;
        let path = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
        tool(Command::new("ip").args(["-n", &self.name, "-batch", &path]))
            .map(drop)
            .context(lines.to_string())
    }

    /// Runs `tc ARGUMENTS` (split at spaces) inside and returns its output.
    pub fn tc(&self, arguments: &str) -> Result<String> {
        tool(Command::new("tc").args(["-n", &self.name]).args(arguments.split_whitespace()))
    }

    /// Runs any short command line (split at spaces) inside and returns its output.
    pub fn sh(&self, line: &str) -> Result<String> {
        let mut words = line.split_whitespace();
        let program = words.next().context("an empty command line")?;
        tool(self.command(program).args(words))
    }

    /// Runs `work` on a thread that is inside. Sockets opened there stay inside wherever they are used later.
    pub fn enter<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T> {
        let file = fs::File::open(Path::new(NETNS_FOLDER).join(&self.name))
            .with_context(|| format!("opening namespace {}", self.name))?;
        thread::scope(|scope| {
            let inside = scope.spawn(move || -> Result<T> {
                move_into_link_name_space(std::os::fd::AsFd::as_fd(&file), Some(LinkNameSpaceType::Network))?;
                Ok(work())
            });
            inside.join().map_err(|_| anyhow!("work inside {} panicked", self.name))?
        })
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // Straight `status`, not `tool`: that refuses to wait after Ctrl-C, which is when this matters most.
        // Nothing can be done about a failure here; `sweep` gets another chance.
        let _ = Command::new("ip").args(["netns", "del", &self.name]).status();
    }
}

/// One end of a veth pair.
#[derive(Debug, Clone, Copy)]
pub struct End<'a> {
    /// The namespace it lives in.
    pub namespace: &'a Namespace,
    /// Its name there.
    pub name: &'a str,
}

/// Makes a veth pair with `queues` queues each way on both ends, and brings both ends up.
///
/// Hardware addresses: `02:57:00:00:PAIR:01` for `a`, `:02` for `b`.
pub fn veth(pair: u8, a: End, b: End, queues: u32) -> Result<()> {
    veth_with(pair, a, b, &format!("numtxqueues {queues} numrxqueues {queues}"))
}

/// Makes a veth pair as container runtimes make them, without a word of queues: one is in use, and there is room for as many as the machine
/// can have processors.
pub fn plain_veth(pair: u8, a: End, b: End) -> Result<()> {
    veth_with(pair, a, b, "")
}

fn veth_with(pair: u8, a: End, b: End, lanes: &str) -> Result<()> {
    // The kernel brings the first end up with the pair, but not the other.
    a.namespace.ip(&format!(
        "link add name {} address {} {lanes} up type veth peer name {} address {} {lanes} netns {}",
        a.name,
        mac(pair, 1),
        b.name,
        mac(pair, 2),
        b.namespace.name(),
    ))?;
    b.namespace.ip(&format!("link set {} up", b.name)).map(drop)
}

/// Puts `a` and `b` into one network, number `net`: addresses, and permanent neighbour entries for each other.
///
/// They may be the two ends of one pair, or the outer ends of two pairs that something joins.
pub fn address(net: u8, a: End, b: End) -> Result<()> {
    for (end, side, other, other_side) in [(a, 1, b, 2), (b, 2, a, 1)] {
        let other_mac = mac_of(other)?;
        let Name4and6 { v4, v6 } = names(net, side);
        let far = names(net, other_side);
        let name = end.name;
        let neighbour =
            |far: &str| format!("neigh replace {far} lladdr {other_mac} dev {name} nud permanent\n");
        end.namespace.ip_lines(&format!(
            "addr add {v4}/24 dev {name}\naddr add {v6}/64 dev {name} nodad\n{}{}",
            neighbour(&far.v4),
            neighbour(&far.v6)
        ))?;
    }
    Ok(())
}

/// The two addresses of one side.
#[derive(Debug, Clone)]
pub struct Name4and6 {
    /// The IPv4 address.
    pub v4: String,
    /// The IPv6 address.
    pub v6: String,
}

/// The addresses that [`address`] gives to side 1 or 2 of network `net`.
pub fn names(net: u8, side: u8) -> Name4and6 {
    Name4and6 { v4: format!("10.99.{net}.{side}"), v6: format!("fd99:{net}::{side}") }
}

/// The hardware address of an end, as text.
pub fn mac_of(end: End) -> Result<String> {
    let text = end.namespace.ip(&format!("-j link show dev {}", end.name))?;
    let links: serde_json::Value = serde_json::from_str(&text)?;
    let address = links[0]["address"].as_str().with_context(|| format!("{} has no address", end.name))?;
    Ok(address.to_string())
}

fn mac(pair: u8, side: u8) -> String {
    format!("02:57:00:00:{pair:02x}:{side:02x}")
}

/// Runs a short set-up command and returns its output.
fn tool(command: &mut Command) -> Result<String> {
    Ok(run(command, TOOL_LIMIT)?.success()?.stdout)
}
