//! The fields of IPv4 and IPv6 headers that ESP reads and writes: the end of the headers, the next header, the length, DSCP and ECN.
//!
//! | | IPv4 | IPv6 |
//! |---|---|---|
//! | ESP follows in transport mode | all options | hop-by-hop, routing, and destination options before a routing header |
//! | length field | the whole packet | the bytes behind the first 40 |
//! | DSCP and ECN | second byte | bits 4 to 11 |
//!
//! Source: RFC 791, RFC 8200 section 4.1, RFC 4303 section 3.1.1, RFC 2474, RFC 3168.
//!
//! Limits: if headers contradict themselves nothing beyond their packet is read; they are refused as malformed.

use std::net::IpAddr;

use weir_core::drops::DropReason;
use weir_core::net::checksum::ones_sum;

/// Length of an IPv4 header without options.
pub const IPV4_LEN: usize = 20;
/// Length of an IPv6 header without extensions.
pub const IPV6_LEN: usize = 40;
/// The length of an IPv6 fragment header.
pub const FRAGMENT_HEADER_LEN: usize = 8;

/// Protocol and next-header numbers.
pub mod number {
    /// IPv6 hop-by-hop options.
    pub const HOP_BY_HOP: u8 = 0;
    /// ICMP.
    pub const ICMP: u8 = 1;
    /// An IPv4 packet.
    pub const IPV4: u8 = 4;
    /// TCP.
    pub const TCP: u8 = 6;
    /// UDP.
    pub const UDP: u8 = 17;
    /// An IPv6 packet.
    pub const IPV6: u8 = 41;
    /// IPv6 routing header.
    pub const ROUTING: u8 = 43;
    /// IPv6 fragment header.
    pub const FRAGMENT: u8 = 44;
    /// ESP.
    pub const ESP: u8 = 50;
    /// ICMPv6.
    pub const ICMPV6: u8 = 58;
    /// No header follows.
    pub const NONE: u8 = 59;
    /// IPv6 destination options.
    pub const DESTINATION: u8 = 60;
}

/// The family of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IpFamily {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl IpFamily {
    /// The family of a packet, by its first bits.
    #[inline]
    pub fn of(packet: &[u8]) -> Result<IpFamily, DropReason> {
        match packet.first().map(|first| first >> 4) {
            Some(4) if packet.len() >= IPV4_LEN => Ok(IpFamily::V4),
            Some(6) if packet.len() >= IPV6_LEN => Ok(IpFamily::V6),
            _ => Err(DropReason::Malformed),
        }
    }

    /// The family's number as a protocol inside another.
    pub fn number(self) -> u8 {
        match self {
            IpFamily::V4 => number::IPV4,
            IpFamily::V6 => number::IPV6,
        }
    }
}

/// The source address of a packet of this family, which begins with a whole header.
#[inline]
pub fn source_of(ip: &[u8], family: IpFamily) -> &[u8] {
    match family {
        IpFamily::V4 => &ip[12..16],
        IpFamily::V6 => &ip[8..24],
    }
}

/// The destination address of a packet of this family, which begins with a whole header.
#[inline]
pub fn destination_of(ip: &[u8], family: IpFamily) -> &[u8] {
    match family {
        IpFamily::V4 => &ip[16..20],
        IpFamily::V6 => &ip[24..40],
    }
}

/// The source and destination of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AddressPair {
    V4([u32; 2]),
    V6([u128; 2]),
}

impl AddressPair {
    /// Those of a packet of this family, which begins with a whole header.
    #[inline(always)]
    pub(crate) fn of(packet: &[u8], family: IpFamily) -> AddressPair {
        const WHOLE: &str = "the header is whole";
        match family {
            IpFamily::V4 => {
                let pair: &[u8; 8] = packet[12..].first_chunk().expect(WHOLE);
                let &[s0, s1, s2, s3, d0, d1, d2, d3] = pair;
                AddressPair::V4([u32::from_be_bytes([s0, s1, s2, s3]), u32::from_be_bytes([d0, d1, d2, d3])])
            }
            IpFamily::V6 => {
                let word = |at| u128::from_be_bytes(*packet[at..].first_chunk().expect(WHOLE));
                AddressPair::V6([word(8), word(24)])
            }
        }
    }

    /// Those of an answer.
    pub(crate) fn turned(self) -> AddressPair {
        match self {
            AddressPair::V4([source, destination]) => AddressPair::V4([destination, source]),
            AddressPair::V6([source, destination]) => AddressPair::V6([destination, source]),
        }
    }
}

/// An address, as it stands in a packet; `None` if it is not as long as those of a family.
pub fn address(bytes: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    v4.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from)).ok()
}

/// The headers of a packet, as far as they stand before ESP or where it would be put.
///
/// They are in one word, because a processor waits for a value that is written in parts and read as a whole:
///
/// ```text
/// packet_len (17 bits) | end (17) | next_at (17) | next (8) | fragment (1) | IPv6 (1)          none is above 40 + 65535
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct IpHeaders(u64);

const LEN_BITS: u32 = 17;
const NEXT_BITS: u32 = 8;
const NEXT_AT: u32 = 2;
const NEXT_AT_AT: u32 = NEXT_AT + NEXT_BITS;
const END_AT: u32 = NEXT_AT_AT + LEN_BITS;
const PACKET_LEN_AT: u32 = END_AT + LEN_BITS;

impl std::fmt::Debug for IpHeaders {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.debug_struct("IpHeaders")
            .field("family", &self.family())
            .field("end", &self.end())
            .field("next", &self.next())
            .field("next_at", &self.next_at())
            .field("packet_len", &self.packet_len())
            .field("is_fragment", &self.is_fragment())
            .finish()
    }
}

impl IpHeaders {
    #[inline]
    fn new(
        family: IpFamily,
        end: usize,
        (next, next_at): (u8, usize),
        packet_len: usize,
        is_fragment: bool,
    ) -> IpHeaders {
        debug_assert!(next_at < end && end <= packet_len && packet_len < 1 << LEN_BITS);
        let lens =
            (packet_len as u64) << PACKET_LEN_AT | (end as u64) << END_AT | (next_at as u64) << NEXT_AT_AT;
        let flags = u64::from(is_fragment) << 1 | u64::from(family == IpFamily::V6);
        IpHeaders(lens | u64::from(next) << NEXT_AT | flags)
    }

    #[inline]
    fn len_at(self, at: u32) -> usize {
        (self.0 >> at) as usize & ((1 << LEN_BITS) - 1)
    }

    /// The family.
    #[inline]
    pub fn family(self) -> IpFamily {
        if self.0 & 1 == 0 { IpFamily::V4 } else { IpFamily::V6 }
    }

    /// The offset at which they end.
    #[inline]
    pub fn end(self) -> usize {
        self.len_at(END_AT)
    }

    /// The number of the next header.
    #[inline]
    pub fn next(self) -> u8 {
        (self.0 >> NEXT_AT) as u8
    }

    /// The offset of the byte with the number of the next header.
    #[inline]
    pub fn next_at(self) -> usize {
        self.len_at(NEXT_AT_AT)
    }

    /// The length of the packet, by its own word.
    #[inline]
    pub fn packet_len(self) -> usize {
        self.len_at(PACKET_LEN_AT)
    }

    /// Returns whether it is a fragment.
    #[inline]
    pub fn is_fragment(self) -> bool {
        self.0 & 2 != 0
    }

    /// The place of a fragment's data in its packet's, in bytes; 0 of a whole packet.
    pub fn fragment_offset(self, packet: &[u8]) -> usize {
        let at = match self.family() {
            _ if !self.is_fragment() => return 0,
            IpFamily::V4 => 6,
            IpFamily::V6 => self.end() - FRAGMENT_HEADER_LEN + 2,
        };
        let word = usize::from(u16::from_be_bytes([packet[at], packet[at + 1]]));
        match self.family() {
            IpFamily::V4 => 8 * (word & 0x1fff),
            IpFamily::V6 => word & !7,
        }
    }

    /// Returns whether it is a whole packet that quotes no other: no fragment, and no message of ICMP.
    #[inline]
    pub fn is_ordinary(self) -> bool {
        !self.is_fragment() && !matches!(self.next(), number::ICMP | number::ICMPV6)
    }

    /// Returns whether it is a fragment of IPv6 whose protocol stands behind more headers, which are in the fragments too.
    #[inline]
    pub fn hides_protocol(self) -> bool {
        self.is_fragment()
            && self.family() == IpFamily::V6
            && matches!(
                self.next(),
                number::HOP_BY_HOP | number::ROUTING | number::FRAGMENT | number::DESTINATION
            )
    }

    /// The headers that stay before ESP when this packet is sealed in transport mode.
    pub fn read(packet: &[u8]) -> Result<IpHeaders, DropReason> {
        IpHeaders::read_until(packet, false)
    }

    /// The part of these headers, which [`IpHeaders::read_all`] found, that stays before ESP in transport mode.
    #[inline]
    pub fn staying(&self, packet: &[u8]) -> Result<IpHeaders, DropReason> {
        match self.family() {
            IpFamily::V6 if self.end() > IPV6_LEN => IpHeaders::read(packet),
            _ => Ok(*self),
        }
    }

    /// All headers before ESP or the transport protocol, destination options too. The search ends at a fragment header.
    #[inline(always)]
    pub fn read_all(packet: &[u8]) -> Result<IpHeaders, DropReason> {
        IpHeaders::read_until(packet, true)
    }

    #[inline(always)]
    fn read_until(packet: &[u8], past_options: bool) -> Result<IpHeaders, DropReason> {
        match IpFamily::of(packet)? {
            IpFamily::V4 => IpHeaders::read_v4(packet),
            IpFamily::V6 => IpHeaders::read_v6(packet, past_options),
        }
    }

    #[inline(always)]
    fn read_v4(packet: &[u8]) -> Result<IpHeaders, DropReason> {
        let header: &[u8; IPV4_LEN] = packet.first_chunk().ok_or(DropReason::Malformed)?;
        let end = 4 * usize::from(header[0] & 0xf);
        let packet_len = usize::from(u16::from_be_bytes([header[2], header[3]]));
        if end < IPV4_LEN || packet_len < end || packet.len() < packet_len {
            return Err(DropReason::Malformed);
        }
        let fragment = u16::from_be_bytes([header[6], header[7]]) & 0x3fff != 0;
        Ok(IpHeaders::new(IpFamily::V4, end, (header[9], 9), packet_len, fragment))
    }

    #[inline(never)]
    fn read_v6(packet: &[u8], past_options: bool) -> Result<IpHeaders, DropReason> {
        let header: &[u8; IPV6_LEN] = packet.first_chunk().ok_or(DropReason::Malformed)?;
        let packet_len = IPV6_LEN + usize::from(u16::from_be_bytes([header[4], header[5]]));
        let packet = packet.get(..packet_len).ok_or(DropReason::Malformed)?;
        let (mut end, mut next, mut next_at, mut is_fragment) = (IPV6_LEN, header[6], 6, false);
        // Options that no routing header follows belong to the part that ESP protects.
        let mut before_options = None;
        while !is_fragment {
            let found = IpHeaders::new(IpFamily::V6, end, (next, next_at), packet_len, false);
            let (len, destination) = match next {
                number::HOP_BY_HOP if end == IPV6_LEN => (extension_len(packet, end)?, false),
                number::ROUTING => (extension_len(packet, end)?, false),
                number::DESTINATION => (extension_len(packet, end)?, true),
                number::FRAGMENT => {
                    is_fragment = true;
                    (FRAGMENT_HEADER_LEN, false)
                }
                _ => break,
            };
            let after = *packet.get(end).ok_or(DropReason::Malformed)?;
            if end + len > packet.len() {
                return Err(DropReason::Malformed);
            }
            match destination {
                true if before_options.is_none() => before_options = Some(found),
                true => {}
                false => before_options = None,
            }
            (end, next, next_at) = (end + len, after, end);
        }
        match before_options {
            Some(before) if !past_options => Ok(before),
            _ => Ok(IpHeaders::new(IpFamily::V6, end, (next, next_at), packet_len, is_fragment)),
        }
    }
}

/// The length of an extension header, by its own word.
pub(crate) fn extension_len(packet: &[u8], at: usize) -> Result<usize, DropReason> {
    packet.get(at + 1).map(|&len| 8 * (usize::from(len) + 1)).ok_or(DropReason::Malformed)
}

/// Writes the length of a packet, and the checksum if it has one. The packet begins with a header of this family.
#[inline]
pub fn set_len(packet: &mut [u8], family: IpFamily) -> Result<(), DropReason> {
    let covered = match family {
        IpFamily::V4 => packet.len(),
        IpFamily::V6 => packet.len().checked_sub(IPV6_LEN).ok_or(DropReason::Malformed)?,
    };
    let len = u16::try_from(covered).map_err(|_| DropReason::TooLong)?.to_be_bytes();
    match family {
        IpFamily::V4 => {
            packet[2..4].copy_from_slice(&len);
            fill_checksum(packet);
        }
        IpFamily::V6 => packet[4..6].copy_from_slice(&len),
    }
    Ok(())
}

#[inline]
fn fill_checksum(packet: &mut [u8]) {
    let header_len = 4 * usize::from(packet[0] & 0xf);
    if let Some(header) = packet.get_mut(..header_len).filter(|_| header_len >= IPV4_LEN) {
        header[10..12].fill(0);
        let checksum = !ones_sum(header, 0);
        header[10..12].copy_from_slice(&checksum.to_ne_bytes());
    }
}

/// DSCP and ECN: the byte that IPv4 calls type of service and IPv6 traffic class.
#[inline(always)]
pub fn traffic_class(packet: &[u8], family: IpFamily) -> u8 {
    match family {
        IpFamily::V4 => packet[1],
        IpFamily::V6 => packet[0] << 4 | packet[1] >> 4,
    }
}

/// Writes DSCP and ECN, and updates the checksum.
pub fn set_traffic_class(packet: &mut [u8], family: IpFamily, class: u8) {
    match family {
        IpFamily::V4 => {
            packet[1] = class;
            fill_checksum(packet);
        }
        IpFamily::V6 => {
            packet[0] = packet[0] & 0xf0 | class >> 4;
            packet[1] = packet[1] & 0x0f | class << 4;
        }
    }
}
