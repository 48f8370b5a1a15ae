//! Two numbers about a run: how equal the shares were, and how long packets took.
//!
//! ```text
//! Jain index = (sum x)^2 / (n x sum x^2)          1: all equal; 1/n: one has everything
//! ```
//!
//! Source: Jain, Chiu, Hawe, "A quantitative measure of fairness", DEC TR-301, 1984. The sums are integers, so the
//! result does not depend on the order of adding; the one division is the only rounding.

/// Jain's index of `shares`; 1 for none or for all zero.
pub fn jain(shares: &[u64]) -> f64 {
    let sum: u128 = shares.iter().copied().map(u128::from).sum();
    let squares: u128 = shares.iter().map(|&share| u128::from(share).pow(2)).sum();
    if squares == 0 {
        return 1.0;
    }
    (sum as f64) * (sum as f64) / (shares.len() as f64 * squares as f64)
}

/// The smallest of `delays_ns` that at least `permille` of 1000 of them do not exceed; 0 for none.
pub fn quantile_ns(delays_ns: &mut [u64], permille: usize) -> u64 {
    delays_ns.sort_unstable();
    let rank = (delays_ns.len() * permille).div_ceil(1000);
    delays_ns.get(rank.saturating_sub(1)).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_values() {
        assert_eq!(jain(&[5, 5, 5]), 1.0);
        assert_eq!(jain(&[7, 0, 0, 0]), 0.25);
        assert_eq!(jain(&[]), 1.0);
        assert_eq!(jain(&[0, 0]), 1.0);
        let mut delays_ns: Vec<u64> = (1..=100).rev().collect();
        assert_eq!(quantile_ns(&mut delays_ns, 500), 50);
        assert_eq!(quantile_ns(&mut delays_ns, 990), 99);
        assert_eq!(quantile_ns(&mut delays_ns, 1000), 100);
        assert_eq!(quantile_ns(&mut [], 500), 0);
    }
}
