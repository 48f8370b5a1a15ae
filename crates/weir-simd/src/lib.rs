//! Kernels written for one processor's instructions, so that [`weir-core`](../weir_core/index.html) needs no `unsafe`.
//!
//! A caller of [`toeplitz`] begins with [`toeplitz::Kernel::new`]. The constructor asks the processor and returns `None` where the instructions are
//! missing; the caller then takes a portable path.
//!
//! | module | holds |
//! |---|---|
//! | [`toeplitz`] | the hash of flow tuples, for steering; x86-64 alone has it |
//! | [`sum`] | the sum under an Internet checksum; it takes the portable path itself |
//! | [`prefetch`] | a request for memory ahead of its use; it needs no constructor |
//!
//! Rule: values of a kernel's type exist only where the processor has its instructions. Holding one is the proof, so its functions are safe.
//!
//! Limits: on other processors a constructor returns `None`, and [`prefetch`] does nothing.

pub mod prefetch;
pub mod sum;
pub mod toeplitz;
