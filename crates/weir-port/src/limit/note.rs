//! A note of a limit at the interface that sends: for a limit whose packets no program sees arrive.
//!
//! For a pair whose programs are limited, [`super::arrivals`] keeps the limit's memory at the other end. Elsewhere a queue that somebody
//! removes would take along what is to be put back, such as receive steering at the other ends of pairs. So a program that does nothing
//! holds the memory, in a chain of filters that no packet passes.
//!
//! Rule: the note stays when the queue goes, and goes with the interface. Limits: those of [`super::clsact`].

use std::io;
use std::os::fd::AsFd;

use super::filter::Spot;
use super::memory::Memory;
use super::record::{Direction, Record};
use super::{NetnsInterface, arrivals, clsact};
use crate::bpf::asm::{Asm, Op, Reg};
use crate::bpf::map::Map;
use crate::bpf::program::{Hook, Program};
use crate::error::{Doing, Result};

/// The place of the note, in a chain that no packet passes.
pub const SPOT: Spot =
    Spot { parent: clsact::EGRESS, priority: 0x7769, name: c"weir-limit-note", chain: 0x7769, class: None };

/// Keeps the memory of a limit beside its queue, where its packets arrive or at its own interface, and says so in the record. A limit works
/// without it.
pub fn keep_beside(
    place: &NetnsInterface,
    far_end: Option<&NetnsInterface>,
    memory: &Memory,
    record: &mut Record,
) {
    // The end where the programs are is theirs: root there could take away the program that looks.
    let looks_from = far_end.filter(|_| record.direction == Direction::There);
    if let Some(far_end) = looks_from {
        let is_ours = made_clsact(far_end);
        if let Ok(is_made) = arrivals::watch(far_end, memory) {
            (record.sees_arrivals, record.made_clsact) = (true, is_made || is_ours);
            return;
        }
    }
    let is_ours = made_clsact(place);
    if let Ok(is_made) = leave(place, memory) {
        (record.keeps_note, record.made_clsact) = (true, is_made || is_ours);
    }
}

/// Returns whether a limit, present or gone, made clsact at an interface.
fn made_clsact(place: &NetnsInterface) -> bool {
    let record = |spot| clsact::memory_at(spot, place).ok().flatten()?.record();
    [arrivals::SPOT, SPOT].into_iter().filter_map(record).any(|record| record.made_clsact)
}

/// The record of a limit that is gone, from where its packets arrived or from the note of it.
pub fn gone_from(place: &NetnsInterface, far_end: Option<&NetnsInterface>) -> Option<Record> {
    let memory = |spot, place| clsact::memory_at(spot, place).ok().flatten();
    let seen = far_end.and_then(|far_end| memory(arrivals::SPOT, far_end));
    seen.or_else(|| memory(SPOT, place)).and_then(|memory| memory.record())
}

/// Leaves a note of the limit with this memory; returns whether clsact was made for that.
fn leave(place: &NetnsInterface, memory: &Memory) -> Result<bool> {
    let program = load(memory.map()).doing(|| "loading the program that holds what a limit is".into())?;
    clsact::attach(SPOT, place, &program)
}

fn load(memory: &Map) -> io::Result<Program> {
    let mut asm = Asm::new();
    asm.load_map_value(Reg::R1, memory.as_fd());
    asm.op_imm(Op::Mov, Reg::R0, clsact::ACT_NEXT);
    asm.exit();
    Program::load(Hook::Filter, &asm.finish())
}
