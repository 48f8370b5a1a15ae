//! Sockets of quinn's endpoints: QUIC on a path.
//!
//! Rule: a packet that finds the send buffer full waits with its connection, and is never lost for that. Connections that wait are in a line. The
//! first one is called when the send buffer has room for a packet. It sends one packet, and the next is called. So all of them share the buffer by
//! turns, and nobody is woken for nothing. A packet that is longer than the interface takes is a probe of the path's MTU: it is not sent, and quinn's
//! search finds the largest size that is. Errors of the path in between are quinn's to find out by its timers, as with the kernel's sockets.
//!
//! A packet keeps its ECN codepoint and its address here both ways. A transmission is one packet: segmentation offload would spare system calls, and
//! there are none.
//!
//! Owner: any thread; the line has a lock, held for no longer than it takes to look at it. Limits: one endpoint to a socket. A connection that ended
//! after it was called never answers: the next is called when somebody comes [`CALLED_NS_MAX`] later, or when something is received.

use std::collections::VecDeque;
use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use quinn::udp::{EcnCodepoint, RecvMeta, Transmit};
use quinn::{AsyncUdpSocket, UdpPoller};
use weir_path::packet::PathPacket;
use weir_run::clock::now_ns;

use crate::datagram::{ecn, ends, payload_range};
use crate::socket::{UdpSocket, os};

/// The time that a called connection may take to come before the next is called, in nanoseconds.
const CALLED_NS_MAX: u64 = 20_000_000;

/// A socket for an endpoint of quinn's.
///
/// ```
/// use std::sync::Arc;
///
/// use quinn::{Endpoint, EndpointConfig, TokioRuntime};
/// use weir_socket::{QuicSocket, Stack, UdpSocket};
///
/// let (_, right) = Stack::pair("192.0.2.1/24", "192.0.2.2/24")?;
/// let socket = Arc::new(QuicSocket::new(UdpSocket::bind(&right, "192.0.2.2:4433")?));
/// tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
///     // With a configuration of a server it accepts connections too.
///     let endpoint = Endpoint::new_with_abstract_socket(
///         EndpointConfig::default(),
///         None,
///         Arc::clone(&socket) as _,
///         Arc::new(TokioRuntime),
///     )?;
///     assert_eq!(endpoint.local_addr()?, socket.socket().local_addr());
///     std::io::Result::Ok(())
/// })?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct QuicSocket {
    socket: UdpSocket,
    line: Arc<Line>,
    /// The waker by which the send buffer wakes the line.
    waker: Waker,
}

impl QuicSocket {
    /// A QUIC socket on a UDP socket that is bound, and not connected.
    pub fn new(socket: UdpSocket) -> QuicSocket {
        let line = Arc::<Line>::default();
        QuicSocket { socket, waker: Waker::from(Arc::clone(&line)), line }
    }

    /// The UDP socket, which has the counters.
    pub fn socket(&self) -> &UdpSocket {
        &self.socket
    }

    /// Calls the first connection in the line, if one waits, none is called, and a packet would go. If none would go, the send buffer wakes the line
    /// later.
    fn call_next(&self) {
        {
            let mut waiters = self.line.lock();
            waiters.forget_late();
            if waiters.called.is_some() || waiters.waiting.is_empty() {
                return;
            }
        }
        // A thread that comes in between has called somebody, which is as well.
        if self.socket.lock_send().ask(&self.waker) {
            self.line.call();
        }
    }
}

impl AsyncUdpSocket for QuicSocket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        let number = self.line.lock().number();
        Box::pin(QuicSender { socket: self, number })
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        let Transmit { destination, contents, ecn, src_ip, .. } = *transmit;
        let result = self.send_one(contents, destination, src_ip, ecn);
        self.call_next();
        match result {
            Err(error) if is_lost_on_the_way(&error) => Ok(()),
            result => result,
        }
    }

    fn poll_recv(
        &self,
        context: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        self.call_next();
        let mut receive = self.socket.lock_receive();
        loop {
            if !receive.ask(context.waker()) {
                return Poll::Pending;
            }
            let memory = self.socket.memory();
            let mut places = buffers.iter_mut().zip(&mut *meta);
            let mut returns = self.socket.lock_returns();
            let room = places.len();
            let count = receive.take(room, |lane, packet| {
                if let Some((buffer, meta)) = places.next() {
                    *meta = copy_out(packet.bytes(memory), buffer);
                }
                returns.read(lane, packet.frame, packet.len_bytes);
            });
            returns.publish();
            drop(returns);
            if count > 0 {
                return Poll::Ready(Ok(count));
            }
            if receive.is_abandoned() {
                return Poll::Ready(Err(os(libc::EPIPE)));
            }
            // An error of the path, about a packet of no connection in particular.
            let _ = self.socket.take_error();
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.socket.local_addr())
    }

    fn may_fragment(&self) -> bool {
        false
    }
}

impl QuicSocket {
    fn send_one(
        &self,
        contents: &[u8],
        destination: SocketAddr,
        source: Option<std::net::IpAddr>,
        ecn: Option<EcnCodepoint>,
    ) -> io::Result<()> {
        let (source, len) = self.socket.route_from(source, destination, contents.len())?;
        let mut send = self.socket.lock_send();
        if send.is_abandoned() {
            return Err(os(libc::EPIPE));
        }
        let Some(frame) = send.take_frame() else { return Err(io::ErrorKind::WouldBlock.into()) };
        let codepoint = ecn.map_or(0, |ecn| ecn as u8);
        let ends = [source, destination];
        self.socket.send_in(&mut send, PathPacket::new(frame, 0, len), contents, ends, codepoint);
        Ok(())
    }
}

/// Returns whether the error is one that a QUIC stack finds out by itself: such a packet is like one that was lost behind the first router.
fn is_lost_on_the_way(error: &io::Error) -> bool {
    let known = [libc::EMSGSIZE, libc::ENETUNREACH, libc::EACCES, libc::EADDRNOTAVAIL, libc::EAFNOSUPPORT];
    error.raw_os_error().is_some_and(|number| known.contains(&number) || number == libc::EINVAL)
}

fn copy_out(frame: &[u8], buffer: &mut [u8]) -> RecvMeta {
    let (from, to) = ends(frame);
    let payload = &frame[payload_range(frame)];
    // A packet that is longer than quinn has told its peers is cut, which quinn finds.
    let len = payload.len().min(buffer.len());
    buffer[..len].copy_from_slice(&payload[..len]);
    RecvMeta { addr: from, len, stride: len, ecn: EcnCodepoint::from_bits(ecn(frame)), dst_ip: Some(to.ip()) }
}

/// The poller by which one connection waits to send.
#[derive(Debug)]
struct QuicSender {
    socket: Arc<QuicSocket>,
    number: u64,
}

impl UdpPoller for QuicSender {
    fn poll_writable(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let QuicSender { socket, number } = &*self;
        let mut waiters = socket.line.lock();
        let is_called = waiters.take_call(*number);
        let is_free = waiters.called.is_none() && waiters.waiting.iter().all(|(other, _)| other == number);
        // Under the lock of the line: this connection is in the line by the time that the socket calls.
        let asked = (is_called || is_free).then(|| socket.socket.lock_send().ask(&socket.waker));
        if asked == Some(true) {
            waiters.leave(*number);
            return Poll::Ready(Ok(()));
        }
        waiters.wait(*number, context.waker(), is_called);
        drop(waiters);
        if asked.is_none() {
            socket.call_next();
        }
        Poll::Pending
    }
}

impl Drop for QuicSender {
    fn drop(&mut self) {
        let mut waiters = self.socket.line.lock();
        waiters.take_call(self.number);
        waiters.leave(self.number);
        drop(waiters);
        self.socket.call_next();
    }
}

/// The connections that wait to send. The send buffer wakes the line, which calls the first of them.
#[derive(Debug, Default)]
struct Line(Mutex<Waiters>);

impl Line {
    fn lock(&self) -> MutexGuard<'_, Waiters> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn call(&self) {
        let called = self.lock().call(now_ns());
        // Not under the lock: the called connection may come at once.
        called.into_iter().for_each(Waker::wake);
    }
}

impl Wake for Line {
    fn wake(self: Arc<Self>) {
        self.call();
    }
}

#[derive(Debug, Default)]
struct Waiters {
    waiting: VecDeque<(u64, Waker)>,
    /// The connection that was called and has not come yet, and the time of the call.
    called: Option<(u64, u64)>,
    numbers: u64,
}

impl Waiters {
    fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    /// Takes the call of this connection, which has come; returns whether it was called.
    fn take_call(&mut self, number: u64) -> bool {
        self.called.take_if(|(called, _)| *called == number).is_some()
    }

    /// Waits at the end of the line, or at the connection's place if it is in the line; at the front if it was called for nothing.
    fn wait(&mut self, number: u64, waker: &Waker, is_first: bool) {
        match self.waiting.iter_mut().find(|(other, _)| *other == number) {
            Some((_, own)) => own.clone_from(waker),
            None if is_first => self.waiting.push_front((number, waker.clone())),
            None => self.waiting.push_back((number, waker.clone())),
        }
    }

    fn leave(&mut self, number: u64) {
        self.waiting.retain(|(other, _)| *other != number);
    }

    /// Calls the first in the line, unless another is called; returns its waker.
    fn call(&mut self, now_ns: u64) -> Option<Waker> {
        if self.called.is_some() {
            return None;
        }
        let (number, waker) = self.waiting.pop_front()?;
        self.called = Some((number, now_ns));
        Some(waker)
    }

    /// Forgets a connection that was called longer than [`CALLED_NS_MAX`] ago: it comes no more.
    fn forget_late(&mut self) {
        self.called.take_if(|(_, since_ns)| now_ns().saturating_sub(*since_ns) > CALLED_NS_MAX);
    }
}
