//! A port in preparation: all is made that takes long, so that its worker, which others wait for, has little left to do.
//!
//! ```text
//! any thread  holds, queues at both ends, sockets, programs, pollers        PreparedPort::new
//! its worker  frames on offer, queues directed to their sockets             PreparedPort::finish
//! ```
//!
//! Rule: senders are kept off from the end of the one to the end of the other, so no packet comes for which no frame is on offer.
//!
//! Owner: the thread that prepares it, until it is handed over. Dropped it leaves nothing but the changes recorded with the keeper.

use std::io;
use std::sync::Arc;

use weir_path::frames::Frames;

use crate::bpf::bound::BoundPorts;
use crate::bpf::doorbell::{Announcements, Bell, DoorbellProgram};
use crate::bpf::map::Map;
use crate::bpf::{program, redirect};
use crate::error::{Doing, Result};
use crate::ethtool;
use crate::fit::check_suitable;
use crate::hold::{Hold, Thing};
use crate::link::Link;
use crate::napi::{self, Poller};
use crate::netns::NetNs;
use crate::ownership::Ownership;
use crate::port::{Port, RINGS, offer};
use crate::queue::Queue;
use crate::release::Means;
use crate::sending;
use crate::tap::PacketTap;
use crate::transmission::Transmission;
use crate::undo::{Keeper, Undo};
use crate::view::Pair;
use crate::xsk::socket::XskSocket;
use crate::xsk::umem::Umem;

/// A port without frames on offer; see the head of the file.
pub struct PreparedPort {
    redirect: program::BpfLink,
    ownership: Ownership,
    sockets: Vec<XskSocket>,
    pollers: Vec<Poller>,
    poll_budget: u32,
    borrower: u16,
    shared: Option<(Arc<BoundPorts>, PacketTap)>,
}

impl PreparedPort {
    /// Prepares an interface of this thread's namespace, as [`Port::open`] says; its sockets borrow frames as `borrower`. Packets that are
    /// not for `ports` are left to the kernel's own stack; without `ports` none are.
    ///
    /// # Errors
    /// If it cannot be a port.
    pub fn new(
        name: &str,
        poll_budget: u32,
        umem: &Umem,
        borrower: u16,
        bells: &[&Bell],
        ports: Option<&Arc<BoundPorts>>,
        keeper: &mut dyn Keeper,
    ) -> Result<PreparedPort> {
        let netns = NetNs::current()?;
        let link = held(name, &netns, keeper)?;
        let (sender_netns, sender) = link.peer()?;
        check_suitable(&link, &sender)?;
        if !keeper.deletes(&netns, link.ifindex) {
            Means::new().check(&link)?;
        }
        let before = sending::arrange(&sender_netns, &sender, keeper)?;
        sending::hold_packets(&netns, &link, keeper)?;

        let mut sockets = Vec::new();
        for queue in 0..link.rx_queues {
            let socket = XskSocket::bind(umem, link.ifindex, queue, RINGS)
                .map_err(|error| match error.raw_os_error() {
                    Some(libc::EBUSY) => io::Error::other("another program has one there: stop it"),
                    _ => error,
                })
                .doing(|| format!("binding an AF_XDP socket to {name} queue {queue}"))?;
            sockets.push(socket);
        }
        let map = Map::xskmap(link.rx_queues).doing(|| "making the map of AF_XDP sockets".into())?;
        // Asked before a program is there: with one a veth joins segments (GRO) unasked, and those would wait here for a next poll.
        let separates = ports.is_some() && !ethtool::receive_offload(&link)?;
        let redirect = ports
            .map_or_else(|| redirect::load(&map), |ports| ports.load(&map))
            .and_then(|program| program.attach(link.ifindex))
            .doing(|| format!("attaching the XDP program to {name}"))?;
        if separates {
            ethtool::set_receive_offload(&link, false)?;
        }
        // Owning the queues must be undone, and before the qdiscs are, which hold packets for them.
        let deferral =
            napi::deferrals(link.ifindex)?.first().map(|(_, deferral)| *deferral).unwrap_or_default();
        keeper.record(&netns, Undo::Queues { ifindex: link.ifindex, before: deferral }, None)?;
        let announcements = Announcements::new(sender.tx_queues as usize)
            .doing(|| "sharing memory with the doorbell".into())?;
        let doorbell = sender_netns.run(|| {
            let load = || -> io::Result<DoorbellProgram> {
                let steering = ports.and_then(|ports| ports.steering());
                let doorbell = DoorbellProgram::load(bells, &announcements, steering)?;
                doorbell.put_first(sender.ifindex)?;
                Ok(doorbell)
            };
            load().doing(|| format!("attaching the doorbell to {} (tcx, Linux 6.6 or newer)", sender.name))
        })?;
        let fds = sockets.iter().map(|socket| Arc::clone(socket.fd())).collect();
        let (sender_netns, doorbell) = (Arc::new(sender_netns), Arc::new(doorbell));
        let is_disowned = Arc::default();
        let pair = Pair { port: link, sender_netns, sender, before, doorbell, is_disowned };
        let mut ownership = Ownership::new(pair, announcements, map, fds);
        let pollers = ownership.begin()?;
        let tap = |ports| Ok((Arc::clone(ports), PacketTap::new(ownership.link())?));
        let shared = ports.map(tap).transpose()?;
        Ok(PreparedPort { redirect, ownership, sockets, pollers, poll_budget, borrower, shared })
    }

    /// The number by which its sockets borrow frames.
    pub fn borrower(&self) -> u16 {
        self.borrower
    }

    /// The interface and its other end.
    pub fn pair(&self) -> &Pair {
        self.ownership.pair()
    }

    /// The port, with frames on offer.
    ///
    /// # Errors
    /// If there are too few frames; its sockets are closed then, and those that they borrowed can be recalled.
    pub fn finish(self, frames: &mut [Frames]) -> Result<Port> {
        let PreparedPort { redirect, ownership, sockets, pollers, poll_budget, borrower, shared } = self;
        let name = ownership.link().name.clone();
        let mut queues = Vec::new();
        let mut sockets = sockets.into_iter();
        ownership.direct(pollers, |number, poller| {
            let socket = sockets.next().expect("a socket for each queue");
            let shared = Arc::clone(ownership.announcements());
            queues.push(Queue::new(number, socket, poller, poll_budget, borrower, shared));
            offer(&mut queues, number, frames, &name)
        })?;
        let tap = shared.map(|(ports, tap)| {
            queues.iter_mut().for_each(|queue| queue.share(&ports));
            tap
        });
        let memory = frames[0].memory();
        let transmissions = vec![Transmission::new(memory, RINGS.transmit, borrower)];
        let others = Vec::new();
        Ok(Port { redirect: Some(redirect), ownership, queues, others, tap, transmissions, borrower })
    }
}

/// The interface of this name, as it is once `keeper` has the hold on it. While that is waited for, another may get the name.
fn held(name: &str, netns: &NetNs, keeper: &mut dyn Keeper) -> Result<Link> {
    let Some(owner) = keeper.owner() else { return Link::by_name(name) };
    loop {
        let seen = Link::by_name(name)?;
        let hold = Hold::alone(&Thing::receive(netns, &seen), &owner, &mut |text| keeper.say(text))?;
        // The interface may have had another owner until just now.
        let link = Link::by_name(name)?;
        if link.ifindex == seen.ifindex {
            keeper.record(netns, Undo::Hold, Some(hold))?;
            return Ok(link);
        }
    }
}
