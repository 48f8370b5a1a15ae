//! Any worker may be asked, and turns may fall in any order.

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;
use crate::pipeline::Pipelines;
use crate::reply::{REPLIES_BYTES_MAX, TOO_LONG};

const TICKETS: usize = 8;

fn server(workers: usize) -> Server {
    Server {
        now_s: 1000,
        started_s: 900,
        pid: 7,
        version: "1",
        limit_bytes: 1 << 20,
        workers,
        connections: Default::default(),
        unsent_replies: 0,
    }
}

/// Workers, and the messages on their way between them.
struct Workers {
    parts: Vec<Exchange<usize>>,
    under_way: Vec<VecDeque<Message>>,
    replies: HashMap<usize, Reply>,
    asked: usize,
    budget: Arc<ByteBudget>,
}

impl Workers {
    /// Workers whose long replies have so many bytes together.
    fn new(workers: usize, replies_bytes_max: usize) -> Workers {
        let (hasher, budget) = (DefaultHashBuilder::default(), ByteBudget::new(replies_bytes_max));
        let part = |me| {
            let store = Store::new(1 << 20, 1 << 16);
            Exchange::new(me, workers, TICKETS, hasher.clone(), store, 1 << 16, Arc::clone(&budget))
        };
        Workers {
            parts: (0..workers).map(part).collect(),
            under_way: (0..workers * workers).map(|_| VecDeque::new()).collect(),
            replies: HashMap::new(),
            asked: 0,
            budget,
        }
    }

    fn ask(&mut self, at: usize, text: &str) -> usize {
        let Front::Whole(request, _) = read(text.as_bytes(), 1 << 16) else { panic!("{text:?}") };
        let server = server(self.parts.len());
        self.parts[at].take(self.asked, &request, text.as_bytes(), &server);
        self.send(at);
        self.asked += 1;
        self.asked - 1
    }

    fn send(&mut self, at: usize) {
        let workers = self.parts.len();
        while let Some((to, message)) = self.parts[at].asks.pop_front() {
            self.under_way[at * workers + to].push_back(message);
        }
        while let Some((client, reply)) = self.parts[at].replies.pop_front() {
            assert!(self.replies.insert(client, reply).is_none(), "one reply each");
        }
    }

    /// The message that came first on one of the ways arrives; whether there was one on any.
    fn step(&mut self, way: usize) -> bool {
        let workers = self.parts.len();
        let ways = workers * workers;
        for way in (0..ways).map(|more| (way + more) % ways) {
            if let Some(message) = self.under_way[way].pop_front() {
                let (from, to) = (way / workers, way % workers);
                self.parts[to].receive(from, message, &server(workers));
                self.send(to);
                return true;
            }
        }
        false
    }

    fn settle(&mut self) {
        while self.step(0) {}
    }

    fn answer(&mut self, at: usize, text: &str) -> String {
        let client = self.ask(at, text);
        self.settle();
        str::from_utf8(&self.replies[&client]).unwrap().into()
    }

    /// All replies that are there are sent: what they held has been given back.
    fn are_sent(&mut self) {
        self.replies.clear();
        assert_eq!(self.budget.held_bytes(), 0);
    }

    /// Sets the keys `a` to `f` to values of so many bytes, which are less than those of a worker.
    fn set_six(&mut self, bytes: usize) {
        let value = "v".repeat(bytes);
        for key in ["a", "b", "c", "d", "e", "f"] {
            assert_eq!(self.answer(0, &format!("set {key} 0 0 {bytes}\r\n{value}\r\n")), "STORED\r\n");
        }
    }
}

#[test]
fn a_key_set_by_one_worker_is_read_by_all() {
    for workers in [1, 2, 5] {
        // Nothing is taken for replies of so few bytes.
        let mut them = Workers::new(workers, 0);
        for key in 0..40 {
            let text = format!("set key{key} 0 0 2\r\n{key:02}\r\n");
            assert_eq!(them.answer(key % workers, &text), "STORED\r\n");
        }
        let keys: Vec<String> = (0..40).rev().map(|key| format!("key{key}")).collect();
        let wanted: String = (0..40).rev().map(|key| format!("VALUE key{key} 0 2\r\n{key:02}\r\n")).collect();
        for at in 0..workers {
            let text = format!("get missing {} missing\r\n", keys.join(" "));
            assert_eq!(them.answer(at, &text), format!("{wanted}END\r\n"), "in the order of the keys");
        }
        let stats = them.answer(0, "stats\r\n");
        assert!(stats.contains("STAT curr_items 40\r\n"), "{stats}");
        assert!(stats.contains(&format!("STAT get_misses {}\r\n", 2 * workers)), "{stats}");
        assert!(stats.ends_with("END\r\n"));
        assert_eq!(them.answer(workers - 1, "flush_all\r\n"), "OK\r\n");
        assert_eq!(them.answer(0, &format!("get {}\r\n", keys.join(" "))), "END\r\n");
        assert!(them.parts.iter().all(|part| part.free() == TICKETS));
    }
}

#[test]
fn a_reply_is_bounded_whoever_has_the_keys() {
    for workers in [1, 2, 3] {
        let mut them = Workers::new(workers, REPLIES_BYTES_MAX);
        let value = "v".repeat(60_000);
        for key in ["a", "b", "c", "d", "e", "f"] {
            assert_eq!(them.answer(0, &format!("set {key} 0 0 60000\r\n{value}\r\n")), "STORED\r\n");
            let keys = format!(" {key}").repeat(600);
            let told = them.answer(0, &format!("get{keys}\r\n"));
            assert_eq!(told.as_bytes(), TOO_LONG, "{workers} workers");
            them.are_sent();
        }
        assert!(them.answer(0, "get a b c d e f\r\n").len() > 6 * 60_000, "below the bound they come");
    }
}

#[test]
fn long_replies_have_one_budget_whoever_has_the_keys() {
    for workers in [1, 2, 3] {
        let mut them = Workers::new(workers, 400_000);
        them.set_six(60_000);
        assert_eq!(them.budget.held_bytes(), 0);
        assert!(them.answer(0, "get a b c\r\n").len() > 180_000);
        let held_bytes = them.budget.held_bytes();
        assert!((180_000..181_000).contains(&held_bytes), "{held_bytes}");
        assert_eq!(them.answer(0, "get d e f\r\n").as_bytes(), TOO_LONG, "{workers} workers");
        assert_eq!(them.budget.held_bytes(), held_bytes, "nothing of it is kept");
        assert!(them.answer(0, "get d\r\n").len() > 60_000, "a shorter one has room");
        them.are_sent();
        assert!(them.answer(0, "gets d e f\r\n").len() > 180_000);
        them.are_sent();
    }
}

#[test]
fn a_worker_that_is_asked_for_too_much_keeps_nothing_of_it() {
    let mut them = Workers::new(2, 100_000);
    let key = ('a'..='z').map(String::from).find(|key| them.parts[0].home(key.as_bytes()).1 == 1).unwrap();
    let value = "v".repeat(30_000);
    assert_eq!(them.answer(0, &format!("set {key} 0 0 30000\r\n{value}\r\n")), "STORED\r\n");
    for (keys, held_bytes) in [(1, 30_000..30_100), (3, 0..1)] {
        let client = them.ask(0, &format!("get{}\r\n", format!(" {key}").repeat(keys)));
        assert!(them.step(0));
        assert!(them.under_way.iter().any(|way| !way.is_empty()), "the answer is under way");
        assert!(held_bytes.contains(&them.budget.held_bytes()), "{keys} keys");
        them.settle();
        assert_eq!(&them.replies[&client][..] == TOO_LONG, keys == 3);
        them.are_sent();
    }
}

#[test]
fn short_replies_take_nothing() {
    for workers in [1, 2, 3] {
        let mut them = Workers::new(workers, 0);
        them.set_six(4000);
        for at in 0..workers {
            for key in ["a", "b", "c", "d", "e", "f"] {
                assert!(them.answer(at, &format!("get {key}\r\n")).len() > 4000);
            }
        }
        them.set_six(4096);
        assert_eq!(them.answer(0, "get a\r\n").as_bytes(), TOO_LONG);
    }
}

/// The commands of one datagram, as a worker takes them.
#[test]
fn many_gets_in_one_line_stay_within_the_budget() {
    const BUDGET_BYTES: usize = 4_000_000;
    for workers in [1, 2, 3] {
        let mut them = Workers::new(workers, BUDGET_BYTES);
        them.set_six(60_000);
        let mut lines = Pipelines::new(Arc::clone(&them.budget));
        let line = lines.begin(());
        let mut whole = 0;
        for turn in 0..100 {
            let text = ["get a b a c a a a a a a\r\n", "incr a 1\r\n"][turn % 2];
            let place = lines.ask(line);
            let client = them.ask(0, text);
            them.settle();
            let reply = them.replies.remove(&client).unwrap();
            assert!(them.budget.held_bytes() <= BUDGET_BYTES);
            match turn % 2 {
                0 if reply.len() > 600_000 => whole += 1,
                0 => assert_eq!(&reply[..], TOO_LONG),
                _ => assert!(reply.starts_with(b"CLIENT_ERROR ")),
            }
            assert!(lines.answer(place, reply).is_none());
        }
        assert!((3..=6).contains(&whole), "{whole} of {workers} workers");
        let ((), all) = lines.end(line).unwrap();
        assert!(all.len() > whole * 600_000 && all.len() < BUDGET_BYTES + 100 * 64);
        assert!(them.budget.held_bytes() >= whole * 600_000, "the line holds what its replies held");
        drop(all);
        them.are_sent();
    }
}

#[test]
fn a_key_that_would_end_the_line_is_asked_of_nobody() {
    for workers in 1..=4 {
        let mut them = Workers::new(workers, REPLIES_BYTES_MAX);
        for at in 0..workers {
            for text in ["get \r \r\n", "gets a\r\r\n", "gat 5 \r a\r \r\n"] {
                match read(text.as_bytes(), 1 << 16) {
                    Front::Whole(..) => assert_eq!(them.answer(at, text), "END\r\n"),
                    front => assert!(matches!(front, Front::Nonsense(_, taken) if taken == text.len())),
                }
            }
        }
    }
}

#[test]
fn the_longest_line_may_be_asked_of_others() {
    let mut them = Workers::new(3, REPLIES_BYTES_MAX);
    // Without a carriage return, to the last byte that a line may have.
    let keys = " k".repeat((crate::command::LINE_BYTES_MAX - "get".len() - 1) / 2);
    let line = format!("get{keys}\n");
    assert!(line.len() <= crate::command::LINE_BYTES_MAX && line.len() + 2 > crate::command::LINE_BYTES_MAX);
    for at in 0..3 {
        assert_eq!(them.answer(at, &line), "END\r\n");
    }
}

proptest! {
    /// Each request has one reply in any turns of the workers, counting loses nothing, and no more wait than there are tickets.
    #[test]
    fn each_request_has_one_reply_in_any_turns(
        seed in proptest::collection::vec((0..3usize, 0..6u8, 0..9usize, 0..4u8), 1..150),
    ) {
        let mut them = Workers::new(3, REPLIES_BYTES_MAX);
        let mut counted = [0u64; 6];
        for key in 0..6 {
            them.answer(0, &format!("set n{key} 0 0 1\r\n0\r\n"));
        }
        for (at, key, way, moves) in seed {
            if them.parts[at].free() > 0 {
                them.ask(at, &format!("incr n{key} 1\r\n"));
                counted[usize::from(key)] += 1;
            }
            for _ in 0..moves {
                them.step(way);
            }
            let most = them.under_way.iter().map(VecDeque::len).max().unwrap();
            prop_assert!(most <= 2 * TICKETS, "asks and answers of as many requests as there are tickets");
        }
        them.settle();
        prop_assert_eq!(them.replies.len(), them.asked);
        for (key, count) in counted.into_iter().enumerate() {
            let wanted = count.to_string();
            let text = format!("VALUE n{key} 0 {}\r\n{wanted}\r\nEND\r\n", wanted.len());
            prop_assert_eq!(them.answer(key % 3, &format!("get n{key}\r\n")), text);
        }
    }
}
