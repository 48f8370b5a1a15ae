//! Files that are read, compared and written again. The messages on wrong ones stand with them, in `tests/files/invalid`.

use proptest::prelude::*;
use weir_core::limit::BURST_NS_MAX;
use weir_port::limit::Asked;
use weir_port::limit::record::{Direction, LimitStage, Record};
use weir_port::limit::reshape::Shape;

use super::diff::{Action, LimitNow, compare};
use super::write::{LimitPlace, write};
use super::*;
use crate::limits::burst_bytes_default;

fn parse(text: &str) -> Result<Topology, Vec<String>> {
    read("weir.toml", text, "", |path| match path {
        "office.toml" => {
            Ok(("etc/office.toml".into(), "[[class]]\nname = \"a\"\nrate = \"10mbit\"\n".into()))
        }
        _ => Err("there is no such file".into()),
    })
}

/// The request of a command for a limit of a file.
fn asked(limit: &LimitWanted, direction: Direction) -> Asked {
    let rate = match direction {
        Direction::There => limit.rate,
        Direction::Back => limit.rate_back,
    };
    let rate = rate.expect("a rate of this way");
    Asked {
        name: limit.name.clone().unwrap_or_else(|| limit.device.clone()),
        direction,
        rate: Some(rate),
        burst_bytes: Some(limit.burst_bytes.unwrap_or_else(|| burst_bytes_default(rate))),
        classes: Some(limit.classes.clone()),
        moves_at_once: false,
    }
}

/// The record of a limit that was set so.
fn record(asked: &Asked, before: Option<&Record>) -> Record {
    let classes = asked.classes.as_ref().filter(|classes| !classes.classes.is_empty());
    let shape = classes.map(|classes| Shape::new(classes, before).unwrap());
    let (classes, filters) = shape.map_or_else(Default::default, |shape| (shape.classes, shape.filters));
    Record {
        name: asked.name.clone(),
        direction: asked.direction,
        rate_bits_per_s: asked.rate.unwrap().bits_per_s(),
        burst_bytes: asked.burst_bytes.unwrap(),
        packet_bytes_max: 65_536,
        frame_bytes_max: 1518,
        stage: LimitStage::Limiting,
        steering_before: Vec::new(),
        steered_behind: Vec::new(),
        masks_written: Vec::new(),
        sees_arrivals: false,
        keeps_note: false,
        made_clsact: false,
        noqueue_before: 0,
        lost_when_set: 0,
        gone: Default::default(),
        refused_when_set: 0,
        classes,
        filters,
    }
}

fn whole(record: &Record) -> Option<LimitNow<'_>> {
    Some(LimitNow { record, is_whole: true })
}

const OFFICE: &str = r#"
[[limit]]
device = "veth-a"
rate = "200mbit"
rate_back = "500mbit"
burst = "300kb"
name = "office"
default = "bulk"

[[limit.class]]
name = "bulk"
rate = "50mbit"
ceil = "200mbit"
[[limit.class]]
name = "voice"
rate = "10mbit"
priority = 1
burst = "40kb"
[[limit.filter]]
dscp = ["ef", 34]
class = "voice"
[[limit.filter]]
to = "fd00::/8"
to_ports = "80-90"
class = "free"

[[limit]]
pid = 4711
rate = "20mbit"
optional = true
classes_file = "office.toml"
"#;

#[test]
fn a_file_is_read_with_what_it_leaves_out() {
    let topology = parse(OFFICE).unwrap();
    assert_eq!(topology.warnings, Vec::<String>::new());
    let [office, process] = &topology.limits[..] else { panic!("{topology:?}") };
    assert_eq!((office.at.as_str(), office.device.as_str(), office.pid), ("weir.toml:3:10", "veth-a", None));
    assert_eq!(office.rate.map(Rate::bits_per_s), Some(200_000_000));
    assert_eq!((office.burst_bytes, office.is_optional), (Some(300 << 10), false));
    assert_eq!(office.classes.classes.len(), 2);
    assert_eq!((process.device.as_str(), process.pid, process.is_optional), ("eth0", Some(4711), true));
    assert_eq!((process.rate_back, process.classes.classes.len()), (None, 1));
}

#[test]
fn carriage_returns_and_a_byte_order_mark_do_no_harm() {
    let text = format!("\u{feff}{}", OFFICE.replace('\n', "\r\n"));
    assert_eq!(parse(&text).unwrap().limits.len(), 2);
    let told = parse(&text.replace("\"200mbit\"\r", "\"200\"\r")).unwrap_err();
    assert!(told[0].starts_with("weir.toml:4:8: \"200\" is not a rate"), "{told:?}");
    assert!(told[0].ends_with("\n  4 | rate = \"200\"\n    |        ^^^^^"), "{told:?}");
}

#[test]
fn everything_wrong_is_told_at_once_in_order() {
    let text = "[[limit]]\ndevise = \"a\"\n[[limit]]\ndevice = \"b\"\nrate = \"fast\"\nburst = \"1b\"\n[[wires]]\n[[limit]]\ndevice = \"c\"\n";
    let places: Vec<_> = parse(text)
        .unwrap_err()
        .iter()
        .map(|told| told[10..].split(':').next().unwrap().to_string())
        .collect();
    assert_eq!(places, ["2", "5", "6", "7", "8"]);
}

#[test]
fn an_unknown_key_hides_nothing_else_of_its_table() {
    let text = "[[limit]]\ndevice = \"a\"\nzone = 1\nrate = 5\narea = 2\n[[port]]\ninterface = \"b\"\n[[port.class]]\nplace = 3\n\
                [[wire]]\nport = [\"b\", \"c\"]\n";
    let faults = parse(text).unwrap_err();
    let told =
        [("3:1", "`zone`"), ("4:8", "integer"), ("5:1", "`area`"), ("9:1", "`place`"), ("11:1", "`port`")];
    assert_eq!(faults.len(), told.len(), "{faults:?}");
    for (fault, (place, what)) in faults.iter().zip(told) {
        assert!(fault.starts_with(&format!("weir.toml:{place}: ")) && fault.contains(what), "{fault}");
    }
}

#[test]
fn a_missing_key_of_a_class_hides_nothing_else_of_its_limit() {
    let text = "[[limit]]\ndevice = \"a\"\nrate = \"5mbit\"\n[[limit.class]]\nname = \"x\"\n[[limit.class]]\nname = \"y\"\nrate = 5\n\
                [[limit.class]]\nname = \"z\"\n[[limit.class]]\nrat = \"1mbit\"\nname = \"w\"\n[[limit.filter]]\nto = \"::/0\"\n";
    let faults = parse(text).unwrap_err();
    let told = [
        ("4:1", "missing key `rate`"),
        ("8:8", "integer"),
        ("9:1", "missing key `rate`"),
        ("12:1", "unknown key `rat`"),
        ("14:1", "missing key `class`"),
    ];
    assert_eq!(faults.len(), told.len(), "{faults:?}");
    for (fault, (place, what)) in faults.iter().zip(told) {
        assert!(fault.starts_with(&format!("weir.toml:{place}: ")) && fault.contains(what), "{fault}");
    }
}

#[test]
fn what_is_as_it_should_be_does_not_change() {
    let topology = parse(OFFICE).unwrap();
    for direction in [Direction::There, Direction::Back] {
        let asked = asked(&topology.limits[0], direction);
        let set = compare(None, &asked).unwrap();
        assert_eq!((set.action, set.sign()), (Action::Set, '+'));
        let record = record(&asked, None);
        assert_eq!(compare(whole(&record), &asked), None);
        let half = compare(Some(LimitNow { record: &record, is_whole: false }), &asked).unwrap();
        assert_eq!((half.action, half.values.len()), (Action::Finish, 0));
    }
}

#[test]
fn a_change_says_from_what_to_what() {
    let before = asked(&parse(OFFICE).unwrap().limits[0], Direction::There);
    let text = OFFICE
        .replace("rate = \"200mbit\"\n", "rate = \"100mbit\"\n")
        .replace("name = \"voice\"", "name = \"calls\"")
        .replace("class = \"voice\"", "class = \"calls\"")
        .replace("\"50mbit\"", "\"60mbit\"");
    let after = asked(&parse(&text).unwrap().limits[0], Direction::There);
    let record = record(&before, None);
    assert_eq!(
        compare(whole(&record), &after).unwrap().to_string(),
        "rate 200mbit -> 100mbit, class bulk 50mbit to 200mbit -> 60mbit to 200mbit, class calls 10mbit burst 40kb priority 1, no class \
         voice any more, which was 10mbit burst 40kb priority 1, filters 3 rules (1: dscp 46 class voice; 2: dscp 34 \
         class voice) -> 3 rules (1: dscp 46 class calls; 2: dscp 34 class calls)"
    );
    let none = Asked { classes: Some(Classes::none()), ..before.clone() };
    let text = compare(whole(&record), &none).unwrap().to_string();
    assert!(
        text.contains("no class bulk any more") && text.contains("no filters any more, which was 3 rules"),
        "{text}"
    );
    assert_eq!(compare(None, &none).unwrap().to_string(), "name office, rate 200mbit, burst 300kb");
}

#[test]
fn flows_that_wait_by_classes_before_are_looked_at_again() {
    let asked = asked(&parse(OFFICE).unwrap().limits[0], Direction::There);
    let mut record = record(&asked, None);
    record.filters.push(Default::default());
    assert_eq!(compare(whole(&record), &asked).unwrap().action, Action::Settle);
}

#[test]
fn what_is_written_is_read_as_what_there_is() {
    let limit = &parse(OFFICE).unwrap().limits[0];
    let asked = [Direction::There, Direction::Back].map(|direction| asked(limit, direction));
    let [there, back] = [record(&asked[0], None), record(&asked[1], None)];
    let place = |record| LimitPlace { device: "veth-a".into(), pid: None, record };
    let text = write(&[place(&there), place(&back)]);
    assert_eq!(text.matches("[[limit]]").count(), 1, "{text}");
    let again = parse(&text).unwrap_or_else(|told| panic!("{told:?}\n{text}"));
    for (direction, record) in [(Direction::There, &there), (Direction::Back, &back)] {
        assert_eq!(compare(whole(record), &self::asked(&again.limits[0], direction)), None, "{text}");
    }
    // A pair that one table cannot say is two tables, and a name that two limits have is written for one.
    let other = Record { burst_bytes: 9_000_000, ..back.clone() };
    let text = write(&[place(&there), place(&other)]);
    assert_eq!(parse(&text).unwrap().limits.len(), 2, "{text}");
    let elsewhere = LimitPlace { device: "eth0".into(), pid: Some(7), record: &there };
    let again = parse(&write(&[place(&there), elsewhere])).unwrap();
    assert_eq!([0, 1].map(|index| again.limits[index].name.as_deref()), [Some("office"), None]);
}

proptest! {
    #[test]
    fn any_limit_is_written_and_read_as_it_is(
        rate in 8_000u64..10_000_000_000_000,
        burst in 1514u64..1 << 40,
        classes in prop::collection::vec((8_000u64..1_000_000_000, 0u64..1_000_000_000, 1514u64..1 << 30, 0u8..8), 0..6),
        rules in prop::collection::vec((any::<[u8; 4]>(), 0u8..=32, any::<(u16, u16)>(), 0u8..64, 0usize..7), 0..8),
    ) {
        // No longer bursts are kept.
        let kept = |rate: u64, burst: u64| burst.min(Rate::from_bits_per_s(rate).unwrap().bytes_in(BURST_NS_MAX));
        let burst = kept(rate, burst);
        let mut text = format!("[[limit]]\ndevice = \"a\"\nrate = \"{rate}bit\"\nburst = \"{burst}b\"\n");
        let promised: u64 = classes.iter().map(|class| class.0).sum();
        if !classes.is_empty() && promised <= rate {
            text += "default = \"free\"\n";
            for (index, (rate, more, burst, priority)) in classes.iter().enumerate() {
                let burst = kept(*rate, *burst);
                text += &format!("[[limit.class]]\nname = \"c{index}\"\nrate = \"{rate}bit\"\nceil = \"{}bit\"\nburst = \"{burst}b\"\npriority = {priority}\n", rate + more);
            }
            for (from, bits, (one, two), dscp, class) in &rules {
                let class = if *class < classes.len() { format!("c{class}") } else { "free".into() };
                text += &format!(
                    "[[limit.filter]]\nfrom = \"{}/{bits}\"\nto_ports = \"{}-{}\"\ndscp = {dscp}\nclass = \"{class}\"\n",
                    std::net::Ipv4Addr::from(*from), one.min(two), one.max(two)
                );
            }
        }
        let asked = asked(&parse(&text).unwrap().limits[0], Direction::There);
        let record = record(&asked, None);
        prop_assert_eq!(compare(whole(&record), &asked), None);
        let written = write(&[LimitPlace { device: "a".into(), pid: None, record: &record }]);
        let again = self::asked(&parse(&written).unwrap().limits[0], Direction::There);
        prop_assert_eq!(compare(whole(&record), &again), None, "{}", written);
    }
}

/// Each limit has its place in the file; to count the lines before each took minutes for as many as a file can have.
#[test]
fn a_file_as_long_as_one_may_be_has_a_place_for_each_line() {
    let text: String =
        (0..90_000).map(|number| format!("[[limit]]\ndevice=\"d{number}\"\nrate=\"1mbit\"\n")).collect();
    let limits = parse(&text).unwrap().limits;
    assert_eq!((limits.len(), limits[89_999].at.as_str()), (90_000, "weir.toml:269999:8"));
}
