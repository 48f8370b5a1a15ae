//! Shapers: when may which packet leave, and how much more may come in.

pub mod tbf;
pub mod token_bucket;
