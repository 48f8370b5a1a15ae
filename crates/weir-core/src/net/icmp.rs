//! ICMP: a router's errors to the sender of a packet it could not forward, and its answer to an echo request.
//!
//! An error quotes the packet as far as fits 576 bytes (IPv4) or 1280 bytes (IPv6). No error is made about
//!
//! - an ICMP error or redirect, or a message that may be one because it is cut short;
//! - a fragment of IPv4 other than the first;
//! - a packet to a group or to all stations, by its IP or its link-layer address;
//! - a packet whose source is not one station.
//!
//! A router limits its errors for each interface, those of packets that are too long apart ([`super::limit`]).
//!
//! Source: RFC 792, RFC 1122 section 3.2.2, RFC 1812 sections 4.3.2 (quotation, precedence 6, limit) and 5.2.7;
//! RFC 4443 sections 2.4 and 3.
//!
//! Limits: no redirects. A fragment of IPv6 that is not the first does not show whether it is of an error: if it is of ICMPv6 there is no
//! error about it, otherwise there may be, as senders of IPv6 learn their path's MTU from any fragment (RFC 8201).

use std::net::IpAddr;

use smoltcp::wire::{
    Icmpv4DstUnreachable, Icmpv4Message, Icmpv4Packet, Icmpv4TimeExceeded, Icmpv6DstUnreachable,
    Icmpv6Message, Icmpv6Packet, Icmpv6ParamProblem, Icmpv6TimeExceeded, IpProtocol, Ipv4Packet, Ipv6Packet,
};

use super::checksum::updated;

/// The fault of a packet that an error tells of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The packet's time to live or hop limit ran out.
    TimeExceeded,
    /// The packet's destination has no route.
    NoRoute,
    /// The packet's next hop does not answer.
    NoNeighbour,
    /// The packet is longer than the way out takes, which is this many bytes.
    TooLong(u16),
    /// The packet is for a port of this router, where nobody listens.
    NoPort,
    /// The packet is for a protocol this router does not speak.
    NoProtocol,
}

/// The time to live of packets that a router makes itself (RFC 1700's default, as everybody's).
pub(super) const OWN_TTL: u8 = 64;

/// The most extension headers that are looked through for an ICMPv6 error.
const EXTENSIONS_MAX: usize = 8;
const V4_LEN_MAX: usize = 576;
const V6_LEN_MAX: usize = 1280;
const ICMP_LEN: usize = 8;
const IPV4_LEN: usize = 20;
const IPV6_LEN: usize = 40;
/// The place in an IPv6 header of the number of the protocol after it.
const NEXT_HEADER_AT: u32 = 6;

/// The station to tell about a packet (given from its IP header on), if any may be told. The packet's headers have been checked.
pub(super) fn whom_to_tell(ip: &[u8]) -> Option<IpAddr> {
    if ip.first()? >> 4 == 4 {
        let packet = Ipv4Packet::new_checked(ip).ok()?;
        let (source, destination) = (packet.src_addr(), packet.dst_addr());
        let error = packet.next_header() == IpProtocol::Icmp
            && !matches!(packet.payload().first(), Some(0 | 8 | 13..=18));
        let station = !(source.is_unspecified() || source.is_multicast() || source.octets()[0] >= 240);
        (station && !error && packet.frag_offset() == 0 && !destination.is_multicast())
            .then_some(source.into())
    } else {
        let packet = Ipv6Packet::new_checked(ip).ok()?;
        let source = packet.src_addr();
        let error = may_be_error_v6(packet.next_header().into(), packet.payload());
        let station = !(source.is_unspecified() || source.is_multicast());
        (station && !error && !packet.dst_addr().is_multicast()).then_some(source.into())
    }
}

/// Returns whether the payload of an IPv6 header is an ICMPv6 error or redirect, or may be one.
fn may_be_error_v6(mut next: u8, mut rest: &[u8]) -> bool {
    const HOP_BY_HOP: u8 = 0;
    const ROUTING: u8 = 43;
    const FRAGMENT: u8 = 44;
    const AUTHENTICATION: u8 = 51;
    const ICMP: u8 = 58;
    const OPTIONS: u8 = 60;
    const REDIRECT: u8 = 137;
    for _ in 0..EXTENSIONS_MAX {
        if next == ICMP {
            return rest.first().is_none_or(|&kind| kind < 128 || kind == REDIRECT);
        }
        let Some(&[after, words, offset @ ..]) = rest.first_chunk::<4>() else {
            return matches!(next, HOP_BY_HOP | ROUTING | FRAGMENT | AUTHENTICATION | OPTIONS);
        };
        let len = match next {
            HOP_BY_HOP | ROUTING | OPTIONS => 8 * (usize::from(words) + 1),
            AUTHENTICATION => 4 * (usize::from(words) + 2),
            FRAGMENT if u16::from_be_bytes(offset) >> 3 != 0 => return after == ICMP,
            FRAGMENT => 8,
            _ => return false,
        };
        (next, rest) = (after, rest.get(len..).unwrap_or_default());
    }
    true
}

/// The length of the error about a packet, its IP header included; `None` if the packet is not whole.
pub(super) fn error_len(ip: &[u8]) -> Option<usize> {
    if ip.first()? >> 4 == 4 {
        let quoted = usize::from(Ipv4Packet::new_checked(ip).ok()?.total_len());
        Some((IPV4_LEN + ICMP_LEN + quoted).min(V4_LEN_MAX))
    } else {
        let quoted = Ipv6Packet::new_checked(ip).ok()?.total_len();
        Some((IPV6_LEN + ICMP_LEN + quoted).min(V6_LEN_MAX))
    }
}

/// Writes the error about the packet `ip` into `error`, which has [`error_len`] bytes.
///
/// # Panics
/// If the addresses are of different families.
pub(super) fn write_error(error: &mut [u8], fault: Fault, own: IpAddr, to: IpAddr, ip: &[u8]) {
    match (own, to) {
        (IpAddr::V4(own), IpAddr::V4(to)) => {
            let len = error.len();
            let mut packet = Ipv4Packet::new_unchecked(error);
            packet.set_version(4);
            packet.set_header_len(IPV4_LEN as u8);
            packet.set_total_len(len as u16);
            const INTERNETWORK_CONTROL: u8 = 0b11_0000;
            packet.set_dscp(INTERNETWORK_CONTROL);
            packet.set_dont_frag(true);
            packet.set_hop_limit(OWN_TTL);
            packet.set_next_header(IpProtocol::Icmp);
            packet.set_src_addr(own);
            packet.set_dst_addr(to);
            packet.fill_checksum();
            let mut icmp = Icmpv4Packet::new_unchecked(packet.payload_mut());
            let (message, code) = v4_message(fault);
            icmp.set_msg_type(message);
            icmp.set_msg_code(code);
            if let Fault::TooLong(mtu_bytes) = fault {
                // The next hop's MTU, where an echo has its sequence number (RFC 1191).
                icmp.set_echo_seq_no(mtu_bytes);
            }
            quote(icmp.data_mut(), ip);
            icmp.fill_checksum();
        }
        (IpAddr::V6(own), IpAddr::V6(to)) => {
            let len = error.len();
            let mut packet = Ipv6Packet::new_unchecked(error);
            packet.set_version(6);
            packet.set_payload_len((len - IPV6_LEN) as u16);
            packet.set_hop_limit(OWN_TTL);
            packet.set_next_header(IpProtocol::Icmpv6);
            packet.set_src_addr(own);
            packet.set_dst_addr(to);
            let mut icmp = Icmpv6Packet::new_unchecked(packet.payload_mut());
            let (message, code) = v6_message(fault);
            icmp.set_msg_type(message);
            icmp.set_msg_code(code);
            match fault {
                Fault::TooLong(mtu_bytes) => icmp.set_pkt_too_big_mtu(mtu_bytes.into()),
                Fault::NoProtocol => icmp.set_param_problem_ptr(NEXT_HEADER_AT),
                _ => {}
            }
            quote(icmp.payload_mut(), ip);
            icmp.fill_checksum(&own, &to);
        }
        _ => unreachable!("an error and its packet are of one family"),
    }
}

/// Writes the error about the packet `ip`, whose headers have been checked, into the front of `room`; returns its length. `None` if no
/// station may be told, or it does not fit.
pub fn tell_sender(room: &mut [u8], fault: Fault, own: IpAddr, ip: &[u8]) -> Option<usize> {
    let to = whom_to_tell(ip).filter(|to| to.is_ipv4() == own.is_ipv4())?;
    let error = room.get_mut(..error_len(ip)?)?;
    error.fill(0);
    write_error(error, fault, own, to, ip);
    Some(error.len())
}

/// Turns an IPv4 echo request into its reply, in place. False if the packet is none, or not whole.
pub(super) fn answer_echo_v4(ip: &mut [u8]) -> bool {
    let mut packet = Ipv4Packet::new_unchecked(ip);
    let (source, destination) = (packet.src_addr(), packet.dst_addr());
    if packet.more_frags() || packet.frag_offset() != 0 || packet.next_header() != IpProtocol::Icmp {
        return false;
    }
    let Ok(mut icmp) = Icmpv4Packet::new_checked(packet.payload_mut()) else {
        return false;
    };
    if icmp.msg_type() != Icmpv4Message::EchoRequest || icmp.msg_code() != 0 || !icmp.verify_checksum() {
        return false;
    }
    icmp.set_msg_type(Icmpv4Message::EchoReply);
    // The checksum is not updated from the request's: a reply may be all zeros, and an update then gives 0 where 0xffff is right.
    icmp.fill_checksum();
    packet.set_src_addr(destination);
    packet.set_dst_addr(source);
    packet.set_hop_limit(OWN_TTL);
    packet.fill_checksum();
    true
}

/// Turns an IPv6 echo request into its reply, in place. False if the packet is none. Its checksum has been verified.
pub(super) fn answer_echo_v6(ip: &mut [u8]) -> bool {
    let mut packet = Ipv6Packet::new_unchecked(ip);
    let (source, destination) = (packet.src_addr(), packet.dst_addr());
    let Ok(mut icmp) = Icmpv6Packet::new_checked(packet.payload_mut()) else {
        return false;
    };
    if icmp.msg_type() != Icmpv6Message::EchoRequest || icmp.msg_code() != 0 {
        return false;
    }
    // The addresses only change places, so the pseudo-header's sum stays.
    icmp.set_checksum(updated(icmp.checksum(), 0x8000, 0x8100));
    icmp.set_msg_type(Icmpv6Message::EchoReply);
    packet.set_src_addr(destination);
    packet.set_dst_addr(source);
    packet.set_hop_limit(OWN_TTL);
    true
}

fn quote(room: &mut [u8], ip: &[u8]) {
    let len = room.len();
    room.copy_from_slice(&ip[..len]);
}

fn v4_message(fault: Fault) -> (Icmpv4Message, u8) {
    use Icmpv4DstUnreachable::*;
    let code = match fault {
        Fault::TimeExceeded => return (Icmpv4Message::TimeExceeded, Icmpv4TimeExceeded::TtlExpired.into()),
        Fault::NoRoute => NetUnreachable,
        Fault::NoNeighbour => HostUnreachable,
        Fault::TooLong(_) => FragRequired,
        Fault::NoPort => PortUnreachable,
        Fault::NoProtocol => ProtoUnreachable,
    };
    (Icmpv4Message::DstUnreachable, code.into())
}

fn v6_message(fault: Fault) -> (Icmpv6Message, u8) {
    let code = match fault {
        Fault::TimeExceeded => {
            return (Icmpv6Message::TimeExceeded, Icmpv6TimeExceeded::HopLimitExceeded.into());
        }
        Fault::TooLong(_) => return (Icmpv6Message::PktTooBig, 0),
        Fault::NoRoute => Icmpv6DstUnreachable::NoRoute,
        Fault::NoNeighbour => Icmpv6DstUnreachable::AddrUnreachable,
        Fault::NoPort => Icmpv6DstUnreachable::PortUnreachable,
        Fault::NoProtocol => {
            return (Icmpv6Message::ParamProblem, Icmpv6ParamProblem::UnrecognizedNxtHdr.into());
        }
    };
    (Icmpv6Message::DstUnreachable, code.into())
}
