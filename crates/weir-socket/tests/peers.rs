//! The peer of a connected socket: an address and a port, and nobody else.

use std::io::{self, ErrorKind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use weir_run::clock::now_ns;
use weir_socket::{Stack, UdpSocket};

const PATIENCE: Duration = Duration::from_secs(5);

fn bind(stack: &Stack, address: &str) -> UdpSocket {
    UdpSocket::bind(stack, address).expect("a socket")
}

#[test]
fn a_stranger_puts_no_timeout_off() {
    let (left, right) = Stack::pair("192.0.2.1/24", "192.0.2.2/24").expect("a pair");
    let (friend, stranger) = (bind(&left, "192.0.2.1:1"), bind(&left, "192.0.2.1:2"));
    let server = bind(&right, "192.0.2.2:7");
    server.connect(friend.local_addr()).expect("connected");
    server.set_read_timeout(Some(Duration::from_millis(50))).expect("a timeout");
    let (is_over, begin_ns) = (AtomicBool::new(false), now_ns());
    let is_late = || Duration::from_nanos(now_ns() - begin_ns) > PATIENCE;
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) && !is_late() {
                stranger.send_to(b"stranger", server.local_addr()).expect("sent");
                thread::sleep(Duration::from_millis(5));
            }
        });
        let mut batch = server.datagrams(8);
        let calls: [&mut dyn FnMut() -> io::Result<usize>; 2] =
            [&mut || server.recv(&mut [0; 16]), &mut || server.recv_batch(&mut batch)];
        for call in calls {
            let before = server.counts().from_others;
            while server.counts().from_others == before {
                assert_eq!(call().expect_err("nothing").kind(), ErrorKind::TimedOut);
                assert!(!is_late(), "it waits for as long as strangers send");
            }
        }
        is_over.store(true, Ordering::Relaxed);
    });
}
