//! A place where the workers of a datapath stand still, so that their counters are copied as of one moment, or all of them change at once.
//!
//! Rule: nobody copies before all have come, and nobody goes on before all have copied. A change is checked by all before the first
//! changes. A worker that has come has packets to move: where another does not come soon, because it takes its queues over or has just
//! ended, all go on, nothing is copied or changed, and the thread that asked asks again (`crew.rs`).

use std::sync::{Condvar, Mutex};
use std::time::Duration;

/// The longest time that workers wait for each other. A worker that spins or sleeps comes within a fraction of this.
const PATIENCE: Duration = Duration::from_millis(20);

/// The error that a worker did not come.
#[derive(Debug, PartialEq, Eq)]
pub struct Missed;

/// A place where workers wait for each other, twice.
pub struct Standstill {
    workers: usize,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    arrivals: usize,
    /// True if a worker has gone on without the others.
    is_over: bool,
}

impl Standstill {
    /// A place for so many workers.
    pub fn new(workers: usize) -> Standstill {
        Standstill { workers, state: Mutex::default(), changed: Condvar::new() }
    }

    /// The result of `copy` for this worker, made while all stand still.
    pub fn copy<T>(&self, copy: impl FnOnce() -> T) -> Result<T, Missed> {
        self.meet(self.workers)?;
        let copied = copy();
        self.meet(2 * self.workers)?;
        Ok(copied)
    }

    /// Waits after a copy until all have acted on it. The outcome of the copy is the same for all; a worker that is slow here is not waited
    /// for, and acts all the same.
    pub fn leave_together(&self) {
        let _ = self.meet(3 * self.workers);
    }

    fn meet(&self, arrivals: usize) -> Result<(), Missed> {
        let mut state = self.state.lock().expect("nobody panics while counting");
        if state.is_over {
            return Err(Missed);
        }
        state.arrivals += 1;
        self.changed.notify_all();
        let is_incomplete = |state: &mut State| state.arrivals < arrivals && !state.is_over;
        let (mut state, _) = self
            .changed
            .wait_timeout_while(state, PATIENCE, is_incomplete)
            .expect("nobody panics while counting");
        if state.arrivals >= arrivals {
            return Ok(());
        }
        state.is_over = true;
        self.changed.notify_all();
        Err(Missed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[test]
    fn nobody_copies_before_all_stand_still_or_goes_on_before_all_have_copied() {
        for _ in 0..200 {
            let together = Standstill::new(3);
            let (still, copied) = (AtomicU32::new(0), AtomicU32::new(0));
            std::thread::scope(|scope| {
                for _ in 0..3 {
                    scope.spawn(|| {
                        still.fetch_add(1, Ordering::SeqCst);
                        let outcome = together.copy(|| {
                            assert_eq!(still.load(Ordering::SeqCst), 3);
                            copied.fetch_add(1, Ordering::SeqCst);
                        });
                        // On a loaded machine a thread may come late; then nobody says that all stood still.
                        if outcome.is_ok() {
                            assert_eq!(copied.load(Ordering::SeqCst), 3);
                        }
                    });
                }
            });
        }
    }

    #[test]
    fn nobody_changes_before_all_have_checked() {
        for _ in 0..200 {
            let together = Standstill::new(3);
            let (checked, changed) = (AtomicU32::new(0), AtomicU32::new(0));
            std::thread::scope(|scope| {
                for _ in 0..3 {
                    scope.spawn(|| {
                        if together.copy(|| checked.fetch_add(1, Ordering::SeqCst)).is_ok() {
                            assert_eq!(checked.load(Ordering::SeqCst), 3);
                            changed.fetch_add(1, Ordering::SeqCst);
                            together.leave_together();
                        }
                    });
                }
            });
            assert!([0, 3].contains(&changed.load(Ordering::SeqCst)), "all or none");
        }
    }

    #[test]
    fn a_worker_that_does_not_come_keeps_nobody_and_copies_nothing_when_it_comes() {
        let together = Standstill::new(2);
        assert_eq!(together.copy(|| ()), Err(Missed));
        let late = together.copy(|| panic!("the other goes on already"));
        assert_eq!(late, Err(Missed));
    }
}
