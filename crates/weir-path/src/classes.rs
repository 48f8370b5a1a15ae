//! The classes that share a limit, read from a file and checked: the settings of a tree of classes.
//!
//! Rule: each class stands behind its parent; packets wait in leaves only, and filters lead only there.
//!
//! Pure. The file is read elsewhere (`weir_run::classes`), which tells each fault with its place.

use weir_core::classify::{Classifier, Target};
use weir_core::rate::Rate;
use weir_core::shaper::backlog::{FullPolicy, QueueRule};

/// The name that stands for no class: past all limits.
pub const FREE: &str = "free";
/// A longest Ethernet frame of the usual MTU, which a burst must let pass.
pub const FRAME_BYTES: u64 = 1514;
/// The time at the rate for which packets may wait, in nanoseconds, where a file gives none.
pub const QUEUE_NS_DEFAULT: u64 = 5_000_000;
/// The queue of a class that marks or drops, in CoDel's targets: a queue no longer than one target would be full before CoDel saw that it
/// stands.
const QUEUE_TARGETS: u64 = 10;

/// The bytes of one turn of borrowing, in proportion to the rate: a millisecond of it, one frame at least and at most 200 kB, as in the
/// kernel.
pub fn quantum_bytes_default(rate: Rate) -> u32 {
    const QUANTUM_BYTES_MAX: u64 = 200_000;
    rate.bytes_in(1_000_000).clamp(FRAME_BYTES, QUANTUM_BYTES_MAX) as u32
}

/// The time at its ceiling for which packets may wait in a leaf, in nanoseconds.
pub fn queue_ns_default(when_full: FullPolicy) -> u64 {
    match when_full {
        FullPolicy::Block => QUEUE_NS_DEFAULT,
        FullPolicy::Ecn(codel) | FullPolicy::Drop(codel) => QUEUE_TARGETS * codel.target_ns,
    }
}

/// The classes of a file, checked.
#[derive(Clone, Debug)]
pub struct Classes {
    /// The kind of tree that they make.
    pub kind: TreeKind,
    /// The classes, each behind its parent. Targets of the classifier are places in this list.
    pub classes: Vec<ClassConfig>,
    /// The filters that give packets their leaves.
    pub classifier: Classifier,
    /// The leaf of packets that no filter matches; if none, they pass the limits.
    pub default: Option<usize>,
    /// Warnings of settings that are kept, but perhaps not as meant.
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
    /// HTB: guarantees and ceilings.
    Htb,
    /// CBQ: shares.
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
    /// The highest rate that it may reach. For CBQ that is the root's, or its own rate if it is bounded: no limit of its own, but the
    /// measure of its queue.
    pub ceil: Rate,
    /// The bytes that may pass at once at its rate.
    pub burst_bytes: u64,
    /// The bytes that may pass at once at its ceiling.
    pub cburst_bytes: u64,
    /// True if it never borrows, for CBQ.
    pub bounded: bool,
    /// The bytes of one turn of borrowing.
    pub quantum_bytes: u32,
    /// The rules of a leaf; none for an inner class.
    pub leaf: Option<LeafRules>,
}

/// The rules for packets that wait in a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeafRules {
    /// The priority; 0 goes first.
    pub priority: u8,
    /// The time at the ceiling for which packets may wait, in nanoseconds.
    pub queue_ns: u64,
    /// The treatment of packets when as many wait.
    pub rule: QueueRule,
}

impl LeafRules {
    /// The rules with this priority and the defaults of a file: a full leaf holds the senders.
    pub fn of_priority(priority: u8) -> LeafRules {
        let rule = QueueRule::default();
        LeafRules { priority, queue_ns: queue_ns_default(rule.when_full), rule }
    }
}
