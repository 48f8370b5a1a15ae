//! The packet memory as the kernel knows it (UMEM): registered once, shared by the sockets of all queues and ports.
//!
//! The memory is registered on the first socket that is bound; every other socket is bound by naming one that is (`XDP_SHARED_UMEM`). A
//! socket whose interface has gone is bound no more, so the members are tried in turn; when none is left, the memory is registered anew.
//!
//! Source: `Documentation/networking/af_xdp.rst`, "XDP_SHARED_UMEM bind flag"; kernel `net/xdp/xsk.c:xsk_bind`.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use weir_ring::memory::FrameMemory;

use crate::sys;

/// The bytes that the kernel keeps free before each received packet (`XDP_PACKET_HEADROOM`).
pub const HEADROOM_BYTES: u32 = 256;

#[repr(C)]
#[derive(Clone, Copy)]
struct Registration {
    address: u64,
    length: u64,
    chunk_size: u32,
    headroom: u32,
    flags: u32,
    tx_metadata_length: u32,
}

/// Packet memory that sockets can be bound to.
pub struct Umem {
    memory: Arc<FrameMemory>,
    /// The sockets that were bound, closed ones included.
    members: Mutex<Vec<Weak<OwnedFd>>>,
}

impl Umem {
    /// Memory that no socket is bound to yet. The kernel wants frames of 2048 or 4096 bytes.
    pub fn new(memory: Arc<FrameMemory>) -> Umem {
        Umem { memory, members: Mutex::default() }
    }

    /// The memory itself.
    pub fn memory(&self) -> &Arc<FrameMemory> {
        &self.memory
    }

    /// The longest packet that a frame holds, in bytes.
    pub fn packet_bytes_max(&self) -> u32 {
        self.memory.frame_size_bytes() - HEADROOM_BYTES
    }

    /// The sockets that were bound and are open.
    pub(super) fn members(&self) -> Vec<Arc<OwnedFd>> {
        let mut members = self.members.lock().unwrap_or_else(PoisonError::into_inner);
        members.retain(|member| member.strong_count() > 0);
        members.iter().filter_map(Weak::upgrade).collect()
    }

    /// Notes that a socket is bound.
    pub(super) fn add(&self, socket: &Arc<OwnedFd>) {
        self.members.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::downgrade(socket));
    }

    /// Registers the memory on a socket, as no bound socket shares it.
    pub(super) fn register(&self, socket: BorrowedFd<'_>) -> io::Result<()> {
        let registration = Registration {
            address: self.memory.base_ptr().addr() as u64,
            length: self.memory.len_bytes() as u64,
            chunk_size: self.memory.frame_size_bytes(),
            headroom: 0,
            flags: 0,
            tx_metadata_length: 0,
        };
        // SAFETY: the kernel pins the pages of the memory's own mapping, which stays theirs if it is unmapped here. It writes only to
        // frames that were lent to it.
        unsafe { sys::setsockopt_with(socket, libc::SOL_XDP, libc::XDP_UMEM_REG, &registration)? };
        self.keep_from_children()
    }

    /// Keeps the memory from children: the kernel pins what is registered, and a fork would copy all pinned pages before the child runs.
    fn keep_from_children(&self) -> io::Result<()> {
        let (base, length) = (self.memory.base_ptr(), self.memory.len_bytes());
        // SAFETY: the range is the memory's own mapping, which lives as long as `self`; the advice changes nothing in this
        // process, and a child that forks from it makes only system calls until it executes something else.
        sys::check(unsafe { libc::madvise(base.cast(), length, libc::MADV_DONTFORK) }).map(drop)
    }
}
