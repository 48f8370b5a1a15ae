//! The site of the events: two hosts, the wire between them, on pairs made as container runtimes make them, and a place to move an end to.
//!
//! ```text
//!  left             middle               right          elsewhere
//!  veth0 ---------- wa [weir wire] wb ---------- veth0
//!  10.99.0.1                                10.99.0.2
//! ```
//!
//! `/run/weir` is a small file system of this process and its children alone, so that it can be filled up.

use std::fs;
use std::io;

use anyhow::{Context, Result};
use weir_lab::bed::{End, Namespace, names};

use crate::chaos::plan::At;
use crate::harness::isolation::{cover, own_mount_namespace};
use crate::kernel::{Traces, traces};

/// The folder of control sockets and locks.
pub const RUN: &str = "/run/weir";
/// The mark of the queue of a plan's event: a short one, that drops.
pub const OUR_QDISC: &str = "pfifo 55:";
/// The bytes under `/run/weir`: enough for the files of a few wires.
const RUN_BYTES: u32 = 1 << 20;
const RUN_FILES: u32 = 256;

/// Gives this process and those it starts a `/run/weir` of their own. Call it before any thread is started.
pub fn own_run() -> Result<()> {
    own_mount_namespace()?;
    cover(RUN, &format!("size={RUN_BYTES},nr_inodes={RUN_FILES},mode=755"))
}

/// Leaves no room under `/run/weir` for a byte or a file; until it is dropped.
#[derive(Debug)]
pub struct Full {
    files: Vec<String>,
}

impl Full {
    /// Fills it.
    pub fn fill() -> Result<Full> {
        let mut full = Full { files: Vec::new() };
        let is_full = |error: &io::Error| error.raw_os_error() == Some(libc::ENOSPC);
        for number in 0..=RUN_FILES {
            let path = format!("{RUN}/filler-{number}");
            let filled = if number == 0 { vec![0; RUN_BYTES as usize] } else { Vec::new() };
            let written = fs::write(&path, filled);
            full.files.push(path);
            match written {
                Err(error) if is_full(&error) && number > 0 => return Ok(full),
                Err(error) if !is_full(&error) => return Err(error).context("filling /run/weir"),
                _ => {}
            }
        }
        anyhow::bail!("{RUN} takes more than {RUN_FILES} files: it is not the one made for this test")
    }
}

impl Drop for Full {
    fn drop(&mut self) {
        for file in &self.files {
            // The last one was refused, so it is not there.
            let _ = fs::remove_file(file);
        }
    }
}

/// The namespaces of the wire and its hosts.
#[derive(Debug)]
pub struct Site {
    /// The namespace of the daemon.
    pub middle: Namespace,
    /// The host at `wa`.
    pub left: Namespace,
    /// The host at `wb`.
    pub right: Namespace,
    /// A namespace that an end can be moved to.
    pub elsewhere: Namespace,
}

impl Site {
    /// Makes it.
    pub fn new() -> Result<Site> {
        let site = Site {
            middle: Namespace::new("middle")?,
            left: Namespace::new("left")?,
            right: Namespace::new("right")?,
            elsewhere: Namespace::new("elsewhere")?,
        };
        for (host, number) in [(At::Left, 1), (At::Right, 2)] {
            let end = site.end(host);
            let ours = if host == At::Left { "wa" } else { "wb" };
            end.namespace.ip(&format!(
                "link add {} address {} type veth peer name {ours} netns {}",
                end.name,
                mac(number),
                site.middle.name()
            ))?;
            site.middle.ip(&format!("link set {ours} up"))?;
            end.namespace.ip(&format!("link set {} up", end.name))?;
            site.join(host)?;
        }
        Ok(site)
    }

    /// An end, where it belongs.
    pub fn end(&self, at: At) -> End<'_> {
        match at {
            At::Left => End { namespace: &self.left, name: "veth0" },
            At::A => End { namespace: &self.middle, name: "wa" },
            At::B => End { namespace: &self.middle, name: "wb" },
            At::Right => End { namespace: &self.right, name: "veth0" },
        }
    }

    /// Gives a host its address again, and its neighbour's, which an interface forgets when it goes down or moves.
    pub fn join(&self, host: At) -> Result<()> {
        let (own, far) = if host == At::Left { (1, 2) } else { (2, 1) };
        let End { namespace, name } = self.end(host);
        namespace.ip(&format!("addr replace {}/24 dev {name}", names(0, own).v4))?;
        let far_address = names(0, far).v4;
        namespace.ip(&format!("neigh replace {far_address} lladdr {} dev {name} nud permanent", mac(far)))?;
        Ok(())
    }

    /// The address of a host.
    pub fn address(&self, host: At) -> String {
        names(0, if host == At::Left { 1 } else { 2 }).v4
    }

    /// The traces of all interfaces that can be read, by namespace.
    pub fn traces(&self) -> Result<[Traces; 3]> {
        let of = |namespace: &Namespace| -> Result<Traces> {
            let mut all = traces(namespace)?;
            all.values_mut().for_each(|text| *text = comparable(text));
            Ok(all)
        };
        Ok([of(&self.middle)?, of(&self.left)?, of(&self.right)?])
    }
}

/// The text without things that are not the wire's: the queue that a plan's own event left, and the number by which one namespace knows
/// another, which is given when it is first asked for.
fn comparable(text: &str) -> String {
    let lines = text.lines().map(|line| {
        if line.contains(OUR_QDISC) {
            return "qdisc noqueue 0: root ".to_string();
        }
        let (mut words, mut kept) = (line.split(' '), Vec::new());
        while let Some(word) = words.next() {
            if word == "link-netnsid" {
                words.next();
            } else {
                kept.push(word);
            }
        }
        kept.join(" ")
    });
    lines.collect::<Vec<_>>().join("\n")
}

fn mac(host: u8) -> String {
    format!("02:57:00:00:00:{host:02x}")
}
