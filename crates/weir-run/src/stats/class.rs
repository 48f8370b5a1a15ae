//! What a direction and the classes that share it count, as `weir stat` shows it.
//!
//! Rule: as in [`crate::stats`], what is missing is 0 or nothing. Owner: none, these are copies.

use serde::{Deserialize, Serialize};
use weir_core::rate::Rate;
use weir_path::shaping::Row;

use crate::books::Books;

/// One direction of a wire.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ClassStats {
    /// `A->B`, by the names of the interfaces.
    pub name: String,
    /// The limit in bits per second; none if it is not limited.
    pub rate_bits_per_s: Option<u64>,
    /// The burst in bytes.
    pub burst_bytes: Option<u64>,
    /// How many bytes may be held.
    pub limit_bytes: Option<u64>,
    /// The direction's books, from the port it comes from to the port it leaves by.
    #[serde(flatten)]
    pub books: Books,
    /// For how long its senders were blocked, in nanoseconds.
    pub blocked_ns: u64,
    /// How long packets stood in the class: the median, in nanoseconds.
    pub delay_ns_p50: u64,
    /// The 99th percentile, in nanoseconds.
    pub delay_ns_p99: u64,
    /// The longest, in nanoseconds.
    pub delay_ns_max: u64,
    /// Polls that brought nothing.
    pub empty_polls: u64,
    /// Times that a blocked sender was given room and had nothing to send.
    pub empty_wakes: u64,
    /// Times that the device took no more.
    pub transmit_busy: u64,
    /// The classes that share it, parents first, and what passes them free; none without a classes file.
    pub classes: Vec<TreeClassStats>,
}

/// One class of a classes file. An inner class sums up the leaves below it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct TreeClassStats {
    /// Its name, or `free`.
    pub name: String,
    /// Its parent's name.
    pub parent: Option<String>,
    /// Its guarantee or share in bits per second.
    pub rate_bits_per_s: Option<u64>,
    /// The most it may reach, in bits per second.
    pub ceil_bits_per_s: Option<u64>,
    /// How many bytes may wait in it; a leaf's alone.
    pub limit_bytes: Option<u64>,
    /// Its books, up to where packets leave it for the device.
    #[serde(flatten)]
    pub books: Books,
    /// Packets marked as having met congestion (ECN), instead of being dropped.
    pub marked: u64,
    /// For how long its senders were blocked, in nanoseconds.
    pub blocked_ns: u64,
    /// How long packets stood in it: the median, in nanoseconds.
    pub delay_ns_p50: u64,
    /// The 99th percentile, in nanoseconds.
    pub delay_ns_p99: u64,
    /// The longest, in nanoseconds.
    pub delay_ns_max: u64,
}

impl TreeClassStats {
    /// From the row that shaping keeps.
    pub fn of(row: &Row) -> TreeClassStats {
        TreeClassStats {
            name: row.name.clone(),
            parent: row.parent.clone(),
            rate_bits_per_s: row.rate.map(Rate::bits_per_s),
            ceil_bits_per_s: row.ceil.map(Rate::bits_per_s),
            limit_bytes: row.limit_bytes,
            books: Books::new(&row.account, row.held),
            marked: row.marked,
            blocked_ns: row.blocked_ns,
            delay_ns_p50: row.delay.quantile_ns(500),
            delay_ns_p99: row.delay.quantile_ns(990),
            delay_ns_max: row.delay.delay_ns_max(),
        }
    }
}
