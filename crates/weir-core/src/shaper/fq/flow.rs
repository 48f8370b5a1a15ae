//! One flow of FQ: what waits in it, its departure time and its deficit, in one cache line.
//!
//! Its rule is the recurrence of the departure time in the parent's head. That time is kept as the whole nanosecond at or after
//! it, which is all that is compared, and the fraction by which it is later than the nanosecond before.
//!
//! A packet that waits alone lies in the flow, so that whoever reads the flow has it; several lie in the slab.
//!
//! Owner: one [`super::Fq`], which links flows by [`Flow::next`].
//!
//! Limits: a line holds a packet's handle of 40 bytes if there is a value it never has (a reference, a number that is never 0).

use crate::{
    packet::Packet,
    rate::{NS_PER_S, Rate},
    shaper::slab::{Fifo, Slab},
};

/// No flow: the end of a list.
pub const NONE: u32 = u32::MAX;

/// In the place of a link: the flow is on no list and in no slot, and nothing waits in it.
pub const NOT_LISTED: u32 = NONE - 1;

/// A flow. What reads it waits for one line, and nothing else of it lies in another.
#[derive(Debug)]
#[repr(align(64))]
pub struct Flow<P> {
    queue: Queue<P>,
    /// The first whole nanosecond at which it may send: the departure time, rounded up.
    pub ready_ns: u64,
    /// What the departure time is later than `ready_ns - 1`, less one, in 2^-32 ns.
    ready_fraction: u32,
    pub deficit: i32,
    pace: NsPerByte,
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

/// How long a byte takes, in 2^-32 ns: `mantissa << exponent`, which is not shorter, nor longer by more than 2^-25 of it. 0 is
/// no pace.
#[derive(Clone, Copy, Debug)]
struct NsPerByte(u32);

impl<P> Flow<P> {
    /// A flow with nothing in it, which may send at once.
    pub fn new(pace: Option<Rate>) -> Flow<P> {
        Flow {
            queue: Queue::Slots(Fifo::default()),
            ready_ns: 0,
            ready_fraction: u32::MAX,
            deficit: 0,
            pace: NsPerByte::new(pace),
            next: NOT_LISTED,
        }
    }

    /// Gives it another pace, from its next packet on.
    pub fn set_pace(&mut self, pace: Option<Rate>) {
        self.ready_fraction = u32::MAX;
        self.pace = NsPerByte::new(pace);
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
    pub fn may_send(&self, now_ns: u64) -> bool {
        self.ready_ns <= now_ns && self.deficit > 0
    }

    /// The packet, if it may leave and is all there is to its flow's turn: it waits alone, and some of the deficit stays.
    #[inline]
    pub fn passing(&self, now_ns: u64) -> Option<&P>
    where
        P: Packet,
    {
        let Queue::One(packet) = &self.queue else { return None };
        let passes = self.ready_ns <= now_ns && i64::from(self.deficit) > i64::from(packet.len_bytes());
        passes.then_some(packet)
    }

    /// Takes the next packet out, if it has both the time and the deficit for it, and charges it to both.
    #[inline]
    pub fn send(&mut self, now_ns: u64, earliest_ns: u64, slab: &mut Slab<P>) -> Option<P>
    where
        P: Packet,
    {
        if !self.may_send(now_ns) {
            return None;
        }
        let packet = self.take(slab)?;
        self.deficit = self.deficit.saturating_sub_unsigned(packet.len_bytes());
        self.depart(packet.len_bytes(), earliest_ns);
        Some(packet)
    }

    /// Whether it may send more at once.
    #[inline]
    pub fn goes_on(&self, now_ns: u64) -> bool {
        !self.is_empty() && self.may_send(now_ns)
    }

    /// Moves the departure time on by a packet. `earliest_ns` is as far back as it may catch up.
    #[inline]
    pub fn depart(&mut self, len_bytes: u32, earliest_ns: u64) {
        // Rounded up it is no later than a whole nanosecond if it is not itself.
        if self.ready_ns <= earliest_ns {
            self.catch_up(earliest_ns);
        }
        let cost = u128::from(len_bytes) * u128::from(self.pace.get()) + u128::from(self.ready_fraction);
        self.ready_fraction = cost as u32;
        // At most 2^64 of a byte's 2^32 ns, times 2^32 bytes, over 2^32.
        self.ready_ns = self.ready_ns.saturating_add((cost >> 32) as u64);
    }
}

impl<P> Flow<P> {
    #[cold]
    fn catch_up(&mut self, earliest_ns: u64) {
        (self.ready_ns, self.ready_fraction) = (earliest_ns, u32::MAX);
    }
}

impl NsPerByte {
    const MANTISSA_BITS: u32 = 26;
    const MANTISSA_MAX: u64 = (1 << NsPerByte::MANTISSA_BITS) - 1;

    fn new(pace: Option<Rate>) -> NsPerByte {
        let Some(pace) = pace else { return NsPerByte(0) };
        let exact = (u128::from(8 * NS_PER_S) << 32).div_ceil(u128::from(pace.bits_per_s()));
        let exact = u64::try_from(exact).unwrap_or(u64::MAX);
        let fits = |exponent: &u32| exact.div_ceil(1 << exponent) <= NsPerByte::MANTISSA_MAX;
        let exponent = (0..u64::BITS - NsPerByte::MANTISSA_BITS)
            .find(fits)
            .unwrap_or(u64::BITS - NsPerByte::MANTISSA_BITS);
        let mantissa = exact.div_ceil(1 << exponent).min(NsPerByte::MANTISSA_MAX);
        NsPerByte(exponent << NsPerByte::MANTISSA_BITS | mantissa as u32)
    }

    #[inline]
    fn get(self) -> u64 {
        (u64::from(self.0) & NsPerByte::MANTISSA_MAX) << (self.0 >> NsPerByte::MANTISSA_BITS)
    }
}
