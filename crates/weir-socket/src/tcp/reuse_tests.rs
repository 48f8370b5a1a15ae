//! A place that is used again: its connection begins as the first one did.

use super::*;

/// The bytes of data in these packets.
fn data_bytes(went: &[Vec<u8>]) -> usize {
    went.iter().map(|bytes| TcpPacket::new_checked(&bytes[20..]).expect("TCP").payload().len()).sum()
}

/// Has the application write all that it may; returns the bytes that leave at once.
fn flight(bed: &mut Bed) -> usize {
    bed.write(0, 1400);
    data_bytes(&bed.0.poll())
}

/// Ends the connection by the peer's reset, and opens another in its place; returns the bytes of that one's first flight.
fn first_flight_after(mut bed: Bed, seq: i32) -> usize {
    bed.put(Says { from: HONEST, control: TcpControl::Rst, seq: 101, ack: Some(seq) });
    bed.close(0);
    assert_eq!(bed.places_in_use(), 0);
    let from = (HONEST.0, HONEST.1 + 1);
    bed.open(from);
    assert_eq!(bed.0.port.connections.len(), 1, "it is the same place");
    let flight = flight(&mut bed);
    bed.end();
    flight
}

#[test]
fn a_connection_does_not_inherit_the_congestion_window_of_the_last() {
    let mut bed = Bed::new(16);
    let mut seq = bed.open(HONEST);
    let fresh = flight(&mut bed);
    assert!((1000..4096).contains(&fresh), "less than the peer's window: {fresh}");
    let mut went = fresh;
    while went > 0 {
        seq += went as i32;
        bed.put(Says { from: HONEST, control: TcpControl::None, seq: 101, ack: Some(seq) });
        went = data_bytes(&bed.0.poll());
    }
    assert!(flight(&mut bed) > fresh, "the window has grown");
    assert_eq!(first_flight_after(bed, seq), fresh);
}
