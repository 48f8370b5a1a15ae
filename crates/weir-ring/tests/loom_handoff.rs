//! The whole hand-off - rings, pending bits, doorbell - under the model checker: two producers and one worker.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p weir-ring --release --test loom_handoff`
//!
//! Rule: the worker sleeps whenever it finds nothing, and still every element arrives and every departure is seen; a lost
//! wake-up is a deadlock.
//! Time: two minutes for the file, on a busy core.
//! Limits of loom: see `loom_doorbell.rs`. With two producers a thread is interrupted at most 4 times where it could go on; cases that need
//! more switches are left to `loom_doorbell.rs`, which exhausts the protocol without rings, and to the stress example.
#![cfg(loom)]

use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, Ordering};
use weir_ring::handoff::{Inbox, InboxSize, Outlet, inbox};

/// Checks `body` with at most `preemptions` interruptions (`None`: any number), unless `LOOM_MAX_PREEMPTIONS` says otherwise.
fn check(preemptions: Option<usize>, body: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = model.preemption_bound.or(preemptions);
    model.check(body);
}

fn size(sources: usize) -> InboxSize {
    InboxSize { sources, ring_elements: 1 }
}

/// Drains and sleeps until `done`.
fn work<T: Send>(inbox: &mut Inbox<T>, mut handle: impl FnMut(usize, T), done: impl Fn() -> bool) {
    while !done() {
        if inbox.drain(&mut handle) == 0
            && !done()
            && let Some(parked) = inbox.park(|| false)
        {
            parked.block();
        }
    }
}

#[test]
fn one_outlet_sends_and_goes() {
    check(Some(6), || {
        let (mut inbox, mut outlets) = inbox::<u32>(size(1)).unwrap();
        let mut outlet = outlets.pop().unwrap();
        let has_gone = Arc::new(AtomicBool::new(false));
        let goes = Arc::clone(&has_gone);
        let producer = loom::thread::spawn(move || {
            outlet.stage(1).unwrap();
            outlet.flush().unwrap();
            // The outlet goes after this, and the worker hears of it: it is woken, or not let sleep.
            goes.store(true, Ordering::Relaxed);
        });
        let taken = std::cell::Cell::new(0);
        let done = || taken.get() == 1 && has_gone.load(Ordering::Relaxed);
        work(&mut inbox, |_, item| taken.set(taken.get() + item), done);
        producer.join().unwrap();
    });
}

/// A worker drains and sleeps until it has both of two batches, each published by `publish`, and after them `end`.
fn two_batches(publish: fn(&mut Outlet<u32>), end: fn(&mut Outlet<u32>)) {
    check(Some(7), move || {
        let (mut inbox, mut outlets) = inbox::<u32>(InboxSize { ring_elements: 2, ..size(1) }).unwrap();
        let mut outlet = outlets.pop().unwrap();
        let producer = loom::thread::spawn(move || {
            for _ in 0..2 {
                outlet.stage(1).unwrap();
                publish(&mut outlet);
            }
            end(&mut outlet);
            outlet
        });
        let taken = std::cell::Cell::new(0);
        work(&mut inbox, |_, item| taken.set(taken.get() + item), || taken.get() == 2);
        drop(producer.join().unwrap());
    });
}

/// The second batch finds the bit of the first still set, or just cleared.
#[test]
fn one_outlet_sends_twice() {
    two_batches(|outlet| assert_eq!(outlet.flush(), Ok(1)), |_| ());
}

/// No worker is woken for a batch, and a worker that has gone to sleep beside them is woken at the end.
#[test]
fn one_outlet_sends_quietly_and_wakes() {
    two_batches(|outlet| assert_eq!(outlet.flush_quietly(), Ok(1)), Outlet::wake);
}

#[test]
fn two_outlets_and_one_sleeping_worker() {
    check(Some(4), || {
        let (mut inbox, outlets) = inbox::<u32>(size(2)).unwrap();
        let producers: Vec<_> = outlets
            .into_iter()
            .map(|mut outlet| {
                loom::thread::spawn(move || {
                    outlet.stage(1).unwrap();
                    outlet.flush().unwrap();
                    // The outlet is kept, so that its departure does not wake the worker.
                    outlet
                })
            })
            .collect();
        let taken = std::cell::Cell::new(0);
        work(&mut inbox, |_, item| taken.set(taken.get() + item), || taken.get() == 2);
        producers.into_iter().for_each(|producer| drop(producer.join().unwrap()));
    });
}

#[test]
fn a_worker_that_goes_is_seen_and_leaves_what_it_had() {
    check(None, || {
        let (mut inbox, mut outlets) = inbox::<u32>(size(1)).unwrap();
        let mut outlet = outlets.pop().unwrap();
        let worker = loom::thread::spawn(move || {
            let mut taken = 0;
            inbox.drain(|_, _| taken += 1);
            taken
        });
        outlet.stage(1).unwrap();
        let mut back = 0;
        if outlet.flush().is_ok() {
            while !matches!(outlet.flush(), Err(weir_ring::handoff::Abandoned)) {
                loom::thread::yield_now();
            }
        }
        while outlet.take_back().is_some() {
            back += 1;
        }
        assert_eq!(worker.join().unwrap() + back, 1);
    });
}
