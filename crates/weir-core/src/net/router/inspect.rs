//! The first look at a frame: what it is, and whether its headers may be believed.
//!
//! Whether a header may be believed is [`crate::net::input`]'s to say; what is looked at here besides is for a router alone.
//!
//! Sources that must not be on a wire: 0/8, 127/8, 169.254/16, groups and 240/4, and our own (RFC 1812 section 5.3.7,
//! RFC 3927 section 7); groups, ::1 and IPv4 mapped into IPv6 (RFC 4291 section 2.5, 2.7).

use std::net::Ipv6Addr;

use crate::drops::DropReason;
use crate::net::checksum::IPV4_LEN;
use crate::net::input;

pub(super) const ETHERNET_LEN: usize = 14;
/// Ethernet and IPv4 headers.
pub(super) const V4_HEAD: usize = ETHERNET_LEN + IPV4_LEN;
/// Ethernet and IPv6 headers.
pub(super) const V6_HEAD: usize = ETHERNET_LEN + 40;

/// What a frame is. `to_us`: its link-layer destination is the interface's own, not a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    V4 { to_us: bool },
    V6 { to_us: bool },
    Arp,
    Drop(DropReason),
}

/// Looks at a frame that came to the interface with address `mac`. Writes the destination of an IPv4 packet.
#[inline]
pub(super) fn inspect(frame: &[u8], mac: [u8; 6], own_v4: &[[u8; 4]], destination: &mut [u8; 4]) -> Kind {
    let Some(ethernet) = frame.first_chunk::<ETHERNET_LEN>() else {
        return Kind::Drop(DropReason::Malformed);
    };
    let to_us = ethernet[..6] == mac;
    if !to_us && ethernet[0] & 1 == 0 {
        return Kind::Drop(DropReason::NotForUs);
    }
    let checked = match u16::from_be_bytes([ethernet[12], ethernet[13]]) {
        0x0800 => check_v4(frame, own_v4, destination).map(|()| Kind::V4 { to_us }),
        0x86dd => check_v6(frame).map(|()| Kind::V6 { to_us }),
        0x0806 => Ok(Kind::Arp),
        _ => Err(DropReason::NoHandler),
    };
    checked.unwrap_or_else(Kind::Drop)
}

#[inline]
fn check_v4(frame: &[u8], own_v4: &[[u8; 4]], destination: &mut [u8; 4]) -> Result<(), DropReason> {
    let (_, ip) = frame.split_at(ETHERNET_LEN);
    input::ipv4(ip)?;
    let header = ip.first_chunk::<IPV4_LEN>().ok_or(DropReason::Malformed)?;
    let source = [header[12], header[13], header[14], header[15]];
    let never = matches!(source, [0 | 127 | 224..=255, ..] | [169, 254, ..]);
    if never || own_v4.contains(&source) {
        return Err(DropReason::Martian);
    }
    *destination = [header[16], header[17], header[18], header[19]];
    Ok(())
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

/// Source and destination.
pub(super) fn addresses_v6(head: &[u8; V6_HEAD]) -> (Ipv6Addr, Ipv6Addr) {
    let at = |from: usize| Ipv6Addr::from(std::array::from_fn::<u8, 16, _>(|i| head[from + i]));
    (at(22), at(38))
}
