//! The published bed around any design: generator and first bridge before its first link, router, second bridge and sink behind
//! its last.
//!
//! A design hands over numbers; the packet of a number lies in the slot of that number. The published machine routed between
//! the links; here the worker routes when a packet leaves the last one, in bursts, which is the same work for each packet and
//! spares the designs that hand over packet by packet a look at each alone. Nodes are those of Weir's own bed
//! ([`weir_run::testbed`]).
//!
//! Ownership: a slot is under a mutex, which is never contended: it is used again when its packet has long left, as the links
//! hold fewer packets than there are slots.
//! Limits: the copy into a slot and out of it, under its lock, is a cost that Weir's own bed does not have, and its bursts are twice
//! as long; the report says so. A packet that a design forgets in a ring and finds much later has another's bytes.

use std::sync::{Arc, Mutex, MutexGuard};

use anyhow::{Result, ensure};
use weir_core::net::bridge::{AGEING_NS, Bridge, Egress};
use weir_core::net::router::{Router, Verdict};
use weir_core::packet::{Carried, Meta, Packet as CorePacket};
use weir_path::traffic::flows::Flows;
use weir_path::traffic::sequence::Sequences;
use weir_run::seed::random_seed;
use weir_run::testbed::{FLOWS, GENERATOR, JAIL_0, JAIL_1, SINK, SIZE_BYTES, jail, traffic};

use super::design::{BURST, LINK_PACKETS, Packet};

/// Twice the packets of two links that swap a queue out.
const SLOTS: usize = 8 * LINK_PACKETS;

/// A packet's bytes, in whole cache lines.
#[derive(Clone)]
struct Frame {
    bytes: [u8; (SIZE_BYTES as usize).next_multiple_of(64)],
    meta: Meta,
}

impl Frame {
    fn burst() -> Vec<Frame> {
        vec![Frame { bytes: [0; _], meta: Meta::default() }; BURST]
    }
}

impl CorePacket for Frame {
    fn len_bytes(&self) -> u32 {
        SIZE_BYTES.into()
    }

    fn meta(&self) -> &Meta {
        &self.meta
    }

    fn meta_mut(&mut self) -> &mut Meta {
        &mut self.meta
    }
}

impl AsRef<[u8]> for Frame {
    fn as_ref(&self) -> &[u8] {
        &self.bytes[..usize::from(SIZE_BYTES)]
    }
}

impl AsMut<[u8]> for Frame {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[..usize::from(SIZE_BYTES)]
    }
}

struct Slots(Box<[Mutex<[u8; (SIZE_BYTES as usize).next_multiple_of(64)]>]>);

impl Slots {
    fn of(&self, packet: Packet) -> MutexGuard<'_, [u8; (SIZE_BYTES as usize).next_multiple_of(64)]> {
        self.0[packet.number as usize % SLOTS].lock().expect("nobody panics with a slot")
    }
}

/// The transmitter's half.
pub struct Front {
    slots: Arc<Slots>,
    flows: Flows,
    bridge: Bridge,
    runs: Vec<(Egress, usize)>,
    frames: Vec<Frame>,
}

/// The worker's half.
pub struct Back {
    slots: Arc<Slots>,
    router: Router<Frame>,
    bridge: Bridge,
    runs: Vec<(Egress, usize)>,
    frames: Vec<Frame>,
    waiting: usize,
    sequences: Sequences,
    astray: u64,
}

/// Both halves.
pub fn halves() -> Result<(Front, Back)> {
    let slots = Arc::new(Slots((0..SLOTS).map(|_| Mutex::new([0; _])).collect()));
    let bridge = |stations: [[u8; 6]; 2]| {
        let mut bridge = Bridge::new(1024, AGEING_NS, random_seed());
        for (port, mac) in [0, 1].into_iter().zip(stations) {
            bridge.add_port(port);
            let frame = [&[0xff; 6][..], &mac, &[0; 2]].concat();
            bridge.forward(port, &[frame], 0, &mut Vec::new());
        }
        bridge
    };
    let front = Front {
        slots: Arc::clone(&slots),
        flows: Flows::new(&traffic())?,
        bridge: bridge([GENERATOR.0, JAIL_0.0]),
        runs: Vec::new(),
        frames: Frame::burst(),
    };
    let back = Back {
        slots,
        router: Router::new(jail(), 0)?,
        bridge: bridge([JAIL_1.0, SINK.0]),
        runs: Vec::new(),
        frames: Frame::burst(),
        waiting: 0,
        sequences: Sequences::new(FLOWS),
        astray: 0,
    };
    Ok((front, back))
}

impl Front {
    /// Generates the packets of these numbers and bridges them.
    pub fn prepare(&mut self, burst: &[Packet]) {
        let frames = &mut self.frames[..burst.len()];
        for frame in &mut *frames {
            self.flows.write_next(&mut frame.bytes);
        }
        self.runs.clear();
        self.bridge.forward(0, frames.iter(), 0, &mut self.runs);
        assert!(self.runs.iter().all(|run| run.0 == Egress::Port(1)), "the first bridge knows the router");
        for (packet, frame) in burst.iter().zip(frames) {
            *self.slots.of(*packet) = frame.bytes;
        }
    }
}

impl Back {
    /// Takes a packet that has left the last link.
    pub fn take(&mut self, packet: Packet) {
        self.frames[self.waiting].bytes = *self.slots.of(packet);
        self.waiting += 1;
        if self.waiting == BURST {
            self.flush();
        }
    }

    /// Routes and bridges the packets that were taken, to the sink.
    pub fn flush(&mut self) {
        let frames = &mut self.frames[..std::mem::take(&mut self.waiting)];
        let mut verdicts = [Verdict::Local; BURST];
        self.router.process(0, frames, &Carried, 0, &mut verdicts);
        self.runs.clear();
        self.bridge.forward(0, frames.iter(), 0, &mut self.runs);
        let egress = self.runs.iter().flat_map(|&(egress, count)| std::iter::repeat_n(egress, count));
        for ((frame, verdict), egress) in frames.iter().zip(verdicts).zip(egress) {
            self.astray += u64::from((verdict, egress) != (Verdict::Forward(1), Egress::Port(1)));
            self.sequences.note(frame.as_ref());
        }
    }

    /// Fails if a packet came through as another than it was sent.
    pub fn check(&self) -> Result<()> {
        let strange = self.sequences.counts().unnumbered + self.astray;
        ensure!(strange == 0, "{strange} packets did not come through the bed as they should");
        Ok(())
    }
}
