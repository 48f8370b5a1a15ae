//! The wake-up of a worker that may have gone to sleep: who may change its state, and when a producer must kick.
//! One doorbell for each worker; it covers every ring, port and timer of that worker.
//!
//! ```text
//!                 nothing to do                  budget spent
//!   RUNNING ---------------------> SPINNING --------------------> PARKED ---- a producer ----> NOTIFIED
//!      ^  ^                           |                           |    (compare-exchange, then one kick)
//!      |  +------- work found --------+                           |                              |
//!      +------- the re-check found work, or the wait timed out ---+                              |
//!      +------- the worker has seen the kick ----------------------------------------------------+
//! ```
//!
//! Rule (design invariant 3): *"ready" may be wrong and cost one try; "not ready" is never missed.*
//! - A producer publishes, then passes a full fence, then looks at the state alone, and kicks if it turned `PARKED`
//!   into `NOTIFIED`. It never decides from what the ring held: a snapshot taken before publishing says nothing about
//!   the worker after it.
//! - The worker writes `PARKED`, passes a full fence, re-checks every input and timer, and only then blocks.
//!
//! With both fences (`F1`, `F2`) one of the two comes first: if `F1`, the re-check sees what was published; if `F2`, the
//! producer sees `PARKED`.
//!
//! | who | may | may not, because |
//! |---|---|---|
//! | worker | `RUNNING <-> SPINNING`, either to `PARKED` | block in any other state than `PARKED` after a re-check: nobody would kick |
//! | worker | `PARKED -> RUNNING` by compare-exchange | store over `PARKED`: a kick under way would be forgotten and its token left behind unseen |
//! | worker | `NOTIFIED -> RUNNING` | `NOTIFIED -> PARKED`: producers that saw `NOTIFIED` rely on a look at everything first |
//! | producer | `PARKED -> NOTIFIED` by compare-exchange | change any other state: the worker is awake and will look before it parks |
//!
//! Only one producer wins the exchange, so there is one kick for each park (invariant 4).
//!
//! Ordering and ownership: the state has a line of its own; producers read it (it seldom changes) and write it only to
//! kick. Order between published data and its reader is the ring's (`R1 <-> A1`); the fences order only state against
//! data.
//! Source: Dekker's flags with fences, as in the Linux kernel's `wake_up`/`prepare_to_wait` (`memory-barriers.txt`,
//! "sleep and wake-up functions"); FreeBSD D38843 for what happens without them.
//! Limits: a kick means "look at everything", never how much there is. The state says nothing about time: a
//! worker with timers blocks in its own poll set on the descriptor of [`Parked`] (`AsFd`) with their timeout.

use crate::bell::Bell;
use crate::sync::atomic::{AtomicU32, Ordering, fence};
use crate::sync::{Arc, Counter, Line};

/// What a worker is doing, as far as its producers care.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum State {
    /// It works, and will look at everything before it parks.
    Running = 0,
    /// It has nothing to do and looks again and again: a hand-off costs it no wake-up.
    Spinning = 1,
    /// It has said that it will block. The next producer kicks.
    Parked = 2,
    /// A producer has kicked, and no other needs to.
    Notified = 3,
}

impl State {
    fn from_word(word: u32) -> State {
        match word {
            0 => State::Running,
            1 => State::Spinning,
            2 => State::Parked,
            _ => State::Notified,
        }
    }
}

/// What a doorbell has counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DoorbellCounts {
    /// Times the worker said it would block.
    pub parks: u64,
    /// Of those, times it went on to block, as the re-check found nothing.
    pub blocks: u64,
    /// Kicks by producers; at most one for each park.
    pub kicks_sent: u64,
    /// Of those, kicks that met a worker whose own re-check had found work.
    pub kicks_redundant: u64,
}

struct Shared {
    state: Line<AtomicU32>,
    bell: Bell,
    /// Counted by whoever kicks.
    kicks_sent: Line<Counter>,
    /// Counted by the worker.
    parked: Line<ParkCounts>,
}

#[derive(Default)]
struct ParkCounts {
    parks: Counter,
    blocks: Counter,
    kicks_redundant: Counter,
}

/// The worker's half: it alone parks.
pub struct Doorbell {
    shared: Arc<Shared>,
    /// Kicks seen in the state less rings taken from the bell: above 0 while a kick's ring is still to come.
    rings_owed: i64,
}

/// The producers' half.
#[derive(Clone)]
pub struct Ringer {
    shared: Arc<Shared>,
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
        let shared = Shared {
            state: Line(AtomicU32::new(State::Running as u32)),
            bell: Bell::new()?,
            kicks_sent: Line(Counter::default()),
            parked: Line(ParkCounts::default()),
        };
        Ok(Doorbell { shared: Arc::new(shared), rings_owed: 0 })
    }

    /// A half for one more producer.
    pub fn ringer(&self) -> Ringer {
        Ringer { shared: Arc::clone(&self.shared) }
    }

    /// Says that the worker has work.
    pub fn running(&mut self) {
        self.become_awake(State::Running);
    }

    /// Says that the worker has none and keeps looking.
    pub fn spinning(&mut self) {
        self.become_awake(State::Spinning);
    }

    /// Says that the worker will block, and re-checks with `has_work` that nothing came meanwhile: it must look at
    /// *every* input and timer. `None` if there is work (or a kick came, which says so).
    pub fn park(&mut self, has_work: impl FnOnce() -> bool) -> Option<Parked<'_>> {
        self.shared.parked.0.parks.add(1);
        self.shared.state.0.store(State::Parked as u32, Ordering::Relaxed);
        // F2: the state is visible before the re-check reads what producers published (F1 in `Ringer::published`).
        fence(Ordering::SeqCst);
        if has_work() {
            if self.leave() == State::Notified {
                self.shared.parked.0.kicks_redundant.add(1);
            }
            return None;
        }
        self.shared.parked.0.blocks.add(1);
        Some(Parked { doorbell: self })
    }

    /// What has been counted so far.
    pub fn counts(&self) -> DoorbellCounts {
        self.shared.counts()
    }

    fn become_awake(&mut self, awake: State) {
        let state = &self.shared.state.0;
        // Relaxed: only this worker changes an awake state; a store only if it differs, as producers share the line.
        if state.load(Ordering::Relaxed) != awake as u32 {
            state.store(awake as u32, Ordering::Relaxed);
        }
    }

    /// Leaves `PARKED` or `NOTIFIED` for `RUNNING`; says which of the two it was.
    fn leave(&mut self) -> State {
        let state = &self.shared.state.0;
        let (parked, running) = (State::Parked as u32, State::Running as u32);
        // Relaxed: what the kick announces is ordered by the ring it was published in.
        let left = match state.compare_exchange(parked, running, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => State::Parked,
            Err(_) => {
                // A producer won: its ring has come or will come, and must not wake a later park.
                state.store(running, Ordering::Relaxed);
                self.rings_owed += 1;
                State::Notified
            }
        };
        if self.rings_owed > 0 {
            self.rings_owed -= self.shared.bell.take() as i64;
        }
        left
    }
}

impl Parked<'_> {
    /// Blocks until a producer kicks.
    pub fn block(self) {
        let doorbell = &mut *self.doorbell;
        loop {
            doorbell.rings_owed -= doorbell.shared.bell.wait() as i64;
            // Relaxed: the ring of the bell came after the exchange that set the state.
            if doorbell.shared.state.0.load(Ordering::Relaxed) == State::Notified as u32 {
                return;
            }
            // The late ring of a kick that an earlier park had already seen.
        }
    }
}

#[cfg(not(any(loom, miri)))]
impl std::os::fd::AsFd for Parked<'_> {
    /// Readable when a producer has kicked (rarely: when an earlier kick's ring came late). For a poll set.
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
    /// To be called after publishing: wakes the worker if it has said that it will block. Returns whether it kicked.
    #[inline]
    pub fn published(&self) -> bool {
        // F1: what was published is visible before the state is read (F2 in `Doorbell::park`).
        fence(Ordering::SeqCst);
        self.look()
    }

    /// As [`Ringer::published`], for a caller that has passed a full fence since it published.
    #[inline]
    pub(crate) fn look(&self) -> bool {
        self.shared.state.0.load(Ordering::Relaxed) == State::Parked as u32 && self.shared.kick()
    }

    /// What the worker is doing: a hint, old when it is read.
    pub fn state(&self) -> State {
        State::from_word(self.shared.state.0.load(Ordering::Relaxed))
    }

    /// What has been counted so far.
    pub fn counts(&self) -> DoorbellCounts {
        self.shared.counts()
    }
}

impl Shared {
    #[cold]
    fn kick(&self) -> bool {
        let (parked, notified) = (State::Parked as u32, State::Notified as u32);
        let won =
            self.state.0.compare_exchange(parked, notified, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if won {
            self.kicks_sent.0.add_shared();
            self.bell.ring();
        }
        won
    }

    fn counts(&self) -> DoorbellCounts {
        let parked = &self.parked.0;
        DoorbellCounts {
            parks: parked.parks.get(),
            blocks: parked.blocks.get(),
            kicks_sent: self.kicks_sent.0.get(),
            kicks_redundant: parked.kicks_redundant.get(),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn a_running_or_spinning_worker_is_not_kicked() {
        let mut doorbell = Doorbell::new().unwrap();
        let ringer = doorbell.ringer();
        assert!(!ringer.published());
        doorbell.spinning();
        assert_eq!(ringer.state(), State::Spinning);
        assert!(!ringer.published());
        doorbell.running();
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
        assert_eq!(first.state(), State::Running);
        let counts = DoorbellCounts { parks: 1, blocks: 1, kicks_sent: 1, kicks_redundant: 0 };
        assert_eq!(doorbell.counts(), counts);
    }

    #[test]
    fn work_found_by_the_recheck_is_not_slept_on() {
        let mut doorbell = Doorbell::new().unwrap();
        let ringer = doorbell.ringer();
        assert!(doorbell.park(|| true).is_none());
        assert_eq!(ringer.state(), State::Running);
        // A kick during the re-check is counted as redundant, and its ring does not wake the next park.
        assert!(doorbell.park(|| ringer.published()).is_none());
        assert_eq!(doorbell.counts().kicks_redundant, 1);
        assert_eq!(doorbell.shared.bell.take(), 0);
    }

    #[test]
    fn a_wait_that_ends_by_itself_leaves_no_kick_behind() {
        let mut doorbell = Doorbell::new().unwrap();
        let ringer = doorbell.ringer();
        drop(doorbell.park(|| false));
        assert!(!ringer.published());
        // Kicked after the wait has timed out but before the worker has left the park.
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
        parked.doorbell.shared.state.0.store(State::Notified as u32, Ordering::Relaxed);
        drop(parked);
        assert_eq!(doorbell.rings_owed, 1);
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
