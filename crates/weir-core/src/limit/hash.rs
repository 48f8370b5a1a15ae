//! Hashing in programs of the kernel's: numbers are mixed into a key one after the other, whose low bits then choose a slot.
//!
//! Source: multiplicative hashing (Knuth, volume 3, section 6.4).

use crate::asm::{Asm, Op, Reg};

/// An odd factor without a pattern.
const MIX: i32 = 0x61c8_8647;

/// Mixes a number into a key.
pub fn mix_in(asm: &mut Asm, key: Reg, number: Reg) {
    asm.op_imm(Op::Mul, key, MIX);
    asm.op(Op::Add, key, number);
}

/// Mixes all bits of a key into its low ones; spoils `R1`.
pub fn spread(asm: &mut Asm, key: Reg) {
    for shift in [32, 15] {
        asm.op(Op::Mov, Reg::R1, key);
        asm.op_imm(Op::Rsh, Reg::R1, shift);
        asm.op(Op::Xor, key, Reg::R1);
        asm.op_imm(Op::Mul, key, MIX);
    }
}
