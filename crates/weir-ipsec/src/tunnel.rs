//! The outer header of a tunnel: the fields it takes from the packet inside, and those that the packet inside takes from it.
//!
//! | field | going in | coming out |
//! |---|---|---|
//! | DSCP | copied | left as it is |
//! | ECN | copied (RFC 6040 normal mode) | the table below |
//! | TTL, hop limit | the tunnel's own | left; a router that forwards takes one off |
//! | DF | copied, set or cleared | left |
//! | identification | the low half of the sequence number | |
//! | flow label | zero: packets of one association take one way, and come in their order | left |
//!
//! | inside \ outside | not-ECT | ECT(0) | ECT(1) | CE |
//! |---|---|---|---|---|
//! | not-ECT | not-ECT | not-ECT | not-ECT | dropped |
//! | ECT(0) | ECT(0) | ECT(0) | ECT(1) | CE |
//! | ECT(1) | ECT(1) | ECT(1) | ECT(1) | CE |
//! | CE | CE | CE | CE | CE |
//!
//! Source: RFC 4301 section 5.1.2, RFC 6040 section 4.

use std::net::IpAddr;

use weir_core::drops::DropReason;

use crate::ip::{self, IPV4_LEN, IPV6_LEN, IpFamily};

const CE: u8 = 0b11;
const ECN: u8 = 0b11;
const DONT_FRAGMENT: u8 = 0x40;

/// Both ends of a tunnel, and the rules for the fields of its outer header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tunnel {
    ends: Ends,
    /// TTL or hop limit of the outer header.
    pub hop_limit: u8,
    /// Its DF bit, for IPv4.
    pub dont_fragment: OuterDontFragment,
}

/// Addresses of one family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ends {
    V4(EndsV4),
    V6([[u8; 16]; 2]),
}

/// Source and destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct EndsV4 {
    addresses: [u8; 8],
    /// The sum of their words, which is in the checksum of each header.
    sum: u32,
}

impl EndsV4 {
    fn new(source: [u8; 4], destination: [u8; 4]) -> EndsV4 {
        let mut addresses = [0; 8];
        addresses[..4].copy_from_slice(&source);
        addresses[4..].copy_from_slice(&destination);
        let words = addresses.as_chunks().0.iter();
        EndsV4 { addresses, sum: words.map(|&word| u32::from(u16::from_be_bytes(word))).sum() }
    }

    fn source(&self) -> [u8; 4] {
        let [s0, s1, s2, s3, ..] = self.addresses;
        [s0, s1, s2, s3]
    }
}

/// DF of an outer header of IPv4.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OuterDontFragment {
    /// The DF bit of the packet inside; set for IPv6.
    Copied,
    /// Always set.
    Set,
    /// Never set.
    Clear,
}

impl Tunnel {
    /// A tunnel between these addresses; `None` if they are not of one family.
    pub fn new(source: IpAddr, destination: IpAddr) -> Option<Tunnel> {
        let ends = match (source, destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                Ends::V4(EndsV4::new(source.octets(), destination.octets()))
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                Ends::V6([source.octets(), destination.octets()])
            }
            _ => return None,
        };
        Some(Tunnel { ends, hop_limit: 64, dont_fragment: OuterDontFragment::Copied })
    }

    /// Makes it a tunnel to another address of the same family; others are passed over.
    pub fn set_destination(&mut self, address: IpAddr) {
        match (&mut self.ends, address) {
            (Ends::V4(ends), IpAddr::V4(address)) => {
                *ends = EndsV4::new(ends.source(), address.octets());
            }
            (Ends::V6([_, destination]), IpAddr::V6(address)) => *destination = address.octets(),
            _ => {}
        }
    }

    /// The family of its outer header.
    #[inline]
    pub fn family(&self) -> IpFamily {
        match self.ends {
            Ends::V4(_) => IpFamily::V4,
            Ends::V6(_) => IpFamily::V6,
        }
    }

    /// The length of its outer header.
    #[inline]
    pub fn header_len(&self) -> usize {
        match self.ends {
            Ends::V4(_) => IPV4_LEN,
            Ends::V6(_) => IPV6_LEN,
        }
    }

    /// The fields of a packet that go into the outer header. Read before the packet is encrypted.
    #[inline(always)]
    pub fn inside(&self, packet: &[u8], family: IpFamily) -> Inside {
        let class = ip::traffic_class(packet, family);
        let dont_fragment = match self.dont_fragment {
            OuterDontFragment::Copied => family == IpFamily::V6 || packet[6] & DONT_FRAGMENT != 0,
            OuterDontFragment::Set => true,
            OuterDontFragment::Clear => false,
        };
        Inside { class, dont_fragment }
    }

    /// Writes the outer header over the first bytes of the packet, which are [`Tunnel::header_len`] at least.
    #[inline(always)]
    pub fn write(
        &self,
        packet: &mut [u8],
        inside: Inside,
        next: u8,
        sequence: u64,
    ) -> Result<(), DropReason> {
        let Inside { class, dont_fragment } = inside;
        match self.ends {
            Ends::V4(EndsV4 { addresses, sum }) => {
                let len = u16::try_from(packet.len()).map_err(|_| DropReason::TooLong)?;
                let header: &mut [u8; IPV4_LEN] = packet.first_chunk_mut().ok_or(DropReason::Malformed)?;
                let flags = if dont_fragment { u16::from(DONT_FRAGMENT) << 8 } else { 0 };
                // The header is made of words, whose sum is also that of the header: bytes that were just written one by one are read
                // slowly.
                let first = u16::from_be_bytes([0x45, class]);
                let hops = u16::from_be_bytes([self.hop_limit, next]);
                let words = [first, len, sequence as u16, flags, hops];
                let sum: u32 = sum + words.iter().map(|&word| u32::from(word)).sum::<u32>();
                let sum = (sum >> 16) + (sum & 0xffff);
                let pair = |high: u16, low: u16| (u32::from(high) << 16 | u32::from(low)).to_be_bytes();
                header[..4].copy_from_slice(&pair(first, len));
                header[4..8].copy_from_slice(&pair(sequence as u16, flags));
                header[8..12].copy_from_slice(&pair(hops, !((sum >> 16) + sum) as u16));
                header[12..].copy_from_slice(&addresses);
                Ok(())
            }
            Ends::V6([source, destination]) => {
                let header: &mut [u8; IPV6_LEN] = packet.first_chunk_mut().ok_or(DropReason::Malformed)?;
                header[..8].copy_from_slice(&[
                    0x60 | class >> 4,
                    class << 4,
                    0,
                    0,
                    0,
                    0,
                    next,
                    self.hop_limit,
                ]);
                header[8..24].copy_from_slice(&source);
                header[24..].copy_from_slice(&destination);
                ip::set_len(packet, IpFamily::V6)
            }
        }
    }
}

/// The fields that a packet brings to the outer header before it.
#[derive(Clone, Copy, Debug)]
pub struct Inside {
    class: u8,
    dont_fragment: bool,
}

/// Gives the packet inside the congestion mark that it got on the way, if its sender understands it.
#[inline(always)]
pub fn combine_ecn(packet: &mut [u8], family: IpFamily, outer_class: u8) -> Result<(), DropReason> {
    // A packet without a mark outside stays as it is.
    if outer_class & ECN == 0 { Ok(()) } else { combine(packet, family, outer_class) }
}

#[inline(never)]
fn combine(packet: &mut [u8], family: IpFamily, outer_class: u8) -> Result<(), DropReason> {
    let class = ip::traffic_class(packet, family);
    let combined = ecn_out(class & ECN, outer_class & ECN)?;
    if combined != class & ECN {
        ip::set_traffic_class(packet, family, class & !ECN | combined);
    }
    Ok(())
}

/// The ECN of the packet that leaves a tunnel (RFC 6040 section 4.2, figure 4).
fn ecn_out(inside: u8, outside: u8) -> Result<u8, DropReason> {
    match (inside, outside) {
        (0, CE) => Err(DropReason::EspNotEcnCapable),
        (0, _) => Ok(0),
        (_, CE) => Ok(CE),
        (0b10, 0b01) => Ok(0b01),
        (inside, _) => Ok(inside),
    }
}

#[cfg(test)]
mod tests {
    use weir_core::net::checksum::ones_sum;

    use super::*;

    #[test]
    fn marks_come_out_as_rfc_6040_says() {
        let drop = Err(DropReason::EspNotEcnCapable);
        let (not, one, zero) = (0b00, 0b01, 0b10);
        let table = [
            (not, [Ok(not), Ok(not), Ok(not), drop]),
            (zero, [Ok(zero), Ok(zero), Ok(one), Ok(CE)]),
            (one, [Ok(one), Ok(one), Ok(one), Ok(CE)]),
            (CE, [Ok(CE), Ok(CE), Ok(CE), Ok(CE)]),
        ];
        for (inside, row) in table {
            for (outside, expected) in [not, zero, one, CE].into_iter().zip(row) {
                assert_eq!(ecn_out(inside, outside), expected, "{inside:02b} in {outside:02b}");
            }
        }
    }

    #[test]
    fn the_checksum_of_an_outer_header_is_right_whatever_its_fields() {
        let ends = [[0; 4], [10, 0, 0, 1], [192, 0, 2, 255], [255; 4]];
        for (source, destination) in ends.into_iter().flat_map(|one| ends.map(|other| (one, other))) {
            let mut tunnel = Tunnel::new(source.into(), [198, 51, 100, 7].into()).unwrap();
            tunnel.set_destination(destination.into());
            for (class, dont_fragment, sequence) in
                [(0, false, 0), (0xb8, true, 0x1_2345), (0xff, true, u64::MAX)]
            {
                let mut packet = [0xee; 1400];
                tunnel.write(&mut packet, Inside { class, dont_fragment }, 50, sequence).unwrap();
                assert_eq!(ones_sum(&packet[..IPV4_LEN], 0), 0xffff, "{:02x?}", &packet[..IPV4_LEN]);
                assert_eq!([&packet[12..16], &packet[16..20]], [source, destination]);
                assert_eq!(packet[..4], [0x45, class, 0x05, 0x78]);
                assert_eq!(packet[4..6], (sequence as u16).to_be_bytes());
                assert_eq!(packet[6..10], [if dont_fragment { 0x40 } else { 0 }, 0, 64, 50]);
            }
        }
    }

    #[test]
    fn ends_of_two_families_are_no_tunnel() {
        assert!(Tunnel::new([10, 0, 0, 1].into(), [0u16; 8].into()).is_none());
    }
}
