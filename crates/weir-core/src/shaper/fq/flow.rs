//! One flow of FQ: what waits in it, its departure time and its deficit, in one cache line.
//!
//! Its rule is the recurrence of the departure time in the parent's head. Times are in ticks of 2^-[`TICK_SHIFT`] ns since the FQ was
//! made, so that one number is both what is compared and what is kept of the fraction:
//!
//! ```text
//! cost = ceil(len * pace / 2^32)       pace in 2^-32 ticks a byte, rounded up
//! ```
//!
//! A packet that waits alone lies in the flow, so that whoever reads the flow has it; several lie in the slab.
//!
//! Owner: one [`super::Fq`], which links flows by [`FlowState::next`].
//!
//! Limits: a line holds a packet's handle of 40 bytes if there is a value it never has (a reference, a number that is never 0).

use crate::{
    packet::Packet,
    rate::{NS_PER_S, Rate},
    shaper::slab::{Fifo, Slab},
};

/// A time: 2^-[`TICK_SHIFT`] ns since the FQ was made.
pub type Ticks = u64;

/// With 64 ticks a nanosecond, what is lost by rounding is below 2^-6 ns a packet, and 2^64 ticks are 9 years.
pub const TICK_SHIFT: u32 = 6;

/// No flow: the end of a list.
pub const NONE: u32 = u32::MAX;

/// In the place of a link: the flow is on no list and in no slot, and nothing waits in it.
pub const NOT_LISTED: u32 = NONE - 1;

/// A flow. What reads it waits for one line, and nothing else of it lies in another.
#[derive(Debug)]
#[repr(align(64))]
pub struct FlowState<P> {
    queue: Queue<P>,
    /// The departure time of its next packet.
    pub ready: Ticks,
    pace: TicksPerByte,
    pub deficit: i32,
    /// The next one of the list it is in.
    pub next: u32,
}

#[derive(Debug)]
enum Queue<P> {
    /// One packet.
    One(P),
    /// None, or several.
    Slots(Fifo),
}

/// How long a byte takes, in 2^-32 ticks, which is not shorter; 0 is no pace.
#[derive(Clone, Copy, Debug)]
struct TicksPerByte(u64);

impl<P> FlowState<P> {
    /// A flow with nothing in it, which may send at once.
    pub fn new(pace: Option<Rate>) -> FlowState<P> {
        FlowState {
            queue: Queue::Slots(Fifo::default()),
            ready: 0,
            pace: TicksPerByte::new(pace),
            deficit: 0,
            next: NOT_LISTED,
        }
    }

    /// Gives it another pace, from its next packet on.
    pub fn set_pace(&mut self, pace: Option<Rate>) {
        self.pace = TicksPerByte::new(pace);
    }

    /// Puts the first packet into a flow in which nothing waits.
    #[inline]
    pub fn put_first(&mut self, packet: P) -> &P {
        self.queue = Queue::One(packet);
        match &self.queue {
            Queue::One(packet) => packet,
            Queue::Slots(_) => unreachable!("one was put in"),
        }
    }

    /// Puts a packet behind those that wait.
    ///
    /// # Panics
    ///
    /// When the slab is full.
    pub fn put(&mut self, packet: P, slab: &mut Slab<P>) {
        let mut fifo = Fifo::default();
        match std::mem::replace(&mut self.queue, Queue::Slots(Fifo::default())) {
            Queue::Slots(slots) if slots.is_empty() => {
                self.queue = Queue::One(packet);
                return;
            }
            Queue::Slots(slots) => fifo = slots,
            Queue::One(first) => assert!(slab.push(&mut fifo, first).is_ok(), "a slot for every packet"),
        }
        assert!(slab.push(&mut fifo, packet).is_ok(), "a slot for every packet");
        self.queue = Queue::Slots(fifo);
    }

    /// Takes the first packet out.
    #[inline]
    pub fn take(&mut self, slab: &mut Slab<P>) -> Option<P> {
        match &mut self.queue {
            Queue::Slots(fifo) => slab.pop(fifo),
            Queue::One(_) => self.take_only(),
        }
    }

    /// Takes the packet out if one alone waits.
    #[inline]
    pub fn take_only(&mut self) -> Option<P> {
        if let Queue::Slots(_) = self.queue {
            return None;
        }
        match std::mem::replace(&mut self.queue, Queue::Slots(Fifo::default())) {
            Queue::One(packet) => Some(packet),
            Queue::Slots(_) => None,
        }
    }

    /// Whether nothing waits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        matches!(&self.queue, Queue::Slots(fifo) if fifo.is_empty())
    }

    /// Whether it has both the time and the deficit for a packet.
    #[inline]
    pub fn may_send(&self, now: Ticks) -> bool {
        self.ready <= now && self.deficit > 0
    }

    /// The packet, if it may leave and is all there is to its flow's turn: it waits alone, and some of the deficit stays.
    #[inline]
    pub fn passing(&self, now: Ticks) -> Option<&P>
    where
        P: Packet,
    {
        let Queue::One(packet) = &self.queue else { return None };
        let passes = self.ready <= now && i64::from(self.deficit) > i64::from(packet.len_bytes());
        passes.then_some(packet)
    }

    /// Takes the next packet out, if it has both the time and the deficit for it, and charges it to both.
    #[inline]
    pub fn send(&mut self, now: Ticks, earliest: Ticks, slab: &mut Slab<P>) -> Option<P>
    where
        P: Packet,
    {
        if !self.may_send(now) {
            return None;
        }
        let packet = self.take(slab)?;
        self.deficit = self.deficit.saturating_sub_unsigned(packet.len_bytes());
        self.depart(packet.len_bytes(), earliest);
        Some(packet)
    }

    /// Whether it may send more at once.
    #[inline]
    pub fn goes_on(&self, now: Ticks) -> bool {
        !self.is_empty() && self.may_send(now)
    }

    /// Moves the departure time on by a packet. `earliest` is as far back as it may catch up.
    #[inline]
    pub fn depart(&mut self, len_bytes: u32, earliest: Ticks) {
        self.ready = self.ready.max(earliest).saturating_add(self.pace.cost(len_bytes));
    }
}

impl TicksPerByte {
    fn new(pace: Option<Rate>) -> TicksPerByte {
        let Some(pace) = pace else { return TicksPerByte(0) };
        let exact = (u128::from(8 * NS_PER_S) << (TICK_SHIFT + 32)).div_ceil(u128::from(pace.bits_per_s()));
        TicksPerByte(u64::try_from(exact).unwrap_or(u64::MAX))
    }

    /// How long a packet takes, rounded up; nothing without a pace.
    #[inline]
    fn cost(self, len_bytes: u32) -> Ticks {
        // Below 2^32 bytes times 2^64, over 2^32.
        ((u128::from(len_bytes) * u128::from(self.0) + u128::from(u32::MAX)) >> 32) as u64
    }
}
