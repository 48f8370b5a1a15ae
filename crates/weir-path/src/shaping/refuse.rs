//! The end of packets that no class takes, or keeps: their port is gone, or a stage made them and too many of those wait. They are dropped,
//! whatever the classes say, and are booked.

use weir_core::drops::DropReason;
use weir_core::shaper::Shaper;
use weir_ring::pool::Pool;

use super::{FREE, Shaping};
use crate::packet::PathPacket;

impl Shaping {
    /// Drops all packets that wait.
    pub fn drop_all(&mut self, reason: DropReason, pool: &mut Pool) {
        let leaves: Vec<_> = self.leaves().collect();
        for leaf in leaves {
            while let Some(packet) = self.drop_next(leaf, reason) {
                self.released.dropped += 1;
                pool.give(packet.frame);
            }
        }
    }

    fn drop_next(&mut self, class: usize, reason: DropReason) -> Option<PathPacket> {
        match (&mut self.tree, &mut self.shaper) {
            (Some(tree), _) if class == FREE => tree.free.drop_next(reason),
            (_, Shaper::Class(one)) => one.drop_next(reason),
            (_, Shaper::Htb(tree)) => tree.drop_next(class, reason),
            (_, Shaper::Cbq(tree)) => tree.drop_next(class, reason),
        }
    }

    /// Books a packet that no class was asked to take.
    pub fn refuse(&mut self, reason: DropReason, len_bytes: u32) {
        self.retired.account.accept(len_bytes);
        self.retired.account.drop(reason, len_bytes);
    }
}
