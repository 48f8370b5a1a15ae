//! A TCP connection as `std::net` has it, on a stack of ours.
//!
//! | case | error, as the kernel's |
//! |---|---|
//! | nobody listens there | `ConnectionRefused` |
//! | the other side, or somebody between, has reset it | `ConnectionReset`, once; then reads end and writes are `BrokenPipe` |
//! | the other side does not answer for two minutes, or four while its window is closed | `TimedOut`, once; then the same |
//! | the other side does not answer to a keepalive ([`crate::StackBuilder::tcp_keepalive_s`]) | the same |
//! | `write` after `shutdown` | `BrokenPipe` |
//! | `shutdown` of what is closed already | `NotConnected` |
//! | no route; to all stations | `NetworkUnreachable`, `PermissionDenied` |
//! | no room in the send buffer, or nothing has come | `WouldBlock` if not blocking, `TimedOut` after a timeout |
//! | the worker of the path has ended | `BrokenPipe` |
//!
//! Rule: a stream that is dropped sends the written bytes and closes; if received bytes were not read, the connection is reset, as the kernel does.
//!
//! Owner: any thread; each direction has a lock, which no other connection shares.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, ToSocketAddrs};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use weir_path::packet::PathPacket;

use crate::blocking::{Blocking, Deadline};
use crate::half::{Caller, Halves, ReceiveHalf, Returns, SendHalf};
use crate::options::SocketCounts;
use crate::port::Shared;
use crate::socket::{first, os};
use crate::stack::Stack;
use crate::tcp::connection::Flow;
use crate::tcp::control::Connected;
use crate::tcp::state::StreamState;

/// A connection of a [`Stack`]. Its last handle closes it.
///
/// ```
/// use std::io::{Read, Write};
/// use weir_socket::{Stack, TcpListener, TcpStream};
///
/// let (left, right) = Stack::pair("192.0.2.1/24", "192.0.2.2/24")?;
/// let listener = TcpListener::bind(&right, "192.0.2.2:7")?;
/// let echo = std::thread::spawn(move || -> std::io::Result<u64> {
///     let (stream, _) = listener.accept()?;
///     std::io::copy(&mut &stream, &mut &stream)
/// });
///
/// let mut stream = TcpStream::connect(&left, "192.0.2.2:7")?;
/// stream.write_all(b"there and back")?;
/// let mut back = [0; 14];
/// stream.read_exact(&mut back)?;
/// assert_eq!(&back, b"there and back");
/// drop(stream);
/// assert_eq!(echo.join().unwrap()?, 14);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone)]
pub struct TcpStream {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    flow: Flow,
    send: Mutex<SendHalf>,
    receive: Mutex<Receiving>,
    returns: Mutex<Returns>,
    shared: Arc<Shared>,
    blocking: Blocking,
    // After the halves: the worker takes their rings back.
    closed: Closed,
    // Last field: the worker is told when the halves have gone.
    stack: Stack,
}

/// The receive half, and the chunk that is being read.
pub(crate) struct Receiving {
    pub(crate) half: ReceiveHalf,
    chunk: Option<Chunk>,
}

/// A chunk that is being read.
struct Chunk {
    packet: PathPacket,
    /// The lane that the chunk came by.
    lane: u16,
    /// The bytes of the chunk that were read.
    done: usize,
}

impl TcpStream {
    /// Connects to the first of these addresses that accepts. Waits until there is a connection.
    ///
    /// # Errors
    /// See the table at the head of this file; `OutOfMemory` if the stack has as many connections as may be, `Unsupported` if it has no TCP.
    pub fn connect(stack: &Stack, address: impl ToSocketAddrs) -> io::Result<TcpStream> {
        first(address, |address| TcpStream::connect_until(stack, address, Deadline::after(None)))
    }

    /// Connects as [`TcpStream::connect`] does, to one address and for so long at the most.
    ///
    /// # Errors
    /// As [`TcpStream::connect`]; `TimedOut` after that time, and `InvalidInput` if the time is zero.
    pub fn connect_timeout(stack: &Stack, address: &SocketAddr, timeout: Duration) -> io::Result<TcpStream> {
        if timeout.is_zero() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "cannot set a 0 duration timeout"));
        }
        TcpStream::connect_until(stack, *address, Deadline::after(Some(timeout)))
    }

    fn connect_until(stack: &Stack, address: SocketAddr, mut until: Deadline) -> io::Result<TcpStream> {
        let stream = TcpStream::of(stack.clone(), stack.connect(address)?);
        let mut send = stream.inner.lock_send();
        // There is a frame to send in as soon as both sides have agreed.
        while !send.is_writable() {
            stream.inner.check_send(&send)?;
            if !send.wait(until.of(&stream.inner.blocking.write))? {
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
        drop(send);
        Ok(stream)
    }

    pub(crate) fn of(stack: Stack, connected: Connected) -> TcpStream {
        let Connected { flow, halves, caller } = connected;
        let Halves { send, receive, returns, shared } = halves;
        let inner = Inner {
            flow,
            send: Mutex::new(send),
            receive: Mutex::new(Receiving { half: receive, chunk: None }),
            returns: Mutex::new(returns),
            closed: Closed { shared: Arc::clone(&shared), caller },
            shared,
            blocking: Blocking::default(),
            stack,
        };
        TcpStream { inner: Arc::new(inner) }
    }

    /// The address and the port of our end.
    pub fn local_addr(&self) -> SocketAddr {
        self.inner.flow.local
    }

    /// The address and the port of the other end.
    pub fn peer_addr(&self) -> SocketAddr {
        self.inner.flow.peer
    }

    /// Ends sending, receiving, or both. The peer reads to the end of the written bytes. Bytes that come for a direction that is shut are thrown
    /// away.
    ///
    /// # Errors
    /// `NotConnected` if both directions have ended already.
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        let state = &self.inner.shared.stream;
        let [sends, receives] =
            [StreamState::SEND_ENDED, StreamState::RECEIVE_ENDED].map(|flag| !state.has(flag));
        if !sends && !receives {
            return Err(os(libc::ENOTCONN));
        }
        let flags = match how {
            Shutdown::Read => StreamState::SHUT_RECEIVE,
            Shutdown::Write => StreamState::SHUT_SEND,
            Shutdown::Both => StreamState::SHUT_RECEIVE | StreamState::SHUT_SEND,
        };
        // The worker wakes a thread that waits in that direction.
        state.set(flags);
        self.inner.closed.caller.call();
        Ok(())
    }

    /// Another handle of the same connection.
    ///
    /// # Errors
    /// None; as std's.
    pub fn try_clone(&self) -> io::Result<TcpStream> {
        Ok(self.clone())
    }

    /// Reads the received bytes without taking them; returns their number. Waits while nothing has come.
    ///
    /// # Errors
    /// See the table at the head of this file.
    pub fn peek(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.inner.receive(|bytes| {
            let len = bytes.len().min(buffer.len());
            buffer[..len].copy_from_slice(&bytes[..len]);
            (0, len)
        })
    }

    /// Sends short segments at once, or has them wait for the acknowledgement of those before (Nagle's algorithm), as at first.
    pub fn set_nodelay(&self, is_nodelay: bool) {
        let state = &self.inner.shared.stream;
        match is_nodelay {
            true => drop(state.set(StreamState::NO_DELAY)),
            false => state.clear(StreamState::NO_DELAY),
        }
        self.inner.closed.caller.call();
    }

    /// Returns whether short segments go at once.
    pub fn nodelay(&self) -> bool {
        self.inner.shared.stream.has(StreamState::NO_DELAY)
    }

    /// The error that has ended the connection, if it was not told yet.
    pub fn take_error(&self) -> Option<io::Error> {
        self.inner.shared.stream.take_error().map(os)
    }

    /// Makes calls return `WouldBlock` instead of waiting, or wait again.
    pub fn set_nonblocking(&self, is_nonblocking: bool) {
        self.inner.blocking.set_nonblocking(is_nonblocking);
    }

    /// Sets the longest time to wait to read; for ever if `None`.
    ///
    /// # Errors
    /// `InvalidInput` if the time is zero.
    pub fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.inner.blocking.read.set(timeout)
    }

    /// Sets the longest time to wait to write; for ever if `None`.
    ///
    /// # Errors
    /// As [`TcpStream::set_read_timeout`].
    pub fn set_write_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.inner.blocking.write.set(timeout)
    }

    /// The longest time that the stream waits to read.
    pub fn read_timeout(&self) -> Option<Duration> {
        self.inner.blocking.read.get()
    }

    /// The longest time that the stream waits to write.
    pub fn write_timeout(&self) -> Option<Duration> {
        self.inner.blocking.write.get()
    }

    /// The counters of the connection.
    pub fn counts(&self) -> SocketCounts {
        self.inner.shared.counts()
    }

    /// Returns whether a read would not wait: bytes have come, or no more will come.
    pub fn is_readable(&self) -> bool {
        let mut receive = self.inner.receive.lock().unwrap_or_else(PoisonError::into_inner);
        let has_ended = self.inner.shared.stream.has(StreamState::RECEIVE_ENDED | StreamState::SHUT_RECEIVE);
        has_ended || receive.chunk.is_some() || receive.half.is_readable() || receive.half.is_abandoned()
    }

    /// Returns whether a write would not wait: there is room, or no more bytes are taken.
    pub fn is_writable(&self) -> bool {
        let mut send = self.inner.lock_send();
        let has_ended = self.inner.shared.stream.has(StreamState::SEND_ENDED | StreamState::SHUT_SEND);
        has_ended || send.is_writable() || send.is_abandoned()
    }
}

impl Inner {
    /// Copies as many bytes as there is room for, after a wait for room; returns their number.
    fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.is_empty() {
            return Ok(0);
        }
        let mut send = self.lock_send();
        let mut until = Deadline::default();
        while !send.is_writable() {
            self.check_send(&send)?;
            self.blocking.may_wait().inspect_err(|_| send.note_throttled())?;
            if !send.wait(until.of(&self.blocking.write))? {
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
        self.copy(&mut send, bytes)
    }

    /// Copies as many bytes as there are frames for; returns their number.
    pub(crate) fn copy(&self, send: &mut SendHalf, bytes: &[u8]) -> io::Result<usize> {
        self.check_send(send)?;
        let memory = self.stack.memory();
        let mut left = bytes;
        while !left.is_empty()
            && let Some(mut frame) = send.take_frame()
        {
            let room = memory.bytes_mut(&mut frame);
            let (now, later) = left.split_at(left.len().min(room.len()).min(usize::from(u16::MAX)));
            room[..now.len()].copy_from_slice(now);
            send.stage(PathPacket::new(frame, 0, now.len() as u16));
            left = later;
        }
        send.publish();
        Ok(bytes.len() - left.len())
    }

    /// Checks that bytes may still be sent.
    pub(crate) fn check_send(&self, send: &SendHalf) -> io::Result<()> {
        let state = &self.shared.stream;
        if let Some(error) = state.take_error() {
            return Err(os(error));
        }
        match send.is_abandoned() || state.has(StreamState::SEND_ENDED | StreamState::SHUT_SEND) {
            true => Err(os(libc::EPIPE)),
            false => Ok(()),
        }
    }

    /// Shows received bytes to `read`, which returns the number that it takes and the number to report. Returns the latter, or 0 at the end.
    fn receive(&self, read: impl FnOnce(&[u8]) -> (usize, usize)) -> io::Result<usize> {
        let mut receiving = self.lock_receive();
        let mut until = Deadline::default();
        loop {
            match self.look(&mut receiving)? {
                Some(true) => return Ok(self.take(&mut receiving, read)),
                Some(false) => return Ok(0),
                None => self.blocking.may_wait()?,
            }
            if !receiving.half.wait(until.of(&self.blocking.read))? {
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
    }

    /// Returns whether bytes have come: `Some(false)` if the stream has ended, and `None` if nothing has come yet.
    pub(crate) fn look(&self, receiving: &mut Receiving) -> io::Result<Option<bool>> {
        let Receiving { half, chunk } = receiving;
        // In this order: chunks that were published before the end are in the ring.
        let has_ended = self.shared.stream.has(StreamState::RECEIVE_ENDED | StreamState::SHUT_RECEIVE);
        let is_abandoned = half.is_abandoned();
        if chunk.is_none() {
            half.take(1, |lane, packet| *chunk = Some(Chunk { packet, lane, done: 0 }));
        }
        if chunk.is_some() {
            return Ok(Some(true));
        }
        if has_ended {
            return self.shared.stream.take_error().map_or(Ok(Some(false)), |error| Err(os(error)));
        }
        if is_abandoned { Err(os(libc::EPIPE)) } else { Ok(None) }
    }

    /// Shows the chunk that is being read to `read`.
    pub(crate) fn take(
        &self,
        receiving: &mut Receiving,
        read: impl FnOnce(&[u8]) -> (usize, usize),
    ) -> usize {
        let Receiving { chunk, .. } = receiving;
        let Some(Chunk { packet, done, .. }) = chunk else { return 0 };
        let (taken, told) = read(&packet.bytes(self.stack.memory())[*done..]);
        *done += taken;
        if *done == usize::from(packet.len_bytes)
            && let Some(Chunk { packet, lane, .. }) = chunk.take()
        {
            let mut returns = self.lock_returns();
            returns.read(lane, packet.frame, packet.len_bytes);
            returns.publish();
        }
        told
    }

    pub(crate) fn lock_receive(&self) -> MutexGuard<'_, Receiving> {
        self.receive.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn lock_send(&self) -> MutexGuard<'_, SendHalf> {
        self.send.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_returns(&self) -> MutexGuard<'_, Returns> {
        self.returns.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let spare = self.lock_send().take_spare();
        let receive = self.receive.get_mut().unwrap_or_else(PoisonError::into_inner);
        let unread = receive.chunk.take();
        let mut returns = self.lock_returns();
        spare.into_iter().for_each(|frame| returns.unused(frame));
        unread.into_iter().for_each(|Chunk { packet, lane, .. }| returns.unread(lane, packet.frame));
        returns.publish();
    }
}

/// Tells the worker that the application has gone, when it is dropped.
struct Closed {
    shared: Arc<Shared>,
    caller: Caller,
}

impl Drop for Closed {
    fn drop(&mut self) {
        self.shared.stream.set(StreamState::CLOSED);
        self.caller.call();
    }
}

impl Read for &TcpStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        self.inner.receive(|bytes| {
            let len = bytes.len().min(buffer.len());
            buffer[..len].copy_from_slice(&bytes[..len]);
            (len, len)
        })
    }
}

impl Write for &TcpStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.inner.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Read for TcpStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        (&*self).read(buffer)
    }
}

impl Write for TcpStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        (&*self).write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl std::fmt::Debug for TcpStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Flow { local, peer } = self.inner.flow;
        f.debug_struct("TcpStream").field("local", &local).field("peer", &peer).finish()
    }
}
