//! A socket's send buffer: the bytes that may still be sent, and the condition under which a sender that sleeps on it is woken.
//!
//! ```text
//! may send   while wmem_alloc < sndbuf            (and not THROTTLED, with the RFC)
//! is woken   when  wmem_alloc < sndbuf / 2        (and not THROTTLED, with the RFC)
//! ```
//!
//! The check comes before the charge, so `wmem_alloc` may pass `sndbuf` by one packet: 93 datagrams of 2,304 bytes fit the default 212,992.
//! The second rule is `sock_def_write_space`: a sleeper is left asleep until it can make significant progress, 46 datagrams or fewer still
//! charged. The published figures depend on it.
//!
//! Owner: the sending machine. Charged at `send`, given back when the packet is consumed or dropped.
//! Source: `sock_alloc_send_pskb`, `sock_wfree`, `sock_def_write_space`, `sock_writeable` of Linux 5.18, and
//! patch 1/4 of the RFC for the THROTTLED conditions.
//! Limits: no `SO_SNDTIMEO`, no signals, no memory pressure.

/// The default `net.core.wmem_default`.
pub const SNDBUF_BYTES_DEFAULT: u32 = 212_992;

/// The RFC's `sk_backpressure_status`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Backpressure {
    /// The socket may send.
    #[default]
    Unthrottled,
    /// A packet of the socket was refused by the qdisc; it may still send.
    Overlimit,
    /// The socket may not send until the qdisc's timer fires.
    Throttled,
}

/// A send buffer.
#[derive(Clone, Debug)]
pub struct Socket {
    sndbuf_bytes: u32,
    wmem_alloc_bytes: u32,
    /// The state of the RFC's state machine; stays `Unthrottled` without it.
    pub backpressure: Backpressure,
}

impl Socket {
    /// An empty send buffer of `sndbuf_bytes`.
    pub fn new(sndbuf_bytes: u32) -> Socket {
        Socket { sndbuf_bytes, wmem_alloc_bytes: 0, backpressure: Backpressure::Unthrottled }
    }

    /// Returns whether another packet may be charged.
    pub fn has_room(&self) -> bool {
        self.wmem_alloc_bytes < self.sndbuf_bytes
    }

    /// Returns whether `send` takes a packet now.
    pub fn may_send(&self) -> bool {
        self.backpressure != Backpressure::Throttled && self.has_room()
    }

    /// Returns whether a sleeper is woken, and `EPOLLOUT` reported.
    pub fn is_writeable(&self) -> bool {
        self.backpressure != Backpressure::Throttled && self.wmem_alloc_bytes < self.sndbuf_bytes / 2
    }

    /// Charges a packet that `send` took.
    pub fn charge(&mut self, truesize_bytes: u32) {
        debug_assert!(self.has_room(), "charged past its bound");
        self.wmem_alloc_bytes += truesize_bytes;
    }

    /// Gives back the charge of a consumed or dropped packet.
    pub fn uncharge(&mut self, truesize_bytes: u32) {
        self.wmem_alloc_bytes -= truesize_bytes;
    }

    /// The bound of the buffer, in bytes.
    pub fn sndbuf_bytes(&self) -> u32 {
        self.sndbuf_bytes
    }

    /// The bytes that are charged now.
    pub fn wmem_alloc_bytes(&self) -> u32 {
        self.wmem_alloc_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ninety_three_datagrams_fit_and_forty_six_left_wake_the_sender() {
        let mut socket = Socket::new(SNDBUF_BYTES_DEFAULT);
        let mut sent = 0;
        while socket.may_send() {
            socket.charge(2304);
            sent += 1;
        }
        assert_eq!(sent, 93);
        while !socket.is_writeable() {
            socket.uncharge(2304);
            sent -= 1;
        }
        assert_eq!(sent, 46);
        socket.backpressure = Backpressure::Throttled;
        assert!(!socket.may_send() && !socket.is_writeable());
        socket.backpressure = Backpressure::Overlimit;
        assert!(socket.may_send() && socket.is_writeable(), "OVERLIMIT alone holds nobody");
    }
}
