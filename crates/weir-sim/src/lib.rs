#![forbid(unsafe_code)]
//! Weir on a virtual clock: seeded, exactly repeatable runs of loads that no test machine can hold, with the very code of `weir-path` and
//! `weir-core` in them, and with the historical designs beside it, which must first reproduce the published figures.
//!
//! A run takes a [`scenario::Scenario`] and a seed and gives a [`report::Report`], or the first broken rule:
//!
//! ```
//! let text = "system weir\nlimit 5ms\ntime 100ms\nsenders 3 flood 1gbit 1470b\n";
//! let scenario = weir_sim::scenario::Scenario::parse(text).unwrap();
//! let report = weir_sim::machine::run(&scenario, 1).unwrap();
//! assert_eq!((report.lost_pct, report.empty_wakes), (0.0, 0));
//! ```
//!
//! In reading order: [`prng`] and [`events`] are chance and time; [`packet`], [`socket`], [`sender`], [`tcp`] and [`cpu`] are the sending
//! machine's parts; [`tbf`], [`backpressure`] and [`kernel`] the kernel's way out with and without the RFC; [`weir`] is ours, the path that
//! ships on modelled ports ([`port`]); [`effects`] are the results of a step of either. [`machine`] puts them on the clock, at the cost
//! that [`parameters`] say, [`checks`] watch, [`report`] counts. [`scenario`] reads the texts of `scenarios/`; [`seed`] holds the published
//! figures and the one parameter set, [`table`] the comparison that `weir lab qdisc --sim` prints. [`graph`] stands apart: it runs random
//! graphs of stages to show that they always make progress. [`plans`], [`gateways`] and [`frame_port`] are for tests of paths with many
//! ports.

pub mod backpressure;
pub mod checks;
pub mod cpu;
pub mod effects;
pub mod events;
pub mod frame_port;
pub mod gateways;
pub mod graph;
pub mod kernel;
pub mod machine;
pub mod packet;
pub mod parameters;
pub mod plans;
pub mod port;
pub mod prng;
pub mod report;
pub mod scenario;
pub mod seed;
pub mod sender;
pub mod socket;
pub mod table;
pub mod tbf;
pub mod tcp;
pub mod weir;
