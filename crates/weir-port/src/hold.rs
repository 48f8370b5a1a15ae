//! The owners of the parts of interfaces and namespaces: a hold on each thing that weirs change.
//!
//! A hold is a file, `/run/weir/holds/NAMESPACE-THING`, that is locked by `flock(2)`. Two kinds:
//!
//! ```text
//! alone    the receive queues of an end: the next process is refused if the holder lives, and waits if it is being undone;
//!          what is made for a run: its interface, and the table of its way out
//! shared   the queue at a sending end, its checksum offload, a setting: the first notes what was before, the last puts it back
//! ```
//!
//! Shared, because the two ends of a pair may be two weirs': a generator at one end and a sink or a wire at the other each need the
//! queues at both.
//!
//! Rule: shared holds are taken, and left by the process that puts things back, with [`Lock`] held; and a file is only believed while it
//! still has its name. Whoever removes a hold's file lets others take the thing, and theirs is then another file of that name, which is
//! neither judged nor removed for the first. A descriptor carries its lock along, so a hold that a process has handed on ([`Hold::file`])
//! lives until both have closed it.
//!
//! Rule: a hold carries the cookie of its namespace and the address and name of its interface. The kernel gives the number of a namespace
//! that is gone to the next one; so an old state that was left behind is only believed where it is of the same interface still
//! (`hold/identity.rs`). A file without them cannot be read, and is told and kept as such ([`left`]).
//!
//! Owner: the guardian, from before the change to after the last undo. A file that no process has locked was left behind by a weir that was
//! killed together with its guardian; the old state is still in it, and the next holder goes on from there. A hold that is dropped before
//! it was handed on ([`Hold::hand_on`]), as when the next thing cannot be had, leaves no file unless there was one.
//!
//! The holder of a thing is an [`Owner`]; leftovers of killed processes are found by [`left`]; a command holds whole ends by [`ends`]. Limits:
//! files are those of one `/run`.

pub mod ends;
mod identity;
pub mod left;
mod owner;

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use self::identity::Identity;
pub use self::owner::Owner;
use crate::error::{Doing, PortError, Result};
use crate::holder::HolderProcess;
use crate::link::Link;
use crate::lock::{DIRECTORY, Lock, holds, try_flock};
use crate::netns::NetNs;
use crate::{directory, holder, sys};

/// The longest wait for a hold that is being undone, in nanoseconds.
const WAIT_NS_MAX: u64 = 15_000_000_000;
const BETWEEN_NS: u64 = 10_000_000;
/// The looks at a note of a process that has ended before the one that has the lock is taken for the holder: a new holder first looks at the
/// thing, and then notes itself.
const LOOKS_AT_ENDED: u64 = 20;
/// The things of an interface; all others are of a namespace.
const OF_INTERFACES: [&str; 5] = ["receive", "queue", "checksum", "tags", MADE];
/// An interface that is made for a run, and removed with it.
const MADE: &str = "made";
/// The beginning of the name of a table, among the things of a namespace.
const TABLE: &str = "table-";
/// The most bytes read of a hold's file, more than any has: a saved qdisc's options have some kilobytes at most.
const FILE_BYTES_MAX: usize = 64 * 1024;

/// A thing that can be held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Thing {
    /// The name of its file; unique on the machine.
    file: String,
    /// Its name in messages.
    name: String,
    identity: Identity,
}

impl Thing {
    /// The receive queues of an interface of `netns`.
    pub fn receive(netns: &NetNs, link: &Link) -> Thing {
        Thing::of_link(netns, link, "receive")
    }

    /// The queue by which an interface of `netns` sends.
    pub fn queue(netns: &NetNs, link: &Link) -> Thing {
        Thing::of_link(netns, link, "queue")
    }

    /// The checksum offload of an interface of `netns`.
    pub fn checksum(netns: &NetNs, link: &Link) -> Thing {
        Thing::of_link(netns, link, "checksum")
    }

    /// The place where an interface of `netns` leaves VLAN tags.
    pub fn tags(netns: &NetNs, link: &Link) -> Thing {
        Thing::of_link(netns, link, "tags")
    }

    /// An interface of `netns` itself, made for a run.
    pub fn made(netns: &NetNs, link: &Link) -> Thing {
        Thing::of_link(netns, link, MADE)
    }

    /// The nftables table of this name of a namespace, made for a run.
    pub fn table(netns: &NetNs, name: &str) -> Thing {
        Thing {
            name: format!("the nftables table {name}"),
            ..Thing::setting(netns, &format!("{TABLE}{name}"))
        }
    }

    /// A setting of a namespace, by a name without slashes.
    pub fn setting(netns: &NetNs, name: &str) -> Thing {
        Thing {
            file: format!("{}-{name}", netns.inode()),
            name: format!("the setting {name}"),
            identity: Identity::of(netns, None),
        }
    }

    /// The name of a limit, which one limit of the machine has.
    fn limit_name(netns: &NetNs, name: &str) -> Thing {
        Thing {
            file: format!("name-{name}"),
            name: format!("the name {name}"),
            identity: Identity::of(netns, None),
        }
    }

    fn of_link(netns: &NetNs, link: &Link, what: &str) -> Thing {
        let file = format!("{}-{}-{what}", netns.inode(), link.ifindex);
        Thing { file, name: format!("interface {}", link.name), identity: Identity::of(netns, Some(link)) }
    }
}

/// The content of a hold's file.
#[derive(Serialize, Deserialize)]
struct Note<T> {
    owner: Owner,
    identity: Identity,
    before: T,
}

impl<T> Note<T> {
    fn is_of(&self, thing: &Thing) -> bool {
        self.identity.is_same(&thing.identity)
    }
}

/// A hold on a thing, until this is dropped in all processes.
#[derive(Debug)]
pub struct Hold {
    file: File,
    path: PathBuf,
    /// True if the content of the file is of no use once this is dropped.
    is_new: bool,
}

impl Hold {
    /// Takes a thing for `owner` alone, and waits if it is being put back; `say` is then told what is waited for and whose it is. A state
    /// noted by a process that could put nothing back stays noted.
    ///
    /// # Errors
    /// If a living process holds the thing, or putting it back takes too long.
    pub fn alone(thing: &Thing, owner: &Owner, say: &mut dyn FnMut(&str)) -> Result<Hold> {
        wait_for(thing, say, || Ok(Hold::try_alone(thing, owner)?.ok_or_else(|| Hold::owner_of(thing))))
    }

    /// As [`alone`](Hold::alone), at once; `None` if another process holds the thing.
    fn try_alone(thing: &Thing, owner: &Owner) -> Result<Option<Hold>> {
        let doing = || doing(thing);
        let Some(mut hold) = Hold::try_lock(thing, libc::LOCK_EX).doing(doing)? else { return Ok(None) };
        let left_behind = hold.noted::<Value>().filter(|note| note.is_of(thing));
        let before = left_behind.map_or(Value::Null, |left_behind| left_behind.before);
        hold.is_new |= before.is_null();
        hold.note(&Note { owner: owner.clone(), identity: thing.identity.clone(), before }).doing(doing)?;
        Ok(Some(hold))
    }

    /// Takes a thing together with others. The first holder notes the old state: the one that a process before it noted and could not put
    /// back, otherwise that which `look` finds. Returns the hold, the old state, and whether this is the first holder, who changes the
    /// thing.
    pub fn shared<T: Serialize + DeserializeOwned>(
        _lock: &Lock,
        thing: &Thing,
        owner: &Owner,
        say: &mut dyn FnMut(&str),
        look: impl FnOnce() -> Result<T>,
    ) -> Result<(Hold, T, bool)> {
        let doing = || doing(thing);
        let (mut hold, note) = wait_for(thing, say, || {
            if let Some(hold) = Hold::try_lock(thing, libc::LOCK_EX).doing(doing)? {
                return Ok(Ok((hold, None)));
            }
            let shared = Hold::try_lock(thing, libc::LOCK_SH).doing(doing)?;
            // The note is read from the file that is locked: a holder that had it alone may have deleted the file before.
            Ok(match shared.map(|hold| (hold.noted::<T>(), hold)) {
                Some((Some(note), hold)) => Ok((hold, Some(note))),
                _ => Err(Hold::owner_of(thing)),
            })
        })?;
        if let Some(note) = note {
            return Ok((hold, note.before, false));
        }
        let left_behind = hold.noted::<T>().filter(|note| note.is_of(thing));
        hold.is_new = left_behind.is_none();
        let before = left_behind.map_or_else(look, |left_behind| Ok(left_behind.before))?;
        let note = Note { owner: owner.clone(), identity: thing.identity.clone(), before };
        hold.note(&note).doing(doing)?;
        try_flock(&hold.file, libc::LOCK_SH).doing(doing)?;
        Ok((hold, note.before, true))
    }

    /// Takes a thing that is made for a run, so that what two killed processes left of it is found. `None` where another process has it still,
    /// or nothing can be noted, which keeps no run from its network.
    pub fn made(_lock: &Lock, thing: &Thing, owner: &Owner) -> Option<Hold> {
        Hold::try_alone(thing, owner).ok().flatten()
    }

    /// The old state of a thing, noted before it was changed by the process that holds it or left it behind.
    pub fn noted_before<T: DeserializeOwned>(thing: &Thing) -> Option<T> {
        Hold::read::<T>(thing).filter(|note| note.is_of(thing)).map(|note| note.before)
    }

    /// The old state of the thing, noted before it was changed.
    pub fn before<T: DeserializeOwned>(&self) -> Option<T> {
        self.noted::<T>().map(|note| note.before)
    }

    /// The hold on a thing left behind by a process that could put nothing back; `None` if it is held, or was not, or cannot be read.
    pub fn left(thing: &Thing) -> Result<Option<Hold>> {
        let is_there = holds().join(&thing.file).exists();
        let hold = if is_there { Hold::try_lock(thing, libc::LOCK_EX).doing(|| doing(thing))? } else { None };
        match hold {
            // It may say what to put back, to whoever can read it.
            Some(hold) if hold.is_unreadable() => Ok(None),
            Some(hold) if !hold.noted::<Value>().is_some_and(|note| note.is_of(thing)) => {
                hold.finish();
                Ok(None)
            }
            hold => Ok(hold),
        }
    }

    /// Returns whether no other process holds the thing, so that the old state must come back. Asked with [`Lock`] held, and once: a holder
    /// that is not the last holds the thing no more.
    pub fn is_last(&self) -> bool {
        // Where the lock cannot be tried, it is better to put back once too often.
        try_flock(&self.file, libc::LOCK_EX).unwrap_or(true) && (self.has_its_name() || !self.is_taken_anew())
    }

    /// Returns whether the file is still the one of its name.
    fn has_its_name(&self) -> bool {
        is_at(&self.file, &self.path).unwrap_or(true)
    }

    /// Returns whether another process holds the thing by another file of this name.
    fn is_taken_anew(&self) -> bool {
        matches!(Hold::try_lock_file(self.path.clone(), libc::LOCK_EX, false), Ok(None))
    }

    /// Says in the file that the thing is being put back.
    pub fn note_undone(&self) {
        if let Some(mut note) = self.noted::<Value>() {
            note.owner.is_undone = true;
            // If this fails, the holder counts as living until it has ended, which it is about to.
            let _ = self.note(&note);
        }
    }

    /// Gives the thing up for good, and removes its file. Only a holder that has it alone, or [is the last](Hold::is_last), may.
    pub fn finish(mut self) {
        self.is_new = false;
        self.remove();
    }

    /// Gives the thing up, and leaves the next holder this for its state before.
    ///
    /// # Errors
    /// If it cannot be noted; then nothing is left.
    pub fn leave<T: Serialize>(mut self, before: T) -> Result<()> {
        let doing = || format!("noting what is left in {}", self.path.display());
        let noted = self.noted::<Value>().ok_or_else(|| io::Error::other("there is no note any more"));
        let Note { owner, identity, before: _ } = noted.doing(doing)?;
        self.note(&Note { owner, identity, before }).doing(doing)?;
        self.is_new = false;
        Ok(())
    }

    /// Keeps the file when this is dropped: another process will put the old state back and [finish](Hold::finish) the hold.
    pub fn hand_on(&mut self) {
        self.is_new = false;
    }

    /// Removes the file while it is still locked, unless another has its name. A file left behind is found and locked by the next holder.
    fn remove(&self) {
        if self.has_its_name() {
            let _ = std::fs::remove_file(&self.path);
        }
    }

    /// Returns whether this is on a thing.
    pub(crate) fn is_on(&self, thing: &Thing) -> bool {
        self.path.file_name().is_some_and(|name| name == thing.file.as_str())
    }

    /// Returns whether this is on a thing of the interface of this number in this namespace.
    pub fn is_of(&self, (namespace, ifindex): (u64, u32)) -> bool {
        let name = self.path.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| name.starts_with(&format!("{namespace}-{ifindex}-")))
    }

    /// The locked file, to hand it on to another process with [`Hold::path`].
    pub fn file(&self) -> &File {
        &self.file
    }

    /// The path of the file, to hand it on to another process with [`Hold::file`].
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The hold that another process handed on.
    ///
    /// # Errors
    /// If the path is not one of a hold, or is another file's.
    pub fn from_parts(file: File, path: PathBuf) -> io::Result<Hold> {
        let is_hold = path.parent() == Some(&holds()) && file.metadata()?.is_file();
        if is_hold && is_at(&file, &path)? {
            return Ok(Hold { file, path, is_new: false });
        }
        Err(io::Error::new(ErrorKind::InvalidInput, format!("{} is not a hold", path.display())))
    }

    /// The file, locked; `None` if another process has it locked in a mode that excludes this one.
    fn try_lock(thing: &Thing, mode: libc::c_int) -> io::Result<Option<Hold>> {
        directory::make(Path::new(DIRECTORY))?;
        directory::make_private(&holds())?;
        Hold::try_lock_file(holds().join(&thing.file), mode, true)
    }

    fn try_lock_file(path: PathBuf, mode: libc::c_int, create: bool) -> io::Result<Option<Hold>> {
        loop {
            let mut options = OpenOptions::new();
            options.read(true).write(true).create(create).truncate(false).mode(0o600);
            let file = options.custom_flags(libc::O_NOFOLLOW).open(&path)?;
            if !try_flock(&file, mode)? {
                return Ok(None);
            }
            // The holder before may have deleted the file.
            if is_at(&file, &path)? {
                let is_new = file.metadata()?.len() == 0;
                return Ok(Some(Hold { file, path, is_new }));
            }
        }
    }

    /// The owner of a thing, if its file can be read.
    fn owner_of(thing: &Thing) -> Option<Owner> {
        Hold::owner_at(&holds().join(&thing.file))
    }

    /// The owner of the thing whose file this is, if it can be read.
    fn owner_at(path: &Path) -> Option<Owner> {
        Hold::read_at::<Value>(path).map(|note| note.owner)
    }

    /// The content of a thing's file, whoever has it.
    fn read<T: DeserializeOwned>(thing: &Thing) -> Option<Note<T>> {
        Hold::read_at(&holds().join(&thing.file))
    }

    fn read_at<T: DeserializeOwned>(path: &Path) -> Option<Note<T>> {
        serde_json::from_slice(&std::fs::read(path).ok()?).ok()
    }

    fn noted<T: DeserializeOwned>(&self) -> Option<Note<T>> {
        serde_json::from_slice(&self.bytes().ok()?).ok()
    }

    fn bytes(&self) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; FILE_BYTES_MAX];
        let length = self.file.read_at(&mut bytes, 0)?;
        bytes.truncate(length);
        Ok(bytes)
    }

    /// Returns whether the file says something that this version cannot read.
    fn is_unreadable(&self) -> bool {
        self.file.metadata().is_ok_and(|about| about.len() > 0) && self.noted::<Value>().is_none()
    }

    /// The file is written over, not cut and written, so that a note changed in place needs no room; a shorter note ends in spaces, so that
    /// it can be parsed at once.
    fn note<T: Serialize>(&self, note: &Note<T>) -> io::Result<()> {
        let before = self.bytes()?;
        let mut bytes = serde_json::to_vec(note)?;
        bytes.resize(bytes.len().max(before.len()), b' ');
        let written = self.file.write_all_at(&bytes, 0);
        if written.is_err() {
            // A half-written note cannot be parsed. The one before, for which there is room, is the only copy of what it says.
            let _ = self.file.write_all_at(&before, 0);
            let _ = self.file.set_len(before.len() as u64);
        }
        written
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if self.is_new && self.is_last() {
            self.remove();
        }
    }
}

/// Returns whether a file is the one at a path, not the target of a link there.
fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    let own = file.metadata()?;
    let there = std::fs::symlink_metadata(path);
    Ok(there.is_ok_and(|there| (own.dev(), own.ino()) == (there.dev(), there.ino())))
}

fn doing(thing: &Thing) -> String {
    format!("taking hold of {}, in {DIRECTORY}/holds", thing.name)
}

/// Tries until the thing can be had. A holder that lives and keeps it is not waited for: the error names it, also where the note is still of
/// one that shared the thing with it and has ended.
fn wait_for<T>(
    thing: &Thing,
    say: &mut dyn FnMut(&str),
    mut attempt: impl FnMut() -> Result<std::result::Result<T, Option<Owner>>>,
) -> Result<T> {
    let busy = |why: String| Err(PortError::Busy { name: thing.name.clone(), why });
    let (mut last, mut looks_at_ended) = (None, 0);
    for _ in 0..WAIT_NS_MAX / BETWEEN_NS {
        // The file is empty for a moment between being locked and being written to.
        let holder = match attempt()? {
            Ok(done) => return Ok(done),
            Err(holder) => holder,
        };
        if holder.as_ref().is_some_and(Owner::has_ended) {
            looks_at_ended += 1;
            if looks_at_ended >= LOOKS_AT_ENDED
                && let Some(process) = locker_of(thing).filter(|process| !process.line.is_empty())
            {
                return busy(format!("{process}: end that first"));
            }
        } else if let Some(holder) = holder {
            if holder.keeps() {
                return busy(format!("process {} (`{}`): end that first", holder.pid, holder.command));
            }
            if last.is_none() {
                // A holder without a guardian is a command that sets something and is done, such as a limit.
                let why = match holder.guardian {
                    Some(_) => "changed is being put back",
                    None => "is doing to it comes first",
                };
                say(&format!(
                    "waiting for {}: what process {} (`{}`) {why}",
                    thing.name, holder.pid, holder.command
                ));
                holder.guardian.inspect(|guardian| wake(*guardian));
            }
            last = Some(holder);
        }
        sys::poll(&mut [], Some(BETWEEN_NS)).doing(|| doing(thing))?;
    }
    let seconds = WAIT_NS_MAX / 1_000_000_000;
    busy(match last {
        Some(Owner { guardian: Some(guardian), command, .. }) => format!(
            "process {guardian}, which puts back what `{command}` changed and has not done so for {seconds} s: the system log says why"
        ),
        Some(Owner { pid, command, .. }) => {
            format!("process {pid} (`{command}`), which has not ended for {seconds} s: end it first")
        }
        None => format!(
            "another weir for {seconds} s: `fuser {}` tells which",
            holds().join(&thing.file).display()
        ),
    })
}

/// The process that locked a thing's file, whatever the note in it says; its line is empty if it has ended.
fn locker_of(thing: &Thing) -> Option<HolderProcess> {
    let file = File::open(holds().join(&thing.file)).ok()?;
    holder::of_lock(&file).ok()?
}

/// Continues a guardian that was stopped; does nothing to a process that is no guardian.
fn wake(guardian: u32) {
    if owner::is_guardian(guardian) {
        // SAFETY: takes no pointers. Continuing a process that is not stopped does nothing.
        unsafe { libc::kill(guardian as libc::pid_t, libc::SIGCONT) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A process that is killed between two system calls leaves a note that can be read.
    #[test]
    fn a_shorter_note_keeps_the_length_of_the_one_before() {
        let path = std::env::temp_dir().join(format!("weir-hold-{}", std::process::id()));
        let hold = Hold::try_lock_file(path.clone(), libc::LOCK_EX, true).unwrap().unwrap();
        let note = |before: &str| Note {
            owner: Owner::this(None),
            identity: Identity::of(&NetNs::current().unwrap(), None),
            before: Some(before.to_string()),
        };
        let mut lengths = Vec::new();
        for before in ["false", "true", "longer than both"] {
            hold.note(&note(before)).unwrap();
            assert_eq!(hold.noted::<Option<String>>().unwrap().before.as_deref(), Some(before));
            lengths.push(hold.file.metadata().unwrap().len());
        }
        hold.finish();
        assert!(lengths[0] == lengths[1] && lengths[1] < lengths[2], "{lengths:?}");
        assert!(!path.exists());
    }

    /// The file of a hold may be removed by hand, and the thing be taken by another.
    #[test]
    fn a_file_of_the_same_name_is_anothers_hold() {
        let path = std::env::temp_dir().join(format!("weir-hold-anew-{}", std::process::id()));
        let take = || Hold::try_lock_file(path.clone(), libc::LOCK_EX, true).unwrap().unwrap();
        let first = take();
        std::fs::remove_file(&path).unwrap();
        assert!(first.is_last(), "nobody has taken it");
        let second = take();
        assert!(!first.is_last() && second.is_last());
        first.finish();
        assert!(path.exists(), "it is not the first one's to remove");
        second.finish();
        assert!(!path.exists());
    }

    #[test]
    fn a_note_is_read_as_it_was_written_and_nonsense_is_none() {
        let identity = Identity::of(&NetNs::current().unwrap(), None);
        let note = Note { owner: Owner::this(None), identity, before: Some(vec![1u8, 2]) };
        let text = serde_json::to_vec(&note).unwrap();
        let read: Note<Option<Vec<u8>>> = serde_json::from_slice(&text).unwrap();
        assert_eq!((read.owner, read.before), (note.owner, note.before));
        assert!(serde_json::from_slice::<Note<()>>(&text[1..]).is_err());
    }
}
