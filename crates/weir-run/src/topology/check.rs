//! The check of a topology file, as far as the file itself tells its faults; and the topology that it becomes.
//!
//! ```text
//! tables (file)   names   limits   ports   stages: bridges, routers and their routes   joined: links, loops   ->  Topology
//! ```
//!
//! Rule: every fault is told, with its place, what is expected and what is nearest. Properties of the machine (interfaces, queues of
//! others) are not looked at here.

use std::ops::Range;

use toml::Spanned;
use weir_core::units::parse_size_bytes;
use weir_path::plan::{Plan, StageKind, StagePlan};

use super::file::{self, Told};
use super::mac::Identity;
use super::names::Names;
use super::stages::Stages;
use super::tables::TopologyFile;
use super::{TablePlace, Topology};
use crate::datapath::Kind;
use crate::limits::{PATH_NAME_IS, check_burst, is_path_name};
use crate::source::{LineStarts, SourceText};

/// The opener of a classes file, by the path that stands in the file: the name to show for it, and its text; or in words why not.
pub(super) type Open<'a> = dyn FnMut(&str) -> Result<(String, String), String> + 'a;

/// Reads a file called `name`. `machine_id` tells this machine from others, so that its routers have MACs that no others have; empty where
/// there is none. `open` opens a classes file by the path that stands there: the name to show for it, and its text.
///
/// # Errors
/// All faults, in the order of the file: where, what is expected, and what to do.
pub fn read(
    name: &str,
    text: &str,
    machine_id: &str,
    mut open: impl FnMut(&str) -> Result<(String, String), String>,
) -> Result<Topology, Vec<String>> {
    let lines = LineStarts::of(text);
    let source = SourceText { name, text, lines: &lines };
    let (file, told) = file::tables(source);
    let mut reader = TopologyReader { source, told, warnings: Vec::new() };
    let is_path = file.has_path();
    if file.limits.is_empty() && !file.has_no_limit && !is_path && reader.told.is_empty() {
        reader.tell(0..0, "there is nothing in it; write [[limit]] with a device and a rate, or [[port]] and what joins ports");
    }
    let topology_name = reader.topology_name(&file, is_path);
    for name in file.limits.iter().filter_map(|limit| limit.name.as_ref()).filter(|_| is_path) {
        if *name.as_ref() == topology_name {
            reader.tell(
                name.span(),
                "the topology is called so, and `weir set` could tell neither: give the limit another name",
            );
        }
    }
    let limits = reader.limits(&file.limits, &mut open);
    let plan = is_path.then(|| {
        let identity = Identity { machine_id, topology: &topology_name };
        reader.plan(&file, &identity, &mut open)
    });
    let ports = file.ports.iter().map(|port| TablePlace {
        name: port.called().as_ref().clone(),
        at: source.place(port.interface.span().start),
    });
    let associations = file.associations.iter().map(|association| {
        let key = association.key_file.as_ref().map(Spanned::span);
        let at = key.unwrap_or_else(|| association.name.span());
        TablePlace { name: association.name.as_ref().clone(), at: source.place(at.start) }
    });
    let TopologyReader { mut told, mut warnings, .. } = reader;
    for told in [&mut told, &mut warnings] {
        told.sort_by_key(|told| told.at);
    }
    let in_words = |told: Vec<Told>| told.into_iter().map(|told| told.what).collect::<Vec<_>>();
    if !told.is_empty() {
        return Err(in_words(told));
    }
    let mut warnings = in_words(warnings);
    // A value that is of both ways is warned of once.
    warnings.dedup();
    Ok(Topology {
        name: topology_name,
        limits,
        plan,
        ports: ports.collect(),
        associations: associations.collect(),
        warnings,
    })
}

/// The state of reading: the faults and warnings told so far.
pub(super) struct TopologyReader<'a> {
    pub(super) source: SourceText<'a>,
    pub(super) told: Vec<Told>,
    pub(super) warnings: Vec<Told>,
}

impl TopologyReader<'_> {
    /// Tells a fault at a place.
    pub(super) fn tell(&mut self, at: Range<usize>, what: impl std::fmt::Display) {
        self.told.push(Told::new(self.source, at, what));
    }

    /// Warns of something that is kept, but perhaps not as meant.
    pub(super) fn warn(&mut self, at: Range<usize>, what: impl std::fmt::Display) {
        self.warnings.push(Told::new(self.source, at, what));
    }

    /// The number of the line that something begins in.
    pub(super) fn line(&self, at: &Range<usize>) -> usize {
        self.source.line_of(at.start).0
    }

    /// A text as `read` reads it; `None` if it is not there, or wrong, which is told.
    pub(super) fn value<T, E: std::fmt::Display>(
        &mut self,
        text: &Option<Spanned<impl AsRef<str>>>,
        read: impl Fn(&str) -> Result<T, E>,
    ) -> Option<T> {
        let text = text.as_ref()?;
        read(text.get_ref().as_ref()).map_err(|why| self.tell(text.span(), why)).ok()
    }

    /// A burst, in bytes.
    pub(super) fn burst(&mut self, text: &Option<Spanned<String>>) -> Option<u64> {
        self.value(text, |text| {
            let bytes = parse_size_bytes(text).map_err(|error| error.to_string())?;
            check_burst(bytes).map(|()| bytes)
        })
    }

    /// The name of the topology: as the file says, or the file's own name without `.toml`.
    fn topology_name(&mut self, file: &TopologyFile, is_path: bool) -> String {
        if let Some(name) = &file.name {
            if !is_path_name(name.as_ref()) {
                self.tell(name.span(), format!("a topology cannot be called so: a name is {PATH_NAME_IS}"));
            }
            return name.as_ref().clone();
        }
        let name = self.source.name.rsplit('/').next().unwrap_or_default();
        let name = name.strip_suffix(".toml").unwrap_or(name);
        if is_path && !is_path_name(name) {
            let why = format!(
                "a topology cannot be called as this file is: write name = \"...\" in its first line, {PATH_NAME_IS}"
            );
            self.tell(0..0, why);
        }
        name.into()
    }

    /// A file of one wire needs both its ports, and ends without one.
    fn optional_end_of_a_wire(&mut self, file: &TopologyFile, plan: &Plan) {
        if Kind::of(plan) != Kind::Wire {
            return;
        }
        for optional in file.ports.iter().filter_map(|port| port.optional.as_ref()) {
            if *optional.as_ref() {
                let why = "a wire of two ports needs both, and ends without one: take `optional` out, and wait for what is not there yet \
                           with `weir up --wait SECONDS`";
                self.tell(optional.span(), why);
            }
        }
    }

    /// The plan of the ports, wires, epairs, bridges and routers.
    fn plan(&mut self, file: &TopologyFile, identity: &Identity, open: &mut Open) -> Plan {
        let names = Names::read(self, file);
        let stages = Stages::of(file);
        if let Some(at) =
            file.ports.is_empty().then(|| file.first_of_path()).flatten().filter(|_| !file.is_partial)
        {
            self.tell(at, "there is no port, so nothing ever comes in: write [[port]] with an interface");
        }
        let ports = self.ports(file, open);
        let mut planned: Vec<(usize, StagePlan)> = Vec::new();
        for (table, place) in file.bridges.iter().zip(&stages.of_bridges) {
            planned.push((*place, StagePlan { name: table.name.as_ref().clone(), kind: self.bridge(table) }));
        }
        for (table, place) in file.routers.iter().zip(&stages.of_routers) {
            let kind = StageKind::Router(Box::new(self.router(table, identity)));
            planned.push((*place, StagePlan { name: table.name.as_ref().clone(), kind }));
        }
        for ((table, place), plan) in file.esps.iter().zip(&stages.of_esps).zip(self.esps(file)) {
            let kind = StageKind::Esp(Box::new(plan));
            planned.push((*place, StagePlan { name: table.name.as_ref().clone(), kind }));
        }
        planned.sort_by_key(|(place, _)| *place);
        let links = self.links(file, &names, &stages);
        self.segments(file, &stages, &links);
        let dispatched = self.dispatched(file, &names);
        let stages = planned.into_iter().map(|(_, stage)| stage).collect();
        let plan = Plan { ports, stages, links, dispatched };
        self.optional_end_of_a_wire(file, &plan);
        self.warn_of_nested(file, &plan);
        self.warn_of_short(file, &plan);
        plan
    }
}
