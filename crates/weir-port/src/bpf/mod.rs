//! BPF without a toolchain: maps, programs and links through `bpf(2)`, and Weir's programs.
//!
//! [`redirect`] runs where packets arrive and hands them to AF_XDP sockets, as [`bound`] does with packets for a stack. [`doorbell`] runs
//! where packets are sent: it chooses a transmit queue, by [`steering`] for several workers of a stack, and wakes the worker. Both are
//! assembled by [`asm`] at run time, because they hold map descriptors and queue counts. [`object`] opens programs and maps of the kernel
//! by their numbers. Links and maps belong to descriptors: when the process dies, the kernel detaches and frees them.

pub mod bound;
pub mod doorbell;
pub mod map;
pub mod object;
pub mod program;
pub mod redirect;
pub mod steering;

pub use weir_core::asm;
