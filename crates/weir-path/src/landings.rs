//! Where packets come to a worker from the others of its topology, and what holds these.
//!
//! ```text
//! ring --> the stage, or the egress queue, that the link leads to --> place: full? the gate of the receive queue is closed
//!                                                                     room, or none of that queue: opened, and its owner told
//! ```
//!
//! Rule: everything that has come is worked on in the next pass, so nothing ever waits in a ring for room. The gate of a receive queue of
//! another worker is closed while packets of it wait here in a place that is full: a place that takes nothing holds no queue that has
//! nothing for it. When none waits there any more, but the place is still full, the gate is narrow. Whoever sleeps at a gate is woken when
//! it opens.
//!
//! Conservation: under way = handed by the others - taken here. Owner: one worker.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use weir_core::drops::Count;
use weir_ring::doorbell::DoorbellCounts;
use weir_ring::handoff::{self, Inbox, InboxError, Source};

use crate::between::{Between, Way};
use crate::board::{Board, Opening};
use crate::departures::{Crosser, Departures};
use crate::egress::{EgressQueues, Landed};
use crate::packet::PathPacket;
use crate::place::{Gate, NOWHERE, Place};

/// How often each port may be told to be gone before that is heard.
const GONE_MAX: usize = 8;

/// Where packets of the others come to.
pub struct Landings {
    inbox: Inbox<Crosser>,
    /// For each attachment of the plan, by its number, where it leads if it is here.
    ways: Vec<Option<Way>>,
    arrived: Vec<PathPacket>,
    gates: Gates,
    taken: Count,
    /// What came that was no packet.
    words: u64,
    /// Packets from each worker.
    landed: Vec<u64>,
    receive_queues: Box<[usize]>,
    /// For each source its worker.
    sources: Vec<usize>,
}

/// The gates of the receive queues whose packets come over a ring.
struct Gates {
    worker: usize,
    boards: Arc<[Board]>,
    gates: Box<[Gate]>,
    openings: Box<[Opening]>,
    /// The receive queues whose gates are not wide open.
    closed: Vec<usize>,
    /// Those of whose gates something is to be told.
    touched: Vec<usize>,
}

/// The joints of so many workers, for ports of so many receive queues and so many frames.
///
/// # Errors
/// If the kernel does not give what wakes the workers.
pub fn join(
    workers: usize,
    receive_queues: &[usize],
    frames: usize,
) -> Result<Vec<(Departures, Landings)>, InboxError> {
    let queues: usize = receive_queues.iter().sum();
    let boards = Board::all(workers, queues, receive_queues.len());
    // Beside each frame, word that a port has gone.
    let ends = handoff::mesh(workers, frames + GONE_MAX * receive_queues.len(), 1)?.into_iter().enumerate();
    let joints = ends.map(|(worker, (inbox, outlets))| {
        let gates = Gates {
            worker,
            boards: Arc::clone(&boards),
            gates: vec![Gate::new(NOWHERE); queues].into(),
            openings: vec![Opening::Wide; queues].into(),
            closed: Vec::with_capacity(queues),
            touched: Vec::with_capacity(queues),
        };
        let landings = Landings {
            inbox,
            ways: Vec::new(),
            arrived: Vec::with_capacity(handoff::BURST),
            gates,
            taken: Count::default(),
            words: 0,
            landed: vec![0; workers],
            receive_queues: receive_queues.into(),
            sources: (0..workers).filter(|&other| other != worker).collect(),
        };
        (Departures::new(worker, outlets, Arc::clone(&boards), queues), landings)
    });
    Ok(joints.collect())
}

impl Landings {
    /// Where attachments lead, by their numbers.
    pub(crate) fn set_ways(&mut self, ways: Vec<Option<Way>>) {
        self.ways = ways;
    }

    /// How many receive queues each port of the plan has.
    pub(crate) fn receive_queues(&self) -> &[usize] {
        &self.receive_queues
    }

    /// Works on all that has come; how many packets.
    pub(crate) fn land(&mut self, between: &mut Between, now_ns: u64) -> usize {
        let Landings { inbox, ways, arrived, gates, taken, words, landed, sources, .. } = self;
        let mut way = None;
        let moved = inbox.drain(|source, Crosser { to, packet }| {
            let next = ways[to as usize];
            if next != way || packet.is_none() {
                gates.take(between, way, arrived, now_ns);
                way = next;
            }
            let Some(packet) = packet else {
                *words += 1;
                return way.into_iter().for_each(|way| between.forget(way));
            };
            taken.add(packet.len_bytes.into());
            if let Source::Worker(number) = source {
                landed[sources[number]] += 1;
            }
            arrived.push(packet);
        });
        gates.take(between, way, arrived, now_ns);
        moved
    }

    /// Notes what came to full places of what came over rings before.
    pub(crate) fn note_filled(&mut self, filled: &mut Vec<Landed>, egress: &EgressQueues) {
        filled.drain(..).for_each(|landed| self.gates.note(landed));
        self.gates.tell(egress);
    }

    /// Tells how much has been worked on, once what that caused has been told as handed; whether there is news.
    pub(crate) fn tell_landed(&self) -> bool {
        let board = &self.gates.boards[self.gates.worker];
        let told = self.landed.iter().enumerate().filter(|&(from, &packets)| board.set_landed(from, packets));
        told.count() > 0
    }

    /// Opens the gates behind which nothing waits in a full place any more; whether there was one.
    pub(crate) fn open(&mut self, egress: &EgressQueues) -> bool {
        self.gates.open(egress)
    }

    /// The full places that gates are closed for.
    pub(crate) fn blocked(&self) -> impl Iterator<Item = Place> + '_ {
        self.gates.closed.iter().flat_map(|&flow| self.gates.gates[flow].places().iter().copied())
    }

    /// The classes of an egress queue have changed: `moved` says of packets in which place they wait now.
    pub(crate) fn follow(&mut self, egress: &EgressQueues, changed: usize, moved: &[(u16, u16, Place)]) {
        self.gates.follow(egress, changed, moved);
    }

    /// What was taken.
    pub fn taken(&self) -> Count {
        self.taken
    }

    /// How many elements wait in its rings now, and how many that were no packets it has taken.
    pub fn waiting(&mut self) -> (u64, u64) {
        (self.inbox.waiting() as u64, self.words)
    }

    /// How others wake this worker.
    pub fn doorbell(&self) -> DoorbellCounts {
        self.inbox.counts()
    }

    /// Whether somebody has called this worker since it last began to park.
    pub fn is_called(&self) -> bool {
        self.inbox.is_called()
    }

    /// Sleeps as [`crate::crossing::Crossing::park`].
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
        between.take(way, arrived, now_ns, |landed| self.note(landed));
        self.tell(&between.egress);
    }

    /// A packet came to a place.
    fn note(&mut self, Landed { place, fills, receive_queue }: Landed) {
        // Of what a stage made itself there is none.
        let Some((flow, gate)) = receive_queue.and_then(|flow| Some((flow, self.gates.get_mut(flow)?)))
        else {
            return;
        };
        let opening = &mut self.openings[flow];
        let is_news = match (*opening, fills) {
            // It waits for what it has filled, whatever else it comes to.
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
            self.touched.push(flow);
        }
    }

    /// Tells of the gates that something has happened to.
    fn tell(&mut self, egress: &EgressQueues) {
        for flow in self.touched.drain(..) {
            let gate = &self.gates[flow];
            let number = egress.places().number(gate.first());
            self.boards[self.worker].set_gate(flow, number, self.openings[flow]);
        }
    }

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
        self.tell(egress);
        has_opened
    }

    fn follow(&mut self, egress: &EgressQueues, changed: usize, moved: &[(u16, u16, Place)]) {
        for &flow in &self.closed {
            let gate = &mut self.gates[flow];
            if gate.places().iter().any(|place| place.egress == changed) {
                let now = moved.iter().find(|(port, queue, _)| egress.flow_of(*port, *queue) == flow);
                *gate = Gate::new(NOWHERE);
                // Where nothing of it waits it opens with the next look.
                gate.note(now.map_or(NOWHERE, |(.., place)| *place), true);
            }
            self.touched.push(flow);
        }
        self.tell(egress);
    }
}
