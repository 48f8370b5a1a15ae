//! The bytes that a connection is to write, in pieces, each of which goes as soon as it has been written.
//!
//! Rule: answers that follow each other share a piece of up to 16 KiB, and so a write; a longer one is a piece of its own, which nobody
//! copies. What is kept is what has not been written, and a piece at the most; so is what it has taken of the room for replies.
//!
//! Owner: a connection.

use std::collections::VecDeque;
use std::io::{self, Write};

use crate::reply::Reply;

/// The most bytes of a piece of several answers.
const PIECE_BYTES: usize = 16 * 1024;

/// See the head of the file.
#[derive(Debug, Default)]
pub struct Output {
    pieces: VecDeque<Reply>,
    /// Bytes of the first piece that have been written.
    written: usize,
    left_bytes: usize,
}

impl Output {
    /// The number of bytes that have not been written.
    pub fn left_bytes(&self) -> usize {
        self.left_bytes
    }

    /// Adds an answer, behind all others.
    pub fn push(&mut self, answer: Reply) {
        self.left_bytes += answer.len();
        match self.pieces.back_mut() {
            Some(last) if last.len() + answer.len() <= PIECE_BYTES => last.append(answer),
            _ => self.pieces.push_back(answer),
        }
    }

    /// Writes the bytes that there is room for. Returns whether any went.
    ///
    /// # Errors
    /// Those of the stream.
    pub fn write_to(&mut self, stream: &mut impl Write) -> io::Result<bool> {
        let before = self.left_bytes;
        while self.left_bytes > 0 {
            if self.pieces[0].len() == self.written {
                self.pieces.pop_front();
                self.written = 0;
                continue;
            }
            match stream.write(&self.pieces[0][self.written..]) {
                Ok(count) => {
                    self.written += count;
                    self.left_bytes -= count;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        if self.left_bytes == 0 {
            self.empty();
        }
        Ok(self.left_bytes < before)
    }

    /// Keeps one piece, empty, for the answers to come: short ones allocate nothing.
    fn empty(&mut self) {
        self.pieces.truncate(1);
        self.written = 0;
        if let Some(piece) = self.pieces.front_mut() {
            piece.clear(PIECE_BYTES);
        }
    }
}

#[cfg(test)]
impl Output {
    /// The bytes that its pieces have allocated.
    pub fn kept_bytes(&self) -> usize {
        self.pieces.iter().map(|piece| piece.bytes.capacity()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::ByteBudget;
    use crate::reply::UNCOUNTED_BYTES;

    #[test]
    fn pieces_are_written_in_their_order_in_any_parts() {
        let mut output = Output::default();
        let mut wanted = Vec::new();
        for (number, len) in [3, 5, PIECE_BYTES, 0, 7, PIECE_BYTES + 1, 9].into_iter().enumerate() {
            wanted.resize(wanted.len() + len, number as u8);
            output.push(vec![number as u8; len].into());
        }
        assert_eq!(output.pieces.len(), 5, "the first two share one, and nothing is no piece");
        let mut written = Vec::new();
        while output.left_bytes() > 0 {
            let mut part = [0; 1000];
            let mut room = part.as_mut_slice();
            assert!(output.write_to(&mut OneWrite(&mut room)).unwrap());
            let count = 1000 - room.len();
            written.extend_from_slice(&part[..count]);
            assert_eq!(output.left_bytes(), wanted.len() - written.len());
        }
        assert!(written == wanted);
        assert!(output.kept_bytes() <= PIECE_BYTES);
    }

    #[test]
    fn a_long_answer_holds_its_room_until_it_is_written_or_its_client_goes() {
        let budget = ByteBudget::new(100_000);
        let mut output = Output::default();
        for _ in 0..2 {
            let mut answer = Reply::default();
            assert!(answer.make_room(20_000, UNCOUNTED_BYTES, &budget));
            answer.bytes.resize(20_000, b'x');
            output.push(answer);
        }
        let mut write = |bytes: usize| output.write_to(&mut OneWrite(&mut vec![0; bytes].as_mut_slice()));
        assert!(write(19_999).unwrap());
        assert_eq!(budget.held_bytes(), 40_000);
        assert!(write(2).unwrap());
        assert_eq!(budget.held_bytes(), 20_000, "the first has been written");
        drop(output);
        assert_eq!(budget.held_bytes(), 0);
    }

    /// A stream that has as much room as the slice.
    struct OneWrite<'s, 'b>(&'s mut &'b mut [u8]);

    impl Write for OneWrite<'_, '_> {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            match self.0.write(bytes)? {
                0 => Err(io::ErrorKind::WouldBlock.into()),
                count => Ok(count),
            }
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
}
