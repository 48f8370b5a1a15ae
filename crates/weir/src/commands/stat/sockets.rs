//! The sockets of a stack as tables: each UDP socket, and TCP by listener.
//!
//! Rule: a stack may have thousands of either. Connections are summed by the listener that they came by; of UDP sockets so many are listed
//! as a screen has, those first that are throttled or have lost something. `--json` tells each.

use weir_run::stats::socket::{ConnectionSum, ProcessStats, SocketStats, ThrottleStats};
use weir_run::stats::{PlaceStats, WireStats};

use crate::human;
use crate::table::{Style, TextTable};

/// UDP sockets that are listed at the most.
const LISTED: usize = 24;
/// netstat -s: "dropped due to full socket buffers".
const FULL: &str = "socket-full";

/// The counts of a stack, and its process: for its heading.
pub fn heading(stack: &WireStats, process: &ProcessStats) -> String {
    let counts = [
        (stack.sockets.len(), "socket"),
        (stack.listeners.len(), "listener"),
        (stack.connections.len(), "connection"),
    ];
    let there = counts.into_iter().filter(|(count, thing)| *count > 0 || *thing == "socket");
    let counts: Vec<_> = there.map(|(count, thing)| human::plural(count as u64, thing)).collect();
    format!("{} of {} (process {})", counts.join(", "), process.program, process.pid)
}

/// The tables of its sockets, then of its listeners with their connections; and a line on those that are left out.
pub fn parts(stack: &WireStats, uptime_ns: u64, colour: bool) -> Vec<String> {
    let mut parts = Vec::new();
    if !stack.sockets.is_empty() {
        parts.push(sockets(&stack.sockets, uptime_ns).render(colour));
    }
    if stack.sockets.len() > LISTED {
        let more = human::plural((stack.sockets.len() - LISTED) as u64, "more socket");
        parts.push(format!("{more}: `weir stat {} --json` tells each\n", stack.name));
    }
    if !stack.listeners.is_empty() || !stack.connections.is_empty() {
        parts.push(listeners(stack).render(colour));
    }
    parts
}

fn plain(text: impl Into<String>) -> (String, Style) {
    (text.into(), Style::Plain)
}

fn count(number: u64) -> (String, Style) {
    plain(human::count(number))
}

fn unwanted(number: u64) -> (String, Style) {
    (human::count(number), if number == 0 { Style::Plain } else { Style::Fault })
}

fn full(place: &PlaceStats) -> u64 {
    place.books.dropped.get(FULL).map_or(0, |amount| amount.packets)
}

fn sockets(sockets: &[SocketStats], uptime_ns: u64) -> TextTable {
    let mut table = TextTable::new(
        3,
        &[
            "socket",
            "peer",
            "throttled",
            "for",
            "of the time",
            "sent",
            "received",
            "read",
            "held",
            "full socket buffers",
            "dropped otherwise",
            "holds senders",
        ],
    );
    let mut order: Vec<_> = sockets.iter().collect();
    order.sort_by_key(|socket| {
        (!socket.throttle.is_throttled, full(&socket.place) == 0, socket.throttle.throttled_ns == 0)
    });
    for SocketStats { place, peer, sent, throttle, .. } in order.into_iter().take(LISTED) {
        let PlaceStats { books, blocked_ns, .. } = place;
        let dropped: u64 = books.dropped.values().map(|amount| amount.packets).sum();
        let ThrottleStats { is_throttled, throttled_ns, .. } = throttle;
        let style = if *is_throttled { Style::Notice } else { Style::Plain };
        table.row(vec![
            plain(&place.name),
            plain(peer.as_deref().unwrap_or("-")),
            (if *is_throttled { "now" } else { "no" }.into(), style),
            (human::duration(*throttled_ns), style),
            plain(human::percent(*throttled_ns, uptime_ns)),
            count(*sent),
            count(books.accepted.packets),
            count(books.delivered.packets),
            count(books.held.packets),
            unwanted(full(place)),
            unwanted(dropped - full(place)),
            plain(human::time(*blocked_ns)),
        ]);
    }
    table
}

fn listeners(stack: &WireStats) -> TextTable {
    let mut table = TextTable::new(
        1,
        &[
            "listener",
            "connections",
            "throttled now",
            "for, together",
            "wait",
            "of",
            "half open",
            "refused",
            "made room",
        ],
    );
    let sums = ConnectionSum::by_listener(&stack.connections);
    let of = |sum: Option<&ConnectionSum>| {
        let sum = sum.cloned().unwrap_or_default();
        let style = if sum.throttled_now > 0 { Style::Notice } else { Style::Plain };
        [
            count(sum.connections),
            (human::count(sum.throttled_now), style),
            plain(human::duration(sum.throttle.throttled_ns)),
        ]
    };
    for listener in &stack.listeners {
        let mut row = vec![plain(format!("tcp {}", listener.local))];
        row.extend(of(sums.get(&Some(listener.local.as_str()))));
        let counts =
            [listener.waiting, listener.backlog, listener.half_open, listener.refused, listener.replaced];
        row.extend(counts.map(count));
        table.row(row);
    }
    if let Some(sum) = sums.get(&None) {
        let mut row = vec![plain("tcp, by none")];
        row.extend(of(Some(sum)));
        row.extend([(); 5].map(|()| plain("-")));
        table.row(row);
    }
    table
}

#[cfg(test)]
mod tests {
    use weir_core::drops::Count;
    use weir_run::books::Books;
    use weir_run::stats::socket::{ConnectionStats, ListenerStats};

    use super::*;

    const S: u64 = 1_000_000_000;

    fn socket(number: u16, throttled_ns: u64) -> SocketStats {
        let count = |packets| Count { packets, bytes: packets * 100 };
        let books =
            Books { accepted: count(1_000), delivered: count(998), held: count(2), ..Books::default() };
        let place =
            PlaceStats { blocked_ns: Some(0), ..PlaceStats::new(format!("udp 192.0.2.2:{number}"), books) };
        let throttle = ThrottleStats { throttled_ns, ..ThrottleStats::default() };
        SocketStats { place, sent: 998, throttle, ..SocketStats::default() }
    }

    fn connection(listener: Option<&str>, is_throttled: bool) -> ConnectionStats {
        let throttle = ThrottleStats { is_throttled, throttled_ns: S, ..ThrottleStats::default() };
        ConnectionStats { listener: listener.map(String::from), throttle, ..ConnectionStats::default() }
    }

    #[test]
    fn a_socket_is_a_row_and_a_thousand_connections_are_one() {
        let mut throttled = socket(8, 2 * S);
        throttled.throttle.is_throttled = true;
        throttled.peer = Some("192.0.2.1:4000".into());
        throttled.place.books.dropped.insert(FULL.into(), Count { packets: 7, bytes: 700 });
        let mut connections: Vec<_> = (0..1_000).map(|at| connection(Some("192.0.2.2:80"), at < 3)).collect();
        connections.push(connection(None, false));
        let listener = ListenerStats {
            local: "192.0.2.2:80".into(),
            waiting: 2,
            backlog: 128,
            ..ListenerStats::default()
        };
        let stack = WireStats {
            sockets: vec![socket(7, 0), throttled],
            listeners: vec![listener],
            connections,
            ..WireStats::default()
        };
        let expected = "\
socket           peer            throttled     for  of the time  sent  received  read  held  full socket buffers  dropped otherwise  holds senders
udp 192.0.2.2:8  192.0.2.1:4000  now        2.00 s       20.0 %   998     1,000   998     2                    7                  0            0 s
udp 192.0.2.2:7  -               no            0 s        0.0 %   998     1,000   998     2                    0                  0            0 s

listener          connections  throttled now  for, together  wait   of  half open  refused  made room
tcp 192.0.2.2:80        1,000              3        1,000 s     2  128          0        0          0
tcp, by none                1              0         1.00 s     -    -          -        -          -
";
        assert_eq!(parts(&stack, 10 * S, false).join("\n"), expected);
        let process = ProcessStats { pid: 4711, program: "echo".into() };
        assert_eq!(
            heading(&stack, &process),
            "2 sockets, 1 listener, 1,001 connections of echo (process 4711)"
        );
        assert_eq!(heading(&WireStats::default(), &process), "0 sockets of echo (process 4711)");
    }

    #[test]
    fn of_many_sockets_those_that_need_a_look_are_listed() {
        let mut sockets: Vec<_> = (0..1_000).map(|number| socket(number, 0)).collect();
        sockets[999].throttle.is_throttled = true;
        let stack = WireStats { name: "veth-a".into(), sockets, ..WireStats::default() };
        let text = parts(&stack, S, false).join("\n");
        assert!(text.lines().count() < LISTED + 5, "{text}");
        assert!(text.lines().nth(1).is_some_and(|line| line.starts_with("udp 192.0.2.2:999 ")), "{text}");
        assert!(text.ends_with("976 more sockets: `weir stat veth-a --json` tells each\n"), "{text}");
    }
}
