//! Ownership of the receive queues of an interface, also after it was down: the part that is the port's and not one queue's.
//!
//! ```text
//! senders kept off -> first packets -> deferral -> more, until our poll brings them -> the map directs queues to sockets -> senders
//!    ^             (they pass to the kernel's own stack)  (the softirq has ended)                                         |
//!    +---- both ends are up again, with other instances <---- the interface went down <------------------------------------+
//! ```
//!
//! Rule: a queue is directed to its socket only when nobody but its poller polls its instance, so that no packet comes for which no frame
//! is on offer.
//!
//! The end of the softirq. A deferred instance is polled by softirq only if a packet calls for it, and a packet does so only while
//! `rx_notify_masked` is unset (`__veth_xdp_flush`). Once set it stays set: `veth_poll` unsets it only if `napi_complete_done` is true,
//! which it is not for a deferred instance that has brought a packet. So it has to be set before the flood. A packet sets it if it finds
//! nobody at work (`napi_schedule_prep`); one that finds somebody marks the instance as `MISSED` instead, and the softirq polls again.
//! Either way the softirq brings that packet. A packet that it leaves in the ring for our poll to bring therefore found the word set. That
//! poll clears `MISSED` (`busy_poll_stop`), had the instance to itself, and gives it back to nobody.
//!
//! Senders are kept off meanwhile ([`Announcements::set_priming`]), because under a flood each poll would meet a packet and be `MISSED`;
//! the softirq repeats full polls for as long as there are more (`__napi_poll`); and it would not show who brought a packet. Packets that
//! they send then would be the kernel's own, and lost too. First packets go through the senders' qdisc, in turn, so none of theirs comes
//! after.
//!
//! Where first packets are filtered, their companions (`first_frames.rs`) show who brought a frame.
//!
//! Limits. Where companions are filtered too, a poller by io_uring cannot tell, nor is a sender past the qdisc kept off: there it is tried some
//! times, and frames for a whole poll are on offer, should one of the softirq's end after the queue is directed.
//!
//! Source: kernel `drivers/net/veth.c:__veth_xdp_flush`, `veth_poll`; `net/core/dev.c:__napi_poll`, `napi_complete_done`,
//! `napi_schedule_prep`.
//!
//! Owner: the thread that opened the port. The queues may be lent to several workers meanwhile ([`crate::port::Port::split`]); a queue's
//! new poller then goes to the worker that has it.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::bpf::doorbell::Announcements;
use crate::bpf::map::Map;
use crate::error::{Doing, PortError, Result};
use crate::first_frames::Companions;
use crate::link::Link;
use crate::napi::{self, Deferral, Poller, Priming};
use crate::netlink::is_code;
use crate::qdisc::RootQdisc;
use crate::release;
use crate::view::Pair;
use crate::xsk::socket::{Statistics, statistics};

/// Packets that the kernel lost between the device's ring and the receive rings of a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lost {
    /// Lost while Weir owned the queues: 0, or it is a fault.
    pub owned: u64,
    /// Lost because the interface was down, or up again and not yet Weir's.
    pub while_down: u64,
    /// Dropped by the program at the sending end: forwarded packets, because too many bytes waited without a socket that could be held.
    pub forwarded: u64,
}

/// The receive queues of an interface, their NAPI instances and the two programs; see the head of the file.
pub struct Ownership {
    pair: Pair,
    announcements: Arc<Announcements>,
    /// The map from queues to sockets.
    directions: Map,
    sockets: Vec<Arc<OwnedFd>>,
    /// The ids of the NAPI instances that are owned.
    ids: Vec<u32>,
    is_down: bool,
    lost: Lost,
}

impl Ownership {
    /// The ownership of an interface's queues before any is owned: its pair, and the maps of the two programs.
    pub(crate) fn new(
        pair: Pair,
        announcements: Announcements,
        directions: Map,
        sockets: Vec<Arc<OwnedFd>>,
    ) -> Ownership {
        Ownership {
            pair,
            announcements: Arc::new(announcements),
            directions,
            sockets,
            ids: Vec::new(),
            is_down: false,
            lost: Lost::default(),
        }
    }

    /// The interface and its other end.
    pub fn pair(&self) -> &Pair {
        &self.pair
    }

    /// Notes that the interface or its other end has another name or MTU now, or that the other end is in another namespace. The program of
    /// an interface moves along with it.
    pub fn follow(&mut self, pair: Pair) {
        self.pair = pair;
    }

    /// The interface.
    pub fn link(&self) -> &Link {
        &self.pair.port
    }

    /// The other end of the interface, where packets come from.
    pub fn sender(&self) -> &Link {
        &self.pair.sender
    }

    /// The senders' queue.
    pub fn sender_queue(&self) -> RootQdisc {
        RootQdisc::new(Arc::clone(&self.pair.sender_netns), self.pair.sender.ifindex)
    }

    /// The announcements of the sending end.
    pub fn announcements(&self) -> &Arc<Announcements> {
        &self.announcements
    }

    /// The ids of the instances that are owned, by queue.
    pub(crate) fn ids(&self) -> &[u32] {
        &self.ids
    }

    /// Lets go of the sockets, so that they close when their queues do.
    pub(crate) fn forget_sockets(&mut self) {
        self.sockets.clear();
    }

    /// Owns the present instances: makes a poller for each queue and has the kernel leave the queues to them. Senders are kept off until
    /// [`Ownership::direct`] is called, which is to be soon.
    pub(crate) fn begin(&mut self) -> Result<Vec<Poller>> {
        self.ids = napi::instances(self.pair.port.ifindex)?;
        napi::check_instances(&self.pair.port, &self.ids)?;
        self.announcements.set_priming(true);
        self.pollers().inspect_err(|_| self.announcements.set_priming(false))
    }

    /// Hands each poller to `give`, directs the queues to their sockets, and lets the senders send.
    pub(crate) fn direct(
        &self,
        pollers: Vec<Poller>,
        mut give: impl FnMut(usize, Poller) -> Result<()>,
    ) -> Result<()> {
        let mut handed = pollers.into_iter().enumerate();
        let directed = handed.try_for_each(|(queue, poller)| give(queue, poller));
        let directed = directed.and_then(|()| self.direct_queues());
        self.announcements.set_priming(false);
        directed
    }

    fn direct_queues(&self) -> Result<()> {
        for (queue, socket) in (0..).zip(&self.sockets) {
            self.directions
                .update(queue, socket.as_raw_fd() as u32)
                .doing(|| format!("directing queue {queue} of {} to its socket", self.pair.port.name))?;
        }
        Ok(())
    }

    fn pollers(&self) -> Result<Vec<Poller>> {
        // The owner before may have left its senders stopped, and first packets would not get through either.
        let Pair { sender_netns, sender, .. } = &self.pair;
        release::Means::new().start(&self.ids, sender_netns, sender.ifindex)?;
        let primings = (0..self.pair.port.rx_queues)
            .map(|_| Priming::new(&self.pair.port))
            .collect::<Result<Vec<_>>>()?;
        let mut companions = Companions::new(&self.pair.port);
        let came_by = napi::came_by(&primings, &mut companions, sender_netns, sender)?;
        let mut pollers = Vec::new();
        for ((priming, came_by), &id) in primings.into_iter().zip(came_by).zip(&self.ids) {
            napi::defer(id)?;
            pollers.push(if came_by == Some(id) { priming.into_poller()? } else { Poller::ring(id)? });
        }
        napi::oust_softirq(&pollers, &mut companions, sender_netns, sender)?;
        pollers.iter().try_for_each(Poller::refuse_packets)?;
        Ok(pollers)
    }

    /// Notes that the interface went down: packets that the kernel loses from now on until [`Ownership::note_up`] are no fault.
    pub fn note_down(&mut self) {
        self.is_down = true;
    }

    /// Returns whether the queues have instances that are not owned: others than before, as they have after the interface came up again, or
    /// those that an attempt to own them has failed at.
    pub fn is_disowned(&self) -> Result<bool> {
        Ok(self.has_other_instances()? || self.pair.waits_to_be_owned())
    }

    /// Returns whether the queues wait to be owned again, and can be. A watcher of the interface's state need not be told: the kernel tells of
    /// a carrier that goes and comes once, if it comes soon.
    pub fn can_be_owned(&self) -> bool {
        self.pair.waits_to_be_owned()
            && Link::by_index(self.pair.port.ifindex).is_ok_and(|link| self.pair.can_be_owned(&link))
    }

    fn has_other_instances(&self) -> Result<bool> {
        let ids = napi::instances(self.pair.port.ifindex)?;
        napi::check_instances(&self.pair.port, &ids)?;
        Ok(ids != self.ids)
    }

    /// Returns whether the interface has changed once more while its queues were being owned again, which explains a failure of that: it is
    /// down or gone, or up anew with other instances. Whoever watches it will be told.
    pub fn is_overtaken(&self) -> bool {
        match Link::by_index(self.pair.port.ifindex) {
            Ok(link) => !link.up || self.has_other_instances().is_ok_and(|has_others| has_others),
            Err(error) => error.is_no_interface(),
        }
    }

    /// Returns whether the other end is not where it was last, so that it could send no first packets. A watcher of the interface's own state
    /// is not told where it is; whoever is tells it by [`Ownership::follow`], and the queues can be owned again.
    pub fn is_left_by_sender(&self) -> bool {
        let sender = self.pair.sender_netns.run(|| Link::by_index(self.pair.sender.ifindex));
        sender.is_err_and(|error| error.is_no_interface())
    }

    /// Returns whether the interface receives on another number of queues than were taken over, which cannot be owned again. A watcher of
    /// its state alone is not told.
    pub fn has_other_queues(&self) -> bool {
        let link = Link::by_index(self.pair.port.ifindex);
        link.is_ok_and(|link| check_queues(&self.pair.port, &link).is_err())
    }

    /// Leaves arriving packets to the kernel's own stack, so that the queues can be primed. Packets that have arrived can be collected.
    pub fn let_go(&mut self) -> Result<()> {
        for queue in 0..self.pair.port.rx_queues {
            self.directions
                .delete(queue)
                .doing(|| format!("leaving queue {queue} of {} to the kernel", self.pair.port.name))?;
        }
        Ok(())
    }

    /// Owns the queues again; [`Ownership::let_go`] comes before. Each new poller is handed to `give`. While the other end is down, so that
    /// neither first packets nor others can come, they stay as they are: they are to be owned when it is up.
    pub fn retake(&mut self, give: impl FnMut(usize, Poller) -> Result<()>) -> Result<()> {
        // The interface may have been renamed.
        let link = Link::by_index(self.pair.port.ifindex)?;
        check_queues(&self.pair.port, &link)?;
        self.pair.port = link;
        // A look later need not see more than that it was set.
        self.pair.is_disowned.store(true, Ordering::Relaxed);
        if !self.pair.port.has_carrier {
            return Ok(());
        }
        let pollers = match self.begin() {
            Err(error) if is_code(&error, libc::ENETDOWN) => return Ok(()),
            pollers => pollers?,
        };
        self.direct(pollers, give)?;
        self.pair.is_disowned.store(false, Ordering::Relaxed);
        // Senders may have been stopped, and may have announced before this.
        (0..self.sockets.len()).for_each(|queue| self.announcements.set_pending(queue));
        self.note_up()
    }

    /// Notes that the interface is up and its queues are owned: packets that the kernel loses from now on are a fault.
    pub fn note_up(&mut self) -> Result<()> {
        self.lost()?;
        self.is_down = false;
        Ok(())
    }

    /// Starts the queues by which this interface sends, if nobody polls at its other end; returns whether it did.
    pub fn release_far_end(&self) -> Result<bool> {
        self.pair.sender_netns.run(|| {
            let other = Link::by_index(self.pair.sender.ifindex)?;
            let is_left = other.up && napi::instances(other.ifindex)?.is_empty();
            if is_left {
                let mut means = release::Means::new();
                means.release(other.ifindex, Deferral::default())?;
            }
            Ok(is_left)
        })
    }

    /// The packets that the kernel lost at this port.
    pub fn lost(&mut self) -> Result<Lost> {
        self.lost.forwarded = self.announcements.dropped();
        let kernel = self.statistics()?;
        // An empty fill ring is among `rx_dropped`, a full receive ring is not.
        let new = kernel.rx_dropped + kernel.rx_ring_full - self.lost.owned - self.lost.while_down;
        *if self.is_down { &mut self.lost.while_down } else { &mut self.lost.owned } += new;
        Ok(self.lost)
    }

    /// The kernel's counters at the sockets of this port, all queues together.
    pub fn statistics(&self) -> Result<Statistics> {
        let mut sum = Statistics::default();
        for socket in &self.sockets {
            let one = statistics(socket.as_fd())
                .doing(|| format!("reading the statistics of {}", self.pair.port.name))?;
            sum.rx_dropped += one.rx_dropped;
            sum.rx_invalid_descs += one.rx_invalid_descs;
            sum.tx_invalid_descs += one.tx_invalid_descs;
            sum.rx_ring_full += one.rx_ring_full;
            sum.rx_fill_ring_empty_descs += one.rx_fill_ring_empty_descs;
            sum.tx_ring_empty_descs += one.tx_ring_empty_descs;
        }
        Ok(sum)
    }
}

/// Fails with a sentence if an interface receives on another number of queues than it did when it was taken over.
fn check_queues(before: &Link, now: &Link) -> Result<()> {
    if now.rx_queues == before.rx_queues {
        return Ok(());
    }
    let why = format!(
        "receives on {} queues now, and was taken over with {}: take the change back (`ethtool -L {} rx {}`), and start again",
        now.rx_queues, before.rx_queues, now.name, before.rx_queues
    );
    Err(PortError::Unsuitable { name: now.name.clone(), why })
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use weir_path::frames::Frames;
    use weir_ring::memory::FrameMemory;
    use weir_ring::pool::Pool;

    use super::*;
    use crate::bpf::doorbell::Bell;
    use crate::link;
    use crate::netns::NetNs;
    use crate::port::Port;
    use crate::probe::scratch::{Forget, run};
    use crate::sys;
    use crate::veth::{self, VethEnd};
    use crate::xsk::umem::Umem;

    fn frames() -> [Frames; 1] {
        [Frames::new(Pool::new(FrameMemory::new(4096, 4096).unwrap()))]
    }

    /// A port of the interface "near", with this memory.
    fn open_near(frames: &mut [Frames; 1]) -> Result<Port> {
        let umem = Umem::new(Arc::clone(frames[0].pool.memory()));
        let bell = Bell::new().unwrap();
        Port::open("near", napi::BUDGET, &umem, frames, &[&bell], &mut Forget)
    }

    /// The other end moves while the interface is down, and nobody has been told when it is up again.
    #[test]
    fn queues_whose_other_end_has_left_are_owned_again_once_it_is_followed() {
        if !sys::is_root() {
            return;
        }
        let retaken = run(|answer| {
            let elsewhere = NetNs::new()?;
            let [near, far] = [c"near", c"far"].map(|name| VethEnd { name, address: None });
            let (near, far) = veth::create(&near, &far, &NetNs::current()?, 1)?;
            link::set_up(near.ifindex, true)?;
            link::set_up(far.ifindex, true)?;
            let mut frames = frames();
            let mut port = open_near(&mut frames)?;
            let before = port.is_left_by_sender();
            link::set_up(near.ifindex, false)?;
            let place = format!("/proc/{}/fd/{}", std::process::id(), elsewhere.as_fd().as_raw_fd());
            let moved = Command::new("ip").args(["link", "set", "far", "netns", &place]).status().unwrap();
            assert!(moved.success());
            link::set_up(near.ifindex, true)?;
            port.let_go()?;
            // The move has taken it down: until it is up there is nothing to own.
            port.retake(&mut frames[0])?;
            assert!(port.is_disowned()?, "nobody owns its queues");
            elsewhere.run(|| link::set_up(Link::by_name("far")?.ifindex, true))?;
            let retaken = port.retake(&mut frames[0]).map_err(|error| error.to_string());
            let (overtaken, left) = (port.is_overtaken(), port.is_left_by_sender());
            assert!(port.is_disowned()?, "nobody owns its queues");
            let (sender_netns, sender) = Link::by_index(near.ifindex)?.peer()?;
            assert!(sender_netns.is(&elsewhere));
            port.follow(Pair { sender_netns: Arc::new(sender_netns), sender, ..port.pair().clone() });
            port.let_go()?;
            port.retake(&mut frames[0])?;
            answer((before, retaken, overtaken, left, port.is_left_by_sender(), port.is_disowned()?));
            Ok(())
        });
        let (before, retaken, overtaken, left, followed, disowned) = retaken.unwrap();
        assert!(retaken.unwrap_err().contains("sending first frames on far"));
        assert_eq!((before, overtaken, left, followed, disowned), (false, false, true, false, false));
    }

    #[test]
    fn an_interface_that_came_up_with_more_queues_is_not_owned_again() {
        if !sys::is_root() {
            return;
        }
        let retaken = run(|answer| {
            let [near, far] = [c"near", c"far"].map(|name| VethEnd { name, address: None });
            let (near, far) = veth::create(&near, &far, &NetNs::current()?, 2)?;
            let set_queues = |settings: [&str; 3]| {
                assert!(Command::new("ethtool").arg("-L").args(settings).status().unwrap().success());
            };
            set_queues(["far", "tx", "1"]);
            set_queues(["near", "rx", "1"]);
            link::set_up(near.ifindex, true)?;
            link::set_up(far.ifindex, true)?;
            let mut frames = frames();
            let mut port = open_near(&mut frames)?;
            assert!(!port.has_other_queues());
            link::set_up(near.ifindex, false)?;
            set_queues(["near", "rx", "2"]);
            link::set_up(near.ifindex, true)?;
            port.let_go()?;
            let retaken = port.retake(&mut frames[0]).map_err(|error| error.to_string());
            answer((retaken, port.has_other_queues()));
            Ok(())
        });
        let (retaken, has_other_queues) = retaken.unwrap();
        let why = retaken.unwrap_err();
        assert!(why.contains("receives on 2 queues now, and was taken over with 1"), "{why}");
        assert!(has_other_queues);
    }
}
