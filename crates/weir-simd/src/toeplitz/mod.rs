//! Toeplitz hashes of a burst's flow tuples, by the best instructions that this processor has.
//!
//! The rule. Bit `j` of the hash (0 the most significant) is the XOR over all input bits `n` of `input[n] & key[n + j]`. Both
//! kernels take the input *transposed* ([`Batch`]), so that one register holds the same part of many tuples. A part is 64 bits
//! where it can be: a frame's parser writes half as often then, and the multiplication takes it as it is.
//!
//! | kernel | needs | found on |
//! |---|---|---|
//! | `gfni`: products of bit matrices | GFNI, AVX-512 VBMI | Ice Lake servers, Zen 4 and later |
//! | `clmul`: products of polynomials | VPCLMULQDQ, AVX2 | Zen 3, Alder Lake and later |
//!
//! Ownership: immutable after construction; any number of workers may share one.
//! Limits: tuples of two addresses and two ports. Only x86-64 has kernels.

#[cfg(target_arch = "x86_64")]
mod clmul;
#[cfg(target_arch = "x86_64")]
mod gfni;

/// Length of a Toeplitz key in bytes: as many as the longest tuple (36 bytes) and a 32-bit hash need.
pub const KEY_LEN_BYTES: usize = 40;

/// The length of a pair of IPv4 addresses, in 64-bit words.
pub const V4_WORDS: usize = 1;

/// The length of a pair of IPv6 addresses, the longest pair, in 64-bit words.
pub const V6_WORDS: usize = 4;

const WORDS_MAX: usize = V6_WORDS;

/// The number of tuples of a [`Batch`].
pub const BATCH_TUPLES: usize = 64;

/// A flow's tuple, all bytes in the order of the wire: `WORDS` is [`V4_WORDS`] or [`V6_WORDS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow<const WORDS: usize> {
    /// The source address, then the destination.
    pub addresses: [[u8; 8]; WORDS],
    /// The source port, then the destination; zeros hash as if they were not there.
    pub ports: [u8; 4],
}

/// The tuples of a burst, word by word.
#[derive(Clone, Debug)]
pub struct Batch<const WORDS: usize> {
    /// `addresses[k][t]` is the `k`-th word of tuple `t`.
    pub addresses: [[[u8; 8]; BATCH_TUPLES]; WORDS],
    /// The ports of each tuple.
    pub ports: [[u8; 4]; BATCH_TUPLES],
}

impl<const WORDS: usize> Batch<WORDS> {
    /// Tuples of zeros, whose hash is 0.
    pub const ZEROS: Batch<WORDS> =
        Batch { addresses: [[[0; 8]; BATCH_TUPLES]; WORDS], ports: [[0; 4]; BATCH_TUPLES] };

    /// Makes `flow` tuple `t`.
    ///
    /// # Panics
    /// If there is no such tuple in a batch.
    #[inline(always)]
    pub fn set(&mut self, t: usize, flow: &Flow<WORDS>) {
        for (words, word) in self.addresses.iter_mut().zip(flow.addresses) {
            words[t] = word;
        }
        self.ports[t] = flow.ports;
    }

    /// Tuple `t`.
    ///
    /// # Panics
    /// If there is no such tuple in a batch.
    #[inline]
    pub fn get(&self, t: usize) -> Flow<WORDS> {
        Flow { addresses: std::array::from_fn(|k| self.addresses[k][t]), ports: self.ports[t] }
    }
}

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

    /// The kernels that this processor has instructions for, the best first: for tests and benchmarks.
    #[cfg(target_arch = "x86_64")]
    pub fn all(key: &[u8; KEY_LEN_BYTES]) -> impl Iterator<Item = Kernel> {
        let gfni = gfni::Gfni::new(key).map(Which::Gfni);
        let clmul = clmul::Clmul::new(key).map(Which::Clmul);
        gfni.into_iter().chain(clmul).map(Kernel)
    }

    /// The kernels that this processor has instructions for: none.
    #[cfg(not(target_arch = "x86_64"))]
    pub fn all(_key: &[u8; KEY_LEN_BYTES]) -> impl Iterator<Item = Kernel> {
        std::iter::empty()
    }

    /// The name of the kernel's instructions, for statistics.
    pub fn name(&self) -> &'static str {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Which::Gfni(_) => "gfni-avx512",
            #[cfg(target_arch = "x86_64")]
            Which::Clmul(_) => "vpclmulqdq",
        }
    }

    /// Hashes the first `len` tuples of `batch`: `hashes[t]` becomes the hash of tuple `t`. Hashes behind them are changed too.
    ///
    /// # Panics
    /// If `len` is more than [`BATCH_TUPLES`]. `WORDS` above [`V6_WORDS`] does not compile.
    pub fn hash<const WORDS: usize>(
        &self,
        batch: &Batch<WORDS>,
        len: usize,
        hashes: &mut [u32; BATCH_TUPLES],
    ) {
        const { assert!(WORDS <= WORDS_MAX, "a pair of addresses has at most V6_WORDS words") };
        assert!(len <= BATCH_TUPLES, "a batch has {BATCH_TUPLES} tuples");
        match &self.0 {
            #[cfg(target_arch = "x86_64")]
            Which::Gfni(kernel) => kernel.hash(batch, len, hashes),
            #[cfg(target_arch = "x86_64")]
            Which::Clmul(kernel) => kernel.hash(batch, len, hashes),
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

    /// Tuples of 12 bytes or less, or of 36, in batches.
    fn transposed<const WORDS: usize>(tuples: &[Vec<u8>]) -> Vec<Batch<WORDS>> {
        let mut batches = vec![Batch::ZEROS; tuples.len().div_ceil(BATCH_TUPLES)];
        for (i, tuple) in tuples.iter().enumerate() {
            let mut bytes = tuple.clone();
            bytes.resize(8 * WORDS + 4, 0);
            let (addresses, ports) = bytes.split_at(8 * WORDS);
            let word = |k: usize| addresses[8 * k..8 * k + 8].try_into().unwrap();
            let ports = ports.try_into().unwrap();
            let flow = Flow { addresses: std::array::from_fn(word), ports };
            batches[i / BATCH_TUPLES].set(i % BATCH_TUPLES, &flow);
            assert_eq!(batches[i / BATCH_TUPLES].get(i % BATCH_TUPLES), flow);
        }
        batches
    }

    /// The kernels that this processor has instructions for.
    fn kernels(key: &[u8; KEY_LEN_BYTES]) -> Vec<Kernel> {
        let kernels: Vec<Kernel> = Kernel::all(key).collect();
        if kernels.is_empty() {
            eprintln!("skipped: this processor has neither GFNI with AVX-512 nor VPCLMULQDQ");
        }
        kernels
    }

    fn agrees<const WORDS: usize>(key: &[u8; KEY_LEN_BYTES], tuples: &[Vec<u8>]) {
        let batches = transposed::<WORDS>(tuples);
        for kernel in kernels(key) {
            for (batch, tuples) in batches.iter().zip(tuples.chunks(BATCH_TUPLES)) {
                let mut hashes = [u32::MAX; BATCH_TUPLES];
                kernel.hash(batch, tuples.len(), &mut hashes);
                for (i, (tuple, hash)) in tuples.iter().zip(hashes).enumerate() {
                    assert_eq!(hash, by_definition(key, tuple), "{}: tuple {i} {tuple:02x?}", kernel.name());
                }
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
        agrees::<V4_WORDS>(&KEY, &[v4]);
    }

    /// Each single input bit alone shows each matrix column alone, in every lane of every word.
    #[test]
    fn every_input_bit_in_every_slot() {
        let one_bit = |n: usize, len_bytes: usize| {
            let mut tuple = vec![0; len_bytes];
            tuple[n / 8] = 0x80 >> (n % 8);
            tuple
        };
        for rotation in 0..BATCH_TUPLES {
            let bits = |len_bytes: usize| {
                (0..8 * len_bytes).map(move |n| one_bit((n + rotation) % (8 * len_bytes), len_bytes))
            };
            agrees::<V4_WORDS>(&KEY, &bits(12).collect::<Vec<_>>());
            agrees::<V6_WORDS>(&KEY, &bits(36).collect::<Vec<_>>());
        }
    }

    /// A frame without a flow relies on a hash of 0, and a kernel that adds a part of the key alone must take it away again.
    #[test]
    fn zeros_hash_to_zero() {
        agrees::<V4_WORDS>(&KEY, &vec![vec![0; 12]; BATCH_TUPLES]);
        agrees::<V6_WORDS>(&KEY, &vec![vec![0; 36]; BATCH_TUPLES]);
    }

    #[test]
    fn more_than_a_batch_is_refused() {
        for kernel in kernels(&KEY) {
            let hash = || kernel.hash::<V4_WORDS>(&Batch::ZEROS, BATCH_TUPLES + 1, &mut [0; BATCH_TUPLES]);
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
            agrees::<V4_WORDS>(&key, &bytes.chunks_exact(8).map(<[u8]>::to_vec).collect::<Vec<_>>());
            agrees::<V4_WORDS>(&key, &bytes.chunks_exact(12).map(<[u8]>::to_vec).collect::<Vec<_>>());
            agrees::<V6_WORDS>(&key, &bytes.chunks_exact(36).map(<[u8]>::to_vec).collect::<Vec<_>>());
        }
    }
}
