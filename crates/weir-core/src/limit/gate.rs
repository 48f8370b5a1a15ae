//! The node of a limit's tree that holds the waiting packets: the one whose tokens are used up.
//!
//! ```text
//! gate(node) = node           if its ceiling's tokens are used up
//!              none           else, if its own are not: it is being served
//!              gate(parent)   else: it borrows there, if there is a parent
//! ```
//!
//! Rule: as in HTB, the nearest node upward that must not send holds. Nodes are named by their bases; the limit's is 0. Its rate is its
//! ceiling.
//!
//! Limits: HTB writes a node's tokens down when a packet of the node leaves. So a ceiling that was passed by a long packet, of a class that
//! has since waited for the limit, is still reported to hold until the class sends again.
//!
//! Source: kernel `net/sched/sch_htb.c` (`htb_class_mode`, `htb_charge_class`).

/// The tokens of a node, as times at its rate and at its ceiling.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tokens {
    /// The tokens of its own rate; below zero it borrows.
    pub own_ns: i64,
    /// The tokens of its ceiling; below zero it must not send.
    pub ceil_ns: i64,
}

/// The limit, or a class of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Node {
    /// The base of its numbers; 0 for the limit.
    pub base: u16,
    /// The base of the node that it borrows from.
    pub parent: Option<u16>,
    /// The tokens it has left.
    pub tokens: Tokens,
    /// The bytes that wait in its own leaves.
    pub waiting_bytes: u64,
}

/// The node that holds the packets waiting at `base`; `None` if none does.
pub fn gate(nodes: &[Node], base: u16) -> Option<u16> {
    // The walk is no longer than the tree is deep, whatever the parents are.
    let mut at = find(nodes, base);
    for _ in nodes {
        let node = at?;
        if node.tokens.ceil_ns < 0 {
            return Some(node.base);
        }
        if node.tokens.own_ns >= 0 {
            return None;
        }
        at = find(nodes, node.parent?);
    }
    None
}

/// The node that holds most of the bytes waiting at `base` and below, of several the one that is named first; `None` if nothing waits
/// there, or all of it is being served.
pub fn gate_below(nodes: &[Node], base: u16) -> Option<u16> {
    let mut held: Vec<(u16, u64)> = Vec::new();
    for node in nodes.iter().filter(|node| node.waiting_bytes > 0 && is_below(nodes, node.base, base)) {
        let Some(gate) = gate(nodes, node.base) else { continue };
        match held.iter_mut().find(|(of, _)| *of == gate) {
            Some((_, bytes)) => *bytes += node.waiting_bytes,
            None => held.push((gate, node.waiting_bytes)),
        }
    }
    let most = held.iter().map(|(_, bytes)| *bytes).max()?;
    held.into_iter().find(|(_, bytes)| *bytes == most).map(|(gate, _)| gate)
}

fn find(nodes: &[Node], base: u16) -> Option<&Node> {
    nodes.iter().find(|node| node.base == base)
}

fn is_below(nodes: &[Node], base: u16, above: u16) -> bool {
    let mut at = Some(base);
    for _ in nodes {
        if at == Some(above) {
            return true;
        }
        at = at.and_then(|base| find(nodes, base)).and_then(|node| node.parent);
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    const USED_UP: Tokens = Tokens { own_ns: -1, ceil_ns: -1 };
    const BORROWS: Tokens = Tokens { own_ns: -1, ceil_ns: 1 };
    const FULL: Tokens = Tokens { own_ns: 0, ceil_ns: 0 };

    fn node(base: u16, parent: u16, tokens: Tokens, waiting_bytes: u64) -> Node {
        Node { base, parent: (base != 0).then_some(parent), tokens, waiting_bytes }
    }

    #[test]
    fn the_nearest_node_that_must_not_send_holds() {
        let tree = |limit, inner, leaf| {
            [node(0, 0, limit, 0), node(1, 0, inner, 0), node(2, 1, leaf, 100), node(3, 0, FULL, 0)]
        };
        for (limit, inner, leaf, expected) in [
            (USED_UP, USED_UP, USED_UP, Some(2)),
            (USED_UP, USED_UP, BORROWS, Some(1)),
            (USED_UP, BORROWS, BORROWS, Some(0)),
            (FULL, BORROWS, BORROWS, None),
            (USED_UP, FULL, BORROWS, None),
            // The leaf has tokens of its own, whatever the limit has left.
            (USED_UP, BORROWS, FULL, None),
        ] {
            let nodes = tree(limit, inner, leaf);
            assert_eq!(gate(&nodes, 2), expected, "{nodes:?}");
            assert_eq!(gate_below(&nodes, 0), expected, "{nodes:?}");
            assert_eq!(gate_below(&nodes, 1), expected);
            assert_eq!(gate_below(&nodes, 3), None, "nothing waits there");
        }
    }

    #[test]
    fn most_of_what_waits_names_the_gate_of_all() {
        let nodes = |own, other| {
            [
                node(0, 0, USED_UP, 0),
                node(1, 0, USED_UP, own),
                node(2, 0, BORROWS, other),
                node(3, 0, FULL, 999),
            ]
        };
        assert_eq!(gate_below(&nodes(100, 101), 0), Some(0));
        assert_eq!(gate_below(&nodes(101, 100), 0), Some(1));
        assert_eq!(gate_below(&nodes(0, 0), 0), None, "what is left is being served");
        assert_eq!(gate_below(&nodes(0, 1), 2), Some(0));
    }

    #[test]
    fn parents_that_are_wrong_end_somewhere() {
        let round = [node(1, 2, BORROWS, 1), node(2, 1, BORROWS, 1)];
        assert_eq!(gate(&round, 1), None);
        assert_eq!(gate_below(&round, 0), None);
        assert_eq!(gate(&[node(1, 7, BORROWS, 1)], 1), None);
        assert_eq!(gate(&round, 9), None);
    }
}
