//! Limits that are set one after the other, all or none, for `weir limit`, `weir set` and `weir apply`.
//!
//! Rule: a limit that cannot be set leaves all as they were, itself included: the kernel may have refused the last of its classes. A signal
//! that asks the command to end is heard between two limits, and puts back too; it does not end the process in the middle of one.
//!
//! Owner: the command, which holds the ends so that nobody else changes them. Source: [`weir_port::limit::set`]. Limits: killed, it leaves
//! limits that are set, and perhaps one that is half made, which `weir stat --check` says.

use std::cell::Cell;
use std::io;

use weir_port::limit::find;
use weir_port::limit::off::{self, Off};
use weir_port::limit::record::{LimitStage, Record};
use weir_port::limit::{Asked, Done, NetnsInterface};
use weir_port::signals::{SIGHUP, SIGINT, SIGTERM, Signals};
use weir_run::clock::now_ns;
use weir_run::limits::burst_bytes_default;

use crate::commands::backlog;
use crate::output;

/// A wish that the command ends, by a signal.
pub struct Interruption {
    signals: Signals,
    has_come: Cell<bool>,
}

impl Interruption {
    /// From now on signals to end are heard by [`has_come`](Interruption::has_come) alone.
    pub fn begin() -> io::Result<Interruption> {
        let signals = Signals::block(&[SIGINT, SIGTERM, SIGHUP])?;
        output::hurry(true);
        Ok(Interruption { signals, has_come: Cell::new(false) })
    }

    /// Returns whether a signal has asked the command to end.
    pub fn has_come(&self) -> bool {
        // A look that fails is no reason to leave limits half done.
        let has_come = self.has_come.get() || self.signals.arrived().is_ok_and(|signal| signal.is_some());
        self.has_come.set(has_come);
        has_come
    }
}

/// Limits that are being set.
pub struct Transaction<'a> {
    interruption: Interruption,
    /// The limits that were set, or begun, each as it was before.
    begun: Vec<(&'a NetnsInterface, Before<'a>)>,
}

/// A limit before it was set.
pub enum Before<'a> {
    /// There was none.
    Absent,
    /// It was half made, without a record of what it is.
    Unrecorded,
    /// Its queue was gone, and what it had changed beside that was known.
    Gone,
    /// It was as this record says.
    Recorded(&'a Record),
}

impl<'a> Transaction<'a> {
    /// Begins; signals to end are then heard as [`Interruption`] says.
    pub fn begin() -> io::Result<Transaction<'a>> {
        Ok(Transaction { interruption: Interruption::begin()?, begun: Vec::new() })
    }

    /// Returns whether a signal has asked the command to end.
    pub fn is_interrupted(&self) -> bool {
        self.interruption.has_come()
    }

    /// Sets a limit, which was so `before`, or was not there. After an error the caller undoes all.
    pub fn set(
        &mut self,
        place: &'a NetnsInterface,
        before: Option<&'a Record>,
        asked: &Asked,
    ) -> weir_port::Result<(Done, Record)> {
        let before = match before {
            Some(record) => Before::Recorded(record),
            None if find::at(place)?.is_some() => Before::Unrecorded,
            None if find::record_at(place)?.is_some() => Before::Gone,
            None => Before::Absent,
        };
        self.begun.push((place, before));
        set_with_room(place, asked)
    }

    /// Puts all limits back as they were, the last first. Returns why, and what could not be put back.
    pub fn undo(self, why: &str) -> String {
        let left = self.begun.iter().rev().filter_map(|(place, before)| put_back(place, before));
        let left: Vec<_> = left.collect();
        match left.is_empty() {
            true => format!("{why}; all limits are as they were before"),
            false => format!("{why}; limits are as they were before, but {}", left.join(", and ")),
        }
    }
}

/// Puts a limit back as it was before, which may be none. Returns a sentence if it is not so all the same.
pub fn put_back(place: &NetnsInterface, before: &Before) -> Option<String> {
    let unlike = match before {
        Before::Absent | Before::Unrecorded | Before::Gone => {
            let off = off::off(place, false, now_ns, &|| false);
            backlog::put_back();
            off.map(|off| match (off, before) {
                (Off::Open, _) => Some(
                    "never stops sending and keeps an open queue, which limits nothing (`weir limit --off` later removes it)",
                ),
                (Off::Removed { .. } | Off::None, Before::Unrecorded) => Some("has lost the half-made limit that it had"),
                (Off::Removed { .. } | Off::None, Before::Gone) => Some("is as before the limit that it had, whose queue was gone"),
                _ => None,
            })
        }
        Before::Recorded(record) => set_with_room(place, &Asked::of(record)).map(|_| match record.stage {
            LimitStage::Opening => Some(
                "limits again, although its limit was open to be removed (`weir limit --off` removes it)",
            ),
            LimitStage::Making => Some("has a whole limit, which was half made"),
            LimitStage::Limiting => None,
        }),
    };
    match unlike {
        Ok(why) => why.map(|why| format!("{} {why}", place.describe())),
        // The limit went with its interface.
        Err(_) if place.is_gone() => None,
        Err(error) => Some(format!("{} is not as it was: {error}", place.describe())),
    }
}

/// Sets a limit, with room for what has left it.
fn set_with_room(place: &NetnsInterface, asked: &Asked) -> weir_port::Result<(Done, Record)> {
    backlog::raise();
    let set = set_patiently(place, asked);
    match &set {
        // The last limit of others may have gone before this one could be found.
        Ok(_) => backlog::raise(),
        Err(_) => {
            backlog::put_back();
        }
    }
    set
}

/// Sets a limit, and says so if the kernel takes long, as it does for many classes.
pub fn set_patiently(place: &NetnsInterface, asked: &Asked) -> weir_port::Result<(Done, Record)> {
    let classes = asked.classes.as_ref().map_or(0, |asked| asked.classes.len());
    let of = match classes {
        0 => "of the limit".to_string(),
        1 => "of a class".into(),
        classes => format!("of {classes} classes"),
    };
    let wait =
        if classes > 0 { ", and flows that change class are waited for, a second at most" } else { "" };
    let what = format!(
        "weir: {}: the kernel makes the leaves {of} one after the other, which takes it up to a minute where there are many{wait}",
        place.describe()
    );
    output::patiently(what, || weir_port::limit::set(place, asked, burst_bytes_default))
}
