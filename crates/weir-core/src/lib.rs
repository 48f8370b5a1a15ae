#![forbid(unsafe_code)]
//! Every decision Weir makes about a packet, as pure state machines: time is an argument, memory is
//! taken at start, and nothing here knows ports, threads or the kernel.
//!
//! In the order a packet meets them: [`packet`] is what moves, [`account`] and [`drops`] say where it went,
//! [`rate`] is the number of a limit, [`units`] how people write it, [`classify`] finds a packet's class, [`shaper`]
//! decides when which packet leaves.

pub mod account;
pub mod classify;
pub mod drops;
pub mod packet;
pub mod rate;
pub mod shaper;
pub mod units;
