//! The links of a plan: wires, the ports of bridges and the interfaces of routers become links; an epair becomes the link between the
//! things that its two ends are joined to.
//!
//! ```text
//! a --wire-- e0a   e0b --bridge        ->  port a -- bridge
//! bridge -- e0a    e0b -- router       ->  bridge -- router
//! ```
//!
//! Rule: each port and each end of an epair is joined once. Bridges have no spanning tree, so no links lead round through bridges alone.
//! Routers may stand in a circle: they count hops.
//!
//! Order: ports' links by the place of the first port, then those between stages by the place of the first stage and its port.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use toml::Spanned;
use weir_path::plan::Attachment;

use super::check::TopologyReader;
use super::loops::{Bridged, circle, root};
use super::names::{Names, Thing, end_name};
use super::stages::Stages;
use super::tables::TopologyFile;

/// The thing that a port or an end of an epair is joined to, where a table says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Joint {
    /// Another port or end, by a wire.
    Wire(Thing),
    /// A port of a stage, by the stage's place in the plan.
    Stage(usize, u16),
}

/// A name in a table, the thing that it stands for, and the joint that the table gives it.
type Named<'f> = (&'f Spanned<String>, Thing, Joint);

/// All joints, each with its place.
type Joints = BTreeMap<Thing, (Range<usize>, Joint)>;

/// A link of the plan, and how it came about.
struct Link {
    ends: [Attachment; 2],
    /// The later of the places where it is written.
    at: Range<usize>,
    /// The epairs that it leads through, in order.
    epairs: Vec<usize>,
}

impl TopologyReader<'_> {
    /// The links of a plan; tells things that are joined twice, to nothing, or in a circle.
    pub(super) fn links(
        &mut self,
        file: &TopologyFile,
        names: &Names,
        stages: &Stages,
    ) -> Vec<[Attachment; 2]> {
        let (all, is_whole) = self.joints(file, names, stages);
        let mut joints = Joints::new();
        for (name, thing, joint) in all {
            match joints.get(&thing) {
                None => {
                    joints.insert(thing, (name.span(), joint));
                }
                Some((first, _)) => {
                    let line = self.line(first);
                    let why = format!(
                        "\"{}\" is joined in line {line} already, and {} is joined once: take it out of one of the two",
                        name.as_ref(),
                        thing.kind()
                    );
                    self.tell(name.span(), why);
                }
            }
        }
        // A thing that is named wrongly is joined to nothing as well, which would be the same told twice.
        if is_whole && !file.is_partial {
            self.tell_unjoined(file, names, &joints);
        }
        let mut crossed = BTreeSet::new();
        let links = links_of(file, &joints, &mut crossed);
        self.tell_closed(file, &joints, &mut crossed);
        self.tell_circles(file, stages, &links);
        let links: Vec<_> = links.into_iter().map(|link| link.ends).collect();
        self.warn_of_unreached(file, stages, &links);
        links
    }

    /// Warns of bridges and routers that no port leads to, once of those that are joined to each other.
    fn warn_of_unreached(&mut self, file: &TopologyFile, stages: &Stages, links: &[[Attachment; 2]]) {
        let ports = stages.called.len();
        let node = |end: &Attachment| match end {
            Attachment::Port(_) => ports,
            Attachment::Stage(stage, _) => *stage,
        };
        let mut group: Vec<usize> = (0..=ports).collect();
        for link in links {
            let [one, other] = [&link[0], &link[1]].map(|end| root(&mut group, node(end)));
            group[one] = other;
        }
        let bridges = file.bridges.iter().map(|table| &table.name).zip(&stages.of_bridges);
        let routers = file.routers.iter().map(|table| &table.name).zip(&stages.of_routers);
        let esps = file.esps.iter().map(|table| &table.name).zip(&stages.of_esps);
        let mut names: Vec<_> = bridges.chain(routers).chain(esps).collect();
        names.sort_by_key(|(_, stage)| **stage);
        let mut told = BTreeSet::from([root(&mut group, ports)]);
        for (name, stage) in names {
            if told.insert(root(&mut group, *stage)) {
                let what = stages.noun(*stage);
                let why = format!(
                    "no port leads to the {what} \"{}\", so nothing ever comes in: join it to one, or take it out",
                    name.as_ref()
                );
                self.warn(name.span(), why);
            }
        }
    }

    /// Every joint in the order of the file, and whether all that is named there is known.
    fn joints<'f>(
        &mut self,
        file: &'f TopologyFile,
        names: &Names,
        stages: &Stages,
    ) -> (Vec<Named<'f>>, bool) {
        let mut all = Vec::new();
        let mut is_whole = true;
        for wire in &file.wires {
            let ports = wire.ports.as_ref();
            let found: Vec<_> = ports.iter().map(|name| (name, self.find(names, name))).collect();
            match found[..] {
                [(one, Some(first)), (other, Some(second))] => {
                    all.push((one, first, Joint::Wire(second)));
                    if first == second {
                        let why =
                            format!("a wire joins two, and both are \"{}\": write another", other.as_ref());
                        self.tell(other.span(), why);
                    } else {
                        all.push((other, second, Joint::Wire(first)));
                    }
                }
                [_, _] => is_whole = false,
                _ => {
                    is_whole = false;
                    let why =
                        "a wire joins two: write ports = [\"a\", \"b\"]; what joins more is a [[bridge]]";
                    self.tell(wire.ports.span(), why);
                }
            }
        }
        let bridges = file.bridges.iter().zip(&stages.of_bridges);
        let routers = file.routers.iter().zip(&stages.of_routers);
        let of_bridges = bridges.map(|(table, stage)| (*stage, table.ports.as_ref().iter().collect()));
        let of_routers = routers.map(|(table, stage)| {
            (*stage, table.interface.iter().map(|interface| &interface.port).collect::<Vec<_>>())
        });
        let of_esps = file.esps.iter().zip(&stages.of_esps);
        let of_esps = of_esps.map(|(table, stage)| (*stage, vec![&table.inside, &table.outside]));
        for (stage, ports) in of_bridges.chain(of_routers).chain(of_esps) {
            for (number, name) in ports.into_iter().enumerate() {
                match self.find(names, name) {
                    // Ports beyond the most of a stage are told elsewhere.
                    Some(thing) => all.push((name, thing, Joint::Stage(stage, number as u16))),
                    None => is_whole = false,
                }
            }
        }
        all.sort_by_key(|(name, ..)| name.span().start);
        (all, is_whole)
    }

    fn tell_unjoined(&mut self, file: &TopologyFile, names: &Names, joints: &Joints) {
        // A thing that has another's name cannot be joined, and is told for that.
        let is_open = |name: &str, thing| !joints.contains_key(&thing) && names.is_of(name, thing);
        let cure = "write it into the ports of a [[wire]] or a [[bridge]], or as the port of a [[router.interface]], or take it out";
        for (place, port) in file.ports.iter().enumerate() {
            let name = port.called();
            if is_open(name.as_ref(), Thing::Port(place)) {
                self.tell(
                    name.span(),
                    format!("the port \"{}\" is joined to nothing: {cure}", name.as_ref()),
                );
            }
        }
        for (epair, table) in file.epairs.iter().enumerate() {
            let name = table.name.as_ref();
            let is_open = |is_b| is_open(&end_name(name, is_b), Thing::End { epair, is_b });
            let why = match (is_open(false), is_open(true)) {
                (false, false) => continue,
                (true, true) => format!(
                    "the ends of this epair, \"{}\" and \"{}\", are joined to nothing: write each into the ports of a [[bridge]], or as the \
                     port of a [[router.interface]], or take the epair out",
                    end_name(name, false),
                    end_name(name, true)
                ),
                (_, is_b) => {
                    format!("the end \"{}\" of this epair is joined to nothing: {cure}", end_name(name, is_b))
                }
            };
            self.tell(table.name.span(), why);
        }
    }

    /// Tells epairs that wires join to each other alone.
    fn tell_closed(&mut self, file: &TopologyFile, joints: &Joints, crossed: &mut BTreeSet<usize>) {
        for epair in 0..file.epairs.len() {
            if crossed.contains(&epair) {
                continue;
            }
            let walk = follow(Thing::End { epair, is_b: true }, joints, file.epairs.len());
            let Some(last) = walk.epairs.iter().position(|other| *other == epair) else { continue };
            let round = &walk.epairs[..=last];
            crossed.extend(round);
            let ends = round.iter().flat_map(|&epair| [false, true].map(|is_b| Thing::End { epair, is_b }));
            let places = ends.filter_map(|end| joints.get(&end)).map(|(at, _)| at);
            let Some(at) = places.max_by_key(|at| at.start).cloned() else { continue };
            let why = format!(
                "nothing ever comes into {}, whose ends are joined to each other alone: join one to a port, a bridge or a router",
                called(file, round)
            );
            self.tell(at, why);
        }
    }

    /// Tells links by which a stage reaches itself without a router between.
    fn tell_circles(&mut self, file: &TopologyFile, stages: &Stages, links: &[Link]) {
        let mut bridged = Vec::new();
        for link in links {
            let [Attachment::Stage(one, _), Attachment::Stage(other, _)] = link.ends else { continue };
            let (name, is_bridge) = &stages.called[one];
            if one == other && !is_bridge {
                let why = format!(
                    "both ends of {} are at router \"{name}\", which has one interface on a link: take one of them out",
                    called(file, &link.epairs)
                );
                self.tell(link.at.clone(), why);
            } else if *is_bridge && stages.called[other].1 {
                bridged.push(Bridged {
                    bridges: [one, other],
                    at: link.at.clone(),
                    epairs: link.epairs.clone(),
                });
            }
        }
        for (at, why) in circle(stages, bridged, |epairs| called(file, epairs)) {
            self.tell(at, why);
        }
    }
}

/// `epair e0`, `epairs e0 and e1`.
fn called(file: &TopologyFile, epairs: &[usize]) -> String {
    let names: Vec<&str> = epairs.iter().map(|epair| file.epairs[*epair].name.as_ref().as_str()).collect();
    let several = if names.len() == 1 { "" } else { "s" };
    format!("epair{several} {}", crate::nearest::and(&names))
}

/// The end of a walk along wires and epairs, and the epairs that it led through.
struct Walk {
    end: Option<(Attachment, Range<usize>)>,
    epairs: Vec<usize>,
}

/// Follows the joints of a port or an end of an epair, out of the other ends of the epairs on the way.
fn follow(mut out: Thing, joints: &Joints, epairs_max: usize) -> Walk {
    let mut walk = Walk { end: None, epairs: Vec::new() };
    while walk.epairs.len() <= epairs_max {
        match joints.get(&out) {
            Some((at, Joint::Stage(stage, number))) => {
                walk.end = Some((Attachment::Stage(*stage, *number), at.clone()));
                return walk;
            }
            Some((at, Joint::Wire(Thing::Port(port)))) => {
                walk.end = Some((Attachment::Port(*port), at.clone()));
                return walk;
            }
            Some((_, Joint::Wire(Thing::End { epair, is_b }))) => {
                walk.epairs.push(*epair);
                out = Thing::End { epair: *epair, is_b: !is_b };
            }
            _ => return walk,
        }
    }
    walk
}

/// The links in order; `crossed` gets the epairs that any of them, or an unfinished one, leads through.
fn links_of(file: &TopologyFile, joints: &Joints, crossed: &mut BTreeSet<usize>) -> Vec<Link> {
    let mut links = Vec::new();
    for port in 0..file.ports.len() {
        let thing = Thing::Port(port);
        let Some((at, _)) = joints.get(&thing) else { continue };
        let Walk { end, epairs } = follow(thing, joints, file.epairs.len());
        crossed.extend(&epairs);
        match end {
            // The link is the other port's.
            Some((Attachment::Port(other), _)) if other <= port => {}
            Some((end, far)) => {
                links.push(Link { ends: [Attachment::Port(port), end], at: later(at, far), epairs })
            }
            None => {}
        }
    }
    let mut between = Vec::new();
    for (thing, (at, joint)) in joints {
        let (Thing::End { epair, is_b }, Joint::Stage(stage, number)) = (*thing, *joint) else { continue };
        let Walk { end, mut epairs } = follow(Thing::End { epair, is_b: !is_b }, joints, file.epairs.len());
        epairs.insert(0, epair);
        crossed.extend(&epairs);
        if let Some((end @ Attachment::Stage(other, far_number), far)) = end
            && (stage, number) < (other, far_number)
        {
            let ends = [Attachment::Stage(stage, number), end];
            between.push(((stage, number), Link { ends, at: later(at, far), epairs }));
        }
    }
    between.sort_by_key(|(first, _)| *first);
    links.extend(between.into_iter().map(|(_, link)| link));
    links
}

fn later(one: &Range<usize>, other: Range<usize>) -> Range<usize> {
    if one.start > other.start { one.clone() } else { other }
}
