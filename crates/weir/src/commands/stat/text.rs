//! Counters as tables, for people: the traffic of the directions of each wire and topology, and where packets and frames are now.

use weir_core::drops::Count;
use weir_core::rate::Rate;
use weir_core::units::size_text;
use weir_run::datapath::Kind;
use weir_run::stats::{DeviceStats, DirectionStats, FrameStats, PlaceStats, PortStats, Snapshot, WireStats};

use crate::human;
use crate::table::{Style, TextTable, paint};

/// Everything that is up.
pub fn render(snapshot: &Snapshot, colour: bool) -> String {
    let each = snapshot.each().map(|(kind, stats, ports)| one(kind, stats, ports, colour));
    each.collect::<Vec<_>>().join("\n")
}

fn one(kind: Kind, wire: &WireStats, ports: &[PortStats], colour: bool) -> String {
    let uptime_ns = wire.worker.now_ns.saturating_sub(wire.worker.since_ns);
    let (noun, joins) = match (kind, &wire.process) {
        (_, Some(process)) => ("stack", super::sockets::heading(wire, process)),
        (Kind::Wire, None) => (kind.noun(), wire.ports.join(" <-> ")),
        (Kind::Topology, None) => (kind.noun(), human::plural(wire.ports.len() as u64, "port")),
    };
    let heading = format!("{noun} {}: {joins}, up for {}", wire.name, human::uptime(uptime_ns));
    let mut parts = vec![
        paint(&heading, Style::Heading, colour) + "\n",
        limits_and_books(&wire.classes).render(colour),
        waits(&wire.classes, uptime_ns).render(colour),
        port_table(ports).render(colour),
        device_table(ports).render(colour),
        frames_line(wire),
    ];
    parts.extend(unfit_lines(ports));
    parts.extend(forwarded_lines(ports));
    if !wire.events.is_empty() {
        parts.insert(5, event_table(wire).render(colour));
    }
    if let Some(reasons) = reasons(&wire.classes) {
        parts.insert(2, reasons.render(colour));
    }
    parts.extend(super::sockets::parts(wire, uptime_ns, colour));
    parts.extend(super::associations::parts(&wire.stages));
    parts.extend(super::stages::tables(&wire.stages).iter().map(|table| table.render(colour)));
    parts.extend(super::classes::table(&wire.classes).map(|table| table.render(colour)));
    parts.join("\n")
}

fn plain(text: impl Into<String>) -> (String, Style) {
    (text.into(), Style::Plain)
}

/// A count that should be 0, so anything else stands out.
fn unwanted(number: u64) -> (String, Style) {
    (human::count(number), if number == 0 { Style::Plain } else { Style::Fault })
}

fn limits_and_books(classes: &[DirectionStats]) -> TextTable {
    let mut table = TextTable::new(
        1,
        &["direction", "rate", "burst", "queue", "accepted", "", "delivered", "", "held", "dropped"],
    );
    for class in classes {
        let rate = class.rate_bits_per_s.and_then(Rate::from_bits_per_s);
        let size = |bytes: Option<u64>, text: fn(u64) -> String| plain(bytes.map_or("-".into(), text));
        let dropped = class.place.books.dropped.values().map(|amount| amount.packets).sum();
        table.row(vec![
            plain(&class.place.name),
            plain(rate.map_or("unlimited".into(), |rate| rate.to_string())),
            size(class.burst_bytes, size_text),
            size(class.limit_bytes, human::bytes),
            plain(human::count(class.place.books.accepted.packets)),
            plain(human::bytes(class.place.books.accepted.bytes)),
            plain(human::count(class.place.books.delivered.packets)),
            plain(human::bytes(class.place.books.delivered.bytes)),
            plain(human::count(class.place.books.held.packets)),
            unwanted(dropped),
        ]);
    }
    table
}

/// The drops by reason, if there were any.
fn reasons(classes: &[DirectionStats]) -> Option<TextTable> {
    let mut table = TextTable::new(2, &["direction", "dropped because of", "packets", "bytes"]);
    for class in classes {
        for (reason, &Count { packets, bytes }) in &class.place.books.dropped {
            let bytes = human::bytes(bytes);
            table.row(vec![plain(&class.place.name), plain(reason), unwanted(packets), plain(bytes)]);
        }
    }
    classes.iter().any(|class| !class.place.books.dropped.is_empty()).then_some(table)
}

fn waits(classes: &[DirectionStats], uptime_ns: u64) -> TextTable {
    let mut table =
        TextTable::new(1, &["direction", "senders blocked", "of the time", "delay p50", "p99", "longest"]);
    for class in classes {
        let PlaceStats { name, blocked_ns, delay_ns_p50, delay_ns_p99, delay_ns_max, .. } = &class.place;
        let style = if blocked_ns.is_some_and(|ns| ns > 0) { Style::Notice } else { Style::Plain };
        table.row(vec![
            plain(name),
            (human::time(*blocked_ns), style),
            (blocked_ns.map_or_else(|| "-".into(), |ns| human::percent(ns, uptime_ns)), style),
            plain(human::time(*delay_ns_p50)),
            plain(human::time(*delay_ns_p99)),
            plain(human::time(*delay_ns_max)),
        ]);
    }
    table
}

fn port_table(ports: &[PortStats]) -> TextTable {
    let has_several = ports.iter().any(|port| port.worker > 0);
    let counted =
        ["queues", "sender's queue", "dropped there", "lost by the kernel", "while down"].into_iter();
    let names = ["port", "sender", "polled by"].into_iter().chain(has_several.then_some("worker"));
    let mut table = TextTable::new(3, &names.chain(counted).collect::<Vec<_>>());
    for port in ports {
        let worker = has_several.then(|| plain(port.worker.to_string()));
        let names = [plain(&port.name), plain(&port.sender), plain(&port.poller)].into_iter().chain(worker);
        let counted = [
            plain(human::count(port.queues as u64)),
            plain(human::count(port.sender_queue_packets)),
            unwanted(port.sender_queue_dropped),
            unwanted(port.kernel_dropped),
            plain(human::count(port.lost_while_down)),
        ];
        table.row(names.chain(counted).collect());
    }
    table
}

/// The devices of these ports: their states, and the packets that the kernel dropped there.
fn device_table(ports: &[PortStats]) -> TextTable {
    let mut table = TextTable::new(
        2,
        &["device", "state", "dropped coming in", "going out", "by its queue", "unexplained"],
    );
    for (name, device) in ports.iter().flat_map(PortStats::devices) {
        let DeviceStats { name: _, state, rx_dropped, tx_dropped, queue_dropped, unexplained } = device;
        let style = if state == "up" { Style::Plain } else { Style::Notice };
        table.row(vec![
            plain(&name),
            (state.clone(), style),
            plain(human::count(*rx_dropped)),
            plain(human::count(*tx_dropped)),
            plain(human::count(*queue_dropped)),
            unwanted(unexplained.rx + unexplained.tx + unexplained.queue),
        ]);
    }
    table
}

/// The events of the interfaces.
fn event_table(wire: &WireStats) -> TextTable {
    let mut table =
        TextTable::new(1, &["event", "times", "dropped meanwhile", "waited in a queue that was emptied"]);
    for (event, stats) in &wire.events {
        table.row(vec![
            plain(event),
            plain(human::count(stats.times)),
            plain(human::count(stats.dropped)),
            plain(human::count(stats.waiting)),
        ]);
    }
    table
}

/// A line for each port whose interface cannot be one as it is, with the reason.
fn unfit_lines(ports: &[PortStats]) -> Option<String> {
    let unfit = ports.iter().filter(|port| !port.unfit_because.is_empty());
    let lines = unfit.map(|port| format!("{} is unfit: {}\n", port.name, port.unfit_because));
    Some(lines.collect::<String>()).filter(|lines| !lines.is_empty())
}

/// A line for each port that dropped forwarded packets, which could not be held, because too many waited.
fn forwarded_lines(ports: &[PortStats]) -> Option<String> {
    let lines = ports.iter().filter(|port| port.forwarded_dropped > 0).map(|port| {
        let (dropped, waits) = (human::plural(port.forwarded_dropped, "packet"), human::bytes(port.forwarded_bytes));
        format!("{}: {dropped} without a socket (forwarded) dropped, as too much of such waited; now {waits} waits\n", port.sender)
    });
    Some(lines.collect::<String>()).filter(|lines| !lines.is_empty())
}

fn frames_line(wire: &WireStats) -> String {
    let FrameStats { total, free, lent, held, sockets } = wire.frames;
    let [total, free, lent, held, sockets] = [total, free, lent, held, sockets].map(human::count);
    let sockets = if wire.process.is_some() { format!(" + {sockets} with sockets") } else { String::new() };
    format!("frames: {total} = {free} free + {lent} with the kernel + {held} held{sockets}\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::stat::sample::{idle, snapshot, topology};

    #[test]
    fn a_topology_has_a_row_for_what_leaves_by_each_port() {
        let expected = "\
topology lan: 3 ports, up for 2h 13m

direction       rate  burst   queue  accepted           delivered           held  dropped
->a          200mbit   20kb  125 kB        30  2.52 kB         30  2.52 kB     0        0
->b        unlimited      -       -        10    840 B         10    840 B     0        0
->c        unlimited      -       -         0      0 B          0      0 B     0        0
";
        let text = render(&topology(), false);
        assert!(text.starts_with(expected), "{text}");
        assert!(text.lines().any(|line| line.starts_with("c     veth7 ")), "{text}");
        let mut both = topology();
        both.merge(idle());
        assert_eq!(render(&both, false), format!("{}\n{text}", render(&idle(), false)), "wires stand first");
    }

    #[test]
    fn a_wire_under_load() {
        let expected = "\
wire wa: wa <-> wb, up for 2h 13m

direction       rate  burst   queue   accepted           delivered           held  dropped
wa->wb       200mbit   20kb  125 kB  1,234,567  1.87 GB  1,234,252  1.87 GB   312        3
wb->wa     unlimited      -       -     12,345   812 kB     12,345   812 kB     0        0

direction  dropped because of  packets    bytes
wa->wb     too-long                  3  4.54 kB

direction  senders blocked  of the time  delay p50      p99  longest
wa->wb             7,368 s       92.1 %    4.19 ms  5.02 ms  7.98 ms
wb->wa                 0 s        0.0 %    2.05 us  16.4 us   310 us

port  sender  polled by  queues  sender's queue  dropped there  lost by the kernel  while down
wa    veth0   socket        128           1,024              0                   0           0
wb    veth0   io_uring        1               0              7                   0          42

device       state       dropped coming in  going out  by its queue  unexplained
wa           up                          0          0             0            0
veth0 of wa  up                          0          0             0            0
wb           down                        0          0             0            0
veth0 of wb  no-carrier                  0         17             7            0

event  times  dropped meanwhile  waited in a queue that was emptied
down       2                 17                                 300

frames: 16,384 = 7,744 free + 8,328 with the kernel + 312 held
";
        assert_eq!(render(&snapshot(), false), expected);
    }

    #[test]
    fn of_several_workers_each_port_has_one() {
        let mut topology = topology();
        topology.ports[2].worker = 1;
        let text = render(&topology, false);
        let starts = |with: &str| text.lines().any(|line| line.starts_with(with));
        assert!(starts("port  sender  polled by  worker  queues"), "{text}");
        assert!(
            starts("b     veth7   socket          0 ") && starts("c     veth7   socket          1 "),
            "{text}"
        );
    }

    #[test]
    fn an_unfit_port_has_a_line_with_the_reason() {
        let mut topology = topology();
        assert!(!render(&topology, false).contains("unfit"));
        topology.ports[2].unfit_because = "c belongs to a bridge".into();
        let text = render(&topology, false);
        assert!(text.lines().any(|line| line == "c is unfit: c belongs to a bridge"), "{text}");
    }

    #[test]
    fn wires_are_set_apart_and_each_has_its_own_ports() {
        let mut both = snapshot();
        both.merge(idle());
        let text = render(&both, false);
        assert_eq!(text, format!("{}\n{}", render(&snapshot(), false), render(&idle(), false)));
        assert!(render(&idle(), false).contains("veth9"));
    }

    #[test]
    fn only_what_needs_a_look_is_coloured() {
        let calm = render(&idle(), true);
        assert!(!calm.contains("\x1b[33m") && !calm.contains("\x1b[1;31m"), "{calm}");
        let busy = render(&snapshot(), true);
        assert!(busy.contains("\x1b[33m92.1 %\x1b[0m") && busy.contains("\x1b[1;31m3\x1b[0m"), "{busy}");
    }
}
