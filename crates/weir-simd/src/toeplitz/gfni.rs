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
//! ([`Batch`]): the same 64 bits of sixteen tuples fill two registers, a byte shuffle of both makes each 128-bit lane hold
//! one byte position of one half of all sixteen, and the four products of such a half (one for each hash byte) are added up
//! half after half without leaving their lanes. Only the four sums at the end cross lanes: 6 shuffles for 16
//! tuples, however long these are. An IPv4 tuple costs 0.75 matrix instructions, an IPv6 tuple 2.25.
//!
//! Source: Microsoft, "RSS Hashing Functions"; Intel SDM vol. 2, GF2P8AFFINEQB. The idea of one matrix for
//! each key offset is DPDK's (`lib/hash/rte_thash_gfni.h`); the vertical sum is not.
//!
//! Owner and limits: see [`super`].

use std::arch::x86_64::*;

use super::{BATCH_TUPLES, Batch, KEY_LEN_BYTES, WORDS_MAX};

/// A Toeplitz key made ready for the matrix instructions; a value exists only on a processor that has them.
#[derive(Clone)]
pub(super) struct Gfni {
    /// `matrices[k][o]`: in lane `i`, twice, the matrix from byte `i` of the input's 32 bits number `k` to hash byte `o`.
    matrices: Box<Matrices>,
}

type Matrices = [[Register; 4]; 2 * WORDS_MAX + 1];

/// The contents of a 512-bit register as eight 64-bit matrices.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Register([u64; 8]);

impl Gfni {
    /// Prepares `key`; `None` if this processor lacks GFNI or the AVX-512 subsets used.
    pub(super) fn new(key: &[u8; KEY_LEN_BYTES]) -> Option<Gfni> {
        if !supported() {
            return None;
        }
        let matrix_of = |k: usize, hash_byte: usize| {
            let lane = |i: usize| matrix(key, 4 * k + i + hash_byte);
            Register([lane(0), lane(0), lane(1), lane(1), lane(2), lane(2), lane(3), lane(3)])
        };
        let matrices = std::array::from_fn(|k| std::array::from_fn(|o| matrix_of(k, o)));
        Some(Gfni { matrices: Box::new(matrices) })
    }

    /// Hashes a batch; see [`super::Kernel::hash`].
    pub(super) fn hash<const WORDS: usize>(
        &self,
        batch: &Batch<WORDS>,
        len: usize,
        hashes: &mut [u32; BATCH_TUPLES],
    ) {
        // SAFETY: `hash_batch` needs the instructions that `supported` asks for, and `new` makes no value
        // without them.
        unsafe { hash_batch(&self.matrices, batch, len, hashes) }
    }
}

fn supported() -> bool {
    is_x86_feature_detected!("gfni")
        && is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vbmi")
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

/// For each byte of the lane-by-byte layout, its place among tuples of `stride` bytes each; lane 0 begins with byte `first` of each tuple.
const fn to_lanes(stride: usize, first: usize) -> [u8; 64] {
    let mut from = [0; 64];
    let mut i = 0;
    while i < 64 {
        let (lane, tuple) = (i / 16, i % 16);
        from[i] = (stride * tuple + first + lane) as u8;
        i += 1;
    }
    from
}

/// The layouts for the first halves of the addresses' words, for their second halves, and for the ports.
const TO_LANES: [[u8; 64]; 3] = [to_lanes(8, 0), to_lanes(8, 4), to_lanes(4, 0)];

/// For each byte of the sixteen little-endian hashes, its place when lane `o` holds hash byte `o` of all of them.
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

#[target_feature(enable = "gfni,avx512f,avx512bw,avx512vbmi")]
fn hash_batch<const WORDS: usize>(
    matrices: &Matrices,
    batch: &Batch<WORDS>,
    len: usize,
    hashes: &mut [u32; BATCH_TUPLES],
) {
    // SAFETY: each of these reads or writes exactly the 64 bytes of the array it is given, unaligned.
    let load = |bytes: &[u8; 64]| unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) };
    // SAFETY: as above.
    let load_words = |words: &[[u8; 8]; 8]| unsafe { _mm512_loadu_si512(words.as_ptr().cast()) };
    // SAFETY: as above.
    let load_ports = |ports: &[[u8; 4]; 16]| unsafe { _mm512_loadu_si512(ports.as_ptr().cast()) };
    // SAFETY: as above; `Register` is 64 bytes, aligned to as many.
    let load_matrix = |matrix: &Register| unsafe { _mm512_load_si512(std::ptr::from_ref(matrix).cast()) };

    let ([first_half, second_half, ports], from_lanes) =
        (TO_LANES.map(|from| load(&from)), load(&FROM_LANES));
    let sixteens = hashes.as_chunks_mut::<16>().0.iter_mut().take(len.div_ceil(16));
    for (sixteen, hashes) in sixteens.enumerate() {
        let mut sums = [_mm512_setzero_si512(); 4];
        let mut add = |lanes: __m512i, matrices: &[Register; 4]| {
            for (sum, matrix) in sums.iter_mut().zip(matrices) {
                let product = _mm512_gf2p8affine_epi64_epi8::<0>(lanes, load_matrix(matrix));
                *sum = _mm512_xor_si512(*sum, product);
            }
        };
        for (k, words) in batch.addresses.iter().enumerate() {
            let [a, b] = [0, 1].map(|half| load_words(&words.as_chunks::<8>().0[2 * sixteen + half]));
            add(_mm512_permutex2var_epi8(a, first_half, b), &matrices[2 * k]);
            add(_mm512_permutex2var_epi8(a, second_half, b), &matrices[2 * k + 1]);
        }
        let sixteen_ports = load_ports(&batch.ports.as_chunks::<16>().0[sixteen]);
        add(_mm512_permutexvar_epi8(ports, sixteen_ports), &matrices[2 * WORDS]);
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
