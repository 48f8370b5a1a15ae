//! The CPUs of the sending machine: which process runs, which wait, and how much time softirqs stole.
//!
//! A process belongs to one CPU, `index mod cpus`. The running process keeps its CPU until it sleeps or until its slice is over while
//! another waits; then the longest waiting one runs. Softirq work is done at once, on top of the running process, and `stolen_ns` delays
//! that process's next step.
//!
//! Owner: the sending machine.
//! Source: the shape of CFS with its minimal granularity as the slice, and of `irq_exit`.
//! Limits: no migration, no wake-up preemption, no priorities, no hyper-threads, no frequency scaling.

use std::collections::VecDeque;

/// All CPUs.
#[derive(Debug)]
pub struct Cpus {
    cpus: Vec<Cpu>,
    slice_ns: u64,
}

#[derive(Clone, Debug, Default)]
struct Cpu {
    running: Option<usize>,
    waiting: VecDeque<usize>,
    stolen_ns: u64,
    slice_end_ns: u64,
}

impl Cpus {
    /// `count` idle CPUs.
    ///
    /// # Panics
    ///
    /// If `count` is 0.
    pub fn new(count: usize, slice_ns: u64) -> Cpus {
        assert!(count > 0, "a machine has a CPU");
        Cpus { cpus: vec![Cpu::default(); count], slice_ns }
    }

    /// The CPU that `process` belongs to.
    pub fn of(&self, process: usize) -> usize {
        process % self.cpus.len()
    }

    /// Makes `process` runnable. True if it runs at once, false if it waits its turn.
    pub fn wake(&mut self, process: usize, now_ns: u64) -> bool {
        let slice_end_ns = now_ns + self.slice_ns;
        let index = self.of(process);
        let cpu = &mut self.cpus[index];
        if cpu.running.is_some() {
            cpu.waiting.push_back(process);
            return false;
        }
        cpu.running = Some(process);
        cpu.slice_end_ns = slice_end_ns;
        true
    }

    /// Puts the running `process` to sleep; returns the one that runs instead, if any waited.
    pub fn sleep(&mut self, process: usize, now_ns: u64) -> Option<usize> {
        let slice_end_ns = now_ns + self.slice_ns;
        let index = self.of(process);
        let cpu = &mut self.cpus[index];
        debug_assert_eq!(cpu.running, Some(process), "only who runs can go to sleep");
        cpu.running = cpu.waiting.pop_front();
        cpu.slice_end_ns = slice_end_ns;
        cpu.running
    }

    /// Makes the running `process` wait if it must let another run now. That other, which is returned, then runs.
    pub fn preempt(&mut self, process: usize, now_ns: u64) -> Option<usize> {
        let index = self.of(process);
        let cpu = &mut self.cpus[index];
        if now_ns < cpu.slice_end_ns || cpu.waiting.is_empty() {
            return None;
        }
        cpu.waiting.push_back(process);
        self.sleep(process, now_ns)
    }

    /// Charges a softirq's `work_ns` to CPU `index`.
    pub fn steal(&mut self, index: usize, work_ns: u64) {
        let cpu = &mut self.cpus[index];
        if cpu.running.is_some() {
            cpu.stolen_ns += work_ns;
        }
    }

    /// The time that softirqs stole from the running `process` since the last call, in nanoseconds.
    pub fn take_stolen(&mut self, process: usize) -> u64 {
        let index = self.of(process);
        std::mem::take(&mut self.cpus[index].stolen_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_runs_the_others_take_turns() {
        let mut cpus = Cpus::new(2, 100);
        assert!(cpus.wake(0, 0) && cpus.wake(1, 0), "each has a CPU of its own");
        assert!(!cpus.wake(2, 0) && !cpus.wake(4, 0));
        assert_eq!(cpus.preempt(0, 99), None, "its slice is not over");
        assert_eq!(cpus.preempt(1, 500), None, "nobody waits");
        assert_eq!(cpus.preempt(0, 100), Some(2));
        assert_eq!(cpus.sleep(2, 150), Some(4));
        assert_eq!(cpus.sleep(4, 160), Some(0));
        assert_eq!(cpus.sleep(0, 170), None);
        cpus.steal(0, 5);
        assert!(cpus.wake(0, 180));
        assert_eq!(cpus.take_stolen(0), 0, "an idle CPU has nothing to be stolen");
        cpus.steal(0, 5);
        cpus.steal(0, 6);
        assert_eq!((cpus.take_stolen(0), cpus.take_stolen(0)), (11, 0));
    }
}
