//! Dispatch on more cores than a test machine has: 1, 8, 16 and 64 workers in virtual time, and what limits them.
//!
//! The code of weir-core decides everything: RSS deals the flows, workstreams take and hand off, kicks are staged. What is modelled is
//! time: each worker spends a nanosecond of its own for a nanosecond of work ([`COSTS`]), in slices of `SLICE_NS`.
//!
//! | bed | how packets come |
//! |---|---|
//! | `queues` | each worker has a queue of the device, which brings the flows of its buckets |
//! | `one queue` | worker 0 receives everything, and hands off what is not its own |
//!
//! Every flow offers the same, together as much as all workers could do if the work were dealt evenly. What finds its ring full is
//! held.
//!
//! - `per worker` = packets worked on / workers, of what one worker does with all flows.
//! - `busiest` = flows of the worker that has most / mean: with `queues` nothing else can limit the sum but this.
//!
//! Order: each flow's numbers are checked where it is worked on.
//! Source: seed `rss-udp-scaling` (eight cores did eight times one core, with eight chosen flows).
//! Limits: caches and memory do not get slower with more cores here; costs are those that `weir lab netisr` finds on two.

use std::collections::VecDeque;
use std::fmt::Write;
use std::sync::Arc;

use weir_core::dispatch::protocol::{Mode, ProtoId, Protocol, Registry};
use weir_core::dispatch::transmit::Kicks;
use weir_core::dispatch::workstream::{Handler, Next, Workstream};
use weir_core::drops::DropReason;
use weir_core::packet::{Meta, Packet};
use weir_core::steer::key::Key;
use weir_core::steer::parse::HashKind;
use weir_core::steer::rss::Rss;

use crate::prng::Prng;

/// What things cost, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub struct Costs {
    /// Taking a packet out of a device's queue, with its frame and hash.
    pub receive_ns: u64,
    /// The work on a packet.
    pub work_ns: u64,
    /// Handing a packet off.
    pub hand_off_ns: u64,
    /// Taking a packet that was handed off.
    pub take_ns: u64,
    /// Kicking a worker that sleeps.
    pub kick_ns: u64,
    /// From the kick until it runs.
    pub wake_ns: u64,
}

/// Costs as measured on two cores, the work being a thousand nanoseconds.
pub const COSTS: Costs =
    Costs { receive_ns: 60, work_ns: 1000, hand_off_ns: 15, take_ns: 30, kick_ns: 3000, wake_ns: 15_000 };

const SLICE_NS: u64 = 10_000;
const BURST: usize = 64;
const RING_SLOTS: usize = 512;
const FRAMES: usize = 4096;
/// Of the flows' addresses.
const SEED: u64 = 1;
/// Packets that a worker may be handed and not have done.
const CREDIT: usize = 256;
/// Slices before counting, so that queues have filled.
const WARM_SLICES: u64 = 200;

/// What to run.
#[derive(Clone, Copy, Debug)]
pub struct Bed {
    /// Workers.
    pub workers: usize,
    /// Flows, all alike.
    pub flows: usize,
    /// Whether each worker has a queue of the device.
    pub has_queues: bool,
    /// For how long, in slices.
    pub slices: u64,
}

/// What came of it.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Packets worked on in a second.
    pub packets_per_s: f64,
    /// Flows of the worker that has most, over the mean.
    pub busiest: f64,
    /// For each worker the share of the time that it was at work.
    pub used: Vec<f64>,
    /// Kicks sent for each million packets.
    pub kicks_per_million: f64,
    /// The share of worker 0's time that it spends on kicks.
    pub kicking: f64,
    /// Packets overtaken within their flow.
    pub reordered: u64,
}

impl Outcome {
    /// What keeps the sum from being larger.
    pub fn limit(&self) -> String {
        let mean = self.used.iter().sum::<f64>() / self.used.len() as f64;
        let others = &self.used[1..];
        let most_of_others = others.iter().copied().fold(0.0, f64::max);
        if mean > 0.97 {
            return "the work itself: every worker is busy".to_string();
        }
        if self.used[0] > 0.97 && most_of_others < 0.9 {
            return match self.kicking {
                0.3.. => format!("kicks: {:.0} % of the one receiver's time", 100.0 * self.kicking),
                _ => "the one worker that receives: the device has one queue".to_string(),
            };
        }
        format!("uneven buckets: the busiest worker has {:.2} of the mean's flows", self.busiest)
    }
}

#[derive(Debug)]
struct Pkt {
    flow: usize,
    number: u64,
    meta: Meta,
}

impl Packet for Pkt {
    fn len_bytes(&self) -> u32 {
        60
    }
    fn meta(&self) -> &Meta {
        &self.meta
    }
    fn meta_mut(&mut self) -> &mut Meta {
        &mut self.meta
    }
}

/// What handlers do: spend time, hand off, and check the order.
struct Hands {
    work: ProtoId,
    ether: ProtoId,
    spent_ns: u64,
    handed: Vec<(usize, ProtoId, Pkt)>,
    /// Of every flow the number that is due here.
    next: Vec<u64>,
    done: u64,
    reordered: u64,
}

impl Handler<Pkt> for Hands {
    fn handle(&mut self, proto: ProtoId, packet: Pkt, next: &mut Next<'_, Pkt>) {
        if proto == self.ether {
            return next.dispatch(self.work, packet);
        }
        next.delivered(packet.len_bytes());
        self.spent_ns += COSTS.work_ns;
        self.done += 1;
        self.reordered += u64::from(packet.number < self.next[packet.flow]);
        self.next[packet.flow] = packet.number + 1;
    }
    fn mark(&mut self, _: &mut Pkt) -> bool {
        false
    }
    fn hand_off(&mut self, worker: usize, proto: ProtoId, packet: Pkt) {
        self.spent_ns += COSTS.hand_off_ns;
        self.handed.push((worker, proto, packet));
    }
    fn dropped(&mut self, _: Pkt, _: DropReason) {
        unreachable!("no rule drops here");
    }
}

struct Worker {
    workstream: Workstream<Pkt>,
    hands: Hands,
    kicks: Kicks,
    ring: VecDeque<Pkt>,
    held: Option<Pkt>,
    inbox: VecDeque<(ProtoId, Pkt)>,
    /// Until when its time is spent.
    busy_until_ns: u64,
    is_parked: bool,
    used_ns: u64,
}

/// Runs a bed.
pub fn run(bed: &Bed) -> Outcome {
    let bits = Rss::default_bits(bed.workers);
    let rss =
        Rss::new(&Key::MICROSOFT, HashKind::FourTuple, bits, bed.workers).expect("a table of that size");
    let mut random = Prng::new(SEED);
    let hashes: Vec<u32> = (0..bed.flows).map(|_| rss.hash(&frame_of(&mut random))).collect();
    let owners: Vec<usize> = hashes.iter().map(|hash| rss.worker(*hash)).collect();
    let mut owned = vec![0usize; bed.workers];
    owners.iter().for_each(|owner| owned[*owner] += 1);
    let registry =
        Registry::new(Protocol::of_the_path(), Mode::Hybrid, CREDIT, rss).expect("the path's protocols");
    let registry = Arc::new(registry);
    let (ether, work) = (registry.id("ether").expect("registered"), registry.id("ip").expect("registered"));
    let mut workers: Vec<Worker> = (0..bed.workers)
        .map(|worker| Worker {
            workstream: Workstream::new(worker, Arc::clone(&registry), FRAMES),
            hands: Hands {
                work,
                ether,
                spent_ns: 0,
                handed: Vec::new(),
                next: vec![0; bed.flows],
                done: 0,
                reordered: 0,
            },
            kicks: Kicks::default(),
            ring: VecDeque::new(),
            held: None,
            inbox: VecDeque::new(),
            busy_until_ns: 0,
            is_parked: false,
            used_ns: 0,
        })
        .collect();
    let each_ns = COSTS.receive_ns + COSTS.work_ns;
    let mut source = Source { numbers: vec![0; bed.flows], turn: 0, owed: 0 };
    let (mut done_before, mut kicks_before) = (0, 0);
    for slice in 0..WARM_SLICES + bed.slices {
        if slice == WARM_SLICES {
            workers.iter_mut().for_each(|worker| worker.used_ns = 0);
            (done_before, kicks_before) = totals(&workers);
        }
        source.offer(bed, &hashes, &owners, SLICE_NS * bed.workers as u64, each_ns, &mut workers);
        let end_ns = (slice + 1) * SLICE_NS;
        for worker in 0..workers.len() {
            run_worker(&mut workers, worker, ether, work, end_ns);
        }
    }
    let (done, kicks) = totals(&workers);
    let (done, kicks) = ((done - done_before) as f64, (kicks - kicks_before) as f64);
    let time_ns = (bed.slices * SLICE_NS) as f64;
    let mean = bed.flows as f64 / bed.workers as f64;
    Outcome {
        packets_per_s: done / time_ns * 1e9,
        busiest: owned.iter().copied().max().unwrap_or(0) as f64 / mean,
        used: workers.iter().map(|worker| worker.used_ns as f64 / time_ns).collect(),
        kicks_per_million: kicks * 1e6 / done,
        // Nobody else hands off.
        kicking: kicks * COSTS.kick_ns as f64 / time_ns,
        reordered: workers.iter().map(|worker| worker.hands.reordered).sum(),
    }
}

fn totals(workers: &[Worker]) -> (u64, u64) {
    let done = workers.iter().map(|worker| worker.hands.done).sum();
    (done, workers.iter().map(|worker| worker.kicks.counts().sent).sum())
}

/// Senders: every flow in turn, as many packets as all workers together could do.
struct Source {
    numbers: Vec<u64>,
    turn: usize,
    /// Time for which packets have not been offered yet.
    owed: u64,
}

impl Source {
    fn offer(
        &mut self,
        bed: &Bed,
        hashes: &[u32],
        owners: &[usize],
        time_ns: u64,
        each_ns: u64,
        workers: &mut [Worker],
    ) {
        self.owed += time_ns;
        while self.owed >= each_ns {
            self.owed -= each_ns;
            let flow = self.turn;
            self.turn = (self.turn + 1) % bed.flows;
            let receiver = if bed.has_queues { owners[flow] } else { 0 };
            let ring = &mut workers[receiver].ring;
            // A ring that is full holds its senders: what they would have sent comes never, not late.
            if ring.len() < RING_SLOTS {
                let meta = Meta { flow_hash: hashes[flow], ..Meta::default() };
                ring.push_back(Pkt { flow, number: self.numbers[flow], meta });
                self.numbers[flow] += 1;
            }
        }
    }
}

/// Lets a worker run until its time has reached `end_ns`.
fn run_worker(workers: &mut [Worker], place: usize, ether: ProtoId, work: ProtoId, end_ns: u64) {
    loop {
        let worker = &mut workers[place];
        if worker.busy_until_ns >= end_ns {
            return;
        }
        let now_ns = worker.busy_until_ns.max(end_ns - SLICE_NS);
        worker.hands.spent_ns = 0;
        for (proto, packet) in worker.inbox.drain(..) {
            worker.hands.spent_ns += COSTS.take_ns;
            worker.workstream.receive(proto, packet, &mut worker.hands);
        }
        for _ in 0..BURST {
            let Some(packet) = worker.held.take().or_else(|| {
                worker.hands.spent_ns += if worker.ring.is_empty() { 0 } else { COSTS.receive_ns };
                worker.ring.pop_front()
            }) else {
                break;
            };
            if let Err(packet) = worker.workstream.dispatch(ether, packet, now_ns, &mut worker.hands) {
                worker.held = Some(packet);
                break;
            }
        }
        worker.workstream.drain(now_ns, &mut worker.hands);
        hand_over(workers, place, work, now_ns);
        let worker = &mut workers[place];
        let spent_ns = worker.hands.spent_ns;
        if spent_ns == 0 {
            // Nothing to do: it parks, and what comes in this slice finds it so.
            worker.is_parked = worker.held.is_none();
            worker.busy_until_ns = end_ns;
            return;
        }
        worker.is_parked = false;
        worker.used_ns += spent_ns;
        worker.busy_until_ns = now_ns + spent_ns;
    }
}

/// Publishes what was handed off, kicks who sleeps, and looks at what has room.
fn hand_over(workers: &mut [Worker], place: usize, work: ProtoId, now_ns: u64) {
    let handed = std::mem::take(&mut workers[place].hands.handed);
    if handed.is_empty() && workers[place].held.is_none() {
        return;
    }
    let mut kicks = std::mem::take(&mut workers[place].kicks);
    for (to, proto, packet) in handed {
        workers[to].inbox.push_back((proto, packet));
        kicks.owe(to);
    }
    let mut kick_ns = 0;
    kicks.flush(|to| {
        let was_parked = std::mem::take(&mut workers[to].is_parked);
        if was_parked {
            kick_ns += COSTS.kick_ns;
            workers[to].busy_until_ns = workers[to].busy_until_ns.max(now_ns + COSTS.wake_ns);
        }
        was_parked
    });
    workers[place].kicks = kicks;
    workers[place].hands.spent_ns += kick_ns;
    for peer in (0..workers.len()).filter(|peer| *peer != place) {
        let is_full = workers[peer].inbox.len() >= CREDIT;
        let full = workers[peer].workstream.full() | u64::from(is_full) << work.index();
        workers[place].workstream.set_peer_full(peer, full, now_ns);
    }
}

/// A UDP datagram of a flow, with an address and a port at random.
fn frame_of(random: &mut Prng) -> [u8; 60] {
    let mut frame = [0; 60];
    frame[12..14].copy_from_slice(&[0x08, 0x00]);
    frame[14..24].copy_from_slice(&[0x45, 0, 0, 46, 0, 0, 0, 0, 64, 17]);
    let word = random.next_u64().to_be_bytes();
    frame[26..34].copy_from_slice(&[198, 18, word[0], word[1], 198, 19, 0, 1]);
    frame[34..40].copy_from_slice(&[word[2], word[3], 0x20, 1, 0, 26]);
    frame
}

/// The beds side by side, a line each, with what limits them.
pub fn table() -> String {
    const FLOWS: [usize; 2] = [2000, 20_000];
    let mut text = String::from(
        "Workers in virtual time, work of 1000 ns a packet; every flow offers the same\n\n\
         bed        workers   flows      kpps  per worker  busiest  kicks per M  limited by\n",
    );
    for flows in FLOWS {
        let bed = |workers, has_queues| Bed { workers, flows, has_queues, slices: 1000 };
        let alone = run(&bed(1, true)).packets_per_s;
        for has_queues in [true, false] {
            for workers in [1, 8, 16, 64].into_iter().filter(|workers| has_queues || *workers > 1) {
                let outcome = run(&bed(workers, has_queues));
                let name = if has_queues { "queues" } else { "one queue" };
                let share = 100.0 * outcome.packets_per_s / workers as f64 / alone;
                writeln!(
                    text,
                    "{name:<9} {workers:>8} {flows:>7} {:>9.0} {share:>9.1} % {:>8.2} {:>12.0}  {}",
                    outcome.packets_per_s / 1e3,
                    outcome.busiest,
                    outcome.kicks_per_million,
                    outcome.limit()
                )
                .expect("writing to a string");
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(workers: usize, flows: usize, has_queues: bool) -> Outcome {
        let outcome = run(&Bed { workers, flows, has_queues, slices: 400 });
        assert_eq!(outcome.reordered, 0, "{workers} workers, {flows} flows");
        outcome
    }

    #[test]
    fn one_worker_is_limited_by_its_work() {
        let alone = outcome(1, 2000, true);
        let expected = 1e9 / (COSTS.receive_ns + COSTS.work_ns) as f64;
        assert!((0.97..1.03).contains(&(alone.packets_per_s / expected)), "{alone:?}");
        assert!(alone.limit().starts_with("the work itself"), "{}", alone.limit());
    }

    #[test]
    fn with_queues_of_their_own_only_the_dealing_of_flows_limits_workers() {
        let alone = outcome(1, 2000, true).packets_per_s;
        for workers in [8, 16, 64] {
            let few = outcome(workers, 2000, true);
            let share = few.packets_per_s / alone / workers as f64;
            // All flows offer the same, so the busiest worker alone tells how much is held.
            assert!(share > 0.8 && share <= 1.01, "{workers} workers: {share}");
            assert!(share > 2.0 - few.busiest - 0.02, "{workers} workers: {share} with {}", few.busiest);
            assert_eq!(few.kicks_per_million, 0.0, "nothing is handed off");
        }
        let (few, many) = (outcome(64, 2000, true), outcome(64, 20_000, true));
        assert!(many.busiest < few.busiest && many.packets_per_s > few.packets_per_s, "{few:?} {many:?}");
        assert!(few.limit().starts_with("uneven buckets"), "{}", few.limit());
    }

    #[test]
    fn one_queue_is_limited_by_who_receives() {
        let mut before = f64::INFINITY;
        for workers in [8, 16, 64] {
            let outcome = outcome(workers, 2000, false);
            assert!(outcome.limit().starts_with("kicks: "), "{outcome:?}");
            assert!(
                outcome.packets_per_s < before,
                "the more workers, the more of them sleep between two packets"
            );
            before = outcome.packets_per_s;
            let without = Outcome { kicking: 0.1, ..outcome };
            assert!(without.limit().starts_with("the one worker that receives"), "{without:?}");
        }
    }
}
