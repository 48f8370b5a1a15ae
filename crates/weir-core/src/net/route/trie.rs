//! Longest prefix match: a trie of address bytes whose nodes keep each run of equal answers once.
//!
//! A node answers for one byte `b` of the address. Of its 256 answers most are equal to their left neighbour, so it
//! keeps a bit for each `b` where a new run of answers begins, and the runs' answers side by side. In `words`, from the
//! node's place on:
//!
//! ```text
//! 8 words of bits | 8 bytes: ones in the words before each | answer of each run
//! answer(b) = run number (ones in bits[0..=b]) - 1
//! ```
//!
//! A table of fewer than [`PLAIN_PREFIXES`] prefixes keeps all 256 answers of each node side by side: it is small either way, and counting
//! ones is dear where the compiler cannot rely on an instruction for it.
//!
//! An answer is a value, or the node for the next byte. Prefixes that end within a node are spread over the answers they
//! cover, the shorter below the longer, so a look-up never steps back: the first value it meets is the longest match.
//! A prefix costs two runs and at most one node for each byte of its path that no other prefix has. From
//! [`PLAIN_ROOT_PREFIXES`] prefixes on, the first two bytes are looked up in one plain array, because most of its
//! answers differ.
//!
//! Owner: immutable once compiled; a change compiles anew, beside the packet's way.
//!
//! Source: Degermark and others, "Small forwarding tables for fast routing lookups" (SIGCOMM 1997), for the runs; Asai
//! and Ohara, "Poptrie" (SIGCOMM 2015), for counting ones to find them.
//!
//! Limits: at most 2^31 words, and values below 2^31.

use crate::net::BURST_MAX;

/// The prefixes from which on the root is plain: its 256 KiB are then the smaller part.
pub const PLAIN_ROOT_PREFIXES: usize = 4096;

/// The prefixes from which on nodes keep runs. Fewer take a KiB for each byte of theirs that no other has: 192 KiB of IPv4 at most.
pub const PLAIN_PREFIXES: usize = 64;

/// The value of an address that no prefix matches.
pub const NO_VALUE: u32 = 0;

/// The first `len` bits of an address of `N` bytes, and the value of addresses that begin so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TrieEntry<const N: usize> {
    /// The bits; those behind `len` are zero.
    pub bits: [u8; N],
    /// The number of bits.
    pub len: u8,
    /// The value, below 2^31.
    pub value: u32,
}

/// A compiled set of prefixes.
#[derive(Debug)]
pub struct Trie<const N: usize> {
    root: Box<[u32]>,
    root_bytes: usize,
    /// True if nodes are 256 answers each, without bits.
    plain: bool,
    words: Vec<u32>,
}

/// The words of bits, and the words before the runs.
const BITS_WORDS: usize = 8;
const HEAD_WORDS: usize = BITS_WORDS + 2;

/// The bit of an answer that says that it is a node's place, not a value.
const IS_NODE: u32 = 1 << 31;

impl<const N: usize> Trie<N> {
    /// Compiles prefixes, in any order. Of two equal ones the later counts.
    ///
    /// # Panics
    /// If a prefix is longer than an address, or a value is 2^31 or more.
    pub fn compile(prefixes: Vec<TrieEntry<N>>) -> Trie<N> {
        let plain = prefixes.len() < PLAIN_PREFIXES;
        Trie::compile_as(prefixes, plain)
    }

    fn compile_as(mut prefixes: Vec<TrieEntry<N>>, plain: bool) -> Trie<N> {
        for prefix in &mut prefixes {
            assert!(usize::from(prefix.len) <= 8 * N, "a prefix of {} bits in {N} bytes", prefix.len);
            assert!(prefix.value < IS_NODE, "a value is below 2^31");
            mask(&mut prefix.bits, prefix.len);
        }
        // Stable, so that the later of equal prefixes stays behind; a prefix comes before all that it covers.
        prefixes.sort_by_key(|prefix| (prefix.bits, prefix.len));
        let root_bytes = if prefixes.len() < PLAIN_ROOT_PREFIXES { 1 } else { 2 };
        let mut trie = Trie { root: Box::default(), root_bytes, plain, words: Vec::new() };
        let mut root = vec![NO_VALUE; 1 << (8 * root_bytes)];
        trie.spread(&mut root, &prefixes, 0, root_bytes);
        trie.root = root.into();
        trie.words.shrink_to_fit();
        trie
    }

    /// The value of the longest prefix of `address`, or [`NO_VALUE`].
    #[inline]
    pub fn lookup(&self, address: &[u8; N]) -> u32 {
        let mut answer = self.at_root(address);
        let mut depth = self.root_bytes;
        while answer & IS_NODE != 0 {
            answer = self.below(answer, address[depth]);
            depth += 1;
        }
        answer
    }

    /// [`Trie::lookup`] for each address.
    ///
    /// # Panics
    /// If there are more than [`BURST_MAX`] addresses, or fewer values.
    #[inline]
    pub fn lookup_burst(&self, addresses: &[[u8; N]], values: &mut [u32]) {
        assert!(addresses.len() <= BURST_MAX, "a burst has at most {BURST_MAX} addresses");
        let values = &mut values[..addresses.len()];
        if self.plain { self.lookup_near(addresses, values) } else { self.lookup_far(addresses, values) }
    }

    /// Looks up in a small table, which is in the cache: packets that came in together often go to one network, so the last node that was
    /// met is tried first.
    #[inline]
    fn lookup_near(&self, addresses: &[[u8; N]], values: &mut [u32]) {
        let mut last: Option<([u8; N], &[u32; 256])> = None;
        for (address, value) in addresses.iter().zip(values) {
            if let Some((near, node)) = &last
                && near[..N - 1] == address[..N - 1]
            {
                *value = node[usize::from(address[N - 1])];
                continue;
            }
            let mut answer = self.at_root(address);
            let mut depth = self.root_bytes;
            while answer & IS_NODE != 0 {
                if depth == N - 1 {
                    let node = self.words[(answer & !IS_NODE) as usize..].first_chunk();
                    last = node.map(|node| (*address, node));
                }
                answer = self.below(answer, address[depth]);
                depth += 1;
            }
            *value = answer;
        }
    }

    /// Looks up in a large table: byte by byte for all addresses, so that their cache misses overlap.
    fn lookup_far(&self, addresses: &[[u8; N]], values: &mut [u32]) {
        let mut deeper = 0;
        for (address, value) in addresses.iter().zip(values.iter_mut()) {
            *value = self.at_root(address);
            deeper |= *value & IS_NODE;
        }
        let mut depth = self.root_bytes;
        while deeper != 0 {
            deeper = 0;
            for (address, value) in addresses.iter().zip(values.iter_mut()) {
                if *value & IS_NODE != 0 {
                    *value = self.below(*value, address[depth]);
                    deeper |= *value & IS_NODE;
                }
            }
            depth += 1;
        }
    }

    /// The memory of the trie, in bytes.
    pub fn size_bytes(&self) -> usize {
        size_of_val(&*self.root) + size_of_val(&*self.words)
    }

    #[inline]
    fn at_root(&self, address: &[u8; N]) -> u32 {
        if self.root_bytes == 1 {
            self.root[usize::from(address[0])]
        } else {
            self.root[usize::from(u16::from_be_bytes([address[0], address[1]]))]
        }
    }

    #[inline]
    fn below(&self, answer: u32, byte: u8) -> u32 {
        let place = (answer & !IS_NODE) as usize;
        if self.plain {
            return self.words[place + usize::from(byte)];
        }
        let (head, runs) = self.words[place..].split_at(HEAD_WORDS);
        let word = usize::from(byte >> 5);
        // The bits up to and including that of `byte`, moved to the top of the word.
        let upto = head[word] << (31 - (byte & 31));
        let before = head[BITS_WORDS + word / 4].to_le_bytes()[word % 4];
        // Bit 0 begins the first run, so at least one is counted.
        runs[usize::from(before) + upto.count_ones() as usize - 1]
    }

    /// Fills `answers`, of the `bytes` address bytes from `depth` on, with sorted prefixes that all begin alike up to
    /// there.
    fn spread(&mut self, answers: &mut [u32], prefixes: &[TrieEntry<N>], depth: usize, bytes: usize) {
        let end_bits = 8 * (depth + bytes);
        let slot_of = |prefix: &TrieEntry<N>| {
            prefix.bits[depth..depth + bytes].iter().fold(0, |slot, &byte| slot << 8 | usize::from(byte))
        };
        let mut rest = prefixes;
        while let Some(first) = rest.first() {
            let slot = slot_of(first);
            if usize::from(first.len) <= end_bits {
                let covered = 1 << (end_bits - usize::from(first.len)).min(8 * bytes);
                answers[slot..slot + covered].fill(first.value);
                rest = &rest[1..];
            } else {
                let deeper = rest.iter().take_while(|prefix| slot_of(prefix) == slot).count();
                answers[slot] = self.node(&rest[..deeper], depth + bytes, answers[slot]);
                rest = &rest[deeper..];
            }
        }
    }

    /// The answer for sorted prefixes that all begin alike up to `depth`; `inherited` where none of them matches.
    fn node(&mut self, prefixes: &[TrieEntry<N>], depth: usize, inherited: u32) -> u32 {
        let mut answers = [inherited; 256];
        self.spread(&mut answers, prefixes, depth, 1);
        if answers.iter().all(|&answer| answer == answers[0] && answer & IS_NODE == 0) {
            return answers[0];
        }
        let place = u32::try_from(self.words.len()).ok().filter(|place| place & IS_NODE == 0);
        let place = place.expect("below 2^31 words") | IS_NODE;
        if self.plain {
            self.words.extend(answers);
            return place;
        }
        let begins = |byte: usize| byte == 0 || answers[byte] != answers[byte - 1];
        let bits: [u32; BITS_WORDS] = std::array::from_fn(|word| {
            (0..32).fold(0, |bits, at| bits | u32::from(begins(32 * word + at)) << at)
        });
        let before: [u8; BITS_WORDS] =
            std::array::from_fn(|word| bits[..word].iter().map(|bits| bits.count_ones() as u8).sum());
        let (before, _) = before.as_chunks::<4>();
        self.words.extend(bits);
        self.words.extend(before.iter().map(|&bytes| u32::from_le_bytes(bytes)));
        self.words.extend((0..answers.len()).filter(|&byte| begins(byte)).map(|byte| answers[byte]));
        place
    }
}

/// Clears the bits behind the first `len`.
fn mask<const N: usize>(bits: &mut [u8; N], len: u8) {
    for (at, byte) in bits.iter_mut().enumerate() {
        let kept = usize::from(len).saturating_sub(8 * at).min(8);
        *byte &= !(0xffu16 >> kept) as u8;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The longest match by a scan of every prefix.
    fn scan<const N: usize>(prefixes: &[TrieEntry<N>], address: &[u8; N]) -> u32 {
        let mut best = (0, NO_VALUE);
        for prefix in prefixes {
            let mut wanted = prefix.bits;
            let mut begins = *address;
            mask(&mut wanted, prefix.len);
            mask(&mut begins, prefix.len);
            if wanted == begins && prefix.len >= best.0 {
                best = (prefix.len, prefix.value);
            }
        }
        best.1
    }

    /// An address with bytes of few values, so that prefixes cover each other.
    fn address<const N: usize>() -> impl Strategy<Value = [u8; N]> {
        let byte = prop_oneof![Just(0u8), Just(10), Just(63), Just(64), Just(128), Just(255), any::<u8>()];
        prop::collection::vec(byte, N).prop_map(|bytes| bytes.try_into().expect("N bytes"))
    }

    fn prefixes<const N: usize>(max: usize) -> impl Strategy<Value = Vec<TrieEntry<N>>> {
        let prefix = (address::<N>(), 0..=8 * N as u8, 1u32..50).prop_map(|(bits, len, value)| TrieEntry {
            bits,
            len,
            value,
        });
        prop::collection::vec(prefix, 0..max)
    }

    fn agrees<const N: usize>(
        prefixes: &[TrieEntry<N>],
        mut addresses: Vec<[u8; N]>,
    ) -> Result<(), TestCaseError> {
        // The first and the last address of prefixes, besides those given.
        for prefix in prefixes.iter().take((BURST_MAX - addresses.len()) / 2) {
            let mut first = prefix.bits;
            mask(&mut first, prefix.len);
            let mut behind = [0xff; N];
            mask(&mut behind, prefix.len);
            addresses.push(std::array::from_fn(|at| first[at] | !behind[at]));
            addresses.push(first);
        }
        for plain in [false, true] {
            let trie = Trie::compile_as(prefixes.to_vec(), plain);
            let mut values = [u32::MAX; BURST_MAX];
            trie.lookup_burst(&addresses, &mut values);
            for (address, value) in addresses.iter().zip(values) {
                let expected = scan(prefixes, address);
                prop_assert_eq!(trie.lookup(address), expected, "{:?}", address);
                prop_assert_eq!(value, expected, "{:?} in a burst", address);
            }
        }
        Ok(())
    }

    proptest! {
        #[test]
        fn ipv4_as_a_linear_scan(
            prefixes in prefixes::<4>(60), addresses in prop::collection::vec(address::<4>(), 0..20)
        ) {
            agrees(&prefixes, addresses)?;
        }

        #[test]
        fn ipv6_as_a_linear_scan(
            prefixes in prefixes::<16>(60), addresses in prop::collection::vec(address::<16>(), 0..20)
        ) {
            agrees(&prefixes, addresses)?;
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4))]
        #[test]
        fn a_plain_root_as_a_linear_scan(
            seed in any::<u32>(), addresses in prop::collection::vec(address::<4>(), 0..20)
        ) {
            let mut random = seed;
            let mut next = || {
                random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                random ^ random >> 15
            };
            let prefixes: Vec<_> = (1..=PLAIN_ROOT_PREFIXES as u32)
                .map(|value| TrieEntry { bits: next().to_be_bytes(), len: (next() % 33) as u8, value })
                .collect();
            agrees(&prefixes, addresses)?;
        }
    }

    #[test]
    fn memory_is_proportionate() {
        let prefix = |a, b, len| TrieEntry { bits: [10, a, b, 0], len, value: 1 + u32::from(b) };
        let two = vec![prefix(0, 0, 24), prefix(1, 0, 24)];
        assert_eq!(Trie::compile(two.clone()).size_bytes(), 4096, "a root and three nodes of a KiB each");
        assert!(Trie::compile_as(two, false).size_bytes() < 2048);
        let many: Vec<_> = (0..100_000u32).map(|n| prefix((n >> 8) as u8, n as u8, 24)).collect();
        let size_bytes = Trie::<4>::compile(many).size_bytes();
        assert!(size_bytes < 1 << 20, "{size_bytes} bytes: 256 KiB of root, and runs for 65,536 networks");
    }
}
