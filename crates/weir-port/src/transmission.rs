//! The transmitting half of a queue: what is on its transmit ring or with the device, and what became of it.
//!
//! Rule: `in_flight = put - completed`, at most the length of the transmit ring, because each completion must find room on a
//! ring as long. The kernel completes a packet that the device refused (`NET_XMIT_DROP`) like any other, and says so only by the
//! return of the call that took it: the refused one is the last that call took from the ring.
//!
//! Owner: the worker that owns the port. Source: kernel `net/xdp/xsk.c:__xsk_generic_xmit`.

use std::io;

use crate::frames::{Frames, Received};
use crate::xsk::ring::Descriptor;
use crate::xsk::socket::{Transmit, XskSocket};

/// What became of a transmitted packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Completion {
    /// The device took it.
    Delivered,
    /// The device refused it for good.
    Refused,
}

/// Packets in transmission.
pub(crate) struct Transmission {
    /// Lengths and fates, by frame index.
    in_flight: Box<[InFlight]>,
    packets: u32,
    bytes: u64,
    /// The frame indexes on the transmit ring, in order: entry `i` of the ring is at `i & mask`.
    ring: Box<[u32]>,
    next: u32,
}

#[derive(Clone, Copy, Default)]
struct InFlight {
    len_bytes: u32,
    refused: bool,
}

impl Transmission {
    /// For a memory of so many frames and a ring of so many entries, a power of two.
    pub(crate) fn new(frames: u32, ring: u32) -> Transmission {
        Transmission {
            in_flight: vec![InFlight::default(); frames as usize].into_boxed_slice(),
            packets: 0,
            bytes: 0,
            ring: vec![0; ring as usize].into_boxed_slice(),
            next: 0,
        }
    }

    fn slot(&mut self, index: u32) -> &mut u32 {
        let mask = self.ring.len() as u32 - 1;
        &mut self.ring[(index & mask) as usize]
    }

    pub(crate) fn room(&self) -> u32 {
        self.ring.len() as u32 - self.packets
    }

    pub(crate) fn in_flight(&self) -> (u32, u64) {
        (self.packets, self.bytes)
    }

    pub(crate) fn put(&mut self, packet: Received, socket: &mut XskSocket, frames: &mut Frames) {
        let frame_bytes = u64::from(frames.pool.memory().frame_size_bytes());
        let index = frames.loans.lend(packet.frame);
        self.in_flight[index as usize] = InFlight { len_bytes: packet.len_bytes, refused: false };
        self.packets += 1;
        self.bytes += u64::from(packet.len_bytes);
        *self.slot(self.next) = index;
        self.next = self.next.wrapping_add(1);
        socket.tx.push(Descriptor {
            address: u64::from(index) * frame_bytes + u64::from(packet.offset_bytes),
            length: packet.len_bytes,
            options: 0,
        });
    }

    /// Makes the kernel take what is on the ring; after a packet that the device refused it goes on if `goes_on` says so.
    pub(crate) fn flush(
        &mut self,
        socket: &mut XskSocket,
        mut goes_on: impl FnMut() -> bool,
    ) -> io::Result<Transmit> {
        socket.tx.publish();
        let mut waiting = socket.tx.unconsumed();
        while waiting > 0 {
            let outcome = socket.kick()?;
            let still = socket.tx.unconsumed();
            match outcome {
                Transmit::Refused => {
                    let last = *self.slot(self.next.wrapping_sub(still + 1));
                    self.in_flight[last as usize].refused = true;
                    if !goes_on() {
                        return Ok(Transmit::Refused);
                    }
                }
                Transmit::Down => return Ok(Transmit::Down),
                _ if still == waiting => return Ok(Transmit::Busy),
                _ => {}
            }
            waiting = still;
        }
        Ok(Transmit::Progress)
    }

    pub(crate) fn complete(
        &mut self,
        socket: &mut XskSocket,
        frames: &mut Frames,
        mut each: impl FnMut(u32, Completion),
    ) -> usize {
        if self.packets == 0 {
            return 0;
        }
        let frame_bytes = u64::from(frames.pool.memory().frame_size_bytes());
        let mut count = 0;
        while let Some(address) = socket.completion.pop() {
            // The kernel's word, checked: an index that is not on loan is not followed.
            let index = u32::try_from(address / frame_bytes).unwrap_or(u32::MAX);
            let Ok(frame) = frames.loans.reclaim(index) else { continue };
            let InFlight { len_bytes, refused } = self.in_flight[index as usize];
            each(len_bytes, if refused { Completion::Refused } else { Completion::Delivered });
            frames.pool.give(frame);
            self.bytes -= u64::from(len_bytes);
            count += 1;
        }
        socket.completion.release();
        self.packets -= count as u32;
        count
    }
}
