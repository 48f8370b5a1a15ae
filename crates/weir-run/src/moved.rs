//! The other end of a pair that has moved to another network namespace: it is arranged there as it was.
//!
//! Rule: all that is changed from then on is recorded of the new place, and of the old one nothing is kept: what was changed there has gone
//! along, or went with the move. A place is a namespace's number and an interface's in it.
//!
//! Owner: none, these are functions, of the watcher, and of sinks and generators, which have none. Limits: what is sent before the move is
//! seen is sent without the queue that holds packets.

use std::sync::Arc;

use weir_port::link::Link;
use weir_port::netns::NetNs;
use weir_port::sending;
use weir_port::undo::Keeper;
use weir_port::view::{Pair, is_gone};

/// Goes on with a pair whose other end is `sender` in `netns` now; returns the pair as it is. `is_taken` says whether another pair has an end
/// in a place, whose records stay: it may have come there with the same number, and be arranged already.
///
/// # Errors
/// If the end cannot be arranged where it is, which is then as before; it may be tried again.
pub fn go_along(
    known: &Pair,
    netns: &Arc<NetNs>,
    sender: &Link,
    keeper: &mut dyn Keeper,
    is_taken: impl Fn((u64, u32)) -> bool,
) -> weir_port::Result<Pair> {
    let (left, there) = (place(&known.sender_netns, &known.sender), place(netns, sender));
    if let Err(error) = sending::arrange_moved(netns, sender, &known.before, keeper) {
        if !is_taken(there) {
            keeper.put_back(&[there])?;
        }
        return Err(error);
    }
    if !is_taken(left) {
        keeper.forget(&[left])?;
    }
    Ok(Pair { sender_netns: Arc::clone(netns), sender: sender.clone(), ..known.clone() })
}

/// Follows the other end of a pair that nobody else watches; `None` if it is where it was, or nowhere yet.
///
/// # Errors
/// If it cannot be arranged where it is.
pub fn follow(known: &Pair, keeper: &mut dyn Keeper) -> weir_port::Result<Option<Pair>> {
    let before = known.sender_netns.run(|| Link::by_index(known.sender.ifindex));
    // Another interface may have got its number.
    if before.is_ok_and(|link| link.peer_ifindex == Some(known.port.ifindex)) {
        return Ok(None);
    }
    let Ok((netns, sender)) = Link::by_index(known.port.ifindex).and_then(|port| port.peer()) else {
        return Ok(None);
    };
    if place(&netns, &sender) == place(&known.sender_netns, &known.sender) {
        return Ok(None);
    }
    match go_along(known, &Arc::new(netns), &sender, keeper, |_| false) {
        // It has moved on.
        Err(error) if is_gone(&error) => Ok(None),
        now => now.map(Some),
    }
}

fn place(netns: &NetNs, link: &Link) -> (u64, u32) {
    (netns.inode(), link.ifindex)
}
