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

/// A connection whose peer's window is closed: the peer has taken some bytes, and more wait. Returns the number of the next byte.
fn closed() -> (Bed, i32) {
    let mut bed = Bed::new(16);
    let seq = bed.open(HONEST);
    bed.write(0, 1400);
    let went = bed.poll().len() as i32 * 1460;
    say_window(&mut bed, seq + went, 0);
    (bed, seq + went)
}

/// The peer says how many bytes it takes from this number on.
fn say_window(bed: &mut Bed, ack: i32, window_bytes: u16) {
    let says = Says { from: HONEST, control: TcpControl::None, seq: 101, ack: Some(ack) };
    bed.put_bytes(&segment_with_window(says, window_bytes, &[]));
}

/// Lets half an hour pass in which the peer keeps its window closed. Every third question or answer is lost, and the answers are slow.
fn keep_closed(bed: &mut Bed, next: i32) {
    let start_ns = bed.now_ns;
    let mut asked = 0;
    while bed.now_ns < start_ns + 1800 * SECOND {
        let questions = read(&bed.pass(SECOND));
        asked += questions.len();
        if !questions.is_empty() && asked % 3 != 0 {
            bed.pass(5 * SECOND);
            say_window(bed, next, 0);
        }
        assert_eq!(bed.error(0), None, "after {asked} questions");
    }
    assert!(asked > 20, "{asked} questions");
}

#[test]
fn a_closed_window_is_asked_for_as_long_as_answers_come() {
    let (mut bed, next) = closed();
    keep_closed(&mut bed, next);
    say_window(&mut bed, next, 4096);
    let went = bed.poll();
    assert!(went.len() > 1 && went[0].2 == next, "it goes on: {went:?}");
    bed.end();
}

#[test]
fn a_window_that_closes_over_bytes_under_way_is_asked_too() {
    let mut bed = Bed::new(16);
    let seq = bed.open(HONEST);
    bed.write(0, 1400);
    bed.poll();
    say_window(&mut bed, seq, 0);
    keep_closed(&mut bed, seq);
    say_window(&mut bed, seq, 4096);
    assert_eq!(bed.poll().first().map(|it| it.2), Some(seq), "its bytes are sent again");
    bed.end();
}

#[test]
fn bytes_that_a_closing_window_did_not_take_are_sent_again_when_it_opens() {
    for (keepalive_s, taken) in [(None, 700), (None, 799), (Some(1), 799)] {
        let mut bed = keepalive_s.map_or_else(|| Bed::new(16), Bed::with_keepalive_s);
        let seq = bed.open(HONEST);
        bed.write(0, 100);
        assert_eq!(bed.poll().len(), 1, "all of it is under way");
        bed.pass(SECOND / 10);
        say_window(&mut bed, seq + taken, 0);
        bed.pass(SECOND / 2);
        say_window(&mut bed, seq + taken, 4096);
        let went = bed.0.pass(15 * SECOND);
        let first = TcpPacket::new_checked(&went.first().expect("something goes")[20..]).expect("TCP");
        // The byte of a question of a keepalive has no PSH. The peer would take it for the one that it lacks.
        assert_eq!((first.seq_number().0, first.psh()), (seq + taken, true));
        bed.end();
    }
}

#[test]
fn a_peer_that_vanishes_with_its_window_closed_is_given_up_after_four_minutes() {
    let (mut bed, next) = closed();
    let start_ns = bed.now_ns;
    let asked = bed.pass_until(start_ns + 239 * SECOND);
    assert!(asked.len() > 7 && asked.iter().all(|it| it.2 == next), "{asked:?}");
    assert_eq!(bed.error(0), None);
    bed.pass_until(start_ns + 241 * SECOND);
    assert_eq!(bed.error(0), Some(libc::ETIMEDOUT));
    bed.end();
}

#[test]
fn a_window_that_has_opened_leaves_two_minutes_again() {
    let (mut bed, next) = closed();
    bed.pass(100 * SECOND);
    say_window(&mut bed, next, 4096);
    bed.pass(119 * SECOND);
    assert_eq!(bed.error(0), None);
    bed.pass(2 * SECOND);
    assert_eq!(bed.error(0), Some(libc::ETIMEDOUT));
    bed.end();
}
