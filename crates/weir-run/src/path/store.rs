//! A worker's frames and its books: the one place where packets of a path come into being and end.
//!
//! Every packet that is made here is accepted, and every one that ends here is delivered or dropped for a reason; so the books
//! of all workers together balance with what is inside (invariant 1), and the pool's census with the frames.
//! A packet that crosses to another worker is accepted here and ends there: only the sum balances.
//!
//! Owner: one worker.

use std::collections::VecDeque;

use weir_core::account::Account;
use weir_core::drops::DropReason;
use weir_core::packet::{Meta, Packet};
use weir_ring::memory::FrameMemory;
use weir_ring::pool::{Census, Pool};

use super::packet::PathPacket;

/// See the head of the file.
pub struct Store<'m> {
    memory: &'m FrameMemory,
    pool: Pool,
    account: Account,
    /// Frames that generators leave for copies and for what routers make.
    reserve: u32,
    ended: u64,
}

impl<'m> Store<'m> {
    /// The frames of `pool`, of which generators leave `reserve`.
    pub fn new(memory: &'m FrameMemory, pool: Pool, reserve: u32) -> Store<'m> {
        Store { memory, pool, account: Account::default(), reserve, ended: 0 }
    }

    /// Makes a packet of `len_bytes`, if there is a frame. `write` gets the whole frame.
    #[inline]
    pub fn make(
        &mut self,
        len_bytes: u16,
        mut meta: Meta,
        write: impl FnOnce(&mut [u8], &mut Meta),
    ) -> Option<PathPacket<'m>> {
        let mut frame = self.pool.take()?;
        write(self.memory.bytes_mut(&mut frame), &mut meta);
        self.account.accept(len_bytes.into());
        Some(PathPacket::new(self.memory, frame, len_bytes, meta))
    }

    /// As [`Store::make`], if `write` has something to write: it says how long it is.
    pub fn make_if<T>(
        &mut self,
        write: impl FnOnce(&mut [u8]) -> Option<(u16, T)>,
    ) -> Option<(PathPacket<'m>, T)> {
        let mut frame = self.pool.take()?;
        let Some((len_bytes, what)) = write(self.memory.bytes_mut(&mut frame)) else {
            self.pool.give(frame);
            return None;
        };
        self.account.accept(len_bytes.into());
        Some((PathPacket::new(self.memory, frame, len_bytes, Meta::default()), what))
    }

    /// A copy of a packet; `None` without a frame, and then the copy that should have been is counted as dropped.
    pub fn copy(&mut self, packet: &PathPacket<'m>) -> Option<PathPacket<'m>> {
        let bytes = packet.as_ref();
        let len_bytes = packet.len_bytes() as u16;
        let copy =
            self.make(len_bytes, *packet.meta(), |frame, _| frame[..bytes.len()].copy_from_slice(bytes));
        if copy.is_none() {
            self.account.accept(len_bytes.into());
            self.account.drop(DropReason::NoFrame, len_bytes.into());
            self.ended += 1;
        }
        copy
    }

    /// Ends the first `count` packets of a queue: they have come where they were to come.
    #[inline]
    pub fn deliver(&mut self, queue: &mut VecDeque<PathPacket<'m>>, count: usize) {
        for packet in queue.drain(..count) {
            self.account.deliver(packet.len_bytes());
            self.pool.give(packet.into_frame());
        }
        self.ended += count as u64;
    }

    /// Ends the first `count` packets of a queue for a reason.
    pub fn drop(&mut self, queue: &mut VecDeque<PathPacket<'m>>, count: usize, reason: DropReason) {
        queue.drain(..count).for_each(|packet| self.drop_one(packet, reason));
    }

    /// Ends a packet for a reason.
    pub fn drop_one(&mut self, packet: PathPacket<'m>, reason: DropReason) {
        self.account.drop(reason, packet.len_bytes());
        self.pool.give(packet.into_frame());
        self.ended += 1;
    }

    /// How many packets generators may make now. Another worker's may be faster.
    pub fn spare(&self) -> usize {
        self.pool.available().saturating_sub(self.reserve) as usize
    }

    /// Packets ended here so far.
    pub fn ended(&self) -> u64 {
        self.ended
    }

    /// The books.
    pub fn account(&self) -> &Account {
        &self.account
    }

    /// Where the frames of all workers are.
    pub fn census(&self) -> Census {
        self.pool.census()
    }
}
