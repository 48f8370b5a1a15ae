//! The rings and the pool's depot under every interleaving the model checker knows, at small sizes.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p weir-ring --release --test loom_ring`
//!
//! Rule: every element arrives once, in its producer's order; no slot is touched by two threads at a time (loom checks each slot); a half
//! that goes leaves its elements to the other.
//! Time: under half a minute for the file.
//! Limits of loom: see `loom_doorbell.rs`. Rings of 1 to 2 slots and up to 4 elements; magazines of one frame.
#![cfg(loom)]

use weir_ring::memory::FrameMemory;
use weir_ring::pool::Pool;
use weir_ring::spsc::ring;

/// Checks `body` with at most `preemptions` interruptions of a thread that could go on (`None`: any number), unless
/// `LOOM_MAX_PREEMPTIONS` says otherwise.
fn check(preemptions: Option<usize>, body: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = model.preemption_bound.or(preemptions);
    model.check(body);
}

#[test]
fn a_ring_of_one_slot_carries_elements_in_order() {
    stream(1, 3);
}

#[test]
fn a_ring_of_two_slots_carries_batches_in_order() {
    stream(2, 4);
}

fn stream(capacity: usize, total: u32) {
    check(None, move || {
        let (mut producer, mut consumer) = ring::<u32>(capacity).unwrap();
        let pushing = loom::thread::spawn(move || {
            let mut items: Vec<u32> = (0..total).collect();
            while !items.is_empty() {
                if producer.push_all(&mut items) == 0 {
                    loom::thread::yield_now();
                }
            }
        });
        let mut out = Vec::with_capacity(total as usize);
        while out.len() < total as usize {
            if consumer.pop_into(&mut out, 2) == 0 {
                loom::thread::yield_now();
            }
        }
        assert_eq!(out, (0..total).collect::<Vec<_>>());
        pushing.join().unwrap();
    });
}

/// Slots are filled long before the consumer may see them, and no sooner than it has given them back.
#[test]
fn what_is_staged_in_the_slots_is_the_consumers_once_published() {
    check(None, || {
        let (mut producer, mut consumer) = ring::<u32>(2).unwrap();
        let staging = loom::thread::spawn(move || {
            let mut next = 0;
            while next < 3 {
                if producer.stage(next).is_ok() {
                    next += 1;
                } else if producer.publish() == 0 {
                    loom::thread::yield_now();
                }
            }
            // Elements that are still staged are published as the producer goes.
        });
        let mut expected = 0;
        while expected < 3 {
            let popped = consumer.pop_each(2, |item| {
                assert_eq!(item, expected);
                expected += 1;
            });
            if popped == 0 {
                loom::thread::yield_now();
            }
        }
        staging.join().unwrap();
    });
}

#[test]
fn what_a_consumer_leaves_comes_back() {
    check(None, || {
        let (mut producer, mut consumer) = ring::<Box<u32>>(2).unwrap();
        let popping = loom::thread::spawn(move || consumer.pop().map(|item| *item));
        producer.push(Box::new(1)).unwrap();
        producer.push(Box::new(2)).unwrap();
        let mut back = Vec::new();
        while !producer.is_abandoned() {
            loom::thread::yield_now();
        }
        while let Some(item) = producer.take_back() {
            back.push(*item);
        }
        let mut all: Vec<u32> = popping.join().unwrap().into_iter().collect();
        all.extend(back);
        assert_eq!(all, [1, 2]);
    });
}

#[test]
fn what_a_producer_leaves_is_still_taken() {
    check(None, || {
        let (mut producer, mut consumer) = ring::<Box<u32>>(2).unwrap();
        let pushing = loom::thread::spawn(move || producer.push(Box::new(7)).unwrap());
        let mut taken = None;
        loop {
            // The order of these two looks is the rule of `Consumer::is_abandoned`.
            let abandoned = consumer.is_abandoned();
            if let Some(item) = consumer.pop() {
                taken = Some(*item);
            } else if abandoned {
                break;
            } else {
                loom::thread::yield_now();
            }
        }
        assert_eq!(taken, Some(7));
        pushing.join().unwrap();
    });
}

/// Two workers with one frame in each magazine meet in the depot at every step.
#[test]
fn two_workers_never_get_the_same_frame() {
    check(None, || {
        let memory = FrameMemory::new(3, 64).unwrap();
        let mut pools = Pool::for_workers(memory, 2);
        let mut second = pools.pop().unwrap();
        let mut first = pools.pop().unwrap();
        let other = loom::thread::spawn(move || {
            let frames = [second.take(), second.take()];
            let indices: Vec<u32> = frames.iter().flatten().map(|f| second.memory().index_of(f)).collect();
            frames.into_iter().flatten().for_each(|frame| second.give(frame));
            indices.len()
        });
        let mut mine = first.take().expect("three frames for at most three holders");
        // The bytes are ours alone while we hold the frame; the interpreter and the thread sanitizer check the same.
        let memory = first.memory().clone();
        memory.bytes_mut(&mut mine).fill(1);
        first.give(mine);
        let taken = other.join().unwrap();
        assert!((1..=2).contains(&taken));
        assert!(first.census().balances());
        assert_eq!(first.census().out, 0);
    });
}
