//! The costs and settings of the machine: none of them keeps Weir from running, all of them can make it worse or be mistaken for it.

use std::fs;

use weir_port::hold::left::{self, Left};
use weir_port::limit::backlog::PACKETS_MIN;
use weir_port::{qdisc, sys};
use weir_run::clock::now_ns;
use weir_run::idle::wake_cost_ns;

use super::Check;
use crate::human;

/// The most that a wake-up, or a timer beyond its time, takes where sleeping pays, in nanoseconds; above it packets wait noticeably.
const LATE_NS_MAX: u64 = 300_000;
/// The most that reading the clock takes where it needs no call into the kernel, in nanoseconds.
const CLOCK_NS_MAX: u64 = 250;
/// The kernel's default; a burst of a wire is 64 packets, of several wires several times that.
const BACKLOG_MIN: u64 = 1000;
/// The words for a setting that is the first namespace's alone, and not to be seen from others.
const NOT_SHOWN: &str = "not shown in this namespace";
/// The bytes that the kernel charges for a small packet (`skb->truesize`).
const SMALL_PACKET_BYTES: u64 = 768;
/// The number of sockets that may flood at once without the qdisc being shorter than their buffers.
const FLOODS_MIN: u64 = 64;

/// All checks of the machine.
pub fn checks() -> Vec<Check> {
    let snmp = fs::read_to_string("/proc/net/snmp").unwrap_or_default();
    let snmp6 = fs::read_to_string("/proc/net/snmp6").unwrap_or_default();
    let mut checks = vec![
        cores(sys::allowed_cores().len() as u64),
        clock(read("/sys/devices/system/clocksource/clocksource0/current_clocksource"), clock_cost_ns()),
        wake_up(wake_cost_ns().ok(), timer_late_ns()),
        backlog(sysctl("net/core/netdev_max_backlog"), softnet_dropped(&read("/proc/net/softnet_stat"))),
        send_buffers(sysctl("net/core/wmem_default")),
        default_qdisc(&read("/proc/sys/net/core/default_qdisc")),
        receive_errors(udp(&snmp, &snmp6, "RcvbufErrors")),
        send_errors(udp(&snmp, &snmp6, "SndbufErrors")),
    ];
    checks.extend(left::all().iter().map(left_behind));
    checks
}

/// The changes that killed weirs left of interfaces.
fn left_behind(left: &Left) -> Check {
    Check::warn("left behind", left.state(), format!("put back by `{}`", left.command))
}

fn cores(count: u64) -> Check {
    const NAME: &str = "cores";
    match count {
        1 => Check::warn(
            NAME,
            "one, which a wire's worker shares with its senders",
            "allow this process more cores",
        ),
        _ => Check::ok(NAME, format!("{count} that this process may use")),
    }
}

fn clock(source: String, cost_ns: u64) -> Check {
    let what = format!("{} takes {} to read", source.trim(), human::duration(cost_ns));
    if cost_ns <= CLOCK_NS_MAX {
        return Check::ok("clock", what);
    }
    Check::warn(
        "clock",
        what,
        "choose a faster clock source (tsc): clocksource= on the kernel's command line",
    )
}

fn wake_up(wake_ns: Option<u64>, late_ns: u64) -> Check {
    const NAME: &str = "wake-up";
    let Some(wake_ns) = wake_ns else {
        return Check::warn(
            NAME,
            "could not be measured",
            "see whether this process may make sockets and threads",
        );
    };
    let what =
        format!("{} to wake a thread, timers {} late", human::duration(wake_ns), human::duration(late_ns));
    if wake_ns.max(late_ns) <= LATE_NS_MAX {
        return Check::ok(NAME, what);
    }
    Check::warn(
        NAME,
        what,
        "packets wait that long after a pause: look for a busy host or deep idle states (cpuidle)",
    )
}

fn backlog(limit: Option<u64>, dropped: u64) -> Check {
    const NAME: &str = "backlog";
    let shown = limit.map_or(NOT_SHOWN.into(), human::count);
    let what =
        format!("net.core.netdev_max_backlog is {shown}, {} dropped there since boot", human::count(dropped));
    if limit.is_none_or(|limit| limit >= BACKLOG_MIN) && dropped == 0 {
        return Check::ok(NAME, what);
    }
    Check::warn(
        NAME,
        what,
        format!(
            "a receiver's core that falls behind drops what a wire delivers (device-refused in `weir stat`, or unseen): `sysctl -w \
             net.core.netdev_max_backlog={PACKETS_MIN}`"
        ),
    )
}

fn send_buffers(wmem_default: Option<u64>) -> Check {
    const NAME: &str = "send buffers";
    let Some(bytes) = wmem_default else {
        return Check::warn(NAME, "net.core.wmem_default cannot be read", "mount /proc");
    };
    let floods = u64::from(qdisc::HELD_SINGLE) * SMALL_PACKET_BYTES / bytes.max(1);
    let what = format!(
        "net.core.wmem_default is {}, so {} sockets can flood one queue",
        human::bytes(bytes),
        human::count(floods)
    );
    if floods >= FLOODS_MIN {
        return Check::ok(NAME, what);
    }
    let fix = "more would overrun the senders' qdisc: make it smaller, or give the pair more queues (`numtxqueues`)";
    Check::warn(NAME, what, fix)
}

/// The default qdisc, which is never a fault: it is said because users who know that CoDel drops suspect it first.
fn default_qdisc(name: &str) -> Check {
    let name = if name.trim().is_empty() { NOT_SHOWN } else { name.trim() };
    let drops = ["codel", "pie", "cake", "sfb"].iter().any(|kind| name.contains(kind));
    let what = match drops {
        true => format!(
            "net.core.default_qdisc is {name}, which drops; a wire gives its senders a pfifo of its own"
        ),
        false => format!("net.core.default_qdisc is {name}; a wire gives its senders a pfifo of its own"),
    };
    Check::ok("qdisc", what)
}

fn receive_errors(count: u64) -> Check {
    const NAME: &str = "receivers";
    if count == 0 {
        return Check::ok(NAME, "no datagram was lost in a full receive buffer (RcvbufErrors)");
    }
    Check::warn(
        NAME,
        format!(
            "{} lost in full receive buffers of programs here since boot (RcvbufErrors), which no limit before them can help",
            human::plural(count, "datagram")
        ),
        "`sysctl -w net.core.rmem_max=8388608 net.core.rmem_default=8388608`, or have the program read faster",
    )
}

fn send_errors(count: u64) -> Check {
    const NAME: &str = "senders";
    if count == 0 {
        return Check::ok(NAME, "no datagram was lost on its way out (SndbufErrors)");
    }
    Check::warn(
        NAME,
        format!(
            "{} lost on the way out of this namespace since boot (SndbufErrors), though send said all was well",
            human::plural(count, "datagram")
        ),
        "this is what a wire or `weir run` puts an end to: put the limit there and take the qdisc that drops away",
    )
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

fn sysctl(name: &str) -> Option<u64> {
    read(&format!("/proc/sys/{name}")).trim().parse().ok()
}

/// A counter of UDP over IPv4 and IPv6 together.
fn udp(snmp: &str, snmp6: &str, counter: &str) -> u64 {
    let mut lines = snmp.lines().filter_map(|line| line.strip_prefix("Udp: "));
    let (names, values) = (lines.next().unwrap_or(""), lines.next().unwrap_or(""));
    let v4 = names.split(' ').zip(values.split(' ')).find(|(name, _)| *name == counter);
    let wanted = format!("Udp6{counter}");
    let v6 = snmp6
        .lines()
        .filter_map(|line| line.split_once(char::is_whitespace))
        .find(|(name, _)| *name == wanted);
    [v4, v6].into_iter().flatten().filter_map(|(_, value)| value.trim().parse::<u64>().ok()).sum()
}

/// The second column, of all cores, in hexadecimal: packets that found the backlog full.
fn softnet_dropped(text: &str) -> u64 {
    let columns = text.lines().filter_map(|line| line.split_whitespace().nth(1));
    columns.filter_map(|column| u64::from_str_radix(column, 16).ok()).sum()
}

/// The least of some rounds: in the others somebody else had the core.
fn clock_cost_ns() -> u64 {
    const ROUNDS: usize = 20;
    const READINGS: u64 = 50;
    let round_ns = |_| {
        let start_ns = now_ns();
        for _ in 0..READINGS {
            std::hint::black_box(now_ns());
        }
        (now_ns() - start_ns) / READINGS
    };
    (0..ROUNDS).map(round_ns).min().unwrap_or(0)
}

/// By how much a worker's short sleeps end late: the median of some, on a thread that asks for no slack, as workers do.
fn timer_late_ns() -> u64 {
    const SLEEPS: usize = 31;
    const SLEEP_NS: u64 = 100_000;
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            sys::set_timer_slack_ns(1);
            let mut late_ns = [0; SLEEPS];
            for late_ns in &mut late_ns {
                let due_ns = now_ns() + SLEEP_NS;
                // Interrupted, it is early, which counts as in time.
                let _ = sys::poll(&mut [], Some(SLEEP_NS));
                *late_ns = now_ns().saturating_sub(due_ns);
            }
            late_ns.sort_unstable();
            late_ns[SLEEPS / 2]
        });
        thread.join().unwrap_or(0)
    })
}

#[cfg(test)]
mod tests {
    use super::super::Status;
    use super::*;

    #[test]
    fn udp_counters_are_found_by_name() {
        let snmp = "Tcp: RcvbufErrors\nTcp: 99\nUdp: InDatagrams RcvbufErrors SndbufErrors\nUdp: 133 5 7\n";
        let snmp6 = "Udp6RcvbufErrors                \t3\nUdp6SndbufErrors                \t0\n";
        assert_eq!(udp(snmp, snmp6, "RcvbufErrors"), 8);
        assert_eq!(udp(snmp, snmp6, "SndbufErrors"), 7);
        assert_eq!(udp("", "", "RcvbufErrors"), 0);
    }

    #[test]
    fn drops_of_all_cores_are_added_in_hexadecimal() {
        assert_eq!(softnet_dropped("0000ff 0000000a 0 0\n000001 00000001 0 0\n"), 11);
    }

    #[test]
    fn receiver_loss_is_named_and_is_not_ours() {
        let check = receive_errors(12_345);
        assert_eq!(check.status, Status::Warn);
        assert!(check.what.starts_with("12,345 datagrams") && check.fix.unwrap().contains("rmem"));
        assert_eq!(receive_errors(0).status, Status::Ok);
    }

    #[test]
    fn send_buffers_that_overrun_the_qdisc_are_a_warning() {
        assert_eq!(send_buffers(Some(212_992)).status, Status::Ok);
        assert_eq!(send_buffers(Some(8 << 20)).status, Status::Warn);
    }

    #[test]
    fn a_backlog_that_has_dropped_is_a_warning() {
        assert_eq!(backlog(Some(1000), 0).status, Status::Ok);
        assert_eq!(backlog(Some(1000), 1).status, Status::Warn);
        assert_eq!(backlog(Some(300), 0).status, Status::Warn);
        assert_eq!(backlog(None, 0).status, Status::Ok);
    }
}
