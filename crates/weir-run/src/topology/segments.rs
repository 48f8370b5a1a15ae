//! Segments: the ports and interfaces of routers that one broadcast reaches through links and bridges.
//!
//! Rule: on one segment an address is one interface's, and a MAC too; the later of two in the file is told. The addresses of one router are
//! compared in `routers`, on all segments. Limits: two ports may lead to one segment outside, which nobody knows here.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::Hash;
use std::net::IpAddr;
use std::ops::Range;

use smoltcp::wire::EthernetAddress;
use weir_path::plan::Attachment;

use super::check::TopologyReader;
use super::loops::root;
use super::mac;
use super::routers::own_address;
use super::stages::Stages;
use super::tables::TopologyFile;

/// The router that has an address or MAC on a segment, and the place in the file.
type Seen<T> = HashMap<(usize, T), (usize, Range<usize>)>;

impl TopologyReader<'_> {
    /// Tells addresses and MACs that two interfaces have on one segment.
    pub(super) fn segments(&mut self, file: &TopologyFile, stages: &Stages, links: &[[Attachment; 2]]) {
        // A bridge is one node, a router one for each interface.
        let mut nodes = vec![1; stages.called.len()];
        for (table, stage) in file.routers.iter().zip(&stages.of_routers) {
            nodes[*stage] = table.interface.len();
        }
        let (mut firsts, mut count) = (Vec::with_capacity(nodes.len()), 0);
        for nodes in nodes {
            firsts.push(count);
            count += nodes;
        }
        let node = |stage: usize, number: u16| {
            firsts[stage] + if stages.called[stage].1 { 0 } else { usize::from(number) }
        };
        let mut group: Vec<usize> = (0..count).collect();
        for link in links {
            if let [Attachment::Stage(one, first), Attachment::Stage(other, second)] = *link {
                let [one, other] = [node(one, first), node(other, second)].map(|node| root(&mut group, node));
                group[one] = other;
            }
        }
        let mut addresses: Seen<IpAddr> = Seen::new();
        let mut macs: Seen<EthernetAddress> = Seen::new();
        // The routers come in the order of the file.
        for (place, (table, stage)) in file.routers.iter().zip(&stages.of_routers).enumerate() {
            for (number, interface) in table.interface.iter().enumerate() {
                let segment = root(&mut group, firsts[*stage] + number);
                for text in interface.address.as_ref() {
                    let Ok(address) = own_address(text.as_ref()) else { continue };
                    let address: IpAddr = address.address().into();
                    let first = taken(&mut addresses, (segment, address), (place, text.span()));
                    if let Some((other, at)) = first.filter(|(other, _)| *other != place) {
                        let why = format!(
                            "router \"{}\" has the address {address} on the same link, in line {}: give one of the two another",
                            file.routers[other].name.as_ref(),
                            self.line(&at)
                        );
                        self.tell(text.span(), why);
                    }
                }
                let Some(text) = &interface.mac else { continue };
                let Ok(mac) = mac::read(text.as_ref()) else { continue };
                if let Some((other, at)) = taken(&mut macs, (segment, mac), (place, text.span())) {
                    let why = format!(
                        "router \"{}\" has the MAC {} on the same link, in line {}: give one of the two another, or leave it out",
                        file.routers[other].name.as_ref(),
                        text.as_ref(),
                        self.line(&at)
                    );
                    self.tell(text.span(), why);
                }
            }
        }
    }
}

/// The router that has an address or MAC on a segment already; if none has, `by` takes it.
fn taken<T: Eq + Hash>(
    seen: &mut Seen<T>,
    what: (usize, T),
    by: (usize, Range<usize>),
) -> Option<(usize, Range<usize>)> {
    match seen.entry(what) {
        Entry::Occupied(first) => Some(first.get().clone()),
        Entry::Vacant(free) => {
            free.insert(by);
            None
        }
    }
}
