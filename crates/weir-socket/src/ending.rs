//! The end of a stack: first the threads of its workers, then the thread that answers for it, and last the guardian, which puts the interface back.
//!
//! Owner: one thread at a time, by a lock of its own: a thread that drives a worker may need the stack's lock while another thread waits here for
//! that worker's end.

use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use weir_run::guardian::Guardian;

use crate::responder::Answering;

/// See the head of the file.
pub(crate) struct Ending(Mutex<Rest>);

struct Rest {
    threads: Vec<JoinHandle<io::Result<()>>>,
    answering: Option<Answering>,
    guardian: Option<Guardian>,
}

impl Ending {
    /// The end of a stack with these threads.
    pub(crate) fn new(threads: Vec<JoinHandle<io::Result<()>>>) -> Ending {
        Ending(Mutex::new(Rest { threads, answering: None, guardian: None }))
    }

    /// Keeps the guardian until the threads have ended.
    pub(crate) fn keep(&self, guardian: Guardian) {
        self.lock().guardian = Some(guardian);
    }

    /// Keeps the thread that answers for the stack until the workers' threads have ended.
    pub(crate) fn answer(&self, answering: Answering) {
        self.lock().answering = Some(answering);
    }

    /// Says that the threads are about to be told to end.
    pub(crate) fn announce(&self) {
        self.lock().answering.iter().for_each(Answering::announce_end);
    }

    fn lock(&self) -> MutexGuard<'_, Rest> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the threads, which were told to end, does `then`, and has everything put back.
    ///
    /// # Errors
    /// The error that ended a worker before, or that kept something from being put back.
    pub(crate) fn wait(&self, then: impl FnOnce()) -> io::Result<()> {
        let mut rest = self.lock();
        let mut result = Ok(());
        for thread in rest.threads.drain(..) {
            let ended =
                thread.join().unwrap_or_else(|_| Err(io::Error::other("a worker of the path panicked")));
            result = result.and(ended);
        }
        rest.answering.take().into_iter().for_each(Answering::end);
        then();
        if let Some(guardian) = rest.guardian.take() {
            let faults = guardian.finish();
            if !faults.is_empty() {
                result = result.and(Err(io::Error::other(faults.join("; "))));
            }
        }
        result
    }
}
