//! How long the machine keeps everybody waiting: a thread that wants to run for a moment, often, and notes how late it comes to it.
//!
//! A time that a promise allows is meant of a machine that runs what is ready to run. What this thread, an ordinary one that hardly
//! computes, had to wait for is what any program had to wait for, and is not the wire's.
//!
//! Limits: it counts a share of what was withheld, never more than passed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::Result;
use weir_lab::clock;

const EVERY: Duration = Duration::from_millis(5);
/// What it may withhold, of a limit, before something else is the matter.
const WITHHELD_MAX: u32 = 4;
/// What a sleep may take longer on a machine where nobody waits.
const USUAL: Duration = Duration::from_millis(1);

/// A moment, and what the machine had withheld until then.
#[derive(Clone, Copy, Debug)]
pub struct Since {
    at: Instant,
    withheld: Duration,
}

impl Since {
    /// How much time has passed.
    pub fn elapsed(&self) -> Duration {
        self.at.elapsed()
    }
}

/// See the head of the file.
#[derive(Debug)]
pub struct Patience {
    withheld_ns: Arc<AtomicU64>,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Patience {
    /// Starts to look.
    pub fn start() -> Patience {
        let (withheld_ns, is_over) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (counter, end) = (Arc::clone(&withheld_ns), Arc::clone(&is_over));
        let look = move || {
            while !end.load(Ordering::Relaxed) {
                let before = clock::now();
                thread::sleep(EVERY);
                let late = before.elapsed().saturating_sub(EVERY + USUAL);
                counter.fetch_add(late.as_nanos() as u64, Ordering::Relaxed);
            }
        };
        Patience { withheld_ns, is_over, thread: Some(thread::spawn(look)) }
    }

    /// What the machine has withheld since the start.
    pub fn withheld(&self) -> Duration {
        Duration::from_nanos(self.withheld_ns.load(Ordering::Relaxed))
    }

    /// Now.
    pub fn now(&self) -> Since {
        Since { at: clock::now(), withheld: self.withheld() }
    }

    /// Waits until `condition` holds, for `limit` and what the machine withholds meanwhile; whether it came to hold.
    pub fn wait(&self, limit: Duration, condition: impl FnMut() -> Result<bool>) -> Result<bool> {
        self.wait_since(self.now(), limit, condition)
    }

    /// The same from a moment that may have passed.
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

impl Drop for Patience {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        self.thread.take().map(JoinHandle::join);
    }
}
