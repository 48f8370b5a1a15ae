//! A port in memory: a generator makes a packet when the port is polled, and a sink checks the packets that are transmitted by it and ends
//! them.
//!
//! ```text
//! due (generator.rs) --announced--> poll --> packet       packet --put--> complete: checked (sequence.rs), delivered, frame back
//! ```
//!
//! Rule: a generator is a sender like any other: a packet that is not polled is not made. So the generator is held by the places that its
//! packets would wait for, and none is dropped for want of room, unless it stands behind a ring ([`MemoryPort::with_ring`]). Packets that
//! come to a port without a sink, such as those that a bridge floods to a generator, are delivered unread.
//!
//! Flows are dealt to the receive queues by their hash. Queues take turns: while less is due than a poll of each would bring, only those
//! next in turn are announced.
//!
//! Owner: one worker. The driver of the worker tells the time ([`MemoryPort::look`]), before each pass.

use std::fmt;
use std::io;

use weir_core::drops::Count;
use weir_core::packet::{Meta, move_all};
use weir_core::steer::key::Key;

use super::flows::{Flows, TrafficError};
use super::generator::{Gen, GenSpec};
use super::sequence::Sequences;
use crate::carrier::Carrier;
use crate::frames::Frames;
use crate::packet::PathPacket;
use crate::port::{Completion, POLL_PACKETS_MAX, ReceiveQueues, Transmit, TransmitRing};

/// The most packets that are put before they are completed: those that leave in a few passes.
const TRANSMIT_PACKETS_MAX: u32 = 256;

/// The free bytes before a packet, as before one that a device receives (`XDP_PACKET_HEADROOM`), so that headers can be put before it where
/// it lies.
const HEADROOM_BYTES: u16 = 256;

/// The recipient of the packets that come to a sink: it works on each, in their order.
pub trait Recipient: fmt::Debug + Send {
    /// Works on a packet.
    fn receive(&mut self, meta: &Meta, bytes: &[u8]);
}

/// A port in memory.
#[derive(Debug, Default)]
pub struct MemoryPort {
    source: Option<Source>,
    sink: Option<Sequences>,
    recipient: Option<Box<dyn Recipient>>,
    /// Packets that were put and are not completed.
    put: Vec<PathPacket>,
    put_bytes: u64,
}

/// The half that makes packets.
#[derive(Debug)]
struct Source {
    generator: Gen,
    /// The flows of each receive queue.
    flows: Vec<Flows>,
    /// The number of packets that are due and not made.
    due: usize,
    /// The queue whose turn it is.
    turn: usize,
    poll_budget: u32,
    is_open: bool,
    made: Count,
}

impl Source {
    /// A source with a receive queue for each entry of `flows` that has flows.
    fn new(spec: &GenSpec, mut flows: Vec<Flows>) -> Source {
        flows.retain(|flows| !flows.is_empty());
        Source {
            generator: Gen::new(spec.packets_per_s, spec.until),
            flows,
            due: 0,
            turn: 0,
            poll_budget: POLL_PACKETS_MAX,
            is_open: true,
            made: Count::default(),
        }
    }
}

impl MemoryPort {
    /// A port with a generator of so many receive queues.
    ///
    /// # Errors
    /// If there can be no such traffic.
    pub fn generator(spec: &GenSpec, queues: usize) -> Result<MemoryPort, TrafficError> {
        let source = Source::new(spec, Flows::new(&spec.traffic)?.deal(queues));
        Ok(MemoryPort { source: Some(source), ..MemoryPort::default() })
    }

    /// Ports with a generator and a sink each, one for each of so many workers: flows are dealt to these by their hash under `key`, as a
    /// device deals the packets that it receives to their queues.
    ///
    /// # Errors
    /// If there can be no such traffic.
    pub fn dealt(spec: &GenSpec, key: &Key, workers: usize) -> Result<Vec<MemoryPort>, TrafficError> {
        let dealt = Flows::hashed(&spec.traffic, key)?.deal(workers).into_iter();
        let flows = spec.traffic.first_flow + spec.traffic.flows;
        let ports = dealt.map(|here| MemoryPort {
            source: Some(Source::new(spec, vec![here])),
            sink: Some(Sequences::new(flows)),
            ..MemoryPort::default()
        });
        Ok(ports.collect())
    }

    /// A port with a sink.
    pub fn sink(sequences: Sequences) -> MemoryPort {
        MemoryPort { sink: Some(sequences), ..MemoryPort::default() }
    }

    /// The port with its generator behind a device's ring of so many packets, which cannot be held.
    #[must_use]
    pub fn with_ring(mut self, packets: u64) -> MemoryPort {
        if let Some(source) = self.source.take() {
            self.source = Some(Source { generator: source.generator.with_ring(packets), ..source });
        }
        self
    }

    /// Gives the packets that come here to a recipient too.
    pub fn set_recipient(&mut self, recipient: Box<dyn Recipient>) {
        self.recipient = Some(recipient);
    }

    /// Learns the time; returns when the next packet is due, if none is now and the generator need not wait.
    pub fn look(&mut self, now_ns: u64) -> Option<u64> {
        let source = self.source.as_mut()?;
        let most = if source.is_open { source.flows.len() * source.poll_budget as usize } else { 0 };
        source.due = source.generator.due(now_ns, most);
        if source.due == 0 && source.is_open { source.generator.next_ns() } else { None }
    }

    /// Makes the generator wait, or go on.
    pub fn set_open(&mut self, is_open: bool) {
        self.source.iter_mut().for_each(|source| source.is_open = is_open);
    }

    /// Makes the generator stop for good.
    pub fn stop(&mut self) {
        self.source.iter_mut().for_each(|source| source.generator.stop());
    }

    /// Returns whether no more packets will be made here.
    pub fn is_done(&self) -> bool {
        self.source.as_ref().is_none_or(|source| source.generator.is_done())
    }

    /// Packets that were made here.
    pub fn made(&self) -> Count {
        self.source.as_ref().map_or(Count::default(), |source| source.made)
    }

    /// The number of packets that found the ring full.
    pub fn missed(&self) -> u64 {
        self.source.as_ref().map_or(0, |source| source.generator.missed())
    }

    /// The sequences of packets that came here, if this is a sink.
    pub fn sequences(&self) -> Option<&Sequences> {
        self.sink.as_ref()
    }
}

impl ReceiveQueues for MemoryPort {
    fn queues(&self) -> usize {
        self.source.as_ref().map_or(0, |source| source.flows.len())
    }

    fn is_announced(&self, queue: usize) -> bool {
        self.source.as_ref().is_some_and(|source| {
            let before = (queue + source.flows.len() - source.turn) % source.flows.len();
            source.due > before * source.poll_budget as usize
        })
    }

    // A packet that is due is announced as long as it is.
    fn expect(&mut self, _: usize) {}

    fn set_announced(&mut self, _: usize) {}

    // Senders here are not told to go elsewhere.
    fn set_backlog(&mut self, _: usize, _: bool) {}

    fn poll(&mut self, queue: usize, frames: &mut Frames, received: &mut Vec<PathPacket>) -> usize {
        let Some(source) = &mut self.source else { return 0 };
        let most = source.due.min(source.poll_budget as usize);
        let flows = &mut source.flows[queue];
        let len_bytes = flows.size_bytes();
        let Frames { pool, memory, .. } = frames;
        let beside = memory.frame_size_bytes().saturating_sub(len_bytes.next_multiple_of(64).into());
        let offset_bytes = HEADROOM_BYTES.min(u16::try_from(beside).unwrap_or(u16::MAX));
        let mut made = 0;
        while made < most {
            let run = pool.take_run(most - made);
            if run.len() == 0 {
                break;
            }
            made += run.len();
            let mut turns = flows.turns();
            received.extend(run.map(|mut frame| {
                turns.write_next(&mut memory.bytes_mut(&mut frame)[usize::from(offset_bytes)..]);
                PathPacket::new(frame, offset_bytes, len_bytes)
            }));
        }
        if made > 0 {
            source.turn = (queue + 1) % source.flows.len();
        }
        source.due -= made;
        source.generator.note_sent(made);
        source.made.merge(Count { packets: made as u64, bytes: made as u64 * u64::from(len_bytes) });
        made
    }

    fn collect(&mut self, _: usize, _: &mut Frames, _: &mut Vec<PathPacket>) -> usize {
        0
    }

    fn set_poll_budget(&mut self, packets: u32) -> u32 {
        self.source.iter_mut().for_each(|source| source.poll_budget = packets);
        packets
    }
}

impl TransmitRing for MemoryPort {
    fn packet_bytes_max(&self) -> u32 {
        u32::MAX
    }

    fn room(&self) -> u32 {
        TRANSMIT_PACKETS_MAX.saturating_sub(self.put.len() as u32)
    }

    #[inline]
    fn put(&mut self, packets: &mut Vec<PathPacket>, count: Count, _: &mut Frames) {
        self.put_bytes += count.bytes;
        move_all(packets, &mut self.put);
    }

    fn flush(&mut self, _: &mut Carrier, _: u64) -> io::Result<Transmit> {
        Ok(Transmit::Progress)
    }

    fn has_carrier(&self) -> bool {
        true
    }

    fn complete(&mut self, frames: &mut Frames, mut each: impl FnMut(Count, Completion)) {
        let memory = frames.pool.memory();
        if let Some(sequences) = &mut self.sink {
            sequences.note_all(self.put.iter().map(|packet| packet.bytes(memory)));
        }
        if let Some(recipient) = &mut self.recipient {
            self.put.iter().for_each(|packet| recipient.receive(&packet.meta, packet.bytes(memory)));
        }
        each(self.in_flight(), Completion::Delivered);
        frames.pool.give_all(self.put.drain(..).map(|packet| packet.frame));
        self.put_bytes = 0;
    }

    fn in_flight(&self) -> Count {
        Count { packets: self.put.len() as u64, bytes: self.put_bytes }
    }
}

#[cfg(test)]
mod tests {
    use smoltcp::wire::EthernetAddress;

    use super::*;
    use crate::traffic::flows::Traffic;
    use crate::traffic::generator::Until;

    #[test]
    fn a_generator_that_must_wait_has_no_time_for_its_next_packet() {
        const SECOND: u64 = 1_000_000_000;
        let [src, dst] = ["198.18.0.1:1000", "198.19.0.1:2000"].map(|end| end.parse().unwrap());
        let mac = EthernetAddress([2, 0, 0, 0, 0, 1]);
        let traffic =
            Traffic { size_bytes: 100, src, dst, src_mac: mac, dst_mac: mac, flows: 1, first_flow: 0 };
        let spec = GenSpec { traffic, packets_per_s: Some(100), until: Until::Stopped };
        let mut port = MemoryPort::generator(&spec, 1).unwrap();
        assert!(port.look(SECOND).is_some(), "the first packet is due a hundredth of a second later");
        port.set_open(false);
        assert_eq!(port.look(2 * SECOND), None, "packets are due that may not go");
        port.set_open(true);
        assert_eq!(port.look(2 * SECOND), None);
        assert!(port.source.is_some_and(|source| source.due > 0), "they are due at once");
    }
}
