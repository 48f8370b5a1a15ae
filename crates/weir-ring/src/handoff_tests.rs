//! Tests of `handoff`: its edges as cases, and many threads. Its rule is tested by `crate::model`.

use super::*;
use std::sync::atomic::{AtomicU64, Ordering};

fn small(sources: usize) -> (Inbox<u64>, Vec<Outlet<u64>>) {
    inbox(InboxSize { sources, ring_elements: 16 }).unwrap()
}

#[test]
fn a_drain_takes_only_what_was_there_when_it_began() {
    let (mut inbox, mut outlets) = small(2);
    (0..5).for_each(|number| outlets[0].stage(number).unwrap());
    outlets[0].flush().unwrap();
    outlets[1].stage(9).unwrap();
    outlets[1].flush().unwrap();
    // A source that fills its ring again as fast as it is drained ends the pass all the same.
    let mut seen = Vec::new();
    let count = inbox.drain(|source, item| {
        seen.push((source, item));
        for outlet in &mut outlets {
            outlet.stage(item + 10).unwrap();
            outlet.flush().unwrap();
        }
    });
    assert_eq!(count, 5 + 6, "the second source began after the first turn had added five");
    let first: Vec<u64> = seen.iter().filter(|(source, _)| *source == 0).map(|s| s.1).collect();
    assert_eq!(first, [0, 1, 2, 3, 4]);
}

#[test]
fn a_batch_takes_one_kick() {
    let (mut inbox, mut outlets) = small(2);
    let parked = inbox.park(|| false).unwrap();
    for number in 0..10 {
        outlets[0].stage(number).unwrap();
        outlets[1].stage(number).unwrap();
    }
    outlets[0].flush().unwrap();
    outlets[1].flush().unwrap();
    parked.block();
    assert_eq!((outlets[0].kicks(), outlets[1].kicks()), (1, 0));
    assert_eq!(inbox.drain(|_, _| ()), 20);
    assert_eq!(inbox.counts().kicks_sent, 1);
}

#[test]
fn a_dead_worker_is_seen_and_nothing_it_held_is_lost() {
    let (mut inbox, mut outlets) = small(1);
    let mut outlet = outlets.pop().unwrap();
    (0..6).for_each(|number| outlet.stage(number).unwrap());
    outlet.flush().unwrap();
    (6..8).for_each(|number| outlet.stage(number).unwrap());
    assert_eq!(outlet.take_back(), None);
    let mut taken = None;
    inbox.drain(|_, item| taken = Some(item));
    assert_eq!(taken, Some(5));
    outlet.flush().unwrap();
    outlet.stage(8).unwrap();
    drop(inbox);
    assert_eq!(outlet.flush(), Err(Abandoned));
    assert_eq!(std::iter::from_fn(|| outlet.take_back()).collect::<Vec<_>>(), [6, 7, 8]);
}

#[test]
fn a_source_that_goes_wakes_the_worker() {
    let (mut inbox, mut outlets) = small(1);
    let mut outlet = outlets.pop().unwrap();
    outlet.stage(7).unwrap();
    let parked = inbox.park(|| false).unwrap();
    drop(outlet);
    parked.block();
    assert_eq!(inbox.drain(|_, item| assert_eq!(item, 7)), 1);
    assert!(inbox.park(|| false).is_none(), "no drain has seen the ring empty");
    assert_eq!(inbox.drain(|_, _| ()), 0);
    assert!(inbox.park(|| false).is_some());
}

#[test]
fn too_many_sources_are_refused() {
    let size = InboxSize { sources: 64, ring_elements: 1 };
    assert!(inbox::<u32>(size).unwrap_err().to_string().contains("at most 63"));
}

/// Workers of a mesh pass tokens at random and sleep when they have none; every token makes all its hops.
#[test]
fn tokens_travel_a_mesh_of_sleeping_workers() {
    const WORKERS: usize = 3;
    let (tokens, hops) = if cfg!(miri) { (3u64, 10u64) } else { (16, 5_000) };
    let hopped = AtomicU64::new(0);
    let ended = AtomicU64::new(0);
    let mut mesh = mesh::<(u64, u64)>(WORKERS, tokens as usize).unwrap();
    for token in 0..tokens {
        let worker = token as usize % WORKERS;
        let outlet = mesh[worker].1[(worker + 1) % WORKERS].as_mut().expect("another worker");
        outlet.stage((hops, token)).expect("room for every token");
        outlet.flush().expect("the worker is there");
    }
    std::thread::scope(|scope| {
        for (worker, (mut inbox, mut outlets)) in mesh.into_iter().enumerate() {
            let (hopped, ended) = (&hopped, &ended);
            scope.spawn(move || {
                while ended.load(Ordering::Acquire) < tokens {
                    let count = inbox.drain(|_, (left, seed)| {
                        if left == 0 {
                            if ended.fetch_add(1, Ordering::AcqRel) + 1 == tokens {
                                // The other workers may sleep: a look is all they need.
                                outlets.iter().flatten().for_each(Outlet::nudge);
                            }
                            return;
                        }
                        hopped.fetch_add(1, Ordering::Relaxed);
                        let seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                        let other = (worker + 1 + (seed >> 33) as usize % (WORKERS - 1)) % WORKERS;
                        let outlet = outlets[other].as_mut().expect("another worker");
                        outlet.stage((left - 1, seed)).expect("room for every token");
                    });
                    for outlet in outlets.iter_mut().flatten() {
                        // A worker that has seen the end may be gone before the last wake-up reaches it.
                        let _ = outlet.flush();
                    }
                    if count == 0 {
                        let parked = inbox.park(|| ended.load(Ordering::Acquire) >= tokens);
                        if let Some(parked) = parked {
                            parked.block();
                        }
                    }
                }
            });
        }
    });
    assert_eq!(ended.into_inner(), tokens);
    assert!(hopped.into_inner() >= tokens * hops);
}
