//! The stages of a topology file: bridges and routers in one row, and the settings of a `[[bridge]]`.
//!
//! Rule: a stage's place in the plan is its place in the file.

use weir_core::net::bridge::{AGEING_NS, PORTS_MAX};
use weir_core::units::{parse_time_ns, time_text};
use weir_path::plan::StageKind;

use super::check::TopologyReader;
use super::tables::{BridgeTable, TopologyFile};

/// Stations that a bridge remembers unless it is told.
pub const STATIONS_DEFAULT: usize = 4096;
/// The most that it may be told: their table takes 64 MiB.
const STATIONS_MAX: usize = 1 << 20;
/// The shortest and the longest ageing. IEEE 802.1D table 7-5 has 10 s for the shortest; less does no harm.
const AGEING_NS_MIN: u64 = 1_000_000_000;
const AGEING_NS_MAX: u64 = 1_000_000_000_000_000;

/// The places of the stages in the plan.
pub(super) struct Stages {
    /// The place of each bridge.
    pub of_bridges: Vec<usize>,
    /// The place of each router.
    pub of_routers: Vec<usize>,
    /// The place of each ESP.
    pub of_esps: Vec<usize>,
    /// The name of each stage by its place, and whether it passes frames on as a bridge does, which an ESP does too.
    pub called: Vec<(String, bool)>,
}

impl Stages {
    pub(super) fn of(file: &TopologyFile) -> Stages {
        let bridges =
            file.bridges.iter().enumerate().map(|(place, table)| (&table.at, &table.name, 0, place));
        let routers =
            file.routers.iter().enumerate().map(|(place, table)| (&table.at, &table.name, 1, place));
        let esps = file.esps.iter().enumerate().map(|(place, table)| (&table.at, &table.name, 2, place));
        let mut all: Vec<_> = bridges.chain(routers).chain(esps).collect();
        all.sort_by_key(|(at, ..)| at.start);
        let mut stages = Stages {
            of_bridges: vec![0; file.bridges.len()],
            of_routers: vec![0; file.routers.len()],
            of_esps: vec![0; file.esps.len()],
            called: Vec::with_capacity(all.len()),
        };
        for (place, (_, name, kind, table)) in all.into_iter().enumerate() {
            let of = [&mut stages.of_bridges, &mut stages.of_routers, &mut stages.of_esps];
            of[kind][table] = place;
            stages.called.push((name.as_ref().clone(), kind != 1));
        }
        stages
    }

    /// The noun for a stage, by its place.
    pub fn noun(&self, stage: usize) -> &'static str {
        let is = |of: &[usize]| of.contains(&stage);
        match (is(&self.of_esps), is(&self.of_routers)) {
            (true, _) => "esp",
            (_, true) => "router",
            _ => "bridge",
        }
    }
}

impl TopologyReader<'_> {
    /// The settings of a bridge.
    pub(super) fn bridge(&mut self, table: &BridgeTable) -> StageKind {
        let ports = table.ports.as_ref();
        if ports.len() < 2 {
            let why = "a bridge joins two ports at least: write ports = [\"a\", \"b\"], with names of ports and ends of epairs";
            self.tell(table.ports.span(), why);
        }
        if let Some(port) = ports.get(PORTS_MAX) {
            let why = format!(
                "a bridge has {PORTS_MAX} ports at most, and this has {}: put the rest on a second one, and join both by an [[epair]]",
                ports.len()
            );
            self.tell(port.span(), why);
        }
        let stations_max = table.stations_max.as_ref().map_or(Some(STATIONS_DEFAULT), |stations| {
            let number =
                usize::try_from(*stations.as_ref()).ok().filter(|number| (1..=STATIONS_MAX).contains(number));
            if number.is_none() {
                self.tell(stations.span(), format!("a bridge remembers 1 to {STATIONS_MAX} stations"));
            }
            number
        });
        let ageing_ns = self.value(&table.ageing, |text| {
            let ageing_ns = parse_time_ns(text).map_err(|error| error.to_string())?;
            match ageing_ns {
                AGEING_NS_MIN..=AGEING_NS_MAX => Ok(ageing_ns),
                _ => Err(format!(
                    "stations are forgotten after {} to {}, usually {}",
                    time_text(AGEING_NS_MIN),
                    time_text(AGEING_NS_MAX),
                    time_text(AGEING_NS)
                )),
            }
        });
        StageKind::Bridge {
            ports: ports.len().min(PORTS_MAX) as u16,
            stations_max: stations_max.unwrap_or(STATIONS_DEFAULT),
            ageing_ns: ageing_ns.unwrap_or(AGEING_NS),
        }
    }
}
