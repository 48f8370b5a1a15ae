//! Which datagram a fragment belongs to, as a program of the kernel's: a word that [`super::filter::parse`] leaves, and a key of it.
//!
//! ```text
//! the word   0 for a whole datagram, else its number << 2, and 1 for the first fragment or 2 for a later one
//! ```
//!
//! Rule: the same answer as [`crate::classify::headers::Headers`] has for the frame.
//!
//! Source: RFC 791 section 3.1, RFC 8200 section 4.5.

use super::filter::{FRAGMENT, FROM, TO, load_number};
use super::hash;
use crate::asm::{Asm, Cond, Label, Op, Reg, Width};

/// The bit of the word that a first fragment has, and that of a later one.
const FIRST: i32 = 1;
const LATER: i32 = 2;

/// `R9` = a key of the datagram that the parsed packet is a fragment of, an odd number, and `R7` = 0 if it is the first, else another
/// number; leaves to `whole` for a packet that is no fragment. Spoils `R1`.
pub fn key(asm: &mut Asm, whole: Label) {
    asm.load(Width::Double, Reg::R7, Reg::R10, FRAGMENT);
    asm.jump_if(Cond::Eq, Reg::R7, 0, whole);
    asm.op(Op::Mov, Reg::R9, Reg::R7);
    asm.op_imm(Op::Rsh, Reg::R9, 2);
    for word in [FROM, FROM - 8, TO, TO - 8] {
        asm.load(Width::Double, Reg::R1, Reg::R10, word);
        hash::mix_in(asm, Reg::R9, Reg::R1);
    }
    hash::spread(asm, Reg::R9);
    asm.op_imm(Op::Or, Reg::R9, 1);
    asm.op_imm(Op::And, Reg::R7, LATER);
}

/// Leaves to `ports` for a packet that begins with its transport's header, and to `done` for a later fragment. The header of IPv4 is on the
/// stack, its protocol is `R7`. Spoils `R1` to `R3`.
pub(super) fn of_ipv4(asm: &mut Asm, ports: Label, done: Label) {
    load_number(asm, Width::Half, Reg::R1, 6);
    load_number(asm, Width::Half, Reg::R2, 4);
    asm.op(Op::Mov, Reg::R3, Reg::R1);
    asm.op_imm(Op::And, Reg::R3, 0x3fff);
    asm.jump_if(Cond::Eq, Reg::R3, 0, ports);
    asm.op_imm(Op::And, Reg::R1, 0x1fff);
    asm.op(Op::Mov, Reg::R3, Reg::R7);
    asm.op_imm(Op::Lsh, Reg::R3, 16);
    asm.op(Op::Or, Reg::R2, Reg::R3);
    store(asm, done);
    asm.jump(ports);
}

/// Leaves to `later` for a later fragment; `R1` is 0 for others. The fragment header of IPv6 is on the stack. Spoils `R1` to `R3`.
pub(super) fn of_ipv6(asm: &mut Asm, later: Label) {
    let whole = asm.label();
    load_number(asm, Width::Half, Reg::R1, 2);
    load_number(asm, Width::Word, Reg::R2, 4);
    asm.op(Op::Mov, Reg::R3, Reg::R1);
    asm.op_imm(Op::Rsh, Reg::R1, 3);
    asm.op_imm(Op::And, Reg::R3, !6);
    asm.jump_if(Cond::Eq, Reg::R3, 0, whole);
    store(asm, later);
    asm.place(whole);
}

/// Stores the word of datagram `R2`; leaves to `later` if the place `R1` of the fragment in it is not 0.
fn store(asm: &mut Asm, later: Label) {
    let first = asm.label();
    asm.op_imm(Op::Lsh, Reg::R2, 2);
    asm.op_imm(Op::Or, Reg::R2, FIRST);
    asm.jump_if(Cond::Eq, Reg::R1, 0, first);
    asm.op_imm(Op::Xor, Reg::R2, FIRST | LATER);
    asm.store(Width::Double, Reg::R10, FRAGMENT, Reg::R2);
    asm.jump(later);
    asm.place(first);
    asm.store(Width::Double, Reg::R10, FRAGMENT, Reg::R2);
}

#[cfg(test)]
mod tests {
    use super::super::filter::parse;
    use super::super::filter::tests::packets::{Random, frame};
    use super::*;
    use crate::classify::headers::{DatagramFragment, Headers};
    use crate::limit::interpreter::{LINK_HEADER_BYTES, QueuedPacket, run};

    fn program(end: impl Fn(&mut Asm)) -> Vec<crate::asm::Slot> {
        let mut asm = Asm::new();
        asm.op(Op::Mov, Reg::R6, Reg::R1);
        parse(&mut asm, LINK_HEADER_BYTES as i32);
        end(&mut asm);
        asm.exit();
        asm.finish()
    }

    #[test]
    fn a_million_random_packets_are_the_fragments_that_their_headers_say() {
        let word = program(|asm| asm.load(Width::Double, Reg::R0, Reg::R10, FRAGMENT));
        let mut random = Random(0x6672_6167);
        let mut seen = [0; 3];
        for _ in 0..1_000_000 {
            let frame = frame(&mut random);
            let fragment = Headers::parse(&frame).fragment;
            let expected = fragment.map_or(0, |DatagramFragment { id, is_first }| {
                u64::from(id) << 2 | if is_first { FIRST as u64 } else { LATER as u64 }
            });
            assert_eq!(run(&word, &QueuedPacket::of_frame(&frame)), expected, "{frame:02x?}");
            seen[(expected & 3) as usize] += 1;
        }
        assert!(seen.iter().all(|seen| *seen > 10_000), "{seen:?}");
    }

    /// An IPv4 datagram in fragments.
    fn fragment(number: u16, place: u16, more: bool) -> Vec<u8> {
        let mut frame = vec![2; 12];
        frame.extend([8, 0, 0x45, 0, 0, 28]);
        frame.extend(number.to_be_bytes());
        frame.extend((place | if more { 0x2000 } else { 0 }).to_be_bytes());
        frame.extend([64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 0, 9, 0, 7, 0, 8, 0, 0]);
        frame
    }

    #[test]
    fn the_fragments_of_a_datagram_have_one_key() {
        const WHOLE: i32 = 2;
        let program = |of: Reg| {
            program(move |asm| {
                let [whole, end] = [asm.label(), asm.label()];
                key(asm, whole);
                asm.op(Op::Mov, Reg::R0, of);
                asm.jump(end);
                asm.place(whole);
                asm.op_imm(Op::Mov, Reg::R0, WHOLE);
                asm.place(end);
            })
        };
        let (key, is_later) = (program(Reg::R9), program(Reg::R7));
        let run = |program: &[_], frame: Vec<u8>| run(program, &QueuedPacket::of_frame(&frame));
        let first = run(&key, fragment(7, 0, true));
        assert!(first != 0 && first != WHOLE as u64);
        assert_eq!(run(&is_later, fragment(7, 0, true)), 0);
        for later in [fragment(7, 185, true), fragment(7, 370, false)] {
            assert_eq!(run(&key, later.clone()), first);
            assert_ne!(run(&is_later, later), 0);
        }
        assert_ne!(run(&key, fragment(8, 185, true)), first);
        assert_eq!(run(&key, fragment(7, 0, false)), WHOLE as u64);
    }
}
