//! One end of a wire: a veth interface whose other end sends into it, held back by not being polled.
//!
//! ```text
//!  sender -> qdisc -> [doorbell] -> veth ring --poll--> [redirect] -> receive ring -> packets
//!                                                                    transmit ring -> veth -> receiver
//! ```
//!
//! At a shared port ([`Port::open_shared`]) the kernel's own stack gets the packets that are not for bound ports, and one more receive
//! queue, the last, brings copies of those that both must hear ([`PacketTap`]).
//!
//! Owner: one worker. The frames on offer and in transmission are on loan to the kernel and named in its [`Frames`]. A port that only
//! receives can be several workers': its queues are dealt to them in turn, [`owner_of`], each with the frames and the bell of its owner,
//! and [`Port::split`] lends them out. A port by which several workers receive and send keeps the queues of the first, and [`Port::deal`]
//! gives the others theirs ([`WorkerPort`]).
//!
//! Limits: packets are transmitted by way of queue 0, unless [`Port::spread_transmission`] was called: those of a flow must not change
//! queues. A packet longer than the frame cannot arrive, because the kernel refuses XDP on a veth whose peer's MTU would allow one.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};

use weir_core::drops::Count;
use weir_path::carrier::Carrier;
use weir_path::frames::Frames;
use weir_path::packet::PathPacket;
use weir_path::port::{Completion, ReceiveQueues, Transmit, TransmitRing};
use weir_ring::memory::FrameMemory;

use crate::bpf::bound::BoundPorts;
use crate::bpf::doorbell::{Announcements, Bell};
use crate::bpf::program;
use crate::error::{Doing, PortError, Result};
use crate::link::Link;
use crate::napi::{self, Poller};
use crate::ownership::{Lost, Ownership};
use crate::prepared::PreparedPort;
use crate::qdisc::RootQdisc;
use crate::queue::Queue;
use crate::tap::PacketTap;
use crate::transmission::Transmission;
use crate::undo::Keeper;
use crate::view::Pair;
use crate::worker_port::WorkerPort;
use crate::xsk::socket::RingSizes;
use crate::xsk::umem::Umem;

/// The longest payload of an Ethernet frame that XDP on a veth allows, in bytes: a page less headroom, the kernel's own
/// `struct skb_shared_info` and the Ethernet header (kernel `drivers/net/veth.c:veth_xdp_set`).
pub const MTU_BYTES_MAX: u32 = 3506;
/// The bytes of the Ethernet header and one VLAN tag, which come on top of the MTU.
const HEADER_BYTES_MAX: u32 = 18;
/// The lengths of the rings. Twice the budget would do for both; a transmit ring holds packets that a slow receiver has not taken yet.
pub(crate) const RINGS: RingSizes = RingSizes { receive: 2 * napi::BUDGET, transmit: TRANSMIT_PACKETS_MAX };
/// The most packets that may be on the transmit ring or with the device.
pub const TRANSMIT_PACKETS_MAX: u32 = 1024;

/// The worker, of `owners`, that has a queue.
pub fn owner_of(queue: usize, owners: usize) -> usize {
    queue % owners
}

/// An interface that packets enter and leave by.
pub struct Port {
    /// The program that directs packets to the sockets; taken off when dropped. The program at the other end is the pair's.
    pub(crate) redirect: Option<program::BpfLink>,
    pub(crate) ownership: Ownership,
    /// The queues of its worker: all of them, or, where `others` have theirs, one in so many.
    pub(crate) queues: Vec<Queue>,
    /// The channels that bring the other workers their queues' new pollers, by worker from the second on.
    pub(crate) others: Vec<Sender<(usize, Poller)>>,
    /// The queue of copies, if the port is shared.
    pub(crate) tap: Option<PacketTap>,
    /// The transmitting halves of as many queues as packets are transmitted by.
    pub(crate) transmissions: Vec<Transmission>,
    /// The number under which it borrows frames.
    pub(crate) borrower: u16,
}

impl Port {
    /// Takes an interface of this thread's namespace over. Changes outside descriptors are recorded with `keeper` first; on failure
    /// everything made so far is dropped, and the keeper puts the rest back. A poll brings at most `poll_budget` packets, [`napi::BUDGET`]
    /// or fewer. The owners of its queues are as many as `frames` and `bells`.
    pub fn open(
        name: &str,
        poll_budget: u32,
        umem: &Umem,
        frames: &mut [Frames],
        bells: &[&Bell],
        keeper: &mut dyn Keeper,
    ) -> Result<Port> {
        PreparedPort::new(name, poll_budget, umem, 0, bells, None, keeper)?.finish(frames)
    }

    /// Takes over an interface that is the kernel's too: packets that are not for `ports` go on to the kernel's own stack.
    pub fn open_shared(
        name: &str,
        poll_budget: u32,
        umem: &Umem,
        frames: &mut [Frames],
        bells: &[&Bell],
        ports: &Arc<BoundPorts>,
        keeper: &mut dyn Keeper,
    ) -> Result<Port> {
        PreparedPort::new(name, poll_budget, umem, 0, bells, Some(ports), keeper)?.finish(frames)
    }

    /// The queue of copies, which the worker looks at now and then and waits for.
    pub fn tap_mut(&mut self) -> Option<&mut PacketTap> {
        self.tap.as_mut()
    }

    /// The queue of copies, if `queue` is its number.
    fn tap_at(&mut self, queue: usize) -> Option<&mut PacketTap> {
        self.tap.as_mut().filter(|_| queue == self.queues.len())
    }

    /// Notes that the interface went down: packets that the kernel loses until [`Port::retake`] or [`Port::note_up`] are no fault.
    pub fn note_down(&mut self) {
        self.ownership.note_down();
    }

    /// Notes that the interface is up, and still the one that is owned.
    pub fn note_up(&mut self) -> Result<()> {
        self.ownership.note_up()
    }

    /// Returns whether the queues have NAPI instances that are not owned, as they do after the interface came up again
    /// ([`Ownership::is_disowned`]).
    pub fn is_disowned(&self) -> Result<bool> {
        self.ownership.is_disowned()
    }

    /// Returns whether the queues wait to be owned again, and can be ([`Ownership::can_be_owned`]).
    pub fn can_be_owned(&self) -> bool {
        self.ownership.can_be_owned()
    }

    /// Returns whether the interface has changed once more while its queues were being owned again ([`Ownership::is_overtaken`]).
    pub fn is_overtaken(&self) -> bool {
        self.ownership.is_overtaken()
    }

    /// Returns whether the other end is not where it was last ([`Ownership::is_left_by_sender`]).
    pub fn is_left_by_sender(&self) -> bool {
        self.ownership.is_left_by_sender()
    }

    /// Returns whether the interface receives on another number of queues now ([`Ownership::has_other_queues`]).
    pub fn has_other_queues(&self) -> bool {
        self.ownership.has_other_queues()
    }

    /// Leaves arriving packets to the kernel's own stack, so that the queues can be primed. Packets that have arrived can be collected.
    pub fn let_go(&mut self) -> Result<()> {
        self.ownership.let_go()
    }

    /// Owns the queues again; [`Port::let_go`] and collecting what had arrived come before, so that there are frames on offer for the first
    /// packets. The caller sets the poll budget anew.
    pub fn retake(&mut self, frames: &mut Frames) -> Result<()> {
        let name = self.ownership.link().name.clone();
        let Port { queues, others, ownership, .. } = self;
        let workers = 1 + others.len();
        ownership.retake(|number, poller| match owner_of(number, workers).checked_sub(1) {
            None => {
                let own = number / workers;
                queues[own].set_poller(poller);
                offer(queues, own, std::slice::from_mut(frames), &name)
            }
            Some(other) => {
                // A worker that has gone polls no more.
                let _ = others[other].send((number, poller));
                Ok(())
            }
        })
    }

    /// Deals the queues to `workers` workers. This port keeps those of the first; the result is the ports of the others, from the second
    /// on.
    ///
    /// # Errors
    /// If the kernel gives no further sockets for copies.
    ///
    /// # Panics
    /// If there are fewer queues than workers, or the queues are dealt already.
    pub fn deal(&mut self, workers: usize, memory: &FrameMemory) -> Result<Vec<WorkerPort>> {
        assert!(self.others.is_empty() && self.queues.len() >= workers, "a queue for each worker");
        let mut dealt: Vec<Vec<Queue>> = (0..workers).map(|_| Vec::new()).collect();
        for queue in self.queues.drain(..) {
            dealt[owner_of(queue.number(), workers)].push(queue);
        }
        let mut dealt = dealt.into_iter();
        self.queues.extend(dealt.next().into_iter().flatten());
        let part = |queues| {
            let (told, pollers) = channel();
            self.others.push(told);
            Ok(WorkerPort {
                queues,
                tap: PacketTap::new(self.ownership.link())?,
                transmission: Transmission::new(memory, RINGS.transmit, self.borrower),
                announcements: Arc::clone(self.ownership.announcements()),
                link: self.ownership.link().clone(),
                sender: self.sender().name.clone(),
                packet_bytes_max: self.packet_bytes_max(),
                pollers,
            })
        };
        dealt.map(part).collect()
    }

    /// The number at the sending end of a queue of this worker.
    fn number_of(&self, queue: usize) -> usize {
        queue * (1 + self.others.len())
    }

    /// The interface and its other end.
    pub fn pair(&self) -> &Pair {
        self.ownership.pair()
    }

    /// Notes that the interface or its other end has another name or MTU now, or that the other end is in another namespace.
    pub fn follow(&mut self, pair: Pair) {
        self.ownership.follow(pair);
    }

    /// The interface.
    pub fn link(&self) -> &Link {
        self.ownership.link()
    }

    /// The other end of the interface, where packets come from.
    pub fn sender(&self) -> &Link {
        self.ownership.sender()
    }

    /// The senders' queue. Its losses stay 0 unless forwarded traffic overruns it. Reading it takes a thread and a netlink request, so a
    /// worker does not do so itself.
    pub fn sender_queue(&self) -> RootQdisc {
        self.ownership.sender_queue()
    }

    /// The number under which its sockets borrow frames.
    pub fn borrower(&self) -> u16 {
        self.borrower
    }

    /// The queues, for their owners, and the ownership that takes them again meanwhile.
    pub fn split(&mut self) -> (&mut [Queue], &mut Ownership) {
        (&mut self.queues, &mut self.ownership)
    }

    /// The announcements of the sending end.
    pub fn announcements(&self) -> &Announcements {
        self.ownership.announcements()
    }

    /// Polls by io_uring from now on, as it does by itself where packets to the kernel's own sockets are filtered.
    pub fn poll_by_ring(&mut self) -> Result<()> {
        let ids = self.ownership.ids().iter().step_by(1 + self.others.len());
        for (queue, &id) in self.queues.iter_mut().zip(ids) {
            queue.set_poller(Poller::ring(id)?);
        }
        Ok(())
    }

    /// The name of the way the queues are polled.
    pub fn poller_name(&self) -> &'static str {
        self.queues[0].poller_name()
    }

    /// Transmits by way of all queues from now on, a packet by the queue with the number of the receive queue it came in by; returns their
    /// number.
    pub fn spread_transmission(&mut self, frames: &Frames) -> usize {
        let (memory, borrower) = (frames.pool.memory(), self.borrower);
        let queues = self.queues.len().min(self.link().tx_queues as usize);
        self.transmissions.resize_with(queues.max(1), || Transmission::new(memory, RINGS.transmit, borrower));
        self.transmissions.len()
    }

    /// The packets that the kernel lost at this port.
    pub fn lost(&mut self) -> Result<Lost> {
        self.ownership.lost()
    }

    /// Starts the queues by which it transmits, if nobody polls at the other end; returns whether it did.
    pub fn release_far_end(&self) -> Result<bool> {
        self.ownership.release_far_end()
    }
}

impl ReceiveQueues for Port {
    fn queues(&self) -> usize {
        self.queues.len() + usize::from(self.tap.is_some())
    }

    fn is_announced(&self, queue: usize) -> bool {
        match &self.tap {
            Some(tap) if queue == self.queues.len() => tap.is_readable(),
            _ => self.announcements().is_pending(self.number_of(queue)),
        }
    }

    fn expect(&mut self, queue: usize) {
        match self.tap_at(queue) {
            Some(tap) => tap.set_readable(false),
            None => self.announcements().expect_none(self.number_of(queue)),
        }
    }

    fn set_announced(&mut self, queue: usize) {
        match self.tap_at(queue) {
            Some(tap) => tap.set_readable(true),
            None => self.announcements().set_pending(self.number_of(queue)),
        }
    }

    fn set_backlog(&mut self, queue: usize, has_backlog: bool) {
        // No flow is given the queue of copies.
        if queue < self.queues.len() {
            self.announcements().set_backlog(self.number_of(queue), has_backlog);
        }
    }

    fn poll(&mut self, queue: usize, frames: &mut Frames, received: &mut Vec<PathPacket>) -> usize {
        match self.tap_at(queue) {
            Some(tap) => tap.take(frames, received),
            None => {
                self.queues[queue].offer(frames);
                self.queues[queue].poll(frames, received)
            }
        }
    }

    fn collect(&mut self, queue: usize, frames: &mut Frames, received: &mut Vec<PathPacket>) -> usize {
        match self.tap_at(queue) {
            // Copies are not lost by waiting.
            Some(_) => 0,
            None => self.queues[queue].collect(frames, received),
        }
    }

    fn set_poll_budget(&mut self, packets: u32) -> u32 {
        let wanted = packets.min(napi::BUDGET);
        self.queues.iter_mut().map(|queue| queue.set_poll_budget(wanted)).max().unwrap_or(wanted)
    }
}

impl TransmitRing for Port {
    /// The longest packet: the other end takes none that is longer than its own MTU allows.
    fn packet_bytes_max(&self) -> u32 {
        self.link().mtu_bytes.min(self.sender().mtu_bytes) + HEADER_BYTES_MAX
    }

    /// The least room of all queues, so that a packet of any fits.
    fn room(&self) -> u32 {
        self.transmissions.iter().map(Transmission::room).min().unwrap_or(0)
    }

    fn put(&mut self, packets: &mut Vec<PathPacket>, _: Count, frames: &mut Frames) {
        for packet in packets.drain(..) {
            let queue = match self.transmissions.len() {
                1 => 0,
                queues => usize::from(packet.meta.queue) % queues,
            };
            self.transmissions[queue].put(packet, self.queues[queue].socket_mut(), frames);
        }
    }

    fn flush(&mut self, carrier: &mut Carrier, now_ns: u64) -> io::Result<Transmit> {
        let mut worst = Transmit::Progress;
        for (transmission, queue) in self.transmissions.iter_mut().zip(&mut self.queues) {
            let ownership = &self.ownership;
            let goes_on = || carrier.is_found(now_ns, || has_carrier(ownership.link()));
            let flushed = transmission
                .flush(queue.socket_mut(), goes_on)
                .doing(|| format!("transmitting on {}", ownership.link().name))
                .map_err(io::Error::other)?;
            match flushed {
                Transmit::Down => worst = Transmit::Down,
                outcome if worst == Transmit::Progress => worst = outcome,
                _ => {}
            }
        }
        Ok(worst)
    }

    fn has_carrier(&self) -> bool {
        has_carrier(self.link())
    }

    fn complete(&mut self, frames: &mut Frames, mut each: impl FnMut(Count, Completion)) {
        for (transmission, queue) in self.transmissions.iter_mut().zip(&mut self.queues) {
            transmission.complete(queue.socket_mut(), frames, |len_bytes, fate| {
                each(Count { packets: 1, bytes: len_bytes.into() }, fate);
            });
        }
    }

    fn in_flight(&self) -> Count {
        let mut all = Count::default();
        for (packets, bytes) in self.transmissions.iter().map(Transmission::in_flight) {
            all.merge(Count { packets: packets.into(), bytes });
        }
        all
    }
}

/// An interface that cannot be asked is gone, and its user will hear of it.
pub(crate) fn has_carrier(link: &Link) -> bool {
    Link::by_index(link.ifindex).is_ok_and(|link| link.has_carrier)
}

impl Drop for Port {
    /// Closes the sockets side by side: the kernel waits for all cores at each one, which takes long for many in a row. The
    /// programs are detached first, so that the interface carries traffic meanwhile.
    fn drop(&mut self) {
        const CLOSERS: usize = 32;
        self.redirect = None;
        self.pair().doorbell.take_off();
        self.ownership.forget_sockets();
        let mut queues = std::mem::take(&mut self.queues);
        std::thread::scope(|scope| {
            while !queues.is_empty() {
                let some = queues.split_off(queues.len().saturating_sub(queues.len().div_ceil(CLOSERS)));
                // Without a thread the sockets are closed here, as their closure is dropped.
                drop(std::thread::Builder::new().spawn_scoped(scope, move || drop(some)));
            }
        });
    }
}

/// Fills up the offer of a queue before packets are directed to it.
pub(crate) fn offer(queues: &mut [Queue], number: usize, frames: &mut [Frames], name: &str) -> Result<()> {
    let owners = frames.len();
    let queue = &mut queues[number];
    if queue.exceeds_its_share() {
        // More frames would be on offer than are left for packets that are held, and all would stand.
        return Err(PortError::Unsuitable {
            name: name.into(),
            why: format!(
                "is polled by io_uring, because its namespace lets no packet in to sockets, and that brings more packets at a time than the \
                 {} of each queue for which there is packet memory: give weir more with --memory, or let in UDP on {name}",
                queue.poll_budget_max()
            ),
        });
    }
    if queue.offer_for_any_poll(&mut frames[owner_of(number, owners)]) {
        return Ok(());
    }
    Err(PortError::Unsuitable {
        name: name.into(),
        why: format!(
            "has too many queues for the packet memory, of which queue {number} needs {} frames: give weir more with --memory",
            queue.poll_budget_max()
        ),
    })
}
