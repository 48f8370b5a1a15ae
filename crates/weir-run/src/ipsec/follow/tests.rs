//! Messages of a kernel as they were captured, and the ESP that follows them.

mod plans;

use std::collections::BTreeMap;

use weir_ipsec::algorithm::Algorithm;
use weir_path::esp::plan::{EspDispatch, PolicyPlan};

use super::*;
use crate::ipsec::mark_file::MarkKind;
use crate::ipsec::tests::Folder;

/// A name and a message a line.
const CAPTURED: &str = include_str!("captured.txt");
/// The first digits of the capture's keys.
const KEYS: [&str; 2] = ["01020304", "11120304"];

fn captured() -> BTreeMap<&'static str, Vec<u8>> {
    let mut all = BTreeMap::<_, Vec<u8>>::new();
    for line in CAPTURED.lines().filter(|line| !line.starts_with('#')) {
        let (name, digits) = line.split_once(' ').unwrap();
        let bytes = digits.as_bytes().as_chunks::<2>().0;
        let byte = |pair: &[u8; 2]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
        all.entry(name).or_default().extend(bytes.iter().map(byte));
    }
    all
}

/// A gateway without associations.
fn empty() -> EspPlan {
    EspPlan {
        addresses: vec!["192.0.2.1".parse().unwrap(), "2001:db8::1".parse().unwrap()],
        mtu_bytes: 1500,
        associations: Vec::new(),
        policies: Vec::new(),
        dispatch: EspDispatch::default(),
    }
}

fn follower() -> Follower {
    Follower::new(Path::new("/keys"))
}

/// The lines of a follower on one message; no key is in them.
fn hear(follower: &mut Follower, bytes: &[u8]) -> String {
    let lines = follower.heard(bytes).lines.join("; ");
    assert!(!KEYS.iter().any(|key| lines.contains(key)), "{lines}");
    lines
}

fn names(wanted: &WantedPlan) -> Vec<&str> {
    wanted.plan.associations.iter().map(|plan| plan.name.as_str()).collect()
}

#[test]
fn a_tunnel_comes_and_goes() {
    let messages = captured();
    let mut follower = follower();
    assert_eq!(
        hear(&mut follower, &messages["newpolicy-out"]),
        "+ policy out from 10.1.0.0/24 to 10.2.0.0/24"
    );
    let wanted = follower.wanted(&empty(), &BTreeSet::new());
    assert_eq!(wanted.plan.policies[0].verb, PolicyVerb::Discard, "nothing protects it yet");
    assert_eq!(
        wanted.notes,
        [
            "policy out from 10.1.0.0/24 to 10.2.0.0/24: no association is there for this policy, so it discards"
        ]
    );
    assert!(follower.wanted(&empty(), &BTreeSet::new()).notes.is_empty(), "what was said is not said again");
    let line = hear(&mut follower, &messages["newsa-gcm-esn"]);
    assert_eq!(line, "+ association SPI 0x00001001 from 192.0.2.1 to 192.0.2.2");
    hear(&mut follower, &messages["newsa-in"]);
    hear(&mut follower, &messages["newpolicy-in"]);
    assert_eq!(hear(&mut follower, &messages["newpolicy-fwd"]), "", "the other half of in");

    let wanted = follower.wanted(&empty(), &BTreeSet::new());
    assert_eq!((names(&wanted), &wanted.notes[..]), (vec!["in-00002001", "out-00001001"], &[][..]));
    let [back, out] = &wanted.plan.associations[..] else { panic!("two associations") };
    assert!(out.is_extended && out.is_tunnel && !out.is_inbound && !back.is_extended && back.is_inbound);
    assert_eq!((out.spi, back.spi, back.window, out.algorithm), (0x1001, 0x2001, 32, Algorithm::Aes128Gcm));
    assert_eq!((out.source, out.destination), ([192, 0, 2, 1].into(), [192, 0, 2, 2].into()));
    // The file that `weir sa import` makes of this key.
    assert_eq!(out.key_file.as_deref(), Some("/keys/7c809baabf955608b02c142516a2e393.key"));
    let policies = |wanted: &WantedPlan| -> Vec<_> {
        let policies = wanted.plan.policies.iter();
        policies.map(|of| (of.is_inbound, of.verb, of.associations.join(" "))).collect()
    };
    let protects = |is_inbound, name: &str| (is_inbound, PolicyVerb::Protect, name.to_string());
    assert_eq!(policies(&wanted), [protects(false, "out-00001001"), protects(true, "in-00002001")]);

    // An association that does not change runs on; and another priority is no other policy, but asked first.
    let running = wanted.plan;
    assert_eq!(hear(&mut follower, &messages["updpolicy"]), "~ policy out from 10.1.0.0/24 to 10.2.0.0/24");
    assert_eq!(follower.wanted(&running, &BTreeSet::new()).plan, running);
    assert_eq!(hear(&mut follower, &messages["delpolicy"]), "- policy in from 10.2.0.0/24 to 10.1.0.0/24");
    assert_eq!(policies(&follower.wanted(&running, &BTreeSet::new())), [protects(false, "out-00001001")]);
    assert_eq!(hear(&mut follower, &messages["flushpolicy"]), "- all policies");
    assert_eq!(follower.wanted(&running, &BTreeSet::new()).plan.policies, []);
    assert_eq!(hear(&mut follower, &messages["flushsa"]), "- all associations");
    assert_eq!(follower.wanted(&running, &BTreeSet::new()).plan, empty());
}

/// A policy without templates from `source` to `destination`, as the kernel tells it.
fn policy_event(index: u8, priority: u8, is_block: bool, source: &str, destination: &str) -> Vec<u8> {
    const POLICY_AT: usize = 16;
    let mut message = captured()["newpolicy-out"][..POLICY_AT + 168].to_vec();
    message[0] = message.len() as u8;
    message[1] = 0;
    let body = &mut message[POLICY_AT..];
    for (side, at, len_at) in [(destination, 0, 42), (source, 16, 43)] {
        let (address, len) = side.split_once('/').unwrap();
        body[len_at] = len.parse().unwrap();
        let (octets, family) = match address.parse().unwrap() {
            IpAddr::V4(address) => (address.octets().to_vec(), 2),
            IpAddr::V6(address) => (address.octets().to_vec(), 10),
        };
        body[at..at + octets.len()].copy_from_slice(&octets);
        body[40] = family;
    }
    body[152] = priority;
    body[156] = index;
    body[161] = is_block.into();
    message
}

/// The verbs in the order in which policies are asked.
fn verbs(follower: &mut Follower) -> Vec<PolicyVerb> {
    follower.wanted(&empty(), &BTreeSet::new()).plan.policies.iter().map(|policy| policy.verb).collect()
}

/// The rows are those of Linux 6.18, with an older and a younger policy of one priority, each as source and destination.
#[test]
fn a_policy_that_is_updated_is_asked_as_in_the_list_of_the_kernels() {
    let (old, new) = (8, 16);
    let [net, wide, any] = ["10.9.1.0/24", "10.8.0.0/15", "0.0.0.0/0"];
    for (of_old, of_new, keeps_place) in [
        ([net; 2], [net; 2], true),
        ([net; 2], ["10.9.0.0/16"; 2], true),
        (["10.9.1.1/32", net], [net; 2], true),
        (["10.9.1.1/32", "10.9.1.2/32"], ["10.9.1.1/32", "10.9.1.2/32"], true),
        ([wide, net], [any, net], true),
        ([net, wide], [net, any], true),
        ([wide; 2], [any; 2], true),
        (["2001:db8:1::/64"; 2], ["2001:db8:1::/48"; 2], true),
        ([net; 2], [wide; 2], false),
        ([net; 2], [any; 2], false),
        ([net; 2], [any, net], false),
        (["10.9.1.1/32", "10.9.1.2/32"], [net; 2], false),
        (["2001:db8:1::/64"; 2], ["2001:db8::/47"; 2], false),
        ([net; 2], ["10.9.2.0/24"; 2], false),
    ] {
        for is_block in [false, true] {
            let of = |index, priority, is_block, [source, destination]: [&str; 2]| {
                policy_event(index, priority, is_block, source, destination)
            };
            let mut follower = follower();
            hear(&mut follower, &of(old, 100, is_block, of_old));
            hear(&mut follower, &of(new, 100, !is_block, of_new));
            let [first, second] = verbs(&mut follower)[..] else { panic!("two policies") };
            assert_eq!(first == PolicyVerb::Discard, is_block);
            assert!(hear(&mut follower, &of(old, 100, is_block, of_old)).starts_with("~ policy out"));
            // What blocks keeps its place also where kernels differ.
            let expected = if keeps_place || is_block { [first, second] } else { [second, first] };
            assert_eq!(verbs(&mut follower), expected, "{of_old:?}, {of_new:?}");
            // One that had another priority in between is the last of its equals.
            hear(&mut follower, &of(old, 101, is_block, of_old));
            hear(&mut follower, &of(old, 100, is_block, of_old));
            assert_eq!(verbs(&mut follower), [second, first], "{of_old:?}, {of_new:?}");
        }
    }
}

/// One that lets pass goes behind those of other lists, up to the next of its own.
#[test]
fn a_policy_that_is_updated_stays_before_those_of_its_list_alone() {
    let net = "10.9.1.0/24";
    let first = policy_event(8, 100, false, net, net);
    let mut follower = follower();
    hear(&mut follower, &first);
    for (index, side) in [(16, "0.0.0.0/0"), (24, net), (32, "10.0.0.0/8")] {
        hear(&mut follower, &policy_event(index, 100, true, side, side));
    }
    hear(&mut follower, &first);
    let verbs = verbs(&mut follower);
    assert_eq!(verbs.iter().position(|verb| *verb == PolicyVerb::Bypass), Some(1), "{verbs:?}");
}

/// A policy that is left out may become a block, which the kernel asks where it was.
#[test]
fn a_policy_that_was_left_out_keeps_its_place() {
    const INTERFACE_AT: usize = 16 + 48;
    let of_interface = |is_block| {
        let mut message = policy_event(8, 100, is_block, "10.9.1.0/24", "10.9.1.0/24");
        message[INTERFACE_AT] = 2;
        message
    };
    let mut follower = follower();
    hear(&mut follower, &of_interface(false));
    hear(&mut follower, &policy_event(16, 100, false, "10.9.1.0/24", "10.9.1.0/24"));
    assert_eq!(verbs(&mut follower), [PolicyVerb::Bypass]);
    hear(&mut follower, &of_interface(true));
    assert_eq!(verbs(&mut follower), [PolicyVerb::Discard, PolicyVerb::Bypass]);
}

/// The message with this selector in front: the addresses' last two octets and lengths, as destination and source.
fn selecting(message: &[u8], sides: [([u8; 4], u8); 2]) -> Vec<u8> {
    const SELECTOR_AT: usize = 16;
    let mut message = message.to_vec();
    for (side, (address, len)) in sides.into_iter().enumerate() {
        message[SELECTOR_AT + 16 * side..][..4].copy_from_slice(&address);
        message[SELECTOR_AT + 42 + side] = len;
    }
    message
}

/// The kernel seals with an association only what its selector takes.
#[test]
fn an_association_serves_the_policies_of_its_selector() {
    let messages = captured();
    for (sides, verb, notes) in [
        ([([10, 2, 0, 0], 24), ([10, 1, 0, 0], 24)], PolicyVerb::Protect, vec![]),
        ([([10, 2, 0, 0], 16), ([0; 4], 0)], PolicyVerb::Protect, vec![]),
        ([([10, 4, 0, 0], 24), ([10, 3, 0, 0], 24)], PolicyVerb::Discard, vec!["so it discards"]),
        (
            [([10, 2, 0, 0], 24), ([10, 1, 0, 0], 25)],
            PolicyVerb::Discard,
            vec!["SPI 0x1001 takes a part of what this policy names (sel)", "so it discards"],
        ),
    ] {
        let mut follower = follower();
        hear(&mut follower, &messages["newpolicy-out"]);
        hear(&mut follower, &selecting(&messages["newsa-gcm-esn"], sides));
        let wanted = follower.wanted(&empty(), &BTreeSet::new());
        assert_eq!(wanted.plan.policies[0].verb, verb, "{sides:?}");
        assert_eq!(wanted.notes.len(), notes.len(), "{:?}", wanted.notes);
        assert!(wanted.notes.iter().zip(notes).all(|(note, part)| note.contains(part)), "{:?}", wanted.notes);
    }
}

/// An association takes packets of one family inside, unless its selector has none: of all addresses of IPv4 none is of IPv6.
#[test]
fn an_association_of_one_family_serves_no_policy_of_the_other() {
    const SELECTOR_AT: usize = 16;
    const FAMILY_AT: usize = SELECTOR_AT + 40;
    let (v4, v6) = (2, 10);
    let messages = captured();
    let with_family = |name: &str, at: usize, family: u8| {
        let mut message = messages[name].clone();
        message[at] = family;
        message
    };
    for (of_policy, of_state, verb) in [
        (v6, v4, PolicyVerb::Discard),
        (v6, 0, PolicyVerb::Protect),
        (v4, v4, PolicyVerb::Protect),
        (v4, 0, PolicyVerb::Protect),
    ] {
        let mut policy = with_family("newpolicy-out", FAMILY_AT, of_policy);
        policy[SELECTOR_AT..][..32].fill(0);
        policy[SELECTOR_AT + 42..][..2].fill(0);
        let mut follower = follower();
        hear(&mut follower, &policy);
        hear(&mut follower, &with_family("newsa-gcm-esn", FAMILY_AT, of_state));
        let wanted = follower.wanted(&empty(), &BTreeSet::new());
        assert_eq!(wanted.plan.policies[0].verb, verb, "{of_policy} {of_state}");
    }
}

/// The kernel asks such a policy of all that it forwards, either way, and no policy here is like that.
#[test]
fn a_policy_of_what_is_forwarded_alone_is_told_once() {
    const DIRECTION_AT: usize = 16 + 160;
    const INTERFACE_AT: usize = 16 + 48;
    let net = "10.9.1.0/24";
    let [inbound, outbound, forward] = [0, 1, 2];
    for (is_block, interface) in [(true, 0), (false, 0), (true, 2), (false, 2)] {
        let of = |index, priority, direction| {
            let mut message = policy_event(index, priority, is_block, net, net);
            message[DIRECTION_AT] = direction;
            message[INTERFACE_AT] = interface;
            message
        };
        let mut follower = follower();
        assert_eq!(hear(&mut follower, &of(8, 100, forward)), "");
        let wanted = follower.wanted(&empty(), &BTreeSet::new());
        assert_eq!(wanted.plan.policies, []);
        assert_eq!(
            wanted.notes,
            [
                "policy fwd from 10.9.1.0/24 to 10.9.1.0/24: a policy of what the kernel forwards (fwd) is left out, because Weir asks those of \
                 in and out alone: add it with dir in for what comes in outside, and with dir out for what leaves there"
            ]
        );
        let notes_of_fwd = |follower: &mut Follower| {
            let wanted = follower.wanted(&empty(), &BTreeSet::new());
            wanted.notes.iter().filter(|note| note.contains("fwd")).count()
        };
        assert_eq!(notes_of_fwd(&mut follower), 0, "what was said is not said again");
        // With its other half it says nothing, whatever their priorities.
        let mut follower = self::follower();
        hear(&mut follower, &of(8, 100, forward));
        hear(&mut follower, &of(16, 101, inbound));
        assert_eq!(notes_of_fwd(&mut follower), 0);
        // One of what leaves is no half.
        hear(&mut follower, &of(24, 101, outbound));
        hear(&mut follower, &of(16, 101, outbound));
        assert_eq!(notes_of_fwd(&mut follower), 1);
    }
}

/// Of a device that seals by itself the kernel's counters may tell nothing.
#[test]
fn an_association_that_a_device_numbers_is_left_out() {
    // `XFRMA_OFFLOAD_DEV`: `xfrm_user_offload` of device 2, and these flags.
    let offloaded = |flags: u8| {
        let mut message = captured()["newsa-gcm-esn"].clone();
        message.extend([12, 0, 28, 0, 2, 0, 0, 0, flags, 0, 0, 0]);
        let length = (message.len() as u32).to_ne_bytes();
        message[..4].copy_from_slice(&length);
        let mut follower = follower();
        hear(&mut follower, &message);
        let wanted = follower.wanted(&empty(), &BTreeSet::new());
        (wanted.plan.associations.len(), wanted.notes.join("; "))
    };
    let (number, notes) = offloaded(4);
    assert!(number == 0 && notes.contains("its device numbers packets by itself"), "{number}: {notes}");
    // Crypto alone, and what is received.
    for flags in [0, 6] {
        assert_eq!(offloaded(flags), (1, String::new()), "{flags}");
    }
}

/// The message with one more attribute.
fn with_attribute(message: &[u8], attribute: &[u8]) -> Vec<u8> {
    let mut message = [message, attribute].concat();
    let length = (message.len() as u32).to_ne_bytes();
    message[..4].copy_from_slice(&length);
    message
}

/// The message with `XFRMA_SEC_CTX`: `xfrm_user_sec_ctx` of 8 bytes, and a label of one character.
fn labelled(message: &[u8]) -> Vec<u8> {
    with_attribute(message, &[14, 0, 8, 0, 10, 0, 8, 0, 1, 1, 2, 0, b'a', 0, 0, 0])
}

#[test]
fn what_is_left_out_of_an_association_is_told() {
    const INFO_AT: usize = 16;
    let mut message = captured()["newsa-gcm-esn"].clone();
    message[INFO_AT + 216] |= 3;
    message[INFO_AT + 48] = 2;
    for kind in [22, 24, 29] {
        message = with_attribute(&message, &[8, 0, kind, 0, 1, 0, 0, 0]);
    }
    let mut follower = follower();
    hear(&mut follower, &message);
    let wanted = follower.wanted(&empty(), &BTreeSet::new());
    assert_eq!(wanted.plan.associations.len(), 1);
    let notes = ["flag noecn", "flag decap-dscp", "tfcpad", "extra_flag", "output-mark", "dev"];
    let state = "SPI 0x00001001 from 192.0.2.1 to 192.0.2.2";
    assert_eq!(wanted.notes.len(), notes.len(), "{:?}", wanted.notes);
    for (note, name) in wanted.notes.iter().zip(notes) {
        assert!(note.starts_with(&format!("{state}: {name} is left out")), "{note}");
    }
}

/// Without its label an association would seal packets of any.
#[test]
fn an_association_of_labelled_packets_is_left_out() {
    let messages = captured();
    let mut follower = follower();
    hear(&mut follower, &messages["newpolicy-out"]);
    hear(&mut follower, &labelled(&messages["newsa-gcm-esn"]));
    let wanted = follower.wanted(&empty(), &BTreeSet::new());
    assert_eq!((names(&wanted), wanted.plan.policies[0].verb), (vec![], PolicyVerb::Discard));
    assert_eq!(
        wanted.notes[0],
        "SPI 0x00001001 from 192.0.2.1 to 192.0.2.2: it is of packets with a security label, and none of Weir's has one"
    );
}

/// Without its label a policy would be of all packets of its addresses.
#[test]
fn a_policy_of_labelled_packets_is_left_out() {
    let message = labelled(&captured()["newpolicy-out"]);
    let mut follower = follower();
    assert_eq!(hear(&mut follower, &message), "+ policy out from 10.1.0.0/24 to 10.2.0.0/24");
    let wanted = follower.wanted(&empty(), &BTreeSet::new());
    assert_eq!(wanted.plan.policies, []);
    assert_eq!(
        wanted.notes,
        [
            "policy out from 10.1.0.0/24 to 10.2.0.0/24: it is of packets with a security label, and none of Weir's has one"
        ]
    );
}

#[test]
fn what_cannot_be_followed_is_one_sentence_and_harms_nothing() {
    let messages = captured();
    let mut follower = follower();
    for name in ["newsa-gcm-esn", "newsa-udp6-transport", "newsa-hmac", "newpolicy-out", "newpolicy-v6"] {
        hear(&mut follower, &messages[name]);
    }
    let running = follower.wanted(&empty(), &BTreeSet::new()).plan;
    assert_eq!(running.associations.len(), 3);
    let [hmac, in_udp, _] = &running.associations[..] else { panic!("three") };
    assert_eq!((hmac.algorithm, hmac.dont_fragment as u8), (Algorithm::NullHmacSha256, 2));
    assert_eq!((in_udp.udp_ports, in_udp.is_tunnel), (Some([4500, 4501]), false));
    let (soft, hard) = (in_udp.lifetime.soft, in_udp.lifetime.hard);
    assert_eq!((soft.bytes, soft.packets, soft.time_ns), (Some(1000), None, None));
    assert_eq!((hard.bytes, hard.packets, hard.time_ns), (Some(2000), None, Some(3_600_000_000_000)));

    let state = "from 192.0.2.1 to 192.0.2.2";
    for (name, expected) in [
        (
            "newsa-cbc",
            format!("SPI 0x00001004 {state}: cbc(aes) with hmac(sha256) of 128 bits is not built: Weir has"),
        ),
        ("newsa-ifid", format!("SPI 0x00001005 {state}: it is of xfrm interface 7 (if_id)")),
        ("newsa-mark", format!("SPI 0x00001006 {state}: it is of packets with mark 0x5")),
        ("newsa-beet", format!("SPI 0x00001007 {state}: mode beet is not built")),
        ("updsa-allocated", format!("SPI 0x00003000 {state}: it has the key of out-00001001")),
        ("newpolicy-ifid", "policy out from 0.0.0.0/0 to 0.0.0.0/0: it is of xfrm interface 9".into()),
        ("newpolicy-sub", "it is of the table sub, which is not built".into()),
    ] {
        let line = hear(&mut follower, &messages[name]);
        assert!(line.starts_with('+'), "{name}: {line}");
        let wanted = follower.wanted(&running, &BTreeSet::new());
        let [note] = &wanted.notes[..] else { panic!("{name}: {:?}", wanted.notes) };
        assert!(note.contains(&expected), "{name}: {note}");
        assert_eq!(wanted.plan, running, "{name}");
    }
    // Packets that these name would go out by a later policy, so they are discarded.
    for (name, expected, from) in [
        (
            "newpolicy-icmp",
            "policy out from 10.9.0.0/16 to 0.0.0.0/0: it is of one type, code or key",
            [10, 9, 0, 0],
        ),
        ("newpolicy-two", "it wants another protocol than ESP", [10, 6, 0, 0]),
    ] {
        hear(&mut follower, &messages[name]);
        let wanted = follower.wanted(&running, &BTreeSet::new());
        let [note] = &wanted.notes[..] else { panic!("{name}: {:?}", wanted.notes) };
        assert!(note.contains(expected) && note.ends_with("what it names is discarded"), "{name}: {note}");
        let of = |policy: &&PolicyPlan| policy.selector.source.parts().0 == IpAddr::from(from);
        let policy = wanted.plan.policies.iter().find(of).unwrap();
        assert_eq!((policy.verb, &policy.associations[..]), (PolicyVerb::Discard, &[][..]), "{name}");
    }
    hear(&mut follower, &messages["newpolicy-block"]);
    let policies = follower.wanted(&running, &BTreeSet::new()).plan.policies;
    let blocked = policies.iter().find(|policy| policy.selector.destination_ports == Some(25..=25)).unwrap();
    assert_eq!((blocked.verb, blocked.selector.protocol), (PolicyVerb::Discard, Some(6)));
}

/// Without its counters, a kernel may have sent with a key: this one is not used.
#[test]
fn an_association_without_its_counters_is_left_out() {
    const HEADER_BYTES: usize = 16 + 224;
    for (name, kind) in [("newsa-gcm-esn", 23_u16), ("newsa-in", 10)] {
        let mut message = captured()[name].clone();
        let mut at = HEADER_BYTES;
        while message[at + 2..at + 4] != kind.to_ne_bytes() {
            at += usize::from(u16::from_ne_bytes([message[at], message[at + 1]])).next_multiple_of(4);
        }
        // An attribute that nobody knows.
        message[at + 2] = 99;
        let mut follower = follower();
        hear(&mut follower, &message);
        let wanted = follower.wanted(&empty(), &BTreeSet::new());
        let [note] = &wanted.notes[..] else { panic!("{name}: {:?}", wanted.notes) };
        assert!(note.contains("the kernel does not tell its counters"), "{name}: {note}");
        assert_eq!(wanted.plan, empty(), "{name}");
    }
}

/// A follower that missed all events and reads a dump has the same.
#[test]
fn a_dump_says_what_the_events_said() {
    let messages = captured();
    let mut by_events = follower();
    let until_dump = CAPTURED.lines().filter_map(|line| line.split_once(' ')).map(|(name, _)| name);
    for name in until_dump.filter(|name| name.starts_with("new") || name.starts_with("upd")) {
        if name != "newsa-short" {
            hear(&mut by_events, &messages[name]);
        }
    }
    let mut by_dump = follower();
    let dump = [&messages["dump-sa"][..], &messages["dump-policy"]].concat();
    assert_eq!(by_dump.dumped(&dump), Ok(false));
    let [events, dump_says] =
        [&mut by_events, &mut by_dump].map(|follower| follower.wanted(&empty(), &BTreeSet::new()));
    assert_eq!(events.plan, dump_says.plan);
    assert_eq!(events.notes, dump_says.notes);
    assert!(events.plan.associations.len() == 4 && events.plan.policies.len() == 6, "{:?}", events.plan);
    // Once more and twice at once, over the running plan: nothing changes, and nothing is said again.
    assert_eq!(by_dump.dumped(&[&dump[..], &dump].concat()), Ok(false));
    let again = by_dump.wanted(&events.plan, &BTreeSet::new());
    assert_eq!((again.plan, &again.notes[..], again.keys.len()), (events.plan, &[][..], 0));
}

#[test]
fn what_expires_is_said_and_ends() {
    let messages = captured();
    let mut follower = follower();
    hear(&mut follower, &messages["newsa-short"]);
    assert_eq!(names(&follower.wanted(&empty(), &BTreeSet::new())), ["out-00001008"]);
    let lines = hear(&mut follower, &messages["expire"]);
    assert_eq!(
        lines,
        "association SPI 0x00001008 from 192.0.2.1 to 192.0.2.2: a successor is due; \
         - association SPI 0x00001008 from 192.0.2.1 to 192.0.2.2: its life is over"
    );
    assert_eq!(follower.wanted(&empty(), &BTreeSet::new()).plan, empty());
    hear(&mut follower, &messages["newsa-hmac"]);
    assert_eq!(
        hear(&mut follower, &messages["delsa"]),
        "- association SPI 0x00001003 from 192.0.2.1 to 192.0.2.2"
    );
    assert_eq!(hear(&mut follower, &messages["delsa"]), "", "it is gone already");
}

fn sealed_event(spi: u32, sealed: u32) -> Vec<u8> {
    counted_event(2, spi, [sealed, 0])
}

/// `NEWAE` of an association to 192.0.2.N with 64-bit numbers, as `xfrm_aevent_id` and `XFRMA_REPLAY_ESN_VAL` have it.
fn counted_event(to: u8, spi: u32, [sealed, received]: [u32; 2]) -> Vec<u8> {
    let mut body = vec![192, 0, 2, to];
    body.resize(16, 0);
    body.extend(spi.to_be_bytes());
    body.extend([2, 0, 50, 0]);
    body.resize(48, 0);
    body.extend([28, 0, 23, 0]);
    body.extend([0, sealed, received, 0, 0, 0].into_iter().flat_map(u32::to_ne_bytes));
    let mut message = ((16 + body.len()) as u32).to_ne_bytes().to_vec();
    message.extend([0x1e, 0, 0, 0]);
    message.resize(16, 0);
    [message, body].concat()
}

/// Who recorded what the kernel received cannot send it once more: neither what came before the association was known here, nor what came
/// until it ran, nor what came by another with its key.
#[test]
fn what_the_kernel_received_is_not_received_again() {
    let folder = Folder::new("follow-received");
    let new = captured()["newsa-in"].clone();
    let mut counted = new.clone();
    let replay = counted.windows(4).position(|window| window == [16, 0, 10, 0]).unwrap();
    counted[replay + 8..replay + 12].copy_from_slice(&7u32.to_ne_bytes());
    let next = |follower: &mut Follower| {
        let wanted = follower.wanted(&empty(), &BTreeSet::new());
        assert_eq!(names(&wanted), ["in-00002001"], "{:?}", wanted.notes);
        assert_eq!(wanted.write_keys(&mut KeyFiles::new(&folder.0)), []);
        let key = PathBuf::from(wanted.plan.associations[0].key_file.clone().unwrap());
        let mark = std::fs::read_to_string(MarkKind::Received.path(&key)).unwrap_or_default();
        mark.lines().find_map(|line| line.strip_prefix("next ")?.parse::<u64>().ok())
    };
    let mut follower = Follower::new(&folder.0);
    hear(&mut follower, &new);
    assert_eq!(next(&mut follower), None);
    assert_eq!(follower.dumped(&counted), Ok(false));
    assert_eq!(next(&mut follower), Some(8));
    assert_eq!(hear(&mut follower, &counted_event(1, 0x2001, [0, 9])), "");
    hear(&mut follower, &captured()["flushsa"]);
    hear(&mut follower, &new);
    assert_eq!(next(&mut follower), Some(10));
}

/// `DELSA` of the association to 192.0.2.2 with this SPI, as `xfrm_usersa_id` has it.
fn gone_event(spi: u32) -> Vec<u8> {
    let mut message = counted_event(2, spi, [0; 2]);
    message.truncate(16 + 24);
    message[..4].copy_from_slice(&40u32.to_ne_bytes());
    message[4] = 0x11;
    message
}

/// The kernel tells the request, and takes from it limits, ports and an interface number alone.
#[test]
fn a_request_to_update_changes_limits_and_ports_alone() {
    const INFO_AT: usize = 16;
    let messages = captured();
    let updating = |name: &str| {
        let mut request = messages[name].clone();
        request[4] = 0x1a;
        request[INFO_AT + 96 + 24..][..8].copy_from_slice(&1000_u64.to_ne_bytes());
        request[INFO_AT + 208..][..4].fill(0);
        request[INFO_AT + 215..][..2].fill(0);
        request
    };
    let mut follower = follower();
    for name in ["newsa-gcm-esn", "newpolicy-out", "newsa-udp6-transport"] {
        hear(&mut follower, &messages[name]);
    }
    let mut expected = follower.wanted(&empty(), &BTreeSet::new()).plan;
    let mut request = updating("newsa-gcm-esn");
    let key = request.windows(4).position(|window| window == [1, 2, 3, 4]).unwrap();
    request[key] = 0x77;
    let line = hear(&mut follower, &request);
    assert_eq!(line, "~ association SPI 0x00001001 from 192.0.2.1 to 192.0.2.2");
    let mut request = updating("newsa-udp6-transport");
    let ports = request.windows(4).position(|window| window == [0x11, 0x94, 0x11, 0x95]).unwrap();
    request[ports + 3] = 0x96;
    hear(&mut follower, &request);
    for association in &mut expected.associations {
        association.lifetime.hard.packets = Some(1000);
        association.udp_ports = association.udp_ports.map(|_| [4500, 4502]);
    }
    let wanted = follower.wanted(&empty(), &BTreeSet::new());
    assert_eq!((wanted.plan, &wanted.notes[..]), (expected, &[][..]));
    // One that becomes an xfrm interface's is left out, and a request without the number changes nothing of that.
    let mut of_interface = messages["newsa-ifid"].clone();
    let spi = of_interface.windows(4).position(|window| window == [0, 0, 0x10, 5]).unwrap();
    of_interface[spi + 3] = 1;
    for request in [of_interface, updating("newsa-gcm-esn")] {
        hear(&mut follower, &request);
        assert_eq!(names(&follower.wanted(&empty(), &BTreeSet::new())), ["out-00001002"]);
    }
}

#[test]
fn a_key_with_which_the_kernel_sends_is_given_up() {
    let messages = captured();
    let mut follower = follower();
    hear(&mut follower, &messages["newsa-gcm-esn"]);
    assert_eq!(hear(&mut follower, &sealed_event(0x1001, 0)), "", "no packet yet");
    let running = follower.wanted(&empty(), &BTreeSet::new()).plan;
    let line = hear(&mut follower, &sealed_event(0x1001, 7));
    assert!(line.ends_with("the kernel has sent 7 packets by it"), "{line}");
    let wanted = follower.wanted(&running, &BTreeSet::new());
    assert_eq!(wanted.plan.associations, []);
    assert!(
        wanted.notes[0].contains("the kernel has sent 7 packets with the key of SPI 0x1001"),
        "{:?}",
        wanted.notes
    );
    // A change of the association, with the counters of who asked for it; then one with another key.
    let mut changed = messages["newsa-gcm-esn"].clone();
    hear(&mut follower, &changed);
    assert_eq!(follower.wanted(&running, &BTreeSet::new()).plan.associations, []);
    hear(&mut follower, &gone_event(0x1001));
    let key = changed.windows(4).position(|window| window == [1, 2, 3, 4]).unwrap();
    changed[key] = 0x77;
    hear(&mut follower, &changed);
    assert_eq!(follower.wanted(&running, &BTreeSet::new()).plan.associations.len(), 1);
}

/// IKE may take an association away and give the kernel the same key once more, with counters that begin anew.
#[test]
fn a_key_with_which_the_kernel_has_sent_stays_given_up() {
    let messages = captured();
    let again = &messages["newsa-gcm-esn"];
    let mut expired = again.clone();
    // `EXPIRE`: the association, and that it is over.
    expired[4] = 0x18;
    expired.truncate(16 + 224);
    expired.extend([1, 0, 0, 0, 0, 0, 0, 0]);
    expired[..4].copy_from_slice(&248u32.to_ne_bytes());
    let mut other_spi = again.clone();
    let spi = other_spi.windows(4).position(|window| window == [0, 0, 0x10, 1]).unwrap();
    other_spi[spi + 3] = 9;
    for gone in [&messages["flushsa"], &expired] {
        for came in [again, &other_spi] {
            let mut follower = follower();
            hear(&mut follower, again);
            hear(&mut follower, &sealed_event(0x1001, 7));
            assert!(hear(&mut follower, gone).starts_with("- "));
            hear(&mut follower, came);
            let wanted = follower.wanted(&empty(), &BTreeSet::new());
            assert_eq!(wanted.plan.associations, []);
            assert!(
                wanted.notes[0].contains("the kernel has sent 7 packets with the key"),
                "{:?}",
                wanted.notes
            );
        }
    }
    let mut follower = follower();
    hear(&mut follower, again);
    hear(&mut follower, &sealed_event(0x1001, 7));
    assert_eq!(follower.dumped(&[]), Ok(false));
    assert_eq!(follower.dumped(again), Ok(false));
    assert_eq!(follower.wanted(&empty(), &BTreeSet::new()).plan.associations, []);
}

#[test]
fn keys_that_are_refused_are_left_out_until_there_is_another() {
    let messages = captured();
    let mut follower = follower();
    hear(&mut follower, &messages["newsa-gcm-esn"]);
    hear(&mut follower, &messages["newsa-in"]);
    follower.wanted(&empty(), &BTreeSet::new());
    follower.refuse("out-00001001", "its disk is full".into());
    let wanted = follower.wanted(&empty(), &BTreeSet::new());
    assert_eq!(names(&wanted), ["in-00002001"]);
    assert_eq!(wanted.notes, ["SPI 0x00001001 from 192.0.2.1 to 192.0.2.2: its disk is full"]);
    hear(&mut follower, &messages["newsa-gcm-esn"]);
    assert_eq!(follower.wanted(&empty(), &BTreeSet::new()).plan.associations.len(), 2);
    // A kernel in lockdown tells all zeros.
    let key: Vec<u8> = (1..=0x10).chain([0xa1, 0xb2, 0xc3, 0xd4]).collect();
    let mut hidden = messages["newsa-gcm-esn"].clone();
    let at = hidden.windows(20).position(|window| window == key).unwrap();
    hidden[at..at + 20].fill(0);
    hear(&mut follower, &gone_event(0x1001));
    hear(&mut follower, &hidden);
    assert!(follower.wanted(&empty(), &BTreeSet::new()).notes[0].contains("nothing but zeros"));
}

/// The port of a peer behind a NAT is another: the association with its key ends before the one that follows it begins.
#[test]
fn an_association_that_moves_is_renewed() {
    let messages = captured();
    let mut follower = follower();
    hear(&mut follower, &messages["newsa-gcm-esn"]);
    let mut running = follower.wanted(&empty(), &BTreeSet::new()).plan;
    running.associations[0].udp_ports = Some([4500, 4501]);
    hear(&mut follower, &messages["newsa-in"]);
    let wanted = follower.wanted(&running, &BTreeSet::new());
    let [moved, new] = ["out-00001001", "in-00002001"].map(String::from);
    assert_eq!(wanted.new_names(&running), BTreeSet::from([moved.clone(), new]));
    assert_eq!(wanted.renewed_names(&running), BTreeSet::from([moved]));
    let steps = wanted.steps(&running);
    assert_eq!(steps.iter().map(|plan| plan.associations.len()).collect::<Vec<_>>(), [1, 2]);
}

#[test]
fn what_is_cut_off_is_passed_over() {
    for (name, bytes) in captured() {
        for len in 0..bytes.len() {
            let mut cut = bytes[..len].to_vec();
            hear(&mut follower(), &cut);
            // The length says that the message is whole.
            if let Some(front) = cut.first_chunk_mut::<4>() {
                *front = (len as u32).to_ne_bytes();
                let mut follower = follower();
                hear(&mut follower, &cut);
                let wanted = follower.wanted(&empty(), &BTreeSet::new());
                assert!(wanted.plan.associations.len() <= 1, "{name}");
            }
        }
    }
}

/// A host in transport mode, whose policies name no ends: the end that is its own gives the direction.
#[test]
fn the_own_end_says_the_direction_and_names_of_others_are_left() {
    let messages = captured();
    let mut follower = follower();
    hear(&mut follower, &messages["newsa-udp6-transport"]);
    let mut back = messages["newsa-udp6-transport"].clone();
    let ends: Vec<_> = (0..back.len() - 16).filter(|&at| back[at..at + 4] == [0x20, 1, 0x0d, 0xb8]).collect();
    ends.into_iter().for_each(|at| back[at + 15] ^= 3);
    let key = back.windows(4).position(|window| window == [1, 2, 3, 4]).unwrap();
    back[key] = 0x77;
    hear(&mut follower, &back);
    let others = BTreeSet::from(["out-00001002".to_string()]);
    let plan = follower.wanted(&empty(), &others).plan;
    let associations: Vec<_> = plan.associations.iter().map(|of| (of.name.as_str(), of.is_inbound)).collect();
    assert_eq!(associations, [("in-00001002", true), ("out-00001002x", false)]);
    // An association of another gateway is none of ours.
    let elsewhere = EspPlan { addresses: vec!["192.0.2.77".parse().unwrap()], ..empty() };
    let wanted = follower.wanted(&elsewhere, &others);
    assert_eq!(wanted.plan.associations, []);
    assert!(
        wanted.notes.iter().all(|note| note.contains("neither end is an address of the esp")),
        "{:?}",
        wanted.notes
    );
}

/// A policy in transport mode that names no ends has the associations between hosts of its selector alone.
#[test]
fn a_policy_without_ends_has_no_association_of_another_peer() {
    let messages = captured();
    let mut follower = follower();
    hear(&mut follower, &messages["newsa-udp6-transport"]);
    let mut policy = messages["newpolicy-v6"].clone();
    let is_end = |at: &usize| policy[*at..].starts_with(&[0x20, 1, 0x0d, 0xb8]);
    let ends: Vec<usize> = (0..policy.len()).filter(is_end).collect();
    assert_eq!(ends.len(), 2);
    ends.into_iter().for_each(|at| policy[at..at + 16].fill(0));
    hear(&mut follower, &policy);
    let wanted = follower.wanted(&empty(), &BTreeSet::new()).plan.policies;
    assert_eq!((wanted[0].verb, &wanted[0].associations[..]), (PolicyVerb::Discard, &[][..]));
    // The selector: the destination behind the header, and the source, of 64 bits each.
    for at in [16, 32] {
        policy[at..at + 8].copy_from_slice(&[0x20, 1, 0x0d, 0xb8, 0, 0, 0, 0]);
    }
    hear(&mut follower, &policy);
    let wanted = follower.wanted(&empty(), &BTreeSet::new()).plan.policies;
    assert_eq!(
        (wanted[0].verb, &wanted[0].associations[..]),
        (PolicyVerb::Protect, &["out-00001002".into()][..])
    );
}
