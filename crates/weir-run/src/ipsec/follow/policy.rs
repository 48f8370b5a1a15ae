//! A policy as the kernel tells it (`xfrm_userpolicy_info`, 168 bytes, and attributes), and how far it can be followed.
//!
//! ```text
//! selector:  0 destination  16 source  32 ports and masks  40 family, prefix lengths, protocol  48 interface
//! policy:    56 limits  120 what passed  152 priority  156 index  160 direction, action
//! ```
//!
//! Rule: a policy that no packet of Weir's can match, because none has a mark, an interface number or a label, is left out. Any other
//! that cannot be expressed discards the packets that it names, so that none of them goes out in the clear by a later policy; a policy that
//! lets pass is left out instead, and so is one of what the kernel forwards.
//!
//! Pure. Source: linux/xfrm.h, the kernel's `copy_to_user_policy`.

use std::ops::RangeInclusive;

use weir_core::classify::headers::has_ports;
use weir_ipsec::policy::{AddressPrefix, Selector};
use weir_port::netlink_bytes::Fields;

use super::message::{FollowedPolicy, Heard, POLICY_BYTES, attribute, find, is_main, mark};
use crate::ipsec::xfrm::{XfrmPolicy, XfrmTemplate};

const TEMPLATE_BYTES: usize = 64;
const PROTOCOL_ESP: u8 = 50;
/// `XFRM_POLICY_IN`, `OUT`, `FWD`; then those of sockets.
const DIRECTION_IN: u8 = 0;
const DIRECTION_OUT: u8 = 1;
const DIRECTION_FORWARD: u8 = 2;

/// `NEWPOLICY` and `UPDPOLICY`; none if something is missing.
pub(super) fn policy(body: &[u8]) -> Option<Heard> {
    let (info, with) = body.split_at_checked(POLICY_BYTES)?;
    let (index, direction) = (info.u32(156)?, info.u8(160)?);
    let (is_inbound, word) = match direction {
        DIRECTION_IN => (Some(true), "in"),
        DIRECTION_OUT => (Some(false), "out"),
        _ => (None, "fwd"),
    };
    let is_main = is_main(with);
    // One of what is forwarded is left out in any case, and no packet here is of this one.
    let leave = |why: String| match is_inbound {
        None => FollowedPolicy::PassedOver,
        Some(_) => FollowedPolicy::Left(why),
    };
    if direction > DIRECTION_FORWARD || !is_main {
        let policy = leave(format!("policy {index}: it is of the table sub, which is not built"));
        return Some(Heard::Policy { index, is_main, at: format!("policy {index}"), policy });
    }
    let mut unsaid = None;
    let selector = selector(info, &mut unsaid)?;
    let text = |prefix: &AddressPrefix| {
        let (address, len) = prefix.parts();
        format!("{address}/{len}")
    };
    let at = format!("policy {word} from {} to {}", text(&selector.source), text(&selector.destination));
    let [mark, _] = mark(with);
    let number = find(with, attribute::IF_ID).and_then(|number| number.u32(0)).unwrap_or_default();
    let left = match (mark, number) {
        (0, 0) => find(with, attribute::SEC_CTX)
            .map(|_| format!("{at}: it is of packets with a security label, and none of Weir's has one")),
        (0, _) => {
            Some(format!("{at}: it is of xfrm interface {number} (if_id), which no packet of Weir's is of"))
        }
        _ => Some(format!("{at}: it is of packets with mark {mark:#x}, and none of Weir's has one")),
    };
    if let Some(why) = left {
        return Some(Heard::Policy { index, is_main, at, policy: leave(why) });
    }
    if info.i32(48)? != 0 {
        unsaid = unsaid.or(Some("it is of one interface (dev)"));
    }
    let mut templates = Vec::new();
    for template in find(with, attribute::TMPL).unwrap_or_default().chunks(TEMPLATE_BYTES) {
        templates.push(self::template(template, &mut unsaid)?);
    }
    if templates.len() > 1 {
        unsaid = unsaid.or(Some("several templates nest associations"));
    }
    let policy = Box::new(XfrmPolicy {
        at: at.clone(),
        selector,
        is_inbound,
        is_block: info.u8(161)? != 0,
        priority: info.u32(152)?,
        templates,
    });
    let policy = match unsaid {
        None => FollowedPolicy::Policy(policy),
        // No packet passes in the clear that no policy lets.
        Some(why) if policy.lets_pass() => {
            FollowedPolicy::LettingPass(policy, format!("{at}: {why}, which cannot be said"))
        }
        Some(why) => {
            let why = format!("{at}: {why}, which cannot be said, so what it names is discarded");
            FollowedPolicy::Discarding(policy, why)
        }
    };
    Some(Heard::Policy { index, is_main, at, policy })
}

/// `xfrm_selector`; a part that cannot be expressed is widened, and told.
pub(super) fn selector(info: &[u8], unsaid: &mut Option<&'static str>) -> Option<Selector> {
    let family = info.u16(40)?;
    let prefix = |at: usize, len: usize| AddressPrefix::new(info.address(at, family)?, info.u8(len)?);
    let [source, destination] = [prefix(16, 43)?, prefix(0, 42)?];
    let protocol = info.u8(44)?;
    let [from, to] = [[36, 38], [32, 34]].map(|[port, mask]| Some([info.u16_be(port)?, info.u16_be(mask)?]));
    let mut ports = |[port, mask]: [u16; 2]| -> Option<RangeInclusive<u16>> {
        if mask == 0 {
            return None;
        }
        if protocol != 0 && !has_ports(protocol) {
            *unsaid = Some("it is of one type, code or key of its protocol");
            return None;
        }
        if mask.leading_ones() + mask.trailing_zeros() != u16::BITS {
            *unsaid = Some("its ports are of a mask that is no range");
            return None;
        }
        Some(port & mask..=port | !mask)
    };
    let (source_ports, destination_ports) = (ports(from?), ports(to?));
    Some(Selector {
        source,
        destination,
        protocol: (protocol != 0).then_some(protocol),
        source_ports,
        destination_ports,
    })
}

/// `xfrm_user_tmpl`.
fn template(bytes: &[u8], unsaid: &mut Option<&'static str>) -> Option<XfrmTemplate> {
    if bytes.len() != TEMPLATE_BYTES {
        return None;
    }
    let family = bytes.u16(24)?;
    let (protocol, mode, is_optional) = (bytes.u8(20)?, bytes.u8(48)?, bytes.u8(50)? != 0);
    if protocol != PROTOCOL_ESP {
        *unsaid = Some("it wants another protocol than ESP");
    } else if mode > 1 {
        *unsaid = Some("it wants another mode than tunnel or transport");
    } else if is_optional {
        *unsaid = Some(
            "its associations are used where there are any and not missed where there are none (level use)",
        );
    }
    Some(XfrmTemplate {
        ends: [bytes.address(28, family)?, bytes.address(0, family)?],
        spi: bytes.u32_be(16)?,
        reqid: bytes.u32(44)?,
        is_tunnel: mode == 1,
    })
}
