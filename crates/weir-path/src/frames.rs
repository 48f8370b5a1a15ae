//! The frames of a worker, in which packets begin and end.
//!
//! Conservation (invariant 1): a frame is in the pool, on loan to the kernel, or with the holder of its [`weir_ring::memory::Frame`].
//!
//! Owner: one worker.

use std::sync::Arc;

use weir_ring::loans::Loans;
use weir_ring::memory::FrameMemory;
use weir_ring::pool::Pool;

/// The frames of one worker: those that are free, and those that are with the kernel.
pub struct Frames {
    /// Free frames.
    pub pool: Pool,
    /// Frames on loan.
    pub loans: Loans,
    /// The memory that the frames are of. It stands beside the pool, so that a packet can be written while frames are taken.
    pub(crate) memory: Arc<FrameMemory>,
}

impl Frames {
    /// The frames of a worker's pool, with none on loan.
    pub fn new(pool: Pool) -> Frames {
        let memory = Arc::clone(pool.memory());
        Frames { loans: Loans::new(Arc::clone(&memory)), memory, pool }
    }

    /// The memory that the frames are of.
    pub fn memory(&self) -> &Arc<FrameMemory> {
        &self.memory
    }
}
