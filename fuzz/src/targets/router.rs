//! A router between two links, shown ARP, neighbour discovery, ICMP and packets to forward, right and spoiled.
//!
//! `etherparse` reads the frames that leave: a forwarded packet has one hop less, a right checksum, other link-layer addresses and is the
//! same otherwise; the router's own messages have right lengths and checksums, and quote the packet they are about. Packets to be forwarded
//! are forwarded, and questions to the router are answered.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use etherparse::checksum::Sum16BitWords;
use etherparse::{
    ArpHardwareId, ArpOperation, ArpPacket, ArpPacketSlice, EtherType, IpNumber, Ipv4Header, Ipv4HeaderSlice,
    Ipv6Header, Ipv6HeaderSlice,
};
use smoltcp::wire::EthernetAddress;
use weir_core::net::fragment::fit;
use weir_core::net::route::{Interface, Route};
use weir_core::net::router::{Router, RouterSettings, StaticNeighbour, Verdict};
use weir_core::packet::{Carried, Meta, Packet};

use crate::draw::Draw;
use crate::frames::{self, Ends, Frame, ethernet};

/// The addresses of the router.
const MACS: [[u8; 6]; 2] = [[2, 0, 0, 0, 0, 0x10], [2, 0, 0, 0, 0, 0x11]];
const OWN_V4: [Ipv4Addr; 2] = [Ipv4Addr::new(192, 168, 0, 1), Ipv4Addr::new(192, 168, 1, 1)];
const OWN_V6: [Ipv6Addr; 2] =
    [Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1), Ipv6Addr::new(0x2001, 0xdb8, 1, 0, 0, 0, 0, 1)];
const MTUS: [u16; 2] = [1500, 1280];
/// A station on each link; of the second one the address is known.
const A: [u8; 6] = [2, 0, 0, 0, 0, 0x0a];
const B: [u8; 6] = [2, 0, 0, 0, 0, 0x0b];
const A_V4: Ipv4Addr = Ipv4Addr::new(192, 168, 0, 2);
const B_V4: Ipv4Addr = Ipv4Addr::new(192, 168, 1, 2);
/// The address of a station behind B.
const FAR_V4: Ipv4Addr = Ipv4Addr::new(10, 1, 2, 3);
const A_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 2);
const B_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 1, 0, 0, 0, 0, 2);
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

const ENDS: Ends = Ends {
    macs: &[MACS[0], MACS[0], MACS[0], MACS[1], A, B, [0xff; 6], [0x33, 0x33, 0, 0, 0, 1]],
    v4: &[
        A_V4,
        A_V4,
        B_V4,
        FAR_V4,
        OWN_V4[0],
        OWN_V4[1],
        Ipv4Addr::new(192, 168, 0, 77),
        Ipv4Addr::new(192, 168, 1, 255),
        Ipv4Addr::new(172, 16, 0, 1),
        Ipv4Addr::new(224, 0, 0, 1),
        Ipv4Addr::BROADCAST,
    ],
    v6: &[A_V6, A_V6, B_V6, OWN_V6[0], OWN_V6[1], ALL_NODES, Ipv6Addr::UNSPECIFIED, Ipv6Addr::LOCALHOST],
    is_tagged: false,
};

/// Packets to forward, and those that cannot be.
pub fn routing(bytes: &[u8]) {
    run(bytes, |draw| {
        if draw.rarely(8) {
            return Sent::Raw(raw(draw));
        }
        let mut frame = frames::ip(draw, ENDS);
        if draw.flag() {
            // A frame that is forwarded.
            frame.bytes[..12].copy_from_slice(&[MACS[0], A].concat());
            return Sent::Whole(frame);
        }
        spoil(draw, &mut frame.bytes);
        Sent::Raw(frame.bytes)
    });
}

/// ARP and neighbour discovery.
pub fn resolving(bytes: &[u8]) {
    run(bytes, |draw| {
        let mut frame = match draw.below(4) {
            0 | 1 => arp(draw),
            2 => discovery(draw),
            _ => frames::ip(draw, ENDS).bytes,
        };
        if draw.rarely(3) {
            spoil(draw, &mut frame);
        }
        Sent::Raw(frame)
    });
}

/// Echo requests, and errors that must not be answered.
pub fn icmp(bytes: &[u8]) {
    run(bytes, |draw| {
        let mut frame = echo(draw);
        if draw.rarely(4) {
            spoil(draw, &mut frame);
        }
        Sent::Raw(frame)
    });
}

enum Sent {
    /// A frame as it was built, to the router and from A.
    Whole(Frame),
    /// Any bytes.
    Raw(Vec<u8>),
}

#[derive(Clone, Debug)]
pub(super) struct Pkt(pub(super) Vec<u8>, pub(super) Meta);

impl Packet for Pkt {
    fn len_bytes(&self) -> u32 {
        self.0.len() as u32
    }
    fn meta(&self) -> &Meta {
        &self.1
    }
    fn meta_mut(&mut self) -> &mut Meta {
        &mut self.1
    }
}

impl AsRef<[u8]> for Pkt {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl AsMut<[u8]> for Pkt {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

fn settings() -> RouterSettings {
    let interface = |at: usize| Interface {
        mac: EthernetAddress(MACS[at]),
        mtu_bytes: MTUS[at],
        addresses: vec![
            format!("{}/24", OWN_V4[at]).parse().expect("an address"),
            format!("{}/64", OWN_V6[at]).parse().expect("an address"),
        ],
    };
    let station = |address: IpAddr| StaticNeighbour { interface: 1, address, mac: EthernetAddress(B) };
    RouterSettings {
        interfaces: vec![interface(0), interface(1)],
        routes: vec![Route {
            destination: "10.0.0.0/8".parse().expect("a prefix"),
            interface: 1,
            gateway: Some(B_V4.into()),
        }],
        neighbours: vec![station(B_V4.into()), station(B_V6.into())],
        neighbours_max: 6,
        incomplete_max: 4,
        solicits_per_second: 20,
        solicits_burst: 4,
        held_max: 8,
        waiting_max: 3,
        errors_per_second: 10,
        errors_burst: 3,
        seed: 7,
        announces: false,
        host: None,
    }
}

fn run(bytes: &[u8], next: impl Fn(&mut Draw) -> Sent) {
    let mut draw = Draw::new(bytes);
    let mut router: Router<Pkt> = Router::new(settings(), 0).expect("a router");
    let mut held = 0;
    let mut now_ns = 0;
    for _ in 0..6 {
        if draw.is_empty() {
            break;
        }
        let (ingress, sent) = match next(&mut draw) {
            Sent::Whole(frame) => (0, Sent::Whole(frame)),
            raw => (u16::from(draw.rarely(4)), raw),
        };
        let (Sent::Whole(Frame { bytes: before, .. }) | Sent::Raw(before)) = &sent;
        let before = before.clone();
        let mut packets = [Pkt(before.clone(), Meta::default())];
        let mut verdict = [Verdict::Local];
        router.process(ingress, &mut packets, &Carried, now_ns, &mut verdict);
        let [after] = packets;
        assert_eq!(after.0.len(), before.len());
        if let Sent::Whole(frame) = &sent
            && goes_on(frame)
        {
            assert_eq!(verdict[0], Verdict::Forward(1), "{frame:02x?}");
        }
        look_at_made(&mut router, Some(&before));
        match verdict[0] {
            Verdict::Forward(egress) => look_at_sent(&before, &after.0, ingress, egress),
            Verdict::Fragment(egress) => {
                look_at_sent(&before, &after.0, ingress, egress);
                assert_eq!(fit(&after.0, MTUS[usize::from(egress)]), Ok(true));
            }
            Verdict::Hold(neighbour) => {
                look_at_ip(&before, &after.0);
                router.hold(neighbour, after);
                held += 1;
            }
            Verdict::Local => {}
            Verdict::Drop(_) => {}
        }
        now_ns += u64::from(draw.u8()) * 20_000_000;
        router.poll(now_ns);
        while let Some((packet, verdict)) = router.release(&Carried, now_ns) {
            held -= 1;
            if let Verdict::Forward(egress) = verdict {
                assert_eq!(packet.0[6..12], MACS[usize::from(egress)]);
            }
            look_at_made(&mut router, None);
        }
        look_at_made(&mut router, None);
        assert_eq!(router.held().packets, held);
    }
}

/// Returns whether a packet from A, as it was built, is forwarded.
fn goes_on(frame: &Frame) -> bool {
    let said = &frame.said;
    let known = match (said.source, said.destination) {
        (IpAddr::V4(from), IpAddr::V4(to)) => from == A_V4 && [B_V4, FAR_V4].contains(&to),
        (IpAddr::V6(from), IpAddr::V6(to)) => from == A_V6 && to == B_V6,
        _ => false,
    };
    known && said.hop_limit > 1 && frame.ip_len <= usize::from(MTUS[1])
}

/// Checks a frame that leaves, beside the one that came in.
fn look_at_sent(before: &[u8], after: &[u8], ingress: u16, egress: u16) {
    assert!(egress < 2);
    assert_eq!(after[6..12], MACS[usize::from(egress)]);
    assert_eq!(after[0] & 1, 0, "never to a group: {after:02x?}");
    assert_eq!(before[..6], MACS[usize::from(ingress)], "it was for the router");
    look_at_ip(before, after);
}

/// Checks a forwarded packet, or the answer to an echo request.
fn look_at_ip(before: &[u8], after: &[u8]) {
    assert_eq!(before[12..14], after[12..14]);
    let (old, new) = (&before[14..], &after[14..]);
    if before[12] == 0x08 {
        let (was, is) = (v4(old), v4(new));
        assert_eq!(is.to_header().calc_header_checksum(), is.header_checksum(), "{after:02x?}");
        let len = is.slice().len();
        if was.source() == is.source() {
            assert!(was.ttl() > 1 && is.ttl() == was.ttl() - 1);
            let mut expected = was.to_header();
            (expected.time_to_live, expected.header_checksum) = (is.ttl(), is.header_checksum());
            assert_eq!((is.to_header(), &new[len..]), (expected, &old[len..]));
        } else {
            assert_eq!((is.source(), is.destination()), (was.destination(), was.source()));
            let end = usize::from(is.total_len());
            assert_eq!((new[len], sum(&new[len..end])), (0, 0), "{after:02x?}");
            assert_eq!((old[len], &new[len + 4..]), (8, &old[len + 4..]));
        }
    } else {
        let (was, is) = (v6(old), v6(new));
        if was.source() == is.source() {
            assert!(was.hop_limit() > 1 && is.hop_limit() == was.hop_limit() - 1);
            let expected = Ipv6Header { hop_limit: is.hop_limit(), ..was.to_header() };
            assert_eq!((is.to_header(), &new[40..]), (expected, &old[40..]));
        } else {
            assert_eq!((is.source(), is.destination()), (was.destination(), was.source()));
            let end = 40 + usize::from(is.payload_length());
            assert_eq!((new[40], sum_v6(&is, &new[40..end])), (129, 0), "{after:02x?}");
            assert_eq!((old[40], &new[44..]), (128, &old[44..]));
        }
    }
}

/// Checks the router's own messages; `about` is the frame it has just seen.
fn look_at_made(router: &mut Router<Pkt>, about: Option<&[u8]>) {
    while let Some((egress, frame)) = router.made() {
        assert!(egress < 2);
        assert_eq!(frame[6..12], MACS[usize::from(egress)]);
        let payload = &frame[14..];
        match u16::from_be_bytes([frame[12], frame[13]]) {
            0x0806 => {
                let message = ArpPacketSlice::from_slice(payload).expect("ARP").to_packet();
                let own = message.sender_protocol_addr() == OWN_V4[usize::from(egress)].octets();
                assert!(own && message.sender_hw_addr() == MACS[usize::from(egress)], "{frame:02x?}");
                assert_eq!(payload.len(), 28);
            }
            0x0800 => {
                let ip = v4(payload);
                assert_eq!(ip.to_header().calc_header_checksum(), ip.header_checksum());
                assert_eq!(usize::from(ip.total_len()), payload.len());
                let icmp = &payload[20..];
                assert!(payload.len() <= 576 && ip.protocol() == IpNumber::ICMP && matches!(icmp[0], 3 | 11));
                assert_eq!(sum(icmp), 0, "{frame:02x?}");
                look_at_quote_v4(&icmp[8..], ip.destination(), about);
            }
            0x86dd => {
                let ip = v6(payload);
                assert_eq!(usize::from(ip.payload_length()) + 40, payload.len());
                let icmp = &payload[40..];
                assert!(payload.len() <= 1280 && ip.next_header() == IpNumber::IPV6_ICMP);
                assert_eq!(sum_v6(&ip, icmp), 0, "{frame:02x?}");
                match icmp[0] {
                    135 | 136 => assert_eq!((ip.hop_limit(), icmp.len()), (255, 32)),
                    1..=3 => look_at_quote_v6(&icmp[8..], ip.destination(), about),
                    4 => {
                        assert_eq!((icmp[1], &icmp[4..8]), (1, &[0, 0, 0, 6][..]));
                        look_at_quote_v6(&icmp[8..], ip.destination(), about);
                    }
                    other => panic!("ICMPv6 {other}: {frame:02x?}"),
                }
            }
            other => panic!("ethertype {other:04x}"),
        }
    }
}

fn look_at_quote_v4(quote: &[u8], to: [u8; 4], about: Option<&[u8]>) {
    let header = v4(quote);
    assert_eq!(header.source(), to);
    assert_eq!(header.fragments_offset().value(), 0, "about a piece that is not the first");
    assert!(!header.destination_addr().is_multicast() && !header.destination_addr().is_broadcast());
    if header.protocol() == IpNumber::ICMP {
        let kind = quote.get(header.slice().len());
        assert!(matches!(kind, Some(0 | 8 | 13..=18)), "an error about an error: {quote:02x?}");
    }
    if let Some(frame) = about {
        assert_eq!((quote, frame[0] & 1), (&frame[14..14 + quote.len()], 0));
    }
}

fn look_at_quote_v6(quote: &[u8], to: [u8; 16], about: Option<&[u8]>) {
    let header = v6(quote);
    assert_eq!(header.source(), to);
    assert!(!header.destination_addr().is_multicast());
    if header.next_header() == IpNumber::IPV6_ICMP {
        assert!(matches!(quote.get(40), Some(128..)), "an error about an error: {quote:02x?}");
    }
    if let Some(frame) = about {
        assert_eq!((quote, frame[0] & 1), (&frame[14..14 + quote.len()], 0));
    }
}

fn v4(packet: &[u8]) -> Ipv4HeaderSlice<'_> {
    Ipv4HeaderSlice::from_slice(packet).unwrap_or_else(|error| panic!("{error}: {packet:02x?}"))
}

fn v6(packet: &[u8]) -> Ipv6HeaderSlice<'_> {
    Ipv6HeaderSlice::from_slice(packet).unwrap_or_else(|error| panic!("{error}: {packet:02x?}"))
}

/// The sum of a message; 0 if its checksum is right.
fn sum(message: &[u8]) -> u16 {
    Sum16BitWords::new().add_slice(message).ones_complement()
}

/// The sum of a message with IPv6's pseudo-header.
fn sum_v6(ip: &Ipv6HeaderSlice, message: &[u8]) -> u16 {
    let (len, next) = ((message.len() as u32).to_be_bytes(), [0, IpNumber::IPV6_ICMP.0]);
    let mut sum = Sum16BitWords::new().add_2bytes(next);
    sum = sum.add_4bytes(len);
    sum = sum.add_16bytes(ip.source());
    sum = sum.add_16bytes(ip.destination());
    sum.add_slice(message).ones_complement()
}

fn raw(draw: &mut Draw) -> Vec<u8> {
    let len = draw.below(90);
    let mut frame =
        ethernet(frames::mac(draw, ENDS), A, EtherType(draw.pick(&[0x0800, 0x86dd, 0x0806, 0x8100])), &[]);
    frame.extend(draw.bytes(len));
    frame
}

fn spoil(draw: &mut Draw, frame: &mut Vec<u8>) {
    for _ in 0..draw.below(4) {
        let at = draw.below(frame.len().min(90));
        frame[at] = draw.u8();
    }
    if draw.rarely(3) {
        frame.truncate(draw.below(frame.len() + 1));
    }
}

fn arp(draw: &mut Draw) -> Vec<u8> {
    let address = |draw: &mut Draw| {
        draw.pick(&[A_V4, OWN_V4[0], OWN_V4[1], B_V4, Ipv4Addr::UNSPECIFIED, Ipv4Addr::new(192, 168, 0, 77)])
            .octets()
    };
    let operation = draw.pick(&[ArpOperation::REQUEST, ArpOperation::REPLY, ArpOperation(9)]);
    let message = ArpPacket::new(
        ArpHardwareId::ETHERNET,
        EtherType::IPV4,
        operation,
        &frames::mac(draw, ENDS),
        &address(draw),
        &frames::mac(draw, ENDS),
        &address(draw),
    );
    let message = message.expect("6 and 4 bytes").to_bytes();
    ethernet(frames::mac(draw, ENDS), frames::mac(draw, ENDS), EtherType::ARP, &message)
}

/// A solicitation or an advertisement.
fn discovery(draw: &mut Draw) -> Vec<u8> {
    let target = draw.pick(&[OWN_V6[0], OWN_V6[1], A_V6, B_V6, ALL_NODES]);
    let mut icmp = vec![draw.pick(&[135, 136]), 0, 0, 0, draw.u8(), 0, 0, 0];
    icmp.extend(target.octets());
    if !draw.rarely(4) {
        icmp.extend([draw.pick(&[1, 2]), 1]);
        icmp.extend(frames::mac(draw, ENDS));
    }
    let solicited = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00, 1);
    let to = draw.pick(&[OWN_V6[0], OWN_V6[1], ALL_NODES, solicited]);
    let from = draw.pick(&[A_V6, B_V6, Ipv6Addr::UNSPECIFIED]);
    icmp_v6(draw, from, to, 255, icmp)
}

/// ICMP of either family: mostly an echo request to an address of the router.
fn echo(draw: &mut Draw) -> Vec<u8> {
    let len = draw.below(40);
    if draw.flag() {
        let kind = draw.pick(&[128, 128, 128, 129, 1, 3, 137]);
        let icmp = [vec![kind, 0, 0, 0], draw.bytes(4 + len)].concat();
        let (from, to) = (draw.pick(ENDS.v6), draw.pick(&[OWN_V6[0], OWN_V6[1], ALL_NODES, B_V6]));
        let hop_limit = draw.pick(&[64, 255, 1, 0]);
        return icmp_v6(draw, from, to, hop_limit, icmp);
    }
    let kind = draw.pick(&[8, 8, 8, 0, 3, 11, 13]);
    let mut icmp = [vec![kind, 0, 0, 0], draw.bytes(4 + len)].concat();
    let checksum = sum(&icmp).to_ne_bytes();
    icmp[2..4].copy_from_slice(&checksum);
    if sum(&icmp) != 0 {
        icmp[2..4].reverse();
    }
    let (from, to) = (draw.pick(ENDS.v4), draw.pick(&[OWN_V4[0], OWN_V4[1], FAR_V4, B_V4]));
    let mut header = Ipv4Header::new(
        icmp.len() as u16,
        draw.pick(&[64, 1, 0]),
        IpNumber::ICMP,
        from.octets(),
        to.octets(),
    )
    .expect("short");
    if draw.rarely(4) {
        let words = draw.below(11);
        header.options = draw.bytes(4 * words)[..].try_into().expect("whole words");
        header.set_payload_len(icmp.len()).expect("short");
    }
    header.header_checksum = header.calc_header_checksum();
    let macs = (frames::mac(draw, ENDS), frames::mac(draw, ENDS));
    ethernet(macs.0, macs.1, EtherType::IPV4, &[&header.to_bytes()[..], &icmp].concat())
}

fn icmp_v6(draw: &mut Draw, from: Ipv6Addr, to: Ipv6Addr, hop_limit: u8, mut icmp: Vec<u8>) -> Vec<u8> {
    let header = Ipv6Header {
        payload_length: icmp.len() as u16,
        next_header: IpNumber::IPV6_ICMP,
        hop_limit,
        source: from.octets(),
        destination: to.octets(),
        ..Default::default()
    };
    let ip = header.to_bytes();
    let slice = v6(&ip);
    let checksum = sum_v6(&slice, &icmp).to_ne_bytes();
    icmp[2..4].copy_from_slice(&checksum);
    if sum_v6(&slice, &icmp) != 0 {
        icmp[2..4].reverse();
    }
    let macs = (frames::mac(draw, ENDS), frames::mac(draw, ENDS));
    ethernet(macs.0, macs.1, EtherType::IPV6, &[&ip[..], &icmp].concat())
}
