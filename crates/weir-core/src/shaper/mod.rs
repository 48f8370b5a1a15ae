//! Shapers: decide when which packet may leave, and how many bytes more may come in.
//!
//! A shaper does not drop to keep its rate. It says how much room it has ([`Shaper::room_bytes`]); an intake
//! that finds none leaves the packets where they are, and so the sender is held (ARCHITECTURE.md, the law).
//!
//! In reading order: [`token_bucket`] is the limit itself, [`tbf`] one or two of them with a queue limit; [`slab`] holds waiting packets,
//! [`drr`] shares a limit fairly between flows, [`delay`] measures the waits of packets and [`blocked`] those of their feeders, [`codel`]
//! decides when a wait was too long and [`ecn`] tells the sender; [`backlog`] is all of that for one class, and [`class`] puts it behind a
//! limit. [`buckets`] is a queue of times, with which [`tree`] shares a link between classes, metered by [`htb`] or [`cbq`]; it finds the
//! first full place by `ffs.rs`. [`Shaper`] is any of them.

use backlog::{Dequeue, Refused};
use blocked::Blocked;
use delay::DelayHistogram;
use tree::WaitsFor;

use crate::{
    account::Account,
    drops::{Count, DropReason},
    packet::Packet,
};

pub mod backlog;
pub mod blocked;
pub mod buckets;
pub mod cbq;
pub mod class;
pub mod codel;
pub mod delay;
pub mod drr;
pub mod ecn;
mod ffs;
pub mod htb;
pub mod slab;
pub mod tbf;
pub mod token_bucket;
pub mod tree;

/// Any shaper, seen as classes that packets are put into and one order in which they leave. A single class
/// has class 0 alone.
#[derive(Debug)]
pub enum Shaper<P> {
    /// One class behind a TBF, or behind nothing.
    Class(Box<class::Class<P>>),
    /// A tree of guarantees and ceilings.
    Htb(Box<htb::Htb<P>>),
    /// A tree of shares.
    Cbq(Box<cbq::Cbq<P>>),
}

/// Calls the method that all shapers share, on any of them.
macro_rules! any {
    ($shaper:expr, $it:ident => $one:expr, $tree:expr) => {
        match $shaper {
            Shaper::Class($it) => $one,
            Shaper::Htb($it) => $tree,
            Shaper::Cbq($it) => $tree,
        }
    };
}

impl<P: Packet> Shaper<P> {
    /// Takes a packet in, to a flow of a class.
    ///
    /// # Panics
    ///
    /// If there is no such class or flow.
    #[inline(always)]
    pub fn enqueue(&mut self, class: usize, flow: usize, packet: P) -> Result<(), Refused<P>> {
        any!(self, it => it.enqueue(flow, packet), it.enqueue(class, flow, packet))
    }

    /// The next packet that may leave now.
    #[inline(always)]
    pub fn dequeue(&mut self, now_ns: u64) -> Dequeue<P> {
        any!(self, it => it.dequeue(now_ns), it.dequeue(now_ns))
    }

    /// The bytes that an intake may still bring into a class; 0 means its feeders must wait.
    #[inline]
    pub fn room_bytes(&self, class: usize) -> u64 {
        any!(self, it => it.room_bytes(), it.room_bytes(class))
    }

    /// Takes a packet out whatever the limits, booked as dropped, when its way out is gone. Repeated until `None` this drains all.
    pub fn drop_next(&mut self, reason: DropReason) -> Option<P> {
        any!(self, it => it.drop_next(reason), {
            let class = it.classes().find(|&class| it.leaf(class).is_some_and(|leaf| leaf.held().packets > 0))?;
            it.drop_next(class, reason)
        })
    }

    /// The times at which a class's feeders were not polled because it was full, to be reported.
    pub fn blocked_mut(&mut self, class: usize) -> Option<&mut Blocked> {
        any!(self, it => Some(it.blocked_mut()), it.blocked_mut(class))
    }

    /// The time for which a class's feeders were blocked, in nanoseconds.
    pub fn blocked_ns(&self, class: usize, now_ns: u64) -> u64 {
        match self {
            Shaper::Class(one) => one.blocked_ns(now_ns),
            Shaper::Htb(tree) => tree.leaf(class).map_or(0, |leaf| leaf.blocked().total_ns(now_ns)),
            Shaper::Cbq(tree) => tree.leaf(class).map_or(0, |leaf| leaf.blocked().total_ns(now_ns)),
        }
    }

    /// A class's books; none for an inner class.
    pub fn account(&self, class: usize) -> Option<&Account> {
        any!(self, it => Some(it.account()), it.leaf(class).map(|leaf| leaf.account()))
    }

    /// The standing delays of a class's packets; none for an inner class.
    pub fn delay(&self, class: usize) -> Option<&DelayHistogram> {
        any!(self, it => Some(it.delay()), it.leaf(class).map(|leaf| leaf.delay()))
    }

    /// The reason why the packets of a class wait, the longest of which have `packet_bytes_max`; `None` if they may leave now.
    pub fn waits_for(&self, class: usize, packet_bytes_max: u32, now_ns: u64) -> Option<WaitsFor> {
        match self {
            Shaper::Class(one) => one.is_used_up(packet_bytes_max, now_ns).then_some(WaitsFor::Link),
            Shaper::Htb(tree) => tree.waits_for(class, now_ns),
            Shaper::Cbq(tree) => tree.waits_for(class, now_ns),
        }
    }

    /// The packets that wait in all classes.
    pub fn held(&self) -> Count {
        any!(self, it => it.held(), it.held())
    }
}

#[cfg(test)]
mod test_packet;

#[cfg(test)]
mod tests {
    use super::{
        backlog::QueueRule,
        cbq::{Cbq, CbqConfig, CbqMeter},
        class::{Class, ClassSize},
        htb::{Htb, HtbConfig, HtbMeter},
        tbf::{Limit, TbfConfig},
        test_packet::TestPacket,
        tree::{LeafConfig, TreeSize},
        *,
    };
    use crate::rate::Rate;

    /// Each shaper at 10 Mbit/s, with class 0 a leaf.
    fn shapers() -> Vec<Shaper<TestPacket>> {
        let rate = Rate::from_bits_per_s(10_000_000).unwrap();
        let (quantum_bytes, mtu_bytes, limit_bytes) = (1514, 1514, 20_000);
        let size = ClassSize { flows: 4, packets_max: 100, quantum_bytes, poll_budget_bytes: 0 };
        let limits = TbfConfig { rate, burst_bytes: mtu_bytes, limit: Limit::Bytes(limit_bytes) };
        let class = Class::new(size, Some(limits), 0).unwrap();
        let tree_size = TreeSize { classes_max: 3, packets_max: 100, poll_budget_bytes: 0 };
        let (flow_quantum_bytes, rule) = (quantum_bytes, QueueRule::default());
        let leaf = LeafConfig { priority: 0, flows: 4, flow_quantum_bytes, limit_bytes, rule };
        let (burst_bytes, cburst_bytes) = (mtu_bytes, mtu_bytes);
        let config_htb = HtbConfig { rate, ceil: rate, burst_bytes, cburst_bytes, mtu_bytes };
        let mut htb = Htb::new(tree_size, 0);
        htb.add(None, HtbMeter::new(config_htb, 0).unwrap(), quantum_bytes, Some(leaf), 0).unwrap();
        let (ewma_log, bounded, isolated) = (16, true, false);
        let config_cbq = CbqConfig { rate, burst_bytes, mtu_bytes, ewma_log, bounded, isolated };
        let mut cbq = Cbq::new(tree_size, 0);
        cbq.add(None, CbqMeter::new(config_cbq, 0).unwrap(), quantum_bytes, Some(leaf), 0).unwrap();
        vec![Shaper::Class(Box::new(class)), Shaper::Htb(Box::new(htb)), Shaper::Cbq(Box::new(cbq))]
    }

    #[test]
    fn every_shaper_keeps_its_rate_its_books_and_its_senders_waiting() {
        for (which, mut shaper) in shapers().into_iter().enumerate() {
            let (mut now_ns, mut number, mut sent_bytes) = (0, 0, 0u64);
            while now_ns < 100_000_000 {
                while shaper.room_bytes(0) > 0 {
                    shaper.enqueue(0, 0, TestPacket::new(1000, number, now_ns)).unwrap();
                    number += 1;
                }
                shaper.blocked_mut(0).unwrap().begin(now_ns);
                match shaper.dequeue(now_ns) {
                    Dequeue::Packet(0, packet) => sent_bytes += u64::from(packet.len_bytes),
                    Dequeue::NotBefore(ready_ns) => now_ns = ready_ns,
                    other => panic!("shaper {which}: {other:?}"),
                }
                assert!(shaper.account(0).unwrap().balances(shaper.held()), "shaper {which}");
            }
            // 1250 bytes each ms, and the burst at the start.
            let allowed = 1514 + now_ns / 800;
            assert!((allowed - 3000..=allowed + 1000).contains(&sent_bytes), "shaper {which}: {sent_bytes}");
            let delay = shaper.delay(0).unwrap();
            assert!((15_000_000..17_000_000).contains(&delay.delay_ns_max()), "20 kB at 10 Mbit/s are 16 ms");
            assert_eq!(shaper.blocked_ns(0, now_ns), now_ns);
            while shaper.drop_next(DropReason::PortGone).is_some() {}
            assert_eq!(shaper.account(0).unwrap().accepted.packets, number as u64);
            assert!(shaper.account(0).unwrap().balances(Count::default()));
        }
    }
}
