//! The three tables of `netstat -Q`, from a plain copy of the counters.
//!
//! Columns, widths and words are netisr's, so that a program that reads its tables reads these. Three columns follow netisr's own: `Held`,
//! packets inside (queued, or on their way between workers); `Blocked`, how often a feeder was held because of this protocol; `BlkTime`,
//! how long in all. A number wider than its column moves the rest of its line, as it does in `netstat`.
//!
//! Flags: `C` the protocol names its worker itself (as in netisr); then its rule when it is full, `-` block, `E` ecn, `D` drop; the third
//! is netisr's own and stays `-`.
//!
//! Source: FreeBSD `usr.bin/netstat/netisr.c`.

use std::fmt;

use super::protocol::{Mode, Policy, WhenFull};
use super::settings::Configuration;

/// All contents of the tables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetstatTables {
    /// The name of its workers: `Thread`, as netisr's are, unless they have none of their own.
    pub called: &'static str,
    /// Workers running, and the most there may be.
    pub threads: (usize, usize),
    /// `defaultqlimit` and `maxqlimit`.
    pub qlimit: (usize, usize),
    /// `dispatch`.
    pub dispatch: Mode,
    /// The number of workers that stay on their CPU: all of them with `bindthreads`.
    pub bound: usize,
    /// The protocols, in the order of their registration.
    pub protocols: Vec<ProtocolRow>,
    /// Their counters, worker by worker.
    pub workstreams: Vec<WorkstreamRow>,
}

/// A line of the second table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProtocolRow {
    /// Its name.
    pub name: String,
    /// Its number.
    pub number: u16,
    /// Its queue's limit.
    pub qlimit: usize,
    /// Its policy.
    pub policy: Policy,
    /// Its own mode, if it has one.
    pub mode: Option<Mode>,
    /// True if it names its worker itself.
    pub names_worker: bool,
    /// The rule when it is full.
    pub when_full: WhenFull,
}

/// A line of the third table: one protocol in one workstream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WorkstreamRow {
    /// The workstream: its worker's number.
    pub wsid: usize,
    /// The CPU its worker runs on.
    pub cpu: usize,
    /// The protocol.
    pub name: String,
    /// Packets queued.
    pub len: usize,
    /// The most packets that were ever queued.
    pub wmark: usize,
    /// Packets handled at once under `direct`.
    pub dispatched: u64,
    /// Packets handled at once under `hybrid`.
    pub hybrid_dispatched: u64,
    /// Packets dropped because the queue was full and its rule is `drop`.
    pub queue_drops: u64,
    /// Packets that were queued.
    pub queued: u64,
    /// Packets handled, at once or from the queue.
    pub handled: u64,
    /// Packets inside: queued, or handed off to this worker and still on their way.
    pub held: usize,
    /// The number of times that a feeder was held because of this protocol.
    pub blocked: u64,
    /// The time of those, all together, in nanoseconds.
    pub blocked_ns: u64,
}

/// Prints all three tables.
impl fmt::Display for NetstatTables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.configuration(f)?;
        self.protocols(f)?;
        self.workstreams(f)
    }
}

impl NetstatTables {
    /// The tables of `configuration`, with the rows of its workstreams.
    pub fn new(configuration: &Configuration, workstreams: Vec<WorkstreamRow>) -> NetstatTables {
        let protocols = configuration.registry.ids().map(|id| {
            let registered = configuration.registry.get(id);
            let protocol = &registered.protocol;
            ProtocolRow {
                name: protocol.name.to_string(),
                number: protocol.number,
                qlimit: registered.qlimit,
                policy: protocol.policy,
                mode: protocol.mode,
                names_worker: true,
                when_full: protocol.when_full,
            }
        });
        NetstatTables {
            called: "Thread",
            threads: (configuration.workers, configuration.workers_max),
            qlimit: (configuration.defaultqlimit, configuration.maxqlimit),
            dispatch: configuration.dispatch,
            bound: if configuration.bindthreads { configuration.workers } else { 0 },
            protocols: protocols.collect(),
            workstreams,
        }
    }

    fn configuration(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "Configuration:")?;
        let mut line = |setting: &str, current: &dyn fmt::Display, limit: &dyn fmt::Display| {
            writeln!(f, "{setting:<25} {current:>12} {limit:>12}")
        };
        let bound = match self.bound {
            0 => "disabled".to_string(),
            all if all == self.threads.0 => "enabled".to_string(),
            some => format!("{some} of {}", self.threads.0),
        };
        line("Setting", &"Current", &"Limit")?;
        line(&format!("{} count", self.called), &self.threads.0, &self.threads.1)?;
        line("Default queue limit", &self.qlimit.0, &self.qlimit.1)?;
        line("Dispatch policy", &self.dispatch, &"n/a")?;
        line(&format!("{}s bound to CPUs", self.called), &bound, &"n/a")
    }

    fn protocols(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.name_width();
        writeln!(f, "\nProtocols:")?;
        writeln!(f, "{:<width$} Proto QLimit Policy Dispatch Flags", "Name")?;
        for row in &self.protocols {
            let mode = row.mode.map_or("default", Mode::name);
            let own = if row.names_worker { 'C' } else { '-' };
            let full = match row.when_full {
                WhenFull::Block => '-',
                WhenFull::Ecn => 'E',
                WhenFull::Drop => 'D',
            };
            let (name, number, qlimit, policy) = (&row.name, row.number, row.qlimit, row.policy);
            writeln!(f, "{name:<width$} {number:>5} {qlimit:>6} {policy:>6} {mode:>8}   {own}{full}-")?;
        }
        Ok(())
    }

    fn workstreams(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.name_width();
        writeln!(f, "\nWorkstreams:")?;
        write!(f, "WSID CPU   {:<width$}   Len WMark   Disp'd  HDisp'd   QDrops   Queued  Handled", "Name")?;
        writeln!(f, "     Held  Blocked  BlkTime")?;
        for row in &self.workstreams {
            let (wsid, cpu, name, len, wmark) = (row.wsid, row.cpu, &row.name, row.len, row.wmark);
            write!(f, "{wsid:>4} {cpu:>3}   {name:<width$} {len:>5} {wmark:>5}")?;
            let counters = [row.dispatched, row.hybrid_dispatched, row.queue_drops, row.queued, row.handled];
            for counter in counters.into_iter().chain([row.held as u64, row.blocked]) {
                write!(f, " {counter:>8}")?;
            }
            writeln!(f, " {:>8}", duration(row.blocked_ns))?;
        }
        Ok(())
    }

    fn name_width(&self) -> usize {
        let names = self.protocols.iter().map(|row| row.name.len());
        names.chain(self.workstreams.iter().map(|row| row.name.len())).max().unwrap_or(0).max(6)
    }
}

/// A duration in at most four digits and its unit, rounded down.
fn duration(ns: u64) -> String {
    let (value, unit) = match ns {
        0..10_000_000 => (ns / 1_000, "us"),
        10_000_000..10_000_000_000 => (ns / 1_000_000, "ms"),
        _ => (ns / 1_000_000_000, "s"),
    };
    format!("{value}{unit}")
}

#[cfg(test)]
mod tests {
    use super::super::handlers::protocols;
    use super::super::settings::Settings;
    use super::*;

    /// The state behind the IPsec report's first table, with the columns that this path adds.
    fn seed() -> NetstatTables {
        let protocol = |name: &str, number, qlimit, policy, mode| ProtocolRow {
            name: name.into(),
            number,
            qlimit,
            policy,
            mode,
            names_worker: false,
            when_full: WhenFull::Block,
        };
        let row = |name: &str, wmark, dispatched, queue_drops, queued, handled| WorkstreamRow {
            name: name.into(),
            wmark,
            dispatched,
            queue_drops,
            queued,
            handled,
            ..WorkstreamRow::default()
        };
        NetstatTables {
            called: "Thread",
            threads: (1, 1),
            qlimit: (256, 10240),
            dispatch: Mode::Direct,
            bound: 0,
            protocols: vec![
                protocol("ip", 1, 256, Policy::Flow, None),
                protocol("rtsock", 3, 2048, Policy::Source, None),
                protocol("ether", 5, 256, Policy::Source, Some(Mode::Direct)),
                protocol("ipsec", 11, 256, Policy::Source, None),
            ],
            workstreams: vec![
                row("ip", 0, 89_370_650, 0, 0, 89_370_650),
                row("rtsock", 2, 0, 0, 114, 114),
                row("ether", 0, 89_370_674, 0, 0, 89_370_674),
                row("ipsec", 256, 0, 616_976_559, 221_804_972, 221_804_972),
            ],
        }
    }

    #[test]
    fn the_layout_is_the_seeds() {
        let expected = "\
Configuration:
Setting                        Current        Limit
Thread count                         1            1
Default queue limit                256        10240
Dispatch policy                 direct          n/a
Threads bound to CPUs         disabled          n/a

Protocols:
Name   Proto QLimit Policy Dispatch Flags
ip         1    256   flow  default   ---
rtsock     3   2048 source  default   ---
ether      5    256 source   direct   ---
ipsec     11    256 source  default   ---

Workstreams:
WSID CPU   Name     Len WMark   Disp'd  HDisp'd   QDrops   Queued  Handled     Held  Blocked  BlkTime
   0   0   ip         0     0 89370650        0        0        0 89370650        0        0      0us
   0   0   rtsock     0     2        0        0        0      114      114        0        0      0us
   0   0   ether      0     0 89370674        0        0        0 89370674        0        0      0us
   0   0   ipsec      0   256        0        0 616976559 221804972 221804972        0        0      0us
";
        assert_eq!(seed().to_string(), expected);
    }

    #[test]
    fn a_configuration_shows_what_was_set() {
        let mut settings = Settings::new(protocols());
        settings.set("maxthreads", "2").unwrap();
        settings.set("dispatch", "deferred").unwrap();
        settings.set("proto.ip6.full", "ecn").unwrap();
        settings.set("proto.ip6.qlimit", "8192").unwrap();
        let snapshot = NetstatTables::new(&settings.finish(8).unwrap(), seed().workstreams);
        let text = snapshot.to_string();
        let has = |line: &str| assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        has("Thread count                         2            8");
        has("Dispatch policy               deferred          n/a");
        has("ether      5    256   flow   hybrid   C--");
        has("ip6        6   8192   flow  default   CE-");
        assert_eq!(snapshot.workstreams, seed().workstreams);
    }

    #[test]
    fn flags_widths_and_times() {
        let mut snapshot = seed();
        snapshot.threads = (8, 8);
        snapshot.bound = 8;
        snapshot.protocols.truncate(1);
        snapshot.protocols[0].name = "ip_direct".into();
        snapshot.protocols[0].policy = Policy::Cpu;
        snapshot.protocols[0].mode = Some(Mode::Deferred);
        snapshot.protocols[0].names_worker = true;
        snapshot.protocols[0].when_full = WhenFull::Drop;
        snapshot.workstreams.truncate(1);
        snapshot.workstreams[0] = WorkstreamRow {
            wsid: 7,
            cpu: 15,
            name: "ip_direct".into(),
            len: 3,
            wmark: 25,
            hybrid_dispatched: 12,
            held: 5,
            blocked: 4,
            blocked_ns: 12_345_678,
            ..WorkstreamRow::default()
        };
        let text = snapshot.to_string();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[2], "Thread count                         8            8");
        assert_eq!(lines[5], "Threads bound to CPUs          enabled          n/a");
        assert_eq!(lines[8], "Name      Proto QLimit Policy Dispatch Flags");
        assert_eq!(lines[9], "ip_direct     1    256    cpu deferred   CD-");
        assert_eq!(
            lines[13],
            "   7  15   ip_direct     3    25        0       12        0        0        0        5        4     12ms"
        );
    }

    #[test]
    fn durations_keep_to_their_column() {
        let cases = [(0, "0us"), (9_999_999, "9999us"), (10_000_000, "10ms"), (9_999_999_999, "9999ms")];
        for (ns, text) in cases.into_iter().chain([(10_000_000_000, "10s"), (86_400_000_000_000, "86400s")]) {
            assert_eq!(duration(ns), text);
        }
    }
}
