//! A wire: two ports joined, each way a direction of its own, over one packet memory.

use std::sync::Arc;

use weir_core::shaper::tbf::TbfConfig;
use weir_port::bpf::doorbell::Bell;
use weir_port::link::Link;
use weir_port::napi;
use weir_port::port::{Frames, Port};
use weir_port::qdisc::RootQdisc;
use weir_port::undo::Keeper;
use weir_port::xsk::umem::Umem;
use weir_port::{Doing, PortError};
use weir_ring::loans::Loans;
use weir_ring::memory::FrameMemory;
use weir_ring::pool::Pool;

use crate::classes::Classes;
use crate::direction::{Direction, Step};
use crate::stats::{
    Books, ClassStats, FrameStats, PortStats, Snapshot, TreeClassStats, WireStats, WorkerStats,
};

/// The size of a frame: with the headroom it holds the longest packet that XDP on a veth lets in.
const FRAME_BYTES: u32 = 4096;

/// What a wire is asked to be.
#[derive(Clone, Debug)]
pub struct WireConfig {
    /// What it is called.
    pub name: String,
    /// The interfaces it joins.
    pub ports: [String; 2],
    /// The limits from the first to the second and back; none does not limit.
    pub limits: [Option<TbfConfig>; 2],
    /// The classes that share each direction; none is one class. The limits then hold for the tree as a whole.
    pub classes: Option<Arc<Classes>>,
    /// How much packet memory it takes, in bytes.
    pub memory_bytes: u64,
}

/// A wire that carries packets.
pub struct Wire {
    name: String,
    ports: [Port; 2],
    directions: [Direction; 2],
    frames: Frames,
    frames_total: u64,
    since_ns: u64,
    // Last: the memory goes when the sockets have gone.
    _umem: Umem,
}

impl Wire {
    /// Takes both interfaces over.
    pub fn open(
        config: &WireConfig,
        bell: &Bell,
        keeper: &mut dyn Keeper,
        now_ns: u64,
    ) -> weir_port::Result<Wire> {
        let count = config.memory_bytes / u64::from(FRAME_BYTES);
        let memory = FrameMemory::new(u32::try_from(count).unwrap_or(u32::MAX), FRAME_BYTES)
            .map_err(std::io::Error::other)
            .doing(|| "taking packet memory".into())?;
        let pool = Pool::new(memory);
        let mut umem = Umem::new(Arc::clone(pool.memory()));
        let loans = Loans::new(Arc::clone(pool.memory()));
        let mut frames = Frames { pool, loans };
        let frames_total = u64::from(frames.pool.available());
        let queues = Link::by_name(&config.ports[0])?.rx_queues + Link::by_name(&config.ports[1])?.rx_queues;
        let poll_budget_max = poll_budget_max(frames.pool.available(), queues, config)?;
        let mut open = |name| Port::open(name, poll_budget_max, &mut umem, &mut frames, bell, keeper);
        let mut first = open(&config.ports[0])?;
        let mut second = open(&config.ports[1])?;
        // What is not on offer is shared by the two directions.
        let held_packets_max = u64::from(frames.pool.available()) / 2;
        let direction = |interface, from: &mut Port, limits| {
            let mut direction =
                Direction::new(interface, from.queues(), held_packets_max, poll_budget_max, limits, now_ns)
                    .map_err(std::io::Error::other)
                    .doing(|| "setting the limit".into())?;
            direction.tune(from);
            Ok(direction)
        };
        let directions =
            [direction(0, &mut first, config.limits[0])?, direction(1, &mut second, config.limits[1])?];
        let mut wire = Wire {
            name: config.name.clone(),
            ports: [first, second],
            directions,
            frames,
            frames_total,
            since_ns: now_ns,
            _umem: umem,
        };
        if let Some(classes) = &config.classes {
            wire.set_classes(classes, now_ns);
        }
        Ok(wire)
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Moves what can be moved now, both ways.
    pub fn step(&mut self, now_ns: u64) -> weir_port::Result<Step> {
        let [first, second] = &mut self.ports;
        let [there, back] = &mut self.directions;
        let there = there.step(first, second, &mut self.frames, now_ns)?;
        let back = back.step(second, first, &mut self.frames, now_ns)?;
        Ok(Step {
            moved: there.moved + back.moved,
            wake_ns: [there.wake_ns, back.wake_ns].into_iter().flatten().min(),
            expecting: there.expecting || back.expecting,
        })
    }

    /// Delivers what was taken in, both ways, and takes nothing more in.
    pub fn deliver(&mut self, now_ns: u64) -> weir_port::Result<Step> {
        let [first, second] = &mut self.ports;
        let [there, back] = &mut self.directions;
        let there = there.deliver(second, &mut self.frames, now_ns)?;
        let back = back.deliver(first, &mut self.frames, now_ns)?;
        Ok(Step { moved: there.moved + back.moved, ..Step::default() })
    }

    /// Whether a packet was announced that no intake knows of yet.
    pub fn is_announced(&self) -> bool {
        self.directions.iter().zip(&self.ports).any(|(direction, from)| direction.is_announced(from))
    }

    /// Notes that the interface of a port (0 or 1) went down.
    pub fn note_down(&mut self, port: usize) {
        self.ports[port].note_down();
    }

    /// Owns the interface of a port again, which has come up; content with it being down again by now.
    pub fn retake(&mut self, port: usize, now_ns: u64) -> weir_port::Result<()> {
        let (from, direction) = (&mut self.ports[port], &mut self.directions[port]);
        let mut retake = || {
            if from.is_disowned()? {
                from.let_go()?;
                direction.collect(from, &mut self.frames, now_ns);
            }
            from.retake(&mut self.frames)
        };
        let result = retake();
        direction.tune(from);
        match result {
            Err(_) if Link::by_index(from.link().ifindex).is_ok_and(|link| !link.up) => Ok(()),
            result => result,
        }
    }

    /// Changes the limits of one direction, or takes them away.
    pub fn set_limits(
        &mut self,
        direction: usize,
        limits: Option<TbfConfig>,
        now_ns: u64,
    ) -> Result<(), String> {
        self.directions[direction]
            .set_limits(limits, &mut self.ports[direction], now_ns)
            .map_err(|error| error.to_string())
    }

    /// Shapes both directions by these classes from now on.
    pub fn set_classes(&mut self, classes: &Arc<Classes>, now_ns: u64) {
        for (direction, from) in self.directions.iter_mut().zip(&mut self.ports) {
            direction.set_classes(Arc::clone(classes), from, &mut self.frames, now_ns);
        }
    }

    /// The limits of one direction.
    pub fn limits(&self, direction: usize) -> Option<TbfConfig> {
        self.directions[direction].shaping().limits().copied()
    }

    /// Whether everything that was taken in has left.
    pub fn is_empty(&self) -> bool {
        (0..2).all(|index| self.directions[index].held(&self.ports[1 - index]).packets == 0)
    }

    /// The queues of its senders, to be read elsewhere: this worker has packets to move.
    pub fn sender_queues(&self) -> SenderQueues {
        SenderQueues(self.ports.each_ref().map(Port::sender_queue))
    }

    /// Copies of all counters but those of [`Wire::sender_queues`].
    pub fn snapshot(&mut self, worker: WorkerStats, now_ns: u64) -> weir_port::Result<Snapshot> {
        let mut classes = Vec::new();
        let mut totals = Books::default();
        let mut held_frames = 0;
        for index in 0..2 {
            let direction = &mut self.directions[index];
            let to = &mut self.ports[1 - index];
            direction.settle(to, &mut self.frames);
            let books = Books::new(&direction.account(), direction.held(to));
            totals.merge(&books);
            let shaping = direction.shaping();
            held_frames += shaping.held().packets;
            let (limits, delay) = (shaping.limits(), shaping.delay());
            classes.push(ClassStats {
                name: format!("{}->{}", self.ports[index].link().name, self.ports[1 - index].link().name),
                rate_bits_per_s: limits.map(|limits| limits.rate.bits_per_s()),
                burst_bytes: limits.map(|limits| limits.burst_bytes),
                limit_bytes: shaping.limit_bytes(),
                books,
                blocked_ns: shaping.blocked_ns(now_ns),
                delay_ns_p50: delay.quantile_ns(500),
                delay_ns_p99: delay.quantile_ns(990),
                delay_ns_max: delay.delay_ns_max(),
                empty_polls: direction.empty_polls(),
                empty_wakes: direction.empty_wakes(),
                transmit_busy: direction.transmit_busy(),
                classes: shaping.rows(now_ns).iter().map(TreeClassStats::of).collect(),
            });
        }
        let ports = self.ports.iter_mut().map(port_stats).collect::<weir_port::Result<Vec<_>>>()?;
        let frames = FrameStats {
            total: self.frames_total,
            free: u64::from(self.frames.pool.available()),
            lent: u64::from(self.frames.loans.count()),
            held: held_frames,
        };
        let wire = WireStats {
            name: self.name.clone(),
            ports: [0, 1].map(|index| self.ports[index].link().name.clone()),
            classes,
            frames,
            worker: WorkerStats { now_ns, since_ns: self.since_ns, ..worker },
        };
        Ok(Snapshot { wires: vec![wire], ports, workstreams: Vec::new(), totals })
    }
}

/// How many packets one poll may bring, so that half of the memory is enough to be on offer on every queue.
fn poll_budget_max(frames: u32, queues: u32, config: &WireConfig) -> weir_port::Result<u32> {
    let budget = frames / 2 / queues;
    if budget < 4 {
        return Err(PortError::Unsuitable {
            name: config.ports[1].clone(),
            why: format!(
                "and {} have {queues} queues, too many for {} bytes of packet memory: give weir more with --memory",
                config.ports[0], config.memory_bytes
            ),
        });
    }
    Ok((budget & !1).min(napi::BUDGET))
}

fn port_stats(port: &mut Port) -> weir_port::Result<PortStats> {
    let lost = port.lost()?;
    Ok(PortStats {
        name: port.link().name.clone(),
        sender: port.sender().name.clone(),
        queues: port.queues(),
        poller: port.poller_name().into(),
        sender_queue_packets: 0,
        sender_queue_dropped: 0,
        kernel_dropped: lost.owned,
        lost_while_down: lost.while_down,
    })
}

/// The queues of a wire's senders, which are the kernel's.
#[derive(Clone, Debug)]
pub struct SenderQueues([RootQdisc; 2]);

impl SenderQueues {
    /// Completes what [`Wire::snapshot`] tells of the wire's ports.
    pub fn complete(&self, snapshot: &mut Snapshot) -> weir_port::Result<()> {
        for (port, queue) in snapshot.ports.iter_mut().zip(&self.0) {
            let counters = queue.counters()?;
            port.sender_queue_packets = counters.backlog;
            port.sender_queue_dropped = counters.dropped;
        }
        Ok(())
    }
}
