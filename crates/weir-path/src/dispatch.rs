//! Dispatch: which worker a packet is at home with, chosen packet by packet as netisr does, by the policy of a protocol.
//!
//! ```text
//! entry of worker 0 --> dispatch of 0 --port 0--> home of worker 0          dispatch of 0 --port 1--> dispatch of 1
//! entry of worker 1 --> dispatch of 1 --port 1--> home of worker 1          dispatch of 1 --port 0--> dispatch of 0
//! ```
//!
//! Each worker has a stage of its own, whose port of a worker's number leads to what is at home there: its own to the home of its packets,
//! an egress queue of its own; the others over a ring to the stages of others. What comes in by any of these ports is at home.
//!
//! | mode | a packet of an entry goes |
//! |---|---|
//! | `direct` | to the home of the worker that received it, whatever the policy says, and is not hashed |
//! | `hybrid`, `deferred` | to the home of the worker that the policy names |
//!
//! At home a packet waits behind all that wait there, and leaves in the same pass if none does; so `hybrid` handles at once whatever can
//! be without overtaking, and the two are one here.
//!
//! Order (invariant 2): the policy names the same worker for all packets of a flow, a receive queue is one worker's, and rings and homes
//! are first in, first out for a flow. Loss-free: a home that is full closes the gates of the receive queues whose packets wait there, at
//! whatever worker (`board.rs`). So a queue that brings packets of several homes waits for the fullest of them, as a full workstream
//! holds who feeds it.
//!
//! Owner: one worker. Source: FreeBSD `sys/net/netisr.c` (`netisr_select_cpuid`, `netisr_dispatch_src`). Limits: 64 workers, one protocol;
//! netisr's rule for a full queue, to drop, is not here.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use weir_core::dispatch::protocol::{Mode, ProtoId, Registry};
use weir_core::net::BURST_MAX;
use weir_core::steer::rss::Burst;
use weir_ring::memory::FrameMemory;

use crate::owners::Owners;
use crate::packet::PathPacket;
use crate::plan::{Attachment, Plan, PortPlan, StageKind, StagePlan};

/// One worker's dispatch, as it is to be.
#[derive(Clone)]
pub struct DispatchPlan {
    /// The worker.
    pub worker: u16,
    /// How many ports its packets come in by.
    pub entries: u16,
    /// The policies, and the flows of workers.
    pub registry: Arc<Registry>,
    /// The protocol.
    pub proto: ProtoId,
}

impl DispatchPlan {
    fn workers(&self) -> u16 {
        self.registry.rss().workers() as u16
    }

    /// How many ports it has: one for each worker, and its entries.
    pub fn ports(&self) -> u16 {
        self.workers() + self.entries
    }

    /// The ports that packets may leave by which come in by `entry`.
    pub fn exits(&self, entry: u16) -> Range<u16> {
        let is_home = entry < self.workers() || self.registry.get(self.proto).mode == Mode::Direct;
        if is_home { self.worker..self.worker + 1 } else { 0..self.workers() }
    }
}

impl fmt::Debug for DispatchPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let DispatchPlan { worker, entries, registry, proto } = self;
        let protocol = registry.get(*proto);
        f.debug_struct("DispatchPlan")
            .field("worker", worker)
            .field("entries", entries)
            .field("protocol", protocol)
            .finish()
    }
}

/// A plan by which packets of `entries`, each with its worker, come to the `homes` of workers, which leave by these ports; and who owns
/// what of it. Entries are the first ports, homes those behind them.
///
/// # Panics
/// If there are not as many homes as the registry has workers.
pub fn dispatched(
    registry: &Arc<Registry>,
    proto: ProtoId,
    entries: Vec<(PortPlan, usize)>,
    homes: Vec<PortPlan>,
) -> (Plan, Owners) {
    let workers = registry.rss().workers();
    assert_eq!(homes.len(), workers, "each worker has a home");
    let mut links = Vec::new();
    let mut counts = vec![0; workers];
    for (port, &(_, worker)) in entries.iter().enumerate() {
        links.push([Attachment::Port(port), Attachment::Stage(worker, workers as u16 + counts[worker])]);
        counts[worker] += 1;
    }
    for worker in 0..workers {
        links.push([Attachment::Stage(worker, worker as u16), Attachment::Port(entries.len() + worker)]);
        let others = worker + 1..workers;
        links.extend(
            others.map(|other| {
                [Attachment::Stage(worker, other as u16), Attachment::Stage(other, worker as u16)]
            }),
        );
    }
    let stage = |(worker, entries): (usize, u16)| StagePlan {
        name: format!("dispatch-{worker}"),
        kind: StageKind::Dispatch(DispatchPlan {
            worker: worker as u16,
            entries,
            registry: Arc::clone(registry),
            proto,
        }),
    };
    let owners = Owners {
        ports: entries.iter().map(|(_, worker)| *worker).chain(0..workers).collect(),
        stages: (0..workers).collect(),
    };
    let ports = entries.into_iter().map(|(port, _)| port).chain(homes).collect();
    (Plan { ports, stages: counts.into_iter().enumerate().map(stage).collect(), links }, owners)
}

/// What one worker decides by.
pub struct Dispatch {
    plan: DispatchPlan,
    is_chosen: bool,
    burst: Burst,
    handed: u64,
    taken: u64,
}

impl Dispatch {
    pub(crate) fn new(plan: &DispatchPlan) -> Dispatch {
        let is_chosen = plan.exits(plan.workers()).len() > 1;
        Dispatch { plan: plan.clone(), is_chosen, burst: Burst::default(), handed: 0, taken: 0 }
    }

    /// Packets of its entries that went to other workers.
    pub fn handed(&self) -> u64 {
        self.handed
    }

    /// Packets that others handed over.
    pub fn taken(&self) -> u64 {
        self.taken
    }

    /// The port that each packet of a burst leaves by which came in by `entry`.
    pub(crate) fn choose(
        &mut self,
        entry: u16,
        packets: &mut [PathPacket],
        memory: &FrameMemory,
        exits: &mut [u16; BURST_MAX],
    ) {
        let DispatchPlan { worker, ref registry, proto, .. } = self.plan;
        exits.fill(worker);
        let is_entry = entry >= self.plan.workers();
        self.taken += if is_entry { 0 } else { packets.len() as u64 };
        if !is_entry || !self.is_chosen {
            return;
        }
        let mut bytes: [&[u8]; BURST_MAX] = [&[]; BURST_MAX];
        bytes.iter_mut().zip(packets.iter()).for_each(|(slot, packet)| *slot = packet.bytes(memory));
        registry.rss().steer(&bytes[..packets.len()], &mut self.burst);
        for (number, (packet, exit)) in packets.iter_mut().zip(exits).enumerate() {
            packet.meta.flow_hash = self.burst.hash(number);
            *exit = registry.worker(proto, &packet.meta) as u16;
            self.handed += u64::from(*exit != worker);
        }
    }
}
