//! The classes of a file, and the messages on a wrong file, word for word.

use weir_core::classify::headers::{Headers, Ip};
use weir_core::shaper::backlog::FullPolicy;

use super::*;

const INTERFACES: [&str; 2] = ["wa", "wb"];

fn read(text: &str) -> Result<Classes, String> {
    super::read("f.toml", text, INTERFACES)
}

/// A valid file with one more class and one more filter.
fn with(class: &str, filter: &str) -> String {
    format!(
        "default = \"bulk\"\n[[class]]\nname = \"link\"\nrate = \"200mbit\"\n[[class]]\nname = \"bulk\"\nparent = \"link\"\n\
         rate = \"50mbit\"\n{class}\n{filter}\n"
    )
}

#[test]
fn a_queue_is_long_enough_for_what_acts_on_it() {
    for (full, queue_ns) in [("block", 5_000_000), ("ecn", 50_000_000), ("drop", 50_000_000)] {
        let text = format!("default = \"a\"\n[[class]]\nname = \"a\"\nrate = \"1mbit\"\nfull = \"{full}\"\n");
        assert_eq!(read(&text).unwrap().classes[0].leaf.unwrap().queue_ns, queue_ns, "{full}");
    }
}

/// Nothing is said of a class below one that is wrong, because that follows from the first fault.
#[test]
fn all_faults_of_a_file_are_told() {
    let class = |name: &str, rest: &str| format!("[[class]]\nname = \"{name}\"\n{rest}\n");
    let text = [
        "default = \"nowhere\"".into(),
        class("a b", "rate = \"1mbit\""),
        class("link", "rate = \"9gigs\""),
        class("below", "parent = \"link\"\nrate = \"1mbit\"\nburst = \"1b\""),
        class("link", "rate = \"1mbit\""),
        class("slow", "rate = \"1mbit\"\nceil = \"1kbit\""),
        class("lost", "parent = \"lin\"\nrate = \"1mbit\""),
        "[[filter]]\nto_ports = 99999\nclass = \"slow\"".into(),
        "[[filter]]\nto_ports = 80\nclass = \"quick\"\n".into(),
    ];
    let told = read(&text.join("\n")).unwrap_err();
    let said: Vec<_> = told.split("\nweir: ").filter_map(|told| told.lines().next()).collect();
    let begin = [
        "f.toml:3:8: a name is 1 to 64 letters",
        "f.toml:17:8: there is a class of this name in line 7",
        "f.toml:27:10: there is no class \"lin\"",
        "f.toml:8:8: \"9gigs\"",
        "f.toml:23:8: the ceiling 1kbit is below",
        "f.toml:1:11: there is no class \"nowhere\"",
        "f.toml:31:12: ",
        "f.toml:35:9: there is no class \"quick\"",
    ];
    assert!(said.iter().zip(begin).all(|(said, begin)| said.starts_with(begin)), "{said:#?}");
    assert_eq!(said.len(), begin.len(), "{said:#?}");
}

#[test]
fn a_file_becomes_a_tree_with_parents_first() {
    let text = r#"
default = "bulk"
[[class]]
name = "voice"
parent = "link"
rate = "10mbit"
ceil = "20mbit"
burst = "4kb"
priority = 1
full = "ecn"
max_wait = "50ms"
queue = "2ms"
quantum = "3kb"
[[class]]
name = "link"
rate = "200mbit"
[[class]]
name = "bulk"
parent = "link"
rate = "150mbit"
ceil = "200mbit"
[[filter]]
dscp = ["ef", 34]
class = "voice"
[[filter]]
to = ["10.0.0.0/8", "fd00::/8"]
class = "free"
"#;
    let classes = read(text).unwrap();
    assert_eq!(classes.warnings, Vec::<String>::new());
    let names: Vec<_> = classes.classes.iter().map(|class| (class.name.as_str(), class.parent)).collect();
    assert_eq!(names, [("link", None), ("voice", Some(0)), ("bulk", Some(0))]);
    assert_eq!((classes.kind, classes.default), (TreeKind::Htb, Some(2)));
    let [link, voice, bulk] = &classes.classes[..] else { panic!() };
    assert_eq!((link.leaf, link.ceil), (None, "200mbit".parse().unwrap()));
    assert_eq!((bulk.ceil, bulk.burst_bytes, bulk.quantum_bytes), (link.ceil, 37_500, 18_750));
    assert_eq!((voice.ceil, voice.burst_bytes), ("20mbit".parse().unwrap(), 4096));
    let rules = voice.leaf.unwrap();
    assert_eq!((rules.priority, rules.queue_ns, rules.rule.max_wait_ns), (1, 2_000_000, Some(50_000_000)));
    assert!(matches!(rules.rule.when_full, FullPolicy::Ecn(_)));
    assert_eq!(bulk.leaf.unwrap().queue_ns, 5_000_000);

    let packet = |destination: &str, dscp| {
        let ip = Ip {
            source: "192.0.2.1".parse().unwrap(),
            destination: destination.parse().unwrap(),
            protocol: 17,
            dscp,
        };
        classes.classifier.classify(0, 0, &Headers { ip: Some(ip), ports: None, fragment: None })
    };
    assert_eq!(packet("10.1.2.3", 0), Target::Free);
    assert_eq!(packet("fd00::7", 0), Target::Free);
    assert_eq!(packet("10.1.2.3", 46), Target::Class(1), "the first that matches");
    assert_eq!(packet("192.0.2.9", 34), Target::Class(1));
    assert_eq!(packet("192.0.2.9", 0), Target::Class(2));
}

#[test]
fn an_exemption_is_three_lines_and_one_class_needs_no_default() {
    let text = "[[filter]]\nto = \"10.0.0.0/8\"\nclass = \"free\"\n[[class]]\nname = \"internet\"\nrate = \"20mbit\"\n";
    let classes = read(text).unwrap();
    assert_eq!((classes.default, classes.classes.len()), (Some(0), 1));
    let free = format!("default = \"free\"\n{text}[[filter]]\nto_ports = 80\nclass = \"internet\"\n");
    assert_eq!(read(&free).unwrap().default, None);
}

#[test]
fn a_tree_of_shares() {
    let text = "shaper = \"cbq\"\ndefault = \"b\"\n[[class]]\nname = \"r\"\nrate = \"10mbit\"\n[[class]]\nname = \"a\"\nparent = \"r\"\n\
                rate = \"3mbit\"\nbounded = true\n[[class]]\nname = \"b\"\nparent = \"r\"\nrate = \"7mbit\"\n\
                [[filter]]\nto_ports = 1\nclass = \"a\"\n";
    let classes = read(text).unwrap();
    assert_eq!(classes.kind, TreeKind::Cbq);
    let ceils: Vec<_> = classes.classes.iter().map(|class| (class.bounded, class.ceil.to_string())).collect();
    assert_eq!(ceils, [(false, "10mbit".into()), (true, "3mbit".into()), (false, "10mbit".into())]);
}

#[test]
fn what_is_wrong_is_told_with_its_place() {
    let class = |keys: &str| with(&format!("[[class]]\nname = \"x\"\nparent = \"link\"\n{keys}"), "");
    let filter = |keys: &str| with("", &format!("[[filter]]\n{keys}\nclass = \"bulk\""));
    let table: &[(String, &str)] = &[
        (class("rate = \"0mbit\""), "12:8: \"0mbit\" is not a rate: it must be more than zero; write for example 200mbit\n  12 | rate = \"0mbit\"\n     |        ^^^^^^^"),
        (class("rate = \"20mbit\"\nceil = \"10mbit\""), "13:8: the ceiling 10mbit is below the rate 20mbit; raise it to 20mbit or more\n  13 | ceil = \"10mbit\"\n     |        ^^^^^^^^"),
        ("shaper = \"cbq\"\n[[class]]\nname = \"a\"\nrate = \"1mbit\"\n[[class]]\nname = \"b\"\nparent = \"a\"\nrate = \"2mbit\"".into(), "8:8: the share 2mbit is above the 1mbit that all classes under the same top have together; write 1mbit or less\n"),
        (class("rate = \"20mbit\"\nburst = \"1kb\""), "13:9: a burst of 1kb is below one frame of 1514 bytes; give 2kb or more\n"),
        (class("rate = \"20mbit\"\ncburst = \"1kb\""), "13:10: a burst of 1kb is below one frame"),
        (class("rate = \"20mbit\"\nburst = \"2gb\""), "13:9: a bucket holds 1gb at most; give less\n"),
        (class("rate = \"20mbit\"\nquantum = \"100b\""), "13:11: a quantum is one frame of 1514 bytes at least"),
        (class("rate = \"20mbit\"\npriority = 8"), "13:12: a priority is 0 to 7, and 0 goes first\n"),
        (class("rate = \"20mbit\"\nfull = \"blok\""), "13:8: a full class does one of \"block\", \"ecn\" and \"drop\"; did you mean \"block\"?\n"),
        (class("rate = \"20mbit\"\nqueue = \"5\""), "13:9: \"5\" is not a time: it has no unit; write for example 5ms\n"),
        (class("rate = \"20mbit\"\nbounded = true"), "13:11: bounded is for shaper = \"cbq\""),
        (class("rate = \"20mbit\"\nciel = \"30mbit\""), "13:1: unknown key `ciel`, expected one of"),
        (class("rat = \"20mbit\""), "12:1: unknown key `rat`"),
        (class("rate = 20"), "12:8: invalid type: integer `20`, expected a string; write it in quotes, a rate, size or time with its unit\n"),
        (class(""), "missing key `rate`\n"),
        (with("[[class]]\nname = \"x\"\nparent = \"lnk\"\nrate = \"1mbit\"", ""), "11:10: there is no class \"lnk\"; did you mean \"link\"?\n  11 | parent = \"lnk\"\n     |          ^^^^^"),
        (with("[[class]]\nname = \"bulk\"\nrate = \"1mbit\"", ""), "10:8: there is a class of this name in line 6; give one of them another\n"),
        (with("[[class]]\nname = \"free\"\nrate = \"1mbit\"", ""), "10:8: \"free\" stands for no class at all; choose another name\n"),
        (with("[[class]]\nname = \"a b\"\nrate = \"1mbit\"", ""), "10:8: a name is 1 to 64 letters"),
        (with("[[class]]\nname = \"x\"\nparent = \"y\"\nrate = \"1mbit\"\n[[class]]\nname = \"y\"\nparent = \"x\"\nrate = \"1mbit\"", ""), "11:10: a cycle of parents: x -> y -> x; give one of them no parent, or another\n  11 | parent = \"y\"\n     |          ^^^"),
        (with("[[class]]\nname = \"x\"\nparent = \"x\"\nrate = \"1mbit\"", ""), "11:10: a cycle of parents: x -> x;"),
        ("[[class]]\nname = \"a\"\nrate = \"1mbit\"\nqueue = \"1ms\"\n[[class]]\nname = \"b\"\nparent = \"a\"\nrate = \"1mbit\"".into(), "4:9: queue is for classes in which packets wait, and this one has children; write it there\n"),
        ("[[class]]\nname = \"a\"\nrate = \"1mbit\"\n[[class]]\nname = \"b\"\nrate = \"1mbit\"".into(), "1:1: nothing says where packets go that no filter matches; write default = \"a\", or \"free\"\n"),
        (with("", "[[filter]]\nclass = \"link\""), "11:9: class \"link\" has children, and packets wait in leaves; name one, such as \"bulk\"\n"),
        (with("", "[[filter]]\nclass = \"bulc\""), "11:9: there is no class \"bulc\"; did you mean \"bulk\"?\n"),
        (filter("to = \"10.0.0.0/33\""), "11:6: \"10.0.0.0/33\" is no subnet; write for example"),
        (filter("to = [\"10.0.0.0/8\", \"ten\"]"), "11:21: \"ten\" is no subnet"),
        (filter("to = []"), "an empty list matches nothing"),
        (filter("protocol = \"tpc\""), "11:12: \"tpc\" is no protocol; write for example tcp or udp, or a number up to 255; did you mean \"tcp\"?\n"),
        (filter("to_ports = '90-80'"), "11:12: \"90-80\" has no port in it; write \"80-90\""),
        (filter("to_ports = 70000"), "11:12: \"70000\" is no port or range of ports"),
        (filter("dscp = 64"), "11:8: \"64\" is no DSCP"),
        (filter("interface = \"wc\""), "11:13: the wire's interfaces are wa and wb; did you mean \"wa\"?\n"),
        ("shaper = \"hbt\"\n".into(), "1:10: the shapers are \"htb\" and \"cbq\"; did you mean"),
        (String::new(), "1:1: there is no class; write [[class]] with a name and a rate\n"),
        ("[[class]\n".into(), "1:"),
    ];
    for (text, expected) in table {
        let told = read(text).expect_err(text);
        let rest = told.strip_prefix("f.toml:").unwrap_or_else(|| panic!("no place: {told}"));
        let found = if expected.starts_with(|c: char| c.is_ascii_digit()) {
            rest.starts_with(expected)
        } else {
            rest.contains(expected)
        };
        assert!(found, "expected {expected}\ntold     {told}");
    }
}

#[test]
fn what_is_kept_but_perhaps_not_as_meant_is_a_warning() {
    let text = with(
        "[[class]]\nname = \"x\"\nparent = \"link\"\nrate = \"180mbit\"",
        "[[filter]]\nto_ports = \"80-90\"\nclass = \"x\"\n[[filter]]\nto_ports = 85\nclass = \"bulk\"\n\
         [[filter]]\nprotocol = \"icmp\"\nto_ports = 1\nclass = \"bulk\"",
    );
    let warnings = read(&text).unwrap().warnings;
    let expected = [
        "f.toml:18:9: this filter can never match: the one in line 15 takes all its packets; put it first\n  18 | class = \"bulk\"\n     |         ^^^^^^",
        "f.toml:22:9: this filter can never match: the protocol has no ports; take one of the two out\n  22 | class = \"bulk\"\n     |         ^^^^^^",
        "f.toml:4:8: the children of \"link\" have 230mbit together, more than its 200mbit: not all can have it at once; \
         lower theirs or raise this\n  4 | rate = \"200mbit\"\n    |        ^^^^^^^^^",
    ];
    assert_eq!(warnings, expected);
}

#[test]
fn too_many_of_anything_is_refused_in_time() {
    let mut text = String::from("default = \"c0\"\n");
    for number in 0..100_000 {
        text += &format!("[[class]]\nname = \"c{number}\"\nrate = \"1mbit\"\n");
    }
    let told = read(&text).unwrap_err();
    assert!(told.starts_with("f.toml:12291:8: 100000 classes are more than 4096"), "{told}");

    let mut chain = String::from("[[class]]\nname = \"c0\"\nrate = \"1mbit\"\n");
    for number in 1..70 {
        chain +=
            &format!("[[class]]\nname = \"c{number}\"\nparent = \"c{}\"\nrate = \"1mbit\"\n", number - 1);
    }
    assert!(read(&chain).unwrap_err().contains("classes nest at most 62 deep"));

    let ports: Vec<String> = (1..=100).map(|port| port.to_string()).collect();
    let ports = ports.join(", ");
    let filter = format!("[[filter]]\nfrom_ports = [{ports}]\nto_ports = [{ports}]\nclass = \"bulk\"");
    assert!(
        read(&with("", &filter)).unwrap_err().contains("the combinations of this filter are more than 4096")
    );
}
