//! A task that waits for a direction of a socket, where no thread does.
//!
//! Rule: a task that waits says so, looks once more, and sleeps (ARCHITECTURE.md, invariant 3). A task that finds something by that look says that it
//! waits no more. A wake that is under way then is late, and counts as none in vain.
//!
//! Ordering: a full fence on both sides, between saying and looking here (`F3`) and between publishing and looking there (that of
//! `weir_ring::doorbell`): one of both sees the other. Owner: the holder of the direction's lock registers; the worker wakes. The lock inside is held
//! for no longer than it takes to store a waker.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::task::Waker;

/// See the head of the file.
#[derive(Debug, Default)]
pub(crate) struct Task {
    is_waiting: AtomicBool,
    waker: Mutex<Option<Waker>>,
}

impl Task {
    /// Wakes the task if it waits.
    pub(crate) fn wake(&self) {
        if self.is_waiting.load(Ordering::Relaxed) && self.is_waiting.swap(false, Ordering::AcqRel) {
            let waker = self.waker.lock().unwrap_or_else(PoisonError::into_inner).take();
            waker.into_iter().for_each(Waker::wake);
        }
    }

    /// Notes that the task waits from now on.
    #[cfg(feature = "tokio")]
    fn wait(&self, waker: &Waker) {
        *self.waker.lock().unwrap_or_else(PoisonError::into_inner) = Some(waker.clone());
        self.is_waiting.store(true, Ordering::Release);
        // F3.
        std::sync::atomic::fence(Ordering::SeqCst);
    }

    /// Notes that the task waits no more; returns whether nobody was about to wake it.
    #[cfg(feature = "tokio")]
    fn stop(&self) -> bool {
        self.is_waiting.swap(false, Ordering::AcqRel)
    }
}

/// The state of a task's waits.
#[cfg(feature = "tokio")]
#[derive(Debug, Default)]
pub(crate) struct Waits {
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
        task.wait(waker);
        if there_is() {
            self.is_late |= !task.stop();
            return Asked::Ready(was_woken);
        }
        self.is_registered = true;
        let is_in_vain = was_woken && !std::mem::take(&mut self.is_late);
        Asked::Pending(is_in_vain)
    }
}
