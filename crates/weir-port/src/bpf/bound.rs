//! The XDP program of an interface that a stack shares with the kernel: packets for the stack go to the AF_XDP socket of the queue they
//! arrived on, all others to the kernel's own stack.
//!
//! | packet | goes to |
//! |---|---|
//! | to an address that the stack alone has | the stack; so does ARP, and a neighbour solicitation, that asks for it |
//! | to an address that both have: UDP or TCP to a bound port, no fragment | the stack |
//! | anything else: other ports, ICMP, ARP, fragments, groups, VLANs, IPv6 with extension headers | the kernel |
//! | for several workers: an answer of ARP or neighbour discovery, an ICMP error to an address that the stack alone has | the kernel |
//!
//! ```text
//! words: [ passed packets, bytes, .. ] for each queue, a cache line each
//!        [ 65,536 bits of UDP ports ][ 65,536 of TCP ] for each address
//! ```
//!
//! Rule: a port is bound from the moment its bit is set, which is one store to memory that the program reads; no packet waits for that. A
//! packet passed on is untouched, its checksum and its offloads included. The packets passed on are counted for each queue, since the
//! queue's poller does not see them otherwise and would take a ring full of them for an empty one.
//!
//! Of several workers each asks for its neighbours, and packets of one queue go to one worker. So packets that all workers must hear go to
//! the kernel's interface, where each has a copy of them ([`crate::tap`]); the kernel has no use for them.
//!
//! While a queue has no socket, as when it is taken again after the interface was down, packets for the stack are dropped: the kernel would
//! reset the stack's connections.
//!
//! Owner: the stack that binds ports sets the bits; the program counts; the queue's worker reads the counts. Source:
//! `include/uapi/linux/bpf.h`, `struct xdp_md`; RFC 791, 8200, 826, 4861 section 4.3 for the offsets.

use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;

use super::asm::{Asm, Cond, Helper, Label, Op, Reg, Width};
use super::map::{Map, SharedWords};
use super::program::{Hook, Program};
use super::redirect::{XDP_MD_RX_QUEUE_INDEX, XDP_PASS};
use super::steering::BucketSteering;

const XDP_MD_DATA: i16 = 0;
const XDP_MD_DATA_END: i16 = 4;
const XDP_DROP: i32 = 1;

/// The most addresses of a stack.
pub const ADDRESSES_MAX: usize = 64;

/// A queue's words begin a cache line of their own.
const QUEUE_WORDS: usize = 16;
const QUEUE_SHIFT: i32 = 6;
const PASSED_PACKETS: usize = 0;
const PASSED_BYTES: usize = 1;
/// A bit for each port.
const PORT_WORDS: usize = (1 << 16) / 32;
const ADDRESS_WORDS: usize = 2 * PORT_WORDS;

const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_ARP: u16 = 0x0806;
const ETHERTYPE_IPV6: u16 = 0x86dd;
const UDP: i32 = 17;
const TCP: i32 = 6;
const ICMP: i32 = 1;
const ICMP_UNREACHABLE: i32 = 3;
const ICMPV6: i32 = 58;
const ICMPV6_UNREACHABLE: i32 = 1;
const ICMPV6_TOO_BIG: i32 = 2;
const NEIGHBOUR_SOLICITATION: i32 = 135;
const NEIGHBOUR_ADVERTISEMENT: i32 = 136;
const ARP_REPLY: u16 = 2;

/// A protocol with ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Transport {
    /// UDP.
    Udp,
    /// TCP.
    Tcp,
}

/// An address of a stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnAddress {
    /// The address.
    pub address: IpAddr,
    /// True if the kernel has it too.
    pub is_shared: bool,
}

/// The bound ports of a stack and the program that reads them; see the head of the file.
pub struct BoundPorts {
    words: SharedWords,
    addresses: Vec<OwnAddress>,
    queues: usize,
    /// The steering of flows to several workers; `None` for one worker.
    steering: Option<BucketSteering>,
}

impl BoundPorts {
    /// The ports of a stack with these addresses, on an interface of `queues` queues; no port is bound.
    ///
    /// # Panics
    /// If there are more than [`ADDRESSES_MAX`].
    pub fn new(
        addresses: Vec<OwnAddress>,
        queues: usize,
        steering: Option<BucketSteering>,
    ) -> io::Result<BoundPorts> {
        assert!(addresses.len() <= ADDRESSES_MAX, "a stack has at most {ADDRESSES_MAX} addresses");
        let words = SharedWords::new(QUEUE_WORDS * queues + ADDRESS_WORDS * addresses.len())?;
        Ok(BoundPorts { words, addresses, queues, steering })
    }

    /// The addresses, by their numbers.
    pub fn addresses(&self) -> &[OwnAddress] {
        &self.addresses
    }

    /// The steering of flows to several workers; `None` for one worker.
    pub fn steering(&self) -> Option<&BucketSteering> {
        self.steering.as_ref()
    }

    /// Binds a port of the address with this number to the stack, or gives it back to the kernel.
    ///
    /// # Panics
    /// If there is no such address.
    pub fn set(&self, address: usize, transport: Transport, port: u16, is_bound: bool) {
        assert!(address < self.addresses.len(), "an address of this stack");
        let of_transport = usize::from(transport == Transport::Tcp) * PORT_WORDS;
        let word = self.address_word(address) + of_transport + usize::from(port / 32);
        let (word, bit) = (&self.words.words()[word], 1 << (port % 32));
        match is_bound {
            true => word.fetch_or(bit, Ordering::SeqCst),
            false => word.fetch_and(!bit, Ordering::SeqCst),
        };
    }

    /// The packets, and their bytes, that a queue has passed on to the kernel; both counters wrap at 2^32.
    pub fn passed(&self, queue: usize) -> [u32; 2] {
        assert!(queue < self.queues, "a queue of this interface");
        let word = |word: usize| self.words.words()[QUEUE_WORDS * queue + word].load(Ordering::Relaxed);
        [word(PASSED_PACKETS), word(PASSED_BYTES)]
    }

    /// Loads the program for a map of sockets.
    pub fn load(&self, sockets: &Map) -> io::Result<Program> {
        Program::load(Hook::Xdp, &self.code(sockets))
    }

    fn address_word(&self, address: usize) -> usize {
        QUEUE_WORDS * self.queues + ADDRESS_WORDS * address
    }

    /// The program. `R6` is the context, `R7` and `R8` the beginning and the end of the frame, `R9` the words.
    fn code(&self, sockets: &Map) -> Vec<super::asm::Slot> {
        let mut asm = Asm::new();
        let to = Ways { stack: asm.label(), kernel: asm.label(), port: asm.label() };
        let [arp, ipv4, ipv6] = [asm.label(), asm.label(), asm.label()];
        asm.op(Op::Mov, Reg::R6, Reg::R1);
        asm.load(Width::Word, Reg::R7, Reg::R6, XDP_MD_DATA);
        asm.load(Width::Word, Reg::R8, Reg::R6, XDP_MD_DATA_END);
        asm.load_map_value(Reg::R9, self.words.as_fd());
        require_bytes(&mut asm, 34, to.kernel);
        asm.load(Width::Half, Reg::R3, Reg::R7, 12);
        asm.jump_if(Cond::Eq, Reg::R3, wire(ETHERTYPE_IPV4), ipv4);
        asm.jump_if(Cond::Eq, Reg::R3, wire(ETHERTYPE_IPV6), ipv6);
        asm.jump_if(Cond::Eq, Reg::R3, wire(ETHERTYPE_ARP), arp);
        asm.jump(to.kernel);
        asm.place(ipv4);
        self.of_ipv4(&mut asm, &to);
        asm.place(ipv6);
        self.of_ipv6(&mut asm, &to);
        asm.place(arp);
        self.of_arp(&mut asm, &to);
        // The verifier refuses unreachable code.
        if self.addresses.iter().any(|own| own.is_shared) {
            asm.place(to.port);
            of_port(&mut asm, &to);
        }

        asm.place(to.stack);
        asm.load(Width::Word, Reg::R2, Reg::R6, XDP_MD_RX_QUEUE_INDEX);
        asm.load_map(Reg::R1, sockets.as_fd());
        asm.op_imm(Op::Mov, Reg::R3, XDP_DROP);
        asm.call(Helper::RedirectMap);
        asm.exit();

        asm.place(to.kernel);
        let uncounted = asm.label();
        asm.load(Width::Word, Reg::R1, Reg::R6, XDP_MD_RX_QUEUE_INDEX);
        asm.jump_if(Cond::Ge, Reg::R1, self.queues as i32, uncounted);
        asm.op_imm(Op::Lsh, Reg::R1, QUEUE_SHIFT);
        asm.op(Op::Add, Reg::R1, Reg::R9);
        asm.op_imm(Op::Mov, Reg::R2, 1);
        asm.fetch_add(Reg::R1, (4 * PASSED_PACKETS) as i16, Reg::R2);
        asm.op(Op::Sub, Reg::R8, Reg::R7);
        asm.fetch_add(Reg::R1, (4 * PASSED_BYTES) as i16, Reg::R8);
        asm.place(uncounted);
        asm.op_imm(Op::Mov, Reg::R0, XDP_PASS);
        asm.exit();
        asm.finish()
    }

    /// The branch for IPv4. Leaves the transport in `R4`, the port as in the frame in `R3`, and the offset of the address's ports in `R5`.
    fn of_ipv4(&self, asm: &mut Asm, to: &Ways) {
        /// The fragment flags and offset, without the bit "don't fragment".
        const FRAGMENT: u16 = 0x3fff;
        let shared = asm.label();
        let alone = if self.steering.is_some() { asm.label() } else { to.stack };
        asm.load(Width::Word, Reg::R4, Reg::R7, 30);
        self.each_v4(asm, Reg::R4, |asm, number, own| {
            asm.op_imm(Op::Mov, Reg::R5, self.offset(number));
            asm.jump(if own.is_shared { shared } else { alone });
        });
        asm.jump(to.kernel);

        let is_alone = |own: &OwnAddress| !own.is_shared && own.address.is_ipv4();
        if self.steering.is_some() && self.addresses.iter().any(is_alone) {
            asm.place(alone);
            of_error_v4(asm, to);
        }
        if !self.addresses.iter().any(|own| own.is_shared && own.address.is_ipv4()) {
            return;
        }
        asm.place(shared);
        asm.load(Width::Half, Reg::R3, Reg::R7, 20);
        asm.op_imm(Op::And, Reg::R3, wire(FRAGMENT));
        asm.jump_if(Cond::Ne, Reg::R3, 0, to.kernel);
        asm.load(Width::Byte, Reg::R4, Reg::R7, 23);
        asm.load(Width::Byte, Reg::R1, Reg::R7, 14);
        asm.op_imm(Op::And, Reg::R1, 0x0f);
        asm.op_imm(Op::Lsh, Reg::R1, 2);
        asm.jump_if(Cond::Lt, Reg::R1, 20, to.kernel);
        asm.op(Op::Add, Reg::R1, Reg::R7);
        asm.op(Op::Mov, Reg::R2, Reg::R1);
        asm.op_imm(Op::Add, Reg::R2, 18);
        asm.jump_if_reg(Cond::Gt, Reg::R2, Reg::R8, to.kernel);
        asm.load(Width::Half, Reg::R3, Reg::R1, 16);
        asm.jump(to.port);
    }

    /// The branch for IPv6, which leaves the same in the same registers.
    fn of_ipv6(&self, asm: &mut Asm, to: &Ways) {
        let shared = asm.label();
        let alone = if self.steering.is_some() { asm.label() } else { to.stack };
        require_bytes(asm, 58, to.kernel);
        let destination = |asm: &mut Asm, at: i16| {
            asm.load(Width::Double, Reg::R3, Reg::R7, at);
            asm.load(Width::Double, Reg::R4, Reg::R7, at + 8);
        };
        destination(asm, 38);
        self.each_v6(asm, |asm, number, own| {
            asm.op_imm(Op::Mov, Reg::R5, self.offset(number));
            asm.jump(if own.is_shared { shared } else { alone });
        });
        // A packet to a group may be a solicitation for an address that is the stack's alone.
        require_bytes(asm, 78, to.kernel);
        asm.load(Width::Byte, Reg::R1, Reg::R7, 20);
        asm.jump_if(Cond::Ne, Reg::R1, ICMPV6, to.kernel);
        asm.load(Width::Byte, Reg::R1, Reg::R7, 54);
        asm.jump_if(Cond::Ne, Reg::R1, NEIGHBOUR_SOLICITATION, to.kernel);
        destination(asm, 62);
        self.each_v6(asm, |asm, _, own| asm.jump(if own.is_shared { to.kernel } else { to.stack }));
        asm.jump(to.kernel);

        let is_alone = |own: &OwnAddress| !own.is_shared && own.address.is_ipv6();
        if self.steering.is_some() && self.addresses.iter().any(is_alone) {
            asm.place(alone);
            asm.load(Width::Byte, Reg::R1, Reg::R7, 20);
            asm.jump_if(Cond::Ne, Reg::R1, ICMPV6, to.stack);
            asm.load(Width::Byte, Reg::R1, Reg::R7, 54);
            for heard_by_all in [ICMPV6_UNREACHABLE, ICMPV6_TOO_BIG, NEIGHBOUR_ADVERTISEMENT] {
                asm.jump_if(Cond::Eq, Reg::R1, heard_by_all, to.kernel);
            }
            asm.jump(to.stack);
        }
        if !self.addresses.iter().any(|own| own.is_shared && own.address.is_ipv6()) {
            return;
        }
        asm.place(shared);
        asm.load(Width::Byte, Reg::R4, Reg::R7, 20);
        asm.load(Width::Half, Reg::R3, Reg::R7, 56);
        asm.jump(to.port);
    }

    /// The branch for ARP, by the address that is asked for or that an answer is for.
    fn of_arp(&self, asm: &mut Asm, to: &Ways) {
        require_bytes(asm, 42, to.kernel);
        asm.load(Width::Word, Reg::R4, Reg::R7, 38);
        if self.steering.is_some() {
            asm.load(Width::Half, Reg::R3, Reg::R7, 20);
            asm.jump_if(Cond::Eq, Reg::R3, wire(ARP_REPLY), to.kernel);
        }
        self.each_v4(asm, Reg::R4, |asm, _, own| {
            asm.jump(if own.is_shared { to.kernel } else { to.stack });
        });
        asm.jump(to.kernel);
    }

    /// Emits the code of `found` for each IPv4 address, taken where `word` is that address.
    fn each_v4(&self, asm: &mut Asm, word: Reg, mut found: impl FnMut(&mut Asm, usize, OwnAddress)) {
        for (number, own) in self.addresses.iter().enumerate() {
            let IpAddr::V4(address) = own.address else { continue };
            let next = asm.label();
            asm.load_immediate(Reg::R1, u32::from_ne_bytes(address.octets()).into());
            asm.jump_if_reg(Cond::Ne, word, Reg::R1, next);
            found(asm, number, *own);
            asm.place(next);
        }
    }

    /// Emits the code of `found` for each IPv6 address, taken where `R3` and `R4` are that address.
    fn each_v6(&self, asm: &mut Asm, mut found: impl FnMut(&mut Asm, usize, OwnAddress)) {
        for (number, own) in self.addresses.iter().enumerate() {
            let IpAddr::V6(address) = own.address else { continue };
            let next = asm.label();
            let octets = address.octets();
            for (register, half) in [Reg::R3, Reg::R4].into_iter().zip(octets.as_chunks().0) {
                asm.load_immediate(Reg::R1, u64::from_ne_bytes(*half));
                asm.jump_if_reg(Cond::Ne, register, Reg::R1, next);
            }
            found(asm, number, *own);
            asm.place(next);
        }
    }

    /// The offset of an address's ports among the words, in bytes.
    fn offset(&self, address: usize) -> i32 {
        (4 * self.address_word(address)) as i32
    }
}

/// The labels of a packet's further ways.
struct Ways {
    stack: Label,
    kernel: Label,
    port: Label,
}

/// Emits a jump to `short` unless the frame has `bytes` bytes.
fn require_bytes(asm: &mut Asm, bytes: i32, short: Label) {
    asm.op(Op::Mov, Reg::R2, Reg::R7);
    asm.op_imm(Op::Add, Reg::R2, bytes);
    asm.jump_if_reg(Cond::Gt, Reg::R2, Reg::R8, short);
}

/// The branch for an IPv4 packet to an address that the stack alone has: an ICMP error is for all its workers.
fn of_error_v4(asm: &mut Asm, to: &Ways) {
    /// The fragment offset; not 0 in a later fragment.
    const OFFSET: u16 = 0x1fff;
    asm.load(Width::Byte, Reg::R1, Reg::R7, 23);
    asm.jump_if(Cond::Ne, Reg::R1, ICMP, to.stack);
    asm.load(Width::Half, Reg::R1, Reg::R7, 20);
    asm.op_imm(Op::And, Reg::R1, wire(OFFSET));
    asm.jump_if(Cond::Ne, Reg::R1, 0, to.stack);
    asm.load(Width::Byte, Reg::R1, Reg::R7, 14);
    asm.op_imm(Op::And, Reg::R1, 0x0f);
    asm.op_imm(Op::Lsh, Reg::R1, 2);
    asm.op(Op::Add, Reg::R1, Reg::R7);
    asm.op(Op::Mov, Reg::R2, Reg::R1);
    asm.op_imm(Op::Add, Reg::R2, 15);
    asm.jump_if_reg(Cond::Gt, Reg::R2, Reg::R8, to.stack);
    asm.load(Width::Byte, Reg::R1, Reg::R1, 14);
    asm.jump_if(Cond::Eq, Reg::R1, ICMP_UNREACHABLE, to.kernel);
    asm.jump(to.stack);
}

/// Decides by the transport in `R4`, the port in `R3` and the offset of the address's ports in `R5`.
fn of_port(asm: &mut Asm, to: &Ways) {
    let udp = asm.label();
    asm.jump_if(Cond::Eq, Reg::R4, UDP, udp);
    asm.jump_if(Cond::Ne, Reg::R4, TCP, to.kernel);
    asm.op_imm(Op::Add, Reg::R5, (4 * PORT_WORDS) as i32);
    asm.place(udp);
    asm.network_order(Reg::R3, 16);
    // The verifier of an older kernel does not know that the port has 16 bits.
    asm.op_imm(Op::And, Reg::R3, 0xffff);
    asm.op(Op::Mov, Reg::R1, Reg::R3);
    asm.op_imm(Op::Rsh, Reg::R1, 5);
    asm.op_imm(Op::Lsh, Reg::R1, 2);
    asm.op(Op::Add, Reg::R1, Reg::R5);
    asm.op(Op::Add, Reg::R1, Reg::R9);
    asm.load(Width::Word, Reg::R1, Reg::R1, 0);
    asm.op_imm(Op::And, Reg::R3, 31);
    asm.op(Op::Rsh, Reg::R1, Reg::R3);
    asm.op_imm(Op::And, Reg::R1, 1);
    asm.jump_if(Cond::Ne, Reg::R1, 0, to.stack);
    asm.jump(to.kernel);
}

/// A half word of a frame in the byte order in which the program loads it.
fn wire(value: u16) -> i32 {
    i32::from(value.to_be())
}
