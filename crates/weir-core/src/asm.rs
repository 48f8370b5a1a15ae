//! A small assembler for BPF: enough to write Weir's programs in Rust, so that neither the build nor the user's
//! machine needs an eBPF toolchain.
//!
//! Each method appends one instruction (two slots for [`Asm::load_map`] and [`Asm::load_map_value`]); jumps name a
//! [`Label`], which is placed once and resolved in [`Asm::finish`]. Mistakes here are caught twice: by assertions
//! at assembly and by the kernel's verifier at load.
//!
//! Source: `Documentation/bpf/standardization/instruction-set.rst`.

use std::os::fd::{AsRawFd, BorrowedFd};

/// A register; `R10` is the read-only frame pointer, `R0` holds results, `R1` to `R5` arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Reg {
    R0,
    R1,
    R2,
    R3,
    R4,
    R5,
    R6 = 6,
    R7,
    R8,
    R9,
    R10 = 10,
}

/// The width of a memory access.
#[derive(Clone, Copy, Debug)]
#[repr(u8)]
pub enum Width {
    /// 32 bits.
    Word = 0x00,
    /// 16 bits.
    Half = 0x08,
    /// 8 bits.
    Byte = 0x10,
    /// 64 bits.
    Double = 0x18,
}

/// A condition of a jump, on 64-bit values: unsigned unless it says otherwise.
#[derive(Clone, Copy, Debug)]
#[repr(u8)]
pub enum Cond {
    /// Equal.
    Eq = 0x10,
    /// Not equal.
    Ne = 0x50,
    /// At least.
    Ge = 0x30,
    /// More.
    Gt = 0x20,
    /// Less.
    Lt = 0xa0,
    /// Less, of signed values.
    SignedLt = 0xc0,
    /// More, of signed values.
    SignedGt = 0x60,
    /// At most, of signed values.
    SignedLe = 0xd0,
}

/// A 64-bit arithmetic operation.
#[derive(Clone, Copy, Debug)]
#[repr(u8)]
pub enum Op {
    /// Addition.
    Add = 0x00,
    /// Subtraction.
    Sub = 0x10,
    /// Multiplication.
    Mul = 0x20,
    /// Division, of unsigned values.
    Div = 0x30,
    /// Bitwise or.
    Or = 0x40,
    /// Bitwise and.
    And = 0x50,
    /// Shift left.
    Lsh = 0x60,
    /// Shift right, filling with 0.
    Rsh = 0x70,
    /// Remainder.
    Mod = 0x90,
    /// Bitwise exclusive or.
    Xor = 0xa0,
    /// Copy.
    Mov = 0xb0,
}

/// The kernel functions that Weir's programs call (`enum bpf_func_id`).
#[derive(Clone, Copy, Debug)]
#[repr(i32)]
pub enum Helper {
    /// `bpf_map_lookup_elem`.
    MapLookup = 1,
    /// `bpf_map_update_elem`.
    MapUpdate = 2,
    /// `bpf_ktime_get_ns`.
    KtimeGetNs = 5,
    /// `bpf_redirect`.
    Redirect = 23,
    /// `bpf_get_hash_recalc`.
    GetHashRecalc = 34,
    /// `bpf_get_socket_cookie`.
    GetSocketCookie = 46,
    /// `bpf_redirect_map`.
    RedirectMap = 51,
    /// `bpf_skb_load_bytes_relative`.
    SkbLoadBytesRelative = 68,
    /// `bpf_skb_ecn_set_ce`.
    SkbEcnSetCe = 97,
    /// `bpf_ringbuf_output`.
    RingbufOutput = 130,
}

/// One 64-bit instruction slot, as the kernel reads it.
pub type Slot = u64;

/// A place to jump to.
#[derive(Clone, Copy, Debug)]
pub struct Label(usize);

/// A program being assembled.
#[derive(Default)]
pub struct Asm {
    slots: Vec<Slot>,
    labels: Vec<Option<usize>>,
    jumps: Vec<(usize, Label)>,
}

const CLASS_LD: u8 = 0x00;
const CLASS_LDX: u8 = 0x01;
const CLASS_ST: u8 = 0x02;
const CLASS_STX: u8 = 0x03;
const CLASS_ALU: u8 = 0x04;
const CLASS_JMP: u8 = 0x05;
const CLASS_ALU64: u8 = 0x07;
const MODE_IMM_DOUBLE: u8 = 0x18;
const MODE_MEM: u8 = 0x60;
const MODE_ATOMIC: u8 = 0xc0;
const SOURCE_REG: u8 = 0x08;
const END_TO_BE: u8 = 0xd8;
const ATOMIC_ADD: i32 = 0x00;
const ATOMIC_FETCH_ADD: i32 = 0x01;
const ATOMIC_XCHG: i32 = 0xe1;
const ATOMIC_CMPXCHG: i32 = 0xf1;
const PSEUDO_MAP_FD: u8 = 1;
const PSEUDO_MAP_VALUE: u8 = 2;

impl Asm {
    /// An empty program.
    pub fn new() -> Asm {
        Asm::default()
    }

    fn slot(&mut self, opcode: u8, dst: u8, src: u8, offset: i16, immediate: i32) {
        self.slots.push(
            u64::from(opcode)
                | u64::from(dst) << 8
                | u64::from(src) << 12
                | u64::from(offset as u16) << 16
                | u64::from(immediate as u32) << 32,
        );
    }

    /// A label to be placed later.
    pub fn label(&mut self) -> Label {
        self.labels.push(None);
        Label(self.labels.len() - 1)
    }

    /// Places `label` before the next instruction.
    pub fn place(&mut self, label: Label) {
        assert!(self.labels[label.0].replace(self.slots.len()).is_none(), "a label is placed once");
    }

    /// `dst = dst op immediate`.
    pub fn op_imm(&mut self, op: Op, dst: Reg, immediate: i32) {
        self.slot(CLASS_ALU64 | op as u8, dst as u8, 0, 0, immediate);
    }

    /// `dst = dst op src`.
    pub fn op(&mut self, op: Op, dst: Reg, src: Reg) {
        self.slot(CLASS_ALU64 | SOURCE_REG | op as u8, dst as u8, src as u8, 0, 0);
    }

    /// `dst = value`, all 64 bits; two slots.
    pub fn load_immediate(&mut self, dst: Reg, value: u64) {
        self.slot(CLASS_LD | MODE_IMM_DOUBLE, dst as u8, 0, 0, value as i32);
        self.slot(0, 0, 0, 0, (value >> 32) as i32);
    }

    /// `dst` = its low 16, 32 or 64 bits, turned from the order of the network to the machine's or back.
    pub fn network_order(&mut self, dst: Reg, bits: i32) {
        self.slot(CLASS_ALU | END_TO_BE, dst as u8, 0, 0, bits);
    }

    /// `dst = *(size *)(src + offset)`.
    pub fn load(&mut self, size: Width, dst: Reg, src: Reg, offset: i16) {
        self.slot(CLASS_LDX | MODE_MEM | size as u8, dst as u8, src as u8, offset, 0);
    }

    /// `*(size *)(dst + offset) = src`.
    pub fn store(&mut self, size: Width, dst: Reg, offset: i16, src: Reg) {
        self.slot(CLASS_STX | MODE_MEM | size as u8, dst as u8, src as u8, offset, 0);
    }

    /// `*(size *)(dst + offset) = immediate`.
    pub fn store_imm(&mut self, size: Width, dst: Reg, offset: i16, immediate: i32) {
        self.slot(CLASS_ST | MODE_MEM | size as u8, dst as u8, 0, offset, immediate);
    }

    /// `*(u64 *)(dst + offset) += src`, in one.
    pub fn add_double(&mut self, dst: Reg, offset: i16, src: Reg) {
        self.slot(CLASS_STX | MODE_ATOMIC | Width::Double as u8, dst as u8, src as u8, offset, ATOMIC_ADD);
    }

    /// Swaps `*(u64 *)(dst + offset)` and `src`, in one; Linux 5.12.
    pub fn exchange_double(&mut self, dst: Reg, offset: i16, src: Reg) {
        self.slot(CLASS_STX | MODE_ATOMIC | Width::Double as u8, dst as u8, src as u8, offset, ATOMIC_XCHG);
    }

    /// `src = atomic 32-bit fetch-and-add of src to *(dst + offset)`, sequentially consistent.
    pub fn fetch_add(&mut self, dst: Reg, offset: i16, src: Reg) {
        self.slot(CLASS_STX | MODE_ATOMIC, dst as u8, src as u8, offset, ATOMIC_FETCH_ADD);
    }

    /// `src = atomic 32-bit exchange of src with *(dst + offset)`, sequentially consistent.
    pub fn exchange(&mut self, dst: Reg, offset: i16, src: Reg) {
        self.slot(CLASS_STX | MODE_ATOMIC, dst as u8, src as u8, offset, ATOMIC_XCHG);
    }

    /// If `*(dst + offset)` is `R0`, sets it to `src`; `R0` becomes the old value. 32 bits, sequentially consistent.
    pub fn compare_exchange(&mut self, dst: Reg, offset: i16, src: Reg) {
        self.slot(CLASS_STX | MODE_ATOMIC, dst as u8, src as u8, offset, ATOMIC_CMPXCHG);
    }

    /// `dst =` the map itself, as a helper's argument.
    pub fn load_map(&mut self, dst: Reg, map: BorrowedFd<'_>) {
        self.slot(CLASS_LD | MODE_IMM_DOUBLE, dst as u8, PSEUDO_MAP_FD, 0, map.as_raw_fd());
        self.slot(0, 0, 0, 0, 0);
    }

    /// `dst =` the address of byte 0 of an array map's first value.
    pub fn load_map_value(&mut self, dst: Reg, map: BorrowedFd<'_>) {
        self.slot(CLASS_LD | MODE_IMM_DOUBLE, dst as u8, PSEUDO_MAP_VALUE, 0, map.as_raw_fd());
        self.slot(0, 0, 0, 0, 0);
    }

    /// Jumps to `label` if `register cond immediate`.
    pub fn jump_if(&mut self, cond: Cond, register: Reg, immediate: i32, label: Label) {
        self.jumps.push((self.slots.len(), label));
        self.slot(CLASS_JMP | cond as u8, register as u8, 0, 0, immediate);
    }

    /// Jumps to `label` if `register cond other`.
    pub fn jump_if_reg(&mut self, cond: Cond, register: Reg, other: Reg, label: Label) {
        self.jumps.push((self.slots.len(), label));
        self.slot(CLASS_JMP | SOURCE_REG | cond as u8, register as u8, other as u8, 0, 0);
    }

    /// Jumps to `label`.
    pub fn jump(&mut self, label: Label) {
        self.jumps.push((self.slots.len(), label));
        self.slot(CLASS_JMP, 0, 0, 0, 0);
    }

    /// Calls a kernel function.
    pub fn call(&mut self, helper: Helper) {
        self.slot(CLASS_JMP | 0x80, 0, 0, 0, helper as i32);
    }

    /// Returns `R0`.
    pub fn exit(&mut self) {
        self.slot(CLASS_JMP | 0x90, 0, 0, 0, 0);
    }

    /// The number of slots so far.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Returns whether the program has no slot yet.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// The number of jumps so far.
    pub fn jumps(&self) -> usize {
        self.jumps.len()
    }

    /// The finished program, every jump resolved.
    pub fn finish(mut self) -> Vec<Slot> {
        for (at, label) in self.jumps {
            let target = self.labels[label.0].expect("a label that is jumped to is placed");
            let offset = i16::try_from(target as isize - at as isize - 1).expect("a short program");
            self.slots[at] |= u64::from(offset as u16) << 16;
        }
        self.slots
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encodes_as_the_instruction_set_says() {
        let mut asm = Asm::new();
        let end = asm.label();
        asm.load(Width::Word, Reg::R2, Reg::R1, 16);
        asm.op_imm(Op::Mov, Reg::R3, 2);
        asm.jump_if(Cond::Eq, Reg::R2, 7, end);
        asm.call(Helper::RedirectMap);
        asm.place(end);
        asm.exit();
        assert_eq!(
            asm.finish(),
            [
                0x0000_0000_0010_1261,
                0x0000_0002_0000_03b7,
                0x0000_0007_0001_0215,
                0x0000_0033_0000_0085,
                0x95
            ]
        );
    }
}
