//! A sink on a real interface: several workers receive, and netisr's dispatch decides which of them handles a packet, and when.
//!
//! ```text
//! queues of the port, dealt to workers in turn --intake--> dispatch --ring--> dispatch of another worker
//!                                                            | ^
//!                                                 egress queue, loop: netisr's workstream
//! ```
//!
//! A sink is a plan ([`weir_path::dispatch::dispatched`]), and each worker runs its portion.
//!
//! - Where the port has as many queues as there are workers, each polls its own, and the side that put flows into queues (the NIC; on a
//!   veth the program at the sending end) has steered: nothing is hashed and nothing handed over.
//! - Where it has fewer, a worker that polls one hashes its packets (`rss.*`), and ether, whose mode is `hybrid`, hands those of other
//!   workers' flows to them ([`weir_core::dispatch::handlers`]).
//! - A full queue holds the receive queues whose packets wait there; nothing is dropped unless a protocol's rule says so.
//! - While the interface is down nothing comes; when it is up again, its queues have other NAPI instances, which the thread that calls owns
//!   anew and hands to the workers. The sink ends when the interface vanishes.
//! - The other end may move to another namespace: packets are held there then, and what was changed at it is put back there.
//!
//! Books (invariant 1): received = delivered + dropped(reason) + held, over all workers. The end: queues are polled no more, packets that
//! are inside are handled, then workers are told to end and their numbers are added up.
//!
//! Owner: each thread its worker; the thread that calls owns none. Limits: interfaces are veths ([`weir_port::port`]).

mod summary;
pub mod worker;

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread::{self, ScopedJoinHandle};
use std::time::Duration;

use weir_core::dispatch::settings::Configuration;
use weir_core::drops::Count;
use weir_path::assembly::Shares;
use weir_path::deal::{self, DealError};
use weir_path::departures::UNDER_WAY_MAX;
use weir_path::dispatch::{Dispatched, dispatched};
use weir_path::either_port::EitherPort;
use weir_path::frames::Frames;
use weir_path::loop_port::LoopPort;
use weir_path::plan::PortPlan;
use weir_path::port::ReceiveQueues;
use weir_path::worker::Worker;
use weir_port::bpf::doorbell::Bell;
use weir_port::link::Link;
use weir_port::monitor::{Monitor, State, Watch};
use weir_port::napi;
use weir_port::ownership::Ownership;
use weir_port::port::{Port, owner_of};
use weir_port::share::PortShare;
use weir_port::undo::Keeper;
use weir_port::xsk::umem::Umem;
use weir_port::{Doing, sys};
use weir_ring::memory::FrameMemory;
use weir_ring::pool::Pool;

use crate::clock::now_ns;
use crate::drive::drive;
use crate::idle::wake_cost_ns;
use crate::memory::DRAIN_NS_MAX;
use crate::moved;
use crate::progress::ProgressBoard;
use crate::seed::random_seed;
pub use summary::{SinkSummary, WorkerSummary};
use worker::{Pollers, SinkWorker};

const FRAME_BYTES: u32 = 4096;
/// Frames beside those on offer and under way: those that workers hold, queue and keep at hand, and some more for each.
const FRAMES: u32 = 4096;
const FRAMES_PER_WORKER: u32 = 1024;
/// The pause between two looks whether the end has come; each tells the caller the progress.
const LOOK: Duration = Duration::from_millis(1);
/// One look in so many is for what nobody told of: a carrier, or that the other end has moved.
const LOOKS_FOR_MORE: u32 = 100;

/// An interface taken over, and the parts for its workers.
pub struct Sink {
    port: Port,
    frames: Vec<Frames>,
    bells: Vec<Bell>,
    configuration: Configuration,
    watch: Watch,
    // Last: the memory goes when the sockets have gone.
    _umem: Umem,
}

/// The progress of a sink.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// The time since the start, in nanoseconds.
    pub elapsed_ns: u64,
    /// Packets and bytes delivered.
    pub delivered: Count,
    /// Packets of generators that have come, delivered or dropped for a rule.
    pub numbered: u64,
}

/// The way in which flows are dealt to workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Steering {
    /// There is one worker.
    None,
    /// Flows are dealt by the queues of the device: each worker polls its own.
    Queues,
    /// Flows are dealt by Toeplitz, where there are fewer queues than workers: those that poll hand over.
    Toeplitz,
}

impl Steering {
    fn new(queues: usize, workers: usize) -> Steering {
        match workers {
            1 => Steering::None,
            _ if queues < workers => Steering::Toeplitz,
            _ => Steering::Queues,
        }
    }
}

impl Sink {
    /// Takes an interface over; `keeper` puts it back.
    ///
    /// # Errors
    /// If it is none that can be taken over, or the kernel refuses.
    pub fn open(
        name: &str,
        configuration: Configuration,
        keeper: &mut dyn Keeper,
    ) -> weir_port::Result<Sink> {
        let workers = configuration.workers;
        let queues = Link::by_name(name)?.rx_queues;
        let under_way = (workers * (workers - 1)) as u32 * UNDER_WAY_MAX as u32;
        let frames = FRAMES + queues * napi::BUDGET + workers as u32 * FRAMES_PER_WORKER + under_way;
        let memory = FrameMemory::new(frames, FRAME_BYTES)
            .map_err(io::Error::other)
            .doing(|| "taking packet memory".into())?;
        let mut frames: Vec<Frames> =
            Pool::for_workers(memory, workers).into_iter().map(Frames::new).collect();
        let umem = Umem::new(Arc::clone(frames[0].pool.memory()));
        let owners = workers.min(queues as usize);
        let bells = (0..workers)
            .map(|_| Bell::new())
            .collect::<io::Result<Vec<_>>>()
            .doing(|| "making the doorbell (BPF ring buffer, Linux 5.8 or newer)".into())?;
        let rung: Vec<&Bell> = bells.iter().collect();
        // It may go down and up before the port is open.
        let monitor = Monitor::new()?;
        let port = Port::open(name, napi::BUDGET, &umem, &mut frames[..owners], &rung[..owners], keeper)?;
        let watch = Watch::new(monitor, port.link().ifindex)?;
        Ok(Sink { port, frames, bells, configuration, watch, _umem: umem })
    }

    /// The number of queues of the interface.
    pub fn queues(&self) -> usize {
        self.port.queues()
    }

    /// The way in which flows will be dealt to workers.
    pub fn steering(&self) -> Steering {
        Steering::new(self.port.queues(), self.configuration.workers)
    }

    /// Receives and checks packets until the interface vanishes or `observe`, which is shown the progress every millisecond or so, says
    /// false; `tell` is told the state of the interface, and `keeper` what is changed where its other end has moved to.
    ///
    /// # Errors
    /// If a worker cannot start or go on, the interface cannot be owned again, or the kernel does not say what it lost.
    pub fn receive(
        mut self,
        flows: u32,
        observe: &mut dyn FnMut(&Progress) -> bool,
        tell: &mut dyn FnMut(State),
        keeper: &mut dyn Keeper,
    ) -> weir_port::Result<SinkSummary> {
        let starting = || "starting workers".to_string();
        let count = self.configuration.workers;
        let (owners, steering) = (self.owners(), self.steering());
        let interface = self.port.link().name.clone();
        let entry =
            || PortPlan { interface: interface.clone(), limits: None, classes: None, is_optional: false };
        let entries = (0..owners).map(|owner| (entry(), owner)).collect();
        let steers = steering == Steering::Toeplitz;
        let dispatched = dispatched(&self.configuration.registry, entries, Vec::new(), steers, flows);
        let wake_cost_ns = wake_cost_ns().doing(starting)?;
        let (queues, ownership) = self.port.split();
        let mut shares: Vec<Vec<_>> = (0..owners).map(|_| Vec::new()).collect();
        for queue in queues {
            shares[owner_of(queue.number(), owners)].push(queue);
        }
        let announcements = ownership.announcements();
        let shares =
            shares.into_iter().map(|queues| PortShare::new(queues, Arc::clone(announcements))).collect();
        let paths = paths(&dispatched, shares, self.frames).map_err(io::Error::other).doing(starting)?;
        let board = Arc::new(ProgressBoard::new(count));
        let (mut senders, mut workers) = (Vec::new(), Vec::new());
        for (number, (path, bell)) in paths.into_iter().zip(&self.bells).enumerate() {
            let (sender, pollers) = channel();
            senders.push(sender);
            workers.push(SinkWorker::new(number, path, bell, pollers, Arc::clone(&board)));
        }
        let cores = cores(count);
        let mut ended = Vec::new();
        let is_gone = thread::scope(|scope| {
            let mut threads = Vec::new();
            for (worker, &core) in workers.into_iter().zip(&cores) {
                let core = self.configuration.bindthreads.then_some(core);
                let started = thread::Builder::new()
                    .name("weir-worker".into())
                    .spawn_scoped(scope, move || work(worker, core, wake_cost_ns));
                match started {
                    Ok(thread) => threads.push(thread),
                    Err(error) => {
                        board.end();
                        return Err(error);
                    }
                }
            }
            let mut interface = Watched {
                watch: &mut self.watch,
                ownership,
                senders: &senders,
                owners,
                tell,
                keeper: &mut *keeper,
                looks: 0,
            };
            let looked_on = look_on(&board, &mut interface, &threads, observe);
            board.end();
            for thread in threads {
                ended.push(join(thread)?);
            }
            Ok(looked_on)
        });
        let is_gone = is_gone.doing(|| format!("receiving on {interface}"))??;
        let summary = SinkSummary::new(&self.configuration, &dispatched, &cores, (steering, flows), &ended);
        drop(ended);
        // It may have moved since the last look.
        moved::follow(self.port.pair(), keeper)?;
        let lost = self.port.lost()?;
        Ok(SinkSummary { lost, is_gone, ..summary })
    }

    /// The number of workers that have queues.
    fn owners(&self) -> usize {
        self.configuration.workers.min(self.port.queues())
    }
}

/// The workers of a plan: these shares are its entries.
fn paths<'a>(
    Dispatched { plan, owners, loops }: &Dispatched,
    shares: Vec<PortShare<'a>>,
    frames: Vec<Frames>,
) -> Result<Vec<Worker<EitherPort<PortShare<'a>, LoopPort>>>, DealError> {
    let shared = shares.into_iter().map(|share| EitherPort::Kernel(Box::new(share)));
    let looped = loops.iter().map(|_| EitherPort::Memory(Box::default()));
    let shares = Shares {
        held_packets_max: frames[0].memory().frames().into(),
        poll_budget_max: napi::BUDGET,
        queues_gone: 0,
        seed: random_seed(),
    };
    deal::workers((plan, owners), shared.chain(looped).map(Some).collect(), frames, shares, now_ns())
}

/// The last cores of those this process may use: the first are the most likely to have interrupts to serve.
fn cores(workers: usize) -> Vec<usize> {
    let mut cores = sys::allowed_cores();
    cores.split_off(cores.len().saturating_sub(workers))
}

/// A worker's thread.
fn work(mut worker: SinkWorker<'_>, core: Option<usize>, wake_cost_ns: u64) -> io::Result<SinkWorker<'_>> {
    if let Some(core) = core {
        sys::pin_thread(core)?;
    }
    // The worker is handed back whole: none goes before all have stopped.
    drive(&mut worker, wake_cost_ns).map(|()| worker)
}

fn join<'a>(thread: ScopedJoinHandle<'_, io::Result<SinkWorker<'a>>>) -> io::Result<SinkWorker<'a>> {
    thread.join().unwrap_or_else(|_| Err(io::Error::other("a worker panicked")))
}

/// The interface, for the thread that looks on while workers have its queues.
struct Watched<'a> {
    watch: &'a mut Watch,
    ownership: &'a mut Ownership,
    senders: &'a [Sender<Pollers>],
    /// The number of workers that have queues.
    owners: usize,
    tell: &'a mut dyn FnMut(State),
    keeper: &'a mut dyn Keeper,
    /// The looks that were made.
    looks: u32,
}

impl Watched<'_> {
    /// Handles what has happened to the interface. Returns whether it is gone.
    fn look(&mut self) -> weir_port::Result<bool> {
        while let Some(state) = self.watch.next_change()? {
            (self.tell)(state);
            match state {
                State::Gone => return Ok(true),
                State::Down => self.ownership.note_down(),
                State::Up | State::NoCarrier => {
                    self.follow()?;
                    self.retake()?;
                }
            }
        }
        self.looks = self.looks.wrapping_add(1);
        if self.looks.is_multiple_of(LOOKS_FOR_MORE) {
            self.follow()?;
            if self.ownership.can_be_owned() {
                self.retake()?;
            }
        }
        Ok(false)
    }

    /// Goes on with the other end where it is, if it has moved.
    fn follow(&mut self) -> weir_port::Result<()> {
        if let Some(pair) = moved::follow(self.ownership.pair(), self.keeper)? {
            self.ownership.follow(pair);
        }
        Ok(())
    }

    /// Owns the queues again if they have other instances than before, unless the interface changes once more meanwhile, or its other end has
    /// just moved, which is followed later.
    fn retake(&mut self) -> weir_port::Result<()> {
        match self.own_again() {
            Err(_) if self.ownership.is_overtaken() || self.ownership.is_left_by_sender() => Ok(()),
            result => result,
        }
    }

    fn own_again(&mut self) -> weir_port::Result<()> {
        if !self.ownership.is_disowned()? {
            return self.ownership.note_up();
        }
        self.ownership.let_go()?;
        let mut pollers: Vec<_> = (0..self.owners).map(|_| Vec::new()).collect();
        let owners = self.owners;
        self.ownership.retake(|queue, poller| {
            pollers[owner_of(queue, owners)].push((queue, poller));
            Ok(())
        })?;
        for (sender, pollers) in self.senders.iter().zip(pollers) {
            // A worker that is gone has ended, which the caller finds.
            let _ = sender.send(pollers);
        }
        Ok(())
    }
}

/// Watches until all packets are handled, or that takes too long, or a worker has ended of itself. Returns whether the interface is gone.
fn look_on(
    board: &ProgressBoard,
    interface: &mut Watched<'_>,
    threads: &[ScopedJoinHandle<'_, io::Result<SinkWorker<'_>>>],
    observe: &mut dyn FnMut(&Progress) -> bool,
) -> weir_port::Result<bool> {
    let start_ns = now_ns();
    let mut stopping_since = None;
    let mut is_gone = false;
    while !threads.iter().any(ScopedJoinHandle::is_finished) && !board.is_at_rest() {
        thread::sleep(LOOK);
        let (now_ns, (delivered, numbered)) = (now_ns(), board.told());
        is_gone = is_gone || interface.look()?;
        let progress = Progress { elapsed_ns: now_ns - start_ns, delivered, numbered };
        let goes_on = observe(&progress) && !is_gone;
        if !goes_on {
            board.stop();
            if now_ns - *stopping_since.get_or_insert(now_ns) > DRAIN_NS_MAX {
                break;
            }
        }
    }
    Ok(is_gone)
}
