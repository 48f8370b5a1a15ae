//! Forwarding: the settings of the host that must change for its ways out to carry a program's packets, and back.
//!
//! Rule, so that as little as possible changes, for each interface that a way out leaves by:
//!
//! ```text
//! IPv4   ipv4/conf/IFACE/forwarding = 1         answers come in there, and IPv4 asks the interface they come in by
//! IPv6   ipv6/conf/IFACE/force_forwarding = 1   the same, where the kernel has it (Linux 6.17)
//!        ipv6/conf/all/forwarding = 2           otherwise; and before it, lest the host forget the routes it learned
//!        ipv6/conf/IFACE/accept_ra = 2          from its router, where it is 1
//! ```
//!
//! The kernel takes 2 for on, and writes a change of `ipv6/conf/all/forwarding` to each interface and to `default`. So 1 there is somebody
//! else's, and stays; what is on at single interfaces before is noted too, and put back behind it.
//!
//! The kernel asks an interface that begins to forward, and what is below it, not to join packets that it receives any more (LRO), and never
//! asks it again. So that it was asked is noted before, and it is asked again behind all else, unless it forwards still.
//!
//! Several runs may need the same setting. Each holds it together with the others ([`crate::hold`]): the first notes the old value, and the
//! last puts that back. Whoever switches forwarding on for all interfaces meanwhile has written the same value into the setting of each, and
//! the last leaves that as it is ([`SettingBefore`]).
//!
//! Source: kernel `Documentation/networking/ip-sysctl.rst`; `net/core/dev.c:dev_disable_lro`, `net/ipv4/route.c:ip_route_input_slow`,
//! `net/ipv4/devinet.c:inet_forward_change`, `net/ipv6/addrconf.c:addrconf_fixup_forwarding`, `net/ipv6/ip6_output.c:ip6_forward`,
//! `net/ipv6/route.c:rt6_purge_dflt_routers`.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::error::{PortError, Result};
use crate::link::{Joint, Link};
use crate::{features, sysctl};

/// The value for on that a run gives `ipv6/conf/all/forwarding`, as nobody else does.
const ON_BY_RUNS: u8 = 2;

/// A setting that a way out may need, or changes; in the order in which they are put back. Those of interfaces go by the interface's number,
/// because its name may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Setting {
    /// `ipv4/conf/IFACE/forwarding`
    ForwardIpv4(u32),
    /// `ipv6/conf/IFACE/force_forwarding`
    ForwardIpv6(u32),
    /// `ipv6/conf/all/forwarding`
    ForwardAllIpv6,
    /// `ipv6/conf/IFACE/forwarding`, which [`Setting::ForwardAllIpv6`] writes
    HostOrRouterIpv6(u32),
    /// `ipv6/conf/default/forwarding`, which [`Setting::ForwardAllIpv6`] writes
    DefaultIpv6,
    /// `ipv6/conf/IFACE/accept_ra`
    AcceptRouters(u32),
    /// `rx-lro` of the interface, as `ethtool -k` has it
    LargeReceive(u32),
}

impl Setting {
    /// The path of the setting for [`crate::sysctl`], in this thread's namespace; words for [`Setting::LargeReceive`], which has none.
    pub fn path(self) -> Result<String> {
        let of = |ifindex, version: &str, name: &str| {
            Ok(format!("{version}/conf/{}/{name}", Link::by_index(ifindex)?.name))
        };
        match self {
            Setting::ForwardIpv4(ifindex) => of(ifindex, "ipv4", "forwarding"),
            Setting::ForwardIpv6(ifindex) => of(ifindex, "ipv6", "force_forwarding"),
            Setting::AcceptRouters(ifindex) => of(ifindex, "ipv6", "accept_ra"),
            Setting::ForwardAllIpv6 => Ok("ipv6/conf/all/forwarding".into()),
            Setting::HostOrRouterIpv6(ifindex) => of(ifindex, "ipv6", "forwarding"),
            Setting::DefaultIpv6 => Ok("ipv6/conf/default/forwarding".into()),
            Setting::LargeReceive(ifindex) => Ok(format!("rx-lro of {}", Link::by_index(ifindex)?.name)),
        }
    }

    /// The name of the setting, unique in a namespace.
    pub fn name(self) -> String {
        match self {
            Setting::ForwardIpv4(ifindex) => format!("{ifindex}-ipv4-forwarding"),
            Setting::ForwardIpv6(ifindex) => format!("{ifindex}-ipv6-force_forwarding"),
            Setting::AcceptRouters(ifindex) => format!("{ifindex}-ipv6-accept_ra"),
            Setting::ForwardAllIpv6 => "ipv6-forwarding".into(),
            Setting::HostOrRouterIpv6(ifindex) => format!("{ifindex}-ipv6-forwarding"),
            Setting::DefaultIpv6 => "default-ipv6-forwarding".into(),
            Setting::LargeReceive(ifindex) => format!("{ifindex}-rx-lro"),
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
            (Ok(ifindex), "ipv6-forwarding") => Setting::HostOrRouterIpv6(ifindex),
            (Err(_), "ipv6-forwarding") => Setting::DefaultIpv6,
            (Ok(ifindex), "rx-lro") => Setting::LargeReceive(ifindex),
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
            Setting::ForwardAllIpv6 | Setting::HostOrRouterIpv6(_) | Setting::DefaultIpv6 => {
                Some("ipv6/conf/all/forwarding")
            }
            Setting::AcceptRouters(_) | Setting::LargeReceive(_) => None,
        }
    }

    /// The value in this thread's namespace, if it has one.
    pub fn value(self) -> Option<u8> {
        match self {
            Setting::LargeReceive(ifindex) => {
                features::large_receive(&Link::by_index(ifindex).ok()?).ok().map(u8::from)
            }
            _ => value_at(&self.path().ok()?),
        }
    }

    /// Gives it a value in this thread's namespace, if it has one there. Returns its path.
    fn write(self, value: u8) -> Result<String> {
        let path = self.path()?;
        match self {
            Setting::LargeReceive(ifindex) => features::ask_large_receive(ifindex)?,
            _ => sysctl::write_if_there(&path, &value.to_string())?,
        }
        Ok(path)
    }

    /// Returns whether the interface forwards, and so must not join packets that it receives.
    fn must_stay_off(self) -> bool {
        let Setting::LargeReceive(ifindex) = self else { return false };
        let forwarding = [Setting::ForwardIpv4(ifindex), Setting::HostOrRouterIpv6(ifindex)];
        forwarding.iter().any(|setting| setting.value().is_some_and(|value| value != 0))
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

    /// Puts a setting of this thread's namespace back. Returns its path if it was put back: it is not where it is so already, its interface
    /// is gone, or somebody has set all interfaces since.
    pub fn put_back(&self, setting: Setting) -> Result<Option<String>> {
        if setting.value() == Some(self.was)
            || setting.must_stay_off()
            || self.is_set_since(setting.path_of_all().and_then(value_at))
        {
            return Ok(None);
        }
        match setting.write(self.was) {
            Ok(path) => Ok(Some(path)),
            Err(PortError::NoInterface { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns whether somebody has switched the setting on for all interfaces since, where that setting's value is `all` now: no run gives it
    /// this one. The same value again changes nothing, so it could not come back by itself.
    fn is_set_since(&self, all: Option<u8>) -> bool {
        self.all == Some(0) && all == Some(1)
    }
}

/// A setting that must change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SettingChange {
    /// The setting.
    pub setting: Setting,
    /// The value that it must have; of a setting that a later change alters, the value before.
    pub wanted: u8,
}

impl SettingChange {
    /// Makes the change in this thread's namespace, where the setting is not on already by another value.
    pub fn make(&self) -> Result<()> {
        match self.setting {
            Setting::HostOrRouterIpv6(_) | Setting::DefaultIpv6 | Setting::LargeReceive(_) => Ok(()),
            Setting::ForwardAllIpv6 if self.setting.value() != Some(0) => Ok(()),
            setting => sysctl::write(&setting.path()?, &self.wanted.to_string()),
        }
    }
}

/// The changes that the ways out by these interfaces (numbers) need, among all those of the namespace, in order; `read` tells the value of a
/// setting before any run changed it, if it has one.
pub fn plan(
    interfaces_v4: &[u32],
    interfaces_v6: &[u32],
    all: &[Joint],
    read: impl Fn(Setting) -> Option<u8>,
) -> Vec<SettingChange> {
    let changes = plan_forwarding(interfaces_v4, interfaces_v6, all, &read);
    let forwarding = forwarding_by(&changes, all);
    let joining = lowest_first(all).into_iter().filter(|ifindex| forwarding.contains(ifindex));
    let joining = joining.map(Setting::LargeReceive);
    let joining = joining.filter(|setting| read(*setting) == Some(1));
    joining.map(|setting| SettingChange { setting, wanted: 1 }).chain(changes.iter().copied()).collect()
}

/// The value of a setting of this thread's namespace before any run changed it, if it has one and that is known; `noted` tells what a run
/// that is there noted.
pub fn before_runs(setting: Setting, noted: impl Fn(Setting) -> Option<u8>) -> Option<u8> {
    let is_written_by_all = || {
        matches!(setting, Setting::HostOrRouterIpv6(_) | Setting::DefaultIpv6)
            && noted(Setting::ForwardAllIpv6) == Some(0)
            // Not by this version's runs: by somebody who may take it back, or by a run of an earlier version.
            && Setting::ForwardAllIpv6.value() == Some(1)
    };
    noted(setting).or_else(|| setting.value().filter(|_| !is_written_by_all()))
}

/// Puts settings into the order in which they are put back. An interface does not join what it receives while one above it is not asked to,
/// so the highest are asked first.
pub fn sort_for_putting_back(settings: &mut [Setting], all: &[Joint]) {
    let lowest_first = lowest_first(all);
    let depth = |ifindex| lowest_first.iter().rev().position(|&own| own == ifindex).unwrap_or_default();
    settings.sort_unstable_by_key(|&setting| match setting {
        Setting::LargeReceive(ifindex) => (Setting::LargeReceive(0), depth(ifindex)),
        setting => (setting, 0),
    });
}

/// The interfaces, each before those above it: a port before its master, a device before its VLANs.
fn lowest_first(all: &[Joint]) -> Vec<u32> {
    let mut left: Vec<&Joint> = all.iter().collect();
    let mut order = Vec::new();
    while !left.is_empty() {
        let is_above = |joint: &&Joint| {
            left.iter().any(|other| {
                other.ifindex != joint.ifindex
                    && (other.master == Some(joint.ifindex) || joint.below == Some(other.ifindex))
            })
        };
        let (above, lowest): (Vec<_>, Vec<_>) = left.iter().copied().partition(is_above);
        order.extend(lowest.iter().map(|joint| joint.ifindex));
        if lowest.is_empty() {
            // The kernel has no such loop; one interface may have changed while all were listed.
            order.extend(above.iter().map(|joint| joint.ifindex));
            break;
        }
        left = above;
    }
    order
}

/// The interfaces that begin to forward by these changes, as far as the kernel looks at that, and those below them.
fn forwarding_by(changes: &[SettingChange], all: &[Joint]) -> BTreeSet<u32> {
    let mut found = BTreeSet::new();
    for change in changes {
        match change.setting {
            Setting::ForwardIpv4(ifindex) => found.extend([ifindex]),
            Setting::ForwardAllIpv6 => found.extend(all.iter().map(|joint| joint.ifindex)),
            _ => {}
        }
    }
    loop {
        let below = all.iter().filter(|joint| found.contains(&joint.ifindex)).filter_map(|joint| joint.below);
        let ports = all.iter().filter(|joint| joint.master.is_some_and(|master| found.contains(&master)));
        let more: Vec<u32> = below.chain(ports.map(|joint| joint.ifindex)).collect();
        let count = found.len();
        found.extend(more);
        if found.len() == count {
            return found;
        }
    }
}

fn plan_forwarding(
    interfaces_v4: &[u32],
    interfaces_v6: &[u32],
    all: &[Joint],
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
    if interfaces_v6.is_empty() || read(Setting::ForwardAllIpv6).is_none_or(|was| was != 0) {
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
        // An interface that came while another run had switched all on has the value of runs.
        let written = all.iter().map(|joint| Setting::HostOrRouterIpv6(joint.ifindex));
        let on = written.chain([Setting::DefaultIpv6]).filter(|setting| read(*setting) == Some(1));
        changes.extend(on.map(|setting| SettingChange { setting, wanted: 1 }));
        changes.push(SettingChange { setting: Setting::ForwardAllIpv6, wanted: ON_BY_RUNS });
    }
    changes
}

#[cfg(test)]
mod tests {
    use super::Setting::{
        AcceptRouters, DefaultIpv6, ForwardAllIpv6, ForwardIpv4, ForwardIpv6, HostOrRouterIpv6, LargeReceive,
    };
    use super::*;
    use crate::link;
    use crate::probe::scratch;
    use crate::sys;

    fn planned(v6: &[u32], settings: &[(Setting, u8)]) -> Vec<(Setting, u8)> {
        let read = |setting| settings.iter().find(|(own, _)| *own == setting).map(|(_, value)| *value);
        // A VLAN of a bond of two, and a macvlan of another.
        let of_bond = [(7, Some(4), None), (4, None, None), (2, None, Some(4)), (3, None, Some(4))];
        let all = [&of_bond[..], &[(8, Some(9), None), (9, None, None)]].concat();
        let joint = |(ifindex, below, master)| Joint { ifindex, below, master, ..Joint::default() };
        let all: Vec<_> = all.into_iter().map(joint).collect();
        plan(&[7], v6, &all, read).into_iter().map(|change| (change.setting, change.wanted)).collect()
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
        assert_eq!(planned(&[7, 8], &settings), [(AcceptRouters(7), 2), (ForwardAllIpv6, 2)]);
        let settings = [ALL, (HostOrRouterIpv6(7), 2), (HostOrRouterIpv6(8), 1), (DefaultIpv6, 0)];
        assert_eq!(planned(&[7], &settings), [(HostOrRouterIpv6(8), 1), (ForwardAllIpv6, 2)]);
    }

    #[test]
    fn what_the_kernel_does_to_receiving_is_noted_first_at_all_below_what_forwards() {
        let receive = [2, 3, 4, 8, 9].map(|ifindex| (LargeReceive(ifindex), 1));
        let noted = |v6: &[u32], settings: &[(Setting, u8)]| {
            let changes = planned(v6, &[&receive, settings].concat());
            let noted = |change: &&(Setting, u8)| matches!(change.0, LargeReceive(_));
            let mut first: Vec<_> = changes.iter().take_while(noted).map(|change| change.0).collect();
            assert_eq!(changes.iter().filter(noted).count(), first.len(), "{changes:?}");
            first.sort_unstable();
            first
        };
        assert_eq!(noted(&[], &[V4]), [2, 3, 4].map(LargeReceive));
        assert_eq!(noted(&[7], &[V4, ALL, (ForwardIpv6(7), 0)]), [2, 3, 4].map(LargeReceive));
        assert_eq!(noted(&[7], &[ALL]), [2, 3, 4, 8, 9].map(LargeReceive), "by all");
        assert_eq!(noted(&[7], &[(ForwardIpv4(7), 1), (ForwardAllIpv6, 1)]), [], "a router");
    }

    #[test]
    fn an_interface_is_asked_to_join_before_those_below_it() {
        // Bonds with the lowest number and the highest, each with two ports, and a VLAN on the first.
        let all = [(1, None, None), (2, None, Some(1)), (3, None, Some(1)), (4, Some(1), None)];
        let second = [(5, None, Some(9)), (6, None, Some(9)), (9, None, None)];
        let all = [&all[..], &second[..]].concat();
        let joint = |(ifindex, below, master)| Joint { ifindex, below, master, ..Joint::default() };
        let all: Vec<_> = all.into_iter().map(joint).collect();
        let mut settings: Vec<_> = [2, 1, 6, 5, 4, 9, 3].map(LargeReceive).into();
        settings.push(ForwardIpv4(4));
        sort_for_putting_back(&mut settings, &all);
        assert_eq!(settings[0], ForwardIpv4(4));
        let place = |ifindex| settings.iter().position(|own| *own == LargeReceive(ifindex)).unwrap();
        for (above, below) in [(1, 2), (1, 3), (4, 1), (9, 5), (9, 6)] {
            assert!(place(above) < place(below), "{settings:?}");
        }
        let told = planned(&[7], &[(LargeReceive(4), 1), (LargeReceive(2), 1), ALL]);
        assert_eq!(told[..2], [(LargeReceive(2), 1), (LargeReceive(4), 1)], "put back in reverse");
    }

    #[test]
    fn what_somebody_wrote_to_all_since_is_not_what_was_before() {
        if !sys::is_root() {
            return;
        }
        let seen = scratch::run(|answer| {
            let lo = Link::by_name("lo")?.ifindex;
            let seen = |all: &str, noted: Option<u8>| {
                sysctl::write("ipv6/conf/all/forwarding", "0")?;
                sysctl::write("ipv6/conf/all/forwarding", all)?;
                let noted = |setting| noted.filter(|_| setting == ForwardAllIpv6);
                Ok([ForwardAllIpv6, HostOrRouterIpv6(lo), DefaultIpv6].map(|it| before_runs(it, noted)))
            };
            answer([seen("1", None)?, seen("1", Some(0))?, seen("2", Some(0))?]);
            Ok(())
        });
        let on = |value| Some(value);
        assert_eq!(seen.unwrap(), [[on(1); 3], [on(0), None, None], [on(0), on(2), on(2)]]);
    }

    /// On any kernel, as one without `force_forwarding` does it.
    #[test]
    fn of_all_interfaces_what_was_on_before_and_what_came_on_since_stays_on() {
        if !sys::is_root() {
            return;
        }
        const ALL: &str = "ipv6/conf/all/forwarding";
        const ONE: &str = "ipv6/conf/lo/forwarding";
        let seen = scratch::run(|answer| {
            let uplink = Link::by_name("lo")?.ifindex;
            let seen = |is_switched_on: bool, is_second_there: bool| {
                sysctl::write(ALL, "0")?;
                sysctl::write(ONE, "1")?;
                let read = |setting: Setting| Some(setting).filter(|it| *it != ForwardIpv6(uplink))?.value();
                let changes = plan(&[], &[uplink], &link::joints()?, read);
                let before: Vec<_> =
                    changes.iter().map(|change| SettingBefore::look(change.setting)).collect();
                changes.iter().try_for_each(SettingChange::make)?;
                let mut seen = vec![sysctl::read(ALL)];
                if is_switched_on {
                    sysctl::write(ALL, "1")?;
                }
                if is_second_there {
                    changes.iter().try_for_each(SettingChange::make)?;
                }
                for (change, before) in changes.iter().zip(before).rev() {
                    before.put_back(change.setting)?;
                }
                seen.extend([ALL, ONE, "ipv6/conf/default/forwarding"].map(sysctl::read));
                Ok(seen.into_iter().map(Option::unwrap_or_default).collect::<Vec<_>>().join(" "))
            };
            answer([seen(false, false)?, seen(false, true)?, seen(true, false)?, seen(true, true)?]);
            Ok(())
        });
        // While it is on; and then of all, of the one and of those to come.
        assert_eq!(seen.unwrap(), ["2 0 1 0", "2 0 1 0", "2 1 1 1", "2 1 1 1"]);
    }

    #[test]
    fn what_is_so_already_is_not_written() {
        if !sys::is_root() {
            return;
        }
        let told = scratch::run(|answer| {
            let setting = ForwardIpv4(Link::by_name("lo")?.ifindex);
            let before = SettingBefore::look(setting);
            answer((before.put_back(setting)?, before.was));
            Ok(())
        });
        assert_eq!(told.unwrap().0, None);
    }

    #[test]
    fn what_is_right_already_is_left_alone() {
        assert_eq!(planned(&[7], &[(ForwardIpv4(7), 1), (ForwardAllIpv6, 1)]), []);
        assert_eq!(planned(&[7], &[(ForwardIpv4(7), 1)]), [], "no IPv6 at all");
        assert_eq!(planned(&[7], &[(ForwardIpv4(7), 1), (ForwardAllIpv6, 2)]), [], "on by another value");
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
        let of_interface =
            [ForwardIpv4(7), ForwardIpv6(7), AcceptRouters(7), HostOrRouterIpv6(7), LargeReceive(7)];
        for setting in of_interface.into_iter().chain([ForwardAllIpv6, DefaultIpv6]) {
            assert!(!setting.name().contains('/'), "{setting:?}");
            assert_eq!(Setting::from_name(&setting.name()), Some(setting));
        }
        for other in ["", "7-queue", "x-ipv4-forwarding", "x-ipv6-forwarding", "ipv6"] {
            assert_eq!(Setting::from_name(other), None, "{other}");
        }
        assert_eq!(ForwardAllIpv6.path().unwrap(), "ipv6/conf/all/forwarding");
    }
}
