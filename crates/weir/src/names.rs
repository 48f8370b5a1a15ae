//! Names of wires, topologies and limits in place: the sentence on one that nothing has, with those that there are; and the refusal of one
//! that a limit has already.

use std::borrow::Borrow;

use weir_port::hold::{self, ends::Ends};
use weir_port::limit::find::{self, LimitInPlace};
use weir_port::limit::record::Direction;
use weir_port::limit::{NetnsInterface, sees_all_processes};
use weir_port::sys;
use weir_run::control::{self, Control};
use weir_run::nearest::{and, did_you_mean};

use crate::commands::stat;
use crate::commands::ways::{LimitTarget, Ways};
use crate::{Failure, output};

/// The number of names that are listed.
const LISTED: usize = 8;
/// The advice to root where limits may be out of sight.
pub const SEE_ALL: &str = "run weir in the host's PID namespace to see all";

/// The sentence that no wire and no limit is called so, with the names that there are; or that it is not up yet.
pub fn unknown(name: &str) -> String {
    match control::stat_waiting(name).map(|mut told| told.waiting.remove(name)) {
        Ok(Some(interfaces)) => {
            return format!("{}; `weir down {name}` ends it", not_up_yet(name, &interfaces));
        }
        Err(why) if control::is_up(&Control::waiting_path_of(name)) => {
            return format!("{name} is not up yet: {why}");
        }
        _ => {}
    }
    let mut known = control::names();
    // This is not the place to say why limits cannot be read.
    let limits = stat::limits().unwrap_or_default();
    known.extend(limits.iter().filter_map(|seen| Some(seen.record_or_left()?.name)));
    known.sort();
    known.dedup();
    let hidden = match sys::sees_limits() {
        true if sees_all_processes() => None,
        true => Some(SEE_ALL),
        false => Some("limits in place are shown to root with CAP_SYS_ADMIN alone: try sudo"),
    };
    sentence(name, &known, hidden)
}

/// The sentence on what is not up yet, and waits for these interfaces.
pub fn not_up_yet(name: &str, interfaces: &[String]) -> String {
    let interfaces: Vec<_> = interfaces.iter().map(String::as_str).collect();
    match &interfaces[..] {
        [] => format!("{name} is not up yet: it is being started"),
        waits_for => format!("{name} is not up yet: it waits for {}", and(waits_for)),
    }
}

/// The limits that a name means, to each command that takes one: the limits of that name, or if there is none the limits of the interface
/// of that name in this namespace, which comes first where those of that name are named after their own interface elsewhere. There may be
/// neither; a user who is not root sees none.
///
/// # Errors
/// If it means two, or an interface here that has no limit and another's limit; and what to write instead.
pub fn limits_meant(name: &str) -> Result<Vec<LimitInPlace>, Failure> {
    limits_of(stat::limits()?, LimitTarget { pid: None, device: name }, Some(name))
}

/// The limits among `all` that an interface and the name of its limit mean, as [`limits_meant`]; the name may be another than the interface's.
///
/// # Errors
/// As [`limits_meant`], but that a name of its own means the limit that has it, wherever that is.
pub fn limits_of<L: Borrow<LimitInPlace>>(
    all: impl IntoIterator<Item = L>,
    target: LimitTarget,
    name: Option<&str>,
) -> Result<Vec<L>, Failure> {
    let (ways, half) = (target.ways(false).ok(), target.half_of_pair());
    let is_there =
        |seen: &L| ways.iter().flat_map(Ways::ends).chain(&half).any(|end| end.is(&seen.borrow().place));
    let is_called =
        |seen: &L| seen.borrow().record_or_left().is_some_and(|record| Some(record.name.as_str()) == name);
    let (called, others): (Vec<_>, Vec<_>) = all.into_iter().partition(is_called);
    // The other way of a limit that has no name, as it is half made, or lost what was left of it too.
    let is_half_of = |seen: &L| {
        let seen = seen.borrow();
        let far_end = if seen.record.is_none() { seen.place.far_end().ok().flatten() } else { None };
        far_end.is_some_and(|far_end| called.iter().any(|known| known.borrow().place.is(&far_end)))
    };
    let (halves, others): (Vec<_>, Vec<_>) = others.into_iter().partition(is_half_of);
    let (of_interface, _): (Vec<_>, Vec<_>) = others.into_iter().partition(is_there);
    let Some(name) = name else { return Ok(of_interface) };
    let is_own_name = name != target.device || target.pid.is_some();
    let label = target.label();
    match (&called[..], &of_interface[..]) {
        ([], _) => Ok(of_interface),
        // Nobody chose that name: a container on the next host has an interface that is called so, too.
        (_, [_, ..])
            if !is_own_name
                && !called.iter().any(is_there)
                && called.iter().all(|seen| is_after_interface(seen.borrow(), name)) =>
        {
            Ok(of_interface)
        }
        ([first, ..], [other, ..]) if !called.iter().any(is_there) => {
            let (first, other) = (first.borrow(), other.borrow());
            let what = if is_own_name { format!("{label} with a limit {name}") } else { label.clone() };
            let other = match other.record_or_left() {
                // The interface of the first may be called as the other limit is.
                Some(record) if record.name == first.place.link.name => {
                    format!("that is called {}:", record.name)
                }
                Some(record) => format!("that is called {0}: write {0} for that one, and", record.name),
                None => format!("that is {}:", other.unreadable_because()),
            };
            Err(Failure::usage(format!(
                "{what} means two limits: {} has one that is called so, and the interface {label} one {other} give the first another name by \
                 `weir limit DEV --name NAME`",
                first.place.describe()
            )))
        }
        ([first, ..], []) if !is_own_name && ways.is_some() && !called.iter().any(is_there) => {
            Err(Failure::usage(format!(
                "{name} is an interface here, which has no limit, and also what the limit at {} is called: write a command for that limit \
                 where its interface is, or give it another name by `weir limit DEV --name NAME` there",
                first.borrow().place.describe()
            )))
        }
        _ => Ok(called.into_iter().chain(halves).collect()),
    }
}

/// Returns whether a name is one that a limit gets where none is asked for: that of the host's interface, or with a number where that is
/// taken. A limit of the way there is at the other end of that interface's pair.
fn is_after_interface(seen: &LimitInPlace, name: &str) -> bool {
    let NetnsInterface { netns, link } = &seen.place;
    let is_there = seen.record_or_left().is_some_and(|record| record.direction == Direction::There);
    let far_name = if is_there { netns.run(|| Ok(link.peer_name())).ok().flatten() } else { None };
    control::is_name_from(name, far_name.as_ref().unwrap_or(&link.name))
}

/// Refuses the name of a wire or topology that is up, if it is also an interface of this namespace which has a limit of another name.
pub fn refuse_two_meanings(name: &str) -> Result<(), Failure> {
    if !sys::sees_limits() {
        return Ok(());
    }
    let Ok(ways) = (LimitTarget { pid: None, device: name }).ways(false) else { return Ok(()) };
    for place in ways.ends() {
        if let Some(limit) = find::record_at(place)?.map(|record| record.name).filter(|limit| limit != name) {
            return Err(Failure::usage(format!(
                "{name} means two: what is up under that name, and the interface {name} here, whose limit is called {limit}: write \
                 {limit} for that limit, and for the other run the command in another network namespace"
            )));
        }
    }
    Ok(())
}

/// Holds a name that is to be given: until this is dropped, which is when others see what has it, no other command gives it to anything.
///
/// # Errors
/// If a limit in place has it, as `weir set` could tell neither, or another command keeps it.
pub fn hold_new(name: &str) -> Result<Option<Ends>, Failure> {
    if !sys::sees_limits() {
        // Only root may hold a name. Everybody else is refused by the command itself, which sets up nothing.
        return Ok(None);
    }
    let held = hold::ends::hold(&[], &[name], &mut |text| output::say(format_args!("weir: {text}")))?;
    if let Some((place, _)) = find::names()?.iter().find(|(_, other)| other == name) {
        let place = place.describe();
        return Err(Failure::usage(format!(
            "the limit at {place} is called {name} already: give this one another name"
        )));
    }
    Ok(Some(held))
}

/// Refuses interfaces of pairs that are limited in place, either way, for a wire or topology that is to take them: it would send past the limit.
pub fn refuse_limited<'a>(devices: impl Iterator<Item = &'a str>) -> Result<(), Failure> {
    if !sys::sees_limits() {
        return Ok(());
    }
    let limits = stat::limits()?;
    for device in devices {
        // An interface that is not there, or is no pair's, is told where it is opened.
        let Ok(ways) = (LimitTarget { pid: None, device }).ways(false) else { continue };
        let limit = limits.iter().find(|seen| ways.ends().any(|end| seen.place.is(end)));
        if let Some(record) = limit.and_then(|seen| seen.record.as_ref()) {
            let name = &record.name;
            return Err(Failure::usage(format!(
                "the pair of {device} is limited in place by the limit {name}: remove that first by `weir limit {name} --off`"
            )));
        }
    }
    Ok(())
}

/// The sentence on a name that is a limit's or a run's, which `weir down` does not end; `None` for any other.
pub fn not_for_down(name: &str) -> Option<String> {
    let limits = limits_meant(name).ok()?;
    let LimitInPlace { place, .. } = limits.first()?;
    let far_end = place.far_end().ok().flatten();
    Some(match is_run([Some(place), far_end.as_ref()].into_iter().flatten()) {
        true => format!(
            "{name} is a run: it ends with its program, or by a signal to its `weir run`; what one that was killed left, `weir mend` removes"
        ),
        false => format!("{name} is a limit in place: remove it by `weir limit {name} --off`"),
    })
}

/// The sentence on a name that something has which is up, and is no limit in place; `None` for any other.
pub fn not_for_limit(name: &str) -> Option<String> {
    if !control::is_up(&Control::path_of(name)) {
        return None;
    }
    let told = control::stat(name).ok();
    let kind = told.as_ref().and_then(|told| told.each().next()).map(|(kind, ..)| kind.noun());
    Some(format!(
        "{name} is no limit in place but a {} that is up: `weir set {name}` changes its rate, and it limits until it ends",
        kind.unwrap_or("topology")
    ))
}

/// Returns whether the ends of a limited pair are those of a run, which sets and removes its limit itself.
pub fn is_run<'a>(mut ends: impl Iterator<Item = &'a NetnsInterface>) -> bool {
    ends.any(|end| is_of_run(&end.link.name))
}

/// Returns whether an interface is called as the host's end of a run's pair.
fn is_of_run(interface: &str) -> bool {
    interface.strip_prefix("weir").is_some_and(|number| number.parse::<u32>().is_ok())
}

fn sentence(name: &str, known: &[String], hidden: Option<&str>) -> String {
    let more = known.len().saturating_sub(LISTED);
    let more = if more > 0 { format!(" and {more} more, which `weir stat` lists") } else { String::new() };
    let there = match known {
        [] if hidden.is_some() => "there is none that you may see".to_string(),
        [] => "there is none at all".into(),
        [only] => format!("there is {only}"),
        _ => format!("there are {}{more}", known[..known.len().min(LISTED)].join(", ")),
    };
    let hidden = hidden.map(|why| format!("; {why}")).unwrap_or_default();
    let near = did_you_mean(name, known.iter().map(String::as_str));
    format!("there is no wire, topology, stack or limit called {name}: {there}{hidden}{near}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_and_those_there_are_are_named() {
        let known = |names: &[&str]| names.iter().map(|name| name.to_string()).collect::<Vec<_>>();
        assert_eq!(
            sentence("ofice", &known(&["office", "veth-a"]), None),
            "there is no wire, topology, stack or limit called ofice: there are office, veth-a; did you mean \"office\"?"
        );
        assert_eq!(
            sentence("x", &[], None),
            "there is no wire, topology, stack or limit called x: there is none at all"
        );
        let text = sentence("x", &known(&["office"]), Some(SEE_ALL));
        assert!(text.ends_with("there is office; run weir in the host's PID namespace to see all"), "{text}");
        let many: Vec<_> = (0..10).map(|number| format!("wire-{number}")).collect();
        assert!(sentence("x", &many, None).ends_with("wire-7 and 2 more, which `weir stat` lists"));
    }
}
