//! The worker's ways to wake an application that waits at a socket, be it a thread or a task.
//!
//! Owner: the worker's half of the rings ([`crate::port::Open`]), and listeners.

use std::sync::Arc;

use weir_ring::doorbell::Ringer;

use crate::task::Task;

/// The ringers of the thread or task that waits to send, and of the one that waits to receive. They ring when they are dropped, so that a waiter
/// finds that the worker has gone.
#[derive(Debug)]
pub(crate) struct Ringers {
    pub(crate) sender: OnDrop,
    pub(crate) receiver: OnDrop,
}

/// Wakes a waiting thread or task; also when it is dropped.
pub(crate) struct OnDrop {
    pub(crate) ringer: Ringer,
    pub(crate) task: Arc<Task>,
}

impl OnDrop {
    /// Wakes the waiter, after something was published.
    pub(crate) fn published(&self) {
        self.published_unless(|| false);
    }

    /// Wakes the waiter, after something was published, unless `is_known`: the waiter has noted that it has seen it.
    pub(crate) fn published_unless(&self, mut is_known: impl FnMut() -> bool) {
        // The ringer has a full fence between the publishing and its look at the waiter, the task included.
        self.ringer.published_unless(&mut is_known);
        self.task.wake_unless(is_known);
    }
}

impl std::fmt::Debug for OnDrop {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("OnDrop")
    }
}

impl Drop for OnDrop {
    fn drop(&mut self) {
        self.published();
    }
}
