//! The machine that a figure was measured on, and how fast its cores talk to each other.
//!
//! Two quantities decide what a hand-off between cores can cost: the round trip of one cache line between two
//! cores (`cache_line_rtt_ns`), and the time from writing an eventfd to running in the thread that was blocked
//! on it (`eventfd_wake_us`, half a round trip). Both are medians, taken anew for each report, because virtual
//! machines differ by a factor of ten and change under load.
//!
//! Ordering: `R0 <-> A0` and `R1 <-> A1` carry the cache line's turn number there and back.

use std::fs;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use anyhow::{Context, Result};
use rustix::event::{EventfdFlags, eventfd};
use rustix::param::clock_ticks_per_second;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde_json::{Value, json};

use crate::clock::now;

/// The machine of a report.
#[derive(Debug, Clone)]
pub struct Machine {
    /// Kernel release.
    pub kernel: String,
    /// Cores this process may use.
    pub cores: usize,
    /// Processor name.
    pub cpu: String,
    /// Round trip of a cache line between two cores, in nanoseconds.
    pub cache_line_rtt_ns: Option<f64>,
    /// The time from writing an eventfd to running in the thread that slept on it, in microseconds.
    pub eventfd_wake_us: Option<f64>,
}

impl Machine {
    /// Looks at this machine and measures it; takes about half a second.
    pub fn measure() -> Result<Machine> {
        const BATCHES: u64 = 41;
        let cores = cores()?;
        let pair = cores.get(0..2).map(|pair| (pair[0], pair[1]));
        let cpuinfo = fs::read_to_string("/proc/cpuinfo")?;
        Ok(Machine {
            kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
            cores: cores.len(),
            cpu: cpu_name(&cpuinfo).unwrap_or("unknown").to_string(),
            cache_line_rtt_ns: pair.map(|(a, b)| cache_line_rtt_ns(a, b, BATCHES)).transpose()?,
            eventfd_wake_us: pair.map(|(a, b)| eventfd_wake_us(a, b)).transpose()?,
        })
    }

    /// The `machine` object of a report.
    pub fn to_json(&self) -> Value {
        json!({
            "kernel": self.kernel,
            "cores": self.cores,
            "cpu": self.cpu,
            "cache_line_rtt_ns": self.cache_line_rtt_ns.map(f64::round),
            "eventfd_wake_us": self.eventfd_wake_us.map(|us| (us * 10.0).round() / 10.0),
        })
    }

    /// One line for people.
    pub fn to_line(&self) -> String {
        let mut line = format!("Linux {}, {} cores of {}", self.kernel, self.cores, self.cpu);
        if let (Some(rtt_ns), Some(wake_us)) = (self.cache_line_rtt_ns, self.eventfd_wake_us) {
            line += &format!("; cache line there and back {rtt_ns:.0} ns, eventfd wake {wake_us:.1} us");
        }
        line
    }
}

/// CPU seconds that all cores together have been busy since boot. Stolen and idle time are not counted, nor that of niced programs: no
/// measured program is niced, and `scripts/awake.sh` is.
pub fn busy_seconds() -> Result<f64> {
    let stat = fs::read_to_string("/proc/stat")?;
    let ticks = busy_ticks(&stat).context("/proc/stat is not understood")?;
    Ok(ticks as f64 / clock_ticks_per_second() as f64)
}

/// CPU seconds that one process and its ended, waited-for children have used.
pub fn process_seconds(id: u32) -> Result<f64> {
    let stat = fs::read_to_string(format!("/proc/{id}/stat"))?;
    let ticks = process_ticks(&stat).with_context(|| format!("/proc/{id}/stat is not understood"))?;
    Ok(ticks as f64 / clock_ticks_per_second() as f64)
}

/// `cpu user nice system idle iowait irq softirq steal guest guest_nice`; guest time is part of user time.
fn busy_ticks(stat: &str) -> Option<u64> {
    let line = stat.lines().find(|line| line.starts_with("cpu "))?;
    let ticks: Vec<u64> = line.split_whitespace().skip(1).map_while(|word| word.parse().ok()).collect();
    (ticks.len() >= 7).then(|| ticks[0] + ticks[2] + ticks[5] + ticks[6])
}

/// Fields 14 to 17 (utime, stime, cutime, cstime), counted after the name, which may hold spaces.
fn process_ticks(stat: &str) -> Option<u64> {
    let after_name = stat.rsplit_once(") ")?.1;
    let fields: Vec<u64> =
        after_name.split_whitespace().skip(11).take(4).map_while(|word| word.parse().ok()).collect();
    (fields.len() == 4).then(|| fields.iter().sum())
}

fn cpu_name(cpuinfo: &str) -> Option<&str> {
    let line = cpuinfo.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim())
}

/// The cores this thread may use.
pub(crate) fn cores() -> Result<Vec<usize>> {
    let allowed = sched_getaffinity(None)?;
    Ok((0..CpuSet::MAX_CPU).filter(|core| allowed.is_set(*core)).collect())
}

/// Keeps this thread on one core.
pub(crate) fn pin(core: usize) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(core);
    sched_setaffinity(None, &set).with_context(|| format!("pinning a thread to core {core}"))
}

/// The longest round trip of a cache line between processors that share a last-level cache, in nanoseconds. Seen on one virtual machine,
/// whose host moves its processors about: 50 between the threads of one core, 110 to 130 between cores that share a cache, 200 to 430
/// between others.
pub(crate) const NEAR_NS_MAX: f64 = 160.0;

/// The round trip of a cache line between two cores now, in nanoseconds; takes a few milliseconds.
pub(crate) fn line_rtt_ns([here, there]: [usize; 2]) -> Result<f64> {
    const BATCHES: u64 = 11;
    cache_line_rtt_ns(here, there, BATCHES)
}

/// Each turn number on a line of its own, so that only the turn moves.
#[repr(align(128))]
struct Line(AtomicU64);

fn cache_line_rtt_ns(here: usize, there: usize, batches: u64) -> Result<f64> {
    const TURNS: u64 = 2000;
    let (ping, pong) = (Line(AtomicU64::new(0)), Line(AtomicU64::new(0)));
    thread::scope(|scope| {
        let echo = scope.spawn(|| {
            let pinned = pin(there);
            for turn in 1..=batches * TURNS {
                while ping.0.load(Ordering::Acquire) < turn {
                    std::hint::spin_loop(); // A0 <-> R0
                }
                pong.0.store(turn, Ordering::Release); // R1 <-> A1
            }
            pinned
        });
        let measure = scope.spawn(|| {
            let pinned = pin(here);
            let mut batches_ns = Vec::new();
            for batch in 0..batches {
                let started = now();
                for turn in batch * TURNS + 1..=(batch + 1) * TURNS {
                    ping.0.store(turn, Ordering::Release); // R0 <-> A0
                    while pong.0.load(Ordering::Acquire) < turn {
                        std::hint::spin_loop(); // A1 <-> R1
                    }
                }
                batches_ns.push(started.elapsed().as_nanos() as f64 / TURNS as f64);
            }
            pinned.map(|()| median(batches_ns))
        });
        echo.join().expect("the echo does not panic")?;
        measure.join().expect("the measurement does not panic")
    })
}

fn eventfd_wake_us(here: usize, there: usize) -> Result<f64> {
    const TURNS: usize = 1500;
    let ping = eventfd(0, EventfdFlags::CLOEXEC)?;
    let pong = eventfd(0, EventfdFlags::CLOEXEC)?;
    thread::scope(|scope| {
        let echo = scope.spawn(|| -> Result<()> {
            pin(there)?;
            for _ in 0..TURNS {
                wait_event(&ping)?;
                post_event(&pong)?;
            }
            Ok(())
        });
        let measure = scope.spawn(|| -> Result<f64> {
            pin(here)?;
            let mut turns_us = Vec::with_capacity(TURNS);
            for _ in 0..TURNS {
                let started = now();
                post_event(&ping)?;
                wait_event(&pong)?;
                turns_us.push(started.elapsed().as_nanos() as f64 / 1000.0 / 2.0);
            }
            Ok(median(turns_us))
        });
        echo.join().expect("the echo does not panic")?;
        measure.join().expect("the measurement does not panic")
    })
}

fn post_event(event: &OwnedFd) -> Result<()> {
    rustix::io::write(event, &1u64.to_ne_bytes())?;
    Ok(())
}

fn wait_event(event: &OwnedFd) -> Result<()> {
    rustix::io::read(event, &mut [0u8; 8])?;
    Ok(())
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_time_leaves_out_niced_idle_and_stolen_time() {
        let stat = "cpu  10 20 30 1000 2000 40 50 3000 5 0\ncpu0 1 1 1 1 1 1 1 1 1 1\n";
        assert_eq!(busy_ticks(stat), Some(130));
        assert_eq!(busy_ticks("cpu 1 2\n"), None);
    }

    #[test]
    fn a_process_name_with_spaces_and_brackets_does_not_shift_the_fields() {
        let stat = "42 (a) b (c) S 1 2 3 4 5 6 7 8 9 10 100 200 3 4 20 0 1";
        assert_eq!(process_ticks(stat), Some(307));
    }

    #[test]
    fn this_machine_is_measured() {
        let machine = Machine::measure().unwrap();
        assert!(!machine.kernel.is_empty() && machine.cores >= 1);
        assert_eq!(machine.cores >= 2, machine.cache_line_rtt_ns.is_some_and(|ns| ns > 1.0));
        assert_eq!(machine.cores >= 2, machine.eventfd_wake_us.is_some_and(|us| us > 0.1));
    }
}
