//! ECN: marks a packet as having met congestion instead of dropping it.
//!
//! The two low bits of the traffic class say what the sender understands: 00 nothing, 01 and 10 ECN, 11
//! congestion already met. Marking sets 11 where ECN is understood. For IPv4 the header's checksum follows by
//!
//! ```text
//! HC' = ~(~HC + ~m + m')            m, m' the 16-bit word before and after, one's complement sums
//! ```
//!
//! so nothing else of the packet is read. IPv6 has no header checksum, and transports' pseudo-headers do not
//! cover the traffic class.
//!
//! Source: RFC 3168 sections 5 and 6.1; RFC 1624 section 3, equation 3; RFC 8200 section 7.
//!
//! Limits: looks for IP behind an Ethernet header and at most two VLAN tags. Inside a tunnel only the outer
//! header is marked (RFC 6040 leaves the rest to the tunnel's end).

use smoltcp::wire::{Ipv4Packet, Ipv6Packet};

use crate::classify::headers::network_offset;
use crate::net::checksum;

/// Marks the packet in this Ethernet frame. False if its sender would not understand, so that only a drop
/// will do.
pub fn mark_ce(frame: &mut [u8]) -> bool {
    let Some((ethertype, offset)) = network_offset(frame) else {
        return false;
    };
    let ip = &mut frame[offset..];
    match ethertype {
        0x0800 => mark_ipv4(ip),
        0x86dd => mark_ipv6(ip),
        _ => false,
    }
}

/// Returns whether [`mark_ce`] could mark the packet in this Ethernet frame.
pub fn is_capable(frame: &[u8]) -> bool {
    let Some((ethertype, offset)) = network_offset(frame) else {
        return false;
    };
    let ip = &frame[offset..];
    match ethertype {
        0x0800 => Ipv4Packet::new_checked(ip).is_ok_and(|packet| packet.ecn() != 0),
        0x86dd => Ipv6Packet::new_checked(ip).is_ok_and(|packet| packet.traffic_class() & ECT_MASK != 0),
        _ => false,
    }
}

const ECT_MASK: u8 = 0b11;

fn mark_ipv4(ip: &mut [u8]) -> bool {
    let Ok(mut packet) = Ipv4Packet::new_checked(ip) else {
        return false;
    };
    let before = packet.ecn();
    if before == 0 {
        return false;
    }
    packet.set_ecn(ECT_MASK);
    // The rest of the word cancels out of ~m + m', so the two bits stand for it.
    packet.set_checksum(checksum::updated(packet.checksum(), before.into(), ECT_MASK.into()));
    true
}

fn mark_ipv6(ip: &mut [u8]) -> bool {
    let Ok(mut packet) = Ipv6Packet::new_checked(ip) else {
        return false;
    };
    let traffic_class = packet.traffic_class();
    if traffic_class & ECT_MASK == 0 {
        return false;
    }
    packet.set_traffic_class(traffic_class | ECT_MASK);
    true
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use smoltcp::wire::{IpProtocol, Ipv4Address};

    use super::*;

    fn ethernet(ethertype: u16, tags: usize, payload: &[u8]) -> Vec<u8> {
        let mut frame = vec![2; 12];
        for _ in 0..tags {
            frame.extend([0x81, 0x00, 0x00, 0x07]);
        }
        frame.extend(ethertype.to_be_bytes());
        frame.extend(payload);
        frame
    }

    proptest! {
        #[test]
        fn an_ipv4_mark_leaves_a_valid_checksum_and_nothing_else_changed(
            traffic_class in any::<u8>(), ident in any::<u16>(), source in any::<u32>(), tags in 0usize..3,
        ) {
            let mut ip = vec![0u8; 28];
            let mut packet = Ipv4Packet::new_unchecked(&mut ip[..]);
            packet.set_version(4);
            packet.set_header_len(20);
            packet.set_dscp(traffic_class >> 2);
            packet.set_ecn(traffic_class & 3);
            packet.set_total_len(28);
            packet.set_ident(ident);
            packet.set_next_header(IpProtocol::Udp);
            packet.set_src_addr(Ipv4Address::from_bits(source));
            packet.fill_checksum();
            let before = ethernet(0x0800, tags, &ip);
            let mut after = before.clone();
            prop_assert_eq!(is_capable(&before), traffic_class & 3 != 0);
            prop_assert_eq!(mark_ce(&mut after), traffic_class & 3 != 0);
            let offset = 14 + 4 * tags;
            prop_assert!(Ipv4Packet::new_checked(&after[offset..]).unwrap().verify_checksum());
            for (index, (old, new)) in before.iter().zip(&after).enumerate() {
                if index == offset + 1 {
                    prop_assert_eq!(*new, if traffic_class & 3 == 0 { *old } else { old | 3 });
                } else if index != offset + 10 && index != offset + 11 {
                    prop_assert_eq!(old, new, "byte {}", index);
                }
            }
        }

        #[test]
        fn an_ipv6_mark_changes_two_bits(traffic_class in any::<u8>(), tags in 0usize..3) {
            let mut ip = vec![0u8; 48];
            let mut packet = Ipv6Packet::new_unchecked(&mut ip[..]);
            packet.set_version(6);
            packet.set_flow_label(0xabcde);
            packet.set_traffic_class(traffic_class);
            packet.set_payload_len(8);
            let before = ethernet(0x86dd, tags, &ip);
            let mut after = before.clone();
            let understood = traffic_class & 3 != 0;
            prop_assert_eq!(mark_ce(&mut after), understood);
            let mut expected = before;
            // The traffic class lies across two bytes; its low two bits are bits 5 and 4 of the second.
            expected[14 + 4 * tags + 1] |= if understood { 0x30 } else { 0 };
            prop_assert_eq!(after, expected);
        }

        #[test]
        fn any_bytes_are_left_alone_or_marked_in_place(mut frame in prop::collection::vec(any::<u8>(), 0..80)) {
            let len = frame.len();
            let capable = is_capable(&frame);
            prop_assert_eq!(mark_ce(&mut frame), capable);
            prop_assert_eq!(frame.len(), len);
        }
    }
}
