//! The requests to the guardian, and the answer to each.
//!
//! Rule: an answer is that to its own request. The guardian answers in order, so an answer that was given up is received, and passed over,
//! before the next.
//!
//! Owner: the main process's side. Limits: a request whose answer was given up may have been carried out.

use std::io;
use std::os::fd::BorrowedFd;

use weir_port::channel::Channel;

use super::{Answer, Request};

/// The main process's end of the channel.
pub(super) struct Requests {
    channel: Channel,
    /// Requests whose answers have not been received.
    unanswered: u32,
}

impl Requests {
    pub(super) fn new(channel: Channel) -> Requests {
        Requests { channel, unanswered: 0 }
    }

    /// Sends a request and waits for its answer. `is_there` waits until the channel has a message; it returns false to give the answer up.
    pub(super) fn ask(
        &mut self,
        request: &Request,
        descriptors: &[BorrowedFd<'_>],
        is_there: impl Fn(&Channel) -> io::Result<bool>,
    ) -> io::Result<()> {
        self.channel.send(&serde_json::to_vec(request)?, descriptors)?;
        self.unanswered += 1;
        loop {
            if !is_there(&self.channel)? {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "it does not answer"));
            }
            let (bytes, _) = self.channel.receive()?.ok_or(io::ErrorKind::BrokenPipe)?;
            self.unanswered -= 1;
            if self.unanswered > 0 {
                continue;
            }
            return match serde_json::from_slice(&bytes)? {
                Answer::Kept => Ok(()),
                Answer::Refused(why) => Err(io::Error::other(why)),
                Answer::Faults(_) | Answer::Done => Err(io::ErrorKind::InvalidData.into()),
            };
        }
    }

    /// Ends the requests. The channel goes on to receive.
    pub(super) fn end(&self) -> &Channel {
        self.channel.end();
        &self.channel
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_that_comes_late_is_not_taken_for_the_next() {
        let (ours, guardians) = Channel::pair().unwrap();
        let mut requests = Requests::new(ours);
        let request = Request::PutBack { interfaces: Vec::new() };
        let answer = |answer| guardians.send(&serde_json::to_vec(&answer).unwrap(), &[]).unwrap();
        for _ in 0..2 {
            let given_up = requests.ask(&request, &[], |_| Ok(false)).unwrap_err();
            assert_eq!(given_up.kind(), io::ErrorKind::TimedOut);
        }
        answer(Answer::Kept);
        answer(Answer::Kept);
        answer(Answer::Refused("no".into()));
        let refused = requests.ask(&request, &[], |channel| channel.is_readable(0)).unwrap_err();
        assert_eq!(refused.to_string(), "no");
        answer(Answer::Kept);
        requests.ask(&request, &[], |channel| channel.is_readable(0)).unwrap();
    }
}
