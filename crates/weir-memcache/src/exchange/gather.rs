//! The answers of other workers to the parts of a request, until all are there, and the reply that they make.
//!
//! Rule: the items of a `get` are told in the order of its keys, whichever worker found them and answered first.
//!
//! Owner: the ticket of the request.

use super::Answer;
use crate::execute::{END, OK};
use crate::reply::{REPLY_BYTES_MAX, Reply};
use crate::stats::{Server, Stats};

/// The items that one worker found for its keys of a `get`.
#[derive(Debug, Default)]
pub struct FoundItems {
    /// The items, without an end.
    pub reply: Reply,
    /// Where what was found for each key ends. Without any, there was no room for them.
    pub ends: Vec<u32>,
}

/// The answers that a request gathers.
pub(super) enum Gathers {
    /// The answer of the one worker that was asked.
    One(Reply),
    /// Of a `get` the home of each key, and by worker the items that it found.
    Get(Vec<u8>, Vec<FoundItems>),
    /// The answers of all workers; true if the client gets an answer when all have come.
    All(bool),
    Stats(Box<Stats>),
}

impl Gathers {
    /// Takes the answer of worker `from`.
    pub(super) fn add(&mut self, from: usize, answer: Answer) {
        match (self, answer) {
            (Gathers::One(one), Answer::Text(reply)) => *one = reply,
            (Gathers::Get(_, parts), Answer::Get(part)) => parts[from] = part,
            (Gathers::Stats(sum), Answer::Stats(one)) => sum.add(&one),
            _ => {}
        }
    }

    /// The reply, once all have answered.
    pub(super) fn reply(self, server: &Server) -> Reply {
        match self {
            Gathers::One(reply) => reply,
            Gathers::All(is_told) => if is_told { OK.to_vec() } else { Vec::new() }.into(),
            Gathers::Stats(sum) => sum.text(server).into(),
            Gathers::Get(homes, parts) => items(&homes, parts),
        }
    }
}

/// The items of a `get` in the order of its keys.
fn items(homes: &[u8], mut parts: Vec<FoundItems>) -> Reply {
    let bytes = parts.iter().map(|part| part.reply.len()).sum::<usize>();
    let is_whole = homes.len() == parts.iter().map(|part| part.ends.len()).sum::<usize>();
    if !is_whole || homes.len() > 1 && bytes > REPLY_BYTES_MAX {
        return Reply::too_long();
    }
    // One worker has found all in that order.
    if let Some(part) = parts.iter_mut().find(|part| part.ends.len() == homes.len()) {
        part.reply.bytes.extend_from_slice(END);
        return std::mem::take(&mut part.reply);
    }
    let mut out = Vec::with_capacity(bytes + END.len());
    let mut taken = vec![(0usize, 0u32); parts.len()];
    for home in homes.iter().copied().map(usize::from) {
        let (index, from) = &mut taken[home];
        let end = parts[home].ends[*index];
        out.extend_from_slice(&parts[home].reply[*from as usize..end as usize]);
        (*index, *from) = (*index + 1, end);
    }
    out.extend_from_slice(END);
    let mut out = Reply::from(out);
    parts.into_iter().for_each(|part| out.hold_for(part.reply));
    out
}
