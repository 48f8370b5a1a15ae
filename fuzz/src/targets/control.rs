//! Messages of the control socket: a request is read with its meaning, counters read back as they were written, and any other message is
//! refused.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use weir_core::drops::Count;
use weir_core::rate::Rate;
use weir_core::shaper::tbf::{Limit, Tbf, TbfConfig};
use weir_port::lock::DIRECTORY;
use weir_port::undo::Undo;
use weir_run::books::Books;
use weir_run::control::{Command, Refusal, SetClasses, understood};
use weir_run::limits::SetLimits;
use weir_run::stats::Snapshot;

use crate::draw::Draw;

/// Requests to a wire.
pub fn requests(bytes: &[u8]) {
    let mut draw = Draw::new(bytes);
    if draw.rarely(3) {
        let command: Command = match draw.below(4) {
            0 => Command::Stat,
            1 => Command::Set(set(&mut draw)),
            2 => Command::RemoveClasses,
            _ => {
                let file = String::from_utf8_lossy(&draw.array::<12>()).into_owned();
                Command::SetClasses(SetClasses {
                    file,
                    text: String::from_utf8_lossy(draw.rest()).into_owned(),
                })
            }
        };
        let line = serde_json::to_string(&command).expect("it is plain data");
        assert!(!line.contains('\n'), "{line}");
        let read: Command = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"));
        assert_eq!(serde_json::to_string(&read).expect("it is plain data"), line);
        return;
    }
    let text = String::from_utf8_lossy(bytes);
    if let Ok(command) = serde_json::from_str::<Command>(&text) {
        let line = serde_json::to_string(&command).expect("it is plain data");
        assert!(serde_json::from_str::<Command>(&line).is_ok(), "{line}");
        if let Command::Set(set) = command {
            apply(&set, None);
        }
    }
}

/// Answers of a wire of any version.
pub fn replies(bytes: &[u8]) {
    let mut draw = Draw::new(bytes);
    if draw.rarely(3) {
        let said = String::from_utf8_lossy(&draw.array::<12>()).into_owned();
        let version = draw.below(4);
        let good = json!({ "version": version, "ok": said }).to_string();
        assert_eq!(understood(good.as_bytes()).ok(), Some(json!(said)), "{good}");
        let bad = json!({ "version": version, "error": said }).to_string();
        assert!(
            matches!(understood(bad.as_bytes()), Err(Refusal::Said(why)) if why.contains(&said)),
            "{bad}"
        );
        return;
    }
    match understood(bytes) {
        Ok(value) => assert!(value.is_null() || !bytes.is_empty()),
        Err(Refusal::Said(why)) => assert!(serde_json::from_slice::<Value>(bytes).is_ok(), "{why}"),
        Err(Refusal::Unclear(why)) => assert!(!why.is_empty()),
    }
}

/// Changes of limits: any request to a wire with any limits before.
pub fn set_limits(bytes: &[u8]) {
    let mut draw = Draw::new(bytes);
    let present = draw.flag().then(|| TbfConfig {
        rate: Rate::from_bits_per_s(draw.any_u64().max(1)).expect("above zero"),
        burst_bytes: draw.any_u64(),
        limit: if draw.flag() { Limit::TimeNs(draw.any_u64()) } else { Limit::Bytes(draw.any_u64()) },
    });
    apply(&set(&mut draw), present);
}

fn set(draw: &mut Draw) -> SetLimits {
    let mut some = || draw.flag().then(|| draw.any_u64());
    let (rate_bits_per_s, burst_bytes, queue_ns) = (some(), some(), some());
    SetLimits { direction: usize::from(draw.u8() & 3), rate_bits_per_s, burst_bytes, queue_ns }
}

fn apply(set: &SetLimits, present: Option<TbfConfig>) {
    match set.apply(present) {
        Err(_) if set.rate_bits_per_s == Some(0) => {}
        // Nothing has a burst or queue without a rate.
        Err(_) => assert!(present.is_none() && set.rate_bits_per_s.is_none() && asks_for_more(set)),
        Ok(None) => assert!(present.is_none() && set.rate_bits_per_s.is_none() && !asks_for_more(set)),
        Ok(Some(limits)) => {
            assert!(set.rate_bits_per_s.is_none_or(|rate| rate == limits.rate.bits_per_s()));
            assert!(set.burst_bytes.is_none_or(|burst| burst == limits.burst_bytes));
            // A worker does this with any request.
            if let Ok(mut tbf) = Tbf::new(limits, 0) {
                assert!(limits.check().is_ok());
                tbf.take(1514, 1_000_000);
                tbf.ready_at(1514, 2_000_000);
            }
            limits.limit_bytes();
        }
    }
}

fn asks_for_more(set: &SetLimits) -> bool {
    set.burst_bytes.is_some() || set.queue_ns.is_some()
}

/// Records for the guardian to put back.
pub fn undo_records(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    if let Ok(undo) = serde_json::from_str::<Undo>(&text) {
        let line = serde_json::to_string(&undo).expect("it is plain data");
        assert!(!line.contains('\n'), "{line}");
        assert_eq!(serde_json::from_str::<Undo>(&line).ok().as_ref(), Some(&undo), "{line}");
        // The guardian runs as root, so a record may name only things that Weir makes.
        if undo.check().is_ok() {
            match undo {
                Undo::File { path, .. } => {
                    let name = path.strip_prefix(DIRECTORY).map(|name| name.components().count());
                    assert_eq!(name.ok(), Some(1), "{line}");
                }
                Undo::NftTable { name } => assert!(name.starts_with("weir"), "{line}"),
                _ => {}
            }
        }
    }
}

/// The counters of a wire, which may be of another version.
pub fn counters(bytes: &[u8]) {
    let mut draw = Draw::new(bytes);
    if draw.rarely(3) {
        return books(&mut draw);
    }
    let text = String::from_utf8_lossy(bytes);
    let Ok(mut snapshot) = serde_json::from_str::<Snapshot>(&text) else { return };
    let value = serde_json::to_value(&snapshot).expect("it is plain data");
    let again: Snapshot =
        serde_json::from_value(value.clone()).unwrap_or_else(|error| panic!("{error}: {value}"));
    assert_eq!(serde_json::to_value(&again).expect("it is plain data"), value);
    let faults = snapshot.check();
    assert_eq!(again.check(), faults);
    snapshot.merge(again);
    snapshot.check();
}

/// Books, balanced or not, read back.
fn books(draw: &mut Draw) {
    let amount = |draw: &mut Draw| Count { packets: draw.any_u64() >> 3, bytes: draw.any_u64() >> 3 };
    let (delivered, held, dropped) = (amount(draw), amount(draw), amount(draw));
    let sum = |pick: fn(&Count) -> u64| pick(&delivered) + pick(&held) + pick(&dropped);
    let accepted = Count { packets: sum(|amount| amount.packets), bytes: sum(|amount| amount.bytes) };
    let reasons = BTreeMap::from([(draw.pick(&["max-wait", "full", "other"]).to_string(), dropped)]);
    let books = Books { accepted, delivered, held, dropped: reasons };
    assert!(books.balance());
    let json = serde_json::to_value(&books).expect("it is plain data");
    let read: Books = serde_json::from_value(json.clone()).unwrap_or_else(|error| panic!("{error}: {json}"));
    assert_eq!(read, books);
    let mut missing = json.clone();
    missing["accepted"] = json!(accepted.packets + 1);
    let read: Result<Books, _> = serde_json::from_value::<Books>(missing);
    assert!(read.is_ok_and(|books| !books.balance()));
    let snapshot = Snapshot { totals: books, ..Snapshot::default() };
    assert_eq!(snapshot.check(), Vec::<String>::new());
    let value: Value = serde_json::to_value(&snapshot).expect("it is plain data");
    assert!(value["totals"].is_object());
}
