//! Segments of somebody who guesses: none ends a connection or puts anything into one, and the peer is asked whether it meant them.

use super::path_mtu::{open_v6, segment_v6};
use super::*;

/// A segment of the client's.
fn says(control: TcpControl, seq: i32, ack: Option<i32>) -> Says {
    Says { from: HONEST, control, seq, ack }
}

/// The client's data.
fn put_data(bed: &mut Bed, seq: i32, ack: i32, bytes: usize) {
    bed.put_bytes(&segment(says(TcpControl::None, seq, Some(ack)), &[7; 4096][..bytes]));
}

/// Puts a segment that is no proof, and requires that it is answered by this acknowledgement alone and changes nothing.
fn require_challenge(bed: &mut Bed, guess: Says, acknowledgement: (i32, i32)) {
    let before = bed.0.port.connections[0].state();
    // There is one a second.
    bed.pass(2 * SECOND);
    bed.put(guess);
    let (seq, ack) = acknowledgement;
    assert_eq!(bed.poll(), [(HONEST.1, TcpControl::None, seq, Some(ack))], "{guess:?}");
    assert_eq!((bed.0.port.connections[0].state(), bed.error(0)), (before, None), "{guess:?}");
}

#[test]
fn a_reset_ends_a_connection_only_at_the_very_next_number() {
    let mut bed = Bed::new(16);
    let seq = bed.open(HONEST);
    put_data(&mut bed, 101, seq, 1000);
    bed.pass(SECOND);
    for guess in [1102, 1200, 1101 + 3000, 1101 + 4095] {
        require_challenge(&mut bed, says(TcpControl::Rst, guess, None), (seq, 1101));
        require_challenge(&mut bed, says(TcpControl::Rst, guess, Some(seq)), (seq, 1101));
    }
    for beyond in [1100, 101, 0, 1101 + 4097, i32::MIN, i32::MAX] {
        bed.pass(2 * SECOND);
        bed.put(says(TcpControl::Rst, beyond, None));
        assert_eq!((bed.poll(), bed.error(0)), (vec![], None), "{beyond} is in no window");
    }
    // Bytes that are not acknowledged yet count.
    put_data(&mut bed, 1101, seq, 10);
    bed.put(says(TcpControl::Rst, 1111, None));
    assert_eq!((bed.poll(), bed.read(0), bed.error(0)), (vec![], 1010, Some(libc::ECONNRESET)));
    bed.end();
}

#[test]
fn guesses_are_answered_once_a_second() {
    let mut bed = Bed::new(16);
    let seq = bed.open(HONEST);
    let mut answers = 0;
    for _ in 0..100 {
        for guess in 0..10 {
            bed.put(says(TcpControl::Rst, 200 + guess, None));
            bed.put(says(TcpControl::Syn, 200 + guess, None));
        }
        answers += bed.pass(SECOND / 10).len();
    }
    assert!((9..=11).contains(&answers), "{answers} answers in 10 s");
    put_data(&mut bed, 101, seq, 10);
    assert_eq!((bed.read(0), bed.error(0)), (10, None));
    bed.end();
}

#[test]
fn a_syn_within_a_connection_is_asked_about_and_a_peer_that_began_anew_gets_in() {
    let mut bed = Bed::new(16);
    let seq = bed.open(HONEST);
    for guess in [101, 100, 150, 101 + 5000, i32::MAX] {
        require_challenge(&mut bed, says(TcpControl::Syn, guess, None), (seq, 101));
        require_challenge(&mut bed, says(TcpControl::Syn, guess, Some(seq)), (seq, 101));
    }
    // A peer that knows of no connection resets what it is told of.
    bed.put(says(TcpControl::Rst, 101, None));
    assert_eq!(bed.error(0), Some(libc::ECONNRESET));
    bed.close(0);
    bed.open(HONEST);
    bed.end();
}

#[test]
fn an_acknowledgement_of_bytes_that_were_not_sent_is_not_believed() {
    let mut bed = Bed::new(16);
    let seq = bed.open(HONEST);
    bed.write(0, 1400);
    // The congestion window lets one segment go; smoltcp has more.
    assert_eq!(bed.poll().len(), 1);
    require_challenge_of_data(&mut bed, seq);
    bed.end();
}

/// Bytes with an acknowledgement that is ahead of what was sent are not taken in.
fn require_challenge_of_data(bed: &mut Bed, seq: i32) {
    bed.put_bytes(&segment(says(TcpControl::None, 101, Some(seq + 1461)), &[7; 10]));
    assert_eq!(bed.poll(), [(HONEST.1, TcpControl::None, seq + 1460, Some(101))]);
    assert_eq!(bed.read(0), 0);
    bed.put_bytes(&segment(says(TcpControl::None, 101, Some(seq + 1460)), &[7; 10]));
    assert_eq!(bed.read(0), 10);
}

#[test]
fn a_guess_at_the_end_of_a_connection_ends_nothing() {
    let mut bed = Bed::new(16);
    let seq = bed.open(HONEST);
    put_data(&mut bed, 101, seq, 2000);
    assert_eq!(bed.read(0), 2000);
    // More segments than the application has chunks: the connection keeps their bytes itself in the end.
    (0..10).for_each(|count| put_data(&mut bed, 2101 + count * 50, seq, 50));
    bed.shut(0);
    bed.poll();
    // FIN-WAIT-1; the peer may still acknowledge the FIN.
    require_challenge(&mut bed, says(TcpControl::Rst, 2602, None), (seq + 1, 2601));
    bed.put(says(TcpControl::None, 2601, Some(seq + 1)));
    assert_eq!(bed.0.port.connections[0].state(), State::FinWait2);
    require_challenge(&mut bed, says(TcpControl::Rst, 2602, None), (seq + 1, 2601));
    require_challenge(&mut bed, says(TcpControl::Syn, 2602, None), (seq + 1, 2601));
    bed.put(says(TcpControl::Fin, 2601, Some(seq + 1)));
    bed.pass(SECOND);
    assert_eq!(bed.0.port.connections[0].state(), State::TimeWait);
    require_challenge(&mut bed, says(TcpControl::Rst, 2603, None), (seq + 1, 2602));
    bed.put(says(TcpControl::Rst, 2602, None));
    assert_eq!((bed.0.port.connections[0].state(), bed.read(0) + bed.read(0)), (State::Closed, 500));
    bed.end();
}

#[test]
fn a_guess_ends_no_connection_that_is_half_open_or_asked_for() {
    let mut bed = Bed::new(16);
    bed.put(syn(HONEST));
    let seq = bed.poll()[0].2;
    bed.put(says(TcpControl::Rst, 102, None));
    assert_eq!((bed.poll(), bed.places_in_use()), (vec![], 1));
    bed.put(says(TcpControl::None, 101, Some(seq + 1)));
    assert!(bed.0.accept(), "it goes on");

    let (peer, local) =
        (SocketAddr::new(HONEST.0.into(), HONEST.1 + 1), SocketAddr::new(SERVER.into(), PORT));
    let connection = bed.0.port.connect(Flow { local, peer }).expect("a place") as usize;
    let seq = bed.poll()[0].2;
    let answer = |control, seq, ack| Says { from: (HONEST.0, HONEST.1 + 1), control, seq, ack };
    bed.put(answer(TcpControl::Rst, 0, None));
    bed.put(answer(TcpControl::Rst, 0, Some(seq)));
    assert_eq!(bed.0.port.connections[connection].state(), State::SynSent);
    bed.put(answer(TcpControl::Syn, 500, Some(seq + 1)));
    bed.poll();
    assert_eq!(bed.0.port.connections[connection].state(), State::Established);
    bed.put(answer(TcpControl::Rst, 502, None));
    assert_eq!(bed.0.port.connections[connection].state(), State::Established);
    bed.put(answer(TcpControl::Rst, 501, None));
    assert_eq!(bed.0.port.connections[connection].state(), State::Closed);
}

/// A guess that closes the window and acknowledges a part of what is under way.
#[test]
fn an_acknowledgement_that_is_in_no_window_takes_nothing_off() {
    let mut bed = Bed::new(16);
    let seq = bed.open(HONEST);
    bed.write(0, 100);
    assert_eq!(bed.poll().len(), 1);
    let queued = bed.0.port.connections[0].socket().send_queue();
    for guess in [101 - 1000, 101 + 5000, i32::MIN] {
        let says = says(TcpControl::None, guess, Some(seq + 400));
        bed.put_bytes(&segment_with_window(says, 0, &[]));
        assert_eq!(bed.0.port.connections[0].socket().send_queue(), queued, "{guess}");
    }
    bed.put_bytes(&segment_with_window(says(TcpControl::None, 101, Some(seq + 400)), 0, &[]));
    assert_eq!(bed.0.port.connections[0].socket().send_queue(), queued - 400);
    bed.end();
}

/// Behind a FIN there are no bytes: the sequence numbers there are nobody's.
#[test]
fn data_behind_the_end_is_not_read() {
    let mut bed = Bed::new(16);
    let seq = bed.open(HONEST);
    put_data(&mut bed, 101, seq, 10);
    bed.put(says(TcpControl::Fin, 111, Some(seq)));
    let end_ns = bed.now_ns + SECOND;
    assert_eq!((bed.pass_until(end_ns).last().map(|it| it.3), bed.read(0)), (Some(Some(112)), 10));
    let require_nothing = |bed: &mut Bed, state, sequence| {
        // The segment with the end may come once more, and data with it: that is no news either.
        put_data(bed, 101, sequence, 10);
        for first in [112, 111, 108] {
            bed.pass(2 * SECOND);
            put_data(bed, first, sequence, 100);
            assert_eq!((bed.read(0), bed.0.port.connections[0].state()), (0, state), "{first}");
            let acknowledged: Vec<_> = bed.poll().iter().map(|it| it.3).collect();
            assert_eq!(acknowledged, [Some(112)], "{state:?}, {first}");
        }
    };
    require_nothing(&mut bed, State::CloseWait, seq);
    bed.shut(0);
    bed.poll();
    assert_eq!(bed.0.port.connections[0].state(), State::LastAck);
    bed.put_bytes(&segment(says(TcpControl::None, 112, Some(seq)), &[7; 10]));
    assert_eq!(bed.read(0), 0);
    bed.put(says(TcpControl::None, 112, Some(seq + 1)));
    assert_eq!((bed.0.port.connections[0].state(), bed.read(0), bed.error(0)), (State::Closed, 0, None));
    bed.end();
}

#[test]
fn over_ipv6_a_guess_is_asked_about_too() {
    let (mut model, seq) = open_v6();
    model.put(&segment_v6(TcpControl::Rst, 200, None));
    let went = model.poll();
    assert_eq!(went.len(), 1);
    let tcp = TcpPacket::new_checked(&went[0][40..]).expect("TCP");
    assert_eq!((tcp.seq_number(), tcp.ack_number()), (TcpSeqNumber(seq), TcpSeqNumber(101)));
    assert!(tcp.ack() && !tcp.rst() && model.error(0).is_none());
    model.put(&segment_v6(TcpControl::Rst, 101, None));
    assert_eq!((model.poll().len(), model.error(0)), (0, Some(libc::ECONNRESET)));
    model.end();
}

proptest! {
    /// The number that a reset has to have is the one that the connection acknowledges, whatever has come and was read.
    #[test]
    fn the_next_number_is_the_acknowledged_one(
        steps in prop::collection::vec((0..3u8, 0..1400usize), 1..40), ends in any::<bool>(),
    ) {
        let mut bed = Bed::new(16);
        let seq = bed.open(HONEST);
        let mut next = 101;
        for (step, bytes) in steps {
            match step {
                0 => put_data(&mut bed, next, seq, bytes),
                // Out of order.
                1 => put_data(&mut bed, next + 1, seq, bytes),
                _ => drop(bed.read(0)),
            }
            let went = bed.pass_until(bed.now_ns + SECOND);
            next = went.iter().filter_map(|it| it.3).next_back().unwrap_or(next);
        }
        if ends {
            bed.put(says(TcpControl::Fin, next, Some(seq)));
            bed.pass(SECOND);
            next += 1;
        }
        bed.put(says(TcpControl::Rst, next + 1, None));
        prop_assert_ne!(bed.0.port.connections[0].state(), State::Closed);
        bed.put(says(TcpControl::Rst, next, None));
        prop_assert_eq!(bed.0.port.connections[0].state(), State::Closed);
        bed.end();
    }
}
