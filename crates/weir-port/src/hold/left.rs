//! The leavings of weirs that were killed together with their guardians: the interfaces and namespaces, and the commands that put them back.
//!
//! A hold was left behind if its owner is gone and no process has its file locked. One whose namespace, interface or table is gone, or is
//! another by now, says nothing of any that there is; [`sweep`] removes it, and one that cannot be read if the thing is gone. Nor does one of
//! a command without a guardian, such as a limit's ([`super::ends`]): it kept others away, and what such a command leaves half made is told
//! by the limit itself.
//!
//! Rule: the locks are tried with [`Lock`] held, as whoever shares a thing looks then. Limits: root alone may read holds; a namespace in
//! which no process is and that is mounted nowhere visible counts as gone.

use std::ffi::OsStr;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::{FILE_BYTES_MAX, Hold, Identity, MADE, Note, OF_INTERFACES, TABLE, Thing};
use crate::error::{Doing, PortError, Result};
use crate::forwarding::Setting;
use crate::link::Link;
use crate::lock::{DIRECTORY, Lock, holds};
use crate::netns::NetNs;
use crate::sys;
use crate::way_out::nftables;

/// The rest of the sentence on a note that cannot be read, behind its path.
const UNREADABLE: &str = "was left behind and cannot be read, by this version of weir at least, so what it says of before is not put back: it \
     stays there until you have looked at it and removed it";
/// The tries to get the lock, a millisecond apart.
const TRIES: u32 = 1000;
const BETWEEN_NS: u64 = 1_000_000;

/// Interfaces, or what runs changed or made in a namespace, that are left as killed weirs had them, which one command puts back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Left {
    /// The interfaces, forwarding and tables, with their namespaces, in words.
    pub things: Vec<String>,
    /// The command.
    pub command: String,
}

impl Left {
    /// The state of the things, without the command.
    pub fn state(&self) -> String {
        let (is, it) = if self.things.len() == 1 { ("is", "it") } else { ("are", "them") };
        format!("{} {is} as a weir that was killed left {it}", self.things.join(", "))
    }

    /// The sentence on them.
    pub fn sentence(&self) -> String {
        format!("{}: put back by `{}`", self.state(), self.command)
    }
}

/// An interface that is left.
#[derive(Clone, Debug, PartialEq, Eq)]
struct End {
    /// Its namespace's number and its own.
    key: (u64, u32),
    /// The other end of its pair.
    peer: Option<(u64, u32)>,
    name: String,
    /// Its namespace, in words.
    label: String,
    /// The words before a command that run it in its namespace.
    way_in: String,
    /// True if a weir had its receive queues: the weir was in its namespace.
    is_port: bool,
}

/// All that is left, a part for each namespace in which a command has to be run.
pub fn all() -> Vec<Left> {
    let Some(_lock) = lock() else { return Vec::new() };
    let names = files();
    let unheld = names.iter().filter_map(|name| unheld(name).map(|(_, note)| (name, note)));
    let left: Vec<_> = unheld.filter(|(_, note)| has_changed(note)).collect();
    if left.is_empty() {
        return Vec::new();
    }
    let namespaces = NetNs::all().unwrap_or_default();
    let mut ends: Vec<End> = Vec::new();
    let mut of_runs: Vec<Left> = Vec::new();
    for (name, note) in left {
        let Some((inode, of_interface)) = parts(name) else { continue };
        let found = namespaces.iter().find(|(_, netns)| netns.inode() == inode);
        let Some((path, netns)) = found else { continue };
        let Some((ifindex, thing)) = of_interface else {
            if let Some(thing) = of_namespace(name, netns, &note) {
                add(&mut of_runs, format!("{thing} in {}", netns.label()), &way_in(path, netns));
            }
            continue;
        };
        let Ok(Some(link)) = present(netns, ifindex, &note.identity) else { continue };
        if thing == MADE {
            add(&mut of_runs, format!("{} in {}", link.name, netns.label()), &way_in(path, netns));
            continue;
        }
        let is_port = thing == "receive";
        match ends.iter_mut().find(|end| end.key == (inode, ifindex)) {
            Some(end) => end.is_port |= is_port,
            None => ends.push(End {
                key: (inode, ifindex),
                peer: netns.run(|| link.peer()).ok().map(|(netns, peer)| (netns.inode(), peer.ifindex)),
                name: link.name,
                label: netns.label(),
                way_in: way_in(path, netns),
                is_port,
            }),
        }
    }
    [together(ends), of_runs].concat()
}

/// Adds a thing that the command without an interface puts back in its namespace.
fn add(of_runs: &mut Vec<Left>, thing: String, way_in: &str) {
    let command = format!("{way_in}weir mend");
    match of_runs.iter_mut().find(|left| left.command == command) {
        Some(left) if left.things.contains(&thing) => {}
        Some(left) => left.things.push(thing),
        None => of_runs.push(Left { things: vec![thing], command }),
    }
}

/// The thing of the namespace that the note of this file is of, in words: a setting, or a table.
fn of_namespace<T>(name: &str, netns: &NetNs, note: &Note<T>) -> Option<String> {
    let (_, rest) = name.split_once('-')?;
    let (thing, words) = match table(rest) {
        Some(_) if has_gone(name, netns) => return None,
        Some(name) => (Thing::table(netns, name), format!("the nftables table {name}")),
        None => (Thing::setting(netns, &Setting::from_name(rest)?.name()), "forwarding".into()),
    };
    note.is_of(&thing).then_some(words)
}

/// The number of the interface made for a run that is the thing of this name, of those of a namespace ([`names_of`]).
pub(crate) fn made(name: &str) -> Option<u32> {
    let (ifindex, thing) = name.split_once('-')?;
    (thing == MADE).then(|| ifindex.parse().ok()).flatten()
}

/// The nftables table that is the thing of this name, of those of a namespace.
pub(crate) fn table(name: &str) -> Option<&str> {
    name.strip_prefix(TABLE)
}

/// The notes that are left of things which are there, and that this version cannot read: a sentence each.
pub fn unreadable() -> Vec<String> {
    let Some(_lock) = lock() else { return Vec::new() };
    let namespaces = NetNs::all().unwrap_or_default();
    let is_there = |name: &&String| {
        let is_in = |netns: &NetNs| parts(name).is_some_and(|(inode, _)| inode == netns.inode());
        namespaces.iter().any(|(_, netns)| is_in(netns) && !has_gone(name, netns))
    };
    let names = files();
    let unread = names.iter().filter(|name| unreadable_hold(name).is_some()).filter(is_there);
    unread.map(|name| format!("{} {UNREADABLE}", holds().join(name).display())).collect()
}

/// Refuses an interface of `netns` of which a note was left behind that cannot be read: whoever takes its hold writes over it.
pub fn check_readable(netns: &NetNs, link: &Link) -> Result<()> {
    let Some(_lock) = lock() else { return Ok(()) };
    let things = OF_INTERFACES.map(|what| Thing::of_link(netns, link, what));
    match things.iter().find_map(|thing| unreadable_hold(&thing.file)) {
        None => Ok(()),
        Some(hold) => Err(PortError::Unsuitable {
            name: link.name.clone(),
            why: format!("is not mended: {} {UNREADABLE}", hold.path().display()),
        }),
    }
}

/// The hold of this file, if no process has it and it cannot be read.
fn unreadable_hold(name: &str) -> Option<Hold> {
    let path = holds().join(name);
    let bytes = fs::read(&path).ok()?;
    if bytes.is_empty()
        || serde_json::from_slice::<Note<Value>>(&bytes[..bytes.len().min(FILE_BYTES_MAX)]).is_ok()
    {
        return None;
    }
    let hold = Hold::try_lock_file(path, libc::LOCK_EX, false).ok()??;
    hold.is_unreadable().then_some(hold)
}

/// Removes the holds left behind whose namespace, interface or table is gone, or another by now, and the names that
/// killed commands held.
///
/// # Errors
/// If it cannot be told of one whether it is gone; that one stays.
pub fn sweep() -> Result<()> {
    let Some(_lock) = lock() else { return Ok(()) };
    let namespaces = NetNs::all()?;
    let mut swept = Ok(());
    for name in files() {
        let Some((inode, of_interface)) = parts(&name) else {
            if let Some((hold, _)) = unheld(&name) {
                hold.finish();
            }
            continue;
        };
        let netns = namespaces.iter().map(|(_, netns)| netns).find(|netns| netns.inode() == inode);
        if let Some(hold) = unreadable_hold(&name) {
            if netns.is_none_or(|netns| has_gone(&name, netns)) {
                hold.finish();
            }
            continue;
        }
        let Some((hold, note)) = unheld(&name) else { continue };
        let is_there = netns.map_or(Ok(false), |netns| match of_interface {
            Some((ifindex, _)) => present(netns, ifindex, &note.identity).map(|link| link.is_some()),
            None => Ok(note.identity.is_of(netns, None)? && !has_gone(&name, netns)),
        });
        match is_there {
            Ok(true) => {}
            Ok(false) => hold.finish(),
            Err(error) => swept = swept.and(Err(error)),
        }
    }
    swept
}

/// Returns whether the interface or table that the file of this name is of is not in its namespace any more; false where nobody can tell.
fn has_gone(name: &str, netns: &NetNs) -> bool {
    if let Some((_, Some((ifindex, _)))) = parts(name) {
        return netns.run(|| Link::by_index(ifindex)).is_err_and(|error| error.is_no_interface());
    }
    let table = name.split_once('-').and_then(|(_, thing)| table(thing));
    table.is_some_and(|table| matches!(netns.run(|| nftables::is_any_called(table)), Ok(false)))
}

/// The names of the things of a namespace that are noted, held or left behind.
pub fn names_of(netns: &NetNs) -> Result<Vec<String>> {
    let prefix = format!("{}-", netns.inode());
    let entries = match fs::read_dir(holds()) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.doing(|| format!("reading {DIRECTORY}/holds"))?,
    };
    let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    Ok(names.filter_map(|name| Some(name.strip_prefix(&prefix)?.to_string())).collect())
}

/// The interface of this number; `None` if there is none, or another than the one that is noted.
fn present(netns: &NetNs, ifindex: u32, noted: &Identity) -> Result<Option<Link>> {
    same(netns.run(|| Link::by_index(ifindex)), |link| noted.is_of(netns, Some(link)))
}

/// The interface that was found, if it is the noted one. One that cannot be looked at is not gone.
fn same(found: Result<Link>, is_noted: impl FnOnce(&Link) -> Result<bool>) -> Result<Option<Link>> {
    match found {
        Ok(link) => Ok(is_noted(&link)?.then_some(link)),
        Err(error) if error.is_no_interface() => Ok(None),
        Err(error) => Err(error),
    }
}

/// The lock; `None` where there is no hold or nobody who may look, or where another process keeps the lock.
fn lock() -> Option<Lock> {
    if !sys::is_root() || files().is_empty() {
        return None;
    }
    (0..TRIES).find_map(|_| {
        let lock = Lock::try_take();
        if lock.is_none() {
            // Interrupted, it is tried again sooner.
            let _ = sys::poll(&mut [], Some(BETWEEN_NS));
        }
        lock
    })
}

/// The names of the files of all holds.
pub(super) fn files() -> Vec<String> {
    let entries = fs::read_dir(holds()).into_iter().flatten().flatten();
    let mut names: Vec<_> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}

/// The hold of this file, with its note, if no process has it any more.
fn unheld(name: &str) -> Option<(Hold, Note<Value>)> {
    let path = holds().join(name);
    let note: Note<Value> = serde_json::from_slice(&fs::read(&path).ok()?).ok()?;
    if note.owner.is_running() {
        return None;
    }
    let hold = Hold::try_lock_file(path, libc::LOCK_EX, false).ok()??;
    // It may have changed hands until it was locked.
    let note = hold.noted::<Value>()?;
    (!note.owner.is_running()).then_some((hold, note))
}

/// Returns whether the owner of a hold changed the thing, or found it as another had changed it.
fn has_changed(note: &Note<Value>) -> bool {
    note.owner.guardian.is_some() || !note.before.is_null()
}

/// The namespace's number of a file's name; and, of a thing of an interface, the interface's number and the thing.
fn parts(name: &str) -> Option<(u64, Option<(u32, &str)>)> {
    let (inode, rest) = name.split_once('-')?;
    let of_interface = rest.split_once('-').filter(|(_, thing)| OF_INTERFACES.contains(thing));
    let of_interface = of_interface.and_then(|(ifindex, thing)| Some((ifindex.parse().ok()?, thing)));
    Some((inode.parse().ok()?, of_interface))
}

/// The words before a command that run it in a namespace.
fn way_in(path: &Path, netns: &NetNs) -> String {
    if path == Path::new("/proc/thread-self/ns/net") {
        return String::new();
    }
    let is_named =
        [Path::new("/run/netns"), Path::new("/var/run/netns")].iter().any(|at| path.parent() == Some(at));
    match path.file_name().and_then(OsStr::to_str).filter(|_| is_named) {
        Some(name) => format!("ip netns exec {name} "),
        None => {
            let process = netns.process().map(|pid| PathBuf::from(format!("/proc/{pid}/ns/net")));
            let path = process.filter(|_| path.starts_with("/proc")).unwrap_or(path.into());
            format!("nsenter --net={} ", path.display())
        }
    }
}

/// The ends with the commands that mend them; an end goes with the other one of its pair, where the weir was.
fn together(mut ends: Vec<End>) -> Vec<Left> {
    /// A namespace's interfaces that a command names, and those that it mends along with them.
    struct Place {
        way_in: String,
        named: Vec<End>,
        along: Vec<End>,
    }
    ends.sort_by_key(|end| (!end.is_port, !end.way_in.is_empty()));
    let mut places: Vec<Place> = Vec::new();
    for end in ends {
        let is_pair = |named: &End| end.peer == Some(named.key) || named.peer == Some(end.key);
        if let Some(place) = places.iter_mut().find(|place| place.named.iter().any(is_pair)) {
            place.along.push(end);
        } else if let Some(place) = places.iter_mut().find(|place| place.way_in == end.way_in) {
            place.named.push(end);
        } else {
            places.push(Place { way_in: end.way_in.clone(), named: vec![end], along: Vec::new() });
        }
    }
    let left = places.into_iter().map(|Place { way_in, named, along }| {
        let names: Vec<_> = named.iter().map(|end| end.name.as_str()).collect();
        let interfaces = named.iter().chain(&along).map(|end| format!("{} in {}", end.name, end.label));
        Left { command: format!("{way_in}weir mend {}", names.join(" ")), things: interfaces.collect() }
    });
    left.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hold::Owner;

    fn end(key: (u64, u32), peer: (u64, u32), name: &str, is_port: bool) -> End {
        let (label, way_in) = match key.0 {
            1 => ("this network namespace".into(), String::new()),
            number => (format!("network namespace n{number}"), format!("ip netns exec n{number} ")),
        };
        End { key, peer: Some(peer), name: name.into(), label, way_in, is_port }
    }

    #[test]
    fn pairs_are_mended_from_where_the_weir_was() {
        let left = together(vec![
            end((2, 9), (1, 3), "eth0", false),
            end((1, 3), (2, 9), "va", true),
            end((1, 4), (3, 9), "vb", true),
            end((4, 7), (5, 1), "s0", true),
        ]);
        assert_eq!(
            left[0].sentence(),
            "va in this network namespace, vb in this network namespace, eth0 in network namespace n2 are as a weir that was killed \
             left them: put back by `weir mend va vb`"
        );
        assert_eq!(left[1].command, "ip netns exec n4 weir mend s0");
        assert_eq!(left.len(), 2);
    }

    #[test]
    fn a_command_that_kept_others_away_left_nothing() {
        let identity = Identity::of(&NetNs::current().unwrap(), None);
        let note = |guardian, before| {
            let owner = Owner::this(guardian);
            Note { owner, identity: identity.clone(), before }
        };
        assert!(has_changed(&note(Some(1), Value::Null)), "a wire");
        assert!(!has_changed(&note(None, Value::Null)), "a limit");
        assert!(has_changed(&note(None, Value::Bool(true))), "a limit where a wire was killed before");
    }

    #[test]
    fn an_interface_that_cannot_be_looked_at_is_not_gone() {
        let error = |code| PortError::Kernel {
            doing: "looking at interface number 7".into(),
            source: std::io::Error::from_raw_os_error(code),
        };
        let gone = PortError::NoInterface { name: "number 7".into() };
        assert!(same(Err(gone), |_| Ok(true)).unwrap().is_none());
        for code in [libc::EMFILE, libc::ENOBUFS, libc::EINTR] {
            assert!(same(Err(error(code)), |_| Ok(true)).is_err());
        }
        let there = || Ok(Link { name: "eth0".into(), ..Link::default() });
        assert!(same(there(), |_| Ok(true)).unwrap().is_some());
        assert!(same(there(), |_| Ok(false)).unwrap().is_none(), "another by now");
        assert!(same(there(), |_| Err(error(libc::EMFILE))).is_err());
    }

    #[test]
    fn a_file_is_of_an_interface_or_of_a_setting() {
        assert_eq!(parts("12-3-queue"), Some((12, Some((3, "queue")))));
        assert_eq!(parts("12-3-ipv4-forwarding"), Some((12, None)));
        assert_eq!(parts("12-ipv6-forwarding"), Some((12, None)));
        assert_eq!(parts("12-3-made"), Some((12, Some((3, "made")))));
        assert_eq!(parts("12-table-weir0"), Some((12, None)));
        assert_eq!((made("3-made"), made("3-queue"), table("table-weir0")), (Some(3), None, Some("weir0")));
        assert_eq!(parts("nonsense"), None);
    }
}
