//! Messages are made by another implementation: `etherparse`, which the tests of this crate have.

use etherparse::{Icmpv4Type, Icmpv6Type, PacketBuilder, icmpv4};

use super::*;

const GATEWAYS: [[u8; 4]; 2] = [[192, 0, 2, 1], [192, 0, 2, 2]];
const ROUTER: [u8; 4] = [203, 0, 113, 1];
const SPI: u32 = 0x1001;
const MINUTE_NS: u64 = 60_000_000_000;

fn v6(last: u8) -> [u8; 16] {
    [0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last]
}

/// The first bytes of an ESP packet, as a router of IPv4 quotes them at least.
fn quoted_v4(udp: bool) -> Vec<u8> {
    let esp = [&SPI.to_be_bytes()[..], &7u32.to_be_bytes()].concat();
    let mut packet = Vec::new();
    let ip = PacketBuilder::ipv4(GATEWAYS[0], GATEWAYS[1], 63);
    let padding = [&esp[..], &[0xee; 60]].concat();
    match udp {
        true => ip.udp(4500, 4501).write(&mut packet, &padding).unwrap(),
        false => ip.write(&mut packet, 50.into(), &padding).unwrap(),
    }
    packet.truncate(20 + if udp { 8 } else { 0 } + esp.len());
    packet
}

fn told_v4(mtu: u16, quoted: &[u8]) -> Vec<u8> {
    let needed = icmpv4::DestUnreachableHeader::FragmentationNeeded { next_hop_mtu: mtu };
    let mut packet = Vec::new();
    let builder = PacketBuilder::ipv4(ROUTER, GATEWAYS[0], 64);
    builder.icmpv4(Icmpv4Type::DestinationUnreachable(needed)).write(&mut packet, quoted).unwrap();
    packet
}

fn told_v6(mtu: u32) -> Vec<u8> {
    let (mut quoted, mut packet) = (Vec::new(), Vec::new());
    let esp = [&SPI.to_be_bytes()[..], &7u32.to_be_bytes(), &[0xee; 60]].concat();
    PacketBuilder::ipv6(v6(1), v6(2), 63).write(&mut quoted, 50.into(), &esp).unwrap();
    let builder = PacketBuilder::ipv6(v6(9), v6(1), 64);
    builder.icmpv6(Icmpv6Type::PacketTooBig { mtu }).write(&mut packet, &quoted).unwrap();
    packet
}

fn read(packet: &[u8]) -> Option<TooBig> {
    TooBig::read(packet, &IpHeaders::read_all(packet).unwrap())
}

#[test]
fn reads_what_routers_tell() {
    let expected = TooBig {
        mtu_bytes: 1400,
        source: GATEWAYS[0].into(),
        destination: GATEWAYS[1].into(),
        udp_ports: None,
        spi: SPI,
        sequence_low: 7,
    };
    assert_eq!(read(&told_v4(1400, &quoted_v4(false))), Some(expected));
    let in_udp = TooBig { udp_ports: Some([4500, 4501]), ..expected };
    assert_eq!(read(&told_v4(1400, &quoted_v4(true))), Some(in_udp));
    let of_v6 = TooBig { source: v6(1).into(), destination: v6(2).into(), ..expected };
    assert_eq!(read(&told_v6(1400)), Some(of_v6));
}

#[test]
fn no_message_makes_packets_shorter_than_every_network_takes() {
    let mtu_bytes = |packet: &[u8]| read(packet).unwrap().mtu_bytes;
    assert_eq!(
        [0, 68, 576, 577].map(|mtu| mtu_bytes(&told_v4(mtu, &quoted_v4(false)))),
        [576, 576, 576, 577]
    );
    assert_eq!([0, 1279, 1281, 70_000].map(|mtu| mtu_bytes(&told_v6(mtu))), [1280, 1280, 1281, u16::MAX]);
}

#[test]
fn what_is_damaged_or_something_else_is_none() {
    for packet in [told_v4(1400, &quoted_v4(false)), told_v4(1400, &quoted_v4(true)), told_v6(1400)] {
        let message_at = if packet[0] >> 4 == 4 { 20 } else { 40 };
        for at in message_at..packet.len() {
            let mut damaged = packet.clone();
            damaged[at] ^= 0x10;
            assert_eq!(read(&damaged), None, "byte {at}");
        }
    }
    let mut fragment = told_v4(1400, &quoted_v4(false));
    fragment[6] = 0x20;
    assert_eq!(read(&fragment), None);
    let mut later = quoted_v4(false);
    later[7] = 1;
    assert_eq!(read(&told_v4(1400, &later)), None, "what a later fragment carries is no ESP header");
    for short in 0..28 {
        assert_eq!(read(&told_v4(1400, &quoted_v4(false)[..short])), None, "{short} bytes are quoted");
    }
    let mut unreachable = Vec::new();
    let port = Icmpv4Type::DestinationUnreachable(icmpv4::DestUnreachableHeader::Port);
    PacketBuilder::ipv4(ROUTER, GATEWAYS[0], 64)
        .icmpv4(port)
        .write(&mut unreachable, &quoted_v4(false))
        .unwrap();
    assert_eq!(read(&unreachable), None);
}

#[test]
fn a_packet_was_sent_lately_if_it_is_one_of_the_last_million() {
    let told = TooBig { sequence_low: 100, ..read(&told_v4(1400, &quoted_v4(false))).unwrap() };
    let late = LATELY_PACKETS + 99;
    assert_eq!(
        [99, 100, late, late + 1].map(|highest| told.was_sent_lately(highest)),
        [false, true, true, false]
    );
    assert!(told.was_sent_lately((7 << 32) + 200), "of extended numbers the lower half is quoted");
    for never in [0, 3, u32::MAX] {
        assert!(!TooBig { sequence_low: never, ..told }.was_sent_lately(2), "{never} of 2");
    }
}

#[test]
fn is_made_shorter_and_forgotten_after_ten_minutes() {
    let mut path = PathMtu::default();
    assert_eq!((path.limit(1500, 0), path.learned_bytes(0)), (1500, None));
    path.learn(1400, MINUTE_NS);
    path.learn(1450, 2 * MINUTE_NS);
    assert_eq!((path.limit(1500, 10 * MINUTE_NS), path.limit(1300, 10 * MINUTE_NS)), (1400, 1300));
    path.learn(1280, 3 * MINUTE_NS);
    assert_eq!(path.learned_bytes(12 * MINUTE_NS), Some(1280), "its time begins anew");
    assert_eq!(path.limit(1500, 13 * MINUTE_NS), 1500, "the way may have changed");
    path.learn(1450, 14 * MINUTE_NS);
    assert_eq!(path.limit(1500, 14 * MINUTE_NS), 1450);
}
