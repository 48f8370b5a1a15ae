//! Measures hand-offs between two pinned threads beside the field's best queues, in one run.
//!
//! `cargo run -p weir-ring --release --example handoff_bench -- [--capacity 1024] [--repeats 9] [--cpus 0,1]`
//!
//! Rule: every queue is measured `repeats` times, in an order that turns round each time (ABBA), so that a slow drift of
//! the machine falls on all alike. A run moves `ELEMENTS` numbers, checks that all arrived in order, and takes the time
//! from the start of the producer to the consumer's last element. Ratios are of the same repeat.
//! Limits: figures hold for the machine of the calibration line only; compare ratios between machines.

mod machine;
mod queues;

use machine::{median, pin, tsc};
use queues::{Rx, Tx};
use std::sync::Barrier;

const ELEMENTS: u32 = 1 << 22;

fn main() {
    let options = Options::parse();
    println!("{}", machine::calibrate(options.cpus));
    println!("capacity {}, {} elements a run, {} repeats", options.capacity, ELEMENTS, options.repeats);
    for batch in [8, 32] {
        stream_table(&options, batch);
    }
}

struct Options {
    capacity: usize,
    repeats: usize,
    cpus: [usize; 2],
}

impl Options {
    fn parse() -> Options {
        let mut options = Options { capacity: 1024, repeats: 9, cpus: [0, 1] };
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

/// A sustained stream: cycles an element, all queues beside each other.
fn stream_table(options: &Options, batch: usize) {
    let systems: [(&str, &dyn Fn() -> f64); 5] = [
        ("weir", &|| stream(queues::weir(options.capacity), batch, options.cpus)),
        ("rtrb-chunks", &|| stream(queues::rtrb_chunks(options.capacity), batch, options.cpus)),
        ("rtrb", &|| stream(queues::rtrb_single(options.capacity), batch, options.cpus)),
        ("array-queue", &|| stream(queues::array_queue(options.capacity), batch, options.cpus)),
        ("channel", &|| stream(queues::channel(options.capacity), batch, options.cpus)),
    ];
    println!("\nstream, batch {batch}: cycles/element");
    let samples = abba(&systems, options.repeats);
    for (index, (name, _)) in systems.iter().enumerate() {
        let ratios: Vec<f64> =
            samples[index].iter().zip(&samples[0]).map(|(peer, weir)| peer / weir).collect();
        println!("  {name:<12} {}   x weir {}", Spread::of(&samples[index]), Spread::of(&ratios));
    }
}

/// Runs every system `repeats` times, forwards and backwards in turn.
fn abba(systems: &[(&str, &dyn Fn() -> f64)], repeats: usize) -> Vec<Vec<f64>> {
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
    let start_line = Barrier::new(2);
    std::thread::scope(|scope| {
        let producer = scope.spawn(|| {
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
