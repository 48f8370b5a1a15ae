//! One run: generators in memory, the path's dispatch on its workers, and on each worker the work on the packets that it handles.
//!
//! ```text
//! generator -> worker 0: ether -> ip --direct--> its work
//!                                 |
//!                                 +--handed over--> worker 1: ip's queue -> its work
//! ```
//!
//! It is the plan by which `weir up` dispatches a wire, with packets that end on the worker that handles them ([`weir_path::dispatch`]).
//! Worker 0 polls the generator, worker 1 has the work of every flow that the table gives it. Where a device's queues deal the flows, each
//! worker has a generator of its own.
//!
//! - A generator without `-drop` is held. With it, it stands behind a ring of [`RING_PACKETS`], and a packet that finds that
//!   full is dropped.
//! - `lost` = packets made - worked on - dropped; 0, or the path is at fault.
//! - `held_seconds` = duration - packets sent / rate: by so much the senders were kept back.

use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Result, ensure};
use weir_core::dispatch::protocol::Mode;
use weir_core::dispatch::settings::Configuration;
use weir_path::dispatch::{Dispatched, dispatched};
use weir_path::traffic::flows::Traffic;
use weir_path::traffic::generator::{GenSpec, Until};
use weir_run::clock::now_ns;
use weir_run::memory::{MemoryEnd, MemoryPath, WorkerSeat};
use weir_run::testbed::{self, FLOWS, port};

use super::case::{Place, limit_of};
use super::work::{Tally, Work, Worked};
use crate::cost::Cost;
use crate::epair::histogram::Histogram;

/// Slots of a device's ring, as Intel's drivers have unless told otherwise.
pub const RING_PACKETS: u64 = 512;
/// The smallest packets.
const SIZE_BYTES: u16 = 60;
/// Frames beside those of twice a queue: those under way, and those in the pools' magazines.
const FRAMES_BESIDE: usize = 4096;
/// Packets that wait for the work behind dispatch.
const HELD_PACKETS_MAX: u64 = 256;

/// The configuration of a run.
pub struct Plan<'a> {
    /// Protocols, their modes and limits, and steering.
    pub configuration: &'a Configuration,
    /// The cores of the threads, and the workers of the flows.
    pub place: Place,
    /// The packets a second that all senders together offer; as many as are taken if none.
    pub packets_per_s: Option<u64>,
    /// True if the senders cannot be held.
    pub drops: bool,
    /// The time of the run, in nanoseconds.
    pub duration_ns: u64,
    /// The cost of the work on a packet.
    pub cost: Cost,
    /// The seat of each worker.
    pub seats: Vec<WorkerSeat>,
}

/// The outcome of a run.
#[derive(Debug, Clone, Default)]
pub struct Outcome {
    /// Packets that were sent, or would have been if there had been room.
    pub offered: u64,
    /// Packets worked on.
    pub handled: u64,
    /// Packets that a device's ring or a queue dropped.
    pub dropped: u64,
    /// Packets overtaken within their flow.
    pub reordered: u64,
    /// Packets nobody can account for.
    pub lost: u64,
    /// The time from the start to the end of the last packet's work.
    pub seconds: f64,
    /// The time from the poll that brought a packet to the end of the work on it.
    pub latency: Histogram,
    /// CPU time of all threads.
    pub cpu_seconds: f64,
    /// The time for which the senders were held.
    pub held_seconds: f64,
}

/// The traffic of the generators.
pub fn traffic() -> Traffic {
    Traffic { size_bytes: SIZE_BYTES, ..testbed::traffic() }
}

/// The path of a plan.
fn path(plan: &Plan<'_>) -> MemoryPath {
    let configuration = plan.configuration;
    let workers = configuration.workers;
    let is_dealt = matches!(plan.place, Place::Workers(_));
    let generators = if is_dealt { workers } else { 1 };
    let entries = (0..generators).map(|worker| (port(&format!("gen-{worker}")), worker)).collect();
    let ip = configuration.registry.id("ip").expect("a protocol of the path");
    // Worker 1 has nothing to do if all work is done where packets come in.
    let is_first_alone = configuration.registry.get(ip).mode == Mode::Direct && !is_dealt;
    let working = if is_first_alone { 1 } else { workers };
    let exits = (0..working).map(|worker| (port(&format!("work-{worker}")), worker)).collect();
    let Dispatched { plan: made, owners, loops } =
        dispatched(&configuration.registry, entries, exits, !is_dealt, FLOWS);
    let flows = FLOWS / generators as u32;
    let generator = |number: u32| {
        let spec = GenSpec {
            traffic: Traffic { flows, first_flow: number * flows, ..traffic() },
            packets_per_s: plan.packets_per_s.map(|rate| rate.div_ceil(generators as u64)),
            until: Until::Elapsed(plan.duration_ns),
        };
        if plan.drops { MemoryEnd::Ring(spec, RING_PACKETS) } else { MemoryEnd::Generator(spec) }
    };
    let mut ends: Vec<_> = (0..generators as u32).map(generator).collect();
    ends.extend((0..working).map(|_| MemoryEnd::Sink { flows: FLOWS }));
    ends.extend(loops.iter().map(|_| MemoryEnd::Loop));
    MemoryPath {
        plan: made,
        ends,
        owners,
        workers,
        frames: (FRAMES_BESIDE + 2 * limit_of(configuration)) as u32,
        held_packets_max: HELD_PACKETS_MAX,
    }
}

/// Runs a plan once.
pub fn run(plan: &Plan<'_>) -> Result<Outcome> {
    let path = path(plan);
    let total: Arc<Mutex<Tally>> = Arc::default();
    let mut workers = path.workers(now_ns())?;
    let sinks = path.ends.iter().enumerate().filter(|(_, end)| matches!(end, MemoryEnd::Sink { .. }));
    for (sink, _) in sinks {
        let (end, _) = workers[path.owners.ports[sink]].end_mut(sink);
        let port = end.port.kernel_mut().expect("a sink is no loop");
        port.set_recipient(Worked::new(Work::Costs(plan.cost), &total));
    }
    let ran = path.run_seated(workers, &plan.seats, &mut |_, _| true)?;
    // The tallies are added up when the workers go.
    drop(ran.workers);
    let summary = ran.summary;
    ensure!(summary.balances(), "the books do not balance: {summary:?}");
    let (seen, account) = (summary.sequences(), &summary.account);
    let dropped = account.dropped.total().packets;
    // Packets that one worker drops are missing there, and so are packets that came to another: nobody could vouch for their order.
    let split = seen.missing.saturating_sub(dropped);
    let sent = account.accepted.packets;
    let duration_s = plan.duration_ns as f64 / 1e9;
    let held_seconds = plan.packets_per_s.map_or(0.0, |rate| duration_s - sent as f64 / rate as f64);
    let latency = total.lock().unwrap_or_else(PoisonError::into_inner).latency.clone();
    Ok(Outcome {
        offered: sent + summary.missed,
        handled: account.delivered.packets,
        dropped: dropped + summary.missed,
        reordered: seen.reordered + seen.duplicated + split,
        lost: summary.lost(),
        seconds: summary.seconds(),
        latency,
        cpu_seconds: summary.workers.iter().map(|worker| worker.told.cpu_ns as f64 / 1e9).sum(),
        held_seconds: if plan.drops { 0.0 } else { held_seconds.max(0.0) },
    })
}
