//! A worker's part of the server: its own keys, and its messages to the workers that have the other keys.
//!
//! ```text
//! client --request--> [take] --its own key--> store ----------------------------> replies --> client
//!                        |                                                          ^
//!                        +--another's--> asks ~~> that worker's [receive] --store   |
//!                                                                  |               |
//!                        [receive, here] <~~ answers ~~------------+----all there--+
//! ```
//!
//! Rule: a key has one home, which alone touches its item, so nothing is locked; the asks of one worker for a key are answered in their
//! order. A request that others must help with holds a ticket until all have answered; while there is none, the worker takes no request
//! ([`Exchange::free`]), so the messages that wait between workers are bounded: to each other worker one ask a ticket, and from it one
//! answer.
//!
//! Owner: one worker. It sends the messages in `asks` and `replies` after each call. Limits: 255 workers.

use hashbrown::DefaultHashBuilder;
use std::collections::VecDeque;
use std::hash::BuildHasher;

use crate::command::{Front, Keys, MemcacheCommand, read};
use crate::execute::{self, END, OK};
use crate::stats::{Server, Stats};
use crate::store::Store;

/// A reply that has so many bytes, or would get them by more items, is none: for any request so many bytes are made and one item more.
const REPLY_BYTES_MAX: usize = 32 << 20;
/// The answer in the place of a reply that is too long.
pub const TOO_LONG: &[u8] = b"SERVER_ERROR out of memory writing get response\r\n";

/// A message between workers.
#[derive(Debug)]
pub enum Message {
    /// Do this; `ticket` is the asker's.
    Ask {
        /// The ticket, to answer with.
        ticket: u32,
        /// The ask.
        ask: Ask,
    },
    /// The answer to an ask.
    Answer {
        /// The asker's ticket.
        ticket: u32,
        /// The answer.
        answer: Answer,
    },
}

/// The ask of another worker.
#[derive(Debug)]
pub enum Ask {
    /// A request, as a client sends it, for keys that are its own or for all.
    Text(Vec<u8>),
    /// Its counters.
    Stats,
}

/// The answer to an ask.
#[derive(Debug)]
pub enum Answer {
    /// The text that a client reads; of a `get` also where each key's part ends.
    Text(Vec<u8>, Vec<u32>),
    /// Its counters.
    Stats(Box<Stats>),
}

/// One worker's part. `C` identifies the client of a reply.
pub struct Exchange<C> {
    me: usize,
    workers: usize,
    /// The hasher, the same of every worker.
    hasher: DefaultHashBuilder,
    store: Store,
    value_bytes_max: usize,
    tickets: Vec<Option<Pending<C>>>,
    free: Vec<u32>,
    /// Messages to other workers, to be sent.
    pub asks: VecDeque<(usize, Message)>,
    /// Replies to clients, to be sent.
    pub replies: VecDeque<(C, Vec<u8>)>,
}

/// A request that others help with.
struct Pending<C> {
    client: C,
    /// Answers that have not come.
    left: usize,
    gathers: Gathers,
}

enum Gathers {
    /// The answer of the one worker that was asked.
    One(Vec<u8>),
    /// Of a `get` the home of each key, and by worker the items that it found.
    Get(Vec<u8>, Vec<(Vec<u8>, Vec<u32>)>),
    /// The answers of all workers; true if the client gets an answer when all have come.
    All(bool),
    Stats(Box<Stats>),
}

impl<C> Exchange<C> {
    /// The part of worker `me`, which has so many requests under way with others at the most. `hasher` is the same of all workers.
    pub fn new(
        me: usize,
        workers: usize,
        tickets: usize,
        hasher: DefaultHashBuilder,
        store: Store,
        value_bytes_max: usize,
    ) -> Exchange<C> {
        Exchange {
            me,
            workers,
            hasher,
            store,
            value_bytes_max,
            tickets: (0..tickets).map(|_| None).collect(),
            free: (0..tickets as u32).rev().collect(),
            asks: VecDeque::new(),
            replies: VecDeque::new(),
        }
    }

    /// The number of the worker.
    pub fn number(&self) -> usize {
        self.me
    }

    /// The items of the worker.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// The number of requests that may be taken.
    pub fn free(&self) -> usize {
        self.free.len()
    }

    /// Takes the request of a client, which was read from `text`. There must be a ticket.
    pub fn take(&mut self, client: C, request: &MemcacheCommand<'_>, text: &[u8], server: &Server) {
        let now_s = server.now_s;
        if let Some(key) = request.key() {
            let (hash, home) = self.home(key);
            if home == self.me {
                let mut out = Vec::new();
                execute::change(&mut self.store, hash, request, now_s, &mut out);
                self.reply(client, out);
            } else {
                let ticket = self.ticket(client, 1, Gathers::One(Vec::new()));
                self.asks.push_back((home, Message::Ask { ticket, ask: Ask::Text(text.to_vec()) }));
            }
            return;
        }
        match *request {
            MemcacheCommand::Get { keys, with_cas, touch } => {
                self.take_get(client, keys, (with_cas, touch), now_s)
            }
            MemcacheCommand::FlushAll { noreply, .. } => {
                execute::change(&mut self.store, 0, request, now_s, &mut Vec::new());
                self.ask_all(client, Gathers::All(!noreply), || Ask::Text(text.to_vec()), server);
            }
            MemcacheCommand::Stats => {
                let own = Box::new(Stats::of(&self.store));
                self.ask_all(client, Gathers::Stats(own), || Ask::Stats, server);
            }
            MemcacheCommand::Version => self.reply(client, format!("VERSION {}\r\n", server.version).into()),
            MemcacheCommand::Verbosity { noreply } => {
                self.reply(client, if noreply { Vec::new() } else { OK.into() })
            }
            MemcacheCommand::Quit => self.reply(client, Vec::new()),
            MemcacheCommand::Put { .. }
            | MemcacheCommand::Delete { .. }
            | MemcacheCommand::Count { .. }
            | MemcacheCommand::Touch { .. } => unreachable!("they have a key"),
        }
    }

    /// Takes a message of another worker.
    pub fn receive(&mut self, from: usize, message: Message, server: &Server) {
        match message {
            Message::Ask { ticket, ask } => {
                let answer = match ask {
                    Ask::Stats => Answer::Stats(Box::new(Stats::of(&self.store))),
                    Ask::Text(text) => self.execute(&text, server.now_s),
                };
                self.asks.push_back((from, Message::Answer { ticket, answer }));
            }
            Message::Answer { ticket, answer } => {
                let slot = &mut self.tickets[ticket as usize];
                let pending = slot.as_mut().expect("a ticket stands until all have answered");
                pending.left -= 1;
                match (&mut pending.gathers, answer) {
                    (Gathers::One(bytes), Answer::Text(text, _)) => *bytes = text,
                    (Gathers::Get(_, parts), Answer::Text(text, ends)) => parts[from] = (text, ends),
                    (Gathers::Stats(sum), Answer::Stats(one)) => sum.add(&one),
                    _ => {}
                }
                if pending.left == 0 {
                    let Pending { client, gathers, .. } = slot.take().expect("it is there");
                    self.free.push(ticket);
                    self.reply(client, gathered(gathers, server));
                }
            }
        }
    }

    fn take_get(&mut self, client: C, keys: Keys<'_>, how: (bool, Option<i64>), now_s: u32) {
        let mut homes = Vec::new();
        let (mut own, mut ends) = (Vec::new(), Vec::new());
        let mut asks: Vec<Vec<u8>> = vec![Vec::new(); self.workers];
        for key in keys.iter() {
            let (hash, home) = self.home(key);
            homes.push(home as u8);
            if home == self.me {
                if !self.find(hash, key, how, now_s, &mut own, &mut ends) {
                    return self.reply(client, TOO_LONG.into());
                }
                continue;
            }
            let ask = &mut asks[home];
            if ask.is_empty() {
                ask.extend_from_slice(match how {
                    (false, None) => b"get",
                    (true, None) => b"gets",
                    (false, Some(_)) => b"gat",
                    (true, Some(_)) => b"gats",
                });
                if let Some(exptime) = how.1 {
                    ask.extend_from_slice(format!(" {exptime}").as_bytes());
                }
            }
            ask.push(b' ');
            ask.extend_from_slice(key);
        }
        let left = asks.iter().filter(|ask| !ask.is_empty()).count();
        if left == 0 {
            own.extend_from_slice(END);
            return self.reply(client, own);
        }
        let mut parts = vec![(Vec::new(), Vec::new()); self.workers];
        parts[self.me] = (own, ends);
        let ticket = self.ticket(client, left, Gathers::Get(homes, parts));
        for (home, mut text) in asks.into_iter().enumerate().filter(|(_, text)| !text.is_empty()) {
            // No longer than the client's own line, which may have ended so.
            text.push(b'\n');
            self.asks.push_back((home, Message::Ask { ticket, ask: Ask::Text(text) }));
        }
    }

    fn ask_all(&mut self, client: C, gathers: Gathers, ask: impl Fn() -> Ask, server: &Server) {
        if self.workers == 1 {
            return self.reply(client, gathered(gathers, server));
        }
        let ticket = self.ticket(client, self.workers - 1, gathers);
        for other in (0..self.workers).filter(|other| *other != self.me) {
            self.asks.push_back((other, Message::Ask { ticket, ask: ask() }));
        }
    }

    /// The answer to another worker's request.
    fn execute(&mut self, text: &[u8], now_s: u32) -> Answer {
        let (mut out, mut ends) = (Vec::new(), Vec::new());
        match read(text, self.value_bytes_max) {
            Front::Whole(MemcacheCommand::Get { keys, with_cas, touch }, _) => {
                for key in keys.iter() {
                    let hash = self.hasher.hash_one(key);
                    // Ends that are missing tell the asker.
                    if !self.find(hash, key, (with_cas, touch), now_s, &mut out, &mut ends) {
                        break;
                    }
                }
            }
            Front::Whole(request, _) => {
                let hash = request.key().map_or(0, |key| self.hasher.hash_one(key));
                execute::change(&mut self.store, hash, &request, now_s, &mut out);
            }
            other => unreachable!("a worker asks for what it has read: {other:?}"),
        }
        Answer::Text(out, ends)
    }

    /// Adds one key of a `get` behind the items that were found, and notes where it ends. Returns whether there was room for it in a reply.
    fn find(
        &mut self,
        hash: u64,
        key: &[u8],
        how: (bool, Option<i64>),
        now_s: u32,
        out: &mut Vec<u8>,
        ends: &mut Vec<u32>,
    ) -> bool {
        let has_room = out.len() <= REPLY_BYTES_MAX;
        if has_room {
            execute::get(&mut self.store, hash, key, how, now_s, out);
            ends.push(out.len() as u32);
        }
        has_room
    }

    fn home(&self, key: &[u8]) -> (u64, usize) {
        let hash = self.hasher.hash_one(key);
        // The middle bits: the table takes those at both ends.
        (hash, (((hash >> 16 & 0xffff_ffff) * self.workers as u64) >> 32) as usize)
    }

    fn ticket(&mut self, client: C, left: usize, gathers: Gathers) -> u32 {
        let ticket = self.free.pop().expect("who takes a request has asked for a ticket");
        self.tickets[ticket as usize] = Some(Pending { client, left, gathers });
        ticket
    }

    /// Queues the reply to a request. Every request has one, which may be of no bytes, so that the owner of the client's order knows that
    /// the request is done.
    fn reply(&mut self, client: C, bytes: Vec<u8>) {
        self.replies.push_back((client, bytes));
    }
}

/// The reply, once all have answered.
fn gathered(gathers: Gathers, server: &Server) -> Vec<u8> {
    match gathers {
        Gathers::One(bytes) => bytes,
        Gathers::All(is_told) => {
            if is_told {
                OK.into()
            } else {
                Vec::new()
            }
        }
        Gathers::Stats(sum) => sum.text(server),
        Gathers::Get(homes, parts) => {
            let len = parts.iter().map(|part| part.0.len()).sum::<usize>();
            let is_whole = homes.len() == parts.iter().map(|part| part.1.len()).sum::<usize>();
            if !is_whole || homes.len() > 1 && len > REPLY_BYTES_MAX {
                return TOO_LONG.into();
            }
            let mut out = Vec::with_capacity(len + END.len());
            let mut taken = vec![(0usize, 0u32); parts.len()];
            for home in homes.into_iter().map(usize::from) {
                let (index, from) = &mut taken[home];
                let end = parts[home].1[*index];
                out.extend_from_slice(&parts[home].0[*from as usize..end as usize]);
                (*index, *from) = (*index + 1, end);
            }
            out.extend_from_slice(END);
            out
        }
    }
}

#[cfg(test)]
mod tests;
