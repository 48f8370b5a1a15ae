//! A rate: the bits that may pass in a second. Immutable and shareable; the state of a limit is its bucket's.
//!
//! The rate is kept in bits per second, the unit it is written in everywhere (`200mbit`), so nothing is rounded on the way in. Zero is not
//! a rate: a class that may never send is closed, and a division by zero cannot be written.

use std::num::NonZeroU64;

/// Nanoseconds in a second.
pub const NS_PER_S: u64 = 1_000_000_000;

/// A positive number of bits per second.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rate(NonZeroU64);

impl Rate {
    /// A rate of `bits_per_s`; `None` for 0.
    pub const fn from_bits_per_s(bits_per_s: u64) -> Option<Rate> {
        match NonZeroU64::new(bits_per_s) {
            Some(rate) => Some(Rate(rate)),
            None => None,
        }
    }

    /// The rate in bits per second.
    pub const fn bits_per_s(self) -> u64 {
        self.0.get()
    }

    /// The time that `len_bytes` take at this rate, in nanoseconds, rounded up; saturates at about 584 years.
    pub const fn ns_for(self, len_bytes: u64) -> u64 {
        let ns = (len_bytes as u128 * 8 * NS_PER_S as u128).div_ceil(self.0.get() as u128);
        if ns > u64::MAX as u128 { u64::MAX } else { ns as u64 }
    }

    /// The whole bytes that pass in `ns` nanoseconds; saturates.
    pub const fn bytes_in(self, ns: u64) -> u64 {
        let bytes = ns as u128 * self.0.get() as u128 / (8 * NS_PER_S as u128);
        if bytes > u64::MAX as u128 { u64::MAX } else { bytes as u64 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_and_bytes_are_inverse_to_a_byte() {
        assert_eq!(Rate::from_bits_per_s(0), None);
        let rate = Rate::from_bits_per_s(200_000_000).unwrap();
        assert_eq!(rate.ns_for(1514), 60_560);
        assert_eq!(rate.bytes_in(60_560), 1514);
        assert_eq!(rate.bytes_in(5_000_000), 125_000);
        for bits_per_s in [1, 7, 999, 1_000_000_007, u64::MAX] {
            let rate = Rate::from_bits_per_s(bits_per_s).unwrap();
            for len_bytes in [1, 64, 1514, 9000] {
                let ns = rate.ns_for(len_bytes);
                assert!(rate.bytes_in(ns) >= len_bytes, "{bits_per_s} {len_bytes}");
            }
        }
        assert_eq!(Rate::from_bits_per_s(1).unwrap().ns_for(u64::MAX), u64::MAX);
    }
}
