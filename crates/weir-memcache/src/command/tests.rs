//! Commands as they are written, cut short, or wrong.

use proptest::prelude::*;

use super::*;

fn whole(bytes: &[u8]) -> MemcacheCommand<'_> {
    match read(bytes, 1024) {
        Front::Whole(request, taken) if taken == bytes.len() => request,
        other => panic!("{:?}: {other:?}", String::from_utf8_lossy(bytes)),
    }
}

#[test]
fn requests_are_read_as_they_are_written() {
    let put = |condition, flags, exptime, value, noreply| MemcacheCommand::Put {
        condition,
        key: b"k",
        flags,
        exptime,
        value,
        noreply,
    };
    for (text, request) in [
        ("set k 1 2 3\r\nabc\r\n", put(Condition::Set, 1, 2, b"abc", false)),
        ("add k 0 -1 0 noreply\r\n\r\n", put(Condition::Add, 0, -1, b"", true)),
        ("replace  k 0 0 2 \r\n\r\n\r\n", put(Condition::Replace, 0, 0, b"\r\n", false)),
        ("append k 0 0 1\r\nx\r\n", put(Condition::Append, 0, 0, b"x", false)),
        ("prepend k 0 0 1\nx\r\n", put(Condition::Prepend, 0, 0, b"x", false)),
        ("cas k 4294967295 0 1 77 noreply\r\nx\r\n", put(Condition::Cas(77), u32::MAX, 0, b"x", true)),
        ("delete k\r\n", MemcacheCommand::Delete { key: b"k", noreply: false }),
        ("delete k 0 noreply\r\n", MemcacheCommand::Delete { key: b"k", noreply: true }),
        ("incr k 5\r\n", MemcacheCommand::Count { key: b"k", delta: 5, is_up: true, noreply: false }),
        ("decr k 1 noreply\r\n", MemcacheCommand::Count { key: b"k", delta: 1, is_up: false, noreply: true }),
        ("touch k 9\r\n", MemcacheCommand::Touch { key: b"k", exptime: 9, noreply: false }),
        ("flush_all\r\n", MemcacheCommand::FlushAll { exptime: 0, noreply: false }),
        ("flush_all noreply\r\n", MemcacheCommand::FlushAll { exptime: 0, noreply: true }),
        ("flush_all 3 noreply\r\n", MemcacheCommand::FlushAll { exptime: 3, noreply: true }),
        ("stats\r\n", MemcacheCommand::Stats),
        ("version\r\n", MemcacheCommand::Version),
        ("verbosity 1\r\n", MemcacheCommand::Verbosity { noreply: false }),
        ("quit\r\n", MemcacheCommand::Quit),
    ] {
        assert_eq!(whole(text.as_bytes()), request, "{text:?}");
    }
    for (text, cas, touched) in [
        ("get a bb  c\r\n", false, None),
        (" get a bb c\r\n", false, None),
        ("  gat  7 a bb c\n", false, Some(7)),
        ("gets a bb c\r\n", true, None),
        ("gats 7 a bb c\r\n", true, Some(7)),
    ] {
        let MemcacheCommand::Get { keys, with_cas, touch } = whole(text.as_bytes()) else {
            panic!("{text:?}")
        };
        assert_eq!((with_cas, touch), (cas, touched));
        assert_eq!(keys.iter().collect::<Vec<_>>(), [b"a".as_slice(), b"bb", b"c"], "{text:?}");
    }
}

#[test]
fn nonsense_is_answered_and_skipped_with_its_value() {
    let long = format!("get {}\r\n", "k".repeat(251));
    for (text, answer, taken) in [
        ("\r\n", ERROR, 2),
        ("get\r\n", ERROR, 5),
        ("nothing\r\n", ERROR, 9),
        ("mg k v\r\n", ERROR, 8),
        (&long, BAD_LINE, 257),
        ("get \r \r\n", BAD_LINE, 8),
        ("get a\r\r\n", BAD_LINE, 8),
        ("gat 0 a \tb\r\n", BAD_LINE, 12),
        ("set \0 0 0 1\r\nx\r\n", BAD_LINE, 16),
        ("incr k -1\r\n", BAD_DELTA, 11),
        ("touch k soon\r\n", BAD_EXPTIME, 14),
        ("flush_all soon\r\n", BAD_EXPTIME, 16),
        ("verbosity\r\n", ERROR, 11),
        ("verbosity a b c\r\n", ERROR, 17),
        ("set k 0 0\r\n", ERROR, 11),
        ("set k 0 0 x\r\n", BAD_LINE, 13),
        ("set k 0 0 -1\r\n", BAD_CHUNK, 14),
        ("set k -1 0 3\r\nabc\r\n", BAD_LINE, 19),
        ("set k 4294967296 0 3 noreply\r\nabc\r\n", NO_ANSWER, 35),
        ("set k 0 0 3\r\nabcd\r\n", BAD_CHUNK, 18),
        ("set k 0 0 99999999999999999999\r\n", BAD_LINE, 32),
    ] {
        assert_eq!(read(text.as_bytes(), 1024), Front::Nonsense(answer, taken), "{text:?}");
    }
    let of_key = |key: Option<&'static [u8]>, answer, taken| Front::TooLarge(key, answer, taken);
    assert_eq!(read(b"set k 0 0 1025\r\n", 1024), of_key(Some(b"k"), TOO_LARGE, 16 + 1027));
    assert_eq!(read(b"append k 0 0 1025 noreply\r\n", 1024), of_key(None, NO_ANSWER, 27 + 1027));
    assert_eq!(read(&[b'x'; LINE_BYTES_MAX], 1024), Front::Endless(LINE_TOO_LONG));
}

#[test]
fn a_time_is_from_now_up_to_thirty_days() {
    for (exptime, expires_s) in [
        (0, 0),
        (-1, 1),
        (1, 1001),
        (2_592_000, 2_593_000),
        (2_592_001, 2_592_001),
        (i64::MAX, u32::MAX),
        (i64::MIN, 1),
    ] {
        assert_eq!(expiry_s(exptime, 1000), expires_s, "{exptime}");
    }
}

proptest! {
    /// A request that comes in pieces is read once it is whole, and not before.
    #[test]
    fn every_front_of_a_request_is_a_part_of_it(value in proptest::collection::vec(any::<u8>(), 0..50)) {
        let text = [format!("set key 1 2 {}\r\n", value.len()).as_bytes(), &value, b"\r\n"].concat();
        for end in 0..text.len() {
            let front = read(&text[..end], 1024);
            let is_part = match front {
                Front::Part => !text[..end].contains(&b'\n'),
                Front::PartOfValue(key, _, whole) => (key, whole) == (Some(b"key".as_slice()), text.len()),
                _ => false,
            };
            prop_assert!(is_part, "{:?}", front);
        }
        let is_whole = matches!(read(&text, 1024), Front::Whole(MemcacheCommand::Put { .. }, taken) if taken == text.len());
        prop_assert!(is_whole);
    }

    /// For any bytes, those that are taken lie in them, unless it is nonsense that goes on.
    #[test]
    fn any_bytes_have_an_answer(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        if let Front::Whole(_, taken) = read(&bytes, 1024) {
            prop_assert!((1..=bytes.len()).contains(&taken));
        }
    }
}
