//! The time that calls of a socket may wait: for ever, for a set time, or not at all.
//!
//! Owner: any thread.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use weir_run::clock::now_ns;

/// The timeout of calls that wait for ever.
const NEVER: u64 = 0;

/// See the head of the file.
#[derive(Debug, Default)]
pub(crate) struct Blocking {
    is_nonblocking: AtomicBool,
    pub(crate) read: Timeout,
    pub(crate) write: Timeout,
}

/// The longest wait of calls of one direction, in nanoseconds.
#[derive(Debug, Default)]
pub(crate) struct Timeout(AtomicU64);

/// The end of a wait that has begun, or is about to begin.
#[derive(Default)]
pub(crate) struct Deadline(Option<Option<u64>>);

impl Blocking {
    pub(crate) fn set_nonblocking(&self, is_nonblocking: bool) {
        self.is_nonblocking.store(is_nonblocking, Ordering::Relaxed);
    }

    /// # Errors
    /// `WouldBlock` if calls do not wait.
    pub(crate) fn may_wait(&self) -> io::Result<()> {
        match self.is_nonblocking.load(Ordering::Relaxed) {
            true => Err(io::ErrorKind::WouldBlock.into()),
            false => Ok(()),
        }
    }
}

impl Timeout {
    pub(crate) fn get(&self) -> Option<Duration> {
        Some(self.0.load(Ordering::Relaxed)).filter(|&ns| ns != NEVER).map(Duration::from_nanos)
    }

    /// # Errors
    /// `InvalidInput` if the timeout is zero.
    pub(crate) fn set(&self, timeout: Option<Duration>) -> io::Result<()> {
        if timeout == Some(Duration::ZERO) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "cannot set a 0 duration timeout"));
        }
        let ns = timeout.map_or(NEVER, |timeout| u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX));
        self.0.store(ns, Ordering::Relaxed);
        Ok(())
    }
}

impl Deadline {
    /// The end of a wait of so long from now.
    pub(crate) fn after(timeout: Option<Duration>) -> Deadline {
        Deadline(Some(deadline(timeout)))
    }

    /// The end of the wait, in nanoseconds of the clock, if it is not for ever. The wait begins now if it has not begun.
    pub(crate) fn of(&mut self, timeout: &Timeout) -> Option<u64> {
        *self.0.get_or_insert_with(|| deadline(timeout.get()))
    }
}

/// The time after so long from now, if it is not for ever.
pub(crate) fn deadline(timeout: Option<Duration>) -> Option<u64> {
    timeout.map(|timeout| now_ns().saturating_add(u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX)))
}
