//! The flow tuple of an Ethernet frame: the input of the Toeplitz hash.
//!
//! The rule, in the order of Microsoft's tuples (`words` are 32 bits, bytes as on the wire):
//!
//! | frame | tuple |
//! |---|---|
//! | IPv4, IPv6 with TCP or UDP, under [`HashKind::FourTuple`] | source, destination, both ports |
//! | the same under [`HashKind::TwoTuple`]; any fragment; any other protocol over IP; ports cut off | source, destination, zeros |
//! | not IP, or the IP header contradicts itself or the frame's length | none |
//!
//! Up to two VLAN tags (802.1Q, 802.1ad) and up to [`EXTENSIONS_MAX`] IPv6 extension headers are stepped
//! over. A fragment goes by its addresses alone because only the first one carries ports. Ports count only if
//! they lie inside the length the IP header claims: a short frame's padding is no port.
//!
//! Common frames (no IPv4 options, no extension headers) are recognised by a few masked compares on the first 38 or 58 bytes, after one
//! length check. The views of `smoltcp::wire` check a length again at each field they read, which costs more than all the rest, so they
//! serve the frames that the compares do not settle. A tag only shifts the frame, so tagged frames take the same compares once it is off.
//! Addresses are read as [`Flow`] wants them, 64 bits at a time. Tests hold both ways to the same answer.
//!
//! Source: Microsoft, "RSS Hashing Types"; RFC 791, RFC 8200 section 4; smoltcp's `wire`.
//!
//! Limits: a UDP flow that sends some datagrams whole and some in fragments has two tuples and so two
//! workers; set `rss.hash = "2-tuple"` where its order matters. Tunnels are steered by their outer header.

use smoltcp::wire::{EthernetFrame, EthernetProtocol, IpProtocol, Ipv4Packet, Ipv6ExtHeader, Ipv6Packet};
use weir_simd::toeplitz::{Flow, V4_WORDS, V6_WORDS};

/// The most IPv6 extension headers that are stepped over before the ports are given up.
pub const EXTENSIONS_MAX: usize = 8;

/// The most VLAN tags that are stepped over.
pub const TAGS_MAX: usize = 2;

/// `rss.hash`: the fields of a TCP or UDP packet that make its flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HashKind {
    /// The addresses.
    TwoTuple,
    /// The addresses and the ports.
    #[default]
    FourTuple,
}

impl HashKind {
    /// Both kinds.
    pub const ALL: [HashKind; 2] = [HashKind::TwoTuple, HashKind::FourTuple];

    /// Its name in settings.
    pub const fn name(self) -> &'static str {
        match self {
            HashKind::TwoTuple => "2-tuple",
            HashKind::FourTuple => "4-tuple",
        }
    }
}

/// A frame's flow, ready to be hashed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tuple {
    /// No flow: there is nothing to hash.
    None,
    /// IPv4.
    V4(Flow<V4_WORDS>),
    /// IPv6.
    V6(Flow<V6_WORDS>),
}

/// The flow tuple of `frame`, an Ethernet frame without its check sequence.
#[inline]
pub fn tuple(frame: &[u8], kind: HashKind) -> Tuple {
    match common(frame, kind) {
        Some(tuple) => tuple,
        None => other(frame, kind),
    }
}

const TYPE_AT: usize = 12;
const ETHERNET_LEN: usize = 14;
const TAG_LEN: usize = 4;
const IPV4_LEN: usize = 20;
const IPV6_LEN: usize = 40;
const PORTS_LEN: usize = 4;
const TCP: u8 = 6;
const UDP: u8 = 17;

/// A TCP or UDP packet without options, extensions or fragmentation, tagged or not; `None` for everything else.
#[inline(always)]
pub(super) fn common(mut frame: &[u8], kind: HashKind) -> Option<Tuple> {
    for _ in 0..=TAGS_MAX {
        let head: &[u8; ETHERNET_LEN + IPV4_LEN + PORTS_LEN] = frame.first_chunk()?;
        let first = u32::from_ne_bytes(part(head, TYPE_AT));
        if first & V4_MASK == V4_START {
            return common_v4(head, frame.len(), kind).map(Tuple::V4);
        }
        if first & V6_MASK == V6_START {
            return common_v6(frame.first_chunk()?, frame.len(), kind).map(Tuple::V6);
        }
        if first & TYPE_MASK != TAG && first & TYPE_MASK != SERVICE_TAG {
            return None;
        }
        // Without its tag the frame starts 4 bytes later: the next type then has the place of an untagged frame's.
        frame = &frame[TAG_LEN..];
    }
    None
}

// The type, and the first byte behind it: version 4 with a header of 5 words, or version 6.
const V4_START: u32 = u32::from_ne_bytes([0x08, 0x00, 0x45, 0]);
const V4_MASK: u32 = u32::from_ne_bytes([0xff, 0xff, 0xff, 0]);
const V6_START: u32 = u32::from_ne_bytes([0x86, 0xdd, 0x60, 0]);
const V6_MASK: u32 = u32::from_ne_bytes([0xff, 0xff, 0xf0, 0]);
const TAG: u32 = u32::from_ne_bytes([0x81, 0x00, 0, 0]);
const SERVICE_TAG: u32 = u32::from_ne_bytes([0x88, 0xa8, 0, 0]);
const TYPE_MASK: u32 = u32::from_ne_bytes([0xff, 0xff, 0, 0]);

#[inline(always)]
fn common_v4(
    head: &[u8; ETHERNET_LEN + IPV4_LEN + PORTS_LEN],
    len: usize,
    kind: HashKind,
) -> Option<Flow<V4_WORDS>> {
    // More-fragments and the offset, which must be zero, and the protocol.
    const MASK: u32 = u32::from_ne_bytes([0x3f, 0xff, 0, 0xff]);
    let whole = |protocol| u32::from_ne_bytes([0, 0, 0, protocol]);
    let found = u32::from_ne_bytes(part(head, 20)) & MASK;
    let total_len = usize::from(u16::from_be_bytes(part(head, 16)));
    // Both compares are made, as it cannot be foretold which of two protocols a packet has.
    let is_common = (found == whole(TCP)) | (found == whole(UDP));
    let fits = total_len.wrapping_sub(IPV4_LEN + PORTS_LEN) <= len - head.len();
    (is_common & fits).then(|| Flow { addresses: [part(head, 26)], ports: ports_of(part(head, 34), kind) })
}

#[inline(always)]
fn common_v6(
    head: &[u8; ETHERNET_LEN + IPV6_LEN + PORTS_LEN],
    len: usize,
    kind: HashKind,
) -> Option<Flow<V6_WORDS>> {
    let payload_len = usize::from(u16::from_be_bytes(part(head, 18)));
    let is_common = (head[20] == TCP) | (head[20] == UDP);
    let fits = payload_len.wrapping_sub(PORTS_LEN) <= len - head.len();
    (is_common & fits).then(|| Flow {
        addresses: std::array::from_fn(|k| part(head, 22 + 8 * k)),
        ports: ports_of(part(head, 54), kind),
    })
}

#[inline(always)]
fn ports_of(bytes: [u8; PORTS_LEN], kind: HashKind) -> [u8; PORTS_LEN] {
    let mask = match kind {
        HashKind::TwoTuple => 0,
        HashKind::FourTuple => u32::MAX,
    };
    (u32::from_ne_bytes(bytes) & mask).to_ne_bytes()
}

/// The bytes from `at` on.
#[inline(always)]
fn part<const LEN: usize>(bytes: &[u8], at: usize) -> [u8; LEN] {
    *bytes[at..].first_chunk().expect("the part lies inside")
}

/// The tuple of every frame that [`common`] leaves.
#[inline(never)]
pub(super) fn other(mut frame: &[u8], kind: HashKind) -> Tuple {
    const VLAN: EthernetProtocol = EthernetProtocol::Unknown(0x8100);
    const QINQ: EthernetProtocol = EthernetProtocol::Unknown(0x88a8);
    for tags_left in (0..=TAGS_MAX).rev() {
        let Ok(ethernet) = EthernetFrame::new_checked(frame) else { return Tuple::None };
        match ethernet.ethertype() {
            EthernetProtocol::Ipv4 => return ipv4(ethernet.payload(), kind),
            EthernetProtocol::Ipv6 => return ipv6(ethernet.payload(), kind),
            VLAN | QINQ if tags_left > 0 => frame = &frame[TAG_LEN..],
            _ => return Tuple::None,
        }
    }
    Tuple::None
}

fn ipv4(packet: &[u8], kind: HashKind) -> Tuple {
    let Ok(packet) = Ipv4Packet::new_checked(packet) else { return Tuple::None };
    if packet.version() != 4 {
        return Tuple::None;
    }
    let whole = !packet.more_frags() && packet.frag_offset() == 0;
    let ports = if whole { ports(packet.next_header(), packet.payload(), kind) } else { [0; PORTS_LEN] };
    let mut addresses = [0; 8];
    addresses[..4].copy_from_slice(&packet.src_addr().octets());
    addresses[4..].copy_from_slice(&packet.dst_addr().octets());
    Tuple::V4(Flow { addresses: [addresses], ports })
}

fn ipv6(packet: &[u8], kind: HashKind) -> Tuple {
    let Ok(packet) = Ipv6Packet::new_checked(packet) else { return Tuple::None };
    if packet.version() != 6 {
        return Tuple::None;
    }
    let (source, destination) = (packet.src_addr().octets(), packet.dst_addr().octets());
    let addresses = std::array::from_fn(|k| {
        let address = if k < 2 { &source } else { &destination };
        part(address, 8 * (k % 2))
    });
    let (mut protocol, mut payload) = (packet.next_header(), packet.payload());
    for _ in 0..EXTENSIONS_MAX {
        if !matches!(protocol, IpProtocol::HopByHop | IpProtocol::Ipv6Route | IpProtocol::Ipv6Opts) {
            break;
        }
        let Ok(extension) = Ipv6ExtHeader::new_checked(payload) else { break };
        protocol = extension.next_header();
        payload = &payload[8 * (usize::from(extension.header_len()) + 1)..];
    }
    Tuple::V6(Flow { addresses, ports: ports(protocol, payload, kind) })
}

/// Both ports, or zeros where they do not count.
fn ports(protocol: IpProtocol, payload: &[u8], kind: HashKind) -> [u8; PORTS_LEN] {
    match (kind, protocol, payload.first_chunk()) {
        (HashKind::FourTuple, IpProtocol::Tcp | IpProtocol::Udp, Some(bytes)) => *bytes,
        _ => [0; PORTS_LEN],
    }
}

#[cfg(test)]
#[path = "parse_tests.rs"]
mod tests;
