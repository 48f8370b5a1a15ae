//! The rings against those worked out from scratch after every step, with meters set at random.

use proptest::prelude::*;

use super::*;
use crate::account::Account;
use crate::shaper::test_packet::TestPacket;

/// A meter whose mode is set by the test.
#[derive(Debug)]
struct Fixed {
    mode: ClassMode,
    charged_bytes: u64,
}

impl Meter for Fixed {
    fn mode(&self, now_ns: u64) -> (ClassMode, u64) {
        (self.mode, now_ns + 1_000_000)
    }
    fn charge(&mut self, len_bytes: u32, _own: bool, _now_ns: u64) -> bool {
        self.charged_bytes += u64::from(len_bytes);
        true
    }
}

fn meter(mode: ClassMode) -> Fixed {
    Fixed { mode, charged_bytes: 0 }
}

fn leaf(priority: u8) -> LeafConfig {
    LeafConfig {
        priority,
        flows: 2,
        flow_quantum_bytes: 1514,
        limit_bytes: u64::MAX,
        rule: QueueRule::default(),
    }
}

fn tree() -> Tree<TestPacket, Fixed> {
    Tree::new(TreeSize { classes_max: 20, packets_max: 100, poll_budget_bytes: 0 }, 0)
}

/// Two inner classes under a root, the second with an inner class of its own, and leaves of two priorities:
///
/// ```text
/// root 0 -+- a 1 -+- leaf 4 (0), leaf 5 (1)
///         +- b 2 -+- c 3 --- leaf 6 (0), leaf 7 (1)
///         |       +- leaf 8 (0)
///         +- leaf 9 (1)
/// ```
fn forest() -> Tree<TestPacket, Fixed> {
    let mut tree = tree();
    let mut add = |parent, leaf| tree.add(parent, meter(ClassMode::CanSend), 1514, leaf, 0).unwrap();
    assert_eq!([add(None, None), add(Some(0), None), add(Some(0), None), add(Some(2), None)], [0, 1, 2, 3]);
    for (parent, priority) in [(1, 0), (1, 1), (3, 0), (3, 1), (2, 0), (0, 1)] {
        add(Some(parent), Some(leaf(priority)));
    }
    tree
}

/// The classes of a ring, sorted; its links are checked on the way.
fn ring<M>(tree: &Tree<TestPacket, M>, ring: Ring, turn: u32, priority: usize) -> Vec<u32> {
    let mut classes = Vec::new();
    let mut class = turn;
    while class != NONE {
        classes.push(class);
        let link = |class: u32| tree.nodes[class as usize].as_ref().unwrap().links[ring as usize][priority];
        let next = link(class).next;
        assert_eq!(link(next).previous, class);
        class = if next == turn { NONE } else { next };
    }
    classes.sort_unstable();
    classes
}

/// Checks every ring, mask, count and event.
pub(in crate::shaper) fn check<M>(tree: &Tree<TestPacket, M>) {
    let all: Vec<(u32, &Node<M>)> =
        (0..).zip(&tree.nodes).filter_map(|(class, node)| Some((class, node.as_ref()?))).collect();
    let that = |holds: &dyn Fn(&Node<M>) -> bool| -> Vec<u32> {
        all.iter().filter(|(_, node)| holds(node)).map(|(class, _)| *class).collect()
    };
    let mut held = Count::default();
    for &(class, this) in &all {
        let (mut waiting, mut active) = (0, 0);
        for priority in 0..PRIORITIES {
            let bit = 1 << priority;
            let feed = ring(tree, Ring::Feed, this.feeds[priority], priority);
            let members = that(&|child| {
                child.parent == class && child.mode != ClassMode::CantSend && child.waiting & bit != 0
            });
            assert_eq!(feed, members, "feed of class {class} at priority {priority}");
            let borrowers = that(&|child| {
                child.parent == class && child.mode == ClassMode::MayBorrow && child.active & bit != 0
            });
            assert_eq!(usize::from(this.borrowers[priority]), borrowers.len(), "borrowers of class {class}");
            waiting |= u8::from(!feed.is_empty()) << priority;
            active |= u8::from(!borrowers.is_empty()) << priority;
        }
        if let Some(leaf) = &tree.leaves[class as usize] {
            waiting = u8::from(leaf.held().packets > 0) << this.priority;
            active = waiting;
            held.merge(leaf.held());
            assert!(leaf.account().balances(leaf.held()), "books of class {class}");
        }
        assert_eq!((this.waiting, this.active), (waiting, active), "masks of class {class}");
        assert!(
            this.mode == ClassMode::CanSend || this.event.is_some(),
            "class {class} would never be looked at again"
        );
        assert!(this.deficits.iter().all(|deficit| *deficit <= this.quantum_bytes));
    }
    for (level, row) in tree.rows.iter().enumerate() {
        for (priority, &turn) in row.iter().enumerate() {
            let classes = ring(tree, Ring::Row, turn, priority);
            let members = that(&|class| {
                usize::from(class.level) == level
                    && class.mode == ClassMode::CanSend
                    && class.active & 1 << priority != 0
            });
            assert_eq!(classes, members, "row of level {level} at priority {priority}");
            assert_eq!(tree.row_priorities[level] >> priority & 1 != 0, !classes.is_empty());
        }
        assert_eq!(tree.row_levels >> level & 1 != 0, tree.row_priorities[level] != 0);
    }
    assert_eq!(tree.held, held);
}

/// The leaves that may send by the guideline: the lowest level with a lender, then the lowest priority, among leaves reached from it by
/// borrowing.
fn eligible(tree: &Tree<TestPacket, Fixed>) -> Vec<usize> {
    let node = |class: u32| tree.nodes[class as usize].as_ref().unwrap();
    let lender = |leaf: usize| {
        let mut class = leaf as u32;
        loop {
            match (node(class).mode, node(class).parent) {
                (ClassMode::CanSend, _) => return Some(node(class).level),
                (ClassMode::MayBorrow, parent) if parent != NONE => class = parent,
                _ => return None,
            }
        }
    };
    let waiting: Vec<_> = tree
        .classes()
        .filter(|&class| tree.leaf(class).is_some_and(|leaf| leaf.held().packets > 0))
        .filter_map(|class| Some((lender(class)?, node(class as u32).priority, class)))
        .collect();
    let best = waiting.iter().map(|&(level, priority, _)| (level, priority)).min();
    waiting.iter().filter(|w| Some((w.0, w.1)) == best).map(|w| w.2).collect()
}

#[derive(Clone, Copy, Debug)]
enum Operation {
    Enqueue(usize),
    Dequeue,
    SetMode(usize, ClassMode),
    SetPriority(usize, u8),
    Drop(usize),
    Wait,
}

fn operation() -> impl Strategy<Value = Operation> {
    let mode = prop::sample::select(vec![ClassMode::CanSend, ClassMode::MayBorrow, ClassMode::CantSend]);
    prop_oneof![
        4 => (4usize..10).prop_map(Operation::Enqueue),
        4 => Just(Operation::Dequeue),
        3 => (0usize..10, mode).prop_map(|(class, mode)| Operation::SetMode(class, mode)),
        1 => (4usize..10, 0u8..8).prop_map(|(class, priority)| Operation::SetPriority(class, priority)),
        1 => (4usize..10).prop_map(Operation::Drop),
        1 => Just(Operation::Wait),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]
    #[test]
    fn rings_follow_modes_and_the_guideline_decides(operations in prop::collection::vec(operation(), 1..250)) {
        let (mut tree, mut now_ns) = (forest(), 0);
        for (number, &operation) in operations.iter().enumerate() {
            match operation {
                Operation::Enqueue(class) => {
                    let refused = tree.enqueue(class, number % 2, TestPacket::new(1000, number, 0).in_class(class));
                    prop_assert!(refused.is_ok() || tree.held().packets == 100);
                }
                Operation::Dequeue => {
                    let (eligible, before) = (eligible(&tree), tree.held());
                    match tree.dequeue(now_ns) {
                        Dequeue::Packet(_, packet) => {
                            prop_assert!(eligible.contains(&packet.class), "{eligible:?}");
                            let root = tree.meter(0).unwrap();
                            prop_assert!(root.charged_bytes >= 1000, "ancestors are charged");
                        }
                        outcome => {
                            prop_assert!(eligible.is_empty(), "{outcome:?} for {eligible:?}");
                            prop_assert_eq!(outcome == Dequeue::Empty, before.packets == 0);
                        }
                    }
                }
                Operation::SetMode(class, mode) => {
                    tree.change(class, 1514, now_ns, |meter| meter.mode = mode).unwrap();
                }
                Operation::SetPriority(class, priority) => tree.change_leaf(class, leaf(priority)).unwrap(),
                Operation::Drop(class) => {
                    let held = tree.leaf(class).unwrap().held().packets > 0;
                    prop_assert_eq!(tree.drop_next(class, DropReason::PortGone).is_some(), held);
                }
                Operation::Wait => now_ns += 700_000,
            }
            check(&tree);
        }
    }
}

#[test]
fn turns_follow_quanta_at_every_level() {
    let mut tree = tree();
    let mut add =
        |parent, mode, quantum_bytes, leaf| tree.add(parent, meter(mode), quantum_bytes, leaf, 0).unwrap();
    let root = add(None, ClassMode::CanSend, 1514, None);
    let (a, b) = (
        add(Some(root), ClassMode::MayBorrow, 3000, None),
        add(Some(root), ClassMode::MayBorrow, 1000, None),
    );
    let leaves = [(a, 2000), (a, 1000), (b, 5000), (b, 5000)]
        .map(|(parent, quantum_bytes)| add(Some(parent), ClassMode::MayBorrow, quantum_bytes, Some(leaf(0))));
    let mut sent = [0u32; 4];
    for number in 0..6000 {
        for &class in &leaves {
            while tree.leaf(class).unwrap().held().packets < 2 {
                tree.enqueue(class, 0, TestPacket::new(700, number, 0).in_class(class)).unwrap();
            }
        }
        match tree.dequeue(0) {
            Dequeue::Packet(_, packet) => {
                sent[leaves.iter().position(|&class| class == packet.class).unwrap()] += 1;
            }
            other => panic!("{other:?}"),
        }
    }
    for (sent, expected) in sent.into_iter().zip([3000, 1500, 750, 750]) {
        assert!(sent.abs_diff(expected) <= 10, "{sent} for {expected}");
    }
}

#[test]
fn what_cannot_be_added_or_removed_is_refused() {
    let mut tree = tree();
    let mut add =
        |parent, leaf: Option<LeafConfig>| tree.add(parent, meter(ClassMode::CanSend), 1514, leaf, 0);
    let root = add(None, None).unwrap();
    assert_eq!(add(Some(9), None), Err(TreeError::NoSuchClass));
    assert_eq!(add(Some(root), Some(leaf(8))), Err(TreeError::Priority));
    let child = add(Some(root), Some(leaf(0))).unwrap();
    assert_eq!(add(Some(child), None), Err(TreeError::ParentIsLeaf));
    assert_eq!(tree.add(None, meter(ClassMode::CanSend), 0, None, 0), Err(TreeError::Quantum));
    assert_eq!(tree.remove(root).unwrap_err(), TreeError::HasChildren);
    tree.enqueue(child, 0, TestPacket::new(60, 0, 0)).unwrap();
    assert_eq!(tree.remove(child).unwrap_err(), TreeError::NotEmpty);
    assert!(matches!(tree.dequeue(0), Dequeue::Packet(0, _)));
    let removed = tree.remove(child).unwrap().expect("a leaf");
    assert_eq!(removed.account().delivered, Count { packets: 1, bytes: 60 });
    assert_eq!(tree.remove(child).unwrap_err(), TreeError::NoSuchClass);
    assert!(tree.remove(root).unwrap().is_none(), "an inner class");
    check(&tree);

    let mut deep =
        Tree::<TestPacket, Fixed>::new(TreeSize { classes_max: 70, packets_max: 1, poll_budget_bytes: 0 }, 0);
    let mut parent = None;
    let error = loop {
        match deep.add(parent, meter(ClassMode::MayBorrow), 1514, None, 0) {
            Ok(class) => parent = Some(class),
            Err(error) => break error,
        }
    };
    assert_eq!(error, TreeError::TooDeep);
    assert_eq!(deep.classes().count(), DEPTH_MAX + 1);
    deep.add(parent, meter(ClassMode::MayBorrow), 1514, Some(leaf(0)), 0).expect("a leaf below the deepest");
    let full = (0..70).find_map(|_| deep.add(None, meter(ClassMode::CanSend), 1514, None, 0).err());
    assert_eq!(full, Some(TreeError::TooManyClasses));
}

#[test]
fn the_link_limits_what_classes_are_allowed() {
    let mut tree = forest();
    tree.set_link(Rate::from_bits_per_s(8_000_000).map(|rate| (rate, 3000)), 1000, 0);
    let mut now_ns = 0;
    for number in 0..50 {
        tree.enqueue(4 + number % 6, 0, TestPacket::new(1000, number, 0)).unwrap();
    }
    let mut sent = 0;
    loop {
        match tree.dequeue(now_ns) {
            Dequeue::Packet(..) => sent += 1,
            Dequeue::NotBefore(ready_ns) => now_ns = ready_ns,
            _ => break,
        }
        assert!(sent * 1000 <= 3000 + now_ns / 1000, "{sent} packets by {now_ns} ns at 1 byte each us");
    }
    assert_eq!((sent, now_ns), (50, 47_000_000));
}

#[test]
fn packets_that_move_keep_their_order_and_are_on_one_classs_books() {
    let mut tree = forest();
    assert!(tree.classes().count() < 20, "there was room for 20");
    tree.make_room(25);
    let mut added =
        (0..25).map(|_| tree.add(None, meter(ClassMode::CanSend), 1514, Some(leaf(0)), 0).unwrap());
    let other = added.by_ref().last().unwrap();
    for number in 0..10 {
        tree.enqueue(4, 0, TestPacket::new(100, number, 0)).unwrap();
    }
    let moved: Vec<_> = std::iter::from_fn(|| tree.move_next(4)).collect();
    check(&tree);
    assert_eq!((moved.len(), tree.held()), (10, Count::default()));
    assert_eq!(tree.leaf(4).unwrap().account(), &Account::default());
    for (flow, packet) in moved {
        tree.enqueue(other, flow, packet.in_class(other)).unwrap();
    }
    let leaf = tree.leaf(other).unwrap();
    assert!(leaf.account().balances(leaf.held()));
    let mut number = 0;
    while let Dequeue::Packet(_, packet) = tree.dequeue(0) {
        assert_eq!((packet.number, packet.class), (number, other));
        number += 1;
    }
    assert_eq!(number, 10);
    assert_eq!(tree.move_next(99), None);
}

#[test]
fn a_change_made_with_an_older_clock_is_not_missed() {
    let mut tree = tree();
    let class = tree.add(None, meter(ClassMode::CanSend), 1514, Some(leaf(0)), 0).unwrap();
    tree.enqueue(class, 0, TestPacket::new(60, 0, 0)).unwrap();
    tree.change(class, 1514, 0, |meter| meter.mode = ClassMode::CantSend).unwrap();
    let now_ns = 5_000_000;
    assert!(matches!(tree.dequeue(now_ns), Dequeue::NotBefore(ready_ns) if ready_ns > now_ns));
    // The event of the class is at 1 ms, which has passed.
    tree.change(class, 1514, 0, |meter| meter.mode = ClassMode::MayBorrow).unwrap();
    assert!(matches!(tree.dequeue(now_ns), Dequeue::NotBefore(ready_ns) if ready_ns > now_ns));
}
