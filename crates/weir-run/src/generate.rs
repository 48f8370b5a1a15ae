//! A generator on a real interface: a wire between a port in memory and one of the kernel, on the thread that calls. Its other half is
//! [`crate::sink`].
//!
//! ```text
//! generator --poll, if there is room--> egress queue --> transmit ring -> device -> completion -> frame back
//! ```
//!
//! Flows are spread over the queues of the interface by their hash, as a device does that receives them: the generator has a receive
//! queue for each.
//!
//! A generator is held like any sender: a device that takes no more, or is down, is asked again later, and nothing is dropped for that.
//! Packets that are inside when the interface vanishes are dropped with it. Books (invariant 1): accepted = delivered + dropped(reason) +
//! held.
//!
//! A device may take no more because the receiver at the other end was killed while it held its senders ([`weir_port::release`]). A
//! generator that is held for long looks whether that is so, and goes on.
//!
//! Owner: the calling thread. Limits: interfaces are veths ([`weir_port::port`]). Packets that arrive at a generator are thrown away.

use std::io;
use std::sync::Arc;

use weir_core::account::Account;
use weir_core::drops::Count;
use weir_core::due::sooner;
use weir_path::assembly::Shares;
use weir_path::either_port::EitherPort;
use weir_path::frames::Frames;
use weir_path::owners::{Owners, Portion};
use weir_path::plan::{Plan, PortPlan};
use weir_path::port::{POLL_PACKETS_MAX, TransmitRing};
use weir_path::traffic::generator::GenSpec;
use weir_path::traffic::port::MemoryPort;
use weir_path::worker::{Pass, Worker};
use weir_port::bpf::doorbell::Bell;
use weir_port::link::Link;
use weir_port::monitor::{Monitor, State, Watch};
use weir_port::port::{Port, TRANSMIT_PACKETS_MAX};
use weir_port::undo::Keeper;
use weir_port::xsk::umem::Umem;
use weir_port::{Doing, napi, sys};
use weir_ring::memory::FrameMemory;
use weir_ring::pool::Pool;

use crate::clock::now_ns;
use crate::drive::{Driven, Look, drive};
use crate::idle::wake_cost_ns;
use crate::memory::Observe;
use crate::moved;
use crate::seed::random_seed;

/// Frames for packets that are made and under way, besides those that each queue has on offer.
const FRAMES: u32 = 4096;
const FRAME_BYTES: u32 = 4096;
/// The ports of the wire.
const GENERATOR: usize = 0;
const INTERFACE: usize = 1;
/// The longest time that a generator waits for packets that are inside when it is done, in nanoseconds.
const DRAIN_NS_MAX: u64 = 5_000_000_000;
/// The pause between two looks at the state of the interface, in nanoseconds.
const LOOK_NS: u64 = 1_000_000;
/// The pause between two looks where its other end is, in nanoseconds.
const FOLLOW_NS: u64 = 100_000_000;
/// The time for which a generator is held before it looks who holds it, and the pause before it looks again, in nanoseconds.
const HELD_NS: u64 = 100_000_000;
const HELD_AGAIN_NS: u64 = 1_000_000_000;

/// An event on the way that concerns its user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The present state of the interface.
    Interface(State),
    /// The queues that send to the other end, so called, were stopped and nobody was there to start them; they go on.
    Released(String),
}

/// The result of a generator.
pub struct Sent {
    /// Its books.
    pub account: Account,
    /// Packets that were made and are still inside.
    pub held: Count,
    /// True if the interface vanished.
    pub is_gone: bool,
}

/// A generator and the interface that it has taken over.
pub struct Generation {
    path: Worker<EitherPort<Port, MemoryPort>>,
    bell: Bell,
    watch: Watch,
    // Last: the memory goes when the sockets have gone.
    _umem: Umem,
}

impl Generation {
    /// Takes an interface over, for this traffic; `keeper` puts it back.
    ///
    /// # Errors
    /// If it is none that can be taken over, the kernel refuses, or there can be no such traffic.
    pub fn open(name: &str, spec: &GenSpec, keeper: &mut dyn Keeper) -> weir_port::Result<Generation> {
        let offered = Link::by_name(name)?.rx_queues * napi::BUDGET;
        let memory = FrameMemory::new(FRAMES + offered, FRAME_BYTES)
            .map_err(io::Error::other)
            .doing(|| "taking packet memory".into())?;
        let mut frames = Frames::new(Pool::new(memory));
        let umem = Umem::new(Arc::clone(frames.memory()));
        let bell =
            Bell::new().doing(|| "making the doorbell (BPF ring buffer, Linux 5.8 or newer)".into())?;
        // It may go down and up before the port is open.
        let monitor = Monitor::new()?;
        let mut port =
            Port::open(name, napi::BUDGET, &umem, std::slice::from_mut(&mut frames), &[&bell], keeper)?;
        let watch = Watch::new(monitor, port.link().ifindex)?;
        let queues = port.spread_transmission(&frames);
        let making = || "making a generator".to_string();
        let generator = MemoryPort::generator(spec, queues).map_err(io::Error::other).doing(making)?;
        let port_plan =
            |name: &str| PortPlan { interface: name.into(), limits: None, classes: None, is_optional: false };
        let plan = Plan::wire([port_plan("the generator"), port_plan(name)]);
        let shares = Shares {
            // All rings may be full, and a poll waits behind them.
            held_packets_max: u64::from(
                (queues as u32 * TRANSMIT_PACKETS_MAX).min(FRAMES / 2) + POLL_PACKETS_MAX,
            ),
            poll_budget_max: napi::BUDGET,
            queues_gone: 0,
            seed: random_seed(),
        };
        let ports = vec![
            (GENERATOR, EitherPort::Memory(Box::new(generator))),
            (INTERFACE, EitherPort::Kernel(Box::new(port))),
        ];
        let owners = Owners::alone(&plan);
        let portion = Portion { plan: &plan, owners: &owners, worker: 0 };
        let path = Worker::new(portion, ports, frames, None, shares, now_ns())
            .map_err(io::Error::other)
            .doing(making)?;
        Ok(Generation { path, bell, watch, _umem: umem })
    }

    /// Sends the generator's packets until it is done or the interface vanishes; `observe` stops it by saying false, and `keeper` is told what
    /// is changed where the other end has moved to.
    ///
    /// # Errors
    /// If the interface fails.
    pub fn run(
        &mut self,
        observe: Observe,
        tell: &mut dyn FnMut(Event),
        keeper: &mut dyn Keeper,
    ) -> weir_port::Result<Sent> {
        let sending = || "sending".to_string();
        let wake_cost_ns = wake_cost_ns().doing(sending)?;
        let start_ns = now_ns();
        let mut sending = Sending {
            generation: self,
            observe,
            tell,
            keeper: &mut *keeper,
            start_ns,
            state: State::Up,
            look_ns: start_ns,
            follow_ns: start_ns,
            finished: 0,
            held_look_ns: start_ns + HELD_NS,
            done_since: None,
        };
        drive(&mut sending, wake_cost_ns).doing(|| "transmitting".into())?;
        let is_gone = sending.state == State::Gone;
        if let Some(port) = self.interface() {
            // It may have moved since the last look.
            moved::follow(port.pair(), keeper)?;
        }
        let (account, held) = self.books();
        Ok(Sent { account, held, is_gone })
    }

    fn generator(&mut self) -> &mut MemoryPort {
        match &mut self.path.end_mut(GENERATOR).0.port {
            EitherPort::Memory(port) => port,
            EitherPort::Kernel(_) => unreachable!("the generator is in memory"),
        }
    }

    /// The interface, unless it is gone.
    fn interface(&self) -> Option<&Port> {
        self.path.ends().iter().find_map(|end| end.port.kernel())
    }

    /// The account of the packets that were made, and those that are still inside.
    fn books(&mut self) -> (Account, Count) {
        let mut account = Account { accepted: self.generator().made(), ..Account::default() };
        let end = self.path.ends().iter().find(|end| end.index == INTERFACE);
        let exit = end.map(|end| &end.exit).or_else(|| self.path.gone().first().map(|gone| &gone.exit));
        let mut held = end.map_or(Count::default(), |end| end.port.in_flight());
        if let Some(exit) = exit {
            account.delivered = exit.account().delivered;
            account.dropped.merge(&exit.account().dropped);
        }
        if let Some(queue) = self.path.egress(INTERFACE) {
            account.dropped.merge(&queue.shaping.account().dropped);
            held.merge(queue.shaping.held());
        }
        (account, held)
    }
}

/// A generation under way.
struct Sending<'a> {
    generation: &'a mut Generation,
    observe: Observe<'a>,
    tell: &'a mut dyn FnMut(Event),
    keeper: &'a mut dyn Keeper,
    start_ns: u64,
    state: State,
    /// The time of the next look at the state of the interface.
    look_ns: u64,
    /// The time of the next look where its other end is, if nothing is heard.
    follow_ns: u64,
    /// The number of packets that had left when one was last seen to.
    finished: u64,
    /// The time of the next look who holds the generator.
    held_look_ns: u64,
    done_since: Option<u64>,
}

impl Sending<'_> {
    /// Learns how the interface fares.
    fn look_at_interface(&mut self, now_ns: u64) -> weir_port::Result<()> {
        while let Some(state) = self.generation.watch.next_change()? {
            self.state = state;
            (self.tell)(Event::Interface(state));
            self.generation.generator().set_open(state == State::Up);
            self.follow_ns = now_ns;
        }
        if self.state == State::Gone {
            drop(self.generation.path.take_port(INTERFACE, now_ns));
        } else if now_ns >= self.follow_ns {
            self.follow_ns = now_ns + FOLLOW_NS;
            self.follow()?;
        }
        Ok(())
    }

    /// Goes on with the other end of the interface where it is, if it has moved.
    fn follow(&mut self) -> weir_port::Result<()> {
        let EitherPort::Kernel(port) = &mut self.generation.path.end_mut(INTERFACE).0.port else {
            return Ok(());
        };
        if let Some(pair) = moved::follow(port.pair(), self.keeper)? {
            port.follow(pair);
        }
        Ok(())
    }

    /// Looks who holds the generator, if it has been held for long.
    fn look_at_holder(&mut self, finished: u64, held: Count, now_ns: u64) -> weir_port::Result<()> {
        if finished != self.finished || held.packets == 0 || self.state != State::Up {
            (self.finished, self.held_look_ns) = (finished, now_ns + HELD_NS);
        } else if now_ns >= self.held_look_ns {
            self.held_look_ns = now_ns + HELD_AGAIN_NS;
            if let Some(port) =
                self.generation.interface().filter(|port| port.release_far_end().unwrap_or(false))
            {
                (self.tell)(Event::Released(port.sender().name.clone()));
            }
        }
        Ok(())
    }
}

impl Driven for Sending<'_> {
    fn look(&mut self, now_ns: u64) -> io::Result<Look> {
        let next_ns = self.generation.generator().look(now_ns);
        if now_ns >= self.look_ns {
            self.look_ns = now_ns + LOOK_NS;
            self.look_at_interface(now_ns).map_err(io::Error::other)?;
            let (account, held) = self.generation.books();
            if !(self.observe)(now_ns - self.start_ns, account.delivered) {
                self.generation.generator().stop();
            }
            self.look_at_holder(account.accepted.packets - held.packets, held, now_ns)
                .map_err(io::Error::other)?;
        }
        if self.state == State::Gone {
            return Ok(Look::Over);
        }
        if self.generation.generator().is_done() {
            let waited_ns = now_ns - *self.done_since.get_or_insert(now_ns);
            let (account, held) = self.generation.books();
            if held.packets == 0 || waited_ns > DRAIN_NS_MAX {
                (self.observe)(now_ns - self.start_ns, account.delivered);
                return Ok(Look::Over);
            }
        }
        Ok(Look::On(sooner(next_ns, Some(self.look_ns))))
    }

    fn pass(&mut self, now_ns: u64) -> io::Result<Pass> {
        self.generation.path.pass(now_ns)
    }

    fn park(&mut self, until_ns: Option<u64>) -> io::Result<()> {
        let Generation { path, bell, .. } = &mut *self.generation;
        bell.park();
        let timeout_ns = until_ns.map(|until_ns| until_ns.saturating_sub(now_ns()));
        let slept = path.park(|_| sys::poll(&mut [sys::poll_in(bell.fd())], timeout_ns).map(drop));
        bell.unpark();
        slept.map(drop)
    }
}
