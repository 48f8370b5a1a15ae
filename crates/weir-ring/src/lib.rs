//! Frames, rings and wake-ups: packets, and the right to hold them, move between workers by these.
//!
//! A caller begins with [`memory::FrameMemory::new`] and [`pool::Pool::for_workers`], and joins the workers by [`handoff::mesh`].
//!
//! | module | holds |
//! |---|---|
//! | [`memory`] | the packet memory, one mapping cut into frames; the owned handle of a frame |
//! | [`pool`] | the holders of frames: a cache for each worker, over a shared depot |
//! | [`loans`] | frames lent to the kernel, and the check of those it gives back |
//! | [`spsc`] | a ring from one worker to another, in two owned halves |
//! | [`doorbell`] | the wake-up of a worker that has gone to sleep |
//! | [`hungry`] | the workers that wait for credit, and are to be told |
//! | [`handoff`] | all of a worker's incoming rings under one doorbell |
//! | `model`, `preempt` | for tests: a model to compare with, atomics that give way at random |
//!
//! Rule: each `unsafe` block has its argument beside it, and each release names its acquire. Loom checks the protocols (`tests/loom_*.rs`).
//!
//! Limits: nothing here reads a clock, and nothing allocates once it is made. A worker has 63 others at most.

mod bell;
mod depot;
pub mod doorbell;
mod fences;
pub mod handoff;
pub mod hungry;
pub mod loans;
pub mod memory;
#[cfg(all(not(loom), any(test, feature = "model")))]
pub mod model;
mod pending;
pub mod pool;
#[cfg(all(feature = "preempt", not(loom)))]
pub mod preempt;
mod slots;
pub mod spsc;
mod sync;
