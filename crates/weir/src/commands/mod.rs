//! One file a command.

pub mod lab;
pub mod set;
pub mod stat;
pub mod wire;
