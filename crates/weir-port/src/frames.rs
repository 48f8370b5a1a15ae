//! The frames of a worker, and a packet that has arrived in one of them.
//!
//! Conservation (invariant 1): a frame is in the pool, on loan to the kernel, or in the hands of whoever holds its [`Frame`].

use weir_ring::loans::Loans;
use weir_ring::memory::Frame;
use weir_ring::pool::Pool;

/// The frames of one worker: those that are free, and those that are with the kernel.
pub struct Frames {
    /// Free frames.
    pub pool: Pool,
    /// Frames on loan.
    pub loans: Loans,
}

/// A packet that has arrived.
#[derive(Debug)]
pub struct Received {
    /// Where it is.
    pub frame: Frame,
    /// Where in the frame it starts, in bytes.
    pub offset_bytes: u32,
    /// How long it is, in bytes.
    pub len_bytes: u32,
}
