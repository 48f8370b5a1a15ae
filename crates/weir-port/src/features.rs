//! The place of a VLAN's tag on its way through a sending end: in the frame, where AF_XDP finds it, or beside it.
//!
//! A VLAN interface leaves its tag in the packet's description where the device below says that it can insert it (`tx-vlan-hw-insert`,
//! `tx-vlan-stag-hw-insert`), as every veth does. XDP and AF_XDP see the frame alone: it would arrive untagged, in another network. With
//! these features off, the kernel writes the tag into the frame first.
//!
//! Source: `Documentation/networking/ethtool-netlink.rst`, `FEATURES_SET`; kernel `net/core/dev.c:validate_xmit_vlan`.

use std::ffi::CStr;

use netlink_bindings::ethtool;
use netlink_socket2::NetlinkSocket;
use serde::{Deserialize, Serialize};

use crate::error::{Doing, Result};
use crate::netlink::{acknowledged, explained, is_code};

/// `ETHTOOL_MSG_FEATURES_GET` and `_SET` of `include/uapi/linux/ethtool_netlink.h`; the encoder counts the kernel's answers too.
const FEATURES_GET: u8 = 11;
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
    fn name(self) -> &'static CStr {
        match self {
            TagInsertion::Ctag => c"tx-vlan-hw-insert",
            TagInsertion::Stag => c"tx-vlan-stag-hw-insert",
        }
    }
}

/// The features that are on at an interface of this thread's namespace.
pub fn tag_insertions(ifindex: u32) -> Result<Vec<TagInsertion>> {
    let doing = || format!("reading the features of interface number {ifindex}");
    let mut request = ethtool::Request::new().op_features_get_do();
    request.header_mut().cmd = FEATURES_GET;
    request.encode().nested_header().push_dev_index(ifindex);
    let mut socket = NetlinkSocket::new();
    let mut reply = socket.request(&request).doing(doing)?;
    let features = reply.recv_one().map_err(|error| explained(error, doing()))?;
    let active = features.get_active().and_then(|active| active.get_bits());
    let active = active.map_err(|error| explained(error.into(), doing()))?;
    let mut found = Vec::new();
    for bit in active {
        let name = match bit {
            Ok(ethtool::BitsetBits::Bit(bit)) => bit.get_name(),
            _ => continue,
        };
        let is_named = |feature: &TagInsertion| name.as_ref().is_ok_and(|name| *name == feature.name());
        found.extend(TagInsertion::ALL.into_iter().filter(is_named));
    }
    Ok(found)
}

/// Switches features of an interface of this thread's namespace on or off; content with the interface being gone.
pub fn switch(ifindex: u32, features: &[TagInsertion], on: bool) -> Result<()> {
    if features.is_empty() {
        return Ok(());
    }
    let doing = || format!("switching the insertion of VLAN tags of interface number {ifindex}");
    let mut request = ethtool::Request::new().op_features_set_do();
    request.header_mut().cmd = FEATURES_SET;
    let header = request.encode().nested_header().push_dev_index(ifindex).push_flags(NO_REPLY);
    let mut bits = header.end_nested().nested_wanted().nested_bits();
    for feature in features {
        let bit = bits.nested_bit().push_name(feature.name());
        bits = if on { bit.push_value(()).end_nested() } else { bit.end_nested() };
    }
    drop(bits);
    match acknowledged(&mut NetlinkSocket::new(), &request, doing) {
        Err(error) if is_code(&error, libc::ENODEV) => Ok(()),
        result => result,
    }
}
