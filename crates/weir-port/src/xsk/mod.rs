//! AF_XDP in copy mode: packets between a device's queue and the frames of the pool.
//!
//! [`umem`] registers the packet memory with the kernel, [`ring`] are the four rings that frames travel on, and
//! [`socket`] is one queue's socket. A frame's way: fill ring -> kernel -> receive ring -> the path -> transmit ring ->
//! kernel -> completion ring -> pool. Frames that the kernel has are on loan ([`weir_ring::loans`]), so that an index the
//! kernel has no business to give back is refused.

pub mod ring;
pub mod socket;
pub mod umem;
