//! The checks that the header of an arriving packet may be believed: its lengths fit each other and the bytes that are there, and its
//! checksum is right.
//!
//! | packet | dropped as `malformed` | as `bad-checksum` |
//! |---|---|---|
//! | IPv4 | no version 4; shorter than its header, or than it claims; it claims less than its header | the header's |
//! | IPv6 | no version 6; shorter than its header, or than it claims | - |
//! | ARP | shorter than it claims | - |
//!
//! Common IPv4 headers (no options) are read straight from a fixed-size beginning of the packet, after one length check, as
//! [`crate::steer::parse`] does and for the same reason; the rest goes through `smoltcp::wire`. Tests hold both to the same answer. Bytes
//! behind the length that a packet claims are padding.
//!
//! Source: RFC 1122 section 3.2.1, RFC 8200 section 3, RFC 826.

use smoltcp::wire::{ArpPacket, Ipv4Packet, Ipv6Packet};

use super::checksum::{IPV4_LEN, header_is_right};
use crate::drops::DropReason;

/// Checks an IPv4 packet.
#[inline]
pub fn ipv4(packet: &[u8]) -> Result<(), DropReason> {
    let header = packet.first_chunk::<IPV4_LEN>().ok_or(DropReason::Malformed)?;
    if header[0] != 0x45 {
        return with_options(packet);
    }
    let total_len = usize::from(u16::from_be_bytes([header[2], header[3]]));
    if total_len < IPV4_LEN || total_len > packet.len() {
        return Err(DropReason::Malformed);
    }
    if header_is_right(header) { Ok(()) } else { Err(DropReason::BadChecksum) }
}

fn with_options(packet: &[u8]) -> Result<(), DropReason> {
    let packet = Ipv4Packet::new_checked(packet).map_err(|_| DropReason::Malformed)?;
    if packet.version() != 4 {
        return Err(DropReason::Malformed);
    }
    if packet.verify_checksum() { Ok(()) } else { Err(DropReason::BadChecksum) }
}

/// Checks an IPv6 packet.
#[inline]
pub fn ipv6(packet: &[u8]) -> Result<(), DropReason> {
    match Ipv6Packet::new_checked(packet) {
        Ok(packet) if packet.version() == 6 => Ok(()),
        _ => Err(DropReason::Malformed),
    }
}

/// Checks an ARP packet.
pub fn arp(packet: &[u8]) -> Result<(), DropReason> {
    ArpPacket::new_checked(packet).map(drop).map_err(|_| DropReason::Malformed)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// The short way and smoltcp's views say the same of an IPv4 header.
        #[test]
        fn both_ways_agree(
            mut ip in prop::collection::vec(any::<u8>(), 20..64),
            total_len in 0u16..70, right in any::<bool>(), padding in 0usize..8,
        ) {
            ip[0] = 0x45;
            ip[2..4].copy_from_slice(&total_len.to_be_bytes());
            if right {
                Ipv4Packet::new_unchecked(&mut ip).fill_checksum();
            }
            ip.extend(vec![0; padding]);
            prop_assert_eq!(ipv4(&ip), with_options(&ip));
        }

        #[test]
        fn any_bytes_are_looked_at_without_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..80), version in 0u8..16) {
            if let Some(first) = bytes.first_mut() {
                *first = *first & 0x0f | version << 4;
            }
            let looks = (ipv4(&bytes), ipv6(&bytes), arp(&bytes));
            prop_assert!(version == 4 || looks.0 == Err(DropReason::Malformed));
            prop_assert!(version == 6 || looks.1 == Err(DropReason::Malformed));
        }
    }
}
