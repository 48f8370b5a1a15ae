//! Bridging and routing: which port a frame leaves by, and what is changed in it on the way.
//!
//! A [`bridge::Bridge`] is a state without ports: it is shown a burst of frames of one
//! ingress port and answers with a decision for each, in an array; moving the frames is the caller's. It takes a
//! burst through one stage at a time, so that the loads of one packet overlap those of its neighbours.
//!
//! In reading order: [`table`] is the bounded hash table stations are looked up in, and [`bridge`] all of a bridge.
//!
//! Owner: one worker for each bridge (design.md section 3, invariant 7).

pub mod bridge;
pub mod table;

pub use crate::steer::rss::BURST_MAX;
