//! The result of a run of a path in memory: the books of all workers together, the counts of sinks, and the proof that nothing is missing.

use weir_core::account::Account;
use weir_core::drops::Count;
use weir_core::net::router::RouterCounts;
use weir_path::departures::Departures;
use weir_path::landings::Landings;
use weir_path::port::TransmitRing;
use weir_path::traffic::sequence::SequenceCounts;
use weir_ring::doorbell::DoorbellCounts;
use weir_ring::pool::Census;

use super::{MemoryPath, MemoryPathWorker};

/// The counters of a worker's thread.
#[derive(Clone, Copy, Debug, Default)]
pub struct WorkerTold {
    /// Passes.
    pub passes: u64,
    /// Times it slept.
    pub parks: u64,
    /// Processor time of its thread.
    pub cpu_ns: u64,
    /// The time when a packet last ended here, in nanoseconds.
    pub last_ended_ns: u64,
}

/// One worker.
#[derive(Clone, Copy, Debug, Default)]
pub struct WorkerRow {
    /// The counters of its thread.
    pub told: WorkerTold,
    /// The counts of others waking it.
    pub doorbell: DoorbellCounts,
    /// The number of times that the worker woke others.
    pub kicks_sent: u64,
    /// Times that its queues began to hold senders.
    pub blocked: u64,
    /// For how long its queues held senders, in nanoseconds; of each queue the longest.
    pub blocked_ns: u64,
}

/// A whole path.
#[derive(Clone, Debug)]
pub struct MemorySummary {
    /// The workers.
    pub workers: Vec<WorkerRow>,
    /// The books: packets that generators and stages made, delivered and dropped.
    pub account: Account,
    /// Packets that were inside at the end, between workers too.
    pub held: Count,
    /// Packets that found the rings of generators full, which are in no books.
    pub missed: u64,
    /// The frames, by where they were.
    pub census: Census,
    /// The port in the plan and the counts of sequences of each sink.
    pub sinks: Vec<(usize, SequenceCounts)>,
    /// The books of each stage of the plan.
    pub stages: Vec<Account>,
    /// The stage in the plan and the counters besides forwarding of each router.
    pub routers: Vec<(usize, RouterCounts)>,
    /// The packets that left by each port of the plan.
    pub delivered: Vec<Count>,
    /// The time from the start to the last packet that ended, in nanoseconds.
    pub elapsed_ns: u64,
}

impl MemorySummary {
    /// Returns whether every packet and every frame is accounted for (invariant 1).
    pub fn balances(&self) -> bool {
        self.account.balances(self.held) && self.census.balances() && self.census.out == self.held.packets
    }

    /// The sequence counts of all sinks, added up.
    pub fn sequences(&self) -> SequenceCounts {
        self.sinks.iter().fold(SequenceCounts::default(), |mut sum, (_, counts)| {
            sum.merge(counts);
            sum
        })
    }

    /// Packets that were accepted and have neither arrived nor been dropped for a reason nor are inside: 0, or it is a fault.
    pub fn lost(&self) -> u64 {
        let inside = self.account.dropped.total().packets + self.held.packets;
        self.account.accepted.packets.saturating_sub(self.account.delivered.packets + inside)
    }

    /// Packets delivered for each second of processor time of the busiest worker, spinning included: the time that others take of the
    /// machine is not in it.
    pub fn packets_per_cpu_s(&self) -> f64 {
        let busiest_ns = self.workers.iter().map(|worker| worker.told.cpu_ns).max().unwrap_or(0);
        self.account.delivered.packets as f64 * 1e9 / busiest_ns.max(1) as f64
    }

    /// [`elapsed_ns`](Self::elapsed_ns) in seconds, to divide by: a nanosecond where nothing ended.
    pub fn seconds(&self) -> f64 {
        self.elapsed_ns.max(1) as f64 / 1e9
    }

    /// Packets delivered a second.
    pub fn packets_per_s(&self) -> f64 {
        self.account.delivered.packets as f64 / self.seconds()
    }
}

/// Adds up the results of workers, in the order of their numbers, that began at `start_ns`.
pub fn summarise<'a>(
    spec: &MemoryPath,
    workers: impl Iterator<Item = (&'a MemoryPathWorker, WorkerTold)>,
    start_ns: u64,
) -> MemorySummary {
    let mut summary = MemorySummary {
        workers: Vec::new(),
        account: Account::default(),
        held: Count::default(),
        missed: 0,
        census: Census::default(),
        sinks: Vec::new(),
        stages: vec![Account::default(); spec.plan.stages.len()],
        routers: Vec::new(),
        delivered: vec![Count::default(); spec.plan.ports.len()],
        elapsed_ns: 0,
    };
    let (mut handed, mut taken) = (Count::default(), Count::default());
    for (number, (path, told)) in workers.enumerate() {
        summary.elapsed_ns = summary.elapsed_ns.max(told.last_ended_ns.saturating_sub(start_ns));
        let stages = spec.owners.stages.iter().enumerate().filter(|(_, owner)| **owner == number);
        summary.census = path.frames().pool.census();
        path.handed().iter().for_each(|&to| handed.merge(to));
        taken.merge(path.landed());
        summary.add_worker(path, told, stages.map(|(stage, _)| stage));
    }
    // Packets that were handed over and have not been taken.
    let [packets, bytes] = [handed.packets - taken.packets, handed.bytes - taken.bytes];
    summary.held.merge(Count { packets, bytes });
    summary.sinks.sort_by_key(|(port, _)| *port);
    summary
}

impl MemorySummary {
    fn add_worker(&mut self, path: &MemoryPathWorker, told: WorkerTold, stages: impl Iterator<Item = usize>) {
        let mut row = WorkerRow { told, ..WorkerRow::default() };
        for end in path.ends() {
            self.held.merge(end.port.in_flight());
            // Packets that leave by other ports come back.
            let Some(port) = end.port.kernel() else { continue };
            self.account.accepted.merge(port.made());
            self.account.delivered.merge(end.exit.account().delivered);
            self.account.dropped.merge(&end.exit.account().dropped);
            self.missed += port.missed();
            self.delivered[end.index].merge(end.exit.account().delivered);
            self.sinks.extend(port.sequences().map(|sequences| (end.index, *sequences.counts())));
        }
        let between = path.between();
        for queue in between.egress.queues() {
            self.account.dropped.merge(&queue.shaping.account().dropped);
            self.held.merge(queue.shaping.held());
            row.blocked += queue.counts().blocked;
            row.blocked_ns = row.blocked_ns.max(queue.shaping.blocked_ns(told.last_ended_ns));
        }
        for (number, stage) in stages.zip(between.stages()) {
            let [made, consumed] = stage.own();
            self.account.accepted.merge(made);
            self.account.delivered.merge(consumed);
            self.account.dropped.merge(&stage.account().dropped);
            self.held.merge(stage.held());
            self.stages[number] = stage.account().clone();
            self.routers.extend(stage.router().map(|router| (number, router.counts())));
        }
        row.doorbell = path.landings().map(Landings::doorbell).unwrap_or_default();
        row.kicks_sent = between.over.as_ref().map_or(0, Departures::kicks);
        self.workers.push(row);
    }
}
