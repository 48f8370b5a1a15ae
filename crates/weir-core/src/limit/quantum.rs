//! The quantum of a leaf, which is the bytes that it sends in its turn, and the longest packet that its queue takes whole.
//!
//! ```text
//! quantum = 3 ms of the ceiling; one frame and headers at least, the longest packet of segmentation offloads at most
//! ```
//!
//! Rule: no packet in a leaf is longer than its quantum. HTB adds the quantum to a leaf once a turn, however far below zero the leaf is, so a
//! leaf of longer packets would send more bytes than the others. The longest packet of segmentation offloads takes half a second at 1 Mbit/s.
//! So where a quantum is shorter, the kernel cuts such a packet into its segments on the way into the leaf. From 197 Mbit/s on packets stay
//! whole, which costs less of the processor.
//!
//! Limits: packets that wait when a ceiling is lowered stay whole. Leaves below different ceilings that borrow from one class have quanta of
//! different lengths, and share it in that proportion.
//!
//! Source: kernel `net/sched/sch_htb.c:htb_dequeue_tree`, `net/sched/sch_tbf.c:tbf_segment`.

use super::QueueParameters;
use crate::rate::Rate;

/// The time of a quantum at the ceiling.
const QUANTUM_NS: u64 = 3_000_000;
/// The bytes above a frame in the least quantum: a segment whose payload fits a frame fits with its headers.
pub const HEADERS_BYTES: u32 = 256;

/// The queue of a leaf, first in, first out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeafQueue {
    /// The bytes that may wait in it.
    pub bytes: u32,
    /// The longest packet that it takes whole: a longer one of segmentation offloads is cut, another one dropped.
    pub packet_bytes_max: u32,
}

impl LeafQueue {
    /// Returns whether `other` cuts packets that this one takes whole.
    pub fn cuts_shorter(&self, other: &LeafQueue) -> bool {
        other.packet_bytes_max < self.packet_bytes_max
    }
}

impl QueueParameters {
    /// The longest packet with segmentation offloads, the headers of all its segments included: an eighth more, for segments of 530 bytes.
    pub(super) fn gso_bytes_max(&self) -> u32 {
        self.packet_bytes_max + self.packet_bytes_max / 8
    }

    /// The quantum of a leaf with a ceiling. No packet that cannot be cut is longer, as long as the MTU stays.
    pub(super) fn quantum_bytes(&self, ceil: Rate) -> u32 {
        let quantum_bytes = u32::try_from(ceil.bytes_in(QUANTUM_NS)).unwrap_or(u32::MAX);
        quantum_bytes.max(self.frame_bytes_max + HEADERS_BYTES).min(self.gso_bytes_max())
    }

    /// The queue of a leaf with a quantum.
    pub(super) fn leaf_queue(&self, bytes: u32, quantum_bytes: u32) -> LeafQueue {
        let is_whole = quantum_bytes >= self.gso_bytes_max();
        LeafQueue { bytes, packet_bytes_max: if is_whole { u32::MAX } else { quantum_bytes } }
    }

    /// Parameters as a veth has them.
    #[cfg(test)]
    pub(super) fn for_tests(rate: Rate, burst_bytes: u64) -> QueueParameters {
        QueueParameters { rate, burst_bytes, packet_bytes_max: 65_536, frame_bytes_max: 1518 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quantum_bytes(frame_bytes_max: u32, bits_per_s: u64) -> u32 {
        let rate = Rate::from_bits_per_s(bits_per_s).unwrap();
        QueueParameters { frame_bytes_max, ..QueueParameters::for_tests(rate, 20_480) }.quantum_bytes(rate)
    }

    #[test]
    fn a_quantum_is_3_ms_between_a_frame_and_the_longest_packet() {
        for (bits_per_s, bytes) in [
            (8_000, 1774),
            (1_000_000, 1774),
            (4_800_000, 1800),
            (20_000_000, 7500),
            (196_600_000, 73_725),
            (196_610_000, 73_728),
            (100_000_000_000, 73_728),
            (10_000_000_000_000, 73_728),
        ] {
            assert_eq!(quantum_bytes(1518, bits_per_s), bytes, "{bits_per_s}");
        }
        assert_eq!(quantum_bytes(9018, 1_000_000), 9274);
        assert_eq!(quantum_bytes(86, 8_000), 342);
        // The largest MTU that there is.
        assert_eq!(quantum_bytes(65_553, 1_000_000), 65_809);
    }

    #[test]
    fn packets_stay_whole_where_a_quantum_has_room_for_the_longest() {
        let wanted = QueueParameters::for_tests(Rate::from_bits_per_s(1_000_000).unwrap(), 20_480);
        assert_eq!(wanted.leaf_queue(9, 1774), LeafQueue { bytes: 9, packet_bytes_max: 1774 });
        assert_eq!(wanted.leaf_queue(9, 73_728), LeafQueue { bytes: 9, packet_bytes_max: u32::MAX });
    }
}
