//! FQ: every flow at its own pace, and those whose time has come served in turn.
//!
//! A flow with a pace has an earliest departure time, kept to 2^-32 ns. A packet leaves at or after it, and
//! moves it on by its own length; a flow that was late or idle may catch up by `slack_ns`:
//!
//! ```text
//! ns_per_byte = ceil(2^32 * 8e9 / pace) / 2^32
//! departure'  = max(departure, now - slack) + len * ns_per_byte
//! bytes out of a flow in t seconds <= pace * (t + slack) + L             L the longest packet
//! ```
//!
//! and a flow that always has packets, served no later than `slack_ns`, falls behind its pace by less than
//! 2^-32 ns a byte (a relative 3e-9 at 100 Gbit/s). Flows whose time has come take turns by deficit, new
//! flows first, as in the DRR module; a flow whose time has not waits in a bucket queue by its departure
//! time. So work does not grow with the number of flows; what grows is the memory they lie in.
//!
//! A flow is one cache line, 64 bytes, idle or not: whatever is done to it waits for memory once. Where there are too many
//! for the caches, lines are asked for many at a time ([`Fq::expect`] before a burst is put in, `fetch_ahead` before flows
//! come due), so that a packet does not wait for all of each. Flows are numbered densely and taken at creation.
//!
//! Owner: one worker. Source: Linux `net/sched/sch_fq.c` (pacing beside new and old flows); Saeed et al.,
//! *Carousel*, SIGCOMM 2017 (earliest departure time, and the credit that returns when the packet leaves);
//! ITU-T I.371 annex A for the recurrence (generic cell rate algorithm, slack being its tolerance).
//!
//! Limits: a pace below 2 bit/s is 2 bit/s. A departure is late by less than one bucket, `2^BUCKET_SHIFT` ns,
//! besides what the caller is late. There is no limit on the sum of all flows; put one behind it where the
//! way out does not.

use std::hint::black_box;

use super::{
    backlog::{Dequeue, Refused},
    blocked::Blocked,
    buckets::{Buckets, NONE},
    delay::DelayHistogram,
    slab::{Fifo, Slab},
};
use crate::{
    account::Account,
    drops::{Count, DropReason},
    packet::Packet,
    rate::{NS_PER_S, Rate},
};

/// Departure times are kept apart to 2^10 ns, about a microsecond; the window is then 268 ms, and a flow
/// whose next packet is further off is looked at once in each.
const BUCKET_SHIFT: u32 = 10;

/// So many flows and their packets are in a core's cache whether they are fetched ahead or not.
const FLOWS_CACHED: usize = 1 << 14;
/// How many flows are fetched at a time.
const AHEAD: usize = 64;

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

/// Paced flows.
#[derive(Debug)]
pub struct Fq<P> {
    slab: Slab<P>,
    flows: Vec<Flow>,
    new_flows: List,
    old_flows: List,
    parked: Buckets,
    /// When the bucket queue was last asked. Invariant: whoever is parked has a later time.
    listed_ns: u64,
    /// Up to here the memory of those who are parked has been fetched.
    fetched_ns: u64,
    quantum_bytes: i32,
    slack_ns: u64,
    limit_bytes: u64,
    held: Count,
    account: Account,
    delay: DelayHistogram,
    blocked: Blocked,
}

/// One flow.
#[derive(Debug)]
#[repr(align(64))]
struct Flow {
    /// The next one of the list or bucket it is in.
    next: u32,
    fifo: Fifo,
    departure_ns: u64,
    /// The rest of the departure time, in 2^-32 ns.
    departure_fraction: u32,
    deficit: i32,
    /// In 2^-32 ns; 0 is no pace.
    ns_per_byte: u64,
}

const _: () = assert!(size_of::<Flow>() == 64, "an idle flow is one cache line, and never lies across two");

/// In the place of a link: the flow is on no list and in no bucket, and nothing waits in it.
const NOT_LISTED: u32 = NONE - 1;

#[derive(Clone, Copy, Debug)]
struct List {
    head: u32,
    tail: u32,
}

impl<P: Packet> Fq<P> {
    /// FQ with nothing in it.
    ///
    /// # Panics
    ///
    /// When `quantum_bytes` is 0 or above 1 GiB, or there are 2^32 - 2 flows or packets or more.
    pub fn new(config: FqConfig, now_ns: u64) -> Fq<P> {
        assert!((1..=1 << 30).contains(&config.quantum_bytes), "a turn of {} bytes", config.quantum_bytes);
        assert!(config.flows < NOT_LISTED as usize, "flows are numbered with 32 bits");
        let flow = || Flow {
            next: NOT_LISTED,
            fifo: Fifo::default(),
            departure_ns: 0,
            departure_fraction: 0,
            deficit: 0,
            ns_per_byte: ns_per_byte(config.pace),
        };
        Fq {
            slab: Slab::new(config.packets_max),
            flows: (0..config.flows).map(|_| flow()).collect(),
            new_flows: List { head: NONE, tail: NONE },
            old_flows: List { head: NONE, tail: NONE },
            parked: Buckets::new(BUCKET_SHIFT, now_ns),
            listed_ns: now_ns,
            fetched_ns: now_ns,
            quantum_bytes: config.quantum_bytes as i32,
            slack_ns: config.slack_ns,
            limit_bytes: config.limit_bytes,
            held: Count::default(),
            account: Account::default(),
            delay: DelayHistogram::default(),
            blocked: Blocked::default(),
        }
    }

    /// How many more bytes an intake may bring in; 0 means its feeders must wait.
    pub fn room_bytes(&self) -> u64 {
        if self.slab.room_packets() == 0 { 0 } else { self.limit_bytes.saturating_sub(self.held.bytes) }
    }

    /// Puts a packet at the end of its flow's queue.
    ///
    /// # Panics
    ///
    /// When there is no such flow.
    #[inline]
    pub fn enqueue(&mut self, flow: usize, packet: P) -> Result<(), Refused<P>> {
        let len_bytes = packet.len_bytes();
        let queue = &mut self.flows[flow];
        self.slab.push(&mut queue.fifo, packet).map_err(Refused::NoSlot)?;
        self.held.add(len_bytes);
        self.account.accept(len_bytes);
        if queue.next == NOT_LISTED {
            queue.deficit = self.quantum_bytes;
            let ready_ns = queue.ready_ns();
            if ready_ns > self.listed_ns {
                queue.next = self.parked.push(ready_ns, flow as u32);
            } else {
                self.new_flows.push(&mut self.flows, flow as u32);
            }
        }
        Ok(())
    }

    /// Fetches the memory of flows that packets are about to be put into, for all of them at the same time: among a million
    /// flows none is in a cache, and one after the other they would be waited for.
    #[inline]
    pub fn expect(&self, flows: impl Iterator<Item = usize>) {
        if self.flows.len() >= FLOWS_CACHED {
            let touched = flows.fold(0, |sum: u32, flow| sum ^ self.flows[flow].next);
            black_box(touched);
        }
    }

    /// The next packet whose time has come.
    #[inline]
    pub fn dequeue(&mut self, now_ns: u64) -> Dequeue<P> {
        loop {
            // Whoever is parked is parked past the present, so nobody is due until that moves.
            if now_ns != self.listed_ns {
                self.list_due(now_ns);
                self.listed_ns = now_ns;
            }
            let is_new = self.new_flows.head != NONE;
            let index = if is_new { self.new_flows.head } else { self.old_flows.head };
            let Some(flow) = self.flows.get_mut(index as usize) else {
                let next_ns = self.parked.next_ns().filter(|_| self.held.packets > 0);
                return next_ns.map_or(Dequeue::Empty, Dequeue::NotBefore);
            };
            if !flow.fifo.is_empty() && flow.deficit > 0 && flow.ready_ns() <= now_ns {
                let Some(packet) = self.slab.pop(&mut flow.fifo) else {
                    return Dequeue::Empty;
                };
                let len_bytes = packet.len_bytes();
                flow.depart(len_bytes, now_ns, self.slack_ns);
                flow.deficit = flow.deficit.saturating_sub_unsigned(len_bytes);
                self.held.sub(len_bytes);
                self.account.deliver(len_bytes);
                self.delay.record(now_ns.saturating_sub(packet.meta().arrival_ns));
                if flow.fifo.is_empty() || flow.deficit <= 0 || flow.ready_ns() > now_ns {
                    self.end_turn(now_ns);
                }
                return Dequeue::Packet(index as usize, packet);
            }
            self.end_turn(now_ns);
        }
    }

    /// Takes a packet out whatever its time, booked as dropped. Until `None` this empties the shaper; it
    /// looks at every flow once, so it is not for the packet's way.
    pub fn drop_next(&mut self, reason: DropReason) -> Option<P> {
        let packet = self.flows.iter_mut().find_map(|flow| self.slab.pop(&mut flow.fifo))?;
        self.held.sub(packet.len_bytes());
        self.account.drop(reason, packet.len_bytes());
        Some(packet)
    }

    /// Gives one flow a pace of its own from its next packet on; `None` does not limit it.
    ///
    /// # Panics
    ///
    /// When there is no such flow.
    pub fn set_pace(&mut self, flow: usize, pace: Option<Rate>) {
        let flow = &mut self.flows[flow];
        (flow.departure_ns, flow.departure_fraction) = (flow.ready_ns(), 0);
        flow.ns_per_byte = ns_per_byte(pace);
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

    /// Moves flows whose time has come from their buckets to the old flows.
    #[inline]
    fn list_due(&mut self, now_ns: u64) {
        if now_ns >= self.fetched_ns && self.flows.len() >= FLOWS_CACHED {
            self.fetch_ahead(now_ns);
        }
        while let Some(first) = self.parked.take_due(now_ns) {
            let mut index = first;
            while index != NONE {
                let following = self.flows[index as usize].next;
                self.old_flows.push(&mut self.flows, index);
                index = following;
            }
        }
    }

    /// Fetches the memory of the flows that are due next, and of their first packets: the first loop follows the buckets'
    /// lists, those of the others do not depend on each other, so that their loads are under way together.
    #[inline(never)]
    fn fetch_ahead(&mut self, now_ns: u64) {
        let mut ahead = [0; AHEAD];
        let mut count = 0;
        let mut from_ns = 0;
        while count < AHEAD {
            let Some((at_ns, first)) = self.parked.first_from(from_ns) else { break };
            let mut index = first;
            while index != NONE && count < AHEAD {
                ahead[count] = index;
                count += 1;
                index = self.flows[index as usize].next;
            }
            from_ns = at_ns + (1 << BUCKET_SHIFT);
        }
        self.fetched_ns = from_ns.max(now_ns + (1 << BUCKET_SHIFT));
        let mut heads = [0; AHEAD];
        for (head, &index) in heads.iter_mut().zip(&ahead[..count]) {
            *head = self.flows[index as usize].fifo.first();
        }
        black_box(self.slab.touch(&heads[..count]));
    }

    /// Moves the flow at the head on: out of the round if it is empty and was an old one already, into a
    /// bucket if its time has not come, else to the back of the old flows, with a quantum if it has used its
    /// own.
    #[inline]
    fn end_turn(&mut self, now_ns: u64) {
        let is_new = self.new_flows.head != NONE;
        let list = if is_new { &mut self.new_flows } else { &mut self.old_flows };
        let index = list.head;
        list.head = self.flows[index as usize].next;
        let flow = &mut self.flows[index as usize];
        let in_debt = flow.deficit <= 0;
        if in_debt {
            flow.deficit = flow.deficit.saturating_add(self.quantum_bytes);
        }
        let (is_empty, ready_ns) = (flow.fifo.is_empty(), flow.ready_ns());
        if is_empty && !in_debt && !is_new {
            self.flows[index as usize].next = NOT_LISTED;
        } else if !is_empty && ready_ns > now_ns {
            self.flows[index as usize].next = self.parked.push(ready_ns, index);
        } else {
            self.old_flows.push(&mut self.flows, index);
        }
    }
}

impl Flow {
    /// The first whole nanosecond at which it may send.
    #[inline]
    fn ready_ns(&self) -> u64 {
        self.departure_ns + u64::from(self.departure_fraction > 0)
    }

    #[inline]
    fn depart(&mut self, len_bytes: u32, now_ns: u64, slack_ns: u64) {
        if self.ns_per_byte == 0 {
            return;
        }
        let earliest_ns = now_ns.saturating_sub(slack_ns);
        if self.departure_ns < earliest_ns {
            (self.departure_ns, self.departure_fraction) = (earliest_ns, 0);
        }
        let cost = u128::from(len_bytes) * u128::from(self.ns_per_byte) + u128::from(self.departure_fraction);
        self.departure_fraction = cost as u32;
        // At most 2^64 of a byte's 2^32 ns, times 2^32 bytes, over 2^32.
        self.departure_ns = self.departure_ns.saturating_add((cost >> 32) as u64).min(u64::MAX - 1);
    }
}

fn ns_per_byte(pace: Option<Rate>) -> u64 {
    pace.map_or(0, |pace| {
        let ns_per_byte = (u128::from(8 * NS_PER_S) << 32).div_ceil(u128::from(pace.bits_per_s()));
        u64::try_from(ns_per_byte).unwrap_or(u64::MAX)
    })
}

impl List {
    #[inline]
    fn push(&mut self, flows: &mut [Flow], index: u32) {
        flows[index as usize].next = NONE;
        if self.head == NONE {
            self.head = index;
        } else {
            flows[self.tail as usize].next = index;
        }
        self.tail = index;
    }
}

#[cfg(test)]
mod tests;
