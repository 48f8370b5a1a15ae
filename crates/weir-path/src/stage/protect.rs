//! Packets moved as an ESP stage decides ([`crate::esp`]).
//!
//! Conservation: a packet that is sealed grows, and one that is opened shrinks. The bytes that packets grow by count as made by the stage,
//! and those that they shrink by as consumed, in bytes without a packet. A packet that goes to a queue first is in the books of the queue,
//! and comes here when it is back; so does a packet that goes to a sealer.

use weir_core::dispatch::protocol::Mode;
use weir_core::drops::{Count, DropReason};
use weir_core::net::BURST_MAX;
use weir_core::net::fragment::Fragments;
use weir_core::packet::count_of;
use weir_ipsec::reassembly::Gathered;
use weir_ring::memory::FrameMemory;
use weir_ring::spsc::{Consumer, Producer};

use super::{Around, Decision, Stage, own_meta, take_frames};
use crate::egress::is_sealed;
use crate::esp::plan::EspChange;
use crate::esp::sealer::SealerRun;
use crate::esp::{Decided, Esp, EspVerdict, INSIDE, OUTSIDE};
use crate::packet::PathPacket;

/// The pause before the next look for a reserved number, or for a frame for a keepalive, in nanoseconds.
const LOOK_NS: u64 = 200_000;

impl Stage {
    /// The ESP, if the stage is one.
    pub fn esp(&self) -> Option<&Esp> {
        match &self.decision {
            Decision::Esp(esp) => Some(esp),
            _ => None,
        }
    }

    /// Carries out a change of an ESP stage; packets that wait are looked at by the new policies.
    pub(crate) fn change_esp(&mut self, change: EspChange, now_ns: u64) {
        if let Decision::Esp(esp) = &mut self.decision {
            esp.change(change, now_ns);
        }
    }

    /// Notes in an ESP stage that the machine slept for so long while the clock stood still.
    pub(crate) fn note_asleep(&mut self, slept_ns: u64) {
        if let Decision::Esp(esp) = &mut self.decision {
            esp.note_asleep(slept_ns);
        }
    }

    /// Returns whether packets wait here, so that no more may come. Where there are queues more may come: none is taken from the queues
    /// then.
    pub(crate) fn is_waiting(&self) -> bool {
        self.esp().is_some_and(|esp| esp.is_waiting() && esp.dispatch().mode == Mode::Direct)
    }

    /// The number of packets that have waited for numbers in a stage with queues, and of those that wait no more.
    pub(crate) fn waited_behind_queues(&self) -> [u64; 2] {
        self.esp().filter(|esp| esp.dispatch().mode != Mode::Direct).map_or([0; 2], Esp::waited_packets)
    }

    /// Says for the two sides of an ESP stage whether the stage or port that is joined there is with the same worker.
    pub(crate) fn set_beside(&mut self, is_beside: [bool; 2]) {
        if let Decision::Esp(esp) = &mut self.decision {
            esp.set_beside(is_beside);
        }
    }

    /// Notes that the egress queue behind a port has refused so many packets.
    #[cold]
    pub(crate) fn note_refused(&mut self, port: u16, packets: u64) {
        if let Decision::Esp(esp) = &mut self.decision {
            esp.note_refused(port, packets);
        }
    }

    /// Sends packets that came in by a port of an ESP stage to the queue in which they wait first; returns whether they do.
    pub(super) fn defer(&mut self, port: u16, packets: &mut Vec<PathPacket>, around: &mut Around) -> bool {
        let Decision::Esp(esp) = &mut self.decision else { return false };
        let Some((queue, count)) = esp.defer(port, packets.len()) else { return false };
        let run = count_of(&packets[..count]);
        around.sent.take_run(queue, packets, run);
        for packet in packets.drain(..) {
            self.account.accept(packet.len_bytes.into());
            self.drop(packet, DropReason::WorkstreamFull, around);
        }
        true
    }

    /// Decides on packets that came in by a port of an ESP stage, the first of a burst, as many as can be decided on at once; carries that
    /// out.
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

    /// Decides on the packets that are back from sealers and whose turn it is; carries that out.
    fn merge(&mut self, around: &mut Around) {
        let mut merged = std::mem::take(&mut self.merged);
        let mut verdicts = [EspVerdict::Wait; BURST_MAX];
        while let Decision::Esp(esp) = &mut self.decision
            && let Some(decided) =
                esp.merge(&mut merged, around.frames.memory(), around.now_ns, &mut verdicts)
        {
            self.carry_out_all(&mut merged, decided, &verdicts, around);
        }
        // The memory of the list is used again.
        self.merged = merged;
    }

    /// Carries out the verdicts on the first packets.
    fn carry_out_all(
        &mut self,
        packets: &mut Vec<PathPacket>,
        decided: Decided,
        verdicts: &[EspVerdict],
        around: &mut Around,
    ) {
        self.note_lengths(decided);
        if let Some(out) = decided.only() {
            let passed = Count { packets: decided.packets as u64, bytes: decided.after_bytes };
            return self.pass_run(out, packets, passed, around);
        }
        for run in verdicts[..decided.packets].chunk_by(|one, next| one == next) {
            let count = run.len();
            match run[0] {
                EspVerdict::Pass(out) => {
                    let passed = count_of(&packets[..count]);
                    self.pass_run(out, packets, passed, around);
                }
                verdict => {
                    packets.drain(..count).for_each(|packet| self.carry_out(packet, verdict, around));
                }
            }
        }
    }

    /// Lets the first packets, which have this count, through.
    fn pass_run(&mut self, out: u16, packets: &mut Vec<PathPacket>, passed: Count, around: &mut Around) {
        around.sent.take_run(out, packets, passed);
        match Esp::sealer_at(out) {
            None => self.account.deliver_all(passed),
            Some(_) => self.account.move_out_all(passed),
        }
    }

    /// Gives an ESP stage the ring by which it tells a sealer its runs.
    pub(crate) fn join_sealer(&mut self, sealer: usize, runs: Producer<SealerRun>) {
        if let Decision::Esp(esp) = &mut self.decision {
            esp.join(sealer, runs);
        }
    }

    /// Gives a sealer the ring by which it is told its runs.
    pub(crate) fn join_home(&mut self, runs: Consumer<SealerRun>) {
        if let Decision::Sealer(sealer) = &mut self.decision {
            sealer.join(runs);
        }
    }

    /// Lets packets go that have waited; returns the time at which to look again.
    pub(super) fn release_sealed(&mut self, around: &mut Around) -> Option<u64> {
        let mut has_released = false;
        while let Decision::Esp(esp) = &mut self.decision
            && let Some(mut packet) = esp.take_waiting()
        {
            let delivered = self.account.delivered.packets;
            has_released = true;
            let is_refused = match esp.process_again(&mut packet, around.frames.memory(), around.now_ns) {
                (EspVerdict::Wait, _) => {
                    esp.put_back(packet);
                    return Some(around.now_ns + LOOK_NS);
                }
                (EspVerdict::Pass(out), decided) if Esp::sealer_at(out).is_some() => {
                    // The packet begins anew when it is back from the sealer.
                    self.keeping.entered -= 1;
                    self.note_lengths(decided);
                    self.account.move_out(packet.len_bytes.into());
                    around.sent.push(out, packet);
                    continue;
                }
                (EspVerdict::Gather(side), _) => {
                    self.keeping.entered -= 1;
                    self.gather(side, packet, around);
                    continue;
                }
                (verdict, decided) => {
                    self.note_lengths(decided);
                    self.carry_out(packet, verdict, around);
                    matches!(verdict, EspVerdict::Drop(_) | EspVerdict::TooLong(_))
                }
            };
            // A message about a packet that is too long is delivered, and the packet is not. A packet that is to be cut is dropped where there
            // are no frames for that.
            match is_refused || self.account.delivered.packets == delivered {
                true => self.keeping.dropped += 1,
                false => self.keeping.delayed += 1,
            }
        }
        // The packets that were not taken from the queue meanwhile are taken in the next pass.
        has_released.then_some(around.now_ns)
    }

    /// Sends the keepalives that are due; returns the time at which to look again.
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
                let held = esp.held().packets;
                self.note_kept(held);
            }
            EspVerdict::Gather(side) => self.gather(side, packet, around),
            EspVerdict::Consume => self.consume(packet, around),
            EspVerdict::Drop(reason) => self.drop(packet, reason, around),
            EspVerdict::Cut(mtu_bytes) => self.cut_inside(packet, mtu_bytes, around),
            EspVerdict::PassCut(out, mtu_bytes) => self.pass_cut(out, packet, mtu_bytes, around),
            EspVerdict::TooLong(mtu_bytes) => self.refuse_long(packet, mtu_bytes, around),
        }
    }

    /// Takes a fragment that came in on a side, and lets a packet through that is whole with it.
    fn gather(&mut self, side: u16, packet: PathPacket, around: &mut Around) {
        let Decision::Esp(esp) = &mut self.decision else { return };
        let memory = std::sync::Arc::clone(around.frames.memory());
        let (meta, mut out) = (packet.meta, Vec::new());
        let gathered = esp.gather(side, packet, &memory, around.now_ns, &mut out);
        let held = esp.held().packets;
        self.note_kept(held);
        match gathered {
            Ok(Gathered::Taken) => {}
            Ok(Gathered::Whole) => {
                let mut first = out.remove(0);
                let before = first.len_bytes;
                match Esp::join_fragments(&mut first, &out, &memory) {
                    Ok(()) => {
                        self.keeping.entered -= 1;
                        self.keeping.delayed += out.len() as u64;
                        out.drain(..).for_each(|other| self.consume(other, around));
                        self.note_lengths(Decided::of(before, first.len_bytes));
                        first.meta = meta;
                        first.is_gathered = side == INSIDE;
                        out.push(first);
                        self.protect_made(side, out, around);
                    }
                    Err(reason) => {
                        out.push(first);
                        self.keeping.dropped += out.len() as u64;
                        out.drain(..).for_each(|fragment| self.drop(fragment, reason, around));
                    }
                }
            }
            // Its sender cut it, and it waits no more.
            Ok(Gathered::Passes) if side == INSIDE => {
                self.keeping.entered -= out.len() as u64;
                out.iter_mut().for_each(|fragment| fragment.is_gathered = true);
                self.protect_made(side, out, around);
            }
            passes => {
                self.keeping.entered -= out.len() as u64;
                for fragment in out {
                    let Decision::Esp(esp) = &self.decision else { return };
                    let verdict = match passes {
                        Ok(Gathered::PassesAsIke) => {
                            EspVerdict::Pass(if side == INSIDE { OUTSIDE } else { INSIDE })
                        }
                        Ok(_) => esp.pass_fragment(&fragment, &memory),
                        Err(reason) => EspVerdict::Drop(reason),
                    };
                    self.carry_out(fragment, verdict, around);
                }
            }
        }
        self.drop_refused(around);
    }

    /// Gives up the fragments that have waited too long; returns the time at which to look again.
    pub(super) fn expire_fragments(&mut self, around: &mut Around) -> Option<u64> {
        let Decision::Esp(esp) = &mut self.decision else { return None };
        let due_ns = esp.expire_fragments(around.now_ns);
        self.drop_refused(around);
        due_ns
    }

    /// Drops the fragments that are refused.
    fn drop_refused(&mut self, around: &mut Around) {
        while let Decision::Esp(esp) = &mut self.decision
            && let Some((fragment, reason)) = esp.take_refused()
        {
            self.keeping.dropped += 1;
            self.drop(fragment, reason, around);
        }
    }

    /// Notes that the stage keeps one more packet, so many with it.
    fn note_kept(&mut self, held: u64) {
        self.keeping.entered += 1;
        self.keeping.held_max = self.keeping.held_max.max(held);
    }

    fn note_lengths(&mut self, decided: Decided) {
        let [grown, shrunk] = decided.change();
        let grown = Count { packets: 0, bytes: grown };
        let shrunk = Count { packets: 0, bytes: shrunk };
        self.account.accept_all(grown);
        self.made.merge(grown);
        self.account.deliver_all(shrunk);
        self.consumed.merge(shrunk);
    }

    /// Cuts a packet, and lets the fragments through in its place. Without frames for all fragments there are none, and the packet is
    /// dropped.
    fn cut_inside(&mut self, packet: PathPacket, mtu_bytes: u16, around: &mut Around) {
        let memory = std::sync::Arc::clone(around.frames.memory());
        let fragments = Fragments::new(packet.bytes(&memory), mtu_bytes);
        let mut cut = match self.make_fragments(&packet, fragments, around) {
            Ok(cut) => cut,
            Err(reason) => return self.drop(packet, reason, around),
        };
        // Those of a fragment that waits for no others wait for none.
        cut.iter_mut().for_each(|fragment| fragment.is_gathered = packet.is_gathered);
        self.protect_made(INSIDE, cut, around);
        self.consume(packet, around);
    }

    /// Decides on packets that were made of one that came in on a side: before packets that wait, if it waited with them.
    fn protect_made(&mut self, side: u16, mut made: Vec<PathPacket>, around: &mut Around) {
        if side == INSIDE
            && let Decision::Esp(esp) = &mut self.decision
            && esp.is_waiting()
        {
            self.keeping.entered += made.len() as u64;
            esp.put_before(std::mem::take(&mut made));
        }
        while !made.is_empty() {
            let burst = made.len().min(BURST_MAX);
            self.protect(side, &mut made, burst, around);
        }
    }

    /// Cuts a packet that leaves by a port, and sends the fragments in its place, or drops it, as [`Stage::cut_inside`] does. What was opened and
    /// cannot be cut is left to the port.
    fn pass_cut(&mut self, out: u16, mut packet: PathPacket, mtu_bytes: u16, around: &mut Around) {
        let Decision::Esp(esp) = &mut self.decision else { return };
        let memory = std::sync::Arc::clone(around.frames.memory());
        let is_sealed = is_sealed(&packet.meta);
        let identification = esp.allow_fragments(packet.bytes_mut(&memory), is_sealed);
        let fragments = match identification {
            None => Fragments::new(packet.bytes(&memory), mtu_bytes),
            Some(number) => Fragments::of_own_v6(packet.bytes(&memory), mtu_bytes, number),
        };
        match self.make_fragments(&packet, fragments, around) {
            Ok(cut) => {
                cut.into_iter().for_each(|fragment| self.send(out, fragment, around));
                self.consume(packet, around);
            }
            Err(_) if out == INSIDE => self.send(out, packet, around),
            Err(reason) => self.drop(packet, reason, around),
        }
    }

    /// Makes the fragments of a packet, all or none.
    fn make_fragments(
        &mut self,
        packet: &PathPacket,
        fragments: Result<Fragments, DropReason>,
        around: &mut Around,
    ) -> Result<Vec<PathPacket>, DropReason> {
        let mut fragments = fragments?;
        if !take_frames(&mut self.cutting, fragments.count(), around.frames) {
            return Err(DropReason::NoFrame);
        }
        let memory: &FrameMemory = around.frames.memory();
        let mut cut = Vec::with_capacity(self.cutting.len());
        for mut frame in std::mem::take(&mut self.cutting) {
            let len_bytes = fragments.write_next(memory.bytes_mut(&mut frame)).expect("it was counted");
            self.accept_made(len_bytes.into());
            cut.push(packet.in_frame(frame, len_bytes));
        }
        Ok(cut)
    }

    /// Drops a packet that is too long, and tells its sender.
    fn refuse_long(&mut self, packet: PathPacket, mtu_bytes: u16, around: &mut Around) {
        if let (Some(mut frame), Decision::Esp(esp)) = (around.frames.pool.take(), &mut self.decision) {
            let memory: &FrameMemory = around.frames.memory();
            let (bytes, room) = (packet.bytes(memory), memory.bytes_mut(&mut frame));
            match esp.tell_too_long(packet.meta.port, bytes, mtu_bytes, room, around.now_ns) {
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
