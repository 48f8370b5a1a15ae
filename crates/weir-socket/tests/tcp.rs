//! TCP between two stacks that a link in memory joins: the behaviour that a user of std expects, and no loss inside.

use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::thread;
use std::time::Duration;

use weir_run::clock::now_ns;
use weir_socket::{Stack, TcpListener, TcpStream};

const PATIENCE: Duration = Duration::from_secs(20);
const SERVER: &str = "192.0.2.2:7";

fn pair() -> (Stack, Stack) {
    Stack::pair("192.0.2.1/24", "192.0.2.2/24").expect("a pair")
}

/// A pair for so many connections.
fn pair_for(connections: u16) -> (Stack, Stack) {
    let builder = || Stack::builder().sockets(1).buffer_frames_max(16).connections(connections);
    Stack::pair_of(builder().address("192.0.2.1/24"), builder().address("192.0.2.2/24")).expect("a pair")
}

fn patient(stream: TcpStream) -> TcpStream {
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    stream.set_write_timeout(Some(PATIENCE)).expect("a timeout");
    stream
}

/// Both ends of a connection.
fn connected(left: &Stack, right: &Stack) -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind(right, SERVER).expect("listening");
    let client = TcpStream::connect(left, SERVER).expect("connected");
    let (server, from) = listener.accept().expect("accepted");
    assert_eq!((from, server.peer_addr()), (client.local_addr(), client.local_addr()));
    assert_eq!((server.local_addr(), client.peer_addr()), (listener.local_addr(), listener.local_addr()));
    (patient(client), patient(server))
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

/// Lets this process have as many descriptors as it may: a connection has two.
fn raise_descriptors_max() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the limit is of this frame, which the calls read and write only while they run.
    let is_set = unsafe {
        libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) == 0 && {
            limit.rlim_cur = limit.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) == 0
        }
    };
    assert!(is_set, "{}", std::io::Error::last_os_error());
}

/// The byte at a place of the stream.
fn byte_at(at: usize) -> u8 {
    (at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()[6]
}

fn kind<T>(result: std::io::Result<T>) -> ErrorKind {
    result.err().expect("an error").kind()
}

/// Sends so many bytes and ends the stream.
fn send_all(mut stream: &TcpStream, len: usize) {
    let bytes: Vec<u8> = (0..len).map(byte_at).collect();
    for (number, piece) in bytes.chunks(7919).enumerate() {
        // Pieces of all lengths.
        let (first, second) = piece.split_at((number * 31) % piece.len());
        stream.write_all(first).expect("written");
        stream.write_all(second).expect("written");
    }
    stream.shutdown(Shutdown::Write).expect("ended");
}

/// Reads to the end, and requires that the bytes are those that were sent.
fn receive_all(mut stream: &TcpStream, len: usize) {
    let mut came = Vec::with_capacity(len);
    stream.read_to_end(&mut came).expect("read");
    assert_eq!(came.len(), len);
    let wrong = came.iter().enumerate().find(|&(at, &byte)| byte != byte_at(at));
    assert_eq!(wrong, None, "a byte that was not sent");
}

#[test]
fn bytes_go_both_ways_as_they_were_sent() {
    const LEN: usize = 8 << 20;
    let (left, right) = pair();
    let (client, server) = connected(&left, &right);
    thread::scope(|scope| {
        scope.spawn(|| send_all(&client, LEN));
        scope.spawn(|| send_all(&server, LEN / 3));
        scope.spawn(|| receive_all(&client, LEN / 3));
        receive_all(&server, LEN);
    });
    assert_eq!(kind((&client).write(b"more")), ErrorKind::BrokenPipe);
    require_clean(&left);
}

#[test]
fn the_other_side_ends_when_this_one_does() {
    let (left, right) = pair();
    let (mut client, mut server) = connected(&left, &right);
    let mut buffer = [0; 16];
    client.write_all(b"the last").expect("written");
    client.shutdown(Shutdown::Write).expect("ended");
    assert_eq!(server.peek(&mut buffer).expect("there"), 8);
    assert_eq!(server.read(&mut buffer).expect("there"), 8);
    assert_eq!(
        (server.read(&mut buffer).expect("the end"), server.read(&mut buffer).expect("and again")),
        (0, 0)
    );
    // The connection is half closed: the other way is open.
    server.write_all(b"answer").expect("written");
    drop(server);
    assert_eq!(client.read(&mut buffer).expect("there"), 6);
    assert_eq!(client.read(&mut buffer).expect("the end"), 0);
    wait_until("both ways have ended", || {
        client.shutdown(Shutdown::Both).is_err_and(|error| error.kind() == ErrorKind::NotConnected)
            || client.take_error().is_some()
            || client.shutdown(Shutdown::Write).is_ok()
    });
    require_clean(&left);
}

#[test]
fn what_was_written_goes_though_its_writer_has_gone() {
    const LEN: usize = 300_000;
    let (left, right) = pair();
    let (client, server) = connected(&left, &right);
    thread::scope(|scope| {
        scope.spawn(move || {
            send_all(&client, LEN);
            drop(client);
        });
        receive_all(&server, LEN);
    });
    require_clean(&left);
}

#[test]
fn who_goes_with_something_unread_resets() {
    let (left, right) = pair();
    let (mut client, mut server) = connected(&left, &right);
    client.write_all(b"nobody reads it").expect("written");
    let mut buffer = [0; 1];
    assert_eq!(server.read(&mut buffer).expect("there"), 1);
    drop(server);
    assert_eq!(kind(client.read(&mut buffer)), ErrorKind::ConnectionReset);
    assert_eq!(client.read(&mut buffer).expect("told once"), 0);
    assert_eq!(kind(client.write(&buffer)), ErrorKind::BrokenPipe);
    assert_eq!(kind(client.shutdown(Shutdown::Both)), ErrorKind::NotConnected);
}

#[test]
fn errors_are_those_of_std() {
    let (left, right) = pair();
    let listener = TcpListener::bind(&right, SERVER).expect("listening");
    let taken = TcpListener::bind(&right, SERVER).expect_err("somebody listens");
    assert_eq!(taken.kind(), ErrorKind::AddrInUse);
    let text = taken.to_string();
    assert!(text.starts_with("TCP port 7 of 192.0.2.2 is in use, by a socket of this stack"), "{text}");
    assert!(text.contains("take another port, or 0"), "{text}");
    assert_eq!(kind(TcpListener::bind(&right, "0.0.0.0:7")), ErrorKind::AddrInUse);
    assert_eq!(kind(TcpListener::bind(&right, "192.0.2.99:7")), ErrorKind::AddrNotAvailable);
    assert_eq!(kind(TcpListener::bind_with_backlog(&right, "192.0.2.2:8", 0)), ErrorKind::InvalidInput);
    let family = TcpListener::bind(&right, "[::]:7").expect_err("no address of that family");
    assert_eq!(family.raw_os_error(), Some(libc::EAFNOSUPPORT));
    listener.set_nonblocking(true);
    assert_eq!(kind(listener.accept()), ErrorKind::WouldBlock);

    assert_eq!(kind(TcpStream::connect(&left, "192.0.2.2:9")), ErrorKind::ConnectionRefused);
    assert_eq!(kind(TcpStream::connect(&left, "192.0.2.2:0")), ErrorKind::InvalidInput);
    assert_eq!(kind(TcpStream::connect(&left, "198.51.100.1:7")), ErrorKind::NetworkUnreachable);
    assert_eq!(kind(TcpStream::connect(&left, "192.0.2.255:7")), ErrorKind::PermissionDenied);
    let nobody = "192.0.2.77:7".parse().expect("an address");
    let start_ns = now_ns();
    let late = TcpStream::connect_timeout(&left, &nobody, Duration::from_millis(20));
    assert_eq!(kind(late), ErrorKind::TimedOut);
    assert!(now_ns() - start_ns >= 20_000_000);
    assert_eq!(kind(TcpStream::connect_timeout(&left, &nobody, Duration::ZERO)), ErrorKind::InvalidInput);

    let mut client = TcpStream::connect(&left, SERVER).expect("connected");
    let mut buffer = [0; 8];
    client.set_nonblocking(true);
    assert_eq!(kind(client.read(&mut buffer)), ErrorKind::WouldBlock);
    client.set_nonblocking(false);
    client.set_read_timeout(Some(Duration::from_millis(20))).expect("a timeout");
    assert_eq!(kind(client.read(&mut buffer)), ErrorKind::TimedOut);
    assert_eq!(kind(client.set_write_timeout(Some(Duration::ZERO))), ErrorKind::InvalidInput);
    // A client that was not accepted is told when the listener goes.
    drop(listener);
    client.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    assert_eq!(kind(client.read(&mut buffer)), ErrorKind::ConnectionReset);
    TcpListener::bind(&right, SERVER).expect("the port is free again");
}

#[test]
fn a_stack_that_has_ended_says_so() {
    let (left, right) = pair();
    let (mut client, mut server) = connected(&left, &right);
    let listener = TcpListener::bind(&right, "192.0.2.2:8").expect("listening");
    thread::scope(|scope| {
        let reading = scope.spawn(|| server.read(&mut [0; 8]));
        let accepting = scope.spawn(|| listener.accept());
        left.stop().expect("stopped");
        assert_eq!(kind(reading.join().expect("no panic")), ErrorKind::BrokenPipe);
        assert_eq!(kind(accepting.join().expect("no panic")), ErrorKind::BrokenPipe);
    });
    assert_eq!(kind(client.write(b"to whom?")), ErrorKind::BrokenPipe);
    assert_eq!(kind(client.read(&mut [0; 8])), ErrorKind::BrokenPipe);
    assert_eq!(kind(TcpStream::connect(&left, SERVER)), ErrorKind::BrokenPipe);
    assert_eq!(kind(TcpListener::bind(&left, "192.0.2.1:8")), ErrorKind::BrokenPipe);
}

#[test]
fn a_reader_that_stops_holds_the_writer() {
    // More bytes than all buffers of both sides and all chunks take.
    const LEN: usize = 1 << 20;
    let (left, right) = pair();
    let (mut client, server) = connected(&left, &right);
    client.set_nonblocking(true);
    let bytes: Vec<u8> = (0..LEN).map(byte_at).collect();
    let mut sent = 0;
    let mut quiet_since_ns = now_ns();
    // The window is closed when nothing more goes for a while.
    while now_ns() - quiet_since_ns < 200_000_000 {
        match client.write(&bytes[sent..]) {
            Ok(len) => {
                sent += len;
                quiet_since_ns = now_ns();
            }
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
    }
    assert!((64 << 10..LEN).contains(&sent), "{sent} bytes are held");
    client.set_nonblocking(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            client.write_all(&bytes[sent..]).expect("the window has opened");
            client.shutdown(Shutdown::Write).expect("ended");
        });
        receive_all(&server, LEN);
    });
    let counts = client.counts();
    assert!(counts.throttled > 0 && counts.empty_wakes == 0, "{counts:?}");
    require_clean(&left);
}

#[test]
fn a_blocked_writer_is_woken_by_a_reset() {
    let (left, right) = pair();
    let (mut client, server) = connected(&left, &right);
    thread::scope(|scope| {
        let writing = scope.spawn(|| client.write_all(&vec![0; 4 << 20]));
        wait_until("the writer is held", || server.peek(&mut [0; 1]).is_ok());
        drop(server);
        assert_eq!(kind(writing.join().expect("no panic")), ErrorKind::ConnectionReset);
    });
}

#[test]
fn who_waits_is_woken_when_its_direction_is_shut() {
    let (left, right) = pair();
    let (client, _server) = connected(&left, &right);
    thread::scope(|scope| {
        let reading = scope.spawn(|| (&client).read(&mut [0; 8]));
        let writing = scope.spawn(|| (&client).write_all(&vec![0; 4 << 20]));
        wait_until("the writer is held", || client.counts().throttled > 0);
        client.shutdown(Shutdown::Both).expect("shut");
        assert_eq!(reading.join().expect("no panic").expect("the end"), 0);
        assert_eq!(kind(writing.join().expect("no panic")), ErrorKind::BrokenPipe);
    });
}

#[test]
fn a_full_queue_takes_no_more_and_later_all() {
    let (left, right) = pair();
    let listener = TcpListener::bind_with_backlog(&right, SERVER, 2).expect("listening");
    let server = SERVER.parse().expect("an address");
    // A client that asks before the last of the two has confirmed is let in too.
    let connect = || TcpStream::connect_timeout(&left, &server, Duration::from_millis(50));
    let first: Vec<_> = std::iter::from_fn(|| connect().ok()).take(9).collect();
    assert!((2..9).contains(&first.len()) && listener.refused() > 0, "{} connections", first.len());
    thread::scope(|scope| {
        let last = scope.spawn(|| TcpStream::connect_timeout(&left, &server, PATIENCE));
        let accepted: Vec<_> = (0..=first.len()).map(|_| listener.accept().expect("accepted").1).collect();
        let last = last.join().expect("no panic").expect("its SYN was sent again");
        let from: Vec<_> = first.iter().chain([&last]).map(TcpStream::local_addr).collect();
        assert_eq!(accepted, from);
    });
}

#[test]
fn a_thousand_connections_at_once_go_each_its_way() {
    const CONNECTIONS: usize = 1000;
    raise_descriptors_max();
    let (left, right) = pair_for(CONNECTIONS as u16);
    let listener = TcpListener::bind_with_backlog(&right, SERVER, CONNECTIONS as u32).expect("listening");
    let clients: Vec<_> =
        (0..CONNECTIONS).map(|_| patient(TcpStream::connect(&left, SERVER).expect("connected"))).collect();
    let over = TcpStream::connect(&left, SERVER).expect_err("as many as may be");
    assert_eq!(over.kind(), ErrorKind::OutOfMemory);
    let servers: Vec<_> =
        listener.incoming().take(CONNECTIONS).map(|it| patient(it.expect("accepted"))).collect();
    for round in 0..3 {
        for (number, mut client) in clients.iter().enumerate() {
            client.write_all(&(number * 3 + round).to_be_bytes()).expect("written");
        }
        for mut server in &servers {
            let mut came = [0; 8];
            server.read_exact(&mut came).expect("read");
            server.write_all(&came).expect("written");
        }
        for (number, mut client) in clients.iter().enumerate() {
            let mut back = [0; 8];
            client.read_exact(&mut back).expect("read");
            assert_eq!(usize::from_be_bytes(back), number * 3 + round, "another connection's");
        }
    }
    // Closed connections make room as soon as the other side has closed too, though they are still in TIME-WAIT.
    drop((clients, servers));
    let mut again = None;
    wait_until("there is room", || {
        let server = SERVER.parse().expect("an address");
        again = TcpStream::connect_timeout(&left, &server, PATIENCE).ok();
        again.is_some()
    });
    let again = again.expect("room");
    again.set_nodelay(true);
    assert!(again.nodelay());
    wait_until("nothing is inside", || left.books().expect("books").held.packets == 0);
    assert!(left.books().expect("books").balances);
}

#[test]
fn both_families_and_oneself_can_be_spoken_to() {
    let left = Stack::builder().address("192.0.2.1/24").address("2001:db8::1/64");
    let right = Stack::builder().address("192.0.2.2/24").address("2001:db8::2/64");
    let (left, right) = Stack::pair_of(left, right).expect("a pair");
    for (stack, address) in [(&left, "192.0.2.2:7"), (&left, "[2001:db8::2]:7"), (&right, "192.0.2.2:7")] {
        let listener = TcpListener::bind(&right, address).expect("listening");
        let client = patient(TcpStream::connect(stack, address).expect("connected"));
        let server = patient(listener.accept().expect("accepted").0);
        send_all(&client, 100_000);
        receive_all(&server, 100_000);
    }
    require_clean(&left);
}
