//! Processor time, by the time that is left over: a loop of the lowest scheduling class on each processor reads the clock without end, and
//! two readings that are close together had nothing between them. Time that is not the loop's was another program's.
//!
//! The kernel's own count of busy time is one of samples: it looks 250 times a second which program runs, so of a turn of five seconds that
//! takes a tenth of a processor it sees a hundred samples, which are off by a tenth. The loop counts interrupts too, to the fraction of a
//! microsecond, and while it runs no processor of a virtual machine halts, so nothing is measured of how late a host wakes one.
//!
//! Limits: time that a host takes away counts as busy, so figures are compared that take turns. Two loops at once count half each. A clock
//! that takes long to read leaves no two readings close together, and is refused.
//!
//! Source: netperf's manual, "CPU utilization", the looper method; sched(7), `SCHED_IDLE`.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, ensure};

use crate::clock::{now, set_policy};
use crate::machine::{cores, pin};

/// Two readings of the clock that are further apart had something between them; a reading takes about 30 ns.
const NOTHING_BETWEEN: Duration = Duration::from_nanos(500);

/// Half of the readings of a clock that is good enough are closer together.
const CLOSE: Duration = Duration::from_nanos(250);
const CLOCK_NAME: &str = "/sys/devices/system/clocksource/clocksource0/current_clocksource";

/// Fails where the clock takes so long to read that all time would count as busy.
pub fn require_quick_clock() -> Result<()> {
    let mut last = now();
    let gaps = (0..1000).map(|_| {
        let this = now();
        this - std::mem::replace(&mut last, this)
    });
    let name = fs::read_to_string(CLOCK_NAME).unwrap_or_default();
    ensure!(is_quick(gaps.collect()), "the clock `{}` of this machine takes too long to read", name.trim());
    Ok(())
}

fn is_quick(mut gaps: Vec<Duration>) -> bool {
    gaps.sort();
    gaps[gaps.len() / 2] < CLOSE
}

/// Counts the time that nobody wanted, from its making until it is dropped.
#[derive(Debug)]
pub struct Looper {
    loops: Vec<Arc<Loop>>,
    threads: Vec<JoinHandle<()>>,
}

/// Processor time at one moment; the difference of two is the time that was used between them.
#[derive(Debug, Clone, Copy)]
pub struct Reading {
    at: Instant,
    idle_ns: u64,
    processors: usize,
}

#[derive(Debug, Default)]
struct Loop {
    idle_ns: AtomicU64,
    is_over: AtomicBool,
}

impl Looper {
    /// A loop on each processor that this process may use.
    ///
    /// # Errors
    /// Those of [`require_quick_clock`], of starting threads, and of the kernel's scheduler.
    pub fn start() -> Result<Looper> {
        require_quick_clock()?;
        let mut looper = Looper { loops: Vec::new(), threads: Vec::new() };
        for core in cores()? {
            let mine = Arc::new(Loop::default());
            looper.loops.push(Arc::clone(&mine));
            let (tell, told) = std::sync::mpsc::channel();
            looper.threads.push(thread::Builder::new().name(format!("looper {core}")).spawn(move || {
                let ready = pin(core).and_then(|()| Ok(set_policy(libc::SCHED_IDLE, 0)?));
                let is_ready = ready.is_ok();
                // The thread that started it waits for this word.
                let _ = tell.send(ready);
                if is_ready {
                    mine.run();
                }
            })?);
            told.recv().map_err(|_| anyhow!("a loop ended at once"))??;
        }
        Ok(looper)
    }

    /// The time that was left over until now.
    pub fn read(&self) -> Reading {
        let idle_ns = self.loops.iter().map(|each| each.idle_ns.load(Ordering::Relaxed)).sum();
        Reading { at: now(), idle_ns, processors: self.loops.len() }
    }
}

impl Drop for Looper {
    fn drop(&mut self) {
        for each in &self.loops {
            each.is_over.store(true, Ordering::Relaxed);
        }
        for thread in self.threads.drain(..) {
            // A loop does not panic.
            let _ = thread.join();
        }
    }
}

impl Reading {
    /// Seconds that all processors together were busy since `before`.
    pub fn busy_s_since(&self, before: &Reading) -> f64 {
        let all_s = self.at.duration_since(before.at).as_secs_f64() * self.processors as f64;
        all_s - (self.idle_ns - before.idle_ns) as f64 / 1e9
    }
}

impl Loop {
    fn run(&self) {
        let mut last = now();
        while !self.is_over.load(Ordering::Relaxed) {
            let this = now();
            let apart = this - last;
            if apart < NOTHING_BETWEEN {
                self.idle_ns.fetch_add(apart.as_nanos() as u64, Ordering::Relaxed);
            }
            last = this;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_runs_is_counted_as_the_kernel_counts_it() {
        let looper = Looper::start().unwrap();
        let before = looper.read();
        let started = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        let used_s = || {
            let until = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
            (until.tv_sec - started.tv_sec) as f64 + (until.tv_nsec - started.tv_nsec) as f64 / 1e9
        };
        while used_s() < 0.2 {}
        // Others run beside: the time that this thread used is the least.
        let busy_s = looper.read().busy_s_since(&before);
        assert!(busy_s > 0.19, "{busy_s}");
    }

    #[test]
    fn a_clock_of_which_most_readings_are_far_apart_is_refused() {
        let gaps = |ns: [u64; 3]| ns.map(Duration::from_nanos).to_vec();
        assert!(is_quick(gaps([30, 9_000_000, 30])));
        // hpet; then one whose readings are near the bound of the loop.
        assert!(!is_quick(gaps([1_400, 30, 1_500])) && !is_quick(gaps([400, 30, 600])));
    }

    #[test]
    fn what_is_read_twice_is_never_less() {
        let looper = Looper::start().unwrap();
        let (first, second) = (looper.read(), looper.read());
        assert!(second.busy_s_since(&first) > -0.01);
    }
}
