//! Shapers: when may which packet leave, and how much more may come in.

pub mod drr;
pub mod tbf;
pub mod token_bucket;

#[cfg(test)]
mod test_packet;
