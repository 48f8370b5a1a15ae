//! The time that the host took of this machine: a processor had something to do and another guest had it instead.
//!
//! `stolen share = steal / (user + nice + system + irq + softirq + steal)`, between two looks at `/proc/stat`. Idle time is no part of
//! it, because nothing can be stolen of it.
//!
//! Limits: a kernel on the machine itself, or a host that does not say, counts no steal, and is then always clean. A host that slows a
//! machine without taking its processors (caches, memory) is not seen.
//!
//! Source: proc_stat(5).

use anyhow::{Context, Result};

/// The share that the host may take for a figure of time or speed to be judged.
pub const STOLEN_MAX: f64 = 0.03;

/// The ticks of all processors since the machine started.
#[derive(Clone, Copy, Debug)]
pub struct Processors {
    busy: u64,
    stolen: u64,
}

impl Processors {
    /// Processors with such counts.
    pub fn of(busy: u64, stolen: u64) -> Processors {
        Processors { busy, stolen }
    }

    /// The ticks until now.
    pub fn now() -> Result<Processors> {
        let text = std::fs::read_to_string("/proc/stat").context("reading /proc/stat")?;
        Processors::read(&text).context("/proc/stat begins with the processors' times")
    }

    /// user, nice, system, idle, iowait, irq, softirq, steal.
    fn read(text: &str) -> Option<Processors> {
        let ticks =
            text.lines().next()?.strip_prefix("cpu ")?.split_whitespace().map(|word| word.parse().ok());
        let ticks: Vec<u64> = ticks.take(8).collect::<Option<_>>()?;
        let [user, nice, system, _, _, irq, softirq, stolen] = ticks.try_into().ok()?;
        Some(Processors { busy: user + nice + system + irq + softirq + stolen, stolen })
    }

    /// The part of the busy time since then that the host took.
    pub fn stolen_since(&self, before: &Processors) -> f64 {
        // The counters of a processor that is taken away may go back.
        let [stolen, busy] = [(self.stolen, before.stolen), (self.busy, before.busy)]
            .map(|(now, then)| now.saturating_sub(then));
        stolen as f64 / busy.max(1) as f64
    }

    /// The seconds that the host took since then, of all processors together. Counted in ticks, so up to one less or more than it was.
    pub fn stolen_seconds_since(&self, before: &Processors) -> f64 {
        self.stolen.saturating_sub(before.stolen) as f64 / rustix::param::clock_ticks_per_second() as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_host_takes_is_a_part_of_the_busy_time() {
        let read = |text| Processors::read(text).unwrap();
        let before = read("cpu  10 0 20 500 9 0 5 5 0 0\ncpu0 1 2 3");
        let after = read("cpu  40 0 40 900 9 5 15 40 7 0\n");
        assert!((after.stolen_since(&before) - 0.35).abs() < 1e-9);
        assert_eq!(before.stolen_since(&before), 0.0);
        assert_eq!(before.stolen_since(&after), 0.0);
        let ticks_per_s = rustix::param::clock_ticks_per_second() as f64;
        assert!((after.stolen_seconds_since(&before) - 35.0 / ticks_per_s).abs() < 1e-9);
        assert_eq!(before.stolen_seconds_since(&after), 0.0);
        assert!(Processors::read("cpu 1 2 3").is_none());
        assert!(Processors::now().is_ok());
    }
}
