//! The targets of datagrams that come in fragments: the later ones, which show no ports, go where the first went.
//!
//! Rule: a later fragment has the target of the first of its datagram, if that came before and no other has taken its slot; else the
//! target that the rules say for what it shows. So a datagram is of one class, and the datagrams of a flow stay in order.
//!
//! Owner: whoever classifies, one for each place. Limits: the slots are [`SLOTS`], which the fragments of as many datagrams that come
//! mixed may take from each other. A sender puts those of one datagram on the wire one after the other.
//!
//! Source: RFC 791 section 3.2, RFC 8200 section 4.5 for what names a datagram.

use std::net::IpAddr;

use super::Target;
use super::headers::Headers;

/// The number of datagrams that are remembered, a power of two.
pub const SLOTS: usize = 128;

/// The targets of the datagrams whose first fragment came last.
#[derive(Debug)]
pub struct FragmentTargets {
    slots: Box<[Option<(Datagram, Target)>; SLOTS]>,
}

/// A datagram: its ends and its number.
type Datagram = (IpAddr, IpAddr, u32);

impl Default for FragmentTargets {
    fn default() -> FragmentTargets {
        FragmentTargets { slots: Box::new([None; SLOTS]) }
    }
}

impl FragmentTargets {
    /// Gives each datagram the target that its own becomes; one whose target becomes none is forgotten.
    pub fn change(&mut self, becomes: impl Fn(Target) -> Option<Target>) {
        for slot in self.slots.iter_mut() {
            *slot = slot.and_then(|(datagram, target)| Some((datagram, becomes(target)?)));
        }
    }

    /// The target of a packet; `own` is that by its own headers, which a later fragment of a known datagram does not need.
    #[inline]
    pub fn target(&mut self, headers: &Headers, own: impl FnOnce() -> Target) -> Target {
        let (Some(fragment), Some(ip)) = (headers.fragment, headers.ip) else { return own() };
        let datagram = (ip.source, ip.destination, fragment.id);
        let slot = &mut self.slots[slot(&datagram)];
        match slot {
            Some((known, target)) if *known == datagram && !fragment.is_first => *target,
            _ => {
                let own = own();
                if fragment.is_first {
                    *slot = Some((datagram, own));
                }
                own
            }
        }
    }
}

/// The slot of a datagram, by all of its parts: senders may count their numbers up, or draw them.
fn slot((source, destination, id): &Datagram) -> usize {
    let number = |address: &IpAddr| match address {
        IpAddr::V4(address) => u64::from(address.to_bits()),
        IpAddr::V6(address) => (address.to_bits() >> 64) as u64 ^ address.to_bits() as u64,
    };
    let parts = [number(source), number(destination), u64::from(*id)];
    // Multiplicative hashing (Knuth, volume 3, section 6.4), by 2^64 over the golden ratio.
    let hash = parts.into_iter().fold(0_u64, |hash, part| (hash ^ part).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    (hash >> 57) as usize & (SLOTS - 1)
}

#[cfg(test)]
mod tests {
    use super::super::headers::{DatagramFragment, Ip};
    use super::*;

    fn headers(source: u8, id: u32, is_first: bool) -> Headers {
        let ip = Ip {
            source: [10, 0, 0, source].into(),
            destination: [10, 0, 1, 1].into(),
            protocol: 17,
            dscp: 0,
        };
        Headers { ip: Some(ip), ports: None, fragment: Some(DatagramFragment { id, is_first }) }
    }

    #[test]
    fn later_fragments_go_where_the_first_went() {
        let mut targets = FragmentTargets::default();
        let [first, other] = [Target::Class(1), Target::Class(2)];
        assert_eq!(targets.target(&headers(1, 7, false), || other), other, "its first never came");
        assert_eq!(targets.target(&headers(1, 7, true), || first), first);
        assert_eq!(targets.target(&headers(1, 7, false), || other), first);
        assert_eq!(targets.target(&headers(1, 7, false), || other), first, "the third as well");
        assert_eq!(targets.target(&headers(1, 8, false), || other), other, "of another datagram");
        assert_eq!(targets.target(&headers(2, 7, false), || other), other, "of another sender");
        assert_eq!(
            targets.target(&headers(1, 7, true), || Target::Free),
            Target::Free,
            "the number comes again"
        );
        assert_eq!(targets.target(&headers(1, 7, false), || other), Target::Free);
        let whole = Headers { fragment: None, ..headers(1, 7, false) };
        assert_eq!(targets.target(&whole, || other), other);
    }

    /// Numbers that count up, as of one sender, and many senders with one number.
    #[test]
    fn datagrams_at_the_same_time_have_slots_of_their_own() {
        let mut counted = [0; SLOTS];
        let mut sent = [0; SLOTS];
        for number in 0..128 {
            let slot = |source, id| slot(&([10, 0, 0, source].into(), [10, 0, 1, 1].into(), id));
            counted[slot(1, 1000 + number)] += 1;
            sent[slot(number as u8, 1)] += 1;
        }
        for slots in [counted, sent] {
            let most = slots.iter().max().unwrap();
            assert!(*most <= 6, "{most} of 128 in one slot of 128");
        }
    }
}
