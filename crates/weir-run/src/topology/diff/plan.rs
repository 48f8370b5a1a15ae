//! The changes from a plan that runs to the one that a file wants.
//!
//! Rule: live changes are those of the shaping of packets that leave by a port: rate, burst, queue, classes and filters; and those of an
//! ESP, but for the ports that it is joined to and its dispatch. Everything else is built when the path comes up, and all differences in it
//! are told at once. Things that only stand in another order are the same: ports are matched by their interfaces, stages and
//! associations by their names, routes and neighbours by what they lead to, and the ports of a bridge are one like another.
//!
//! Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use weir_core::classify::{Classifier, Target};
use weir_core::dispatch::protocol::Mode;
use weir_core::rate::Rate;
use weir_core::shaper::backlog::FullPolicy;
use weir_core::units::{size_text, time_text};
use weir_path::classes::{ClassConfig, Classes, FREE, TreeKind, quantum_bytes_default, queue_ns_default};
use weir_path::esp::plan::{EspDispatch, EspPlan};
use weir_path::plan::{Attachment, Plan, PortPlan, StageKind, StagePlan, WireDispatch};
use weir_path::shape::PortShape;

use super::esp::changed_esps;
use super::filters::FilterRule;
use super::router;
use super::{Action, Key, LimitChange, Value, changed};

/// A plan, and the names of its ports in its file.
#[derive(Clone, Copy, Debug)]
pub struct Named<'a> {
    /// The names, by the place of the port.
    pub names: &'a [String],
    /// The plan.
    pub plan: &'a Plan,
}

/// The changes that are made while it runs.
#[derive(Debug)]
pub struct Live {
    /// The change of each port that runs, in its order; none where it is so already.
    pub changes: Vec<Option<LimitChange>>,
    /// The new limits and classes of the ports that change.
    pub shapes: Vec<PortShape>,
    /// The ESP stages that change, by their places as they run: the change, and the new plan.
    pub esps: Vec<(usize, LimitChange, EspPlan)>,
}

/// The changes where `now` is to become `wanted`.
///
/// # Errors
/// If something cannot change while it runs: one sentence that names all of it.
pub fn compare_plans(now: Named, wanted: Named) -> Result<Live, String> {
    let told = built_otherwise(now, wanted);
    if !told.is_empty() {
        return Err(format!(
            "limits, classes and filters of ports, and associations, policies, `address` and `mtu` of an `[[esp]]` change live; for the rest run `weir down` and `weir up`: {}",
            told.join("; ")
        ));
    }
    let place_of = |interface: &str| now.plan.ports.iter().position(|port| port.interface == interface);
    // The place that each port of the wanted plan has in the one that runs.
    let places: Vec<_> = wanted.plan.ports.iter().filter_map(|port| place_of(&port.interface)).collect();
    let changes = vec![None; now.plan.ports.len()];
    let mut live = Live { changes, shapes: Vec::new(), esps: changed_esps(now.plan, wanted.plan) };
    for (port, &place) in wanted.plan.ports.iter().zip(&places) {
        let before = &now.plan.ports[place];
        let classes = port.classes.as_ref().map(|classes| renumbered(classes, &places)).transpose()?;
        let after = PortPlan { classes, ..port.clone() };
        let (are, are_to_be) = (values(before, &now.plan.ports), values(&after, &now.plan.ports));
        let values = changed(&are, &are_to_be);
        if values.is_empty() {
            continue;
        }
        let is_of_classes = |(key, _): &(&Key, &Value)| key.rank >= CLASSES_RANK;
        let has_same_classes = are.iter().filter(is_of_classes).eq(are_to_be.iter().filter(is_of_classes));
        let classes = if has_same_classes { before.classes.clone() } else { after.classes };
        live.changes[place] = Some(LimitChange { action: Action::Change, values });
        live.shapes.push(PortShape { port: place, limits: after.limits, classes });
    }
    live.shapes.sort_by_key(|shape| shape.port);
    Ok(live)
}

/// Classes whose filters know the ports by other numbers.
fn renumbered(classes: &Arc<Classes>, places: &[usize]) -> Result<Arc<Classes>, String> {
    let mut rules = classes.classifier.rules().to_vec();
    for rule in &mut rules {
        let number = &mut rule.conditions.interface;
        *number = number.map(|port| places.get(usize::from(port)).map_or(port, |&place| place as u16));
    }
    let classifier = Classifier::new(rules, classes.classifier.otherwise());
    let classifier = classifier.map_err(|fault| fault.to_string())?;
    Ok(Arc::new(Classes { classifier, ..Classes::clone(classes) }))
}

/// All parts that are built otherwise, a few words each.
fn built_otherwise(now: Named, wanted: Named) -> Vec<String> {
    let mut told = Vec::new();
    let ports = [now, wanted].map(|of| {
        let ports = of.plan.ports.iter().zip(of.names);
        let ports = ports.map(|(port, name)| (port.interface.as_str(), (name.as_str(), port.is_optional)));
        ports.collect::<BTreeMap<_, _>>()
    });
    for interface in keys(&ports) {
        match [&ports[0], &ports[1]].map(|ports| ports.get(interface)) {
            [Some((before, was_optional)), Some((after, is_optional))] => {
                if before != after {
                    told.push(format!("port {interface} is called {after:?} and not {before:?}"));
                }
                if was_optional != is_optional {
                    let now = if *is_optional { "becomes optional" } else { "is optional no more" };
                    told.push(format!("port {interface} {now}"));
                }
            }
            [Some(_), None] => told.push(format!("port {interface} goes")),
            [None, Some(_)] => told.push(format!("port {interface} comes")),
            [None, None] => {}
        }
    }
    let stages = [now, wanted].map(|of| {
        let stages = of.plan.stages.iter().map(|stage| (stage.name.as_str(), stage));
        stages.collect::<BTreeMap<_, _>>()
    });
    for name in keys(&stages) {
        match [&stages[0], &stages[1]].map(|stages| stages.get(name)) {
            [Some(before), Some(after)] => told.extend(stage_otherwise(before, after)),
            [Some(gone), None] => told.push(format!("{} goes", stage_text(gone))),
            [None, Some(new)] => told.push(format!("{} comes", stage_text(new))),
            [None, None] => {}
        }
    }
    let [before, after] = [now, wanted].map(|of| dispatches(of.plan));
    for wire in before.keys().chain(after.keys().filter(|wire| !before.contains_key(*wire))) {
        let [before, after] = [&before, &after].map(|of| of.get(wire).map_or("none", String::as_str));
        if before != after {
            told.push(format!("dispatch of the wire {wire}: {before} -> {after}"));
        }
    }
    // Links of ports and stages that come and go are no news.
    if told.is_empty() {
        let [mut gone, mut new] = [now, wanted].map(|of| links(of.plan));
        gone.retain(|link| match new.iter().position(|other| other == link) {
            Some(place) => {
                new.swap_remove(place);
                false
            }
            None => true,
        });
        new.sort();
        let text = |links: Vec<[String; 2]>, what: &'static str| {
            links.into_iter().map(move |[one, other]| format!("{one} {what} joined to {other}"))
        };
        told.extend(text(gone, "is no more").chain(text(new, "is newly")));
    }
    told
}

fn dispatch_text(EspDispatch { mode, queue_packets, sealers, .. }: &EspDispatch) -> String {
    match (mode, sealers) {
        (Mode::Direct, _) => mode.to_string(),
        (Mode::Hybrid | Mode::Deferred, 0) => format!("{mode} with queue_packets {queue_packets}"),
        (Mode::Hybrid | Mode::Deferred, _) => {
            format!("{mode} with queue_packets {queue_packets} and sealers {sealers}")
        }
    }
}

/// The wires that are dispatched, by their interfaces, each with its settings.
fn dispatches(plan: &Plan) -> BTreeMap<String, String> {
    let of = |of: &WireDispatch| {
        let mut ends = of.ports.map(|port| plan.ports.get(port).map_or("", |port| &port.interface));
        ends.sort_unstable();
        let mut settings: Vec<_> = of.settings.iter().map(|(key, text)| format!("{key}={text}")).collect();
        settings.sort();
        (ends.join("--"), settings.join(" "))
    };
    plan.dispatched.iter().map(of).collect()
}

/// The keys of both, each once.
fn keys<'a, V>(both: &[BTreeMap<&'a str, V>; 2]) -> impl Iterator<Item = &'a str> + use<'a, V> {
    let all: std::collections::BTreeSet<_> = both.iter().flat_map(|map| map.keys().copied()).collect();
    all.into_iter()
}

fn stage_otherwise(before: &StagePlan, after: &StagePlan) -> Option<String> {
    let name = stage_text(before);
    match (&before.kind, &after.kind) {
        (
            StageKind::Bridge { stations_max, ageing_ns, .. },
            StageKind::Bridge { stations_max: stations_after, ageing_ns: ageing_after, .. },
        ) => {
            let mut what = Vec::new();
            if stations_max != stations_after {
                what.push(format!("stations_max {stations_max} -> {stations_after}"));
            }
            if ageing_ns != ageing_after {
                what.push(format!("ageing {} -> {}", time_text(*ageing_ns), time_text(*ageing_after)));
            }
            (!what.is_empty()).then(|| format!("{name}: {}", what.join(", ")))
        }
        (StageKind::Router(before), StageKind::Router(after)) => {
            let what = router::otherwise(before, after);
            (!what.is_empty()).then(|| format!("{name} has other {}", what.join(", ")))
        }
        (StageKind::Esp(before), StageKind::Esp(after)) => {
            let [before, after] = [before, after].map(|of| dispatch_text(&of.dispatch));
            (before != after).then(|| format!("{name}: dispatch {before} -> {after}"))
        }
        _ => Some(format!("{name} becomes a {}", stage_text(after))),
    }
}

fn stage_text(stage: &StagePlan) -> String {
    match stage.kind {
        StageKind::Bridge { .. } => format!("bridge {}", stage.name),
        StageKind::Router(_) => format!("router {}", stage.name),
        StageKind::Dispatch(_) => format!("dispatch {}", stage.name),
        StageKind::Esp(_) => format!("esp {}", stage.name),
        StageKind::Sealer => format!("sealer {}", stage.name),
    }
}

/// The links, by the things that they join; in order, and each with its ends in order.
fn links(plan: &Plan) -> Vec<[String; 2]> {
    let text = |at: Attachment| match at {
        Attachment::Port(port) => {
            plan.ports.get(port).map_or(String::new(), |port| format!("port {}", port.interface))
        }
        Attachment::Stage(stage, number) => match plan.stages.get(stage) {
            Some(stage) if matches!(stage.kind, StageKind::Router(_) | StageKind::Esp(_)) => {
                format!("interface {} of {}", number + 1, stage_text(stage))
            }
            stage => stage.map_or(String::new(), stage_text),
        },
    };
    let mut links: Vec<_> = plan
        .links
        .iter()
        .map(|link| {
            let mut ends = link.map(text);
            ends.sort();
            ends
        })
        .collect();
    links.sort();
    links
}

/// Values of classes have this rank or one after it.
const CLASSES_RANK: u8 = 3;

/// The values of one of these ports.
fn values(port: &PortPlan, ports: &[PortPlan]) -> BTreeMap<Key, Value> {
    let mut values = BTreeMap::new();
    let mut add = |rank, text: &str, value: Value| values.insert(Key { rank, text: text.into() }, value);
    if let Some(limits) = &port.limits {
        add(1, "rate", Value::Text(limits.rate.to_string()));
        add(2, "burst", Value::Text(size_text(limits.burst_bytes)));
        // With classes each class has its own queue.
        if port.classes.is_none() {
            add(2, "queue", Value::Text(limits.limit.to_string()));
        }
    }
    let Some(classes) = port.classes.as_deref() else { return values };
    values.extend(class_values(classes, ports));
    values
}

/// The values of classes: their shaper, each class, the filters, which may name these ports, and the default.
pub(super) fn class_values(classes: &Classes, ports: &[PortPlan]) -> BTreeMap<Key, Value> {
    let mut values = BTreeMap::new();
    let mut add = |rank, text: &str, value: Value| values.insert(Key { rank, text: text.into() }, value);
    if classes.kind == TreeKind::Cbq {
        add(CLASSES_RANK, "shaper", Value::Text("cbq".into()));
    }
    for class in &classes.classes {
        add(CLASSES_RANK + 1, &format!("class {}", class.name), Value::Text(class_text(classes, class)));
    }
    let name = |target| match target {
        Target::Class(place) => {
            classes.classes.get(usize::from(place)).map_or("", |class| &class.name).to_string()
        }
        Target::Free => FREE.into(),
    };
    let rules = classes.classifier.rules().iter();
    let interface = |number: u16| ports.get(usize::from(number)).map(|port| port.interface.clone());
    let rules: Vec<_> = rules
        .map(|rule| FilterRule {
            conditions: rule.conditions.clone(),
            interface: rule.conditions.interface.and_then(interface),
            class: name(rule.target),
        })
        .collect();
    if !rules.is_empty() {
        add(CLASSES_RANK + 2, "filters", Value::Filters(rules));
    }
    add(CLASSES_RANK + 3, "default", Value::Text(name(classes.classifier.otherwise())));
    values
}

/// A class in words, without its defaults: `100mbit to 150mbit below link priority 1 full ecn`.
fn class_text(classes: &Classes, class: &ClassConfig) -> String {
    let ClassConfig { parent, rate, leaf, bounded, quantum_bytes, .. } = class;
    let parent = parent.and_then(|place| classes.classes.get(place)).map(|parent| parent.name.as_str());
    // The ceiling of CBQ follows from the other values.
    let ceil: Rate = if classes.kind == TreeKind::Cbq { *rate } else { class.ceil };
    let cburst_bytes = match classes.kind {
        TreeKind::Cbq => crate::limits::burst_bytes_default(ceil),
        TreeKind::Htb => class.cburst_bytes,
    };
    let mut text = if ceil == *rate { rate.to_string() } else { format!("{rate} to {ceil}") };
    if let Some(parent) = parent {
        text += &format!(" below {parent}");
    }
    for (what, rate, bytes) in [("burst", *rate, class.burst_bytes), ("cburst", ceil, cburst_bytes)] {
        if crate::limits::burst_bytes_default(rate) != bytes {
            text += &format!(" {what} {}", size_text(bytes));
        }
    }
    if let Some(leaf) = leaf.filter(|leaf| leaf.priority > 0) {
        text += &format!(" priority {}", leaf.priority);
    }
    if *bounded {
        text += " bounded";
    }
    if *quantum_bytes != quantum_bytes_default(*rate) {
        text += &format!(" quantum {}", size_text(u64::from(*quantum_bytes)));
    }
    let Some(leaf) = leaf else { return text };
    match leaf.rule.when_full {
        FullPolicy::Block => {}
        FullPolicy::Ecn(_) => text += " full ecn",
        FullPolicy::Drop(_) => text += " full drop",
    }
    if let Some(time_ns) = leaf.rule.max_wait_ns {
        text += &format!(" max_wait {}", time_text(time_ns));
    }
    if leaf.queue_ns != queue_ns_default(leaf.rule.when_full) {
        text += &format!(" queue {}", time_text(leaf.queue_ns));
    }
    text
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
