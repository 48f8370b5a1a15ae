//! The runtime: the threads that move packets, the clock that they read, and the ways to ask and steer them.
//!
//! A caller begins with [`topology`] or [`classes`], which read a file, and with [`datapath::Datapath::open`], which opens the ports. Each
//! worker's thread then runs [`worker::run`]. [`memory::MemoryPath`] is the same for ports in memory.
//!
//! | modules | task |
//! |---|---|
//! | [`datapath`], [`part`] | ports joined by the path of `weir-path`, and one worker's part of them. A wire is the datapath of two ports |
//! | [`worker`], [`drive`], [`idle`], [`clock`] | the thread of a worker: its loop, its rest, its time |
//! | [`crew`], [`standstill`] | the way of all others to the workers |
//! | [`control`] | the control socket |
//! | [`stats`], [`report`], [`sum`], [`books`], [`workstreams`] | what is counted, added up and shown |
//! | [`guardian`] | a process that puts the machine back as it was, also after a crash |
//! | [`watcher`] | the care of the interfaces while a datapath is up |
//! | [`topology`], [`classes`], [`limits`] | files and limits as users write them |
//! | [`ipsec`] | keys, marks of sequence numbers, and the kernel's IPsec |
//! | [`sink`], [`generate`], [`memory`], [`testbed`] | traffic that is received, sent, or kept in memory |
//! | [`nearest`], [`seed`] | a guess at a word that was meant; a random number |
//!
//! Rule: this crate alone reads the clock ([`clock`]); `clippy.toml` forbids the clocks of `std`. A decision that needs no clock, thread or
//! system call is in `weir-core` or `weir-path`.
//!
//! Limits: those of its ports (`weir-port`).

pub mod books;
pub mod classes;
pub mod clock;
pub mod control;
pub mod crew;
pub mod datapath;
mod dispatch_rows;
pub mod drive;
pub mod generate;
pub mod guardian;
pub mod idle;
pub mod ipsec;
pub mod limits;
mod look_over;
pub mod memory;
mod moved;
pub mod nearest;
pub mod own_address;
pub mod part;
mod progress;
pub mod report;
pub mod seed;
pub mod sink;
mod source;
mod stage_mtu;
pub mod standstill;
pub mod stats;
pub mod sum;
pub mod testbed;
pub mod topology;
pub mod watcher;
pub mod worker;
pub mod workstreams;
