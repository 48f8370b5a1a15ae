//! A listening host, shown TCP segments with right checksums and wrong ones, in an order and not, while time passes, its way out is held or
//! not, and applications accept, read, write and close.
//!
//! Segments that the host lets through have right checksums, and so have those that it sends; connections, answers and frames stay within
//! their bounds ([`TcpModel::check`]), also in a flood; and when all let go, nothing is left of any of them.

use std::net::{IpAddr, SocketAddr};

use etherparse::{
    EtherType, IpNumber, Ipv4Header, Ipv4HeaderSlice, Ipv6Header, Ipv6HeaderSlice, TcpHeader,
    TcpOptionElement, TcpSlice,
};
use smoltcp::wire::EthernetAddress;
use weir_core::net::route::Interface;
use weir_core::net::router::{Router, RouterSettings, StaticNeighbour, Verdict};
use weir_core::net::sockets::HostSettings;
use weir_core::packet::{Carried, Meta};
use weir_core::steer::key::Key;
use weir_socket::TcpModel;

use super::router::Pkt;
use crate::draw::Draw;
use crate::frames::ethernet;

const HOST: [u8; 6] = [2, 0, 0, 0, 0, 1];
const PEER: [u8; 6] = [2, 0, 0, 0, 0, 2];
/// The addresses of the host, and of the peer that asks for connections, by family.
const OWN: [&str; 2] = ["192.0.2.1", "2001:db8::1"];
const PEERS: [&str; 2] = ["192.0.2.2", "2001:db8::2"];
const PORT: u16 = 7;
const CONNECTIONS: u16 = 3;
/// The ports of the stage: the interface, a socket, and all TCP.
const TCP: u16 = 2;
const STEPS: usize = 64;
/// More than may be half open.
const FLOOD: u32 = 4200;
const SECOND_NS: u64 = 1_000_000_000;

/// The numbers that a client's next segment would have if it were honest.
#[derive(Clone, Copy, Default)]
struct Client {
    seq: u32,
    ack: u32,
}

struct Bed {
    own: IpAddr,
    peer: IpAddr,
    host: Router<Pkt>,
    model: TcpModel,
    clients: [Client; 4],
}

/// Segments, as they come.
pub fn tcp_segments(bytes: &[u8]) {
    let mut draw = Draw::new(bytes);
    // Windows of the longer buffers are scaled.
    let buffer_bytes = draw.pick(&[4096, 64 << 10, 1 << 20]);
    let mut bed = Bed::new(usize::from(draw.rarely(3)), buffer_bytes, draw.pick(&[1, 2, 16]));
    let mut is_held = false;
    for _ in 0..STEPS {
        if draw.is_empty() {
            break;
        }
        let some = usize::from(draw.u8());
        let streams = bed.model.streams();
        match draw.below(16) {
            0 | 1 => {
                // From no time at all to more than the time after which a peer is given up.
                let more_ns = draw.any_u64() % (130 * SECOND_NS);
                let went = bed.model.pass(more_ns);
                bed.note(&went);
            }
            2 | 3 => drop(bed.model.accept()),
            4 if streams > 0 => drop(bed.model.read(some % streams)),
            5 if streams > 0 => bed.model.write(some % streams, draw.u16() % 2000),
            6 if streams > 0 => bed.model.close(some % streams),
            7 => is_held = draw.flag(),
            8 if draw.rarely(255) && draw.rarely(4) => bed.flood(),
            _ => {
                let frame = bed.segment(&mut draw, some % bed.clients.len());
                bed.comes(frame);
            }
        }
        if !is_held {
            let went = bed.model.poll();
            bed.note(&went);
        }
    }
    bed.model.end();
}

impl Bed {
    fn new(family: usize, buffer_bytes: u32, backlog: u32) -> Bed {
        let address = |text: &str| text.parse::<IpAddr>().expect("an address");
        let host = HostSettings {
            sockets: 1,
            has_tcp: true,
            held_packets_max: 64,
            key: Key::SYMMETRIC,
            bucket_bits: 0,
        };
        let settings = RouterSettings {
            interfaces: vec![Interface {
                mac: EthernetAddress(HOST),
                mtu_bytes: 1500,
                addresses: ["192.0.2.1/24", "2001:db8::1/64"].map(|text| text.parse().expect("one")).into(),
            }],
            routes: Vec::new(),
            neighbours: PEERS
                .map(|text| StaticNeighbour {
                    interface: 0,
                    address: address(text),
                    mac: EthernetAddress(PEER),
                })
                .into(),
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
        };
        let own = address(OWN[family]);
        Bed {
            own,
            peer: address(PEERS[family]),
            host: Router::new(settings, 0).expect("a host"),
            model: TcpModel::new(SocketAddr::new(own, PORT), CONNECTIONS, buffer_bytes, backlog),
            clients: Default::default(),
        }
    }

    /// A segment of a client, honest in each part or not.
    fn segment(&mut self, draw: &mut Draw, client: usize) -> Vec<u8> {
        let Client { seq, ack } = &mut self.clients[client];
        let mut tcp = TcpHeader::new(4000 + client as u16, PORT, *seq, draw.u16());
        tcp.acknowledgment_number = *ack;
        if draw.rarely(4) {
            let more = draw.pick(&[1, 0u32.wrapping_sub(1), 1000, 5000, 65_000, 1 << 31]);
            tcp.sequence_number = seq.wrapping_add(more);
        }
        if draw.rarely(4) {
            tcp.acknowledgment_number =
                ack.wrapping_add(draw.pick(&[1, 0u32.wrapping_sub(1), 1000, 1 << 31]));
        }
        // SYN, ACK, ACK, PSH and ACK, FIN and ACK, RST, or any.
        let any = draw.u8();
        let flags = draw.pick(&[0x02, 0x10, 0x10, 0x18, 0x11, 0x04, any]);
        (tcp.fin, tcp.syn, tcp.rst, tcp.psh) =
            (flags & 1 != 0, flags & 2 != 0, flags & 4 != 0, flags & 8 != 0);
        (tcp.ack, tcp.urg) = (flags & 0x10 != 0, flags & 0x20 != 0);
        if draw.rarely(6) {
            tcp.destination_port = draw.u16();
        }
        if draw.rarely(3) {
            let words = draw.below(11);
            tcp.set_options_raw(&draw.bytes(4 * words)).expect("40 bytes at the most");
        } else if tcp.syn {
            tcp.set_options(&[TcpOptionElement::WindowScale(draw.u8() % 15)]).expect("it has room");
        }
        let len = if draw.rarely(3) { draw.below(1400) } else { draw.below(8) };
        let payload = draw.bytes(len);
        *seq = tcp.sequence_number.wrapping_add(len as u32 + u32::from(tcp.syn) + u32::from(tcp.fin));
        let mut frame = self.frame(tcp, &payload);
        if draw.rarely(4) {
            for _ in 0..1 + draw.below(3) {
                let at = draw.below(frame.len().min(90));
                frame[at] = draw.u8();
            }
        }
        if draw.rarely(16) {
            frame.truncate(draw.below(frame.len() + 1));
        }
        frame
    }

    /// With right checksums.
    fn frame(&self, mut tcp: TcpHeader, payload: &[u8]) -> Vec<u8> {
        let len = tcp.header_len() + payload.len();
        let (ip, ethertype) = match (self.peer, self.own) {
            (IpAddr::V4(peer), IpAddr::V4(own)) => {
                let checksum = tcp.calc_checksum_ipv4_raw(peer.octets(), own.octets(), payload);
                tcp.checksum = checksum.expect("short");
                let header = Ipv4Header::new(len as u16, 64, IpNumber::TCP, peer.octets(), own.octets());
                let mut header = header.expect("short");
                header.header_checksum = header.calc_header_checksum();
                (header.to_bytes().to_vec(), EtherType::IPV4)
            }
            (IpAddr::V6(peer), IpAddr::V6(own)) => {
                let checksum = tcp.calc_checksum_ipv6_raw(peer.octets(), own.octets(), payload);
                tcp.checksum = checksum.expect("short");
                let header = Ipv6Header {
                    payload_length: len as u16,
                    next_header: IpNumber::TCP,
                    hop_limit: 64,
                    source: peer.octets(),
                    destination: own.octets(),
                    ..Default::default()
                };
                (header.to_bytes().to_vec(), EtherType::IPV6)
            }
            _ => unreachable!("both are of one family"),
        };
        ethernet(HOST, PEER, ethertype, &[&ip[..], &tcp.to_bytes(), payload].concat())
    }

    /// A frame comes to the host, and from there to TCP if it is right.
    fn comes(&mut self, frame: Vec<u8>) {
        let (mut packets, mut verdicts) = ([Pkt(frame, Meta::default())], [Verdict::Local]);
        self.host.process(0, &mut packets, &Carried, 0, &mut verdicts);
        while self.host.made().is_some() {}
        let [Pkt(frame, _)] = packets;
        if verdicts == [Verdict::Forward(TCP)] {
            require_right(&frame[14..]);
            self.model.put(&frame[14..]);
        }
    }

    /// More ask for a connection, each from a port of its own, than may be half open.
    fn flood(&mut self) {
        for number in 0..FLOOD {
            let mut tcp = TcpHeader::new(10_000 + number as u16, PORT, number, 1000);
            tcp.syn = true;
            let frame = self.frame(tcp, &[]);
            self.comes(frame);
            if number % 64 == 0 {
                self.model.poll();
            }
        }
    }

    /// Requires that the host's packets are right, and lets clients learn what to answer.
    fn note(&mut self, went: &[Vec<u8>]) {
        for ip in went {
            let (tcp, payload) = require_right(ip);
            let client = tcp.destination_port.wrapping_sub(4000);
            if let Some(client) = self.clients.get_mut(usize::from(client)) {
                client.ack = tcp
                    .sequence_number
                    .wrapping_add(payload as u32 + u32::from(tcp.syn) + u32::from(tcp.fin));
                if tcp.ack {
                    client.seq = tcp.acknowledgment_number;
                }
            }
        }
    }
}

/// A segment whose checksums are right, and how long its payload is.
fn require_right(ip: &[u8]) -> (TcpHeader, usize) {
    let (segment, sum) = match ip[0] >> 4 {
        4 => {
            let header = Ipv4HeaderSlice::from_slice(ip).expect("IPv4");
            assert_eq!(header.to_header().calc_header_checksum(), header.header_checksum(), "{ip:02x?}");
            let tcp = TcpSlice::from_slice(&ip[header.slice().len()..usize::from(header.total_len())]);
            let tcp = tcp.expect("TCP");
            let sum = tcp.calc_checksum_ipv4(header.source(), header.destination());
            (tcp, sum)
        }
        _ => {
            let header = Ipv6HeaderSlice::from_slice(ip).expect("IPv6");
            let tcp = TcpSlice::from_slice(&ip[40..40 + usize::from(header.payload_length())]).expect("TCP");
            let sum = tcp.calc_checksum_ipv6(header.source(), header.destination());
            (tcp, sum)
        }
    };
    assert_eq!(Ok(segment.checksum()), sum, "{ip:02x?}");
    (segment.to_header(), segment.payload().len())
}
