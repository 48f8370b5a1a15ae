//! Deficit round robin: flows take turns, and each turn passes a quantum of bytes, whatever the packets'
//! lengths.
//!
//! A flow whose turn it is may send while its `deficit` is above 0, each packet taking its length off; at 0
//! or below it earns `quantum_bytes` and goes to the back. So a deficit stays in `(-L, quantum]`, `L` the
//! longest packet, and turns of waiting flows differ by at most one. Hence, for any two flows with packets
//! waiting throughout:
//!
//! ```text
//! |sent_i - sent_j| < quantum + L          counted from the moment at which both began to wait together
//! |sent_i - sent_j| < quantum + 2 L        over any interval
//! ```
//!
//! A flow that had nothing waiting is served ahead of the others for one quantum (*new flows first*), so that
//! a quiet flow is not held up by a flood; that one quantum comes on top of the second line. When it empties
//! it must pass through the list of old flows before it counts as new again; a flow cannot starve the others
//! by pausing after each packet.
//!
//! Order within a flow is the order of arrival. The packets are in a [`Slab`] that may be shared with other
//! rounds; a flow itself is 48 bytes, taken at creation. Owner: one worker.
//!
//! Source: Shreedhar and Varghese, *Efficient Fair Queuing using Deficit Round Robin*, SIGCOMM 1995 (fairness
//! bound); RFC 8290 sections 4.1 and 4.2 (new and old flows, and the deficit that may be overdrawn by one
//! packet).
//!
//! Limits: work for each packet is O(1), amortised, when `quantum_bytes >= L`; below that a flow takes `L /
//! quantum` turns for one packet. All flows weigh the same. A flow is a number given by the caller: two
//! streams hashed to one number share its turn.

use super::slab::{Fifo, Slab};
use crate::{drops::Count, packet::Packet};

/// No flow: the end of a list.
const NONE: u32 = u32::MAX;

/// FIFO queues of packets, one for each flow, served fairly.
#[derive(Debug)]
pub struct Drr {
    flows: Vec<Flow>,
    new_flows: List,
    old_flows: List,
    quantum_bytes: i64,
    held: Count,
    /// The number of flows with packets.
    waiting: u32,
    /// The number of the busy period, which ends when the last packet leaves. A flow listed in an earlier one is not listed.
    busy_period: u64,
}

/// A flow's queue and its place in the round.
#[derive(Debug)]
struct Flow {
    fifo: Fifo,
    held: Count,
    /// The next flow of the list this one is in.
    next: u32,
    deficit: i64,
    /// The busy period in which it was last put on a list, or `NOT_LISTED` since it was taken off.
    listed_in: u64,
}

/// The number of no busy period.
const NOT_LISTED: u64 = u64::MAX;

const _: () = assert!(size_of::<Flow>() <= 48, "the memory of an idle flow, as the header says");

#[derive(Clone, Copy, Debug)]
struct List {
    head: u32,
    tail: u32,
}

const EMPTY: List = List { head: NONE, tail: NONE };

impl Drr {
    /// Queues for flows `0..flows`. `quantum_bytes` should be the longest packet or more.
    ///
    /// # Panics
    ///
    /// If `quantum_bytes` is 0, or there are 2^32 - 1 flows or more.
    pub fn new(flows: usize, quantum_bytes: u32) -> Drr {
        assert!(quantum_bytes > 0, "a turn must pass something");
        assert!(flows < NONE as usize, "flows are numbered with 32 bits");
        let flow = || Flow {
            fifo: Fifo::default(),
            held: Count::default(),
            next: NONE,
            deficit: 0,
            listed_in: NOT_LISTED,
        };
        Drr {
            flows: (0..flows).map(|_| flow()).collect(),
            new_flows: EMPTY,
            old_flows: EMPTY,
            quantum_bytes: i64::from(quantum_bytes),
            held: Count::default(),
            waiting: 0,
            busy_period: 0,
        }
    }

    /// Puts a packet at the end of its flow's queue; gives it back when the slab is full.
    ///
    /// # Panics
    ///
    /// If there is no such flow.
    #[inline(always)]
    pub fn enqueue<P: Packet>(&mut self, slab: &mut Slab<P>, flow: usize, packet: P) -> Result<(), P> {
        let queue = &mut self.flows[flow];
        let len_bytes = packet.len_bytes();
        let was_empty = queue.fifo.is_empty();
        slab.push(&mut queue.fifo, packet)?;
        self.waiting += u32::from(was_empty);
        queue.held.add(len_bytes);
        self.held.add(len_bytes);
        if queue.listed_in != self.busy_period {
            queue.listed_in = self.busy_period;
            queue.deficit = self.quantum_bytes;
            self.new_flows.push(&mut self.flows, flow as u32);
        }
        Ok(())
    }

    /// The queue [`Self::dequeue`] would take from now, with its flow's number.
    pub fn head(&mut self) -> Option<(usize, &Fifo)> {
        let flow = self.select()?;
        Some((flow, &self.flows[flow].fifo))
    }

    /// Takes the next packet in fair order, with its flow.
    #[inline(always)]
    pub fn dequeue<P: Packet>(&mut self, slab: &mut Slab<P>) -> Option<(usize, P)> {
        self.take(slab, true)
    }

    /// Takes the same packet without counting it against its flow's turn, when it is not sent but dropped.
    pub fn discard<P: Packet>(&mut self, slab: &mut Slab<P>) -> Option<(usize, P)> {
        self.take(slab, false)
    }

    /// The packets that wait here.
    pub fn held(&self) -> Count {
        self.held
    }

    /// The packets that wait in one flow's queue.
    ///
    /// # Panics
    ///
    /// If there is no such flow.
    pub fn held_of(&self, flow: usize) -> Count {
        self.flows[flow].held
    }

    /// The number of flows.
    pub fn flows(&self) -> usize {
        self.flows.len()
    }

    /// The number of flows with packets waiting.
    pub fn flows_waiting(&self) -> u32 {
        self.waiting
    }

    #[inline(always)]
    fn take<P: Packet>(&mut self, slab: &mut Slab<P>, charge: bool) -> Option<(usize, P)> {
        let flow = self.select()?;
        let queue = &mut self.flows[flow];
        let packet = slab.pop(&mut queue.fifo)?;
        let len_bytes = packet.len_bytes();
        queue.held.sub(len_bytes);
        self.held.sub(len_bytes);
        if charge {
            queue.deficit -= i64::from(len_bytes);
        }
        self.waiting -= u32::from(queue.fifo.is_empty());
        if self.held.packets == 0 {
            self.busy_period += 1;
            (self.new_flows, self.old_flows) = (EMPTY, EMPTY);
        } else if queue.deficit <= 0 || queue.fifo.is_empty() {
            // The turn ends at once, not at the next look: a flow that becomes new meanwhile would get in between, and so get two turns
            // before this one.
            self.end_turn();
        }
        Some((flow, packet))
    }

    /// The flow whose turn it is; it has a packet and a deficit above 0.
    #[inline(always)]
    fn select(&mut self) -> Option<usize> {
        if self.held.packets == 0 {
            return None;
        }
        loop {
            let head = if self.new_flows.head == NONE { self.old_flows.head } else { self.new_flows.head };
            let flow = self.flows.get(head as usize)?;
            if !flow.fifo.is_empty() && flow.deficit > 0 {
                return Some(head as usize);
            }
            self.end_turn();
        }
    }

    /// Moves the flow at the head on, by the rules of RFC 8290 section 4.2: one that has used its quantum
    /// earns the next and goes to the back of the old flows; one that has emptied goes there too if it was
    /// new, and else leaves.
    fn end_turn(&mut self) {
        let is_new = self.new_flows.head != NONE;
        let list = if is_new { &mut self.new_flows } else { &mut self.old_flows };
        let index = list.head;
        let flow = &mut self.flows[index as usize];
        list.head = flow.next;
        if flow.deficit <= 0 {
            flow.deficit += self.quantum_bytes;
        } else if !is_new {
            flow.listed_in = NOT_LISTED;
            return;
        }
        self.old_flows.push(&mut self.flows, index);
    }
}

impl List {
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
