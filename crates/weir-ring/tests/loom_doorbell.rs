//! The wake-up protocol under every interleaving the model checker knows.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p weir-ring --release --test loom_doorbell`
//!
//! Rule: a lost wake-up is a worker blocked for ever, which loom reports as a deadlock. The protocol must have none. A copy of it with a
//! known mistake must have one, or the harness proves nothing; there the sleep is a loop that panics when both producers have gone and none
//! rang, as a deadlock would end the whole test process.
//! Time: two minutes for the file, on a busy core; exhausted are the tests that say so.
//! Limits of loom: it follows the C11 model with relaxed reads of older values and full fences, but `SeqCst` accesses
//! count as acquire and release only (so the protocol uses fences), it does not model the compiler or the kernel's
//! eventfd (a mutex and a condition variable stand in), there are no spurious wakes, and sizes are those written here.
#![cfg(loom)]

use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};
use weir_ring::doorbell::Doorbell;

/// Checks `body` with at most `preemptions` interruptions of a thread that could go on (`None`: any number), unless
/// `LOOM_MAX_PREEMPTIONS` says otherwise.
fn check(preemptions: Option<usize>, body: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = model.preemption_bound.or(preemptions);
    model.check(body);
}

/// Each of `count` producers publishes one thing; the worker takes all and sleeps whenever it finds nothing new.
fn producers_and_a_sleeping_worker(count: usize) {
    let mut doorbell = Doorbell::new().unwrap();
    let published = Arc::new(AtomicU32::new(0));
    let producers: Vec<_> = (0..count)
        .map(|producer| {
            let (published, ringer) = (Arc::clone(&published), doorbell.ringer());
            loom::thread::spawn(move || {
                published.fetch_or(1 << producer, Ordering::Release);
                ringer.published();
            })
        })
        .collect();
    let mut taken = 0;
    while taken != (1 << count) - 1 {
        let found = published.load(Ordering::Acquire);
        if found != taken {
            taken = found;
        } else if let Some(parked) = doorbell.park(|| published.load(Ordering::Acquire) != taken) {
            parked.block();
        }
    }
    producers.into_iter().for_each(|producer| producer.join().unwrap());
    let counts = doorbell.counts();
    assert!(counts.kicks_sent <= counts.parks, "more than one kick for a park: {counts:?}");
}

#[test]
fn one_producer_never_loses_a_wake_up() {
    check(None, || producers_and_a_sleeping_worker(1));
}

#[test]
fn two_producers_never_lose_a_wake_up() {
    check(Some(4), || producers_and_a_sleeping_worker(2));
}

/// A worker that parks twice: the ring of a kick that the first park saw late must not be taken for one of the second.
#[test]
fn a_wait_that_ends_by_itself_loses_no_later_kick() {
    check(Some(4), || {
        let mut doorbell = Doorbell::new().unwrap();
        let published = Arc::new(AtomicBool::new(false));
        let again = Arc::new(AtomicBool::new(false));
        let (first, second) = (Arc::clone(&published), Arc::clone(&again));
        let ringer = doorbell.ringer();
        let producer = loom::thread::spawn(move || {
            first.store(true, Ordering::Release);
            ringer.published();
            second.store(true, Ordering::Release);
            ringer.published();
        });
        // A timer ends this wait at once.
        drop(doorbell.park(|| published.load(Ordering::Acquire)));
        while !again.load(Ordering::Acquire) {
            if let Some(parked) = doorbell.park(|| again.load(Ordering::Acquire)) {
                parked.block();
            }
        }
        producer.join().unwrap();
    });
}

/// A producer of two elements that leaves a worker alone that has noted, in a re-check, the newest of them: it loses no wake-up, and each kick
/// finds something new, although the producer may be slow to look.
fn a_producer_and_a_worker_that_notes(spares: bool) {
    check(Some(4), move || {
        let mut doorbell = Doorbell::new().unwrap();
        let [published, noted] = [(); 2].map(|()| Arc::new(AtomicU32::new(0)));
        let (publishes, looks_at, ringer) = (Arc::clone(&published), Arc::clone(&noted), doorbell.ringer());
        let producer = loom::thread::spawn(move || {
            for element in 1..=2 {
                publishes.store(element, Ordering::Release);
                ringer.published_unless(|| spares && looks_at.load(Ordering::Relaxed) == element);
            }
        });
        let mut taken = 0;
        while taken < 2 {
            let there_is = |taken| {
                let found = published.load(Ordering::Acquire);
                if found == taken {
                    noted.store(found, Ordering::Relaxed);
                }
                found != taken
            };
            if there_is(taken) {
                taken = published.load(Ordering::Acquire);
            } else if let Some(parked) = doorbell.park(|| there_is(taken)) {
                parked.block();
                assert!(there_is(taken), "kicked for nothing");
            }
        }
        producer.join().unwrap();
    });
}

#[test]
fn a_worker_that_notes_what_it_has_seen_is_kicked_for_something_new_alone() {
    a_producer_and_a_worker_that_notes(true);
}

#[test]
#[should_panic(expected = "kicked for nothing")]
fn loom_finds_a_producer_that_does_not_look_at_the_note() {
    a_producer_and_a_worker_that_notes(false);
}

/// The protocol in its smallest form, with the mistakes that a step may have.
#[derive(Clone, Copy, PartialEq)]
enum Mistake {
    None,
    /// The producer looks at the state without a fence after publishing.
    NoProducerFence,
    /// The worker re-checks without a fence after parking.
    NoWorkerFence,
    /// The worker blocks without looking again.
    NoRecheck,
    /// The worker stores `PARKED` after its re-check, over a producer's `NOTIFIED`.
    StoresParked,
    /// The producer decides to wake from the content of the ring when it reserved its slot.
    Snapshot,
}

const RUNNING: u32 = 0;
const PARKING: u32 = 1;
const PARKED: u32 = 2;
const NOTIFIED: u32 = 3;

struct Copy {
    mistake: Mistake,
    state: AtomicU32,
    /// Slots reserved, slots filled (each by its reserver), and slots taken by the worker: two elements in all.
    tail: AtomicU32,
    filled: [AtomicBool; 2],
    head: AtomicU32,
    bell: AtomicBool,
    producers_done: AtomicU32,
}

impl Copy {
    fn produce(&self) {
        let index = self.tail.fetch_add(1, Ordering::AcqRel);
        let was_empty = index == self.head.load(Ordering::Acquire);
        self.filled[index as usize].store(true, Ordering::Release);
        if self.mistake != Mistake::NoProducerFence {
            fence(Ordering::SeqCst);
        }
        if self.mistake == Mistake::Snapshot && !was_empty {
            return;
        }
        let mut seen = self.state.load(Ordering::Relaxed);
        while seen == PARKING || seen == PARKED {
            match self.state.compare_exchange(seen, NOTIFIED, Ordering::Release, Ordering::Relaxed) {
                Ok(_) if seen == PARKED => return self.bell.store(true, Ordering::Release),
                Ok(_) => return,
                Err(now) => seen = now,
            }
        }
    }

    /// Sleeps until the bell rings.
    fn sleep(&self) {
        loop {
            let nobody_left = self.producers_done.load(Ordering::Acquire) == 2;
            if self.bell.load(Ordering::Acquire) {
                return self.bell.store(false, Ordering::Relaxed);
            }
            assert!(!nobody_left, "lost wake-up");
            loom::thread::yield_now();
        }
    }

    fn ready(&self, head: u32) -> bool {
        self.filled[head as usize].load(Ordering::Acquire)
    }

    /// Says `PARKED` unless a producer came; returns whether it did.
    fn block(&self) -> bool {
        if self.mistake == Mistake::StoresParked {
            self.state.store(PARKED, Ordering::Relaxed);
            return true;
        }
        self.state.compare_exchange(PARKING, PARKED, Ordering::Relaxed, Ordering::Acquire).is_ok()
    }

    fn consume(&self) {
        let mut head = 0;
        while head < 2 {
            // A drain returns the slots it has emptied once, at its end.
            let begin = head;
            while head < 2 && self.ready(head) {
                head += 1;
            }
            if head > begin {
                self.head.store(head, Ordering::Release);
                continue;
            }
            self.state.store(PARKING, Ordering::Relaxed);
            if self.mistake != Mistake::NoWorkerFence {
                fence(Ordering::SeqCst);
            }
            if (self.mistake == Mistake::NoRecheck || !self.ready(head)) && self.block() {
                self.sleep();
            }
            self.state.swap(RUNNING, Ordering::Acquire);
        }
    }
}

fn run(mistake: Mistake) {
    check(Some(3), move || {
        let copy = Arc::new(Copy {
            mistake,
            state: AtomicU32::new(RUNNING),
            tail: AtomicU32::new(0),
            filled: [AtomicBool::new(false), AtomicBool::new(false)],
            head: AtomicU32::new(0),
            bell: AtomicBool::new(false),
            producers_done: AtomicU32::new(0),
        });
        let producers: Vec<_> = (0..2)
            .map(|_| {
                let copy = Arc::clone(&copy);
                loom::thread::spawn(move || {
                    copy.produce();
                    copy.producers_done.fetch_add(1, Ordering::Release);
                })
            })
            .collect();
        copy.consume();
        producers.into_iter().for_each(|producer| producer.join().unwrap());
    });
}

#[test]
fn the_smallest_form_is_right() {
    run(Mistake::None);
}

#[test]
#[should_panic(expected = "lost wake-up")]
fn loom_finds_a_missing_fence_of_the_producer() {
    run(Mistake::NoProducerFence);
}

#[test]
#[should_panic(expected = "lost wake-up")]
fn loom_finds_a_missing_fence_of_the_worker() {
    run(Mistake::NoWorkerFence);
}

#[test]
#[should_panic(expected = "lost wake-up")]
fn loom_finds_a_missing_recheck() {
    run(Mistake::NoRecheck);
}

#[test]
#[should_panic(expected = "lost wake-up")]
fn loom_finds_a_park_that_overwrites_a_notice() {
    run(Mistake::StoresParked);
}

/// The protocol without rings, elements and the sleep itself: two producers with a flag each, and a worker that parks. Small enough to be
/// exhausted.
///
/// Lemma: when all is done, a worker that may block and has not seen everything has been kicked, once. A wait that ends by itself (a timer)
/// is a park of its own, so that producers of one park meet the next. From these follows the whole: a worker blocks only so, and a property
/// of each park holds for all.
struct Core {
    state: AtomicU32,
    published: [AtomicBool; 2],
}

impl Core {
    /// Returns whether it kicked.
    fn produce(&self, producer: usize) -> bool {
        self.published[producer].store(true, Ordering::Release);
        fence(Ordering::SeqCst);
        let mut seen = self.state.load(Ordering::Relaxed);
        while seen == PARKING || seen == PARKED {
            match self.state.compare_exchange(seen, NOTIFIED, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return seen == PARKED,
                Err(now) => seen = now,
            }
        }
        false
    }

    /// Returns whether the worker may block, and whether its re-check saw everything.
    fn park(&self, producers: usize) -> (bool, bool) {
        self.state.store(PARKING, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let seen =
            self.published[..producers].iter().filter(|published| published.load(Ordering::Acquire)).count();
        let parked = || self.state.compare_exchange(PARKING, PARKED, Ordering::Relaxed, Ordering::Acquire);
        (parked().is_ok(), seen == producers)
    }
}

fn parks(producers: usize, parks: usize, preemptions: Option<usize>) {
    check(preemptions, move || {
        let core = Arc::new(Core {
            state: AtomicU32::new(RUNNING),
            published: [AtomicBool::new(false), AtomicBool::new(false)],
        });
        let threads: Vec<_> = (0..producers)
            .map(|producer| {
                let core = Arc::clone(&core);
                loom::thread::spawn(move || core.produce(producer))
            })
            .collect();
        let mut kicks_due = 0;
        for _ in 1..parks {
            let (blocks, _) = core.park(producers);
            let left = core.state.swap(RUNNING, Ordering::Acquire);
            kicks_due += usize::from(blocks && left == NOTIFIED);
        }
        let (blocks, saw_all) = core.park(producers);
        let kicks = threads.into_iter().map(|thread| thread.join().unwrap());
        let kicks = kicks.filter(|&kicked| kicked).count();
        let notified = core.state.load(Ordering::Relaxed) == NOTIFIED;
        assert!(!blocks || saw_all || notified, "lost wake-up");
        kicks_due += usize::from(blocks && notified);
        assert_eq!(kicks, kicks_due, "one kick for each park that a producer ended, and none for others");
    });
}

/// Every interleaving and every stale read: no bound on preemptions.
#[test]
fn two_producers_and_a_park_are_exhausted() {
    parks(2, 1, None);
}

/// Every interleaving and every stale read, for a producer of one park that meets the next.
#[test]
fn a_producer_and_two_parks_are_exhausted() {
    parks(1, 2, None);
}

#[test]
fn two_producers_and_two_parks() {
    parks(2, 2, Some(3));
}

/// The wake-up decided from an emptiness snapshot: a producer that reserves behind an element not yet taken sees "not empty", and when it
/// publishes after the worker has gone to sleep, no producer wakes the worker.
#[test]
#[should_panic(expected = "lost wake-up")]
fn loom_finds_a_decision_from_a_snapshot() {
    run(Mistake::Snapshot);
}
