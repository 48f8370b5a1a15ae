//! `rtrb` with its chunk interface; the worker parks its thread when it finds nothing, and is unparked after each burst.
//!
//! The ring offers no waiting, so this is the plain way to add it: a token that is set after publishing ends the park that
//! follows, and no wake-up is lost. The price is an unpark for each burst, needed or not.
//!
//! Ownership: `thread` is set by the worker before the start of a run; `kicks` is the transmitter's to count.
//! Source: the documentation of `std::thread::park`.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::thread::{self, Thread};
use std::time::Duration;

use anyhow::Result;
use rtrb::chunks::ChunkError;
use rtrb::{Consumer, Producer, RingBuffer};

use super::design::{BURST, Counts, Design, LINK_PACKETS, Packet, Transmit, Work};

/// The design of `rtrb` with a parked thread.
pub struct Rtrb;

#[derive(Default)]
struct Sleeper {
    thread: OnceLock<Thread>,
    kicks: AtomicU64,
}

/// The transmitter.
pub struct Transmitter {
    ring: Producer<Packet>,
    sleeper: Arc<Sleeper>,
}

/// The worker: of each link its consumer and, for the links that it feeds itself, the producer of the next.
pub struct Worker {
    links: Vec<(Consumer<Packet>, Option<Producer<Packet>>)>,
    sleeper: Arc<Sleeper>,
    parked: bool,
    /// Parks after which there was work.
    useful_parks: u64,
}

impl Design for Rtrb {
    type Transmit = Transmitter;
    type Work = Worker;

    fn chain(links: usize, _wake_cost_ns: u64) -> Result<(Transmitter, Worker)> {
        let sleeper = Arc::new(Sleeper::default());
        let (ring, mut consumer) = RingBuffer::new(LINK_PACKETS);
        let mut chain = Vec::new();
        for _ in 1..links {
            let (next, next_consumer) = RingBuffer::new(LINK_PACKETS);
            chain.push((std::mem::replace(&mut consumer, next_consumer), Some(next)));
        }
        chain.push((consumer, None));
        let transmitter = Transmitter { ring, sleeper: Arc::clone(&sleeper) };
        Ok((transmitter, Worker { links: chain, sleeper, parked: false, useful_parks: 0 }))
    }
}

/// Moves the packets that fit. Returns how many went.
fn push(ring: &mut Producer<Packet>, packets: &[Packet]) -> usize {
    // Asking for more than its view shows makes the ring look at the other side's index.
    let count = match ring.write_chunk_uninit(packets.len()) {
        Ok(_) => packets.len(),
        Err(ChunkError::TooFewSlots(slots)) => slots,
    };
    let chunk = ring.write_chunk_uninit(count).expect("these are free");
    chunk.fill_from_iter(packets.iter().copied())
}

impl Transmit for Transmitter {
    fn transmit(&mut self, burst: &mut Vec<Packet>) -> bool {
        let sent = push(&mut self.ring, burst);
        burst.drain(..sent);
        if sent > 0 {
            self.sleeper.kicks.fetch_add(1, Relaxed);
            self.sleeper.thread.get().expect("the worker has begun").unpark();
        }
        burst.is_empty()
    }
}

impl Work for Worker {
    fn begin(&mut self) {
        self.sleeper.thread.set(thread::current()).expect("a worker begins once");
    }

    fn pass(&mut self, left: &mut impl FnMut(usize, Packet)) -> usize {
        let mut moved = 0;
        for (link, (ring, next)) in self.links.iter_mut().enumerate() {
            let room = next.as_ref().map_or(BURST, |next| BURST.min(next.slots()));
            let count = match ring.read_chunk(room) {
                Ok(_) => room,
                Err(ChunkError::TooFewSlots(slots)) => slots,
            };
            for packet in ring.read_chunk(count).expect("these are there") {
                left(link, packet);
                moved += 1;
                if let Some(next) = next {
                    next.push(packet).expect("there is room");
                }
            }
        }
        self.useful_parks += u64::from(std::mem::take(&mut self.parked) && moved > 0);
        moved
    }

    fn rest(&mut self, limit: Duration) {
        thread::park_timeout(limit);
        self.parked = true;
    }

    fn counts(&self) -> Counts {
        let kicks = self.sleeper.kicks.load(Relaxed);
        let redundant = kicks.saturating_sub(self.useful_parks);
        Counts { dropped: 0, kicks: Some(kicks), kicks_redundant: Some(redundant) }
    }
}
