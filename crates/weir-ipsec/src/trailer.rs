//! The trailer of ESP: padding, its length, and the next header, which is the kind of the payload.
//!
//! ```text
//! payload | 1, 2, 3, ..., n | n | next header        payload + n + 2 is a multiple of 4, n as small as can be
//! ```
//!
//! Rule: the trailer is read only after the ICV was verified; a test counts the reads. Padding of any length that is 1, 2, 3, ... is right.
//!
//! Source: RFC 4303 sections 2.4 to 2.6.

use weir_core::drops::DropReason;

/// The alignment of the end of the encrypted bytes.
pub const ALIGNMENT: usize = 4;
/// The shortest trailer.
pub const LEN_MIN: usize = 2;
/// The longest trailer that is written.
pub const LEN_MAX: usize = LEN_MIN + ALIGNMENT - 1;

/// The length of the trailer of such a payload.
#[inline]
pub fn len(payload_len: usize) -> usize {
    LEN_MIN + (payload_len + LEN_MIN).wrapping_neg() % ALIGNMENT
}

/// Fills the slice, which is as long as [`len`] says, with a trailer.
#[inline(always)]
pub fn write(trailer: &mut [u8], next: u8) {
    match trailer {
        [a, b] => [*a, *b] = [0, next],
        [a, b, c] => [*a, *b, *c] = [1, 1, next],
        [a, b, c, d] => [*a, *b, *c, *d] = [1, 2, 2, next],
        [a, b, c, d, e] => [*a, *b, *c, *d, *e] = [1, 2, 3, 3, next],
        _ => unreachable!("a trailer is as long as `len` says"),
    }
}

/// The fields of a trailer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trailer {
    /// The length of the payload before it.
    pub payload_len: usize,
    /// The kind of the payload.
    pub next: u8,
}

/// Reads the trailer of the decrypted bytes, and checks its padding.
#[inline(always)]
pub fn read(encrypted: &[u8]) -> Result<Trailer, DropReason> {
    #[cfg(test)]
    READS.with(|reads| reads.set(reads.get() + 1));
    let Some((before, &[pad_len, next])) = encrypted.split_last_chunk() else {
        return Err(DropReason::EspTruncated);
    };
    let payload_len = before.len().checked_sub(pad_len.into()).ok_or(DropReason::EspBadPadding)?;
    let right = match before[payload_len..] {
        [] | [1] | [1, 2] | [1, 2, 3] => true,
        // Longer than it need be.
        ref padding => padding.iter().zip(1..=u8::MAX).all(|(&byte, expected)| byte == expected),
    };
    if right { Ok(Trailer { payload_len, next }) } else { Err(DropReason::EspBadPadding) }
}

#[cfg(test)]
thread_local! {
    /// The number of times that a trailer was read by this thread.
    pub static READS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        for payload_len in 0..300 {
            let mut encrypted = vec![0xee; payload_len + len(payload_len)];
            assert_eq!(encrypted.len() % ALIGNMENT, 0);
            write(&mut encrypted[payload_len..], 17);
            assert_eq!(read(&encrypted), Ok(Trailer { payload_len, next: 17 }));
        }
    }

    #[test]
    fn padding_is_one_two_three_of_any_length() {
        let mut longest: Vec<u8> = (1..=255).collect();
        longest.extend([255, 4]);
        assert_eq!(read(&longest), Ok(Trailer { payload_len: 0, next: 4 }));
        assert_eq!(read(&longest[1..]), Err(DropReason::EspBadPadding), "longer than what there is");
        longest[7] = 0;
        assert_eq!(read(&longest), Err(DropReason::EspBadPadding));
        assert_eq!(read(&[0]), Err(DropReason::EspTruncated));
    }
}
