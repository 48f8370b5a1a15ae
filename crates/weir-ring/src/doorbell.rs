//! The wake-up of a worker that may have gone to sleep: the changes of its state, and the condition under which a producer must kick. One
//! doorbell for each worker; it covers every ring, port and timer of that worker.
//!
//! ```text
//!            nothing to do            the re-check found nothing
//!   RUNNING --------------> PARKING ------------------------------> PARKED
//!    ^ ^ ^                  |     |                                 |    |
//!    | | |                  |     | a producer (no kick needed)     |    | a producer,
//!    | | +-- found work ----+     v                                 |    | who then kicks
//!    | +---- the worker has seen it -- NOTIFIED <-------------------|----+
//!    +------ the wait timed out ------------------------------------+
//! ```
//!
//! Rule (invariant 3): *"ready" may be wrong and cost one try; "not ready" is never missed.*
//! - A producer publishes, then passes a fence (`F1`), then looks at the state alone, and turns `PARKING` or `PARKED` into `NOTIFIED`. It
//!   never decides from the content of the ring: a snapshot taken before publishing says nothing about the worker after it. Only a worker
//!   that was `PARKED` needs the system call.
//! - The worker writes `PARKING`, passes a fence (`F2`), re-checks every input and timer, turns `PARKING` into `PARKED`, and
//!   only then blocks.
//!
//! One of the two fences comes first: if `F1`, the re-check sees the published elements; if `F2`, the producer sees at least `PARKING` and
//! stops the worker, by the exchange while it re-checks, by a kick after that. A producer and a re-check that see each other cost no kick:
//! `PARKING` exists for that.
//!
//! | who | may | may not, because |
//! |---|---|---|
//! | worker | `RUNNING -> PARKING` | block in any other state than `PARKED` after a re-check: nobody would kick |
//! | worker | `PARKING -> PARKED` by compare-exchange | store `PARKED`: a producer that turned `PARKING` into `NOTIFIED` has not kicked and will not |
//! | worker | `PARKING -> RUNNING`, `NOTIFIED -> RUNNING` by exchange | `NOTIFIED -> PARKING`: producers that saw `NOTIFIED` rely on a look at everything first |
//! | worker | `PARKED -> RUNNING` by compare-exchange | store over `PARKED`: a kick under way would be forgotten and its token left behind unseen |
//! | producer | `PARKING -> NOTIFIED`, `PARKED -> NOTIFIED` by compare-exchange | change any other state: the worker is awake and will look before it parks |
//!
//! Only one producer wins the exchange, so there is at most one kick for each park (invariant 4).
//!
//! A producer that is slow to look may find a worker that has used what was published and parked again. [`Ringer::published_unless`] spares
//! that worker: the worker notes what it has seen, and the producer looks at the note after each look at the state. Leaving such a worker
//! alone loses nothing, however old the note is, because the worker has seen what the wake-up would tell of.
//!
//! Ordering and ownership: the state has a line of its own; producers read it (it seldom changes) and write it only to
//! notify.
//! - `F1 <-> F2`: see above; a light and a heavy fence of `fences`.
//! - `R7` (notified) `<-> A7`: the elements that the producer had published are visible to a worker that saw `NOTIFIED`.
//! - `R8` (parked) `<-> A8`: what the worker has noted up to its re-check is visible to a producer that saw `PARKED`.
//!
//! Source: Dekker's flags with fences, as in the Linux kernel's `wake_up`/`prepare_to_wait` (`memory-barriers.txt`, "sleep and wake-up
//! functions"); FreeBSD D38843 for the outcome without them.
//! Limits: a kick means "look at everything", never how much there is. The state says nothing about time: a
//! worker with timers blocks in its own poll set on the descriptor of [`Parked`] (`AsFd`) with their timeout.

use crate::bell::Bell;
use crate::fences::Fences;
use crate::sync::atomic::{AtomicU32, Ordering};
use crate::sync::{Arc, Counter, Line};

// The state of a worker, as far as its producers care.

/// The worker is awake, and will look at everything before it parks.
const RUNNING: u32 = 0;
/// The worker has said that it will block, and looks at everything once more before it does. A producer can still stop it.
const PARKING: u32 = 1;
/// The worker blocks, or is about to. The next producer kicks.
const PARKED: u32 = 2;
/// A producer has stopped or kicked the worker, and no other needs to.
const NOTIFIED: u32 = 3;

/// The counters of a doorbell.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DoorbellCounts {
    /// Times the worker said it would block.
    pub parks: u64,
    /// Of those, times it went on to block, as the re-check found nothing and no producer came.
    pub blocks: u64,
    /// Times a producer met a worker in its re-check, and stopped it without a kick.
    pub kicks_spared: u64,
    /// Kicks by producers; at most one for each block.
    pub kicks_sent: u64,
    /// Of those, kicks that came so late that the worker's wait had ended by itself.
    pub kicks_redundant: u64,
}

struct Shared {
    state: Line<AtomicU32>,
    bell: Bell,
    fences: Fences,
    /// The kicks sent, counted by the producer that kicks.
    kicks_sent: Line<Counter>,
    /// The parks and blocks, counted by the worker.
    parked: Line<ParkCounts>,
}

#[derive(Default)]
struct ParkCounts {
    parks: Counter,
    blocks: Counter,
    kicks_spared: Counter,
    kicks_redundant: Counter,
}

/// The worker's half: it alone parks.
pub struct Doorbell {
    shared: Arc<Shared>,
    /// The kicks seen in the state less the rings taken from the bell: above 0 while a kick's ring is still to come.
    rings_owed: i64,
}

/// The producers' half.
#[derive(Clone)]
pub struct Ringer {
    shared: Arc<Shared>,
    fences: Fences,
}

/// A worker that has said it will block and found nothing to do. Dropping it makes the worker `RUNNING` again.
pub struct Parked<'a> {
    doorbell: &'a mut Doorbell,
}

impl Doorbell {
    /// A doorbell of a running worker.
    ///
    /// # Errors
    /// If the kernel has no eventfd to give.
    pub fn new() -> std::io::Result<Doorbell> {
        Doorbell::with(Fences::new())
    }

    /// A doorbell with full fences, for a worker that parks often beside busy ones, which each park of the other kind would interrupt: here
    /// every producer passes a full fence each time that it has published.
    ///
    /// # Errors
    /// Those of [`Doorbell::new`].
    pub fn with_full_fences() -> std::io::Result<Doorbell> {
        Doorbell::with(Fences::full())
    }

    fn with(fences: Fences) -> std::io::Result<Doorbell> {
        let shared = Shared {
            state: Line(AtomicU32::new(RUNNING)),
            bell: Bell::new()?,
            fences,
            kicks_sent: Line(Counter::default()),
            parked: Line(ParkCounts::default()),
        };
        Ok(Doorbell { shared: Arc::new(shared), rings_owed: 0 })
    }

    /// The producer's half, for one more producer.
    pub fn ringer(&self) -> Ringer {
        Ringer { shared: Arc::clone(&self.shared), fences: self.shared.fences }
    }

    /// Says that the worker will block, and re-checks with `has_work` that no work came meanwhile: it must look at *every* input and timer.
    /// `None` if there is work (or a producer says so).
    pub fn park(&mut self, has_work: impl FnOnce() -> bool) -> Option<Parked<'_>> {
        let (state, counts) = (&self.shared.state.0, &self.shared.parked.0);
        counts.parks.add(1);
        state.store(PARKING, Ordering::Relaxed);
        // F2: the state is visible before the re-check reads what producers published (F1 in `Ringer::published`).
        self.shared.fences.heavy();
        if !has_work()
            // R8; A7, from R7.
            && state.compare_exchange(PARKING, PARKED, Ordering::Release, Ordering::Acquire).is_ok()
        {
            counts.blocks.add(1);
            return Some(Parked { doorbell: self });
        }
        // An exchange, as a store knows no order with a notice that it does not see. The producer that stopped us has not kicked, so there
        // is nothing to take back. A7, from R7.
        if state.swap(RUNNING, Ordering::Acquire) == NOTIFIED {
            counts.kicks_spared.add(1);
        }
        None
    }

    /// The counters so far.
    pub fn counts(&self) -> DoorbellCounts {
        let parked = &self.shared.parked.0;
        DoorbellCounts {
            parks: parked.parks.get(),
            blocks: parked.blocks.get(),
            kicks_spared: parked.kicks_spared.get(),
            kicks_sent: self.shared.kicks_sent.0.get(),
            kicks_redundant: parked.kicks_redundant.get(),
        }
    }

    /// Leaves `PARKED` or `NOTIFIED` for `RUNNING`.
    fn leave(&mut self) {
        let state = &self.shared.state.0;
        // A7, from R7.
        let notified = state.compare_exchange(PARKED, RUNNING, Ordering::Relaxed, Ordering::Acquire).is_err();
        if notified {
            // A producer won: its ring has come or will come, and must not wake a later park.
            state.store(RUNNING, Ordering::Relaxed);
            self.rings_owed += 1;
        }
        if self.rings_owed > 0 {
            self.rings_owed -= self.shared.bell.take() as i64;
        }
        if notified && self.rings_owed > 0 {
            self.shared.parked.0.kicks_redundant.add(1);
        }
    }
}

impl Parked<'_> {
    /// Blocks until a producer kicks.
    pub fn block(self) {
        let doorbell = &mut *self.doorbell;
        loop {
            doorbell.rings_owed -= doorbell.shared.bell.wait() as i64;
            // Relaxed: the ring of the bell came after the exchange that set the state.
            if doorbell.shared.state.0.load(Ordering::Relaxed) == NOTIFIED {
                return;
            }
            // The late ring of a kick that an earlier park had already seen.
        }
    }
}

#[cfg(not(any(loom, miri)))]
impl std::os::fd::AsFd for Parked<'_> {
    /// The descriptor, readable when a producer has kicked (rarely: when an earlier kick's ring came late). For a poll set.
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.doorbell.shared.bell.as_fd()
    }
}

impl Drop for Parked<'_> {
    fn drop(&mut self) {
        self.doorbell.leave();
    }
}

impl Ringer {
    /// To be called after publishing: stops or wakes the worker if it has said that it will block. Returns whether that took a kick.
    #[inline]
    pub fn published(&self) -> bool {
        // F1: the published elements are visible before the state is read (F2 in `Doorbell::park`).
        self.fences.light();
        self.look()
    }

    /// As [`Ringer::published`], but leaves the worker alone if `is_known`, which is asked whether the worker has noted, from within a
    /// re-check, that it has seen what was published.
    #[inline]
    pub fn published_unless(&self, is_known: impl FnMut() -> bool) -> bool {
        // F1.
        self.fences.light();
        may_block(self.shared.state.0.load(Ordering::Relaxed)) && self.shared.notify(is_known)
    }

    /// As [`Ringer::published`], for a caller that has passed `F1` since it published.
    #[inline]
    pub(crate) fn look(&self) -> bool {
        may_block(self.shared.state.0.load(Ordering::Relaxed)) && self.shared.notify(|| false)
    }

    #[inline]
    pub(crate) fn fences(&self) -> Fences {
        self.fences
    }
}

impl Shared {
    #[cold]
    fn notify(&self, mut is_known: impl FnMut() -> bool) -> bool {
        // A8, from R8.
        let mut seen = self.state.0.load(Ordering::Acquire);
        while may_block(seen) && !is_known() {
            // R7, to A7.
            match self.state.0.compare_exchange(
                seen,
                NOTIFIED,
                Ordering::Release,
                // A8, from R8.
                Ordering::Acquire,
            ) {
                Ok(_) if seen == PARKED => {
                    self.kicks_sent.0.add_shared();
                    self.bell.ring();
                    return true;
                }
                Ok(_) => return false,
                // The worker has gone on from `PARKING` to `PARKED`, or another producer was faster.
                Err(now) => seen = now,
            }
        }
        false
    }
}

#[inline]
fn may_block(word: u32) -> bool {
    word == PARKING || word == PARKED
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    fn state(ringer: &Ringer) -> u32 {
        ringer.shared.state.0.load(Ordering::Relaxed)
    }

    #[test]
    fn a_running_worker_is_not_kicked() {
        let doorbell = Doorbell::new().unwrap();
        assert!(!doorbell.ringer().published());
        assert_eq!(doorbell.counts(), DoorbellCounts::default());
    }

    #[test]
    fn one_park_takes_one_kick() {
        let mut doorbell = Doorbell::new().unwrap();
        let (first, second) = (doorbell.ringer(), doorbell.ringer());
        let parked = doorbell.park(|| false).expect("nothing to do");
        assert!(first.published());
        assert!(!second.published());
        assert!(!first.published());
        parked.block();
        assert_eq!(state(&first), RUNNING);
        let counts = DoorbellCounts { parks: 1, blocks: 1, kicks_sent: 1, ..DoorbellCounts::default() };
        assert_eq!(doorbell.counts(), counts);
    }

    #[test]
    fn work_found_by_the_recheck_is_not_slept_on() {
        let mut doorbell = Doorbell::new().unwrap();
        let ringer = doorbell.ringer();
        assert!(doorbell.park(|| true).is_none());
        assert_eq!(state(&ringer), RUNNING);
        // A producer that comes during the re-check stops the worker, whether the re-check saw the published element or not, and without a
        // kick that would wake the next park.
        for sees_it in [true, false] {
            let parked = doorbell.park(|| {
                assert_eq!(state(&ringer), PARKING);
                assert!(!ringer.published());
                sees_it
            });
            assert!(parked.is_none());
        }
        let counts = DoorbellCounts { parks: 3, kicks_spared: 2, ..DoorbellCounts::default() };
        assert_eq!(doorbell.counts(), counts);
        assert_eq!(doorbell.shared.bell.take(), 0);
    }

    #[test]
    fn a_worker_that_has_seen_what_was_published_is_left_alone() {
        let mut doorbell = Doorbell::new().unwrap();
        let ringer = doorbell.ringer();
        let parked = doorbell.park(|| false).expect("nothing to do");
        assert!(!ringer.published_unless(|| true));
        assert_eq!(state(&ringer), PARKED);
        assert!(ringer.published_unless(|| false));
        parked.block();
        // A worker that goes on from its re-check to the park while the producer looks is looked at again.
        let mut looks = 0;
        let parked = doorbell.park(|| {
            let state = &ringer.shared.state.0;
            assert!(!ringer.published_unless(|| {
                looks += 1;
                state.store(PARKED, Ordering::Relaxed);
                looks > 1
            }));
            state.store(PARKING, Ordering::Relaxed);
            false
        });
        assert!(parked.is_some());
        drop(parked);
        assert_eq!((looks, doorbell.counts().kicks_sent), (2, 1));
    }

    #[test]
    fn a_wait_that_ends_by_itself_leaves_no_kick_behind() {
        let mut doorbell = Doorbell::new().unwrap();
        let ringer = doorbell.ringer();
        drop(doorbell.park(|| false));
        assert!(!ringer.published());
        // The kick comes after the wait has timed out but before the worker has left the park.
        let parked = doorbell.park(|| false).unwrap();
        assert!(ringer.published());
        drop(parked);
        assert_eq!(doorbell.shared.bell.take(), 0);
        assert_eq!(doorbell.rings_owed, 0);
    }

    #[test]
    fn a_late_ring_wakes_nobody() {
        let mut doorbell = Doorbell::new().unwrap();
        let ringer = doorbell.ringer();
        // The producer has won the exchange but not rung yet when the worker finds work by itself.
        let parked = doorbell.park(|| false).unwrap();
        parked.doorbell.shared.state.0.store(NOTIFIED, Ordering::Relaxed);
        drop(parked);
        assert_eq!((doorbell.rings_owed, doorbell.counts().kicks_redundant), (1, 1));
        let late = Arc::clone(&doorbell.shared);
        let published = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let parked = doorbell.park(|| false).unwrap();
            late.bell.ring();
            scope.spawn(|| {
                published.store(true, Ordering::Release);
                assert!(ringer.published());
            });
            parked.block();
            assert!(published.load(Ordering::Acquire), "woken by the late ring");
        });
        assert_eq!(doorbell.rings_owed, 0);
    }
}
