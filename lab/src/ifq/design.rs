//! The device of the lab, and the interface of a way to transmit that is no path: two sides, one for each core, before the device.
//!
//! The device is the same for all, in memory: a ring of [`RING_SLOTS`], [`PUT_NS`] for each packet put into it (a descriptor), and
//! [`FLUSH_NS`] each time it is told of new ones (a register). Packets in the ring have left once somebody who may enter the device looks
//! (`reclaim`, a driver's `txeof`); its line is never the limit.
//!
//! Ownership: side 0 has an input; side 1 has the other, and the device's interrupts. Each design has its own rule of who may enter the
//! device. Limits: a packet is its input and number; no body is moved.

use std::time::Duration;

use crate::cost::Cost;

/// Slots of the device's ring.
pub const RING_SLOTS: usize = 256;
/// Packets that wait for the device at most, in each design's own queue (`ifq_maxlen` of its time was 50 to 256).
pub const QUEUE_PACKETS: usize = 256;
/// The cost of putting one packet into the ring, in nanoseconds.
pub const PUT_NS: u64 = 50;
/// The cost of telling the device of new packets, in nanoseconds.
pub const FLUSH_NS: u64 = 200;

/// A packet that is forwarded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IfqPacket {
    /// The input that the packet came by.
    pub input: usize,
    /// Counts up from 0 within its input.
    pub number: u64,
}

/// The costs of the device's functions, in instructions.
#[derive(Debug, Clone, Copy)]
pub struct Costs {
    put: Cost,
    flush: Cost,
}

impl Costs {
    /// The costs as they are measured now.
    pub fn measure() -> Costs {
        Costs { put: Cost::of_ns(PUT_NS), flush: Cost::of_ns(FLUSH_NS) }
    }

    /// Costs of nothing but the calls.
    #[cfg(test)]
    pub fn none() -> Costs {
        Costs { put: Cost::of_ns(0), flush: Cost::of_ns(0) }
    }
}

/// The device.
#[derive(Debug)]
pub struct MemoryDevice {
    costs: Costs,
    in_ring: usize,
    /// The number of each input that is due.
    next: [u64; 2],
    sent: [u64; 2],
    /// Packets with a lower number than one of their input before them.
    pub reordered: u64,
}

impl MemoryDevice {
    /// An empty ring.
    pub fn new(costs: Costs) -> MemoryDevice {
        MemoryDevice { costs, in_ring: 0, next: [0; 2], sent: [0; 2], reordered: 0 }
    }

    /// Takes back the slots of packets that have left.
    pub fn reclaim(&mut self) {
        self.in_ring = 0;
    }

    /// Packets of an input that were sent.
    pub fn sent(&self, input: usize) -> u64 {
        self.sent[input]
    }

    /// The number of free slots of the ring.
    pub fn room(&self) -> usize {
        RING_SLOTS - self.in_ring
    }

    /// Returns whether the ring has a free slot.
    pub fn has_room(&self) -> bool {
        self.room() > 0
    }

    /// Takes a packet, or gives it back if it has no room.
    ///
    /// # Errors
    /// The packet.
    pub fn put(&mut self, packet: IfqPacket) -> Result<(), IfqPacket> {
        if !self.has_room() {
            return Err(packet);
        }
        self.costs.put.spend();
        self.in_ring += 1;
        self.sent[packet.input] += 1;
        let next = &mut self.next[packet.input];
        self.reordered += u64::from(packet.number < *next);
        *next = (*next).max(packet.number + 1);
        Ok(())
    }

    /// Tells the device of the packets that it took.
    pub fn flush(&mut self) {
        self.costs.flush.spend();
    }
}

/// The counts of a side, by the published names; the head of each design says what it counts as each.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// The device was entered, or had to be waited for.
    pub enter: u64,
    /// A step that may fail was tried.
    pub tried: u64,
    /// Such a step failed.
    pub tryfail: u64,
    /// Someone went to sleep for the device.
    pub sleep: u64,
    /// The device's core was interrupted.
    pub kicks_sent: u64,
    /// The device's core was not interrupted, as it knew or was about to look.
    pub kicks_saved: u64,
    /// Packets dropped because the queue was full.
    pub dropped: u64,
}

impl Counts {
    /// Both sides' together.
    pub fn add(self, other: Counts) -> Counts {
        Counts {
            enter: self.enter + other.enter,
            tried: self.tried + other.tried,
            tryfail: self.tryfail + other.tryfail,
            sleep: self.sleep + other.sleep,
            kicks_sent: self.kicks_sent + other.kicks_sent,
            kicks_saved: self.kicks_saved + other.kicks_saved,
            dropped: self.dropped + other.dropped,
        }
    }
}

/// One core's side of a design.
pub trait Side: Send {
    /// Transmits a packet, drops it by the design's own rule, or gives it back: then it is offered again.
    fn transmit(&mut self, packet: IfqPacket, now_ns: u64) -> Result<(), IfqPacket>;

    /// Does the core's duty to the device, once a pass. Returns how many packets it moved.
    fn serve(&mut self) -> usize {
        0
    }

    /// Having found nothing, sleeps until the device's core is kicked, if the design does that, or for so long.
    fn sleep(&mut self, limit: Duration) {
        std::thread::sleep(limit);
    }

    /// The counts, and the device if it is here.
    fn finish(self) -> (Counts, Option<MemoryDevice>);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_device_takes_what_its_ring_holds_and_sees_the_order() {
        let mut device = MemoryDevice::new(Costs::none());
        let packet = |input, number| IfqPacket { input, number };
        for number in 0..RING_SLOTS as u64 {
            device.put(packet(0, number)).unwrap();
        }
        assert_eq!(device.put(packet(1, 0)), Err(packet(1, 0)));
        device.reclaim();
        [packet(1, 1), packet(1, 0), packet(1, 2)].into_iter().for_each(|packet| device.put(packet).unwrap());
        assert_eq!((device.sent(0), device.sent(1), device.reordered), (RING_SLOTS as u64, 3, 1));
    }
}
