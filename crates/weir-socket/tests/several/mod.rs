//! Sockets and connections of stacks of several workers, for the tests of these.

use std::collections::HashSet;
use std::io::{Read, Write};
use std::thread;
use std::time::Duration;

use weir_run::clock::now_ns;
use weir_socket::{Stack, TcpListener, TcpStream, UdpSocket};

pub const PATIENCE: Duration = Duration::from_secs(20);

/// The socket, whose calls end in time.
pub fn patient(socket: UdpSocket) -> UdpSocket {
    socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    socket.set_write_timeout(Some(PATIENCE)).expect("a timeout");
    socket
}

/// Stops the stack after a check that nothing was lost in it.
pub fn require_clean(stack: &Stack) {
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

/// Connections from the first stack to a listener of the second, the client of each first. Each worker has some.
pub fn connect(
    [left, right]: [&Stack; 2],
    server: &str,
    connections: u16,
    workers: usize,
) -> Vec<[TcpStream; 2]> {
    let listener = TcpListener::bind(right, server).expect("listening");
    let mut of_workers = HashSet::new();
    let ends = (0..connections).map(|_| {
        let client = TcpStream::connect(left, server).expect("connected");
        let (accepted, from) = listener.accept().expect("accepted");
        assert_eq!(from, client.local_addr());
        let bucket = left.bucket_of(server.parse().expect("an address"), from);
        of_workers.insert(left.rss().worker(bucket as u32));
        for stream in [&client, &accepted] {
            stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
            stream.set_write_timeout(Some(PATIENCE)).expect("a timeout");
        }
        [client, accepted]
    });
    let ends = ends.collect();
    assert_eq!(of_workers.len(), workers, "workers have connections");
    ends
}

/// Writes so many bytes from both ends of each connection at once, and reads them at the other.
pub fn exchange(ends: &[[TcpStream; 2]], len: usize) {
    thread::scope(|scope| {
        for [client, server] in ends {
            for (from, to) in [(client, server), (server, client)] {
                scope.spawn(move || (&mut &*from).write_all(&vec![7; len]).expect("written"));
                scope.spawn(move || {
                    let mut all = vec![0; len];
                    (&mut &*to).read_exact(&mut all).expect("read");
                    assert!(all.iter().all(|&byte| byte == 7));
                });
            }
        }
    });
}
