//! What a limit in place remembers of itself, in its own memory: what was asked for, and what to put back.

use serde::{Deserialize, Serialize};
use weir_core::limit::Wanted;
use weir_core::rate::Rate;

/// Of one queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// What the limit is called.
    pub name: String,
    /// How packets go that it limits, as seen from the command's interface.
    pub direction: Direction,
    /// The limit.
    pub rate_bits_per_s: u64,
    /// How much may pass at once after a pause.
    pub burst_bytes: u64,
    /// The longest packet, with segmentation offloads.
    pub packet_bytes_max: u32,
    /// Whether it is whole and limits. One that is not is being made or removed, or was when somebody died.
    pub stage: Stage,
    /// Receive packet steering at the other end as it was: the mask of processors of each of its queues.
    pub steering_before: Vec<String>,
    /// Whether what it lets pass is seen at the other end.
    #[serde(default)]
    pub sees_arrivals: bool,
    /// Whether clsact was made there for that.
    #[serde(default)]
    pub made_clsact: bool,
}

/// Which way packets go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Direction {
    /// What the programs behind the interface send.
    There,
    /// What is sent to them.
    Back,
}

/// How far a limit has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stage {
    /// Being made: open, nothing waits.
    Making,
    /// Whole.
    Limiting,
    /// Open, to be removed.
    Opening,
}

impl Record {
    /// What is wanted of the queue; `None` for a rate of 0, which nobody wrote.
    pub fn wanted(&self) -> Option<Wanted> {
        Some(Wanted {
            rate: Rate::from_bits_per_s(self.rate_bits_per_s)?,
            burst_bytes: self.burst_bytes,
            packet_bytes_max: self.packet_bytes_max,
        })
    }
}
