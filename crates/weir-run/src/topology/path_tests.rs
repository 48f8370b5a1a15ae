//! Files of ports and the tables that join them: their plans, and that a plan is written as a file that says the same.

use smoltcp::wire::EthernetAddress;
use weir_core::dispatch::protocol::Mode;
use weir_core::net::bridge::AGEING_NS;
use weir_core::shaper::tbf::Limit;
use weir_path::esp::INSIDE;
use weir_path::plan::{Attachment, StagePlan, WireDispatch};

use super::write::plan::write;
use super::*;

fn parse(text: &str) -> Result<Topology, Vec<String>> {
    parse_at("4711", text)
}

fn parse_at(machine_id: &str, text: &str) -> Result<Topology, Vec<String>> {
    read("etc/office.toml", text, machine_id, |path| match path {
        "o.toml" => Ok(("etc/o.toml".into(), "[[class]]\nname = \"x\"\nrate = \"10mbit\"\n".into())),
        _ => Err("there is no such file".into()),
    })
}

fn plan(text: &str) -> Plan {
    parse(text).unwrap_or_else(|told| panic!("{}", told.join("\n"))).plan.expect("a plan")
}

/// The content of a file, written and read again.
fn again(topology: &Topology) -> Topology {
    let names: Vec<&str> = topology.ports.iter().map(|port| port.name.as_str()).collect();
    let text = write(&topology.name, &names, topology.plan.as_ref().expect("a plan"));
    parse_at("other", &text).unwrap_or_else(|told| panic!("{}\n{text}", told.join("\n")))
}

fn example(name: &str) -> String {
    let path = format!("{}/../../examples/{name}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn router(stage: &StagePlan) -> &weir_core::net::router::RouterSettings {
    match &stage.kind {
        StageKind::Router(router) => router,
        _ => panic!("{} is no router", stage.name),
    }
}

const TWO: &str =
    "[[port]]\ninterface = \"veth-a\"\nname = \"a\"\n[[port]]\ninterface = \"veth-b\"\nname = \"b\"\n";

#[test]
fn a_port_may_be_missing_at_first_but_not_a_wires() {
    let text = format!("{TWO}optional = true\n[[bridge]]\nname = \"lan\"\nports = [\"a\", \"b\"]\n");
    let topology = parse(&text).unwrap();
    let optional = |topology: Topology| {
        topology.plan.unwrap().ports.iter().map(|port| port.is_optional).collect::<Vec<_>>()
    };
    assert_eq!(optional(again(&topology)), [false, true]);
    assert_eq!(optional(topology), [false, true]);
    let told = parse(&format!("{TWO}optional = true\n[[wire]]\nports = [\"a\", \"b\"]\n")).unwrap_err();
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].starts_with("etc/office.toml:7:12: a wire of two ports needs both"), "{}", told[0]);
    parse(&format!("{TWO}optional = false\n[[wire]]\nports = [\"a\", \"b\"]\n")).unwrap();
}

#[test]
fn a_wire_is_two_ports_and_a_link() {
    let text = TWO.replacen("name = \"a\"", "rate = \"200mbit\"\nqueue = \"2ms\"", 1);
    let topology = parse(&format!("{text}[[wire]]\nports = [\"b\", \"veth-a\"]\n")).unwrap();
    assert_eq!((topology.name.as_str(), topology.warnings.len()), ("office", 0));
    let at = |place: usize| (topology.ports[place].name.as_str(), topology.ports[place].at.as_str());
    assert_eq!((at(0), at(1)), (("veth-a", "etc/office.toml:2:13"), ("b", "etc/office.toml:6:13")));
    let plan = topology.plan.unwrap();
    assert_eq!(plan.links, [[Attachment::Port(0), Attachment::Port(1)]]);
    let limits = plan.ports[0].limits.unwrap();
    assert_eq!((limits.rate.bits_per_s(), limits.burst_bytes), (200_000_000, 50_000));
    assert_eq!(limits.limit, Limit::TimeNs(2_000_000));
    assert!(plan.ports[1].limits.is_none() && plan.ports[1].classes.is_none());
}

#[test]
fn a_wire_may_be_dispatched_to_the_workers() {
    let wire = "[[wire]]\nports = [\"a\", \"b\"]\n";
    let text =
        format!("{TWO}{wire}dispatch = \"deferred\"\nset = [\"proto.ip.full=ecn\", \"rss.hash=2-tuple\"]\n");
    let topology = parse(&text).unwrap();
    let own = |key: &str, text: &str| (key.to_string(), text.to_string());
    let settings = [own("dispatch", "deferred"), own("proto.ip.full", "ecn"), own("rss.hash", "2-tuple")];
    let expected = [WireDispatch { ports: [0, 1], settings: settings.into() }];
    assert_eq!(again(&topology).plan.unwrap().dispatched, expected);
    let plan = topology.plan.unwrap();
    assert_eq!((&plan.dispatched[..], plan.links.len()), (&expected[..], 1));
    let refused = |wire: &str, told: &str| {
        let all = parse(&format!("{TWO}{wire}")).unwrap_err();
        assert!(all.len() == 1 && all[0].contains(told), "{all:?}");
    };
    refused(&format!("{wire}dispatch = \"later\"\n"), "unknown mode `later`");
    refused(&format!("{wire}set = [\"rss.hash=2-tuple\"]\n"), "write dispatch too");
    refused(&format!("{wire}dispatch = \"direct\"\nset = [\"maxthreads=2\"]\n"), "give `weir up` --workers");
    refused(&format!("{wire}dispatch = \"direct\"\nset = [\"rss.hush=2\"]\n"), "no such key");
    refused(
        "[[epair]]\nname = \"e\"\n[[wire]]\nports = [\"a\", \"ea\"]\ndispatch = \"direct\"\n[[wire]]\nports = [\"b\", \"eb\"]\n",
        "a wire of two ports, and this has an end of an epair",
    );
}

#[test]
fn packets_may_wait_for_an_esp() {
    let esp = "[[esp]]\nname = \"gw\"\ninside = \"a\"\noutside = \"b\"\naddress = [\"192.0.2.1\"]\n";
    for (keys, mode, queue_packets, sealers) in [
        ("", Mode::Direct, 256, 0),
        ("dispatch = \"hybrid\"\n", Mode::Hybrid, 256, 0),
        ("dispatch = \"deferred\"\nqueue_packets = 8192\n", Mode::Deferred, 8192, 0),
        ("dispatch = \"deferred\"\nsealers = 3\n", Mode::Deferred, 256, 3),
    ] {
        let topology = parse(&format!("{TWO}{esp}{keys}")).unwrap();
        for topology in [&topology, &again(&topology)] {
            let StageKind::Esp(plan) = &topology.plan.as_ref().unwrap().stages[0].kind else {
                panic!("no esp")
            };
            let told = &plan.dispatch;
            let told = (told.mode, told.queue_packets, told.sealers);
            assert_eq!(told, (mode, queue_packets, sealers), "{keys}");
        }
        let workers_max = match (mode, sealers) {
            (Mode::Direct, _) => 1,
            (_, 0) => 3,
            _ => 2 + usize::from(sealers),
        };
        assert_eq!(topology.plan.unwrap().workers_max(), workers_max, "{keys}");
    }
    for (keys, why) in [
        ("sealers = 2\n", "write dispatch = \"deferred\" too"),
        ("dispatch = \"deferred\"\nsealers = 0\n", "an esp has 1 to 16 sealers"),
        ("dispatch = \"deferred\"\nsealers = 17\n", "an esp has 1 to 16 sealers"),
    ] {
        let all = parse(&format!("{TWO}{esp}{keys}")).unwrap_err();
        assert!(all.len() == 1 && all[0].contains(why), "{all:?}");
    }
}

#[test]
fn limits_in_place_go_on_beside_ports() {
    let limit = "[[limit]]\ndevice = \"veth-c\"\nrate = \"10mbit\"\n";
    assert!(parse(limit).unwrap().plan.is_none());
    let both = parse(&format!("{limit}{TWO}[[wire]]\nports = [\"a\", \"b\"]\n")).unwrap();
    assert_eq!(both.counts().map(|(number, _)| number), [2, 0, 0, 0, 0, 1]);
    assert!(both.plan.is_some());
    let unnamed = read("a b.toml", limit, "", |path| Err(path.into())).unwrap();
    assert_eq!(unnamed.name, "a b", "which nothing is called by");
}

#[test]
fn epairs_are_links_between_what_their_ends_are_joined_to() {
    let text = format!(
        "{TWO}[[epair]]\nname = \"e0\"\n[[epair]]\nname = \"e1\"\n[[epair]]\nname = \"e2\"\n\
         [[router]]\nname = \"gw\"\n[[router.interface]]\nport = \"e2a\"\naddress = [\"10.0.0.1/24\"]\n\
         [[bridge]]\nname = \"lan\"\nports = [\"b\", \"e0b\", \"e2b\"]\n[[wire]]\nports = [\"a\", \"e1a\"]\n[[wire]]\nports = [\"e1b\", \"e0a\"]\n"
    );
    let topology = parse(&text).unwrap();
    let plan = topology.plan.as_ref().unwrap();
    let names: Vec<_> = plan.stages.iter().map(|stage| stage.name.as_str()).collect();
    assert_eq!(names, ["gw", "lan"], "in the order of the file");
    let expected = [
        [Attachment::Port(0), Attachment::Stage(1, 1)],
        [Attachment::Port(1), Attachment::Stage(1, 0)],
        [Attachment::Stage(0, 0), Attachment::Stage(1, 2)],
    ];
    assert_eq!(plan.links, expected);
    assert!(matches!(
        plan.stages[1].kind,
        StageKind::Bridge { ports: 3, stations_max: 4096, ageing_ns: AGEING_NS }
    ));
    assert_eq!(again(&topology).plan.unwrap().links, expected);
}

#[test]
fn a_router_has_what_its_tables_say() {
    let text = format!(
        "{TWO}[[router]]\nname = \"gw\"\n[[router.interface]]\nport = \"a\"\naddress = [\"10.0.0.1/24\", \"fd00::1/64\"]\nmtu = 9000\n\
         [[router.interface]]\nport = \"b\"\naddress = [\"10.0.1.1/24\"]\nmac = \"02:00:00:00:00:01\"\n\
         [[router.route]]\nto = \"default\"\nvia = \"10.0.1.254\"\n[[router.route]]\nto = \"::/0\"\nvia = \"fe80::1\"\nport = \"a\"\n\
         [[router.route]]\nto = \"10.9.0.0/16\"\nport = \"b\"\n\
         [[router.neighbour]]\naddress = \"10.0.0.9\"\nmac = \"02:00:00:00:00:09\"\n\
         [[router.neighbour]]\naddress = \"10.9.1.2\"\nmac = \"02:00:00:00:00:0a\"\n\
         [[router.neighbour]]\naddress = \"10.9.1.3\"\nmac = \"02:00:00:00:00:0b\"\nport = \"b\"\n"
    );
    let topology = parse(&text).unwrap();
    let plan = topology.plan.as_ref().unwrap();
    let gw = router(&plan.stages[0]);
    assert_eq!(gw.interfaces.iter().map(|own| own.mtu_bytes).collect::<Vec<_>>(), [9000, 1500]);
    assert_eq!(gw.interfaces[1].mac, EthernetAddress([2, 0, 0, 0, 0, 1]));
    let routes =
        gw.routes.iter().map(|route| (route.destination.to_string(), route.interface, route.gateway));
    let address = |text: &str| text.parse().ok();
    let expected = [
        ("0.0.0.0/0".to_string(), 1, address("10.0.1.254")),
        ("::/0".into(), 0, address("fe80::1")),
        ("10.9.0.0/16".into(), 1, None),
    ];
    assert_eq!(routes.collect::<Vec<_>>(), expected);
    let neighbours = gw.neighbours.iter().map(|neighbour| (neighbour.interface, neighbour.mac.0[5]));
    assert_eq!(neighbours.collect::<Vec<_>>(), [(0, 9), (1, 10), (1, 11)]);
    assert_eq!(gw.neighbours_max, 1024 + 3);
    assert!(weir_core::net::route::RouteTable::compile(&gw.interfaces, &gw.routes).is_ok());
    assert_eq!(router(&again(&topology).plan.unwrap().stages[0]), gw);
}

/// Whichever of the two routes is first in the file, and with the port or without it.
#[test]
fn a_gateway_may_be_on_a_route_on_the_link() {
    let router_of = format!(
        "{TWO}[[router]]\nname = \"gw\"\n[[router.interface]]\nport = \"a\"\naddress = [\"10.0.0.1/24\"]\n\
         [[router.interface]]\nport = \"b\"\naddress = [\"10.0.1.1/24\"]\n"
    );
    let on_link = "[[router.route]]\nto = \"203.0.113.0/24\"\nport = \"b\"\n";
    let by_gateway = "[[router.route]]\nto = \"default\"\nvia = \"203.0.113.1\"\n";
    for routes in [
        format!("{on_link}{by_gateway}"),
        format!("{by_gateway}{on_link}"),
        format!("{on_link}{by_gateway}port = \"b\"\n"),
    ] {
        let topology = parse(&format!("{router_of}{routes}")).unwrap();
        let gw = router(&topology.plan.as_ref().unwrap().stages[0]);
        let default = gw.routes.iter().find(|route| route.gateway.is_some()).unwrap();
        assert_eq!((default.interface, default.gateway), (1, "203.0.113.1".parse().ok()));
        assert_eq!(router(&again(&topology).plan.unwrap().stages[0]), gw);
    }
    let told = parse(&format!("{router_of}{on_link}{by_gateway}port = \"a\"\n")).unwrap_err();
    assert!(told[0].contains("203.0.113.1 is on no network of this port"), "{told:?}");
    let between = "[[router.route]]\nto = \"203.0.113.1\"\nvia = \"10.0.0.254\"\n";
    let told = parse(&format!("{router_of}{on_link}{between}{by_gateway}")).unwrap_err();
    assert!(told[0].contains("another route leads to 203.0.113.1 by a router"), "{told:?}");
}

#[test]
fn a_mac_is_the_same_at_each_start_and_other_elsewhere() {
    let text = format!(
        "{TWO}[[wire]]\nports = [\"b\", \"e0a\"]\n[[epair]]\nname = \"e0\"\n[[router]]\nname = \"gw\"\n\
         [[router.interface]]\nport = \"a\"\naddress = [\"10.0.0.1/24\"]\n[[router.interface]]\nport = \"e0b\"\naddress = [\"10.0.1.1/24\"]\n"
    );
    let macs = |machine_id: &str| {
        let plan = parse_at(machine_id, &text).unwrap().plan.unwrap();
        router(&plan.stages[0]).interfaces.iter().map(|own| own.mac).collect::<Vec<_>>()
    };
    let own = macs("4711");
    assert_eq!(own, macs("4711"));
    assert!(own[0] != own[1] && macs("4712").iter().all(|mac| !own.contains(mac)));
}

#[test]
fn classes_of_a_port_are_those_of_a_wire() {
    let text = format!(
        "{}rate = \"100mbit\"\nshaper = \"cbq\"\ndefault = \"free\"\n[[port.class]]\nname = \"x\"\nrate = \"10mbit\"\nbounded = true\n\
         full = \"ecn\"\nmax_wait = \"50ms\"\nqueue = \"7ms\"\nquantum = \"3kb\"\npriority = 3\n[[port.filter]]\ninterface = \"veth-a\"\n\
         to = [\"10.0.0.0/8\", \"fd00::/8\"]\nto_ports = [80, \"90-99\"]\nclass = \"x\"\n[[wire]]\nports = [\"a\", \"b\"]\n",
        TWO
    );
    let topology = parse(&text).unwrap();
    let of = |topology: &Topology| topology.plan.as_ref().unwrap().ports[1].classes.clone().unwrap();
    let classes = of(&topology);
    assert_eq!(classes.classifier.rules().len(), 4);
    assert!(classes.classifier.rules().iter().all(|rule| rule.conditions.interface == Some(0)));
    assert_eq!(format!("{classes:?}"), format!("{:?}", of(&again(&topology))));
    let beside =
        parse(&format!("{TWO}classes_file = \"o.toml\"\n[[wire]]\nports = [\"a\", \"b\"]\n")).unwrap();
    assert_eq!(of(&beside).classes.len(), 1);
}

#[test]
fn classes_that_are_guaranteed_more_than_their_port_are_warned_of() {
    let class = |name: &str| format!("[[port.class]]\nname = \"{name}\"\nrate = \"60mbit\"\n");
    let port =
        format!("interface = \"veth-b\"\nrate = \"100mbit\"\ndefault = \"x\"\n{}{}", class("x"), class("y"));
    let text = TWO.replacen("interface = \"veth-b\"\nname = \"b\"\n", &port, 1);
    let wire = "[[port.filter]]\nclass = \"y\"\nto_ports = 80\n[[wire]]\nports = [\"a\", \"veth-b\"]\n";
    let told = parse(&format!("{text}{wire}")).unwrap().warnings;
    let sentence = "etc/office.toml:6:8: the classes without a parent have 120mbit together, more than the limit of 100mbit: not all can \
                    have it at once; lower theirs or raise this\n";
    assert!(told.len() == 1 && told[0].starts_with(sentence), "{told:?}");
    let fits = text.replacen("100mbit", "120mbit", 1);
    assert_eq!(parse(&format!("{fits}{wire}")).unwrap().warnings, Vec::<String>::new());
}

#[test]
fn warnings_are_told_in_the_order_of_the_file() {
    let port = "name = \"b\"\nrate = \"1mbit\"\n[[port.class]]\nname = \"x\"\nrate = \"2mbit\"\n[[port.filter]]\nclass = \"x\"\n";
    let text = TWO.replacen("name = \"b\"\n", port, 1);
    let rest = "[[wire]]\nports = [\"a\", \"b\"]\n[[limit]]\ndevice = \"veth-c\"\nrate = \"1gbit\"\nburst = \"3kb\"\n";
    let told = parse(&format!("{text}{rest}")).unwrap().warnings;
    let lines = told.iter().map(|told| told.split(':').nth(1).unwrap().parse().unwrap());
    let lines: Vec<usize> = lines.collect();
    assert!(lines.len() == 2 && lines[0] < lines[1], "{told:#?}");
}

#[test]
fn a_policy_that_never_matches_is_warned_of() {
    let esp = "[[esp]]\nname = \"gw\"\ninside = \"a\"\noutside = \"b\"\naddress = [\"192.0.2.1\"]\n";
    let policy = |keys: &str| format!("[[policy]]\ndirection = \"out\"\n{keys}\naction = \"bypass\"\n");
    let warned = |first: &str, second: &str| {
        parse(&format!("{TWO}{esp}{}{}", policy(first), policy(second))).unwrap().warnings
    };
    let net = "from = \"10.1.0.0/16\"";
    let ports = |ports: &str| format!("{net}\nprotocol = \"tcp\"\nto_ports = \"{ports}\"");
    for (first, second) in [
        (net, net),
        ("", net),
        (net, "from = \"10.1.7.0/24\"\nto = \"10.2.0.0/16\""),
        (net, &ports("80")),
        (&ports("80-90"), &ports("81-90")),
    ] {
        let warnings = warned(first, second);
        let [warning] = &warnings[..] else { panic!("{first} {second}: {warnings:?}") };
        assert!(
            warning.contains("this policy never matches: the one with the action in line 1"),
            "{warning}"
        );
    }
    for (first, second) in [
        (net, "from = \"10.0.0.0/8\""),
        (net, ""),
        (&ports("80"), net),
        (&ports("80-90"), &ports("81-91")),
        (&ports("80"), "from = \"10.1.0.0/16\"\nprotocol = \"udp\"\nto_ports = 80"),
        ("from = \"fd00::/8\"", net),
        ("direction = \"in\"", net),
    ] {
        let text = format!("{TWO}{esp}{}{}", policy(first), policy(second));
        let text = text.replace("direction = \"out\"\ndirection = \"in\"", "direction = \"in\"");
        assert_eq!(parse(&text).unwrap().warnings, Vec::<String>::new(), "{first} {second}");
    }
}

#[test]
fn networks_within_each_other_are_warned_of() {
    let text = format!(
        "{TWO}[[router]]\nname = \"gw\"\n[[router.interface]]\nport = \"a\"\naddress = [\"10.0.0.1/24\"]\n\
         [[router.interface]]\nport = \"b\"\naddress = [\"10.0.0.129/25\"]\n"
    );
    let topology = parse(&text).unwrap();
    let [warning] = &topology.warnings[..] else { panic!("{:?}", topology.warnings) };
    assert!(warning.contains(":14:12: 10.0.0.128/25 lies in 10.0.0.0/24 of interface a"), "{warning}");
}

#[test]
fn stages_that_no_port_leads_to_are_warned_of_once() {
    let text = format!(
        "{TWO}[[wire]]\nports = [\"a\", \"b\"]\n[[epair]]\nname = \"e\"\n\
         [[router]]\nname = \"gw\"\n[[router.interface]]\nport = \"ea\"\naddress = [\"10.0.0.1/24\"]\n\
         [[router]]\nname = \"on\"\n[[router.interface]]\nport = \"eb\"\naddress = [\"10.0.0.2/24\"]\n"
    );
    let warnings = parse(&text).unwrap().warnings;
    let [warning] = &warnings[..] else { panic!("{warnings:?}") };
    assert!(warning.starts_with("etc/office.toml:12:8: no port leads to the router \"gw\""), "{warning}");
}

#[test]
fn an_address_is_one_interfaces_on_a_link_and_may_be_anothers_elsewhere() {
    let router = |name: &str, port: &str, address: &str| {
        format!(
            "[[router]]\nname = \"{name}\"\n[[router.interface]]\nport = \"{port}\"\naddress = [\"{address}\"]\n\
             mac = \"02:00:00:00:00:01\"\n"
        )
    };
    let both = router("x", "a", "10.0.0.1/24") + &router("y", "b", "10.0.0.1/24");
    assert!(parse(&format!("{TWO}{both}")).is_ok(), "two links");
    let bridged = "[[bridge]]\nname = \"lan\"\nports = [\"a\", \"b\", \"e0a\", \"e1a\"]\n[[epair]]\nname = \"e0\"\n[[epair]]\nname = \"e1\"\n";
    let both = router("x", "e0b", "10.0.0.1/24") + &router("y", "e1b", "10.0.0.1/16");
    let told = parse(&format!("{TWO}{bridged}{both}")).unwrap_err();
    assert_eq!(told.len(), 2, "{told:#?}");
    assert!(
        told[0].contains(":24:12: router \"x\" has the address 10.0.0.1 on the same link, in line 18"),
        "{told:#?}"
    );
    assert!(told[1].contains(":25:7: router \"x\" has the MAC 02:00:00:00:00:01"), "{told:#?}");
}

#[test]
fn what_is_wrong_is_told_at_once_and_hides_nothing() {
    let text = format!(
        "{TWO}rate = \"fast\"\n[[wire]]\nports = [\"a\", \"bb\"]\n[[bridge]]\nname = \"lan\"\nports = [\"b\"]\nageing = \"1\"\n\
         [[router]]\nname = \"a\"\n"
    );
    let told = parse(&text).unwrap_err();
    let lines: Vec<_> = told.iter().map(|told| told.split(':').nth(1).unwrap()).collect();
    assert_eq!(lines, ["7", "9", "12", "13", "15", "15"], "{told:#?}");
    assert!(
        told[1].contains("there is no port or end of an epair \"bb\"; did you mean \"b\"?"),
        "{}",
        told[1]
    );
    // Names that a table may have which could not be read are not missed.
    let told = parse(&text.replace("name = \"b\"\n", "nmae = \"bb\"\n")).unwrap_err();
    assert!(!told.iter().any(|told| told.contains("there is no port")), "{told:#?}");
}

#[test]
fn a_circle_of_bridges_is_told_with_all_that_is_in_it() {
    let bridge = |name: &str, ports: &str| format!("[[bridge]]\nname = \"{name}\"\nports = [{ports}]\n");
    let epairs: String = (0..4).map(|number| format!("[[epair]]\nname = \"e{number}\"\n")).collect();
    let text = format!(
        "{TWO}{epairs}{}{}{}",
        bridge("x", "\"a\", \"e0a\", \"e3a\", \"e2b\""),
        bridge("y", "\"b\", \"e0b\", \"e1a\""),
        bridge("z", "\"e1b\", \"e2a\", \"e3b\"")
    );
    let told = parse(&text).unwrap_err();
    assert_eq!(told.len(), 2, "{told:#?}");
    assert!(told[0].contains("epairs e0, e1 and e2 join the bridges x, y and z in a circle"), "{}", told[0]);
    // Routers may stand in one.
    let router = |name: &str, one: &str, other: &str, net: u8| {
        format!(
            "[[router]]\nname = \"{name}\"\n[[router.interface]]\nport = \"{one}\"\naddress = [\"10.{net}.0.1/24\"]\n\
             [[router.interface]]\nport = \"{other}\"\naddress = [\"10.{net}.1.1/24\"]\n"
        )
    };
    let two: String = (0..2).map(|number| format!("[[epair]]\nname = \"e{number}\"\n")).collect();
    let text = format!(
        "{TWO}[[wire]]\nports = [\"a\", \"b\"]\n{two}{}{}",
        router("r", "e0a", "e1a", 1),
        router("s", "e0b", "e1b", 2)
    );
    assert_eq!(plan(&text).links.len(), 3);
}

#[test]
fn the_examples_are_right() {
    for (name, ports, stages, links) in
        [("bridge.toml", 2, 1, 2), ("router.toml", 5, 3, 7), ("nested.toml", 2, 3, 4)]
    {
        let text = example(name);
        let topology = read(name, &text, "", |path| Err(path.into()))
            .unwrap_or_else(|told| panic!("{}", told.join("\n")));
        assert_eq!(topology.warnings, Vec::<String>::new());
        let plan = topology.plan.as_ref().unwrap();
        assert_eq!((plan.ports.len(), plan.stages.len(), plan.links.len()), (ports, stages, links));
        assert_eq!(format!("{:?}", again(&topology).plan.unwrap()), format!("{plan:?}"));
    }
}

#[test]
fn a_router_of_an_example_sends_what_its_tunnel_takes() {
    for name in ["gateway.toml", "gateway-peer.toml", "nested.toml"] {
        let topology = read(name, &example(name), "", |path| Err(path.into()))
            .unwrap_or_else(|told| panic!("{}", told.join("\n")));
        let plan = topology.plan.as_ref().unwrap();
        let both_ways = plan.links.iter().flat_map(|&[one, other]| [[one, other], [other, one]]);
        let fitting = both_ways.filter(|ends| {
            let [Attachment::Stage(before, place), Attachment::Stage(tunnel, INSIDE)] = *ends else {
                return false;
            };
            let (StageKind::Router(router), StageKind::Esp(esp)) =
                (&plan.stages[before].kind, &plan.stages[tunnel].kind)
            else {
                return false;
            };
            let mtu_bytes = usize::from(router.interfaces[place as usize].mtu_bytes);
            assert_eq!(Some(mtu_bytes), esp_mtu::longest_inside(esp), "{name}");
            true
        });
        assert_eq!(fitting.count(), 1, "{name}");
    }
}
