//! Two stacks of two workers each, which share nothing: a flow is found by whatever worker its packets come, and nothing is lost between them.

mod several;

use std::collections::HashSet;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::thread;

use several::{PATIENCE, connect, exchange, patient, require_clean};
use weir_run::clock::now_ns;
use weir_socket::{Stack, StackBuilder, UdpSocket};

const SERVER: &str = "192.0.2.2:7";
const WORKERS: usize = 2;

fn builder() -> StackBuilder {
    Stack::builder().address("192.0.2.1/24").workers(WORKERS).sockets(12)
}

fn pair() -> (Stack, Stack) {
    Stack::pair_of(builder(), Stack::builder().address("192.0.2.2/24")).expect("a pair")
}

fn address(text: &str) -> SocketAddr {
    text.parse().expect("an address")
}

/// Clients send by one worker or the other; the server's one socket hears all, answers all, and keeps each flow's order.
#[test]
fn a_socket_without_a_bucket_hears_every_worker() {
    const CLIENTS: usize = 8;
    const DATAGRAMS: u32 = 500;
    let (left, right) = pair();
    assert_eq!((left.workers(), right.workers()), (WORKERS, WORKERS));
    let server = patient(UdpSocket::bind(&right, SERVER).expect("a socket"));
    let clients: Vec<UdpSocket> =
        (0..CLIENTS).map(|_| patient(UdpSocket::bind(&left, "192.0.2.1:0").expect("a socket"))).collect();
    thread::scope(|scope| {
        for client in &clients {
            scope.spawn(move || {
                client.connect(SERVER).expect("connected");
                for number in 0..DATAGRAMS {
                    client.send(&number.to_be_bytes()).expect("sent");
                    let mut back = [0; 8];
                    assert_eq!(client.recv(&mut back).expect("an echo"), 4);
                    assert_eq!(back[..4], number.to_be_bytes(), "out of order");
                }
            });
        }
        let mut batch = server.datagrams(32);
        let mut echoed = 0;
        while echoed < CLIENTS * DATAGRAMS as usize {
            server.recv_batch(&mut batch).expect("datagrams");
            while !batch.is_empty() {
                echoed += server.send_batch(&mut batch).expect("sent back");
            }
        }
    });
    drop((server, clients));
    require_clean(&left);
}

/// Sockets of buckets, as a thread for each bucket has them: a datagram is its bucket's, though it may come by another's worker.
#[test]
fn a_socket_of_a_bucket_hears_its_flows_alone() {
    let (left, right) = pair();
    let servers: Vec<UdpSocket> = (0..right.buckets())
        .map(|bucket| patient(UdpSocket::bind_bucket(&right, SERVER, bucket).expect("a socket")))
        .collect();
    let mut buckets = HashSet::new();
    for port in 4000..4064_u16 {
        let client = patient(UdpSocket::bind(&left, ("192.0.2.1", port)).expect("a socket"));
        client.send_to(&port.to_be_bytes(), SERVER).expect("sent");
        let bucket = right.bucket_of(client.local_addr(), address(SERVER));
        let mut buffer = [0; 8];
        let (len, from) = servers[bucket].recv_from(&mut buffer).expect("it is its bucket's");
        assert_eq!((&buffer[..len], from), (&port.to_be_bytes()[..], client.local_addr()));
        servers[bucket].send_to(b"back", from).expect("sent back");
        assert_eq!(client.recv(&mut buffer).expect("an answer"), 4);
        buckets.insert(bucket);
    }
    assert_eq!(buckets.len(), right.buckets());
    drop(servers);
    require_clean(&left);
}

/// A port is one socket's for all workers, and free for all of them when that socket is closed; so is its place.
#[test]
fn a_port_and_a_place_are_every_workers() {
    let (left, right) = pair();
    for _ in 0..100 {
        let server = UdpSocket::bind(&right, SERVER).expect("free");
        let taken = UdpSocket::bind(&right, SERVER).err().map(|error| error.kind());
        assert_eq!(taken, Some(ErrorKind::AddrInUse));
        drop(server);
    }
    let all: Vec<UdpSocket> =
        (0..12).map(|_| UdpSocket::bind(&right, "0.0.0.0:0").expect("a place")).collect();
    let full = UdpSocket::bind(&right, "0.0.0.0:0").err().map(|error| error.kind());
    assert_eq!(full, Some(ErrorKind::OutOfMemory));
    drop(all);
    UdpSocket::bind(&right, SERVER).expect("a place again");
    // Nobody listens: the refusal comes back, whatever the worker.
    for _ in 0..4 {
        let client = patient(UdpSocket::bind(&left, "192.0.2.1:0").expect("a socket"));
        client.connect("192.0.2.2:9").expect("connected");
        client.send(b"anybody?").expect("sent");
        let refused = client.recv(&mut [0; 8]).err().map(|error| error.kind());
        assert_eq!(refused, Some(ErrorKind::ConnectionRefused));
    }
    left.stop().expect("it ended well");
}

/// Unread datagrams at one worker keep no sender from the other worker, and the held sender goes on when they are read.
#[test]
fn who_is_held_at_one_worker_holds_nobody_at_the_other() {
    let (left, right) = pair();
    let bind = |stack: &Stack, address: &str| patient(UdpSocket::bind(stack, address).expect("a socket"));
    let (idle, busy) = (bind(&right, "192.0.2.2:8"), bind(&right, SERVER));
    // Sockets that are bound one after the other have their homes in turn.
    let clients = [bind(&left, "192.0.2.1:0"), bind(&left, "192.0.2.1:0")];
    clients[0].set_nonblocking(true);
    let end_ns = now_ns() + PATIENCE.as_nanos() as u64;
    let mut sent = 0u32;
    let mut refused_at = None;
    // The buffers are full for good: no more datagrams go though sending is tried for long.
    while refused_at.is_none_or(|at_ns| now_ns() < at_ns + 50_000_000) {
        assert!(now_ns() < end_ns, "nobody is held");
        match clients[0].send_to(&sent.to_be_bytes(), "192.0.2.2:8") {
            Ok(_) => (sent, refused_at) = (sent + 1, None),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock);
                refused_at.get_or_insert_with(now_ns);
            }
        }
    }
    for number in 0..500_u32 {
        clients[1].send_to(&number.to_be_bytes(), SERVER).expect("sent");
        assert_eq!(busy.recv_from(&mut [0; 8]).expect("received").0, 4);
    }
    for number in 0..sent {
        let mut buffer = [0; 8];
        assert_eq!(idle.recv_from(&mut buffer).expect("received").0, 4);
        assert_eq!(buffer[..4], number.to_be_bytes());
    }
    drop((idle, busy, clients));
    require_clean(&left);
}

#[test]
fn connections_are_dealt_to_workers_and_one_listener_accepts_all() {
    const CONNECTIONS: u16 = 64;
    const LEN: usize = 100_000;
    let builder = builder().connections(CONNECTIONS);
    let (left, right) = Stack::pair_of(builder, Stack::builder().address("192.0.2.2/24")).expect("a pair");
    let ends = connect([&left, &right], SERVER, CONNECTIONS, WORKERS);
    exchange(&ends, LEN);
    drop(ends);
    require_clean(&left);
}

#[test]
fn what_several_workers_cannot_have_is_refused() {
    let other = || Stack::builder().address("192.0.2.2/24");
    for (refused, told) in [
        (Stack::pair_of(builder().workers(0), other()), "from 1 to as many as there are cores"),
        (Stack::pair_of(builder().workers(100_000), other()), "from 1 to as many as there are cores"),
    ] {
        let error = refused.expect_err("it cannot be");
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(error.to_string().contains(told), "{error}");
    }
}
