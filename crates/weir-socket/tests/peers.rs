//! The peer of a socket: an address and a port, and nobody else; of link-local scope as well.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use weir_run::clock::now_ns;
use weir_socket::{Stack, TcpListener, TcpStream, UdpSocket};

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
                // The pace of the strangers, ten to a timeout; nothing waits for it.
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

#[test]
fn a_peer_is_known_by_its_address_and_port_alone() {
    let [left, right] = ["2001:db8::1/64", "2001:db8::2/64"].map(|own| Stack::builder().address(own));
    let (left, right) = Stack::pair_of(left, right).expect("a pair");
    let (server, client) = (bind(&right, "[2001:db8::2]:7"), bind(&left, "[2001:db8::1]:0"));
    // A flow label and the number of an interface, which are in no packet that comes back.
    let named = SocketAddrV6::new("2001:db8::2".parse().expect("an address"), 7, 5, 3);
    for socket in [&server, &client] {
        socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    }
    client.connect(named).expect("connected");
    client.send(b"there").expect("sent");
    let mut buffer = [0; 8];
    let (len, from) = server.recv_from(&mut buffer).expect("received");
    server.send_to(&buffer[..len], from).expect("sent back");
    assert_eq!(client.recv(&mut buffer).expect("received"), len);

    let listener = TcpListener::bind(&right, "[2001:db8::2]:7").expect("listening");
    let stream = TcpStream::connect_timeout(&left, &named.into(), PATIENCE).expect("connected");
    assert_eq!(stream.peer_addr(), listener.local_addr());
}

/// Asks a socket of any address and a listener at an address of the right stack, from any address of the left one; who is asked sees that one's.
fn ask_and_be_answered(left: &Stack, right: &Stack, [from, to]: [&str; 2]) {
    let [from, to] = [from, to].map(|text| text.parse::<IpAddr>().expect("an address"));
    let any = if to.is_ipv4() { "0.0.0.0" } else { "[::]" };
    let (server, client) = (bind(right, &format!("{any}:7")), bind(left, &format!("{any}:0")));
    for socket in [&server, &client] {
        socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    }
    let mut buffer = [0; 8];
    client.send_to(b"there", (to, 7)).expect("sent");
    let (len, peer) = server.recv_from(&mut buffer).expect("received");
    assert_eq!(peer.ip(), from);
    server.send_to(&buffer[..len], peer).expect("sent back");
    let (len, peer) = client.recv_from(&mut buffer).expect("back");
    assert_eq!((&buffer[..len], peer.ip()), (&b"there"[..], to));

    let listener = TcpListener::bind(right, SocketAddr::new(to, 7)).expect("listening");
    let mut stream = TcpStream::connect_timeout(left, &(to, 7).into(), PATIENCE).expect("connected");
    let (mut accepted, peer) = listener.accept().expect("accepted");
    assert_eq!(peer.ip(), from);
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    accepted.write_all(b"and back").expect("written");
    stream.read_exact(&mut buffer).expect("read");
    assert_eq!(&buffer, b"and back");
}

#[test]
fn peers_have_link_local_addresses_of_ipv4() {
    let (left, right) = Stack::pair("169.254.1.1/16", "169.254.1.2/16").expect("a pair");
    ask_and_be_answered(&left, &right, ["169.254.1.1", "169.254.1.2"]);
}

#[test]
fn peers_are_reached_by_the_addresses_that_their_interfaces_have_of_themselves() {
    let (left, right) = Stack::pair("2001:db8:1::1/64", "2001:db8:2::1/64").expect("a pair");
    ask_and_be_answered(&left, &right, ["fe80::ff:fe00:1", "fe80::ff:fe00:2"]);
}
