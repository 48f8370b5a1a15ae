//! The limits in place that there are, found from their interfaces: queue, filter, program, memory.

use weir_core::limit::{HELD, Plan, ROOT_CLASS};

use super::htb::{self, ClassTraffic, Root, Traffic};
use super::memory::{Counts, Memory};
use super::record::{Record, Stage};
use super::{Place, steering::Steering};
use crate::error::{Doing, PortError, Result};
use crate::link::Link;
use crate::netns::NetNs;

/// A queue under the handle of limits.
pub struct Found {
    /// What its program works on; `None` if there is no such program.
    pub memory: Option<Memory>,
    /// What it is; `None` if that cannot be read.
    pub record: Option<Record>,
}

/// The limit of what an interface sends.
pub fn at(place: &Place) -> Result<Option<Found>> {
    let ifindex = place.link.ifindex;
    place.netns.run(|| {
        if htb::root(ifindex)? != Root::Limit {
            return Ok(None);
        }
        let memory = match htb::program_id(ifindex)? {
            Some(id) => Memory::of_program(id).doing(|| format!("looking at program {id}"))?,
            None => None,
        };
        let record = memory.as_ref().and_then(Memory::record);
        Ok(Some(Found { memory, record }))
    })
}

/// A limit with what it did.
#[derive(Debug)]
pub struct Seen {
    /// The interface that sends.
    pub place: Place,
    /// What it is.
    pub record: Option<Record>,
    /// What the queue did and holds.
    pub traffic: Traffic,
    /// The same of each class.
    pub classes: Vec<ClassTraffic>,
    /// What the program counted.
    pub counts: Counts,
    /// Steering at the other end, if it is other than it was before.
    pub steering: Option<Vec<String>>,
}

impl Seen {
    /// Packets that leaves had no room for: of those with a socket, and of those without.
    pub fn overflowed(&self) -> [u64; 2] {
        let sum = |is_held: bool| {
            let held = HELD.first_class..HELD.first_class + HELD.count;
            let of = self
                .classes
                .iter()
                .filter(|class| class.number != ROOT_CLASS && held.contains(&class.number) == is_held);
            of.map(|class| class.traffic.dropped).sum()
        };
        [sum(true), sum(false)]
    }

    /// Packets that asked by their priority to pass the queue by.
    pub fn misdirected(&self) -> u64 {
        let [held, passing] = self.overflowed();
        self.traffic.dropped.saturating_sub(held + passing + self.counts.passing_full)
    }

    /// What is wrong with it, a sentence each.
    pub fn faults(&self) -> Vec<String> {
        let place = self.place.describe();
        let Some(record) = &self.record else {
            return vec![format!(
                "the limit at {place} was never finished, or its filter was removed: `weir limit` sets it again, `--off` removes it"
            )];
        };
        let mut faults = Vec::new();
        if record.stage == Stage::Making {
            faults.push(format!(
                "limit {} at {place} was left half made: the same command again finishes it",
                record.name
            ));
        }
        let leaves = record
            .wanted()
            .and_then(|wanted| Plan::new(wanted).ok())
            .map_or(0, |plan| plan.classes().count());
        if self.classes.len() < leaves {
            faults.push(format!(
                "limit {} at {place} has {} of its {leaves} classes: remove it with --off and set it again",
                record.name,
                self.classes.len()
            ));
        }
        let [held, _] = self.overflowed();
        if held > 0 {
            faults.push(format!(
                "limit {} at {place} dropped {held} packets that have a socket: their leaves were full",
                record.name
            ));
        }
        faults
    }
}

/// Every limit of the machine, as far as its namespaces can be found.
pub fn all() -> Result<Vec<Seen>> {
    let mut seen = Vec::new();
    for (_, netns) in NetNs::all()? {
        // One that cannot be entered or asked hides the others no more than one that is gone.
        let Ok(roots) = netns.run(htb::roots) else { continue };
        for (ifindex, _, traffic) in roots.into_iter().filter(|(_, root, _)| *root == Root::Limit) {
            match look(netns.try_clone()?, ifindex, traffic) {
                Ok(limit) => seen.push(limit),
                Err(error) if error.is_no_interface() => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(seen)
}

/// The limit of what one interface sends, with what it did.
pub fn seen_at(place: Place) -> Result<Option<Seen>> {
    let ifindex = place.link.ifindex;
    let roots = place.netns.run(htb::roots)?;
    let traffic = roots.into_iter().find(|(index, root, _)| *index == ifindex && *root == Root::Limit);
    traffic.map(|(_, _, traffic)| look(place.netns, ifindex, traffic)).transpose()
}

fn look(netns: NetNs, ifindex: u32, traffic: Traffic) -> Result<Seen> {
    let link = netns.run(|| Link::by_index(ifindex))?;
    let place = Place { netns, link };
    let found = at(&place)?.ok_or(PortError::NoInterface { name: place.link.name.clone() })?;
    let classes = place.netns.run(|| htb::classes(ifindex))?;
    let counts = found.memory.as_ref().map(Memory::counts).unwrap_or_default();
    // The other end may be where nobody can look.
    let masks = || -> Result<Option<Vec<String>>> {
        let far_end = place.far_end()?;
        far_end.map(|far| far.netns.run(|| Steering::of(&far.link.name)?.masks())).transpose()
    };
    let before = found.record.as_ref().map(|record| record.steering_before.clone()).unwrap_or_default();
    let steering = masks().ok().flatten().filter(|masks| *masks != before);
    Ok(Seen { place, record: found.record, traffic, classes, counts, steering })
}
