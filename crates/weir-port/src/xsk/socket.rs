//! One queue's AF_XDP socket: its four rings, and the calls that make the kernel look at them.
//!
//! Bound without a mode, so that the kernel chooses zero-copy where the device offers it and copies elsewhere (veth).
//!
//! Owner: the worker that owns the port. Limits: one descriptor a packet (no multi-buffer), so a packet fits a frame.
//!
//! Source: `Documentation/networking/af_xdp.rst`; kernel `net/xdp/xsk.c`.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use weir_path::port::Transmit;

use super::ring::{Descriptor, Offsets, XskConsumer, XskProducer};
use super::umem::Umem;
use crate::sys;

/// `XDP_MAX_TX_SKB_BUDGET`, since Linux 6.17: the packets that one call transmits.
const XDP_MAX_TX_SKB_BUDGET: i32 = 9;

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct MmapOffsets {
    rx: Offsets,
    tx: Offsets,
    fill: Offsets,
    completion: Offsets,
}

// SAFETY: 64-bit integers, offsets within a mapping.
unsafe impl sys::Plain for MmapOffsets {}

/// Packets that the kernel itself lost at this socket (`struct xdp_statistics`).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Packets dropped for other reasons than those below.
    pub rx_dropped: u64,
    /// Received descriptors that were invalid.
    pub rx_invalid_descs: u64,
    /// Transmit descriptors that were invalid.
    pub tx_invalid_descs: u64,
    /// Packets dropped because the receive ring was full.
    pub rx_ring_full: u64,
    /// Packets dropped because the fill ring was empty.
    pub rx_fill_ring_empty_descs: u64,
    /// Times that the transmit ring was looked at and empty.
    pub tx_ring_empty_descs: u64,
}

// SAFETY: 64-bit integers.
unsafe impl sys::Plain for Statistics {}

/// The lengths of a socket's rings, in entries, each a power of two.
#[derive(Clone, Copy, Debug)]
pub struct RingSizes {
    /// Fill and receive ring.
    pub receive: u32,
    /// Transmit and completion ring.
    pub transmit: u32,
}

/// A bound socket and its rings.
pub struct XskSocket {
    fd: Arc<OwnedFd>,
    /// Frames offered for reception.
    pub fill: XskProducer<u64>,
    /// Packets received.
    pub rx: XskConsumer<Descriptor>,
    /// Packets to transmit.
    pub tx: XskProducer<Descriptor>,
    /// Frames whose transmission has ended.
    pub completion: XskConsumer<u64>,
}

impl XskSocket {
    /// Binds a socket to `queue` of an interface of this thread's namespace.
    pub fn bind(umem: &Umem, ifindex: u32, queue: u32, sizes: RingSizes) -> io::Result<XskSocket> {
        let fd = Arc::new(sys::socket(libc::AF_XDP, libc::SOCK_RAW, 0)?);
        let set = |name, value: u32| sys::setsockopt(fd.as_fd(), libc::SOL_XDP, name, &value);
        set(libc::XDP_UMEM_FILL_RING, sizes.receive)?;
        set(libc::XDP_UMEM_COMPLETION_RING, sizes.transmit)?;
        set(libc::XDP_RX_RING, sizes.receive)?;
        set(libc::XDP_TX_RING, sizes.transmit)?;
        // A kernel that does not know the option transmits 32 packets a call, so it takes more calls.
        let _ = set(XDP_MAX_TX_SKB_BUDGET, 64);
        // Packets on their way to the receiver are bounded by the transmit ring, not by this socket's buffer.
        sys::setsockopt(fd.as_fd(), libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, &(i32::MAX / 2))?;

        let (offsets, length) =
            sys::getsockopt::<MmapOffsets>(fd.as_fd(), libc::SOL_XDP, libc::XDP_MMAP_OFFSETS)?;
        if length != size_of::<MmapOffsets>() {
            return Err(io::Error::other("XDP_MMAP_OFFSETS has an unknown layout (a kernel before 5.4)"));
        }
        let socket = fd.as_fd();
        let fill =
            XskProducer::map(socket, libc::XDP_UMEM_PGOFF_FILL_RING as i64, offsets.fill, sizes.receive)?;
        let completion = XskConsumer::map(
            socket,
            libc::XDP_UMEM_PGOFF_COMPLETION_RING as i64,
            offsets.completion,
            sizes.transmit,
        )?;
        let rx = XskConsumer::map(socket, libc::XDP_PGOFF_RX_RING, offsets.rx, sizes.receive)?;
        let tx = XskProducer::map(socket, libc::XDP_PGOFF_TX_RING, offsets.tx, sizes.transmit)?;

        let address = |shared: Option<&OwnedFd>| libc::sockaddr_xdp {
            sxdp_family: libc::AF_XDP as u16,
            sxdp_flags: if shared.is_some() { libc::XDP_SHARED_UMEM } else { libc::XDP_USE_NEED_WAKEUP },
            sxdp_ifindex: ifindex,
            sxdp_queue_id: queue,
            sxdp_shared_umem_fd: shared.map_or(0, |member| member.as_raw_fd() as u32),
        };
        let mut is_bound = false;
        for member in umem.members() {
            match bind_when_free(socket, &address(Some(&member))) {
                // This member is bound no more: its interface is gone.
                Err(error) if error.raw_os_error() == Some(libc::EBADF) => {}
                result => {
                    result?;
                    is_bound = true;
                    break;
                }
            }
        }
        if !is_bound {
            umem.register(socket)?;
            bind_when_free(socket, &address(None))?;
        }
        umem.add(&fd);
        Ok(XskSocket { fd, fill, rx, tx, completion })
    }

    /// Asks the kernel to transmit the packets published on the transmit ring: one call, one batch.
    pub fn kick(&self) -> io::Result<Transmit> {
        // SAFETY: no buffer is passed; the call only makes the kernel look at the transmit ring.
        let result = unsafe {
            libc::sendto(self.fd.as_raw_fd(), std::ptr::null(), 0, libc::MSG_DONTWAIT, std::ptr::null(), 0)
        };
        if result >= 0 {
            return Ok(Transmit::Progress);
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::EAGAIN | libc::ENOBUFS | libc::EINTR) => Ok(Transmit::Busy),
            Some(libc::EBUSY) => Ok(Transmit::Refused),
            Some(libc::ENETDOWN | libc::ENXIO | libc::ENODEV) => Ok(Transmit::Down),
            _ => Err(error),
        }
    }

    /// Its descriptor, for questions to the kernel while the socket is in use elsewhere.
    pub fn fd(&self) -> &Arc<OwnedFd> {
        &self.fd
    }
}

/// The packets that the kernel lost at a socket.
pub fn statistics(fd: BorrowedFd<'_>) -> io::Result<Statistics> {
    Ok(sys::getsockopt(fd, libc::SOL_XDP, libc::XDP_STATISTICS)?.0)
}

/// Binds, and waits where the kernel still holds the queue for a socket that has been closed: it frees the queue some time after `close`
/// has returned (kernel `net/xdp/xsk_buff_pool.c:xp_put_pool`).
fn bind_when_free(socket: BorrowedFd<'_>, address: &libc::sockaddr_xdp) -> io::Result<()> {
    const TRIES: u32 = 100;
    const BETWEEN_NS: u64 = 10_000_000;
    for _ in 1..TRIES {
        match sys::bind(socket, address) {
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
                sys::poll(&mut [], Some(BETWEEN_NS))?;
            }
            result => return result,
        }
    }
    sys::bind(socket, address)
}
