//! Any worker may be asked, and turns may fall in any order.

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;

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
    }
}

/// Workers, and the messages on their way between them.
struct Workers {
    parts: Vec<Exchange<usize>>,
    under_way: Vec<VecDeque<Message>>,
    replies: HashMap<usize, String>,
    asked: usize,
}

impl Workers {
    fn new(workers: usize) -> Workers {
        let hasher = DefaultHashBuilder::default();
        let part =
            |me| Exchange::new(me, workers, TICKETS, hasher.clone(), Store::new(1 << 20, 1 << 16), 1 << 16);
        Workers {
            parts: (0..workers).map(part).collect(),
            under_way: (0..workers * workers).map(|_| VecDeque::new()).collect(),
            replies: HashMap::new(),
            asked: 0,
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
        while let Some((client, bytes)) = self.parts[at].replies.pop_front() {
            let text = String::from_utf8(bytes).unwrap();
            assert!(self.replies.insert(client, text).is_none(), "one reply each");
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
        self.replies[&client].clone()
    }
}

#[test]
fn a_key_set_by_one_worker_is_read_by_all() {
    for workers in [1, 2, 5] {
        let mut them = Workers::new(workers);
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
        let mut them = Workers::new(workers);
        let value = "v".repeat(60_000);
        for key in ["a", "b", "c", "d", "e", "f"] {
            assert_eq!(them.answer(0, &format!("set {key} 0 0 60000\r\n{value}\r\n")), "STORED\r\n");
            let keys = format!(" {key}").repeat(600);
            let told = them.answer(0, &format!("get{keys}\r\n"));
            assert_eq!(told.as_bytes(), TOO_LONG, "{workers} workers");
        }
        assert!(them.answer(0, "get a b c d e f\r\n").len() > 6 * 60_000, "below the bound they come");
    }
}

#[test]
fn the_longest_line_may_be_asked_of_others() {
    let mut them = Workers::new(3);
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
        let mut them = Workers::new(3);
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
