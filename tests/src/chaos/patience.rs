//! The time for which the machine keeps the wire waiting: the time in which its processes could have run and had no processor.
//!
//! A time that a promise allows is meant of a machine that runs each thread that is ready to run. The scheduler counts the time that a
//! thread of the wire's spent ready and not running; beside it stands the time by which a thread of ours, which wants to run for a moment,
//! often, came late.
//!
//! Source: `Documentation/scheduler/sched-stats.rst`, `/proc/PID/schedstat`. Limits: a limit is extended by a few times itself at most, so
//! that something which stands still is a failure on any machine.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::Result;
use weir_lab::clock;

const EVERY: Duration = Duration::from_millis(10);
/// The most that the machine may withhold, in times of a limit, before something else is the matter.
const WITHHELD_MAX: u32 = 4;
/// The time by which a sleep may be longer on a machine where nobody waits.
const USUAL: Duration = Duration::from_millis(1);

/// A moment, and the time that the machine had withheld until then.
#[derive(Clone, Copy, Debug)]
pub struct Since {
    at: Instant,
    withheld: Duration,
}

impl Since {
    /// The time that has passed.
    pub fn elapsed(&self) -> Duration {
        self.at.elapsed()
    }
}

/// The measure of the time that the machine withholds.
#[derive(Debug)]
pub struct Patience {
    withheld_ns: Arc<AtomicU64>,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Patience {
    /// Starts to look, also at the processes that are listed in a file.
    pub fn start(processes: PathBuf) -> Patience {
        let (withheld_ns, is_over) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (counter, end) = (Arc::clone(&withheld_ns), Arc::clone(&is_over));
        let look = move || {
            let mut waited = BTreeMap::new();
            while !end.load(Ordering::Relaxed) {
                let before = clock::now();
                thread::sleep(EVERY);
                let late = before.elapsed().saturating_sub(EVERY + USUAL);
                let more = waited_more(&processes, &mut waited);
                counter.fetch_add(late.as_nanos() as u64 + more, Ordering::Relaxed);
            }
        };
        Patience { withheld_ns, is_over, thread: Some(thread::spawn(look)) }
    }

    /// The time that the machine has withheld since the start.
    pub fn withheld(&self) -> Duration {
        Duration::from_nanos(self.withheld_ns.load(Ordering::Relaxed))
    }

    /// Now.
    pub fn now(&self) -> Since {
        Since { at: clock::now(), withheld: self.withheld() }
    }

    /// Waits until `condition` holds, for `limit` and the time that the machine withholds meanwhile. Returns whether it came to hold.
    pub fn wait(&self, limit: Duration, condition: impl FnMut() -> Result<bool>) -> Result<bool> {
        self.wait_since(self.now(), limit, condition)
    }

    /// Waits so from a moment that may have passed.
    pub fn wait_since(
        &self,
        since: Since,
        limit: Duration,
        mut condition: impl FnMut() -> Result<bool>,
    ) -> Result<bool> {
        loop {
            if condition()? {
                return Ok(true);
            }
            weir_lab::interrupt::check()?;
            if since.elapsed() > limit + (self.withheld() - since.withheld).min(limit * WITHHELD_MAX) {
                return Ok(false);
            }
            thread::sleep(Duration::from_millis(2));
        }
    }
}

/// The nanoseconds that the threads of the listed processes have waited longer than `before`, which is brought up to date.
fn waited_more(processes: &Path, before: &mut BTreeMap<PathBuf, u64>) -> u64 {
    let listed = fs::read_to_string(processes).unwrap_or_default();
    let tasks =
        listed.lines().filter_map(|id| fs::read_dir(format!("/proc/{id}/task")).ok()).flatten().flatten();
    let mut now = BTreeMap::new();
    for task in tasks.map(|task| task.path()) {
        // A thread that has just ended has waited as long as it was last seen to.
        let Ok(text) = fs::read_to_string(task.join("schedstat")) else { continue };
        if let Some(waited_ns) = text.split_whitespace().nth(1).and_then(|word| word.parse().ok()) {
            now.insert(task, waited_ns);
        }
    }
    let more = now
        .iter()
        .map(|(task, ns): (_, &u64)| ns.saturating_sub(before.get(task).copied().unwrap_or(0)))
        .sum();
    *before = now;
    more
}

impl Drop for Patience {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        self.thread.take().map(JoinHandle::join);
    }
}
