//! The waits of packets in a place: a histogram with four bins for each power of two, and the exact longest.
//!
//! ```text
//! bin of a delay = 4 shift + (delay >> shift)        shift = the position of its highest bit, less 2; 0 at least
//! ```
//!
//! A delay below 8 ns has a bin of its own, any other shares one with delays that begin with the same three bits, so a quantile read from
//! it is at least the true one and less than 1.25 times it.
//!
//! Owner: the worker that owns the place; others read copies. Source: the bucket layout of HdrHistogram.

use std::hint::cold_path;

/// The delays of packets, counted in bins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DelayHistogram {
    bins: [u64; DelayHistogram::BINS],
    delay_ns_max: u64,
}

impl DelayHistogram {
    const BINS: usize = bin(u64::MAX) + 1;

    /// Counts one packet's delay.
    #[inline]
    pub fn record(&mut self, delay_ns: u64) {
        self.record_all(delay_ns, 1);
    }

    /// Counts the delay of packets that waited for the same time.
    #[inline]
    pub fn record_all(&mut self, delay_ns: u64, packets: u64) {
        self.bins[bin(delay_ns)] += packets;
        if delay_ns > self.delay_ns_max {
            cold_path();
            self.delay_ns_max = delay_ns;
        }
    }

    /// The number of packets counted.
    pub fn packets(&self) -> u64 {
        self.bins.iter().sum()
    }

    /// The longest delay, exact.
    pub fn delay_ns_max(&self) -> u64 {
        self.delay_ns_max
    }

    /// An upper bound of the `per_mille` / 1000 quantile, under 1.25 times the true one; 0 when no packet was counted.
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

/// The bin of a delay; see the head of the file.
#[inline]
const fn bin(delay_ns: u64) -> usize {
    let shift = (delay_ns | 7).ilog2() - 2;
    (4 * shift) as usize + (delay_ns >> shift) as usize
}

/// The longest delay that falls into a bin.
fn upper_ns(bin: usize) -> u64 {
    // A bin of shift s > 0 is one of 4 s + 4 .. 4 s + 8.
    let shift = (bin / 4).saturating_sub(1);
    let last = (bin - 4 * shift) as u64;
    last << shift | ((1 << shift) - 1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_quantile_is_never_below_the_true_one_nor_a_quarter_above_it(
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
            prop_assert!(told_ns >= exact_ns && told_ns - exact_ns <= exact_ns / 4, "{told_ns} for {exact_ns}");
            prop_assert_eq!(histogram.delay_ns_max(), *delays.last().unwrap());
            prop_assert_eq!(histogram.packets(), delays.len() as u64);
        }
    }

    #[test]
    fn bins_follow_one_another_without_a_gap() {
        for index in 0..DelayHistogram::BINS {
            let last_ns = upper_ns(index);
            assert_eq!(bin(last_ns), index);
            assert_eq!(last_ns.checked_add(1).map_or(index + 1, bin), index + 1);
        }
    }

    #[test]
    fn nothing_counted_is_no_delay() {
        assert_eq!(DelayHistogram::default().quantile_ns(990), 0);
    }
}
