//! Tests of `pool`: its rule as properties, its edges as cases.

use super::*;
use crate::depot::MAGAZINE_FRAMES;
use proptest::prelude::*;
use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};

/// The longest list of operations; the interpreter is some thousand times slower.
const STEPS: usize = if cfg!(miri) { 10 } else { 60 };

fn pools(frames: u32, workers: usize) -> Vec<Pool> {
    Pool::for_workers(FrameMemory::new(frames, 64).unwrap(), workers)
}

#[test]
fn every_frame_comes_out_once() {
    let mut pool = pools(100, 1).pop().unwrap();
    assert_eq!(pool.available(), 100);
    let frames: Vec<Frame> = std::iter::from_fn(|| pool.take()).collect();
    let indices: HashSet<u32> = frames.iter().map(|frame| pool.memory().index_of(frame)).collect();
    assert_eq!(indices, (0..100).collect());
    assert_eq!(pool.census(), Census { total: 100, shared: 0, cached: 0, out: 100 });
    frames.into_iter().for_each(|frame| pool.give(frame));
    assert_eq!(pool.available(), 100);
    assert!(pool.census().balances());
}

#[test]
fn the_hottest_frame_comes_first() {
    let mut pool = pools(100, 1).pop().unwrap();
    let frame = pool.take().unwrap();
    let index = pool.memory().index_of(&frame);
    pool.give(frame);
    let again = pool.take().unwrap();
    assert_eq!(pool.memory().index_of(&again), index);
    pool.give(again);
}

#[test]
fn a_worker_that_ends_leaves_its_frames() {
    let mut pools = pools(64, 2);
    let mut staying = pools.pop().unwrap();
    let mut ending = pools.pop().unwrap();
    let held = ending.take().unwrap();
    drop(ending);
    assert!(staying.census().balances());
    staying.give(held);
    assert_eq!(std::iter::from_fn(|| staying.take()).map(std::mem::forget).count(), 64);
}

#[test]
#[should_panic(expected = "not its own")]
fn a_foreign_frame_is_refused() {
    let mut other = pools(4, 1).pop().unwrap();
    let foreign = other.take().unwrap();
    pools(4, 1).pop().unwrap().give(foreign);
}

#[test]
fn workers_never_share_a_frame() {
    const FRAMES: u32 = 1024;
    /// Frames that a worker takes and then gives, more than it keeps.
    const RUN: usize = CACHE_FRAMES + 2 * MAGAZINE_FRAMES;
    let rounds = if cfg!(miri) { 2 * RUN } else { 200_000 };
    let holder: Vec<_> = (0..FRAMES).map(|_| AtomicBool::new(false)).collect();
    let pools = pools(FRAMES, 3);
    std::thread::scope(|scope| {
        for mut pool in pools {
            let holder = &holder;
            scope.spawn(move || {
                let mut held: Vec<Frame> = Vec::new();
                let give = |pool: &mut Pool, frame: Frame| {
                    holder[pool.memory().index_of(&frame) as usize].store(false, Ordering::Relaxed);
                    pool.give(frame);
                };
                for round in 0..rounds {
                    // Long runs make whole magazines travel in both directions.
                    if (round / RUN).is_multiple_of(2) {
                        if let Some(frame) = pool.take() {
                            let index = pool.memory().index_of(&frame) as usize;
                            assert!(
                                !holder[index].swap(true, Ordering::Relaxed),
                                "frame {index} taken twice"
                            );
                            held.push(frame);
                        }
                    } else if let Some(frame) = held.pop() {
                        give(&mut pool, frame);
                    }
                }
                held.into_iter().for_each(|frame| give(&mut pool, frame));
            });
        }
    });
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 3 } else { 256 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// Any order of taking and giving among three workers keeps every frame in exactly one place, and a worker
    /// finds a frame whenever its own magazines or the depot have one.
    #[test]
    fn frames_are_conserved(
        frames in 1u32..1000,
        steps in prop::collection::vec((0usize..3, any::<bool>(), 1usize..400), 0..STEPS),
    ) {
        let mut pools = pools(frames, 3);
        let mut held: Vec<Frame> = Vec::new();
        let mut seen = HashSet::new();
        for (worker, take, count) in steps {
            for _ in 0..count {
                let pool = &mut pools[worker];
                let available = pool.available();
                if take {
                    match pool.take() {
                        Some(frame) => {
                            prop_assert!(seen.insert(pool.memory().index_of(&frame)));
                            held.push(frame);
                        }
                        None => prop_assert_eq!(available, 0),
                    }
                } else if !held.is_empty() {
                    let frame = held.swap_remove(count % held.len());
                    seen.remove(&pool.memory().index_of(&frame));
                    pool.give(frame);
                }
                let census = pools[0].census();
                prop_assert!(census.balances(), "{census:?}");
                prop_assert_eq!(census.out, held.len() as u64);
                prop_assert!(census.cached <= 3 * CACHE_FRAMES as u64);
            }
        }
    }
}
