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

/// The features that are on at a sending end and leave something out of the frame.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Offloads {
    /// True if checksums are left to the device.
    pub tx_checksum: bool,
    /// The features by which tags go beside the frame.
    pub tag_insertions: Vec<TagInsertion>,
}

/// The features of an interface of this thread's namespace that are on and leave something out of the frame.
pub fn offloads(link: &Link) -> Result<Offloads> {
    /// The names of the features, which are the same for each interface of a kernel.
    static NAMES: OnceLock<Vec<String>> = OnceLock::new();
    let names = match NAMES.get() {
        Some(names) => names,
        None => {
            let read = ethtool::feature_names(link)?;
            NAMES.get_or_init(|| read)
        }
    };
    let active = ethtool::features(link)?;
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
            found.tx_checksum |= name.starts_with("tx-checksum-");
            found.tag_insertions.extend(TagInsertion::ALL.into_iter().find(|feature| feature.name() == name));
        }
        found
    }
}

/// Switches features of an interface of this thread's namespace on or off; content with the interface being gone.
pub fn switch(ifindex: u32, features: &[TagInsertion], on: bool) -> Result<()> {
    if features.is_empty() {
        return Ok(());
    }
    let doing = || format!("switching the insertion of VLAN tags of interface number {ifindex}");
    let mut request = genl::Request::new().op_features_set_do();
    request.header_mut().cmd = FEATURES_SET;
    let header = request.encode().nested_header().push_dev_index(ifindex).push_flags(NO_REPLY);
    let mut bits = header.end_nested().nested_wanted().nested_bits();
    for feature in features {
        let bit = bits.nested_bit().push_name_bytes(feature.name().as_bytes());
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

    #[test]
    fn what_goes_beside_the_frame_is_told_by_names() {
        let of = |names: &[&str]| Offloads::of(names.iter().copied());
        assert_eq!(of(&["tx-scatter-gather", "rx-checksum", "rx-vlan-hw-parse"]), Offloads::default());
        let both = ["tx-checksum-ip-generic", "tx-vlan-hw-insert", "tx-vlan-stag-hw-insert"];
        assert_eq!(of(&both), Offloads { tx_checksum: true, tag_insertions: TagInsertion::ALL.to_vec() });
        assert_eq!(of(&["tx-checksum-sctp"]), Offloads { tx_checksum: true, ..Offloads::default() });
    }
}
