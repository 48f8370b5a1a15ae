//! Selectors and the actions on packets they select.

use super::*;
use crate::ip::{self, number};

fn outbound(policies: &Policies, packet: &[u8]) -> Result<PolicyAction, DropReason> {
    policies.outbound(packet, &IpHeaders::read_all(packet)?)
}

fn inbound(policies: &Policies, packet: &[u8], by: Option<&[BundleId]>) -> Result<(), DropReason> {
    policies.inbound(packet, &IpHeaders::read_all(packet)?, by)
}

fn prefix(text: &str) -> AddressPrefix {
    let (address, len) = text.split_once('/').unwrap();
    AddressPrefix::new(address.parse().unwrap(), len.parse().unwrap()).unwrap()
}

fn selector(source: &str, destination: &str) -> Selector {
    Selector {
        source: prefix(source),
        destination: prefix(destination),
        protocol: None,
        source_ports: None,
        destination_ports: None,
    }
}

fn udp(source: [u8; 4], destination: [u8; 4], ports: [u16; 2]) -> Vec<u8> {
    let mut packet = vec![0x45, 0, 0, 0, 0, 0, 0, 0, 64, 17, 0, 0];
    packet.extend([source, destination].concat());
    packet.extend(ports.map(u16::to_be_bytes).concat());
    packet.extend([0, 8, 0, 0]);
    ip::set_len(&mut packet, IpFamily::V4).unwrap();
    packet
}

const THERE: PolicyAction = PolicyAction::Protect(BundleId(3));

#[test]
fn the_first_that_matches_decides_and_none_discards() {
    let dns = Selector {
        protocol: Some(number::UDP),
        destination_ports: Some(53..=53),
        ..selector("0.0.0.0/0", "10.2.0.0/16")
    };
    let policies = Policies::new(vec![
        SecurityPolicy { selector: dns, action: PolicyAction::Bypass },
        SecurityPolicy { selector: selector("10.1.0.0/16", "10.2.0.0/16"), action: THERE },
        SecurityPolicy { selector: selector("10.1.7.7/32", "0.0.0.0/0"), action: PolicyAction::Discard },
    ]);
    let to = |source, destination, port| outbound(&policies, &udp(source, destination, [9, port]));
    assert_eq!(to([10, 1, 0, 1], [10, 2, 0, 1], 53), Ok(PolicyAction::Bypass));
    assert_eq!(to([10, 1, 0, 1], [10, 2, 0, 1], 54), Ok(THERE));
    assert_eq!(to([10, 1, 7, 7], [10, 3, 0, 1], 54), Ok(PolicyAction::Discard));
    assert_eq!(to([10, 9, 0, 1], [10, 2, 0, 1], 54), Ok(PolicyAction::Discard));
    assert_eq!(outbound(&policies, &[0x45; 10]), Err(DropReason::Malformed));
}

#[test]
fn a_packet_comes_in_as_its_policy_says() {
    let policies = Policies::new(vec![
        SecurityPolicy { selector: selector("10.2.0.0/16", "10.1.0.0/16"), action: THERE },
        SecurityPolicy { selector: selector("0.0.0.0/0", "192.0.2.1/32"), action: PolicyAction::Bypass },
    ]);
    let inside = udp([10, 2, 0, 1], [10, 1, 0, 1], [1, 2]);
    let outside = udp([198, 51, 100, 1], [192, 0, 2, 1], [1, 2]);
    let mismatch = Err(DropReason::PolicyMismatch);
    assert_eq!(inbound(&policies, &inside, Some(&[BundleId(3)])), Ok(()));
    assert_eq!(inbound(&policies, &inside, Some(&[BundleId(4)])), mismatch, "another association");
    assert_eq!(inbound(&policies, &inside, None), mismatch, "in the clear");
    assert_eq!(inbound(&policies, &outside, None), Ok(()));
    assert_eq!(inbound(&policies, &outside, Some(&[BundleId(3)])), mismatch);
    let other = udp([10, 2, 0, 1], [10, 9, 0, 1], [1, 2]);
    assert_eq!(inbound(&policies, &other, Some(&[BundleId(3)])), Err(DropReason::PolicyDiscard));
}

#[test]
fn a_fragment_slips_past_no_ports() {
    let web = Selector { destination_ports: Some(80..=80), ..selector("0.0.0.0/0", "0.0.0.0/0") };
    let policies = Policies::new(vec![
        SecurityPolicy { selector: web, action: THERE },
        SecurityPolicy { selector: selector("0.0.0.0/0", "0.0.0.0/0"), action: PolicyAction::Bypass },
    ]);
    let mut packet = udp([10, 0, 0, 1], [10, 0, 0, 2], [9, 80]);
    assert_eq!(outbound(&policies, &packet), Ok(THERE));
    packet[7] = 1;
    assert_eq!(outbound(&policies, &packet), Err(DropReason::EspFragment));
    packet[7] = 0;
    packet[9] = 1;
    assert_eq!(outbound(&policies, &packet), Ok(PolicyAction::Bypass), "a checksum of ICMP is no port");
    packet[7] = 1;
    assert_eq!(outbound(&policies, &packet), Ok(PolicyAction::Bypass), "nor is one in a fragment");
}

/// A packet of IPv6 with these headers, the number of the first before them.
fn v6(next: u8, headers: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x60, 0, 0, 0, 0, 0, next, 64];
    packet.extend([[0xfd; 16], [0xfc; 16]].concat());
    packet.extend(headers);
    ip::set_len(&mut packet, IpFamily::V6).unwrap();
    packet
}

#[test]
fn a_fragment_header_hides_no_protocol() {
    let tcp = Selector { protocol: Some(number::TCP), ..selector("::/0", "::/0") };
    let any = |action| SecurityPolicy { selector: selector("::/0", "::/0"), action };
    let bypass =
        Policies::new(vec![SecurityPolicy { selector: tcp, action: THERE }, any(PolicyAction::Bypass)]);
    let protect = Policies::new(vec![any(THERE)]);
    for offset in [0, 8] {
        let fragment = |next: u8| [next, 0, 0, offset, 0, 0, 0, 7];
        let options = [number::TCP, 0, 1, 4, 0, 0, 0, 0];
        let hidden = v6(number::FRAGMENT, &[&fragment(number::DESTINATION)[..], &options, &[0; 20]].concat());
        assert_eq!(outbound(&bypass, &hidden), Err(DropReason::EspFragment), "{offset}");
        assert_eq!(
            outbound(&Policies::new(vec![any(PolicyAction::Bypass)]), &hidden),
            Err(DropReason::EspFragment)
        );
        assert_eq!(outbound(&protect, &hidden), Ok(THERE), "{offset}");
        let plain = v6(number::FRAGMENT, &[&fragment(number::UDP)[..], &[0; 20]].concat());
        assert_eq!(outbound(&bypass, &plain), Ok(PolicyAction::Bypass), "{offset}");
    }
}

#[test]
fn an_error_in_fragments_is_told_by_the_first() {
    let (router, near, far) = ([192, 0, 2, 2], [10, 1, 0, 1], [10, 2, 0, 1]);
    let protect = SecurityPolicy { selector: selector("10.2.0.0/16", "10.1.0.0/16"), action: THERE };
    let own =
        SecurityPolicy { selector: selector("192.0.2.2/32", "0.0.0.0/0"), action: PolicyAction::Bypass };
    let out = Policies::new(vec![protect, own]);
    let mut first = error(router, near, 3, &udp(near, far, [9, 53]));
    first[6] = 0x20;
    assert_eq!(outbound(&out, &first), Ok(THERE));
    let mut short = error(router, near, 3, &udp(near, far, [9, 53])[..8]);
    short[6] = 0x20;
    assert_eq!(outbound(&out, &short), Err(DropReason::EspFragment));
    // A long ping, and what comes after a first fragment, which is nothing without it.
    short[20] = 8;
    assert_eq!(outbound(&out, &short), Ok(PolicyAction::Bypass));
    (first[6], first[7]) = (0, 4);
    assert_eq!(outbound(&out, &first), Ok(PolicyAction::Bypass));
}

#[test]
fn options_hide_no_protocol() {
    let mut packet = vec![0x60, 0, 0, 0, 0, 0, number::DESTINATION, 64];
    packet.extend([[0xfd; 16], [0xfc; 16]].concat());
    packet.extend([number::UDP, 0, 1, 4, 0, 0, 0, 0, 0, 9, 0, 53, 0, 8, 0, 0]);
    ip::set_len(&mut packet, IpFamily::V6).unwrap();
    let dns = Selector {
        protocol: Some(number::UDP),
        destination_ports: Some(53..=53),
        ..selector("fd00::/8", "::/0")
    };
    let policies = Policies::new(vec![SecurityPolicy { selector: dns, action: THERE }]);
    assert_eq!(outbound(&policies, &packet), Ok(THERE));
    packet[41] = 200;
    assert_eq!(outbound(&policies, &packet), Err(DropReason::Malformed), "options longer than the packet");
}

#[test]
fn prefixes_are_of_one_family_and_no_longer_than_it() {
    assert!(AddressPrefix::new([10, 0, 0, 0].into(), 33).is_none());
    assert!(AddressPrefix::new([0u16; 8].into(), 129).is_none());
    assert!(prefix("0.0.0.0/0").masked_v4().holds(77));
    assert!(!prefix("10.0.0.0/8").masked_v4().holds(77));
    assert!(prefix("fd01::/128").masked_v6().holds(0xfd01 << 112));
    assert!(!prefix("::/0").covers(&prefix("0.0.0.0/0")));
    assert!(prefix("0.0.0.0/0").covers(&prefix("10.0.0.0/8")));
}

/// An ICMP error from `source` to `destination` that quotes a packet as far as its ports.
fn error(source: [u8; 4], destination: [u8; 4], kind: u8, quoted: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x45, 0, 0, 0, 0, 0, 0, 0, 64, number::ICMP, 0, 0];
    packet.extend([source, destination].concat());
    packet.extend([kind, 1, 0, 0, 0, 0, 0, 0]);
    packet.extend(quoted);
    ip::set_len(&mut packet, IpFamily::V4).unwrap();
    packet
}

#[test]
fn an_error_goes_and_comes_as_what_it_quotes() {
    let (router, near, far) = ([192, 0, 2, 2], [10, 1, 0, 1], [10, 2, 0, 1]);
    let protect =
        |source, destination| SecurityPolicy { selector: selector(source, destination), action: THERE };
    // Those of the far gateway: its own packets pass in the clear, unless they tell of what does not.
    let own =
        SecurityPolicy { selector: selector("192.0.2.2/32", "0.0.0.0/0"), action: PolicyAction::Bypass };
    let out = Policies::new(vec![protect("10.2.0.0/16", "10.1.0.0/16"), own]);
    let came = udp(near, far, [9, 53]);
    for kind in [3, 4, 5, 11, 12] {
        assert_eq!(outbound(&out, &error(router, near, kind, &came)), Ok(THERE), "{kind}");
    }
    let bypass = Ok(PolicyAction::Bypass);
    assert_eq!(outbound(&out, &error(router, near, 8, &came)), bypass, "a question quotes nothing");
    assert_eq!(outbound(&out, &error(router, near, 3, &udp([10, 9, 0, 1], far, [9, 53]))), bypass);
    assert_eq!(outbound(&out, &error(router, near, 3, &came[..19])), bypass, "too short to tell");
    // A fragment behind the first would pass in the clear.
    let passes_cut = |packet: &[u8]| out.passes_cut(packet, &IpHeaders::read_all(packet).unwrap());
    assert!(!passes_cut(&error(router, near, 3, &came)));
    assert!(passes_cut(&error(router, near, 8, &came)) && passes_cut(&came));
    // It has to come to the near gateway as the answer would.
    let back = Policies::new(vec![protect("10.2.0.0/16", "10.1.0.0/16")]);
    let told = error(router, near, 11, &came);
    assert_eq!(inbound(&back, &told, Some(&[BundleId(3)])), Ok(()));
    assert_eq!(inbound(&back, &told, None), Err(DropReason::PolicyMismatch));
    assert_eq!(inbound(&back, &told, Some(&[BundleId(4)])), Err(DropReason::PolicyMismatch));
    // Where ports decide, those of the answer do.
    let dns = Selector {
        protocol: Some(number::UDP),
        source_ports: Some(53..=53),
        ..selector("10.2.0.0/16", "10.1.0.0/16")
    };
    let out = Policies::new(vec![SecurityPolicy { selector: dns, action: THERE }]);
    assert_eq!(outbound(&out, &error(router, near, 3, &came)), Ok(THERE));
    assert_eq!(outbound(&out, &error(router, near, 3, &udp(near, far, [9, 54]))), Ok(PolicyAction::Discard));
    assert_eq!(outbound(&out, &error(router, near, 3, &came[..20])), Err(DropReason::EspFragment));
}

#[test]
fn an_error_about_a_packet_with_more_headers_is_told_by_what_is_behind_them() {
    let address = |net: u8| [&[0xfd, net][..], &[0; 14]].concat();
    // Hop-by-hop options, a fragment header, UDP.
    let quoted = |offset: u8| {
        let options = [number::FRAGMENT, 0, 1, 4, 0, 0, 0, 0];
        let fragment = [number::UDP, 0, 0, offset, 0, 0, 0, 1];
        let head = [0x60, 0, 0, 0, 0, 24, number::HOP_BY_HOP, 64];
        [&head[..], &address(1), &address(2), &options, &fragment, &[0, 9, 0, 53, 0, 8, 0, 0]].concat()
    };
    let error = |quoted: &[u8]| {
        let mut packet = [&[0x60, 0, 0, 0, 0, 0, number::ICMPV6, 64][..], &address(3), &address(1)].concat();
        packet.extend([3, 0, 0, 0, 0, 0, 0, 0]);
        packet.extend(quoted);
        ip::set_len(&mut packet, IpFamily::V6).unwrap();
        packet
    };
    let dns = Selector {
        protocol: Some(number::UDP),
        source_ports: Some(53..=53),
        ..selector("fd02::/16", "fd01::/16")
    };
    let own = SecurityPolicy { selector: selector("fd03::/16", "::/0"), action: PolicyAction::Bypass };
    let out = Policies::new(vec![SecurityPolicy { selector: dns, action: THERE }, own]);
    assert_eq!(outbound(&out, &error(&quoted(0))), Ok(THERE));
    assert_eq!(outbound(&out, &error(&quoted(8))), Err(DropReason::EspFragment));
}
