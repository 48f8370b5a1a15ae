//! The limits in place of a machine, found from their interfaces: queue, filter, program, memory.
//!
//! Rule: what is found is what the kernel has at the moment of the look, and is taken for a limit by its queue's handle alone; a record that
//! cannot be read is no reason to pass a limit over. What a command is just changing is said to be so, not to be wrong. Leaves that are no
//! more of the record's plan are counted in the record, and not by themselves.
//!
//! Owner: the kernel. Limits: namespaces that no process is in, and that are not mounted, are not found; a user who is not root of the machine
//! sees none.

use std::collections::{HashMap, HashSet};

use weir_core::limit::ROOT_CLASS;
use weir_core::limit::gate::{self, Node, Tokens};
use weir_core::limit::shared::{FREE_BASE, HtbClassKind, kind_of};

use super::behind::{self, Behind};
use super::filter::Spot;
use super::htb::{self, ClassTraffic, QueueTraffic, RootKind, RootQueue};
use super::memory::{self, Arrivals, LimitCounts, Memory};
use super::record::{ClassRecord, CountsOfGone, LimitStage, Record};
use super::steering::ChangedSteering;
use super::{NetnsInterface, arrivals, clsact, note};
use crate::error::{PortError, Result, unless_short};
use crate::hold::Owner;
use crate::hold::ends::command_at;
use crate::link::Link;
use crate::netns::NetNs;
use crate::view::is_gone;

/// A queue under the handle of limits.
pub struct Found {
    /// The memories that its program works on, the limit's own first; none if there is no such program.
    pub memories: Vec<Memory>,
    /// The record in the first memory; `None` if it cannot be read.
    pub record: Option<Record>,
    /// True if its program is not one that this version makes, so that it is not known what waits.
    pub is_strange: bool,
}

impl Found {
    /// Returns whether another look found the same record and the same memories.
    fn is_as(&self, other: &Found) -> bool {
        let bases = |found: &Found| found.memories.iter().map(Memory::base).collect::<Vec<_>>();
        self.record == other.record && bases(self) == bases(other)
    }
}

/// The number of looks at a limit that changes.
const LOOKS: u32 = 10;

/// The reason of drops in a full leaf of packets with a socket.
pub const HELD_FULL: &str = "held-full";
/// The reason of drops because too many packets without a socket waited.
pub const PASSING_FULL: &str = "passing-full";
/// The reason why a limit with an unknown program is left alone.
pub const STRANGE: &str = "has a limit whose program this version of weir does not know: remove it with the weir that set it, or with \
     `weir limit DEV --off --now`, which loses what waits and switches receive steering (rps_cpus) off where it is as a limit sets it";

/// The limit of the packets that an interface sends.
pub fn at(place: &NetnsInterface) -> Result<Option<Found>> {
    match place.netns.run(|| htb::root(place.link.ifindex))? {
        RootKind::Limit => below_root(place).map(Some),
        _ => Ok(None),
    }
}

/// The limit of an interface whose root is known to be a limit's. The kernel lists all queues of a namespace to tell one root, so a caller
/// that looks at many interfaces lists once.
pub fn below_root(place: &NetnsInterface) -> Result<Found> {
    let ifindex = place.link.ifindex;
    let there = place.netns.run(|| memory::all_at(htb::CHOICE, ifindex))?;
    let record = there.as_ref().and_then(|memories| memories.first()?.record());
    let is_strange = there.is_some() && record.is_none();
    Ok(Found { memories: there.unwrap_or_default(), record, is_strange })
}

/// The name of the class or limit that holds waiting packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeldBy<'a> {
    /// The limit.
    Limit(&'a str),
    /// The ceiling of a class.
    Class(&'a str),
}

/// A limit with its counters.
#[derive(Debug)]
pub struct LimitInPlace {
    /// The interface that sends.
    pub place: NetnsInterface,
    /// The record of the limit; `None` if it cannot be read.
    pub record: Option<Record>,
    /// The counters and the backlog of the queue.
    pub traffic: QueueTraffic,
    /// The counters and the backlog of each class.
    pub classes: Vec<ClassTraffic>,
    /// The packets that the queues of leaves dropped, as in [`RootQueue`].
    pub dropped_by_leaf: HashMap<u16, u64>,
    /// The counters of the program.
    pub counts: LimitCounts,
    /// The counters of the program for each class of a file, by its base.
    pub counts_of_classes: Vec<(u16, LimitCounts)>,
    /// The counters at the other end; `None` where no program looks.
    pub arrivals: Option<Arrivals>,
    /// True if the queue is gone, and the limit is known from what it left beside it.
    pub is_gone: bool,
    /// The place where packets are seen that pass since the queue is gone.
    pub seen_from: Option<String>,
    /// True if its program is not one that this version knows.
    pub is_strange: bool,
    /// The command that changes it at this moment, if one does.
    pub command: Option<Owner>,
}

impl LimitInPlace {
    /// The record of the limit, or of one that lost its filter alone, the record that is left beside its queue.
    pub fn record_or_left(&self) -> Option<Record> {
        self.record.clone().or_else(|| record_at(&self.place).ok().flatten())
    }

    /// The reason why there is no record of it, in words that follow "is".
    pub fn unreadable_because(&self) -> &'static str {
        match self.is_strange {
            true => "of another version of weir",
            false => "half made, or its filter was removed",
        }
    }

    /// The packets that leaves had no room for: those with a socket, and those without.
    pub fn overflowed(&self) -> [u64; 2] {
        [HtbClassKind::Held, HtbClassKind::Passing].map(|kind| self.leaves(None, kind).0.dropped)
    }

    /// The counters and the backlog of the leaves of a kind, and how many leaves have packets waiting: those of one base, or all, with the
    /// counters of those that are gone.
    pub fn leaves(&self, base: Option<u16>, kind: HtbClassKind) -> (QueueTraffic, usize) {
        let gone =
            if base.is_none() { counts_of_gone(self.record.as_ref()) } else { CountsOfGone::default() };
        let ([packets, bytes], dropped) = match kind {
            HtbClassKind::Passing => (gone.sent[1], gone.passing),
            _ => (gone.sent[0], gone.held),
        };
        let mut sum = QueueTraffic { packets, bytes, dropped, ..QueueTraffic::default() };
        let mut waiting = 0;
        for class in &self.classes {
            let is_of = |(of, what)| what == kind && base.is_none_or(|base| of == base);
            if !kind_of(class.number).is_some_and(is_of) {
                continue;
            }
            sum.packets += class.traffic.packets;
            sum.bytes += class.traffic.bytes;
            // Both count a packet that is refused whole, and only the queue counts the segments of one that is refused in part.
            let by_queue = self.dropped_by_leaf.get(&class.number).copied().unwrap_or(0);
            sum.dropped += class.traffic.dropped.max(by_queue);
            sum.waiting += class.traffic.waiting;
            sum.waiting_bytes += class.traffic.waiting_bytes;
            waiting += usize::from(class.traffic.waiting > 0);
        }
        (sum, waiting)
    }

    /// The counters and the backlog of a class of a file, with all below it, and its drops by reason.
    pub fn class(&self, class: &ClassRecord) -> (QueueTraffic, [(&'static str, u64); 2]) {
        let number = class.base + ROOT_CLASS;
        let own = self.classes.iter().find(|class| class.number == number).map(|class| class.traffic);
        let own = own.unwrap_or_default();
        let mut sum = QueueTraffic { packets: own.packets, bytes: own.bytes, ..QueueTraffic::default() };
        let full = self.counts_of_classes.iter().find(|(base, _)| *base == class.base);
        let mut dropped = [0, full.map_or(0, |(_, counts)| counts.passing_full)];
        let mut add = |below: QueueTraffic| {
            sum.waiting += below.waiting;
            sum.waiting_bytes += below.waiting_bytes;
        };
        for (at, kind) in [HtbClassKind::Held, HtbClassKind::Passing].into_iter().enumerate() {
            let leaves = self.leaves(Some(class.base), kind).0;
            dropped[at] += leaves.dropped;
            add(leaves);
        }
        let children = self.record.iter().flat_map(|record| &record.classes);
        for child in children.filter(|child| child.parent == Some(class.base)) {
            let (below, reasons) = self.class(child);
            add(below);
            reasons.iter().zip(&mut dropped).for_each(|((_, packets), sum)| *sum += packets);
        }
        sum.dropped = dropped.iter().sum();
        (sum, [(HELD_FULL, dropped[0]), (PASSING_FULL, dropped[1])])
    }

    /// The name of that which holds most of the waiting bytes of a class of a file and below it, or of the whole limit: one of the classes,
    /// by its ceiling, or the limit; `None` if nothing waits, or all of it is being sent.
    pub fn gate(&self, class: Option<&ClassRecord>) -> Option<HeldBy<'_>> {
        let record = self.record.as_ref()?;
        let mut waiting: HashMap<u16, u64> = HashMap::new();
        for class in &self.classes {
            if let Some((base, HtbClassKind::Held | HtbClassKind::Passing)) = kind_of(class.number) {
                *waiting.entry(base).or_default() += class.traffic.waiting_bytes;
            }
        }
        let node = |(base, parent)| Node {
            base,
            parent,
            tokens: self.tokens(base),
            waiting_bytes: waiting.get(&base).copied().unwrap_or(0),
        };
        let classes = record.classes.iter().map(|class| {
            let parent = (class.base != FREE_BASE).then_some(class.parent.unwrap_or(0));
            (class.base, parent)
        });
        let nodes: Vec<_> = std::iter::once((0, None)).chain(classes).map(node).collect();
        Some(match gate::gate_below(&nodes, class.map_or(0, |class| class.base))? {
            0 => HeldBy::Limit(&record.name),
            base => HeldBy::Class(&record.classes.iter().find(|class| class.base == base)?.name),
        })
    }

    fn tokens(&self, base: u16) -> Tokens {
        let number = base + ROOT_CLASS;
        self.classes.iter().find(|class| class.number == number).map(|class| class.tokens).unwrap_or_default()
    }

    /// The packets that were dropped because their priority asked to pass the queue by; 0 where that queue is gone.
    pub fn misdirected(&self) -> u64 {
        if self.is_gone {
            return 0;
        }
        let is_leaf =
            |number| matches!(kind_of(number), Some((_, HtbClassKind::Held | HtbClassKind::Passing)));
        let leaves = self.classes.iter().filter(|class| is_leaf(class.number));
        let by_leaves: u64 = leaves.map(|class| class.traffic.dropped).sum();
        let when_set = self.record.as_ref().map_or(0, |record| record.refused_when_set);
        let by_gone = counts_of_gone(self.record.as_ref()).by_root;
        self.traffic.dropped_beyond(by_leaves + by_gone + self.counts.passing_full + when_set)
    }

    /// The drops, by reason. None of them becomes less, also when classes go.
    pub fn dropped(&self) -> [(&'static str, u64); 4] {
        let [held_full, passing_overflowed] = self.overflowed();
        [
            (HELD_FULL, held_full),
            (PASSING_FULL, passing_overflowed + self.counts.passing_full),
            ("priority", self.misdirected()),
            ("swap", self.record.as_ref().map_or(0, |record| record.lost_when_set)),
        ]
    }

    /// The number of classes that are not there, or that somebody changed; 0 of a limit that a command is changing.
    pub fn classes_unlike(&self) -> usize {
        let record =
            self.record.as_ref().filter(|record| record.stage == LimitStage::Limiting && !self.is_gone);
        let plan = record.and_then(|record| record.plan().ok());
        plan.map_or(0, |plan| super::tree::classes_unlike(&plan, &self.classes))
    }

    /// The steering at the other end, if it can be seen and differs from that before the limit.
    pub fn changed_steering(&self) -> Option<ChangedSteering> {
        let record = self.record.as_ref().filter(|record| record.has_steered())?;
        let before = record.steering_before.clone();
        let now = || -> Result<Option<ChangedSteering>> {
            let Some(far_end) = self.place.far_end()? else { return Ok(None) };
            let steering = far_end.steering(&record.masks_written)?;
            Ok(Some(ChangedSteering { now: steering.masks()?, is_ours: steering.is_ours()?, before }))
        };
        now().ok().flatten().filter(|changed| changed.now != changed.before)
    }

    /// The pairs behind a device that is no pair itself, as far as they can be found.
    pub fn behind(&self) -> Behind {
        behind::find(&self.place, self.record.as_ref().map_or(&[], |record| &record.masks_written))
            .unwrap_or_default()
    }

    /// The near ends of the pairs behind the device at whose other end this limit switched steering on.
    pub fn steered_behind(&self) -> Vec<String> {
        let steered = self.record.as_ref().map_or(&[][..], |record| &record.steered_behind);
        if steered.is_empty() { Vec::new() } else { self.behind().names(steered) }
    }
}

/// The limits of the machine.
#[derive(Debug, Default)]
pub struct LimitsFound {
    /// Those that could be read.
    pub seen: Vec<LimitInPlace>,
    /// Why others could not be read, a sentence each.
    pub unread: Vec<String>,
}

/// Every limit of the machine, as far as its namespaces can be found. One that cannot be read hides no other: any user may make one in a
/// namespace of their own.
///
/// # Errors
/// If namespaces cannot be found, or looked into, for want of descriptors or memory.
pub fn all() -> Result<LimitsFound> {
    let mut all = LimitsFound::default();
    for (_, netns) in NetNs::all()? {
        // A namespace that cannot be entered or asked hides the others no more than one that is gone.
        let Some(roots) = unless_short(netns.run(htb::roots).map(Some))? else { continue };
        for root in roots.iter().filter(|root| root.kind == RootKind::Limit) {
            if matches!(is_limit_at(&netns, root.ifindex), Ok(false)) {
                continue;
            }
            match look(netns.try_clone()?, root.clone(), LOOKS) {
                Ok(limit) => all.seen.push(limit),
                Err(error) if is_gone(&error) || has_gone(&netns, root.ifindex) => {}
                Err(error) => all.unread.push(format!(
                    "the limit of interface number {} in {} cannot be read: {error}",
                    root.ifindex,
                    netns.label()
                )),
            }
        }
        all.seen.extend(gone(&netns, &roots)?);
    }
    Ok(all)
}

/// Returns whether a queue under the handle of limits is one. In a namespace of another user namespace any user can make many such queues,
/// so a look at one must not list all; but our programs cannot be put there but by root.
pub(super) fn is_limit_at(netns: &NetNs, ifindex: u32) -> Result<bool> {
    if !netns.is_of_another_user_namespace() {
        return Ok(true);
    }
    let place = at_number(netns, ifindex)?;
    let Found { record, is_strange, .. } = below_root(&place)?;
    Ok(is_strange || record.is_some() || command_at(netns, &place.link).is_some())
}

/// Returns whether an interface has no limit any more.
pub(super) fn has_gone(netns: &NetNs, ifindex: u32) -> bool {
    netns.run(|| htb::root(ifindex)).is_ok_and(|root| root != RootKind::Limit)
}

/// The interfaces with limits and the names of those, limits whose queue somebody took away included, as far as the machine's namespaces
/// can be found.
///
/// # Errors
/// As [`all`].
pub fn names() -> Result<Vec<(NetnsInterface, String)>> {
    let mut names = Vec::new();
    for (_, netns) in NetNs::all()? {
        let roots = unless_short(netns.run(htb::roots))?;
        for root in roots.iter().filter(|root| root.kind == RootKind::Limit) {
            let named = || -> Result<Option<(NetnsInterface, String)>> {
                if !is_limit_at(&netns, root.ifindex)? {
                    return Ok(None);
                }
                let place = at_number(&netns, root.ifindex)?;
                let record =
                    below_root(&place)?.record.map_or_else(|| record_at(&place), |record| Ok(Some(record)));
                Ok(record?.map(|record| (place, record.name)))
            };
            names.extend(unless_short(named())?);
        }
        let gone = gone(&netns, &roots)?.into_iter();
        names.extend(gone.filter_map(|seen| Some((seen.place, seen.record?.name))));
    }
    Ok(names)
}

fn at_number(netns: &NetNs, ifindex: u32) -> Result<NetnsInterface> {
    Ok(NetnsInterface { netns: netns.try_clone()?, link: netns.run(|| Link::by_index(ifindex))? })
}

/// The limits whose queues are gone, by the traces that they left in a namespace with these roots.
fn gone(netns: &NetNs, roots: &[RootQueue]) -> Result<Vec<LimitInPlace>> {
    let is_limited =
        |ifindex: u32| roots.iter().any(|root| root.ifindex == ifindex && root.kind == RootKind::Limit);
    let mut seen = Vec::new();
    // An end that goes meanwhile, or whose other end cannot be seen, is left out.
    for (ifindex, memory) in unless_short(clsact::memories(arrivals::SPOT, netns))? {
        let look = || -> Result<Option<LimitInPlace>> {
            let end = at_number(netns, ifindex)?;
            let Some(place) = end.far_end()? else { return Ok(None) };
            if place.netns.is(netns) && is_limited(place.link.ifindex) {
                return Ok(None);
            }
            left(place, arrivals::SPOT, end, &memory)
        };
        seen.extend(unless_short(look())?);
    }
    let notes = unless_short(clsact::memories(note::SPOT, netns))?;
    for (ifindex, memory) in notes.into_iter().filter(|(ifindex, _)| !is_limited(*ifindex)) {
        let look = || left(at_number(netns, ifindex)?, note::SPOT, at_number(netns, ifindex)?, &memory);
        seen.extend(unless_short(look())?);
    }
    Ok(seen)
}

/// The limit, of the packets that an interface sent, that left its memory at this spot of an end; `None` if it is there, or its memory gone
/// by now: a command has come to its end since the memory was found.
fn left(
    place: NetnsInterface,
    spot: Spot,
    end: NetnsInterface,
    memory: &Memory,
) -> Result<Option<LimitInPlace>> {
    let command = command_at(&place.netns, &place.link);
    if super::traffic(&place)?.is_some() || clsact::memory_at(spot, &end)?.is_none() {
        return Ok(None);
    }
    let command = command.or_else(|| command_at(&place.netns, &place.link));
    let (is_seen, record) = (spot == arrivals::SPOT, memory.record());
    Ok(Some(LimitInPlace {
        counts: counts(std::slice::from_ref(memory), record.as_ref()),
        record,
        traffic: QueueTraffic::default(),
        classes: Vec::new(),
        dropped_by_leaf: HashMap::new(),
        counts_of_classes: Vec::new(),
        arrivals: is_seen.then(|| memory.arrivals()),
        is_gone: true,
        seen_from: is_seen.then(|| end.describe()),
        is_strange: false,
        command,
        place,
    }))
}

/// The record of an interface's limit: of its queue, or where somebody removed that or its filter, of what it left beside it.
pub fn record_at(place: &NetnsInterface) -> Result<Option<Record>> {
    match at(place)?.and_then(|found| found.record) {
        // Where the other end is out of sight, what was left at this one tells.
        None => Ok(note::gone_from(place, unless_short(place.far_end())?.as_ref())),
        record => Ok(record),
    }
}

/// The limit of the packets that one interface sends, with its counters.
pub fn seen_at(place: NetnsInterface) -> Result<Option<LimitInPlace>> {
    super::root(&place)?.map(|root| look(place.netns, root, LOOKS)).transpose()
}

/// Returns whether a program looks at the other end at what an interface sends; `None` where the other end cannot be seen.
pub fn is_watched(place: &NetnsInterface) -> Option<bool> {
    let far_end = place.far_end().ok()??;
    Some(clsact::memory_at(arrivals::SPOT, &far_end).ok()?.is_some())
}

fn counts_of_gone(record: Option<&Record>) -> CountsOfGone {
    record.map(|record| record.gone).unwrap_or_default()
}

/// The counters of the program in these memories, and of leaves that are gone those that are in no other sum.
fn counts(memories: &[Memory], record: Option<&Record>) -> LimitCounts {
    let CountsOfGone { crowded, marked, .. } = counts_of_gone(record);
    let gone = LimitCounts { crowded, marked, passing_full: 0 };
    memories.iter().map(Memory::counts).fold(gone, LimitCounts::and)
}

/// The limit with this root, looked at again where its record changes meanwhile, so many times at most.
fn look(netns: NetNs, root: RootQueue, looks: u32) -> Result<LimitInPlace> {
    let link = netns.run(|| Link::by_index(root.ifindex))?;
    let place = NetnsInterface { netns, link };
    let command = command_at(&place.netns, &place.link);
    let found = match below_root(&place)? {
        // The limit is half made, or gone since its root was listed.
        found if found.memories.is_empty() => {
            at(&place)?.ok_or(PortError::NoInterface { name: place.link.name.clone() })?
        }
        found => found,
    };
    let classes = place.netns.run(|| htb::classes(root.ifindex))?;
    // A change between both reads is over now, or its record says that it is under way.
    if looks > 1 && !below_root(&place)?.is_as(&found) {
        return look(place.netns, root, looks - 1);
    }
    let plan = found.record.as_ref().and_then(|record| record.plan().ok());
    let planned: Option<HashSet<_>> = plan.map(|plan| plan.classes().map(|class| class.number).collect());
    let is_counted = |class: &ClassTraffic| {
        let is_leaf = matches!(kind_of(class.number), Some((_, HtbClassKind::Held | HtbClassKind::Passing)));
        !is_leaf || planned.as_ref().is_none_or(|planned| planned.contains(&class.number))
    };
    let classes = classes.into_iter().filter(is_counted).collect();
    let command = command.or_else(|| command_at(&place.netns, &place.link));
    let counts_of_classes: Vec<_> =
        found.memories.iter().skip(1).map(|memory| (memory.base(), memory.counts())).collect();
    let counts = counts(&found.memories, found.record.as_ref());
    let sees_arrivals = found.record.as_ref().is_some_and(|record| record.sees_arrivals);
    let sees_arrivals = sees_arrivals && is_watched(&place) != Some(false);
    let arrivals = found.memories.first().filter(|_| sees_arrivals).map(Memory::arrivals);
    let Found { record, is_strange, .. } = found;
    Ok(LimitInPlace {
        place,
        record,
        traffic: root.traffic,
        classes,
        dropped_by_leaf: root.dropped_by_leaf,
        counts,
        counts_of_classes,
        arrivals,
        is_gone: false,
        seen_from: None,
        is_strange,
        command,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drops_by_priority_are_told_also_when_the_kernels_count_has_wrapped() {
        let misdirected_of = |dropped, passing_full, is_gone| {
            let limit = LimitInPlace {
                place: NetnsInterface::here("lo").unwrap(),
                record: None,
                traffic: QueueTraffic { dropped, ..QueueTraffic::default() },
                classes: Vec::new(),
                dropped_by_leaf: HashMap::new(),
                counts: LimitCounts { passing_full, ..LimitCounts::default() },
                counts_of_classes: Vec::new(),
                arrivals: None,
                is_gone,
                seen_from: None,
                is_strange: false,
                command: None,
            };
            limit.misdirected()
        };
        let misdirected = |dropped, passing_full| misdirected_of(dropped, passing_full, false);
        assert_eq!(misdirected(5, 2), 3);
        assert_eq!(misdirected(5, (1 << 32) + 2), 3, "both have wrapped");
        assert_eq!(misdirected(1, u64::from(u32::MAX)), 2, "the kernel's alone has");
        assert_eq!(misdirected(3 << 30, 0), 3 << 30, "all of it");
        assert_eq!(misdirected(5, 7), 0, "the program counted on meanwhile");
        assert_eq!(misdirected(5, (1 << 32) + 7), 0, "and both have wrapped");
        assert_eq!(misdirected_of(0, 1 << 25, true), 0, "what counts them is gone");
    }
}
