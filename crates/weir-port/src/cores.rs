//! The cores that workers get: those with the fewest workers, of this process and others, the last cores first.
//!
//! Two busy real-time workers on one core take turns of half a millisecond, while other cores are idle. A worker of any process is found in
//! /proc, by the name of its thread and the cores it may run on. Limits: a worker in another PID namespace is not seen and does not count, nor
//! is one of a process that is starting at the same moment.
//!
//! Source: proc_pid_task(5), `Cpus_allowed_list` in proc_pid_status(5).

use std::fs;
use std::path::Path;

/// The name of a worker's thread.
pub const WORKER_NAME: &str = "weir-worker";

/// The cores for workers: `count` of `allowed`, in ascending order, or all if there are not as many.
pub fn for_workers(allowed: &[usize], count: usize) -> Vec<usize> {
    choose(allowed, count, &taken(Path::new("/proc")))
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
fn taken(proc: &Path) -> Vec<usize> {
    let folders = |path: &Path| fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path());
    let is_number = |path: &Path| {
        path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.parse::<u32>().is_ok())
    };
    let processes = folders(proc).filter(|path| is_number(path));
    let threads = processes.flat_map(|process| folders(&process.join("task")).collect::<Vec<_>>());
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
