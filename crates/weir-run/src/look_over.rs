//! What is looked over before a wire moves anything: what cannot be a wire is refused, and what its user may not expect of it is
//! told, a sentence each.
//!
//! Of MTUs a user may not expect that packets which the sender's end lets pass are too long for an end behind it; of limits that
//!
//! ```text
//! a packet of 1514 bytes takes a second or more          rate <= 12.1 kbit/s
//! the queue is shorter than asked for                    rate * queue > packets that fit * 1514 bytes
//! classes do not get what they are promised              sum of the rates of those without a parent > rate
//! ```
//!
//! Limits: looks at a wire as it is opened; what `weir set` changes later is not looked over.

use weir_core::rate::Rate;
use weir_core::shaper::tbf::{Limit, TbfConfig};
use weir_core::units::{size_text, time_text};
use weir_port::PortError;
use weir_port::address;
use weir_port::hooks;
use weir_port::link::Link;

use crate::classes::{Classes, FRAME_BYTES};

/// A packet that takes so long to pass was hardly meant to.
const PACKET_S_MAX: u64 = 1;

/// Refuses interfaces that cannot be a wire's together, and finds what a user may not expect of these.
///
/// # Errors
/// If they cannot, or the kernel does not say what they are.
pub fn interfaces(ports: &[String; 2], has_classes: bool) -> weir_port::Result<Vec<String>> {
    let [first, second] = [Link::by_name(&ports[0])?, Link::by_name(&ports[1])?];
    if first.peer_netns_id.is_none() && first.peer_ifindex == Some(second.ifindex) {
        return Err(PortError::Unsuitable {
            name: first.name,
            why: format!(
                "is the other end of {}, and packets in one pair would go round for ever: a wire joins two pairs",
                second.name
            ),
        });
    }
    let mut warnings = Vec::new();
    for link in [&first, &second] {
        if link.rx_queues == 1 {
            let waits = if has_classes { "classes and flows wait" } else { "a flow waits" };
            warnings.push(format!(
                "{0} has one queue, in which {waits} behind all others: make the pair with numtxqueues 16 numrxqueues \
                 16, at both ends, or `ethtool -L {0} rx 2 tx 2`, also at its other end, where it was made for as many",
                link.name
            ));
        }
        for address in address::addresses_of(link.ifindex)? {
            warnings.push(format!(
                "{} has the address {address}, which nobody reaches while the wire is up: what arrives goes through \
                 the wire",
                link.name
            ));
        }
        warnings.extend(passed_by(&link.name, &hooks::at(link)));
    }
    Ok(warnings)
}

/// What hooks of others at an interface do not see.
fn passed_by(name: &str, hooks: &[String]) -> Option<String> {
    let (last, others) = hooks.split_last()?;
    let list = if others.is_empty() { last.clone() } else { format!("{} and {last}", others.join(", ")) };
    Some(format!(
        "{name} has {list}, and what goes through the wire passes there unseen: do what they do at its other end"
    ))
}

/// Finds what a user may not expect of the MTUs of both interfaces, each given with its other end, where the senders are.
pub fn mtus(ends: [(&Link, &Link); 2]) -> Vec<String> {
    let directions = [(ends[0], ends[1]), (ends[1], ends[0])];
    let told = directions.map(|((port, sender), (out, receiver))| {
        let way_bytes = port.mtu_bytes.min(out.mtu_bytes).min(receiver.mtu_bytes);
        (sender.mtu_bytes > way_bytes).then(|| {
            format!(
                "{0}, the other end of {1}, has an MTU of {2}, and what goes through {3} to its other end may have {way_bytes} \
                 bytes: longer packets are dropped, counted as too-long. Give all four ends one MTU",
                sender.name, port.name, sender.mtu_bytes, out.name
            )
        })
    });
    told.into_iter().flatten().collect()
}

/// Finds what a user may not expect of the limits, where a direction can hold so many packets.
pub fn limits(
    directions: &[Option<TbfConfig>; 2],
    classes: Option<&Classes>,
    held_packets_max: u64,
) -> Vec<String> {
    let mut warnings = Vec::new();
    for limits in directions.iter().flatten() {
        let found = [
            slow(limits.rate),
            memory_short(limits, held_packets_max),
            classes.and_then(|classes| oversold(limits.rate, classes)),
        ];
        for warning in found.into_iter().flatten() {
            // Most wires have the same limits in both directions.
            if !warnings.contains(&warning) {
                warnings.push(warning);
            }
        }
    }
    warnings
}

fn slow(rate: Rate) -> Option<String> {
    let packet_s = FRAME_BYTES * 8 / rate.bits_per_s();
    (packet_s >= PACKET_S_MAX)
        .then(|| format!("at {rate} a packet of {FRAME_BYTES} bytes takes {packet_s} s"))
}

fn memory_short(limits: &TbfConfig, held_packets_max: u64) -> Option<String> {
    (limits.limit_bytes() > held_packets_max * FRAME_BYTES).then(|| {
        format!(
            "packet memory lets {held_packets_max} packets wait in a direction, less than the queue asked for ({} at \
             {}): the rest waits with the senders, or give more --memory",
            match limits.limit {
                Limit::TimeNs(time_ns) => time_text(time_ns),
                Limit::Bytes(bytes) => size_text(bytes),
            },
            limits.rate,
        )
    })
}

fn oversold(rate: Rate, classes: &Classes) -> Option<String> {
    let roots = classes.classes.iter().filter(|class| class.parent.is_none());
    let sum = roots.fold(0_u64, |sum, class| sum.saturating_add(class.rate.bits_per_s()));
    let sum = Rate::from_bits_per_s(sum).filter(|sum| *sum > rate)?;
    Some(format!(
        "the classes without a parent have {sum} together, more than the limit of {rate}: not all can have it at once"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(rates: [&str; 2], queue_ns: u64, classes: Option<&str>) -> String {
        let limit = |rate: &str| TbfConfig {
            rate: rate.parse().unwrap(),
            burst_bytes: 20_000,
            peak: None,
            limit: Limit::TimeNs(queue_ns),
        };
        let classes = classes.map(|text| format!("default = \"free\"\n{text}"));
        let classes = classes.map(|text| crate::classes::read("f", &text, ["a", "b"]).unwrap());
        limits(&rates.map(|rate| Some(limit(rate))), classes.as_ref(), 100).join("\n")
    }

    #[test]
    fn an_mtu_that_the_way_does_not_have_is_told() {
        let link = |name: &str, mtu_bytes| Link { name: name.into(), mtu_bytes, ..Link::default() };
        let (a, b, large) = (link("a", 1500), link("b", 1500), link("eth0", 1500));
        let small = link("eth0", 1400);
        assert_eq!(mtus([(&a, &large), (&b, &large)]), Vec::<String>::new());
        let told = mtus([(&a, &large), (&b, &small)]);
        assert_eq!(told.len(), 1, "only packets from a to b may be too long: {told:?}");
        assert!(
            told[0].contains("other end of a, has an MTU of 1500") && told[0].contains("1400"),
            "{told:?}"
        );
        let narrow = link("b", 1400);
        assert_eq!(mtus([(&a, &large), (&narrow, &large)]).len(), 2, "both ways through b");
    }

    #[test]
    fn hooks_that_are_passed_by_are_told_in_one_sentence() {
        assert_eq!(passed_by("wa", &[]), None);
        let told =
            passed_by("wa", &["tcx program 7 on ingress".into(), "the nftables chain netdev t c".into()]);
        let told = told.unwrap();
        assert!(
            told.starts_with("wa has tcx program 7 on ingress and the nftables chain netdev t c, and"),
            "{told}"
        );
    }

    #[test]
    fn usual_limits_are_not_warned_of() {
        let office = "[[class]]\nname = \"a\"\nrate = \"10mbit\"\n";
        assert_eq!(told(["200mbit", "10mbit"], 5_000_000, Some(office)), "");
        assert_eq!(limits(&[None; 2], None, 1), Vec::<String>::new());
    }

    #[test]
    fn what_may_not_be_meant_is_told_once_for_both_directions() {
        assert_eq!(told(["1kbit"; 2], 5_000_000, None), "at 1kbit a packet of 1514 bytes takes 12 s");
        let long = told(["100mbit", "1mbit"], 1_000_000_000, None);
        assert!(
            long.contains("lets 100 packets wait")
                && long.contains("(1s at 100mbit)")
                && !long.contains('\n'),
            "{long}"
        );
        let two = "[[class]]\nname = \"a\"\nrate = \"60mbit\"\n[[class]]\nname = \"b\"\nrate = \"60mbit\"\n";
        let sold = told(["100mbit", "200mbit"], 1_000_000, Some(two));
        assert!(sold.contains("120mbit together, more than the limit of 100mbit"), "{sold}");
    }
}
