//! `tokio`: its bounded channel, received on a current-thread runtime.
//!
//! The worker takes bursts with `recv_many`'s companion `try_recv` while there are packets, and blocks on `recv_many` when
//! there are none: the runtime then parks its thread. A worker with a chain takes no more than the next link has room for.
//!
//! Limits: the runtime does not count its wake-ups. A rest ends with a packet or with the transmitter, at no time limit: a
//! timer would need the runtime's time driver, which slows each wake-up.

use std::time::Duration;

use anyhow::Result;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc::{Receiver, Sender, channel};

use super::design::{BURST, Counts, Design, LINK_PACKETS, Packet, Transmit, Work};

/// The design of `tokio`'s channel.
pub struct Tokio;

/// The worker: of each link its receiver and, for the links that it feeds itself, the sender of the next.
pub struct Worker {
    runtime: Runtime,
    links: Vec<(Receiver<Packet>, Option<Sender<Packet>>)>,
    /// The packets that ended the last rest.
    first: Vec<Packet>,
}

impl Design for Tokio {
    type Transmit = Sender<Packet>;
    type Work = Worker;

    fn chain(links: usize, _wake_cost_ns: u64) -> Result<(Sender<Packet>, Worker)> {
        let runtime = Builder::new_current_thread().build()?;
        let (first, mut receiver) = channel(LINK_PACKETS);
        let mut chain = Vec::new();
        for _ in 1..links {
            let (next, next_receiver) = channel(LINK_PACKETS);
            chain.push((std::mem::replace(&mut receiver, next_receiver), Some(next)));
        }
        chain.push((receiver, None));
        Ok((first, Worker { runtime, links: chain, first: Vec::with_capacity(BURST) }))
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
        for (link, (receiver, next)) in self.links.iter_mut().enumerate() {
            let room = next.as_ref().map_or(BURST, |next| BURST.min(next.capacity()));
            let more = std::iter::from_fn(|| receiver.try_recv().ok());
            // After a rest the next link is empty, so all of `first` has room.
            for packet in self.first.drain(..).chain(more).take(room) {
                left(link, packet);
                moved += 1;
                if let Some(next) = next {
                    next.try_send(packet).expect("there is room, and nobody else sends");
                }
            }
        }
        moved
    }

    fn rest(&mut self, _limit: Duration) {
        let received = self.links[0].0.recv_many(&mut self.first, BURST);
        self.runtime.block_on(received);
    }

    fn counts(&self) -> Counts {
        Counts::default()
    }
}
