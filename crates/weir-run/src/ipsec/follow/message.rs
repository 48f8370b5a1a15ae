//! The messages of the kernel's IPsec over netlink: dumps and events, read from bytes.
//!
//! | message | begins with (linux/xfrm.h) | event |
//! |---|---|---|
//! | `NEWSA`, `UPDSA` | `xfrm_usersa_info`, 224 bytes | an association, with its key |
//! | `DELSA` | `xfrm_usersa_id`, 24 | it is gone |
//! | `EXPIRE` | `xfrm_usersa_info`, 224, and `hard` | a successor is due, or it is gone |
//! | `NEWAE` | `xfrm_aevent_id`, 48 | how many packets the kernel has sealed, and which received |
//! | `NEWPOLICY`, `UPDPOLICY` | `xfrm_userpolicy_info`, 168 | a policy |
//! | `DELPOLICY` | `xfrm_userpolicy_id`, 64, the policy as an attribute | it is gone |
//! | `POLEXPIRE` | `xfrm_userpolicy_info`, 168, and `hard` | the same, by its age |
//! | `FLUSHSA`, `FLUSHPOLICY` | `xfrm_usersa_flush`, 1; nothing | all are gone |
//! | `MIGRATE`, `MAPPING` | | ends of associations are others |
//!
//! Rule: every field is looked for within its message, and one that is too short says so and nothing else; nothing of a key is in a text.
//! `follow/state.rs` judges an association, `follow/policy.rs` a policy.
//!
//! Pure. Numbers are of the machine's byte order, but for addresses, SPIs and ports. Source: linux/xfrm.h, the kernel's `xfrm_user.c`.

use std::net::IpAddr;

use weir_port::netlink_bytes::{Fields, attributes, messages};

use super::policy::policy;
use super::state::{followed, numbers};
use crate::ipsec::xfrm::{XfrmPolicy, XfrmState};

const INFO_BYTES: usize = 224;
pub(super) const POLICY_BYTES: usize = 168;
/// The offset of `xfrm_id` in `xfrm_usersa_info`.
pub(super) const INFO_ID: usize = 56;

/// Attributes (`xfrm_attr_type_t`).
pub(super) mod attribute {
    pub const ALG_AUTH: u16 = 1;
    pub const ALG_CRYPT: u16 = 2;
    pub const ALG_COMP: u16 = 3;
    pub const ENCAP: u16 = 4;
    pub const TMPL: u16 = 5;
    pub const POLICY: u16 = 7;
    pub const SEC_CTX: u16 = 8;
    pub const REPLAY_VAL: u16 = 10;
    pub const COADDR: u16 = 14;
    pub const POLICY_TYPE: u16 = 16;
    pub const ALG_AEAD: u16 = 18;
    pub const ALG_AUTH_TRUNC: u16 = 20;
    pub const MARK: u16 = 21;
    pub const TFCPAD: u16 = 22;
    pub const REPLAY_ESN_VAL: u16 = 23;
    pub const SA_EXTRA_FLAGS: u16 = 24;
    pub const OFFLOAD_DEV: u16 = 28;
    pub const SET_MARK: u16 = 29;
    pub const IF_ID: u16 = 31;
    pub const SA_DIR: u16 = 33;
    pub const NAT_KEEPALIVE_INTERVAL: u16 = 34;
}

/// An association, as the kernel tells one from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct StateId {
    pub destination: IpAddr,
    pub spi: u32,
    pub protocol: u8,
    pub mark: [u32; 2],
}

/// An association as far as it can be followed.
pub(super) enum Followed {
    State(Box<XfrmState>),
    /// Its SPI is taken, and IKE goes on (`ALLOCSPI`).
    Unfinished,
    /// The association is left out, and why.
    Left(String),
}

impl Followed {
    /// Takes from a request to update what the kernel takes from it (`xfrm_state_update`), which tells the request and not what became of the
    /// association. One that became an xfrm interface's is left out, and one that was left out stays so.
    pub fn update(&mut self, request: Followed) {
        match (&mut *self, request) {
            (Followed::State(state), Followed::State(request)) => {
                state.lifetime = request.lifetime;
                if state.udp_ports.is_some() && request.udp_ports.is_some() {
                    state.udp_ports = request.udp_ports;
                }
            }
            (Followed::State(_), left @ Followed::Left(_)) => *self = left,
            _ => {}
        }
    }
}

/// A policy as far as it can be followed.
pub(super) enum FollowedPolicy {
    Policy(Box<XfrmPolicy>),
    /// The policy cannot be expressed, and why; the packets that it names are discarded.
    Discarding(Box<XfrmPolicy>, String),
    /// The policy lets pass and cannot be expressed, and why; it is left out.
    LettingPass(Box<XfrmPolicy>, String),
    /// The policy is of a socket, or of packets that are forwarded and none of Weir's.
    PassedOver,
    /// The policy is left out, and why.
    Left(String),
}

impl FollowedPolicy {
    /// Returns whether a line says that it comes or goes: of forwarded packets it is mostly the other half of one of `in`.
    pub fn is_told(&self) -> bool {
        match self {
            FollowedPolicy::PassedOver => false,
            other => other.policy().is_none_or(|policy| policy.is_inbound.is_some()),
        }
    }

    /// The policy, unless no packet here can ever match it.
    pub fn policy(&self) -> Option<&XfrmPolicy> {
        match self {
            FollowedPolicy::Policy(policy)
            | FollowedPolicy::Discarding(policy, _)
            | FollowedPolicy::LettingPass(policy, _) => Some(policy),
            FollowedPolicy::PassedOver | FollowedPolicy::Left(_) => None,
        }
    }
}

/// The content of a message.
pub(super) enum Heard {
    State {
        id: StateId,
        at: String,
        state: Followed,
    },
    StateGone(StateId),
    StateExpired {
        id: StateId,
        is_hard: bool,
    },
    /// All associations of a protocol, or of any (0).
    StatesFlushed(u8),
    /// The kernel has sealed so many packets, and received numbers up to this one.
    Counted {
        id: StateId,
        sealed: u64,
        received: u64,
    },
    Policy {
        index: u32,
        /// True if the policy is of the main table, and not of the other.
        is_main: bool,
        at: String,
        policy: FollowedPolicy,
    },
    PolicyGone(u32),
    PolicyExpired {
        index: u32,
        is_hard: bool,
    },
    /// The policies of the main table, or the others.
    PoliciesFlushed {
        is_main: bool,
    },
    /// Associations and policies have other ends.
    Migrated,
    /// A peer behind NAT has another address.
    Mapping,
    /// A dump is at its end.
    Done,
    /// A dump is not of one moment, or messages were lost.
    Interrupted,
    Failed(i32),
    /// The message is too short.
    Unclear(&'static str),
}

/// The messages in all bytes that were received at once.
pub(super) fn read(bytes: &[u8]) -> Vec<Heard> {
    let mut heard = Vec::new();
    for (kind, flags, body) in messages(bytes) {
        const DUMP_INTERRUPTED: u16 = 0x10;
        if flags & DUMP_INTERRUPTED != 0 {
            heard.push(Heard::Interrupted);
        }
        heard.extend(message(kind, body));
    }
    heard
}

fn message(kind: u16, body: &[u8]) -> Option<Heard> {
    const NOOP: u16 = 1;
    const ERROR: u16 = 2;
    const DONE: u16 = 3;
    const OVERRUN: u16 = 4;
    type Reader = fn(&[u8]) -> Option<Heard>;
    let (name, read): (_, Reader) = match kind {
        NOOP => return None,
        ERROR => ("NLMSG_ERROR", |body| Some(Heard::Failed(body.i32(0)?.saturating_neg()))),
        DONE => return Some(Heard::Done),
        OVERRUN => return Some(Heard::Interrupted),
        0x10 | 0x1a => ("NEWSA", state),
        0x11 => ("DELSA", state_gone),
        0x13 | 0x19 => ("NEWPOLICY", policy),
        0x14 => ("DELPOLICY", policy_gone),
        0x18 => ("EXPIRE", |body| {
            let id = info_id(body, body.get(INFO_BYTES + 8..).unwrap_or_default())?;
            Some(Heard::StateExpired { id, is_hard: body.u8(INFO_BYTES)? != 0 })
        }),
        0x1b => ("POLEXPIRE", |body| {
            let is_hard = body.u8(POLICY_BYTES)? != 0;
            Some(Heard::PolicyExpired { index: body.u32(156)?, is_hard })
        }),
        0x1c => ("FLUSHSA", |body| Some(Heard::StatesFlushed(body.u8(0)?))),
        0x1d => ("FLUSHPOLICY", |body| Some(Heard::PoliciesFlushed { is_main: is_main(body) })),
        0x1e => ("NEWAE", counted),
        0x21 => return Some(Heard::Migrated),
        0x26 => return Some(Heard::Mapping),
        _ => return None,
    };
    Some(read(body).unwrap_or(Heard::Unclear(name)))
}

fn info_id(info: &[u8], with: &[u8]) -> Option<StateId> {
    let family = info.u16(212)?;
    Some(StateId {
        destination: info.address(INFO_ID, family)?,
        spi: info.u32_be(INFO_ID + 16)?,
        protocol: info.u8(INFO_ID + 20)?,
        mark: mark(with),
    })
}

/// The value and the mask of a mark; zeros where there is none.
pub(super) fn mark(attributes_of: &[u8]) -> [u32; 2] {
    let mark = find(attributes_of, attribute::MARK);
    mark.and_then(|mark| Some([mark.u32(0)?, mark.u32(4)?])).unwrap_or_default()
}

pub(super) fn find(bytes: &[u8], kind: u16) -> Option<&[u8]> {
    attributes(bytes).find(|(other, _)| *other == kind).map(|(_, value)| value)
}

fn state(body: &[u8]) -> Option<Heard> {
    let (info, with) = body.split_at_checked(INFO_BYTES)?;
    let id = info_id(info, with)?;
    let source = info.address(80, info.u16(212)?)?;
    let at = format!("SPI {:#010x} from {source} to {}", id.spi, id.destination);
    let state = followed(info, with, [source, id.destination], &at)?;
    Some(Heard::State { id, at, state })
}

fn state_gone(body: &[u8]) -> Option<Heard> {
    let (id, with) = body.split_at_checked(24)?;
    let family = id.u16(20)?;
    let id = StateId {
        destination: id.address(0, family)?,
        spi: id.u32_be(16)?,
        protocol: id.u8(22)?,
        mark: mark(with),
    };
    Some(Heard::StateGone(id))
}

fn counted(body: &[u8]) -> Option<Heard> {
    let (event, with) = body.split_at_checked(48)?;
    let id = StateId {
        destination: event.address(0, event.u16(20)?)?,
        spi: event.u32_be(16)?,
        protocol: event.u8(22)?,
        mark: mark(with),
    };
    let [sealed, received] = numbers(with)?.unwrap_or_default();
    Some(Heard::Counted { id, sealed, received })
}

/// Returns whether a policy is of the main table (`XFRMA_POLICY_TYPE`).
pub(super) fn is_main(with: &[u8]) -> bool {
    find(with, attribute::POLICY_TYPE).and_then(|kind| kind.u8(0)).unwrap_or_default() == 0
}

fn policy_gone(body: &[u8]) -> Option<Heard> {
    let (id, with) = body.split_at_checked(64)?;
    let policy = find(with, attribute::POLICY);
    let index = match policy {
        Some(policy) => policy.u32(156)?,
        None => id.u32(56)?,
    };
    Some(Heard::PolicyGone(index))
}
