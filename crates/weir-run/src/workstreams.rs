//! The workstreams of wires, as `weir stat -Q` shows them: netisr's counters of packets that a worker handled at once and of those that had
//! to wait.
//!
//! A wire has a workstream for each of its workers, and in it a protocol for each direction that ends with that worker:
//! `ether/A->B`. Its queue is the direction's classes. The mapping, for packets that the classes were given:
//!
//! ```text
//! Len      wait in the classes now               WMark    most that ever did
//! Disp'd   left the classes in the pass that brought them in
//! HDisp'd  0: a wire's packets of any flow are worked on by the worker that takes them in
//! QDrops   dropped by a rule of the classes      Queued   all others: they waited, or do
//! Handled  left the classes                      Held     not delivered yet: in the classes, with the device
//! Blocked  times that senders began to be held   BlkTime  for how long, over all classes
//!
//! accepted = Disp'd + HDisp'd + Queued + QDrops          Disp'd + HDisp'd + Queued = Handled + Len
//! ```
//!
//! Where links join several workers each of these has one more, `handoff`: packets that others handed to it are Queued, those it has taken
//! Handled. They go on in a row of a stage or a direction, so only those that wait are in the sum of accepted packets.
//!
//! A stage of a topology has one, `bridge/NAME` or `router/NAME`, for packets that came in by its ports and those that it made: packets
//! that went on at once or were for itself are Disp'd, those that a router keeps for a neighbour are Queued, those that it drops are in
//! QDrops. Packets that it sends on are in the row of a direction or another stage too, so they are taken off the sum of accepted packets.
//!
//! Rule: both sides of these sums are counted, each where it happens: packets enter by the intake, leave by the release of the classes or
//! of the router's keeping, and wait by these. So a packet that is counted twice, or in one place alone, shows.
//!
//! Ownership: a [`Tally`] has one writer, the worker that owns the direction; it is copied while all workers stand still.
//! Source: FreeBSD `usr.bin/netstat/netisr.c`, `sys/net/netisr_internal.h` (the counters).
//! Limits: the actions of full classes are not in the flags here.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use weir_core::dispatch::netstat::{self, ProtocolRow, WorkstreamRow};
use weir_core::dispatch::protocol::{Mode, Policy, WhenFull};
use weir_core::drops::Count;
use weir_path::egress::EgressCounts;
use weir_path::shaping::ReleaseCounts;

use crate::books::Books;

/// netisr's number of Ethernet.
const ETHER: u16 = 5;

/// The counts of a direction or a stage for its workstream.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    /// The counts of its intake.
    pub intake: EgressCounts,
    /// The counts of the release of its classes.
    pub released: ReleaseCounts,
}

/// One direction in one workstream.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct WorkstreamStats {
    /// The wire.
    pub wire: String,
    /// The workstream's number.
    pub wsid: usize,
    /// The CPU that its worker is on.
    pub cpu: usize,
    /// True if its worker stays there: so did all of older versions that had workstreams.
    #[serde(default = "is_bound_if_not_told")]
    pub is_bound: bool,
    /// The protocol: `ether/A->B`.
    pub name: String,
    /// The rule that chooses a packet's worker: `source`, unless it says otherwise.
    pub policy: String,
    /// The mode, now or later: `direct`, unless it says otherwise.
    pub mode: String,
    /// The action when it is full: `block`, unless it says otherwise.
    pub full: String,
    /// The most packets that may be inside.
    pub qlimit: u64,
    /// Packets that wait.
    pub len: u64,
    /// The most that ever did.
    pub wmark: u64,
    /// Packets that did not wait.
    pub dispatched: u64,
    /// Packets that did not wait, being on their flow's own worker.
    pub hybrid_dispatched: u64,
    /// Packets that a rule dropped.
    pub queue_drops: u64,
    /// Packets that waited, or do.
    pub queued: u64,
    /// Packets that were worked on.
    pub handled: u64,
    /// The packets of these that go on in another row.
    pub elsewhere: u64,
    /// Packets that are inside.
    pub held: u64,
    /// Times that senders began to be held.
    pub blocked: u64,
    /// The time for which senders were held, in nanoseconds.
    pub blocked_ns: u64,
}

impl WorkstreamStats {
    /// The workstream of a direction or a stage: its counts, and the packets that wait in it.
    pub fn new(name: String, tally: Tally, waiting: Count) -> WorkstreamStats {
        let Tally { intake, released } = tally;
        WorkstreamStats {
            name,
            qlimit: intake.qlimit,
            len: waiting.packets,
            wmark: intake.held_max,
            dispatched: released.dispatched,
            queue_drops: intake.refused + released.dropped,
            // Packets that entered and did not leave at once, nor by a rule.
            queued: intake.entered.saturating_sub(released.dispatched + released.dropped),
            handled: released.dispatched + released.delayed,
            blocked: intake.blocked,
            ..WorkstreamStats::default()
        }
    }

    fn row(&self) -> WorkstreamRow {
        WorkstreamRow {
            wsid: self.wsid,
            cpu: self.cpu,
            name: self.name.clone(),
            len: self.len as usize,
            wmark: self.wmark as usize,
            dispatched: self.dispatched,
            hybrid_dispatched: self.hybrid_dispatched,
            queue_drops: self.queue_drops,
            queued: self.queued,
            handled: self.handled,
            held: self.held as usize,
            blocked: self.blocked,
            blocked_ns: self.blocked_ns,
        }
    }
}

fn is_bound_if_not_told() -> bool {
    true
}

/// The three tables of `netstat -Q`, on a machine with so many CPUs. A stack's program may have more threads than workers.
pub fn tables(workstreams: &[WorkstreamStats], cpus: usize) -> netstat::NetstatTables {
    let protocol = |stats: &WorkstreamStats| ProtocolRow {
        name: stats.name.clone(),
        number: ETHER,
        qlimit: stats.qlimit as usize,
        policy: Policy::from_name(&stats.policy).unwrap_or(Policy::Source),
        mode: Some(Mode::from_name(&stats.mode).unwrap_or(Mode::Direct)),
        names_worker: false,
        when_full: WhenFull::from_name(&stats.full).unwrap_or(WhenFull::Block),
    };
    // Each has a number, and some row.
    let count = |is: fn(&WorkstreamStats) -> bool| {
        workstreams.iter().filter(|stats| is(stats)).map(|stats| stats.wsid).collect::<BTreeSet<_>>().len()
    };
    let limits = || workstreams.iter().map(|stats| stats.qlimit as usize);
    // A protocol that several workers have is told once, as in netisr.
    let mut protocols: Vec<ProtocolRow> = Vec::new();
    for row in workstreams.iter().map(protocol) {
        if !protocols.contains(&row) {
            protocols.push(row);
        }
    }
    netstat::NetstatTables {
        called: "Worker",
        threads: (count(|_| true), cpus),
        qlimit: (limits().min().unwrap_or(0), limits().max().unwrap_or(0)),
        dispatch: Mode::Direct,
        bound: count(|stats| stats.is_bound),
        protocols,
        workstreams: workstreams.iter().map(WorkstreamStats::row).collect(),
    }
}

/// Appends the workstreams of another process, numbered on.
pub fn append(all: &mut Vec<WorkstreamStats>, other: Vec<WorkstreamStats>) {
    let first = all.iter().map(|stats| stats.wsid.saturating_add(1)).max().unwrap_or(0);
    all.extend(
        other.into_iter().map(|stats| WorkstreamStats { wsid: stats.wsid.saturating_add(first), ..stats }),
    );
}

/// The sums that do not add up, a sentence each: within a workstream, and of all of them with the books.
pub fn check(workstreams: &[WorkstreamStats], totals: &Books) -> Vec<String> {
    let add = |parts: &[u64]| parts.iter().copied().map(u128::from).sum::<u128>();
    let taken = |stats: &WorkstreamStats| add(&[stats.dispatched, stats.hybrid_dispatched, stats.queued]);
    let mut faults: Vec<String> = workstreams
        .iter()
        .filter(|stats| taken(stats) != add(&[stats.handled, stats.len]))
        .map(|stats| {
            format!(
                "workstream {} {}: {} packets dispatched and queued, but {} handled and {} waiting",
                stats.wsid,
                stats.name,
                taken(stats),
                stats.handled,
                stats.len
            )
        })
        .collect();
    let sum = |of: fn(&WorkstreamStats) -> u64| workstreams.iter().map(of).map(u128::from).sum::<u128>();
    let accepted = sum(|stats| stats.queue_drops) + workstreams.iter().map(taken).sum::<u128>();
    let accepted = accepted.saturating_sub(sum(|stats| stats.elsewhere));
    let books = (totals.accepted.packets.into(), totals.held.packets.into());
    // A process of an older version has none.
    if !workstreams.is_empty() && (accepted, sum(|stats| stats.held)) != books {
        faults.push(format!(
            "the workstreams have taken {accepted} packets and hold {}, but the books say {} and {}",
            sum(|stats| stats.held),
            books.0,
            books.1
        ));
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 100 packets came in: 3 were refused, 2 dropped after a wait, 40 left at once, 25 of the others wait.
    fn stats() -> WorkstreamStats {
        let intake = EgressCounts { entered: 97, refused: 3, held_max: 30, blocked: 2, qlimit: 500 };
        let released = ReleaseCounts { dispatched: 40, delayed: 30, dropped: 2 };
        let waiting = Count { packets: 25, bytes: 1500 };
        WorkstreamStats {
            held: 28,
            cpu: 1,
            ..WorkstreamStats::new("ether/a->b".into(), Tally { intake, released }, waiting)
        }
    }

    fn totals(accepted: u64, held: u64) -> Books {
        let amount = |packets| Count { packets, bytes: packets * 60 };
        Books { accepted: amount(accepted), held: amount(held), ..Books::default() }
    }

    #[test]
    fn a_direction_is_a_protocol_of_its_worker() {
        let stats = stats();
        assert_eq!((stats.dispatched, stats.queued, stats.queue_drops), (40, 55, 5));
        assert_eq!((stats.handled, stats.len, stats.wmark, stats.blocked), (70, 25, 30, 2));
        let text = tables(&[stats], 2).to_string();
        let has = |line: &str| assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        has("Worker count                         1            2");
        has("Workers bound to CPUs         disabled          n/a");
        has("ether/a->b     5    500 source   direct   ---");
        has(
            "   0   1   ether/a->b    25    30       40        0        5       55       70       28        2      0us",
        );
    }

    #[test]
    fn a_protocol_of_two_workers_is_told_once() {
        let of = |wsid, qlimit| WorkstreamStats { wsid, qlimit, ..stats() };
        let tables = tables(&[of(0, 500), of(1, 500), of(2, 40)], 4);
        let qlimits: Vec<_> = tables.protocols.iter().map(|row| row.qlimit).collect();
        assert_eq!((qlimits, tables.workstreams.len()), (vec![500, 40], 3));
    }

    #[test]
    fn workers_are_bound_if_they_tell_so() {
        let of = |wsid, is_bound| WorkstreamStats { wsid, is_bound, ..stats() };
        let text = tables(&[of(0, true), of(0, true), of(1, true)], 4).to_string();
        assert!(text.contains("\nWorker count                         2            4\n"), "{text}");
        assert!(text.contains("\nWorkers bound to CPUs          enabled          n/a\n"), "{text}");
        let text = tables(&[of(0, true), of(1, false), of(2, false)], 4).to_string();
        assert!(text.contains("\nWorkers bound to CPUs           1 of 3          n/a\n"), "{text}");
        let older: WorkstreamStats = serde_json::from_str(r#"{"wsid": 0, "cpu": 1}"#).expect("a row");
        assert!(older.is_bound, "all were");
    }

    #[test]
    fn sums_that_do_not_add_up_are_found() {
        assert!(check(&[stats()], &totals(100, 28)).is_empty());
        assert!(check(&[], &Books::default()).is_empty());
        let faults = check(&[WorkstreamStats { dispatched: 41, ..stats() }], &totals(100, 28));
        assert_eq!(faults.len(), 2, "{faults:?}");
        assert!(faults[0].contains("ether/a->b") && faults[1].contains("101 packets"), "{faults:?}");
        assert_eq!(check(&[stats()], &totals(100, 27)).len(), 1);
        // One more packet waits in the classes than was counted on entering.
        assert_eq!(check(&[WorkstreamStats { len: 26, ..stats() }], &totals(100, 28)).len(), 1);
    }

    #[test]
    fn workstreams_of_another_process_are_numbered_on() {
        let mut all = vec![stats(), WorkstreamStats { wsid: 1, ..stats() }];
        append(&mut all, vec![stats(), WorkstreamStats { wsid: 1, ..stats() }]);
        assert_eq!(all.iter().map(|stats| stats.wsid).collect::<Vec<_>>(), [0, 1, 2, 3]);
    }
}
