//! The workers of a wire as everyone else reaches them: requests go to whoever owns what they concern.
//!
//! Rule: counters are copied while all workers stand still, so that the sums of [`crate::report`] are exact: each worker that is asked
//! waits until all have come, copies, and waits until all have copied. A worker that does not come, because it has
//! just ended, keeps the others for half a second at most.

use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use crate::classes::Classes;
use crate::report::{Constants, PartReport};
use crate::stats::Snapshot;
use crate::wire::owners;
use crate::worker::{Change, Mailbox, Request};

const GOING_DOWN: &str = "the wire is going down";
const PATIENCE: Duration = Duration::from_millis(500);

/// The workers of one wire.
#[derive(Clone)]
pub struct Crew {
    mailboxes: Vec<Mailbox>,
    constants: Constants,
}

impl Crew {
    /// The workers behind these mailboxes, in order.
    pub fn new(mailboxes: Vec<Mailbox>, constants: Constants) -> Crew {
        Crew { mailboxes, constants }
    }

    /// The interfaces of the wire.
    pub fn ports(&self) -> &[String; 2] {
        &self.constants.ports
    }

    /// Whether an error says that the wire went down while it was asked.
    pub fn is_going_down(error: &str) -> bool {
        error == GOING_DOWN
    }

    /// Copies of all counters.
    pub fn stat(&self) -> Result<Snapshot, String> {
        let together = Arc::new(Standstill::new(self.mailboxes.len()));
        let answers: Vec<Receiver<_>> = self
            .mailboxes
            .iter()
            .map(|worker| {
                let (reply, answer) = channel();
                worker.send(Request::Stat(reply, Arc::clone(&together)));
                answer
            })
            .collect();
        let parts = answers.iter().map(received).map(|answer| answer?).collect::<Result<Vec<_>, _>>()?;
        self.constants.snapshot(parts).map_err(|error| error.to_string())
    }

    /// Changes the limits of a direction (0 or 1).
    pub fn set_limits(&self, direction: usize, change: Change) -> Result<(), String> {
        let (reply, answer) = channel();
        self.owner(direction).send(Request::SetLimits(direction, change, reply));
        received(&answer)?
    }

    /// Shapes both directions by these classes.
    pub fn set_classes(&self, classes: &Arc<Classes>) -> Result<(), String> {
        for worker in &self.mailboxes {
            let (reply, answer) = channel();
            worker.send(Request::SetClasses(Arc::clone(classes), reply));
            received(&answer)?;
        }
        Ok(())
    }

    /// Tells that the interface of an end (0 or 1) went down or came up; false if its worker has ended.
    pub fn note_interface(&self, end: usize, up: bool) -> bool {
        self.owner(end).send(if up { Request::Retake(end) } else { Request::NoteDown(end) })
    }

    /// Makes all workers deliver what is inside, and end.
    pub fn stop(&self) {
        for worker in &self.mailboxes {
            worker.send(Request::Stop);
        }
    }

    /// The last counters, of parts whose workers have ended.
    pub fn last_words(&self, parts: Vec<PartReport>) -> weir_port::Result<Snapshot> {
        self.constants.snapshot(parts)
    }

    fn owner(&self, end: usize) -> &Mailbox {
        &self.mailboxes[owners(self.mailboxes.len())[end]]
    }
}

fn received<T>(answer: &Receiver<T>) -> Result<T, String> {
    answer.recv().map_err(|_| GOING_DOWN.to_string())
}

/// A place where workers wait for each other, twice.
pub struct Standstill {
    workers: usize,
    arrivals: Mutex<usize>,
    changed: Condvar,
}

impl Standstill {
    fn new(workers: usize) -> Standstill {
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
