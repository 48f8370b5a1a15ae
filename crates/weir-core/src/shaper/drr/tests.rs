//! Tests of `drr`: its rule as properties, its edges as cases.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;
use crate::shaper::test_packet::TestPacket;

fn packet(len_bytes: u32, number: usize) -> TestPacket {
    TestPacket::new(len_bytes, number, 0)
}

#[test]
fn a_quiet_flow_passes_a_flood_once_and_then_takes_turns() {
    let (mut slab, mut drr) = (Slab::new(100), Drr::new(3, 1514));
    for number in 0..10 {
        drr.enqueue(&mut slab, 0, packet(1514, number)).unwrap();
        drr.enqueue(&mut slab, 1, packet(1514, number)).unwrap();
    }
    for expected in [0, 1, 0, 1] {
        assert_eq!(drr.dequeue(&mut slab).unwrap().0, expected);
    }
    for number in 0..40 {
        drr.enqueue(&mut slab, 2, packet(100, number)).unwrap();
    }
    let order: Vec<_> = (0..20).map(|_| drr.dequeue(&mut slab).unwrap().0).collect();
    assert_eq!(order[..16], [2; 16], "16 packets of 100 bytes are one quantum, overdrawn by one packet");
    assert_eq!(order[16..18], [0, 1], "then it is an old flow");
}

#[test]
fn a_flow_that_empties_after_each_packet_does_not_starve_the_others() {
    // The packets are shorter than a quantum, so that a flow always empties with some of it left.
    let (mut slab, mut drr) = (Slab::new(100), Drr::new(2, 1514));
    for number in 0..60 {
        drr.enqueue(&mut slab, 0, packet(700, number)).unwrap();
    }
    let mut sent = [0u32; 2];
    for number in 0..60 {
        if drr.held_of(1).packets == 0 {
            drr.enqueue(&mut slab, 1, packet(700, number)).unwrap();
        }
        let (flow, packet) = drr.dequeue(&mut slab).unwrap();
        sent[flow] += packet.len_bytes;
    }
    assert!(sent[0] >= sent[1], "the one with packets waiting at its turn gets no less: {sent:?}");
}

#[test]
fn a_full_slab_gives_the_packet_back() {
    let (mut slab, mut drr) = (Slab::new(2), Drr::new(1, 1514));
    assert_eq!(drr.enqueue(&mut slab, 0, packet(60, 0)), Ok(()));
    assert_eq!(drr.enqueue(&mut slab, 0, packet(60, 1)), Ok(()));
    assert_eq!(slab.room_packets(), 0);
    assert_eq!(drr.enqueue(&mut slab, 0, packet(60, 2)), Err(packet(60, 2)));
    assert_eq!(drr.dequeue(&mut slab), Some((0, packet(60, 0))));
    assert_eq!(drr.enqueue(&mut slab, 0, packet(60, 3)), Ok(()));
    assert_eq!(drr.held(), Count { packets: 2, bytes: 120 });
}

#[derive(Clone, Copy, Debug)]
enum Operation {
    Enqueue { flow: usize, len_bytes: u32 },
    Dequeue,
}

fn operation(flows: usize) -> impl Strategy<Value = Operation> {
    prop_oneof![
        (0..flows, 1u32..=1514).prop_map(|(flow, len_bytes)| Operation::Enqueue { flow, len_bytes }),
        Just(Operation::Dequeue),
    ]
}

proptest! {
    /// The round against a queue for each flow: nothing lost, nothing reordered, counts right, `peek` tells the truth.
    #[test]
    fn it_holds_what_a_queue_for_each_flow_holds(
        operations in prop::collection::vec(operation(5), 1..400),
        packets_max in 1usize..40,
        quantum_bytes in 1u32..4000,
    ) {
        let (mut slab, mut drr) = (Slab::new(packets_max), Drr::new(5, quantum_bytes));
        let mut model: Vec<VecDeque<(usize, u32)>> = vec![VecDeque::new(); 5];
        for (number, &operation) in operations.iter().enumerate() {
            match operation {
                Operation::Enqueue { flow, len_bytes } => {
                    let fits = model.iter().map(VecDeque::len).sum::<usize>() < packets_max;
                    prop_assert_eq!(drr.enqueue(&mut slab, flow, packet(len_bytes, number)).is_ok(), fits);
                    if fits {
                        model[flow].push_back((number, len_bytes));
                    }
                }
                Operation::Dequeue => {
                    let peeked = drr.head().map(|(flow, fifo)| (flow, slab.front(fifo).unwrap().number));
                    let taken = drr.dequeue(&mut slab);
                    prop_assert_eq!(peeked, taken.as_ref().map(|(flow, packet)| (*flow, packet.number)));
                    match taken {
                        Some((flow, packet)) => {
                            prop_assert_eq!(model[flow].pop_front(), Some((packet.number, packet.len_bytes)));
                        }
                        None => prop_assert!(model.iter().all(VecDeque::is_empty)),
                    }
                }
            }
            let bytes = |queue: &VecDeque<(usize, u32)>| queue.iter().map(|p| u64::from(p.1)).sum::<u64>();
            for (flow, queue) in model.iter().enumerate() {
                prop_assert_eq!(
                    drr.held_of(flow),
                    Count { packets: queue.len() as u64, bytes: bytes(queue) }
                );
            }
            prop_assert_eq!(drr.held().bytes, model.iter().map(bytes).sum::<u64>());
            prop_assert_eq!(slab.room_packets(), packets_max - drr.held().packets as usize);
        }
    }

    /// The header's inequality, over every interval in which two flows had packets waiting throughout.
    #[test]
    fn waiting_flows_differ_by_less_than_a_quantum_and_two_packets(
        operations in prop::collection::vec(operation(4), 100..500),
        quantum_bytes in 300u32..3000,
    ) {
        const LONGEST: i64 = 1514;
        let (mut slab, mut drr) = (Slab::new(500), Drr::new(4, quantum_bytes));
        // For each pair: (least, greatest) difference of bytes sent while both waited; None if not both.
        // Seasoned flows have used up the quantum they had as new ones, since they last had nothing waiting.
        let mut sent = [0i64; 4];
        let mut sent_new = [0i64; 4];
        let mut pairs = vec![None; 16];
        let mut seasoned_pairs = vec![None; 16];
        for (number, &operation) in operations.iter().enumerate() {
            match operation {
                Operation::Enqueue { flow, len_bytes } => drr.enqueue(&mut slab, flow, packet(len_bytes, number)).unwrap(),
                Operation::Dequeue => {
                    if let Some((flow, packet)) = drr.dequeue(&mut slab) {
                        sent[flow] += i64::from(packet.len_bytes);
                    }
                }
            }
            let waits = |flow| drr.held_of(flow).packets > 0;
            for flow in (0..4).filter(|&flow| !waits(flow)) {
                sent_new[flow] = sent[flow];
            }
            let quantum = i64::from(quantum_bytes);
            for (i, j) in (0..4).flat_map(|i| (0..i).map(move |j| (i, j))) {
                let both_wait = waits(i) && waits(j);
                let seasoned = both_wait && [i, j].iter().all(|&flow| sent[flow] - sent_new[flow] >= quantum);
                for (counts, pairs, bound) in [
                    (both_wait, &mut pairs, 2 * quantum + 2 * LONGEST),
                    (seasoned, &mut seasoned_pairs, quantum + 2 * LONGEST),
                ] {
                    let difference = sent[i] - sent[j];
                    let (least, greatest) = pairs[4 * i + j].unwrap_or((difference, difference));
                    let range = (difference.min(least), difference.max(greatest));
                    pairs[4 * i + j] = counts.then_some(range);
                    prop_assert!(!counts || range.1 - range.0 < bound, "flows {i} and {j}: {range:?}");
                }
            }
        }
    }

    /// From the moment both began to wait, `quantum + L`; here from the start, with queues that never empty.
    #[test]
    fn flows_that_begin_together_differ_by_less_than_a_quantum_and_a_packet(
        lens in prop::collection::vec(prop::collection::vec(1u32..=1514, 40), 3),
        quantum_bytes in 200u32..3000,
    ) {
        let (mut slab, mut drr) = (Slab::new(120), Drr::new(3, quantum_bytes));
        for (flow, lens) in lens.iter().enumerate() {
            for (number, &len_bytes) in lens.iter().enumerate() {
                drr.enqueue(&mut slab, flow, packet(len_bytes, number)).unwrap();
            }
        }
        let mut sent = [0i64; 3];
        while let Some((flow, packet)) = drr.dequeue(&mut slab) {
            sent[flow] += i64::from(packet.len_bytes);
            if (0..3).any(|flow| drr.held_of(flow).packets == 0) {
                break;
            }
            let spread = sent.iter().max().unwrap() - sent.iter().min().unwrap();
            prop_assert!(spread < i64::from(quantum_bytes) + 1514, "{sent:?}");
        }
    }
}
