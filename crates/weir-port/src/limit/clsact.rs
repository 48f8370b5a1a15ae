//! Programs of ours beside the queue of an interface, which stay when the queue goes: filters under clsact.
//!
//! Rule: clsact is made where there is none, and removed with the last filter if a limit has made it: each limit that uses it has that in
//! its record, so the last to go removes it. The kernel swaps the queue of the interface for a moment where it makes or removes clsact, and
//! drops what is sent then, as with any qdisc: the moment is short ([`Realtime`]), and the drops are counted by the device.
//!
//! Owner: the kernel, with the interface. Limits: a move to another network namespace takes the filters off; so does removing clsact.
//!
//! Source: tc-bpf(8); kernel `net/sched/sch_ingress.c`.

use std::io;

use netlink_bindings::tc::{self, Tcmsg};
use netlink_socket2::NetlinkSocket;

use super::NetnsInterface;
use super::filter::{Spot, content_if_gone};
use super::memory::{self, Memory};
use crate::bpf::program::Program;
use crate::error::{Doing, PortError, Result};
use crate::netlink::{RequestBatch, acknowledged};
use crate::netns::NetNs;
use crate::qdisc;
use crate::sys::Realtime;

/// The parent of filters on packets that arrive.
pub const INGRESS: u32 = 0xffff_fff2;
/// The parent of filters on packets that leave, before they come to the queue.
pub const EGRESS: u32 = 0xffff_fff3;
/// `TC_ACT_UNSPEC`: the next program decides.
pub const ACT_NEXT: i32 = -1;
const CLSACT: u32 = 0xffff_fff1;
const HANDLE: u32 = 0xffff_0000;

/// Attaches a program to an interface, in the place of ours if there is one, with clsact if there is none.
///
/// It is one call, and the kernel carries its requests out before it lets the process be killed: clsact is never there without the program
/// whose memory says that it is ours. If that fails, clsact goes too if it `is_made` by us and no filter is in it.
pub fn attach(spot: Spot, place: &NetnsInterface, program: &Program, is_made: bool) -> Result<()> {
    let ifindex = place.link.ifindex;
    let doing = || format!("attaching a program beside the queue of interface number {ifindex}");
    let id = program.id().doing(doing)?;
    let attached = place.netns.run(|| {
        let mut batch = RequestBatch::new();
        spot.push_detach(&mut batch, ifindex);
        push_make(&mut batch, ifindex);
        spot.push_attach(&mut batch, ifindex, program);
        // The first request fails where no program of ours is, and the second where clsact is.
        let swap = Realtime::begin();
        let sent = batch.send(doing);
        drop(swap);
        if spot.program_id(ifindex)? == Some(id) {
            return Ok(());
        }
        let lost = || PortError::Kernel { doing: doing(), source: io::ErrorKind::NotFound.into() };
        Err(sent.err().unwrap_or_else(lost))
    });
    if attached.is_err() {
        // The first error is reported; an error of the removal is not.
        let _ = detach(spot, place, is_made);
    }
    attached
}

/// Takes our program off; clsact with it if it `is_made` by us and no other filter is in it.
pub fn detach(spot: Spot, place: &NetnsInterface, is_made: bool) -> Result<()> {
    let ifindex = place.link.ifindex;
    place.netns.run(|| {
        let other = Spot { parent: if spot.parent == INGRESS { EGRESS } else { INGRESS }, ..spot };
        match is_made && spot.is_only_ours(ifindex)? && other.is_unused(ifindex)? {
            true => remove(ifindex),
            false => spot.detach(ifindex),
        }
    })
}

/// Returns whether an interface has clsact.
pub fn is_at(place: &NetnsInterface) -> Result<bool> {
    place.netns.run(|| Ok(all()?.contains(&place.link.ifindex)))
}

/// The memory of the limit that our program at an interface works on; the limit may be gone.
pub fn memory_at(spot: Spot, place: &NetnsInterface) -> Result<Option<Memory>> {
    place.netns.run(|| memory_here(spot, place.link.ifindex))
}

/// The interfaces of a namespace that have our program, each with the memory that it works on.
pub fn memories(spot: Spot, netns: &NetNs) -> Result<Vec<(u32, Memory)>> {
    netns.run(|| {
        let mut found = Vec::new();
        for ifindex in all()? {
            found.extend(memory_here(spot, ifindex)?.map(|memory| (ifindex, memory)));
        }
        Ok(found)
    })
}

fn memory_here(spot: Spot, ifindex: u32) -> Result<Option<Memory>> {
    Ok(memory::all_at(spot, ifindex)?.and_then(|memories| memories.into_iter().next()))
}

/// Adds the request that makes clsact at an interface, and fails where it is.
fn push_make(batch: &mut RequestBatch, ifindex: u32) {
    let mut request = tc::Request::new().set_create().set_excl().op_newqdisc_do(&message(ifindex));
    drop(request.encode().nested_options_clsact());
    batch.push(&request);
}

fn remove(ifindex: u32) -> Result<()> {
    let request = tc::Request::new().op_delqdisc_do(&message(ifindex));
    let doing = || format!("removing clsact from interface number {ifindex}");
    let _swap = Realtime::begin();
    content_if_gone(acknowledged(&mut NetlinkSocket::new(), &request, doing))
}

fn message(ifindex: u32) -> Tcmsg {
    Tcmsg { ifindex: ifindex as i32, handle: HANDLE, parent: CLSACT, ..Default::default() }
}

/// The interfaces of this thread's namespace that have clsact.
fn all() -> Result<Vec<u32>> {
    let mut found = Vec::new();
    qdisc::each_of_all(&mut |header, _| {
        if header.parent == CLSACT {
            found.push(header.ifindex as u32);
        }
    })?;
    Ok(found)
}
