//! Tunnels within tunnels: an ESP whose outside leads to the inside of another.
//!
//! Rule: a packet that one ESP seals the other has to take whole. Otherwise it is cut there or dropped, and the sender never hears how long
//! its packets may be: a message on a sealed packet goes to the gateway that sealed it (RFC 4301 section 8.2). So such a nesting is warned
//! of.

use weir_path::esp::plan::EspPlan;
use weir_path::esp::{INSIDE, OUTSIDE};
use weir_path::plan::{Attachment, Plan, StageKind};

use super::check::TopologyReader;
use super::tables::TopologyFile;

/// The longest header before ESP in transport mode, without extensions.
const HEADER_LEN_MAX: usize = 40;

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
            let table = file.esps.iter().find(|table| table.name.as_ref() == name);
            let at =
                table.map_or(0..0, |table| table.mtu.as_ref().map_or(table.name.span(), |mtu| mtu.span()));
            let why = format!(
                "what \"{name}\" seals has up to {} bytes, and \"{around}\" around it takes {longest}, so senders are never told: write mtu = \
                 {longest}",
                inner.mtu_bytes
            );
            self.warn(at, why);
        }
    }
}

/// The longest packet that each association which seals takes uncut.
fn longest_inside(esp: &EspPlan) -> Option<usize> {
    let sealing = esp.associations.iter().filter(|association| !association.is_inbound);
    let longest = sealing.map(|association| {
        let mtu = esp.mtu_bytes.into();
        association.encapsulation().packet_len_max(association.algorithm, mtu, HEADER_LEN_MAX)
    });
    longest.min()
}
