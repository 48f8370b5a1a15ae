//! Dispatch: the choice of the worker that handles a packet, and of now or later, as in netisr, protocol by protocol.
//!
//! ```text
//! interface, worker 0 --entry--> dispatch of 0 --queue--> egress queue of ip, worker 0 --loop--> dispatch of 0: handled
//!                                      |   ^
//!                                      v   |  over a ring, by protocol
//! interface, worker 1 --entry--> dispatch of 1 --queue--> egress queue of ip, worker 1 --loop--> dispatch of 1: handled
//! ```
//!
//! Each worker has a stage of its own. A protocol whose packets may wait has an egress queue with each worker, of a port that leads back
//! ([`crate::loop_port`]): netisr's workstream. The handlers are those of a host that receives ([`weir_core::dispatch::handlers`]); packets
//! that they deliver are checked ([`crate::traffic::sequence`]) and end here. A wire that is dispatched ([`spread`]) has such a row of
//! stages for each direction, and every packet that is handled goes on to the worker of its way out.
//!
//! | mode | a packet of a protocol is handled |
//! |---|---|
//! | `direct` | at once, by the worker that has it |
//! | `hybrid` | at once by the worker that the policy names, if it has it and none waits there; otherwise from the queue of that worker |
//! | `deferred` | from the queue of the worker that the policy names |
//!
//! Order (invariant 2): the policy names the same worker for all packets of a flow, a receive queue is one worker's, rings and queues are
//! first in, first out for a flow, and a packet that comes over a ring is queued.
//!
//! Credit: a queue at its limit closes the gates of the receive queues whose packets wait there, at whatever worker (`board.rs`), and so
//! does a full place that they come to after that; the queue itself is never held. Under the rule `drop` it holds no sender, and packets
//! that come are dropped.
//!
//! Owner: one worker. Source: FreeBSD `sys/net/netisr.c` (`netisr_select_cpuid`, `netisr_dispatch_src`). Limits: one interface, so that
//! `source` names the first worker; a queue is exceeded by one poll of each receive queue, by the packets under way, and by those that wait
//! in the queues before it.

mod plan;
mod spread;

use weir_core::dispatch::handlers::{HandlerVerdict, Handlers};
use weir_core::dispatch::protocol::{Mode, ProtoId, WhenFull};
use weir_core::drops::DropReason;
use weir_core::net::BURST_MAX;
use weir_core::packet::Meta;
use weir_core::shaper::ecn;
use weir_core::steer::rss::Burst;
use weir_ring::memory::FrameMemory;

use crate::packet::PathPacket;
use crate::traffic::sequence::Sequences;
pub use plan::DispatchPlan;
use plan::Joint;
pub use spread::{Dispatched, dispatched, registry, spread};

/// The bit that is set in the hash of a packet whose receive queue gives the worker of its flow: a hash of 0 would say that there is none.
const DEALT: u32 = 1 << 31;

/// The dispatch of one worker.
pub struct Dispatch {
    plan: DispatchPlan,
    handlers: Handlers,
    burst: Burst,
    counts: Box<[DispatchCounts]>,
    sequences: Sequences,
}

/// The counts of one protocol with one worker, under the names of `netstat -Q`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DispatchCounts {
    /// Packets in the queue: sent to it, and not back.
    pub len: u64,
    /// The most packets that were ever in the queue.
    pub wmark: u64,
    /// Packets handled at once under `direct`.
    pub dispatched: u64,
    /// Packets handled at once under `hybrid`.
    pub hybrid_dispatched: u64,
    /// Packets dropped because the queue was full and its rule is `drop`.
    pub queue_drops: u64,
    /// Packets queued.
    pub queued: u64,
    /// Packets handled, at once or from the queue.
    pub handled: u64,
    /// Packets marked as having met congestion.
    pub marked: u64,
}

/// The verdict of dispatch on a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Handled {
    /// The packet leaves by this port.
    Sent(u16),
    /// The packet ends here as delivered.
    Delivered,
    /// The packet is dropped.
    Dropped(DropReason),
}

impl Dispatch {
    pub(crate) fn new(plan: &DispatchPlan) -> Dispatch {
        Dispatch {
            handlers: Handlers::new(&plan.registry),
            burst: Burst::default(),
            counts: vec![DispatchCounts::default(); usize::from(plan.protocols())].into(),
            sequences: Sequences::joining(plan.flows),
            plan: plan.clone(),
        }
    }

    /// The plan of the dispatch.
    pub fn plan(&self) -> &DispatchPlan {
        &self.plan
    }

    /// The counts of a protocol.
    pub fn counts(&self, proto: ProtoId) -> &DispatchCounts {
        &self.counts[proto.index()]
    }

    /// The sequences of generators' packets that ended here.
    pub fn sequences(&self) -> &Sequences {
        &self.sequences
    }

    /// Writes the verdict on each packet of a burst that came in by `port`.
    pub(crate) fn handle(
        &mut self,
        port: u16,
        packets: &mut [PathPacket],
        memory: &FrameMemory,
        handled: &mut [Handled; BURST_MAX],
    ) {
        let joint = self.plan.joint(port);
        if joint == Joint::Entry {
            self.hash(packets, memory);
        }
        for (packet, handled) in packets.iter_mut().zip(handled) {
            *handled = match joint {
                Joint::Entry => self.dispatch(self.handlers.ether(), packet, memory),
                Joint::Over(proto) => self.enqueue(proto, packet, memory),
                Joint::OverExit => Handled::Sent(self.plan.exit()),
                Joint::Exit => unreachable!("packets go on by it"),
                Joint::Queue(proto) => {
                    self.counts[proto.index()].len -= 1;
                    match self.run(proto, packet, memory) {
                        Ok(ended) => ended,
                        Err(next) => self.dispatch(next, packet, memory),
                    }
                }
            };
        }
    }

    /// Gives packets the hashes of their flows.
    fn hash(&mut self, packets: &mut [PathPacket], memory: &FrameMemory) {
        if !self.plan.steers {
            let dealt = DEALT | u32::from(self.plan.worker);
            return packets.iter_mut().for_each(|packet| packet.meta.flow_hash = dealt);
        }
        let mut bytes: [&[u8]; BURST_MAX] = [&[]; BURST_MAX];
        bytes.iter_mut().zip(packets.iter()).for_each(|(slot, packet)| *slot = packet.bytes(memory));
        self.plan.registry.rss().hash_burst(&bytes[..packets.len()], &mut self.burst);
        for (packet, hash) in packets.iter_mut().zip(self.burst.hashes()) {
            packet.meta.flow_hash = *hash;
        }
    }

    /// Handles a packet for a protocol, and for those it leads to, until the packet leaves, waits or ends.
    fn dispatch(&mut self, mut proto: ProtoId, packet: &mut PathPacket, memory: &FrameMemory) -> Handled {
        loop {
            let mode = self.plan.registry.get(proto).mode;
            let worker = match mode {
                Mode::Direct => usize::from(self.plan.worker),
                // There is one interface.
                _ => self.plan.registry.worker(proto, &Meta { port: 0, ..packet.meta }),
            };
            if worker != usize::from(self.plan.worker) {
                return Handled::Sent(self.plan.over(worker, proto));
            }
            let counts = &mut self.counts[proto.index()];
            match mode {
                Mode::Direct => counts.dispatched += 1,
                Mode::Hybrid if counts.len == 0 => counts.hybrid_dispatched += 1,
                Mode::Hybrid | Mode::Deferred => return self.enqueue(proto, packet, memory),
            }
            match self.run(proto, packet, memory) {
                Ok(ended) => return ended,
                Err(next) => proto = next,
            }
        }
    }

    /// Runs the handler of a protocol.
    ///
    /// # Errors
    /// The protocol that the packet is to be dispatched to.
    fn run(&mut self, proto: ProtoId, packet: &PathPacket, memory: &FrameMemory) -> Result<Handled, ProtoId> {
        self.counts[proto.index()].handled += 1;
        let bytes = packet.bytes(memory);
        if let Some(on) = self.plan.on() {
            // The recipient of the packet looks at the whole of it; here only the next protocol is read.
            return match self.handlers.next(proto, bytes) {
                Some(next) => Err(next),
                None => Ok(Handled::Sent(on)),
            };
        }
        match self.handlers.handle(proto, bytes) {
            HandlerVerdict::Dispatch(next) => Err(next),
            HandlerVerdict::Deliver => {
                self.sequences.note(bytes);
                Ok(Handled::Delivered)
            }
            HandlerVerdict::Drop(reason) => Ok(Handled::Dropped(reason)),
        }
    }

    /// Queues a packet for a protocol with this worker.
    fn enqueue(&mut self, proto: ProtoId, packet: &mut PathPacket, memory: &FrameMemory) -> Handled {
        let registered = self.plan.registry.get(proto);
        let (counts, limit) = (&mut self.counts[proto.index()], registered.qlimit as u64);
        match registered.protocol.when_full {
            WhenFull::Drop if counts.len >= limit => {
                counts.queue_drops += 1;
                self.sequences.note_dropped(packet.bytes(memory));
                return Handled::Dropped(DropReason::WorkstreamFull);
            }
            WhenFull::Ecn if 2 * counts.len >= limit => {
                counts.marked += u64::from(ecn::mark_ce(packet.bytes_mut(memory)));
            }
            WhenFull::Block | WhenFull::Ecn | WhenFull::Drop => {}
        }
        counts.queued += 1;
        counts.len += 1;
        counts.wmark = counts.wmark.max(counts.len);
        Handled::Sent(self.plan.queue(proto))
    }
}

#[cfg(test)]
mod tests;
