//! The record of a limit in place, kept in its own memory: what was asked for, and what to put back.

use serde::{Deserialize, Serialize};
use weir_core::limit::shared::Shared;
use weir_core::limit::{HtbTree, QueueParameters};
use weir_core::rate::Rate;

use super::classify::Filters;
use super::steering;

/// The rate of a class that goes, the least that HTB takes: so its own rate is free for classes that stay.
const GOING_BITS_PER_S: u64 = 8;

/// The record of the limit of one queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The name of the limit.
    pub name: String,
    /// The direction of the packets that it limits, as seen from the command's interface.
    pub direction: Direction,
    /// The rate.
    pub rate_bits_per_s: u64,
    /// The bytes that may pass at once after a pause.
    pub burst_bytes: u64,
    /// The longest packet, with segmentation offloads.
    pub packet_bytes_max: u32,
    /// The stage of the limit. A limit that is not whole is being made or removed, or was when its command died.
    pub stage: LimitStage,
    /// The receive packet steering at the other end before: the mask of processors of each of its queues.
    pub steering_before: Vec<String>,
    /// The pairs behind an interface that is none, by the numbers of their near ends, at whose other ends steering was off before.
    #[serde(default)]
    pub steered_behind: Vec<u32>,
    /// True if a program at the other end sees the packets that the limit lets pass.
    #[serde(default)]
    pub sees_arrivals: bool,
    /// True if a note of the limit is left at its own interface.
    #[serde(default)]
    pub keeps_note: bool,
    /// True if clsact is made for one of these; written before it is.
    #[serde(default)]
    pub made_clsact: bool,
    /// The packets that were lost while the kernel replaced the queue before by this one.
    #[serde(default)]
    pub lost_when_set: u64,
    /// The lost packets that the new queue itself had no place for.
    #[serde(default)]
    pub refused_when_set: u64,
    /// The classes that share the limit, each behind its parent.
    #[serde(default)]
    pub classes: Vec<ClassRecord>,
    /// The filters that choose a packet's class: those that hold, then those before, by which packets of flows may still wait. None if
    /// there never were classes.
    #[serde(default)]
    pub filters: Vec<Filters>,
}

/// One class that shares a limit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClassRecord {
    /// Its name.
    pub name: String,
    /// The base of its numbers in the queue.
    pub base: u16,
    /// The base of its parent; `None` if that is the limit.
    pub parent: Option<u16>,
    /// The rate that it is promised.
    pub rate_bits_per_s: u64,
    /// The ceiling, the most it may have.
    pub ceil_bits_per_s: u64,
    /// The bytes that it may send at once of its rate.
    pub burst_bytes: u64,
    /// The bytes that it may send at once of its ceiling.
    pub cburst_bytes: u64,
    /// The priority in borrowing; 0 borrows first.
    pub priority: u8,
    /// True if packets wait in it.
    pub is_leaf: bool,
    /// True if no filter leads to it any more, and it goes when it is empty.
    pub is_going: bool,
}

/// The direction of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Direction {
    /// Packets that the programs behind the interface send.
    There,
    /// Packets that are sent to them.
    Back,
}

/// The stage of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LimitStage {
    /// The limit is being made: open, nothing waits.
    Making,
    /// The limit is whole.
    Limiting,
    /// The limit is open, to be removed.
    Opening,
}

impl Record {
    /// The parameters of the queue's tree; `None` for a rate of 0, which no command wrote.
    pub fn wanted(&self) -> Option<QueueParameters> {
        Some(QueueParameters {
            rate: Rate::from_bits_per_s(self.rate_bits_per_s)?,
            burst_bytes: self.burst_bytes,
            packet_bytes_max: self.packet_bytes_max,
        })
    }

    /// Returns whether this limit has switched steering on at the other end of a pair, where it was off; masks that somebody had set it has
    /// left.
    pub fn has_steered(&self) -> bool {
        !self.steering_before.is_empty() && self.steering_before.iter().all(|mask| steering::is_none(mask))
    }

    /// The tree of the queue.
    ///
    /// # Errors
    /// One sentence, if no tree keeps the limit.
    pub fn plan(&self) -> Result<HtbTree, String> {
        let wanted = self.wanted().ok_or("a limit of nothing: give a rate above 0")?;
        let classes = self
            .classes
            .iter()
            .map(|class| class.shared().ok_or("a class is promised nothing: set the limit again"));
        HtbTree::with_classes(wanted, classes.collect::<Result<_, _>>()?, self.drains_own())
    }

    /// Returns whether flows may wait in the leaves of the limit itself, from when it had no classes or now that those go.
    fn drains_own(&self) -> bool {
        self.filters.iter().any(|filters| filters.leads_to(0))
    }
}

impl ClassRecord {
    /// This class once no filter leads to it: until it is empty it is promised next to nothing, and borrows before others.
    pub fn going(&self) -> ClassRecord {
        ClassRecord { rate_bits_per_s: GOING_BITS_PER_S, priority: 0, is_going: true, ..self.clone() }
    }

    /// The class in the form of the plan; `None` for a rate of 0.
    fn shared(&self) -> Option<Shared> {
        Some(Shared {
            base: self.base,
            parent: self.parent,
            rate: Rate::from_bits_per_s(self.rate_bits_per_s)?,
            ceil: Rate::from_bits_per_s(self.ceil_bits_per_s)?,
            burst_bytes: self.burst_bytes,
            cburst_bytes: self.cburst_bytes,
            priority: self.priority,
            is_leaf: self.is_leaf,
        })
    }
}
