//! The classes of a file below a limit in place: their numbers, and whether HTB can keep the limit with them.
//!
//! ```text
//! base + 0x001            the class        base + 0x100 .. 0x1ff   its held leaves      base + 0x200 .. 0x20f   its passing leaves
//! ```
//!
//! Rule: HTB lets a class send by its own rate whatever its parent has left. So a limit holds only while the sum promised below it is not
//! more than it: promised(class) = max(rate, sum of promised(children)), and the sum below a class stays within its ceiling.
//!
//! Source: kernel `net/sched/sch_htb.c` (`htb_dequeue`: level 0 first; `htb_change_class`: 8 levels).

use std::collections::HashMap;
use std::hash::Hash;

use super::{BITS_PER_S_MIN, FALLBACK, HELD, PASSING, ROOT_CLASS};
use crate::rate::Rate;

/// The distance between the numbers of one class and its leaves and those of the next.
const STRIDE: u16 = 0x400;
/// The base of the class of packets that pass all limits.
pub const FREE_BASE: u16 = STRIDE;
/// The most classes at once, with those that still drain.
pub const CLASSES_MAX: usize = 62;
/// The most levels of nested classes: HTB has 8 levels, the limit and the leaves among them.
pub const LEVELS_MAX: usize = 6;
/// The leaves of a class in which packets wait.
pub const LEAVES_EACH: u16 = HELD.count + PASSING.count;
/// The rate of packets that pass all limits, above what any interface passes.
const FREE_BITS_PER_S: u64 = 1_000_000_000_000;

/// One class of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shared {
    /// The base of its numbers.
    pub base: u16,
    /// The base of the class it is below; `None` if that is the limit.
    pub parent: Option<u16>,
    /// The rate that it is promised.
    pub rate: Rate,
    /// The ceiling, the most it may have by borrowing.
    pub ceil: Rate,
    /// The bytes that it may send at once of its rate.
    pub burst_bytes: u64,
    /// The bytes that it may send at once of its ceiling.
    pub cburst_bytes: u64,
    /// The priority in borrowing; 0 borrows first.
    pub priority: u8,
    /// True if packets wait in it.
    pub is_leaf: bool,
}

/// The kind of a class of HTB, known by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HtbClassKind {
    /// The limit, or a class of a file.
    Inner,
    /// A leaf of packets that have a socket.
    Held,
    /// A leaf of packets that have none.
    Passing,
}

/// The base that a number is counted from, and the kind of the class; `None` if the number is none of a limit's.
pub fn kind_of(number: u16) -> Option<(u16, HtbClassKind)> {
    let (base, within) = (number & !(STRIDE - 1), number & (STRIDE - 1));
    let is_of = |first: u16, count: u16| (first..first + count).contains(&within);
    let kind = match within {
        ROOT_CLASS => HtbClassKind::Inner,
        FALLBACK if base == 0 => HtbClassKind::Held,
        _ if is_of(HELD.first_class, HELD.count) => HtbClassKind::Held,
        _ if is_of(PASSING.first_class, PASSING.count) => HtbClassKind::Passing,
        _ => return None,
    };
    Some((base, kind))
}

/// The number of a class's leaf by its place, counted from the base; held leaves come first.
pub fn leaf_number(place: u16) -> u16 {
    match place.checked_sub(HELD.count) {
        None => HELD.first_class + place,
        Some(place) => PASSING.first_class + place,
    }
}

/// A base for a class of a file that is not in `used`; `None` if all are.
pub fn free_base(used: impl Iterator<Item = u16> + Clone) -> Option<u16> {
    (2..=CLASSES_MAX as u16)
        .map(|index| index * STRIDE)
        .find(|base| !used.clone().any(|other| other == *base))
}

impl Shared {
    /// The class of packets that pass all limits.
    pub fn free() -> Shared {
        let rate = Rate::from_bits_per_s(FREE_BITS_PER_S).expect("more than 0");
        let burst_bytes = 1 << 20;
        Shared {
            base: FREE_BASE,
            parent: None,
            rate,
            ceil: rate,
            burst_bytes,
            cburst_bytes: burst_bytes,
            priority: 0,
            is_leaf: true,
        }
    }
}

/// Checks that a limit of `rate` is kept with these classes, each behind its parent.
///
/// # Errors
/// One sentence.
pub fn check(rate: Rate, classes: &[Shared]) -> Result<(), String> {
    let limited = classes.iter().filter(|class| class.base != FREE_BASE);
    // A class that drains is promised next to nothing.
    let promised = |class: &Shared| if has_leaves(class.rate) { class.rate.bits_per_s() } else { 0 };
    let below = promised_below(limited.map(|class| (class.base, class.parent, promised(class))));
    let of_limit = below.get(&None).copied().unwrap_or(0);
    if of_limit > rate.bits_per_s() {
        let sum = Rate::from_bits_per_s(of_limit).expect("more than another");
        return Err(format!(
            "its classes are promised {sum} together, and the kernel's queue lets each have its own whatever the limit of {rate} has \
             left: give --rate {sum}, or lower their rates"
        ));
    }
    Ok(())
}

/// The bits a second that are promised below each class, by its key, and below the limit (`None`), from the rates that each is promised
/// itself. Classes stand behind their parents.
pub fn promised_below<K: Copy + Eq + Hash>(
    classes: impl DoubleEndedIterator<Item = (K, Option<K>, u64)>,
) -> HashMap<Option<K>, u64> {
    let mut below: HashMap<Option<K>, u64> = HashMap::new();
    for (key, parent, own) in classes.rev() {
        let promised = own.max(below.get(&Some(key)).copied().unwrap_or(0));
        let sum = below.entry(parent).or_default();
        *sum = sum.saturating_add(promised);
    }
    below
}

/// Returns whether a class in which packets wait can have leaves of its own.
pub fn has_leaves(rate: Rate) -> bool {
    rate.bits_per_s() >= BITS_PER_S_MIN
}

#[cfg(test)]
mod tests {
    use super::super::{HtbTree, QueueParameters};
    use super::*;

    fn rate(mbit: u64) -> Rate {
        Rate::from_bits_per_s(mbit * 1_000_000).unwrap()
    }

    fn class(index: u16, parent: Option<u16>, mbit: u64, ceil: u64, is_leaf: bool) -> Shared {
        Shared {
            base: index * STRIDE,
            parent: parent.map(|index| index * STRIDE),
            rate: rate(mbit),
            ceil: rate(ceil),
            burst_bytes: 50_000,
            cburst_bytes: 50_000,
            priority: 3,
            is_leaf,
        }
    }

    fn plan(mbit: u64, classes: Vec<Shared>) -> Result<HtbTree, String> {
        let wanted = QueueParameters::for_tests(rate(mbit), 50_000);
        HtbTree::with_classes(wanted, classes, false)
    }

    #[test]
    fn each_class_promises_its_leaves_half_of_its_rate() {
        let classes = vec![
            class(2, None, 150, 200, false),
            class(3, Some(2), 100, 200, true),
            class(4, Some(2), 50, 60, true),
            class(5, None, 50, 200, true),
            Shared::free(),
        ];
        let plan = plan(200, classes.clone()).unwrap();
        let all: Vec<_> = plan.classes().collect();
        let numbers: std::collections::HashSet<_> = all.iter().map(|class| class.number).collect();
        assert_eq!(numbers.len(), all.len());
        for class in &classes {
            let number = class.base + ROOT_CLASS;
            let inner = all.iter().find(|inner| inner.number == number).unwrap();
            let below: Vec<_> =
                all.iter().filter(|leaf| leaf.parent == number && leaf.queue.is_some()).collect();
            assert_eq!(below.len(), if class.is_leaf { 272 } else { 0 });
            let promised: u64 = below.iter().map(|leaf| leaf.rate_bytes_per_s).sum();
            assert!(promised * 2 <= inner.rate_bytes_per_s, "{class:?}");
            assert!(below.iter().all(
                |leaf| leaf.ceil_bytes_per_s == inner.ceil_bytes_per_s && leaf.priority == inner.priority
            ));
        }
        // Each class is behind the one it is below, which is there.
        for (index, class) in all.iter().enumerate() {
            let is_there = all[..index].iter().any(|above| above.number == class.parent);
            assert!(class.parent == 0 || is_there, "{class:?}");
        }
        assert_eq!(
            all.iter().filter(|class| kind_of(class.number).unwrap().0 == 0).count(),
            2,
            "the limit and its fallback"
        );
        assert_eq!(
            plan.groups().map(|group| group.base).collect::<Vec<_>>(),
            [0xc00, 0x1000, 0x1400, FREE_BASE]
        );
    }

    #[test]
    fn numbers_are_those_of_their_class() {
        for (number, kind) in [
            (0x001, Some((0, HtbClassKind::Inner))),
            (0x100, Some((0, HtbClassKind::Held))),
            (0x1ff, Some((0, HtbClassKind::Held))),
            (0x20f, Some((0, HtbClassKind::Passing))),
            (0x210, None),
            (0x0fff, None),
            (0x1001, Some((0x1000, HtbClassKind::Inner))),
            (0xfa0f, Some((0xf800, HtbClassKind::Passing))),
        ] {
            assert_eq!(kind_of(number), kind, "{number:#x}");
        }
        let kinds = (0..LEAVES_EACH).filter_map(|place| kind_of(0xc00 + leaf_number(place)));
        let held = kinds.take_while(|kind| *kind == (0xc00, HtbClassKind::Held)).count();
        assert_eq!(held, usize::from(HELD.count));
        assert_eq!(kind_of(leaf_number(LEAVES_EACH - 1)), Some((0, HtbClassKind::Passing)));
        let used: Vec<_> = (2..=CLASSES_MAX as u16).map(|index| index * STRIDE).collect();
        assert_eq!(free_base(used[..3].iter().copied()), Some(5 * STRIDE));
        assert_eq!(free_base(used.iter().copied()), None);
    }

    #[test]
    fn what_is_promised_must_fit_the_limit_and_what_is_free_does_not_count() {
        let over = vec![class(2, None, 150, 200, true), class(3, None, 60, 200, true)];
        assert!(plan(200, over.clone()).unwrap_err().contains("promised 210mbit together"));
        assert!(plan(210, over).is_ok());
        let below = vec![class(2, None, 10, 200, false), class(3, Some(2), 150, 200, true), Shared::free()];
        assert!(plan(100, below.clone()).unwrap_err().contains("promised 150mbit together"));
        assert!(plan(150, below).is_ok());
    }

    #[test]
    fn an_open_tree_has_no_ceiling_below_its_rate() {
        let plan = plan(200, vec![class(2, None, 100, 120, true)]).unwrap().opened(rate(10_000));
        assert!(plan.classes().all(|class| class.ceil_bytes_per_s == 1_250_000_000));
    }
}
