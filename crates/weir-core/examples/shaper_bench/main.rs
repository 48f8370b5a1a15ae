//! The cost of the queue of times that class trees wait by, in cycles of the time-stamp counter, beside a binary heap that does the same.
//!
//! `cargo run --release -p weir-core --example shaper_bench`. The two sides take turns for [`bench::REPEATS`] repeats. A repeat's figure is
//! the median of many stretches of some tens of microseconds, so that an interrupt does not show; shown are the median and the quartiles of
//! the repeats. Caches shared with busy neighbours do show, most with the largest numbers of flows.

#[cfg(not(target_arch = "x86_64"))]
fn main() {
    eprintln!("skipped: cycles are read from the x86-64 time-stamp counter");
}

#[cfg(target_arch = "x86_64")]
fn main() -> std::process::ExitCode {
    bench::run()
}

#[cfg(target_arch = "x86_64")]
#[path = "../../../../benches/cycles.rs"]
mod cycles;

#[cfg(target_arch = "x86_64")]
#[path = "../../../../benches/floors.rs"]
mod floors;

#[cfg(target_arch = "x86_64")]
mod order;

#[cfg(target_arch = "x86_64")]
mod bench {
    use std::hint::black_box;

    use super::cycles::{now_cycles, tsc_hz};
    use super::floors::Floors;
    use super::order::order;

    pub const REPEATS: usize = 5;

    pub fn run() -> std::process::ExitCode {
        println!("{}", calibration());
        println!("cycles, median [quartiles] of {REPEATS}");
        let mut floors = Floors::default();
        let [_, times, _] = [1_000, 100_000, 1_000_000].map(order);
        // Measured: 11.5 to 15 times.
        floors.at_least("heap / the minimum of the bucket queue, 100000 flows", times, 8.0);
        floors.finish()
    }

    /// The flows in an order that memory could not guess.
    fn shuffled(flows: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..flows).collect();
        let mut random = 1;
        for index in (1..flows).rev() {
            order.swap(index, next_random(&mut random) as usize % (index + 1));
        }
        order
    }

    pub fn next_random(random: &mut u64) -> u64 {
        *random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        *random >> 33
    }

    /// The median of many short stretches, so that being interrupted in some of them does not show.
    pub fn median(chunks: &mut [f64]) -> f64 {
        chunks.sort_by(f64::total_cmp);
        chunks[chunks.len() / 2]
    }

    /// Prints both, and the ratio of the heap's cycles to ours; returns ours and the ratio.
    pub fn versus(name: &str, ours: Vec<f64>, theirs: Vec<f64>) -> (f64, f64) {
        let ours = print(name, "weir", ours);
        let theirs = print(name, "BinaryHeap", theirs);
        println!("{:52} {:14} {:8.1} times", "", "", theirs / ours);
        (ours, theirs / ours)
    }

    fn print(name: &str, system: &str, mut cycles: Vec<f64>) -> f64 {
        cycles.sort_by(f64::total_cmp);
        let at = |quarter: usize| cycles[quarter * (cycles.len() - 1) / 4];
        println!("{name:52} {system:14} {:8.1} [{:.1} {:.1}]", at(2), at(1), at(3));
        at(2)
    }

    /// The measures to read the figures against: the counter's pace, the cost of a load that no cache holds, and how many of the counter's
    /// cycles one of the core's takes, which grows when neighbours are busy.
    fn calibration() -> String {
        const LINES: usize = 1 << 20;
        let order = shuffled(LINES);
        // A ring through all lines in that order, 16 words a line.
        let mut ring = vec![0u32; LINES * 16];
        for (from, to) in order.iter().zip(order.iter().cycle().skip(1)) {
            ring[from * 16] = *to as u32;
        }
        let (start, mut at) = (now_cycles(), 0u32);
        for _ in 0..LINES / 16 {
            at = ring[at as usize * 16];
        }
        black_box(at);
        let load = (now_cycles() - start) as f64 / (LINES / 16) as f64;
        let core = core_cycles();
        let (core, least, most) = (core[core.len() / 2], core[0], core[core.len() - 1]);
        format!(
            "calibration: {:.0} MHz, {load:.0} cycles for a load from 64 MiB, {core:.2} ({least:.2} to {most:.2}) for one of the core",
            tsc_hz() / 1e6
        )
    }

    /// The counter's cycles for one of the core's in some stretches of time, by products that wait for one another, the least
    /// first.
    fn core_cycles() -> Vec<f64> {
        const STRETCHES: usize = 41;
        const PRODUCTS: u64 = 300_000;
        /// The core's cycles for one step: three for the product and one for the bit, on every x86-64 core of the last ten years.
        const CYCLES_A_PRODUCT: u64 = 4;
        let mut cycles: Vec<f64> = (0..STRETCHES)
            .map(|_| {
                let (start, mut product) = (now_cycles(), 3_u64);
                (0..PRODUCTS).for_each(|_| product = product.wrapping_mul(product | 1));
                black_box(product);
                (now_cycles() - start) as f64 / (PRODUCTS * CYCLES_A_PRODUCT) as f64
            })
            .collect();
        cycles.sort_by(f64::total_cmp);
        cycles
    }
}
