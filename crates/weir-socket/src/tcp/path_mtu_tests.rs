//! Messages of routers that a segment was too long: the true ones are obeyed, the others are dropped.

use std::net::IpAddr;

use smoltcp::wire::{
    Icmpv4DstUnreachable, Icmpv4Packet, Icmpv4Repr, Icmpv6Packet, Icmpv6Repr, Ipv6Address, Ipv6Packet,
    Ipv6Repr,
};
use weir_core::drops::Count;

use super::*;
use crate::too_long::V4_MTU_MIN;

const ROUTER: Ipv4Address = Ipv4Address::new(192, 0, 2, 254);
const ROUTER_V6: Ipv6Address = Ipv6Address::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0xfe);
const SERVER_V6: Ipv6Address = Ipv6Address::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 2);
const CLIENT_V6: Ipv6Address = Ipv6Address::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);

/// A router's message that this packet was too long for a link of this MTU; it quotes 8 bytes behind the IP header, which is the least.
fn too_big(packet: &[u8], mtu_bytes: u16) -> Vec<u8> {
    let quoted = Ipv4Packet::new_checked(packet).expect("IPv4");
    let checksums = ChecksumCapabilities::default();
    let icmp = Icmpv4Repr::DstUnreachable {
        reason: Icmpv4DstUnreachable::FragRequired,
        header: Ipv4Repr::parse(&quoted, &checksums).expect("headers"),
        data: &quoted.payload()[..8],
    };
    let ip = Ipv4Repr {
        src_addr: ROUTER,
        dst_addr: SERVER,
        next_header: IpProtocol::Icmp,
        payload_len: icmp.buffer_len(),
        hop_limit: 64,
    };
    let mut bytes = vec![0; 20 + icmp.buffer_len()];
    ip.emit(&mut Ipv4Packet::new_unchecked(&mut bytes[..]), &checksums);
    let mut message = Icmpv4Packet::new_unchecked(&mut bytes[20..]);
    icmp.emit(&mut message, &checksums);
    message.set_echo_seq_no(mtu_bytes);
    message.fill_checksum();
    bytes
}

/// A connection that has sent all that its peer's window takes; the packets, and the number of the first byte.
fn sending() -> (Bed, Vec<Vec<u8>>, i32) {
    let mut bed = Bed::new(16);
    let seq = bed.open(HONEST);
    bed.write(0, 1400);
    let went = bed.0.poll();
    assert_eq!(went[0].len(), 1500, "as long as the link takes");
    (bed, went, seq)
}

/// The messages that were dropped, and all else.
fn dropped(bed: &mut Bed) -> u64 {
    let mut dropped = Count::default();
    bed.0.port.complete(&mut bed.0.frames, |count, fate| {
        if let Completion::Dropped(reason) = fate {
            assert_eq!(reason, DropReason::NoHandler);
            dropped.merge(count);
        }
    });
    dropped.packets
}

/// The length of the longest packet.
fn longest(went: &[Vec<u8>]) -> usize {
    went.iter().map(Vec::len).max().unwrap_or(0)
}

/// Lets the peer acknowledge all of the stream that these packets have.
fn acknowledge(bed: &mut Bed, went: &[Vec<u8>]) {
    let behind = |bytes: &Vec<u8>| {
        let tcp = TcpPacket::new_checked(&bytes[20..]).expect("TCP");
        (tcp.seq_number() + tcp.payload().len()).0
    };
    let ack = went.iter().map(behind).max().expect("a segment");
    bed.put(Says { from: HONEST, control: TcpControl::None, seq: 101, ack: Some(ack) });
}

#[test]
fn a_segment_that_was_too_long_is_sent_again_in_shorter_ones() {
    let (mut bed, went, seq) = sending();
    bed.put_bytes(&too_big(&went[0], 1300));
    assert_eq!(dropped(&mut bed), 0);
    let again = bed.0.pass(2 * SECOND);
    assert_eq!((read(&again)[0].2, longest(&again)), (seq, 1300));
    acknowledge(&mut bed, &again);
    bed.write(0, 1400);
    let more = bed.0.poll();
    assert_eq!(longest(&more), 1300, "it stays so");
    // A link behind it is narrower still; a wider one changes nothing.
    bed.put_bytes(&too_big(&more[0], 1000));
    bed.put_bytes(&too_big(&more[0], 1200));
    let again = bed.0.pass(4 * SECOND);
    assert_eq!((longest(&again), dropped(&mut bed)), (1000, 0));
    bed.end();
}

#[test]
fn the_next_connection_of_a_place_knows_nothing_of_the_way_of_the_last() {
    let (mut bed, went, seq) = sending();
    bed.put_bytes(&too_big(&went[0], 1300));
    bed.put(Says { from: HONEST, control: TcpControl::Rst, seq: 101, ack: Some(seq) });
    bed.close(0);
    assert_eq!(bed.places_in_use(), 0);
    bed.open(HONEST);
    bed.write(0, 1400);
    assert_eq!(longest(&bed.0.poll()), 1500);
    bed.end();
}

#[test]
fn a_message_that_is_not_true_changes_nothing() {
    let (mut bed, went, seq) = sending();
    let with = |change: &dyn Fn(&mut TcpPacket<&mut [u8]>), mtu_bytes| {
        let mut packet = went[0].clone();
        change(&mut TcpPacket::new_unchecked(&mut packet[20..]));
        too_big(&packet, mtu_bytes)
    };
    let last = went.last().map(|bytes| TcpPacket::new_checked(&bytes[20..]).expect("TCP"));
    let next = last.map(|tcp| tcp.seq_number() + tcp.payload().len()).expect("a segment");
    let untrue = [
        with(&|tcp| tcp.set_seq_number(TcpSeqNumber(seq - 1)), 1300),
        with(&|tcp| tcp.set_seq_number(next), 1300),
        with(&|tcp| tcp.set_seq_number(TcpSeqNumber(seq.wrapping_add(i32::MIN))), 1300),
        with(&|tcp| tcp.set_dst_port(HONEST.1 + 1), 1300),
        with(&|tcp| tcp.set_src_port(PORT + 1), 1300),
        with(&|_| {}, 1500),
        with(&|_| {}, u16::MAX),
    ];
    for (count, message) in untrue.iter().enumerate() {
        bed.put_bytes(message);
        assert_eq!(dropped(&mut bed), 1, "message {count}");
    }
    acknowledge(&mut bed, &went[..1]);
    bed.put_bytes(&too_big(&went[0], 1300));
    assert_eq!(dropped(&mut bed), 1, "it has arrived");
    let again = bed.0.pass(2 * SECOND);
    assert_eq!(longest(&again), 1500);
    bed.end();
}

#[test]
fn no_message_makes_packets_shorter_than_the_shortest() {
    for mtu_bytes in [0, 1, 68, V4_MTU_MIN - 1] {
        let (mut bed, went, _) = sending();
        bed.put_bytes(&too_big(&went[0], mtu_bytes));
        let again = bed.0.pass(2 * SECOND);
        assert_eq!(longest(&again), usize::from(V4_MTU_MIN), "{mtu_bytes} bytes");
        bed.end();
    }
}

/// A packet of IPv6 with this segment from the client.
pub(super) fn segment_v6(control: TcpControl, seq: i32, ack: Option<i32>) -> Vec<u8> {
    let tcp = TcpRepr {
        src_port: HONEST.1,
        dst_port: PORT,
        control,
        seq_number: TcpSeqNumber(seq),
        ack_number: ack.map(TcpSeqNumber),
        window_len: 4096,
        window_scale: None,
        max_seg_size: (control == TcpControl::Syn).then_some(1440),
        sack_permitted: false,
        sack_ranges: [None; 3],
        timestamp: None,
        payload: &[],
    };
    let ip = Ipv6Repr {
        src_addr: CLIENT_V6,
        dst_addr: SERVER_V6,
        next_header: IpProtocol::Tcp,
        payload_len: tcp.buffer_len(),
        hop_limit: 64,
    };
    let mut bytes = vec![0; 40 + tcp.buffer_len()];
    ip.emit(&mut Ipv6Packet::new_unchecked(&mut bytes[..]));
    let mut packet = TcpPacket::new_unchecked(&mut bytes[40..]);
    tcp.emit(&mut packet, &CLIENT_V6.into(), &SERVER_V6.into(), &ChecksumCapabilities::default());
    bytes
}

fn too_big_v6(packet: &[u8], mtu_bytes: u32) -> Vec<u8> {
    let quoted = Ipv6Packet::new_checked(packet).expect("IPv6");
    let header = Ipv6Repr::parse(&quoted).expect("a header");
    let icmp = Icmpv6Repr::PktTooBig { mtu: mtu_bytes, header, data: quoted.payload() };
    let ip = Ipv6Repr {
        src_addr: ROUTER_V6,
        dst_addr: SERVER_V6,
        next_header: IpProtocol::Icmpv6,
        payload_len: icmp.buffer_len(),
        hop_limit: 64,
    };
    let mut bytes = vec![0; 40 + icmp.buffer_len()];
    ip.emit(&mut Ipv6Packet::new_unchecked(&mut bytes[..]));
    let mut message = Icmpv6Packet::new_unchecked(&mut bytes[40..]);
    icmp.emit(&ROUTER_V6, &SERVER_V6, &mut message, &ChecksumCapabilities::default());
    bytes
}

/// A connection over IPv6 that an application has, and the sequence number of the first byte that it will send.
pub(super) fn open_v6() -> (TcpModel, i32) {
    let address = SocketAddr::new(IpAddr::V6(SERVER_V6), PORT);
    let mut model = TcpModel::new(address, CONNECTIONS, 4096, 16);
    model.put(&segment_v6(TcpControl::Syn, 100, None));
    let asked = model.poll();
    let seq = TcpPacket::new_checked(&asked[0][40..]).expect("TCP").seq_number().0 + 1;
    model.put(&segment_v6(TcpControl::None, 101, Some(seq)));
    assert!(model.accept());
    (model, seq)
}

#[test]
fn over_ipv6_a_message_counts_down_to_what_every_link_takes() {
    let (mut model, seq) = open_v6();
    model.write(0, 1400);
    let went = model.poll();
    assert_eq!(went[0].len(), 1500);
    for untrue in [1279, 0, 1500, 1 << 16 | 1300] {
        model.put(&too_big_v6(&went[0], untrue));
    }
    let again = model.pass(2 * SECOND);
    assert_eq!(longest(&again), 1500);
    model.put(&too_big_v6(&went[0], 1280));
    let again = model.pass(4 * SECOND);
    assert_eq!(longest(&again), 1280);
    assert_eq!(TcpPacket::new_checked(&again[0][40..]).expect("TCP").seq_number().0, seq);
    model.end();
}

proptest! {
    /// No bytes behind a right IP header make the port panic, though they look like a message.
    #[test]
    fn no_message_panics(
        bytes in prop::collection::vec(any::<u8>(), 0..80), code in 3..6u8, cut in 0..80usize, is_v6 in any::<bool>(),
    ) {
        let (mut bed, went, _) = sending();
        let mut message = match is_v6 {
            true => too_big_v6(&segment_v6(TcpControl::None, 101, Some(1)), 1300),
            false => too_big(&went[0], 1300),
        };
        let icmp_at = if is_v6 { 40 } else { 20 };
        message[icmp_at + 1] = code;
        let at = message.len() - bytes.len().min(message.len() - icmp_at - 4);
        let count = message.len() - at;
        message[at..].copy_from_slice(&bytes[..count]);
        let len = message.len() - cut.min(message.len() - icmp_at);
        message.truncate(len);
        match is_v6 {
            true => Ipv6Packet::new_unchecked(&mut message[..]).set_payload_len((len - 40) as u16),
            false => Ipv4Packet::new_unchecked(&mut message[..]).set_total_len(len as u16),
        }
        bed.put_bytes(&message);
        bed.pass(SECOND);
        bed.end();
    }
}
