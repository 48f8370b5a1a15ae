//! The wake-up of a worker that waits for credit, under every interleaving the model checker knows.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p weir-ring --release --test loom_hungry`
//!
//! Rule: that of `loom_doorbell`: a lost wake-up is a worker blocked for ever, which loom reports as a deadlock. Copies of the protocol
//! with a known mistake must lose one, or the harness proves nothing.
//! Limits: those of `loom_doorbell`.
#![cfg(loom)]

use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
use weir_ring::doorbell::Doorbell;
use weir_ring::hungry::Hungry;

fn check(preemptions: Option<usize>, body: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = model.preemption_bound.or(preemptions);
    model.check(body);
}

/// Worker 0 waits until every other has given; each gives once, and hands a word to a worker that it finds hungry. The word lies where the
/// re-check sees it: a giver may have taken the bit of a worker that has not said yet that it parks.
fn a_worker_that_waits_for(givers: usize) {
    let mut doorbell = Doorbell::new().unwrap();
    let hungry = Arc::new(Hungry::<2>::new());
    let credit = Arc::new(AtomicU32::new(0));
    let words = Arc::new(AtomicU32::new(0));
    let threads: Vec<_> = (1..=givers)
        .map(|giver| {
            let (hungry, ringer) = (Arc::clone(&hungry), doorbell.ringer());
            let (credit, words) = (Arc::clone(&credit), Arc::clone(&words));
            loom::thread::spawn(move || {
                credit.fetch_add(1, Ordering::Relaxed);
                if hungry.take(giver, [true, false]) & 1 == 1 {
                    words.fetch_add(1, Ordering::Release);
                    ringer.published();
                }
            })
        })
        .collect();
    let has_all = || credit.load(Ordering::Relaxed) == givers as u32;
    let mut heard = 0;
    while !has_all() {
        hungry.set(0, 0);
        if let Some(parked) = doorbell.park(|| words.load(Ordering::Acquire) != heard || has_all()) {
            parked.block();
        }
        heard = words.load(Ordering::Acquire);
    }
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

#[test]
fn credit_wakes_who_waits_for_it() {
    check(None, || a_worker_that_waits_for(1));
}

#[test]
fn credit_of_two_wakes_who_waits_for_both() {
    check(Some(3), || a_worker_that_waits_for(2));
}

const OPENED: usize = 0;
const LANDED: usize = 1;

/// A packet is under way to a place with room for it alone. The other worker lands it, and the place is full; then that opens. Worker 0 waits
/// for the one, and then for the other, and must not sleep through either.
fn a_worker_whose_reason_changes(looks_for_its_bits: bool) {
    let mut doorbell = Doorbell::new().unwrap();
    let hungry = Arc::new(Hungry::<2>::new());
    // Bit 0: the packet is under way; bit 1: the place is closed.
    let state = Arc::new(AtomicU32::new(0b01));
    let words = Arc::new(AtomicU32::new(0));
    let other = {
        let (hungry, ringer) = (Arc::clone(&hungry), doorbell.ringer());
        let (state, words) = (Arc::clone(&state), Arc::clone(&words));
        loom::thread::spawn(move || {
            for (next, told) in [(0b10, [false, true]), (0b00, [true, false])] {
                state.store(next, Ordering::Relaxed);
                if hungry.take(1, told) & 1 == 1 {
                    words.fetch_add(1, Ordering::Release);
                    ringer.published();
                }
            }
        })
    };
    let wanted = || if state.load(Ordering::Relaxed) & 0b10 == 0 { LANDED } else { OPENED };
    let may_go_on = || state.load(Ordering::Relaxed) == 0;
    let mut heard = 0;
    while !may_go_on() {
        hungry.set(0, wanted());
        let is_to_stay = || {
            let is_told = !looks_for_its_bits || hungry.is_set(0, wanted());
            words.load(Ordering::Acquire) != heard || may_go_on() || !is_told
        };
        if let Some(parked) = doorbell.park(is_to_stay) {
            parked.block();
        }
        heard = words.load(Ordering::Acquire);
    }
    other.join().unwrap();
}

#[test]
fn a_wait_for_something_else_is_woken_too() {
    check(Some(3), || a_worker_whose_reason_changes(true));
}

#[test]
#[should_panic(expected = "deadlock")]
fn loom_finds_a_worker_that_does_not_look_for_its_bits() {
    check(Some(3), || a_worker_whose_reason_changes(false));
}

/// The mistakes that the smallest form may have.
#[derive(Clone, Copy, PartialEq)]
enum Mistake {
    None,
    /// The giver reads the bits without a fence after giving (`F3`).
    NoGiverFence,
    /// The worker looks again without a fence after parking (`F2`).
    NoWorkerFence,
    /// The worker blocks without looking again.
    NoRecheck,
    /// The worker looks again, and only then says that it is hungry.
    BitAfterRecheck,
}

const PARKING: u32 = 1;
const PARKED: u32 = 2;
const NOTIFIED: u32 = 3;

/// Runs one park and one giver. Lemma: when both are done, a worker that may block and has not seen the credit has been notified.
fn run(mistake: Mistake) {
    check(None, move || {
        let shared = Arc::new((AtomicU64::new(0), AtomicBool::new(false), AtomicU32::new(0)));
        let giver = {
            let shared = Arc::clone(&shared);
            loom::thread::spawn(move || {
                let (hungry, credit, state) = &*shared;
                credit.store(true, Ordering::Relaxed);
                if mistake != Mistake::NoGiverFence {
                    fence(Ordering::SeqCst);
                }
                if hungry.load(Ordering::Relaxed) == 0 {
                    return;
                }
                // The word is handed over, and F1 passed.
                fence(Ordering::SeqCst);
                let mut seen = state.load(Ordering::Relaxed);
                while seen == PARKING || seen == PARKED {
                    match state.compare_exchange(seen, NOTIFIED, Ordering::Release, Ordering::Relaxed) {
                        Ok(_) => return,
                        Err(now) => seen = now,
                    }
                }
            })
        };
        let (hungry, credit, state) = &*shared;
        if mistake != Mistake::BitAfterRecheck {
            hungry.store(1, Ordering::Relaxed);
        }
        state.store(PARKING, Ordering::Relaxed);
        if mistake != Mistake::NoWorkerFence {
            fence(Ordering::SeqCst);
        }
        let seen = mistake != Mistake::NoRecheck && credit.load(Ordering::Relaxed);
        if mistake == Mistake::BitAfterRecheck {
            hungry.store(1, Ordering::Relaxed);
        }
        let parks = state.compare_exchange(PARKING, PARKED, Ordering::Relaxed, Ordering::Acquire).is_ok();
        giver.join().unwrap();
        let notified = state.load(Ordering::Relaxed) == NOTIFIED;
        assert!(seen || !parks || notified, "lost wake-up");
    });
}

#[test]
fn the_smallest_form_is_exhausted() {
    run(Mistake::None);
}

#[test]
#[should_panic(expected = "lost wake-up")]
fn loom_finds_a_giver_without_a_fence() {
    run(Mistake::NoGiverFence);
}

#[test]
#[should_panic(expected = "lost wake-up")]
fn loom_finds_a_worker_without_a_fence() {
    run(Mistake::NoWorkerFence);
}

#[test]
#[should_panic(expected = "lost wake-up")]
fn loom_finds_a_worker_that_does_not_look_again() {
    run(Mistake::NoRecheck);
}

#[test]
#[should_panic(expected = "lost wake-up")]
fn loom_finds_a_bit_set_too_late() {
    run(Mistake::BitAfterRecheck);
}
