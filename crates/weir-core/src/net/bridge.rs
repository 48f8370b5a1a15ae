//! A learning bridge: forwards a frame to the port its destination was last heard on, in each VLAN by itself.
//!
//! The rule for each frame, in order:
//!
//! | frame | decision |
//! |---|---|
//! | cut short, or its source is a group or zero | drop, `malformed` |
//! | destination 01-80-C2-00-00-01 to -0F | drop, `link-local` |
//! | destination another group, or a station not heard within `ageing_ns` | flood: every member port but the ingress |
//! | destination heard on the ingress port, or no other member | drop, `own-segment` |
//! | otherwise | the port the destination was heard on |
//!
//! Before deciding, its source is learned: heard now, on the ingress port. A source that finds the table full is
//! not learned but counted; frames to it are flooded, so nothing is lost by it.
//!
//! A station is its address and the VLAN of its frame's outer tag (802.1Q or 802.1ad); no tag, and one of priority alone, are
//! VLAN 0. So the same address in two VLANs, as a router with one address has it, is two stations. BPDUs
//! (01-80-C2-00-00-00) are flooded: a bridge that runs no spanning tree is one link to those that do, and they find loops through it.
//!
//! Owner: one worker. Flooding copies frames, and copies need credit, so the caller copies, to
//! [`Bridge::flood_ports`].
//!
//! Source: IEEE 802.1D-2004 sections 7.7 (forwarding), 7.8 (learning), 7.9 (filtering database, ageing 300 s), 7.12.6
//! (reserved addresses); IEEE 802.1Q-2018 section 8.8 (learning by VLAN), 9.6 (tags); Linux `net/bridge/br_input.c` for invalid sources
//! and BPDUs.
//!
//! Limits: no spanning tree, so the caller's topology must be free of loops; every port is a member of every VLAN, and tags pass
//! through as they are. Times are kept to 1/256 of `ageing_ns`, so a station may be forgotten that much
//! early.

use super::table::{Full, Table};
use crate::drops::DropReason;

/// The time for which a station is remembered unless it is heard again: 300 s (IEEE 802.1D table 7-5).
pub const AGEING_NS: u64 = 300_000_000_000;

/// The most ports of a bridge: the bits of a [`PortSet`].
pub const PORTS_MAX: usize = 64;

/// A set of ports, one bit for each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortSet(pub u64);

/// The egress of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Egress {
    /// The frame leaves by this port.
    Port(u16),
    /// The frame leaves by each of [`Bridge::flood_ports`].
    Flood,
    /// The frame is dropped.
    Drop(DropReason),
}

/// The state of a learning bridge.
#[derive(Debug)]
pub struct Bridge {
    /// The stations, by [`station_of`].
    stations: Table<u64, Station>,
    members: PortSet,
    ageing_ns: u64,
    /// The least age of an entry that is written again when its station is heard again.
    refresh_ns: u64,
    /// The slot whose age is looked at next.
    sweep: usize,
    counts: BridgeCounts,
}

#[derive(Clone, Copy, Debug)]
struct Station {
    heard_ns: u64,
    port: u16,
}

/// The counters of a bridge's stations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BridgeCounts {
    /// New stations.
    pub learned: u64,
    /// Stations that were heard on another port than before.
    pub moved: u64,
    /// Stations that were forgotten, because no frame of theirs came for long.
    pub aged: u64,
    /// Frames whose source was not learned because the table was full.
    pub table_full: u64,
    /// Frames flooded because their destination, one station, was not known.
    pub flooded_unknown: u64,
}

impl Bridge {
    /// A bridge without ports that remembers `stations_max` stations for `ageing_ns` each; `seed` should be random.
    pub fn new(stations_max: usize, ageing_ns: u64, seed: u64) -> Bridge {
        Bridge {
            stations: Table::new(stations_max, seed),
            members: PortSet::default(),
            ageing_ns,
            refresh_ns: ageing_ns / 256,
            sweep: 0,
            counts: BridgeCounts::default(),
        }
    }

    /// Makes a port a member.
    ///
    /// # Panics
    /// If its number is [`PORTS_MAX`] or more.
    pub fn add_port(&mut self, port: u16) {
        assert!(usize::from(port) < PORTS_MAX, "a bridge has ports 0 to {}", PORTS_MAX - 1);
        self.members.0 |= 1 << port;
    }

    /// Forgets the stations heard on a port, which stays a member.
    pub fn forget(&mut self, port: u16) {
        self.stations.retain(|_, station| station.port != port);
    }

    /// The ports by which a flooded frame of this ingress port leaves.
    pub fn flood_ports(&self, ingress: u16) -> PortSet {
        self.members.without(ingress)
    }

    /// The counters of the stations so far.
    pub fn counts(&self) -> &BridgeCounts {
        &self.counts
    }

    /// The number of remembered stations; some may have aged without having been forgotten yet.
    pub fn stations(&self) -> usize {
        self.stations.len()
    }

    /// Decides the egress of each frame of a burst: appends that of each run of neighbours which have the same, and the number of them.
    pub fn forward<F: AsRef<[u8]>>(
        &mut self,
        ingress: u16,
        frames: impl IntoIterator<Item = F>,
        now_ns: u64,
        runs: &mut Vec<(Egress, usize)>,
    ) {
        self.forget_aged(now_ns);
        let flood = if self.flood_ports(ingress) == PortSet::default() {
            Egress::Drop(DropReason::OwnSegment)
        } else {
            Egress::Flood
        };
        // Neighbours in a burst mostly share their addresses, so a decision is kept for the next. A head of only ones is malformed.
        let (mut last, mut compared) = (u128::MAX, u128::MAX);
        let mut decided = Egress::Drop(DropReason::Malformed);
        let mut last_source = NO_STATION;
        // 1 if the decision kept is to flood because no station has the destination, which is counted for each frame.
        let (mut unknown, mut flooded_unknown) = (0, 0);
        let mut run = 0;
        for frame in frames {
            let head = head_of(frame.as_ref());
            if (head ^ last) & compared != 0 {
                let before = decided;
                let Head { destination, source, vlan } = Head::from(head);
                (last, compared) = (head, if vlan.is_some() { u128::MAX } else { UNTAGGED });
                (decided, unknown) = (Egress::Drop(DropReason::Malformed), 0);
                if source != 0 && source & GROUP == 0 {
                    let vlan = vlan.unwrap_or(0);
                    let source = station_of(source, vlan);
                    if source != last_source {
                        self.learn(source, ingress, now_ns);
                        last_source = source;
                    }
                    (decided, unknown) = self.decide(destination, vlan, ingress, now_ns, flood);
                }
                if decided != before && run > 0 {
                    runs.push((before, std::mem::take(&mut run)));
                }
            }
            flooded_unknown += unknown;
            run += 1;
        }
        if run > 0 {
            runs.push((decided, run));
        }
        self.counts.flooded_unknown += flooded_unknown;
    }

    fn learn(&mut self, source: u64, ingress: u16, now_ns: u64) {
        let heard = Station { heard_ns: now_ns, port: ingress };
        match self.stations.get_mut(source) {
            Some(station) if station.port == ingress => {
                if now_ns.saturating_sub(station.heard_ns) >= self.refresh_ns {
                    station.heard_ns = now_ns;
                }
            }
            Some(station) => {
                *station = heard;
                self.counts.moved += 1;
            }
            None => match self.stations.insert(source, heard) {
                Ok(()) => self.counts.learned += 1,
                Err(Full) => self.counts.table_full += 1,
            },
        }
    }

    /// The egress of frames with such a destination, and 1 if they are flooded because no station has it.
    fn decide(&self, destination: u64, vlan: u64, ingress: u16, now_ns: u64, flood: Egress) -> (Egress, u64) {
        if destination & GROUP != 0 {
            let is_kept = destination & !0xf == RESERVED && destination != BPDU;
            return (if is_kept { Egress::Drop(DropReason::LinkLocal) } else { flood }, 0);
        }
        match self.stations.get(station_of(destination, vlan)) {
            Some(station) if now_ns.saturating_sub(station.heard_ns) < self.ageing_ns => {
                let is_own = station.port == ingress;
                (if is_own { Egress::Drop(DropReason::OwnSegment) } else { Egress::Port(station.port) }, 0)
            }
            _ => (flood, u64::from(flood == Egress::Flood)),
        }
    }

    /// Looks at the next few slots, so that each burst pays a little and stations that left make room.
    fn forget_aged(&mut self, now_ns: u64) {
        for _ in 0..SWEEP_SLOTS {
            self.sweep = (self.sweep + 1) & (self.stations.slots() - 1);
            if let Some((key, station)) = self.stations.slot(self.sweep)
                && now_ns.saturating_sub(station.heard_ns) >= self.ageing_ns
            {
                self.stations.remove(key);
                self.counts.aged += 1;
            }
        }
    }
}

impl PortSet {
    /// The set without one port.
    pub fn without(self, port: u16) -> PortSet {
        PortSet(self.0 & !1u64.checked_shl(port.into()).unwrap_or(0))
    }
}

impl Iterator for PortSet {
    type Item = u16;

    /// Takes the lowest port out of the set.
    fn next(&mut self) -> Option<u16> {
        let port = self.0.trailing_zeros();
        if port == u64::BITS {
            return None;
        }
        self.0 &= self.0 - 1;
        Some(port as u16)
    }
}

const ETHERNET_LEN: usize = 14;
const SWEEP_SLOTS: usize = 2;
/// The group bit of an address as a number: the lowest of its first byte.
const GROUP: u64 = 1 << 40;
const RESERVED: u64 = 0x0180_c200_0000;
/// The reserved address that bridges with a spanning tree send to each other.
const BPDU: u64 = RESERVED;
/// A value that is no station's key: those have at most 60 bits.
const NO_STATION: u64 = u64::MAX;
/// The types of a frame with a tag.
const TAGS: [u64; 2] = [0x8100, 0x88a8];
const VLAN_ID: u64 = 0xfff;

/// The bits of the first sixteen bytes of a frame, as they lie in memory, that are addresses in a frame without a tag: all but the last two
/// bytes.
const UNTAGGED: u128 = (u128::MAX << 16).to_be();

/// The first sixteen bytes of a frame as they lie in memory; of a frame too short for a tag its addresses, and zeros; of one without
/// addresses zeros.
#[inline]
fn head_of(frame: &[u8]) -> u128 {
    if let Some(head) = frame.first_chunk() {
        return u128::from_ne_bytes(*head);
    }
    let mut padded = [0; 16];
    if let Some(head) = frame.first_chunk::<ETHERNET_LEN>() {
        padded[..12].copy_from_slice(&head[..12]);
    }
    u128::from_ne_bytes(padded)
}

/// The beginning of a frame: addresses as numbers of 48 bits, and the VLAN that its tag names.
struct Head {
    destination: u64,
    source: u64,
    vlan: Option<u64>,
}

impl From<u128> for Head {
    /// Reads the first sixteen bytes of a frame.
    fn from(head: u128) -> Head {
        let head = u128::from_be(head);
        let (first, last) = ((head >> 64) as u64, head as u64);
        let is_tagged = TAGS.contains(&(last >> 16 & 0xffff));
        Head {
            destination: first >> 16,
            source: (first & 0xffff) << 32 | last >> 32,
            vlan: is_tagged.then_some(last & VLAN_ID),
        }
    }
}

/// The key of a station, its address in a VLAN.
fn station_of(address: u64, vlan: u64) -> u64 {
    vlan << 48 | address
}

#[cfg(test)]
#[path = "bridge_tests.rs"]
mod tests;
