//! QUIC by quinn on sockets of a path: a full buffer holds QUIC and QUIC loses nothing, connections share that buffer by turns, and each packet has
//! its ECN codepoint and its addresses.

#[path = "../examples/quic/echo.rs"]
mod echo;

use std::io::{ErrorKind, IoSliceMut};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use echo::Outcome;
use quinn::udp::{EcnCodepoint, RecvMeta, Transmit};
use quinn::{AsyncUdpSocket, ConnectionStats};
use tokio::time::timeout;
use weir_core::rate::Rate;
use weir_run::clock::now_ns;
use weir_socket::{QuicSocket, SocketOptions, Stack, StackBuilder, UdpSocket};

const PATIENCE: Duration = Duration::from_secs(30);
const SERVER: &str = "192.0.2.2:4433";
const CLIENT: &str = "192.0.2.1:4000";
/// A limit below what QUIC sends on a machine that is busy otherwise too.
const RATE_BITS_PER_S: u64 = 25_000_000;

/// Runs tasks on two threads, for a bounded time.
fn run(task: impl Future<Output = Outcome<()>>) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async { timeout(PATIENCE, task).await.expect("it stands still").expect("it works") });
}

/// Two stacks with a limit of their sending rate, if there is one.
fn pair(rate: Option<u64>) -> (Stack, Stack) {
    let host = |address: &str| {
        let limit = |builder: StackBuilder, rate| builder.rate(Rate::from_bits_per_s(rate).expect("a rate"));
        rate.into_iter().fold(Stack::builder().sockets(4).address(address), limit)
    };
    Stack::pair_of(host("192.0.2.1/24"), host("192.0.2.2/24")).expect("a pair")
}

/// Lets so many connections of one endpoint send so much each, and get it back. Returns the server's and the client's statistics of them, and the
/// client's socket.
async fn exchange(
    stacks: &(Stack, Stack),
    options: SocketOptions,
    connections: usize,
    bytes: usize,
) -> Outcome<(Vec<ConnectionStats>, Arc<QuicSocket>)> {
    let (config, certificate) = echo::server()?;
    let (server, _) = echo::endpoint(UdpSocket::bind_with(&stacks.1, SERVER, options)?, Some(config))?;
    let (client, socket) = echo::endpoint(UdpSocket::bind_with(&stacks.0, CLIENT, options)?, None)?;
    let config = echo::client(certificate)?;
    let serving = tokio::spawn(async move {
        let mut echoing = Vec::new();
        for _ in 0..connections {
            let connection = server.accept().await.expect("a connection").await.expect("open");
            echoing.push(tokio::spawn(async move {
                echo::echo(&connection).await;
                connection.stats()
            }));
        }
        let mut stats = Vec::new();
        for echoing in echoing {
            stats.push(echoing.await.expect("no panic"));
        }
        stats
    });
    let mut asking = Vec::new();
    for _ in 0..connections {
        let connection = echo::connect(&client, SERVER.parse()?, config.clone()).await?;
        asking.push(tokio::spawn(async move {
            echo::ask(&connection, bytes).await?;
            let stats = connection.stats();
            connection.close(0_u32.into(), b"");
            Outcome::Ok(stats)
        }));
    }
    let mut stats = Vec::new();
    for asking in asking {
        stats.push(asking.await??);
    }
    stats.extend(serving.await?);
    Ok((stats, socket))
}

/// Requires that nothing was lost, by any side of a connection or in the path.
fn require_clean(stats: &[ConnectionStats], stacks: &(Stack, Stack)) {
    for stats in stats {
        let path = stats.path;
        assert_eq!(
            (path.lost_packets, path.congestion_events, path.black_holes_detected),
            (0, 0, 0),
            "{path:?}"
        );
    }
    let books = stacks.0.books().expect("books");
    assert!(books.balances && books.dropped.total().packets == 0, "{books:?}");
}

/// Requires that nobody was woken to find no room.
fn require_no_empty_wake(socket: &QuicSocket) {
    assert_eq!(socket.socket().counts().empty_wakes, 0, "{:?}", socket.socket().counts());
}

#[test]
fn a_full_buffer_holds_a_connection_and_loses_nothing() {
    const BYTES: usize = 2 << 20;
    let stacks = pair(Some(RATE_BITS_PER_S));
    run(async {
        let start_ns = now_ns();
        let (stats, socket) = exchange(&stacks, SocketOptions::default(), 1, BYTES).await?;
        let at_rate = Duration::from_secs_f64(BYTES as f64 * 8.0 / RATE_BITS_PER_S as f64);
        let took = Duration::from_nanos(now_ns() - start_ns);
        assert!(took > at_rate.mul_f64(0.9), "{took:?}: nothing limits it");
        require_clean(&stats, &stacks);
        require_no_empty_wake(&socket);
        let counts = socket.socket().counts();
        assert!(
            counts.throttled > 0 && counts.throttled_ns > 0 && counts.wakes > 0,
            "never held: {counts:?}"
        );
        // The packets are as large as the interface takes them, but for the rest that quinn's search leaves.
        assert!(stats[0].path.current_mtu >= 1400, "{:?}", stats[0].path);
        Ok(())
    });
}

#[test]
fn a_connection_without_a_limit_loses_nothing() {
    let stacks = pair(None);
    run(async {
        let (stats, socket) = exchange(&stacks, SocketOptions::default(), 1, 4 << 20).await?;
        require_clean(&stats, &stacks);
        require_no_empty_wake(&socket);
        Ok(())
    });
}

#[test]
fn connections_share_a_full_buffer_by_turns() {
    let stacks = pair(Some(RATE_BITS_PER_S));
    let options = SocketOptions { send_frames: 4, ..SocketOptions::default() };
    run(async {
        let (stats, socket) = exchange(&stacks, options, 8, 256 << 10).await?;
        require_clean(&stats, &stacks);
        let counts = socket.socket().counts();
        assert!(counts.wakes > 0, "never held: {counts:?}");
        // A connection that was told that it may send, and whose thread loses the processor before it does, takes the room of one that is
        // called meanwhile: once in some hundred runs on two threads.
        assert!(counts.empty_wakes * 100 <= counts.wakes, "{counts:?}");
        Ok(())
    });
}

/// A waker that counts its wakes.
#[derive(Default)]
struct Wakes(AtomicU32);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl Wakes {
    fn count(&self) -> u32 {
        self.0.load(Ordering::SeqCst)
    }

    /// Waits until there were so many wakes.
    fn wait(&self, times: u32) {
        let end_ns = now_ns() + PATIENCE.as_nanos() as u64;
        while self.count() < times {
            assert!(now_ns() < end_ns, "a wake is lost");
            std::thread::yield_now();
        }
    }
}

fn transmit(contents: &[u8], ecn: Option<EcnCodepoint>, src_ip: Option<IpAddr>) -> Transmit<'_> {
    let destination = SERVER.parse().expect("an address");
    Transmit { destination, ecn, contents, segment_size: None, src_ip }
}

/// Waits for a packet; returns its payload and its metadata.
fn receive(socket: &QuicSocket) -> (Vec<u8>, RecvMeta) {
    let wakes = Arc::new(Wakes::default());
    let waker = Waker::from(Arc::clone(&wakes));
    let (mut buffer, mut meta) = ([0; 1500], [RecvMeta::default()]);
    loop {
        let seen = wakes.count();
        let mut buffers = [IoSliceMut::new(&mut buffer)];
        match socket.poll_recv(&mut Context::from_waker(&waker), &mut buffers, &mut meta) {
            Poll::Ready(count) => {
                assert_eq!(count.expect("received"), 1);
                return (buffer[..meta[0].len].to_vec(), meta[0]);
            }
            Poll::Pending => wakes.wait(seen + 1),
        }
    }
}

#[test]
fn a_packet_has_its_codepoint_and_its_addresses() {
    let (left, right) = Stack::pair_of(
        Stack::builder().sockets(4).address("192.0.2.1/24").address("192.0.2.3/24"),
        Stack::builder().address("192.0.2.2/24"),
    )
    .expect("a pair");
    let client = QuicSocket::new(UdpSocket::bind(&left, "0.0.0.0:4000").expect("a socket"));
    let server = QuicSocket::new(UdpSocket::bind(&right, "0.0.0.0:4433").expect("a socket"));
    assert!(!client.may_fragment());
    let second: IpAddr = "192.0.2.3".parse().expect("an address");
    let codepoints = [None, Some(EcnCodepoint::Ect0), Some(EcnCodepoint::Ect1), Some(EcnCodepoint::Ce)];
    for (number, ecn) in codepoints.into_iter().enumerate() {
        client.try_send(&transmit(&[number as u8; 100], ecn, Some(second))).expect("sent");
        let (payload, meta) = receive(&server);
        assert_eq!(payload, [number as u8; 100]);
        assert_eq!((meta.ecn, meta.addr, meta.stride), (ecn, SocketAddr::new(second, 4000), 100));
        assert_eq!(meta.dst_ip, Some("192.0.2.2".parse().expect("an address")));
    }
    // A probe that is too long for the interface is lost, and no other packet is.
    client.try_send(&transmit(&[0; 1473], None, None)).expect("lost on the way");
    client.try_send(&transmit(&[1; 1472], None, None)).expect("sent");
    assert_eq!(receive(&server).0, [1; 1472]);
    let foreign = "192.0.2.9".parse().expect("an address");
    client.try_send(&transmit(&[2], None, Some(foreign))).expect("lost on the way");
    client.try_send(&transmit(&[3], None, None)).expect("sent");
    assert_eq!(receive(&server).0, [3]);
    right.stop().expect("stopped");
    let ended = client.try_send(&transmit(&[4], None, None)).expect_err("it has ended");
    assert_eq!(ended.kind(), ErrorKind::BrokenPipe);
}

#[test]
fn who_waits_is_called_in_turn_when_a_packet_goes() {
    let (left, right) = pair(None);
    let options = SocketOptions { send_frames: 1, receive_packets: 1, ..SocketOptions::default() };
    let client = Arc::new(QuicSocket::new(UdpSocket::bind_with(&left, CLIENT, options).expect("a socket")));
    let server = QuicSocket::new(UdpSocket::bind_with(&right, SERVER, options).expect("a socket"));
    let waits: [_; 3] = std::array::from_fn(|_| Arc::new(Wakes::default()));
    let mut senders: Vec<_> = waits.iter().map(|_| Arc::clone(&client).create_io_poller()).collect();
    let poll = |senders: &mut Vec<std::pin::Pin<Box<dyn quinn::UdpPoller>>>, number: usize| {
        let waker = Waker::from(Arc::clone(&waits[number]));
        senders[number].as_mut().poll_writable(&mut Context::from_waker(&waker)).is_ready()
    };
    // The first connection sends until it is held, as nobody reads; the others wait behind it.
    let mut sent = 0;
    while poll(&mut senders, 0) {
        client.try_send(&transmit(&[0; 100], None, None)).expect("there was room");
        sent += 1;
        assert!(sent < 10_000, "nobody is held");
    }
    assert!(!poll(&mut senders, 1) && !poll(&mut senders, 2), "nobody comes before the first");
    assert!(client.socket().counts().throttled > 0);
    // The second connection is gone before its turn; the other two are called one after the other, by a packet that left.
    senders.remove(1);
    let mut came = 0;
    while waits[0].count() == 0 && came < sent {
        assert_eq!(receive(&server).0.len(), 100);
        came += 1;
    }
    waits[0].wait(1);
    assert!(poll(&mut senders, 0), "who is called finds room");
    client.try_send(&transmit(&[0; 100], None, None)).expect("sent");
    for _ in came..=sent {
        receive(&server);
    }
    waits[2].wait(1);
    let waker = Waker::from(Arc::clone(&waits[2]));
    assert!(senders[1].as_mut().poll_writable(&mut Context::from_waker(&waker)).is_ready());
    assert_eq!((waits[0].count(), waits[1].count(), client.socket().counts().empty_wakes), (1, 0, 0));
}
