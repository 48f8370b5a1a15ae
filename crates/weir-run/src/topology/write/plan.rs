//! A plan, as a topology file that says the same.
//!
//! Rule: a file that is written is read again as the same plan, with links in the order in which a file has them, first end first. A value
//! that is the default is left out, but for MACs, which another machine would derive otherwise. A link between two stages becomes an epair.
//!
//! Limits: a file cannot say a queue in bytes, shares of flows in filters and other settings of a router than those in
//! tables, and an ESP that drops where its queue is full; they are left out.

use std::collections::BTreeSet;

use smoltcp::wire::EthernetAddress;
use toml::Spanned;
use weir_core::classify::Target;
use weir_core::dispatch::protocol::Mode;
use weir_core::net::bridge::AGEING_NS;
use weir_core::net::route::Route;
use weir_core::net::router::RouterSettings;
use weir_core::rate::Rate;
use weir_core::shaper::backlog::FullPolicy;
use weir_core::shaper::tbf::Limit;
use weir_core::units::{size_text, time_text};
use weir_ipsec::keepalive::EVERY_NS_DEFAULT;
use weir_ipsec::lifetime::Limits;
use weir_path::classes::{
    ClassConfig, Classes, FREE, QUEUE_NS_DEFAULT, TreeKind, quantum_bytes_default, queue_ns_default,
};
use weir_path::esp::plan::{AssociationPlan, EspDispatch, EspPlan, PolicyVerb};
use weir_path::esp::{INSIDE, OUTSIDE};
use weir_path::plan::{Attachment, Plan, PortPlan, StageKind, StagePlan, WireDispatch};

use super::super::associations::{DIRECTIONS, DONT_FRAGMENT, KEEPALIVE_OFF, MODES, WINDOW_DEFAULT};
use super::super::dispatched::MODE;
use super::super::mac;
use super::super::names::end_name;
use super::super::routers::MTU_DEFAULT;
use super::super::routes::nearest;
use super::super::stages::STATIONS_DEFAULT;
use super::super::tables::{
    AssociationTable, BridgeTable, EpairTable, EspTable, InterfaceTable, LifetimeTable, NeighbourTable,
    PolicyTable, PortTable, RouterTable, StaticRouteTable, Texts, TopologyFile, WireTable,
};
use super::{filter_tables, ports, spanned, text};
use crate::classes::file::{ClassTable, Word};
use crate::limits::burst_bytes_default;

/// The text of a file with this plan. `ports` has the name of each port, in the order of the plan.
pub fn write(name: &str, ports: &[&str], plan: &Plan) -> String {
    let called =
        |port: usize| ports.get(port).copied().or(plan.ports.get(port).map(|port| port.interface.as_str()));
    let called = |port: usize| called(port).unwrap_or_default().to_string();
    let mut first = TopologyFile { name: Some(spanned(name.into())), ..TopologyFile::default() };
    first.ports =
        (0..).zip(&plan.ports).map(|(place, port)| port_table(port, called(place), called)).collect();
    let mut taken: BTreeSet<String> = (0..plan.ports.len()).map(called).collect();
    taken.extend(plan.stages.iter().map(|stage| stage.name.clone()));
    // By stage and number, the name that is joined to each of its ports.
    let mut at: Vec<Vec<String>> =
        plan.stages.iter().map(|stage| vec![String::new(); ports_of(stage)]).collect();
    let mut put = |stage: usize, number: u16, name: String| {
        if let Some(place) = at.get_mut(stage).and_then(|ports| ports.get_mut(usize::from(number))) {
            *place = name;
        }
    };
    let mut number = 0;
    for link in &plan.links {
        match *link {
            [Attachment::Port(one), Attachment::Port(other)] => {
                let ports = [one, other].map(|port| spanned(called(port))).into();
                let dispatched =
                    plan.dispatched.iter().find(|of| of.ports == [one, other] || of.ports == [other, one]);
                first.wires.push(wire_table(spanned(ports), dispatched));
            }
            [Attachment::Port(port), Attachment::Stage(stage, number)]
            | [Attachment::Stage(stage, number), Attachment::Port(port)] => put(stage, number, called(port)),
            [Attachment::Stage(one, one_number), Attachment::Stage(other, other_number)] => {
                let ends = loop {
                    let ends = [false, true].map(|is_b| end_name(&format!("e{number}"), is_b));
                    if ends.iter().all(|end| !taken.contains(end)) {
                        break ends;
                    }
                    number += 1;
                };
                first.epairs.push(EpairTable { name: spanned(format!("e{number}")) });
                number += 1;
                let [one_end, other_end] = ends;
                put(one, one_number, one_end);
                put(other, other_number, other_end);
            }
        }
    }
    let stages = plan.stages.iter().zip(at).map(|(stage, at)| text(&stage_table(stage, &at)));
    std::iter::once(text(&first)).chain(stages).collect::<Vec<_>>().join("\n")
}

/// The tables of an ESP alone: its name, and the ports inside and outside, without which only its associations and policies.
pub fn write_esp(name: &str, ends: Option<[&str; 2]>, plan: &EspPlan) -> String {
    // The ends are in the order of the stage's ports: `INSIDE`, `OUTSIDE`.
    let at = ends.map_or_else(Vec::new, |ends| ends.map(String::from).into());
    let mut file = TopologyFile::default();
    esp_tables(&mut file, spanned(name.into()), plan, &at);
    if ends.is_none() {
        file.esps.clear();
    }
    text(&file)
}

fn wire_table(ports: Texts, dispatched: Option<&WireDispatch>) -> WireTable {
    let mut table = WireTable { ports, dispatch: None, set: None };
    for (key, text) in dispatched.iter().flat_map(|of| &of.settings) {
        match key == MODE {
            true => table.dispatch = Some(spanned(text.clone())),
            false => {
                let set = table.set.get_or_insert_with(|| spanned(Vec::new()));
                set.get_mut().push(spanned(format!("{key}={text}")));
            }
        }
    }
    table
}

fn ports_of(stage: &StagePlan) -> usize {
    usize::from(stage.kind.ports())
}

fn port_table(port: &PortPlan, name: String, called: impl Fn(usize) -> String) -> PortTable {
    let limits = port.limits.as_ref();
    let classes = port.classes.as_deref();
    let queue = limits.filter(|_| classes.is_none()).and_then(|limits| match limits.limit {
        Limit::TimeNs(time_ns) if time_ns != QUEUE_NS_DEFAULT => Some(spanned(time_text(time_ns))),
        _ => None,
    });
    PortTable {
        at: 0..0,
        interface: spanned(port.interface.clone()),
        name: (name != port.interface).then(|| spanned(name)),
        rate: limits.map(|limits| spanned(limits.rate.to_string())),
        burst: limits.and_then(|limits| burst(limits.rate, limits.burst_bytes)),
        queue,
        optional: port.is_optional.then(|| spanned(true)),
        classes_file: None,
        shaper: classes.filter(|classes| classes.kind == TreeKind::Cbq).map(|_| spanned("cbq".into())),
        default: classes.map(|classes| spanned(name_of(classes, classes.classifier.otherwise()))),
        class: classes.iter().flat_map(|of| of.classes.iter().map(|class| class_table(of, class))).collect(),
        filter: classes.map_or_else(Vec::new, |classes| {
            let interface = |number| Some(called(usize::from(number)));
            filter_tables(&classes.classifier, |target| name_of(classes, target), interface)
        }),
    }
}

fn burst(rate: Rate, bytes: u64) -> Option<Spanned<String>> {
    (bytes != burst_bytes_default(rate)).then(|| spanned(size_text(bytes)))
}

pub(super) fn name_of(classes: &Classes, target: Target) -> String {
    let class = match target {
        Target::Class(place) => classes.classes.get(usize::from(place)),
        Target::Free => None,
    };
    class.map_or(FREE, |class| &class.name).into()
}

pub(super) fn class_table(classes: &Classes, class: &ClassConfig) -> ClassTable {
    let is_htb = classes.kind == TreeKind::Htb;
    let leaf = class.leaf;
    let full = leaf.and_then(|leaf| match leaf.rule.when_full {
        FullPolicy::Block => None,
        FullPolicy::Ecn(_) => Some("ecn"),
        FullPolicy::Drop(_) => Some("drop"),
    });
    let queue = leaf.filter(|leaf| leaf.queue_ns != queue_ns_default(leaf.rule.when_full));
    ClassTable {
        name: spanned(class.name.clone()),
        parent: class.parent.map(|place| spanned(classes.classes[place].name.clone())),
        rate: spanned(class.rate.to_string()),
        ceil: (is_htb && class.ceil != class.rate).then(|| spanned(class.ceil.to_string())),
        burst: burst(class.rate, class.burst_bytes),
        cburst: burst(class.ceil, class.cburst_bytes).filter(|_| is_htb),
        bounded: class.bounded.then(|| spanned(true)),
        quantum: (class.quantum_bytes != quantum_bytes_default(class.rate))
            .then(|| spanned(size_text(class.quantum_bytes.into()))),
        priority: leaf
            .map(|leaf| leaf.priority)
            .filter(|priority| *priority > 0)
            .map(|priority| spanned(priority.into())),
        full: full.map(|full| spanned(full.into())),
        max_wait: leaf.and_then(|leaf| leaf.rule.max_wait_ns).map(|time_ns| spanned(time_text(time_ns))),
        queue: queue.map(|leaf| spanned(time_text(leaf.queue_ns))),
    }
}

fn stage_table(stage: &StagePlan, at: &[String]) -> TopologyFile {
    let name = spanned(stage.name.clone());
    let mut file = TopologyFile::default();
    match &stage.kind {
        StageKind::Bridge { stations_max, ageing_ns, .. } => file.bridges.push(BridgeTable {
            at: 0..0,
            name,
            ports: texts(at.iter().cloned()),
            stations_max: (*stations_max != STATIONS_DEFAULT).then(|| spanned(*stations_max as i64)),
            ageing: (*ageing_ns != AGEING_NS).then(|| spanned(time_text(*ageing_ns))),
        }),
        StageKind::Router(router) => file.routers.push(router_table(name, router, at)),
        // No file asks for such a stage.
        StageKind::Dispatch(_) | StageKind::Sealer => {}
        StageKind::Esp(plan) => esp_tables(&mut file, name, plan, at),
    }
    file
}

fn esp_tables(file: &mut TopologyFile, name: Spanned<String>, plan: &EspPlan, at: &[String]) {
    let port = |place: u16| at.get(usize::from(place)).cloned().unwrap_or_default();
    let word = |words: &[(&str, bool)], value: bool| {
        let word = words.iter().find(|(_, means)| *means == value).map_or("", |(word, _)| word);
        spanned(word.to_string())
    };
    let esp = || Some(name.clone());
    file.associations = plan
        .associations
        .iter()
        .map(|association| AssociationTable {
            name: spanned(association.name.clone()),
            esp: esp(),
            direction: word(&DIRECTIONS, association.is_inbound),
            spi: spanned(association.spi.into()),
            source: spanned(association.source.to_string()),
            destination: spanned(association.destination.to_string()),
            mode: (!association.is_tunnel).then(|| word(&MODES, false)),
            algorithm: spanned(association.algorithm.name().into()),
            key_file: association.key_file.clone().map(spanned),
            extended: association.is_extended.then_some(true),
            window: (association.window != WINDOW_DEFAULT).then(|| spanned(association.window.into())),
            udp_ports: association.udp_ports.map(spanned),
            keepalive: keepalive(association).map(spanned),
            follow_peer: association.follows_peer.then(|| spanned(true)),
            dont_fragment: DONT_FRAGMENT
                .iter()
                .skip(1)
                .find(|(_, value)| *value == association.dont_fragment)
                .map(|(word, _)| spanned((*word).to_string())),
            soft: lifetime_table(&association.lifetime.soft),
            hard: lifetime_table(&association.lifetime.hard),
        })
        .collect();
    let written = |text: Option<String>| text.map(|text| spanned(Word(text)));
    let prefix = |prefix: weir_ipsec::policy::AddressPrefix| {
        let (address, len) = prefix.parts();
        Some(spanned(format!("{address}/{len}")))
    };
    file.policies = plan
        .policies
        .iter()
        .map(|policy| PolicyTable {
            esp: esp(),
            direction: word(&DIRECTIONS, policy.is_inbound),
            from: prefix(policy.selector.source),
            to: prefix(policy.selector.destination),
            protocol: written(policy.selector.protocol.map(|number| number.to_string())),
            from_ports: written(ports(&policy.selector.source_ports)),
            to_ports: written(ports(&policy.selector.destination_ports)),
            action: spanned(
                PolicyVerb::ALL
                    .iter()
                    .find(|(_, verb)| *verb == policy.verb)
                    .map_or("", |(word, _)| word)
                    .to_string(),
            ),
            sa: policy.associations.iter().cloned().map(spanned).collect(),
        })
        .collect();
    let waits = Some(plan.dispatch).filter(|of| of.mode != Mode::Direct);
    file.esps.push(EspTable {
        at: 0..0,
        inside: spanned(port(INSIDE)),
        outside: spanned(port(OUTSIDE)),
        address: texts(plan.addresses.iter().map(ToString::to_string)),
        mtu: (plan.mtu_bytes != MTU_DEFAULT).then(|| spanned(plan.mtu_bytes.into())),
        dispatch: waits.map(|of| spanned(of.mode.name().into())),
        queue_packets: waits
            .filter(|of| of.queue_packets != EspDispatch::QUEUE_PACKETS_DEFAULT)
            .map(|of| spanned(of.queue_packets.into())),
        sealers: waits.filter(|of| of.sealers > 0).map(|of| spanned(of.sealers.into())),
        name,
    });
}

/// The keepalive of an association; none where it is the default.
fn keepalive(association: &AssociationPlan) -> Option<String> {
    let is_sender = !association.is_inbound && association.udp_ports.is_some();
    match association.keepalive_ns {
        Some(EVERY_NS_DEFAULT) => None,
        every_ns => is_sender.then(|| every_ns.map_or_else(|| KEEPALIVE_OFF.into(), time_text)),
    }
}

fn lifetime_table(limits: &Limits) -> LifetimeTable {
    LifetimeTable {
        time: limits.time_ns.map(|time_ns| spanned(time_text(time_ns))),
        bytes: limits.bytes.map(|bytes| spanned(Word(bytes.to_string()))),
        packets: limits.packets,
    }
}

fn router_table(name: Spanned<String>, router: &RouterSettings, at: &[String]) -> RouterTable {
    let port = |interface: u16| at.get(usize::from(interface)).cloned().unwrap_or_default();
    // A port is said where the address alone would not lead there.
    let said = |interface: u16, routes: &[Route], address| {
        (nearest(&router.interfaces, routes, address) != Some(interface)).then(|| spanned(port(interface)))
    };
    let interfaces = (0..).zip(&router.interfaces).map(|(number, interface)| InterfaceTable {
        port: spanned(port(number)),
        address: texts(interface.addresses.iter().map(ToString::to_string)),
        mac: Some(mac_text(interface.mac)),
        mtu: (interface.mtu_bytes != MTU_DEFAULT).then(|| spanned(interface.mtu_bytes.into())),
    });
    let routes = router.routes.iter().map(|route| StaticRouteTable {
        to: spanned(match route.destination.prefix_len() {
            0 if route.gateway.is_some() => "default".into(),
            _ => route.destination.to_string(),
        }),
        via: route.gateway.map(|gateway| spanned(gateway.to_string())),
        port: match route.gateway {
            Some(gateway) => said(route.interface, &router.routes, gateway),
            None => Some(spanned(port(route.interface))),
        },
    });
    let neighbours = router.neighbours.iter().map(|neighbour| NeighbourTable {
        address: spanned(neighbour.address.to_string()),
        mac: mac_text(neighbour.mac),
        port: said(neighbour.interface, &router.routes, neighbour.address),
    });
    RouterTable {
        at: 0..0,
        name,
        interface: interfaces.collect(),
        route: routes.collect(),
        neighbour: neighbours.collect(),
    }
}

fn mac_text(mac: EthernetAddress) -> Spanned<String> {
    spanned(mac::text(mac))
}

fn texts(texts: impl Iterator<Item = String>) -> Spanned<Vec<Spanned<String>>> {
    spanned(texts.map(spanned).collect())
}
