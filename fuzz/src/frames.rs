//! Frames as `etherparse` builds them, drawn from an input, with their fields beside them.
//!
//! Everything that a frame of today's networks may have: up to three VLAN tags, IPv4 with options and in fragments, IPv6 with
//! extension headers in any order, transports with and without ports, padding behind the packet. Checksums are right.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use etherparse::{
    EtherType, Ethernet2Header, IpAuthHeader, IpFragOffset, IpNumber, Ipv4Header, Ipv6FragmentHeader,
    Ipv6Header, Ipv6RawExtHeader, SingleVlanHeader, TcpHeader, UdpHeader, VlanId,
};

use crate::draw::Draw;

/// The addresses that a frame may be from and to; any address where a list is empty.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ends<'a> {
    /// Link-layer addresses.
    pub macs: &'a [[u8; 6]],
    /// IPv4 addresses.
    pub v4: &'a [Ipv4Addr],
    /// IPv6 addresses.
    pub v6: &'a [Ipv6Addr],
    /// True if there are VLAN tags.
    pub is_tagged: bool,
}

/// A frame.
#[derive(Clone, Debug)]
pub struct Frame {
    /// The whole frame.
    pub bytes: Vec<u8>,
    /// The offset of its IP header.
    pub ip_at: usize,
    /// The length of its IP packet.
    pub ip_len: usize,
    /// Its fields.
    pub said: Said,
}

/// The fields of a frame.
#[derive(Clone, Debug)]
pub struct Said {
    /// VLAN tags before the packet.
    pub tags: usize,
    /// The source address.
    pub source: IpAddr,
    /// The destination address.
    pub destination: IpAddr,
    /// The transport's number.
    pub protocol: u8,
    /// Differentiated services code point.
    pub dscp: u8,
    /// The two bits of ECN.
    pub ecn: u8,
    /// Time to live, or hop limit.
    pub hop_limit: u8,
    /// Both ports, where the transport has them and they are in this packet.
    pub ports: Option<[u16; 2]>,
    /// True if it is a fragment, or a whole packet sent as a fragment.
    pub is_fragment: bool,
    /// The extension headers before the transport.
    pub extensions: Vec<u8>,
}

/// Numbers of the extension headers.
pub const HOP_BY_HOP: u8 = 0;
/// Routing.
pub const ROUTING: u8 = 43;
/// Fragment.
pub const FRAGMENT: u8 = 44;
/// Authentication.
pub const AUTHENTICATION: u8 = 51;
/// Destination options.
pub const DESTINATION: u8 = 60;

const TCP: u8 = 6;
const UDP: u8 = 17;
/// Transports that begin with two ports: TCP, UDP, DCCP, SCTP and UDP-Lite.
const WITH_PORTS: [u8; 5] = [TCP, UDP, 33, 132, 136];

/// An IP packet in a frame.
pub fn ip(draw: &mut Draw, ends: Ends) -> Frame {
    if draw.flag() { v4(draw, ends) } else { v6(draw, ends) }
}

fn v4(draw: &mut Draw, ends: Ends) -> Frame {
    let (source, destination) = (v4_address(draw, ends.v4), v4_address(draw, ends.v4));
    let (protocol, is_fragment) = (protocol(draw), draw.rarely(4));
    let offset = if is_fragment { draw.u16() & 0x1fff } else { 0 };
    let more = is_fragment && draw.flag();
    let is_first = offset == 0;
    let (transport, ports) = transport(draw, protocol, source.into(), destination.into());
    let mut header = Ipv4Header::new(
        transport.len() as u16,
        draw.u8(),
        IpNumber(protocol),
        source.octets(),
        destination.octets(),
    )
    .expect("a short payload");
    if draw.rarely(4) {
        let words = draw.below(11);
        header.options = draw.bytes(4 * words)[..].try_into().expect("whole words");
        header.set_payload_len(transport.len()).expect("short");
    }
    let (dscp, ecn) = (draw.u8() & 63, draw.u8() & 3);
    header.dscp = dscp.try_into().expect("six bits");
    header.ecn = ecn.try_into().expect("two bits");
    header.identification = draw.u16();
    header.dont_fragment = !more && draw.flag();
    header.more_fragments = more;
    header.fragment_offset = IpFragOffset::try_new(offset).expect("13 bits");
    header.header_checksum = header.calc_header_checksum();
    let said = Said {
        tags: 0,
        source: source.into(),
        destination: destination.into(),
        protocol,
        dscp,
        ecn,
        hop_limit: header.time_to_live,
        ports: ports.filter(|_| is_first),
        is_fragment: more || !is_first,
        extensions: Vec::new(),
    };
    frame(draw, ends, EtherType::IPV4, [&header.to_bytes()[..], &transport].concat(), said)
}

fn v6(draw: &mut Draw, ends: Ends) -> Frame {
    let (source, destination) = (v6_address(draw, ends.v6), v6_address(draw, ends.v6));
    let protocol = protocol(draw);
    let count = if draw.rarely(3) { draw.below(11) } else { 0 };
    let extensions: Vec<u8> = (0..count)
        .map(|_| draw.pick(&[HOP_BY_HOP, ROUTING, FRAGMENT, AUTHENTICATION, DESTINATION]))
        .collect();
    let (transport, ports) = transport(draw, protocol, source.into(), destination.into());
    let mut chain = Vec::new();
    let mut is_first = true;
    for (place, &kind) in extensions.iter().enumerate() {
        let next = IpNumber(extensions.get(place + 1).copied().unwrap_or(protocol));
        match kind {
            FRAGMENT => {
                let offset = if draw.rarely(3) { draw.u16() & 0x1fff } else { 0 };
                // The bytes behind a fragment header that is not the first are no headers: only the last header may be such.
                let offset = if place + 1 == extensions.len() { offset } else { 0 };
                is_first &= offset == 0;
                let offset = IpFragOffset::try_new(offset).expect("13 bits");
                chain.extend(Ipv6FragmentHeader::new(next, offset, draw.flag(), draw.u32()).to_bytes());
            }
            AUTHENTICATION => {
                // In IPv6 the header has a whole number of 8 bytes (RFC 4302 section 2.6).
                let words = 2 * draw.below(4) + 1;
                let icv = draw.bytes(4 * words);
                chain
                    .extend(IpAuthHeader::new(next, draw.u32(), draw.u32(), &icv).expect("short").to_bytes());
            }
            _ => {
                let units = draw.below(4);
                let options = draw.bytes(6 + 8 * units);
                chain.extend(Ipv6RawExtHeader::new_raw(next, &options).expect("short").to_bytes());
            }
        }
    }
    let (dscp, ecn, hop_limit) = (draw.u8() & 63, draw.u8() & 3, draw.u8());
    let header = Ipv6Header {
        traffic_class: dscp << 2 | ecn,
        flow_label: (draw.u32() & 0xf_ffff).try_into().expect("20 bits"),
        payload_length: (chain.len() + transport.len()) as u16,
        next_header: IpNumber(extensions.first().copied().unwrap_or(protocol)),
        hop_limit,
        source: source.octets(),
        destination: destination.octets(),
    };
    let said = Said {
        tags: 0,
        source: source.into(),
        destination: destination.into(),
        protocol,
        dscp,
        ecn,
        hop_limit,
        ports: ports.filter(|_| is_first),
        is_fragment: extensions.contains(&FRAGMENT),
        extensions,
    };
    frame(draw, ends, EtherType::IPV6, [&header.to_bytes()[..], &chain, &transport].concat(), said)
}

/// Puts a payload into a frame.
pub fn ethernet(to: [u8; 6], from: [u8; 6], ethertype: EtherType, payload: &[u8]) -> Vec<u8> {
    let header = Ethernet2Header { source: from, destination: to, ether_type: ethertype };
    [&header.to_bytes()[..], payload].concat()
}

/// A link-layer address, mostly one of the ends.
pub fn mac(draw: &mut Draw, ends: Ends) -> [u8; 6] {
    if ends.macs.is_empty() || draw.rarely(16) { draw.array() } else { draw.pick(ends.macs) }
}

fn frame(draw: &mut Draw, ends: Ends, ethertype: EtherType, packet: Vec<u8>, said: Said) -> Frame {
    let tags = if ends.is_tagged { draw.below(4) } else { 0 };
    let mut kinds = Vec::new();
    for _ in 0..tags {
        kinds.push(draw.pick(&[EtherType::VLAN_TAGGED_FRAME, EtherType::PROVIDER_BRIDGING]));
    }
    kinds.push(ethertype);
    let mut bytes = ethernet(mac(draw, ends), mac(draw, ends), kinds[0], &[]);
    for &ether_type in &kinds[1..] {
        let tag = SingleVlanHeader {
            vlan_id: VlanId::try_new(draw.u16() & 0xfff).expect("12 bits"),
            ether_type,
            ..Default::default()
        };
        bytes.extend(tag.to_bytes());
    }
    let ip_at = bytes.len();
    bytes.extend(&packet);
    if draw.rarely(4) {
        let padding = draw.below(46);
        bytes.extend(draw.bytes(padding));
    }
    Frame { bytes, ip_at, ip_len: packet.len(), said: Said { tags, ..said } }
}

fn protocol(draw: &mut Draw) -> u8 {
    // ICMP, GRE, ESP and ICMPv6 have no ports; 59 has nothing at all.
    draw.pick(&[TCP, UDP, TCP, UDP, TCP, UDP, 33, 132, 136, 1, 47, 50, 58, 59, 255])
}

/// A transport's bytes, and its ports where it has them.
fn transport(
    draw: &mut Draw,
    protocol: u8,
    source: IpAddr,
    destination: IpAddr,
) -> (Vec<u8>, Option<[u16; 2]>) {
    let len = if draw.rarely(8) { draw.below(1600) } else { draw.below(24) };
    let ports = [draw.u16(), draw.u16()];
    let (seen, hidden) = (draw.bytes(len.min(24)), vec![0x5a; len.saturating_sub(24)]);
    let payload = [seen, hidden].concat();
    let header = match protocol {
        UDP => {
            let [from, to] = ports;
            let header = match (source, destination) {
                (IpAddr::V4(a), IpAddr::V4(b)) => {
                    let ip = Ipv4Header::new(0, 0, IpNumber::UDP, a.octets(), b.octets()).expect("short");
                    UdpHeader::with_ipv4_checksum(from, to, &ip, &payload)
                }
                (IpAddr::V6(a), IpAddr::V6(b)) => {
                    let ip = Ipv6Header { source: a.octets(), destination: b.octets(), ..Default::default() };
                    UdpHeader::with_ipv6_checksum(from, to, &ip, &payload)
                }
                _ => unreachable!("both ends are of one family"),
            };
            header.expect("short").to_bytes().to_vec()
        }
        TCP => TcpHeader::new(ports[0], ports[1], draw.u32(), draw.u16()).to_bytes().to_vec(),
        _ if WITH_PORTS.contains(&protocol) => [ports[0].to_be_bytes(), ports[1].to_be_bytes()].concat(),
        _ => Vec::new(),
    };
    ([header, payload].concat(), WITH_PORTS.contains(&protocol).then_some(ports))
}

fn v4_address(draw: &mut Draw, all: &[Ipv4Addr]) -> Ipv4Addr {
    if all.is_empty() || draw.rarely(8) { draw.u32().into() } else { draw.pick(all) }
}

fn v6_address(draw: &mut Draw, all: &[Ipv6Addr]) -> Ipv6Addr {
    if all.is_empty() || draw.rarely(8) { draw.array::<16>().into() } else { draw.pick(all) }
}
