//! The ways from one worker of a sink to the others, and the credit on them.
//!
//! ```text
//! on the way to w     = handed to w by this worker - taken by w from this worker
//! full at w, from here = what w says holds its feeders, and every protocol whose queue limit is no more than what is on the way
//! ```
//!
//! A queue is full at its limit, wherever its packets come from. What is on the way when that is seen comes on top, at most the
//! limit again from each worker that hands to it, and so does what had entered before: a packet inside is not refused. A copy may
//! be old: "full" then delays, "not full" lets so many past, and neither loses a packet. The wake-up of a worker that
//! waits for credit is [`Shared`](super::shared::Shared)'s.
//!
//! Owner: each worker its [`Ways`]; [`Words`] are shared, and each worker writes its own line.
//! Ordering: none needed; packets are ordered by their rings, and credit may be old.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use weir_core::dispatch::protocol::{Mode, ProtoId, ProtoSet, Registry, WhenFull};
use weir_path::packet::PathPacket;
use weir_port::napi::Poller;
use weir_ring::handoff::Outlet;

/// What a worker hands to another.
pub enum Message {
    /// A packet for a protocol's queue.
    Packet(ProtoId, PathPacket),
    /// There is something to see in what workers share: credit, or the end.
    Look,
    /// These queues, by number, are polled by these from now on: the interface came up again.
    Pollers(Vec<(usize, Poller)>),
}

/// What every worker tells all others.
pub struct Words {
    workers: Box<[Line]>,
}

/// One worker's, on lines of its own.
#[repr(align(128))]
struct Line {
    /// The protocols that hold their feeders.
    full: AtomicU64,
    /// Packets of generators that it has seen, those it dropped included.
    numbered: AtomicU64,
    /// Packets that it has taken, by the worker that handed them.
    taken: Box<[AtomicU64]>,
}

impl Words {
    /// Nothing full, nothing taken.
    pub fn new(workers: usize) -> Words {
        let zeros = |_| AtomicU64::new(0);
        let line = |_| Line {
            full: AtomicU64::new(0),
            numbered: AtomicU64::new(0),
            taken: (0..workers).map(zeros).collect(),
        };
        Words { workers: (0..workers).map(line).collect() }
    }

    /// Packets of generators that all have seen together.
    pub fn numbered(&self) -> u64 {
        self.workers.iter().map(|line| line.numbered.load(Ordering::Relaxed)).sum()
    }
}

/// One worker's ways.
pub struct Ways {
    own: usize,
    outlets: Vec<Option<Outlet<Message>>>,
    handed: Box<[u64]>,
    taken: Box<[u64]>,
    /// What was last seen to be full at each worker.
    seen: Box<[ProtoSet]>,
    /// The protocols whose queues hold their feeders, with their limits.
    limits: Box<[(ProtoSet, u64)]>,
    /// Whether so much is on its way that each packet may be one too many.
    is_close: bool,
    words: Arc<Words>,
}

impl Ways {
    /// From worker `own`; the outlets are by destination.
    pub fn new(
        own: usize,
        outlets: Vec<Option<Outlet<Message>>>,
        registry: &Registry,
        words: Arc<Words>,
    ) -> Ways {
        let workers = outlets.len();
        let limit = |id: ProtoId| {
            let registered = registry.get(id);
            let holds = registered.mode != Mode::Direct && registered.protocol.when_full != WhenFull::Drop;
            holds.then_some((1 << id.index(), registered.qlimit as u64))
        };
        Ways {
            own,
            outlets,
            handed: vec![0; workers].into(),
            taken: vec![0; workers].into(),
            seen: vec![0; workers].into(),
            limits: registry.ids().filter_map(limit).collect(),
            is_close: false,
            words,
        }
    }

    /// Hands a packet over, with the next [`Ways::flush`].
    pub fn hand(&mut self, worker: usize, proto: ProtoId, packet: PathPacket) {
        self.handed[worker] += 1;
        let on_the_way = self.on_the_way(worker);
        self.is_close |= self.limits.iter().any(|(_, limit)| on_the_way >= *limit);
        let outlet = self.outlets[worker].as_mut().expect("a way to every other worker");
        // It has room for every frame, so it is refused only when that worker has died, and then all is over.
        let _ = outlet.stage(Message::Packet(proto, packet));
    }

    /// Notes a packet that `worker` handed over.
    pub fn took(&mut self, worker: usize) {
        self.taken[worker] += 1;
    }

    /// Tells the others what is full here, how many packets of generators were seen, and what was taken.
    pub fn tell(&self, full: ProtoSet, numbered: u64) {
        let line = &self.words.workers[self.own];
        // Written only when they change: others read these lines.
        let tell = |word: &AtomicU64, value| {
            if word.load(Ordering::Relaxed) != value {
                word.store(value, Ordering::Relaxed);
            }
        };
        tell(&line.full, full);
        tell(&line.numbered, numbered);
        line.taken.iter().zip(&self.taken).for_each(|(word, taken)| tell(word, *taken));
    }

    /// Looks at what is full elsewhere, and tells `changed` for each worker where that is no longer what it was.
    pub fn look(&mut self, mut changed: impl FnMut(usize, ProtoSet)) {
        self.is_close = false;
        for worker in (0..self.seen.len()).filter(|worker| *worker != self.own) {
            let full = self.full_at(worker);
            self.is_close |= full != 0;
            if full != self.seen[worker] {
                self.seen[worker] = full;
                changed(worker, full);
            }
        }
    }

    /// Whether to look again before the next packet.
    pub fn is_close(&self) -> bool {
        self.is_close
    }

    /// Whether a look would show something new.
    pub fn has_news(&self) -> bool {
        let mut others = (0..self.seen.len()).filter(|worker| *worker != self.own);
        others.any(|worker| self.full_at(worker) != self.seen[worker])
    }

    /// Publishes what was handed over, and makes these workers look.
    pub fn flush(&mut self, waiting: u64) {
        for (worker, outlet) in self.outlets.iter_mut().enumerate() {
            let Some(outlet) = outlet else { continue };
            if waiting >> worker & 1 == 1 {
                let _ = outlet.stage(Message::Look);
            }
            if outlet.staged() > 0 {
                // That the worker at the other end has died is found by whoever started it.
                let _ = outlet.flush();
            }
        }
    }

    fn on_the_way(&self, worker: usize) -> u64 {
        self.handed[worker] - self.words.workers[worker].taken[self.own].load(Ordering::Relaxed)
    }

    fn full_at(&self, worker: usize) -> ProtoSet {
        let on_the_way = self.on_the_way(worker);
        let short = self.limits.iter().filter(|(_, limit)| on_the_way >= *limit);
        short.fold(self.words.workers[worker].full.load(Ordering::Relaxed), |full, (proto, _)| full | proto)
    }
}
