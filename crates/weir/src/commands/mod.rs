//! One file a command.

pub mod doctor;
pub mod r#gen;
pub mod lab;
pub mod run;
pub mod set;
pub mod sink;
pub mod stat;
pub mod traffic;
pub mod wire;
