//! A sink on a real interface: several workers receive, and netisr's dispatch decides which of them handles a packet, and when.
//!
//! ```text
//! queues of the port, dealt to workers in turn --poll--> hash -> ether -> arp, ip, ip6 --> check of the numbers, frame back
//!                                                          |       |        |
//!                                                          |       +--------+--- to another worker's queue, by hand-off
//!                                  the queue's own worker, or Toeplitz where there are fewer queues than workers
//! ```
//!
//! - Where the port has as many queues as there are workers, each polls its own, and whoever put flows into queues (the NIC; on a
//!   veth the program at the sending end) has steered: nothing is hashed and nothing handed over.
//! - Where it has fewer, who polls one hashes its packets (`rss.*`), and ether, whose mode is `hybrid`, hands those of other workers'
//!   flows to them ([`weir_core::dispatch::handlers`]).
//! - A full workstream holds the worker that polls, [`worker`]; nothing is dropped unless a protocol's rule says so.
//! - While the interface is down nothing comes; when it is up again, its queues have other NAPI instances, which the thread that
//!   calls owns anew and hands to the workers. When it vanishes the sink ends.
//!
//! Books (invariant 1): received = delivered + dropped(reason) + held, over all workers. The end: queues are polled no more, what is
//! inside is handled, then workers are told to end and their numbers are added up.
//!
//! Owner: each thread its worker; the thread that calls owns none. Limits: interfaces are veths ([`weir_port::port`]).

pub mod hands;
mod shared;
mod ways;
pub mod worker;

use std::sync::Arc;
use std::thread::{self, ScopedJoinHandle};
use std::time::Duration;

use weir_core::account::Account;
use weir_core::dispatch::handlers::Handlers;
use weir_core::dispatch::netstat::{NetstatTables, WorkstreamRow};
use weir_core::dispatch::settings::Configuration;
use weir_core::drops::{Count, DropCounts};
use weir_path::frames::Frames;
use weir_path::port::ReceiveQueues;
use weir_port::bpf::doorbell::Bell;
use weir_port::link::Link;
use weir_port::monitor::{State, Watch};
use weir_port::napi;
use weir_port::ownership::{Lost, Ownership};
use weir_port::port::{Port, owner_of};
use weir_port::undo::Keeper;
use weir_port::xsk::umem::Umem;
use weir_port::{Doing, sys};
use weir_ring::handoff;
use weir_ring::inject::{Injector, PushError};
use weir_ring::loans::Loans;
use weir_ring::memory::FrameMemory;
use weir_ring::pool::Pool;

use crate::clock::now_ns;
use crate::idle::wake_cost_ns;
use crate::memory::DRAIN_NS_MAX;
use hands::Hands;
use shared::Shared;
use ways::{Message, Ways, Words};
use weir_path::traffic::sequence::Sequences;
use worker::{Ended, Intake, Worker};

const FRAME_BYTES: u32 = 4096;
/// Frames beside those on offer: what workers hold, queue and keep at hand, and some more for each.
const FRAMES: u32 = 4096;
const FRAMES_PER_WORKER: u32 = 1024;
/// Words from outside that may be under way to a worker.
const INJECT_ELEMENTS: usize = 16;
/// How often the caller is told how it goes, and the end is looked for.
const LOOK: Duration = Duration::from_millis(1);

/// An interface taken over, and what its workers are to have.
pub struct Sink {
    port: Port,
    frames: Vec<Frames>,
    bells: Vec<Bell>,
    configuration: Configuration,
    // Last: the memory goes when the sockets have gone.
    _umem: Umem,
}

/// How it goes.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// Since the start.
    pub elapsed_ns: u64,
    /// What was delivered.
    pub delivered: Count,
    /// Packets of generators that have come, delivered or dropped for a rule.
    pub numbered: u64,
}

/// What one worker came to.
#[derive(Clone, Debug)]
pub struct WorkerSummary {
    /// The core it is for.
    pub core: usize,
    /// How many queues of the port it had.
    pub queues: usize,
    /// What came by them.
    pub received: Count,
    /// What it delivered, whoever received it.
    pub delivered: Count,
    /// Flows of generators that came to it.
    pub flows: u64,
    /// Its row for each protocol in netisr's third table.
    pub rows: Vec<WorkstreamRow>,
}

/// What it all came to.
#[derive(Debug)]
pub struct Summary {
    /// Worker by worker.
    pub workers: Vec<WorkerSummary>,
    /// netisr's tables.
    pub tables: NetstatTables,
    /// What came, and what became of it.
    pub account: Account,
    /// What is inside, counted in the queues themselves.
    pub held: Count,
    /// Whether the books of each workstream balance.
    pub workstreams_balance: bool,
    /// What generators sent.
    pub sequences: Sequences,
    /// Flows of generators that came to more than one worker.
    pub split_flows: u64,
    /// Packets that the kernel lost at the interface.
    pub lost: Lost,
    /// Whether the interface vanished.
    pub is_gone: bool,
    /// How flows were dealt to workers.
    pub steering: Steering,
}

/// How flows are dealt to workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Steering {
    /// There is one worker.
    None,
    /// By the queues of the device: each worker polls its own.
    Queues,
    /// By Toeplitz, where there are fewer queues than workers: those that poll hand over.
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

impl Summary {
    /// Whether received = delivered + dropped + held, in all and in each workstream.
    pub fn balances(&self) -> bool {
        self.account.balances(self.held) && self.workstreams_balance
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
        let frames = FRAMES + queues * napi::BUDGET + workers as u32 * FRAMES_PER_WORKER;
        let memory = FrameMemory::new(frames, FRAME_BYTES)
            .map_err(std::io::Error::other)
            .doing(|| "taking packet memory".into())?;
        let mut frames: Vec<Frames> = Pool::for_workers(memory, workers)
            .into_iter()
            .map(|pool| Frames { loans: Loans::new(Arc::clone(pool.memory())), pool })
            .collect();
        let umem = Umem::new(Arc::clone(frames[0].pool.memory()));
        let owners = workers.min(queues as usize);
        let bells = (0..owners)
            .map(|_| Bell::new())
            .collect::<std::io::Result<Vec<_>>>()
            .doing(|| "making the doorbell (BPF ring buffer, Linux 5.8 or newer)".into())?;
        let rung: Vec<&Bell> = bells.iter().collect();
        let port = Port::open(name, napi::BUDGET, &umem, &mut frames[..owners], &rung, keeper)?;
        Ok(Sink { port, frames, bells, configuration, _umem: umem })
    }

    /// How many queues the interface has.
    pub fn queues(&self) -> usize {
        self.port.queues()
    }

    /// How flows will be dealt to workers.
    pub fn steering(&self) -> Steering {
        Steering::new(self.port.queues(), self.configuration.workers)
    }

    /// Receives and checks packets until the interface vanishes or `observe`, which is shown how it goes every millisecond or so,
    /// says false; `tell` is told how the interface fares.
    ///
    /// # Errors
    /// If a worker cannot start or go on, the interface cannot be owned again, or the kernel does not say what it lost.
    pub fn receive(
        mut self,
        flows: u32,
        observe: &mut dyn FnMut(&Progress) -> bool,
        tell: &mut dyn FnMut(State),
    ) -> weir_port::Result<Summary> {
        let mut watch = Watch::new(self.port.link().ifindex)?;
        let starting = || "starting workers".to_string();
        let count = self.configuration.workers;
        let registry = &self.configuration.registry;
        let handlers = Handlers::new(registry);
        let shared = Arc::new(Shared::new(count, 0));
        let words = Arc::new(Words::new(count));
        let ring_elements = self.frames[0].pool.memory().frames() as usize + handoff::BURST;
        let mesh = handoff::mesh::<Message>(count, ring_elements, INJECT_ELEMENTS)
            .map_err(std::io::Error::other)
            .doing(starting)?;
        let wake_cost_ns = wake_cost_ns().doing(starting)?;
        let owners = self.bells.len();
        let steering = self.steering();
        let steers = steering == Steering::Toeplitz;
        let (queues, ownership) = self.port.split();
        let mut intakes: Vec<Option<Intake<'_>>> = (0..count)
            .map(|worker| {
                let bell = self.bells.get(worker)?;
                let announcements = Arc::clone(ownership.announcements());
                Some(Intake { queues: Vec::new(), announcements, bell, steers })
            })
            .collect();
        for queue in queues {
            let intake = intakes[owner_of(queue.number(), owners)].as_mut().expect("an owner has an intake");
            intake.queues.push(queue);
        }
        let mut injectors = Vec::new();
        let mut workers = Vec::new();
        let parts = mesh.into_iter().zip(self.frames).zip(intakes).enumerate();
        for (number, (((inbox, outlets), frames), intake)) in parts {
            injectors.push(inbox.injector());
            let ways = Ways::new(number, outlets, registry, Arc::clone(&words));
            let hands = Hands::new(handlers, frames, ways, Sequences::joining(flows));
            let protocols = (handlers.ether(), Arc::clone(registry));
            workers.push(Worker::new(number, intake, protocols, hands, inbox, Arc::clone(&shared)));
        }
        let cores = cores(count);
        let ended = thread::scope(|scope| {
            let mut threads = Vec::new();
            for (worker, &core) in workers.into_iter().zip(&cores) {
                let core = self.configuration.bindthreads.then_some(core);
                let started = thread::Builder::new()
                    .name("weir-worker".into())
                    .spawn_scoped(scope, move || work(worker, core, wake_cost_ns));
                match started {
                    Ok(thread) => threads.push(thread),
                    Err(error) => {
                        end(&shared, &injectors);
                        return Err(error);
                    }
                }
            }
            let mut interface = Watched { watch: &mut watch, ownership, injectors: &injectors, owners, tell };
            let looked_on = look_on(&shared, &words, &mut interface, &threads, observe);
            end(&shared, &injectors);
            let ended = threads.into_iter().map(join).collect::<std::io::Result<Vec<Ended>>>()?;
            Ok((looked_on, ended))
        });
        let (is_gone, ended) = ended.doing(|| format!("receiving on {}", self.port.link().name))?;
        let (is_gone, lost) = (is_gone?, self.port.lost()?);
        let summary = summarise(&self.configuration, self.port.queues(), &cores, ended);
        Ok(Summary { lost, is_gone, ..summary })
    }
}

/// The last cores of those this process may use: the first are the most likely to have interrupts to serve.
fn cores(workers: usize) -> Vec<usize> {
    let mut cores = sys::allowed_cores();
    cores.split_off(cores.len().saturating_sub(workers))
}

/// A worker's thread.
fn work(worker: Worker<'_>, core: Option<usize>, wake_cost_ns: u64) -> std::io::Result<Ended> {
    if let Some(core) = core {
        sys::pin_thread(core)?;
    }
    worker.run(wake_cost_ns)
}

fn join(thread: ScopedJoinHandle<'_, std::io::Result<Ended>>) -> std::io::Result<Ended> {
    thread.join().unwrap_or_else(|_| Err(std::io::Error::other("a worker panicked")))
}

/// The interface, for the thread that looks on while workers have its queues.
struct Watched<'a> {
    watch: &'a mut Watch,
    ownership: &'a mut Ownership,
    injectors: &'a [Injector<Message>],
    /// How many workers have queues.
    owners: usize,
    tell: &'a mut dyn FnMut(State),
}

impl Watched<'_> {
    /// Sees to what has happened to the interface; whether it is gone.
    fn look(&mut self) -> weir_port::Result<bool> {
        while let Some(state) = self.watch.next_change()? {
            (self.tell)(state);
            match state {
                State::Gone => return Ok(true),
                State::Down => self.ownership.note_down(),
                State::Up | State::NoCarrier => match self.retake() {
                    // Down again already: it will come up again, or vanish.
                    Err(_) if !Link::by_index(self.ownership.link().ifindex).is_ok_and(|link| link.up) => {}
                    result => result?,
                },
            }
        }
        Ok(false)
    }

    /// Owns the queues again if they have other instances than before.
    fn retake(&mut self) -> weir_port::Result<()> {
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
        for (injector, pollers) in self.injectors.iter().zip(pollers) {
            let mut message = Message::Pollers(pollers);
            // One that has no room has words to take first; one that is gone has ended, which the caller finds.
            while let Err(PushError::Full(back)) = injector.push(message) {
                message = back;
                thread::sleep(LOOK);
            }
        }
        Ok(())
    }
}

/// Looks on until all is handled, or that takes too long, or a worker has ended of itself; whether the interface is gone.
fn look_on(
    shared: &Shared,
    words: &Words,
    interface: &mut Watched<'_>,
    threads: &[ScopedJoinHandle<'_, std::io::Result<Ended>>],
    observe: &mut dyn FnMut(&Progress) -> bool,
) -> weir_port::Result<bool> {
    let start_ns = now_ns();
    let mut stopping_since = None;
    let mut is_gone = false;
    while !threads.iter().any(ScopedJoinHandle::is_finished) && !shared.is_at_rest() {
        thread::sleep(LOOK);
        let (now_ns, told) = (now_ns(), shared.told());
        is_gone = is_gone || interface.look()?;
        let delivered = Count { packets: told.delivered, bytes: told.delivered_bytes };
        let elapsed_ns = now_ns - start_ns;
        let progress = Progress { elapsed_ns, delivered, numbered: words.numbered() };
        let goes_on = observe(&progress) && !is_gone;
        if !goes_on && stopping_since.is_none() {
            shared.stop();
            wake(interface.injectors);
        }
        if !goes_on && now_ns - *stopping_since.get_or_insert(now_ns) > DRAIN_NS_MAX {
            break;
        }
    }
    Ok(is_gone)
}

/// Makes all workers end.
fn end(shared: &Shared, injectors: &[Injector<Message>]) {
    shared.end();
    wake(injectors);
}

/// Makes all workers look at what they share.
fn wake(injectors: &[Injector<Message>]) {
    // One that has no room for it has something to look at already.
    injectors.iter().for_each(|injector| drop(injector.push(Message::Look)));
}

fn summarise(configuration: &Configuration, queues: usize, cores: &[usize], ended: Vec<Ended>) -> Summary {
    let now_ns = now_ns();
    let (mut account, mut held) = (Account::default(), Count::default());
    let mut dropped = DropCounts::default();
    let (mut workstreams_balance, mut split_flows) = (true, 0);
    let mut sequences: Option<Sequences> = None;
    let mut workers = Vec::new();
    for (number, Ended { received, held: waiting, workstream, hands }) in ended.into_iter().enumerate() {
        account.accepted.merge(received);
        account.delivered.merge(hands.delivered);
        dropped.merge(&workstream.account().dropped);
        workstreams_balance &= workstream.account().balances(workstream.held());
        held.merge(waiting);
        held.merge(workstream.held());
        workers.push(WorkerSummary {
            core: cores[number],
            queues: (number..queues).step_by(cores.len()).count(),
            received,
            delivered: hands.delivered,
            flows: hands.sequences.flows(),
            rows: workstream.rows(cores[number], now_ns),
        });
        match &mut sequences {
            None => sequences = Some(hands.sequences),
            Some(sequences) => split_flows += sequences.merge(&hands.sequences),
        }
    }
    account.dropped = dropped;
    let rows = workers.iter().flat_map(|worker| worker.rows.clone()).collect();
    Summary {
        tables: NetstatTables::new(configuration, rows),
        sequences: sequences.expect("there is a worker"),
        workers,
        account,
        held,
        workstreams_balance,
        split_flows,
        lost: Lost::default(),
        is_gone: false,
        steering: Steering::new(queues, cores.len()),
    }
}
