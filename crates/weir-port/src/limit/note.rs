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
        // A program that somebody took away has left the clsact that was made for it.
        let made_clsact = record.sees_arrivals && record.made_clsact || makes_clsact(far_end);
        let seen = Record { sees_arrivals: true, made_clsact, ..record.clone() };
        if memory.write(&seen).is_ok() && arrivals::watch(far_end, memory, seen.made_clsact).is_ok() {
            take_off_others(SPOT, place);
            *record = seen;
            return;
        }
    }
    let noted = Record { keeps_note: true, made_clsact: makes_clsact(place), ..record.clone() };
    if memory.write(&noted).is_ok() && leave(place, memory, noted.made_clsact).is_ok() {
        *record = noted;
        far_end.into_iter().for_each(|far_end| take_off_others(arrivals::SPOT, far_end));
    }
}

/// Takes off what a limit before has left at the other of both spots: it would outlive this one, and be taken for it.
fn take_off_others(spot: Spot, end: &NetnsInterface) {
    let left = clsact::memory_at(spot, end).ok().flatten().and_then(|memory| memory.record());
    if let Some(before) = left {
        let _ = clsact::detach(spot, end, before.made_clsact);
    }
}

/// Returns whether clsact at an interface is a limit's: one that is there or gone made it, or this one will, as there is none. The record says
/// so before it is made, so that a limit that is killed half-way leaves none behind.
fn makes_clsact(place: &NetnsInterface) -> bool {
    let record = |spot| clsact::memory_at(spot, place).ok().flatten()?.record();
    let is_ours = [arrivals::SPOT, SPOT].into_iter().filter_map(record).any(|record| record.made_clsact);
    is_ours || clsact::is_at(place).is_ok_and(|is_there| !is_there)
}

/// The record of a limit that is gone, from where its packets arrived or from the note of it.
pub fn gone_from(place: &NetnsInterface, far_end: Option<&NetnsInterface>) -> Option<Record> {
    let memory = |spot, place| clsact::memory_at(spot, place).ok().flatten();
    let seen = far_end.and_then(|far_end| memory(arrivals::SPOT, far_end));
    seen.or_else(|| memory(SPOT, place)).and_then(|memory| memory.record())
}

/// Leaves a note of the limit with this memory; clsact there `is_made` by us, or not.
fn leave(place: &NetnsInterface, memory: &Memory, is_made: bool) -> Result<()> {
    let program = load(memory.map()).doing(|| "loading the program that holds what a limit is".into())?;
    clsact::attach(SPOT, place, &program, is_made)
}

fn load(memory: &Map) -> io::Result<Program> {
    let mut asm = Asm::new();
    asm.load_map_value(Reg::R1, memory.as_fd());
    asm.op_imm(Op::Mov, Reg::R0, clsact::ACT_NEXT);
    asm.exit();
    Program::load(Hook::Filter, &asm.finish())
}
