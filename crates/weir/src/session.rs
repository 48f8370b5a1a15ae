//! A wire from its opening to the moment when everything is back as it was; `weir wire` and `weir run` are two of them.

use std::io;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use weir_port::bpf::doorbell::Bell;
use weir_port::cores;
use weir_port::netns::NetNs;
use weir_port::signals::{Received, Signals};
use weir_port::undo::{FileIdentity, Keeper, Undo};
use weir_port::{Doing, PortError, confinement};
use weir_run::clock::now_ns;
use weir_run::control::Control;
use weir_run::crew::Crew;
use weir_run::guardian::{Guardian, Trouble};
use weir_run::stats::Snapshot;
use weir_run::watcher::{self, Eye, News};
use weir_run::wire::{Wire, WireConfig};
use weir_run::worker::{self, Ended, Mailbox};

use crate::{Failure, output};

/// What can end a session or concerns it.
pub enum Event {
    /// A signal arrived.
    Signal(Received),
    /// The worker ended by itself.
    WorkerEnded,
    /// It can no longer go on safely.
    Trouble(Trouble),
    /// Of the wire's interfaces.
    News(News),
    /// The program of `weir run` ended.
    ProgramEnded,
}

/// Packet memory for a wire, in bytes, unless another amount is asked for.
pub const MEMORY_BYTES_DEFAULT: u64 = 64 << 20;

/// Whose the namespaces are that are changed.
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
    // By this path it is this program, also when its file has been replaced.
    Ok(Guardian::start(Path::new("/proc/self/exe"), namespaces == Namespaces::Others, say)?)
}

/// Gives up the rights that are not needed, of this thread and those it starts, and what no thread of this process ever does. Where
/// that cannot be, it is said, and everything is as good as without.
pub fn confine() {
    if let Err(fault) = confinement::shed().and_then(|()| confinement::seal()) {
        output::warn(format_args!("going on with more rights than are needed: {fault}"));
    }
}

/// A thread for as long as the process lives, which has no more rights than it needs.
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

/// Why whoever has this guardian ends for a trouble.
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

/// A wire that is up.
pub struct Session {
    guardian: Arc<Mutex<Guardian>>,
    watcher: JoinHandle<()>,
    eye: Eye,
    workers: Vec<JoinHandle<io::Result<Ended>>>,
    crew: Crew,
    events: Receiver<Event>,
    sender: Sender<Event>,
}

impl Session {
    /// Opens the wire, starts its workers, on these cores if they are named, and its control socket, and makes events of `signals`.
    pub fn start(
        config: &WireConfig,
        guardian: Guardian,
        cores: &[usize],
        signals: &[i32],
    ) -> Result<Session, Failure> {
        let guardian = Arc::new(Mutex::new(guardian));
        Session::try_start(config, &guardian, cores, signals).map_err(|failure| match alone(guardian) {
            Some(guardian) => give_up(guardian, failure),
            None => failure,
        })
    }

    fn try_start(
        config: &WireConfig,
        shared: &Arc<Mutex<Guardian>>,
        cores: &[usize],
        signals: &[i32],
    ) -> Result<Session, Failure> {
        // Nobody else asks for it before there is a watcher.
        let mut guardian = shared.lock().unwrap_or_else(PoisonError::into_inner);
        let (sender, events) = channel();
        // From here on a signal is an event and no longer the end of the process. First, because every thread must block them.
        watch_signals(signals, sender.clone())?;
        let control = Control::listen(&config.name)
            .doing(|| format!("making the control socket {}", Control::path_of(&config.name).display()))?;
        let path = control.path();
        if let Some(identity) = FileIdentity::of(path) {
            guardian.record(&NetNs::current()?, Undo::File { path: path.into(), identity }, None)?;
        }
        let (mailboxes, inboxes): (Vec<_>, Vec<_>) =
            (0..config.workers).map(|_| Mailbox::new()).collect::<io::Result<Vec<_>>>()?.into_iter().unzip();
        let (eye, lens) = Eye::new()?;
        let bells: Vec<Arc<Bell>> = (0..config.workers)
            .map(|_| Bell::new().map(Arc::new))
            .collect::<io::Result<_>>()
            .doing(|| "making the doorbell (BPF ring buffer, Linux 5.8 or newer)".into())?;
        let opened = Wire::open(config, &bells, &mut *guardian, eye.clone(), now_ns());
        let Wire { parts, constants, pairs, warnings } = opened?;
        drop(guardian);
        for warning in warnings {
            output::warn(warning);
        }
        let crew = Crew::new(mailboxes, constants);
        watch_guardian(shared, sender.clone())?;
        let news = sender.clone();
        let tell = move |told| news.send(Event::News(told)).is_ok();
        let watcher = watcher::start(lens, pairs, crew.clone(), Arc::clone(shared), tell)?;
        let mut workers = Vec::new();
        for (((part, bell), inbox), &core) in parts.into_iter().zip(bells).zip(inboxes).zip(cores) {
            let ended = sender.clone();
            workers.push(spawn(cores::WORKER_NAME, move || {
                let _ended = Ending(ended);
                worker::run(part, &bell, &inbox, core)
            })?);
        }
        let answering = crew.clone();
        spawn("weir-control", move || control.serve(&answering))?;
        Ok(Session { guardian: Arc::clone(shared), watcher, eye, workers, crew, events, sender })
    }

    /// Where events can be sent to.
    pub fn events(&self) -> Sender<Event> {
        self.sender.clone()
    }

    /// Waits for the next event.
    pub fn next_event(&self) -> Event {
        self.events.recv().expect("a session holds a sender of its own events")
    }

    /// The next event, if there is one within this time.
    pub fn next_event_within(&self, time: Duration) -> Option<Event> {
        self.events.recv_timeout(time).ok()
    }

    /// Why it ends for a trouble.
    pub fn explain(&self, trouble: Trouble) -> String {
        explain(trouble, &self.guardian.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Copies of all counters.
    pub fn stat(&self) -> Result<Snapshot, String> {
        self.crew.stat()
    }

    /// Delivers what is inside, takes the wire down and puts everything back; the last counters.
    pub fn finish(self) -> Result<Snapshot, Failure> {
        self.guardian.lock().unwrap_or_else(PoisonError::into_inner).announce_end();
        self.crew.stop();
        let ended: Vec<_> = self.workers.into_iter().map(JoinHandle::join).collect();
        let last_words = last_words(ended, &self.crew);
        self.eye.stop();
        let watched = self.watcher.join();
        let Some(guardian) = alone(self.guardian) else { return last_words };
        let faults = guardian.finish();
        for fault in &faults {
            output::say(format_args!("weir: while putting things back: {fault}"));
        }
        match last_words {
            Ok(_) if !faults.is_empty() => Err("not everything could be put back".into()),
            Ok(_) if watched.is_err() => {
                Err("what watches the interfaces failed; everything has been put back".into())
            }
            last_words => last_words,
        }
    }
}

/// The last counters, and the end of the workers' ports; or what went wrong first.
fn last_words(ended: Vec<std::thread::Result<io::Result<Ended>>>, crew: &Crew) -> Result<Snapshot, Failure> {
    let mut reports = Vec::new();
    let mut faults = Vec::new();
    for worker in ended {
        let Ended { mut part, stats, fault } =
            worker.map_err(|_| "a worker panicked; everything has been put back")??;
        faults.extend(fault);
        reports.push(part.report(stats, now_ns()));
    }
    match faults.into_iter().next() {
        Some(fault) => Err(fault.into()),
        None => Ok(crew.last_words(reports.into_iter().collect::<Result<_, _>>()?)),
    }
}

/// The guardian, once nobody else has it. If somebody did, it would go when they do, and put everything back all the same.
fn alone(guardian: Arc<Mutex<Guardian>>) -> Option<Guardian> {
    Arc::into_inner(guardian).map(|guardian| guardian.into_inner().unwrap_or_else(PoisonError::into_inner))
}

/// Tells of a worker's end, however it comes.
struct Ending(Sender<Event>);

impl Drop for Ending {
    fn drop(&mut self) {
        // The main thread may have stopped listening; then it is waiting for this thread anyway.
        let _ = self.0.send(Event::WorkerEnded);
    }
}

fn watch_guardian(guardian: &Mutex<Guardian>, events: Sender<Event>) -> io::Result<()> {
    if let Some(watch) = guardian.lock().unwrap_or_else(PoisonError::into_inner).watch() {
        spawn("weir-guard", move || {
            // At the end of the session it ends too, with nobody left to tell.
            let _ = events.send(Event::Trouble(watch.wait()));
        })?;
    }
    Ok(())
}

fn watch_signals(signals: &[i32], events: Sender<Event>) -> io::Result<()> {
    let signals = Signals::block(signals)?;
    spawn("weir-signals", move || {
        while let Ok(received) = signals.wait() {
            if events.send(Event::Signal(received)).is_err() {
                return;
            }
        }
    })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_that_panics_is_noticed() {
        let (sender, events) = channel();
        let worker = std::thread::spawn(move || {
            let _ended = Ending(sender);
            panic!("this panic is part of a test");
        });
        assert!(matches!(events.recv(), Ok(Event::WorkerEnded)));
        assert!(worker.join().is_err());
    }
}
