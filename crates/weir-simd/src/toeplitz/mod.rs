//! Toeplitz hashes of sixteen flow tuples at a time, by the best instructions that this processor has.
//!
//! The rule. Bit `j` of the hash (0 the most significant) is the XOR over all input bits `n` of `input[n] & key[n + j]`. Both
//! kernels take the input *transposed* ([`Group`]), so that one register holds the same word of many tuples.
//!
//! | kernel | needs | found on |
//! |---|---|---|
//! | `gfni`: products of bit matrices | GFNI, AVX-512 VBMI | Ice Lake servers, Zen 4 and later |
//! | `clmul`: products of polynomials | VPCLMULQDQ, AVX2 | Zen 3, Alder Lake and later |
//!
//! Ownership: immutable after construction; any number of workers may share one.
//! Limits: tuples of whole 32-bit words, nine at most (an IPv6 4-tuple). Nothing but x86-64 has a kernel.

#[cfg(target_arch = "x86_64")]
mod clmul;
#[cfg(target_arch = "x86_64")]
mod gfni;

/// Length of a Toeplitz key in bytes: what the longest tuple (36 bytes) and a 32-bit hash need.
pub const KEY_LEN_BYTES: usize = 40;

/// The longest tuple in 32-bit words: two IPv6 addresses and two ports.
pub const WORDS_MAX: usize = 9;

/// Tuples hashed together.
pub const GROUP_TUPLES: usize = 16;

/// Sixteen tuples, word by word: `group[k][t]` is the `k`-th word of tuple `t`, its bytes in the order of the
/// wire.
pub type Group<const WORDS: usize> = [[u32; GROUP_TUPLES]; WORDS];

/// A Toeplitz key made ready for instructions that this processor has.
#[derive(Clone)]
pub struct Kernel(Which);

#[derive(Clone)]
enum Which {
    #[cfg(target_arch = "x86_64")]
    Gfni(gfni::Gfni),
    #[cfg(target_arch = "x86_64")]
    Clmul(clmul::Clmul),
}

impl Kernel {
    /// Prepares `key` for the best instructions; `None` if this processor has none of use.
    pub fn new(key: &[u8; KEY_LEN_BYTES]) -> Option<Kernel> {
        Kernel::all(key).next()
    }

    /// Every way that this processor has, the best first: for tests and benchmarks.
    #[cfg(target_arch = "x86_64")]
    pub fn all(key: &[u8; KEY_LEN_BYTES]) -> impl Iterator<Item = Kernel> {
        let gfni = gfni::Gfni::new(key).map(Which::Gfni);
        let clmul = clmul::Clmul::new(key).map(Which::Clmul);
        gfni.into_iter().chain(clmul).map(Kernel)
    }

    /// Every way that this processor has: none.
    #[cfg(not(target_arch = "x86_64"))]
    pub fn all(_key: &[u8; KEY_LEN_BYTES]) -> impl Iterator<Item = Kernel> {
        std::iter::empty()
    }

    /// Its instructions, for statistics.
    pub fn name(&self) -> &'static str {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Which::Gfni(_) => "gfni-avx512",
            #[cfg(target_arch = "x86_64")]
            Which::Clmul(_) => "vpclmulqdq",
        }
    }

    /// Hashes every tuple of `groups`: `hashes[g][t]` becomes the hash of tuple `t` of group `g`.
    ///
    /// # Panics
    /// If the slices differ in length. `WORDS` above [`WORDS_MAX`] does not compile.
    pub fn hash<const WORDS: usize>(&self, groups: &[Group<WORDS>], hashes: &mut [[u32; GROUP_TUPLES]]) {
        const { assert!(WORDS <= WORDS_MAX, "a tuple has at most WORDS_MAX words") };
        assert_eq!(groups.len(), hashes.len(), "one row of hashes for each group");
        match &self.0 {
            #[cfg(target_arch = "x86_64")]
            Which::Gfni(kernel) => kernel.hash(groups, hashes),
            #[cfg(target_arch = "x86_64")]
            Which::Clmul(kernel) => kernel.hash(groups, hashes),
        }
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

    /// All that this processor can do.
    fn kernels(key: &[u8; KEY_LEN_BYTES]) -> Vec<Kernel> {
        let kernels: Vec<Kernel> = Kernel::all(key).collect();
        if kernels.is_empty() {
            eprintln!("skipped: this processor has neither GFNI with AVX-512 nor VPCLMULQDQ");
        }
        kernels
    }

    fn agrees<const WORDS: usize>(key: &[u8; KEY_LEN_BYTES], tuples: &[Vec<u8>]) {
        let groups = transposed::<WORDS>(tuples);
        for kernel in kernels(key) {
            let mut hashes = vec![[u32::MAX; GROUP_TUPLES]; groups.len()];
            kernel.hash(&groups, &mut hashes);
            for (i, tuple) in tuples.iter().enumerate() {
                let hash = hashes[i / GROUP_TUPLES][i % GROUP_TUPLES];
                assert_eq!(hash, by_definition(key, tuple), "{}: tuple {i} {tuple:02x?}", kernel.name());
            }
        }
    }

    /// Two rows of Microsoft's "Verifying the RSS Hash Calculation"; all of them are in weir-core, against
    /// all paths.
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
        for kernel in kernels(&KEY) {
            let hash = || kernel.hash::<3>(&[[[0; GROUP_TUPLES]; 3]], &mut []);
            assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(hash)).is_err());
        }
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
