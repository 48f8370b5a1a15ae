//! What a path is to be: its ports, the stages between them, and what joins what.
//!
//! ```text
//! port 0 ---+                          ports    where packets come from and go to, each with a limit of what leaves by it
//!           bridge --- router --- port 2        stages   what decides where a packet goes on
//! port 1 ---+                          links    each joins two attachments, both ways
//! ```
//!
//! Rule: every port, and every port of a stage, is attached once. A wire is the plan of two ports and one link.
//!
//! Pure: whoever reads a file or a command line makes one ([`Plan::check`] says what cannot be), and [`crate::worker`] runs it.

use std::sync::Arc;

use weir_core::net::router::RouterSettings;
use weir_core::shaper::tbf::TbfConfig;

use crate::classes::Classes;

/// A path, as it is to be.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// Its ports.
    pub ports: Vec<PortPlan>,
    /// Its stages.
    pub stages: Vec<StagePlan>,
    /// What joins them.
    pub links: Vec<[Attachment; 2]>,
}

/// A port.
#[derive(Clone, Debug)]
pub struct PortPlan {
    /// The interface.
    pub interface: String,
    /// The limit of what leaves by it.
    pub limits: Option<TbfConfig>,
    /// The classes that share this.
    pub classes: Option<Arc<Classes>>,
}

/// A stage.
#[derive(Clone, Debug)]
pub struct StagePlan {
    /// Its name.
    pub name: String,
    /// What it does.
    pub kind: StageKind,
}

/// What stages do.
#[derive(Clone, Debug)]
pub enum StageKind {
    /// A learning bridge.
    Bridge {
        /// How many ports it has.
        ports: u16,
        /// How many stations it remembers.
        stations_max: usize,
        /// For how long, in nanoseconds.
        ageing_ns: u64,
    },
    /// A router, with a port for each of its interfaces.
    Router(Box<RouterSettings>),
}

/// One end of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Attachment {
    /// A port, by its place in the plan.
    Port(usize),
    /// A stage by its place in the plan, and the number of its port.
    Stage(usize, u16),
}
