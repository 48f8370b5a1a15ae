//! The holders of frames: one [`Pool`] for each worker, over one depot they share.
//! Taking and giving touch the worker's own cache of handles; the depot is met once in 64 frames at most.
//!
//! Rule (conservation, invariant 1): `total = shared + cached + out` always, where `shared` frames lie in the depot, `cached = drawn +
//! given - taken` in the workers' caches, and `out = taken - given` elsewhere: in packets, in rings, with the kernel. The last frame given
//! is the first taken, so a worker's hot frames stay in its cache.
//!
//! Ordering and ownership: a `Pool` belongs to one worker; its counts have one writer and may be read by all. A frame
//! may be given to another worker's `Pool` than the one it was taken from.
//! Source: Bonwick and Adams, "Magazines and Vmem", USENIX 2001: room for several magazines in the cache, so that a worker at
//! the edge between full and empty does not visit the depot for every frame. A pass of a host takes two bursts of frames, for packets that
//! come in and for sockets that sent, and gives two back: with four magazines it need not visit the depot for that. Handles are copied between
//! cache and magazine: 256 bytes in 64 frames, where a magazine that changes hands would cost a look-up with every frame.
//! Limits: up to [`CACHE_FRAMES`] frames may sit with each worker while another finds none, so give every worker at least that many frames
//! to spare. A census is exact while no worker is inside a call; otherwise it may be off by the frames that are being moved.

use std::sync::Arc;

use crate::depot::{Depot, MAGAZINE_FRAMES};
use crate::memory::{Frame, FrameMemory};
use crate::sync::{Counter, Line};

/// One worker's access to the frames of one memory.
pub struct Pool {
    shared: Arc<Shared>,
    worker: usize,
    /// The handles of the frames that are this worker's to take, the hottest last.
    cache: Box<[u32; CACHE_FRAMES]>,
    cached: usize,
    taken: u64,
    given: u64,
}

/// The most frames in a worker's cache.
pub const CACHE_FRAMES: usize = 4 * MAGAZINE_FRAMES;

struct Shared {
    memory: Arc<FrameMemory>,
    depot: Depot,
    counts: Box<[Line<WorkerCounts>]>,
}

/// The counters of one worker that the others read.
#[derive(Default)]
struct WorkerCounts {
    taken: Counter,
    given: Counter,
    /// The frames drawn from the depot, less those put there.
    drawn: Counter,
}

/// The places of the frames of a pool.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Census {
    /// All frames of the memory.
    pub total: u64,
    /// Frames in the depot, for any worker to take.
    pub shared: u64,
    /// Frames in the caches of the workers.
    pub cached: u64,
    /// Frames elsewhere: taken and not given back.
    pub out: u64,
}

impl Census {
    /// Returns whether every frame is in exactly one place.
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
        // The last magazine put down is the first taken, and the last handle in it: so frames come in order.
        let handles: Vec<u32> = (0..memory.frames()).rev().map(|index| memory.handle_at(index)).collect();
        handles.chunks(MAGAZINE_FRAMES).for_each(|handles| depot.put(handles));
        let counts = (0..workers).map(|_| Line(WorkerCounts::default())).collect();
        let shared = Arc::new(Shared { memory: Arc::new(memory), depot, counts });
        (0..workers).map(|worker| Pool::with(Arc::clone(&shared), worker)).collect()
    }

    fn with(shared: Arc<Shared>, worker: usize) -> Pool {
        Pool { shared, worker, cache: Box::new([0; CACHE_FRAMES]), cached: 0, taken: 0, given: 0 }
    }

    /// The memory whose frames these are.
    pub fn memory(&self) -> &Arc<FrameMemory> {
        &self.shared.memory
    }

    /// Takes a frame, or `None` when there is none for this worker: the intake must wait.
    #[inline]
    pub fn take(&mut self) -> Option<Frame> {
        self.take_run(1).next()
    }

    /// Takes up to `count` frames: fewer where the worker's cache ends, none only if there are none for this worker. All are taken at once:
    /// frames that the caller leaves in the iterator are lost.
    #[inline]
    pub fn take_run(&mut self, count: usize) -> impl ExactSizeIterator<Item = Frame> + use<'_> {
        if self.cached == 0 {
            self.draw();
        }
        let end = self.cached;
        self.cached -= count.min(end);
        let run = &self.cache[self.cached..end];
        self.taken += run.len() as u64;
        self.shared.counts[self.worker].0.taken.set(self.taken);
        // SAFETY: `give_all` or `for_workers` put each handle here once; `cached` covers it no longer, and the iterator yields
        // it once.
        run.iter().rev().map(|&handle| unsafe { Frame::from_handle(handle) })
    }

    /// Gives a frame back.
    ///
    /// # Panics
    /// If the frame is another memory's.
    #[inline]
    pub fn give(&mut self, frame: Frame) {
        self.give_all([frame]);
    }

    /// Gives frames back.
    ///
    /// # Panics
    /// If one of them is another memory's; then all of them are lost, as they are if `frames` panics.
    #[inline]
    pub fn give_all(&mut self, frames: impl IntoIterator<Item = Frame>) {
        let (start, mut cached) = (self.cached, self.cached);
        let mut put_down = 0;
        for frame in frames {
            self.shared.memory.index_of(&frame);
            if cached >= CACHE_FRAMES {
                self.put_down();
                put_down += MAGAZINE_FRAMES;
                cached = CACHE_FRAMES - MAGAZINE_FRAMES;
            }
            self.cache[cached] = frame.into_handle();
            cached += 1;
        }
        self.given += (cached + put_down - start) as u64;
        self.cached = cached;
        self.counts().given.set(self.given);
    }

    /// The number of frames that this worker could take now: its own and the depot's.
    ///
    /// Other workers take from the depot too, so only this worker's share of it is certain.
    pub fn available(&self) -> u32 {
        self.cached as u32 + self.shared.depot.frames()
    }

    /// The places of all frames of the memory.
    pub fn census(&self) -> Census {
        let sum = |figure: fn(&WorkerCounts) -> &Counter| {
            self.shared.counts.iter().fold(0u64, |sum, count| sum.wrapping_add(figure(&count.0).get()))
        };
        let out = sum(|count| &count.taken).wrapping_sub(sum(|count| &count.given));
        Census {
            total: self.shared.memory.frames().into(),
            shared: self.shared.depot.frames().into(),
            cached: sum(|count| &count.drawn).wrapping_sub(out),
            out,
        }
    }

    fn counts(&self) -> &WorkerCounts {
        &self.shared.counts[self.worker].0
    }

    /// Draws a magazine's frames from the depot, if it has one, into the empty cache.
    #[cold]
    fn draw(&mut self) {
        let room = self.cache.first_chunk_mut().expect("room for a magazine");
        self.cached = self.shared.depot.take(room);
        self.counts().drawn.add(self.cached as u64);
    }

    /// Puts a magazine's frames, the coldest of the full cache, into the depot.
    #[cold]
    fn put_down(&mut self) {
        self.shared.depot.put(&self.cache[..MAGAZINE_FRAMES]);
        self.counts().drawn.add((MAGAZINE_FRAMES as u64).wrapping_neg());
        self.cache.copy_within(MAGAZINE_FRAMES.., 0);
        // The frames put down are here no longer, even if the iterator that gives them panics next.
        self.cached = CACHE_FRAMES - MAGAZINE_FRAMES;
    }
}

impl Drop for Pool {
    /// Leaves the frames of a worker that ends to the others.
    fn drop(&mut self) {
        self.cache[..self.cached].chunks(MAGAZINE_FRAMES).for_each(|handles| self.shared.depot.put(handles));
        self.counts().drawn.add((self.cached as u64).wrapping_neg());
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
