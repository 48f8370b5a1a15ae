//! The kernel side of Weir: takes packets out of a stock kernel, puts them back in, and has the kernel hold them.
//!
//! From the outside in: [`port`] is one end of a wire and ties the rest together; [`queue`] is one of its receive queues, and [`ownership`]
//! the care of them all. [`xsk`] are the AF_XDP sockets, [`napi`] the ownership of the receive queues, [`bpf`] the two programs. [`link`],
//! [`qdisc`], [`ethtool`] and [`netns`] arrange interfaces and namespaces. [`hold`] records the owner of each thing that weirs change,
//! [`undo`] remembers what must be put back, and [`release`] what held senders above all. [`probe`] finds out whether this kernel can do it
//! all. [`enclosure`] makes the namespace of a program with its network ([`veth`], [`subnet`], [`address`], [`way_out`]), and [`process`]
//! starts the program there. [`reservation`] and [`tap`] are for a stack that shares an interface with the kernel. [`limit`] is a limit in
//! place, by the kernel's own queue. [`unsent`] sees what closed sockets of a program have still to send.

pub mod address;
pub mod bpf;
pub mod channel;
pub mod confinement;
pub mod cores;
pub mod directory;
pub mod enclosure;
pub mod error;
pub mod ethtool;
pub mod features;
pub mod forwarding;
pub mod hold;
pub mod holder;
pub mod hooks;
pub mod identity;
pub mod limit;
pub mod link;
pub mod lock;
pub mod mapping;
pub mod mend;
pub mod monitor;
pub mod napi;
mod netlink;
pub mod netns;
pub mod ownership;
pub mod port;
pub mod prepared;
pub mod probe;
pub mod process;
pub mod qdisc;
pub mod queue;
pub mod release;
pub mod report_file;
pub mod reservation;
pub mod senders;
pub mod sending;
pub mod share;
pub mod signals;
pub mod socket_table;
pub mod subnet;
pub mod sys;
pub mod sysctl;
pub mod tap;
pub mod transmission;
pub mod undo;
pub mod unsent;
pub mod veth;
pub mod view;
mod waiting;
pub mod way_out;
pub mod witness;
pub mod worker_port;
pub mod xfrm;
pub mod xsk;

pub use error::{Doing, PortError, Result};
