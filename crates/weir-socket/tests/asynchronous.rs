//! Tasks of tokio on sockets: bytes as they were sent, no lost wake and none in vain.

use std::future::poll_fn;
use std::io::ErrorKind;
use std::net::Shutdown;
use std::thread;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::Builder;
use tokio::time::timeout;
use weir_socket::{SocketOptions, Stack, TcpListener, TcpStream, UdpSocket};

const PATIENCE: Duration = Duration::from_secs(20);
const SERVER: &str = "192.0.2.2:7";

/// Runs tasks, each on a thread of its own, for a bounded time.
fn run<T: Send>(task: impl Future<Output = T>) -> T {
    let runtime = Builder::new_current_thread().enable_time().build().expect("a runtime");
    runtime.block_on(async { timeout(PATIENCE, task).await.expect("a wake is lost") })
}

fn pair() -> (Stack, Stack) {
    Stack::pair("192.0.2.1/24", "192.0.2.2/24").expect("a pair")
}

#[test]
fn a_stream_that_is_held_is_woken_only_to_send() {
    const LEN: usize = 8 << 20;
    let (left, right) = pair();
    let listener = TcpListener::bind(&right, SERVER).expect("listening");
    let bytes: Vec<u8> = (0..LEN).map(|at| ((at * 31) >> 3) as u8).collect();
    let (mut client, mut server) = run(async {
        let client = TcpStream::connect_async(&left, listener.local_addr()).await.expect("connected");
        let (server, from) = listener.accept_async().await.expect("accepted");
        assert_eq!(from, client.local_addr());
        (client, server)
    });
    thread::scope(|scope| {
        scope.spawn(|| {
            run(async {
                client.write_all(&bytes).await.expect("written");
                client.shutdown(Shutdown::Write).expect("ended");
            });
        });
        let mut came = Vec::new();
        let read = run(server.read_to_end(&mut came));
        assert_eq!((read.expect("read"), came == bytes), (LEN, true));
    });
    let counts = client.counts();
    assert!(counts.throttled > 0 && counts.wakes > 0, "it was never held: {counts:?}");
    assert!(counts.wakes <= counts.throttled, "at most a wake for each wait: {counts:?}");
    assert_eq!(counts.empty_wakes, 0, "{counts:?}");
}

#[test]
fn datagrams_behind_a_full_buffer_go_when_there_is_room() {
    const DATAGRAMS: u32 = 20_000;
    let (left, right) = pair();
    let options = SocketOptions { send_frames: 8, receive_packets: 8, ..SocketOptions::default() };
    let server = UdpSocket::bind_with(&right, SERVER, options).expect("a socket");
    let client = UdpSocket::bind_with(&left, "192.0.2.1:4000", options).expect("a socket");
    thread::scope(|scope| {
        scope.spawn(|| {
            run(async {
                for number in 0..DATAGRAMS {
                    poll_fn(|context| client.poll_send_ready(context)).await.expect("ready");
                    client.send_to_async(&number.to_be_bytes(), server.local_addr()).await.expect("sent");
                }
            });
        });
        run(async {
            for number in 0..DATAGRAMS {
                let mut buffer = [0; 8];
                let (len, from) = server.recv_from_async(&mut buffer).await.expect("received");
                assert_eq!((len, from), (4, client.local_addr()));
                assert_eq!(buffer[..4], number.to_be_bytes());
            }
        });
    });
    let counts = client.counts();
    assert!(counts.throttled > 0 && counts.empty_wakes == 0, "{counts:?}");
}

#[test]
fn who_waits_is_woken_when_the_stack_ends_or_nobody_listens() {
    let (left, right) = pair();
    let listener = TcpListener::bind(&right, SERVER).expect("listening");
    let server = UdpSocket::bind(&right, "192.0.2.2:8").expect("a socket");
    let nobody = "192.0.2.2:9".parse().expect("an address");
    let refused = run(TcpStream::connect_async(&left, nobody)).expect_err("nobody listens");
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    thread::scope(|scope| {
        let accepting = scope.spawn(|| run(listener.accept_async()));
        let receiving = scope.spawn(|| run(async { server.recv_from_async(&mut [0; 8]).await }));
        right.stop().expect("stopped");
        assert_eq!(
            accepting.join().expect("no panic").expect_err("it has ended").kind(),
            ErrorKind::BrokenPipe
        );
        assert_eq!(
            receiving.join().expect("no panic").expect_err("it has ended").kind(),
            ErrorKind::BrokenPipe
        );
    });
}
