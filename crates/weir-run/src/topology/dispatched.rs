//! The wires of a topology file whose packets are dispatched to workers: `dispatch`, and `set` for netisr's other settings.
//!
//! Rule: the settings are those of `weir sink --set`, read by the same reader. The number of workers is the machine's, so `weir up` tells
//! faults that depend on it, and this all others.
//!
//! Limits: such a wire joins two ports.

use toml::Spanned;
use weir_core::dispatch::handlers::protocols;
use weir_core::dispatch::settings::{Settings, pair};
use weir_path::plan::WireDispatch;

use super::check::TopologyReader;
use super::names::{Names, Thing};
use super::tables::{TopologyFile, WireTable};

/// The setting that says when packets are handled.
pub(super) const MODE: &str = "dispatch";
/// Settings of all workers, which no wire has for itself.
const OF_ALL: [&str; 2] = ["maxthreads", "bindthreads"];

impl TopologyReader<'_> {
    /// The wires that are dispatched.
    pub(super) fn dispatched(&mut self, file: &TopologyFile, names: &Names) -> Vec<WireDispatch> {
        file.wires.iter().filter_map(|wire| self.dispatched_wire(wire, names)).collect()
    }

    fn dispatched_wire(&mut self, wire: &WireTable, names: &Names) -> Option<WireDispatch> {
        let Some(mode) = &wire.dispatch else {
            if let Some(set) = &wire.set {
                let why =
                    "settings are of what is dispatched: write dispatch too, such as dispatch = \"hybrid\"";
                self.tell(set.span(), why);
            }
            return None;
        };
        let mut settings = Settings::new(protocols());
        let mut read = vec![(MODE.to_string(), mode.as_ref().clone())];
        if let Err(error) = settings.set(MODE, mode.as_ref()) {
            self.tell(mode.span(), error);
        }
        for text in wire.set.iter().flat_map(|set| set.as_ref()) {
            match self.setting(text, &mut settings) {
                Ok(setting) => read.push(setting),
                Err(why) => self.tell(text.span(), why),
            }
        }
        if let (Some(set), Err(why)) = (&wire.set, settings.check_qlimits()) {
            let of_key = |text: &&Spanned<String>| pair(text.as_ref()).is_ok_and(|(key, _)| key == why.key);
            let at = set.as_ref().iter().find(of_key).map_or(set.span(), Spanned::span);
            self.tell(at, why);
        }
        // Faults of the names are told of the wire.
        let [one, other] = &wire.ports.as_ref()[..] else { return None };
        match [one, other].map(|name| names.find(name.as_ref())) {
            [Ok(Thing::Port(one)), Ok(Thing::Port(other))] => {
                Some(WireDispatch { ports: [one, other], settings: read })
            }
            [Ok(_), Ok(_)] => {
                self.tell(
                    mode.span(),
                    "what is dispatched is a wire of two ports, and this has an end of an epair",
                );
                None
            }
            _ => None,
        }
    }

    fn setting(&self, text: &Spanned<String>, settings: &mut Settings) -> Result<(String, String), String> {
        let (key, value) = pair(text.as_ref())?;
        if OF_ALL.contains(&key.as_str()) {
            return Err(format!("{key} is for all that runs together: give `weir up` --workers"));
        }
        settings.set(&key, &value).map_err(|error| error.to_string())?;
        Ok((key, value))
    }
}
