//! The guardian: a small process that outlives a crash of the main one and puts the machine back as it was.
//!
//! The main process tells it of each change *before* making it and waits for its answer; the namespace of the change goes along as a
//! descriptor, and so does the hold on the thing that is changed ([`weir_port::hold`]). So the guardian has all that it needs when the
//! other is gone:
//!
//! ```text
//! requests   {"record": {"undo": {"qdisc": {...}}, "hold": "/run/weir/holds/..."}} + 2 descriptors   ->  "kept"
//!            {"put-back": {"interfaces": [[NAMESPACE, NUMBER], ...]}}, of one that is gone        ->  "kept"
//!            {"forget": {"interfaces": [[NAMESPACE, NUMBER], ...]}}, of one that has left that place  ->  "kept"
//!            end of messages                                                            ->  "done", or faults
//! notes                                                                                 <-  {"deserted": NAMESPACE}
//! ```
//!
//! When the requests end, because the main process ended them or died, it undoes everything in reverse order and ends. There is no other
//! way of putting things back, so the way that a crash takes is the way that every exit takes. The tasks of each side:
//!
//! | happens | guardian | main process |
//! |---|---|---|
//! | main process killed | puts everything back | - |
//! | main process stopped (SIGSTOP) | kills it within a second, if it has queues, which stand | - |
//! | guardian killed | - | ends, and puts everything back itself |
//! | guardian stopped | - | goes on; lets it continue at the end |
//! | a namespace has nobody but weir | says so | ends, so that it can go |
//! | both killed | - | the next weir on the same interfaces, or `weir mend`, puts back what the holds say |
//!
//! Owner: of the records both, of the holds the one that is left. Limits: one that is frozen by its control group or held by a debugger
//! does not count as stopped.

mod guard;
mod journal;
mod requests;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde::{Deserialize, Serialize};
use weir_port::channel::Channel;
use weir_port::hold::{Hold, Owner};
use weir_port::link::Link;
use weir_port::netns::NetNs;
use weir_port::release::Means;
use weir_port::undo::{Keeper, Undo, UndoRecord};
use weir_port::{Doing, PortError};

pub use guard::guard;
use requests::Requests;

/// The time after which a guardian that does not answer is taken for stopped, in nanoseconds.
const STOPPED_NS: u64 = 2_000_000_000;
/// The time after that when it is taken for dead: workers in real time leave the other programs of a busy machine little.
const DEAD_NS: u64 = 8_000_000_000;

/// A request of the main process.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Request {
    /// Keep this record.
    Record { undo: Undo, hold: Option<PathBuf> },
    /// Put back the records of these interfaces.
    PutBack { interfaces: Vec<(u64, u32)> },
    /// Drop the records of these interfaces, and put nothing back.
    Forget { interfaces: Vec<(u64, u32)> },
}

/// An answer of the guardian.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Answer {
    /// The change is recorded.
    Kept,
    /// The change is not recorded, and why.
    Refused(String),
    /// Changes that could not be put back yet and are tried again, a sentence each.
    Faults(Vec<String>),
    /// Everything was put back.
    Done,
}

/// A notice of the guardian.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Note {
    /// Nobody but weir keeps the namespace of this number alive.
    Deserted(u64),
}

/// The main process's side.
pub struct Guardian {
    child: Child,
    requests: Requests,
    notes: Option<Channel>,
    /// The records, for the case that the guardian dies first.
    records: Vec<UndoRecord>,
    /// An interface of each namespace, by the namespace's number.
    names: Vec<(u64, String)>,
    say: fn(&str),
}

/// An event for which a main process must end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// The guardian has ended.
    Unguarded,
    /// The namespace of this number is kept alive by weir alone.
    Deserted(u64),
}

impl Guardian {
    /// Starts `program guardian`, which must call [`guard`]; `say` tells the user why something takes long. Namespaces are watched
    /// unless they are our own to keep.
    pub fn start(program: &Path, watch_namespaces: bool, say: fn(&str)) -> weir_port::Result<Guardian> {
        let start = || -> io::Result<Guardian> {
            let (requests, its_requests) = Channel::pair()?;
            let (notes, its_notes) = Channel::pair()?;
            let mut command = Command::new(program);
            command.arg0("weir").arg("guardian");
            if watch_namespaces {
                command.arg("--watch-namespaces");
            }
            command.stdin(Stdio::from(its_requests.into_fd())).stdout(Stdio::from(its_notes.into_fd()));
            let child = command.spawn()?;
            let requests = Requests::new(requests);
            Ok(Guardian { child, requests, notes: Some(notes), records: Vec::new(), names: Vec::new(), say })
        };
        start().doing(|| "starting the guardian, the process that cleans up after a crash".into())
    }

    /// The notices to wait for trouble by, on a thread of their own; only the first call gets them.
    pub fn watch(&mut self) -> Option<Notices> {
        self.notes.take().map(|notes| Notices { notes })
    }

    /// An interface that was changed in the namespace of this number, as it was called then.
    pub fn interface_of(&self, namespace: u64) -> Option<&str> {
        self.names.iter().find(|(inode, _)| *inode == namespace).map(|(_, name)| name.as_str())
    }

    /// Says that everything is about to be put back, so that a process that wants an interface waits and is not refused.
    pub fn announce_end(&self) {
        for record in self.records.iter().filter(|record| record.undo == Undo::Hold) {
            record.hold.iter().for_each(Hold::note_undone);
        }
    }

    /// Puts everything back and waits until that is done. Returns what could not be put back, a sentence each.
    pub fn finish(mut self) -> Vec<String> {
        self.announce_end();
        proceed(&self.child);
        let answers = self.requests.end();
        while let Ok(Some((bytes, _))) = answers.receive() {
            match serde_json::from_slice(&bytes) {
                Ok(Answer::Faults(faults)) => {
                    let id = self.child.id();
                    let still = format!("it is tried again, by process {id}, which tells the system log");
                    return faults.into_iter().map(|fault| format!("{fault}; {still}")).collect();
                }
                Ok(Answer::Done) => {
                    // The guardian is about to end, and its status says nothing more.
                    let _ = self.child.wait();
                    return Vec::new();
                }
                _ => {}
            }
        }
        // The guardian was killed.
        let _ = self.child.wait();
        let mut left = Vec::new();
        guard::put_back(std::mem::take(&mut self.records), &mut Means::new(), &mut |faults| {
            left.extend_from_slice(faults);
            false
        });
        left
    }

    fn tell(&mut self, netns: &NetNs, undo: &Undo, hold: Option<&Hold>) -> io::Result<()> {
        let request =
            Request::Record { undo: undo.clone(), hold: hold.map(|hold| hold.path().to_path_buf()) };
        let mut descriptors = vec![netns.as_fd()];
        descriptors.extend(hold.map(|hold| hold.file().as_fd()));
        self.ask(&request, &descriptors)
    }

    fn ask(&mut self, request: &Request, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let Guardian { requests, child, .. } = self;
        requests.ask(request, descriptors, |channel| {
            if channel.is_readable(STOPPED_NS)? {
                return Ok(true);
            }
            proceed(child);
            channel.is_readable(DEAD_NS)
        })
    }
}

/// Lets the guardian go on if somebody has stopped it.
fn proceed(child: &Child) {
    // SAFETY: takes no pointers. The child has not been reaped, so the number is still its own.
    unsafe { libc::kill(child.id() as libc::pid_t, libc::SIGCONT) };
}

impl Keeper for Guardian {
    fn record(&mut self, netns: &NetNs, undo: Undo, mut hold: Option<Hold>) -> weir_port::Result<()> {
        let told = self.tell(netns, &undo, hold.as_ref());
        // A guardian that did not answer in time may have the hold all the same, and put back what it says.
        if told.as_ref().err().is_none_or(|error| error.kind() == io::ErrorKind::TimedOut) {
            hold.iter_mut().for_each(Hold::hand_on);
        }
        told.doing(|| "telling the guardian what to put back".into())?;
        if let Undo::Qdisc { ifindex, .. } = undo
            && let Ok(link) = netns.run(|| Link::by_index(ifindex))
        {
            self.names.push((netns.inode(), link.name));
        }
        self.records.push(UndoRecord { netns: netns.try_clone()?, undo, hold });
        Ok(())
    }

    fn put_back(&mut self, interfaces: &[(u64, u32)]) -> weir_port::Result<()> {
        let request = Request::PutBack { interfaces: interfaces.to_vec() };
        self.ask(&request, &[]).doing(|| "telling the guardian to put back what was a port's".into())?;
        self.records.retain(|record| !record.is_of(interfaces));
        Ok(())
    }

    fn forget(&mut self, interfaces: &[(u64, u32)]) -> weir_port::Result<()> {
        let request = Request::Forget { interfaces: interfaces.to_vec() };
        self.ask(&request, &[]).doing(|| "telling the guardian to forget a place that was left".into())?;
        self.records.retain(|record| !record.is_of(interfaces));
        Ok(())
    }

    fn owner(&self) -> Option<Owner> {
        Some(Owner::this(Some(self.child.id())))
    }

    fn deletes(&self, netns: &NetNs, ifindex: u32) -> bool {
        let deletes = |undo: &Undo| matches!(undo, Undo::Link { ifindex: own, .. } if *own == ifindex);
        self.records.iter().any(|record| record.netns.is(netns) && deletes(&record.undo))
    }

    fn say(&mut self, text: &str) {
        (self.say)(text);
    }
}

/// The notices of the guardian, to wait for trouble by.
pub struct Notices {
    notes: Channel,
}

impl Notices {
    /// Waits for trouble and returns it.
    pub fn wait(&self) -> Trouble {
        loop {
            let Ok(Some((bytes, _))) = self.notes.receive() else { return Trouble::Unguarded };
            if let Ok(Note::Deserted(inode)) = serde_json::from_slice(&bytes) {
                return Trouble::Deserted(inode);
            }
        }
    }
}

/// A record as it arrives, checked.
fn read_record(
    undo: Undo,
    hold: Option<PathBuf>,
    mut descriptors: Vec<OwnedFd>,
) -> weir_port::Result<UndoRecord> {
    let doing = || "reading a record".to_string();
    let hold = match (hold, descriptors.len()) {
        (Some(path), 2) => {
            let file = descriptors.pop().ok_or(io::ErrorKind::InvalidData).doing(doing)?;
            Some(Hold::from_parts(file.into(), path).doing(doing)?)
        }
        (None, 1) => None,
        _ => return Err(PortError::Kernel { doing: doing(), source: io::ErrorKind::InvalidData.into() }),
    };
    let namespace = descriptors.pop().ok_or(io::ErrorKind::InvalidData).doing(doing)?;
    undo.check().doing(doing)?;
    Ok(UndoRecord { netns: NetNs::from_fd(namespace)?, undo, hold })
}
