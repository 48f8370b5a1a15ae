//! The packets that an ESP stage has given to its sealers, and the turn in which they come back.
//!
//! ```text
//! packets, numbered  --run of 32--> sealer 0 --+
//!                    --run of 32--> sealer 1 --+--> merged: run by run, in the turn in which they were given
//!                    --run of 32--> sealer 2 --+
//! ```
//!
//! Rule: runs are given to the sealers in turn and merged in that turn, so packets leave in the order of their numbers and nothing is
//! searched. A packet that comes back early is kept here. While [`GIVEN_MAX`] packets are given for each sealer, none is taken from the
//! queues that lead to the stage (`deferral.rs`), which hold their feeders; so a sealer that does not come holds packets, and loses none.
//!
//! Under hybrid dispatch the home does packets itself at times (`hybrid.rs`), and only while none is given that is not merged. Where it
//! chooses itself under load, it takes no more in until all are merged; so whatever it chooses, packets leave in their turn.
//!
//! The key of an association that ends while packets are given is in their runs until they are done: packets that it sealed go on, packets
//! that it was to open are dropped when they come back, as all are that come without an association.
//!
//! Owner: the stage. Limits: a run ends with the burst that filled it, so that none waits for more; a sealer that is slow holds the others
//! after [`GIVEN_MAX`] of each.

use std::collections::VecDeque;
use std::sync::Arc;

use weir_core::dispatch::protocol::Mode;
use weir_core::drops::{Count, DropReason};
use weir_ipsec::algorithm::{Associated, Transform};
use weir_ipsec::esp::{Arrival, locate};
use weir_ipsec::ip::IpHeaders;
use weir_ring::memory::FrameMemory;
use weir_ring::spsc::Producer;

use super::deferral::SEALERS;
use super::frame::{Bare, comes_in, leaves};
use super::hybrid::{Hybrid, SealingWay};
use super::plan::EspDispatch;
use super::sealer::{SealerRun, SealerWork};
use super::{Decided, Esp, EspVerdict, INSIDE, OUTSIDE};
use crate::egress::set_sealed;
use crate::packet::PathPacket;

/// The most packets of a run.
const RUN_PACKETS: u16 = 32;
/// The packets that each sealer may be given before the home takes no more in: while one run is worked on, others are under way.
pub(crate) const GIVEN_MAX: u64 = 128;

/// The sealers of an ESP stage, as its home sees them.
#[derive(Debug, Default)]
pub(super) struct Sealing {
    sealers: Vec<SealerLane>,
    /// The runs that are given and not merged, in turn.
    turns: VecDeque<Turn>,
    /// The run that is being filled, and its association.
    filling: Option<(SealerRun, u64)>,
    /// The sealer whose turn it is.
    next: usize,
    given: u64,
    merged: u64,
    /// Packets that the home sealed or opened itself.
    at_home: u64,
    /// The choice between the home and the sealers, under hybrid dispatch.
    hybrid: Option<Hybrid>,
    /// True if the packets of the present batch are given.
    gives: bool,
    /// True if packets came in this pass.
    has_worked: bool,
    /// The packets that were done before this pass.
    noted: u64,
    /// Packets that are back before their turn.
    held: Count,
}

/// The packets that sealers and their home sealed or opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SealingShares {
    /// Packets that were given to sealers.
    pub given: u64,
    /// Of these the packets that are back in their turn.
    pub merged: u64,
    /// Packets that the home sealed or opened itself.
    pub at_home: u64,
}

/// The way to a sealer and back.
#[derive(Debug, Default)]
struct SealerLane {
    /// The ring by which the sealer is told its runs; none before the workers are joined.
    runs: Option<Producer<SealerRun>>,
    back: VecDeque<PathPacket>,
}

/// A run that is given.
#[derive(Clone, Copy, Debug)]
pub(super) struct Turn {
    sealer: usize,
    packets: u16,
    /// The serial number of the association, which stays the same when others begin and end.
    pub serial: u64,
    /// True if its packets are opened, and not sealed.
    pub opens: bool,
    /// The upper half of the packets' numbers.
    pub upper: u64,
}

impl Sealing {
    pub(super) fn new(dispatch: &EspDispatch) -> Sealing {
        let sealers = dispatch.sealers();
        Sealing {
            sealers: (0..sealers).map(|_| SealerLane::default()).collect(),
            hybrid: (sealers > 0 && dispatch.mode == Mode::Hybrid).then(Hybrid::default),
            ..Sealing::default()
        }
    }

    /// Returns whether there is any sealer; otherwise the stage seals and opens by itself.
    #[inline]
    pub(super) fn is_there(&self) -> bool {
        !self.sealers.is_empty()
    }

    /// Returns whether the next packets are given to sealers; otherwise the home seals and opens them itself.
    #[inline]
    pub(super) fn gives(&self) -> bool {
        self.gives
    }

    /// Chooses for the packets of a batch. The home does them itself only if none is given that is not merged: so packets leave in their
    /// turn, whatever the choice.
    #[inline]
    pub(super) fn choose(&mut self) {
        self.has_worked = true;
        self.gives = match &self.hybrid {
            Some(hybrid) => self.is_out() || hybrid.was_busy() && hybrid.way() == SealingWay::Sealers,
            None => self.is_there(),
        };
    }

    /// Returns whether packets are given that are not merged.
    #[inline]
    fn is_out(&self) -> bool {
        self.given > self.merged
    }

    /// Notes the end of a pass that began at this time.
    #[inline]
    pub(super) fn end_pass(&mut self, begin_ns: u64) {
        let is_busy = std::mem::take(&mut self.has_worked) || self.is_out();
        if let Some(hybrid) = &mut self.hybrid {
            hybrid.note_pass(begin_ns, self.merged + self.at_home - self.noted, is_busy);
            self.noted = self.merged + self.at_home;
        }
    }

    /// Counts a packet that the home seals or opens itself.
    #[inline]
    pub(super) fn note_at_home(&mut self) {
        self.at_home += 1;
    }

    /// Takes the ring by which a sealer is told its runs.
    pub(super) fn join(&mut self, sealer: usize, runs: Producer<SealerRun>) {
        self.sealers[sealer].runs = Some(runs);
    }

    /// Returns whether no more packets may come: enough are given, or the home waits until none is, to seal and open itself.
    #[inline]
    pub(super) fn is_full(&self) -> bool {
        let out = self.given - self.merged;
        let is_leaving = |hybrid: &Hybrid| out > 0 && hybrid.way() == SealingWay::Home;
        self.is_there() && out >= GIVEN_MAX * self.sealers.len() as u64
            || self.hybrid.as_ref().is_some_and(is_leaving)
    }

    /// Packets that are back before their turn.
    pub(super) fn held(&self) -> Count {
        self.held
    }

    /// Gives a packet of an association to a sealer; returns the port by which the packet leaves.
    pub(super) fn give(
        &mut self,
        serial: u64,
        transform: &Arc<Transform>,
        associated: Associated,
        work: SealerWork,
    ) -> u16 {
        let fits = self.filling.as_ref().is_some_and(|(run, of)| {
            run.packets < RUN_PACKETS
                && (*of, run.work) == (serial, work)
                && run.associated.sequence >> 32 == associated.sequence >> 32
        });
        if !fits {
            self.close();
            let transform = Arc::clone(transform);
            self.filling = Some((SealerRun { transform, associated, work, packets: 0 }, serial));
        }
        if let Some((run, _)) = &mut self.filling {
            run.packets += 1;
        }
        self.given += 1;
        SEALERS + self.next as u16
    }

    /// Tells a sealer of the run that was filled: before its packets leave.
    pub(super) fn close(&mut self) {
        let Some((run, serial)) = self.filling.take() else { return };
        self.turns.push_back(Turn {
            sealer: self.next,
            packets: run.packets,
            serial,
            opens: matches!(run.work, SealerWork::Open { .. }),
            upper: run.associated.sequence & !u64::from(u32::MAX),
        });
        let runs = self.sealers[self.next].runs.as_mut().expect("workers are joined before packets come");
        runs.push(run).expect("the ring has a slot for every frame");
        self.next = (self.next + 1) % self.sealers.len();
    }

    /// Keeps packets that are back from a sealer until it is their turn.
    pub(super) fn take_back(&mut self, sealer: usize, packets: &mut Vec<PathPacket>) {
        let bytes = packets.iter().map(|packet| u64::from(packet.len_bytes)).sum();
        self.held.merge(Count { packets: packets.len() as u64, bytes });
        self.sealers[sealer].back.extend(packets.drain(..));
    }

    /// Moves packets of the run whose turn it is behind others, `most` at the most; returns that run.
    pub(super) fn merge(&mut self, most: usize, merged: &mut Vec<PathPacket>) -> Option<Turn> {
        let turn = self.turns.front_mut()?;
        let back = &mut self.sealers[turn.sealer].back;
        let count = back.len().min(turn.packets.into()).min(most);
        if count == 0 {
            return None;
        }
        let before = merged.len();
        merged.extend(back.drain(..count));
        let bytes = merged[before..].iter().map(|packet| u64::from(packet.len_bytes)).sum();
        self.held.sub_all(Count { packets: count as u64, bytes });
        self.merged += count as u64;
        turn.packets -= count as u16;
        let told = *turn;
        if told.packets == 0 {
            self.turns.pop_front();
        }
        Some(told)
    }
}

impl Esp {
    /// The shares of the sealers and of the home in the work; none without sealers.
    pub fn shares(&self) -> Option<SealingShares> {
        let Sealing { given, merged, at_home, .. } = self.sealing;
        self.sealing.is_there().then_some(SealingShares { given, merged, at_home })
    }

    /// Notes the end of a pass that began at this time.
    pub(crate) fn end_pass(&mut self, begin_ns: u64) {
        self.sealing.end_pass(begin_ns);
    }

    /// Takes the ring by which a sealer is told its runs.
    pub(crate) fn join(&mut self, sealer: usize, runs: Producer<SealerRun>) {
        self.sealing.join(sealer, runs);
    }

    /// The sealer behind a port, if there is one.
    pub(crate) fn sealer_at(port: u16) -> Option<usize> {
        port.checked_sub(SEALERS).map(usize::from)
    }

    /// Keeps packets that are back from a sealer until it is their turn.
    pub(crate) fn take_back(&mut self, sealer: usize, packets: &mut Vec<PathPacket>) {
        self.sealing.take_back(sealer, packets);
    }

    /// Moves the packets that are back and whose turn it is behind others, a burst at the most, and decides on them; returns none if there
    /// is no such packet.
    pub(crate) fn merge(
        &mut self,
        merged: &mut Vec<PathPacket>,
        memory: &FrameMemory,
        now_ns: u64,
        verdicts: &mut [EspVerdict],
    ) -> Option<Decided> {
        let before = merged.len();
        let turn = self.sealing.merge(verdicts.len(), merged)?;
        let place = self.associations.iter().position(|running| running.serial == turn.serial);
        let mtu_bytes = place
            .map_or(self.mtu_bytes, |place| self.associations[place].path_mtu.limit(self.mtu_bytes, now_ns));
        let mut decided = Decided::to(if turn.opens { INSIDE } else { OUTSIDE });
        for (packet, verdict) in merged[before..].iter_mut().zip(verdicts) {
            let (len_bytes, is_unproven) = (packet.len_bytes, std::mem::take(&mut packet.is_unproven));
            let passed = match (is_unproven, turn.opens, place) {
                (true, ..) => Err(DropReason::EspBadIcv),
                (false, false, _) => Ok(leaves(packet, mtu_bytes)),
                (false, true, None) => Err(DropReason::EspNoAssociation),
                (false, true, Some(place)) => self.accept(packet, (place, turn.upper), memory, now_ns),
            };
            if let (Err(reason), Some(place)) = (passed, place) {
                self.associations[place].dropped.add(reason, len_bytes.into());
            }
            *verdict = passed.unwrap_or_else(EspVerdict::Drop);
            decided.note(len_bytes, packet.len_bytes, *verdict);
        }
        Some(decided)
    }

    /// Takes in a packet that a sealer has opened.
    fn accept(
        &mut self,
        packet: &mut PathPacket,
        (place, upper): (usize, u64),
        memory: &FrameMemory,
        now_ns: u64,
    ) -> Result<EspVerdict, DropReason> {
        let (association, policies) = (&mut self.associations[place], &self.inbound);
        let mut bare = Bare::of(packet, memory);
        let room = &mut bare.room;
        let headers = IpHeaders::read_all(room.packet())?;
        // Whatever port it came to, also if that is no port of an association any more.
        let udp_port = room.packet().get(headers.end() + 2..).and_then(<[u8]>::first_chunk);
        let udp_port = u16::from_be_bytes(*udp_port.ok_or(DropReason::EspTruncated)?);
        let Arrival::Esp(located) = locate(room.packet(), &headers, &[udp_port])? else {
            return Err(DropReason::EspTruncated);
        };
        let came = association.came_from(|| room.packet(), &headers, &located);
        let headers = association.accept(room, &located, upper | u64::from(located.sequence_low), now_ns)?;
        policies.inbound(room.packet(), &headers, Some(&association.bundles))?;
        bare.link();
        if let Some(came) = came {
            self.follow(place, came);
        }
        set_sealed(&mut packet.meta, false);
        Ok(comes_in(packet, memory, self.way_bytes[usize::from(INSIDE)]))
    }
}
