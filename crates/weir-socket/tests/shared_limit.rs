//! One limit over the sockets of two workers, on a link in memory: exact, shared, without loss, in order, and no wake that sends nothing.

mod several;

use std::collections::HashMap;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::thread;

use several::{PATIENCE, connect, exchange, patient, require_clean};
use tokio::runtime::Builder;
use tokio::time::timeout;
use weir_core::rate::Rate;
use weir_run::clock::now_ns;
use weir_socket::{SocketOptions, Stack, StackBuilder, UdpSocket};

const SERVER: &str = "192.0.2.2:7";
const WORKERS: usize = 2;
const PAYLOAD_BYTES: usize = 1200;
/// The bytes of a datagram of that payload on the link, with the headers of UDP, IPv4 and Ethernet.
const PACKET_BYTES: u64 = PAYLOAD_BYTES as u64 + 8 + 20 + 14;
/// The bytes that may leave at once: those of 8 ms, as 200 Mbit/s is fast.
const BURST_BYTES: u64 = 200_000;

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

/// Sockets with small send buffers.
fn clients(stack: &Stack, sockets: usize) -> Vec<UdpSocket> {
    let small = SocketOptions { send_frames: 4, ..SocketOptions::default() };
    let bind = |_| patient(UdpSocket::bind_with(stack, "192.0.2.1:0", small).expect("a socket"));
    (0..sockets).map(bind).collect()
}

/// Requires that each socket was held, and woken only to send.
fn require_held(sockets: &[UdpSocket]) {
    for socket in sockets {
        let counts = socket.counts();
        assert!(counts.throttled > 0 && counts.wakes > 0, "it was never held: {counts:?}");
        assert_eq!(counts.empty_wakes, 0, "{counts:?}");
    }
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
    let clients = clients(&left, SOCKETS);
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
    require_held(&clients);
    drop((server, clients));
    require_clean(&left);
}

#[test]
fn tasks_of_both_workers_are_woken_only_to_send() {
    const SOCKETS: usize = 16;
    const DATAGRAMS: u32 = 200;
    let (left, right) = pair(200_000_000);
    let server = patient(UdpSocket::bind(&right, SERVER).expect("a socket"));
    let clients = clients(&left, SOCKETS);
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
    require_held(&clients);
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
    let ends = connect([&left, &right], SERVER, CONNECTIONS, WORKERS);
    exchange(&ends, LEN);
    drop(ends);
    require_clean(&left);
}

/// A socket that does not wait says at once what it cannot send; one that waits when the stack ends is told so.
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
