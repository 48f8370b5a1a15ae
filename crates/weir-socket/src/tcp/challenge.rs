//! Segments that may be of somebody who sees none of the connection and guesses: what smoltcp is shown for them.
//!
//! | segment, in a connection that both sides have agreed on | what is done |
//! |---|---|
//! | RST with the very next sequence number | passed: it ends the connection |
//! | RST with another number in the window | an acknowledgement goes back |
//! | RST beyond the window | dropped |
//! | SYN, whatever its number | an acknowledgement goes back |
//! | acknowledgement of what was not sent | an acknowledgement goes back |
//! | data that reaches beyond the receive buffer, or behind the peer's FIN | an acknowledgement goes back; while the connection is half open, dropped |
//!
//! Rule: a guess ends nothing and puts nothing in. The acknowledgement asks the peer whether it meant the segment: a peer that has no such connection
//! any more answers it by a RST, which has the very next number then. So a peer that began anew is through in one round trip.
//!
//! smoltcp closes by any RST in the window, drops a SYN in silence and takes an acknowledgement of bytes that it has not sent yet. Until the first
//! segment after its SYN leaves it takes the window in that to be scaled, which it was not, and panics over bytes for which its buffer has no place. A
//! peer is never told of a window beyond that buffer. In the place of such a segment smoltcp is shown a question of a keepalive, as the peer might send
//! it. It answers that by an acknowledgement, changes nothing else, and does so once a second at most for each connection: a limit for the whole host
//! would tell others of the connections that there are.
//!
//! Owner: the connection. Source: RFC 5961 sections 3.2, 4.2, 5.2 and 7. Limits: while a connection is half open, a RST with another number is dropped
//! without a word, and a SYN is smoltcp's. The window is taken to be all of the free receive buffer, where the peer may have been told of less. An
//! acknowledgement older than all that is under way is dropped, and data with it, where RFC 5961 takes it within the largest window. A probe of a full
//! buffer that has a byte of data is answered once a second too.

use smoltcp::socket::tcp::State;

use crate::tcp::connection::Connection;
use crate::tcp::segment::{ACK, Head, RST, SYN};

/// The decision on a segment.
pub(super) enum Verdict {
    Pass,
    Challenge,
    Drop,
}

impl Connection {
    pub(super) fn judge(&self, head: &Head) -> Verdict {
        let state = self.state();
        if matches!(state, State::Closed | State::Listen | State::SynSent) {
            return Verdict::Pass;
        }
        let is_agreed = state != State::SynReceived;
        let ahead = head.sequence.wrapping_sub(self.next_number());
        if head.has(RST) {
            return match ahead {
                0 => Verdict::Pass,
                _ if is_agreed && ahead < self.free_bytes() => Verdict::Challenge,
                _ => Verdict::Drop,
            };
        }
        let end = i64::from(ahead.cast_signed()) + i64::from(head.data_bytes);
        // smoltcp would take in what is behind a FIN.
        let room_bytes = if self.has_peer_ended() { 0 } else { self.free_bytes() };
        let is_beyond = head.data_bytes > 0 && end > room_bytes.into();
        let is_guess = head.has(SYN) || head.has(ACK) && self.sent.is_unsent(head.acknowledgement);
        match is_agreed {
            true if is_guess || is_beyond => Verdict::Challenge,
            false if is_beyond => Verdict::Drop,
            _ => Verdict::Pass,
        }
    }

    /// The question of the peer's whether the connection is still there: an acknowledgement with the number before the next one (RFC 9293 section 3.8.4).
    pub(super) fn question(&self) -> Head {
        Head {
            sequence: self.next_number().wrapping_sub(1),
            acknowledgement: self.sent.next(),
            flags: ACK,
            window: 0,
            data_bytes: 0,
        }
    }
}
