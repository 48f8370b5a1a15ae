//! A workstream: one worker's ordered work for all protocols, with the counters of `netstat -Q`.
//!
//! The rule of credit. A packet enters from outside ([`Workstream::dispatch`]) only while no protocol it may
//! come to is full, here or on the worker it is bound for; otherwise it is given back and its feeder waits.
//! Once inside it is never refused again: what a handler dispatches further, or another worker handed off, is
//! always taken, unless its protocol's rule is `drop`. So no queue waits for another, and no cycle of full
//! queues can form.
//!
//! The rule of order is above `Workstream::now_or_later`, the one function that could break it.
//!
//! Bounds. `frames` is the size of the packet pool. No more packets exist, so no queue and no list here
//! outgrows the memory taken at start. A queue's limit decides when its feeders are held; the queue itself
//! may go beyond it by what was already inside, at most `frames`. A drain takes what was there when it began,
//! and each packet's work is at most [`RUNS_MAX`] handlers, so a pass has an end whatever the handlers do.
//! Handlers never nest: what one dispatches goes on a work list, and is looked at after it has returned, in
//! the order recursion would have had. The stack is as deep for a packet in eight tunnels as for a bare one.
//!
//! Ownership: its worker alone. Other workers reach it by hand-off ([`Workstream::receive`]) and learn which
//! of its queues are full from copies ([`Workstream::full`], [`Workstream::set_peer_full`]); an old copy
//! costs packets beyond a limit, never a packet.
//!
//! Source: FreeBSD `sys/net/netisr.c` (`netisr_dispatch_src`, `netisr_process_workstream_proto`), whose
//! counters these are.
//!
//! Limits: a policy or table changed while packets are inside can reorder flows; drain first.

use std::collections::VecDeque;
use std::sync::Arc;

use super::credit::Credit;
use super::netstat::WorkstreamRow;
use super::protocol::{Mode, ProtoId, ProtoSet, Registry, WhenFull};
use crate::account::Account;
use crate::drops::{Count, DropReason};
use crate::packet::Packet;

/// Handlers run for one packet from outside, or one from a queue, before the rest of its work is queued.
pub const RUNS_MAX: usize = 16;

/// So many packets before its turn a queued packet is announced to its handler, or when it comes if there are not so many before
/// it. Farther ahead, and with a long queue, what was brought in would be gone again.
const AHEAD: usize = 8;

/// What the worker does with packets; one value serves all protocols.
pub trait Handler<P> {
    /// Handles `packet` for `proto`. It must go exactly one way of `next`'s.
    fn handle(&mut self, proto: ProtoId, packet: P, next: &mut Next<'_, P>);

    /// Marks `packet` as having met congestion, if it can carry the mark; whether it could.
    fn mark(&mut self, packet: &mut P) -> bool;

    /// Hands `packet` off to another worker's workstream. Cannot fail: the ring is as long as the pool.
    fn hand_off(&mut self, worker: usize, proto: ProtoId, packet: P);

    /// Takes back a packet that a rule dropped. It is counted already.
    fn dropped(&mut self, packet: P, reason: DropReason);

    /// `packet`, which is queued, will be handled soon: a chance to bring in what handling it will read, while others are handled.
    /// Said once of each.
    fn soon(&mut self, _packet: &P) {}
}

/// Where a handler's packets go next.
pub struct Next<'a, P> {
    from: ProtoId,
    registry: &'a Registry,
    /// The handler's first packet; nearly always its only one, which then never touches the list. Written in
    /// place: returned by value it was copied in pieces of other sizes, which halved the packet rate.
    first: &'a mut Option<(ProtoId, P)>,
    further: &'a mut Vec<(ProtoId, P)>,
    account: &'a mut Account,
}

impl<P: Packet> Next<'_, P> {
    /// On to another protocol.
    ///
    /// # Panics
    /// If the handler's protocol does not say that it feeds `proto`: credit was not asked for there.
    pub fn dispatch(&mut self, proto: ProtoId, packet: P) {
        assert!(
            self.registry.feeds(self.from, proto),
            "a handler dispatches only to what its protocol feeds"
        );
        match self.first {
            None => *self.first = Some((proto, packet)),
            Some(_) => self.further.push((proto, packet)),
        }
    }

    /// Out of dispatch, as it should: the handler has passed on a packet of that length.
    pub fn delivered(&mut self, len_bytes: u32) {
        self.account.deliver(len_bytes);
    }

    /// Dropped by the handler, which has freed it.
    pub fn dropped(&mut self, reason: DropReason, len_bytes: u32) {
        self.account.drop(reason, len_bytes);
    }

    /// One packet more than was handled: a copy, a fragment, an answer. It goes one of the ways too.
    pub fn added(&mut self, len_bytes: u32) {
        self.account.accept(len_bytes);
    }
}

/// Now, or later and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum When {
    Now,
    Queue,
    HandOff(usize),
}

#[derive(Clone, Debug, Default)]
struct Counters {
    wmark: usize,
    dispatched: u64,
    hybrid_dispatched: u64,
    queue_drops: u64,
    queued: u64,
    handled: u64,
    marked: u64,
}

struct Queue<P> {
    packets: VecDeque<P>,
    /// How many of them the running pass takes.
    pass_len: usize,
    counters: Counters,
}

/// One worker's queues and counters.
pub struct Workstream<P> {
    worker: usize,
    registry: Arc<Registry>,
    queues: Vec<Queue<P>>,
    /// Dispatches not yet decided: the next one last.
    work: Vec<(ProtoId, P)>,
    credit: Credit,
    account: Account,
    /// Lets the checkers prove that they would see a broken rule of order.
    #[cfg(test)]
    pub(super) overtakes: bool,
}

impl<P: Packet> Workstream<P> {
    /// The empty workstream of `worker`, in a path whose pool has `frames` frames.
    ///
    /// # Panics
    /// If the registry's steering knows no such worker.
    pub fn new(worker: usize, registry: Arc<Registry>, frames: usize) -> Workstream<P> {
        let workers = registry.rss().workers();
        assert!(worker < workers, "worker {worker} of {workers}");
        let credit = Credit::new(worker, &registry);
        let queue = |_| Queue {
            packets: VecDeque::with_capacity(frames),
            pass_len: 0,
            counters: Counters::default(),
        };
        Workstream {
            worker,
            queues: registry.ids().map(queue).collect(),
            registry,
            work: Vec::with_capacity(frames),
            credit,
            account: Account::default(),
            #[cfg(test)]
            overtakes: false,
        }
    }

    /// Dispatches a packet that enters from outside, or gives it back: then a protocol it may come to is
    /// full, and the feeder keeps the packet, and its place before all that follow it, until a later try is
    /// taken.
    pub fn dispatch<H: Handler<P>>(
        &mut self,
        proto: ProtoId,
        packet: P,
        now_ns: u64,
        handler: &mut H,
    ) -> Result<(), P> {
        if !self.credit.admits(&self.registry, proto, packet.meta(), now_ns) {
            return Err(packet);
        }
        self.account.accept(packet.len_bytes());
        self.run(Some((proto, packet)), RUNS_MAX, handler);
        Ok(())
    }

    /// Takes a packet that another worker handed off.
    pub fn receive<H: Handler<P>>(&mut self, proto: ProtoId, packet: P, handler: &mut H) {
        self.account.accept(packet.len_bytes());
        self.enqueue(proto, packet, handler);
    }

    /// One pass: handles what was queued when it began, and lets feeders on. Returns how many packets that were.
    pub fn drain<H: Handler<P>>(&mut self, now_ns: u64, handler: &mut H) -> usize {
        let handled = self.handle_queued(handler);
        self.let_on(now_ns);
        handled
    }

    /// The half of [`Workstream::drain`] that takes time, for those who count how long feeders were held meanwhile.
    pub fn handle_queued<H: Handler<P>>(&mut self, handler: &mut H) -> usize {
        for queue in &mut self.queues {
            queue.pass_len = queue.packets.len();
        }
        let mut handled = 0;
        for proto in self.registry.ids() {
            // What this pass itself queues is behind these, and left to the next one.
            for _ in 0..self.queues[proto.index()].pass_len {
                let packets = &mut self.queues[proto.index()].packets;
                if let Some(packet) = packets.get(AHEAD) {
                    handler.soon(packet);
                }
                let Some(packet) = packets.pop_front() else { break };
                self.update_full(proto);
                let mut first = None;
                self.handle(proto, packet, &mut first, handler);
                self.run(first, RUNS_MAX - 1, handler);
                handled += 1;
            }
            let packets = &mut self.queues[proto.index()].packets;
            if packets.is_empty() {
                // Back to the front of its memory, which is in the cache; going round, it would never be.
                packets.clear();
            }
        }
        handled
    }

    /// Lets feeders on that were held by what is no longer full.
    pub fn let_on(&mut self, now_ns: u64) {
        self.credit.let_on(now_ns);
    }

    /// Whether nothing waits here.
    pub fn is_empty(&self) -> bool {
        self.queues.iter().all(|queue| queue.packets.is_empty())
    }

    /// The protocols that hold their feeders, for the other workers.
    pub fn full(&self) -> ProtoSet {
        self.credit.full()
    }

    /// What `worker` says of itself. Its ring may hold packets it has not counted yet.
    ///
    /// # Panics
    /// If there is no such worker.
    pub fn set_peer_full(&mut self, worker: usize, full: ProtoSet, now_ns: u64) {
        self.credit.set_peer_full(worker, full, now_ns);
    }

    /// The books; they balance with [`Workstream::held`].
    pub fn account(&self) -> &Account {
        &self.account
    }

    /// What is inside, counted in the queues themselves.
    pub fn held(&self) -> Count {
        let mut held = Count::default();
        let listed = self.work.iter().map(|(_, packet)| packet);
        for packet in self.queues.iter().flat_map(|queue| &queue.packets).chain(listed) {
            held.add(packet.len_bytes());
        }
        held
    }

    /// Packets of `proto` marked as having met congestion.
    pub fn marked(&self, proto: ProtoId) -> u64 {
        self.queues[proto.index()].counters.marked
    }

    /// The counters, a row for each protocol, for a worker that runs on `cpu`.
    pub fn rows(&self, cpu: usize, now_ns: u64) -> Vec<WorkstreamRow> {
        let row = |id: ProtoId| {
            let queue = &self.queues[id.index()];
            let counters = &queue.counters;
            let listed = self.work.iter().filter(|(proto, _)| *proto == id).count();
            let (blocked, blocked_ns) = self.credit.blocked(id, now_ns);
            WorkstreamRow {
                wsid: self.worker,
                cpu,
                name: self.registry.get(id).protocol.name.to_string(),
                len: queue.packets.len(),
                wmark: counters.wmark,
                dispatched: counters.dispatched,
                hybrid_dispatched: counters.hybrid_dispatched,
                queue_drops: counters.queue_drops,
                queued: counters.queued,
                handled: counters.handled,
                held: queue.packets.len() + listed,
                blocked,
                blocked_ns,
            }
        };
        self.registry.ids().map(row).collect()
    }

    /// Works off `next` and the list; at most `runs` handlers, then everything left is queued.
    fn run<H: Handler<P>>(&mut self, mut next: Option<(ProtoId, P)>, mut runs: usize, handler: &mut H) {
        while let Some((proto, packet)) = next.take().or_else(|| self.work.pop()) {
            match self.now_or_later(proto, &packet, runs) {
                When::Now => {
                    runs -= 1;
                    let counters = &mut self.queues[proto.index()].counters;
                    match self.registry.get(proto).mode {
                        Mode::Direct => counters.dispatched += 1,
                        Mode::Hybrid | Mode::Deferred => counters.hybrid_dispatched += 1,
                    }
                    self.handle(proto, packet, &mut next, handler);
                }
                When::Queue => self.enqueue(proto, packet, handler),
                When::HandOff(worker) => {
                    self.account.deliver(packet.len_bytes());
                    handler.hand_off(worker, proto, packet);
                }
            }
        }
    }

    /// **Order (invariant 2): a packet handled now never overtakes one of its flow that waits.**
    ///
    /// A flow's packets come from one source in order, so at each protocol they all stay here or all go to
    /// the worker the policy chooses, and they wait nowhere but in that protocol's queue there. A packet may
    /// therefore be handled now, here, only if
    ///
    /// 1. its protocol's mode is not `deferred`;
    /// 2. this is the worker for it: any under `direct`, under `hybrid` the one the policy chooses;
    /// 3. no packet waits in its protocol's queue here; and
    /// 4. its list has runs left (bounded work): once it has not, all that follow wait too, until condition 3
    ///    holds.
    ///
    /// That no handler is running meanwhile ("not already running it", netisr's third condition) holds by
    /// construction: this is asked when a packet is taken *off* the work list, after the handler before it
    /// has returned and all of that one's packets have been placed. Asked when a packet is put *on* it, the
    /// queue could fill in between.
    fn now_or_later(&self, proto: ProtoId, packet: &P, runs: usize) -> When {
        let mode = self.registry.get(proto).mode;
        if mode != Mode::Direct {
            let worker = self.registry.worker(proto, packet.meta());
            if worker != self.worker {
                return When::HandOff(worker);
            }
        }
        let queue_is_empty = self.queues[proto.index()].packets.is_empty();
        #[cfg(test)]
        let queue_is_empty = queue_is_empty || self.overtakes;
        if mode != Mode::Deferred && queue_is_empty && runs > 0 { When::Now } else { When::Queue }
    }

    /// Runs a handler. Its first packet comes to `first`; its others go on the list, the second one last: the
    /// list is taken from its end.
    fn handle<H: Handler<P>>(
        &mut self,
        proto: ProtoId,
        packet: P,
        first: &mut Option<(ProtoId, P)>,
        handler: &mut H,
    ) {
        self.queues[proto.index()].counters.handled += 1;
        let listed = self.work.len();
        let (registry, further, account) = (&self.registry, &mut self.work, &mut self.account);
        handler.handle(proto, packet, &mut Next { from: proto, registry, first, further, account });
        if self.work.len() > listed {
            self.work[listed..].reverse();
        }
    }

    fn enqueue<H: Handler<P>>(&mut self, proto: ProtoId, mut packet: P, handler: &mut H) {
        let registered = self.registry.get(proto);
        let queue = &mut self.queues[proto.index()];
        let len = queue.packets.len();
        match registered.protocol.when_full {
            WhenFull::Block => {}
            WhenFull::Ecn => {
                if 2 * len >= registered.qlimit && handler.mark(&mut packet) {
                    queue.counters.marked += 1;
                }
            }
            WhenFull::Drop => {
                if len >= registered.qlimit {
                    queue.counters.queue_drops += 1;
                    self.account.drop(DropReason::WorkstreamFull, packet.len_bytes());
                    return handler.dropped(packet, DropReason::WorkstreamFull);
                }
            }
        }
        if len < AHEAD {
            handler.soon(&packet);
        }
        queue.packets.push_back(packet);
        queue.counters.queued += 1;
        queue.counters.wmark = queue.counters.wmark.max(len + 1);
        self.update_full(proto);
    }

    fn update_full(&mut self, proto: ProtoId) {
        let registered = self.registry.get(proto);
        let holds = registered.protocol.when_full != WhenFull::Drop
            && self.queues[proto.index()].packets.len() >= registered.qlimit;
        self.credit.set_full(proto, holds);
    }
}

#[cfg(test)]
#[path = "workstream_tests.rs"]
mod tests;
