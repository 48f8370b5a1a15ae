//! The topology file, `weir.toml`: what a machine's limits in place are to be, read, checked and compared with what there is.
//!
//! ```toml
//! [[limit]]
//! device = "veth-a"           # as `weir limit DEV`; or pid = 4711, and device is the interface there ["eth0"]
//! rate = "200mbit"            # what the programs behind it send
//! rate_back = "500mbit"       # what is sent to them; one of the two must be there
//! # burst = "100kb"           # [2 ms at the rate, 20kb at least]
//! # name = "office"           # [as it is called, or the device]
//! # optional = true           # where there is no such interface, it is skipped [false]
//! # classes_file = "o.toml"   # classes that share it, each way; relative to this file. Or here:
//! default = "bulk"            # as in a classes file, with [[limit.class]] and [[limit.filter]]
//!
//! [[limit.class]]
//! name = "bulk"
//! rate = "50mbit"
//! ceil = "200mbit"
//! ```
//!
//! [`read`] takes a file apart and finds all that can be told wrong without looking at the machine, with its place. [`diff`] says what
//! would change, [`mod@write`] makes a file of the limits that there are.
//!
//! Rule: a file says all of a limit: what a table leaves out has its default, and classes that it does not have go. The one exception is
//! a name. Of what no table names nothing is said, and nothing is changed.
//!
//! Pure: no clock, no sockets; the one thing that it asks for, a classes file, is handed in. Limits: a file has limits in place and
//! nothing else yet; what else there may be one day is refused with the command that does it.

pub mod check;
pub mod diff;
pub mod file;
#[cfg(test)]
mod tests;
pub mod write;

use weir_core::rate::Rate;
use weir_port::limit::reshape::ClassesAsked;

pub use check::read;

/// The device inside a process's namespace, unless it is said.
pub const DEVICE_DEFAULT: &str = "eth0";

/// What a file says, checked.
#[derive(Clone, Debug)]
pub struct Topology {
    /// The limits, in the order of the file.
    pub limits: Vec<LimitWanted>,
    /// What is kept, but perhaps not as meant.
    pub warnings: Vec<String>,
}

/// One limit of a file.
#[derive(Clone, Debug)]
pub struct LimitWanted {
    /// Where it is in the file: `FILE:LINE:COLUMN`.
    pub at: String,
    /// The interface.
    pub device: String,
    /// The process whose namespace that is in, if it is not this one's.
    pub pid: Option<u32>,
    /// What it is to be called, if that is said.
    pub name: Option<String>,
    /// What programs behind the interface may send.
    pub rate: Option<Rate>,
    /// What may be sent to them.
    pub rate_back: Option<Rate>,
    /// How much may pass at once, if that is said.
    pub burst_bytes: Option<u64>,
    /// The classes that share it; without any, none.
    pub classes: ClassesAsked,
    /// Whether it may be missing.
    pub is_optional: bool,
}
