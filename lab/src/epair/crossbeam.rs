//! `crossbeam-channel`: a bounded channel; the worker takes a burst at a time, and blocks in `recv` when it finds nothing.
//!
//! The channel's own back-off spins before it sleeps. A burst goes in one packet at a time, as there is no other way. A worker
//! with a chain takes no more than the next link has room for.
//!
//! Limits: the channel does not count its wake-ups.

use std::time::Duration;

use anyhow::Result;
use crossbeam_channel::{Receiver, Sender, bounded};

use super::design::{BURST, Counts, Design, LINK_PACKETS, Packet, Transmit, Work};

/// See the head of the file.
pub struct Crossbeam;

/// The worker: of each link its receiver and, for the links that it feeds itself, the sender of the next.
pub struct Worker {
    links: Vec<(Receiver<Packet>, Option<Sender<Packet>>)>,
    /// The packet that ended the last rest.
    first: Option<Packet>,
}

impl Design for Crossbeam {
    type Transmit = Sender<Packet>;
    type Work = Worker;

    fn chain(links: usize, _wake_cost_ns: u64) -> Result<(Sender<Packet>, Worker)> {
        let (first, mut receiver) = bounded(LINK_PACKETS);
        let mut chain = Vec::new();
        for _ in 1..links {
            let (next, next_receiver) = bounded(LINK_PACKETS);
            chain.push((std::mem::replace(&mut receiver, next_receiver), Some(next)));
        }
        chain.push((receiver, None));
        Ok((first, Worker { links: chain, first: None }))
    }
}

impl Transmit for Sender<Packet> {
    fn transmit(&mut self, burst: &mut Vec<Packet>) -> bool {
        let sent = burst.iter().take_while(|packet| self.try_send(**packet).is_ok()).count();
        burst.drain(..sent);
        burst.is_empty()
    }
}

impl Work for Worker {
    fn pass(&mut self, left: &mut impl FnMut(usize, Packet)) -> usize {
        let mut moved = 0;
        for (link, (receiver, next)) in self.links.iter().enumerate() {
            let room = next.as_ref().map_or(BURST, |next| BURST.min(LINK_PACKETS - next.len()));
            for packet in self.first.take().into_iter().chain(receiver.try_iter()).take(room) {
                left(link, packet);
                moved += 1;
                if let Some(next) = next {
                    next.try_send(packet).expect("there is room, and nobody else sends");
                }
            }
        }
        moved
    }

    fn rest(&mut self, limit: Duration) {
        // The other links are empty, and nobody else fills them. Nothing when time is up or the sender has gone.
        self.first = self.links[0].0.recv_timeout(limit).ok();
    }

    fn counts(&self) -> Counts {
        Counts::default()
    }
}
