//! The `[[policy]]` tables: which packets an ESP protects, lets pass in the clear, or drops.
//!
//! Rule: a policy that says neither end is of both families, and becomes two. A policy that protects names associations of its own
//! direction; a user who removes an association removes its name here too, so no packet is left unprotected by a slip.

use std::net::IpAddr;

use toml::Spanned;
use weir_core::classify::headers::has_ports;
use weir_ipsec::policy::{AddressPrefix, Selector};
use weir_path::esp::plan::{EspPlan, PolicyPlan, PolicyVerb};

use super::associations::DIRECTIONS;
use super::check::TopologyReader;
use super::routes::network_or_address;
use super::tables::{PolicyTable, TopologyFile};
use crate::classes::{ports, protocol};
use crate::nearest::did_you_mean;

impl TopologyReader<'_> {
    /// Adds the policies to the plans that they are of.
    pub(super) fn policies(&mut self, file: &TopologyFile, plans: &mut [EspPlan]) {
        // The line of each policy of a plan.
        let mut lines: Vec<Vec<usize>> = vec![Vec::new(); plans.len()];
        for table in &file.policies {
            let Some(place) = self.esp_of(file, table.esp.as_ref(), table.action.span()) else { continue };
            let policies = self.policy(file, table, (place, &plans[place]));
            let before = plans[place].policies.iter().zip(&lines[place]);
            self.warn_of_shadowed(table, &policies, before);
            lines[place].extend(policies.iter().map(|_| self.line(&table.action.span())));
            plans[place].policies.extend(policies);
        }
    }

    /// Warns of a policy that never matches, because others before it, with their lines, take each of its packets.
    fn warn_of_shadowed<'p>(
        &mut self,
        table: &PolicyTable,
        policies: &[PolicyPlan],
        before: impl Iterator<Item = (&'p PolicyPlan, &'p usize)> + Clone,
    ) {
        let line_of = |policy: &PolicyPlan| {
            let mut before = before.clone();
            let first = before.find(|(other, _)| {
                other.is_inbound == policy.is_inbound && other.selector.covers(&policy.selector)
            });
            first.map(|(_, line)| *line)
        };
        let shadowed: Option<Vec<usize>> = policies.iter().map(line_of).collect();
        if let Some(&line) = shadowed.as_ref().and_then(|lines| lines.first()) {
            let why = format!(
                "this policy never matches: the one with the action in line {line} takes its packets; put this one before it, or take it out"
            );
            self.warn(table.action.span(), why);
        }
    }

    fn policy(
        &mut self,
        file: &TopologyFile,
        table: &PolicyTable,
        esp: (usize, &EspPlan),
    ) -> Vec<PolicyPlan> {
        let is_inbound = self.word(&table.direction, "a direction", &DIRECTIONS);
        let verb = self.word(&table.action, "an action", &PolicyVerb::ALL);
        let from = self.value(&table.from, prefix);
        let to = self.value(&table.to, prefix);
        let protocol = self.value(&table.protocol, protocol);
        let source_ports = self.value(&table.from_ports, ports);
        let destination_ports = self.value(&table.to_ports, ports);
        let (Some(is_inbound), Some(verb)) = (is_inbound, verb) else { return Vec::new() };
        if let Some(at) = table.to_ports.as_ref().or(table.from_ports.as_ref())
            && protocol.is_some_and(|protocol| !has_ports(protocol))
        {
            self.tell(
                at.span(),
                "this policy can never match: the protocol has no ports; take one of the two out",
            );
        }
        self.check_protectors(file, table, esp, (is_inbound, verb));
        let any = |is_v4: bool| {
            let address = if is_v4 { IpAddr::from([0; 4]) } else { IpAddr::from([0; 16]) };
            AddressPrefix::new(address, 0).expect("no bits of an address")
        };
        let is_v4 = |prefix: &AddressPrefix| prefix.parts().0.is_ipv4();
        let ends = match (from, to) {
            (Some(from), Some(to)) if is_v4(&from) != is_v4(&to) => {
                let at = table.to.as_ref().map_or(table.action.span(), Spanned::span);
                self.tell(at, "both ends of a policy are of one family: write two policies");
                return Vec::new();
            }
            (Some(from), Some(to)) => vec![(from, to)],
            (Some(from), None) => vec![(from, any(is_v4(&from)))],
            (None, Some(to)) => vec![(any(is_v4(&to)), to)],
            (None, None) => vec![(any(true), any(true)), (any(false), any(false))],
        };
        let associations: Vec<_> = table.sa.iter().map(|name| name.as_ref().clone()).collect();
        let policy = |(source, destination)| PolicyPlan {
            is_inbound,
            selector: Selector {
                source,
                destination,
                protocol,
                source_ports: source_ports.clone(),
                destination_ports: destination_ports.clone(),
            },
            verb,
            associations: associations.clone(),
        };
        ends.into_iter().map(policy).collect()
    }

    fn check_protectors(
        &mut self,
        file: &TopologyFile,
        table: &PolicyTable,
        (place, plan): (usize, &EspPlan),
        (is_inbound, verb): (bool, PolicyVerb),
    ) {
        match (verb, table.sa.first()) {
            (PolicyVerb::Protect, None) => {
                self.tell(
                    table.action.span(),
                    "who protects is not said: write sa = [\"...\"], names of [[sa]]",
                );
            }
            (PolicyVerb::Bypass | PolicyVerb::Discard, Some(first)) => {
                self.tell(first.span(), "an association is for action = \"protect\": take it out");
            }
            _ => {}
        }
        for name in &table.sa {
            let known = plan.associations.iter().find(|association| association.name == *name.as_ref());
            match known {
                Some(association) if association.is_inbound != is_inbound => {
                    let why = format!("\"{}\" is of the other direction", name.as_ref());
                    self.tell(name.span(), why);
                }
                Some(_) => {}
                None if file.is_partial => {}
                None if file.associations.iter().any(|sa| sa.name.as_ref() == name.as_ref()) => {
                    self.check_own(file, name, place);
                }
                None => {
                    let names = plan.associations.iter().map(|association| association.name.as_str());
                    let near = did_you_mean(name.as_ref(), names);
                    self.tell(name.span(), format!("there is no [[sa]] \"{}\"{near}", name.as_ref()));
                }
            }
        }
    }

    /// Tells if all associations of a name are of other ESPs than the one at `place`. One that could not be read, or is of no known ESP, is
    /// told itself.
    fn check_own(&mut self, file: &TopologyFile, name: &Spanned<String>, place: usize) {
        let place_of =
            |esp: &Spanned<String>| file.esps.iter().position(|of| of.name.as_ref() == esp.as_ref());
        let named = file.associations.iter().filter(|sa| sa.name.as_ref() == name.as_ref());
        let others: Option<Vec<usize>> =
            named.map(|sa| sa.esp.as_ref().and_then(place_of).filter(|other| *other != place)).collect();
        if let Some(&other) = others.as_ref().and_then(|others| others.first()) {
            let [own, other] = [place, other].map(|place| file.esps[place].name.as_ref());
            let why = format!(
                "\"{}\" is of the esp \"{other}\", and this policy of \"{own}\": name one of its own [[sa]]",
                name.as_ref()
            );
            self.tell(name.span(), why);
        }
    }
}

/// Addresses that begin alike, or one.
fn prefix(text: &str) -> Result<AddressPrefix, String> {
    let cidr = network_or_address(text, || "write for example 10.1.0.0/16 or fd00::/48".into())?;
    Ok(AddressPrefix::new(cidr.address().into(), cidr.prefix_len()).expect("the length was checked"))
}
