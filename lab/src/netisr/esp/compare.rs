//! The report on the runs of IPsec: a row for each system in each case, and below them, case by case, `ministat`'s tables and `netstat -Q`.
//!
//! Pure.

use std::fmt::Write;

use weir_core::dispatch::netstat::{NetstatTables, ProtocolRow, WorkstreamRow};
use weir_core::dispatch::protocol::{Mode, Policy, WhenFull};

use super::Pair;
use super::case::{EspCase, EspSystem, Published};
use super::run::{EspOutcome, dispatch};
use crate::epair::histogram::Histogram;
use crate::machine::NEAR_NS_MAX;
use crate::ministat::{Difference, Series};
use crate::report::{Row, Value};

/// netisr's number of IPsec.
const IPSEC: u16 = 11;

/// All runs.
pub(super) struct Results<'a> {
    /// The systems in their cases.
    pub pairs: &'a [Pair],
    /// The runs of each pair.
    pub outcomes: &'a [Vec<EspOutcome>],
    /// The depth of a pass of each pair, in bytes.
    pub stacks: &'a [usize],
}

/// Returns whether the cores were near each other: a virtual machine's host may move them apart meanwhile, and packets that change cores then
/// cost twice as much.
fn is_near(run: &EspOutcome) -> bool {
    run.line_rtt_ns <= NEAR_NS_MAX
}

fn packets_per_s(run: &EspOutcome) -> f64 {
    run.sealed as f64 / run.seconds
}

impl Results<'_> {
    /// The row of a pair.
    pub fn row(&self, index: usize) -> Row {
        let ((system, case), runs) = (&self.pairs[index], &self.outcomes[index]);
        let sum = |of: fn(&EspOutcome) -> u64| runs.iter().map(of).sum::<u64>();
        let (offered, dropped) = (sum(|run| run.offered), sum(|run| run.dropped));
        let (lost, reordered) = (sum(|run| run.lost), sum(|run| run.misnumbered));
        let mut latency = Histogram::default();
        runs.iter().for_each(|run| latency.merge(&run.latency));
        let us = |share| latency.quantile_ns(share).map(|ns| ns as f64 / 1000.0);
        let share = |of: fn(&EspOutcome) -> f64| {
            let shares: Vec<_> = runs.iter().map(|run| 100.0 * of(run) / run.seconds).collect();
            Series::of(&shares).map(|series| series.median)
        };
        let (difference, near) = (self.difference(index), self.near_pairs(index));
        let published = Published::of(*system, case);
        let values: Vec<(&'static str, Value)> = vec![
            ("kpps", self.series(index).map(|series| series.median / 1000.0).into()),
            ("seed_kpps", published.kpps.into()),
            ("diff_pct", difference.map(|difference| difference.diff_pct).into()),
            ("diff_ci_pct", difference.map(|difference| difference.ci_pct).into()),
            ("seed_diff_pct", published.diff_pct.map(|(diff, _)| diff).into()),
            ("seed_diff_ci_pct", published.diff_pct.map(|(_, ci)| ci).into()),
            ("near_diff_pct", near.map(|pairs| pairs.avg).into()),
            ("near_diff_ci_pct", near.and_then(|pairs| pairs.mean_ci()).into()),
            ("dropped", dropped.into()),
            ("dropped_pct", (100.0 * dropped as f64 / offered.max(1) as f64).into()),
            ("seed_dropped_pct", published.dropped_pct.into()),
            ("reordered", reordered.into()),
            ("p50_us", us(0.5).into()),
            ("p99_us", us(0.99).into()),
            ("held_pct", share(|run| run.held_seconds).into()),
            ("cpu_pct", share(|run| run.cpu_seconds).into()),
            ("stack_bytes", (self.stacks[index] as u64).into()),
        ];
        let forbidden = if system.drops { 0 } else { dropped };
        let mut faults = Vec::new();
        if lost + reordered + forbidden > 0 {
            faults
                .push(format!("of {offered} packets, {lost} lost, {reordered} reordered, {dropped} dropped"));
        }
        let alone = self.find(*system, |other| other.is_nested() && other.tunnels == 1);
        if let Some(alone) = alone
            .map(|alone| self.stacks[alone])
            .filter(|alone| case.is_nested() && *alone != self.stacks[index])
        {
            faults.push(format!(
                "{} bytes of stack for {} tunnels, and {alone} for one",
                self.stacks[index], case.tunnels
            ));
        }
        match faults.is_empty() {
            true => Row::new(&system.name(), case.name, values),
            false => Row::failed(&system.name(), case.name, values, faults.join("; ")),
        }
    }

    /// Case by case the series with their differences, and the tables of `netstat -Q`.
    pub fn appendix(&self) -> String {
        let mut text = String::new();
        let mut first = 0;
        for of_case in self.pairs.chunk_by(|(_, one), (_, other)| one.name == other.name) {
            let indices = first..first + of_case.len();
            first += of_case.len();
            write!(text, "{}, packets a second\n\n{}\n", of_case[0].1.name, self.ministat(indices.clone()))
                .expect("writing to a string");
            writeln!(text, "{}", self.netstat(indices)).expect("writing to a string");
        }
        text
    }

    /// A letter for each series, as `ministat` has signs for them.
    fn ministat(&self, indices: std::ops::Range<usize>) -> String {
        let width = indices.clone().map(|index| self.name(index).len()).max().unwrap_or(0);
        let mut text = format!(
            "{:width$}   N           Min           Max        Median           Avg        Stddev\n",
            ""
        );
        for index in indices {
            let Some(series) = self.series(index) else { continue };
            let name = self.name(index);
            writeln!(text, "{name:width$} {series}").expect("writing to a string");
            let Some(reference) = self.reference(index) else { continue };
            let beside = format!("Beside {}, {}", self.name(reference), self.pairs[reference].1.name);
            if let Some(difference) = self.difference(index) {
                writeln!(text, "{beside}: {difference}").expect("writing to a string");
            }
            if let Some(pairs) = self.near_pairs(index)
                && let Some(ci) = pairs.mean_ci()
            {
                let Series { n, avg, .. } = pairs;
                writeln!(
                    text,
                    "{beside}, in {n} pairs of runs on near cores: {avg:.2}% +/- {ci:.2}% at 95.0% confidence"
                )
                .expect("writing to a string");
            }
        }
        text
    }

    /// A protocol and a workstream for each system: the counts of the first ESP stage, of all runs together.
    fn netstat(&self, indices: std::ops::Range<usize>) -> NetstatTables {
        let (mut protocols, mut workstreams) = (Vec::new(), Vec::new());
        let mut qlimits = Vec::new();
        for index in indices.clone() {
            let (system, case) = &self.pairs[index];
            let qlimit = dispatch(*system, case).queue_packets as usize;
            qlimits.push(qlimit);
            protocols.push(ProtocolRow {
                name: system.name(),
                number: IPSEC,
                qlimit,
                policy: Policy::Cpu,
                mode: Some(system.mode),
                names_worker: true,
                when_full: if system.drops { WhenFull::Drop } else { WhenFull::Block },
            });
            let runs = self.outcomes[index].iter().map(|run| run.workstream.clone());
            let all = runs.reduce(together);
            workstreams.extend(all.map(|row| WorkstreamRow { name: system.name(), ..row }));
        }
        let threads = self.pairs[indices.start].1.seating.workers();
        let limits = (qlimits.iter().copied().min().unwrap_or(0), qlimits.iter().copied().max().unwrap_or(0));
        NetstatTables {
            called: "Thread",
            threads: (threads, threads),
            qlimit: limits,
            dispatch: Mode::Direct,
            bound: threads,
            protocols,
            workstreams,
        }
    }

    fn name(&self, index: usize) -> String {
        self.pairs[index].0.name()
    }

    /// Packets a second of its runs.
    fn series(&self, index: usize) -> Option<Series> {
        Series::of(&self.outcomes[index].iter().map(packets_per_s).collect::<Vec<_>>())
    }

    fn difference(&self, index: usize) -> Option<Difference> {
        self.series(index)?.difference(&self.series(self.reference(index)?)?)
    }

    /// The differences of runs of one repeat that were both on near cores, in percent; none of a single pair, which has no interval.
    fn near_pairs(&self, index: usize) -> Option<Series> {
        let pairs = self.outcomes[index].iter().zip(&self.outcomes[self.reference(index)?]);
        let near = pairs.filter(|(run, beside)| is_near(run) && is_near(beside));
        let differences =
            near.map(|(run, beside)| 100.0 * (packets_per_s(run) / packets_per_s(beside) - 1.0));
        Series::of(&differences.collect::<Vec<_>>()).filter(|pairs| pairs.n >= 2)
    }

    /// The pair that a pair is compared with.
    fn reference(&self, index: usize) -> Option<usize> {
        let (system, case) = &self.pairs[index];
        if let Some(short) = self.find(*system, |other| case.is_long_of(other)) {
            return Some(short);
        }
        let direct = EspSystem { mode: Mode::Direct, ..*system };
        (system.mode != Mode::Direct).then(|| self.find(direct, |other| other.name == case.name)).flatten()
    }

    fn find(&self, system: EspSystem, is_it: impl Fn(&EspCase) -> bool) -> Option<usize> {
        self.pairs.iter().position(|(other, case)| *other == system && is_it(case))
    }
}

/// A workstream of two runs.
fn together(one: WorkstreamRow, other: WorkstreamRow) -> WorkstreamRow {
    WorkstreamRow {
        len: one.len + other.len,
        wmark: one.wmark.max(other.wmark),
        dispatched: one.dispatched + other.dispatched,
        hybrid_dispatched: one.hybrid_dispatched + other.hybrid_dispatched,
        queue_drops: one.queue_drops + other.queue_drops,
        queued: one.queued + other.queued,
        handled: one.handled + other.handled,
        held: one.held + other.held,
        blocked: one.blocked + other.blocked,
        blocked_ns: one.blocked_ns + other.blocked_ns,
        ..one
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(sealed: u64) -> EspOutcome {
        let workstream =
            WorkstreamRow { queued: sealed, handled: sealed, wmark: 256, ..WorkstreamRow::default() };
        EspOutcome { offered: sealed, sealed, seconds: 1.0, workstream, ..EspOutcome::default() }
    }

    fn pair(system: usize, case: &str) -> Pair {
        (EspSystem::ALL[system], EspCase::from_name(case).unwrap())
    }

    const DIRECT: usize = 0;
    const DEFERRED: usize = 2;

    #[test]
    fn deferral_is_beside_sealing_at_once_and_a_long_queue_beside_the_short_one() {
        let pairs = [
            pair(DIRECT, "null-64"),
            pair(DEFERRED, "null-64"),
            pair(DIRECT, "null-64-long"),
            pair(DEFERRED, "null-64-long"),
        ];
        let runs = |about: u64| (0..5).map(|run| outcome(about + 10 * run)).collect::<Vec<_>>();
        let outcomes = [runs(100_000), runs(78_000), runs(100_000), runs(39_000)];
        let results = Results { pairs: &pairs, outcomes: &outcomes, stacks: &[1, 1, 1, 1] };
        let figure = |index: usize, name| results.row(index).value(name).as_f64();
        assert_eq!(figure(0, "diff_pct"), None);
        let close =
            |figure: Option<f64>, to: f64| assert!((figure.unwrap() - to).abs() < 0.1, "{figure:?} {to}");
        close(figure(1, "diff_pct"), -22.0);
        close(figure(2, "diff_pct"), 0.0);
        close(figure(3, "diff_pct"), -50.0);
        assert!(figure(3, "diff_ci_pct").unwrap() > 0.0);
        assert_eq!(figure(1, "kpps"), Some(78.02));
        let text = results.appendix();
        assert!(text.contains("null-64-long, packets a second"), "{text}");
        assert!(text.contains("Beside esp-direct, null-64: Difference at 95.0% confidence"), "{text}");
        assert!(text.contains("No difference proven at 95.0% confidence"), "{text}");
        // netisr's third table: packets that were queued and handled, of five runs together.
        assert!(
            text.lines().any(|line| line.contains("esp-deferred") && line.contains("390100   390100")),
            "{text}"
        );
    }

    #[test]
    fn runs_on_cores_that_were_moved_apart_are_told_from_the_others() {
        let pairs = [pair(DIRECT, "gcm-1420"), pair(DEFERRED, "gcm-1420")];
        let run = |line_rtt_ns, sealed| EspOutcome { line_rtt_ns, ..outcome(sealed) };
        // The machine becomes faster meanwhile, which is in both runs of a repeat.
        let direct = vec![run(120.0, 100_000), run(120.0, 110_000), run(120.0, 120_000)];
        let deferred = vec![run(120.0, 101_000), run(300.0, 50_000), run(130.0, 121_200)];
        let outcomes = [direct, deferred];
        let results = Results { pairs: &pairs, outcomes: &outcomes, stacks: &[1, 1] };
        let figure = |name| results.row(1).value(name).as_f64().unwrap();
        assert!(figure("diff_pct") < -10.0 && (figure("near_diff_pct") - 1.0).abs() < 0.1);
        assert!(figure("near_diff_ci_pct") < 0.1, "both pairs are alike");
        let text = results.appendix();
        assert!(text.contains("gcm-1420, in 2 pairs of runs on near cores: 1.00% +/- "), "{text}");
        let far = [outcomes[0].clone(), vec![outcomes[1][1].clone(); 3]];
        let text = Results { outcomes: &far, ..results }.appendix();
        assert!(!text.contains("near"), "none of them was: {text}");
    }

    #[test]
    fn a_row_that_breaks_its_promise_fails() {
        let error = |system, case, run: EspOutcome| {
            let (pairs, outcomes) = ([pair(system, case)], [vec![run]]);
            Results { pairs: &pairs, outcomes: &outcomes, stacks: &[100] }.row(0).error
        };
        let dropped = || EspOutcome { dropped: 1, ..outcome(10) };
        assert_eq!(error(DEFERRED, "null-64", outcome(10)), None);
        assert!(error(DEFERRED, "null-64", dropped()).is_some());
        assert_eq!(error(DEFERRED + 3, "null-64", dropped()), None, "that is its rule");
        let misnumbered = EspOutcome { misnumbered: 1, ..outcome(10) };
        assert!(error(DEFERRED + 3, "null-64", misnumbered).unwrap().contains("1 reordered"));
        assert!(error(DIRECT, "gcm-64", EspOutcome { lost: 1, ..outcome(10) }).is_some());
    }

    #[test]
    fn tunnels_in_tunnels_may_go_no_deeper() {
        let pairs = [pair(DIRECT, "nested-1"), pair(DIRECT, "nested-16")];
        let outcomes = [vec![outcome(10)], vec![outcome(10)]];
        let error = |stacks: &[usize]| Results { pairs: &pairs, outcomes: &outcomes, stacks }.row(1).error;
        assert_eq!(error(&[3000, 3000]), None);
        assert_eq!(error(&[3000, 3016]).unwrap(), "3016 bytes of stack for 16 tunnels, and 3000 for one");
    }
}
