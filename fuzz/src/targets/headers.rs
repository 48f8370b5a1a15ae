//! Headers as steering and classification read them: with the fields that `etherparse` reads, of frames that it built and of any other.
//!
//! Steering and classification differ where they say so: steering gives ports to TCP and UDP alone, to no fragment, and steps over fewer
//! kinds of extension headers.

use std::net::IpAddr;

use etherparse::{EtherType, Ethernet2HeaderSlice, Ipv4HeaderSlice, Ipv6HeaderSlice};
use weir_core::classify::headers::{Headers, IPV4, IPV6, Ip, network_offset};
use weir_core::steer::parse::{EXTENSIONS_MAX, HashKind, TAGS_MAX, Tuple, tuple};

use crate::draw::Draw;
use crate::frames::{self, AUTHENTICATION, Ends, FRAGMENT, Frame};

const TCP: u8 = 6;
const UDP: u8 = 17;

/// The flow tuple that steering hashes.
pub fn steering(bytes: &[u8]) {
    let mut draw = Draw::new(bytes);
    if draw.rarely(3) {
        let frame = draw.rest();
        for kind in HashKind::ALL {
            assert_eq!(plain(tuple(frame, kind)), steered(frame, kind), "{frame:02x?}");
        }
        return;
    }
    let mut frame = frames::ip(&mut draw, Ends { is_tagged: true, ..Ends::default() });
    for kind in HashKind::ALL {
        let found = plain(tuple(&frame.bytes, kind));
        assert_eq!(found, steered(&frame.bytes, kind));
        assert_eq!(found, built(&frame, kind), "{frame:02x?}");
    }
    spoil(&mut draw, &mut frame.bytes);
    for kind in HashKind::ALL {
        assert_eq!(plain(tuple(&frame.bytes, kind)), steered(&frame.bytes, kind), "{frame:02x?}");
    }
}

/// The fields that filters match on.
pub fn classifying(bytes: &[u8]) {
    let mut draw = Draw::new(bytes);
    if draw.rarely(3) {
        return agree(draw.rest());
    }
    let mut frame = frames::ip(&mut draw, Ends { is_tagged: true, ..Ends::default() });
    let said = &frame.said;
    let found = Headers::parse(&frame.bytes);
    if said.tags > TAGS_MAX {
        assert_eq!(found, Headers::default());
    } else {
        assert_eq!(network_offset(&frame.bytes).map(|(_, at)| at), Some(frame.ip_at));
        let behind = said.extensions.len() <= EXTENSIONS_MAX;
        let ip = found.ip.expect("IP");
        assert_eq!((ip.source, ip.destination, ip.dscp), (said.source, said.destination, said.dscp));
        if behind {
            assert_eq!(ip.protocol, said.protocol, "{frame:02x?}");
        }
        assert_eq!(found.ports.map(|(from, to)| [from, to]), said.ports.filter(|_| behind), "{frame:02x?}");
    }
    agree(&frame.bytes);
    spoil(&mut draw, &mut frame.bytes);
    agree(&frame.bytes);
}

/// Changes a few bytes, and often the length.
fn spoil(draw: &mut Draw, frame: &mut Vec<u8>) {
    for _ in 0..draw.below(4) {
        // The place is among the headers.
        let at = draw.below(frame.len().min(80));
        frame[at] = draw.u8();
    }
    if draw.flag() {
        frame.truncate(draw.below(frame.len() + 1));
    }
}

/// Addresses and ports.
type Plain = Option<(IpAddr, IpAddr, [u8; 4])>;

fn plain(tuple: Tuple) -> Plain {
    match tuple {
        Tuple::None => None,
        Tuple::V4(flow) => {
            let [a, b, c, d, e, f, g, h] = flow.addresses[0];
            Some(([a, b, c, d].into(), [e, f, g, h].into(), flow.ports))
        }
        Tuple::V6(flow) => {
            let bytes = flow.addresses.concat();
            let half = |at: usize| <[u8; 16]>::try_from(&bytes[at..at + 16]).expect("sixteen").into();
            Some((half(0), half(16), flow.ports))
        }
    }
}

/// The tuple that steering must find in a frame that was built.
fn built(frame: &Frame, kind: HashKind) -> Plain {
    let said = &frame.said;
    if said.tags > TAGS_MAX {
        return None;
    }
    let steps_over_all = said.extensions.len() <= EXTENSIONS_MAX
        && !said.extensions.iter().any(|kind| [FRAGMENT, AUTHENTICATION].contains(kind));
    let counts = kind == HashKind::FourTuple
        && !said.is_fragment
        && steps_over_all
        && [TCP, UDP].contains(&said.protocol);
    let ports = said.ports.filter(|_| counts).map_or([0; 4], |[from, to]| {
        let ([a, b], [c, d]) = (from.to_be_bytes(), to.to_be_bytes());
        [a, b, c, d]
    });
    Some((said.source, said.destination, ports))
}

/// An IP packet as `etherparse` sees it: no longer than it claims.
enum Seen<'a> {
    V4(Ipv4HeaderSlice<'a>, &'a [u8]),
    V6(Ipv6HeaderSlice<'a>, &'a [u8]),
}

fn seen(frame: &[u8]) -> Option<Seen<'_>> {
    const TAGS: [EtherType; 2] = [EtherType::VLAN_TAGGED_FRAME, EtherType::PROVIDER_BRIDGING];
    let ethernet = Ethernet2HeaderSlice::from_slice(frame).ok()?;
    let (mut kind, mut rest) = (ethernet.ether_type(), frame.get(14..)?);
    for _ in 0..TAGS_MAX {
        if !TAGS.contains(&kind) {
            break;
        }
        let &[_, _, high, low, ref behind @ ..] = rest else { return None };
        (kind, rest) = (EtherType(u16::from_be_bytes([high, low])), behind);
    }
    match kind {
        EtherType::IPV4 => {
            let header = Ipv4HeaderSlice::from_slice(rest).ok()?;
            // This refuses a total length below the header's.
            let payload_len = usize::from(header.payload_len().ok()?);
            let payload = rest.get(header.slice().len()..)?.get(..payload_len)?;
            Some(Seen::V4(header, payload))
        }
        EtherType::IPV6 => {
            let header = Ipv6HeaderSlice::from_slice(rest).ok()?;
            let payload = rest.get(40..)?.get(..usize::from(header.payload_length()))?;
            Some(Seen::V6(header, payload))
        }
        _ => None,
    }
}

/// The tuple that steering must find in any frame.
fn steered(frame: &[u8], kind: HashKind) -> Plain {
    let ports = |protocol: u8, payload: &[u8]| match payload.first_chunk() {
        Some(ports) if kind == HashKind::FourTuple && [TCP, UDP].contains(&protocol) => *ports,
        _ => [0; 4],
    };
    Some(match seen(frame)? {
        Seen::V4(header, payload) => {
            let whole = !header.more_fragments() && header.fragments_offset().value() == 0;
            let ports = if whole { ports(header.protocol().0, payload) } else { [0; 4] };
            (header.source_addr().into(), header.destination_addr().into(), ports)
        }
        Seen::V6(header, mut payload) => {
            let mut protocol = header.next_header().0;
            for _ in 0..EXTENSIONS_MAX {
                if ![frames::HOP_BY_HOP, frames::ROUTING, frames::DESTINATION].contains(&protocol) {
                    break;
                }
                let Ok(extension) = etherparse::Ipv6RawExtHeaderSlice::from_slice(payload) else { break };
                protocol = extension.next_header().0;
                payload = &payload[extension.slice().len()..];
            }
            (header.source_addr().into(), header.destination_addr().into(), ports(protocol, payload))
        }
    })
}

/// Checks the fields that classification must find in any frame, as far as a header is whole.
fn agree(frame: &[u8]) {
    let found = Headers::parse(frame);
    if let Some((kind, at)) = network_offset(frame) {
        assert!(at <= frame.len() && (found.ip.is_none() || [IPV4, IPV6].contains(&kind)));
    }
    let expected = seen(frame).map(|seen| match seen {
        Seen::V4(header, _) => Ip {
            source: header.source_addr().into(),
            destination: header.destination_addr().into(),
            protocol: header.protocol().0,
            dscp: header.dcp().value(),
        },
        Seen::V6(header, payload) => Ip {
            source: header.source_addr().into(),
            destination: header.destination_addr().into(),
            protocol: last_protocol(header.next_header().0, payload),
            dscp: header.dscp().value(),
        },
    });
    assert_eq!(found.ip, expected, "{frame:02x?}");
    assert!(found.ports.is_none() || found.ip.is_some());
    if let Some((from, to)) = found.ports {
        // The ports are bytes of this frame, inside the length that the packet claims.
        let Some(Seen::V4(_, payload) | Seen::V6(_, payload)) = seen(frame) else {
            panic!("ports of no packet")
        };
        let bytes = [from.to_be_bytes(), to.to_be_bytes()].concat();
        assert!(payload.windows(4).any(|window| window == bytes), "{frame:02x?}");
    }
}

/// The number behind the extension headers that are whole.
fn last_protocol(mut kind: u8, mut payload: &[u8]) -> u8 {
    use etherparse::{IpAuthHeaderSlice, Ipv6FragmentHeaderSlice, Ipv6RawExtHeaderSlice};
    for _ in 0..EXTENSIONS_MAX {
        let (next, len) = match kind {
            frames::HOP_BY_HOP | frames::ROUTING | frames::DESTINATION => {
                let Ok(header) = Ipv6RawExtHeaderSlice::from_slice(payload) else { break };
                (header.next_header().0, header.slice().len())
            }
            AUTHENTICATION => {
                // `etherparse` refuses one without the 4 bytes of its sequence number.
                match IpAuthHeaderSlice::from_slice(payload) {
                    Ok(header) => (header.next_header().0, header.slice().len()),
                    Err(_) => break,
                }
            }
            FRAGMENT => {
                let Ok(header) = Ipv6FragmentHeaderSlice::from_slice(payload) else { break };
                if header.fragment_offset().value() != 0 {
                    return header.next_header().0;
                }
                (header.next_header().0, header.slice().len())
            }
            _ => break,
        };
        (kind, payload) = (next, &payload[len..]);
    }
    kind
}
