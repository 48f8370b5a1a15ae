//! The sending machine: processes on CPUs, their sockets, a way out, and the link behind it, on a virtual clock.
//!
//! ```text
//! process --send--> socket buffer --> egress (TBF, TBF with the RFC, or Weir) --> link --> receiver
//!    ^                                    |
//!    +------- woken when room comes back -+
//! ```
//!
//! One event, one step: a process reaches its next send, a timer fires, a softirq runs, Weir's worker makes a step, a packet or an
//! acknowledgement arrives. After each step the egress returns its [`Effects`], the machine carries them out, and the checkers compare the
//! books with the packets that are inside.
//!
//! Owner of everything here. Order: events by time, then by when they were scheduled; random draws in event order.
//! Source: see the models; [`crate::seed`] for the costs.
//! Limits: a send is one instant at its end, so two CPUs never spin on a lock; receivers take arriving packets and their CPU time is the
//! deliverer's; no migration of processes; TCP costs no CPU time.

mod connections;
mod egress;
mod watch;

use std::fmt;

use weir_core::{
    drops::{Count, DropReason},
    packet::Packet,
};

use crate::{
    checks::{Checks, Violation, conformance::Conformance},
    cpu::Cpus,
    effects::Effects,
    events::Events,
    packet::SimPacket,
    prng::Prng,
    report::{Report, Tally},
    scenario::Scenario,
    sender::{Program, Sender, State},
    socket::Socket,
};
use connections::Connection;
use egress::Egress;

/// Runs `scenario` with `seed`: returns its numbers, or the first rule that was broken.
pub fn run(scenario: &Scenario, seed: u64) -> Result<Report, RunError> {
    let fail = |what: String| RunError { seed, violation: Violation { at_ns: 0, what } };
    scenario.check().map_err(fail)?;
    let mut machine = Machine::new(scenario, seed).map_err(fail)?;
    machine.run().map_err(|violation| RunError { seed, violation })?;
    Ok(machine.report())
}

/// A run that broke a rule, with the seed that repeats it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunError {
    /// The seed.
    pub seed: u64,
    /// The rule that was broken, and the time.
    pub violation: Violation,
}

impl fmt::Display for RunError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "seed {}: at {} ns: {}", self.seed, self.violation.at_ns, self.violation.what)
    }
}

impl std::error::Error for RunError {}

#[derive(Debug)]
enum Event {
    /// A process reaches its next send.
    Step(usize),
    /// A process's next datagram is due.
    Due(usize),
    /// The TBF's timer of this generation fires.
    Watchdog(u64),
    /// The softirq it raised, on this CPU.
    Softirq(usize),
    /// Weir's worker makes the step of this generation.
    Work(u64),
    /// A packet reaches the receiver.
    Arrive(SimPacket),
    /// An acknowledgement reaches a connection.
    Ack { sender: usize, sequence: u64 },
    /// A connection may send again.
    Push(usize),
    /// A connection's retransmission timer.
    Timeout(usize),
}

struct Machine<'a> {
    scenario: &'a Scenario,
    events: Events<Event>,
    prng: Prng,
    cpus: Cpus,
    senders: Vec<Sender>,
    sockets: Vec<Socket>,
    connections: Vec<Option<Connection>>,
    egress: Egress,
    on_link: Count,
    effects: Effects,
    checks: Checks,
    tallies: Vec<Tally>,
    left_bytes: u64,
    standing_bytes_max: u64,
    /// Steps until the queues are counted packet by packet again.
    steps_to_recount: u64,
}

impl<'a> Machine<'a> {
    fn new(scenario: &'a Scenario, seed: u64) -> Result<Machine<'a>, String> {
        let mut prng = Prng::new(seed);
        let count = scenario.senders();
        let members = scenario.groups.iter().flat_map(|group| std::iter::repeat_n(group, group.count));
        let senders: Vec<Sender> = members
            .clone()
            .map(|group| Sender::new(group.program, group.wait, prng.below(1_000_000)))
            .collect();
        Ok(Machine {
            scenario,
            events: Events::default(),
            cpus: Cpus::new(scenario.machine.cpus, scenario.machine.slice_ns),
            connections: senders.iter().map(|sender| Connection::of(sender, scenario)).collect(),
            sockets: members.clone().map(|group| Socket::new(group.sndbuf_bytes)).collect(),
            egress: Egress::new(scenario)?,
            on_link: Count::default(),
            effects: Effects::default(),
            checks: Checks::new(count, Conformance::new(scenario.rate, scenario.burst_bytes)),
            tallies: vec![Tally::default(); count],
            left_bytes: 0,
            standing_bytes_max: 0,
            steps_to_recount: 0,
            senders,
            prng,
        })
    }

    fn run(&mut self) -> Result<(), Violation> {
        for index in 0..self.senders.len() {
            let due_ns = self.senders[index].due_ns();
            if self.connections[index].is_some() {
                self.events.at(due_ns, Event::Push(index));
            } else {
                self.senders[index].state = State::AwaitsTime;
                self.events.at(due_ns, Event::Due(index));
            }
        }
        while let Some(event) = self.events.next_before(u64::MAX) {
            self.step(event);
            self.check()?;
        }
        // No process sends any more and no event is scheduled: packets that are still inside have been forgotten.
        let (now_ns, held) = (self.events.now_ns(), self.held());
        if held != Count::default() {
            return Err(Violation { at_ns: now_ns, what: format!("progress: {held:?} stuck inside") });
        }
        self.recount();
        self.checks.step(held, now_ns)
    }

    fn step(&mut self, event: Event) {
        match event {
            Event::Step(index) => self.process_step(index),
            Event::Due(index) => {
                self.senders[index].state = State::Runnable;
                self.start(index, 0);
            }
            Event::Watchdog(generation) => {
                if let Egress::Kernel(qdisc) = &mut self.egress
                    && let Some(cpu) = qdisc.expire(generation)
                {
                    let delay_ns = self.interrupt_ns();
                    self.events.after(delay_ns, Event::Softirq(cpu));
                }
            }
            Event::Softirq(cpu) => {
                if let Egress::Kernel(qdisc) = &mut self.egress {
                    let now_ns = self.events.now_ns();
                    qdisc.softirq(cpu, now_ns, &mut self.sockets, &mut self.effects);
                    let work_ns = self.scenario.machine.softirq_ns + self.carry_out();
                    self.cpus.steal(cpu, work_ns);
                }
            }
            Event::Work(generation) => {
                if let Egress::Weir(wire) = &mut self.egress {
                    wire.step(generation, self.events.now_ns(), &mut self.effects);
                    self.carry_out();
                }
            }
            Event::Arrive(packet) => self.arrive(packet),
            Event::Ack { sender, sequence } => {
                self.acknowledge(sender, sequence);
            }
            Event::Push(index) => self.push(index),
            Event::Timeout(index) => self.timeout(index),
        }
    }

    /// Has the process whose turn it is send, sleep or give up its CPU.
    fn process_step(&mut self, index: usize) {
        let now_ns = self.events.now_ns();
        let stolen_ns = self.cpus.take_stolen(index);
        if stolen_ns > 0 {
            return self.events.after(stolen_ns, Event::Step(index));
        }
        if let Some(next) = self.cpus.preempt(index, now_ns) {
            return self.events.after(0, Event::Step(next));
        }
        let sender = &mut self.senders[index];
        if now_ns >= self.scenario.time_ns {
            return self.sleep(index, State::AwaitsTime);
        }
        let due_ns = sender.due_ns();
        if due_ns > now_ns {
            self.events.at(due_ns, Event::Due(index));
            return self.sleep(index, State::AwaitsTime);
        }
        if !sender.may_send(&self.sockets[index]) {
            if std::mem::take(&mut sender.woken) {
                self.checks.wakes.first_send(false);
            }
            return self.sleep(index, State::AwaitsRoom);
        }
        let was_woken = std::mem::take(&mut sender.woken);
        let packet = sender.packet(index, 0, now_ns);
        sender.advance(now_ns, &mut self.prng);
        let preempted_ns = self.hand_over(index, packet);
        if was_woken {
            self.checks.wakes.first_send(self.effects.dropped.is_empty());
        }
        let work_ns = self.carry_out();
        let send_ns = self.prng.spread(self.scenario.machine.send_ns, self.scenario.machine.spread_percent);
        self.events.after(preempted_ns + send_ns + work_ns, Event::Step(index));
    }

    /// Passes a packet from `send` to the egress; returns the time for which its sender was preempted in between.
    fn hand_over(&mut self, index: usize, packet: SimPacket) -> u64 {
        let now_ns = self.events.now_ns();
        self.sockets[index].charge(packet.truesize_bytes);
        self.checks.accept(&packet);
        let tally = &mut self.tallies[index];
        tally.sent += 1;
        tally.sent_payload_bytes += u64::from(packet.payload_bytes());
        let machine = &self.scenario.machine;
        let preempted = machine.preempt_permille > 0 && self.prng.chance(machine.preempt_permille);
        let preempted_ns = if preempted { self.prng.between(1, machine.preempt_ns) } else { 0 };
        match &mut self.egress {
            Egress::Kernel(qdisc) => {
                qdisc.send(packet, self.cpus.of(index), now_ns, &mut self.sockets, &mut self.effects);
            }
            Egress::Weir(wire) => wire.send(packet, now_ns + preempted_ns, &mut self.effects),
        }
        preempted_ns
    }

    /// Carries out the effects of the egress; returns the time they cost the CPU it ran on.
    fn carry_out(&mut self) -> u64 {
        let mut effects = std::mem::take(&mut self.effects);
        let (now_ns, costs) = (self.events.now_ns(), &self.scenario.machine);
        self.checks.wakes.begin_grant();
        let mut woken = 0;
        for &index in &effects.write_space {
            woken += u64::from(self.write_space(index));
        }
        for &(sender, truesize_bytes) in &effects.freed {
            self.sockets[sender as usize].uncharge(truesize_bytes);
            woken += u64::from(self.write_space(sender as usize));
        }
        for (reason, packet) in effects.dropped.drain(..) {
            self.dropped(reason, &packet);
        }
        let mut work_ns = woken * costs.waker_ns;
        if matches!(self.egress, Egress::Kernel(_)) {
            work_ns += effects.left.len() as u64 * costs.deliver_ns;
        }
        for packet in effects.left.drain(..) {
            self.checks.leave(&packet, now_ns);
            if now_ns < self.scenario.time_ns {
                self.left_bytes += u64::from(packet.len_bytes());
            }
            self.transmit(packet);
        }
        if let Some((at_ns, generation)) = effects.timer {
            self.events.at(at_ns, Event::Watchdog(generation));
        }
        if effects.kicked {
            self.schedule_work(now_ns + self.scenario.machine.worker_wake_ns);
        }
        if let Some(at_ns) = effects.step_at_ns {
            self.schedule_work(at_ns);
        }
        if let Some(at_ns) = effects.wake_at_ns {
            let delay_ns = self.interrupt_ns();
            self.schedule_work(at_ns + delay_ns);
        }
        effects.clear();
        self.effects = effects;
        work_ns
    }

    fn schedule_work(&mut self, at_ns: u64) {
        if let Egress::Weir(wire) = &mut self.egress
            && let Some(generation) = wire.schedule(at_ns)
        {
            self.events.at(at_ns, Event::Work(generation));
        }
    }

    /// `sk_write_space`: wakes the socket's sleeper if it can make significant progress. True if it did.
    fn write_space(&mut self, index: usize) -> bool {
        if self.connections[index].is_some() {
            self.schedule_push(index);
            return false;
        }
        let sender = &mut self.senders[index];
        if sender.state != State::AwaitsRoom || !self.sockets[index].is_writeable() {
            return false;
        }
        sender.state = State::Runnable;
        sender.woken = true;
        self.checks.wakes.wake(index);
        let delay_ns = self.prng.spread(self.scenario.machine.wake_ns, self.scenario.machine.spread_percent);
        self.start(index, delay_ns);
        true
    }

    /// Makes a process runnable; it takes `delay_ns` to get going on an idle CPU.
    fn start(&mut self, index: usize, delay_ns: u64) {
        if self.cpus.wake(index, self.events.now_ns()) {
            self.events.after(delay_ns, Event::Step(index));
        }
    }

    fn sleep(&mut self, index: usize, state: State) {
        self.senders[index].state = state;
        if let Some(next) = self.cpus.sleep(index, self.events.now_ns()) {
            self.events.after(0, Event::Step(next));
        }
    }

    fn transmit(&mut self, packet: SimPacket) {
        if self.scenario.link_loss_permille > 0 && self.prng.chance(self.scenario.link_loss_permille) {
            self.checks.drop(DropReason::DeviceRefused, &packet);
        } else if self.scenario.link_delay_ns == 0 {
            self.receive(packet);
        } else {
            self.on_link.add(packet.len_bytes());
            self.events.after(self.scenario.link_delay_ns, Event::Arrive(packet));
        }
    }

    fn arrive(&mut self, packet: SimPacket) {
        self.on_link.sub(packet.len_bytes());
        self.receive(packet);
    }

    fn receive(&mut self, packet: SimPacket) {
        let now_ns = self.events.now_ns();
        self.checks.deliver(&packet);
        let sender = packet.sender as usize;
        let tally = &mut self.tallies[sender];
        if now_ns < self.scenario.time_ns {
            tally.delivered_bytes += u64::from(packet.len_bytes());
        }
        match self.senders[sender].program {
            Program::Quiet { .. } if packet.sent_ns >= self.scenario.warm_up_ns => {
                tally.delays_ns.push(now_ns - packet.sent_ns);
            }
            Program::Tcp { rtt_ns } => {
                self.events.after(rtt_ns, Event::Ack { sender, sequence: packet.sequence });
            }
            Program::Quiet { .. } | Program::Flood { .. } => {}
        }
    }

    fn dropped(&mut self, reason: DropReason, packet: &SimPacket) {
        self.checks.drop(reason, packet);
        let index = packet.sender as usize;
        self.tallies[index].dropped += 1;
        self.refuse(index, packet.sequence);
    }

    fn interrupt_ns(&mut self) -> u64 {
        let (least_ns, most_ns) = self.scenario.machine.interrupt_ns;
        self.prng.between(least_ns, most_ns)
    }
}
