//! The port of all TCP by itself, its segments made here and the time given: floods, strange segments, and timers without a wait.

use std::net::SocketAddr;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::Ordering;

use proptest::prelude::*;
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    IpProtocol, Ipv4Address, Ipv4Packet, Ipv4Repr, TcpControl, TcpPacket, TcpRepr, TcpSeqNumber,
};

use smoltcp::socket::tcp::State;
use smoltcp::time::Duration;

use super::*;
use crate::tcp::half_open::HALF_OPEN_MAX;
use crate::tcp::model::TcpModel;

const SERVER: Ipv4Address = Ipv4Address::new(192, 0, 2, 2);
const PORT: u16 = 7;
const CONNECTIONS: u16 = 4;
const SECOND: u64 = 1_000_000_000;

/// The port, and its listener.
struct Bed(TcpModel);

impl Deref for Bed {
    type Target = TcpModel;

    fn deref(&self) -> &TcpModel {
        &self.0
    }
}

impl DerefMut for Bed {
    fn deref_mut(&mut self) -> &mut TcpModel {
        &mut self.0
    }
}

/// The header fields of a segment.
#[derive(Clone, Copy, Debug)]
struct Says {
    from: (Ipv4Address, u16),
    control: TcpControl,
    seq: i32,
    ack: Option<i32>,
}

/// A segment that was sent: its destination port, its flags, its sequence number and its acknowledgement.
type Went = (u16, TcpControl, i32, Option<i32>);

impl Bed {
    /// A port with a listener.
    fn new(backlog: u32) -> Bed {
        Bed(TcpModel::new(SocketAddr::new(SERVER.into(), PORT), CONNECTIONS, 4096, backlog))
    }

    /// A port with a listener that asks quiet peers for a sign of life after so many seconds.
    fn with_keepalive_s(seconds: u64) -> Bed {
        let keepalive = Some(Duration::from_secs(seconds));
        let settings =
            TcpSettings { connections: CONNECTIONS, buffer_bytes: 4096, mtu_bytes: 1500, keepalive };
        Bed(TcpModel::with(SocketAddr::new(SERVER.into(), PORT), settings, 16))
    }

    /// Opens a connection that an application takes; returns the sequence number of the first byte that it will send.
    fn open(&mut self, from: (Ipv4Address, u16)) -> i32 {
        self.put(syn(from));
        let seq = self.poll().first().expect("it is answered").2;
        self.put(Says { from, control: TcpControl::None, seq: 101, ack: Some(seq + 1) });
        assert!(self.0.accept());
        seq + 1
    }

    fn put_bytes(&mut self, ip: &[u8]) {
        self.0.put(ip);
    }

    fn put(&mut self, says: Says) {
        self.put_bytes(&segment(says, &[]));
    }

    /// All segments that the port sends.
    fn poll(&mut self) -> Vec<Went> {
        read(&self.0.poll())
    }

    /// Lets time pass to each timer until then; returns the segments that were sent.
    fn pass_until(&mut self, end_ns: u64) -> Vec<Went> {
        read(&self.0.pass_until(end_ns))
    }
}

fn read(went: &[Vec<u8>]) -> Vec<Went> {
    let of = |bytes: &Vec<u8>| {
        let ip = Ipv4Packet::new_checked(bytes).expect("IPv4");
        assert!(ip.verify_checksum());
        let tcp = TcpPacket::new_checked(ip.payload()).expect("TCP");
        assert!(tcp.verify_checksum(&ip.src_addr().into(), &ip.dst_addr().into()));
        let control = match (tcp.syn(), tcp.fin(), tcp.rst()) {
            (true, ..) => TcpControl::Syn,
            (_, true, _) => TcpControl::Fin,
            (.., true) => TcpControl::Rst,
            _ => TcpControl::None,
        };
        let ack = tcp.ack().then(|| tcp.ack_number().0);
        (tcp.dst_port(), control, tcp.seq_number().0, ack)
    };
    went.iter().map(of).collect()
}

fn segment(says: Says, payload: &[u8]) -> Vec<u8> {
    segment_with_window(says, 4096, payload)
}

fn segment_with_window(says: Says, window_bytes: u16, payload: &[u8]) -> Vec<u8> {
    packet(says.from.0, &tcp(says, window_bytes, payload))
}

fn tcp(says: Says, window_bytes: u16, payload: &[u8]) -> TcpRepr<'_> {
    let Says { from, control, seq, ack } = says;
    TcpRepr {
        src_port: from.1,
        dst_port: PORT,
        control,
        seq_number: TcpSeqNumber(seq),
        ack_number: ack.map(TcpSeqNumber),
        window_len: window_bytes,
        window_scale: None,
        max_seg_size: (control == TcpControl::Syn).then_some(1460),
        sack_permitted: false,
        sack_ranges: [None; 3],
        timestamp: None,
        payload,
    }
}

/// The IP packet of a segment.
fn packet(from: Ipv4Address, tcp: &TcpRepr<'_>) -> Vec<u8> {
    let ip = Ipv4Repr {
        src_addr: from,
        dst_addr: SERVER,
        next_header: IpProtocol::Tcp,
        payload_len: tcp.buffer_len(),
        hop_limit: 64,
    };
    let mut bytes = vec![0; 20 + tcp.buffer_len()];
    let checksums = ChecksumCapabilities::default();
    ip.emit(&mut Ipv4Packet::new_unchecked(&mut bytes[..]), &checksums);
    tcp.emit(&mut TcpPacket::new_unchecked(&mut bytes[20..]), &from.into(), &SERVER.into(), &checksums);
    bytes
}

fn syn(from: (Ipv4Address, u16)) -> Says {
    Says { from, control: TcpControl::Syn, seq: 100, ack: None }
}

fn flooder(number: u32) -> (Ipv4Address, u16) {
    (Ipv4Address::from(0x0a00_0000 + number / 50_000), 1000 + (number % 50_000) as u16)
}

const HONEST: (Ipv4Address, u16) = (Ipv4Address::new(192, 0, 2, 1), 999);

#[test]
fn an_honest_client_gets_in_through_a_flood_of_syns() {
    let mut bed = Bed::new(16);
    let mut number = 0;
    let mut flood = |bed: &mut Bed, count: u32| {
        for _ in 0..count {
            bed.put(syn(flooder(number)));
            number += 1;
            if number % 32 == 0 {
                bed.poll();
            }
        }
    };
    flood(&mut bed, 20_000);
    bed.put(syn(HONEST));
    let answers = bed.poll();
    let &(_, control, seq, ack) = answers.iter().find(|answer| answer.0 == HONEST.1).expect("it is answered");
    assert_eq!((control, ack), (TcpControl::Syn, Some(101)));
    // As many SYNs come before the client's acknowledgement as there may be half-open connections.
    flood(&mut bed, HALF_OPEN_MAX as u32 - 1);
    bed.put(Says { from: HONEST, control: TcpControl::None, seq: 101, ack: Some(seq + 1) });
    let accepted = bed.accepted.pop().expect("it is there");
    assert_eq!(accepted.flow.peer, SocketAddr::new(HONEST.0.into(), HONEST.1));
    assert!(bed.accepted.pop().is_none());
    flood(&mut bed, 1000);
    assert_eq!(bed.places_in_use(), HALF_OPEN_MAX + 1);
    assert!(bed.0.port.connections.len() <= HALF_OPEN_MAX + 2, "memory is bounded");
    assert!(bed.waiting.replaced.load(Ordering::Relaxed) > 15_000);
    // Half-open connections that do not go on are forgotten, and a connection that waits is reset when the listener goes.
    bed.pass_until(60 * SECOND);
    assert_eq!(bed.places_in_use(), 1);
    bed.0.port.stop_listening(1, &mut bed.0.frames);
    let reset = bed.poll();
    assert_eq!(reset.iter().map(|it| (it.0, it.1)).collect::<Vec<_>>(), [(HONEST.1, TcpControl::Rst)]);
    assert_eq!(bed.places_in_use(), 0);
    bed.require_clean();
}

/// The memory of this process that is no file's, in bytes.
fn anonymous_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("the state of this process");
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).expect("its memory");
    let kib: usize = line.trim().trim_end_matches(" kB").parse().expect("a number");
    kib * 1024
}

#[test]
fn the_buffers_of_half_open_connections_are_mostly_address_space() {
    let settings =
        TcpSettings { connections: CONNECTIONS, buffer_bytes: 64 << 10, mtu_bytes: 1500, keepalive: None };
    let mut bed = Bed(TcpModel::with(SocketAddr::new(SERVER.into(), PORT), settings, 16));
    let before = anonymous_bytes();
    for number in 0..HALF_OPEN_MAX as u32 {
        bed.put(syn(flooder(number)));
        bed.poll();
    }
    assert_eq!(bed.places_in_use(), HALF_OPEN_MAX);
    let taken = anonymous_bytes().saturating_sub(before);
    // 74 MB by itself; the rest is for the other tests of this process, which run at the same time.
    assert!(taken < HALF_OPEN_MAX * (64 << 10), "{taken} bytes for half of the buffers or more");
}

#[test]
fn a_connection_that_is_quiet_stays() {
    let mut bed = Bed::new(16);
    bed.put(syn(HONEST));
    let &(_, _, seq, _) = bed.poll().first().expect("it is answered");
    bed.put(Says { from: HONEST, control: TcpControl::None, seq: 101, ack: Some(seq + 1) });
    assert!(bed.accepted.pop().is_some());
    assert_eq!(bed.pass_until(1000 * SECOND), [], "nobody is asked for anything");
    assert_eq!(bed.places_in_use(), 1);
    let data =
        segment(Says { from: HONEST, control: TcpControl::None, seq: 101, ack: Some(seq + 1) }, b"now");
    bed.put_bytes(&data);
    let end_ns = bed.now_ns + SECOND;
    assert_eq!(bed.pass_until(end_ns), [(HONEST.1, TcpControl::None, seq + 1, Some(104))]);
    bed.0.port.stop_listening(1, &mut bed.0.frames);
    bed.poll();
    bed.require_clean();
}

#[test]
fn a_peer_that_has_vanished_is_asked_three_times_and_given_up() {
    let mut bed = Bed::with_keepalive_s(30);
    let seq = bed.open(HONEST);
    assert_eq!(bed.pass_until(29 * SECOND), [], "it is not quiet for long yet");
    // A question repeats the last byte that the peer has acknowledged, so the peer acknowledges it again.
    let question = (HONEST.1, TcpControl::None, seq - 1, Some(101));
    assert_eq!(bed.pass_until(31 * SECOND), [question]);
    assert_eq!(bed.pass_until(119 * SECOND), [question; 2]);
    assert_eq!((bed.places_in_use(), bed.error(0)), (1, None));
    assert_eq!(bed.pass_until(121 * SECOND), [(HONEST.1, TcpControl::Rst, seq, Some(101))]);
    assert_eq!(bed.error(0), Some(libc::ETIMEDOUT));
    bed.close(0);
    assert_eq!(bed.places_in_use(), 0, "its place is free");
    bed.end();
}

#[test]
fn a_peer_that_answers_one_question_in_three_stays() {
    let mut bed = Bed::with_keepalive_s(30);
    let seq = bed.open(HONEST);
    for _ in 0..100 {
        let end_ns = bed.now_ns + 91 * SECOND;
        let asked = bed.pass_until(end_ns);
        assert_eq!(asked, [(HONEST.1, TcpControl::None, seq - 1, Some(101)); 3]);
        bed.put(Says { from: HONEST, control: TcpControl::None, seq: 101, ack: Some(seq) });
        bed.poll();
    }
    assert_eq!((bed.places_in_use(), bed.error(0)), (1, None));
    bed.end();
}

#[test]
fn a_peer_that_owes_an_acknowledgement_is_not_asked_and_has_its_two_minutes() {
    let mut bed = Bed::with_keepalive_s(1);
    let seq = bed.open(HONEST);
    bed.write(0, 1);
    let sent = bed.pass_until(110 * SECOND);
    assert!(sent.len() > 3 && sent.iter().all(|it| it.2 == seq), "its byte is sent again: {sent:?}");
    assert_eq!(bed.error(0), None);
    bed.pass_until(125 * SECOND);
    assert_eq!(bed.error(0), Some(libc::ETIMEDOUT));
    bed.end();
}

#[test]
fn the_end_of_a_connection_is_waited_for_though_it_is_quiet() {
    let mut bed = Bed::with_keepalive_s(1);
    let seq = bed.open(HONEST);
    bed.close(0);
    assert_eq!(bed.poll(), [(HONEST.1, TcpControl::Fin, seq, Some(101))]);
    bed.put(Says { from: HONEST, control: TcpControl::Fin, seq: 101, ack: Some(seq + 1) });
    let end_ns = bed.now_ns + 9 * SECOND;
    let acknowledged = bed.pass_until(end_ns);
    assert!(acknowledged.iter().all(|it| it.1 == TcpControl::None), "no reset: {acknowledged:?}");
    assert_eq!(bed.places_in_use(), 1, "TIME-WAIT");
    bed.end();
}

#[test]
fn a_segment_for_nobody_is_answered_by_a_reset_and_a_reset_by_nothing() {
    let mut bed = Bed::new(16);
    bed.put(Says { from: HONEST, control: TcpControl::None, seq: 5, ack: Some(77) });
    assert_eq!(bed.poll(), [(HONEST.1, TcpControl::Rst, 77, None)]);
    bed.put(Says { from: HONEST, control: TcpControl::Rst, seq: 5, ack: Some(77) });
    assert!(bed.poll().is_empty());
    let mut nobody = 0;
    bed.0.port.complete(&mut bed.0.frames, |count, fate| {
        assert_eq!(fate, Completion::Dropped(DropReason::NoHandler));
        nobody += count.packets;
    });
    assert_eq!((nobody, bed.places_in_use()), (2, 0));
    bed.require_clean();
}

#[test]
fn answers_that_cannot_leave_are_bounded() {
    let mut bed = Bed::new(16);
    for _ in 0..3 * ANSWERS_MAX {
        bed.put(Says { from: HONEST, control: TcpControl::None, seq: 5, ack: Some(77) });
    }
    assert_eq!(bed.poll().len(), ANSWERS_MAX);
    bed.require_clean();
}

#[test]
fn who_asks_and_resets_takes_no_place() {
    let mut bed = Bed::new(16);
    bed.put(syn(HONEST));
    bed.put(Says { from: HONEST, control: TcpControl::Rst, seq: 101, ack: None });
    // A reset of the kernel's has an acknowledgement or has not.
    bed.put(Says { from: HONEST, control: TcpControl::Rst, seq: 101, ack: Some(1) });
    bed.poll();
    bed.pass_until(60 * SECOND);
    assert_eq!(bed.places_in_use(), 0);
    bed.require_clean();
}

#[test]
fn a_full_queue_drops_the_syn_and_counts_it() {
    let mut bed = Bed::new(1);
    bed.put(syn(HONEST));
    let (_, _, seq, _) = bed.poll()[0];
    bed.put(Says { from: HONEST, control: TcpControl::None, seq: 101, ack: Some(seq + 1) });
    bed.put(syn(flooder(0)));
    assert!(bed.poll().is_empty());
    assert_eq!(bed.waiting.refused.load(Ordering::Relaxed), 1);
    let mut full = 0;
    bed.0.port.complete(&mut bed.0.frames, |count, fate| {
        full += if fate == Completion::Dropped(DropReason::SocketFull) { count.packets } else { 0 };
    });
    assert_eq!(full, 1);
}

#[test]
fn connections_that_are_confirmed_when_there_is_no_room_are_reset_and_counted() {
    let mut bed = Bed::new(16);
    let clients = (0..u32::from(CONNECTIONS) + 2).map(flooder);
    let asked: Vec<_> = clients
        .map(|from| {
            bed.put(syn(from));
            (from, bed.poll()[0].2)
        })
        .collect();
    let mut resets = 0;
    for (from, seq) in asked {
        bed.put(Says { from, control: TcpControl::None, seq: 101, ack: Some(seq + 1) });
        resets += bed.poll().iter().filter(|it| it.1 == TcpControl::Rst).count();
    }
    assert_eq!((resets, bed.waiting.refused.load(Ordering::Relaxed)), (2, 2));
    assert_eq!(bed.waiting.connections.load(Ordering::Relaxed), u32::from(CONNECTIONS));
}

#[test]
fn a_connection_to_nobody_is_asked_for_again_and_given_up() {
    let mut bed = Bed::new(1);
    let flow = Flow {
        local: SocketAddr::new(SERVER.into(), 4000),
        peer: "192.0.2.9:9".parse().expect("an address"),
    };
    let connection = bed.0.port.connect(flow).expect("a place");
    assert_eq!(bed.0.port.connect(flow), Err(NoConnection::InUse));
    let asked = bed.pass_until(100 * SECOND);
    assert!(asked.len() >= 4 && asked.iter().all(|it| it.1 == TcpControl::Syn), "{asked:?}");
    assert_ne!(bed.0.port.connections[connection as usize].state(), State::Closed);
    bed.pass_until(200 * SECOND);
    assert!(bed.0.port.connections[connection as usize].is_over());
    for port in 0..CONNECTIONS - 1 {
        let local = SocketAddr::new(SERVER.into(), 5000 + port);
        bed.0.port.connect(Flow { local, ..flow }).expect("a place");
    }
    let local = SocketAddr::new(SERVER.into(), 4001);
    assert_eq!(bed.0.port.connect(Flow { local, ..flow }), Err(NoConnection::Full));
    bed.0.port.leave(connection, &mut bed.0.frames);
    bed.0.port.connect(Flow { local, ..flow }).expect("the place that was given up");
}

fn control() -> impl Strategy<Value = TcpControl> {
    use TcpControl::{Fin, None, Psh, Rst, Syn};
    prop::sample::select(vec![None, Psh, Fin, Syn, Rst])
}

proptest! {
    /// No segment, and no bytes behind a right IP header, make the port panic, and every frame comes back.
    #[test]
    fn nothing_that_comes_panics(
        says in prop::collection::vec(
            (0..3u16, control(), -2..3i32, prop::option::of(-2..3i32), 0..40usize, any::<bool>()),
            1..60,
        ),
        noise in prop::collection::vec(any::<u8>(), 20..60),
    ) {
        let mut bed = Bed::new(16);
        let mut last = [(0, 0); 3];
        for (client, control, seq, ack, len, is_noise) in says {
            let from = (HONEST.0, HONEST.1 + client);
            let (seq_next, ack_next) = last[usize::from(client)];
            let ack = ack.map(|ack: i32| ack.wrapping_add(ack_next));
            let seq = seq_next + seq;
            let mut bytes = segment(Says { from, control, seq, ack }, &[7; 40][..len]);
            if is_noise {
                let at = 20 + 12;
                let count = noise.len().min(bytes.len() - at);
                bytes[at..at + count].copy_from_slice(&noise[..count]);
                // The host lets only parseable segments through.
                if TcpPacket::new_checked(&bytes[20..]).is_err() {
                    continue;
                }
            }
            bed.put_bytes(&bytes);
            last[usize::from(client)].0 = seq.wrapping_add(1 + len as i32);
            for (port, _, seq, _) in bed.poll() {
                if let Some(last) = last.get_mut(usize::from(port - HONEST.1)) {
                    last.1 = seq.wrapping_add(1);
                }
            }
            let now_ns = bed.now_ns + SECOND / 7;
            bed.pass_until(now_ns);
        }
        bed.0.port.stop_listening(1, &mut bed.0.frames);
        let now_ns = bed.now_ns + 300 * SECOND;
        bed.pass_until(now_ns);
        prop_assert_eq!(bed.places_in_use(), 0);
        bed.require_clean();
    }
}

#[path = "challenge_tests.rs"]
mod challenge;
#[path = "path_mtu_tests.rs"]
mod path_mtu;
#[path = "patience_tests.rs"]
mod patience;
#[path = "reuse_tests.rs"]
mod reuse;
#[path = "window_tests.rs"]
mod window;
