//! One file a command.

pub mod set;
pub mod stat;
pub mod wire;
