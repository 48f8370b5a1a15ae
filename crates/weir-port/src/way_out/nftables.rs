//! A run's table in the kernel: written as [`NftTable`] says, found again, removed.
//!
//! The table is named after the run's interface. So a table that has the name of a new interface was left behind, by a run whose guardian
//! was killed too, and is replaced; one without an interface of its name is left behind too, and removed. The comment tells it from a table
//! of another program, and nothing is read from it: a user who may edit the ruleset has no say in what is put back.
//!
//! Limits: a firewall of the host's that drops forwarded packets drops a program's too.
//!
//! Source: `nft(8)`; kernel `net/netfilter/nf_tables_api.c`, `nft_masq.c`, `nft_meta.c`; libnftnl `include/libnftnl/udata.h` for the
//! comment's layout.

use std::ffi::CStr;
use std::net::IpAddr;

use netlink_bindings::nftables::{
    self, Chained, CmpOps, CtKeys, MetaKeys, Nfgenmsg, PayloadBase, PushExprListAttrs, Registers, VerdictCode,
};
use netlink_bindings::traits::Pusher;
use netlink_socket2::NetlinkSocket;

use super::{Family, Match, NftRule, NftTable, NftVerdict};
use crate::error::{Doing, PortError, Result};
use crate::link::Link;
use crate::netlink::{explained, is_code};

const POSTROUTING: &CStr = c"postrouting";
const FORWARD: &CStr = c"forward";
const PRIORITY_SRCNAT: i32 = 100;
const PRIORITY_FILTER: i32 = 0;
/// A comment: `NFTNL_UDATA_TABLE_COMMENT`, its length, and text with a zero at its end.
const COMMENT: &[u8] = b"\x00\x05weir\x00";
/// The register that an expression loads and the next one compares.
const REGISTER: u32 = Registers::Reg1 as u32;
/// `NF_CT_STATE_BIT(IP_CT_ESTABLISHED)` and that of `IP_CT_RELATED`.
const ANSWERS: u32 = 1 << 1 | 1 << 2;

/// Writes the table into this thread's namespace, in place of one of ours that has its name.
pub fn install(table: &NftTable) -> Result<()> {
    let name = table.name.as_bytes();
    let left_behind = tables()?.contains(&table.name);
    let (masquerading, gate) = (table.masquerading(), table.gate());
    // The batch's two ends, the table before, this one and its chains.
    let requests = 6 + masquerading.len() + gate.len();
    let doing = format!("adding the nftables table {}, a run's way out", table.name);
    transact(&doing, requests as u32, |batch| {
        if left_behind {
            batch.request().op_deltable_do(&header()).encode().push_name_bytes(name);
        }
        let mut made = batch.request().set_create().set_excl().op_newtable_do(&header());
        made.encode().push_name_bytes(name).push_userdata(COMMENT);
        push_chain(batch, name, POSTROUTING, c"nat", libc::NF_INET_POST_ROUTING, PRIORITY_SRCNAT);
        masquerading.iter().for_each(|rule| push_rule(batch, name, POSTROUTING, rule));
        if !gate.is_empty() {
            push_chain(batch, name, FORWARD, c"filter", libc::NF_INET_FORWARD, PRIORITY_FILTER);
            gate.iter().for_each(|rule| push_rule(batch, name, FORWARD, rule));
        }
    })
}

/// Returns whether the table is there, ours, with as many rules as it was given.
pub fn is_whole(table: &NftTable) -> Result<bool> {
    if !tables()?.contains(&table.name) {
        return Ok(false);
    }
    let doing = || format!("listing the rules of the nftables table {}", table.name);
    let mut request = nftables::Request::new().op_getrule_dump(&header());
    request.encode().push_table_bytes(table.name.as_bytes());
    let mut socket = NetlinkSocket::new();
    let mut reply = socket.request(&request).doing(doing)?;
    let mut rules = 0;
    while let Some(item) = reply.recv() {
        let (_, attributes) = item.map_err(|error| explained(error, doing()))?;
        rules += usize::from(attributes.get_table().is_ok_and(|of| of.to_bytes() == table.name.as_bytes()));
    }
    Ok(rules == table.masquerading().len() + table.gate().len())
}

/// Removes the tables that runs left behind whose guardians were killed too: those without an interface. Returns their names. To be called
/// with [`crate::lock::Lock`] held, as a run's interface is made before its table.
pub fn remove_left_behind() -> Result<Vec<String>> {
    let tables = match tables() {
        // This kernel has no nftables.
        Err(error) if [libc::EPROTONOSUPPORT, libc::EINVAL].iter().any(|&code| is_code(&error, code)) => {
            return Ok(Vec::new());
        }
        tables => tables?,
    };
    let mut left = Vec::new();
    for name in tables {
        match Link::by_name(&name) {
            Err(PortError::NoInterface { .. }) => {
                remove(&name)?;
                left.push(name);
            }
            other => drop(other?),
        }
    }
    Ok(left)
}

/// Removes the table; content with it being gone, or another program's.
pub fn remove(name: &str) -> Result<()> {
    if !tables()?.iter().any(|table| table == name) {
        return Ok(());
    }
    let removed = transact(&format!("removing the nftables table {name}"), 3, |batch| {
        batch.request().op_deltable_do(&header()).encode().push_name_bytes(name.as_bytes());
    });
    match removed {
        Err(error) if is_code(&error, libc::ENOENT) => Ok(()),
        removed => removed,
    }
}

/// The names of Weir's tables in this thread's namespace.
fn tables() -> Result<Vec<String>> {
    let doing = || "listing the nftables tables".to_string();
    let mut tables = Vec::new();
    let mut socket = NetlinkSocket::new();
    let request = nftables::Request::new().op_gettable_dump(&header());
    let mut reply = socket.request(&request).doing(doing)?;
    while let Some(item) = reply.recv() {
        let (_, attributes) = item.map_err(|error| explained(error, doing()))?;
        let Ok(name) = attributes.get_name() else { continue };
        if attributes.get_userdata().is_ok_and(|comment| comment == COMMENT) {
            tables.push(name.to_string_lossy().into_owned());
        }
    }
    Ok(tables)
}

fn push_chain(
    batch: &mut Chained<'static>,
    table: &[u8],
    name: &CStr,
    kind: &CStr,
    hook: i32,
    priority: i32,
) {
    let mut chain = batch.request().set_create().op_newchain_do(&header());
    let chain = chain.encode().push_table_bytes(table).push_name(name).push_type(kind);
    chain.nested_hook().push_num(hook as u32).push_priority(priority);
}

fn push_rule(batch: &mut Chained<'static>, table: &[u8], chain: &CStr, (matches, verdict): &NftRule) {
    let mut rule = batch.request().set_create().set_append().op_newrule_do(&header());
    let rule = rule.encode().push_table_bytes(table).push_chain(chain);
    let expressions = matches.iter().fold(rule.nested_expressions(), asks);
    match verdict {
        NftVerdict::Masquerade => drop(expressions.nested_elem().push_name(c"masq")),
        NftVerdict::Accept => decides(expressions, VerdictCode::Accept),
        NftVerdict::Drop => {
            let counted = expressions.nested_elem().nested_data_counter().end_nested().end_nested();
            decides(counted, VerdictCode::Drop);
        }
    }
}

/// Goes on only if the packet meets the condition.
fn asks<P: Pusher>(expressions: PushExprListAttrs<P>, asked: &Match) -> PushExprListAttrs<P> {
    let is = CmpOps::Eq;
    let number = u32::to_ne_bytes;
    match *asked {
        Match::Family(family) => is_of(expressions, family),
        Match::Source(source) => {
            let (family, offset, bytes) = match source {
                IpAddr::V4(source) => (Family::V4, 12, source.octets().to_vec()),
                IpAddr::V6(source) => (Family::V6, 8, source.octets().to_vec()),
            };
            let expressions = is_of(expressions, family);
            let expressions = payload(expressions, PayloadBase::NetworkHeader, offset, bytes.len());
            compare(expressions, is, &bytes)
        }
        Match::EtherTo(address) => {
            let expressions = payload(expressions, PayloadBase::LinkLayerHeader, 0, address.len());
            compare(expressions, is, &address)
        }
        Match::In(ifindex) => compare(meta(expressions, MetaKeys::Iif), is, &number(ifindex)),
        Match::Out(ifindex) => compare(meta(expressions, MetaKeys::Oif), is, &number(ifindex)),
        Match::NotOut(ifindex) => compare(meta(expressions, MetaKeys::Oif), CmpOps::Neq, &number(ifindex)),
        // The name is compared up to the length of the prefix.
        Match::InNamed(prefix) => compare(meta(expressions, MetaKeys::Iifname), is, prefix.as_bytes()),
        Match::OutNamed(prefix) => compare(meta(expressions, MetaKeys::Oifname), is, prefix.as_bytes()),
        Match::InKind(kind) => compare(meta(expressions, MetaKeys::Iifkind), is, &name_of(kind)),
        Match::OutKind(kind) => compare(meta(expressions, MetaKeys::Oifkind), is, &name_of(kind)),
        Match::Answer => {
            let expressions = expressions.nested_elem().nested_data_ct();
            let expressions = expressions.push_dreg(REGISTER).push_key(CtKeys::State as u32);
            let answers = expressions.end_nested().end_nested().nested_elem().nested_data_bitwise();
            let answers = answers.push_sreg(REGISTER).push_dreg(REGISTER).push_len(4);
            let answers = answers.nested_mask().push_value(&number(ANSWERS)).end_nested();
            let answers = answers.nested_xor().push_value(&number(0)).end_nested();
            compare(answers.end_nested().end_nested(), CmpOps::Neq, &number(0))
        }
    }
}

/// A kind's name as the kernel has it: with zeros up to its full length.
fn name_of(kind: &str) -> [u8; libc::IFNAMSIZ] {
    let mut name = [0; libc::IFNAMSIZ];
    name[..kind.len()].copy_from_slice(kind.as_bytes());
    name
}

fn is_of<P: Pusher>(expressions: PushExprListAttrs<P>, family: Family) -> PushExprListAttrs<P> {
    let protocol = match family {
        Family::V4 => libc::NFPROTO_IPV4,
        Family::V6 => libc::NFPROTO_IPV6,
    };
    compare(meta(expressions, MetaKeys::Nfproto), CmpOps::Eq, &[protocol as u8])
}

fn meta<P: Pusher>(expressions: PushExprListAttrs<P>, key: MetaKeys) -> PushExprListAttrs<P> {
    let meta = expressions.nested_elem().nested_data_meta();
    meta.push_dreg(REGISTER).push_key(key as u32).end_nested().end_nested()
}

fn payload<P: Pusher>(
    expressions: PushExprListAttrs<P>,
    base: PayloadBase,
    offset_bytes: u32,
    bytes: usize,
) -> PushExprListAttrs<P> {
    let payload = expressions.nested_elem().nested_data_payload().push_dreg(REGISTER);
    let payload = payload.push_base(base as u32).push_offset(offset_bytes).push_len(bytes as u32);
    payload.end_nested().end_nested()
}

fn compare<P: Pusher>(expressions: PushExprListAttrs<P>, how: CmpOps, value: &[u8]) -> PushExprListAttrs<P> {
    let compare = expressions.nested_elem().nested_data_cmp().push_sreg(REGISTER).push_op(how as u32);
    compare.nested_data().push_value(value).end_nested().end_nested().end_nested()
}

fn decides<P: Pusher>(expressions: PushExprListAttrs<P>, verdict: VerdictCode) {
    let immediate = expressions.nested_elem().nested_data_immediate();
    let data = immediate.push_dreg(Registers::RegVerdict as u32).nested_data();
    data.nested_verdict().push_code(verdict as u32);
}

fn header() -> Nfgenmsg {
    Nfgenmsg { nfgen_family: libc::NFPROTO_INET as u8, ..Default::default() }
}

/// Sends one transaction: all of it or nothing.
fn transact(doing: &str, requests_max: u32, fill: impl FnOnce(&mut Chained<'static>)) -> Result<()> {
    let mut edge = Nfgenmsg::new();
    edge.set_res_id(libc::NFNL_SUBSYS_NFTABLES as u16);
    let mut socket = NetlinkSocket::new();
    let mut batch = Chained::new(socket.reserve_seq(requests_max));
    batch.request().op_batch_begin_do(&edge);
    fill(&mut batch);
    batch.request().op_batch_end_do(&edge);
    let batch = batch.finalize();
    let mut reply = socket.request_chained(&batch).doing(|| doing.to_string())?;
    reply.recv_all().map_err(|error| explained(error, doing.to_string()))
}
