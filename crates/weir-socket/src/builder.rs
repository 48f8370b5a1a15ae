//! The settings of a stack (addresses, buffers, limits), and the opening of a stack with them.
//!
//! Rule: packet memory is taken for all sockets that there may be, with their buffers full (`memory.rs`). Settings that cannot be meant are refused
//! before anything is changed.
//!
//! Owner: the caller.

use std::fmt::Display;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use smoltcp::time::Duration;
use smoltcp::wire::{EthernetAddress, IpCidr};
use weir_core::net::route::{Interface, Route, RouteTable, network};
use weir_core::net::router::{RouterSettings, StaticNeighbour};
use weir_core::net::sockets::HostSettings;
use weir_core::rate::Rate;
use weir_core::shaper::tbf::{Limit, TbfConfig};
use weir_core::shaper::token_bucket::BURST_BYTES_MAX;
use weir_core::steer::key::Key;
use weir_core::steer::rss::WORKERS_MAX;
use weir_path::either_port::EitherPort;
use weir_path::frames::Frames;
use weir_path::port::POLL_PACKETS_MAX;
use weir_path::traffic::port::MemoryPort;
use weir_port::bpf::bound::ADDRESSES_MAX;
use weir_port::link::Link;
use weir_port::sys;
use weir_port::undo::Keeper;
use weir_ring::doorbell::Doorbell;
use weir_ring::memory::FrameMemory;
use weir_ring::pool::Pool;
use weir_run::guardian::Guardian;
use weir_run::nearest::and;
use weir_run::own_address::{check_host_in, check_station, parse_address};
use weir_run::sum::Sight;
use weir_run::watcher::Glance;

use crate::interface::{KernelSide, Opened, check_queues, frames_beside};
use crate::responder::{Answering, StackResponder, listen};
use crate::stack::Stack;
use crate::tcp::settings::TcpSettings;
use crate::worker::StackPort;

/// Packets that wait to leave by an interface before sockets are held, packets on the device's ring included.
pub(crate) const EGRESS_PACKETS_MAX: u64 = 512;
/// Packets that wait before the receive buffer of a socket, beyond its size, before their senders are held.
const BEFORE_SOCKET: u64 = POLL_PACKETS_MAX as u64;
/// The size of frames for an interface of the kernel's, which XDP asks for; and for packets in memory.
pub(crate) const KERNEL_FRAME_BYTES: u32 = 4096;
pub(crate) const MEMORY_FRAME_BYTES: u32 = 2112;
pub(crate) const MEMORY_MTU_BYTES: u16 = 1500;
/// The burst of a limit, in time at its rate: longer than a busy machine lets a worker wait for a processor, as it shares those with the
/// application's threads. What passes by in a longer wait is lost to the rate.
const BURST_NS: u64 = 8_000_000;

/// The settings of a stack that is to be opened.
///
/// ```no_run
/// use weir_socket::{Stack, UdpSocket};
///
/// // Root, and an interface `veth-a` whose other end is another host's, here 192.0.2.1.
/// let stack = Stack::builder().address("192.0.2.2/24").gateway("192.0.2.1").open("veth-a")?;
/// let socket = UdpSocket::bind(&stack, "192.0.2.2:7")?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct StackBuilder {
    addresses: Vec<String>,
    gateways: Vec<String>,
    neighbours: Vec<(String, [u8; 6])>,
    rate: Option<Rate>,
    pub(crate) sockets: u16,
    pub(crate) buffer_frames_max: u32,
    pub(crate) connections: u16,
    pub(crate) tcp_buffer_bytes: u32,
    pub(crate) tcp_keepalive_s: Option<u16>,
    pub(crate) bucket_bits: u32,
    pub(crate) key: Key,
    pub(crate) workers: usize,
    pub(crate) cores: Vec<usize>,
    guardian: PathBuf,
    name: Option<String>,
}

impl Default for StackBuilder {
    fn default() -> StackBuilder {
        StackBuilder {
            addresses: Vec::new(),
            gateways: Vec::new(),
            neighbours: Vec::new(),
            rate: None,
            sockets: 16,
            buffer_frames_max: 256,
            connections: 16,
            tcp_buffer_bytes: 64 << 10,
            tcp_keepalive_s: None,
            bucket_bits: 3,
            key: Key::SYMMETRIC,
            workers: 1,
            cores: Vec::new(),
            guardian: "weir".into(),
            name: None,
        }
    }
}

impl StackBuilder {
    /// An address with the length of its network's prefix, such as `192.0.2.2/24` or `2001:db8::2/64`; one or more for each family. With one of
    /// IPv6 the stack has a link-local address too, made from its link-layer address. The kernel may have an address as well when the stack is opened:
    /// then the ports that are bound on the stack are the stack's, and all else is the kernel's.
    pub fn address(mut self, address: impl Into<String>) -> StackBuilder {
        self.addresses.push(address.into());
        self
    }

    /// The router for all destinations beyond these networks; one for each family.
    pub fn gateway(mut self, gateway: impl Into<String>) -> StackBuilder {
        self.gateways.push(gateway.into());
        self
    }

    /// A station with its link-layer address, which the stack does not ask for.
    pub fn neighbour(mut self, address: impl Into<String>, mac: [u8; 6]) -> StackBuilder {
        self.neighbours.push((address.into(), mac));
        self
    }

    /// The limit of the packets that leave by the interface: sockets that send more are held. Sockets of all workers share one limit, and have their
    /// turns there; the packets of the others leave by the first worker. After a pause 8 ms of the rate, and 20 kB at least, may leave at once.
    pub fn rate(mut self, rate: Rate) -> StackBuilder {
        self.rate = Some(rate);
        self
    }

    /// The number of sockets that there may be; 16 unless said otherwise. Packet memory is taken for all of them.
    pub fn sockets(mut self, sockets: u16) -> StackBuilder {
        self.sockets = sockets;
        self
    }

    /// The largest buffer that a socket may have, in datagrams; 256 unless said otherwise. Packet memory is taken for two such buffers of each socket;
    /// it has 16,777,216 frames at most.
    pub fn buffer_frames_max(mut self, frames: u32) -> StackBuilder {
        self.buffer_frames_max = frames;
        self
    }

    /// The number of TCP connections that there may be at once, for each worker; 16 unless said otherwise, and no TCP at all if 0. Connections that
    /// wait to be accepted count, and connections that were closed here until the other side has closed them too.
    ///
    /// Each connection takes two descriptors of this process, unless [`TcpListener::accept_for`] accepted it, two buffers
    /// ([`StackBuilder::tcp_buffer_bytes`]) once it is used, and 16 frames of packet memory from the start. There are 4096 more places for
    /// connections that somebody has asked for and not confirmed: a flood of SYNs costs no more than these places, for each worker. A place costs about
    /// 18 kB from its first use on, 74 MB for all of them: most of its buffers is address space, until a connection there has used it.
    ///
    /// [`TcpListener::accept_for`]: crate::TcpListener::accept_for
    pub fn connections(mut self, connections: u16) -> StackBuilder {
        self.connections = connections;
        self
    }

    /// The bytes that a TCP connection may have sent and not acknowledged, and as many that it may have received and not read; 64 KiB unless said
    /// otherwise, from 4 KiB to 16 MiB.
    pub fn tcp_buffer_bytes(mut self, bytes: u32) -> StackBuilder {
        self.tcp_buffer_bytes = bytes;
        self
    }

    /// The time without a word from a TCP peer after which it is asked whether it is still there, in seconds, from 1 to 32,767; nobody is asked unless
    /// this is called (RFC 9293 section 3.8.4). A peer is asked again as often, and given up after four times this time: its connection then fails
    /// with `TimedOut`, so a server learns of a client that vanished. All connections of the stack are kept alive, or none.
    pub fn tcp_keepalive_s(mut self, seconds: u16) -> StackBuilder {
        self.tcp_keepalive_s = Some(seconds);
        self
    }

    /// The number of buckets of flows, as `2^bits`; 8 buckets unless said otherwise.
    pub fn bucket_bits(mut self, bits: u32) -> StackBuilder {
        self.bucket_bits = bits;
        self
    }

    /// The key of the hash by which flows fall into buckets; [`Key::SYMMETRIC`] unless said otherwise, with which an answer has the hash of its
    /// question.
    pub fn key(mut self, key: Key) -> StackBuilder {
        self.key = key;
        self
    }

    /// The number of workers, each with receive queues and a way out of its own, and the buckets that fall to it; one unless said otherwise.
    ///
    /// The interface has at least as many receive queues. Its queues are dealt to the workers in turn. The other end of the veth puts each flow into
    /// a queue of the worker of its bucket, as a NIC does that is told the same key. So a thread for each bucket, each with a socket of its own
    /// ([`UdpSocket::bind_bucket`]), shares nothing. A socket without a bucket receives the datagrams for its port from all workers, as a kernel
    /// socket does from all queues, and sends by one worker; its receive buffer has its full size for each worker.
    ///
    /// ```
    /// use std::io::{Read, Write};
    /// use weir_socket::{Stack, TcpListener, TcpStream};
    ///
    /// # if std::thread::available_parallelism()?.get() < 2 { return Ok(()); }
    /// let left = Stack::builder().address("192.0.2.1/24").workers(2);
    /// let (left, right) = Stack::pair_of(left, Stack::builder().address("192.0.2.2/24"))?;
    /// let listener = TcpListener::bind(&right, "192.0.2.2:7")?;
    /// for number in 0..8 {
    ///     // Each is some worker's, by its flow.
    ///     TcpStream::connect(&left, "192.0.2.2:7")?.write_all(&[number])?;
    ///     let mut came = Vec::new();
    ///     listener.accept()?.0.read_to_end(&mut came)?;
    ///     assert_eq!(came, [number]);
    /// }
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// [`UdpSocket::bind_bucket`]: crate::UdpSocket::bind_bucket
    pub fn workers(mut self, workers: usize) -> StackBuilder {
        self.workers = workers;
        self
    }

    /// The cores that the workers stay on, one each; workers may run on any core unless said otherwise.
    pub fn cores(mut self, cores: impl IntoIterator<Item = usize>) -> StackBuilder {
        self.cores = cores.into_iter().collect();
        self
    }

    /// The path of the program `weir`, whose guardian puts an interface back when this process is killed; `PATH` is searched for it unless said
    /// otherwise.
    pub fn guardian(mut self, program: impl AsRef<Path>) -> StackBuilder {
        self.guardian = program.as_ref().into();
        self
    }

    /// The name of the stack in `weir stat`; the name of its interface unless said otherwise, followed by a number if that name is taken.
    pub fn name(mut self, name: impl Into<String>) -> StackBuilder {
        self.name = Some(name.into());
        self
    }

    /// Opens a stack on an interface of this thread's network namespace: a veth whose other end is on this machine. Packets that are not for the
    /// stack go on to the kernel's own stack.
    ///
    /// # Errors
    /// `InvalidInput` for settings that cannot be meant; otherwise the kernel's refusal, in a sentence.
    pub fn open(&self, interface: &str) -> io::Result<Stack> {
        let guardian = Guardian::start(&self.guardian, false, |_| {});
        let mut guardian = guardian.map_err(|error| {
            let program = self.guardian.display();
            io::Error::other(format!(
                "{error}: `{program}` is to be the program weir; install it, or say where it is"
            ))
        })?;
        match self.open_kept(interface, &mut guardian) {
            Ok(stack) => {
                stack.ending().keep(guardian);
                Ok(stack)
            }
            Err(error) => {
                // The guardian puts back what was changed; the first error says it all.
                guardian.finish();
                Err(error)
            }
        }
    }

    /// Opens a stack as [`StackBuilder::open`] does; `keeper` puts back what was changed, once the stack has ended.
    ///
    /// # Errors
    /// As [`StackBuilder::open`].
    pub fn open_kept(&self, interface: &str, keeper: &mut dyn Keeper) -> io::Result<Stack> {
        // Settings that cannot be meant are refused before anything is changed.
        let link = Link::by_name(interface).map_err(io::Error::other)?;
        let workers = self.check_workers()?;
        check_queues(interface, &link, workers)?;
        let host = self.host(EthernetAddress(link.address), MEMORY_MTU_BYTES, workers)?;
        self.frames(workers, 1, frames_beside(&link, workers))?;
        let control = listen(self.name.as_deref(), interface, keeper)?;
        let Opened { parts, link, pair, mtu_bytes } =
            self.take_over(interface, &host, keeper).map_err(io::Error::other)?;
        let sight = Sight::Unwatched(Arc::new(Glance::new(&pair)));
        let host = self.host(EthernetAddress(link.address), mtu_bytes, workers)?;
        // Of an address that the stack alone has the kernel tells nobody.
        let host = RouterSettings { announces: true, ..host };
        let stack = Stack::start(self, &[(interface, self.limits())], vec![host], parts)?;
        let responder = StackResponder::new(&stack, control.name(), &[interface], sight);
        stack.ending().answer(Answering::start(control, responder)?);
        Ok(stack)
    }

    /// Opens a stack on interfaces in memory, one for each of its workers. Packets that a generator makes come in there, from the first socket of the
    /// worker on. Packets that leave end there ([`MemoryPort::dealt`]). The link-layer address of the stack is `02:00:00:00:00:01`.
    ///
    /// # Errors
    /// As [`StackBuilder::open`].
    pub fn open_in_memory(&self, ports: Vec<MemoryPort>) -> io::Result<Stack> {
        let workers = self.clone().workers(ports.len()).check_workers()?;
        let host = self.host(mac_of(0), MEMORY_MTU_BYTES, workers)?;
        let frames = self.frames(workers, 1, 0)?;
        let memory = FrameMemory::new(frames, MEMORY_FRAME_BYTES).map_err(io::Error::other)?;
        let frames = Pool::for_workers(memory, workers).into_iter().map(Frames::new);
        let parts = ports.into_iter().zip(frames).map(|(port, frames)| {
            let port = EitherPort::Kernel(Box::new(port));
            let interface = EitherPort::Kernel(Box::new(EitherPort::Memory(Box::new(port))));
            let doorbell = Doorbell::with_full_fences()?;
            Ok(WorkerParts { interfaces: vec![interface], frames, doorbell, kernel: None })
        });
        let parts = parts.collect::<io::Result<_>>()?;
        Stack::start(self, &[("memory", self.limits())], vec![host], parts)
    }

    /// These settings with the buffers, sockets, buckets and workers of another stack.
    pub(crate) fn like(self, other: &StackBuilder) -> StackBuilder {
        StackBuilder {
            sockets: other.sockets,
            buffer_frames_max: other.buffer_frames_max,
            connections: other.connections,
            tcp_buffer_bytes: other.tcp_buffer_bytes,
            tcp_keepalive_s: other.tcp_keepalive_s,
            bucket_bits: other.bucket_bits,
            key: other.key,
            workers: other.workers,
            ..self
        }
    }

    /// The number of workers, if there may be so many.
    pub(crate) fn check_workers(&self) -> io::Result<usize> {
        let workers = self.workers;
        if workers == 0 || workers > sys::allowed_cores().len().min(WORKERS_MAX) {
            return Err(invalid(format_args!(
                "{workers} workers: give from 1 to as many as there are cores"
            )));
        }
        Ok(workers)
    }

    /// Checks that each of so many workers can stay on its core, if they are to.
    fn check_cores(&self, workers: usize) -> io::Result<()> {
        if self.cores.is_empty() {
            return Ok(());
        }
        if self.cores.len() < workers {
            return Err(invalid(format_args!("{workers} workers: name as many cores, or none")));
        }
        let stay = |&core: &usize| Some((core, sys::pin_thread(core).err()?));
        // A thread of its own tries: this one stays where it is, and others may go where it may not.
        let refused = std::thread::scope(|scope| {
            let stay = || self.cores[..workers].iter().find_map(stay);
            let trying = std::thread::Builder::new().spawn_scoped(scope, stay)?;
            io::Result::Ok(trying.join().expect("nothing there panics"))
        })?;
        let why = |(core, error)| format!("core {core}: {error}: name cores that this process may run on");
        refused.map_or(Ok(()), |refused| Err(invalid(why(refused))))
    }

    /// The settings of the host, checked.
    pub(crate) fn host(
        &self,
        mac: EthernetAddress,
        mtu_bytes: u16,
        workers: usize,
    ) -> io::Result<RouterSettings> {
        let address = |text: &String| -> io::Result<IpAddr> {
            text.parse().map_err(|_| invalid(format_args!("`{text}` is no address such as 192.0.2.1")))
        };
        let parse = |text: &String| parse_address(text).map_err(invalid);
        let addresses = self.addresses.iter().map(parse).collect::<io::Result<Vec<_>>>()?;
        for (count, own) in addresses.iter().enumerate() {
            if addresses[..count].iter().any(|other| other.address() == own.address()) {
                return Err(invalid(format_args!("{} is given twice: give it once", own.address())));
            }
        }
        if addresses.is_empty() {
            return Err(invalid("a stack has an address: give it one, such as 192.0.2.2/24"));
        }
        if addresses.len() >= ADDRESSES_MAX {
            return Err(invalid(format_args!(
                "{} addresses: give {} or fewer",
                addresses.len(),
                ADDRESSES_MAX - 1
            )));
        }
        if self.sockets == 0 || self.buffer_frames_max == 0 {
            return Err(invalid("a stack has sockets, and these have buffers: give 1 or more of each"));
        }
        self.tcp(mtu_bytes).check()?;
        self.check_cores(workers)?;
        let mut routes = Vec::new();
        for gateway in &self.gateways {
            let gateway = address(gateway)?;
            check_gateway(gateway, &addresses).map_err(invalid)?;
            if routes
                .iter()
                .any(|other: &Route| other.gateway.map(|other| other.is_ipv4()) == Some(gateway.is_ipv4()))
            {
                return Err(invalid(format_args!("{gateway} is a second gateway of its family: give one")));
            }
            let all = if gateway.is_ipv4() { "0.0.0.0/0" } else { "::/0" };
            let destination = all.parse().expect("a prefix");
            routes.push(Route { destination, interface: 0, gateway: Some(gateway) });
        }
        let neighbour = |(text, mac): &(String, [u8; 6])| -> io::Result<StaticNeighbour> {
            Ok(StaticNeighbour { interface: 0, address: address(text)?, mac: EthernetAddress(*mac) })
        };
        let neighbours = self.neighbours.iter().map(neighbour).collect::<io::Result<_>>()?;
        let host = HostSettings {
            sockets: self.sockets,
            has_tcp: self.connections > 0,
            held_packets_max: u64::from(self.buffer_frames_max) + BEFORE_SOCKET,
            key: self.key,
            bucket_bits: self.bucket_bits,
        };
        if !host.is_possible() {
            return Err(invalid(format_args!("2^{} buckets: give 7 bits or fewer", self.bucket_bits)));
        }
        let interfaces = vec![Interface { mac, mtu_bytes, addresses }];
        RouteTable::compile(&interfaces, &routes).map_err(invalid)?;
        Ok(RouterSettings {
            interfaces,
            routes,
            neighbours,
            neighbours_max: 1024,
            incomplete_max: 256,
            solicits_per_second: 1000,
            solicits_burst: 256,
            held_max: self.held_max() as usize,
            waiting_max: self.held_max(),
            errors_per_second: 1000,
            errors_burst: 50,
            seed: 0,
            announces: false,
            host: Some(host),
        })
    }

    /// The settings of the host's TCP.
    pub(crate) fn tcp(&self, mtu_bytes: u16) -> TcpSettings {
        TcpSettings {
            connections: self.connections,
            buffer_bytes: self.tcp_buffer_bytes,
            mtu_bytes,
            keepalive: self.tcp_keepalive_s.map(|seconds| Duration::from_secs(seconds.into())),
        }
    }

    pub(crate) fn limits(&self) -> Option<TbfConfig> {
        self.rate.map(|rate| TbfConfig {
            rate,
            burst_bytes: rate.bytes_in(BURST_NS).clamp(20 * 1024, BURST_BYTES_MAX),
            limit: Limit::TimeNs(5_000_000),
        })
    }
}

/// The parts that a worker is made of.
pub(crate) struct WorkerParts {
    /// The interfaces of its hosts, one each; if there are none, its two hosts are joined.
    pub(crate) interfaces: Vec<StackPort>,
    pub(crate) frames: Frames,
    /// The doorbell by which sockets, requests, and other workers' ends of its links wake it.
    pub(crate) doorbell: Doorbell,
    pub(crate) kernel: Option<KernelSide>,
}

/// The link-layer address of a host in memory.
pub(crate) fn mac_of(host: u8) -> EthernetAddress {
    EthernetAddress([2, 0, 0, 0, 0, host + 1])
}

/// Checks that the router at an address can be the gateway of a stack with these addresses.
fn check_gateway(gateway: IpAddr, own: &[IpCidr]) -> Result<(), String> {
    check_station(gateway)?;
    if own.iter().any(|own| IpAddr::from(own.address()) == gateway) {
        return Err(format!("{gateway} is the stack's own address: give the router's as its gateway"));
    }
    let around: Vec<&IpCidr> = own.iter().filter(|own| own.contains_addr(&gateway.into())).collect();
    let is_link_local = matches!(gateway, IpAddr::V6(gateway) if gateway.is_unicast_link_local());
    if around.is_empty() && !is_link_local {
        let networks: Vec<String> = own.iter().map(|own| network(own).to_string()).collect();
        let networks: Vec<&str> = networks.iter().map(String::as_str).collect();
        return Err(format!(
            "the gateway {gateway} is in no network of the stack, which has {}: give a gateway in one, or an address in the gateway's",
            and(&networks)
        ));
    }
    around.into_iter().try_for_each(|own| check_host_in(own, gateway))
}

pub(crate) fn invalid(why: impl Display) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, why.to_string())
}

#[cfg(test)]
#[path = "builder_tests.rs"]
mod tests;
