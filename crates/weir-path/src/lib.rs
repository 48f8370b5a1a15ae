#![forbid(unsafe_code)]
//! The path of a packet, from one port to another. It has no clock and no threads: time is an argument. Devices are behind the traits of
//! [`port`]; the one other system call is that by which the hand-off of `weir-ring` wakes another worker.
//!
//! A packet comes in at a port by an [`intake`], crosses over to another [`worker`] if that has the stage or egress queue behind the link
//! ([`departures`], [`landings`]), waits in the classes of a [`shaping`] until these admit it, and goes out by an [`exit`]. [`packet`] is
//! the packet, in the [`frames`] of a worker; [`end`] is a port with its intake and its exit; [`worker`] has the pass that calls these in
//! turn. [`owners`] deals ports and stages to workers. [`traffic`] is a port in memory with traffic of its own.

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
