//! The threads of a run: the receiver, which has the device and is worker 0, and worker 1; or receivers alone, each with a
//! queue of the device that brings the flows of its own.
//!
//! One pass of the receiver: what it received and could not dispatch goes first; if nothing is left of that, a burst out of the
//! device's ring; then what waits in its own queues. One pass of worker 1: what was handed off goes into its queues, then they
//! are drained. A pass is bounded on either side (invariant 6), and with nothing to do a thread spins for as long as that is
//! cheaper than sleeping, then parks.
//!
//! Order (invariant 2): the receiver dispatches in the order of the ring; a packet that is refused keeps its place before all
//! that follow it.
//! Owner: each thread its workstream, pool and half of the hand-off.

use std::collections::VecDeque;
use std::num::NonZeroU64;
use std::time::Duration;

use anyhow::Result;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::thread::set_current_timer_slack;
use rustix::time::{ClockId, clock_gettime};
use weir_core::dispatch::protocol::{ProtoId, WhenFull};
use weir_core::dispatch::workstream::{Handler, Next, Workstream};
use weir_core::drops::DropReason;
use weir_core::packet::{Meta, Packet};
use weir_core::steer::rss::{BURST_MAX, Burst};
use weir_port::sys::set_realtime;
use weir_ring::doorbell::{Doorbell, Parked};
use weir_ring::handoff::{Inbox, Outlet};
use weir_ring::pool::Pool;
use weir_run::clock::now_ns;
use weir_run::idle::{Idle, Rest};

use super::credit::Credit;
use super::plan::{Common, Plan};
use super::sender::Sender;
use super::work::{NetisrPacket, Tally, Writer, expect};
use crate::machine::pin;

/// After so many packets worker 1 says how far it is.
const SAY_EVERY: u64 = 32;

/// Credit that comes within so many times what a wake-up costs is waited for awake: a late wake-up costs worker 1 its time, too,
/// which has run out of packets by then.
const HELD_WAKES: u64 = 4;

/// When the receiver looks again for frames, having found none: with the rule `drop` all may be on their way to worker 1.
const FRAME_RETRY_NS: u64 = 20_000;

/// What is handed off.
type Handed = (ProtoId, NetisrPacket);

/// What a thread leaves behind.
pub(super) struct Ended {
    pub tally: Tally,
    pub dropped: u64,
    pub cpu_seconds: f64,
    pub pool: Pool,
}

/// What a thread does with packets.
struct Hands<'a> {
    common: &'a Common<'a>,
    pool: Pool,
    tally: Tally,
    /// The receiver's way to worker 1, if there is one.
    outlet: Option<Outlet<Handed>>,
    credit: Credit,
    dropped: u64,
    /// Whether somebody waits to hear how far this is.
    has_feeder: bool,
}

impl Handler<NetisrPacket> for Hands<'_> {
    fn handle(&mut self, proto: ProtoId, packet: NetisrPacket, next: &mut Next<'_, NetisrPacket>) {
        let common = self.common;
        if proto == common.ether {
            return next.dispatch(common.ip, packet);
        }
        if proto == common.ip {
            return next.dispatch(common.esp, packet);
        }
        next.delivered(packet.len_bytes());
        let bytes = common.memory.bytes(&packet.frame);
        self.tally.work(common.plan.cost, bytes, packet.meta.arrival_ns);
        self.pool.give(packet.frame);
        if self.has_feeder && self.tally.handled.is_multiple_of(SAY_EVERY) {
            self.say();
        }
    }

    fn mark(&mut self, _: &mut NetisrPacket) -> bool {
        false
    }

    fn hand_off(&mut self, _worker: usize, proto: ProtoId, packet: NetisrPacket) {
        self.credit.hand();
        let outlet = self.outlet.as_mut().expect("the receiver alone hands off");
        assert!(outlet.stage((proto, packet)).is_ok(), "the ring has room for every frame");
    }

    fn soon(&mut self, packet: &NetisrPacket) {
        expect(self.common.memory.bytes(&packet.frame));
    }

    fn dropped(&mut self, packet: NetisrPacket, _: DropReason) {
        self.dropped += 1;
        self.pool.give(packet.frame);
    }
}

impl<'a> Hands<'a> {
    fn new(
        has_feeder: bool,
        common: &'a Common<'a>,
        pool: Pool,
        outlet: Option<Outlet<Handed>>,
    ) -> Hands<'a> {
        let esp = common.plan.configuration.registry.get(common.esp);
        let limit = if esp.protocol.when_full == WhenFull::Drop { 0 } else { esp.qlimit };
        Hands {
            common,
            pool,
            tally: Tally::new(),
            outlet,
            credit: Credit::new(limit),
            dropped: 0,
            has_feeder,
        }
    }

    fn say(&self) {
        self.common.progress.say(self.tally.handled + self.dropped);
    }

    fn end(self, cpu_seconds_before: f64) -> Ended {
        let cpu_seconds = thread_cpu_seconds() - cpu_seconds_before;
        Ended { tally: self.tally, dropped: self.dropped, cpu_seconds, pool: self.pool }
    }
}

/// A thread that receives.
pub(super) struct Receiver<'a> {
    worker: usize,
    hands: Hands<'a>,
    workstream: Workstream<NetisrPacket>,
    doorbell: Doorbell,
    writer: Writer,
    burst: Burst,
    /// Received and not dispatched yet.
    held: VecDeque<NetisrPacket>,
    idle: Idle,
}

impl<'a> Receiver<'a> {
    /// Worker `worker`, with the flows that `writer` writes.
    pub fn new(
        worker: usize,
        common: &'a Common<'a>,
        pool: Pool,
        writer: Writer,
        outlet: Option<Outlet<Handed>>,
        doorbell: Doorbell,
    ) -> Receiver<'a> {
        Receiver {
            worker,
            hands: Hands::new(false, common, pool, outlet),
            workstream: workstream(worker, common),
            doorbell,
            writer,
            burst: Burst::default(),
            held: VecDeque::with_capacity(BURST_MAX),
            idle: Idle::new(common.plan.wake_cost_ns, now_ns()),
        }
    }

    /// Receives until the senders have ended; what became of them, when they began, and what is left of the thread.
    pub fn run(mut self) -> Result<(Sender, u64, Ended)> {
        let plan = self.hands.common.plan;
        let settled = settle(plan, self.worker);
        let cpu_seconds_before = thread_cpu_seconds();
        self.hands.common.start_line.wait();
        let start_ns = now_ns();
        let mut sender =
            Sender::new(plan.packets_per_s, plan.ring_drops, start_ns, start_ns + plan.duration_ns);
        loop {
            let now = now_ns();
            sender.advance(now);
            let moved = self.pass(&mut sender, now);
            if moved > 0 {
                self.doorbell.running();
                self.idle.worked(now);
            } else if sender.has_ended() && self.held.is_empty() && self.workstream.is_empty() {
                break;
            } else {
                self.rest(&sender);
            }
        }
        settled?;
        // Dropping the outlet lets worker 1 know that no more will come.
        self.hands.outlet = None;
        Ok((sender, start_ns, self.hands.end(cpu_seconds_before)))
    }

    fn pass(&mut self, sender: &mut Sender, now_ns: u64) -> usize {
        if self.held.is_empty() {
            self.receive(sender);
        }
        let moved = self.dispatch(now_ns);
        if let Some(outlet) = &mut self.hands.outlet {
            // Worker 1 outlives the outlet.
            outlet.flush().expect("worker 1 is there");
        }
        moved + self.workstream.drain(now_ns, &mut self.hands)
    }

    /// Takes a burst out of the device's ring, as far as there are frames, and hashes it.
    fn receive(&mut self, sender: &mut Sender) {
        let common = self.hands.common;
        for _ in 0..sender.waiting().min(BURST_MAX) {
            let Some(mut frame) = self.hands.pool.take() else { break };
            let arrival_ns = sender.take().expect("as many as are waiting");
            self.writer.write(common.memory.bytes_mut(&mut frame));
            self.held.push_back(NetisrPacket { frame, meta: Meta { arrival_ns, ..Meta::default() } });
        }
        let mut frames: [&[u8]; BURST_MAX] = [&[]; BURST_MAX];
        for (slot, packet) in frames.iter_mut().zip(&self.held) {
            *slot = common.memory.bytes(&packet.frame);
        }
        common.plan.configuration.registry.rss().steer(&frames[..self.held.len()], &mut self.burst);
        for (place, packet) in self.held.iter_mut().enumerate() {
            packet.meta.flow_hash = self.burst.hash(place);
        }
    }

    /// Dispatches what was received, up to the first packet that finds its way full.
    fn dispatch(&mut self, now_ns: u64) -> usize {
        let common = self.hands.common;
        let before = self.held.len();
        let has_peer = self.hands.outlet.is_some();
        while let Some(packet) = self.held.pop_front() {
            if has_peer {
                let is_full = self.hands.credit.is_full(&common.progress, now_ns);
                self.workstream.set_peer_full(1, u64::from(is_full) << common.esp.index(), now_ns);
            }
            if let Err(packet) = self.workstream.dispatch(common.ether, packet, now_ns, &mut self.hands) {
                self.held.push_front(packet);
                break;
            }
        }
        before - self.held.len()
    }

    fn rest(&mut self, sender: &Sender) {
        // Held packets wait for worker 1, until it should have room; for its kick if it needs this core for that. Packets in the
        // ring wait for frames, which nobody announces. Otherwise the next to fall due is waited for.
        let (now, is_held) = (now_ns(), !self.held.is_empty());
        let deadline_ns = match (is_held, sender.waiting()) {
            (true, _) if self.hands.common.plan.shares_core => None,
            (true, _) => Some(self.hands.credit.ready_ns(now)),
            (false, 0) => sender.due_ns(),
            (false, _) => Some(now + FRAME_RETRY_NS),
        };
        let is_near = |ns: u64| ns.saturating_sub(now) < HELD_WAKES * self.hands.common.plan.wake_cost_ns;
        let rest = match deadline_ns {
            Some(ready_ns) if is_held && is_near(ready_ns) => Rest::Spin,
            _ => self.idle.rest(now, deadline_ns, is_held),
        };
        match rest {
            Rest::Spin => {
                self.doorbell.spinning();
                std::hint::spin_loop();
            }
            Rest::Park(until_ns) => {
                let progress = &self.hands.common.progress;
                if let Some(parked) = self.doorbell.park(|| is_held && progress.is_reached()) {
                    sleep(&parked, until_ns);
                }
            }
        }
    }
}

/// The thread that others hand to.
pub(super) struct Worker<'a> {
    hands: Hands<'a>,
    workstream: Workstream<NetisrPacket>,
    inbox: Inbox<Handed>,
    idle: Idle,
}

impl<'a> Worker<'a> {
    pub fn new(common: &'a Common<'a>, pool: Pool, inbox: Inbox<Handed>) -> Worker<'a> {
        Worker {
            hands: Hands::new(true, common, pool, None),
            workstream: workstream(1, common),
            inbox,
            idle: Idle::new(common.plan.wake_cost_ns, now_ns()),
        }
    }

    /// Works until the receiver has gone and nothing is left.
    pub fn run(mut self) -> Result<Ended> {
        let settled = settle(self.hands.common.plan, 1);
        let cpu_seconds_before = thread_cpu_seconds();
        // What a full queue is to drop must have come to it.
        let most = if self.hands.common.plan.ring_drops { usize::MAX } else { BURST_MAX };
        self.hands.common.start_line.wait();
        loop {
            let (workstream, hands) = (&mut self.workstream, &mut self.hands);
            let took = |_, (proto, packet)| workstream.receive(proto, packet, hands);
            let came = self.inbox.drain_some(most, took);
            let handled = workstream.drain(now_ns(), hands);
            if came + handled > 0 {
                hands.say();
                self.inbox.running();
                self.idle.worked(now_ns());
            } else if self.inbox.gone().next().is_some() {
                break;
            } else {
                self.rest();
            }
        }
        settled?;
        Ok(self.hands.end(cpu_seconds_before))
    }

    fn rest(&mut self) {
        match self.idle.rest(now_ns(), None, true) {
            Rest::Spin => {
                self.inbox.spinning();
                std::hint::spin_loop();
            }
            Rest::Park(until_ns) => {
                if let Some(parked) = self.inbox.park(|| false) {
                    sleep(&parked, until_ns);
                }
            }
        }
    }
}

fn workstream(worker: usize, common: &Common<'_>) -> Workstream<NetisrPacket> {
    let registry = common.plan.configuration.registry.clone();
    Workstream::new(worker, registry, common.memory.frames() as usize)
}

/// Puts this thread on its core and, as weir-run does with its workers, before all others; its sleeps end when they shall.
fn settle(plan: &Plan<'_>, worker: usize) -> Result<()> {
    set_current_timer_slack(NonZeroU64::new(1))?;
    if !plan.shares_core {
        set_realtime();
    }
    plan.cores.map_or(Ok(()), |cores| pin(cores[worker]))
}

/// Sleeps until a kick or until then.
fn sleep(parked: &Parked<'_>, until_ns: Option<u64>) {
    let limit = until_ns.map(|until_ns| Duration::from_nanos(until_ns.saturating_sub(now_ns())));
    let limit = limit.map(|limit| Timespec::try_from(limit).expect("a run ends within minutes"));
    // A wait that a signal ends is a look too many, no more.
    let _ = poll(&mut [PollFd::new(parked, PollFlags::IN)], limit.as_ref());
}

fn thread_cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
