//! Bridging and routing: chooses the port by which a frame leaves, and changes the frame on the way.
//!
//! A [`bridge::Bridge`] and a [`router::Router`] are states without ports: they are shown a burst of frames of one
//! ingress port and answer with a decision for each, in an array; moving the frames is the caller's. Each takes a
//! burst through one stage at a time, so that the loads of one packet overlap those of its neighbours.
//!
//! In reading order: [`table`] is the bounded hash table both look up stations in, and [`bridge`] all of a bridge. Of a router, [`route`]
//! finds the next hop, [`neighbour`] its link-layer address, in bounded `places`, asked for by `questions` in the messages of [`resolve`]
//! and found by number in [`near`], [`input`] tells whether a header may be believed, [`checksum`] keeps it right, [`fragment`] cuts
//! packets that are too long, [`icmp`] tells senders of errors, no more often than [`limit`] allows, [`outbox`] holds the frames a router
//! makes itself, and [`router`] is the instance. With [`sockets`] it is a host, which forwards nothing.
//!
//! Owner: one worker for each bridge and router (ARCHITECTURE.md, invariant 7).

pub mod bridge;
pub mod checksum;
pub mod fragment;
pub mod icmp;
pub mod input;
pub mod limit;
pub mod near;
pub mod neighbour;
pub mod outbox;
mod places;
mod questions;
pub mod resolve;
pub mod route;
pub mod router;
pub mod sockets;
pub mod station;
pub mod table;

pub use crate::steer::rss::BURST_MAX;
