//! Receive-side scaling by the sending end of a veth: the transmit queue of a packet is that of its flow's bucket, as a NIC's indirection
//! table has it, so that the worker whose bucket that is receives it.
//!
//! ```text
//! words: [ the queue of each bucket, a byte ][ for each byte of a tuple 256 bytes: the share of each value in the bucket ]
//! bucket = XOR over the tuple of share[at][byte]          queue = queues[bucket & (buckets - 1)]
//! ```
//!
//! Rule: the same hash as [`Rss`] has, of which a bucket is the low bits, at most 7: a byte of each share is enough. TCP and UDP over IPv4
//! and IPv6 are steered by addresses and ports; all other packets, fragments and those with IPv6 extension headers included, come by the
//! first queue.
//!
//! Owner: written when it is made, and never again. Source: `weir_core::steer`; RFC 791, 8200 for the offsets. Limits: packets that pass
//! the sending end without its program (AF_XDP, XDP redirect, `PACKET_QDISC_BYPASS`) come by a queue of the sender's choice.

use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;

use weir_core::asm::{Asm, Cond, Helper, Label, Op, Reg, Width};
use weir_core::steer::key::BUCKET_BITS_MAX;
use weir_core::steer::rss::Rss;

use super::map::SharedWords;

const SKB_PROTOCOL: i16 = 16;
/// `BPF_HDR_START_NET`.
const FROM_NETWORK_HEADER: i32 = 1;

const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_IPV6: u16 = 0x86dd;
const UDP: i32 = 17;
const TCP: i32 = 6;

const BUCKETS_MAX: usize = 1 << BUCKET_BITS_MAX;
/// The offset at which the shares begin, in bytes.
const SHARES_AT: usize = BUCKETS_MAX;
const V4_TUPLE_BYTES: usize = 12;
const V6_TUPLE_BYTES: usize = 36;

/// The table from buckets to queues, with the shares of a hash; see the head of the file.
pub struct BucketSteering {
    words: SharedWords,
    buckets: usize,
}

impl BucketSteering {
    /// Steers to `queues` queues, as [`Rss::queues`] deals buckets to them.
    ///
    /// # Errors
    /// If the kernel does not give the memory.
    pub fn new(rss: &Rss, queues: usize) -> io::Result<BucketSteering> {
        let mut bytes = vec![0; SHARES_AT + 256 * V6_TUPLE_BYTES];
        let by = rss.queues(queues);
        bytes[..by.len()].copy_from_slice(&by);
        for (at, shares) in bytes[SHARES_AT..].chunks_mut(256).enumerate() {
            for (byte, share) in (0..=u8::MAX).zip(shares) {
                *share = rss.share_of(at, byte) as u8;
            }
        }
        let words = SharedWords::new(bytes.len() / 4)?;
        for (word, bytes) in words.words().iter().zip(bytes.as_chunks().0) {
            word.store(u32::from_ne_bytes(*bytes), Ordering::Relaxed);
        }
        Ok(BucketSteering { words, buckets: rss.buckets() })
    }

    /// Leaves the queue of the packet in `R7` and goes to `chosen` or on. `R6` is the packet; `R9` is used.
    pub(super) fn choose_queue(&self, asm: &mut Asm, chosen: Label) {
        let [ipv4, ipv6, first] = [asm.label(), asm.label(), asm.label()];
        asm.load_map_value(Reg::R9, self.words.as_fd());
        asm.load(Width::Word, Reg::R0, Reg::R6, SKB_PROTOCOL);
        asm.jump_if(Cond::Eq, Reg::R0, wire(ETHERTYPE_IPV4), ipv4);
        asm.jump_if(Cond::Eq, Reg::R0, wire(ETHERTYPE_IPV6), ipv6);
        asm.place(first);
        asm.op_imm(Op::Mov, Reg::R7, 0);
        asm.jump(chosen);

        // The addresses end where the ports begin, four bytes before the end of the stack.
        asm.place(ipv4);
        load(asm, Place::Immediate(0), -24, 20, first);
        let transport = asm.label();
        /// The fragment flags and offset, without the bit "don't fragment".
        const FRAGMENT: u16 = 0x3fff;
        asm.load(Width::Half, Reg::R1, Reg::R10, -24 + 6);
        asm.op_imm(Op::And, Reg::R1, wire(FRAGMENT));
        asm.jump_if(Cond::Ne, Reg::R1, 0, first);
        asm.load(Width::Byte, Reg::R1, Reg::R10, -24 + 9);
        require_transport(asm, transport, first);
        asm.load(Width::Byte, Reg::R1, Reg::R10, -24);
        asm.op_imm(Op::And, Reg::R1, 0x0f);
        asm.op_imm(Op::Lsh, Reg::R1, 2);
        load(asm, Place::R1, -4, 4, first);
        self.look_up(asm, V4_TUPLE_BYTES);
        asm.jump(chosen);

        asm.place(ipv6);
        load(asm, Place::Immediate(0), -44, 40, first);
        let transport = asm.label();
        asm.load(Width::Byte, Reg::R1, Reg::R10, -44 + 6);
        require_transport(asm, transport, first);
        load(asm, Place::Immediate(40), -4, 4, first);
        self.look_up(asm, V6_TUPLE_BYTES);
    }

    /// Leaves the queue of the tuple at the end of the stack in `R7`.
    fn look_up(&self, asm: &mut Asm, tuple_bytes: usize) {
        asm.op_imm(Op::Mov, Reg::R7, 0);
        for at in 0..tuple_bytes {
            asm.load(Width::Byte, Reg::R1, Reg::R10, at as i16 - tuple_bytes as i16);
            asm.op(Op::Add, Reg::R1, Reg::R9);
            asm.load(Width::Byte, Reg::R1, Reg::R1, (SHARES_AT + 256 * at) as i16);
            asm.op(Op::Xor, Reg::R7, Reg::R1);
        }
        asm.op_imm(Op::And, Reg::R7, self.buckets as i32 - 1);
        asm.op(Op::Add, Reg::R7, Reg::R9);
        asm.load(Width::Byte, Reg::R7, Reg::R7, 0);
    }
}

/// The register or the offset from which a header is read.
enum Place {
    Immediate(i32),
    R1,
}

/// Emits the load of `bytes` bytes of the network header, beginning at `from`, to a place of the stack; goes to `short` if there are fewer.
fn load(asm: &mut Asm, from: Place, to: i32, bytes: i32, short: Label) {
    match from {
        Place::Immediate(at) => asm.op_imm(Op::Mov, Reg::R2, at),
        Place::R1 => asm.op(Op::Mov, Reg::R2, Reg::R1),
    }
    asm.op(Op::Mov, Reg::R1, Reg::R6);
    asm.op(Op::Mov, Reg::R3, Reg::R10);
    asm.op_imm(Op::Add, Reg::R3, to);
    asm.op_imm(Op::Mov, Reg::R4, bytes);
    asm.op_imm(Op::Mov, Reg::R5, FROM_NETWORK_HEADER);
    asm.call(Helper::SkbLoadBytesRelative);
    asm.jump_if(Cond::Ne, Reg::R0, 0, short);
}

/// Goes to `other` unless `R1` is a protocol with ports.
fn require_transport(asm: &mut Asm, transport: Label, other: Label) {
    asm.jump_if(Cond::Eq, Reg::R1, UDP, transport);
    asm.jump_if(Cond::Ne, Reg::R1, TCP, other);
    asm.place(transport);
}

/// A half word of a frame in the byte order in which the program loads it.
fn wire(value: u16) -> i32 {
    i32::from(value.to_be())
}
