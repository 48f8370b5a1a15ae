//! Tests of `backlog`: its rule as properties, its edges as cases.

use proptest::prelude::*;

use super::*;
use crate::{packet::Meta, shaper::test_packet::TestPacket};

const MS: u64 = 1_000_000;
const LEN_BYTES: u32 = 1000;

/// A packet whose sender understands ECN or not, and that remembers whether it was marked.
#[derive(Debug)]
struct EcnPacket {
    understands: bool,
    marked: bool,
    meta: Meta,
}

impl Packet for EcnPacket {
    fn len_bytes(&self) -> u32 {
        LEN_BYTES
    }
    fn meta(&self) -> &Meta {
        &self.meta
    }
    fn meta_mut(&mut self) -> &mut Meta {
        &mut self.meta
    }
    fn mark_ce(&mut self) -> bool {
        self.marked |= self.understands;
        self.understands
    }
}

/// A queue that stands for 20 ms during a second, one packet each ms: (marked, dropped, sent).
fn stand(when_full: FullPolicy, understands: bool) -> (u64, u64, u64) {
    let mut slab = Slab::new(100);
    let mut backlog = Backlog::new(1, 1514, 0, u64::MAX, QueueRule { when_full, max_wait_ns: None });
    let (mut marked, mut dropped, mut sent) = (0, 0, 0);
    for now_ms in 0..1000 {
        let meta = Meta { arrival_ns: now_ms * MS, ..Meta::default() };
        backlog.enqueue(&mut slab, 0, EcnPacket { understands, marked: false, meta }).unwrap();
        while backlog.held().packets > 20 {
            match backlog.dequeue(&mut slab, now_ms * MS) {
                Dequeue::Packet(_, packet) => {
                    sent += 1;
                    marked += u64::from(packet.marked);
                }
                Dequeue::Dropped(reason, _) => {
                    assert_eq!(reason, DropReason::Codel);
                    dropped += 1;
                }
                other => panic!("{other:?}"),
            }
        }
        assert!(backlog.account().balances(backlog.held()));
    }
    (marked, dropped, sent)
}

#[test]
fn a_standing_queue_is_marked_or_dropped_as_its_rule_says() {
    let config = CodelConfig::default();
    // Sent from 20 ms on, above target since then: the first signal after 100 ms, then one each 100 /
    // sqrt(n).
    let (mut signals, mut due_ms) = (0u64, 120.0);
    while due_ms < 999.0 {
        signals += 1;
        due_ms += 100.0 / (signals as f64).sqrt();
    }
    assert_eq!(stand(FullPolicy::Block, true), (0, 0, 980));
    assert_eq!(stand(FullPolicy::Ecn(config), true), (signals, 0, 980));
    assert_eq!(stand(FullPolicy::Ecn(config), false), (0, 0, 980), "what cannot be marked is not lost");
    assert_eq!(stand(FullPolicy::Drop(config), true), (0, signals, 980 - signals));
}

#[test]
fn a_full_class_with_marks_holds_its_feeders_and_drops_nothing() {
    let (mut slab, limit_bytes) = (Slab::new(1000), 100_000);
    let when_full = FullPolicy::Ecn(CodelConfig::default());
    let mut backlog = Backlog::new(2, 1514, 0, limit_bytes, QueueRule { when_full, max_wait_ns: None });
    let mut number = 0;
    while backlog.room_bytes() > 0 {
        backlog.enqueue(&mut slab, 0, TestPacket::new(LEN_BYTES, number, 0)).unwrap();
        number += 1;
    }
    assert_eq!(number, 100, "full at its limit, and not before");
    // A poll that was under way brings one packet more, which the rule does not drop.
    backlog.enqueue(&mut slab, 0, TestPacket::new(LEN_BYTES, number, 0)).unwrap();
    assert_eq!(backlog.account().dropped.total().packets, 0);
}

#[test]
fn a_full_class_that_drops_spares_the_quiet_flow() {
    let (mut slab, limit_bytes) = (Slab::new(1000), 100_000);
    let when_full = FullPolicy::Drop(CodelConfig::default());
    let mut backlog = Backlog::new(2, 1514, 0, limit_bytes, QueueRule { when_full, max_wait_ns: None });
    assert_eq!(backlog.room_bytes(), u64::MAX, "its feeders are never held");
    let mut enqueue = |flow, number| {
        let refused = backlog.enqueue(&mut slab, flow, TestPacket::new(LEN_BYTES, number, 0)).is_err();
        assert!(backlog.account().balances(backlog.held()));
        refused
    };
    let dropped = (0..300).filter(|&number| enqueue(0, number)).count();
    assert_eq!(dropped, 200, "the flood keeps what the limit holds");
    let dropped = (0..300).filter(|&number| enqueue(1, number)).count();
    assert_eq!(dropped, 250, "the second flow gets its half");
    assert_eq!(backlog.account().dropped.get(DropReason::ClassFull).packets, 450);
}

#[test]
fn a_rule_changed_under_load_touches_nothing_that_waits() {
    let mut slab = Slab::new(10);
    let mut backlog = Backlog::new(4, LEN_BYTES, 0, u64::MAX, QueueRule::default());
    for number in 0..8 {
        backlog.enqueue(&mut slab, number % 4, TestPacket::new(LEN_BYTES, number, 0)).unwrap();
    }
    for (number, when_full) in
        [FullPolicy::Drop(CodelConfig::default()), FullPolicy::Block, FullPolicy::Ecn(CodelConfig::default())]
            .into_iter()
            .enumerate()
    {
        backlog.set_rule(QueueRule { when_full, max_wait_ns: None });
        assert_eq!(
            backlog.dequeue(&mut slab, 0),
            Dequeue::Packet(number, TestPacket::new(LEN_BYTES, number, 0))
        );
    }
}

proptest! {
    /// With any rule the books balance at every step, order in a flow is kept, and a flood of `n` flows holds less than `limit * (2 + ln
    /// n)`, one packet each over.
    #[test]
    fn books_balance_and_floods_are_bounded(
        operations in prop::collection::vec((0usize..8, 0u32..3), 100..600),
        limit_packets in 1u64..40,
        rule in 0usize..3,
        max_wait_ms in prop::option::of(1u64..50),
    ) {
        let config = CodelConfig { target_ns: MS, interval_ns: 10 * MS, mtu_bytes: 1514 };
        let when_full = [FullPolicy::Block, FullPolicy::Ecn(config), FullPolicy::Drop(config)][rule];
        let limit_bytes = limit_packets * u64::from(LEN_BYTES);
        let mut slab = Slab::new(200);
        let rule = QueueRule { when_full, max_wait_ns: max_wait_ms.map(|ms| ms * MS) };
        let mut backlog = Backlog::new(8, 1514, 0, limit_bytes, rule);
        let mut last = [None; 8];
        for (number, &(flow, operation)) in operations.iter().enumerate() {
            let now_ns = number as u64 * MS;
            if operation > 0 && backlog.room_bytes() > 0 {
                let refused = backlog.enqueue(&mut slab, flow, TestPacket::new(LEN_BYTES, number, now_ns));
                prop_assert!(!matches!(refused, Err(Refused::NoSlot(_))));
                prop_assert!(refused.is_ok() || backlog.held().bytes >= limit_bytes, "dropped before it was full");
            } else {
                match backlog.dequeue(&mut slab, now_ns) {
                    Dequeue::Packet(flow, packet) => {
                        prop_assert!(last[flow] < Some(packet.number));
                        last[flow] = Some(packet.number);
                        prop_assert!(now_ns - packet.meta.arrival_ns <= rule.max_wait_ns.unwrap_or(u64::MAX));
                    }
                    Dequeue::Dropped(reason, packet) => {
                        let delay_ns = now_ns - packet.meta.arrival_ns;
                        prop_assert_eq!(reason == DropReason::MaxWait, rule.max_wait_ns.is_some_and(|max| delay_ns > max));
                        prop_assert!(when_full.drops() || reason == DropReason::MaxWait);
                    }
                    Dequeue::Empty => prop_assert_eq!(backlog.held().packets, 0),
                    Dequeue::NotBefore(_) => prop_assert!(false, "a backlog has no limit of its own"),
                }
            }
            prop_assert!(backlog.account().balances(backlog.held()));
            let bound = limit_bytes as f64 * (2.0 + 8f64.ln()) + 8.0 * f64::from(LEN_BYTES);
            prop_assert!((backlog.held().bytes as f64) < bound);
        }
    }
}
