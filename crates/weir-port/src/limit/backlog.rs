//! The room for packets that have left limits in place and wait for a processor, `net.core.netdev_max_backlog`, while there are limits.
//!
//! A packet that a pair delivers waits in a list of arrivals of one processor, which drops what finds it full, and nobody can be held for
//! it any more. The limits of a machine share these lists: a burst of 100 kB of short packets has the 1,000 places that Linux gives them,
//! and three limits of 200 Mbit/s fill these in 20 ms with long ones, as long as a busy machine may keep a processor away.
//!
//! Rule: the setting is raised and never lowered while a limit can be found; a value that somebody has set since stays.
//!
//! Owner: the setting is the machine's. The value before is kept in a file until no limit is left, under the lock of things that weirs
//! share. Limits: only the first network namespace of the machine has the setting; where that cannot be entered, as from a container, it
//! stays as it is. A limit that goes with its interface lowers nothing: the next that is removed does. A weir in another PID namespace may
//! not find a limit, and lower the setting too early.
//!
//! Source: kernel `net/core/dev.c:enqueue_to_backlog`, `net/core/sysctl_net_core.c`.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::find::{has_gone, is_limit_at};
use super::htb::{self, RootKind};
use crate::error::{Doing, Result};
use crate::hold::ends;
use crate::lock::{self, Lock};
use crate::netns::NetNs;
use crate::sysctl;
use crate::view::is_gone;

/// The least number of packets that a list may hold while there are limits.
pub const PACKETS_MIN: u64 = 10_000;
const SETTING: &str = "core/netdev_max_backlog";
const FILE: &str = "netdev_max_backlog";

/// Raises the setting if it is lower than limits need.
///
/// # Errors
/// If it cannot be kept or raised; then it is as it was.
pub fn raise() -> Result<()> {
    let Some(netns) = first_netns()? else { return Ok(()) };
    // Whoever puts it back writes the setting before the file goes.
    if !file().exists() && read(&netns)? >= PACKETS_MIN {
        return Ok(());
    }
    let _lock = Lock::take()?;
    let before = read(&netns)?;
    if before >= PACKETS_MIN {
        return Ok(());
    }
    fs::write(file(), format!("{before}\n")).doing(|| format!("writing {}", file().display()))?;
    let raised = netns.run(|| sysctl::write(SETTING, &PACKETS_MIN.to_string()));
    if raised.is_err() {
        // The first error is reported; that of the removal is not.
        let _ = fs::remove_file(file());
    }
    raised
}

/// Puts the setting back as it was before [`raise`] if no limit can be found any more. Returns whether this call put it back.
///
/// # Errors
/// If it cannot be looked at or put back.
pub fn put_back_if_unused() -> Result<bool> {
    if !file().exists() {
        return Ok(false);
    }
    let _lock = Lock::take()?;
    // Another command may have put it back until it was this one's turn.
    if !file().exists() {
        return Ok(false);
    }
    let Some(netns) = first_netns()? else { return Ok(false) };
    if is_any_limit()? {
        return Ok(false);
    }
    let before = raised_from(&netns)?;
    if let Some(before) = before {
        netns.run(|| sysctl::write(SETTING, &before.to_string()))?;
    }
    match fs::remove_file(file()) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(error).doing(|| format!("removing {}", file().display()))
        }
        _ => Ok(before.is_some()),
    }
}

/// The setting before [`raise`], if it is raised still and no limit can be found any more: [`put_back_if_unused`] would put it back.
/// `None` while a command makes or removes a limit, or a run ends: it raises the setting before there is a limit, and puts it back behind
/// the last. The moments of that in which nothing is held are short, so whoever tells of it looks twice.
///
/// # Errors
/// If it cannot be looked at.
pub fn left() -> Result<Option<u64>> {
    if !file().exists() || ends::is_any_under_way() {
        return Ok(None);
    }
    let Some(netns) = first_netns()? else { return Ok(None) };
    if is_any_limit()? { Ok(None) } else { raised_from(&netns) }
}

/// The setting before it was raised; `None` if somebody has set it since.
fn raised_from(netns: &NetNs) -> Result<Option<u64>> {
    Ok(kept()?.filter(|_| read(netns).is_ok_and(|now| now == PACKETS_MIN)))
}

/// The namespace that has the setting; `None` if no process that this one may look at is in it.
fn first_netns() -> Result<Option<NetNs>> {
    let has_setting =
        |netns: &NetNs| netns.run(|| Ok(sysctl::read(SETTING))).is_ok_and(|value| value.is_some());
    Ok(NetNs::all()?.into_iter().map(|(_, netns)| netns).find(has_setting))
}

fn read(netns: &NetNs) -> Result<u64> {
    let text = netns.run(|| Ok(sysctl::read(SETTING)))?.unwrap_or_default();
    text.parse().map_err(std::io::Error::other).doing(|| format!("reading {SETTING}"))
}

/// Returns whether a limit can be found. A namespace that cannot be asked, and has not gone, may have one.
fn is_any_limit() -> Result<bool> {
    for (_, netns) in NetNs::all()? {
        match is_any_in(&netns) {
            Ok(false) => {}
            Err(error) if is_gone(&error) => {}
            _ => return Ok(true),
        }
    }
    Ok(false)
}

/// Returns whether a namespace has a limit.
fn is_any_in(netns: &NetNs) -> Result<bool> {
    for root in netns.run(htb::roots)?.into_iter().filter(|root| root.kind == RootKind::Limit) {
        match is_limit_at(netns, root.ifindex) {
            Ok(false) => {}
            Err(error) if is_gone(&error) || has_gone(netns, root.ifindex) => {}
            _ => return Ok(true),
        }
    }
    Ok(false)
}

fn file() -> PathBuf {
    Path::new(lock::DIRECTORY).join(FILE)
}

/// The value in the file; `None` if there is no file, or its writer died before it had written the whole line.
fn kept() -> Result<Option<u64>> {
    match fs::read_to_string(file()) {
        Ok(text) => Ok(text.strip_suffix('\n').and_then(|value| value.parse().ok())),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).doing(|| format!("reading {}", file().display())),
    }
}
