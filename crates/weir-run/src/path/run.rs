//! The threads of a path: one for each worker, each on a core of its own, until all is done or one of them dies.
//!
//! A worker passes as long as something moves; then it spins for as long as a wake-up would cost, if packets come often enough
//! ([`crate::idle`]); then it parks: says so, looks at everything once more, and blocks until a kick or until a node has something
//! to do (invariant 3).
//!
//! The end: generators are done or told to stop; what is inside is delivered, for at most [`DRAIN_NS_MAX`]; then the workers are
//! told to end, and their books are added up.
//! A worker that dies takes the path with it: the others are told to end, and the caller learns which one died, and of what.
//!
//! Owner: each thread owns its worker; the thread that calls owns none and looks at what they tell.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, Scope};
use std::time::Duration;

use std::os::fd::{AsFd, AsRawFd};

use weir_port::sys;
use weir_ring::inject::Injector;

use super::links::Message;
use super::shared::{Shared, Told};
use super::spec::{PathError, PathSpec};
use super::summary::Summary;
use super::worker::Worker;
use super::{Path, PathMemory, summarise};
use crate::clock::{now_ns, thread_cpu_ns};
use crate::idle::{Idle, Rest, wake_cost_ns};

/// How long what is inside at the end may take to come out, in nanoseconds: longer than a router waits for a neighbour.
pub const DRAIN_NS_MAX: u64 = 5_000_000_000;

/// How often the caller is told how it goes, and the end is looked for.
const LOOK: Duration = Duration::from_millis(1);

/// How it goes.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// Since the start.
    pub elapsed_ns: u64,
    /// What the workers have told, together.
    pub told: Told,
}

/// Runs a path to its end. `observe` is shown how it goes every millisecond or so; generators stop when it says false.
///
/// # Errors
/// If there can be no such path, the kernel does not give what it needs, or a worker dies.
pub fn run(spec: &PathSpec, observe: &mut dyn FnMut(&Progress) -> bool) -> Result<Summary, PathError> {
    let cores = sys::allowed_cores();
    let mut memory = PathMemory::new(spec, cores.len())?;
    let (memory, pools) = memory.split();
    let path = Path::new(spec, memory, pools, now_ns())?;
    let wake_cost_ns =
        wake_cost_ns().map_err(|error| PathError::Start { worker: 0, why: error.to_string() })?;
    let bind = |worker: usize| spec.bindthreads.then(|| cores.get(worker).copied()).flatten();
    run_path(path, &bind, wake_cost_ns, observe)
}

/// A thread that has ended, and its worker if it did not die.
type Ended<'m> = (usize, Result<Worker<'m>, Death>);

/// What a worker died of.
enum Death {
    /// Something of its own.
    Own(String),
    /// Another had died before.
    Others(u16),
}

pub(super) fn run_path<'m>(
    path: Path<'m>,
    core_of: &dyn Fn(usize) -> Option<usize>,
    wake_cost_ns: u64,
    observe: &mut dyn FnMut(&Progress) -> bool,
) -> Result<Summary, PathError> {
    let Path { workers, injectors, shared, links_total, .. } = path;
    let count = workers.len();
    let (sender, ended) = channel();
    thread::scope(|scope| {
        let mut starters = Vec::new();
        for (number, worker) in workers.into_iter().enumerate() {
            let (starter, go) = channel();
            let start = Start { number, core: core_of(number), wake_cost_ns, go };
            // Those that have started already end when their starters go.
            start_worker(scope, start, worker, sender.clone())
                .map_err(|error| PathError::Start { worker: number, why: error.to_string() })?;
            starters.push(starter);
        }
        let start_ns = now_ns();
        // One that has ended already says so by itself.
        starters.iter().for_each(|starter| starter.send(()).unwrap_or_default());
        let result = watch(&shared, &injectors, &ended, start_ns, observe);
        shared.end();
        let mut workers = end_all(&injectors, &ended, count, result)?;
        Ok(summarise(&mut workers, links_total, start_ns, now_ns()))
    })
}

/// What a thread is started with.
struct Start {
    number: usize,
    core: Option<usize>,
    wake_cost_ns: u64,
    /// The word to begin; without it there is nothing to do.
    go: Receiver<()>,
}

fn start_worker<'scope, 'm: 'scope>(
    scope: &'scope Scope<'scope, '_>,
    start: Start,
    worker: Worker<'m>,
    ended: Sender<Ended<'m>>,
) -> std::io::Result<()> {
    let number = start.number;
    thread::Builder::new().name(format!("weir-{number}")).spawn_scoped(scope, move || {
        let result = catch_unwind(AssertUnwindSafe(|| work(start, worker)));
        // The receiver waits for every worker.
        let _ = ended.send((number, result.unwrap_or_else(|panic| Err(Death::Own(reason(panic.as_ref()))))));
    })?;
    Ok(())
}

fn reason(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "it panicked".into())
}

/// A worker's thread.
fn work<'m>(start: Start, mut worker: Worker<'m>) -> Result<Worker<'m>, Death> {
    let pinned = start.core.map_or(Ok(()), sys::pin_thread);
    sys::set_timer_slack_ns(1);
    if start.go.recv().is_err() {
        return Ok(worker);
    }
    pinned.map_err(|error| Death::Own(format!("it cannot stay on its core: {error}")))?;
    let mut idle = Idle::new(start.wake_cost_ns, now_ns());
    let start_cpu_ns = thread_cpu_ns();
    loop {
        let now = now_ns();
        let pass = worker.pass(now);
        if worker.is_stopped() {
            worker.cpu_ns = thread_cpu_ns() - start_cpu_ns;
            return Ok(worker);
        }
        if let Some(gone) = worker.gone() {
            return Err(Death::Others(gone));
        }
        if pass.moved > 0 {
            worker.running();
            idle.worked(now);
            continue;
        }
        match idle.rest(now_ns(), pass.wake_ns, true) {
            Rest::Spin => {
                worker.spinning();
                std::hint::spin_loop();
            }
            Rest::Park(until_ns) => {
                if let Some(parked) = worker.park() {
                    let timeout_ns = until_ns.map(|until_ns| until_ns.saturating_sub(now_ns()));
                    let fd = sys::poll_in(parked.as_fd().as_raw_fd());
                    sys::poll_readable(&mut [fd], timeout_ns)
                        .map_err(|error| Death::Own(format!("it cannot sleep: {error}")))?;
                }
            }
        }
    }
}

/// Looks on until all is delivered, or it has taken too long, or a worker has ended of itself, which is returned.
fn watch<'m>(
    shared: &Shared,
    injectors: &[Injector<Message<'m>>],
    ended: &Receiver<Ended<'m>>,
    start_ns: u64,
    observe: &mut dyn FnMut(&Progress) -> bool,
) -> Option<Ended<'m>> {
    let mut stopping_since = None;
    loop {
        match ended.recv_timeout(LOOK) {
            Ok(early) => return Some(early),
            Err(RecvTimeoutError::Disconnected) => return None,
            Err(RecvTimeoutError::Timeout) => {}
        }
        let (now_ns, told) = (now_ns(), shared.told());
        let goes_on = observe(&Progress { elapsed_ns: now_ns - start_ns, told });
        if !goes_on && !shared.is_stopping() {
            shared.stop();
            // Whoever is parked is to hear of it; a full entry means that it has something to look at already.
            injectors.iter().for_each(|injector| drop(injector.push(Message::Look)));
        }
        if shared.is_at_rest() {
            return None;
        }
        if told.done && now_ns - *stopping_since.get_or_insert(now_ns) > DRAIN_NS_MAX {
            return None;
        }
    }
}

/// Wakes all workers, which have been told to end, and waits for them. The first that died is the result.
fn end_all<'m>(
    injectors: &[Injector<Message<'m>>],
    ended: &Receiver<Ended<'m>>,
    count: usize,
    early: Option<Ended<'m>>,
) -> Result<Vec<Worker<'m>>, PathError> {
    let mut workers: Vec<Option<Worker<'m>>> = (0..count).map(|_| None).collect();
    let mut died = None;
    let mut left = count;
    let mut next = early;
    while left > 0 {
        if let Some((number, result)) = next.take() {
            left -= 1;
            match result {
                Ok(worker) => workers[number] = Some(worker),
                // What it died of itself says more than that another had died.
                Err(Death::Own(why)) => died = Some(PathError::Died { worker: number, why }),
                Err(Death::Others(gone)) => {
                    let why = format!("worker {gone}, which it hands to, has gone");
                    died = died.or(Some(PathError::Died { worker: number, why }));
                }
            }
        }
        // One that has no room for it has something to look at already.
        injectors.iter().for_each(|injector| drop(injector.push(Message::Look)));
        next = ended.recv_timeout(LOOK).ok();
    }
    match died {
        Some(died) => Err(died),
        None => Ok(workers.into_iter().flatten().collect()),
    }
}
