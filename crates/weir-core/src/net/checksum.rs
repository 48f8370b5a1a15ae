//! The Internet checksum for a forwarder: verifies a header's, and updates it with a change.
//!
//! ```text
//! HC' = ~(~HC + ~m + m')             m, m' the 16-bit word before and after; one's complement sums
//! right iff 2^16 - 1 divides the sum of the header's words, and they are not all zero: 2^32 = 2^16 = 1 modulo 2^16 - 1
//! ```
//!
//! An update never repairs: a wrong checksum stays as wrong as it was.
//!
//! Source: RFC 1071 (sums in any byte order), RFC 1624 section 3, equation 3. Sums over ICMP messages come from
//! `smoltcp::wire`.

use weir_simd::sum::sum_words;

/// The number of words from which on wide additions are worth a call.
const LONG_WORDS: usize = 16;

/// Length of an IPv4 header without options.
pub const IPV4_LEN: usize = 20;

/// The checksum after one 16-bit word it covers changed from `before` to `after`.
#[inline]
pub fn updated(checksum: u16, before: u16, after: u16) -> u16 {
    let sum = u32::from(!checksum) + u32::from(!before) + u32::from(after);
    let sum = (sum >> 16) + (sum & 0xffff);
    !((sum >> 16) + sum) as u16
}

/// Returns whether the checksum of a header without options is right: its words add up to all ones.
#[inline]
pub fn header_is_right(header: &[u8; IPV4_LEN]) -> bool {
    let sum = sum_of_words(header);
    // The product of the sum with the inverse modulo 2^64 is the quotient if the sum is a multiple, and above the largest quotient if not.
    const INVERSE: u64 = 0xfffe_fffe_fffe_ffff;
    const QUOTIENT_MAX: u64 = (IPV4_LEN as u64 / 4) * (u32::MAX as u64 / 0xffff);
    const { assert!(INVERSE.wrapping_mul(0xffff) == 1) };
    (1..=QUOTIENT_MAX).contains(&sum.wrapping_mul(INVERSE))
}

/// The sum of the 32-bit words of a few bytes as they lie in the memory of this machine, to start a [`ones_sum`] from. A rest of less than a
/// word is left out.
#[inline]
pub fn sum_of_words(bytes: &[u8]) -> u64 {
    bytes.as_chunks::<4>().0.iter().map(|&word| u64::from(u32::from_ne_bytes(word))).sum()
}

/// The one's complement sum of the 16-bit words of `bytes` and of `start`, both as they lie in the memory of this machine. An odd last byte
/// is followed by a zero.
#[inline]
pub fn ones_sum(bytes: &[u8], start: u64) -> u16 {
    let (words, rest) = bytes.as_chunks::<4>();
    let mut last = [0; 4];
    last[..rest.len()].copy_from_slice(rest);
    // A header is summed where it is read.
    let sum = if words.len() < LONG_WORDS { sum_of_words(words.as_flattened()) } else { sum_words(words) };
    let sum = sum + start + u64::from(u32::from_ne_bytes(last));
    let sum = (sum >> 32) + (sum & 0xffff_ffff);
    let sum = (sum >> 32) + (sum & 0xffff_ffff);
    let sum = (sum >> 16) + (sum & 0xffff);
    ((sum >> 16) + (sum & 0xffff)) as u16
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use smoltcp::wire::Ipv4Packet;

    use super::*;

    proptest! {
        #[test]
        fn verifies_and_follows_as_a_full_sum_does(
            mut header in any::<[u8; IPV4_LEN]>(), word in 0usize..10, after in any::<u16>()
        ) {
            header[0] = 0x45;
            prop_assert_eq!(header_is_right(&header), Ipv4Packet::new_unchecked(&header).verify_checksum());
            Ipv4Packet::new_unchecked(&mut header).fill_checksum();
            prop_assert!(header_is_right(&header));
            // The first word has the length of the header, the sixth is the checksum itself.
            prop_assume!(word != 0 && word != 5);
            let at = 2 * word;
            let before = u16::from_be_bytes([header[at], header[at + 1]]);
            header[at..at + 2].copy_from_slice(&after.to_be_bytes());
            let checksum = Ipv4Packet::new_unchecked(&header).checksum();
            Ipv4Packet::new_unchecked(&mut header).set_checksum(updated(checksum, before, after));
            prop_assert!(header_is_right(&header));
        }

        /// The sums against those of 16-bit words, with the values at which carries and the two zeros meet.
        #[test]
        fn sums_as_they_are_written_in_the_rfcs(
            header in prop::collection::vec(extreme_word(), 10), checksum in extreme_word(),
            before in extreme_word(), after in extreme_word(),
        ) {
            let bytes: [u8; IPV4_LEN] = header.iter().flat_map(|word| word.to_be_bytes()).collect::<Vec<_>>()
                .try_into().expect("ten words");
            prop_assert_eq!(header_is_right(&bytes), sum_of(&header) == 0xffff);
            prop_assert_eq!(updated(checksum, before, after), !sum_of(&[!checksum, !before, after]));
        }
    }

    proptest! {
        /// The sum of any bytes, in any number, is smoltcp's sum in network order.
        #[test]
        fn a_whole_message_sums_as_smoltcp_has_it(bytes in prop::collection::vec(any::<u8>(), 0..1600), start in extreme_word()) {
            let of_bytes = smoltcp::wire::checksum::data(&bytes);
            let expected = smoltcp::wire::checksum::combine(&[of_bytes, start]);
            let sum = u16::from_be(ones_sum(&bytes, u64::from(start.to_be())));
            // The two zeros of one's complement are one.
            prop_assert_eq!(sum % 0xffff, expected % 0xffff);
            prop_assert_eq!(sum == 0, start == 0 && bytes.iter().all(|&byte| byte == 0));
        }
    }

    /// RFC 1071 section 1: each carry is added in at once.
    fn sum_of(words: &[u16]) -> u16 {
        words.iter().fold(0, |sum: u16, &word| {
            let (sum, carry) = sum.overflowing_add(word);
            sum + u16::from(carry)
        })
    }

    fn extreme_word() -> impl Strategy<Value = u16> {
        prop_oneof![Just(0), Just(1), Just(0xfffe), Just(0xffff), any::<u16>()]
    }
}
