//! Netlink that is read by hand: values put into messages come out, whatever lies around them; nonsense ends the reading.

use netlink_bindings::utils;
use weir_port::monitor::LinkEvent;
use weir_port::{address, monitor, netns, qdisc};

use crate::draw::Draw;

const RTM_NEWLINK: u16 = 16;
const RTM_DELLINK: u16 = 17;
const RTM_NEWNSID: u16 = 88;
const IFF_UP: u32 = 1;
const IFF_LOWER_UP: u32 = 1 << 16;

/// Events of interfaces.
pub fn link_events(bytes: &[u8]) {
    let mut draw = Draw::new(bytes);
    if draw.rarely(3) {
        let bytes = draw.rest();
        assert!(monitor::parse(bytes).len() <= bytes.len() / 32);
        return;
    }
    let (mut messages, mut expected) = (Vec::new(), Vec::new());
    for _ in 0..draw.below(6) {
        let kind = draw.pick(&[RTM_NEWLINK, RTM_DELLINK, 20, 36]);
        let (family, ifindex, flags) = (draw.pick(&[0, 0, 0, 7]), draw.u32(), draw.u32());
        let attributes = attributes(&mut draw).0;
        // A bridge announces ports that leave it in a family of its own.
        match (kind, family) {
            (RTM_DELLINK, 0) => expected.push(LinkEvent::Gone { ifindex }),
            (RTM_NEWLINK, _) => expected.push(LinkEvent::Changed {
                ifindex,
                up: flags & IFF_UP != 0,
                has_carrier: flags & IFF_LOWER_UP != 0,
            }),
            _ => {}
        }
        let mut payload = vec![family, 0, 0, 0];
        payload.extend([ifindex, flags, 0].map(u32::to_ne_bytes).concat());
        payload.extend(attributes);
        messages.extend(message(kind, &payload));
    }
    assert_eq!(monitor::parse(&messages), expected);
    let cut = draw.below(messages.len() + 1);
    let found = monitor::parse(&messages[..cut]);
    assert_eq!(found, expected[..found.len()]);
}

/// The options of a qdisc, next hops, the number of a namespace.
pub fn netlink_replies(bytes: &[u8]) {
    let mut draw = Draw::new(bytes);
    match draw.below(4) {
        0 => {
            let bytes = draw.rest();
            assert!(qdisc::raw_options(bytes).len() <= bytes.len().saturating_sub(4));
            assert!(address::next_hops(bytes).len() <= bytes.len() / 8);
            assert!(netns::id_of_reply(bytes).is_none_or(|id| id >= 0 && bytes.len() >= 28));
        }
        1 => {
            const TCA_OPTIONS: u16 = 2;
            let (bytes, all) = attributes(&mut draw);
            let expected = all.into_iter().find(|(kind, _)| *kind == TCA_OPTIONS).map(|(_, value)| value);
            assert_eq!(qdisc::raw_options(&bytes), expected.unwrap_or_default());
        }
        2 => {
            let (mut bytes, mut expected) = (Vec::new(), Vec::new());
            for _ in 0..draw.below(5) {
                let (ifindex, attributes) = (draw.u32(), attributes(&mut draw).0);
                bytes.extend((8 + attributes.len() as u16).to_ne_bytes());
                bytes.extend([draw.u8(), draw.u8()]);
                bytes.extend(ifindex.to_ne_bytes());
                bytes.extend(attributes);
                expected.push(ifindex);
            }
            assert_eq!(address::next_hops(&bytes), expected);
            let found = address::next_hops(&bytes[..draw.below(bytes.len() + 1)]);
            assert_eq!(found, expected[..found.len()]);
        }
        _ => {
            let id = draw.u32() as i32;
            let kind = draw.pick(&[RTM_NEWNSID, RTM_NEWNSID, 2]);
            let mut payload = vec![0; 4];
            utils::push_header(&mut payload, 1, 4);
            payload.extend(id.to_ne_bytes());
            payload.extend(attributes(&mut draw).0);
            let reply = message(kind, &payload);
            let expected = Some(id).filter(|&id| id >= 0 && kind == RTM_NEWNSID);
            assert_eq!(netns::id_of_reply(&reply), expected);
            assert_eq!(netns::id_of_reply(&reply[..draw.below(reply.len())]), None, "cut short");
        }
    }
}

/// A message with its header, padded.
fn message(kind: u16, payload: &[u8]) -> Vec<u8> {
    let mut bytes = (16 + payload.len() as u32).to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend([0; 10]);
    bytes.extend(payload);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// Attributes by the generated bindings' own writer, and their contents.
fn attributes(draw: &mut Draw) -> (Vec<u8>, Vec<(u16, Vec<u8>)>) {
    let (mut bytes, mut all) = (Vec::new(), Vec::new());
    for _ in 0..draw.below(5) {
        let (kind, len) = (draw.pick(&[1, 2, 3, 9, 0x3fff]), draw.below(20));
        let value = draw.bytes(len);
        // Two bits of the kind say whether the attribute is nested or in network order.
        let flags = draw.pick(&[0, 0x4000, 0x8000]);
        utils::push_header(&mut bytes, kind | flags, len as u16);
        bytes.extend(&value);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        all.push((kind, value));
    }
    (bytes, all)
}
