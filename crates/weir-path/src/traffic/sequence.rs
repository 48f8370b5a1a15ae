//! Loss, duplicates and reordering, by the flow and sequence number that a generator writes ([`super::flows`]).
//!
//! ```text
//! number = next       in order
//! number > next       number - next are missing until they come
//! number < next       seen before: duplicated; otherwise it was overtaken: reordered, and missing no longer
//! ```
//!
//! Each of the last 64 numbers of a flow has a bit that tells whether it came. An older number counts as reordered and stays missing:
//! whether it came before is not known.
//!
//! A packet that a sink itself drops for a rule has come, and is in the books under the rule's name: it is not missing. The drop is noted
//! apart, since packets that wait before it in a queue are noted after it, and is taken off at the end ([`Sequences::settled`]):
//!
//! ```text
//! of a flow:   came from `first` to `next`, dropped from `least` to `most`
//! missing    = passed over + (max(next, most + 1) - min(first, least)) - (next - first) - dropped
//! ```
//!
//! Several sinks that share the flows of a generator add up to one, as long as no flow came to two of them.
//!
//! Owner: the sink. Source: the sliding window of RFC 4303 section 3.4.3.

use std::collections::BTreeMap;

use super::flows::{FLOWS_MAX, MARK, MARK_AT, SEQUENCE_END};

const WINDOW: u64 = 64;

/// The counts of a sink.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SequenceCounts {
    /// Packets of a generator.
    pub numbered: u64,
    /// Other packets.
    pub unnumbered: u64,
    /// Numbers that were passed over and have not come.
    pub missing: u64,
    /// Packets of a generator that came and were dropped here for a rule; they are not among `numbered`.
    pub dropped: u64,
    /// Packets that came again.
    pub duplicated: u64,
    /// Packets that were overtaken by a later one of their flow.
    pub reordered: u64,
}

impl SequenceCounts {
    /// Adds the counts of another sink.
    pub fn merge(&mut self, other: &SequenceCounts) {
        self.numbered += other.numbered;
        self.unnumbered += other.unnumbered;
        self.missing += other.missing;
        self.dropped += other.dropped;
        self.duplicated += other.duplicated;
        self.reordered += other.reordered;
    }
}

/// The state of one flow.
#[derive(Clone, Copy, Debug, Default)]
struct Flow {
    next: u64,
    /// Bit `i`: number `next - 1 - i` has come.
    seen: u64,
}

/// The dropped packets of one flow.
#[derive(Clone, Copy, Debug)]
struct Dropped {
    packets: u64,
    least: u64,
    /// One more than the highest number dropped.
    end: u64,
}

/// The flows a sink follows.
#[derive(Debug)]
pub struct Sequences {
    flows: Box<[Flow]>,
    /// The first number that came of each flow, for sinks that join late: read at the end alone.
    firsts: Box<[u64]>,
    dropped: BTreeMap<usize, Dropped>,
    /// True if the number of a flow that is seen first counts as its first, whatever it is.
    joins: bool,
    counts: SequenceCounts,
}

impl Sequences {
    /// The sequences of flows numbered below `flows`, each from its beginning.
    ///
    /// # Panics
    /// If `flows` is more than [`FLOWS_MAX`].
    pub fn new(flows: u32) -> Sequences {
        assert!(flows <= FLOWS_MAX, "at most {FLOWS_MAX} flows");
        let firsts = vec![0; flows as usize].into();
        let flows = vec![Flow::default(); flows as usize].into();
        Sequences { flows, firsts, dropped: BTreeMap::new(), joins: false, counts: SequenceCounts::default() }
    }

    /// As [`Sequences::new`], for a sink that may have been started after the generator.
    pub fn joining(flows: u32) -> Sequences {
        Sequences { joins: true, ..Sequences::new(flows) }
    }

    /// The counts of the packets that have been seen.
    pub fn counts(&self) -> &SequenceCounts {
        &self.counts
    }

    /// The number of flows that have been seen.
    pub fn flows(&self) -> u64 {
        self.flows.iter().filter(|flow| flow.seen != 0).count() as u64
    }

    /// Adds the sequences that another sink has seen of the same generators. Returns how many flows came to both: their order is not known.
    pub fn merge(&mut self, other: &Sequences) -> u64 {
        self.counts.merge(&other.counts);
        let mut split = 0;
        let mine = self.flows.iter_mut().zip(&mut self.firsts);
        for ((mine, first), (theirs, their_first)) in mine.zip(other.flows.iter().zip(&other.firsts)) {
            split += u64::from(mine.seen != 0 && theirs.seen != 0);
            if theirs.seen != 0 {
                (*mine, *first) = (*theirs, *their_first);
            }
        }
        for (flow, theirs) in &other.dropped {
            self.dropped
                .entry(*flow)
                .and_modify(|mine| {
                    mine.packets += theirs.packets;
                    mine.least = mine.least.min(theirs.least);
                    mine.end = mine.end.max(theirs.end);
                })
                .or_insert(*theirs);
        }
        split
    }

    /// Notes a frame that came and was dropped here.
    #[cold]
    pub fn note_dropped(&mut self, frame: &[u8]) {
        let Some((flow, number)) = number_of(frame).filter(|(flow, _)| *flow < self.flows.len()) else {
            return;
        };
        self.counts.dropped += 1;
        let dropped = self.dropped.entry(flow).or_insert(Dropped { packets: 0, least: number, end: 0 });
        dropped.packets += 1;
        dropped.least = dropped.least.min(number);
        dropped.end = dropped.end.max(number.saturating_add(1));
    }

    /// The counts, with only those numbers as missing that did not come; to be asked when no packet waits any more.
    pub fn settled(&self) -> SequenceCounts {
        let (mut further, mut dropped) = (0, 0);
        for (&flow, of_flow) in &self.dropped {
            let Flow { next, seen } = self.flows[flow];
            let first = match (seen, self.joins) {
                (0, true) => of_flow.least,
                _ => self.firsts[flow],
            };
            // If no packet came, the dropped ones are all there are.
            let next = if seen == 0 { first } else { next };
            further += of_flow.end.max(next) - next + (first - of_flow.least.min(first));
            dropped += of_flow.packets;
        }
        let missing = (self.counts.missing + further).saturating_sub(dropped);
        SequenceCounts { missing, ..self.counts }
    }

    /// Notes a frame.
    #[inline]
    pub fn note(&mut self, frame: &[u8]) {
        self.note_all([frame]);
    }

    /// Notes frames, in the order they came in.
    #[inline]
    pub fn note_all<'f>(&mut self, frames: impl IntoIterator<Item = &'f [u8]>) {
        let Sequences { flows, firsts, joins, counts, .. } = self;
        let (mut numbered, mut unnumbered) = (0, 0);
        for frame in frames {
            match number_of(frame).and_then(|(at, number)| Some((at, flows.get_mut(at)?, number))) {
                Some((_, flow, number)) if number == flow.next => {
                    // The last number of all has no next; a packet from a wire may have it.
                    flow.next = number.saturating_add(1);
                    flow.seen = flow.seen << 1 | 1;
                    numbered += 1;
                }
                Some((at, flow, number)) => {
                    if *joins && flow.next == 0 {
                        firsts[at] = number;
                    }
                    out_of_order(flow, number, *joins, counts);
                    numbered += 1;
                }
                None => unnumbered += 1,
            }
        }
        counts.numbered += numbered;
        counts.unnumbered += unnumbered;
    }
}

#[cold]
fn out_of_order(flow: &mut Flow, number: u64, joins: bool, counts: &mut SequenceCounts) {
    if number > flow.next {
        let passed_over = number - flow.next;
        if !(joins && flow.next == 0) {
            counts.missing += passed_over;
        }
        flow.seen = if passed_over >= WINDOW - 1 { 1 } else { flow.seen << (passed_over + 1) | 1 };
        flow.next = number.saturating_add(1);
        return;
    }
    let back = flow.next - 1 - number;
    if back >= WINDOW {
        counts.reordered += 1;
    } else if flow.seen >> back & 1 == 1 {
        counts.duplicated += 1;
    } else {
        flow.seen |= 1 << back;
        counts.reordered += 1;
        counts.missing = counts.missing.saturating_sub(1);
    }
}

/// The flow and the sequence number of a generator's packet.
#[inline]
fn number_of(frame: &[u8]) -> Option<(usize, u64)> {
    let head = frame.first_chunk::<SEQUENCE_END>()?;
    let (_, tail) = head.split_at(MARK_AT);
    let tail: &[u8; SEQUENCE_END - MARK_AT] = tail.first_chunk()?;
    let [m0, m1, m2, m3, f0, f1, f2, f3, number @ ..] = *tail;
    // UDP over IPv4 without options: any other packet could have the mark at this place by chance.
    let is_udp =
        u32::from_be_bytes([head[12], head[13], head[14], head[15]]) >> 8 == 0x08_0045 && head[23] == 17;
    ([m0, m1, m2, m3] == MARK && is_udp)
        .then(|| (u32::from_be_bytes([f0, f1, f2, f3]) as usize, u64::from_be_bytes(number)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::traffic::flows::{Flows, Traffic};
    use smoltcp::wire::EthernetAddress;

    fn frame_of_flow_3() -> [u8; 64] {
        let traffic = Traffic {
            size_bytes: 60,
            src: "10.0.0.1".parse().unwrap(),
            dst: "10.0.0.2:1-10.0.0.2:4".parse().unwrap(),
            src_mac: EthernetAddress([2, 0, 0, 0, 0, 1]),
            dst_mac: EthernetAddress([2, 0, 0, 0, 0, 2]),
            flows: 1,
            first_flow: 3,
        };
        let mut bytes = [0; 64];
        Flows::new(&traffic).unwrap().write_next(&mut bytes);
        bytes
    }

    fn counts_of(sequences: &mut Sequences, numbers: &[u64]) -> SequenceCounts {
        let mut bytes = frame_of_flow_3();
        for number in numbers {
            bytes[MARK_AT + 8..SEQUENCE_END].copy_from_slice(&number.to_be_bytes());
            sequences.note(&bytes[..60]);
        }
        *sequences.counts()
    }

    #[test]
    fn each_fault_is_seen_for_what_it_is() {
        let seen = |numbers: &[u64]| {
            let counts = counts_of(&mut Sequences::new(4), numbers);
            assert_eq!((counts.numbered, counts.unnumbered), (numbers.len() as u64, 0));
            (counts.missing, counts.duplicated, counts.reordered)
        };
        assert_eq!(seen(&[0, 1, 2, 3]), (0, 0, 0));
        assert_eq!(seen(&[0, 2, 3]), (1, 0, 0));
        assert_eq!(seen(&[5]), (5, 0, 0), "the first ones are missing too");
        assert_eq!(seen(&[0, 2, 1, 3]), (0, 0, 1));
        assert_eq!(seen(&[0, 1, 1, 0, 2]), (0, 2, 0));
        assert_eq!(seen(&[0, 3, 1, 1, 2]), (0, 1, 2));
        assert_eq!(seen(&[0, 100, 1]), (99, 0, 1), "too old to know");
        assert_eq!(seen(&[0, 64, 1, 1]), (62, 1, 1), "the oldest bit");
        assert_eq!(seen(&[u64::MAX, u64::MAX]), (u64::MAX, 0, 0), "the last number of all");
    }

    #[test]
    fn a_sink_that_joins_late_misses_nothing_before() {
        let counts = counts_of(&mut Sequences::joining(4), &[1000, 1001, 1003]);
        assert_eq!((counts.missing, counts.numbered), (1, 3));
    }

    /// The missing and dropped counts of a sink after it noted drops, and then packets that came.
    fn settled(joins: bool, came: &[u64], dropped: &[u64]) -> (u64, u64) {
        let mut sequences = if joins { Sequences::joining(4) } else { Sequences::new(4) };
        let mut bytes = frame_of_flow_3();
        for number in dropped {
            bytes[MARK_AT + 8..SEQUENCE_END].copy_from_slice(&number.to_be_bytes());
            sequences.note_dropped(&bytes[..60]);
        }
        counts_of(&mut sequences, came);
        let settled = sequences.settled();
        (settled.missing, settled.dropped)
    }

    #[test]
    fn what_a_rule_drops_is_not_missing_wherever_it_stood() {
        for joins in [false, true] {
            assert_eq!(settled(joins, &[0, 1, 4], &[2, 3]), (0, 2), "between");
            assert_eq!(settled(joins, &[0, 1], &[2, 3]), (0, 2), "at the end");
            assert_eq!(settled(joins, &[0, 1], &[2, 5]), (2, 2), "and two before the last did not come");
            assert_eq!(settled(joins, &[2, 3], &[0, 1]), (0, 2), "at the beginning");
            assert_eq!(settled(joins, &[0, 3], &[1]), (1, 1), "beside one that did not come");
            assert_eq!(settled(joins, &[], &[0, 1]), (0, 2), "nothing else came");
        }
        assert_eq!(settled(true, &[1002], &[1000, 1001]), (0, 2), "joined late");
        assert_eq!(settled(true, &[], &[1000, 1002]), (1, 2));
        assert_eq!(settled(false, &[], &[2]), (2, 1), "the first ones are missing too");
    }

    #[test]
    fn drops_of_two_sinks_add_up() {
        let (mut first, mut second) = (Sequences::joining(4), Sequences::joining(4));
        counts_of(&mut first, &[7, 9]);
        let mut bytes = frame_of_flow_3();
        for number in [8u64, 10] {
            bytes[MARK_AT + 8..SEQUENCE_END].copy_from_slice(&number.to_be_bytes());
            second.note_dropped(&bytes[..60]);
        }
        assert_eq!(first.settled().missing, 1, "alone it does not know");
        assert_eq!(first.merge(&second), 0);
        assert_eq!((first.settled().missing, first.settled().dropped), (0, 2));
    }

    #[test]
    fn a_flow_that_came_to_two_sinks_is_found() {
        let (mut first, mut second) = (Sequences::new(4), Sequences::new(4));
        counts_of(&mut first, &[0, 1]);
        assert_eq!((first.flows(), second.flows()), (1, 0));
        assert_eq!(second.merge(&first), 0, "all of it came to one");
        assert_eq!((second.counts().numbered, second.flows()), (2, 1));
        assert_eq!(second.merge(&first), 1);
        assert_eq!(second.counts().numbered, 4);
    }

    #[test]
    fn other_packets_are_counted_apart() {
        let mut sequences = Sequences::new(3);
        assert_eq!(counts_of(&mut sequences, &[0]).unnumbered, 1, "flow 3 of 3");
        for frame in [&[][..], &[0; 57], &[0; 60]] {
            sequences.note(frame);
        }
        assert_eq!(sequences.counts().unnumbered, 4);
        assert_eq!(sequences.counts().numbered, 0);
    }
}
