//! weir-port.
