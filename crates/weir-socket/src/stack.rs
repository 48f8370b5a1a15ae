//! A host in this process: addresses on an interface, or on a link in memory, with sockets behind them.
//!
//! ```text
//! UdpSocket --send buffer--> [host: routes, neighbours, ICMP] --> egress queue --> interface
//!           <--receive buffer-- egress queue of the socket <--       |  <---------- its receive queues
//! TcpStream <--> connection <--> port of all TCP ----------> the same
//! ```
//!
//! A stack is a plan of the path ([`weir_path::plan`]): a router that is a host, a port for the interface, one for each socket that there may be, and
//! one for all TCP. A worker of the stack's own drives it, on a thread of this process, or the application does (`driver.rs`).
//!
//! Each of several workers has such a plan with receive queues of its own, and shares no part of it: the stack's addresses are those of a host at
//! each worker. A socket is bound at every worker, and has a lane to each ([`crate::half`]): so a flow is found by whatever queue it comes. The
//! socket sends by its home, the worker of its bucket, or any worker if it has no bucket. A listener is every worker's, a connection one worker's.
//!
//! Rule: a full buffer holds its sender. Sent packets wait in the socket's send buffer while the way out has no room. Packets for a socket that does
//! not read wait in its receive buffer, in the egress queue before it, and then in the receive queue that they came by, and so with their sender, if
//! that is a local sender on a veth.
//!
//! A stack on an interface needs root. The guardian, a process `weir guardian` beside this one, puts back what the stack changed there, also after
//! `kill -9`; `weir mend` does so after both were killed.
//!
//! The interface stays the kernel's as well: packets for ports that are not bound on the stack go on to it (`shared.rs`; the crate's documentation
//! lists the differences from two programs on the kernel's sockets).
//!
//! Owner: the worker has the path; the handles have the parts that do not change, and the list of bound ports. Limits: one interface; a veth whose
//! other end is on this machine, and whose MTU stays as it was when the stack was opened; no fragments, no groups; sockets to more than 64 neighbours
//! that are being asked for at once lose packets as `neighbour-full` (RFC 6583). A process that is stopped (SIGSTOP) is killed by its guardian.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use weir_core::net::route::RouteTable;
use weir_core::net::router::RouterSettings;
use weir_core::net::sockets::Binding;
use weir_core::shaper::tbf::TbfConfig;
use weir_core::steer::rss::Rss;
use weir_port::bpf::bound::Transport;
use weir_ring::doorbell::Ringer;
use weir_ring::memory::FrameMemory;
use weir_run::clock::now_ns;
use weir_run::idle::wake_cost_ns;

use crate::books::StackBooks;
use crate::builder::{StackBuilder, WorkerParts, invalid};
use crate::control::Control;
use crate::datagram::payload_max;
use crate::driver::may_wait;
use crate::ending::Ending;
use crate::half::{BufferSizes, Caller, Halves, halves};
use crate::host::HostSide;
use crate::in_use::refused;
use crate::layout::{Layout, WorkerPortion};
use crate::options::SocketOptions;
use crate::shared::{PortHold, SharedPorts};
use crate::socket::os;
use crate::tcp::state::News;
use crate::worker::{Asking, Request, StackWorker};

/// The longest time that a new socket waits for the place of one that is being closed, in nanoseconds, and the pause between two looks.
const CLOSE_NS_MAX: u64 = 100_000_000;
const CLOSE_LOOK: Duration = Duration::from_micros(50);
/// The state of a place that no socket has.
const FREE: u8 = 0;
/// The state of a place that a socket has. A lower value is the number of workers that have not let go of a closed socket yet: its sent packets are
/// not all polled, or some for it wait.
const TAKEN: u8 = u8::MAX;

/// A stack: hold a handle while there are sockets to be bound. The stack ends with the last of its handles and sockets.
#[derive(Clone)]
pub struct Stack {
    inner: Arc<Inner>,
    host: usize,
}

/// The place of a bound socket, which is freed when this is dropped.
pub(crate) struct Bound {
    pub(crate) stack: Stack,
    pub(crate) port: u16,
    slot: usize,
    /// The hold of the port beside the kernel, which has the port again once the place is free.
    _hold: Option<PortHold>,
}

struct Inner {
    memory: Arc<FrameMemory>,
    rss: Rss,
    hosts: Vec<HostSide>,
    workers: Vec<WorkerSide>,
    /// The places of each host's sockets: [`FREE`], [`TAKEN`] or being closed.
    places: Vec<Vec<Arc<AtomicU8>>>,
    buffer_frames_max: u32,
    wake_cost_ns: u64,
    /// The ports that are shared with the kernel, on an interface of the kernel's.
    ports: Option<Arc<SharedPorts>>,
    control: Mutex<Control>,
    ending: Ending,
}

/// A worker, as handles see it.
struct WorkerSide {
    asking: Asking,
    /// The lists of connections with news from their applications, one for each host.
    news: Vec<Arc<News>>,
}

impl Stack {
    /// The settings of a stack that is to be opened.
    pub fn builder() -> StackBuilder {
        StackBuilder::default()
    }

    pub(crate) fn start(
        builder: &StackBuilder,
        interfaces: &[(&str, Option<TbfConfig>)],
        hosts: Vec<RouterSettings>,
        parts: Vec<WorkerParts>,
    ) -> io::Result<Stack> {
        let memory = Arc::clone(parts[0].frames.memory());
        let host = hosts[0].host.expect("a host has sockets");
        let sockets = usize::from(host.sockets);
        let mut sides = Vec::new();
        for (number, settings) in hosts.iter().enumerate() {
            let first_port = interfaces.len() + number * usize::from(host.ports());
            sides.push(HostSide {
                addresses: settings.all_addresses(0),
                table: RouteTable::compile(&settings.interfaces, &settings.routes).map_err(invalid)?,
                mtu_bytes: settings.interfaces[0].mtu_bytes,
                first_port,
                tcp_port: host.has_tcp.then_some(first_port + sockets),
            });
        }
        let rss = host.rss(parts.len());
        let buckets = rss.buckets();
        let wake_cost_ns = wake_cost_ns()?;
        let ports = parts[0].kernel.as_ref().map(|kernel| Arc::clone(&kernel.ports));
        let (mut workers, mut threads) = (Vec::new(), Vec::new());
        let (mut portions, mut around) = (Vec::new(), Vec::new());
        for WorkerParts { interfaces, frames, doorbell, kernel } in parts {
            let tcp = sides.iter().map(|side| builder.tcp(side.mtu_bytes));
            let tcp = tcp.map(|settings| (settings, Arc::new(News::new(settings.places()))));
            let tcp: Vec<_> = tcp.collect();
            let (requests, inbox) = channel();
            let asking = Asking { requests, ringer: doorbell.ringer() };
            let news = tcp.iter().map(|(_, news)| Arc::clone(news)).collect();
            workers.push(WorkerSide { asking, news });
            around.push((doorbell, kernel, inbox));
            portions.push(WorkerPortion { interfaces, frames, tcp });
        }
        let layout = Layout { hosts: &hosts, interfaces };
        let paths = layout.workers(portions, ports.as_ref(), now_ns())?;
        let left_behind = Arc::default();
        for (number, (path, (doorbell, kernel, requests))) in paths.into_iter().zip(around).enumerate() {
            let others = workers.iter().enumerate().filter(|(other, _)| *other != number);
            let others = others.map(|(_, side)| side.asking.clone()).collect();
            let left_behind = Arc::clone(&left_behind);
            let worker = StackWorker::new(path, doorbell, kernel, requests, others, left_behind);
            let worker = Box::new(worker);
            let core = builder.cores.get(number).copied();
            let thread = std::thread::Builder::new().name("weir-socket".into());
            match thread.spawn(move || worker.run(core, wake_cost_ns)) {
                Ok(thread) => threads.push(thread),
                Err(error) => {
                    // Those that run already end: there is no stack to stop them by.
                    workers.iter().for_each(|side| side.asking.tell(Request::Stop));
                    let _ = Ending::new(threads).wait(|| {});
                    return Err(error);
                }
            }
        }
        let control = Control::new(hosts.len(), buckets);
        let place = || Arc::new(AtomicU8::new(FREE));
        let places = hosts.iter().map(|_| (0..sockets).map(|_| place()).collect()).collect();
        let inner = Inner {
            memory,
            rss,
            hosts: sides,
            workers,
            places,
            buffer_frames_max: builder.buffer_frames_max,
            wake_cost_ns,
            ports,
            control: Mutex::new(control),
            ending: Ending::new(threads),
        };
        Ok(Stack { inner: Arc::new(inner), host: 0 })
    }

    /// The second of two stacks that have the same workers.
    pub(crate) fn other(&self) -> Stack {
        Stack { inner: Arc::clone(&self.inner), host: 1 }
    }

    /// The number of buckets that flows fall into.
    pub fn buckets(&self) -> usize {
        self.inner.rss.buckets()
    }

    /// The bucket that a flow between two addresses falls into, with source and destination as its datagrams come in here.
    ///
    /// # Panics
    /// If the addresses are of different families.
    pub fn bucket_of(&self, source: SocketAddr, destination: SocketAddr) -> usize {
        crate::datagram::bucket_of(&self.inner.rss, source, destination)
    }

    /// The hash by which flows fall into buckets, and the table by which buckets fall to workers.
    pub fn rss(&self) -> &Rss {
        &self.inner.rss
    }

    /// The books of the stack, of all its workers together; for a pair, the books of both.
    ///
    /// # Errors
    /// `BrokenPipe` if a worker has ended, `Deadlock` if this thread drives a worker.
    pub fn books(&self) -> io::Result<StackBooks> {
        let mut all = StackBooks { balances: true, ..StackBooks::default() };
        may_wait()?;
        for worker in &self.inner.workers {
            let (reply, answer) = channel();
            worker.ask(Request::Books(reply))?;
            let books = answer.recv().map_err(|_| os(libc::EPIPE))?;
            all.dropped.merge(&books.dropped);
            all.held.merge(books.held);
            all.balances &= books.balances;
            if let Some(traffic) = books.traffic {
                all.traffic.get_or_insert_default().merge(&traffic);
            }
        }
        Ok(all)
    }

    /// Ends the stack. Packets that sockets have sent are let out, for a second at the most. Then calls of its sockets, and of those of the other
    /// stack of a pair, return `BrokenPipe`, and an interface is put back as it was.
    ///
    /// # Errors
    /// The error that ended a worker before, or that kept something from being put back; `Deadlock` if this thread drives a worker.
    pub fn stop(&self) -> io::Result<()> {
        may_wait()?;
        self.inner.stop()
    }

    /// The ringer that wakes a worker, or the thread that drives it ([`Stack::drive`]), to look at its other inputs.
    ///
    /// # Panics
    /// If there is no such worker.
    pub fn ringer(&self, worker: usize) -> Ringer {
        self.inner.workers[worker].asking.ringer.clone()
    }

    /// The number of workers.
    pub fn workers(&self) -> usize {
        self.inner.workers.len()
    }

    /// The port of all TCP.
    pub(crate) fn tcp_port(&self) -> io::Result<usize> {
        let none =
            || io::Error::new(io::ErrorKind::Unsupported, "this stack was built for no TCP connections");
        self.inner.hosts[self.host].tcp_port.ok_or_else(none)
    }

    pub(crate) fn host(&self) -> usize {
        self.host
    }

    pub(crate) fn wake_cost_ns(&self) -> u64 {
        self.inner.wake_cost_ns
    }

    /// The ports that are shared with the kernel, if the stack is on an interface of the kernel's.
    pub(crate) fn ports(&self) -> Option<&Arc<SharedPorts>> {
        self.inner.ports.as_ref()
    }

    pub(crate) fn ask(&self, worker: usize, request: Request) -> io::Result<()> {
        self.inner.workers[worker].ask(request)
    }

    pub(crate) fn caller(&self, worker: usize, connection: u32) -> Caller {
        self.inner.workers[worker].caller(Some((self.host, connection)))
    }

    pub(crate) fn check_own_address(&self, address: IpAddr) -> io::Result<()> {
        self.inner.hosts[self.host].check_own(address)
    }

    pub(crate) fn memory(&self) -> &FrameMemory {
        &self.inner.memory
    }

    /// The longest payload of a datagram to such an address, in bytes: a longer one is refused (`EMSGSIZE`).
    ///
    /// A socket refuses so as well what is longer than a router has told of the way to its peer, but no packet of up to 552 bytes over IPv4 or 1,280
    /// over IPv6: anybody could forge the message. If a router has lost one, the next call of a connected socket tells so, whatever it is for
    /// (`EMSGSIZE`).
    pub fn datagram_bytes_max(&self, to: IpAddr) -> usize {
        payload_max(to, self.mtu_bytes())
    }

    /// The options of a socket for which nothing is said: the usual ones, with buffers that this stack was built for.
    pub fn options(&self) -> SocketOptions {
        let SocketOptions { send_frames, receive_packets, full, bucket } = SocketOptions::default();
        let possible = |frames: u32| frames.min(self.inner.buffer_frames_max);
        SocketOptions {
            send_frames: possible(send_frames),
            receive_packets: possible(receive_packets),
            full,
            bucket,
        }
    }

    pub(crate) fn mtu_bytes(&self) -> u16 {
        self.inner.hosts[self.host].mtu_bytes
    }

    /// The source address for packets to another address.
    pub(crate) fn source_for(&self, to: IpAddr) -> io::Result<IpAddr> {
        self.inner.hosts[self.host].source_for(to)
    }

    pub(crate) fn bind(
        &self,
        address: SocketAddr,
        options: SocketOptions,
        ringer: Option<&Ringer>,
    ) -> io::Result<(Bound, Halves)> {
        let Inner { hosts, workers, places, buffer_frames_max, rss, .. } = &*self.inner;
        let SocketOptions { send_frames, receive_packets, full, bucket } = options;
        let possible = 1..=*buffer_frames_max;
        if !possible.contains(&send_frames) || !possible.contains(&receive_packets) {
            let why = format_args!("a buffer of this stack has 1 to {buffer_frames_max} datagrams");
            return Err(invalid(why));
        }
        let host = &hosts[self.host];
        host.check_own(address.ip())?;
        may_wait()?;
        let mut control = self.lock();
        let binding = |port| Binding { address: address.ip(), port, bucket };
        let (port, hold) = match address.port() {
            0 => self.hold_any(Transport::Udp, address.ip(), || {
                control.free_port(self.host, address.ip(), bucket)
            })?,
            port => {
                control.bindings[self.host]
                    .check(binding(port))
                    .map_err(|error| refused(Transport::Udp, error))?;
                (port, self.hold(Transport::Udp, address)?)
            }
        };
        let binding = binding(port);
        let slot = self.free_place().ok_or_else(|| {
            let sockets = places[self.host].len();
            let why = format!("all {sockets} sockets of this stack are bound: build it for more");
            io::Error::new(io::ErrorKind::OutOfMemory, why)
        })?;
        let home = bucket.map_or(slot % workers.len(), |bucket| rss.worker(bucket as u32));
        let callers: Vec<Caller> = workers.iter().map(|side| side.caller(None)).collect();
        let (halves, opens) =
            halves(BufferSizes { send_frames, receive_packets, full }, &callers, home, ringer)?;
        places[self.host][slot].store(TAKEN, Ordering::Release);
        // The place and the port are freed with `bound` from here on.
        let bound = Bound { stack: self.clone(), port, slot, _hold: hold };
        control.bindings[self.host].bind(binding, slot as u16).expect("it was checked under this lock");
        // A worker may be with a thread that waits for this lock.
        drop(control);
        let mut answers = Vec::new();
        for (number, (side, mut open)) in workers.iter().zip(opens).enumerate() {
            // On an interface of the kernel's each worker has a copy of every ICMP error (`weir_port::bpf::bound`); in memory one of them has it.
            open.tells_errors = number == home || self.ports().is_none();
            let (reply, answer) = channel();
            side.ask(Request::Bind {
                stage: self.host,
                socket: slot as u16,
                port: host.first_port + slot,
                binding,
                is_home: number == home,
                open: Box::new(open),
                reply,
            })?;
            answers.push(answer);
        }
        for answer in answers {
            answer.recv().map_err(|_| os(libc::EPIPE))?.map_err(|error| refused(Transport::Udp, error))?;
        }
        Ok((bound, halves))
    }

    /// Frees the place of a socket, whose application has let go of it.
    fn close(&self, bound: &Bound) {
        let Inner { hosts, workers, places, .. } = &*self.inner;
        // In this order: a port that is free in `control` is free at the workers by the time that somebody binds it.
        let mut control = self.lock();
        let place = &places[self.host][bound.slot];
        place.store(workers.len() as u8, Ordering::Relaxed);
        for side in workers {
            // A worker that has ended needs no word.
            let _ = side.ask(Request::Close {
                stage: self.host,
                socket: bound.slot as u16,
                port: hosts[self.host].first_port + bound.slot,
                place: Arc::clone(place),
            });
        }
        control.bindings[self.host].unbind(bound.slot as u16);
    }

    /// A free place for a socket. A place whose socket is being closed is waited for, as long as closing may take where nobody is held.
    fn free_place(&self) -> Option<usize> {
        let places = &self.inner.places[self.host];
        let is = |is: fn(u8) -> bool| places.iter().position(|place| is(place.load(Ordering::Acquire)));
        let end_ns = now_ns() + CLOSE_NS_MAX;
        loop {
            let free = is(|state| state == FREE);
            let is_closing = |state| state != FREE && state != TAKEN;
            if free.is_some() || is(is_closing).is_none() || now_ns() > end_ns {
                return free;
            }
            std::thread::sleep(CLOSE_LOOK);
        }
    }

    /// The threads and the guardian that end with the stack.
    pub(crate) fn ending(&self) -> &Ending {
        &self.inner.ending
    }

    /// The channels by which workers are asked without a handle of the stack.
    pub(crate) fn asking(&self) -> Vec<Asking> {
        self.inner.workers.iter().map(|side| side.asking.clone()).collect()
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Control> {
        self.inner.lock()
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        self.stack.close(self);
    }
}

impl WorkerSide {
    /// The way by which an application calls the worker, for a connection of a host if the call is about one.
    pub(crate) fn caller(&self, connection: Option<(usize, u32)>) -> Caller {
        let news = connection.map(|(host, connection)| (Arc::clone(&self.news[host]), connection));
        Caller { worker: self.asking.ringer.clone(), news }
    }

    pub(crate) fn ask(&self, request: Request) -> io::Result<()> {
        if self.asking.ask(request) { Ok(()) } else { Err(os(libc::EPIPE)) }
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, Control> {
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stop(&self) -> io::Result<()> {
        self.ending.announce();
        for worker in &self.workers {
            // A worker that has ended needs no word.
            let _ = worker.ask(Request::Stop);
        }
        // Handles that are left have no port any more.
        self.ending.wait(|| self.ports.iter().for_each(|ports| ports.release_all()))
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // An application that wants to know how the stack ended has stopped it before.
        let _ = self.stop();
    }
}

impl std::fmt::Debug for Stack {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stack").field("addresses", &self.inner.hosts[self.host].addresses).finish()
    }
}
