//! Masquerading for a program's network, where the host has a way out: one nftables table for each run.
//!
//! ```text
//! table inet weir0 {
//!     comment "weir: ipv4/conf/eth0/forwarding=0"
//!     chain postrouting {
//!         type nat hook postrouting priority srcnat
//!         ip saddr PROGRAM masquerade
//!         ip6 saddr PROGRAM masquerade
//!     }
//! }
//! ```
//!
//! It is named after the run's interface, so a table that has the name of a new interface was left behind, by a run whose guardian
//! was killed too, and is replaced. The comment notes what forwarding settings were before ([`crate::forwarding`]). So the record of a change lives where the
//! change does, in the host's namespace: [`remove`] takes the table away, then puts back what no other table notes.
//!
//! Rule: [`install`] and [`remove`] are called with [`Lock`] held, or two runs could each take the other for the last.
//!
//! Limits: notes have room for the settings of some four interfaces; those of ways out beyond that are left alone. A firewall of
//! the host's that drops forwarded packets drops these too.
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
use crate::forwarding::Change;
use crate::lock::Lock;
use crate::netlink::{explained, is_code};
use crate::sysctl;

const CHAIN: &CStr = c"postrouting";
const PRIORITY_SRCNAT: i32 = 100;
const NOTES_PREFIX: &str = "weir: ";
/// `NFTNL_UDATA_TABLE_COMMENT`: one byte of type, one of length, then text with a zero at its end.
const UDATA_COMMENT: u8 = 0;
/// What the kernel keeps for a table (`NFT_USERDATA_MAXLEN`), less the comment's own three bytes.
const NOTES_BYTES_MAX: usize = 253;
/// The answer to one request is far shorter; sequence numbers are only told apart.
const REQUESTS_MAX: u32 = 16;

/// A run's table.
struct Table {
    name: String,
    notes: Vec<(String, String)>,
}

/// What the runs of this thread's namespace have noted of its settings.
pub fn noted(_lock: &Lock) -> Result<Vec<(String, String)>> {
    Ok(tables()?.into_iter().flat_map(|table| table.notes).collect())
}

/// Masquerades what comes from `sources` wherever it leaves this thread's namespace, and makes `changes`, as many as can be
/// noted.
pub fn install(_lock: &Lock, name: &str, sources: &[IpAddr], changes: &[Change]) -> Result<()> {
    let (notes, count) = encode_notes(changes);
    let left_behind = tables()?.iter().any(|table| table.name == name);
    transact(&format!("adding the nftables table {name}, which masquerades"), |batch| {
        if left_behind {
            batch.request().op_deltable_do(&header()).encode().push_name_bytes(name.as_bytes());
        }
        let mut table = batch.request().set_create().set_excl().op_newtable_do(&header());
        table.encode().push_name_bytes(name.as_bytes()).push_userdata(&notes);
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
    })?;
    changes[..count].iter().try_for_each(|change| sysctl::write(&change.path, change.wanted))
}

/// Removes the table and puts back the settings that it was the last to note; content with it being gone.
pub fn remove(name: &str) -> Result<()> {
    let _lock = Lock::take()?;
    let (own, others): (Vec<Table>, Vec<Table>) = tables()?.into_iter().partition(|table| table.name == name);
    let Some(own) = own.into_iter().next() else { return Ok(()) };
    let removed = transact(&format!("removing the nftables table {name}"), |batch| {
        batch.request().op_deltable_do(&header()).encode().push_name_bytes(name.as_bytes());
    });
    match removed {
        Err(error) if !is_code(&error, libc::ENOENT) => return Err(error),
        _ => {}
    }
    // In reverse, as everything is put back; one that fails keeps none of the others from it.
    let mut outcome = Ok(());
    for (path, was) in own.notes.iter().rev() {
        if !others.iter().any(|other| other.notes.iter().any(|(noted, _)| noted == path)) {
            outcome = outcome.and(sysctl::write_if_there(path, was));
        }
    }
    outcome
}

/// The tables of all runs in this thread's namespace.
fn tables() -> Result<Vec<Table>> {
    let doing = || "listing the nftables tables".to_string();
    let mut tables = Vec::new();
    let mut socket = NetlinkSocket::new();
    let request = nftables::Request::new().op_gettable_dump(&header());
    let mut reply = socket.request(&request).doing(doing)?;
    while let Some(item) = reply.recv() {
        let (_, attributes) = item.map_err(|error| explained(error, doing()))?;
        let Ok(name) = attributes.get_name() else { continue };
        let notes = attributes.get_userdata().ok().and_then(decode_notes);
        tables.extend(notes.map(|notes| Table { name: name.to_string_lossy().into_owned(), notes }));
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

/// The comment that notes `changes`, and how many of them it has room for.
fn encode_notes(changes: &[Change]) -> (Vec<u8>, usize) {
    let mut text = NOTES_PREFIX.to_string();
    let mut count = 0;
    for Change { path, was, .. } in changes {
        let note = format!("{}{path}={was}", if count > 0 { " " } else { "" });
        if text.len() + note.len() > NOTES_BYTES_MAX {
            break;
        }
        text.push_str(&note);
        count += 1;
    }
    let mut bytes = vec![UDATA_COMMENT, text.len() as u8 + 1];
    bytes.extend(text.as_bytes());
    bytes.push(0);
    (bytes, count)
}

/// What [`encode_notes`] wrote; none if it is somebody else's comment.
fn decode_notes(bytes: &[u8]) -> Option<Vec<(String, String)>> {
    let text = std::str::from_utf8(bytes.get(2..)?).ok()?;
    let notes = text.trim_end_matches('\0').strip_prefix(NOTES_PREFIX)?;
    let notes = notes.split(' ').filter_map(|note| note.rsplit_once('='));
    Some(notes.map(|(path, was)| (path.to_string(), was.to_string())).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(path: &str, was: &str) -> Change {
        Change { path: path.into(), wanted: "1", was: was.into() }
    }

    #[test]
    fn notes_are_read_as_they_were_written() {
        let changes = [change("ipv4/conf/eth0.7/forwarding", "0"), change("ipv6/conf/a=b/accept_ra", "1")];
        let (bytes, count) = encode_notes(&changes);
        assert_eq!((bytes[0], usize::from(bytes[1]), count), (UDATA_COMMENT, bytes.len() - 2, 2));
        let expected: Vec<_> = changes.iter().map(|c| (c.path.clone(), c.was.clone())).collect();
        assert_eq!(decode_notes(&bytes), Some(expected));
        assert_eq!(decode_notes(&encode_notes(&[]).0), Some(vec![]));
    }

    #[test]
    fn notes_never_outgrow_their_room_and_foreign_comments_say_nothing() {
        let many: Vec<_> =
            (0..20).map(|n| change(&format!("ipv4/conf/wlxabcdefghij{n}/forwarding"), "0")).collect();
        let (bytes, count) = encode_notes(&many);
        assert!(bytes.len() <= 256 && count >= 4, "{} bytes, {count} notes", bytes.len());
        assert_eq!(decode_notes(&bytes).unwrap().len(), count);
        for foreign in [&b""[..], b"\0", b"\0\x05mine\0", b"\0\x02\xff\xfe"] {
            assert_eq!(decode_notes(foreign), None);
        }
    }
}
