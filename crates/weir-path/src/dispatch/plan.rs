//! The plan of one worker's dispatch: its ports, and the exits of packets that come in by each.
//!
//! ```text
//! a group for the worker itself    for each protocol the port to its queue and back; then, if packets go on, the way out
//! a group for each worker          for each protocol the port to the queue there and from there; then to the way out there
//! entries                          the ports by which packets come in
//! ```
//!
//! Pure. Limits: ports to a worker itself, and those that its modes and policies never take, are joined to nothing.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use weir_core::dispatch::handlers::Handlers;
use weir_core::dispatch::protocol::{Mode, Policy, ProtoId, Registry, WhenFull};

/// The plan of one worker's dispatch.
#[derive(Clone)]
pub struct DispatchPlan {
    /// The worker.
    pub worker: u16,
    /// The number of ports by which packets come in.
    pub entries: u16,
    /// True if packets are dealt to workers here; otherwise the receive queue of a packet gives its worker.
    pub steers: bool,
    /// The number of generators' flows that are followed.
    pub flows: u32,
    /// The worker by whose way out handled packets go on; if none, they end.
    pub exit: Option<usize>,
    /// The protocols, and the flows of workers.
    pub registry: Arc<Registry>,
}

/// The kind of a port of the stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Joint {
    /// The port leads to the queue of a protocol, and back from it.
    Queue(ProtoId),
    /// The port leads to the queue of a protocol at another worker, and from there to the queue here.
    Over(ProtoId),
    /// Packets come in by the port.
    Entry,
    /// Packets go on by the port.
    Exit,
    /// The port leads to the way out at another worker, and from there to the way out here.
    OverExit,
}

impl DispatchPlan {
    fn workers(&self) -> u16 {
        self.registry.rss().workers() as u16
    }

    pub(super) fn protocols(&self) -> u16 {
        self.registry.ids().count() as u16
    }

    /// The number of ports of a group.
    fn group(&self) -> u16 {
        self.protocols() + u16::from(self.exit.is_some())
    }

    pub(super) fn entry(&self, number: u16) -> u16 {
        self.group() * (1 + self.workers()) + number
    }

    /// The port to the queue of a protocol, joined to something if packets may wait there.
    pub fn queue(&self, proto: ProtoId) -> u16 {
        proto.index() as u16
    }

    pub(super) fn over(&self, worker: usize, proto: ProtoId) -> u16 {
        self.group() * (1 + worker as u16) + proto.index() as u16
    }

    /// The port to the way out of the path, if that is here.
    pub(super) fn exit(&self) -> u16 {
        self.protocols()
    }

    pub(super) fn over_exit(&self, worker: usize) -> u16 {
        self.group() * (1 + worker as u16) + self.protocols()
    }

    /// The port by which packets go on that are handled here, if they do.
    pub(super) fn on(&self) -> Option<u16> {
        self.exit.map(|worker| match worker == usize::from(self.worker) {
            true => self.exit(),
            false => self.over_exit(worker),
        })
    }

    pub(super) fn joint(&self, port: u16) -> Joint {
        let (group, number) = (port / self.group(), port % self.group());
        let proto = || self.registry.ids().nth(usize::from(number)).expect("a protocol");
        match (group, number == self.protocols()) {
            (0, false) => Joint::Queue(proto()),
            (0, true) => Joint::Exit,
            (group, _) if group > self.workers() => Joint::Entry,
            (_, false) => Joint::Over(proto()),
            (_, true) => Joint::OverExit,
        }
    }

    /// The number of ports of the stage: a group for itself, one for each worker, and its entries.
    pub fn ports(&self) -> u16 {
        self.entry(self.entries)
    }

    /// The ports by which packets that come in by `entry` may leave.
    pub fn exits(&self, entry: u16) -> Vec<u16> {
        let mut exits = Vec::new();
        match self.joint(entry) {
            Joint::Queue(proto) => self.reached_by_handling(proto, &mut exits),
            Joint::Over(proto) => exits.extend(self.home(proto)),
            Joint::OverExit => exits.extend(self.on()),
            Joint::Exit => {}
            Joint::Entry => self.reached(ether(&self.registry), &mut exits),
        }
        exits.sort_unstable();
        exits.dedup();
        exits
    }

    /// The packets that fit into the queue that a port leads to and back from; none if the port leads to no queue.
    pub(crate) fn queue_packets(&self, port: u16) -> Option<u64> {
        self.queued_by(port).map(|proto| self.registry.get(proto).qlimit as u64)
    }

    /// The protocol of the queue that a port leads to and back from.
    fn queued_by(&self, port: u16) -> Option<ProtoId> {
        match self.joint(port) {
            Joint::Queue(proto) => Some(proto),
            _ => None,
        }
    }

    /// The most packets that wait behind a port before no more are taken in for it, if the port leads to a queue.
    pub fn held_packets_max(&self, port: u16) -> Option<u64> {
        let proto = self.queued_by(port)?;
        match self.registry.get(proto).protocol.when_full {
            WhenFull::Drop => Some(u64::MAX),
            WhenFull::Block | WhenFull::Ecn => self.queue_packets(port),
        }
    }

    /// Adds the ports by which a packet that is dispatched to a protocol may leave.
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
        exits.extend(self.on());
        if proto == ether(&self.registry) {
            let others = self.registry.ids().filter(|&other| other != proto);
            others.for_each(|other| self.reached(other, exits));
        }
    }
}

impl fmt::Debug for DispatchPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let DispatchPlan { worker, entries, steers, flows, exit, registry } = self;
        let protocols = registry.ids().map(|id| registry.get(id));
        f.debug_struct("DispatchPlan")
            .field("worker", worker)
            .field("entries", entries)
            .field("steers", steers)
            .field("flows", flows)
            .field("exit", exit)
            .field("protocols", &protocols.collect::<Vec<_>>())
            .finish()
    }
}

fn ether(registry: &Registry) -> ProtoId {
    Handlers::new(registry).ether()
}

/// Returns whether packets of a protocol may wait: with one worker, hybrid always finds that none does.
pub(super) fn waits(registry: &Registry, proto: ProtoId) -> bool {
    match registry.get(proto).mode {
        Mode::Direct => false,
        Mode::Hybrid => registry.rss().workers() > 1,
        Mode::Deferred => true,
    }
}
