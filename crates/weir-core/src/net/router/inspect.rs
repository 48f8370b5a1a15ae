//! The first look at a frame: finds its kind, and whether its headers may be believed.
//!
//! [`crate::net::input`] says whether a header may be believed; the other checks here are for a router alone.
//!
//! Sources that must not be on a wire: 0/8, 127/8, groups and 240/4, and our own (RFC 1812 section 5.3.7, RFC 1122 section
//! 3.2.1.3); groups, ::1 and IPv4 mapped into IPv6 (RFC 4291 section 2.5, 2.7). Those of 169.254/16 must not leave their link
//! (RFC 3927 section 7): only a host with an address there takes them, as it can answer them.

use std::net::Ipv6Addr;

use crate::drops::DropReason;
use crate::net::checksum::{IPV4_LEN, header_is_right};
use crate::net::input;

pub(super) const ETHERNET_LEN: usize = 14;
/// Ethernet and IPv4 headers.
pub(super) const V4_HEAD: usize = ETHERNET_LEN + IPV4_LEN;
/// Ethernet and IPv6 headers.
pub(super) const V6_HEAD: usize = ETHERNET_LEN + 40;

/// The kind of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// An IPv4 packet sent to the interface's own link-layer address.
    V4,
    /// An IPv4 packet sent to a link-layer group.
    V4Group,
    /// An IPv6 packet; `to_us` if its link-layer destination is the interface's own, not a group.
    V6 {
        to_us: bool,
    },
    Arp,
    Drop(DropReason),
}

/// IPv4 sources that must not come in to a router or a host. Few sources share their first byte with one that is never on a
/// wire, or their last one with an own address; only those are looked at further.
#[derive(Debug)]
pub(super) struct Sources {
    own: Box<[[u8; 4]]>,
    takes_link_local: bool,
    by_first: [bool; 256],
    by_last: [bool; 256],
}

impl Sources {
    /// The sources that must not come in to a router, or a host, with these addresses.
    pub(super) fn new(own: Box<[[u8; 4]]>, is_host: bool) -> Sources {
        let takes_link_local = is_host && own.iter().any(|own| own[..2] == [169, 254]);
        let by_first = std::array::from_fn(|first| match first {
            169 => !takes_link_local,
            _ => matches!(first, 0 | 127 | 224..=255),
        });
        let by_last = std::array::from_fn(|last| own.iter().any(|own| usize::from(own[3]) == last));
        Sources { own, takes_link_local, by_first, by_last }
    }

    /// Returns whether a source may be a martian; false is certain.
    #[inline(always)]
    fn may_be_martian(&self, source: [u8; 4]) -> bool {
        let [first, .., last] = source.map(usize::from);
        self.by_first[first] | self.by_last[last]
    }

    fn is_martian(&self, source: [u8; 4]) -> bool {
        match source {
            [0 | 127 | 224..=255, ..] => true,
            [169, 254, ..] if !self.takes_link_local => true,
            _ => self.own.contains(&source),
        }
    }
}

/// Finds the kind of a frame that came to the interface with address `mac`. Writes the destination of an IPv4 packet.
///
/// One condition recognises nearly every IPv4 packet; any other goes by the rules one by one, which say the same.
#[inline(always)]
pub(super) fn inspect(frame: &[u8], mac: [u8; 6], sources: &Sources, destination: &mut [u8; 4]) -> Kind {
    if let Some(head) = frame.first_chunk::<V4_HEAD>()
        && head[..6] == mac
        && head[12..15] == [0x08, 0x00, 0x45]
        && let Some(ip) = head.last_chunk::<IPV4_LEN>()
        && (IPV4_LEN..=frame.len() - ETHERNET_LEN).contains(&u16::from_be_bytes([ip[2], ip[3]]).into())
        && header_is_right(ip)
        && !sources.may_be_martian([ip[12], ip[13], ip[14], ip[15]])
    {
        destination.copy_from_slice(&ip[16..]);
        return Kind::V4;
    }
    inspect_any(frame, mac, sources, destination)
}

#[inline(never)]
pub(super) fn inspect_any(frame: &[u8], mac: [u8; 6], sources: &Sources, destination: &mut [u8; 4]) -> Kind {
    let Some(ethernet) = frame.first_chunk::<ETHERNET_LEN>() else {
        return Kind::Drop(DropReason::Malformed);
    };
    let to_us = ethernet[..6] == mac;
    if !to_us && ethernet[0] & 1 == 0 {
        return Kind::Drop(DropReason::NotForUs);
    }
    let checked = match u16::from_be_bytes([ethernet[12], ethernet[13]]) {
        0x0800 => check_v4(frame, sources).map(|to| {
            *destination = to;
            if to_us { Kind::V4 } else { Kind::V4Group }
        }),
        0x86dd => check_v6(frame).map(|()| Kind::V6 { to_us }),
        0x0806 => Ok(Kind::Arp),
        _ => Err(DropReason::NoHandler),
    };
    checked.unwrap_or_else(Kind::Drop)
}

/// The destination of a packet whose header may be believed.
fn check_v4(frame: &[u8], sources: &Sources) -> Result<[u8; 4], DropReason> {
    let (_, ip) = frame.split_at(ETHERNET_LEN);
    input::ipv4(ip)?;
    let header = ip.first_chunk::<IPV4_LEN>().ok_or(DropReason::Malformed)?;
    if sources.is_martian([header[12], header[13], header[14], header[15]]) {
        return Err(DropReason::Martian);
    }
    Ok([header[16], header[17], header[18], header[19]])
}

fn check_v6(frame: &[u8]) -> Result<(), DropReason> {
    input::ipv6(&frame[ETHERNET_LEN..])?;
    let head = frame.first_chunk::<V6_HEAD>().ok_or(DropReason::Malformed)?;
    let (source, _) = addresses_v6(head);
    if source.is_multicast() || source.is_loopback() || source.to_ipv4_mapped().is_some() {
        return Err(DropReason::Martian);
    }
    Ok(())
}

/// The source and the destination of a packet.
pub(super) fn addresses_v6(head: &[u8; V6_HEAD]) -> (Ipv6Addr, Ipv6Addr) {
    let at = |from: usize| Ipv6Addr::from(std::array::from_fn::<u8, 16, _>(|i| head[from + i]));
    (at(22), at(38))
}
