//! The other end of a pair, where a program sees the packets that a limit has let pass: how long they waited, and which bypassed the queue.
//!
//! ```text
//! stamp    = the time, never 0                        the limit's own program writes it into each packet (`tc_index`)
//! no stamp : the packet passed no queue: AF_XDP, PACKET_QDISC_BYPASS, or the queue is gone
//! delay    = time - stamp                             in units of 0.13 ms, by `weir_core::limit::stamp`
//! held     = the time covered by [stamp, time] of packets whose delay is two units of the stamp (0.26 ms) or more
//! ```
//!
//! Rule: it takes the stamp away again, passes every packet on to the next program, and drops none. It works on the limit's own memory and
//! lives with this end, so it outlives a queue that somebody took away, and says what limit that was.
//!
//! Owner: the kernel: a filter under clsact at ingress; processors that receive at once add by atomic operations. Limits: packets that an
//! earlier program takes are not seen. A wait of 8.6 s or more wraps. Delays are not known if the program cannot be attached (Linux before
//! 5.12, an end that cannot be seen).
//!
//! Source: kernel `net/core/dev.c:sch_handle_ingress`, `include/linux/skbuff.h` for the fields of a packet that a pair keeps
//! (`skb_scrub_packet`), `struct __sk_buff`.

use std::io;
use std::os::fd::AsFd;

use weir_core::limit::stamp::{STAMP_SHIFT, waited_since};

use super::filter::Spot;
use super::memory::{self, Memory};
use super::{NetnsInterface, clsact};
use crate::bpf::asm::{Asm, Cond, Helper, Op, Reg, Width};
use crate::bpf::map::Map;
use crate::bpf::program::{Hook, Program};
use crate::error::{Doing, Result};

/// `skb->tc_index` of `struct __sk_buff`; beside this file and [`super::program`] only the qdiscs gred and dsmark read it.
pub const SKB_TC_INDEX: i16 = 44;
/// The least delay that counts as waiting; shorter ones are a packet's way and the stamp's own error.
const STANDING_UNITS: i32 = 2;
/// The most times that a longest delay is stored where other processors store theirs at the same time.
const LONGER_MAX: usize = 4;

const SKB_LEN: i16 = 0;
const SKB_GSO_SEGS: i16 = 164;

/// The priority is before those that tc numbers itself, and behind the small ones that people give.
pub const SPOT: Spot =
    Spot { parent: clsact::INGRESS, priority: 0x7769, name: c"weir-arrivals", chain: 0, class: None };

/// Attaches the program to the end where packets arrive; clsact there `is_made` by us, or not.
pub fn watch(place: &NetnsInterface, memory: &Memory, is_made: bool) -> Result<()> {
    let program =
        load(memory.map()).doing(|| "loading the program that sees what arrives (Linux 5.12)".into())?;
    clsact::attach(SPOT, place, &program, is_made)
}

fn load(memory: &Map) -> io::Result<Program> {
    let mut asm = Asm::new();
    let [whole, stamped, late, counted] = [asm.label(), asm.label(), asm.label(), asm.label()];
    asm.op(Op::Mov, Reg::R6, Reg::R1);
    asm.load_map_value(Reg::R8, memory.as_fd());
    asm.load(Width::Word, Reg::R7, Reg::R6, SKB_TC_INDEX);
    asm.jump_if(Cond::Ne, Reg::R7, 0, stamped);
    asm.load(Width::Word, Reg::R1, Reg::R6, SKB_GSO_SEGS);
    asm.jump_if(Cond::Ne, Reg::R1, 0, whole);
    asm.op_imm(Op::Mov, Reg::R1, 1);
    asm.place(whole);
    asm.add_double(Reg::R8, memory::BYPASSED, Reg::R1);
    asm.load(Width::Word, Reg::R1, Reg::R6, SKB_LEN);
    asm.add_double(Reg::R8, memory::BYPASSED_BYTES, Reg::R1);
    asm.jump(counted);

    asm.place(stamped);
    asm.op_imm(Op::Mov, Reg::R1, 0);
    asm.store(Width::Word, Reg::R6, SKB_TC_INDEX, Reg::R1);
    asm.call(Helper::KtimeGetNs);
    waited_since(&mut asm, Reg::R1, Reg::R7, Reg::R0);
    asm.op(Op::Mov, Reg::R7, Reg::R1);
    asm.op_imm(Op::Lsh, Reg::R1, STAMP_SHIFT);
    asm.store(Width::Double, Reg::R8, memory::DELAY_NS, Reg::R1);
    let shorter = asm.label();
    asm.load(Width::Double, Reg::R2, Reg::R8, memory::DELAY_NS_MAX);
    asm.jump_if_reg(Cond::Ge, Reg::R2, Reg::R1, shorter);
    // R2 is the longest that this processor knows of; a longer one that another has stored meanwhile is stored again.
    asm.op(Op::Mov, Reg::R2, Reg::R1);
    for _ in 0..LONGER_MAX {
        asm.op(Op::Mov, Reg::R3, Reg::R2);
        asm.exchange_double(Reg::R8, memory::DELAY_NS_MAX, Reg::R3);
        asm.jump_if_reg(Cond::Ge, Reg::R2, Reg::R3, shorter);
        asm.op(Op::Mov, Reg::R2, Reg::R3);
    }
    asm.place(shorter);
    asm.jump_if(Cond::Ge, Reg::R7, STANDING_UNITS, late);
    asm.jump(counted);

    // R0 is the time now, R2 the time when the packet came, R3 the end of the time counted already.
    asm.place(late);
    asm.op(Op::Mov, Reg::R2, Reg::R0);
    asm.op(Op::Sub, Reg::R2, Reg::R1);
    asm.op(Op::Mov, Reg::R3, Reg::R0);
    asm.exchange_double(Reg::R8, memory::HELD_UNTIL_NS, Reg::R3);
    asm.jump_if_reg(Cond::Ge, Reg::R3, Reg::R0, counted);
    let apart = asm.label();
    asm.jump_if_reg(Cond::Ge, Reg::R2, Reg::R3, apart);
    asm.op(Op::Mov, Reg::R2, Reg::R3);
    asm.place(apart);
    asm.op(Op::Sub, Reg::R0, Reg::R2);
    asm.add_double(Reg::R8, memory::HELD_NS, Reg::R0);

    asm.place(counted);
    asm.op_imm(Op::Mov, Reg::R0, clsact::ACT_NEXT);
    asm.exit();
    Program::load(Hook::Filter, &asm.finish())
}
