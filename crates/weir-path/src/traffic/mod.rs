//! Traffic that weir makes and checks itself: numbered packets of many flows, and the port in memory where they begin or end.
//!
//! [`flows`] has the packets of each flow, [`generator`] the times at which they are due, [`sequence`] the check of packets where they end,
//! and [`port`] a port of the path that does all this in place of a device.

pub mod flows;
pub mod generator;
pub mod port;
pub mod sequence;
