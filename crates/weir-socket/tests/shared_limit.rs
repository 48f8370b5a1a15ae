//! One limit over the sockets of two workers, on a link in memory: exact, shared, without loss, in order, and no wake that sends nothing.

use std::collections::HashMap;
use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use tokio::runtime::Builder;
use tokio::time::timeout;
use weir_core::rate::Rate;
use weir_run::clock::now_ns;
use weir_socket::{SocketOptions, Stack, StackBuilder, TcpListener, TcpStream, UdpSocket};

const PATIENCE: Duration = Duration::from_secs(20);
const SERVER: &str = "192.0.2.2:7";
const WORKERS: usize = 2;
const PAYLOAD_BYTES: usize = 1200;
/// What a datagram of that payload has on the link, with the headers of UDP, IPv4 and Ethernet.
const PACKET_BYTES: u64 = PAYLOAD_BYTES as u64 + 8 + 20 + 14;
/// What may leave at once: that of a millisecond, as 200 Mbit/s is fast.
const BURST_BYTES: u64 = 25_000;

fn rate(bits_per_s: u64) -> Rate {
    Rate::from_bits_per_s(bits_per_s).expect("not 0")
}

fn builder() -> StackBuilder {
    Stack::builder().address("192.0.2.1/24").workers(WORKERS).sockets(64)
}

/// Two stacks, of which the left one sends no more than this.
fn pair(bits_per_s: u64) -> (Stack, Stack) {
    let right = Stack::builder().address("192.0.2.2/24");
    Stack::pair_of(builder().rate(rate(bits_per_s)), right).expect("a pair")
}

fn patient(socket: UdpSocket) -> UdpSocket {
    socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    socket.set_write_timeout(Some(PATIENCE)).expect("a timeout");
    socket
}

/// Stops the stack after a check that nothing was lost in it.
fn require_clean(stack: &Stack) {
    let end_ns = now_ns() + PATIENCE.as_nanos() as u64;
    while stack.books().expect("books").held.packets > 0 {
        assert!(now_ns() < end_ns, "something stays inside");
        thread::yield_now();
    }
    let books = stack.books().expect("books");
    assert!(books.balances, "{books:?}");
    assert_eq!(books.dropped.total().packets, 0, "{:?}", books.dropped.occurred().collect::<Vec<_>>());
    stack.stop().expect("it ended well");
}

/// Reads until so many datagrams have come, each with its number in its flow, in order; `came` counts those of each flow.
fn read_until(server: &UdpSocket, datagrams: u32, came: &mut HashMap<SocketAddr, u32>) {
    let mut batch = server.datagrams(32);
    while came.values().sum::<u32>() < datagrams {
        server.recv_batch(&mut batch).expect("datagrams");
        for datagram in batch.iter() {
            let number = u32::from_be_bytes(datagram.payload()[..4].try_into().expect("a number"));
            let came = came.get_mut(&datagram.peer()).expect("one of the clients");
            assert_eq!(number, *came, "out of order");
            *came += 1;
        }
        batch.clear();
    }
}

#[test]
fn sixty_four_blocked_sockets_share_one_limit() {
    const SOCKETS: usize = 64;
    const DATAGRAMS: u32 = 120;
    let (left, right) = pair(200_000_000);
    let server = patient(UdpSocket::bind(&right, SERVER).expect("a socket"));
    let small = SocketOptions { send_frames: 4, ..SocketOptions::default() };
    let bind = |_| patient(UdpSocket::bind_with(&left, "192.0.2.1:0", small).expect("a socket"));
    let clients: Vec<UdpSocket> = (0..SOCKETS).map(bind).collect();
    let mut came = clients.iter().map(|client| (client.local_addr(), 0)).collect();
    let begun_ns = now_ns();
    let all = SOCKETS as u32 * DATAGRAMS;
    thread::scope(|scope| {
        for client in &clients {
            scope.spawn(move || {
                client.connect(SERVER).expect("connected");
                let mut payload = [0; PAYLOAD_BYTES];
                for number in 0..DATAGRAMS {
                    payload[..4].copy_from_slice(&number.to_be_bytes());
                    client.send(&payload).expect("sent");
                }
            });
        }
        read_until(&server, all / 2, &mut came);
        let least = came.values().min().expect("clients");
        assert!(*least >= DATAGRAMS / 4, "half of all has come, and {least} of a socket's {DATAGRAMS}");
        read_until(&server, all, &mut came);
    });
    let elapsed_ns = now_ns() - begun_ns;
    let sent_bytes = u64::from(all) * PACKET_BYTES;
    let most_bytes = BURST_BYTES + 200_000_000 / 8 * elapsed_ns / 1_000_000_000;
    assert!(sent_bytes <= most_bytes, "{sent_bytes} bytes in {elapsed_ns} ns, {most_bytes} may leave");
    for client in &clients {
        let counts = client.counts();
        assert!(counts.throttled > 0 && counts.wakes > 0, "it was never held: {counts:?}");
        assert_eq!(counts.empty_wakes, 0, "{counts:?}");
    }
    drop((server, clients));
    require_clean(&left);
}

#[test]
fn tasks_of_both_workers_are_woken_only_to_send() {
    const SOCKETS: usize = 16;
    const DATAGRAMS: u32 = 200;
    let (left, right) = pair(200_000_000);
    let server = patient(UdpSocket::bind(&right, SERVER).expect("a socket"));
    let small = SocketOptions { send_frames: 4, ..SocketOptions::default() };
    let bind = |_| UdpSocket::bind_with(&left, "192.0.2.1:0", small).expect("a socket");
    let clients: Vec<UdpSocket> = (0..SOCKETS).map(bind).collect();
    let mut came = clients.iter().map(|client| (client.local_addr(), 0)).collect();
    thread::scope(|scope| {
        for client in &clients {
            scope.spawn(move || {
                let runtime = Builder::new_current_thread().enable_time().build().expect("a runtime");
                let task = async {
                    let to = SERVER.parse().expect("an address");
                    let mut payload = [0; PAYLOAD_BYTES];
                    for number in 0..DATAGRAMS {
                        payload[..4].copy_from_slice(&number.to_be_bytes());
                        client.send_to_async(&payload, to).await.expect("sent");
                    }
                };
                runtime.block_on(async { timeout(PATIENCE, task).await.expect("a wake is lost") });
            });
        }
        read_until(&server, SOCKETS as u32 * DATAGRAMS, &mut came);
    });
    for client in &clients {
        let counts = client.counts();
        assert!(counts.throttled > 0 && counts.wakes > 0, "it was never held: {counts:?}");
        assert_eq!(counts.empty_wakes, 0, "{counts:?}");
    }
    drop((server, clients));
    require_clean(&left);
}

/// Segments that leave by the first worker come to the worker of their connection, on both sides.
#[test]
fn connections_of_both_workers_send_behind_both_limits() {
    const CONNECTIONS: u16 = 16;
    const LEN: usize = 200_000;
    let left = builder().connections(CONNECTIONS).rate(rate(400_000_000));
    let right = Stack::builder().address("192.0.2.2/24").rate(rate(400_000_000));
    let (left, right) = Stack::pair_of(left, right).expect("a pair");
    let listener = TcpListener::bind(&right, SERVER).expect("listening");
    let mut ends = Vec::new();
    let mut of_workers = [0; WORKERS];
    for _ in 0..CONNECTIONS {
        let client = TcpStream::connect(&left, SERVER).expect("connected");
        let (server, from) = listener.accept().expect("accepted");
        assert_eq!(from, client.local_addr());
        let bucket = left.bucket_of(SERVER.parse().expect("an address"), from);
        of_workers[left.rss().worker(bucket as u32)] += 1;
        for stream in [&client, &server] {
            stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
            stream.set_write_timeout(Some(PATIENCE)).expect("a timeout");
        }
        ends.push([client, server]);
    }
    assert!(!of_workers.contains(&0), "{of_workers:?}");
    thread::scope(|scope| {
        for [client, server] in &ends {
            for (from, to) in [(client, server), (server, client)] {
                scope.spawn(move || (&mut &*from).write_all(&[7; LEN]).expect("written"));
                scope.spawn(move || {
                    let mut all = vec![0; LEN];
                    (&mut &*to).read_exact(&mut all).expect("read");
                    assert!(all.iter().all(|&byte| byte == 7));
                });
            }
        }
    });
    drop((ends, listener));
    require_clean(&left);
}

/// What a socket cannot send it says at once if it does not wait; whoever waits when the stack ends is told so.
#[test]
fn held_senders_of_both_workers_hear_of_the_end() {
    let (left, right) = pair(10_000);
    let _server = UdpSocket::bind(&right, SERVER).expect("a socket");
    let clients: Vec<UdpSocket> =
        (0..4).map(|_| patient(UdpSocket::bind(&left, "192.0.2.1:0").expect("a socket"))).collect();
    for client in &clients {
        client.connect(SERVER).expect("connected");
        client.set_nonblocking(true);
        let end_ns = now_ns() + PATIENCE.as_nanos() as u64;
        let mut refused_at = None;
        // The buffers are full for good: no more datagrams go though sending is tried for long.
        while refused_at.is_none_or(|at_ns| now_ns() < at_ns + 20_000_000) {
            assert!(now_ns() < end_ns, "nobody is held");
            match client.send(&[0; PAYLOAD_BYTES]) {
                Ok(_) => refused_at = None,
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::WouldBlock);
                    refused_at.get_or_insert_with(now_ns);
                }
            }
        }
        client.set_nonblocking(false);
    }
    thread::scope(|scope| {
        for client in &clients {
            scope.spawn(|| {
                let told = client.send(&[0; PAYLOAD_BYTES]).map_err(|error| error.kind());
                // A datagram may just have left.
                assert!(told.is_ok() || told == Err(ErrorKind::BrokenPipe), "{told:?}");
            });
        }
        left.stop().expect("it ended well");
    });
}
