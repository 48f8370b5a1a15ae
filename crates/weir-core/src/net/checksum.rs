//! The Internet checksum as a forwarder needs it: a header verified, and followed through a change.
//!
//! ```text
//! HC' = ~(~HC + ~m + m')             m, m' the 16-bit word before and after; one's complement sums
//! ```
//!
//! Following a change never repairs: a wrong checksum stays as wrong as it was.
//!
//! Source: RFC 1071 (sums in any byte order), RFC 1624 section 3, equation 3. Sums over whole messages come from
//! `smoltcp::wire`.

/// Length of an IPv4 header without options.
pub const IPV4_LEN: usize = 20;

/// The checksum after one 16-bit word it covers changed from `before` to `after`.
#[inline]
pub fn updated(checksum: u16, before: u16, after: u16) -> u16 {
    !fold(u64::from(!checksum) + u64::from(!before) + u64::from(after))
}

/// Whether the checksum of a header without options is right: its words add up to all ones.
#[inline]
pub fn header_is_right(header: &[u8; IPV4_LEN]) -> bool {
    let (words, _) = header.as_chunks::<4>();
    fold(words.iter().map(|&word| u64::from(u32::from_ne_bytes(word))).sum()) == 0xffff
}

/// Adds the carries back in until 16 bits are left.
#[inline]
fn fold(sum: u64) -> u16 {
    let sum = (sum >> 32) + (sum & 0xffff_ffff);
    let sum = (sum >> 16) + (sum & 0xffff);
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
            // The first word says how long the header is, the sixth is the checksum itself.
            prop_assume!(word != 0 && word != 5);
            let at = 2 * word;
            let before = u16::from_be_bytes([header[at], header[at + 1]]);
            header[at..at + 2].copy_from_slice(&after.to_be_bytes());
            let checksum = Ipv4Packet::new_unchecked(&header).checksum();
            Ipv4Packet::new_unchecked(&mut header).set_checksum(updated(checksum, before, after));
            prop_assert!(header_is_right(&header));
        }
    }
}
