//! Measures hand-offs between two pinned threads beside the field's best queues, in one run.
//!
//! `cargo run -p weir-ring --release --example handoff_bench -- [--capacity 1024] [--repeats 31] [--batch 32] [--cpus 0,1]`
//!
//! Rule: every queue is measured `repeats` times, in an order that turns round each time (ABBA), so that a slow drift of
//! the machine falls on all alike. A run moves `ELEMENTS` numbers, checks that all arrived in order, and takes the time
//! from the start of the producer to the consumer's last element; a run in which the scheduler took a core away is made
//! again, a few times at most. Ratios are of the same repeat, of queues that move elements of the same size, and are
//! withheld if their quartiles are further apart than [`SPREAD_MAX`] of the median: then the machine was too noisy.
//! DPDK's `rte_ring` takes part if its headers are there ([`dpdk`]).
//! Two rows are no queues but the floor of every queue ([`floor`]): `lines`, the same bytes through shared cache lines with the least
//! protocol there is, and `loops`, these loops alone.
//! Limits: figures hold for the machine of the calibration line only; compare ratios between machines.

mod dpdk;
mod floor;
#[path = "../../../../benches/floors.rs"]
mod floors;
mod machine;
#[path = "../../../../benches/peers/peer.rs"]
mod peer;
mod queues;

use dpdk::RteRing;
use floors::Floors;
use machine::{interruptions, median, pin, tsc};
use queues::{Element, Rx, Tx};
use std::sync::Barrier;
use weir_ring::memory::FrameMemory;
use weir_ring::pool::Pool;

/// The elements of a run: few enough to pass between two interruptions of a busy machine, with luck.
const ELEMENTS: u32 = 1 << 19;

/// The tries for a run that the scheduler interrupts.
const TRIES: usize = 5;

/// The most that the quartiles of a ratio may be apart, in parts of the median.
const SPREAD_MAX: f64 = 0.5;

fn main() -> std::process::ExitCode {
    let options = Options::parse();
    println!("{}", machine::calibrate(options.cpus));
    println!("capacity {}, {} elements a run, {} repeats", options.capacity, ELEMENTS, options.repeats);
    println!(
        "no queues but floors: `lines`, the bytes alone through shared lines; `loops`, the measurement alone"
    );
    let mut floors = Floors::default();
    let rte_ring = RteRing::build().map_err(|error| println!("rte_ring: left out: {error}")).ok();
    for batch in options.batch.map_or(vec![1, 8, 32], |batch| vec![batch]) {
        let title = format!("stream, batch {batch}: cycles/element");
        let ratios =
            table(&title, options.repeats, &systems(&options, Job::Stream(batch), rte_ring.as_ref()));
        for (peer, ratio) in ratios {
            if let Some(least) = least(batch, peer) {
                floors.at_least(&format!("{peer} / weir, batch {batch}"), ratio, least);
            }
        }
        let title = format!("stream of eight-byte elements, batch {batch}: cycles/element");
        table(&title, options.repeats, &wide_systems(&options, batch, rte_ring.as_ref()));
    }
    let ping_pong = systems(&options, Job::PingPong, None);
    table("one in flight: cycles there and back", options.repeats, &ping_pong);
    table("pool, one worker: cycles for a frame taken and given", options.repeats, &pool_systems());
    floors.finish()
}

/// The least ratio of a peer's cycles to ours: at batch 1 1.3 times for the best of them, at 32 1.4 to 1.7 and 1.6 to 3.0.
fn least(batch: usize, peer: &str) -> Option<f64> {
    match (batch, peer) {
        (1, "rtrb" | "rtrb-chunks" | "array-queue" | "channel" | "rte-ring") => Some(1.0),
        (32, "rtrb-chunks") => Some(1.1),
        (32, "rte-ring") => Some(1.2),
        _ => None,
    }
}

struct Options {
    capacity: usize,
    repeats: usize,
    /// The one batch size to measure.
    batch: Option<usize>,
    cpus: [usize; 2],
}

impl Options {
    fn parse() -> Options {
        let mut options = Options { capacity: 1024, repeats: 31, batch: None, cpus: [0, 1] };
        let mut words = std::env::args().skip(1);
        while let Some(word) = words.next() {
            let value = words.next().unwrap_or_else(|| panic!("{word} needs a value"));
            let number = |text: &str| text.parse().unwrap_or_else(|_| panic!("{word} {text}: not a number"));
            match word.as_str() {
                "--capacity" => options.capacity = number(&value),
                "--repeats" => options.repeats = number(&value),
                "--batch" => options.batch = Some(number(&value)),
                "--cpus" => {
                    let (first, second) = value.split_once(',').expect("--cpus FIRST,SECOND");
                    options.cpus = [number(first), number(second)];
                }
                _ => panic!("unknown option {word}: use --capacity, --repeats, --batch or --cpus"),
            }
        }
        options
    }
}

/// The task of a queue.
#[derive(Clone, Copy)]
enum Job {
    /// A sustained stream in batches of this many elements.
    Stream(usize),
    /// One element there and one back, with no other under way.
    PingPong,
}

/// The cost of a run.
struct Sample {
    cycles: f64,
    /// True if the scheduler took a core away meanwhile.
    interrupted: bool,
}

type System<'a> = (&'static str, Box<dyn Fn() -> Sample + 'a>);

fn systems<'a>(options: &'a Options, job: Job, rte_ring: Option<&'a RteRing>) -> Vec<System<'a>> {
    macro_rules! measured {
        ($make:expr) => {
            Box::new(move || match job {
                Job::Stream(batch) => stream::<u32>($make(options.capacity), batch, options.cpus),
                Job::PingPong => {
                    sample(|| ping_pong($make(options.capacity), $make(options.capacity), options.cpus))
                }
            })
        };
    }
    let mut systems: Vec<System> = vec![
        ("weir", measured!(queues::weir)),
        ("weir-inbox", measured!(queues::weir_inbox)),
        ("rtrb-chunks", measured!(queues::rtrb_chunks)),
        ("rtrb", measured!(queues::rtrb_single)),
        ("array-queue", measured!(queues::array_queue)),
        ("channel", measured!(queues::channel)),
    ];
    if let (Some(peer), Job::Stream(batch)) = (rte_ring, job) {
        systems.push(("rte-ring", Box::new(move || peer.stream(4, options.capacity, batch, options.cpus))));
    }
    if let Job::Stream(batch) = job {
        systems.extend(floors::<u32>(options, batch));
    }
    systems
}

/// The queues that a user of pointers would choose between.
fn wide_systems<'a>(options: &'a Options, batch: usize, rte_ring: Option<&'a RteRing>) -> Vec<System<'a>> {
    macro_rules! measured {
        ($make:expr) => {
            Box::new(move || stream::<u64>($make(options.capacity), batch, options.cpus))
        };
    }
    let mut systems: Vec<System> = vec![
        ("weir", measured!(queues::weir)),
        ("weir-inbox", measured!(queues::weir_inbox)),
        ("rtrb-chunks", measured!(queues::rtrb_chunks)),
    ];
    if let Some(peer) = rte_ring {
        systems.push(("rte-ring", Box::new(move || peer.stream(8, options.capacity, batch, options.cpus))));
    }
    systems.extend(floors::<u64>(options, batch));
    systems
}

/// The floors, for batches that divide a quarter of the ring.
fn floors<T: Element>(options: &Options, batch: usize) -> Vec<System<'_>> {
    if options.capacity < 4 || !(options.capacity / 4).is_multiple_of(batch) {
        return Vec::new();
    }
    vec![
        ("lines", Box::new(move || stream::<T>(floor::lines(options.capacity, batch), batch, options.cpus))),
        ("loops", Box::new(move || stream::<T>(floor::loops(), batch, options.cpus))),
    ]
}

fn pool_systems() -> Vec<System<'static>> {
    // Runs of 48 frames: most of a burst.
    let weir = || {
        let mut pool = Pool::new(FrameMemory::new(4096, 64).expect("256 KiB"));
        let mut held = Vec::with_capacity(48);
        cycles_of_48(|| {
            held.extend((0..48).map_while(|_| pool.take()));
            held.drain(..).for_each(|frame| pool.give(frame));
        })
    };
    let array_queue = || {
        let queue = crossbeam_queue::ArrayQueue::new(4096);
        (0..4096u32).for_each(|frame| queue.push(frame).expect("room"));
        let mut held = Vec::with_capacity(48);
        cycles_of_48(|| {
            held.extend((0..48).map_while(|_| queue.pop()));
            held.drain(..).for_each(|frame| queue.push(frame).expect("room"));
        })
    };
    vec![("weir", Box::new(weir)), ("array-queue", Box::new(array_queue))]
}

/// The cycles for each of the 48 frames of a run.
fn cycles_of_48(mut run: impl FnMut()) -> Sample {
    const RUNS: u32 = 20_000;
    sample(|| {
        let start = tsc();
        (0..RUNS).for_each(|_| run());
        (tsc() - start) as f64 / f64::from(RUNS * 48)
    })
}

/// Measures, and notes whether the scheduler interrupted.
fn sample(measure: impl FnOnce() -> f64) -> Sample {
    let before = interruptions();
    let cycles = measure();
    Sample { cycles, interrupted: interruptions() > before }
}

/// Prints all systems beside each other, and the ratio of each to the first; returns the ratios that were not too noisy.
fn table(title: &str, repeats: usize, systems: &[System]) -> Vec<(&'static str, f64)> {
    println!("\n{title}");
    let samples = abba(systems, repeats);
    let mut sure = Vec::new();
    for (index, (name, _)) in systems.iter().enumerate() {
        let ratios: Vec<f64> =
            samples[index].iter().zip(&samples[0]).map(|(peer, weir)| peer / weir).collect();
        let ratio = Spread::of(&ratios);
        let cost = Spread::of(&samples[index]);
        if ratio.high - ratio.low <= SPREAD_MAX * ratio.middle {
            println!("  {name:<12} {cost}   x weir {ratio}");
            sure.push((*name, ratio.middle));
        } else {
            println!("  {name:<12} {cost}   left out: too noisy to compare ({title})");
        }
    }
    sure
}

/// Runs every system `repeats` times, forwards and backwards in turn.
fn abba(systems: &[System], repeats: usize) -> Vec<Vec<f64>> {
    let mut samples = vec![Vec::new(); systems.len()];
    for repeat in 0..repeats {
        for step in 0..systems.len() {
            let index = if repeat % 2 == 0 { step } else { systems.len() - 1 - step };
            let run = &systems[index].1;
            let mut sample = run();
            for _ in 1..TRIES {
                if !sample.interrupted {
                    break;
                }
                sample = run();
            }
            samples[index].push(sample.cycles);
        }
    }
    samples
}

/// Moves `ELEMENTS` numbers in batches; returns cycles an element.
fn stream<T: Element>((mut tx, mut rx): (impl Tx<T>, impl Rx<T>), batch: usize, cpus: [usize; 2]) -> Sample {
    let start_line = &Barrier::new(2);
    std::thread::scope(|scope| {
        // The half is moved, so that it lives on the stack of its thread.
        let producer = scope.spawn(move || {
            pin(cpus[0]);
            let mut stage = Vec::with_capacity(batch);
            let mut next = 0;
            start_line.wait();
            let start = tsc();
            while next < ELEMENTS {
                stage.extend((next..next + batch as u32).map(T::of));
                next += batch as u32;
                tx.send(&mut stage);
                while !stage.is_empty() {
                    std::hint::spin_loop();
                    tx.send(&mut stage);
                }
            }
            start
        });
        pin(cpus[1]);
        let mut out = Vec::with_capacity(batch);
        let mut next = 0;
        start_line.wait();
        let before = interruptions();
        while next < ELEMENTS {
            rx.receive(&mut out, batch);
            if out.is_empty() {
                std::hint::spin_loop();
                continue;
            }
            // The check is branch-free, so that it costs every queue the same fraction of a cycle.
            let wrong =
                out.iter().zip(next..).fold(0, |wrong, (item, expected)| wrong | item.differs(expected));
            assert_eq!(wrong, 0, "lost or reordered near {next}");
            next += out.len() as u32;
            out.clear();
        }
        let end = tsc();
        let interrupted = interruptions() > before;
        let start = producer.join().expect("the producer");
        Sample { cycles: (end - start) as f64 / f64::from(ELEMENTS), interrupted }
    })
}

/// Sends a number there and waits until it is back; returns the median of cycles a round.
fn ping_pong(
    (mut there_tx, mut there_rx): (impl Tx<u32>, impl Rx<u32>),
    (mut back_tx, mut back_rx): (impl Tx<u32>, impl Rx<u32>),
    cpus: [usize; 2],
) -> f64 {
    const ROUNDS: u32 = 20_000;
    fn carry(tx: &mut impl Tx<u32>, one: &mut Vec<u32>) {
        while !one.is_empty() {
            tx.send(one);
        }
    }
    fn fetch(rx: &mut impl Rx<u32>, one: &mut Vec<u32>) {
        while one.is_empty() {
            rx.receive(one, 1);
            std::hint::spin_loop();
        }
    }
    let start_line = &Barrier::new(2);
    std::thread::scope(|scope| {
        // The halves are moved, so that each lives on the stack of its thread.
        scope.spawn(move || {
            pin(cpus[1]);
            start_line.wait();
            let mut one = Vec::with_capacity(1);
            for _ in 0..ROUNDS {
                fetch(&mut there_rx, &mut one);
                carry(&mut back_tx, &mut one);
            }
        });
        pin(cpus[0]);
        start_line.wait();
        let mut one = Vec::with_capacity(1);
        let mut samples: Vec<f64> = (0..ROUNDS)
            .map(|round| {
                one.push(round);
                let start = tsc();
                carry(&mut there_tx, &mut one);
                fetch(&mut back_rx, &mut one);
                let end = tsc();
                assert_eq!(one.pop(), Some(round));
                (end - start) as f64
            })
            .collect();
        median(&mut samples)
    })
}

/// Median and interquartile range.
struct Spread {
    low: f64,
    middle: f64,
    high: f64,
}

impl Spread {
    fn of(samples: &[f64]) -> Spread {
        let mut sorted = samples.to_vec();
        let middle = median(&mut sorted);
        Spread { low: sorted[sorted.len() / 4], middle, high: sorted[sorted.len() * 3 / 4] }
    }
}

impl std::fmt::Display for Spread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:7.2} [{:6.2} .. {:6.2}]", self.middle, self.low, self.high)
    }
}
