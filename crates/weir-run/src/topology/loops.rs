//! Circles of bridges, and of ESPs, which pass frames on too: links by which a flooded frame would come back to the bridge that flooded it.
//!
//! Rule: links are taken in the order of the file; one that joins bridges which those before it join already closes a circle, and is told
//! with all that are in it. So the links that are not told are a forest.

use std::collections::VecDeque;
use std::ops::Range;

use super::stages::Stages;
use crate::nearest::and;

/// A link between two bridges.
pub(super) struct Bridged {
    /// Their places among the stages.
    pub bridges: [usize; 2],
    /// The place of the link in the file.
    pub at: Range<usize>,
    /// The epairs that it leads through.
    pub epairs: Vec<usize>,
}

/// A sentence for each circle, and where it is closed.
pub(super) fn circle(
    stages: &Stages,
    mut links: Vec<Bridged>,
    called: impl Fn(&[usize]) -> String,
) -> Vec<(Range<usize>, String)> {
    links.sort_by_key(|link| link.at.start);
    let mut group: Vec<usize> = (0..stages.called.len()).collect();
    // For each bridge, the links of the forest at it, each with the bridge behind it.
    let mut forest: Vec<Vec<(usize, &Bridged)>> = vec![Vec::new(); stages.called.len()];
    let mut told = Vec::new();
    for link in &links {
        let [one, other] = link.bridges;
        let [first, second] = link.bridges.map(|bridge| root(&mut group, bridge));
        if first != second {
            group[first] = second;
            forest[one].push((other, link));
            forest[other].push((one, link));
            continue;
        }
        let way = way(&forest, one, other);
        let mut epairs: Vec<usize> = way.iter().flat_map(|(_, link)| link.epairs.iter().copied()).collect();
        epairs.extend(&link.epairs);
        let round: Vec<usize> = std::iter::once(one).chain(way.iter().map(|(bridge, _)| *bridge)).collect();
        let joined = match round[..] {
            [only] => format!("joins {} to itself", called_alone(stages, only)),
            _ => format!("joins {} in a circle", called_together(stages, &round)),
        };
        let joined = if epairs.len() == 1 { joined } else { joined.replacen("joins", "join", 1) };
        let why = format!(
            "{} {joined}, in which a flooded frame would go round for ever, as there is no spanning tree: take one link out",
            called(&epairs)
        );
        told.push((link.at.clone(), why));
    }
    told
}

/// `the bridge lan`, `the esp tunnel`.
fn called_alone(stages: &Stages, stage: usize) -> String {
    format!("the {} {}", stages.noun(stage), stages.called[stage].0)
}

/// `the bridges x and y`, or each with its noun where one is not a bridge.
fn called_together(stages: &Stages, all: &[usize]) -> String {
    if all.iter().all(|&stage| stages.noun(stage) == "bridge") {
        let names: Vec<_> = all.iter().map(|&stage| stages.called[stage].0.as_str()).collect();
        return format!("the bridges {}", and(&names));
    }
    let each: Vec<_> = all.iter().map(|&stage| called_alone(stages, stage)).collect();
    and(&each.iter().map(String::as_str).collect::<Vec<_>>())
}

/// The bridge that stands for all that are joined to one.
pub(super) fn root(group: &mut [usize], mut one: usize) -> usize {
    while group[one] != one {
        group[one] = group[group[one]];
        one = group[one];
    }
    one
}

/// The way from one bridge to another that is joined to it: each link, and the bridge that it leads to.
fn way<'a>(forest: &[Vec<(usize, &'a Bridged)>], from: usize, to: usize) -> Vec<(usize, &'a Bridged)> {
    let mut come_by: Vec<Option<(usize, &Bridged)>> = vec![None; forest.len()];
    let mut next = VecDeque::from([from]);
    while let Some(bridge) = next.pop_front().filter(|bridge| *bridge != to) {
        for &(other, link) in &forest[bridge] {
            if other != from && come_by[other].is_none() {
                come_by[other] = Some((bridge, link));
                next.push_back(other);
            }
        }
    }
    let mut way = Vec::new();
    let mut bridge = to;
    while let Some((before, link)) = come_by[bridge].filter(|_| bridge != from) {
        way.push((bridge, link));
        bridge = before;
    }
    way.reverse();
    way
}
