//! What one run is to do, and what its threads have in common.

use std::sync::{Arc, Barrier};

use weir_core::dispatch::protocol::ProtoId;
use weir_core::dispatch::settings::Configuration;
use weir_ring::doorbell::Doorbell;
use weir_ring::memory::FrameMemory;
use weir_ring::pool::Pool;

use super::credit::Progress;
use super::work::Cost;

/// What to run.
pub struct Plan<'a> {
    /// Protocols, their modes and limits, and steering to one or two workers.
    pub configuration: &'a Configuration,
    /// What the senders offer.
    pub packets_per_s: f64,
    /// Whether the device's ring drops what it has no room for.
    pub ring_drops: bool,
    /// For how long, in nanoseconds.
    pub duration_ns: u64,
    /// What the work on a packet costs.
    pub cost: Cost,
    /// The cores of the receiver and of worker 1; none leaves it to the scheduler.
    pub cores: Option<[usize; 2]>,
    /// Whether both threads have one core: the scheduler then shares it out. Otherwise they go before all others, as the path's
    /// workers do.
    pub shares_core: bool,
    /// What waking a thread costs here: for so long one spins before it sleeps.
    pub wake_cost_ns: u64,
}

/// What both threads have.
pub(super) struct Common<'a> {
    pub plan: &'a Plan<'a>,
    pub memory: Arc<FrameMemory>,
    pub progress: Progress,
    pub start_line: Barrier,
    pub ether: ProtoId,
    pub ip: ProtoId,
    pub esp: ProtoId,
}

impl<'a> Common<'a> {
    pub fn new(plan: &'a Plan<'a>, pools: &[Pool], doorbell: &Doorbell, workers: usize) -> Common<'a> {
        let id = |name| plan.configuration.registry.id(name).expect("a protocol of the path");
        Common {
            plan,
            memory: Arc::clone(pools[0].memory()),
            progress: Progress::new(doorbell.ringer()),
            start_line: Barrier::new(workers),
            ether: id("ether"),
            ip: id("ip"),
            esp: id("esp"),
        }
    }
}
