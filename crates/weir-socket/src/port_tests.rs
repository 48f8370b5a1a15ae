//! Sockets behind one limit, in virtual time, on the worker that ships: senders are held, none is passed over, and nothing is lost.

use std::net::SocketAddr;
use std::thread;

use weir_core::drops::DropReason;
use weir_core::net::icmp::{Fault, tell_sender};
use weir_core::net::sockets::Binding;
use weir_core::packet::count_of;
use weir_path::either_port::EitherPort;
use weir_path::frames::Frames;
use weir_path::packet::PathPacket;
use weir_path::traffic::port::MemoryPort;
use weir_path::traffic::sequence::Sequences;
use weir_path::worker::Worker;
use weir_ring::doorbell::Doorbell;
use weir_ring::memory::FrameMemory;
use weir_ring::pool::Pool;

use super::*;
use crate::builder::{MEMORY_FRAME_BYTES, StackBuilder, mac_of};
use crate::datagram::write_headers;
use crate::half::{BufferSizes, Caller, Halves, halves};
use crate::layout::{Layout, WorkerPortion};
use crate::tcp::state::News;
use crate::worker::{StackPort, socket_port};

const FRAME_BYTES: u16 = 1000;
const SEND_FRAMES: u32 = 32;
const RECEIVE_PACKETS: u32 = 16;
const STEP_NS: u64 = 100_000;

struct Bed {
    path: Worker<StackPort>,
    halves: Vec<Halves>,
    now_ns: u64,
    // The doorbell that a worker would park on.
    _doorbell: Doorbell,
}

impl Bed {
    /// A bed with so many sockets bound to ports from 1000 on, behind a limit.
    fn new(sockets: u16, rate: Option<&str>, full: FullRule) -> Bed {
        let mut builder = StackBuilder::default().address("192.0.2.1/24").neighbour("192.0.2.2", [2; 6]);
        builder = builder.sockets(sockets).buffer_frames_max(SEND_FRAMES);
        if let Some(rate) = rate {
            builder = builder.rate(rate.parse().expect("a rate"));
        }
        let host = builder.host(mac_of(0), 1500, 1).expect("a host");
        let memory = FrameMemory::new(builder.frames(1, 1, 0).expect("few frames"), MEMORY_FRAME_BYTES)
            .expect("memory");
        let interface = MemoryPort::sink(Sequences::new(1));
        let interface = EitherPort::Kernel(Box::new(interface));
        let interface = EitherPort::Kernel(Box::new(EitherPort::Memory(Box::new(interface))));
        let tcp = builder.tcp(1500);
        let tcp = vec![(tcp, Arc::new(News::new(tcp.places())))];
        let frames = Frames::new(Pool::new(memory));
        let portion = WorkerPortion { interfaces: vec![interface], frames, tcp };
        let layout = Layout { hosts: &[host], interfaces: &[("interface", builder.limits())] };
        let path = layout.workers(vec![portion], None, 0).expect("workers").remove(0);
        let doorbell = Doorbell::with_full_fences().expect("a doorbell");
        let mut bed = Bed { path, halves: Vec::new(), now_ns: 0, _doorbell: doorbell };
        for socket in 0..sockets {
            let sizes = BufferSizes { send_frames: SEND_FRAMES, receive_packets: RECEIVE_PACKETS, full };
            let caller = Caller { worker: bed._doorbell.ringer(), news: None };
            let (half, mut open) = halves(sizes, &[caller], 0, None).expect("halves");
            let open = open.pop().expect("a lane");
            let binding = Binding { address: [0; 4].into(), port: 1000 + socket, bucket: None };
            bed.path.bind(0, binding, socket).expect("bound");
            let (port, frames) = socket_port(&mut bed.path, 1 + usize::from(socket)).expect("a socket");
            port.open(open, frames);
            bed.halves.push(half);
        }
        bed
    }

    /// Sends as many datagrams as the send buffer of a socket takes, `most` at the most, to this address; returns their number.
    fn send(&mut self, socket: usize, to: &str, most: usize) -> usize {
        let from = SocketAddr::from(([192, 0, 2, 1], 1000 + socket as u16));
        let memory = Arc::clone(self.path.frames().memory());
        let send = &mut self.halves[socket].send;
        let mut count = 0;
        while count < most
            && let Some(frame) = send.take_frame()
        {
            let mut packet = PathPacket::new(frame, 0, FRAME_BYTES);
            write_headers(packet.bytes_mut(&memory), from, to.parse().expect("an address"), 0);
            send.stage(packet);
            count += 1;
        }
        send.publish();
        count
    }

    /// Passes until nothing moves, and then lets a step of time pass.
    fn step(&mut self) {
        while self.path.pass(self.now_ns).expect("a pass").moved > 0 {
            assert!(self.balances());
        }
        self.now_ns += STEP_NS;
    }

    fn balances(&self) -> bool {
        let between = self.path.between();
        between.egress.queues().iter().all(|queue| queue.shaping.account().balances(queue.shaping.held()))
            && between.stages().all(|stage| stage.account().balances(stage.held()))
            && self.path.ends().iter().all(|end| end.exit.account().balances(end.port.in_flight()))
    }

    fn dropped(&self) -> u64 {
        let between = self.path.between();
        let queues =
            between.egress.queues().iter().map(|queue| queue.shaping.account().dropped.total().packets);
        let stages = between.stages().map(|stage| stage.account().dropped.total().packets);
        let exits = self.path.ends().iter().map(|end| end.exit.account().dropped.total().packets);
        queues.chain(stages).chain(exits).sum()
    }

    /// The packets that have left by the interface.
    fn left(&self) -> u64 {
        self.path.ends()[0].exit.account().delivered.packets
    }
}

/// The published machine, with more senders: 64 on one limit of 200 Mbit/s, each of which sends whenever it can.
#[test]
fn senders_behind_one_limit_take_turns_and_lose_nothing() {
    const SENDERS: usize = 64;
    let mut bed = Bed::new(SENDERS as u16, Some("200mbit"), FullRule::Hold);
    let mut sent = vec![0u64; SENDERS];
    let (mut wakes, mut empty) = (0, 0);
    for _ in 0..12_000 {
        for (socket, sent) in sent.iter_mut().enumerate() {
            // A socket that is writable sends at least one datagram.
            if bed.halves[socket].send.is_writable() {
                wakes += 1;
                let count = bed.send(socket, "192.0.2.2:9", usize::MAX);
                empty += u64::from(count == 0);
                *sent += count as u64;
            }
        }
        bed.step();
    }
    let (left, seconds) = (bed.left(), bed.now_ns as f64 / 1e9);
    let rate = left as f64 * f64::from(FRAME_BYTES) * 8.0 / seconds;
    assert!((0.97 * 200e6..1.01 * 200e6).contains(&rate), "{:.1} Mbit/s", rate / 1e6);
    let (least, most) = (sent.iter().min().expect("some"), sent.iter().max().expect("some"));
    // Each socket has as many on its way as its buffer and a poll take, and has had as many turns as any.
    assert!(most - least <= u64::from(SEND_FRAMES + POLL_PACKETS_MAX), "{least} to {most}");
    assert!(*least > left / SENDERS as u64 / 2, "{least} of {left}");
    assert_eq!((bed.dropped(), empty), (0, 0));
    assert!(wakes > SENDERS as u64);
}

/// Two sockets send behind one limit. One never sends again once it is held: the other has all of the rate.
#[test]
fn who_never_comes_back_harms_nobody() {
    let mut bed = Bed::new(2, Some("8mbit"), FullRule::Hold);
    bed.send(0, "192.0.2.2:9", usize::MAX);
    for _ in 0..10_000 {
        bed.send(1, "192.0.2.2:9", usize::MAX);
        bed.step();
    }
    let left = bed.left();
    assert!((970..=1040).contains(&left), "{left} packets of 8000 bits in 1 s");
    assert_eq!(bed.dropped(), 0);
}

/// A send buffer is its frames: it takes as many datagrams as it has frames, and one more for each that the path has taken.
#[test]
fn a_full_send_buffer_takes_as_many_as_have_gone() {
    let mut bed = Bed::new(1, Some("8mbit"), FullRule::Hold);
    while bed.send(0, "192.0.2.2:9", usize::MAX) > 0 {
        bed.step();
    }
    let before = bed.left();
    let mut more = 0;
    for _ in 0..1000 {
        bed.step();
        more += bed.send(0, "192.0.2.2:9", usize::MAX) as u64;
    }
    let gone = bed.left() - before;
    assert!(
        gone > 50 && gone.abs_diff(more) <= u64::from(POLL_PACKETS_MAX),
        "{gone} went, {more} came after them"
    );
    assert_eq!(bed.dropped(), 0);
}

/// Unread datagrams fill the receive buffer, then the queue before it, and then hold their senders; other sockets go on.
#[test]
fn a_full_receive_buffer_holds_its_senders_alone() {
    let mut bed = Bed::new(3, None, FullRule::Hold);
    let mut sent = 0;
    for _ in 0..100 {
        sent += bed.send(0, "192.0.2.1:1001", usize::MAX);
        bed.step();
    }
    // The buffer, the queue before it with a poll more, and the send buffer.
    let most = RECEIVE_PACKETS + SEND_FRAMES + 2 * POLL_PACKETS_MAX + SEND_FRAMES;
    assert!((RECEIVE_PACKETS as usize..=most as usize).contains(&sent), "{sent}");
    for _ in 0..100 {
        assert_eq!(bed.send(2, "192.0.2.2:9", 1), 1);
        bed.step();
    }
    assert_eq!((bed.left(), bed.dropped()), (100, 0));
    // The socket is read, and all that was sent comes.
    let mut came = 0;
    for _ in 0..1000 {
        let Halves { receive, returns, .. } = &mut bed.halves[1];
        came += receive.take(usize::MAX, |lane, packet| returns.read(lane, packet.frame, packet.len_bytes));
        returns.publish();
        bed.step();
    }
    assert_eq!((came, bed.dropped()), (sent, 0));
}

/// A socket whose neighbour does not answer is held while a poll's worth of its packets waits, and no other is. When the neighbour is given up
/// it goes on, without any other event.
#[test]
fn a_socket_that_waits_for_a_neighbour_is_held_alone() {
    let mut bed = Bed::new(2, None, FullRule::Hold);
    let mut sent = 0;
    for _ in 0..100 {
        sent += bed.send(0, "192.0.2.9:9", usize::MAX) as u64;
        assert_eq!(bed.send(1, "192.0.2.2:9", 1), 1);
        bed.step();
    }
    let least = u64::from(POLL_PACKETS_MAX + SEND_FRAMES);
    assert!((least..=least + u64::from(POLL_PACKETS_MAX)).contains(&sent), "{sent}");
    assert_eq!(bed.dropped(), 0);
    assert!(bed.left() >= 100, "{} of the other socket's 100 left", bed.left());
    // The worker sleeps whenever it may.
    while bed.now_ns < 3_500_000_000 {
        let pass = bed.path.pass(bed.now_ns).expect("a pass");
        if pass.moved == 0 {
            bed.now_ns = bed.now_ns.max(pass.wake_ns.expect("a time to look again"));
        }
    }
    let stage = bed.path.between().stages().next().expect("the host");
    let dropped = &stage.account().dropped;
    let given_up = dropped.get(DropReason::NoNeighbour).packets;
    assert_eq!(dropped.total().packets, given_up, "none is dropped for want of room");
    assert!(given_up >= u64::from(POLL_PACKETS_MAX), "{given_up} given up");
    assert_eq!(stage.held().packets, sent - given_up, "the others wait now");
    assert!(bed.balances());
}

#[test]
fn a_full_receive_buffer_drops_by_its_owners_rule() {
    let mut bed = Bed::new(2, None, FullRule::Drop);
    for _ in 0..100 {
        assert_eq!(bed.send(0, "192.0.2.1:1001", 1), 1);
        bed.step();
    }
    let dropped = bed.path.ends()[2].exit.account().dropped.get(DropReason::SocketFull).packets;
    assert_eq!(dropped, 100 - u64::from(RECEIVE_PACKETS));
}

/// A closed socket sends its sent datagrams and gives all its frames back. Datagrams for it are dropped by name.
#[test]
fn a_closed_socket_leaves_nothing_behind() {
    let mut bed = Bed::new(2, None, FullRule::Hold);
    bed.step();
    let before = bed.path.frames().pool.census().out;
    bed.send(0, "192.0.2.2:9", 5);
    bed.send(1, "192.0.2.1:1000", 3);
    let mut halves = bed.halves.remove(0);
    let frame = halves.send.take_frame().expect("a frame");
    halves.returns.unused(frame);
    halves.returns.publish();
    drop(halves);
    let close = |bed: &mut Bed| {
        let (port, frames) = socket_port(&mut bed.path, 1).expect("a socket");
        port.close();
        port.finish(frames)
    };
    assert!(!close(&mut bed), "something is still to be sent");
    bed.step();
    assert!(close(&mut bed));
    bed.step();
    let closed = bed.path.ends()[1].exit.account().dropped.get(DropReason::SocketClosed).packets;
    assert_eq!((bed.left(), closed), (5, 3));
    assert_eq!(bed.path.frames().pool.census().out, before - u64::from(SEND_FRAMES));
}

/// A socket of two workers reads the datagrams of both in turns and returns their frames to the worker that they came by. It sends by its home alone.
#[test]
fn what_came_by_a_worker_goes_back_there() {
    let doorbell = Doorbell::with_full_fences().expect("a doorbell");
    let caller = || Caller { worker: doorbell.ringer(), news: None };
    let sizes = BufferSizes { send_frames: 8, receive_packets: 8, full: FullRule::Hold };
    let (mut socket, opens) = halves(sizes, &[caller(), caller()], 1, None).expect("halves");
    let memory = FrameMemory::new(1024, MEMORY_FRAME_BYTES).expect("memory");
    let mut frames: Vec<Frames> = Pool::for_workers(memory, 2).into_iter().map(Frames::new).collect();
    let mut ports: Vec<SocketPort> = Vec::new();
    for (open, frames) in opens.into_iter().zip(&mut frames) {
        let mut port = SocketPort::default();
        port.open(open, frames);
        ports.push(port);
    }
    assert_eq!(ports.iter().map(SocketPort::is_home).collect::<Vec<_>>(), [false, true]);
    let from = "192.0.2.9:4000".parse().expect("an address");
    for (number, (port, frames)) in ports.iter_mut().zip(&mut frames).enumerate() {
        let mut come: Vec<PathPacket> = (0..5)
            .map(|_| {
                let frame = frames.pool.take().expect("a frame");
                let mut packet = PathPacket::new(frame, 0, 100 + number as u16);
                write_headers(
                    packet.bytes_mut(frames.memory()),
                    from,
                    "192.0.2.1:7".parse().expect("one"),
                    0,
                );
                packet
            })
            .collect();
        let count = count_of(&come);
        port.put(&mut come, count, frames);
        port.flush(&mut weir_path::carrier::Carrier::default(), 0).expect("flushed");
    }
    // Two at a time: the lanes take turns.
    let mut lanes = Vec::new();
    while socket.receive.is_readable() {
        let Halves { receive, returns, .. } = &mut socket;
        receive.take(2, |lane, packet| {
            assert_eq!(packet.len_bytes, 100 + lane);
            lanes.push(lane);
            returns.read(lane, packet.frame, packet.len_bytes);
        });
    }
    assert_eq!(lanes, [0, 0, 1, 1, 0, 0, 1, 1, 0, 1]);
    socket.returns.publish();
    for (port, frames) in ports.iter_mut().zip(&mut frames) {
        let mut delivered = Count::default();
        port.complete(frames, |count, fate| {
            assert_eq!(fate, Completion::Delivered);
            delivered.merge(count);
        });
        assert_eq!((delivered.packets, port.in_flight().packets), (5, 0));
    }
    // The socket sends by its home alone.
    let frame = socket.send.take_frame().expect("a frame");
    socket.send.stage(PathPacket::new(frame, 0, 60));
    socket.send.publish();
    assert_eq!(ports.iter_mut().map(SocketPort::has_sent).collect::<Vec<_>>(), [false, true]);
    assert_eq!(ports.iter().map(|port| port.is_announced(0)).collect::<Vec<_>>(), [false, true]);
}

#[test]
fn a_sender_is_never_told_to_have_woken_in_vain_more_often_than_at_all() {
    let shared = Shared::default();
    thread::scope(|scope| {
        let noting = scope.spawn(|| (0..50_000).for_each(|_| shared.note_wakes(1, 1)));
        while !noting.is_finished() {
            let counts = shared.counts();
            assert!(counts.empty_wakes <= counts.wakes, "{counts:?}");
        }
    });
    assert_eq!((shared.counts().wakes, shared.counts().empty_wakes), (50_000, 50_000));
}

/// A worker that looks for a waiting sender later than the sender has used what it was given wakes nobody; the next frame does.
#[cfg(feature = "tokio")]
#[test]
fn a_sender_that_has_used_its_frames_already_is_not_woken_for_them() {
    struct Wakes(AtomicU64);

    impl std::task::Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    let doorbell = Doorbell::with_full_fences().expect("a doorbell");
    let caller = Caller { worker: doorbell.ringer(), news: None };
    let sizes = BufferSizes { send_frames: 4, receive_packets: 4, full: FullRule::Hold };
    let (Halves { send: mut sender, .. }, mut opens) = halves(sizes, &[caller], 0, None).expect("halves");
    let memory = FrameMemory::new(64, MEMORY_FRAME_BYTES).expect("memory");
    let mut frames = Frames::new(Pool::new(memory));
    let mut open = opens.pop().expect("a lane");
    open.pay(&mut frames);
    let used: Vec<_> = std::iter::from_fn(|| sender.take_frame()).collect();
    let wakes = Arc::new(Wakes(AtomicU64::new(0)));
    let waker = std::task::Waker::from(Arc::clone(&wakes));
    assert!(used.len() == 4 && !sender.ask(&waker));
    open.wake_sender();
    assert_eq!(wakes.0.load(Ordering::Relaxed), 0);
    open.owed = 1;
    open.pay(&mut frames);
    assert_eq!(wakes.0.load(Ordering::Relaxed), 1);
    assert!(sender.ask(&waker));
    let counts = open.shared.counts();
    assert_eq!((counts.wakes, counts.empty_wakes), (1, 0));
    // A wake that is not for frames is not held back.
    assert!(sender.take_frame().is_some() && !sender.ask(&waker));
    open.ringers.sender.published();
    assert_eq!(wakes.0.load(Ordering::Relaxed), 2);
    used.into_iter().for_each(|frame| frames.pool.give(frame));
}

/// Each of two workers has a copy of the message that nobody listens: the application is told once, also if it asks between both.
#[test]
fn an_error_that_each_worker_hears_of_is_told_once() {
    let doorbell = Doorbell::with_full_fences().expect("a doorbell");
    let caller = || Caller { worker: doorbell.ringer(), news: None };
    let sizes = BufferSizes { send_frames: 4, receive_packets: 4, full: FullRule::Hold };
    let (socket, opens) = halves(sizes, &[caller(), caller()], 1, None).expect("halves");
    let memory = FrameMemory::new(1024, MEMORY_FRAME_BYTES).expect("memory");
    let mut frames: Vec<Frames> = Pool::for_workers(memory, 2).into_iter().map(Frames::new).collect();
    let [from, to] = ["192.0.2.1:4000", "192.0.2.2:7"].map(|end| end.parse().expect("an address"));
    let mut quoted = vec![0; 60];
    write_headers(&mut quoted, from, to, 0);
    let mut message = quoted.clone();
    message.resize(200, 0);
    let len = tell_sender(&mut message[14..], Fault::NoPort, to.ip(), &quoted[14..]).expect("it is told");
    let mut told = Vec::new();
    for (number, (mut open, frames)) in opens.into_iter().zip(&mut frames).enumerate() {
        open.tells_errors = number == 1;
        let mut port = SocketPort::default();
        port.open(open, frames);
        let mut packet = PathPacket::new(frames.pool.take().expect("a frame"), 0, 14 + len as u16);
        packet.bytes_mut(frames.memory()).copy_from_slice(&message[..14 + len]);
        let mut come = vec![packet];
        let count = count_of(&come);
        port.put(&mut come, count, frames);
        told.extend(socket.shared.has_error.swap(false, Ordering::Relaxed).then_some(number));
    }
    assert_eq!(told, [1]);
    assert_eq!(*socket.shared.error.lock().expect("nobody panics"), Some((to, libc::ECONNREFUSED)));
}

/// A router's message that a datagram of the socket was too long is told once, and remembered for that peer.
#[test]
fn what_was_too_long_for_its_way_is_remembered() {
    let doorbell = Doorbell::with_full_fences().expect("a doorbell");
    let caller = Caller { worker: doorbell.ringer(), news: None };
    let sizes = BufferSizes { send_frames: 4, receive_packets: 4, full: FullRule::Hold };
    let (socket, mut opens) = halves(sizes, &[caller], 0, None).expect("halves");
    let memory = FrameMemory::new(64, MEMORY_FRAME_BYTES).expect("memory");
    let mut frames = Frames::new(Pool::new(memory));
    let mut port = SocketPort::default();
    port.open(opens.pop().expect("a lane"), &mut frames);
    let [from, to] = ["192.0.2.1:4000", "198.51.100.1:7"].map(|end| end.parse().expect("an address"));
    let mut quoted = vec![0; 1442];
    write_headers(&mut quoted, from, to, 0);
    let mut message = quoted[..576 + 14].to_vec();
    let (fault, router) = (Fault::TooLong(1300), [192, 0, 2, 254].into());
    let len = tell_sender(&mut message[14..], fault, router, &quoted[14..]).expect("it is told");
    let frame = frames.pool.take().expect("a frame");
    let mut packet = PathPacket::new(frame, 0, 14 + len as u16);
    packet.bytes_mut(frames.memory()).copy_from_slice(&message[..14 + len]);
    let mut come = vec![packet];
    let count = count_of(&come);
    port.put(&mut come, count, &mut frames);
    let told = socket.shared.error.lock().expect("nobody panics").take();
    assert_eq!(told, Some((to, libc::EMSGSIZE)));
    assert_eq!(socket.shared.ways.mtu_bytes(to.ip(), now_ns), Some(1300));
}
