//! A thread that waits for many connections has no descriptor for each. In a process of its own, as descriptors are counted.

use std::io::{ErrorKind, Read, Write};

use weir_socket::{Stack, TcpListener, TcpStream, UdpSocket};

const CONNECTIONS: usize = 8;

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn a_connection_that_is_waited_for_with_others_has_no_descriptor() {
    let (left, right) = Stack::pair("192.0.2.1/24", "192.0.2.2/24").unwrap();
    let listener = TcpListener::bind(&right, "192.0.2.2:7").unwrap();
    let socket = UdpSocket::bind(&right, "192.0.2.2:7").unwrap();
    let clients: Vec<_> =
        (0..CONNECTIONS).map(|_| TcpStream::connect(&left, "192.0.2.2:7").unwrap()).collect();
    let before = descriptors();
    let servers: Vec<_> =
        clients.iter().map(|_| listener.accept_for(|_| socket.ringer()).unwrap().0).collect();
    assert_eq!(descriptors(), before);
    for (mut client, mut server) in clients.iter().zip(&servers) {
        server.set_nonblocking(false);
        assert_eq!(server.read(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock, "it waits elsewhere");
        client.write_all(b"hello").unwrap();
        // Nothing comes to this socket itself.
        socket.wait_until(None, |_| server.is_readable()).unwrap();
        let mut came = [0; 5];
        server.read_exact(&mut came).unwrap();
        socket.wait_until(None, |_| server.is_writable()).unwrap();
        server.write_all(&came).unwrap();
        client.read_exact(&mut came).unwrap();
        assert_eq!(&came, b"hello");
    }
}
