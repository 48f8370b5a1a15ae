//! Tests of `spsc`: its rule as properties, its edges as cases.

use super::*;
use proptest::prelude::*;
use std::collections::VecDeque;

/// What a user of the ring can do, one after the other on one thread.
#[derive(Debug, Clone)]
enum Op {
    Push,
    PushAll(usize),
    Pop,
    PopInto(usize),
    Look,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        Just(Op::Push),
        (0usize..40).prop_map(Op::PushAll),
        Just(Op::Pop),
        (0usize..40).prop_map(Op::PopInto),
        Just(Op::Look),
    ];
    prop::collection::vec(op, 0..if cfg!(miri) { 40 } else { 200 })
}

/// An element that tells its number and is counted while it lives.
#[derive(Debug)]
struct Item(u64, #[expect(dead_code, reason = "held to be counted")] Arc<()>);

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 4 } else { 512 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// The ring is a bounded queue: same elements, same order, and full only within the slots it may keep back.
    #[test]
    fn the_ring_is_a_bounded_queue(capacity_log in 0u32..7, ops in ops(), end_with_consumer in any::<bool>()) {
        let capacity = 1usize << capacity_log;
        let alive = Arc::new(());
        let (mut producer, mut consumer) = ring::<Item>(capacity).unwrap();
        let mut model = VecDeque::new();
        let mut next = 0u64;
        let mut make = || { next += 1; Item(next, alive.clone()) };
        for op in ops {
            match op {
                Op::Push => {
                    let item = make();
                    let number = item.0;
                    match producer.push(item) {
                        Ok(()) => model.push_back(number),
                        Err(item) => {
                            prop_assert_eq!(item.0, number);
                            prop_assert!(model.len() + kept_back_max(capacity) >= capacity);
                        }
                    }
                }
                Op::PushAll(count) => {
                    let mut items: Vec<Item> = (0..count).map(|_| make()).collect();
                    let numbers: Vec<u64> = items.iter().map(|item| item.0).collect();
                    let pushed = producer.push_all(&mut items);
                    model.extend(&numbers[..pushed]);
                    let left: Vec<u64> = items.iter().map(|item| item.0).collect();
                    prop_assert_eq!(&left[..], &numbers[pushed..]);
                    if !left.is_empty() {
                        prop_assert!(model.len() + kept_back_max(capacity) >= capacity);
                    }
                }
                Op::Pop => prop_assert_eq!(consumer.pop().map(|item| item.0), model.pop_front()),
                Op::PopInto(max) => {
                    let mut out = Vec::with_capacity(max);
                    let popped = consumer.pop_into(&mut out, max);
                    prop_assert_eq!(popped, out.len());
                    prop_assert!(popped > 0 || model.is_empty() || max == 0);
                    for item in out {
                        prop_assert_eq!(Some(item.0), model.pop_front());
                    }
                }
                Op::Look => {
                    prop_assert_eq!(consumer.len(), model.len());
                    prop_assert_eq!(consumer.is_empty(), model.is_empty());
                }
            }
            prop_assert!(model.len() <= capacity);
            prop_assert_eq!(Arc::strong_count(&alive), 1 + model.len());
        }
        // Whichever half goes first, the other gets what is left, and nothing leaks.
        if end_with_consumer {
            drop(producer);
            prop_assert!(consumer.is_abandoned());
            let left: Vec<u64> = std::iter::from_fn(|| consumer.pop()).map(|item| item.0).collect();
            prop_assert_eq!(left, Vec::from(model));
        } else {
            prop_assert!(producer.take_back().is_none());
            drop(consumer);
            prop_assert!(producer.is_abandoned());
            let half = model.len() / 2;
            for number in model.drain(..half) {
                prop_assert_eq!(producer.take_back().map(|item| item.0), Some(number));
            }
            drop(producer);
        }
        prop_assert_eq!(Arc::strong_count(&alive), 1);
    }
}

#[test]
fn a_capacity_that_is_no_power_of_two_is_refused() {
    for capacity in [0, 3, 100, 1 << 32] {
        let error = ring::<u32>(capacity).unwrap_err();
        assert_eq!(error, CapacityError(capacity));
        assert!(error.to_string().contains("power of two"));
    }
}

#[test]
fn a_ring_made_for_n_elements_never_refuses_one() {
    for elements in [1, 2, 3, 4, 15, 16, 17, if cfg!(miri) { 18 } else { 127 }] {
        let (mut producer, mut consumer) = ring::<usize>(capacity_for(elements)).unwrap();
        // Fill it, then keep it full to the brim through several rounds of the slots.
        (0..elements).for_each(|number| producer.push(number).unwrap());
        for number in 0..8 * elements {
            assert_eq!(consumer.pop(), Some(number));
            producer.push(elements + number).unwrap();
        }
    }
}

#[test]
fn pop_into_never_grows_the_vector() {
    let (mut producer, mut consumer) = ring::<u32>(16).unwrap();
    (0..10).for_each(|number| producer.push(number).unwrap());
    let mut out = Vec::with_capacity(4);
    let room = out.capacity();
    assert_eq!(consumer.pop_into(&mut out, 10), room.min(10));
    assert_eq!(out.capacity(), room);
    assert_eq!(consumer.pop_into(&mut out, 10), 0);
}

#[test]
fn halves_may_move_to_another_thread() {
    fn send<T: Send>() {}
    send::<Producer<u32>>();
    send::<Consumer<u32>>();
}

#[test]
fn elements_cross_threads_in_order() {
    let total: u64 = if cfg!(miri) { 500 } else { 2_000_000 };
    let (mut producer, mut consumer) = ring::<u64>(64).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut next = 0;
            let mut stage = Vec::with_capacity(32);
            while next < total || !stage.is_empty() {
                while next < total && stage.len() < 1 + (next % 32) as usize {
                    stage.push(next);
                    next += 1;
                }
                if producer.push_all(&mut stage) == 0 {
                    std::thread::yield_now();
                }
            }
        });
        let mut out = Vec::with_capacity(32);
        let mut expected = 0;
        while expected < total {
            if consumer.pop_into(&mut out, 32) == 0 {
                assert!(!(consumer.is_abandoned() && consumer.is_empty()), "elements lost");
                std::thread::yield_now();
            }
            for number in out.drain(..) {
                assert_eq!(number, expected);
                expected += 1;
            }
        }
    });
}
