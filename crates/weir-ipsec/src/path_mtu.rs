//! The MTU of the way to the other end of an association, as routers on it tell.
//!
//! ```text
//! ICMP   3, code 4 | 0  | MTU | IP | [UDP] | SPI | sequence ...      the packet that was too long
//! ICMPv6 2         | MTU      | IP | [UDP] | SPI | sequence ...
//! ```
//!
//! Rule: whoever can send a packet can send such a message. So it counts only if it quotes an SPI and a number that were sent lately
//! between these ends, it makes packets no shorter than every network takes, and it is forgotten after ten minutes, as the way may have
//! changed. A message never makes packets longer.
//!
//! Owner: one worker. Source: RFC 4301 section 8.2, RFC 1191 sections 4 to 6.3, RFC 8201 sections 4 and 5.
//!
//! Limits: ESP in UDP is not recognised where the router quotes 8 bytes behind the IP header and no more (before RFC 1812). A router that tells no MTU (before RFC 1191) makes it the shortest.

use std::net::IpAddr;

use smoltcp::wire::{Icmpv4Packet, Icmpv6Packet, Ipv6Packet};

use crate::esp::{HEADER_LEN, UDP_LEN};
use crate::ip::{self, IpFamily, IpHeaders, number};
use crate::quoted::{ICMP_LEN, Quoted};

/// The time after which a longer packet is tried again, in nanoseconds.
pub const FORGOTTEN_AFTER_NS: u64 = 600_000_000_000;
/// The packets among which the quoted one is sought: a second of a million packets.
const LATELY_PACKETS: u64 = 1 << 20;
/// The shortest MTU that a message makes, in bytes: what every host takes, and every link of IPv6.
const V4_MTU_MIN: u16 = 576;
const V6_MTU_MIN: u16 = 1280;
const UNREACHABLE: u8 = 3;
const FRAGMENTATION_NEEDED: u8 = 4;
const PACKET_TOO_BIG: u8 = 2;

/// A router's message that an ESP packet was too long for the next link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooBig {
    /// The MTU of that link, in bytes; 576 or 1,280 if the message says less.
    pub mtu_bytes: u16,
    /// The address that the packet came from.
    pub source: IpAddr,
    /// The address that the packet was to go to.
    pub destination: IpAddr,
    /// The ports of its UDP, from and to, if it was in UDP.
    pub udp_ports: Option<[u16; 2]>,
    /// Its security parameter index.
    pub spi: u32,
    /// The lower half of its sequence number.
    pub sequence_low: u32,
}

impl TooBig {
    /// Reads an IP packet with these headers, all of them; none if it is no such message, or damaged.
    pub fn read(packet: &[u8], headers: &IpHeaders) -> Option<TooBig> {
        let quoted = Quoted::of(packet, headers).ok().flatten().filter(|_| !headers.is_fragment())?;
        let message = &packet[headers.end()..headers.packet_len()];
        let &[kind, code, _, _, _, _, high, low] = message.first_chunk::<ICMP_LEN>()?;
        let told_bytes = u16::from_be_bytes([high, low]);
        let (is_whole, mtu_bytes) = match quoted.family {
            IpFamily::V4 if (kind, code) == (UNREACHABLE, FRAGMENTATION_NEEDED) => {
                (Icmpv4Packet::new_unchecked(message).verify_checksum(), told_bytes.max(V4_MTU_MIN))
            }
            IpFamily::V6 if kind == PACKET_TOO_BIG => {
                let header = Ipv6Packet::new_unchecked(packet);
                let ends = (header.src_addr(), header.dst_addr());
                let is_whole = Icmpv6Packet::new_unchecked(message).verify_checksum(&ends.0, &ends.1);
                let is_longer = message[4..6] != [0, 0];
                (is_whole, if is_longer { u16::MAX } else { told_bytes.max(V6_MTU_MIN) })
            }
            _ => return None,
        };
        is_whole.then(|| TooBig::about(&quoted, mtu_bytes))?
    }

    fn about(quoted: &Quoted, mtu_bytes: u16) -> Option<TooBig> {
        let source = ip::address(ip::source_of(quoted.packet, quoted.family))?;
        let destination = ip::address(ip::destination_of(quoted.packet, quoted.family))?;
        let behind = quoted.behind?;
        let (udp_ports, esp) = match quoted.protocol {
            number::ESP => (None, behind),
            number::UDP => {
                let &[s0, s1, d0, d1, ..] = behind.first_chunk::<UDP_LEN>()?;
                (Some([u16::from_be_bytes([s0, s1]), u16::from_be_bytes([d0, d1])]), &behind[UDP_LEN..])
            }
            _ => return None,
        };
        let &[s0, s1, s2, s3, n0, n1, n2, n3] = esp.first_chunk::<HEADER_LEN>()?;
        let (spi, sequence_low) =
            (u32::from_be_bytes([s0, s1, s2, s3]), u32::from_be_bytes([n0, n1, n2, n3]));
        Some(TooBig { mtu_bytes, source, destination, udp_ports, spi, sequence_low })
    }

    /// Returns whether the quoted packet is among those sent lately, of which `highest` is the number of the last.
    pub fn was_sent_lately(&self, highest: u64) -> bool {
        let since = (highest as u32).wrapping_sub(self.sequence_low);
        u64::from(since) < highest.min(LATELY_PACKETS)
    }
}

/// The MTU that was learned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathMtu {
    mtu_bytes: u16,
    until_ns: u64,
}

impl PathMtu {
    /// Notes the MTU of a link on the way. A longer one than that known changes nothing.
    pub fn learn(&mut self, mtu_bytes: u16, now_ns: u64) {
        if self.learned_bytes(now_ns).is_none_or(|known| mtu_bytes <= known) {
            *self = PathMtu { mtu_bytes, until_ns: now_ns.saturating_add(FORGOTTEN_AFTER_NS) };
        }
    }

    /// The shorter of `mtu_bytes` and of what is known.
    #[inline]
    pub fn limit(&self, mtu_bytes: u16, now_ns: u64) -> u16 {
        self.learned_bytes(now_ns).map_or(mtu_bytes, |known| known.min(mtu_bytes))
    }

    /// The MTU that is known, in bytes.
    #[inline]
    pub fn learned_bytes(&self, now_ns: u64) -> Option<u16> {
        (now_ns < self.until_ns).then_some(self.mtu_bytes)
    }
}

#[cfg(test)]
#[path = "path_mtu_tests.rs"]
mod tests;
