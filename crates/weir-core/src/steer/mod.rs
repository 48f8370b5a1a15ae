//! Steering: finds the worker of a packet, from its flow alone.
//!
//! ```text
//! frame -> tuple (parse) -> hash (toeplitz, key) -> bucket (its low rss.bits bits) -> worker (rss)
//! ```
//!
//! Every packet of a flow gives the same tuple and so the same worker, which is all that order needs from
//! steering. A port whose device hashes already (RSS in the NIC) enters at the third arrow with the device's
//! hash.
//!
//! Source: Microsoft, "Receive Side Scaling"; FreeBSD `sys/net/rss_config.c` for the settings' names.

pub mod key;
pub mod parse;
pub mod rss;
pub mod toeplitz;
