//! The reply to `stats`, under memcached's names, with counters added up over the workers.

use std::fmt::Write;

use crate::seats::ConnectionCounts;
use crate::store::{Store, StoreCounts};

/// The values that are the same of the whole server, and the time.
#[derive(Debug, Clone, Copy)]
pub struct Server {
    /// Seconds since 1970.
    pub now_s: u32,
    /// The time when it began, likewise.
    pub started_s: u32,
    /// The process id.
    pub pid: u32,
    /// The version that it tells.
    pub version: &'static str,
    /// The most bytes that its items take.
    pub limit_bytes: usize,
    /// The number of workers with keys of their own.
    pub workers: usize,
    /// Its clients over TCP.
    pub connections: ConnectionCounts,
    /// Replies over UDP that could not be sent.
    pub unsent_replies: u64,
}

/// The counters of some workers.
#[derive(Debug, Clone, Copy, Default)]
pub struct Stats {
    counts: StoreCounts,
    items: usize,
    bytes: usize,
}

impl Stats {
    /// The counters of one worker.
    pub fn of(store: &Store) -> Stats {
        Stats { counts: store.counts(), items: store.items(), bytes: store.bytes() }
    }

    /// Adds the counters of another.
    pub fn add(&mut self, other: &Stats) {
        let (sum, one) = (&mut self.counts, &other.counts);
        sum.get_hits += one.get_hits;
        sum.get_misses += one.get_misses;
        sum.sets += one.sets;
        sum.evictions += one.evictions;
        sum.total_items += one.total_items;
        self.items += other.items;
        self.bytes += other.bytes;
    }

    /// The text that a client reads.
    pub fn text(&self, server: &Server) -> Vec<u8> {
        let (counts, connections) = (&self.counts, &server.connections);
        let mut text = String::new();
        for (name, value) in [
            ("pid", u64::from(server.pid)),
            ("uptime", u64::from(server.now_s.saturating_sub(server.started_s))),
            ("time", u64::from(server.now_s)),
            ("pointer_size", u64::from(usize::BITS)),
            ("max_connections", connections.max),
            ("curr_connections", connections.current),
            ("total_connections", connections.total),
            ("rejected_connections", connections.rejected),
            // A client too many is told so, and the listener goes on.
            ("listen_disabled_num", 0),
            ("unsent_replies", server.unsent_replies),
            ("cmd_get", counts.get_hits + counts.get_misses),
            ("cmd_set", counts.sets),
            ("get_hits", counts.get_hits),
            ("get_misses", counts.get_misses),
            ("limit_maxbytes", server.limit_bytes as u64),
            ("threads", server.workers as u64),
            ("bytes", self.bytes as u64),
            ("curr_items", self.items as u64),
            ("total_items", counts.total_items),
            ("evictions", counts.evictions),
        ] {
            write!(text, "STAT {name} {value}\r\n").expect("a string takes all");
        }
        write!(text, "STAT version {}\r\nEND\r\n", server.version).expect("a string takes all");
        text.into()
    }
}
