//! A router's message that a packet of ours was too long for its next link.
//!
//! ```text
//! ICMP   3, code 4 | 0 | MTU | IP | ports ...      the packet that was too long
//! ICMPv6 2         | MTU     | IP | ports ...
//! ```
//!
//! Rule: whoever can send a packet can send such a message. One that quotes a packet no longer than the MTU that it tells is none. The MTU is no
//! shorter than [`V4_MTU_MIN`], nor over IPv6 than every link takes.
//!
//! Pure. Source: RFC 1191; RFC 8201 section 4; RFC 5927 section 7. Limits: a router that tells no MTU (before RFC 1191) makes it the shortest. A
//! way that takes less than that is told of by each packet that it does not take: all have DF, as those of `IP_PMTUDISC_DO` on Linux.

use std::net::{IpAddr, SocketAddr};

use smoltcp::wire::{
    Icmpv4DstUnreachable, Icmpv4Message, Icmpv4Packet, Icmpv6Message, Icmpv6Packet, IpProtocol, Ipv4Packet,
    Ipv6Packet,
};

use crate::datagram::{ETHERNET_LEN, IPV4_LEN, IPV6_LEN};

/// The shortest MTU that a message makes over IPv4, in bytes: Linux's `min_pmtu`, 512 bytes of data and the headers.
pub(crate) const V4_MTU_MIN: u16 = 552;
/// The shortest MTU of a link of IPv6, in bytes (RFC 8200 section 5).
const V6_MTU_MIN: u16 = 1280;
const ICMP_LEN: usize = 8;

/// See the head of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TooLong<'m> {
    /// The protocol of the packet that is quoted, and its ends.
    pub(crate) protocol: u8,
    pub(crate) from: SocketAddr,
    pub(crate) to: SocketAddr,
    /// The bytes behind the ports, as many as are quoted.
    pub(crate) behind_ports: &'m [u8],
    /// The MTU of the link, in bytes; the shortest if the message says less.
    pub(crate) mtu_bytes: u16,
}

impl TooLong<'_> {
    /// Reads a packet that the host let through, which has verified the checksum of an ICMP error; none if it is no such message.
    pub(crate) fn read(frame: &[u8]) -> Option<TooLong<'_>> {
        let ip = frame.get(ETHERNET_LEN..)?;
        match ip.first()? >> 4 {
            4 => TooLong::read_v4(ip),
            6 => TooLong::read_v6(ip),
            _ => None,
        }
    }

    fn read_v4(ip: &[u8]) -> Option<TooLong<'_>> {
        let packet = Ipv4Packet::new_checked(ip).ok()?;
        if packet.next_header() != IpProtocol::Icmp {
            return None;
        }
        let message = packet.payload();
        let icmp = Icmpv4Packet::new_checked(message).ok()?;
        let is_meant = icmp.msg_type() == Icmpv4Message::DstUnreachable
            && Icmpv4DstUnreachable::from(icmp.msg_code()) == Icmpv4DstUnreachable::FragRequired;
        let &[.., high, low] = message.first_chunk::<ICMP_LEN>().filter(|_| is_meant)?;
        let quoted = message.get(ICMP_LEN..)?;
        let head = quoted.first_chunk::<IPV4_LEN>()?;
        let header_len = usize::from(head[0] & 0x0f) * 4;
        let is_first = head[6] & 0x1f == 0 && head[7] == 0;
        if head[0] >> 4 != 4 || header_len < IPV4_LEN || !is_first {
            return None;
        }
        let ends = [12, 16].map(|at| IpAddr::from([head[at], head[at + 1], head[at + 2], head[at + 3]]));
        let [packet_bytes, told_bytes] = [[head[2], head[3]], [high, low]].map(u16::from_be_bytes);
        let told = TooLong::about(head[9], ends, quoted.get(header_len..)?, packet_bytes, told_bytes)?;
        Some(TooLong { mtu_bytes: told.mtu_bytes.max(V4_MTU_MIN), ..told })
    }

    fn read_v6(ip: &[u8]) -> Option<TooLong<'_>> {
        let packet = Ipv6Packet::new_checked(ip).ok()?;
        if packet.next_header() != IpProtocol::Icmpv6 {
            return None;
        }
        let icmp = Icmpv6Packet::new_checked(packet.payload()).ok()?;
        if icmp.msg_type() != Icmpv6Message::PktTooBig {
            return None;
        }
        // One that tells less than every link takes is to be dropped (RFC 8201 section 4); one that tells more than a packet has is none of ours.
        let mtu_bytes = u16::try_from(icmp.pkt_too_big_mtu()).ok().filter(|&mtu| mtu >= V6_MTU_MIN)?;
        let quoted = icmp.payload();
        let head = quoted.first_chunk::<IPV6_LEN>()?;
        if head[0] >> 4 != 6 {
            return None;
        }
        let ends = [8, 24].map(|at| IpAddr::from(std::array::from_fn::<u8, 16, _>(|byte| head[at + byte])));
        let packet_bytes = u16::from_be_bytes([head[4], head[5]]).saturating_add(IPV6_LEN as u16);
        TooLong::about(head[6], ends, &quoted[IPV6_LEN..], packet_bytes, mtu_bytes)
    }

    fn about(
        protocol: u8,
        [from, to]: [IpAddr; 2],
        transport: &[u8],
        packet_bytes: u16,
        mtu_bytes: u16,
    ) -> Option<TooLong<'_>> {
        let (&[f0, f1, t0, t1], behind_ports) = transport.split_first_chunk()?;
        let from = SocketAddr::new(from, u16::from_be_bytes([f0, f1]));
        let to = SocketAddr::new(to, u16::from_be_bytes([t0, t1]));
        (packet_bytes > mtu_bytes).then_some(TooLong { protocol, from, to, behind_ports, mtu_bytes })
    }
}
