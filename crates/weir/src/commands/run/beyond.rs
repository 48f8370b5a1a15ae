//! The interfaces by which this host lets a program out: what they drop nobody holds back for, as it has left the run's own limit.
//!
//! Rule: what a queue or a device there counts is told as its own, since others may send by it too; what is dropped behind it nobody here
//! sees. Limits: an interface that becomes a way out later is not looked at, and one that is gone at the end is told as having dropped none.

use std::collections::BTreeSet;

use weir_port::address;
use weir_port::link::Link;
use weir_port::netns::NetNs;
use weir_port::qdisc;
use weir_port::subnet::is_way_out;

/// The interfaces of the way out, and what each had dropped before.
pub struct Beyond {
    host: Option<NetNs>,
    before: Vec<(Link, u64)>,
}

impl Beyond {
    /// Looks from the host's namespace, which this thread must be in. What cannot be read is left out: no run fails for it.
    pub fn look() -> Beyond {
        let routes = address::routes().unwrap_or_default();
        let ways = routes.iter().filter(|route| is_way_out(&route.to));
        let interfaces: BTreeSet<u32> = ways.flat_map(|route| route.interfaces.iter().copied()).collect();
        let before = interfaces.into_iter().filter_map(|ifindex| dropped_at(ifindex).ok());
        Beyond { before: before.collect(), host: NetNs::current().ok() }
    }

    /// The names of the interfaces, and the packets that each has dropped since.
    pub fn dropped(&self) -> Vec<(String, u64)> {
        let now = |ifindex| self.host.as_ref()?.run(|| dropped_at(ifindex)).ok();
        let since = |(link, before): &(Link, u64)| {
            let (_, now) = now(link.ifindex).unwrap_or_default();
            (link.name.clone(), now.saturating_sub(*before))
        };
        self.before.iter().map(since).collect()
    }
}

/// The packets that the queue of an interface and its device have dropped of what was to be sent.
fn dropped_at(ifindex: u32) -> weir_port::Result<(Link, u64)> {
    let link = Link::by_index(ifindex)?;
    let dropped = qdisc::root(ifindex)?.counters.dropped + link.tx_dropped;
    Ok((link, dropped))
}
