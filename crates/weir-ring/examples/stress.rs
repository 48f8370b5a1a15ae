//! Hands frames to a sleeping worker while every thread gives way at random between every two steps.
//!
//! `cargo run -p weir-ring --release --features preempt --example stress -- [--handoffs 10000000] [--seed 1]`
//!
//! Rule: three workers take frames from a small pool, number them, and hand them to a fourth, which checks the numbers of each
//! source and gives the frames back, and sleeps whenever it finds none. A producer often waits until all it has handed over
//! is taken: so a lost wake-up is not mended by the next hand-off but stops everything, and the watch at the end of `main` sees that. At
//! the end every frame is home.
//! Source: compass row A6: 0 lost in 10^9 hand-offs with preemption injected.
//! Limits: a run is on this machine's memory order; the model checker covers weaker ones.

use std::process::exit;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use weir_ring::doorbell::DoorbellCounts;
use weir_ring::handoff::{Inbox, InboxSize, Outlet, inbox};
use weir_ring::memory::{Frame, FrameMemory};
use weir_ring::pool::Pool;
use weir_ring::preempt;

const PRODUCERS: usize = 3;
const FRAMES: u32 = 512;
/// The time without progress after which a thread must be asleep that should not be.
const STALL: Duration = Duration::from_secs(5);

/// The frames of each producer that the worker has taken.
static TAKEN: [AtomicU64; PRODUCERS] = [const { AtomicU64::new(0) }; PRODUCERS];
static ENDED: AtomicBool = AtomicBool::new(false);

fn main() {
    let (handoffs, seed) = options();
    let memory = FrameMemory::new(FRAMES, 64).expect("32 KiB");
    let mut pools = Pool::for_workers(memory, PRODUCERS + 1);
    let size = InboxSize { sources: PRODUCERS, ring_elements: FRAMES as usize };
    let (inbox, outlets) = inbox::<Frame>(size).expect("a doorbell");
    let worker_pool = pools.pop().expect("one for each");
    let each = handoffs.div_ceil(PRODUCERS as u64);

    let mut threads = Vec::new();
    for ((number, outlet), pool) in outlets.into_iter().enumerate().zip(pools) {
        let seed = seed.wrapping_mul(1000).wrapping_add(number as u64);
        threads.push(std::thread::spawn(move || produce(number, outlet, pool, each, seed)));
    }
    let worker_seed = seed.wrapping_mul(1000).wrapping_add(999);
    let worker = std::thread::spawn(move || consume(inbox, worker_pool, each, worker_seed));

    watch(seed);
    // The producers' pools end with their threads, and only then are the frames counted.
    threads.into_iter().for_each(|thread| thread.join().unwrap_or_else(|_| exit(1)));
    let (pool, counts) = worker.join().unwrap_or_else(|_| exit(1));
    let census = pool.census();
    println!("{} hand-offs: none lost, each source in order", each * PRODUCERS as u64);
    println!("{counts:?}");
    println!("{census:?}");
    if !census.balances() || census.out != 0 || counts.kicks_sent > counts.blocks {
        eprintln!("FAILED: a frame is missing, or a sleep took two kicks");
        exit(1);
    }
}

fn produce(number: usize, mut outlet: Outlet<Frame>, mut pool: Pool, total: u64, seed: u64) {
    preempt::seed_thread(seed);
    let mut random = Random(seed ^ 0x5851_f42d_4c95_7f2d);
    let mut sent = 0;
    while sent < total {
        let batch = (1 + random.below(32).min(random.below(32))).min(total - sent);
        let mut staged = 0;
        while staged < batch {
            let Some(mut frame) = pool.take() else { break };
            pool.memory().bytes_mut(&mut frame)[..8].copy_from_slice(&(sent + staged).to_le_bytes());
            outlet.stage(frame).expect("a ring as long as the pool has room");
            staged += 1;
        }
        if staged == 0 {
            std::thread::yield_now();
            continue;
        }
        outlet.flush().expect("the worker is there");
        sent += staged;
        if random.below(4) == 0 {
            while TAKEN[number].load(Ordering::Acquire) < sent && !ENDED.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
        }
    }
}

fn consume(mut inbox: Inbox<Frame>, mut pool: Pool, each: u64, seed: u64) -> (Pool, DoorbellCounts) {
    preempt::seed_thread(seed);
    let mut next = [0u64; PRODUCERS];
    while next.iter().sum::<u64>() < each * PRODUCERS as u64 {
        let count = inbox.drain(|producer, frame| {
            let bytes = pool.memory().bytes(&frame)[..8].try_into().expect("eight bytes");
            let number = u64::from_le_bytes(bytes);
            if number != next[producer] {
                eprintln!(
                    "FAILED: producer {producer}: frame {number} came where {} was due",
                    next[producer]
                );
                exit(1);
            }
            next[producer] += 1;
            pool.give(frame);
        });
        for (taken, next) in TAKEN.iter().zip(next) {
            taken.store(next, Ordering::Release);
        }
        if count == 0 {
            // Between the look and the park a producer may have published: the more so as each step may pause.
            if let Some(parked) = inbox.park(|| false) {
                parked.block();
            }
        }
    }
    ENDED.store(true, Ordering::Release);
    (pool, inbox.counts())
}

/// Returns when the worker has ended; ends the process if it makes no progress.
fn watch(seed: u64) {
    let sum = || TAKEN.iter().map(|taken| taken.load(Ordering::Relaxed)).sum::<u64>();
    let (mut before, mut idle) = (sum(), Duration::ZERO);
    let step = Duration::from_millis(10);
    while !ENDED.load(Ordering::Acquire) {
        std::thread::sleep(step);
        let now = sum();
        idle = if now == before { idle + step } else { Duration::ZERO };
        before = now;
        if idle >= STALL {
            eprintln!("FAILED: nothing moves after {now} hand-offs: lost wake-up (seed {seed})");
            exit(1);
        }
    }
}

/// Splitmix64.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % end
    }
}

fn options() -> (u64, u64) {
    let (mut handoffs, mut seed) = (10_000_000, 1);
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let value = words.next().and_then(|value| value.parse().ok());
        match (word.as_str(), value) {
            ("--handoffs", Some(value)) => handoffs = value,
            ("--seed", Some(value)) => seed = value,
            _ => {
                eprintln!("{word}: use --handoffs NUMBER or --seed NUMBER");
                exit(2);
            }
        }
    }
    (handoffs, seed)
}
