//! A datapath from its opening to the moment when everything is back as it was: the wire of `weir wire` or `weir run`.

use std::io;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use weir_port::Doing;
use weir_port::bpf::doorbell::Bell;
use weir_port::cores::{self, WorkerCore};
use weir_run::clock::now_ns;
use weir_run::control::{Control, DatapathResponder};
use weir_run::crew::Crew;
use weir_run::datapath::{Datapath, DatapathConfig, Kind};
use weir_run::guardian::Guardian;
use weir_run::idle::wake_cost_ns;
use weir_run::ipsec::{EspKeys, PreparedEsp};
use weir_run::report::PartReport;
use weir_run::stats::Snapshot;
use weir_run::watcher::{self, Eye};
use weir_run::worker::{self, Ended, Mailbox};

use crate::guarded::{Guarded, SessionEvent, spawn};
use crate::{Failure, output};

/// Packet memory of a datapath, in bytes, unless another amount is asked for.
pub const MEMORY_BYTES_DEFAULT: u64 = 64 << 20;
/// The least packet memory of each port, in bytes, unless another amount is asked for. The kernel keeps some 100 bytes for each frame and
/// queue, so twice the memory for twice the ports costs it four times as much.
pub const MEMORY_BYTES_PER_PORT: u64 = 1 << 20;

/// A datapath that is up.
pub struct Session {
    /// Its guardian, and the events of the session.
    pub guarded: Guarded,
    running: Running,
}

/// The running threads of a datapath, and the ways to them.
struct Running {
    watcher: JoinHandle<()>,
    eye: Eye,
    workers: Vec<JoinHandle<Ended>>,
    crew: Crew,
    keeper: Arc<LentKeeper>,
}

impl Session {
    /// Opens the datapath, starts its workers, on these cores if any are named, and its control socket, and makes events of `signals`.
    pub fn start(
        config: &DatapathConfig,
        guardian: Guardian,
        cores: &[usize],
        signals: &[i32],
    ) -> Result<Session, Failure> {
        let guarded = Guarded::start(guardian, signals)?;
        match Running::start(config, &guarded, cores) {
            Ok(running) => Ok(Session { guarded, running }),
            Err(failure) => Err(guarded.give_up(failure)),
        }
    }

    /// The kind of the datapath.
    pub fn kind(&self) -> Kind {
        self.running.crew.kind()
    }

    /// Gives up the ports whose other ends are in a namespace that nobody but weir keeps. Returns whether the datapath can go on without.
    pub fn desert(&self, namespace: u64) -> bool {
        self.running.eye.desert(namespace)
    }

    /// Copies of all counters.
    pub fn stat(&self) -> Result<Snapshot, String> {
        self.running.crew.stat()
    }

    /// Delivers packets that are inside, takes the datapath down and puts everything back. Returns the last counters.
    pub fn finish(self) -> Result<Snapshot, Failure> {
        let Session { guarded, running: Running { watcher, eye, workers, crew, keeper } } = self;
        guarded.guardian().announce_end();
        // Questions are answered to the end, but no socket is made any more.
        locked(&keeper).take();
        crew.stop();
        let ended: Vec<_> = workers.into_iter().map(JoinHandle::join).collect();
        let last_words = last_words(ended, &crew);
        // The thread that writes them ends with the process.
        crew.settle_marks();
        eye.stop();
        let watched = watcher.join();
        let put_back = guarded.finish();
        let last_words = last_words?;
        put_back?;
        match watched {
            Ok(()) => Ok(last_words),
            Err(_) => Err("what watches the interfaces failed; everything has been put back".into()),
        }
    }
}

impl Running {
    fn start(config: &DatapathConfig, guarded: &Guarded, cores: &[usize]) -> Result<Running, Failure> {
        // Nobody else asks for the guardian before there is a watcher.
        let mut guardian = guarded.guardian();
        let name = &config.name;
        let mut control = match Control::listen(name) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                let how = format!(
                    "`weir down {name}` ends it, or give this one another name: --name of a wire, name = \"...\" in a file"
                );
                return Err(format!("{error}; {how}").into());
            }
            listening => listening
                .doing(|| format!("making the control socket {}", Control::path_of(name).display()))?,
        };
        control.entrust(&mut *guardian)?;
        let (mailboxes, inboxes): (Vec<_>, Vec<_>) =
            (0..config.workers).map(|_| Mailbox::new()).collect::<io::Result<Vec<_>>>()?.into_iter().unzip();
        let (eye, lens) = Eye::new()?;
        let bells: Vec<Arc<Bell>> = (0..config.workers)
            .map(|_| Bell::new().map(Arc::new))
            .collect::<io::Result<_>>()
            .doing(|| "making the doorbell (BPF ring buffer, Linux 5.8 or newer)".into())?;
        let mut keys = EspKeys::telling(output::warn);
        let prepared = keys.prepare_all(&config.plan)?;
        // Before queues are owned, and on a thread that is not pinned: it takes two cores, and others' workers may have them for a while.
        let wake_cost_ns = wake_cost_ns().doing(|| "measuring the cost of waking a thread".into())?;
        let opened = Datapath::open(config, &bells, &mut *guardian, eye.clone(), now_ns());
        let Datapath { mut parts, constants, pairs, opener, warnings } = opened?;
        for PreparedEsp { stage, change, .. } in prepared {
            let (owner, place) = (constants.owners.stages[stage], constants.owners.place_of_stage(stage));
            parts[owner].path.change_esp(place, change, now_ns());
        }
        drop(guardian);
        for warning in warnings {
            output::warn(warning);
        }
        let crew = Crew::new(mailboxes, constants).with_esp(keys);
        guarded.watch_guardian()?;
        let news = guarded.events();
        let tell = move |told| news.send(SessionEvent::News(told)).is_ok();
        let watcher = watcher::start(lens, pairs, crew.clone(), opener, guarded.shared(), tell)?;
        let mut workers = Vec::new();
        let cores = match cores {
            [] => WorkerCore::choose(config.workers),
            named => named.iter().copied().map(WorkerCore::named).collect(),
        };
        if cores.len() < parts.len() {
            let told = format!("{} workers need a core each, and there are {} now", parts.len(), cores.len());
            return Err(told.into());
        }
        for (((part, bell), inbox), core) in parts.into_iter().zip(bells).zip(inboxes).zip(cores) {
            let ended = guarded.events();
            workers.push(spawn(cores::WORKER_NAME, move || {
                let _ended = Ending(ended);
                worker::run(part, &bell, &inbox, core, wake_cost_ns)
            })?);
        }
        let asked = guarded.events();
        // A session that has ended already has nobody to tell.
        let stop = move || drop(asked.send(SessionEvent::AskedToEnd));
        let responder = DatapathResponder { crew: crew.clone(), stop };
        let keeper = Arc::new(Mutex::new(Some(guarded.shared())));
        let lent = Arc::clone(&keeper);
        spawn("weir-control", move || {
            let mut is_told = false;
            control.serve(&responder, None, Some(&mut |control| renew(control, &lent, &mut is_told)));
        })?;
        Ok(Running { watcher, eye, workers, crew, keeper })
    }
}

/// The guardian as the control thread has it, until the session ends.
type LentKeeper = Mutex<Option<Arc<Mutex<Guardian>>>>;

/// Makes a control socket again that somebody has removed, and has the guardian remove it at the end. That it cannot be is said once.
fn renew(control: &mut Control, keeper: &LentKeeper, is_told: &mut bool) {
    // A socket that is made again must be the guardian's before that puts everything back.
    let keeper = locked(keeper);
    let Some(keeper) = &*keeper else { return };
    let shown = control.path().display().to_string();
    let renewed = control.renew().map_err(|error| error.to_string()).and_then(|is_made| {
        let entrusted = if is_made { control.entrust(&mut *locked(keeper)) } else { Ok(()) };
        entrusted.map(|()| is_made).map_err(|error| error.to_string())
    });
    match &renewed {
        Ok(true) => {
            output::warn(format_args!("{shown}, by which commands reach it, was removed: it is there again"))
        }
        Err(why) if !*is_told => {
            output::warn(format_args!(
                "{shown}, by which commands reach it, was removed, and is not there again: {why}"
            ));
        }
        _ => {}
    }
    *is_told = renewed.is_err();
}

/// A value, locked. A thread that panicked with it had nothing half done.
fn locked<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The last counters, and the end of the workers' ports; or the first fault.
fn last_words(ended: Vec<std::thread::Result<Ended>>, crew: &Crew) -> Result<Snapshot, Failure> {
    let mut parts = Vec::new();
    let (mut faults, mut panics) = (Vec::new(), Vec::new());
    for worker in ended {
        match worker {
            Ok(Ended { mut part, stats, fault }) => {
                faults.extend(fault);
                part.path.complete();
                parts.push((part, stats));
            }
            Err(_) => panics.push("a worker panicked; everything has been put back".to_string()),
        }
    }
    // Once all have given back their frames.
    let reports = parts.iter_mut().map(|(part, stats)| PartReport::new(part, *stats, now_ns()));
    match faults.into_iter().chain(panics).next() {
        Some(fault) => Err(fault.into()),
        None => Ok(crew.last_words(reports.collect::<Result<_, _>>()?)),
    }
}

/// Tells of a worker's end, however it comes.
struct Ending(Sender<SessionEvent>);

impl Drop for Ending {
    fn drop(&mut self) {
        // The main thread may have stopped listening; then it is waiting for this thread anyway.
        let _ = self.0.send(SessionEvent::WorkerEnded);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn a_worker_that_panics_is_noticed() {
        let (sender, events) = channel();
        let worker = std::thread::spawn(move || {
            let _ended = Ending(sender);
            panic!("this panic is part of a test");
        });
        assert!(matches!(events.recv(), Ok(SessionEvent::WorkerEnded)));
        assert!(worker.join().is_err());
    }
}
