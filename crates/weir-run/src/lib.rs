//! The runtime: the thread that moves packets, the clock it reads, and the ways to ask and steer it.
//!
//! [`wire`] joins two ports, [`direction`] is one way through it, [`shaping`] what packets wait in there, by the limits of the
//! command line or the tree of a [`classes`] file, [`worker`] the thread that drives it and [`idle`] what that
//! thread does with nothing to do. [`control`] answers on a socket, with the numbers of [`stats`]; [`guardian`] puts the
//! machine back as it was when all is over, also after a crash.

pub mod classes;
pub mod clock;
pub mod control;
pub mod direction;
pub mod guardian;
pub mod idle;
mod packet;
pub mod shaping;
pub mod stats;
pub mod wire;
pub mod worker;
