//! weir-ring.
