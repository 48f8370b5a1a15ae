//! The one line that is printed when the program of `weir run` has ended.

use weir_core::rate::Rate;
use weir_port::unsent::Unsent;
use weir_run::nearest::and;

use super::rest::Remainder;
use super::way::Totals;
use crate::commands::drops;
use crate::human::{bytes, count, duration, plural};

/// The line on a run, by the last limit, which may not be the first: the packets that the program sent, their rate over all its time, and
/// the drops; and what each interface of the way out dropped `beyond` the run.
pub fn line(
    limit: Rate,
    totals: &Totals,
    rest: &Remainder,
    elapsed_ns: u64,
    beyond: &[(String, u64)],
) -> String {
    let limit = totals.limit.unwrap_or(limit);
    let Some(sent) = totals.sent else { return format!("{limit}: what it sent in all was not counted") };
    let blocked = totals.blocked_ns.map_or("for an unknown time".into(), duration);
    let dropped = dropped(totals, rest.lost(totals), rest.tcp);
    format!(
        "{limit}: sent {} ({}) at {} for {}, received {}, senders blocked {blocked}, dropped {}{}",
        plural(sent.packets, "packet"),
        bytes(sent.bytes),
        rate(sent.bytes, elapsed_ns),
        duration(elapsed_ns),
        count(totals.received),
        dropped,
        dropped_beyond(beyond, dropped == drops::NONE)
    )
}

/// The words on drops beyond the run, by its way out: where the run itself dropped `none`, how far that is known.
fn dropped_beyond(beyond: &[(String, u64)], none: bool) -> String {
    let names: Vec<_> = beyond.iter().map(|(name, _)| name.as_str()).collect();
    let known = match (none, &names[..]) {
        (false, _) | (_, []) => String::new(),
        (true, names) => format!(" before this host's {}", and(names)),
    };
    let each = beyond.iter().filter(|(_, packets)| *packets > 0);
    let each: Vec<_> =
        each.map(|(name, packets)| format!("{name} dropped {}", plural(*packets, "packet"))).collect();
    let each: Vec<_> = each.iter().map(String::as_str).collect();
    match &each[..] {
        [] => known,
        each => format!("{known}; meanwhile {}, of CMD or of others", and(each)),
    }
}

/// `none`, or how many and why: by the rules of the limit, by the kernel, or with the network, which ended before they had left. Data that
/// closed TCP connections had to send is no packets yet.
fn dropped(totals: &Totals, unsent: u64, tcp: Unsent) -> String {
    let mut drops = totals.dropped.clone();
    *drops.entry("unsent".into()).or_default() += unsent;
    let packets = drops::text(&drops);
    if tcp.sockets == 0 {
        return packets;
    }
    let tcp =
        format!("{} of {} not acknowledged", bytes(tcp.bytes), plural(tcp.sockets, "closed TCP connection"));
    if packets == drops::NONE { tcp } else { format!("{packets}; {tcp}") }
}

/// A rate in tc's units, to a tenth.
fn rate(total_bytes: u64, elapsed_ns: u64) -> String {
    let tenths = u128::from(total_bytes) * 80_000_000_000 / u128::from(elapsed_ns.max(1));
    let units = [(1_000_000_000, "gbit"), (1_000_000, "mbit"), (1000, "kbit")];
    let (worth, unit) = units.into_iter().find(|(worth, _)| tenths >= worth * 10).unwrap_or((1, "bit"));
    let tenths = (tenths + worth / 2) / worth;
    format!("{}.{}{unit}", tenths / 10, tenths % 10)
}

#[cfg(test)]
mod tests {
    use weir_core::drops::Count;

    use super::*;
    use crate::commands::drops::DropsByReason;

    fn totals(drops: bool) -> Totals {
        let dropped =
            [("sender-queue", 1_000), ("too-long", 2)].map(|(reason, packets)| (reason.into(), packets));
        Totals {
            limit: None,
            sent: Some(Count { packets: 81_380, bytes: 81_380 * 1500 }),
            accepted: 81_380,
            waiting: None,
            received: 1_100,
            blocked_ns: Some(4_900_000_000),
            dropped: if drops { dropped.into() } else { DropsByReason::new() },
        }
    }

    #[test]
    fn a_run_in_one_line() {
        let limit: Rate = "200mbit".parse().unwrap();
        let none = Remainder::default();
        assert_eq!(
            line(limit, &totals(false), &none, 5_000_000_000, &[]),
            "200mbit: sent 81,380 packets (122 MB) at 195.3mbit for 5.00 s, received 1,100, senders blocked 4.90 s, \
             dropped none"
        );
        assert!(
            line(limit, &totals(true), &none, 1, &[])
                .ends_with("dropped 1,002: 1,000 sender-queue, 2 too-long")
        );
        let told = line(limit, &Totals::default(), &none, 1, &[]);
        assert_eq!(told, "200mbit: what it sent in all was not counted");
    }

    #[test]
    fn none_is_claimed_as_far_as_the_way_out_and_what_that_drops_is_told() {
        let beyond = |dropped: [u64; 2]| [("eth0".to_string(), dropped[0]), ("eth1".to_string(), dropped[1])];
        let told = |drops, beyond: &[_]| {
            let line = line("200mbit".parse().unwrap(), &totals(drops), &Remainder::default(), 1, beyond);
            line.split_once("dropped ").unwrap().1.to_string()
        };
        assert_eq!(told(false, &beyond([0, 0])), "none before this host's eth0 and eth1");
        assert_eq!(
            told(false, &beyond([512, 0])[..1]),
            "none before this host's eth0; meanwhile eth0 dropped 512 packets, of CMD or of others"
        );
        assert_eq!(
            told(true, &beyond([1, 2])),
            "1,002: 1,000 sender-queue, 2 too-long; meanwhile eth0 dropped 1 packet and eth1 dropped 2 packets, of CMD or of others"
        );
    }

    #[test]
    fn what_was_lost_with_the_network_is_said() {
        let tcp = Unsent { sockets: 1, bytes: 325_000 };
        assert_eq!(dropped(&totals(false), 75, Unsent::default()), "75: 75 unsent");
        assert_eq!(dropped(&totals(false), 0, tcp), "325 kB of 1 closed TCP connection not acknowledged");
        assert!(
            dropped(&totals(true), 1, tcp)
                .ends_with("1 unsent; 325 kB of 1 closed TCP connection not acknowledged")
        );
    }

    /// A child goes on: as many as stood there at first were taken in since, and others stand there.
    #[test]
    fn what_waited_at_the_end_counts_whatever_was_taken_in_since() {
        let rest = Remainder { queued: 90, accepted: 81_000, ..Remainder::default() };
        let said =
            |waiting| line("2mbit".parse().unwrap(), &Totals { waiting, ..totals(false) }, &rest, 1, &[]);
        assert!(said(None).ends_with("dropped none"), "a wire has delivered these");
        assert!(said(Some(88)).ends_with("dropped 88: 88 unsent"));
        let nothing = Remainder::default();
        let late =
            line("2mbit".parse().unwrap(), &Totals { waiting: Some(1), ..totals(false) }, &nothing, 1, &[]);
        assert!(late.ends_with("dropped none"), "it came when all had left");
    }

    #[test]
    fn rates_have_the_unit_that_fits() {
        for (bytes, text) in
            [(0, "0.0bit"), (100, "800.0bit"), (1_000, "8.0kbit"), (124_999_999, "1000.0mbit")]
        {
            assert_eq!(rate(bytes, 1_000_000_000), text);
        }
        assert_eq!(rate(1, 0), "8.0gbit");
    }
}
