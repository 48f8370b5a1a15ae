//! A burst's flow hashes parted by worker, sixty-four at a time (AVX2).
//!
//! The rule:
//!
//! ```text
//! worker of hash t = table[hash t & mask],   set w = the numbers t of all hashes of worker w, as bits
//! ```
//!
//! The table is looked up in registers, sixteen buckets by one byte shuffle, so no look-up waits for another. Then the workers'
//! numbers are told apart bit by bit: the hashes whose worker has bit `b` set are a set too, by one instruction for 32 of them, and
//! parts each set made so far into two. So nothing branches on a hash, and no set waits for what the hash before has just written
//! to it, which is what adding each hash to its worker's set costs, the more the fewer workers there are.
//!
//! Source: Hacker's Delight, chapter 2; Intel SDM vol. 2, VPSHUFB, VPMOVMSKB.
//!
//! Ownership: no state. Limits: 64 hashes, 64 workers, 128 buckets.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

/// Hashes in a burst at most, and bits of a set.
pub const HASHES: usize = 64;

/// Workers at most, and so sets.
pub const WORKERS_MAX: usize = 64;

/// Buckets at most.
pub const BUCKETS_MAX: usize = 128;

/// Can only be had on a processor that has the instructions.
#[derive(Clone, Copy)]
pub struct PartitionKernel(());

impl PartitionKernel {
    /// `None` if this processor lacks AVX2.
    pub fn new() -> Option<PartitionKernel> {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") {
            return Some(PartitionKernel(()));
        }
        None
    }

    /// Parts the first `len` hashes: sets below the number of workers, rounded up to a power of two and at least 4, are written,
    /// those of workers that got nothing with 0. Returns the set of workers that got any. `table` holds numbers of such workers.
    ///
    /// # Panics
    /// If there are more hashes, buckets or workers than the limits say.
    pub fn part(
        self,
        hashes: &[u32; HASHES],
        len: usize,
        table: &[u8; BUCKETS_MAX],
        mask: u32,
        workers: usize,
        sets: &mut [u64; WORKERS_MAX],
    ) -> u64 {
        assert!(len <= HASHES && mask < BUCKETS_MAX as u32 && (1..=WORKERS_MAX).contains(&workers));
        let valid = u64::MAX.checked_shr((HASHES - len) as u32).unwrap_or(0);
        // SAFETY: the function needs AVX2, and `new` makes no value without it.
        unsafe { part(hashes, valid, table, mask, workers, sets) }
    }
}

#[cfg(not(target_arch = "x86_64"))]
unsafe fn part(
    _hashes: &[u32; HASHES],
    _valid: u64,
    _table: &[u8; BUCKETS_MAX],
    _mask: u32,
    _workers: usize,
    _sets: &mut [u64; WORKERS_MAX],
) -> u64 {
    unreachable!("only x86-64 has a kernel")
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn part(
    hashes: &[u32; HASHES],
    valid: u64,
    table: &[u8; BUCKETS_MAX],
    mask: u32,
    workers: usize,
    sets: &mut [u64; WORKERS_MAX],
) -> u64 {
    let halves = hashes.as_chunks::<32>().0;
    let workers_of = [look_up(&halves[0], table, mask), look_up(&halves[1], table, mask)];
    // The bit asked for is moved to each byte's top, where an instruction gathers it. What comes in from the byte below does not
    // get there.
    let with_bit = |bit: i32| {
        let shift = _mm_cvtsi32_si128(7 - bit);
        let [low, high] = workers_of.map(|half| _mm256_movemask_epi8(_mm256_sll_epi16(half, shift)) as u32);
        u64::from(low) | u64::from(high) << 32
    };

    let (odd, upper) = (with_bit(0), with_bit(1));
    let (fours, _) = sets.as_chunks_mut::<4>();
    fours[0] = [valid & !odd & !upper, valid & odd & !upper, valid & !odd & upper, valid & odd & upper];
    let bits = workers.next_power_of_two().ilog2().max(2);
    for bit in 2..bits {
        let ones = with_bit(bit as i32);
        let (told_apart, rest) = fours.split_at_mut(1 << bit >> 2);
        for (without, with) in told_apart.iter_mut().zip(rest) {
            *with = without.map(|set| set & ones);
            *without = without.map(|set| set & !ones);
        }
    }
    let is_any = |four: &[u64; 4]| {
        // SAFETY: reads the 32 bytes of the array; the load needs no alignment.
        let four = unsafe { _mm256_loadu_si256(four.as_ptr().cast()) };
        let is_empty = _mm256_cmpeq_epi64(four, _mm256_setzero_si256());
        u64::from(!_mm256_movemask_pd(_mm256_castsi256_pd(is_empty)) as u8 & 0xf)
    };
    let fours = &fours[..1 << bits >> 2];
    fours.iter().enumerate().fold(0, |any, (i, four)| any | is_any(four) << (4 * i))
}

/// The workers of 32 hashes, a byte each.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
#[inline]
fn look_up(hashes: &[u32; 32], table: &[u8; BUCKETS_MAX], mask: u32) -> __m256i {
    let in_mask = _mm256_set1_epi32(mask as i32);
    let eight = |i: usize| {
        let hashes = &hashes.as_chunks::<8>().0[i];
        // SAFETY: reads the 32 bytes of the array; the load needs no alignment.
        _mm256_and_si256(unsafe { _mm256_loadu_si256(hashes.as_ptr().cast()) }, in_mask)
    };
    // Packing stays within the halves of a register, so fours of both halves are in turn: 0 8 16 24, then 4 12 20 28.
    let packed =
        _mm256_packus_epi16(_mm256_packus_epi32(eight(0), eight(1)), _mm256_packus_epi32(eight(2), eight(3)));
    let buckets = _mm256_permutevar8x32_epi32(packed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));

    let sixteens = table.as_chunks::<16>().0.iter().take(mask as usize / 16 + 1);
    sixteens.enumerate().fold(_mm256_setzero_si256(), |workers, (i, sixteen)| {
        // SAFETY: reads the 16 bytes of the array; the load needs no alignment.
        let sixteen = _mm256_broadcastsi128_si256(unsafe { _mm_loadu_si128(sixteen.as_ptr().cast()) });
        // A bucket of these sixteen keeps its low four bits and a clear top bit; any other has it set, and so looks up a 0.
        let within = _mm256_xor_si256(buckets, _mm256_set1_epi8((16 * i) as i8));
        let within = _mm256_adds_epu8(within, _mm256_set1_epi8(0x70));
        _mm256_or_si256(workers, _mm256_shuffle_epi8(sixteen, within))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_hashes_are_parted_by_the_rule(
            hashes in prop::collection::vec(any::<u32>(), HASHES),
            len in 0..=HASHES,
            bits in 0_u32..=7,
            workers in 1..=WORKERS_MAX,
            dealt in prop::collection::vec(any::<usize>(), BUCKETS_MAX),
        ) {
            let Some(kernel) = PartitionKernel::new() else {
                eprintln!("skipped: this processor has no AVX2");
                return Ok(());
            };
            let hashes: [u32; HASHES] = hashes.try_into().unwrap();
            let mask = (1 << bits) - 1;
            let table: [u8; BUCKETS_MAX] = std::array::from_fn(|bucket| (dealt[bucket] % workers) as u8);
            let mut expected = [0_u64; WORKERS_MAX];
            for (t, hash) in hashes[..len].iter().enumerate() {
                expected[usize::from(table[(hash & mask) as usize])] |= 1 << t;
            }
            // What an earlier burst left must not show.
            let mut sets = [u64::MAX; WORKERS_MAX];
            let any = kernel.part(&hashes, len, &table, mask, workers, &mut sets);
            prop_assert_eq!(&sets[..workers], &expected[..workers]);
            prop_assert_eq!(any, (0..WORKERS_MAX).fold(0, |any, w| any | u64::from(expected[w] != 0) << w));
        }
    }

    #[test]
    fn limits_are_kept() {
        let Some(kernel) = PartitionKernel::new() else {
            return eprintln!("skipped: this processor has no AVX2");
        };
        for (len, mask, workers) in [(65, 0, 1), (0, 128, 1), (0, 0, 0), (0, 0, 65)] {
            let part = || kernel.part(&[0; 64], len, &[0; 128], mask, workers, &mut [0; 64]);
            assert!(std::panic::catch_unwind(part).is_err(), "{len} {mask} {workers}");
        }
    }
}
