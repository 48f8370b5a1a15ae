//! The classes that share a limit, read and checked: what a file comes to, and what a tree of classes is made of.
//!
//! Rule: each class stands behind its parent; packets wait in leaves only, and filters lead only there.
//!
//! Pure. The file is read elsewhere (`weir_run::classes`), which says with its place what is wrong.

use weir_core::classify::{Classifier, Target};
use weir_core::rate::Rate;
use weir_core::shaper::backlog::{FullPolicy, QueueRule};

/// The name that stands for no class: past all limits.
pub const FREE: &str = "free";
/// A longest Ethernet frame of the usual MTU, which a burst must let pass.
pub const FRAME_BYTES: u64 = 1514;
/// How much may wait, as a time at the rate, where nothing is asked for.
pub const QUEUE_NS_DEFAULT: u64 = 5_000_000;
/// The queue of a class that marks or drops, in CoDel's targets: what stood no longer than one would be full before CoDel saw a
/// queue that stands.
const QUEUE_TARGETS: u64 = 10;

/// One turn of borrowing in proportion to the rate: a millisecond of it, one frame at least and at most 200 kB, as in the kernel.
pub fn quantum_bytes_default(rate: Rate) -> u32 {
    const QUANTUM_BYTES_MAX: u64 = 200_000;
    rate.bytes_in(1_000_000).clamp(FRAME_BYTES, QUANTUM_BYTES_MAX) as u32
}

/// How much may wait in a leaf, as a time at its ceiling.
pub fn queue_ns_default(when_full: FullPolicy) -> u64 {
    match when_full {
        FullPolicy::Block => QUEUE_NS_DEFAULT,
        FullPolicy::Ecn(codel) | FullPolicy::Drop(codel) => QUEUE_TARGETS * codel.target_ns,
    }
}

/// What a file says, checked.
#[derive(Clone, Debug)]
pub struct Classes {
    /// Which kind of tree they make.
    pub kind: TreeKind,
    /// The classes, each behind its parent. Targets of the classifier are places in this list.
    pub classes: Vec<ClassConfig>,
    /// Which packet belongs to which leaf.
    pub classifier: Classifier,
    /// The leaf of what no filter matches; past the limits if none.
    pub default: Option<usize>,
    /// What is kept, but perhaps not as meant.
    pub warnings: Vec<String>,
}

impl Classes {
    /// No classes: everything passes free of them.
    pub fn none() -> Classes {
        let classifier = Classifier::new(Vec::new(), Target::Free).expect("no rules are not too many");
        let (classes, warnings) = (Vec::new(), Vec::new());
        Classes { kind: TreeKind::Htb, classes, classifier, default: None, warnings }
    }
}

/// The kinds of trees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TreeKind {
    /// Guarantees and ceilings.
    Htb,
    /// Shares.
    Cbq,
}

/// One class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClassConfig {
    /// Its name, which no other has.
    pub name: String,
    /// The place of its parent in the list.
    pub parent: Option<usize>,
    /// Its guarantee or share.
    pub rate: Rate,
    /// The most it may reach. For CBQ that of the root, or its own rate if it is bounded: no limit of its own, but the
    /// measure of its queue.
    pub ceil: Rate,
    /// What may pass at once of the rate.
    pub burst_bytes: u64,
    /// What may pass at once of the ceiling.
    pub cburst_bytes: u64,
    /// Whether it never borrows, for CBQ.
    pub bounded: bool,
    /// One turn of borrowing.
    pub quantum_bytes: u32,
    /// What makes it a leaf; none for an inner class.
    pub leaf: Option<LeafRules>,
}

/// What holds for packets that wait in a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeafRules {
    /// 0 goes first.
    pub priority: u8,
    /// How much may wait, as a time at the ceiling.
    pub queue_ns: u64,
    /// What happens when that much does.
    pub rule: QueueRule,
}

impl LeafRules {
    /// With this priority, and all else as where nothing is asked for: whoever sends is held.
    pub fn of_priority(priority: u8) -> LeafRules {
        let rule = QueueRule::default();
        LeafRules { priority, queue_ns: queue_ns_default(rule.when_full), rule }
    }
}
