//! A note at the interface that sends, of what its limit is: for a limit whose packets nobody sees arrive.
//!
//! Of a pair whose programs are limited [`super::arrivals`] keeps the limit's memory at the other end. Elsewhere a queue that somebody removes
//! would take along what is to be put back, such as receive steering at the other ends of pairs. So a program that does nothing holds
//! the memory, in a chain of filters that no packet passes.
//!
//! Rule: it stays when the queue goes, and goes with the interface. Limits: those of [`super::clsact`].

use std::io;
use std::os::fd::AsFd;

use super::filter::Spot;
use super::memory::Memory;
use super::{NetnsInterface, clsact};
use crate::bpf::asm::{Asm, Op, Reg};
use crate::bpf::map::Map;
use crate::bpf::program::{Hook, Program};
use crate::error::{Doing, Result};
use crate::netns::NetNs;

const SPOT: Spot =
    Spot { parent: clsact::EGRESS, priority: 0x7769, name: c"weir-limit-note", chain: 0x7769, class: None };
/// `TC_ACT_UNSPEC`: whoever is asked next decides.
const ACT_NEXT: i32 = -1;

/// Leaves a note of the limit with this memory; whether clsact was made for that.
pub fn leave(place: &NetnsInterface, memory: &Memory) -> Result<bool> {
    let program = load(memory.map()).doing(|| "loading the program that holds what a limit is".into())?;
    place.netns.run(|| clsact::attach(SPOT, place.link.ifindex, &program))
}

/// Takes it away; clsact too if that `is_made` by us and nobody uses it.
pub fn take(place: &NetnsInterface, is_made: bool) -> Result<()> {
    place.netns.run(|| clsact::detach(SPOT, place.link.ifindex, is_made))
}

/// The memory of the limit of what an interface sends; of a limit that may be gone.
pub fn at(place: &NetnsInterface) -> Result<Option<Memory>> {
    place.netns.run(|| clsact::memory_at(SPOT, place.link.ifindex))
}

/// The interfaces of a namespace that have a note, each with the memory of its limit.
pub fn all(netns: &NetNs) -> Result<Vec<(u32, Memory)>> {
    netns.run(|| clsact::memories(SPOT))
}

fn load(memory: &Map) -> io::Result<Program> {
    let mut asm = Asm::new();
    asm.load_map_value(Reg::R1, memory.as_fd());
    asm.op_imm(Op::Mov, Reg::R0, ACT_NEXT);
    asm.exit();
    Program::load(Hook::Filter, &asm.finish())
}
