//! What ESP reads and writes of IPv4 and IPv6 headers: where a header ends, what follows it, its length, its DSCP and ECN.
//!
//! | | IPv4 | IPv6 |
//! |---|---|---|
//! | ESP follows in transport mode | all options | hop-by-hop, routing, and destination options before a routing header |
//! | length field | the whole packet | what follows the first 40 bytes |
//! | DSCP and ECN | second byte | bits 4 to 11 |
//!
//! Source: RFC 791, RFC 8200 section 4.1, RFC 4303 section 3.1.1, RFC 2474, RFC 3168.
//!
//! Limits: of headers that contradict themselves nothing is read beyond their packet; they are refused as malformed.

use weir_core::drops::DropReason;
use weir_core::net::checksum::ones_sum;

/// Length of an IPv4 header without options.
pub const IPV4_LEN: usize = 20;
/// Length of an IPv6 header without extensions.
pub const IPV6_LEN: usize = 40;

/// Protocol and next-header numbers.
pub mod number {
    /// IPv6 hop-by-hop options.
    pub const HOP_BY_HOP: u8 = 0;
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
    /// Nothing follows.
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
    /// Of a packet, by its first bits.
    #[inline]
    pub fn of(packet: &[u8]) -> Result<IpFamily, DropReason> {
        match packet.first().map(|first| first >> 4) {
            Some(4) if packet.len() >= IPV4_LEN => Ok(IpFamily::V4),
            Some(6) if packet.len() >= IPV6_LEN => Ok(IpFamily::V6),
            _ => Err(DropReason::Malformed),
        }
    }

    /// Its number as a protocol inside another.
    pub fn number(self) -> u8 {
        match self {
            IpFamily::V4 => number::IPV4,
            IpFamily::V6 => number::IPV6,
        }
    }
}

/// The headers of a packet, as far as they stand before ESP or where it would be put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpHeaders {
    /// The family.
    pub family: IpFamily,
    /// What follows.
    pub next: u8,
    /// Whether it is a fragment.
    pub fragment: bool,
    end: u32,
    next_at: u32,
    packet_len: u32,
}

const _: () = assert!(size_of::<Result<IpHeaders, DropReason>>() == 16, "it is returned in registers");

impl IpHeaders {
    /// Where they end.
    #[inline]
    pub fn end(&self) -> usize {
        self.end as usize
    }

    /// Where the byte is that says what follows.
    #[inline]
    pub fn next_at(&self) -> usize {
        self.next_at as usize
    }

    /// The length of the packet, by its own word.
    #[inline]
    pub fn packet_len(&self) -> usize {
        self.packet_len as usize
    }

    /// The headers that stay before ESP when this packet is sealed in transport mode.
    pub fn read(packet: &[u8]) -> Result<IpHeaders, DropReason> {
        IpHeaders::read_until(packet, false)
    }

    /// Of these headers, which [`IpHeaders::read_all`] found, those that stay before ESP in transport mode.
    #[inline]
    pub fn staying(&self, packet: &[u8]) -> Result<IpHeaders, DropReason> {
        match self.family {
            IpFamily::V6 if self.end() > IPV6_LEN => IpHeaders::read(packet),
            _ => Ok(*self),
        }
    }

    /// All headers before ESP or the transport protocol, destination options too. Behind a fragment header nothing is looked for.
    #[inline]
    pub fn read_all(packet: &[u8]) -> Result<IpHeaders, DropReason> {
        IpHeaders::read_until(packet, true)
    }

    #[inline]
    fn read_until(packet: &[u8], past_options: bool) -> Result<IpHeaders, DropReason> {
        match IpFamily::of(packet)? {
            IpFamily::V4 => IpHeaders::read_v4(packet),
            IpFamily::V6 => IpHeaders::read_v6(packet, past_options),
        }
    }

    #[inline]
    fn read_v4(packet: &[u8]) -> Result<IpHeaders, DropReason> {
        let header: &[u8; IPV4_LEN] = packet.first_chunk().ok_or(DropReason::Malformed)?;
        let end = 4 * usize::from(header[0] & 0xf);
        let packet_len = usize::from(u16::from_be_bytes([header[2], header[3]]));
        if end < IPV4_LEN || packet_len < end || packet.len() < packet_len {
            return Err(DropReason::Malformed);
        }
        let fragment = u16::from_be_bytes([header[6], header[7]]) & 0x3fff != 0;
        // No more than 16 bits say.
        let (end, packet_len) = (end as u32, packet_len as u32);
        Ok(IpHeaders { family: IpFamily::V4, next: header[9], fragment, end, next_at: 9, packet_len })
    }

    fn read_v6(packet: &[u8], past_options: bool) -> Result<IpHeaders, DropReason> {
        let header: &[u8; IPV6_LEN] = packet.first_chunk().ok_or(DropReason::Malformed)?;
        let packet_len = IPV6_LEN + usize::from(u16::from_be_bytes([header[4], header[5]]));
        let packet = packet.get(..packet_len).ok_or(DropReason::Malformed)?;
        let mut found = IpHeaders {
            family: IpFamily::V6,
            next: header[6],
            fragment: false,
            end: IPV6_LEN as u32,
            next_at: 6,
            // 40 more than 16 bits say, and headers end within.
            packet_len: packet_len as u32,
        };
        // Options that no routing header follows belong to what ESP protects.
        let mut before_options = None;
        while !found.fragment {
            let (len, destination) = match found.next {
                number::HOP_BY_HOP if found.end() == IPV6_LEN => (extension_len(packet, found.end())?, false),
                number::ROUTING => (extension_len(packet, found.end())?, false),
                number::DESTINATION => (extension_len(packet, found.end())?, true),
                number::FRAGMENT => {
                    found.fragment = true;
                    (8, false)
                }
                _ => break,
            };
            let at = found.end();
            let next = *packet.get(at).ok_or(DropReason::Malformed)?;
            if at + len > packet.len() {
                return Err(DropReason::Malformed);
            }
            match destination {
                true if before_options.is_none() => before_options = Some(found),
                true => {}
                false => before_options = None,
            }
            (found.end, found.next, found.next_at) = ((at + len) as u32, next, at as u32);
        }
        match before_options {
            Some(before) if !past_options => Ok(before),
            _ => Ok(found),
        }
    }
}

fn extension_len(packet: &[u8], at: usize) -> Result<usize, DropReason> {
    packet.get(at + 1).map(|&len| 8 * (usize::from(len) + 1)).ok_or(DropReason::Malformed)
}

/// Writes how long a packet is, and the checksum if it has one. It begins with a header of this family.
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
#[inline]
pub fn traffic_class(packet: &[u8], family: IpFamily) -> u8 {
    match family {
        IpFamily::V4 => packet[1],
        IpFamily::V6 => packet[0] << 4 | packet[1] >> 4,
    }
}

/// Writes DSCP and ECN, and follows with the checksum.
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
