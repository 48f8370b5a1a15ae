//! Peers that owe an answer: how long they are waited for, and that they are given up then.

use super::*;

/// The end of our side of a stream, in segments that were sent.
fn is_fin(it: &Went) -> bool {
    it.1 == TcpControl::Fin
}

#[test]
fn an_end_that_nobody_acknowledges_is_given_up() {
    let mut bed = Bed::new(16);
    bed.open(HONEST);
    // The peer was quiet for longer than it has for its answer.
    bed.pass_until(1000 * SECOND);
    bed.shut(0);
    let asked = bed.pass_until(1119 * SECOND);
    assert!(asked.len() >= 6 && asked.iter().all(is_fin), "it is sent again: {asked:?}");
    assert_eq!((bed.places_in_use(), bed.error(0)), (1, None));
    bed.pass_until(1121 * SECOND);
    assert_eq!(bed.error(0), Some(libc::ETIMEDOUT));
    bed.close(0);
    assert_eq!(bed.places_in_use(), 0, "its place is free");
    bed.end();
}

#[test]
fn an_end_after_the_peers_own_is_given_up_too() {
    let mut bed = Bed::new(16);
    let seq = bed.open(HONEST);
    bed.put(Says { from: HONEST, control: TcpControl::Fin, seq: 101, ack: Some(seq) });
    bed.pass_until(1000 * SECOND);
    bed.shut(0);
    assert!(bed.pass_until(1119 * SECOND).iter().all(is_fin));
    assert_ne!(bed.0.port.connections[0].state(), State::Closed);
    bed.pass_until(1121 * SECOND);
    assert_eq!(bed.0.port.connections[0].state(), State::Closed);
    bed.end();
}

#[test]
fn an_end_has_its_two_minutes_whatever_the_keepalive() {
    let mut bed = Bed::with_keepalive_s(1);
    bed.open(HONEST);
    bed.shut(0);
    bed.pass_until(119 * SECOND);
    assert_eq!(bed.error(0), None);
    bed.pass_until(121 * SECOND);
    assert_eq!(bed.error(0), Some(libc::ETIMEDOUT));
    bed.end();
}

#[test]
fn a_peer_that_still_sends_has_longer_to_acknowledge_the_end() {
    let mut bed = Bed::new(16);
    let seq = bed.open(HONEST);
    bed.shut(0);
    let mut next = 101;
    for _ in 0..10 {
        let end_ns = bed.now_ns + 100 * SECOND;
        bed.pass_until(end_ns);
        bed.put_bytes(&segment(
            Says { from: HONEST, control: TcpControl::None, seq: next, ack: Some(seq) },
            &[1; 10],
        ));
        next += 10;
        assert_eq!((bed.read(0), bed.error(0)), (10, None));
    }
    bed.put(Says { from: HONEST, control: TcpControl::Fin, seq: next, ack: Some(seq + 1) });
    assert_eq!(bed.0.port.connections[0].state(), State::TimeWait);
    bed.end();
}
