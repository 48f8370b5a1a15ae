//! The report of a worker on its part of a datapath: a copy of its counters. [`crate::sum`] adds the parts up.
//!
//! Rule: a copy changes nothing, so that those of several workers that stand still are of one moment. Frames of finished transmissions are
//! taken back before ([`weir_path::worker::Worker::complete`]).
//!
//! A direction is known by the port where it ends: there is one for each.
//!
//! Owner: the worker, until it is sent.

use weir_core::account::Account;
use weir_core::drops::Count;
use weir_path::egress::EgressQueue;
use weir_path::end::{End, Gone};
use weir_path::exit::Exit;
use weir_path::port::{ReceiveQueues, TransmitRing};
use weir_path::shaping::Holder;
use weir_port::port::Port;

use crate::dispatch_rows;
use crate::part::Part;
use crate::stats::{ClassStats, DirectionStats, PlaceStats, PortStats, StageStats, WorkerStats};
use crate::workstreams::{Tally, WorkstreamStats};

/// The report of a direction, from where its packets wait.
pub struct DirectionReport {
    /// The port where it ends.
    pub exit: usize,
    /// The direction, without its name and books.
    pub class: DirectionStats,
    /// The books of its classes.
    pub shaped: Account,
    /// The packets that its classes hold.
    pub held: Count,
    /// The counts of packets that entered and left its classes.
    pub tally: Tally,
    /// The holder of most of the packets that wait: in all classes, then in each.
    pub holders: Vec<Option<Holder>>,
}

/// The report of a port.
pub struct PortReport {
    /// Its place in the plan.
    pub index: usize,
    /// The books of the packets that leave by it.
    pub departed: Account,
    /// The packets of those that are with the device.
    pub departing: Count,
    /// The other counters of the port.
    pub port: PortStats,
}

/// The report of an egress queue.
pub fn of_egress(queue: &EgressQueue, now_ns: u64) -> DirectionReport {
    let shaping = &queue.shaping;
    let (limits, rows) = (shaping.limits(), shaping.rows(now_ns));
    let class = DirectionStats {
        place: PlaceStats { blocked_ns: Some(shaping.blocked_ns(now_ns)), ..PlaceStats::default() }
            .with_delay(&shaping.delay()),
        rate_bits_per_s: limits.map(|limits| limits.rate.bits_per_s()),
        burst_bytes: limits.map(|limits| limits.burst_bytes),
        limit_bytes: shaping.limit_bytes(),
        empty_polls: 0,
        empty_wakes: 0,
        transmit_busy: 0,
        classes: rows.iter().map(ClassStats::of).collect(),
    };
    let all = [shaping.holders(now_ns)];
    let holders =
        all.iter().chain(rows.iter().map(|row| &row.holders)).map(|holders| holders.most().cloned());
    DirectionReport {
        exit: queue.port,
        class,
        shaped: shaping.account(),
        held: shaping.held(),
        tally: Tally { intake: queue.counts(), released: shaping.released() },
        holders: holders.collect(),
    }
}

/// The report of a port as it is now; `before` are its last counters before it was gone for some time, if it was.
fn of_end(
    (index, port, exit): (usize, &mut Port, &Exit),
    before: Option<&PortStats>,
) -> weir_port::Result<PortReport> {
    let now = PortStats { transmit: exit.counts().into(), ..port_stats(port)? };
    Ok(PortReport {
        index,
        departed: exit.account().clone(),
        departing: port.in_flight(),
        port: before.map_or_else(|| now.clone(), |before| now.clone().after(before)),
    })
}

/// The report of a port that is gone; `last` are its last counters.
fn of_gone(gone: &Gone, last: &PortStats) -> PortReport {
    let Gone { index, exit, .. } = gone;
    PortReport {
        index: *index,
        departed: exit.account().clone(),
        departing: Count::default(),
        port: PortStats {
            queues: 0,
            forwarded_bytes: 0,
            is_closed: true,
            transmit: exit.counts().into(),
            ..last.clone()
        },
    }
}

/// One worker's counters.
pub struct PartReport {
    /// The directions that end with it.
    pub directions: Vec<DirectionReport>,
    /// The ports it owns.
    pub ports: Vec<PortReport>,
    /// The stages between them.
    pub stages: Vec<StageStats>,
    /// The protocols by which packets are dispatched here, and the packets that wait in the queue of each.
    pub dispatched: Vec<(Count, WorkstreamStats)>,
    /// Polls and wakes in vain at its ports, also those that are gone, whose packets all leave by one port, with that.
    pub in_vain: Vec<(usize, [u64; 2])>,
    /// The packets that it handed over links to each worker, if links lead to others.
    pub passed: Vec<Count>,
    /// The packets that it took from links.
    pub landed: Count,
    /// Packets that stand in its rings.
    pub waiting: u64,
    /// Packets that stood in the senders' pairs when the time to deliver them was over.
    pub left_behind: Count,
    /// Free frames, of all workers.
    pub frames_free: u64,
    /// Its frames with the kernel.
    pub frames_lent: u64,
    /// The counters of the worker.
    pub worker: WorkerStats,
}

impl PartReport {
    /// The report of a part as it is now.
    pub fn new(part: &mut Part, worker: WorkerStats, now_ns: u64) -> weir_port::Result<PartReport> {
        let indexes: Vec<_> = part.path.ends().iter().map(|end| end.index).collect();
        let there = indexes.into_iter().filter_map(|index| {
            let End { port, exit, .. } = part.path.end_mut(index).0;
            Some(of_end((index, port.kernel_mut()?, exit), part.left.get(&index)))
        });
        let mut ports = there.collect::<Result<Vec<_>, _>>()?;
        let last = |gone: &Gone| part.left.get(&gone.index).cloned().unwrap_or_default();
        ports.extend(part.path.gone().iter().map(|gone| of_gone(gone, &last(gone))));
        let is_loop = |port: usize| part.stages.loops.iter().any(|(number, ..)| *number == port);
        let queues = part.path.between().egress.queues().iter();
        let queues = queues.filter(|queue| !is_loop(queue.port));
        let directions = queues.map(|queue| of_egress(queue, now_ns)).collect();
        let dispatched = dispatch_rows::of(part, now_ns);
        let stages = part.stages.names.iter().zip(part.path.between().stages());
        let stages = stages.map(|(name, stage)| StageStats::of(name, stage, now_ns)).collect();
        // Those of a port that is gone go on when it is back.
        let gone = part.path.gone().iter().map(|Gone { intake, .. }| intake);
        let intakes = part.path.ends().iter().map(|End { intake, .. }| intake).chain(gone);
        let in_vain = intakes.filter_map(|intake| {
            let mut exits = intake.exits(&part.path.between().egress);
            let exit = exits.next().filter(|_| exits.next().is_none())?;
            Some((exit, [intake.empty_polls(), intake.empty_wakes()]))
        });
        let in_vain = in_vain.collect();
        let (passed, landed) = (part.path.handed().to_vec(), part.path.landed());
        let waiting = part.path.waiting_to_land().packets;
        let frames = part.path.frames();
        let census = frames.pool.census();
        Ok(PartReport {
            directions,
            ports,
            stages,
            dispatched,
            in_vain,
            passed,
            landed,
            waiting,
            left_behind: part.path.left_behind(),
            frames_free: census.shared + census.cached,
            frames_lent: u64::from(frames.loans.count()),
            worker: WorkerStats { now_ns, ..worker },
        })
    }
}

/// The counters of a port, and those of the kernel at it.
///
/// # Errors
/// If the kernel does not say.
pub fn port_stats(port: &mut Port) -> weir_port::Result<PortStats> {
    let lost = port.lost()?;
    Ok(PortStats {
        name: port.link().name.clone(),
        sender: port.sender().name.clone(),
        queues: port.queues(),
        poller: port.poller_name().into(),
        forwarded_bytes: port.announcements().forwarded_waiting_bytes(),
        forwarded_dropped: lost.forwarded,
        kernel_dropped: lost.owned,
        lost_while_down: lost.while_down,
        ..PortStats::default()
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use weir_path::assembly::Shares;
    use weir_path::either_port::EitherPort;
    use weir_path::frames::Frames;
    use weir_path::owners::{Owners, Portion};
    use weir_path::plan::Plan;
    use weir_path::port::POLL_PACKETS_MAX;
    use weir_path::worker::Worker;
    use weir_port::xsk::umem::Umem;
    use weir_ring::memory::FrameMemory;
    use weir_ring::pool::Pool;
    use weir_sim::plans::port_plan;

    use super::*;
    use crate::part::PartStages;

    #[test]
    fn polls_in_vain_at_a_port_are_told_while_it_is_away() {
        let plan = Plan::wire([0, 1].map(|port| port_plan(port, None)));
        let portion = Portion { plan: &plan, owners: &Owners::alone(&plan), worker: 0 };
        let pool = Pool::new(FrameMemory::new(1024, 2048).unwrap());
        let umem = Umem::new(Arc::clone(pool.memory()));
        let shares =
            Shares { held_packets_max: 256, poll_budget_max: POLL_PACKETS_MAX, queues_gone: 1, seed: 7 };
        let ports = [0, 1].map(|port| (port, EitherPort::Memory(Box::default()))).into();
        let path = Worker::new(portion, ports, Frames::new(pool), None, shares, 0).unwrap();
        let mut part = Part::new(path, PartStages::default(), Arc::new(umem), 0);
        let told = |part: &mut Part| {
            let mut in_vain = PartReport::new(part, WorkerStats::default(), 0).unwrap().in_vain;
            in_vain.sort_unstable();
            in_vain
        };
        // The first look at each queue finds nothing.
        part.path.pass(0).unwrap();
        let polled = [(0, [1, 0]), (1, [1, 0])];
        assert_eq!(told(&mut part), polled);
        let port = part.path.take_port(0, 1).expect("it is here");
        assert_eq!(told(&mut part), polled);
        assert!(part.path.give_port(0, port, 2).is_ok());
        assert_eq!(told(&mut part), polled);
    }
}
