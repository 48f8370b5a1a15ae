//! The features of a sending end that leave something out of the frame, where AF_XDP would find it: a VLAN's tag, which goes beside it, and a
//! checksum, which is still to be filled in ([`crate::ethtool`]).
//!
//! A VLAN interface leaves its tag in the packet's description where the device below says that it can insert it (`tx-vlan-hw-insert`,
//! `tx-vlan-stag-hw-insert`), as every veth does. XDP and AF_XDP see the frame alone: it would arrive untagged, in another network. With
//! these features off, the kernel writes the tag into the frame first.
//!
//! Source: `ETHTOOL_GFEATURES` of `include/uapi/linux/ethtool.h`, by which they are read; `FEATURES_SET` of
//! `Documentation/networking/ethtool-netlink.rst`, by which they are switched; kernel `net/core/dev.c:validate_xmit_vlan`.

use std::sync::OnceLock;

use netlink_bindings::ethtool as genl;
use netlink_socket2::NetlinkSocket;
use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::ethtool;
use crate::link::Link;
use crate::netlink::{acknowledged, is_code};

/// `ETHTOOL_MSG_FEATURES_SET` of `include/uapi/linux/ethtool_netlink.h`; the encoder counts the kernel's answers too.
const FEATURES_SET: u8 = 12;
/// The flag `ETHTOOL_FLAG_OMIT_REPLY`: an acknowledgement will do.
const NO_REPLY: u32 = 1 << 1;

/// A feature of an interface by which tags go beside the frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TagInsertion {
    /// Insertion of customers' tags (802.1Q).
    Ctag,
    /// Insertion of providers' tags (802.1ad).
    Stag,
}

impl TagInsertion {
    /// Both features, which a new veth has.
    pub const ALL: [TagInsertion; 2] = [TagInsertion::Ctag, TagInsertion::Stag];

    /// The name of the feature, as `ethtool -k` has it.
    fn name(self) -> &'static str {
        match self {
            TagInsertion::Ctag => "tx-vlan-hw-insert",
            TagInsertion::Stag => "tx-vlan-stag-hw-insert",
        }
    }
}

/// The name of the feature by which a device joins packets that it receives.
const LARGE_RECEIVE: &str = "rx-lro";
/// The prefix of the names of features by which checksums are left to the device.
const CHECKSUM_PREFIX: &str = "tx-checksum-";

/// Features of an interface by which checksums are left to the device, each by the name that `ethtool -k` has for it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "NotedChecksums")]
pub struct ChecksumOffloads(Vec<String>);

/// The features as a hold's note has them; an earlier version noted whether any was on.
#[derive(Deserialize)]
#[serde(untagged)]
enum NotedChecksums {
    Names(Vec<String>),
    Any(bool),
}

impl From<NotedChecksums> for ChecksumOffloads {
    fn from(noted: NotedChecksums) -> ChecksumOffloads {
        match noted {
            NotedChecksums::Names(names) => ChecksumOffloads(names),
            NotedChecksums::Any(true) => ChecksumOffloads::of_new_veth(),
            NotedChecksums::Any(false) => ChecksumOffloads::default(),
        }
    }
}

impl ChecksumOffloads {
    /// The features that a new veth has.
    pub fn of_new_veth() -> ChecksumOffloads {
        ChecksumOffloads(["ip-generic", "sctp"].map(|kind| format!("{CHECKSUM_PREFIX}{kind}")).to_vec())
    }

    /// Returns whether checksums are filled in.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns whether each of these is a feature by which checksums are left to the device.
    pub(crate) fn is_sound(&self) -> bool {
        self.0.iter().all(|name| name.starts_with(CHECKSUM_PREFIX))
    }

    /// Those that are not among `others`.
    pub(crate) fn without(mut self, others: &ChecksumOffloads) -> ChecksumOffloads {
        self.0.retain(|name| !others.0.contains(name));
        self
    }
}

/// The features that are on at a sending end and leave something out of the frame.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Offloads {
    /// The features by which checksums are left to the device.
    pub checksums: ChecksumOffloads,
    /// The features by which tags go beside the frame.
    pub tag_insertions: Vec<TagInsertion>,
}

/// The names of the features, which are the same for each interface of a kernel.
fn names(link: &Link) -> Result<&'static [String]> {
    static NAMES: OnceLock<Vec<String>> = OnceLock::new();
    if let Some(names) = NAMES.get() {
        return Ok(names);
    }
    let read = ethtool::feature_names(link)?;
    Ok(NAMES.get_or_init(|| read))
}

/// Returns whether an interface of this thread's namespace is asked to join packets that it receives (LRO).
pub fn large_receive(link: &Link) -> Result<bool> {
    let place = names(link)?.iter().position(|name| name == LARGE_RECEIVE);
    let requested = ethtool::features(link)?.requested;
    Ok(place.is_some_and(|place| requested >> place & 1 == 1))
}

/// Asks an interface of this thread's namespace to join packets that it receives (LRO); content with the interface being gone.
pub fn ask_large_receive(ifindex: u32) -> Result<()> {
    let doing = || format!("switching large receive offload of interface number {ifindex} on again");
    set(ifindex, [LARGE_RECEIVE].into_iter(), true, doing)
}

/// The features of an interface of this thread's namespace that are on and leave something out of the frame.
pub fn offloads(link: &Link) -> Result<Offloads> {
    let names = names(link)?;
    let active = ethtool::features(link)?.active;
    let is_on = |place: usize| active >> place & 1 == 1;
    Ok(Offloads::of(
        names.iter().enumerate().filter(|(place, _)| is_on(*place)).map(|(_, name)| name.as_str()),
    ))
}

impl Offloads {
    /// Those among the features of these names, as `ethtool -k` has them.
    fn of<'a>(active: impl Iterator<Item = &'a str>) -> Offloads {
        let mut found = Offloads::default();
        for name in active {
            if name.starts_with(CHECKSUM_PREFIX) {
                found.checksums.0.push(name.into());
            }
            found.tag_insertions.extend(TagInsertion::ALL.into_iter().find(|feature| feature.name() == name));
        }
        found
    }
}

/// Switches the insertion of VLAN tags of an interface of this thread's namespace on or off; content with the interface being gone.
pub fn switch(ifindex: u32, features: &[TagInsertion], on: bool) -> Result<()> {
    let doing = || format!("switching the insertion of VLAN tags of interface number {ifindex}");
    set(ifindex, features.iter().map(|feature| feature.name()), on, doing)
}

/// Leaves checksums to an interface of this thread's namespace again, by these features alone; content with the interface being gone.
pub fn leave_checksums(ifindex: u32, features: &ChecksumOffloads) -> Result<()> {
    let doing = || format!("leaving checksums to interface number {ifindex} again");
    set(ifindex, features.0.iter().map(String::as_str), true, doing)
}

fn set<'a>(
    ifindex: u32,
    names: impl ExactSizeIterator<Item = &'a str>,
    on: bool,
    doing: impl Fn() -> String,
) -> Result<()> {
    if names.len() == 0 {
        return Ok(());
    }
    let mut request = genl::Request::new().op_features_set_do();
    request.header_mut().cmd = FEATURES_SET;
    let header = request.encode().nested_header().push_dev_index(ifindex).push_flags(NO_REPLY);
    let mut bits = header.end_nested().nested_wanted().nested_bits();
    for name in names {
        let bit = bits.nested_bit().push_name_bytes(name.as_bytes());
        bits = if on { bit.push_value(()).end_nested() } else { bit.end_nested() };
    }
    drop(bits);
    match acknowledged(&mut NetlinkSocket::new(), &request, doing) {
        Err(error) if is_code(&error, libc::ENODEV) => Ok(()),
        result => result,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netns::NetNs;
    use crate::probe::scratch::{self, ScratchPair};
    use crate::sys;

    #[test]
    fn what_goes_beside_the_frame_is_told_by_names() {
        let of = |names: &[&str]| Offloads::of(names.iter().copied());
        assert_eq!(of(&["tx-scatter-gather", "rx-checksum", "rx-vlan-hw-parse"]), Offloads::default());
        let both = ["tx-checksum-ip-generic", "tx-vlan-hw-insert", "tx-vlan-stag-hw-insert"];
        let checksums = ChecksumOffloads(vec!["tx-checksum-ip-generic".into()]);
        assert_eq!(of(&both), Offloads { checksums, tag_insertions: TagInsertion::ALL.to_vec() });
        let checksums = ChecksumOffloads(vec!["tx-checksum-sctp".into()]);
        assert_eq!(of(&["tx-checksum-sctp"]), Offloads { checksums, ..Offloads::default() });
    }

    #[test]
    fn a_note_of_an_earlier_version_is_of_all_features_or_of_none() {
        let read = |text: &str| serde_json::from_str::<ChecksumOffloads>(text).unwrap();
        assert_eq!(read("true"), ChecksumOffloads::of_new_veth());
        assert!(read("false").is_empty());
        let sctp = ChecksumOffloads(vec!["tx-checksum-sctp".into()]);
        assert_eq!(read(&serde_json::to_string(&sctp).unwrap()), sctp);
    }

    #[test]
    fn what_the_user_had_off_stays_off() {
        if !sys::is_root() {
            return;
        }
        let told = scratch::run(|answer| {
            let link = ScratchPair::new(c"near", &NetNs::current()?)?.receiver;
            let new = offloads(&link)?.checksums;
            ethtool::set_tx_checksum(&link, false)?;
            assert!(offloads(&link)?.checksums.is_empty());
            let had = ChecksumOffloads(vec!["tx-checksum-ip-generic".into()]);
            leave_checksums(link.ifindex, &had)?;
            answer((new, had, offloads(&link)?.checksums));
            Ok(())
        });
        let (new, had, present) = told.unwrap();
        assert_eq!((new, present), (ChecksumOffloads::of_new_veth(), had));
    }
}
