//! Receive-side scaling in software: flow -> bucket -> worker, for bursts of up to 64 frames.
//!
//! The rule:
//!
//! ```text
//! bucket = hash & (2^bits - 1)          bits: rss.bits
//! worker = table[bucket]                table: the indirection table
//! ```
//!
//! A frame without a flow (ARP, malformed IP) hashes to 0, as a device reports it, and so has one worker too.
//! A burst is partitioned into one 64-bit set of frame indices for each worker; taking a set's bits from the
//! lowest up gives the frames in the order of their arrival, so order within a flow needs no further care and
//! no sorting.
//!
//! Ownership: [`Rss`] is immutable while packets flow and shared by all workers; a [`Burst`] is one worker's
//! scratch.
//!
//! Source: Microsoft, "Receive Side Scaling"; FreeBSD `sys/net/rss_config.c` (`rss_hash2bucket`, two buckets
//! for each CPU and more, so that load can be moved between CPUs).
//!
//! Limits: moving a bucket to another worker while its packets are inside can reorder its flows; whoever
//! moves it drains the old worker first.

use std::fmt;

use weir_simd::toeplitz::{GROUP_TUPLES, Group};

use super::key::{BUCKET_BITS_MAX, Key};
use super::parse::{HashKind, Tuple, tuple};
use super::toeplitz::Toeplitz;

/// Frames in a burst at most: the bits of a set.
pub const BURST_MAX: usize = 64;

/// Workers at most: sets in a burst.
pub const WORKERS_MAX: usize = 64;

const BUCKETS_MAX: usize = 1 << BUCKET_BITS_MAX;
const GROUPS: usize = BURST_MAX / GROUP_TUPLES;

/// Key, hash kind and indirection table.
#[derive(Clone)]
pub struct Rss {
    toeplitz: Toeplitz,
    kind: HashKind,
    table: [u8; BUCKETS_MAX],
    bits: u32,
    workers: usize,
}

impl Rss {
    /// The least `rss.bits` with two buckets for each of `workers`, so that half a worker's load can be moved.
    pub fn default_bits(workers: usize) -> u32 {
        (2 * workers).next_power_of_two().ilog2().min(BUCKET_BITS_MAX)
    }

    /// `2^bits` buckets dealt out to `workers` in turn.
    pub fn new(key: &Key, kind: HashKind, bits: u32, workers: usize) -> Result<Rss, RssError> {
        if bits > BUCKET_BITS_MAX {
            return Err(RssError::Bits(bits));
        }
        if workers == 0 || workers > WORKERS_MAX {
            return Err(RssError::Workers(workers));
        }
        let table = std::array::from_fn(|bucket| (bucket % workers) as u8);
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
        self.table[bucket] = worker as u8;
        Ok(())
    }

    /// How many buckets there are.
    pub fn buckets(&self) -> usize {
        1 << self.bits
    }

    /// How many workers buckets may be given to.
    pub fn workers(&self) -> usize {
        self.workers
    }

    /// What hashing runs on.
    pub fn kernel_name(&self) -> &'static str {
        self.toeplitz.kernel_name()
    }

    /// The bucket of a flow hash, whether computed here or by a device.
    pub fn bucket(&self, flow_hash: u32) -> usize {
        flow_hash as usize & (self.buckets() - 1)
    }

    /// The worker of a flow hash.
    pub fn worker(&self, flow_hash: u32) -> usize {
        usize::from(self.table[self.bucket(flow_hash)])
    }

    /// The flow hash of one frame; 0 for a frame without a flow.
    pub fn hash(&self, frame: &[u8]) -> u32 {
        match tuple(frame, self.kind) {
            Tuple::None => 0,
            Tuple::V4(words) => self.toeplitz.hash(&words),
            Tuple::V6(words) => self.toeplitz.hash(&words),
        }
    }

    /// Hashes `frames` and partitions them by worker, into `burst`.
    ///
    /// # Panics
    /// If there are more than [`BURST_MAX`] frames.
    pub fn steer(&self, frames: &[&[u8]], burst: &mut Burst) {
        assert!(frames.len() <= BURST_MAX, "a burst has at most {BURST_MAX} frames");
        burst.clear(frames.len());
        for (i, frame) in frames.iter().enumerate() {
            match tuple(frame, self.kind) {
                Tuple::V4(words) => put(&mut burst.v4, i, words),
                // Zero words hash to 0, which is what a frame without a flow shall have.
                Tuple::None => put(&mut burst.v4, i, [0; 3]),
                // Its IPv4 slot keeps what it had: the hash of that is overwritten.
                Tuple::V6(words) => {
                    put(&mut burst.v6, burst.v6_len, words);
                    burst.v6_frames[burst.v6_len % BURST_MAX] = i as u8;
                    burst.v6_len += 1;
                }
            }
        }
        let groups = frames.len().div_ceil(GROUP_TUPLES);
        self.toeplitz.hash_groups(&burst.v4[..groups], &mut burst.hashes[..groups]);
        if burst.v6_len > 0 {
            self.hash_v6(burst);
        }
        for i in 0..frames.len() {
            let worker = self.worker(burst.hash(i));
            burst.frames_of[worker % WORKERS_MAX] |= 1 << i;
            burst.workers |= 1 << worker;
        }
    }

    fn hash_v6(&self, burst: &mut Burst) {
        let groups = burst.v6_len.div_ceil(GROUP_TUPLES);
        let mut hashes = [[0; GROUP_TUPLES]; GROUPS];
        self.toeplitz.hash_groups(&burst.v6[..groups], &mut hashes[..groups]);
        for (slot, &i) in burst.v6_frames[..burst.v6_len].iter().enumerate() {
            let i = usize::from(i);
            burst.hashes[i / GROUP_TUPLES][i % GROUP_TUPLES] =
                hashes[slot / GROUP_TUPLES][slot % GROUP_TUPLES];
        }
    }
}

/// A burst's hashes and its partition, in memory taken once.
pub struct Burst {
    len: usize,
    v4: [Group<3>; GROUPS],
    v6: [Group<9>; GROUPS],
    /// Which frame each IPv6 slot is.
    v6_frames: [u8; BURST_MAX],
    v6_len: usize,
    hashes: [[u32; GROUP_TUPLES]; GROUPS],
    frames_of: [u64; WORKERS_MAX],
    workers: u64,
}

impl Default for Burst {
    fn default() -> Burst {
        Burst {
            len: 0,
            v4: [[[0; GROUP_TUPLES]; 3]; GROUPS],
            v6: [[[0; GROUP_TUPLES]; 9]; GROUPS],
            v6_frames: [0; BURST_MAX],
            v6_len: 0,
            hashes: [[0; GROUP_TUPLES]; GROUPS],
            frames_of: [0; WORKERS_MAX],
            workers: 0,
        }
    }
}

impl Burst {
    /// Frames in the burst.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the burst is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The flow hash of frame `i`.
    ///
    /// # Panics
    /// If there is no such frame.
    pub fn hash(&self, i: usize) -> u32 {
        self.hashes[i / GROUP_TUPLES][i % GROUP_TUPLES]
    }

    /// The workers that got frames, each with its frames' indices in the order of arrival.
    pub fn by_worker(&self) -> impl Iterator<Item = (usize, Bits)> + '_ {
        Bits(self.workers).map(|worker| (worker, Bits(self.frames_of[worker])))
    }

    fn clear(&mut self, len: usize) {
        for worker in Bits(self.workers) {
            self.frames_of[worker] = 0;
        }
        (self.len, self.v6_len, self.workers) = (len, 0, 0);
    }
}

/// Writes a tuple's words into its slot.
#[inline]
fn put<const WORDS: usize>(groups: &mut [Group<WORDS>; GROUPS], slot: usize, words: [u32; WORDS]) {
    let group = &mut groups[slot / GROUP_TUPLES % GROUPS];
    for (k, word) in words.into_iter().enumerate() {
        group[k][slot % GROUP_TUPLES] = word;
    }
}

/// A set of indices below 64, taken from the lowest up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bits(pub u64);

impl Iterator for Bits {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        let lowest = (self.0 != 0).then(|| self.0.trailing_zeros() as usize)?;
        self.0 &= self.0 - 1;
        Some(lowest)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let len = self.0.count_ones() as usize;
        (len, Some(len))
    }
}

impl ExactSizeIterator for Bits {}

/// Why a steering setting was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RssError {
    /// More bits than an indirection table has.
    Bits(u32),
    /// No worker, or more than a burst can be partitioned into.
    Workers(usize),
    /// A bucket the table does not have.
    NoBucket {
        /// The bucket asked for.
        bucket: usize,
        /// How many there are.
        buckets: usize,
    },
    /// A bucket given to a worker that does not exist.
    NoWorker {
        /// The bucket.
        bucket: usize,
        /// The worker asked for.
        worker: usize,
        /// How many there are.
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
