//! UDP sockets as an application sees them, on two stacks in memory.

use super::*;

const LIMIT: Duration = Duration::from_secs(60);

fn pair() -> [Stack; 2] {
    let (left, right) = Stack::pair("192.0.2.1/24", "192.0.2.2/24").unwrap();
    [left, right]
}

#[test]
fn a_connected_socket_tells_the_address_that_it_sends_from() {
    let [left, right] = pair();
    let server = UdpSocket::bind(&right, "192.0.2.2:7").unwrap();
    server.set_read_timeout(Some(LIMIT)).unwrap();
    let client = UdpSocket::bind(&left, "0.0.0.0:40").unwrap();
    assert_eq!(client.local_addr(), "0.0.0.0:40".parse().unwrap());
    client.connect("192.0.2.2:7").unwrap();
    client.send(b"hello").unwrap();
    let (_, from) = server.recv_from(&mut [0; 10]).unwrap();
    assert_eq!((client.local_addr(), from), (from, "192.0.2.1:40".parse().unwrap()));
}

#[test]
fn a_stack_of_small_buffers_has_sockets_by_default() {
    let builder = |address| Stack::builder().address(address).buffer_frames_max(64);
    let (stack, other) = Stack::pair_of(builder("192.0.2.1/24"), builder("192.0.2.2/24")).unwrap();
    let ringer = stack.ringer(0);
    let sockets = [
        UdpSocket::bind(&stack, "192.0.2.1:7").unwrap(),
        UdpSocket::bind_bucket(&stack, "192.0.2.1:8", 0).unwrap(),
        UdpSocket::bind_bucket_for(&stack, "192.0.2.1:9", 0, &ringer).unwrap(),
    ];
    for socket in sockets {
        socket.set_nonblocking(true);
        // There is no frame for the 65th while the stack has not moved.
        assert!(socket.send_to(b"hello", "192.0.2.2:7").is_ok());
    }
    let (options, usual) = (stack.options(), SocketOptions::default());
    assert_eq!((options.send_frames, options.receive_packets), (64, 64));
    assert_eq!((options.full, options.bucket), (usual.full, usual.bucket));
    let (large, _other) = Stack::pair("192.0.2.3/24", "192.0.2.4/24").unwrap();
    assert_eq!(large.options(), usual);
    drop(other);
}

#[test]
fn nothing_goes_to_a_router_from_an_address_that_none_forwards() {
    let builder = |address| Stack::builder().address(address);
    let with_router = builder("192.0.2.1/24").gateway("fe80::1");
    let (stack, _other) = Stack::pair_of(with_router, builder("192.0.2.2/24")).unwrap();
    let socket = UdpSocket::bind(&stack, "[::]:0").unwrap();
    let error = socket.send_to(b"out", "[2001:db8::9]:7").unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ENETUNREACH));
}

#[test]
fn an_error_is_something_to_receive() {
    let [left, _right] = pair();
    let client = UdpSocket::bind(&left, "192.0.2.1:0").unwrap();
    client.connect("192.0.2.2:7").unwrap();
    assert!(!client.is_readable());
    client.send(b"to nobody").unwrap();
    assert!(client.wait_readable(Some(LIMIT)).unwrap(), "no error came");
    assert!(client.is_readable());
    client.set_nonblocking(true);
    let error = client.recv(&mut [0; 10]).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
    assert!(!client.is_readable());
}

#[test]
fn rings_without_pause_do_not_put_a_timeout_off() {
    const LOOKS_MAX: u32 = 1_000_000;
    let [left, _right] = pair();
    let socket = UdpSocket::bind(&left, "192.0.2.1:0").unwrap();
    let (ringer, mut looks) = (socket.ringer(), 0);
    let is_so = socket.wait_until(Some(Duration::from_millis(1)), |_| {
        // It comes within each last look before the thread sleeps.
        ringer.published();
        looks += 1;
        looks == LOOKS_MAX
    });
    assert!(!is_so.unwrap(), "it still waited after {looks} looks");
}
