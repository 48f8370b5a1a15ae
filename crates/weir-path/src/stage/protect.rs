//! Packets moved as an ESP stage decides ([`crate::esp`]).
//!
//! Conservation: a packet that is sealed grows, and one that is opened shrinks. What it grows by the stage has made, and what it shrinks by
//! it has consumed, in bytes without a packet. What goes to a queue first is in the books of that, and comes here when it is back; so does what
//! goes to a sealer.

use weir_core::dispatch::protocol::Mode;
use weir_core::drops::{Count, DropReason};
use weir_core::net::BURST_MAX;
use weir_core::net::fragment::Fragments;
use weir_ring::memory::FrameMemory;
use weir_ring::spsc::{Consumer, Producer};

use super::{Around, Decision, Stage, own_meta, take_frames};
use crate::esp::plan::EspChange;
use crate::esp::sealer::SealerRun;
use crate::esp::{Decided, Esp, EspVerdict, INSIDE, OUTSIDE};
use crate::packet::PathPacket;

/// How soon to look again whether a number is reserved.
const LOOK_NS: u64 = 200_000;

impl Stage {
    /// The ESP, if it is one.
    pub fn esp(&self) -> Option<&Esp> {
        match &self.decision {
            Decision::Esp(esp) => Some(esp),
            _ => None,
        }
    }

    /// Makes an ESP stage what a change says; what waits is looked at by the new policies.
    pub(crate) fn change_esp(&mut self, change: EspChange, now_ns: u64) {
        if let Decision::Esp(esp) = &mut self.decision {
            esp.change(change, now_ns);
        }
    }

    /// Whether packets wait here, so that nothing more may come. Where there are queues it may: nothing is taken from these then.
    pub(crate) fn is_waiting(&self) -> bool {
        self.esp().is_some_and(|esp| esp.is_waiting() && esp.dispatch().mode == Mode::Direct)
    }

    /// Whether nothing may be taken from the queue that leads back to a port.
    pub(crate) fn holds(&self, port: u16) -> bool {
        self.esp().is_some_and(|esp| esp.holds(port))
    }

    /// Says for each port of an ESP stage whether what leads there is with the same worker.
    pub(crate) fn set_beside(&mut self, is_beside: [bool; 2]) {
        if let Decision::Esp(esp) = &mut self.decision {
            esp.set_beside(is_beside);
        }
    }

    /// Sends packets that came in by a port of an ESP stage to the queue in which they wait first, if they do.
    pub(super) fn defer(&mut self, port: u16, packets: &mut Vec<PathPacket>, around: &mut Around) {
        let Decision::Esp(esp) = &mut self.decision else { return };
        let Some((queue, count)) = esp.defer(port, packets.len()) else { return };
        around.sent.take_run(queue, packets, count);
        for packet in packets.drain(..) {
            self.account.accept(packet.len_bytes.into());
            self.drop(packet, DropReason::WorkstreamFull, around);
        }
    }

    /// Lets the first packets of a burst through, or not, that came in by a port of an ESP stage: as many as can be decided on at once.
    pub(super) fn protect(
        &mut self,
        port: u16,
        packets: &mut Vec<PathPacket>,
        burst: usize,
        around: &mut Around,
    ) {
        let Decision::Esp(esp) = &mut self.decision else { return };
        let mut verdicts = [EspVerdict::Wait; BURST_MAX];
        let memory = around.frames.memory();
        if let Some(sealer) = Esp::sealer_at(port) {
            esp.take_back(sealer, packets);
            return self.merge(around);
        }
        let decided = esp.process(port, &mut packets[..burst], memory, around.now_ns, &mut verdicts);
        self.carry_out_all(packets, decided, &verdicts, around);
    }

    /// Lets through, or not, what is back from sealers and whose turn it is.
    fn merge(&mut self, around: &mut Around) {
        let mut merged = std::mem::take(&mut self.merged);
        let mut verdicts = [EspVerdict::Wait; BURST_MAX];
        while let Decision::Esp(esp) = &mut self.decision
            && let Some(decided) =
                esp.merge(&mut merged, around.frames.memory(), around.now_ns, &mut verdicts)
        {
            self.carry_out_all(&mut merged, decided, &verdicts, around);
        }
        // Its memory is used again.
        self.merged = merged;
    }

    /// Carries out what was decided of the first packets.
    fn carry_out_all(
        &mut self,
        packets: &mut Vec<PathPacket>,
        decided: Decided,
        verdicts: &[EspVerdict],
        around: &mut Around,
    ) {
        self.note_lengths(decided);
        for run in verdicts[..decided.packets].chunk_by(|one, next| one == next) {
            let count = run.len();
            match run[0] {
                EspVerdict::Pass(out) => {
                    let passed = around.sent.take_run(out, packets, count);
                    match Esp::sealer_at(out) {
                        None => self.account.deliver_all(passed),
                        Some(_) => self.account.move_out_all(passed),
                    }
                }
                verdict => {
                    packets.drain(..count).for_each(|packet| self.carry_out(packet, verdict, around));
                }
            }
        }
    }

    /// An ESP stage learns where it tells a sealer what is to be done.
    pub(crate) fn join_sealer(&mut self, sealer: usize, runs: Producer<SealerRun>) {
        if let Decision::Esp(esp) = &mut self.decision {
            esp.join(sealer, runs);
        }
    }

    /// A sealer learns where it is told.
    pub(crate) fn join_home(&mut self, runs: Consumer<SealerRun>) {
        if let Decision::Sealer(sealer) = &mut self.decision {
            sealer.join(runs);
        }
    }

    /// Lets packets go that have waited; when to look again.
    pub(super) fn release_sealed(&mut self, around: &mut Around) -> Option<u64> {
        let mut has_released = false;
        while let Decision::Esp(esp) = &mut self.decision
            && let Some(mut packet) = esp.take_waiting()
        {
            let delivered = self.account.delivered.packets;
            has_released = true;
            match esp.process_again(&mut packet, around.frames.memory(), around.now_ns) {
                (EspVerdict::Wait, _) => {
                    esp.put_back(packet);
                    return Some(around.now_ns + LOOK_NS);
                }
                (EspVerdict::Pass(out), decided) if Esp::sealer_at(out).is_some() => {
                    // It begins anew when it is back.
                    self.keeping.entered -= 1;
                    self.note_lengths(decided);
                    self.account.move_out(packet.len_bytes.into());
                    around.sent.push(out, packet);
                    continue;
                }
                (verdict, decided) => {
                    self.note_lengths(decided);
                    self.carry_out(packet, verdict, around);
                }
            }
            match self.account.delivered.packets > delivered {
                true => self.keeping.delayed += 1,
                false => self.keeping.dropped += 1,
            }
        }
        // What was not taken from the queue meanwhile is, in the next pass.
        has_released.then_some(around.now_ns)
    }

    /// Sends the keepalives that are due; when to look again.
    pub(super) fn keep_alive(&mut self, around: &mut Around) -> Option<u64> {
        while let Decision::Esp(esp) = &mut self.decision {
            let next_ns = esp.next_keepalive_ns()?;
            if next_ns > around.now_ns {
                return Some(next_ns);
            }
            let Some(mut frame) = around.frames.pool.take() else { return Some(around.now_ns + LOOK_NS) };
            match esp.write_keepalive(around.frames.memory().bytes_mut(&mut frame), around.now_ns) {
                Some(len_bytes) => {
                    let mut packet = PathPacket::new(frame, 0, len_bytes);
                    packet.meta = own_meta(around.now_ns);
                    self.accept_made(len_bytes.into());
                    self.send(OUTSIDE, packet, around);
                }
                None => around.frames.pool.give(frame),
            }
        }
        None
    }

    fn carry_out(&mut self, packet: PathPacket, verdict: EspVerdict, around: &mut Around) {
        let Decision::Esp(esp) = &mut self.decision else { return };
        match verdict {
            EspVerdict::Pass(out) => self.send(out, packet, around),
            EspVerdict::Wait => {
                esp.keep(packet);
                self.keeping.entered += 1;
                self.keeping.held_max = self.keeping.held_max.max(esp.held().packets);
            }
            EspVerdict::Consume => self.consume(packet, around),
            EspVerdict::Drop(reason) => self.drop(packet, reason, around),
            EspVerdict::Cut(mtu_bytes) => self.cut_inside(packet, mtu_bytes, around),
            EspVerdict::TooLong(mtu_bytes) => self.refuse_long(packet, mtu_bytes, around),
        }
    }

    fn note_lengths(&mut self, Decided { grown, shrunk, .. }: Decided) {
        let grown = Count { packets: 0, bytes: grown };
        let shrunk = Count { packets: 0, bytes: shrunk };
        self.account.accept_all(grown);
        self.made.merge(grown);
        self.account.deliver_all(shrunk);
        self.consumed.merge(shrunk);
    }

    /// Cuts a packet, and lets the fragments through in its place. Without frames for all of them there is none, and it is dropped.
    fn cut_inside(&mut self, packet: PathPacket, mtu_bytes: u16, around: &mut Around) {
        let memory = std::sync::Arc::clone(around.frames.memory());
        let cut = Fragments::new(packet.bytes(&memory), mtu_bytes);
        let cut = cut.and_then(|fragments| {
            match take_frames(&mut self.cutting, fragments.count(), around.frames) {
                true => Ok(fragments),
                false => Err(DropReason::NoFrame),
            }
        });
        let mut fragments = match cut {
            Ok(fragments) => fragments,
            Err(reason) => return self.drop(packet, reason, around),
        };
        let mut cut = Vec::with_capacity(self.cutting.len());
        for mut frame in std::mem::take(&mut self.cutting) {
            let len_bytes = fragments.write_next(memory.bytes_mut(&mut frame)).expect("it was counted");
            self.accept_made(len_bytes.into());
            cut.push(packet.in_frame(frame, len_bytes));
        }
        while !cut.is_empty() {
            let burst = cut.len().min(BURST_MAX);
            self.protect(INSIDE, &mut cut, burst, around);
        }
        self.consume(packet, around);
    }

    /// Drops a packet that is too long, and tells its sender.
    fn refuse_long(&mut self, packet: PathPacket, mtu_bytes: u16, around: &mut Around) {
        if let (Some(mut frame), Decision::Esp(esp)) = (around.frames.pool.take(), &mut self.decision) {
            let memory: &FrameMemory = around.frames.memory();
            let (bytes, room) = (packet.bytes(memory), memory.bytes_mut(&mut frame));
            match esp.tell_too_long(bytes, mtu_bytes, room, around.now_ns) {
                Some(len_bytes) => {
                    let mut told = PathPacket::new(frame, 0, len_bytes);
                    told.meta = own_meta(around.now_ns);
                    self.accept_made(len_bytes.into());
                    self.send(INSIDE, told, around);
                }
                None => around.frames.pool.give(frame),
            }
        }
        self.drop(packet, DropReason::TooLong, around);
    }
}
