//! The record of a limit in place, kept in its own memory: what was asked for, and what to put back.
//!
//! Rule: a setting beside the queue is in the record before it is changed, so that whoever finds the record can put it back. A field that a
//! version adds has a default, so that it reads the records of those before it.
//!
//! Owner: the command that has the ends of the limit. Limits: the text of a record fits into its place in the memory
//! ([`super::memory::text_of`]).

use serde::{Deserialize, Serialize};
use weir_core::limit::shared::{FREE_BASE, Shared};
use weir_core::limit::{BURST_NS_MAX, HEADERS_BYTES, HtbTree, QueueParameters, burst_beyond};
use weir_core::rate::Rate;
use weir_core::units::size_text;

use super::classify::Filters;
use super::{Asked, NetnsInterface, steering, unsuitable};
use crate::error::PortError;
use crate::link::Link;

/// The rate of a class that goes, the least that HTB takes: so its own rate is free for classes that stay.
const GOING_BITS_PER_S: u64 = 8;

/// The header of Ethernet, with a tag of a VLAN.
const LINK_HEADER_BYTES_MAX: u32 = 18;

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
    /// The longest packet without segmentation offloads.
    pub frame_bytes_max: u32,
    /// The stage of the limit. A limit that is not whole is being made or removed, or was when its command died.
    pub stage: LimitStage,
    /// The receive packet steering at the other end before: the mask of processors of each of its queues.
    pub steering_before: Vec<String>,
    /// The pairs behind an interface that is none, by the numbers of their near ends, at whose other ends steering was off before.
    #[serde(default)]
    pub steered_behind: Vec<u32>,
    /// The masks that the limit may have written where it steers, the newest first; none in a record of a version before.
    #[serde(default)]
    pub masks_written: Vec<String>,
    /// True if a program at the other end sees the packets that the limit lets pass.
    #[serde(default)]
    pub sees_arrivals: bool,
    /// True if a note of the limit is left at its own interface.
    #[serde(default)]
    pub keeps_note: bool,
    /// True if clsact is made for one of these; written before it is.
    #[serde(default)]
    pub made_clsact: bool,
    /// The handle of the `noqueue` that somebody chose for the interface before; 0 if there was none.
    #[serde(default)]
    pub noqueue_before: u32,
    /// The packets that were lost while the kernel replaced the queue before by this one.
    #[serde(default)]
    pub lost_when_set: u64,
    /// The lost packets that the new queue itself had no place for.
    #[serde(default)]
    pub refused_when_set: u64,
    /// The counts of leaves that are gone.
    #[serde(default, rename = "dropped_by_gone")]
    pub gone: CountsOfGone,
    /// The classes that share the limit, each behind its parent.
    #[serde(default)]
    pub classes: Vec<ClassRecord>,
    /// The filters that choose a packet's class: those that hold, then those before, by which packets of flows may still wait. None if
    /// there never were classes.
    #[serde(default)]
    pub filters: Vec<Filters>,
}

/// The counts of leaves that are gone with their classes. The first three are of drops.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CountsOfGone {
    /// Packets with a socket.
    pub held: u64,
    /// Packets without one.
    pub passing: u64,
    /// Those of both that the root of the queue counts, too: not the segments of packets that a leaf took in part.
    pub by_root: u64,
    /// The segments that left, and their bytes: of packets with a socket, and of those without.
    #[serde(default)]
    pub sent: [[u64; 2]; 2],
    /// New flows that found no leaf empty.
    #[serde(default)]
    pub crowded: u64,
    /// Packets that were marked as congested.
    #[serde(default)]
    pub marked: u64,
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
    /// Takes over what a limit that is gone had changed beside its queue.
    pub(super) fn take_over(&mut self, gone: &Record, link: &Link) {
        self.steering_before.clone_from(&gone.steering_before);
        self.steered_behind.clone_from(&gone.steered_behind);
        self.masks_written = steering::masks_written(link, &gone.masks_written);
    }

    /// The parameters of the queue's tree; `None` for a rate of 0, which no command wrote.
    pub fn wanted(&self) -> Option<QueueParameters> {
        Some(QueueParameters {
            rate: Rate::from_bits_per_s(self.rate_bits_per_s)?,
            burst_bytes: self.burst_bytes,
            packet_bytes_max: self.packet_bytes_max,
            frame_bytes_max: self.frame_bytes_max,
        })
    }

    /// The burst that the limit keeps at a new rate; `None` if it was not asked for, and so follows the rate.
    pub(super) fn burst_kept(&self, rate: Rate, burst_default: impl Fn(Rate) -> u64) -> Option<u64> {
        let is_default = burst_default(Rate::from_bits_per_s(self.rate_bits_per_s)?) == self.burst_bytes;
        (!is_default).then(|| self.burst_bytes.min(rate.bytes_in(BURST_NS_MAX)))
    }

    /// Returns whether this limit has switched steering on at the other end of a pair, where it was off; masks that somebody had set it has
    /// left.
    pub fn has_steered(&self) -> bool {
        !self.steering_before.is_empty() && self.steering_before.iter().all(|mask| steering::is_none(mask))
    }

    /// Returns whether something at the other end of a pair was changed for this limit.
    pub fn changes_far_end(&self) -> bool {
        self.sees_arrivals || self.has_steered()
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

    /// Returns whether the limit is the same. The masks that it may write change with the processors of the machine.
    pub fn is_same_limit(&self, other: &Record) -> bool {
        Record { masks_written: other.masks_written.clone(), ..self.clone() } == *other
    }

    /// Returns whether the interface may send packets that are longer than all leaves take: its MTU was raised since the limit was set.
    pub(super) fn is_exceeded_by(&self, link: &Link) -> bool {
        self.plan().is_ok_and(|plan| frame_bytes_max(link) + HEADERS_BYTES > plan.uncut_bytes_max())
    }

    /// Returns whether flows may wait in the leaves of the limit itself, from when it had no classes or now that those go.
    fn drains_own(&self) -> bool {
        self.filters.iter().any(|filters| filters.leads_to(0))
    }
}

impl ClassRecord {
    /// This class once no filter leads to it: until it is empty it is promised next to nothing, and borrows before others. The class of
    /// packets that pass all limits has nobody to borrow from, and keeps its rate.
    pub fn going(&self) -> ClassRecord {
        let rate_bits_per_s = if self.base == FREE_BASE { self.rate_bits_per_s } else { GOING_BITS_PER_S };
        ClassRecord { rate_bits_per_s, priority: 0, is_going: true, ..self.clone() }
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

/// The longest packet of an interface without segmentation offloads.
fn frame_bytes_max(link: &Link) -> u32 {
    link.mtu_bytes + LINK_HEADER_BYTES_MAX
}

/// The record of a limit that is asked for, which is not made yet.
///
/// # Errors
/// If it has no rate, or a burst that the kernel's queue cannot keep.
pub(super) fn wanted(
    place: &NetnsInterface,
    asked: &Asked,
    before: Option<&Record>,
    burst_default: impl Fn(Rate) -> u64,
) -> Result<Record, PortError> {
    let rate_before = before.and_then(|before| Rate::from_bits_per_s(before.rate_bits_per_s));
    let rate = asked.rate.or(rate_before);
    let rate = rate.ok_or_else(|| unsuitable(place, "has no limit yet: give its rate"))?;
    let beyond = |burst_bytes| Some((burst_bytes, burst_beyond(rate, burst_bytes)?));
    if let Some((burst_bytes, why)) = asked.burst_bytes.and_then(beyond) {
        return Err(unsuitable(place, &format!("has no burst of {}: {why}", size_text(burst_bytes))));
    }
    let frame_bytes_max = frame_bytes_max(&place.link);
    let burst_kept = before.and_then(|before| before.burst_kept(rate, &burst_default));
    Ok(Record {
        name: asked.name.clone(),
        direction: asked.direction,
        rate_bits_per_s: rate.bits_per_s(),
        burst_bytes: asked.burst_bytes.or(burst_kept).unwrap_or_else(|| burst_default(rate)),
        packet_bytes_max: place.link.gso_bytes_max.max(frame_bytes_max),
        frame_bytes_max,
        stage: LimitStage::Making,
        steering_before: before.map(|before| before.steering_before.clone()).unwrap_or_default(),
        steered_behind: before.map(|before| before.steered_behind.clone()).unwrap_or_default(),
        masks_written: steering::masks_written(
            &place.link,
            before.map_or(&[], |before| &before.masks_written),
        ),
        sees_arrivals: before.is_some_and(|before| before.sees_arrivals),
        keeps_note: before.is_some_and(|before| before.keeps_note),
        made_clsact: before.is_some_and(|before| before.made_clsact),
        noqueue_before: before.map_or(0, |before| before.noqueue_before),
        lost_when_set: before.map_or(0, |before| before.lost_when_set),
        refused_when_set: before.map_or(0, |before| before.refused_when_set),
        gone: before.map(|before| before.gone).unwrap_or_default(),
        classes: before.map(|before| before.classes.clone()).unwrap_or_default(),
        filters: before.map(|before| before.filters.clone()).unwrap_or_default(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether a record is too long is decided before anything is written.
    #[test]
    fn a_record_that_is_asked_for_has_the_masks_and_is_the_same_limit_without_them() {
        let lo = NetnsInterface::here("lo").unwrap();
        let asked = Asked {
            name: "lo".into(),
            direction: Direction::There,
            rate: Rate::from_bits_per_s(10_000_000),
            burst_bytes: None,
            classes: None,
            moves_at_once: false,
        };
        let wanted = wanted(&lo, &asked, None, |_| 20_480).unwrap();
        assert_eq!(wanted.masks_written.len(), steering::masks_written(&lo.link, &[]).len());
        assert!(!wanted.masks_written.is_empty());
        let of_a_version_before = Record { masks_written: Vec::new(), ..wanted.clone() };
        assert!(wanted.is_same_limit(&of_a_version_before) && of_a_version_before.is_same_limit(&wanted));
        assert!(!wanted.is_same_limit(&Record { burst_bytes: 20_481, ..of_a_version_before }));
    }
}
