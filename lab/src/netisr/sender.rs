//! What stands before the receiver: senders whose packets fall due at random times, and the device's ring.
//!
//! A packet that falls due enters the ring, and waits there from then on. If the ring is full, one of two things happens:
//! - *held*: the senders stop, as the kernel stops them where the device's queue is stopped, and go on as soon as there is room;
//! - *dropped*: the device drops the packet, as a network card does, and the senders never learn of it.
//!
//! Gaps are exponential and the same in every run: packet `n` of two runs of one rate falls due at the same time unless
//! senders are held.
//!
//! Owner: the receiver, which looks at it as often as it polls; nothing is due in between that it does not see afterwards,
//! in order.

use std::collections::VecDeque;

/// Slots of the ring: what Intel's drivers use unless told otherwise.
pub const RING_SLOTS: usize = 512;

/// See the head of the file.
pub struct Sender {
    mean_gap_ns: f64,
    /// When the next packet falls due; `None` once they have ended.
    next_ns: Option<f64>,
    end_ns: f64,
    drops: bool,
    random: u64,
    /// For each packet in the ring, when it came.
    ring: VecDeque<u64>,
    offered: u64,
    dropped: u64,
    is_held: bool,
    held_ns: f64,
}

impl Sender {
    /// Senders of so many packets a second, from `start_ns` to `end_ns`.
    pub fn new(packets_per_s: f64, drops: bool, start_ns: u64, end_ns: u64) -> Sender {
        let mut sender = Sender {
            mean_gap_ns: 1e9 / packets_per_s,
            next_ns: None,
            end_ns: end_ns as f64,
            drops,
            random: 1,
            ring: VecDeque::with_capacity(RING_SLOTS),
            offered: 0,
            dropped: 0,
            is_held: false,
            held_ns: 0.0,
        };
        sender.next_after(start_ns as f64);
        sender
    }

    /// Lets everything happen that was due up to `now_ns`.
    pub fn advance(&mut self, now_ns: u64) {
        let now_ns = now_ns as f64;
        while let Some(due_ns) = self.next_ns.filter(|due_ns| *due_ns <= now_ns) {
            if self.ring.len() < RING_SLOTS {
                // Senders that were held have had room since the receiver's last look at the earliest.
                let came_ns = if std::mem::take(&mut self.is_held) { now_ns } else { due_ns };
                self.held_ns += came_ns - due_ns;
                self.ring.push_back(came_ns as u64);
                self.offered += 1;
                self.next_after(came_ns);
            } else if self.drops {
                self.offered += 1;
                self.dropped += 1;
                self.next_after(due_ns);
            } else {
                self.is_held = true;
                return;
            }
        }
    }

    /// Takes the oldest packet out of the ring; when it came.
    pub fn take(&mut self) -> Option<u64> {
        self.ring.pop_front()
    }

    /// When the next packet falls due; `None` if none does before the receiver makes room, or ever.
    pub fn due_ns(&self) -> Option<u64> {
        self.next_ns.filter(|_| !self.is_held).map(|due_ns| due_ns.ceil() as u64)
    }

    /// Whether no packet is left and none will come.
    pub fn has_ended(&self) -> bool {
        self.next_ns.is_none() && self.ring.is_empty()
    }

    /// Packets in the ring.
    pub fn waiting(&self) -> usize {
        self.ring.len()
    }

    /// Packets that were sent, dropped ones included.
    pub fn offered(&self) -> u64 {
        self.offered
    }

    /// Packets that found the ring full and were dropped.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// For how long the senders were held.
    pub fn held_ns(&self) -> u64 {
        self.held_ns as u64
    }

    fn next_after(&mut self, ns: f64) {
        let next_ns = ns + self.gap_ns();
        self.next_ns = (next_ns < self.end_ns).then_some(next_ns);
    }

    /// Splitmix64, made exponential.
    fn gap_ns(&mut self) -> f64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.random ^ (self.random >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let uniform = ((mixed ^ (mixed >> 31)) >> 11) as f64 / (1u64 << 53) as f64;
        -self.mean_gap_ns * (1.0 - uniform).ln()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND_NS: u64 = 1_000_000_000;

    #[test]
    fn the_rate_is_kept_and_every_packet_has_its_own_time() {
        let mut sender = Sender::new(1e6, false, 7, 7 + SECOND_NS / 10);
        let mut times = Vec::new();
        for look_ns in (0..SECOND_NS / 10 + 8).step_by(50_000).chain([SECOND_NS]) {
            sender.advance(look_ns);
            times.extend(std::iter::from_fn(|| sender.take()));
        }
        assert!((99_000..101_000).contains(&times.len()), "{} in a tenth of a second", times.len());
        assert!(times.is_sorted() && times[0] >= 7, "in the order in which they fell due");
        assert!(sender.has_ended() && (sender.dropped(), sender.held_ns()) == (0, 0));
        assert_eq!(sender.offered(), times.len() as u64);
    }

    #[test]
    fn a_full_ring_holds_the_senders_until_there_is_room() {
        let mut sender = Sender::new(1e6, false, 0, SECOND_NS);
        sender.advance(SECOND_NS / 2);
        assert_eq!((sender.waiting(), sender.dropped()), (RING_SLOTS, 0));
        assert_eq!(sender.due_ns(), None, "nothing can come before there is room");
        let later_ns = SECOND_NS / 2 + 1000;
        sender.advance(later_ns);
        assert_eq!(sender.waiting(), RING_SLOTS);
        assert!(sender.take().unwrap() < 100_000, "the oldest first");
        sender.advance(later_ns);
        assert_eq!((sender.waiting(), sender.offered()), (RING_SLOTS, RING_SLOTS as u64 + 1));
        assert!(sender.due_ns().unwrap() > later_ns, "the next one a gap after the one that was held");
        assert!(sender.held_ns() > SECOND_NS / 2 - SECOND_NS / 1000, "{} ns", sender.held_ns());
    }

    #[test]
    fn a_full_ring_drops_by_the_other_rule() {
        let mut sender = Sender::new(1e6, true, 0, SECOND_NS / 10);
        sender.advance(SECOND_NS);
        assert_eq!(sender.waiting(), RING_SLOTS);
        assert_eq!(sender.offered(), RING_SLOTS as u64 + sender.dropped());
        assert!((99_000..101_000).contains(&sender.offered()), "{} were sent", sender.offered());
        assert!(!sender.has_ended());
        while sender.take().is_some() {}
        assert!(sender.has_ended());
    }
}
