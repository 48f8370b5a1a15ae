//! The result of a sink, with the rows of its workers as netisr's tables.
//!
//! Owner: the caller.

use weir_core::account::Account;
use weir_core::dispatch::netstat::{NetstatTables, WorkstreamRow};
use weir_core::dispatch::protocol::ProtoId;
use weir_core::dispatch::settings::Configuration;
use weir_core::drops::Count;
use weir_path::dispatch::Dispatched;
use weir_path::traffic::sequence::Sequences;
use weir_port::ownership::Lost;

use super::Steering;
use super::worker::SinkWorker;
use crate::clock::now_ns;

/// The result of one worker.
#[derive(Clone, Debug)]
pub struct WorkerSummary {
    /// The core it is for.
    pub core: usize,
    /// The number of queues of the port that the worker had.
    pub queues: usize,
    /// Packets and bytes that came by them.
    pub received: Count,
    /// Packets and bytes that it delivered, whichever worker received them.
    pub delivered: Count,
    /// Flows of generators that came to it.
    pub flows: u64,
    /// Its row for each protocol in netisr's third table.
    pub rows: Vec<WorkstreamRow>,
}

/// The result of all workers together.
#[derive(Debug)]
pub struct SinkSummary {
    /// Worker by worker.
    pub workers: Vec<WorkerSummary>,
    /// netisr's tables.
    pub tables: NetstatTables,
    /// The packets that came, were delivered and were dropped.
    pub account: Account,
    /// Packets that are inside, counted in the queues themselves.
    pub held: Count,
    /// True if the books of each workstream balance.
    pub workstreams_balance: bool,
    /// The sequences of generators, as they were received.
    pub sequences: Sequences,
    /// Flows of generators that came to more than one worker.
    pub split_flows: u64,
    /// Packets that the kernel lost at the interface.
    pub lost: Lost,
    /// True if the interface vanished.
    pub is_gone: bool,
    /// The way in which flows were dealt to workers.
    pub steering: Steering,
}

impl SinkSummary {
    /// The summary of workers that have ended, on these cores, which followed so many flows.
    pub(super) fn new(
        configuration: &Configuration,
        dispatched: &Dispatched,
        cores: &[usize],
        (steering, flows): (Steering, u32),
        ended: &[SinkWorker<'_>],
    ) -> SinkSummary {
        let (mut account, mut held) = (Account::default(), Count::default());
        let [mut handed, mut taken] = [Count::default(); 2];
        let (mut workstreams_balance, mut split_flows) = (true, 0);
        let mut sequences = Sequences::joining(flows);
        let mut workers = Vec::new();
        for (number, worker) in ended.iter().enumerate() {
            account.accepted.merge(worker.received());
            account.delivered.merge(worker.delivered());
            account.dropped.merge(&worker.account().dropped);
            workstreams_balance &= worker.balances();
            held.merge(worker.held());
            let [given, got] = worker.crossed();
            handed.merge(given);
            taken.merge(got);
            let of_worker = worker.dispatch().sequences();
            split_flows += sequences.merge(of_worker);
            let ids = configuration.registry.ids();
            workers.push(WorkerSummary {
                core: cores[number],
                queues: worker.queues(),
                received: worker.received(),
                delivered: worker.delivered(),
                flows: of_worker.flows(),
                rows: ids
                    .map(|id| row(configuration, dispatched, worker, (number, cores[number]), id))
                    .collect(),
            });
        }
        // Packets that are on their way between workers.
        held.packets += handed.packets - taken.packets;
        held.bytes += handed.bytes - taken.bytes;
        let rows = workers.iter().flat_map(|worker| worker.rows.clone()).collect();
        SinkSummary {
            tables: NetstatTables::new(configuration, rows),
            sequences,
            workers,
            account,
            held,
            workstreams_balance,
            split_flows,
            lost: Lost::default(),
            is_gone: false,
            steering,
        }
    }

    /// Returns whether received = delivered + dropped + held, in all and in each workstream.
    pub fn balances(&self) -> bool {
        self.account.balances(self.held) && self.workstreams_balance
    }
}

/// A protocol's row of a worker, of this number and core.
fn row(
    configuration: &Configuration,
    dispatched: &Dispatched,
    worker: &SinkWorker<'_>,
    (wsid, cpu): (usize, usize),
    proto: ProtoId,
) -> WorkstreamRow {
    let counts = worker.dispatch().counts(proto);
    let first = dispatched.plan.ports.len() - dispatched.loops.len();
    let at = (wsid, worker.dispatch().plan().queue(proto));
    let of_loop = dispatched.loops.iter().position(|&of_loop| of_loop == at);
    let queue = of_loop.and_then(|place| worker.path().egress(first + place));
    WorkstreamRow {
        wsid,
        cpu,
        name: configuration.registry.get(proto).protocol.name.to_string(),
        len: counts.len as usize,
        wmark: counts.wmark as usize,
        dispatched: counts.dispatched,
        hybrid_dispatched: counts.hybrid_dispatched,
        queue_drops: counts.queue_drops,
        queued: counts.queued,
        handled: counts.handled,
        held: counts.len as usize,
        blocked: queue.map_or(0, |queue| queue.counts().blocked),
        blocked_ns: queue.map_or(0, |queue| queue.shaping.blocked_ns(now_ns())),
    }
}
