//! A limit in place: the tree of HTB classes that holds an interface to a rate, and how it changes.
//!
//! ```text
//! root class     rate R  burst B
//!   held leaf    x 256   rate R/2/272  ceil R   first in, first out, 16 MB      packets that have a local socket
//!   passing leaf x 16    rate R/2/272  ceil R   first in, first out, 25 ms of R packets that have none
//! ```
//!
//! A passing leaf has room for two of the longest packets at least, which take longer below 47 Mbit/s (packets of up to 64 kB).
//!
//! Rule: the rates of all leaves together are half of the limit, so the rate promised to leaves is always there; a leaf that keeps below
//! its own goes before all that borrow, which is why a quiet flow does not wait for the others. With the classes of a file ([`Shared`]) the
//! root class has them below it as the file says, and each in which packets wait has such leaves, with its own rate and ceiling in R's
//! place; of the root's own leaves one stays, for packets that no filter has seen. A leaf's own burst is one packet, so that a leaf which
//! becomes busy costs the limit no more than that. No packet in a leaf is longer than its quantum (`quantum.rs`).
//!
//! Limits: the rate that a class leaves to others is shared by their busy flows, one turn each, not by the classes' rates. A turn
//! is of the ceiling.
//!
//! Source: tc-htb(8); kernel `net/sched/sch_htb.c` (`htb_dequeue_tree`, `htb_charge_class`).

pub mod drain;
pub mod filter;
pub mod fragments;
pub mod gate;
pub mod hash;
#[cfg(test)]
mod interpreter;
mod quantum;
pub mod shared;
pub mod stamp;

use shared::{FREE_BASE, Shared};

use crate::rate::{NS_PER_S, Rate};
use crate::units::{size_text, time_text};

pub use quantum::{HEADERS_BYTES, LeafQueue};

/// The least rate that can be limited in place: below it the leaves' own rates, a byte a second at least, would pass it.
pub const BITS_PER_S_MIN: u64 = 8_000;
/// The number of the class that all others are below.
pub const ROOT_CLASS: u16 = 1;
/// The number of the leaf for packets of which the program names no other: while the limit is made, or where somebody removed the filter; and
/// for those that are longer than other leaves take.
/// It is first made beside [`ROOT_CLASS`], so that a new queue takes packets as soon as it has one class, and later below it: a priority of
/// its number, which a container may set, would otherwise be a second limit.
pub const FALLBACK: u16 = 2;
/// Leaves of packets that a local socket sent, and the number of the first.
pub const HELD: Leaves = Leaves { first_class: 0x100, count: 256 };
/// Leaves of packets without a socket, such as forwarded ones, and the number of the first.
pub const PASSING: Leaves = Leaves { first_class: 0x200, count: 16 };
/// The room of a held leaf, in bytes: the default send buffers of more than a hundred flooding sockets.
pub const HELD_BYTES_EACH: u32 = 16 << 20;
/// The room of a passing leaf, as a time at the rate; more where two of the longest packets take longer ([`Group::passing_ns`]).
pub const PASSING_NS: u64 = 25_000_000;
/// The lateness of the kernel's timer now and then where others have the processors too: a virtual machine's are taken away for that long.
pub const TIMER_LATE_NS: u64 = 1_000_000;

/// Returns whether a timer that is late makes a limit lose rate: only the burst makes up for packets that were not sent meanwhile.
///
/// A queue that drops hardly shows it, as its senders never sleep, and run it whenever they send.
pub fn is_short_burst(rate: Rate, burst_bytes: u64) -> bool {
    rate.ns_for(burst_bytes) < TIMER_LATE_NS
}

/// The highest rate, above any interface that there is: a higher one was not meant.
pub const BITS_PER_S_MAX: u64 = 10_000_000_000_000;

/// Checks that the kernel's queue can keep a limit of this rate.
///
/// # Errors
/// One sentence, if it cannot.
pub fn check_rate(rate: Rate) -> Result<(), String> {
    let text = |bits_per_s| Rate::from_bits_per_s(bits_per_s).expect("more than 0");
    match rate.bits_per_s() {
        ..BITS_PER_S_MIN => Err(format!(
            "a limit in place of {rate} is below {}, what the kernel's queue can keep: give a higher rate, or join the interfaces with \
             `weir wire`",
            text(BITS_PER_S_MIN)
        )),
        BITS_PER_S_MIN..=BITS_PER_S_MAX => Ok(()),
        _ => Err(format!(
            "a limit in place of {rate} is above {}, which no interface has: give a lower rate",
            text(BITS_PER_S_MAX)
        )),
    }
}

/// The longest time of a burst at the rate: for the time of a longer one the limit limits nothing.
const LONG_BURST_NS: u64 = NS_PER_S;

/// Returns whether a burst is so long that the limit limits nothing for more than a second.
pub fn is_long_burst(rate: Rate, burst_bytes: u64) -> bool {
    rate.ns_for(burst_bytes) > LONG_BURST_NS
}

/// The longest burst that HTB keeps, in time at the rate: 2^32 of its ticks of 64 ns, in whole seconds.
pub const BURST_NS_MAX: u64 = 274 * NS_PER_S;

/// The reason why HTB cannot keep a burst of so many bytes at a rate, in words; `None` if it can.
pub fn burst_beyond(rate: Rate, burst_bytes: u64) -> Option<String> {
    let most_bytes = rate.bytes_in(BURST_NS_MAX);
    (burst_bytes > most_bytes).then(|| {
        let (most, time) = (size_text(most_bytes), time_text(BURST_NS_MAX));
        format!("the kernel's queue keeps {most} at most, which {rate} takes {time} for")
    })
}

/// Leaves of one kind: consecutive numbers of classes. Their count is a power of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leaves {
    /// The number of the first leaf's class.
    pub first_class: u16,
    /// The number of leaves.
    pub count: u16,
}

/// The parameters of one queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueParameters {
    /// The rate.
    pub rate: Rate,
    /// The bytes that may pass at once after a pause.
    pub burst_bytes: u64,
    /// The longest packet that the queue is given, segmentation offloads included.
    pub packet_bytes_max: u32,
    /// The longest packet that the kernel cannot cut: the MTU and the header of the link.
    pub frame_bytes_max: u32,
}

/// One class, in the terms of HTB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HtbClass {
    /// Its number below the queue's handle.
    pub number: u16,
    /// The number of the class it is below; 0 for the queue itself.
    pub parent: u16,
    /// The rate that it is promised, in bytes a second.
    pub rate_bytes_per_s: u64,
    /// The ceiling, the most it may have, in bytes a second.
    pub ceil_bytes_per_s: u64,
    /// The burst within its own rate, as a time at that rate.
    pub burst_ns: u64,
    /// The burst within its ceiling, as a time at the ceiling.
    pub ceil_burst_ns: u64,
    /// The bytes that it sends in its turn.
    pub quantum_bytes: u32,
    /// The turn in which it borrows, among others: 0 first.
    pub priority: u8,
    /// The queue of packets in it; `None` where it is no leaf.
    pub queue: Option<LeafQueue>,
}

/// The whole tree of one queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HtbTree {
    wanted: QueueParameters,
    shared: Vec<Shared>,
    has_own_leaves: bool,
}

/// The leaves of the limit itself, or of one class of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group {
    /// The base of the numbers of its classes; 0 for the limit's own.
    pub base: u16,
    /// The rate that a leaf is promised, in bytes a second.
    pub leaf_bytes_per_s: u64,
    /// The ceiling of all leaves together.
    pub ceil: Rate,
    /// The bytes that a passing leaf has room for: [`PASSING_NS`] of the ceiling, and two of the longest packets at least, because a packet
    /// that never fits would never arrive.
    pub passing_bytes_each: u32,
    /// The bytes that a leaf sends in its turn.
    pub quantum_bytes: u32,
}

impl Group {
    /// The time that packets without a socket may wait, at the ceiling.
    pub fn passing_ns(&self) -> u64 {
        self.ceil.ns_for(u64::from(self.passing_bytes_each))
    }
}

impl HtbTree {
    /// The tree of a limit without classes.
    ///
    /// # Errors
    /// One sentence, if no such tree keeps the limit.
    pub fn new(wanted: QueueParameters) -> Result<HtbTree, String> {
        HtbTree::with_classes(wanted, Vec::new(), true)
    }

    /// The tree with classes below it, each behind its parent, and with or without leaves of its own.
    ///
    /// # Errors
    /// One sentence, if no such tree keeps the limit.
    pub fn with_classes(
        wanted: QueueParameters,
        shared: Vec<Shared>,
        has_own_leaves: bool,
    ) -> Result<HtbTree, String> {
        check_rate(wanted.rate)?;
        shared::check(wanted.rate, &shared)?;
        Ok(HtbTree { wanted, has_own_leaves: has_own_leaves || shared.is_empty(), shared })
    }

    /// This tree with another rate as its limit, which no class's ceiling is below.
    pub fn opened(&self, rate: Rate) -> HtbTree {
        let mut plan = self.clone();
        plan.wanted.rate = rate;
        plan.shared.iter_mut().for_each(|class| class.ceil = class.ceil.max(rate));
        plan
    }

    /// This tree with `rate` as its limit, if that is lower, and its classes lowered in proportion.
    pub fn slowed(&self, rate: Rate) -> HtbTree {
        let limit = self.wanted.rate;
        let rate = rate.min(limit);
        let part = |of: Rate| {
            let bits =
                u128::from(of.bits_per_s()) * u128::from(rate.bits_per_s()) / u128::from(limit.bits_per_s());
            Rate::from_bits_per_s(bits as u64).unwrap_or(of.min(rate))
        };
        let mut plan = self.clone();
        plan.wanted.rate = rate;
        plan.shared
            .iter_mut()
            .for_each(|class| (class.rate, class.ceil) = (part(class.rate), part(class.ceil)));
        plan
    }

    /// The leaves: the limit's own, and those of each class that has some.
    pub fn groups(&self) -> impl Iterator<Item = Group> + '_ {
        let own = self.has_own_leaves.then(|| self.own());
        own.into_iter()
            .chain(self.shared.iter().filter(|class| class.is_leaf).map(|class| self.group_of(class)))
    }

    /// The classes, each after the one it is below.
    pub fn classes(&self) -> impl Iterator<Item = HtbClass> + '_ {
        let of_limit = self.has_own_leaves.then(|| self.leaves(self.root(), self.own(), HELD, PASSING.count));
        let of_classes = self.shared.iter().flat_map(move |class| {
            let inner = self.inner(class);
            let passing = if class.is_leaf { PASSING.count } else { 0 };
            let held = Leaves { count: if class.is_leaf { HELD.count } else { 0 }, ..HELD };
            std::iter::once(inner).chain(self.leaves(inner, self.group_of(class), held, passing))
        });
        [self.root(), self.fallback()].into_iter().chain(of_limit.into_iter().flatten()).chain(of_classes)
    }

    /// The longest packet that every leaf takes without cutting it; `u32::MAX` where none cuts any.
    pub fn uncut_bytes_max(&self) -> u32 {
        let leaves = self.groups().map(|group| self.wanted.leaf_queue(0, group.quantum_bytes));
        leaves.map(|queue| queue.packet_bytes_max).min().unwrap_or(u32::MAX)
    }

    /// The time that packets without a socket may wait at most, whatever class they are of.
    pub fn passing_ns_max(&self) -> u64 {
        self.groups().map(|group| group.passing_ns()).max().unwrap_or(0)
    }

    /// The parameters of the queue.
    pub fn wanted(&self) -> QueueParameters {
        self.wanted
    }

    fn own(&self) -> Group {
        let of_leaves = if self.shared.is_empty() { self.wanted.rate.bits_per_s() } else { 0 };
        self.group(0, of_leaves, self.wanted.rate)
    }

    fn group_of(&self, class: &Shared) -> Group {
        self.group(class.base, class.rate.bits_per_s(), class.ceil)
    }

    fn group(&self, base: u16, bits_per_s: u64, ceil: Rate) -> Group {
        let passing_bytes = ceil.bytes_in(PASSING_NS).max(2 * u64::from(self.wanted.gso_bytes_max()));
        Group {
            base,
            leaf_bytes_per_s: Self::leaf_bytes_per_s(bits_per_s),
            ceil,
            passing_bytes_each: u32::try_from(passing_bytes).unwrap_or(u32::MAX),
            quantum_bytes: self.wanted.quantum_bytes(ceil),
        }
    }

    fn root(&self) -> HtbClass {
        let burst_ns = self.wanted.rate.ns_for(self.wanted.burst_bytes);
        let bytes_per_s = self.wanted.rate.bits_per_s() / 8;
        HtbClass {
            number: ROOT_CLASS,
            parent: 0,
            rate_bytes_per_s: bytes_per_s,
            ceil_bytes_per_s: bytes_per_s,
            burst_ns,
            ceil_burst_ns: burst_ns,
            quantum_bytes: self.wanted.gso_bytes_max(),
            priority: 0,
            queue: None,
        }
    }

    /// The fallback of a limit that is being made, beside its root and with the root's rate.
    pub fn first_class(&self) -> HtbClass {
        let queue = self.wanted.leaf_queue(HELD_BYTES_EACH, self.wanted.gso_bytes_max());
        HtbClass { number: FALLBACK, queue: Some(queue), ..self.root() }
    }

    /// The fallback of a whole limit.
    pub fn fallback(&self) -> HtbClass {
        HtbClass {
            parent: ROOT_CLASS,
            rate_bytes_per_s: Self::leaf_bytes_per_s(self.wanted.rate.bits_per_s()),
            burst_ns: 1,
            ..self.first_class()
        }
    }

    /// The rate that each leaf of a class with this rate is promised.
    fn leaf_bytes_per_s(bits_per_s: u64) -> u64 {
        (bits_per_s / 8 / 2 / u64::from(HELD.count + PASSING.count)).max(1)
    }

    fn inner(&self, class: &Shared) -> HtbClass {
        let parent = match class.parent {
            _ if class.base == FREE_BASE => 0,
            None => ROOT_CLASS,
            Some(base) => base + ROOT_CLASS,
        };
        HtbClass {
            number: class.base + ROOT_CLASS,
            parent,
            rate_bytes_per_s: class.rate.bits_per_s().div_ceil(8),
            ceil_bytes_per_s: class.ceil.bits_per_s().div_ceil(8),
            burst_ns: class.rate.ns_for(class.burst_bytes),
            ceil_burst_ns: class.ceil.ns_for(class.cburst_bytes),
            priority: class.priority,
            ..self.root()
        }
    }

    fn leaves(
        &self,
        parent: HtbClass,
        group: Group,
        held: Leaves,
        passing_count: u16,
    ) -> impl Iterator<Item = HtbClass> + use<> {
        let wanted = self.wanted;
        let leaf = move |number: u16, queue_bytes: u32| HtbClass {
            number: group.base + number,
            parent: parent.number,
            rate_bytes_per_s: group.leaf_bytes_per_s,
            burst_ns: 1,
            quantum_bytes: group.quantum_bytes,
            queue: Some(wanted.leaf_queue(queue_bytes, group.quantum_bytes)),
            ..parent
        };
        let held = held.first_class..held.first_class + held.count;
        let passing = PASSING.first_class..PASSING.first_class + passing_count;
        let held = held.map(move |number| leaf(number, HELD_BYTES_EACH));
        held.chain(passing.map(move |number| leaf(number, group.passing_bytes_each)))
    }
}

/// The rate, in bytes for each 2^30 ns, at which the program that gives flows their leaves takes a leaf to be emptied at least.
///
/// It is half of the rate that the leaf is promised: HTB may serve the leaf a timer's lateness after its time, each time.
pub fn leaf_clock(group: &Group) -> u64 {
    const BYTES_MAX: u64 = 1 << 28;
    let bytes = u128::from(group.leaf_bytes_per_s) * (1 << 30) / u128::from(NS_PER_S) / 2;
    (bytes as u64).clamp(1, BYTES_MAX)
}

/// The rates by which a limit is opened before its queue is removed: each twice the one before, until no packet can wait any more.
pub fn opening(rate: Rate) -> impl Iterator<Item = Rate> {
    /// The last rate, above what any interface passes.
    const OPEN_BITS_PER_S: u64 = 1_000_000_000_000;
    let double = |rate: &Rate| {
        let next = rate.bits_per_s().saturating_mul(2).min(OPEN_BITS_PER_S);
        Rate::from_bits_per_s(next).filter(|next| *next > *rate)
    };
    std::iter::successors(double(&rate), double)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(bits_per_s: u64) -> HtbTree {
        let rate = Rate::from_bits_per_s(bits_per_s).unwrap();
        HtbTree::new(QueueParameters::for_tests(rate, 50_000)).unwrap()
    }

    fn own(bits_per_s: u64) -> Group {
        plan(bits_per_s).groups().next().unwrap()
    }

    #[test]
    fn leaves_are_promised_less_than_the_limit() {
        for bits_per_s in [BITS_PER_S_MIN, 100_000, 1_000_000, 200_000_000, 100_000_000_000] {
            let plan = plan(bits_per_s);
            let root = plan.classes().next().unwrap();
            let leaves: Vec<_> = plan.classes().filter(|class| class.parent == ROOT_CLASS).collect();
            assert_eq!(leaves.len(), 273);
            let promised: u64 = leaves.iter().map(|leaf| leaf.rate_bytes_per_s).sum();
            assert!(promised <= root.rate_bytes_per_s, "{bits_per_s}: {promised}");
            assert!(leaves.iter().all(|leaf| leaf.rate_bytes_per_s > 0));
        }
    }

    #[test]
    fn the_first_class_has_the_limit_s_rate_and_is_a_leaf_in_the_end() {
        let plan = plan(20_000_000);
        let (root, first) = (plan.classes().next().unwrap(), plan.first_class());
        assert_eq!((first.number, first.parent), (FALLBACK, 0));
        assert_eq!((first.rate_bytes_per_s, first.burst_ns), (root.rate_bytes_per_s, root.burst_ns));
        let fallback = plan.classes().find(|class| class.number == FALLBACK).unwrap();
        let leaf = plan.classes().find(|class| class.number == HELD.first_class).unwrap();
        let queue = LeafQueue { bytes: HELD_BYTES_EACH, packet_bytes_max: u32::MAX };
        let whole = HtbClass { number: FALLBACK, quantum_bytes: 73_728, queue: Some(queue), ..leaf };
        assert_eq!(fallback, whole, "it cuts no packet and drops none for its length");
    }

    #[test]
    fn a_slowed_tree_promises_less_than_its_limit() {
        let slow = Rate::from_bits_per_s(20_000_000).unwrap();
        let tree = plan(900_000_000).slowed(slow);
        assert_eq!(tree.wanted(), QueueParameters { rate: slow, ..plan(900_000_000).wanted() });
        let classes: Vec<_> = tree.classes().collect();
        assert!(classes.iter().skip(1).map(|class| class.rate_bytes_per_s).sum::<u64>() <= 2_500_000);
        assert!(classes.iter().all(|class| class.ceil_bytes_per_s == 2_500_000));
        assert_eq!(plan(8_000_000).slowed(slow), plan(8_000_000), "it is slower than that");
    }

    #[test]
    fn classes_have_numbers_of_their_own_and_a_quantum_is_no_shorter_than_any_packet() {
        for bits_per_s in [1_000_000, 50_000_000, 200_000_000] {
            let plan = plan(bits_per_s);
            let mut numbers: Vec<_> = plan.classes().map(|class| class.number).collect();
            numbers.sort_unstable();
            numbers.dedup();
            assert_eq!(numbers.len(), 274);
            for class in plan.classes() {
                let longest = class.queue.map_or(u32::MAX, |queue| queue.packet_bytes_max).min(73_728);
                assert!(class.quantum_bytes >= longest, "{class:?}");
            }
        }
    }

    #[test]
    fn what_passes_waits_a_time_of_the_rate_and_fits() {
        assert_eq!(own(800_000_000).passing_bytes_each, 2_500_000);
        assert_eq!(own(1_000_000).passing_bytes_each, 2 * 73_728);
        assert_eq!(plan(800_000_000).passing_ns_max(), 25_000_000);
        assert_eq!(plan(2_000_000).passing_ns_max(), 589_824_000, "of two of the longest packets");
    }

    #[test]
    fn a_rate_that_the_queue_cannot_keep_is_refused() {
        let rate = Rate::from_bits_per_s(BITS_PER_S_MIN - 1).unwrap();
        let wanted = QueueParameters::for_tests(rate, 20_480);
        assert!(HtbTree::new(wanted).unwrap_err().contains("8kbit"));
    }

    #[test]
    fn a_rate_that_no_interface_has_is_refused_and_a_burst_is_long_above_a_second() {
        let wanted =
            |bits_per_s| QueueParameters::for_tests(Rate::from_bits_per_s(bits_per_s).unwrap(), 20_480);
        assert!(HtbTree::new(wanted(BITS_PER_S_MAX)).is_ok());
        assert!(HtbTree::new(wanted(BITS_PER_S_MAX + 1)).unwrap_err().contains("above 10tbit"));
        let rate = Rate::from_bits_per_s(8_000_000).unwrap();
        assert!(is_long_burst(rate, 1_000_001) && !is_long_burst(rate, 1_000_000));
    }

    #[test]
    fn a_burst_is_short_below_a_millisecond_of_the_rate() {
        let is_short = |bits_per_s, bytes| is_short_burst(Rate::from_bits_per_s(bits_per_s).unwrap(), bytes);
        assert!(is_short(200_000_000, 20_480) && is_short(1_000_000_000, 124_999));
        assert!(!is_short(100_000_000, 20_480) && !is_short(1_000_000_000, 125_000));
    }

    #[test]
    fn opening_doubles_up_to_an_end() {
        let steps: Vec<_> = opening(Rate::from_bits_per_s(200_000_000).unwrap()).collect();
        assert_eq!(steps[0].bits_per_s(), 400_000_000);
        assert_eq!(steps.last().unwrap().bits_per_s(), 1_000_000_000_000);
        assert!(steps.len() < 20);
        assert_eq!(opening(Rate::from_bits_per_s(2_000_000_000_000).unwrap()).count(), 0);
    }

    #[test]
    fn the_leaf_clock_is_half_of_what_a_leaf_is_promised() {
        // 200 Mbit/s: 45,955 bytes a second for each leaf.
        assert_eq!(leaf_clock(&own(200_000_000)), 24_671);
        assert_eq!(leaf_clock(&own(BITS_PER_S_MIN)), 1);
    }
}
