//! A reply on its way to a client. Long ones have a budget of the server's together ([`crate::budget`]).
//!
//! Rule: a reply of more than [`UNCOUNTED_BYTES`] takes all its bytes from the server's budget before they are made, and gives them back
//! when it is dropped: it has been sent, or its client has gone. A shorter reply takes nothing, and touches nothing that workers share: the number of those is bounded
//! by the tickets of workers, and by connections.
//!
//! Ordering: none is needed: bytes guard nothing, and their number alone is counted.
//!
//! Owner: the server; what a reply has taken is its own. Limits: a reply that is put together of others is there twice while a worker copies
//! it, and counts once. Clients that do not read can keep others from long replies, until they go.

use std::ops::Deref;
use std::sync::Arc;

use crate::budget::{ByteBudget, HeldBytes};

/// The bytes of all long replies of a server together, if its values are not so long that it needs more.
pub const REPLIES_BYTES_MAX: usize = 256 << 20;
/// A reply that has so many bytes, or would get them by more items, is none: for any request so many bytes are made and one item more. The
/// replies to one datagram have this bound together.
pub const REPLY_BYTES_MAX: usize = 32 << 20;
/// The bytes of a reply that does not count.
pub const UNCOUNTED_BYTES: usize = 4 * 1024;
/// The answer in the place of a reply that is too long, or finds no room.
pub const TOO_LONG: &[u8] = b"SERVER_ERROR out of memory writing get response\r\n";

/// The text of a reply, and what it has taken from the budget.
#[derive(Debug, Default)]
pub struct Reply {
    /// The text. Whoever makes it longer than an answer of a line asks for room first.
    pub bytes: Vec<u8>,
    held: HeldBytes,
}

impl Reply {
    /// The reply in the place of one that is too long.
    pub fn too_long() -> Reply {
        TOO_LONG.to_vec().into()
    }

    /// Makes room for more bytes, which count if they are more than `uncounted_bytes` with those there are. Returns whether there is room.
    pub fn make_room(&mut self, more_bytes: usize, uncounted_bytes: usize, budget: &Arc<ByteBudget>) -> bool {
        let bytes = self.bytes.len() + more_bytes;
        if bytes <= uncounted_bytes {
            return true;
        }
        let has_room = self.held.raise_to(bytes, budget);
        if has_room {
            // A vector that grows by itself allocates up to twice of what it has, which nobody counted.
            self.bytes.reserve_exact(self.held.bytes() - self.bytes.len());
        }
        has_room
    }

    /// Returns whether its bytes count.
    pub fn is_counted(&self) -> bool {
        self.held.bytes() > 0
    }

    /// Adds another reply behind this one.
    pub fn append(&mut self, other: Reply) {
        self.bytes.extend_from_slice(&other.bytes);
        self.hold(other.held);
    }

    /// Holds what another held, whose bytes it has.
    pub fn hold_for(&mut self, other: Reply) {
        self.hold(other.held);
    }

    /// Holds what was taken for it.
    pub fn hold(&mut self, held: HeldBytes) {
        self.held.join(held);
    }

    /// Makes it an empty reply that has allocated so many bytes at the most.
    pub fn clear(&mut self, most_bytes: usize) {
        self.bytes.clear();
        self.bytes.shrink_to(most_bytes);
        self.held = HeldBytes::default();
    }
}

impl From<Vec<u8>> for Reply {
    fn from(bytes: Vec<u8>) -> Reply {
        Reply { bytes, held: HeldBytes::default() }
    }
}

impl Deref for Reply {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_takes_no_more_than_it_leaves() {
        let budget = ByteBudget::new(100_000);
        let mut replies = Vec::new();
        for (bytes, has_room) in [(50_001, false), (50_000, true), (25_001, false), (25_000, true)] {
            let mut reply = Reply::default();
            assert_eq!(reply.make_room(bytes, UNCOUNTED_BYTES, &budget), has_room, "{bytes}");
            replies.push(reply);
        }
        assert_eq!(budget.held_bytes(), 75_000);
        assert!(!replies[1].make_room(60_000, UNCOUNTED_BYTES, &budget), "nor does one that grows");
        assert_eq!(budget.held_bytes(), 75_000);
        drop(replies);
        assert_eq!(budget.held_bytes(), 0);
    }

    #[test]
    fn a_reply_that_grows_has_allocated_what_it_took() {
        let budget = ByteBudget::new(1 << 20);
        let mut reply = Reply::default();
        while reply.len() < 100_000 {
            assert!(reply.make_room(100, UNCOUNTED_BYTES, &budget));
            reply.bytes.extend_from_slice(&[7; 100]);
            assert_eq!(reply.is_counted(), reply.len() > UNCOUNTED_BYTES);
            if reply.is_counted() {
                assert!(reply.bytes.capacity() <= budget.held_bytes().max(2 * UNCOUNTED_BYTES));
            }
            assert!(budget.held_bytes() <= reply.len() * 5 / 4);
        }
    }

    #[test]
    fn what_is_joined_is_given_back_once() {
        let budget = ByteBudget::new(100_000);
        let long = |bytes: usize| {
            let mut reply = Reply::default();
            assert!(reply.make_room(bytes, UNCOUNTED_BYTES, &budget));
            reply.bytes.resize(bytes, 7);
            reply
        };
        let mut reply = Reply::from(b"short".to_vec());
        for bytes in [5000, 6000] {
            reply.append(long(bytes));
        }
        assert_eq!((reply.len(), budget.held_bytes()), (11_005, 11_000));
        reply.clear(100);
        assert_eq!((reply.len(), budget.held_bytes()), (0, 0));
        drop(reply);
        assert_eq!(budget.held_bytes(), 0);
    }
}
