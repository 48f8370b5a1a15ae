//! The Toeplitz hash as a product of polynomials over GF(2), two of them in a register (VPCLMULQDQ).
//!
//! The rule. Let `w` be 64 bits of the input as a number, its first bit the most significant, so that input bit `n` is bit
//! `63 - n` of `w`, and `r` the key bits from the same place on in reverse and one to the left: bit `p + 1` of `r` is key bit
//! `p`. In the product without carries each such bit adds `r << (63 - n)`, whose bits from 64 on are the key's from `n` on. So
//!
//! ```text
//! hash, its bits reversed = XOR over 64 bits at a time of bits 64 to 95 of clmul(w, r)
//! ```
//!
//! `r` has 96 bits where the multiplication takes 64: `clmul(w, low(r))` gives those bits in its upper half, `clmul(w, high(r))`
//! in its lower one. Ports, the first half of a `w` that is zero otherwise, need the lower part of `r` alone. All products line
//! up, so there is one reversal for each tuple, however long it is.
//!
//! Products are most of the time, two for each word and one for the ports. Two words `v`, `w` of an address and their parts of the
//! key `r`, `s` need three products instead of four:
//!
//! ```text
//! v r + w s = (v + s) (w + r) + v w + r s
//! ```
//!
//! taken for the lower parts of the key and for the upper ones, for which `v w` is the same; `r s` is the key's alone. An IPv6 tuple so
//! costs seven products, an IPv4 tuple three. The input is kept as the products want it, 64 bits of each tuple together, so no word has to
//! be taken apart before.
//!
//! Source: Microsoft, "RSS Hashing Functions"; Intel SDM vol. 2, PCLMULQDQ; S. Winograd, "A New Algorithm for Inner Product", 1968.
//! Owner and limits: see [`super`].

use std::arch::x86_64::*;

use super::{BATCH_TUPLES, Batch, KEY_LEN_BYTES, WORDS_MAX};

/// A Toeplitz key made ready for the multiplication; a value exists only on a processor that has the instructions.
#[derive(Clone)]
pub(super) struct Clmul {
    /// `r` of the header in two parts, the lower one first, for each word of the addresses, then for the ports.
    reversed: [[u64; 2]; WORDS_MAX + 1],
    /// The share of `r s` in the hash, for each pair of words.
    of_key: [u64; WORDS_MAX / 2],
}

impl Clmul {
    /// Prepares `key`; `None` if this processor lacks VPCLMULQDQ or AVX2.
    pub(super) fn new(key: &[u8; KEY_LEN_BYTES]) -> Option<Clmul> {
        if !is_x86_feature_detected!("vpclmulqdq") || !is_x86_feature_detected!("avx2") {
            return None;
        }
        let key_bit = |n: usize| key.get(n / 8).map_or(0, |byte| u64::from(byte >> (7 - n % 8) & 1));
        let bits = |from: usize, len: usize| (0..len).fold(0, |bits, p| bits | key_bit(from + p) << p);
        let reversed: [[u64; 2]; WORDS_MAX + 1] =
            std::array::from_fn(|word| [bits(64 * word, 63) << 1, bits(64 * word + 63, 32)]);
        let product =
            |r: u64, s: u64| (0..64).filter(|n| r >> n & 1 == 1).fold(0, |sum, n| sum ^ u128::from(s) << n);
        let of_key = |pair: usize| {
            let [[r_low, r_high], [s_low, s_high]] = [reversed[2 * pair], reversed[2 * pair + 1]];
            (product(r_low, s_low) >> 64) as u64 ^ product(r_high, s_high) as u64
        };
        Some(Clmul { reversed, of_key: std::array::from_fn(of_key) })
    }

    /// Hashes a batch; see [`super::Kernel::hash`].
    pub(super) fn hash<const WORDS: usize>(
        &self,
        batch: &Batch<WORDS>,
        len: usize,
        hashes: &mut [u32; BATCH_TUPLES],
    ) {
        // SAFETY: `hash_batch` needs the instructions that `new` asks for, which makes no value without them.
        unsafe { hash_batch(self, batch, len, hashes) }
    }
}

#[target_feature(enable = "vpclmulqdq,avx2")]
fn hash_batch<const WORDS: usize>(
    key: &Clmul,
    batch: &Batch<WORDS>,
    len: usize,
    hashes: &mut [u32; BATCH_TUPLES],
) {
    let eights = hashes.as_chunks_mut::<8>().0.iter_mut().take(len.div_ceil(8));
    for (eight, hashes) in eights.enumerate() {
        let four = |quarter: usize| {
            let addresses: [&[[u8; 8]; 4]; WORDS] =
                std::array::from_fn(|k| &batch.addresses[k].as_chunks::<4>().0[quarter]);
            hash_four(key, &addresses, &batch.ports.as_chunks::<4>().0[quarter])
        };
        let [first, second] = [2 * eight, 2 * eight + 1].map(|quarter| _mm256_castsi256_ps(four(quarter)));
        let packed = _mm256_castps_si256(_mm256_shuffle_ps::<0b10_00_10_00>(first, second));
        // Tuples 0, 1, 4, 5 in the lower lane, 2, 3, 6, 7 in the upper one.
        let result = reverse_bits(_mm256_permute4x64_epi64::<0b11_01_10_00>(packed));
        // SAFETY: `hashes` is 32 bytes; the store needs no alignment.
        unsafe { _mm256_storeu_si256(hashes.as_mut_ptr().cast(), result) };
    }
}

/// Each lane of 128 bits has two tuples of its own, and of each hash the lower half of 64 bits, reversed.
#[target_feature(enable = "vpclmulqdq,avx2")]
#[inline]
fn hash_four<const WORDS: usize>(
    key: &Clmul,
    addresses: &[&[[u8; 8]; 4]; WORDS],
    ports: &[[u8; 4]; 4],
) -> __m256i {
    let swap_bytes = both_lanes(_mm_set_epi8(8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7));
    let load = |words: &[[u8; 8]; 4]| {
        // SAFETY: reads the 32 bytes of the array; the load needs no alignment.
        _mm256_shuffle_epi8(unsafe { _mm256_loadu_si256(words.as_ptr().cast()) }, swap_bytes)
    };
    let part = |word: usize, part: usize| _mm256_set1_epi64x(key.reversed[word][part] as i64);
    // The products of the even tuples and of the odd ones.
    let products = |v, w| [_mm256_clmulepi64_epi128::<0x00>(v, w), _mm256_clmulepi64_epi128::<0x11>(v, w)];
    let add = |sums: &mut [__m256i; 2], products: [__m256i; 2]| {
        sums.iter_mut().zip(products).for_each(|(sum, product)| *sum = _mm256_xor_si256(*sum, product));
    };

    let (pairs, rest) = addresses.as_chunks::<2>();
    let of_key = key.of_key[..pairs.len()].iter().fold(0, |sum, share| sum ^ share);
    // SAFETY: as above, 16 bytes.
    let ports = _mm256_cvtepu32_epi64(unsafe { _mm_loadu_si128(ports.as_ptr().cast()) });
    // The sums that have the hash in their upper halves, and those that have it in the lower ones.
    let mut upper = products(_mm256_shuffle_epi8(ports, swap_bytes), part(WORDS, 0));
    let mut lower = [_mm256_set1_epi64x(of_key as i64); 2];
    for (pair, [v, w]) in pairs.iter().enumerate() {
        let (v, w) = (load(v), load(w));
        let crosswise = |of: usize| {
            products(_mm256_xor_si256(v, part(2 * pair + 1, of)), _mm256_xor_si256(w, part(2 * pair, of)))
        };
        let shared = products(v, w);
        add(&mut upper, shared);
        add(&mut upper, crosswise(0));
        add(&mut lower, shared);
        add(&mut lower, crosswise(1));
    }
    if let [word] = rest {
        let word = load(word);
        add(&mut upper, products(word, part(WORDS - 1, 0)));
        add(&mut lower, products(word, part(WORDS - 1, 1)));
    }
    _mm256_xor_si256(_mm256_unpackhi_epi64(upper[0], upper[1]), _mm256_unpacklo_epi64(lower[0], lower[1]))
}

/// Each 32-bit number with its bits in reverse: its bytes swapped, and of each byte the halves, each reversed.
#[target_feature(enable = "avx2")]
#[inline]
fn reverse_bits(numbers: __m256i) -> __m256i {
    let swap_bytes = both_lanes(_mm_set_epi8(12, 13, 14, 15, 8, 9, 10, 11, 4, 5, 6, 7, 0, 1, 2, 3));
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
