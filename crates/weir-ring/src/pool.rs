//! Who holds which frame: one [`Pool`] for each worker, over one depot they share.
//! Taking and giving touch the worker's own two magazines; the depot is met once in 32 frames at most.
//!
//! Rule (conservation, design invariant 1): `total = shared + cached + out` always, where `shared` lies in the depot,
//! `cached` in the workers' magazines and `out = taken - given` is with everyone else: packets, rings, the kernel.
//! The last frame given is the first taken, so a worker's hot frames stay in its cache.
//!
//! Ordering and ownership: a `Pool` belongs to one worker; its counts have one writer and may be read by all. A frame
//! may be given to another worker's `Pool` than the one it was taken from.
//! Source: Bonwick and Adams, "Magazines and Vmem", USENIX 2001: two magazines in hand, so that a worker at the edge
//! between full and empty does not visit the depot for every frame.
//! Limits: up to 64 frames may sit with each worker while another finds none, so give every worker at least that
//! many frames to spare. A census is exact while no worker is inside a call; otherwise it may be off by what is
//! being moved.

use std::sync::Arc;

use crate::depot::{Depot, Magazine};
use crate::memory::{Frame, FrameMemory};
use crate::sync::{Counter, Line};

/// One worker's access to the frames of one memory.
pub struct Pool {
    shared: Arc<Shared>,
    worker: usize,
    /// The magazine in use.
    loaded: Magazine,
    /// The one used before it: full or empty.
    previous: Magazine,
    taken: u64,
    given: u64,
}

struct Shared {
    memory: Arc<FrameMemory>,
    depot: Depot,
    counts: Box<[Line<WorkerCounts>]>,
}

/// What one worker tells the others.
#[derive(Default)]
struct WorkerCounts {
    taken: Counter,
    given: Counter,
    cached: Counter,
}

/// Where the frames of a pool are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Census {
    /// All frames of the memory.
    pub total: u64,
    /// In the depot, for any worker to take.
    pub shared: u64,
    /// In the magazines of the workers.
    pub cached: u64,
    /// With everyone else: taken and not given back.
    pub out: u64,
}

impl Census {
    /// Whether every frame is in exactly one place.
    pub fn balances(&self) -> bool {
        self.total == self.shared + self.cached + self.out
    }
}

impl Pool {
    /// The pool of a single worker, holding every frame of `memory`.
    pub fn new(memory: FrameMemory) -> Pool {
        Pool::for_workers(memory, 1).pop().expect("one worker")
    }

    /// The pools of `workers` workers over the frames of `memory`.
    ///
    /// The memory is taken by value: its frames are dealt once, here.
    ///
    /// # Panics
    /// If `workers` is 0.
    pub fn for_workers(memory: FrameMemory, workers: usize) -> Vec<Pool> {
        assert!(workers > 0, "a pool needs a worker");
        let depot = Depot::new(memory.frames(), workers);
        let mut magazine = depot.take_empty();
        for index in (0..memory.frames()).rev() {
            if magazine.is_full() {
                depot.put(magazine);
                magazine = depot.take_empty();
            }
            depot.load(&mut magazine, memory.handle_at(index));
        }
        depot.put(magazine);
        let counts = (0..workers).map(|_| Line(WorkerCounts::default())).collect();
        let shared = Arc::new(Shared { memory: Arc::new(memory), depot, counts });
        (0..workers).map(|worker| Pool::with(Arc::clone(&shared), worker)).collect()
    }

    fn with(shared: Arc<Shared>, worker: usize) -> Pool {
        let (loaded, previous) = (shared.depot.take_empty(), shared.depot.take_empty());
        Pool { shared, worker, loaded, previous, taken: 0, given: 0 }
    }

    /// The memory whose frames these are.
    pub fn memory(&self) -> &Arc<FrameMemory> {
        &self.shared.memory
    }

    /// Takes a frame, or `None` when there is none for this worker: the intake must wait.
    pub fn take(&mut self) -> Option<Frame> {
        if self.loaded.len() == 0 && !self.reload() {
            return None;
        }
        let handle = self.shared.depot.unload(&mut self.loaded)?;
        self.taken += 1;
        self.publish();
        // SAFETY: `give` or `for_workers` put the handle into the magazine once, and unloading removed it.
        Some(unsafe { Frame::from_handle(handle) })
    }

    /// Gives a frame back.
    ///
    /// # Panics
    /// If the frame is another memory's.
    pub fn give(&mut self, frame: Frame) {
        self.shared.memory.index_of(&frame);
        if self.loaded.is_full() {
            self.make_room();
        }
        self.shared.depot.load(&mut self.loaded, frame.into_handle());
        self.given += 1;
        self.publish();
    }

    /// How many frames this worker could take now: its own and the depot's.
    ///
    /// Other workers take from the depot too, so only this worker's share of it is certain.
    pub fn available(&self) -> u32 {
        self.cached() as u32 + self.shared.depot.frames()
    }

    /// Where all frames of the memory are.
    pub fn census(&self) -> Census {
        let counts = &self.shared.counts;
        let sum = |figure: fn(&WorkerCounts) -> &Counter| {
            counts.iter().fold(0u64, |sum, count| sum.wrapping_add(figure(&count.0).get()))
        };
        Census {
            total: self.shared.memory.frames().into(),
            shared: self.shared.depot.frames().into(),
            cached: sum(|count| &count.cached),
            out: sum(|count| &count.taken).wrapping_sub(sum(|count| &count.given)),
        }
    }

    fn cached(&self) -> usize {
        self.loaded.len() + self.previous.len()
    }

    /// Finds a magazine with frames: the previous one, or the depot's for an empty one.
    fn reload(&mut self) -> bool {
        std::mem::swap(&mut self.loaded, &mut self.previous);
        if self.loaded.len() > 0 {
            return true;
        }
        let Some(full) = self.shared.depot.take_full() else { return false };
        self.shared.depot.put(std::mem::replace(&mut self.loaded, full));
        true
    }

    /// Finds a magazine with room: the previous one, or an empty one from the depot for a full one.
    fn make_room(&mut self) {
        std::mem::swap(&mut self.loaded, &mut self.previous);
        if self.loaded.is_full() {
            // Down first, then up: with one magazine in hand the depot is sure to have an empty one.
            let full = std::mem::replace(&mut self.loaded, Magazine::NOWHERE);
            self.shared.depot.put(full);
            self.loaded = self.shared.depot.take_empty();
        }
    }

    fn publish(&self) {
        let counts = &self.shared.counts[self.worker].0;
        counts.taken.set(self.taken);
        counts.given.set(self.given);
        counts.cached.set(self.cached() as u64);
    }
}

impl Drop for Pool {
    /// A worker that ends leaves its frames to the others.
    fn drop(&mut self) {
        for magazine in [&mut self.loaded, &mut self.previous] {
            self.shared.depot.put(std::mem::replace(magazine, Magazine::NOWHERE));
        }
        self.shared.counts[self.worker].0.cached.set(0);
    }
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").field("worker", &self.worker).field("census", &self.census()).finish()
    }
}

#[cfg(all(test, not(loom)))]
#[path = "pool_tests.rs"]
mod tests;
