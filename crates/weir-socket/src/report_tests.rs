//! Tests of a stack's report, of two stacks on a link in memory with a limit: the sums hold at all times, and the report names held senders.

use std::io::{ErrorKind, Read, Write};
use std::thread;
use std::time::Duration;

use weir_core::rate::Rate;
use weir_run::clock::now_ns;
use weir_run::control::{Command, Responder, SetClasses};
use weir_run::stats::{Snapshot, WireStats};
use weir_run::sum::Sight;

use crate::responder::StackResponder;
use crate::{FullRule, SocketOptions, Stack, TcpListener, TcpStream, UdpSocket};

const PATIENCE: Duration = Duration::from_secs(20);

/// Two stacks, of which the left one sends so many bits a second, and the responder of both.
fn stacks(bits_per_s: u64) -> (Stack, Stack, StackResponder) {
    let rate = Rate::from_bits_per_s(bits_per_s).expect("not 0");
    let left = Stack::builder().address("192.0.2.1/24").rate(rate);
    let (left, right) = Stack::pair_of(left, Stack::builder().address("192.0.2.2/24")).expect("a pair");
    let responder = StackResponder::new(&left, "pair".into(), &["left", "right"], Sight::Nothing);
    (left, right, responder)
}

/// The report, after a check that all of it adds up.
fn told(responder: &StackResponder) -> (Snapshot, WireStats) {
    let snapshot = responder.stat().expect("told");
    assert_eq!(snapshot.check(), Vec::<String>::new());
    let stack = snapshot.topologies[0].clone();
    (snapshot, stack)
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end_ns = now_ns() + PATIENCE.as_nanos() as u64;
    while !is_so() {
        assert!(now_ns() < end_ns, "not in {PATIENCE:?}: {what}");
        thread::yield_now();
    }
}

#[test]
fn a_socket_behind_a_limit_is_throttled_and_loses_nothing() {
    let (left, right, responder) = stacks(1_000_000);
    let bucket = right.bucket_of("192.0.2.1:4000".parse().unwrap(), "192.0.2.2:7".parse().unwrap());
    let _server = UdpSocket::bind_bucket(&right, "192.0.2.2:7", bucket).expect("a socket");
    let client = UdpSocket::bind(&left, "192.0.2.1:4000").expect("a socket");
    client.connect("192.0.2.2:7").expect("connected");
    client.set_nonblocking(true);
    // The client sends as much as the stack takes, and then no more.
    let mut stack = WireStats::default();
    wait_until("it is throttled with a limit behind it", || {
        let error = (0..100_000).find_map(|_| client.send(&[0; 1000]).err()).expect("1 Mbit/s holds nobody");
        assert_eq!(error.kind(), ErrorKind::WouldBlock);
        stack = told(&responder).1;
        // The class waits for tokens once its burst has left.
        let waits = stack.sockets[0].throttle.is_throttled && stack.classes[0].place.waits_for.is_some();
        waits && stack.sockets[0].sent > 0
    });
    let socket = &stack.sockets[0];
    assert_eq!((socket.place.name.as_str(), socket.protocol.as_str()), ("udp 192.0.2.1:4000", "udp"));
    assert_eq!((socket.local.as_str(), socket.peer.as_deref()), ("192.0.2.1:4000", Some("192.0.2.2:7")));
    assert_eq!((socket.bucket, socket.place.waits_for.as_deref()), (None, Some("->left")));
    assert!(socket.throttle.throttled >= 1, "{socket:?}");
    assert_eq!(socket.place.delay_ns_p50, None, "nobody knows");
    let other = &stack.sockets[1];
    assert_eq!(
        (other.place.name.as_str(), other.bucket, other.peer.as_deref()),
        (format!("udp 192.0.2.2:7 bucket {bucket}").as_str(), Some(bucket), None)
    );
    assert!(!other.throttle.is_throttled && other.place.waits_for.is_none());
    // The throttling lasts, and its time is told meanwhile.
    let before_ns = socket.throttle.throttled_ns;
    wait_until("it is throttled for longer", || {
        told(&responder).1.sockets[0].throttle.throttled_ns > before_ns
    });
    let names: Vec<_> = stack.classes.iter().map(|class| class.place.name.as_str()).collect();
    assert_eq!(names, ["->left", "->right", "->udp", "->tcp"]);
    assert_eq!(
        (stack.classes[0].rate_bits_per_s, stack.classes[0].place.waits_for.as_deref()),
        (Some(1_000_000), Some("->left"))
    );
    assert_eq!(stack.ports, ["left", "right"]);
    assert_eq!(stack.process.as_ref().map(|process| process.pid), Some(std::process::id()));
    assert!(stack.sockets.iter().all(|socket| socket.place.books.dropped.is_empty()));
    // A socket that can go on is throttled no more.
    wait_until("there is room", || client.is_writable());
    wait_until("it is told as throttled no more", || !told(&responder).1.sockets[0].throttle.is_throttled);
}

#[test]
fn full_socket_buffers_are_told_by_socket_and_a_place_that_is_used_again_begins_anew() {
    let (left, right, responder) = stacks(1_000_000_000);
    let options = SocketOptions { receive_packets: 4, full: FullRule::Drop, ..SocketOptions::default() };
    let server = UdpSocket::bind_with(&right, "192.0.2.2:7", options).expect("a socket");
    let client = UdpSocket::bind(&left, "192.0.2.1:4000").expect("a socket");
    let of = |local: &str| {
        let (_, stack) = told(&responder);
        stack.sockets.into_iter().find(|socket| socket.local == local).expect("it is told")
    };
    for number in 1..=20 {
        client.send_to(&[number; 100], "192.0.2.2:7").expect("sent");
    }
    wait_until("all have come", || of("192.0.2.2:7").place.books.accepted.packets == 20);
    let socket = of("192.0.2.2:7");
    assert_eq!((socket.place.books.held.packets, socket.place.books.dropped["socket-full"].packets), (4, 16));
    let mut buffer = [0; 100];
    (0..3).for_each(|_| assert_eq!(server.recv(&mut buffer).expect("received"), 100));
    wait_until("what was read is delivered", || of("192.0.2.2:7").place.books.delivered.packets == 3);
    assert_eq!(of("192.0.2.1:4000").sent, 20);
    drop(server);
    wait_until("it is gone", || told(&responder).1.sockets.len() == 1);
    // The next socket has the same place, and its own counts.
    let _server = UdpSocket::bind(&right, "192.0.2.2:8").expect("a socket");
    assert_eq!(of("192.0.2.2:8").place.books, weir_run::books::Books::default());
    client.send_to(b"to the next", "192.0.2.2:8").expect("sent");
    wait_until("it has come", || of("192.0.2.2:8").place.books.accepted.packets == 1);
    let (_, stack) = told(&responder);
    let udp = stack.classes.iter().find(|class| class.place.name == "->udp").expect("all of UDP");
    assert_eq!(udp.place.books.dropped["socket-full"].packets, 16, "what is closed is in the sum");
    assert_eq!(udp.place.books.accepted.packets, 21);
}

#[test]
fn a_listener_tells_who_waits_and_connections_how_they_stand() {
    let (left, right, responder) = stacks(1_000_000);
    let listener = TcpListener::bind_with_backlog(&right, "192.0.2.2:80", 5).expect("it listens");
    let mut client = TcpStream::connect(&left, "192.0.2.2:80").expect("connected");
    wait_until("it waits to be accepted", || told(&responder).1.listeners[0].waiting == 1);
    let (_, stack) = told(&responder);
    let told_of = &stack.listeners[0];
    assert_eq!((told_of.local.as_str(), told_of.backlog, told_of.half_open), ("192.0.2.2:80", 5, 0));
    let (mut server, from) = listener.accept().expect("accepted");
    server.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    client.set_nonblocking(true);
    let mut stack = WireStats::default();
    let connection = |stack: &WireStats, local: &str| {
        stack.connections.iter().find(|connection| connection.local == local).expect("it is told").clone()
    };
    let mut written = 0;
    wait_until("the writer is throttled", || {
        let error = loop {
            match client.write(&[7; 4096]) {
                Ok(bytes) => written += bytes,
                Err(error) => break error,
            }
            assert!(written < 100_000_000, "1 Mbit/s holds nobody");
        };
        assert_eq!(error.kind(), ErrorKind::WouldBlock);
        stack = told(&responder).1;
        let one = connection(&stack, &from.to_string());
        one.throttle.is_throttled && one.send_queue_bytes > 0
    });
    let (one, other) = (connection(&stack, &from.to_string()), connection(&stack, "192.0.2.2:80"));
    assert_eq!((one.state.as_str(), one.peer.as_str(), one.listener), ("established", "192.0.2.2:80", None));
    assert_eq!((other.listener.as_deref(), other.throttle.is_throttled), (Some("192.0.2.2:80"), false));
    assert_eq!(one.bucket, left.bucket_of("192.0.2.2:80".parse().unwrap(), from));
    // The sums hold while the bytes move.
    let mut buffer = [0; 4096];
    while written > 0 {
        written -= server.read(&mut buffer).expect("received");
        told(&responder);
    }
    drop((client, server, listener));
    wait_until("nothing is left of it", || {
        let (_, stack) = told(&responder);
        stack.listeners.is_empty() && stack.frames.sockets == 0
    });
}

#[test]
fn nothing_of_a_stack_is_changed_from_outside_and_the_refusal_says_whose_it_is() {
    let (left, _right, responder) = stacks(1_000_000);
    let set = Command::SetClasses(SetClasses { file: "f.toml".into(), text: String::new() });
    for (command, told) in
        [(Command::Stop, "kill "), (Command::Show, "`weir stat pair`"), (set, "where it opens it")]
    {
        let why = responder.change(&command).expect_err("refused");
        let pid = format!("(process {})", std::process::id());
        assert!(why.starts_with("pair is a stack of ") && why.contains(&pid) && why.contains(told), "{why}");
    }
    assert_eq!(responder.noun(), "stack");
    left.stop().expect("ended");
    let why = responder.stat().expect_err("it has ended");
    assert!(why.starts_with("pair has ended"), "{why}");
}

#[test]
fn a_stack_that_its_application_drives_answers_when_that_turns() {
    let (left, _right, responder) = stacks(1_000_000);
    let mut driver = left.drive(0).expect("driven");
    thread::scope(|scope| {
        let asking = scope.spawn(|| told(&responder).1.name);
        while !asking.is_finished() {
            driver.turn().expect("turned");
        }
        assert_eq!(asking.join().expect("told"), "pair");
        // Nobody turns, and a client does not wait for ever.
        let asking = scope.spawn(|| responder.stat().expect_err("nobody has turned"));
        let why = asking.join().expect("told");
        assert!(why.starts_with("pair of ") && why.contains("has not moved for a second"), "{why}");
    });
}

/// A socket and a listener of two workers are told once, and the counts of both workers add up while they move packets.
#[test]
fn what_two_workers_tell_adds_up() {
    let left = Stack::builder().address("192.0.2.1/24").workers(2);
    let (left, right) = Stack::pair_of(left, Stack::builder().address("192.0.2.2/24")).expect("a pair");
    let responder = StackResponder::new(&left, "pair".into(), &[], Sight::Nothing);
    let server = UdpSocket::bind(&right, "192.0.2.2:7").expect("a socket");
    let _listener = TcpListener::bind(&right, "192.0.2.2:7").expect("listening");
    let clients: Vec<UdpSocket> =
        (0..2).map(|_| UdpSocket::bind(&left, "192.0.2.1:0").expect("a socket")).collect();
    clients.iter().for_each(|client| client.set_write_timeout(Some(PATIENCE)).expect("a timeout"));
    thread::scope(|scope| {
        for client in &clients {
            scope.spawn(move || {
                for _ in 0..2000 {
                    client.send_to(&[0; 100], "192.0.2.2:7").expect("sent");
                }
            });
        }
        let mut came = 0;
        let mut batch = server.datagrams(64);
        while came < 4000 {
            came += server.recv_batch(&mut batch).expect("datagrams");
            batch.clear();
            told(&responder);
        }
    });
    let mut stack = WireStats::default();
    wait_until("all is told as delivered", || {
        stack = told(&responder).1;
        stack.sockets.iter().all(|socket| socket.place.books.held.packets == 0)
    });
    assert_eq!((stack.sockets.len(), stack.listeners.len()), (3, 1));
    let server = stack.sockets.iter().find(|socket| socket.local == "192.0.2.2:7").expect("the server's");
    assert_eq!((server.place.books.delivered.packets, server.place.books.accepted.packets), (4000, 4000));
    assert_eq!(stack.sockets.iter().map(|socket| socket.sent).sum::<u64>(), 4000);
    let mut workers: Vec<usize> = stack.stages.iter().map(|stage| stage.worker).collect();
    workers.sort_unstable();
    // Each worker has two hosts.
    assert_eq!(workers, [0, 0, 1, 1]);
    assert!(stack.stages.iter().all(|stage| stage.place.books.accepted.packets > 0));
}
