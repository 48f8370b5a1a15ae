//! The MTU of an ESP: packets that are too long for the ESP around it, or too short for IPv6.
//!
//! Rule: what a file says of an MTU and cannot work is warned of, with the figure that can. An ESP within another learns from it what it
//! takes, as from every router on its way, but the packets that tell it are lost. A sender of IPv6 never makes packets shorter than 1,280
//! bytes (RFC 8200 section 5); without room for these an ESP cuts them after it has sealed them, and firewalls often drop fragments.

use std::ops::Range;

use weir_path::esp::plan::{AssociationPlan, EspPlan, PolicyVerb};
use weir_path::esp::{INSIDE, OUTSIDE};
use weir_path::plan::{Attachment, Plan, StageKind};

use super::check::TopologyReader;
use super::tables::TopologyFile;

/// The longest header before ESP in transport mode, without extensions.
const HEADER_LEN_MAX: usize = 40;
/// The least MTU of a link of IPv6, in bytes.
const V6_MTU_MIN: usize = 1280;

impl TopologyReader<'_> {
    /// Warns of an ESP whose packets are too long for the one that it is nested in.
    pub(super) fn warn_of_nested(&mut self, file: &TopologyFile, plan: &Plan) {
        let esp = |stage: usize| match &plan.stages.get(stage)?.kind {
            StageKind::Esp(esp) => Some((&plan.stages[stage].name, &**esp)),
            _ => None,
        };
        let both_ways = plan.links.iter().flat_map(|&[one, other]| [[one, other], [other, one]]);
        for ends in both_ways {
            let [Attachment::Stage(inner, OUTSIDE), Attachment::Stage(outer, INSIDE)] = ends else {
                continue;
            };
            let (Some((name, inner)), Some((around, outer))) = (esp(inner), esp(outer)) else { continue };
            let Some(longest) =
                longest_inside(outer).filter(|longest| usize::from(inner.mtu_bytes) > *longest)
            else {
                continue;
            };
            let why = format!(
                "what \"{name}\" seals has up to {} bytes, and \"{around}\" around it takes {longest}, so its first long packets are \
                 lost: write mtu = {longest}",
                inner.mtu_bytes
            );
            self.warn(mtu_span(file, name), why);
        }
    }

    /// Warns of an ESP that has policies for IPv6 and no room for packets of the length that every link of IPv6 takes.
    pub(super) fn warn_of_short(&mut self, file: &TopologyFile, plan: &Plan) {
        for stage in &plan.stages {
            let StageKind::Esp(esp) = &stage.kind else { continue };
            let of_v6 = esp.policies.iter().filter(|policy| {
                let (source, _) = policy.selector.source.parts();
                !policy.is_inbound && policy.verb == PolicyVerb::Protect && source.is_ipv6()
            });
            let names = of_v6.flat_map(|policy| &policy.associations);
            let sealing =
                names.flat_map(|name| esp.associations.iter().find(|running| running.name == *name));
            let sealing: Vec<_> = sealing.collect();
            let fit = |mtu: usize| sealing.iter().all(|one| longest_of(one, mtu) >= V6_MTU_MIN);
            if !fit(esp.mtu_bytes.into()) {
                let least = (V6_MTU_MIN..).find(|&mtu| fit(mtu)).expect("an MTU is long enough");
                let why = format!(
                    "senders of IPv6 never make packets shorter than {V6_MTU_MIN} bytes, for which \"{}\" has no room, so their long \
                     packets leave in fragments, which firewalls may drop and shorter packets overtake: write mtu = {least} or more, if the way takes it",
                    stage.name
                );
                self.warn(mtu_span(file, &stage.name), why);
            }
        }
    }
}

/// The place of an ESP's MTU in the file, or of its name.
fn mtu_span(file: &TopologyFile, name: &str) -> Range<usize> {
    let table = file.esps.iter().find(|table| table.name.as_ref() == name);
    table.map_or(0..0, |table| table.mtu.as_ref().map_or(table.name.span(), |mtu| mtu.span()))
}

/// The longest packet that each association which seals takes uncut.
pub(super) fn longest_inside(esp: &EspPlan) -> Option<usize> {
    let sealing = esp.associations.iter().filter(|association| !association.is_inbound);
    sealing.map(|association| longest_of(association, esp.mtu_bytes.into())).min()
}

fn longest_of(association: &AssociationPlan, mtu: usize) -> usize {
    association.encapsulation().packet_len_max(association.algorithm, mtu, HEADER_LEN_MAX)
}
