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
pub(super) enum Link<'a> {
    /// An IP packet.
    Ip(&'a [u8]),
    Arp,
    /// A payload that no policy can look into.
    Hidden,
}

#[inline(always)]
pub(super) fn ip_of(frame: &[u8]) -> Link<'_> {
    let Some((link, payload)) = frame.split_first_chunk::<LINK_LEN>() else { return Link::Hidden };
    match u16::from_be_bytes([link[12], link[13]]) {
        ETHERTYPE_IPV4 | ETHERTYPE_IPV6 => Link::Ip(payload),
        ETHERTYPE_ARP => Link::Arp,
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
/// fragments pass the policies as it does, and may be sealed; `is_joined`, that it was put together.
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

/// The IP packet in a frame without its link header, which has room before it wherever the packet ends up.
///
/// A packet that is not linked again keeps its place and length in the frame; its bytes are meaningless if they were changed.
pub(super) struct Bare<'a> {
    pub room: Room<'a>,
    stations: [u8; STATIONS_LEN],
    offset_bytes: &'a mut u16,
    len_bytes: &'a mut u16,
}

impl<'a> Bare<'a> {
    /// The packet in a frame that has a link header.
    #[inline(always)]
    pub(super) fn of(packet: &'a mut PathPacket, memory: &'a FrameMemory) -> Bare<'a> {
        let PathPacket { frame, offset_bytes, len_bytes, .. } = packet;
        let (start, len) = (usize::from(*offset_bytes), usize::from(*len_bytes));
        let frame = memory.bytes_mut(frame);
        let stations = *frame[start..].first_chunk().expect("a frame has a link header");
        let room =
            Room::behind(frame, LINK_LEN, start + LINK_LEN, len - LINK_LEN).expect("it lies in its frame");
        Bare { room, stations, offset_bytes, len_bytes }
    }

    /// Puts the link header before the packet again.
    #[inline(always)]
    pub(super) fn link(self) {
        let Bare { mut room, stations, offset_bytes, len_bytes } = self;
        let is_v6 = room.packet().first().is_some_and(|first| first >> 4 == 6);
        let kind = if is_v6 { ETHERTYPE_IPV6 } else { ETHERTYPE_IPV4 };
        let header = room.before_mut::<LINK_LEN>().expect("the room has it before the packet");
        header[..STATIONS_LEN].copy_from_slice(&stations);
        header[STATIONS_LEN..].copy_from_slice(&kind.to_be_bytes());
        // The length of a frame fits into 16 bits.
        (*offset_bytes, *len_bytes) = ((room.start() - LINK_LEN) as u16, (room.len() + LINK_LEN) as u16);
    }
}
