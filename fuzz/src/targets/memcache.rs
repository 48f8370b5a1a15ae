//! A key-value server's requests: any bytes, in any pieces, are answered, and its items stay within their limit.

use std::sync::Arc;

use weir_memcache::budget::ByteBudget;
use weir_memcache::command::{Front, LINE_BYTES_MAX, MemcacheCommand, read};
use weir_memcache::exchange::Exchange;
use weir_memcache::frame;
use weir_memcache::reply::REPLIES_BYTES_MAX;
use weir_memcache::stats::Server;
use weir_memcache::store::Store;

use crate::draw::Draw;

const LIMIT_BYTES: usize = 4096;
const VALUE_BYTES_MAX: usize = 2048;

fn server() -> Server {
    Server {
        now_s: 1000,
        started_s: 900,
        pid: 1,
        version: "1",
        limit_bytes: LIMIT_BYTES,
        workers: 1,
        connections: Default::default(),
        unsent_replies: 0,
    }
}

fn exchanges(workers: usize) -> Vec<Exchange<()>> {
    let budget = ByteBudget::new(REPLIES_BYTES_MAX);
    // Clones of one hasher, as the workers of a server have.
    let hashers = vec![Default::default(); workers];
    let part = |(me, hasher)| {
        let store = Store::new(LIMIT_BYTES, LIMIT_BYTES);
        Exchange::new(me, workers, 1, hasher, store, VALUE_BYTES_MAX, Arc::clone(&budget))
    };
    hashers.into_iter().enumerate().map(part).collect()
}

/// Lets the messages between workers arrive until none is left.
fn settle(exchanges: &mut [Exchange<()>]) {
    while let Some(from) = exchanges.iter().position(|exchange| !exchange.asks.is_empty()) {
        let (to, message) = exchanges[from].asks.pop_front().expect("it is there");
        exchanges[to].receive(from, message, &server());
    }
}

/// Arbitrary bytes, as a stream and as a datagram.
pub fn memcache_bytes(bytes: &[u8]) {
    serve(bytes);
    if let Some((id, Some(text))) = frame::read(bytes) {
        serve(text);
        assert!(frame::cut(id, text, 1472).map(|(_, part)| part.len()).sum::<usize>() == text.len());
    }
}

/// Requests that are nearly right, or right.
pub fn memcache_requests(bytes: &[u8]) {
    let mut draw = Draw::new(bytes);
    let mut text = Vec::new();
    while !draw.is_empty() {
        let key = ["a", "b", "c", "", "long", " ", "\r", "a \r"][draw.below(8)];
        let number =
            ["0", "1", "-1", "7", "4294967295", "4294967296", "18446744073709551615", "x"][draw.below(8)];
        let noreply = ["", " noreply", " 0"][draw.below(3)];
        let verb =
            ["set", "add", "replace", "append", "prepend", "cas", "incr", "decr", "touch"][draw.below(9)];
        match draw.below(8) {
            0..4 => {
                let len = [0, 1, 10, 1000, 2047, 2049][draw.below(6)];
                let said = if draw.below(8) == 0 { number.into() } else { len.to_string() };
                text.extend_from_slice(
                    format!("{verb} {key} {number} {number} {said} {number}{noreply}\r\n").as_bytes(),
                );
                text.resize(text.len() + len, b'0');
                text.extend_from_slice(b"\r\n");
            }
            4 => text.extend_from_slice(format!("{verb} {key} {number}{noreply}\r\n").as_bytes()),
            5 => text.extend_from_slice(
                format!("{} {key} a b{noreply}\r\n", ["get", "gets", "gat 5", "delete"][draw.below(4)])
                    .as_bytes(),
            ),
            6 => text.extend_from_slice(
                ["flush_all\r\n", "stats\r\n", "version\r\n", "verbosity 1\r\n", "quit\r\n"][draw.below(5)]
                    .as_bytes(),
            ),
            _ => text.push(draw.u8()),
        }
    }
    serve(&text);
}

/// By one worker, and by several, of which the first has the client.
fn serve(bytes: &[u8]) {
    [1, 3].into_iter().for_each(|workers| serve_by(workers, bytes));
}

fn serve_by(workers: usize, mut bytes: &[u8]) {
    let mut exchanges = exchanges(workers);
    loop {
        match read(bytes, VALUE_BYTES_MAX) {
            Front::Whole(request, taken) => {
                assert!((1..=bytes.len()).contains(&taken));
                exchanges[0].take((), &request, &bytes[..taken], &server());
                settle(&mut exchanges);
                let exchange = &mut exchanges[0];
                let ((), reply) = exchange.replies.pop_front().expect("each request has a reply");
                assert!(exchange.replies.is_empty() && exchange.free() == 1);
                if matches!(request, MemcacheCommand::Get { .. } | MemcacheCommand::Stats) {
                    assert!(reply.ends_with(b"END\r\n"));
                } else if !reply.is_empty() {
                    assert!(
                        reply.ends_with(b"\r\n") && reply.iter().filter(|byte| **byte == b'\n').count() == 1
                    );
                }
                assert!(exchanges.iter().all(|exchange| exchange.store().bytes() <= LIMIT_BYTES));
                bytes = &bytes[taken..];
            }
            Front::Nonsense(_, taken) | Front::TooLarge(_, _, taken) => {
                assert!(taken > 0);
                bytes = bytes.get(taken..).unwrap_or_default();
            }
            Front::Endless(_) => return assert!(bytes.len() >= LINE_BYTES_MAX),
            Front::PartOfValue(_, _, whole) => return assert!(whole > bytes.len()),
            Front::Part => return,
        }
    }
}
