//! The published experiments.
