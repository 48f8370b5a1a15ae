//! The marks of sequence numbers, as an ESP stage asks for them: of what it sends, and of what it has received.
//!
//! Rule: a number below a mark is used only when [`SequenceMark::safe`] has told that mark. Nothing waits here: another thread writes
//! marks, and the stage keeps the packets that come before it has. The mark of what was received is written behind, and no packet waits for
//! it.

use std::fmt;

/// The writer of the mark of one association.
pub trait SequenceMark: fmt::Debug + Send {
    /// Tells that the association begins: from now on its numbers may be used.
    fn begin(&mut self);
    /// Asks for this mark to be made safe; the same mark is not asked for twice.
    fn want(&mut self, mark: u64);
    /// The highest mark that is safe.
    fn safe(&self) -> u64;
    /// Tells that the association has ended, and used no number from `next` on.
    fn end(&mut self, next: u64);
}

/// The writer of the highest number that one association has received. The association has ended when it is dropped.
pub trait ReceivedMark: fmt::Debug + Send {
    /// Tells the highest number that was proven.
    fn received(&mut self, highest: u64);
}

/// The mark of associations whose numbers need none because they have no key: every mark is safe at once.
#[derive(Debug, Default)]
pub struct Unmarked(u64);

impl ReceivedMark for Unmarked {
    fn received(&mut self, _: u64) {}
}

impl SequenceMark for Unmarked {
    fn begin(&mut self) {}

    fn want(&mut self, mark: u64) {
        self.0 = mark;
    }

    fn safe(&self) -> u64 {
        self.0
    }

    fn end(&mut self, _: u64) {}
}
