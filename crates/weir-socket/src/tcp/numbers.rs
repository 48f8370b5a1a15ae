//! The sequence numbers of a connection, which smoltcp does not tell.
//!
//! ```text
//! sent        first ... | oldest that is not acknowledged ... next | ...      oldest = first + given - queued
//! received    first ... | next | ...                                          next = first + taken + queued, and 1 for a FIN
//! ```
//!
//! Rule: numbers are in the arithmetic of sequence numbers. The bytes that smoltcp was given or has handed over are counted here, and those that it
//! still has (*queued*) are asked for, so each number is right after every call of smoltcp.
//!
//! Owner: the connection. Source: RFC 9293 sections 3.3.1 (SND.UNA, SND.NXT, RCV.NXT) and 3.4.

use crate::tcp::segment::{FIN, Head, SYN};

/// The numbers of what was sent.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sent {
    /// The number of the first byte of the stream.
    first: u32,
    /// The number behind the last byte that was sent, or behind our FIN.
    next: u32,
    /// The bytes that smoltcp was given to send.
    pub(crate) given_bytes: u32,
}

impl Sent {
    /// Notes a segment that leaves.
    pub(crate) fn note(&mut self, head: &Head) {
        if head.has(SYN) {
            let first = head.sequence.wrapping_add(1);
            *self = Sent { first, next: first, given_bytes: self.given_bytes };
            return;
        }
        let behind = head.sequence.wrapping_add(head.data_bytes + u32::from(head.has(FIN)));
        if is_behind(behind, self.next) {
            self.next = behind;
        }
    }

    /// Returns whether this number is of a byte that was sent and is not acknowledged, if so many bytes are with smoltcp.
    pub(crate) fn is_under_way(&self, number: u32, queued_bytes: u32) -> bool {
        let oldest = self.oldest(queued_bytes);
        number.wrapping_sub(oldest) < self.next.wrapping_sub(oldest).min(queued_bytes)
    }

    /// Returns whether an acknowledgement is of some of the bytes that were sent and not acknowledged, and not of all, if so many bytes are with smoltcp.
    pub(crate) fn is_part(&self, acknowledgement: u32, queued_bytes: u32) -> bool {
        acknowledgement != self.oldest(queued_bytes) && self.is_under_way(acknowledgement, queued_bytes)
    }

    /// Returns whether an acknowledgement is not older than the last, if so many bytes are with smoltcp.
    pub(crate) fn is_current(&self, acknowledgement: u32, queued_bytes: u32) -> bool {
        !is_behind(self.oldest(queued_bytes), acknowledgement) && !self.is_unsent(acknowledgement)
    }

    /// Returns whether an acknowledgement is of something that was not sent.
    pub(crate) fn is_unsent(&self, acknowledgement: u32) -> bool {
        is_behind(acknowledgement, self.next)
    }

    /// The number behind all that was sent, which a peer may acknowledge at any time.
    pub(crate) fn next(&self) -> u32 {
        self.next
    }

    fn oldest(&self, queued_bytes: u32) -> u32 {
        self.first.wrapping_add(self.given_bytes).wrapping_sub(queued_bytes)
    }
}

/// The numbers of what was received.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Received {
    /// The number of the first byte of the stream.
    first: u32,
    /// The bytes that smoltcp has handed over.
    taken_bytes: u32,
}

impl Received {
    /// The numbers of a peer that begins with this SYN.
    pub(crate) fn after(syn: &Head) -> Received {
        Received { first: syn.sequence.wrapping_add(1), taken_bytes: 0 }
    }

    /// Notes that smoltcp has handed bytes over: it had so many before, and has so many now.
    pub(crate) fn note_taken(&mut self, before_bytes: usize, now_bytes: usize) {
        self.taken_bytes = self.taken_bytes.wrapping_add((before_bytes - now_bytes) as u32);
    }

    /// The next number that is expected, if smoltcp has so many bytes that are to be handed over, and the peer's FIN has come or not.
    pub(crate) fn next(&self, queued_bytes: u32, has_ended: bool) -> u32 {
        self.first.wrapping_add(self.taken_bytes).wrapping_add(queued_bytes).wrapping_add(has_ended.into())
    }
}

/// Returns whether a number is behind another.
fn is_behind(number: u32, other: u32) -> bool {
    number.wrapping_sub(other).cast_signed() > 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tcp::segment::ACK;

    fn head(flags: u8, sequence: u32, data_bytes: u32) -> Head {
        Head { sequence, acknowledgement: 0, flags, window: 1000, data_bytes }
    }

    #[test]
    fn the_numbers_of_what_was_sent_go_on_behind_the_last() {
        let mut sent = Sent::default();
        sent.note(&head(SYN, u32::MAX - 10, 0));
        sent.given_bytes = 100;
        sent.note(&head(ACK, u32::MAX - 9, 20));
        // 5 bytes are acknowledged, so the last number is the oldest.
        assert_eq!(sent.next(), 10);
        let under_way = [u32::MAX - 5, u32::MAX - 4, 0, 9, 10].map(|number| sent.is_under_way(number, 95));
        assert_eq!(under_way, [false, true, true, true, false]);
        let current = [u32::MAX - 5, u32::MAX - 4, 0, 10, 11].map(|number| sent.is_current(number, 95));
        assert_eq!(current, [false, true, true, true, false]);
        let part = [u32::MAX - 5, u32::MAX - 4, u32::MAX - 3, 9, 10].map(|number| sent.is_part(number, 95));
        assert_eq!(part, [false, false, true, true, false]);
        assert!(!sent.is_unsent(10) && sent.is_unsent(11));
        sent.note(&head(FIN | ACK, 10, 80));
        assert!(!sent.is_unsent(91) && sent.is_unsent(92), "a FIN has a number");
        sent.note(&head(ACK, u32::MAX - 9, 20));
        assert_eq!(sent.next(), 91, "what is sent again changes nothing");
    }

    #[test]
    fn the_next_number_goes_on_behind_the_last() {
        let mut received = Received::after(&head(SYN, u32::MAX - 1, 0));
        assert_eq!(received.next(0, false), u32::MAX);
        received.note_taken(30, 10);
        assert_eq!((received.next(10, false), received.next(10, true)), (29, 30));
    }
}
