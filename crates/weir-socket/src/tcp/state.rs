//! The flags of a connection between its application and its worker, beside its bytes.
//!
//! Rule: a side publishes its bytes before the flag that follows them, so a reader that finds the stream ended and then its ring empty has read all.
//! A flag stays set, except the one of no delay.
//!
//! Ordering: `R1` (a flag set) `<-> A1` (found set): bytes that were published before it are there. `R2` (a connection noted) `<-> A2` (taken): the
//! worker that takes the note sees what it is about; `is_there` is set after the bit and taken before it, so no note is left behind.
//!
//! Owner: each flag has one writer, named beside it.

use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};

/// The state of a stream of bytes.
#[derive(Debug, Default)]
pub(crate) struct StreamState {
    flags: AtomicU32,
    /// The error by which the connection failed, until it is told; 0 if none.
    error: AtomicI32,
}

impl StreamState {
    /// Set by the worker: nothing more comes after the bytes in the ring.
    pub(crate) const RECEIVE_ENDED: u32 = 1;
    /// Set by the worker: nothing more is taken.
    pub(crate) const SEND_ENDED: u32 = 1 << 1;
    /// Set by the application: nothing more is sent after the bytes in the ring.
    pub(crate) const SHUT_SEND: u32 = 1 << 2;
    /// Set by the application: nothing is read any more.
    pub(crate) const SHUT_RECEIVE: u32 = 1 << 3;
    /// Set by the application: the last handle has gone.
    pub(crate) const CLOSED: u32 = 1 << 4;
    /// Set by the application: short segments do not wait for an acknowledgement (RFC 9293 section 3.7.4). The one flag that is taken back.
    pub(crate) const NO_DELAY: u32 = 1 << 5;

    /// Sets flags; returns whether one of them is new.
    pub(crate) fn set(&self, flags: u32) -> bool {
        // R1.
        self.flags.fetch_or(flags, Ordering::AcqRel) & flags != flags
    }

    /// Takes flags back.
    pub(crate) fn clear(&self, flags: u32) {
        self.flags.fetch_and(!flags, Ordering::AcqRel);
    }

    /// Returns whether one of these flags is set.
    pub(crate) fn has(&self, flags: u32) -> bool {
        // A1.
        self.flags.load(Ordering::Acquire) & flags != 0
    }

    /// Fails the connection: ends both ways with this error.
    pub(crate) fn fail(&self, error: i32) {
        self.error.store(error, Ordering::Release);
        self.set(StreamState::RECEIVE_ENDED | StreamState::SEND_ENDED);
    }

    /// Returns the error by which the connection failed, once.
    pub(crate) fn take_error(&self) -> Option<i32> {
        Some(self.error.swap(0, Ordering::AcqRel)).filter(|&error| error != 0)
    }
}

/// The connections of a port that have news from their applications: a bit for each.
#[derive(Debug)]
pub(crate) struct News {
    is_there: AtomicBool,
    bits: Box<[AtomicU64]>,
}

impl News {
    pub(crate) fn new(connections: usize) -> News {
        let bits = (0..connections.div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
        News { is_there: AtomicBool::new(false), bits }
    }

    /// Notes that a connection has news.
    pub(crate) fn note(&self, connection: u32) {
        // R2.
        self.bits[connection as usize / 64].fetch_or(1 << (connection % 64), Ordering::Release);
        // Exchanged, not stored: a worker that takes the flag sees the bits of all who noted.
        self.is_there.swap(true, Ordering::AcqRel);
    }

    /// Returns whether a connection has news.
    pub(crate) fn is_there(&self) -> bool {
        self.is_there.load(Ordering::Relaxed)
    }

    /// Takes all news, and calls `each` with the number of each connection that has some.
    pub(crate) fn take(&self, mut each: impl FnMut(u32)) {
        if !self.is_there() {
            return;
        }
        // A2.
        self.is_there.swap(false, Ordering::AcqRel);
        for (word, first) in self.bits.iter().zip((0..).step_by(64)) {
            if word.load(Ordering::Relaxed) == 0 {
                continue;
            }
            let mut bits = word.swap(0, Ordering::AcqRel);
            while bits != 0 {
                each(first + bits.trailing_zeros());
                bits &= bits - 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn news_is_taken_once_and_of_each() {
        let news = News::new(130);
        let taken = || {
            let mut taken = Vec::new();
            news.take(|connection| taken.push(connection));
            taken
        };
        assert!(taken().is_empty());
        [129, 0, 63, 64, 0].into_iter().for_each(|connection| news.note(connection));
        assert!(news.is_there());
        assert_eq!(taken(), [0, 63, 64, 129]);
        assert!(!news.is_there() && taken().is_empty());
    }

    #[test]
    fn an_error_is_told_once_and_ends_both_ways() {
        let state = StreamState::default();
        assert!(state.set(StreamState::SHUT_SEND) && !state.set(StreamState::SHUT_SEND));
        state.fail(libc::ECONNRESET);
        assert!(state.has(StreamState::RECEIVE_ENDED) && state.has(StreamState::SEND_ENDED));
        assert_eq!((state.take_error(), state.take_error()), (Some(libc::ECONNRESET), None));
    }
}
