//! The Toeplitz hash as a product of polynomials over GF(2), eight tuples in two registers (VPCLMULQDQ).
//!
//! The rule. Let `r` be the key bits from bit `32 k` on in reverse, bit `p` of `r` being `key[32 k + p]`, and `w` word `k` of
//! the input as a number, its first bit the most significant, so that input bit `n` is bit `31 - n` of `w`. In the product
//! without carries each such bit adds `r << (31 - n)`, whose bits from 31 on are the key's from `32 k + n` on. So
//!
//! ```text
//! hash, its bits reversed = low 32 bits of (XOR over words k of clmul(r[k], w[k])) >> 31
//! ```
//!
//! All words' products line up, so there is one shift and one reversal for each tuple, however long it is, and of each
//! product only the lower half matters.
//!
//! Source: Microsoft, "RSS Hashing Functions"; Intel SDM vol. 2, PCLMULQDQ.
//! Owner and limits: see [`super`].

use std::arch::x86_64::*;

use super::{GROUP_TUPLES, Group, KEY_LEN_BYTES, WORDS_MAX};

/// A Toeplitz key made ready for the multiplication; can only be had on a processor that has it.
#[derive(Clone)]
pub(super) struct Clmul {
    /// `r[k]` of the header.
    reversed: [u64; WORDS_MAX],
}

impl Clmul {
    /// Prepares `key`; `None` if this processor lacks VPCLMULQDQ or AVX2.
    pub(super) fn new(key: &[u8; KEY_LEN_BYTES]) -> Option<Clmul> {
        if !is_x86_feature_detected!("vpclmulqdq") || !is_x86_feature_detected!("avx2") {
            return None;
        }
        let key_bit = |n: usize| key.get(n / 8).map_or(0, |byte| u64::from(byte >> (7 - n % 8) & 1));
        let reversed = |word: usize| (0..64).fold(0, |bits, p| bits | key_bit(32 * word + p) << p);
        Some(Clmul { reversed: std::array::from_fn(reversed) })
    }

    /// See [`super::Kernel::hash`].
    pub(super) fn hash<const WORDS: usize>(
        &self,
        groups: &[Group<WORDS>],
        hashes: &mut [[u32; GROUP_TUPLES]],
    ) {
        // SAFETY: `hash_groups` needs the instructions that `new` asks for, which makes no value without them.
        unsafe { hash_groups(&self.reversed, groups, hashes) }
    }
}

#[target_feature(enable = "vpclmulqdq,avx2")]
fn hash_groups<const WORDS: usize>(
    reversed: &[u64; WORDS_MAX],
    groups: &[Group<WORDS>],
    hashes: &mut [[u32; GROUP_TUPLES]],
) {
    for (group, hashes) in groups.iter().zip(hashes) {
        for (half, hashes) in hashes.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let words: [&[u32; 8]; WORDS] = std::array::from_fn(|k| &group[k].as_chunks::<8>().0[half]);
            let result = hash_eight(reversed, &words);
            // SAFETY: `hashes` is 32 bytes; the store needs no alignment.
            unsafe { _mm256_storeu_si256(hashes.as_mut_ptr().cast(), result) };
        }
    }
}

/// Each lane of 128 bits has four tuples of its own.
#[target_feature(enable = "vpclmulqdq,avx2")]
#[inline]
fn hash_eight<const WORDS: usize>(reversed: &[u64; WORDS_MAX], words: &[&[u32; 8]; WORDS]) -> __m256i {
    let zero = _mm256_setzero_si256();
    let swap_bytes = both_lanes(_mm_set_epi8(12, 13, 14, 15, 8, 9, 10, 11, 4, 5, 6, 7, 0, 1, 2, 3));
    let mut sums = [zero; 4];
    for (words, reversed) in words.iter().zip(reversed) {
        let key = _mm256_set1_epi64x(*reversed as i64);
        // SAFETY: reads the 32 bytes of the array; the load needs no alignment.
        let words = unsafe { _mm256_loadu_si256(words.as_ptr().cast()) };
        let words = _mm256_shuffle_epi8(words, swap_bytes);
        // Tuples 0 and 1 of each lane, then 2 and 3, as 64-bit numbers.
        let (first, second) = (_mm256_unpacklo_epi32(words, zero), _mm256_unpackhi_epi32(words, zero));
        let products = [
            _mm256_clmulepi64_epi128::<0x00>(first, key),
            _mm256_clmulepi64_epi128::<0x01>(first, key),
            _mm256_clmulepi64_epi128::<0x00>(second, key),
            _mm256_clmulepi64_epi128::<0x01>(second, key),
        ];
        for (sum, product) in sums.iter_mut().zip(products) {
            *sum = _mm256_xor_si256(*sum, product);
        }
    }
    let first = _mm256_srli_epi64::<31>(_mm256_unpacklo_epi64(sums[0], sums[1]));
    let second = _mm256_srli_epi64::<31>(_mm256_unpacklo_epi64(sums[2], sums[3]));
    let packed = _mm256_shuffle_ps::<0b10_00_10_00>(_mm256_castsi256_ps(first), _mm256_castsi256_ps(second));
    reverse_bits(_mm256_castps_si256(packed), swap_bytes)
}

/// Each 32-bit number with its bits in reverse: its bytes swapped, and of each byte the halves, each reversed.
#[target_feature(enable = "avx2")]
#[inline]
fn reverse_bits(numbers: __m256i, swap_bytes: __m256i) -> __m256i {
    let reversed = both_lanes(_mm_set_epi8(15, 7, 11, 3, 13, 5, 9, 1, 14, 6, 10, 2, 12, 4, 8, 0));
    let low_half = _mm256_set1_epi8(0x0f);
    let low = _mm256_and_si256(numbers, low_half);
    let high = _mm256_and_si256(_mm256_srli_epi16::<4>(numbers), low_half);
    let low = _mm256_slli_epi16::<4>(_mm256_shuffle_epi8(reversed, low));
    let high = _mm256_shuffle_epi8(reversed, high);
    _mm256_shuffle_epi8(_mm256_or_si256(low, high), swap_bytes)
}

#[target_feature(enable = "avx2")]
#[inline]
fn both_lanes(lane: __m128i) -> __m256i {
    _mm256_broadcastsi128_si256(lane)
}
