//! The guardian of a command's changes, and the events of the command: signals, the guardian's end, news of interfaces.
//!
//! Rule: from [`Guarded::start`] on, until everything is put back, a signal is an event and no longer the end of the process, so nothing that is said may hold it up;
//! however it ends, [`Guarded::finish`] puts everything back. Owner: the main thread; the watcher of a wire's interfaces shares the
//! guardian, to tell it of changes.

use std::io;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use weir_port::signals::{Received, Signals};
use weir_port::{PortError, confinement};
use weir_run::guardian::{Guardian, Trouble};
use weir_run::watcher::News;

use crate::{Failure, output};

/// An event that can end a session or concerns it.
pub enum SessionEvent {
    /// A signal arrived.
    Signal(Received),
    /// The worker ended by itself.
    WorkerEnded,
    /// The session can no longer go on safely.
    Trouble(Trouble),
    /// News of the wire's interfaces.
    News(News),
    /// Somebody asked it to end, by its control socket.
    AskedToEnd,
    /// A signal, which this is, stopped the program of `weir run`.
    ProgramStopped(i32),
    /// The program of `weir run` ended.
    ProgramEnded,
}

/// The makers of the namespaces that are changed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Namespaces {
    /// Made by others, and kept only as long as others keep them.
    Others,
    /// Made for this session.
    Ours,
}

/// Starts the process that puts everything back.
pub fn guardian(namespaces: Namespaces) -> Result<Guardian, Failure> {
    if !weir_port::sys::is_root() {
        return Err(PortError::NotRoot { doing: "taking interfaces over".into() }.into());
    }
    let say = |text: &str| output::say(format_args!("weir: {text}"));
    // This path is this program, also when its file has been replaced.
    Ok(Guardian::start(Path::new("/proc/self/exe"), namespaces == Namespaces::Others, say)?)
}

/// Keeps packets and keys out of core dumps, and gives up the rights that are not needed, of this thread and those it starts, and the calls
/// that no thread of this process ever makes. A failure is said, and the command goes on with these rights.
pub fn confine() {
    confinement::leave_no_core_dump().unwrap_or_else(output::warn);
    if let Err(fault) = confinement::shed().and_then(|()| confinement::seal()) {
        output::warn(format_args!("going on with more rights than are needed: {fault}"));
    }
}

/// A thread for as long as the process lives, or less, which has no more rights than it needs.
pub fn spawn<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    std::thread::Builder::new().name(name.into()).spawn(|| {
        // Failing, it fails for the main thread as well, which says so.
        let _ = confinement::shed();
        work()
    })
}

/// The reason why the command with this guardian ends for a trouble.
pub fn explain(trouble: Trouble, guardian: &Guardian) -> String {
    match trouble {
        Trouble::Unguarded => {
            "its guardian, the process that cleans up after a crash, was killed: it has ended and put everything back itself".into()
        }
        Trouble::Deserted(inode) => {
            let of = guardian.interface_of(inode).map_or(String::new(), |name| format!(" of {name}"));
            format!("the network namespace{of} was deleted, and only weir still kept it: it has ended and let it go")
        }
    }
}

/// Says why Ctrl-Z does nothing.
pub fn say_unstoppable() {
    output::say(
        "weir: it cannot be stopped (Ctrl-Z), because everybody behind it would stand: Ctrl-C ends it",
    );
}

/// Puts everything back after a failure on the way up, and hands that on.
pub fn give_up(guardian: Guardian, failure: Failure) -> Failure {
    for fault in guardian.finish() {
        output::say(format_args!("weir: while putting things back: {fault}"));
    }
    failure
}

/// A guardian that is watched, and the events of the command that has it.
pub struct Guarded {
    guardian: Arc<Mutex<Guardian>>,
    events: Receiver<SessionEvent>,
    sender: Sender<SessionEvent>,
}

impl Guarded {
    /// Makes events of `signals`. First of all that starts threads, because every thread must block them.
    pub fn start(guardian: Guardian, signals: &[i32]) -> Result<Guarded, Failure> {
        let (sender, events) = channel();
        match watch_signals(signals, sender.clone()) {
            Ok(()) => Ok(Guarded { guardian: Arc::new(Mutex::new(guardian)), events, sender }),
            Err(error) => Err(give_up(guardian, error.into())),
        }
    }

    /// Makes events of the guardian's trouble.
    pub fn watch_guardian(&self) -> io::Result<()> {
        if let Some(watch) = self.guardian().watch() {
            let events = self.events();
            spawn("weir-guard", move || {
                // At the end the guardian ends too, with nobody left to tell.
                loop {
                    let trouble = watch.wait();
                    if events.send(SessionEvent::Trouble(trouble)).is_err() || trouble == Trouble::Unguarded {
                        return;
                    }
                }
            })?;
        }
        Ok(())
    }

    /// The guardian, to tell it the changes that it must put back.
    pub fn guardian(&self) -> MutexGuard<'_, Guardian> {
        self.guardian.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The guardian, for another thread.
    pub fn shared(&self) -> Arc<Mutex<Guardian>> {
        Arc::clone(&self.guardian)
    }

    /// The sender of its events.
    pub fn events(&self) -> Sender<SessionEvent> {
        self.sender.clone()
    }

    /// Waits for the next event.
    pub fn next_event(&self) -> SessionEvent {
        self.events.recv().expect("this holds a sender of its own events")
    }

    /// The next event, if there is one within this time.
    pub fn next_event_within(&self, time: Duration) -> Option<SessionEvent> {
        self.events.recv_timeout(time).ok()
    }

    /// The reason why it ends for a trouble.
    pub fn explain(&self, trouble: Trouble) -> String {
        explain(trouble, &self.guardian())
    }

    /// Puts everything back.
    pub fn finish(self) -> Result<(), Failure> {
        // If a thread had the guardian still, it would put everything back when this process ends, and nobody would say how.
        let guardian = Arc::into_inner(self.guardian).ok_or("a thread has not given back the guardian")?;
        let faults = guardian.into_inner().unwrap_or_else(PoisonError::into_inner).finish();
        for fault in &faults {
            output::say(format_args!("weir: while putting things back: {fault}"));
        }
        if faults.is_empty() { Ok(()) } else { Err("not everything could be put back".into()) }
    }

    /// Puts everything back after a failure on the way up, and hands that on.
    pub fn give_up(self, failure: Failure) -> Failure {
        // Faults have been said, and the first failure says it all.
        let _ = self.finish();
        failure
    }
}

fn watch_signals(signals: &[i32], events: Sender<SessionEvent>) -> io::Result<()> {
    let signals = Signals::block(signals)?;
    output::hurry(true);
    spawn("weir-signals", move || {
        while let Ok(received) = signals.wait() {
            if events.send(SessionEvent::Signal(received)).is_err() {
                return;
            }
        }
    })?;
    Ok(())
}
