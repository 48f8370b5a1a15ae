//! The machine's checks after each step, and its report at the end.

use weir_core::drops::Count;

use crate::{
    checks::Violation,
    packet::SimPacket,
    report::{Report, delays_ms, jain_of, lost_pct},
    sender::Program,
    weir::WeirCounts,
};

use super::{Egress, Machine};

impl Machine<'_> {
    /// The packets inside, by the queues' own counters.
    pub(super) fn held(&self) -> Count {
        let mut held = match &self.egress {
            Egress::Kernel(qdisc) => qdisc.held(),
            Egress::Weir(wire) => wire.held(),
        };
        held.merge(self.on_link);
        held
    }

    /// Makes the checks after each step.
    pub(super) fn check(&mut self) -> Result<(), Violation> {
        let now_ns = self.events.now_ns();
        let standing_bytes = match &self.egress {
            Egress::Kernel(qdisc) => qdisc.held().bytes,
            Egress::Weir(wire) => {
                let held_bytes = wire.held_in_classes().bytes;
                if held_bytes > wire.class_bytes_max() {
                    self.checks.fail(now_ns, format!("credit: the class holds {held_bytes} bytes"));
                }
                held_bytes
            }
        };
        self.standing_bytes_max = self.standing_bytes_max.max(standing_bytes);
        let held = self.held();
        if self.steps_to_recount == 0 {
            self.recount();
            // Counting costs a look at each packet; this rarely, it costs each step one such look.
            self.steps_to_recount = 4096 + held.packets + self.senders.len() as u64;
        }
        self.steps_to_recount -= 1;
        self.checks.step(held, now_ns)
    }

    /// Counts the queues packet by packet: every send buffer is charged exactly for the packets of its socket that wait, and no more than
    /// its bound and one packet.
    pub(super) fn recount(&mut self) {
        let mut charged_bytes = vec![0; self.sockets.len()];
        let mut add = |packet: &SimPacket| charged_bytes[packet.sender as usize] += packet.truesize_bytes;
        match &self.egress {
            Egress::Kernel(qdisc) => qdisc.queued().for_each(&mut add),
            Egress::Weir(wire) => wire.queued().for_each(&mut add),
        }
        for (index, (socket, charged_bytes)) in self.sockets.iter().zip(charged_bytes).enumerate() {
            let wmem_alloc_bytes = socket.wmem_alloc_bytes();
            if wmem_alloc_bytes != charged_bytes || wmem_alloc_bytes >= socket.sndbuf_bytes() + 2304 {
                let what = format!(
                    "credit: socket {index} is charged {wmem_alloc_bytes} for {charged_bytes} queued"
                );
                self.checks.fail(self.events.now_ns(), what);
            }
        }
    }

    pub(super) fn report(&self) -> Report {
        let of_kind = |quiet: bool| {
            self.tallies.iter().zip(&self.senders).filter_map(move |(tally, sender)| {
                (matches!(sender.program, Program::Quiet { .. }) == quiet).then_some(tally)
            })
        };
        let mut first = 0;
        let mut lowest_jain = 1.0f64;
        for group in &self.scenario.groups {
            let tallies = &self.tallies[first..first + group.count];
            first += group.count;
            if !matches!(group.program, Program::Quiet { .. }) {
                lowest_jain = lowest_jain.min(jain_of(tallies));
            }
        }
        let seconds = self.scenario.time_ns as f64 / 1e9;
        let floods = of_kind(false).count().max(1) as f64;
        let offered_bytes: u64 = of_kind(false).map(|tally| tally.sent_payload_bytes).sum();
        let [p50_ms, p99_ms, max_ms] = delays_ms(of_kind(true));
        let WeirCounts { parks, kicks, .. } = match &self.egress {
            Egress::Weir(wire) => wire.counts(),
            Egress::Kernel(_) => WeirCounts::default(),
        };
        Report {
            lost_pct: lost_pct(of_kind(false)),
            quiet_lost_pct: lost_pct(of_kind(true)),
            offered_mbit: offered_bytes as f64 * 8.0 / seconds / floods / 1e6,
            rate_share: self.left_bytes as f64 * 8.0 / seconds / self.scenario.rate.bits_per_s() as f64,
            jain: lowest_jain,
            jain_all: jain_of(of_kind(false)),
            reordered: self.checks.reordered,
            p50_ms,
            p99_ms,
            max_ms,
            wakes: self.checks.wakes.wakes,
            empty_wakes: self.checks.wakes.empty,
            repeated_wakes: self.checks.wakes.repeated,
            kicks,
            parks,
            standing_bytes_max: self.standing_bytes_max,
            delivered: self.checks.account().delivered.packets,
        }
    }
}
