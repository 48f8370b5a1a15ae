//! Frames, rings and wake-ups: packets and the right to hold them move between workers by these.
//!
//! | module | holds |
//! |---|---|
//! | [`memory`] | the packet memory, one mapping cut into frames; the owned handle of a frame |
//! | [`pool`] | the holders of frames: per-worker caches over a shared depot |
//! | [`loans`] | frames lent to the kernel, and the check of those it gives back |
//! | [`spsc`] | a ring from one worker to another, in two owned halves |
//! | [`inject`] | a ring into a worker from any other thread |
//! | [`doorbell`] | waking a worker that has gone to sleep, exactly when it must be |
//! | [`hungry`] | the workers that wait for credit, and are to be told |
//! | [`handoff`] | all of a worker's incoming rings under one doorbell |
//!
//! Nothing here reads a clock, and nothing allocates once it is made.

mod bell;
mod depot;
pub mod doorbell;
mod fences;
pub mod handoff;
pub mod hungry;
pub mod inject;
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
