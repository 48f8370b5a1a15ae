//! A worker's frames and its books: the one place where packets of a path come into being and end.
//!
//! Every packet that is made here is accepted, and every one that ends here is delivered or dropped for a reason; so the books
//! of all workers together balance with what is inside (invariant 1), and the pool's census with the frames.
//! A packet that crosses to another worker is accepted here and ends there: only the sum balances.
//! A packet that is cut is delivered, and each of its fragments is accepted as a packet of its own: one in, n out, and the bytes
//! of the headers that came with them are in the books.
//!
//! Owner: one worker.

use std::collections::VecDeque;

use weir_core::account::Account;
use weir_core::drops::{Count, DropReason};
use weir_core::net::fragment::Fragments;
use weir_core::packet::{Meta, Packet};
use weir_ring::memory::{Frame, FrameMemory};
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
    /// Frames for the fragments of the packet that is being cut; empty otherwise.
    cutting: Vec<Frame>,
}

impl<'m> Store<'m> {
    /// The frames of `pool`, of which generators leave `reserve`.
    pub fn new(memory: &'m FrameMemory, pool: Pool, reserve: u32) -> Store<'m> {
        Store { memory, pool, account: Account::default(), reserve, ended: 0, cutting: Vec::new() }
    }

    /// Makes up to `count` packets of `len_bytes`, as long as there are frames, and hands each to `put`; how many. `write` gets the
    /// whole frame and returns the packet's flow hash.
    ///
    /// `put` moves a packet to where it waits, and is inlined, so that it comes into being there: put together elsewhere and then
    /// moved, by loads wider than the stores that made it, it would cost twice as much.
    #[inline(always)]
    pub fn make_burst(
        &mut self,
        count: usize,
        len_bytes: u16,
        meta: Meta,
        mut write: impl FnMut(&mut [u8]) -> u32,
        mut put: impl FnMut(PathPacket<'m>),
    ) -> usize {
        let (memory, mut made) = (self.memory, 0);
        while made < count {
            let run = self.pool.take_run(count - made);
            if run.len() == 0 {
                break;
            }
            made += run.len();
            for mut frame in run {
                let flow_hash = write(memory.bytes_mut(&mut frame));
                put(PathPacket::new(memory, frame, len_bytes, Meta { flow_hash, ..meta }));
            }
        }
        let bytes = made as u64 * u64::from(len_bytes);
        self.account.accepted.merge(Count { packets: made as u64, bytes });
        made
    }

    /// Makes a packet if there is a frame and `write` has something to write: it says how long that is. What else it says
    /// comes with the packet.
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
        self.account.accept(len_bytes.into());
        let Some(mut frame) = self.pool.take() else {
            self.account.drop(DropReason::NoFrame, len_bytes.into());
            self.ended += 1;
            return None;
        };
        self.memory.bytes_mut(&mut frame)[..bytes.len()].copy_from_slice(bytes);
        Some(PathPacket::new(self.memory, frame, len_bytes, *packet.meta()))
    }

    /// Ends a packet and hands its fragments for a link that takes `mtu_bytes` to `put`; how many. Without frames for all of them
    /// there is none, and the packet is dropped.
    pub fn cut(&mut self, packet: PathPacket<'m>, mtu_bytes: u16, put: impl FnMut(PathPacket<'m>)) -> usize {
        let cut = match Fragments::new(packet.as_ref(), mtu_bytes) {
            Ok(fragments) => self.make_fragments(fragments, *packet.meta(), put),
            Err(reason) => Err(reason),
        };
        match cut {
            Ok(_) => self.account.deliver(packet.len_bytes()),
            Err(reason) => self.account.drop(reason, packet.len_bytes()),
        }
        self.pool.give(packet.into_frame());
        self.ended += 1;
        cut.unwrap_or(0)
    }

    fn make_fragments(
        &mut self,
        mut fragments: Fragments<'_>,
        meta: Meta,
        mut put: impl FnMut(PathPacket<'m>),
    ) -> Result<usize, DropReason> {
        let count = fragments.count();
        while self.cutting.len() < count {
            let Some(frame) = self.pool.take() else {
                self.pool.give_all(self.cutting.drain(..));
                return Err(DropReason::NoFrame);
            };
            self.cutting.push(frame);
        }
        for mut frame in self.cutting.drain(..) {
            let len_bytes = fragments.write_next(self.memory.bytes_mut(&mut frame)).expect("it was counted");
            self.account.accept(len_bytes.into());
            put(PathPacket::new(self.memory, frame, len_bytes, meta));
        }
        Ok(count)
    }

    /// Ends the first `count` packets of a queue: they have come where they were to come.
    #[inline]
    pub fn deliver(&mut self, queue: &mut VecDeque<PathPacket<'m>>, count: usize) {
        let mut bytes = 0;
        self.pool.give_all(queue.drain(..count).map(|packet| {
            bytes += u64::from(packet.len_bytes());
            packet.into_frame()
        }));
        self.account.delivered.merge(Count { packets: count as u64, bytes });
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
