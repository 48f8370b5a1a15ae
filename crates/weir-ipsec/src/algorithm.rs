//! The algorithms of ESP: the key that each needs, the bytes it adds to a packet, and how it seals and opens bytes in place.
//!
//! ```text
//! AEAD:   nonce = salt (4) | IV (8)      associated data = SPI | sequence number (4, or 8 if extended)
//! HMAC:   ICV = first 16 bytes of HMAC-SHA-256 of SPI | sequence number | payload | trailer, and the upper 4 bytes if extended
//! ```
//!
//! | algorithm | key, salt included | IV | ICV | source |
//! |---|---|---|---|---|
//! | `aes128-gcm`, `aes256-gcm` | 20, 36 bytes | 8 | 16 | RFC 4106 |
//! | `chacha20-poly1305` | 36 bytes | 8 | 16 | RFC 7634 |
//! | `null-hmac-sha256` | 32 bytes | 0 | 16 | RFC 2410, RFC 4868 (HMAC-SHA-256-128) |
//! | `null` | none | 0 | 0 | RFC 2410; proves nothing, so it is for measuring alone |
//!
//! The IV is the whole sequence number, which an association never uses twice; so no nonce is used twice with a key.
//!
//! Keys: [`KeyMaterial`] is wiped when it is dropped and shows nothing when it is printed; the library's own form of a key is wiped by the
//! library when it is freed (`OPENSSL_free`, `HMAC_CTX_cleanup`). Copies that the compiler makes on the stack while a key is set up are
//! not.

use std::fmt;

use aws_lc_rs::aead::{AES_128_GCM, AES_256_GCM, Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use aws_lc_rs::{constant_time, digest, hmac};
use zeroize::Zeroize;

/// The longest IV.
pub const IV_LEN_MAX: usize = 8;
/// The longest ICV.
pub const ICV_LEN_MAX: usize = 16;

const KEY_LEN_MAX: usize = 36;
const SALT_LEN: usize = 4;

/// The encryption and the proof of an association.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// AES-128 in Galois/counter mode with an ICV of 16 bytes.
    Aes128Gcm,
    /// AES-256 in Galois/counter mode with an ICV of 16 bytes.
    Aes256Gcm,
    /// ChaCha20 and Poly1305.
    ChaCha20Poly1305,
    /// No encryption; HMAC-SHA-256 cut to 16 bytes.
    NullHmacSha256,
    /// Neither encryption nor proof.
    Null,
}

impl Algorithm {
    /// All algorithms.
    pub const ALL: [Algorithm; 5] = [
        Algorithm::Aes128Gcm,
        Algorithm::Aes256Gcm,
        Algorithm::ChaCha20Poly1305,
        Algorithm::NullHmacSha256,
        Algorithm::Null,
    ];

    /// The name of the algorithm in files and statistics.
    pub const fn name(self) -> &'static str {
        match self {
            Algorithm::Aes128Gcm => "aes128-gcm",
            Algorithm::Aes256Gcm => "aes256-gcm",
            Algorithm::ChaCha20Poly1305 => "chacha20-poly1305",
            Algorithm::NullHmacSha256 => "null-hmac-sha256",
            Algorithm::Null => "null",
        }
    }

    /// The length of its key, with the salt behind it (`KEYMAT` of RFC 4106 section 8.1).
    pub const fn key_len(self) -> usize {
        match self {
            Algorithm::Aes128Gcm => 16 + SALT_LEN,
            Algorithm::Aes256Gcm | Algorithm::ChaCha20Poly1305 => 32 + SALT_LEN,
            Algorithm::NullHmacSha256 => 32,
            Algorithm::Null => 0,
        }
    }

    /// The length of the IV that stands before the payload.
    pub const fn iv_len(self) -> usize {
        match self {
            Algorithm::Aes128Gcm | Algorithm::Aes256Gcm | Algorithm::ChaCha20Poly1305 => IV_LEN_MAX,
            Algorithm::NullHmacSha256 | Algorithm::Null => 0,
        }
    }

    /// The length of the ICV that ends a packet.
    pub const fn icv_len(self) -> usize {
        match self {
            Algorithm::Null => 0,
            _ => ICV_LEN_MAX,
        }
    }
}

/// A key as it was given, with its salt. It is wiped when it is dropped.
pub struct KeyMaterial {
    bytes: [u8; KEY_LEN_MAX],
    len: usize,
}

impl KeyMaterial {
    /// A copy of these bytes, if they are as many as the algorithm needs.
    pub fn new(algorithm: Algorithm, bytes: &[u8]) -> Result<KeyMaterial, KeyLength> {
        if bytes.len() != algorithm.key_len() {
            return Err(KeyLength { needed: algorithm.key_len(), given: bytes.len() });
        }
        let mut material = KeyMaterial { bytes: [0; KEY_LEN_MAX], len: bytes.len() };
        material.bytes[..bytes.len()].copy_from_slice(bytes);
        Ok(material)
    }

    /// The first half of the key's SHA-256: it tells the key from others and does not reveal it.
    pub fn fingerprint(&self) -> [u8; 16] {
        let mut context = digest::Context::new(&digest::SHA256);
        context.update(b"weir key");
        context.update(self.bytes());
        let mut fingerprint = [0; 16];
        fingerprint.copy_from_slice(&context.finish().as_ref()[..16]);
        fingerprint
    }

    fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl Zeroize for KeyMaterial {
    fn zeroize(&mut self) {
        self.bytes.zeroize();
        self.len = 0;
    }
}

impl Drop for KeyMaterial {
    fn drop(&mut self) {
        self.zeroize();
    }
}

impl fmt::Debug for KeyMaterial {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("KeyMaterial(..)")
    }
}

/// The error of a key that is not as long as its algorithm needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyLength {
    /// The bytes that the algorithm needs, with the salt.
    pub needed: usize,
    /// The bytes that were given.
    pub given: usize,
}

impl fmt::Display for KeyLength {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "the key has {} bytes; it needs {}, salt included", self.given, self.needed)
    }
}

impl std::error::Error for KeyLength {}

/// The proof of a packet is wrong, or the library refused it; no more may be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unproven;

/// The fields that are proven beside the payload: the SPI and the sequence number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Associated {
    /// The security parameter index.
    pub spi: u32,
    /// The whole sequence number.
    pub sequence: u64,
    /// True if the upper half of the number is proven too.
    pub extended: bool,
}

impl Associated {
    /// The associated data in the form of RFC 4106 section 5.
    fn for_aead(self, bytes: &mut [u8; 12]) -> &[u8] {
        bytes[..4].copy_from_slice(&self.spi.to_be_bytes());
        if self.extended {
            bytes[4..].copy_from_slice(&self.sequence.to_be_bytes());
            bytes
        } else {
            bytes[4..8].copy_from_slice(&(self.sequence as u32).to_be_bytes());
            &bytes[..8]
        }
    }
}

/// An algorithm with its key, ready to seal and open.
///
/// It lies on cache lines of its own: each packet reads it, and the count of an `Arc` around it would share its line.
#[repr(align(128))]
pub struct Transform {
    algorithm: Algorithm,
    /// The lengths of its IV and ICV, which each packet asks for.
    lens: [usize; 2],
    cipher: Cipher,
}

enum Cipher {
    Aead {
        key: LessSafeKey,
        salt: [u8; SALT_LEN],
    },
    /// The key has memory of its own, so that moving the cipher leaves no copies.
    Hmac(Box<hmac::Key>),
    Null,
}

impl fmt::Debug for Transform {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "Transform({})", self.algorithm.name())
    }
}

impl Drop for Transform {
    fn drop(&mut self) {
        if let Cipher::Aead { salt, .. } = &mut self.cipher {
            salt.zeroize();
        }
    }
}

impl Transform {
    /// The algorithm with this key.
    ///
    /// # Errors
    /// If the key was made for an algorithm whose keys have another length.
    pub fn new(algorithm: Algorithm, material: &KeyMaterial) -> Result<Transform, KeyLength> {
        let bytes = material.bytes();
        let wrong = KeyLength { needed: algorithm.key_len(), given: bytes.len() };
        if bytes.len() != algorithm.key_len() {
            return Err(wrong);
        }
        let aead = match algorithm {
            Algorithm::Aes128Gcm => Some(&AES_128_GCM),
            Algorithm::Aes256Gcm => Some(&AES_256_GCM),
            Algorithm::ChaCha20Poly1305 => Some(&CHACHA20_POLY1305),
            Algorithm::NullHmacSha256 | Algorithm::Null => None,
        };
        let cipher = match aead {
            Some(aead) => {
                let (key, salt) = bytes.split_last_chunk::<SALT_LEN>().ok_or(wrong)?;
                let key = UnboundKey::new(aead, key).map_err(|_| wrong)?;
                Cipher::Aead { key: LessSafeKey::new(key), salt: *salt }
            }
            None if algorithm == Algorithm::Null => Cipher::Null,
            None => Cipher::Hmac(Box::new(hmac::Key::new(hmac::HMAC_SHA256, bytes))),
        };
        Ok(Transform { algorithm, lens: [algorithm.iv_len(), algorithm.icv_len()], cipher })
    }

    /// The algorithm.
    #[inline]
    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// The length of the IV.
    #[inline]
    pub(crate) fn iv_len(&self) -> usize {
        self.lens[0]
    }

    /// The length of the ICV.
    #[inline]
    pub(crate) fn icv_len(&self) -> usize {
        self.lens[1]
    }

    /// Encrypts in place the bytes of `sealed` from `payload_at` on, and writes the ICV. `sealed` begins with the header of ESP; the IV, if
    /// there is one, is in it already.
    pub fn seal(
        &self,
        associated: Associated,
        sealed: &mut [u8],
        payload_at: usize,
        icv: &mut [u8],
    ) -> Result<(), Unproven> {
        match &self.cipher {
            Cipher::Aead { key, salt } => {
                let (before, payload) = sealed.split_at_mut_checked(payload_at).ok_or(Unproven)?;
                let nonce = nonce(*salt, before)?;
                let mut bytes = [0; 12];
                let tag = key
                    .seal_in_place_separate_tag(nonce, Aad::from(associated.for_aead(&mut bytes)), payload)
                    .map_err(|_| Unproven)?;
                icv.copy_from_slice(tag.as_ref().get(..icv.len()).ok_or(Unproven)?);
            }
            Cipher::Hmac(key) => icv.copy_from_slice(&sign(key, associated, sealed)),
            Cipher::Null => {}
        }
        Ok(())
    }

    /// Proves `sealed`, whose last bytes are the ICV, and then decrypts in place the bytes from `payload_at` on. If it is not proven, its
    /// bytes are meaningless.
    pub fn open(&self, associated: Associated, sealed: &mut [u8], payload_at: usize) -> Result<(), Unproven> {
        match &self.cipher {
            Cipher::Aead { key, salt } => {
                let (before, payload) = sealed.split_at_mut_checked(payload_at).ok_or(Unproven)?;
                let nonce = nonce(*salt, before)?;
                let mut bytes = [0; 12];
                key.open_in_place(nonce, Aad::from(associated.for_aead(&mut bytes)), payload)
                    .map(|_| ())
                    .map_err(|_| Unproven)
            }
            Cipher::Hmac(key) => {
                let (proven, icv) = sealed.split_last_chunk::<ICV_LEN_MAX>().ok_or(Unproven)?;
                constant_time::verify_slices_are_equal(&sign(key, associated, proven), icv)
                    .map_err(|_| Unproven)
            }
            Cipher::Null => Ok(()),
        }
    }
}

/// The nonce of the salt and the IV, which ends the bytes before the payload.
fn nonce(salt: [u8; SALT_LEN], before: &[u8]) -> Result<Nonce, Unproven> {
    let iv: &[u8; 8] = before.last_chunk().ok_or(Unproven)?;
    let mut nonce = [0; 12];
    nonce[..SALT_LEN].copy_from_slice(&salt);
    nonce[SALT_LEN..].copy_from_slice(iv);
    Ok(Nonce::assume_unique_for_key(nonce))
}

fn sign(key: &hmac::Key, associated: Associated, proven: &[u8]) -> [u8; ICV_LEN_MAX] {
    let tag = if associated.extended {
        // The upper half is not in the packet (RFC 4303 section 2.2.1).
        let mut context = hmac::Context::with_key(key);
        context.update(proven);
        context.update(&((associated.sequence >> 32) as u32).to_be_bytes());
        context.sign()
    } else {
        hmac::sign(key, proven)
    };
    let mut icv = [0; ICV_LEN_MAX];
    icv.copy_from_slice(&tag.as_ref()[..ICV_LEN_MAX]);
    icv
}

#[cfg(test)]
#[path = "algorithm_tests.rs"]
mod tests;
