//! The carrier of a device, for the port that transmits by it.
//!
//! A device without a carrier refuses for good each packet that it is handed, and tells why only when it is asked. So the first refusal
//! makes the port ask, at most every [`DOWN_RETRY_NS`]; while there is no carrier no more packets are handed over.
//!
//! Owner: the owner of the port. Limits: a packet that was refused before the first answer is lost.

/// The time for which a device that is down or has no carrier is left alone, in nanoseconds.
pub const DOWN_RETRY_NS: u64 = 10_000_000;

/// The known state of the carrier.
#[derive(Debug, Default)]
pub struct Carrier {
    is_missing: bool,
    ask_ns: u64,
}

impl Carrier {
    /// Returns whether there was no carrier when it was last asked for, and none has come: then no packet is to be handed over.
    pub fn stays_missing(&mut self, now_ns: u64, ask: impl FnOnce() -> bool) -> bool {
        self.is_missing && !self.is_found(now_ns, ask)
    }

    /// The time at which the carrier may be asked for again.
    pub fn ask_ns(&self) -> u64 {
        self.ask_ns
    }

    /// Returns whether there is a carrier: as it was when last asked for, or as `ask` says if that is [`DOWN_RETRY_NS`] ago.
    pub fn is_found(&mut self, now_ns: u64, ask: impl FnOnce() -> bool) -> bool {
        if now_ns >= self.ask_ns {
            self.ask_ns = now_ns + DOWN_RETRY_NS;
            self.is_missing = !ask();
        }
        !self.is_missing
    }
}
