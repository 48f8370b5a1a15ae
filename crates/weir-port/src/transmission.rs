//! The transmitting half of a queue: the packets on its transmit ring or with the device, and the outcome of each.
//!
//! Rule: `in_flight = put - completed`, at most the length of the transmit ring, because each completion must find room on a ring as long.
//! The kernel completes a packet that the device refused (`NET_XMIT_DROP`) like any other, and says so only by the return of the call that
//! took it: the refused packet is the last that call took from the ring.
//!
//! The ring's counter alone does not say how far the kernel has taken packets: before Linux 6.17 a call that ends with an error leaves it
//! as it was, and so does a later one whose first packet is refused. A completed packet has been taken, with all before it, as the kernel
//! takes them in order. And a refused packet is completed before the call returns, so it is the last in the order of the ring of all that
//! are completed then.
//!
//! Owner: the worker that owns the port. Source: kernel `net/xdp/xsk.c:__xsk_generic_xmit`, `net/core/dev.c:__dev_direct_xmit`.

use std::io;

use weir_path::frames::Frames;
use weir_path::packet::PathPacket;
use weir_path::port::{Completion, Transmit};
use weir_ring::memory::FrameMemory;

use crate::xsk::ring::Descriptor;
use crate::xsk::socket::XskSocket;

/// The transmit and the completion ring of a socket.
pub(crate) trait TransmitRings {
    /// Writes the next entry of the transmit ring.
    fn push(&mut self, descriptor: Descriptor);
    /// Makes the written entries visible to the kernel.
    fn publish(&mut self);
    /// The entries that the kernel has not taken, as far as is known.
    fn unconsumed(&self) -> u32;
    /// Notes that the kernel has taken all but so many entries.
    fn note_unconsumed(&mut self, unconsumed: u32);
    /// Makes the kernel take entries.
    fn kick(&mut self) -> io::Result<Transmit>;
    /// The addresses that have been completed and not popped.
    fn completed(&self) -> impl Iterator<Item = u64>;
    /// The next of these addresses, to be given back by [`TransmitRings::release`].
    fn pop(&mut self) -> Option<u64>;
    /// Gives back the popped entries.
    fn release(&mut self);
}

impl TransmitRings for XskSocket {
    fn push(&mut self, descriptor: Descriptor) {
        self.tx.push(descriptor);
    }

    fn publish(&mut self) {
        self.tx.publish();
    }

    fn unconsumed(&self) -> u32 {
        self.tx.unconsumed()
    }

    fn note_unconsumed(&mut self, unconsumed: u32) {
        self.tx.note_unconsumed(unconsumed);
    }

    fn kick(&mut self) -> io::Result<Transmit> {
        XskSocket::kick(self)
    }

    fn completed(&self) -> impl Iterator<Item = u64> {
        self.completion.waiting()
    }

    fn pop(&mut self) -> Option<u64> {
        self.completion.pop()
    }

    fn release(&mut self) {
        self.completion.release();
    }
}

/// Packets in transmission.
pub(crate) struct Transmission {
    /// The record of each packet, by frame index.
    in_flight: Box<[InFlight]>,
    packets: u32,
    bytes: u64,
    frame_bytes: u64,
    /// The length of the ring, in entries.
    ring: u32,
    /// The number under which its socket borrows frames.
    borrower: u16,
    /// The packets that were put, modulo 2^32.
    next: u32,
}

#[derive(Clone, Copy, Default)]
struct InFlight {
    len_bytes: u32,
    /// The packet's place in the order of the ring, counted as `next`.
    place: u32,
    refused: bool,
}

impl Transmission {
    /// The transmission of frames of `memory` by a ring of `ring` entries, a power of two.
    pub(crate) fn new(memory: &FrameMemory, ring: u32, borrower: u16) -> Transmission {
        let in_flight = vec![InFlight::default(); memory.frames() as usize].into_boxed_slice();
        let frame_bytes = u64::from(memory.frame_size_bytes());
        Transmission { in_flight, packets: 0, bytes: 0, frame_bytes, ring, borrower, next: 0 }
    }

    pub(crate) fn room(&self) -> u32 {
        self.ring - self.packets
    }

    pub(crate) fn in_flight(&self) -> (u32, u64) {
        (self.packets, self.bytes)
    }

    pub(crate) fn put(&mut self, packet: PathPacket, rings: &mut impl TransmitRings, frames: &mut Frames) {
        let index = frames.loans.lend(packet.frame, self.borrower);
        self.in_flight[index as usize] =
            InFlight { len_bytes: packet.len_bytes.into(), place: self.next, refused: false };
        self.packets += 1;
        self.bytes += u64::from(packet.len_bytes);
        self.next = self.next.wrapping_add(1);
        rings.push(Descriptor {
            address: u64::from(index) * self.frame_bytes + u64::from(packet.offset_bytes),
            length: packet.len_bytes.into(),
            options: 0,
        });
    }

    /// Makes the kernel take the packets on the ring; after a packet that the device refused it goes on if `goes_on` says so.
    pub(crate) fn flush(
        &mut self,
        rings: &mut impl TransmitRings,
        mut goes_on: impl FnMut() -> bool,
    ) -> io::Result<Transmit> {
        rings.publish();
        let mut waiting = rings.unconsumed();
        while waiting > 0 {
            let outcome = rings.kick()?;
            let mut last = None;
            if outcome == Transmit::Refused || rings.unconsumed() == waiting {
                last = self.last_completed(rings);
                last.into_iter().for_each(|last| rings.note_unconsumed(self.behind(last)));
            }
            let still = rings.unconsumed();
            match outcome {
                Transmit::Refused => {
                    // A packet that an earlier call refused is left out.
                    let refused =
                        last.map(|index| &mut self.in_flight[index]).filter(|packet| !packet.refused);
                    let is_found = refused.map(|packet| packet.refused = true).is_some();
                    if !is_found || !goes_on() {
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

    /// Of the packets that have been completed and not taken back, the frame index of the one that was put last.
    fn last_completed(&self, rings: &impl TransmitRings) -> Option<usize> {
        rings
            .completed()
            // The address is the kernel's word, so it is checked.
            .filter_map(|address| usize::try_from(address / self.frame_bytes).ok())
            .filter(|&index| index < self.in_flight.len())
            .min_by_key(|&index| self.behind(index))
    }

    /// The number of packets that were put after this one.
    fn behind(&self, index: usize) -> u32 {
        self.next.wrapping_sub(self.in_flight[index].place).wrapping_sub(1)
    }

    pub(crate) fn complete(
        &mut self,
        rings: &mut impl TransmitRings,
        frames: &mut Frames,
        mut each: impl FnMut(u32, Completion),
    ) -> usize {
        if self.packets == 0 {
            return 0;
        }
        let mut count = 0;
        while let Some(address) = rings.pop() {
            // The address is the kernel's word, so it is checked: an index that is not on loan is not followed.
            let index = u32::try_from(address / self.frame_bytes).unwrap_or(u32::MAX);
            // SAFETY: the index is from this socket's completion ring.
            let Ok(frame) = (unsafe { frames.loans.reclaim(index) }) else { continue };
            let InFlight { len_bytes, refused, .. } = self.in_flight[index as usize];
            // This packet was taken, and all before it.
            rings.note_unconsumed(self.behind(index as usize));
            each(len_bytes, if refused { Completion::Refused } else { Completion::Delivered });
            frames.pool.give(frame);
            self.bytes -= u64::from(len_bytes);
            count += 1;
        }
        rings.release();
        self.packets -= count as u32;
        count
    }
}

#[cfg(test)]
#[path = "transmission_tests.rs"]
mod tests;
