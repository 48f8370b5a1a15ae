//! The way from a worker to the others of its topology: the packets that it hands over, and how many it may bring in for the others.
//!
//! ```text
//! port --poll, if every gate on its way is open--> link --ring--> the worker that has the stage or the egress queue behind it
//! ```
//!
//! Rule: a ring has a slot for every frame, so handing over cannot fail. The packets that a receive queue may have under way are limited by
//! the worker that they come to:
//!
//! ```text
//! straight to an egress queue (a wire)   handed - landed < credit        credit: the room of the place of its last packets ([`Credit`])
//! by stages                              handed - landed < 512, or few   not while its packets wait in a full place
//! ```
//!
//! So on a wire a place and the packets under way to it hold its credit and one poll. By stages [`UNDER_WAY_MAX`] packets may be under way
//! from one worker to another before no more are polled for that way. Beyond that come the packets that stages make, and a few of each
//! receive queue: one longest poll of a queue may be under way, also to a full place if none of its packets waits there, so that the queue
//! does not wait for the packets of others.
//!
//! Order: one ring from each worker to each other, first in, first out. A receive queue's packets take the same way.
//!
//! Owner: one worker. Limits: 64 workers.

use std::sync::Arc;

use weir_core::drops::Count;
use weir_ring::handoff::{Abandoned, BURST, Outlet};

use crate::board::{self, Board, Ending, LANDED, OPENED, Opening};
use crate::owners::Portion;
use crate::packet::PathPacket;
use crate::place::Credit;
use crate::plan::Attachment;

/// The number of packets under way from one worker to another at which no more are polled for that way.
pub const UNDER_WAY_MAX: u64 = 512;

/// The number of packets still under way at which a worker that waits for packets to land is woken: there is work to do until more come.
pub(crate) const UNDER_WAY_FEW: u64 = UNDER_WAY_MAX / 2;
/// The longest that a worker that has more to hand over in its next pass lets another sleep, in nanoseconds: a wake-up costs both some
/// microseconds.
const WAKE_NS_MAX: u64 = 50_000;

/// An element of the ring from a worker to another.
pub enum Crosser {
    /// A packet, which has the number of the attachment that it comes to.
    Packet(PathPacket),
    /// The port that sent by the link to this attachment is gone: the stations heard there are to be forgotten.
    Forget(u32),
}

const _: () = assert!(size_of::<Crosser>() == 32, "two share a cache line, as packets do");

/// The ways to the other workers.
pub struct Departures {
    worker: usize,
    outlets: Vec<Option<Outlet<Crosser>>>,
    boards: Arc<[Board]>,
    handed: Vec<Count>,
    /// The workers that were handed packets and not woken yet: a bit for each, by number.
    unwoken: u64,
    /// The time of the first such hand-over, in nanoseconds.
    unwoken_ns: u64,
    /// For each worker, and each receive queue of all ports, its packets that may be under way.
    bunches: Vec<Box<[Bunch]>>,
}

/// Packets of a receive queue that were handed to a worker since none of the queue was under way there.
#[derive(Clone, Copy, Debug, Default)]
struct Bunch {
    packets: u64,
    /// The number of packets, of any queue, that had been handed over when the last of these was.
    last: u64,
}

/// The other workers that the packets of a port come to.
#[derive(Debug, Default)]
pub struct Crosses {
    /// The workers in whose egress queues the packets may wait, if any of them crosses over.
    places: Box<[usize]>,
    /// The pairs of workers, from one and to another, between which the packets cross over.
    pairs: Box<[(usize, usize)]>,
    /// The ports of other workers by which the packets may leave, each with its owner.
    ports: Box<[(usize, usize)]>,
    /// True if all packets come straight to one egress queue.
    is_straight: bool,
    /// The number of the port's first receive queue among all.
    first_flow: usize,
}

/// The number of an attachment, by the link that it is an end of.
pub(crate) fn number_of(links: &[[Attachment; 2]], at: Attachment) -> Option<u32> {
    links.iter().flatten().position(|&end| end == at).map(|number| number as u32)
}

impl Crosses {
    /// The crossings of the packets of a port, whose first receive queue has this number.
    pub(crate) fn of(portion: Portion, port: usize, first_flow: usize) -> Crosses {
        let Portion { plan, owners, worker } = portion;
        let hops = plan.hops_from(port);
        let mut pairs: Vec<_> = hops.iter().map(|&[from, to]| (owners.of(from), owners.of(to))).collect();
        pairs.retain(|(from, to)| from != to);
        if pairs.is_empty() {
            return Crosses { first_flow, ..Crosses::default() };
        }
        let reached = plan.reached_from(port);
        let mut places: Vec<_> = reached.iter().map(|&out| owners.ports[out]).collect();
        pairs.sort_unstable();
        pairs.dedup();
        places.sort_unstable();
        places.dedup();
        let ports = reached.iter().map(|&out| (owners.ports[out], out)).filter(|(owner, _)| *owner != worker);
        Crosses {
            places: places.into(),
            pairs: pairs.into(),
            ports: ports.collect(),
            is_straight: matches!(hops[..], [[_, Attachment::Port(_)]]),
            first_flow,
        }
    }

    /// The ports of other workers by which the packets may leave.
    pub(crate) fn exits(&self) -> impl Iterator<Item = usize> + '_ {
        self.ports.iter().map(|(_, port)| *port)
    }

    /// Returns whether no packet of the port crosses over.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.pairs.is_empty()
    }
}

impl Departures {
    pub(crate) fn new(
        worker: usize,
        outlets: Vec<Option<Outlet<Crosser>>>,
        boards: Arc<[Board]>,
        receive_queues: usize,
    ) -> Departures {
        let handed = vec![Count::default(); boards.len()];
        let bunches = boards.iter().map(|_| vec![Bunch::default(); receive_queues].into()).collect();
        Departures { worker, outlets, boards, handed, unwoken: 0, unwoken_ns: 0, bunches }
    }

    /// Hands the first packets, which have this count, over with the next [`Departures::flush`]; `receive_queue` gives the receive queue of
    /// each, if a port brought it.
    pub(crate) fn hand(
        &mut self,
        worker: usize,
        to: u32,
        packets: &mut Vec<PathPacket>,
        count: Count,
        receive_queue: impl Fn(&PathPacket) -> Option<usize>,
    ) {
        let first = ..count.packets as usize;
        let mut handed = self.handed[worker].packets;
        self.handed[worker].merge(count);
        // Neighbours are mostly of one receive queue, and the other worker's count of landed packets is in that worker's cache.
        let mut landed = None;
        for run in packets[first].chunk_by(|one, next| receive_queue(one) == receive_queue(next)) {
            handed += run.len() as u64;
            if let Some(bunch) = receive_queue(&run[0]).and_then(|queue| self.bunches[worker].get_mut(queue))
            {
                let landed = *landed.get_or_insert_with(|| self.boards[worker].landed(self.worker));
                let before = if bunch.last <= landed { 0 } else { bunch.packets };
                bunch.packets = before + run.len() as u64;
                bunch.last = handed;
            }
        }
        for packet in packets.drain(first) {
            self.stage(worker, Crosser::Packet(PathPacket { to, ..packet }));
        }
    }

    /// Makes the stage behind a link forget the stations heard by it, with the next [`Departures::flush`] and in order with packets.
    pub(crate) fn forget(&mut self, worker: usize, to: u32) {
        self.stage(worker, Crosser::Forget(to));
    }

    fn stage(&mut self, worker: usize, crosser: Crosser) {
        let outlet = self.outlets[worker].as_mut().expect("nothing crosses from a worker to itself");
        let mut is_there = true;
        if outlet.staged() == BURST {
            // A worker that sleeps is woken for this batch with the rest.
            self.boards[self.worker].set_handed(worker, self.handed[worker].packets);
            is_there = outlet.flush_quietly().is_ok();
        }
        let is_staged = is_there && outlet.stage(crosser).is_ok();
        assert!(is_staged, "a ring has a slot for every frame, and no worker goes before all have stopped");
    }

    /// Publishes the packets that were handed over, and wakes the workers that sleep: at once, or if `has_more` to hand over soon,
    /// [`WAKE_NS_MAX`] after the first.
    ///
    /// # Errors
    /// If another worker has gone.
    pub(crate) fn flush(&mut self, has_more: bool, now_ns: u64) -> Result<(), Abandoned> {
        for (worker, outlet) in self.outlets.iter_mut().enumerate() {
            // An outlet that published a full batch before has an element staged behind it, so no outlet is missed.
            if let Some(outlet) = outlet.as_mut().filter(|outlet| outlet.staged() > 0) {
                self.boards[self.worker].set_handed(worker, self.handed[worker].packets);
                outlet.flush_quietly()?;
                if self.unwoken == 0 {
                    self.unwoken_ns = now_ns;
                }
                self.unwoken |= 1 << worker;
            }
        }
        if self.unwoken != 0 && (!has_more || now_ns - self.unwoken_ns >= WAKE_NS_MAX) {
            self.wake();
        }
        Ok(())
    }

    fn wake(&mut self) {
        while self.unwoken != 0 {
            if let Some(outlet) = &mut self.outlets[self.unwoken.trailing_zeros() as usize] {
                outlet.wake();
            }
            self.unwoken &= self.unwoken - 1;
        }
    }

    /// Returns whether other workers let a receive queue of a port be polled; by stages without room for more, while fewer than `few`
    /// packets of the queue are under way.
    #[inline]
    pub(crate) fn admits(&self, crosses: &Crosses, queue: usize, few: u32, is_quiet: bool) -> bool {
        if crosses.is_straight {
            // The packets under way are counted first, and the credit is read then: a packet that has landed has taken its room.
            let under_way = crosses.pairs.iter().map(|&pair| self.under_way(pair)).max().unwrap_or(0);
            let Credit { packets, door } = self.credit(crosses, queue);
            return under_way < u64::from(if is_quiet { door } else { packets });
        }
        match self.opening(crosses, queue) {
            Opening::Closed => false,
            Opening::Wide if self.has_credit(crosses, |_| true) => true,
            // The receive queues of packets that other workers hand on are not known here.
            Opening::Wide | Opening::Narrow => {
                self.has_credit(crosses, |from| from != self.worker)
                    && self.has_few_under_way(crosses.first_flow + queue, few)
            }
        }
    }

    /// Returns whether a receive queue that others keep from being polled waits for a gate to open, and whether for packets to land.
    pub(crate) fn waits_for(&self, crosses: &Crosses, queue: usize) -> [bool; 2] {
        let is_closed = match crosses.is_straight {
            true => self.credit(crosses, queue).packets == 0,
            false => self.opening(crosses, queue) == Opening::Closed,
        };
        [is_closed, !is_closed || crosses.is_straight]
    }

    /// The opening of the gates of a receive queue at all workers where its packets may wait: that of the gate that is least open.
    fn opening(&self, crosses: &Crosses, queue: usize) -> Opening {
        let flow = crosses.first_flow + queue;
        let openings = crosses.places.iter().map(|&worker| self.boards[worker].opening(flow));
        openings.max().unwrap_or(Opening::Wide)
    }

    /// The room of the place that packets of a receive queue come straight to.
    #[inline]
    fn credit(&self, crosses: &Crosses, queue: usize) -> Credit {
        let flow = crosses.first_flow + queue;
        let credits = crosses.places.iter().map(|&worker| self.boards[worker].credit(flow));
        credits.fold(Credit::MOST, Credit::min)
    }

    /// Returns whether fewer than [`UNDER_WAY_MAX`] packets are under way on each way of a port's packets that begins at a worker of
    /// `is_meant`.
    fn has_credit(&self, crosses: &Crosses, is_meant: impl Fn(usize) -> bool) -> bool {
        let mut pairs = crosses.pairs.iter().filter(|(from, _)| is_meant(*from));
        pairs.all(|&pair| self.under_way(pair) < UNDER_WAY_MAX)
    }

    /// The number of packets under way from one worker to another.
    #[inline]
    fn under_way(&self, (from, to): (usize, usize)) -> u64 {
        let handed = if from == self.worker { self.handed[to].packets } else { self.boards[from].handed(to) };
        handed.saturating_sub(self.boards[to].landed(from))
    }

    /// Returns whether fewer than `few` packets of a receive queue are under way from here to each other worker, as far as is known.
    fn has_few_under_way(&self, flow: usize, few: u32) -> bool {
        let mut handed = self.bunches.iter().zip(self.boards.iter());
        handed.all(|(bunches, board)| {
            let Bunch { packets, last } = bunches[flow];
            packets < few.into() || last <= board.landed(self.worker)
        })
    }

    /// A number for the place at another worker that packets of a receive queue came to last, if they came to one.
    pub(crate) fn place(&self, crosses: &Crosses, queue: usize) -> Option<usize> {
        let flow = crosses.first_flow + queue;
        let places = crosses.places.iter().map(|&worker| (worker, self.boards[worker].place(flow)));
        places
            .filter(|(_, place)| *place > 0)
            .map(|(worker, place)| place * self.boards.len() + worker)
            .next()
    }

    /// The least credit of the ports of other workers by which packets may leave, in bytes.
    pub(crate) fn credit_bytes(&self, crosses: &Crosses) -> u64 {
        let credit = crosses.ports.iter().map(|&(owner, port)| self.boards[owner].credit_bytes(port));
        credit.min().unwrap_or(u64::MAX)
    }

    /// Tells the other workers that this one will park and wait for gates to open or packets to land; after that it must look for them once
    /// more.
    pub(crate) fn wait_for(&self, is_wanted: [bool; 2]) {
        for kind in [OPENED, LANDED].into_iter().filter(|&kind| is_wanted[kind]) {
            let others = self.boards.iter().enumerate().filter(|(other, _)| *other != self.worker);
            others.for_each(|(_, board)| board.hungry.set(self.worker, kind));
        }
    }

    /// Returns whether every other worker will still tell this one of these: the last look before parking. What is waited for may be another
    /// thing than when the wait was told, or have come and gone since.
    pub(crate) fn is_told_of(&self, is_wanted: [bool; 2]) -> bool {
        let others = || self.boards.iter().enumerate().filter(|(other, _)| *other != self.worker);
        let mut kinds = [OPENED, LANDED].into_iter().filter(|&kind| is_wanted[kind]);
        kinds.all(|kind| others().all(|(_, board)| board.hungry.is_set(self.worker, kind)))
    }

    /// Wakes the workers that wait for gates to open or packets to land here, if that has happened and is published.
    pub(crate) fn tell(&self, has_happened: [bool; 2]) {
        let mut told = self.boards[self.worker].hungry.take(self.worker, has_happened);
        while told != 0 {
            if let Some(Some(outlet)) = self.outlets.get(told.trailing_zeros() as usize) {
                outlet.nudge();
            }
            told &= told - 1;
        }
    }

    /// Tells whether packets wait in a receive queue of a port.
    #[inline]
    pub(crate) fn tell_waiting(&self, crosses: &Crosses, queue: usize, is_waiting: bool) {
        self.board().set_waiting(crosses.first_flow + queue, is_waiting);
    }

    /// The board of this worker.
    pub(crate) fn board(&self) -> &Board {
        &self.boards[self.worker]
    }

    /// Returns whether packets may still come from the other workers.
    pub(crate) fn may_come(&self) -> bool {
        board::may_come(&self.boards)
    }

    /// Tells that this worker takes no packets in any more.
    pub(crate) fn stop(&self) {
        self.board().end(Ending::Stopped);
    }

    /// Returns whether this worker takes no packets in any more.
    pub(crate) fn has_stopped(&self) -> bool {
        self.board().has_ended()
    }

    /// Returns whether another worker has gone.
    pub(crate) fn has_lost_one(&self) -> bool {
        board::has_lost_one(&self.boards)
    }

    /// Tells that this worker has gone.
    pub(crate) fn leave(&self) {
        self.board().end(Ending::Gone);
    }

    /// The number of times that this worker woke others.
    pub fn kicks(&self) -> u64 {
        self.outlets.iter().flatten().map(Outlet::kicks).sum()
    }

    /// Packets handed to each worker.
    pub fn handed(&self) -> &[Count] {
        &self.handed
    }
}
