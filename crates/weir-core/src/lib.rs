#![forbid(unsafe_code)]
//! Every decision that Weir makes about a packet, as pure state machines.
//!
//! Rule: time is an argument, memory is taken at start, and nothing here knows ports, threads or the kernel. A packet is any type that implements
//! [`packet::Packet`], so the same code runs on threads, on a virtual clock and in tests.
//!
//! In the order in which a packet meets them:
//!
//! | module | decides or holds |
//! |---|---|
//! | [`packet`] | the packet: a length and one cache line of metadata |
//! | [`account`], [`drops`] | the books of a place: accepted, delivered, dropped by reason, held |
//! | [`poll_order`] | which receive queue is polled next |
//! | [`classify`] | the class of a packet |
//! | [`steer`] | the worker of a flow |
//! | [`dispatch`] | whether a packet's work is done now or later |
//! | [`net`] | where a bridge or a router sends it |
//! | [`shaper`] | when it leaves |
//! | [`limit`], [`asm`] | the kernel's own queue, where that limits instead; the programs that run there |
//! | [`rate`], [`units`] | the number of a limit; its text form |
//! | [`due`] | the earlier of two times |
//!
//! A caller begins with the state machine that it needs: [`poll_order::PollOrder`], [`shaper::class::Class`], [`net::bridge::Bridge`],
//! [`net::router::Router`], [`steer::rss::Rss`]. It passes `now_ns` to each call. A call returns the decision, and where one is needed the time of
//! the next call.
//!
//! Limits: nothing moves here. The caller has the frames, and carries a decision out (`weir-path`).

pub mod account;
pub mod asm;
pub mod classify;
pub mod dispatch;
pub mod drops;
pub mod due;

pub mod limit;
pub mod net;
pub mod packet;
pub mod poll_order;
pub mod rate;
pub mod shaper;
pub mod steer;
pub mod units;
