//! What a worker of a sink does with packets: its handlers, its frames, and its check of the numbers of generators.
//!
//! Every packet that comes to [`Hands`] goes one way: to another protocol, to another worker, or to its end, where it is
//! counted and its frame goes back to the pool.
//!
//! Owner: one worker.

use std::sync::Arc;

use weir_core::dispatch::handlers::{HandlerVerdict, Handlers};
use weir_core::dispatch::protocol::ProtoId;
use weir_core::dispatch::workstream::{Handler, Next};
use weir_core::drops::{Count, DropReason};
use weir_core::shaper::ecn;
use weir_path::frames::Frames;
use weir_path::packet::PathPacket;
use weir_ring::memory::FrameMemory;
use weir_simd::prefetch::prefetch;

use super::ways::Ways;
use weir_path::traffic::sequence::Sequences;

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

impl Handler<PathPacket> for Hands {
    fn handle(&mut self, proto: ProtoId, packet: PathPacket, next: &mut Next<'_, PathPacket>) {
        let (bytes, len_bytes) = (packet.bytes(&self.memory), packet.len_bytes.into());
        match self.handlers.handle(proto, bytes) {
            HandlerVerdict::Dispatch(proto) => return next.dispatch(proto, packet),
            HandlerVerdict::Deliver => {
                self.sequences.note(bytes);
                self.delivered.add(len_bytes);
                next.delivered(len_bytes);
            }
            HandlerVerdict::Drop(reason) => next.dropped(reason, len_bytes),
        }
        self.frames.pool.give(packet.frame);
    }

    fn mark(&mut self, packet: &mut PathPacket) -> bool {
        ecn::mark_ce(packet.bytes_mut(&self.memory))
    }

    fn hand_off(&mut self, worker: usize, proto: ProtoId, packet: PathPacket) {
        self.ways.hand(worker, proto, packet);
    }

    fn dropped(&mut self, packet: PathPacket, _: DropReason) {
        self.sequences.note_dropped(packet.bytes(&self.memory));
        self.frames.pool.give(packet.frame);
    }

    fn soon(&mut self, packet: &PathPacket) {
        // Its line is then on its way from another core while packets before it are handled.
        prefetch(packet.bytes(&self.memory));
    }
}
