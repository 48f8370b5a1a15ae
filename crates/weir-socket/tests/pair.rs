//! Sockets of two stacks that a link in memory joins: the behaviour that a user of std expects, and no loss.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use weir_run::clock::now_ns;
use weir_socket::{FullRule, SocketOptions, Stack, UdpSocket};

const LEFT: &str = "192.0.2.1";
const RIGHT: &str = "192.0.2.2";
const PATIENCE: Duration = Duration::from_secs(20);

fn pair() -> (Stack, Stack) {
    Stack::pair("192.0.2.1/24", "192.0.2.2/24").expect("a pair")
}

fn socket(stack: &Stack, address: &str) -> UdpSocket {
    let socket = UdpSocket::bind(stack, address).expect("a socket");
    socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    socket.set_write_timeout(Some(PATIENCE)).expect("a timeout");
    socket
}

fn address(text: &str) -> SocketAddr {
    text.parse().expect("an address")
}

/// Tries until the condition is true, for a bounded time.
fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end_ns = now_ns() + PATIENCE.as_nanos() as u64;
    while !is_so() {
        assert!(now_ns() < end_ns, "not in {PATIENCE:?}: {what}");
        thread::yield_now();
    }
}

/// Waits until nothing is inside the stack, and requires that nothing was lost.
fn require_clean(stack: &Stack) {
    wait_until("nothing is inside", || stack.books().expect("books").held.packets == 0);
    let books = stack.books().expect("books");
    assert!(books.balances, "{books:?}");
    assert_eq!(books.dropped.total().packets, 0, "{:?}", books.dropped.occurred().collect::<Vec<_>>());
}

#[test]
fn a_datagram_goes_there_and_back_over_both_families() {
    let left = Stack::builder().address("192.0.2.1/24").address("2001:db8::1/64");
    let right = Stack::builder().address("192.0.2.2/24").address("2001:db8::2/64");
    let (left, right) = Stack::pair_of(left, right).expect("a pair");
    for (server, any) in [("192.0.2.2:7", "0.0.0.0:0"), ("[2001:db8::2]:7", "[::]:0")] {
        let (server, client) = (socket(&right, server), socket(&left, any));
        for len in [0, 1, 511, 1452] {
            let sent: Vec<u8> = (0..len).map(|at| at as u8).collect();
            assert_eq!(client.send_to(&sent, server.local_addr()).expect("sent"), len);
            let mut buffer = [0; 2000];
            let (came, from) = server.recv_from(&mut buffer).expect("received");
            assert_eq!((&buffer[..came], from.port()), (&sent[..], client.local_addr().port()));
            server.send_to(&buffer[..came], from).expect("sent back");
            let mut buffer = [0; 2000];
            assert_eq!(client.recv_from(&mut buffer).expect("back"), (len, server.local_addr()));
            assert_eq!(buffer[..len], sent);
        }
    }
    require_clean(&left);
}

#[test]
fn what_does_not_fit_the_buffer_is_cut_off() {
    let (left, right) = pair();
    let (client, server) = (socket(&left, "192.0.2.1:1"), socket(&right, "192.0.2.2:7"));
    client.send_to(b"longer than four", server.local_addr()).expect("sent");
    client.send_to(b"next", server.local_addr()).expect("sent");
    let mut buffer = [0; 4];
    assert_eq!(server.recv(&mut buffer).expect("cut"), 4);
    assert_eq!(&buffer, b"long");
    assert_eq!(server.recv(&mut buffer).expect("the next one whole"), 4);
    assert_eq!(&buffer, b"next");
}

#[test]
fn errors_are_those_of_std() {
    let (left, right) = pair();
    let server = socket(&right, "192.0.2.2:7");
    let kind = |result: std::io::Result<UdpSocket>| result.expect_err("an error").kind();
    let taken = UdpSocket::bind(&right, "192.0.2.2:7").expect_err("a socket has it");
    assert_eq!(taken.kind(), ErrorKind::AddrInUse);
    let text = taken.to_string();
    assert!(text.starts_with("UDP port 7 of 192.0.2.2 is in use, by a socket of this stack"), "{text}");
    assert_eq!(kind(UdpSocket::bind(&right, "0.0.0.0:7")), ErrorKind::AddrInUse);
    assert_eq!(kind(UdpSocket::bind(&right, "192.0.2.99:7")), ErrorKind::AddrNotAvailable);
    for port in [9, 0] {
        let none = UdpSocket::bind_bucket(&right, ("192.0.2.2", port), 99);
        assert_eq!(kind(none), ErrorKind::InvalidInput, "port {port}");
    }
    let family = UdpSocket::bind(&right, "[::]:7").expect_err("no address of that family");
    assert_eq!(family.raw_os_error(), Some(libc::EAFNOSUPPORT));

    let client = socket(&left, "0.0.0.0:0");
    assert_eq!(client.send(b"to whom?").expect_err("not connected").kind(), ErrorKind::NotConnected);
    assert_eq!(client.peer_addr().expect_err("not connected").kind(), ErrorKind::NotConnected);
    let error = |payload: &[u8], to: &str| client.send_to(payload, to).expect_err("an error");
    assert_eq!(error(&[0; 1473], "192.0.2.2:7").raw_os_error(), Some(libc::EMSGSIZE));
    client.send_to(&[0; 1472], "192.0.2.2:7").expect("the longest");
    assert_eq!(error(b"", "198.51.100.1:7").kind(), ErrorKind::NetworkUnreachable);
    assert_eq!(error(b"", "192.0.2.255:7").kind(), ErrorKind::PermissionDenied);
    assert_eq!(error(b"", "[2001:db8::2]:7").raw_os_error(), Some(libc::EAFNOSUPPORT));
    assert_eq!(error(b"", "192.0.2.2:0").kind(), ErrorKind::InvalidInput);
    assert_eq!(client.set_read_timeout(Some(Duration::ZERO)).unwrap_err().kind(), ErrorKind::InvalidInput);

    let mut buffer = [0; 8];
    client.set_nonblocking(true);
    assert_eq!(client.recv(&mut buffer).expect_err("nothing").kind(), ErrorKind::WouldBlock);
    client.set_nonblocking(false);
    client.set_read_timeout(Some(Duration::from_millis(20))).expect("a timeout");
    let start_ns = now_ns();
    assert_eq!(client.recv(&mut buffer).expect_err("nothing").kind(), ErrorKind::TimedOut);
    assert!(now_ns() - start_ns >= 20_000_000);
    drop(server);
}

#[test]
fn a_port_where_nobody_listens_refuses_a_connected_socket_once() {
    let (left, _right) = pair();
    let client = socket(&left, "192.0.2.1:0");
    client.connect("192.0.2.2:9").expect("connected");
    client.send(b"anybody?").expect("sent");
    let mut buffer = [0; 8];
    assert_eq!(client.recv(&mut buffer).expect_err("nobody").kind(), ErrorKind::ConnectionRefused);
    client.set_nonblocking(true);
    assert_eq!(client.recv(&mut buffer).expect_err("told once").kind(), ErrorKind::WouldBlock);
    // A socket that is not connected hears nothing of the error.
    let other = socket(&left, "192.0.2.1:0");
    other.send_to(b"anybody?", "192.0.2.2:9").expect("sent");
    other.set_read_timeout(Some(Duration::from_millis(50))).expect("a timeout");
    assert_eq!(other.recv(&mut buffer).expect_err("nothing").kind(), ErrorKind::TimedOut);
}

#[test]
fn a_connected_socket_hears_its_peer_alone() {
    let (left, right) = pair();
    let (friend, stranger) = (socket(&left, "192.0.2.1:1"), socket(&left, "192.0.2.1:2"));
    let server = socket(&right, "192.0.2.2:7");
    server.connect(friend.local_addr()).expect("connected");
    stranger.send_to(b"stranger", server.local_addr()).expect("sent");
    friend.send_to(b"friend", server.local_addr()).expect("sent");
    let mut buffer = [0; 16];
    assert_eq!(server.recv(&mut buffer).expect("the friend's"), 6);
    // The datagram that was sent first may come second.
    server.set_nonblocking(true);
    wait_until("the stranger's is thrown away", || {
        assert_eq!(server.recv(&mut buffer).expect_err("nothing else").kind(), ErrorKind::WouldBlock);
        server.counts().from_others == 1
    });
    stranger.send_to(b"again", server.local_addr()).expect("sent");
    let mut batch = server.datagrams(8);
    wait_until("and in a batch", || {
        assert_eq!(server.recv_batch(&mut batch).expect_err("nothing").kind(), ErrorKind::WouldBlock);
        server.counts().from_others == 2
    });
    server.set_nonblocking(false);
    friend.send_to(b"again", server.local_addr()).expect("sent");
    server.recv_batch(&mut batch).expect("received");
    assert_eq!(batch.iter().map(|datagram| datagram.peer()).collect::<Vec<_>>(), [friend.local_addr()]);
}

#[test]
fn a_port_is_free_again_when_its_socket_is_dropped() {
    let (left, right) = pair();
    for round in 0..100u8 {
        let server = socket(&right, "192.0.2.2:7");
        let client = socket(&left, "192.0.2.1:0");
        client.send_to(&[round], server.local_addr()).expect("sent");
        let mut buffer = [0; 8];
        // A datagram for the socket before may come to this one, as with any kernel.
        loop {
            assert_eq!(server.recv(&mut buffer).expect("received"), 1);
            if buffer[0] == round {
                break;
            }
        }
        if round % 2 == 0 {
            // The datagram is unread, and gone with its socket.
            client.send_to(&[round], server.local_addr()).expect("sent");
        }
    }
    wait_until("nothing is inside", || left.books().expect("books").held.packets == 0);
    assert!(left.books().expect("books").balances);
}

#[test]
fn there_are_as_many_sockets_as_the_stack_was_built_for() {
    let builder = || Stack::builder().sockets(2);
    let (left, _) =
        Stack::pair_of(builder().address("192.0.2.1/24"), builder().address("192.0.2.2/24")).expect("a pair");
    let kept: Vec<_> = (0..2).map(|_| socket(&left, "192.0.2.1:0")).collect();
    let error = UdpSocket::bind(&left, "192.0.2.1:0").expect_err("no more");
    assert_eq!(error.kind(), ErrorKind::OutOfMemory);
    drop(kept);
    wait_until("there is a place again", || UdpSocket::bind(&left, "192.0.2.1:0").is_ok());
}

/// A flood of 20,000 datagrams to a reader that begins late, with 256 at the most in each buffer: all come, in order.
#[test]
fn a_reader_that_is_late_holds_who_sends() {
    const DATAGRAMS: u32 = 20_000;
    let (left, right) = pair();
    let server = socket(&right, "192.0.2.2:7");
    let client = socket(&left, "192.0.2.1:0");
    client.connect(server.local_addr()).expect("connected");
    thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..DATAGRAMS {
                client.send(&number.to_be_bytes()).expect("sent");
            }
        });
        wait_until("the sender is held", || {
            let books = left.books().expect("books");
            assert!(books.balances, "{books:?}");
            books.held.packets >= 256
        });
        let mut batch = server.datagrams(64);
        let mut next = 0;
        while next < DATAGRAMS {
            server.recv_batch(&mut batch).expect("received");
            for datagram in batch.iter() {
                assert_eq!(datagram.payload(), next.to_be_bytes());
                next += 1;
            }
            batch.clear();
        }
    });
    let counts = client.counts();
    assert!(counts.throttled > 0 && counts.empty_wakes == 0, "{counts:?}");
    require_clean(&left);
}

#[test]
fn a_full_buffer_drops_if_its_owner_says_so_and_counts_it() {
    const DATAGRAMS: u64 = 1000;
    let (left, right) = pair();
    let options = SocketOptions { receive_packets: 16, full: FullRule::Drop, ..SocketOptions::default() };
    let server = UdpSocket::bind_with(&right, "192.0.2.2:7", options).expect("a socket");
    let client = socket(&left, "192.0.2.1:0");
    for _ in 0..DATAGRAMS {
        client.send_to(&[0; 100], server.local_addr()).expect("never held");
    }
    let socket_full = weir_core::drops::DropReason::SocketFull;
    wait_until("all but 16 are dropped", || {
        left.books().expect("books").dropped.get(socket_full).packets == DATAGRAMS - 16
    });
    let mut batch = server.datagrams(64);
    assert_eq!(server.recv_batch(&mut batch).expect("received"), 16);
    drop(batch);
    wait_until("nothing is inside", || left.books().expect("books").held.packets == 0);
    assert!(left.books().expect("books").balances);
}

/// A socket that is never read holds those who send to it, and nobody else.
#[test]
fn a_full_socket_holds_its_own_senders_alone() {
    let (left, right) = pair();
    let (silent, server) = (socket(&right, "192.0.2.2:1"), socket(&right, "192.0.2.2:7"));
    let (held, client) = (socket(&left, "192.0.2.1:0"), socket(&left, "192.0.2.1:0"));
    held.set_nonblocking(true);
    wait_until("it is held for good", || {
        while held.send_to(&[0; 64], silent.local_addr()).is_ok() {}
        !held.wait_writable(Some(Duration::from_millis(20))).expect("a wait")
    });
    let mut buffer = [0; 8];
    for number in 0..1000u64 {
        client.send_to(&number.to_be_bytes(), server.local_addr()).expect("sent");
        assert_eq!(server.recv(&mut buffer).expect("received"), 8);
        assert_eq!(buffer, number.to_be_bytes());
    }
    // The socket is read, and its held senders go on.
    let mut batch = silent.datagrams(256);
    silent.recv_batch(&mut batch).expect("received");
    drop(batch);
    assert!(held.wait_writable(Some(PATIENCE)).expect("a wait"), "there is room again");
    held.send_to(&[0; 64], silent.local_addr()).expect("what is writable takes one");
}

#[test]
fn a_batch_goes_back_in_its_frames_with_what_was_written_into_it() {
    let (left, right) = pair();
    let (client, server) = (socket(&left, "192.0.2.1:4000"), socket(&right, "192.0.2.2:7"));
    let mut out = client.datagrams(32);
    for number in 0..32u8 {
        out.push(server.local_addr(), 100).expect("room").payload_mut()[0] = number;
    }
    assert_eq!(out.push(server.local_addr(), 1).err().map(|error| error.kind()), Some(ErrorKind::WouldBlock));
    assert_eq!(client.send_batch(&mut out).expect("sent"), 32);
    assert!(out.is_empty());
    let (mut batch, mut echoed) = (server.datagrams(16), 0);
    while echoed < 16 {
        server.recv_batch(&mut batch).expect("received");
        batch.retain(|datagram| datagram.payload()[0] % 2 == 0);
        for mut datagram in batch.iter_mut() {
            datagram.payload_mut()[1] = 0xee;
        }
        while !batch.is_empty() {
            echoed += server.send_batch(&mut batch).expect("sent back");
        }
    }
    let mut buffer = [0; 200];
    for number in (0..32u8).step_by(2) {
        assert_eq!(client.recv_from(&mut buffer).expect("back"), (100, server.local_addr()));
        assert_eq!(buffer[..2], [number, 0xee]);
    }
    drop((out, batch));
    require_clean(&left);
}

/// 64 flows to as many sockets as there are buckets: each comes to the socket that was foretold, and goes back with the same hash.
#[test]
fn flows_come_to_the_socket_of_their_bucket() {
    let (left, right) = pair();
    let buckets = right.buckets();
    let servers: Vec<UdpSocket> = (0..buckets)
        .map(|bucket| UdpSocket::bind_bucket(&right, "192.0.2.2:7", bucket).expect("a socket"))
        .collect();
    let again = UdpSocket::bind_bucket(&right, "192.0.2.2:7", 0).expect_err("taken");
    assert_eq!(again.kind(), ErrorKind::AddrInUse);
    let (to, mut seen) = (address("192.0.2.2:7"), vec![0; buckets]);
    for port in 5000..5064_u16 {
        let client = socket(&left, &format!("{LEFT}:{port}"));
        client.send_to(&port.to_be_bytes(), to).expect("sent");
        let bucket = right.bucket_of(client.local_addr(), to);
        seen[bucket] += 1;
        let server = &servers[bucket];
        server.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        let mut batch = server.datagrams(4);
        server.recv_batch(&mut batch).expect("it falls in this bucket");
        let (hash, came) = batch.iter().map(|one| (one.flow_hash(), one.bucket())).next().expect("one");
        assert_eq!(came, bucket);
        server.send_batch(&mut batch).expect("sent back");
        let mut back = client.datagrams(4);
        client.recv_batch(&mut back).expect("back");
        assert_eq!(back.iter().next().map(|one| one.flow_hash()), Some(hash), "the key is symmetric");
    }
    assert!(seen.iter().all(|&flows| flows > 0), "64 flows in {buckets} buckets: {seen:?}");
}

#[test]
fn sockets_of_a_stack_that_has_ended_say_so() {
    let (left, right) = pair();
    let (client, server) = (socket(&left, "192.0.2.1:0"), socket(&right, "192.0.2.2:7"));
    server.set_read_timeout(None).expect("for ever");
    thread::scope(|scope| {
        let waiting = scope.spawn(|| server.recv(&mut [0; 8]).map_err(|error| error.kind()));
        left.stop().expect("stopped");
        assert_eq!(waiting.join().expect("it returns"), Err(ErrorKind::BrokenPipe));
    });
    let sent = client.send_to(b"", format!("{RIGHT}:7").as_str());
    assert_eq!(sent.expect_err("ended").kind(), ErrorKind::BrokenPipe);
    assert_eq!(UdpSocket::bind(&left, "192.0.2.1:0").expect_err("ended").kind(), ErrorKind::BrokenPipe);
    assert_eq!(left.books().expect_err("ended").kind(), ErrorKind::BrokenPipe);
}

#[test]
fn what_was_sent_before_the_socket_closes_still_comes() {
    let (left, right) = pair();
    let server = socket(&right, "192.0.2.2:7");
    for number in 0..50u8 {
        let client = socket(&left, "192.0.2.1:0");
        for _ in 0..4 {
            client.send_to(&[number], server.local_addr()).expect("sent");
        }
    }
    let mut buffer = [0; 8];
    let mut came = [0; 50];
    for _ in 0..200 {
        assert_eq!(server.recv(&mut buffer).expect("received"), 1);
        came[usize::from(buffer[0])] += 1;
    }
    assert_eq!(came, [4; 50]);
}

/// A thread that waits for datagrams keeps no other thread from sending, from sending back a received batch, or from giving frames back.
#[test]
fn who_waits_to_receive_keeps_nobody_from_sending() {
    let (left, right) = pair();
    let (client, server) = (socket(&left, "192.0.2.1:4000"), socket(&right, "192.0.2.2:7"));
    client.send_to(b"first", server.local_addr()).expect("sent");
    let mut batch = server.datagrams(4);
    server.recv_batch(&mut batch).expect("received");
    thread::scope(|scope| {
        let waiting = scope.spawn(|| server.recv(&mut [0; 16]));
        assert_eq!(server.send_batch(&mut batch).expect("sent back while another waits"), 1);
        assert_eq!(server.counts().throttled, 0);
        assert_eq!(client.recv(&mut [0; 16]).expect("back"), 5);
        client.send_to(b"second", server.local_addr()).expect("sent");
        assert_eq!(waiting.join().expect("no panic").expect("received"), 6);
    });
}

/// Frames of a batch that was written and never sent go back to the send buffer, and wake a sender that waits for one.
#[test]
fn what_a_batch_does_not_send_another_thread_can() {
    let (left, right) = pair();
    let server = socket(&right, "192.0.2.2:7");
    let options = SocketOptions { send_frames: 8, ..SocketOptions::default() };
    let client = UdpSocket::bind_with(&left, "192.0.2.1:4000", options).expect("a socket");
    let mut batch = client.datagrams(8);
    for _ in 0..8 {
        batch.push(server.local_addr(), 100).expect("room");
    }
    thread::scope(|scope| {
        let waiting = scope.spawn(|| client.send_to(b"late", server.local_addr()));
        wait_until("the other is held", || client.counts().throttled > 0);
        batch.clear();
        assert_eq!(waiting.join().expect("no panic").expect("sent"), 4);
    });
    assert_eq!(server.recv(&mut [0; 16]).expect("received"), 4);
}

/// Datagrams that are written anew, and answers in place, whether their payload was changed or not.
#[test]
fn datagrams_have_the_source_and_the_ecn_codepoint_that_were_asked_for_over_both_families() {
    let left = ["192.0.2.1/24", "192.0.2.3/24", "2001:db8::1/64", "2001:db8::3/64"];
    let left = left.into_iter().fold(Stack::builder(), weir_socket::StackBuilder::address);
    let right = Stack::builder().address("192.0.2.2/24").address("2001:db8::2/64");
    let (left, right) = Stack::pair_of(left, right).expect("a pair");
    for (any, second, server) in [
        ("0.0.0.0:4000", "192.0.2.3:4000", "192.0.2.2:7"),
        ("[::]:4000", "[2001:db8::3]:4000", "[2001:db8::2]:7"),
    ] {
        let (client, server, second) = (socket(&left, any), socket(&right, server), address(second));
        for codepoint in 0..4 {
            let mut batch = client.datagrams(2);
            for payload in [b"kept", b"anew"] {
                let mut one =
                    batch.push_from(second.ip(), server.local_addr(), 4).expect("it is the stack's");
                one.payload_mut().copy_from_slice(payload);
                one.set_ecn(codepoint);
            }
            assert_eq!(client.send_batch(&mut batch).expect("sent"), 2);
            let mut came = server.datagrams(2);
            while came.len() < 2 {
                server.recv_batch(&mut came).expect("received");
            }
            for one in came.iter() {
                assert_eq!((one.ecn(), one.peer()), (codepoint, second));
            }
            for mut one in came.iter_mut() {
                one.set_ecn(3 - codepoint);
                if one.payload() == b"anew" {
                    one.payload_mut().copy_from_slice(b"back");
                }
            }
            assert_eq!(server.send_batch(&mut came).expect("sent back"), 2);
            let mut back = client.datagrams(2);
            while back.len() < 2 {
                client.recv_batch(&mut back).expect("back");
            }
            let told: Vec<_> =
                back.iter().map(|one| (one.ecn(), one.peer(), one.payload().to_vec())).collect();
            let answer = |payload: &[u8]| (3 - codepoint, server.local_addr(), payload.to_vec());
            assert_eq!(told, [answer(b"kept"), answer(b"back")]);
        }
        let other = client.datagrams(1).push_from(server.local_addr().ip(), server.local_addr(), 1).map(drop);
        assert_eq!(other.map_err(|error| error.kind()), Err(ErrorKind::AddrNotAvailable));
    }
    require_clean(&left);
}
