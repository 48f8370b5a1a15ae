//! The machine under the benchmark: pinning, the time-stamp counter, and the calibration line.
//! A figure without these three costs cannot be compared with one from another machine or another hour.
//!
//! Rule: cycles are of the time-stamp counter, whose frequency is measured against CLOCK_MONOTONIC in this run.
//! Limits: x86-64 and Linux; two CPUs.

use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};

/// The present time, in cycles of the time-stamp counter, with earlier loads done.
#[inline]
pub fn tsc() -> u64 {
    // SAFETY: every x86-64 has both instructions.
    unsafe {
        core::arch::x86_64::_mm_lfence();
        core::arch::x86_64::_rdtsc()
    }
}

/// Keeps the calling thread on one CPU, and other programs off it if we may: a queue is measured in less than the time the scheduler would
/// give to another.
pub fn pin(cpu: usize) {
    let priority = libc::sched_param { sched_priority: 1 };
    // SAFETY: reads the struct it is given. A refusal costs quiet, and shows in the spread.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &priority) };
    // SAFETY: an all-zero set is a valid value, and the calls only read and write it.
    let answer = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set)
    };
    assert_eq!(answer, 0, "cannot pin to CPU {cpu}: {}", std::io::Error::last_os_error());
}

/// The number of times that the scheduler has taken a core away from a thread of this process.
pub fn interruptions() -> i64 {
    // SAFETY: an all-zero rusage is a valid value, and the call only writes it.
    unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        assert_eq!(libc::getrusage(libc::RUSAGE_SELF, &mut usage), 0);
        usage.ru_nivcsw
    }
}

/// The costs of the machine in this run.
pub struct Calibration {
    pub tsc_hz: f64,
    /// The time of one line written on one CPU, answered on the other, seen again: median of many.
    pub line_round_trip_cycles: u64,
    /// The time from before the eventfd write to the first instruction of the thread blocked on it: median.
    pub eventfd_wake_cycles: u64,
    /// The time of one eventfd write that no thread waits for.
    pub eventfd_write_cycles: u64,
}

impl std::fmt::Display for Calibration {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let us = |cycles: u64| cycles as f64 * 1e6 / self.tsc_hz;
        write!(
            f,
            "calibration: tsc {:.3} GHz, line round trip {} c ({:.0} ns), eventfd wake {} c ({:.1} us), eventfd write {} c",
            self.tsc_hz / 1e9,
            self.line_round_trip_cycles,
            1e3 * us(self.line_round_trip_cycles),
            self.eventfd_wake_cycles,
            us(self.eventfd_wake_cycles),
            self.eventfd_write_cycles,
        )
    }
}

/// Measures the costs of this machine on two CPUs.
pub fn calibrate(cpus: [usize; 2]) -> Calibration {
    Calibration {
        tsc_hz: tsc_hz(),
        line_round_trip_cycles: line_round_trip(cpus),
        eventfd_wake_cycles: eventfd_wake(cpus),
        eventfd_write_cycles: eventfd_write(),
    }
}

fn monotonic_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes the struct it is given.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

fn tsc_hz() -> f64 {
    let (ns, cycles) = (monotonic_ns(), tsc());
    while monotonic_ns() - ns < 100_000_000 {}
    (tsc() - cycles) as f64 * 1e9 / (monotonic_ns() - ns) as f64
}

#[repr(align(128))]
struct Line(AtomicU64);

fn line_round_trip(cpus: [usize; 2]) -> u64 {
    const ROUNDS: u64 = 20_000;
    let (there, back) = (Line(AtomicU64::new(0)), Line(AtomicU64::new(0)));
    let start_line = Barrier::new(2);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            pin(cpus[1]);
            start_line.wait();
            for round in 1..=ROUNDS {
                while there.0.load(Ordering::Acquire) != round {
                    std::hint::spin_loop();
                }
                back.0.store(round, Ordering::Release);
            }
        });
        pin(cpus[0]);
        // No thread spins before both are in place: a spinning thread lets no other on its core.
        start_line.wait();
        let mut samples: Vec<u64> = (1..=ROUNDS)
            .map(|round| {
                let start = tsc();
                there.0.store(round, Ordering::Release);
                while back.0.load(Ordering::Acquire) != round {
                    std::hint::spin_loop();
                }
                tsc() - start
            })
            .collect();
        median(&mut samples)
    })
}

fn eventfd() -> i32 {
    // SAFETY: makes a new descriptor, which lives until the process ends.
    let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
    assert!(fd >= 0, "eventfd: {}", std::io::Error::last_os_error());
    fd
}

fn ring_bell(fd: i32) {
    let one = 1u64;
    // SAFETY: reads eight bytes of `one`.
    assert_eq!(unsafe { libc::write(fd, (&raw const one).cast(), 8) }, 8);
}

fn wait_bell(fd: i32) {
    let mut count = 0u64;
    // SAFETY: writes eight bytes of `count`.
    assert_eq!(unsafe { libc::read(fd, (&raw mut count).cast(), 8) }, 8);
}

fn eventfd_wake(cpus: [usize; 2]) -> u64 {
    const ROUNDS: u64 = 300;
    let fd = eventfd();
    let woken = Line(AtomicU64::new(0));
    let start_line = Barrier::new(2);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            pin(cpus[1]);
            start_line.wait();
            for _ in 0..ROUNDS {
                wait_bell(fd);
                woken.0.store(tsc(), Ordering::Release);
            }
        });
        pin(cpus[0]);
        start_line.wait();
        let mut samples: Vec<u64> = (0..ROUNDS)
            .map(|_| {
                // The pause is long enough for the other thread to be asleep in the kernel.
                let until = monotonic_ns() + 300_000;
                while monotonic_ns() < until {}
                let start = tsc();
                ring_bell(fd);
                let end = loop {
                    match woken.0.swap(0, Ordering::Acquire) {
                        0 => std::hint::spin_loop(),
                        end => break end,
                    }
                };
                end.saturating_sub(start)
            })
            .collect();
        median(&mut samples)
    })
}

fn eventfd_write() -> u64 {
    let fd = eventfd();
    let mut samples: Vec<u64> = (0..10_000)
        .map(|_| {
            let start = tsc();
            ring_bell(fd);
            tsc() - start
        })
        .collect();
    median(&mut samples)
}

/// The middle of the samples.
pub fn median<T: PartialOrd + Copy>(samples: &mut [T]) -> T {
    samples.sort_by(|a, b| a.partial_cmp(b).expect("numbers"));
    samples[samples.len() / 2]
}
