//! The other end of a pair, where a program sees what a limit has let pass: how long it waited, and what came past the queue.
//!
//! ```text
//! stamp    = time >> 17 in 16 bits, never 0           the limit's own program writes it into each packet (`tc_index`)
//! no stamp : the packet passed no queue: AF_XDP, PACKET_QDISC_BYPASS, or the queue is gone
//! delay    = time - stamp
//! held     = the time covered by [stamp, time] of packets whose delay is two units of the stamp (0.26 ms) or more
//! ```
//!
//! Rule: it takes the stamp away again, passes every packet on to whoever is asked next, and drops none. It works on the limit's own memory
//! and lives with this end, so it outlives a queue that somebody took away, and tells of what.
//!
//! Owner: the kernel: a filter under clsact at ingress; processors that receive at once add by atomic operations. Limits: of what programs that are asked
//! before it take, it knows nothing. A wait of 8.6 s or more goes round. Where it cannot be (Linux before 5.12, an end that is not
//! to be seen) delays are not known.
//!
//! Source: kernel `net/core/dev.c:sch_handle_ingress`, `include/linux/skbuff.h` for what a pair keeps of a packet
//! (`skb_scrub_packet`), `struct __sk_buff`.

use std::io;
use std::os::fd::AsFd;

use netlink_bindings::tc::{self, Tcmsg};
use netlink_socket2::NetlinkSocket;

use super::NetnsInterface;
use super::filter::{Spot, content_if_gone};
use super::memory::{self, Memory};
use crate::bpf::asm::{Asm, Cond, Helper, Op, Reg, Width};
use crate::bpf::map::Map;
use crate::bpf::program::{Hook, Program};
use crate::error::{Doing, PortError, Result};
use crate::netlink::{acknowledged, explained, is_code};
use crate::netns::NetNs;

/// `skb->tc_index` of `struct __sk_buff`, which outside of this file and [`super::program`] nothing but the qdiscs gred and dsmark reads.
pub const SKB_TC_INDEX: i16 = 44;
/// The unit of stamps: 2^17 ns, 0.13 ms.
pub const STAMP_SHIFT: i32 = 17;
/// The part of the time that fits.
pub const STAMP_MASK: i32 = 0xffff;
/// Fewer units are a packet's way, and the stamp's own error.
const STANDING_UNITS: i32 = 2;

const SKB_LEN: i16 = 0;
const SKB_GSO_SEGS: i16 = 164;
/// `TC_ACT_UNSPEC`: whoever is asked next decides.
const ACT_NEXT: i32 = -1;

const CLSACT: u32 = 0xffff_fff1;
const CLSACT_HANDLE: u32 = 0xffff_0000;
const EGRESS: u32 = 0xffff_fff3;
/// Before those to which tc gives a number itself, behind those to which people give a small one.
const INGRESS: Spot = Spot { parent: 0xffff_fff2, priority: 0x7769, name: c"weir-arrivals", class: None };

/// Attaches the program to the end where packets arrive; whether clsact was made for that.
pub fn watch(place: &NetnsInterface, memory: &Memory) -> Result<bool> {
    let program =
        load(memory.map()).doing(|| "loading the program that sees what arrives (Linux 5.12)".into())?;
    let ifindex = place.link.ifindex;
    place.netns.run(|| {
        let is_made = make_clsact(ifindex)?;
        let attached = INGRESS.detach(ifindex).and_then(|()| INGRESS.attach(ifindex, &program));
        if attached.is_err() && is_made {
            // The first error says it all.
            let _ = remove_clsact(ifindex);
        }
        attached.map(|()| is_made)
    })
}

/// Takes the program off; clsact too if that `is_made` by us and nobody uses it.
pub fn unwatch(place: &NetnsInterface, is_made: bool) -> Result<()> {
    let ifindex = place.link.ifindex;
    place.netns.run(|| {
        INGRESS.detach(ifindex)?;
        let on_egress = Spot { parent: EGRESS, ..INGRESS };
        if is_made && INGRESS.is_ours_alone(ifindex)? && on_egress.is_ours_alone(ifindex)? {
            remove_clsact(ifindex)?;
        }
        Ok(())
    })
}

/// The memory of the limit whose packets arrive at an end; of a limit that may be gone.
pub fn at(place: &NetnsInterface) -> Result<Option<Memory>> {
    place.netns.run(|| memory_at(place.link.ifindex))
}

/// The interfaces of a namespace where arrivals are seen, each with the memory of its limit.
pub fn all(netns: &NetNs) -> Result<Vec<(u32, Memory)>> {
    netns.run(|| {
        let mut found = Vec::new();
        for ifindex in with_clsact()? {
            found.extend(memory_at(ifindex)?.map(|memory| (ifindex, memory)));
        }
        Ok(found)
    })
}

fn memory_at(ifindex: u32) -> Result<Option<Memory>> {
    match INGRESS.program_id(ifindex)? {
        Some(id) => {
            Ok(Memory::of_program(id).doing(|| format!("looking at program {id}"))?.into_iter().next())
        }
        None => Ok(None),
    }
}

fn load(memory: &Map) -> io::Result<Program> {
    let mut asm = Asm::new();
    let [whole, stamped, late, counted] = [asm.label(), asm.label(), asm.label(), asm.label()];
    let is_after = asm.label();
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
    asm.op(Op::Mov, Reg::R1, Reg::R0);
    asm.op_imm(Op::Rsh, Reg::R1, STAMP_SHIFT);
    asm.op(Op::Sub, Reg::R1, Reg::R7);
    asm.op_imm(Op::And, Reg::R1, STAMP_MASK);
    // What is stamped in unit 0 bears 1: here within that unit, it would have come a whole turn of the stamps ago.
    asm.jump_if(Cond::Ne, Reg::R1, STAMP_MASK, is_after);
    asm.op_imm(Op::Mov, Reg::R1, 0);
    asm.place(is_after);
    asm.op(Op::Mov, Reg::R7, Reg::R1);
    asm.op_imm(Op::Lsh, Reg::R1, STAMP_SHIFT);
    asm.store(Width::Double, Reg::R8, memory::DELAY_NS, Reg::R1);
    let shorter = asm.label();
    asm.load(Width::Double, Reg::R2, Reg::R8, memory::DELAY_NS_MAX);
    asm.jump_if_reg(Cond::Ge, Reg::R2, Reg::R1, shorter);
    asm.store(Width::Double, Reg::R8, memory::DELAY_NS_MAX, Reg::R1);
    asm.place(shorter);
    asm.jump_if(Cond::Ge, Reg::R7, STANDING_UNITS, late);
    asm.jump(counted);

    // R0 is now, R2 when the packet came; what is counted already ends at R3.
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
    asm.op_imm(Op::Mov, Reg::R0, ACT_NEXT);
    asm.exit();
    Program::load(Hook::Filter, &asm.finish())
}

/// True if there was none.
fn make_clsact(ifindex: u32) -> Result<bool> {
    let header =
        Tcmsg { ifindex: ifindex as i32, handle: CLSACT_HANDLE, parent: CLSACT, ..Default::default() };
    let mut request = tc::Request::new().set_create().set_excl().op_newqdisc_do(&header);
    drop(request.encode().nested_options_clsact());
    let doing = || format!("giving interface number {ifindex} a place for filters (clsact)");
    match acknowledged(&mut NetlinkSocket::new(), &request, doing) {
        Err(error) if is_code(&error, libc::EEXIST) => Ok(false),
        result => result.map(|()| true),
    }
}

fn remove_clsact(ifindex: u32) -> Result<()> {
    let header =
        Tcmsg { ifindex: ifindex as i32, handle: CLSACT_HANDLE, parent: CLSACT, ..Default::default() };
    let request = tc::Request::new().op_delqdisc_do(&header);
    let doing = || format!("removing clsact from interface number {ifindex}");
    content_if_gone(acknowledged(&mut NetlinkSocket::new(), &request, doing))
}

/// The interfaces of this thread's namespace that have filters on arrival.
fn with_clsact() -> Result<Vec<u32>> {
    let doing = || "reading the qdiscs of a network namespace".to_string();
    let request = tc::Request::new().op_getqdisc_dump(&Tcmsg::default());
    let mut socket = NetlinkSocket::new();
    let mut reply =
        socket.request(&request).map_err(|source| PortError::Kernel { doing: doing(), source })?;
    let mut found = Vec::new();
    while let Some(item) = reply.recv() {
        let (header, _) = item.map_err(|error| explained(error, doing()))?;
        if header.parent == CLSACT {
            found.push(header.ifindex as u32);
        }
    }
    Ok(found)
}
