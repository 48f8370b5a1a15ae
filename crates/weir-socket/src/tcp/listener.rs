//! A TCP listener as `std::net` has it, on a stack of ours.
//!
//! | case | error, as the kernel's |
//! |---|---|
//! | address and port are another listener's; not the stack's; of the other family | `AddrInUse`, `AddrNotAvailable`, `EAFNOSUPPORT` |
//! | nobody has asked for a connection | `WouldBlock` if not blocking |
//! | the process has no descriptor left | the kernel's; the connection is reset |
//! | the worker of the path has ended | `BrokenPipe` |
//!
//! Owner: any thread; a thread that waits to accept has the lock, so others wait for their turn.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, PoisonError};

use weir_ring::doorbell::Ringer;

use crate::blocking::{Blocking, Deadline};
use crate::half::wait;
use crate::socket::{first, os};
use crate::stack::Stack;
use crate::tcp::control::{Listened, Queue};
use crate::tcp::half_open::Accepted;
use crate::tcp::stream::TcpStream;

/// The most connections that may wait to be accepted, unless said otherwise; as std's.
const BACKLOG: u32 = 128;

/// A listener for connections to a [`Stack`].
///
/// ```
/// use std::io::{Read, Write};
/// use std::net::Shutdown;
/// use weir_socket::{Stack, TcpListener, TcpStream};
///
/// let (left, right) = Stack::pair("192.0.2.1/24", "192.0.2.2/24")?;
/// let listener = TcpListener::bind(&right, "192.0.2.2:7")?;
/// let mut client = TcpStream::connect(&left, "192.0.2.2:7")?;
/// let (mut server, from) = listener.accept()?;
/// assert_eq!(from, client.local_addr());
///
/// client.write_all(b"hello")?;
/// client.shutdown(Shutdown::Write)?;
/// let mut came = String::new();
/// server.read_to_string(&mut came)?;
/// assert_eq!(came, "hello");
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct TcpListener {
    queue: Mutex<Queue>,
    blocking: Blocking,
    listened: Listened,
}

impl TcpListener {
    /// Listens at the first of these addresses that is free. Port 0 stands for a port that nobody has.
    ///
    /// # Errors
    /// `AddrInUse`, `AddrNotAvailable`, `EAFNOSUPPORT`; `Unsupported` if the stack has no TCP; `BrokenPipe` if the stack has ended.
    pub fn bind(stack: &Stack, address: impl ToSocketAddrs) -> io::Result<TcpListener> {
        TcpListener::bind_with_backlog(stack, address, BACKLOG)
    }

    /// Listens as [`TcpListener::bind`] does, with so many connections that may wait to be accepted; 128 unless said otherwise. A SYN that finds as
    /// many waiting is dropped as `socket-full`, and its sender tries again.
    ///
    /// ```
    /// use weir_socket::{Stack, TcpListener};
    ///
    /// let (_, stack) = Stack::pair("192.0.2.1/24", "192.0.2.2/24")?;
    /// let listener = TcpListener::bind_with_backlog(&stack, "0.0.0.0:0", 1024)?;
    /// assert_ne!(listener.local_addr().port(), 0);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`TcpListener::bind`]; `InvalidInput` if the backlog is 0 or more than 65,536.
    pub fn bind_with_backlog(
        stack: &Stack,
        address: impl ToSocketAddrs,
        backlog: u32,
    ) -> io::Result<TcpListener> {
        if !(1..=1 << 16).contains(&backlog) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "a backlog of 1 to 65536 connections"));
        }
        first(address, |address| {
            let (listened, queue) = stack.listen(address, backlog)?;
            Ok(TcpListener { queue: Mutex::new(queue), blocking: Blocking::default(), listened })
        })
    }

    /// The address and the port that the listener listens at.
    pub fn local_addr(&self) -> SocketAddr {
        self.listened.local
    }

    /// Takes the next connection; returns its stream and its peer. Waits while there is none.
    ///
    /// # Errors
    /// See the table at the head of this file.
    pub fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        self.take(self.next()?, |_| None)
    }

    /// Accepts as [`TcpListener::accept`] does, for a thread that waits for many connections. News of the connection rings the ringer that `ringer`
    /// gives for its peer, such as [`UdpSocket::ringer`]. Calls of the connection do not wait, whatever [`TcpStream::set_nonblocking`] says: it has
    /// no descriptors to wait with. [`TcpStream::is_readable`] and [`TcpStream::is_writable`] tell when to call.
    ///
    /// # Errors
    /// As [`TcpListener::accept`].
    ///
    /// [`UdpSocket::ringer`]: crate::UdpSocket::ringer
    pub fn accept_for(
        &self,
        ringer: impl FnOnce(SocketAddr) -> Ringer,
    ) -> io::Result<(TcpStream, SocketAddr)> {
        let (stream, peer) = self.take(self.next()?, |peer| Some(ringer(peer)))?;
        stream.set_nonblocking(true);
        Ok((stream, peer))
    }

    /// The connections, one after the other, as [`TcpListener::accept`] takes them.
    pub fn incoming(&self) -> Incoming<'_> {
        Incoming { listener: self }
    }

    /// Makes calls return `WouldBlock` instead of waiting, or wait again.
    pub fn set_nonblocking(&self, is_nonblocking: bool) {
        self.blocking.set_nonblocking(is_nonblocking);
    }

    /// SYNs that were dropped because the backlog was full, or the stack had as many connections as it may have; and connections that were reset
    /// because either was so by the time that they were confirmed.
    pub fn refused(&self) -> u64 {
        self.listened.waiting.refused.load(Ordering::Relaxed)
    }

    /// Half-open connections that made room for others.
    pub fn replaced(&self) -> u64 {
        self.listened.waiting.replaced.load(Ordering::Relaxed)
    }

    fn next(&self) -> io::Result<(usize, Accepted)> {
        let mut queue = self.lock();
        loop {
            if let Some(next) = self.look(&mut queue)? {
                return Ok(next);
            }
            self.blocking.may_wait()?;
            let until = Deadline::default().of(&self.blocking.read);
            let Queue { accepted, doorbell, .. } = &mut *queue;
            wait(doorbell, until, || accepted.iter_mut().any(|of| !of.is_empty() || of.is_abandoned()))?;
        }
    }

    /// The next connection that waits, if one does, and the number of the worker that has it.
    pub(crate) fn look(&self, queue: &mut Queue) -> io::Result<Option<(usize, Accepted)>> {
        // In this order: connections that a gone worker has left are in the queue.
        let is_abandoned = queue.accepted.iter().any(|of_worker| of_worker.is_abandoned());
        let mut of_workers = queue.accepted.iter_mut().enumerate();
        let next = of_workers.find_map(|(worker, of_worker)| of_worker.pop().map(|next| (worker, next)));
        if next.is_some() {
            self.listened.waiting.connections.fetch_sub(1, Ordering::Relaxed);
        }
        if next.is_none() && is_abandoned { Err(os(libc::EPIPE)) } else { Ok(next) }
    }

    /// Makes the stream of a connection that has waited. News of it rings the ringer that `ringer` gives for its peer, if any.
    pub(crate) fn take(
        &self,
        (worker, Accepted { connection, flow }): (usize, Accepted),
        ringer: impl FnOnce(SocketAddr) -> Option<Ringer>,
    ) -> io::Result<(TcpStream, SocketAddr)> {
        let stack = &self.listened.stack;
        let connected = stack.attach(flow, (worker, connection), ringer(flow.peer).as_ref())?;
        Ok((TcpStream::of(stack.clone(), connected), flow.peer))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for TcpListener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TcpListener").field("local", &self.local_addr()).finish()
    }
}

/// The connections of a listener ([`TcpListener::incoming`]).
#[derive(Debug)]
pub struct Incoming<'l> {
    listener: &'l TcpListener,
}

impl Iterator for Incoming<'_> {
    type Item = io::Result<TcpStream>;

    fn next(&mut self) -> Option<io::Result<TcpStream>> {
        Some(self.listener.accept().map(|(stream, _)| stream))
    }
}
