//! Kernels written for one processor's instructions, so that [`weir-core`](../weir_core/index.html) needs no
//! `unsafe`.
//!
//! Every kernel here is a type whose values exist only where the processor has its instructions: its constructor asks the processor and
//! returns `None` elsewhere. Holding the value is the proof, so the functions on it are safe, and the caller keeps a portable path for the
//! other case.
//!
//! [`toeplitz`] hashes flow tuples for steering; [`prefetch`], which every processor has, needs no such value.

pub mod prefetch;
pub mod toeplitz;
