//! Fuzz targets: one for every parser of input from outside, with properties that must hold of each besides not panicking.
//!
//! A target is a function of some bytes that panics at a fault. `cargo test -p weir-fuzz` shows each a fixed number of inputs ([`engine`]),
//! on the stable toolchain and the same ones each time; `make verify` shows each ten million. Under `cargo bolero test` the same functions
//! are driven by coverage.
//!
//! Bytes are read as they are, or drawn from ([`draw`]) to build input that is mostly valid ([`frames`]): a parser that sees nonsense alone
//! is only asked to refuse. Input that can be read in a second way is: by `etherparse`, by the generated netlink bindings, by arithmetic of
//! its own.

pub mod draw;
pub mod engine;
pub mod frames;
pub mod targets;
