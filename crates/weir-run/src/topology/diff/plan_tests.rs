//! Two plans compared: the live changes and their words, the changes that are refused, and that a plan that is shown changes nothing.

use super::*;
use crate::topology::{Topology, read, write};

fn topology(text: &str) -> Topology {
    read("etc/office.toml", text, "4711", |path| Err(path.into()))
        .unwrap_or_else(|told| panic!("{}\n{text}", told.join("\n")))
}

/// The comparison of two files, the first of which runs.
fn compare(now: &Topology, wanted: &Topology) -> Result<Live, String> {
    let names = [now, wanted].map(|of| of.ports.iter().map(|port| port.name.clone()).collect::<Vec<_>>());
    let named = |place: usize, of: &'_ Topology| (names[place].clone(), of.plan.clone().expect("ports"));
    let [(now_names, now), (names, plan)] = [named(0, now), named(1, wanted)];
    compare_plans(Named { names: &now_names, plan: &now }, Named { names: &names, plan: &plan })
}

/// The changes, a line for each port.
fn lines(now: &str, wanted: &str) -> Vec<String> {
    let live = compare(&topology(now), &topology(wanted)).unwrap();
    let changes = live.changes.iter().enumerate();
    changes.filter_map(|(port, change)| Some(format!("{port}: {}", change.as_ref()?))).collect()
}

fn refused(now: &str, wanted: &str) -> String {
    let why = compare(&topology(now), &topology(wanted)).unwrap_err();
    why.strip_prefix(
        "limits, classes and filters of ports, and associations, policies, `address` and `mtu` of an `[[esp]]` change live; for the rest run `weir down` and `weir up`: ",
    )
    .unwrap_or_else(|| panic!("{why}"))
    .to_string()
}

const LAN: &str = "[[port]]\ninterface = \"p0\"\nrate = \"100mbit\"\n[[port]]\ninterface = \"p1\"\nname = \"b\"\n\
                   [[port]]\ninterface = \"p2\"\n[[bridge]]\nname = \"lan\"\nports = [\"p0\", \"b\", \"p2\"]\n";
const CLASSES: &str = "default = \"x\"\n[[port.class]]\nname = \"x\"\nrate = \"10mbit\"\n[[port.class]]\nname = \"y\"\nrate = \"5mbit\"\n\
                       [[port.filter]]\ninterface = \"p2\"\nclass = \"y\"\n";

/// The bridge's file with more to say of its second port.
fn with_classes(classes: &str) -> String {
    LAN.replacen("name = \"b\"\n", &format!("name = \"b\"\n{classes}"), 1)
}

#[test]
fn limits_classes_and_filters_change_live() {
    assert_eq!(lines(LAN, LAN), Vec::<String>::new());
    let wanted = LAN.replacen("100mbit", "10mbit\"\nqueue = \"2ms", 1);
    assert_eq!(
        lines(LAN, &wanted),
        ["0: rate 100mbit -> 10mbit, burst 125kbit -> 20kb, queue 5ms -> 2ms"
            .replace("125kbit", &size_text(25_000))]
    );
    let wanted = LAN.replacen("rate = \"100mbit\"\n", "", 1);
    assert!(lines(LAN, &wanted)[0].starts_with("0: no rate any more, which was 100mbit, no burst any more"));
    let classes = with_classes(CLASSES);
    let expected = "1: class x 10mbit, class y 5mbit, filters 1 rule, default x";
    assert_eq!(lines(LAN, &classes), [expected]);
    assert_eq!(lines(&classes, LAN).len(), 1);
    let wanted =
        classes.replacen("5mbit\"\n", "5mbit\"\nceil = \"9mbit\"\nfull = \"ecn\"\nmax_wait = \"40ms\"\n", 1);
    assert_eq!(lines(&classes, &wanted), ["1: class y 5mbit -> 5mbit to 9mbit full ecn max_wait 40ms"]);
    let wanted = classes.replacen("interface = \"p2\"\nclass", "interface = \"p0\"\nclass", 1);
    assert_eq!(
        lines(&classes, &wanted),
        ["1: filters 1 rule (1: interface p2 class y) -> 1 rule (1: interface p0 class y)"]
    );
    let wanted = classes.replacen("default", "shaper = \"cbq\"\ndefault", 1);
    assert_eq!(lines(&classes, &wanted), ["1: shaper cbq"]);
}

/// Classes that stay are handed back as they are, so that they are left alone.
#[test]
fn a_change_of_the_rate_alone_leaves_classes_alone() {
    let (now, wanted) = (with_classes(CLASSES), with_classes(&format!("rate = \"50mbit\"\n{CLASSES}")));
    let (now, wanted) = (topology(&now), topology(&wanted));
    let live = compare(&now, &wanted).unwrap();
    let [shape] = &live.shapes[..] else { panic!("{live:?}") };
    assert_eq!((shape.port, shape.limits.unwrap().rate.bits_per_s()), (1, 50_000_000));
    let before = now.plan.unwrap().ports[1].classes.clone().unwrap();
    assert!(Arc::ptr_eq(&before, shape.classes.as_ref().unwrap()));
}

#[test]
fn an_order_is_no_difference() {
    let now = with_classes(CLASSES);
    let [a, b, c, bridge] = {
        let (ports, bridge) = now.split_once("[[bridge]]").unwrap();
        let ports: Vec<_> = ports.split("[[port]]").skip(1).map(|port| format!("[[port]]{port}")).collect();
        let [a, b, c] = ports.try_into().unwrap();
        [a, b, c, format!("[[bridge]]{bridge}")]
    };
    let wanted = format!("{c}{bridge}{b}{a}").replace("\"p0\", \"b\", \"p2\"", "\"p2\", \"p0\", \"b\"");
    assert_eq!(lines(&now, &wanted), Vec::<String>::new());
    // A port that a filter names is found in another order too.
    let other = wanted.replacen("interface = \"p2\"\nclass", "interface = \"p0\"\nclass", 1);
    let live = compare(&topology(&now), &topology(&other)).unwrap();
    let classes = live.shapes[0].classes.clone().unwrap();
    assert_eq!((live.shapes[0].port, classes.classifier.rules()[0].conditions.interface), (1, Some(0)));
}

#[test]
fn what_is_built_otherwise_is_named_all_at_once() {
    let wanted =
        LAN.replace("p2", "p3").replacen("name = \"b\"\n", "name = \"c\"\n", 1).replace("\"b\"", "\"c\"");
    let wanted = format!("{wanted}ageing = \"60s\"\n");
    assert_eq!(
        refused(LAN, &wanted),
        "port p1 is called \"c\" and not \"b\"; port p2 goes; port p3 comes; bridge lan: ageing 300s -> 60s"
            .replace("300s", &time_text(300_000_000_000))
            .replace("60s", &time_text(60_000_000_000))
    );
    let router = "[[router]]\nname = \"lan\"\n[[router.interface]]\nport = \"p0\"\naddress = [\"10.0.0.1/24\"]\n\
                  [[router.interface]]\nport = \"b\"\naddress = [\"10.0.1.1/24\"]\n[[router.interface]]\nport = \"p2\"\naddress = [\"10.0.2.1/24\"]\n";
    let routed = LAN.split("[[bridge]]").next().unwrap().to_string() + router;
    assert_eq!(refused(LAN, &routed), "bridge lan becomes a router lan");
    let more = format!("{routed}[[router.route]]\nto = \"default\"\nvia = \"10.0.1.9\"\n");
    assert_eq!(
        refused(&routed, &more),
        "router lan has other routes (0.0.0.0/0 via 10.0.1.9 at interface 2 comes)"
    );
    let moved =
        routed.replace("\"p0\"\naddress", "\"px\"\naddress").replace("\"p2\"\naddress", "\"p0\"\naddress");
    let moved = moved.replace("\"px\"\naddress", "\"p2\"\naddress");
    // Its MACs are derived from the ports' names, so that they are other too.
    assert!(refused(&routed, &moved).starts_with("router lan has other interfaces (1 10.0.0.1/24 mac "));
    let two = "[[port]]\ninterface = \"p0\"\n[[port]]\ninterface = \"p1\"\n[[port]]\ninterface = \"p2\"\n[[port]]\ninterface = \"p3\"\n";
    let wires =
        |one: &str, other: &str| format!("{two}[[wire]]\nports = [{one}]\n[[wire]]\nports = [{other}]\n");
    assert_eq!(
        refused(&wires("\"p0\", \"p1\"", "\"p2\", \"p3\""), &wires("\"p0\", \"p2\"", "\"p3\", \"p1\"")),
        "port p0 is no more joined to port p1; port p2 is no more joined to port p3; port p0 is newly joined to port p2; \
         port p1 is newly joined to port p3"
    );
}

/// Numbers that are the same for a seed.
struct Draws(u64);

impl Draws {
    /// SplitMix64.
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }

    fn one_of<'a>(&mut self, texts: &[&'a str]) -> &'a str {
        texts[self.below(texts.len() as u64) as usize]
    }

    /// The keys of one of so many ports: a limit or none, and perhaps classes.
    fn port(&mut self, ports: u64) -> String {
        let mut text = String::new();
        let has_classes = self.below(2) == 0;
        if self.below(4) > 0 {
            text += &format!("rate = \"{}kbit\"\n", 100 + self.below(1_000_000));
            text += self.one_of(&["", "burst = \"50kb\"\n", "burst = \"12345b\"\n", "burst = \"1mb\"\n"]);
            let queue = self.one_of(&["", "queue = \"1ms\"\n", "queue = \"7500us\"\n"]);
            text += if has_classes { "" } else { queue };
        }
        if !has_classes {
            return text;
        }
        let is_cbq = self.below(3) == 0;
        text += if is_cbq { "shaper = \"cbq\"\n" } else { "" };
        text += &format!("default = \"{}\"\n", self.one_of(&["c0", "free"]));
        let leaves = 1 + self.below(4);
        let has_root = self.below(2) == 0;
        let mut filters = String::new();
        if has_root {
            text += "[[port.class]]\nname = \"root\"\nrate = \"800mbit\"\n";
        }
        for leaf in 0..leaves {
            let rate = 64 + self.below(100_000);
            text += &format!("[[port.class]]\nname = \"c{leaf}\"\nrate = \"{rate}kbit\"\n");
            if has_root {
                text += "parent = \"root\"\n";
                text += if is_cbq {
                    self.one_of(&["", "bounded = true\n"])
                } else {
                    self.one_of(&["", "ceil = \"500mbit\"\n"])
                };
            }
            text += self.one_of(&["", "burst = \"40kb\"\n"]);
            text += self.one_of(&["", "quantum = \"4kb\"\n"]);
            text += self.one_of(&["", "priority = 3\n"]);
            text += self.one_of(&["", "full = \"ecn\"\n", "full = \"drop\"\n"]);
            text += self.one_of(&["", "max_wait = \"50ms\"\n"]);
            text += self.one_of(&["", "queue = \"9ms\"\n"]);
            filters += &match self.below(4) {
                0 => format!("[[port.filter]]\ninterface = \"p{}\"\n", self.below(ports)),
                1 => format!("[[port.filter]]\nto = [\"10.{leaf}.0.0/16\", \"fd0{leaf}::/16\"]\n"),
                2 => format!(
                    "[[port.filter]]\nprotocol = \"udp\"\nto_ports = [{}, \"9{leaf}0-9{leaf}9\"]\n",
                    80 + leaf
                ),
                _ => format!("[[port.filter]]\ndscp = {}\n", 8 + leaf),
            };
            filters += &format!("class = \"c{leaf}\"\n");
        }
        text + &filters
    }

    /// A file of ports on a bridge, and perhaps a router behind it.
    fn file(&mut self) -> String {
        let ports = 2 + self.below(4);
        let mut text = String::new();
        for port in 0..ports {
            text += &format!("[[port]]\ninterface = \"p{port}\"\n");
            text += &if self.below(3) == 0 { format!("name = \"n{port}\"\n") } else { String::new() };
            text += &self.port(ports);
        }
        let joined: Vec<_> = (0..ports).map(|port| format!("\"p{port}\"")).collect();
        let joined: Vec<_> = joined
            .into_iter()
            .zip(text.split("[[port]]\n").skip(1))
            .enumerate()
            .map(|(port, (plain, table))| match table.contains(&format!("name = \"n{port}\"")) {
                true => format!("\"n{port}\""),
                false => plain,
            })
            .collect();
        if self.below(2) == 0 {
            return format!("{text}[[bridge]]\nname = \"lan\"\nports = [{}]\n", joined.join(", "));
        }
        format!(
            "{text}[[epair]]\nname = \"e\"\n[[bridge]]\nname = \"lan\"\nports = [\"ea\", {}]\nageing = \"{}s\"\n\
             [[router]]\nname = \"gw\"\n[[router.interface]]\nport = \"eb\"\naddress = [\"10.{}.0.1/24\", \"fd00::1/64\"]\n\
             [[router.interface]]\nport = {}\naddress = [\"192.0.2.2/30\"]\n[[router.route]]\nto = \"default\"\nvia = \"192.0.2.1\"\n",
            joined[1..].join(", "),
            10 + self.below(1000),
            self.below(200),
            joined[0],
        )
    }
}

#[test]
fn a_plan_that_is_shown_checks_and_changes_nothing() {
    for seed in 0..400 {
        let first = topology(&Draws(seed).file());
        let names: Vec<_> = first.ports.iter().map(|port| port.name.as_str()).collect();
        let shown = write::plan::write(&first.name, &names, first.plan.as_ref().unwrap());
        // Another machine reads it so too.
        let again = read("etc/now.toml", &shown, "0815", |path| Err(path.into()));
        let again = again.unwrap_or_else(|told| panic!("seed {seed}: {}\n{shown}", told.join("\n")));
        let live = compare(&first, &again).unwrap_or_else(|why| panic!("seed {seed}: {why}\n{shown}"));
        assert!(live.shapes.is_empty(), "seed {seed}: {:?}\n{shown}", live.changes);
        assert_eq!(again.name, first.name);
    }
}

/// A change makes the plan of the file, whatever was before: the second time there is nothing to do.
#[test]
fn a_change_comes_to_what_the_file_says() {
    for seed in 0..400 {
        let mut draws = Draws(seed);
        let ports = 2 + draws.below(3);
        let mut file = || {
            let tables: String = (0..ports)
                .map(|port| format!("[[port]]\ninterface = \"p{port}\"\n{}", draws.port(ports)))
                .collect();
            let joined: Vec<_> = (0..ports).map(|port| format!("\"p{port}\"")).collect();
            topology(&format!("{tables}[[bridge]]\nname = \"lan\"\nports = [{}]\n", joined.join(", ")))
        };
        let (mut now, wanted) = (file(), file());
        let live = compare(&now, &wanted).unwrap();
        for shape in live.shapes {
            let port = &mut now.plan.as_mut().unwrap().ports[shape.port];
            (port.limits, port.classes) = (shape.limits, shape.classes);
        }
        let again = compare(&now, &wanted).unwrap();
        assert!(again.shapes.is_empty(), "seed {seed}: {:?}", again.changes);
    }
}

#[test]
fn how_a_wire_is_dispatched_is_built_when_it_comes_up() {
    let wire =
        "[[port]]\ninterface = \"p0\"\n[[port]]\ninterface = \"p1\"\n[[wire]]\nports = [\"p0\", \"p1\"]\n";
    let hybrid = format!("{wire}dispatch = \"hybrid\"\nset = [\"rss.bits=1\", \"defaultqlimit=9\"]\n");
    let other_order = format!("{wire}dispatch = \"hybrid\"\nset = [\"defaultqlimit=9\", \"rss.bits=1\"]\n");
    assert_eq!(lines(&hybrid, &other_order), Vec::<String>::new());
    assert_eq!(
        refused(wire, &hybrid),
        "dispatch of the wire p0--p1: none -> defaultqlimit=9 dispatch=hybrid rss.bits=1"
    );
    assert!(refused(&hybrid, wire).ends_with("-> none"));
}

#[test]
fn how_an_esp_is_dispatched_is_built_when_it_comes_up() {
    let esp = "[[port]]\ninterface = \"p0\"\n[[port]]\ninterface = \"p1\"\n[[esp]]\nname = \"gw\"\ninside = \"p0\"\noutside = \"p1\"\n\
               address = [\"192.0.2.1\"]\n";
    let deferred = format!("{esp}dispatch = \"deferred\"\n");
    let short = format!("{deferred}queue_packets = 16\n");
    assert_eq!(lines(esp, &format!("{esp}dispatch = \"direct\"\n")), Vec::<String>::new());
    assert_eq!(refused(esp, &deferred), "esp gw: dispatch direct -> deferred with queue_packets 256");
    assert_eq!(
        refused(&short, &deferred),
        "esp gw: dispatch deferred with queue_packets 16 -> deferred with queue_packets 256"
    );
    assert_eq!(
        refused(&deferred, &format!("{deferred}sealers = 2\n")),
        "esp gw: dispatch deferred with queue_packets 256 -> deferred with queue_packets 256 and sealers 2"
    );
}

#[test]
fn each_policy_that_changes_has_a_line() {
    let esp = "[[port]]\ninterface = \"p0\"\n[[port]]\ninterface = \"p1\"\n[[esp]]\nname = \"gw\"\ninside = \"p0\"\noutside = \"p1\"\n\
               address = [\"192.0.2.1\"]\n";
    let policy = |from: &str, more: &str| {
        format!(
            "[[policy]]\nesp = \"gw\"\ndirection = \"out\"\nfrom = \"{from}\"\nto = \"10.9.0.0/16\"\naction = \"bypass\"\n{more}"
        )
    };
    let [one, two, three] = ["10.1.0.0/16", "10.2.0.0/16", "10.3.0.0/16"].map(|from| policy(from, ""));
    let lines = |now: &[&String], wanted: &[&String]| {
        let [now, wanted] = [now, wanted].map(|policies| {
            topology(&(esp.to_string() + &policies.iter().map(|text| text.as_str()).collect::<String>()))
        });
        let live = compare(&now, &wanted).unwrap();
        live.esps.iter().flat_map(|(_, change, _)| change.lines("esp", "gw")).collect::<Vec<_>>()
    };
    assert!(lines(&[&one, &two], &[&one, &two]).is_empty());
    assert_eq!(
        lines(&[&one, &two], &[&three, &two]),
        [
            "~ esp gw: no policy 1 any more, which was out 10.1.0.0/16 to 10.9.0.0/16 bypass",
            "~ esp gw: policy 1 out 10.3.0.0/16 to 10.9.0.0/16 bypass"
        ]
    );
    assert_eq!(
        lines(&[&one, &two], &[&two, &three, &one]),
        [
            "~ esp gw: policy 2 out 10.3.0.0/16 to 10.9.0.0/16 bypass",
            "~ esp gw: place of policy out 10.1.0.0/16 to 10.9.0.0/16 bypass 1 -> 2",
            "~ esp gw: place of policy out 10.2.0.0/16 to 10.9.0.0/16 bypass 2 -> 1"
        ]
    );
    let narrower = policy("10.1.0.0/16", "protocol = \"tcp\"\nto_ports = \"80-81\"\n");
    let told = "~ esp gw: policy 1 out 10.1.0.0/16 to 10.9.0.0/16 protocol 6 to port 80 to 81 bypass";
    assert_eq!(lines(&[&one], &[&narrower]).last().map(String::as_str), Some(told));
}

/// A port may be missing when the path comes up, and at no other time.
#[test]
fn whether_a_port_is_optional_is_built_when_it_comes_up() {
    let optional = with_classes("optional = true\n");
    assert_eq!(refused(LAN, &optional), "port p1 becomes optional");
    assert_eq!(refused(&optional, LAN), "port p1 is optional no more");
    assert_eq!(lines(LAN, &with_classes("optional = false\n")), Vec::<String>::new());
}

/// Two policies that are alike, and one of them taken out; associations in another order.
#[test]
fn what_changes_of_an_esp_has_words_and_an_order_of_associations_is_no_change() {
    let esp = "[[port]]\ninterface = \"p0\"\n[[port]]\ninterface = \"p1\"\n[[esp]]\nname = \"gw\"\ninside = \"p0\"\noutside = \"p1\"\n\
               address = [\"192.0.2.1\"]\n";
    let policy = "[[policy]]\ndirection = \"out\"\nfrom = \"10.1.0.0/16\"\naction = \"bypass\"\n";
    let sa = |spi: u32, more: &str| {
        format!(
            "[[sa]]\nname = \"sa{spi}\"\ndirection = \"in\"\nspi = {spi}\nsource = \"192.0.2.2\"\n\
             destination = \"192.0.2.1\"\nalgorithm = \"null\"\n{more}"
        )
    };
    let lines = |now: &[&str], wanted: &[&str]| {
        let [now, wanted] = [now, wanted].map(|parts| topology(&(esp.to_string() + &parts.concat())));
        let live = compare(&now, &wanted).unwrap();
        live.esps.iter().flat_map(|(_, change, _)| change.lines("esp", "gw")).collect::<Vec<_>>()
    };
    let gone = "~ esp gw: no policy 2 any more, which was out 10.1.0.0/16 to 0.0.0.0/0 bypass";
    assert_eq!(lines(&[policy, policy], &[policy]), [gone]);
    assert_eq!(lines(&[policy, policy], &[policy, policy]), Vec::<String>::new());
    let (one, other) = (sa(256, ""), sa(257, ""));
    assert_eq!(lines(&[&one, &other], &[&other, &one]), Vec::<String>::new());
    let told = "~ esp gw: sa sa256 in 192.0.2.2 to 192.0.2.1 spi 0x00000100 null -> in 192.0.2.2 to 192.0.2.1 spi 0x00000100 null";
    assert_eq!(lines(&[&one], &[&sa(256, "window = 65\n")]), [format!("{told} window 65")]);
    let long = "mode = \"transport\"\nextended = true\nudp_ports = [4500, 4501]\nfollow_peer = true\ndont_fragment = \"clear\"\n\
                soft = { packets = 1 }\nhard = { time = \"1s\", bytes = 2 }\n";
    let words = " transport extended udp_ports 4500 to 4501 follow_peer dont_fragment clear soft packets 1 hard time 1s hard bytes 2";
    assert_eq!(lines(&[&one], &[&sa(256, long)]), [format!("{told}{words}")]);
}

#[test]
fn what_differs_of_a_router_is_told_whatever_the_order() {
    let ports = "[[port]]\ninterface = \"p0\"\n[[port]]\ninterface = \"p1\"\n";
    let router = |mtu: u32, more: &[&str]| {
        format!(
            "{ports}[[router]]\nname = \"gw\"\n[[router.interface]]\nport = \"p0\"\naddress = [\"10.0.0.1/24\"]\n\
             mac = \"02:00:00:00:00:01\"\nmtu = {mtu}\n[[router.interface]]\nport = \"p1\"\naddress = [\"10.0.1.1/24\"]\n{}",
            more.concat()
        )
    };
    let route =
        |to: u8, via: u8| format!("[[router.route]]\nto = \"10.9.{to}.0/24\"\nvia = \"10.0.0.{via}\"\n");
    let [one, two, three] = [route(1, 9), route(2, 9), route(3, 9)];
    let neighbour = |last: u8| {
        format!("[[router.neighbour]]\naddress = \"10.0.1.{last}\"\nmac = \"02:00:00:00:00:09\"\n")
    };
    let (near, far) = (neighbour(7), neighbour(8));
    let now = router(1400, &[&one, &two, &near, &far]);
    assert_eq!(lines(&now, &router(1400, &[&far, &two, &near, &one])), Vec::<String>::new());
    assert_eq!(
        refused(&now, &router(1500, &[&one, &two, &near, &far])),
        "router gw has other interfaces (1 10.0.0.1/24 mac 02:00:00:00:00:01 mtu 1400 -> 10.0.0.1/24 mac 02:00:00:00:00:01 mtu 1500)"
    );
    assert_eq!(
        refused(&now, &router(1400, &[&three, &route(1, 8), &far])),
        "router gw has other routes (10.9.1.0/24 via 10.0.0.9 at interface 1 -> via 10.0.0.8 at interface 1, 10.9.2.0/24 goes, \
         10.9.3.0/24 via 10.0.0.9 at interface 1 comes), neighbours (10.0.1.7 at interface 2 goes)"
    );
    let many: Vec<_> = (10..20).map(|to| route(to, 9)).collect();
    let many: Vec<_> = many.iter().map(String::as_str).collect();
    assert!(refused(&router(1400, &[]), &router(1400, &many)).ends_with(" comes, and 7 more)"));
}
