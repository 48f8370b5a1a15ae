//! The reason why the packets of a leaf wait.
//!
//! ```text
//! waits_for(class) = class               if it may not send
//!                    link or nothing     else, if it need not borrow
//!                    waits_for(parent)   else: it borrows there, if there is a parent
//! ```
//!
//! Rule: as in the tree, packets wait for the nearest class upward that must not send; the link limits all of them together.

use super::{ClassMode, Meter, NONE, Tree};
use crate::packet::Packet;

/// The limit that packets wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum WaitsFor {
    /// The limit of the link, for all classes together.
    Link,
    /// The limit of this class.
    Class(usize),
}

impl<P: Packet, M: Meter> Tree<P, M> {
    /// The limit that the packets of a class wait for; `None` if they may leave now, or there is no such class.
    pub fn waits_for(&self, class: usize, now_ns: u64) -> Option<WaitsFor> {
        let mut at = class;
        loop {
            let node = self.nodes.get(at)?.as_ref()?;
            match (node.meter.mode(now_ns).0, node.parent) {
                (ClassMode::CanSend, _) => break,
                (ClassMode::MayBorrow, parent) if parent != NONE => at = parent as usize,
                _ => return Some(WaitsFor::Class(at)),
            }
        }
        let is_used_up = self.link.as_ref().is_some_and(|link| link.ready_at(0, now_ns) > now_ns);
        is_used_up.then_some(WaitsFor::Link)
    }
}
