//! The landings of packets that come to a worker from the others of its topology, and the gates that hold the senders of these.
//!
//! ```text
//! ring --> a stage, and the egress queue that it decides on --> place: full? the gate of the receive queue is closed
//!                                                               room, or none of that queue: opened, and its owner told
//!      --> straight to an egress queue                      --> place: its room is told, and its owner when there is some again
//! ```
//!
//! Rule: in a pass the next burst of each other worker's packets is worked on, and the packets behind it stay in the ring, where a long
//! queue costs no cache. They wait for their turn there, never for room. The gate of a receive queue of another worker is closed while
//! packets of it wait here in a place that is full: a place that takes no packets holds no queue that has none for it. When none waits
//! there any more, but the place is still full, the gate is narrow. Where packets come straight to an egress queue there is no other place,
//! and the gate tells the room of that queue. A worker that sleeps at a gate is woken when it opens.
//!
//! Conservation: under way = handed by the others - taken here. Owner: one worker.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use weir_core::drops::Count;
use weir_core::packet::count_of;
use weir_ring::doorbell::DoorbellCounts;
use weir_ring::handoff::{self, Inbox, InboxError};
use weir_simd::prefetch::prefetch_write;

use crate::between::{Between, Way};
use crate::board::{self, Board, Opening};
use crate::departures::{Crosser, Departures, UNDER_WAY_FEW};
use crate::egress::{EgressQueues, Landed};
use crate::packet::PathPacket;
use crate::place::{Credit, Gate, NOWHERE, Place};

/// The times that each port may be told to be gone before that is heard.
const GONE_MAX: usize = 8;

/// The landings of the other workers' packets.
pub struct Landings {
    inbox: Inbox<Crosser>,
    /// For each attachment of the plan, by its number, the way that it leads if it is here.
    ways: Vec<Option<Way>>,
    arrived: Vec<PathPacket>,
    gates: Gates,
    taken: Count,
    /// Packets from each worker.
    landed: Vec<u64>,
    receive_queues: Box<[usize]>,
    /// The worker of each source.
    sources: Vec<usize>,
    /// The number of times that others had woken this worker when it last asked.
    woken: u64,
}

/// The packets of a worker's queues that lead back, and of the stages behind them. Both counts only grow.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TurnedBack {
    /// Packets that came to wait there.
    pub entered: u64,
    /// Packets that do not wait there any more: they came back, or were dropped.
    pub left: u64,
}

/// The gates of the receive queues whose packets come over a ring.
struct Gates {
    worker: usize,
    boards: Arc<[Board]>,
    gates: Box<[Gate]>,
    openings: Box<[Opening]>,
    /// The receive queues whose gates are not wide open.
    closed: Vec<usize>,
    /// The receive queues whose packets come straight to an egress queue, each with that queue.
    straight: Vec<(usize, usize)>,
    /// The places that packets of `straight` came to last, each with its room as it was told.
    credits: Vec<(Place, Credit)>,
    /// True if the places of `credits` may be others.
    has_moved: bool,
    /// True if a gate has opened that no worker was told of.
    has_opened: bool,
    /// The receive queues whose gates are to be told anew.
    touched: Vec<usize>,
}

/// The departures and landings of so many workers, for ports of so many receive queues and so many frames.
///
/// # Errors
/// If the kernel does not give the descriptors that wake the workers.
pub fn join(
    workers: usize,
    receive_queues: &[usize],
    frames: usize,
) -> Result<Vec<(Departures, Landings)>, InboxError> {
    let queues: usize = receive_queues.iter().sum();
    let boards = Board::all(workers, queues, receive_queues.len());
    // Beside each frame a ring has slots for the word that a port has gone.
    let ends = handoff::mesh(workers, frames + GONE_MAX * receive_queues.len())?.into_iter().enumerate();
    let joints = ends.map(|(worker, (inbox, outlets))| {
        let gates = Gates {
            worker,
            boards: Arc::clone(&boards),
            gates: vec![Gate::new(NOWHERE); queues].into(),
            openings: vec![Opening::Wide; queues].into(),
            closed: Vec::with_capacity(queues),
            straight: Vec::new(),
            credits: Vec::new(),
            has_moved: false,
            has_opened: false,
            touched: Vec::with_capacity(queues),
        };
        let landings = Landings {
            inbox,
            ways: Vec::new(),
            arrived: Vec::with_capacity(handoff::BURST),
            gates,
            taken: Count::default(),
            landed: vec![0; workers],
            receive_queues: receive_queues.into(),
            sources: (0..workers).filter(|&other| other != worker).collect(),
            woken: 0,
        };
        (Departures::new(worker, outlets, Arc::clone(&boards), queues), landings)
    });
    Ok(joints.collect())
}

impl Landings {
    /// Sets the ways that attachments lead, by their numbers.
    pub(crate) fn set_ways(&mut self, ways: Vec<Option<Way>>) {
        self.ways = ways;
    }

    /// Sets the receive queues of others whose packets come straight to an egress queue, each with that queue.
    pub(crate) fn set_straight(&mut self, straight: Vec<(usize, usize)>, egress: &EgressQueues) {
        self.gates.straight = straight;
        self.gates.straight.sort_unstable();
        self.gates.begin_anew(egress, None, &[]);
    }

    /// The number of receive queues of each port of the plan.
    pub(crate) fn receive_queues(&self) -> &[usize] {
        &self.receive_queues
    }

    /// Works on the next burst from each other worker; returns the number of its elements.
    pub(crate) fn land(&mut self, between: &mut Between, now_ns: u64) -> usize {
        let Landings { inbox, ways, arrived, gates, taken, landed, sources, .. } = self;
        let mut at = u32::MAX;
        let mut take = |at: u32, between: &mut Between, arrived: &mut Vec<PathPacket>| {
            gates.take(between, ways.get(at as usize).copied().flatten(), arrived, now_ns);
        };
        let moved = inbox.drain_some(handoff::BURST, |source, crosser| match crosser {
            Crosser::Packet(packet) => {
                if packet.to != at {
                    take(at, between, arrived);
                    at = packet.to;
                }
                // The packet's headers are in another processor's cache: asked for now, to write, they come while the other packets are
                // taken.
                prefetch_write(packet.bytes(between.frames.memory()));
                taken.add(packet.len_bytes.into());
                landed[sources[source]] += 1;
                arrived.push(packet);
            }
            Crosser::Forget(to) => {
                take(at, between, arrived);
                ways[to as usize].into_iter().for_each(|way| between.forget(way));
            }
        });
        take(at, between, arrived);
        moved
    }

    /// Notes the packets that came to full places, of those that came over rings before.
    pub(crate) fn note_filled(&mut self, filled: &mut Vec<Landed>, egress: &EgressQueues) {
        filled.drain(..).for_each(|landed| self.gates.note(landed));
        self.gates.tell(egress);
    }

    /// Tells which packets wait to come back from queues: before it is told that this worker has stopped, and from then on before the
    /// packets that brought them are told as landed, so that they are known at every instant to be inside.
    pub(crate) fn tell_turned_back(&self, TurnedBack { entered, left }: TurnedBack) {
        let worker = self.gates.worker;
        let board = &self.gates.boards[worker];
        board.set_handed(worker, entered);
        board.set_landed(worker, left);
    }

    /// Tells the room that is left, and then the number of packets that were worked on. The packets that these caused have been told as
    /// handed before, to others or to queues that lead back. Returns whether so few are left under way that the workers that wait for that
    /// are to be woken.
    pub(crate) fn tell_landed(&mut self, egress: &EgressQueues) -> bool {
        self.gates.tell_credits(egress);
        let worker = self.gates.worker;
        let board = &self.gates.boards[worker];
        let others = self.landed.iter().enumerate().filter(|(from, _)| *from != worker);
        others.fold(false, |is_news, (from, &packets)| {
            let has_landed = board.set_landed(from, packets);
            is_news | (has_landed && self.gates.boards[from].handed(worker) - packets <= UNDER_WAY_FEW)
        })
    }

    /// Opens the gates behind which no packets wait in a full place any more; returns whether one opened.
    pub(crate) fn open(&mut self, egress: &EgressQueues) -> bool {
        self.gates.open(egress)
    }

    /// The full places that gates are closed for.
    pub(crate) fn full<'a>(&'a self, egress: &'a EgressQueues) -> impl Iterator<Item = Place> + 'a {
        let closed = self.gates.closed.iter().flat_map(|&flow| self.gates.gates[flow].places()).copied();
        let straight = self.gates.credits.iter().map(|(place, _)| *place);
        closed.chain(straight.filter(|&place| !egress.has_room(place)))
    }

    /// The full places that keep receive queues from being polled in which packets wait, as their owners have told.
    pub(crate) fn blocked<'a>(&'a self, egress: &'a EgressQueues) -> impl Iterator<Item = Place> + 'a {
        let Gates { boards, gates, closed, straight, credits, .. } = &self.gates;
        let is_waiting = |flow: usize| board::is_waiting(boards, flow);
        let closed = closed.iter().filter(move |&&flow| is_waiting(flow));
        let closed = closed.flat_map(|&flow| gates[flow].places()).copied();
        let full = credits.iter().map(|(place, _)| *place).filter(|&place| !egress.has_room(place));
        let holds = move |place: &Place| {
            straight.iter().any(|&(flow, _)| gates[flow].places().contains(place) && is_waiting(flow))
        };
        closed.chain(full.filter(holds))
    }

    /// The classes of an egress queue have changed: `moved` says for the packets of ports and receive queues in which place they wait now.
    pub(crate) fn follow(&mut self, egress: &EgressQueues, changed: usize, moved: &[(u16, u16, Place)]) {
        self.gates.follow(egress, changed, moved);
    }

    /// Packets that were taken.
    pub fn taken(&self) -> Count {
        self.taken
    }

    /// The packets that stand in the rings now, counted there.
    pub fn waiting(&mut self) -> Count {
        let mut waiting = Count::default();
        self.inbox.look_at_waiting(|crosser| match crosser {
            Crosser::Packet(packet) => waiting.add(packet.len_bytes.into()),
            Crosser::Forget(_) => {}
        });
        waiting
    }

    /// The counters of the doorbell by which others wake this worker.
    pub fn doorbell(&self) -> DoorbellCounts {
        self.inbox.counts()
    }

    /// Returns whether others have woken this worker since it last asked.
    pub(crate) fn is_woken(&mut self) -> bool {
        let woken = self.inbox.counts().kicks_sent;
        std::mem::replace(&mut self.woken, woken) != woken
    }

    /// Returns whether another thread has called this worker since it last began to park.
    pub fn is_called(&self) -> bool {
        self.inbox.is_called()
    }

    /// Sleeps by `wait`, unless something has come over or `other_work` is there; returns whether it slept. `wait` gets the descriptor that
    /// is readable when another worker has kicked.
    pub(crate) fn park(
        &mut self,
        other_work: impl FnOnce() -> bool,
        wait: impl FnOnce(BorrowedFd<'_>) -> std::io::Result<()>,
    ) -> std::io::Result<bool> {
        match self.inbox.park(other_work) {
            Some(parked) => wait(parked.as_fd()).map(|()| true),
            None => Ok(false),
        }
    }
}

impl Gates {
    /// Moves packets on that came to one attachment.
    fn take(&mut self, between: &mut Between, way: Option<Way>, arrived: &mut Vec<PathPacket>, now_ns: u64) {
        if arrived.is_empty() {
            return;
        }
        let way = way.expect("packets are handed to the worker that has what they come to");
        between.take(way, arrived, count_of(arrived), now_ns, |landed| self.note(landed));
        self.tell(&between.egress);
    }

    /// Notes that a packet came to a place.
    fn note(&mut self, Landed { place, fills, receive_queue }: Landed) {
        // A packet that a stage made itself has no receive queue.
        let Some((flow, gate)) = receive_queue.and_then(|flow| Some((flow, self.gates.get_mut(flow)?)))
        else {
            return;
        };
        let opening = &mut self.openings[flow];
        let is_news = match (*opening, fills) {
            // The queue waits for the places that it has filled, whatever other place its packets come to.
            (Opening::Closed, false) => return,
            (Opening::Closed, true) => !gate.places().contains(&place),
            (Opening::Narrow, _) | (Opening::Wide, true) => {
                gate.begin();
                true
            }
            (Opening::Wide, false) => gate.first() != place,
        };
        gate.note(place, fills);
        if fills {
            if *opening == Opening::Wide {
                self.closed.push(flow);
            }
            *opening = Opening::Closed;
        }
        if is_news {
            self.has_moved = true;
            self.touched.push(flow);
        }
    }

    /// Tells the gates of the receive queues in `touched`.
    fn tell(&mut self, egress: &EgressQueues) {
        while let Some(flow) = self.touched.pop() {
            let gate = &self.gates[flow];
            let credit = match self.straight.binary_search_by_key(&flow, |(straight, _)| *straight) {
                Ok(_) => egress.credit(gate.places(), flow),
                Err(_) => Credit::MOST,
            };
            let number = egress.places().number(gate.first());
            self.has_opened |= self.boards[self.worker].set_gate(flow, number, self.openings[flow], credit);
        }
    }

    /// Tells the gates of places whose room has changed.
    fn tell_credits(&mut self, egress: &EgressQueues) {
        let mut has_changed = std::mem::take(&mut self.has_moved);
        if has_changed {
            self.credits.clear();
            for &(flow, _) in &self.straight {
                for &place in self.gates[flow].places() {
                    if self.credits.iter().all(|(known, _)| *known != place) {
                        self.credits.push((place, Credit::NONE));
                    }
                }
            }
        }
        for (place, told) in &mut self.credits {
            let room = egress.credit_at(*place);
            has_changed |= *told != room;
            *told = room;
        }
        if has_changed {
            self.touched.extend(self.straight.iter().map(|(flow, _)| *flow));
        }
        self.tell(egress);
    }

    /// Opens the gates whose places have room again; returns whether one opened that no worker was told of.
    fn open(&mut self, egress: &EgressQueues) -> bool {
        let (gates, openings, touched) = (&mut self.gates, &mut self.openings, &mut self.touched);
        let mut has_opened = false;
        self.closed.retain(|&flow| {
            let gate = &mut gates[flow];
            let mut full = gate.places().iter().filter(|&&place| !egress.has_room(place));
            let opening = match full.next() {
                None => Opening::Wide,
                Some(&first) => {
                    match [first].iter().chain(full).all(|&place| egress.has_none_of(place, flow)) {
                        true => Opening::Narrow,
                        false => Opening::Closed,
                    }
                }
            };
            if opening != openings[flow] {
                has_opened |= opening < openings[flow];
                openings[flow] = opening;
                touched.push(flow);
            }
            if opening == Opening::Wide {
                gate.begin();
            }
            opening != Opening::Wide
        });
        self.tell_credits(egress);
        std::mem::take(&mut self.has_opened) || has_opened
    }

    fn follow(&mut self, egress: &EgressQueues, changed: usize, moved: &[(u16, u16, Place)]) {
        for &flow in &self.closed {
            let now = moved.iter().filter(|(port, queue, _)| egress.flow_of(*port, *queue) == flow);
            // Where no packet of the queue waits, the gate opens with the next look.
            self.gates[flow].follow(changed, now.map(|(.., place)| *place), NOWHERE);
            self.touched.push(flow);
        }
        self.begin_anew(egress, Some(changed), moved);
    }

    /// Renews the gates of the receive queues whose packets come straight to an egress queue, or to any, whose places are others now: each
    /// waits for the place where its packets are.
    fn begin_anew(&mut self, egress: &EgressQueues, changed: Option<usize>, moved: &[(u16, u16, Place)]) {
        let straight =
            self.straight.iter().filter(|(_, queue)| changed.is_none_or(|changed| changed == *queue));
        for &(flow, queue) in straight {
            let now = moved.iter().find(|(port, queue, _)| egress.flow_of(*port, *queue) == flow);
            let gate = &mut self.gates[flow];
            if now.is_none() || !gate.is_full() {
                *gate = Gate::new(now.map_or(egress.default_place(queue), |(.., place)| *place));
            }
        }
        self.has_moved = true;
        self.tell_credits(egress);
    }
}
