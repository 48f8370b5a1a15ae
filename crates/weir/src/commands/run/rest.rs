//! The packets that a program sent last and that have not left yet when it has ended.
//!
//! A send ends when the kernel has the data, so at the program's end packets may wait for the limit, held as always, and
//! closed TCP sockets may have more to say. Its network must not go before them.
//!
//! Rule: the network stays until nothing waits for the limit and no closed TCP socket waits for an acknowledgement, by two looks in a row
//! between which nothing moved. Children may go on sending, so the wait is bounded by twice the time that the packets which stood there at
//! the end need at the limit, and 2 s; it ends too when nothing was delivered for 2 s (or two packets' time, if that is more), when the
//! network fails, and by a signal.
//!
//! Owner: the main thread. Source: the counters of the [`RunNetwork`], [`weir_port::unsent`].
//!
//! Limits: segments that the kernel has not cut yet count as one packet.

use std::time::Duration;

use weir_port::monitor::State;
use weir_port::signals::{SIGHUP, SIGINT, SIGTERM};
use weir_port::unsent::Unsent;
use weir_run::clock::now_ns;
use weir_run::watcher::News;

use super::way::{Blind, RunNetwork};
use crate::guarded::SessionEvent;
use crate::human::{bytes, plural};
use crate::output;

/// The longest frame that a program's interface sends.
const FRAME_BYTES: u64 = 1514;
const LOOK_EVERY: Duration = Duration::from_millis(10);
const SAID_AFTER_NS: u64 = 1_000_000_000;
const STALL_NS: u64 = 2_000_000_000;
/// Signals that end the wait.
const ENDING: [i32; 3] = [SIGINT, SIGTERM, SIGHUP];

/// The packets and bytes of a program that its network still holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Remainder {
    /// Packets in the sender's qdisc.
    pub queued: u64,
    /// Packets in the ring between it and Weir.
    pub in_ring: u64,
    /// Packets inside Weir, which delivers them also when it ends.
    pub held: u64,
    /// Packets that the wire has taken in from the program.
    pub accepted: u64,
    /// Packets of those that it has delivered.
    pub delivered: u64,
    /// Data that closed TCP sockets have to send.
    pub tcp: Unsent,
}

/// Looks again where a look fails, because a wire that takes its interface over cannot be asked just then; not once the
/// network is going down, and not after `until_ns`.
fn look_until(way: &dyn RunNetwork, until_ns: u64) -> Option<Remainder> {
    loop {
        match way.look() {
            Ok(rest) => return Some(rest),
            Err(Blind::ForGood) => return None,
            Err(Blind::ForNow) if now_ns() >= until_ns => return None,
            Err(Blind::ForNow) => std::thread::sleep(LOOK_EVERY),
        }
    }
}

impl Remainder {
    fn is_nothing(&self) -> bool {
        self.queued == 0 && self.held == 0 && self.tcp.sockets == 0
    }

    /// The packets and data that were lost with the network, if so many packets were taken in by its end: packets that came in meanwhile
    /// were delivered.
    pub fn lost(&self, accepted_last: u64) -> (u64, Unsent) {
        ((self.queued + self.in_ring).saturating_sub(accepted_last.saturating_sub(self.accepted)), self.tcp)
    }

    /// The time that these need at `rate`, in nanoseconds, each packet as long as can be.
    fn needs_ns(&self, rate: u64) -> u64 {
        time_ns(self.packets() * FRAME_BYTES + self.tcp.bytes, rate)
    }

    fn packets(&self) -> u64 {
        self.queued + self.in_ring + self.held
    }

    fn say(&self) {
        let packets = plural(self.packets(), "packet");
        let tcp = match self.tcp {
            Unsent { sockets: 0, .. } => String::new(),
            tcp => format!(", and for {} of TCP to be acknowledged", bytes(tcp.bytes)),
        };
        output::say(format_args!(
            "weir: CMD has ended; waiting for {packets} it sent{tcp} (Ctrl-C drops them)"
        ));
    }
}

fn time_ns(bytes: u64, rate_bits_per_s: u64) -> u64 {
    let ns = u128::from(bytes) * 8_000_000_000 / u128::from(rate_bits_per_s.max(1));
    u64::try_from(ns).unwrap_or(u64::MAX)
}

/// Waits until the packets of the program have left. Returns the remainder when the wait ends.
pub fn wait(way: &dyn RunNetwork) -> Remainder {
    let rate = way.slowest();
    let start_ns = now_ns();
    let Some(first) = look_until(way, start_ns + STALL_NS) else { return Remainder::default() };
    let bound_ns = first.needs_ns(rate).saturating_mul(2).saturating_add(STALL_NS);
    let stall_ns = STALL_NS.max(time_ns(2 * FRAME_BYTES, rate));
    let mut before = first;
    let mut moved_ns = start_ns;
    let mut said = false;
    loop {
        match way.guarded().next_event_within(LOOK_EVERY) {
            Some(SessionEvent::Signal(received)) if ENDING.contains(&received.signal) => {
                return way.look().unwrap_or(before);
            }
            Some(
                SessionEvent::WorkerEnded
                | SessionEvent::News(News::Interface(_, State::Gone) | News::Ended(_)),
            ) => {
                return before;
            }
            _ => {}
        }
        let Some(now) = look_until(way, now_ns() + STALL_NS) else { return before };
        if now.is_nothing() && before.is_nothing() && now.accepted == before.accepted {
            // With nothing queued and nothing held, nothing is in the ring either.
            return Remainder { in_ring: 0, ..now };
        }
        let time_ns = now_ns();
        if now.delivered != before.delivered {
            moved_ns = time_ns;
        }
        if time_ns - start_ns > bound_ns || time_ns - moved_ns > stall_ns {
            return now;
        }
        if !said && time_ns - start_ns > SAID_AFTER_NS {
            now.say();
            said = true;
        }
        before = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_needed_is_that_of_the_longest_packets() {
        let rest = Remainder {
            queued: 99,
            held: 1,
            tcp: Unsent { sockets: 1, bytes: 100_000 },
            ..Remainder::default()
        };
        assert_eq!(rest.needs_ns(1_000_000), (100 * 1514 + 100_000) * 8_000);
        assert!(!rest.is_nothing());
        assert!(Remainder::default().is_nothing());
    }
}
