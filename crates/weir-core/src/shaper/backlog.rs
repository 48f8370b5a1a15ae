//! A backlog: the packets that wait in one class. Fair queues, the credit that bounds them, the rule for when they are full, and the books
//! and delays of packets that passed.
//!
//! ```text
//! room_bytes = max(limit, poll budget) - held            the credit: the bytes that an intake may still bring in
//! standing delay = dequeue time - arrival_ns             of each packet
//! ```
//!
//! | rule | when full | while it stands too long |
//! |---|---|---|
//! | `Block` | room is 0, so feeders are not polled and senders feel it | nothing |
//! | `Ecn` | the same | CoDel marks packets that can be marked |
//! | `Drop` | a packet is dropped if its flow holds its share | CoDel drops |
//!
//! A flow's share is `limit / flows waiting`, so a flood is dropped and a quiet flow beside it is not; `n`
//! flows hold less than `limit * (2 + ln n)` together. With any rule, a packet older than `max_wait_ns` is
//! dropped when its turn comes. One flow is a plain FIFO.
//!
//! The limit is never below one poll budget, the most bytes one poll may bring: otherwise an empty class of a
//! slow rate could never let an intake poll. An intake that polls whenever there is room brings at most one
//! poll budget over the limit, and then waits until it is under it again.
//!
//! Owner: one worker. Packets are in a slab that other backlogs may share. Every drop is booked under its
//! reason and the packet handed back, so that its frame can be freed.

use super::{
    blocked::Blocked,
    codel::{Codel, CodelConfig},
    delay::DelayHistogram,
    drr::Drr,
    slab::Slab,
};
use crate::{
    account::Account,
    drops::{Count, DropReason},
    packet::Packet,
};

/// The treatment of packets when a class is full, or has been for long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueRule {
    /// The policy at the limit.
    pub when_full: FullPolicy,
    /// The longest that a packet may wait before it is dropped, in nanoseconds; for ever if absent.
    pub max_wait_ns: Option<u64>,
}

impl QueueRule {
    /// This rule for packets of at most `mtu_bytes`.
    pub fn for_packets_of(mut self, mtu_bytes: u64) -> QueueRule {
        if let FullPolicy::Ecn(codel) | FullPolicy::Drop(codel) = &mut self.when_full {
            codel.mtu_bytes = mtu_bytes;
        }
        self
    }
}

/// The policy at the limit; see the table of the module.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FullPolicy {
    /// The senders are held.
    #[default]
    Block,
    /// The senders are held, and before that those that understand marks are told.
    Ecn(CodelConfig),
    /// The senders are told by dropping packets.
    Drop(CodelConfig),
}

impl FullPolicy {
    /// Returns whether packets are dropped because there are too many; otherwise their senders are held.
    pub fn drops(&self) -> bool {
        matches!(self, FullPolicy::Drop(_))
    }
}

/// The reason why a packet was not taken in; it is the caller's again.
#[derive(Debug, PartialEq, Eq)]
pub enum Refused<P> {
    /// Every slot is taken. Nothing is booked; cannot happen where slots cover all frames.
    NoSlot(P),
    /// The rule says to drop it. It is booked; free it.
    Dropped(DropReason, P),
}

/// The result of a dequeue.
#[derive(Debug, PartialEq, Eq)]
pub enum Dequeue<P> {
    /// This packet of this flow leaves now; it is charged and booked.
    Packet(usize, P),
    /// This packet is dropped by the rule; it is booked and not charged. Free it and ask again.
    Dropped(DropReason, P),
    /// Packets wait, and none is admitted before this time.
    NotBefore(u64),
    /// No packet waits.
    Empty,
}

/// The queues of one class with their rule, books and delays.
#[derive(Debug)]
pub struct Backlog {
    queue: Drr,
    /// The packets that are booked here and pass by the queues.
    passing: Count,
    rule: QueueRule,
    /// True if the rule is the default one, by which a waiting packet is neither dropped nor marked.
    is_plain: bool,
    /// The CoDel state of each flow where the rule needs it, else none.
    codel: Vec<Codel>,
    limit_bytes: u64,
    poll_budget_bytes: u64,
    account: Account,
    /// The packets that were marked as having met congestion.
    marked: u64,
    delay: DelayHistogram,
    blocked: Blocked,
}

impl Backlog {
    /// Queues for flows `0..flows`, each turn passing `quantum_bytes`, of which `limit_bytes` may wait.
    pub fn new(
        flows: usize,
        quantum_bytes: u32,
        poll_budget_bytes: u64,
        limit_bytes: u64,
        rule: QueueRule,
    ) -> Backlog {
        let mut backlog = Backlog {
            queue: Drr::new(flows, quantum_bytes),
            passing: Count::default(),
            rule: QueueRule::default(),
            is_plain: true,
            codel: Vec::new(),
            limit_bytes,
            poll_budget_bytes,
            account: Account::default(),
            marked: 0,
            delay: DelayHistogram::default(),
            blocked: Blocked::default(),
        };
        backlog.set_rule(rule);
        backlog
    }

    /// The bytes that an intake may still bring in; 0 means its feeders must wait.
    pub fn room_bytes(&self) -> u64 {
        match self.rule.when_full {
            FullPolicy::Block | FullPolicy::Ecn(_) => self.limit_bytes().saturating_sub(self.held().bytes),
            FullPolicy::Drop(_) => u64::MAX,
        }
    }

    /// Takes a packet in, to its flow's queue.
    #[inline(always)]
    pub fn enqueue<P: Packet>(
        &mut self,
        slab: &mut Slab<P>,
        flow: usize,
        packet: P,
    ) -> Result<(), Refused<P>> {
        let len_bytes = packet.len_bytes();
        let may_drop = self.rule.when_full.drops();
        let refused = if may_drop && self.is_over_share(flow) {
            packet
        } else {
            match self.queue.enqueue(slab, flow, packet) {
                Ok(()) => {
                    self.account.accept(len_bytes);
                    return Ok(());
                }
                Err(packet) if may_drop => packet,
                Err(packet) => return Err(Refused::NoSlot(packet)),
            }
        };
        self.account.accept(len_bytes);
        self.account.drop(DropReason::ClassFull, len_bytes);
        Err(Refused::Dropped(DropReason::ClassFull, refused))
    }

    /// The next packet in fair order, with its flow.
    pub fn head<'s, P: Packet>(&mut self, slab: &'s Slab<P>) -> Option<(usize, &'s P)> {
        let (flow, fifo) = self.queue.head()?;
        Some((flow, slab.front(fifo)?))
    }

    /// Sends the next packet in fair order, or drops it if the rule says so.
    #[inline(always)]
    pub fn dequeue<P: Packet>(&mut self, slab: &mut Slab<P>, now_ns: u64) -> Dequeue<P> {
        if let Some(reason) = self.drop_or_mark_head(slab, now_ns) {
            return self
                .drop_next(slab, reason)
                .map_or(Dequeue::Empty, |packet| Dequeue::Dropped(reason, packet));
        }
        let Some((flow, packet)) = self.queue.dequeue(slab) else {
            return Dequeue::Empty;
        };
        self.account.deliver(packet.len_bytes());
        self.delay.record(now_ns.saturating_sub(packet.meta().arrival_ns));
        Dequeue::Packet(flow, packet)
    }

    /// Takes the next packet out, booked as dropped. Repeated until `None` this empties the backlog.
    pub fn drop_next<P: Packet>(&mut self, slab: &mut Slab<P>, reason: DropReason) -> Option<P> {
        let (_, packet) = self.queue.discard(slab)?;
        self.account.drop(reason, packet.len_bytes());
        Some(packet)
    }

    /// Takes the next packet out to put it into another class, off the books here; packets of a flow keep their order.
    pub fn move_next<P: Packet>(&mut self, slab: &mut Slab<P>) -> Option<(usize, P)> {
        let (flow, packet) = self.queue.discard(slab)?;
        self.account.move_out(packet.len_bytes());
        Some((flow, packet))
    }

    /// The time at which a packet that arrived at `arrival_ns` has waited too long.
    pub fn expires_ns(&self, arrival_ns: u64) -> u64 {
        self.rule.max_wait_ns.map_or(u64::MAX, |max_wait_ns| arrival_ns.saturating_add(max_wait_ns))
    }

    /// Changes the rule from now on; waiting packets stay.
    pub fn set_rule(&mut self, rule: QueueRule) {
        let flows = if rule.when_full == FullPolicy::Block { 0 } else { self.queue.flows() };
        self.codel.resize(flows, Codel::default());
        self.is_plain = rule == QueueRule::default();
        self.rule = rule;
    }

    /// The present rule.
    pub fn rule(&self) -> &QueueRule {
        &self.rule
    }

    /// Changes the credit from now on; waiting packets stay.
    pub fn set_limit(&mut self, limit_bytes: u64) {
        self.limit_bytes = limit_bytes;
    }

    /// The whole credit, held and room together.
    pub fn limit_bytes(&self) -> u64 {
        self.limit_bytes.max(self.poll_budget_bytes)
    }

    /// The times at which its feeders were not polled because the backlog was full, to be reported and read.
    pub fn blocked_mut(&mut self) -> &mut Blocked {
        &mut self.blocked
    }

    /// The times at which its feeders were not polled because the backlog was full, to be read.
    pub fn blocked(&self) -> &Blocked {
        &self.blocked
    }

    /// The books of the class.
    pub fn account(&self) -> &Account {
        &self.account
    }

    /// The standing delays of the packets that left.
    pub fn delay(&self) -> &DelayHistogram {
        &self.delay
    }

    /// The packets that were marked instead of dropped.
    pub fn marked(&self) -> u64 {
        self.marked
    }

    /// The packets that wait here.
    pub fn held(&self) -> Count {
        let mut held = self.queue.held();
        held.merge(self.passing);
        held
    }

    /// The packets that wait in one flow's queue; not those that pass by the queues.
    pub fn held_of(&self, flow: usize) -> Count {
        self.queue.held_of(flow)
    }

    /// Returns whether a packet that comes now may pass by the queues: none waits there, and the rule has nothing to decide.
    #[inline(always)]
    pub(super) fn may_be_passed(&self) -> bool {
        self.is_plain && self.queue.held().packets == 0
    }

    /// Books packets that pass by the queues, which the caller keeps.
    #[inline(always)]
    pub(super) fn pass_in(&mut self, passed: Count) {
        self.account.accept_all(passed);
        self.passing.merge(passed);
    }

    /// Books passing packets that arrived together as sent.
    #[inline(always)]
    pub(super) fn pass_out(&mut self, passed: Count, arrival_ns: u64, now_ns: u64) {
        self.passing.sub_all(passed);
        self.account.deliver_all(passed);
        self.delay.record_all(now_ns.saturating_sub(arrival_ns), passed.packets);
    }

    /// Books a passing packet as dropped.
    pub(super) fn drop_passing(&mut self, reason: DropReason, len_bytes: u32) {
        self.passing.sub(len_bytes);
        self.account.drop(reason, len_bytes);
    }

    /// Takes a passing packet off the books: it goes to another class.
    pub(super) fn move_passing(&mut self, len_bytes: u32) {
        self.passing.sub(len_bytes);
        self.account.move_out(len_bytes);
    }

    fn is_over_share(&self, flow: usize) -> bool {
        let limit_bytes = self.limit_bytes();
        let share_bytes = limit_bytes / u64::from(self.queue.flows_waiting().max(1));
        self.held().bytes >= limit_bytes && self.held_of(flow).bytes + self.passing.bytes >= share_bytes
    }

    /// Applies the rule to the packet that leaves next: marks it where that will do, else returns the reason to drop it.
    fn drop_or_mark_head<P: Packet>(&mut self, slab: &mut Slab<P>, now_ns: u64) -> Option<DropReason> {
        if self.is_plain {
            return None;
        }
        let (flow, fifo) = self.queue.head()?;
        let packet = slab.front_mut(fifo)?;
        let held_bytes = self.queue.held_of(flow).bytes;
        let delay_ns = now_ns.saturating_sub(packet.meta().arrival_ns);
        if self.rule.max_wait_ns.is_some_and(|max_wait_ns| delay_ns > max_wait_ns) {
            return Some(DropReason::MaxWait);
        }
        let (config, may_mark) = match &self.rule.when_full {
            FullPolicy::Block => return None,
            FullPolicy::Ecn(config) => (config, true),
            FullPolicy::Drop(config) => (config, false),
        };
        if !self.codel[flow].must_signal(config, now_ns, delay_ns, held_bytes) {
            return None;
        }
        if !may_mark {
            return Some(DropReason::Codel);
        }
        self.marked += u64::from(packet.mark_ce());
        None
    }
}

#[cfg(test)]
mod tests;
