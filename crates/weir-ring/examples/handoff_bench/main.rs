//! Measures hand-offs between two pinned threads beside the field's best queues, in one run.
//!
//! `cargo run -p weir-ring --release --example handoff_bench -- [--capacity 1024] [--repeats 31] [--cpus 0,1]`
//!
//! Rule: every queue is measured `repeats` times, in an order that turns round each time (ABBA), so that a slow drift of
//! the machine falls on all alike. A run moves `ELEMENTS` numbers, checks that all arrived in order, and takes the time
//! from the start of the producer to the consumer's last element. Ratios are of the same repeat.
//! DPDK's `rte_ring` on the same machine: `apt-get install --no-install-recommends dpdk dpdk-dev`, then
//! `DPDK_TEST=ring_perf_autotest dpdk-test --no-huge --no-pci -m 512 -l 0,1`; read "two physical cores", SP/SC, bulk 32.
//! Limits: figures hold for the machine of the calibration line only; compare ratios between machines.

mod machine;
mod queues;

use machine::{median, pin, tsc};
use queues::{Rx, Tx};
use std::sync::Barrier;
use weir_ring::memory::FrameMemory;
use weir_ring::pool::Pool;

/// Short enough to pass between two interruptions of a busy machine, with luck.
const ELEMENTS: u32 = 1 << 19;

fn main() {
    let options = Options::parse();
    println!("{}", machine::calibrate(options.cpus));
    println!("capacity {}, {} elements a run, {} repeats", options.capacity, ELEMENTS, options.repeats);
    for batch in [1, 8, 32] {
        let title = format!("stream, batch {batch}: cycles/element");
        table(&title, options.repeats, &systems(&options, Job::Stream(batch)));
    }
    table("one in flight: cycles there and back", options.repeats, &systems(&options, Job::PingPong));
    table("pool, one worker: cycles for a frame taken and given", options.repeats, &pool_systems());
}

struct Options {
    capacity: usize,
    repeats: usize,
    cpus: [usize; 2],
}

impl Options {
    fn parse() -> Options {
        let mut options = Options { capacity: 1024, repeats: 31, cpus: [0, 1] };
        let mut words = std::env::args().skip(1);
        while let Some(word) = words.next() {
            let value = words.next().unwrap_or_else(|| panic!("{word} needs a value"));
            let number = |text: &str| text.parse().unwrap_or_else(|_| panic!("{word} {text}: not a number"));
            match word.as_str() {
                "--capacity" => options.capacity = number(&value),
                "--repeats" => options.repeats = number(&value),
                "--cpus" => {
                    let (first, second) = value.split_once(',').expect("--cpus FIRST,SECOND");
                    options.cpus = [number(first), number(second)];
                }
                _ => panic!("unknown option {word}: use --capacity, --repeats or --cpus"),
            }
        }
        options
    }
}

/// What is asked of a queue.
#[derive(Clone, Copy)]
enum Job {
    /// A sustained stream in batches of so many.
    Stream(usize),
    /// One element there and one back, with nothing else under way.
    PingPong,
}

type System<'a> = (&'static str, Box<dyn Fn() -> f64 + 'a>);

fn systems(options: &Options, job: Job) -> Vec<System<'_>> {
    macro_rules! measured {
        ($make:path) => {
            Box::new(move || match job {
                Job::Stream(batch) => stream($make(options.capacity), batch, options.cpus),
                Job::PingPong => ping_pong($make(options.capacity), $make(options.capacity), options.cpus),
            })
        };
    }
    vec![
        ("weir", measured!(queues::weir)),
        ("weir-inbox", measured!(queues::weir_inbox)),
        ("rtrb-chunks", measured!(queues::rtrb_chunks)),
        ("rtrb", measured!(queues::rtrb_single)),
        ("array-queue", measured!(queues::array_queue)),
        ("channel", measured!(queues::channel)),
    ]
}

fn pool_systems() -> Vec<System<'static>> {
    // Runs of 48 pass the edge of a magazine, as a burst does.
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

/// Cycles for each of the 48 frames of a run.
fn cycles_of_48(mut run: impl FnMut()) -> f64 {
    const RUNS: u32 = 20_000;
    let start = tsc();
    (0..RUNS).for_each(|_| run());
    (tsc() - start) as f64 / f64::from(RUNS * 48)
}

/// All systems beside each other, and how many times more than the first each takes.
fn table(title: &str, repeats: usize, systems: &[System]) {
    println!("\n{title}");
    let samples = abba(systems, repeats);
    for (index, (name, _)) in systems.iter().enumerate() {
        let ratios: Vec<f64> =
            samples[index].iter().zip(&samples[0]).map(|(peer, weir)| peer / weir).collect();
        println!("  {name:<12} {}   x weir {}", Spread::of(&samples[index]), Spread::of(&ratios));
    }
}

/// Runs every system `repeats` times, forwards and backwards in turn.
fn abba(systems: &[System], repeats: usize) -> Vec<Vec<f64>> {
    let mut samples = vec![Vec::new(); systems.len()];
    for repeat in 0..repeats {
        for step in 0..systems.len() {
            let index = if repeat % 2 == 0 { step } else { systems.len() - 1 - step };
            samples[index].push(systems[index].1());
        }
    }
    samples
}

/// Moves `ELEMENTS` numbers in batches; returns cycles an element.
fn stream((mut tx, mut rx): (impl Tx, impl Rx), batch: usize, cpus: [usize; 2]) -> f64 {
    let start_line = &Barrier::new(2);
    std::thread::scope(|scope| {
        // Moved, so that each half lives on the stack of its thread.
        let producer = scope.spawn(move || {
            pin(cpus[0]);
            let mut stage = Vec::with_capacity(batch);
            let mut next = 0;
            start_line.wait();
            let start = tsc();
            while next < ELEMENTS {
                stage.extend(next..next + batch as u32);
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
        while next < ELEMENTS {
            rx.receive(&mut out, batch);
            if out.is_empty() {
                std::hint::spin_loop();
                continue;
            }
            // Branch-free, so that checking costs every queue the same fraction of a cycle.
            let wrong = out.iter().zip(next..).fold(0, |wrong, (&item, expected)| wrong | (item ^ expected));
            assert_eq!(wrong, 0, "lost or reordered near {next}");
            next += out.len() as u32;
            out.clear();
        }
        let end = tsc();
        (end - producer.join().expect("the producer")) as f64 / f64::from(ELEMENTS)
    })
}

/// Sends a number there and waits until it is back; returns the median of cycles a round.
fn ping_pong(
    (mut there_tx, mut there_rx): (impl Tx, impl Rx),
    (mut back_tx, mut back_rx): (impl Tx, impl Rx),
    cpus: [usize; 2],
) -> f64 {
    const ROUNDS: u32 = 20_000;
    fn carry(tx: &mut impl Tx, one: &mut Vec<u32>) {
        while !one.is_empty() {
            tx.send(one);
        }
    }
    fn fetch(rx: &mut impl Rx, one: &mut Vec<u32>) {
        while one.is_empty() {
            rx.receive(one, 1);
            std::hint::spin_loop();
        }
    }
    std::thread::scope(|scope| {
        // Moved, so that each half lives on the stack of its thread.
        scope.spawn(move || {
            pin(cpus[1]);
            let mut one = Vec::with_capacity(1);
            for _ in 0..ROUNDS {
                fetch(&mut there_rx, &mut one);
                carry(&mut back_tx, &mut one);
            }
        });
        pin(cpus[0]);
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
