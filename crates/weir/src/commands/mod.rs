//! One file a command, and the modules that several of them share: `drops`, `traffic`, `ways`.

pub mod apply;
pub mod backlog;
pub mod carry;
pub mod check;
pub mod doctor;
pub mod down;
pub mod drops;
pub mod r#gen;
pub mod lab;
pub mod limit;
pub mod mend;
pub mod run;
pub mod sa;
pub mod set;
pub mod show;
pub mod sink;
pub mod stat;
pub mod traffic;
pub mod up;
pub mod ways;
pub mod wire;
