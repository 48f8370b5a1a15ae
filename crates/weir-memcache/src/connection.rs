//! A client's connection: bytes that it has sent and that are not answered, and the answers in the order of its commands, whichever worker
//! answers first.
//!
//! Rule: while a client does not read, or has many commands under way, no more of its commands are taken, so its memory is bounded: a line
//! or a value that comes, of which those longer than a line are bounded for all clients together ([`crate::budget`]); [`OUTPUT_BYTES_MAX`]; and [`UNDER_WAY_MAX`] answers of other workers, of which the long ones of all clients
//! together are bounded ([`crate::reply`]). It is held by its own window then, and nobody else.
//!
//! A client that is told why it is closed may have sent more by then. A connection that is closed with unread bytes is reset (RFC 2525 section 2.17),
//! and the reset takes what the client was told with it. So it is heard out: sending ends, and what comes is thrown away until the client ends too,
//! or for [`HEARD_OUT_S`] (RFC 9112 section 9.6).
//!
//! Owner: one worker. It knows nothing of sockets but that they read and write.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::sync::Arc;

use crate::budget::{ByteBudget, HeldBytes};
use crate::command::{Front, LINE_BYTES_MAX, MemcacheCommand, answer_line, quiet_delete, read};
use crate::output::Output;
use crate::reply::Reply;

/// Bytes of answers to be written, from which on no more commands are taken.
pub const OUTPUT_BYTES_MAX: usize = 64 * 1024;
/// Commands that are not answered.
pub const UNDER_WAY_MAX: usize = 32;
/// The longest time that a client is heard out, in seconds. A worker that sleeps does not wake for its end.
pub const HEARD_OUT_S: u32 = 2;
/// The bytes that are read at once.
const READ_BYTES: usize = 16 * 1024;

/// One client.
#[derive(Debug)]
pub struct Connection<S> {
    stream: S,
    input: Vec<u8>,
    /// The number of its bytes that are done with.
    taken: usize,
    /// The bytes that a long value at the front takes, from its line until it is taken.
    held: HeldBytes,
    budget: Arc<ByteBudget>,
    /// The number of bytes that are to be passed over and have not come.
    skip: usize,
    /// Answers by the number of their command; `first` is that of the first.
    replies: VecDeque<Option<Reply>>,
    first: u64,
    /// The bytes of answers that wait for the answer to an earlier command.
    waiting_bytes: usize,
    output: Output,
    /// True if the bytes that have come are no whole command.
    is_hungry: bool,
    /// True if no more commands are taken: the connection has ended, or is to.
    has_ended: bool,
    /// True if what the client sends is then to be thrown away until it ends.
    is_heard_out: bool,
    /// The time at which that ends at the latest, once all answers have been sent.
    heard_until_s: Option<u32>,
}

impl<S> Connection<S> {
    /// A connection of which nothing has come. Long values that come take their room of `budget`.
    pub fn new(stream: S, budget: Arc<ByteBudget>) -> Connection<S> {
        Connection {
            stream,
            input: Vec::new(),
            taken: 0,
            held: HeldBytes::default(),
            budget,
            skip: 0,
            replies: VecDeque::new(),
            first: 0,
            waiting_bytes: 0,
            output: Output::default(),
            is_hungry: true,
            has_ended: false,
            is_heard_out: false,
            heard_until_s: None,
        }
    }

    /// A connection that no command is taken of: it is sent a text and closed.
    pub fn told(stream: S, text: &[u8], budget: Arc<ByteBudget>) -> Connection<S> {
        let mut connection =
            Connection { has_ended: true, is_heard_out: true, ..Connection::new(stream, budget) };
        connection.output.push(text.to_vec().into());
        connection
    }

    /// Its socket.
    pub fn stream(&self) -> &S {
        &self.stream
    }

    /// Returns whether more bytes are to be read.
    pub fn wants_input(&self) -> bool {
        self.is_hungry && self.may_take() || self.is_heard_out && self.has_said_all()
    }

    /// Returns whether bytes are to be written.
    pub fn has_output(&self) -> bool {
        self.output.left_bytes() > 0
    }

    /// Returns whether all answers have been sent, and the client is not to be heard out: it may be closed.
    pub fn is_done(&self) -> bool {
        self.has_said_all() && !self.is_heard_out
    }

    fn has_said_all(&self) -> bool {
        self.has_ended && self.replies.is_empty() && !self.has_output()
    }

    /// Notes the time. Returns true once, if the client is heard out from now on: sending is to end.
    pub fn hear_out(&mut self, now_s: u32) -> bool {
        if !self.is_heard_out || !self.has_said_all() {
            return false;
        }
        let begins = self.heard_until_s.is_none();
        let until_s = *self.heard_until_s.get_or_insert(now_s + HEARD_OUT_S);
        self.is_heard_out = now_s < until_s;
        begins
    }

    /// Takes at most so many commands of the bytes that have come; each is told with its number. Returns how many.
    pub fn take(
        &mut self,
        most: usize,
        value_bytes_max: usize,
        mut each: impl FnMut(u64, &MemcacheCommand<'_>, &[u8]),
    ) -> usize {
        let mut count = 0;
        let mut coming_bytes = 0;
        self.is_hungry = false;
        while count < most && self.may_take() {
            let mut number = self.first + self.replies.len() as u64;
            let text = &self.input[self.taken..];
            let said = match read(text, value_bytes_max) {
                Front::Part => {
                    self.is_hungry = true;
                    break;
                }
                Front::PartOfValue(_, _, whole)
                    if whole <= LINE_BYTES_MAX || self.held.raise_to(whole, &self.budget) =>
                {
                    self.is_hungry = true;
                    coming_bytes = whole;
                    break;
                }
                Front::Whole(MemcacheCommand::Quit, _) => {
                    self.has_ended = true;
                    break;
                }
                Front::Whole(command, taken) => {
                    self.replies.push_back(None);
                    each(number, &command, &text[..taken]);
                    self.taken += taken;
                    count += 1;
                    continue;
                }
                Front::Nonsense(said, taken) => {
                    self.pass_over(taken);
                    said
                }
                Front::PartOfValue(key, said, taken) | Front::TooLarge(key, said, taken) => {
                    if let Some((delete, text)) = key.map(quiet_delete) {
                        self.replies.push_back(None);
                        each(number, &delete, &text);
                        number += 1;
                    }
                    self.pass_over(taken);
                    said
                }
                Front::Endless(said) => {
                    (self.has_ended, self.is_heard_out) = (true, true);
                    said
                }
            };
            self.replies.push_back(None);
            self.answer(number, answer_line(said).into());
            count += 1;
        }
        self.keep_input(coming_bytes);
        count
    }

    /// Drops the input that is done with, and makes room for a value of which so many bytes come in all; for none if it is 0.
    fn keep_input(&mut self, coming_bytes: usize) {
        let taken = std::mem::take(&mut self.taken);
        self.input.drain(..taken);
        let is_held_for_none = taken > 0 && coming_bytes <= LINE_BYTES_MAX && self.held.bytes() > 0;
        if is_held_for_none {
            self.held = HeldBytes::default();
        }
        if is_held_for_none || self.input.is_empty() {
            self.input.shrink_to(READ_BYTES);
        }
        if coming_bytes > 0 {
            // A vector that grows by itself allocates up to twice of what it has, which nobody counted.
            self.input.reserve_exact((coming_bytes + READ_BYTES).saturating_sub(self.input.len()));
        }
    }

    /// Notes the answer to a command.
    pub fn answer(&mut self, number: u64, reply: Reply) {
        self.waiting_bytes += reply.len();
        self.replies[(number - self.first) as usize] = Some(reply);
        while let Some(Some(reply)) = self.replies.pop_front_if(|reply| reply.is_some()) {
            self.waiting_bytes -= reply.len();
            self.output.push(reply);
            self.first += 1;
        }
    }

    /// Is done with so many bytes, some of which may not have come.
    fn pass_over(&mut self, bytes: usize) {
        let here = bytes.min(self.input.len() - self.taken);
        self.skip = bytes - here;
        self.taken += here;
    }

    fn may_take(&self) -> bool {
        let answered_bytes = self.waiting_bytes + self.output.left_bytes();
        let is_full = self.replies.len() >= UNDER_WAY_MAX || answered_bytes >= OUTPUT_BYTES_MAX;
        !self.has_ended && !is_full
    }
}

impl<S: Read + Write> Connection<S> {
    /// Reads the bytes that have come, once. Returns whether any came, or the end did.
    ///
    /// # Errors
    /// Those of its socket: the client has gone.
    pub fn fill(&mut self) -> io::Result<bool> {
        let before = self.input.len();
        self.input.resize(before + READ_BYTES, 0);
        let count = self.stream.read(&mut self.input[before..]);
        self.input.truncate(before + *count.as_ref().unwrap_or(&0));
        match count {
            Ok(0) => (self.has_ended, self.is_heard_out) = (true, false),
            Ok(_) if self.has_ended => self.input.truncate(before),
            Ok(count) => {
                self.is_hungry = false;
                let passed_over = self.skip.min(count);
                self.skip -= passed_over;
                self.input.drain(before..before + passed_over);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(error) => return Err(error),
        }
        Ok(true)
    }

    /// Writes the bytes that there is room for. Returns whether any went.
    ///
    /// # Errors
    /// Those of its socket.
    pub fn flush(&mut self) -> io::Result<bool> {
        self.output.write_to(&mut self.stream)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A socket that gives its input in pieces and takes so much.
    struct Pieces {
        input: VecDeque<Vec<u8>>,
        output: Vec<u8>,
        room: usize,
    }

    impl Read for Pieces {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let piece = self.input.pop_front().ok_or(io::ErrorKind::WouldBlock)?;
            buffer[..piece.len()].copy_from_slice(&piece);
            Ok(piece.len())
        }
    }

    impl Write for Pieces {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let count = bytes.len().min(self.room);
            if count == 0 {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            self.room -= count;
            self.output.extend_from_slice(&bytes[..count]);
            Ok(count)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn connection(pieces: &[&[u8]]) -> Connection<Pieces> {
        let input = pieces.iter().map(|piece| piece.to_vec()).collect();
        Connection::new(Pieces { input, output: Vec::new(), room: usize::MAX }, ByteBudget::new(1 << 20))
    }

    /// Takes all, and answers each command with its number.
    fn serve(connection: &mut Connection<Pieces>) {
        while connection.fill().unwrap() {
            let mut numbers = Vec::new();
            connection.take(usize::MAX, 100, |number, _, _| numbers.push(number));
            // The last command is answered first.
            for number in numbers.into_iter().rev() {
                connection.answer(number, format!("{number} ").into_bytes().into());
            }
            connection.flush().unwrap();
        }
    }

    #[test]
    fn answers_are_in_the_order_of_the_commands() {
        let mut client = connection(&[b"get a\r\nge", b"t b\r\nnonsense\r\nget c\r", b"\nquit\r\nget d\r\n"]);
        serve(&mut client);
        assert_eq!(String::from_utf8_lossy(&client.stream.output), "0 1 ERROR\r\n3 ");
        assert!(client.is_done());
    }

    #[test]
    fn who_is_told_something_is_not_read() {
        let Connection { stream, budget, .. } = connection(&[b"get a\r\n"]);
        let mut client = Connection::told(stream, b"ERROR full\r\n", budget);
        client.stream.room = 4;
        assert!(!client.wants_input() && !client.is_done());
        assert!(client.flush().unwrap() && !client.is_done());
        client.stream.room = 100;
        assert!(!client.hear_out(7) && client.flush().unwrap());
        assert_eq!(client.stream.output, b"ERROR full\r\n");
        // What it sends is thrown away until it ends, or for some time.
        assert!(client.hear_out(7) && !client.hear_out(8) && client.wants_input() && !client.is_done());
        assert!(client.fill().unwrap() && client.input.is_empty() && !client.fill().unwrap());
        assert_eq!(client.take(1, 100, |_, _, _| {}), 0);
        assert!(client.wants_input() && !client.is_done());
        client.stream.input.push_back(Vec::new());
        assert!(client.fill().unwrap() && client.is_done() && !client.wants_input());
    }

    #[test]
    fn who_does_not_end_is_not_heard_out_for_ever() {
        let line = vec![b'x'; LINE_BYTES_MAX + 1];
        let pieces: Vec<&[u8]> = line.chunks(READ_BYTES).collect();
        let mut client = connection(&pieces);
        serve(&mut client);
        assert_eq!(client.stream.output, b"CLIENT_ERROR line too long\r\n");
        assert!(client.hear_out(7) && !client.is_done());
        assert!(!client.hear_out(7 + HEARD_OUT_S) && client.is_done());
    }

    #[test]
    fn a_value_that_is_too_large_is_passed_over_as_it_comes() {
        let value = [b'v'; 102];
        let mut client = connection(&[b"set a 0 0 302\r\n", &value, &value, &value[..98], b"\r\nget a\r\n"]);
        serve(&mut client);
        // The item that was there goes: command 0.
        let wanted = "0 SERVER_ERROR object too large for cache\r\n2 ";
        assert_eq!(String::from_utf8_lossy(&client.stream.output), wanted);
        assert!(client.input.is_empty() && !client.is_done());
    }

    #[test]
    fn long_values_that_come_have_one_budget_and_their_memory_is_counted() {
        const VALUE_BYTES: usize = 100_000;
        let budget = ByteBudget::new(3 * VALUE_BYTES);
        let line = format!("set a 0 0 {VALUE_BYTES}\r\n");
        let mut pieces = vec![line.as_bytes()];
        let value = vec![b'v'; VALUE_BYTES];
        pieces.extend(value.chunks(READ_BYTES));
        let [mut first, mut second] = [(); 2].map(|()| {
            let mut client = connection(&pieces);
            client.budget = Arc::clone(&budget);
            client.stream.input.push_back(b"\r\nget b\r\n".to_vec());
            client
        });
        let takes = |client: &mut Connection<Pieces>| {
            let mut taken = Vec::new();
            assert!(client.fill().unwrap());
            client.take(usize::MAX, 1 << 20, |number, command, _| {
                taken.push((number, matches!(command, MemcacheCommand::Put { .. })));
            });
            for (number, _) in &taken {
                client.answer(*number, Vec::new().into());
            }
            taken
        };
        assert!(takes(&mut first).is_empty());
        let whole_bytes = line.len() + VALUE_BYTES + 2;
        assert_eq!(budget.held_bytes(), whole_bytes);
        // As many bytes are to be left: the second value finds no room, and the item that it replaces goes.
        assert_eq!(takes(&mut second), [(0, false)]);
        second.flush().unwrap();
        assert_eq!(second.stream.output, b"SERVER_ERROR out of memory storing object\r\n");
        for _ in 0..value.chunks(READ_BYTES).len() {
            assert!(takes(&mut first).is_empty() && takes(&mut second).is_empty());
            assert!(first.input.capacity() <= whole_bytes + READ_BYTES && second.input.is_empty());
        }
        assert_eq!(takes(&mut first), [(0, true), (1, false)]);
        assert_eq!(takes(&mut second), [(2, false)]);
        assert_eq!((budget.held_bytes(), first.input.capacity() <= READ_BYTES), (0, true));
    }

    #[test]
    fn what_a_client_has_read_is_not_kept() {
        let mut client = connection(&[]);
        for number in 0..1000 {
            client.stream.input.push_back(b"get a\r\n".to_vec());
            assert!(client.fill().unwrap());
            assert_eq!(client.take(1, 100, |_, _, _| {}), 1, "a client that reads is read");
            client.answer(number, vec![b'x'; 10_000].into());
            // It is always an answer behind, so there is never nothing to write.
            client.stream.room = if number == 0 { 0 } else { 10_000 };
            client.flush().unwrap();
            assert!(client.has_output());
        }
        assert!(client.output.kept_bytes() < OUTPUT_BYTES_MAX, "{} bytes", client.output.kept_bytes());
    }

    #[test]
    fn answers_that_wait_for_another_worker_count_as_output() {
        let mut client = connection(&[b"get a\r\nget b\r\nget c\r\n"]);
        client.fill().unwrap();
        assert_eq!(client.take(2, 100, |_, _, _| {}), 2);
        client.answer(1, vec![b'x'; OUTPUT_BYTES_MAX].into());
        assert_eq!(
            client.take(1, 100, |_, _, _| {}),
            0,
            "the answer to the second command waits for the first"
        );
        client.answer(0, b"END\r\n".to_vec().into());
        assert!(client.flush().unwrap());
        assert_eq!(client.take(1, 100, |_, _, _| {}), 1);
    }

    #[test]
    fn a_client_that_does_not_read_is_not_read() {
        let mut client = connection(&[b"get a\r\nget b\r\n"]);
        client.stream.room = 10;
        client.fill().unwrap();
        assert_eq!(client.take(1, 100, |_, _, _| {}), 1);
        client.answer(0, vec![b'x'; OUTPUT_BYTES_MAX + 10].into());
        assert!(client.flush().unwrap() && !client.flush().unwrap());
        assert!(!client.wants_input());
        assert_eq!(client.take(1, 100, |_, _, _| {}), 0);
        client.stream.room = usize::MAX;
        assert!(client.flush().unwrap() && !client.has_output());
        assert_eq!(client.take(1, 100, |_, _, _| {}), 1);
    }
}
