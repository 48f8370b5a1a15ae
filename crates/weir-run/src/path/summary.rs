//! What became of a run: the books of all workers together, what sinks saw, and the proof that nothing is missing.

use weir_core::account::Account;
use weir_core::drops::Count;
use weir_core::net::router::RouterCounts;
use weir_ring::doorbell::DoorbellCounts;
use weir_ring::handoff::OutletCounts;
use weir_ring::pool::Census;

use weir_path::traffic::sequence::SequenceCounts;

/// One worker.
#[derive(Clone, Debug)]
pub struct WorkerSummary {
    /// What was made and what ended here.
    pub account: Account,
    /// Parks and kicks.
    pub doorbell: DoorbellCounts,
    /// Hand-offs to others.
    pub outlets: OutletCounts,
    /// Passes.
    pub passes: u64,
    /// Times its generators began to wait for credit.
    pub blocked: u64,
    /// How long they waited.
    pub blocked_ns: u64,
    /// Processor time of its thread; 0 if it was stepped.
    pub cpu_ns: u64,
    /// When a packet last ended here, on the path's clock.
    pub last_ended_ns: u64,
}

/// A whole path.
#[derive(Clone, Debug)]
pub struct Summary {
    /// The workers.
    pub workers: Vec<WorkerSummary>,
    /// Their books together.
    pub account: Account,
    /// What was inside at the end, counted in queues and routers.
    pub held: Count,
    /// Where the frames were.
    pub census: Census,
    /// For each sink its node and what it saw.
    pub sinks: Vec<(usize, SequenceCounts)>,
    /// For each router its node and what it did besides forwarding.
    pub routers: Vec<(usize, RouterCounts)>,
    /// For each link the packets that came out of each of its ends.
    pub links: Vec<[u64; 2]>,
    /// From the start to the last packet that ended.
    pub elapsed_ns: u64,
}

impl Summary {
    /// Whether every packet and every frame is accounted for (invariant 1).
    pub fn balances(&self) -> bool {
        self.account.balances(self.held) && self.census.balances() && self.census.out == self.held.packets
    }

    /// What all sinks saw, together.
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

    /// Packets delivered for each second of processor time of the busiest worker, spinning included: what others take of the
    /// machine is not in it.
    pub fn packets_per_cpu_s(&self) -> f64 {
        let busiest_ns = self.workers.iter().map(|worker| worker.cpu_ns).max().unwrap_or(0);
        self.account.delivered.packets as f64 * 1e9 / busiest_ns.max(1) as f64
    }

    /// Packets delivered a second.
    pub fn packets_per_s(&self) -> f64 {
        self.account.delivered.packets as f64 * 1e9 / self.elapsed_ns.max(1) as f64
    }
}
