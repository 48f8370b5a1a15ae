//! Forwarding: the settings of the host that must change for its ways out to carry a program's packets, and back.
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
//! Several runs may need the same setting. Each holds it together with the others ([`crate::hold`]): the first notes the old value, and the
//! last puts that back. Whoever switches forwarding on for all interfaces meanwhile has written the same value into the setting of each, and
//! the last leaves that as it is ([`SettingBefore`]).
//!
//! Source: kernel `Documentation/networking/ip-sysctl.rst`; `net/ipv4/route.c:ip_route_input_slow`,
//! `net/ipv4/devinet.c:inet_forward_change`, `net/ipv6/ip6_output.c:ip6_forward`, `net/ipv6/route.c:rt6_purge_dflt_routers`.

use serde::{Deserialize, Serialize};

use crate::error::{PortError, Result};
use crate::link::Link;
use crate::sysctl;

/// A setting that a way out may need; those of interfaces go by the interface's number, because its name may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Setting {
    /// `ipv4/conf/IFACE/forwarding`
    ForwardIpv4(u32),
    /// `ipv6/conf/IFACE/force_forwarding`
    ForwardIpv6(u32),
    /// `ipv6/conf/IFACE/accept_ra`
    AcceptRouters(u32),
    /// `ipv6/conf/all/forwarding`
    ForwardAllIpv6,
}

impl Setting {
    /// The path of the setting for [`crate::sysctl`], in this thread's namespace.
    pub fn path(self) -> Result<String> {
        let of = |ifindex, version: &str, name: &str| {
            Ok(format!("{version}/conf/{}/{name}", Link::by_index(ifindex)?.name))
        };
        match self {
            Setting::ForwardIpv4(ifindex) => of(ifindex, "ipv4", "forwarding"),
            Setting::ForwardIpv6(ifindex) => of(ifindex, "ipv6", "force_forwarding"),
            Setting::AcceptRouters(ifindex) => of(ifindex, "ipv6", "accept_ra"),
            Setting::ForwardAllIpv6 => Ok("ipv6/conf/all/forwarding".into()),
        }
    }

    /// The name of the setting, unique in a namespace.
    pub fn name(self) -> String {
        match self {
            Setting::ForwardIpv4(ifindex) => format!("{ifindex}-ipv4-forwarding"),
            Setting::ForwardIpv6(ifindex) => format!("{ifindex}-ipv6-force_forwarding"),
            Setting::AcceptRouters(ifindex) => format!("{ifindex}-ipv6-accept_ra"),
            Setting::ForwardAllIpv6 => "ipv6-forwarding".into(),
        }
    }
}

impl Setting {
    /// The setting of a [`Setting::name`]; `None` for another text.
    pub fn from_name(name: &str) -> Option<Setting> {
        let (ifindex, what) = name.split_once('-')?;
        let setting = match (ifindex.parse(), what) {
            (Ok(ifindex), "ipv4-forwarding") => Setting::ForwardIpv4(ifindex),
            (Ok(ifindex), "ipv6-force_forwarding") => Setting::ForwardIpv6(ifindex),
            (Ok(ifindex), "ipv6-accept_ra") => Setting::AcceptRouters(ifindex),
            _ => Setting::ForwardAllIpv6,
        };
        (setting.name() == name).then_some(setting)
    }
}

impl Setting {
    /// The path of the setting that writes this one of each interface when it is itself changed, where there is one.
    fn path_of_all(self) -> Option<&'static str> {
        match self {
            Setting::ForwardIpv4(_) => Some("ipv4/conf/all/forwarding"),
            Setting::ForwardIpv6(_) => Some("ipv6/conf/all/force_forwarding"),
            Setting::AcceptRouters(_) | Setting::ForwardAllIpv6 => None,
        }
    }

    /// The value in this thread's namespace, if it has one.
    pub fn value(self) -> Option<u8> {
        value_at(&self.path().ok()?)
    }
}

fn value_at(path: &str) -> Option<u8> {
    sysctl::read(path)?.parse().ok()
}

/// A setting's state before any run changed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "NotedBefore")]
pub struct SettingBefore {
    /// Its value.
    pub was: u8,
    /// The value of the setting that writes it for all interfaces; `None` where there is none, or it was not noted.
    all: Option<u8>,
}

/// A state as it is noted: an earlier version noted the value alone.
#[derive(Deserialize)]
#[serde(untagged)]
enum NotedBefore {
    Value(u8),
    Whole { was: u8, all: Option<u8> },
}

impl From<NotedBefore> for SettingBefore {
    fn from(noted: NotedBefore) -> SettingBefore {
        match noted {
            NotedBefore::Value(was) => SettingBefore { was, all: None },
            NotedBefore::Whole { was, all } => SettingBefore { was, all },
        }
    }
}

impl SettingBefore {
    /// The state now, in this thread's namespace, of a setting that no run has changed.
    pub fn look(setting: Setting) -> SettingBefore {
        SettingBefore {
            was: setting.value().unwrap_or_default(),
            all: setting.path_of_all().and_then(value_at),
        }
    }

    /// Returns whether a setting may have been so.
    pub fn is_sound(&self) -> bool {
        self.was <= 2
    }

    /// Puts a setting of this thread's namespace back. Returns its path if it was put back: it is not where its interface is gone, or
    /// somebody has set all interfaces since.
    pub fn put_back(&self, setting: Setting) -> Result<Option<String>> {
        if self.is_set_since(setting.path_of_all().and_then(value_at)) {
            return Ok(None);
        }
        match setting.path() {
            Ok(path) => sysctl::write_if_there(&path, &self.was.to_string()).map(|()| Some(path)),
            Err(PortError::NoInterface { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns whether somebody has switched the setting on for all interfaces since, where that setting's value is `all` now. The same value
    /// again changes nothing, so it could not come back by itself.
    fn is_set_since(&self, all: Option<u8>) -> bool {
        self.all == Some(0) && all == Some(1)
    }
}

/// A setting that must change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SettingChange {
    /// The setting.
    pub setting: Setting,
    /// The value that it must have.
    pub wanted: u8,
}

/// The changes that the ways out by these interfaces (numbers) need, in order; `read` tells the value of a setting before any run changed
/// it, if it has one.
pub fn plan(
    interfaces_v4: &[u32],
    interfaces_v6: &[u32],
    read: impl Fn(Setting) -> Option<u8>,
) -> Vec<SettingChange> {
    let mut changes: Vec<SettingChange> = Vec::new();
    let mut want = |setting, wanted| {
        if read(setting).is_some_and(|was| was != wanted) {
            changes.push(SettingChange { setting, wanted });
        }
    };
    for &interface in interfaces_v4 {
        want(Setting::ForwardIpv4(interface), 1);
    }
    if interfaces_v6.is_empty() || read(Setting::ForwardAllIpv6).is_none_or(|was| was == 1) {
        return changes;
    }
    if interfaces_v6.iter().all(|&interface| read(Setting::ForwardIpv6(interface)).is_some()) {
        interfaces_v6.iter().for_each(|&interface| want(Setting::ForwardIpv6(interface), 1));
    } else {
        for &interface in interfaces_v6 {
            let setting = Setting::AcceptRouters(interface);
            if read(setting) == Some(1) {
                want(setting, 2);
            }
        }
        want(Setting::ForwardAllIpv6, 1);
    }
    changes
}

#[cfg(test)]
mod tests {
    use super::Setting::{AcceptRouters, ForwardAllIpv6, ForwardIpv4, ForwardIpv6};
    use super::*;

    fn planned(v6: &[u32], settings: &[(Setting, u8)]) -> Vec<(Setting, u8)> {
        let read = |setting| settings.iter().find(|(own, _)| *own == setting).map(|(_, value)| *value);
        plan(&[7], v6, read).into_iter().map(|change| (change.setting, change.wanted)).collect()
    }

    const V4: (Setting, u8) = (ForwardIpv4(7), 0);
    const ALL: (Setting, u8) = (ForwardAllIpv6, 0);

    #[test]
    fn only_the_interface_of_the_way_out_changes() {
        assert_eq!(planned(&[], &[V4, ALL]), [(ForwardIpv4(7), 1)]);
        assert_eq!(
            planned(&[7], &[V4, ALL, (ForwardIpv6(7), 0)]),
            [(ForwardIpv4(7), 1), (ForwardIpv6(7), 1)]
        );
    }

    #[test]
    fn an_older_kernel_forwards_ipv6_by_all_and_keeps_what_it_learned() {
        let settings = [ALL, (AcceptRouters(7), 1), (AcceptRouters(8), 0)];
        assert_eq!(planned(&[7, 8], &settings), [(AcceptRouters(7), 2), (ForwardAllIpv6, 1)]);
    }

    #[test]
    fn what_is_right_already_is_left_alone() {
        assert_eq!(planned(&[7], &[(ForwardIpv4(7), 1), (ForwardAllIpv6, 1)]), []);
        assert_eq!(planned(&[7], &[(ForwardIpv4(7), 1)]), [], "no IPv6 at all");
    }

    #[test]
    fn what_was_set_for_all_since_stays() {
        let before = |all| SettingBefore { was: 0, all };
        for (then, now, is_set) in [
            (Some(0), Some(1), true),
            (Some(0), Some(0), false),
            (Some(1), Some(1), false),
            (Some(1), Some(0), false),
            (None, Some(1), false),
            (None, None, false),
        ] {
            assert_eq!(before(then).is_set_since(now), is_set, "{then:?}, then {now:?}");
        }
    }

    #[test]
    fn a_state_is_read_as_each_version_notes_it() {
        let read = |text: &str| serde_json::from_str::<SettingBefore>(text).ok();
        let whole = SettingBefore { was: 0, all: Some(1) };
        assert_eq!(read(&serde_json::to_string(&whole).unwrap()), Some(whole));
        assert_eq!(read("2"), Some(SettingBefore { was: 2, all: None }));
        assert_eq!((read("-1"), read("null"), read("[]")), (None, None, None));
    }

    #[test]
    fn a_setting_has_a_name_without_slashes() {
        for setting in [ForwardIpv4(7), ForwardIpv6(7), AcceptRouters(7), ForwardAllIpv6] {
            assert!(!setting.name().contains('/'), "{setting:?}");
            assert_eq!(Setting::from_name(&setting.name()), Some(setting));
        }
        for other in ["", "7-queue", "x-ipv4-forwarding", "ipv6"] {
            assert_eq!(Setting::from_name(other), None, "{other}");
        }
        assert_eq!(ForwardAllIpv6.path().unwrap(), "ipv6/conf/all/forwarding");
    }
}
