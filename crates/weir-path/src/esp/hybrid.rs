//! The choice of hybrid dispatch where there are sealers: under load the home alone seals and opens, or its sealers do, whichever takes
//! less time for a packet.
//!
//! ```text
//! not loaded  the home, at once
//! loaded      the best way, 100 ms | trial of the other, 1,024 packets | the best way, 100 ms | trial ...
//! ```
//!
//! Rule: the stage is loaded if it was busy in the pass before, so that packets which come now have waited. A window is the time of
//! passes under load in which [`WINDOW_PACKETS`] were done, and the time of a way is the median of its last windows. The way in use
//! is measured all the time, the other in trials. The other takes its place when its time is a sixteenth less. The first window of
//! a way in use does not count, because the packets before it went the other way.
//!
//! A median and no average: a window in which another program had the processor takes ten times as long, and the way that is not in use
//! would be rid of it only after a second of trials. A choice that was luck is soon undone, for the way in use fills its windows within
//! some milliseconds.
//!
//! Pure: the caller tells the time and the packets. Limits: a stage chooses for its sides and associations together; a way that becomes
//! the better one is seen in half of [`WINDOWS_KEPT`] trials.

/// The packets of a window.
const WINDOW_PACKETS: u64 = 512;
/// The windows of a way that are remembered.
const WINDOWS_KEPT: usize = 9;
/// The time from the end of a trial to the next, in nanoseconds.
const TRIAL_EVERY_NS: u64 = 100_000_000;

/// The way in which packets are sealed and opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum SealingWay {
    /// The home does it itself.
    #[default]
    Home,
    /// The home gives them to its sealers.
    Sealers,
}

impl SealingWay {
    fn other(self) -> SealingWay {
        match self {
            SealingWay::Home => SealingWay::Sealers,
            SealingWay::Sealers => SealingWay::Home,
        }
    }
}

/// The times of a way for a packet in its last windows, the newest first, in picoseconds; none for a window that is still to come.
#[derive(Debug, Default)]
struct Times([Option<u64>; WINDOWS_KEPT]);

impl Times {
    fn note(&mut self, packet_ps: u64) {
        self.0.rotate_right(1);
        self.0[0] = Some(packet_ps);
    }

    fn median(&self) -> Option<u64> {
        let mut sorted = self.0;
        sorted.sort_unstable();
        // Those to come are first.
        let to_come = sorted.iter().filter(|time| time.is_none()).count();
        sorted[(to_come + WINDOWS_KEPT - 1) / 2]
    }
}

/// A pass of the home's worker.
#[derive(Debug, Default)]
struct HomePass {
    begin_ns: u64,
    /// The packets that were done in it.
    packets: u64,
    /// True if the home was busy in it: packets came, or were with sealers.
    is_busy: bool,
    /// True if the home was busy in the pass before, too.
    is_loaded: bool,
}

/// The time and the packets of passes under load.
#[derive(Debug, Default)]
struct Window {
    time_ns: u64,
    packets: u64,
}

/// The choice between the home and its sealers.
#[derive(Debug, Default)]
pub(super) struct Hybrid {
    best: SealingWay,
    /// True while the other way is tried.
    is_trying: bool,
    /// True in the first window of a way in use.
    is_settling: bool,
    times: [Times; 2],
    window: Window,
    pass: HomePass,
    /// The end of the last trial.
    tried_ns: u64,
}

impl Hybrid {
    /// The way to go under load.
    #[inline]
    pub(super) fn way(&self) -> SealingWay {
        if self.is_trying { self.best.other() } else { self.best }
    }

    /// Returns whether the home was busy in the pass before, so that packets which come now have waited for it.
    #[inline]
    pub(super) fn was_busy(&self) -> bool {
        self.pass.is_busy
    }

    /// Notes a pass: the time when it began, the packets that were done in it, and whether the home was busy. It lasts until the next one
    /// begins.
    #[inline]
    pub(super) fn note_pass(&mut self, begin_ns: u64, packets: u64, is_busy: bool) {
        let is_loaded = is_busy && self.pass.is_busy;
        let before = std::mem::replace(&mut self.pass, HomePass { begin_ns, packets, is_busy, is_loaded });
        if before.is_loaded {
            self.window.time_ns += begin_ns - before.begin_ns;
            self.window.packets += before.packets;
            if self.window.packets >= WINDOW_PACKETS {
                self.end_window(begin_ns);
            }
        }
    }

    /// Notes the time of a window that is full, and chooses the way of the next.
    fn end_window(&mut self, now_ns: u64) {
        let Window { time_ns, packets } = std::mem::take(&mut self.window);
        if std::mem::take(&mut self.is_settling) {
            return;
        }
        let way = self.way();
        self.times[way as usize].note(time_ns.saturating_mul(1000) / packets);
        let was_trying = std::mem::take(&mut self.is_trying);
        if was_trying {
            self.tried_ns = now_ns;
        }
        let time_of = |way: SealingWay| self.times[way as usize].median();
        match (time_of(self.best), time_of(self.best.other())) {
            (Some(best), Some(other)) if other < best - best / 16 => self.best = self.best.other(),
            (_, None) => self.is_trying = true,
            _ => self.is_trying = !was_trying && now_ns - self.tried_ns >= TRIAL_EVERY_NS,
        }
        self.is_settling = self.way() != way;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const PASS_PACKETS: u64 = 64;

    /// A home under load whose ways take so many nanoseconds for a packet.
    #[derive(Default)]
    struct Bench {
        hybrid: Hybrid,
        now_ns: u64,
        done: [u64; 2],
        passes: u64,
        trials: u64,
    }

    impl Bench {
        /// Makes passes for a while; every `slow_every`th takes 5 ms more. Returns the packets that went each way.
        fn run(&mut self, for_ns: u64, packet_ns: [u64; 2], slow_every: u64) -> [u64; 2] {
            let (until_ns, before) = (self.now_ns + for_ns, self.done);
            while self.now_ns < until_ns {
                let (way, was_trying) = (self.hybrid.way(), self.hybrid.is_trying);
                self.hybrid.note_pass(self.now_ns, PASS_PACKETS, true);
                self.trials += u64::from(self.hybrid.is_trying && !was_trying);
                self.done[way as usize] += PASS_PACKETS;
                self.passes += 1;
                self.now_ns += PASS_PACKETS * packet_ns[way as usize];
                if self.passes.is_multiple_of(slow_every) {
                    self.now_ns += 5 * MS;
                }
            }
            [0, 1].map(|way| self.done[way] - before[way])
        }
    }

    #[test]
    fn settles_on_the_cheaper_way_and_tries_the_other_rarely() {
        for (packet_ns, cheaper) in [([500, 1_000], 0), ([1_000, 500], 1), ([500, 510], 0)] {
            let mut bench = Bench::default();
            let done = bench.run(2_000 * MS, packet_ns, u64::MAX);
            let other_ns = done[1 - cheaper] * packet_ns[1 - cheaper];
            assert!(other_ns < 2_000 * MS * 3 / 200, "{packet_ns:?}: {done:?}");
            assert!((19..=20).contains(&bench.trials), "{packet_ns:?}: {} trials", bench.trials);
        }
    }

    #[test]
    fn changes_over_with_the_costs() {
        let mut bench = Bench::default();
        for (packet_ns, cheaper) in [([500, 900], 0), ([500, 300], 1), ([500, 5_000], 0), ([900, 600], 1)] {
            bench.run(600 * MS, packet_ns, u64::MAX);
            let done = bench.run(400 * MS, packet_ns, u64::MAX);
            assert!(done[cheaper] > 20 * done[1 - cheaper], "{packet_ns:?}: {done:?}");
        }
    }

    /// The way in use is measured all the time, so it is left at once when it is dear.
    #[test]
    fn leaves_a_way_that_becomes_dear_within_milliseconds() {
        let mut bench = Bench::default();
        bench.run(500 * MS, [500, 300], u64::MAX);
        assert_eq!(bench.hybrid.best, SealingWay::Sealers);
        bench.run(10 * MS, [500, 900], u64::MAX);
        assert_eq!(bench.hybrid.best, SealingWay::Home);
    }

    /// Another program takes the processor for 5 ms, four times in a window or once in some.
    #[test]
    fn stays_where_it_is_while_others_have_the_processor() {
        for slow_every in [20, 100, 1_000] {
            let mut bench = Bench::default();
            let done = bench.run(5_000 * MS, [500, 650], slow_every);
            assert!(done[0] > 10 * done[1], "every {slow_every}: {done:?}");
        }
    }

    #[test]
    fn tries_nothing_without_load() {
        let mut hybrid = Hybrid::default();
        for pass in 0..100_000 {
            hybrid.note_pass(pass * 10_000, PASS_PACKETS * ((pass + 1) % 2), pass % 2 == 0);
            assert!(hybrid.way() == SealingWay::Home && hybrid.times[0].median().is_none());
        }
    }
}
