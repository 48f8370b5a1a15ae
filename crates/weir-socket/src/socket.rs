//! A UDP socket as `std::net` has it, on a stack of ours.
//!
//! | case | error, as the kernel's |
//! |---|---|
//! | address and port are another socket's; not the stack's; of the other family | `AddrInUse`, `AddrNotAvailable`, `EAFNOSUPPORT` |
//! | `send` without `connect` | `NotConnected` |
//! | a datagram longer than the MTU, or than a router has told ([`crate::ways`]) | `EMSGSIZE` |
//! | a router has lost a datagram of a connected socket, too long for its way ([`crate::too_long`]) | `EMSGSIZE`, once, at the next call, of any length |
//! | nobody listens at the peer of a connected socket (ICMP) | `ConnectionRefused`, once, at the next call |
//! | no route; to all stations | `NetworkUnreachable`, `PermissionDenied` |
//! | no room in the send buffer, or nothing has come | `WouldBlock` if not blocking, `TimedOut` after a timeout |
//! | the worker of the path has ended | `BrokenPipe` |
//! | the call would have to wait on a thread that drives a stack ([`crate::Driver`]) | `Deadlock` |
//!
//! Owner: any thread; each direction has a lock, which no other socket shares. A thread that waits in a direction has its lock, so another thread in
//! the same direction waits for its turn, whatever its timeout.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use weir_core::steer::rss::Rss;
use weir_path::packet::PathPacket;
use weir_ring::doorbell::Ringer;
use weir_ring::memory::{Frame, FrameMemory};

use crate::blocking::{Blocking, Deadline, deadline};
use crate::datagram::{as_in_packets, ends, headers_len, payload_range, write_headers};
use crate::half::{Halves, ReceiveHalf, Returns, SendHalf};
use crate::options::{SocketCounts, SocketOptions};
use crate::port::Shared;
use crate::stack::{Bound, Stack};

/// A UDP socket on a [`Stack`].
///
/// ```
/// use weir_socket::{Stack, UdpSocket};
///
/// let (left, right) = Stack::pair("192.0.2.1/24", "192.0.2.2/24")?;
/// let server = UdpSocket::bind(&right, "192.0.2.2:7")?;
/// let client = UdpSocket::bind(&left, "0.0.0.0:0")?;
/// client.send_to(b"hello", "192.0.2.2:7")?;
///
/// let mut buffer = [0; 1500];
/// let (len, from) = server.recv_from(&mut buffer)?;
/// assert_eq!(&buffer[..len], b"hello");
/// server.send_to(b"and back", from)?;
/// assert_eq!(client.recv_from(&mut buffer)?, (8, "192.0.2.2:7".parse().unwrap()));
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct UdpSocket {
    pub(crate) local: SocketAddr,
    peer: Arc<Mutex<Option<SocketAddr>>>,
    send: Mutex<SendHalf>,
    receive: Mutex<ReceiveHalf>,
    returns: Mutex<Returns>,
    pub(crate) shared: Arc<Shared>,
    blocking: Blocking,
    // Last field: the worker is told when both halves have gone, and takes back the frames that are left in their rings.
    pub(crate) bound: Bound,
}

impl UdpSocket {
    /// Binds a socket to the first of these addresses that is free, with [`Stack::options`]. Port 0 stands for a port that nobody has.
    ///
    /// # Errors
    /// `AddrInUse`, `AddrNotAvailable`, `EAFNOSUPPORT`; `OutOfMemory` if the stack has no socket left; `BrokenPipe` if the stack has ended.
    pub fn bind(stack: &Stack, address: impl ToSocketAddrs) -> io::Result<UdpSocket> {
        UdpSocket::bind_with(stack, address, stack.options())
    }

    /// Binds a socket as [`UdpSocket::bind`] does, for the flows of one bucket alone: one socket, and one thread, for each bucket shares nothing with
    /// another ([`Stack::buckets`], [`Stack::bucket_of`]).
    ///
    /// ```
    /// use weir_socket::{Stack, UdpSocket};
    ///
    /// let (left, right) = Stack::pair("192.0.2.1/24", "192.0.2.2/24")?;
    /// let servers: Vec<UdpSocket> = (0..right.buckets())
    ///     .map(|bucket| UdpSocket::bind_bucket(&right, "192.0.2.2:7", bucket))
    ///     .collect::<Result<_, _>>()?;
    ///
    /// let client = UdpSocket::bind(&left, "192.0.2.1:4000")?;
    /// client.send_to(b"to its bucket", "192.0.2.2:7")?;
    /// let bucket = right.bucket_of("192.0.2.1:4000".parse().unwrap(), "192.0.2.2:7".parse().unwrap());
    /// let mut batch = servers[bucket].datagrams(8);
    /// servers[bucket].recv_batch(&mut batch)?;
    /// assert_eq!(batch.iter().next().unwrap().bucket(), bucket);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`UdpSocket::bind`]; `InvalidInput` if there is no such bucket.
    pub fn bind_bucket(stack: &Stack, address: impl ToSocketAddrs, bucket: usize) -> io::Result<UdpSocket> {
        let options = SocketOptions { bucket: Some(bucket), ..stack.options() };
        UdpSocket::bind_with(stack, address, options)
    }

    /// Binds a socket as [`UdpSocket::bind`] does, with buffers, a rule and a bucket of the caller's choice.
    ///
    /// # Errors
    /// As [`UdpSocket::bind`] and [`UdpSocket::bind_bucket`]; `InvalidInput` if a buffer is empty or larger than the stack was built for.
    pub fn bind_with(
        stack: &Stack,
        address: impl ToSocketAddrs,
        options: SocketOptions,
    ) -> io::Result<UdpSocket> {
        first(address, |address| UdpSocket::bind_to(stack, address, options, None))
    }

    pub(crate) fn bind_to(
        stack: &Stack,
        address: SocketAddr,
        options: SocketOptions,
        ringer: Option<&Ringer>,
    ) -> io::Result<UdpSocket> {
        let (bound, Halves { send, receive, returns, shared }) = stack.bind(address, options, ringer)?;
        let local = SocketAddr::new(address.ip(), bound.port);
        Ok(UdpSocket {
            local,
            peer: Arc::clone(&shared.peer),
            send: Mutex::new(send),
            receive: Mutex::new(receive),
            returns: Mutex::new(returns),
            shared,
            blocking: Blocking::default(),
            bound,
        })
    }

    /// The address and the port that the socket is bound to; of one that is bound to no address of its own, once it is connected, those that it sends
    /// from.
    pub fn local_addr(&self) -> SocketAddr {
        let to_peer = self.peer_addr().and_then(|peer| self.route(peer, 0));
        to_peer.map_or(self.local, |(source, _)| source)
    }

    /// Sends to this address, and receives from it alone, from now on.
    ///
    /// # Errors
    /// As [`UdpSocket::send_to`] for an address that nothing goes to.
    pub fn connect(&self, address: impl ToSocketAddrs) -> io::Result<()> {
        first(address, |address| {
            self.route(address, 0)?;
            *self.lock_peer() = Some(as_in_packets(address));
            self.shared.has_error.store(false, Ordering::Relaxed);
            Ok(())
        })
    }

    /// The address that the socket is connected to.
    ///
    /// # Errors
    /// `NotConnected` if the socket is not connected.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        (*self.lock_peer()).ok_or_else(|| os(libc::ENOTCONN))
    }

    /// Sends a datagram to the address that the socket is connected to.
    ///
    /// # Errors
    /// `NotConnected`, and as [`UdpSocket::send_to`].
    pub fn send(&self, payload: &[u8]) -> io::Result<usize> {
        self.send_one(payload, self.peer_addr()?)
    }

    /// Sends a datagram to the first of these addresses; returns the bytes of payload. Waits while the send buffer is full.
    ///
    /// # Errors
    /// See the table at the head of this file.
    pub fn send_to(&self, payload: &[u8], address: impl ToSocketAddrs) -> io::Result<usize> {
        let address = address.to_socket_addrs()?.next();
        let to =
            address.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "no addresses to send to"))?;
        self.send_one(payload, to)
    }

    fn send_one(&self, payload: &[u8], to: SocketAddr) -> io::Result<usize> {
        self.take_error()?;
        let (source, len) = self.route_by_way(None, to, payload.len())?;
        let mut send = self.lock_send();
        let frame = self.wait_for_frame(&mut send)?;
        self.send_in(&mut send, PathPacket::new(frame, 0, len), payload, [source, to], 0);
        Ok(payload.len())
    }

    /// Sends a datagram in a frame that was taken, from the first of these addresses to the second, with this ECN codepoint.
    pub(crate) fn send_in(
        &self,
        send: &mut SendHalf,
        mut packet: PathPacket,
        payload: &[u8],
        [source, to]: [SocketAddr; 2],
        ecn: u8,
    ) {
        let bytes = packet.bytes_mut(self.memory());
        bytes[headers_len(to.ip())..].copy_from_slice(payload);
        write_headers(bytes, source, to, ecn);
        send.stage(packet);
        send.publish();
    }

    /// Receives a datagram; returns the number of bytes of its payload that were copied to the front of `buffer`, and its source. Bytes that do not
    /// fit are cut off. Waits while nothing has come.
    ///
    /// # Errors
    /// See the table at the head of this file.
    pub fn recv_from(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        let (mut receive, mut end) = (self.lock_receive(), Deadline::default());
        loop {
            self.wait_for_datagram(&mut receive, &mut end)?;
            if let Some(received) = self.take_one(&mut receive, buffer) {
                return Ok(received);
            }
        }
    }

    /// A datagram that has come; none if it is not from the address that this socket is connected to.
    pub(crate) fn take_one(
        &self,
        receive: &mut ReceiveHalf,
        buffer: &mut [u8],
    ) -> Option<(usize, SocketAddr)> {
        let mut one = None;
        receive.take(1, |lane, packet| one = Some((lane, packet)));
        let (lane, packet) = one?;
        let bytes = packet.bytes(self.memory());
        let (from, _) = ends(bytes);
        let payload = &bytes[payload_range(bytes)];
        let len = payload.len().min(buffer.len());
        buffer[..len].copy_from_slice(&payload[..len]);
        let mut returns = self.lock_returns();
        returns.read(lane, packet.frame, packet.len_bytes);
        returns.publish();
        drop(returns);
        if !self.is_from_peer(from) {
            self.note_from_others(1);
            return None;
        }
        Some((len, from))
    }

    /// Receives a datagram as [`UdpSocket::recv_from`] does.
    ///
    /// # Errors
    /// As [`UdpSocket::recv_from`].
    pub fn recv(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.recv_from(buffer).map(|(len, _)| len)
    }

    /// Makes calls return `WouldBlock` instead of waiting, or wait again.
    pub fn set_nonblocking(&self, is_nonblocking: bool) {
        self.blocking.set_nonblocking(is_nonblocking);
    }

    /// Sets the longest time to wait to receive; for ever if `None`.
    ///
    /// # Errors
    /// `InvalidInput` if the time is zero.
    pub fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.blocking.read.set(timeout)
    }

    /// Sets the longest time to wait to send; for ever if `None`.
    ///
    /// # Errors
    /// As [`UdpSocket::set_read_timeout`].
    pub fn set_write_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.blocking.write.set(timeout)
    }

    /// The longest time that the socket waits to receive.
    pub fn read_timeout(&self) -> Option<Duration> {
        self.blocking.read.get()
    }

    /// The longest time that the socket waits to send.
    pub fn write_timeout(&self) -> Option<Duration> {
        self.blocking.write.get()
    }

    /// Waits until there is something to receive, for so long at the most, whatever the mode; returns whether there is.
    ///
    /// # Errors
    /// If the kernel does not let the thread sleep.
    pub fn wait_readable(&self, timeout: Option<Duration>) -> io::Result<bool> {
        let mut receive = self.lock_receive();
        Ok(receive.is_readable() || receive.wait(deadline(timeout))?)
    }

    /// Waits until `is_so` returns true. `is_so` is told whether there is something to receive, and is asked again each time that something comes or
    /// somebody rings [`UdpSocket::ringer`]: for a thread that has other inputs beside this socket. Waits for so long at the most, whatever the mode;
    /// returns whether it is so, or an error waits or the stack has ended.
    ///
    /// # Errors
    /// If the kernel does not let the thread sleep.
    pub fn wait_until(
        &self,
        timeout: Option<Duration>,
        mut is_so: impl FnMut(bool) -> bool,
    ) -> io::Result<bool> {
        self.lock_receive().wait_until(deadline(timeout), &mut is_so)
    }

    /// Returns whether a datagram or an error has come, or the stack has ended: what a thread that receives waits for.
    pub fn is_readable(&self) -> bool {
        let mut receive = self.lock_receive();
        receive.is_readable() || receive.is_abandoned() || self.shared.has_error.load(Ordering::Acquire)
    }

    /// Returns whether the send buffer has room for a datagram.
    pub fn is_writable(&self) -> bool {
        self.lock_send().is_writable()
    }

    /// Returns whether the stack has ended: nothing is sent or received any more.
    pub fn has_ended(&self) -> bool {
        self.lock_send().is_abandoned()
    }

    /// The ringer that wakes a thread in [`UdpSocket::wait_until`], to look at its other inputs. Ask for the ringer before a thread waits, because
    /// this call would wait for that thread.
    pub fn ringer(&self) -> Ringer {
        self.lock_receive().ringer()
    }

    /// Waits until the send buffer has room for a datagram, for so long at the most, whatever the mode; returns whether it has.
    ///
    /// # Errors
    /// If the kernel does not let the thread sleep.
    pub fn wait_writable(&self, timeout: Option<Duration>) -> io::Result<bool> {
        let mut send = self.lock_send();
        Ok(send.is_writable() || send.wait(deadline(timeout))?)
    }

    /// The counters of the socket.
    pub fn counts(&self) -> SocketCounts {
        self.shared.counts()
    }

    pub(crate) fn note_from_others(&self, datagrams: u64) {
        self.shared.from_others.fetch_add(datagrams, Ordering::Relaxed);
    }

    /// The source address and the length of a packet to this address with such a payload.
    pub(crate) fn route(&self, to: SocketAddr, payload_bytes: usize) -> io::Result<(SocketAddr, u16)> {
        if to.is_ipv4() != self.local.is_ipv4() {
            return Err(os(libc::EAFNOSUPPORT));
        }
        if to.port() == 0 {
            return Err(os(libc::EINVAL));
        }
        let source = self.bound.stack.source_for(to.ip())?;
        let ip = if self.local.ip().is_unspecified() { source } else { self.local.ip() };
        if payload_bytes > self.bound.stack.datagram_bytes_max(to.ip()) {
            return Err(os(libc::EMSGSIZE));
        }
        Ok((SocketAddr::new(ip, self.local.port()), (headers_len(to.ip()) + payload_bytes) as u16))
    }

    /// A frame to write a datagram in, without waiting.
    pub(crate) fn take_frame(&self) -> io::Result<Frame> {
        let mut send = self.lock_send();
        if send.is_abandoned() {
            return Err(os(libc::EPIPE));
        }
        send.take_frame().ok_or_else(|| {
            send.note_throttled();
            io::ErrorKind::WouldBlock.into()
        })
    }

    pub(crate) fn memory(&self) -> &FrameMemory {
        self.bound.stack.memory()
    }

    pub(crate) fn rss(&self) -> &Rss {
        self.bound.stack.rss()
    }

    /// A frame of the send buffer, as soon as there is one.
    pub(crate) fn wait_for_frame(&self, send: &mut SendHalf) -> io::Result<Frame> {
        let mut until = Deadline::default();
        loop {
            if send.is_abandoned() {
                return Err(os(libc::EPIPE));
            }
            if let Some(frame) = send.take_frame() {
                return Ok(frame);
            }
            self.blocking.may_wait().inspect_err(|_| send.note_throttled())?;
            if !send.wait(until.of(&self.blocking.write))? {
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
    }

    /// Waits until a datagram has come, or until this time.
    pub(crate) fn wait_for_datagram(&self, receive: &mut ReceiveHalf, end: &mut Deadline) -> io::Result<()> {
        loop {
            self.take_error()?;
            if receive.is_readable() {
                return Ok(());
            }
            if receive.is_abandoned() {
                return Err(os(libc::EPIPE));
            }
            self.blocking.may_wait()?;
            if !receive.wait(end.of(&self.blocking.read))? {
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
    }

    /// Returns, once, the error that came for a packet to the peer.
    pub(crate) fn take_error(&self) -> io::Result<()> {
        if !self.shared.has_error.swap(false, Ordering::Acquire) {
            return Ok(());
        }
        let error = self.shared.error.lock().unwrap_or_else(PoisonError::into_inner).take();
        match error {
            // The error of a socket that is not connected is dropped: nobody could say whose packet it is about.
            Some((to, error)) if Some(to) == *self.lock_peer() => Err(os(error)),
            _ => Ok(()),
        }
    }

    pub(crate) fn is_from_peer(&self, from: SocketAddr) -> bool {
        self.lock_peer().is_none_or(|peer| peer == from)
    }

    pub(crate) fn lock_peer(&self) -> MutexGuard<'_, Option<SocketAddr>> {
        self.peer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn lock_send(&self) -> MutexGuard<'_, SendHalf> {
        self.send.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn lock_returns(&self) -> MutexGuard<'_, Returns> {
        self.returns.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn lock_receive(&self) -> MutexGuard<'_, ReceiveHalf> {
        self.receive.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for UdpSocket {
    /// Sent datagrams still go; unread datagrams are dropped as `socket-closed`.
    fn drop(&mut self) {
        let spare = self.lock_send().take_spare();
        let mut returns = self.lock_returns();
        spare.into_iter().for_each(|frame| returns.unused(frame));
        returns.publish();
    }
}

impl std::fmt::Debug for UdpSocket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("UdpSocket").field("local", &self.local).field("peer", &*self.lock_peer()).finish()
    }
}

/// An error of the kernel's, as std shows it.
pub(crate) fn os(error: i32) -> io::Error {
    io::Error::from_raw_os_error(error)
}

/// Tries one address after the other; returns the last error if all fail.
pub(crate) fn first<T>(
    addresses: impl ToSocketAddrs,
    mut each: impl FnMut(SocketAddr) -> io::Result<T>,
) -> io::Result<T> {
    let mut last = io::Error::new(io::ErrorKind::InvalidInput, "could not resolve to any addresses");
    for address in addresses.to_socket_addrs()? {
        match each(address) {
            Ok(done) => return Ok(done),
            Err(error) => last = error,
        }
    }
    Err(last)
}

#[cfg(test)]
#[path = "socket_tests.rs"]
mod tests;
