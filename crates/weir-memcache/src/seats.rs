//! The number of clients that there may be at once over TCP, and the counts of those that came.
//!
//! Rule: a client has a seat from when it is accepted until its connection is closed. A client that finds none is told [`TOO_MANY`] and
//! closed, which is counted, as memcached does it (`maxconns_fast`); the listener goes on.
//!
//! Ordering: none is needed: a seat guards nothing, and its number alone is counted.
//!
//! Owner: the server; a seat is its connection's.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The answer to a client that finds no seat.
pub const TOO_MANY: &[u8] = b"ERROR Too many open connections\r\n";

/// The numbers of clients that there may be, are and were.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ConnectionCounts {
    /// The most that there may be.
    pub max: u64,
    /// That there are.
    pub current: u64,
    /// That there were, those included.
    pub total: u64,
    /// That found no seat.
    pub rejected: u64,
}

/// See the head of the file.
#[derive(Debug)]
pub struct Seats {
    max: u64,
    current: AtomicU64,
    total: AtomicU64,
    rejected: AtomicU64,
}

/// A client's seat, until it is dropped.
#[derive(Debug)]
pub struct Seat(Arc<Seats>);

impl Seats {
    /// Seats for so many clients.
    pub fn new(max: u16) -> Arc<Seats> {
        let none = AtomicU64::default;
        Arc::new(Seats { max: max.into(), current: none(), total: none(), rejected: none() })
    }

    /// Takes a seat, if one is free. A client without a seat is counted.
    pub fn take(self: &Arc<Seats>) -> Option<Seat> {
        let more = |current| (current < self.max).then_some(current + 1);
        let taken = self.current.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        let count = if taken.is_ok() { &self.total } else { &self.rejected };
        count.fetch_add(1, Ordering::Relaxed);
        taken.is_ok().then(|| Seat(Arc::clone(self)))
    }

    /// Counts a client that was rejected for another reason.
    pub fn reject(&self) {
        self.rejected.fetch_add(1, Ordering::Relaxed);
    }

    /// The counts of all clients.
    pub fn counts(&self) -> ConnectionCounts {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        ConnectionCounts {
            max: self.max,
            current: of(&self.current),
            total: of(&self.total),
            rejected: of(&self.rejected),
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.current.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seat_is_one_clients_until_it_goes() {
        let seats = Seats::new(2);
        let (first, _second) = (seats.take().unwrap(), seats.take().unwrap());
        assert!(seats.take().is_none());
        drop(first);
        let _third = seats.take().unwrap();
        assert!(seats.take().is_none());
        let counts = ConnectionCounts { max: 2, current: 2, total: 3, rejected: 2 };
        assert_eq!(seats.counts(), counts);
    }
}
