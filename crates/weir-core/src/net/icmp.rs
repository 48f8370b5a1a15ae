//! ICMP: what a router tells a sender about a packet it could not forward, and its answer to an echo request.
//!
//! An error quotes the packet as far as fits 576 bytes (IPv4) or 1280 bytes (IPv6). None is made about
//!
//! - an ICMP error or redirect, or what may be one because it is cut short;
//! - a fragment other than the first;
//! - a packet to a group or to all stations, by its IP or its link-layer address;
//! - a packet whose source is not one station.
//!
//! Errors are limited together to `rate` a second with bursts of `burst`. With `T = 1 s / rate` and `free_ns` the time
//! at which the next one would have been due had they come evenly, one is allowed if
//!
//! ```text
//! free_ns <= now + (burst - 1) T              and then       free_ns = max(free_ns, now) + T
//! ```
//!
//! Source: RFC 792, RFC 1122 section 3.2.2, RFC 1812 sections 4.3.2 (quotation, precedence 6, limit) and 5.2.7;
//! RFC 4443 sections 2.4 and 3; ITU-T I.371 (the limit, as virtual scheduling).
//!
//! Limits: no redirects; extension headers before an ICMPv6 error are not looked through, so an error about such an
//! error is possible, and limited.

use std::net::IpAddr;

use smoltcp::wire::{
    Icmpv4DstUnreachable, Icmpv4Message, Icmpv4Packet, Icmpv4TimeExceeded, Icmpv6DstUnreachable,
    Icmpv6Message, Icmpv6Packet, Icmpv6TimeExceeded, IpProtocol, Ipv4Packet, Ipv6Packet,
};

use super::checksum::updated;

/// What went wrong with a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Its time to live or hop limit ran out.
    TimeExceeded,
    /// There is no route to its destination.
    NoRoute,
    /// Its next hop does not answer.
    NoNeighbour,
    /// It is longer than the way out takes, which is this many bytes.
    TooLong(u16),
    /// It is for a port of this router, where nobody listens.
    NoPort,
    /// It is for a protocol this router does not speak.
    NoProtocol,
}

/// How many errors may be sent.
#[derive(Clone, Copy, Debug)]
pub struct Limit {
    interval_ns: u64,
    burst_ns: u64,
    free_ns: u64,
}

/// Time to live of what a router says itself (RFC 1700's default, as everybody's).
pub(super) const OWN_TTL: u8 = 64;

const V4_LEN_MAX: usize = 576;
const V6_LEN_MAX: usize = 1280;
const ICMP_LEN: usize = 8;
const IPV4_LEN: usize = 20;
const IPV6_LEN: usize = 40;

impl Limit {
    /// `per_second` errors a second, after a pause up to `burst` at once; none at all if either is 0.
    pub fn new(per_second: u32, burst: u32) -> Limit {
        let none = per_second == 0 || burst == 0;
        let interval_ns = if none { u64::MAX } else { 1_000_000_000 / u64::from(per_second) };
        let burst_ns = interval_ns.saturating_mul(u64::from(burst.saturating_sub(1)));
        Limit { interval_ns, burst_ns, free_ns: if none { u64::MAX } else { 0 } }
    }

    /// Whether one more may be sent now; if so, it is counted.
    pub fn admit(&mut self, now_ns: u64) -> bool {
        if self.interval_ns == u64::MAX || self.free_ns > now_ns.saturating_add(self.burst_ns) {
            return false;
        }
        self.free_ns = self.free_ns.max(now_ns) + self.interval_ns;
        true
    }
}

/// Whom to tell about a packet (from its IP header on), if anyone may be told. The packet's headers have been checked.
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
        const REDIRECT: u8 = 137;
        let error = packet.next_header() == IpProtocol::Icmpv6
            && packet.payload().first().is_none_or(|&kind| kind < 128 || kind == REDIRECT);
        let station = !(source.is_unspecified() || source.is_multicast());
        (station && !error && !packet.dst_addr().is_multicast()).then_some(source.into())
    }
}

/// Length of the error about a packet, its IP header included; `None` if there is no such error in its family.
pub(super) fn error_len(ip: &[u8], fault: Fault) -> Option<usize> {
    if ip.first()? >> 4 == 4 {
        let quoted = usize::from(Ipv4Packet::new_checked(ip).ok()?.total_len());
        Some((IPV4_LEN + ICMP_LEN + quoted).min(V4_LEN_MAX))
    } else {
        let quoted = Ipv6Packet::new_checked(ip).ok()?.total_len();
        (fault != Fault::NoProtocol).then_some((IPV6_LEN + ICMP_LEN + quoted).min(V6_LEN_MAX))
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
                // RFC 1191: the next hop's MTU, where an echo has its sequence number.
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
            if let Fault::TooLong(mtu_bytes) = fault {
                icmp.set_pkt_too_big_mtu(mtu_bytes.into());
            }
            quote(icmp.payload_mut(), ip);
            icmp.fill_checksum(&own, &to);
        }
        _ => unreachable!("an error and its packet are of one family"),
    }
}

/// Turns an IPv4 echo request into its reply, in place. False if it is none, or not whole.
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
    // Not followed from the request's: a reply may be all zeros, and what is followed to there is 0 where 0xffff is right.
    icmp.fill_checksum();
    packet.set_src_addr(destination);
    packet.set_dst_addr(source);
    packet.set_hop_limit(OWN_TTL);
    packet.fill_checksum();
    true
}

/// Turns an IPv6 echo request into its reply, in place. False if it is none. Its checksum has been verified.
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
        Fault::NoPort | Fault::NoProtocol => Icmpv6DstUnreachable::PortUnreachable,
    };
    (Icmpv6Message::DstUnreachable, code.into())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Over any window, errors <= burst + rate x time.
        #[test]
        fn never_more_than_the_limit(
            per_second in 1u32..5000, burst in 1u32..20,
            waits in prop::collection::vec(0u64..3_000_000, 1..300),
        ) {
            let mut limit = Limit::new(per_second, burst);
            let mut now_ns = 0;
            let mut sent = Vec::new();
            for wait_ns in waits {
                now_ns += wait_ns;
                if limit.admit(now_ns) {
                    sent.push(now_ns);
                }
            }
            let interval_ns = 1_000_000_000 / u64::from(per_second);
            for (first, &from_ns) in sent.iter().enumerate() {
                for (last, &to_ns) in sent.iter().enumerate().skip(first) {
                    let allowed = u64::from(burst) + (to_ns - from_ns) / interval_ns;
                    prop_assert!((last - first + 1) as u64 <= allowed);
                }
            }
            prop_assert!(!sent.is_empty(), "the first is always allowed");
        }
    }

    #[test]
    fn nothing_is_allowed_by_zero() {
        assert!(!Limit::new(0, 5).admit(0) && !Limit::new(5, 0).admit(u64::MAX));
    }
}
