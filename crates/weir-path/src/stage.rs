//! The stages between ports: bridges, routers, dispatch and ESP, each given a burst at a time.
//!
//! A bridge and a router are the core's ([`weir_core::net`]); here packets are moved as they decide. Each packet of a burst goes
//! exactly one way: on by a port of the stage, into a router's keeping, or out of the path.
//!
//! | stage | ports | a packet that comes in |
//! |---|---|---|
//! | bridge | 2 to 64 | is forwarded or flooded; copies need frames, and are dropped as `no-frame` without |
//! | router | one for each interface, of a host for each socket too | as [`weir_core::net::router`] says; its own packets wait until there is a frame |
//! | dispatch | `dispatch.rs` | is handled, or waits for that at the worker of its flow |
//! | sealer | 1 | is sealed or opened for an ESP, and goes back to it |
//! | ESP | inside, outside, a queue of each, each sealer | is sealed or opened, `stage/protect.rs`; waits while no number is reserved for it |
//!
//! Conservation (invariant 1): accepted = delivered + dropped + held, where accepted are the packets that came in by the stage's ports and
//! those that it made itself (copies, fragments, messages of its own), delivered those that it sent on or that were for itself, held those
//! that it keeps. The packets that a router keeps for a neighbour are also counted when they enter its keeping and when they leave it, so
//! that these sums can be compared with the packets that are there.
//!
//! Owner: one worker.

mod protect;

use std::sync::Arc;

use weir_core::account::Account;
use weir_core::drops::{Count, DropReason};
use weir_core::due::sooner;
use weir_core::net::BURST_MAX;
use weir_core::net::bridge::{Bridge, Egress as Forwarded, PortSet};
use weir_core::net::fragment::Fragments;
use weir_core::net::router::{Router, RouterError, RouterSettings, Verdict};
use weir_core::packet::{Meta, count_of, move_first};
use weir_ring::memory::{Frame, FrameMemory};

use crate::dispatch::{Dispatch, Handled};
use crate::egress::{EgressCounts, OWN_PORT};
use crate::esp::sealer::Sealer;
use crate::esp::{Esp, INSIDE, OUTSIDE};
use crate::frames::Frames;
use crate::packet::PathPacket;
use crate::plan::StageKind;
use crate::shaping::ReleaseCounts;

/// Packets on their way out of a stage, in runs of those that leave by the same port.
#[derive(Default)]
pub struct StageOutput {
    pub(crate) packets: Vec<PathPacket>,
    /// The port of each run, and its count.
    pub(crate) runs: Vec<(u16, Count)>,
}

impl StageOutput {
    fn push(&mut self, out: u16, packet: PathPacket) {
        self.note(out, Count { packets: 1, bytes: packet.len_bytes.into() });
        self.packets.push(packet);
    }

    /// Moves the first packets here as a run, which has this count.
    fn take_run(&mut self, out: u16, packets: &mut Vec<PathPacket>, run: Count) {
        move_first(packets, run.packets as usize, &mut self.packets);
        self.note(out, run);
    }

    fn note(&mut self, out: u16, run: Count) {
        match self.runs.last_mut() {
            Some((last, count)) if *last == out => count.merge(run),
            _ => self.runs.push((out, run)),
        }
    }
}

/// A stage.
pub struct Stage {
    decision: Decision,
    account: Account,
    /// The part of `account` that the stage made itself.
    made: Count,
    /// The part of `account` that the stage consumed.
    consumed: Count,
    keeping: Keeping,
    /// Frames for the fragments of the packet that is being cut; empty otherwise.
    cutting: Vec<Frame>,
    /// Packets that are back from sealers and being decided on; empty otherwise.
    merged: Vec<PathPacket>,
    /// The decisions of a bridge on a burst; empty between bursts.
    forwarded: Vec<(Forwarded, usize)>,
}

/// The counts of the packets that a stage does not decide on at once, apart from its books.
#[derive(Default)]
struct Keeping {
    /// Packets that the stage began to keep.
    entered: u64,
    /// Packets that the stage kept and that went on, or were for itself.
    delayed: u64,
    /// Packets that the stage kept and dropped.
    dropped: u64,
    /// The most packets that the stage kept.
    held_max: u64,
}

/// The part of a stage that decides, by its kind.
enum Decision {
    Bridge(Bridge),
    Router(Box<Router<PathPacket>>),
    Dispatch(Box<Dispatch>),
    Esp(Box<Esp>),
    Sealer(Sealer),
}

/// The things around a stage that it moves packets with: the frames of the worker, the packets that leave the stage, and the time.
pub struct Around<'a> {
    /// The frames of the worker, in which packets begin and end.
    pub frames: &'a mut Frames,
    /// Packets that leave the stage.
    pub sent: &'a mut StageOutput,
    /// The present time, in nanoseconds.
    pub now_ns: u64,
}

impl Stage {
    /// A stage of this kind. `seed` is random, so that no sender can prepare addresses that collide.
    ///
    /// # Errors
    /// If a router cannot have these settings.
    pub fn new(kind: &StageKind, seed: u64, now_ns: u64) -> Result<Stage, RouterError> {
        let decision = match kind {
            StageKind::Bridge { ports, stations_max, ageing_ns } => {
                let mut bridge = Bridge::new(*stations_max, *ageing_ns, seed);
                (0..*ports).for_each(|port| bridge.add_port(port));
                Decision::Bridge(bridge)
            }
            StageKind::Router(settings) => {
                let settings = RouterSettings { seed, ..(**settings).clone() };
                Decision::Router(Box::new(Router::new(settings, now_ns)?))
            }
            StageKind::Dispatch(plan) => Decision::Dispatch(Box::new(Dispatch::new(plan))),
            StageKind::Esp(plan) => Decision::Esp(Box::new(Esp::new(plan))),
            StageKind::Sealer => Decision::Sealer(Sealer::default()),
        };
        Ok(Stage {
            decision,
            account: Account::default(),
            made: Count::default(),
            consumed: Count::default(),
            keeping: Keeping::default(),
            cutting: Vec::new(),
            merged: Vec::new(),
            forwarded: Vec::new(),
        })
    }

    /// Takes the packets that came in by `port`, which have this count, and leaves none.
    pub fn process(
        &mut self,
        port: u16,
        packets: &mut Vec<PathPacket>,
        mut count: Count,
        around: &mut Around,
    ) {
        if self.defer(port, packets, around) {
            count = count_of(packets);
        }
        self.account.accept_all(count);
        // The count of the packets that are left, as long as all have gone on.
        let mut left = count;
        while !packets.is_empty() {
            let burst = packets.len().min(BURST_MAX);
            match &mut self.decision {
                Decision::Bridge(bridge) => {
                    let mut runs = std::mem::take(&mut self.forwarded);
                    let memory = around.frames.memory();
                    let frames = packets[..burst].iter().map(|packet| packet.bytes(memory));
                    bridge.forward(port, frames, around.now_ns, &mut runs);
                    let flooded = bridge.flood_ports(port);
                    let mut others = flooded;
                    let only = others.next().filter(|_| others.next().is_none());
                    // Neighbours in a burst mostly go the same way.
                    for (forwarded, count) in runs.drain(..) {
                        let forwarded = match (forwarded, only) {
                            (Forwarded::Flood, Some(out)) => Forwarded::Port(out),
                            (forwarded, _) => forwarded,
                        };
                        match forwarded {
                            Forwarded::Port(out) => self.send_run(out, packets, count, &mut left, around),
                            Forwarded::Flood => {
                                packets.drain(..count).for_each(|packet| self.flood(packet, flooded, around));
                            }
                            Forwarded::Drop(reason) => {
                                packets.drain(..count).for_each(|packet| self.drop(packet, reason, around));
                            }
                        }
                    }
                    // The memory of the list is used again.
                    self.forwarded = runs;
                }
                Decision::Router(router) => {
                    let mut verdicts = [Verdict::Local; BURST_MAX];
                    let memory: &FrameMemory = around.frames.memory();
                    let only =
                        router.process(port, &mut packets[..burst], memory, around.now_ns, &mut verdicts);
                    if let Some(out) = only {
                        self.send_run(out, packets, burst, &mut left, around);
                        self.release(around);
                        continue;
                    }
                    for run in verdicts[..burst].chunk_by(|one, next| one == next) {
                        let count = run.len();
                        if let Verdict::Forward(out) = run[0] {
                            self.send_run(out, packets, count, &mut left, around);
                        } else {
                            packets.drain(..count).for_each(|packet| self.route(packet, run[0], around));
                        }
                    }
                    self.release(around);
                }
                Decision::Dispatch(dispatch) => {
                    let mut handled = [Handled::Delivered; BURST_MAX];
                    dispatch.handle(port, &mut packets[..burst], around.frames.memory(), &mut handled);
                    for run in handled[..burst].chunk_by(|one, next| one == next) {
                        let count = run.len();
                        match run[0] {
                            Handled::Sent(out) => self.send_run(out, packets, count, &mut left, around),
                            Handled::Delivered => {
                                packets.drain(..count).for_each(|packet| self.consume(packet, around));
                            }
                            Handled::Dropped(reason) => {
                                packets.drain(..count).for_each(|packet| self.drop(packet, reason, around));
                            }
                        }
                    }
                }
                Decision::Esp(_) => self.protect(port, packets, burst, around),
                Decision::Sealer(sealer) => {
                    sealer.process(packets, around.frames.memory());
                    self.send_run(port, packets, packets.len(), &mut left, around);
                }
            }
        }
    }

    /// Does the work that is due at this time; returns the time at which to call again.
    pub fn poll(&mut self, around: &mut Around) -> Option<u64> {
        match &mut self.decision {
            Decision::Router(router) => {
                let next_ns = router.poll(around.now_ns);
                let dropped = self.keeping.dropped;
                self.release(around);
                // Ports that were held while the dropped packets waited have their turn at once.
                if self.keeping.dropped > dropped { Some(around.now_ns) } else { next_ns }
            }
            Decision::Esp(_) => {
                let released_ns = self.release_sealed(around);
                let due_ns = sooner(released_ns, self.keep_alive(around));
                let due_ns = sooner(due_ns, self.expire_fragments(around));
                if let Decision::Esp(esp) = &mut self.decision {
                    esp.end_pass(around.now_ns);
                }
                due_ns
            }
            Decision::Bridge(_) | Decision::Dispatch(_) | Decision::Sealer(_) => None,
        }
    }

    /// Forgets the stations and neighbours that were heard at a port: none is there any more. Returns the port of a stage that heard none
    /// itself and let others, behind that port, hear them.
    pub fn forget(&mut self, port: u16) -> Option<u16> {
        match &mut self.decision {
            Decision::Bridge(bridge) => bridge.forget(port),
            Decision::Router(router) => router.forget(port),
            Decision::Esp(_) => return Some(if port == INSIDE { OUTSIDE } else { INSIDE }),
            Decision::Dispatch(_) | Decision::Sealer(_) => {}
        }
        None
    }

    /// The books of the stage.
    pub fn account(&self) -> &Account {
        &self.account
    }

    /// The parts of its books that the stage made itself, and that it consumed.
    pub fn own(&self) -> [Count; 2] {
        [self.made, self.consumed]
    }

    /// Packets that entered the stage and that left it, as a queue counts them. The packets that it makes are decided on at once.
    pub fn counts(&self) -> (EgressCounts, ReleaseCounts) {
        let &Keeping { entered, delayed, dropped, held_max } = &self.keeping;
        let dispatched = self.account.delivered.packets - delayed;
        let refused = self.account.dropped.total().packets - dropped;
        let intake =
            EgressCounts { entered: dispatched + entered, refused, held_max, ..EgressCounts::default() };
        (intake, ReleaseCounts { dispatched, delayed, dropped })
    }

    /// Packets that the stage keeps.
    pub fn held(&self) -> Count {
        match &self.decision {
            Decision::Bridge(_) | Decision::Dispatch(_) | Decision::Sealer(_) => Count::default(),
            Decision::Router(router) => router.held(),
            Decision::Esp(esp) => esp.held(),
        }
    }

    /// Returns whether no packets may be taken from the port `from` of the path, which leads to `port` here.
    pub(crate) fn holds(&self, port: u16, from: u16) -> bool {
        match &self.decision {
            Decision::Esp(esp) => esp.holds(port),
            Decision::Router(router) => router.holds(port, from),
            Decision::Bridge(_) | Decision::Dispatch(_) | Decision::Sealer(_) => false,
        }
    }

    /// The bridge, if the stage is one.
    pub fn bridge(&self) -> Option<&Bridge> {
        match &self.decision {
            Decision::Bridge(bridge) => Some(bridge),
            _ => None,
        }
    }

    /// The router, if the stage is one.
    pub fn router(&self) -> Option<&Router<PathPacket>> {
        match &self.decision {
            Decision::Router(router) => Some(router),
            _ => None,
        }
    }

    /// Sets the longest IP packet that an interface takes, of stages to which that matters.
    pub(crate) fn set_mtu_bytes(&mut self, interface: u16, mtu_bytes: u16) {
        match &mut self.decision {
            Decision::Router(router) => router.set_mtu_bytes(interface, mtu_bytes),
            Decision::Esp(esp) => esp.set_way_bytes(interface, mtu_bytes),
            _ => {}
        }
    }

    /// The router, to be changed.
    pub(crate) fn router_mut(&mut self) -> Option<&mut Router<PathPacket>> {
        match &mut self.decision {
            Decision::Router(router) => Some(router),
            _ => None,
        }
    }

    /// The dispatch, if the stage is one.
    pub fn dispatch(&self) -> Option<&Dispatch> {
        match &self.decision {
            Decision::Dispatch(dispatch) => Some(dispatch),
            _ => None,
        }
    }

    /// Sends the first `count` packets. That of all packets is `left`, if so many are left.
    fn send_run(
        &mut self,
        out: u16,
        packets: &mut Vec<PathPacket>,
        count: usize,
        left: &mut Count,
        around: &mut Around,
    ) {
        let is_rest = count == packets.len() && count as u64 == left.packets;
        let run = if is_rest { *left } else { count_of(&packets[..count]) };
        left.sub_all(run);
        self.account.deliver_all(run);
        around.sent.take_run(out, packets, run);
    }

    fn send(&mut self, out: u16, packet: PathPacket, around: &mut Around) {
        self.account.deliver(packet.len_bytes.into());
        around.sent.push(out, packet);
    }

    fn consume(&mut self, packet: PathPacket, around: &mut Around) {
        self.account.deliver(packet.len_bytes.into());
        self.consumed.add(packet.len_bytes.into());
        around.frames.pool.give(packet.frame);
    }

    fn drop(&mut self, packet: PathPacket, reason: DropReason, around: &mut Around) {
        self.account.drop(reason, packet.len_bytes.into());
        around.frames.pool.give(packet.frame);
    }

    /// Sends a packet to each of the ports: copies, and the packet itself to the first, so that a flood to one port needs no frame.
    fn flood(&mut self, packet: PathPacket, mut ports: PortSet, around: &mut Around) {
        let Some(first) = ports.next() else { return self.drop(packet, DropReason::OwnSegment, around) };
        for port in ports {
            self.accept_made(packet.len_bytes.into());
            let Some(frame) = around.frames.pool.take() else {
                self.account.drop(DropReason::NoFrame, packet.len_bytes.into());
                continue;
            };
            let mut copy = packet.in_frame(frame, packet.len_bytes);
            copy.bytes_mut(around.frames.memory()).copy_from_slice(packet.bytes(around.frames.memory()));
            self.send(port, copy, around);
        }
        self.send(first, packet, around);
    }

    fn accept_made(&mut self, len_bytes: u32) {
        self.account.accept(len_bytes);
        self.made.add(len_bytes);
    }

    fn route(&mut self, packet: PathPacket, verdict: Verdict, around: &mut Around) {
        let Decision::Router(router) = &mut self.decision else { return };
        match verdict {
            Verdict::Forward(out) => self.send(out, packet, around),
            Verdict::Fragment(out) => self.cut(out, packet, around),
            Verdict::Hold(neighbour) => {
                router.hold(neighbour, packet);
                self.keeping.entered += 1;
                self.keeping.held_max = self.keeping.held_max.max(router.held().packets);
            }
            Verdict::Local => self.consume(packet, around),
            Verdict::Drop(reason) => self.drop(packet, reason, around),
        }
    }

    /// Takes out of a router the packets that need not wait any longer, and those that it made itself.
    fn release(&mut self, around: &mut Around) {
        while let Decision::Router(router) = &mut self.decision {
            let memory: &FrameMemory = around.frames.memory();
            let Some((packet, verdict)) = router.release(memory, around.now_ns) else { break };
            let delivered = self.account.delivered.packets;
            self.route(packet, verdict, around);
            match self.account.delivered.packets > delivered {
                true => self.keeping.delayed += 1,
                false => self.keeping.dropped += 1,
            }
        }
        while let Decision::Router(router) = &mut self.decision {
            // The frame comes first: a packet that the router hands out is out of its keeping.
            let Some(frame) = around.frames.pool.take() else { break };
            let Some((out, bytes)) = router.made() else {
                around.frames.pool.give(frame);
                break;
            };
            let mut packet = PathPacket::new(frame, 0, bytes.len() as u16);
            packet.meta = own_meta(around.now_ns);
            packet.bytes_mut(around.frames.memory()).copy_from_slice(bytes);
            self.accept_made(packet.len_bytes.into());
            self.send(out, packet, around);
        }
    }

    /// Ends a packet and sends its fragments in its place. Without frames for all fragments there are none, and the packet is dropped.
    fn cut(&mut self, out: u16, packet: PathPacket, around: &mut Around) {
        let Decision::Router(router) = &mut self.decision else { return };
        let memory = Arc::clone(around.frames.memory());
        let cut = Fragments::new(packet.bytes(&memory), router.mtu_bytes(out));
        let cut = cut.and_then(|fragments| {
            match take_frames(&mut self.cutting, fragments.count(), around.frames) {
                true => Ok(fragments),
                false => Err(DropReason::NoFrame),
            }
        });
        router.note_fragments(self.cutting.len());
        match cut {
            Ok(mut fragments) => {
                for mut frame in std::mem::take(&mut self.cutting) {
                    let len_bytes =
                        fragments.write_next(memory.bytes_mut(&mut frame)).expect("it was counted");
                    self.accept_made(len_bytes.into());
                    self.send(out, packet.in_frame(frame, len_bytes), around);
                }
                self.consume(packet, around);
            }
            Err(reason) => self.drop(packet, reason, around),
        }
    }
}

/// The metadata of a packet that a stage made.
fn own_meta(now_ns: u64) -> Meta {
    Meta { arrival_ns: now_ns, port: OWN_PORT, ..Meta::default() }
}

/// Takes `count` frames, or none; returns whether it took them.
fn take_frames(taken: &mut Vec<Frame>, count: usize, frames: &mut Frames) -> bool {
    while taken.len() < count {
        let Some(frame) = frames.pool.take() else {
            frames.pool.give_all(taken.drain(..));
            return false;
        };
        taken.push(frame);
    }
    true
}
