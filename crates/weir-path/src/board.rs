//! The boards by which the workers of one topology tell each other of room and progress: one for each worker, which alone writes on it.
//!
//! ```text
//! gate of a receive queue   the place here that its packets came to last; whether that is full, and whether some of them wait in it; if they
//!                           come straight there, the room of the place
//! handed, landed            packets that went from here to another worker; that came from there and were worked on. At the end, from here to
//!                           here, those that came to queues that lead back, and those that do not wait there any more
//! credit of a port          the least that a class of its egress queue may hold, in bytes
//! waiting                   whether packets wait in a receive queue of a port here, as far as is known: whom a full place holds
//! ```
//!
//! Rule: a word is written when it changes, and read when a queue is to be polled. An old word lets a poll too many in, for which there are
//! slots and frames, or keeps one out; a worker that sleeps for it is woken ([`weir_ring::hungry`]).
//!
//! Ordering: words of credit order nothing, but `landed` is published after the room that is left behind the packets that landed, so a
//! reader that reads it first misses no packet: each counts as under way or in its place. `handed` is published before the packets are,
//! `landed` after all packets that these caused were published as handed. B1 (landed, released) <-> A1: a reader that has read all landed
//! counts, and then handed counts of the same sum, has seen no packet under way. B2 (ending, released) <-> A2: no packet will be under way
//! from workers that take none in any more, whose queues that lead back were told before.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

use weir_ring::hungry::Hungry;

use crate::place::Credit;

/// The kind of wait for a gate to open at another worker.
pub const OPENED: usize = 0;
/// The kind of wait for packets to land at another worker.
pub const LANDED: usize = 1;

/// The place of the opening in the lower half of a gate's word; below it is the number of a place, in the upper half the credit.
const OPENING_SHIFT: u32 = 30;

/// The opening of the gate of a receive queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Opening {
    /// Packets that come have room.
    Wide,
    /// The place is full, and no packet of the queue waits there: the queue may bring a poll.
    Narrow,
    /// Packets of the queue wait in a full place.
    Closed,
}

/// The board of one worker.
pub struct Board {
    /// For each receive queue the number of a place, the opening of its gate, and the credit there.
    gates: Box<[AtomicU64]>,
    handed: Box<[AtomicU64]>,
    landed: Box<[AtomicU64]>,
    credit_bytes: Box<[AtomicU64]>,
    /// For each receive queue whether packets wait in it, if its port is here.
    waiting: Box<[AtomicBool]>,
    ending: AtomicU8,
    /// The workers that wait for gates to open or packets to land here.
    pub(crate) hungry: Hungry<2>,
}

/// The state of a worker's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd)]
pub(crate) enum Ending {
    /// The worker takes packets in.
    Not,
    /// The worker takes no packets in any more.
    Stopped,
    /// The worker has gone.
    Gone,
}

impl Board {
    /// The boards of so many workers, over so many receive queues and ports.
    pub(crate) fn all(workers: usize, receive_queues: usize, ports: usize) -> Arc<[Board]> {
        let words = |count: usize, word: u64| (0..count).map(|_| AtomicU64::new(word)).collect();
        let board = |_| Board {
            gates: words(receive_queues, gate(0, Opening::Wide, Credit::MOST)),
            handed: words(workers, 0),
            landed: words(workers, 0),
            credit_bytes: words(ports, u64::MAX),
            waiting: (0..receive_queues).map(|_| AtomicBool::new(false)).collect(),
            ending: AtomicU8::new(Ending::Not as u8),
            hungry: Hungry::new(),
        };
        (0..workers).map(board).collect()
    }

    /// The opening of the gate of a receive queue here.
    #[inline]
    pub(crate) fn opening(&self, flow: usize) -> Opening {
        match self.gates[flow].load(Ordering::Relaxed) as u32 >> OPENING_SHIFT {
            0 => Opening::Wide,
            1 => Opening::Narrow,
            _ => Opening::Closed,
        }
    }

    /// The room of the place that packets of a receive queue come straight to.
    #[inline]
    pub(crate) fn credit(&self, flow: usize) -> Credit {
        credit_of(self.gates[flow].load(Ordering::Relaxed))
    }

    /// The number of the place here that packets of a receive queue came to last; 0 for none.
    pub(crate) fn place(&self, flow: usize) -> usize {
        (self.gates[flow].load(Ordering::Relaxed) & ((1 << OPENING_SHIFT) - 1)) as usize
    }

    /// Tells the gate of a receive queue; returns whether there is credit where there was none.
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

    /// Tells how many packets were handed to a worker, before that worker can see them.
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

    /// Tells how many packets from a worker were worked on, after the packets that they caused were told as handed; returns whether the
    /// number has changed.
    pub(crate) fn set_landed(&self, from: usize, packets: u64) -> bool {
        let is_new = self.landed[from].load(Ordering::Relaxed) != packets;
        if is_new {
            // B1, to A1.
            self.landed[from].store(packets, Ordering::Release);
        }
        is_new
    }

    /// The least credit of a port whose egress queue is here, in bytes.
    pub(crate) fn credit_bytes(&self, port: usize) -> u64 {
        self.credit_bytes[port].load(Ordering::Relaxed)
    }

    /// Tells the least credit of a port, in bytes.
    pub(crate) fn set_credit_bytes(&self, port: usize, bytes: u64) {
        self.credit_bytes[port].store(bytes, Ordering::Relaxed);
    }

    /// Tells whether packets wait in a receive queue of a port here.
    #[inline]
    pub(crate) fn set_waiting(&self, flow: usize, is_waiting: bool) {
        if self.waiting[flow].load(Ordering::Relaxed) != is_waiting {
            self.waiting[flow].store(is_waiting, Ordering::Relaxed);
        }
    }

    /// Returns whether this worker takes no packets in any more.
    pub(crate) fn has_ended(&self) -> bool {
        self.ending.load(Ordering::Relaxed) != Ending::Not as u8
    }

    /// Tells the state of this worker's end.
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

/// Returns whether packets wait in a receive queue, whichever worker has its port.
pub(crate) fn is_waiting(boards: &[Board], flow: usize) -> bool {
    boards.iter().any(|board| board.waiting[flow].load(Ordering::Relaxed))
}

/// Returns whether a worker has gone.
pub(crate) fn has_lost_one(boards: &[Board]) -> bool {
    boards.iter().any(|board| board.ending.load(Ordering::Relaxed) == Ending::Gone as u8)
}

/// Returns whether packets may still come from another worker: not when all have stopped and no packet is under way, nor when one has gone.
pub(crate) fn may_come(boards: &[Board]) -> bool {
    if has_lost_one(boards) {
        return false;
    }
    // A2, from B2.
    let ending = |board: &Board| board.ending.load(Ordering::Acquire);
    if boards.iter().any(|board| ending(board) == Ending::Not as u8) {
        return true;
    }
    let sum = |of: fn(&Board, usize) -> u64| -> u64 {
        boards.iter().flat_map(|board| (0..boards.len()).map(move |other| of(board, other))).sum()
    };
    let landed = sum(Board::landed);
    // The packets that had landed before were handed before.
    landed != sum(Board::handed)
}
