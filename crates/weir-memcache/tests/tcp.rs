//! The server on a stack in memory, asked over TCP from another: commands in pieces and in one go, on many connections, whose keys are the
//! same; a client that does not read harms nobody.

use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use weir_memcache::server::{Memcache, MemcacheSettings};
use weir_socket::{Stack, TcpStream};

const SERVER: &str = "192.0.2.2:11211";
const PATIENCE: Duration = Duration::from_secs(20);

fn with_server(ask: impl FnOnce(&Stack)) {
    let builder = Stack::builder().sockets(8).bucket_bits(2).connections(64);
    let left = builder.clone().address("192.0.2.1/24");
    let (left, right) = Stack::pair_of(left, builder.address("192.0.2.2/24")).unwrap();
    let address: SocketAddr = SERVER.parse().unwrap();
    let settings = MemcacheSettings { address, limit_bytes: 64 << 20, value_bytes_max: 1 << 20 };
    let server = Memcache::bind(&right, settings).unwrap();
    drop(right);
    thread::scope(|scope| {
        let server = scope.spawn(|| server.serve());
        // The server ends with the stack, also when the test fails.
        let stop = Stop(&left);
        ask(&left);
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
