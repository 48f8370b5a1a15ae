//! The kernel side of Weir: how packets come out of a stock kernel and go back in, and how it is made to hold them.
//!
//! From the outside in: [`port`] is one end of a wire and ties the rest together; [`xsk`] are the AF_XDP sockets,
//! [`napi`] the ownership of the receive queues, [`bpf`] the two programs; [`link`], [`qdisc`], [`offload`] and
//! [`netns`] arrange interfaces and namespaces; [`undo`] remembers what must be put back; [`probe`] finds out whether this kernel
//! can do it all.

pub mod bpf;
pub mod error;
pub mod ethtool;
pub mod link;
pub mod mapping;
pub mod masquerade;
pub mod monitor;
pub mod napi;
mod netlink;
pub mod netns;
pub mod port;
pub mod probe;
pub mod qdisc;
pub mod sys;
pub mod undo;
pub mod xsk;

pub use error::{Doing, PortError, Result};
