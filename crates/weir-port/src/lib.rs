//! The kernel side of Weir: takes packets out of a stock kernel, puts them back in, and has the kernel hold them.
//!
//! A caller begins with [`port::Port::open`] for an interface whose packets are to be carried, or with [`limit::set`] for a limit by the
//! kernel's own queue. A port needs an [`undo::Keeper`], which remembers what must be put back; a limit remembers that itself, in the kernel.
//! [`probe`] finds out what this kernel can do.
//!
//! | modules | task |
//! |---|---|
//! | [`port`], [`queue`], [`transmission`], [`share`], [`worker_port`], [`prepared`] | one end of a wire, its queues, and its parts for several workers |
//! | [`napi`], [`ownership`], [`xsk`], [`bpf`] | the ownership of receive queues, AF_XDP sockets, and the BPF programs |
//! | [`link`], [`qdisc`], [`sending`], [`ethtool`], [`features`], [`netns`], [`veth`], [`address`], [`sysctl`] | interfaces, queues, offloads and namespaces |
//! | [`limit`] | a limit in place |
//! | [`hold`], [`holder`], [`undo`], [`channel`], [`release`], [`mend`], [`witness`] | the owners of what is changed, and how it is put back |
//! | [`monitor`], [`view`], [`hooks`], [`socket_table`], [`unsent`], [`senders`] | changes by others to interfaces, and bytes that wait in sockets |
//! | [`enclosure`], [`subnet`], [`forwarding`], [`way_out`], [`process`], [`job`], [`identity`] | the namespace and the network of a program of `weir run` |
//! | [`reservation`], [`tap`] | a stack that shares an interface with the kernel |
//! | [`confinement`], [`cores`], [`signals`] | the rights of a process that is set up, its cores, its signals |
//! | [`directory`], [`lock`], [`report_file`] | files, where other users might put something in the way |
//! | [`xfrm`] | the kernel's IPsec |
//! | [`sys`], [`mapping`], [`error`] | system calls, memory shared with the kernel, errors as sentences |
//!
//! Rule: `unsafe` is for system calls and for memory and frames that the kernel shares. The kernel's answers are checked in release
//! builds too: a descriptor that names no frame of an offer is not followed. A change outside this process is recorded before it is made.
//!
//! Limits: interfaces are veths, for a port; root's rights are needed to set one up.

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
pub mod first_frames;
pub mod fit;
pub mod forwarding;
pub mod hold;
pub mod holder;
pub mod hooks;
pub mod identity;
pub mod job;
pub mod limit;
pub mod link;
pub mod lock;
pub mod mapping;
pub mod mend;
pub mod monitor;
pub mod mountinfo;
pub mod napi;
mod netlink;
pub mod netlink_bytes;
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
