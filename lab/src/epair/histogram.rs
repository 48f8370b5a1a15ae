//! A histogram of times: a bucket is at most a sixteenth wide, so that a percentile is that exact.
//!
//! Below 16 ns each value has its bucket. Above, with `e` the exponent of the value's leading bit, the bucket is `e` and the
//! four bits that follow it. Printed as review D38843 prints it: by powers of two, each named by its lower end.
//!
//! Source: the bucket layout of HdrHistogram; `quantize()` of dtrace for the powers of two.

/// Bits that a bucket keeps beside the leading one.
const PRECISION: u32 = 4;
const BUCKETS: usize = (64 - PRECISION as usize + 1) << PRECISION;

/// A histogram of nanoseconds.
#[derive(Debug, Clone)]
pub struct Histogram {
    counts: Vec<u64>,
    max_ns: u64,
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram { counts: vec![0; BUCKETS], max_ns: 0 }
    }
}

impl Histogram {
    /// Counts one more.
    pub fn add(&mut self, ns: u64) {
        self.counts[bucket(ns)] += 1;
        self.max_ns = self.max_ns.max(ns);
    }

    /// Counts all of another.
    pub fn merge(&mut self, other: &Histogram) {
        self.counts.iter_mut().zip(&other.counts).for_each(|(count, more)| *count += more);
        self.max_ns = self.max_ns.max(other.max_ns);
    }

    /// The longest, exact; `None` if there is none.
    pub fn max_ns(&self) -> Option<u64> {
        (self.total() > 0).then_some(self.max_ns)
    }

    /// The least value that `share` of all do not exceed, to a sixteenth; `None` if there is none.
    pub fn quantile_ns(&self, share: f64) -> Option<u64> {
        let wanted = (self.total() as f64 * share).ceil().max(1.0) as u64;
        let mut below = 0;
        let reached = |count: &u64| {
            below += count;
            below >= wanted
        };
        Some(upper_end(self.counts.iter().position(reached)?).min(self.max_ns))
    }

    /// Counts by powers of two, each with its lower end, from the first that is not 0 to the last.
    pub fn powers_of_two(&self) -> Vec<[u64; 2]> {
        let mut powers: Vec<[u64; 2]> = (0..64).map(|exponent| [1 << exponent, 0]).collect();
        for (bucket, count) in self.counts.iter().enumerate() {
            powers[lower_end(bucket).max(1).ilog2() as usize][1] += count;
        }
        let end = powers.iter().rposition(|[_, count]| *count > 0).map_or(0, |last| last + 1);
        powers.truncate(end);
        powers.into_iter().skip_while(|[_, count]| *count == 0).collect()
    }

    fn total(&self) -> u64 {
        self.counts.iter().sum()
    }
}

fn bucket(ns: u64) -> usize {
    if ns < 1 << PRECISION {
        return ns as usize;
    }
    let shift = ns.ilog2() - PRECISION;
    ((shift as usize) << PRECISION) + (ns >> shift) as usize
}

fn lower_end(bucket: usize) -> u64 {
    let (group, rest) = (bucket >> PRECISION, (bucket & ((1 << PRECISION) - 1)) as u64);
    match group {
        0 => rest,
        _ => ((1 << PRECISION) + rest) << (group - 1),
    }
}

fn upper_end(bucket: usize) -> u64 {
    if bucket + 1 < BUCKETS { lower_end(bucket + 1) - 1 } else { u64::MAX }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_lies_in_its_bucket_and_buckets_are_narrow() {
        let mut values: Vec<u64> = (0..5000).collect();
        values
            .extend((12..64).flat_map(|exponent| [(1 << exponent) - 1, 1 << exponent, 3 << (exponent - 1)]));
        values.push(u64::MAX);
        for ns in values {
            let (low, high) = (lower_end(bucket(ns)), upper_end(bucket(ns)));
            assert!(low <= ns && ns <= high, "{ns} is not in {low}..={high}");
            assert!(high - low <= ns / 16, "{low}..={high} is too wide");
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn powers_of_two_are_named_by_their_lower_end() {
        let mut histogram = Histogram::default();
        [0, 1, 4, 7, 8, 1000, 1024].into_iter().for_each(|ns| histogram.add(ns));
        let powers = histogram.powers_of_two();
        assert_eq!(powers[..4], [[1, 2], [2, 0], [4, 2], [8, 1]]);
        assert_eq!(powers[powers.len() - 2..], [[512, 1], [1024, 1]]);
        assert_eq!(powers.iter().map(|[_, count]| count).sum::<u64>(), 7);
        assert!(Histogram::default().powers_of_two().is_empty());
    }

    #[test]
    fn percentiles_are_a_sixteenth_exact_and_the_longest_is_exact() {
        let mut half = Histogram::default();
        (1..=500).for_each(|ns| half.add(ns * 1000));
        let mut histogram = Histogram::default();
        (501..=1000).for_each(|ns| histogram.add(ns * 1000));
        histogram.merge(&half);
        for (share, exact) in [(0.5, 500_000.0), (0.99, 990_000.0), (0.999, 999_000.0)] {
            let ns = histogram.quantile_ns(share).unwrap() as f64;
            assert!((exact..=exact * 17.0 / 16.0).contains(&ns), "{share}: {ns}");
        }
        assert_eq!(histogram.max_ns(), Some(1_000_000));
        assert_eq!(Histogram::default().quantile_ns(0.5), None);
        assert_eq!(Histogram::default().max_ns(), None);
    }
}
