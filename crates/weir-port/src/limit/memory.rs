//! The memory of a limit in place: values of array maps that its program, and so its queue, keeps alive. One is the limit's own; each class
//! of a file has another, which ends behind the flows.
//!
//! ```text
//!       0  the words of two groups of leaves, then those of packets without a socket, then how many records were written, then what arrived
//!    4096  the leaves: a word each; 8192  up to where the packets of each were found to have gone; 12288  the flows: a word each
//! behind  the classes of datagrams that come in fragments
//! behind  two slots for the record, text: the limit and what to put back
//! ```
//!
//! A word of a leaf is the point of the leaf's service, in bytes and 2^20 parts of one, at which all its packets will have gone. A word of
//! a flow is the same of the flow, with the leaf's number in its low 12 bits. Up to where packets were found to have gone none waits, however
//! long it should have taken.
//!
//! Rule: a reader takes nothing for granted: the memory may be of another version, or half made.

use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use weir_core::limit::shared::LEAVES_EACH;
use weir_core::limit::{self, HELD as HELD_LEAVES, PASSING as PASSING_LEAVES, leaf_clock};

use super::filter::Spot;
use super::record::Record;
use super::record_slots::RecordSlots;
use crate::bpf::map::Map;
use crate::bpf::object;
use crate::error::{self, Doing};
use crate::mapping::Mapping;

/// The bits of a part of a byte: a byte is 2^20 parts.
pub const PART_BITS: i32 = 20;
/// The shift from nanoseconds times the clock's rate, in bytes for each 2^30 ns, to parts.
pub const CLOCK_SHIFT: i32 = 10;
/// The bits of a flow's word that hold its leaf's number.
pub const LEAF_MASK: i32 = 0xfff;
/// The bits of the bytes for which nanoseconds are kept: 2^16.
pub const EACH_BITS: i32 = 16;

/// The rate at which a leaf is taken to be served; the one word of a group that processes write and the program reads.
pub const CLOCK: i16 = 0;
/// The rate at which a leaf was taken to be served when the last packet came.
pub const CLOCK_BEFORE: i16 = 8;
/// The service, in parts, of a leaf that always had packets.
pub const SERVED: i16 = 16;
/// The time of the last packet.
pub const LAST_NS: i16 = 24;
/// The leaf that a new flow was given last.
pub const NEXT: i16 = 32;
/// The new flows that found no leaf empty.
pub const CROWDED: i16 = 40;

/// The service of packets without a socket for each leaf with packets waiting, as a time at the whole rate.
pub const PASSING_SERVED_NS: i16 = 256;
/// The nanoseconds of 2^16 bytes at the rate.
pub const PASSING_NS_EACH: i16 = 264;
/// The longest wait of a packet without a socket.
pub const PASSING_NS_MAX: i16 = 272;
/// The packets without a socket that were dropped because too many waited.
pub const PASSING_FULL: i16 = 280;
/// The packets that were marked as congested.
pub const MARKED: i16 = 288;
/// The time when [`PASSING_SERVED_NS`] was added to last.
pub const PASSING_AT_NS: i16 = 296;
/// The packets that arrived without a stamp, so bypassed the queue.
pub const BYPASSED: i16 = 384;
/// The bytes of those packets.
pub const BYPASSED_BYTES: i16 = 392;
/// The time during which packets waited, times that overlap counted once.
pub const HELD_NS: i16 = 400;
/// The end of the time counted in [`HELD_NS`].
pub const HELD_UNTIL_NS: i16 = 408;
/// The wait of the last packet.
pub const DELAY_NS: i16 = 416;
/// The longest wait.
pub const DELAY_NS_MAX: i16 = 424;
const MAGIC_WORD: usize = 320;
/// The number of records that were written.
const RECORDS_WORD: usize = 328;
/// The base of the numbers of the leaves whose memory this is.
pub const BASE: i16 = 336;
/// The packets that stayed in this class by the filters of a file before.
pub const STAYED: i16 = 344;
/// The longest packet that each leaf takes without cutting it: no longer one that cannot be cut, and no longer segment, may go to a leaf.
pub const UNCUT_BYTES_MAX: i16 = 352;
/// The offset of the datagrams in fragments: two words each, the key and the classes.
pub const FRAGMENTS_AT: u32 = PASSING.slots_at + PASSING.slots * 8;
/// The number of sets of those, a power of two.
pub const FRAGMENT_SETS: i32 = 2048;
/// The number of those in a set.
pub const FRAGMENT_SLOTS: i16 = 8;
/// The layout's name and version, "weirlmt3".
const MAGIC: u64 = u64::from_le_bytes(*b"weirlmt3");

const LEAVES_AT: u32 = 4096;
/// The words of the leaves without a socket: when each will be empty, in terms of [`PASSING_SERVED_NS`].
pub const PASSING_ENDS_AT: u32 = LEAVES_AT + LEAVES_EACH as u32 * 8;
/// The distance from a leaf's word to the word that says up to where its packets have gone, as a process found.
pub const GONE_BEHIND: i16 = 4096;
const _: () = assert!(PASSING_ENDS_AT + PASSING_LEAVES.count as u32 * 8 <= LEAVES_AT + GONE_BEHIND as u32);
const FLOWS_AT: u32 = 12_288;
const RECORDS_AT: usize = FRAGMENTS_AT as usize + FRAGMENT_SETS as usize * FRAGMENT_SLOTS as usize * 16;
const RECORD_BYTES: usize = 65_536;
/// The bytes of a limit's own memory, and of that of a class.
const OWN_BYTES: u32 = (RECORDS_AT + 2 * RECORD_BYTES) as u32;
const CLASS_BYTES: u32 = FRAGMENTS_AT;

/// Leaves of one kind, and the flows that they are given to.
#[derive(Clone, Copy, Debug)]
pub struct LeafMemory {
    words_at: i16,
    /// The offset of the words of its leaves.
    pub leaves_at: u32,
    /// The offset of the words of its flows.
    pub slots_at: u32,
    /// The number of those, a power of two.
    pub slots: u32,
}

/// The memory of packets that have a socket.
pub const HELD: LeafMemory =
    LeafMemory { words_at: 0, leaves_at: LEAVES_AT, slots_at: FLOWS_AT, slots: 32_768 };
/// The memory of packets that have none.
pub const PASSING: LeafMemory = LeafMemory {
    words_at: 64,
    leaves_at: LEAVES_AT + HELD_LEAVES.count as u32 * 8,
    slots_at: FLOWS_AT + HELD.slots * 8,
    slots: 4096,
};

/// The offset of the word of a leaf, by its place.
fn leaf_word(place: u16) -> usize {
    assert!(place < LEAVES_EACH, "a leaf's place");
    LEAVES_AT as usize + usize::from(place) * 8
}

impl LeafMemory {
    /// The offset of one of its words.
    pub const fn word(self, word: i16) -> i16 {
        self.words_at + word
    }
}

/// The counters of the program, of all leaves or those of a class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LimitCounts {
    /// New flows that found no leaf empty and share one.
    pub crowded: u64,
    /// Packets without a socket that were dropped because too many waited.
    pub passing_full: u64,
    /// Packets without a socket that were marked as congested.
    pub marked: u64,
}

impl LimitCounts {
    /// The sum of both.
    pub fn and(self, other: LimitCounts) -> LimitCounts {
        LimitCounts {
            crowded: self.crowded + other.crowded,
            passing_full: self.passing_full + other.passing_full,
            marked: self.marked + other.marked,
        }
    }
}

/// The counters of packets where they arrive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Arrivals {
    /// Packets that passed no queue.
    pub bypassed: u64,
    /// Their bytes.
    pub bypassed_bytes: u64,
    /// The time during which a packet waited, in all.
    pub held_ns: u64,
    /// The wait of the last packet.
    pub delay_ns: u64,
    /// The longest wait of a packet.
    pub delay_ns_max: u64,
}

/// The most times that the words of an [`Arrivals`] are read for two readings that are alike.
const READINGS: usize = 8;

impl Arrivals {
    /// Reads words one after the other, twice: those of one packet are together then, unless packets come faster than these are read.
    fn of(read: impl Fn(i16) -> u64) -> Arrivals {
        let once = || {
            let delay_ns = read(DELAY_NS);
            Arrivals {
                bypassed: read(BYPASSED),
                bypassed_bytes: read(BYPASSED_BYTES),
                held_ns: read(HELD_NS),
                delay_ns,
                // The program stores a packet's wait before it raises the longest wait.
                delay_ns_max: read(DELAY_NS_MAX).max(delay_ns),
            }
        };
        let mut told = once();
        for _ in 1..READINGS {
            let before = std::mem::replace(&mut told, once());
            if before == told {
                break;
            }
        }
        told
    }
}

/// A record as it is kept.
///
/// # Errors
/// One sentence, if the text is too long.
pub fn text_of(record: &Record) -> Result<Vec<u8>, String> {
    let text = serde_json::to_vec(record).map_err(|error| error.to_string())?;
    if text.len() >= RECORD_BYTES {
        return Err(format!(
            "to remember its classes and filters, with those of the file before, takes {} bytes of {}: join subnets or ports, or join the \
             interfaces with `weir wire`",
            text.len(),
            RECORD_BYTES - 1
        ));
    }
    Ok(text)
}

/// The looks for a program that another command replaces meanwhile.
const LOOKS: usize = 8;

/// The memories that our program at a spot of an interface works on, the limit's own first; `None` if no program of ours is there.
pub fn all_at(spot: Spot, ifindex: u32) -> error::Result<Option<Vec<Memory>>> {
    let mut look = 1;
    loop {
        let Some(id) = spot.program_id(ifindex)? else { return Ok(None) };
        match Memory::of_program(id) {
            // The program is gone, and another in its place, or none.
            Err(error) if error.kind() == io::ErrorKind::NotFound && look < LOOKS => look += 1,
            found => return found.map(Some).doing(|| format!("looking at program {id}")),
        }
    }
}

/// The memory of one limit, or of one class of it.
pub struct Memory {
    map: Map,
    mapping: Mapping,
}

impl Memory {
    /// New memory for the leaves whose numbers begin at `base`.
    pub fn new(base: u16) -> io::Result<Memory> {
        let bytes = if base == 0 { OWN_BYTES } else { CLASS_BYTES };
        let memory = Memory::of(Map::shared(bytes)?, bytes)?;
        memory.word(BASE as usize).store(base.into(), Ordering::Relaxed);
        memory.word(MAGIC_WORD).store(MAGIC, Ordering::Release);
        Ok(memory)
    }

    /// The memory of the limit of the program with number `id`, the limit's own first; none if the program is no limit's.
    pub fn of_program(id: u32) -> io::Result<Vec<Memory>> {
        let mut all = Vec::new();
        for map in object::maps_of_program(id)? {
            let map = Map::by_id(map)?;
            let bytes = object::value_bytes(&map.as_fd())?;
            if bytes != OWN_BYTES && bytes != CLASS_BYTES {
                continue;
            }
            let memory = Memory::of(map, bytes)?;
            let is_whole = (memory.base() == 0) == (bytes == OWN_BYTES);
            if is_whole && memory.word(MAGIC_WORD).load(Ordering::Acquire) == MAGIC {
                all.push(memory);
            }
        }
        all.sort_by_key(Memory::base);
        if all.first().is_some_and(|own| own.base() != 0) {
            all.clear();
        }
        Ok(all)
    }

    /// The packets that stayed here by filters before, because others of their flow waited.
    pub fn stayed(&self) -> u64 {
        self.word(STAYED as usize).load(Ordering::Acquire)
    }

    /// The base of the numbers of its leaves.
    pub fn base(&self) -> u16 {
        self.word(BASE as usize).load(Ordering::Relaxed) as u16
    }

    /// The word of a leaf, by its place, held ones first: when its packets will have gone, as far as the program knows.
    pub fn leaf(&self, place: u16) -> u64 {
        self.word(leaf_word(place)).load(Ordering::Acquire)
    }

    /// Tells the program that the packets of a leaf, by its place, have gone up to `word`.
    pub fn tell_gone(&self, place: u16, word: u64) {
        let mask = LEAF_MASK as u64;
        // The words of flows are rounded up, with the leaf in their low bits.
        let through = word.wrapping_add(mask) | mask;
        self.word(leaf_word(place) + GONE_BEHIND as usize).store(through, Ordering::Release);
    }

    fn of(map: Map, bytes: u32) -> io::Result<Memory> {
        let mapping = Mapping::new(map.as_fd(), 0, (bytes as usize).next_multiple_of(4096), true)?;
        Ok(Memory { map, mapping })
    }

    /// The map, for the program.
    pub fn map(&self) -> &Map {
        &self.map
    }

    /// Sets the clocks of its leaves. A lower one must be set before the queue's rates are, a higher one after.
    pub fn set_clocks(&self, leaves: &limit::Group) {
        for group in [HELD, PASSING] {
            self.word(group.word(CLOCK) as usize).store(leaf_clock(leaves), Ordering::Release);
        }
        self.word(PASSING_NS_EACH as usize).store(leaves.ceil.ns_for(1 << EACH_BITS), Ordering::Release);
        self.word(PASSING_NS_MAX as usize).store(leaves.passing_ns(), Ordering::Release);
    }

    /// Sets the longest packet that each leaf takes without cutting it. A lower one must be set before the leaves' queues are, a higher one
    /// after.
    pub fn set_uncut_bytes_max(&self, bytes: u32) {
        self.word(UNCUT_BYTES_MAX as usize).store(bytes.into(), Ordering::Release);
    }

    /// The longest packet that each leaf takes without cutting it.
    pub fn uncut_bytes_max(&self) -> u64 {
        self.word(UNCUT_BYTES_MAX as usize).load(Ordering::Acquire)
    }

    /// The rate at which a leaf is taken to be served.
    pub fn clock(&self) -> u64 {
        self.word(HELD.word(CLOCK) as usize).load(Ordering::Acquire)
    }

    /// The counters of the program.
    pub fn counts(&self) -> LimitCounts {
        let read = |at: i16| self.word(at as usize).load(Ordering::Acquire);
        LimitCounts {
            crowded: read(HELD.word(CROWDED)) + read(PASSING.word(CROWDED)),
            passing_full: read(PASSING_FULL),
            marked: read(MARKED),
        }
    }

    /// The counters of packets where they arrive; all 0 where no program looks.
    pub fn arrivals(&self) -> Arrivals {
        Arrivals::of(|at| self.word(at as usize).load(Ordering::Acquire))
    }

    /// Forgets the packets that passed before there was a limit to pass.
    pub fn forget_bypassed(&self) {
        for word in [BYPASSED, BYPASSED_BYTES] {
            self.word(word as usize).store(0, Ordering::Release);
        }
    }

    /// The record; `None` if none was written, or it is of another version.
    pub fn record(&self) -> Option<Record> {
        serde_json::from_slice(&self.record_slots().read()?).ok()
    }

    /// Writes the record anew, so that a reader sees the old one or the new.
    pub fn write(&self, record: &Record) -> io::Result<()> {
        self.record_slots().write(&text_of(record).map_err(io::Error::other)?);
        Ok(())
    }

    pub(super) fn record_slots(&self) -> RecordSlots<'_> {
        RecordSlots {
            generation: self.word(RECORDS_WORD),
            slots: [self.record_bytes(0), self.record_bytes(1)],
        }
    }

    fn record_bytes(&self, which: usize) -> &[AtomicU8] {
        let start = self.mapping.array::<AtomicU8>(RECORDS_AT + which * RECORD_BYTES, RECORD_BYTES);
        // SAFETY: `array` checked bounds; the mapping lives as long as `self`, and its bytes are touched by atomics alone here and
        // not at all by the program.
        unsafe { std::slice::from_raw_parts(start.as_ptr(), RECORD_BYTES) }
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        let word = self.mapping.array::<AtomicU64>(at, 1);
        // SAFETY: `array` checked bounds and alignment; the mapping lives as long as `self`; the program accesses the word as an
        // aligned 64-bit one, whole.
        unsafe { word.as_ref() }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn what_is_seen_of_arrivals_does_not_contradict_itself() {
        let longest = Arrivals::of(|at| if at == DELAY_NS { 70 } else { 50 });
        assert_eq!(
            (longest.delay_ns, longest.delay_ns_max),
            (70, 70),
            "a delay is no longer than the longest"
        );
        // A packet comes after the first word of it was read.
        let readings = Cell::new(0);
        let told = Arrivals::of(|at| {
            readings.set(readings.get() + 1);
            match at {
                BYPASSED => u64::from(readings.get() > 2),
                BYPASSED_BYTES => 1500,
                _ => 0,
            }
        });
        assert_eq!((told.bypassed, told.bypassed_bytes), (1, 1500));
        // One comes with each word that is read: it ends.
        let always = Cell::new(0);
        Arrivals::of(|_| always.replace(always.get() + 1));
    }
}
