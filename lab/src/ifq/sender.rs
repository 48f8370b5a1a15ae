//! The senders before an input, whose packets fall due at random times, and the device's ring.
//!
//! A packet that falls due enters the ring. If that is full the senders are held, as the kernel stops them where a device's queue is
//! stopped, and go on as soon as there is room.
//!
//! Gaps are exponential and the same in every run: packet `n` of two runs of one rate falls due at the same time unless
//! senders are held.
//!
//! Owner: the input, which looks at it as often as it polls; nothing is due in between that it does not see afterwards, in order.

/// Slots of the ring, as Intel's drivers have unless told otherwise.
pub const RING_SLOTS: usize = 512;

/// The senders of an input.
pub struct Sender {
    mean_gap_ns: f64,
    /// The time when the next packet falls due; `None` after the last.
    next_ns: Option<f64>,
    end_ns: f64,
    random: u64,
    /// Packets in the ring.
    waiting: usize,
    offered: u64,
    is_held: bool,
}

impl Sender {
    /// Senders of so many packets a second, from `start_ns` to `end_ns`.
    pub fn new(packets_per_s: f64, start_ns: u64, end_ns: u64) -> Sender {
        let mut sender = Sender {
            mean_gap_ns: 1e9 / packets_per_s,
            next_ns: None,
            end_ns: end_ns as f64,
            random: 1,
            waiting: 0,
            offered: 0,
            is_held: false,
        };
        sender.next_after(start_ns as f64);
        sender
    }

    /// Lets everything happen that was due up to `now_ns`.
    pub fn advance(&mut self, now_ns: u64) {
        let now_ns = now_ns as f64;
        while let Some(due_ns) = self.next_ns.filter(|due_ns| *due_ns <= now_ns) {
            self.is_held |= self.waiting == RING_SLOTS;
            if self.waiting == RING_SLOTS {
                return;
            }
            // Senders that were held have had room since the last look at the earliest.
            let came_ns = if std::mem::take(&mut self.is_held) { now_ns } else { due_ns };
            self.waiting += 1;
            self.offered += 1;
            self.next_after(came_ns);
        }
    }

    /// Takes a packet out of the ring, if there is one.
    pub fn take(&mut self) -> Option<()> {
        self.waiting = self.waiting.checked_sub(1)?;
        Some(())
    }

    /// Packets in the ring.
    pub fn waiting(&self) -> usize {
        self.waiting
    }

    /// The time when the next packet falls due; `None` if none does before there is room, or ever.
    pub fn due_ns(&self) -> Option<u64> {
        self.next_ns.filter(|_| !self.is_held).map(|due_ns| due_ns.ceil() as u64)
    }

    /// Returns whether no packet is left and none will come.
    pub fn has_ended(&self) -> bool {
        self.next_ns.is_none() && self.waiting == 0
    }

    /// Packets that were sent.
    pub fn offered(&self) -> u64 {
        self.offered
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
    fn the_rate_is_kept() {
        let mut sender = Sender::new(1e6, 7, 7 + SECOND_NS / 10);
        let mut came = 0;
        for look_ns in (0..SECOND_NS / 10 + 8).step_by(50_000).chain([SECOND_NS]) {
            sender.advance(look_ns);
            came += std::iter::from_fn(|| sender.take()).count() as u64;
        }
        assert!((99_000..101_000).contains(&came), "{came} in a tenth of a second");
        assert!(sender.has_ended() && sender.offered() == came);
    }

    #[test]
    fn a_full_ring_holds_the_senders_until_there_is_room() {
        let mut sender = Sender::new(1e6, 0, SECOND_NS);
        sender.advance(SECOND_NS / 2);
        assert_eq!(
            (sender.offered(), sender.due_ns()),
            (RING_SLOTS as u64, None),
            "none can come before there is room"
        );
        let later_ns = SECOND_NS / 2 + 1000;
        sender.advance(later_ns);
        assert_eq!(sender.offered(), RING_SLOTS as u64);
        sender.take().unwrap();
        sender.advance(later_ns);
        assert_eq!(sender.offered(), RING_SLOTS as u64 + 1);
        assert!(sender.due_ns().unwrap() > later_ns, "the next one a gap after the one that was held");
    }
}
