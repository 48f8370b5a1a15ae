//! The server on a stack in memory, asked over TCP from another: commands in pieces and in one go, on many connections, whose keys are the
//! same; a client that does not read harms nobody.

use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use weir_memcache::server::{Memcache, MemcacheSettings, SPARE_CONNECTIONS};
use weir_run::clock::now_ns;
use weir_socket::{Stack, TcpStream, UdpSocket};

const SERVER: &str = "192.0.2.2:11211";
const PATIENCE: Duration = Duration::from_secs(20);

fn with_server(ask: impl FnOnce(&Stack)) {
    with_settings(SERVER, 64, |stack, _| ask(stack));
}

fn with_settings(address: &str, connections: u16, ask: impl FnOnce(&Stack, SocketAddr)) {
    let builder = Stack::builder().sockets(8).bucket_bits(2).connections(64);
    let left = builder.clone().address("192.0.2.1/24");
    let (left, right) = Stack::pair_of(left, builder.address("192.0.2.2/24")).unwrap();
    let address = address.parse().unwrap();
    let settings = MemcacheSettings { address, limit_bytes: 64 << 20, value_bytes_max: 1 << 20, connections };
    let server = Memcache::bind(&right, settings).unwrap();
    let address = server.address();
    drop(right);
    thread::scope(|scope| {
        let server = scope.spawn(|| server.serve());
        // The server ends with the stack, also when the test fails.
        let stop = Stop(&left);
        ask(&left, address);
        drop(stop);
        server.join().unwrap().unwrap();
    });
}

struct Stop<'s>(&'s Stack);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.stop().unwrap();
    }
}

fn client(stack: &Stack) -> TcpStream {
    let stream = TcpStream::connect(stack, SERVER).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

fn ask(mut stream: &TcpStream, text: &str, len: usize) -> String {
    stream.write_all(text.as_bytes()).unwrap();
    let mut reply = vec![0; len];
    stream.read_exact(&mut reply).unwrap();
    String::from_utf8(reply).unwrap()
}

#[test]
fn a_key_set_by_one_connection_is_read_by_all() {
    with_server(|stack| {
        let first = client(stack);
        for key in 0..40 {
            assert_eq!(ask(&first, &format!("set key{key} 0 0 2\r\n{key:02}\r\n"), 8), "STORED\r\n");
        }
        let gets: String = (0..40).map(|key| format!("get key{key}\r\n")).collect();
        let wanted: String =
            (0..40).map(|key| format!("VALUE key{key} 0 2\r\n{key:02}\r\nEND\r\n")).collect();
        let others: Vec<_> = (0..20).map(|_| client(stack)).collect();
        for other in &others {
            assert_eq!(ask(other, &gets, wanted.len()), wanted, "in the order of the commands");
        }
    });
}

/// The answer to `stats`.
fn stats(mut stream: &TcpStream) -> String {
    stream.write_all(b"stats\r\n").unwrap();
    let mut text = Vec::new();
    while !text.ends_with(b"END\r\n") {
        let mut part = [0; 1500];
        let len = stream.read(&mut part).unwrap();
        assert!(len > 0, "{text:?}");
        text.extend_from_slice(&part[..len]);
    }
    String::from_utf8(text).unwrap()
}

#[test]
fn whoever_is_too_many_is_told_so_and_counted() {
    with_settings(SERVER, 2, |stack, _| {
        let (first, second) = (client(stack), client(stack));
        for one in [&first, &second] {
            assert_eq!(ask(one, "get key\r\n", 5), "END\r\n");
        }
        // As often as there are spare connections, and once more: they are free again.
        for rejected in 1..=SPARE_CONNECTIONS + 1 {
            let mut told = String::new();
            client(stack).read_to_string(&mut told).unwrap();
            assert_eq!(told, "ERROR Too many open connections\r\n");
            let told = stats(&first);
            for (name, count) in [("max", 2), ("curr", 2), ("total", 2), ("rejected", rejected)] {
                assert!(told.contains(&format!("STAT {name}_connections {count}\r\n")), "{told}");
            }
        }
        drop(second);
        let end_ns = now_ns() + PATIENCE.as_nanos() as u64;
        while stats(&first).contains("STAT curr_connections 2\r\n") {
            assert!(now_ns() < end_ns, "its seat is never free");
        }
        assert_eq!(ask(&client(stack), "get key\r\n", 5), "END\r\n");
    });
}

/// Who is told something and closed may have sent more, of which the server reads nothing: what it was told comes nevertheless.
#[test]
fn what_the_server_says_last_is_read_by_who_has_sent_more() {
    with_settings(SERVER, 1, |stack, _| {
        let first = client(stack);
        assert_eq!(ask(&first, "get key\r\n", 5), "END\r\n");
        let told = |mut stream: TcpStream, text: &[u8]| {
            // The server takes what it has no use for.
            text.chunks(1000).for_each(|part| stream.write_all(part).unwrap());
            let mut told = String::new();
            stream.read_to_string(&mut told).unwrap();
            told
        };
        let text = vec![b'x'; 200_000];
        for _ in 0..20 {
            assert_eq!(told(client(stack), &text), "ERROR Too many open connections\r\n");
        }
        assert_eq!(told(first, &text), "CLIENT_ERROR line too long\r\n");
    });
}

#[test]
fn a_port_that_is_chosen_is_one_for_udp_and_tcp_and_told() {
    with_settings("192.0.2.2:0", 64, |stack, address| {
        assert_ne!(address.port(), 0);
        let stream = TcpStream::connect(stack, address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        assert_eq!(ask(&stream, "set key 0 0 1\r\n1\r\n", 8), "STORED\r\n");
        let socket = UdpSocket::bind(stack, "192.0.2.1:0").unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket.send_to(b"\0\x01\0\0\0\x01\0\0get key\r\n", address).unwrap();
        let mut reply = [0; 64];
        let (len, _) = socket.recv_from(&mut reply).unwrap();
        assert_eq!(&reply[8..len], b"VALUE key 0 1\r\n1\r\nEND\r\n");
    });
}

#[test]
fn commands_come_in_any_pieces_and_values_of_a_mebibyte() {
    with_server(|stack| {
        let mut stream = &client(stack);
        let value: Vec<u8> = (0..1_000_000u32).map(|at| at as u8).collect();
        let set = [format!("set large 1 0 {}\r\n", value.len()).as_bytes(), &value, b"\r\n"].concat();
        set.chunks(3001).for_each(|piece| stream.write_all(piece).unwrap());
        assert_eq!(ask(stream, "", 8), "STORED\r\n");
        stream.write_all(b"get large\r\n").unwrap();
        let head = format!("VALUE large 1 {}\r\n", value.len());
        let mut reply = vec![0; head.len() + value.len() + 7];
        stream.read_exact(&mut reply).unwrap();
        assert!(reply == [head.as_bytes(), &value, b"\r\nEND\r\n"].concat());
        let end = "ERROR\r\n";
        assert_eq!(ask(stream, "nonsense\r\nquit\r\nversion\r\n", end.len()), end);
        assert_eq!(stream.read(&mut [0; 8]).unwrap(), 0, "it was asked to quit");
    });
}

#[test]
fn a_client_that_does_not_read_harms_nobody() {
    with_server(|stack| {
        let (mut deaf, other) = (&client(stack), client(stack));
        let value = "v".repeat(100_000);
        assert_eq!(ask(deaf, &format!("set large 0 0 100000\r\n{value}\r\n"), 8), "STORED\r\n");
        deaf.set_write_timeout(Some(Duration::from_millis(100))).unwrap();
        let held = loop {
            if let Err(error) = deaf.write_all(b"get large\r\n") {
                break error;
            }
        };
        assert!(matches!(held.kind(), ErrorKind::TimedOut | ErrorKind::WouldBlock), "{held}");
        let value = "w".repeat(1000);
        for key in 0..100 {
            assert_eq!(ask(&other, &format!("set key{key} 0 0 1000\r\n{value}\r\n"), 8), "STORED\r\n");
        }
    });
}
