//! The change of a direction's classes while packets wait in them.
//!
//! In this order: packets are taken out of the old classes, each flow's in its order; the tree is changed, or made, or gives way to one
//! class; books, delays and blocked times of classes that are gone are kept; packets are put into the classes that the new filters say. It
//! takes some microseconds a class and less a packet, during which the worker does nothing else.
//!
//! [`Shaping::check`] says beforehand which limit or class could not be kept, so that a change of several ports is made whole or not at
//! all.

use std::collections::HashMap;
use std::sync::Arc;

use weir_core::classify::Target;
use weir_core::classify::fragments::FragmentTargets;
use weir_core::packet::Meta;
use weir_core::rate::Rate;
use weir_core::shaper::Shaper;
use weir_core::shaper::backlog::{Backlog, Refused};
use weir_core::shaper::cbq::{Cbq, CbqConfig, CbqMeter, EWMA_LOG, EWMA_LOG_MAX};
use weir_core::shaper::class::Class;
use weir_core::shaper::htb::{Htb, HtbConfig, HtbMeter};
use weir_core::shaper::tbf::TbfConfig;
use weir_core::shaper::tree::{DEPTH_MAX, LeafConfig, Meter, PRIORITIES, Tree, TreeError, TreeSize};
use weir_ring::pool::Pool;

use super::{Shaping, Sharing, class_size};
use crate::classes::{ClassConfig, Classes, TreeKind};
use crate::egress::entry_port;
use crate::packet::{Ecn, PathPacket};

const CHECKED: &str = "the file was checked when it was read";

/// A tree's meter, as a classes file configures it, where packets have `mtu_bytes` at most, all their headers included.
trait FromFile: Meter + Sized {
    fn new(class: &ClassConfig, mtu_bytes: u64, now_ns: u64) -> Self;
    fn change(
        tree: &mut Tree<PathPacket, Self>,
        number: usize,
        class: &ClassConfig,
        mtu_bytes: u64,
        now_ns: u64,
    );
}

impl FromFile for HtbMeter {
    fn new(class: &ClassConfig, mtu_bytes: u64, now_ns: u64) -> HtbMeter {
        HtbMeter::new(htb(class, mtu_bytes), now_ns).expect(CHECKED)
    }

    fn change(tree: &mut Htb<PathPacket>, number: usize, class: &ClassConfig, mtu_bytes: u64, now_ns: u64) {
        tree.set_config(number, htb(class, mtu_bytes), class.quantum_bytes, now_ns).expect(CHECKED);
    }
}

impl FromFile for CbqMeter {
    fn new(class: &ClassConfig, mtu_bytes: u64, now_ns: u64) -> CbqMeter {
        CbqMeter::new(cbq(class, mtu_bytes), now_ns).expect(CHECKED)
    }

    fn change(tree: &mut Cbq<PathPacket>, number: usize, class: &ClassConfig, mtu_bytes: u64, now_ns: u64) {
        tree.set_config(number, cbq(class, mtu_bytes), class.quantum_bytes, now_ns).expect(CHECKED);
    }
}

fn htb(class: &ClassConfig, mtu_bytes: u64) -> HtbConfig {
    let &ClassConfig { rate, ceil, burst_bytes, cburst_bytes, .. } = class;
    HtbConfig { rate, ceil, burst_bytes, cburst_bytes, mtu_bytes }
}

/// The configuration of a class for CBQ. The rate that an inner class forgets is lent out too early, so its average forgets as little as it
/// can.
fn cbq(class: &ClassConfig, mtu_bytes: u64) -> CbqConfig {
    let &ClassConfig { rate, burst_bytes, bounded, .. } = class;
    let ewma_log = if class.leaf.is_some() { EWMA_LOG } else { EWMA_LOG_MAX };
    CbqConfig { rate, burst_bytes, mtu_bytes, ewma_log, bounded, isolated: false }
}

impl Shaping {
    /// Checks that these limits and classes can be kept, where packets are as long as they are here.
    ///
    /// # Errors
    /// The limit or class that cannot be kept, and why.
    pub fn check(&self, limits: Option<&TbfConfig>, classes: Option<&Classes>) -> Result<(), String> {
        limits.map_or(Ok(()), TbfConfig::check).map_err(|error| error.to_string())?;
        let Some(Classes { kind, classes, .. }) = classes else { return Ok(()) };
        for (place, class) in classes.iter().enumerate() {
            let meter = match kind {
                TreeKind::Htb => htb(class, self.packet_bytes_max).check().map_err(|error| error.to_string()),
                TreeKind::Cbq => cbq(class, self.packet_bytes_max).check().map_err(|error| error.to_string()),
            };
            let fits = check_place(classes, place).map_err(|error| error.to_string());
            meter.and(fits).map_err(|why| format!("class \"{}\": {why}", class.name))?;
        }
        Ok(())
    }

    /// Shapes by these classes from now on, or by the limits alone; no packet that waits is reordered within its flow, and none is lost
    /// unless the rule of its new class drops it. Tells `each` the origin of each packet, and its new class.
    pub fn set_classes(
        &mut self,
        classes: Option<Arc<Classes>>,
        pool: &mut Pool,
        now_ns: u64,
        mut each: impl FnMut(&Meta, usize),
    ) {
        let (waiting, blocked_ns) = (self.take_all(), self.blocked_ns(now_ns));
        match classes {
            Some(classes) => self.share(classes, now_ns),
            None => self.end_sharing(now_ns),
        }
        // The class that had blocked its feeders longest may be gone.
        self.retired.blocked_ns += blocked_ns.saturating_sub(self.blocked_ns(now_ns));
        self.set_link(now_ns);
        self.set_gather();
        self.put_all(waiting, pool, &mut each);
    }

    /// Makes the shaper, in which nothing waits, one class.
    fn end_sharing(&mut self, now_ns: u64) {
        if self.tree.is_none() {
            return;
        }
        self.retire_shaper();
        if let Some(free) = self.tree.take() {
            self.retired.keep(free.free.backlog());
        }
        let class = Class::new(class_size(self.size), self.limits, now_ns);
        self.shaper = Shaper::Class(Box::new(class.expect("limits are checked before they are taken")));
        self.packets_share = self.size.packets_max as u64;
    }

    /// Makes the shaper, in which nothing waits, the tree of these classes.
    fn share(&mut self, classes: Arc<Classes>, now_ns: u64) {
        let old = match (&self.tree, &self.shaper, classes.kind) {
            (Some(tree), Shaper::Htb(_), TreeKind::Htb) | (Some(tree), Shaper::Cbq(_), TreeKind::Cbq) => {
                Old::of(&tree.classes, &tree.numbers)
            }
            _ => {
                self.retire_shaper();
                let size = TreeSize {
                    classes_max: 0,
                    packets_max: self.size.packets_max,
                    poll_budget_bytes: u64::from(self.size.quantum_bytes),
                };
                self.shaper = match classes.kind {
                    TreeKind::Htb => Shaper::Htb(Box::new(Htb::new(size, now_ns))),
                    TreeKind::Cbq => Shaper::Cbq(Box::new(Cbq::new(size, now_ns))),
                };
                Old::default()
            }
        };
        let leaf = |class: &ClassConfig| self.leaf_config(class);
        let leaves: Vec<_> = classes.classes.iter().map(leaf).collect();
        let mtu_bytes = self.packet_bytes_max;
        let (numbers, gone) = match &mut self.shaper {
            Shaper::Htb(tree) => change(tree, old, &classes.classes, &leaves, mtu_bytes, now_ns),
            Shaper::Cbq(tree) => change(tree, old, &classes.classes, &leaves, mtu_bytes, now_ns),
            Shaper::Class(_) => unreachable!("it was made a tree above"),
        };
        gone.iter().for_each(|leaf| self.retired.keep(leaf));
        let (free, fragments) = match self.tree.take() {
            Some(tree) => {
                let mut fragments = tree.fragments;
                fragments.change(|target| same_target(target, &tree.classes.classes, &classes.classes));
                (tree.free, fragments)
            }
            None => {
                let free =
                    Class::new(class_size(self.size), None, now_ns).expect("no limits are always kept");
                (free, FragmentTargets::default())
            }
        };
        let leaves = leaves.iter().flatten().count() + 1;
        self.packets_share = (self.size.held_packets_max / leaves as u64).max(1);
        self.tree = Some(Sharing { classes, numbers, free, free_is_next: false, fragments });
    }

    /// The settings of the leaf of a class; none for an inner class.
    fn leaf_config(&self, class: &ClassConfig) -> Option<LeafConfig> {
        let rules = class.leaf?;
        let fastest = self.limits.map_or(class.ceil, |limits| limits.rate.min(class.ceil));
        Some(LeafConfig {
            priority: rules.priority,
            flows: self.size.flows,
            flow_quantum_bytes: self.size.quantum_bytes,
            limit_bytes: fastest.bytes_in(rules.queue_ns),
            rule: rules.rule.for_packets_of(self.packet_bytes_max),
        })
    }

    /// Sets the classes' own limits for the longest packet that comes.
    pub(super) fn set_meters(&mut self, now_ns: u64) {
        let Some(sharing) = &self.tree else { return };
        let mtu_bytes = self.packet_bytes_max;
        for (class, &number) in sharing.classes.classes.iter().zip(&sharing.numbers) {
            match &mut self.shaper {
                Shaper::Htb(tree) => HtbMeter::change(tree, number, class, mtu_bytes, now_ns),
                Shaper::Cbq(tree) => CbqMeter::change(tree, number, class, mtu_bytes, now_ns),
                Shaper::Class(_) => {}
            }
        }
    }

    /// Limits the tree as a whole, and sets the credits of its leaves by the limits.
    pub(super) fn set_link(&mut self, now_ns: u64) {
        let Some(sharing) = &self.tree else { return };
        let link = self.limits.map(|limits| (limits.rate, limits.burst_bytes));
        let leaves: Vec<_> = sharing
            .classes
            .classes
            .iter()
            .zip(&sharing.numbers)
            .filter_map(|(class, &number)| Some((number, self.leaf_config(class)?)))
            .collect();
        match &mut self.shaper {
            Shaper::Htb(tree) => {
                tree.set_link(link, self.packet_bytes_max, now_ns);
                leaves.into_iter().for_each(|(number, leaf)| tree.change_leaf(number, leaf).expect(CHECKED));
            }
            Shaper::Cbq(tree) => {
                // Leaves of CBQ may run over their shares, so the roots' rates are kept here.
                let link = link.or_else(|| roots(&sharing.classes.classes));
                tree.set_link(link, self.packet_bytes_max, now_ns);
                leaves.into_iter().for_each(|(number, leaf)| tree.change_leaf(number, leaf).expect(CHECKED));
            }
            Shaper::Class(_) => {}
        }
    }

    /// Takes all packets out that wait, each with its flow.
    fn take_all(&mut self) -> Vec<(usize, PathPacket)> {
        let mut waiting = Vec::with_capacity(self.held().packets as usize);
        let leaves: Vec<_> = self.leaves().collect();
        match &mut self.shaper {
            Shaper::Class(one) => waiting.extend(std::iter::from_fn(|| one.move_next())),
            Shaper::Htb(tree) => {
                for &leaf in &leaves {
                    waiting.extend(std::iter::from_fn(|| tree.move_next(leaf)));
                }
            }
            Shaper::Cbq(tree) => {
                for &leaf in &leaves {
                    waiting.extend(std::iter::from_fn(|| tree.move_next(leaf)));
                }
            }
        }
        if let Some(tree) = &mut self.tree {
            waiting.extend(std::iter::from_fn(|| tree.free.move_next()));
        }
        waiting
    }

    fn put_all(
        &mut self,
        waiting: Vec<(usize, PathPacket)>,
        pool: &mut Pool,
        each: &mut impl FnMut(&Meta, usize),
    ) {
        for (flow, mut packet) in waiting {
            let bytes = packet.bytes(pool.memory());
            let class = self.class_of(entry_port(&packet.meta), bytes);
            if packet.ecn != Ecn::Marked {
                packet.ecn = Ecn::of(bytes, self.marks(class));
            }
            each(&packet.meta, class);
            match self.enqueue(class, flow, packet) {
                Ok(()) => {}
                Err(Refused::Dropped(_, packet)) => {
                    self.released.dropped += 1;
                    pool.give(packet.frame);
                }
                Err(Refused::NoSlot(_)) => panic!("there are slots for all that may be held"),
            }
        }
    }

    /// Keeps the books and delays of a shaper that is no more.
    fn retire_shaper(&mut self) {
        let mut retired = std::mem::take(&mut self.retired);
        let leaves = self.leaves().filter(|&class| class != super::FREE);
        leaves.filter_map(|class| self.backlog(class)).for_each(|backlog| retired.keep(backlog));
        self.retired = retired;
    }
}

/// Checks whether a class of a list can stand at its place.
fn check_place(classes: &[ClassConfig], place: usize) -> Result<(), TreeError> {
    let ClassConfig { parent, quantum_bytes, leaf, .. } = &classes[place];
    if *quantum_bytes == 0 {
        return Err(TreeError::Quantum);
    }
    if leaf.is_some_and(|leaf| usize::from(leaf.priority) >= PRIORITIES) {
        return Err(TreeError::Priority);
    }
    let (mut depth, mut next) = (0, *parent);
    while let Some(above) = next {
        // Each class stands behind its parent, so the row of parents ends.
        let above = classes.get(above).filter(|_| above < place).ok_or(TreeError::NoSuchClass)?;
        if above.leaf.is_some() {
            return Err(TreeError::ParentIsLeaf);
        }
        depth += 1;
        if depth > DEPTH_MAX {
            return Err(TreeError::TooDeep);
        }
        next = above.parent;
    }
    Ok(())
}

/// The classes before the change, by name.
#[derive(Default)]
struct Old {
    by_name: HashMap<String, OldClass>,
    /// Their numbers, parents first.
    numbers: Vec<usize>,
}

#[derive(Clone, Copy)]
struct OldClass {
    number: usize,
    parent: Option<usize>,
    is_leaf: bool,
}

impl Old {
    fn of(classes: &Classes, numbers: &[usize]) -> Old {
        let each = classes.classes.iter().zip(numbers).map(|(class, &number)| {
            let parent = class.parent.map(|parent| numbers[parent]);
            (class.name.clone(), OldClass { number, parent, is_leaf: class.leaf.is_some() })
        });
        Old { by_name: each.collect(), numbers: numbers.to_vec() }
    }

    /// The number of a class that can stay at its place in the tree.
    fn same(&self, class: &ClassConfig, parent: Option<usize>) -> Option<usize> {
        let old = self.by_name.get(&class.name)?;
        (old.parent == parent && old.is_leaf == class.leaf.is_some()).then_some(old.number)
    }
}

/// The target among `new` classes that is the class by this one's name, if that is a leaf.
fn same_target(target: Target, old: &[ClassConfig], new: &[ClassConfig]) -> Option<Target> {
    let Target::Class(place) = target else { return Some(target) };
    let name = &old.get(usize::from(place))?.name;
    let place = new.iter().position(|class| class.name == *name && class.leaf.is_some())?;
    Some(Target::Class(place.try_into().ok()?))
}

/// Makes the tree, in which no packet waits, that of `classes`; returns their numbers, and the leaves that went.
fn change<M: FromFile>(
    tree: &mut Tree<PathPacket, M>,
    old: Old,
    classes: &[ClassConfig],
    leaves: &[Option<LeafConfig>],
    mtu_bytes: u64,
    now_ns: u64,
) -> (Vec<usize>, Vec<Backlog>) {
    tree.make_room(classes.len());
    let mut numbers = Vec::with_capacity(classes.len());
    let mut stays = vec![];
    for (class, &leaf) in classes.iter().zip(leaves) {
        let parent = class.parent.map(|parent| numbers[parent]);
        let number = match old.same(class, parent) {
            Some(number) => {
                M::change(tree, number, class, mtu_bytes, now_ns);
                if let Some(leaf) = leaf {
                    tree.change_leaf(number, leaf).expect(CHECKED);
                }
                stays.push(number);
                number
            }
            None => tree
                .add(parent, M::new(class, mtu_bytes, now_ns), class.quantum_bytes, leaf, now_ns)
                .expect(CHECKED),
        };
        numbers.push(number);
    }
    stays.sort_unstable();
    let goes = old.numbers.into_iter().rev().filter(|number| stays.binary_search(number).is_err());
    let gone = goes.filter_map(|number| {
        tree.remove(number).expect("nothing waits, and children go before their parents")
    });
    let gone = gone.collect();
    (numbers, gone)
}

/// The rates and the bursts of the roots together, as those of a link.
fn roots(classes: &[ClassConfig]) -> Option<(Rate, u64)> {
    let roots = || classes.iter().filter(|class| class.parent.is_none());
    let bits_per_s = roots().fold(0u64, |sum, root| sum.saturating_add(root.rate.bits_per_s()));
    let burst_bytes = roots().map(|root| root.burst_bytes).fold(0, u64::saturating_add);
    Some((Rate::from_bits_per_s(bits_per_s)?, burst_bytes))
}
