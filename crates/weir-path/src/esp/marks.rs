//! The marks of sequence numbers, as an ESP stage asks for them.
//!
//! Rule: a number below a mark is used only when [`SequenceMark::safe`] has told that mark. Nobody waits here: who writes marks is another
//! thread, and the stage keeps the packets that come before it has.

use std::fmt;

/// Who writes the mark of one association.
pub trait SequenceMark: fmt::Debug + Send {
    /// Asks for this mark to be made safe; the same is not asked for twice.
    fn want(&mut self, mark: u64);
    /// The highest mark that is safe.
    fn safe(&self) -> u64;
    /// The association has ended, and used no number from `next` on.
    fn end(&mut self, next: u64);
}

/// Of associations whose numbers need no mark because they have no key: every mark is safe at once.
#[derive(Debug, Default)]
pub struct Unmarked(u64);

impl SequenceMark for Unmarked {
    fn want(&mut self, mark: u64) {
        self.0 = mark;
    }

    fn safe(&self) -> u64 {
        self.0
    }

    fn end(&mut self, _: u64) {}
}
