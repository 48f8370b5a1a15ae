//! The flow tuple of an Ethernet frame: what the Toeplitz hash is taken of.
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
//! Common frames (no IPv4 options, no extension headers) are recognised by a few masked compares on the first
//! 38 or 58 bytes, after one length check. The views of `smoltcp::wire` check a length again at each field
//! they read, which costs more than all the rest, so they serve the frames that the compares do not settle. A
//! tag only shifts the frame, so tagged frames take the same compares once it is off. Tests hold both ways to
//! the same answer.
//!
//! Source: Microsoft, "RSS Hashing Types"; RFC 791, RFC 8200 section 4; smoltcp's `wire`.
//!
//! Limits: a UDP flow that sends some datagrams whole and some in fragments has two tuples and so two
//! workers; set `rss.hash = "2-tuple"` where its order matters. Tunnels are steered by their outer header.

use smoltcp::wire::{EthernetFrame, EthernetProtocol, IpProtocol, Ipv4Packet, Ipv6ExtHeader, Ipv6Packet};

/// IPv6 extension headers that are stepped over before the ports are given up.
pub const EXTENSIONS_MAX: usize = 8;

/// VLAN tags that are stepped over.
pub const TAGS_MAX: usize = 2;

/// `rss.hash`: how much of a TCP or UDP packet makes its flow.
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
    /// None: nothing to hash.
    None,
    /// Source, destination, ports.
    V4([u32; 3]),
    /// Source (4 words), destination (4 words), ports.
    V6([u32; 9]),
}

/// The flow tuple of `frame`, an Ethernet frame without its check sequence.
#[inline]
pub fn tuple(frame: &[u8], kind: HashKind) -> Tuple {
    match common(frame, kind) {
        Some(tuple) => tuple,
        None => other(frame, kind),
    }
}

const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
const TCP: u8 = 6;
const UDP: u8 = 17;
const ETHERNET_LEN: usize = 14;
const IPV4_LEN: usize = 20;
const IPV6_LEN: usize = 40;
const PORTS_LEN: usize = 4;

/// An untagged TCP or UDP packet without options, extensions or fragmentation; `None` for everything else.
#[inline]
fn common(frame: &[u8], kind: HashKind) -> Option<Tuple> {
    let head: &[u8; ETHERNET_LEN + IPV4_LEN + PORTS_LEN] = frame.first_chunk()?;
    let ports_mask = match kind {
        HashKind::TwoTuple => 0,
        HashKind::FourTuple => u32::MAX,
    };
    match be16(head, 12) {
        IPV4 => {
            // Version 4 with a header of 5 words; more-fragments and offset zero; the protocol.
            let whole = be16(head, 20) & 0x3fff == 0;
            let total_len = usize::from(be16(head, 16));
            let fits = total_len >= IPV4_LEN + PORTS_LEN && total_len <= frame.len() - ETHERNET_LEN;
            (head[14] == 0x45 && whole && matches!(head[23], TCP | UDP) && fits)
                .then(|| Tuple::V4([ne32(head, 26), ne32(head, 30), ne32(head, 34) & ports_mask]))
        }
        IPV6 => {
            let head: &[u8; ETHERNET_LEN + IPV6_LEN + PORTS_LEN] = frame.first_chunk()?;
            let payload_len = usize::from(be16(head, 18));
            let fits = payload_len >= PORTS_LEN && payload_len <= frame.len() - ETHERNET_LEN - IPV6_LEN;
            (head[14] >> 4 == 6 && matches!(head[20], TCP | UDP) && fits).then(|| {
                let mut words: [u32; 9] = std::array::from_fn(|k| ne32(head, 22 + 4 * k));
                words[8] &= ports_mask;
                Tuple::V6(words)
            })
        }
        _ => None,
    }
}

fn be16<const LEN: usize>(bytes: &[u8; LEN], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn ne32<const LEN: usize>(bytes: &[u8; LEN], at: usize) -> u32 {
    u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// Every frame that [`common`] leaves.
#[inline(never)]
fn other(mut frame: &[u8], kind: HashKind) -> Tuple {
    const VLAN: EthernetProtocol = EthernetProtocol::Unknown(0x8100);
    const QINQ: EthernetProtocol = EthernetProtocol::Unknown(0x88a8);
    for tags_left in (0..=TAGS_MAX).rev() {
        let Ok(ethernet) = EthernetFrame::new_checked(frame) else { return Tuple::None };
        match ethernet.ethertype() {
            EthernetProtocol::Ipv4 => return ipv4(ethernet.payload(), kind),
            EthernetProtocol::Ipv6 => return ipv6(ethernet.payload(), kind),
            VLAN | QINQ if tags_left > 0 => {}
            _ => return Tuple::None,
        }
        // Without its tag the frame starts 4 bytes later: the next type is then where an untagged frame has it.
        frame = &frame[4..];
        if let Some(tuple) = common(frame, kind) {
            return tuple;
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
    let ports = if whole { ports(packet.next_header(), packet.payload(), kind) } else { 0 };
    Tuple::V4([
        u32::from_ne_bytes(packet.src_addr().octets()),
        u32::from_ne_bytes(packet.dst_addr().octets()),
        ports,
    ])
}

fn ipv6(packet: &[u8], kind: HashKind) -> Tuple {
    let Ok(packet) = Ipv6Packet::new_checked(packet) else { return Tuple::None };
    if packet.version() != 6 {
        return Tuple::None;
    }
    let (source, destination) = (packet.src_addr().octets(), packet.dst_addr().octets());
    let mut words: [u32; 9] = std::array::from_fn(|k| match k {
        0..4 => ne32(&source, 4 * k),
        4..8 => ne32(&destination, 4 * (k - 4)),
        _ => 0,
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
    words[8] = ports(protocol, payload, kind);
    Tuple::V6(words)
}

/// Both ports as one word, or 0 where they do not count.
fn ports(protocol: IpProtocol, payload: &[u8], kind: HashKind) -> u32 {
    match (kind, protocol, payload.first_chunk()) {
        (HashKind::FourTuple, IpProtocol::Tcp | IpProtocol::Udp, Some(bytes)) => u32::from_ne_bytes(*bytes),
        _ => 0,
    }
}

#[cfg(test)]
#[path = "parse_tests.rs"]
mod tests;
