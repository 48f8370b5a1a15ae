#![forbid(unsafe_code)]
//! The path of a packet, from one port to another.
//!
//! Rule: no clock and no threads; time is an argument. Devices are behind the two traits of [`port`]. The one other system call is that
//! by which the hand-off of `weir-ring` wakes another worker.
//!
//! A caller begins with a [`plan::Plan`], and makes its workers by [`deal::workers`]. It then calls [`worker::Worker::pass`] in a loop: the
//! thread of `weir-run`, or the virtual clock of `weir-sim`.
//!
//! In the order in which a packet meets them:
//!
//! | module | holds |
//! |---|---|
//! | [`plan`], [`owners`], [`deal`], [`assembly`] | the plan of a path; the owner of each part of it; all workers, and one, made of it |
//! | [`worker`] | the pass of a worker, whose lines are the stations below |
//! | [`intake`], [`place`] | the way in at a port, polled while the places that it waits for have room |
//! | [`between`], [`stage`], [`dispatch`], [`esp`] | bridges, routers, dispatch and ESP between ports |
//! | [`departures`], [`landings`], [`board`] | the way to another worker, and the words that workers write for each other |
//! | [`egress`], [`shaping`], [`classes`], [`shape`] | the queues in which packets wait to leave: classes, and their limits |
//! | [`exit`], [`carrier`], [`backoff`] | the way out at a port |
//!
//! [`packet`] is the packet, in the [`frames`] of a worker. [`end`] is a port with its intake and its exit, and [`gone`] the rest of a port that
//! has vanished. [`loop_port`] leads back into a stage. [`traffic`] is a port in memory with traffic of its own. [`either_port`] is one of two kinds
//! of port.
//!
//! Limits: 64 workers.

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
