//! FQ: every flow at its own pace, and those whose time has come served in turn.
//!
//! A flow with a pace has an earliest departure time, kept to 2^-6 ns. A packet leaves at or after it, and
//! moves it on by its own length; a flow that was late or idle may catch up by `slack_ns`:
//!
//! ```text
//! departure'  = max(departure, now - slack) + len * 8e9 / pace, rounded up by less than 2^-5 ns
//! bytes out of a flow in t seconds <= pace * (t + slack) + L             L the longest packet
//! ```
//!
//! and a flow that always has packets, served no later than `slack_ns`, falls behind its pace by no more than that rounding (1 in
//! 3,000 where a packet takes 100 ns). Flows whose time has come take turns by deficit, new flows first, as in the DRR module; a
//! flow whose time has not waits in a timing wheel (`wheel.rs`). So work does not grow with the number of flows; what grows is the
//! memory they lie in.
//!
//! A slot that comes due is served as the list it is. Old flows remember when the first of them was put back, and the slots that
//! were due then come before them; one that is put behind them later has those that came due meanwhile put there before it. So
//! turns are taken in the order in which flows became ready.
//!
//! A flow and a packet that waits alone in it are one cache line (`flow.rs`), which is read when the packet comes and when it
//! leaves; several packets lie in a slab. Where there are too many flows for the caches their lines are asked for in advance:
//! those of a burst some packets ahead of the one that is put in, and those that come due when the chunk of the wheel before theirs
//! is taken. A burst is booked at once. Flows are numbered densely and taken at creation.
//!
//! Owner: one worker. Source: Linux `net/sched/sch_fq.c` (pacing beside new and old flows); Saeed et al.,
//! *Carousel*, SIGCOMM 2017 (earliest departure time, and the credit that returns when the packet leaves);
//! ITU-T I.371 annex A for the recurrence (generic cell rate algorithm, slack being its tolerance).
//!
//! Limits: a pace below 120 bit/s is 120 bit/s; 9 years after the FQ was made paces end. A departure is late by less than one slot,
//! 8192 ns, besides what the caller is late; Linux allows its own timer 10 us. A slot costs as much as several packets: with slots
//! of 2048 ns, of ten packets each at 40 Gbit/s, a packet takes 174 instructions where it takes 152, and with 4096 ns 160. With a
//! slack below a slot, what a flow is late is lost to it. A flow whose next packet is further off than 2.1 s is looked at once in
//! that time. There is no limit on the sum of all flows; put one behind it where the way out does not.

use weir_simd::prefetch::prefetch;

use self::{
    flow::{FlowState, NONE, NOT_LISTED, TICK_SHIFT, Ticks},
    turns::List,
    wheel::{Due, Wheel},
};
use super::{
    backlog::{Dequeue, Refused},
    blocked::Blocked,
    delay::DelayHistogram,
    slab::Slab,
};
use crate::{
    account::Account,
    drops::{Count, DropReason},
    packet::Packet,
    rate::Rate,
};

mod flow;
mod turns;
mod wheel;

/// So many flows are in a core's cache whether they are fetched ahead or not.
const FLOWS_CACHED: usize = 1 << 13;

/// How many flows of a burst are asked for before the first packet is put into one.
const BURST_AHEAD: usize = 16;

/// What FQ is asked to keep, and the memory it takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FqConfig {
    /// Flows are numbered `0..flows`.
    pub flows: usize,
    /// The most packets it can hold: all frames that can reach it.
    pub packets_max: usize,
    /// Bytes of one flow's turn; the longest packet or more.
    pub quantum_bytes: u32,
    /// The pace of flows that are given none of their own; `None` does not limit them.
    pub pace: Option<Rate>,
    /// How far a flow may catch up.
    pub slack_ns: u64,
    /// How many bytes may wait before feeders must; at least one poll of an intake.
    pub limit_bytes: u64,
}

/// What is left after a burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterBurst {
    /// Flows whose time has come: ask again.
    Due,
    /// Packets wait, and none is admitted before this time.
    NotBefore(u64),
    /// Nothing waits.
    Empty,
}

/// Paced flows.
#[derive(Debug)]
pub struct Fq<P> {
    packets_max: u64,
    flows: Vec<FlowState<P>>,
    slab: Slab<P>,
    new_flows: List,
    /// The old flows whose turn it is, one after the other.
    round: u32,
    /// Those after them: a slot as it was taken.
    due: Due,
    /// The old flows after them and after the slots that were due when the first of these came.
    old_flows: List,
    old_since: Ticks,
    wheel: Wheel,
    /// When it was last asked for packets.
    asked: Ticks,
    begin_ns: u64,
    quantum_bytes: i32,
    slack: Ticks,
    limit_bytes: u64,
    held: Count,
    account: Account,
    delay: DelayHistogram,
    blocked: Blocked,
}

/// The time at which packets are asked for.
#[derive(Clone, Copy)]
struct Now {
    ns: u64,
    ticks: Ticks,
    /// As far back as a flow may catch up.
    earliest: Ticks,
}

impl Now {
    fn new(ns: u64, begin_ns: u64, slack: Ticks) -> Now {
        let ticks = ns.saturating_sub(begin_ns).saturating_mul(1 << TICK_SHIFT);
        Now { ns, ticks, earliest: ticks.saturating_sub(slack) }
    }
}

impl<P: Packet> Fq<P> {
    /// FQ with nothing in it.
    ///
    /// # Panics
    ///
    /// When `quantum_bytes` is 0 or above 1 GiB, or there are 2^32 - 2 flows or more, or 2^32 - 1 packets.
    pub fn new(config: FqConfig, now_ns: u64) -> Fq<P> {
        assert!((1..=1 << 30).contains(&config.quantum_bytes), "a turn of {} bytes", config.quantum_bytes);
        assert!(config.flows < NOT_LISTED as usize, "flows are numbered with 32 bits");
        Fq {
            packets_max: config.packets_max as u64,
            slab: Slab::new(config.packets_max),
            flows: (0..config.flows).map(|_| FlowState::new(config.pace)).collect(),
            new_flows: List::EMPTY,
            round: NONE,
            old_flows: List::EMPTY,
            old_since: 0,
            due: Due::default(),
            wheel: Wheel::new(config.flows.min(config.packets_max)),
            asked: 0,
            begin_ns: now_ns,
            quantum_bytes: config.quantum_bytes as i32,
            slack: config.slack_ns.saturating_mul(1 << TICK_SHIFT),
            limit_bytes: config.limit_bytes,
            held: Count::default(),
            account: Account::default(),
            delay: DelayHistogram::default(),
            blocked: Blocked::default(),
        }
    }

    /// How many more bytes an intake may bring in; 0 means its feeders must wait.
    pub fn room_bytes(&self) -> u64 {
        if self.held.packets >= self.packets_max {
            0
        } else {
            self.limit_bytes.saturating_sub(self.held.bytes)
        }
    }

    /// Puts a packet at the end of its flow's queue.
    ///
    /// # Panics
    ///
    /// When there is no such flow.
    #[inline]
    pub fn enqueue(&mut self, flow: usize, packet: P) -> Result<(), Refused<P>> {
        self.enqueue_burst(&[flow], &mut std::iter::once(packet))
    }

    /// The same for a burst of packets, which is booked at once, and the flow of each. Stops at the first that is refused: those
    /// after it stay in the iterator.
    ///
    /// # Panics
    ///
    /// When there is no such flow.
    #[inline]
    pub fn enqueue_burst(
        &mut self,
        flows: &[usize],
        packets: &mut impl Iterator<Item = P>,
    ) -> Result<(), Refused<P>> {
        let room = (self.packets_max - self.held.packets).min(flows.len() as u64);
        let (fit, mut entered) = (&flows[..room as usize], Count::default());
        // Among a million flows none is in a cache, and one after the other they would be waited for.
        let mut later = if self.flows.len() < FLOWS_CACHED { &[][..] } else { fit }.iter();
        later.by_ref().take(BURST_AHEAD).for_each(|&flow| self.expect(flow));
        for &flow in fit {
            if let Some(&later) = later.next() {
                self.expect(later);
            }
            let Some(len_bytes) = self.put(flow, packets) else { break };
            entered.add(len_bytes);
        }
        self.book_entered(entered);
        if entered.packets == room && fit.len() < flows.len() {
            return packets.next().map_or(Ok(()), |packet| Err(Refused::NoSlot(packet)));
        }
        Ok(())
    }

    #[inline]
    fn expect(&self, flow: usize) {
        if let Some(flow) = self.flows.get(flow) {
            prefetch(flow);
        }
    }

    #[inline]
    fn book_entered(&mut self, entered: Count) {
        self.held.merge(entered);
        self.account.accepted.merge(entered);
    }

    /// Puts the next packet, for which there is room, into a flow; its length.
    #[inline]
    fn put(&mut self, index: usize, packets: &mut impl Iterator<Item = P>) -> Option<u32> {
        let flow = &mut self.flows[index];
        if flow.next != NOT_LISTED {
            let packet = packets.next()?;
            let len_bytes = packet.len_bytes();
            flow.put(packet, &mut self.slab);
            return Some(len_bytes);
        }
        // Made where it stays, not on the stack and then moved.
        let len_bytes = flow.put_first(packets.next()?).len_bytes();
        flow.deficit = self.quantum_bytes;
        flow.next = NONE;
        if flow.ready > self.asked {
            self.wheel.push(flow.ready, index as u32);
        } else {
            self.new_flows.push(&mut self.flows, index as u32);
        }
        Some(len_bytes)
    }

    /// The next packet whose time has come.
    #[inline]
    pub fn dequeue(&mut self, now_ns: u64) -> Dequeue<P> {
        let mut one = None;
        let rest = self.dequeue_burst(now_ns, 1, |flow, packet| one = Some((flow, packet)));
        match (one, rest) {
            (Some((flow, packet)), _) => Dequeue::Packet(flow, packet),
            (None, AfterBurst::NotBefore(ready_ns)) => Dequeue::NotBefore(ready_ns),
            (None, _) => Dequeue::Empty,
        }
    }

    /// The next packets whose time has come, `packets_max` at most, given to `out` with their flows in the order in which they
    /// leave, and booked at once.
    #[inline]
    pub fn dequeue_burst(
        &mut self,
        now_ns: u64,
        packets_max: usize,
        mut out: impl FnMut(usize, P),
    ) -> AfterBurst {
        let now = Now::new(now_ns, self.begin_ns, self.slack);
        self.asked = now.ticks;
        let mut sent = Count::default();
        while sent.packets < packets_max as u64 {
            let is_new = self.new_flows.head != NONE;
            if is_new || self.round != NONE {
                let index = if is_new { self.new_flows.head } else { self.round };
                if !self.send(index, now, &mut sent, &mut out) {
                    self.end_listed(is_new, now.ticks);
                }
                continue;
            }
            if self.due.at_hand().is_empty() && !self.next_due(now.ticks) {
                if self.round == NONE { break } else { continue }
            }
            let Some(index) = self.pass(now, packets_max as u64, &mut sent, &mut out) else { continue };
            if self.send(index, now, &mut sent, &mut out) {
                self.flows[index as usize].next = NONE;
                self.round = index;
            } else {
                self.end_turn(index, false, now.ticks);
            }
        }
        self.held.packets -= sent.packets;
        self.held.bytes -= sent.bytes;
        self.account.delivered.merge(sent);
        self.rest(now.ticks)
    }

    /// Lets packets of the flows at hand out which wait alone, as most do, until there are `packets_max`, or none at hand, or one
    /// flow's turn is more than that: this one is taken and returned. In a function of its own the loop has the registers it needs.
    #[inline(never)]
    fn pass(
        &mut self,
        now: Now,
        packets_max: u64,
        sent: &mut Count,
        out: &mut impl FnMut(usize, P),
    ) -> Option<u32> {
        let room = (packets_max - sent.packets) as usize;
        let (flows, delay) = (self.flows.as_mut_slice(), &mut self.delay);
        let at_hand = self.due.at_hand();
        let (mut passed, mut bytes, mut other) = (0, 0, None);
        for &index in at_hand.iter().rev().take(room) {
            let flow = &mut flows[index as usize];
            let Some(packet) = flow.passing(now.ticks) else {
                other = Some(index);
                break;
            };
            // All that is read of it is read before it is moved, so that it is moved once, to where it goes.
            let len_bytes = packet.len_bytes();
            bytes += u64::from(len_bytes);
            delay.record(now.ns.saturating_sub(packet.meta().arrival_ns));
            flow.depart(len_bytes, now.earliest);
            flow.next = NOT_LISTED;
            passed += 1;
            if let Some(packet) = flow.take_only() {
                out(index as usize, packet);
            }
        }
        sent.packets += passed as u64;
        sent.bytes += bytes;
        self.due.skip(passed + usize::from(other.is_some()));
        other
    }

    /// Lets the next packet of a flow out, if it may leave; whether the flow may send another at once.
    #[inline]
    fn send(&mut self, index: u32, now: Now, sent: &mut Count, out: &mut impl FnMut(usize, P)) -> bool {
        let flow = &mut self.flows[index as usize];
        let Some(packet) = flow.send(now.ticks, now.earliest, &mut self.slab) else { return false };
        let goes_on = flow.goes_on(now.ticks);
        sent.add(packet.len_bytes());
        self.delay.record(now.ns.saturating_sub(packet.meta().arrival_ns));
        out(index as usize, packet);
        goes_on
    }

    #[inline]
    fn rest(&self, now: Ticks) -> AfterBurst {
        if self.new_flows.head != NONE
            || self.round != NONE
            || self.old_flows.head != NONE
            || !self.due.is_empty()
        {
            return AfterBurst::Due;
        }
        match self.wheel.next() {
            Some(next) if next <= now => AfterBurst::Due,
            Some(next) => AfterBurst::NotBefore(self.begin_ns.saturating_add(next >> TICK_SHIFT)),
            None => AfterBurst::Empty,
        }
    }

    /// Takes a packet out whatever its time, booked as dropped. Until `None` this empties the shaper.
    pub fn drop_next(&mut self, reason: DropReason) -> Option<P> {
        loop {
            let lists = [&mut self.new_flows.head, &mut self.round, &mut self.old_flows.head];
            let Some(head) = lists.into_iter().find(|head| **head != NONE) else {
                // The wheel has room for flows in which packets wait, and no more: none may stay there without.
                if self.due.is_empty() && !self.wheel.take_any(&mut self.due) {
                    return None;
                }
                self.list_slot();
                continue;
            };
            let flow = &mut self.flows[*head as usize];
            if let Some(packet) = flow.take(&mut self.slab) {
                self.held.sub(packet.len_bytes());
                self.account.drop(reason, packet.len_bytes());
                return Some(packet);
            }
            *head = std::mem::replace(&mut flow.next, NOT_LISTED);
        }
    }

    /// Gives one flow a pace of its own from its next packet on; `None` does not limit it.
    ///
    /// # Panics
    ///
    /// When there is no such flow.
    pub fn set_pace(&mut self, flow: usize, pace: Option<Rate>) {
        self.flows[flow].set_pace(pace);
    }

    /// Changes how many bytes may wait.
    pub fn set_limit(&mut self, limit_bytes: u64) {
        self.limit_bytes = limit_bytes;
    }

    /// Its books.
    pub fn account(&self) -> &Account {
        &self.account
    }

    /// The standing delays of the packets that left.
    pub fn delay(&self) -> &DelayHistogram {
        &self.delay
    }

    /// The times at which its feeders were not polled because it was full; to be told, and to be read.
    pub fn blocked_mut(&mut self) -> &mut Blocked {
        &mut self.blocked
    }

    /// The same, to be read.
    pub fn blocked(&self) -> &Blocked {
        &self.blocked
    }

    /// What waits here.
    pub fn held(&self) -> Count {
        self.held
    }
}

#[cfg(test)]
mod tests;
