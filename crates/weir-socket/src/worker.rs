//! The worker of a stack: a worker of the path, driven as any (`weir_run::drive`), with sockets that come and go.
//!
//! ```text
//! requests (bind, close, books, stop), timers of TCP --> look --> pass --> at rest: park, until a socket, the interface or a request rings
//! ```
//!
//! Rule (invariant 3): a worker says that it parks before it looks at every announcement and request once more. A socket that was closed keeps its
//! place until its sent packets have been polled, and those that wait before its port have gone: they are not the next socket's.
//!
//! The end: a worker that is told to stop lets out the packets that sockets have sent, its own and those that others hand over, for
//! [`DRAIN_NS_MAX`] at the most. However the worker ends, its ports are dropped with it, and every thread that waits at a socket is woken and finds
//! that the worker has gone.
//!
//! Owner: the thread that runs the worker: one of the stack's, or an application's (`driver.rs`).

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

use weir_core::net::sockets::{BindError, Binding};
use weir_path::either_port::EitherPort;
use weir_path::frames::Frames;
use weir_path::landings::Landings;
use weir_path::port::TransmitRing;
use weir_path::traffic::port::MemoryPort;
use weir_path::worker::{Pass, Worker};
use weir_port::monitor::Watch;
use weir_port::port::Port;
use weir_port::sys;
use weir_port::worker_port::WorkerPort;
use weir_ring::doorbell::{Doorbell, Ringer};
use weir_run::clock::now_ns;
use weir_run::drive::{Driven, Look, drive};
use weir_run::standstill::Standstill;
use weir_run::stats::WorkerStats;

use crate::books::StackBooks;
use crate::driver::Lent;
use crate::interface::KernelSide;
use crate::link::LinkPort;
use crate::port::{Open, SocketPort};
use crate::report::{BoundSockets, StackReport, report};
use crate::tcp::control::TcpRequest;
use crate::tcp::port::TcpPort;

/// A port of a stack: an interface of the kernel's or one in memory, or a socket, or all TCP of a host.
pub(crate) type StackPort = EitherPort<InterfacePort, EitherPort<SocketPort, TcpPort>>;
/// An interface, as the first worker's part or another's, or one in memory, or an end of a link.
pub(crate) type InterfacePort = EitherPort<EitherPort<Port, WorkerPort>, EitherPort<MemoryPort, LinkPort>>;

/// The longest time that a stopping worker lets out the packets that sockets have sent.
const DRAIN_NS_MAX: u64 = 1_000_000_000;
/// The pause between two looks of a draining worker whether all is out.
const LOOK_NS: u64 = 100_000;
/// The pause between two looks of a busy worker at the state of its interface.
const INTERFACE_LOOK_NS: u64 = 1_000_000;
/// The pause between two looks while the queues of the interface wait to be owned, in nanoseconds: nothing comes then.
const CARRIER_LOOK_NS: u64 = 100_000_000;

/// The requests to a worker.
pub(crate) enum Request {
    /// Open a socket: the stage of its host, its number there, its port among those of a worker, its binding, whether this is its home, and the
    /// worker's half of its rings.
    Bind {
        stage: usize,
        socket: u16,
        port: usize,
        binding: Binding,
        is_home: bool,
        open: Box<Open>,
        reply: Sender<Result<(), BindError>>,
    },
    /// Close the socket of this number and port; then count down its place, which is free at 0.
    Close { stage: usize, socket: u16, port: usize, place: Arc<AtomicU8> },
    /// A request to the connections behind this port.
    Tcp { port: usize, request: TcpRequest },
    /// The books of everything.
    Books(Sender<StackBooks>),
    /// The report for `weir stat`, of the moment when all workers stand still; none if they do not come together.
    Stat { reply: Sender<Option<weir_port::Result<StackReport>>>, together: Arc<Standstill> },
    /// Look at the interface: its queues were owned again.
    LookAtInterface,
    /// Lend this worker to another thread that drives it; none is lent if another has it already, or is about to.
    Lend(Sender<Option<Lent>>),
    /// Stop after the sent packets are out.
    Stop,
}

/// The channel to a worker, and the ringer that wakes it.
#[derive(Clone)]
pub(crate) struct Asking {
    pub(crate) requests: Sender<Request>,
    pub(crate) ringer: Ringer,
}

impl Asking {
    /// Sends a request; returns whether the worker is there.
    pub(crate) fn ask(&self, request: Request) -> bool {
        let is_there = self.requests.send(request).is_ok();
        self.ringer.published();
        is_there
    }

    /// Sends a request that needs no answer; a worker that has ended needs no word.
    pub(crate) fn tell(&self, request: Request) {
        self.ask(request);
    }
}

/// The landings of workers that have ended: the others may hand packets over as long as they are there.
pub(crate) type LeftBehind = Mutex<Vec<Landings>>;

/// See the head of the file.
pub(crate) struct StackWorker {
    pub(crate) path: Worker<StackPort>,
    /// The first of its ports in the plan: that of the interface, if there is one.
    pub(crate) first_port: usize,
    doorbell: Doorbell,
    /// The bell that rings for the interface, and the monitor of its state, if it is the kernel's.
    pub(crate) kernel: Option<KernelSide>,
    requests: Receiver<Request>,
    /// The other workers of the stack.
    pub(crate) others: Vec<Asking>,
    /// A request that came while the worker was about to park.
    next: Option<Request>,
    /// The thread that is to drive the worker next, and whether a thread other than its own drives it now.
    borrower: Option<Sender<Option<Lent>>>,
    is_lent: bool,
    /// The ports of all TCP, one for each host.
    tcp_ports: Vec<usize>,
    bound: BoundSockets,
    /// Passes that moved packets.
    busy_passes: u64,
    /// The ports of sockets that are being closed.
    closing: Vec<(usize, Arc<AtomicU8>)>,
    draining_since: Option<u64>,
    /// True if everything was out once, while it drained.
    has_stopped: bool,
    left_behind: Arc<LeftBehind>,
    /// The time of the next look at the interface's state.
    look_ns: u64,
    /// True if a socket has been bound whose home is this worker: before that a generator in memory would find nobody.
    has_bound: bool,
}

impl StackWorker {
    pub(crate) fn new(
        path: Worker<StackPort>,
        doorbell: Doorbell,
        kernel: Option<KernelSide>,
        requests: Receiver<Request>,
        others: Vec<Asking>,
        left_behind: Arc<LeftBehind>,
    ) -> StackWorker {
        let (next, closing) = (None, Vec::new());
        let mut path = path;
        let first_port = path.ends()[0].index;
        let mut tcp_ports: Vec<usize> = path.ends().iter().map(|end| end.index).collect();
        tcp_ports.retain(|&port| tcp_port(&mut path, port).is_some());
        StackWorker {
            path,
            first_port,
            doorbell,
            kernel,
            requests,
            others,
            next,
            borrower: None,
            is_lent: false,
            tcp_ports,
            bound: BoundSockets::default(),
            busy_passes: 0,
            closing,
            draining_since: None,
            has_stopped: false,
            left_behind,
            look_ns: 0,
            has_bound: false,
        }
    }

    /// Does what a request asks.
    fn answer(&mut self, request: Request, now_ns: u64) {
        match request {
            Request::Bind { stage, socket, port, binding, is_home, open, reply } => {
                let (port, bound) = (self.first_port + port, self.path.bind(stage, binding, socket));
                self.has_bound |= bound.is_ok() && is_home;
                if bound.is_ok() {
                    self.bound.add(&mut self.path, port, stage, binding, now_ns);
                    if let Some((port, frames)) = socket_port(&mut self.path, port) {
                        port.open(*open, frames);
                    }
                }
                // The asking thread may have gone; then it will close the socket.
                let _ = reply.send(bound);
            }
            Request::Close { stage, socket, port, place } => {
                let port = self.first_port + port;
                self.path.unbind(stage, socket);
                self.bound.remove(port);
                if let Some((port, _)) = socket_port(&mut self.path, port) {
                    port.close();
                }
                self.closing.push((port, place));
            }
            Request::Tcp { port, request } => {
                if let Some((port, frames)) = tcp_port(&mut self.path, self.first_port + port) {
                    request.answer(port, frames, now_ns);
                }
            }
            Request::Books(reply) => {
                let _ = reply.send(self.books());
            }
            Request::Stat { reply, together } => {
                let counts = self.doorbell.counts();
                let worker = WorkerStats {
                    busy_passes: self.busy_passes,
                    parks: counts.parks,
                    kicks: counts.kicks_sent,
                    cpu: sys::current_core(),
                    // The process may be bound to a core, or this thread that drives the worker.
                    is_bound: sys::allowed_cores().len() == 1,
                    ..WorkerStats::default()
                };
                self.path.complete();
                let report = || report(&mut self.path, self.first_port, &self.bound, worker, now_ns);
                let _ = reply.send(together.copy(report).ok());
            }
            Request::LookAtInterface => self.look_ns = 0,
            Request::Lend(to) if self.is_lent || self.borrower.is_some() => {
                let _ = to.send(None);
            }
            Request::Lend(to) => self.borrower = Some(to),
            Request::Stop => {
                self.draining_since.get_or_insert(now_ns);
            }
        }
    }

    /// Frees the places of closed sockets whose last packets have been polled, and for which no more wait.
    fn finish_closing(&mut self) {
        let path = &mut self.path;
        self.closing.retain(|(port, place)| {
            let is_finished = !waits_before(path, *port)
                && socket_port(path, *port).is_none_or(|(port, frames)| port.finish(frames));
            if is_finished {
                // The last worker frees the place.
                place.fetch_sub(1, Ordering::Release);
            }
            !is_finished
        });
    }

    /// Returns whether no packet is left that a socket has sent.
    fn is_out(&mut self) -> bool {
        let ports: Vec<usize> = self.path.ends().iter().map(|end| end.index).collect();
        let has_sent = ports.into_iter().any(|port| match &mut self.path.end_mut(port).0.port {
            EitherPort::Memory(port) => match &mut **port {
                EitherPort::Kernel(port) => port.has_sent(),
                EitherPort::Memory(port) => port.has_sent(),
            },
            EitherPort::Kernel(_) => false,
        });
        let mut interfaces = self.path.ends().iter().filter(|end| matches!(end.port, EitherPort::Kernel(_)));
        let is_on_its_way =
            interfaces.any(|end| end.port.in_flight().packets > 0 || waits_before(&self.path, end.index));
        !has_sent && !is_on_its_way
    }

    /// Returns whether the worker, which was told to stop, is over: nothing is left that a socket has sent, here or at workers that hand it
    /// over. A worker whose packets leave by another that has gone cannot let them out.
    fn is_over(&mut self) -> bool {
        let leaves_by_others = |path: &Worker<StackPort>| {
            let interface = path.ends().iter().find(|end| matches!(end.port, EitherPort::Kernel(_)));
            interface.is_some_and(|end| path.egress(end.index).is_none())
        };
        let is_out = self.is_out();
        if is_out && !self.has_stopped {
            self.has_stopped = true;
            self.path.stop();
        }
        is_out && !self.path.may_come() || self.path.has_lost_one() && leaves_by_others(&self.path)
    }
}

/// Returns whether packets wait in the egress queue before a port.
fn waits_before(path: &Worker<StackPort>, port: usize) -> bool {
    path.egress(port).is_some_and(|queue| queue.shaping.held().packets > 0)
}

/// A port, if it is a socket's, and the frames.
pub(crate) fn socket_port(
    path: &mut Worker<StackPort>,
    port: usize,
) -> Option<(&mut SocketPort, &mut Frames)> {
    let (end, frames) = path.end_mut(port);
    match &mut end.port {
        EitherPort::Memory(port) => port.kernel_mut().map(|port| (port, frames)),
        EitherPort::Kernel(_) => None,
    }
}

/// A port, if it is the one of all TCP of a host, and the frames.
pub(crate) fn tcp_port(path: &mut Worker<StackPort>, port: usize) -> Option<(&mut TcpPort, &mut Frames)> {
    let (end, frames) = path.end_mut(port);
    match &mut end.port {
        EitherPort::Memory(port) => match &mut **port {
            EitherPort::Memory(port) => Some((port, frames)),
            EitherPort::Kernel(_) => None,
        },
        EitherPort::Kernel(_) => None,
    }
}

impl Driven for StackWorker {
    fn look(&mut self, now_ns: u64) -> io::Result<Look> {
        while let Some(request) = self.next.take().or_else(|| self.requests.try_recv().ok()) {
            self.answer(request, now_ns);
        }
        if self.borrower.is_some() {
            return Ok(Look::Over);
        }
        self.finish_closing();
        if now_ns >= self.look_ns {
            self.look_at_interface(now_ns).map_err(io::Error::other)?;
            self.look_at_tap();
            self.look_ns = now_ns + if self.is_disowned() { CARRIER_LOOK_NS } else { INTERFACE_LOOK_NS };
        }
        let (is_draining, has_bound) = (self.draining_since.is_some(), self.has_bound);
        let next_ns = self.memory_port().filter(|_| has_bound).and_then(|port| {
            if is_draining {
                port.stop();
            }
            port.look(now_ns)
        });
        let timers = self.tcp_ports.iter().filter_map(|&port| {
            let (port, frames) = tcp_port(&mut self.path, port)?;
            port.look(frames, now_ns)
        });
        let next_ns = next_ns.into_iter().chain(timers).min();
        let next_ns = next_ns.into_iter().chain(self.is_disowned().then_some(self.look_ns)).min();
        let Some(since_ns) = self.draining_since else { return Ok(Look::On(next_ns)) };
        let is_over = self.is_over() || now_ns - since_ns > DRAIN_NS_MAX;
        Ok(if is_over { Look::Over } else { Look::On(Some(now_ns + LOOK_NS)) })
    }

    fn pass(&mut self, now_ns: u64) -> io::Result<Pass> {
        let pass = self.path.pass(now_ns)?;
        self.busy_passes += u64::from(pass.moved > 0);
        Ok(pass)
    }

    fn park(&mut self, until_ns: Option<u64>) -> io::Result<()> {
        self.park_unless(until_ns, || false)
    }
}

impl StackWorker {
    /// Drives the worker by this thread, on this core if one is given, until the worker is over, except while another thread drives it. However it
    /// ends, the other workers end too: applications that have lost a part of the stack are to know.
    pub(crate) fn run(self: Box<Self>, core: Option<usize>, wake_cost_ns: u64) -> io::Result<()> {
        let others = self.others.clone();
        sys::set_timer_slack_ns(1);
        let result = core.map_or(Ok(()), sys::pin_thread).and_then(|()| self.run_alone(wake_cost_ns));
        others.iter().for_each(|other| other.tell(Request::Stop));
        result
    }

    fn run_alone(mut self: Box<Self>, wake_cost_ns: u64) -> io::Result<()> {
        loop {
            drive(&mut *self, wake_cost_ns)?;
            let Some(to) = self.borrower.take() else { return Ok(()) };
            let (back, returned) = channel();
            self.is_lent = true;
            let lent = match to.send(Some(Lent { worker: self, back })) {
                Ok(()) => returned.recv().ok(),
                // The asking thread has gone.
                Err(unsent) => unsent.0.map(|lent| lent.worker),
            };
            // A worker that is over does not come back; the thread that drove it knows how it ended.
            let Some(worker) = lent else { return Ok(()) };
            self = worker;
            self.is_lent = false;
        }
    }

    /// Sleeps until this time or until woken, unless there is a request, news of a connection or `has_work`, which are asked after the worker has
    /// said that it parks.
    pub(crate) fn park_unless(
        &mut self,
        until_ns: Option<u64>,
        has_work: impl FnOnce() -> bool,
    ) -> io::Result<()> {
        let tap = self.look_at_tap().unwrap_or(-1);
        let StackWorker { path, doorbell, kernel, requests, next, tcp_ports, .. } = self;
        kernel.iter().for_each(|kernel| kernel.bell.park());
        let parked = doorbell.park(|| {
            // The worker may park again before it looks at the request that ended the last park.
            *next = next.take().or_else(|| requests.try_recv().ok());
            let mut has_news = |port| tcp_port(path, port).is_some_and(|(port, _)| port.has_news());
            next.is_some() || tcp_ports.iter().any(|&port| has_news(port)) || has_work()
        });
        let slept = match parked {
            None => Ok(()),
            Some(parked) => {
                let timeout_ns = until_ns.map(|until_ns| until_ns.saturating_sub(now_ns()));
                // poll(2) does not wait for descriptors below 0.
                let [bell, watch] = kernel.as_ref().map_or([-1; 2], |KernelSide { bell, watch, .. }| {
                    [bell.fd(), watch.as_ref().map_or(-1, Watch::fd)]
                });
                let parked = parked.as_fd().as_raw_fd();
                path.park(|kicked| {
                    let kicked = kicked.map_or(-1, |kicked| kicked.as_raw_fd());
                    let mut fds = [parked, kicked, bell, watch, tap].map(sys::poll_in);
                    sys::poll(&mut fds, timeout_ns).map(drop)
                })
                .map(drop)
            }
        };
        kernel.iter().for_each(|kernel| {
            kernel.bell.unpark();
        });
        // The interface may have woken the worker.
        self.look_ns = 0;
        slept
    }
}

impl Drop for StackWorker {
    fn drop(&mut self) {
        if !self.has_stopped {
            self.path.abandon();
        }
        let landings = self.path.take_landings();
        self.left_behind.lock().unwrap_or_else(PoisonError::into_inner).extend(landings);
    }
}
