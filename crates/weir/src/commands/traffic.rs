//! The parts that `weir gen` and `weir sink` share: taking an interface over for a while, the line a second, and counts in words.

use std::io::IsTerminal;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use serde_json::{Value, json};
use weir_core::drops::{Count, DropCounts, DropReason};
use weir_path::traffic::sequence::SequenceCounts;
use weir_port::signals::{SIGHUP, SIGINT, SIGTERM, SIGTSTP, Signals};
use weir_port::undo::Keeper;
use weir_run::guardian::Trouble;

use crate::guarded::{Namespaces, confine, explain, give_up, guardian, say_unstoppable, spawn};
use crate::{Failure, human, output};

/// Does something with an interface until `stop`; the interface is put back in any case.
pub fn with_interface<T>(
    stop: &Stop,
    work: impl FnOnce(&mut dyn Keeper) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let mut guardian = guardian(Namespaces::Others)?;
    confine();
    if let Some(watch) = guardian.watch() {
        let stop = stop.clone();
        spawn("weir-guard", move || {
            let _ = stop.trouble.set(watch.wait());
            stop.now.store(true, Ordering::Relaxed);
        })?;
    }
    match work(&mut guardian) {
        Ok(done) => {
            let why = stop.trouble.get().map(|trouble| explain(*trouble, &guardian));
            let faults = guardian.finish();
            match why.or_else(|| faults.first().map(|fault| format!("while putting things back: {fault}"))) {
                None => Ok(done),
                Some(why) => Err(why.into()),
            }
        }
        Err(failure) => Err(give_up(guardian, failure)),
    }
}

/// The failure that is said last if the interface has vanished.
pub fn vanished(interface: &str, what: &str) -> Failure {
    format!("interface {interface} vanished: {what}").into()
}

/// The order to end the command, and its reason if it is no request.
#[derive(Clone, Default)]
pub struct Stop {
    now: Arc<AtomicBool>,
    trouble: Arc<OnceLock<Trouble>>,
}

/// A line a second on a terminal, as pkt-gen prints it, until a signal comes.
pub struct Ticker {
    stop: Stop,
    prints: bool,
    times: Times,
    printed_ns: u64,
    printed: Count,
    fault: Option<Failure>,
}

/// The times of a run.
#[derive(Clone, Copy, Default)]
pub struct Times {
    /// The time from the start to the end, in nanoseconds.
    pub elapsed_ns: u64,
    /// The time from the first packet to the last, in nanoseconds, as far as ticks tell.
    pub active_ns: u64,
    /// The time when the first packet had not come yet, in nanoseconds since the start.
    idle_ns: Option<u64>,
    seen: Count,
}

impl Times {
    fn note(&mut self, elapsed_ns: u64, count: Count) {
        if count != self.seen {
            // The packets came after the tick before.
            let idle_ns = *self.idle_ns.get_or_insert(self.elapsed_ns);
            self.active_ns = elapsed_ns - idle_ns;
            self.seen = count;
        }
        self.elapsed_ns = elapsed_ns;
    }
}

const SECOND_NS: u64 = 1_000_000_000;

impl Ticker {
    /// Catches signals from now on.
    pub fn new(as_json: bool) -> Result<Ticker, Failure> {
        let stop = Stop::default();
        // First of all: every thread must block them.
        let signals = Signals::block(&[SIGINT, SIGTERM, SIGHUP, SIGTSTP])?;
        output::hurry(true);
        let told = Arc::clone(&stop.now);
        spawn("weir-signals", move || {
            while let Ok(received) = signals.wait() {
                match received.signal {
                    SIGTSTP => say_unstoppable(),
                    _ => told.store(true, Ordering::Relaxed),
                }
            }
        })?;
        let prints = !as_json && std::io::stdout().is_terminal();
        Ok(Ticker {
            stop,
            prints,
            times: Times::default(),
            printed_ns: 0,
            printed: Count::default(),
            fault: None,
        })
    }

    /// The stop that ends it.
    pub fn stop(&self) -> Stop {
        self.stop.clone()
    }

    /// Notes the progress; false if it is to end.
    pub fn tick(&mut self, elapsed_ns: u64, count: Count) -> bool {
        self.times.note(elapsed_ns, count);
        if self.prints && elapsed_ns - self.printed_ns >= SECOND_NS {
            let new = Count {
                packets: count.packets - self.printed.packets,
                bytes: count.bytes - self.printed.bytes,
            };
            let speed = speed(new, elapsed_ns - self.printed_ns);
            self.fault = output::print_line(format_args!("{:>5} s  {speed}", elapsed_ns / SECOND_NS)).err();
            (self.printed_ns, self.printed) = (elapsed_ns, count);
        }
        !self.stop.now.load(Ordering::Relaxed) && self.fault.is_none()
    }

    /// The times of the run, unless its lines could not be printed.
    pub fn finish(self) -> Result<Times, Failure> {
        self.fault.map_or(Ok(self.times), Err)
    }
}

/// Numbered packets that are missing, came twice or came out of order.
pub fn faults(seen: &SequenceCounts) -> u64 {
    seen.missing + seen.duplicated + seen.reordered
}

/// The sequence counts of a sink, as JSON.
pub fn sequences_json(seen: &SequenceCounts) -> Value {
    json!({
        "numbered": seen.numbered,
        "unnumbered": seen.unnumbered,
        "missing": seen.missing,
        "duplicated": seen.duplicated,
        "reordered": seen.reordered,
    })
}

/// `1.50 Mpps, 1.20 Gbit/s`.
pub fn speed(count: Count, elapsed_ns: u64) -> String {
    format!("{}, {}", human::packet_rate(count.packets, elapsed_ns), human::bit_rate(count.bytes, elapsed_ns))
}

/// The sequence counts of a sink, in words.
pub fn order(seen: &SequenceCounts) -> String {
    format!(
        "missing {}, duplicated {}, reordered {}",
        human::count(seen.missing),
        human::count(seen.duplicated),
        human::count(seen.reordered)
    )
}

/// Millions of packets a second.
pub fn mpps(packets: u64, elapsed_ns: u64) -> f64 {
    packets as f64 * 1e3 / elapsed_ns.max(1) as f64
}

/// Packets dropped, a line a reason.
pub fn dropped_text(dropped: &DropCounts) -> String {
    let line = |(reason, count): (DropReason, Count)| {
        format!("dropped {}: {}\n", reason.name(), human::count(count.packets))
    };
    dropped.occurred().map(line).collect()
}

/// Packets dropped, by reason.
pub fn dropped_json(dropped: &DropCounts) -> Value {
    dropped.occurred().map(|(reason, count)| (reason.name().to_string(), json!(count.packets))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_time_before_the_first_packet_and_after_the_last_is_told_apart() {
        let mut times = Times::default();
        for (elapsed_ns, packets) in [(5, 0), (10, 0), (12, 1), (15, 1), (17, 3), (30, 3)] {
            times.note(elapsed_ns, Count { packets, bytes: 0 });
        }
        assert_eq!((times.elapsed_ns, times.active_ns), (30, 7), "from 10 to 17");
    }

    #[test]
    fn speeds_and_faults_in_words() {
        let count = Count { packets: 3_000_000, bytes: 300_000_000 };
        assert_eq!(speed(count, 2_000_000_000), "1.50 Mpps, 1.20 Gbit/s");
        let seen = SequenceCounts { missing: 1234, reordered: 2, ..SequenceCounts::default() };
        assert_eq!(order(&seen), "missing 1,234, duplicated 0, reordered 2");
    }
}
