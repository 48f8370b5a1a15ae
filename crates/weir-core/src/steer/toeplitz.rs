//! The Toeplitz hash of a flow tuple: the processor's kernel for bursts where it has one, tables everywhere
//! else.
//!
//! The rule. Each set bit `n` of the input adds (XOR) the 32 key bits from `n` on. The sum is linear, so the
//! share of one input byte can be looked up. Windows of neighbouring bytes overlap: 64 key bits from bit `32
//! k` on hold the windows of all four bytes from byte `4 k` on, each 8 bits further left. One table of 64-bit shares
//! (`shares[k]`) thus serves four bytes, and because shifts distribute over XOR they are done once, at the
//! end, for all:
//!
//! ```text
//! hash = (X0 ^ X1 << 8 ^ X2 << 16 ^ X3 << 24) >> 32,   Xi = XOR over k of shares[k][byte 4 k + i of the tuple]
//! ```
//!
//! This needs 2 KiB for each four bytes, 6 KiB for IPv4 and 18 KiB for IPv6, half of the memory of one table of 32-bit
//! shares for each byte, so that the packets' headers stay in the first-level cache beside it.
//!
//! A 2-tuple needs no code of its own: zero bits add nothing, so it is the 4-tuple with its ports set to 0.
//!
//! Ownership: immutable; every worker may share one.
//!
//! Source: Microsoft, "RSS Hashing Functions" and "Verifying the RSS Hash Calculation".

use weir_simd::toeplitz::{BATCH_TUPLES, Batch, Flow, Kernel, V6_WORDS};

use super::key::{KEY_LEN_BYTES, Key};

/// The number of tables: two for each word of the longest addresses, and one for the ports.
const SHARES: usize = 2 * V6_WORDS + 1;

/// A key made ready for hashing.
#[derive(Clone)]
pub struct Toeplitz {
    shares: Box<[[u64; 256]; SHARES]>,
    kernel: Option<Kernel>,
}

impl Toeplitz {
    /// Prepares `key`, for the processor's own kernel too if it has one.
    pub fn new(key: &Key) -> Toeplitz {
        Toeplitz { kernel: Kernel::new(key.bytes()), ..Toeplitz::portable(key) }
    }

    /// Prepares `key` for the tables alone, as on a processor without a kernel.
    pub fn portable(key: &Key) -> Toeplitz {
        let mut shares = Box::new([[0; 256]; SHARES]);
        for (k, table) in shares.iter_mut().enumerate() {
            for byte in 1..256_usize {
                // The share of the highest bit alone, plus that of the rest, which is already there.
                let high = byte.ilog2();
                let rest = byte ^ 1 << high;
                table[byte] = table[rest] ^ key_bits(key.bytes(), 32 * k + 7 - high as usize);
            }
        }
        Toeplitz { shares, kernel: None }
    }

    /// The name of the code of [`Toeplitz::hash_batch`], for statistics: that of a [`Kernel`], or `portable`.
    pub fn kernel_name(&self) -> &'static str {
        self.kernel.as_ref().map_or("portable", Kernel::name)
    }

    /// The hash of one tuple.
    #[inline]
    pub fn hash<const WORDS: usize>(&self, flow: &Flow<WORDS>) -> u32 {
        const { assert!(WORDS <= V6_WORDS, "a pair of addresses has at most V6_WORDS words") };
        let mut sums = [0; 4];
        // The bytes are shifted out of the word, whose first byte is the lowest here, rather than loaded one by one: the table look-ups are
        // short of loads.
        let mut add = |bytes: &[u8; 4], shares: &[u64; 256]| {
            let word = u32::from_le_bytes(*bytes);
            for (i, sum) in sums.iter_mut().enumerate() {
                *sum ^= shares[(word >> (8 * i)) as usize & 0xff];
            }
        };
        for (word, shares) in flow.addresses.iter().zip(self.shares.as_chunks::<2>().0) {
            let [first, second] = word.as_chunks::<4>().0 else { unreachable!("a word is 8 bytes") };
            add(first, &shares[0]);
            add(second, &shares[1]);
        }
        add(&flow.ports, &self.shares[2 * WORDS]);
        let [x0, x1, x2, x3] = sums;
        ((x0 ^ x1 << 8 ^ x2 << 16 ^ x3 << 24) >> 32) as u32
    }

    /// Hashes the first `len` tuples of `batch`: `hashes[t]` becomes the hash of tuple `t`. Hashes behind them may change too.
    ///
    /// # Panics
    /// If the batch has fewer than `len` tuples.
    pub fn hash_batch<const WORDS: usize>(
        &self,
        batch: &Batch<WORDS>,
        len: usize,
        hashes: &mut [u32; BATCH_TUPLES],
    ) {
        match &self.kernel {
            Some(kernel) => kernel.hash(batch, len, hashes),
            None => {
                hashes[..len].iter_mut().enumerate().for_each(|(t, hash)| *hash = self.hash(&batch.get(t)))
            }
        }
    }
}

/// 64 key bits from bit `n` on; zeros after the key's end.
fn key_bits(key: &[u8; KEY_LEN_BYTES], n: usize) -> u64 {
    (n..n + 64).fold(0, |bits, n| {
        let bit = key.get(n / 8).map_or(0, |byte| byte >> (7 - n % 8) & 1);
        bits << 1 | u64::from(bit)
    })
}

#[cfg(test)]
pub(super) mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use proptest::prelude::*;

    use weir_simd::toeplitz::V4_WORDS;

    use super::*;

    /// The hash by its definition, bit by bit.
    pub fn by_definition(key: &Key, input: &[u8]) -> u32 {
        let mut hash = 0;
        for n in (0..8 * input.len()).filter(|n| input[n / 8] >> (7 - n % 8) & 1 == 1) {
            hash ^= (key_bits(key.bytes(), n) >> 32) as u32;
        }
        hash
    }

    fn flow<const WORDS: usize>(bytes: &[u8]) -> Flow<WORDS> {
        let (addresses, ports) = bytes.split_at(8 * WORDS);
        let word = |k: usize| addresses[8 * k..8 * k + 8].try_into().unwrap();
        Flow { addresses: std::array::from_fn(word), ports: ports.try_into().expect("ports") }
    }

    /// The hashes of `bytes` alone, in a batch on the portable path, and in a batch on the processor's kernel.
    fn every_way<const WORDS: usize>(key: &Key, bytes: &[u8]) -> [u32; 3] {
        let (best, portable) = (Toeplitz::new(key), Toeplitz::portable(key));
        if best.kernel.is_none() {
            eprintln!("skipped the kernel: this processor has none");
        }
        let flow = flow::<WORDS>(bytes);
        let in_batch = |toeplitz: &Toeplitz| {
            let mut hashes = [1; BATCH_TUPLES];
            let mut batch = Batch::ZEROS;
            (1..BATCH_TUPLES).for_each(|t| batch.set(t, &flow));
            toeplitz.hash_batch(&batch, BATCH_TUPLES, &mut hashes);
            assert_eq!(hashes[0], 0, "nothing hashes to nothing");
            assert!(hashes[1..].iter().all(|hash| *hash == hashes[1]), "{hashes:08x?}");
            hashes[1]
        };
        [portable.hash(&flow), in_batch(&portable), in_batch(&best)]
    }

    #[test]
    fn microsofts_ipv4_vectors() {
        let vectors = [
            ("66.9.149.187", 2794, "161.142.100.80", 1766, 0x323e_8fc2, 0x51cc_c178),
            ("199.92.111.2", 14230, "65.69.140.83", 4739, 0xd718_262a, 0xc626_b0ea),
            ("24.19.198.95", 12898, "12.22.207.184", 38024, 0xd2d0_a5de, 0x5c2b_394a),
            ("38.27.205.30", 48228, "209.142.163.6", 2217, 0x8298_9176, 0xafc7_327f),
            ("153.39.163.191", 44251, "202.188.127.2", 1303, 0x5d18_09c5, 0x10e8_28a2),
        ];
        for (source, source_port, destination, destination_port, addresses_only, with_ports) in vectors {
            let mut bytes = Vec::new();
            bytes.extend(source.parse::<Ipv4Addr>().unwrap().octets());
            bytes.extend(destination.parse::<Ipv4Addr>().unwrap().octets());
            assert_eq!(by_definition(&Key::MICROSOFT, &bytes), addresses_only);
            let without_ports = [&bytes[..], &[0; 4]].concat();
            assert_eq!(
                every_way::<V4_WORDS>(&Key::MICROSOFT, &without_ports),
                [addresses_only; 3],
                "{source}"
            );
            bytes.extend(u16::to_be_bytes(source_port));
            bytes.extend(u16::to_be_bytes(destination_port));
            assert_eq!(every_way::<V4_WORDS>(&Key::MICROSOFT, &bytes), [with_ports; 3], "{source}");
            assert_eq!(by_definition(&Key::MICROSOFT, &bytes), with_ports);
        }
    }

    #[test]
    fn microsofts_ipv6_vectors() {
        let vectors = [
            ("3ffe:2501:200:1fff::7", 2794, "3ffe:2501:200:3::1", 1766, 0x2cc1_8cd5, 0x4020_7d3d),
            ("3ffe:501:8::260:97ff:fe40:efab", 14230, "ff02::1", 4739, 0x0f0c_461c, 0xdde5_1bbf),
            (
                "3ffe:1900:4545:3:200:f8ff:fe21:67cf",
                44251,
                "fe80::200:f8ff:fe21:67cf",
                38024,
                0x4b61_e985,
                0x02d1_feef,
            ),
        ];
        for (source, source_port, destination, destination_port, addresses_only, with_ports) in vectors {
            let mut bytes = Vec::new();
            bytes.extend(source.parse::<Ipv6Addr>().unwrap().octets());
            bytes.extend(destination.parse::<Ipv6Addr>().unwrap().octets());
            assert_eq!(by_definition(&Key::MICROSOFT, &bytes), addresses_only);
            let without_ports = [&bytes[..], &[0; 4]].concat();
            assert_eq!(
                every_way::<V6_WORDS>(&Key::MICROSOFT, &without_ports),
                [addresses_only; 3],
                "{source}"
            );
            bytes.extend(u16::to_be_bytes(source_port));
            bytes.extend(u16::to_be_bytes(destination_port));
            assert_eq!(every_way::<V6_WORDS>(&Key::MICROSOFT, &bytes), [with_ports; 3], "{source}");
            assert_eq!(by_definition(&Key::MICROSOFT, &bytes), with_ports);
        }
    }

    proptest! {
        #[test]
        fn any_tuple_hashes_by_the_definition(key in any::<[[u8; 20]; 2]>(), bytes in any::<[[u8; 12]; 3]>()) {
            let (key, bytes) = (key.concat(), bytes.concat());
            prop_assume!(Key::new(&key).is_ok());
            let key = Key::new(&key).unwrap();
            prop_assert_eq!(every_way::<V4_WORDS>(&key, &bytes[..12]), [by_definition(&key, &bytes[..12]); 3]);
            prop_assert_eq!(every_way::<V6_WORDS>(&key, &bytes), [by_definition(&key, &bytes); 3]);
        }

        #[test]
        fn the_symmetric_key_makes_both_directions_meet(v4 in any::<[u16; 6]>(), v6 in any::<[u16; 18]>()) {
            let bytes = |halves: &[u16]| halves.iter().flat_map(|half| half.to_be_bytes()).collect::<Vec<_>>();
            let back4 = [v4[2], v4[3], v4[0], v4[1], v4[5], v4[4]];
            let mut back6 = v6;
            back6[..16].rotate_left(8);
            back6.swap(16, 17);
            prop_assert_eq!(
                every_way::<V4_WORDS>(&Key::SYMMETRIC, &bytes(&v4)),
                every_way::<V4_WORDS>(&Key::SYMMETRIC, &bytes(&back4))
            );
            prop_assert_eq!(
                every_way::<V6_WORDS>(&Key::SYMMETRIC, &bytes(&v6)),
                every_way::<V6_WORDS>(&Key::SYMMETRIC, &bytes(&back6))
            );
        }
    }
}
