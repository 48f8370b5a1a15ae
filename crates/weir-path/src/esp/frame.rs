//! The fields of frames that an ESP stage reads, and a change of the packet in a frame.
//!
//! Rule: a field that is read lies within its frame; headers have been read before their addresses are.
//!
//! Pure.

use std::net::IpAddr;

use weir_ipsec::ip::{IpFamily, IpHeaders, number};
use weir_ipsec::policy::AddressPrefix;
use weir_ipsec::room::Room;
use weir_ring::memory::FrameMemory;

use super::{EspVerdict, INSIDE, OUTSIDE};
use crate::packet::PathPacket;

/// The length of a link header, in bytes.
pub(super) const LINK_LEN: usize = 14;
/// The length of its two addresses, in bytes.
const STATIONS_LEN: usize = 12;
const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_IPV6: u16 = 0x86dd;
const ETHERTYPE_ARP: u16 = 0x0806;
/// The length that every link takes of IPv6, in bytes.
const V6_MTU_MIN: u16 = 1280;

/// The payload of a frame, by its EtherType.
pub(super) enum Link {
    Ip,
    Arp,
    /// A payload that no policy can look into.
    Hidden,
}

pub(super) fn ip_of(frame: &[u8]) -> Link {
    match frame.get(12..LINK_LEN).map(|kind| u16::from_be_bytes([kind[0], kind[1]])) {
        Some(ETHERTYPE_IPV4 | ETHERTYPE_IPV6) => Link::Ip,
        Some(ETHERTYPE_ARP) => Link::Arp,
        _ => Link::Hidden,
    }
}

/// Returns whether a packet is a message of neighbour discovery, which is in no fragments (RFC 6980).
pub(super) fn is_neighbourly(ip: &[u8], headers: &IpHeaders) -> bool {
    headers.family() == IpFamily::V6
        && headers.next() == number::ICMPV6
        && !headers.is_fragment()
        && ip[7] == u8::MAX
        && matches!(ip.get(headers.end()), Some(133..=137))
}

/// Returns whether a packet reports to the bridges and routers of its link, alone, which groups somebody listens to (MLD, RFC 2710, RFC 3810).
pub(super) fn is_report(ip: &[u8], headers: &IpHeaders) -> bool {
    headers.family() == IpFamily::V6
        && headers.next() == number::ICMPV6
        && !headers.is_fragment()
        && ip[7] == 1
        && ip[24..26] == [0xff, 0x02]
        && matches!(ip.get(headers.end()), Some(131 | 132 | 143))
}

/// The verdict on a packet that would be too long when it is sealed; none if it is sealed, and cut then. `passes_cut` says that its
/// fragments pass the policies as it does, and may be sealed; `is_joined`, that it came in fragments.
pub(super) fn too_long(
    ip: &[u8],
    headers: &IpHeaders,
    longest: u16,
    passes_cut: bool,
    is_joined: bool,
) -> Option<EspVerdict> {
    match headers.family() {
        IpFamily::V4 if ip[6] & 0x40 != 0 => Some(EspVerdict::TooLong(longest)),
        // A packet that was put together would be so again.
        IpFamily::V4 => (passes_cut && !is_joined).then_some(EspVerdict::Cut(longest)),
        // Its sender makes no shorter packets, whatever it is told.
        IpFamily::V6 if is_joined || headers.packet_len() <= V6_MTU_MIN.into() => None,
        IpFamily::V6 => Some(EspVerdict::TooLong(longest.max(V6_MTU_MIN))),
    }
}

/// The verdict on a packet that is sealed, or may be cut as it is.
#[inline]
pub(super) fn leaves(packet: &PathPacket, mtu_bytes: u16) -> EspVerdict {
    if is_longer(packet, mtu_bytes) {
        EspVerdict::PassCut(OUTSIDE, mtu_bytes)
    } else {
        EspVerdict::Pass(OUTSIDE)
    }
}

/// The verdict on a packet that was opened. One that is too long and may not be cut is left to the ports, of which each knows what it takes.
#[inline]
pub(super) fn comes_in(packet: &PathPacket, memory: &FrameMemory, mtu_bytes: u16) -> EspVerdict {
    if is_longer(packet, mtu_bytes) && may_be_cut(packet, memory) {
        EspVerdict::PassCut(INSIDE, mtu_bytes)
    } else {
        EspVerdict::Pass(INSIDE)
    }
}

#[inline]
fn is_longer(packet: &PathPacket, mtu_bytes: u16) -> bool {
    usize::from(packet.len_bytes) > LINK_LEN + usize::from(mtu_bytes)
}

/// Returns whether a packet that was opened may be cut: of IPv4 if its sender allows that, of IPv6 if it is no fragment.
#[cold]
fn may_be_cut(packet: &PathPacket, memory: &FrameMemory) -> bool {
    let ip = &packet.bytes(memory)[LINK_LEN..];
    IpHeaders::read_all(ip).is_ok_and(|headers| match headers.family() {
        IpFamily::V4 => ip[6] & 0x40 == 0,
        IpFamily::V6 => !headers.is_fragment(),
    })
}

pub(super) fn prefix(address: IpAddr, len: u8) -> AddressPrefix {
    AddressPrefix::new(address, len).expect("no longer than an address")
}

/// Changes the IP packet in a frame, and puts its link header before it again. On an error the packet's bytes are meaningless, and its
/// length is as before.
#[inline(always)]
pub(super) fn in_place<T, E>(
    packet: &mut PathPacket,
    memory: &FrameMemory,
    change: impl FnOnce(&mut Room) -> Result<T, E>,
) -> Result<T, E> {
    let (start, len) = (usize::from(packet.offset_bytes), usize::from(packet.len_bytes));
    let frame = memory.bytes_mut(&mut packet.frame);
    let stations: [u8; STATIONS_LEN] = *frame[start..].first_chunk().expect("a frame has a link header");
    // The room is without the first bytes, so that the link header has room wherever the packet ends up.
    let mut room = Room::new(&mut frame[LINK_LEN..], start, len - LINK_LEN).expect("it lies in its frame");
    let changed = change(&mut room)?;
    let (start, len) = (room.start(), room.len());
    let kind = if room.packet().first().is_some_and(|first| first >> 4 == 6) {
        ETHERTYPE_IPV6
    } else {
        ETHERTYPE_IPV4
    };
    frame[start..start + STATIONS_LEN].copy_from_slice(&stations);
    frame[start + STATIONS_LEN..start + LINK_LEN].copy_from_slice(&kind.to_be_bytes());
    // The length of a frame fits into 16 bits.
    (packet.offset_bytes, packet.len_bytes) = (start as u16, (len + LINK_LEN) as u16);
    Ok(changed)
}
