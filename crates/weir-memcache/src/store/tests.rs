//! Items end, are flushed and make room; a store answers as a map does.

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;

fn hash(key: &[u8]) -> u64 {
    // A poor hash: keys share places, so that an item is found by its key.
    u64::from(key[0] & 7) << 57 | u64::from(key[0] & 7)
}

fn store() -> Store {
    Store::new(1 << 20, 1 << 16)
}

fn set(store: &mut Store, key: &[u8], value: &[u8]) -> Outcome {
    store.put(hash(key), key, Condition::Set, 0, 0, value, 1)
}

fn value(store: &mut Store, key: &[u8], now_s: u32) -> Option<Vec<u8>> {
    store.get(hash(key), key, now_s).map(|item| item.value.to_vec())
}

#[test]
fn the_longest_unused_makes_room() {
    let mut store = Store::new(10 * (ITEM_BYTES + 11), 1 << 16);
    for key in b'a'..=b'j' {
        assert_eq!(set(&mut store, &[key], &[0; 10]), Outcome::Stored);
    }
    assert!(value(&mut store, b"a", 1).is_some(), "used now");
    assert!(store.touch(hash(b"b"), b"b", 0, 1), "used now");
    set(&mut store, b"k", &[0; 10]);
    assert_eq!(store.counts().evictions, 1);
    let there = [b"a", b"b", b"c"].map(|key| value(&mut store, key, 1).is_some());
    assert_eq!(there, [true, true, false]);
    assert_eq!((store.items(), store.bytes()), (10, 10 * (ITEM_BYTES + 11)));
}

#[test]
fn an_item_ends_at_its_time_and_when_all_are_flushed() {
    let mut store = store();
    store.put(hash(b"a"), b"a", Condition::Set, 7, 10, b"x", 1);
    assert_eq!(value(&mut store, b"a", 9), Some(b"x".to_vec()));
    assert!(store.touch(hash(b"a"), b"a", 20, 9));
    assert_eq!(value(&mut store, b"a", 19), Some(b"x".to_vec()));
    assert_eq!(value(&mut store, b"a", 20), None);
    assert_eq!((store.items(), store.bytes()), (0, 0), "found to be over, it is gone");
    set(&mut store, b"a", b"x");
    store.flush_all(30, 20);
    set(&mut store, b"b", b"y");
    assert!(value(&mut store, b"a", 29).is_some());
    assert!(value(&mut store, b"a", 30).is_none() && value(&mut store, b"b", 30).is_none());
    set(&mut store, b"c", b"z");
    assert!(value(&mut store, b"c", 31).is_some(), "what comes after a flush stays");
}

#[test]
fn what_is_too_large_takes_what_it_was_to_replace_with_it() {
    let mut store = Store::new(1 << 20, 1000);
    for (condition, stays) in [
        (Condition::Set, false),
        (Condition::Replace, false),
        (Condition::Append, true),
        (Condition::Prepend, true),
    ] {
        set(&mut store, b"a", b"x");
        let outcome = store.put(hash(b"a"), b"a", condition, 0, 0, &[0; 1000], 1);
        assert_eq!(outcome, Outcome::TooLarge);
        assert_eq!(value(&mut store, b"a", 1).is_some(), stays, "{condition:?}");
    }
    store.delete(hash(b"a"), b"a", 1);
    assert_eq!(store.bytes(), 0);
}

#[test]
fn only_numbers_are_counted() {
    let mut store = store();
    for (text, delta, is_up, counted) in [
        ("5", 3, true, Counted::To(8)),
        ("5", 9, false, Counted::To(0)),
        ("18446744073709551615", 2, true, Counted::To(1)),
        ("18446744073709551616", 2, true, Counted::NotANumber),
        ("-1", 1, true, Counted::NotANumber),
        ("", 1, true, Counted::NotANumber),
        ("1 ", 1, true, Counted::NotANumber),
    ] {
        set(&mut store, b"n", text.as_bytes());
        assert_eq!(store.count(hash(b"n"), b"n", delta, is_up, 1), counted, "{text}");
    }
    assert_eq!(store.count(hash(b"m"), b"m", 1, true, 1), Counted::NotFound);
}

#[derive(Debug, Clone)]
enum Step {
    Put(u8, u8, u8, u16, bool),
    Get(u8),
    Delete(u8),
    Touch(u8, u8),
    Flush(u8),
    Pass(u8),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0..6u8, 0..20u8, 0..5u8, 0..40u16, any::<bool>())
            .prop_map(|(how, key, ends, len, stale)| Step::Put(how, key, ends, len, stale)),
        (0..20u8).prop_map(Step::Get),
        (0..20u8).prop_map(Step::Delete),
        (0..20u8, 0..5u8).prop_map(|(key, ends)| Step::Touch(key, ends)),
        (0..3u8).prop_map(Step::Flush),
        (0..3u8).prop_map(Step::Pass),
    ]
}

proptest! {
    /// A store with room for all gives the answers of a map, and its bytes are those of its items.
    #[test]
    fn a_store_answers_as_a_map_does(steps in proptest::collection::vec(step(), 1..200)) {
        let mut store = store();
        let mut map: HashMap<u8, (Vec<u8>, u32, u64)> = HashMap::new();
        let (mut now_s, mut flush_at_s, mut cas) = (100, None, 0);
        for step in steps {
            if flush_at_s.is_some_and(|at_s| at_s <= now_s) {
                map.clear();
                flush_at_s = None;
            }
            map.retain(|_, (_, ends_s, _)| *ends_s == 0 || *ends_s > now_s);
            let ends = |ends: u8| if ends == 0 { 0 } else { now_s + u32::from(ends) - 1 };
            match step {
                Step::Put(how, key, ends_in, len, stale) => {
                    let text = vec![key; usize::from(len)];
                    let there = map.get(&key).cloned();
                    let condition = match how {
                        0 => Condition::Set,
                        1 => Condition::Add,
                        2 => Condition::Replace,
                        3 => Condition::Append,
                        4 => Condition::Prepend,
                        _ => Condition::Cas(there.as_ref().map_or(1, |it| it.2 + u64::from(stale))),
                    };
                    let wanted = match (&condition, &there) {
                        (Condition::Add, Some(_)) => Outcome::NotStored,
                        (Condition::Replace | Condition::Append | Condition::Prepend, None) => Outcome::NotStored,
                        (Condition::Cas(_), None) => Outcome::NotFound,
                        (Condition::Cas(_), Some(_)) if stale => Outcome::Exists,
                        _ => Outcome::Stored,
                    };
                    let got = store.put(hash(&[key]), &[key], condition, 0, ends(ends_in), &text, now_s);
                    prop_assert_eq!(got, wanted);
                    if wanted == Outcome::Stored {
                        cas += 1;
                        let item = match (condition, there) {
                            (Condition::Append, Some((old, ends_s, _))) => ([old, text].concat(), ends_s, cas),
                            (Condition::Prepend, Some((old, ends_s, _))) => ([text, old].concat(), ends_s, cas),
                            _ => (text, ends(ends_in), cas),
                        };
                        map.insert(key, item);
                    }
                }
                Step::Get(key) => {
                    let got = store.get(hash(&[key]), &[key], now_s).map(|it| (it.value.to_vec(), it.cas));
                    prop_assert_eq!(got, map.get(&key).map(|it| (it.0.clone(), it.2)));
                }
                Step::Delete(key) => {
                    prop_assert_eq!(store.delete(hash(&[key]), &[key], now_s), map.remove(&key).is_some());
                }
                Step::Touch(key, ends_in) => {
                    let there = map.get_mut(&key);
                    prop_assert_eq!(store.touch(hash(&[key]), &[key], ends(ends_in), now_s), there.is_some());
                    if let Some(it) = there {
                        it.1 = ends(ends_in);
                    }
                }
                Step::Flush(after) => {
                    store.flush_all(now_s + u32::from(after), now_s);
                    if after == 0 {
                        map.clear();
                        flush_at_s = None;
                    } else {
                        flush_at_s = Some(now_s + u32::from(after));
                    }
                }
                Step::Pass(seconds) => now_s += u32::from(seconds),
            }
            let live: usize = map.values().map(|it| ITEM_BYTES + 1 + it.0.len()).sum();
            prop_assert!(store.bytes() >= live, "what has expired may still be there, what lives must be");
        }
        for key in 0..20u8 {
            store.delete(hash(&[key]), &[key], now_s);
        }
        prop_assert_eq!((store.items(), store.bytes()), (0, 0));
    }
}
