//! A pseudo-random number generator without floating point, so that a seed replays on every machine.
//!
//! SplitMix64: the state advances by a fixed odd constant `GAMMA` and is mixed by two multiply-xorshift rounds.
//! Every 64-bit seed gives a full period of 2^64; streams of different seeds are independent enough for a model.
//!
//! Owner: one per simulation; drawing from it in event order makes a run repeatable.
//! Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators" (OOPSLA 2014).
//! Limits: not for secrets. `below` keeps a bias of at most `bound` / 2^64.

/// The generator.
#[derive(Clone, Debug)]
pub struct Prng {
    state: u64,
}

const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

impl Prng {
    /// The generator for `seed`.
    pub fn new(seed: u64) -> Prng {
        Prng { state: seed }
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(GAMMA);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number in `0..bound`; 0 for a bound of 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// A number in `low..=high`.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        debug_assert!(low <= high);
        low + self.below(high - low + 1)
    }

    /// True in `permille` of 1000 draws.
    pub fn chance(&mut self, permille: u64) -> bool {
        self.below(1000) < permille
    }

    /// `mean` spread evenly over `mean` plus or minus `percent` percent.
    pub fn spread(&mut self, mean: u64, percent: u64) -> u64 {
        let half = mean * percent / 100;
        self.between(mean - half.min(mean), mean + half)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_values_of_splitmix64() {
        // The reference implementation's first outputs for seed 1234567.
        let mut prng = Prng::new(1_234_567);
        assert_eq!(prng.next_u64(), 6_457_827_717_110_365_317);
        assert_eq!(prng.next_u64(), 3_203_168_211_198_807_973);
    }

    #[test]
    fn draws_stay_in_range_and_are_centred() {
        let mut prng = Prng::new(7);
        let mut sum = 0;
        for _ in 0..100_000 {
            let drawn = prng.spread(1_000, 25);
            assert!((750..=1_250).contains(&drawn));
            sum += drawn;
        }
        assert!((99_500_000..100_500_000).contains(&sum), "mean {}", sum / 100_000);
        assert_eq!(prng.below(0), 0);
        assert_eq!((0..10_000).filter(|_| prng.chance(1000)).count(), 10_000);
        assert_eq!((0..10_000).filter(|_| prng.chance(0)).count(), 0);
    }
}
