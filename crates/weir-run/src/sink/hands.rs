//! What a worker of a sink does with packets: its handlers, its frames, and its check of the numbers of generators.
//!
//! Every packet that comes to [`Hands`] goes one way: to another protocol, to another worker, or to its end, where it is
//! counted and its frame goes back to the pool.
//!
//! Owner: one worker.

use std::sync::Arc;

use weir_core::dispatch::handlers::{Handlers, Verdict};
use weir_core::dispatch::protocol::ProtoId;
use weir_core::dispatch::workstream::{Handler, Next};
use weir_core::drops::{Count, DropReason};
use weir_core::packet::Packet;
use weir_core::shaper::ecn;
use weir_port::frames::{Frames, Received};
use weir_ring::memory::FrameMemory;
use weir_simd::prefetch::prefetch;

use super::arrival::Arrival;
use super::ways::Ways;
use crate::packet::bytes_of;
use crate::path::sequence::Sequences;

/// See the head of the file.
pub struct Hands {
    handlers: Handlers,
    memory: Arc<FrameMemory>,
    /// The worker's frames.
    pub frames: Frames,
    /// The ways to the other workers.
    pub ways: Ways,
    /// What generators sent here.
    pub sequences: Sequences,
    /// What reached its end as it should.
    pub delivered: Count,
}

impl Hands {
    /// With nothing done.
    pub fn new(handlers: Handlers, frames: Frames, ways: Ways, sequences: Sequences) -> Hands {
        let memory = Arc::clone(frames.pool.memory());
        Hands { handlers, memory, frames, ways, sequences, delivered: Count::default() }
    }
}

impl Handler<Arrival> for Hands {
    fn handle(&mut self, proto: ProtoId, arrival: Arrival, next: &mut Next<'_, Arrival>) {
        let (bytes, len_bytes) = (bytes_of(&arrival.received, &self.memory), arrival.len_bytes());
        match self.handlers.handle(proto, bytes) {
            Verdict::Dispatch(proto) => return next.dispatch(proto, arrival),
            Verdict::Deliver => {
                self.sequences.note(bytes);
                self.delivered.add(len_bytes);
                next.delivered(len_bytes);
            }
            Verdict::Drop(reason) => next.dropped(reason, len_bytes),
        }
        self.frames.pool.give(arrival.received.frame);
    }

    fn mark(&mut self, arrival: &mut Arrival) -> bool {
        let Received { frame, offset_bytes, len_bytes } = &mut arrival.received;
        let start = *offset_bytes as usize;
        ecn::mark_ce(&mut self.memory.bytes_mut(frame)[start..start + *len_bytes as usize])
    }

    fn hand_off(&mut self, worker: usize, proto: ProtoId, arrival: Arrival) {
        self.ways.hand(worker, proto, arrival);
    }

    fn dropped(&mut self, arrival: Arrival, _: DropReason) {
        self.sequences.note_dropped(bytes_of(&arrival.received, &self.memory));
        self.frames.pool.give(arrival.received.frame);
    }

    fn soon(&mut self, arrival: &Arrival) {
        // Its line is then on its way from another core while packets before it are handled.
        prefetch(bytes_of(&arrival.received, &self.memory));
    }
}
