//! The way out of the classes: what they admit now, a bounded number of packets at a time, and when they admit the next.

use weir_core::shaper::backlog::Dequeue;

use super::Shaping;
use crate::frames::Frames;
use crate::packet::PathPacket;

/// The most packets that leave in one pass.
const BURST: usize = 64;

/// What left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Release {
    /// How many packets.
    pub packets: usize,
    /// When the next may leave, if it is time that it waits for.
    pub wake_ns: Option<u64>,
}

/// What a direction counts where packets leave its classes, apart from the books of these.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReleaseCounts {
    /// Packets that left in the pass that brought them in.
    pub dispatched: u64,
    /// Packets that left later.
    pub delayed: u64,
    /// Packets that were dropped after they had waited.
    pub dropped: u64,
}

impl Shaping {
    /// Lets out what the classes admit, `room` packets at the most. Departures are gathered, never for so long that a bucket would
    /// overflow: a wake-up for each packet would cost more.
    pub fn release(
        &mut self,
        room: u32,
        frames: &mut Frames,
        now_ns: u64,
        mut out: impl FnMut(PathPacket, &mut Frames),
    ) -> Release {
        let most = BURST.min(room as usize);
        let mut packets = 0;
        while packets < most {
            match self.dequeue(now_ns) {
                Dequeue::Packet(_, packet) => {
                    packets += 1;
                    if packet.meta.arrival_ns == now_ns {
                        self.released.dispatched += 1;
                    } else {
                        self.released.delayed += 1;
                    }
                    out(packet, frames);
                }
                Dequeue::Dropped(_, packet) => {
                    self.released.dropped += 1;
                    frames.pool.give(packet.frame);
                }
                Dequeue::NotBefore(ready_ns) => {
                    let wake_ns = Some(ready_ns.max(now_ns + self.gather_ns));
                    return Release { packets, wake_ns };
                }
                Dequeue::Empty => break,
            }
        }
        Release { packets, wake_ns: None }
    }

    /// What was counted where packets left.
    pub fn released(&self) -> ReleaseCounts {
        self.released
    }
}
