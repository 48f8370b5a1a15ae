//! A datagram in its frame: Ethernet, IP and UDP headers before the payload.
//!
//! ```text
//! Ethernet 14 | IPv4 20 or IPv6 40 | UDP 8 | payload
//! ```
//!
//! The host ([`weir_core::net::router`]) has checked packets that come in: lengths fit, checksums are right. Packets that leave get their headers
//! here, but for the link-layer addresses. They are never cut (IPv4 with DF and identification 0, RFC 6864), so a datagram is no longer than the MTU.
//! An answer goes in the frame of its question: addresses and ports change places, and the UDP checksum stays, as a sum is the same in any order (RFC
//! 1071). The checksum is computed if the payload has changed or the question had none.
//!
//! Headers are written as whole words: a processor waits for bytes that it has just written in parts and is to read as a whole.
//!
//! Owner: the thread that holds the frame. Limits: IPv6 extension headers are not looked past; the host lets no such datagram through.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use smoltcp::wire::{
    Icmpv4DstUnreachable, Icmpv4Message, Icmpv4Packet, Icmpv6DstUnreachable, Icmpv6Message, Icmpv6Packet,
    Ipv4Packet, Ipv6Packet,
};
use weir_core::net::checksum::{ones_sum, sum_of_words};
use weir_core::steer::rss::Rss;
use weir_path::packet::PathPacket;
use weir_ring::memory::FrameMemory;

use crate::too_long::TooLong;

pub(crate) const ETHERNET_LEN: usize = 14;
pub(crate) const IPV4_LEN: usize = 20;
pub(crate) const IPV6_LEN: usize = 40;
const UDP_LEN: usize = 8;
/// The length of all headers of a datagram, Ethernet included.
const V4_HEADERS: usize = ETHERNET_LEN + IPV4_LEN + UDP_LEN;
const V6_HEADERS: usize = ETHERNET_LEN + IPV6_LEN + UDP_LEN;
/// The protocol number of UDP.
const UDP: u8 = 17;
/// The bits of a traffic class that are ECN's.
pub(crate) const ECN_MASK: u8 = 0b11;
/// The time to live of packets that we send (RFC 1700's default, as everybody's).
const TTL: u8 = 64;

/// The length of the headers before a payload, to or from such an address, in bytes.
pub(crate) fn headers_len(address: IpAddr) -> usize {
    if address.is_ipv4() { V4_HEADERS } else { V6_HEADERS }
}

/// The longest payload that goes to such an address in an IP packet of so many bytes.
pub(crate) fn payload_max(address: IpAddr, mtu_bytes: u16) -> usize {
    (ETHERNET_LEN + usize::from(mtu_bytes)).saturating_sub(headers_len(address))
}

/// The bucket that a flow between two addresses falls into, with source and destination as its packets come in here.
///
/// # Panics
/// If the addresses are of different families.
pub(crate) fn bucket_of(rss: &Rss, source: SocketAddr, destination: SocketAddr) -> usize {
    let mut frame = vec![0; headers_len(destination.ip())];
    write_headers(&mut frame, source, destination, 0);
    rss.bucket(rss.hash(&frame))
}

/// Writes all headers of a datagram from one address to another, of the same family, with this ECN codepoint. The payload is there already, and the
/// frame has the length of the packet.
pub(crate) fn write_headers(frame: &mut [u8], source: SocketAddr, destination: SocketAddr, ecn: u8) {
    let ports = [source.port(), destination.port()].map(u16::to_be_bytes);
    match (source.ip(), destination.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let flow = Flow { addresses: [from.octets(), to.octets()], ports };
            flow.write_v4(frame, ecn, None);
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let flow = Flow { addresses: [from.octets(), to.octets()], ports };
            flow.write_v6(frame, ecn, None);
        }
        _ => unreachable!("a datagram has addresses of one family"),
    }
}

/// Turns a datagram that came in into an answer to its sender, with the payload that is there now, and this ECN codepoint. IPv4 options and bytes
/// behind the datagram do not go back.
#[inline]
pub(crate) fn turn_round(packet: &mut PathPacket, memory: &FrameMemory, is_changed: bool, ecn: u8) {
    let frame = packet.bytes_mut(memory);
    let payload = payload_range(frame);
    let (udp_at, payload_len) = (payload.start - UDP_LEN, payload.len());
    // A sum stays as it is when addresses and ports change places; zero says that there is no checksum.
    let sum = [frame[udp_at + 6], frame[udp_at + 7]];
    let sum = Some(sum).filter(|sum| !is_changed && *sum != [0, 0]);
    let len = if frame[ETHERNET_LEN] >> 4 == 4 {
        let flow = Flow::read(&frame[ETHERNET_LEN + 12..], &frame[udp_at..]);
        if payload.start != V4_HEADERS {
            frame.copy_within(payload, V4_HEADERS);
        }
        let len = V4_HEADERS + payload_len;
        flow.back().write_v4(&mut frame[..len], ecn, sum);
        len
    } else {
        let flow = Flow::read(&frame[ETHERNET_LEN + 8..], &frame[udp_at..]);
        let len = V6_HEADERS + payload_len;
        flow.back().write_v6(&mut frame[..len], ecn, sum);
        len
    };
    packet.len_bytes = len as u16;
}

/// Source and destination of a datagram, in this order, as they stand in its headers. An address has 4 bytes or 16.
#[derive(Clone, Copy)]
struct Flow<const N: usize> {
    addresses: [[u8; N]; 2],
    ports: [[u8; 2]; 2],
}

impl<const N: usize> Flow<N> {
    /// Reads a flow from the bytes that begin with the IP addresses, and those that begin with the UDP header.
    #[inline]
    fn read(addresses: &[u8], udp: &[u8]) -> Flow<N> {
        let addresses: &[[u8; N]; 2] =
            addresses.as_chunks().0.first_chunk().expect("the host has checked it");
        let ports: &[[u8; 2]; 2] = udp.as_chunks().0.first_chunk().expect("the host has checked it");
        Flow { addresses: *addresses, ports: *ports }
    }

    /// The flow of an answer.
    #[inline]
    fn back(self) -> Flow<N> {
        let Flow { addresses: [from, to], ports: [from_port, to_port] } = self;
        Flow { addresses: [to, from], ports: [to_port, from_port] }
    }

    /// The UDP header before a payload, with this checksum if it is known.
    #[inline(always)]
    fn udp_header(&self, payload: &[u8], sum: Option<[u8; 2]>) -> [u8; UDP_LEN] {
        let len = (UDP_LEN + payload.len()) as u16;
        let sum = u16::from_be_bytes(sum.unwrap_or_else(|| self.checksum(payload, len)));
        let ports = u32::from_be_bytes(*self.ports.as_flattened().first_chunk().expect("two ports"));
        (u64::from(ports) << 32 | u64::from(len) << 16 | u64::from(sum)).to_be_bytes()
    }

    /// The UDP checksum of a datagram of this length, in bytes.
    #[inline(always)]
    fn checksum(&self, payload: &[u8], len: u16) -> [u8; 2] {
        // The length stands in the header and in the pseudo header, with the protocol.
        let words = 2 * u64::from(len.to_be()) + u64::from(u16::from(UDP).to_be());
        let words =
            words + sum_of_words(self.addresses.as_flattened()) + sum_of_words(self.ports.as_flattened());
        match !ones_sum(payload, words) {
            // Zero says that there is no checksum (RFC 768).
            0 => [0xff; 2],
            sum => sum.to_ne_bytes(),
        }
    }
}

impl Flow<4> {
    /// Writes the headers before the payload, with this UDP checksum if it is known.
    #[inline(always)]
    fn write_v4(&self, frame: &mut [u8], ecn: u8, sum: Option<[u8; 2]>) {
        const DONT_FRAGMENT: u32 = 0x4000;
        let (head, payload) = frame.split_first_chunk_mut::<V4_HEADERS>().expect("the headers have room");
        let len = IPV4_LEN + UDP_LEN + payload.len();
        let first = 0x4500_0000 | u32::from(ecn) << 16 | u32::from(len as u16);
        let third = u32::from(TTL) << 24 | u32::from(UDP) << 16;
        let words = u64::from(first.to_be()) + u64::from(DONT_FRAGMENT.to_be()) + u64::from(third.to_be());
        let ip_sum = u16::from_be(!ones_sum(self.addresses.as_flattened(), words));
        head[12..14].copy_from_slice(&[0x08, 0x00]);
        let front = u64::from(first) << 32 | u64::from(DONT_FRAGMENT);
        head[14..22].copy_from_slice(&front.to_be_bytes());
        head[22..26].copy_from_slice(&(third | u32::from(ip_sum)).to_be_bytes());
        head[26..34].copy_from_slice(self.addresses.as_flattened());
        head[34..].copy_from_slice(&self.udp_header(payload, sum));
    }
}

impl Flow<16> {
    /// As [`Flow::write_v4`].
    #[inline(always)]
    fn write_v6(&self, frame: &mut [u8], ecn: u8, sum: Option<[u8; 2]>) {
        let (head, payload) = frame.split_first_chunk_mut::<V6_HEADERS>().expect("the headers have room");
        let [l0, l1] = ((UDP_LEN + payload.len()) as u16).to_be_bytes();
        head[12..14].copy_from_slice(&[0x86, 0xdd]);
        head[14..22].copy_from_slice(&[0x60, ecn << 4, 0, 0, l0, l1, UDP, TTL]);
        head[22..54].copy_from_slice(self.addresses.as_flattened());
        head[54..].copy_from_slice(&self.udp_header(payload, sum));
    }
}

/// The source and the destination of a datagram.
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

/// The range of the payload in the frame.
pub(crate) fn payload_range(frame: &[u8]) -> std::ops::Range<usize> {
    let ip = &frame[ETHERNET_LEN..];
    let udp_at = if ip[0] >> 4 == 4 { usize::from(ip[0] & 0x0f) * 4 } else { IPV6_LEN };
    let len = usize::from(u16::from_be_bytes([ip[udp_at + 4], ip[udp_at + 5]]));
    ETHERNET_LEN + udp_at + UDP_LEN..ETHERNET_LEN + udp_at + len
}

/// An address and port as packets have them: without a flow label and the number of an interface.
pub(crate) fn as_in_packets(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip(), address.port())
}

/// The news that a packet brings to a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrived {
    /// A datagram.
    Datagram,
    /// An ICMP error: the destination of the packet that it is about, and the number of the error.
    Error(SocketAddr, i32),
    /// An ICMP error that a datagram to this destination was longer than the next link of its way takes, which is so many bytes.
    TooLong(SocketAddr, u16),
    /// An ICMP error that is no more than news of the network (RFC 1122 section 4.2.3.9 calls it soft), or that does not say what it is about.
    SoftError,
}

/// The news of a packet that a host has for a socket: a whole datagram, or an ICMP error.
#[inline]
pub(crate) fn arrived(frame: &[u8]) -> Arrived {
    let protocol = match frame.first_chunk::<{ ETHERNET_LEN + IPV4_LEN }>() {
        Some(ip) if ip[ETHERNET_LEN] >> 4 == 4 => ip[ETHERNET_LEN + 9],
        Some(ip) => ip[ETHERNET_LEN + 6],
        None => return Arrived::SoftError,
    };
    match protocol {
        UDP => Arrived::Datagram,
        _ => error(frame).unwrap_or(Arrived::SoftError),
    }
}

/// The news of an ICMP error; none of a soft one.
#[cold]
fn error(frame: &[u8]) -> Option<Arrived> {
    let too_long = TooLong::read(frame).filter(|told| told.protocol == UDP);
    let refused = || Some(Arrived::Error(refused(frame)?, libc::ECONNREFUSED));
    too_long.map(|told| Arrived::TooLong(told.to, told.mtu_bytes)).or_else(refused)
}

/// The destination of the packet that an ICMP error is about, if it says that nobody listens there.
fn refused(frame: &[u8]) -> Option<SocketAddr> {
    const ICMP: u8 = 1;
    const ICMPV6: u8 = 58;
    let ip = frame.get(ETHERNET_LEN..)?;
    if ip.first()? >> 4 == 4 {
        if ip.get(9) != Some(&ICMP) {
            return None;
        }
        let packet = Ipv4Packet::new_checked(ip).ok()?;
        let icmp = Icmpv4Packet::new_checked(packet.payload()).ok()?;
        if icmp.msg_type() != Icmpv4Message::DstUnreachable
            || Icmpv4DstUnreachable::from(icmp.msg_code()) != Icmpv4DstUnreachable::PortUnreachable
        {
            return None;
        }
        let quoted = icmp.data();
        let header_len = usize::from(quoted.first()? & 0x0f) * 4;
        let address: [u8; 4] = quoted.get(16..20)?.try_into().ok()?;
        let port = quoted.get(header_len + 2..)?.first_chunk()?;
        Some(SocketAddr::new(address.into(), u16::from_be_bytes(*port)))
    } else {
        if ip.get(6) != Some(&ICMPV6) {
            return None;
        }
        let packet = Ipv6Packet::new_checked(ip).ok()?;
        let icmp = Icmpv6Packet::new_checked(packet.payload()).ok()?;
        if icmp.msg_type() != Icmpv6Message::DstUnreachable
            || Icmpv6DstUnreachable::from(icmp.msg_code()) != Icmpv6DstUnreachable::PortUnreachable
        {
            return None;
        }
        let quoted = icmp.payload();
        let address: [u8; 16] = quoted.get(24..40)?.try_into().ok()?;
        let port = quoted.get(42..)?.first_chunk()?;
        Some(SocketAddr::new(address.into(), u16::from_be_bytes(*port)))
    }
}

/// The state that a batch keeps of a datagram beside its packet. Packets are kept apart from this state, so that they move as memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Held {
    /// The lane that the datagram came by, if it was received.
    pub(crate) lane: u16,
    /// True if the datagram was received, and so goes back to its sender if it is sent.
    pub(crate) is_received: bool,
    /// True if the payload may have changed since it came in.
    pub(crate) is_changed: bool,
    /// The ECN codepoint that the datagram is sent with.
    pub(crate) ecn: u8,
}

/// A datagram of a batch ([`crate::Datagrams`]).
#[derive(Clone, Copy)]
pub struct Datagram<'a> {
    pub(crate) packet: &'a PathPacket,
    pub(crate) held: &'a Held,
    pub(crate) memory: &'a FrameMemory,
    pub(crate) rss: &'a Rss,
}

/// A datagram of a batch, to be written.
pub struct DatagramMut<'a> {
    pub(crate) packet: &'a mut PathPacket,
    pub(crate) held: &'a mut Held,
    pub(crate) memory: &'a FrameMemory,
}

impl<'a> Datagram<'a> {
    fn frame(&self) -> &'a [u8] {
        self.packet.bytes(self.memory)
    }

    /// The payload.
    pub fn payload(&self) -> &'a [u8] {
        let frame = self.frame();
        &frame[payload_range(frame)]
    }

    /// The source of a received datagram; the destination of a datagram that was written here.
    pub fn peer(&self) -> SocketAddr {
        let (from, to) = ends(self.frame());
        if self.held.is_received { from } else { to }
    }

    /// The destination of a received datagram; the source of a datagram that was written here.
    pub fn local(&self) -> SocketAddr {
        let (from, to) = ends(self.frame());
        if self.held.is_received { to } else { from }
    }

    /// The ECN codepoint that the datagram came with (RFC 3168 section 5): 0 none, 1 and 2 capable, 3 that it met congestion.
    pub fn ecn(&self) -> u8 {
        ecn(self.frame())
    }

    /// The Toeplitz hash of the datagram's flow: an answer has the same, as the key is symmetric unless another was chosen.
    pub fn flow_hash(&self) -> u32 {
        match self.packet.meta.flow_hash {
            0 => self.rss.hash(self.frame()),
            hash => hash,
        }
    }

    /// The bucket that the datagram's flow falls into.
    pub fn bucket(&self) -> usize {
        self.rss.bucket(self.flow_hash())
    }

    /// The time when the path took the datagram, in nanoseconds of its clock (`CLOCK_MONOTONIC`).
    pub fn arrival_ns(&self) -> u64 {
        self.packet.meta.arrival_ns
    }
}

impl DatagramMut<'_> {
    /// The payload.
    pub fn payload(&self) -> &[u8] {
        let frame = self.packet.bytes(self.memory);
        &frame[payload_range(frame)]
    }

    /// Sends the datagram with this ECN codepoint ([`Datagram::ecn`]); 0 unless said otherwise, also for a datagram that came with another.
    pub fn set_ecn(&mut self, codepoint: u8) {
        self.held.ecn = codepoint & ECN_MASK;
    }

    /// The payload, to be written.
    pub fn payload_mut(&mut self) -> &mut [u8] {
        self.held.is_changed = true;
        let frame = self.packet.bytes_mut(self.memory);
        let range = payload_range(frame);
        &mut frame[range]
    }
}

#[cfg(test)]
#[path = "datagram_tests.rs"]
mod tests;
