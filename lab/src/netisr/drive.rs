//! One run: a receiver and a worker, two threads in real time, over the dispatch of weir-core and the hand-off of weir-ring.
//!
//! ```text
//! senders -> device's ring -> receiver: frame, hash, ether -> ip -> esp --direct--> work
//!                                 ^                             |
//!                                 |                             +--handed off--> worker 1: esp's queue -> work
//!                                 +---------------- credit ---------------------------+
//! ```
//!
//! - The receiver is worker 0 and has the device; worker 1 has the work of every flow that the table gives it.
//! - `latency`: from a packet's entry into the device's ring to the end of the work on it.
//! - `lost` = packets sent - worked on - dropped; 0, or the path is at fault.
//!
//! Owner: each thread owns its [`super::threads`] half; what they share is in [`super::plan::Common`].
//! Limits: what the receiver does for each packet (a frame, a hash, dispatch) is as on the path, but nothing comes from a
//! device.

use std::mem;
use std::thread;

use anyhow::{Result, ensure};
use weir_core::steer::rss::BURST_MAX;
use weir_ring::doorbell::Doorbell;
use weir_ring::handoff::{InboxSize, inbox};
use weir_ring::pool::Pool;

use super::case::limit_of;
use super::plan::{Common, Plan};
use super::sender::Sender;
use super::threads::{Ended, Receiver, Worker};
use super::work::{FLOWS, Tally, Writer, workers_of_flows};
use crate::epair::histogram::Histogram;

/// What came of it.
#[derive(Debug, Clone, Default)]
pub struct Outcome {
    /// Packets the senders sent.
    pub offered: u64,
    /// Packets worked on.
    pub handled: u64,
    /// Packets that the device's ring or a workstream's queue dropped.
    pub dropped: u64,
    /// Packets overtaken within their flow.
    pub reordered: u64,
    /// Packets nobody can account for; more than there were if negative.
    pub lost: i64,
    /// From the start to the end of the last packet's work.
    pub seconds: f64,
    /// See the head of the file.
    pub latency: Histogram,
    /// CPU time of both threads.
    pub cpu_seconds: f64,
    /// For how long the senders were held.
    pub held_seconds: f64,
}

/// Runs a receiver and a worker once. The pools are those of two workers over one memory; all frames are free before and after.
pub fn run(plan: &Plan<'_>, pools: &mut Vec<Pool>) -> Result<Outcome> {
    // With credit no more than the limit is ever between the two, and a ring of that size stays in their caches.
    let ring_elements = match plan.ring_drops {
        true => pools[0].memory().frames() as usize,
        false => limit_of(plan.configuration) + BURST_MAX,
    };
    let (inbox, mut outlets) = inbox(InboxSize { sources: 1, ring_elements, inject_elements: 1 })?;
    // Worker 1 passes a full fence whenever it says how far it is; what parks the receiver must not interrupt it.
    let doorbell = Doorbell::with_full_fences()?;
    let workers = plan.configuration.workers;
    let outlet = outlets.pop().filter(|_| workers > 1);
    let common = Common::new(plan, pools, &doorbell, workers);
    let mut given = mem::take(pools).into_iter();
    let (first_pool, mut second_pool) = (given.next().expect("a pool for the receiver"), given.next());
    let (receiver, worker) = thread::scope(|scope| {
        let common = &common;
        let worker = (workers > 1).then(|| {
            let pool = second_pool.take().expect("a pool for worker 1");
            scope.spawn(move || Worker::new(common, pool, inbox).run())
        });
        let receiver = scope.spawn(move || {
            Receiver::new(0, common, first_pool, Writer::new(0..FLOWS), outlet, doorbell).run()
        });
        let receiver = receiver.join().expect("the receiver does not panic");
        (receiver, worker.map(|worker| worker.join().expect("the worker does not panic")))
    });
    let (sender, start_ns, receiver) = receiver?;
    let ended = [Some(receiver), worker.transpose()?].into_iter().flatten().collect();
    let sums = Sums::of(ended, pools);
    pools.extend(second_pool);
    outcome(pools, &[sender], start_ns, sums)
}

/// Runs `workers` receivers once, each with a queue of its own that brings the flows of its own. The pools are as for [`run`].
pub fn run_receivers(plan: &Plan<'_>, pools: &mut Vec<Pool>, workers: usize) -> Result<Outcome> {
    let doorbells = (0..workers).map(|_| Doorbell::new()).collect::<Result<Vec<_>, _>>()?;
    let common = Common::new(plan, pools, &doorbells[0], workers);
    let owners = workers_of_flows(plan.configuration.registry.rss());
    let mut spare = mem::take(pools);
    let given: Vec<(Pool, Doorbell)> = spare.drain(..workers).zip(doorbells).collect();
    let ended = thread::scope(|scope| {
        let (common, owners) = (&common, &owners);
        let spawn = |(worker, (pool, doorbell))| {
            scope.spawn(move || {
                let writer = Writer::new((0..FLOWS).filter(|flow| owners[*flow] == worker));
                Receiver::new(worker, common, pool, writer, None, doorbell).run()
            })
        };
        let threads: Vec<_> = given.into_iter().enumerate().map(spawn).collect();
        let joined = threads.into_iter().map(|thread| thread.join().expect("a receiver does not panic"));
        joined.collect::<Result<Vec<(Sender, u64, Ended)>>>()
    })?;
    let start_ns = ended.iter().map(|(_, start_ns, _)| *start_ns).min().unwrap_or(0);
    let (senders, ended): (Vec<_>, Vec<_>) =
        ended.into_iter().map(|(sender, _, ended)| (sender, ended)).unzip();
    let sums = Sums::of(ended, pools);
    pools.append(&mut spare);
    outcome(pools, &senders, start_ns, sums)
}

/// What all threads of a run came to.
struct Sums {
    tally: Tally,
    dropped: u64,
    cpu_seconds: f64,
}

impl Sums {
    /// Puts the pools of the threads back, in the order of their workers.
    fn of(ended: Vec<Ended>, pools: &mut Vec<Pool>) -> Sums {
        let mut sums = Sums { tally: Tally::new(), dropped: 0, cpu_seconds: 0.0 };
        for ended in ended {
            sums.tally.merge(&ended.tally);
            sums.dropped += ended.dropped;
            sums.cpu_seconds += ended.cpu_seconds;
            pools.push(ended.pool);
        }
        sums
    }
}

fn outcome(pools: &[Pool], senders: &[Sender], start_ns: u64, sums: Sums) -> Result<Outcome> {
    let census = pools[0].census();
    ensure!(census.balances() && census.out == 0, "frames are missing after a run: {census:?}");
    let sum = |of: fn(&Sender) -> u64| senders.iter().map(of).sum::<u64>();
    let (offered, dropped) = (sum(Sender::offered), sum(Sender::dropped) + sums.dropped);
    Ok(Outcome {
        offered,
        handled: sums.tally.handled,
        dropped,
        reordered: sums.tally.reordered,
        lost: offered as i64 - sums.tally.handled as i64 - dropped as i64,
        seconds: sums.tally.last_ns.saturating_sub(start_ns) as f64 / 1e9,
        latency: sums.tally.latency,
        cpu_seconds: sums.cpu_seconds,
        held_seconds: sum(Sender::held_ns) as f64 / 1e9,
    })
}
