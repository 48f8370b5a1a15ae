//! The options of a socket, and its counters.

use crate::port::FullRule;

/// The options of a socket. Those of a stack are [`crate::Stack::options`]; the default has buffers of 256 datagrams, which a stack may be too small for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketOptions {
    /// The number of datagrams that the send buffer takes; at most the number that the stack was built for.
    pub send_frames: u32,
    /// The number of datagrams that the receive buffer takes; at most the number that the stack was built for.
    pub receive_packets: u32,
    /// The rule for a datagram that finds the receive buffer full.
    pub full: FullRule,
    /// The bucket whose flows alone the socket receives.
    pub bucket: Option<usize>,
}

impl Default for SocketOptions {
    fn default() -> SocketOptions {
        SocketOptions { send_frames: 256, receive_packets: 256, full: FullRule::Hold, bucket: None }
    }
}

/// The counters of a socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SocketCounts {
    /// True if the send buffer is full, and somebody wants to send.
    pub is_throttled: bool,
    /// Times that somebody wanted to send and the send buffer was full.
    pub throttled: u64,
    /// The time that the send buffer was full when somebody wanted to send, in nanoseconds.
    pub throttled_ns: u64,
    /// Times that a waiting sender was woken.
    pub wakes: u64,
    /// Wakes of waiting senders that found no frame to send in.
    pub empty_wakes: u64,
    /// Datagrams that were not from the address that the socket is connected to, and were thrown away.
    pub from_others: u64,
}
