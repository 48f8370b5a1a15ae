//! Forwarding: which of the host's settings must change for its ways out to carry a program's packets, and back.
//!
//! Rule, so that as little as possible changes, for each interface that a way out leaves by:
//!
//! ```text
//! IPv4   ipv4/conf/IFACE/forwarding = 1         answers come in there, and IPv4 asks the interface they come in by
//! IPv6   ipv6/conf/IFACE/force_forwarding = 1   the same, where the kernel has it (Linux 6.17)
//!        ipv6/conf/all/forwarding = 1           otherwise; and before it, lest the host forget the routes it learned
//!        ipv6/conf/IFACE/accept_ra = 2          from its router, where it is 1
//! ```
//!
//! What a setting was is noted, as `PATH=VALUE`, in a place that other runs can read (`crate::masquerade`): one that finds a
//! setting changed by another run notes what it was before that one, and the last run that notes a setting puts it back.
//!
//! Source: kernel `Documentation/networking/ip-sysctl.rst`; `net/ipv4/route.c:ip_route_input_slow`,
//! `net/ipv6/ip6_output.c:ip6_forward`, `net/ipv6/route.c:rt6_purge_dflt_routers`.

/// A setting that a way out needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Its file, as [`crate::sysctl`] wants it.
    pub path: String,
    /// What it must be.
    pub wanted: &'static str,
    /// What it was before any run changed it.
    pub was: String,
}

/// What must change for these ways out, in order, given what others have noted; `read` tells what a setting is now.
pub fn plan(
    interfaces_v4: &[String],
    interfaces_v6: &[String],
    noted: &[(String, String)],
    read: impl Fn(&str) -> Option<String>,
) -> Vec<Change> {
    const ALL_V6: &str = "ipv6/conf/all/forwarding";
    let was = |path: &str| {
        noted.iter().find(|(other, _)| other == path).map(|(_, value)| value.clone()).or_else(|| read(path))
    };
    let mut changes: Vec<Change> = Vec::new();
    let mut want = |path: String, wanted| {
        if let Some(was) = was(&path).filter(|was| was != wanted) {
            changes.push(Change { path, wanted, was });
        }
    };
    for interface in interfaces_v4 {
        want(format!("ipv4/conf/{interface}/forwarding"), "1");
    }
    if interfaces_v6.is_empty() || was(ALL_V6).is_none_or(|was| was == "1") {
        return changes;
    }
    let forced = |interface: &str| format!("ipv6/conf/{interface}/force_forwarding");
    if interfaces_v6.iter().all(|interface| read(&forced(interface)).is_some()) {
        interfaces_v6.iter().for_each(|interface| want(forced(interface), "1"));
    } else {
        for interface in interfaces_v6 {
            let path = format!("ipv6/conf/{interface}/accept_ra");
            if was(&path).as_deref() == Some("1") {
                want(path, "2");
            }
        }
        want(ALL_V6.into(), "1");
    }
    changes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn planned(v6: &[&str], noted: &[(&str, &str)], settings: &[(&str, &str)]) -> Vec<[String; 3]> {
        let names = |names: &[&str]| names.iter().map(|name| name.to_string()).collect::<Vec<_>>();
        let noted: Vec<_> = noted.iter().map(|(path, was)| (path.to_string(), was.to_string())).collect();
        let read = |path: &str| settings.iter().find(|(own, _)| *own == path).map(|(_, v)| v.to_string());
        let changes = plan(&names(&["up"]), &names(v6), &noted, read);
        changes.into_iter().map(|change| [change.path, change.wanted.into(), change.was]).collect()
    }

    fn lines(text: &[&str]) -> Vec<[String; 3]> {
        text.iter()
            .map(|line| {
                let words: Vec<_> = line.split(' ').map(str::to_string).collect();
                words.try_into().unwrap()
            })
            .collect()
    }

    const V4: (&str, &str) = ("ipv4/conf/up/forwarding", "0");
    const ALL: (&str, &str) = ("ipv6/conf/all/forwarding", "0");

    #[test]
    fn only_the_interface_of_the_way_out_changes() {
        assert_eq!(planned(&[], &[], &[V4, ALL]), lines(&["ipv4/conf/up/forwarding 1 0"]));
        assert_eq!(
            planned(&["up"], &[], &[V4, ALL, ("ipv6/conf/up/force_forwarding", "0")]),
            lines(&["ipv4/conf/up/forwarding 1 0", "ipv6/conf/up/force_forwarding 1 0"])
        );
    }

    #[test]
    fn an_older_kernel_forwards_ipv6_by_all_and_keeps_what_it_learned() {
        assert_eq!(
            planned(
                &["up", "two"],
                &[],
                &[ALL, ("ipv6/conf/up/accept_ra", "1"), ("ipv6/conf/two/accept_ra", "0")]
            ),
            lines(&["ipv6/conf/up/accept_ra 2 1", "ipv6/conf/all/forwarding 1 0"])
        );
    }

    #[test]
    fn what_is_right_already_is_left_alone() {
        let router = [("ipv4/conf/up/forwarding", "1"), ("ipv6/conf/all/forwarding", "1")];
        assert_eq!(planned(&["up"], &[], &router), lines(&[]));
        assert_eq!(planned(&["up"], &[], &[("ipv4/conf/up/forwarding", "1")]), lines(&[]), "no IPv6 at all");
    }

    #[test]
    fn what_another_run_changed_was_what_that_one_noted() {
        let now = [
            ("ipv4/conf/up/forwarding", "1"),
            ("ipv6/conf/all/forwarding", "1"),
            ("ipv6/conf/up/accept_ra", "2"),
        ];
        let noted = [V4, ALL, ("ipv6/conf/up/accept_ra", "1")];
        assert_eq!(
            planned(&["up"], &noted, &now),
            lines(&[
                "ipv4/conf/up/forwarding 1 0",
                "ipv6/conf/up/accept_ra 2 1",
                "ipv6/conf/all/forwarding 1 0"
            ])
        );
    }
}
