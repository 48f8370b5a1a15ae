//! A router between two links: golden frames, every rule of the table, and any bytes at all.

use std::net::{Ipv4Addr, Ipv6Addr};

use proptest::prelude::*;
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    ArpOperation, ArpPacket, EthernetAddress, EthernetFrame, EthernetProtocol, Icmpv4Packet, Icmpv6Packet,
    Icmpv6Repr, IpProtocol, Ipv4Packet, Ipv6Packet, NdiscNeighborFlags, NdiscRepr,
};

use super::*;
use crate::account::Account;
use crate::drops::Count;
use crate::net::resolve::{self, Speaker};
use crate::net::route::{Interface, Route};
use crate::packet::{Carried, Meta};

#[path = "router_duty_tests.rs"]
mod duties;
#[path = "router_neighbour_tests.rs"]
mod neighbours;
#[path = "router_scan_tests.rs"]
mod scan;

#[derive(Clone, Debug, PartialEq, Eq)]
struct Pkt(Vec<u8>);

impl Packet for Pkt {
    fn len_bytes(&self) -> u32 {
        self.0.len() as u32
    }
    fn meta(&self) -> &Meta {
        unreachable!("a router asks for none")
    }
    fn meta_mut(&mut self) -> &mut Meta {
        unreachable!("a router asks for none")
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

/// The router's two interfaces, and a station beyond each.
const R0: [u8; 6] = [2, 0, 0, 0, 0, 0x10];
const R1: [u8; 6] = [2, 0, 0, 0, 0, 0x11];
const A: [u8; 6] = [2, 0, 0, 0, 0, 0x0a];
const B: [u8; 6] = [2, 0, 0, 0, 0, 0x0b];
const S: u64 = 1_000_000_000;

fn v4(text: &str) -> Ipv4Addr {
    text.parse().expect("an address")
}

fn v6(text: &str) -> Ipv6Addr {
    text.parse().expect("an address")
}

fn settings() -> RouterSettings {
    let interface = |mac, mtu_bytes, addresses: [&str; 2]| Interface {
        mac: EthernetAddress(mac),
        mtu_bytes,
        addresses: addresses.iter().map(|text| text.parse().expect("an address")).collect(),
    };
    let station = |address: &str| StaticNeighbour {
        interface: 1,
        address: address.parse().expect("an address"),
        mac: EthernetAddress(B),
    };
    RouterSettings {
        interfaces: vec![
            interface(R0, 1500, ["192.168.0.1/24", "2001:db8::1/64"]),
            interface(R1, 1280, ["192.168.1.1/24", "2001:db8:1::1/64"]),
        ],
        routes: vec![Route {
            destination: "10.0.0.0/8".parse().expect("a prefix"),
            interface: 1,
            gateway: Some(IpAddr::from([192, 168, 1, 2])),
        }],
        neighbours: vec![station("192.168.1.2"), station("2001:db8:1::2")],
        neighbours_max: 16,
        incomplete_max: 16,
        solicits_per_second: 1000,
        solicits_burst: 64,
        held_max: 32,
        waiting_max: 4,
        errors_per_second: 10,
        errors_burst: 3,
        seed: 7,
        announces: false,
        host: None,
    }
}

fn router() -> Router<Pkt> {
    Router::new(settings(), 0).expect("a router")
}

fn ethernet(to: [u8; 6], from: [u8; 6], ethertype: EthernetProtocol, payload: &[u8]) -> Pkt {
    let mut bytes = vec![0; 14];
    resolve::ethernet(&mut bytes, to, from, ethertype);
    bytes.extend(payload);
    Pkt(bytes)
}

fn ip_v4(from: &str, to: &str, ttl: u8, protocol: u8, payload: &[u8]) -> Vec<u8> {
    let mut ip = vec![0; 20];
    ip.extend(payload);
    let mut packet = Ipv4Packet::new_unchecked(&mut ip);
    packet.set_version(4);
    packet.set_header_len(20);
    packet.set_total_len(20 + payload.len() as u16);
    packet.set_dont_frag(true);
    packet.set_hop_limit(ttl);
    packet.set_next_header(IpProtocol::from(protocol));
    packet.set_src_addr(v4(from));
    packet.set_dst_addr(v4(to));
    packet.fill_checksum();
    ip
}

fn ip_v6(from: &str, to: &str, hop_limit: u8, protocol: u8, payload: &[u8]) -> Vec<u8> {
    let mut ip = vec![0; 40];
    ip.extend(payload);
    let mut packet = Ipv6Packet::new_unchecked(&mut ip);
    packet.set_version(6);
    packet.set_payload_len(payload.len() as u16);
    packet.set_hop_limit(hop_limit);
    packet.set_next_header(IpProtocol::from(protocol));
    packet.set_src_addr(v6(from));
    packet.set_dst_addr(v6(to));
    ip
}

const UDP: u8 = 17;
const TCP: u8 = 6;

/// UDP from A's side.
fn from_a(to: &str, ttl: u8) -> Pkt {
    ethernet(R0, A, EthernetProtocol::Ipv4, &ip_v4("192.168.0.2", to, ttl, UDP, &[7; 40]))
}

fn from_a6(to: &str, hop_limit: u8) -> Pkt {
    ethernet(R0, A, EthernetProtocol::Ipv6, &ip_v6("2001:db8::2", to, hop_limit, UDP, &[7; 40]))
}

fn one(router: &mut Router<Pkt>, ingress: u16, packet: &mut Pkt, now_ns: u64) -> Verdict {
    let mut verdicts = [Verdict::Local];
    router.process(ingress, std::slice::from_mut(packet), &Carried, now_ns, &mut verdicts);
    verdicts[0]
}

fn made(router: &mut Router<Pkt>) -> Vec<(u16, Vec<u8>)> {
    std::iter::from_fn(|| router.made().map(|(port, bytes)| (port, bytes.to_vec()))).collect()
}

/// Offers a packet and holds it if the verdict is to hold.
fn offer(router: &mut Router<Pkt>, mut packet: Pkt, now_ns: u64) -> Verdict {
    let verdict = one(router, 0, &mut packet, now_ns);
    if let Verdict::Hold(neighbour) = verdict {
        router.hold(neighbour, packet);
    }
    verdict
}

/// Has the router hear of A, so that it can send A an error.
fn introduce_a(router: &mut Router<Pkt>) {
    let mut outbox = Outbox::new(2);
    resolve::ask_arp(
        &mut outbox,
        Speaker { interface: 0, mac: A, address: v4("192.168.0.2") },
        v4("192.168.0.1"),
        None,
    );
    let own = Speaker { interface: 0, mac: A, address: v6("2001:db8::2") };
    resolve::ask_nd(&mut outbox, own, v6("2001:db8::1"), None);
    while let Some((_, bytes)) = outbox.pop() {
        assert_eq!(one(router, 0, &mut Pkt(bytes.to_vec()), 0), Verdict::Local);
    }
    assert_eq!(made(router).len(), 2);
}

#[test]
fn golden_forwarded_frame() {
    // Written out by hand: UDP 192.168.0.2:5 > 192.168.1.2:6, TTL 64, and Ethernet's padding.
    let mut packet = Pkt(vec![
        0x02, 0, 0, 0, 0, 0x10, 0x02, 0, 0, 0, 0, 0x0a, 0x08, 0x00, //
        0x45, 0, 0, 29, 0x12, 0x34, 0, 0, 64, 17, 0xe6, 0x47, 192, 168, 0, 2, 192, 168, 1, 2, //
        0, 5, 0, 6, 0, 9, 0, 0, 0xaa, //
        0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    ]);
    let mut expected = packet.clone();
    expected.0[..12].copy_from_slice(&[0x02, 0, 0, 0, 0, 0x0b, 0x02, 0, 0, 0, 0, 0x11]);
    expected.0[22] = 63;
    expected.0[24..26].copy_from_slice(&[0xe7, 0x47]);
    assert_eq!(one(&mut router(), 0, &mut packet, 0), Verdict::Forward(1));
    assert_eq!(packet, expected);
}

#[test]
fn ipv6_is_forwarded_with_one_hop_less() {
    let mut packet = from_a6("2001:db8:1::2", 2);
    let mut expected = packet.clone();
    expected.0[..6].copy_from_slice(&B);
    expected.0[6..12].copy_from_slice(&R1);
    expected.0[21] = 1;
    assert_eq!(one(&mut router(), 0, &mut packet, 0), Verdict::Forward(1));
    assert_eq!(packet, expected);
}

#[test]
fn packets_wait_for_arp_and_leave_in_order() {
    let mut router = router();
    for ttl in [10, 20] {
        assert!(matches!(offer(&mut router, from_a("192.168.1.77", ttl), 0), Verdict::Hold(_)));
    }
    let golden_request = [
        0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 0x11, 0x08, 0x06, //
        0, 1, 0x08, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 0x11, 192, 168, 1, 1, 0, 0, 0, 0, 0, 0, 192, 168, 1, 77,
    ];
    assert_eq!(made(&mut router), [(1, golden_request.to_vec())]);
    assert_eq!(router.poll(S / 2), Some(S));
    assert!(router.release(&Carried, S / 2).is_none());
    let mut reply = golden_request.to_vec();
    reply[..6].copy_from_slice(&R1);
    reply[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 77]);
    reply[21] = 2;
    reply[22..28].copy_from_slice(&[2, 0, 0, 0, 0, 77]);
    reply[28..32].copy_from_slice(&[192, 168, 1, 77]);
    reply[32..38].copy_from_slice(&R1);
    reply[38..42].copy_from_slice(&[192, 168, 1, 1]);
    assert_eq!(one(&mut router, 1, &mut Pkt(reply), S / 2), Verdict::Local);
    for ttl in [9, 19] {
        let (packet, verdict) = router.release(&Carried, S / 2).expect("a packet");
        assert_eq!(verdict, Verdict::Forward(1));
        assert_eq!(packet.0[..12], [2, 0, 0, 0, 0, 77, 2, 0, 0, 0, 0, 0x11]);
        let ip = Ipv4Packet::new_checked(&packet.0[14..]).expect("IPv4");
        assert!(ip.verify_checksum() && ip.hop_limit() == ttl);
    }
    assert_eq!(router.held(), Count::default());
    assert_eq!(offer(&mut router, from_a("192.168.1.77", 5), S), Verdict::Forward(1));
}

#[test]
fn packets_wait_for_neighbour_discovery() {
    let mut router = router();
    let target = v6("2001:db8:1::77");
    assert!(matches!(offer(&mut router, from_a6("2001:db8:1::77", 9), 0), Verdict::Hold(_)));
    let questions = made(&mut router);
    let [(1, question)] = &questions[..] else { panic!("one question on interface 1: {questions:?}") };
    assert_eq!(question[..6], [0x33, 0x33, 0xff, 0, 0, 0x77]);
    let ip = Ipv6Packet::new_checked(&question[14..]).expect("IPv6");
    assert_eq!((ip.dst_addr(), ip.hop_limit()), (v6("ff02::1:ff00:77"), 255));
    let icmp = Icmpv6Packet::new_checked(ip.payload()).expect("ICMPv6");
    assert!(icmp.verify_checksum(&ip.src_addr(), &ip.dst_addr()));
    assert_eq!(icmp.target_addr(), target);
    let mut outbox = Outbox::new(1);
    let own = Speaker { interface: 1, mac: B, address: target };
    resolve::tell_nd(&mut outbox, own, Some((ip.src_addr(), R1)));
    let answer = outbox.pop().expect("an answer").1.to_vec();
    let mut forged = Pkt(answer.clone());
    forged.0[21] = 254;
    assert_eq!(one(&mut router, 1, &mut forged, 1), Verdict::Drop(DropReason::Malformed), "through a router");
    assert_eq!(one(&mut router, 1, &mut Pkt(answer), 1), Verdict::Local);
    let (packet, verdict) = router.release(&Carried, 1).expect("a packet");
    assert_eq!((verdict, &packet.0[..6], packet.0[21]), (Verdict::Forward(1), &B[..], 8));
}

/// Without an option that names a station's address, an advertisement's is its frame's own; a group's is no station's.
#[test]
fn a_group_is_not_learnt_from_an_advertisement() {
    let (station, ours) = (v6("2001:db8:1::77"), v6("2001:db8:1::1"));
    let advertisement = |from| {
        let message = Icmpv6Repr::Ndisc(NdiscRepr::NeighborAdvert {
            flags: NdiscNeighborFlags::SOLICITED,
            target_addr: station,
            lladdr: None,
        });
        let mut payload = vec![0; message.buffer_len()];
        let checksums = ChecksumCapabilities::default();
        message.emit(&station, &ours, &mut Icmpv6Packet::new_unchecked(&mut payload), &checksums);
        let icmp = u8::from(IpProtocol::Icmpv6);
        let ip = ip_v6("2001:db8:1::77", "2001:db8:1::1", 255, icmp, &payload);
        ethernet(R1, from, EthernetProtocol::Ipv6, &ip)
    };
    let mut router = router();
    assert!(matches!(offer(&mut router, from_a6("2001:db8:1::77", 9), 0), Verdict::Hold(_)));
    let group = [0x33, 0x33, 0, 0, 0, 1];
    let malformed = Verdict::Drop(DropReason::Malformed);
    assert_eq!(one(&mut router, 1, &mut advertisement(group), 1), malformed);
    assert!(router.release(&Carried, 1).is_none(), "it still waits");
    assert_eq!(one(&mut router, 1, &mut advertisement(B), 1), Verdict::Local);
    let (packet, verdict) = router.release(&Carried, 1).expect("a packet");
    assert_eq!((verdict, &packet.0[..6]), (Verdict::Forward(1), &B[..]));
}

/// By an interface with addresses of IPv4 alone IPv6 goes to a router that has a link-local address, as providers' routers do.
#[test]
fn ipv6_goes_by_an_interface_that_has_it_by_a_route_alone() {
    let mut settings = settings();
    settings.interfaces[1].addresses.truncate(1);
    settings.neighbours.truncate(1);
    let (destination, gateway) = ("::/0".parse().expect("a prefix"), Some(IpAddr::V6(v6("fe80::1"))));
    settings.routes.push(Route { destination, interface: 1, gateway });
    let mut router: Router<Pkt> = Router::new(settings, 0).expect("a router");
    assert!(matches!(offer(&mut router, from_a6("2001:db8:7::7", 9), 0), Verdict::Hold(_)));
    let questions = made(&mut router);
    let [(1, question)] = &questions[..] else { panic!("one question on interface 1: {questions:?}") };
    let ip = Ipv6Packet::new_checked(&question[14..]).expect("IPv6");
    assert_eq!((ip.src_addr(), ip.dst_addr()), (resolve::link_local(R1), v6("ff02::1:ff00:1")));
    let mut outbox = Outbox::new(2);
    let gateway = Speaker { interface: 1, mac: B, address: v6("fe80::1") };
    resolve::tell_nd(&mut outbox, gateway, Some((resolve::link_local(R1), R1)));
    resolve::ask_nd(&mut outbox, gateway, resolve::link_local(R1), None);
    while let Some((_, bytes)) = outbox.pop() {
        assert_eq!(one(&mut router, 1, &mut Pkt(bytes.to_vec()), 0), Verdict::Local);
    }
    assert_eq!(router.release(&Carried, 0).expect("a packet").1, Verdict::Forward(1));
    assert_eq!(made(&mut router).len(), 1, "the question for the router is answered");

    // A station beyond hears of the router's address that it can answer, not of the link-local one.
    let ip = ip_v6("2001:db8:7::7", "2001:db8::2", 1, UDP, &[7; 40]);
    let mut packet = ethernet(R1, B, EthernetProtocol::Ipv6, &ip);
    assert_eq!(one(&mut router, 1, &mut packet, 0), Verdict::Drop(DropReason::TtlExpired));
    let errors = made(&mut router);
    let ip = Ipv6Packet::new_checked(&errors[0].1[14..]).expect("IPv6");
    assert_eq!((ip.src_addr(), ip.dst_addr()), (v6("2001:db8::1"), v6("2001:db8:7::7")));
}

#[test]
fn a_neighbour_that_does_not_answer_drops_what_waits_and_its_sender_is_told() {
    let mut router = router();
    introduce_a(&mut router);
    for packet in [from_a("192.168.1.77", 10), from_a6("2001:db8:1::77", 10)] {
        assert!(matches!(offer(&mut router, packet, 0), Verdict::Hold(_)));
    }
    for second in 0..=3 {
        router.poll(second * S);
        assert_eq!(made(&mut router).len(), if second < 3 { 2 } else { 0 }, "three times each");
    }
    for _ in 0..2 {
        let (_, verdict) = router.release(&Carried, 3 * S).expect("a packet");
        assert_eq!(verdict, Verdict::Drop(DropReason::NoNeighbour));
    }
    assert!(router.release(&Carried, 3 * S).is_none());
    let errors = made(&mut router);
    assert_eq!(
        errors.iter().map(|(port, bytes)| (*port, bytes[..6] == A)).collect::<Vec<_>>(),
        [(0, true); 2]
    );
    assert_eq!((errors[0].1[34], errors[0].1[35]), (3, 1), "host unreachable");
    assert_eq!((errors[1].1[54], errors[1].1[55]), (1, 3), "address unreachable");
    assert_eq!(router.poll(100 * S), None);
}

/// The error of a kind and code about `packet`, with everything in it checked.
fn check_error(packet: &Pkt, error: &(u16, Vec<u8>), expected: (u8, u8)) {
    let (port, bytes) = error;
    assert_eq!(*port, 0);
    assert_eq!((&bytes[..6], &bytes[6..12]), (&A[..], &R0[..]));
    let quoted = if bytes[12] == 0x08 {
        let ip = Ipv4Packet::new_checked(&bytes[14..]).expect("IPv4");
        assert!(ip.verify_checksum() && usize::from(ip.total_len()) <= 576);
        // What is for the router itself is answered from the address that it was for.
        let was_for = Ipv4Packet::new_unchecked(&packet.0[14..]).dst_addr();
        let own = if matches!(expected, (3, 2 | 3)) { was_for } else { v4("192.168.0.1") };
        assert_eq!((ip.src_addr(), ip.dst_addr()), (own, v4("192.168.0.2")));
        let icmp = Icmpv4Packet::new_checked(ip.payload()).expect("ICMP");
        assert!(icmp.verify_checksum());
        assert_eq!((u8::from(icmp.msg_type()), icmp.msg_code()), expected);
        icmp.data().to_vec()
    } else {
        let ip = Ipv6Packet::new_checked(&bytes[14..]).expect("IPv6");
        assert!(ip.total_len() <= 1280);
        let was_for = Ipv6Packet::new_unchecked(&packet.0[14..]).dst_addr();
        let own = if matches!(expected, (1, 4) | (4, 1)) { was_for } else { v6("2001:db8::1") };
        assert_eq!((ip.src_addr(), ip.dst_addr()), (own, v6("2001:db8::2")));
        let icmp = Icmpv6Packet::new_checked(ip.payload()).expect("ICMPv6");
        assert!(icmp.verify_checksum(&ip.src_addr(), &ip.dst_addr()));
        assert_eq!((u8::from(icmp.msg_type()), icmp.msg_code()), expected);
        icmp.payload().to_vec()
    };
    assert_eq!(quoted, packet.0[14..14 + quoted.len()]);
}

#[test]
fn senders_are_told_what_went_wrong() {
    let long_v4 = ip_v4("192.168.0.2", "192.168.1.2", 9, UDP, &[1; 1300]);
    let long_v6 = ip_v6("2001:db8::2", "2001:db8:1::2", 9, UDP, &[1; 1300]);
    let tcp = ip_v4("192.168.0.2", "192.168.1.1", 9, TCP, &[1; 30]);
    let tcp_v6 = ip_v6("2001:db8::2", "2001:db8:1::1", 9, TCP, &[1; 30]);
    let cases = [
        (from_a("192.168.1.2", 1), DropReason::TtlExpired, (11, 0)),
        (from_a6("2001:db8:1::2", 1), DropReason::TtlExpired, (3, 0)),
        (from_a("8.8.8.8", 9), DropReason::NoRoute, (3, 0)),
        (from_a6("2001:db8:2::2", 9), DropReason::NoRoute, (1, 0)),
        (ethernet(R0, A, EthernetProtocol::Ipv4, &long_v4), DropReason::TooLong, (3, 4)),
        (ethernet(R0, A, EthernetProtocol::Ipv6, &long_v6), DropReason::TooLong, (2, 0)),
        (from_a("192.168.0.1", 9), DropReason::NoHandler, (3, 3)),
        (from_a6("2001:db8::1", 9), DropReason::NoHandler, (1, 4)),
        (from_a6("2001:db8:1::1", 9), DropReason::NoHandler, (1, 4)),
        (ethernet(R0, A, EthernetProtocol::Ipv4, &tcp), DropReason::NoHandler, (3, 2)),
        (ethernet(R0, A, EthernetProtocol::Ipv6, &tcp_v6), DropReason::NoHandler, (4, 1)),
    ];
    for (packet, reason, expected) in cases {
        let mut router = router();
        let mut sent = packet.clone();
        assert_eq!(one(&mut router, 0, &mut sent, 0), Verdict::Drop(reason), "{expected:?}");
        let errors = made(&mut router);
        assert_eq!(errors.len(), 1, "{expected:?}: to the station it came from, though unresolved");
        check_error(&packet, &errors[0], expected);
        if reason == DropReason::TooLong {
            let at = if expected == (3, 4) { 40 } else { 60 };
            assert_eq!(errors[0].1[at..at + 2], 1280u16.to_be_bytes(), "the way out's MTU");
        }
        if expected == (4, 1) {
            assert_eq!(errors[0].1[58..62], 6u32.to_be_bytes(), "where the fixed header names the protocol");
        }
        assert_eq!(router.counts().errors, 1);
    }
}

#[test]
fn errors_are_limited_and_never_about_errors_or_groups() {
    let mut router = router();
    let told = (0..10).filter(|_| {
        one(&mut router, 0, &mut from_a("192.168.1.2", 1), 5 * S);
        !made(&mut router).is_empty()
    });
    assert_eq!(told.count(), 3, "the burst");
    assert_eq!(router.counts().errors_limited, 7);
    one(&mut router, 0, &mut from_a("192.168.1.2", 1), 5 * S + S / 10);
    assert_eq!(made(&mut router).len(), 1, "ten a second");

    let unreachable = [3, 3, 0, 0, 0, 0, 0, 0];
    let silent = [
        ip_v4("192.168.0.2", "192.168.1.2", 1, 1, &unreachable),
        ip_v4("192.168.0.2", "192.168.1.255", 1, UDP, &[0; 8]),
        ip_v4("192.168.0.2", "224.0.0.9", 1, UDP, &[0; 8]),
    ];
    for ip in silent {
        let verdict = one(&mut router, 0, &mut ethernet(R0, A, EthernetProtocol::Ipv4, &ip), 60 * S);
        assert!(matches!(verdict, Verdict::Drop(_)));
        assert_eq!(made(&mut router), []);
    }
    let mut fragment = ip_v4("192.168.0.2", "192.168.1.2", 1, UDP, &[0; 8]);
    let mut packet = Ipv4Packet::new_unchecked(&mut fragment);
    packet.set_frag_offset(800);
    packet.fill_checksum();
    one(&mut router, 0, &mut ethernet(R0, A, EthernetProtocol::Ipv4, &fragment), 60 * S);
    assert_eq!(made(&mut router), []);
}

#[test]
fn echo_requests_are_answered() {
    let mut router = router();
    introduce_a(&mut router);
    let mut ping = vec![8, 0, 0, 0, 0x12, 0x34, 0, 1, 9, 9, 9];
    Icmpv4Packet::new_unchecked(&mut ping).fill_checksum();
    let ip = ip_v4("192.168.0.2", "192.168.1.1", 1, 1, &ping);
    let mut packet = ethernet(R0, A, EthernetProtocol::Ipv4, &ip);
    assert_eq!(one(&mut router, 0, &mut packet, 0), Verdict::Forward(0));
    let ip = Ipv4Packet::new_checked(&packet.0[14..]).expect("IPv4");
    let icmp = Icmpv4Packet::new_checked(ip.payload()).expect("ICMP");
    assert!(ip.verify_checksum() && icmp.verify_checksum());
    assert_eq!((ip.src_addr(), ip.dst_addr(), ip.hop_limit()), (v4("192.168.1.1"), v4("192.168.0.2"), 64));
    assert_eq!((u8::from(icmp.msg_type()), icmp.echo_ident(), icmp.data()), (0, 0x1234, &[9, 9, 9][..]));
    assert_eq!(packet.0[..12], [A, R0].concat());

    // The reply is zeros and nothing else, but for its checksum.
    let mut ping = vec![8, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    Icmpv4Packet::new_unchecked(&mut ping).fill_checksum();
    let ip = ip_v4("192.168.0.2", "192.168.1.1", 1, 1, &ping);
    let mut packet = ethernet(R0, A, EthernetProtocol::Ipv4, &ip);
    assert_eq!(one(&mut router, 0, &mut packet, 0), Verdict::Forward(0));
    assert_eq!(packet.0[34..44], [0, 0, 0xff, 0xff, 0, 0, 0, 0, 0, 0]);

    for (from, to) in [("2001:db8::2", "2001:db8:1::1"), ("fe80::2", "fe80::10")] {
        let to = if to == "fe80::10" { resolve::link_local(R0).to_string() } else { to.to_string() };
        let mut ping = vec![128, 0, 0, 0, 0x12, 0x34, 0, 1, 9, 9, 9];
        Icmpv6Packet::new_unchecked(&mut ping).fill_checksum(&v6(from), &v6(&to));
        let mut packet = ethernet(R0, A, EthernetProtocol::Ipv6, &ip_v6(from, &to, 64, 58, &ping));
        let verdict = one(&mut router, 0, &mut packet, 0);
        // A's link-local address is still to be asked for.
        let waits = matches!(verdict, Verdict::Hold(_));
        assert!(if from == "fe80::2" { waits } else { verdict == Verdict::Forward(0) }, "{verdict:?}");
        let ip = Ipv6Packet::new_checked(&packet.0[14..]).expect("IPv6");
        let icmp = Icmpv6Packet::new_checked(ip.payload()).expect("ICMPv6");
        assert!(icmp.verify_checksum(&ip.src_addr(), &ip.dst_addr()));
        assert_eq!((ip.dst_addr(), u8::from(icmp.msg_type())), (v6(from), 129));
    }
    assert_eq!(router.counts().echoes, 4);
}

#[test]
fn what_must_not_be_forwarded_is_not() {
    let v4_frame = |to_mac, from: &str, to: &str| {
        ethernet(to_mac, A, EthernetProtocol::Ipv4, &ip_v4(from, to, 9, UDP, &[0; 8]))
    };
    let v6_frame =
        |from: &str, to: &str| ethernet(R0, A, EthernetProtocol::Ipv6, &ip_v6(from, to, 9, UDP, &[0; 8]));
    let martian = Verdict::Drop(DropReason::Martian);
    let no_handler = Verdict::Drop(DropReason::NoHandler);
    let mut broken = from_a("192.168.1.2", 9);
    broken.0[25] ^= 1;
    let mut cut = from_a("192.168.1.2", 9);
    cut.0.truncate(60);
    let mut tagged = from_a("192.168.1.2", 9);
    tagged.0[12] = 0x81;
    let cases = [
        (v4_frame(B, "192.168.0.2", "192.168.1.2"), Verdict::Drop(DropReason::NotForUs)),
        (v4_frame([0xff; 6], "192.168.0.2", "192.168.1.2"), martian),
        (v4_frame(R0, "127.0.0.1", "192.168.1.2"), martian),
        (v4_frame(R0, "0.0.0.0", "192.168.1.2"), martian),
        (v4_frame(R0, "224.0.0.1", "192.168.1.2"), martian),
        (v4_frame(R0, "255.255.255.255", "192.168.1.2"), martian),
        (v4_frame(R0, "169.254.3.4", "192.168.1.2"), martian),
        (v4_frame(R0, "192.168.1.1", "192.168.1.2"), martian),
        (v4_frame(R0, "192.168.0.2", "127.0.0.1"), martian),
        (v4_frame(R0, "192.168.0.2", "192.168.1.255"), no_handler),
        (v4_frame(R0, "192.168.0.2", "224.0.0.5"), no_handler),
        (v6_frame("::1", "2001:db8:1::2"), martian),
        (v6_frame("::", "2001:db8:1::2"), martian),
        (v6_frame("ff02::1", "2001:db8:1::2"), martian),
        (v6_frame("fe80::2", "2001:db8:1::2"), martian),
        (v6_frame("2001:db8::2", "fe80::77"), martian),
        (v6_frame("2001:db8::2", "ff05::77"), no_handler),
        (broken, Verdict::Drop(DropReason::BadChecksum)),
        (cut, Verdict::Drop(DropReason::Malformed)),
        (tagged, no_handler),
    ];
    for (mut packet, expected) in cases {
        assert_eq!(one(&mut router(), 0, &mut packet, 0), expected, "{packet:?}");
    }
    assert_eq!(one(&mut router(), 0, &mut from_a("10.1.2.3", 9), 0), Verdict::Forward(1), "by the gateway");
}

#[test]
fn bad_settings_are_named() {
    let mut few = settings();
    few.neighbours_max = 1;
    let error = Router::<Pkt>::new(few, 0).expect_err("too few places");
    assert_eq!(error.to_string(), "neighbour 2001:db8:1::2: no room for it; raise neighbours_max");
    let mut nowhere = settings();
    nowhere.neighbours[0].interface = 2;
    let error = Router::<Pkt>::new(nowhere, 0).expect_err("no interface");
    assert_eq!(error.to_string(), "neighbour 192.168.1.2: there is no interface 2");
}

/// Frames of a router's traffic, to be damaged.
fn frames() -> impl Strategy<Value = Vec<u8>> {
    let mut known = vec![
        from_a("192.168.1.2", 9).0,
        from_a("192.168.1.77", 9).0,
        from_a("192.168.1.78", 1).0,
        from_a("192.168.0.1", 9).0,
        from_a6("2001:db8:1::2", 9).0,
        from_a6("2001:db8:1::77", 9).0,
        from_a6("2001:db8::1", 9).0,
        ethernet(
            R0,
            A,
            EthernetProtocol::Ipv4,
            &ip_v4("192.168.0.2", "192.168.0.1", 9, 1, &[8, 0, 0xf7, 0xff, 0, 0, 0, 0]),
        )
        .0,
    ];
    let mut outbox = Outbox::new(4);
    let own = Speaker { interface: 0, mac: B, address: v4("192.168.1.77") };
    resolve::ask_arp(&mut outbox, own, v4("192.168.1.1"), None);
    resolve::tell_arp(&mut outbox, own, v4("192.168.1.1"), R1);
    let own = Speaker { interface: 0, mac: B, address: v6("2001:db8:1::77") };
    resolve::ask_nd(&mut outbox, own, v6("2001:db8:1::1"), None);
    resolve::tell_nd(&mut outbox, own, Some((v6("2001:db8:1::1"), R1)));
    while let Some((_, bytes)) = outbox.pop() {
        known.push(bytes.to_vec());
    }
    let damage = prop::collection::vec((12usize..90, any::<u8>()), 0..3);
    let damaged = (prop::sample::select(known), damage, 0usize..120, any::<bool>());
    damaged.prop_map(|(mut frame, damage, len, repair)| {
        for (at, byte) in damage {
            if let Some(place) = frame.get_mut(at) {
                *place = byte;
            }
        }
        frame.truncate(len.max(14));
        if repair && frame[12..14] == [8, 0] && Ipv4Packet::new_checked(&frame[14..]).is_ok() {
            Ipv4Packet::new_unchecked(&mut frame[14..]).fill_checksum();
        }
        frame
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]
    /// Any frames: no panic, every packet is somewhere, and packets that leave have right checksums.
    #[test]
    fn any_frames(
        bursts in prop::collection::vec((0u16..2, prop::collection::vec(frames(), 0..16), 0u64..2 * S), 1..8),
    ) {
        let mut router = router();
        let (mut account, mut now_ns) = (Account::default(), 0);
        let settle = |account: &mut Account, packet: Pkt, verdict: Verdict| {
            match verdict {
                Verdict::Drop(reason) => account.drop(reason, packet.len_bytes()),
                Verdict::Local => account.deliver(packet.len_bytes()),
                Verdict::Hold(_) => unreachable!("held packets are not settled"),
                Verdict::Forward(interface) | Verdict::Fragment(interface) => {
                    account.deliver(packet.len_bytes());
                    let ethernet = EthernetFrame::new_checked(&packet.0).expect("a frame");
                    assert!(ethernet.dst_addr().is_unicast());
                    assert_eq!(ethernet.src_addr().0, [R0, R1][usize::from(interface)]);
                    if ethernet.ethertype() == EthernetProtocol::Ipv4 {
                        assert!(Ipv4Packet::new_checked(ethernet.payload()).expect("IPv4").verify_checksum());
                    }
                }
            }
        };
        for (ingress, frames, wait_ns) in bursts {
            now_ns += wait_ns;
            let mut packets: Vec<Pkt> = frames.into_iter().map(|mut frame| {
                if frame[0] & 1 == 0 {
                    frame[..6].copy_from_slice(&[R0, R1][usize::from(ingress)]);
                }
                Pkt(frame)
            }).collect();
            packets.iter().for_each(|packet| account.accept(packet.len_bytes()));
            let mut verdicts = [Verdict::Local; BURST_MAX];
            router.process(ingress, &mut packets, &Carried, now_ns, &mut verdicts);
            for (packet, verdict) in packets.into_iter().zip(verdicts) {
                match verdict {
                    Verdict::Hold(neighbour) => router.hold(neighbour, packet),
                    _ => settle(&mut account, packet, verdict),
                }
            }
            prop_assert!(account.balances(router.held()));
            while let Some((packet, verdict)) = router.release(&Carried, now_ns) {
                settle(&mut account, packet, verdict);
            }
            prop_assert!(account.balances(router.held()));
            for (_, bytes) in made(&mut router) {
                if bytes[12..14] == [8, 0] {
                    let ip = Ipv4Packet::new_checked(&bytes[14..]).expect("IPv4");
                    prop_assert!(ip.verify_checksum());
                    prop_assert!(Icmpv4Packet::new_checked(ip.payload()).expect("ICMP").verify_checksum());
                }
            }
        }
    }

    #[test]
    fn any_bytes(burst in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..100), 0..64)) {
        let mut packets: Vec<Pkt> = burst.into_iter().map(Pkt).collect();
        let mut verdicts = [Verdict::Local; BURST_MAX];
        router().process(0, &mut packets, &Carried, 0, &mut verdicts);
    }

    /// The one condition for nearly all packets and the rules one by one give the same verdicts.
    #[test]
    fn both_looks_at_a_frame_agree(mut frame in frames(), to_us in any::<bool>(), is_host in any::<bool>()) {
        if to_us {
            frame[..6].copy_from_slice(&R0);
        }
        let sources = Sources::new([[192, 168, 0, 1], [169, 254, 1, 1]].into(), is_host);
        let (mut at_once, mut by_rules) = ([0; 4], [0; 4]);
        let kind = inspect(&frame, R0, &sources, &mut at_once);
        prop_assert_eq!(kind, inspect::inspect_any(&frame, R0, &sources, &mut by_rules));
        prop_assert_eq!(at_once, by_rules);
    }

    /// A burst has the same verdicts as its packets one by one.
    #[test]
    fn a_burst_is_its_packets(bursts in prop::collection::vec(prop::collection::vec(frames(), 0..16), 1..4)) {
        let (mut together, mut apart) = (router(), router());
        for (frames, now_ns) in bursts.into_iter().zip((0..).map(|burst| burst * S / 2)) {
            let mut packets: Vec<Pkt> = frames.into_iter().map(|mut frame| {
                frame[..6].copy_from_slice(&R0);
                Pkt(frame)
            }).collect();
            let mut alone = packets.clone();
            let mut verdicts = [Verdict::Local; BURST_MAX];
            together.process(0, &mut packets, &Carried, now_ns, &mut verdicts);
            for (packet, verdict) in alone.iter_mut().zip(verdicts) {
                prop_assert_eq!(one(&mut apart, 0, packet, now_ns), verdict);
            }
            prop_assert_eq!(&packets, &alone);
            // A question that is answered within the burst is not sent.
            for router in [&mut together, &mut apart] {
                made(router);
            }
            prop_assert_eq!(together.counts(), apart.counts());
            for (packet, verdict) in packets.into_iter().zip(verdicts) {
                if let Verdict::Hold(neighbour) = verdict {
                    together.hold(neighbour, packet.clone());
                    apart.hold(neighbour, packet);
                }
            }
            loop {
                let released = (together.release(&Carried, now_ns), apart.release(&Carried, now_ns));
                prop_assert_eq!(&released.0, &released.1);
                if released.0.is_none() {
                    break;
                }
            }
        }
    }
}
