//! The way between the two workers of a wire: what one releases, the other transmits.
//!
//! Rule of credit: handed over and not yet finished there (transmitted or dropped) are at most as many packets as the far port's
//! transmit ring has entries. So what comes over always has room there, and what has no credit stays in its class:
//!
//! ```text
//! room = packets_max - (handed - finished)
//! ```
//!
//! Each side counts what it finished where the other sees it; that word may be old, which delays and never loses. A worker that
//! finds no room looks again soon, as at a device that takes no more.
//!
//! Conservation: on the way = handed by one - taken by the other. Order: one ring each way, first in, first out.
//! Owner: each side of a crossing one worker. The wake-up protocol is [`weir_ring::handoff`]'s.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use weir_core::drops::Count;
use weir_core::packet::Packet;
use weir_ring::handoff::{self, Inbox, InboxError, Outlet};

use crate::packet::PathPacket;

/// What one side tells the other beside packets. The counters order nothing: what happened to a frame is told by the pool, and a
/// packet by its ring.
#[derive(Debug)]
struct Word {
    /// Packets that came over and are gone: transmitted or dropped.
    finished: AtomicU64,
    /// How many it handed over in all, once nothing more will come; until then [`MORE`].
    handed: AtomicU64,
}

/// More may come.
const MORE: u64 = u64::MAX;

impl Word {
    fn new() -> Arc<Word> {
        Arc::new(Word { finished: AtomicU64::new(0), handed: AtomicU64::new(MORE) })
    }
}

/// One worker's side.
pub struct Crossing {
    outlet: Outlet<PathPacket>,
    inbox: Inbox<PathPacket>,
    handed: Count,
    taken: Count,
    here: Arc<Word>,
    there: Arc<Word>,
    packets_max: u32,
}

impl Crossing {
    /// Both sides, between ports whose transmit rings have so many entries.
    ///
    /// # Errors
    /// If the kernel does not give what wakes the workers.
    pub fn new(packets_max: u32) -> Result<[Crossing; 2], InboxError> {
        let mut ends = handoff::mesh(2, packets_max as usize, 1)?.into_iter();
        let words = [Word::new(), Word::new()];
        let mut side = |here: usize| {
            let (inbox, outlets) = ends.next().expect("an end for each of two workers");
            let outlet = outlets.into_iter().flatten().next().expect("a way to the other one");
            let (here, there) = (Arc::clone(&words[here]), Arc::clone(&words[1 - here]));
            Crossing {
                outlet,
                inbox,
                handed: Count::default(),
                taken: Count::default(),
                here,
                there,
                packets_max,
            }
        };
        Ok([side(0), side(1)])
    }

    /// How many packets may be handed over now.
    pub fn room(&self) -> u32 {
        let inside = self.departing();
        self.packets_max.saturating_sub(u32::try_from(inside).unwrap_or(u32::MAX))
    }

    /// Handed over and not finished, as far as is known here.
    pub fn departing(&self) -> u64 {
        self.handed.packets - self.there.finished.load(Ordering::Relaxed)
    }

    /// Hands a packet over, with the next [`Crossing::flush`]; there must be room.
    pub fn hand(&mut self, packet: PathPacket) {
        self.handed.add(packet.len_bytes());
        assert!(
            self.outlet.stage(packet).is_ok(),
            "a worker that is there has room for what it gave credit for"
        );
    }

    /// Publishes what was handed over, and wakes the other worker if it sleeps.
    ///
    /// # Errors
    /// If that worker has gone.
    pub fn flush(&mut self) -> Result<(), handoff::Abandoned> {
        self.outlet.flush().map(drop)
    }

    /// Takes what has come over; how many packets.
    pub fn take(&mut self, mut each: impl FnMut(PathPacket)) -> usize {
        let taken = &mut self.taken;
        self.inbox.drain(|_, packet| {
            taken.add(packet.len_bytes());
            each(packet);
        })
    }

    /// Tells the other side how many packets that came over are gone.
    pub fn tell_finished(&self, finished: u64) {
        // Written only when it changes: the other worker reads this line.
        if self.here.finished.load(Ordering::Relaxed) != finished {
            self.here.finished.store(finished, Ordering::Relaxed);
        }
    }

    /// Tells the other side that nothing more will come from here.
    pub fn tell_dry(&self) {
        self.here.handed.store(self.handed.packets, Ordering::Relaxed);
    }

    /// Whether everything that will ever come over has been taken.
    pub fn is_done(&self) -> bool {
        self.taken.packets == self.there.handed.load(Ordering::Relaxed)
    }

    /// What was handed over and what was taken.
    pub fn counts(&self) -> (Count, Count) {
        (self.handed, self.taken)
    }

    /// Sleeps by `wait`, to which the descriptor is passed that is readable when the other side has kicked; not if something
    /// has come over or `other_work` is there. Whether it slept.
    pub fn park(
        &mut self,
        other_work: impl FnOnce() -> bool,
        wait: impl FnOnce(BorrowedFd<'_>) -> std::io::Result<()>,
    ) -> std::io::Result<bool> {
        match self.inbox.park(other_work) {
            Some(parked) => wait(parked.as_fd()).map(|()| true),
            None => Ok(false),
        }
    }
}
