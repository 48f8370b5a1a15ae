//! Credit: which protocols are full, here and elsewhere, and how long feeders were held because of each.
//!
//! The rule: a packet may enter protocol `p` only while none of `reach[p]`, the protocols it may come to, is
//! full on this worker or on one that their policies choose for it. Who is refused waits, and is counted once
//! for each time credit ran out: `blocked`, and from then until credit is back, `blocked_ns`.
//!
//! What other workers say of themselves may be old. "There is credit" may then be wrong and lets packets past
//! a limit; "there is none" ends with the next word from that worker, so it delays and never loses.
//!
//! Ownership: its workstream.

use super::protocol::{Mode, ProtoId, ProtoSet, Registry};
use crate::packet::Meta;
use crate::steer::rss::Bits;

/// A workstream's view of what is full.
pub(super) struct Credit {
    worker: usize,
    /// Protocols that hold their feeders here.
    full: ProtoSet,
    /// The same on every worker, as last heard of; our own entry stays empty.
    peers_full: Vec<ProtoSet>,
    /// All of `peers_full` together: 0 nearly always, which spares a packet the look at each.
    peers_full_union: ProtoSet,
    /// Protocols because of which a feeder was held and has not been let on since.
    holding: ProtoSet,
    blocked: Vec<Blocked>,
}

#[derive(Clone, Debug, Default)]
struct Blocked {
    times: u64,
    ns: u64,
    since_ns: u64,
}

impl Credit {
    pub fn new(worker: usize, registry: &Registry) -> Credit {
        Credit {
            worker,
            full: 0,
            peers_full: vec![0; registry.rss().workers()],
            peers_full_union: 0,
            holding: 0,
            blocked: registry.ids().map(|_| Blocked::default()).collect(),
        }
    }

    /// What is full here.
    pub fn full(&self) -> ProtoSet {
        self.full
    }

    /// Notes whether `proto` is full here.
    pub fn set_full(&mut self, proto: ProtoId, is_full: bool) {
        self.full = self.full & !(1 << proto.index()) | ProtoSet::from(is_full) << proto.index();
    }

    /// Notes what is full on another worker.
    pub fn set_peer_full(&mut self, worker: usize, full: ProtoSet, now_ns: u64) {
        if worker != self.worker {
            self.peers_full[worker] = full;
            self.peers_full_union = self.peers_full.iter().fold(0, |union, full| union | full);
            self.let_on(now_ns);
        }
    }

    /// Whether a packet may enter `proto`. If not, its feeder is held from now on.
    pub fn admits(&mut self, registry: &Registry, proto: ProtoId, meta: &Meta, now_ns: u64) -> bool {
        let full = self.in_the_way(registry, proto, meta);
        for place in Bits(full & !self.holding) {
            self.blocked[place].times += 1;
            self.blocked[place].since_ns = now_ns;
        }
        self.holding |= full;
        full == 0
    }

    /// Lets feeders on that were held because of what is no longer full.
    pub fn let_on(&mut self, now_ns: u64) {
        let still_full = self.full | self.peers_full_union;
        for place in Bits(self.holding & !still_full) {
            let blocked = &mut self.blocked[place];
            blocked.ns += now_ns.saturating_sub(blocked.since_ns);
        }
        self.holding &= still_full;
    }

    /// How often feeders were held because of `proto`, and for how many nanoseconds up to now.
    pub fn blocked(&self, proto: ProtoId, now_ns: u64) -> (u64, u64) {
        let blocked = &self.blocked[proto.index()];
        let is_holding = self.holding >> proto.index() & 1 == 1;
        let since_ns = if is_holding { now_ns.saturating_sub(blocked.since_ns) } else { 0 };
        (blocked.times, blocked.ns + since_ns)
    }

    fn in_the_way(&self, registry: &Registry, proto: ProtoId, meta: &Meta) -> ProtoSet {
        let reach = registry.get(proto).reach;
        if reach & (self.full | self.peers_full_union) == 0 {
            return 0;
        }
        let mut full = self.full;
        for id in registry.ids().filter(|id| reach >> id.index() & 1 == 1) {
            if registry.get(id).mode != Mode::Direct {
                full |= self.peers_full[registry.worker(id, meta)];
            }
        }
        reach & full
    }
}
