//! Topology files: refused in words that name the place, or read as limits that a queue can have; and written files are read back
//! unchanged.

use weir_core::classify::Target;
use weir_path::classes::Classes;
use weir_port::limit::Asked;
use weir_port::limit::record::{Direction, LimitStage, Record};
use weir_port::limit::reshape::Shape;
use weir_run::limits::burst_bytes_default;
use weir_run::topology::diff::{LimitNow, compare};
use weir_run::topology::write::{LimitPlace, write};
use weir_run::topology::{self, LimitWanted, Topology};

use super::classes::look_at_told;
use super::plans::look_at_plan;
use crate::draw::Draw;

const FILE: &str = "f.toml";
const CLASSES: &str = "[[class]]\nname = \"a\"\nrate = \"8kbit\"\n";
/// The lines that files are made of, most of them right.
const LINES: [&str; 61] = [
    "limit = []",
    "[[limit]]",
    "[[limit]]\ndevice = \"veth-b\"\nrate_back = \"1gbit\"",
    "[[limit.class]]",
    "[[limit.class]]\nname = \"a\"\nrate = \"1mbit\"",
    "[[limit.class]]\nname = \"b\"\nparent = \"a\"\nrate = \"9kbit\"\nceil = \"1mbit\"",
    "[[limit.filter]]\nclass = \"a\"",
    "[[limit.filter]]\nclass = \"free\"\nto = [\"10.0.0.0/8\", \"fd00::/8\"]\nto_ports = \"80-90\"",
    "device = \"veth-a\"",
    "pid = 4711",
    "rate = \"200mbit\"",
    "rate = \"8kbit\"",
    "rate_back = \"100mbit\"",
    "burst = \"100kb\"",
    "name = \"office\"",
    "optional = true",
    "classes_file = \"classes.toml\"",
    "classes_file = \"none.toml\"",
    "default = \"a\"",
    "default = \"free\"",
    "parent = \"a\"",
    "priority = 3",
    "protocol = \"udp\"",
    "dscp = [1, \"ef\"]",
    "[[wire]]",
    "[limit]",
    "# nothing",
    "name = \"office\"",
    "[[port]]",
    "[[port]]\ninterface = \"veth-b\"\nname = \"b\"",
    "[[port]]\ninterface = \"veth-c\"",
    "[[port]]\ninterface = \"veth-d\"\nrate = \"1gbit\"\nqueue = \"2ms\"",
    "[[port.class]]\nname = \"a\"\nrate = \"1mbit\"",
    "[[port.filter]]\nclass = \"a\"",
    "[[port.filter]]\nclass = \"free\"\ninterface = \"b\"",
    "interface = \"veth-b\"",
    "queue = \"2ms\"",
    "shaper = \"cbq\"",
    "[[wire]]\nports = [\"b\", \"veth-c\"]",
    "[[wire]]\nports = [\"veth-d\", \"e0a\"]",
    "[[wire]]\nports = [\"e0b\", \"e1a\"]",
    "ports = [\"b\", \"e0a\"]",
    "[[epair]]\nname = \"e0\"",
    "[[epair]]\nname = \"e1\"",
    "[[epair]]",
    "[[bridge]]\nname = \"lan\"\nports = [\"b\", \"veth-c\"]",
    "[[bridge]]\nname = \"lan\"\nports = [\"b\", \"veth-d\", \"e0a\"]",
    "[[bridge]]\nname = \"lan2\"\nports = [\"e0b\", \"e1a\", \"e1b\"]",
    "[[bridge]]",
    "stations_max = 7",
    "ageing = \"10s\"",
    "[[router]]\nname = \"gw\"",
    "[[router.interface]]\nport = \"e0b\"\naddress = [\"10.0.0.1/24\", \"fd00::1/64\"]",
    "[[router.interface]]\nport = \"veth-c\"\naddress = [\"10.0.1.1/31\"]",
    "[[router.interface]]\nport = \"b\"\naddress = [\"10.0.0.129/25\"]",
    "mac = \"02:00:00:00:00:01\"",
    "mtu = 1280",
    "[[router.route]]\nto = \"default\"\nvia = \"10.0.0.254\"",
    "[[router.route]]\nto = \"::/0\"\nvia = \"fe80::1\"\nport = \"e0b\"",
    "[[router.route]]\nto = \"10.9.0.0/16\"\nport = \"veth-c\"",
    "[[router.neighbour]]\naddress = \"10.0.0.9\"\nmac = \"02:00:00:00:00:09\"",
];

/// Any text.
pub fn topology_files(bytes: &[u8]) {
    look_at(&String::from_utf8_lossy(bytes));
}

/// Lines of such files in any order, some with other text in front.
pub fn topologies(bytes: &[u8]) {
    let mut draw = Draw::new(bytes);
    let mut text = String::new();
    if draw.flag() {
        text += "[[limit]]\ndevice = \"veth-a\"\nrate = \"100mbit\"\n";
    }
    while !draw.is_empty() {
        if draw.rarely(32) {
            text.push(char::from(draw.u8()));
        }
        text += draw.pick(&LINES);
        text.push('\n');
    }
    look_at(&text);
}

fn look_at(text: &str) {
    let opened = |path: &str| match path {
        "classes.toml" => Ok((path.into(), CLASSES.into())),
        _ => Err("there is no such file".into()),
    };
    match topology::read(FILE, text, "4711", opened) {
        Err(all) => {
            assert!(!all.is_empty());
            all.iter()
                .filter(|told| !told.starts_with("classes.toml:"))
                .for_each(|told| look_at_told(told, text));
        }
        Ok(Topology { name, limits, plan, ports, associations, warnings }) => {
            // The warnings of a classes file are in that file.
            warnings
                .iter()
                .filter(|told| !told.starts_with("classes.toml:"))
                .for_each(|told| look_at_told(told, text));
            assert!(!limits.is_empty() || plan.is_some() || says_no_limit(text));
            limits.iter().for_each(look_at_limit);
            ports.iter().chain(&associations).for_each(|table| assert!(table.at.starts_with(FILE)));
            let names: Vec<&str> = ports.iter().map(|port| port.name.as_str()).collect();
            plan.iter().for_each(|plan| look_at_plan(&name, &names, plan));
        }
    }
}

/// Returns whether a file says `limit = []`: that there is none.
fn says_no_limit(text: &str) -> bool {
    let tables = toml::from_str::<toml::Table>(text).expect("it was read");
    tables.get("limit").and_then(|limits| limits.as_array()).is_some_and(Vec::is_empty)
}

/// Checks that a limit can be set, is then as asked for, and is written and read unchanged.
fn look_at_limit(limit: &LimitWanted) {
    assert!(limit.rate.is_some() || limit.rate_back.is_some());
    for (direction, rate) in [(Direction::There, limit.rate), (Direction::Back, limit.rate_back)] {
        let Some(rate) = rate else { continue };
        let asked = Asked {
            name: limit.name.clone().unwrap_or_else(|| "other".into()),
            direction,
            rate: Some(rate),
            burst_bytes: Some(limit.burst_bytes.unwrap_or_else(|| burst_bytes_default(rate))),
            classes: Some(limit.classes.clone()),
            moves_at_once: false,
        };
        let record = record(&asked);
        record.plan().unwrap_or_else(|why| panic!("{why}: {limit:?}"));
        let now = LimitNow { record: &record, is_whole: true };
        assert_eq!(compare(Some(now), &asked), None);
        let text = write(&[LimitPlace { device: limit.device.clone(), pid: limit.pid, record: &record }]);
        let again = topology::read(FILE, &text, "", |path| Err(path.into()));
        let again = again.unwrap_or_else(|told| panic!("{told:?}\n{text}"));
        let [again] = &again.limits[..] else { panic!("{text}") };
        assert_eq!(
            (again.rate, again.rate_back, again.pid),
            match direction {
                Direction::There => (Some(rate), None, limit.pid),
                Direction::Back => (None, Some(rate), limit.pid),
            }
        );
        let asked = Asked { classes: Some(again.classes.clone()), ..asked };
        assert_eq!(compare(Some(now), &asked), None, "{text}");
    }
}

/// The record of a limit that was set so.
fn record(asked: &Asked) -> Record {
    let wanted = asked.classes.clone().unwrap_or_else(Classes::none);
    let is_shared = !wanted.classes.is_empty();
    assert!(is_shared || wanted.classifier.otherwise() == Target::Free);
    let shape =
        is_shared.then(|| Shape::new(&wanted, None).expect("a file has no more classes than there can be"));
    let (classes, filters) = shape.map_or_else(Default::default, |shape| (shape.classes, shape.filters));
    Record {
        name: asked.name.clone(),
        direction: asked.direction,
        rate_bits_per_s: asked.rate.expect("a rate").bits_per_s(),
        burst_bytes: asked.burst_bytes.expect("a burst"),
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
