//! One run of one design that is no path: two inputs on two cores, forwarded to one device, for a given time.
//!
//! Each core takes bursts out of its input's ring, spends the cost of forwarding on each packet, and transmits it; then it does its duty to
//! the device. A packet that the design does not take is offered again, and meanwhile the input's senders are held: so lost packets were
//! dropped behind the input.
//!
//! - `lost` = packets sent by both inputs' senders - packets that the device sent.
//!
//! Ordering: `R0` (`ended`) `<-> A0`: all packets that the other core transmitted.
//! Limits: the clock is read once a burst.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::Result;
use weir_port::sys::set_realtime;
use weir_run::clock::now_ns;
use weir_run::idle::{Idle, Rest};

use super::design::{Counts, IfqPacket, MemoryDevice, Side};
use super::sender::Sender;
use crate::cost::Cost;
use crate::machine::pin;

/// Packets that are transmitted together.
const BURST: usize = 32;
/// The pause before the next look if nothing is due, in nanoseconds.
pub const LOOK_NS: u64 = 50_000;

/// The configuration of a run.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// The packets a second that each input's senders offer.
    pub packets_per_s: f64,
    /// The time of the run, in nanoseconds.
    pub duration_ns: u64,
    /// The cost of forwarding a packet.
    pub forward: Cost,
    /// The cores; the second is the device's.
    pub cores: [usize; 2],
    /// The cost of waking a thread here, in nanoseconds.
    pub wake_cost_ns: u64,
}

/// The outcome of a run.
#[derive(Debug, Clone, Default)]
pub struct Outcome {
    /// Packets that the senders sent.
    pub offered: u64,
    /// Packets that the device sent, for each input.
    pub sent_by: [u64; 2],
    /// Packets overtaken within their input.
    pub reordered: u64,
    /// The time of the run, in seconds.
    pub seconds: f64,
    /// The counts of both sides.
    pub counts: Counts,
}

impl Outcome {
    /// Packets that the device sent.
    pub fn sent(&self) -> u64 {
        self.sent_by.iter().sum()
    }
}

/// The part of a thread in the outcome.
struct Ended {
    offered: u64,
    seconds: f64,
    counts: Counts,
    device: Option<MemoryDevice>,
}

/// Runs the two sides of a design once.
pub fn run(plan: &Plan, (other, owner): (impl Side, impl Side)) -> Result<Outcome> {
    let (start_line, ended) = (Barrier::new(2), AtomicBool::new(false));
    let (other, owner) = thread::scope(|scope| {
        let (start_line, ended) = (&start_line, &ended);
        let other = scope.spawn(move || {
            let result = forward(plan, 0, other, start_line, None);
            // R0, to A0.
            ended.store(true, Ordering::Release);
            result
        });
        let owner = scope.spawn(move || forward(plan, 1, owner, start_line, Some(ended)));
        let other = other.join().expect("the other side does not panic");
        (other, owner.join().expect("the device's side does not panic"))
    });
    let (other, owner) = (other?, owner?);
    let device = owner.device.or(other.device).expect("the device is on one side");
    Ok(Outcome {
        offered: other.offered + owner.offered,
        sent_by: [0, 1].map(|input| device.sent(input)),
        reordered: device.reordered,
        seconds: owner.seconds,
        counts: other.counts.add(owner.counts),
    })
}

/// One core: forwards its input until the senders have ended and, on the device's core, the other side as well.
fn forward(
    plan: &Plan,
    input: usize,
    mut side: impl Side,
    start_line: &Barrier,
    other_ended: Option<&AtomicBool>,
) -> Result<Ended> {
    // As the path's workers: before all others.
    set_realtime();
    let pinned = pin(plan.cores[input]);
    start_line.wait();
    let start_ns = now_ns();
    let mut sender = Sender::new(plan.packets_per_s, start_ns, start_ns + plan.duration_ns);
    let mut idle = Idle::new(plan.wake_cost_ns, start_ns);
    let (mut number, mut held) = (0, None);
    loop {
        let now = now_ns();
        // A0, from R0; before the last look at the packets that came.
        let others_are_done = other_ended.is_none_or(|ended| ended.load(Ordering::Acquire));
        sender.advance(now);
        let mut moved = 0;
        while moved < BURST {
            let next = || {
                sender.take()?;
                plan.forward.spend();
                number += 1;
                Some(IfqPacket { input, number: number - 1 })
            };
            let Some(packet) = held.take().or_else(next) else { break };
            if let Err(packet) = side.transmit(packet, now) {
                held = Some(packet);
                break;
            }
            moved += 1;
        }
        moved += side.serve();
        if moved > 0 {
            idle.worked(now);
        } else if held.is_none() && sender.has_ended() && others_are_done {
            break;
        } else if held.is_none() {
            rest(&idle, &sender, &mut side, other_ended.is_some());
        }
    }
    pinned?;
    let seconds = (now_ns() - start_ns) as f64 / 1e9;
    let (counts, device) = side.finish();
    Ok(Ended { offered: sender.offered(), seconds, counts, device })
}

fn rest(idle: &Idle, sender: &Sender, side: &mut impl Side, expects: bool) {
    let now = now_ns();
    let until_ns = sender.due_ns().unwrap_or(now + LOOK_NS);
    match idle.rest(now, Some(until_ns), expects) {
        Rest::Spin => std::hint::spin_loop(),
        Rest::Park(_) => side.sleep(Duration::from_nanos(until_ns.saturating_sub(now_ns()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ifq::design::Costs;
    use crate::ifq::{locked, spin_dispatch, weir};
    use crate::machine::cores;

    /// Every packet is sent, or was dropped by a design that drops, at any speed.
    #[test]
    fn nothing_is_lost_but_what_a_full_queue_dropped() {
        let cores = cores().unwrap();
        let cores = [cores[0], *cores.last().unwrap()];
        let costs = Costs::none();
        for packets_per_s in [20e3, 20e6] {
            let plan = Plan {
                packets_per_s,
                duration_ns: 10_000_000,
                forward: Cost::of_ns(0),
                cores,
                wake_cost_ns: 10_000,
            };
            let outcomes = [
                run(&plan, locked::sides(costs)).unwrap(),
                run(&plan, spin_dispatch::sides(costs).unwrap()).unwrap(),
                weir::run(&plan, costs).unwrap(),
            ];
            for outcome in &outcomes {
                assert!(outcome.sent() > 0 && outcome.reordered == 0, "{outcome:?}");
                assert_eq!(outcome.offered, outcome.sent() + outcome.counts.dropped, "{outcome:?}");
            }
            assert_eq!(outcomes[2].counts.dropped, 0);
        }
    }
}
