//! The XDP program at the receiving end: a packet goes to the AF_XDP socket of the queue it arrived on.
//!
//! ```text
//! return bpf_redirect_map(&sockets, ctx->rx_queue_index, XDP_PASS)
//! ```
//!
//! A queue without a socket passes its packets to the kernel's own stack. Priming a NAPI instance needs that (`crate::napi`), and it
//! happens before the port is ready.
//!
//! Source: `include/uapi/linux/bpf.h`, `struct xdp_md`.

use std::io;
use std::os::fd::AsFd;

use super::asm::{Asm, Helper, Op, Reg, Width};
use super::map::Map;
use super::program::{Hook, Program};

pub(super) const XDP_MD_RX_QUEUE_INDEX: i16 = 16;
pub(super) const XDP_PASS: i32 = 2;

/// Loads the program for a map of sockets.
pub fn load(sockets: &Map) -> io::Result<Program> {
    let mut asm = Asm::new();
    asm.load(Width::Word, Reg::R2, Reg::R1, XDP_MD_RX_QUEUE_INDEX);
    asm.load_map(Reg::R1, sockets.as_fd());
    asm.op_imm(Op::Mov, Reg::R3, XDP_PASS);
    asm.call(Helper::RedirectMap);
    asm.exit();
    Program::load(Hook::Xdp, &asm.finish())
}

/// Loads a program that sends every frame out by an interface of the namespace that the frame came in by.
pub fn to_interface(ifindex: u32) -> io::Result<Program> {
    let mut asm = Asm::new();
    asm.op_imm(Op::Mov, Reg::R1, ifindex as i32);
    asm.op_imm(Op::Mov, Reg::R2, 0);
    asm.call(Helper::Redirect);
    asm.exit();
    Program::load(Hook::Xdp, &asm.finish())
}
