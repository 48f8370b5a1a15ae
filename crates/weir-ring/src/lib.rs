//! Frames, rings and wake-ups: how packets and the right to hold them move between workers.
//!
//! | module | holds |
//! |---|---|
//! | [`memory`] | the packet memory, one mapping cut into frames; the owned handle of a frame |
//! | [`pool`] | who holds which frame: per-worker magazines over a shared depot |
//! | [`loans`] | frames lent to the kernel, and what it may give back |
//!
//! Nothing here reads a clock, and nothing allocates once it is made.

mod depot;
pub mod loans;
pub mod memory;
pub mod pool;
mod slots;
pub mod spsc;
mod sync;
