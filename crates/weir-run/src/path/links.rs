//! Links ("epairs"), as one worker sees them: the queues of the ends it owns, and the ways to all others.
//!
//! ```text
//! node a --send--> queue of the far end --serve--> node b         both of one worker
//! node a --send--> outlet ~~ring~~> inbox --arrive--> queue of the far end --serve--> node b
//! ```
//!
//! Rule: every packet of a link goes through the queue of the end it comes out of, and is taken from its front. So nothing
//! overtakes on a link (invariant 2), whatever the mode; the mode decides only *when* an end is served:
//!
//! | mode | served in this pass |
//! |---|---|
//! | `direct` | at once when something has come, one burst |
//! | `hybrid` | at once if nothing waited there when the pass began; otherwise what waited then |
//! | `deferred` | what waited when the pass began |
//!
//! An end is served once a pass at most, with a burst of at most [`BURST`]: a busy link takes no more of its worker than any other
//! (invariant 6), and what is served at once is a list, not a recursion (invariant 8).
//!
//! Of ends that wait when a pass begins the last is served first. Links are mostly listed on the packets' way, so its packets find
//! the next queue empty, and the two are exchanged instead of moving each packet.
//!
//! No send can fail: the queue of an end, and each ring between two workers, has room for every frame of the path. What is bound
//! for another worker is staged in the ring, published once a pass, and takes one kick if that worker is parked.
//!
//! Owner: one worker. Source: FreeBSD D38843 ("only flush the epair queue once per task"); `sys/net/netisr.c` for the modes.
//! Limits: netisr's policies choose a worker for each packet. Here a node has one owner, so its packets go to that worker: the
//! policy is `source`.

use std::collections::VecDeque;

use weir_core::dispatch::protocol::Mode;
use weir_core::drops::Count;
use weir_core::packet::Packet;
use weir_ring::handoff::{Outlet, OutletCounts};
use weir_simd::prefetch::prefetch_write;

use super::packet::PathPacket;
use super::shared::Shared;

/// The most packets handled together.
pub const BURST: usize = 64;

/// What workers say to each other.
pub enum Message<'m> {
    /// A packet that comes out of the end that its metadata names as its port.
    Packet(PathPacket<'m>),
    /// There is something to see in what workers share: credit, or the end. No third kind, so that a message is no longer than
    /// a packet.
    Look,
}

const _: () = assert!(size_of::<Message<'_>>() == size_of::<PathPacket<'_>>());

/// Where a port of a node leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Way {
    /// The end of the link there, by its number in the path.
    pub end: u16,
    /// Whose it is.
    pub owner: Owner,
}

/// The worker that an end belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// This one, which knows it by this number.
    Own(u16),
    /// Another.
    Other(u16),
}

/// Where an end of a link comes out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The node, by its number at the worker.
    pub node: u16,
    /// Its port.
    pub port: u16,
    /// The number of the end in the path.
    pub end: u16,
    /// Whether it is entered from another worker.
    pub from_other: bool,
}

/// One end of a link: what waits to enter a node by one of its ports.
struct End<'m> {
    place: Place,
    queue: VecDeque<PathPacket<'m>>,
    /// How many packets this pass takes, if that is decided.
    turn: Turn,
    served: u64,
    /// What was told of it last.
    full: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    /// Not listed.
    None,
    /// As many as wait when it is served.
    Burst,
    /// So many.
    Of(usize),
    /// It has been served.
    Over,
}

/// The ends of a worker, and its outlets.
pub struct Links<'m> {
    ends: Box<[End<'m>]>,
    /// For each end of the path its place among `ends`, or [`NOT_OURS`].
    places: Box<[u16]>,
    outlets: Box<[Option<Outlet<Message<'m>>>]>,
    /// The ends to be served in this pass, in order.
    list: Vec<u16>,
    mode: Mode,
    qlimit: usize,
    gone: Option<u16>,
}

const NOT_OURS: u16 = u16::MAX;

impl<'m> Links<'m> {
    /// Links for the ends of a worker, in a path of `ends_total` ends and `frames` frames.
    pub fn new(
        ends: &[Place],
        ends_total: usize,
        frames: usize,
        outlets: Vec<Option<Outlet<Message<'m>>>>,
        mode: Mode,
        qlimit: usize,
    ) -> Links<'m> {
        let mut places = vec![NOT_OURS; ends_total];
        for (number, place) in ends.iter().enumerate() {
            places[usize::from(place.end)] = number as u16;
        }
        let make = |&place: &Place| End {
            place,
            queue: VecDeque::with_capacity(frames),
            turn: Turn::None,
            served: 0,
            full: false,
        };
        Links {
            list: Vec::with_capacity(ends.len()),
            ends: ends.iter().map(make).collect(),
            places: places.into(),
            outlets: outlets.into(),
            mode,
            qlimit,
            gone: None,
        }
    }

    /// Sends a packet. If the worker at the other end has gone, it goes nowhere: then the path is over ([`Links::gone`]).
    pub fn send(&mut self, way: Way, mut packet: PathPacket<'m>) {
        match way.owner {
            Owner::Own(place) => self.ends[usize::from(place)].queue.push_back(packet),
            Owner::Other(worker) => {
                packet.meta_mut().port = way.end;
                self.stage(worker, packet);
            }
        }
    }

    /// Sends the first `count` packets of a queue.
    #[inline]
    pub fn send_run(&mut self, way: Way, queue: &mut VecDeque<PathPacket<'m>>, count: usize) {
        match way.owner {
            Owner::Own(place) => {
                let far = &mut self.ends[usize::from(place)].queue;
                if count < queue.len() {
                    far.extend(queue.drain(..count));
                } else if far.is_empty() {
                    // All queues have room for every frame, so they can be exchanged.
                    std::mem::swap(far, queue);
                } else {
                    far.append(queue);
                }
            }
            Owner::Other(worker) => {
                // All before the first is moved: a packet is moved by loads wider than this store, which would wait for it.
                queue.range_mut(..count).for_each(|packet| packet.meta_mut().port = way.end);
                queue.drain(..count).for_each(|packet| self.stage(worker, packet));
            }
        }
    }

    /// The queue of an end of this worker.
    pub fn queue(&mut self, place: u16) -> &mut VecDeque<PathPacket<'m>> {
        &mut self.ends[usize::from(place)].queue
    }

    /// Sends a packet, whose metadata name its way's end as its port, to another worker.
    #[inline(always)]
    pub fn stage(&mut self, worker: u16, packet: PathPacket<'m>) {
        let outlet = self.outlets[usize::from(worker)].as_mut().expect("an outlet to every other");
        // The ring has room for every frame of the path, so this fails only without a worker at its other end.
        if outlet.stage(Message::Packet(packet)).is_err() {
            self.gone = Some(worker);
        }
    }

    /// Takes a packet that another worker has sent.
    #[inline]
    pub fn arrive(&mut self, packet: PathPacket<'m>) {
        // Its node reads and mostly writes the beginning, which another core has written last.
        if let Some(first) = packet.as_ref().first() {
            prefetch_write(first);
        }
        let place = self.places[usize::from(packet.meta().port)];
        self.ends[usize::from(place)].queue.push_back(packet);
    }

    /// Begins a pass: every end where something waits has its turn.
    pub fn begin_pass(&mut self) {
        self.list.clear();
        for (place, end) in self.ends.iter_mut().enumerate().rev() {
            end.turn = Turn::None;
            let waiting = end.queue.len();
            if waiting > 0 {
                end.turn = if self.mode == Mode::Direct { Turn::Burst } else { Turn::Of(waiting.min(BURST)) };
                self.list.push(place as u16);
            }
        }
    }

    /// Notes that packets may have been sent by these ways: as the mode says, their ends have a turn in this pass.
    #[inline]
    pub fn sent(&mut self, ways: &[Way]) {
        if self.mode == Mode::Deferred {
            return;
        }
        for way in ways {
            if let Owner::Own(place) = way.owner {
                let end = &mut self.ends[usize::from(place)];
                if end.turn == Turn::None && !end.queue.is_empty() {
                    end.turn = Turn::Burst;
                    self.list.push(place);
                }
            }
        }
    }

    /// Takes the turn with this number: node, port, the queue and how many packets of it. [`Links::put_back`] ends it.
    #[inline]
    pub fn turn(&mut self, number: usize) -> Option<(u16, u16, VecDeque<PathPacket<'m>>, usize)> {
        let end = &mut self.ends[usize::from(*self.list.get(number)?)];
        let count = match end.turn {
            Turn::Of(count) => count,
            _ => end.queue.len().min(BURST),
        };
        end.turn = Turn::Over;
        end.served += count as u64;
        Some((end.place.node, end.place.port, std::mem::take(&mut end.queue), count))
    }

    /// Puts the queue of a turn back. Nothing was sent to it meanwhile: a link joins two nodes.
    #[inline]
    pub fn put_back(&mut self, number: usize, mut queue: VecDeque<PathPacket<'m>>) {
        let end = &mut self.ends[usize::from(self.list[number])];
        debug_assert!(end.queue.capacity() == 0, "a link joins two nodes");
        if queue.is_empty() {
            // Back to the front of its memory, which is in the cache.
            queue.clear();
        }
        end.queue = queue;
    }

    /// Publishes what is staged for other workers; `credit` are those to be told that there is credit.
    pub fn flush(&mut self, credit: u64) {
        for (worker, outlet) in self.outlets.iter_mut().enumerate() {
            let Some(outlet) = outlet else { continue };
            let told = credit >> worker & 1 == 0 || outlet.stage(Message::Look).is_ok();
            if !told || outlet.staged() > 0 && outlet.flush().is_err() {
                self.gone = Some(worker as u16);
            }
        }
    }

    /// A worker that was to be handed something, and has gone.
    pub fn gone(&self) -> Option<u16> {
        self.gone
    }

    /// Tells which queues are as long as they should get, so that generators wait. One that is full stays so until three quarters
    /// of it have gone: a generator that was woken then finds room for many packets, and the rest is work for its worker while
    /// that one wakes. What other workers have sent and is still in their rings, `left` packets, may be for any end that is entered
    /// from them, so it counts for each. Returns whether one has room again.
    pub fn tell_full(&mut self, shared: &Shared, left: usize) -> bool {
        let mut room_again = false;
        for end in &mut self.ends {
            let limit = if end.full { self.qlimit.div_ceil(4) } else { self.qlimit };
            let left = if end.place.from_other { left } else { 0 };
            let full = end.queue.len() + left >= limit;
            if full != end.full {
                end.full = full;
                shared.set_full(end.place.end, full);
                room_again |= !full;
            }
        }
        room_again
    }

    /// Whether nothing waits at any end.
    pub fn is_empty(&self) -> bool {
        self.ends.iter().all(|end| end.queue.is_empty())
    }

    /// What waits, counted in the queues themselves.
    pub fn held(&self) -> Count {
        let mut held = Count::default();
        self.ends.iter().flat_map(|end| &end.queue).for_each(|packet| held.add(packet.len_bytes()));
        held
    }

    /// For each end its number in the path and the packets that have come out of it.
    pub fn served(&self) -> impl Iterator<Item = (u16, u64)> + '_ {
        self.ends.iter().map(|end| (end.place.end, end.served))
    }

    /// What the outlets have counted, together.
    pub fn outlet_counts(&self) -> OutletCounts {
        let mut sum = OutletCounts::default();
        for counts in self.outlets.iter().flatten().map(Outlet::counts) {
            sum.elements += counts.elements;
            sum.flushes += counts.flushes;
            sum.kicks += counts.kicks;
        }
        sum
    }
}
