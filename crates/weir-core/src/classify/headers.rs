//! The fields of a frame's headers that a rule can ask for: addresses, protocol, ports, DSCP.
//!
//! Reads Ethernet, up to two VLAN tags, IPv4 or IPv6 with up to eight extension headers, and the first four bytes of TCP, UDP, UDP-Lite,
//! SCTP and DCCP. A field that is absent or cut short is `None`; no frame is ever refused here.
//!
//! Source: IEEE 802.1Q; RFC 791; RFC 8200 section 4; RFC 4302 section 2.2 (the odd one, counted in 4-byte
//! words).
//!
//! Limits: no ports for fragments but the first (they carry none; [`super::fragments`] has them go where the first went), nor for packets that are
//! inside a tunnel or encrypted.

use std::net::IpAddr;

use smoltcp::wire::{Ipv4Packet, Ipv6Packet};

/// Ethertype of IPv4.
pub const IPV4: u16 = 0x0800;
/// Ethertype of IPv6.
pub const IPV6: u16 = 0x86dd;

const VLAN_TAGS: [u16; 2] = [0x8100, 0x88a8];
const VLAN_TAGS_MAX: usize = 2;
const EXTENSIONS_MAX: usize = 8;

/// The parts of a packet's headers that rules match on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Headers {
    /// The IP header; `None` for a frame that is not IP.
    pub ip: Option<Ip>,
    /// Source and destination port.
    pub ports: Option<(u16, u16)>,
    /// The fragment of a datagram that the packet is; `None` if it is a whole one.
    pub fragment: Option<DatagramFragment>,
}

/// A part of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatagramFragment {
    /// The number that names the datagram among those of its ends: the one that its sender gave it, with the protocol above it in IPv4, as
    /// the numbers of each protocol are its own there.
    pub id: u32,
    /// True if it begins with the transport's header.
    pub is_first: bool,
}

/// The fields of the network header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ip {
    /// The source address.
    pub source: IpAddr,
    /// The destination address.
    pub destination: IpAddr,
    /// The transport's number, extension headers skipped.
    pub protocol: u8,
    /// Differentiated services code point, 0 to 63.
    pub dscp: u8,
}

impl Headers {
    /// Reads the headers of an Ethernet frame.
    pub fn parse(frame: &[u8]) -> Headers {
        match network_offset(frame) {
            Some((IPV4, offset)) => ipv4(&frame[offset..]),
            Some((IPV6, offset)) => ipv6(&frame[offset..]),
            _ => None,
        }
        .unwrap_or_default()
    }
}

/// The ethertype behind any VLAN tags, and the offset of that network header; at most the frame's length.
pub fn network_offset(frame: &[u8]) -> Option<(u16, usize)> {
    let mut offset = 12;
    for _ in 0..=VLAN_TAGS_MAX {
        let ethertype = u16_at(frame, offset)?;
        if !VLAN_TAGS.contains(&ethertype) {
            return Some((ethertype, offset + 2));
        }
        offset += 4;
    }
    None
}

fn ipv4(ip: &[u8]) -> Option<Headers> {
    let packet = Ipv4Packet::new_checked(ip).ok().filter(|packet| packet.version() == 4)?;
    let protocol = u8::from(packet.next_header());
    let payload = ip.get(packet.header_len().into()..packet.total_len().into())?;
    Some(Headers {
        ip: Some(Ip {
            source: packet.src_addr().into(),
            destination: packet.dst_addr().into(),
            protocol,
            dscp: packet.dscp(),
        }),
        ports: if packet.frag_offset() == 0 { ports(protocol, payload) } else { None },
        fragment: (packet.more_frags() || packet.frag_offset() > 0).then(|| DatagramFragment {
            id: u32::from(protocol) << 16 | u32::from(packet.ident()),
            is_first: packet.frag_offset() == 0,
        }),
    })
}

fn ipv6(ip: &[u8]) -> Option<Headers> {
    let packet = Ipv6Packet::new_checked(ip).ok().filter(|packet| packet.version() == 6)?;
    let (protocol, payload, fragment) = skip_extensions(packet.next_header().into(), packet.payload());
    Some(Headers {
        ip: Some(Ip {
            source: packet.src_addr().into(),
            destination: packet.dst_addr().into(),
            protocol,
            dscp: packet.traffic_class() >> 2,
        }),
        ports: payload.and_then(|payload| ports(protocol, payload)),
        fragment,
    })
}

/// The transport's number, its header unless that is missing or in another fragment, and the fragment that the packet is.
fn skip_extensions(mut next: u8, mut rest: &[u8]) -> (u8, Option<&[u8]>, Option<DatagramFragment>) {
    const HOP_BY_HOP: u8 = 0;
    const ROUTING: u8 = 43;
    const FRAGMENT: u8 = 44;
    const AUTHENTICATION: u8 = 51;
    const DESTINATION: u8 = 60;
    let mut fragment = None;
    for left in (0..=EXTENSIONS_MAX).rev() {
        let len = match (next, rest) {
            (HOP_BY_HOP | ROUTING | FRAGMENT | AUTHENTICATION | DESTINATION, _) if left == 0 => break,
            (HOP_BY_HOP | ROUTING | DESTINATION, &[_, units, ..]) => 8 + 8 * usize::from(units),
            // The header has a sequence number at least, so its length is never 0.
            (AUTHENTICATION, &[_, words, ..]) if words > 0 => 8 + 4 * usize::from(words),
            (FRAGMENT, &[transport, _, high, low, a, b, c, d, ..]) => {
                let (place, id) = (u16::from_be_bytes([high, low]), u32::from_be_bytes([a, b, c, d]));
                if place >> 3 > 0 {
                    return (transport, None, Some(DatagramFragment { id, is_first: false }));
                }
                if place & 1 == 1 {
                    fragment = Some(DatagramFragment { id, is_first: true });
                }
                8
            }
            (HOP_BY_HOP | ROUTING | FRAGMENT | AUTHENTICATION | DESTINATION, _) => {
                return (next, None, fragment);
            }
            _ => return (next, Some(rest), fragment),
        };
        let (Some(&transport), Some(behind)) = (rest.first(), rest.get(len..)) else {
            return (next, None, fragment);
        };
        (next, rest) = (transport, behind);
    }
    (next, None, fragment)
}

/// The source and the destination port, with which TCP, UDP, DCCP, SCTP and UDP-Lite all begin.
fn ports(protocol: u8, transport: &[u8]) -> Option<(u16, u16)> {
    has_ports(protocol).then(|| Some((u16_at(transport, 0)?, u16_at(transport, 2)?)))?
}

/// Returns whether the transport's header begins with two ports.
pub fn has_ports(protocol: u8) -> bool {
    matches!(protocol, 6 | 17 | 33 | 132 | 136)
}

fn u16_at(bytes: &[u8], offset: usize) -> Option<u16> {
    Some(u16::from_be_bytes([*bytes.get(offset)?, *bytes.get(offset + 1)?]))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use smoltcp::wire::{IpProtocol, Ipv4Address, Ipv6Address};

    use super::*;

    const SOURCE_PORT: u16 = 4000;
    const DESTINATION_PORT: u16 = 53;

    fn frame(tags: usize, ethertype: u16, payload: &[u8]) -> Vec<u8> {
        let mut frame = vec![0x02; 12];
        for tag in 0..tags {
            frame.extend(VLAN_TAGS[tag % 2].to_be_bytes());
            frame.extend([0, 1]);
        }
        frame.extend(ethertype.to_be_bytes());
        frame.extend(payload);
        frame
    }

    fn udp() -> Vec<u8> {
        [SOURCE_PORT.to_be_bytes(), DESTINATION_PORT.to_be_bytes(), [0, 8], [0, 0]].concat()
    }

    fn ipv4(frag_offset: u16) -> Vec<u8> {
        let mut bytes = vec![0; 28];
        let mut packet = Ipv4Packet::new_unchecked(&mut bytes[..]);
        packet.set_version(4);
        packet.set_header_len(20);
        packet.set_total_len(28);
        packet.set_dscp(46);
        packet.set_ecn(1);
        packet.set_frag_offset(frag_offset);
        packet.set_next_header(IpProtocol::Udp);
        packet.set_src_addr(Ipv4Address::new(10, 0, 0, 1));
        packet.set_dst_addr(Ipv4Address::new(192, 0, 2, 9));
        packet.payload_mut().copy_from_slice(&udp());
        bytes
    }

    fn ipv6(next: u8, payload: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; 40 + payload.len()];
        let mut packet = Ipv6Packet::new_unchecked(&mut bytes[..]);
        packet.set_version(6);
        packet.set_traffic_class(46 << 2 | 2);
        packet.set_payload_len(payload.len() as u16);
        packet.set_next_header(next.into());
        packet.set_src_addr(Ipv6Address::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1));
        packet.set_dst_addr(Ipv6Address::LOCALHOST);
        packet.payload_mut().copy_from_slice(payload);
        bytes
    }

    #[test]
    fn reads_ipv4_behind_any_tags() {
        for tags in 0..=2 {
            let headers = Headers::parse(&frame(tags, IPV4, &ipv4(0)));
            let ip = headers.ip.unwrap();
            assert_eq!(
                (ip.source, ip.destination),
                ("10.0.0.1".parse().unwrap(), "192.0.2.9".parse().unwrap())
            );
            assert_eq!((ip.protocol, ip.dscp), (17, 46));
            assert_eq!(headers.ports, Some((SOURCE_PORT, DESTINATION_PORT)));
        }
        assert_eq!(Headers::parse(&frame(3, IPV4, &ipv4(0))), Headers::default());
        let later = Headers::parse(&frame(0, IPV4, &ipv4(8)));
        assert_eq!(
            (later.ports, later.fragment),
            (None, Some(DatagramFragment { id: 17 << 16, is_first: false }))
        );
        assert_eq!(Headers::parse(&frame(0, 0x0806, &ipv4(0))), Headers::default(), "ARP is no IP");
    }

    #[test]
    fn reads_ipv6_behind_extension_headers() {
        let plain = Headers::parse(&frame(0, IPV6, &ipv6(17, &udp())));
        assert_eq!(plain.ip.unwrap().source, "2001:db8::1".parse::<IpAddr>().unwrap());
        assert_eq!(plain.ip.unwrap().dscp, 46);
        assert_eq!(plain.ports, Some((SOURCE_PORT, DESTINATION_PORT)));
        let hop_by_hop = [&[43, 1][..], &[0; 14]].concat();
        let routing = [&[51, 0][..], &[0; 6]].concat();
        let authentication = [&[44, 4][..], &[0; 22]].concat();
        let first_fragment = [17, 0, 0, 1, 0, 0, 0, 9];
        let chain = [&hop_by_hop[..], &routing, &authentication, &first_fragment, &udp()].concat();
        let first = Headers::parse(&frame(0, IPV6, &ipv6(0, &chain)));
        assert_eq!(first, Headers { fragment: Some(DatagramFragment { id: 9, is_first: true }), ..plain });
        let later_fragment = [&[17, 0, 0, 8, 0, 0, 0, 9][..], &udp()].concat();
        let headers = Headers::parse(&frame(0, IPV6, &ipv6(44, &later_fragment)));
        assert_eq!((headers.ip.unwrap().protocol, headers.ports), (17, None));
        assert_eq!(headers.fragment, Some(DatagramFragment { id: 9, is_first: false }));
        // A header behind that of the fragment is in the first alone, so the two show different protocols.
        let first = [&[60, 0, 0, 1, 0, 0, 0, 9][..], &[17, 0, 0, 0, 0, 0, 0, 0], &udp()].concat();
        let later = [60, 0, 0, 8, 0, 0, 0, 9];
        let both = [&first[..], &later].map(|payload| Headers::parse(&frame(0, IPV6, &ipv6(44, payload))));
        assert_eq!(both.map(|headers| headers.ip.unwrap().protocol), [17, 60]);
        assert_eq!(both.map(|headers| headers.fragment.unwrap().id), [9, 9]);
        let eight = [&[60, 0, 0, 0, 0, 0, 0, 0].repeat(7)[..], &[17, 0, 0, 0, 0, 0, 0, 0], &udp()].concat();
        assert_eq!(Headers::parse(&frame(0, IPV6, &ipv6(60, &eight))), plain, "as many as are stepped over");
        for (kind, cut_short) in [(51, &[17, 0, 0, 0, 0, 0, 0, 0][..]), (44, &[17, 0, 0, 8, 0, 0, 0])] {
            let headers = Headers::parse(&frame(0, IPV6, &ipv6(kind, cut_short)));
            assert_eq!((headers.ip.unwrap().protocol, headers.ports), (kind, None));
        }
        let endless = [60, 0, 0, 0, 0, 0, 0, 0].repeat(20);
        assert_eq!(Headers::parse(&frame(0, IPV6, &ipv6(60, &endless))).ports, None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_panic(
            bytes in prop::collection::vec(any::<u8>(), 0..120),
            ethertype in prop::sample::select(vec![IPV4, IPV6, 0x8100]),
            cut in 0usize..120,
        ) {
            Headers::parse(&bytes);
            Headers::parse(&frame(0, ethertype, &bytes));
            for whole in [frame(1, IPV4, &ipv4(0)), frame(1, IPV6, &ipv6(17, &udp()))] {
                let headers = Headers::parse(&whole[..cut.min(whole.len() - 1)]);
                prop_assert_eq!(headers.ports, None, "a length beyond the frame");
            }
        }
    }
}
