//! The waiting time of packets without a socket in a limit in place: the part of its program that drops and marks them.
//!
//! ```text
//! served += time / leaves with packets waiting               (nanoseconds at the whole rate)
//! waits   = (leaf.end - served) x leaves with packets waiting
//! drop if waits > most, mark if waits > most / 2; else leaf.end = max(leaf.end, served) + length / rate
//! ```
//!
//! Such a packet has no sender here that could be held. So all of them together wait 25 ms of the rate at most, or the time of two of the
//! longest packets if that is more; a packet that would wait longer is dropped here, and counted, and marked as congested (ECN) from half of
//! that on.
//!
//! Rule: each leaf has a fair share of that time, so a flow that sends less than its share of the rate loses nothing, whatever the others
//! send. `served` is the virtual time of generalised processor sharing: HTB serves equal leaves in turn. A small packet (address
//! resolution, acknowledgement, ping) passes all the same.
//!
//! Owner: the lock of the root queue, as in [`super::program`]. Limits: flows that meet in one leaf share its time; the part of the rate
//! that packets with a socket take is not known here, so the time is longer beside them, up to what a leaf has room for.
//!
//! Source: Parekh and Gallager, "A generalized processor sharing approach to flow control", 1993.

use weir_core::asm::{Asm, Cond, Helper, Op, Reg, Width};
use weir_core::limit::PASSING;

use super::memory::{self, LeafMemory, PASSING_ENDS_AT};
use super::program::{SKB_WIRE_LEN, count};

const ACT_SHOT: i32 = 2;
/// The longest packet that passes where others are dropped.
const SMALL_BYTES: i32 = 256;
/// The stack offset of the time that a packet may still wait before it is marked.
const UNMARKED: i16 = -8;

/// Ends the program for a packet that would wait too long in the leaf whose word is at `R5`. `R6` is the packet, `R8` the memory; spoils
/// `R0` to `R3`.
pub fn bound(asm: &mut Asm, group: LeafMemory) {
    let [forward, ahead, full, room] = [asm.label(), asm.label(), asm.label(), asm.label()];
    // R1 = served, R2 = the number of leaves with packets waiting.
    asm.load(Width::Double, Reg::R1, Reg::R8, memory::PASSING_SERVED_NS);
    asm.op_imm(Op::Mov, Reg::R2, 0);
    for leaf in 0..PASSING.count as i16 {
        let empty = asm.label();
        asm.load(Width::Double, Reg::R3, Reg::R8, PASSING_ENDS_AT as i16 + leaf * 8);
        asm.jump_if_reg(Cond::Ge, Reg::R1, Reg::R3, empty);
        asm.op_imm(Op::Add, Reg::R2, 1);
        asm.place(empty);
    }
    let some = asm.label();
    asm.jump_if(Cond::Ne, Reg::R2, 0, some);
    asm.op_imm(Op::Mov, Reg::R2, 1);
    asm.place(some);
    asm.load(Width::Double, Reg::R0, Reg::R8, group.word(memory::LAST_NS));
    asm.load(Width::Double, Reg::R3, Reg::R8, memory::PASSING_AT_NS);
    asm.store(Width::Double, Reg::R8, memory::PASSING_AT_NS, Reg::R0);
    asm.op(Op::Sub, Reg::R0, Reg::R3);
    asm.jump_if(Cond::SignedGt, Reg::R0, 0, forward);
    asm.op_imm(Op::Mov, Reg::R0, 0);
    asm.place(forward);
    asm.op(Op::Div, Reg::R0, Reg::R2);
    asm.op(Op::Add, Reg::R1, Reg::R0);
    asm.store(Width::Double, Reg::R8, memory::PASSING_SERVED_NS, Reg::R1);

    // R0 = the wait of the packet, R3 = when the leaf is empty.
    let end_of_leaf = (PASSING_ENDS_AT - group.leaves_at) as i16;
    asm.load(Width::Double, Reg::R3, Reg::R5, end_of_leaf);
    asm.op(Op::Mov, Reg::R0, Reg::R3);
    asm.op(Op::Sub, Reg::R0, Reg::R1);
    asm.jump_if(Cond::SignedGt, Reg::R0, 0, ahead);
    asm.op(Op::Mov, Reg::R3, Reg::R1);
    asm.op_imm(Op::Mov, Reg::R0, 0);
    asm.place(ahead);
    asm.op(Op::Mul, Reg::R0, Reg::R2);
    asm.load(Width::Double, Reg::R1, Reg::R8, memory::PASSING_NS_MAX);
    asm.load(Width::Word, Reg::R2, Reg::R6, SKB_WIRE_LEN);
    asm.jump_if_reg(Cond::Ge, Reg::R1, Reg::R0, room);
    asm.jump_if(Cond::Ge, Reg::R2, SMALL_BYTES + 1, full);
    asm.op_imm(Op::Mov, Reg::R2, 0);
    asm.jump(room);
    asm.place(full);
    count(asm, memory::PASSING_FULL);
    asm.op_imm(Op::Mov, Reg::R0, ACT_SHOT);
    asm.exit();

    asm.place(room);
    asm.op_imm(Op::Rsh, Reg::R1, 1);
    asm.op(Op::Sub, Reg::R1, Reg::R0);
    asm.store(Width::Double, Reg::R10, UNMARKED, Reg::R1);
    asm.load(Width::Double, Reg::R1, Reg::R8, memory::PASSING_NS_EACH);
    asm.op(Op::Mul, Reg::R2, Reg::R1);
    asm.op_imm(Op::Rsh, Reg::R2, memory::EACH_BITS);
    asm.op(Op::Add, Reg::R3, Reg::R2);
    asm.store(Width::Double, Reg::R5, end_of_leaf, Reg::R3);
}

/// Marks the packet that [`bound`] let pass, if it waits long. Spoils `R0` to `R5`.
pub fn mark(asm: &mut Asm) {
    let [waits_long, unmarked] = [asm.label(), asm.label()];
    asm.load(Width::Double, Reg::R1, Reg::R10, UNMARKED);
    asm.jump_if(Cond::SignedLe, Reg::R1, 0, waits_long);
    asm.jump(unmarked);
    asm.place(waits_long);
    asm.op(Op::Mov, Reg::R1, Reg::R6);
    asm.call(Helper::SkbEcnSetCe);
    asm.jump_if(Cond::Eq, Reg::R0, 0, unmarked);
    count(asm, memory::MARKED);
    asm.place(unmarked);
}
