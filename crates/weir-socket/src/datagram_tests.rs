//! Headers as another parser reads them, of datagrams that leave and of answers.

use proptest::prelude::*;
use smoltcp::wire::{
    EthernetFrame, EthernetProtocol, IpAddress, IpProtocol, Ipv4Packet, Ipv6Packet, UdpPacket,
};
use weir_core::net::icmp::{Fault, tell_sender};
use weir_ring::pool::Pool;

use super::*;
use crate::too_long::V4_MTU_MIN;

const FROM: [&str; 2] = ["192.0.2.1:4000", "[2001:db8::1]:4000"];
const TO: [&str; 2] = ["192.0.2.255:7", "[2001:db8::ffff]:7"];

fn at(text: &str) -> SocketAddr {
    text.parse().expect("an address")
}

/// A frame with headers before this payload.
fn written(from: SocketAddr, to: SocketAddr, payload: &[u8], ecn: u8) -> Vec<u8> {
    let mut frame = vec![0xee; headers_len(to.ip())];
    frame.extend(payload);
    write_headers(&mut frame, from, to, ecn);
    frame
}

/// Asserts that a frame is such a datagram, all of its checksums right, and nothing else.
fn assert_is(frame: &[u8], from: SocketAddr, to: SocketAddr, payload: &[u8], codepoint: u8) {
    let ethernet = EthernetFrame::new_checked(frame).expect("Ethernet");
    let (addresses, udp): ([IpAddress; 2], &[u8]) = if to.is_ipv4() {
        assert_eq!(ethernet.ethertype(), EthernetProtocol::Ipv4);
        let ip = Ipv4Packet::new_checked(ethernet.payload()).expect("IPv4");
        assert!(ip.verify_checksum());
        assert_eq!((ip.header_len(), usize::from(ip.total_len())), (20, frame.len() - ETHERNET_LEN));
        assert_eq!((ip.ident(), ip.dont_frag(), ip.more_frags(), ip.frag_offset()), (0, true, false, 0));
        assert_eq!((ip.dscp(), ip.ecn(), ip.hop_limit()), (0, codepoint, TTL));
        assert_eq!(ip.next_header(), IpProtocol::Udp);
        ([ip.src_addr().into(), ip.dst_addr().into()], ip.payload())
    } else {
        assert_eq!(ethernet.ethertype(), EthernetProtocol::Ipv6);
        let ip = Ipv6Packet::new_checked(ethernet.payload()).expect("IPv6");
        assert_eq!(usize::from(ip.payload_len()), frame.len() - ETHERNET_LEN - IPV6_LEN);
        assert_eq!((ip.traffic_class(), ip.flow_label(), ip.hop_limit()), (codepoint, 0, TTL));
        assert_eq!(ip.next_header(), IpProtocol::Udp);
        ([ip.src_addr().into(), ip.dst_addr().into()], ip.payload())
    };
    let udp = UdpPacket::new_checked(udp).expect("UDP");
    assert_ne!(udp.checksum(), 0, "there is a checksum");
    assert!(udp.verify_checksum(&addresses[0], &addresses[1]));
    assert_eq!(udp.payload(), payload);
    assert_eq!((ends(frame), ecn(frame)), ((from, to), codepoint));
    assert_eq!(&frame[payload_range(frame)], payload);
}

/// The answer to a received frame, whose payload is filled with `change` if there is one.
fn answer(frame: &[u8], change: Option<u8>, ecn: u8) -> Vec<u8> {
    let memory = FrameMemory::new(1, 2048).expect("memory");
    let mut pool = Pool::for_workers(memory, 1).remove(0);
    let memory = pool.memory().clone();
    // The packet lies behind a headroom, as a device leaves it.
    let mut packet = PathPacket::new(pool.take().expect("a frame"), 256, frame.len() as u16);
    packet.bytes_mut(&memory).copy_from_slice(frame);
    if let Some(byte) = change {
        let bytes = packet.bytes_mut(&memory);
        let range = payload_range(bytes);
        bytes[range].fill(byte);
    }
    turn_round(&mut packet, &memory, change.is_some(), ecn);
    let answer = packet.bytes(&memory).to_vec();
    pool.give(packet.frame);
    answer
}

proptest! {
    #[test]
    fn headers_are_those_that_another_parser_reads(
        payload in prop::collection::vec(any::<u8>(), 0..1400), ports in any::<[u16; 2]>(), ecn in 0u8..4
    ) {
        for (from, to) in FROM.into_iter().zip(TO) {
            let (mut from, mut to) = (at(from), at(to));
            from.set_port(ports[0]);
            to.set_port(ports[1]);
            assert_is(&written(from, to, &payload, ecn), from, to, &payload, ecn);
        }
    }

    /// An answer, with its own payload or the received one, and whatever the length of the frame in which the question came.
    #[test]
    fn an_answer_goes_back_with_what_is_there(
        payload in prop::collection::vec(any::<u8>(), 0..600), change in any::<Option<u8>>(),
        padding in 0usize..20, came_with in 0u8..4, ecn in 0u8..4,
    ) {
        for (from, to) in FROM.into_iter().zip(TO) {
            let (from, to) = (at(from), at(to));
            let mut frame = written(from, to, &payload, came_with);
            frame.extend(vec![0xee; padding]);
            let expected = change.map_or(payload.clone(), |byte| vec![byte; payload.len()]);
            assert_is(&answer(&frame, change, ecn), to, from, &expected, ecn);
        }
    }
}

#[test]
fn an_answer_has_a_checksum_where_the_question_had_none() {
    let (from, to) = (at(FROM[0]), at(TO[0]));
    let mut frame = written(from, to, b"without", 0);
    frame[V4_HEADERS - 2..V4_HEADERS].fill(0);
    assert_is(&answer(&frame, None, 0), to, from, b"without", 0);
}

#[test]
fn a_checksum_of_zero_is_written_as_all_ones() {
    let (from, to) = (at(FROM[0]), at(TO[0]));
    let sum_of = |payload: [u8; 2]| {
        let frame = written(from, to, &payload, 0);
        [frame[V4_HEADERS - 2], frame[V4_HEADERS - 1]]
    };
    // The payload is the checksum of a packet with zeros there, so that the sum is all ones, and the checksum zero.
    assert_eq!(sum_of(sum_of([0; 2])), [0xff; 2]);
}

#[test]
fn options_do_not_go_back() {
    let (from, to) = (at(FROM[0]), at(TO[0]));
    let whole = written(from, to, b"behind options", 0);
    let mut frame = whole[..ETHERNET_LEN + IPV4_LEN].to_vec();
    // Options that do nothing.
    frame.extend([1; 8]);
    frame.extend(&whole[ETHERNET_LEN + IPV4_LEN..]);
    let mut ip = Ipv4Packet::new_unchecked(&mut frame[ETHERNET_LEN..]);
    ip.set_header_len(28);
    ip.set_total_len((IPV4_LEN + 8 + UDP_LEN + 14) as u16);
    ip.fill_checksum();
    assert_is(&answer(&frame, None, 0), to, from, b"behind options", 0);
    assert_is(&answer(&frame, Some(7), 0), to, from, &[7; 14], 0);
}

#[test]
fn an_icmp_error_is_never_a_datagram() {
    for (from, to, router) in [
        ("192.0.2.1:7000", "198.51.100.1:9", "203.0.113.1"),
        ("[2001:db8::1]:7000", "[2001:db8:1::1]:9", "2001:db8:2::1"),
    ] {
        let frame = written(at(from), at(to), &[0; 1400], 0);
        let (to, router) = (at(to), router.parse().unwrap());
        assert_eq!(arrived(&frame), Arrived::Datagram);
        for (fault, expected) in [
            (Fault::NoPort, Arrived::Error(to, libc::ECONNREFUSED)),
            (Fault::TooLong(1300), Arrived::TooLong(to, 1300)),
            (Fault::NoRoute, Arrived::SoftError),
            (Fault::NoNeighbour, Arrived::SoftError),
            (Fault::TimeExceeded, Arrived::SoftError),
        ] {
            let mut error = vec![0; 1500];
            error[..ETHERNET_LEN].copy_from_slice(&frame[..ETHERNET_LEN]);
            let told = tell_sender(&mut error[ETHERNET_LEN..], fault, router, &frame[ETHERNET_LEN..]);
            error.truncate(ETHERNET_LEN + told.expect("senders are told"));
            assert_eq!(arrived(&error), expected, "{fault:?}");
            for len in 0..error.len() {
                let cut = arrived(&error[..len]);
                assert!(!matches!(cut, Arrived::Datagram), "{fault:?} {len}: {cut:?}");
            }
        }
    }
}

#[test]
fn a_way_that_is_narrower_than_the_shortest_is_told_of_and_kept_at_the_shortest() {
    let (from, to) = (at("192.0.2.1:7000"), at("198.51.100.1:9"));
    let frame = written(from, to, &[0; 372], 0);
    let told = |mtu_bytes: u16| {
        let mut error = vec![0; 600];
        error[..ETHERNET_LEN].copy_from_slice(&frame[..ETHERNET_LEN]);
        let (fault, router) = (Fault::TooLong(mtu_bytes), [203, 0, 113, 1].into());
        let len = tell_sender(&mut error[ETHERNET_LEN..], fault, router, &frame[ETHERNET_LEN..]);
        arrived(&error[..ETHERNET_LEN + len.expect("senders are told")])
    };
    for mtu_bytes in [0, 68, 399] {
        assert_eq!(told(mtu_bytes), Arrived::TooLong(to, V4_MTU_MIN), "{mtu_bytes} bytes");
    }
    assert_eq!(told(400), Arrived::SoftError, "the datagram has no more than 400 bytes");
}
