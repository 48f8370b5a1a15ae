//! Random graphs of stages, cycles included, with rings of minimum size: do all packets always come out?
//!
//! ```text
//! frames:  a packet takes one at its intake and keeps it to the end; with none free, no packet is taken in
//! rings:   edge u -> v holds as many as the pools whose intakes can reach u have frames: enqueue cannot fail
//! wake-up: producer   publish; look at the consumer's state word; turn Parking or Parked into Notified; kick if it was Parked
//!          consumer   nothing found: write Parking; re-check every input; turn Parking into Parked; block
//! ```
//!
//! Workers own stages; each acts in small steps (one publish, one look, one kick, one re-check), and a seeded scheduler picks the worker
//! that acts next, so that every step of one may fall between any two of another. A run ends when every packet is out, or when no worker
//! can act. Credit that returns to another worker's pool is published and kicked for like a packet.
//!
//! [`Fault`] breaks one rule at a time, to show that a run would notice: each of them hangs in some runs.
//!
//! Owner: a run owns all of it. Source: ARCHITECTURE.md, invariants 3, 4 and 6.
//! Limits: sequentially consistent steps, so memory ordering is the model checker's business (weir-ring under loom);
//! the rings here are models, not weir-ring's.

use std::collections::VecDeque;

use crate::prng::Prng;

/// A rule that is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Every rule is kept.
    None,
    /// Rings have one place, and the producer waits for room.
    ShortRings,
    /// The producer looks at the state word only if the ring was empty before it published.
    Snapshot,
    /// The consumer blocks without a second look.
    NoRecheck,
    /// The consumer writes Parked over any state, so also over a producer's Notified.
    StoresParked,
    /// The return of a frame kicks no worker.
    SilentCredit,
}

/// The outcome of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Packets that came out.
    pub delivered: u64,
    /// Packets offered to the intakes.
    pub offered: u64,
    /// Times a worker blocked.
    pub parks: u64,
    /// Times a blocked worker was kicked.
    pub kicks: u64,
    /// True if some stage can be reached from itself.
    pub has_cycle: bool,
}

impl Outcome {
    /// Returns whether all packets came out.
    pub fn is_complete(&self) -> bool {
        self.delivered == self.offered
    }
}

/// Runs the graph that `seed` names.
///
/// # Panics
///
/// If an enqueue fails, a frame is returned twice, or a park is kicked twice: these may not happen under any fault.
pub fn run(seed: u64, fault: Fault) -> Outcome {
    let mut run = Run::new(seed, fault);
    while let Some(worker) = run.pick() {
        run.act(worker);
    }
    assert!(run.outcome.kicks <= run.outcome.parks, "seed {seed}: a park was kicked twice");
    run.outcome
}

const STAGES_MAX: usize = 6;
const HOPS_MAX: u64 = 8;

struct Run {
    prng: Prng,
    fault: Fault,
    workers: Vec<Worker>,
    /// The worker that owns each stage.
    owner: Vec<usize>,
    rings: Vec<Ring>,
    /// `edges[u]` lists rings out of stage u.
    edges: Vec<Vec<usize>>,
    pools: Vec<Pool>,
    outcome: Outcome,
}

/// An edge of the graph.
struct Ring {
    to: usize,
    capacity: usize,
    packets: VecDeque<Packet>,
}

/// An intake with its frames; `returned` are those that other workers gave back.
struct Pool {
    stage: usize,
    frames: usize,
    free: usize,
    returned: usize,
    waiting: u64,
}

#[derive(Clone)]
struct Packet {
    pool: usize,
    /// The rings still to travel, last first.
    route: Vec<usize>,
}

struct Worker {
    /// The state word that other workers see.
    state: StateWord,
    phase: Phase,
    /// The next actions, one at a step.
    actions: VecDeque<Action>,
}

impl Worker {
    fn wake(&mut self) {
        self.state = StateWord::Running;
        self.phase = Phase::Working;
    }
}

/// The states of `weir_ring::doorbell`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StateWord {
    Running,
    Parking,
    Parked,
    Notified,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Working,
    /// The worker found nothing and will say so next.
    Idle,
    /// The worker has said Parking; the second look comes next.
    Rechecking,
    /// The second look found nothing; the worker says Parked next, unless a producer was faster.
    Committing,
    Blocked,
}

enum Action {
    /// With [`Fault::Snapshot`] alone: decides, before publishing, whether the state word will be looked at.
    Snapshot {
        ring: usize,
        packet: Packet,
    },
    Publish {
        ring: usize,
        packet: Packet,
        look: bool,
    },
    Return {
        pool: usize,
    },
    Look {
        worker: usize,
    },
    /// Compares and swaps the state word of a worker that was Parking or Parked.
    Notify {
        worker: usize,
    },
    Kick {
        worker: usize,
    },
}

impl Run {
    fn new(seed: u64, fault: Fault) -> Run {
        let mut prng = Prng::new(seed);
        let stages = prng.between(1, STAGES_MAX as u64) as usize;
        let workers = prng.between(1, 4) as usize;
        let mut reach = vec![vec![false; stages]; stages];
        let mut rings: Vec<Ring> = Vec::new();
        let mut edges = vec![Vec::new(); stages];
        for _ in 0..prng.between(1, 2 * stages as u64) {
            let (from, to) = (prng.below(stages as u64) as usize, prng.below(stages as u64) as usize);
            if !reach[from][to] {
                reach[from][to] = true;
                edges[from].push(rings.len());
                rings.push(Ring { to, capacity: 0, packets: VecDeque::new() });
            }
        }
        for via in 0..stages {
            for from in 0..stages {
                for to in 0..stages {
                    reach[from][to] |= reach[from][via] && reach[via][to];
                }
            }
        }
        let pools: Vec<Pool> = (0..prng.between(1, 3))
            .map(|_| {
                let frames = prng.between(1, 6) as usize;
                let stage = prng.below(stages as u64) as usize;
                Pool { stage, frames, free: frames, returned: 0, waiting: prng.between(1, 20) }
            })
            .collect();
        for (from, outgoing) in edges.iter().enumerate() {
            let reaching = pools.iter().filter(|pool| pool.stage == from || reach[pool.stage][from]);
            let frames: usize = reaching.map(|pool| pool.frames).sum();
            for &ring in outgoing {
                rings[ring].capacity = if fault == Fault::ShortRings { 1 } else { frames };
            }
        }
        Run {
            outcome: Outcome {
                offered: pools.iter().map(|pool| pool.waiting).sum(),
                has_cycle: (0..stages).any(|stage| reach[stage][stage]),
                ..Outcome::default()
            },
            owner: (0..stages).map(|_| prng.below(workers as u64) as usize).collect(),
            workers: (0..workers)
                .map(|_| Worker {
                    state: StateWord::Running,
                    phase: Phase::Working,
                    actions: VecDeque::new(),
                })
                .collect(),
            prng,
            fault,
            rings,
            edges,
            pools,
        }
    }

    /// A worker that can act.
    fn pick(&mut self) -> Option<usize> {
        let able: Vec<usize> = (0..self.workers.len()).filter(|&worker| self.can_act(worker)).collect();
        (!able.is_empty()).then(|| able[self.prng.below(able.len() as u64) as usize])
    }

    fn can_act(&self, worker: usize) -> bool {
        let waits_for_room = matches!(self.workers[worker].actions.front(),
            Some(Action::Publish { ring, .. }) if self.fault == Fault::ShortRings && self.is_full(*ring));
        self.workers[worker].phase != Phase::Blocked && !waits_for_room
    }

    fn is_full(&self, ring: usize) -> bool {
        self.rings[ring].packets.len() == self.rings[ring].capacity
    }

    /// Makes one step of `worker`.
    fn act(&mut self, worker: usize) {
        match self.workers[worker].phase {
            Phase::Working => match self.workers[worker].actions.pop_front() {
                Some(action) => self.perform(worker, action),
                None => self.pass(worker),
            },
            Phase::Idle => {
                self.outcome.parks += 1;
                self.workers[worker].state = StateWord::Parking;
                self.workers[worker].phase = Phase::Rechecking;
            }
            Phase::Rechecking => {
                let found = self.fault != Fault::NoRecheck && self.has_input(worker);
                // The producer that stopped it meanwhile has not kicked, so there is nothing to take back.
                match found {
                    true => self.workers[worker].wake(),
                    false => self.workers[worker].phase = Phase::Committing,
                }
            }
            Phase::Committing => {
                if self.workers[worker].state == StateWord::Parking || self.fault == Fault::StoresParked {
                    self.workers[worker].state = StateWord::Parked;
                    self.workers[worker].phase = Phase::Blocked;
                } else {
                    self.workers[worker].wake();
                }
            }
            Phase::Blocked => {}
        }
    }

    fn perform(&mut self, worker: usize, action: Action) {
        match action {
            Action::Snapshot { ring, packet } => {
                let look = self.rings[ring].packets.is_empty();
                self.workers[worker].actions.push_front(Action::Publish { ring, packet, look });
            }
            Action::Publish { ring, packet, look } => {
                assert!(!self.is_full(ring), "an internal enqueue failed");
                self.rings[ring].packets.push_back(packet);
                let consumer = self.owner[self.rings[ring].to];
                if consumer != worker && look {
                    self.workers[worker].actions.push_front(Action::Look { worker: consumer });
                }
            }
            Action::Return { pool } => {
                self.pools[pool].returned += 1;
                assert!(self.pools[pool].free + self.pools[pool].returned <= self.pools[pool].frames);
                let consumer = self.owner[self.pools[pool].stage];
                if consumer != worker && self.fault != Fault::SilentCredit {
                    self.workers[worker].actions.push_front(Action::Look { worker: consumer });
                }
            }
            Action::Look { worker: other } => {
                if matches!(self.workers[other].state, StateWord::Parking | StateWord::Parked) {
                    self.workers[worker].actions.push_front(Action::Notify { worker: other });
                }
            }
            Action::Notify { worker: other } => {
                // Of several producers that saw it, one wins; it goes by the present word. Only a Parked worker needs a kick.
                let before = self.workers[other].state;
                if matches!(before, StateWord::Parking | StateWord::Parked) {
                    self.workers[other].state = StateWord::Notified;
                }
                if before == StateWord::Parked {
                    self.workers[worker].actions.push_front(Action::Kick { worker: other });
                }
            }
            Action::Kick { worker: other } => {
                assert_eq!(self.workers[other].phase, Phase::Blocked, "a worker that is awake was kicked");
                self.outcome.kicks += 1;
                self.workers[other].wake();
            }
        }
    }

    /// Passes over all inputs of `worker`: turns what is there now into actions; or makes the first step of parking.
    fn pass(&mut self, worker: usize) {
        for ring in 0..self.rings.len() {
            if self.owner[self.rings[ring].to] == worker {
                let here = self.rings[ring].packets.len() as u64;
                for _ in 0..here.min(self.prng.between(1, 4)) {
                    if let Some(packet) = self.rings[ring].packets.pop_front() {
                        self.forward(worker, packet);
                    }
                }
            }
        }
        for index in 0..self.pools.len() {
            if self.owner[self.pools[index].stage] == worker {
                let pool = &mut self.pools[index];
                pool.free += std::mem::take(&mut pool.returned);
                let taken = pool.waiting.min(pool.free as u64);
                pool.waiting -= taken;
                pool.free -= taken as usize;
                for _ in 0..taken {
                    let packet = self.new_packet(index);
                    self.forward(worker, packet);
                }
            }
        }
        if self.workers[worker].actions.is_empty() {
            self.workers[worker].phase = Phase::Idle;
        }
    }

    /// Returns whether the input of `worker` holds anything: packets in its rings, frames for packets that wait.
    fn has_input(&self, worker: usize) -> bool {
        let is_mine = |stage: usize| self.owner[stage] == worker;
        self.rings.iter().any(|ring| is_mine(ring.to) && !ring.packets.is_empty())
            || self.pools.iter().any(|pool| is_mine(pool.stage) && pool.waiting > 0 && pool.returned > 0)
    }

    /// A packet with a random walk through the graph before it.
    fn new_packet(&mut self, pool: usize) -> Packet {
        let mut route = Vec::new();
        let mut stage = self.pools[pool].stage;
        for _ in 0..self.prng.below(HOPS_MAX + 1) {
            let outgoing = &self.edges[stage];
            if outgoing.is_empty() {
                break;
            }
            let ring = outgoing[self.prng.below(outgoing.len() as u64) as usize];
            route.push(ring);
            stage = self.rings[ring].to;
        }
        route.reverse();
        Packet { pool, route }
    }

    /// Plans a packet's next step: into its next ring, or out.
    fn forward(&mut self, worker: usize, mut packet: Packet) {
        let action = match packet.route.pop() {
            Some(ring) if self.fault == Fault::Snapshot => Action::Snapshot { ring, packet },
            Some(ring) => Action::Publish { ring, packet, look: true },
            None => {
                self.outcome.delivered += 1;
                Action::Return { pool: packet.pool }
            }
        };
        self.workers[worker].actions.push_back(action);
    }
}
