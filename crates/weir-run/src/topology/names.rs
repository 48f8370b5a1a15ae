//! The names by which the tables of a topology file refer to each other.
//!
//! Rule: one name space over ports, ends of epairs, bridges and routers; a name stands for one of them. Where a table could not be read,
//! names that nothing has are not told: that table may have them.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use toml::Spanned;
use weir_port::link::kernel_name;

use super::INTERFACE_NAME_IS;
use super::check::TopologyReader;
use super::tables::TopologyFile;
use crate::limits::{NAME_IS, is_name};
use crate::nearest::{and, did_you_mean};

/// The thing that a name stands for; each by its place among the tables of its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Thing {
    /// A port.
    Port(usize),
    /// An end of an epair, the second if `is_b`.
    End { epair: usize, is_b: bool },
    /// A bridge.
    Bridge(usize),
    /// A router.
    Router(usize),
    /// An ESP.
    Esp(usize),
}

impl Thing {
    /// Its kind, with an article.
    pub fn kind(self) -> &'static str {
        match self {
            Thing::Port(_) => "a port",
            Thing::End { .. } => "an end of an epair",
            Thing::Bridge(_) => "a bridge",
            Thing::Router(_) => "a router",
            Thing::Esp(_) => "an esp",
        }
    }
}

/// All names of a file.
pub(super) struct Names {
    known: BTreeMap<String, Thing>,
    /// The name of a port, by its interface.
    called: HashMap<String, String>,
    is_partial: bool,
}

/// The name of an end of an epair.
pub(super) fn end_name(epair: &str, is_b: bool) -> String {
    format!("{epair}{}", if is_b { 'b' } else { 'a' })
}

impl Names {
    /// Collects the names; tells those that cannot be, and those that two things have.
    pub(super) fn read(reader: &mut TopologyReader, file: &TopologyFile) -> Names {
        let mut all: Vec<(String, Range<usize>, Thing)> = Vec::new();
        let mut called = HashMap::new();
        let mut interfaces: HashMap<&str, Range<usize>> = HashMap::new();
        for (place, port) in file.ports.iter().enumerate() {
            let interface = port.interface.as_ref().as_str();
            if kernel_name(interface).is_none() {
                let why = format!("no interface can be called so: a name is {INTERFACE_NAME_IS}");
                reader.tell(port.interface.span(), why);
            }
            let first = interfaces.insert(interface, port.interface.span());
            // The port is called by its interface, and told for that.
            let is_told = first.is_some() && port.name.is_none();
            if let Some(first) = first {
                let line = reader.line(&first);
                let why = format!(
                    "the interface {interface} is the port of line {line} already: it has one; take one of the two out"
                );
                reader.tell(port.interface.span(), why);
            }
            if let Some(name) = &port.name {
                reader.check_name("a port", name, name.as_ref());
            }
            let name = port.called();
            called.insert(interface.to_string(), name.as_ref().clone());
            if !is_told {
                all.push((name.as_ref().clone(), name.span(), Thing::Port(place)));
            }
        }
        for (epair, table) in file.epairs.iter().enumerate() {
            let ends = [false, true].map(|is_b| (end_name(table.name.as_ref(), is_b), is_b));
            let longest = if table.name.as_ref().is_empty() { "" } else { &ends[0].0 };
            if reader.check_name("an epair", &table.name, longest) {
                all.extend(ends.map(|(name, is_b)| (name, table.name.span(), Thing::End { epair, is_b })));
            }
        }
        let bridges =
            file.bridges.iter().enumerate().map(|(place, table)| (&table.name, Thing::Bridge(place)));
        let routers =
            file.routers.iter().enumerate().map(|(place, table)| (&table.name, Thing::Router(place)));
        let esps = file.esps.iter().enumerate().map(|(place, table)| (&table.name, Thing::Esp(place)));
        for (name, thing) in bridges.chain(routers).chain(esps) {
            reader.check_name(thing.kind(), name, name.as_ref());
            all.push((name.as_ref().clone(), name.span(), thing));
        }
        all.sort_by_key(|(_, at, _)| at.start);
        let known = reader.known(all);
        Names { known, called, is_partial: file.is_partial }
    }

    /// Returns whether a name stands for this, and not for another that has it too.
    pub(super) fn is_of(&self, name: &str, thing: Thing) -> bool {
        self.known.get(name) == Some(&thing)
    }

    /// The port or end of an epair of a name.
    ///
    /// # Errors
    /// If there is none, with the name that was perhaps meant; `None` where it may be in a table that could not be read.
    pub(super) fn find(&self, name: &str) -> Result<Thing, Option<String>> {
        let ends = [false, true].map(|is_b| end_name(name, is_b));
        let told = match self.known.get(name) {
            Some(thing @ (Thing::Port(_) | Thing::End { .. })) => return Ok(*thing),
            Some(thing) => format!(
                "\"{name}\" is {}, which an epair joins to others: write [[epair]], and an end of it here",
                thing.kind()
            ),
            None if matches!(self.known.get(&ends[0]), Some(Thing::End { .. })) => {
                format!("an epair has two ends: write \"{}\" or \"{}\"", ends[0], ends[1])
            }
            None => match self.called.get(name) {
                Some(called) => format!("the port with this interface is called \"{called}\": write that"),
                None if self.is_partial => return Err(None),
                None => {
                    let ends = self.known.iter();
                    let ends = ends.filter(|(_, thing)| matches!(thing, Thing::Port(_) | Thing::End { .. }));
                    let ends: Vec<&str> = ends.map(|(name, _)| name.as_str()).collect();
                    let near = did_you_mean(name, ends.iter().copied());
                    let there = if near.is_empty() { format!("; there are {}", and(&ends)) } else { near };
                    format!("there is no port or end of an epair \"{name}\"{there}")
                }
            },
        };
        Err(Some(told))
    }
}

impl TopologyReader<'_> {
    /// The port or end of an epair that a table names; a fault of the name is told.
    pub(super) fn find(&mut self, names: &Names, name: &Spanned<String>) -> Option<Thing> {
        names.find(name.as_ref()).map_err(|why| why.map(|why| self.tell(name.span(), why))).ok()
    }

    /// Returns whether something can be called so; a name that cannot be is told.
    fn check_name(&mut self, kind: &str, at: &Spanned<String>, name: &str) -> bool {
        if !is_name(name) {
            self.tell(at.span(), format!("{kind} cannot be called so: a name is {NAME_IS}"));
        }
        is_name(name)
    }

    /// The thing that each name stands for, the first of the file; a second is told.
    fn known(&mut self, all: Vec<(String, Range<usize>, Thing)>) -> BTreeMap<String, Thing> {
        let mut known: BTreeMap<String, (Thing, Range<usize>)> = BTreeMap::new();
        // Both ends of an epair have one place, and are told once.
        let mut told_at = None;
        for (name, at, thing) in all {
            match known.get(&name) {
                None => {
                    known.insert(name, (thing, at));
                }
                Some((first, first_at)) if told_at != Some(at.start) => {
                    told_at = Some(at.start);
                    let (line, kind) = (self.line(first_at), first.kind());
                    let why = format!(
                        "line {line} has {kind} called \"{name}\" already: give one of them another name"
                    );
                    self.tell(at, why);
                }
                Some(_) => {}
            }
        }
        known.into_iter().map(|(name, (thing, _))| (name, thing)).collect()
    }
}
