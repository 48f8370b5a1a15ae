//! The end of a server that one of its workers brings about.

use std::io::ErrorKind;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use weir_memcache::server::{Memcache, MemcacheSettings};
use weir_socket::Stack;

const PATIENCE: Duration = Duration::from_secs(20);

/// One of two workers does not get the stack's worker that it is to drive, because another thread has it.
#[test]
fn a_worker_that_fails_ends_the_server() {
    let builder = Stack::builder().bucket_bits(1);
    let left = builder.clone().address("192.0.2.1/24");
    let (left, right) = Stack::pair_of(left, builder.address("192.0.2.2/24")).unwrap();
    let settings = MemcacheSettings {
        address: "192.0.2.2:11211".parse().unwrap(),
        limit_bytes: 64 << 20,
        value_bytes_max: 1 << 20,
        connections: 64,
    };
    let server = Memcache::bind(&right, settings).unwrap();
    let (drives, is_driven) = channel();
    let driving = thread::spawn(move || {
        let mut driver = left.drive(0).unwrap();
        drives.send(()).unwrap();
        driver.turn_until(|| false).unwrap_err().kind()
    });
    is_driven.recv().unwrap();
    let (ends, ended) = channel();
    thread::spawn(move || ends.send(server.serve()).unwrap());
    let ended = ended.recv_timeout(PATIENCE).expect("it ends");
    assert_eq!(ended.unwrap_err().kind(), ErrorKind::ResourceBusy);
    assert_eq!(driving.join().unwrap(), ErrorKind::BrokenPipe);
}
