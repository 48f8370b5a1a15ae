//! An association as the kernel tells it (`xfrm_usersa_info`, 224 bytes, and attributes), and how far it can be followed.
//!
//! ```text
//! 0 selector  56 destination, SPI, protocol  80 source  96 limits  160 what passed  204 sequence, reqid  212 family, mode, window, flags
//! ```
//!
//! Rule: an association that no packet of Weir's can match, because none has a mark, an interface number or a label, is left out, and so is
//! one that Weir does not do; the reason is a sentence without a key.
//!
//! Pure. Source: linux/xfrm.h, the kernel's `copy_to_user_state_extra`.

use std::net::IpAddr;

use weir_core::rate::NS_PER_S;
use weir_ipsec::lifetime::{Lifetime, Limits};
use weir_port::netlink_bytes::Fields;
use zeroize::Zeroizing;

use super::message::{Followed, INFO_ID, attribute, find, mark};
use super::policy::selector;
use crate::ipsec::xfrm::{XfrmKey, XfrmState};

const ALGORITHM_NAME_BYTES: usize = 64;
const PROTOCOL_ESP: u8 = 50;
const FLAG_NOPMTUDISC: u8 = 4;
const FLAG_ESN: u8 = 128;
const ESP_IN_UDP: u16 = 2;
const OFFLOAD_INBOUND: u8 = 2;
const OFFLOAD_PACKET: u8 = 4;
const LIFETIME_INFINITE: u64 = u64::MAX;

/// The association as far as it can be followed; none if a field is missing.
pub(super) fn followed(info: &[u8], with: &[u8], ends: [IpAddr; 2], at: &str) -> Option<Followed> {
    let left = |why: &str| Some(Followed::Left(format!("{at}: {why}")));
    let [mark, _] = mark(with);
    let protocol = info.u8(INFO_ID + 20)?;
    if protocol != PROTOCOL_ESP {
        return left(&format!("protocol {protocol} is not built: Weir does ESP alone"));
    }
    let of = |kind| find(with, kind);
    if of(attribute::ALG_COMP).is_some() {
        return left("compression is not built: Weir does ESP alone");
    }
    let mut keys = [None, None, None];
    for (key, (kind, len_at)) in keys.iter_mut().zip([
        (attribute::ALG_AEAD, ALGORITHM_NAME_BYTES + 8),
        (attribute::ALG_AUTH_TRUNC, ALGORITHM_NAME_BYTES + 8),
        (attribute::ALG_CRYPT, ALGORITHM_NAME_BYTES + 4),
    ]) {
        *key = match of(kind) {
            Some(algorithm) => Some(key_of(algorithm, len_at, at)?),
            None => None,
        };
    }
    let [aead, mut auth, enc] = keys;
    // `ALG_AUTH` has the same key again, or one whose ICV is not cut.
    if let (None, Some(whole)) = (&auth, of(attribute::ALG_AUTH)) {
        auth = Some(key_of(whole, ALGORITHM_NAME_BYTES + 4, at)?);
    }
    if aead.is_none() && auth.is_none() && enc.is_none() {
        return Some(Followed::Unfinished);
    }
    let is_tunnel = match info.u8(214)? {
        0 => false,
        1 => true,
        mode => {
            return left(&format!("mode {} is not built: Weir has tunnel and transport", mode_name(mode)));
        }
    };
    if mark != 0 {
        return left(&format!("it is of packets with mark {mark:#x}, and none of Weir's has one"));
    }
    if let Some(number) = of(attribute::IF_ID).and_then(|number| number.u32(0)).filter(|number| *number > 0) {
        return left(&format!("it is of xfrm interface {number} (if_id), which no packet of Weir's is of"));
    }
    if of(attribute::SEC_CTX).is_some() {
        return left("it is of packets with a security label, and none of Weir's has one");
    }
    // `xfrm_user_offload`: the device, and flags.
    let offload = of(attribute::OFFLOAD_DEV).and_then(|offload| offload.u8(4)).unwrap_or_default();
    if offload & OFFLOAD_PACKET != 0 && offload & OFFLOAD_INBOUND == 0 {
        return left(
            "its device numbers packets by itself (offload mode packet), so nobody knows which numbers its key was used with",
        );
    }
    let udp_ports = match of(attribute::ENCAP) {
        None => None,
        Some(encap) if encap.u16(0)? == ESP_IN_UDP => Some([encap.u16_be(2)?, encap.u16_be(4)?]),
        Some(_) => return left("of encapsulations Weir has espinudp alone (RFC 3948)"),
    };
    let mut unsaid = None;
    // No family is that of any packet, as `af-unspec` asks for it; all addresses of one family are of that one alone.
    let selector = match info.u16(40)? {
        0 => None,
        _ => Some(selector(info, &mut unsaid)?),
    };
    if let Some(why) = unsaid {
        return left(&format!("what it takes (sel) cannot be said: {why}"));
    }
    let (flags, extended) = (info.u8(216)?, of(attribute::REPLAY_ESN_VAL));
    let is_inbound = of(attribute::SA_DIR).and_then(|direction| match direction.u8(0)? {
        1 => Some(true),
        2 => Some(false),
        _ => None,
    });
    let window = match extended {
        Some(extended) => extended.u32(20)?,
        None => info.u8(215)?.into(),
    };
    let Some([sealed, received]) = numbers(with)? else {
        return left("the kernel does not tell its counters, and may have sent with its key");
    };
    // Packets that passed; of an inbound association those received.
    let passed = info.u64(168)?;
    Some(Followed::State(Box::new(XfrmState {
        at: at.into(),
        window_at: at.into(),
        sealed_at: at.into(),
        ends,
        selector,
        spi: info.u32_be(INFO_ID + 16)?,
        reqid: info.u32(208)?,
        is_tunnel,
        is_inbound,
        window,
        is_extended: flags & FLAG_ESN != 0,
        is_df_clear: flags & FLAG_NOPMTUDISC != 0,
        aead,
        auth,
        enc,
        udp_ports,
        keepalive_ns: of(attribute::NAT_KEEPALIVE_INTERVAL)
            .and_then(|seconds| seconds.u32(0))
            .filter(|seconds| *seconds > 0)
            .map(|seconds| u64::from(seconds) * NS_PER_S),
        sealed: sealed.max(passed),
        received,
        lifetime: lifetime(info)?,
        left_out: left_out(info, with, at)?,
    })))
}

/// A sentence on each property that is left out, by the names that `ip xfrm state` has for them.
fn left_out(info: &[u8], with: &[u8], at: &str) -> Option<Vec<String>> {
    const FLAGS: [(u8, &str); 4] = [(1, "noecn"), (2, "decap-dscp"), (8, "wildrecv"), (16, "icmp")];
    const ATTRIBUTES: [(u16, &str); 4] = [
        (attribute::COADDR, "coa"),
        (attribute::TFCPAD, "tfcpad"),
        (attribute::SA_EXTRA_FLAGS, "extra_flag"),
        (attribute::SET_MARK, "output-mark"),
    ];
    let flags = info.u8(216)?;
    let flags = FLAGS.iter().filter(|(bit, _)| flags & bit != 0);
    let attributes = ATTRIBUTES.iter().filter(|(kind, _)| find(with, *kind).is_some());
    let dev = (info.i32(48)? != 0).then(|| format!("{at}: dev is left out: an esp has one port outside"));
    let names =
        flags.map(|(_, name)| format!("flag {name}")).chain(attributes.map(|(_, name)| name.to_string()));
    Some(names.map(|name| format!("{at}: {name} is left out")).chain(dev).collect())
}

fn mode_name(mode: u8) -> &'static str {
    match mode {
        2 => "ro (route optimization)",
        3 => "in_trigger",
        4 => "beet",
        5 => "iptfs",
        _ => "of this kernel",
    }
}

/// The highest numbers that the kernel has sent and received, where it says them.
pub(super) fn numbers(with: &[u8]) -> Option<Option<[u64; 2]>> {
    if let Some(extended) = find(with, attribute::REPLAY_ESN_VAL) {
        let number = |low| Some(u64::from(extended.u32(low + 8)?) << 32 | u64::from(extended.u32(low)?));
        return Some(Some([number(4)?, number(8)?]));
    }
    match find(with, attribute::REPLAY_VAL) {
        Some(replay) => Some(Some([replay.u32(0)?.into(), replay.u32(4)?.into()])),
        None => Some(None),
    }
}

/// `xfrm_algo`, `xfrm_algo_auth` or `xfrm_algo_aead`: a name, the key's bits, in the last two those of the ICV, and the key at `len_at`.
fn key_of(algorithm: &[u8], key_at: usize, at: &str) -> Option<XfrmKey> {
    let name = algorithm.get(..ALGORITHM_NAME_BYTES)?;
    let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
    let bits = algorithm.u32(ALGORITHM_NAME_BYTES)?;
    let icv_bits =
        if key_at > ALGORITHM_NAME_BYTES + 4 { algorithm.u32(ALGORITHM_NAME_BYTES + 4)? } else { 0 };
    let key = algorithm.get(key_at..)?.get(..bits.div_ceil(8) as usize)?;
    let mut digits = Zeroizing::new(String::with_capacity(2 * key.len()));
    let digit = |digit: u8| char::from_digit(digit.into(), 16).unwrap_or_default();
    for byte in key {
        digits.push(digit(byte >> 4));
        digits.push(digit(byte & 15));
    }
    // The name is printed, so it is kept to graphic characters.
    let name = String::from_utf8_lossy(name).chars().filter(|char| char.is_ascii_graphic()).collect();
    Some(XfrmKey { at: at.into(), name, digits, icv_bits })
}

/// `xfrm_lifetime_cfg` of an association.
fn lifetime(info: &[u8]) -> Option<Lifetime> {
    let limit = |at: usize| {
        let limit = info.u64(at)?;
        Some((limit != LIFETIME_INFINITE && limit != 0).then_some(limit))
    };
    let limits = |first: usize| {
        Some(Limits {
            bytes: limit(96 + first)?,
            packets: limit(112 + first)?,
            time_ns: limit(128 + first)?.map(|seconds| seconds.saturating_mul(NS_PER_S)),
        })
    };
    Some(Lifetime { soft: limits(0)?, hard: limits(8)? })
}
