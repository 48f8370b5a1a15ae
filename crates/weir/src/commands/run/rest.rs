//! The packets that a program sent last and that have not left yet when it has ended.
//!
//! A send ends when the kernel has the data, so at the program's end packets may wait for the limit, held as always, and
//! closed TCP sockets may have more to say. Its network must not go before them.
//!
//! Rule: the network stays until nothing waits for the limit and no closed TCP socket waits for an acknowledgement, by two looks in a row
//! between which nothing moved. Children may go on sending, so the wait is bounded by twice the time that the bytes which stood there at
//! the end need at the limit, and the time of a stall: 2 s, or two of the longest packets' time if that is more. It ends too when nothing
//! was delivered for the time of a stall, when the network fails, and by a signal or `weir down`. Peers of closed TCP sockets have more time:
//! while nothing else is waited for it is no stall, the wait is longer by that time, [`PEERS_NS`] at most, and it ends when they have taken
//! nothing for [`PEERS_NS`]. A terminal's Ctrl-Z does not suspend it; as that stops children of the program too, they are continued. A packet
//! may be of many segments that the kernel has not cut yet; once it has left, the limit delivers nothing until its time is over.
//!
//! Owner: the main thread. Source: the counters of the [`RunNetwork`], [`weir_port::unsent`].
//!
//! Limits: segments that the kernel has not cut yet are said as one packet.

use std::time::Duration;

use weir_port::monitor::State;
use weir_port::process;
use weir_port::signals::{Received, SIGHUP, SIGINT, SIGTERM, SIGTSTP};
use weir_port::unsent::Unsent;
use weir_run::clock::now_ns;
use weir_run::watcher::News;

use super::way::{Blind, RunNetwork, Totals};
use crate::guarded::SessionEvent;
use crate::human::{bytes, plural};
use crate::output;

const LOOK_EVERY: Duration = Duration::from_millis(10);
const SAID_AFTER_NS: u64 = 1_000_000_000;
const STALL_NS: u64 = 2_000_000_000;
/// The longest time for which nothing but peers of closed TCP sockets is waited for while they take nothing, in nanoseconds; a wait is
/// longer by so much at most where they are slow.
const PEERS_NS: u64 = 60_000_000_000;
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
    /// The bytes of all these packets, at most.
    pub bytes: u64,
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

    /// Returns whether peers alone are waited for, which have to take data or acknowledge them.
    fn is_with_peers(&self) -> bool {
        self.queued == 0 && self.held == 0 && self.tcp.sockets > 0
    }

    /// The packets that were lost with the network: those that waited at its end, or if nobody looked then, those that stood here less those
    /// that were taken in since. Where nothing was left to wait for, whatever came later is not counted.
    pub fn lost(&self, totals: &Totals) -> u64 {
        match totals.waiting {
            Some(waiting) if !self.is_nothing() => waiting,
            _ => (self.queued + self.in_ring).saturating_sub(totals.accepted.saturating_sub(self.accepted)),
        }
    }

    fn packets(&self) -> u64 {
        self.queued + self.in_ring + self.held
    }

    /// The packets and bytes that are waited for, in words; `None` if there are none any more.
    fn awaited(&self) -> Option<String> {
        let packets = (self.packets() > 0).then(|| format!("{} it sent", plural(self.packets(), "packet")));
        let tcp =
            (self.tcp.sockets > 0).then(|| format!("{} of TCP to be acknowledged", bytes(self.tcp.bytes)));
        [packets, tcp].into_iter().flatten().reduce(|packets, tcp| format!("{packets}, and for {tcp}"))
    }
}

/// The bounds of a wait, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Bounds {
    /// The longest wait.
    wait_ns: u64,
    /// The longest time in it without a delivery.
    stall_ns: u64,
}

impl Bounds {
    /// The bounds for what stands there `first`, at a rate in bits per second, with packets of `packet_bytes_max` bytes at most.
    fn of(first: &Remainder, rate: u64, packet_bytes_max: u64) -> Bounds {
        let stall_ns = STALL_NS.max(time_ns(packet_bytes_max.saturating_mul(2), rate));
        let needs_ns = time_ns(first.bytes.saturating_add(first.tcp.bytes), rate);
        // The time of a stall is also for a packet that left just before.
        Bounds { wait_ns: needs_ns.saturating_mul(2).saturating_add(stall_ns), stall_ns }
    }
}

fn time_ns(bytes: u64, rate_bits_per_s: u64) -> u64 {
    let ns = u128::from(bytes) * 8_000_000_000 / u128::from(rate_bits_per_s.max(1));
    u64::try_from(ns).unwrap_or(u64::MAX)
}

/// The times of a wait so far, in nanoseconds.
#[derive(Clone, Copy, Debug)]
struct Times {
    start_ns: u64,
    looked_ns: u64,
    /// The time when something was delivered, or was with peers alone.
    moved_ns: u64,
    /// The time in which peers alone were waited for.
    peers_ns: u64,
    /// The part of that since TCP had less to send than ever before.
    silent_ns: u64,
    tcp_bytes_min: u64,
}

impl Times {
    fn new(start_ns: u64, first: &Remainder) -> Times {
        let tcp_bytes_min = first.tcp.bytes;
        Times { start_ns, looked_ns: start_ns, moved_ns: start_ns, peers_ns: 0, silent_ns: 0, tcp_bytes_min }
    }

    /// Notes a look. Returns whether the wait is over.
    fn note(&mut self, before: &Remainder, now: &Remainder, time_ns: u64, bounds: &Bounds) -> bool {
        if now.tcp.bytes < self.tcp_bytes_min {
            (self.tcp_bytes_min, self.silent_ns) = (now.tcp.bytes, 0);
        }
        if now.is_with_peers() {
            self.peers_ns += time_ns - self.looked_ns;
            self.silent_ns += time_ns - self.looked_ns;
        }
        self.looked_ns = time_ns;
        if now.delivered != before.delivered || now.is_with_peers() {
            self.moved_ns = time_ns;
        }
        time_ns - self.start_ns - self.peers_ns.min(PEERS_NS) > bounds.wait_ns
            || time_ns - self.moved_ns > bounds.stall_ns
            || self.silent_ns > PEERS_NS
    }
}

/// Returns whether somebody does not want to wait any longer.
fn asks_to_end(event: &SessionEvent) -> bool {
    match event {
        SessionEvent::AskedToEnd => true,
        SessionEvent::Signal(received) => ENDING.contains(&received.signal),
        _ => false,
    }
}

/// Waits until the packets of the program have left. Returns the remainder when the wait ends. The first signal of number `late` does not end
/// it, unless it has been said by then that somebody waits.
pub fn wait(way: &dyn RunNetwork, mut late: Option<i32>) -> Remainder {
    let start_ns = now_ns();
    let Some(first) = look_until(way, start_ns + STALL_NS) else { return Remainder::default() };
    let bounds = Bounds::of(&first, way.slowest(), way.packet_bytes_max());
    let mut before = first;
    let mut times = Times::new(start_ns, &first);
    let mut said = false;
    loop {
        match way.guarded().next_event_within(LOOK_EVERY) {
            Some(SessionEvent::Signal(received)) if late == Some(received.signal) && !said => late = None,
            Some(event) if asks_to_end(&event) => return way.look().unwrap_or(before),
            Some(
                SessionEvent::WorkerEnded
                | SessionEvent::News(News::Interface(_, State::Gone) | News::Ended(_)),
            ) => {
                return before;
            }
            Some(SessionEvent::Signal(Received { signal: SIGTSTP, .. })) => {
                output::say(
                    "weir: the wait for what CMD sent cannot be suspended (Ctrl-Z): Ctrl-C drops that",
                );
                process::continue_group();
            }
            _ => {}
        }
        let Some(now) = look_until(way, now_ns() + STALL_NS) else { return before };
        if now.is_nothing() && before.is_nothing() && now.accepted == before.accepted {
            // With nothing queued and nothing held, nothing is in the ring either.
            return Remainder { in_ring: 0, ..now };
        }
        let time_ns = now_ns();
        if times.note(&before, &now, time_ns, &bounds) {
            return now;
        }
        if !said
            && time_ns - start_ns > SAID_AFTER_NS
            && let Some(awaited) = now.awaited()
        {
            output::say(format_args!("weir: CMD has ended; waiting for {awaited} (Ctrl-C drops that)"));
            said = true;
        }
        before = now;
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::ffi::{OsStr, OsString};
    use std::path::Path;

    use weir_port::netns::NetNs;
    use weir_port::process::{Process, Turn};
    use weir_run::guardian::Guardian;

    use super::super::end_of;
    use super::*;
    use crate::Failure;
    use crate::guarded::Guarded;

    /// A network from which a packet has not left until it was looked at some times.
    struct Slow {
        guarded: Guarded,
        netns: NetNs,
        looks: Cell<u64>,
    }

    impl Slow {
        fn new() -> Slow {
            // It is asked for nothing, so that any program will do.
            let guardian = Guardian::start(Path::new("/bin/true"), false, |_| ()).unwrap();
            let guarded = Guarded::start(guardian, &[]).map_err(|failure| failure.message).unwrap();
            output::hurry(false);
            Slow { guarded, netns: NetNs::current().unwrap(), looks: Cell::new(0) }
        }
    }

    impl RunNetwork for Slow {
        fn guarded(&self) -> &Guarded {
            &self.guarded
        }

        fn netns(&self) -> &NetNs {
            &self.netns
        }

        fn look(&self) -> Result<Remainder, Blind> {
            let looks = self.looks.replace(self.looks.get() + 1);
            Ok(Remainder { queued: u64::from(looks < 5), delivered: looks, ..Remainder::default() })
        }

        fn slowest(&self) -> u64 {
            1
        }

        fn packet_bytes_max(&self) -> u64 {
            1
        }

        fn must_go_on(&self) -> Option<&'static str> {
            None
        }

        fn finish(self: Box<Self>) -> Result<Totals, Failure> {
            Ok(Totals::default())
        }
    }

    /// The packets that have not left at the end of the wait for a script, where these signals are told before its end and after it.
    fn left_of(script: &str, [before, after]: [&[i32]; 2]) -> u64 {
        let way = Slow::new();
        let arguments = ["-c", script].map(OsString::from);
        let process = Process::start(OsStr::new("sh"), &arguments, &way.netns, None).unwrap();
        assert_eq!(process.waiter().wait(), Turn::Ended);
        let events = way.guarded.events();
        let tell = |signals: &[i32]| {
            for &signal in signals {
                let received = Received { signal, by_kernel: false };
                events.send(SessionEvent::Signal(received)).unwrap();
            }
        };
        tell(before);
        events.send(SessionEvent::ProgramEnded).unwrap();
        tell(after);
        end_of(&way, process).map_err(|failure| failure.message).unwrap().1.queued
    }

    #[test]
    fn the_signal_that_ended_the_program_does_not_end_the_wait() {
        if !weir_port::sys::is_root() {
            return;
        }
        const KILLED: &str = "kill -TERM $$";
        assert_eq!(left_of(KILLED, [&[], &[SIGTERM]]), 0, "told late");
        assert_eq!(left_of("exit 143", [&[], &[SIGTERM]]), 0, "of a shell that tells of its program");
        assert_eq!(left_of(KILLED, [&[], &[SIGTERM, SIGTERM]]), 1, "again");
        assert_eq!(left_of(KILLED, [&[SIGTERM], &[SIGTERM]]), 1, "another");
        assert_eq!(left_of(KILLED, [&[], &[SIGINT]]), 1, "of another number");
        assert_eq!(left_of("exit 0", [&[], &[SIGTERM]]), 1, "the program ended by itself");
    }

    #[test]
    fn peers_get_a_minute_while_they_take_nothing_and_all_of_the_wait_while_they_do() {
        const SECOND_NS: u64 = 1_000_000_000;
        let bounds = Bounds { wait_ns: 122 * SECOND_NS, stall_ns: STALL_NS };
        let stands = |bytes| Remainder { tcp: Unsent { sockets: 1, bytes }, ..Remainder::default() };
        let ends = |bytes_at: fn(u64) -> u64| {
            let mut times = Times::new(0, &stands(bytes_at(0)));
            let is_over = |second: &u64| {
                let [before, now] = [second - 1, *second].map(|second| stands(bytes_at(second)));
                times.note(&before, &now, second * SECOND_NS, &bounds)
            };
            (1..1000).find(is_over)
        };
        assert_eq!(ends(|_| 1_500_000), Some(61), "nothing is taken");
        assert_eq!(
            ends(|second| 1_500_000 - 1000 * second),
            Some(183),
            "twice the time that is needed, and a minute"
        );
        assert_eq!(
            ends(|second| 1_500_000 - 1000 * second.min(100)),
            Some(160),
            "a minute since the last that was taken"
        );
    }

    #[test]
    fn what_is_waited_for_is_told_without_the_part_that_is_nothing() {
        let awaited = |queued, tcp| Remainder { queued, tcp, ..Remainder::default() }.awaited();
        let tcp = Unsent { sockets: 1, bytes: 55_700 };
        assert_eq!(awaited(2, Unsent::default()).unwrap(), "2 packets it sent");
        assert_eq!(awaited(0, tcp).unwrap(), "55.7 kB of TCP to be acknowledged");
        assert_eq!(awaited(1, tcp).unwrap(), "1 packet it sent, and for 55.7 kB of TCP to be acknowledged");
        assert_eq!(awaited(0, Unsent::default()), None);
    }

    #[test]
    fn the_bounds_are_those_of_the_bytes_and_of_two_longest_packets() {
        let rest = Remainder {
            queued: 5,
            bytes: 288_000,
            tcp: Unsent { sockets: 1, bytes: 12_000 },
            ..Remainder::default()
        };
        let packet_bytes_max = 65_536;
        let slow = Bounds::of(&rest, 80_000, packet_bytes_max);
        assert_eq!(slow.stall_ns, 2 * 65_536 * 100_000, "two packets at 10 kB/s");
        assert_eq!(slow.wait_ns, 2 * 300_000 * 100_000 + slow.stall_ns);
        let fast = Bounds::of(&rest, 8_000_000, packet_bytes_max);
        assert_eq!(fast, Bounds { wait_ns: 2 * 300_000 * 1_000 + STALL_NS, stall_ns: STALL_NS });
        assert!(!rest.is_nothing());
        assert!(Remainder::default().is_nothing());
    }
}
