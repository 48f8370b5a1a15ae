//! Runs the programs of limits in tests: the instructions, and the one helper, that the programs assembled here use.

use super::filter::{SKB_LEN, SKB_PROTOCOL, SKB_VLAN_PRESENT};
use crate::asm::Slot;

/// The length of an Ethernet header.
pub const LINK_HEADER_BYTES: usize = 14;

/// A packet as a queue has it.
pub struct QueuedPacket {
    /// The bytes from its link header on.
    pub frame: Vec<u8>,
    /// The ethertype.
    pub protocol: u16,
    /// True if a VLAN tag stands beside the frame.
    pub vlan_present: bool,
    /// The offset of the network header; 0 on an interface without a link header.
    pub network_at: usize,
}

impl QueuedPacket {
    /// The packet as the kernel makes it of a frame.
    pub fn of_frame(frame: &[u8]) -> QueuedPacket {
        let protocol = u16::from_be_bytes([frame[12], frame[13]]);
        QueuedPacket { frame: frame.into(), protocol, vlan_present: false, network_at: LINK_HEADER_BYTES }
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

/// Runs a program and says what it returns. Registers hold numbers; the stack is the one memory, from address 2^32 down.
pub fn run(program: &[Slot], packet: &QueuedPacket) -> u64 {
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
                    0x20 => registers[dst].wrapping_mul(operand),
                    0x40 => registers[dst] | operand,
                    0x50 => registers[dst] & operand,
                    0x60 => registers[dst] << operand,
                    0x70 => registers[dst] >> operand,
                    0xa0 => registers[dst] ^ operand,
                    0xb0 => operand,
                    other => panic!("operation {other:#x}"),
                }
            }
            0x05 if opcode == 0x85 => {
                registers[0] = load_bytes_relative(packet, &registers, &mut stack, STACK_TOP - 512);
                // A call spoils the argument registers.
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
    packet: &QueuedPacket,
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
