//! The server on a stack in memory, asked from another: in whichever bucket a client falls, keys are the same, and no reply is lost.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use weir_core::rate::Rate;
use weir_memcache::server::{Memcache, MemcacheSettings};
use weir_socket::{Stack, StackBuilder, UdpSocket};

const SERVER: &str = "192.0.2.2:11211";
const PATIENCE: Duration = Duration::from_secs(20);

/// A host beside a server with four workers, until `ask` returns.
fn with_server(builder: StackBuilder, ask: impl FnOnce(&Stack)) {
    let builder = builder.sockets(16).bucket_bits(2);
    let left = builder.clone().address("192.0.2.1/24").address("198.51.100.1/24");
    let (left, right) = Stack::pair_of(left, builder.address("192.0.2.2/24")).unwrap();
    let address: SocketAddr = SERVER.parse().unwrap();
    let settings =
        MemcacheSettings { address, limit_bytes: 64 << 20, value_bytes_max: 1 << 20, connections: 64 };
    let server = Memcache::bind(&right, settings).unwrap();
    thread::scope(|scope| {
        let server = scope.spawn(|| server.serve());
        // The server ends with the stack, also when the test fails.
        let _stop = Stop(&left);
        ask(&left);
        drop(_stop);
        server.join().unwrap().unwrap();
    });
}

struct Stop<'s>(&'s Stack);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.stop().unwrap();
    }
}

fn client(stack: &Stack) -> UdpSocket {
    let socket = UdpSocket::bind(stack, "192.0.2.1:0").unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket
}

fn send(socket: &UdpSocket, id: u16, text: &[u8]) {
    let datagram = [&id.to_be_bytes(), [0, 0, 0, 1, 0, 0].as_slice(), text].concat();
    assert_eq!(socket.send_to(&datagram, SERVER).unwrap(), datagram.len());
}

/// The whole reply to request `id`.
fn reply(socket: &UdpSocket, id: u16) -> Vec<u8> {
    let mut parts: Vec<Option<Vec<u8>>> = Vec::new();
    let (mut buffer, mut came) = ([0; 1500], 0);
    while came == 0 || came < parts.len() {
        let (len, _) = socket.recv_from(&mut buffer).unwrap();
        let word = |at: usize| u16::from_be_bytes([buffer[at], buffer[at + 1]]);
        assert_eq!(word(0), id);
        parts.resize(usize::from(word(4)), None);
        assert!(parts[usize::from(word(2))].replace(buffer[8..len].to_vec()).is_none(), "each once");
        came += 1;
    }
    parts.into_iter().flatten().flatten().collect()
}

fn ask(socket: &UdpSocket, id: u16, text: &[u8]) -> String {
    send(socket, id, text);
    String::from_utf8(reply(socket, id)).unwrap()
}

#[test]
fn a_key_set_by_one_flow_is_read_by_flows_of_every_bucket() {
    with_server(Stack::builder(), |stack| {
        let first = client(stack);
        for key in 0..64u16 {
            let text = format!("set key{key} 0 0 2\r\n{key:02}\r\n");
            assert_eq!(ask(&first, key, text.as_bytes()), "STORED\r\n");
        }
        let keys: Vec<String> = (0..64).map(|key| format!("key{key}")).collect();
        let get = format!("get {}\r\n", keys.join(" "));
        let wanted: String = (0..64).map(|key| format!("VALUE key{key} 0 2\r\n{key:02}\r\n")).collect();
        let mut buckets = HashSet::new();
        let mut tries = 0..256u16;
        while buckets.len() < stack.buckets() {
            tries.next().expect("every bucket has some flow");
            let other = client(stack);
            buckets.insert(stack.bucket_of(other.local_addr(), SERVER.parse().unwrap()));
            assert_eq!(ask(&other, 9, get.as_bytes()), format!("{wanted}END\r\n"));
        }
        let stats = ask(&first, 3, b"stats\r\n");
        assert!(stats.contains("STAT curr_items 64\r\n") && stats.contains("STAT threads 4\r\n"), "{stats}");
    });
}

#[test]
fn long_replies_several_requests_and_nonsense_have_one_reply_each() {
    with_server(Stack::builder(), |stack| {
        let socket = client(stack);
        let value = "v".repeat(1200);
        for key in 0..20 {
            let text = format!("set long{key} 0 0 1200 noreply\r\n{value}\r\nget long{key}\r\n");
            assert_eq!(
                ask(&socket, key, text.as_bytes()),
                format!("VALUE long{key} 0 1200\r\n{value}\r\nEND\r\n")
            );
        }
        let keys: Vec<String> = (0..20).map(|key| format!("long{key}")).collect();
        let all = ask(&socket, 77, format!("get {}\r\n", keys.join(" ")).as_bytes());
        assert_eq!(all.len(), 20 * ("VALUE long0 0 1200\r\n\r\n".len() + 1200) + 10 + "END\r\n".len());
        for (text, answer) in [
            (
                "nonsense\r\nversion\r\n",
                concat!("ERROR\r\nVERSION 1.6-weir-", env!("CARGO_PKG_VERSION"), "\r\n"),
            ),
            ("set a 0 0 5\r\nabc\r\n\r\n", "STORED\r\n"),
            (
                "incr a 1\r\nverbosity 1\r\n",
                "CLIENT_ERROR cannot increment or decrement non-numeric value\r\nOK\r\n",
            ),
            ("flush_all\r\nget a\r\n", "OK\r\nEND\r\n"),
        ] {
            assert_eq!(ask(&socket, 5, text.as_bytes()), answer, "{text:?}");
        }
        // A request of several datagrams is told that it may not be.
        socket.send_to(b"\0\x07\0\0\0\x02\0\0get a\r\n", SERVER).unwrap();
        assert_eq!(reply(&socket, 7), weir_memcache::frame::SEVERAL);
    });
}

#[test]
fn the_replies_to_one_datagram_are_bounded_together() {
    with_server(Stack::builder(), |stack| {
        let socket = client(stack);
        assert_eq!(ask(&socket, 0, b"set k 0 0 0\r\n\r\n"), "STORED\r\n");
        // The value is too long for a datagram.
        let text = format!("append k 0 0 1000\r\n{}\r\n", "v".repeat(1000));
        (0..100).for_each(|id| assert_eq!(ask(&socket, id, text.as_bytes()), "STORED\r\n"));
        // Four times 15 MB, of which three are more than 32 MiB, and a change.
        let get = format!("get{}\r\n", " k".repeat(150));
        let all = ask(&socket, 7, format!("{}delete k\r\n", get.repeat(4)).as_bytes());
        let item_bytes = "VALUE k 0 100000\r\n\r\n".len() + 100_000;
        let told = "SERVER_ERROR out of memory writing get response\r\nDELETED\r\n";
        assert!(all.ends_with(&format!("END\r\n{told}")));
        assert_eq!(all.len(), 3 * (150 * item_bytes + "END\r\n".len()) + told.len());
    });
}

/// The client's network is none of the server's, and the server has no gateway.
#[test]
fn a_reply_that_nothing_goes_to_is_counted() {
    with_server(Stack::builder(), |stack| {
        let far = UdpSocket::bind(stack, "198.51.100.1:0").unwrap();
        send(&far, 1, b"version\r\n");
        let near = client(stack);
        let told = |text: String| text.contains("STAT unsent_replies 1\r\n");
        assert!((0..1000).any(|id| told(ask(&near, id, b"stats\r\n"))), "it was asked by the far one before");
    });
}

/// Multi-gets whose replies are ten times the rate of the way out, as many as the clients' buffers hold.
#[test]
fn a_flood_of_multi_gets_behind_a_limit_loses_no_reply() {
    let rate = Rate::from_bits_per_s(50_000_000).unwrap();
    with_server(Stack::builder().rate(rate), |stack| {
        let clients: Vec<UdpSocket> = (0..4).map(|_| client(stack)).collect();
        let value = "v".repeat(1000);
        for key in 0..10 {
            let text = format!("set key{key} 0 0 1000\r\n{value}\r\n");
            assert_eq!(ask(&clients[0], key, text.as_bytes()), "STORED\r\n");
        }
        let keys: Vec<String> = (0..10).map(|key| format!("key{key}")).collect();
        let get = format!("get {}\r\n", keys.join(" "));
        thread::scope(|scope| {
            for socket in &clients {
                let get = get.as_bytes();
                scope.spawn(move || (0..100).for_each(|id| send(socket, id, get)));
                scope.spawn(move || {
                    for id in 0..100 {
                        assert_eq!(
                            reply(socket, id).len(),
                            10 * ("VALUE key0 0 1000\r\n\r\n".len() + 1000) + 5
                        );
                    }
                });
            }
        });
        assert_eq!(stack.books().unwrap().dropped.occurred().count(), 0);
    });
}
