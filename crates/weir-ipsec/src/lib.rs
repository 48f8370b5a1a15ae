#![forbid(unsafe_code)]
//! IPsec as pure state machines: ESP sealed and opened in a packet's own memory, associations, and policies.
//!
//! Rule: time is an argument; nothing here knows ports, threads or files.
//!
//! | module | holds |
//! |---|---|
//! | [`policy`] | which packets are protected, by which associations |
//! | [`association`] | the state of one direction: what seals, and what opens |
//! | [`sequence`], [`lifetime`] | the numbers that an association may use; how long it may be used |
//! | [`replay`] | the numbers that have been received |
//! | [`algorithm`] | ciphers and their keys |
//! | [`esp`], [`room`], [`ip`], `trailer`, [`tunnel`] | the bytes of a packet |
//! | [`reassembly`] | fragments of ESP put together |
//! | [`keepalive`] | what keeps a NAT open |
//! | [`path_mtu`] | the longest packet that the way to the other end takes |
//! | `quoted` | the packet that an ICMP error is about |
//!
//! A caller begins with [`association::Outbound`] and [`association::Inbound`]. On the way out a policy finds the associations of a packet,
//! the association numbers and counts it, and [`esp`] seals it. On the way in [`esp`] finds where ESP begins, the association asks its replay
//! window, [`esp`] verifies and opens, and the policy says whether the packet may have come so.
//!
//! Limits: nothing negotiates keys. An association uses only numbers that its caller has reserved; `weir-run/ipsec/mark_file.rs` keeps them on disk.
//!
//! The crate stands apart from `weir-core` because it brings a library of ciphers with it.

pub mod algorithm;
pub mod association;
pub mod esp;
pub mod ip;
pub mod keepalive;
pub mod lifetime;
pub mod path_mtu;
pub mod policy;
mod quoted;
pub mod reassembly;
pub mod replay;
pub mod room;
pub mod sequence;
mod trailer;
pub mod tunnel;
