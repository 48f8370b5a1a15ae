//! The targets, each a function of an input.

pub mod bridge;
pub mod classes;
pub mod control;
pub mod ecn;
pub mod esp;
pub mod esp_fragments;
pub mod follow;
pub mod fragments;
pub mod headers;
pub mod import;
pub mod memcache;
pub mod names;
pub mod netlink;
pub mod plans;
pub mod proc;
pub mod router;
pub mod settings;
pub mod tcp;
pub mod topology;
pub mod units;

/// Rings and hand-off against queues of the standard library, by the model that the property test runs too.
pub fn handoff(bytes: &[u8]) {
    weir_ring::model::run(bytes);
}
