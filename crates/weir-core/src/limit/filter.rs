//! The filters of a limit in place, as a program of the kernel's that finds the class of a packet in the queue.
//!
//! ```text
//! parse    headers of the packet         -> words on the stack; an absent field has a value that nothing equals
//! decide   rules in order, first match   -> R7, the number of the class
//! ```
//!
//! Rule: the same answer as [`Classifier::classify`] with [`crate::classify::headers::Headers`] has for the frame. A queue's packet is not
//! quite a frame: a VLAN tag may stand beside it and counts as the first, and one that is yet to be cut into segments may be longer than
//! its IP header can say, which then says 0.
//!
//! Keeps `R6`, the packet; [`parse`] spoils all other registers, [`decide`] `R1`, `R2` and `R7`. On the stack [`HEADER`] is free for
//! callers that need 40 bytes.
//! Limits: only headers in the packet's linear part are seen, which is where the kernel's own senders put them.
//!
//! Source: `include/uapi/linux/bpf.h`, `struct __sk_buff`, `bpf_skb_load_bytes_relative`; the headers' own in `classify::headers`.

use std::net::IpAddr;
use std::ops::RangeInclusive;

use super::fragments;
use crate::asm::{Asm, Cond, Helper, Label, Op, Reg, Width};
use crate::classify::{Classifier, Conditions, Subnet, Target};

/// The stack offset at which 40 bytes of a header fit.
pub const HEADER: i16 = -64;
/// The most slots of the filters of one file: as many as a jump can pass over, with room for the rest of the program.
pub const SLOTS_MAX: usize = 26_000;
/// The most conditions: the kernel keeps a place to come back to for each while it checks the program, 8,192 at most.
pub const CONDITIONS_MAX: usize = 8_000;

pub(super) const SKB_LEN: i16 = 0;
pub(super) const SKB_PROTOCOL: i16 = 16;
pub(super) const SKB_VLAN_PRESENT: i16 = 20;
/// The origins of offsets: the link's header (`BPF_HDR_START_MAC`), and the network's.
const FROM_LINK: i32 = 0;
const FROM_NETWORK: i32 = 1;

/// The stack offsets of the origin of the network header's offset, of that offset, and of the number of bytes from it on.
const START: i16 = -8;
const BASE: i16 = -16;
const PRESENT: i16 = -24;
/// The stack offset of the IP version: 4, 6, or 0 if the packet is no IP.
const FAMILY: i16 = -72;
const PROTOCOL: i16 = -80;
const DSCP: i16 = -88;
const FROM_PORT: i16 = -96;
const TO_PORT: i16 = -104;
/// The stack offsets of addresses as numbers; an IPv4 address is in the first word alone.
pub(super) const FROM: i16 = -112;
pub(super) const TO: i16 = -128;
/// The stack offset of the word of [`fragments`].
pub(super) const FRAGMENT: i16 = -144;
/// The last word of the stack that is used here.
pub const STACK_END: i16 = FRAGMENT;

const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
const VLAN_TAGS: [u16; 2] = [0x8100, 0x88a8];
const VLAN_TAGS_MAX: i32 = 2;
const EXTENSIONS_MAX: usize = 8;
const FRAGMENT_HEADER: i32 = 44;
const AUTHENTICATION: i32 = 51;
/// The extension headers: hop by hop, routing and for the destination; then those with a form of their own.
const EXTENSIONS: [i32; 5] = [0, 43, 60, FRAGMENT_HEADER, AUTHENTICATION];
const WITH_PORTS: [i32; 5] = [6, 17, 33, 132, 136];
/// The longest packet whose length an IP header can say.
const LENGTH_MAX: i32 = 65_535;

/// Reads the headers of packet `R6`, whose link header has `link_header_bytes` bytes.
pub fn parse(asm: &mut Asm, link_header_bytes: i32) {
    let [ipv4, ipv6, ports, only_protocol, done] = [(); 5].map(|()| asm.label());
    for (word, absent) in [(FAMILY, 0), (PROTOCOL, -1), (DSCP, -1), (FROM_PORT, -1), (TO_PORT, -1)] {
        asm.store_imm(Width::Double, Reg::R10, word, absent);
    }
    for word in [FROM, FROM - 8, TO, TO - 8, FRAGMENT, BASE] {
        asm.store_imm(Width::Double, Reg::R10, word, 0);
    }
    asm.store_imm(Width::Double, Reg::R10, START, FROM_NETWORK);
    asm.load(Width::Word, Reg::R1, Reg::R6, SKB_LEN);
    asm.op_imm(Op::Sub, Reg::R1, link_header_bytes);
    asm.jump_if(Cond::SignedLe, Reg::R1, 0, done);
    asm.store(Width::Double, Reg::R10, PRESENT, Reg::R1);
    asm.load(Width::Word, Reg::R7, Reg::R6, SKB_PROTOCOL);
    jump_by_family(asm, ipv4, ipv6);
    skip_tags(asm, [ipv4, ipv6], done);

    asm.place(ipv4);
    parse_ipv4(asm, ports, done);
    asm.place(ipv6);
    parse_ipv6(asm, only_protocol, done);

    // The transport is in `R7`, its header at offset `R9`.
    asm.place(ports);
    asm.store(Width::Double, Reg::R10, PROTOCOL, Reg::R7);
    let has_ports = asm.label();
    for protocol in WITH_PORTS {
        asm.jump_if(Cond::Eq, Reg::R7, protocol, has_ports);
    }
    asm.jump(done);
    asm.place(has_ports);
    load_header(asm, 4, Some(done), done);
    for (word, at) in [(FROM_PORT, 0), (TO_PORT, 2)] {
        load_number(asm, Width::Half, Reg::R1, at);
        asm.store(Width::Double, Reg::R10, word, Reg::R1);
    }
    asm.jump(done);

    asm.place(only_protocol);
    asm.store(Width::Double, Reg::R10, PROTOCOL, Reg::R7);
    asm.place(done);
    for word in [FAMILY, PROTOCOL, DSCP, FROM_PORT, TO_PORT, FROM, FROM - 8, TO, TO - 8, FRAGMENT] {
        forget_to_the_verifier(asm, word);
    }
}

/// Keeps the value of a word of the stack, but writes it in parts, so that the kernel's verifier forgets from one comparison to the next
/// what it learned. Else it would check all rules again for each way on which the ones before can fail.
fn forget_to_the_verifier(asm: &mut Asm, word: i16) {
    asm.load(Width::Byte, Reg::R1, Reg::R10, word);
    asm.store(Width::Byte, Reg::R10, word, Reg::R1);
}

/// `R7` = the number that `number` gives to the target of the parsed packet.
///
/// # Errors
/// One sentence, if the program would be too long, or a rule asks for a field that no queue knows.
pub fn decide(asm: &mut Asm, classifier: &Classifier, number: impl Fn(Target) -> u16) -> Result<(), String> {
    let decided = asm.label();
    let (slots, jumps) = (asm.len(), asm.jumps());
    for rule in classifier.rules() {
        if rule.conditions.interface.is_some() || rule.conditions.flows.is_some() {
            return Err(
                "a filter names an interface or a share of all flows, which a queue does not know".into()
            );
        }
        if rule.conditions.contradiction().is_some() {
            continue;
        }
        let (next, before) = (asm.label(), asm.len());
        conditions(asm, &rule.conditions, next);
        let is_for_all = asm.len() == before;
        asm.op_imm(Op::Mov, Reg::R7, number(rule.target).into());
        if is_for_all {
            // No rule behind it is ever asked, and the kernel takes no program with instructions that nothing leads to.
            asm.place(next);
            asm.place(decided);
            return Ok(());
        }
        asm.jump(decided);
        asm.place(next);
        if asm.len() - slots > SLOTS_MAX || asm.jumps() - jumps > CONDITIONS_MAX {
            return Err(format!(
                "the filters are more than a program of the kernel's can ask, which is {CONDITIONS_MAX} conditions or so: join \
                 subnets or ports, or join the interfaces with `weir wire`"
            ));
        }
    }
    asm.op_imm(Op::Mov, Reg::R7, number(classifier.otherwise()).into());
    asm.place(decided);
    Ok(())
}

/// Emits jumps to `next` unless all conditions hold.
fn conditions(asm: &mut Asm, conditions: &Conditions, next: Label) {
    let subnets = [(FROM, conditions.from), (TO, conditions.to)];
    if let Some(subnet) = conditions.from.or(conditions.to) {
        asm.load(Width::Double, Reg::R1, Reg::R10, FAMILY);
        asm.jump_if(Cond::Ne, Reg::R1, if subnet.address().is_ipv4() { 4 } else { 6 }, next);
    }
    for (word, wanted) in [(PROTOCOL, conditions.protocol), (DSCP, conditions.dscp)] {
        if let Some(wanted) = wanted {
            asm.load(Width::Double, Reg::R1, Reg::R10, word);
            asm.jump_if(Cond::Ne, Reg::R1, wanted.into(), next);
        }
    }
    for (word, range) in [(FROM_PORT, &conditions.from_ports), (TO_PORT, &conditions.to_ports)] {
        if let Some(range) = range {
            port_in(asm, word, range, next);
        }
    }
    for (word, subnet) in subnets {
        if let Some(subnet) = subnet {
            address_in(asm, word, subnet, next);
        }
    }
}

fn port_in(asm: &mut Asm, word: i16, range: &RangeInclusive<u16>, next: Label) {
    let (start, end) = (i32::from(*range.start()), i32::from(*range.end()));
    asm.load(Width::Double, Reg::R1, Reg::R10, word);
    if start == end {
        asm.jump_if(Cond::Ne, Reg::R1, start, next);
        return;
    }
    if start > 0 {
        asm.jump_if(Cond::Lt, Reg::R1, start, next);
    }
    // An absent port is above all.
    asm.jump_if(Cond::Gt, Reg::R1, end, next);
}

fn address_in(asm: &mut Asm, word: i16, subnet: Subnet, next: Label) {
    let prefix_len = u32::from(subnet.prefix_len());
    let (bits, words) = match subnet.address() {
        IpAddr::V4(address) => (32, [u64::from(address.to_bits()), 0]),
        IpAddr::V6(address) => (64, [(address.to_bits() >> 64) as u64, address.to_bits() as u64]),
    };
    for (index, value) in words.into_iter().enumerate() {
        let counting = prefix_len.saturating_sub(bits * index as u32).min(bits);
        if counting == 0 {
            break;
        }
        let shift = bits - counting;
        asm.load(Width::Double, Reg::R1, Reg::R10, word - 8 * index as i16);
        if shift > 0 {
            asm.op_imm(Op::Rsh, Reg::R1, shift as i32);
        }
        asm.load_immediate(Reg::R2, value >> shift);
        asm.jump_if_reg(Cond::Ne, Reg::R1, Reg::R2, next);
    }
}

/// Jumps by the ethertype in `R7`, in the byte order of a frame.
fn jump_by_family(asm: &mut Asm, ipv4: Label, ipv6: Label) {
    asm.jump_if(Cond::Eq, Reg::R7, IPV4.to_be().into(), ipv4);
    asm.jump_if(Cond::Eq, Reg::R7, IPV6.to_be().into(), ipv6);
}

/// Skips the tags that stand in the frame.
fn skip_tags(asm: &mut Asm, [ipv4, ipv6]: [Label; 2], done: Label) {
    let [tagged4, tagged6] = [asm.label(), asm.label()];
    asm.load(Width::Word, Reg::R1, Reg::R6, SKB_VLAN_PRESENT);
    asm.op_imm(Op::Mov, Reg::R8, VLAN_TAGS_MAX);
    asm.op(Op::Sub, Reg::R8, Reg::R1);
    asm.op_imm(Op::Mov, Reg::R9, 12);
    asm.store_imm(Width::Double, Reg::R10, START, FROM_LINK);
    for _ in 0..=VLAN_TAGS_MAX {
        let tag = asm.label();
        for ethertype in VLAN_TAGS {
            asm.jump_if(Cond::Eq, Reg::R7, ethertype.to_be().into(), tag);
        }
        asm.jump(done);
        asm.place(tag);
        load_header(asm, 2, None, done);
        asm.load(Width::Half, Reg::R7, Reg::R10, HEADER);
        asm.op_imm(Op::Add, Reg::R9, 4);
        jump_by_family(asm, tagged4, tagged6);
        asm.op_imm(Op::Sub, Reg::R8, 1);
        asm.jump_if(Cond::SignedLt, Reg::R8, 0, done);
    }
    asm.jump(done);
    for (tagged, family) in [(tagged4, ipv4), (tagged6, ipv6)] {
        asm.place(tagged);
        asm.op_imm(Op::Sub, Reg::R9, 2);
        asm.load(Width::Word, Reg::R1, Reg::R6, SKB_LEN);
        asm.op(Op::Sub, Reg::R1, Reg::R9);
        asm.jump_if(Cond::SignedLe, Reg::R1, 0, done);
        asm.store(Width::Double, Reg::R10, PRESENT, Reg::R1);
        asm.store(Width::Double, Reg::R10, BASE, Reg::R9);
        asm.jump(family);
    }
}

/// Ends with the transport `R7` at `R9` in a packet of length `R8`.
fn parse_ipv4(asm: &mut Asm, ports: Label, done: Label) {
    let said = asm.label();
    asm.op_imm(Op::Mov, Reg::R9, 0);
    load_header(asm, 20, None, done);
    asm.load(Width::Byte, Reg::R1, Reg::R10, HEADER);
    asm.op(Op::Mov, Reg::R9, Reg::R1);
    asm.op_imm(Op::Rsh, Reg::R1, 4);
    asm.jump_if(Cond::Ne, Reg::R1, 4, done);
    asm.op_imm(Op::And, Reg::R9, 0xf);
    asm.op_imm(Op::Lsh, Reg::R9, 2);
    asm.jump_if(Cond::Lt, Reg::R9, 20, done);
    load_number(asm, Width::Half, Reg::R8, 2);
    asm.load(Width::Double, Reg::R2, Reg::R10, PRESENT);
    asm.jump_if(Cond::Ne, Reg::R8, 0, said);
    asm.jump_if(Cond::Lt, Reg::R2, LENGTH_MAX + 1, said);
    asm.op(Op::Mov, Reg::R8, Reg::R2);
    asm.place(said);
    asm.jump_if_reg(Cond::Gt, Reg::R9, Reg::R8, done);
    asm.jump_if_reg(Cond::Gt, Reg::R8, Reg::R2, done);
    asm.store_imm(Width::Double, Reg::R10, FAMILY, 4);
    for (word, at) in [(FROM, 12), (TO, 16)] {
        load_number(asm, Width::Word, Reg::R1, at);
        asm.store(Width::Double, Reg::R10, word, Reg::R1);
    }
    asm.load(Width::Byte, Reg::R1, Reg::R10, HEADER + 1);
    asm.op_imm(Op::Rsh, Reg::R1, 2);
    asm.store(Width::Double, Reg::R10, DSCP, Reg::R1);
    asm.load(Width::Byte, Reg::R7, Reg::R10, HEADER + 9);
    asm.store(Width::Double, Reg::R10, PROTOCOL, Reg::R7);
    // A fragment that is not the first has no ports.
    fragments::of_ipv4(asm, ports, done);
}

/// Falls through with the transport `R7` at `R9` in a packet of length `R8`; leaves to `only_protocol` where its header is not seen.
fn parse_ipv6(asm: &mut Asm, only_protocol: Label, done: Label) {
    let [said, checked] = [asm.label(), asm.label()];
    asm.op_imm(Op::Mov, Reg::R9, 0);
    load_header(asm, 40, None, done);
    asm.load(Width::Byte, Reg::R1, Reg::R10, HEADER);
    asm.op_imm(Op::Rsh, Reg::R1, 4);
    asm.jump_if(Cond::Ne, Reg::R1, 6, done);
    load_number(asm, Width::Half, Reg::R8, 4);
    asm.load(Width::Double, Reg::R2, Reg::R10, PRESENT);
    asm.jump_if(Cond::Ne, Reg::R8, 0, said);
    asm.jump_if(Cond::Lt, Reg::R2, LENGTH_MAX + 1, said);
    asm.op(Op::Mov, Reg::R8, Reg::R2);
    asm.jump(checked);
    asm.place(said);
    asm.op_imm(Op::Add, Reg::R8, 40);
    asm.jump_if_reg(Cond::Gt, Reg::R8, Reg::R2, done);
    asm.place(checked);
    asm.store_imm(Width::Double, Reg::R10, FAMILY, 6);
    for (word, at) in [(FROM, 8), (FROM - 8, 16), (TO, 24), (TO - 8, 32)] {
        load_number(asm, Width::Double, Reg::R1, at);
        asm.store(Width::Double, Reg::R10, word, Reg::R1);
    }
    load_number(asm, Width::Half, Reg::R1, 0);
    asm.op_imm(Op::Rsh, Reg::R1, 6);
    asm.op_imm(Op::And, Reg::R1, 0x3f);
    asm.store(Width::Double, Reg::R10, DSCP, Reg::R1);
    asm.load(Width::Byte, Reg::R7, Reg::R10, HEADER + 6);
    asm.op_imm(Op::Mov, Reg::R9, 40);

    let transport = asm.label();
    for _ in 0..EXTENSIONS_MAX {
        skip_extension(asm, transport, only_protocol);
    }
    for kind in EXTENSIONS {
        asm.jump_if(Cond::Eq, Reg::R7, kind, only_protocol);
    }
    asm.place(transport);
}

/// Skips one extension header of kind `R7` at `R9`.
fn skip_extension(asm: &mut Asm, transport: Label, only_protocol: Label) {
    let [extension, counted, eights, fours] = [(); 4].map(|()| asm.label());
    for kind in EXTENSIONS {
        asm.jump_if(Cond::Eq, Reg::R7, kind, extension);
    }
    asm.jump(transport);
    asm.place(extension);
    load_header(asm, 8, Some(only_protocol), only_protocol);
    asm.load(Width::Byte, Reg::R1, Reg::R10, HEADER + 1);
    asm.jump_if(Cond::Eq, Reg::R7, AUTHENTICATION, fours);
    asm.jump_if(Cond::Ne, Reg::R7, FRAGMENT_HEADER, eights);
    asm.load(Width::Byte, Reg::R7, Reg::R10, HEADER);
    fragments::of_ipv6(asm, only_protocol);
    asm.jump(counted);
    asm.place(fours);
    asm.jump_if(Cond::Eq, Reg::R1, 0, only_protocol);
    asm.op_imm(Op::Lsh, Reg::R1, 2);
    asm.jump(counted);
    asm.place(eights);
    asm.op_imm(Op::Lsh, Reg::R1, 3);
    asm.place(counted);
    asm.op_imm(Op::Add, Reg::R1, 8);
    asm.op(Op::Add, Reg::R1, Reg::R9);
    asm.jump_if_reg(Cond::Gt, Reg::R1, Reg::R8, only_protocol);
    asm.op(Op::Mov, Reg::R9, Reg::R1);
    asm.load(Width::Byte, Reg::R7, Reg::R10, HEADER);
}

/// Copies `length` bytes at offset `R9` to [`HEADER`]; if there is a label `beyond`, only bytes before `R8`.
fn load_header(asm: &mut Asm, length: i32, beyond: Option<Label>, failed: Label) {
    if let Some(beyond) = beyond {
        asm.op(Op::Mov, Reg::R1, Reg::R9);
        asm.op_imm(Op::Add, Reg::R1, length);
        asm.jump_if_reg(Cond::Gt, Reg::R1, Reg::R8, beyond);
    }
    asm.op(Op::Mov, Reg::R1, Reg::R6);
    asm.load(Width::Double, Reg::R2, Reg::R10, BASE);
    asm.op(Op::Add, Reg::R2, Reg::R9);
    asm.op(Op::Mov, Reg::R3, Reg::R10);
    asm.op_imm(Op::Add, Reg::R3, HEADER.into());
    asm.op_imm(Op::Mov, Reg::R4, length);
    asm.load(Width::Double, Reg::R5, Reg::R10, START);
    asm.call(Helper::SkbLoadBytesRelative);
    asm.jump_if(Cond::Ne, Reg::R0, 0, failed);
}

/// `register` = the number at offset `at` of the header.
pub(super) fn load_number(asm: &mut Asm, size: Width, register: Reg, at: i16) {
    asm.load(size, register, Reg::R10, HEADER + at);
    let bits = match size {
        Width::Byte => return,
        Width::Half => 16,
        Width::Word => 32,
        Width::Double => 64,
    };
    asm.network_order(register, bits);
}

#[cfg(test)]
#[path = "filter_tests.rs"]
pub(super) mod tests;
