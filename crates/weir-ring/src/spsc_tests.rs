//! Tests of `spsc`: its edges as cases. Its rule is tested by `crate::model`.

use super::*;

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
        // The ring is filled, then kept full to the brim through several rounds of the slots.
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

/// Elements handed over are gone, others are still there, and none is dropped twice.
#[test]
fn a_panic_half_way_through_leaves_the_rest_in_the_ring() {
    let (mut producer, mut consumer) = ring::<std::sync::Arc<u32>>(8).unwrap();
    let items: Vec<_> = (0..6).map(std::sync::Arc::new).collect();
    items.iter().for_each(|item| producer.push(item.clone()).unwrap());
    let mut seen = Vec::new();
    let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        consumer.pop_each(5, |item| {
            seen.push(*item);
            assert!(*item < 2, "the third");
        })
    }));
    assert!(panic.is_err());
    let held = |item: &std::sync::Arc<u32>| std::sync::Arc::strong_count(item) - 1;
    assert_eq!(items.iter().map(held).collect::<Vec<_>>(), [0, 0, 0, 1, 1, 1]);
    assert_eq!(consumer.pop_each(2, |item| seen.push(*item)), 2);
    assert_eq!(seen, [0, 1, 2, 3, 4]);
    drop((producer, consumer));
    assert!(items.iter().all(|item| held(item) == 0), "the last is dropped with the ring");
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

#[test]
fn what_is_staged_is_seen_once_it_is_published() {
    let (mut producer, mut consumer) = ring::<u32>(4).unwrap();
    (0..4).for_each(|number| producer.stage(number).unwrap());
    assert_eq!((producer.staged(), consumer.pop()), (4, None));
    assert_eq!(producer.stage(4), Err(4), "the slots are taken all the same");
    assert_eq!((producer.publish(), producer.publish()), (4, 0));
    assert_eq!(std::iter::from_fn(|| consumer.pop()).collect::<Vec<_>>(), [0, 1, 2, 3]);
}

/// Elements are staged and never published: whichever half goes first, each is dropped once.
#[test]
fn what_is_staged_is_not_lost_with_a_half() {
    let item = std::sync::Arc::new(());
    for consumer_first in [false, true] {
        let (mut producer, mut consumer) = ring(4).unwrap();
        producer.push(item.clone()).unwrap();
        producer.stage(item.clone()).unwrap();
        producer.stage(item.clone()).unwrap();
        if consumer_first {
            drop(consumer);
            assert!(producer.take_back().is_some());
            assert!(producer.take_back().is_some(), "the first that was staged");
            assert_eq!(std::sync::Arc::strong_count(&item), 2, "one is still inside");
            drop(producer);
        } else {
            drop(producer);
            assert!(consumer.pop().is_some() && consumer.pop().is_some());
            drop(consumer);
        }
        assert_eq!(std::sync::Arc::strong_count(&item), 1);
    }
}

#[test]
fn what_is_there_is_looked_at_in_order_and_stays() {
    let (mut producer, mut consumer) = ring(4).unwrap();
    for number in 0..3 {
        producer.push(number).unwrap();
        consumer.pop();
    }
    (3..6).for_each(|number| producer.push(number).unwrap());
    producer.stage(6).unwrap();
    let mut seen = Vec::new();
    consumer.look_at(|number| seen.push(*number));
    assert_eq!(seen, [3, 4, 5], "round the end, and nothing that is not published");
    assert_eq!(consumer.len(), 3);
}
