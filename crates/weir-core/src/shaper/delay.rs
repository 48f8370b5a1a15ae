//! How long packets stood in a place: a histogram of powers of two, and the exact longest.
//!
//! Bin `i > 0` counts delays in `[2^(i-1), 2^i)` nanoseconds and bin 0 counts none, so a quantile read from
//! it is at least the true one and less than twice it. Recording is one shift and two stores.
//!
//! Owner: the worker that owns the place; others read copies.

/// Delays of packets, counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DelayHistogram {
    bins: [u64; DelayHistogram::BINS],
    delay_ns_max: u64,
}

impl DelayHistogram {
    /// One bin for each position of a 64-bit delay's highest bit, and one for 0.
    pub const BINS: usize = u64::BITS as usize + 1;

    /// Counts one packet's delay.
    pub fn record(&mut self, delay_ns: u64) {
        self.bins[(u64::BITS - delay_ns.leading_zeros()) as usize] += 1;
        self.delay_ns_max = self.delay_ns_max.max(delay_ns);
    }

    /// How many packets were counted.
    pub fn packets(&self) -> u64 {
        self.bins.iter().sum()
    }

    /// The longest delay, exact.
    pub fn delay_ns_max(&self) -> u64 {
        self.delay_ns_max
    }

    /// An upper bound of the `per_mille` / 1000 quantile, under twice the true one; 0 when nothing was
    /// counted.
    pub fn quantile_ns(&self, per_mille: u32) -> u64 {
        let packets = self.packets();
        let rank = (u128::from(packets) * u128::from(per_mille)).div_ceil(1000).max(1);
        let mut seen = 0u128;
        for (bin, &count) in self.bins.iter().enumerate() {
            seen += u128::from(count);
            if seen >= rank {
                return upper_ns(bin).min(self.delay_ns_max);
            }
        }
        self.delay_ns_max
    }

    /// The bins that are not empty: the longest delay each covers, and its count.
    pub fn bins(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.bins
            .iter()
            .enumerate()
            .filter(|(_, count)| **count > 0)
            .map(|(bin, &count)| (upper_ns(bin), count))
    }

    /// Adds another place's delays to these.
    pub fn merge(&mut self, other: &DelayHistogram) {
        for (mine, theirs) in self.bins.iter_mut().zip(&other.bins) {
            *mine += theirs;
        }
        self.delay_ns_max = self.delay_ns_max.max(other.delay_ns_max);
    }
}

impl Default for DelayHistogram {
    fn default() -> DelayHistogram {
        DelayHistogram { bins: [0; DelayHistogram::BINS], delay_ns_max: 0 }
    }
}

/// The longest delay that falls into a bin.
fn upper_ns(bin: usize) -> u64 {
    1u64.checked_shl(bin as u32).map_or(u64::MAX, |past| past - 1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_quantile_is_never_below_the_true_one_nor_twice_it(
            mut delays in prop::collection::vec((any::<u64>(), 0u32..64).prop_map(|(d, s)| d >> s), 1..200),
            per_mille in 0u32..=1000,
        ) {
            let (mut histogram, mut half) = (DelayHistogram::default(), DelayHistogram::default());
            for (index, &delay_ns) in delays.iter().enumerate() {
                if index % 2 == 0 { half.record(delay_ns) } else { histogram.record(delay_ns) }
            }
            histogram.merge(&half);
            delays.sort_unstable();
            let rank = (delays.len() * per_mille as usize).div_ceil(1000).max(1);
            let (exact_ns, told_ns) = (delays[rank - 1], histogram.quantile_ns(per_mille));
            prop_assert!(told_ns >= exact_ns && told_ns / 2 <= exact_ns, "{told_ns} for {exact_ns}");
            prop_assert_eq!(histogram.delay_ns_max(), *delays.last().unwrap());
            prop_assert_eq!(histogram.packets(), delays.len() as u64);
            prop_assert_eq!(histogram.bins().map(|(_, count)| count).sum::<u64>(), delays.len() as u64);
        }
    }

    #[test]
    fn nothing_counted_is_no_delay() {
        assert_eq!(DelayHistogram::default().quantile_ns(990), 0);
    }
}
