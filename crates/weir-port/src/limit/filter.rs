//! Programs that a queue, or one direction of an interface, runs on its packets. They are attached by netlink and stay as long as that is
//! there.
//!
//! Source: tc-bpf(8); kernel `net/sched/cls_bpf.c`, `net/sched/cls_api.c`.

use std::ffi::CStr;

use netlink_bindings::tc::{self, Tcmsg};
use netlink_socket2::NetlinkSocket;

use crate::bpf::program::Program;
use crate::error::{Doing, PortError, Result};
use crate::netlink::{RequestBatch, explained, is_code};

const ACT_DIRECT: u32 = 1;
const ETH_P_ALL: u32 = 0x0003;
/// The number of our filter among those of its priority.
const FILTER: u32 = 1;

/// The place where programs are attached, and the key of ours there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spot {
    /// The qdisc, or the direction of an interface.
    pub parent: u32,
    /// The priority; programs of lower numbers run first.
    pub priority: u32,
    /// The name of the program.
    pub name: &'static CStr,
    /// The chain of the program: packets pass chain 0, and any other only where a filter sends them there.
    pub chain: u32,
    /// The class of packets unless the program says another.
    pub class: Option<u32>,
}

impl Spot {
    fn message(&self, ifindex: u32) -> Tcmsg {
        Tcmsg { ifindex: ifindex as i32, parent: self.parent, ..Default::default() }
    }

    fn message_with_priority(&self, ifindex: u32) -> Tcmsg {
        let info = self.priority << 16 | u32::from((ETH_P_ALL as u16).to_be());
        Tcmsg { info, ..self.message(ifindex) }
    }

    /// Attaches a program, in the place of ours if there is one.
    pub fn attach(&self, ifindex: u32, program: &Program) -> Result<()> {
        let mut batch = RequestBatch::new();
        self.push_attach(&mut batch, ifindex, program);
        batch.send(|| format!("attaching a filter to interface number {ifindex} (cls_bpf)"))
    }

    /// Adds the request that attaches a program.
    pub fn push_attach(&self, batch: &mut RequestBatch, ifindex: u32, program: &Program) {
        let header = Tcmsg { handle: FILTER, ..self.message_with_priority(ifindex) };
        let mut request = tc::Request::new().set_create().op_newtfilter_do(&header);
        let options =
            request.encode().push_chain(self.chain).nested_options_bpf().push_fd(program.raw_fd() as u32);
        let options = options.push_name(self.name).push_flags(ACT_DIRECT);
        drop(match self.class {
            Some(class) => options.push_classid(class),
            None => options,
        });
        batch.push(&request);
    }

    /// The kernel's number of our program there.
    pub fn program_id(&self, ifindex: u32) -> Result<Option<u32>> {
        Ok(self.all(ifindex)?.into_iter().flatten().last())
    }

    /// Returns whether no filter is there but ours, in any chain.
    pub fn is_only_ours(&self, ifindex: u32) -> Result<bool> {
        Ok(self.all(ifindex)?.iter().all(Option::is_some))
    }

    /// Returns whether no filter is there, in any chain.
    pub fn is_unused(&self, ifindex: u32) -> Result<bool> {
        Ok(self.all(ifindex)?.is_empty())
    }

    /// Takes our program off; an absent one is no error.
    pub fn detach(&self, ifindex: u32) -> Result<()> {
        let mut batch = RequestBatch::new();
        self.push_detach(&mut batch, ifindex);
        content_if_gone(batch.send(|| format!("removing the filter of interface number {ifindex}")))
    }

    /// Adds the request that takes our program off.
    pub fn push_detach(&self, batch: &mut RequestBatch, ifindex: u32) {
        let mut request = tc::Request::new().op_deltfilter_do(&self.message_with_priority(ifindex));
        request.encode().push_chain(self.chain);
        batch.push(&request);
    }

    /// All filters at this parent: the program's number for ours, `None` for another's.
    fn all(&self, ifindex: u32) -> Result<Vec<Option<u32>>> {
        let doing = || format!("reading the filters of interface number {ifindex}");
        let request = tc::Request::new().op_gettfilter_dump(&self.message(ifindex));
        let mut socket = NetlinkSocket::new();
        let mut reply = socket.request(&request).doing(doing)?;
        let mut found = Vec::new();
        while let Some(item) = reply.recv() {
            let (_, attributes) = match item {
                Ok(item) => item,
                // A queue that is gone meanwhile has no filters.
                Err(error) if error.as_io_error().raw_os_error() == Some(libc::EINVAL) => {
                    return Ok(Vec::new());
                }
                Err(error) => return Err(explained(error, doing())),
            };
            match attributes.get_options() {
                Ok(tc::OptionsMsg::Bpf(options))
                    if options.get_name().is_ok_and(|name| name == self.name) =>
                {
                    found.extend(options.get_id().ok().map(Some));
                }
                // A chain without options is no filter yet.
                Ok(_) => found.push(None),
                Err(_) => {}
            }
        }
        Ok(found)
    }
}

/// Ignores the errors of a removal that say: no such filter, no such interface, or another's filter.
pub(super) fn content_if_gone(removed: Result<()>) -> Result<()> {
    let is_gone = |error: &PortError| {
        [libc::ENOENT, libc::ENODEV, libc::EINVAL].iter().any(|&code| is_code(error, code))
    };
    if removed.as_ref().is_err_and(is_gone) { Ok(()) } else { removed }
}
