//! What a limit in place remembers of itself, in its own memory: what was asked for, and what to put back.

use serde::{Deserialize, Serialize};
use weir_core::limit::shared::Shared;
use weir_core::limit::{HtbTree, Wanted};
use weir_core::rate::Rate;

use super::classify::Filters;
use super::steering;

/// The rate of a class that goes, the least that HTB takes: so its own is free for those that stay.
const GOING_BITS_PER_S: u64 = 8;

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
    pub stage: LimitStage,
    /// Receive packet steering at the other end as it was: the mask of processors of each of its queues.
    pub steering_before: Vec<String>,
    /// The pairs behind an interface that is none, by the numbers of their near ends, at whose other ends steering was off before.
    #[serde(default)]
    pub steered_behind: Vec<u32>,
    /// Whether what it lets pass is seen at the other end.
    #[serde(default)]
    pub sees_arrivals: bool,
    /// Whether a note of it is left at its own interface.
    #[serde(default)]
    pub keeps_note: bool,
    /// Whether clsact was made for one of these.
    #[serde(default)]
    pub made_clsact: bool,
    /// Packets that were lost while the kernel put the queue in the place of the one before.
    #[serde(default)]
    pub lost_when_set: u64,
    /// Those among them that the new queue itself had no place for.
    #[serde(default)]
    pub refused_when_set: u64,
    /// The classes that share it, each behind its parent.
    #[serde(default)]
    pub classes: Vec<ClassRecord>,
    /// Which packets go to which: the filters that hold, then those before, by which flows may still have something waiting. None if there
    /// never were classes.
    #[serde(default)]
    pub filters: Vec<Filters>,
}

/// One class that shares a limit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClassRecord {
    /// Its name.
    pub name: String,
    /// What its numbers in the queue begin at.
    pub base: u16,
    /// The base of its parent; `None` if that is the limit.
    pub parent: Option<u16>,
    /// What it is promised.
    pub rate_bits_per_s: u64,
    /// What it may have at most.
    pub ceil_bits_per_s: u64,
    /// How much it may send at once of its rate.
    pub burst_bytes: u64,
    /// The same of its ceiling.
    pub cburst_bytes: u64,
    /// 0 borrows first.
    pub priority: u8,
    /// Whether packets wait in it.
    pub is_leaf: bool,
    /// Whether no filter leads to it any more, and it waits until it is empty.
    pub is_going: bool,
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
pub enum LimitStage {
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

    /// Whether it has switched steering on at the other end of a pair; what somebody had set it has left.
    pub fn has_steered(&self) -> bool {
        !self.steering_before.is_empty() && self.steering_before.iter().all(|mask| steering::is_none(mask))
    }

    /// The tree of the queue.
    ///
    /// # Errors
    /// One sentence, if there is none that keeps the limit.
    pub fn plan(&self) -> Result<HtbTree, String> {
        let wanted = self.wanted().ok_or("a limit of nothing: give a rate above 0")?;
        let classes = self
            .classes
            .iter()
            .map(|class| class.shared().ok_or("a class is promised nothing: set the limit again"));
        HtbTree::with_classes(wanted, classes.collect::<Result<_, _>>()?, self.drains_own())
    }

    /// Whether flows may wait in the leaves of the limit itself, from when it had no classes or now that those go.
    fn drains_own(&self) -> bool {
        self.filters.iter().any(|filters| filters.leads_to(0))
    }
}

impl ClassRecord {
    /// The same when no filter leads to it any more: until it is empty it is promised next to nothing, and borrows before others.
    pub fn going(&self) -> ClassRecord {
        ClassRecord { rate_bits_per_s: GOING_BITS_PER_S, priority: 0, is_going: true, ..self.clone() }
    }

    /// As the plan has it.
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
