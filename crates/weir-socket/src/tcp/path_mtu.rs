//! The MTU of the way to the peer of a connection, as routers on it tell.
//!
//! ```text
//! ICMP   3, code 4 | 0 | MTU | IP | ports | sequence number ...      the segment that was too long
//! ICMPv6 2         | MTU     | IP | ports | sequence number ...
//! ```
//!
//! Rule: whoever can send a packet can send such a message. So it counts only if it quotes a segment of a connection that there is, with a sequence
//! number that was sent and is not acknowledged, and the segment was longer than the MTU told; otherwise it is dropped as `no-handler`. It makes
//! packets no shorter than [`V4_MTU_MIN`], nor over IPv6 than every link takes, and never makes them longer. What was too long is sent again when the
//! retransmission timer ends, as what is lost otherwise (RFC 1191 section 6.5 allows it).
//!
//! smoltcp cuts a stream by the MTU of the interface that it is shown. So a connection with a narrow way is shown an interface of its own from then on,
//! which differs from the port's in its MTU alone.
//!
//! Owner: the path's worker. Source: RFC 1191; RFC 8201 section 4; RFC 5927 section 7. Limits: each connection learns for itself, by one timer of 1 s
//! or more for each narrower link, and keeps what it learned until it ends, though its way may have become wider. A router that tells no MTU (before
//! RFC 1191) makes it the shortest. A way that tells nothing is not probed (RFC 4821).

use std::net::{IpAddr, SocketAddr};

use smoltcp::iface::Interface;
use smoltcp::wire::{
    Icmpv4DstUnreachable, Icmpv4Message, Icmpv4Packet, Icmpv6Message, Icmpv6Packet, IpProtocol, Ipv4Packet,
    Ipv6Packet,
};
use weir_core::drops::DropReason;
use weir_path::frames::Frames;

use crate::datagram::{ETHERNET_LEN, IPV4_LEN, IPV6_LEN};
use crate::tcp::connection::Flow;
use crate::tcp::port::{TcpPort, interface};

/// The shortest MTU that a message makes over IPv4, in bytes: Linux's `min_pmtu`, 512 bytes of data and the headers.
pub(crate) const V4_MTU_MIN: u16 = 552;
/// The shortest MTU of a link of IPv6, in bytes (RFC 8200 section 5).
const V6_MTU_MIN: u16 = 1280;
/// The protocol number of TCP.
pub(crate) const TCP: u8 = 6;
const ICMP_LEN: usize = 8;

/// A router's message that a segment of ours was too long for the next link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TooBig {
    /// The connection that the segment is of.
    pub(crate) flow: Flow,
    /// The sequence number of the segment.
    pub(crate) sequence: u32,
    /// The length of its packet, in bytes.
    pub(crate) packet_bytes: u16,
    /// The MTU of that link, in bytes; the shortest if the message says less.
    pub(crate) mtu_bytes: u16,
}

impl TooBig {
    /// Reads a packet that the host let through, which has verified the checksum of an ICMP error; none if it is no such message.
    pub(crate) fn read(frame: &[u8]) -> Option<TooBig> {
        let ip = frame.get(ETHERNET_LEN..)?;
        match ip.first()? >> 4 {
            4 => TooBig::read_v4(ip),
            6 => TooBig::read_v6(ip),
            _ => None,
        }
    }

    fn read_v4(ip: &[u8]) -> Option<TooBig> {
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
        if head[0] >> 4 != 4 || head[9] != TCP || header_len < IPV4_LEN || !is_first {
            return None;
        }
        let [from, to] = [12, 16].map(|at| [head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let packet_bytes = u16::from_be_bytes([head[2], head[3]]);
        let mtu_bytes = u16::from_be_bytes([high, low]).max(V4_MTU_MIN);
        TooBig::about([from.into(), to.into()], quoted.get(header_len..)?, packet_bytes, mtu_bytes)
    }

    fn read_v6(ip: &[u8]) -> Option<TooBig> {
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
        if head[0] >> 4 != 6 || head[6] != TCP {
            return None;
        }
        let [from, to] = [8, 24].map(|at| std::array::from_fn::<u8, 16, _>(|byte| head[at + byte]));
        let packet_bytes = u16::from_be_bytes([head[4], head[5]]).saturating_add(IPV6_LEN as u16);
        TooBig::about([from.into(), to.into()], &quoted[IPV6_LEN..], packet_bytes, mtu_bytes)
    }

    fn about([from, to]: [IpAddr; 2], tcp: &[u8], packet_bytes: u16, mtu_bytes: u16) -> Option<TooBig> {
        let &[f0, f1, t0, t1, s0, s1, s2, s3] = tcp.first_chunk()?;
        let local = SocketAddr::new(from, u16::from_be_bytes([f0, f1]));
        let peer = SocketAddr::new(to, u16::from_be_bytes([t0, t1]));
        let sequence = u32::from_be_bytes([s0, s1, s2, s3]);
        Some(TooBig { flow: Flow { local, peer }, sequence, packet_bytes, mtu_bytes })
    }
}

/// The interface that smoltcp is shown for a connection: the port's, or the connection's own if its way is narrow.
#[derive(Default)]
pub(crate) struct Way(Option<(u16, Box<Interface>)>);

impl Way {
    /// The MTU of the way, if it is less than the port's.
    pub(crate) fn mtu_bytes(&self) -> Option<u16> {
        self.0.as_ref().map(|&(mtu_bytes, _)| mtu_bytes)
    }

    pub(crate) fn interface<'i>(&'i mut self, of_port: &'i mut Interface) -> &'i mut Interface {
        self.0.as_mut().map_or(of_port, |(_, own)| own)
    }
}

impl TcpPort {
    /// Hears an ICMP error; returns the reason if it is dropped.
    #[cold]
    pub(super) fn hear(&mut self, frame: &[u8], frames: &mut Frames) -> Option<DropReason> {
        let learned = TooBig::read(frame).and_then(|told| self.learn(&told, frames));
        if learned.is_none() { Some(DropReason::NoHandler) } else { None }
    }

    /// Learns the MTU of the way of a connection, if the message is to be believed.
    fn learn(&mut self, told: &TooBig, frames: &mut Frames) -> Option<()> {
        let number = *self.flows.get(&told.flow)?;
        let connection = &mut self.connections[number as usize];
        if told.packet_bytes <= told.mtu_bytes || !connection.is_under_way(told.sequence) {
            return None;
        }
        let known_bytes = connection.way.mtu_bytes().unwrap_or(self.settings.mtu_bytes);
        if told.mtu_bytes < known_bytes {
            // Its seed is for first sequence numbers, of which this connection needs no more.
            let own = interface(told.mtu_bytes, 0, frames, self.now);
            connection.way = Way(Some((told.mtu_bytes, Box::new(own))));
        }
        // A short segment that waited to be a full one may be one now.
        self.note_in_burst(number);
        Some(())
    }
}
