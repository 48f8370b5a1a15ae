//! One run of one design: a transmitter and a worker, each pinned to a core of its own, for a given time.
//!
//! - A wait is measured when the worker, having found nothing, finds something: from the moment the first packet it then takes
//!   was offered. It is the time that the worker waited while work was there.
//! - `wakes` = times the kernel put the worker's thread to sleep at its own wish and woke it again
//!   (`voluntary_ctxt_switches`): counted the same for all, whatever the design says of itself.
//! - `lost` = transmitted packets that did not leave the last link. A packet is reordered if one with a higher number left
//!   before it. After the transmitter has ended, a worker to which nothing comes for [`STALL`] gives up: packets that are
//!   still in the links are lost to it.
//! - A full link holds the transmitter, in every design, so that lost packets are the hand-off's fault; if it stays full for
//!   [`STALL`], the transmitter gives up, and so no run hangs.
//!
//! Ordering: `R0` (`ended`) `<-> A0`: all packets that the transmitter handed over. The rest is the design's.
//! Limits: the clock is read once for each burst, which costs every design the same.

use std::fs;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use weir_run::clock::thread_cpu_ns;

use super::bed;
use super::design::{BURST, Counts, Design, Packet, Transmit, Work};
use super::histogram::Histogram;
use crate::clock::now;
use crate::machine::pin;

/// Longer than any wake-up takes.
pub const STALL: Duration = Duration::from_millis(250);

/// The configuration of a run.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// Links in the worker's chain.
    pub links: usize,
    /// The load of the links.
    pub load: Load,
    /// Packets a second, at random times; `None` for as many as will go.
    pub packets_per_s: Option<f64>,
    /// The time for which the transmitter transmits.
    pub duration: Duration,
    /// The cores of the transmitter and of the worker.
    pub cores: [usize; 2],
    /// The cost of waking a thread here, in nanoseconds.
    pub wake_cost_ns: u64,
}

/// The load of the links.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Load {
    /// Numbers.
    Numbers,
    /// Packets of the published bed, by a bridge, a router and a bridge, on so many workers.
    TestBed(usize),
    /// Packets through two links that do not know of each other but have the same worker.
    TwoLinks,
}

/// The outcome of a run.
#[derive(Debug, Clone, Default)]
pub struct Outcome {
    /// Packets handed over.
    pub sent: u64,
    /// Packets that left each link of the chain.
    pub left: Vec<u64>,
    /// Packets that did not leave the last link.
    pub lost: u64,
    /// Packets that were overtaken.
    pub reordered: u64,
    /// The time from the start to the last packet.
    pub seconds: f64,
    /// See the head of the file.
    pub waits: Histogram,
    /// See the head of the file.
    pub wakes: u64,
    /// Processor time of the busiest thread.
    pub cpu_s: f64,
    /// The counts of the design.
    pub counts: Counts,
}

/// Runs design `D` once.
pub fn run<D: Design>(plan: &Plan) -> Result<Outcome> {
    let (transmit, mut work) = D::chain(plan.links, plan.wake_cost_ns)?;
    let (start_line, ended) = (Barrier::new(2), AtomicBool::new(false));
    let (mut front, mut back) = match plan.load {
        Load::Numbers | Load::TwoLinks => (None, None),
        Load::TestBed(_) => Some(bed::halves()?).unzip(),
    };
    let origin = now();
    thread::scope(|scope| {
        let transmitter = scope.spawn(|| {
            let pinned = pin(plan.cores[0]);
            start_line.wait();
            let before_ns = thread_cpu_ns();
            let sent = transmit_all(transmit, plan, origin, front.as_mut());
            // R0, to A0.
            ended.store(true, Ordering::Release);
            pinned.map(|()| (sent, thread_cpu_ns() - before_ns))
        });
        let worker = scope.spawn(|| {
            let pinned = pin(plan.cores[1]);
            work.begin();
            let before = voluntary_switches();
            start_line.wait();
            let started = now();
            let before_ns = thread_cpu_ns();
            let tally = work_off(&mut work, plan, origin, &ended, back.as_mut());
            let cpu_ns = thread_cpu_ns() - before_ns;
            if let Some(back) = back {
                back.check()?;
            }
            let wakes = voluntary_switches()?.saturating_sub(before?);
            pinned.map(|()| (tally, started, wakes, work.counts(), cpu_ns))
        });
        let (tally, started, wakes, counts, work_ns) = worker.join().expect("the worker does not panic")?;
        let (sent, transmit_ns) = transmitter.join().expect("the transmitter does not panic")?;
        let delivered = tally.left[plan.links - 1];
        Ok(Outcome {
            sent,
            lost: sent.saturating_sub(delivered),
            reordered: tally.reordered,
            seconds: tally.last_left.duration_since(started).as_secs_f64(),
            left: tally.left,
            waits: tally.waits,
            wakes,
            cpu_s: work_ns.max(transmit_ns) as f64 / 1e9,
            counts,
        })
    })
}

/// Transmits until the time is over; returns how many packets went.
fn transmit_all(
    mut transmit: impl Transmit,
    plan: &Plan,
    origin: Instant,
    mut front: Option<&mut bed::Front>,
) -> u64 {
    let (started, end_ns) = (now(), plan.duration.as_nanos() as u64);
    let start_ns = (started - origin).as_nanos() as u64;
    let mut arrivals = plan.packets_per_s.map(Arrivals::new);
    let mut burst = Vec::with_capacity(BURST);
    let mut number = 0;
    loop {
        let elapsed_ns = started.elapsed().as_nanos() as u64;
        let last = elapsed_ns >= end_ns;
        let count = match &mut arrivals {
            _ if last => 1,
            None => BURST as u32,
            Some(arrivals) => arrivals.due(elapsed_ns, BURST as u32),
        };
        let sent_ns = start_ns + elapsed_ns;
        burst.extend((number..number + count).map(|number| Packet { number, last, sent_ns }));
        number += count;
        if let Some(front) = &mut front {
            front.prepare(&burst);
        }
        if count > 0 && !deliver(&mut transmit, &mut burst) {
            return u64::from(number) - burst.len() as u64;
        }
        if last {
            return number.into();
        }
        if count == 0 {
            std::hint::spin_loop();
        }
    }
}

/// Transmits a burst, waiting for room; false if there is none for too long.
fn deliver(transmit: &mut impl Transmit, burst: &mut Vec<Packet>) -> bool {
    let mut held_since = None;
    while !transmit.transmit(burst) {
        if held_since.get_or_insert_with(now).elapsed() > STALL {
            return false;
        }
        // Room for a burst takes about this long to come about, and asking for it costs the worker a cache line.
        (0..32).for_each(|_| std::hint::spin_loop());
    }
    true
}

/// Works until the last packet has left the chain, or nothing comes any more.
fn work_off(
    work: &mut impl Work,
    plan: &Plan,
    origin: Instant,
    ended: &AtomicBool,
    mut back: Option<&mut bed::Back>,
) -> Tally {
    let mut tally = Tally::new(plan.links, origin);
    let mut idle_since = None;
    loop {
        let moved = work.pass(&mut |link, packet| {
            tally.note(link, packet);
            if let Some(back) = back.as_mut().filter(|_| link + 1 == plan.links) {
                back.take(packet);
            }
        });
        if let Some(back) = &mut back {
            back.flush();
        }
        if moved > 0 {
            idle_since = None;
            continue;
        }
        if tally
            .expected
            .is_some_and(|expected| tally.left[plan.links - 1] + work.counts().dropped >= expected)
        {
            return tally;
        }
        tally.waiting = true;
        // A0, from R0.
        if ended.load(Ordering::Acquire) && idle_since.get_or_insert_with(now).elapsed() > STALL {
            return tally;
        }
        work.rest(STALL);
    }
}

/// The worker's view of a run.
struct Tally {
    origin: Instant,
    left: Vec<u64>,
    /// The number that is due at the end of the chain, if nothing is overtaken or dropped.
    next: u32,
    reordered: u64,
    waits: Histogram,
    /// The worker has found nothing and nothing has come since.
    waiting: bool,
    /// The number of packets, once the last has been seen.
    expected: Option<u64>,
    last_left: Instant,
}

impl Tally {
    fn new(links: usize, origin: Instant) -> Tally {
        Tally {
            origin,
            left: vec![0; links],
            next: 0,
            reordered: 0,
            waits: Histogram::default(),
            waiting: true,
            expected: None,
            last_left: origin,
        }
    }

    #[inline]
    fn note(&mut self, link: usize, packet: Packet) {
        if std::mem::take(&mut self.waiting) {
            let now_ns = (now() - self.origin).as_nanos() as u64;
            self.waits.add(now_ns.saturating_sub(packet.sent_ns));
        }
        if packet.last {
            self.expected = Some(u64::from(packet.number) + 1);
            self.last_left = now();
        }
        self.left[link] += 1;
        if link + 1 == self.left.len() {
            self.reordered += u64::from(packet.number < self.next);
            self.next = self.next.max(packet.number + 1);
        }
    }
}

/// Arrivals at random: exponential gaps, the same ones in every run.
struct Arrivals {
    mean_gap_ns: f64,
    next_ns: f64,
    random: u64,
}

impl Arrivals {
    fn new(packets_per_s: f64) -> Arrivals {
        let mut arrivals = Arrivals { mean_gap_ns: 1e9 / packets_per_s, next_ns: 0.0, random: 1 };
        arrivals.next_ns = arrivals.gap_ns();
        arrivals
    }

    /// The number of packets that are due, at most `max`; the others stay due.
    fn due(&mut self, now_ns: u64, max: u32) -> u32 {
        let mut count = 0;
        while count < max && self.next_ns <= now_ns as f64 {
            self.next_ns += self.gap_ns();
            count += 1;
        }
        count
    }

    /// Splitmix64, made exponential.
    fn gap_ns(&mut self) -> f64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.random ^ (self.random >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let uniform = ((mixed ^ (mixed >> 31)) >> 11) as f64 / (1u64 << 53) as f64;
        -self.mean_gap_ns * (1.0 - uniform).ln()
    }
}

/// The number of times that this thread has slept of its own accord.
fn voluntary_switches() -> Result<u64> {
    let status = fs::read_to_string("/proc/thread-self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    let count = line.context("/proc/thread-self/status does not count context switches")?;
    Ok(count.trim().parse()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrivals_keep_their_rate_and_none_is_skipped() {
        let mut arrivals = Arrivals::new(1e6);
        let mut total = 0;
        for look in 1..=1000 {
            total += u64::from(arrivals.due(look * 100_000, u32::MAX));
        }
        assert!((99_000..101_000).contains(&total), "{total} in a tenth of a second");
        let mut held = Arrivals::new(1e6);
        let mut same = 0;
        while held.next_ns <= 100_000_000.0 {
            same += u64::from(held.due(100_000_000, 7));
        }
        assert_eq!(same, total, "what is due stays due");
    }

    #[test]
    fn the_tally_sees_what_was_overtaken() {
        let mut tally = Tally::new(1, now());
        for number in [0, 1, 4, 2, 3, 5] {
            tally.note(0, Packet { number, last: number == 5, sent_ns: 0 });
        }
        assert_eq!((tally.reordered, tally.left[0], tally.expected), (2, 6, Some(6)));
    }

    #[test]
    fn a_thread_that_sleeps_is_seen_to() {
        let before = voluntary_switches().unwrap();
        thread::park_timeout(Duration::from_millis(1));
        assert!(voluntary_switches().unwrap() > before);
    }
}
