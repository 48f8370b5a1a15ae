//! The order alone, for which shapers have a bucket queue, beside a binary heap.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use weir_core::shaper::buckets::{Buckets, NONE};

use super::bench::{REPEATS, median, next_random, versus};
use super::cycles::now_cycles;

/// Flows that are taken out at a time, fewer than there are.
const TAKEN: usize = 256;

/// Takes the flows with the earliest times out, [`TAKEN`] at a time, and puts them back later. Both ways are timed, and shown apart and
/// together. Returns the ratio of the heap's cycles to ours for taking the earliest out.
pub fn order(flows: usize) -> f64 {
    const ROUNDS: usize = 1 << 12;
    // The delays with which flows are put back, drawn beforehand: drawing would cost as much as the measured work.
    let mut random = 1;
    let drawn: Vec<u64> = (0..4096).map(|_| next_random(&mut random) % 100_000_000).collect();
    let bucket_queue = || {
        let mut buckets = Buckets::new(10, 0);
        let mut next = vec![NONE; flows];
        for (item, next) in next.iter_mut().enumerate() {
            *next = buckets.push(drawn[item % 4096], item as u32);
        }
        let (mut now_ns, mut out) = (0, Vec::with_capacity(TAKEN));
        let mut round = || {
            let start = now_cycles();
            while out.len() < TAKEN {
                now_ns = buckets.next_ns().unwrap_or(now_ns);
                let mut item = buckets.take_due(now_ns).unwrap_or(NONE);
                while item != NONE && out.len() < TAKEN {
                    out.push((now_ns, item));
                    item = next[item as usize];
                }
                // The rest of a bucket goes back before the next is taken.
                while item != NONE {
                    let following = next[item as usize];
                    next[item as usize] = buckets.push(now_ns, item);
                    item = following;
                }
            }
            let taken = now_cycles();
            for ((at_ns, item), ahead_ns) in out.drain(..).zip(drawn.iter().cycle()) {
                next[item as usize] = buckets.push(at_ns + ahead_ns, item);
            }
            [taken - start, now_cycles() - taken]
        };
        medians((0..ROUNDS).map(|_| round()))
    };
    let heap = || {
        let items = (0..flows).map(|item| Reverse((drawn[item % 4096], item as u32)));
        let mut heap: BinaryHeap<Reverse<(u64, u32)>> = items.collect();
        let mut out = Vec::with_capacity(TAKEN);
        let mut round = || {
            let start = now_cycles();
            while out.len() < TAKEN {
                let Some(Reverse(first)) = heap.pop() else { break };
                out.push(first);
            }
            let taken = now_cycles();
            for ((at_ns, item), ahead_ns) in out.drain(..).zip(drawn.iter().cycle()) {
                heap.push(Reverse((at_ns + ahead_ns, item)));
            }
            [taken - start, now_cycles() - taken]
        };
        medians((0..ROUNDS).map(|_| round()))
    };
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for repeat in 0..REPEATS {
        if repeat % 2 == 0 {
            ours.push(bucket_queue());
            theirs.push(heap());
        } else {
            theirs.push(heap());
            ours.push(bucket_queue());
        }
    }
    let [out, ..] = [(0, "earliest out"), (1, "back in later"), (2, "out and in")].map(|(part, what)| {
        let part = |all: &[[f64; 3]]| all.iter().map(|parts| parts[part]).collect();
        versus(&format!("{what}, {flows} flows"), part(&ours), part(&theirs)).1
    });
    out
}

/// The median of each part for one item, and the sum of these.
fn medians(rounds: impl Iterator<Item = [u64; 2]>) -> [f64; 3] {
    let rounds: Vec<[u64; 2]> = rounds.collect();
    let [out, back] = [0, 1].map(|part| {
        let mut cycles: Vec<f64> = rounds.iter().map(|round| round[part] as f64 / TAKEN as f64).collect();
        median(&mut cycles)
    });
    [out, back, out + back]
}
