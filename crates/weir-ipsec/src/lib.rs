#![forbid(unsafe_code)]
//! IPsec as pure state machines: ESP sealed and opened in a packet's own memory, the associations that number and remember packets, and
//! the policies that say which packets are protected. Time is an argument; nothing here knows ports, threads or files.
//!
//! In the order a packet meets them on its way out: [`policy`] finds its associations, [`association`] gives it a [`sequence`] number and
//! counts its [`lifetime`], and [`esp`] seals it with an [`algorithm`]. On its way in: [`esp`] finds where ESP begins, the association asks
//! its [`replay`] window, [`esp`] verifies and opens, and the policy says whether it may have come so. [`room`], [`ip`], `trailer` and
//! [`tunnel`] are the bytes.
//!
//! It stands apart from `weir-core` because it brings a library of ciphers with it.

pub mod algorithm;
pub mod association;
pub mod esp;
pub mod ip;
pub mod keepalive;
pub mod lifetime;
pub mod policy;
pub mod replay;
pub mod room;
pub mod sequence;
mod trailer;
pub mod tunnel;
