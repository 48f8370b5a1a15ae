//! Traffic that weir makes and checks itself: numbered packets of many flows, and the port in memory where they begin or end.
//!
//! [`flows`] is what packets look like, [`generator`] when they are due, [`sequence`] what is found out where they end, and [`port`] a port
//! of the path that does all this in place of a device.

pub mod flows;
pub mod generator;
pub mod port;
pub mod sequence;
