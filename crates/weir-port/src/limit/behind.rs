//! The pairs behind a limited device that is no pair itself: ports of a bridge, members of a bond, the device below a VLAN or a macvlan.
//!
//! ```text
//! br0 (limited) -- port veth-a -- eth0 in a container      of each such pair the other end is steered, as of a pair
//!               -- port veth-b -- eth0 in a container      that is limited itself
//!               -- port bond0 -- member veth-c -- ...
//!               -- port eth1                               a card: nothing to steer
//! lo (limited) -- lo                                       the loopback is its own other end
//! ```
//!
//! Rule: each end is steered whose steering is off; the record lists those. A steering that somebody has set stays. `weir stat` reports a
//! pair that joins later, and the same command again steers it and switches off those that have left. Several limits may need one end: the
//! second finds it in the other's record, and the first to go leaves it. One at a time looks into the records of the others and acts on
//! what it finds there, under the lock of things that weirs share.
//!
//! Owner: the limit's record. A container that is gone has taken its end along, which is no error.
//!
//! Limits: pairs are found only within the namespace of the device, and only if a process is in the namespace of the other end or it is
//! mounted. VLANs and bonds are followed by the kernel's source alone: no machine here had them. The end of a tunnel is a matter of routes.
//! Macvlans on one device reach each other by that device's own list, whose steering is not ours to change, so a few packets of a flow may
//! overtake each other there. A bond that deals packets out in turn keeps no order with or without a limit, and a card with several
//! transmit queues has its own.
//!
//! Source: kernel `net/core/dev.c:netif_rx_internal`, `net/bridge/br_forward.c`, `drivers/net/macvlan.c:macvlan_queue_xmit`.

use std::collections::HashSet;

use super::NetnsInterface;
use super::clsact;
use super::find::{self, Found};
use super::htb::{self, RootKind, RootQueue};
use super::memory::Memory;
use super::note;
use super::record::Record;
use super::steering::{Processors, ReceiveSteering};
use crate::error::{Doing, Result, unless_short};
use crate::link::{self, Joint, Link};
use crate::lock::Lock;
use crate::netns::NetNs;

/// The pairs behind a device.
#[derive(Debug, Default)]
pub struct Behind {
    /// The pairs whose other end can be seen.
    pub pairs: Vec<PairBehind>,
    /// The pairs whose other end cannot be seen.
    pub unseen: Vec<UnseenPair>,
}

/// A pair whose other end cannot be seen.
#[derive(Debug)]
pub struct UnseenPair {
    /// The number of its near end, in the namespace of the device.
    pub ifindex: u32,
    /// The name of its near end.
    pub name: String,
}

/// One pair by which packets of a device leave.
#[derive(Debug)]
pub struct PairBehind {
    /// The number of its near end, in the namespace of the device.
    pub ifindex: u32,
    /// The name of its near end.
    pub name: String,
    far_end: NetnsInterface,
    /// The masks that the limit may have written there.
    written: Vec<String>,
}

/// The pairs behind a device; none if the device is an end of a pair. The loopback, whose packets arrive where they leave, is one by itself.
/// At their other ends the limit may have `written` these masks.
pub fn find(place: &NetnsInterface, written: &[String]) -> Result<Behind> {
    let mut behind = Behind::default();
    if place.link.kind == "veth" {
        return Ok(behind);
    }
    if place.link.is_loopback {
        let Link { ifindex, name, .. } = place.link.clone();
        let (far_end, written) = (place.try_clone()?, written.to_vec());
        behind.pairs.push(PairBehind { ifindex, name, far_end, written });
        return Ok(behind);
    }
    let joints = place.netns.run(link::joints)?;
    for joint in leading_from(&joints, place.link.ifindex) {
        match far_end(&place.netns, joint.ifindex) {
            Ok(Some(far_end)) => {
                let (ifindex, name, written) = (joint.ifindex, joint.name.clone(), written.to_vec());
                behind.pairs.push(PairBehind { ifindex, name, far_end, written });
            }
            Ok(None) => {}
            Err(_) => behind.unseen.push(UnseenPair { ifindex: joint.ifindex, name: joint.name.clone() }),
        }
    }
    Ok(behind)
}

/// The ends of pairs to which packets come that leave by interface `from`.
fn leading_from(joints: &[Joint], from: u32) -> Vec<&Joint> {
    let (mut seen, mut to_look_at) = (HashSet::from([from]), vec![from]);
    let mut ends = Vec::new();
    while let Some(ifindex) = to_look_at.pop() {
        let below = joints.iter().find(|joint| joint.ifindex == ifindex).and_then(|joint| joint.below);
        let next =
            joints.iter().filter(|joint| joint.master == Some(ifindex) || below == Some(joint.ifindex));
        for joint in next {
            if !seen.insert(joint.ifindex) {
                continue;
            }
            // Packets that pass a pair are steered at its other end, and need no steering behind that.
            if joint.is_veth { ends.push(joint) } else { to_look_at.push(joint.ifindex) }
        }
    }
    ends.sort_by_key(|joint| joint.ifindex);
    ends
}

/// The other end of the pair that has interface `ifindex` as its near end; `None` if it is gone.
fn far_end(netns: &NetNs, ifindex: u32) -> Result<Option<NetnsInterface>> {
    let look = || {
        let link = netns.run(|| Link::by_index(ifindex))?;
        let near_end = NetnsInterface { netns: netns.try_clone()?, link };
        if near_end.link.is_loopback { Ok(Some(near_end)) } else { near_end.far_end() }
    };
    match look() {
        Err(error) if error.is_no_interface() => Ok(None),
        found => found,
    }
}

impl Behind {
    /// The names of the pairs at whose other end nothing keeps the packets of a flow in order, at queues that came since a limit steered the
    /// others of `steered` too.
    pub fn unsteered(&self, steered: &[u32]) -> Vec<String> {
        let is_off = |pair: &&PairBehind| {
            let is_off = |end: &ReceiveSteering| {
                Ok(end.is_off()? || (steered.contains(&pair.ifindex) && end.is_in_part()?))
            };
            matches!(pair.look(is_off), Ok(Some(true)))
        };
        self.pairs.iter().filter(is_off).map(|pair| pair.name.clone()).collect()
    }

    /// Checks that the other ends can be steered.
    pub(super) fn check(&self) -> Result<()> {
        self.pairs.iter().try_for_each(|pair| pair.look(|end| end.masks().map(drop)).map(drop))
    }

    /// The names of the pairs among `steered` whose steering is still as a limit sets it.
    pub fn names(&self, steered: &[u32]) -> Vec<String> {
        let is_ours = |pair: &&PairBehind| matches!(pair.look(ReceiveSteering::is_ours), Ok(Some(true)));
        let pairs = self.pairs.iter().filter(|pair| steered.contains(&pair.ifindex)).filter(is_ours);
        pairs.map(|pair| pair.name.clone()).collect()
    }

    /// The answers of `ask` for the other ends that no limit has steered: neither one at `place`, which steered those of `known`, nor
    /// another.
    pub(super) fn ask_of_unknown<T>(
        &self,
        place: &NetnsInterface,
        known: &[u32],
        ask: impl Fn(&NetnsInterface, &ReceiveSteering) -> Result<Option<T>>,
    ) -> Result<Vec<T>> {
        let others = if self.pairs.is_empty() { HashSet::new() } else { steered_by_others(place)? };
        let mut said = Vec::new();
        for pair in &self.pairs {
            if !known.contains(&pair.ifindex) && !others.contains(&pair.ifindex) {
                said.extend(pair.look(|steering| ask(&pair.far_end, steering))?.flatten());
            }
        }
        Ok(said)
    }

    /// The pairs that a limit at `place` steers, or shares with another that does; it steered those of `before`.
    pub(super) fn to_steer(&self, _lock: &Lock, place: &NetnsInterface, before: &[u32]) -> Result<Vec<u32>> {
        let others = steered_by_others(place)?;
        let mut ours = Vec::new();
        for pair in &self.pairs {
            let is_known = before.contains(&pair.ifindex) || others.contains(&pair.ifindex);
            let is_ours = |end: &ReceiveSteering| Ok(end.is_off()? || (is_known && end.is_ours()?));
            if pair.look(is_ours)? == Some(true) {
                ours.push(pair.ifindex);
            }
        }
        // An end that cannot be seen from here, as from a container, stays the limit's.
        ours.extend(before.iter().copied().filter(|&ifindex| self.is_unseen(ifindex)));
        ours.sort_unstable();
        Ok(ours)
    }

    fn is_unseen(&self, ifindex: u32) -> bool {
        self.unseen.iter().any(|pair| pair.ifindex == ifindex)
    }

    /// Steers the ends whose steering is off to all processors: behind a device there are many, each with a part of the rate. Of those
    /// `steered` before the queues that came since are steered as well.
    pub(super) fn steer(&self, steered: &[u32]) -> Result<()> {
        self.pairs.iter().try_for_each(|pair| {
            let steer = |end: &ReceiveSteering| {
                if steered.contains(&pair.ifindex) {
                    end.steer_rest()?
                }
                end.steer(Processors::All)
            };
            pair.look(steer).map(drop)
        })
    }
}

impl PairBehind {
    /// Asks or changes the steering of the other end; `None` if the end is gone.
    fn look<T>(&self, work: impl Fn(&ReceiveSteering) -> Result<T>) -> Result<Option<T>> {
        let far_end = &self.far_end;
        let done = far_end.steering(&self.written).and_then(|steering| work(&steering));
        match done {
            Err(_) if far_end.is_gone() => Ok(None),
            done => done.map(Some),
        }
    }
}

/// Brings the steering of a limit to the pairs behind its device now. The record is written before anything is changed.
pub(super) fn update(place: &NetnsInterface, memory: &Memory, before: &Record) -> Result<Vec<u32>> {
    let lock = Lock::take()?;
    let behind = find(place, &before.masks_written)?;
    let steered = behind.to_steer(&lock, place, &before.steered_behind)?;
    let is_seen = |ifindex: u32| behind.pairs.iter().any(|pair| pair.ifindex == ifindex);
    let left = before.steered_behind.iter().copied();
    let left: Vec<u32> = left.filter(|&ifindex| !is_seen(ifindex) && !behind.is_unseen(ifindex)).collect();
    if steered != before.steered_behind {
        let steered_behind = steered.iter().chain(&left).copied().collect();
        let record = Record { steered_behind, ..before.clone() };
        memory.write(&record).doing(|| "writing what is steered behind a limit into its memory".into())?;
    }
    behind.steer(&before.steered_behind)?;
    put_back(&lock, place, &left, &before.masks_written)?;
    Ok(steered)
}

/// Switches off the steering that a limit has switched on by masks that it has `written`, where no other limit needs it.
pub(super) fn put_back(
    _lock: &Lock,
    place: &NetnsInterface,
    steered: &[u32],
    written: &[String],
) -> Result<()> {
    if steered.is_empty() {
        return Ok(());
    }
    let others = steered_by_others(place)?;
    for &ifindex in steered.iter().filter(|ifindex| !others.contains(ifindex)) {
        // An end that cannot be seen any more has moved out of this machine's reach.
        let Some(far_end) = unless_short(far_end(&place.netns, ifindex))? else { continue };
        let pair = PairBehind { ifindex, name: String::new(), far_end, written: written.to_vec() };
        pair.look(ReceiveSteering::switch_off)?;
    }
    Ok(())
}

/// The pairs, by the numbers of their near ends, at whose other ends limits of other interfaces of the namespace have steered, limits whose
/// queue somebody took away included. A limit of another version of weir may have steered all that is behind its interface.
fn steered_by_others(place: &NetnsInterface) -> Result<HashSet<u32>> {
    let noted = clsact::memories(note::SPOT, &place.netns)?.into_iter();
    let mut records: Vec<_> = noted.map(|(ifindex, memory)| (ifindex, memory.record())).collect();
    let mut steered = HashSet::new();
    for RootQueue { ifindex, kind, .. } in place.netns.run(htb::roots)? {
        if kind != RootKind::Limit || ifindex == place.link.ifindex {
            continue;
        }
        // An interface that goes meanwhile needs nothing.
        let Ok(link) = place.netns.run(|| Link::by_index(ifindex)) else { continue };
        let other = NetnsInterface { netns: place.netns.try_clone()?, link };
        match find::below_root(&other) {
            Ok(Found { is_strange: true, .. }) => {
                steered.insert(ifindex);
                steered.extend(find(&other, &[])?.pairs.iter().map(|pair| pair.ifindex));
            }
            Ok(found) => records.push((ifindex, found.record)),
            Err(_) if other.is_gone() => {}
            Err(error) => return Err(error),
        }
    }
    for (ifindex, record) in records.into_iter().filter(|(ifindex, _)| *ifindex != place.link.ifindex) {
        let Some(record) = record else { continue };
        if record.has_steered() {
            steered.insert(ifindex);
        }
        steered.extend(record.steered_behind);
    }
    Ok(steered)
}

/// Returns whether a limit of another interface has steered the other end of the pair of this interface.
pub(super) fn is_needed_by_others(place: &NetnsInterface) -> Result<bool> {
    Ok(steered_by_others(place)?.contains(&place.link.ifindex))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn joint(ifindex: u32, is_veth: bool, master: u32, below: u32) -> Joint {
        let some = |number| (number > 0).then_some(number);
        Joint { ifindex, name: format!("if{ifindex}"), is_veth, master: some(master), below: some(below) }
    }

    fn ends(joints: &[Joint], from: u32) -> Vec<u32> {
        leading_from(joints, from).iter().map(|joint| joint.ifindex).collect()
    }

    #[test]
    fn a_bridge_leads_to_its_ports_that_are_pairs() {
        let bridge = [
            joint(1, false, 0, 0),
            joint(3, true, 1, 0),
            joint(2, true, 1, 0),
            joint(4, false, 1, 0),
            joint(5, true, 0, 0),
        ];
        assert_eq!(ends(&bridge, 1), [2, 3]);
        assert_eq!(ends(&bridge, 4), [0; 0], "a card");
    }

    #[test]
    fn what_stands_on_a_pair_leads_there_and_what_is_on_the_pair_does_not() {
        // A VLAN, a macvlan and a VLAN of that on pair 2, which is a port of bridge 1.
        let stack = [
            joint(1, false, 0, 0),
            joint(2, true, 1, 0),
            joint(3, false, 0, 2),
            joint(4, false, 0, 2),
            joint(5, false, 0, 4),
        ];
        for from in [1, 3, 4, 5] {
            assert_eq!(ends(&stack, from), [2], "from {from}");
        }
    }

    #[test]
    fn a_bond_of_pairs_behind_a_vlan_that_is_a_port_is_found_once() {
        let port = [
            joint(1, false, 0, 0),
            joint(2, false, 1, 3),
            joint(3, false, 1, 0),
            joint(4, true, 3, 0),
            joint(5, true, 3, 0),
        ];
        assert_eq!(ends(&port, 1), [4, 5]);
    }

    #[test]
    fn a_circle_ends() {
        assert_eq!(ends(&[joint(1, false, 2, 2), joint(2, false, 1, 1)], 1), [0; 0]);
    }
}
