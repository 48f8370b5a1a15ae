//! As many small datagrams as one thread can send, and a counter of those that arrive: `sendmmsg(2)` and `recvmmsg(2)`, 64 at a time.
//!
//! For comparing forwarders. A datagram begins with its number, so the order of those that arrive is known. Lost datagrams are those that
//! were sent and did not arrive; those that the receiver's socket does not hold are part of them, because nothing paces the sender to that.
//! Both sides run on threads of this process, inside the namespaces of the bench.

use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};

use crate::clock::now;

const BATCH: usize = 64;
const RECEIVE_BUFFER_BYTES: i32 = 64 << 20;

/// A batch of messages and the memory behind them.
struct Batch {
    bytes: Vec<u8>,
    len_bytes: usize,
    _parts: Vec<libc::iovec>,
    messages: Vec<libc::mmsghdr>,
}

impl Batch {
    fn new(len_bytes: usize) -> Batch {
        let mut bytes = vec![0u8; BATCH * len_bytes];
        let mut parts: Vec<libc::iovec> = bytes
            .chunks_mut(len_bytes)
            .map(|chunk| libc::iovec { iov_base: chunk.as_mut_ptr().cast(), iov_len: chunk.len() })
            .collect();
        let messages = parts
            .iter_mut()
            .map(|part| {
                // SAFETY: an all-zero `mmsghdr` is a message without address, control data or flags.
                let mut message: libc::mmsghdr = unsafe { std::mem::zeroed() };
                message.msg_hdr.msg_iov = part;
                message.msg_hdr.msg_iovlen = 1;
                message
            })
            .collect();
        Batch { bytes, len_bytes, _parts: parts, messages }
    }

    /// The place of the number in each datagram.
    fn numbers(&mut self) -> impl Iterator<Item = &mut [u8; 8]> {
        self.bytes.chunks_mut(self.len_bytes).filter_map(|chunk| chunk.first_chunk_mut())
    }
}

/// Sends datagrams of `len_bytes` to an address for a time. Returns how many the socket took.
pub fn send(to: Ipv4Addr, port: u16, len_bytes: usize, time: Duration) -> Result<u64> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    socket.connect((to, port)).context("connecting the sender")?;
    let mut batch = Batch::new(len_bytes);
    let (end, mut count) = (now() + time, 0);
    while now() < end {
        batch.numbers().zip(count..).for_each(|(place, number): (_, u64)| *place = number.to_le_bytes());
        // SAFETY: `messages` are `BATCH` headers whose parts and bytes live in `batch`.
        let sent =
            unsafe { libc::sendmmsg(socket.as_raw_fd(), batch.messages.as_mut_ptr(), BATCH as u32, 0) };
        count += sent.max(0) as u64;
    }
    Ok(count)
}

/// The datagrams that arrived.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Arrived {
    /// Datagrams.
    pub datagrams: u64,
    /// Datagrams a second, between the first and the last.
    pub per_s: f64,
    /// Datagrams that arrived after a later one.
    pub reordered: u64,
}

/// A receiving socket.
pub struct Counter {
    socket: UdpSocket,
}

impl Counter {
    /// Binds to a port of this thread's namespace.
    pub fn bind(port: u16) -> Result<Counter> {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port))?;
        socket.set_read_timeout(Some(Duration::from_millis(300)))?;
        let size = RECEIVE_BUFFER_BYTES;
        // SAFETY: four bytes of a live value are passed. Past the system's maximum it needs root, which a bench is.
        unsafe {
            let pointer = std::ptr::from_ref(&size).cast();
            libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, pointer, 4);
        }
        Ok(Counter { socket })
    }

    /// Counts the datagrams of one sender until it has ended, as `is_over` says, and none has arrived for a while.
    pub fn count(&self, limit: Duration, is_over: &AtomicBool) -> Arrived {
        let mut batch = Batch::new(2048);
        let (end, mut datagrams, mut first, mut last) = (now() + limit, 0u64, None, now());
        let (mut reordered, mut next) = (0, 0);
        while now() < end {
            // SAFETY: as in `send`; there is no timeout to point at.
            let received = unsafe {
                libc::recvmmsg(
                    self.socket.as_raw_fd(),
                    batch.messages.as_mut_ptr(),
                    BATCH as u32,
                    libc::MSG_WAITFORONE,
                    std::ptr::null_mut(),
                )
            };
            if received > 0 {
                last = now();
                first.get_or_insert(last);
                datagrams += received as u64;
                for number in
                    batch.numbers().take(received as usize).map(|number| u64::from_le_bytes(*number))
                {
                    reordered += u64::from(number < next);
                    next = next.max(number + 1);
                }
            } else if is_over.load(Ordering::Relaxed) {
                break;
            }
        }
        let seconds = first.map_or(1.0, |first| (last - first).as_secs_f64().max(1e-9));
        Arrived { datagrams, per_s: datagrams as f64 / seconds, reordered }
    }
}
