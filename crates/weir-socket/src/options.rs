//! How a socket is to be, and what it counts.

use crate::port::FullRule;

/// How a socket is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketOptions {
    /// How many datagrams its send buffer takes; at most what the stack was built for.
    pub send_frames: u32,
    /// How many datagrams its receive buffer takes; at most what the stack was built for.
    pub receive_packets: u32,
    /// What becomes of a datagram that finds the receive buffer full.
    pub full: FullRule,
    /// The bucket whose flows alone it receives.
    pub bucket: Option<usize>,
}

impl Default for SocketOptions {
    fn default() -> SocketOptions {
        SocketOptions { send_frames: 256, receive_packets: 256, full: FullRule::Hold, bucket: None }
    }
}

/// What a socket has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SocketCounts {
    /// Whether the send buffer is full, and somebody wants to send.
    pub is_throttled: bool,
    /// Times that somebody wanted to send and it was full.
    pub throttled: u64,
    /// For how long it was full when somebody wanted to send, in nanoseconds.
    pub throttled_ns: u64,
    /// Times that a waiting sender was woken.
    pub wakes: u64,
    /// Of those, times that there was nothing to send in.
    pub empty_wakes: u64,
    /// Datagrams that were not from whom the socket is connected to, and were thrown away.
    pub from_others: u64,
}
