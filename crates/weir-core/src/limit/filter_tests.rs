//! The filters as a program, run here by an interpreter, beside the classifier of wires.

#[path = "filter_packets.rs"]
pub mod packets;

use packets::{Random, filters, frame};

use super::*;
use crate::asm::Slot;
use crate::classify::headers::{Headers, network_offset};
use crate::classify::{FlowShare, Rule};
use crate::limit::interpreter::{LINK_HEADER_BYTES, QueuedPacket, run};

const FREE: u16 = 0xffff;

fn number(target: Target) -> u16 {
    match target {
        Target::Class(class) => class,
        Target::Free => FREE,
    }
}

fn program(classifier: &Classifier) -> Vec<Slot> {
    let mut asm = Asm::new();
    asm.op(Op::Mov, Reg::R6, Reg::R1);
    parse(&mut asm, LINK_HEADER_BYTES as i32);
    decide(&mut asm, classifier, number).unwrap();
    asm.op(Op::Mov, Reg::R0, Reg::R7);
    asm.exit();
    asm.finish()
}

#[test]
fn a_million_random_packets_are_classified_as_on_a_wire() {
    const SETS: usize = 500;
    const PACKETS: usize = 2000;
    let mut random = Random(0x7765_6972);
    let mut matched = 0;
    for _ in 0..SETS {
        let classifier = filters(&mut random, 12);
        let program = program(&classifier);
        for _ in 0..PACKETS {
            let frame = frame(&mut random);
            let expected = number(classifier.classify(0, 0, &Headers::parse(&frame)));
            let got = run(&program, &QueuedPacket::of_frame(&frame));
            assert_eq!(got, expected.into(), "{frame:02x?} by {:#?}", classifier.rules());
            matched += usize::from(expected != 12);
        }
    }
    assert!((SETS * PACKETS / 4..SETS * PACKETS * 9 / 10).contains(&matched), "{matched} matched");
}

/// A tag beside the packet is one of the two that are skipped; an interface without a link header has none.
#[test]
fn a_packet_is_classified_the_same_wherever_its_link_header_is() {
    let mut random = Random(0x6c69_6d69);
    let mut tagged = 0;
    for _ in 0..200 {
        let classifier = filters(&mut random, 12);
        let ethernet = program(&classifier);
        let mut asm = Asm::new();
        asm.op(Op::Mov, Reg::R6, Reg::R1);
        parse(&mut asm, 0);
        decide(&mut asm, &classifier, number).unwrap();
        asm.op(Op::Mov, Reg::R0, Reg::R7);
        asm.exit();
        let bare = asm.finish();
        for _ in 0..100 {
            let frame = frame(&mut random);
            let expected = u64::from(number(classifier.classify(0, 0, &Headers::parse(&frame))));
            if frame.len() > 18 && VLAN_TAGS.contains(&u16::from_be_bytes([frame[12], frame[13]])) {
                let stripped = [&frame[..12], &frame[16..]].concat();
                let packet = QueuedPacket { vlan_present: true, ..QueuedPacket::of_frame(&stripped) };
                assert_eq!(run(&ethernet, &packet), expected, "{frame:02x?}");
                tagged += 1;
            }
            if let Some((protocol, offset)) = network_offset(&frame) {
                let packet = QueuedPacket {
                    frame: frame[offset..].into(),
                    protocol,
                    vlan_present: false,
                    network_at: 0,
                };
                assert_eq!(run(&bare, &packet), expected, "{frame:02x?}");
            }
        }
    }
    assert!(tagged > 1000, "{tagged}");
}

/// A packet above 64 KB, which the interface cuts into segments, has 0 for its length.
#[test]
fn a_packet_too_long_for_its_header_is_read() {
    let rule = |protocol| Rule {
        conditions: Conditions {
            protocol: Some(protocol),
            to_ports: Some(5201..=5201),
            ..Conditions::default()
        },
        target: Target::Class(protocol.into()),
    };
    let classifier = Classifier::new(vec![rule(6), rule(17)], Target::Free).unwrap();
    let program = program(&classifier);
    let mut ipv4 = vec![2; 12];
    ipv4.extend([0x08, 0, 0x45, 0, 0, 0, 0, 0, 0, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    ipv4.extend([0, 1, 0x14, 0x51]);
    let mut ipv6 = vec![2; 12];
    ipv6.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 0, 0, 64]);
    ipv6.extend([1; 32]);
    // Hop by hop, with a jumbo payload's length.
    ipv6.extend([6, 0, 0xc2, 4, 0, 2, 0, 0, 0, 1, 0x14, 0x51]);
    for mut frame in [ipv4, ipv6] {
        frame.resize(70_000, 0);
        assert_eq!(run(&program, &QueuedPacket::of_frame(&frame)), 6);
        frame.truncate(1000);
        assert_eq!(run(&program, &QueuedPacket::of_frame(&frame)), FREE.into(), "one that fits has a length");
    }
}

#[test]
fn what_no_queue_knows_or_no_program_holds_is_refused() {
    let decide = |rules| {
        let classifier = Classifier::new(rules, Target::Free).unwrap();
        super::decide(&mut Asm::new(), &classifier, number)
    };
    let rule = |conditions| Rule { conditions, target: Target::Class(1) };
    let wire = Conditions { interface: Some(0), ..Conditions::default() };
    let share = Conditions { flows: Some(FlowShare { of: 2, index: 0 }), ..Conditions::default() };
    for conditions in [wire, share] {
        assert!(decide(vec![rule(conditions)]).unwrap_err().contains("does not know"));
    }
    let narrow = Conditions {
        from: Subnet::new("2001:db8::1".parse().unwrap(), 128),
        to: Subnet::new("2001:db8::2".parse().unwrap(), 128),
        protocol: Some(6),
        from_ports: Some(1..=2),
        to_ports: Some(1..=2),
        dscp: Some(1),
        ..Conditions::default()
    };
    assert!(decide(vec![rule(narrow.clone()); 500]).is_ok());
    assert!(decide(vec![rule(narrow); 4000]).unwrap_err().contains("weir wire"));
}
