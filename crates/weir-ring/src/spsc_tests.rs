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
