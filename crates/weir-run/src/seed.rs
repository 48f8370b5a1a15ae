//! Numbers that nobody outside can know, so that nobody can prepare addresses that collide.

use std::hash::{BuildHasher, RandomState};

/// A number that nobody outside can know.
pub fn random_seed() -> u64 {
    RandomState::new().hash_one(0)
}
