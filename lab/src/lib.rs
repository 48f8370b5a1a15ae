//! The published experiments, each in one file: the historical designs, today's peers and Weir side by side.
//!
//! A lab is a function from options to a [`report::Report`]; it says how far it is through a
//! [`progress::Progress`]. The bench below it ([`bed`], [`process`], [`iperf`], [`ping`], [`wire`]) is shared with the
//! whole-program tests.

pub mod bed;
pub mod blast;
pub mod bound;
pub mod clock;
pub mod cost;
pub mod epair;
mod escape;
pub mod histogram;
pub mod html;
pub mod ifq;
pub mod interrupt;
pub mod iperf;
pub mod iperf3;
pub mod looper;
pub mod machine;
pub mod ministat;
pub mod netisr;
mod painted_stack;
pub mod ping;
pub mod plot;
pub mod process;
pub mod progress;
pub mod published_bed;
pub mod qdisc;
pub mod report;
pub mod rss;
pub mod simulated;
pub mod stolen;
pub mod table;
pub mod tunnel;
mod turns;
pub mod up;
pub mod web;
pub mod wire;
