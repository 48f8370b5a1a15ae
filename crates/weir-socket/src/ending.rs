//! What ends with a stack: the threads of its workers, the one that answers for it, and then the guardian, which puts the interface back.
//!
//! Owner: one thread at a time, by a lock of its own: who drives a worker may need the stack's while another thread waits here for that
//! worker's end.

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
    /// Of these threads.
    pub(crate) fn new(threads: Vec<JoinHandle<io::Result<()>>>) -> Ending {
        Ending(Mutex::new(Rest { threads, answering: None, guardian: None }))
    }

    /// Keeps the guardian until the threads have ended.
    pub(crate) fn keep(&self, guardian: Guardian) {
        self.lock().guardian = Some(guardian);
    }

    /// Somebody answers for the stack until the threads have ended.
    pub(crate) fn answer(&self, answering: Answering) {
        self.lock().answering = Some(answering);
    }

    /// The threads are about to be told to end.
    pub(crate) fn announce(&self) {
        self.lock().answering.iter().for_each(Answering::announce_end);
    }

    fn lock(&self) -> MutexGuard<'_, Rest> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the threads, which were told to end, does `then`, and has everything put back.
    ///
    /// # Errors
    /// What ended a worker before, or could not be put back.
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
