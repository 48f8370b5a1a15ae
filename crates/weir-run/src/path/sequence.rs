//! Loss, duplicates and reordering, by the flow and sequence number that a generator writes ([`super::flows`]).
//!
//! ```text
//! number = next       in order
//! number > next       number - next are missing until they come
//! number < next       seen before: duplicated; otherwise it was overtaken: reordered, and missing no longer
//! ```
//!
//! What came of the last 64 of a flow is a bit each, so an older one counts as reordered and stays missing: it cannot be known
//! which it was.
//!
//! Several sinks that share the flows of a generator add up to one, as long as no flow came to two of them.
//!
//! Owner: the sink. Source: the sliding window of RFC 4303 section 3.4.3.

use super::flows::{FLOWS_MAX, MARK, MARK_AT, SEQUENCE_END};

const WINDOW: u64 = 64;

/// What a sink has seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SequenceCounts {
    /// Packets of a generator.
    pub numbered: u64,
    /// Others.
    pub unnumbered: u64,
    /// Numbers that were passed over and have not come.
    pub missing: u64,
    /// Packets that came again.
    pub duplicated: u64,
    /// Packets that were overtaken by a later one of their flow.
    pub reordered: u64,
}

impl SequenceCounts {
    /// Adds what another sink has seen.
    pub fn merge(&mut self, other: &SequenceCounts) {
        self.numbered += other.numbered;
        self.unnumbered += other.unnumbered;
        self.missing += other.missing;
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

/// The flows a sink follows.
#[derive(Debug)]
pub struct Sequences {
    flows: Box<[Flow]>,
    /// The first number of a flow that is seen is its first, whatever it is.
    joins: bool,
    counts: SequenceCounts,
}

impl Sequences {
    /// For flows numbered below `flows`, each from its beginning.
    ///
    /// # Panics
    /// If that is more than [`FLOWS_MAX`].
    pub fn new(flows: u32) -> Sequences {
        assert!(flows <= FLOWS_MAX, "at most {FLOWS_MAX} flows");
        let flows = vec![Flow::default(); flows as usize].into();
        Sequences { flows, joins: false, counts: SequenceCounts::default() }
    }

    /// As [`Sequences::new`], for a sink that may have been started after the generator.
    pub fn joining(flows: u32) -> Sequences {
        Sequences { joins: true, ..Sequences::new(flows) }
    }

    /// What has been seen.
    pub fn counts(&self) -> &SequenceCounts {
        &self.counts
    }

    /// How many flows have been seen.
    pub fn flows(&self) -> u64 {
        self.flows.iter().filter(|flow| flow.seen != 0).count() as u64
    }

    /// Adds what another sink has seen of the same generators. Returns how many flows came to both: nobody can vouch for their
    /// order.
    pub fn merge(&mut self, other: &Sequences) -> u64 {
        self.counts.merge(&other.counts);
        let mut split = 0;
        for (mine, theirs) in self.flows.iter_mut().zip(&other.flows) {
            split += u64::from(mine.seen != 0 && theirs.seen != 0);
            if theirs.seen != 0 {
                *mine = *theirs;
            }
        }
        split
    }

    /// Notes a frame.
    #[inline]
    pub fn note(&mut self, frame: &[u8]) {
        self.note_all([frame]);
    }

    /// Notes frames, in the order they came in.
    #[inline]
    pub fn note_all<'f>(&mut self, frames: impl IntoIterator<Item = &'f [u8]>) {
        let Sequences { flows, joins, counts } = self;
        let (mut numbered, mut unnumbered) = (0, 0);
        for frame in frames {
            match number_of(frame).and_then(|(flow, number)| Some((flows.get_mut(flow)?, number))) {
                Some((flow, number)) if number == flow.next => {
                    // The last number of all has no next; what comes from a wire may have it.
                    flow.next = number.saturating_add(1);
                    flow.seen = flow.seen << 1 | 1;
                    numbered += 1;
                }
                Some((flow, number)) => {
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

/// Flow and sequence number of a generator's packet.
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
    use crate::path::flows::{Flows, Traffic};
    use smoltcp::wire::EthernetAddress;

    fn counts_of(sequences: &mut Sequences, numbers: &[u64]) -> SequenceCounts {
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
