//! What a program sent last and what has not left yet when it has ended.
//!
//! A send ends when the kernel has the data, so at the program's end packets may stand in front of Weir, held as always, and
//! closed TCP sockets may have more to say. Its network must not go before them.
//!
//! Rule: the network stays until nothing stands in front of Weir or in it and no closed TCP socket waits for an
//! acknowledgement. Children may go on sending, so the wait is bounded by twice the time that what stood there at the end
//! needs at the limit, and 2 s; it ends too when nothing was delivered for 2 s (or two packets' time, if that is more), when
//! the wire fails, and by a signal.
//!
//! Owner: the main thread. Source: the wire's own counters, the qdisc of the program's `eth0`, [`unsent`].
//!
//! Limits: packets that stand in the veth's ring, between the qdisc and Weir, are counted by nobody. While there are such, Weir
//! holds packets itself, so the end is two looks in a row at which all is empty and nothing moved; how many were lost is
//! what the qdisc has handed on or holds less what Weir took in. Segments that the kernel has not cut yet count as one.

use std::sync::Arc;
use std::time::Duration;

use weir_core::rate::Rate;
use weir_port::link::Link;
use weir_port::monitor::State;
use weir_port::netns::NetNs;
use weir_port::qdisc::RootQdisc;
use weir_port::signals::{SIGHUP, SIGINT, SIGTERM};
use weir_port::unsent::{self, Unsent};
use weir_run::clock::now_ns;
use weir_run::crew::Crew;
use weir_run::stats::Snapshot;
use weir_run::watcher::News;

use crate::human::{bytes, plural};
use crate::session::{Event, Session};
use crate::{Failure, output};

/// The longest frame that a program's interface sends.
const FRAME_BYTES: u64 = 1514;
const LOOK_EVERY: Duration = Duration::from_millis(10);
const SAID_AFTER_NS: u64 = 1_000_000_000;
const STALL_NS: u64 = 2_000_000_000;
/// Signals that end the wait.
const ENDING: [i32; 3] = [SIGINT, SIGTERM, SIGHUP];

/// What the network of a program still holds of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rest {
    /// Packets in the sender's qdisc.
    queued: u64,
    /// Packets in the ring between it and Weir.
    in_ring: u64,
    /// Packets inside Weir, which delivers them also when it ends.
    held: u64,
    /// What the wire has taken in from the program.
    accepted: u64,
    /// What it has delivered of that.
    delivered: u64,
    /// What closed TCP sockets have to send.
    tcp: Unsent,
}

/// Where a program's packets are looked for.
pub struct Watch<'a> {
    session: &'a Session,
    netns: &'a NetNs,
    qdisc: RootQdisc,
    /// What the qdisc had handed on, and Weir not taken in, before the program started: what was sent before Weir was there.
    apart: u32,
}

impl<'a> Watch<'a> {
    /// To be made before the program starts.
    pub fn new(session: &'a Session, netns: &'a NetNs) -> Result<Watch<'a>, Failure> {
        let eth0 = netns.run(|| Link::by_name("eth0"))?;
        let qdisc = RootQdisc::new(Arc::new(netns.try_clone()?), eth0.ifindex);
        let sent = qdisc.counters()?.sent;
        let snapshot = session.stat()?;
        let taken = snapshot.wires.first().and_then(|wire| wire.classes.first());
        let taken = taken.map_or(0, |class| class.books.accepted.packets);
        Ok(Watch { session, netns, qdisc, apart: sent.wrapping_sub(taken as u32) })
    }

    /// Looks again where a look fails, because a wire that takes its interface over cannot be asked just then; not once the
    /// wire is going down, and not after `until_ns`.
    fn look_until(&self, until_ns: u64) -> Option<Rest> {
        loop {
            match self.look() {
                Ok(rest) => return Some(rest),
                Err(error) if Crew::is_going_down(&error) || now_ns() >= until_ns => return None,
                Err(_) => std::thread::sleep(LOOK_EVERY),
            }
        }
    }

    fn look(&self) -> Result<Rest, String> {
        let snapshot = self.session.stat()?;
        let queue = self.qdisc.counters().map_err(|error| error.to_string())?;
        let tcp = unsent::by_closed_sockets(self.netns).map_err(|error| error.to_string())?;
        let there = snapshot.wires.first().and_then(|wire| wire.classes.first());
        let (Some(there), Some(port)) = (there, snapshot.ports.first()) else {
            return Err("nothing was counted".into());
        };
        let books = &there.books;
        let gone = books.accepted.packets + port.kernel_dropped + port.lost_while_down;
        let in_ring = queue.sent.wrapping_sub(self.apart).wrapping_sub(gone as u32);
        Ok(Rest {
            queued: queue.backlog,
            // Beyond that it is less than nothing.
            in_ring: if in_ring > u32::MAX / 2 { 0 } else { in_ring.into() },
            held: books.held.packets,
            accepted: books.accepted.packets,
            delivered: books.delivered.packets,
            tcp,
        })
    }
}

impl Rest {
    fn is_nothing(&self) -> bool {
        self.queued == 0 && self.held == 0 && self.tcp.sockets == 0
    }

    /// What was lost with the network, by the counters after its end: what went into Weir meanwhile was delivered.
    pub fn lost(&self, last: &Snapshot) -> (u64, Unsent) {
        let accepted = last.wires.first().and_then(|wire| wire.classes.first());
        let accepted = accepted.map_or(self.accepted, |class| class.books.accepted.packets);
        ((self.queued + self.in_ring).saturating_sub(accepted.saturating_sub(self.accepted)), self.tcp)
    }

    /// How long it takes at `rate`, each packet as long as can be.
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

/// Waits until what the program sent has left; what has not when the wait ends.
pub fn wait(watch: &Watch, limit: Rate) -> Rest {
    let session = watch.session;
    let rate = slowest(session, limit);
    let start_ns = now_ns();
    let Some(first) = watch.look_until(start_ns + STALL_NS) else { return Rest::default() };
    let bound_ns = first.needs_ns(rate).saturating_mul(2).saturating_add(STALL_NS);
    let stall_ns = STALL_NS.max(time_ns(2 * FRAME_BYTES, rate));
    let mut before = first;
    let mut moved_ns = start_ns;
    let mut said = false;
    loop {
        match session.next_event_within(LOOK_EVERY) {
            Some(Event::Signal(received)) if ENDING.contains(&received.signal) => {
                return watch.look().unwrap_or(before);
            }
            Some(Event::WorkerEnded | Event::News(News::Interface(_, State::Gone) | News::Ended(_))) => {
                return before;
            }
            _ => {}
        }
        let Some(now) = watch.look_until(now_ns() + STALL_NS) else { return before };
        if now.is_nothing() && before.is_nothing() && now.accepted == before.accepted {
            // Nobody has lost what is nowhere.
            return Rest { in_ring: 0, ..now };
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

/// The lowest limit that what the program sent may be under, its class's among them.
fn slowest(session: &Session, limit: Rate) -> u64 {
    let snapshot = session.stat().unwrap_or_default();
    let there = snapshot.wires.first().and_then(|wire| wire.classes.first());
    let own = there.and_then(|class| class.rate_bits_per_s).unwrap_or(limit.bits_per_s());
    let classes =
        there.into_iter().flat_map(|class| &class.classes).filter_map(|class| class.ceil_bits_per_s);
    classes.chain([own]).min().unwrap_or(own)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_needed_is_that_of_the_longest_packets() {
        let rest =
            Rest { queued: 99, held: 1, tcp: Unsent { sockets: 1, bytes: 100_000 }, ..Rest::default() };
        assert_eq!(rest.needs_ns(1_000_000), (100 * 1514 + 100_000) * 8_000);
        assert!(!rest.is_nothing());
        assert!(Rest::default().is_nothing());
    }
}
