//! The counters of a direction and the classes that share it, as `weir stat` shows them.
//!
//! Rule: as in [`crate::stats`], a field that is missing is 0 or nothing. Owner: none, these are copies.

use serde::{Deserialize, Serialize};
use weir_core::rate::Rate;
use weir_path::shaping::Row;

use super::place::PlaceStats;
use crate::books::Books;

/// One direction of a wire, or the packets that leave by one port of a topology.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct DirectionStats {
    /// `A->B`, by the names of the interfaces; from the port it comes from to the port it leaves by.
    #[serde(flatten)]
    pub place: PlaceStats,
    /// The limit in bits per second; none if it is not limited.
    pub rate_bits_per_s: Option<u64>,
    /// The burst in bytes.
    pub burst_bytes: Option<u64>,
    /// The number of bytes that may be held.
    pub limit_bytes: Option<u64>,
    /// Polls that brought nothing.
    pub empty_polls: u64,
    /// Times that a blocked sender was given room and had nothing to send.
    pub empty_wakes: u64,
    /// `transmit.tryfail` of the port by which it leaves.
    pub transmit_busy: u64,
    /// The classes that share it, parents first, and `free`; none without a classes file.
    pub classes: Vec<ClassStats>,
}

/// One class of a classes file, or `free`; its books go up to where packets leave it for the device. An inner class sums up the leaves
/// below it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ClassStats {
    /// The place.
    #[serde(flatten)]
    pub place: PlaceStats,
    /// Its parent's name.
    pub parent: Option<String>,
    /// Its guarantee or share in bits per second.
    pub rate_bits_per_s: Option<u64>,
    /// The most it may reach, in bits per second.
    pub ceil_bits_per_s: Option<u64>,
    /// The number of bytes that may wait in the class; a leaf's alone.
    pub limit_bytes: Option<u64>,
    /// Packets marked as having met congestion (ECN), instead of being dropped.
    pub marked: u64,
}

impl ClassStats {
    /// The counters in the row that shaping keeps.
    pub fn of(row: &Row) -> ClassStats {
        let place = PlaceStats::new(&row.name, Books::new(&row.account, row.held)).with_delay(&row.delay);
        ClassStats {
            place: PlaceStats { blocked_ns: Some(row.blocked_ns), ..place },
            parent: row.parent.clone(),
            rate_bits_per_s: row.rate.map(Rate::bits_per_s),
            ceil_bits_per_s: row.ceil.map(Rate::bits_per_s),
            limit_bytes: row.limit_bytes,
            marked: row.marked,
        }
    }
}
