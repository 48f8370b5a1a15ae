//! Another file of classes for a limit in place, while packets wait in it.
//!
//! ```text
//! shape    names -> bases: a class that stays keeps its own, and so its leaves with all packets that wait in them
//! make     the new classes; set those that stay; swap the program for one that asks the new filters and the ones before
//! drain    flows leave the classes that they are in by the filters before ([`super::drain`])
//! remove   the classes that go and were left; then, if nothing waits by the filters before, swap the program for one without them;
//!          what goes is counted in the record before it goes
//! ```
//!
//! A limit may lose all of its classes so: then new flows go to the limit's own leaves, and when the last class has gone no filter is asked
//! any more.
//!
//! Rule: a flow that goes to another class changes when none of its packets wait, so nothing is lost or reordered. A flow of which
//! packets always wait keeps its class alive; the command says so, and the same command later looks again, or moves it at once if it is
//! asked to, past its packets.
//!
//! Owner: the command, under the lock of both ends. Limits: [`EARLIER_MAX`] files before, as long as flows wait by them. A command that is
//! killed while the kernel takes classes off leaves some of them, without packets, until `--off`.

use std::collections::HashSet;
use std::thread::sleep;

use weir_core::classify::{Classifier, Rule, Target};
use weir_core::limit::shared::{FREE_BASE, HtbClassKind, Shared, kind_of};
use weir_core::limit::{FALLBACK, HtbClass, HtbTree, LeafQueue};
use weir_core::rate::Rate;
use weir_path::classes::{ClassConfig, Classes, FREE, LeafRules, quantum_bytes_default};

use super::classify::{EARLIER_MAX, Filters};
use super::drain::wait_until_left;
use super::htb::{self, LOOK_EVERY, LOOKS, QueueTraffic};
use super::memory::{LimitCounts, Memory};
use super::record::{ClassRecord, LimitStage, Record};
use super::tree::{self, leaves_first};
use super::{NetnsInterface, change, load, memories, set_words, unsuitable, write};
use crate::error::Result;

/// The classes that a limit has, without those that go. Settings that the kernel's queue has no place for are at their defaults.
pub fn classes_of(record: &Record) -> Classes {
    let kept: Vec<_> =
        record.classes.iter().filter(|class| !class.is_going && class.base != FREE_BASE).collect();
    let place = |base: u16| kept.iter().position(|class| class.base == base);
    let Some(filters) = record.filters.first().filter(|_| !kept.is_empty()) else {
        return Classes::none();
    };
    let target = |target: Target| match target {
        Target::Class(base) => place(base).map_or(Target::Free, |place| Target::Class(place as u16)),
        Target::Free => Target::Free,
    };
    let of_bases = filters.classifier();
    let rules = of_bases
        .rules()
        .iter()
        .map(|rule| Rule { conditions: rule.conditions.clone(), target: target(rule.target) });
    let otherwise = target(of_bases.otherwise());
    let classifier = Classifier::new(rules.collect(), otherwise);
    let classes = kept.iter().filter_map(|class| {
        let rate = Rate::from_bits_per_s(class.rate_bits_per_s)?;
        Some(ClassConfig {
            name: class.name.clone(),
            parent: class.parent.and_then(place),
            rate,
            ceil: Rate::from_bits_per_s(class.ceil_bits_per_s)?,
            burst_bytes: class.burst_bytes,
            cburst_bytes: class.cburst_bytes,
            bounded: false,
            quantum_bytes: quantum_bytes_default(rate),
            leaf: class.is_leaf.then(|| LeafRules::of_priority(class.priority)),
        })
    });
    Classes {
        classes: classes.collect(),
        classifier: classifier.expect("as many as there were"),
        default: match otherwise {
            Target::Class(place) => Some(place.into()),
            Target::Free => None,
        },
        ..Classes::none()
    }
}

/// The classes of a limit, and the filters that choose a packet's class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    /// The classes, each behind its parent, those that go among them.
    pub classes: Vec<ClassRecord>,
    /// The filters that hold, then those before.
    pub filters: Vec<Filters>,
}

impl Shape {
    /// The shape that is asked for; `before` is the record of the limit there was.
    ///
    /// # Errors
    /// One sentence, if there are too many classes or changes at once.
    pub fn new(asked: &Classes, before: Option<&Record>) -> std::result::Result<Shape, String> {
        let there = before.map_or(&[][..], |before| &before.classes);
        let mut classes: Vec<ClassRecord> = Vec::new();
        for class in &asked.classes {
            let parent = class.parent.map(|place| classes[place].base);
            let is_leaf = class.leaf.is_some();
            let same = there
                .iter()
                .find(|there| there.name == class.name && there.parent == parent && there.is_leaf == is_leaf);
            let used = there.iter().chain(&classes).map(|class| class.base);
            let base = same.map(|same| same.base).or_else(|| weir_core::limit::shared::free_base(used));
            let base = base.ok_or_else(|| {
                format!(
                    "has {} classes at most in place, with those that still drain: join some, or join the interfaces with `weir wire`",
                    weir_core::limit::shared::CLASSES_MAX - 1
                )
            })?;
            classes.push(ClassRecord {
                name: class.name.clone(),
                base,
                parent,
                rate_bits_per_s: class.rate.bits_per_s(),
                ceil_bits_per_s: class.ceil.bits_per_s(),
                burst_bytes: class.burst_bytes,
                cburst_bytes: class.cburst_bytes,
                priority: class.leaf.map_or(0, |leaf| leaf.priority),
                is_leaf,
                is_going: false,
            });
        }
        let bases: Vec<_> = classes.iter().map(|class| class.base).collect();
        // Without classes all packets go to the limit itself.
        let now = match asked.classes.is_empty() {
            true => Filters::default(),
            false => Filters::new(&asked.classifier, &bases),
        };
        let is_free = |filters: &Filters| filters.leads_to(FREE_BASE);
        if is_free(&now) {
            classes.push(free());
        }
        let kept: HashSet<_> = classes.iter().map(|class| class.base).collect();
        let going = there.iter().filter(|there| !kept.contains(&there.base));
        classes.extend(going.map(ClassRecord::going));
        let mut filters = vec![now];
        if let Some(before) = before {
            let own = [Filters::default()];
            let earlier = if before.filters.is_empty() { &own[..] } else { &before.filters };
            for earlier in earlier {
                // Filters that are the same as newer ones but for classes that are gone are left out.
                if !filters.iter().any(|newer| earlier.are_within(newer)) {
                    filters.push(earlier.clone());
                }
            }
        }
        if filters.len() > EARLIER_MAX + 1 {
            return Err(format!(
                "still has flows of which packets wait by the {EARLIER_MAX} files before this one: give one of those, try again later, or --off first"
            ));
        }
        Ok(Shape { classes, filters })
    }
}

/// The record of the class of packets that no other class takes.
fn free() -> ClassRecord {
    let Shared { base, parent, rate, ceil, burst_bytes, cburst_bytes, priority, is_leaf } = Shared::free();
    ClassRecord {
        name: FREE.into(),
        base,
        parent,
        rate_bits_per_s: rate.bits_per_s(),
        ceil_bits_per_s: ceil.bits_per_s(),
        burst_bytes,
        cburst_bytes,
        priority,
        is_leaf,
        is_going: false,
    }
}

/// Brings a limit to the classes and filters of `record`, whose tree is `plan`, from the limit before if that is `whole`. Returns the
/// record of the limit then, with the classes that could not go yet. If it `moves_at_once`, flows change class past packets of theirs.
///
/// # Errors
/// One sentence; the limit before goes on, or is recorded as half made and finished by the same command.
pub fn reshape(
    place: &NetnsInterface,
    there: Vec<Memory>,
    plan: &HtbTree,
    whole: Option<&Record>,
    mut record: Record,
    moves_at_once: bool,
) -> Result<Record> {
    let ifindex = place.link.ifindex;
    // The numbers of the classes that are there; after a command that ended half-way they are not known.
    let mut numbers = HashSet::new();
    if let Some(before) = whole {
        let plan_before = before.plan().map_err(|why| unsuitable(place, &why))?;
        numbers.extend(plan_before.classes().map(|class| class.number));
    }
    let memories = memories(plan, there)?;
    let program = load(place, &memories, &record)?;
    write(&memories[0], &Record { stage: LimitStage::Making, ..record.clone() })?;
    set_words(&memories, plan, |word, before| word < before || before == 0);
    // A limit that is half made may have no other class yet than its fallback, which then stays as it is until the filter is there.
    let is_set = |class: &HtbClass| whole.is_some() || class.number != FALLBACK;
    let classes = plan.classes().filter(is_set);
    let new: Vec<HtbClass> = classes.filter(|class| !numbers.contains(&class.number)).collect();
    record.lost_when_set += place.netns.run(|| {
        htb::set(ifindex, new.into_iter())?;
        let queues = || plan.classes().filter(is_set);
        htb::set_queues(ifindex, queues(), LeafQueue::cuts_shorter)?;
        htb::set(ifindex, leaves_first(plan, true).filter(is_set))?;
        htb::set_queues(ifindex, queues(), LeafQueue::ne)?;
        htb::CHOICE.attach(ifindex, &program)?;
        if whole.is_none() { tree::settle(ifindex, plan) } else { Ok(0) }
    })?;
    set_words(&memories, plan, |_, _| true);
    write(&memories[0], &Record { stage: LimitStage::Limiting, ..record.clone() })?;
    drain(place, memories, record, moves_at_once)
}

/// Lets flows that go to other classes leave their leaves, and removes classes that go. Gives up after [`LOOKS`] looks; the record has those left.
fn drain(
    place: &NetnsInterface,
    memories: Vec<Memory>,
    mut record: Record,
    moves_at_once: bool,
) -> Result<Record> {
    let ifindex = place.link.ifindex;
    let mut before = Record { stage: LimitStage::Limiting, ..record.clone() };
    let earlier = &record.filters[1..];
    let is_led_to = |memory: &&Memory| earlier.iter().any(|filters| filters.leads_to(memory.base()));
    let plan_before = record.plan().map_err(|why| unsuitable(place, &why))?;
    let quantum_bytes_max = plan_before.groups().map(|group| group.quantum_bytes).max().unwrap_or_default();
    let led_to = memories.iter().filter(is_led_to);
    let busy = place.netns.run(|| wait_until_left(ifindex, quantum_bytes_max, moves_at_once, led_to))?;
    let is_left = |base: u16| !busy.contains(&base);
    // Children come first, as each stands behind its parent.
    let mut gone: Vec<u16> = Vec::new();
    for class in record.classes.iter().rev().filter(|class| class.is_going && is_left(class.base)) {
        let has_children = record
            .classes
            .iter()
            .any(|child| child.parent == Some(class.base) && !gone.contains(&child.base));
        if !has_children {
            gone.push(class.base);
        }
    }
    record.classes.retain(|class| !gone.contains(&class.base));
    // No flow waits by the filters before in classes that were left.
    let left: Vec<_> = memories.iter().map(Memory::base).filter(|base| is_left(*base)).collect();
    record.filters[1..].iter_mut().for_each(|filters| filters.forget(&left));
    let is_asked = |filters: &Filters| memories.iter().any(|memory| filters.leads_to(memory.base()));
    let mut earlier = record.filters.split_off(1);
    earlier.retain(is_asked);
    earlier.dedup();
    record.filters.append(&mut earlier);
    if record.classes.is_empty() && record.filters == [Filters::default()] {
        record.filters.clear();
    }
    let plan = record.plan().map_err(|why| unsuitable(place, &why))?;
    let (going, memories): (Vec<_>, Vec<_>) =
        memories.into_iter().partition(|memory| gone.contains(&memory.base()));
    let program = load(place, &memories, &record)?;
    place.netns.run(|| htb::CHOICE.attach(ifindex, &program))?;
    // A look finds the memories that the program asks, and takes the counts of the others from the record.
    let counts = going.iter().map(Memory::counts).fold(LimitCounts::default(), LimitCounts::and);
    let gone = &mut before.gone;
    gone.passing += counts.passing_full;
    gone.by_root += counts.passing_full;
    gone.crowded += counts.crowded;
    gone.marked += counts.marked;
    write(&memories[0], &before)?;
    let stays: HashSet<_> = plan.classes().map(|class| class.number).collect();
    let goes: Vec<_> =
        plan_before.classes().map(|class| class.number).filter(|number| !stays.contains(number)).collect();
    let [(held, held_by_root), (passing, passing_by_root)] = place.netns.run(|| -> Result<_> {
        // Only packets that were on their way when the program was swapped can have come in since.
        for _ in 0..LOOKS {
            let classes = htb::classes(ifindex)?;
            if !classes.iter().any(|class| class.traffic.waiting > 0 && goes.contains(&class.number)) {
                break;
            }
            sleep(LOOK_EVERY);
        }
        let classes = htb::classes(ifindex)?;
        let by_leaf = super::root(place)?.map(|root| root.dropped_by_leaf).unwrap_or_default();
        // Of a kind: what its leaves sent and dropped, as in `LimitInPlace::leaves`, and what the root counted of the drops.
        let of = |kind| {
            let is_of = |number| goes.contains(&number) && kind_of(number).is_some_and(|(_, of)| of == kind);
            let leaves = classes.iter().filter(|class| is_of(class.number));
            leaves.fold((QueueTraffic::default(), 0), |(mut sum, by_root), class| {
                let by_queue = by_leaf.get(&class.number).copied().unwrap_or(0);
                sum.packets += class.traffic.packets;
                sum.bytes += class.traffic.bytes;
                sum.dropped += class.traffic.dropped.max(by_queue);
                (sum, by_root + class.traffic.dropped)
            })
        };
        Ok([HtbClassKind::Held, HtbClassKind::Passing].map(of))
    })?;
    record.gone = before.gone;
    let gone = &mut record.gone;
    gone.held += held.dropped;
    gone.passing += passing.dropped;
    gone.by_root += held_by_root + passing_by_root;
    for (sum, of_kind) in gone.sent.iter_mut().zip([held, passing]) {
        *sum = [sum[0] + of_kind.packets, sum[1] + of_kind.bytes];
    }
    // The same holds for leaves, which the kernel takes off one after the other.
    write(&memories[0], &Record { stage: LimitStage::Making, ..record.clone() })?;
    place.netns.run(|| htb::remove_classes(ifindex, goes.iter().copied().rev()))?;
    change(place, &memories, &plan, record.clone(), true)?;
    Ok(Record { stage: LimitStage::Limiting, ..record })
}

#[cfg(test)]
mod tests {
    use super::super::record::{CountsOfGone, Direction};
    use super::*;

    fn asked(names: &[&str]) -> Classes {
        let rate = Rate::from_bits_per_s(10_000_000).unwrap();
        let class = |name: &&str| ClassConfig {
            name: name.to_string(),
            parent: None,
            rate,
            ceil: rate,
            burst_bytes: 20_480,
            cburst_bytes: 20_480,
            bounded: false,
            quantum_bytes: quantum_bytes_default(rate),
            leaf: Some(LeafRules::of_priority(0)),
        };
        let classifier = Classifier::new(Vec::new(), Target::Class(names.len() as u16 - 1)).unwrap();
        Classes { classes: names.iter().map(class).collect(), classifier, ..Classes::none() }
    }

    fn record(shape: &Shape) -> Record {
        Record {
            name: "office".into(),
            direction: Direction::There,
            rate_bits_per_s: 100_000_000,
            burst_bytes: 50_000,
            packet_bytes_max: 65_536,
            frame_bytes_max: 1518,
            stage: LimitStage::Limiting,
            sees_arrivals: false,
            keeps_note: false,
            made_clsact: false,
            noqueue_before: 0,
            lost_when_set: 0,
            gone: CountsOfGone::default(),
            refused_when_set: 0,
            steering_before: Vec::new(),
            steered_behind: Vec::new(),
            masks_written: Vec::new(),
            classes: shape.classes.clone(),
            filters: shape.filters.clone(),
        }
    }

    fn bases(shape: &Shape) -> Vec<(&str, u16, bool)> {
        shape.classes.iter().map(|class| (class.name.as_str(), class.base, class.is_going)).collect()
    }

    #[test]
    fn a_class_that_stays_keeps_its_leaves_and_one_that_goes_is_kept_until_it_is_empty() {
        let first = Shape::new(&asked(&["a", "b"]), None).unwrap();
        assert_eq!(bases(&first), [("a", 0x800, false), ("b", 0xc00, false)]);
        assert_eq!(first.filters.len(), 1);
        let second = Shape::new(&asked(&["c", "b"]), Some(&record(&first))).unwrap();
        assert_eq!(bases(&second), [("c", 0x1000, false), ("b", 0xc00, false), ("a", 0x800, true)]);
        assert_eq!(second.filters.len(), 1, "what holds is what held before");
        assert_eq!(second.classes[2].rate_bits_per_s, 8, "it is promised nothing any more");
        let third = Shape::new(&asked(&["a", "b"]), Some(&record(&second))).unwrap();
        assert_eq!(third.classes[0].rate_bits_per_s, 10_000_000, "what comes back has its own again");
        assert_eq!(bases(&third), [("a", 0x800, false), ("b", 0xc00, false), ("c", 0x1000, true)]);
    }

    #[test]
    fn files_that_take_turns_are_remembered_once_and_too_many_are_refused() {
        let mut shape = Shape::new(&asked(&["a", "b"]), None).unwrap();
        for names in [["b", "a"], ["a", "b"]].iter().cycle().take(20) {
            shape = Shape::new(&asked(names), Some(&record(&shape))).unwrap();
            assert_eq!(shape.filters.len(), 2);
        }
        for name in ["c", "d"] {
            shape = Shape::new(&asked(&[name]), Some(&record(&shape))).unwrap();
        }
        assert!(Shape::new(&asked(&["e"]), Some(&record(&shape))).unwrap_err().contains("packets wait"));
        // Three files take turns, and the leaves found empty are now of one, now of another.
        let mut shape = Shape::new(&asked(&["a", "b"]), None).unwrap();
        for (turn, names) in [["b", "a"], ["c", "a"], ["a", "b"]].iter().cycle().take(30).enumerate() {
            shape = Shape::new(&asked(names), Some(&record(&shape))).unwrap();
            let empty = [0x800, 0xc00, 0x1000][turn * 7 % 3];
            shape.filters[1..].iter_mut().for_each(|filters| filters.forget(&[empty]));
            assert!(shape.filters.len() <= 3, "turn {turn}: {:?}", shape.filters);
        }
        let many: Vec<_> = (0..61).map(|index| format!("c{index}")).collect();
        let mut names: Vec<_> = many.iter().map(String::as_str).collect();
        assert!(Shape::new(&asked(&names), None).is_ok());
        names.push("one more");
        assert!(Shape::new(&asked(&names), None).unwrap_err().contains("61 classes at most"));
    }

    #[test]
    fn a_limit_without_classes_drains_its_own_leaves() {
        let mut before = record(&Shape::new(&asked(&["a"]), None).unwrap());
        (before.classes, before.filters) = (Vec::new(), Vec::new());
        let shape = Shape::new(&asked(&["a"]), Some(&before)).unwrap();
        assert_eq!(shape.filters[1], Filters::default());
        let plan = record(&shape).plan().unwrap();
        assert_eq!(plan.groups().map(|group| group.base).collect::<Vec<_>>(), [0, 0x800]);
    }

    #[test]
    fn classes_that_all_go_leave_their_flows_to_the_limit_itself() {
        let before = record(&Shape::new(&asked(&["a", "b"]), None).unwrap());
        let shape = Shape::new(&Classes::none(), Some(&before)).unwrap();
        assert_eq!(bases(&shape), [("a", 0x800, true), ("b", 0xc00, true)]);
        assert_eq!(shape.filters, [Filters::default(), before.filters[0].clone()]);
        let plan = record(&shape).plan().unwrap();
        assert_eq!(plan.groups().map(|group| group.base).collect::<Vec<_>>(), [0, 0x800, 0xc00]);
    }

    #[test]
    fn packets_that_passed_freely_leave_as_they_came() {
        let mut asked_before = asked(&["a"]);
        asked_before.classifier = Classifier::new(Vec::new(), Target::Free).unwrap();
        let before = record(&Shape::new(&asked_before, None).unwrap());
        let shape = Shape::new(&asked(&["a"]), Some(&before)).unwrap();
        let going = shape.classes.iter().find(|class| class.base == FREE_BASE).unwrap();
        assert_eq!((going.is_going, going.rate_bits_per_s), (true, free().rate_bits_per_s));
        record(&shape).plan().unwrap();
    }

    #[test]
    fn what_a_limit_has_can_be_asked_for_again() {
        let before = record(&Shape::new(&asked(&["a", "b"]), None).unwrap());
        let again = Shape::new(&classes_of(&before), Some(&before)).unwrap();
        assert_eq!((again.classes, again.filters), (before.classes.clone(), before.filters.clone()));
        let without = Shape::new(&Classes::none(), Some(&before)).unwrap();
        assert!(classes_of(&record(&without)).classes.is_empty());
    }
}
