#![forbid(unsafe_code)]
//! weir-sim.
