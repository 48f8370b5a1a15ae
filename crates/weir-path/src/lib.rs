#![forbid(unsafe_code)]
//! The path of a packet, from one port to another. No clock and no threads: time is an argument. What the kernel has is behind the traits
//! of [`port`]; the one system call besides is that by which the hand-off of `weir-ring` wakes another worker.
//!
//! In the order a packet meets them: it comes in at a port by an [`intake`], crosses over to another [`worker`] if that has what lies behind
//! ([`departures`], [`landings`]), waits in the classes of a [`shaping`] until these admit it, and goes out by an [`exit`]. [`packet`] is what
//! moves, in the [`frames`] of a worker; [`end`] is all there is at one port; [`worker`] has the pass whose lines are these stations. [`owners`] deals
//! ports and stages to workers. [`traffic`] is a port's in memory.

pub mod assembly;
pub mod backoff;
pub mod between;
pub mod board;
pub mod carrier;
pub mod classes;
pub mod deal;
pub mod departures;
pub mod dispatch;
pub mod egress;
pub mod either_port;
pub mod end;
pub mod esp;
pub mod exit;
pub mod frames;
pub mod gone;
pub mod intake;
pub mod landings;
pub mod loop_port;
pub mod owners;
pub mod packet;
pub mod place;
pub mod plan;
pub mod port;
pub mod shape;
pub mod shaping;
pub mod stage;
pub mod traffic;
pub mod worker;
