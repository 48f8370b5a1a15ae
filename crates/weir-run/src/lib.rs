//! weir-run.
