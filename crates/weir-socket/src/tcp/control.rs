//! How the application's side of TCP asks the workers: to listen, to connect, to take what was accepted.
//!
//! Rule: what is asked is answered by the worker that has the connection: that whose queue its SYN came by, or, of one that is asked for here, the one
//! of the bucket that its flow falls in, by whose queue the answers come. Of a listener every worker has a part, and the connections of all wait
//! in one queue each for whoever accepts. A connection gets its rings when an application takes it, made by that application's thread.
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

use crate::driver::may_wait;
use crate::half::{BufferSizes, Caller, Halves, halves};
use crate::port::{FullRule, OnDrop, Open};
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

/// How many chunks of a connection are on their way to the path, and to the application, at the most.
pub(crate) const CHUNKS: u32 = 8;

/// What can be asked of the connections behind a port.
pub(crate) enum TcpRequest {
    /// Listen.
    Listen(Listening),
    /// Listen no more: the number of the listener.
    StopListening(u32),
    /// Ask for a connection, and say its number.
    Connect { flow: Flow, reply: Sender<Result<u32, NoConnection>> },
    /// An application has this connection from now on, with these rings.
    Attach { connection: u32, open: Box<Open> },
    /// An application cannot have this connection.
    Leave(u32),
}

impl TcpRequest {
    pub(crate) fn answer(self, port: &mut TcpPort, frames: &mut Frames, now_ns: u64) {
        // Whoever has closed a connection and asks for another finds its place free.
        port.take_news(frames, now_ns);
        match self {
            TcpRequest::Listen(listening) => port.listen(listening),
            TcpRequest::StopListening(number) => port.stop_listening(number, frames),
            TcpRequest::Connect { flow, reply } => {
                let connected = port.connect(flow);
                let number = connected.ok();
                // Who asked may have gone.
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

/// A place to listen at. Dropped, it frees that.
pub(crate) struct Listened {
    pub(crate) stack: Stack,
    pub(crate) local: SocketAddr,
    pub(crate) waiting: Arc<Waiting>,
    number: u16,
    /// Beside the kernel: it has the port again once nobody listens and no connection is left.
    _hold: Option<PortHold>,
}

/// What waits to be accepted.
pub(crate) struct Queue {
    /// Of each worker.
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
        // From here on what was bound is freed with it.
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
            // One that was half open when there was room is let in.
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
        let mut tried = 0;
        may_wait()?;
        loop {
            // Held until the connection holds it, or there is none.
            let (own, _hold) =
                self.hold_any(Transport::Tcp, source, || self.lock().free_tcp_port(self.host(), source))?;
            let flow = Flow { local: SocketAddr::new(source, own), peer };
            let worker = self.worker_of(flow);
            let (reply, answer) = channel();
            self.ask(worker, Request::Tcp { port, request: TcpRequest::Connect { flow, reply } })?;
            match answer.recv().map_err(|_| os(libc::EPIPE))? {
                Ok(connection) => return self.attach(flow, (worker, connection), None),
                Err(NoConnection::Full) => {
                    let why = "as many connections as this stack was built for: build it for more";
                    return Err(io::Error::new(io::ErrorKind::OutOfMemory, why));
                }
                Err(NoConnection::InUse) if tried < u16::MAX => tried += 1,
                Err(NoConnection::InUse) => return Err(os(libc::EADDRINUSE)),
            }
        }
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
                // The process has no descriptor left, most likely; the other side is told.
                let _ = ask(TcpRequest::Leave(connection));
                Err(error)
            }
        }
    }

    /// The worker of the bucket that its answers fall in.
    fn worker_of(&self, flow: Flow) -> usize {
        self.rss().worker(self.bucket_of(flow.peer, flow.local) as u32)
    }
}

impl Drop for Listened {
    fn drop(&mut self) {
        let Listened { stack, number, .. } = self;
        // In this order: a port that is free here is free there by the time that somebody binds it.
        if let Ok(port) = stack.tcp_port() {
            for worker in 0..stack.workers() {
                // One that has ended needs no word.
                let request = TcpRequest::StopListening((*number).into());
                let _ = stack.ask(worker, Request::Tcp { port, request });
            }
        }
        stack.lock().stop_listening(stack.host(), *number);
    }
}
