//! The classes in which packets wait to leave by a port: one class behind the limits of the command line, or the tree of a classes file
//! with a way past it.
//!
//! ```text
//!                      +--> leaf --+
//! packet --classifier--+--> leaf --+--tree--link-+--> out        link: --rate, if given, limits the tree as a whole
//!                      +--> free ----------------+               free and tree take turns, packet by packet
//! ```
//!
//! A class is full at its limit in bytes, and also at an even share of the packets that a direction may hold, so that none
//! can take the frames that others need.
//!
//! A change of the classes ([`Shaping::set_classes`]) is made between two packets. Classes that the new file names again, in the same place
//! of the tree, stay: their buckets, books, delays and turns. Every waiting packet is then put into the class that the new filters say,
//! each flow's in the order in which they wait, and keeps its time of arrival. A flow's packets wait in one queue of one class before and
//! after, so none overtakes another; nothing is dropped unless the rule of its new class is `drop` and that class is full. Books, delays
//! and blocked times of classes that are gone live on in the direction's.
//!
//! Owner: one worker. Limits: a change to another kind of tree, or of a class's parent, begins with full buckets.

mod change;
mod refuse;
mod rows;

use std::sync::Arc;

use weir_core::account::Account;
use weir_core::classify::fragments::FragmentTargets;
use weir_core::classify::{Target, headers::Headers};
use weir_core::drops::Count;
use weir_core::packet::count_of;
use weir_core::shaper::Shaper;
use weir_core::shaper::backlog::{Backlog, Dequeue, FullPolicy, Refused};
use weir_core::shaper::blocked::Blocked;
use weir_core::shaper::class::{Class, ClassSize};
use weir_core::shaper::delay::DelayHistogram;
use weir_core::shaper::tbf::{TbfConfig, TbfError};

use crate::classes::{Classes, FRAME_BYTES};
use crate::frames::Frames;
use crate::packet::PathPacket;
use crate::port::POLL_PACKETS_MAX;
pub use rows::{Holder, Holders, Row};

/// The class of packets that pass all limits; its number is beyond every class of a tree.
pub const FREE: usize = u16::MAX as usize;
/// The longest that departures are gathered for, in nanoseconds: a wake-up for each packet would cost more.
const GATHER_NS_MAX: u64 = 250_000;

/// The polls that another worker brings in ahead where no limit is set for a class.
const AHEAD_POLLS: u64 = 4;

/// The most packets that leave in one pass.
const BURST: usize = 64;

/// The sizes that hold for all classes that a direction ever has.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// The flows of each class: the receive queues that packets come from.
    pub flows: usize,
    /// The slots: all packets that may be held, also those that come beyond the bound.
    pub packets_max: usize,
    /// The bound on packets that are held, which classes share.
    pub held_packets_max: u64,
    /// The quantum of the fair queues, and the least credit.
    pub quantum_bytes: u32,
}

/// The packets that left in one release.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Release {
    /// The packets.
    pub left: Count,
    /// The time at which the next packet may leave, if it waits for that.
    pub wake_ns: Option<u64>,
    /// True if there was room for fewer than a burst, and more wait.
    pub is_short: bool,
}

/// The counts of a direction where packets leave its classes, apart from the books of these.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReleaseCounts {
    /// Packets that left in the pass that brought them in.
    pub dispatched: u64,
    /// Packets that left later.
    pub delayed: u64,
    /// Packets that were dropped after they had waited.
    pub dropped: u64,
}

/// The classes of one direction.
pub struct Shaping {
    size: Size,
    shaper: Shaper<PathPacket>,
    limits: Option<TbfConfig>,
    /// The longest packet that comes, in bytes. Buckets of a tree admit while they are not in debt, so they are a packet less deep than the
    /// burst.
    packet_bytes_max: u64,
    tree: Option<Sharing>,
    retired: Retired,
    /// The most packets that one class may hold.
    packets_share: u64,
    gather_ns: u64,
    released: ReleaseCounts,
}

/// The books, delays and blocked times of classes that are no more.
#[derive(Default)]
struct Retired {
    /// Their books, and those of packets that were refused before any class.
    account: Account,
    /// The standing delays of their packets.
    delay: DelayHistogram,
    /// The time by which they had blocked feeders longer than the classes that stayed, in nanoseconds.
    blocked_ns: u64,
}

impl Retired {
    /// Keeps the books and delays of a class that is no more.
    fn keep(&mut self, backlog: &Backlog) {
        self.account.merge(backlog.account());
        self.delay.merge(backlog.delay());
    }
}

/// The parts beside the shaper when it is a tree.
struct Sharing {
    classes: Arc<Classes>,
    /// The number in the tree of each class of the file.
    numbers: Vec<usize>,
    free: Class<PathPacket>,
    /// True if it is the free packets' turn.
    free_is_next: bool,
    fragments: FragmentTargets,
}

impl Shaping {
    /// One class behind these limits, or behind none.
    pub fn new(size: Size, limits: Option<TbfConfig>, now_ns: u64) -> Result<Shaping, TbfError> {
        let class = Class::new(class_size(size), limits, now_ns)?;
        let mut shaping = Shaping {
            size,
            shaper: Shaper::Class(Box::new(class)),
            limits,
            packet_bytes_max: FRAME_BYTES,
            tree: None,
            retired: Retired::default(),
            packets_share: size.packets_max as u64,
            gather_ns: 0,
            released: ReleaseCounts::default(),
        };
        shaping.set_gather();
        Ok(shaping)
    }

    /// Changes the limits: of the one class, or of the tree as a whole. No packet that waits is touched. On an error nothing has changed.
    pub fn set_limits(&mut self, limits: Option<TbfConfig>, now_ns: u64) -> Result<(), TbfError> {
        if let Some(limits) = limits {
            limits.check()?;
        }
        if let Shaper::Class(class) = &mut self.shaper {
            class.set_limits(limits, now_ns)?;
        }
        self.limits = limits;
        self.set_link(now_ns);
        self.set_gather();
        Ok(())
    }

    /// Reckons with packets of up to so many bytes from now on, or with those of an MTU of 1500 if that is more.
    pub fn set_packet_bytes_max(&mut self, bytes: u64, now_ns: u64) {
        self.packet_bytes_max = bytes.max(FRAME_BYTES);
        self.set_meters(now_ns);
        self.set_link(now_ns);
        self.set_gather();
    }

    /// The limits: of the one class, or of the tree as a whole.
    pub fn limits(&self) -> Option<&TbfConfig> {
        self.limits.as_ref()
    }

    /// The classes, if there are any.
    pub fn classes(&self) -> Option<&Arc<Classes>> {
        self.tree.as_ref().map(|tree| &tree.classes)
    }

    /// The class of all packets, if there is one only, which marks none.
    #[inline(always)]
    pub fn only_class(&self) -> Option<usize> {
        self.tree.is_none().then_some(0)
    }

    /// The class of a packet that came in by a port, which filters know by its number.
    #[inline]
    pub fn class_of(&mut self, port: u16, frame: &[u8]) -> usize {
        match &mut self.tree {
            None => 0,
            Some(tree) => tree.class_of(port, frame),
        }
    }

    /// The class of packets that no filter matches.
    pub fn default_class(&self) -> usize {
        let tree = self.tree.as_ref();
        tree.map_or(0, |tree| tree.classes.default.map_or(FREE, |class| tree.numbers[class]))
    }

    /// Returns whether packets of a class may be marked as having met congestion.
    pub fn marks(&self, class: usize) -> bool {
        self.backlog(class).is_some_and(|backlog| matches!(backlog.rule().when_full, FullPolicy::Ecn(_)))
    }

    /// The class, if so many packets that come now may pass by its queues.
    #[inline(always)]
    pub fn passing(&mut self, packets: usize) -> Option<&mut Class<PathPacket>> {
        match &mut self.shaper {
            Shaper::Class(class) if class.may_pass(packets) => Some(class),
            _ => None,
        }
    }

    /// Takes a packet of a flow in.
    #[inline]
    pub fn enqueue(
        &mut self,
        class: usize,
        flow: usize,
        packet: PathPacket,
    ) -> Result<(), Refused<PathPacket>> {
        match &mut self.tree {
            Some(tree) if class == FREE => tree.free.enqueue(flow, packet),
            _ => self.shaper.enqueue(class, flow, packet),
        }
    }

    /// Lets out the packets that the classes admit behind others in `out`, `room` packets at the most. Departures are gathered, never for
    /// so long that a bucket would overflow: a wake-up for each packet would cost more.
    pub fn release(
        &mut self,
        room: u32,
        frames: &mut Frames,
        now_ns: u64,
        out: &mut Vec<PathPacket>,
    ) -> Release {
        let (before, most) = (out.len(), BURST.min(room as usize));
        let (mut left, came_now) = match &mut self.shaper {
            Shaper::Class(class) => class.pass_out(most, now_ns, out),
            Shaper::Htb(_) | Shaper::Cbq(_) => (Count::default(), 0),
        };
        let (passed, dropped) = (out.len(), self.released.dropped);
        let mut wake_ns = self.dequeue_all(before + most, frames, now_ns, out);
        if self.released.dropped > dropped {
            // Queues that were held while the dropped packets waited have their turn at once.
            wake_ns = Some(now_ns);
        }
        let also_now = out[passed..].iter().filter(|packet| packet.meta.arrival_ns == now_ns).count();
        left.merge(count_of(&out[passed..]));
        let dispatched = came_now + also_now as u64;
        self.released.dispatched += dispatched;
        self.released.delayed += left.packets - dispatched;
        let is_short = most < BURST && left.packets == most as u64 && self.held().packets > 0;
        Release { left, wake_ns, is_short }
    }

    /// Moves the packets that may leave now behind others in `out`, until there are `most`; returns the time at which the next may leave,
    /// if it waits for that.
    fn dequeue_all(
        &mut self,
        most: usize,
        frames: &mut Frames,
        now_ns: u64,
        out: &mut Vec<PathPacket>,
    ) -> Option<u64> {
        while out.len() < most {
            match self.dequeue(now_ns) {
                Dequeue::Packet(_, packet) => out.push(packet),
                Dequeue::Dropped(_, packet) => {
                    self.released.dropped += 1;
                    frames.pool.give(packet.frame);
                }
                Dequeue::NotBefore(ready_ns) => return Some(ready_ns.max(now_ns + self.gather_ns)),
                Dequeue::Empty => break,
            }
        }
        None
    }

    /// The next packet that may leave now.
    #[inline]
    pub fn dequeue(&mut self, now_ns: u64) -> Dequeue<PathPacket> {
        let Some(tree) = self.tree.as_mut().filter(|tree| tree.free.held().packets > 0) else {
            return self.shaper.dequeue(now_ns);
        };
        tree.free_is_next = !tree.free_is_next;
        if !tree.free_is_next {
            let shaped = self.shaper.dequeue(now_ns);
            if !matches!(shaped, Dequeue::Empty | Dequeue::NotBefore(_)) {
                return shaped;
            }
        }
        tree.free.dequeue(now_ns)
    }

    /// Returns whether an intake may bring packets of a class in.
    #[inline]
    pub fn has_room(&self, class: usize) -> bool {
        self.backlog(class)
            .is_some_and(|backlog| backlog.room_bytes() > 0 && backlog.held().packets < self.packets_share)
    }

    /// The number of packets of a quantum that the intake of another worker may still bring into a class, by [`Shaping::has_room`]; and for
    /// a flow with no packets there, by that or by [`Shaping::has_door`]. Without a limit of the class that is `AHEAD_POLLS` polls ahead
    /// of the port, so that packets do not wait and pass by the queues.
    pub fn room_packets(&self, class: usize) -> [u64; 2] {
        let Some(backlog) = self.backlog(class) else { return [0; 2] };
        let (held, quantum_bytes) = (backlog.held(), u64::from(self.size.quantum_bytes));
        let share = self.packets_share.saturating_sub(held.packets);
        if backlog.limit_bytes() == u64::MAX {
            let polls = AHEAD_POLLS.saturating_sub(held.packets.div_ceil(POLL_PACKETS_MAX.into()));
            return [share.min(polls * u64::from(POLL_PACKETS_MAX)); 2];
        }
        let packets = backlog.room_bytes().div_ceil(quantum_bytes).min(share);
        let door_bytes = backlog.limit_bytes().saturating_mul(2).saturating_sub(held.bytes);
        [packets, packets.max(door_bytes.div_ceil(quantum_bytes))]
    }

    /// The most packets that one class may hold.
    pub fn packets_share(&self) -> u64 {
        self.packets_share
    }

    /// Returns whether a flow with no packets in a class may bring some in past its room: as much again as the credit is for such flows.
    #[inline]
    pub fn has_door(&self, class: usize, flow: usize) -> bool {
        !self.is_twice_full(class) && self.has_none(class, flow)
    }

    /// Returns whether a class holds twice what it may, or there is no such class.
    pub fn is_twice_full(&self, class: usize) -> bool {
        self.backlog(class).is_none_or(|backlog| backlog.held().bytes / 2 >= backlog.limit_bytes())
    }

    /// Returns whether no packet of a flow waits in a class.
    #[inline]
    pub fn has_none(&self, class: usize, flow: usize) -> bool {
        self.held_of(class, flow) == 0
    }

    /// The number of packets of a flow that wait in a class.
    pub fn held_of(&self, class: usize, flow: usize) -> u64 {
        match &self.shaper {
            Shaper::Class(one) => one.held_of(flow).packets,
            Shaper::Htb(_) | Shaper::Cbq(_) if class == FREE => {
                self.tree.as_ref().map_or(0, |tree| tree.free.held_of(flow).packets)
            }
            Shaper::Htb(tree) => tree.leaf(class).map_or(0, |leaf| leaf.held_of(flow).packets),
            Shaper::Cbq(tree) => tree.leaf(class).map_or(0, |leaf| leaf.held_of(flow).packets),
        }
    }

    /// One more than the highest number of a class but [`FREE`].
    pub fn classes_max(&self) -> usize {
        self.tree.iter().flat_map(|tree| &tree.numbers).max().map_or(1, |last| last + 1)
    }

    /// The least credit that any class has, in bytes.
    pub fn limit_bytes_min(&self) -> u64 {
        let shaped = match &self.tree {
            None => self.backlog(0).map(Backlog::limit_bytes),
            Some(tree) => {
                tree.numbers.iter().filter_map(|&class| Some(self.backlog(class)?.limit_bytes())).min()
            }
        };
        shaped.unwrap_or(u64::MAX)
    }

    /// The times at which a class's feeders were not polled because it was full, to be noted.
    pub fn blocked_mut(&mut self, class: usize) -> Option<&mut Blocked> {
        match &mut self.tree {
            Some(tree) if class == FREE => Some(tree.free.blocked_mut()),
            _ => self.shaper.blocked_mut(class),
        }
    }

    /// The counts of packets where they left.
    pub fn released(&self) -> ReleaseCounts {
        self.released
    }

    /// Packets that wait in all classes.
    pub fn held(&self) -> Count {
        let mut held = self.shaper.held();
        if let Some(tree) = &self.tree {
            held.merge(tree.free.held());
        }
        held
    }

    /// The books of all classes together, also of those that are no more.
    pub fn account(&self) -> Account {
        let mut account = self.retired.account.clone();
        for class in self.leaves() {
            if let Some(backlog) = self.backlog(class) {
                account.merge(backlog.account());
            }
        }
        account
    }

    /// The classes in which packets can wait.
    fn leaves(&self) -> impl Iterator<Item = usize> + '_ {
        let tree = self.tree.as_ref();
        let shared = tree.into_iter().flat_map(|tree| tree.numbers.iter().copied().chain([FREE]));
        let single = tree.is_none().then_some(0);
        shared.chain(single).filter(|&class| self.backlog(class).is_some())
    }

    #[inline]
    fn backlog(&self, class: usize) -> Option<&Backlog> {
        match &self.shaper {
            Shaper::Class(one) => Some(one.backlog()),
            Shaper::Htb(_) | Shaper::Cbq(_) if class == FREE => Some(self.tree.as_ref()?.free.backlog()),
            Shaper::Htb(tree) => tree.leaf(class),
            Shaper::Cbq(tree) => tree.leaf(class),
        }
    }

    fn set_gather(&mut self) {
        let limits = self.limits.iter().map(|limits| (limits.rate, limits.burst_bytes));
        let classes = self.tree.iter().flat_map(|tree| &tree.classes.classes).flat_map(|class| {
            let depth_bytes = |burst_bytes: u64| burst_bytes.saturating_sub(self.packet_bytes_max);
            [(class.rate, depth_bytes(class.burst_bytes)), (class.ceil, depth_bytes(class.cburst_bytes))]
        });
        let shortest_ns = limits.chain(classes).map(|(rate, burst_bytes)| rate.ns_for(burst_bytes) / 4).min();
        self.gather_ns = shortest_ns.map_or(0, |ns| ns.min(GATHER_NS_MAX));
    }
}

impl Sharing {
    #[inline]
    fn class_of(&mut self, port: u16, frame: &[u8]) -> usize {
        let headers = Headers::parse(frame);
        // No filter asks for a share of the flows, so no hash is needed.
        let own = || self.classes.classifier.classify(port, 0, &headers);
        match self.fragments.target(&headers, own) {
            Target::Class(class) => self.numbers[usize::from(class)],
            Target::Free => FREE,
        }
    }
}

fn class_size(size: Size) -> ClassSize {
    ClassSize {
        flows: size.flows,
        packets_max: size.packets_max,
        quantum_bytes: size.quantum_bytes,
        poll_budget_bytes: u64::from(size.quantum_bytes),
    }
}
