//! The packets of this lab and the work that is done on them, which stands in for IPsec's.
//!
//! A packet is a frame of packet memory with a 64-byte UDP datagram in it: one of [`FLOWS`] flows, numbered within its flow.
//! The work reads the frame and computes for a given time ([`Cost`]), so it is the same number of instructions wherever and
//! whenever it is done; a worker that is kept off its core does not have less of it to do.
//!
//! Checked at each packet (invariant 2): its number is higher than that of every packet of its flow handled here before. A flow
//! that is handled on two workers counts as reordered, too: nobody could vouch for its order.
//!
//! Limits: nothing is encrypted.

use std::hint::black_box;

use weir_core::packet::{Meta, Packet};
use weir_core::steer::rss::Rss;
use weir_ring::memory::Frame;
use weir_run::clock::now_ns;
use weir_simd::prefetch::prefetch;

use crate::epair::histogram::Histogram;

/// Flows: some for each bucket of any table that two workers have use for.
pub const FLOWS: usize = 64;
/// The frame's length on the wire, without its check sequence.
pub const FRAME_LEN: usize = 60;

const NUMBER_AT: usize = 42;
const FLOW_AT: usize = 50;

/// A packet under way.
pub struct NetisrPacket {
    /// Its frame.
    pub frame: Frame,
    /// Its metadata.
    pub meta: Meta,
}

impl Packet for NetisrPacket {
    fn len_bytes(&self) -> u32 {
        FRAME_LEN as u32
    }
    fn meta(&self) -> &Meta {
        &self.meta
    }
    fn meta_mut(&mut self) -> &mut Meta {
        &mut self.meta
    }
}

/// Writes the packets of all flows in turn.
pub struct Writer {
    /// Each flow with its number among all.
    templates: Vec<(u8, [u8; FRAME_LEN])>,
    next: u64,
}

impl Writer {
    /// From the first packet of each of these flows on.
    pub fn new(flows: impl Iterator<Item = usize>) -> Writer {
        Writer { templates: flows.map(|flow| (flow as u8, template(flow))).collect(), next: 0 }
    }

    /// Writes the next packet into a frame.
    #[inline]
    pub fn write(&mut self, bytes: &mut [u8]) {
        let flows = self.templates.len() as u64;
        let ((flow, template), number) = (&self.templates[(self.next % flows) as usize], self.next / flows);
        self.next += 1;
        bytes[..FRAME_LEN].copy_from_slice(template);
        bytes[NUMBER_AT..FLOW_AT].copy_from_slice(&number.to_le_bytes());
        bytes[FLOW_AT] = *flow;
    }
}

/// Ethernet, IPv4, UDP: the addresses of the published benchmark's generator, a port for each flow.
fn template(flow: usize) -> [u8; FRAME_LEN] {
    let mut frame = [0; FRAME_LEN];
    frame[12..14].copy_from_slice(&[0x08, 0x00]);
    frame[14..24].copy_from_slice(&[0x45, 0, 0, 46, 0, 0, 0, 0, 64, 17]);
    frame[26..34].copy_from_slice(&[198, 18, 0, 1, 198, 19, 0, flow as u8]);
    frame[34..40].copy_from_slice(&[0x20, flow as u8, 0x20, 0, 0, 26]);
    frame
}

/// Asks for what the work will read of a packet. Its line is then on its way from the other core while those before it are worked
/// on, where the work would wait for one after another.
#[inline]
pub fn expect(bytes: &[u8]) {
    prefetch(&bytes[NUMBER_AT]);
}

/// How many rounds of computing take a given time on this machine when nobody disturbs them.
#[derive(Debug, Clone, Copy)]
pub struct Cost {
    rounds: u64,
}

impl Cost {
    /// Work of about `cost_ns`.
    pub fn of_ns(cost_ns: u64) -> Cost {
        const ROUNDS: u64 = 20_000;
        let lap_ns = |_| {
            let start_ns = now_ns();
            compute(ROUNDS, 1);
            now_ns() - start_ns
        };
        let least_ns = (0..100).map(lap_ns).min().unwrap_or(0).max(1);
        Cost { rounds: (cost_ns * ROUNDS).div_ceil(least_ns) }
    }

    /// Does it, on nothing in particular.
    #[inline]
    pub fn spend(self) {
        compute(self.rounds, 1);
    }
}

fn compute(rounds: u64, mut word: u64) {
    for _ in 0..rounds {
        word = (word ^ word >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    }
    black_box(word);
}

/// What one worker has handled.
#[derive(Debug)]
pub struct Tally {
    /// For each flow, the number that is due.
    next: [u64; FLOWS],
    /// Packets handled.
    pub handled: u64,
    /// Packets with a lower number than one before them.
    pub reordered: u64,
    /// From the ring to the end of the work.
    pub latency: Histogram,
    /// When the last one was handled.
    pub last_ns: u64,
}

impl Tally {
    /// Nothing yet.
    pub fn new() -> Tally {
        Tally { next: [0; FLOWS], handled: 0, reordered: 0, latency: Histogram::default(), last_ns: 0 }
    }

    /// Does the work on a packet.
    #[inline]
    pub fn work(&mut self, cost: Cost, bytes: &[u8], arrival_ns: u64) {
        let number = u64::from_le_bytes(bytes[NUMBER_AT..FLOW_AT].try_into().expect("eight bytes"));
        let next = &mut self.next[usize::from(bytes[FLOW_AT])];
        self.reordered += u64::from(number < *next);
        *next = (*next).max(number + 1);
        compute(cost.rounds, number | 1);
        self.handled += 1;
        self.last_ns = now_ns();
        self.latency.add(self.last_ns.saturating_sub(arrival_ns));
    }

    /// Adds what another worker has handled.
    pub fn merge(&mut self, other: &Tally) {
        let both = |flow: &usize| self.next[*flow] > 0 && other.next[*flow] > 0;
        self.reordered += other.reordered + (0..FLOWS).filter(both).count() as u64;
        self.handled += other.handled;
        self.latency.merge(&other.latency);
        self.last_ns = self.last_ns.max(other.last_ns);
    }
}

/// The worker that `rss` gives each flow.
pub fn workers_of_flows(rss: &Rss) -> Vec<usize> {
    (0..FLOWS).map(|flow| rss.worker(rss.hash(&template(flow)))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_core::steer::key::Key;
    use weir_core::steer::parse::HashKind;

    fn frame_of(writer: &mut Writer) -> [u8; FRAME_LEN] {
        let mut bytes = [0; FRAME_LEN];
        writer.write(&mut bytes);
        bytes
    }

    #[test]
    fn what_overtakes_or_changes_workers_is_seen() {
        let mut writer = Writer::new(0..FLOWS);
        let frames: Vec<_> = (0..3 * FLOWS).map(|_| frame_of(&mut writer)).collect();
        let cost = Cost { rounds: 1 };
        let mut tally = Tally::new();
        [0, 1, FLOWS, FLOWS + 1].into_iter().for_each(|place| tally.work(cost, &frames[place], 0));
        assert_eq!((tally.handled, tally.reordered), (4, 0), "two flows in turn");
        tally.work(cost, &frames[2 * FLOWS + 2], 0);
        tally.work(cost, &frames[FLOWS + 2], 0);
        assert_eq!(tally.reordered, 1);
        let mut elsewhere = Tally::new();
        elsewhere.work(cost, &frames[3], 0);
        tally.merge(&elsewhere);
        assert_eq!((tally.handled, tally.reordered), (7, 1), "a flow of its own");
        let mut again = Tally::new();
        again.work(cost, &frames[2 * FLOWS], 0);
        tally.merge(&again);
        assert_eq!(tally.reordered, 2, "the first flow was handled on two workers");
    }

    #[test]
    fn every_flow_has_a_hash_and_both_workers_have_flows() {
        let rss = Rss::new(&Key::MICROSOFT, HashKind::FourTuple, 2, 2).unwrap();
        assert!((0..FLOWS).all(|flow| rss.hash(&template(flow)) != 0));
        let second = workers_of_flows(&rss).into_iter().filter(|worker| *worker == 1).count();
        assert!((FLOWS / 4..=FLOWS * 3 / 4).contains(&second), "{second} of {FLOWS} flows");
    }

    #[test]
    fn dearer_work_takes_more_rounds() {
        let (cheap, dear) = (Cost::of_ns(100), Cost::of_ns(10_000));
        assert!(cheap.rounds > 0 && dear.rounds > 30 * cheap.rounds, "{cheap:?} {dear:?}");
    }
}
