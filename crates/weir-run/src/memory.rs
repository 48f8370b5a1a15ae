//! A path whose ports are in memory, with a thread for each worker: `weir gen` without an interface and the labs run it.
//!
//! ```text
//! generator --poll, if there is room--> [stages] --> egress queue --> sink: checked, counted, frame back
//! ```
//!
//! The plan's dispatch is carried out as in `weir up`, by ports that lead back ([`spread`]). All threads begin together (`start_line.rs`),
//! each in its seat: on a core of its own unless the caller says otherwise.
//!
//! The end: generators are done or told to stop; packets that are inside are delivered, for at most [`DRAIN_NS_MAX`]; then the books of all
//! workers are added up ([`summary`]). A worker that dies takes the path with it: the others are told to end, and the caller learns which
//! one died, and why.
//!
//! Owner: each thread owns its worker; the thread that calls reads their progress (`progress.rs`).

use std::any::Any;
use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, Scope};
use std::time::Duration;

use weir_core::drops::Count;
use weir_core::due::sooner;
use weir_path::assembly::Shares;
use weir_path::deal::{self, DealError};
use weir_path::dispatch::spread;
use weir_path::either_port::EitherPort;
use weir_path::frames::Frames;
use weir_path::loop_port::LoopPort;
use weir_path::owners::Owners;
use weir_path::plan::Plan;
use weir_path::port::POLL_PACKETS_MAX;
use weir_path::traffic::generator::GenSpec;
use weir_path::traffic::port::MemoryPort;
use weir_path::traffic::sequence::Sequences;
use weir_path::worker::{Pass, Worker};
use weir_port::sys;
use weir_ring::memory::FrameMemory;
use weir_ring::pool::Pool;

use crate::clock::{now_ns, thread_cpu_ns};
use crate::drive::{Driven, Look, drive};
use crate::idle::wake_cost_ns;
use crate::progress::{ProgressBoard, WorkerProgress};
use crate::seed::random_seed;

mod keys;
mod start_line;
pub mod summary;
#[cfg(test)]
mod tests;

use start_line::StartLine;
use summary::{MemorySummary, WorkerTold, summarise};

/// The longest time that packets inside at the end may take to come out, in nanoseconds: longer than a router waits for a neighbour.
pub const DRAIN_NS_MAX: u64 = 5_000_000_000;
/// An Ethernet frame, and a cache line so that frames do not all begin in the same lines of a cache.
const FRAME_BYTES: u32 = 2112;
/// The pause between two reports of the progress to the caller, in nanoseconds.
const TELL_NS: u64 = 1_000_000;
/// The pause between two looks of a worker that generates nothing whether the others do, in nanoseconds.
const LOOK_NS: u64 = 10_000_000;

/// The configuration of a path in memory.
#[derive(Clone, Debug)]
pub struct MemoryPath {
    /// Its ports, stages and links.
    pub plan: Plan,
    /// The generator or sink at each port of the plan.
    pub ends: Vec<MemoryEnd>,
    /// The worker that owns each port and stage.
    pub owners: Owners,
    /// The number of workers, each on a core of its own.
    pub workers: usize,
    /// Frames of packet memory.
    pub frames: u32,
    /// Packets that wait for one port before those that send there are held.
    pub held_packets_max: u64,
}

/// A port of a path in memory: one with a generator or a sink, or one that leads back.
pub type MemoryPathPort = EitherPort<MemoryPort, LoopPort>;
/// A worker of a path in memory.
pub type MemoryPathWorker = Worker<MemoryPathPort>;

/// The end at a port in memory.
#[derive(Clone, Debug)]
pub enum MemoryEnd {
    /// A generator.
    Generator(GenSpec),
    /// A generator behind a device's ring of so many packets, which nobody can hold.
    Ring(GenSpec, u64),
    /// A sink for flows numbered below `flows`.
    Sink {
        /// The number of flows.
        flows: u32,
    },
    /// Packets that leave by it come in by it; the ports of the plan's dispatch are beside these.
    Loop,
}

/// The place of a worker's thread: its core, and how it runs there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerSeat {
    /// The core that it stays on; the scheduler chooses if there is none.
    pub core: Option<usize>,
    /// True if it goes before all threads that are not real-time.
    pub is_realtime: bool,
    /// True if others need the core, so that it never spins.
    pub is_shared: bool,
}

/// A path that has been run.
pub struct Ran {
    /// The result of the run.
    pub summary: MemorySummary,
    /// Its workers.
    pub workers: Vec<MemoryPathWorker>,
}

/// Why a path in memory did not run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunError {
    /// There can be no such path.
    Refused(String),
    /// The kernel refuses a thing that it needs, or a worker died.
    Failed(String),
}

impl fmt::Display for RunError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (RunError::Refused(why) | RunError::Failed(why)) = self;
        f.write_str(why)
    }
}

impl std::error::Error for RunError {}

/// The observer of a run: it gets the nanoseconds since the start, and the packets delivered, or sent if nobody here receives them;
/// false stops the generators.
pub type Observe<'a> = &'a mut dyn FnMut(u64, Count) -> bool;

impl MemoryPath {
    /// Its workers, to be driven.
    ///
    /// # Errors
    /// If there can be no such path, or the kernel refuses a thing that it needs.
    pub fn workers(&self, now_ns: u64) -> Result<Vec<MemoryPathWorker>, RunError> {
        let refused = |why: &dyn fmt::Display| RunError::Refused(why.to_string());
        let failed = |why: &dyn fmt::Display| RunError::Failed(why.to_string());
        let memory = FrameMemory::new(self.frames, FRAME_BYTES).map_err(|error| failed(&error))?;
        let generator = |spec| MemoryPort::generator(spec, 1).map_err(|error| refused(&error));
        let mut ports = Vec::new();
        for end in &self.ends {
            let port = match end {
                MemoryEnd::Generator(spec) => generator(spec)?,
                MemoryEnd::Ring(spec, packets) => generator(spec)?.with_ring(*packets),
                MemoryEnd::Sink { flows } => MemoryPort::sink(Sequences::new(*flows)),
                MemoryEnd::Loop => {
                    ports.push(Some(EitherPort::Memory(Box::default())));
                    continue;
                }
            };
            ports.push(Some(EitherPort::Kernel(Box::new(port))));
        }
        let spread = spread(&self.plan, &self.owners, self.workers).map_err(RunError::Refused)?;
        ports.extend(spread.loops.iter().map(|_| Some(EitherPort::Memory(Box::default()))));
        let shares = Shares {
            held_packets_max: self.held_packets_max,
            poll_budget_max: POLL_PACKETS_MAX,
            queues_gone: 0,
            seed: random_seed(),
        };
        let frames = Pool::for_workers(memory, self.workers).into_iter().map(Frames::new).collect();
        let mut workers = deal::workers((&spread.plan, &spread.owners), ports, frames, shares, now_ns)
            .map_err(|error| match error {
                DealError::Plan(error) => refused(&error),
                DealError::Inbox(error) => failed(&error),
            })?;
        for (stage, change) in keys::of(&self.plan) {
            let owner = self.owners.stages[stage];
            workers[owner].change_esp(self.owners.place_of_stage(stage), change, now_ns);
        }
        Ok(workers)
    }

    /// Runs it to its end, each worker on a core of its own. `observe` is shown the progress every millisecond or so.
    ///
    /// # Errors
    /// If there can be no such path, the kernel refuses a thing that it needs, or a worker dies.
    pub fn run(&self, observe: Observe) -> Result<MemorySummary, RunError> {
        let cores = sys::allowed_cores();
        if self.workers == 0 || self.workers > cores.len() {
            return Err(RunError::Refused(format!(
                "{} workers, but this process may use {} cores, and each worker wants one of its own: give 1 to {1}",
                self.workers,
                cores.len()
            )));
        }
        let seat = |core| WorkerSeat { core: Some(core), is_realtime: false, is_shared: false };
        let seats: Vec<_> = cores.into_iter().map(seat).take(self.workers).collect();
        self.run_seated(self.workers(now_ns())?, &seats, observe).map(|ran| ran.summary)
    }

    /// Runs these workers of it to its end, each in its seat.
    ///
    /// # Errors
    /// As of [`MemoryPath::run`].
    pub fn run_seated(
        &self,
        workers: Vec<MemoryPathWorker>,
        seats: &[WorkerSeat],
        observe: Observe,
    ) -> Result<Ran, RunError> {
        if [workers.len(), seats.len()] != [self.workers; 2] {
            let (had, seats) = (workers.len(), seats.len());
            return Err(RunError::Refused(format!("{had} workers and {seats} seats for {}", self.workers)));
        }
        let failed = |error: io::Error| RunError::Failed(format!("a worker cannot start: {error}"));
        let wake_cost_ns = wake_cost_ns().map_err(failed)?;
        let board = Arc::new(ProgressBoard::new(self.workers));
        let start_line = StartLine::new(self.workers);
        let (sender, ended) = channel();
        let done = thread::scope(|scope| {
            for (number, (path, seat)) in workers.into_iter().zip(seats).enumerate() {
                let running = Running::new(number, path, Arc::clone(&board));
                let wake_cost_ns = if seat.is_shared { 0 } else { wake_cost_ns };
                let thread = start(scope, (running, *seat, wake_cost_ns), &start_line, sender.clone());
                if let Err(error) = thread {
                    start_line.abandon();
                    return Err(failed(error));
                }
            }
            let watched = watch(&board, &ended, self.workers, now_ns(), observe);
            board.end();
            watched
        });
        let mut done = done?;
        done.sort_by_key(|(number, ..)| *number);
        let told = done.iter().map(|(_, path, told)| (path, *told));
        let summary = summarise(self, told, start_line.begun_ns());
        Ok(Ran { summary, workers: done.into_iter().map(|(_, path, _)| path).collect() })
    }
}

/// A worker's thread that has ended.
type Ended = (usize, Result<(MemoryPathWorker, WorkerTold), String>);
/// A worker that has ended well, by its number.
type Done = (usize, MemoryPathWorker, WorkerTold);

/// Watches the workers until all have ended.
fn watch(
    board: &ProgressBoard,
    ended: &Receiver<Ended>,
    workers: usize,
    start_ns: u64,
    observe: Observe,
) -> Result<Vec<Done>, RunError> {
    let mut done: Vec<Done> = Vec::new();
    while done.len() < workers {
        match ended.recv_timeout(Duration::from_nanos(TELL_NS)) {
            Ok((number, Ok((path, counts)))) => done.push((number, path, counts)),
            Ok((number, Err(why))) => return Err(RunError::Failed(format!("worker {number} died: {why}"))),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => unreachable!("the caller has a sender"),
        }
        if !observe(now_ns() - start_ns, board.told().0) {
            board.stop();
        }
    }
    Ok(done)
}

fn start<'scope, 'env>(
    scope: &'scope Scope<'scope, 'env>,
    (running, seat, wake_cost_ns): (Running, WorkerSeat, u64),
    start_line: &'env StartLine,
    ended: Sender<Ended>,
) -> io::Result<()> {
    let number = running.number;
    thread::Builder::new().name(format!("weir-{number}")).spawn_scoped(scope, move || {
        let work = || {
            sit(seat).map_err(|error| format!("it cannot stay on its core: {error}"))?;
            if start_line.wait() { running.work(wake_cost_ns) } else { Err("another could not start".into()) }
        };
        let result = catch_unwind(AssertUnwindSafe(work));
        let result = result.unwrap_or_else(|panic| Err(reason(panic.as_ref())));
        let has_died = result.is_err();
        // The receiver waits for every worker, unless one has died.
        let _ = ended.send((number, result));
        if has_died {
            start_line.abandon();
        }
    })?;
    Ok(())
}

/// Puts this thread into its seat.
fn sit(seat: WorkerSeat) -> io::Result<()> {
    sys::set_timer_slack_ns(1);
    if seat.is_realtime {
        sys::set_realtime();
    }
    seat.core.map_or(Ok(()), sys::pin_thread)
}

fn reason(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "it panicked".into())
}

/// A worker and its thread's memory.
struct Running {
    number: usize,
    path: MemoryPathWorker,
    board: Arc<ProgressBoard>,
    /// Its ports with generators.
    generators: Vec<usize>,
    counts: WorkerTold,
    delivered: Count,
    is_done: bool,
    tell_ns: u64,
    draining_since: Option<u64>,
}

impl Running {
    fn new(number: usize, path: MemoryPathWorker, board: Arc<ProgressBoard>) -> Running {
        let makes = |port: &MemoryPathPort| port.kernel().is_some_and(|port| !port.is_done());
        let generators = path.ends().iter().filter(|end| makes(&end.port)).map(|end| end.index).collect();
        Running {
            number,
            path,
            board,
            generators,
            counts: WorkerTold::default(),
            delivered: Count::default(),
            is_done: false,
            tell_ns: 0,
            draining_since: None,
        }
    }

    /// Drives the worker to its end, on this thread.
    fn work(mut self, wake_cost_ns: u64) -> Result<(MemoryPathWorker, WorkerTold), String> {
        let start_cpu_ns = thread_cpu_ns();
        drive(&mut self, wake_cost_ns).map_err(|error| error.to_string())?;
        self.counts.cpu_ns = thread_cpu_ns() - start_cpu_ns;
        Ok((self.path, self.counts))
    }

    /// Tells the generators the time. Returns when the next packet is due.
    fn look_at_generators(&mut self, now_ns: u64) -> Option<u64> {
        let is_stopped = self.board.is_stopping();
        let (mut next_ns, mut is_done) = (None, true);
        for &index in &self.generators {
            let port = self.path.end_mut(index).0.port.kernel_mut().expect("a port with a generator");
            if is_stopped {
                port.stop();
            }
            next_ns = sooner(next_ns, port.look(now_ns));
            is_done &= port.is_done();
        }
        if is_done && !self.is_done {
            self.is_done = true;
            self.tell();
        }
        next_ns
    }

    /// Notes the packets that have been delivered, and tells them now and then.
    fn note_delivered(&mut self, now_ns: u64) {
        let mut delivered = Count::default();
        // Packets that leave by other ports come back.
        let outer = self.path.ends().iter().filter(|end| end.port.kernel().is_some());
        outer.for_each(|end| delivered.merge(end.exit.account().delivered));
        if delivered != self.delivered {
            self.delivered = delivered;
            self.counts.last_ended_ns = now_ns;
        }
        if now_ns >= self.tell_ns {
            self.tell_ns = now_ns + TELL_NS;
            self.tell();
        }
    }

    fn tell(&self) {
        let (delivered, is_closed) = (self.delivered, self.is_done);
        self.board.tell(self.number, &WorkerProgress { delivered, is_closed, ..WorkerProgress::default() });
    }
}

impl Driven for Running {
    fn look(&mut self, now_ns: u64) -> io::Result<Look> {
        let next_ns = self.look_at_generators(now_ns);
        self.note_delivered(now_ns);
        if self.board.is_ending() {
            return Ok(Look::Over);
        }
        if !self.is_done {
            return Ok(Look::On(next_ns));
        }
        if self.board.is_closed() {
            let waited_ns = now_ns - *self.draining_since.get_or_insert(now_ns);
            if waited_ns > 0 && self.path.is_drained() || waited_ns > DRAIN_NS_MAX {
                return Ok(Look::Over);
            }
        }
        Ok(Look::On(Some(now_ns + LOOK_NS)))
    }

    fn pass(&mut self, now_ns: u64) -> io::Result<Pass> {
        self.counts.passes += 1;
        match self.draining_since {
            None => self.path.pass(now_ns),
            Some(_) => self.path.drain(now_ns),
        }
    }

    fn park(&mut self, until_ns: Option<u64>) -> io::Result<()> {
        let now_ns = now_ns();
        // Packets that the last pass delivered were delivered now, and not when the worker wakes.
        self.note_delivered(now_ns);
        let timeout_ns = until_ns.map(|until_ns| until_ns.saturating_sub(now_ns));
        // poll(2) passes over a descriptor below 0.
        let slept = self.path.park(|kicked| {
            let kicked = kicked.map_or(-1, |kicked| std::os::fd::AsRawFd::as_raw_fd(&kicked));
            sys::poll(&mut [sys::poll_in(kicked)], timeout_ns).map(drop)
        })?;
        self.counts.parks += u64::from(slept);
        Ok(())
    }
}
