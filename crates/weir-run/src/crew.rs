//! The workers of a wire as everyone else reaches them: requests go to whoever owns what they concern.
//!
//! Rule: counters are copied while all workers stand still (`standstill.rs`), so that the sums of [`crate::report`] are exact.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};

use weir_port::view::Pair;

use crate::classes::Classes;
use crate::report::{Constants, PartReport};
use crate::standstill::{GOING_DOWN, Standstill};
use crate::stats::Snapshot;
use crate::wire::owners;
use crate::worker::{Change, Mailbox, Request};

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
        Ok(self.constants.snapshot(parts))
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

    /// Tells that the interface of an end (0 or 1), or its other end, has changed what a worker knows of it.
    pub fn follow(&self, end: usize, pair: Pair) -> bool {
        self.owner(end).send(Request::Follow(end, Box::new(pair)))
    }

    /// Makes all workers deliver what is inside, and end.
    pub fn stop(&self) {
        for worker in &self.mailboxes {
            worker.send(Request::Stop);
        }
    }

    /// The last counters, of parts whose workers have ended.
    pub fn last_words(&self, parts: Vec<PartReport>) -> Snapshot {
        self.constants.snapshot(parts)
    }

    fn owner(&self, end: usize) -> &Mailbox {
        &self.mailboxes[owners(self.mailboxes.len())[end]]
    }
}

fn received<T>(answer: &Receiver<T>) -> Result<T, String> {
    answer.recv().map_err(|_| GOING_DOWN.to_string())
}
