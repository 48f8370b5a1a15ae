//! Checkers that watch a run from outside, at every step. A broken rule of conservation, conformance or credit stops the run; order and
//! wakes are counted.
//!
//! | checker | rule |
//! |---|---|
//! | conservation | accepted = delivered + dropped(reason) + held, `held` as the queues count it |
//! | conformance | over every window, out <= burst + rate x time ([`conformance`]) |
//! | credit | no send buffer over its bound, no class over its credit plus one poll (checked by the machine) |
//! | order | counted: within a flow the sequence numbers that arrive only rise |
//! | wakes | counted: empty and repeated wakes ([`wakes`]) |
//!
//! No checker knows how the path works; they see packets enter, leave the limit, arrive and drop.

pub mod conformance;
pub mod fairness;
pub mod wakes;

use weir_core::{
    account::Account,
    drops::{Count, DropReason},
    packet::Packet,
};

use crate::packet::SimPacket;

use conformance::Conformance;
use wakes::Wakes;

/// A rule that was broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The time of the violation.
    pub at_ns: u64,
    /// The rule, and the packet or place that broke it.
    pub what: String,
}

/// All checkers of a run.
#[derive(Debug)]
pub struct Checks {
    account: Account,
    /// The highest sequence number of each flow that arrived.
    latest: Vec<Option<u64>>,
    conformance: Conformance,
    /// The wakes.
    pub wakes: Wakes,
    /// Packets that arrived after a later one of their flow.
    pub reordered: u64,
    violation: Option<Violation>,
}

impl Checks {
    /// Checkers over `senders` flows and one limit.
    pub fn new(senders: usize, conformance: Conformance) -> Checks {
        Checks {
            account: Account::default(),
            latest: vec![None; senders],
            conformance,
            wakes: Wakes::new(senders),
            reordered: 0,
            violation: None,
        }
    }

    /// Notes that `send` took a packet.
    pub fn accept(&mut self, packet: &SimPacket) {
        self.account.accept(packet.len_bytes());
    }

    /// Notes that a packet left the limit.
    pub fn leave(&mut self, packet: &SimPacket, now_ns: u64) {
        if !self.conformance.leaves(packet.len_bytes(), now_ns) {
            self.fail(now_ns, "conformance: more left in some window than burst + rate x time".to_owned());
        }
    }

    /// Notes that a packet arrived.
    pub fn deliver(&mut self, packet: &SimPacket) {
        self.account.deliver(packet.len_bytes());
        let latest = &mut self.latest[packet.sender as usize];
        self.reordered += u64::from(latest.is_some_and(|latest| packet.sequence <= latest));
        *latest = (*latest).max(Some(packet.sequence));
    }

    /// Notes that a packet was dropped.
    pub fn drop(&mut self, reason: DropReason, packet: &SimPacket) {
        self.account.drop(reason, packet.len_bytes());
    }

    /// Checks the rules after a step, with `held` counted inside.
    pub fn step(&mut self, held: Count, now_ns: u64) -> Result<(), Violation> {
        if !self.account.balances(held) {
            let (accepted, delivered) = (self.account.accepted, self.account.delivered);
            let dropped = self.account.dropped.total();
            let what = format!(
                "conservation: {accepted:?} accepted, {delivered:?} delivered, {dropped:?} dropped, {held:?} held"
            );
            self.fail(now_ns, what);
        }
        self.violation.clone().map_or(Ok(()), Err)
    }

    /// Reports a rule that the caller saw broken; the first one counts.
    pub fn fail(&mut self, at_ns: u64, what: String) {
        self.violation.get_or_insert(Violation { at_ns, what });
    }

    /// The books of the run.
    pub fn account(&self) -> &Account {
        &self.account
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_core::rate::Rate;

    fn checks() -> Checks {
        Checks::new(2, Conformance::new(Rate::from_bits_per_s(8_000_000).unwrap(), 2_000))
    }

    fn datagram(sender: u32, sequence: u64) -> SimPacket {
        SimPacket::datagram(sender, sequence, 958, 0)
    }

    fn held(packets: u64) -> Count {
        Count { packets, bytes: packets * 1000 }
    }

    #[test]
    fn a_missing_packet_is_seen() {
        let mut checks = checks();
        checks.accept(&datagram(0, 0));
        assert_eq!(checks.step(held(1), 5), Ok(()));
        assert!(checks.step(held(0), 6).unwrap_err().what.starts_with("conservation"));
    }

    #[test]
    fn packets_that_were_overtaken_are_counted() {
        let mut checks = checks();
        for (sender, sequence) in [(0, 0), (1, 2), (0, 2), (0, 3)] {
            checks.deliver(&datagram(sender, sequence));
        }
        assert_eq!(checks.reordered, 0, "gaps are losses, and flows are apart");
        for sequence in [1, 3, 4] {
            checks.deliver(&datagram(0, sequence));
        }
        assert_eq!(checks.reordered, 2, "1 came late and 3 twice");
    }

    #[test]
    fn a_third_packet_at_once_breaks_a_burst_of_two() {
        let mut checks = checks();
        checks.leave(&datagram(0, 0), 1_000);
        checks.leave(&datagram(0, 1), 1_000);
        assert_eq!(checks.step(held(0), 1_000), Ok(()));
        checks.leave(&datagram(0, 2), 1_001);
        assert!(checks.step(held(0), 1_001).unwrap_err().what.starts_with("conformance"));
    }
}
