//! The differences of two routers, which are built when a path comes up.
//!
//! Rule: routes and neighbours are found by what they lead to, so another order of them is no difference. A router may have thousands of
//! routes, so some of a kind are told, and the number of the rest.
//!
//! Pure.

use std::collections::{BTreeMap, BTreeSet};

use weir_core::net::router::RouterSettings;

use super::super::mac;
use super::listed;

/// Things of a router in words, by what tells them apart.
type Things = BTreeMap<String, String>;

/// The kinds of things that differ, each with what differs: `routes (0.0.0.0/0 via 10.0.1.9 at interface 2 comes)`.
pub(super) fn otherwise(before: &RouterSettings, after: &RouterSettings) -> Vec<String> {
    let kinds = [
        ("interfaces", [before, after].map(interfaces)),
        ("routes", [before, after].map(routes)),
        ("neighbours", [before, after].map(neighbours)),
    ];
    let told = kinds.into_iter().filter_map(|(what, [before, after])| {
        let differences = differences(&before, &after);
        (!differences.is_empty()).then(|| format!("{what} ({})", listed(differences, ", ")))
    });
    told.collect()
}

fn interfaces(router: &RouterSettings) -> Things {
    let numbered = (1..).zip(&router.interfaces);
    let all = numbered.map(|(number, interface)| {
        let addresses: Vec<_> = interface.addresses.iter().map(ToString::to_string).collect();
        let text =
            format!("{} mac {} mtu {}", addresses.join(" "), mac::text(interface.mac), interface.mtu_bytes);
        (format!("{number:4}"), text)
    });
    all.collect()
}

fn routes(router: &RouterSettings) -> Things {
    let all = router.routes.iter().map(|route| {
        let gateway = route.gateway.map_or_else(String::new, |gateway| format!("via {gateway} "));
        (route.destination.to_string(), format!("{gateway}at interface {}", route.interface + 1))
    });
    all.collect()
}

fn neighbours(router: &RouterSettings) -> Things {
    let all = router.neighbours.iter().map(|neighbour| {
        let whose = format!("{} at interface {}", neighbour.address, neighbour.interface + 1);
        (whose, format!("mac {}", mac::text(neighbour.mac)))
    });
    all.collect()
}

/// Each difference, a few words.
fn differences(before: &Things, after: &Things) -> Vec<String> {
    let keys: BTreeSet<_> = before.keys().chain(after.keys()).collect();
    let told = keys.into_iter().filter_map(|key| {
        let name = key.trim_start();
        match (before.get(key), after.get(key)) {
            (Some(before), Some(after)) if before != after => Some(format!("{name} {before} -> {after}")),
            (Some(_), None) => Some(format!("{name} goes")),
            (None, Some(after)) => Some(format!("{name} {after} comes")),
            _ => None,
        }
    });
    told.collect()
}
