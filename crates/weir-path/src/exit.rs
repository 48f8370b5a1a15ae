//! The way out at one port: packets that were released go onto the transmit ring, and their completion ends the account.
//!
//! Where there is no carrier no packet is handed over (`carrier.rs`).
//!
//! Conservation (invariant 1), at every instant: accepted = delivered + dropped + in flight. Owner: the worker that owns the port, which
//! alone enters its device; others hand it packets, and wake it if it sleeps ([`TransmitCounts`]). A packet that is put here has room: at
//! most as many packets are on their way to a port as its transmit ring has entries.
//!
//! Source of the counts: S. Ziehau, "altq spinlock and if_start dispatch", DragonFly kernel list, 13 April 2008 (`hw.em1.serializer_*`).
//! They are counted once a pass, never for each packet.

use std::io;

use weir_core::account::Account;
use weir_core::drops::DropReason;

use crate::backoff::Backoff;
use crate::carrier::{Carrier, DOWN_RETRY_NS};
use crate::frames::Frames;
use crate::packet::PathPacket;
use crate::port::{Completion, Transmit, TransmitRing};
use crate::shaping::Release;

/// The uses of the device of a port, by the names that were published (docs/origins.md, 3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TransmitCounts {
    /// Passes in which the owner had something to transmit there.
    pub enter: u64,
    /// Batches that were offered to the device.
    pub tried: u64,
    /// Batches of which the device took fewer packets than were offered.
    pub tryfail: u64,
    /// Times that the owner went to sleep with packets still to send there.
    pub sleep: u64,
    /// Batches from other workers for which the owner had been woken.
    pub kicks_sent: u64,
    /// Batches from other workers that found the owner awake.
    pub kicks_saved: u64,
}

/// The books of one port's way out.
#[derive(Debug, Default)]
pub struct Exit {
    account: Account,
    counts: TransmitCounts,
    offer: Offer,
    carrier: Carrier,
    backoff: Backoff,
}

/// The packets that the device is to take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Offer {
    #[default]
    Nothing,
    /// The packets on the ring.
    Ring,
    /// The packets on the ring, and more for which the ring has no room.
    Beyond,
}

impl Exit {
    /// Puts the packets of a release on the transmit ring of `port` in their order, which has room for them, and leaves none.
    pub fn put(
        &mut self,
        packets: &mut Vec<PathPacket>,
        released: &Release,
        port: &mut impl TransmitRing,
        frames: &mut Frames,
    ) {
        if released.is_short {
            self.offer = Offer::Beyond;
        } else if !packets.is_empty() {
            self.offer = Offer::Ring;
        }
        let mut longest_bytes = 0;
        for packet in packets.iter_mut() {
            packet.make_mark(frames.memory());
            longest_bytes = packet.len_bytes.max(longest_bytes);
        }
        let mut put = released.left;
        self.account.accept_all(put);
        let bytes_max = port.packet_bytes_max();
        if u32::from(longest_bytes) > bytes_max {
            for packet in packets.extract_if(.., |packet| u32::from(packet.len_bytes) > bytes_max) {
                put.sub(packet.len_bytes.into());
                self.account.drop(DropReason::TooLong, packet.len_bytes.into());
                frames.pool.give(packet.frame);
            }
        }
        port.put(packets, put, frames);
    }

    /// Makes the device transmit; returns the time at which to try again the packets that it does not take now.
    ///
    /// # Errors
    /// If the device fails for good.
    pub fn flush(&mut self, port: &mut impl TransmitRing, now_ns: u64) -> io::Result<Option<u64>> {
        let is_offered = self.offer != Offer::Nothing;
        self.counts.enter += u64::from(is_offered);
        if self.carrier.stays_missing(now_ns, || port.has_carrier()) {
            return Ok(Some(self.carrier.ask_ns()));
        }
        let outcome = port.flush(&mut self.carrier, now_ns)?;
        let is_left = outcome != Transmit::Progress;
        self.counts.tried += u64::from(is_offered);
        self.counts.tryfail += u64::from(is_offered && (is_left || self.offer == Offer::Beyond));
        // The packets that the device did not take stay on the ring, and are offered again.
        self.offer = if is_left { Offer::Ring } else { Offer::Nothing };
        Ok(match outcome {
            Transmit::Progress if port.room() > 0 => None,
            Transmit::Down => Some(now_ns + DOWN_RETRY_NS),
            Transmit::Refused => Some(self.carrier.ask_ns()),
            Transmit::Progress | Transmit::Busy => Some(self.backoff.look_ns(self.finished(port), now_ns)),
        })
    }

    /// Books the outcomes of transmissions, so that the books are up to date.
    pub fn complete(&mut self, port: &mut impl TransmitRing, frames: &mut Frames) {
        let account = &mut self.account;
        port.complete(frames, |ended, fate| match fate {
            Completion::Delivered => account.deliver_all(ended),
            Completion::Refused => account.drop_all(DropReason::DeviceRefused, ended),
            Completion::Dropped(reason) => account.drop_all(reason, ended),
        });
    }

    /// Books the packets on their way out as dropped: the port is gone.
    pub fn abandon(&mut self, port: &impl TransmitRing) {
        self.account.drop_all(DropReason::PortGone, port.in_flight());
        (self.offer, self.carrier, self.backoff) = (Offer::Nothing, Carrier::default(), Backoff::default());
    }

    /// The number of packets that have come here and are gone again, in whatever way.
    pub fn finished(&self, port: &impl TransmitRing) -> u64 {
        self.account.accepted.packets - port.in_flight().packets
    }

    /// The books of the way out.
    pub fn account(&self) -> &Account {
        &self.account
    }

    /// The uses of the device.
    pub fn counts(&self) -> TransmitCounts {
        self.counts
    }

    /// Notes that the owner slept; `is_waiting` tells whether packets wait to be put here.
    pub(crate) fn note_sleep(&mut self, is_waiting: bool) {
        self.counts.sleep += u64::from(is_waiting || self.offer != Offer::Nothing);
    }

    /// Notes that a batch has come from other workers, for which the owner was woken or not.
    pub(crate) fn note_batch(&mut self, is_woken: bool) {
        match is_woken {
            true => self.counts.kicks_sent += 1,
            false => self.counts.kicks_saved += 1,
        }
    }
}
