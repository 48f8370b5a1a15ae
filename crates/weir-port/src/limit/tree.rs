//! The classes in a limit's queue, brought to the tree of a plan.
//!
//! Rule: a class is made when the one that it is below is there. The kernel puts a class whose parent is missing at the root, where no limit
//! holds it, and moves none; so one that is elsewhere is removed and made again.
//!
//! Source: kernel `net/sched/sch_htb.c:htb_change_class`, `htb_delete`.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::iter::successors;
use std::thread::sleep;

use weir_core::limit::{FALLBACK, HtbClass, HtbTree};

use super::NetnsInterface;
use super::htb::{self, ClassTraffic, LOOK_EVERY, LOOKS};
use super::record::Record;
use crate::error::Result;

/// Returns whether all classes of a limit and their queues are there, as its record has them. A user who is root where the interface is may
/// have removed or changed some.
pub fn lacks_nothing(place: &NetnsInterface, record: &Record) -> bool {
    let Ok(plan) = record.plan() else { return false };
    let ifindex = place.link.ifindex;
    let there = || Ok((htb::classes(ifindex)?, htb::leaf_queues(ifindex)?));
    let (classes, queues) = place.netns.run(there).unwrap_or_default();
    let queues: HashMap<_, _> = queues.into_iter().collect();
    let has_queue =
        |class: &HtbClass| class.queue.is_none() || queues.get(&class.number) == class.queue.as_ref();
    classes_unlike(&plan, &classes) == 0 && plan.classes().all(|class| has_queue(&class))
}

/// The number of classes of a plan that are not there, or not as the plan has them.
pub fn classes_unlike(plan: &HtbTree, there: &[ClassTraffic]) -> usize {
    let there: HashMap<_, _> = there.iter().map(|class| (class.number, class)).collect();
    let is_there = |class: &HtbClass| there.get(&class.number).is_some_and(|there| there.is_as(class));
    plan.classes().filter(|class| !is_there(class)).count()
}

/// The classes in the order in which the kernel's tree is changed. In a whole tree each comes before the class that it borrows from, whose
/// rate its own must not exceed, and queues stay as they are; in one that is not whole, after it.
pub fn leaves_first(plan: &HtbTree, is_whole: bool) -> impl Iterator<Item = HtbClass> {
    let mut classes: Vec<_> = plan.classes().collect();
    if is_whole {
        classes.reverse();
        classes.iter_mut().for_each(|class| class.queue = None);
    }
    classes.into_iter()
}

/// The plan at a rate so high that no packet waits.
pub fn open_plan(plan: &HtbTree) -> HtbTree {
    let rate = plan.wanted().rate;
    plan.opened(weir_core::limit::opening(rate).last().unwrap_or(rate))
}

/// Changes the classes of a plan that are there, and makes none: half made, a tree may lack the parents of others.
pub fn change_those_there(ifindex: u32, plan: &HtbTree) -> Result<()> {
    let there: HashSet<_> = htb::classes(ifindex)?.iter().map(|class| class.number).collect();
    htb::set(ifindex, leaves_first(plan, true).filter(|class| there.contains(&class.number)))
}

/// Puts the classes that are elsewhere where the plan has them, that of [`htb::create`] below the root: removes them, as the kernel moves
/// none, and makes them again. Their packets get a second to leave; returns the number of those that did not. With the filter attached only
/// a priority that names the class of [`htb::create`] leads there, and packets too long for others.
pub fn settle(ifindex: u32, plan: &HtbTree) -> Result<u64> {
    for look in 0.. {
        let there = htb::classes(ifindex)?;
        let elsewhere = elsewhere(plan, &there);
        let waiting: u64 = elsewhere.iter().map(|class| class.traffic.waiting).sum();
        if waiting > 0 && look < LOOKS {
            sleep(LOOK_EVERY);
            continue;
        }
        let numbers: Vec<_> = elsewhere.iter().map(|class| class.number).collect();
        htb::remove_classes(ifindex, numbers.iter().copied())?;
        let is_due = |class: &HtbClass| class.number == FALLBACK || numbers.contains(&class.number);
        htb::set(ifindex, plan.classes().filter(is_due))?;
        return Ok(waiting);
    }
    unreachable!("the last look is the last")
}

/// The class that [`htb::create`] made, until [`settle`] puts it below the root.
pub fn first_class(ifindex: u32) -> Result<Option<ClassTraffic>> {
    let is_first = |class: &ClassTraffic| class.number == FALLBACK && class.parent == 0;
    Ok(htb::classes(ifindex)?.into_iter().find(is_first))
}

/// The classes that are not below the one that the plan has them below, and all that is below those; each before the one it is below.
fn elsewhere<'a>(plan: &HtbTree, there: &'a [ClassTraffic]) -> Vec<&'a ClassTraffic> {
    let planned: HashMap<_, _> = plan.classes().map(|class| (class.number, class.parent)).collect();
    let by_number: HashMap<_, _> = there.iter().map(|class| (class.number, class)).collect();
    let up_from =
        |class| successors(Some(class), |class: &&ClassTraffic| by_number.get(&class.parent).copied());
    let is_elsewhere =
        |class: &ClassTraffic| planned.get(&class.number).is_some_and(|parent| *parent != class.parent);
    let mut found: Vec<_> = there.iter().filter(|class| up_from(*class).any(&is_elsewhere)).collect();
    found.sort_by_key(|class| Reverse(up_from(*class).count()));
    found
}

#[cfg(test)]
mod tests {
    use weir_core::limit::shared::Shared;
    use weir_core::limit::{QueueParameters, ROOT_CLASS};
    use weir_core::rate::Rate;

    use super::*;

    #[test]
    fn classes_that_are_elsewhere_go_with_all_below_them_from_the_leaves_on() {
        let rate = Rate::from_bits_per_s(10_000_000).unwrap();
        let wanted =
            QueueParameters { rate, burst_bytes: 20_480, packet_bytes_max: 1518, frame_bytes_max: 1518 };
        let class =
            |base, parent, is_leaf| Shared { base, parent, rate, ceil: rate, is_leaf, ..Shared::free() };
        let shared = vec![class(0x800, None, false), class(0xc00, Some(0x800), true)];
        let plan = HtbTree::with_classes(wanted, shared, false).unwrap();
        let mut there: Vec<_> = plan
            .classes()
            .map(|HtbClass { number, parent, .. }| ClassTraffic { number, parent, ..ClassTraffic::default() })
            .collect();
        let numbers = |there: &[ClassTraffic]| -> Vec<u16> {
            elsewhere(&plan, there).iter().map(|class| class.number).collect()
        };
        assert_eq!(numbers(&there), [0; 0]);
        let [inner, leaf] = [0x800 + ROOT_CLASS, there.last().unwrap().number];
        let place = |number| plan.classes().position(|class| class.number == number).unwrap();
        let [inner_at, leaf_at] = [place(inner), place(leaf)];
        let below = std::mem::take(&mut there[leaf_at].parent);
        assert_eq!(numbers(&there), [leaf], "a leaf alone");
        (there[leaf_at].parent, there[inner_at].parent) = (below, 0);
        let gone = numbers(&there);
        assert_eq!(gone.last(), Some(&inner), "what it is above goes first");
        assert!(
            gone.contains(&leaf) && !gone.contains(&ROOT_CLASS) && !gone.contains(&FALLBACK),
            "{gone:x?}"
        );
        assert_eq!(gone.len(), there.iter().filter(|class| class.number >= 0x800).count(), "{gone:x?}");
    }
}
