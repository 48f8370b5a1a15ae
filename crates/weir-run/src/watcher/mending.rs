//! The work of a remedy at an end of a pair, and the sentence on it.
//!
//! Owner: none; the watcher's thread calls. Limits: packets that waited in a queue that was replaced are lost before anybody looks.

use weir_port::bpf::doorbell::DoorbellProgram;
use weir_port::link::Link;
use weir_port::netns::NetNs;
use weir_port::view::View;
use weir_port::{Doing, ethtool, features, qdisc};

use super::remedy::Remedy;
use crate::datapath::Kind;

/// Carries out a remedy that takes only settings of an interface of `netns`. Returns the sentence on it; none for any other remedy.
pub(super) fn put_right(
    remedy: &Remedy,
    kind: Kind,
    netns: &NetNs,
    seen: &View,
) -> weir_port::Result<Option<String>> {
    let (link, noun) = (&seen.link, kind.noun());
    Ok(match remedy {
        Remedy::FillChecksums => {
            netns.run(|| ethtool::set_tx_checksum(link, false))?;
            Some(checksums_filled(noun, link))
        }
        Remedy::TagFrames => {
            netns.run(|| features::switch(link.ifindex, &seen.offloads.tag_insertions, false))?;
            Some(frames_tagged(noun, link))
        }
        Remedy::PutQueueBack => {
            netns.run(|| qdisc::install(link))?;
            Some(queue_put_back(link, &seen.queue.kind))
        }
        Remedy::Follow(..) | Remedy::PutProgramFirst | Remedy::Refuse(_) => None,
    })
}

/// Attaches the doorbell program of an interface of `netns` before all others. Returns the sentence on it.
pub(super) fn put_first(doorbell: &DoorbellProgram, netns: &NetNs, seen: &View) -> weir_port::Result<String> {
    let link = &seen.link;
    let attach = || {
        doorbell
            .put_first(link.ifindex)
            .doing(|| format!("attaching the doorbell to {} before other programs", link.name))
    };
    netns.run(attach)?;
    Ok(match seen.egress_programs.first() {
        Some(id) => format!(
            "tcx program {id} was attached to {} before weir's, and might have kept packets from being announced: weir's is the first \
             again",
            link.name
        ),
        None => format!("somebody took weir's tcx program off {}: attached again", link.name),
    })
}

fn checksums_filled(noun: &str, link: &Link) -> String {
    format!(
        "checksums of {0} were left to it (`ethtool -K {0} tx on`), and packets pass a {noun} as they are: switched off again",
        link.name
    )
}

fn frames_tagged(noun: &str, link: &Link) -> String {
    format!(
        "VLAN tags of {0} were left to it (`ethtool -K {0} txvlan on`), and a {noun} sees what is in the frame: switched off again",
        link.name
    )
}

fn queue_put_back(link: &Link, kind: &str) -> String {
    let found = if kind.is_empty() { "none".into() } else { format!("{kind:?}") };
    format!(
        "the queue of {} was replaced (by {found}), which may drop what must be held: put back; what waited in it is lost",
        link.name
    )
}
