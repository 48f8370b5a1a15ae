//! The interface of a stack: taken over for its workers, and looked after by them.
//!
//! ```text
//! queue q --> worker q mod workers          flow --> bucket --> its worker --> one of that one's queues (`weir_core::steer::rss::Rss::queues`)
//! ```
//!
//! Rule: each worker has receive queues, a way out, a bell and a tap of its own. The first worker alone hears of the state of the interface, owns all
//! queues again after the interface was down, and tells the others.
//!
//! Owner: the caller until the workers have it; then each worker has its part.

use std::io;
use std::net::IpAddr;
use std::os::fd::RawFd;
use std::sync::Arc;

use smoltcp::wire::IpCidr;
use weir_core::net::router::RouterSettings;
use weir_core::steer::rss::{QUEUES_MAX, WORKERS_MAX};
use weir_path::either_port::EitherPort;
use weir_path::frames::Frames;
use weir_port::bpf::bound::{BoundPorts, OwnAddress};
use weir_port::bpf::doorbell::Bell;
use weir_port::bpf::steering::BucketSteering;
use weir_port::link::Link;
use weir_port::monitor::{Monitor, State, Watch};
use weir_port::port::{Port, TRANSMIT_PACKETS_MAX};
use weir_port::undo::Keeper;
use weir_port::view::Pair;
use weir_port::worker_port::WorkerPort;
use weir_port::xsk::umem::Umem;
use weir_port::{Doing, address, napi, sys};
use weir_ring::doorbell::Doorbell;
use weir_ring::memory::FrameMemory;
use weir_ring::pool::Pool;

use crate::builder::{KERNEL_FRAME_BYTES, StackBuilder, WorkerParts, invalid};
use crate::shared::SharedPorts;
use crate::stack::Stack;
use crate::worker::{Request, StackWorker};

/// An interface that was taken over.
pub(crate) struct Opened {
    pub(crate) parts: Vec<WorkerParts>,
    pub(crate) link: Link,
    pub(crate) pair: Pair,
    /// The MTU of the end whose MTU is smaller, in bytes.
    pub(crate) mtu_bytes: u16,
}

/// A worker's part of the kernel's resources beside the port.
pub(crate) struct KernelSide {
    pub(crate) bell: Bell,
    /// The monitor of the interface's state; the first worker has it.
    pub(crate) watch: Option<Watch>,
    pub(crate) ports: Arc<SharedPorts>,
    // Last field: the memory goes when the sockets have gone.
    pub(crate) _umem: Arc<Umem>,
}

impl Stack {
    /// The most workers that a stack on this interface may have ([`StackBuilder::workers`]): as many as it has receive queues and there are cores.
    ///
    /// # Errors
    /// If there is no such interface.
    pub fn workers_max(interface: &str) -> io::Result<usize> {
        let link = Link::by_name(interface).map_err(io::Error::other)?;
        Ok((link.rx_queues as usize).min(sys::allowed_cores().len()).clamp(1, WORKERS_MAX))
    }
}

impl StackBuilder {
    /// Takes an interface over, for as many workers as the stack has.
    pub(crate) fn take_over(
        &self,
        interface: &str,
        host: &RouterSettings,
        keeper: &mut dyn Keeper,
    ) -> weir_port::Result<Opened> {
        let (link, workers) = (Link::by_name(interface)?, self.workers);
        let memory = self
            .frames(workers, 1, frames_beside(&link, workers))
            .and_then(|frames| FrameMemory::new(frames, KERNEL_FRAME_BYTES).map_err(io::Error::other))
            .doing(|| "taking packet memory".into())?;
        let mut frames: Vec<Frames> =
            Pool::for_workers(memory, workers).into_iter().map(Frames::new).collect();
        let memory = Arc::clone(frames[0].memory());
        let umem = Arc::new(Umem::new(Arc::clone(&memory)));
        let bells = (0..workers)
            .map(|_| Bell::new())
            .collect::<io::Result<Vec<_>>>()
            .doing(|| "making the doorbell (BPF ring buffer, Linux 5.8 or newer)".into())?;
        let rung: Vec<&Bell> = bells.iter().collect();
        let bound = bound_ports(host, link.rx_queues, workers)?;
        // It may go down and up before the port is open.
        let monitor = Monitor::new()?;
        let mut port = Port::open_shared(interface, napi::BUDGET, &umem, &mut frames, &rung, &bound, keeper)?;
        let others = match workers {
            1 => {
                port.spread_transmission(&frames[0]);
                Vec::new()
            }
            _ => port.deal(workers, &memory)?,
        };
        let (pair, mtu_bytes) = (port.pair().clone(), link.mtu_bytes.min(port.sender().mtu_bytes) as u16);
        let mut watch = Some(Watch::new(monitor, pair.port.ifindex)?);
        let ports = Arc::new(SharedPorts::new(bound, link.ifindex)?);
        let first = EitherPort::Kernel(Box::new(port));
        let others = others.into_iter().map(|port| EitherPort::Memory(Box::new(port)));
        let interfaces = [first].into_iter().chain(others);
        let parts = interfaces.zip(frames).zip(bells).map(|((port, frames), bell)| {
            let doorbell = Doorbell::with_full_fences().doing(|| "making the workers' doorbells".into())?;
            let interface = EitherPort::Kernel(Box::new(EitherPort::Kernel(Box::new(port))));
            let (watch, ports, umem) = (watch.take(), Arc::clone(&ports), Arc::clone(&umem));
            let kernel = Some(KernelSide { bell, watch, ports, _umem: umem });
            Ok(WorkerParts { interfaces: vec![interface], frames, doorbell, kernel })
        });
        Ok(Opened { parts: parts.collect::<weir_port::Result<_>>()?, link, pair, mtu_bytes })
    }
}

/// The frames that the rings of an interface hold, with so many workers.
pub(crate) fn frames_beside(link: &Link, workers: usize) -> u32 {
    2 * link.rx_queues * napi::BUDGET + workers as u32 * TRANSMIT_PACKETS_MAX
}

/// Checks that an interface has a receive queue for each of so many workers.
pub(crate) fn check_queues(interface: &str, link: &Link, workers: usize) -> io::Result<()> {
    let queues = link.rx_queues as usize;
    if workers > 1 && queues < workers {
        return Err(invalid(format_args!(
            "{interface} has {queues} receive queues, and {workers} workers need one each: give it more by `ethtool -L`, and its other \
             end as many, or give fewer workers"
        )));
    }
    if workers > 1 && queues > QUEUES_MAX {
        return Err(invalid(format_args!(
            "{interface} has {queues} receive queues, of which several workers can have {QUEUES_MAX}: give it fewer by `ethtool -L`"
        )));
    }
    Ok(())
}

/// The ports of a host on an interface of so many queues, for so many workers, none bound yet. They know which of the host's addresses the kernel has
/// too.
fn bound_ports(host: &RouterSettings, queues: u32, workers: usize) -> weir_port::Result<Arc<BoundPorts>> {
    let kernels = address::addresses()?;
    let own = |address: &IpCidr| {
        let address = IpAddr::from(address.address());
        OwnAddress { address, is_shared: kernels.iter().any(|kernels| kernels.address == address) }
    };
    let addresses = host.all_addresses(0).iter().map(own).collect();
    let rss = host.host.map(|host| host.rss(workers)).filter(|_| workers > 1);
    let steering = rss.map(|rss| BucketSteering::new(&rss, queues as usize)).transpose();
    steering
        .and_then(|steering| BoundPorts::new(addresses, queues as usize, steering))
        .map(Arc::new)
        .doing(|| "sharing memory with the program that tells whose a packet is".into())
}

impl StackWorker {
    /// The interface, if it is the kernel's and this is the first worker.
    fn kernel_port(&mut self) -> Option<&mut Port> {
        match &mut self.path.end_mut(self.first_port).0.port {
            EitherPort::Kernel(port) => port.kernel_mut()?.kernel_mut(),
            EitherPort::Memory(_) => None,
        }
    }

    /// This worker's part of the interface, if it is the kernel's and this is not the first worker.
    fn worker_port(&mut self) -> Option<&mut WorkerPort> {
        match &mut self.path.end_mut(self.first_port).0.port {
            EitherPort::Kernel(port) => match port.kernel_mut()? {
                EitherPort::Memory(port) => Some(port),
                EitherPort::Kernel(_) => None,
            },
            EitherPort::Memory(_) => None,
        }
    }

    /// Looks for packets that the kernel's own stack has got and this stack is to hear of too; returns the descriptor that shows the next ones.
    pub(crate) fn look_at_tap(&mut self) -> Option<RawFd> {
        let tap = match self.worker_port() {
            Some(port) => Some(port.tap_mut()),
            None => self.kernel_port()?.tap_mut(),
        }?;
        tap.look();
        Some(tap.fd())
    }

    /// Handles changes of the interface's state.
    pub(crate) fn look_at_interface(&mut self, now_ns: u64) -> weir_port::Result<()> {
        if let Some(port) = self.worker_port() {
            port.look();
            return Ok(());
        }
        while let Some(watch) = self.kernel.as_mut().and_then(|kernel| kernel.watch.as_mut())
            && let Some(state) = watch.next_change()?
        {
            match state {
                State::Gone => {
                    let doing = "receiving".to_string();
                    let source = io::Error::other("the interface has vanished");
                    return Err(weir_port::PortError::Kernel { doing, source });
                }
                State::Down => self.kernel_port().into_iter().for_each(Port::note_down),
                State::Up | State::NoCarrier => self.retake(now_ns)?,
            }
        }
        if self.kernel_port().is_some_and(|port| port.can_be_owned()) {
            self.retake(now_ns)?;
        }
        Ok(())
    }

    /// Returns whether the queues wait to be owned again, which is to be looked at now and then.
    pub(crate) fn is_disowned(&mut self) -> bool {
        self.kernel_port().is_some_and(|port| port.pair().waits_to_be_owned())
    }

    /// Owns the queues again if they have other instances than before, unless the interface changes once more meanwhile.
    fn retake(&mut self, now_ns: u64) -> weir_port::Result<()> {
        match self.own_again(now_ns) {
            Err(_) if self.kernel_port().is_some_and(|port| port.is_overtaken()) => Ok(()),
            result => result,
        }
    }

    /// Owns the queues again if they have other instances than before. Packets that were received before are taken in, since their rings are not the
    /// new instances'.
    fn own_again(&mut self, now_ns: u64) -> weir_port::Result<()> {
        let Some(port) = self.kernel_port() else { return Ok(()) };
        if !port.is_disowned()? {
            return port.note_up();
        }
        port.let_go()?;
        self.path.collect(self.first_port, now_ns);
        let (end, frames) = self.path.end_mut(self.first_port);
        let result = match &mut end.port {
            EitherPort::Kernel(port) => {
                let port = port.kernel_mut().and_then(EitherPort::kernel_mut);
                port.map_or(Ok(()), |port| port.retake(frames))
            }
            EitherPort::Memory(_) => Ok(()),
        };
        self.path.tune();
        // The other workers' queues have other pollers.
        self.others.iter().for_each(|other| other.tell(Request::LookAtInterface));
        result
    }
}
