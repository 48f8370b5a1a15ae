//! Peers that agree on scaled windows: what they send within what they were told comes, and what is beyond the buffer does not.

use super::*;

const BUFFER_BYTES: i32 = 64 << 10;
/// The number of the peer's first byte.
const FIRST: i32 = 101;

/// A port whose connections have buffers of so many bytes, and one that is open there; and the number of the first byte that it will send. Nobody has
/// accepted the connection yet, so its bytes stay in its buffer.
fn open_with(buffer_bytes: u32) -> (Bed, i32) {
    let settings = TcpSettings { connections: CONNECTIONS, buffer_bytes, mtu_bytes: 1500, keepalive: None };
    let mut bed = Bed(TcpModel::with(SocketAddr::new(SERVER.into(), PORT), settings, 16));
    let syn = TcpRepr { window_scale: Some(0), ..tcp(syn(HONEST), 4096, &[]) };
    bed.put_bytes(&packet(HONEST.0, &syn));
    let seq = bed.poll().first().expect("it is answered").2 + 1;
    put(&mut bed, seq, TcpControl::None, 0, 0);
    (bed, seq)
}

/// The peer says the bytes of its stream from `at` on, as many as `len`.
fn put(bed: &mut Bed, ack: i32, control: TcpControl, at: i32, len: i32) {
    let says = Says { from: HONEST, control, seq: FIRST + at, ack: Some(ack) };
    bed.put_bytes(&segment(says, &[7; 2000][..len as usize]));
}

/// The last number that the port acknowledges to the peer within a second.
fn told(bed: &mut Bed) -> Option<i32> {
    read(&bed.pass(SECOND)).last().and_then(|went| went.3)
}

/// The bytes that an application reads until nothing comes any more.
fn read_all(bed: &mut Bed) -> i32 {
    let mut bytes = 0;
    loop {
        match bed.read(0) {
            0 => return bytes,
            more => bytes += more as i32,
        }
    }
}

#[test]
fn bytes_beyond_the_buffer_are_asked_about_and_come_when_there_is_room() {
    for buffer_bytes in [64 << 10, 1 << 20] {
        let (mut bed, seq) = open_with(buffer_bytes);
        let end = buffer_bytes as i32 - 544;
        put(&mut bed, seq, TcpControl::None, end, 1460);
        assert_eq!(bed.poll(), [(HONEST.1, TcpControl::None, seq, Some(FIRST))]);
        for at in (1..end).step_by(1000) {
            put(&mut bed, seq, TcpControl::None, at, (end - at).min(1000));
        }
        put(&mut bed, seq, TcpControl::None, 0, 1);
        put(&mut bed, seq, TcpControl::None, end, 544);
        let told = told(&mut bed);
        assert_eq!(told, Some(FIRST + buffer_bytes as i32), "the buffer is full");
        assert!(bed.accept());
        assert_eq!(read_all(&mut bed), buffer_bytes as i32);
        bed.pass(SECOND);
        put(&mut bed, seq, TcpControl::None, buffer_bytes as i32, 916);
        assert_eq!(read_all(&mut bed), 916);
        bed.end();
    }
}

#[test]
fn bytes_that_come_before_an_acknowledgement_leaves_fill_the_buffer_at_the_most() {
    let (mut bed, seq) = open_with(BUFFER_BYTES as u32);
    for count in 0..50 {
        put(&mut bed, seq, TcpControl::None, count * 1460, 1460);
    }
    let taken = BUFFER_BYTES / 1460 * 1460;
    let told = told(&mut bed);
    assert_eq!(told, Some(FIRST + taken));
    assert!(bed.accept());
    assert_eq!(read_all(&mut bed), taken);
    bed.end();
}
