//! The stages of a file on one worker, in virtual time, with keys made here.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use weir_core::drops::DropReason;
use weir_ipsec::algorithm::{KeyMaterial, Transform};
use weir_ipsec::sequence::SequenceNumbers;
use weir_path::assembly::Shares;
use weir_path::deal;
use weir_path::esp::marks::SequenceMark;
use weir_path::esp::plan::{AssociationKey, AssociationNumbers, AssociationPlan, EspChange};
use weir_path::frames::Frames;
use weir_path::owners::Owners;
use weir_path::plan::{Plan, StageKind};
use weir_path::port::POLL_PACKETS_MAX;
use weir_path::worker::Worker;
use weir_ring::memory::FrameMemory;
use weir_ring::pool::Pool;
use weir_run::topology;
use weir_sim::frame_port::FramePort;

pub const LAN: usize = 0;
pub const WAN: usize = 1;
pub const LINK_LEN: usize = 14;
pub const MS: u64 = 1_000_000;
/// So few numbers at once that a mark is asked for all the time.
pub const AHEAD: u64 = 4;

/// The places on the stack where each association, by its SPI, sealed packets.
type StackDepths = Arc<Mutex<BTreeSet<(u32, usize)>>>;

/// A mark that is safe at once while the disk is not slow, and remembers how deep the stack was where it was asked.
#[derive(Debug)]
struct StackProbe {
    safe: u64,
    wanted: u64,
    is_slow: Arc<AtomicBool>,
    depths: StackDepths,
    spi: u32,
}

impl SequenceMark for StackProbe {
    fn begin(&mut self) {}

    fn want(&mut self, mark: u64) {
        self.wanted = mark;
        if !self.is_slow.load(Ordering::Relaxed) {
            self.safe = mark;
        }
    }

    fn safe(&self) -> u64 {
        let here = std::hint::black_box(0u8);
        self.depths.lock().unwrap().insert((self.spi, &raw const here as usize));
        if self.is_slow.load(Ordering::Relaxed) { self.safe } else { self.safe.max(self.wanted) }
    }

    fn end(&mut self, _: u64) {}
}

/// The stages of a file, on one worker.
pub struct Bench {
    pub worker: Worker<FramePort>,
    stages: Vec<String>,
    /// The depths of the stack at which packets were sealed.
    depths: StackDepths,
    /// True while no mark becomes safe.
    pub is_slow: Arc<AtomicBool>,
    pub now_ns: u64,
    next_ns: Option<u64>,
}

/// The plan of a file, of which nothing is warned.
pub fn plan(file: &str) -> Plan {
    let (plan, warnings) = plan_and_warnings(file);
    assert_eq!(warnings, [""; 0]);
    plan
}

/// The plan of a file, and what is warned of.
pub fn plan_and_warnings(file: &str) -> (Plan, Vec<String>) {
    let read = topology::read("chain.toml", file, "4711", |path| Err(path.into()));
    let read = read.unwrap_or_else(|told| panic!("{}\n{file}", told.join("\n")));
    (read.plan.expect("it has ports"), read.warnings)
}

fn key(association: &AssociationPlan, depths: &StackDepths, is_slow: &Arc<AtomicBool>) -> AssociationKey {
    let AssociationPlan { algorithm, spi, is_extended, .. } = *association;
    let material = KeyMaterial::new(algorithm, &vec![(spi ^ spi >> 8) as u8; algorithm.key_len()]).unwrap();
    let numbers = SequenceNumbers::from_mark(1, is_extended, AHEAD);
    let (depths, is_slow) = (Arc::clone(depths), Arc::clone(is_slow));
    let probe = StackProbe { safe: 1 + AHEAD, wanted: 0, is_slow, depths, spi };
    AssociationKey {
        transform: Transform::new(algorithm, &material).unwrap(),
        numbers: match association.is_inbound {
            true => AssociationNumbers::unmarked(),
            false => AssociationNumbers::Sent(numbers, Box::new(probe)),
        },
    }
}

impl Bench {
    pub fn new(plan: &Plan) -> Bench {
        let pools = Pool::for_workers(FrameMemory::new(4096, 2048).unwrap(), 1);
        let shares =
            Shares { held_packets_max: 1024, poll_budget_max: POLL_PACKETS_MAX, queues_gone: 1, seed: 7 };
        let ports = plan.ports.iter().map(|_| Some(FramePort::new(1))).collect();
        let frames = pools.into_iter().map(Frames::new).collect();
        let workers = deal::workers((plan, &Owners::alone(plan)), ports, frames, shares, 0).unwrap();
        let [mut worker] = <[Worker<FramePort>; 1]>::try_from(workers).ok().expect("one worker");
        let (depths, is_slow) = (Arc::default(), Arc::default());
        for (number, stage) in plan.stages.iter().enumerate() {
            if let StageKind::Esp(esp) = &stage.kind {
                let keys = esp.associations.iter().map(|of| Some(key(of, &depths, &is_slow))).collect();
                worker.change_esp(number, EspChange { plan: (**esp).clone(), keys }, 0);
            }
        }
        let stages = plan.stages.iter().map(|stage| stage.name.clone()).collect();
        Bench { worker, stages, depths, is_slow, now_ns: 0, next_ns: None }
    }

    pub fn port(&mut self, port: usize) -> &mut FramePort {
        &mut self.worker.end_mut(port).0.port
    }

    /// Passes until nothing moves. All books balance after each.
    pub fn run(&mut self) {
        loop {
            self.now_ns += MS / 1000;
            let pass = self.worker.pass(self.now_ns).unwrap();
            self.next_ns = pass.wake_ns;
            let between = self.worker.between();
            assert!(between.stages().all(|stage| stage.account().balances(stage.held())), "a stage's books");
            let queues = between.egress.queues();
            assert!(queues.iter().all(|queue| queue.shaping.account().balances(queue.shaping.held())));
            let is_done = self.port(LAN).queued() + self.port(WAN).queued() == 0;
            if is_done && self.worker.between().egress.held().packets == 0 {
                return;
            }
        }
    }

    /// Lets so much time pass, and wakes whenever the worker wanted.
    pub fn rest(&mut self, time_ns: u64) {
        let end_ns = self.now_ns + time_ns;
        while let Some(next_ns) = self.next_ns.filter(|&next_ns| next_ns <= end_ns) {
            self.now_ns = self.now_ns.max(next_ns);
            self.run();
        }
        self.now_ns = end_ns;
    }

    pub fn left(&mut self, port: usize) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.port(port).left)
    }

    /// The reasons of all drops, each with the name of its stage.
    pub fn dropped(&self) -> Vec<(String, DropReason)> {
        let stages = self.stages.iter().zip(self.worker.between().stages());
        let all = stages.flat_map(|(name, stage)| {
            let dropped = stage.account().dropped.occurred();
            dropped.map(|(reason, _)| (name.clone(), reason)).collect::<Vec<_>>()
        });
        all.collect()
    }

    /// The number of associations that sealed packets, and of different lists of the depths of the stack at which each did.
    pub fn stack_depths(&self) -> [usize; 2] {
        let mut of_each = BTreeMap::<u32, BTreeSet<usize>>::new();
        self.depths.lock().unwrap().iter().for_each(|&(spi, depth)| {
            of_each.entry(spi).or_default().insert(depth);
        });
        [of_each.len(), of_each.values().collect::<BTreeSet<_>>().len()]
    }
}

/// A frame of UDP from 10.1.0.2 to 10.2.0.2, `number` in it, whose IP packet has so many bytes.
pub fn frame(number: u16, len: usize, may_be_cut: bool) -> Vec<u8> {
    let mut ip = vec![0x45, 0, 0, 0, 0, 0, if may_be_cut { 0 } else { 0x40 }, 0, 64, 17, 0, 0];
    ip.extend([10, 1, 0, 2, 10, 2, 0, 2]);
    ip[4..6].copy_from_slice(&number.to_be_bytes());
    ip.extend([1000u16, 2000, (len - 20) as u16, 0].iter().flat_map(|word| word.to_be_bytes()));
    ip.extend(number.to_be_bytes());
    ip.resize(len, 0x5a);
    weir_ipsec::ip::set_len(&mut ip, weir_ipsec::ip::IpFamily::V4).unwrap();
    [&[2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 8, 8, 0][..], &ip].concat()
}
