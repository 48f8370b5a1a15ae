//! Dispatch: which worker handles a packet, and whether now or later, as netisr does it, protocol by protocol.
//!
//! ```text
//! interface, worker 0 --entry--> dispatch of 0 --queue--> egress queue of ip, worker 0 --loop--> dispatch of 0: handled
//!                                      |   ^
//!                                      v   |  over a ring, by protocol
//! interface, worker 1 --entry--> dispatch of 1 --queue--> egress queue of ip, worker 1 --loop--> dispatch of 1: handled
//! ```
//!
//! Each worker has a stage of its own. A protocol whose packets may wait has an egress queue with each worker, of a port that leads
//! back ([`crate::loop_port`]): netisr's workstream. The handlers are those of a host that receives
//! ([`weir_core::dispatch::handlers`]); what they deliver is checked ([`crate::traffic::sequence`]) and ends here.
//!
//! | mode | a packet of a protocol is handled |
//! |---|---|
//! | `direct` | at once, by the worker that has it |
//! | `hybrid` | at once by the worker that the policy names, if it has it and none waits there; otherwise from that one's queue |
//! | `deferred` | from the queue of the worker that the policy names |
//!
//! Order (invariant 2): the policy names the same worker for all packets of a flow, a receive queue is one worker's, rings and queues
//! are first in, first out for a flow, and what comes over a ring is queued.
//!
//! Credit: a queue at its limit closes the gates of the receive queues whose packets wait there, at whatever worker (`board.rs`), those
//! of other protocols' loops among them. Under the rule `drop` it holds nobody, and what comes is dropped.
//!
//! Owner: one worker. Source: FreeBSD `sys/net/netisr.c` (`netisr_select_cpuid`, `netisr_dispatch_src`). Limits: one interface, so that
//! `source` names the first worker; a queue is exceeded by one poll of each receive queue, and by what is under way.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use weir_core::dispatch::handlers::{HandlerVerdict, Handlers};
use weir_core::dispatch::protocol::{Mode, Policy, ProtoId, Registry, WhenFull};
use weir_core::drops::DropReason;
use weir_core::net::BURST_MAX;
use weir_core::packet::Meta;
use weir_core::shaper::ecn;
use weir_core::steer::rss::Burst;
use weir_ring::memory::FrameMemory;

use crate::owners::Owners;
use crate::packet::PathPacket;
use crate::plan::{Attachment, Plan, PortPlan, StageKind, StagePlan};
use crate::traffic::sequence::Sequences;

/// Set in the hash of a packet whose receive queue says whose flow it is: 0 would say that it has none.
const DEALT: u32 = 1 << 31;

/// One worker's dispatch, as it is to be.
#[derive(Clone)]
pub struct DispatchPlan {
    /// The worker.
    pub worker: u16,
    /// How many ports its packets come in by.
    pub entries: u16,
    /// Whether packets are dealt to workers here; otherwise whoever put them into receive queues has.
    pub steers: bool,
    /// Flows of generators that are followed.
    pub flows: u32,
    /// The protocols, and the flows of workers.
    pub registry: Arc<Registry>,
}

/// What a port of the stage is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Joint {
    /// It leads to the queue of a protocol, and back from it.
    Queue(ProtoId),
    /// It leads to the queue of a protocol at another worker, and from there to that here.
    Over(usize, ProtoId),
    /// Packets come in by it.
    Entry,
}

impl DispatchPlan {
    fn workers(&self) -> u16 {
        self.registry.rss().workers() as u16
    }

    fn protocols(&self) -> u16 {
        self.registry.ids().count() as u16
    }

    fn entry(&self, number: u16) -> u16 {
        self.protocols() * (1 + self.workers()) + number
    }

    fn queue(&self, proto: ProtoId) -> u16 {
        proto.index() as u16
    }

    fn over(&self, worker: usize, proto: ProtoId) -> u16 {
        self.protocols() * (1 + worker as u16) + proto.index() as u16
    }

    fn joint(&self, port: u16) -> Joint {
        let proto = || self.registry.ids().nth(usize::from(port % self.protocols())).expect("a protocol");
        match port / self.protocols() {
            0 => Joint::Queue(proto()),
            group if group <= self.workers() => Joint::Over(usize::from(group - 1), proto()),
            _ => Joint::Entry,
        }
    }

    /// How many ports it has: for each protocol its queue, and those of each worker; and its entries.
    pub fn ports(&self) -> u16 {
        self.entry(self.entries)
    }

    /// The ports that packets may leave by which come in by `entry`.
    pub fn exits(&self, entry: u16) -> Vec<u16> {
        let mut exits = Vec::new();
        match self.joint(entry) {
            Joint::Queue(proto) => self.reached_by_handling(proto, &mut exits),
            Joint::Over(_, proto) => exits.extend(self.home(proto)),
            Joint::Entry => self.reached(ether(&self.registry), &mut exits),
        }
        exits.sort_unstable();
        exits.dedup();
        exits
    }

    /// The most packets that wait for a port before no more are taken in for it, if the port says that.
    pub fn held_packets_max(&self, port: u16) -> Option<u64> {
        let Joint::Queue(proto) = self.joint(port) else { return None };
        let registered = self.registry.get(proto);
        Some(match registered.protocol.when_full {
            WhenFull::Drop => u64::MAX,
            WhenFull::Block | WhenFull::Ecn => registered.qlimit as u64,
        })
    }

    /// The ports that a packet may leave by which is dispatched to a protocol.
    fn reached(&self, proto: ProtoId, exits: &mut Vec<u16>) {
        let mode = self.registry.get(proto).mode;
        if mode != Mode::Deferred {
            self.reached_by_handling(proto, exits);
        }
        if mode != Mode::Direct {
            let others = self.homes(proto).filter(|worker| *worker != usize::from(self.worker));
            exits.extend(others.map(|worker| self.over(worker, proto)));
            exits.extend(self.home(proto));
        }
    }

    /// The workers that a protocol's policy may name.
    fn homes(&self, proto: ProtoId) -> Range<usize> {
        match self.registry.get(proto).protocol.policy {
            Policy::Source => 0..1,
            Policy::Flow | Policy::Cpu => 0..usize::from(self.workers()),
        }
    }

    /// The port to the queue of a protocol, if packets may wait in it.
    fn home(&self, proto: ProtoId) -> Option<u16> {
        let is_home = self.homes(proto).contains(&usize::from(self.worker));
        (is_home && waits(&self.registry, proto)).then(|| self.queue(proto))
    }

    fn reached_by_handling(&self, proto: ProtoId, exits: &mut Vec<u16>) {
        let next = self.registry.ids().filter(|&next| self.registry.feeds(proto, next));
        next.for_each(|next| self.reached(next, exits));
    }
}

impl fmt::Debug for DispatchPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let DispatchPlan { worker, entries, steers, flows, registry } = self;
        let protocols = registry.ids().map(|id| registry.get(id));
        f.debug_struct("DispatchPlan")
            .field("worker", worker)
            .field("entries", entries)
            .field("steers", steers)
            .field("flows", flows)
            .field("protocols", &protocols.collect::<Vec<_>>())
            .finish()
    }
}

fn ether(registry: &Registry) -> ProtoId {
    Handlers::new(registry).ether()
}

/// Whether packets of a protocol may wait: alone, hybrid always finds that none does.
fn waits(registry: &Registry, proto: ProtoId) -> bool {
    match registry.get(proto).mode {
        Mode::Direct => false,
        Mode::Hybrid => registry.rss().workers() > 1,
        Mode::Deferred => true,
    }
}

/// A plan of dispatch, and who owns what of it. Its ports are the entries, then those that lead back.
pub struct Dispatched {
    /// The plan.
    pub plan: Plan,
    /// Who owns what.
    pub owners: Owners,
    /// The worker and the protocol of each port that leads back, in order.
    pub loops: Vec<(usize, ProtoId)>,
}

/// A plan by which packets of `entries`, each with its worker, are dispatched; `steers` if that is not done before, and `flows` of
/// generators are followed.
pub fn dispatched(
    registry: &Arc<Registry>,
    entries: Vec<(PortPlan, usize)>,
    steers: bool,
    flows: u32,
) -> Dispatched {
    let workers = registry.rss().workers();
    let mut counts = vec![0; workers];
    entries.iter().for_each(|(_, worker)| counts[*worker] += 1);
    let kinds: Vec<DispatchPlan> = counts
        .into_iter()
        .enumerate()
        .map(|(worker, entries)| DispatchPlan {
            worker: worker as u16,
            entries,
            steers,
            flows,
            registry: Arc::clone(registry),
        })
        .collect();
    let mut links = Vec::new();
    let mut taken = vec![0; workers];
    for (port, &(_, worker)) in entries.iter().enumerate() {
        links.push([Attachment::Port(port), Attachment::Stage(worker, kinds[worker].entry(taken[worker]))]);
        taken[worker] += 1;
    }
    let mut owners =
        Owners { ports: entries.iter().map(|(_, worker)| *worker).collect(), stages: (0..workers).collect() };
    let mut ports: Vec<PortPlan> = entries.into_iter().map(|(port, _)| port).collect();
    let mut loops = Vec::new();
    let waiting: Vec<ProtoId> = registry.ids().filter(|&proto| waits(registry, proto)).collect();
    for worker in 0..workers {
        for &proto in &waiting {
            let name = registry.get(proto).protocol.name;
            links
                .push([Attachment::Port(ports.len()), Attachment::Stage(worker, kinds[worker].queue(proto))]);
            ports.push(PortPlan {
                interface: format!("{name}-{worker}"),
                limits: None,
                classes: None,
                is_optional: false,
            });
            owners.ports.push(worker);
            loops.push((worker, proto));
            for other in worker + 1..workers {
                links.push([
                    Attachment::Stage(worker, kinds[worker].over(other, proto)),
                    Attachment::Stage(other, kinds[other].over(worker, proto)),
                ]);
            }
        }
    }
    let stages = kinds
        .into_iter()
        .map(|kind| StagePlan { name: format!("dispatch-{}", kind.worker), kind: StageKind::Dispatch(kind) });
    Dispatched { plan: Plan { ports, stages: stages.collect(), links }, owners, loops }
}

/// What one worker decides by.
pub struct Dispatch {
    plan: DispatchPlan,
    handlers: Handlers,
    burst: Burst,
    counts: Box<[DispatchCounts]>,
    sequences: Sequences,
}

/// What is counted of one protocol with one worker, under the names of `netstat -Q`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DispatchCounts {
    /// Packets queued: sent to its queue, and not back.
    pub len: u64,
    /// The most that were ever.
    pub wmark: u64,
    /// Handled at once under `direct`.
    pub dispatched: u64,
    /// Handled at once under `hybrid`.
    pub hybrid_dispatched: u64,
    /// Dropped because the queue was full and its rule is `drop`.
    pub queue_drops: u64,
    /// Queued.
    pub queued: u64,
    /// Handled, at once or from the queue.
    pub handled: u64,
    /// Marked as having met congestion.
    pub marked: u64,
}

/// What becomes of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Handled {
    /// It leaves by this port.
    Sent(u16),
    /// It ends as it should.
    Delivered,
    /// It is dropped.
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

    /// What is counted of a protocol.
    pub fn counts(&self, proto: ProtoId) -> &DispatchCounts {
        &self.counts[proto.index()]
    }

    /// What generators sent that ended here.
    pub fn sequences(&self) -> &Sequences {
        &self.sequences
    }

    /// What becomes of each packet of a burst that came in by `port`.
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
                Joint::Over(_, proto) => self.enqueue(proto, packet, memory),
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
        self.plan.registry.rss().steer(&bytes[..packets.len()], &mut self.burst);
        for (number, packet) in packets.iter_mut().enumerate() {
            packet.meta.flow_hash = self.burst.hash(number);
        }
    }

    /// Handles a packet for a protocol, and for those it leads to, until it waits or ends.
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
    /// The protocol that it is to be dispatched to.
    fn run(&mut self, proto: ProtoId, packet: &PathPacket, memory: &FrameMemory) -> Result<Handled, ProtoId> {
        self.counts[proto.index()].handled += 1;
        let bytes = packet.bytes(memory);
        match self.handlers.handle(proto, bytes) {
            HandlerVerdict::Dispatch(next) => Err(next),
            HandlerVerdict::Deliver => {
                self.sequences.note(bytes);
                Ok(Handled::Delivered)
            }
            HandlerVerdict::Drop(reason) => Ok(Handled::Dropped(reason)),
        }
    }

    /// Queues a packet for a protocol, here.
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
