//! The commands of one datagram, whose replies go out in the order in which they were asked for, whichever worker answers first.
//!
//! Owner: one worker. A line's number is given again when the line is done.

/// The place of a reply: its line, and its request there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplyPlace {
    line: u32,
    index: u32,
}

/// Lines under way, each with the client of its replies.
#[derive(Debug)]
pub struct Pipelines<T> {
    lines: Vec<Option<Line<T>>>,
    free: Vec<u32>,
}

#[derive(Debug)]
struct Line<T> {
    of: T,
    replies: Vec<Option<Vec<u8>>>,
    left: usize,
    is_read: bool,
}

impl<T> Default for Pipelines<T> {
    fn default() -> Pipelines<T> {
        Pipelines { lines: Vec::new(), free: Vec::new() }
    }
}

impl<T> Pipelines<T> {
    /// Begins a line.
    pub fn begin(&mut self, of: T) -> u32 {
        let line = Line { of, replies: Vec::new(), left: 0, is_read: false };
        match self.free.pop() {
            Some(number) => {
                self.lines[number as usize] = Some(line);
                number
            }
            None => {
                self.lines.push(Some(line));
                self.lines.len() as u32 - 1
            }
        }
    }

    /// The place of the line's next reply.
    pub fn ask(&mut self, line: u32) -> ReplyPlace {
        let it = self.line(line);
        it.replies.push(None);
        it.left += 1;
        ReplyPlace { line, index: it.replies.len() as u32 - 1 }
    }

    /// Says that no more is asked for; the line, if all has been answered.
    pub fn end(&mut self, line: u32) -> Option<(T, Vec<u8>)> {
        self.line(line).is_read = true;
        self.done(line)
    }

    /// Notes a reply; the line with all of them, if that was the last.
    pub fn answer(&mut self, place: ReplyPlace, reply: Vec<u8>) -> Option<(T, Vec<u8>)> {
        let it = self.line(place.line);
        it.replies[place.index as usize] = Some(reply);
        it.left -= 1;
        self.done(place.line)
    }

    fn line(&mut self, line: u32) -> &mut Line<T> {
        self.lines[line as usize].as_mut().expect("a line stands until all is answered")
    }

    fn done(&mut self, number: u32) -> Option<(T, Vec<u8>)> {
        let line = self.lines[number as usize].take_if(|line| line.is_read && line.left == 0)?;
        self.free.push(number);
        let mut replies = line.replies.into_iter().flatten();
        let mut bytes = replies.next().unwrap_or_default();
        replies.for_each(|reply| bytes.extend_from_slice(&reply));
        Some((line.of, bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_are_in_the_order_of_their_requests() {
        let mut lines = Pipelines::default();
        let line = lines.begin("a");
        let (first, second) = (lines.ask(line), lines.ask(line));
        assert_eq!(lines.answer(second, b"2".to_vec()), None);
        assert_eq!(lines.end(line), None);
        let other = lines.begin("b");
        assert_ne!(other, line);
        assert_eq!(lines.end(other), Some(("b", Vec::new())));
        assert_eq!(lines.answer(first, b"1".to_vec()), Some(("a", b"12".to_vec())));
    }
}
