//! The verdicts of ESP on packets, and their sum over a burst.
//!
//! Rule: the bytes of a burst are counted before and after its packets change, and their difference is booked once, so that the books of the
//! stage balance whatever the lengths become.
//!
//! Pure.

use weir_core::drops::DropReason;

/// The verdict of ESP on a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EspVerdict {
    /// The packet leaves by this port.
    Pass(u16),
    /// No number is reserved for the packet: it waits.
    Wait,
    /// The packet is a fragment that came in on this side, and is put together with others.
    Gather(u16),
    /// The packet was for the gateway itself.
    Consume,
    /// The packet is cut first, into packets of at most so many bytes.
    Cut(u16),
    /// The packet leaves by this port in fragments, of at most so many bytes.
    PassCut(u16, u16),
    /// The packet is too long, and its sender is told this length, in bytes, which is not.
    TooLong(u16),
    /// The packet is dropped.
    Drop(DropReason),
}

/// The packets that have a verdict, and their lengths before and after they had it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Decided {
    pub packets: usize,
    before_bytes: u64,
    pub after_bytes: u64,
    /// The side to which packets pass.
    other: u16,
    /// The number of packets that pass to that side.
    passed: usize,
}

impl Decided {
    /// No packet yet, of some that pass to a side if they pass.
    pub(super) fn to(other: u16) -> Decided {
        Decided { other, ..Decided::default() }
    }

    /// One packet, whose length changed.
    pub(crate) fn of(before: u16, after: u16) -> Decided {
        Decided { packets: 1, before_bytes: before.into(), after_bytes: after.into(), ..Decided::default() }
    }

    #[inline(always)]
    pub(super) fn note(&mut self, before: u16, after: u16, verdict: EspVerdict) {
        self.packets += 1;
        self.before_bytes += u64::from(before);
        self.after_bytes += u64::from(after);
        self.passed += usize::from(matches!(verdict, EspVerdict::Pass(out) if out == self.other));
    }

    /// The side to which all packets pass, if they do.
    pub(crate) fn only(&self) -> Option<u16> {
        (self.packets > 0 && self.passed == self.packets).then_some(self.other)
    }

    /// The bytes by which the packets grew, or shrank, all together.
    pub(crate) fn change(&self) -> [u64; 2] {
        let Decided { before_bytes, after_bytes, .. } = *self;
        [after_bytes.saturating_sub(before_bytes), before_bytes.saturating_sub(after_bytes)]
    }
}
