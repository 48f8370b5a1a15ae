//! The ledger of frames lent to the kernel through one socket, and the check of frames that come back. One ledger for all AF_XDP sockets
//! (or other kernel queues) of a worker, which owns it; each socket has a number as a borrower, or shares one with those that are closed
//! together.
//!
//! Rule: the kernel may give back exactly the frames it was lent through this ledger, each once. Bit `i` of
//! `lent` is set while frame `i` is with the kernel; an index out of range or whose bit is clear is
//! refused, in release builds too, so a wrong descriptor can never make a second handle of a frame.
//!
//! Ordering and ownership: one owner; not shared. The kernel's rings order the bytes with the descriptor.
//! Source: Linux `net/xdp/xsk_queue.h` checks our descriptors the same way in the other direction.
//! Limits: the kernel may write a lent frame at any time, so the lender gives up the handle; the port checks whether the kernel's word on
//! its writes can be true (offset and length).

use crate::memory::{Frame, FrameMemory};

/// The reason why an index from the kernel was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReclaimError {
    /// The memory has no frame with this index.
    OutOfRange {
        /// The index that the kernel gave.
        index: u32,
        /// The number of frames of the memory.
        frames: u32,
    },
    /// The frame is not with the kernel: never lent through this ledger, or given back already.
    NotLent {
        /// The index that the kernel gave.
        index: u32,
    },
}

impl std::fmt::Display for ReclaimError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ReclaimError::OutOfRange { index, frames } => {
                write!(f, "the kernel gave back frame {index} of a memory of {frames} frames")
            }
            ReclaimError::NotLent { index } => {
                write!(f, "the kernel gave back frame {index}, which this socket had not lent to it")
            }
        }
    }
}

impl std::error::Error for ReclaimError {}

/// Frames of one memory that are with the kernel.
#[derive(Debug)]
pub struct Loans {
    lent: Box<[u64]>,
    /// The last borrower of each frame.
    borrowers: Box<[u16]>,
    count: u32,
    frames: u32,
    memory: std::sync::Arc<FrameMemory>,
}

impl Loans {
    /// An empty ledger for frames of `memory`.
    pub fn new(memory: std::sync::Arc<FrameMemory>) -> Loans {
        let frames = memory.frames();
        let lent = vec![0; frames.div_ceil(64) as usize].into_boxed_slice();
        Loans { lent, borrowers: vec![0; frames as usize].into(), count: 0, frames, memory }
    }

    /// Gives `frame` to the kernel, by a socket of this borrower; returns its index, from which the descriptor's address is made.
    ///
    /// # Panics
    /// If the frame is another memory's.
    pub fn lend(&mut self, frame: Frame, borrower: u16) -> u32 {
        let index = self.memory.index_of(&frame);
        let (word, bit) = place(index);
        debug_assert_eq!(self.lent[word] & bit, 0, "two handles of frame {index}");
        self.lent[word] |= bit;
        self.borrowers[index as usize] = borrower;
        self.count += 1;
        index
    }

    /// Takes back a frame that the kernel says it has done with.
    ///
    /// # Errors
    /// If the kernel does not have this frame from us: nothing changes, and the caller must not touch the frame.
    ///
    /// # Safety
    /// The kernel has said so: `index` is from a descriptor that it put on a ring of the socket to which the frame was lent, or it
    /// was never told of the frame.
    pub unsafe fn reclaim(&mut self, index: u32) -> Result<Frame, ReclaimError> {
        if index >= self.frames {
            return Err(ReclaimError::OutOfRange { index, frames: self.frames });
        }
        let (word, bit) = place(index);
        if self.lent[word] & bit == 0 {
            return Err(ReclaimError::NotLent { index });
        }
        self.lent[word] &= !bit;
        self.count -= 1;
        // SAFETY: the bit was set, so `lend` swallowed the handle of this frame, and it is clear now, so the
        // handle comes up once.
        Ok(unsafe { Frame::from_handle(self.memory.handle_at(index)) })
    }

    /// The number of frames that the kernel has.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Takes back every frame of a borrower that is still with the kernel, in order of index.
    ///
    /// # Safety
    /// The kernel has let go of them: the borrower's sockets are closed and no transfer into the memory is under way.
    pub unsafe fn recall(&mut self, borrower: u16) -> impl Iterator<Item = Frame> + '_ {
        (0..self.frames).filter_map(move |index| {
            if self.borrowers[index as usize] != borrower {
                return None;
            }
            // SAFETY: the kernel has let go of all frames that this borrower had, as the caller says.
            unsafe { self.reclaim(index) }.ok()
        })
    }
}

fn place(index: u32) -> (usize, u64) {
    (index as usize / 64, 1 << (index % 64))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::pool::Pool;

    /// Reclaims the frame of an index from the kernel.
    fn reclaim(loans: &mut Loans, index: u32) -> Result<Frame, ReclaimError> {
        // SAFETY: no kernel was ever told of this memory.
        unsafe { loans.reclaim(index) }
    }

    fn pool(frames: u32) -> Pool {
        Pool::new(FrameMemory::new(frames, 64).unwrap())
    }

    #[test]
    fn the_kernel_gives_back_what_it_was_lent_once() {
        let mut pool = pool(100);
        let mut loans = Loans::new(pool.memory().clone());
        let index = loans.lend(pool.take().unwrap(), 0);
        assert_eq!(loans.count(), 1);
        let frame = reclaim(&mut loans, index).unwrap();
        assert_eq!(pool.memory().index_of(&frame), index);
        assert_eq!(reclaim(&mut loans, index), Err(ReclaimError::NotLent { index }));
        assert_eq!(reclaim(&mut loans, 100), Err(ReclaimError::OutOfRange { index: 100, frames: 100 }));
        assert_eq!(
            reclaim(&mut loans, u32::MAX),
            Err(ReclaimError::OutOfRange { index: u32::MAX, frames: 100 })
        );
        assert_eq!(loans.count(), 0);
        pool.give(frame);
    }

    #[test]
    fn a_frame_held_by_someone_else_cannot_be_conjured() {
        let mut pool = pool(70);
        let mut loans = Loans::new(pool.memory().clone());
        let held = pool.take().unwrap();
        let index = pool.memory().index_of(&held);
        assert_eq!(reclaim(&mut loans, index), Err(ReclaimError::NotLent { index }));
        pool.give(held);
    }

    #[test]
    fn a_ledger_refuses_what_another_lent() {
        let mut pool = pool(2);
        let (mut left, mut right) = (Loans::new(pool.memory().clone()), Loans::new(pool.memory().clone()));
        let index = left.lend(pool.take().unwrap(), 0);
        assert!(reclaim(&mut right, index).is_err());
        pool.give(reclaim(&mut left, index).unwrap());
    }

    #[test]
    fn a_borrower_that_is_gone_takes_no_frames_along_and_no_others_are_taken() {
        let mut pool = pool(130);
        let mut loans = Loans::new(pool.memory().clone());
        let lent: Vec<_> = (0..130).map(|number| loans.lend(pool.take().unwrap(), number % 3)).collect();
        // SAFETY: no kernel was ever told of this memory.
        let back: Vec<_> = unsafe { loans.recall(1) }.collect();
        assert_eq!((back.len(), loans.count()), (43, 87));
        assert!(reclaim(&mut loans, lent[1]).is_err() && reclaim(&mut loans, lent[2]).is_ok());
        pool.give_all(back);
    }

    #[test]
    fn recall_brings_every_frame_home() {
        let mut pool = pool(130);
        let mut loans = Loans::new(pool.memory().clone());
        while let Some(frame) = pool.take() {
            loans.lend(frame, 0);
        }
        assert_eq!(loans.count(), 130);
        // SAFETY: no kernel was ever told of this memory.
        for frame in unsafe { loans.recall(0) } {
            pool.give(frame);
        }
        assert_eq!((loans.count(), pool.available()), (0, 130));
        assert!(pool.census().balances());
    }
}
