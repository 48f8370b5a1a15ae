//! The events to come, and their order: all of it drawn from a seed before anything runs.
//!
//! A *deck* is every event there is, once: each kind, at each end of the two pairs where the end matters. A plan is as many decks as
//! are asked for, each shuffled, so that one deck already tries everything and a seed repeats it.
//!
//! Owner: the plan is a value; drawing it needs no clock and no system call.

use std::fmt;

use anyhow::{Result, bail};

use crate::raw::Random;

/// One of the four ends of the two pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum At {
    /// The left host's.
    Left,
    /// The wire's, in front of the left host.
    A,
    /// The wire's, in front of the right host.
    B,
    /// The right host's.
    Right,
}

impl At {
    /// All four.
    pub const ALL: [At; 4] = [At::Left, At::A, At::B, At::Right];

    /// Returns whether it is a host's and not the wire's own.
    pub fn is_of_host(self) -> bool {
        matches!(self, At::Left | At::Right)
    }
}

/// The thing that is done to the wire or its interfaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `kill -9` of the daemon, and a new one at once.
    KillDaemon,
    /// `kill -9` of the guardian.
    KillGuardian,
    /// Both, and a new wire at once.
    KillBoth,
    /// An end goes down and comes up.
    DownUp,
    /// An end gets another name, and again the old one.
    Rename,
    /// An end goes to another namespace, and back.
    Move,
    /// `ethtool -K DEV tx on`.
    Checksums,
    /// `ethtool -K DEV gro on`, and off.
    Gro,
    /// `ethtool -L DEV`: two queues, and one again.
    Queues,
    /// `tc qdisc replace`, by a short queue that drops.
    Qdisc,
    /// Another MTU, and the old one again.
    Mtu,
    /// `nft flush ruleset` in all three namespaces.
    Ruleset,
    /// SIGSTOP of the daemon, and SIGCONT.
    StopDaemon,
    /// SIGSTOP of the guardian, and SIGCONT.
    StopGuardian,
    /// No room for a byte or a file under `/run/weir`.
    FullRun,
    /// No process id to be had: a wire that is started is refused, and one that is killed is undone all the same.
    NoProcessIds,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 16] = [
        Kind::KillDaemon,
        Kind::KillGuardian,
        Kind::KillBoth,
        Kind::DownUp,
        Kind::Rename,
        Kind::Move,
        Kind::Checksums,
        Kind::Gro,
        Kind::Queues,
        Kind::Qdisc,
        Kind::Mtu,
        Kind::Ruleset,
        Kind::StopDaemon,
        Kind::StopGuardian,
        Kind::FullRun,
        Kind::NoProcessIds,
    ];

    /// Its name, as `WEIR_CHAOS_EVENTS` has it.
    pub fn name(self) -> &'static str {
        match self {
            Kind::KillDaemon => "kill-daemon",
            Kind::KillGuardian => "kill-guardian",
            Kind::KillBoth => "kill-both",
            Kind::DownUp => "down-up",
            Kind::Rename => "rename",
            Kind::Move => "move",
            Kind::Checksums => "checksums",
            Kind::Gro => "gro",
            Kind::Queues => "queues",
            Kind::Qdisc => "qdisc",
            Kind::Mtu => "mtu",
            Kind::Ruleset => "ruleset",
            Kind::StopDaemon => "stop-daemon",
            Kind::StopGuardian => "stop-guardian",
            Kind::FullRun => "full-run",
            Kind::NoProcessIds => "no-process-ids",
        }
    }

    /// Returns whether the wire after it is another one.
    pub fn starts_anew(self) -> bool {
        matches!(self, Kind::KillDaemon | Kind::KillBoth | Kind::NoProcessIds)
    }

    fn is_at_an_end(self) -> bool {
        use Kind::*;
        matches!(self, DownUp | Rename | Move | Checksums | Gro | Queues | Qdisc | Mtu)
    }
}

/// The kinds that a list such as `kill-daemon,rename` names.
pub fn kinds(list: &str) -> Result<Vec<Kind>> {
    let named = |name: &str| match Kind::ALL.into_iter().find(|kind| kind.name() == name) {
        Some(kind) => Ok(kind),
        None => {
            let names: Vec<&str> = Kind::ALL.iter().map(|kind| kind.name()).collect();
            bail!("there is no event {name:?}: they are {}", names.join(", "))
        }
    };
    list.split(',').map(named).collect()
}

/// One event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// The kind of the event.
    pub kind: Kind,
    /// The end that it is done to, where that matters.
    pub at: Option<At>,
    /// The time before it is undone, in milliseconds.
    pub hold_ms: u64,
    /// The calm after it, in milliseconds.
    pub calm_ms: u64,
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind.name())?;
        let at = match self.at {
            Some(At::Left) => "left",
            Some(At::A) => "a",
            Some(At::B) => "b",
            Some(At::Right) => "right",
            None => return Ok(()),
        };
        write!(f, " at {at}")
    }
}

/// The events that a seed stands for.
pub fn draw(seed: u64, kinds: &[Kind], decks: usize) -> Vec<Event> {
    let mut random = Random(seed);
    let mut plan = Vec::new();
    for _ in 0..decks {
        let mut deck: Vec<(Kind, Option<At>)> = Vec::new();
        for &kind in kinds {
            if kind.is_at_an_end() {
                deck.extend(At::ALL.map(|at| (kind, Some(at))));
            } else {
                deck.push((kind, None));
            }
        }
        for last in (1..deck.len()).rev() {
            deck.swap(last, random.between(0, last));
        }
        plan.extend(deck.into_iter().map(|(kind, at)| Event {
            kind,
            at,
            hold_ms: random.between(50, 500) as u64,
            calm_ms: random.between(300, 700) as u64,
        }));
    }
    plan
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_repeats_its_plan_and_another_has_another() {
        assert_eq!(draw(7, &Kind::ALL, 2), draw(7, &Kind::ALL, 2));
        assert_ne!(draw(7, &Kind::ALL, 1), draw(8, &Kind::ALL, 1));
    }

    #[test]
    fn a_deck_has_every_event_once() {
        let deck = draw(1, &Kind::ALL, 1);
        assert_eq!(deck.len(), 8 * 4 + 8);
        for kind in Kind::ALL {
            let ends = deck.iter().filter(|event| event.kind == kind).count();
            assert_eq!(ends, if kind.is_at_an_end() { 4 } else { 1 }, "{}", kind.name());
        }
    }

    #[test]
    fn kinds_are_read_by_name_and_a_wrong_one_is_named() {
        assert_eq!(kinds("rename,kill-both").unwrap(), [Kind::Rename, Kind::KillBoth]);
        assert!(kinds("rename,earthquake").unwrap_err().to_string().contains("earthquake"));
    }
}
