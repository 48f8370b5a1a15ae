//! The sending end of a pair made to hold packets: a queue that keeps what the ring does not take, checksums filled in, and VLAN tags in
//! the frame.
//!
//! Both ends of a pair get the queue, because without one a veth drops what a receiver with a full ring does not take. Two weirs may
//! each have an end of one pair, so what is arranged is held together ([`crate::hold`]): the first changes it, the last puts it back.
//!
//! Rule: it is recorded before it is changed.

use crate::error::Result;
use crate::hold::{Hold, Thing};
use crate::link::Link;
use crate::lock::Lock;
use crate::netns::NetNs;
use crate::undo::{Keeper, Undo};
use crate::{ethtool, features, qdisc};

/// Puts the queue that holds packets on an interface of `netns`.
pub fn hold_packets(netns: &NetNs, link: &Link, keeper: &mut dyn Keeper) -> Result<()> {
    let undo = |before| Undo::Qdisc { ifindex: link.ifindex, before };
    let look = || netns.run(|| qdisc::save(link));
    let Some(owner) = keeper.owner() else {
        keeper.record(netns, undo(look()?), None)?;
        return netns.run(|| qdisc::install(link));
    };
    let lock = Lock::take()?;
    let thing = Thing::queue(netns, link);
    let (hold, before, is_first) = Hold::shared(&lock, &thing, &owner, &mut |text| keeper.say(text), look)?;
    keeper.record(netns, undo(before), Some(hold))?;
    // Who was the first may have been killed before it came to this.
    if is_first || !netns.run(|| qdisc::is_installed(link.ifindex))? {
        netns.run(|| qdisc::install(link))?;
    }
    Ok(())
}

/// Has the kernel fill in the checksums of what an interface of `netns` sends; whether they were left to the device.
pub fn fill_checksums(netns: &NetNs, link: &Link, keeper: &mut dyn Keeper) -> Result<bool> {
    let undo = Undo::TxChecksum { ifindex: link.ifindex };
    let look = || netns.run(|| ethtool::tx_checksum(&link.name));
    let Some(owner) = keeper.owner() else {
        let was_on = look()?;
        if was_on {
            keeper.record(netns, undo, None)?;
            netns.run(|| ethtool::set_tx_checksum(&link.name, false))?;
        }
        return Ok(was_on);
    };
    let lock = Lock::take()?;
    let thing = Thing::checksum(netns, link);
    let (hold, was_on, _) = Hold::shared(&lock, &thing, &owner, &mut |text| keeper.say(text), look)?;
    if was_on {
        keeper.record(netns, undo, Some(hold))?;
        netns.run(|| ethtool::set_tx_checksum(&link.name, false))?;
    } else if hold.is_last() {
        hold.finish();
    }
    Ok(was_on)
}

/// Has the kernel write VLAN tags into the frames that an interface of `netns` sends.
pub fn tag_frames(netns: &NetNs, link: &Link, keeper: &mut dyn Keeper) -> Result<()> {
    let undo = |features| Undo::TagInsertion { ifindex: link.ifindex, features };
    let look = || netns.run(|| features::tag_insertions(link.ifindex));
    let Some(owner) = keeper.owner() else {
        let were_on = look()?;
        if !were_on.is_empty() {
            keeper.record(netns, undo(were_on.clone()), None)?;
            netns.run(|| features::switch(link.ifindex, &were_on, false))?;
        }
        return Ok(());
    };
    let lock = Lock::take()?;
    let thing = Thing::tags(netns, link);
    let (hold, were_on, _) = Hold::shared(&lock, &thing, &owner, &mut |text| keeper.say(text), look)?;
    if !were_on.is_empty() {
        keeper.record(netns, undo(were_on.clone()), Some(hold))?;
        netns.run(|| features::switch(link.ifindex, &were_on, false))?;
    } else if hold.is_last() {
        hold.finish();
    }
    Ok(())
}
