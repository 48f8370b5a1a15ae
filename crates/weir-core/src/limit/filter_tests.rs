//! The filters as a program, run here by an interpreter, beside the classifier of wires.

#[path = "filter_packets.rs"]
mod packets;

use packets::{Random, filters, frame};

use super::*;
use crate::asm::Slot;
use crate::classify::headers::{Headers, network_offset};
use crate::classify::{FlowShare, Rule};

const FREE: u16 = 0xffff;
const LINK_HEADER_BYTES: usize = 14;

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

/// A packet as a queue has it.
struct Packet {
    frame: Vec<u8>,
    /// An ethertype.
    protocol: u16,
    vlan_present: bool,
    /// Of an interface without a link header it is 0.
    network_at: usize,
}

impl Packet {
    /// As the kernel makes it of a frame.
    fn of_frame(frame: &[u8]) -> Packet {
        let protocol = u16::from_be_bytes([frame[12], frame[13]]);
        Packet { frame: frame.into(), protocol, vlan_present: false, network_at: LINK_HEADER_BYTES }
    }

    fn context(&self, offset: i16) -> u64 {
        match offset {
            SKB_LEN => self.frame.len() as u64,
            SKB_PROTOCOL => self.protocol.to_be().into(),
            SKB_VLAN_PRESENT => self.vlan_present.into(),
            _ => panic!("a word that the filters have no use for: {offset}"),
        }
    }
}

/// What the program returns. Registers hold numbers; the stack is the one memory, from address 2^32 down.
fn run(program: &[Slot], packet: &Packet) -> u64 {
    const CONTEXT: u64 = 1 << 40;
    const STACK_TOP: u64 = 1 << 32;
    let mut registers = [0_u64; 11];
    let mut stack = [None::<u8>; 512];
    (registers[1], registers[10]) = (CONTEXT, STACK_TOP);
    let mut at = 0;
    for _ in 0..100_000 {
        let slot = program[at];
        let [opcode, both, ..] = slot.to_le_bytes();
        let (dst, src) = (usize::from(both & 0xf), usize::from(both >> 4));
        let offset = (slot >> 16) as i16;
        let immediate = i64::from((slot >> 32) as i32) as u64;
        at += 1;
        let operand = if opcode & 0x08 == 0 { immediate } else { registers[src] };
        let size = match opcode & 0x18 {
            0x00 => 4,
            0x08 => 2,
            0x10 => 1,
            _ => 8,
        };
        let on_stack = |address: u64| {
            let from = (address.wrapping_add_signed(offset.into()) + 512 - STACK_TOP) as usize;
            from..from + size
        };
        match opcode & 0x07 {
            0x00 => {
                registers[dst] = slot >> 32 | program[at] & !0xffff_ffff;
                at += 1;
            }
            0x01 if registers[src] == CONTEXT => registers[dst] = packet.context(offset),
            0x01 => {
                let bytes = stack[on_stack(registers[src])].iter().map(|byte| byte.expect("written before"));
                registers[dst] = bytes.rev().fold(0, |number, byte| number << 8 | u64::from(byte));
            }
            0x02 | 0x03 => {
                let value = if opcode & 0x07 == 0x02 { immediate } else { registers[src] };
                let bytes = value.to_le_bytes();
                stack[on_stack(registers[dst])].iter_mut().zip(bytes).for_each(|(to, byte)| *to = Some(byte));
            }
            0x04 => {
                assert_eq!(opcode, 0xdc, "the order of the network");
                let number = registers[dst];
                registers[dst] = match immediate {
                    16 => (number as u16).swap_bytes().into(),
                    32 => (number as u32).swap_bytes().into(),
                    _ => number.swap_bytes(),
                };
            }
            0x07 => {
                registers[dst] = match opcode & 0xf0 {
                    0x00 => registers[dst].wrapping_add(operand),
                    0x10 => registers[dst].wrapping_sub(operand),
                    0x50 => registers[dst] & operand,
                    0x60 => registers[dst] << operand,
                    0x70 => registers[dst] >> operand,
                    0xb0 => operand,
                    other => panic!("operation {other:#x}"),
                }
            }
            0x05 if opcode == 0x85 => {
                registers[0] = load_bytes_relative(packet, &registers, &mut stack, STACK_TOP - 512);
                // A call spoils them.
                registers[1..=5].fill(0xdead_beef);
            }
            0x05 if opcode == 0x95 => return registers[0],
            0x05 => {
                let value = registers[dst];
                let holds = match opcode & 0xf0 {
                    0x00 => true,
                    0x10 => value == operand,
                    0x20 => value > operand,
                    0x50 => value != operand,
                    0xa0 => value < operand,
                    0xc0 => (value as i64) < operand as i64,
                    0xd0 => value as i64 <= operand as i64,
                    other => panic!("condition {other:#x}"),
                };
                if holds {
                    at = at.strict_add_signed(offset.into());
                }
            }
            other => panic!("class {other}"),
        }
    }
    panic!("it never ends")
}

fn load_bytes_relative(
    packet: &Packet,
    registers: &[u64; 11],
    stack: &mut [Option<u8>; 512],
    stack_from: u64,
) -> u64 {
    let base = if registers[5] == 0 { 0 } else { packet.network_at };
    let length = registers[4] as usize;
    let to = (registers[3] - stack_from) as usize;
    let from = base + registers[2] as usize;
    match packet.frame.get(from..from + length) {
        Some(bytes) => stack[to..to + length].iter_mut().zip(bytes).for_each(|(to, from)| *to = Some(*from)),
        None => {
            stack[to..to + length].fill(Some(0));
            return u64::MAX - 13;
        }
    }
    0
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
            let got = run(&program, &Packet::of_frame(&frame));
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
                let packet = Packet { vlan_present: true, ..Packet::of_frame(&stripped) };
                assert_eq!(run(&ethernet, &packet), expected, "{frame:02x?}");
                tagged += 1;
            }
            if let Some((protocol, offset)) = network_offset(&frame) {
                let packet =
                    Packet { frame: frame[offset..].into(), protocol, vlan_present: false, network_at: 0 };
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
        assert_eq!(run(&program, &Packet::of_frame(&frame)), 6);
        frame.truncate(1000);
        assert_eq!(run(&program, &Packet::of_frame(&frame)), FREE.into(), "one that fits has a length");
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
