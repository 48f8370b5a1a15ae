//! A run's table in the kernel: written as [`NftTable`] says, found again, removed.
//!
//! The table is named after the run's interface. One of a name that notes another interface that is there is of a run whose interface somebody
//! renamed: the new one is then named `NAME.NUMBER`. Any other table that has the name of a new interface was left behind, by a run whose
//! guardian was killed too, and is replaced; one without an interface is left behind too, and removed. The comment tells it from a table of
//! another program. Only the number of the interface is read from it, by which one that was renamed is found: a user who may edit the ruleset has
//! no say in what is put back.
//!
//! Limits: a firewall of the host's that drops forwarded packets drops a program's too. A table that was left behind stays while another
//! interface has the number of its own.
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
use crate::sys;

const POSTROUTING: &CStr = c"postrouting";
const FORWARD: &CStr = c"forward";
const PRIORITY_SRCNAT: i32 = 100;
const PRIORITY_FILTER: i32 = 0;
/// The kind of a comment among the data of a table's user.
const NFTNL_UDATA_TABLE_COMMENT: u8 = 0;
/// The word with which the comment begins; the number of the run's interface follows.
const COMMENT: &str = "weir";
/// The register that an expression loads and the next one compares.
const REGISTER: u32 = Registers::Reg1 as u32;
/// `NF_CT_STATE_BIT(IP_CT_ESTABLISHED)` and that of `IP_CT_RELATED`.
const ANSWERS: u32 = 1 << 1 | 1 << 2;

/// The name of a table for the run with this interface of this thread's namespace.
pub fn name_for(link: &Link) -> Result<String> {
    for found in tables()?.unwrap_or_default() {
        if found.name == link.name && found.is_anothers(link.ifindex)? {
            return Ok(format!("{}.{}", link.name, link.ifindex));
        }
    }
    Ok(link.name.clone())
}

/// Writes the table into this thread's namespace, in place of one of ours that has its name.
pub fn install(table: &NftTable) -> Result<()> {
    install_beside(table, tables)
}

/// Writes the table where `tables` lists those that are there; again, if somebody removed one of our name in between.
fn install_beside(table: &NftTable, mut tables: impl FnMut() -> Result<Option<Vec<Found>>>) -> Result<()> {
    let mut replace = || {
        let tables = tables()?.ok_or_else(|| PortError::Unsupported {
            what: "nftables, by which a run gets its way out".into(),
            fix: "load nf_tables, or build the kernel with CONFIG_NF_TABLES".into(),
        })?;
        let found = tables.iter().find(|found| found.name == table.name);
        write(table, found.map_or(Ok(false), |found| Ok(!found.is_anothers(table.ifindex)?))?)
    };
    match replace() {
        Err(error) if is_code(&error, libc::ENOENT) => replace(),
        Err(error) if is_code(&error, libc::EEXIST) => Err(PortError::Unsuitable {
            name: table.name.clone(),
            why: format!(
                "gets no way out, as another program or run has an nftables table of its name: remove that with `nft delete table inet {}`",
                table.name
            ),
        }),
        written => written,
    }
}

/// Writes the table, in place of one of its name if one was `left_behind`.
fn write(table: &NftTable, left_behind: bool) -> Result<()> {
    let name = table.name.as_bytes();
    let (masquerading, gate) = (table.masquerading(), table.gate());
    // The batch's two ends, the table before, this one and its chains.
    let requests = 6 + masquerading.len() + gate.len();
    let doing = format!("adding the nftables table {}, a run's way out", table.name);
    transact(&doing, requests as u32, |batch| {
        if left_behind {
            batch.request().op_deltable_do(&header()).encode().push_name_bytes(name);
        }
        let mut made = batch.request().set_create().set_excl().op_newtable_do(&header());
        made.encode().push_name_bytes(name).push_userdata(&comment(table.ifindex));
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
    let is_it = |found: &Found| found.name == table.name && found.ifindex == Some(table.ifindex);
    if !tables()?.unwrap_or_default().iter().any(is_it) {
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
    let mut left = Vec::new();
    for Found { name, ifindex } in tables()?.unwrap_or_default() {
        if !is_there(Link::by_name(&name))?
            && !ifindex.map_or(Ok(false), |of| is_there(Link::by_index(of)))?
        {
            remove(&name)?;
            left.push(name);
        }
    }
    Ok(left)
}

/// Returns whether a table of Weir's has this name.
pub fn is_any_called(name: &str) -> Result<bool> {
    Ok(tables()?.unwrap_or_default().iter().any(|found| found.name == name))
}

/// Removes the table; content with it being gone, or another program's. Returns whether it was there.
pub fn remove(name: &str) -> Result<bool> {
    if !is_any_called(name)? {
        return Ok(false);
    }
    let removed = transact(&format!("removing the nftables table {name}"), 3, |batch| {
        batch.request().op_deltable_do(&header()).encode().push_name_bytes(name.as_bytes());
    });
    match removed {
        Err(error) if is_code(&error, libc::ENOENT) => Ok(false),
        removed => removed.map(|()| true),
    }
}

/// A table of Weir's.
struct Found {
    name: String,
    /// The number of the run's interface; `None` in a table of an earlier version.
    ifindex: Option<u32>,
}

impl Found {
    /// Returns whether it is of another interface than the one of number `own`, and that is there.
    fn is_anothers(&self, own: u32) -> Result<bool> {
        let other = self.ifindex.filter(|&ifindex| ifindex != own);
        other.map_or(Ok(false), |other| is_there(Link::by_index(other)))
    }
}

fn is_there(link: Result<Link>) -> Result<bool> {
    match link {
        Err(PortError::NoInterface { .. }) => Ok(false),
        link => link.map(|_| true),
    }
}

/// Weir's tables in this thread's namespace; `None` where the kernel has no nftables.
fn tables() -> Result<Option<Vec<Found>>> {
    // The netlink library says of a socket that cannot be made that the right to is missing, whatever the reason.
    let is_known = || match sys::socket(libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_NETFILTER) {
        Err(error) => error.raw_os_error() != Some(libc::EPROTONOSUPPORT),
        Ok(_) => true,
    };
    match listed() {
        Err(error) if is_code(&error, libc::EINVAL) || !is_known() => Ok(None),
        tables => tables.map(Some),
    }
}

fn listed() -> Result<Vec<Found>> {
    let doing = || "listing the nftables tables".to_string();
    let mut tables = Vec::new();
    let mut socket = NetlinkSocket::new();
    let request = nftables::Request::new().op_gettable_dump(&header());
    let mut reply = socket.request(&request).doing(doing)?;
    while let Some(item) = reply.recv() {
        let (_, attributes) = item.map_err(|error| explained(error, doing()))?;
        let Ok(name) = attributes.get_name() else { continue };
        if let Some(ifindex) = attributes.get_userdata().ok().and_then(noted) {
            tables.push(Found { name: name.to_string_lossy().into_owned(), ifindex });
        }
    }
    Ok(tables)
}

/// The comment of a table whose run has the interface of this number: its kind, its length, and text with a zero at its end.
fn comment(ifindex: u32) -> Vec<u8> {
    let text = format!("{COMMENT} {ifindex}\0");
    [&[NFTNL_UDATA_TABLE_COMMENT, text.len() as u8], text.as_bytes()].concat()
}

/// The number in a comment of Weir's, if it is one and has one.
fn noted(comment: &[u8]) -> Option<Option<u32>> {
    let [NFTNL_UDATA_TABLE_COMMENT, length, text @ .., 0] = comment else { return None };
    let text = std::str::from_utf8(text).ok().filter(|text| text.len() + 1 == usize::from(*length))?;
    match text.strip_prefix(COMMENT)? {
        "" => Some(None),
        number => Some(Some(number.strip_prefix(' ')?.parse().ok()?)),
    }
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

#[cfg(test)]
mod tests {
    use std::process::Command;

    use seccompiler::SeccompCmpArgLen::Dword;
    use seccompiler::{
        BpfProgram, SeccompAction, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule, apply_filter,
    };

    use super::*;
    use crate::link;
    use crate::netns::NetNs;
    use crate::probe::scratch::{self, ScratchPair};

    fn table(link: &Link) -> NftTable {
        let sources = vec!["192.0.2.1".parse().unwrap()];
        NftTable { name: link.name.clone(), ifindex: link.ifindex, sources, opened: Vec::new() }
    }

    #[test]
    fn a_comment_has_a_number_or_none_and_is_no_other_programs() {
        assert_eq!(noted(&comment(17)), Some(Some(17)));
        assert_eq!(noted(b"\x00\x05weir\x00"), Some(None), "of an earlier version");
        for other in
            [&b"\x00\x07weir:1\x00"[..], b"\x00\x06weir1\x00", b"\x00\x09weir\x00", b"\x01\x05weir\x00", b""]
        {
            assert_eq!(noted(other), None, "{other:?}");
        }
    }

    #[test]
    fn a_table_that_was_removed_meanwhile_is_written_all_the_same() {
        if !sys::is_root() {
            return;
        }
        let is_there = scratch::run(|answer| {
            let table = table(&Link::by_name("lo")?);
            let mut lists = 0;
            install_beside(&table, || {
                lists += 1;
                let gone = Found { name: table.name.clone(), ifindex: None };
                if lists == 1 { Ok(Some(vec![gone])) } else { tables() }
            })?;
            answer(is_whole(&table)?);
            Ok(())
        });
        assert!(is_there.unwrap());
    }

    #[test]
    fn a_table_of_another_program_stays_and_is_named_with_the_cure() {
        if !sys::is_root() {
            return;
        }
        let (told, is_there) = scratch::run(|answer| {
            let table = table(&Link::by_name("lo")?);
            let other = |make: fn(nftables::Request) -> nftables::Request| {
                transact("making a table of another program", 3, |batch| {
                    make(batch.request())
                        .op_newtable_do(&header())
                        .encode()
                        .push_name_bytes(table.name.as_bytes());
                })
            };
            other(|request| request.set_create().set_excl())?;
            let told = install(&table).unwrap_err().to_string();
            answer((told, other(|request| request).is_ok()));
            Ok(())
        })
        .unwrap();
        assert!(told.contains("`nft delete table inet lo`"), "{told}");
        assert!(is_there);
    }

    #[test]
    fn a_table_of_another_run_stays_and_has_its_own_name() {
        if !sys::is_root() {
            return;
        }
        let told = scratch::run(|answer| {
            let first = Link::by_name("lo")?;
            let second = ScratchPair::new(c"weir%d", &NetNs::current()?)?.receiver;
            let renamed = NftTable { name: second.name.clone(), ..table(&first) };
            install(&renamed)?;
            let name = name_for(&second)?;
            let is_whole_by_name = is_whole(&table(&second))?;
            let refused = install(&table(&second)).is_err();
            install(&NftTable { name: name.clone(), ..table(&second) })?;
            let are_there = is_whole(&renamed)?;
            remove(&second.name)?;
            answer((name == format!("weir0.{}", second.ifindex), is_whole_by_name, refused, are_there));
            Ok(())
        });
        assert_eq!(told.unwrap(), (true, false, true, true));
    }

    #[test]
    fn a_kernel_without_nftables_has_no_table_to_remove() {
        if !sys::is_root() {
            return;
        }
        let told = scratch::run(|answer| {
            let of_netfilter =
                SeccompCondition::new(2, Dword, SeccompCmpOp::Eq, libc::NETLINK_NETFILTER as u64);
            let rule = SeccompRule::new(vec![of_netfilter.unwrap()]).unwrap();
            let refused = SeccompAction::Errno(libc::EPROTONOSUPPORT as u32);
            let arch = std::env::consts::ARCH.try_into().unwrap();
            let rules = [(libc::SYS_socket, vec![rule])].into();
            let filter = SeccompFilter::new(rules, SeccompAction::Allow, refused, arch).unwrap();
            // It holds for this thread alone.
            apply_filter(&BpfProgram::try_from(filter).unwrap()).unwrap();
            remove("weir0")?;
            let installed = install(&table(&Link::by_name("lo")?));
            answer((remove_left_behind()?, installed.unwrap_err().to_string()));
            Ok(())
        });
        let (removed, told) = told.unwrap();
        assert!(removed.is_empty() && told.starts_with("this kernel lacks nftables"), "{removed:?} {told}");
    }

    #[test]
    fn a_table_goes_with_its_interface_and_not_with_the_name() {
        if !sys::is_root() {
            return;
        }
        let removed = scratch::run(|answer| {
            let link = ScratchPair::new(c"weir%d", &NetNs::current()?)?.receiver;
            install(&table(&link))?;
            let mut removed = vec![remove_left_behind()?];
            link::set_up(link.ifindex, false)?;
            let rename = ["link", "set", &link.name, "name", "renamed"];
            assert!(Command::new("ip").args(rename).status().unwrap().success());
            removed.push(remove_left_behind()?);
            link::delete(link.ifindex)?;
            removed.push(remove_left_behind()?);
            answer(removed);
            Ok(())
        });
        assert_eq!(removed.unwrap(), [vec![], vec![], vec!["weir0".to_string()]]);
    }
}
