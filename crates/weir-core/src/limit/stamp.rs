//! The time stamp of a packet that waits in a limit in place, and the packet's wait where it arrives, as instructions.
//!
//! ```text
//! stamp  = time >> 17 in 16 bits, and 1 for 0        0 is no stamp
//! waited = time >> 17 - stamp in 16 bits             in units of 2^17 ns, 0.13 ms
//! ```
//!
//! Rule: a packet stamped in a unit that is 0 bears 1, so its wait is told a unit too short; within that unit, where the difference would
//! be a whole turn of the stamps, it is 0. Limits: a wait of 8.6 s or more wraps.

use crate::asm::{Asm, Cond, Op, Reg};

/// The unit of stamps: 2^17 ns.
pub const STAMP_SHIFT: i32 = 17;
/// The bits of the time that fit a stamp.
const STAMP_MASK: i32 = 0xffff;

/// `stamp` = the stamp of time `now`.
pub fn stamp_of(asm: &mut Asm, stamp: Reg, now: Reg) {
    let is_some = asm.label();
    asm.op(Op::Mov, stamp, now);
    asm.op_imm(Op::Rsh, stamp, STAMP_SHIFT);
    asm.op_imm(Op::And, stamp, STAMP_MASK);
    asm.jump_if(Cond::Ne, stamp, 0, is_some);
    asm.op_imm(Op::Mov, stamp, 1);
    asm.place(is_some);
}

/// `waited` = the units since `stamp`, at time `now`.
pub fn waited_since(asm: &mut Asm, waited: Reg, stamp: Reg, now: Reg) {
    let is_after = asm.label();
    asm.op(Op::Mov, waited, now);
    asm.op_imm(Op::Rsh, waited, STAMP_SHIFT);
    asm.op(Op::Sub, waited, stamp);
    asm.op_imm(Op::And, waited, STAMP_MASK);
    asm.jump_if(Cond::Ne, waited, STAMP_MASK, is_after);
    asm.op_imm(Op::Mov, waited, 0);
    asm.place(is_after);
}

#[cfg(test)]
mod tests {
    use super::super::interpreter::{QueuedPacket, run};
    use super::*;

    /// The stamp of one time, and the units since at another.
    fn stamp_and_waited(sent_ns: u64, arrived_ns: u64) -> (u64, u64) {
        let of = |returned: Reg| {
            let mut asm = Asm::new();
            asm.load_immediate(Reg::R9, sent_ns);
            stamp_of(&mut asm, Reg::R7, Reg::R9);
            asm.load_immediate(Reg::R0, arrived_ns);
            waited_since(&mut asm, Reg::R1, Reg::R7, Reg::R0);
            asm.op(Op::Mov, Reg::R0, returned);
            asm.exit();
            run(&asm.finish(), &QueuedPacket::of_frame(&[0; 14]))
        };
        (of(Reg::R7), of(Reg::R1))
    }

    #[test]
    fn who_waited_a_moment_is_never_told_to_have_waited_a_turn() {
        const UNIT_NS: u64 = 1 << STAMP_SHIFT;
        const TURN: u64 = 1 << 16;
        for turn in [0, 1, 77] {
            for unit in (0..5).chain(TURN - 5..TURN) {
                for waited in [0, 1, 2, 3, 200, 40_000] {
                    for (sent, arrived) in [(0, 0), (0, UNIT_NS - 1), (UNIT_NS - 1, UNIT_NS - 1)] {
                        let sent_ns = (turn * TURN + unit) * UNIT_NS + sent;
                        let arrived_ns = (turn * TURN + unit + waited) * UNIT_NS + arrived;
                        let (stamp, told) = stamp_and_waited(sent_ns, arrived_ns);
                        assert!((1..TURN).contains(&stamp), "{stamp} is none");
                        let expected = if unit == 0 { waited.saturating_sub(1) } else { waited };
                        assert_eq!(told, expected, "sent at {sent_ns}, {waited} units before");
                    }
                }
            }
        }
    }
}
