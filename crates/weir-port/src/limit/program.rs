//! The program of a limit in place: it gives each flow a leaf of the queue and remembers it while packets of the flow wait.
//!
//! ```text
//! served += time x leaf clock                          the least that a leaf with packets has sent since
//! slot    = flows[cookie of the socket, or a hash of addresses and ports]
//! leaf    = slot.leaf        if served < slot.done, or the leaf is empty: served >= leaf.done
//!           else the next leaf that is empty, in turn
//! leaf.done = slot.done = max(leaf.done, served + lateness) + length, but served + lateness + its room at most
//!             and more than the leaf.done before, whatever else
//! ```
//!
//! Rule: a flow changes its leaf only when none of its packets wait, so it is never reordered. No program sees a packet leave the queue, so
//! waiting is known by time: HTB serves a leaf at its own rate at least, whatever the others do, and `done` is the point of that service at
//! which the last packet has gone. A flood is served faster than that, and so `done` would run ahead of the backlog: no more waits than the
//! leaf has room for. Each packet raises `done`, so it also says which packets came first ([`super::drain`]). Packets that are dropped
//! later, anywhere, change nothing: leaves empty themselves. A slot is never evicted; flows that meet in one share its leaf while packets
//! of either wait.
//!
//! A packet without a socket has no sender that could be held; [`passing`] bounds how long it waits. A packet that leaves would neither take
//! whole nor cut, because the MTU was raised since the limit was set, goes to the fallback, which takes any, until the limit is set again; there it passes its class by, and [`passing`] too.
//!
//! Owner: the lock of the root queue, under which HTB asks its filters, so nothing here is atomic. A process writes only the
//! clocks' rates. Limits: a device that is stopped from below for longer than `lateness` serves nothing, so a flow that
//! paused then may change its leaf; it does so only if another took the old one. Fragments show no ports: a flow without a socket that
//! has whole datagrams and fragments has a slot for each of the two, and they keep no order between them.
//!
//! Source: kernel `net/sched/sch_htb.c:htb_classify`, `net/sched/cls_bpf.c`, `struct __sk_buff`, `include/linux/skbuff.h`.

use std::io;
use std::os::fd::AsFd;

use weir_core::limit::hash;
use weir_core::limit::stamp::stamp_of;
use weir_core::limit::{FALLBACK, HEADERS_BYTES, HELD, HELD_BYTES_EACH, Leaves, PASSING};

use super::arrivals::SKB_TC_INDEX;
use super::classify::{self, Filters};
use super::memory::{self, LeafMemory, Memory};
use super::passing;
use crate::bpf::asm::{Asm, Cond, Helper, Label, Op, Reg, Width};
use crate::bpf::program::{Hook, Program};

const SKB_PROTOCOL: i16 = 16;
const SKB_TC_CLASSID: i16 = 72;
const SKB_GSO_SIZE: i16 = 176;
const GSO_BY_FRAGS: i32 = 0xffff;
pub(super) const SKB_WIRE_LEN: i16 = 160;
const ACT_OK: i32 = 0;
/// The origin of offsets in `load`: the network header (`BPF_HDR_START_NET`).
const FROM_NETWORK_HEADER: i32 = 1;
/// The bits to which time is cut, 2^35 ns or half a minute, so that it fits with the rate into 64 bits.
const TIME_BITS: i32 = 35;
/// The bits of parts, 2^51 or 2 GB, beyond which nothing can wait, as no leaf has such room: such a `done` is from before the clock
/// wrapped.
pub(super) const STALE_BITS: i32 = 51;
/// More bytes than wait in a leaf of packets without a socket at any rate, and fewer than [`STALE_BITS`] has.
const PASSING_BYTES_BEYOND: u32 = 1 << 30;
/// The shift of the clock to its lateness of 2^24 ns, 17 ms: how late HTB may begin to serve a leaf.
const LATENESS_SHIFT: i32 = 24 - memory::CLOCK_SHIFT;

/// Loads the program over its memory, the limit's own first, with the filters that lead to classes. If `stamps`, it stamps packets for
/// [`super::arrivals`] at the other end.
pub fn load(
    memories: &[Memory],
    filters: &[Filters],
    link_header_bytes: i32,
    stamps: bool,
) -> io::Result<Program> {
    let mut asm = Asm::new();
    let without_socket = asm.label();
    asm.op(Op::Mov, Reg::R6, Reg::R1);
    asm.load_map_value(Reg::R8, memories[0].map().as_fd());
    lead_longer_to_fallback(&mut asm, stamps);
    if !filters.is_empty() {
        classify::ask(&mut asm, filters, &memories[0], link_header_bytes).map_err(io::Error::other)?;
    }
    let class = |asm: &mut Asm, group, leaves| {
        if !filters.is_empty() {
            classify::memory_of_class(asm, memories, filters.len(), group, leaves);
        }
    };
    asm.op(Op::Mov, Reg::R1, Reg::R6);
    asm.call(Helper::GetSocketCookie);
    asm.jump_if(Cond::Eq, Reg::R0, 0, without_socket);
    asm.op(Op::Mov, Reg::R7, Reg::R0);
    asm.call(Helper::KtimeGetNs);
    asm.op(Op::Mov, Reg::R9, Reg::R0);
    stamp(&mut asm, stamps);
    class(&mut asm, memory::HELD, HELD);
    choose_leaf(&mut asm, memory::HELD, HELD);

    asm.place(without_socket);
    hash_headers(&mut asm);
    asm.call(Helper::KtimeGetNs);
    asm.op(Op::Mov, Reg::R9, Reg::R0);
    stamp(&mut asm, stamps);
    class(&mut asm, memory::PASSING, PASSING);
    choose_leaf(&mut asm, memory::PASSING, PASSING);
    Program::load(Hook::Filter, &asm.finish())
}

/// Ends the program with the fallback for a packet that is longer than leaves take, or has such segments. `R6` is the packet, `R8` the memory.
fn lead_longer_to_fallback(asm: &mut Asm, stamps: bool) {
    let [fits, longer] = [asm.label(), asm.label()];
    asm.load(Width::Double, Reg::R2, Reg::R8, memory::UNCUT_BYTES_MAX);
    asm.load(Width::Word, Reg::R1, Reg::R6, SKB_WIRE_LEN);
    asm.jump_if_reg(Cond::Ge, Reg::R2, Reg::R1, fits);
    asm.load(Width::Word, Reg::R1, Reg::R6, SKB_GSO_SIZE);
    asm.jump_if(Cond::Eq, Reg::R1, 0, longer);
    // Segments of SCTP are of several lengths, and follow the MTU of their way.
    asm.jump_if(Cond::Eq, Reg::R1, GSO_BY_FRAGS, fits);
    asm.op_imm(Op::Add, Reg::R1, HEADERS_BYTES as i32);
    asm.jump_if_reg(Cond::Ge, Reg::R2, Reg::R1, fits);
    asm.place(longer);
    asm.call(Helper::KtimeGetNs);
    asm.op(Op::Mov, Reg::R9, Reg::R0);
    stamp(asm, stamps);
    asm.op_imm(Op::Mov, Reg::R1, i32::from(FALLBACK));
    asm.store(Width::Word, Reg::R6, SKB_TC_CLASSID, Reg::R1);
    asm.op_imm(Op::Mov, Reg::R0, ACT_OK);
    asm.exit();
    asm.place(fits);
}

/// Writes the time `R9` into the packet, if packets are to be stamped.
fn stamp(asm: &mut Asm, stamps: bool) {
    if !stamps {
        return;
    }
    stamp_of(asm, Reg::R1, Reg::R9);
    asm.store(Width::Word, Reg::R6, SKB_TC_INDEX, Reg::R1);
}

/// Ends the program with the leaf of the flow whose key is `R7`, at time `R9`. `R6` is the packet, `R8` the memory.
fn choose_leaf(asm: &mut Asm, group: LeafMemory, leaves: Leaves) {
    advance_clock(asm, group);
    // R1 is the service of leaves, R9 that and the lateness.
    slot_of(asm, group);

    let [idle, chosen] = [asm.label(), asm.label()];
    asm.load(Width::Double, Reg::R2, Reg::R7, 0);
    leaf_of(asm, Reg::R2, group, leaves);
    let busy = chosen;
    asm.op(Op::Mov, Reg::R3, Reg::R2);
    jump_if_over(asm, idle);
    asm.jump(busy);

    // No packet of the flow waits: it gets its leaf, if that is empty, or another.
    asm.place(idle);
    asm.load(Width::Double, Reg::R3, Reg::R5, 0);
    jump_if_over(asm, chosen);
    let [again, found] = [asm.label(), asm.label()];
    asm.load(Width::Double, Reg::R2, Reg::R8, group.word(memory::NEXT));
    asm.op_imm(Op::Mov, Reg::R0, i32::from(leaves.count));
    asm.place(again);
    asm.op_imm(Op::Add, Reg::R2, 1);
    leaf_of(asm, Reg::R2, group, leaves);
    asm.load(Width::Double, Reg::R3, Reg::R5, 0);
    jump_if_over(asm, found);
    asm.op_imm(Op::Sub, Reg::R0, 1);
    asm.jump_if(Cond::Ne, Reg::R0, 0, again);
    count(asm, group.word(memory::CROWDED));
    // None is empty: such flows have their leaves in turn, so that none of these has more of them than others.
    asm.op_imm(Op::Add, Reg::R2, 1);
    leaf_of(asm, Reg::R2, group, leaves);
    asm.place(found);
    asm.store(Width::Double, Reg::R8, group.word(memory::NEXT), Reg::R2);

    // R4 is the leaf's number in its group, R5 its word.
    asm.place(chosen);
    if leaves == PASSING {
        passing::bound(asm, group);
    }
    let [waits, empty, begun] = [asm.label(), asm.label(), asm.label()];
    asm.load(Width::Double, Reg::R2, Reg::R5, 0);
    asm.op(Op::Mov, Reg::R3, Reg::R2);
    asm.op(Op::Sub, Reg::R3, Reg::R9);
    asm.jump_if(Cond::SignedLe, Reg::R3, 0, empty);
    asm.op_imm(Op::Rsh, Reg::R3, STALE_BITS);
    asm.jump_if(Cond::Eq, Reg::R3, 0, waits);
    asm.place(empty);
    asm.op(Op::Mov, Reg::R2, Reg::R9);
    asm.jump(begun);
    asm.place(waits);
    asm.place(begun);
    asm.op(Op::Mov, Reg::R1, Reg::R2);
    asm.op_imm(Op::Add, Reg::R1, memory::LEAF_MASK + 1);
    asm.load(Width::Word, Reg::R3, Reg::R6, SKB_WIRE_LEN);
    asm.op_imm(Op::Lsh, Reg::R3, memory::PART_BITS);
    asm.op(Op::Add, Reg::R2, Reg::R3);
    keep_to_room(asm, if leaves == HELD { HELD_BYTES_EACH } else { PASSING_BYTES_BEYOND });
    let higher = asm.label();
    asm.op(Op::Mov, Reg::R3, Reg::R2);
    asm.op(Op::Sub, Reg::R3, Reg::R1);
    asm.jump_if(Cond::SignedGt, Reg::R3, 0, higher);
    asm.op(Op::Mov, Reg::R2, Reg::R1);
    asm.place(higher);
    asm.store(Width::Double, Reg::R5, 0, Reg::R2);
    asm.op_imm(Op::Add, Reg::R2, memory::LEAF_MASK);
    asm.op_imm(Op::And, Reg::R2, !memory::LEAF_MASK);
    asm.op(Op::Or, Reg::R2, Reg::R4);
    asm.store(Width::Double, Reg::R7, 0, Reg::R2);
    asm.op_imm(Op::Add, Reg::R4, i32::from(leaves.first_class));
    asm.load(Width::Double, Reg::R1, Reg::R8, memory::BASE);
    asm.op(Op::Add, Reg::R4, Reg::R1);
    asm.store(Width::Word, Reg::R6, SKB_TC_CLASSID, Reg::R4);
    if leaves == PASSING {
        passing::mark(asm);
    }
    asm.op_imm(Op::Mov, Reg::R0, ACT_OK);
    asm.exit();
}

/// Lowers `R2`, the end of a leaf's service, to that of a leaf with so many bytes waiting, where `R9` is the service so far and the
/// lateness. A packet that finds no room is dropped, so it changes nothing. Spoils `R0` and `R3`.
fn keep_to_room(asm: &mut Asm, room_bytes: u32) {
    let within = asm.label();
    asm.load_immediate(Reg::R3, u64::from(room_bytes) << memory::PART_BITS);
    asm.op(Op::Add, Reg::R3, Reg::R9);
    asm.op(Op::Mov, Reg::R0, Reg::R3);
    asm.op(Op::Sub, Reg::R0, Reg::R2);
    asm.jump_if(Cond::SignedGt, Reg::R0, 0, within);
    asm.op(Op::Mov, Reg::R2, Reg::R3);
    asm.place(within);
}

/// Adds the service of a leaf since the last packet of the group, by the lower of the rates then and now: a change of the rate may lie in
/// between. `R1` = served, `R9` = that and the lateness.
pub(super) fn advance_clock(asm: &mut Asm, group: LeafMemory) {
    let [forward, short, is_lower] = [asm.label(), asm.label(), asm.label()];
    asm.load(Width::Double, Reg::R1, Reg::R8, group.word(memory::LAST_NS));
    asm.store(Width::Double, Reg::R8, group.word(memory::LAST_NS), Reg::R9);
    asm.op(Op::Mov, Reg::R2, Reg::R9);
    asm.op(Op::Sub, Reg::R2, Reg::R1);
    asm.jump_if(Cond::SignedGt, Reg::R2, 0, forward);
    asm.op_imm(Op::Mov, Reg::R2, 0);
    asm.place(forward);
    asm.op(Op::Mov, Reg::R3, Reg::R2);
    asm.op_imm(Op::Rsh, Reg::R3, TIME_BITS);
    asm.jump_if(Cond::Eq, Reg::R3, 0, short);
    asm.op_imm(Op::Mov, Reg::R2, 1);
    asm.op_imm(Op::Lsh, Reg::R2, TIME_BITS);
    asm.place(short);
    asm.load(Width::Double, Reg::R3, Reg::R8, group.word(memory::CLOCK));
    asm.load(Width::Double, Reg::R4, Reg::R8, group.word(memory::CLOCK_BEFORE));
    asm.store(Width::Double, Reg::R8, group.word(memory::CLOCK_BEFORE), Reg::R3);
    asm.jump_if_reg(Cond::Ge, Reg::R4, Reg::R3, is_lower);
    asm.op(Op::Mov, Reg::R3, Reg::R4);
    asm.place(is_lower);
    asm.op(Op::Mul, Reg::R2, Reg::R3);
    asm.op_imm(Op::Rsh, Reg::R2, memory::CLOCK_SHIFT);
    asm.load(Width::Double, Reg::R1, Reg::R8, group.word(memory::SERVED));
    asm.op(Op::Add, Reg::R1, Reg::R2);
    asm.store(Width::Double, Reg::R8, group.word(memory::SERVED), Reg::R1);
    asm.op(Op::Mov, Reg::R9, Reg::R3);
    asm.op_imm(Op::Lsh, Reg::R9, LATENESS_SHIFT);
    asm.op(Op::Add, Reg::R9, Reg::R1);
}

/// `R7` = the address of the slot of key `R7`.
pub(super) fn slot_of(asm: &mut Asm, group: LeafMemory) {
    asm.op_imm(Op::And, Reg::R7, group.slots as i32 - 1);
    asm.op_imm(Op::Lsh, Reg::R7, 3);
    asm.op(Op::Add, Reg::R7, Reg::R8);
    asm.op_imm(Op::Add, Reg::R7, group.slots_at as i32);
}

/// `R4` = the leaf that `number` names, `R5` = the address of its word.
pub(super) fn leaf_of(asm: &mut Asm, number: Reg, group: LeafMemory, leaves: Leaves) {
    asm.op(Op::Mov, Reg::R4, number);
    asm.op_imm(Op::And, Reg::R4, i32::from(leaves.count) - 1);
    asm.op(Op::Mov, Reg::R5, Reg::R4);
    asm.op_imm(Op::Lsh, Reg::R5, 3);
    asm.op(Op::Add, Reg::R5, Reg::R8);
    asm.op_imm(Op::Add, Reg::R5, group.leaves_at as i32);
}

/// Jumps to `label` if the `done` in `R3` is over by `R1`, or is from before the clock wrapped.
pub(super) fn jump_if_over(asm: &mut Asm, label: Label) {
    asm.op(Op::Sub, Reg::R3, Reg::R1);
    asm.jump_if(Cond::SignedLe, Reg::R3, 0, label);
    asm.op_imm(Op::Rsh, Reg::R3, STALE_BITS);
    asm.jump_if(Cond::Ne, Reg::R3, 0, label);
}

/// Adds one to a counter; spoils `R3`.
pub(super) fn count(asm: &mut Asm, word: i16) {
    asm.load(Width::Double, Reg::R3, Reg::R8, word);
    asm.op_imm(Op::Add, Reg::R3, 1);
    asm.store(Width::Double, Reg::R8, word, Reg::R3);
}

/// `R7` = a number that is the same for all packets of a flow that has no socket here.
fn hash_headers(asm: &mut Asm) {
    let [ipv4, ipv6, done] = [asm.label(), asm.label(), asm.label()];
    asm.load(Width::Word, Reg::R7, Reg::R6, SKB_PROTOCOL);
    asm.jump_if(Cond::Eq, Reg::R7, i32::from(0x0800u16.to_be()), ipv4);
    asm.jump_if(Cond::Eq, Reg::R7, i32::from(0x86ddu16.to_be()), ipv6);
    asm.jump(done);

    asm.place(ipv4);
    load_bytes(asm, 20, done);
    mix_in(asm, Width::Word, HEADER + 12);
    mix_in(asm, Width::Word, HEADER + 16);
    mix_in(asm, Width::Byte, HEADER + 9);
    asm.load(Width::Half, Reg::R1, Reg::R10, HEADER + 6);
    // More fragments follow, or this is not the first: those of one flow stay together, whatever datagram they are of.
    asm.op_imm(Op::And, Reg::R1, i32::from(0x3fffu16.to_be()));
    asm.jump_if(Cond::Ne, Reg::R1, 0, done);
    asm.load(Width::Byte, Reg::R3, Reg::R10, HEADER + 9);
    asm.load(Width::Byte, Reg::R2, Reg::R10, HEADER);
    asm.op_imm(Op::And, Reg::R2, 0xf);
    asm.op_imm(Op::Lsh, Reg::R2, 2);
    mix_ports(asm, done);

    asm.place(ipv6);
    load_bytes(asm, 40, done);
    for offset in [8, 16, 24, 32] {
        mix_in(asm, Width::Double, HEADER + offset);
    }
    asm.load(Width::Byte, Reg::R3, Reg::R10, HEADER + 6);
    asm.op_imm(Op::Mov, Reg::R2, 40);
    mix_ports(asm, done);

    asm.place(done);
    hash::spread(asm, Reg::R7);
}

/// The stack offset to which headers are copied.
const HEADER: i16 = -64;

/// Copies the first `length` bytes of the network header, leaving to `short` if there are fewer.
fn load_bytes(asm: &mut Asm, length: i32, short: Label) {
    asm.op_imm(Op::Mov, Reg::R2, 0);
    load_from(asm, length, short);
}

/// Copies `length` bytes from offset `R2`, leaving to `short` if there are fewer.
fn load_from(asm: &mut Asm, length: i32, short: Label) {
    asm.op(Op::Mov, Reg::R1, Reg::R6);
    asm.op(Op::Mov, Reg::R3, Reg::R10);
    asm.op_imm(Op::Add, Reg::R3, i32::from(HEADER));
    asm.op_imm(Op::Mov, Reg::R4, length);
    asm.op_imm(Op::Mov, Reg::R5, FROM_NETWORK_HEADER);
    asm.call(Helper::SkbLoadBytesRelative);
    asm.jump_if(Cond::Ne, Reg::R0, 0, short);
}

fn mix_in(asm: &mut Asm, size: Width, offset: i16) {
    asm.load(size, Reg::R1, Reg::R10, offset);
    hash::mix_in(asm, Reg::R7, Reg::R1);
}

/// Mixes in the ports at offset `R2` where protocol `R3` has ports; then goes to `done`.
fn mix_ports(asm: &mut Asm, done: Label) {
    let has_ports = asm.label();
    for protocol in [libc::IPPROTO_TCP, libc::IPPROTO_UDP, libc::IPPROTO_SCTP] {
        asm.jump_if(Cond::Eq, Reg::R3, protocol, has_ports);
    }
    asm.jump(done);
    asm.place(has_ports);
    load_from(asm, 4, done);
    mix_in(asm, Width::Word, HEADER);
    asm.jump(done);
}
