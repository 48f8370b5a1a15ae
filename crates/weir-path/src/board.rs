//! What the workers of one topology tell each other beside packets: a board for each, on which it alone writes.
//!
//! ```text
//! gate of a receive queue   the place here that its packets came to last; whether that is full, and whether some of them wait in it; of what
//!                           comes straight there what it may still hold
//! handed, landed            packets that went from here to another worker; that came from there and were worked on. At the end, from here to
//!                           here, those that came to queues that lead back, and those that do not wait there any more
//! credit of a port          the least that a class of its egress queue may hold, in bytes
//! ```
//!
//! Rule: a word is written when it changes, and read when a queue is to be polled. One that is old lets a poll too many in, for which
//! there are slots and frames, or keeps one out; whoever sleeps for it is woken ([`weir_ring::hungry`]).
//!
//! Ordering: words of credit order nothing, but `landed` is published after the room that what landed has left, so whoever reads it first
//! counts no packet neither as under way nor in its place. `handed` is published before the packets are, `landed` after all that these caused was
//! published as handed. B1 (landed, released) <-> A1: whoever has read all that landed, and then as much as handed, has seen nothing
//! under way; B2 (ending, released) <-> A2: nor will anything be, of those that take nothing in any more, whose queues that lead back were told
//! before.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use weir_ring::hungry::Hungry;

use crate::place::Credit;

/// What may be waited for at another worker: a gate that opens.
pub const OPENED: usize = 0;
/// What may be waited for at another worker: packets that land.
pub const LANDED: usize = 1;

/// Where in the lower half of a gate's word is how it stands; below it is the number of a place, in the upper half the credit.
const OPENING_SHIFT: u32 = 30;

/// How the gate of a receive queue stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Opening {
    /// What comes has room.
    Wide,
    /// The place is full, and nothing of the queue waits there: it may bring a poll.
    Narrow,
    /// Packets of the queue wait in a full place.
    Closed,
}

/// What one worker tells.
pub struct Board {
    /// For each receive queue the number of a place, how its gate stands, and the credit there.
    gates: Box<[AtomicU64]>,
    handed: Box<[AtomicU64]>,
    landed: Box<[AtomicU64]>,
    credit_bytes: Box<[AtomicU64]>,
    ending: AtomicU8,
    /// Who waits for what this worker does.
    pub(crate) hungry: Hungry<2>,
}

/// How far a worker has come to an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd)]
pub(crate) enum Ending {
    /// It takes packets in.
    Not,
    /// It takes nothing in any more.
    Stopped,
    /// It does nothing any more.
    Gone,
}

impl Board {
    /// Boards of so many workers, over so many receive queues and ports.
    pub(crate) fn all(workers: usize, receive_queues: usize, ports: usize) -> Arc<[Board]> {
        let words = |count: usize, word: u64| (0..count).map(|_| AtomicU64::new(word)).collect();
        let board = |_| Board {
            gates: words(receive_queues, gate(0, Opening::Wide, Credit::MOST)),
            handed: words(workers, 0),
            landed: words(workers, 0),
            credit_bytes: words(ports, u64::MAX),
            ending: AtomicU8::new(Ending::Not as u8),
            hungry: Hungry::new(),
        };
        (0..workers).map(board).collect()
    }

    /// How the gate of a receive queue stands here.
    #[inline]
    pub(crate) fn opening(&self, flow: usize) -> Opening {
        match self.gates[flow].load(Ordering::Relaxed) as u32 >> OPENING_SHIFT {
            0 => Opening::Wide,
            1 => Opening::Narrow,
            _ => Opening::Closed,
        }
    }

    /// What the place may still hold that packets of a receive queue come straight to.
    #[inline]
    pub(crate) fn credit(&self, flow: usize) -> Credit {
        credit_of(self.gates[flow].load(Ordering::Relaxed))
    }

    /// The number of the place here that packets of a receive queue came to last; 0 for none.
    pub(crate) fn place(&self, flow: usize) -> usize {
        (self.gates[flow].load(Ordering::Relaxed) & ((1 << OPENING_SHIFT) - 1)) as usize
    }

    /// Tells of the gate of a receive queue; whether there is credit where there was none.
    pub(crate) fn set_gate(&self, flow: usize, place: usize, opening: Opening, credit: Credit) -> bool {
        let (word, before) = (gate(place, opening, credit), self.gates[flow].load(Ordering::Relaxed));
        if word != before {
            self.gates[flow].store(word, Ordering::Relaxed);
        }
        credit.opens(credit_of(before))
    }

    /// Packets handed from here to a worker.
    pub(crate) fn handed(&self, to: usize) -> u64 {
        self.handed[to].load(Ordering::Acquire)
    }

    /// Tells how many packets were handed to a worker, before that can see them.
    pub(crate) fn set_handed(&self, to: usize, packets: u64) {
        if self.handed[to].load(Ordering::Relaxed) != packets {
            self.handed[to].store(packets, Ordering::Release);
        }
    }

    /// Packets from a worker that were worked on here.
    pub(crate) fn landed(&self, from: usize) -> u64 {
        // A1, from B1.
        self.landed[from].load(Ordering::Acquire)
    }

    /// Tells how many packets from a worker were worked on, after what they caused was told as handed; whether that is news.
    pub(crate) fn set_landed(&self, from: usize, packets: u64) -> bool {
        let is_new = self.landed[from].load(Ordering::Relaxed) != packets;
        if is_new {
            // B1, to A1.
            self.landed[from].store(packets, Ordering::Release);
        }
        is_new
    }

    /// The least credit of what leaves by a port whose egress queue is here.
    pub(crate) fn credit_bytes(&self, port: usize) -> u64 {
        self.credit_bytes[port].load(Ordering::Relaxed)
    }

    /// Tells it.
    pub(crate) fn set_credit_bytes(&self, port: usize, bytes: u64) {
        self.credit_bytes[port].store(bytes, Ordering::Relaxed);
    }

    /// Whether this worker takes nothing in any more.
    pub(crate) fn has_ended(&self) -> bool {
        self.ending.load(Ordering::Relaxed) != Ending::Not as u8
    }

    /// Tells how far this worker has come to an end.
    pub(crate) fn end(&self, ending: Ending) {
        // B2, to A2.
        self.ending.store(ending as u8, Ordering::Release);
    }
}

fn gate(place: usize, opening: Opening, Credit { packets, door }: Credit) -> u64 {
    let stands = place as u32 | (opening as u32) << OPENING_SHIFT;
    u64::from(stands) | u64::from(packets) << 32 | u64::from(door) << 48
}

fn credit_of(gate: u64) -> Credit {
    Credit { packets: (gate >> 32) as u16, door: (gate >> 48) as u16 }
}

/// Whether packets may still come from another worker: not when all have stopped and nothing is under way, nor from one that has gone.
pub(crate) fn may_come(boards: &[Board]) -> bool {
    // A2, from B2.
    let ending = |board: &Board| board.ending.load(Ordering::Acquire);
    if boards.iter().any(|board| ending(board) == Ending::Gone as u8) {
        return false;
    }
    if boards.iter().any(|board| ending(board) == Ending::Not as u8) {
        return true;
    }
    let sum = |of: fn(&Board, usize) -> u64| -> u64 {
        boards.iter().flat_map(|board| (0..boards.len()).map(move |other| of(board, other))).sum()
    };
    let landed = sum(Board::landed);
    // What landed before was handed before.
    landed != sum(Board::handed)
}
