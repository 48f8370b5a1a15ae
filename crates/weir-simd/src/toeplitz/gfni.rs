//! Toeplitz hashes of sixteen flow tuples at a time, by GF(2) matrix products (GFNI on AVX-512 registers).
//!
//! The rule. Bit `j` of the hash (0 the most significant) is the XOR over all input bits `n` of `input[n] &
//! key[n + j]`. Input byte `p` therefore adds to hash byte `o` an 8x8 bit matrix times that byte, and the
//! matrix depends on `s = p + o` alone:
//!
//! ```text
//! row r, column c of M[s] = key[8 s + (7 - c) + (7 - r)]        r, c: 0 the least significant bit
//! hash byte o             = XOR over p of M[p + o] x input byte p
//! ```
//!
//! One `gf2p8affineqb` multiplies 64 bytes, one matrix for each 8 of them. So the input is kept *transposed*
//! ([`Group`]): word `k` of sixteen tuples fills a register, one byte shuffle makes each 128-bit lane hold
//! one byte position of all sixteen, and the four products of a word (one for each hash byte) are added up
//! word after word without leaving their lanes. Only the four sums at the end cross lanes: 6 shuffles for 16
//! tuples, however long these are. An IPv4 tuple costs 0.75 matrix instructions, an IPv6 tuple 2.25.
//!
//! Ownership: immutable after construction; any number of workers may share one.
//!
//! Source: Microsoft, "RSS Hashing Functions"; Intel SDM vol. 2, GF2P8AFFINEQB. The idea of one matrix for
//! each key offset is DPDK's (`lib/hash/rte_thash_gfni.h`); the vertical sum is not.
//!
//! Limits: tuples of whole 32-bit words, nine at most (an IPv6 4-tuple). Nothing but x86-64 has a kernel.

/// Length of a Toeplitz key in bytes: what the longest tuple (36 bytes) and a 32-bit hash need.
pub const KEY_LEN_BYTES: usize = 40;

/// The longest tuple in 32-bit words: two IPv6 addresses and two ports.
pub const WORDS_MAX: usize = 9;

/// Tuples hashed together.
pub const GROUP_TUPLES: usize = 16;

/// Sixteen tuples, word by word: `group[k][t]` is the `k`-th word of tuple `t`, its bytes in the order of the
/// wire.
pub type Group<const WORDS: usize> = [[u32; GROUP_TUPLES]; WORDS];

/// A Toeplitz key made ready for the matrix instructions; can only be had on a processor that has them.
#[derive(Clone)]
pub struct ToeplitzGfni {
    /// `matrices[k][o]`: in lane `i`, twice, the matrix from byte `i` of word `k` to hash byte `o`.
    matrices: Box<[[Register; 4]; WORDS_MAX]>,
}

/// The contents of a 512-bit register as eight 64-bit matrices.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Register([u64; 8]);

impl ToeplitzGfni {
    /// Prepares `key`; `None` if this processor lacks GFNI or the AVX-512 subsets used.
    pub fn new(key: &[u8; KEY_LEN_BYTES]) -> Option<ToeplitzGfni> {
        if !supported() {
            return None;
        }
        let matrix_of = |word: usize, hash_byte: usize| {
            let lane = |i: usize| matrix(key, 4 * word + i + hash_byte);
            Register([lane(0), lane(0), lane(1), lane(1), lane(2), lane(2), lane(3), lane(3)])
        };
        let matrices = std::array::from_fn(|word| std::array::from_fn(|o| matrix_of(word, o)));
        Some(ToeplitzGfni { matrices: Box::new(matrices) })
    }

    /// Hashes every tuple of `groups`: `hashes[g][t]` becomes the hash of tuple `t` of group `g`.
    ///
    /// # Panics
    /// If the slices differ in length. `WORDS` above [`WORDS_MAX`] does not compile.
    pub fn hash<const WORDS: usize>(&self, groups: &[Group<WORDS>], hashes: &mut [[u32; GROUP_TUPLES]]) {
        const { assert!(WORDS <= WORDS_MAX, "a tuple has at most WORDS_MAX words") };
        assert_eq!(groups.len(), hashes.len(), "one row of hashes for each group");
        #[cfg(target_arch = "x86_64")]
        // SAFETY: `hash_groups` needs the instructions that `supported` asks for, and `new` makes no value
        // without them.
        unsafe {
            hash_groups(&self.matrices, groups, hashes);
        }
        #[cfg(not(target_arch = "x86_64"))]
        unreachable!("`new` returns None on this processor");
    }
}

#[cfg(target_arch = "x86_64")]
fn supported() -> bool {
    is_x86_feature_detected!("gfni")
        && is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vbmi")
}

#[cfg(not(target_arch = "x86_64"))]
fn supported() -> bool {
    false
}

/// `M[s]` of the header, in the instruction's layout: the row for result bit `r` is byte `7 - r`.
fn matrix(key: &[u8; KEY_LEN_BYTES], s: usize) -> u64 {
    let key_bit = |n: usize| u64::from(key[n / 8] >> (7 - n % 8) & 1);
    let mut matrix = 0;
    for row in 0..8 {
        for column in 0..8 {
            matrix |= key_bit(8 * s + (7 - column) + (7 - row)) << (8 * (7 - row) + column);
        }
    }
    matrix
}

/// For each byte of the lane-by-byte layout, the byte of the word-by-tuple layout it comes from.
const TO_LANES: [u8; 64] = {
    let mut from = [0; 64];
    let mut i = 0;
    while i < 64 {
        let (lane, tuple) = (i / 16, i % 16);
        from[i] = (4 * tuple + lane) as u8;
        i += 1;
    }
    from
};

/// For each byte of the sixteen little-endian hashes, where it lies when lane `o` holds hash byte `o` of all
/// of them.
const FROM_LANES: [u8; 64] = {
    let mut from = [0; 64];
    let mut i = 0;
    while i < 64 {
        let (tuple, byte) = (i / 4, i % 4);
        from[i] = (16 * (3 - byte) + tuple) as u8;
        i += 1;
    }
    from
};

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "gfni,avx512f,avx512bw,avx512vbmi")]
fn hash_groups<const WORDS: usize>(
    matrices: &[[Register; 4]; WORDS_MAX],
    groups: &[Group<WORDS>],
    hashes: &mut [[u32; GROUP_TUPLES]],
) {
    use std::arch::x86_64::*;

    // SAFETY: each of these reads or writes exactly the 64 bytes of the array it is given, unaligned.
    let load = |bytes: &[u8; 64]| unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) };
    // SAFETY: as above.
    let load_words = |words: &[u32; 16]| unsafe { _mm512_loadu_si512(words.as_ptr().cast()) };
    // SAFETY: as above; `Register` is 64 bytes, aligned to as many.
    let load_matrix = |matrix: &Register| unsafe { _mm512_load_si512(std::ptr::from_ref(matrix).cast()) };

    let (to_lanes, from_lanes) = (load(&TO_LANES), load(&FROM_LANES));
    for (group, hashes) in groups.iter().zip(hashes) {
        let mut sums = [_mm512_setzero_si512(); 4];
        for (words, matrices) in group.iter().zip(matrices) {
            let lanes = _mm512_permutexvar_epi8(to_lanes, load_words(words));
            for (sum, matrix) in sums.iter_mut().zip(matrices) {
                let product = _mm512_gf2p8affine_epi64_epi8::<0>(lanes, load_matrix(matrix));
                *sum = _mm512_xor_si512(*sum, product);
            }
        }
        // Lane o of the result is the XOR of the four lanes of sums[o]: halve twice.
        let fold = |a, b| {
            let low = _mm512_shuffle_i32x4::<0b01_00_01_00>(a, b);
            let high = _mm512_shuffle_i32x4::<0b11_10_11_10>(a, b);
            _mm512_xor_si512(low, high)
        };
        let (first, second) = (fold(sums[0], sums[1]), fold(sums[2], sums[3]));
        let even = _mm512_shuffle_i32x4::<0b10_00_10_00>(first, second);
        let odd = _mm512_shuffle_i32x4::<0b11_01_11_01>(first, second);
        let result = _mm512_permutexvar_epi8(from_lanes, _mm512_xor_si512(even, odd));
        // SAFETY: `hashes` is 64 bytes; the store needs no alignment.
        unsafe { _mm512_storeu_si512(hashes.as_mut_ptr().cast(), result) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const KEY: [u8; KEY_LEN_BYTES] = [
        0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0, 0xd0,
        0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c, 0x6a, 0x42,
        0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
    ];

    /// The definition, bit by bit: the key slides left under the input, and each set bit adds its 32-bit
    /// window.
    fn by_definition(key: &[u8; KEY_LEN_BYTES], input: &[u8]) -> u32 {
        let key_bit = |n: usize| u32::from(key[n / 8] >> (7 - n % 8) & 1);
        let mut hash = 0;
        for n in (0..8 * input.len()).filter(|n| input[n / 8] >> (7 - n % 8) & 1 == 1) {
            hash ^= (0..32).fold(0, |window, j| window << 1 | key_bit(n + j));
        }
        hash
    }

    fn transposed<const WORDS: usize>(tuples: &[Vec<u8>]) -> Vec<Group<WORDS>> {
        let mut groups = vec![[[0; GROUP_TUPLES]; WORDS]; tuples.len().div_ceil(GROUP_TUPLES)];
        for (i, tuple) in tuples.iter().enumerate() {
            for (k, word) in tuple.chunks_exact(4).enumerate() {
                groups[i / GROUP_TUPLES][k][i % GROUP_TUPLES] = u32::from_ne_bytes(word.try_into().unwrap());
            }
        }
        groups
    }

    fn agrees<const WORDS: usize>(key: &[u8; KEY_LEN_BYTES], tuples: &[Vec<u8>]) {
        let Some(kernel) = ToeplitzGfni::new(key) else {
            eprintln!("skipped: this processor has no GFNI with AVX-512");
            return;
        };
        let groups = transposed::<WORDS>(tuples);
        let mut hashes = vec![[u32::MAX; GROUP_TUPLES]; groups.len()];
        kernel.hash(&groups, &mut hashes);
        for (i, tuple) in tuples.iter().enumerate() {
            let hash = hashes[i / GROUP_TUPLES][i % GROUP_TUPLES];
            assert_eq!(hash, by_definition(key, tuple), "tuple {i} {tuple:02x?}");
        }
    }

    /// Two rows of Microsoft's "Verifying the RSS Hash Calculation"; all of them are in weir-core, against
    /// both paths.
    #[test]
    fn published_vectors() {
        let v4 = vec![66, 9, 149, 187, 161, 142, 100, 80, 0x0a, 0xea, 0x06, 0xe6];
        assert_eq!(by_definition(&KEY, &v4), 0x51cc_c178);
        assert_eq!(by_definition(&KEY, &v4[..8]), 0x323e_8fc2);
        agrees::<3>(&KEY, &[v4]);
    }

    /// Each single input bit alone shows each matrix column alone, in every lane of every word.
    #[test]
    fn every_input_bit_in_every_slot() {
        let one_bit = |n: usize, len_bytes: usize| {
            let mut tuple = vec![0; len_bytes];
            tuple[n / 8] = 0x80 >> (n % 8);
            tuple
        };
        for rotation in 0..GROUP_TUPLES {
            let bits = |len_bytes: usize| {
                (0..8 * len_bytes).map(move |n| one_bit((n + rotation) % (8 * len_bytes), len_bytes))
            };
            agrees::<3>(&KEY, &bits(12).collect::<Vec<_>>());
            agrees::<9>(&KEY, &bits(36).collect::<Vec<_>>());
        }
    }

    #[test]
    fn slices_of_different_length_are_refused() {
        let Some(kernel) = ToeplitzGfni::new(&KEY) else {
            eprintln!("skipped: this processor has no GFNI with AVX-512");
            return;
        };
        let refused = std::panic::catch_unwind(|| kernel.hash::<3>(&[[[0; GROUP_TUPLES]; 3]], &mut []));
        assert!(refused.is_err());
    }

    proptest! {
        #[test]
        fn any_key_and_tuples_agree_with_the_definition(
            key in prop::array::uniform20(any::<[u8; 2]>()),
            seed in prop::collection::vec(any::<[u8; 4]>(), 9..9 * 40),
        ) {
            let key: [u8; KEY_LEN_BYTES] = key.concat().try_into().unwrap();
            let bytes = seed.concat();
            agrees::<2>(&key, &bytes.chunks_exact(8).map(<[u8]>::to_vec).collect::<Vec<_>>());
            agrees::<3>(&key, &bytes.chunks_exact(12).map(<[u8]>::to_vec).collect::<Vec<_>>());
            agrees::<9>(&key, &bytes.chunks_exact(36).map(<[u8]>::to_vec).collect::<Vec<_>>());
        }
    }
}
