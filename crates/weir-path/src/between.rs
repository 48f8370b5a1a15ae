//! The part of a worker between its ports: the stages, the egress queues, and the links that lead from one to the next.
//!
//! ```text
//! intake --way--> egress queue                         a wire: no stage between
//!        --way--> stage --way--> stage --way--> egress queue
//!                       --way--> another worker, which has the stage or egress queue
//! ```
//!
//! Rule: a packet that is taken in moves on until it waits in an egress queue, is kept by a router, or ends. Stages never wait, so a sender
//! is always held by a place of an egress queue, and [`Between::take`] tells which places a poll fed.
//!
//! Order: packets of a flow pass the same stages in the order in which they came; packets that wait before a port of a stage are served
//! first in, first out. Bounded: bridges are joined by one way only (the maker of a [`crate::plan::Plan`] sees to that), and routers count
//! hops.
//!
//! Owner: one worker.

use std::collections::VecDeque;

use weir_core::drops::Count;
use weir_core::due::sooner;
use weir_core::packet::{move_all, move_first};

use crate::departures::Departures;
use crate::egress::{EgressQueues, Landed};
use crate::frames::Frames;
use crate::packet::PathPacket;
use crate::place::{NOWHERE, Place};
use crate::stage::{Around, Stage, StageOutput};

/// The way on of packets from a port, or from a port of a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// The way into an egress queue, by its place in the worker.
    Egress(usize),
    /// The way to a stage, by its place in the worker, and the port of it.
    Stage(usize, u16),
    /// The way to another worker, and the number of the attachment there.
    Over(usize, u32),
}

impl Way {
    /// Returns whether packets of one receive queue may wait in several egress queues.
    pub fn mixes(self) -> bool {
        !matches!(self, Way::Egress(_))
    }

    /// The place where packets wait that go by this way, as far as is known before they are looked at.
    pub fn place(self, egress: &EgressQueues) -> Place {
        match self {
            Way::Egress(queue) => egress.default_place(queue),
            Way::Stage(..) | Way::Over(..) => NOWHERE,
        }
    }
}

/// The part of a worker between its ports.
pub struct Between {
    /// The frames of the worker, in which packets begin and end.
    pub frames: Frames,
    /// The egress queues, in which packets wait.
    pub egress: EgressQueues,
    /// The ways to other workers, if links lead there.
    pub over: Option<Departures>,
    stages: Vec<StageAt>,
    /// Ports of stages before which packets wait, in the order in which they came there.
    turns: VecDeque<(usize, u16)>,
    sent: StageOutput,
}

/// A stage, and the ways and packets at its ports.
struct StageAt {
    stage: Stage,
    /// The way that each of its ports leads, if packets leave by it.
    ways: Box<[Option<Way>]>,
    /// Packets that wait before each of its ports.
    arrived: Box<[Arrived]>,
}

/// Packets that wait before a port of a stage, and their count.
#[derive(Default)]
struct Arrived {
    packets: Vec<PathPacket>,
    count: Count,
}

impl Between {
    /// The part between ports of stages with the ways that their ports lead, egress queues, and the ways to other workers.
    pub fn new(
        frames: Frames,
        egress: EgressQueues,
        stages: Vec<(Stage, Vec<Option<Way>>)>,
        over: Option<Departures>,
    ) -> Between {
        let stages = stages.into_iter().map(|(stage, ways)| StageAt {
            stage,
            arrived: ways.iter().map(|_| Arrived::default()).collect(),
            ways: ways.into(),
        });
        Between {
            frames,
            egress,
            over,
            stages: stages.collect(),
            turns: VecDeque::new(),
            sent: StageOutput::default(),
        }
    }

    /// The stages.
    pub fn stages(&self) -> impl ExactSizeIterator<Item = &Stage> {
        self.stages.iter().map(|at| &at.stage)
    }

    /// Returns whether packets wait in a stage for something that comes without a word, so that no more may come to stages.
    pub fn is_waiting(&self) -> bool {
        self.stages.iter().any(|at| at.stage.is_waiting())
    }

    /// Returns whether the stage that a way leads to takes no more packets from the port of the path that leads there.
    pub(crate) fn holds(&self, way: Way, from: u16) -> bool {
        match way {
            Way::Stage(stage, port) => self.stages[stage].stage.holds(port, from),
            Way::Egress(_) | Way::Over(..) => false,
        }
    }

    /// A stage, by its place here, to be changed.
    pub(crate) fn stage_mut(&mut self, stage: usize) -> &mut Stage {
        &mut self.stages[stage].stage
    }

    /// Notes that the machine slept for so long while the clock stood still.
    pub(crate) fn note_asleep(&mut self, slept_ns: u64) {
        self.stages.iter_mut().for_each(|at| at.stage.note_asleep(slept_ns));
    }

    /// Packets that stages keep.
    pub fn kept(&self) -> Count {
        let mut kept = Count::default();
        self.stages().for_each(|stage| kept.merge(stage.held()));
        kept
    }

    /// Makes the stages that a way leads to, at whatever worker, forget the stations heard by it.
    pub fn forget(&mut self, way: Way) {
        let mut next = Some(way);
        while let Some(way) = next.take() {
            match way {
                Way::Stage(stage, port) => {
                    let StageAt { stage, ways, .. } = &mut self.stages[stage];
                    next = stage.forget(port).and_then(|other| ways[usize::from(other)]);
                }
                Way::Over(worker, to) => {
                    self.over.as_mut().expect("links lead to others").forget(worker, to);
                }
                Way::Egress(_) => {}
            }
        }
    }

    /// Moves packets with this count on, and leaves none; `landed` is told each place that one came to.
    pub fn take(
        &mut self,
        way: Way,
        received: &mut Vec<PathPacket>,
        count: Count,
        now_ns: u64,
        mut landed: impl FnMut(Landed),
    ) {
        match way {
            Way::Egress(queue) => {
                self.egress.enqueue_all(queue, received, count, &mut self.frames, &mut landed);
            }
            Way::Over(worker, to) => {
                hand(&mut self.over, &self.egress, (worker, to), received, count);
            }
            Way::Stage(stage, port) => {
                if !received.is_empty() {
                    let arrived = &mut self.stages[stage].arrived[usize::from(port)];
                    move_all(received, &mut arrived.packets);
                    arrived.count.merge(count);
                    self.turns.push_back((stage, port));
                    self.serve(now_ns, &mut landed);
                }
            }
        }
    }

    /// Does the work of stages that is due at this time; returns the time at which to call again.
    pub fn poll(&mut self, now_ns: u64) -> Option<u64> {
        let mut next_ns = None;
        for number in 0..self.stages.len() {
            let mut around = Around { frames: &mut self.frames, sent: &mut self.sent, now_ns };
            let stage_ns = self.stages[number].stage.poll(&mut around);
            next_ns = sooner(next_ns, stage_ns);
            self.pass_on(number, &mut |_| {});
            self.serve(now_ns, &mut |_| {});
        }
        next_ns
    }

    /// Lets stages decide until no packet waits before any.
    fn serve(&mut self, now_ns: u64, landed: &mut impl FnMut(Landed)) {
        while let Some((number, port)) = self.turns.pop_front() {
            let StageAt { stage, arrived, .. } = &mut self.stages[number];
            let mut around = Around { frames: &mut self.frames, sent: &mut self.sent, now_ns };
            let Arrived { packets, count } = &mut arrived[usize::from(port)];
            stage.process(port, packets, std::mem::take(count), &mut around);
            self.pass_on(number, landed);
        }
    }

    /// Moves the packets that left a stage on by the ways of its ports.
    fn pass_on(&mut self, number: usize, landed: &mut impl FnMut(Landed)) {
        let Between { frames, egress, over, stages, turns, sent } = self;
        for (port, count) in sent.runs.drain(..) {
            let packets = &mut sent.packets;
            match stages[number].ways[usize::from(port)].expect("packets leave by ports that lead on") {
                Way::Egress(queue) => {
                    let refused = |egress: &EgressQueues| egress.queues()[queue].counts().refused;
                    let before = refused(egress);
                    egress.enqueue_all(queue, packets, count, frames, landed);
                    let refused = refused(egress) - before;
                    if refused > 0 {
                        stages[number].stage.note_refused(port, refused);
                    }
                }
                Way::Over(worker, to) => hand(over, egress, (worker, to), packets, count),
                Way::Stage(next, port) => {
                    let arrived = &mut stages[next].arrived[usize::from(port)];
                    if arrived.packets.is_empty() {
                        turns.push_back((next, port));
                    }
                    arrived.count.merge(count);
                    move_first(packets, count.packets as usize, &mut arrived.packets);
                }
            }
        }
    }
}

/// Hands the first packets, which have this count, over to another worker, for the attachment `to` there.
fn hand(
    over: &mut Option<Departures>,
    egress: &EgressQueues,
    (worker, to): (usize, u32),
    packets: &mut Vec<PathPacket>,
    count: Count,
) {
    let receive_queue = |packet: &PathPacket| egress.receive_queue_of(&packet.meta);
    over.as_mut().expect("links lead to others").hand(worker, to, packets, count, receive_queue);
}
