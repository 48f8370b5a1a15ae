//! Whether a device has a carrier, for whoever transmits by it.
//!
//! A device without a carrier refuses for good each packet that it is handed, and tells only whoever asks. So the first refusal
//! makes its sender ask, at most every [`DOWN_RETRY_NS`]; while there is no carrier nothing more is handed over.
//!
//! Owner: whoever owns the port. Limits: what was refused before the first answer is lost.

/// How long to leave a device alone that is down or has no carrier, in nanoseconds.
pub const DOWN_RETRY_NS: u64 = 10_000_000;

/// What is known of the carrier.
#[derive(Debug, Default)]
pub struct Carrier {
    is_missing: bool,
    ask_ns: u64,
}

impl Carrier {
    /// Whether there was none when it was last asked for, and none has come: then nothing is to be handed over.
    pub fn stays_missing(&mut self, now_ns: u64, ask: impl FnOnce() -> bool) -> bool {
        self.is_missing && !self.is_found(now_ns, ask)
    }

    /// When it may be asked for again.
    pub fn ask_ns(&self) -> u64 {
        self.ask_ns
    }

    /// Whether there is one: as it was when last asked for, or as `ask` says if that is long ago.
    pub fn is_found(&mut self, now_ns: u64, ask: impl FnOnce() -> bool) -> bool {
        if now_ns >= self.ask_ns {
            self.ask_ns = now_ns + DOWN_RETRY_NS;
            self.is_missing = !ask();
        }
        !self.is_missing
    }
}
