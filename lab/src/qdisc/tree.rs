//! The tree rows of `weir lab qdisc`: floors and ceilings with a noisy neighbour, on the kernel's HTB and behind Weir's HTB and
//! CBQ.
//!
//! The same tree is given to `tc` and to `weir wire --classes`: rates, ceilings, bursts, quanta, and the class of each packet. Each leaf
//! but the pings' is flooded by clients of its own, all at once. Beside the row of the whole, each flooded class has one (case
//! `TREE/CLASS`), so that one class under three systems stands together.
//!
//! - `rate_share` of a class = bits of its frames that arrived / (200 Mbit/s x time); `floor_share` = the same over its own
//!   floor instead of 200 Mbit/s. The row of the whole has the least `floor_share` and `jain` of its classes.
//! - Arrivals are counted by netfilter where the servers are, by port, and not by the shaper.
//!
//! Source: tc-htb(8), tc-u32(8). Owner: each run its own namespaces.
//!
//! Limits: ceilings are the floor or the link's rate, because CBQ knows bounded or not and nothing between. Clients of
//! the kernel's row are held by their own socket buffers too while these fit in the leaf's 1000 packets; the noisy
//! neighbour's do not.

use std::cell::Cell;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value as Json;

use super::{
    FRAME_BYTES, Options, PATIENCE, RATE_BITS_PER_S, System, TOO_BUSY, Values, WEIR_QUEUES, Window,
    empty_wakes, jain, lost_pct, summarise,
};
use crate::bed::{self, End, Namespace};
use crate::clock::{epoch_seconds, let_pass};
use crate::iperf::{Flood, Flow, Load};
use crate::machine::busy_seconds;
use crate::ping::{Ping, RoundTrips};
use crate::progress::Steps;
use crate::report::{Row, Value};
use crate::wire::Wire;

/// Enough for a worker that a busy machine wakes 8 ms late; it is less than a hundredth of the measured bytes.
const BURST: &str = "200kb";
/// The number of ports of each class, from a multiple of it, so that one mask tells it.
const PORTS: u16 = 32;
const FIRST_PORT: u16 = 5120;

/// A tree of classes, with the floods of each.
#[derive(Debug)]
pub struct Tree {
    /// The name of the case.
    pub name: &'static str,
    /// Parents first; the first is the link.
    classes: &'static [Class],
}

#[derive(Debug)]
struct Class {
    name: &'static str,
    parent: Option<&'static str>,
    floor_mbit: u64,
    ceil_mbit: u64,
    feed: Feed,
}

/// The traffic of a class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Feed {
    /// No traffic of its own: it has children.
    Children,
    /// So many floods.
    Floods(usize),
    /// The pings.
    Pings,
}

const fn class(
    name: &'static str,
    parent: &'static str,
    floor_mbit: u64,
    ceil_mbit: u64,
    feed: Feed,
) -> Class {
    Class { name, parent: Some(parent), floor_mbit, ceil_mbit, feed }
}

const LINK: Class =
    Class { name: "link", parent: None, floor_mbit: 200, ceil_mbit: 200, feed: Feed::Children };

/// All trees, in the order of their rows.
pub const TREES: [Tree; 2] = [
    Tree {
        name: "tenants",
        classes: &[
            LINK,
            class("gold", "link", 80, 200, Feed::Floods(2)),
            class("silver", "link", 60, 60, Feed::Floods(2)),
            class("noisy", "link", 20, 200, Feed::Floods(16)),
            class("quiet", "link", 10, 200, Feed::Pings),
        ],
    },
    Tree {
        name: "nested",
        classes: &[
            LINK,
            class("gold", "link", 100, 200, Feed::Children),
            class("web", "gold", 60, 200, Feed::Floods(2)),
            class("batch", "gold", 40, 200, Feed::Floods(2)),
            class("noisy", "link", 50, 200, Feed::Children),
            class("left", "noisy", 25, 200, Feed::Floods(8)),
            class("right", "noisy", 25, 200, Feed::Floods(8)),
            class("quiet", "link", 10, 200, Feed::Pings),
        ],
    },
];

/// One system under one tree: the row of the whole, then one for each flooded class.
pub fn rows(options: &Options, tree: &Tree, system: System, steps: &mut Steps) -> Vec<Row> {
    let case = |class: &Class| format!("{}/{}", tree.name, class.name);
    match run(options, tree, system, steps) {
        Ok((whole, classes)) => {
            let mut rows = vec![Row::new(system.name(), tree.name, whole)];
            rows.extend(
                tree.flooded()
                    .zip(classes)
                    .map(|((class, _), values)| Row::new(system.name(), &case(class), values)),
            );
            rows
        }
        Err(error) => vec![Row::failed(system.name(), tree.name, Vec::new(), format!("{error:#}"))],
    }
}

fn run(options: &Options, tree: &Tree, system: System, steps: &mut Steps) -> Result<(Values, Vec<Values>)> {
    let from = Namespace::new("clients")?;
    let to = Namespace::new("servers")?;
    let (c, s) = (End { namespace: &from, name: "veth0" }, End { namespace: &to, name: "veth1" });
    tree.count_arrivals(&to)?;
    if system == System::Htb {
        bed::veth(0, c, s, 1)?;
        bed::address(0, c, s)?;
        for command in tree.tc_commands() {
            from.tc(&command).with_context(|| command.clone())?;
        }
        return measure(options, tree, [&from, &to], steps, || Ok(()));
    }
    let middle = Namespace::new("weir")?;
    let (a, b) = (End { namespace: &middle, name: "wa" }, End { namespace: &middle, name: "wb" });
    bed::veth(0, c, a, WEIR_QUEUES)?;
    bed::veth(1, b, s, 1)?;
    bed::address(0, c, s)?;
    let file = ClassesFile::new(middle.name(), &tree.classes_file(system))?;
    let path = file.0.to_str().context("the folder for temporary files has a name that is no text")?;
    let wire = Wire::start(&options.weir_binary, &middle, ["wa", "wb"], &["--classes", path])?;
    // Seen while all send: a queue whose client has ended may have had just as many packets as the last poll asked for.
    let empty = Cell::new(None);
    let (mut whole, classes) = measure(options, tree, [&from, &to], steps, || {
        empty.set(empty_wakes(&wire.counters()?));
        wire.check()
    })?;
    wire.check()?;
    whole.push(("empty_wakes", empty.get().into()));
    wire.stop()?;
    Ok((whole, classes))
}

/// Floods every class at once, with a ping beside, and calls `halfway` meanwhile.
fn measure(
    options: &Options,
    tree: &Tree,
    [from, to]: [&Namespace; 2],
    steps: &mut Steps,
    halfway: impl Fn() -> Result<()>,
) -> Result<(Values, Vec<Values>)> {
    let address = bed::names(0, 2).v4;
    let floods = start_floods(options, tree, [from, to], &address)?;
    let margin = margin_of(options);
    let ping = Ping::start(from, &address, remaining(&floods).mul_f64(0.8))?;
    let_pass(margin, |part| steps.within(part * 0.1))?;
    let (busy_before_s, (before, started_s)) = (busy_seconds()?, tree.arrivals(to)?);
    let half = remaining(&floods).saturating_sub(margin * 2) / 2;
    let_pass(half, |part| steps.within(0.1 + part * 0.4))?;
    halfway().context("while the floods ran")?;
    // A machine that is full of senders takes its time to count.
    let_pass(remaining(&floods).saturating_sub(margin * 2), |part| steps.within(0.5 + part * 0.4))?;
    let floods_end_s = epoch_seconds() + remaining(&floods).as_secs_f64();
    let (after, ended_s) = tree.arrivals(to)?;
    ensure!(
        ended_s < floods_end_s,
        "the floods ended {:.3} s before their packets were counted: {TOO_BUSY}",
        ended_s - floods_end_s
    );
    let (seconds, busy_s) = (ended_s - started_s, busy_seconds()? - busy_before_s);
    let trips = ping.finish()?;
    let mut flows = Vec::new();
    for flood in floods {
        flows.push(flood.finish(PATIENCE)?);
    }
    let bits: Vec<f64> = before
        .iter()
        .zip(&after)
        .map(|(before, after)| ((after - before) * FRAME_BYTES * 8) as f64)
        .collect();
    tree.values(&flows, &bits, &trips, seconds, busy_s)
}

/// The time at either end of floods at which rates are not the tree's to decide, while clients start and stop, and a busy machine counts.
fn margin_of(options: &Options) -> Duration {
    const MARGIN_S: f64 = 0.5;
    Duration::from_secs_f64(MARGIN_S.clamp(options.seconds * 0.1, options.seconds * 0.25))
}

fn remaining(floods: &[Flood]) -> Duration {
    floods.iter().map(Flood::remaining).min().unwrap_or_default()
}

/// Starts a flood for each class, which all end together, and gives them longer where a busy machine takes longer to start them.
fn start_floods<'a>(
    options: &Options,
    tree: &Tree,
    [from, to]: [&'a Namespace; 2],
    address: &'a str,
) -> Result<Vec<Flood<'a>>> {
    let count = tree.flooded().count();
    // The seconds that starting the floods of one class takes; those that began earlier send for longer.
    for start_s in [0.8, 2.4, 7.2] {
        let mut floods = Vec::new();
        for (index, (_, clients)) in tree.flooded().enumerate() {
            let load = Load {
                first_port: first_port(index),
                seconds: options.seconds + start_s * (count - 1 - index) as f64,
                ..Load::new(from, to, address, clients, options.seconds)
            };
            floods.push(Flood::start(&load)?);
        }
        if remaining(&floods) > margin_of(options) * 6 {
            return Ok(floods);
        }
        for flood in floods {
            flood.finish(PATIENCE)?;
        }
    }
    bail!("starting the floods takes so long that nothing is left to measure")
}

fn first_port(index: usize) -> u16 {
    FIRST_PORT + PORTS * index as u16
}

impl Tree {
    /// The classes that are flooded, and how many floods each has.
    fn flooded(&self) -> impl Iterator<Item = (&Class, usize)> {
        self.classes.iter().filter_map(|class| match class.feed {
            Feed::Floods(clients) => Some((class, clients)),
            Feed::Children | Feed::Pings => None,
        })
    }

    /// The first port and the class of each flooded class.
    fn ports(&self) -> impl Iterator<Item = (u16, &Class)> {
        self.flooded().enumerate().map(|(index, (class, _))| (first_port(index), class))
    }

    fn id(&self, name: &str) -> usize {
        1 + self.classes.iter().position(|class| class.name == name).expect("a tree names its own classes")
    }

    /// The arguments of `tc` that build the tree on `veth0`.
    fn tc_commands(&self) -> Vec<String> {
        // All other packets, such as those that resolve addresses, are the first flooded class's.
        let otherwise = self.ports().next().map_or(0, |(_, class)| self.id(class.name));
        let mut commands = vec![format!("qdisc replace dev veth0 root handle 1: htb default {otherwise:x}")];
        for class in self.classes {
            let parent = class.parent.map_or(0, |parent| self.id(parent));
            commands.push(format!(
                "class add dev veth0 parent 1:{parent:x} classid 1:{:x} htb rate {}mbit ceil {}mbit burst {BURST} cburst \
                 {BURST} quantum {}",
                self.id(class.name),
                class.floor_mbit,
                class.ceil_mbit,
                class.quantum_bytes()
            ));
            if class.feed == Feed::Pings {
                let flow = self.id(class.name);
                commands.push(format!("filter add dev veth0 parent 1: protocol ip prio 1 u32 match ip protocol 1 0xff flowid 1:{flow:x}"));
            }
        }
        for (port, class) in self.ports() {
            let (mask, flow) = (!(PORTS - 1), self.id(class.name));
            commands.push(format!("filter add dev veth0 parent 1: protocol ip prio 1 u32 match ip dport {port} {mask:#x} flowid 1:{flow:x}"));
        }
        commands
    }

    /// The tree as a classes file.
    fn classes_file(&self, system: System) -> String {
        let otherwise = self.ports().next().map_or("free", |(_, class)| class.name);
        let is_cbq = system == System::WeirCbq;
        let mut text = format!("shaper = \"{}\"\n", if is_cbq { "cbq" } else { "htb" });
        let _ = writeln!(text, "default = \"{otherwise}\"");
        for class in self.classes {
            let Class { name, floor_mbit, ceil_mbit, .. } = class;
            let _ = writeln!(text, "[[class]]\nname = \"{name}\"\nrate = \"{floor_mbit}mbit\"");
            let _ = writeln!(text, "burst = \"{BURST}\"\nquantum = \"{}b\"", class.quantum_bytes());
            if let Some(parent) = class.parent {
                let _ = writeln!(text, "parent = \"{parent}\"");
            }
            let _ = match is_cbq {
                true => writeln!(text, "bounded = {}", ceil_mbit == floor_mbit && class.parent.is_some()),
                false => writeln!(text, "ceil = \"{ceil_mbit}mbit\"\ncburst = \"{BURST}\""),
            };
            if class.feed == Feed::Pings {
                let _ = writeln!(text, "[[filter]]\nprotocol = \"icmp\"\nclass = \"{name}\"");
            }
        }
        for (port, class) in self.ports() {
            let last = port + PORTS - 1;
            let _ = writeln!(text, "[[filter]]\nprotocol = \"udp\"\nto_ports = \"{port}-{last}\"");
            let _ = writeln!(text, "class = \"{}\"", class.name);
        }
        text
    }

    /// Has netfilter count the datagrams that arrive for each flooded class.
    fn count_arrivals(&self, to: &Namespace) -> Result<()> {
        to.sh("nft add table inet arrivals")?;
        to.sh("nft add chain inet arrivals input { type filter hook input priority 0 ; }")?;
        for (port, _) in self.ports() {
            let last = port + PORTS - 1;
            to.sh(&format!("nft add rule inet arrivals input udp dport {port}-{last} counter"))?;
        }
        Ok(())
    }

    /// Datagrams that have arrived, for each flooded class, and when they were counted, in seconds.
    fn arrivals(&self, to: &Namespace) -> Result<(Vec<u64>, f64)> {
        // In real time and with the time beside it, or it is off by as much as the floods keep it from the processor.
        let mut command = Command::new("chrt");
        command.args(["-f", "1", "ip", "netns", "exec", to.name(), "sh", "-c"]);
        command.arg("nft -j list table inet arrivals && date +%s.%N");
        let told = crate::process::run(&mut command, PATIENCE)?.success()?.stdout;
        let (table, seconds) = told.trim_end().rsplit_once('\n').context("no time beside the counters")?;
        let counts = counters(table)?;
        ensure!(counts.len() == self.flooded().count(), "netfilter has {} counters", counts.len());
        Ok((counts, seconds.parse().context("date printed no time")?))
    }

    /// The values of the whole and of each flooded class.
    fn values(
        &self,
        flows: &[Vec<Flow>],
        bits: &[f64],
        trips: &RoundTrips,
        seconds: f64,
        busy_s: f64,
    ) -> Result<(Values, Vec<Values>)> {
        let mut classes: Vec<Values> = Vec::new();
        let (mut floor_share_min, mut jain_min) = (f64::INFINITY, f64::INFINITY);
        for (((class, _), flows), bits) in self.flooded().zip(flows).zip(bits) {
            let rates: Vec<f64> = flows.iter().map(|flow| flow.bits_per_s).collect();
            ensure!(flows.iter().any(|flow| flow.bytes > 0), "no datagram of class {} arrived", class.name);
            let floor_share = bits / seconds / (class.floor_mbit as f64 * 1e6);
            (floor_share_min, jain_min) = (floor_share_min.min(floor_share), jain_min.min(jain(&rates)));
            classes.push(vec![
                ("lost_pct", lost_pct(flows).into()),
                ("rate_share", (bits / seconds / RATE_BITS_PER_S).into()),
                ("floor_share", floor_share.into()),
                ("jain", jain(&rates).into()),
                ("reordered", flows.iter().map(|flow| flow.out_of_order).sum::<u64>().into()),
            ]);
        }
        let window = Window { seconds, frame_bits: bits.iter().sum(), busy_s };
        let mut whole = summarise(&flows.concat(), trips, &window)?;
        whole.retain(|(name, _)| *name != "jain");
        whole.extend([("floor_share", Value::from(floor_share_min)), ("jain", Value::from(jain_min))]);
        Ok((whole, classes))
    }
}

impl Class {
    /// A millisecond at the floor, a frame at least.
    fn quantum_bytes(&self) -> u64 {
        (self.floor_mbit * 125).max(1514)
    }
}

/// The packets that each rule's counter has seen, in the rules' order.
fn counters(text: &str) -> Result<Vec<u64>> {
    let table: Json = serde_json::from_str(text).context("nft printed no JSON")?;
    let parts = table["nftables"].as_array().context("nft printed no table")?;
    let rules = parts.iter().filter_map(|part| part["rule"]["expr"].as_array());
    let counters = rules.flatten().filter_map(|expression| expression["counter"]["packets"].as_u64());
    Ok(counters.collect())
}

/// A classes file, removed with this value.
struct ClassesFile(PathBuf);

impl ClassesFile {
    fn new(name: &str, text: &str) -> Result<ClassesFile> {
        let path = std::env::temp_dir().join(Path::new(name).with_extension("toml"));
        std::fs::write(&path, text).with_context(|| path.display().to_string())?;
        Ok(ClassesFile(path))
    }
}

impl Drop for ClassesFile {
    fn drop(&mut self) {
        // A leftover in the folder for temporary files is all that a failure means.
        let _ = std::fs::remove_file(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use weir_run::classes::{self, TreeKind};

    use super::*;

    #[test]
    fn both_kinds_of_classes_file_are_kept_without_a_warning() {
        for tree in &TREES {
            for (system, kind) in [(System::WeirHtb, TreeKind::Htb), (System::WeirCbq, TreeKind::Cbq)] {
                let text = tree.classes_file(system);
                let classes = classes::read("lab", &text, ["wa", "wb"]).unwrap();
                assert_eq!((classes.kind, classes.warnings), (kind, Vec::<String>::new()), "{text}");
                assert_eq!(classes.classes.len(), tree.classes.len());
                for (read, class) in classes.classes.iter().zip(tree.classes) {
                    assert_eq!(read.rate.bits_per_s(), class.floor_mbit * 1_000_000);
                    assert_eq!(read.ceil.bits_per_s(), class.ceil_mbit * 1_000_000, "{}", class.name);
                    assert_eq!(u64::from(read.quantum_bytes), class.quantum_bytes());
                }
            }
        }
    }

    #[test]
    fn floors_fit_under_their_parents() {
        for class in TREES.iter().flat_map(|tree| tree.classes) {
            assert!(class.floor_mbit <= class.ceil_mbit && class.ceil_mbit <= 200, "{class:?}");
        }
    }

    #[test]
    fn the_kernel_is_given_the_same_tree() {
        let commands = TREES[0].tc_commands();
        let expected = [
            "qdisc replace dev veth0 root handle 1: htb default 2",
            "class add dev veth0 parent 1:0 classid 1:1 htb rate 200mbit ceil 200mbit burst 200kb cburst 200kb quantum 25000",
            "class add dev veth0 parent 1:1 classid 1:2 htb rate 80mbit ceil 200mbit burst 200kb cburst 200kb quantum 10000",
        ];
        assert_eq!(commands[..3], expected);
        let filters = &commands[commands.len() - 4..];
        assert!(filters[0].ends_with("match ip protocol 1 0xff flowid 1:5"), "{filters:?}");
        assert!(filters[3].ends_with("match ip dport 5184 0xffe0 flowid 1:4"), "{filters:?}");
    }

    #[test]
    fn counters_are_read_in_order() {
        let text = r#"{"nftables": [{"metainfo": {}}, {"chain": {"name": "input"}},
            {"rule": {"expr": [{"match": {}}, {"counter": {"packets": 7, "bytes": 9}}]}},
            {"rule": {"expr": [{"match": {}}, {"counter": {"packets": 0, "bytes": 0}}]}}]}"#;
        assert_eq!(counters(text).unwrap(), [7, 0]);
        assert!(counters("").is_err());
    }

    #[test]
    fn a_class_is_measured_by_its_floor_and_the_whole_by_the_worst() {
        let of = Flow { bytes: 9, lost: 1, total: 10, out_of_order: 2, sent_bytes: 10, ..Flow::default() };
        let flow = |bits_per_s| Flow { bits_per_s, ..of };
        let flows = [vec![flow(1.0), flow(1.0)], vec![flow(5.0)], vec![flow(1.0), flow(0.0)]];
        let trips = RoundTrips { sent: 1, sorted_ms: vec![1.0] };
        let (whole, classes) = TREES[0].values(&flows, &[200e6, 120e6, 30e6], &trips, 2.0, 1.0).unwrap();
        let value = |name, values: &Values| values.iter().find(|(n, _)| *n == name).unwrap().1.clone();
        let floors: Vec<Value> = classes.iter().map(|values| value("floor_share", values)).collect();
        assert_eq!(floors, [1.25, 1.0, 0.75].map(Value::Number));
        assert_eq!(value("rate_share", &classes[0]), Value::Number(0.5));
        assert_eq!(value("floor_share", &whole), Value::Number(0.75));
        assert_eq!(value("rate_share", &whole), Value::Number(0.875));
        assert_eq!(value("jain", &whole), Value::Number(0.5));
        assert_eq!(value("lost_pct", &whole), Value::Number(10.0));
    }
}
