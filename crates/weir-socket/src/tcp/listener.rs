//! A TCP listener as `std::net` has it, on a stack of ours.
//!
//! | what | error, as the kernel's |
//! |---|---|
//! | address and port are another listener's; not the stack's; of the other family | `AddrInUse`, `AddrNotAvailable`, `EAFNOSUPPORT` |
//! | nobody has asked for a connection | `WouldBlock` if not blocking |
//! | the process has no descriptor left | that of the kernel; the connection is reset |
//! | the worker of the path has ended | `BrokenPipe` |
//!
//! Owner: any thread; who waits to accept has the lock, so others wait for their turn.

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

/// Connections that may wait to be accepted, unless said otherwise; as std's.
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
    /// Listens at the first of these addresses that can be had. Port 0 is one that nobody has.
    ///
    /// # Errors
    /// `AddrInUse`, `AddrNotAvailable`, `EAFNOSUPPORT`; `Unsupported` if the stack has no TCP; `BrokenPipe` if it has ended.
    pub fn bind(stack: &Stack, address: impl ToSocketAddrs) -> io::Result<TcpListener> {
        TcpListener::bind_with_backlog(stack, address, BACKLOG)
    }

    /// The same, where so many connections may wait to be accepted; 128 unless said otherwise. A SYN that finds as many is dropped as
    /// `socket-full`, and its sender tries again.
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
    /// As [`TcpListener::bind`]; `InvalidInput` if it is 0.
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

    /// Where it listens.
    pub fn local_addr(&self) -> SocketAddr {
        self.listened.local
    }

    /// Takes the next connection, and says from where. Waits while there is none.
    ///
    /// # Errors
    /// Those of the table at the head of this file.
    pub fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        self.take(self.next()?, |_| None)
    }

    /// The same for a thread that waits for many: what becomes of the connection rings what `ringer` says for its other end, such as
    /// [`UdpSocket::ringer`], and its calls do not wait, whatever [`TcpStream::set_nonblocking`] says: it has no descriptors for that.
    /// [`TcpStream::is_readable`] and [`TcpStream::is_writable`] then say what to do.
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

    /// SYNs that were dropped because as many connections waited to be accepted as may, or the stack has as many as may be; and connections
    /// that
    /// were reset because there were as many by the time that they were confirmed.
    pub fn refused(&self) -> u64 {
        self.listened.waiting.refused.load(Ordering::Relaxed)
    }

    /// Connections that somebody had asked for and not confirmed, and that made room for others.
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

    /// The next connection that waits, if one does, and which worker has it.
    pub(crate) fn look(&self, queue: &mut Queue) -> io::Result<Option<(usize, Accepted)>> {
        // In this order: what was left by a worker that has gone is there.
        let is_abandoned = queue.accepted.iter().any(|of_worker| of_worker.is_abandoned());
        let mut of_workers = queue.accepted.iter_mut().enumerate();
        let next = of_workers.find_map(|(worker, of_worker)| of_worker.pop().map(|next| (worker, next)));
        if next.is_some() {
            self.listened.waiting.connections.fetch_sub(1, Ordering::Relaxed);
        }
        if next.is_none() && is_abandoned { Err(os(libc::EPIPE)) } else { Ok(next) }
    }

    /// A connection that has waited; what becomes of it rings what `ringer` says for its other end, if anything.
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
