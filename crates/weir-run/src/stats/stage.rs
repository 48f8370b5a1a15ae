//! A stage's counters: packets that passed a bridge, a router or an ESP, packets that ended there, and its other counts.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use weir_core::drops::Count;
use weir_path::stage::Stage;

use super::association::AssociationStats;
use super::place::PlaceStats;
use crate::books::Books;
use crate::workstreams::{Tally, WorkstreamStats};

/// The kind of a stage that dispatches packets to workers.
pub const DISPATCH: &str = "dispatch";

/// One bridge or router, or one worker's part of dispatch.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct StageStats {
    /// The place: packets that came in or were made here; that went on or were for itself; that it keeps.
    #[serde(flatten)]
    pub place: PlaceStats,
    /// `bridge`, `router`, `dispatch` or `esp`.
    pub kind: String,
    /// The worker that owns it.
    pub worker: usize,
    /// Accepted packets that it made: copies of floods, fragments, messages of its own.
    pub made: u64,
    /// Delivered packets that were for itself or were cut.
    pub consumed: u64,
    /// Their bytes.
    pub consumed_bytes: u64,
    /// Packets that entered it and left it.
    #[serde(skip)]
    pub tally: Tally,
    /// Its other counts, by name: of a bridge its stations, of a router its ICMP errors, neighbours and fragments.
    pub counts: BTreeMap<String, u64>,
    /// The security associations of an ESP.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub associations: Vec<AssociationStats>,
}

impl StageStats {
    /// The counters of a stage as it is now.
    pub fn of(name: &str, stage: &Stage, now_ns: u64) -> StageStats {
        let [made, consumed] = stage.own();
        let (intake, released) = stage.counts();
        let mut stats = StageStats {
            place: PlaceStats::new(name, Books::new(stage.account(), stage.held())),
            kind: match (stage.bridge(), stage.router(), stage.esp(), stage.dispatch()) {
                (Some(_), ..) => "bridge",
                (_, Some(_), ..) => "router",
                (_, _, Some(_), _) => "esp",
                (.., Some(_)) => DISPATCH,
                (None, None, None, None) => "sealer",
            }
            .into(),
            worker: 0,
            made: made.packets,
            consumed: consumed.packets,
            consumed_bytes: consumed.bytes,
            tally: Tally { intake, released },
            counts: BTreeMap::new(),
            associations: Vec::new(),
        };
        if let Some(esp) = stage.esp() {
            let associations = esp.associations().iter();
            stats.associations = associations.map(|running| AssociationStats::of(running, now_ns)).collect();
            if let Some(shares) = esp.shares() {
                stats.count("given", shares.given);
                stats.count("merged", shares.merged);
                stats.count("at_home", shares.at_home);
            }
        }
        if let Some(bridge) = stage.bridge() {
            let counts = bridge.counts();
            stats.count("stations", bridge.stations() as u64);
            stats.count("learned", counts.learned);
            stats.count("moved", counts.moved);
            stats.count("aged", counts.aged);
            stats.count("table_full", counts.table_full);
            stats.count("flooded_unknown", counts.flooded_unknown);
        }
        if let Some(router) = stage.router() {
            let counts = router.counts();
            let [neighbours, asked] = router.neighbours_taken();
            stats.count("neighbours", neighbours as u64);
            stats.count("neighbours_asked", asked as u64);
            stats.count("icmp_errors", counts.errors);
            stats.count("icmp_errors_limited", counts.errors_limited);
            stats.count("icmp_errors_untold", counts.errors_untold);
            stats.count("answers_untold", counts.answers_untold);
            stats.count("solicits_limited", counts.solicits_limited);
            stats.count("echoes", counts.echoes);
            stats.count("frag_oks", counts.frag_oks);
            stats.count("frag_fails", counts.frag_fails);
            stats.count("frag_creates", counts.frag_creates);
        }
        stats
    }

    fn count(&mut self, what: &str, count: u64) {
        self.counts.insert(what.into(), count);
    }

    /// The books of the packets that ended here: those that went on are in the books of a direction.
    pub fn ended(&self) -> Books {
        let delivered = Count { packets: self.consumed, bytes: self.consumed_bytes };
        let mut ended = Books { delivered, ..self.place.books.clone() };
        ended.accepted = Count {
            packets: u64::try_from(ended.explained(|amount| amount.packets)).unwrap_or(u64::MAX),
            bytes: u64::try_from(ended.explained(|amount| amount.bytes)).unwrap_or(u64::MAX),
        };
        ended
    }

    /// The counters as a workstream. Packets that went on are handled in the row of a direction too.
    pub fn workstream(&self, topology: &str, wsid: usize) -> WorkstreamStats {
        let held = self.place.books.held;
        let name = format!("{}/{}", self.kind, self.place.name);
        WorkstreamStats {
            wire: topology.into(),
            wsid,
            held: held.packets,
            elsewhere: self.place.books.delivered.packets - self.consumed,
            ..WorkstreamStats::new(name, self.tally, held)
        }
    }
}
