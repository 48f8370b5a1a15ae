//! Receive-side scaling in software: flow -> bucket -> worker, for bursts of up to 64 frames.
//!
//! The rule:
//!
//! ```text
//! bucket = hash & (2^bits - 1)          bits: rss.bits
//! worker = table[bucket]                table: the indirection table
//! ```
//!
//! A frame without a flow (ARP, malformed IP) hashes to 0, as a device reports it, and so has one worker too. A burst goes through two
//! passes: the first writes tuples where the hash wants them, the second hashes them. Each pass is over before the next begins, as a pass
//! that waits for words just written costs more than it gains: hashing eight tuples while the next are parsed took 3 cycles a packet
//! longer.
//!
//! Ownership: [`Rss`] is immutable while packets flow and shared by all workers; a [`Burst`] is one worker's
//! scratch.
//!
//! Source: Microsoft, "Receive Side Scaling"; FreeBSD `sys/net/rss_config.c` (`rss_hash2bucket`, two buckets
//! for each CPU and more, so that load can be moved between CPUs).
//!
//! Limits: moving a bucket to another worker while its packets are inside can reorder its flows; the caller that moves it drains the old
//! worker first.

use std::fmt;

use weir_simd::prefetch::prefetch;
use weir_simd::toeplitz::{BATCH_TUPLES, Batch, Flow, V4_WORDS, V6_WORDS};

use super::key::{BUCKET_BITS_MAX, Key};
use super::parse::{self, HashKind, Tuple, tuple};
use super::toeplitz::Toeplitz;

/// The most frames in a burst.
pub const BURST_MAX: usize = BATCH_TUPLES;

/// The most receive queues that buckets are dealt to.
pub const QUEUES_MAX: usize = 1 << u8::BITS;

/// The most workers.
pub const WORKERS_MAX: usize = 64;

const BUCKETS_MAX: usize = 1 << BUCKET_BITS_MAX;

/// The number of frames by which the request for a header is ahead. The cost of a packet, times this, is longer than the third-level cache
/// takes. More would push unread headers out of the first cache, as frames at their distance share few of its sets.
const AHEAD: usize = 6;

/// The key, the hash kind and the indirection table of a set of workers.
#[derive(Clone)]
pub struct Rss {
    toeplitz: Toeplitz,
    kind: HashKind,
    /// The worker of each bucket, repeated to the end of the table, so that a lookup needs neither a bound check nor the number of buckets.
    table: [u8; BUCKETS_MAX],
    bits: u32,
    workers: usize,
}

impl Rss {
    /// The least `rss.bits` with two buckets for each of `workers`, so that half a worker's load can be moved.
    pub fn default_bits(workers: usize) -> u32 {
        (2 * workers).next_power_of_two().ilog2().min(BUCKET_BITS_MAX)
    }

    /// A table of `2^bits` buckets dealt out to `workers` in turn.
    pub fn new(key: &Key, kind: HashKind, bits: u32, workers: usize) -> Result<Rss, RssError> {
        if bits > BUCKET_BITS_MAX {
            return Err(RssError::Bits(bits));
        }
        if workers == 0 || workers > WORKERS_MAX {
            return Err(RssError::Workers(workers));
        }
        let table = std::array::from_fn(|place| ((place & ((1 << bits) - 1)) % workers) as u8);
        Ok(Rss { toeplitz: Toeplitz::new(key), kind, table, bits, workers })
    }

    /// Gives `bucket` to `worker`.
    pub fn assign(&mut self, bucket: usize, worker: usize) -> Result<(), RssError> {
        if bucket >= self.buckets() {
            return Err(RssError::NoBucket { bucket, buckets: self.buckets() });
        }
        if worker >= self.workers {
            return Err(RssError::NoWorker { bucket, worker, workers: self.workers });
        }
        self.table[bucket..].iter_mut().step_by(1 << self.bits).for_each(|place| *place = worker as u8);
        Ok(())
    }

    /// The number of buckets.
    pub fn buckets(&self) -> usize {
        1 << self.bits
    }

    /// The number of workers that buckets may be given to.
    pub fn workers(&self) -> usize {
        self.workers
    }

    /// The receive queue of the flows of each bucket, of `queues` queues, where queue `q` is worker `q mod workers`'s: a queue of the
    /// bucket's own worker, its queues in turn. With fewer queues than workers they are dealt out in turn.
    ///
    /// # Panics
    /// If there is no queue, or there are more than [`QUEUES_MAX`].
    pub fn queues(&self, queues: usize) -> Vec<u8> {
        assert!((1..=QUEUES_MAX).contains(&queues), "a queue's number is a byte");
        let of_worker = |worker: usize| queues.saturating_sub(worker).div_ceil(self.workers);
        let mut dealt = vec![0; self.workers];
        let buckets = self.table[..self.buckets()].iter().map(|&worker| usize::from(worker));
        let queue = buckets.map(|worker| {
            let turn = dealt[worker];
            dealt[worker] += 1;
            match of_worker(worker) {
                0 => worker % queues,
                own => worker + self.workers * (turn % own),
            }
        });
        queue.map(|queue| queue as u8).collect()
    }

    /// The share (XOR) of a byte of a flow's tuple in its hash: of the addresses, source first, and the ports behind them.
    ///
    /// # Panics
    /// If no tuple has so many bytes.
    pub fn share_of(&self, at: usize, byte: u8) -> u32 {
        let mut flow = Flow { addresses: [[0; 8]; V6_WORDS], ports: [0; 4] };
        let (word, ports_at) = (at / 8, 8 * V6_WORDS);
        match flow.addresses.get_mut(word) {
            Some(word) => word[at % 8] = byte,
            None => flow.ports[at - ports_at] = byte,
        }
        self.toeplitz.hash(&flow)
    }

    /// The name of the code that hashes, for statistics.
    pub fn kernel_name(&self) -> &'static str {
        self.toeplitz.kernel_name()
    }

    /// The bucket of a flow hash, whether computed here or by a device.
    pub fn bucket(&self, flow_hash: u32) -> usize {
        flow_hash as usize & (self.buckets() - 1)
    }

    /// The worker of a flow hash.
    pub fn worker(&self, flow_hash: u32) -> usize {
        usize::from(self.table[flow_hash as usize % BUCKETS_MAX])
    }

    /// The flow hash of one frame; 0 for a frame without a flow.
    pub fn hash(&self, frame: &[u8]) -> u32 {
        self.hash_of(&tuple(frame, self.kind))
    }

    /// The flow hash of a frame with this tuple.
    #[inline]
    pub fn hash_of(&self, tuple: &Tuple) -> u32 {
        match tuple {
            Tuple::None => 0,
            Tuple::V4(flow) => self.toeplitz.hash(flow),
            Tuple::V6(flow) => self.toeplitz.hash(flow),
        }
    }

    /// Hashes `frames` into `burst`.
    ///
    /// # Panics
    /// If there are more than [`BURST_MAX`] frames.
    pub fn hash_burst(&self, frames: &[&[u8]], burst: &mut Burst) {
        assert!(frames.len() <= BURST_MAX, "a burst has at most {BURST_MAX} frames");
        burst.len = frames.len();
        let v6 = self.parse(frames, burst);
        if v6.len == frames.len() {
            // In the usual case of IPv6 each frame is in the slot of its number.
            self.toeplitz.hash_batch(&burst.v6, v6.len, &mut burst.hashes);
        } else {
            self.toeplitz.hash_batch(&burst.v4, frames.len(), &mut burst.hashes);
            if v6.len > 0 {
                self.hash_v6(&v6, burst);
            }
        }
    }

    /// Writes the tuples of `frames` where they will be hashed. Not inlined, so that its loop has all registers.
    #[inline(never)]
    fn parse(&self, frames: &[&[u8]], burst: &mut Burst) -> V6Slots {
        // All are requested at once, or each would be waited for.
        for frame in frames.iter().take(AHEAD) {
            prefetch(*frame);
        }
        let mut v6 = V6Slots::default();
        for (i, frame) in frames.iter().enumerate() {
            if let Some(ahead) = frames.get(i + AHEAD) {
                prefetch(*ahead);
            }
            // These are two calls, so that a common frame's tuple goes from registers into its slot.
            match parse::common(frame, self.kind) {
                Some(tuple) => burst.put(i, &tuple, &mut v6),
                None => burst.put(i, &parse::other(frame, self.kind), &mut v6),
            }
        }
        v6
    }

    fn hash_v6(&self, v6: &V6Slots, burst: &mut Burst) {
        let mut hashes = [0; BURST_MAX];
        self.toeplitz.hash_batch(&burst.v6, v6.len, &mut hashes);
        for (hash, i) in hashes.iter().zip(Bits(v6.frames)) {
            burst.hashes[i] = *hash;
        }
    }
}

/// The frames of a burst that are IPv6: the `n`-th of them is in slot `n`.
#[derive(Default)]
struct V6Slots {
    frames: u64,
    len: usize,
}

/// A burst's hashes, in memory taken once.
pub struct Burst {
    len: usize,
    v4: Batch<V4_WORDS>,
    v6: Batch<V6_WORDS>,
    hashes: [u32; BURST_MAX],
}

impl Default for Burst {
    fn default() -> Burst {
        Burst { len: 0, v4: Batch::ZEROS, v6: Batch::ZEROS, hashes: [0; BURST_MAX] }
    }
}

impl Burst {
    /// The flow hashes of the frames, in their order.
    pub fn hashes(&self) -> &[u32] {
        &self.hashes[..self.len]
    }

    /// Writes the tuple of frame `i` to the place where it will be hashed.
    #[inline(always)]
    fn put(&mut self, i: usize, tuple: &Tuple, v6: &mut V6Slots) {
        match tuple {
            Tuple::V4(flow) => self.v4.set(i % BURST_MAX, flow),
            // Zeros hash to 0, the hash of a frame without a flow.
            Tuple::None => self.v4.set(i % BURST_MAX, &Flow { addresses: [[0; 8]], ports: [0; 4] }),
            // The frame's IPv4 slot keeps its old tuple: the hash of that is overwritten.
            Tuple::V6(flow) => {
                self.v6.set(v6.len % BURST_MAX, flow);
                v6.frames |= 1 << i;
                v6.len += 1;
            }
        }
    }
}

/// A set of indices below 64, taken from the lowest up.
struct Bits(u64);

impl Iterator for Bits {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        let lowest = (self.0 != 0).then(|| self.0.trailing_zeros() as usize)?;
        self.0 &= self.0 - 1;
        Some(lowest)
    }
}

/// The reason why a steering setting was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RssError {
    /// There are more bits than an indirection table has.
    Bits(u32),
    /// There is no worker, or more than there can be.
    Workers(usize),
    /// The table has no such bucket.
    NoBucket {
        /// The bucket asked for.
        bucket: usize,
        /// The number of buckets.
        buckets: usize,
    },
    /// A bucket was given to a worker that does not exist.
    NoWorker {
        /// The bucket.
        bucket: usize,
        /// The worker asked for.
        worker: usize,
        /// The number of workers.
        workers: usize,
    },
}

impl fmt::Display for RssError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            RssError::Bits(bits) => {
                write!(
                    f,
                    "{bits} bits; an indirection table has at most {BUCKET_BITS_MAX} ({BUCKETS_MAX} buckets)"
                )
            }
            RssError::Workers(workers) => {
                write!(f, "{workers} workers; from 1 to {WORKERS_MAX} can be steered to")
            }
            RssError::NoBucket { bucket, buckets } => {
                write!(f, "there is no bucket {bucket}; rss.bits makes buckets 0 to {}", buckets - 1)
            }
            RssError::NoWorker { bucket, worker, workers } => write!(
                f,
                "bucket {bucket} is given to worker {worker}, which does not exist; there are workers 0 to {}",
                workers - 1
            ),
        }
    }
}

impl std::error::Error for RssError {}

#[cfg(test)]
#[path = "rss_tests.rs"]
mod tests;
