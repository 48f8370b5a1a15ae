//! The removal of limits in place, for `weir limit --off` and `weir down`.
//!
//! Rule: a limit that cannot go does not hinder the others, and is said. A signal that asks the command to end is heard while a limit waits
//! to be quiet: that one limits again as it did, and those behind it stay.
//!
//! Owner: the command, which holds the ends so that nobody else changes them. Source: [`weir_port::limit::off`].

use std::process::ExitCode;

use weir_port::limit::NetnsInterface;
use weir_port::limit::find;
use weir_port::limit::off::{self, Off};
use weir_run::clock::now_ns;

use super::transaction::{Before, Interruption, put_back};
use super::warn_of_doubtful;
use crate::commands::backlog;
use crate::commands::ways::Ways;
use crate::output::Lines;
use crate::{Failure, Outcome, human, names, output};

/// Removes the limits of both ways, or those of a name, and says the outcome of each.
pub fn remove(ways: &Ways, now: bool) -> Outcome {
    let mut lines = Lines::default();
    let interruption = Interruption::begin()?;
    let outcomes = remove_each(ways.ends_so_called(), now, &interruption, &mut lines)?;
    let outcomes: Vec<_> = outcomes.into_iter().flatten().collect();
    if outcomes.is_empty() {
        ways.ends().for_each(|place| warn_of_doubtful(place, None));
        return Err(format!(
            "there is no limit at {}: `weir stat` lists those there are",
            ways.there.describe()
        )
        .into());
    }
    if names::is_run(ways.ends()) {
        output::say(
            "weir: it was the limit of a `weir run`, which goes on without one if its program has not ended",
        );
    }
    let is_done = outcomes.into_iter().all(|is_done| is_done);
    lines.end().map(|()| if is_done { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Removes the limits of these interfaces, which nobody else changes meanwhile, and says the outcome of each. One that cannot go
/// does not hinder the others. Returns whether each is gone as it should be, in order; `None`, and nothing said, if there was none.
///
/// # Errors
/// The first that could not go; what became of the others is said.
pub fn remove_each<'a>(
    places: impl IntoIterator<Item = &'a NetnsInterface>,
    now: bool,
    interruption: &Interruption,
    lines: &mut Lines,
) -> Result<Vec<Option<bool>>, Failure> {
    let (mut outcomes, mut failed) = (Vec::new(), None);
    for place in places {
        match remove_one(place, now, interruption, lines) {
            Ok(outcome) => outcomes.push(outcome),
            Err(failure) if failed.is_none() => failed = Some(failure),
            Err(failure) => output::say(format_args!("weir: {}", failure.message)),
        }
    }
    failed.map_or(Ok(outcomes), Err)
}

fn remove_one(
    place: &NetnsInterface,
    now: bool,
    interruption: &Interruption,
    lines: &mut Lines,
) -> Result<Option<bool>, Failure> {
    // If it cannot be looked at, the removal says so.
    let before = find::record_at(place).ok().flatten();
    if interruption.has_come() {
        return match before.is_some() || find::at(place)?.is_some() {
            true => Err(format!("it was interrupted; the limit at {} stays", place.describe()).into()),
            false => Ok(None),
        };
    }
    let off = off::off(place, now, now_ns, &|| interruption.has_come());
    if !matches!(off, Ok(Off::None)) {
        backlog::put_back();
    }
    match off? {
        Off::None => return Ok(None),
        Off::Removed { lost, leaves_far_end } => {
            let lost = match lost {
                0 => String::new(),
                lost => {
                    format!("; {} lost, which waited or came meanwhile", human::plural(lost, "packet"))
                }
            };
            lines.print(format_args!("removed: {} sends as before{lost}", place.describe()));
            if leaves_far_end {
                output::warn(format_args!(
                    "the other end of {} cannot be seen from here, and keeps the receive steering (rps_cpus) of the limit",
                    place.link.name
                ));
            }
        }
        Off::Gone => {
            output::say(format_args!(
                "weir: {} vanished while its limit was being removed, and took along the limit and what waited there: nothing is left to \
                 remove",
                place.describe()
            ));
            return Ok(Some(false));
        }
        Off::Interrupted => {
            // Without a record there is nothing to limit by, and the limit stays open.
            let unlike = before.as_ref().map(|record| put_back(place, &Before::Recorded(record)));
            let place_text = place.describe();
            return Err(match unlike {
                _ if place.is_gone() => format!("it was interrupted, and {place_text} vanished with its limit"),
                Some(None) => format!("it was interrupted; {place_text} is limited as it was before"),
                Some(Some(why)) => format!("it was interrupted; {why}"),
                None => format!(
                    "it was interrupted; {place_text} limits nothing any more: `weir limit --off` removes its limit"
                ),
            }
            .into());
        }
        Off::Open => {
            output::say(format_args!(
                "weir: {} limits nothing any more, but never stops sending, and its queue could not be removed without loss: --off again \
                 later removes it, `--off --now` at once",
                place.describe()
            ));
            return Ok(Some(false));
        }
    }
    Ok(Some(true))
}
