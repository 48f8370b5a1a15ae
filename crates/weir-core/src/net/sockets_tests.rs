//! Bindings, and a host on one link: datagrams for its sockets, datagrams of these, and any bytes at all.

use std::net::{Ipv6Addr, SocketAddr};

use proptest::prelude::*;
use smoltcp::wire::{EthernetAddress, UdpPacket};

use super::*;
use crate::net::BURST_MAX;
use crate::net::outbox::Outbox;
use crate::net::resolve::{self, Speaker};
use crate::net::route::Interface;
use crate::net::router::{Router, RouterSettings, StaticNeighbour, Verdict, WAITING_SHARE};
use crate::packet::{Carried, Meta, Packet};

struct Pkt(Vec<u8>, Meta);

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

const HOST: [u8; 6] = [2, 0, 0, 0, 0, 1];
const PEER: [u8; 6] = [2, 0, 0, 0, 0, 2];
/// The ports of the stage: the interface, and then the sockets.
const INTERFACE: u16 = 0;
const SOCKETS: u16 = 4;

/// The link-local addresses of the host and its peer.
const HOST_NEAR: &str = "fe80::ff:fe00:1";
const PEER_NEAR: &str = "fe80::ff:fe00:2";

/// A host without TCP.
fn host() -> Router<Pkt> {
    host_with(false)
}

fn host_with(has_tcp: bool) -> Router<Pkt> {
    host_of(&["192.0.2.1/24", "2001:db8::1/64"], has_tcp)
}

fn host_of(addresses: &[&str], has_tcp: bool) -> Router<Pkt> {
    Router::new(settings(addresses, has_tcp), 0).expect("a host")
}

/// A host with TCP, and with room for so many packets that wait for neighbours, of one alone if they come so.
fn host_that_keeps(held_max: usize) -> Router<Pkt> {
    let settings = settings(&["192.0.2.1/24"], true);
    let waiting_max = held_max.try_into().expect("few");
    Router::new(RouterSettings { held_max, waiting_max, ..settings }, 0).expect("a host")
}

fn settings(addresses: &[&str], has_tcp: bool) -> RouterSettings {
    let (key, bucket_bits) = (Key::SYMMETRIC, 2);
    let host = HostSettings { sockets: SOCKETS, has_tcp, held_packets_max: 64, key, bucket_bits };
    RouterSettings {
        interfaces: vec![Interface {
            mac: EthernetAddress(HOST),
            mtu_bytes: 1500,
            addresses: addresses.iter().map(|text| text.parse().expect("an address")).collect(),
        }],
        routes: Vec::new(),
        neighbours: vec![StaticNeighbour {
            interface: 0,
            address: [192, 0, 2, 2].into(),
            mac: EthernetAddress(PEER),
        }],
        neighbours_max: 16,
        incomplete_max: 16,
        solicits_per_second: 1000,
        solicits_burst: 64,
        held_max: 32,
        waiting_max: 4,
        errors_per_second: 10,
        errors_burst: 10,
        seed: 7,
        announces: false,
        host: Some(host),
    }
}

fn binding(address: &str, port: u16, bucket: Option<usize>) -> Binding {
    Binding { address: address.parse().expect("an address"), port, bucket }
}

/// A datagram over IPv6 from port 9 to port 7, addressed to the host's link-layer address.
fn datagram_v6(source: &str, destination: &str, payload: &[u8]) -> Pkt {
    let [source, destination] =
        [source, destination].map(|text| text.parse::<Ipv6Addr>().expect("an address"));
    let mut frame = [&HOST[..], &PEER, &[0x86, 0xdd]].concat();
    frame.resize(14 + 40 + 8, 0);
    frame.extend(payload);
    let mut ip = Ipv6Packet::new_unchecked(&mut frame[14..]);
    ip.set_version(6);
    ip.set_payload_len(8 + payload.len() as u16);
    ip.set_hop_limit(64);
    ip.set_next_header(IpProtocol::Udp);
    ip.set_src_addr(source);
    ip.set_dst_addr(destination);
    let mut udp = UdpPacket::new_unchecked(ip.payload_mut());
    udp.set_src_port(9);
    udp.set_dst_port(7);
    udp.set_len(8 + payload.len() as u16);
    udp.fill_checksum(&source.into(), &destination.into());
    Pkt(frame, Meta::default())
}

/// A datagram over IPv4, addressed to the host's link-layer address.
fn datagram(from: &str, to: &str, payload: &[u8]) -> Pkt {
    let [from, to] = [from, to].map(|text| text.parse::<SocketAddr>().expect("an address"));
    let (IpAddr::V4(source), IpAddr::V4(destination)) = (from.ip(), to.ip()) else { panic!("IPv4") };
    let mut frame = [&HOST[..], &PEER, &[8, 0]].concat();
    frame.resize(14 + 20 + 8, 0);
    frame.extend(payload);
    let mut ip = Ipv4Packet::new_unchecked(&mut frame[14..]);
    ip.set_version(4);
    ip.set_header_len(20);
    ip.set_total_len(28 + payload.len() as u16);
    ip.set_dont_frag(true);
    ip.set_hop_limit(64);
    ip.set_next_header(IpProtocol::Udp);
    ip.set_src_addr(source);
    ip.set_dst_addr(destination);
    ip.fill_checksum();
    let mut udp = UdpPacket::new_unchecked(ip.payload_mut());
    udp.set_src_port(from.port());
    udp.set_dst_port(to.port());
    udp.set_len(8 + payload.len() as u16);
    udp.fill_checksum(&source.into(), &destination.into());
    Pkt(frame, Meta::default())
}

fn process(host: &mut Router<Pkt>, ingress: u16, packet: Pkt) -> (Verdict, Pkt) {
    let mut burst = [packet];
    let mut verdicts = [Verdict::Local];
    host.process(ingress, &mut burst, &Carried, 0, &mut verdicts);
    let [packet] = burst;
    (verdicts[0], packet)
}

fn made(host: &mut Router<Pkt>) -> Option<Vec<u8>> {
    host.made().map(|(_, bytes)| bytes.to_vec())
}

#[test]
fn who_has_any_address_has_each() {
    let mut bindings = Bindings::new(4);
    let mut bind = |address, port, bucket, socket| bindings.bind(binding(address, port, bucket), socket);
    bind("192.0.2.1", 7, None, 0).expect("the first");
    assert!(matches!(bind("0.0.0.0", 7, None, 1), Err(BindError::InUse(_))));
    assert!(matches!(bind("192.0.2.1", 7, Some(0), 1), Err(BindError::InUse(_))));
    bind("::", 7, None, 1).expect("the other family");
    bind("0.0.0.0", 8, Some(1), 2).expect("a bucket");
    bind("0.0.0.0", 8, Some(2), 3).expect("another");
    assert!(matches!(bind("192.0.2.1", 8, Some(1), 4), Err(BindError::InUse(_))));
    bind("192.0.2.1", 8, Some(3), 4).expect("a bucket that nobody has");
    assert_eq!(bind("0.0.0.0", 9, Some(4), 5), Err(BindError::NoBucket { bucket: 4, buckets: 4 }));
    let found = |bindings: &Bindings, port| {
        bindings.find([192, 0, 2, 1].into(), port).map(|found| format!("{found:?}"))
    };
    assert_eq!(found(&bindings, 7).as_deref(), Some("Socket(0)"));
    assert!(found(&bindings, 8).expect("the named address").contains("Some(4)"), "it beats any address");
    bindings.unbind(4);
    assert!(found(&bindings, 8).expect("any address").contains("Some(2)"));
    [0, 2, 3].into_iter().for_each(|socket| bindings.unbind(socket));
    assert_eq!((found(&bindings, 7), found(&bindings, 8)), (None, None));
}

#[test]
fn a_datagram_goes_to_the_socket_of_its_port() {
    let mut host = host();
    host.bind(binding("192.0.2.1", 7, None), 2).expect("bound");
    let to_socket = Verdict::Forward(1 + 2);
    assert_eq!(process(&mut host, INTERFACE, datagram("192.0.2.2:9", "192.0.2.1:7", b"hello")).0, to_socket);
    let mut wrong = datagram("192.0.2.2:9", "192.0.2.1:7", b"hello");
    *wrong.0.last_mut().expect("a byte") ^= 1;
    assert_eq!(process(&mut host, INTERFACE, wrong).0, Verdict::Drop(DropReason::BadChecksum));
    let mut without = datagram("192.0.2.2:9", "192.0.2.1:7", b"hello");
    without.0[40..42].fill(0);
    assert_eq!(process(&mut host, INTERFACE, without).0, to_socket, "IPv4 may leave it out");
    for len in [0u16, 7, 14] {
        let mut short = datagram("192.0.2.2:9", "192.0.2.1:7", b"hello");
        short.0[38..40].copy_from_slice(&len.to_be_bytes());
        assert_eq!(process(&mut host, INTERFACE, short).0, Verdict::Drop(DropReason::Malformed), "{len}");
    }
    assert_eq!(made(&mut host), None);
    host.unbind(2);
    let (verdict, _) = process(&mut host, INTERFACE, datagram("192.0.2.2:9", "192.0.2.1:7", b"hello"));
    assert_eq!(verdict, Verdict::Drop(DropReason::NoHandler));
    let error = made(&mut host).expect("its sender is told");
    assert_eq!((error[23], error[34], error[35]), (1, 3, 3), "ICMP: port unreachable");
}

#[test]
fn a_host_forwards_nothing_and_answers_for_itself() {
    let mut host = host();
    let (verdict, _) = process(&mut host, INTERFACE, datagram("192.0.2.2:9", "192.0.2.77:7", b""));
    assert_eq!((verdict, made(&mut host)), (Verdict::Drop(DropReason::NotForUs), None));
    let mut echo = datagram("192.0.2.2:9", "192.0.2.1:7", &[0; 8]);
    let mut ip = Ipv4Packet::new_unchecked(&mut echo.0[14..]);
    ip.set_next_header(IpProtocol::Icmp);
    ip.fill_checksum();
    let mut icmp = Icmpv4Packet::new_unchecked(ip.payload_mut());
    icmp.set_msg_type(Icmpv4Message::EchoRequest);
    icmp.set_msg_code(0);
    icmp.fill_checksum();
    let (verdict, reply) = process(&mut host, INTERFACE, echo);
    assert_eq!((verdict, reply.0[34]), (Verdict::Forward(INTERFACE), 0), "an echo reply");
}

#[test]
fn what_a_socket_sends_leaves_or_waits_for_its_neighbour() {
    let mut host = host();
    host.bind(binding("0.0.0.0", 7, None), 0).expect("bound");
    let socket = 1;
    let (verdict, sent) = process(&mut host, socket, datagram("192.0.2.1:7", "192.0.2.2:9", b"out"));
    assert_eq!(verdict, Verdict::Forward(INTERFACE));
    assert_eq!((&sent.0[..6], &sent.0[6..12], sent.0[22]), (&PEER[..], &HOST[..], 64), "no hop was counted");
    let (verdict, _) = process(&mut host, socket, datagram("192.0.2.1:7", "192.0.2.3:9", b"out"));
    assert!(matches!(verdict, Verdict::Hold(_)), "{verdict:?}");
    assert_eq!(made(&mut host).map(|question| question[12..14].to_vec()), Some(vec![8, 6]), "ARP");
    // To the host itself, and to an address without a route.
    let verdict = |host: &mut Router<Pkt>, to| process(host, socket, datagram("192.0.2.1:9", to, b"")).0;
    assert_eq!(verdict(&mut host, "192.0.2.1:7"), Verdict::Forward(1));
    assert_eq!(verdict(&mut host, "192.0.2.1:8"), Verdict::Drop(DropReason::NoHandler));
    assert_eq!(verdict(&mut host, "198.51.100.1:8"), Verdict::Drop(DropReason::NoRoute));
    assert_eq!(verdict(&mut host, "192.0.2.255:8"), Verdict::Drop(DropReason::Martian));
    let long = datagram("192.0.2.1:7", "192.0.2.2:9", &[0; 1473]);
    assert_eq!(process(&mut host, socket, long).0, Verdict::Drop(DropReason::TooLong));
}

#[test]
fn a_peer_of_link_local_scope_is_answered_on_the_link() {
    let mut host = host();
    host.bind(binding("::", 7, None), 0).expect("bound");
    let socket = 1;
    for own in [HOST_NEAR, "2001:db8::1"] {
        let asked = process(&mut host, INTERFACE, datagram_v6(PEER_NEAR, own, b"in")).0;
        assert_eq!(asked, Verdict::Forward(socket));
    }
    let (verdict, packet) = process(&mut host, socket, datagram_v6(HOST_NEAR, PEER_NEAR, b"out"));
    let Verdict::Hold(neighbour) = verdict else { panic!("it waits for its neighbour: {verdict:?}") };
    host.hold(neighbour, packet);
    let question = made(&mut host).expect("a question");
    let source = Ipv6Packet::new_checked(&question[14..]).expect("IPv6").src_addr();
    assert_eq!(source.to_string(), HOST_NEAR);
    let mut outbox = Outbox::new(1);
    let own = Speaker { interface: INTERFACE, mac: PEER, address: PEER_NEAR.parse().expect("an address") };
    resolve::tell_nd(&mut outbox, own, Some((source, HOST)));
    let answer = Pkt(outbox.pop().expect("an answer").1.to_vec(), Meta::default());
    assert_eq!(process(&mut host, INTERFACE, answer).0, Verdict::Local);
    let (packet, verdict) = host.release(&Carried, 0).expect("the datagram goes");
    assert_eq!((verdict, &packet.0[..12]), (Verdict::Forward(INTERFACE), &[PEER, HOST].concat()[..]));
    let to_itself = process(&mut host, socket, datagram_v6(HOST_NEAR, HOST_NEAR, b"own")).0;
    assert_eq!(to_itself, Verdict::Forward(socket));
}

/// RFC 3927 section 7 tells routers not to forward such packets; a host forwards none, and may have such an address.
#[test]
fn a_peer_with_a_link_local_address_of_ipv4_is_heard_where_it_can_be_answered() {
    let mut host = host_of(&["192.0.2.1/24", "169.254.0.1/16"], false);
    let mut without = self::host();
    for host in [&mut host, &mut without] {
        host.bind(binding("0.0.0.0", 7, None), 2).expect("bound");
    }
    let verdict = |host: &mut Router<Pkt>, from| {
        process(host, INTERFACE, datagram(&format!("{from}:9"), "192.0.2.1:7", b"in")).0
    };
    assert_eq!(verdict(&mut host, "169.254.1.2"), Verdict::Forward(1 + 2));
    let answer = process(&mut host, 1 + 2, datagram("169.254.0.1:7", "169.254.1.2:9", b"out")).0;
    assert!(matches!(answer, Verdict::Hold(_)), "its neighbour is asked for: {answer:?}");
    assert_eq!(verdict(&mut without, "169.254.1.2"), Verdict::Drop(DropReason::Martian));
    for never in ["0.1.2.3", "127.0.0.1", "224.0.0.1", "240.0.0.1", "255.255.255.255", "192.0.2.1"] {
        assert_eq!(verdict(&mut host, never), Verdict::Drop(DropReason::Martian), "{never}");
    }
}

#[test]
fn flows_fall_into_the_buckets_that_rss_says() {
    let mut host = host();
    (0..4).for_each(|bucket| host.bind(binding("0.0.0.0", 7, Some(bucket)), bucket as u16).expect("bound"));
    let rss = Rss::new(&Key::SYMMETRIC, HashKind::FourTuple, 2, 1).expect("four buckets");
    let mut seen = [0; 4];
    for port in 1000..1064 {
        let packet = datagram(&format!("192.0.2.2:{port}"), "192.0.2.1:7", b"");
        let hash = rss.hash(&packet.0);
        let (verdict, packet) = process(&mut host, INTERFACE, packet);
        assert_eq!(verdict, Verdict::Forward(1 + rss.bucket(hash) as u16));
        assert_eq!(packet.1.flow_hash, hash);
        seen[rss.bucket(hash)] += 1;
    }
    assert!(seen.iter().all(|&flows| flows > 0), "{seen:?}");
    host.unbind(3);
    let in_three = (1000..1064).map(|port| datagram(&format!("192.0.2.2:{port}"), "192.0.2.1:7", b""));
    let in_three = in_three.into_iter().find(|packet| rss.bucket(rss.hash(&packet.0)) == 3).expect("one");
    assert_eq!(process(&mut host, INTERFACE, in_three).0, Verdict::Drop(DropReason::NoHandler));
}

/// An ICMP error of a peer's: a destination that cannot be reached, for this reason.
fn error_about(quoted: &[u8], code: u8) -> Pkt {
    let mut packet = datagram("192.0.2.2:1", "192.0.2.1:1", &quoted[14..]);
    let mut ip = Ipv4Packet::new_unchecked(&mut packet.0[14..]);
    ip.set_next_header(IpProtocol::Icmp);
    ip.fill_checksum();
    let mut icmp = Icmpv4Packet::new_unchecked(ip.payload_mut());
    icmp.set_msg_type(Icmpv4Message::DstUnreachable);
    icmp.set_msg_code(code);
    icmp.fill_checksum();
    packet
}

#[test]
fn an_error_that_a_segment_was_too_long_goes_to_tcp() {
    let quoted = segment("192.0.2.1:7", "192.0.2.2:9").0;
    let verdict = |has_tcp, code| process(&mut host_with(has_tcp), INTERFACE, error_about(&quoted, code)).0;
    assert_eq!(verdict(true, 4), Verdict::Forward(1 + SOCKETS));
    let none = Verdict::Drop(DropReason::NoHandler);
    assert_eq!((verdict(true, 3), verdict(false, 4)), (none, none), "a soft error, and a host without TCP");
}

#[test]
fn an_error_goes_to_the_socket_that_sent_what_it_quotes() {
    let mut host = host();
    host.bind(binding("192.0.2.1", 7, None), 3).expect("bound");
    let quoted = datagram("192.0.2.1:7", "192.0.2.2:9", b"lost").0;
    let error = |port: u16| {
        let mut quoted = quoted.clone();
        quoted[14 + 20..][..2].copy_from_slice(&port.to_be_bytes());
        error_about(&quoted, 3)
    };
    assert_eq!(process(&mut host, INTERFACE, error(7)).0, Verdict::Forward(1 + 3));
    assert_eq!(process(&mut host, INTERFACE, error(8)).0, Verdict::Drop(DropReason::NoHandler));
    let mut wrong = error(7);
    *wrong.0.last_mut().expect("a byte") ^= 1;
    assert_eq!(process(&mut host, INTERFACE, wrong).0, Verdict::Drop(DropReason::BadChecksum));
}

/// The same error over IPv6, about a datagram of a host at this address.
fn error_about_v6(quoted: &[u8], to: &str) -> Pkt {
    let mut packet = datagram_v6(PEER_NEAR, to, &quoted[14..]);
    let mut ip = Ipv6Packet::new_unchecked(&mut packet.0[14..]);
    ip.set_next_header(IpProtocol::Icmpv6);
    let (source, destination) = (ip.src_addr(), ip.dst_addr());
    let mut icmp = Icmpv6Packet::new_unchecked(ip.payload_mut());
    icmp.set_msg_type(Icmpv6Message::DstUnreachable);
    icmp.set_msg_code(4);
    icmp.fill_checksum(&source, &destination);
    packet
}

#[test]
fn an_error_goes_to_the_socket_of_the_bucket_that_its_answer_would_have_gone_to() {
    for key in [Key::SYMMETRIC, Key::MICROSOFT] {
        let mut settings = settings(&["192.0.2.1/24", "2001:db8::1/64"], false);
        settings.host.as_mut().expect("a host").key = key;
        let mut host: Router<Pkt> = Router::new(settings, 0).expect("a host");
        for (bucket, socket) in [0, 1, 2].into_iter().zip(0..) {
            host.bind(binding("0.0.0.0", 7, Some(bucket)), socket).expect("bound");
            host.bind(binding("::", 9, Some(bucket)), socket).expect("bound");
        }
        let rss = Rss::new(&key, HashKind::FourTuple, 2, 1).expect("four buckets");
        let expected = |answer: Pkt| match rss.bucket(rss.hash(&answer.0)) {
            // Nobody has the bucket.
            3 => Verdict::Drop(DropReason::NoHandler),
            bucket => Verdict::Forward(1 + bucket as u16),
        };
        let mut seen = std::collections::HashSet::new();
        for number in 1000..1064 {
            let (own, peer) = ("192.0.2.1:7", format!("192.0.2.2:{number}"));
            let (verdict, packet) =
                process(&mut host, INTERFACE, error_about(&datagram(own, &peer, b"lost").0, 3));
            assert_eq!((verdict, packet.1.flow_hash), (expected(datagram(&peer, own, b"")), 0), "{peer}");
            let (own, peer) = ("2001:db8::1", format!("2001:db8::{number}"));
            // From port 9 to port 7; the answer has them turned round.
            let mut answer = datagram_v6(&peer, own, b"");
            answer.0[54..58].copy_from_slice(&[0, 7, 0, 9]);
            let error = error_about_v6(&datagram_v6(own, &peer, b"lost").0, own);
            assert_eq!(process(&mut host, INTERFACE, error).0, expected(answer), "{peer}");
            seen.insert(format!("{verdict:?}"));
        }
        assert_eq!(seen.len(), 4, "{seen:?}");
    }
}

const SYN: u8 = 0x02;
const RST: u8 = 0x04;
const SYN_ACK: u8 = 0x12;

/// A SYN over IPv4.
fn segment(from: &str, to: &str) -> Pkt {
    segment_with(SYN, from, to)
}

/// A segment over IPv4 without data.
fn segment_with(flags: u8, from: &str, to: &str) -> Pkt {
    let mut packet = datagram(from, to, &[0; 12]);
    let ip = &mut packet.0[14..];
    // Data offset 5; the length of the datagram is the sequence number's first half now.
    ip[32..34].copy_from_slice(&[0x50, flags]);
    ip[26..28].fill(0);
    let mut ip = Ipv4Packet::new_unchecked(ip);
    ip.set_next_header(IpProtocol::Tcp);
    ip.fill_checksum();
    let (source, destination) = (ip.src_addr(), ip.dst_addr());
    TcpPacket::new_unchecked(ip.payload_mut()).fill_checksum(&source.into(), &destination.into());
    packet
}

#[test]
fn segments_go_to_the_port_of_all_tcp_if_there_is_one() {
    let verdict = |host: &mut Router<Pkt>, packet| process(host, INTERFACE, packet).0;
    let mut host = host_with(true);
    host.bind(binding("0.0.0.0", 7, None), 0).expect("bound");
    let tcp = Verdict::Forward(1 + SOCKETS);
    assert_eq!(verdict(&mut host, segment("192.0.2.2:9", "192.0.2.1:7")), tcp, "a socket's port is another");
    let mut wrong = segment("192.0.2.2:9", "192.0.2.1:7");
    wrong.0[14 + 20 + 4] ^= 1;
    assert_eq!(verdict(&mut host, wrong), Verdict::Drop(DropReason::BadChecksum));
    let mut short = segment("192.0.2.2:9", "192.0.2.1:7");
    short.0[14 + 20 + 12] = 0xf0;
    assert_eq!(verdict(&mut host, short), Verdict::Drop(DropReason::Malformed));
    assert_eq!(process(&mut host, 1 + SOCKETS, segment("192.0.2.1:9", "192.0.2.1:7")).0, tcp, "to itself");
    let none = verdict(&mut host_with(false), segment("192.0.2.2:9", "192.0.2.1:7"));
    assert_eq!(none, Verdict::Drop(DropReason::NoHandler));
}

/// An echo request.
fn echo(from: &str, to: &str) -> Pkt {
    let mut packet = datagram(from, to, b"");
    let mut ip = Ipv4Packet::new_unchecked(&mut packet.0[14..]);
    ip.set_next_header(IpProtocol::Icmp);
    ip.fill_checksum();
    let mut icmp = Icmpv4Packet::new_unchecked(ip.payload_mut());
    icmp.set_msg_type(Icmpv4Message::EchoRequest);
    icmp.set_msg_code(0);
    icmp.fill_checksum();
    packet
}

/// Has a host decide a burst that came in by a port, which is the stage's and the path's, and keep what is to wait. Returns how many of them do.
fn offer(host: &mut Router<Pkt>, port: u16, packets: impl IntoIterator<Item = Pkt>) -> usize {
    let mut burst: Vec<Pkt> = packets.into_iter().collect();
    burst.iter_mut().for_each(|packet| packet.1.port = port);
    let mut verdicts = vec![Verdict::Local; burst.len()];
    host.process(port, &mut burst, &Carried, 0, &mut verdicts);
    let mut waiting = 0;
    for (packet, verdict) in burst.into_iter().zip(verdicts) {
        match verdict {
            Verdict::Hold(neighbour) => {
                host.hold(neighbour, packet);
                waiting += 1;
            }
            Verdict::Drop(DropReason::NeighbourFull) => {}
            other => panic!("{other:?}"),
        }
    }
    waiting
}

/// Answers to strangers take no room of the sockets, nor that of the program's own segments, nor those to echo requests that of TCP, though no
/// neighbour answers.
#[test]
fn answers_to_strangers_that_wait_for_neighbours_hold_no_socket() {
    let (of_tcp, of_others) = (300, (usize::from(SOCKETS) + 1) * WAITING_SHARE);
    let (tcp, sockets) = (1 + SOCKETS, 1..=SOCKETS);
    for is_first in [true, false] {
        let mut host = host_that_keeps(of_tcp + of_others);
        let ask = |host: &mut Router<Pkt>| -> usize {
            let requests = || (0..BURST_MAX).map(|_| echo("192.0.2.8:0", "192.0.2.1:0"));
            (0..100).map(|_| offer(host, INTERFACE, requests())).sum()
        };
        let echoes = if is_first { ask(&mut host) } else { 0 };
        let segments = |flags| (0..BURST_MAX).map(move |_| segment_with(flags, "192.0.2.1:7", "192.0.2.9:9"));
        let of_strangers: usize = (0..100).map(|_| offer(&mut host, tcp, segments(RST))).sum();
        assert!((BURST_MAX..=of_tcp / 2).contains(&of_strangers), "{of_strangers} segments wait");
        let of_program: usize = (0..100).map(|_| offer(&mut host, tcp, segments(SYN))).sum();
        let of_both = of_strangers + of_program;
        assert!((of_tcp - BURST_MAX..=of_tcp).contains(&of_both), "{of_both} segments wait");
        let echoes = echoes + if is_first { 0 } else { ask(&mut host) };
        assert!((BURST_MAX..=2 * BURST_MAX).contains(&echoes), "{echoes} answers wait");
        for port in sockets.clone() {
            let datagrams = |count| (0..count).map(|_| datagram("192.0.2.1:7", "192.0.2.7:9", b""));
            // One less than a poll may bring, and then a poll.
            for count in [BURST_MAX - 1, BURST_MAX] {
                assert!(!host.holds(port, port), "socket {port}");
                assert_eq!(offer(&mut host, port, datagrams(count)), count, "socket {port}");
            }
            assert!(host.holds(port, port), "a poll's worth waits");
        }
    }
}

/// Each forged address of a network is asked for, until the share of answers to strangers is taken.
#[test]
fn a_flood_from_addresses_that_nobody_has_leaves_the_program_places_to_ask_for_its_peers() {
    let (tcp, socket) = (1 + SOCKETS, 1);
    let flags = [RST, SYN_ACK];
    for (flood, is_by_tcp) in [vec![false], vec![true], vec![false, true], vec![true, false]]
        .iter()
        .flat_map(|flood| [(flood, false), (flood, true)])
    {
        let mut host = host_that_keeps(1000);
        for is_of_tcp in flood {
            for number in 10..210 {
                let peer = format!("192.0.2.{number}:9");
                match is_of_tcp {
                    false => offer(&mut host, INTERFACE, [echo(&peer, "192.0.2.1:0")]),
                    true => {
                        offer(&mut host, tcp, flags.map(|flags| segment_with(flags, "192.0.2.1:7", &peer)))
                    }
                };
                while made(&mut host).is_some() {}
            }
        }
        let [_, asked] = host.neighbours_taken();
        assert_eq!(asked, if flood.contains(&true) { 8 } else { 4 }, "of 16 places: {flood:?}");
        let (port, packet) = match is_by_tcp {
            true => (tcp, segment("192.0.2.1:7", "192.0.2.250:9")),
            false => (socket, datagram("192.0.2.1:7", "192.0.2.250:9", b"out")),
        };
        assert_eq!(offer(&mut host, port, [packet]), 1, "{flood:?}");
        let question = made(&mut host).expect("a question");
        assert_eq!((&question[12..14], &question[38..42]), (&[8, 6][..], &[192, 0, 2, 250][..]), "ARP");
        let mut outbox = Outbox::new(1);
        let own = Speaker { interface: INTERFACE, mac: PEER, address: [192, 0, 2, 250].into() };
        resolve::tell_arp(&mut outbox, own, [192, 0, 2, 1].into(), HOST);
        let answer = Pkt(outbox.pop().expect("an answer").1.to_vec(), Meta::default());
        assert_eq!(process(&mut host, INTERFACE, answer).0, Verdict::Local);
        let (packet, verdict) = host.release(&Carried, 0).expect("the packet goes");
        assert_eq!((verdict, &packet.0[..6]), (Verdict::Forward(INTERFACE), &PEER[..]));
    }
}

proptest! {
    /// Any bytes by a port, sealed by a right Ethernet and IP version or not, are decided without panic, and leave by a port there is.
    #[test]
    fn any_bytes_are_decided(
        mut bytes in prop::collection::vec(any::<u8>(), 0..120), to_us in any::<bool>(), version in 0u8..3,
        protocol in prop::sample::select(vec![1u8, 17, 58, 6]), ingress in 0..=SOCKETS + 1,
    ) {
        let mut host = host_with(true);
        host.bind(binding("0.0.0.0", 7, None), 0).expect("bound");
        if to_us && bytes.len() > 60 {
            bytes[..6].copy_from_slice(&HOST);
            match version {
                0 => {
                    bytes[12..15].copy_from_slice(&[8, 0, 0x45]);
                    let total = (bytes.len() - 14) as u16;
                    bytes[16..18].copy_from_slice(&total.to_be_bytes());
                    bytes[23] = protocol;
                    bytes[26..34].copy_from_slice(&[192, 0, 2, 2, 192, 0, 2, 1]);
                    Ipv4Packet::new_unchecked(&mut bytes[14..]).fill_checksum();
                }
                1 => bytes[12..15].copy_from_slice(&[0x86, 0xdd, 0x60]),
                _ => {}
            }
        }
        match process(&mut host, ingress, Pkt(bytes, Meta::default())).0 {
            Verdict::Forward(out) => prop_assert!(out <= SOCKETS + 1),
            Verdict::Fragment(out) => prop_assert_eq!(out, INTERFACE),
            Verdict::Hold(_) | Verdict::Local | Verdict::Drop(_) => {}
        }
    }
}

#[test]
fn sums_of_datagrams_are_those_of_smoltcp() {
    for len in 0..64u8 {
        let payload: Vec<u8> = (0..len).map(|byte| byte.wrapping_mul(37)).collect();
        let packet = datagram("192.0.2.2:9", "192.0.2.1:7", &payload);
        assert_eq!(transport_sum(UDP, &packet.0[34..], &packet.0[26..34]), 0xffff, "{len}");
    }
}
