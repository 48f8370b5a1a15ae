//! The systems and cases of IPsec of review D9721, by their names, and the figures that it published of them.
//!
//! Source of the figures: review D9721, its tables of five runs at 271 % of the rate that direct dispatch carried, and `netstat -Q`.

use weir_core::dispatch::protocol::Mode;
use weir_ipsec::algorithm::Algorithm;

/// The mode of ESP's sealing, and one of two rules for a full queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EspSystem {
    /// The mode, now or later.
    pub mode: Mode,
    /// True if a full queue drops, instead of holding its feeder.
    pub drops: bool,
}

impl EspSystem {
    /// All of them, in the order they take turns.
    pub const ALL: [EspSystem; 6] = [
        EspSystem { mode: Mode::Direct, drops: false },
        EspSystem { mode: Mode::Hybrid, drops: false },
        EspSystem { mode: Mode::Deferred, drops: false },
        EspSystem { mode: Mode::Direct, drops: true },
        EspSystem { mode: Mode::Hybrid, drops: true },
        EspSystem { mode: Mode::Deferred, drops: true },
    ];

    /// The name in reports and on the command line.
    pub fn name(self) -> String {
        format!("esp-{}{}", self.mode, if self.drops { "-drop" } else { "" })
    }
}

/// The cores that the workers run on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seating {
    /// A worker that receives and a worker that seals, each on a core of its own.
    TwoCores,
    /// Both on one core, as the scheduler will have it.
    OneCore,
    /// Both on one core, and the one that seals goes before the other.
    Priority,
    /// So many workers, and a generator for each, on two cores.
    Threads(usize),
}

impl Seating {
    /// The number of workers.
    pub fn workers(self) -> usize {
        match self {
            Seating::Threads(workers) => workers,
            _ => 2,
        }
    }

    /// The number of generators.
    pub fn generators(self) -> usize {
        match self {
            Seating::Threads(workers) => workers,
            _ => 1,
        }
    }
}

/// The packets that are sealed, the load, and the workers' seats.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EspCase {
    /// The name in reports and on the command line.
    pub name: &'static str,
    /// The cipher.
    pub algorithm: Algorithm,
    /// Length of the packets that are sealed, with an Ethernet header.
    pub size_bytes: u16,
    /// The load, in percent of the rate that sealing at once carries.
    pub load_pct: f64,
    /// True if the queue is 32 times longer.
    pub is_long: bool,
    /// The cores that the workers run on.
    pub seating: Seating,
    /// The number of tunnels, one in the other.
    pub tunnels: usize,
}

/// The shortest Ethernet frame, without its check sequence.
const SHORTEST: u16 = 60;
/// An IP packet of 1,420 bytes.
const LONGEST: u16 = 14 + 1420;
/// More than can be sealed.
const OVERLOAD_PCT: f64 = 150.0;
/// 1.488 Mpps against 0.549 Mpps.
const PUBLISHED_PCT: f64 = 271.0;

const SMALLEST: EspCase = EspCase {
    name: "null-64",
    algorithm: Algorithm::Null,
    size_bytes: SHORTEST,
    load_pct: OVERLOAD_PCT,
    is_long: false,
    seating: Seating::TwoCores,
    tunnels: 1,
};

impl EspCase {
    /// All of them, in the order they take turns.
    pub const ALL: [EspCase; 11] = [
        SMALLEST,
        EspCase { name: "null-64-long", is_long: true, ..SMALLEST },
        EspCase { name: "gcm-64", algorithm: Algorithm::Aes128Gcm, ..SMALLEST },
        EspCase { name: "gcm-1420", algorithm: Algorithm::Aes128Gcm, size_bytes: LONGEST, ..SMALLEST },
        EspCase { name: "null-64-271", load_pct: PUBLISHED_PCT, ..SMALLEST },
        EspCase { name: "null-64-one-core", seating: Seating::OneCore, ..SMALLEST },
        EspCase { name: "null-64-priority", seating: Seating::Priority, ..SMALLEST },
        EspCase { name: "null-64-maxthreads-1", seating: Seating::Threads(1), ..SMALLEST },
        EspCase { name: "null-64-maxthreads-4", seating: Seating::Threads(4), ..SMALLEST },
        EspCase { name: "nested-1", ..SMALLEST },
        EspCase { name: "nested-16", tunnels: 16, ..SMALLEST },
    ];

    /// The case of that name.
    pub fn from_name(name: &str) -> Option<EspCase> {
        EspCase::ALL.into_iter().find(|case| case.name == name)
    }

    /// Returns whether it is there for its stack, and so for systems that hold alone.
    pub fn is_nested(&self) -> bool {
        self.name.starts_with("nested")
    }

    /// Returns whether it is `other` but for the length of the queue.
    pub fn is_long_of(&self, other: &EspCase) -> bool {
        let short = EspCase { name: self.name, is_long: true, ..*other };
        self.is_long && !other.is_long && short == *self && !other.is_nested()
    }
}

/// The figures that the review published of a system in a case.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Published {
    /// Packets a second, in thousands.
    pub kpps: Option<f64>,
    /// Drops, in percent of the packets that came to the queue.
    pub dropped_pct: Option<f64>,
    /// The difference of its packets a second, in percent, and half of its confidence interval.
    pub diff_pct: Option<(f64, f64)>,
}

impl Published {
    /// The figures of a system in a case.
    pub fn of(system: EspSystem, case: &EspCase) -> Published {
        let queue = |kpps, dropped: u64, queued: u64, diff_pct| Published {
            kpps: Some(kpps),
            dropped_pct: Some(100.0 * dropped as f64 / (dropped + queued) as f64),
            diff_pct: Some(diff_pct),
        };
        match (system.mode, system.drops, case.name) {
            (Mode::Direct, true, "null-64-271") => Published { kpps: Some(548.8), ..Published::default() },
            (Mode::Deferred, true, "null-64-271") => {
                queue(426.5, 616_976_559, 221_804_972, (-22.2872, 1.74536))
            }
            (Mode::Deferred, true, "null-64-long") => queue(213.3, 87_097_837, 11_805_690, (-49.9804, 29.97)),
            _ => Published::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_cases_are_inverse_and_a_long_queue_has_its_short_one() {
        assert!(EspCase::ALL.iter().all(|case| EspCase::from_name(case.name) == Some(*case)));
        assert_eq!(EspSystem::ALL[5].name(), "esp-deferred-drop");
        let case = |name| EspCase::from_name(name).unwrap();
        let short: Vec<_> =
            EspCase::ALL.iter().filter(|short| case("null-64-long").is_long_of(short)).collect();
        assert_eq!(short, [&case("null-64")]);
        assert!(!case("null-64").is_long_of(&case("null-64")));
    }

    #[test]
    fn published_figures_are_those_of_its_tables() {
        let of =
            |system: usize, case| Published::of(EspSystem::ALL[system], &EspCase::from_name(case).unwrap());
        assert_eq!(of(0, "null-64-271"), Published::default(), "nobody was held there");
        let dropped_pct = of(5, "null-64-271").dropped_pct.unwrap();
        assert!((dropped_pct - 73.56).abs() < 0.01, "{dropped_pct}");
        assert_eq!(of(5, "null-64-long").diff_pct, Some((-49.9804, 29.97)));
    }
}
