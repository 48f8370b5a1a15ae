//! Weir: the hand-off of weir-ring, and a worker that rests as those of weir-run do.
//!
//! The transmitter stages a burst and publishes it at once, with at most one kick. The worker takes the packets that were there when its
//! pass began; those that it hands to itself go into a list of its own, without a kick, which it empties in the same pass: so every link
//! has its turn. With nothing to do it spins for as long as that is cheaper than sleeping, then parks.
//!
//! Ownership: the list is the worker's; the rest is argued in [`weir_ring::handoff`] and [`weir_run::idle`].
//! Limits: the list holds one pass, at most as many packets as a link holds, as it is emptied before the next one fills it.

use std::time::Duration;

use anyhow::Result;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use weir_ring::handoff::{Inbox, InboxSize, Outlet, inbox};
use weir_ring::spsc::RETURN_SHARE;
use weir_run::clock::now_ns;
use weir_run::idle::{Idle, Rest};

use super::design::{Counts, Design, LINK_PACKETS, Packet, Transmit, Work};

/// The design of `weir-ring`.
pub struct Weir;

/// The worker.
pub struct Worker {
    inbox: Inbox<Packet>,
    /// The packets in each link after the first.
    lists: Vec<Vec<Packet>>,
    batch: Vec<Packet>,
    idle: Idle,
}

impl Design for Weir {
    type Transmit = Outlet<Packet>;
    type Work = Worker;

    fn chain(links: usize, wake_cost_ns: u64) -> Result<(Outlet<Packet>, Worker)> {
        // The most for which a ring of that many slots is made.
        let ring_elements = LINK_PACKETS - LINK_PACKETS / RETURN_SHARE + 1;
        let (inbox, mut outlets) = inbox(InboxSize { sources: 1, ring_elements })?;
        let lists = (1..links).map(|_| Vec::with_capacity(LINK_PACKETS)).collect();
        let batch = Vec::with_capacity(LINK_PACKETS);
        let idle = Idle::new(wake_cost_ns, now_ns());
        Ok((outlets.remove(0), Worker { inbox, lists, batch, idle }))
    }
}

impl Transmit for Outlet<Packet> {
    fn transmit(&mut self, burst: &mut Vec<Packet>) -> bool {
        let staged = burst.iter().take_while(|packet| self.stage(**packet).is_ok()).count();
        burst.drain(..staged);
        // The worker outlives its outlet: see `drive`.
        self.flush().expect("the worker is there");
        burst.is_empty()
    }
}

impl Work for Worker {
    fn pass(&mut self, left: &mut impl FnMut(usize, Packet)) -> usize {
        let mut first = self.lists.first_mut();
        let mut moved = self.inbox.drain(|_, packet| {
            left(0, packet);
            if let Some(list) = &mut first {
                list.push(packet);
            }
        });
        for link in 1..=self.lists.len() {
            std::mem::swap(&mut self.lists[link - 1], &mut self.batch);
            moved += self.batch.len();
            let next = self.lists.get_mut(link);
            self.batch.iter().for_each(|packet| left(link, *packet));
            match next {
                Some(list) => list.append(&mut self.batch),
                None => self.batch.clear(),
            }
        }
        if moved > 0 {
            self.idle.worked(now_ns());
        }
        moved
    }

    fn rest(&mut self, limit: Duration) {
        match self.idle.rest(now_ns(), None, true) {
            Rest::Spin => std::hint::spin_loop(),
            Rest::Park(_) => {
                if let Some(parked) = self.inbox.park(|| false) {
                    let limit = Timespec::try_from(limit).expect("a fraction of a second");
                    // A wait that a signal ends is a look too many, no more.
                    let _ = poll(&mut [PollFd::new(&parked, PollFlags::IN)], Some(&limit));
                }
            }
        }
    }

    fn counts(&self) -> Counts {
        let counts = self.inbox.counts();
        Counts { dropped: 0, kicks: Some(counts.kicks_sent), kicks_redundant: Some(counts.kicks_redundant) }
    }
}
