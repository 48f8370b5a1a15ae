//! The start line of a path's threads: they wait for each other, so that all begin at once.
//!
//! Rule: nobody begins before all are there; if one cannot come, nobody does.
//!
//! Owner: the thread that starts the others.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crate::clock::now_ns;

/// The line at which threads wait for each other.
pub(super) struct StartLine {
    threads: usize,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Clone, Copy, Default)]
struct State {
    arrived: usize,
    begun_ns: u64,
    is_abandoned: bool,
}

impl StartLine {
    /// A line for so many threads.
    pub fn new(threads: usize) -> StartLine {
        StartLine { threads, state: Mutex::default(), changed: Condvar::new() }
    }

    /// Waits for the others. Returns whether all begin.
    pub fn wait(&self) -> bool {
        let mut state = self.state();
        state.arrived += 1;
        if state.arrived == self.threads {
            state.begun_ns = now_ns();
            self.changed.notify_all();
        }
        let is_undecided = |state: &mut State| state.arrived < self.threads && !state.is_abandoned;
        let state = self.changed.wait_while(state, is_undecided).unwrap_or_else(PoisonError::into_inner);
        !state.is_abandoned
    }

    /// Lets the other threads go, because one will not come; nobody begins.
    pub fn abandon(&self) {
        self.state().is_abandoned = true;
        self.changed.notify_all();
    }

    /// The time when they began.
    pub fn begun_ns(&self) -> u64 {
        self.state().begun_ns
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn all_begin_together_or_nobody_does() {
        let (line, before_ns) = (StartLine::new(2), now_ns());
        assert!(thread::scope(|scope| {
            let other = scope.spawn(|| line.wait());
            line.wait() && other.join().unwrap()
        }));
        assert!((before_ns..=now_ns()).contains(&line.begun_ns()));
        let line = StartLine::new(3);
        assert!(!thread::scope(|scope| {
            let others = [scope.spawn(|| line.wait()), scope.spawn(|| line.wait())];
            line.abandon();
            others.into_iter().any(|other| other.join().unwrap())
        }));
    }
}
