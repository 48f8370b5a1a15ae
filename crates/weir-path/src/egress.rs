//! Egress queues: packets wait in them to leave by a port, one queue for each port that a worker's packets leave by.
//!
//! ```text
//! packet --class--> place, in the flow of the receive queue it came by --release--> the port's exit, or the worker that has it
//! ```
//!
//! Rule: a place has room while its class has, and while fewer than `held_packets_max` packets wait in its egress queue or depart from it.
//! So a port that takes no packets keeps no more than its share of the frames.
//!
//! The flows of a class are the receive queues of all ports, and two more: for packets that stages make themselves, and for packets that
//! they sealed, which have numbers and leave in their order. The flow of sealed packets does not tell of which receive queue a packet is,
//! so where one of it waits in a full place, every receive queue waits whose packets came there last.
//!
//! Packets that stages made have no receive queue that could be held: while 128 of their flow wait in a class, more of
//! them are dropped there as `class-full`. Of those that were sealed, which wait among the sealed packets of others, so are those that find
//! the class twice as full as senders may fill it, or the port at its bound.
//!
//! A queue whose port is gone is closed: it keeps no packets, has room for all, and drops those that come as `port-gone`, so that it holds
//! no sender.
//!
//! Owner: one worker. Limits: a place is exceeded by one poll of each receive queue at the most.

use weir_core::drops::{Count, DropReason};
use weir_core::packet::Meta;
use weir_core::shaper::backlog::Refused;
use weir_core::shaper::tbf::{TbfConfig, TbfError};

use crate::frames::Frames;
use crate::packet::{Ecn, PathPacket};
use crate::place::{Credit, Place, Places};
use crate::shaping::{Shaping, Size};

/// The port of packets that a stage made: the number of no port.
pub const OWN_PORT: u16 = u16::MAX;

/// The bit that is set in the number of the receive queue that a packet came by, if it leaves in the order in which a stage has numbered
/// it.
const SEALED: u16 = 1 << 15;
/// The number of flows for packets that stages made or sealed.
const STAGE_FLOWS: usize = 2;
/// The packets that stages made which wait in one class. Nobody can be held for more.
const OWN_PACKETS_MAX: u64 = 128;

/// The egress queue of a port.
pub struct EgressQueue {
    /// The port, by its place in the plan.
    pub port: usize,
    /// The classes that packets wait in.
    pub shaping: Shaping,
    held_packets_max: u64,
    /// Packets that were released and are not gone, as far as is known.
    departing: u64,
    /// True if the port is gone.
    is_closed: bool,
    counts: EgressCounts,
}

/// The counts of an egress queue, apart from the books of its classes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EgressCounts {
    /// Packets that were put into a class.
    pub entered: u64,
    /// Packets that a class refused.
    pub refused: u64,
    /// The most packets that waited.
    pub held_max: u64,
    /// Times that senders began to be held.
    pub blocked: u64,
    /// The most packets that may be inside.
    pub qlimit: u64,
}

impl EgressQueue {
    /// The counts of the queue.
    pub fn counts(&self) -> EgressCounts {
        self.counts
    }

    /// Returns whether the queue has room for `packets` packets, and for one more.
    fn has_more_room_than(&self, packets: u64) -> bool {
        let packets = self.shaping.held().packets + packets;
        packets + self.departing < self.held_packets_max && packets < self.shaping.packets_share()
    }

    /// Returns whether as many packets are inside as may be.
    fn is_at_bound(&self) -> bool {
        self.shaping.held().packets + self.departing >= self.held_packets_max
    }
}

/// Makes a packet leave in the order in which a stage has numbered packets, or again in that of its receive queue.
pub(crate) fn set_sealed(meta: &mut Meta, is_sealed: bool) {
    meta.queue = if is_sealed { meta.queue | SEALED } else { meta.queue & !SEALED };
}

/// Returns whether a packet leaves in the order in which a stage has numbered packets.
pub(crate) fn is_sealed(meta: &Meta) -> bool {
    meta.queue & SEALED != 0
}

/// The port that filters take a packet to have come in by: a sealed packet comes from a stage.
pub(crate) fn entry_port(meta: &Meta) -> u16 {
    if is_sealed(meta) { OWN_PORT } else { meta.port }
}

/// The port that a packet came in by, and the receive queue.
pub(crate) fn origin(meta: &Meta) -> (u16, u16) {
    (meta.port, meta.queue & !SEALED)
}

/// The flow of packets with this origin; the flows of each port's receive queues begin at its entry of `first_flow`.
#[inline]
fn flow_in(first_flow: &[usize], flows: usize, meta: &Meta) -> usize {
    match first_flow.get(usize::from(meta.port)) {
        _ if meta.queue & SEALED != 0 => sealed_flow(flows),
        Some(first) => first + usize::from(meta.queue),
        None => flows - 1,
    }
}

/// The number, among those of all ports, of the receive queue that packets with this origin came by, if it was one.
fn receive_queue_in(first_flow: &[usize], meta: &Meta) -> Option<usize> {
    let (port, queue) = origin(meta);
    first_flow.get(usize::from(port)).map(|first| first + usize::from(queue))
}

fn sealed_flow(flows: usize) -> usize {
    flows - STAGE_FLOWS
}

/// The place that a packet came to.
#[derive(Clone, Copy, Debug)]
pub struct Landed {
    /// The place.
    pub place: Place,
    /// True if the place is full now.
    pub fills: bool,
    /// The packet's receive queue, by its number among those of all ports; none for a packet that a stage made.
    pub receive_queue: Option<usize>,
}

/// The egress queues of a worker.
pub struct EgressQueues {
    queues: Vec<EgressQueue>,
    /// The flow of each port's first receive queue.
    first_flow: Box<[usize]>,
    /// The most receive queues that each port may have.
    receive_queues: Box<[usize]>,
    flows: usize,
    has_stages: bool,
    places: Places,
    /// The places that are full and keep a receive queue with packets from being polled.
    blocked: Vec<Place>,
}

impl EgressQueues {
    /// No queue yet, for packets that come in by ports of at most so many receive queues each, and from stages if there are any.
    pub fn new(receive_queues: &[usize], has_stages: bool) -> EgressQueues {
        assert!(
            receive_queues.iter().all(|&queues| queues <= usize::from(SEALED)),
            "a bit is left for what is sealed"
        );
        let mut flows = 0;
        let first_flow = receive_queues.iter().map(|queues| {
            let first = flows;
            flows += queues;
            first
        });
        EgressQueues {
            first_flow: first_flow.collect(),
            receive_queues: receive_queues.into(),
            flows: flows + if has_stages { STAGE_FLOWS } else { 0 },
            has_stages,
            queues: Vec::new(),
            places: Places::default(),
            blocked: Vec::new(),
        }
    }

    /// Adds the queue of the packets that leave by `port`, behind these limits. At most `held_packets_max` packets are to be inside; there
    /// are slots for `packets_max`, which may come in before that bound is felt.
    ///
    /// # Errors
    /// If the limits cannot be kept.
    pub fn add(
        &mut self,
        port: usize,
        limits: Option<TbfConfig>,
        held_packets_max: u64,
        packets_max: usize,
        quantum_bytes: u32,
        now_ns: u64,
    ) -> Result<(), TbfError> {
        let size = Size { flows: self.flows, packets_max, held_packets_max, quantum_bytes };
        self.queues.push(EgressQueue {
            port,
            shaping: Shaping::new(size, limits, now_ns)?,
            held_packets_max,
            departing: 0,
            is_closed: false,
            counts: EgressCounts { qlimit: held_packets_max, ..EgressCounts::default() },
        });
        self.number_places();
        Ok(())
    }

    /// The most receive queues that a port may have.
    pub fn receive_queues_max(&self, port: usize) -> usize {
        self.receive_queues[port]
    }

    /// Closes a queue whose port is gone: drops all packets that wait, and those that come.
    pub(crate) fn close(&mut self, egress: usize, frames: &mut Frames, now_ns: u64) {
        self.end_blocked(egress, now_ns);
        let queue = &mut self.queues[egress];
        queue.is_closed = true;
        queue.departing = 0;
        queue.shaping.drop_all(DropReason::PortGone, &mut frames.pool);
    }

    /// Opens a queue whose port is there.
    pub(crate) fn open(&mut self, egress: usize) {
        self.queues[egress].is_closed = false;
    }

    /// The queues.
    pub fn queues(&self) -> &[EgressQueue] {
        &self.queues
    }

    /// A queue, to be changed.
    pub(crate) fn queue_mut(&mut self, egress: usize) -> &mut EgressQueue {
        &mut self.queues[egress]
    }

    /// The queue of a port, by its place here.
    pub fn of_port(&self, port: usize) -> Option<usize> {
        self.queues.iter().position(|queue| queue.port == port)
    }

    /// The numbers of the places.
    pub fn places(&self) -> &Places {
        &self.places
    }

    /// Numbers the places, of which there are others after classes have changed.
    pub(crate) fn number_places(&mut self) {
        self.places = Places::new(self.queues.iter().map(|queue| queue.shaping.classes_max()));
    }

    /// Notes how many packets of a queue are on their way out.
    pub(crate) fn set_departing(&mut self, egress: usize, packets: u64) {
        self.queues[egress].departing = packets;
    }

    /// The flow of packets with this origin.
    #[inline]
    fn flow(&self, meta: &Meta) -> usize {
        flow_in(&self.first_flow, self.flows, meta)
    }

    /// The number, among those of all ports, of the receive queue that packets with this origin came by, if it was one.
    #[inline]
    pub(crate) fn receive_queue_of(&self, meta: &Meta) -> Option<usize> {
        receive_queue_in(&self.first_flow, meta)
    }

    /// The flow of a receive queue of a port.
    #[inline]
    pub fn flow_of(&self, port: u16, queue: u16) -> usize {
        self.first_flow[usize::from(port)] + usize::from(queue)
    }

    /// Puts the first packets, which have this count, into their classes; `landed` is told the place and receive queue of each.
    #[inline]
    pub fn enqueue_all(
        &mut self,
        egress: usize,
        packets: &mut Vec<PathPacket>,
        count: Count,
        frames: &mut Frames,
        landed: &mut impl FnMut(Landed),
    ) {
        let queue = &mut self.queues[egress];
        let fills = queue.is_closed || !queue.has_more_room_than(count.packets);
        let EgressQueue { shaping, counts, is_closed, .. } = queue;
        let Some(class) = shaping.passing(count.packets as usize).filter(|_| !*is_closed) else {
            let first = packets.drain(..count.packets as usize);
            return first.for_each(|packet| landed(self.enqueue(egress, packet, frames)));
        };
        let (first_flow, flows) = (&self.first_flow, self.flows);
        // Where the packets fill the place, each receive queue that has some of them there waits for it.
        class.pass_all_in(packets, count, |meta| {
            let receive_queue = receive_queue_in(first_flow, meta);
            landed(Landed { place: Place { egress, class: 0 }, fills, receive_queue });
            flow_in(first_flow, flows, meta)
        });
        counts.entered += count.packets;
        counts.held_max = counts.held_max.max(shaping.held().packets);
    }

    /// Puts a packet into its class; returns the place, and whether it is full now. A packet that the class refuses ends here.
    #[inline]
    pub fn enqueue(&mut self, egress: usize, mut packet: PathPacket, frames: &mut Frames) -> Landed {
        let flow = self.flow(&packet.meta);
        let receive_queue = receive_queue_in(&self.first_flow, &packet.meta);
        if self.queues[egress].is_closed {
            self.refuse(egress, DropReason::PortGone, packet, frames);
            return Landed { place: self.default_place(egress), fills: false, receive_queue };
        }
        let is_at_bound = self.queues[egress].is_at_bound();
        let EgressQueue { shaping, counts, .. } = &mut self.queues[egress];
        let class = match shaping.only_class() {
            Some(class) => class,
            None => {
                let bytes = packet.bytes(frames.pool.memory());
                let class = shaping.class_of(entry_port(&packet.meta), bytes);
                packet.ecn = Ecn::of(bytes, shaping.marks(class));
                class
            }
        };
        let place = Place { egress, class };
        let is_refused = receive_queue.is_none()
            && match flow == sealed_flow(self.flows) {
                true => is_at_bound || shaping.is_twice_full(class),
                false => shaping.held_of(class, flow) >= OWN_PACKETS_MAX,
            };
        if is_refused {
            self.refuse(egress, DropReason::ClassFull, packet, frames);
            return Landed { place, fills: false, receive_queue };
        }
        match shaping.enqueue(class, flow, packet) {
            Ok(()) => counts.entered += 1,
            Err(Refused::Dropped(_, packet)) => {
                counts.refused += 1;
                frames.pool.give(packet.frame);
            }
            Err(Refused::NoSlot(_)) => panic!("a class has slots for all that may come"),
        }
        counts.held_max = counts.held_max.max(shaping.held().packets);
        Landed { place, fills: !self.has_room(place), receive_queue }
    }

    /// Drops a packet before it gets into a class.
    #[cold]
    fn refuse(&mut self, egress: usize, reason: DropReason, packet: PathPacket, frames: &mut Frames) {
        let EgressQueue { shaping, counts, .. } = &mut self.queues[egress];
        shaping.refuse(reason, packet.len_bytes.into());
        counts.refused += 1;
        frames.pool.give(packet.frame);
    }

    /// Returns whether packets may be brought in for a place.
    #[inline]
    pub fn has_room(&self, place: Place) -> bool {
        // A receive queue whose place is not known yet may bring packets.
        let Some(queue) = self.queues.get(place.egress) else { return true };
        queue.shaping.has_room(place.class) && !queue.is_at_bound()
    }

    /// Returns whether a receive queue with no packets at a place may bring some in past its room: as much again as the credit is for such
    /// queues.
    #[inline]
    pub fn has_door(&self, place: Place, port: u16, queue: usize) -> bool {
        let flow = self.first_flow[usize::from(port)] + queue;
        let Some(egress) = self.queues.get(place.egress) else { return true };
        egress.shaping.has_door(place.class, flow) && !egress.is_at_bound()
    }

    /// The number of packets, of the longest that a wire has, that may still be brought in for a place; and by its door, of a receive queue
    /// with none there.
    pub(crate) fn credit_at(&self, place: Place) -> Credit {
        let Some(EgressQueue { shaping, held_packets_max, departing, .. }) = self.queues.get(place.egress)
        else {
            return Credit::MOST;
        };
        let left = held_packets_max.saturating_sub(shaping.held().packets + departing);
        let [packets, door] = shaping.room_packets(place.class).map(|packets| packets.min(left));
        let most = |packets: u64| u16::try_from(packets).unwrap_or(u16::MAX);
        Credit { packets: most(packets), door: most(door) }.min(Credit::MOST)
    }

    /// The least credit at these places, for a flow.
    pub(crate) fn credit(&self, places: &[Place], flow: usize) -> Credit {
        let at = |&place: &Place| {
            let credit = self.credit_at(place);
            if self.has_none_of(place, flow) { credit } else { Credit { door: credit.packets, ..credit } }
        };
        places.iter().map(at).fold(Credit::MOST, Credit::min)
    }

    /// The port of the receive queue with this number among those of all ports, and its number at that port.
    pub(crate) fn origin_of(&self, receive_queue: usize) -> Option<(usize, usize)> {
        let port = self.first_flow.partition_point(|&first| first <= receive_queue).checked_sub(1)?;
        Some((port, receive_queue - self.first_flow[port]))
    }

    /// Returns whether no packet of a receive queue waits in the class of a place, and none that could be of it.
    #[inline]
    pub fn has_none(&self, place: Place, port: u16, queue: usize) -> bool {
        self.has_none_of(place, self.first_flow[usize::from(port)] + queue)
    }

    /// As [`EgressQueues::has_none`], for a receive queue by its number among those of all ports.
    #[inline]
    pub fn has_none_of(&self, place: Place, receive_queue: usize) -> bool {
        let Some(EgressQueue { shaping, .. }) = self.queues.get(place.egress) else { return true };
        shaping.has_none(place.class, receive_queue)
            && (!self.has_stages || shaping.has_none(place.class, sealed_flow(self.flows)))
    }

    /// Returns whether a place is kept from taking more by the bound of its egress queue, which opens without a word.
    pub fn is_at_bound(&self, place: Place) -> bool {
        self.queues.get(place.egress).is_some_and(EgressQueue::is_at_bound)
    }

    /// The place in an egress queue where packets wait that no filter matches.
    pub fn default_place(&self, egress: usize) -> Place {
        Place { egress, class: self.queues[egress].shaping.default_class() }
    }

    /// Notes which places keep a receive queue with packets from being polled: `waited_for`, each named at least once.
    pub(crate) fn note_blocked(&mut self, waited_for: &[Place], now_ns: u64) {
        if self.blocked.is_empty() && waited_for.is_empty() {
            return;
        }
        let mut blocked = std::mem::take(&mut self.blocked);
        for place in blocked.iter().filter(|place| !waited_for.contains(place)) {
            let queue = self.queues.get_mut(place.egress);
            if let Some(times) = queue.and_then(|queue| queue.shaping.blocked_mut(place.class)) {
                times.end(now_ns);
            }
        }
        for &place in waited_for {
            let Some(queue) = self.queues.get_mut(place.egress) else { continue };
            let was_blocked = blocked.iter().any(|other| other.egress == place.egress);
            queue.counts.blocked += u64::from(!was_blocked);
            if !was_blocked {
                // The block is counted once for each egress queue.
                blocked.push(place);
            }
            if let Some(times) = queue.shaping.blocked_mut(place.class) {
                times.begin(now_ns);
            }
        }
        blocked.clear();
        blocked.extend_from_slice(waited_for);
        self.blocked = blocked;
    }

    /// Ends the times at which feeders of a queue's classes were blocked: the classes are about to change.
    pub(crate) fn end_blocked(&mut self, egress: usize, now_ns: u64) {
        let shaping = &mut self.queues[egress].shaping;
        self.blocked.retain(|place| {
            if place.egress == egress
                && let Some(times) = shaping.blocked_mut(place.class)
            {
                times.end(now_ns);
            }
            place.egress != egress
        });
    }

    /// Packets that wait in all queues.
    pub fn held(&self) -> Count {
        let mut held = Count::default();
        self.queues.iter().for_each(|queue| held.merge(queue.shaping.held()));
        held
    }
}
