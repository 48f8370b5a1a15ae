//! The way out at one port: what was released goes onto the transmit ring, and its completion ends the account.
//!
//! Where there is no carrier nothing is handed over (`carrier.rs`).
//!
//! Conservation (invariant 1), at every instant: accepted = delivered + dropped + in flight. Owner: the worker that owns the
//! port. What is put here has room: at most as many packets are on their way to a port as its transmit ring has entries.

use std::io;

use weir_core::account::Account;
use weir_core::drops::{Count, DropReason};

use crate::backoff::Backoff;
use crate::carrier::{Carrier, DOWN_RETRY_NS};
use crate::frames::Frames;
use crate::packet::PathPacket;
use crate::port::{Completion, Transmit, TransmitRing};

/// The books of one port's way out.
#[derive(Debug, Default)]
pub struct Exit {
    account: Account,
    busy: u64,
    carrier: Carrier,
    backoff: Backoff,
}

impl Exit {
    /// Puts packets on the transmit ring of `port` in their order, which has room for them, and leaves none.
    pub fn put(&mut self, packets: &mut Vec<PathPacket>, port: &mut impl TransmitRing, frames: &mut Frames) {
        let mut put = Count::default();
        let mut longest_bytes = 0;
        for packet in packets.iter_mut() {
            packet.make_mark(frames.memory());
            longest_bytes = packet.len_bytes.max(longest_bytes);
            put.add(packet.len_bytes.into());
        }
        self.account.accept_all(put);
        let bytes_max = port.packet_bytes_max();
        if u32::from(longest_bytes) > bytes_max {
            for packet in packets.extract_if(.., |packet| u32::from(packet.len_bytes) > bytes_max) {
                self.account.drop(DropReason::TooLong, packet.len_bytes.into());
                frames.pool.give(packet.frame);
            }
        }
        port.put(packets, frames);
    }

    /// Makes the device transmit; when to try again what it does not take now.
    ///
    /// # Errors
    /// If the device fails for good.
    pub fn flush(&mut self, port: &mut impl TransmitRing, now_ns: u64) -> io::Result<Option<u64>> {
        if self.carrier.stays_missing(now_ns, || port.has_carrier()) {
            return Ok(Some(self.carrier.ask_ns()));
        }
        let outcome = port.flush(&mut self.carrier, now_ns)?;
        self.busy += u64::from(outcome != Transmit::Progress);
        Ok(match outcome {
            Transmit::Progress if port.room() > 0 => None,
            Transmit::Down => Some(now_ns + DOWN_RETRY_NS),
            Transmit::Refused => Some(self.carrier.ask_ns()),
            Transmit::Progress | Transmit::Busy => Some(self.backoff.look_ns(self.finished(port), now_ns)),
        })
    }

    /// Looks at what has become of transmissions, so that the books are up to date.
    pub fn complete(&mut self, port: &mut impl TransmitRing, frames: &mut Frames) {
        let account = &mut self.account;
        port.complete(frames, |ended, fate| match fate {
            Completion::Delivered => account.deliver_all(ended),
            Completion::Refused => account.drop_all(DropReason::DeviceRefused, ended),
            Completion::Dropped(reason) => account.drop_all(reason, ended),
        });
    }

    /// The port is gone, and what was on its way out with it.
    pub fn abandon(&mut self, port: &impl TransmitRing) {
        self.account.drop_all(DropReason::PortGone, port.in_flight());
        (self.carrier, self.backoff) = (Carrier::default(), Backoff::default());
    }

    /// Packets that have come here and are gone again, in whatever way.
    pub fn finished(&self, port: &impl TransmitRing) -> u64 {
        self.account.accepted.packets - port.in_flight().packets
    }

    /// Its books.
    pub fn account(&self) -> &Account {
        &self.account
    }

    /// Times the device took no more.
    pub fn busy(&self) -> u64 {
        self.busy
    }
}
