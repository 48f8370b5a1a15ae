//! A place where the workers of a wire stand still, so that their counters are copied as of one moment.
//!
//! Rule: nobody copies before all have come, and nobody goes on before all have copied. A worker that does not come, because it has
//! just ended, keeps the others for half a second at most.

use std::sync::{Condvar, Mutex};
use std::time::Duration;

/// What whoever asked is told when a worker did not come.
pub const GOING_DOWN: &str = "the wire is going down";
const PATIENCE: Duration = Duration::from_millis(500);

/// A place where workers wait for each other, twice.
pub struct Standstill {
    workers: usize,
    arrivals: Mutex<usize>,
    changed: Condvar,
}

impl Standstill {
    /// For so many workers.
    pub fn new(workers: usize) -> Standstill {
        Standstill { workers, arrivals: Mutex::new(0), changed: Condvar::new() }
    }

    /// What `copy` makes of this worker while all stand still; an error if one does not come.
    pub fn copy<T>(&self, copy: impl FnOnce() -> T) -> Result<T, String> {
        self.meet(self.workers)?;
        let copied = copy();
        self.meet(2 * self.workers)?;
        Ok(copied)
    }

    fn meet(&self, arrivals: usize) -> Result<(), String> {
        let mut arrived = self.arrivals.lock().expect("nobody panics while counting");
        *arrived += 1;
        self.changed.notify_all();
        let waited = self.changed.wait_timeout_while(arrived, PATIENCE, |arrived| *arrived < arrivals);
        match waited.expect("nobody panics while counting").1.timed_out() {
            true => Err(GOING_DOWN.into()),
            false => Ok(()),
        }
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
                        together
                            .copy(|| {
                                assert_eq!(still.load(Ordering::SeqCst), 3);
                                copied.fetch_add(1, Ordering::SeqCst);
                            })
                            .unwrap();
                        assert_eq!(copied.load(Ordering::SeqCst), 3);
                    });
                }
            });
        }
    }

    #[test]
    fn a_worker_that_does_not_come_keeps_nobody_for_ever() {
        assert_eq!(Standstill::new(2).copy(|| ()), Err(GOING_DOWN.into()));
    }
}
