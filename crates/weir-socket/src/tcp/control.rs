//! Requests of the application's side of TCP to the workers: to listen, to connect, to take a connection that was accepted.
//!
//! Rule: a request is answered by the worker that has the connection. The worker of an incoming connection is the one whose queue its SYN came by.
//! The worker of a connection that is asked for here is that of the bucket of its flow, by whose queue the answers come. Every worker has a part of
//! each listener. Its connections wait in a queue for each worker, for any thread that accepts. A connection gets its rings when an application takes
//! it; that application's thread makes them.
//!
//! Owner: any thread; ports are given out under the stack's lock.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};

use weir_core::net::sockets::Binding;
use weir_path::frames::Frames;
use weir_port::bpf::bound::Transport;
use weir_ring::doorbell::{Doorbell, Ringer};
use weir_ring::spsc::{Consumer, capacity_for, ring};

use crate::control::EPHEMERAL;
use crate::datagram::as_in_packets;
use crate::driver::may_wait;
use crate::half::{BufferSizes, Caller, Halves, halves};
use crate::in_use::none_free;
use crate::port::{FullRule, Open};
use crate::ringers::OnDrop;
use crate::shared::PortHold;
use crate::socket::os;
use crate::stack::Stack;
use crate::task::Task;
#[cfg(feature = "tokio")]
use crate::task::Waits;
use crate::tcp::connection::Flow;
use crate::tcp::half_open::{Accepted, HALF_OPEN_MAX, Listening, Waiting};
use crate::tcp::port::{NoConnection, TcpPort};
use crate::worker::Request;

/// The most chunks of a connection on their way to the path, and as many on their way to the application.
pub(crate) const CHUNKS: u32 = 8;

/// The requests to the connections behind a port.
pub(crate) enum TcpRequest {
    /// Listen.
    Listen(Listening),
    /// Stop the listener of this number.
    StopListening(u32),
    /// Ask for a connection, and reply with its number.
    Connect { flow: Flow, reply: Sender<Result<u32, NoConnection>> },
    /// Give this connection to an application, with these rings.
    Attach { connection: u32, open: Box<Open> },
    /// End this connection, because its application could not make its rings.
    Leave(u32),
}

impl TcpRequest {
    pub(crate) fn answer(self, port: &mut TcpPort, frames: &mut Frames, now_ns: u64) {
        // An application that has closed a connection and asks for another finds the place free.
        port.take_news(frames, now_ns);
        match self {
            TcpRequest::Listen(listening) => port.listen(listening),
            TcpRequest::StopListening(number) => port.stop_listening(number, frames),
            TcpRequest::Connect { flow, reply } => {
                let connected = port.connect(flow);
                let number = connected.ok();
                // The asking thread may have gone.
                if reply.send(connected).is_err()
                    && let Some(number) = number
                {
                    port.leave(number, frames);
                }
            }
            TcpRequest::Attach { connection, open } => port.attach(connection, open, frames),
            TcpRequest::Leave(connection) => port.leave(connection, frames),
        }
    }
}

/// An address and port that is listened at. It is freed when this is dropped.
pub(crate) struct Listened {
    pub(crate) stack: Stack,
    pub(crate) local: SocketAddr,
    pub(crate) waiting: Arc<Waiting>,
    number: u16,
    /// The hold of the port beside the kernel, which has the port again once nobody listens and no connection is left.
    _hold: Option<PortHold>,
}

/// The connections that wait to be accepted.
pub(crate) struct Queue {
    /// The connections of each worker.
    pub(crate) accepted: Vec<Consumer<Accepted>>,
    pub(crate) doorbell: Doorbell,
    #[cfg(feature = "tokio")]
    pub(crate) task: (Arc<Task>, Waits),
}

/// A connection, as an application has it.
pub(crate) struct Connected {
    pub(crate) flow: Flow,
    pub(crate) halves: Halves,
    pub(crate) caller: Caller,
}

impl Stack {
    /// Listens at an address, for at most so many connections that wait to be accepted.
    pub(crate) fn listen(&self, address: SocketAddr, backlog: u32) -> io::Result<(Listened, Queue)> {
        let port = self.tcp_port()?;
        self.check_own_address(address.ip())?;
        let mut control = self.lock();
        let host = self.host();
        let (port_number, hold) = match address.port() {
            0 => self.hold_any(Transport::Tcp, address.ip(), || control.free_tcp_port(host, address.ip()))?,
            port => (port, self.hold(Transport::Tcp, address)?),
        };
        let local = SocketAddr::new(address.ip(), port_number);
        let binding = Binding { address: local.ip(), port: local.port(), bucket: None };
        let number = control.listen(host, binding)?;
        let waiting = Arc::new(Waiting::default());
        // The binding is freed with `listened` from here on.
        drop(control);
        let listened =
            Listened { stack: self.clone(), local, waiting: Arc::clone(&waiting), number, _hold: hold };
        let doorbell = Doorbell::with_full_fences()?;
        let task = Arc::<Task>::default();
        let mut queue = Queue {
            accepted: Vec::new(),
            doorbell,
            #[cfg(feature = "tokio")]
            task: (Arc::clone(&task), Waits::default()),
        };
        for worker in 0..self.workers() {
            // A connection that was half open when there was room is let in, so the ring has slots for these too.
            let capacity = capacity_for(backlog as usize + HALF_OPEN_MAX);
            let (to_listener, accepted) = ring(capacity).map_err(io::Error::other)?;
            queue.accepted.push(accepted);
            let listening = Listening {
                number: number.into(),
                address: local,
                backlog,
                accepted: to_listener,
                ringer: OnDrop { ringer: queue.doorbell.ringer(), task: Arc::clone(&task) },
                waiting: Arc::clone(&waiting),
            };
            self.ask(worker, Request::Tcp { port, request: TcpRequest::Listen(listening) })?;
        }
        Ok((listened, queue))
    }

    /// Asks for a connection to an address.
    pub(crate) fn connect(&self, peer: SocketAddr) -> io::Result<Connected> {
        let port = self.tcp_port()?;
        if peer.port() == 0 || peer.ip().is_unspecified() || peer.ip().is_multicast() {
            return Err(os(libc::EINVAL));
        }
        let source = self.source_for(peer.ip())?;
        may_wait()?;
        for _ in EPHEMERAL {
            // The port is held until the connection holds it, or the attempt has failed.
            let (own, _hold) =
                self.hold_any(Transport::Tcp, source, || self.lock().free_tcp_port(self.host(), source))?;
            let flow = Flow { local: SocketAddr::new(source, own), peer: as_in_packets(peer) };
            let worker = self.worker_of(flow);
            let (reply, answer) = channel();
            self.ask(worker, Request::Tcp { port, request: TcpRequest::Connect { flow, reply } })?;
            match answer.recv().map_err(|_| os(libc::EPIPE))? {
                Ok(connection) => return self.attach(flow, (worker, connection), None),
                Err(NoConnection::Full) => {
                    let why = "as many connections as this stack was built for: build it for more";
                    return Err(io::Error::new(io::ErrorKind::OutOfMemory, why));
                }
                Err(NoConnection::InUse) => {}
            }
        }
        Err(none_free(source))
    }

    /// Takes a connection of a worker: makes its rings.
    pub(crate) fn attach(
        &self,
        flow: Flow,
        (worker, connection): (usize, u32),
        ringer: Option<&Ringer>,
    ) -> io::Result<Connected> {
        let port = self.tcp_port()?;
        let caller = self.caller(worker, connection);
        let sizes = BufferSizes { send_frames: CHUNKS, receive_packets: CHUNKS, full: FullRule::Hold };
        let ask = |request| self.ask(worker, Request::Tcp { port, request });
        match halves(sizes, std::slice::from_ref(&caller), 0, ringer) {
            Ok((halves, opens)) => {
                for open in opens {
                    ask(TcpRequest::Attach { connection, open: Box::new(open) })?;
                }
                Ok(Connected { flow, halves, caller })
            }
            Err(error) => {
                // The process has no descriptor left, most likely; the peer is told.
                let _ = ask(TcpRequest::Leave(connection));
                Err(error)
            }
        }
    }

    /// The worker of the bucket that the flow's answers fall into.
    fn worker_of(&self, flow: Flow) -> usize {
        self.rss().worker(self.bucket_of(flow.peer, flow.local) as u32)
    }
}

impl Drop for Listened {
    fn drop(&mut self) {
        let Listened { stack, number, .. } = self;
        // In this order: a port that is free in `control` is free at the workers by the time that somebody binds it.
        if let Ok(port) = stack.tcp_port() {
            for worker in 0..stack.workers() {
                // A worker that has ended needs no word.
                let request = TcpRequest::StopListening((*number).into());
                let _ = stack.ask(worker, Request::Tcp { port, request });
            }
        }
        stack.lock().stop_listening(stack.host(), *number);
    }
}
