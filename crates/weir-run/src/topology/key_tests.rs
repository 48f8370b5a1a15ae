//! Each key of the tables that a plan is made of: that a file that is written says it, and that a change of it alone is a difference.

use super::diff::plan::{Named, compare_plans};
use super::write::plan::write;
use super::*;

/// A file in which each key has another value than its default.
const WHOLE: &str = r#"
[[port]]
interface = "p0"
name = "lan0"
rate = "100mbit"
burst = "50kb"
queue = "7ms"
optional = true

[[port]]
interface = "p1"
rate = "90mbit"
shaper = "cbq"
default = "bulk"
[[port.class]]
name = "link"
rate = "80mbit"
[[port.class]]
name = "bulk"
parent = "link"
rate = "10mbit"
burst = "40kb"
bounded = true
quantum = "4kb"
priority = 3
full = "ecn"
max_wait = "60ms"
queue = "9ms"
[[port.class]]
name = "fast"
parent = "link"
rate = "11mbit"
[[port.filter]]
interface = "lan0"
from = "10.1.0.0/16"
to = "10.2.0.0/16"
protocol = "udp"
from_ports = "1000-1999"
to_ports = 80
dscp = "ef"
class = "fast"

[[port]]
interface = "p2"
default = "y"
[[port.class]]
name = "x"
rate = "70mbit"
[[port.class]]
name = "y"
parent = "x"
rate = "12mbit"
ceil = "13mbit"
cburst = "30kb"

[[port]]
interface = "p3"
[[port]]
interface = "p4"
[[port]]
interface = "p5"
[[port]]
interface = "p6"

[[wire]]
ports = ["p3", "p4"]
dispatch = "hybrid"
set = ["proto.ip.qlimit=512", "rss.bits=1"]

[[epair]]
name = "e0"

[[bridge]]
name = "lan"
ports = ["lan0", "p1", "e0a"]
stations_max = 100
ageing = "77s"

[[router]]
name = "gw"
[[router.interface]]
port = "e0b"
address = ["10.0.0.1/24", "fd00::1/64"]
mac = "02:00:00:00:00:01"
mtu = 1400
[[router.interface]]
port = "p2"
address = ["10.0.1.1/24"]
[[router.route]]
to = "default"
via = "10.0.0.254"
[[router.route]]
to = "fd01::/48"
via = "fe80::7"
port = "e0b"
[[router.neighbour]]
address = "10.0.0.9"
mac = "02:00:00:00:00:09"
[[router.neighbour]]
address = "fe80::9"
mac = "02:00:00:00:00:0a"
port = "e0b"

[[esp]]
name = "tunnel"
inside = "p5"
outside = "p6"
address = ["192.0.2.1"]
mtu = 1450
dispatch = "deferred"
queue_packets = 128
sealers = 2

[[sa]]
name = "there"
esp = "tunnel"
direction = "out"
spi = 4097
source = "192.0.2.1"
destination = "192.0.2.2"
algorithm = "aes256-gcm"
key_file = "/there.key"
extended = true
udp_ports = [4500, 4501]
keepalive = "9s"
dont_fragment = "copy"
soft = { time = "50s", bytes = 1000, packets = 10 }
hard = { time = "60s", bytes = 2000, packets = 20 }

[[sa]]
name = "back"
esp = "tunnel"
direction = "in"
spi = 4098
source = "192.0.2.2"
destination = "192.0.2.1"
algorithm = "aes128-gcm"
key_file = "/back.key"
window = 128
udp_ports = [4500, 4502]
follow_peer = true

[[sa]]
name = "bare"
esp = "tunnel"
direction = "out"
spi = 4099
source = "192.0.2.1"
destination = "192.0.2.3"
mode = "transport"
algorithm = "null"

[[policy]]
esp = "tunnel"
direction = "out"
from = "10.1.0.0/16"
to = "10.2.0.0/16"
protocol = "tcp"
from_ports = "2000-2999"
to_ports = 81
action = "protect"
sa = ["there", "bare"]
[[policy]]
esp = "tunnel"
direction = "in"
action = "protect"
sa = ["back"]
[[policy]]
esp = "tunnel"
direction = "in"
from = "10.9.0.0/16"
action = "discard"
"#;

/// Lines that say what holds without them too.
const SAID_TWICE: [&str; 2] = ["default = \"y\"", "esp = \"tunnel\""];

/// For lines that a file must have, or has for lines elsewhere: other ones.
const INSTEAD: [(&str, &str); 32] = [
    ("interface = \"p5\"", "interface = \"q5\"\nname = \"p5\""),
    ("rate = \"10mbit\"", "rate = \"9mbit\""),
    ("rate = \"11mbit\"", "rate = \"12mbit\""),
    ("dispatch = \"hybrid\"", "dispatch = \"direct\""),
    ("proto.ip.qlimit=512", "proto.ip.qlimit=513"),
    ("name = \"lan\"", "name = \"lan2\""),
    ("name = \"gw\"", "name = \"gw2\""),
    ("\"10.0.0.1/24\"", "\"10.0.0.2/24\""),
    ("\"fd00::1/64\"", "\"fd00::1/65\""),
    ("via = \"10.0.0.254\"", "via = \"10.0.1.254\""),
    ("to = \"fd01::/48\"", "to = \"fd01::/49\""),
    ("via = \"fe80::7\"", "via = \"fe80::8\""),
    ("address = \"10.0.0.9\"", "address = \"10.0.0.8\""),
    ("mac = \"02:00:00:00:00:09\"", "mac = \"02:00:00:00:00:0b\""),
    ("mtu = 1450", "mtu = 1451"),
    ("dispatch = \"deferred\"", "dispatch = \"hybrid\""),
    ("queue_packets = 128", "queue_packets = 129"),
    ("spi = 4097", "spi = 5097"),
    ("spi = 4098", "spi = 5098"),
    ("destination = \"192.0.2.2\"", "destination = \"192.0.2.4\""),
    ("source = \"192.0.2.2\"", "source = \"192.0.2.4\""),
    ("algorithm = \"aes256-gcm\"", "algorithm = \"chacha20-poly1305\""),
    ("key_file = \"/there.key\"", "key_file = \"/other.key\""),
    ("udp_ports = [4500, 4501]", "udp_ports = [4500, 4503]"),
    ("keepalive = \"9s\"", "keepalive = \"off\""),
    ("dont_fragment = \"copy\"", "dont_fragment = \"clear\""),
    ("action = \"discard\"", "action = \"bypass\""),
    ("sa = [\"there\", \"bare\"]", "sa = [\"bare\", \"there\"]"),
    ("\"50s\"", "\"51s\""),
    ("bytes = 2000", "bytes = \"2kb\""),
    ("packets = 20 ", "packets = 21 "),
    ("direction = \"in\"\nfrom", "direction = \"out\"\nfrom"),
];

fn topology(text: &str) -> Topology {
    read("etc/office.toml", text, "4711", |path| Err(path.into()))
        .unwrap_or_else(|told| panic!("{}\n{text}", told.join("\n")))
}

fn written(topology: &Topology) -> String {
    let names: Vec<_> = topology.ports.iter().map(|port| port.name.as_str()).collect();
    write(&topology.name, &names, topology.plan.as_ref().unwrap())
}

/// The changes in words, or the refusal.
fn difference(now: &Topology, wanted: &Topology) -> String {
    let names = [now, wanted].map(|of| of.ports.iter().map(|port| port.name.clone()).collect::<Vec<_>>());
    let named = |place: usize, of: &'_ Topology| (names[place].clone(), of.plan.clone().unwrap());
    let [(now_names, now), (wanted_names, wanted)] = [named(0, now), named(1, wanted)];
    match compare_plans(
        Named { names: &now_names, plan: &now },
        Named { names: &wanted_names, plan: &wanted },
    ) {
        Err(why) => why,
        Ok(live) => {
            let ports = live.changes.iter().flatten().flat_map(|change| change.lines("port", "p"));
            let esps = live.esps.iter().flat_map(|(_, change, _)| change.lines("esp", "e"));
            ports.chain(esps).collect::<Vec<_>>().join("\n")
        }
    }
}

/// The fault of a change of one line: that it is not told, or without words, or not written; `None` without one.
fn fault(whole: &Topology, line: &str, text: &str) -> Option<String> {
    let told = match read("etc/office.toml", text, "4711", |path| Err(path.into())) {
        Err(told) => return Some(format!("{line}: {}", told.join(" "))),
        Ok(wanted) if !difference(&wanted, &topology(&written(&wanted))).is_empty() => {
            return Some(format!("{line}: not written"));
        }
        Ok(wanted) => difference(whole, &wanted),
    };
    let has_words = !told.is_empty() && told.lines().all(|told| !told.trim_end().ends_with(':'));
    (!has_words).then(|| format!("{line}: {told:?}"))
}

#[test]
fn a_file_that_is_written_says_each_key() {
    let schema = schema();
    let tables = schema["$defs"].as_object().unwrap();
    for (table, shape) in tables.iter().filter(|(table, _)| *table != "LimitTable") {
        let keys = shape["properties"].as_object().into_iter().flat_map(|keys| keys.keys());
        // A file of classes is a part of the file that is written; the tables of tables are those below.
        for key in keys.filter(|key| *key != "classes_file") {
            let is_there = [format!("{key} = "), format!(".{key}]]")].iter().any(|text| WHOLE.contains(text));
            assert!(is_there, "{table} has {key}");
        }
    }
    let whole = topology(WHOLE);
    let text = written(&whole);
    let again = topology(&text);
    assert_eq!(format!("{:#?}", again.plan), format!("{:#?}", whole.plan));
    assert_eq!(written(&again), text);
    assert_eq!(difference(&whole, &again), "");
}

#[test]
fn a_change_of_each_key_is_told() {
    let whole = topology(WHOLE);
    let mut faults: Vec<_> = INSTEAD
        .iter()
        .map(|(line, other)| (line, WHOLE.replacen(line, other, 1)))
        .filter_map(
            |(line, text)| if text == WHOLE { Some(line.to_string()) } else { fault(&whole, line, &text) },
        )
        .collect();
    let lines: Vec<&str> = WHOLE.lines().collect();
    for (place, line) in lines.iter().enumerate() {
        let without = [&lines[..place], &lines[place + 1..]].concat().join("\n");
        let is_file = read("etc/office.toml", &without, "4711", |path| Err(path.into())).is_ok();
        if is_file && !line.is_empty() && !SAID_TWICE.contains(line) {
            faults.extend(fault(&whole, line, &without));
        }
    }
    assert_eq!(faults, Vec::<String>::new());
}

#[test]
fn names_and_paths_of_any_characters_are_written() {
    let names = ["a\\\"b", "c\\\\d", "it's", "#x", "[z]", "x=y", "e0a", "true", "1.5", "\u{1f600}"];
    for (name, other) in names.iter().zip(&names[1..]) {
        let text = format!(
            "[[port]]\ninterface = \"p0\"\nname = \"{name}\"\ndefault = \"free\"\n[[port.class]]\nname = \"c\"\nrate = \"1mbit\"\n\
             [[port.filter]]\ninterface = \"{other}\"\nclass = \"c\"\n[[port]]\ninterface = \"{other}\"\n[[epair]]\nname = \"q{name}\"\n\
             [[bridge]]\nname = \"b{other}\"\nports = [\"{name}\", \"q{name}a\"]\n[[router]]\nname = \"r{name}\"\n\
             [[router.interface]]\nport = \"q{name}b\"\naddress = [\"10.0.0.1/24\"]\n\
             [[router.interface]]\nport = \"{other}\"\naddress = [\"10.0.1.1/24\"]\n"
        );
        let first = topology(&text);
        assert_eq!(format!("{:?}", topology(&written(&first)).plan), format!("{:?}", first.plan), "{text}");
    }
    let key_file = r#""/a\nspi = 300\n\"''' \"\"\"\\""#;
    let first = topology(&WHOLE.replacen("\"/there.key\"", key_file, 1));
    assert_eq!(format!("{:?}", topology(&written(&first)).plan), format!("{:?}", first.plan));
}
