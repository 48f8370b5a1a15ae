//! The work of a worker on a request for keys of its own: memcached's answers, byte for byte.
//!
//! Owner: values without state; the store is the worker's. Source: memcached `doc/protocol.txt`.

use std::io::Write;
use std::sync::Arc;

use crate::budget::ByteBudget;
use crate::command::{MemcacheCommand, expiry_s};
use crate::reply::Reply;
use crate::store::{Counted, Outcome, Store};

/// The end of the items that a `get` found.
pub const END: &[u8] = b"END\r\n";
/// The answer to a request that succeeded and has no other.
pub const OK: &[u8] = b"OK\r\n";

/// The most bytes that an item has in a reply beside its key and value, and [`END`] behind it.
const ITEM_TEXT_BYTES: usize = "VALUE  4294967295 4294967295 18446744073709551615\r\n\r\nEND\r\n".len();

/// Adds the item of one key of a `get`, if there is one, behind the bytes in `out`, and leaves room for an end. Returns whether there is
/// room, as [`Reply::make_room`] does.
pub fn get(
    store: &mut Store,
    hash: u64,
    key: &[u8],
    (with_cas, touch): (bool, Option<i64>),
    now_s: u32,
    out: &mut Reply,
    (uncounted_bytes, budget): (usize, &Arc<ByteBudget>),
) -> bool {
    let Some(item) = store.get(hash, key, now_s) else { return true };
    if !out.make_room(ITEM_TEXT_BYTES + key.len() + item.value.len(), uncounted_bytes, budget) {
        return false;
    }
    let out = &mut out.bytes;
    out.extend_from_slice(b"VALUE ");
    out.extend_from_slice(key);
    let cas = item.cas;
    let written = match with_cas {
        true => write!(out, " {} {} {cas}\r\n", item.flags, item.value.len()),
        false => write!(out, " {} {}\r\n", item.flags, item.value.len()),
    };
    written.expect("a vector takes all");
    out.extend_from_slice(item.value);
    out.extend_from_slice(b"\r\n");
    // The item is told as it was before.
    if let Some(exptime) = touch {
        store.touch(hash, key, expiry_s(exptime, now_s), now_s);
    }
    true
}

/// Performs any other request that has one key, or is for all of a worker's. Adds the answer behind the bytes in `out`; nothing if none is
/// wanted.
pub fn change(store: &mut Store, hash: u64, request: &MemcacheCommand<'_>, now_s: u32, out: &mut Vec<u8>) {
    let (answer, noreply): (&[u8], bool) = match *request {
        MemcacheCommand::Put { condition, key, flags, exptime, value, noreply } => {
            let expires_s = expiry_s(exptime, now_s);
            let answer: &[u8] = match store.put(hash, key, condition, flags, expires_s, value, now_s) {
                Outcome::Stored => b"STORED\r\n",
                Outcome::NotStored => b"NOT_STORED\r\n",
                Outcome::Exists => b"EXISTS\r\n",
                Outcome::NotFound => b"NOT_FOUND\r\n",
                Outcome::TooLarge => b"SERVER_ERROR object too large for cache\r\n",
            };
            (answer, noreply)
        }
        MemcacheCommand::Delete { key, noreply } => {
            (if store.delete(hash, key, now_s) { b"DELETED\r\n" } else { b"NOT_FOUND\r\n" }, noreply)
        }
        MemcacheCommand::Touch { key, exptime, noreply } => {
            let is_there = store.touch(hash, key, expiry_s(exptime, now_s), now_s);
            (if is_there { b"TOUCHED\r\n" } else { b"NOT_FOUND\r\n" }, noreply)
        }
        MemcacheCommand::Count { key, delta, is_up, noreply } => {
            match store.count(hash, key, delta, is_up, now_s) {
                Counted::To(number) => {
                    if !noreply {
                        write!(out, "{number}\r\n").expect("a vector takes all");
                    }
                    return;
                }
                Counted::NotFound => (b"NOT_FOUND\r\n", noreply),
                Counted::NotANumber => {
                    (b"CLIENT_ERROR cannot increment or decrement non-numeric value\r\n", noreply)
                }
            }
        }
        MemcacheCommand::FlushAll { exptime, noreply } => {
            store.flush_all(expiry_s(exptime, now_s), now_s);
            (OK, noreply)
        }
        MemcacheCommand::Get { .. }
        | MemcacheCommand::Stats
        | MemcacheCommand::Version
        | MemcacheCommand::Verbosity { .. }
        | MemcacheCommand::Quit => {
            unreachable!("they are answered elsewhere")
        }
    };
    if !noreply {
        out.extend_from_slice(answer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::{Front, read};

    #[test]
    fn answers_are_memcacheds() {
        let mut store = Store::new(1 << 20, 1 << 16);
        for (request, answer) in [
            ("get a\r\n", ""),
            ("set a 5 0 2\r\nhi\r\n", "STORED\r\n"),
            ("get a\r\n", "VALUE a 5 2\r\nhi\r\n"),
            ("gets a\r\n", "VALUE a 5 2 1\r\nhi\r\n"),
            ("add a 0 0 1\r\nx\r\n", "NOT_STORED\r\n"),
            ("append a 9 0 1\r\n!\r\n", "STORED\r\n"),
            ("prepend a 9 0 1\r\n>\r\n", "STORED\r\n"),
            ("get a\r\n", "VALUE a 5 4\r\n>hi!\r\n"),
            ("cas a 0 0 1 1\r\nx\r\n", "EXISTS\r\n"),
            ("cas a 0 0 1 3\r\nx\r\n", "STORED\r\n"),
            ("cas b 0 0 1 3\r\nx\r\n", "NOT_FOUND\r\n"),
            ("incr a 1\r\n", "CLIENT_ERROR cannot increment or decrement non-numeric value\r\n"),
            ("set n 0 0 2\r\n41\r\n", "STORED\r\n"),
            ("incr n 1\r\n", "42\r\n"),
            ("decr n 50 noreply\r\n", ""),
            ("get n\r\n", "VALUE n 0 1\r\n0\r\n"),
            ("incr m 1\r\n", "NOT_FOUND\r\n"),
            ("touch n 10\r\n", "TOUCHED\r\n"),
            ("touch m 10\r\n", "NOT_FOUND\r\n"),
            ("gat -1 n\r\n", "VALUE n 0 1\r\n0\r\n"),
            ("get n\r\n", ""),
            ("delete a\r\n", "DELETED\r\n"),
            ("delete a\r\n", "NOT_FOUND\r\n"),
            ("set a 0 0 2 noreply\r\nhi\r\n", ""),
            ("flush_all\r\n", "OK\r\n"),
            ("get a\r\n", ""),
        ] {
            let Front::Whole(read, _) = read(request.as_bytes(), 1 << 16) else { panic!("{request:?}") };
            let mut out = Reply::default();
            match read {
                MemcacheCommand::Get { keys, with_cas, touch } => {
                    for key in keys.iter() {
                        let (hash, how) = (u64::from(key[0]), (with_cas, touch));
                        let room = (1 << 16, &ByteBudget::new(0));
                        assert!(get(&mut store, hash, key, how, 1000, &mut out, room));
                    }
                }
                _ => {
                    let hash = read.key().map_or(0, |key| u64::from(key[0]));
                    change(&mut store, hash, &read, 1000, &mut out.bytes);
                }
            }
            assert_eq!(String::from_utf8_lossy(&out), answer, "{request:?}");
        }
    }
}
