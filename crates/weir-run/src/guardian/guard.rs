//! The guardian's own side: it keeps records while the main process is well, and undoes them when it is not.
//!
//! It is one thread, and everything that undoing needs is there before: descriptors in reserve, the program and the io_uring that release
//! senders, namespaces and holds by descriptor. So it can undo where no process id, no file and no descriptor is to be had.
//!
//! Rule: a record that fails to be undone is tried again, ever more rarely, for ten minutes; after a second the main process, if it is
//! there, and the system log are told.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;

use weir_port::channel::Channel;
use weir_port::confinement;
use weir_port::job::Job;
use weir_port::release::Means;
use weir_port::sys;
use weir_port::undo::{Undo, UndoRecord};
use weir_port::witness::Witness;
use weir_port::{Doing, PortError};

use super::{Answer, Note, Request, journal, read_record};
use crate::clock::now_ns;

/// The pause between two looks at the main process and the namespaces, in nanoseconds.
const LOOK_NS: u64 = 250_000_000;
/// The number of looks in a row that find the main process stopped before it is killed.
const STOPPED_LOOKS: u32 = 2;
/// Descriptors in reserve: a program and its link, a socket or two, and some.
const SPARE_DESCRIPTORS: usize = 16;
const TELL_AFTER_NS: u64 = 1_000_000_000;
const GIVE_UP_NS: u64 = 600_000_000_000;
const PAUSE_NS_MIN: u64 = 20_000_000;
const PAUSE_NS_MAX: u64 = 10_000_000_000;

/// Keeps records until the end of requests, then undoes them. Returns whether all could be put back.
pub fn guard(watch_namespaces: bool) -> bool {
    // A Ctrl-C at the terminal is meant for the main process, whose end is what matters here.
    sys::leave_terminal();
    // Failing, it puts everything back all the same; the main process, for which it fails too, says so.
    let _ = confinement::leave_no_core_dump();
    let _ = confinement::shed_as_guardian().and_then(|()| confinement::seal());
    sys::set_name(c"weir-guardian");
    let spare: Vec<File> = (0..SPARE_DESCRIPTORS).filter_map(|_| File::open("/dev/null").ok()).collect();
    // SAFETY: the first two descriptors are what this process was started with, and nothing else here uses them.
    let [requests, notes] = [0, 1].map(|fd| Channel::from_fd(unsafe { OwnedFd::from_raw_fd(fd) }));
    let null = OpenOptions::new().write(true).open("/dev/null");
    let mut means = Means::new();
    let mut main = Main::new();
    let records = keep(&requests, &notes, &mut main, &mut means, watch_namespaces);
    records.iter().for_each(UndoRecord::note_undone);
    drop(spare);
    let mut is_late = false;
    let is_done = put_back(records, &mut means, &mut |faults| {
        is_late = true;
        // First, as whoever is told may wait for the end of a pipe.
        null.iter().for_each(|null| sys::leave_standard_error(null.as_fd()));
        // The main process may be there no more.
        let _ = requests.send(&encoded(&Answer::Faults(faults.to_vec())), &[]);
        for fault in faults {
            journal::write(&format!("while putting things back: {fault}; it is tried again"));
        }
        true
    });
    if is_done && is_late {
        journal::write("everything is put back now");
    } else if is_done {
        let _ = requests.send(&encoded(&Answer::Done), &[]);
    }
    is_done
}

fn encoded<T: serde::Serialize>(message: &T) -> Vec<u8> {
    // Only maps with keys that are no text cannot be written, and there are none.
    serde_json::to_vec(message).unwrap_or_default()
}

/// Answers requests until they end.
fn keep(
    requests: &Channel,
    notes: &Channel,
    main: &mut Main,
    means: &mut Means,
    watch_namespaces: bool,
) -> Vec<UndoRecord> {
    let mut records: Vec<UndoRecord> = Vec::new();
    let mut witnesses: Vec<(u64, Witness)> = Vec::new();
    let mut looked_ns = now_ns();
    loop {
        match requests.is_readable(LOOK_NS) {
            Ok(false) => {}
            Ok(true) => {
                let read = match requests.receive() {
                    Ok(Some((bytes, descriptors))) => read_request(&bytes, descriptors),
                    Ok(None) => return records,
                    // One request less: those before it stay recorded, and the main process goes on without this change.
                    Err(error) if is_of_message(&error) => {
                        Err(PortError::Kernel { doing: "receiving a record".into(), source: error })
                    }
                    Err(_) => return records,
                };
                let answer = match read {
                    Ok(Read::PutBack(interfaces)) => {
                        put_back_of(&interfaces, &mut records, means);
                        witnesses.retain(|(inode, _)| is_of_any(&records, *inode));
                        Answer::Kept
                    }
                    Ok(Read::Forget(interfaces)) => {
                        let left = records.extract_if(.., |record| record.is_of(&interfaces));
                        left.for_each(UndoRecord::forget);
                        witnesses.retain(|(inode, _)| is_of_any(&records, *inode));
                        Answer::Kept
                    }
                    Ok(Read::Record(record)) => {
                        if watch_namespaces
                            && witnesses.iter().all(|(inode, _)| *inode != record.netns.inode())
                        {
                            let own = [std::process::id(), main.id];
                            let witness = Witness::new(&record.netns, &own);
                            witnesses.extend(witness.map(|witness| (record.netns.inode(), witness)));
                        }
                        records.push(record);
                        Answer::Kept
                    }
                    Err(error) => Answer::Refused(error.to_string()),
                };
                if requests.send(&encoded(&answer), &[]).is_err() {
                    return records;
                }
            }
            Err(_) => return records,
        }
        if now_ns() - looked_ns < LOOK_NS {
            continue;
        }
        looked_ns = now_ns();
        if records.iter().any(|record| record.undo.holds_senders()) {
            main.look();
        }
        witnesses.retain_mut(|(inode, witness)| {
            let is_kept = witness.is_there();
            if !is_kept {
                // Told once; if nobody listens, the main process is about to end anyway.
                let _ = notes.send(&encoded(&Note::Deserted(*inode)), &[]);
            }
            is_kept
        });
    }
}

/// Returns whether a message came and could not be taken whole, for want of descriptors or room; otherwise none came.
fn is_of_message(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EMFILE) || error.kind() == io::ErrorKind::InvalidData
}

/// A request as it was read.
enum Read {
    Record(UndoRecord),
    PutBack(Vec<(u64, u32)>),
    Forget(Vec<(u64, u32)>),
}

fn read_request(bytes: &[u8], descriptors: Vec<OwnedFd>) -> weir_port::Result<Read> {
    let request = serde_json::from_slice(bytes).map_err(io::Error::from);
    Ok(match request.doing(|| "reading a request".into())? {
        Request::PutBack { interfaces } => Read::PutBack(interfaces),
        Request::Forget { interfaces } => Read::Forget(interfaces),
        Request::Record { undo, hold } => Read::Record(read_record(undo, hold, descriptors)?),
    })
}

/// Undoes the records of these interfaces, which are gone, in reverse order. A record that fails stays, to be undone with all others.
fn put_back_of(interfaces: &[(u64, u32)], records: &mut Vec<UndoRecord>, means: &mut Means) {
    let mut held = Held::default();
    for at in (0..records.len()).rev() {
        if records[at].is_of(interfaces)
            && held.put_back(&mut records[at], means).is_ok_and(|is_done| is_done)
        {
            records.remove(at);
        }
    }
    // The next owner of such an interface finds no program there.
    means.end();
}

fn is_of_any(records: &[UndoRecord], namespace: u64) -> bool {
    records.iter().any(|record| record.netns.inode() == namespace)
}

/// The interfaces whose senders could not be let go yet: nobody else is to have their receive queues.
#[derive(Default)]
struct Held(Vec<(u64, u32)>);

impl Held {
    /// Undoes one record, of which later ones come first; false if it is left, as the hold on such queues is.
    fn put_back(&mut self, record: &mut UndoRecord, means: &mut Means) -> weir_port::Result<bool> {
        if matches!(record.undo, Undo::Hold) && record.is_of(&self.0) {
            return Ok(false);
        }
        let put_back = record.put_back(means);
        if let (Err(_), Undo::Queues { ifindex, .. }) = (&put_back, &record.undo) {
            self.0.push((record.netns.inode(), *ifindex));
        }
        put_back.map(|()| true)
    }
}

/// Undoes records in reverse order, and again those that failed, until all are done. Returns whether they are. `tell` is told once of those
/// that fail for long, and says whether to go on.
pub(super) fn put_back(
    records: Vec<UndoRecord>,
    means: &mut Means,
    tell: &mut dyn FnMut(&[String]) -> bool,
) -> bool {
    let mut left: Vec<UndoRecord> = records.into_iter().rev().collect();
    let began_ns = now_ns();
    let mut pause_ns = PAUSE_NS_MIN;
    let mut is_told = false;
    loop {
        let (mut faults, mut held) = (Vec::new(), Held::default());
        left.retain_mut(|record| {
            let put_back = held.put_back(record, means).map_err(|error| faults.push(error.to_string()));
            !put_back.unwrap_or(false)
        });
        if left.is_empty() {
            means.end();
            return true;
        }
        let since_ns = now_ns() - began_ns;
        if since_ns > TELL_AFTER_NS && !is_told {
            is_told = true;
            if !tell(&faults) {
                return false;
            }
        }
        if since_ns > GIVE_UP_NS {
            faults.iter().for_each(|fault| journal::write(&format!("given up putting things back: {fault}")));
            return false;
        }
        // A pause that a signal cuts short does no harm.
        let _ = sys::poll(&mut [], Some(pause_ns));
        pause_ns = (pause_ns * 2).min(PAUSE_NS_MAX);
    }
}

/// The main process, as its guardian sees it.
struct Main {
    id: u32,
    process: io::Result<OwnedFd>,
    stat: io::Result<File>,
    stopped_looks: u32,
}

impl Main {
    fn new() -> Main {
        let id = std::os::unix::process::parent_id();
        let stat = File::open(format!("/proc/{id}/stat"));
        Main { id, process: sys::pidfd(id), stat, stopped_looks: 0 }
    }

    /// Kills it if it stands: its queues are polled by nobody then, and everybody behind them is held.
    fn look(&mut self) {
        let is_stopped = self.stat.as_ref().is_ok_and(is_stopped);
        self.stopped_looks = if is_stopped { self.stopped_looks + 1 } else { 0 };
        if self.stopped_looks >= STOPPED_LOOKS
            && let Ok(process) = &self.process
            && sys::pidfd_signal(process.as_fd(), libc::SIGKILL).is_ok()
        {
            journal::write(&format!(
                "process {} was stopped (SIGSTOP), so that everybody behind its queues was held: it has been killed, and what it changed \
                 is put back",
                self.id
            ));
            self.stopped_looks = 0;
        }
    }
}

/// Returns whether the process of this `/proc/PID/stat` is stopped by a signal.
fn is_stopped(stat: &File) -> bool {
    let mut bytes = [0; 512];
    let length = stat.read_at(&mut bytes, 0).unwrap_or(0);
    Job::parse(&bytes[..length]).is_some_and(|job| job.is_stopped)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;
    use std::thread;

    use weir_port::channel::MESSAGE_BYTES_MAX;

    use weir_port::features::{self, TagInsertion};
    use weir_port::netns::NetNs;
    use weir_port::veth::{self, VethEnd};

    use super::*;

    /// Another interface may have the number of the one that has left.
    #[test]
    fn what_was_changed_in_a_place_that_was_left_is_forgotten_and_not_put_back() {
        if !sys::is_root() {
            return;
        }
        // The namespace is this thread's alone, and goes with it.
        let told = thread::spawn(|| {
            let here = NetNs::unshare().unwrap();
            let [near, far] = [c"near", c"far"].map(|name| VethEnd { name, address: None });
            let (link, _) = veth::create(&near, &far, &here, 1).unwrap();
            let (ours, guardians) = Channel::pair().unwrap();
            let (notes, _) = Channel::pair().unwrap();
            let guarding = thread::spawn(move || {
                keep(&guardians, &notes, &mut Main::new(), &mut Means::new(), false).len()
            });
            let ask = |request: &Request, descriptors: &[_]| {
                ours.send(&encoded(request), descriptors).unwrap();
                let (bytes, _) = ours.receive().unwrap().expect("the guardian has ended");
                assert!(matches!(serde_json::from_slice(&bytes).unwrap(), Answer::Kept));
            };
            let interfaces = vec![(here.inode(), link.ifindex)];
            let mut seen = Vec::new();
            for end in [
                Request::Forget { interfaces: interfaces.clone() },
                Request::PutBack { interfaces: interfaces.clone() },
            ] {
                let undo = Undo::TagInsertion { ifindex: link.ifindex, features: TagInsertion::ALL.to_vec() };
                ask(&Request::Record { undo, hold: None }, &[here.as_fd()]);
                features::switch(link.ifindex, &TagInsertion::ALL, false).unwrap();
                ask(&end, &[]);
                seen.push(features::offloads(&link).unwrap().tag_insertions);
            }
            drop(ours);
            (seen, guarding.join().unwrap())
        });
        let (seen, left) = told.join().unwrap();
        assert_eq!(seen, [Vec::new(), TagInsertion::ALL.to_vec()]);
        assert_eq!(left, 0);
    }

    #[test]
    fn a_request_that_cannot_be_received_is_refused_and_the_next_is_kept() {
        let (ours, guardians) = Channel::pair().unwrap();
        let (notes, _) = Channel::pair().unwrap();
        let guarding =
            thread::spawn(move || keep(&guardians, &notes, &mut Main::new(), &mut Means::new(), false).len());
        let answer = || {
            assert!(ours.is_readable(10_000_000_000).unwrap(), "it does not answer");
            serde_json::from_slice(&ours.receive().unwrap().expect("the guardian has ended").0).unwrap()
        };
        let long = vec![b' '; MESSAGE_BYTES_MAX + 1];
        // SAFETY: the bytes are alive for the call, and only read.
        let sent = unsafe { libc::send(ours.as_fd().as_raw_fd(), long.as_ptr().cast(), long.len(), 0) };
        assert_eq!(sent, long.len() as isize);
        assert!(matches!(answer(), Answer::Refused(why) if why.contains("too long")));
        ours.send(&encoded(&Request::PutBack { interfaces: Vec::new() }), &[]).unwrap();
        assert!(matches!(answer(), Answer::Kept));
        drop(ours);
        assert_eq!(guarding.join().unwrap(), 0);
    }
}
