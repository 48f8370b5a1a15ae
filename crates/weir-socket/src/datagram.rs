//! A datagram in its frame: Ethernet, IP and UDP headers before the payload.
//!
//! ```text
//! Ethernet 14 | IPv4 20 or IPv6 40 | UDP 8 | payload
//! ```
//!
//! The host ([`weir_core::net::router`]) has checked what comes: lengths fit, checksums are right. What leaves gets its headers here, but
//! for the link-layer addresses. It is never cut (IPv4 with DF and identification 0, RFC 6864), so a datagram is no longer than the MTU.
//!
//! Owner: whoever holds the frame. Limits: IPv6 extension headers are not looked past; the host lets no such datagram through.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use smoltcp::wire::{
    EthernetFrame, EthernetProtocol, Icmpv4DstUnreachable, Icmpv4Message, Icmpv4Packet, Icmpv6DstUnreachable,
    Icmpv6Message, Icmpv6Packet, IpProtocol, Ipv4Packet, Ipv6Packet, UdpPacket,
};
use weir_core::net::sockets::udp_sum;
use weir_core::steer::rss::Rss;
use weir_path::packet::PathPacket;
use weir_ring::memory::FrameMemory;

pub(crate) const ETHERNET_LEN: usize = 14;
const IPV4_LEN: usize = 20;
const IPV6_LEN: usize = 40;
const UDP_LEN: usize = 8;
/// The bits of a traffic class that are ECN's.
pub(crate) const ECN_MASK: u8 = 0b11;
/// Time to live of what we send (RFC 1700's default, as everybody's).
const TTL: u8 = 64;

/// How long the headers before a payload are, to or from such an address.
pub(crate) fn headers_len(address: IpAddr) -> usize {
    ETHERNET_LEN + UDP_LEN + if address.is_ipv4() { IPV4_LEN } else { IPV6_LEN }
}

/// The longest payload that goes to such an address in an IP packet of so many bytes.
pub(crate) fn payload_max(address: IpAddr, mtu_bytes: u16) -> usize {
    (ETHERNET_LEN + usize::from(mtu_bytes)).saturating_sub(headers_len(address))
}

/// The bucket that a flow between two addresses falls into, by the way its packets come in here.
///
/// # Panics
/// If they are of different families.
pub(crate) fn bucket_of(rss: &Rss, source: SocketAddr, destination: SocketAddr) -> usize {
    let mut frame = vec![0; headers_len(destination.ip())];
    write_headers(&mut frame, source, destination, 0);
    rss.bucket(rss.hash(&frame))
}

/// Writes all headers of a datagram from one address to another, of the same family, whose payload is there already, with this ECN codepoint;
/// the frame has the length of the packet.
pub(crate) fn write_headers(frame: &mut [u8], source: SocketAddr, destination: SocketAddr, ecn: u8) {
    let ip_len = frame.len() - ETHERNET_LEN;
    let (ethertype, ip_header_len) = match (source.ip(), destination.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let mut ip = Ipv4Packet::new_unchecked(&mut frame[ETHERNET_LEN..]);
            ip.set_version(4);
            ip.set_header_len(IPV4_LEN as u8);
            ip.set_dscp(0);
            ip.set_ecn(ecn);
            ip.set_total_len(ip_len as u16);
            ip.set_ident(0);
            ip.clear_flags();
            ip.set_dont_frag(true);
            ip.set_frag_offset(0);
            ip.set_hop_limit(TTL);
            ip.set_next_header(IpProtocol::Udp);
            ip.set_src_addr(from);
            ip.set_dst_addr(to);
            ip.fill_checksum();
            (EthernetProtocol::Ipv4, IPV4_LEN)
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let mut ip = Ipv6Packet::new_unchecked(&mut frame[ETHERNET_LEN..]);
            ip.set_version(6);
            ip.set_traffic_class(ecn);
            ip.set_flow_label(0);
            ip.set_payload_len((ip_len - IPV6_LEN) as u16);
            ip.set_next_header(IpProtocol::Udp);
            ip.set_hop_limit(TTL);
            ip.set_src_addr(from);
            ip.set_dst_addr(to);
            (EthernetProtocol::Ipv6, IPV6_LEN)
        }
        _ => unreachable!("a datagram has addresses of one family"),
    };
    EthernetFrame::new_unchecked(&mut *frame).set_ethertype(ethertype);
    let mut udp = UdpPacket::new_unchecked(&mut frame[ETHERNET_LEN + ip_header_len..]);
    udp.set_src_port(source.port());
    udp.set_dst_port(destination.port());
    udp.set_len((ip_len - ip_header_len) as u16);
    fill_checksum(frame);
}

/// Computes the checksum of a datagram whose headers are there.
fn fill_checksum(frame: &mut [u8]) {
    let (addresses, udp_at) = match frame[ETHERNET_LEN] >> 4 {
        4 => (ETHERNET_LEN + 12..ETHERNET_LEN + 20, ETHERNET_LEN + IPV4_LEN),
        _ => (ETHERNET_LEN + 8..ETHERNET_LEN + 40, ETHERNET_LEN + IPV6_LEN),
    };
    frame[udp_at + 6..udp_at + 8].fill(0);
    let sum = !udp_sum(&frame[udp_at..], &frame[addresses]);
    // Zero says that there is none (RFC 768).
    let sum = if sum == 0 { 0xffff } else { sum };
    frame[udp_at + 6..udp_at + 8].copy_from_slice(&sum.to_ne_bytes());
}

/// Makes an answer of a datagram that came in: to where it came from, with the payload that is there now, and this ECN codepoint.
pub(crate) fn turn_round(frame: &mut [u8], is_changed: bool, ecn: u8) {
    let (from, to) = ends(frame);
    let is_v4 = from.is_ipv4();
    let udp_at = headers_len(from.ip()) - UDP_LEN;
    let has_options = is_v4 && frame[ETHERNET_LEN] != 0x45;
    // A sum stays as it is when addresses and ports change places.
    let kept: [u8; 2] = [frame[udp_at + 6], frame[udp_at + 7]];
    let is_kept = !is_changed && !has_options && kept != [0, 0];
    if !is_kept {
        return write_headers(frame, to, from, ecn);
    }
    if is_v4 {
        let mut ip = Ipv4Packet::new_unchecked(&mut frame[ETHERNET_LEN..]);
        let (IpAddr::V4(from), IpAddr::V4(to)) = (from.ip(), to.ip()) else { return };
        ip.set_dscp(0);
        ip.set_ecn(ecn);
        ip.set_ident(0);
        ip.clear_flags();
        ip.set_dont_frag(true);
        ip.set_hop_limit(TTL);
        ip.set_src_addr(to);
        ip.set_dst_addr(from);
        ip.fill_checksum();
    } else {
        let mut ip = Ipv6Packet::new_unchecked(&mut frame[ETHERNET_LEN..]);
        let (IpAddr::V6(from), IpAddr::V6(to)) = (from.ip(), to.ip()) else { return };
        ip.set_traffic_class(ecn);
        ip.set_flow_label(0);
        ip.set_hop_limit(TTL);
        ip.set_src_addr(to);
        ip.set_dst_addr(from);
    }
    let mut udp = UdpPacket::new_unchecked(&mut frame[udp_at..]);
    udp.set_src_port(to.port());
    udp.set_dst_port(from.port());
}

/// Where a datagram came from, and where it goes.
pub(crate) fn ends(frame: &[u8]) -> (SocketAddr, SocketAddr) {
    let ip = &frame[ETHERNET_LEN..];
    let (from, to, udp_at): (IpAddr, IpAddr, usize) = if ip[0] >> 4 == 4 {
        let at = |at: usize| Ipv4Addr::new(ip[at], ip[at + 1], ip[at + 2], ip[at + 3]);
        (at(12).into(), at(16).into(), usize::from(ip[0] & 0x0f) * 4)
    } else {
        let at = |from: usize| Ipv6Addr::from(std::array::from_fn::<u8, 16, _>(|i| ip[from + i]));
        (at(8).into(), at(24).into(), IPV6_LEN)
    };
    let port = |at: usize| u16::from_be_bytes([ip[udp_at + at], ip[udp_at + at + 1]]);
    (SocketAddr::new(from, port(0)), SocketAddr::new(to, port(2)))
}

/// The ECN codepoint of a datagram (RFC 3168 section 5).
pub(crate) fn ecn(frame: &[u8]) -> u8 {
    let ip = &frame[ETHERNET_LEN..];
    ECN_MASK & if ip[0] >> 4 == 4 { ip[1] } else { ip[1] >> 4 }
}

/// Where the payload is.
pub(crate) fn payload_range(frame: &[u8]) -> std::ops::Range<usize> {
    let ip = &frame[ETHERNET_LEN..];
    let udp_at = if ip[0] >> 4 == 4 { usize::from(ip[0] & 0x0f) * 4 } else { IPV6_LEN };
    let len = usize::from(u16::from_be_bytes([ip[udp_at + 4], ip[udp_at + 5]]));
    ETHERNET_LEN + udp_at + UDP_LEN..ETHERNET_LEN + udp_at + len
}

/// What an ICMP error is about: to whom that was sent, and the number of the error. None of a datagram, and of errors that are no more
/// than news of the network's (RFC 1122 section 4.2.3.9 calls them soft).
pub(crate) fn error_of(frame: &[u8]) -> Option<(SocketAddr, i32)> {
    const ICMP: u8 = 1;
    const ICMPV6: u8 = 58;
    let ip = frame.get(ETHERNET_LEN..)?;
    if ip.first()? >> 4 == 4 {
        if ip.get(9) != Some(&ICMP) {
            return None;
        }
        let packet = Ipv4Packet::new_checked(ip).ok()?;
        let icmp = Icmpv4Packet::new_checked(packet.payload()).ok()?;
        if icmp.msg_type() != Icmpv4Message::DstUnreachable {
            return None;
        }
        let error = match Icmpv4DstUnreachable::from(icmp.msg_code()) {
            Icmpv4DstUnreachable::PortUnreachable => libc::ECONNREFUSED,
            Icmpv4DstUnreachable::FragRequired => libc::EMSGSIZE,
            _ => return None,
        };
        let quoted = icmp.data();
        let header_len = usize::from(quoted.first()? & 0x0f) * 4;
        let address: [u8; 4] = quoted.get(16..20)?.try_into().ok()?;
        let port = quoted.get(header_len + 2..)?.first_chunk()?;
        Some((SocketAddr::new(address.into(), u16::from_be_bytes(*port)), error))
    } else {
        if ip.get(6) != Some(&ICMPV6) {
            return None;
        }
        let packet = Ipv6Packet::new_checked(ip).ok()?;
        let icmp = Icmpv6Packet::new_checked(packet.payload()).ok()?;
        let error = match icmp.msg_type() {
            Icmpv6Message::PktTooBig => libc::EMSGSIZE,
            Icmpv6Message::DstUnreachable
                if Icmpv6DstUnreachable::from(icmp.msg_code()) == Icmpv6DstUnreachable::PortUnreachable =>
            {
                libc::ECONNREFUSED
            }
            _ => return None,
        };
        let quoted = icmp.payload();
        let address: [u8; 16] = quoted.get(24..40)?.try_into().ok()?;
        let port = quoted.get(42..)?.first_chunk()?;
        Some((SocketAddr::new(address.into(), u16::from_be_bytes(*port)), error))
    }
}

/// A datagram as a batch holds it.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) packet: PathPacket,
    /// Whether it came in, and so goes back to where it came from if it is sent.
    pub(crate) is_received: bool,
    /// Whether its payload is another than came in.
    pub(crate) is_changed: bool,
    /// The ECN codepoint that it is sent with.
    pub(crate) ecn: u8,
    /// How long the packet was that came in.
    pub(crate) received_bytes: u16,
}

/// A datagram of a batch ([`crate::Datagrams`]).
#[derive(Clone, Copy)]
pub struct Datagram<'a> {
    pub(crate) held: &'a Held,
    pub(crate) memory: &'a FrameMemory,
    pub(crate) rss: &'a Rss,
}

/// A datagram of a batch, to be written.
pub struct DatagramMut<'a> {
    pub(crate) held: &'a mut Held,
    pub(crate) memory: &'a FrameMemory,
}

impl<'a> Datagram<'a> {
    fn frame(&self) -> &'a [u8] {
        self.held.packet.bytes(self.memory)
    }

    /// What it says.
    pub fn payload(&self) -> &'a [u8] {
        let frame = self.frame();
        &frame[payload_range(frame)]
    }

    /// Where it came from, or, of one that was written here, where it is to go.
    pub fn peer(&self) -> SocketAddr {
        let (from, to) = ends(self.frame());
        if self.held.is_received { from } else { to }
    }

    /// Where it was sent to, or, of one that was written here, where it comes from.
    pub fn local(&self) -> SocketAddr {
        let (from, to) = ends(self.frame());
        if self.held.is_received { to } else { from }
    }

    /// The ECN codepoint that it came with (RFC 3168 section 5): 0 none, 1 and 2 capable, 3 that it met congestion.
    pub fn ecn(&self) -> u8 {
        ecn(self.frame())
    }

    /// The Toeplitz hash of its flow: an answer has the same, as the key is symmetric unless another was chosen.
    pub fn flow_hash(&self) -> u32 {
        match self.held.packet.meta.flow_hash {
            0 => self.rss.hash(self.frame()),
            hash => hash,
        }
    }

    /// The bucket that its flow falls in.
    pub fn bucket(&self) -> usize {
        self.rss.bucket(self.flow_hash())
    }

    /// When the path took it, in nanoseconds of its clock (`CLOCK_MONOTONIC`).
    pub fn arrival_ns(&self) -> u64 {
        self.held.packet.meta.arrival_ns
    }
}

impl DatagramMut<'_> {
    /// What it says.
    pub fn payload(&self) -> &[u8] {
        let frame = self.held.packet.bytes(self.memory);
        &frame[payload_range(frame)]
    }

    /// Sends it with this ECN codepoint ([`Datagram::ecn`]); 0 unless said otherwise, also of one that came with another.
    pub fn set_ecn(&mut self, codepoint: u8) {
        self.held.ecn = codepoint & ECN_MASK;
    }

    /// The same, to be written.
    pub fn payload_mut(&mut self) -> &mut [u8] {
        self.held.is_changed = true;
        let frame = self.held.packet.bytes_mut(self.memory);
        let range = payload_range(frame);
        &mut frame[range]
    }
}
