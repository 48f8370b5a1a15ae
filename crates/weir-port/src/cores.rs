//! The cores that workers get: those with the fewest workers, of this process and others, the last cores first.
//!
//! Two busy real-time workers on one core take turns of half a millisecond, while other cores are idle. A worker of any process is found in
//! /proc, by the name of its thread and the one core it may run on.
//!
//! Rule: from the look at others' workers until its own are on their cores, a process that chooses has the lock ([`crate::lock`]), so that two
//! that start at once do not choose the same core. Limits: a worker in another PID namespace is not seen and does not count, nor is one that
//! starts at the same moment on a core that was named to it. Who cannot have the lock within a second chooses without.
//!
//! Source: proc_pid_task(5), `Cpus_allowed_list` in proc_pid_status(5).

use std::fs;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use crate::lock::Lock;
use crate::sys;

/// The name of a worker's thread.
pub const WORKER_NAME: &str = "weir-worker";

/// The longest wait for others that choose.
const PATIENCE: Duration = Duration::from_secs(1);

/// The core of a worker that is about to start.
pub struct WorkerCore {
    number: usize,
    /// Kept until each core that was chosen with this one has its worker.
    _choosing: Option<Arc<Lock>>,
}

impl WorkerCore {
    /// The core of this number.
    pub fn named(number: usize) -> WorkerCore {
        WorkerCore { number, _choosing: None }
    }

    /// Cores for workers: `count` of those that this thread may use, in ascending order, or all if there are not as many.
    pub fn choose(count: usize) -> Vec<WorkerCore> {
        let choosing = Lock::take_within(PATIENCE).ok().map(Arc::new);
        let chosen = choose(&sys::allowed_cores(), count, &taken()).into_iter();
        chosen.map(|number| WorkerCore { number, _choosing: choosing.clone() }).collect()
    }

    /// Its number.
    pub fn number(&self) -> usize {
        self.number
    }

    /// Keeps this thread, a worker's, on it.
    ///
    /// # Errors
    /// Those of `sched_setaffinity(2)`.
    pub fn pin(self) -> io::Result<()> {
        sys::pin_thread(self.number)
    }
}

/// Chooses cores: the fewest workers first, then the last cores.
fn choose(allowed: &[usize], count: usize, taken: &[usize]) -> Vec<usize> {
    let workers_on = |core: usize| taken.iter().filter(|&&other| other == core).count();
    let mut cores = allowed.to_vec();
    cores.sort_by_key(|&core| (workers_on(core), std::cmp::Reverse(core)));
    cores.truncate(count);
    cores.sort_unstable();
    cores
}

/// The cores of the workers on this machine, one for each. Threads come and go meanwhile.
fn taken() -> Vec<usize> {
    let threads_of = |pid| fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let threads = sys::processes().flat_map(threads_of).map(|entry| entry.path());
    threads
        .filter(|thread| {
            fs::read_to_string(thread.join("comm")).is_ok_and(|name| name.trim_end() == WORKER_NAME)
        })
        .filter_map(|thread| only_core(&fs::read_to_string(thread.join("status")).ok()?))
        .collect()
}

/// The one core that a thread may run on; `None` if it may run on several.
fn only_core(status: &str) -> Option<usize> {
    status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_core_that_nobody_has() {
        assert_eq!(choose(&[0, 1, 2, 3], 1, &[]), [3]);
        assert_eq!(choose(&[0, 1, 2, 3], 1, &[3]), [2]);
        assert_eq!(choose(&[0, 1, 2, 3], 2, &[3]), [1, 2]);
        assert_eq!(choose(&[0, 1], 1, &[0, 1, 1]), [0], "the fewest, where all have some");
        assert_eq!(choose(&[1, 3], 2, &[3, 3]), [1, 3]);
    }

    #[test]
    fn a_pinned_thread_has_one_core() {
        assert_eq!(only_core("Name:\tweir-worker\nCpus_allowed_list:\t3\nMems_allowed:\t1\n"), Some(3));
        assert_eq!(only_core("Cpus_allowed_list:\t0-3\n"), None);
        assert_eq!(only_core("Name:\tx\n"), None);
    }
}
