//! Work of a given time, which stands in for work that a lab does not do.
//!
//! It is the same number of instructions wherever and whenever it is done: a thread that is kept off its core does not have less of it to do.

use std::hint::black_box;

use weir_run::clock::now_ns;

/// The number of rounds of computing that take a given time on this machine when nobody disturbs them.
#[derive(Debug, Clone, Copy)]
pub struct Cost {
    rounds: u64,
}

impl Cost {
    /// Work of about `cost_ns`.
    pub fn of_ns(cost_ns: u64) -> Cost {
        const ROUNDS: u64 = 20_000;
        let lap_ns = |_| {
            let start_ns = now_ns();
            compute(ROUNDS, 1);
            now_ns() - start_ns
        };
        let least_ns = (0..100).map(lap_ns).min().unwrap_or(0).max(1);
        Cost { rounds: (cost_ns * ROUNDS).div_ceil(least_ns) }
    }

    /// Does it, on nothing in particular.
    #[inline]
    pub fn spend(self) {
        compute(self.rounds, 1);
    }

    /// Does it on some bytes, which must have come by then.
    #[inline]
    pub fn spend_on(self, bytes: &[u8]) {
        compute(self.rounds, bytes.last_chunk().map_or(1, |bytes| u64::from_le_bytes(*bytes) | 1));
    }
}

fn compute(rounds: u64, mut word: u64) {
    for _ in 0..rounds {
        word = (word ^ word >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    }
    black_box(word);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dearer_work_takes_more_rounds() {
        let (cheap, dear) = (Cost::of_ns(100), Cost::of_ns(10_000));
        assert!(cheap.rounds > 0 && dear.rounds > 30 * cheap.rounds, "{cheap:?} {dear:?}");
    }
}
