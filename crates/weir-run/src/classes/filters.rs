//! From the filters of a classes file to the rules of a classifier. A filter with lists is a rule for each combination.

use std::iter::once;
use std::net::IpAddr;
use std::ops::{Range, RangeInclusive};

use toml::Spanned;
use weir_core::classify::{Classifier, Conditions, RULES_MAX, Rule, RuleFault, Subnet, Target};

use super::FREE;
use super::file::{Filter, Words};
use crate::nearest::{and, called_now, did_you_mean};
use crate::source::SourceText;

/// Transports by name, beside their numbers.
const PROTOCOLS: [(&str, u8); 10] = [
    ("icmp", 1),
    ("tcp", 6),
    ("udp", 17),
    ("dccp", 33),
    ("gre", 47),
    ("esp", 50),
    ("ah", 51),
    ("icmpv6", 58),
    ("sctp", 132),
    ("udplite", 136),
];

/// The interfaces that filters may name.
#[derive(Clone, Debug, Default)]
pub struct Interfaces<'a> {
    /// The words for them in messages, such as `the ports`.
    what: &'static str,
    /// Their names, each with the number that rules have for it.
    names: Vec<(&'a str, u16)>,
    /// The names that they had before, each with the one of now.
    renamed: Vec<(&'a str, &'a str)>,
}

impl<'a> Interfaces<'a> {
    /// Ports of a topology, which go by several names each, with their numbers. Of equal names the first counts.
    pub fn of_ports(names: Vec<(&'a str, u16)>) -> Interfaces<'a> {
        Interfaces { what: "the ports", names, renamed: Vec::new() }
    }

    /// The two of a wire, by their names of now, which had other names before.
    pub fn of_wire(now: [&'a str; 2], before: [&'a str; 2]) -> Interfaces<'a> {
        Interfaces { renamed: before.into_iter().zip(now).collect(), ..now.into() }
    }

    fn number(&self, name: &str) -> Option<u16> {
        self.names.iter().find(|(known, _)| *known == name).map(|(_, number)| *number)
    }

    /// Each interface by its first name: `a, b and c`.
    fn list(&self) -> String {
        let mut numbers = Vec::new();
        let mut firsts = Vec::new();
        for (name, number) in &self.names {
            if !numbers.contains(number) {
                numbers.push(*number);
                firsts.push(*name);
            }
        }
        and(&firsts)
    }
}

impl<'a> From<[&'a str; 2]> for Interfaces<'a> {
    /// The interfaces of a wire.
    fn from([first, second]: [&'a str; 2]) -> Interfaces<'a> {
        let names = vec![(first, 0), (second, 1)];
        Interfaces { what: "the wire's interfaces", names, renamed: Vec::new() }
    }
}

/// Rules, and the place of the filter that each comes from.
pub struct Rules {
    rules: Vec<Rule>,
    filters: Vec<Range<usize>>,
}

impl Rules {
    /// Reads the filters; a sentence for each that is wrong. `class_of` finds a leaf by its name, or says why not.
    pub fn read(
        source: SourceText,
        filters: &[Filter],
        interfaces: &Interfaces,
        class_of: impl Fn(&Spanned<String>) -> Result<u16, String>,
    ) -> (Rules, Vec<String>) {
        let mut all = Rules { rules: Vec::new(), filters: Vec::new() };
        let mut told = Vec::new();
        for filter in filters {
            let read = || -> Result<(Vec<Conditions>, Target), String> {
                let target = match filter.class.as_ref().as_str() {
                    FREE => Target::Free,
                    _ => Target::Class(class_of(&filter.class)?),
                };
                let interface = interface(source, filter, interfaces)?;
                let conditions = conditions(source, filter)?.into_iter();
                Ok((conditions.map(|conditions| Conditions { interface, ..conditions }).collect(), target))
            };
            let place = filter.class.span();
            match read() {
                Ok((conditions, _)) if all.rules.len() + conditions.len() > RULES_MAX => {
                    let why =
                        format!("the filters come to more than {RULES_MAX} rules; join subnets or ports");
                    told.push(source.tell(place, why));
                    break;
                }
                Ok((conditions, target)) => {
                    all.filters.extend(conditions.iter().map(|_| place.clone()));
                    all.rules.extend(conditions.into_iter().map(|conditions| Rule { conditions, target }));
                }
                Err(why) => told.push(why),
            }
        }
        (all, told)
    }

    /// The classifier, and a warning for each filter that never matches.
    pub fn classifier(self, source: SourceText, otherwise: Target) -> (Classifier, Vec<String>) {
        let classifier = Classifier::new(self.rules, otherwise).expect("there are at most RULES_MAX");
        let warnings = classifier.faults().into_iter().map(|fault| match fault {
            RuleFault::Impossible { rule, why } => source.tell(
                self.filters[rule].clone(),
                format!("this filter can never match: {why}; take one of the two out"),
            ),
            RuleFault::Shadowed { rule, by } => {
                let (line, _) = source.line_of(self.filters[by].start);
                source.tell(
                    self.filters[rule].clone(),
                    format!("this filter can never match: the one in line {line} takes all its packets; put it first"),
                )
            }
            RuleFault::TooMany { .. } => source.tell(0..0, fault),
        });
        let warnings = warnings.collect();
        (classifier, warnings)
    }
}

fn interface(source: SourceText, filter: &Filter, interfaces: &Interfaces) -> Result<Option<u16>, String> {
    let Some(name) = &filter.interface else { return Ok(None) };
    let number = interfaces.number(name.as_ref()).ok_or_else(|| {
        let near = match interfaces.renamed.iter().find(|(before, _)| before == name.as_ref()) {
            Some((before, now)) => called_now(before, now),
            None => did_you_mean(name.as_ref(), interfaces.names.iter().map(|(name, _)| *name)),
        };
        source.tell(name.span(), format!("{} are {}{near}", interfaces.what, interfaces.list()))
    })?;
    Ok(Some(number))
}

/// Every combination of the values that the filter lists.
fn conditions(source: SourceText, filter: &Filter) -> Result<Vec<Conditions>, String> {
    let mut all = vec![Conditions::default()];
    combine(&mut all, source, &filter.from, subnet, |conditions, subnet| conditions.from = Some(subnet))?;
    combine(&mut all, source, &filter.to, subnet, |conditions, subnet| conditions.to = Some(subnet))?;
    combine(&mut all, source, &filter.protocol, protocol, |conditions, number| {
        conditions.protocol = Some(number);
    })?;
    combine(&mut all, source, &filter.from_ports, ports, |conditions, ports| {
        conditions.from_ports = Some(ports);
    })?;
    combine(&mut all, source, &filter.to_ports, ports, |conditions, ports| {
        conditions.to_ports = Some(ports)
    })?;
    combine(&mut all, source, &filter.dscp, dscp, |conditions, dscp| conditions.dscp = Some(dscp))?;
    Ok(all)
}

fn combine<T: Clone>(
    all: &mut Vec<Conditions>,
    source: SourceText,
    words: &Option<Spanned<Words>>,
    read: fn(&str) -> Result<T, String>,
    set: impl Fn(&mut Conditions, T),
) -> Result<(), String> {
    let Some(words) = words else { return Ok(()) };
    let values: Result<Vec<T>, String> =
        Words::each(words).map(|(at, word)| read(word).map_err(|why| source.tell(at, why))).collect();
    let values = values?;
    if all.len() * values.len() > RULES_MAX {
        let why = format!("the combinations of this filter are more than {RULES_MAX}; write several filters");
        return Err(source.tell(words.span(), why));
    }
    *all = all
        .iter()
        .flat_map(|conditions| {
            values.iter().map(|value| {
                let mut conditions = conditions.clone();
                set(&mut conditions, value.clone());
                conditions
            })
        })
        .collect();
    Ok(())
}

fn subnet(text: &str) -> Result<Subnet, String> {
    let read = || -> Option<Subnet> {
        let (address, prefix_len) = text.split_once('/').map_or((text, None), |(a, p)| (a, Some(p)));
        let address: IpAddr = address.parse().ok()?;
        let whole = if address.is_ipv4() { 32 } else { 128 };
        Subnet::new(address, prefix_len.map_or(Some(whole), |len| len.parse().ok())?)
    };
    read().ok_or_else(|| {
        format!("\"{text}\" is no subnet; write for example 10.0.0.0/8, fd00::/8 or 192.0.2.7")
    })
}

/// A protocol by its name or number.
pub(crate) fn protocol(text: &str) -> Result<u8, String> {
    let named = PROTOCOLS.iter().find(|(name, _)| name.eq_ignore_ascii_case(text)).map(|(_, number)| *number);
    named.or_else(|| text.parse().ok()).ok_or_else(|| {
        let near = did_you_mean(text, PROTOCOLS.iter().map(|(name, _)| *name));
        format!("\"{text}\" is no protocol; write for example tcp or udp, or a number up to 255{near}")
    })
}

/// A port, or the first and the last of several.
pub(crate) fn ports(text: &str) -> Result<RangeInclusive<u16>, String> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    match (first.trim().parse(), last.trim().parse()) {
        (Ok(first), Ok(last)) if first <= last => Ok(first..=last),
        (Ok::<u16, _>(first), Ok::<u16, _>(last)) => {
            Err(format!("\"{text}\" has no port in it; write \"{last}-{first}\""))
        }
        _ => Err(format!("\"{text}\" is no port or range of ports; write for example 443 or \"8000-8080\"")),
    }
}

/// A code point by its number, or by the names of RFC 2474, 2597 and 3246.
fn dscp(text: &str) -> Result<u8, String> {
    let assured = (1..=4u8)
        .flat_map(|class| (1..=3u8).map(move |drop| (format!("af{class}{drop}"), 8 * class + 2 * drop)));
    let selector = (0..8u8).map(|class| (format!("cs{class}"), 8 * class));
    let mut names = assured.chain(selector).chain(once(("ef".to_string(), 46)));
    let named = names.find(|(name, _)| name.eq_ignore_ascii_case(text)).map(|(_, value)| value);
    named.or_else(|| text.parse().ok()).filter(|dscp| *dscp < 64).ok_or_else(|| {
        format!("\"{text}\" is no DSCP; write a number from 0 to 63, or a name such as ef, af41 or cs1")
    })
}
