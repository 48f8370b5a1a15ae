//! The reasons of wakes: counts empty wakes, and threads woken more than once by one grant.
//!
//! A *grant* is one act of the path that gives room back: a poll of Weir's, a run of the kernel's qdisc. A wake is
//! *empty* if the first send after it brings nothing into the path. Invariant 5 (ARCHITECTURE.md) asks for 0 empty wakes,
//! and for at most one kick of a thread in a grant.

/// A watch over wakes.
#[derive(Debug)]
pub struct Wakes {
    grant: u64,
    last_grant: Vec<Option<u64>>,
    /// Wakes because of room.
    pub wakes: u64,
    /// Wakes after which no packet was sent.
    pub empty: u64,
    /// Second and later wakes of one thread in one grant.
    pub repeated: u64,
}

impl Wakes {
    /// A watch over `threads` threads.
    pub fn new(threads: usize) -> Wakes {
        Wakes { grant: 0, last_grant: vec![None; threads], wakes: 0, empty: 0, repeated: 0 }
    }

    /// Begins the next grant.
    pub fn begin_grant(&mut self) {
        self.grant += 1;
    }

    /// Notes that `thread` is woken because of the present grant.
    pub fn wake(&mut self, thread: usize) {
        self.wakes += 1;
        if self.last_grant[thread].replace(self.grant) == Some(self.grant) {
            self.repeated += 1;
        }
    }

    /// Notes the outcome of the first send after a wake.
    pub fn first_send(&mut self, accepted: bool) {
        self.empty += u64::from(!accepted);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_what_it_is_told() {
        let mut watch = Wakes::new(2);
        watch.begin_grant();
        watch.wake(0);
        watch.wake(1);
        watch.wake(0);
        watch.begin_grant();
        watch.wake(0);
        watch.first_send(true);
        watch.first_send(false);
        assert_eq!((watch.wakes, watch.empty, watch.repeated), (4, 1, 1));
    }
}
