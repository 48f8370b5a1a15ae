//! One file a command.

pub mod run;
pub mod set;
pub mod stat;
pub mod wire;
