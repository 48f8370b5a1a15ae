//! The check that a limit was kept over *every* window, from outside, exactly and in constant memory.
//!
//! ```text
//! for all i <= k:  bytes(i..=k) x 8e9  <=  burst x 8e9 + rate x (t_k - t_i)
//! ```
//!
//! With `S_k` the bytes out before packet `k`, that is `S_(k+1) x 8e9 - rate x t_k <= burst x 8e9 + min over i <= k of
//! (S_i x 8e9 - rate x t_i)`: one running minimum stands for all windows. Units are 1e-9 bit.
//!
//! Owner: the run's checkers. Limits: packets longer than the burst are not allowed for; scenarios have none.

use weir_core::rate::{NS_PER_S, Rate};

/// A watch over the packets that leave a limit.
#[derive(Debug)]
pub struct Conformance {
    bits_per_s: i128,
    burst_units: i128,
    out_units: i128,
    lowest: i128,
}

impl Conformance {
    /// A watch over `rate` and `burst_bytes`.
    pub fn new(rate: Rate, burst_bytes: u64) -> Conformance {
        Conformance {
            bits_per_s: i128::from(rate.bits_per_s()),
            burst_units: units(burst_bytes),
            out_units: 0,
            lowest: i128::MAX,
        }
    }

    /// Notes that a packet left at `now_ns`: false if some window that ends with it has more than the limit allows.
    pub fn leaves(&mut self, len_bytes: u32, now_ns: u64) -> bool {
        let earned = self.bits_per_s * i128::from(now_ns);
        self.lowest = self.lowest.min(self.out_units - earned);
        self.out_units += units(u64::from(len_bytes));
        self.out_units - earned <= self.burst_units + self.lowest
    }
}

fn units(bytes: u64) -> i128 {
    i128::from(bytes) * 8 * i128::from(NS_PER_S)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prng::Prng;

    #[test]
    fn agrees_with_looking_at_every_window() {
        let rate = Rate::from_bits_per_s(8_000_000).unwrap();
        let (mut kept, mut broken) = (0, 0);
        for seed in 0..300 {
            let mut prng = Prng::new(seed);
            let mut watch = Conformance::new(rate, 3_000);
            let mut packets: Vec<(u64, u64)> = Vec::new();
            let mut now_ns = 0;
            for _ in 0..30 {
                now_ns += prng.below(1_500_000);
                let len_bytes = prng.between(60, 1514);
                packets.push((now_ns, len_bytes));
                let every_window = (0..packets.len()).all(|first| {
                    let bytes: u64 = packets[first..].iter().map(|packet| packet.1).sum();
                    bytes * 1000 <= 3_000 * 1000 + (now_ns - packets[first].0)
                });
                assert_eq!(watch.leaves(len_bytes as u32, now_ns), every_window, "seed {seed}");
                if every_window { kept += 1 } else { broken += 1 }
            }
        }
        assert!(kept > 1_000 && broken > 1_000, "both answers occurred: {kept} and {broken}");
    }
}
