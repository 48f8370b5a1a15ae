//! The sending end of a pair made to hold packets: a queue that keeps what the ring does not take, checksums filled in, and VLAN tags in
//! the frame.
//!
//! Both ends of a pair get the queue, because without one a veth drops packets that a receiver with a full ring does not take. Two weirs
//! may each have an end of one pair, so these things are held together ([`crate::hold`]): the first changes them, the last puts them back.
//!
//! Rule: a change is recorded before it is made. An end that moves to another namespace is arranged anew there ([`arrange_moved`]): its
//! queue stays behind, while its offloads come along as they were left, so their old state is that of the first time.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::Result;
use crate::features::{self, ChecksumOffloads, Offloads, TagInsertion};
use crate::hold::{Hold, Thing};
use crate::link::Link;
use crate::lock::Lock;
use crate::netns::NetNs;
use crate::undo::{Keeper, Undo};
use crate::{ethtool, qdisc};

/// Makes the sending end of a pair, an interface of `netns`, hold packets; returns the features that were on before.
pub fn arrange(netns: &NetNs, link: &Link, keeper: &mut dyn Keeper) -> Result<Offloads> {
    hold_packets(netns, link, keeper)?;
    let checksums = fill_checksums(netns, link, keeper, || features::offloads(link).map(|on| on.checksums))?;
    let tag_insertions =
        tag_frames(netns, link, keeper, || features::offloads(link).map(|on| on.tag_insertions))?;
    Ok(Offloads { checksums, tag_insertions })
}

/// Arranges an end that has come to `netns` from where it was arranged, and had the features `before`.
pub fn arrange_moved(netns: &NetNs, link: &Link, before: &Offloads, keeper: &mut dyn Keeper) -> Result<()> {
    hold_packets(netns, link, keeper)?;
    fill_checksums(netns, link, keeper, || Ok(before.checksums.clone()))?;
    tag_frames(netns, link, keeper, || Ok(before.tag_insertions.clone()))?;
    Ok(())
}

/// Puts the queue that holds packets on an interface of `netns`.
pub fn hold_packets(netns: &NetNs, link: &Link, keeper: &mut dyn Keeper) -> Result<()> {
    let ifindex = link.ifindex;
    let undo = |before: &Option<qdisc::Saved>| Some(Undo::Qdisc { ifindex, before: before.clone() });
    together(
        netns,
        keeper,
        &Thing::queue(netns, link),
        || qdisc::save(link),
        undo,
        |_, is_first| {
            // The first holder may have been killed before it came to this.
            if is_first || !qdisc::is_installed(ifindex)? { qdisc::install(link) } else { Ok(()) }
        },
    )?;
    Ok(())
}

/// Has the kernel fill in the checksums of packets that an interface of `netns` sends; returns the features by which they were left to the
/// device.
fn fill_checksums(
    netns: &NetNs,
    link: &Link,
    keeper: &mut dyn Keeper,
    look: impl FnOnce() -> Result<ChecksumOffloads>,
) -> Result<ChecksumOffloads> {
    let ifindex = link.ifindex;
    let undo = |were_on: &ChecksumOffloads| {
        (!were_on.is_empty()).then(|| Undo::TxChecksum { ifindex, features: were_on.clone() })
    };
    together(netns, keeper, &Thing::checksum(netns, link), look, undo, |_, _| {
        ethtool::set_tx_checksum(link, false)
    })
}

/// Has the kernel write VLAN tags into the frames that an interface of `netns` sends; returns the features by which tags went beside them.
fn tag_frames(
    netns: &NetNs,
    link: &Link,
    keeper: &mut dyn Keeper,
    look: impl FnOnce() -> Result<Vec<TagInsertion>>,
) -> Result<Vec<TagInsertion>> {
    let ifindex = link.ifindex;
    let undo = |were_on: &Vec<TagInsertion>| {
        (!were_on.is_empty()).then(|| Undo::TagInsertion { ifindex, features: were_on.clone() })
    };
    together(netns, keeper, &Thing::tags(netns, link), look, undo, |were_on, _| {
        features::switch(ifindex, were_on, false)
    })
}

/// Changes a thing of `netns` together with its other holders: `look` finds the old state, `undo` says how that comes back, or that there
/// is nothing to change, and `change` is told whether this is the first holder. Returns the old state.
fn together<T: Serialize + DeserializeOwned>(
    netns: &NetNs,
    keeper: &mut dyn Keeper,
    thing: &Thing,
    look: impl FnOnce() -> Result<T>,
    undo: impl FnOnce(&T) -> Option<Undo>,
    change: impl FnOnce(&T, bool) -> Result<()>,
) -> Result<T> {
    let look = || netns.run(look);
    let (before, is_first, hold, _lock) = match keeper.owner() {
        None => (look()?, true, None, None),
        Some(owner) => {
            let lock = Lock::take()?;
            let say = &mut |text: &str| keeper.say(text);
            let (hold, before, is_first) = Hold::shared(&lock, thing, &owner, say, look)?;
            (before, is_first, Some(hold), Some(lock))
        }
    };
    match (undo(&before), hold) {
        (Some(undo), hold) => {
            keeper.record(netns, undo, hold)?;
            netns.run(|| change(&before, is_first))?;
        }
        (None, Some(hold)) if hold.is_last() => hold.finish(),
        (None, _) => {}
    }
    Ok(before)
}
