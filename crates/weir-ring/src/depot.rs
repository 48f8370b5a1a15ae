//! The shared half of the frame pool: magazines of frame handles that no worker has in its cache.
//! A worker comes here once in [`MAGAZINE_FRAMES`] frames at most, so the workers hardly ever meet.
//!
//! Rule: a magazine is in the `full` stack, in the `empty` stack, or with the one worker that fills or empties it; only that worker reads
//! or writes its rounds. With `frames / MAGAZINE_FRAMES + 2 * workers` magazines (rounded up) an empty one is always there: at most one for
//! each worker is less than full (the frames it left when it ended), and at most one is in its hand.
//!
//! Ordering and ownership: each stack is a Treiber stack whose head holds a magazine and a 40-bit change count, so
//! that a pop interrupted while the same magazine left and came back fails instead of linking a stale `next`.
//! `R0` (push) `<-> A0` (pop): the rounds of the magazine, and the bytes of the frames in it.
//! Source: Bonwick and Adams, "Magazines and Vmem", USENIX 2001 (the magazine layer); Treiber, IBM RJ 5118, 1986.
//! Limits: the change count wraps after 2^40 exchanges (a day and a half at ten million a second), so a pop would
//! have to sleep exactly that long to be deceived.

use crate::sync::Line;
use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Frames in a full magazine: a burst. A visit to the depot touches some seven lines that other cores have, so with half as many
/// frames in a magazine a bed of two workers took a tenth longer for each packet.
pub(crate) const MAGAZINE_FRAMES: usize = if cfg!(loom) { 1 } else { 64 };

/// One magazine's rounds: handles of frames.
type Rounds = Line<[AtomicU32; MAGAZINE_FRAMES]>;

/// All magazines, and the two stacks of those that no worker has.
pub(crate) struct Depot {
    rounds: Box<[Rounds]>,
    /// The number of frames in a magazine that lies in the `full` stack.
    lens: Box<[AtomicU32]>,
    /// The magazine below in the same stack, [`NONE`] at the bottom.
    next: Box<[AtomicU32]>,
    full: Head,
    empty: Head,
    /// Never below the frames in `full`: raised before a push and lowered after a pop.
    frames: Line<AtomicU32>,
}

/// A stack's head on lines of its own: magazine in the low 24 bits, change count above.
type Head = Line<AtomicU64>;

const PLACE_BITS: u32 = 24;
const NONE: u32 = (1 << PLACE_BITS) - 1;

impl Depot {
    /// A depot of empty magazines, enough for `frames` frames among `workers` workers.
    pub(crate) fn new(frames: u32, workers: usize) -> Depot {
        let magazines = (frames as usize).div_ceil(MAGAZINE_FRAMES) + 2 * workers;
        assert!(magazines < NONE as usize, "too many workers for one pool");
        let numbers = || (0..magazines).map(|_| AtomicU32::new(0)).collect::<Box<[_]>>();
        let depot = Depot {
            rounds: (0..magazines).map(|_| Line(std::array::from_fn(|_| AtomicU32::new(0)))).collect(),
            lens: numbers(),
            next: numbers(),
            full: Line(AtomicU64::new(NONE.into())),
            empty: Line(AtomicU64::new(NONE.into())),
            frames: Line(AtomicU32::new(0)),
        };
        for place in (0..magazines as u32).rev() {
            depot.push(&depot.empty, place);
        }
        depot
    }

    /// Frames in the depot; may be more than are left while another worker is taking some.
    pub(crate) fn frames(&self) -> u32 {
        // Relaxed: a figure to look at; taking is decided by the stack.
        self.frames.0.load(Ordering::Relaxed)
    }

    /// Takes a magazine's handles to the front of `out`; returns their number, 0 only if there are none here.
    pub(crate) fn take(&self, out: &mut [u32; MAGAZINE_FRAMES]) -> usize {
        let Some(place) = self.pop(&self.full) else { return 0 };
        let len = self.lens[place as usize].load(Ordering::Relaxed);
        self.frames.0.fetch_sub(len, Ordering::Relaxed);
        // Relaxed: the magazine is in the caller's hand alone; A0 brought its rounds.
        for (handle, round) in out.iter_mut().zip(&self.rounds[place as usize].0) {
            *handle = round.load(Ordering::Relaxed);
        }
        self.push(&self.empty, place);
        len as usize
    }

    /// Puts handles into the depot, at most [`MAGAZINE_FRAMES`]; fewer only from a worker that ends, or when the frames are dealt.
    pub(crate) fn put(&self, handles: &[u32]) {
        if handles.is_empty() {
            return;
        }
        let place = self.pop(&self.empty).expect("an empty magazine for every worker that has a full one");
        // Relaxed: the magazine is in the caller's hand alone; R0 takes its rounds along.
        for (round, handle) in self.rounds[place as usize].0.iter().zip(handles) {
            round.store(*handle, Ordering::Relaxed);
        }
        let len = handles.len() as u32;
        self.lens[place as usize].store(len, Ordering::Relaxed);
        self.frames.0.fetch_add(len, Ordering::Relaxed);
        self.push(&self.full, place);
    }

    fn push(&self, stack: &Head, place: u32) {
        let mut head = stack.0.load(Ordering::Relaxed);
        loop {
            self.next[place as usize].store(place_of(head), Ordering::Relaxed);
            // R0, to A0 of the worker that pops this magazine: its rounds, its length and its `next`.
            match stack.0.compare_exchange_weak(
                head,
                changed(head, place),
                Ordering::Release,
                Ordering::Relaxed,
            ) {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }

    fn pop(&self, stack: &Head) -> Option<u32> {
        // A0, from R0 of the push of the magazine on top. The magazines below were pushed with R0 as well, and every later change of the
        // head is a read-modify-write, so it too happened before.
        let mut head = stack.0.load(Ordering::Acquire);
        loop {
            let place = place_of(head);
            if place == NONE {
                return None;
            }
            // `below` may be stale if the magazine has left meanwhile; then the change count differs and the exchange fails.
            let below = self.next[place as usize].load(Ordering::Relaxed);
            match stack.0.compare_exchange_weak(
                head,
                changed(head, below),
                Ordering::Acquire,
                Ordering::Acquire,
            ) {
                Ok(_) => return Some(place),
                Err(now) => head = now,
            }
        }
    }
}

fn place_of(head: u64) -> u32 {
    head as u32 & NONE
}

/// The head with another magazine on top and its change count one further.
fn changed(head: u64, place: u32) -> u64 {
    ((head >> PLACE_BITS).wrapping_add(1) << PLACE_BITS) | u64::from(place)
}
