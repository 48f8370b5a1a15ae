//! The way out of a wire at one port: what was released goes onto the transmit ring, and its completion ends the account.
//!
//! Where there is no carrier nothing is handed over (`carrier.rs`).
//!
//! Conservation (invariant 1), at every instant: accepted = delivered + dropped + in flight. Owner: the worker that owns the
//! port. What is put here has room: at most as many packets are on their way to a port as its transmit ring has entries.

use weir_core::account::Account;
use weir_core::drops::{Count, DropReason};
use weir_port::frames::Frames;
use weir_port::port::Port;
use weir_port::transmission::Completion;
use weir_port::xsk::socket::Transmit;

use crate::backoff::Backoff;
use crate::carrier::{Carrier, DOWN_RETRY_NS};
use crate::packet::{WirePacket, make_mark};

/// The books of one port's way out.
#[derive(Debug, Default)]
pub struct Departure {
    account: Account,
    busy: u64,
    carrier: Carrier,
    backoff: Backoff,
}

impl Departure {
    /// Puts a packet on the transmit ring of `to`, which has room for it.
    pub fn put(&mut self, mut packet: WirePacket, to: &mut Port, frames: &mut Frames) {
        make_mark(&mut packet, frames.pool.memory());
        let len_bytes = packet.received.len_bytes;
        self.account.accept(len_bytes);
        if len_bytes > to.packet_bytes_max() {
            self.account.drop(DropReason::TooLong, len_bytes);
            frames.pool.give(packet.received.frame);
        } else {
            to.transmit(packet.received, frames);
        }
    }

    /// Makes the kernel transmit; when to try again what it does not take now.
    pub fn flush(&mut self, to: &mut Port, now_ns: u64) -> weir_port::Result<Option<u64>> {
        if self.carrier.stays_missing(to.link(), now_ns) {
            return Ok(Some(self.carrier.ask_ns()));
        }
        let outcome = to.flush(|link| self.carrier.is_found(link, now_ns))?;
        self.busy += u64::from(outcome != Transmit::Progress);
        Ok(match outcome {
            Transmit::Progress if to.transmit_room() > 0 => None,
            Transmit::Down => Some(now_ns + DOWN_RETRY_NS),
            Transmit::Refused => Some(self.carrier.ask_ns()),
            Transmit::Progress | Transmit::Busy => Some(self.backoff.look_ns(self.finished(to), now_ns)),
        })
    }

    /// Looks at what has become of transmissions, so that the books are up to date.
    pub fn settle(&mut self, to: &mut Port, frames: &mut Frames) {
        let account = &mut self.account;
        to.complete(frames, |len_bytes, fate| match fate {
            Completion::Delivered => account.deliver(len_bytes),
            Completion::Refused => account.drop(DropReason::DeviceRefused, len_bytes),
        });
    }

    /// Packets that have come here and are gone again, in whatever way.
    pub fn finished(&self, to: &Port) -> u64 {
        self.account.accepted.packets - u64::from(to.in_flight().0)
    }

    /// Its books.
    pub fn account(&self) -> &Account {
        &self.account
    }

    /// What is with the device.
    pub fn held(to: &Port) -> Count {
        let (packets, bytes) = to.in_flight();
        Count { packets: u64::from(packets), bytes }
    }

    /// Times the device took no more.
    pub fn busy(&self) -> u64 {
        self.busy
    }
}
