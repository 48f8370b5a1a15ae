//! Masquerading for a program's network, where the host has a way out: one nftables table for each run.
//!
//! ```text
//! table inet weir0 {
//!     comment "weir"
//!     chain postrouting {
//!         type nat hook postrouting priority srcnat
//!         ip saddr PROGRAM masquerade
//!         ip6 saddr PROGRAM masquerade
//!     }
//! }
//! ```
//!
//! It is named after the run's interface, so a table that has the name of a new interface was left behind, by a run whose guardian
//! was killed too, and is replaced. The comment tells it from somebody else's, and nothing is read from it: who may edit the ruleset
//! is not asked what to put back.
//!
//! Limits: a firewall of the host's that drops forwarded packets drops these too. Who flushes the ruleset ends masquerading.
//!
//! Source: `nft(8)`; kernel `net/netfilter/nft_masq.c`; libnftnl `include/libnftnl/udata.h` for the comment's layout.

use std::ffi::CStr;
use std::net::IpAddr;

use netlink_bindings::nftables::{
    self, Chained, CmpOps, MetaKeys, Nfgenmsg, PayloadBase, PushExprListAttrs, Registers,
};
use netlink_bindings::traits::Pusher;
use netlink_socket2::NetlinkSocket;

use crate::error::{Doing, Result};
use crate::netlink::{explained, is_code};

const CHAIN: &CStr = c"postrouting";
const PRIORITY_SRCNAT: i32 = 100;
/// A comment: `NFTNL_UDATA_TABLE_COMMENT`, its length, and text with a zero at its end.
const COMMENT: &[u8] = b"\x00\x05weir\x00";
/// The answer to one request is far shorter; sequence numbers are only told apart.
const REQUESTS_MAX: u32 = 16;

/// Masquerades what comes from `sources` wherever it leaves this thread's namespace.
pub fn install(name: &str, sources: &[IpAddr]) -> Result<()> {
    let left_behind = tables()?.iter().any(|table| table == name);
    transact(&format!("adding the nftables table {name}, which masquerades"), |batch| {
        if left_behind {
            batch.request().op_deltable_do(&header()).encode().push_name_bytes(name.as_bytes());
        }
        let mut table = batch.request().set_create().set_excl().op_newtable_do(&header());
        table.encode().push_name_bytes(name.as_bytes()).push_userdata(COMMENT);
        let mut chain = batch.request().set_create().op_newchain_do(&header());
        chain
            .encode()
            .push_table_bytes(name.as_bytes())
            .push_name(CHAIN)
            .push_type(c"nat")
            .nested_hook()
            .push_num(libc::NF_INET_POST_ROUTING as u32)
            .push_priority(PRIORITY_SRCNAT);
        for source in sources {
            let mut rule = batch.request().set_create().set_append().op_newrule_do(&header());
            let rule = rule.encode().push_table_bytes(name.as_bytes()).push_chain(CHAIN);
            masquerade(rule.nested_expressions(), *source);
        }
    })
}

/// Removes the table; content with it being gone, or somebody else's.
pub fn remove(name: &str) -> Result<()> {
    if !tables()?.iter().any(|table| table == name) {
        return Ok(());
    }
    let removed = transact(&format!("removing the nftables table {name}"), |batch| {
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

/// `meta nfproto FAMILY FAMILY saddr SOURCE masquerade`.
fn masquerade<P: Pusher>(expressions: PushExprListAttrs<P>, source: IpAddr) {
    let (protocol, offset_bytes, bytes) = match source {
        IpAddr::V4(source) => (libc::NFPROTO_IPV4, 12, source.octets().to_vec()),
        IpAddr::V6(source) => (libc::NFPROTO_IPV6, 8, source.octets().to_vec()),
    };
    let expressions = expressions
        .nested_elem()
        .nested_data_meta()
        .push_dreg(Registers::Reg1 as u32)
        .push_key(MetaKeys::Nfproto as u32)
        .end_nested()
        .end_nested();
    let expressions = equals(expressions, &[protocol as u8])
        .nested_elem()
        .nested_data_payload()
        .push_dreg(Registers::Reg1 as u32)
        .push_base(PayloadBase::NetworkHeader as u32)
        .push_offset(offset_bytes)
        .push_len(bytes.len() as u32)
        .end_nested()
        .end_nested();
    equals(expressions, &bytes).nested_elem().push_name(c"masq");
}

fn equals<P: Pusher>(expressions: PushExprListAttrs<P>, value: &[u8]) -> PushExprListAttrs<P> {
    expressions
        .nested_elem()
        .nested_data_cmp()
        .push_sreg(Registers::Reg1 as u32)
        .push_op(CmpOps::Eq as u32)
        .nested_data()
        .push_value(value)
        .end_nested()
        .end_nested()
        .end_nested()
}

fn header() -> Nfgenmsg {
    Nfgenmsg { nfgen_family: libc::NFPROTO_INET as u8, ..Default::default() }
}

/// One transaction: all of it or nothing.
fn transact(doing: &str, fill: impl FnOnce(&mut Chained<'static>)) -> Result<()> {
    let mut edge = Nfgenmsg::new();
    edge.set_res_id(libc::NFNL_SUBSYS_NFTABLES as u16);
    let mut socket = NetlinkSocket::new();
    let mut batch = Chained::new(socket.reserve_seq(REQUESTS_MAX));
    batch.request().op_batch_begin_do(&edge);
    fill(&mut batch);
    batch.request().op_batch_end_do(&edge);
    let batch = batch.finalize();
    let mut reply = socket.request_chained(&batch).doing(|| doing.to_string())?;
    reply.recv_all().map_err(|error| explained(error, doing.to_string()))
}
