//! The Toeplitz key: 40 bytes that decide which flows share a bucket.
//!
//! The rule of a key. The bucket is the low [`BUCKET_BITS_MAX`] bits of the hash, and the hash is linear in the input, so a key is usable
//! only if the windows its bits form over the shortest input (an IPv4 2-tuple) span all of these bits. A key that fails leaves some
//! buckets, and so some workers, without any flow for ever; such keys (all zeros, a period of one byte) are refused when they are set, not
//! found out under load.
//!
//! Source: Microsoft, "RSS Hashing Functions" (key length, the default key); S. Woo and K. Park, "Scalable TCP
//! Session Monitoring with Symmetric Receive-side Scaling" (2012), for the symmetric key.
//!
//! Limits: the check is that every bucket can be reached, not that real traffic spreads evenly. Every symmetric key has period 16 bits and
//! so only 16 bits of freedom.

use std::fmt;
use std::str::FromStr;

pub use weir_simd::toeplitz::KEY_LEN_BYTES;

/// The most buckets an indirection table has, as a power of two (`RSS_MAXBITS`; also Microsoft's limit of 128).
pub const BUCKET_BITS_MAX: u32 = 7;

/// A checked Toeplitz key.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Key([u8; KEY_LEN_BYTES]);

impl Key {
    /// The key of Microsoft's verification suite, the default nearly everywhere.
    pub const MICROSOFT: Key = Key([
        0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0, 0xd0,
        0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c, 0x6a, 0x42,
        0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
    ]);

    /// `6d5a` repeated: both directions of a connection hash alike, so they meet on one worker.
    pub const SYMMETRIC: Key = {
        let mut bytes = [0x6d; KEY_LEN_BYTES];
        let mut i = 1;
        while i < KEY_LEN_BYTES {
            bytes[i] = 0x5a;
            i += 2;
        }
        Key(bytes)
    };

    /// A key of the user's own.
    pub fn new(bytes: &[u8]) -> Result<Key, KeyError> {
        let bytes: [u8; KEY_LEN_BYTES] = bytes.try_into().map_err(|_| KeyError::Length(bytes.len()))?;
        let rank = bucket_rank(&bytes);
        if rank < BUCKET_BITS_MAX {
            return Err(KeyError::Weak { reachable: 1 << rank });
        }
        Ok(Key(bytes))
    }

    /// The key's bytes.
    pub const fn bytes(&self) -> &[u8; KEY_LEN_BYTES] {
        &self.0
    }
}

/// A key as it is written in settings: `microsoft`, `symmetric`, or 80 hexadecimal digits, colons allowed
/// between bytes (the form of `ethtool -x`).
impl FromStr for Key {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Key, KeyError> {
        match text {
            "microsoft" => return Ok(Key::MICROSOFT),
            "symmetric" => return Ok(Key::SYMMETRIC),
            _ => {}
        }
        let mut digits = Vec::with_capacity(2 * KEY_LEN_BYTES);
        for (at, digit) in text.char_indices().filter(|(_, digit)| *digit != ':') {
            digits.push(digit.to_digit(16).ok_or(KeyError::NotHex { digit, at })? as u8);
        }
        if !digits.len().is_multiple_of(2) {
            return Err(KeyError::HalfByte);
        }
        Key::new(&digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect::<Vec<_>>())
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, byte) in self.0.iter().enumerate() {
            write!(f, "{}{byte:02x}", if i > 0 { ":" } else { "" })?;
        }
        Ok(())
    }
}

/// The reason why a key was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyError {
    /// The key has so many bytes, not 40.
    Length(usize),
    /// The text has a character that is not a hexadecimal digit.
    NotHex {
        /// The character.
        digit: char,
        /// Its byte offset in the text.
        at: usize,
    },
    /// The text has an odd number of digits.
    HalfByte,
    /// Flows can reach only so many of 128 buckets.
    Weak {
        /// The number of buckets that flows can reach.
        reachable: u32,
    },
}

impl fmt::Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KeyError::Length(len_bytes) => {
                write!(f, "a key has {KEY_LEN_BYTES} bytes ({} hexadecimal digits), this one {len_bytes}", 80)
            }
            KeyError::NotHex { digit, at } => write!(
                f,
                "`{digit}` at offset {at} is no hexadecimal digit; write 80 digits, `microsoft` or `symmetric`"
            ),
            KeyError::HalfByte => f.write_str("an odd number of hexadecimal digits; a byte has two"),
            KeyError::Weak { reachable } => {
                write!(f, "this key can reach only {reachable} of 128 buckets; use one with more random bits")
            }
        }
    }
}

impl std::error::Error for KeyError {}

/// The number of independent values of the low [`BUCKET_BITS_MAX`] bits of an IPv4 2-tuple's hash, as a power of two.
fn bucket_rank(key: &[u8; KEY_LEN_BYTES]) -> u32 {
    let key_bit = |n: usize| u32::from(key[n / 8] >> (7 - n % 8) & 1);
    let low_bits =
        |n: usize| (32 - BUCKET_BITS_MAX as usize..32).fold(0, |bits, j| bits << 1 | key_bit(n + j));
    // Gaussian elimination over GF(2): `basis[i]` is the vector found whose highest bit is i.
    let mut basis = [0_u32; BUCKET_BITS_MAX as usize];
    for mut vector in (0..64).map(low_bits) {
        while vector != 0 {
            let high = vector.ilog2() as usize;
            if basis[high] == 0 {
                basis[high] = vector;
            }
            vector ^= basis[high];
        }
    }
    basis.iter().filter(|vector| **vector != 0).count() as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_built_in_keys_pass_their_own_check() {
        assert_eq!(Key::new(Key::MICROSOFT.bytes()), Ok(Key::MICROSOFT));
        assert_eq!(Key::new(Key::SYMMETRIC.bytes()), Ok(Key::SYMMETRIC));
        assert_eq!(&Key::SYMMETRIC.bytes()[..4], &[0x6d, 0x5a, 0x6d, 0x5a]);
    }

    #[test]
    fn text_and_key_are_inverse() {
        for key in [Key::MICROSOFT, Key::SYMMETRIC] {
            assert_eq!(key.to_string().parse(), Ok(key));
            assert_eq!(key.to_string().replace(':', "").to_uppercase().parse(), Ok(key));
        }
        assert_eq!("symmetric".parse(), Ok(Key::SYMMETRIC));
        assert_eq!("microsoft".parse(), Ok(Key::MICROSOFT));
    }

    #[test]
    fn unusable_keys_are_refused_with_the_reason() {
        assert_eq!("6d5a".parse::<Key>(), Err(KeyError::Length(2)));
        assert_eq!("6d5".parse::<Key>(), Err(KeyError::HalfByte));
        assert_eq!("6d:5g".parse::<Key>(), Err(KeyError::NotHex { digit: 'g', at: 4 }));
        assert_eq!(Key::new(&[0; 40]), Err(KeyError::Weak { reachable: 1 }));
        assert_eq!(Key::new(&[0xff; 40]), Err(KeyError::Weak { reachable: 2 }));
        assert_eq!(Key::new(&[0xaa; 40]), Err(KeyError::Weak { reachable: 4 }));
        // The key has bits only beyond those that an IPv4 2-tuple meets.
        let mut late = [0; 40];
        late[12..].copy_from_slice(&Key::MICROSOFT.bytes()[12..]);
        assert!(matches!(Key::new(&late), Err(KeyError::Weak { .. })));
        let text = KeyError::Weak { reachable: 4 }.to_string();
        assert!(text.contains("only 4 of 128 buckets"), "{text}");
    }
}
