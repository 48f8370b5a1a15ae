//! Tests of the protocol between versions.

use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::mpsc::channel;

use serde_json::json;

use super::*;
use crate::watcher::ledger::InterfaceEvent;

/// The answer of a wire of version 1 to `"stat"`, as it was recorded.
const ANSWER_1: &str = include_str!("answer-1.json");

fn snapshot_1() -> Snapshot {
    let told = understood(ANSWER_1.as_bytes()).unwrap_or_else(|_| panic!("it is an answer"));
    serde_json::from_value(told).unwrap()
}

#[test]
fn a_name_that_is_used_gets_a_number() {
    let used = ["eth0", "eth0.2"];
    let unused = |first| names_from(first).find(|name| !used.contains(&name.as_str()));
    assert_eq!(["eth0", "eth1"].map(unused), ["eth0.3", "eth1"].map(|name| Some(name.to_string())));
}

#[test]
fn a_name_is_known_to_be_after_an_interface() {
    assert!(names_from("v1").take(12).all(|name| is_name_from(&name, "v1")));
    assert!(is_name_from("v1.2.3", "v1.2"), "of a VLAN");
    for other in ["v", "v12", "v1.", "v1.1", "v1.x", "v1-2", "v1.2.3"] {
        assert!(!is_name_from(other, "v1"), "{other}");
    }
}

fn refused(answer: &Value) -> String {
    match understood(answer.to_string().as_bytes()) {
        Err(Refusal::Said(error) | Refusal::Unclear(error)) => error,
        Ok(value) => panic!("an answer: {value}"),
    }
}

#[test]
fn counters_of_version_1_are_read() {
    let snapshot = snapshot_1();
    let wire = &snapshot.wires[0];
    assert_eq!((wire.name.as_str(), wire.ports[1].as_str(), wire.frames.total), ("office", "pvb", 16384));
    assert_eq!((wire.classes[0].rate_bits_per_s, snapshot.totals.delivered.packets), (Some(100_000_000), 12));
    assert_eq!(snapshot.ports[1].sender, "eth0");
    assert!(snapshot.check().is_empty());
}

/// A possible answer of a later version: events, reasons, states and fields that this one does not know.
fn later(name: &str) -> Value {
    let mut answer = serde_json::to_value(snapshot_1()).unwrap();
    answer["weather"] = json!({"rain": true});
    let wire = &mut answer["wires"][0];
    wire["name"] = json!(name);
    wire["events"] = json!({"down": {"times": 2}, "meteor": {"times": 1, "dropped": 7, "size": 3}});
    for place in ["/wires/0/classes/0", "/totals"] {
        let books = answer.pointer_mut(place).unwrap();
        books["delivered"] = json!(books["delivered"].as_u64().unwrap() - 5);
        books["dropped"] = json!({"solar-wind": 5});
    }
    answer["ports"][0]["poller"] = json!("telepathy");
    answer["ports"][0]["device"] =
        json!({"name": "pva", "state": "dormant", "unexplained": {"rx": 0, "colour": 1}});
    json!({"version": VERSION + 1, "ok": answer})
}

fn told(answer: &Value) -> Result<Snapshot, String> {
    let (version, answer) =
        answered(answer.to_string().as_bytes()).unwrap_or_else(|_| panic!("it is an answer"));
    counters(Path::new("/run/weir/later.sock"), version, answer)
}

/// The answers added up.
fn together(answers: &[&Value]) -> Answers {
    let mut all = Answers::default();
    answers.iter().for_each(|answer| all.add(told(answer)));
    all
}

#[test]
fn names_of_a_later_version_are_kept_as_they_are() {
    let snapshot = told(&later("later")).unwrap();
    let wire = &snapshot.wires[0];
    assert_eq!(wire.events.keys().collect::<Vec<_>>(), [InterfaceEvent::Down.name(), "meteor"]);
    assert_eq!((wire.events["meteor"].times, wire.events["meteor"].dropped), (1, 7));
    assert_eq!(wire.classes[0].place.books.dropped["solar-wind"].packets, 5);
    assert_eq!(
        (snapshot.ports[0].poller.as_str(), snapshot.ports[0].device.state.as_str()),
        ("telepathy", "dormant")
    );
    assert_eq!(snapshot.check(), Vec::<String>::new());
}

#[test]
fn a_wire_that_cannot_be_understood_hides_no_other() {
    let mut strange = later("strange");
    strange["ok"]["wires"][0]["frames"] = json!("plenty");
    let mut few = later("few");
    few["ok"].as_object_mut().unwrap().remove("ports");
    let Answers { all, unread: faults, .. } = together(&[&strange, &few, &later("later")]);
    assert_eq!(all.wires.iter().map(|wire| wire.name.as_str()).collect::<Vec<_>>(), ["few", "later"]);
    assert_eq!((all.ports.len(), all.ports[2].name.as_str()), (4, "pva"), "each has its own");
    assert_eq!(faults.len(), 1);
    assert!(faults[0].contains("/run/weir/later.sock") && faults[0].contains("plenty"), "{faults:?}");
}

#[test]
fn one_that_counts_otherwise_is_named_and_the_others_are_proven() {
    let mut strange = later("strange");
    strange["ok"]["workstreams"] = json!([{"name": "lottery/pick", "dispatched": 7}]);
    let same = json!({"version": VERSION, "ok": snapshot_1()});
    let answers = together(&[&same, &strange, &later("later")]);
    assert!(answers.unread.is_empty() && answers.faults.len() == 1, "{:?}", answers.faults);
    assert!(
        answers.faults[0].starts_with("strange: it was started by a later version"),
        "{:?}",
        answers.faults
    );
    let one = snapshot_1().totals.accepted.packets;
    assert_eq!((answers.proven.accepted.packets, answers.all.totals.accepted.packets), (2 * one, 3 * one));
    // An answer of this version has no such excuse.
    strange["version"] = json!(VERSION);
    let faults = together(&[&strange, &same]).faults;
    assert!(
        faults.len() > 1 && faults.iter().any(|fault| fault.starts_with("strange: the workst")),
        "{faults:?}"
    );
}

/// Every field of `old` is in `new`, and of the same kind.
fn require_all_of(old: &Value, new: &Value, place: &str) {
    match (old, new) {
        (Value::Object(old), Value::Object(new)) => {
            for (key, value) in old {
                let found = new.get(key).unwrap_or_else(|| panic!("{place}.{key} is gone"));
                require_all_of(value, found, &format!("{place}.{key}"));
            }
        }
        (Value::Array(old), Value::Array(new)) => {
            assert_eq!(old.len(), new.len(), "{place}");
            old.iter().zip(new).for_each(|(old, new)| require_all_of(old, new, place));
        }
        (old, new) => assert_eq!(
            std::mem::discriminant(old),
            std::mem::discriminant(new),
            "{place} was {old} and is {new}"
        ),
    }
}

#[test]
fn a_command_of_version_1_finds_all_that_it_wants_in_an_answer_of_today() {
    let old: Value = serde_json::from_str(ANSWER_1).unwrap();
    require_all_of(&old["ok"], &serde_json::to_value(snapshot_1()).unwrap(), "stat");
}

/// All places of a value where something can be left out or added.
fn mangle(value: &Value, at: &mut dyn FnMut(Value)) {
    match value {
        Value::Object(fields) => {
            for (key, field) in fields {
                let mut without = fields.clone();
                without.remove(key);
                at(Value::Object(without));
                mangle(field, &mut |changed| {
                    let mut fields = fields.clone();
                    fields.insert(key.clone(), changed);
                    at(Value::Object(fields));
                });
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                mangle(item, &mut |changed| {
                    let mut items = items.clone();
                    items[index] = changed;
                    at(Value::Array(items));
                });
            }
        }
        _ => {}
    }
}

#[test]
fn counters_without_any_one_field_and_with_others_are_read() {
    let told = serde_json::to_value(snapshot_1()).unwrap();
    let mut tried = 0;
    mangle(&told, &mut |changed| {
        tried += 1;
        serde_json::from_value::<Snapshot>(changed).unwrap();
    });
    assert!(tried > 100, "{tried}");
    let mut later = told;
    later["temperature"] = json!(21);
    later["wires"][0]["classes"][0]["colour"] = json!({"red": 1});
    later["ports"][1]["speed"] = json!([1, 2]);
    assert_eq!(serde_json::from_value::<Snapshot>(later).unwrap().wires[0].name, "office");
}

/// The process reads the request, or leaves some of it unread, and ends.
#[test]
fn one_that_ends_before_it_answers_is_said_to() {
    let path = std::env::temp_dir().join(format!("weir-ends-{}.sock", std::process::id()));
    let listener = UnixListener::bind(&path).unwrap();
    for reads in ["\"stat\"\n".len(), 1] {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let (mut stream, _) = listener.accept().unwrap();
                stream.read_exact(&mut vec![0; reads]).unwrap();
            });
            let why = ask(&path, &Command::Stat).unwrap_err();
            assert_eq!(why, format!("what was up at {} ended before it answered", path.display()));
        });
    }
    std::fs::remove_file(&path).unwrap();
}

/// A process that was stopped accepts nothing, and its clients fill the list of those that wait.
#[test]
fn whoever_accepts_nobody_is_asked_for_a_bounded_time() {
    let path = std::env::temp_dir().join(format!("weir-full-{}.sock", std::process::id()));
    let listener = UnixListener::bind(&path).unwrap();
    // SAFETY: takes no pointers; the list of the socket has room for one now.
    assert_eq!(unsafe { libc::listen(listener.as_raw_fd(), 0) }, 0);
    let _waits = UnixStream::connect(&path).unwrap();
    let (sender, receiver) = channel();
    let asked = path.clone();
    std::thread::spawn(move || {
        let is_there = !has_gone(&asked) && !is_left(&asked, 0) && !remove_if_left(&asked);
        sender.send((is_there, ask(&asked, &Command::Stat)))
    });
    let (is_there, answer) =
        receiver.recv_timeout(Duration::from_nanos(4 * PATIENCE_NS)).expect("it waits for ever");
    std::fs::remove_file(&path).unwrap();
    assert!(is_there, "it counts as gone");
    let error = answer.unwrap_err();
    assert!(error.contains("does not answer"), "{error}");
}

#[test]
fn a_wire_of_version_1_understands_the_requests_of_today() {
    let request = |command: &Command| serde_json::to_string(command).unwrap();
    assert_eq!(request(&Command::Stat), r#""stat""#);
    let rate = SetLimits { direction: 1, rate_bits_per_s: Some(8), burst_bytes: None, queue_ns: None };
    assert_eq!(request(&Command::Set(rate)), r#"{"set":{"direction":1,"rate_bits_per_s":8}}"#);
    let classes = SetClasses { file: "f".into(), text: "t".into() };
    assert_eq!(request(&Command::SetClasses(classes)), r#"{"set-classes":{"file":"f","text":"t"}}"#);
}

#[test]
fn a_wire_of_an_earlier_version_that_is_asked_to_remove_its_classes_is_said_to_be_one() {
    assert_eq!(serde_json::to_string(&Command::RemoveClasses).unwrap(), r#""remove-classes""#);
    let old = json!({"error": "not a request: unknown variant `remove-classes`", "version": VERSION - 1});
    assert!(refused(&old).contains("start it anew"), "{}", refused(&old));
}

#[test]
fn a_change_that_is_not_known_is_refused_and_the_version_named() {
    assert!(serde_json::from_str::<Command>(r#"{"set": {"direction": 0, "colour": 1}}"#).is_err());
    let old = json!({"error": "not a request: unknown field `colour`"});
    let why = refused(&old);
    assert!(why.contains("another version of weir (its protocol is 1, this one's 4)"), "{why}");
    let same = json!({"error": "not a request: really", "version": VERSION});
    assert_eq!(refused(&same), "not a request: really");
    assert_eq!(refused(&json!({"error": "a rate of 0 passes nothing"})), "a rate of 0 passes nothing");
    for nothing in [json!(null), json!({}), json!([1]), json!("ok")] {
        assert_eq!(refused(&nothing), "neither an answer nor an error");
    }
}
