//! A worker of a sink: its queues of the port, its workstream, and one bounded pass over both.
//!
//! A pass, in order:
//! 1. what other workers handed over is queued;
//! 2. what was received and could not be dispatched goes first; if nothing is left of that, its queues are polled in turn, and
//!    what a poll brings is steered and dispatched, until something cannot be;
//! 3. what waits in its workstream is handled;
//! 4. what is bound for other workers is published, credit told, and whoever waits for it woken.
//!
//! Held: a packet that finds its way full keeps its place before all that follow it (invariant 2), and no queue of this worker is
//! polled until it has gone. The rings of the device fill meanwhile, and hold the senders. Handing over and handling go on, so
//! workers that hold each other do not wait for each other.
//!
//! At rest, queues are looked at again after ever longer times, [`REST_NS_MAX`] at most, since packets of an AF_XDP socket at the
//! other end are not announced. A worker with a queue does not spin: each look is a system call for each queue, and takes the core
//! from senders on this machine, whose packets can wait in the device's ring. One without a queue spins and sleeps as [`Idle`]
//! says, until it is handed something.
//!
//! Owner: the thread that runs it.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;

use weir_core::dispatch::protocol::{ProtoId, Registry};
use weir_core::dispatch::workstream::Workstream;
use weir_core::drops::Count;
use weir_core::packet::Meta;
use weir_core::steer::rss::{BURST_MAX, Burst, Rss};
use weir_path::packet::PathPacket;
use weir_port::bpf::doorbell::{Announcements, Bell};
use weir_port::napi::Poller;
use weir_port::queue::Queue;
use weir_port::sys;
use weir_ring::handoff::{Inbox, Source};
use weir_ring::memory::FrameMemory;

use super::hands::Hands;
use super::shared::{Shared, Told, Want};
use super::ways::Message;
use crate::clock::now_ns;
use crate::idle::{Idle, Rest};

const REST_NS_MIN: u64 = 20_000;
/// The longest a worker with a queue rests, in nanoseconds.
pub const REST_NS_MAX: u64 = 1_000_000;

/// Set in the hash of a packet whose queue says which flows it has: 0 would say that it has none.
const HASHED: u32 = 1 << 31;

/// The queues of a worker.
pub struct Intake<'a> {
    /// The queues themselves.
    pub queues: Vec<&'a mut Queue>,
    /// What senders announce on all queues of the port.
    pub announcements: Arc<Announcements>,
    /// Rung by senders into its queues.
    pub bell: &'a Bell,
    /// Whether flows are dealt to workers here, because there are fewer queues than workers; otherwise the device has done that.
    pub steers: bool,
}

impl Intake<'_> {
    fn set_pollers(&mut self, pollers: Vec<(usize, Poller)>) {
        for (number, poller) in pollers {
            if let Some(queue) = self.queues.iter_mut().find(|queue| queue.number() == number) {
                queue.set_poller(poller);
            }
        }
    }
}

/// One worker.
pub struct Worker<'a> {
    number: usize,
    intake: Option<Intake<'a>>,
    /// The queue that is polled next.
    turn: usize,
    received: Vec<PathPacket>,
    burst: Burst,
    /// Received and not dispatched yet.
    held: VecDeque<PathPacket>,
    count: Count,
    /// Whether a queue could not be polled for want of frames.
    is_short: bool,
    ether: ProtoId,
    registry: Arc<Registry>,
    workstream: Workstream<PathPacket>,
    hands: Hands,
    inbox: Inbox<Message>,
    shared: Arc<Shared>,
}

/// What a worker leaves behind.
pub struct Ended {
    /// What came by its queues.
    pub received: Count,
    /// Received and not dispatched.
    pub held: Count,
    /// Its workstream, with its books.
    pub workstream: Workstream<PathPacket>,
    /// Its numbers of generators, and what was delivered.
    pub hands: Hands,
}

impl<'a> Worker<'a> {
    /// A worker of these parts.
    pub fn new(
        number: usize,
        intake: Option<Intake<'a>>,
        (ether, registry): (ProtoId, Arc<Registry>),
        hands: Hands,
        inbox: Inbox<Message>,
        shared: Arc<Shared>,
    ) -> Worker<'a> {
        let frames = hands.frames.pool.memory().frames() as usize;
        Worker {
            number,
            intake,
            turn: 0,
            received: Vec::with_capacity(2 * BURST_MAX),
            burst: Burst::default(),
            held: VecDeque::with_capacity(2 * BURST_MAX),
            count: Count::default(),
            is_short: false,
            ether,
            workstream: Workstream::new(number, Arc::clone(&registry), frames),
            registry,
            hands,
            inbox,
            shared,
        }
    }

    /// Works until it is told to end.
    ///
    /// # Errors
    /// If it cannot sleep.
    pub fn run(mut self, wake_cost_ns: u64) -> io::Result<Ended> {
        let mut idle = Idle::new(wake_cost_ns, now_ns());
        let mut rest_ns = REST_NS_MIN;
        while !self.shared.is_ending() {
            let now = now_ns();
            if self.pass(now, now_ns) > 0 {
                self.inbox.running();
                idle.worked(now);
                rest_ns = REST_NS_MIN;
                continue;
            }
            if self.intake.is_none() && idle.rest(now_ns(), None, true) == Rest::Spin {
                self.inbox.spinning();
                std::hint::spin_loop();
                continue;
            }
            self.park(rest_ns)?;
            rest_ns = (2 * rest_ns).min(REST_NS_MAX);
        }
        let mut held = Count::default();
        self.held.iter().for_each(|packet| held.add(packet.len_bytes.into()));
        Ok(Ended { received: self.count, held, workstream: self.workstream, hands: self.hands })
    }

    /// One pass; how much moved. What is handled at its end may let on what was held at its beginning, and what was held for that
    /// long is counted, so then the time is asked for again.
    fn pass(&mut self, now_ns: u64, clock_ns: impl Fn() -> u64) -> usize {
        let is_stopping = self.shared.is_stopping();
        let Worker { inbox, workstream, hands, intake, .. } = self;
        let own = self.number;
        let mut moved = inbox.drain(|source, message| match (source, message) {
            (Source::Worker(source), Message::Packet(proto, arrival)) => {
                // The sources of an inbox are the other workers in their order.
                hands.ways.took(source + usize::from(source >= own));
                workstream.receive(proto, arrival, hands);
            }
            (_, Message::Pollers(pollers)) => {
                if let Some(intake) = intake {
                    intake.set_pollers(pollers);
                }
            }
            _ => {}
        });
        self.tell(false);
        self.look(now_ns);
        moved += self.dispatch(now_ns);
        if !is_stopping {
            moved += self.receive(now_ns);
        }
        self.hands.ways.flush(0);
        moved += self.workstream.handle_queued(&mut self.hands);
        self.workstream.let_on(if self.held.is_empty() { now_ns } else { clock_ns() });
        self.tell(is_stopping);
        let waiting = self.shared.take_hungry(self.number, moved > 0, moved > 0);
        self.hands.ways.flush(waiting);
        moved
    }

    /// Polls its queues in turn, as long as what comes can be dispatched; how many packets came.
    fn receive(&mut self, now_ns: u64) -> usize {
        let before = self.count.packets;
        self.is_short = false;
        let queues = self.intake.as_ref().map_or(0, |intake| intake.queues.len());
        for _ in 0..queues {
            if !self.held.is_empty() {
                break;
            }
            let Some(intake) = &mut self.intake else { break };
            self.turn = (self.turn + 1) % queues;
            let queue = &mut intake.queues[self.turn];
            if !queue.offer(&mut self.hands.frames) {
                self.is_short = true;
                continue;
            }
            intake.announcements.expect_none(queue.number());
            queue.poll(&mut self.hands.frames, &mut self.received);
            let number = queue.number() as u16;
            let steers = intake.steers;
            self.take_in(number, steers, now_ns);
            self.dispatch(now_ns);
        }
        (self.count.packets - before) as usize
    }

    /// Holds what a poll brought, with the hashes of its flows; nothing was held before.
    fn take_in(&mut self, queue: u16, steers: bool, now_ns: u64) {
        let device_hash = HASHED | self.number as u32;
        let meta = Meta { arrival_ns: now_ns, flow_hash: device_hash, queue, ..Meta::default() };
        for packet in self.received.drain(..) {
            self.count.add(packet.len_bytes.into());
            self.held.push_back(PathPacket { meta, ..packet });
        }
        if steers {
            for burst in self.held.make_contiguous().chunks_mut(BURST_MAX) {
                steer(burst, self.registry.rss(), self.hands.frames.pool.memory(), &mut self.burst);
            }
        }
    }

    /// Dispatches what was received, up to the first packet that finds its way full; how many packets.
    fn dispatch(&mut self, now_ns: u64) -> usize {
        let before = self.held.len();
        while let Some(arrival) = self.held.pop_front() {
            if self.hands.ways.is_close() {
                self.look(now_ns);
            }
            if let Err(arrival) = self.workstream.dispatch(self.ether, arrival, now_ns, &mut self.hands) {
                self.held.push_front(arrival);
                break;
            }
        }
        before - self.held.len()
    }

    /// Looks at what is full at the other workers.
    fn look(&mut self, now_ns: u64) {
        let Worker { hands, workstream, .. } = self;
        hands.ways.look(|worker, full| workstream.set_peer_full(worker, full, now_ns));
    }

    /// Tells the others what they wait for, and the caller of [`super::Sink::receive`] how it goes.
    fn tell(&self, is_done: bool) {
        let Hands { ways, sequences, delivered, .. } = &self.hands;
        let seen = sequences.counts();
        ways.tell(self.workstream.full(), seen.numbered + seen.dropped);
        let dropped = self.workstream.account().dropped.total().packets;
        self.shared.tell(
            self.number,
            &Told {
                accepted: self.count.packets,
                ended: delivered.packets + dropped,
                delivered: delivered.packets,
                delivered_bytes: delivered.bytes,
                done: is_done,
            },
        );
    }

    /// Sleeps until there may be something to do; with queues of its own at most so long.
    fn park(&mut self, rest_ns: u64) -> io::Result<()> {
        let is_held = !self.held.is_empty();
        if is_held {
            self.shared.set_hungry(self.number, Want::Room);
        }
        if self.is_short {
            self.shared.set_hungry(self.number, Want::Frames);
        }
        let polls = !is_held && !self.is_short;
        let Worker { intake, inbox, hands, .. } = self;
        let bell = intake.as_ref().map(|intake| intake.bell);
        if let Some(bell) = bell {
            bell.park();
        }
        let is_announced = |intake: &Intake<'_>| {
            intake.queues.iter().any(|queue| intake.announcements.is_pending(queue.number()))
        };
        let has_work =
            || polls && intake.as_ref().is_some_and(is_announced) || is_held && hands.ways.has_news();
        let slept = match inbox.park(has_work) {
            Some(parked) => {
                // What is below 0 is not waited for: poll(2).
                let rung = bell.map_or(-1, Bell::fd);
                let mut fds = [rung, parked.as_fd().as_raw_fd()].map(sys::poll_in);
                sys::poll_readable(&mut fds, bell.map(|_| rest_ns)).map(drop)
            }
            None => Ok(()),
        };
        if let Some(bell) = bell {
            bell.unpark();
        }
        slept
    }
}

/// Gives the packets of a burst the hashes of their flows.
fn steer(packets: &mut [PathPacket], rss: &Rss, memory: &FrameMemory, burst: &mut Burst) {
    let mut frames: [&[u8]; BURST_MAX] = [&[]; BURST_MAX];
    frames.iter_mut().zip(packets.iter()).for_each(|(slot, packet)| *slot = packet.bytes(memory));
    rss.steer(&frames[..packets.len()], burst);
    for (place, packet) in packets.iter_mut().enumerate() {
        packet.meta.flow_hash = burst.hash(place);
    }
}

#[cfg(test)]
#[path = "worker_tests.rs"]
mod tests;
