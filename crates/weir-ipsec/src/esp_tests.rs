//! Packets sealed and opened: all algorithms, modes and families, and changes that others may make to them in between.

use proptest::prelude::*;

use super::*;
use crate::algorithm::{Algorithm, KeyMaterial};

const MEMORY: usize = 2048;

/// An IP packet with `data` behind its header.
pub fn packet(family: IpFamily, traffic_class: u8, data: &[u8]) -> Vec<u8> {
    let mut packet = match family {
        IpFamily::V4 => vec![0x45, 0, 0, 0, 0, 1, 0x40, 0, 63, 17, 0, 0, 10, 1, 0, 1, 10, 2, 0, 2],
        IpFamily::V6 => [&[0x60, 0, 0, 5, 0, 0, 17, 63][..], &[0xfd; 16], &[0xfc; 16]].concat(),
    };
    packet.extend(data);
    ip::set_traffic_class(&mut packet, family, traffic_class);
    ip::set_len(&mut packet, family).unwrap();
    packet
}

fn transform(algorithm: Algorithm) -> Transform {
    let key: Vec<u8> = (0..algorithm.key_len() as u8).collect();
    Transform::new(algorithm, &KeyMaterial::new(algorithm, &key).unwrap()).unwrap()
}

fn tunnel(family: IpFamily) -> EspMode {
    let [source, destination] = match family {
        IpFamily::V4 => ["192.0.2.1", "192.0.2.2"],
        IpFamily::V6 => ["2001:db8::1", "2001:db8::2"],
    };
    EspMode::Tunnel(Tunnel::new(source.parse().unwrap(), destination.parse().unwrap()).unwrap())
}

const ASSOCIATED: Associated = Associated { spi: 0x1000, sequence: 7, extended: false };

fn seal_room(room: &mut Room, algorithm: Algorithm, encapsulation: &Encapsulation) -> Result<(), DropReason> {
    let headers = IpHeaders::read_all(room.packet())?;
    seal(room, &headers, &transform(algorithm), encapsulation, ASSOCIATED)
}

fn find(packet: &[u8], udp_port: Option<u16>) -> Result<Arrival, DropReason> {
    locate(packet, &IpHeaders::read_all(packet)?, udp_port.as_slice())
}

fn seal_packet(packet: &[u8], algorithm: Algorithm, encapsulation: &Encapsulation) -> Vec<u8> {
    let mut memory = packet.to_vec();
    memory.resize(MEMORY, 0xcc);
    let mut room = Room::new(&mut memory, 0, packet.len()).unwrap();
    seal_room(&mut room, algorithm, encapsulation).unwrap();
    room.packet().to_vec()
}

fn open_packet(sealed: &[u8], algorithm: Algorithm, in_tunnel: bool) -> Result<Vec<u8>, DropReason> {
    let mut memory = sealed.to_vec();
    let mut room = Room::new(&mut memory, 0, sealed.len()).unwrap();
    let Arrival::Esp(located) = find(room.packet(), Some(UDP_PORT))? else { panic!("it is ESP") };
    assert_eq!((located.spi, located.sequence_low), (ASSOCIATED.spi, 7));
    verify(&mut room, &located, &transform(algorithm), ASSOCIATED)?.unwrap_packet(&mut room, in_tunnel)?;
    Ok(room.packet().to_vec())
}

fn any_encapsulation() -> impl Strategy<Value = Encapsulation> {
    let mode = prop_oneof![Just(EspMode::Transport), Just(tunnel(IpFamily::V4)), Just(tunnel(IpFamily::V6))];
    let ports = UdpEncapsulation { source: UDP_PORT, destination: UDP_PORT };
    (mode, prop_oneof![Just(None), Just(Some(ports))]).prop_map(|(mode, udp)| Encapsulation { mode, udp })
}

fn any_algorithm() -> impl Strategy<Value = Algorithm> {
    prop::sample::select(&Algorithm::ALL[..])
}

fn any_family() -> impl Strategy<Value = IpFamily> {
    prop_oneof![Just(IpFamily::V4), Just(IpFamily::V6)]
}

proptest! {
    #[test]
    fn opens_what_was_sealed(
        algorithm in any_algorithm(), encapsulation in any_encapsulation(), family in any_family(),
        class: u8, data in prop::collection::vec(any::<u8>(), 0..200), filled_up in 0usize..30,
    ) {
        let whole = packet(family, class, &data);
        let mut on_link = whole.clone();
        on_link.resize(whole.len() + filled_up, 0);
        let mut sealed = seal_packet(&on_link, algorithm, &encapsulation);
        let headers = IpHeaders::read(&sealed).unwrap();
        prop_assert_eq!(headers.packet_len(), sealed.len());
        let overhead = sealed.len() - whole.len();
        prop_assert!(sealed.len() <= whole.len() + ADDED_LEN_MAX);
        prop_assert!(encapsulation.packet_len_max(algorithm, sealed.len(), whole.len() - data.len()) >= whole.len());
        prop_assert!(encapsulation.packet_len_max(algorithm, sealed.len() - 1, whole.len() - data.len()) < whole.len());
        prop_assert!(overhead >= HEADER_LEN + 2);
        sealed.resize(sealed.len() + filled_up, 0);
        let in_tunnel = matches!(encapsulation.mode, EspMode::Tunnel(_));
        prop_assert_eq!(open_packet(&sealed, algorithm, in_tunnel), Ok(whole));
    }

    /// Whichever proven bit is changed, the packet is dropped, and its trailer is never looked at.
    #[test]
    fn what_was_changed_is_not_read(
        algorithm in any_algorithm(), family in any_family(), at in any::<prop::sample::Index>(), bit in 0u8..8,
    ) {
        prop_assume!(algorithm.icv_len() > 0);
        let encapsulation = Encapsulation { mode: tunnel(family), udp: None };
        let mut sealed = seal_packet(&packet(family, 0, b"some words"), algorithm, &encapsulation);
        let esp_at = IpHeaders::read(&sealed).unwrap().end();
        // A changed SPI or number finds another association; here it is the same one, which knows the right values.
        let at = esp_at + HEADER_LEN + at.index(sealed.len() - esp_at - HEADER_LEN);
        sealed[at] ^= 1 << bit;
        let before = trailer::READS.get();
        prop_assert_eq!(open_packet(&sealed, algorithm, true), Err(DropReason::EspBadIcv));
        prop_assert_eq!(trailer::READS.get(), before, "the trailer was read");
    }

    #[test]
    fn nonsense_never_panics(
        mut bytes in prop::collection::vec(any::<u8>(), 0..120), kind in 0usize..6, algorithm in any_algorithm(), in_tunnel: bool,
    ) {
        let start = [&[0x45][..], &[0x60], &[0x45, 0, 0, 60, 0, 0, 0, 0, 1, 50], &[0x60, 0, 0, 0, 0, 60, 50], &[0x46], &[]][kind];
        let len = bytes.len().min(start.len());
        bytes[..len].copy_from_slice(&start[..len]);
        let mut room = Room::new(&mut bytes, 0, 0).unwrap();
        room.grow(0, 0).unwrap();
        let whole = bytes.len();
        let mut room = Room::new(&mut bytes, 0, whole).unwrap();
        if let Ok(Arrival::Esp(located)) = find(room.packet(), Some(UDP_PORT))
            && let Ok(verified) = verify(&mut room, &located, &transform(algorithm), ASSOCIATED)
        {
            let _ = verified.unwrap_packet(&mut room, in_tunnel);
        }
    }
}

#[test]
fn a_packet_that_is_proven_has_its_trailer_read_once() {
    let encapsulation = Encapsulation { mode: EspMode::Transport, udp: None };
    let sealed = seal_packet(&packet(IpFamily::V4, 0, b"data"), Algorithm::Aes128Gcm, &encapsulation);
    let before = trailer::READS.get();
    open_packet(&sealed, Algorithm::Aes128Gcm, false).unwrap();
    assert_eq!(trailer::READS.get(), before + 1);
}

/// A packet with any trailer, by null encryption without proof.
fn with_trailer(payload: &[u8], trailer: &[u8]) -> Vec<u8> {
    let esp = [&ASSOCIATED.spi.to_be_bytes()[..], &7u32.to_be_bytes(), payload, trailer].concat();
    let mut sealed = packet(IpFamily::V4, 0, &esp);
    sealed[9] = number::ESP;
    sealed
}

#[test]
fn trailers_that_lie_have_reasons_of_their_own() {
    let inside = packet(IpFamily::V4, 0, b"data");
    let open = |payload: &[u8], trailer: &[u8]| {
        open_packet(&with_trailer(payload, trailer), Algorithm::Null, true).unwrap_err()
    };
    assert_eq!(open(&inside, &[1, 2, 4, 3, 4]), DropReason::EspBadPadding, "not 1, 2, 3");
    assert_eq!(open(&inside, &[200, 4]), DropReason::EspBadPadding, "longer than the payload");
    assert_eq!(open(&inside, &[0, number::NONE]), DropReason::EspDummy);
    assert_eq!(open(&inside, &[0, number::IPV6]), DropReason::EspBadPayload, "the other family");
    assert_eq!(open(&inside, &[0, number::UDP]), DropReason::EspBadPayload, "no packet in a tunnel");
    assert_eq!(open(&inside[..15], &[0, 4]), DropReason::EspBadPayload, "half a header");
    assert_eq!(open(&inside[..22], &[0, 4]), DropReason::EspBadPayload, "shorter than it says");
    assert_eq!(open(&[], &[0]), DropReason::EspTruncated);
    let padded = [&inside[..], &[0; 77]].concat();
    let opened = open_packet(&with_trailer(&padded, &[0, 4]), Algorithm::Null, true);
    assert_eq!(opened, Ok(inside), "what hides its length is cut off");
}

#[test]
fn too_short_for_its_algorithm_is_truncated() {
    for algorithm in Algorithm::ALL {
        let least = algorithm.iv_len() + algorithm.icv_len() + 2;
        for payload_len in 0..least {
            let sealed = with_trailer(&vec![0; payload_len], &[]);
            assert_eq!(open_packet(&sealed, algorithm, true), Err(DropReason::EspTruncated), "{payload_len}");
        }
    }
    let mut cut = with_trailer(&[], &[]);
    cut.truncate(27);
    ip::set_len(&mut cut, IpFamily::V4).unwrap();
    assert_eq!(find(&cut, None), Err(DropReason::EspTruncated));
}

#[test]
fn fragments_are_refused() {
    let encapsulation = Encapsulation { mode: EspMode::Transport, udp: None };
    let mut sealed = seal_packet(&packet(IpFamily::V4, 0, b"data"), Algorithm::Null, &encapsulation);
    for flags in [[0x20, 0], [0, 1]] {
        sealed[6..8].copy_from_slice(&flags);
        assert_eq!(find(&sealed, None), Err(DropReason::EspFragment));
        let mut memory = packet(IpFamily::V4, 0, b"data");
        memory[6..8].copy_from_slice(&flags);
        let len = memory.len();
        memory.resize(MEMORY, 0);
        let mut room = Room::new(&mut memory, 0, len).unwrap();
        let result = seal_room(&mut room, Algorithm::Null, &encapsulation);
        assert_eq!(result, Err(DropReason::EspFragment));
    }
    let mut v6 = packet(IpFamily::V6, 0, &[number::ESP, 0, 0, 1, 0, 0, 0, 9, 1, 2, 3, 4, 5, 6, 7, 8]);
    v6[6] = number::FRAGMENT;
    assert_eq!(find(&v6, None), Err(DropReason::EspFragment));
}

#[test]
fn keepalives_and_ike_are_told_from_esp() {
    let datagram = |port: u16, data: &[u8]| {
        let mut udp = vec![0; UDP_LEN];
        udp.extend(data);
        write_udp(&mut udp, UdpEncapsulation { source: 9, destination: port });
        packet(IpFamily::V4, 0, &udp)
    };
    let at = |packet: &[u8]| find(packet, Some(UDP_PORT));
    assert_eq!(at(&datagram(UDP_PORT, &[0xff])), Ok(Arrival::Keepalive));
    assert_eq!(at(&datagram(UDP_PORT, &[0, 0, 0, 0, 9, 9, 9, 9, 9])), Ok(Arrival::Ike));
    assert_eq!(at(&datagram(500, &[1; 40])), Ok(Arrival::Other));
    assert_eq!(at(&datagram(UDP_PORT, &[1; 7])), Err(DropReason::EspTruncated));
    assert!(matches!(at(&datagram(UDP_PORT, &[1; 8])), Ok(Arrival::Esp(located)) if located.is_in_udp()));
    assert_eq!(find(&datagram(UDP_PORT, &[1; 8]), None), Ok(Arrival::Other), "nobody asked for it");
    let mut longer = datagram(UDP_PORT, &[1; 8]);
    longer[25] = 60;
    assert_eq!(at(&longer), Err(DropReason::Malformed));
}

#[test]
fn over_ipv6_the_datagram_has_a_checksum() {
    let ports = UdpEncapsulation { source: UDP_PORT, destination: UDP_PORT };
    for mode in [EspMode::Transport, tunnel(IpFamily::V6)] {
        let encapsulation = Encapsulation { mode, udp: Some(ports) };
        let sealed = seal_packet(&packet(IpFamily::V6, 0, b"data"), Algorithm::Aes256Gcm, &encapsulation);
        let header = Ipv6Packet::new_checked(&sealed).unwrap();
        let [source, destination] = [header.src_addr(), header.dst_addr()].map(IpAddress::Ipv6);
        let udp = UdpPacket::new_checked(&sealed[IPV6_LEN..]).unwrap();
        assert_ne!(udp.checksum(), 0);
        assert!(udp.verify_checksum(&source, &destination));
    }
}

/// RFC 4303 section 3.1.1: before ESP stand hop-by-hop and routing headers, behind it destination options.
#[test]
fn esp_stands_behind_what_routers_read() {
    let options = |next: u8| [next, 0, 1, 4, 0, 0, 0, 0];
    let data = [options(number::DESTINATION), options(number::UDP)].concat();
    let mut whole = packet(IpFamily::V6, 0, &[&data[..], b"rest"].concat());
    whole[6] = number::HOP_BY_HOP;
    let encapsulation = Encapsulation { mode: EspMode::Transport, udp: None };
    let sealed = seal_packet(&whole, Algorithm::ChaCha20Poly1305, &encapsulation);
    assert_eq!((sealed[6], sealed[40]), (number::HOP_BY_HOP, number::ESP));
    assert_eq!(sealed[48..52], ASSOCIATED.spi.to_be_bytes());
    assert_eq!(open_packet(&sealed, Algorithm::ChaCha20Poly1305, false), Ok(whole));
}

/// A packet of ESP behind destination options is data like any other: they are protected with it.
#[test]
fn esp_is_sealed_again_with_the_options_before_it() {
    let options = |next: u8| [next, 0, 1, 4, 0, 0, 0, 0];
    let udp = UdpEncapsulation { source: UDP_PORT, destination: UDP_PORT };
    let mut whole = packet(IpFamily::V6, 0, &[&options(number::ESP)[..], &[1; 24]].concat());
    whole[6] = number::DESTINATION;
    for udp in [None, Some(udp)] {
        let encapsulation = Encapsulation { mode: EspMode::Transport, udp };
        let sealed = seal_packet(&whole, Algorithm::Aes128Gcm, &encapsulation);
        assert_ne!(sealed[6], number::DESTINATION);
        assert_eq!(open_packet(&sealed, Algorithm::Aes128Gcm, false), Ok(whole.clone()));
    }
}

/// RFC 8200 section 4.1 lets a sender put destination options before ESP.
#[test]
fn esp_is_found_behind_destination_options() {
    let options = |next: u8| [next, 0, 1, 4, 0, 0, 0, 0];
    let mut whole = packet(IpFamily::V6, 0, &[&options(number::ESP)[..], &[1; 24]].concat());
    whole[6] = number::DESTINATION;
    assert!(matches!(find(&whole, None), Ok(Arrival::Esp(located)) if located.spi == 0x0101_0101));
}

#[test]
fn congestion_on_the_way_reaches_the_packet_inside() {
    let encapsulation = Encapsulation { mode: tunnel(IpFamily::V4), udp: None };
    for (inside, expected) in [(0b10, Ok(0b11)), (0b00, Err(DropReason::EspNotEcnCapable))] {
        let class = 0b1011_1000 | inside;
        let mut sealed = seal_packet(&packet(IpFamily::V6, class, b"data"), Algorithm::Null, &encapsulation);
        assert_eq!(ip::traffic_class(&sealed, IpFamily::V4), class, "DSCP and ECN are copied");
        ip::set_traffic_class(&mut sealed, IpFamily::V4, class | 0b11);
        let opened = open_packet(&sealed, Algorithm::Null, true);
        assert_eq!(opened.map(|packet| ip::traffic_class(&packet, IpFamily::V6) & 0b11), expected);
    }
}

#[test]
fn what_does_not_fit_is_too_long() {
    let encapsulation = Encapsulation { mode: tunnel(IpFamily::V4), udp: None };
    let mut memory = packet(IpFamily::V4, 0, &[0; 100]);
    memory.resize(memory.len() + 40, 0);
    let mut room = Room::new(&mut memory, 0, 120).unwrap();
    let result = seal_room(&mut room, Algorithm::Aes128Gcm, &encapsulation);
    assert_eq!(result, Err(DropReason::TooLong));
}
