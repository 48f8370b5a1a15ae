//! A class by itself: a backlog behind a TBF.
//!
//! A packet leaves when it is its turn (the backlog's fair order) and the TBF admits it; every inequality of
//! the two holds. With `Block`, the default rule, nothing is ever dropped: `room_bytes` is the credit, and
//! when it is 0 the feeders are not polled.
//!
//! Every change is live: packets stay where they are, in their order, and bucket levels are kept.
//!
//! Without a TBF and with the default rule nothing can be decided about a packet that comes while none waits: it passes by the fair queues,
//! first in, first out, like `TCQ_F_CAN_BYPASS` of Linux. There are never more than 320 of these, and they leave before packets that wait
//! in the queues, all of which came later.
//!
//! Owner: one worker. Limits: no TBF (`None`) means that packets pass as fast as they are asked for, and the room is then bounded by the
//! slots alone.

use std::collections::VecDeque;

use super::{
    backlog::{Backlog, Dequeue, QueueRule, Refused},
    blocked::Blocked,
    delay::DelayHistogram,
    slab::Slab,
    tbf::{Tbf, TbfConfig, TbfError},
};
use crate::{
    account::Account,
    drops::{Count, DropReason},
    packet::{Meta, Packet, count_of, move_first},
};

/// The most packets that pass by the fair queues at a time: a poll, and the four that another worker may be ahead.
const PASSING_MAX: usize = 320;

/// The memory that a class takes at creation, and the bytes of its turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClassSize {
    /// Flows are numbered `0..flows`.
    pub flows: usize,
    /// The most packets it can hold: all frames that can reach it, so that it cannot be full.
    pub packets_max: usize,
    /// Bytes of one flow's turn; the longest packet or more.
    pub quantum_bytes: u32,
    /// The most bytes one poll of an intake may bring.
    pub poll_budget_bytes: u64,
}

/// One class: its packets, its limit and its backlog.
#[derive(Debug)]
pub struct Class<P> {
    slab: Slab<P>,
    backlog: Backlog,
    tbf: Option<Tbf>,
    passing: Passing<P>,
}

/// Packets that pass by the fair queues.
#[derive(Debug)]
struct Passing<P> {
    packets: Vec<P>,
    /// The packets again, as runs of neighbours that came together.
    runs: VecDeque<Run>,
    packets_max: usize,
}

/// Packets of a flow that came together.
#[derive(Clone, Copy, Debug)]
struct Run {
    flow: usize,
    arrival_ns: u64,
    count: Count,
}

impl<P: Packet> Class<P> {
    /// A class with full buckets and nothing in it, that blocks when full; `None` does not limit.
    pub fn new(size: ClassSize, limits: Option<TbfConfig>, now_ns: u64) -> Result<Class<P>, TbfError> {
        let mut class = Class {
            slab: Slab::new(size.packets_max),
            backlog: Backlog::new(
                size.flows,
                size.quantum_bytes,
                size.poll_budget_bytes,
                u64::MAX,
                QueueRule::default(),
            ),
            tbf: None,
            passing: Passing::new(PASSING_MAX.min(size.packets_max)),
        };
        class.set_limits(limits, now_ns)?;
        Ok(class)
    }

    /// The bytes that an intake may still bring in; 0 means its feeders must wait.
    pub fn room_bytes(&self) -> u64 {
        let blocks = !self.backlog.rule().when_full.drops();
        if blocks && self.room_packets() == 0 { 0 } else { self.backlog.room_bytes() }
    }

    fn room_packets(&self) -> usize {
        self.slab.room_packets().saturating_sub(self.passing.packets.len())
    }

    /// Takes a packet in, to its flow's queue.
    #[inline(always)]
    pub fn enqueue(&mut self, flow: usize, packet: P) -> Result<(), Refused<P>> {
        if self.may_pass(1) {
            let count = Count { packets: 1, bytes: packet.len_bytes().into() };
            self.pass_in(Run { flow, arrival_ns: packet.meta().arrival_ns, count });
            self.passing.packets.push(packet);
            return Ok(());
        }
        if self.room_packets() == 0 && !self.backlog.rule().when_full.drops() {
            return Err(Refused::NoSlot(packet));
        }
        self.backlog.enqueue(&mut self.slab, flow, packet)
    }

    /// Returns whether so many packets that come now may pass by the queues.
    #[inline(always)]
    pub fn may_pass(&self, packets: usize) -> bool {
        self.tbf.is_none() && self.passing.has_room(packets) && self.backlog.may_be_passed()
    }

    /// Takes the first packets in, which may pass by the queues and have this count; `flow` gives the flow of each run of neighbours that
    /// came together.
    #[inline(always)]
    pub fn pass_all_in(&mut self, packets: &mut Vec<P>, first: Count, mut flow: impl FnMut(&Meta) -> usize) {
        let (mut left, mut of_left) = (&packets[..first.packets as usize], first);
        while let Some(meta) = left.first().map(Packet::meta) {
            let len = left.iter().position(|packet| !packet.meta().came_with(meta));
            // Packets mostly came together.
            let count = len.map_or(of_left, |len| count_of(&left[..len]));
            let (flow, arrival_ns) = (flow(meta), meta.arrival_ns);
            self.pass_in(Run { flow, arrival_ns, count });
            of_left.sub_all(count);
            left = &left[count.packets as usize..];
        }
        move_first(packets, first.packets as usize, &mut self.passing.packets);
    }

    /// Notes packets that pass by the queues.
    #[inline(always)]
    fn pass_in(&mut self, run: Run) {
        self.backlog.pass_in(run.count);
        self.passing.runs.push_back(run);
    }

    /// Lets passing packets out behind others in `out`, `packets_max` at the most, if no TBF limits them; returns their count, and how many
    /// of them came in now.
    #[inline(always)]
    pub fn pass_out(&mut self, packets_max: usize, now_ns: u64, out: &mut Vec<P>) -> (Count, u64) {
        let (mut all, mut came_now) = (Count::default(), 0);
        let count = packets_max.min(self.passing.packets.len());
        if count == 0 || self.tbf.is_some() {
            return (all, came_now);
        }
        move_first(&mut self.passing.packets, count, out);
        let mut left = &out[out.len() - count..];
        while let Some(&first) = left.first().and(self.passing.runs.front()) {
            let passed = self.passing.take(left);
            self.backlog.pass_out(passed, first.arrival_ns, now_ns);
            came_now += if first.arrival_ns == now_ns { passed.packets } else { 0 };
            all.merge(passed);
            left = &left[passed.packets as usize..];
        }
        (all, came_now)
    }

    /// The next packet in fair order, if the limit admits it now.
    #[inline(always)]
    pub fn dequeue(&mut self, now_ns: u64) -> Dequeue<P> {
        let Some(tbf) = &mut self.tbf else {
            return match self.passing.pop() {
                Some((flow, packet)) => {
                    let passed = Count { packets: 1, bytes: packet.len_bytes().into() };
                    self.backlog.pass_out(passed, packet.meta().arrival_ns, now_ns);
                    Dequeue::Packet(flow, packet)
                }
                None => self.backlog.dequeue(&mut self.slab, now_ns),
            };
        };
        // A packet that passed by the queues has no rule to expire by.
        let (head, expires) = match self.passing.packets.first() {
            Some(head) => (head, false),
            None => match self.backlog.head(&self.slab) {
                Some((_, head)) => (head, true),
                None => return Dequeue::Empty,
            },
        };
        let (len_bytes, arrival_ns) = (head.len_bytes(), head.meta().arrival_ns);
        let expires_ns = if expires { self.backlog.expires_ns(arrival_ns) } else { u64::MAX };
        let ready_ns = tbf.ready_at(len_bytes, now_ns);
        if ready_ns > now_ns && expires_ns >= now_ns {
            return Dequeue::NotBefore(ready_ns.min(expires_ns.saturating_add(1)));
        }
        let outcome = match self.passing.pop() {
            Some((flow, packet)) => {
                let passed = Count { packets: 1, bytes: len_bytes.into() };
                self.backlog.pass_out(passed, arrival_ns, now_ns);
                Dequeue::Packet(flow, packet)
            }
            None => self.backlog.dequeue(&mut self.slab, now_ns),
        };
        if let Dequeue::Packet(..) = outcome {
            tbf.take(len_bytes, now_ns);
        }
        outcome
    }

    /// Takes a packet out past the limit, booked as dropped, when its way out is gone. Repeated until `None` this drains the class.
    pub fn drop_next(&mut self, reason: DropReason) -> Option<P> {
        match self.passing.pop() {
            Some((_, packet)) => {
                self.backlog.drop_passing(reason, packet.len_bytes());
                Some(packet)
            }
            None => self.backlog.drop_next(&mut self.slab, reason),
        }
    }

    /// Takes a packet out to put it into another class, off the books here; packets of a flow keep their order.
    pub fn move_next(&mut self) -> Option<(usize, P)> {
        match self.passing.pop() {
            Some((flow, packet)) => {
                self.backlog.move_passing(packet.len_bytes());
                Some((flow, packet))
            }
            None => self.backlog.move_next(&mut self.slab),
        }
    }

    /// Changes the limits from now on; waiting packets are not touched. On an error nothing has changed.
    pub fn set_limits(&mut self, limits: Option<TbfConfig>, now_ns: u64) -> Result<(), TbfError> {
        match (limits, &mut self.tbf) {
            (Some(config), Some(tbf)) => tbf.set_config(config, now_ns)?,
            (Some(config), tbf) => *tbf = Some(Tbf::new(config, now_ns)?),
            (None, tbf) => *tbf = None,
        }
        self.backlog.set_limit(limits.map_or(u64::MAX, |config| config.limit_bytes()));
        Ok(())
    }

    /// The present limits.
    pub fn limits(&self) -> Option<&TbfConfig> {
        self.tbf.as_ref().map(Tbf::config)
    }

    /// Returns whether the limits admit no packet of this length now.
    pub fn is_used_up(&self, len_bytes: u32, now_ns: u64) -> bool {
        self.tbf.as_ref().is_some_and(|tbf| tbf.ready_at(len_bytes, now_ns) > now_ns)
    }

    /// Changes the rule for a full class from now on; waiting packets are not touched.
    pub fn set_rule(&mut self, rule: QueueRule) {
        self.backlog.set_rule(rule);
    }

    /// The whole credit, held and room together.
    pub fn limit_bytes(&self) -> u64 {
        self.backlog.limit_bytes()
    }

    /// Its queues, books and delays.
    pub fn backlog(&self) -> &Backlog {
        &self.backlog
    }

    /// The time for which its feeders were blocked, the present time included, in nanoseconds.
    pub fn blocked_ns(&self, now_ns: u64) -> u64 {
        self.backlog.blocked().total_ns(now_ns)
    }

    /// The times at which its feeders were blocked, to be reported as for any shaper.
    pub fn blocked_mut(&mut self) -> &mut Blocked {
        self.backlog.blocked_mut()
    }

    /// The books of the class.
    pub fn account(&self) -> &Account {
        self.backlog.account()
    }

    /// The standing delays of the packets that left.
    pub fn delay(&self) -> &DelayHistogram {
        self.backlog.delay()
    }

    /// The packets that wait here.
    pub fn held(&self) -> Count {
        self.backlog.held()
    }

    /// The packets of one flow that wait here, in its queue or passing by.
    pub fn held_of(&self, flow: usize) -> Count {
        let mut held = self.backlog.held_of(flow);
        for run in self.passing.runs.iter().filter(|run| run.flow == flow) {
            held.merge(run.count);
        }
        held
    }
}

impl<P: Packet> Passing<P> {
    fn new(packets_max: usize) -> Passing<P> {
        let (packets, runs) = (Vec::with_capacity(packets_max), VecDeque::with_capacity(packets_max));
        Passing { packets, runs, packets_max }
    }

    #[inline(always)]
    fn has_room(&self, packets: usize) -> bool {
        self.packets.len() + packets <= self.packets_max
    }

    /// Takes the packets of the first run that are among `packets`, the next to leave; returns their count.
    #[inline(always)]
    fn take(&mut self, packets: &[P]) -> Count {
        let Some(first) = self.runs.front_mut() else { return Count::default() };
        if first.count.packets <= packets.len() as u64 {
            return self.runs.pop_front().map_or(Count::default(), |run| run.count);
        }
        let taken = count_of(packets);
        first.count.sub_all(taken);
        taken
    }

    /// The first packet, with its flow.
    fn pop(&mut self) -> Option<(usize, P)> {
        let flow = self.runs.front()?.flow;
        let packet = self.packets.remove(0);
        self.take(std::slice::from_ref(&packet));
        Some((flow, packet))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{
        rate::{NS_PER_S, Rate},
        shaper::{tbf::Limit, test_packet::TestPacket},
    };

    fn packet(len_bytes: u32, number: usize, arrival_ns: u64) -> TestPacket {
        TestPacket::new(len_bytes, number, arrival_ns)
    }

    fn limits(bits_per_s: u64) -> TbfConfig {
        TbfConfig {
            rate: Rate::from_bits_per_s(bits_per_s).unwrap(),
            burst_bytes: 20 * 1024,
            limit: Limit::TimeNs(5_000_000),
        }
    }

    const SIZE: ClassSize =
        ClassSize { flows: 4, packets_max: 1000, quantum_bytes: 1514, poll_budget_bytes: 64 * 1514 };

    #[test]
    fn the_credit_is_a_time_but_never_less_than_a_poll() {
        let mut class = Class::<TestPacket>::new(SIZE, Some(limits(200_000_000)), 0).unwrap();
        assert_eq!(class.room_bytes(), 125_000);
        class.enqueue(0, packet(1500, 0, 0)).unwrap();
        assert_eq!(class.room_bytes(), 123_500);
        class.set_limits(Some(limits(1_000_000)), 0).unwrap();
        assert_eq!(
            class.limit_bytes(),
            64 * 1514,
            "5 ms at 1 Mbit/s are 625 bytes: no poll could ever happen"
        );
        class.set_limits(None, 0).unwrap();
        assert_eq!(class.room_bytes(), u64::MAX - 1500);
        let mut full = Class::new(ClassSize { packets_max: 1, ..SIZE }, None, 0).unwrap();
        full.enqueue(0, packet(60, 0, 0)).unwrap();
        assert_eq!(full.room_bytes(), 0, "no slot, no room");
        assert_eq!(full.enqueue(0, packet(60, 1, 0)), Err(Refused::NoSlot(packet(60, 1, 0))));
        assert!(full.account().balances(full.held()), "what was given back was not booked");
    }

    #[test]
    fn an_unlimited_class_passes_at_once_and_measures() {
        let mut class = Class::new(SIZE, None, 0).unwrap();
        assert_eq!(class.dequeue(0), Dequeue::Empty);
        class.enqueue(1, packet(60, 7, 1_000)).unwrap();
        assert_eq!(class.dequeue(3_000), Dequeue::Packet(1, packet(60, 7, 1_000)));
        assert_eq!(class.delay().delay_ns_max(), 2_000);
        assert_eq!(class.account().delivered, Count { packets: 1, bytes: 60 });
    }

    #[test]
    fn what_passes_by_the_queues_is_booked_in_runs_that_may_leave_in_parts() {
        let mut class = Class::new(SIZE, None, 0).unwrap();
        let came = |number, arrival_ns| packet(60 + number as u32, number, arrival_ns);
        // The caller tells flows apart when it puts packets in; this test does so by their time.
        let flow = |meta: &Meta| meta.arrival_ns as usize / 1_000;
        let mut packets: Vec<_> =
            [(0, 0), (1, 0), (2, 0), (3, 1_000), (4, 2_000)].map(|(n, ns)| came(n, ns)).into();
        let mut flows = Vec::new();
        class.pass_all_in(&mut packets, Count { packets: 4, bytes: 246 }, |meta| {
            flows.push(flow(meta));
            flow(meta)
        });
        assert_eq!((flows, packets.len()), (vec![0, 1], 1), "a flow is asked for each run");
        let held = |class: &Class<TestPacket>| [0, 1, 2].map(|flow| class.held_of(flow).packets);
        assert_eq!(held(&class), [3, 1, 0], "each flow's own");
        class.pass_all_in(&mut packets, Count { packets: 1, bytes: 64 }, flow);
        let mut out = vec![came(9, 0)];
        assert_eq!(class.pass_out(2, 1_000, &mut out), (Count { packets: 2, bytes: 121 }, 0));
        assert!(class.account().balances(class.held()), "a part of a run");
        assert_eq!(held(&class), [1, 1, 1]);
        assert_eq!(class.held(), Count { packets: 3, bytes: 62 + 63 + 64 });
        assert_eq!(class.dequeue(1_000), Dequeue::Packet(0, came(2, 0)));
        let rest = Count { packets: 2, bytes: 127 };
        assert_eq!(class.pass_out(64, 2_000, &mut out), (rest, 1), "one came now");
        assert_eq!(out.iter().map(|packet| packet.number).collect::<Vec<_>>(), [9, 0, 1, 3, 4]);
        assert_eq!((class.held(), class.account().delivered.packets), (Count::default(), 5));
        assert_eq!((class.delay().packets(), class.delay().delay_ns_max()), (5, 1_000));
        assert!(class.account().balances(class.held()));
    }

    #[test]
    fn a_packet_that_waited_too_long_is_dropped_even_while_the_limit_holds() {
        let mut class = Class::new(SIZE, Some(TbfConfig { burst_bytes: 0, ..limits(1_000_000) }), 0).unwrap();
        class.set_rule(QueueRule { max_wait_ns: Some(1_000_000), ..QueueRule::default() });
        for (number, arrival_ns) in [(0, 0), (1, 0), (2, 900_000)] {
            class.enqueue(0, packet(1250, number, arrival_ns)).unwrap();
        }
        assert_eq!(class.dequeue(0), Dequeue::Packet(0, packet(1250, 0, 0)));
        assert_eq!(class.dequeue(0), Dequeue::NotBefore(1_000_001), "before its 10 ms of tokens are there");
        let dropped = Dequeue::Dropped(DropReason::MaxWait, packet(1250, 1, 0));
        assert_eq!(class.dequeue(1_000_001), dropped);
        assert_eq!(class.dequeue(1_000_001), Dequeue::NotBefore(1_900_001));
        assert!(class.account().balances(class.held()));
    }

    #[test]
    fn a_class_without_a_way_out_drains_into_its_books() {
        let mut class = Class::new(SIZE, Some(limits(1_000)), 0).unwrap();
        for number in 0..50 {
            class.enqueue(number % 4, packet(1514, number, 0)).unwrap();
        }
        while class.drop_next(DropReason::PortGone).is_some() {}
        assert_eq!(class.account().dropped.get(DropReason::PortGone).packets, 50);
        assert!(class.account().balances(Count::default()));
    }

    proptest! {
        /// A feeder that keeps the class full and a clock that jumps from one answer to the next, with limits
        /// changed under load: never over the sum of the bytes that the limits allowed, never behind it, nothing lost
        /// or reordered.
        #[test]
        fn live_changes_lose_nothing_reorder_nothing_and_keep_the_rate(
            changes in prop::collection::vec((1_000_000u64..1_000_000_000, 1_000_000u64..30_000_000), 1..12),
            lens in prop::collection::vec(60u32..=1514, 50),
        ) {
            const BURST_BYTES: u128 = 20 * 1024;
            let bit_ns = |bytes: u128| bytes * 8 * u128::from(NS_PER_S);
            let mut class = Class::new(SIZE, Some(limits(1_000_000)), 0).unwrap();
            let (mut now_ns, mut number, mut next_of) = (0u64, 0, [0; 4]);
            let (mut earned, mut spent) = (bit_ns(BURST_BYTES), 0u128);
            for &(bits_per_s, hold_ns) in &changes {
                class.set_limits(Some(limits(bits_per_s)), now_ns).unwrap();
                let end_ns = now_ns + hold_ns;
                earned += u128::from(bits_per_s) * u128::from(hold_ns);
                while now_ns < end_ns {
                    while class.room_bytes() > 0 {
                        let len_bytes = lens[number % lens.len()];
                        // Flow and the number within the flow follow from the packet's number.
                        class.enqueue(number % 4, packet(len_bytes, number, now_ns)).unwrap();
                        number += 1;
                    }
                    prop_assert!(class.held().bytes < 1_000_000_000 / 8 / 200 + 1514);
                    match class.dequeue(now_ns) {
                        Dequeue::Packet(flow, packet) => {
                            prop_assert_eq!(packet.number, next_of[flow] * 4 + flow, "order in flow");
                            next_of[flow] += 1;
                            spent += bit_ns(packet.len_bytes.into());
                        }
                        Dequeue::NotBefore(ready_ns) => {
                            prop_assert!(ready_ns > now_ns);
                            now_ns = ready_ns.min(end_ns);
                        }
                        other => prop_assert!(false, "a full class that blocks: {other:?}"),
                    }
                    prop_assert!(class.account().balances(class.held()));
                }
                prop_assert!(spent <= earned);
                prop_assert!(earned - spent < bit_ns(2 * 1514), "fell behind: {} bits", (earned - spent) / 1_000_000_000);
            }
            let mut left = class.held().packets;
            while class.drop_next(DropReason::PortGone).is_some() {
                left -= 1;
            }
            prop_assert_eq!(left, 0);
            prop_assert_eq!(class.account().accepted.packets, number as u64);
        }
    }
}
