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
//! answer. What a `get` finds takes room of the server's replies ([`crate::reply`]) before it is copied, also for another worker.
//!
//! Owner: one worker. It sends the messages in `asks` and `replies` after each call. Limits: 255 workers.

use hashbrown::DefaultHashBuilder;
use std::collections::VecDeque;
use std::hash::BuildHasher;
use std::sync::Arc;

use crate::budget::ByteBudget;
use crate::command::{Front, Keys, MemcacheCommand, read};
use crate::execute::{self, END, OK};
use crate::reply::{REPLY_BYTES_MAX, Reply, UNCOUNTED_BYTES};
use crate::stats::{Server, Stats};
use crate::store::Store;
pub use gather::FoundItems;
use gather::Gathers;

mod gather;

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
    /// A request, as a client sends it, for a key that is its own or for all.
    Text(Vec<u8>),
    /// A `get`, as a client sends it, for keys that are its own; and the bytes of the answer that do not count: those who are asked for
    /// the same client share [`UNCOUNTED_BYTES`].
    Get(Vec<u8>, usize),
    /// Its counters.
    Stats,
}

/// The answer to an ask.
#[derive(Debug)]
pub enum Answer {
    /// The text that a client reads.
    Text(Reply),
    /// The items that it found.
    Get(FoundItems),
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
    budget: Arc<ByteBudget>,
    tickets: Vec<Option<Pending<C>>>,
    free: Vec<u32>,
    /// Messages to other workers, to be sent.
    pub asks: VecDeque<(usize, Message)>,
    /// Replies to clients, to be sent.
    pub replies: VecDeque<(C, Reply)>,
}

/// A request that others help with.
struct Pending<C> {
    client: C,
    /// Answers that have not come.
    left: usize,
    gathers: Gathers,
}

impl<C> Exchange<C> {
    /// The part of worker `me`, which has so many requests under way with others at the most. `hasher` and `budget` are the same of all
    /// workers.
    pub fn new(
        me: usize,
        workers: usize,
        tickets: usize,
        hasher: DefaultHashBuilder,
        store: Store,
        value_bytes_max: usize,
        budget: Arc<ByteBudget>,
    ) -> Exchange<C> {
        Exchange {
            me,
            workers,
            hasher,
            store,
            value_bytes_max,
            budget,
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

    /// The room that its replies take.
    pub fn budget(&self) -> &Arc<ByteBudget> {
        &self.budget
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
                self.reply(client, out.into());
            } else {
                let ticket = self.ticket(client, 1, Gathers::One(Reply::default()));
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
            MemcacheCommand::Version => {
                self.reply(client, format!("VERSION {}\r\n", server.version).into_bytes().into())
            }
            MemcacheCommand::Verbosity { noreply } => {
                self.reply(client, if noreply { Vec::new() } else { OK.to_vec() }.into())
            }
            MemcacheCommand::Quit => self.reply(client, Reply::default()),
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
                    Ask::Text(text) => Answer::Text(self.execute(&text, server.now_s)),
                    Ask::Get(text, uncounted_bytes) => {
                        Answer::Get(self.find_all(&text, uncounted_bytes, server.now_s))
                    }
                };
                self.asks.push_back((from, Message::Answer { ticket, answer }));
            }
            Message::Answer { ticket, answer } => {
                let slot = &mut self.tickets[ticket as usize];
                let pending = slot.as_mut().expect("a ticket stands until all have answered");
                pending.left -= 1;
                pending.gathers.add(from, answer);
                if pending.left == 0 {
                    let Pending { client, gathers, .. } = slot.take().expect("it is there");
                    self.free.push(ticket);
                    self.reply(client, gathers.reply(server));
                }
            }
        }
    }

    fn take_get(&mut self, client: C, keys: Keys<'_>, how: (bool, Option<i64>), now_s: u32) {
        let mut homes = Vec::new();
        let mut own = FoundItems::default();
        let mut asks: Vec<Vec<u8>> = vec![Vec::new(); self.workers];
        for key in keys.iter() {
            let (hash, home) = self.home(key);
            homes.push(home as u8);
            if home == self.me {
                if !self.find(hash, key, how, now_s, &mut own, UNCOUNTED_BYTES) {
                    return self.reply(client, Reply::too_long());
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
            own.reply.bytes.extend_from_slice(END);
            return self.reply(client, own.reply);
        }
        let mut parts: Vec<FoundItems> = (0..self.workers).map(|_| FoundItems::default()).collect();
        parts[self.me] = own;
        let ticket = self.ticket(client, left, Gathers::Get(homes, parts));
        for (home, mut text) in asks.into_iter().enumerate().filter(|(_, text)| !text.is_empty()) {
            // No longer than the client's own line, which may have ended so.
            text.push(b'\n');
            let ask = Ask::Get(text, UNCOUNTED_BYTES / left);
            self.asks.push_back((home, Message::Ask { ticket, ask }));
        }
    }

    fn ask_all(&mut self, client: C, gathers: Gathers, ask: impl Fn() -> Ask, server: &Server) {
        if self.workers == 1 {
            return self.reply(client, gathers.reply(server));
        }
        let ticket = self.ticket(client, self.workers - 1, gathers);
        for other in (0..self.workers).filter(|other| *other != self.me) {
            self.asks.push_back((other, Message::Ask { ticket, ask: ask() }));
        }
    }

    /// The answer to another worker's request.
    fn execute(&mut self, text: &[u8], now_s: u32) -> Reply {
        let Front::Whole(request, _) = read(text, self.value_bytes_max) else {
            unreachable!("a worker asks for what it has read");
        };
        let hash = request.key().map_or(0, |key| self.hasher.hash_one(key));
        let mut out = Vec::new();
        execute::change(&mut self.store, hash, &request, now_s, &mut out);
        out.into()
    }

    /// The answer to another worker's `get`; nothing of it if there is no room.
    fn find_all(&mut self, text: &[u8], uncounted_bytes: usize, now_s: u32) -> FoundItems {
        let Front::Whole(MemcacheCommand::Get { keys, with_cas, touch }, _) =
            read(text, self.value_bytes_max)
        else {
            unreachable!("a worker asks for what it has read");
        };
        let mut part = FoundItems::default();
        for key in keys.iter() {
            let hash = self.hasher.hash_one(key);
            if !self.find(hash, key, (with_cas, touch), now_s, &mut part, uncounted_bytes) {
                return FoundItems::default();
            }
        }
        part
    }

    /// Adds one key of a `get` behind the items that were found, and notes where it ends. Returns whether there was room for it.
    fn find(
        &mut self,
        hash: u64,
        key: &[u8],
        how: (bool, Option<i64>),
        now_s: u32,
        part: &mut FoundItems,
        uncounted_bytes: usize,
    ) -> bool {
        let room = (uncounted_bytes, &self.budget);
        let has_room = part.reply.len() <= REPLY_BYTES_MAX
            && execute::get(&mut self.store, hash, key, how, now_s, &mut part.reply, room);
        if has_room {
            part.ends.push(part.reply.len() as u32);
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
    fn reply(&mut self, client: C, reply: Reply) {
        self.replies.push_back((client, reply));
    }
}

#[cfg(test)]
mod tests;
