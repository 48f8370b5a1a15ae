//! The remedy for an end of a pair that is not as a datapath left it.
//!
//! ```text
//! seen                                            remedy
//! another name, another MTU                       follow it
//! checksums or tags left to the device,
//! another queue, a program before weir's          put it right
//! other queues, programs taken off, no room       a wire ends, in a sentence; a topology goes on without the port, until it is fit
//! ```
//!
//! Rule: a remedy depends on the known state and the one that is seen, and on nothing else. Only properties that a datapath needs are
//! judged.
//!
//! Owner: none, these are functions; [`crate::watcher`] looks, and carries them out. Limits: a change that was undone between two looks
//! is not seen, and leaves nothing to do.

use weir_port::link::Link;
use weir_port::port::MTU_BYTES_MAX;
use weir_port::view::View;

use crate::datapath::Kind;
use crate::watcher::ledger::InterfaceEvent;

/// The remedy for one change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Remedy {
    /// The owner of the port must know the new state; the sentence says it.
    Follow(InterfaceEvent, String),
    /// Checksums must be filled in before packets leave.
    FillChecksums,
    /// VLAN tags must be written into the frame.
    TagFrames,
    /// Weir's queue must come back.
    PutQueueBack,
    /// Weir's program must run before all others.
    PutProgramFirst,
    /// The port is not fit any more; why, and what to do.
    Refuse(String),
}

/// The remedies for the end that is a port of this kind of datapath.
pub fn of_port(kind: Kind, known: &Link, now: &View) -> Vec<Remedy> {
    let mut remedies = follow(known, &now.link);
    let name = &now.link.name;
    if now.link.rx_queues != known.rx_queues {
        remedies.push(queues_changed(kind, name, "receives", known.rx_queues, now.link.rx_queues));
    }
    if now.link.up && now.link.xdp_program.is_none() {
        remedies.push(refuse(kind, format!("somebody took weir's XDP program off {name}"), None));
    }
    remedies.extend((!now.queue.is_ours).then_some(Remedy::PutQueueBack));
    remedies
}

/// The remedies for the other end, where programs send; `is_first` is whether weir's program runs before all others there.
pub fn of_sender(kind: Kind, known: &Link, now: &View, is_first: bool) -> Vec<Remedy> {
    let mut remedies = follow(known, &now.link);
    let name = &now.link.name;
    if now.link.mtu_bytes > MTU_BYTES_MAX {
        let undo = format!("`ip link set {name} mtu {MTU_BYTES_MAX}` or less in its namespace");
        let mtu_bytes = now.link.mtu_bytes;
        let what = format!(
            "{name} was given an MTU of {mtu_bytes}, and weir carries packets of {MTU_BYTES_MAX} bytes at most"
        );
        remedies.push(refuse(kind, what, Some(undo)));
    }
    if now.link.tx_queues != known.tx_queues {
        remedies.push(queues_changed(kind, name, "sends", known.tx_queues, now.link.tx_queues));
    }
    remedies.extend((!now.offloads.checksums.is_empty()).then_some(Remedy::FillChecksums));
    remedies.extend((!now.offloads.tag_insertions.is_empty()).then_some(Remedy::TagFrames));
    remedies.extend((!now.queue.is_ours).then_some(Remedy::PutQueueBack));
    remedies.extend((!is_first).then_some(Remedy::PutProgramFirst));
    remedies
}

fn follow(known: &Link, now: &Link) -> Vec<Remedy> {
    let mut remedies = Vec::new();
    if known.name != now.name {
        remedies.push(Remedy::Follow(
            InterfaceEvent::Renamed,
            format!("{} is called {} now", known.name, now.name),
        ));
    }
    if known.mtu_bytes != now.mtu_bytes {
        remedies.push(Remedy::Follow(
            InterfaceEvent::Mtu,
            format!("the MTU of {} is {} now, and was {}", now.name, now.mtu_bytes, known.mtu_bytes),
        ));
    }
    remedies
}

fn queues_changed(kind: Kind, name: &str, does: &str, before: u32, now: u32) -> Remedy {
    let what = format!("{name} {does} on {now} queues now, and the {} was made for {before}", kind.noun());
    let queues = if does == "sends" { "tx" } else { "rx" };
    refuse(
        kind,
        what,
        Some(format!("take the change back (`ethtool -L {name} {queues} {before}` in its namespace)")),
    )
}

/// A port is not fit any more: `what` is so, and `undo` undoes it.
fn refuse(kind: Kind, what: String, undo: Option<String>) -> Remedy {
    let again = (kind == Kind::Wire).then(|| "start the wire again".to_string());
    let parts: Vec<_> = [undo, again].into_iter().flatten().collect();
    let colon = if parts.is_empty() { "" } else { ": " };
    Remedy::Refuse(format!("{what}{colon}{}", parts.join(", then ")))
}

#[cfg(test)]
mod tests {
    use weir_port::features::{ChecksumOffloads, Offloads, TagInsertion};
    use weir_port::qdisc::Root;

    use super::*;

    fn link() -> Link {
        let (rx_queues, tx_queues) = (4, 4);
        let name = "eth0".to_string();
        Link {
            name,
            mtu_bytes: 1500,
            up: true,
            rx_queues,
            tx_queues,
            xdp_program: Some(7),
            ..Link::default()
        }
    }

    fn view(link: Link) -> View {
        let queue = Root { kind: "mq".into(), is_ours: true, ..Root::default() };
        View { link, queue, ..View::default() }
    }

    #[test]
    fn nothing_is_done_about_what_is_as_it_was() {
        assert_eq!(of_port(Kind::Wire, &link(), &view(link())), []);
        assert_eq!(of_sender(Kind::Wire, &link(), &view(Link { xdp_program: None, ..link() }), true), []);
    }

    #[test]
    fn names_and_mtus_are_followed() {
        let now = view(Link { name: "wan".into(), mtu_bytes: 1400, ..link() });
        let expected = [
            (InterfaceEvent::Renamed, "eth0 is called wan now"),
            (InterfaceEvent::Mtu, "the MTU of wan is 1400 now, and was 1500"),
        ];
        let expected = expected.map(|(event, text)| Remedy::Follow(event, text.into()));
        assert_eq!(of_port(Kind::Wire, &link(), &now), expected);
        assert_eq!(of_sender(Kind::Wire, &link(), &now, true), expected);
    }

    #[test]
    fn a_large_mtu_ends_the_wire_where_packets_come_from_alone() {
        let now = view(Link { mtu_bytes: 9000, ..link() });
        assert!(of_port(Kind::Wire, &link(), &now).iter().all(|remedy| matches!(remedy, Remedy::Follow(..))));
        let ends = of_sender(Kind::Wire, &link(), &now, true);
        assert!(
            matches!(&ends[1], Remedy::Refuse(why) if why.contains("9000") && why.ends_with("mtu 3506` or less in its namespace, then start the wire again")),
            "{ends:?}"
        );
    }

    #[test]
    fn what_can_be_put_right_is() {
        let checksums = ChecksumOffloads::of_new_veth();
        let offloads = Offloads { checksums, tag_insertions: TagInsertion::ALL.to_vec() };
        let now = View { offloads, queue: Root::default(), ..view(link()) };
        assert_eq!(
            of_sender(Kind::Wire, &link(), &now, false),
            [Remedy::FillChecksums, Remedy::TagFrames, Remedy::PutQueueBack, Remedy::PutProgramFirst]
        );
        // Packets that the wire itself sends have their checksums, and their tags in the frame.
        assert_eq!(of_port(Kind::Wire, &link(), &now), [Remedy::PutQueueBack]);
    }

    #[test]
    fn queues_matter_in_the_direction_that_is_used() {
        let fewer = view(Link { tx_queues: 2, ..link() });
        assert_eq!(of_port(Kind::Wire, &link(), &fewer), []);
        let ends = of_sender(Kind::Wire, &link(), &fewer, true);
        assert!(
            matches!(&ends[..], [Remedy::Refuse(why)] if why.contains("eth0 sends on 2 queues")),
            "{ends:?}"
        );
        let ends = of_sender(Kind::Topology, &link(), &fewer, true);
        let expected = "eth0 sends on 2 queues now, and the topology was made for 4: take the change back \
                        (`ethtool -L eth0 tx 4` in its namespace)";
        assert_eq!(ends, [Remedy::Refuse(expected.into())], "a topology goes on without the port");
        let more = view(Link { rx_queues: 5, ..link() });
        assert_eq!(of_sender(Kind::Wire, &link(), &more, true), []);
        assert!(matches!(&of_port(Kind::Wire, &link(), &more)[..], [Remedy::Refuse(_)]));
    }

    #[test]
    fn a_program_that_was_taken_off_ends_the_wire() {
        let off = Link { xdp_program: None, ..link() };
        assert!(matches!(&of_port(Kind::Wire, &link(), &view(off.clone()))[..], [Remedy::Refuse(_)]));
        assert_eq!(
            of_port(Kind::Wire, &link(), &view(Link { up: false, ..off })),
            [],
            "while it is down the kernel may not say"
        );
    }
}
