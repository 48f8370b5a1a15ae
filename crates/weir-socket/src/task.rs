//! A task that waits for a direction of a socket, where no thread does.
//!
//! Rule: a task that waits says so, looks once more, and sleeps (ARCHITECTURE.md, invariant 3). A task that finds something by that look says that it
//! waits no more. A wake that is under way then is late, and counts as none in vain.
//!
//! A worker that is slow to look may find a task that has used what was published and waits again. It leaves that task alone, which has noted what it
//! has seen. Each registration has a number of its own, so a worker that has looked at the note of one takes no other.
//!
//! Ordering: a full fence on both sides, between saying and looking here (`F3`) and between publishing and looking there (that of
//! `weir_ring::doorbell`): one of both sees the other. `R5` (registered) `<-> A5` (found registered): what the task noted before is seen. Owner: the
//! holder of the direction's lock registers; the worker wakes. The lock inside is held for no longer than it takes to store a waker.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::task::Waker;

/// See the head of the file.
#[derive(Debug, Default)]
pub(crate) struct Task {
    /// The number of the task's registration while it waits, and otherwise [`NONE`].
    registration: AtomicU64,
    waker: Mutex<Option<Waker>>,
}

/// The number of no registration.
const NONE: u64 = 0;

impl Task {
    /// Wakes the task if it waits, unless `is_known`: the task has noted that it has seen what the wake is for.
    pub(crate) fn wake_unless(&self, mut is_known: impl FnMut() -> bool) {
        // A5, from R5.
        let mut seen = self.registration.load(Ordering::Acquire);
        while seen != NONE && !is_known() {
            match self.registration.compare_exchange(seen, NONE, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => {
                    let waker = self.waker.lock().unwrap_or_else(PoisonError::into_inner).take();
                    return waker.into_iter().for_each(Waker::wake);
                }
                // Another worker was faster, or the task has gone on, and may wait again.
                Err(now) => seen = now,
            }
        }
    }

    /// Notes that the task waits from now on.
    #[cfg(feature = "tokio")]
    fn wait(&self, number: u64, waker: &Waker) {
        *self.waker.lock().unwrap_or_else(PoisonError::into_inner) = Some(waker.clone());
        // R5.
        self.registration.store(number, Ordering::Release);
        // F3.
        std::sync::atomic::fence(Ordering::SeqCst);
    }

    /// Notes that the task waits no more; returns whether nobody was about to wake it.
    #[cfg(feature = "tokio")]
    fn stop(&self) -> bool {
        self.registration.swap(NONE, Ordering::AcqRel) != NONE
    }
}

/// The state of a task's waits.
#[cfg(feature = "tokio")]
#[derive(Debug, Default)]
pub(crate) struct Waits {
    /// The number of the last registration.
    number: u64,
    /// True if the task was registered when it was last asked.
    is_registered: bool,
    /// True if a wake is under way that is for nothing.
    is_late: bool,
}

/// The answer to a task that asks whether there is something.
#[cfg(feature = "tokio")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    /// There is something; whether a wake has said so.
    Ready(bool),
    /// There is nothing; whether a wake was in vain.
    Pending(bool),
}

#[cfg(feature = "tokio")]
impl Waits {
    /// Asks whether there is something, and registers the task if there is not.
    pub(crate) fn ask(&mut self, task: &Task, waker: &Waker, mut there_is: impl FnMut() -> bool) -> Asked {
        // The task was woken if somebody has taken its registration.
        let was_woken = std::mem::take(&mut self.is_registered) && !task.stop();
        if there_is() {
            return Asked::Ready(was_woken);
        }
        self.number += 1;
        task.wait(self.number, waker);
        if there_is() {
            self.is_late |= !task.stop();
            return Asked::Ready(was_woken);
        }
        self.is_registered = true;
        let is_in_vain = was_woken && !std::mem::take(&mut self.is_late);
        Asked::Pending(is_in_vain)
    }
}

#[cfg(all(test, feature = "tokio"))]
mod tests {
    use std::sync::Arc;
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Wakes(AtomicU64);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_task_that_has_seen_what_a_wake_is_for_is_left_alone() {
        let (task, mut waits, wakes) = (Task::default(), Waits::default(), Arc::<Wakes>::default());
        let waker = Waker::from(Arc::clone(&wakes));
        assert_eq!(waits.ask(&task, &waker, || false), Asked::Pending(false));
        task.wake_unless(|| true);
        // The task goes on and waits again, with a note, while the worker looks at the note of before.
        let mut is_noted = false;
        task.wake_unless(|| {
            let was_noted = std::mem::replace(&mut is_noted, true);
            if !was_noted {
                assert_eq!(waits.ask(&task, &waker, || true), Asked::Ready(false));
                assert_eq!(waits.ask(&task, &waker, || false), Asked::Pending(false));
            }
            was_noted
        });
        assert_eq!(wakes.0.load(Ordering::Relaxed), 0);
        task.wake_unless(|| false);
        assert_eq!(wakes.0.load(Ordering::Relaxed), 1);
        assert_eq!(
            waits.ask(&task, &waker, || false),
            Asked::Pending(true),
            "somebody has woken it for nothing"
        );
    }
}
