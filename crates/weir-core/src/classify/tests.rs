//! Tests of `classify`: its rule as properties, its edges as cases.

use std::net::Ipv4Addr;

use proptest::prelude::*;

use super::{headers::Ip, *};

fn subnet(text: &str) -> Subnet {
    let (address, prefix_len) = text.split_once('/').unwrap();
    Subnet::new(address.parse().unwrap(), prefix_len.parse().unwrap()).unwrap()
}

fn headers(source: &str, destination: &str, protocol: u8, ports: Option<(u16, u16)>) -> Headers {
    let ip =
        Ip { source: source.parse().unwrap(), destination: destination.parse().unwrap(), protocol, dscp: 46 };
    Headers { ip: Some(ip), ports, fragment: None }
}

fn rule(conditions: Conditions, target: Target) -> Rule {
    Rule { conditions, target }
}

#[test]
fn the_cluster_is_free_and_the_internet_is_limited() {
    let to = |text| Conditions { to: Some(subnet(text)), ..Conditions::default() };
    let classifier = Classifier::new(
        vec![rule(to("10.0.0.0/8"), Target::Free), rule(to("fd00::/8"), Target::Free)],
        Target::Class(0),
    )
    .unwrap();
    let classify = |destination| {
        let source =
            if destination == "10.255.0.1" || destination == "192.0.2.1" { "10.0.0.1" } else { "fd00::1" };
        classifier.classify(0, 0, &headers(source, destination, 17, None))
    };
    assert_eq!(classify("10.255.0.1"), Target::Free);
    assert_eq!(classify("192.0.2.1"), Target::Class(0));
    assert_eq!(classify("fdff::1"), Target::Free);
    assert_eq!(classify("2001:db8::1"), Target::Class(0));
    assert_eq!(classifier.classify(0, 0, &Headers::default()), Target::Class(0), "ARP and the like");
}

#[test]
fn each_condition_can_refuse_by_itself() {
    let all = Conditions {
        interface: Some(3),
        from: Some(subnet("192.0.2.0/24")),
        to: Some(subnet("198.51.100.7/32")),
        protocol: Some(17),
        from_ports: Some(1000..=2000),
        to_ports: Some(53..=53),
        dscp: Some(46),
        flows: Some(FlowShare { of: 4, index: 1 }),
    };
    let classifier = Classifier::new(vec![rule(all, Target::Class(1))], Target::Class(0)).unwrap();
    let good = headers("192.0.2.200", "198.51.100.7", 17, Some((2000, 53)));
    assert_eq!(classifier.classify(3, 5, &good), Target::Class(1));
    assert_eq!(classifier.classify(2, 5, &good), Target::Class(0), "interface");
    assert_eq!(classifier.classify(3, 6, &good), Target::Class(0), "flow");
    let mut low = good;
    low.ip.as_mut().unwrap().dscp = 0;
    for (bad, what) in [
        (headers("192.0.3.200", "198.51.100.7", 17, Some((2000, 53))), "source"),
        (headers("192.0.2.200", "198.51.100.6", 17, Some((2000, 53))), "destination"),
        (headers("192.0.2.200", "198.51.100.7", 6, Some((2000, 53))), "protocol"),
        (headers("192.0.2.200", "198.51.100.7", 17, Some((2001, 53))), "source port"),
        (headers("192.0.2.200", "198.51.100.7", 17, Some((2000, 54))), "destination port"),
        (headers("192.0.2.200", "198.51.100.7", 17, None), "a fragment"),
        (low, "dscp"),
        (Headers::default(), "not IP"),
    ] {
        assert_eq!(classifier.classify(3, 5, &bad), Target::Class(0), "{what}");
    }
}

#[test]
fn what_can_never_match_is_named_with_the_reason() {
    let none = Conditions::default;
    let rules = vec![
        rule(Conditions { to: Some(subnet("10.0.0.0/8")), ..none() }, Target::Free),
        rule(Conditions { to: Some(subnet("10.1.0.0/16")), protocol: Some(6), ..none() }, Target::Class(1)),
        rule(
            Conditions { from: Some(subnet("::/0")), to: Some(subnet("10.0.0.0/7")), ..none() },
            Target::Class(2),
        ),
        rule(Conditions { protocol: Some(1), to_ports: Some(1..=9), ..none() }, Target::Class(3)),
        rule(Conditions { to_ports: Some(RangeInclusive::new(9, 1)), ..none() }, Target::Class(4)),
        rule(Conditions { dscp: Some(64), ..none() }, Target::Class(5)),
        rule(Conditions { flows: Some(FlowShare { of: 0, index: 0 }), ..none() }, Target::Class(6)),
        rule(none(), Target::Class(7)),
        rule(Conditions { interface: Some(1), ..none() }, Target::Class(8)),
    ];
    let faults: Vec<_> =
        Classifier::new(rules, Target::Free).unwrap().faults().iter().map(ToString::to_string).collect();
    assert_eq!(faults.len(), 7, "{faults:#?}");
    assert_eq!(faults[0], "rule 2 can never match: rule 1 takes all its packets; put it first");
    assert!(faults[1].contains("rule 3 can never match: one subnet is IPv4"));
    assert!(faults[2].contains("no ports"));
    assert!(faults[3].contains("ends before"));
    assert!(faults[4].contains("at most 63"));
    assert!(faults[5].contains("no such share"));
    assert!(faults[6].starts_with("rule 9 can never match: rule 8"));
    let many = vec![rule(none(), Target::Free); RULES_MAX + 1];
    assert!(Classifier::new(many, Target::Free).unwrap_err().to_string().contains("4097 rules"));
}

#[test]
fn a_prefix_longer_than_its_address_is_no_subnet() {
    assert_eq!(Subnet::new(Ipv4Addr::LOCALHOST.into(), 33), None);
    assert!(subnet("0.0.0.0/0").contains("255.1.2.3".parse().unwrap()));
    assert!(!subnet("0.0.0.0/0").contains("::1".parse().unwrap()));
    assert!(subnet("10.1.2.3/8").contains("10.9.9.9".parse().unwrap()), "host bits do not count");
    assert_eq!(subnet("10.0.0.0/8").to_string(), "10.0.0.0/8");
}

/// Conditions over few values, so that they overlap often.
fn conditions() -> impl Strategy<Value = Conditions> {
    let subnet = || {
        prop::option::of((0u32..4, 28u8..=32).prop_map(|(host, prefix_len)| Subnet {
            address: Ipv4Addr::from_bits(0x0a00_0000 + 4 * host).into(),
            prefix_len,
        }))
    };
    let ports = || prop::option::of((0u16..4, 0u16..4).prop_map(|(start, len)| start..=start + len));
    (subnet(), subnet(), prop::option::of(6u8..8), ports(), ports(), prop::option::of(0u16..2)).prop_map(
        |(from, to, protocol, from_ports, to_ports, interface)| Conditions {
            interface,
            from,
            to,
            protocol,
            from_ports,
            to_ports,
            ..Conditions::default()
        },
    )
}

proptest! {
    /// The first match wins, and a rule reported as hidden never decides.
    #[test]
    fn a_rule_called_hidden_never_decides(
        rules in prop::collection::vec(conditions(), 1..12),
        packets in prop::collection::vec((0u32..20, 0u32..20, 5u8..8, 0u16..8, 0u16..8, 0u16..2), 100),
    ) {
        let rules: Vec<_> =
            rules.into_iter().enumerate().map(|(index, c)| rule(c, Target::Class(index as u16))).collect();
        let classifier = Classifier::new(rules.clone(), Target::Free).unwrap();
        let never: Vec<_> = classifier
            .faults()
            .into_iter()
            .map(|fault| match fault {
                RuleFault::Impossible { rule, .. } | RuleFault::Shadowed { rule, .. } => rule,
                RuleFault::TooMany { .. } => usize::MAX,
            })
            .collect();
        for &(from, to, protocol, from_port, to_port, interface) in &packets {
            let address = |host| IpAddr::from(Ipv4Addr::from_bits(0x0a00_0000 + host));
            let headers = Headers {
                ip: Some(Ip { source: address(from), destination: address(to), protocol, dscp: 0 }),
                ports: has_ports(protocol).then_some((from_port, to_port)),
                fragment: None,
            };
            let target = classifier.classify(interface, 0, &headers);
            let expected = rules.iter().position(|rule| rule.conditions.hold(interface, 0, &headers));
            prop_assert_eq!(target, expected.map_or(Target::Free, |index| Target::Class(index as u16)));
            if let Target::Class(index) = target {
                prop_assert!(!never.contains(&usize::from(index)), "rule {} decided", index + 1);
            }
        }
    }
}
