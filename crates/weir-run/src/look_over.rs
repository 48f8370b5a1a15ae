//! The look over a datapath before it moves anything: interfaces that cannot be its ports are refused, and facts that its user may not
//! expect are told, a sentence each.
//!
//! Of MTUs a user may not expect that packets which the sender's end lets pass are too long for an end behind it; of limits that
//!
//! ```text
//! a packet of 1514 bytes takes a second or more          rate <= 12.1 kbit/s
//! the queue is shorter than asked for                    rate * queue > packets that fit * 1514 bytes
//! ```
//!
//! Limits: a datapath is looked over as it is opened, and a port that comes later by itself, without its MTU and classes; later changes
//! by `weir set` are not.

use std::collections::HashMap;

use weir_core::rate::Rate;
use weir_core::shaper::tbf::{Limit, TbfConfig};
use weir_core::units::{size_text, time_text};
use weir_path::esp::OUTSIDE;
use weir_path::plan::{Attachment, Plan, PortPlan, StageKind, StagePlan};
use weir_port::PortError;
use weir_port::address;
use weir_port::hooks;
use weir_port::link::{self, Link};
use weir_port::qdisc;

use crate::classes::FRAME_BYTES;
use crate::datapath::Kind;
use crate::stage_mtu::{StageInterface, taken_bytes};

/// A packet that takes so many seconds to pass was hardly meant to.
const PACKET_S_MAX: u64 = 1;

/// Refuses interfaces that cannot be ports together, and finds facts about these that a user may not expect.
///
/// # Errors
/// If they cannot, or the kernel does not tell their properties.
pub fn interfaces(links: &[&Link], kind: Kind, has_classes: bool) -> weir_port::Result<Vec<String>> {
    if let Some([first, second]) = one_pair(links) {
        let instead = match kind {
            Kind::Wire => "a wire joins two pairs",
            Kind::Topology => "take one of the two out of the topology",
        };
        return Err(PortError::Unsuitable {
            name: first.name.clone(),
            why: format!(
                "is the other end of {}, and packets in one pair would go round for ever: {instead}",
                second.name
            ),
        });
    }
    let noun = kind.noun();
    let mut warnings = Vec::new();
    let joints = link::joints()?;
    let waits = if has_classes { "classes and flows wait" } else { "a flow waits" };
    let single: Vec<_> =
        links.iter().filter(|link| link.rx_queues == 1).map(|link| link.name.as_str()).collect();
    if let [first, second, others @ ..] = &single[..]
        && !others.is_empty()
    {
        warnings.push(format!(
            "{first}, {second} and {} more have one queue each, in which {waits} behind all others: make such pairs with numtxqueues 16 \
             numrxqueues 16, at both ends, or `ethtool -L {first} rx 2 tx 2`, also at its other end, where it was made for as many",
            others.len()
        ));
    }
    for link in links {
        if link.rx_queues == 1 && single.len() <= 2 {
            warnings.push(format!(
                "{0} has one queue, in which {waits} behind all others: make the pair with numtxqueues 16 numrxqueues \
                 16, at both ends, or `ethtool -L {0} rx 2 tx 2`, also at its other end, where it was made for as many",
                link.name
            ));
        }
        for address in address::addresses_of(link.ifindex)? {
            warnings.push(format!(
                "{} has the address {address}, which nobody reaches while the {noun} is up: what arrives goes through \
                 the {noun}",
                link.name
            ));
        }
        warnings.extend(passed_by(&link.name, noun, &hooks::at(link)));
        let above = joints.iter().filter(|joint| joint.below == Some(link.ifindex));
        warnings.extend(above.map(|above| {
            format!(
                "{} stands on {}, and hears nothing while the {noun} is up: what arrives goes through the {noun}",
                above.name, link.name
            )
        }));
        let (sender_netns, sender) = link.peer()?;
        let root = sender_netns.run(|| qdisc::root(sender.ifindex))?;
        warnings.extend(put_aside(&sender.name, &root.kind, noun));
    }
    Ok(warnings)
}

/// The warning of a qdisc at a sending end that the queue takes the place of, if it was there to hold packets back.
fn put_aside(name: &str, kind: &str, noun: &str) -> Option<String> {
    matches!(kind, "tbf" | "netem").then(|| {
        format!(
            "{name} has a {kind} qdisc that somebody set, which does nothing until the {noun} ends: give the {noun} the rate, or put the \
             qdisc elsewhere"
        )
    })
}

/// The two of these that are the ends of one pair.
fn one_pair<'a>(links: &[&'a Link]) -> Option<[&'a Link; 2]> {
    let other_end = |link: &Link| link.peer_ifindex.filter(|_| link.peer_netns_id.is_none());
    links.iter().enumerate().find_map(|(place, first)| {
        let second = links[place + 1..].iter().find(|second| other_end(first) == Some(second.ifindex))?;
        Some([*first, *second])
    })
}

/// The warning of hooks of others at an interface that carried packets pass by.
fn passed_by(name: &str, noun: &str, hooks: &[String]) -> Option<String> {
    let (last, others) = hooks.split_last()?;
    let list = if others.is_empty() { last.clone() } else { format!("{} and {last}", others.join(", ")) };
    Some(format!(
        "{name} has {list}, and what goes through the {noun} passes there unseen: do what they do at its other end"
    ))
}

/// The warnings of sealers that have one worker, by the name of their stage.
pub fn sealers(plan: &Plan, workers: usize) -> Vec<String> {
    let stages = plan.stages.iter().filter(|stage| workers == 1 && stage.kind.sealers() > 0);
    let told = |stage: &StagePlan| {
        format!("the sealers of {} share nothing with one worker: give --workers 2 or more", stage.name)
    };
    stages.map(told).collect()
}

/// The networks of a plan, by numbers: packets go unchanged between what is joined directly or through bridges. A router cuts a packet that
/// is too long, or says so to its sender.
pub fn networks(plan: &Plan) -> HashMap<Attachment, usize> {
    let is_bridge = |stage: usize| {
        matches!(plan.stages.get(stage), Some(StagePlan { kind: StageKind::Bridge { .. }, .. }))
    };
    // All ports of a bridge are in one network.
    let place = |at: Attachment| match at {
        Attachment::Stage(stage, _) if is_bridge(stage) => Attachment::Stage(stage, 0),
        at => at,
    };
    let links: Vec<_> = plan.links.iter().map(|link| link.map(place)).collect();
    // Each place is at first in a network of its own.
    let mut networks: HashMap<Attachment, usize> = HashMap::new();
    for at in links.as_flattened() {
        let next = networks.len();
        networks.entry(*at).or_insert(next);
    }
    for [one, other] in links {
        let (kept, gone) = (networks[&one], networks[&other]);
        networks.values_mut().filter(|network| **network == gone).for_each(|network| *network = kept);
    }
    networks
}

/// The ports of a plan between which packets go unchanged, each two once.
pub fn joined(plan: &Plan) -> Vec<[usize; 2]> {
    let networks = networks(plan);
    let network_of = |port: usize| networks.get(&Attachment::Port(port));
    let ports = 0..plan.ports.len();
    let pairs = ports.flat_map(|one| (one + 1..plan.ports.len()).map(move |other| [one, other]));
    pairs
        .filter(|[one, other]| network_of(*one).is_some() && network_of(*one) == network_of(*other))
        .collect()
}

/// Finds faults of MTUs that a user may not expect, of interfaces that are given with their other ends, where the senders are. A packet
/// that comes in at one of two `joined` ports may go out by the other as it is.
pub fn mtus(ends: &[Option<(&Link, &Link)>], joined: &[[usize; 2]]) -> Vec<String> {
    let there = joined.iter().filter_map(|&[one, other]| Some([ends[one]?, ends[other]?]));
    let ways = there.flat_map(|[one, other]| [(one, other), (other, one)]);
    let all = if ends.len() == 2 { "all four ends" } else { "all their ends" };
    let told = ways.filter_map(|((port, sender), (out, receiver))| {
        let way_bytes = port.mtu_bytes.min(out.mtu_bytes).min(receiver.mtu_bytes);
        (sender.mtu_bytes > way_bytes).then(|| {
            format!(
                "{0}, the other end of {1}, has an MTU of {2}, and what goes through {3} to its other end may have {way_bytes} \
                 bytes: longer packets are dropped, counted as too-long. Give {all} one MTU",
                sender.name, port.name, sender.mtu_bytes, out.name
            )
        })
    });
    told.collect()
}

/// The longest IP packet that each port takes, in bytes, of interfaces that are given with their other ends.
fn taken_by(ends: &[Option<(&Link, &Link)>]) -> Vec<Option<u32>> {
    ends.iter().map(|ends| ends.map(|(port, other_end)| taken_bytes(port, other_end))).collect()
}

/// Finds ESPs that seal shorter packets than the file says, because of a port that they leave by.
pub fn sealed(plan: &Plan, ends: &[Option<(&Link, &Link)>]) -> Vec<String> {
    let taken = taken_by(ends);
    let outsides = StageInterface::all(plan).into_iter().filter(|one| one.interface == OUTSIDE);
    let told = outsides.filter_map(|outside| {
        let StagePlan { name, kind: StageKind::Esp(esp) } = &plan.stages[outside.stage] else { return None };
        let (mtu_bytes, port) = outside.fit(&taken);
        let (port, taken_bytes) = (&ends[port?]?.0.name, taken[port?]?);
        (mtu_bytes < esp.mtu_bytes).then(|| match u32::from(mtu_bytes) > taken_bytes {
            false => format!(
                "{port} or its other end takes packets of {mtu_bytes} bytes at most, so {name} seals no longer ones, though its MTU is {}: write \
                 mtu = {mtu_bytes} below its [[esp]]",
                esp.mtu_bytes
            ),
            true => format!(
                "{port} or its other end takes packets of {taken_bytes} bytes at most, and {name} needs {mtu_bytes}: longer packets are dropped, \
                 counted as too-long. Give both ends a larger MTU"
            ),
        })
    });
    told.collect()
}

/// Finds interfaces of routers that have a shorter MTU than the file says, because of a port that they lead to.
pub fn routed(plan: &Plan, ends: &[Option<(&Link, &Link)>]) -> Vec<String> {
    let taken = taken_by(ends);
    let is_router =
        |interface: &StageInterface| matches!(plan.stages[interface.stage].kind, StageKind::Router(_));
    let told = StageInterface::all(plan).into_iter().filter(is_router).filter_map(|interface| {
        let (mtu_bytes, port) = interface.fit(&taken);
        let (router, taken_bytes) = (&plan.stages[interface.stage].name, taken[port?]?);
        let (port, file_bytes) = (&ends[port?]?.0.name, interface.mtu_bytes);
        Some(match u32::from(mtu_bytes) > taken_bytes {
            false => format!(
                "{port} or its other end takes packets of {mtu_bytes} bytes at most, so {router} sends no longer ones there, though its MTU is \
                 {file_bytes}: write mtu = {mtu_bytes} below its [[router.interface]]"
            ),
            true => format!(
                "{port} or its other end takes packets of {taken_bytes} bytes at most, and {router} sends IPv6 there, which needs {mtu_bytes}: \
                 longer packets are dropped, counted as too-long. Give both ends a larger MTU"
            ),
        })
    });
    told.collect()
}

/// Finds facts that a user may not expect about the limits of each of these ports, where a port can hold so many packets.
pub fn limits<'a>(ports: impl Iterator<Item = &'a PortPlan>, held_packets_max: u64) -> Vec<String> {
    let mut warnings = Vec::new();
    for PortPlan { limits, .. } in ports {
        let Some(limits) = limits else { continue };
        let found = [slow(limits.rate), memory_short(limits, held_packets_max)];
        for warning in found.into_iter().flatten() {
            // Most wires have the same limits in both directions.
            if !warnings.contains(&warning) {
                warnings.push(warning);
            }
        }
    }
    warnings
}

fn slow(rate: Rate) -> Option<String> {
    let packet_s = FRAME_BYTES * 8 / rate.bits_per_s();
    (packet_s >= PACKET_S_MAX)
        .then(|| format!("at {rate} a packet of {FRAME_BYTES} bytes takes {packet_s} s"))
}

fn memory_short(limits: &TbfConfig, held_packets_max: u64) -> Option<String> {
    (limits.limit_bytes() > held_packets_max * FRAME_BYTES).then(|| {
        format!(
            "packet memory lets {held_packets_max} packets wait in a direction, less than the queue asked for ({} at \
             {}): the rest waits with the senders, or give more --memory",
            match limits.limit {
                Limit::TimeNs(time_ns) => time_text(time_ns),
                Limit::Bytes(bytes) => size_text(bytes),
            },
            limits.rate,
        )
    })
}

#[cfg(test)]
mod tests {
    use weir_path::esp::plan::{EspDispatch, EspPlan};
    use weir_path::esp::{INSIDE, OUTSIDE};

    use super::*;

    fn port(limits: Option<TbfConfig>) -> PortPlan {
        PortPlan { interface: String::new(), limits, classes: None, is_optional: false }
    }

    fn told(rates: [&str; 2], queue_ns: u64) -> String {
        let limit = |rate: &str| TbfConfig {
            rate: rate.parse().unwrap(),
            burst_bytes: 20_000,
            limit: Limit::TimeNs(queue_ns),
        };
        let ports = rates.map(|rate| port(Some(limit(rate))));
        limits(ports.iter(), 100).join("\n")
    }

    #[test]
    fn an_mtu_that_the_way_does_not_have_is_told() {
        let link = |name: &str, mtu_bytes| Link { name: name.into(), mtu_bytes, ..Link::default() };
        let (a, b, large) = (link("a", 1500), link("b", 1500), link("eth0", 1500));
        let small = link("eth0", 1400);
        let of = |ends: [(&Link, &Link); 2]| mtus(&ends.map(Some), &[[0, 1]]);
        assert_eq!(of([(&a, &large), (&b, &large)]), Vec::<String>::new());
        let told = of([(&a, &large), (&b, &small)]);
        assert_eq!(told.len(), 1, "only packets from a to b may be too long: {told:?}");
        assert!(
            told[0].contains("other end of a, has an MTU of 1500") && told[0].contains("1400"),
            "{told:?}"
        );
        let narrow = link("b", 1400);
        assert_eq!(of([(&a, &large), (&narrow, &large)]).len(), 2, "both ways through b");
        let three = [(&a, &large), (&narrow, &large), (&b, &large)].map(Some);
        let told = mtus(&three, &[[0, 1]]);
        assert_eq!(told.len(), 2, "a router may be between the others: {told:?}");
        assert!(told[0].ends_with("Give all their ends one MTU"), "{told:?}");
        let without = [three[0], None, three[2]];
        assert_eq!(mtus(&without, &[[0, 1]]), Vec::<String>::new(), "one is not there");
    }

    #[test]
    fn an_esp_whose_port_takes_less_is_told() {
        let link = |mtu_bytes| Link { name: "wan".into(), mtu_bytes, ..Link::default() };
        let esp = EspPlan {
            addresses: Vec::new(),
            mtu_bytes: 1500,
            associations: Vec::new(),
            policies: Vec::new(),
            dispatch: EspDispatch::default(),
        };
        let plan = Plan {
            ports: vec![port(None), port(None)],
            stages: vec![StagePlan { name: "tunnel".into(), kind: StageKind::Esp(Box::new(esp)) }],
            links: vec![
                [Attachment::Port(0), Attachment::Stage(0, INSIDE)],
                [Attachment::Port(1), Attachment::Stage(0, OUTSIDE)],
            ],
            ..Plan::default()
        };
        let (small, usual) = (link(1400), link(1500));
        let told = |outside| sealed(&plan, &[Some((&small, &small)), outside]);
        assert_eq!(told(Some((&usual, &usual))), [""; 0], "packets inside may be short");
        assert_eq!(told(None), [""; 0], "it is not there");
        for ends in [(&usual, &small), (&small, &usual)] {
            let [told] = &told(Some(ends))[..] else { panic!("one is told") };
            assert!(
                told.starts_with("wan or its other end takes packets of 1400") && told.contains("mtu = 1400"),
                "{told}"
            );
        }
    }

    /// Ports 0 and 1 at one bridge, which another joins to port 2; port 3 beyond a router, 4 and 5 linked, 6 not attached.
    #[test]
    fn ports_are_joined_through_bridges_and_not_through_routers() {
        use Attachment::{Port, Stage};
        let stage = |kind| StagePlan { name: String::new(), kind };
        let bridge = || stage(StageKind::Bridge { ports: 3, stations_max: 16, ageing_ns: 1 });
        let links = vec![
            [Port(0), Stage(0, 0)],
            [Stage(0, 1), Port(1)],
            [Stage(0, 2), Stage(1, 2)],
            [Stage(1, 0), Port(2)],
            [Stage(1, 1), Stage(2, 0)],
            [Stage(2, 1), Port(3)],
            [Port(5), Port(4)],
        ];
        let router = stage(StageKind::Router(Box::new(crate::testbed::jail())));
        let ports = std::iter::repeat_with(|| port(None)).take(7).collect();
        let plan = Plan { ports, stages: vec![bridge(), bridge(), router], links, ..Plan::default() };
        assert_eq!(joined(&plan), [[0, 1], [0, 2], [1, 2], [4, 5]]);
    }

    #[test]
    fn both_ends_of_one_pair_are_found_among_many() {
        let link = |ifindex, peer_ifindex, peer_netns_id| Link {
            ifindex,
            peer_ifindex,
            peer_netns_id,
            ..Link::default()
        };
        let apart = [link(1, Some(3), Some(7)), link(2, Some(9), None), link(3, Some(1), Some(7))];
        assert!(one_pair(&apart.each_ref()).is_none(), "those numbers are of another namespace");
        let pair = [apart[0].clone(), apart[1].clone(), link(9, Some(2), None)];
        assert_eq!(one_pair(&pair.each_ref()).map(|ends| ends.map(|link| link.ifindex)), Some([2, 9]));
    }

    #[test]
    fn hooks_that_are_passed_by_are_told_in_one_sentence() {
        assert_eq!(passed_by("wa", "wire", &[]), None);
        let hooks = ["tcx program 7 on ingress".into(), "the nftables chain netdev t c".into()];
        let told = passed_by("wa", "wire", &hooks);
        let told = told.unwrap();
        assert!(
            told.starts_with("wa has tcx program 7 on ingress and the nftables chain netdev t c, and"),
            "{told}"
        );
    }

    #[test]
    fn usual_limits_are_not_warned_of() {
        assert_eq!(told(["200mbit", "10mbit"], 5_000_000), "");
        assert_eq!(limits([port(None)].iter(), 1), Vec::<String>::new());
    }

    #[test]
    fn what_may_not_be_meant_is_told_once_for_both_directions() {
        assert_eq!(told(["1kbit"; 2], 5_000_000), "at 1kbit a packet of 1514 bytes takes 12 s");
        let long = told(["100mbit", "1mbit"], 1_000_000_000);
        assert!(
            long.contains("lets 100 packets wait")
                && long.contains("(1s at 100mbit)")
                && !long.contains('\n'),
            "{long}"
        );
    }
}
