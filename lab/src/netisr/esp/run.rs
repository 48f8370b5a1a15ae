//! One run of IPsec, and how deep it goes: the plan of a gateway as `weir up` runs it, with packets in memory.
//!
//! ```text
//! generators -> router -> ESP [-> queue -> ESP] -> ... -> sink: numbers looked at
//! ```
//!
//! The owners of stages and ports are dealt as for any plan ([`Owners::deal`]): a worker receives and routes, and where ESP waits in a
//! queue another has it. Several tunnels are a row of ESP stages, the outside of one joined to the inside of the next.
//!
//! - `stack_bytes`: the deepest pass of any worker, taken in turns on one painted stack ([`crate::painted_stack`]), by [`STACK_PACKETS`].

use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Result, anyhow, ensure};
use weir_core::dispatch::netstat::WorkstreamRow;
use weir_core::dispatch::protocol::Mode;
use weir_core::net::route::Interface;
use weir_path::esp::plan::EspDispatch;
use weir_path::esp::{INSIDE, OUTSIDE};
use weir_path::owners::Owners;
use weir_path::plan::{Attachment, Plan, StageKind, StagePlan};
use weir_path::traffic::flows::Traffic;
use weir_path::traffic::generator::{GenSpec, Until};
use weir_path::traffic::port::MemoryPort;
use weir_run::clock::now_ns;
use weir_run::memory::{MemoryEnd, MemoryPath, MemoryPathWorker, WorkerSeat};
use weir_run::testbed::{self, FLOWS, JAIL_0, jail, port};

use super::case::{EspCase, EspSystem, Seating};
use crate::epair::histogram::Histogram;
use crate::machine::line_rtt_ns;
use crate::netisr::dispatch::LONG;
use crate::netisr::drive::RING_PACKETS;
use crate::netisr::work::{Tally, Work, Worked};
use crate::painted_stack;
use crate::tunnel::gateway;

/// The stage that routes, and the first that seals.
const ROUTER: usize = 0;
const FIRST_ESP: usize = 1;
/// Frames beside those of twice the queues: those under way, and those in the pools' magazines.
const FRAMES_BESIDE: u32 = 4096;
/// Packets that wait for the sink.
const HELD_PACKETS_MAX: u64 = 256;
/// The number of packets that show how deep a pass goes: more than one poll brings.
const STACK_PACKETS: u64 = 2000;
/// The most passes in which these packets come through.
const STACK_PASSES: usize = 100_000;

/// The outcome of a run.
#[derive(Debug, Clone, Default)]
pub struct EspOutcome {
    /// Packets that were sent, or would have been if there had been room.
    pub offered: u64,
    /// Packets that were sealed and left.
    pub sealed: u64,
    /// Packets that a device's ring or a queue dropped.
    pub dropped: u64,
    /// Packets whose number was not due when they left.
    pub misnumbered: u64,
    /// Packets nobody can account for.
    pub lost: u64,
    /// The time from the start to the last packet that left.
    pub seconds: f64,
    /// The time from the poll that brought a packet until it left.
    pub latency: Histogram,
    /// CPU time of all workers.
    pub cpu_seconds: f64,
    /// The time for which the senders were held.
    pub held_seconds: f64,
    /// The counts of the first ESP stage.
    pub workstream: WorkstreamRow,
    /// The round trip of a cache line between the two cores, the longer of before and after the run, in nanoseconds.
    pub line_rtt_ns: f64,
}

/// The dispatch of ESP.
pub fn dispatch(system: EspSystem, case: &EspCase) -> EspDispatch {
    let times = if case.is_long { LONG as u32 } else { 1 };
    EspDispatch {
        mode: system.mode,
        queue_packets: EspDispatch::QUEUE_PACKETS_DEFAULT * times,
        drops_when_full: system.drops,
        ..EspDispatch::default()
    }
}

/// The path of a system in a case: `packets_per_s` of all generators together, or as many as are taken.
fn path(system: EspSystem, case: &EspCase, packets_per_s: Option<u64>, until: Until) -> MemoryPath {
    use Attachment::{Port, Stage};
    let generators = case.seating.generators();
    let mut router = jail();
    // The second interface leads on.
    router.interfaces.extend((1..generators).map(|number| Interface {
        mac: JAIL_0,
        mtu_bytes: 1500,
        addresses: vec![format!("192.168.{}.1/24", 1 + number).parse().expect("an address")],
    }));
    let dispatch = dispatch(system, case);
    let mut stages = vec![StagePlan { name: "router".into(), kind: StageKind::Router(Box::new(router)) }];
    stages.extend((0..case.tunnels).map(|tunnel| {
        let ends = [1, 2].map(|end| [198, 51, 100, (2 * tunnel) as u8 + end]);
        let esp = gateway(ends, 0, case.algorithm, dispatch);
        StagePlan { name: format!("esp-{tunnel}"), kind: StageKind::Esp(Box::new(esp)) }
    }));
    let interface = |number: usize| if number == 0 { 0 } else { 1 + number as u16 };
    let mut links: Vec<_> =
        (0..generators).map(|number| [Port(number), Stage(ROUTER, interface(number))]).collect();
    links.push([Stage(ROUTER, 1), Stage(FIRST_ESP, INSIDE)]);
    let last = FIRST_ESP + case.tunnels - 1;
    links.extend((FIRST_ESP..last).map(|esp| [Stage(esp, OUTSIDE), Stage(esp + 1, INSIDE)]));
    links.push([Stage(last, OUTSIDE), Port(generators)]);
    let mut ports: Vec<_> = (0..generators).map(|number| port(&format!("gen-{number}"))).collect();
    ports.push(port("sink"));
    let plan = Plan { ports, stages, links, dispatched: Vec::new() };
    let flows = FLOWS / generators as u32;
    let generator = |number: u32| {
        let traffic =
            Traffic { size_bytes: case.size_bytes, flows, first_flow: number * flows, ..testbed::traffic() };
        let packets_per_s = packets_per_s.map(|rate| rate.div_ceil(generators as u64));
        let spec = GenSpec { traffic, packets_per_s, until };
        if system.drops { MemoryEnd::Ring(spec, RING_PACKETS) } else { MemoryEnd::Generator(spec) }
    };
    let mut ends: Vec<_> = (0..generators as u32).map(generator).collect();
    ends.push(MemoryEnd::Sink { flows: 0 });
    MemoryPath {
        owners: Owners::deal(&plan, case.seating.workers()),
        plan,
        ends,
        workers: case.seating.workers(),
        frames: FRAMES_BESIDE + 2 * dispatch.queue_packets * case.tunnels as u32,
        held_packets_max: HELD_PACKETS_MAX,
    }
}

/// The seats of a case's workers.
fn seats(seating: Seating, cores: [usize; 2]) -> Vec<WorkerSeat> {
    let workers = seating.workers();
    let seat = |worker: usize| match seating {
        Seating::TwoCores => WorkerSeat { core: Some(cores[worker]), is_realtime: true, is_shared: false },
        Seating::Threads(1) => WorkerSeat { core: Some(cores[0]), is_realtime: true, is_shared: false },
        Seating::OneCore => WorkerSeat { core: Some(cores[0]), is_realtime: false, is_shared: true },
        // The last worker has the packets that wait in a queue.
        Seating::Priority => {
            WorkerSeat { core: Some(cores[0]), is_realtime: worker + 1 == workers, is_shared: true }
        }
        Seating::Threads(_) => {
            WorkerSeat { core: Some(cores[worker % 2]), is_realtime: false, is_shared: true }
        }
    };
    (0..workers).map(seat).collect()
}

/// Runs a system in a case once, for so long.
pub fn run(
    system: EspSystem,
    case: &EspCase,
    packets_per_s: Option<u64>,
    duration_ns: u64,
    cores: [usize; 2],
) -> Result<EspOutcome> {
    let line_before_ns = line_rtt_ns(cores)?;
    let path = path(system, case, packets_per_s, Until::Elapsed(duration_ns));
    let total: Arc<Mutex<Tally>> = Arc::default();
    let mut workers = path.workers(now_ns())?;
    let sink = path.plan.ports.len() - 1;
    let (end, _) = workers[path.owners.ports[sink]].end_mut(sink);
    let port = end.port.kernel_mut().expect("a sink leads nowhere");
    port.set_recipient(Worked::new(Work::Numbers, &total));
    let ran = path.run_seated(workers, &seats(case.seating, cores), &mut |_, _| true)?;
    let workstream = workstream(&path, &ran.workers, system)?;
    // The tallies are added up when the workers go.
    drop(ran.workers);
    let summary = ran.summary;
    ensure!(summary.balances(), "the books do not balance: {summary:?}");
    let (account, duration_s) = (&summary.account, duration_ns as f64 / 1e9);
    let sent = account.accepted.packets;
    let held_seconds = packets_per_s.map_or(0.0, |rate| duration_s - sent as f64 / rate as f64);
    let tally = total.lock().unwrap_or_else(PoisonError::into_inner).clone();
    Ok(EspOutcome {
        offered: sent + summary.missed,
        sealed: account.delivered.packets,
        dropped: account.dropped.total().packets + summary.missed,
        misnumbered: tally.misnumbered,
        lost: summary.lost(),
        seconds: summary.seconds(),
        latency: tally.latency,
        cpu_seconds: summary.workers.iter().map(|worker| worker.told.cpu_ns as f64 / 1e9).sum(),
        held_seconds: if system.drops { 0.0 } else { held_seconds.max(0.0) },
        workstream,
        line_rtt_ns: line_rtt_ns(cores)?.max(line_before_ns),
    })
}

/// The counts of the first ESP stage of a path for the packets that it seals.
fn workstream(path: &MemoryPath, workers: &[MemoryPathWorker], system: EspSystem) -> Result<WorkstreamRow> {
    let owner = path.owners.stages[FIRST_ESP];
    let stage = workers[owner].between().stages().nth(path.owners.place_of_stage(FIRST_ESP));
    let esp = stage.and_then(|stage| stage.esp()).ok_or_else(|| anyhow!("the stage is no ESP"))?;
    let counts = esp.counts(INSIDE);
    // The first port that leads back comes after those of the plan.
    let queue = workers[owner].egress(path.plan.ports.len()).filter(|_| system.mode != Mode::Direct);
    Ok(WorkstreamRow {
        wsid: owner,
        cpu: owner,
        len: counts.len as usize,
        wmark: counts.wmark as usize,
        dispatched: counts.dispatched,
        hybrid_dispatched: counts.hybrid_dispatched,
        queue_drops: counts.queue_drops,
        queued: counts.queued,
        handled: counts.handled,
        held: counts.len as usize,
        blocked: queue.map_or(0, |queue| queue.counts().blocked),
        blocked_ns: queue.map_or(0, |queue| queue.shaping.blocked_ns(now_ns())),
        ..WorkstreamRow::default()
    })
}

/// The depth of the passes of a system in a case, in bytes of stack.
pub fn stack_bytes(system: EspSystem, case: &EspCase) -> Result<usize> {
    let path = path(system, case, None, Until::Packets(STACK_PACKETS));
    let mut workers = path.workers(now_ns())?;
    // Packets that one worker has handed over may be found by the other in the next round.
    let mut rounds_at_rest = 0;
    let deep = || {
        for _ in 0..STACK_PASSES {
            for worker in &mut workers {
                pass(worker).expect("ports in memory do not fail");
            }
            rounds_at_rest = if workers.iter().all(is_at_rest) { rounds_at_rest + 1 } else { 0 };
            if rounds_at_rest == 2 {
                break;
            }
        }
    };
    let bytes = painted_stack::stack_bytes(deep)?;
    ensure!(rounds_at_rest == 2, "packets are under way after {STACK_PASSES} passes");
    Ok(bytes)
}

/// Returns whether a worker makes nothing more and has nothing inside.
fn is_at_rest(worker: &MemoryPathWorker) -> bool {
    let mut ports = worker.ends().iter().filter_map(|end| end.port.kernel());
    ports.all(MemoryPort::is_done) && worker.between().egress.held().packets == 0
}

/// One pass, after generators have learnt the time.
fn pass(worker: &mut MemoryPathWorker) -> std::io::Result<()> {
    let now_ns = now_ns();
    for end in 0..worker.ends().len() {
        let index = worker.ends()[end].index;
        if let Some(port) = worker.end_mut(index).0.port.kernel_mut() {
            port.look(now_ns);
        }
    }
    worker.pass(now_ns).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_worker_has_a_seat_and_who_seals_goes_first_where_that_is_said() {
        let seats = |seating| seats(seating, [4, 5]);
        let realtime = |seats: Vec<WorkerSeat>| seats.iter().map(|seat| seat.is_realtime).collect::<Vec<_>>();
        assert_eq!(
            seats(Seating::TwoCores).iter().map(|seat| seat.core).collect::<Vec<_>>(),
            [Some(4), Some(5)]
        );
        assert_eq!(realtime(seats(Seating::OneCore)), [false, false]);
        assert_eq!(realtime(seats(Seating::Priority)), [false, true]);
        assert!(seats(Seating::Threads(4)).iter().all(|seat| seat.is_shared));
        for system in EspSystem::ALL {
            for case in EspCase::ALL {
                let path = path(system, &case, None, Until::Packets(1));
                assert_eq!(path.workers, seats(case.seating).len());
                assert!(
                    path.owners.stages.iter().chain(&path.owners.ports).all(|owner| *owner < path.workers)
                );
            }
        }
        let deferred = path(EspSystem::ALL[2], &EspCase::ALL[0], None, Until::Packets(1));
        assert_eq!(deferred.owners.stages, [0, 1], "the last worker has what waits");
    }

    #[test]
    fn sixteen_tunnels_go_no_deeper_than_one() {
        for system in [EspSystem::ALL[0], EspSystem::ALL[2]] {
            let of = |name| stack_bytes(system, &EspCase::from_name(name).unwrap()).unwrap();
            let [one, sixteen] = ["nested-1", "nested-16"].map(of);
            assert!(one > 256, "{one} bytes are less than a frame");
            assert_eq!(one, sixteen, "{}", system.name());
        }
    }
}
