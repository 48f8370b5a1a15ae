//! Plans of paths: any valid plan is written as a topology file that reads back as the same plan.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use smoltcp::wire::{EthernetAddress, IpCidr};
use weir_core::net::bridge::PORTS_MAX;
use weir_core::net::route::{Interface, Route, RouteTable};
use weir_core::net::router::{RouterSettings, StaticNeighbour};
use weir_core::rate::Rate;
use weir_core::shaper::tbf::{Limit, TbfConfig};
use weir_core::shaper::token_bucket::BURST_BYTES_MAX;
use weir_path::classes::QUEUE_NS_DEFAULT;
use weir_path::plan::{Attachment, Plan, PortPlan, StageKind, StagePlan};
use weir_run::classes;
use weir_run::datapath::Kind;
use weir_run::topology::write::plan::write;
use weir_run::topology::{self, routers};

use crate::draw::Draw;

const FILE: &str = "f.toml";

/// A valid plan, drawn from the input.
pub fn plans(bytes: &[u8]) {
    let mut draw = Draw::new(bytes);
    let ports = 1 + draw.below(6);
    let names: Vec<String> =
        (0..ports).map(|port| format!("{}{port}", draw.pick(&["veth-", "e", "\u{e9}."]))).collect();
    let mut plan = Plan::default();
    for name in &names {
        let interface = if draw.flag() { name.clone() } else { format!("i{name}") };
        plan.ports.push(port(&mut draw, interface, &names));
    }
    let stages = draw.below(5);
    for stage in 0..stages {
        let kind = match draw.flag() {
            true => bridge(&mut draw),
            false => StageKind::Router(Box::new(routers::settings())),
        };
        plan.stages.push(StagePlan { name: format!("{}{stage}", draw.pick(&["lan", "x", "gw."])), kind });
    }
    join(&mut draw, &mut plan);
    // A wire needs both its ports.
    if Kind::of(&plan) == Kind::Topology {
        plan.ports.iter_mut().for_each(|port| port.is_optional = draw.rarely(4));
    }
    for (place, stage) in (0..).zip(&mut plan.stages) {
        if let StageKind::Router(router) = &mut stage.kind {
            fill(&mut draw, place, router);
        }
    }
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    look_at_plan("office", &names, &plan);
}

/// Checks that a plan is written and read unchanged, and can be made.
pub fn look_at_plan(name: &str, ports: &[&str], plan: &Plan) {
    let text = write(name, ports, plan);
    let again = topology::read(FILE, &text, "other", |path| Err(path.into()));
    let again = again.unwrap_or_else(|told| panic!("{}\n{text}", told.join("\n")));
    assert_eq!(again.name, name);
    let called: Vec<&str> = again.ports.iter().map(|port| port.name.as_str()).collect();
    assert_eq!(called, ports, "{text}");
    let read = again.plan.unwrap_or_else(|| panic!("{text}"));
    assert_eq!(in_words(&read), in_words(plan), "{text}");
    for stage in &read.stages {
        if let StageKind::Router(router) = &stage.kind {
            RouteTable::compile(&router.interfaces, &router.routes)
                .unwrap_or_else(|why| panic!("{why}\n{text}"));
        }
    }
    let mut joined: Vec<Attachment> = read.links.iter().flatten().copied().collect();
    let all = joined.len();
    joined.sort_by_key(|attachment| key(*attachment));
    joined.dedup();
    let of_stages = read.stages.iter().map(|stage| usize::from(stage.kind.ports()));
    assert_eq!((joined.len(), all), (all, read.ports.len() + of_stages.sum::<usize>()), "{text}");
}

/// All of a plan but the things that were warned of, in the order in which a file has links.
fn in_words(plan: &Plan) -> String {
    let mut plan = plan.clone();
    for link in &mut plan.links {
        link.sort_by_key(|attachment| key(*attachment));
    }
    plan.links.sort_by_key(|link| link.map(key));
    for port in &mut plan.ports {
        if let Some(classes) = &mut port.classes {
            Arc::make_mut(classes).warnings.clear();
        }
    }
    format!("{plan:?}")
}

fn key(attachment: Attachment) -> (bool, usize, u16) {
    match attachment {
        Attachment::Port(port) => (false, port, 0),
        Attachment::Stage(stage, number) => (true, stage, number),
    }
}

fn port(draw: &mut Draw, interface: String, names: &[String]) -> PortPlan {
    let has_classes = draw.rarely(3);
    let rate = Rate::from_bits_per_s(1 + (draw.any_u64() >> 1)).filter(|_| draw.flag());
    let limits = rate.map(|rate| TbfConfig {
        rate,
        burst_bytes: 1514 + draw.any_u64() % (BURST_BYTES_MAX - 1514),
        limit: Limit::TimeNs(if has_classes { QUEUE_NS_DEFAULT } else { 1 + (draw.any_u64() >> 1) }),
    });
    PortPlan {
        interface,
        limits,
        classes: has_classes.then(|| Arc::new(class_tree(draw, names))),
        is_optional: false,
    }
}

/// A tree whose leaves are all reached, read from a file.
fn class_tree(draw: &mut Draw, names: &[String]) -> classes::Classes {
    let is_htb = draw.flag();
    let mut text = format!(
        "shaper = \"{}\"\ndefault = \"{}\"\n",
        if is_htb { "htb" } else { "cbq" },
        draw.pick(&["c0", "free"])
    );
    text += "[[class]]\nname = \"top\"\nrate = \"10gbit\"\n";
    let mut filters = String::new();
    for leaf in 0..1 + draw.below(4) {
        let rate = 1 + draw.any_u64() % 10_000_000_000;
        text += &format!(
            "[[class]]\nname = \"c{leaf}\"\nparent = \"top\"\nrate = \"{rate}bit\"\npriority = {}\n",
            draw.below(8)
        );
        if is_htb {
            text += &format!(
                "ceil = \"{}bit\"\ncburst = \"{}b\"\n",
                rate.saturating_add(draw.any_u64()),
                1514 + u64::from(draw.u32() >> 3)
            );
        }
        if draw.flag() {
            text += &format!("full = \"{}\"\n", draw.pick(&["block", "ecn", "drop"]));
            text += &format!(
                "max_wait = \"{}ns\"\nqueue = \"{}ns\"\n",
                1 + u64::from(draw.u32()),
                1 + u64::from(draw.u32())
            );
            text += &format!(
                "quantum = \"{}b\"\nburst = \"{}b\"\n",
                1514 + u64::from(draw.u16()),
                1514 + u64::from(draw.u32() >> 3)
            );
        }
        filters += &format!(
            "[[filter]]\nclass = \"c{leaf}\"\nto_ports = {}\ndscp = [1, {}]\n",
            draw.u16(),
            draw.u8() % 64
        );
        if draw.flag() {
            filters += &format!("interface = \"{}\"\n", names[draw.below(names.len())]);
        }
    }
    text += &filters;
    let names = (0..).zip(names).map(|(number, name)| (name.as_str(), number)).collect();
    let read = classes::read(FILE, &text, classes::Interfaces::of_ports(names));
    read.unwrap_or_else(|told| panic!("{told}\n{text}"))
}

fn bridge(draw: &mut Draw) -> StageKind {
    let ageing_ns = 1_000_000_000 + draw.any_u64() % 999_999_000_000_000;
    StageKind::Bridge { ports: 0, stations_max: 1 + draw.below(1 << 16), ageing_ns }
}

/// Joins all ports and stages: a tree, so that there is no circle, with a port for each link.
fn join(draw: &mut Draw, plan: &mut Plan) {
    let stages = plan.stages.len();
    let mut links = Vec::new();
    for stage in 1..stages {
        let other = draw.below(stage);
        if is_open(plan, other) {
            links.push([grow(plan, stage), grow(plan, other)]);
        }
    }
    let mut left: Vec<usize> = (0..plan.ports.len()).collect();
    while let Some(port) = left.pop() {
        let stage = draw.below(stages.max(1));
        if stages > 0 && is_open(plan, stage) && (left.is_empty() || draw.flag()) {
            links.push([grow(plan, stage), Attachment::Port(port)]);
        } else if let Some(other) = left.pop() {
            links.push([Attachment::Port(port), Attachment::Port(other)]);
        } else {
            links.push([Attachment::Port(port), more(plan)]);
        }
    }
    // A bridge has two ports, and a router one, at least.
    for stage in 0..stages {
        while is_short(plan, stage) {
            links.push([grow(plan, stage), more(plan)]);
        }
    }
    plan.links = links;
}

/// A router of its own for an end for which nothing else is left.
fn more(plan: &mut Plan) -> Attachment {
    let name = format!("more{}", plan.stages.len());
    plan.stages.push(StagePlan { name, kind: StageKind::Router(Box::new(routers::settings())) });
    grow(plan, plan.stages.len() - 1)
}

fn is_open(plan: &Plan, stage: usize) -> bool {
    !matches!(plan.stages[stage].kind, StageKind::Bridge { ports, .. } if usize::from(ports) == PORTS_MAX)
}

fn is_short(plan: &Plan, stage: usize) -> bool {
    match &plan.stages[stage].kind {
        StageKind::Bridge { ports, .. } => *ports < 2,
        StageKind::Router(router) => router.interfaces.is_empty(),
        StageKind::Dispatch(_) | StageKind::Esp(_) | StageKind::Sealer => unreachable!("none is drawn"),
    }
}

/// Gives a stage one port more.
fn grow(plan: &mut Plan, stage: usize) -> Attachment {
    let number = match &mut plan.stages[stage].kind {
        StageKind::Bridge { ports, .. } => {
            *ports += 1;
            *ports - 1
        }
        StageKind::Router(router) => {
            let mac = EthernetAddress([2; 6]);
            router.interfaces.push(Interface { mac, mtu_bytes: 1500, addresses: Vec::new() });
            router.interfaces.len() as u16 - 1
        }
        StageKind::Dispatch(_) | StageKind::Esp(_) | StageKind::Sealer => unreachable!("none is drawn"),
    };
    Attachment::Stage(stage, number)
}

/// Addresses, routes and neighbours of a router, whose interfaces are there; no other on its links has them.
fn fill(draw: &mut Draw, place: u8, router: &mut RouterSettings) {
    let v4 = |number: u16, host| IpAddr::from(Ipv4Addr::new(10, place, number as u8, host));
    let v6 = |number: u16, host| IpAddr::from(Ipv6Addr::new(0xfd00, 0, place.into(), number, 0, 0, 0, host));
    for (number, interface) in (0..).zip(&mut router.interfaces) {
        let is_v6 = draw.flag();
        let mut mac = draw.array();
        mac[0] = mac[0] & 0xfe | 2;
        mac[4..].copy_from_slice(&[place, number as u8]);
        interface.mac = EthernetAddress(mac);
        interface.mtu_bytes = 1280 + draw.u16() % (65_521 - 1280 + 1);
        interface.addresses.push(IpCidr::new(v4(number, 1).into(), 24));
        if is_v6 {
            interface.addresses.push(IpCidr::new(v6(number, 1).into(), 64));
        }
        let mac = EthernetAddress([2, 0, 0, 0, 0, 9]);
        for (address, fits) in [(v4(number, 9), true), (v6(number, 9), is_v6), (link_local(9), true)] {
            if fits && draw.rarely(3) {
                router.neighbours.push(StaticNeighbour { interface: number, address, mac });
            }
        }
        if draw.flag() {
            let destination = IpCidr::new(Ipv4Addr::new(172, 16, number as u8, 0).into(), 24);
            let gateway = Some(v4(number, 254)).filter(|_| draw.flag());
            router.routes.push(Route { destination, interface: number, gateway });
        }
        if draw.rarely(4) && number == 0 {
            let (any, gateway) = match draw.flag() {
                true => (IpAddr::from(Ipv4Addr::UNSPECIFIED), v4(0, 254)),
                false => (IpAddr::from(Ipv6Addr::UNSPECIFIED), link_local(1)),
            };
            router.routes.push(Route {
                destination: IpCidr::new(any.into(), 0),
                interface: 0,
                gateway: Some(gateway),
            });
        }
    }
    router.neighbours_max += router.neighbours.len();
}

fn link_local(host: u16) -> IpAddr {
    Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, host).into()
}
