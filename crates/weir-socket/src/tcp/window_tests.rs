//! Peers that agree on scaled windows: what they send within what they were told comes, and what is beyond the buffer does not.

use super::*;
use crate::tcp::control::CHUNKS;

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

/// A connection whose application reads nothing and has sent something, and whose window has moved back by rounding, so that a byte of the peer's did not
/// come that was within it before. Returns the number behind what was sent, and the bytes that the peer has sent; the last segment is one with `control`.
fn moved_back(control: TcpControl) -> (Bed, i32, i32) {
    let (mut bed, seq) = open_with(BUFFER_BYTES as u32);
    assert!(bed.accept());
    bed.write(0, 100);
    assert_eq!(bed.poll().len(), 1, "all of it is under way");
    let seq_end = seq + CHUNKS as i32 * 100;
    let mut at = 0;
    let mut more = |bed: &mut Bed, control, len| {
        put(bed, seq, control, at, len);
        at += len;
        at
    };
    // The chunks that the application may hold.
    for _ in 0..CHUNKS {
        more(&mut bed, TcpControl::None, 2);
    }
    for _ in 0..44 {
        more(&mut bed, TcpControl::None, 1460);
    }
    bed.pass(SECOND / 10);
    more(&mut bed, TcpControl::None, 1);
    bed.pass(SECOND / 10);
    let end = more(&mut bed, control, 1295);
    assert_eq!(told(&mut bed), Some(FIRST + end - 1));
    (bed, seq_end, end)
}

#[test]
fn an_acknowledgement_from_where_the_window_ended_before_is_taken() {
    // The peer has sent a FIN as well, or a byte to probe the window, and that did not come.
    for behind in [0, 1] {
        let (mut bed, seq, end) = moved_back(TcpControl::None);
        assert!(bed.0.port.connections[0].socket().send_queue() > 0);
        put(&mut bed, seq, TcpControl::None, end + behind, 0);
        assert_eq!(bed.0.port.connections[0].socket().send_queue(), 0);
        bed.end();
    }
}

#[test]
fn a_fin_is_taken_with_the_last_byte_before_it() {
    let (mut bed, seq, end) = moved_back(TcpControl::Fin);
    assert_eq!(read_all(&mut bed), end - 1);
    bed.pass(SECOND);
    put(&mut bed, seq, TcpControl::Fin, end - 1, 1);
    assert_eq!((read_all(&mut bed), told(&mut bed)), (1, Some(FIRST + end + 1)));
    assert_eq!(bed.0.port.connections[0].state(), State::CloseWait);
    bed.end();
}

#[test]
fn a_fin_comes_also_behind_bytes_that_have_come_before() {
    let (mut bed, seq) = open_with(BUFFER_BYTES as u32);
    put(&mut bed, seq, TcpControl::None, 0, 10);
    put(&mut bed, seq, TcpControl::Fin, 0, 10);
    assert_eq!(told(&mut bed), Some(FIRST + 11));
    assert!(bed.accept());
    assert_eq!(read_all(&mut bed), 10);
    bed.end();
}
