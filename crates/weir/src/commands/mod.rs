//! One file a command.

pub mod doctor;
pub mod lab;
pub mod run;
pub mod set;
pub mod stat;
pub mod wire;
