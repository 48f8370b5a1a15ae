//! The limit that a command asks for, made of what it says and of the limit that is there or was.
//!
//! Rule: a part that is not asked for stays as it is. Owner: the command. Pure.

use weir_core::rate::Rate;
use weir_path::classes::Classes;

use super::record::{Direction, Record};
use super::reshape::classes_of;

/// The limit asked for; an absent part stays as it is, also where somebody removed the queue of the limit, or is the default.
#[derive(Clone, Debug)]
pub struct Asked {
    /// The name of the limit.
    pub name: String,
    /// The direction that it limits.
    pub direction: Direction,
    /// The rate; `None` keeps the rate that the limit has.
    pub rate: Option<Rate>,
    /// The bytes that may pass at once after a pause.
    pub burst_bytes: Option<u64>,
    /// The classes that share the limit; [`Classes::none`] removes the classes there are.
    pub classes: Option<Classes>,
    /// True if flows change class at once, also past packets of theirs that wait in the class before.
    pub moves_at_once: bool,
}

impl Asked {
    /// The request that makes a limit what `record` says.
    pub fn of(record: &Record) -> Asked {
        Asked {
            name: record.name.clone(),
            direction: record.direction,
            rate: Rate::from_bits_per_s(record.rate_bits_per_s),
            burst_bytes: Some(record.burst_bytes),
            classes: Some(classes_of(record)),
            moves_at_once: false,
        }
    }

    /// The request that makes a limit again whose queue is gone. A part that this does not ask for is as in `record`.
    pub(super) fn again(self, record: &Record, burst_default: impl Fn(Rate) -> u64) -> Asked {
        let Asked { rate: rate_before, classes, .. } = Asked::of(record);
        let rate = self.rate.or(rate_before);
        let burst_bytes = self.burst_bytes.or_else(|| record.burst_kept(rate?, burst_default));
        Asked { rate, burst_bytes, classes: self.classes.or(classes), ..self }
    }

    /// Returns whether classes come, change or go.
    pub(super) fn reshapes(&self, before: Option<&Record>) -> bool {
        let is_shaped = before.is_some_and(|before| !before.filters.is_empty());
        self.classes.as_ref().is_some_and(|asked| is_shaped || !asked.classes.is_empty())
    }
}
