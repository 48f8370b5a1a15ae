//! The books of one place (a port's direction, a class, a workstream): the packets that came in, left and are inside.
//!
//! Invariant 1, conservation, at every instant and for packets and bytes alike:
//!
//! ```text
//! accepted = delivered + dropped(reason) + held
//! ```
//!
//! `held` is counted apart, by the packets that are in the place's queues, so that the sum can fail: an account whose `held` were derived
//! from the others could never show a packet that went missing.
//!
//! Owner: the worker that owns the place; others read copies.

use crate::drops::{Count, DropCounts, DropReason};

/// The counters of one place.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// Packets that entered.
    pub accepted: Count,
    /// Packets that left as they should.
    pub delivered: Count,
    /// Packets that were dropped, by reason.
    pub dropped: DropCounts,
}

impl Account {
    /// Counts a packet in.
    pub fn accept(&mut self, len_bytes: u32) {
        self.accepted.add(len_bytes);
    }

    /// Counts packets in that come together.
    pub fn accept_all(&mut self, accepted: Count) {
        self.accepted.merge(accepted);
    }

    /// Counts packets out that leave together.
    pub fn deliver_all(&mut self, delivered: Count) {
        self.delivered.merge(delivered);
    }

    /// Counts a packet out.
    pub fn deliver(&mut self, len_bytes: u32) {
        self.delivered.add(len_bytes);
    }

    /// Counts a packet dropped for `reason`.
    pub fn drop(&mut self, reason: DropReason, len_bytes: u32) {
        self.dropped.add(reason, len_bytes);
    }

    /// Counts packets that are dropped together.
    pub fn drop_all(&mut self, reason: DropReason, dropped: Count) {
        self.dropped.add_all(reason, dropped);
    }

    /// Takes a packet that moves to another place off the books: there it is accepted, here it never was.
    pub fn move_out(&mut self, len_bytes: u32) {
        self.accepted.sub(len_bytes);
    }

    /// Takes packets that move together off the books.
    pub fn move_out_all(&mut self, moved: Count) {
        self.accepted.sub_all(moved);
    }

    /// The packets that must be inside by the books; `None` if more left than entered.
    pub fn expected_held(&self) -> Option<Count> {
        let dropped = self.dropped.total();
        Some(Count {
            packets: self.accepted.packets.checked_sub(self.delivered.packets + dropped.packets)?,
            bytes: self.accepted.bytes.checked_sub(self.delivered.bytes + dropped.bytes)?,
        })
    }

    /// Returns whether the books agree with `held`, which was counted in the queues themselves.
    pub fn balances(&self, held: Count) -> bool {
        self.expected_held() == Some(held)
    }

    /// Adds another place's books to this one.
    pub fn merge(&mut self, other: &Account) {
        self.accepted.merge(other.accepted);
        self.delivered.merge(other.delivered);
        self.dropped.merge(&other.dropped);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn balances_only_when_nothing_is_missing() {
        let mut account = Account::default();
        for len_bytes in [60, 100, 1514] {
            account.accept(len_bytes);
        }
        account.deliver(60);
        account.drop(DropReason::ClassFull, 100);
        assert!(account.balances(Count { packets: 1, bytes: 1514 }));
        assert!(!account.balances(Count { packets: 1, bytes: 1513 }), "a byte is missing");
        assert!(!account.balances(Count::default()), "a packet is missing");
        account.deliver(1514);
        account.deliver(1514);
        assert_eq!(account.expected_held(), None, "more left than entered");
    }
}
