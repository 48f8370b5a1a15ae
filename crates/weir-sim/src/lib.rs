#![forbid(unsafe_code)]
//! Weir on a virtual clock: seeded, exactly repeatable runs of loads that no test machine can hold.
//!
//! A run drives the very code of `weir-path` and `weir-core`. Beside it stand the historical designs, which must first reproduce the published
//! figures.
//!
//! A caller begins with a scenario. A run takes a [`scenario::Scenario`] and a seed, and gives a [`report::Report`] or the first broken rule:
//!
//! ```
//! let text = "system weir\nlimit 5ms\ntime 100ms\nsenders 3 flood 1gbit 1470b\n";
//! let scenario = weir_sim::scenario::Scenario::parse(text).unwrap();
//! let report = weir_sim::machine::run(&scenario, 1).unwrap();
//! assert_eq!((report.lost_pct, report.empty_wakes), (0.0, 0));
//! ```
//!
//! In reading order:
//!
//! | modules | hold |
//! |---|---|
//! | [`prng`], [`events`] | chance and time |
//! | [`packet`], [`socket`], [`sender`], [`tcp`], [`cpu`] | the parts of the sending machine |
//! | [`tbf`], [`backpressure`], [`kernel`] | the kernel's way out, without and with the RFC |
//! | [`weir`], [`port`] | Weir's way out: the path that ships, on modelled ports |
//! | [`effects`] | the results of a step of either way out |
//! | [`machine`], [`parameters`] | all of these on the clock, and the cost of each step |
//! | [`checks`], [`report`] | the rules that are watched; what is counted |
//! | [`scenario`] | the texts of `scenarios/` |
//! | [`seed`], [`table`] | the published figures and the one parameter set; the table of `weir lab qdisc --sim` |
//! | [`graph`] | random graphs of stages, run to show that they always make progress |
//! | [`plans`], [`gateways`], [`frame_port`] | tests of paths with many ports |
//!
//! Rule: a run depends on its scenario and its seed alone.
//!
//! Limits: the cost of a step is a parameter, so a time is only as good as that.

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
