//! The runtime: the thread that moves packets, the clock it reads, and the ways to ask and steer it.
//!
//! A [`datapath`] is ports joined by the path of `weir-path`, under limits or the tree of a [`classes`] file; a wire is the one of two
//! ports. A [`worker`] is the thread that drives its [`part`] of it, [`idle`] its rest with nothing to do. [`crew`] is how everyone else
//! reaches the workers: [`control`] on a socket, with the numbers of [`stats`] that [`report`] adds up. [`guardian`] puts the machine back
//! as it was when all is over, also after a crash, and [`watcher`] keeps the interfaces as a datapath needs them. [`sink`] receives on an
//! interface with several workers, [`generate`] sends on one, both by the loop of [`drive`], and in [`memory`] all ports are in memory, as
//! those of the [`testbed`].

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
pub mod nearest;
pub mod own_address;
pub mod part;
mod progress;
pub mod report;
pub mod seed;
pub mod sink;
mod source;
pub mod standstill;
pub mod stats;
pub mod sum;
pub mod testbed;
pub mod topology;
pub mod watcher;
pub mod worker;
pub mod workstreams;
