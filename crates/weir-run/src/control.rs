//! The control socket: how `weir stat` and `weir set` reach a running wire, and `weir stat` a stack in the process of an application.
//!
//! A Unix socket `/run/weir/NAME.sock` in a directory where only root makes names. Everybody may connect; the wire looks who it is
//! (`control/admission.rs`): anybody may read counters, only root may change anything. One JSON object a line, one line in answer:
//!
//! ```text
//! "stat"                                                   -> {"version": 4, "ok": {"wires": [...], ...}}
//! {"set": {"direction": 0, "rate_bits_per_s": 100000000}}  -> {"version": 4, "ok": null}  or  {"version": 4, "error": "..."}
//! {"set-classes": {"file": "office.toml", "text": "..."}}  -> the same
//! "remove-classes"                                         -> the same
//! "show"                                                   -> {"version": 4, "ok": {"file": "...", "ports": [...]}}
//! {"apply": {"text": "...", "is_trial": false}}            -> {"version": 4, "ok": [{"interface": "...", "change": ...}, ...]}
//! "stop"                                                   -> the same, and soon after it nobody listens any more
//! ```
//!
//! Rule, because a wire may have been up for longer than the command that asks it: a reader of counters takes a missing field for 0 and
//! passes over one that it does not know; a wire that is asked to change something refuses a field that it does not know, because a change
//! half made is worse than none. An answer without a version is of version 1, which only root could ask.
//!
//! Here is the protocol and the side that asks; `control/server.rs` answers.

mod admission;
mod changes;
mod listener;
mod server;

use std::collections::BTreeSet;
use std::io::{self, Read, Write};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use weir_port::hold::left;
use weir_port::lock::Lock;
use weir_port::sys;

use crate::books::Books;
use crate::clock::now_ns;
use crate::crew::Crew;
use crate::limits::SetLimits;
use crate::stats::Snapshot;

pub use changes::{AppliedPort, ChangedLimits, DatapathResponder, LimitValues, Running, RunningPort};
pub use listener::Listener;
pub use server::{Control, Responder, is_served};

/// The directory of the control sockets.
pub const DIRECTORY: &str = weir_port::lock::DIRECTORY;
/// The longest classes file, in bytes.
pub const FILE_BYTES_MAX: u64 = 4 << 20;
/// The version of requests and answers. It grows when a request gets a new meaning or a new field.
const VERSION: u64 = 4;
/// The longest time that a wire may take to answer, in nanoseconds.
const PATIENCE_NS: u64 = 5_000_000_000;
/// The longest answer in bytes: far more than the counters of the largest wire.
const ANSWER_BYTES_MAX: usize = 64 << 20;

/// A request to a running wire.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Command {
    /// Copies of the counters.
    Stat,
    /// A live change of limits.
    Set(SetLimits),
    /// A live change of classes.
    SetClasses(SetClasses),
    /// The removal of all classes of a wire, live.
    RemoveClasses,
    /// The running wire or topology, as a file.
    Show,
    /// A live change of all ports at once, to a file.
    Apply(ApplyFile),
    /// Deliver packets that are inside, put everything back, and end.
    Stop,
}

/// A classes file for both directions, as it is written; the process that runs the wire checks it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetClasses {
    /// The name of the file in messages about it.
    pub file: String,
    /// The text of the file.
    pub text: String,
}

/// A topology file with everything in it, as it is to become.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ApplyFile {
    /// The text of the file.
    pub text: String,
    /// True if the file is only checked, and the changes said.
    pub is_trial: bool,
}

/// Asks the wire or topology that listens at `path`.
pub fn ask(path: &Path, command: &Command) -> Result<Value, String> {
    Ok(ask_whoever(path, command)?.1)
}

/// Asks as [`ask`] does. Returns the version of the answer too.
fn ask_whoever(path: &Path, command: &Command) -> Result<(u64, Value), Refusal> {
    let line = exchange(path, command).map_err(|error| Refusal::Unclear(unanswered(path, &error)))?;
    answered(&line).map_err(|refusal| match refusal {
        Refusal::Unclear(error) => Refusal::Unclear(format!("{}: {error}", path.display())),
        said => said,
    })
}

/// The sentence on a request that nobody answered.
fn unanswered(path: &Path, error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::PermissionDenied => format!("{}: only root may ask: run it with sudo", path.display()),
        io::ErrorKind::NotFound => {
            format!("no wire or topology listens at {}: `weir stat` lists those that are up", path.display())
        }
        io::ErrorKind::ConnectionRefused if !is_socket(path) => {
            format!("{} is no socket, so no weir's: remove it", path.display())
        }
        io::ErrorKind::ConnectionRefused => killed(path),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            format!("whoever listens at {} does not answer: has its process been stopped?", path.display())
        }
        // The kernel hangs up for a process that ends.
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => {
            format!("what was up at {} ended before it answered", path.display())
        }
        _ => format!("{}: {error}", path.display()),
    }
}

/// Sends one request and reads the line that answers it, within [`PATIENCE_NS`] in all.
fn exchange(path: &Path, command: &Command) -> io::Result<Vec<u8>> {
    let until_ns = now_ns() + PATIENCE_NS;
    let left = || Duration::from_nanos(until_ns.saturating_sub(now_ns()).max(1));
    let mut stream = sys::connect_unix(path, PATIENCE_NS)?;
    stream.set_write_timeout(Some(left()))?;
    let mut line = serde_json::to_string(command)?;
    line.push('\n');
    match stream.write_all(line.as_bytes()) {
        // The wire refused before it had read all, and said why.
        Err(error) if matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) => {}
        result => result?,
    }
    let mut answer = Vec::new();
    let mut piece = vec![0; 64 * 1024];
    while answer.last() != Some(&b'\n') {
        if now_ns() >= until_ns {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left()))?;
        match stream.read(&mut piece) {
            Ok(0) if answer.is_empty() => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(0) => break,
            Ok(count) => answer.extend_from_slice(&piece[..count]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // The wire hung up with some of the request unread; its answer before that stands.
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset && !answer.is_empty() => break,
            Err(error) => return Err(error),
        }
        if answer.len() > ANSWER_BYTES_MAX {
            return Err(io::Error::other("its answer has no end"));
        }
    }
    Ok(answer)
}

/// Why there is no answer.
#[derive(Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The wire refused, with this message.
    Said(String),
    /// Nobody answered, or with a line that is not an answer of any version. What was asked for may be done all the same.
    Unclear(String),
}

impl From<Refusal> for String {
    fn from(refusal: Refusal) -> String {
        match refusal {
            Refusal::Said(why) | Refusal::Unclear(why) => why,
        }
    }
}

/// The content of an answer, of any version.
pub fn understood(line: &[u8]) -> Result<Value, Refusal> {
    answered(line).map(|(_, answer)| answer)
}

/// The version and the content of an answer.
fn answered(line: &[u8]) -> Result<(u64, Value), Refusal> {
    let mut reply: Value =
        serde_json::from_slice(line).map_err(|error| Refusal::Unclear(format!("not an answer: {error}")))?;
    let version = reply["version"].as_u64().unwrap_or(1);
    match reply["error"].as_str() {
        Some(error) if version != VERSION && error.starts_with("not a request") => {
            Err(Refusal::Said(format!(
                "it was started by another version of weir (its protocol is {version}, this one's {VERSION}) and does \
                 not know this: start it anew ({error})"
            )))
        }
        Some(error) => Err(Refusal::Said(error.to_string())),
        None => match reply.get_mut("ok") {
            Some(ok) => Ok((version, ok.take())),
            None => Err(Refusal::Unclear("neither an answer nor an error".into())),
        },
    }
}

/// The file and the ports that the wire or topology of this name runs.
pub fn running(name: &str) -> Result<Running, String> {
    running_at(&Control::path_of(name))
}

/// The file and the ports of whoever listens at `path`.
///
/// # Errors
/// If nobody answers there, or not in time, or with something else.
pub fn running_at(path: &Path) -> Result<Running, String> {
    serde_json::from_value(ask(path, &Command::Show)?).map_err(|error| not_told(path, &error))
}

/// Changes the topology of this name to a file, or only says the changes: port by port.
pub fn apply(name: &str, file: ApplyFile) -> Result<Vec<AppliedPort>, Refusal> {
    let path = Control::path_of(name);
    let (_, answer) = ask_whoever(&path, &Command::Apply(file))?;
    serde_json::from_value(answer).map_err(|error| Refusal::Unclear(not_told(&path, &error)))
}

fn not_told(path: &Path, error: &serde_json::Error) -> String {
    format!("{}: it answered something else: {error}", path.display())
}

/// The names of the wires that are up, and of those that were killed and are not mended.
pub fn names() -> Vec<String> {
    sockets("sock").iter().filter_map(|path| name_of(path)).collect()
}

/// The names `first`, and then the same with a number behind it: 2, 3, and so on. A socket that is named after its interface gets the first
/// of these that is free.
pub fn names_from(first: &str) -> impl Iterator<Item = String> {
    std::iter::once(first.to_string()).chain((2..).map(move |number: u64| format!("{first}.{number}")))
}

/// Returns whether a name is one of [`names_from`] the `first`.
pub fn is_name_from(name: &str, first: &str) -> bool {
    let number = || name.strip_prefix(first)?.strip_prefix('.')?.parse::<u64>().ok();
    name == first || number().is_some_and(|number| number >= 2)
}

fn name_of(path: &Path) -> Option<String> {
    Some(path.file_stem()?.to_string_lossy().into_owned())
}

/// Removes the sockets of wires that were killed together with their guardians, and of those that were killed while they waited or started;
/// the names.
pub fn remove_left() -> Vec<String> {
    let sockets = sockets("sock").into_iter().chain(sockets("waiting"));
    sockets.filter(|path| remove_if_left(path)).filter_map(|path| name_of(&path)).collect()
}

/// The sentence on a wire at whose socket nobody listens any more.
fn killed(path: &Path) -> String {
    let commands: Vec<_> = left::all().into_iter().map(|left| format!("`{}`", left.command)).collect();
    let remedy = match &commands[..] {
        [] => "`weir mend`, with its interfaces, puts right what it left".to_string(),
        [only] => format!("{only} puts right what is left"),
        _ => format!("{} put right what is left", commands.join(" and ")),
    };
    format!(
        "{} was killed together with its guardian: {remedy}",
        path.file_stem().unwrap_or_default().display()
    )
}

/// Connects, to see whether somebody listens there. One whose clients are too many already is not waited for: `WouldBlock`.
fn reached(path: &Path) -> io::Result<()> {
    sys::connect_unix(path, 0).map(drop)
}

/// Returns whether a wire left its socket for good: not one whose guardian is about to remove it, nor one that is just being made.
fn is_left(path: &Path, until_ns: u64) -> bool {
    loop {
        let refused = |error: io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
        if !reached(path).is_err_and(refused) {
            return false;
        }
        if now_ns() >= until_ns {
            return true;
        }
        sleep(Duration::from_millis(10));
    }
}

/// Returns whether a wire that was killed has left its socket for good: its guardian has had its time to put everything back, which removes the
/// socket last.
pub fn is_left_for_good(name: &str) -> bool {
    is_left(&Control::path_of(name), mending_ns())
}

/// Until when a guardian may take to remove the socket of a wire that was killed.
fn mending_ns() -> u64 {
    now_ns() + 1_000_000_000
}

/// Removes a socket if a wire left it at which nobody listens; whether it did. Only root can, and a wire that is just making its socket
/// has the lock.
fn remove_if_left(path: &Path) -> bool {
    let is_refused = || reached(path).is_err_and(|e| e.kind() == io::ErrorKind::ConnectionRefused);
    is_socket(path) && is_refused() && {
        let lock = Lock::try_take();
        lock.is_some() && is_refused() && std::fs::remove_file(path).is_ok()
    }
}

/// Returns whether this is a socket, and no link to one.
pub fn is_socket(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok_and(|about| about.file_type().is_socket())
}

/// The paths of the sockets with this extension, at which wires listen, or did.
fn sockets(extension: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(DIRECTORY).into_iter().flatten();
    let mut paths: Vec<_> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|its| its == extension) && is_socket(path))
        .collect();
    paths.sort();
    paths
}

/// Returns whether nobody listens there; a wire that may not be asked is one that is up.
fn has_gone(path: &Path) -> bool {
    reached(path).is_err_and(|error| is_of_nobody(&error))
}

/// Returns whether nobody listens where a connection failed so. A path that is too long for a socket is an invalid input.
fn is_of_nobody(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound | io::ErrorKind::InvalidInput
    )
}

/// The first of [`names_from`] that nothing is up as, and that is not `is_used` otherwise.
///
/// # Errors
/// If nobody can be asked, for want of descriptors or memory.
pub fn free_name(first: &str, is_used: impl Fn(&str) -> bool) -> io::Result<String> {
    for name in names_from(first).filter(|name| !is_used(name)) {
        match reached(&Control::path_of(&name)) {
            Err(error) if is_of_nobody(&error) => return Ok(name),
            Err(error) if sys::is_shortage(&error) => return Err(error),
            _ => {}
        }
    }
    unreachable!("numbers have no end")
}

/// Returns whether somebody listens there.
pub fn is_up(path: &Path) -> bool {
    !has_gone(path)
}

/// The counters of one wire or topology.
pub fn stat(name: &str) -> Result<Snapshot, String> {
    let path = Control::path_of(name);
    // Where nobody listens, a guardian has had its time to remove the socket after this.
    is_left(&path, mending_ns());
    read(&path)
}

/// The answer of what is called so and is not up yet: the interfaces that it waits for.
pub fn stat_waiting(name: &str) -> Result<Snapshot, String> {
    read(&Control::waiting_path_of(name))
}

fn read(path: &Path) -> Result<Snapshot, String> {
    let (version, answer) = ask_whoever(path, &Command::Stat)?;
    counters(path, version, answer)
}

/// The counters that the wire at `path` answered with, in this version.
fn counters(path: &Path, version: u64, answer: Value) -> Result<Snapshot, String> {
    let told = Snapshot::of_answer(answer).map(|snapshot| Snapshot { version, ..snapshot });
    told.map_err(|error| {
        format!(
            "{} counts in another way than this version of weir ({error}): ask it with the weir that it was started by",
            path.display()
        )
    })
}

/// The answers of one wire or of many to a request for counters.
#[derive(Default)]
pub struct Answers {
    /// The counters of all that could be read.
    pub all: Snapshot,
    /// The reasons why others could not be read.
    pub unread: Vec<String>,
    /// Counters of one of them that do not add up, or cannot be proven, in a sentence each.
    pub faults: Vec<String>,
    /// The books of those in which all counters add up.
    pub proven: Books,
}

impl Answers {
    /// Adds one answer. Each is checked by itself, so that one never hides another, and one that does not add up is named.
    pub fn add(&mut self, told: Result<Snapshot, String>) {
        let snapshot = match told {
            Ok(snapshot) => snapshot,
            Err(error) => return self.unread.push(error),
        };
        let faults = snapshot.check();
        match faults.is_empty() {
            true => self.proven.merge(&snapshot.totals),
            // A later version may count things that this one does not know.
            false if snapshot.version > VERSION => self.faults.push(format!(
                "{}: it was started by a later version of weir (its protocol is {}, this one's {VERSION}), whose counters this one \
                 cannot prove: ask it with that one",
                snapshot.names(),
                snapshot.version
            )),
            false => self.faults.extend(faults),
        }
        self.all.merge(snapshot);
    }

    /// Adds what was not up yet, but for those that have come up since.
    pub fn add_waiting(&mut self, waiting: Answers) {
        let is_up: BTreeSet<_> = self.all.each().map(|(_, stats, _)| stats.name.clone()).collect();
        let not_up = waiting.all.waiting.into_iter().filter(|(name, _)| !is_up.contains(name));
        self.all.waiting.extend(not_up);
        self.unread.extend(waiting.unread);
    }
}

/// The counters of every wire and topology that is up and answers, and why others do not.
pub fn stat_all() -> Answers {
    let until_ns = mending_ns();
    let told = sockets("sock").into_iter().filter_map(|path| match read(&path) {
        Err(_) if is_left(&path, until_ns) => Some(Err(killed(&path))),
        // The wire went down while it was being asked.
        Err(error) if Crew::is_going_down(&error) || has_gone(&path) => None,
        told => Some(told),
    });
    let mut answers = Answers::default();
    told.for_each(|told| answers.add(told));
    answers
}

/// Everything that is not up yet, and why some do not answer. To be asked for before [`stat_all`]: what comes up meanwhile listens there
/// before it ends to listen here.
pub fn stat_all_waiting() -> Answers {
    let mut answers = Answers::default();
    // One that was killed left its socket to the next of its name.
    for path in sockets("waiting").into_iter().filter(|path| !has_gone(path)) {
        match read(&path) {
            Err(_) if has_gone(&path) => {}
            Err(why) => {
                let name = name_of(&path).unwrap_or_default();
                answers.unread.push(format!("{name} is not up yet: {why}"));
            }
            told => answers.add(told),
        }
    }
    answers
}

#[cfg(test)]
#[path = "control/tests.rs"]
mod tests;
