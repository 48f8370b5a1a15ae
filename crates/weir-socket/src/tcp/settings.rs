//! The settings of a host's TCP, and what they may be.
//!
//! Owner: the builder of a stack makes them, each port has a copy. Source: RFC 9293 section 3.8.4, whose keepalive is off unless it is asked for.

use std::io;
use std::ops::RangeInclusive;

use smoltcp::time::Duration;

use crate::builder::invalid;
use crate::tcp::half_open::HALF_OPEN_MAX;

/// The sizes that the buffers of a connection may have, in bytes.
const BUFFER_BYTES: RangeInclusive<u32> = 4 << 10..=16 << 20;
/// The times after which a quiet peer may be asked for a sign of life, in seconds: those of Linux's `TCP_KEEPIDLE`.
const KEEPALIVE_S: RangeInclusive<u64> = 1..=32_767;

/// The number of connections that there may be, the size of their buffers, the MTU, and the patience with quiet peers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TcpSettings {
    pub(crate) connections: u16,
    pub(crate) buffer_bytes: u32,
    pub(crate) mtu_bytes: u16,
    /// The time after which a quiet peer is asked for a sign of life, and then as often; none if it is never asked.
    pub(crate) keepalive: Option<Duration>,
}

impl TcpSettings {
    /// The number of places for connections.
    pub(crate) fn places(&self) -> usize {
        usize::from(self.connections) + HALF_OPEN_MAX
    }

    /// Checks that the settings can be meant.
    ///
    /// # Errors
    /// `InvalidInput` with what to give instead.
    pub(crate) fn check(&self) -> io::Result<()> {
        if !BUFFER_BYTES.contains(&self.buffer_bytes) {
            let bytes = self.buffer_bytes;
            return Err(invalid(format_args!("a TCP buffer of {bytes} bytes: give 4 KiB to 16 MiB")));
        }
        match self.keepalive.map(|keepalive| keepalive.secs()) {
            Some(seconds) if !KEEPALIVE_S.contains(&seconds) => {
                Err(invalid(format_args!("a TCP keepalive of {seconds} s: give 1 to 32767 s, or none")))
            }
            _ => Ok(()),
        }
    }
}
