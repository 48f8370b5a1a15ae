//! Letting senders go on when whoever held them has gone.
//!
//! A veth stops a sending queue when its ring is full, and it is the next poll of the receiving NAPI instance that starts it. An
//! owned instance is polled by its owner alone and goes with the owner's XDP program. If the queue is stopped then, nobody is
//! left to start it: every packet for it is dropped, or waits in a qdisc, for good. Neither another qdisc nor
//! `ip link set down` and up at either end starts it; a poll of a new instance does:
//!
//! ```text
//! owner's program gone -> a program that passes everything -> instances that nobody owns -> each polled once -> program gone
//! ```
//!
//! An instance that nobody owns is run by softirq whenever its ring is not empty, and starts the queue each time, so it can go
//! again under load. Where the user has GRO on, instances outlive every program, and what an owner set is put back too.
//!
//! Owner: whoever puts things back (`crate::undo`), in the interface's namespace. Source: kernel `drivers/net/veth.c:veth_xmit`,
//! `veth_poll`, `veth_napi_del_range`, Linux 6.18.
//!
//! Limits: an interface that is down has no instances to poll; its senders stay stopped until somebody releases or owns it
//! again. What is in the ring when a program goes is freed by the kernel uncounted, 256 packets a queue at most.

use std::io;

use crate::bpf::map::Map;
use crate::bpf::program::{self, Program};
use crate::bpf::redirect;
use crate::error::{Doing, Result};
use crate::link::Link;
use crate::napi::{self, Deferral};
use crate::sys;

/// How long a process that is dying keeps its program at most: its sockets go first, and the kernel waits for all cores at each.
const TRIES: u32 = 1000;
const BETWEEN_NS: u64 = 10_000_000;

/// Starts the queues that send into an interface of this thread's namespace, once its owner's program has gone; `before` is how
/// its instances were deferred before they were owned. Content with the interface being gone, or another's by now.
pub fn release(ifindex: u32, before: Deferral) -> Result<()> {
    let doing = || format!("letting those go on that send into interface number {ifindex}");
    let program = Map::xskmap(1).and_then(|none| redirect::load(&none)).doing(doing)?;
    let Some(_attached) = attach_when_free(&program, ifindex).doing(doing)? else { return Ok(()) };
    let ids = napi::instances(ifindex)?;
    ids.iter().try_for_each(|&id| napi::let_go(id, before))?;
    napi::poll_once(&ids)
}

fn attach_when_free(program: &Program, ifindex: u32) -> io::Result<Option<program::Link>> {
    for _ in 0..TRIES {
        match program.attach(ifindex) {
            Ok(attached) => return Ok(Some(attached)),
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
                sys::poll_readable(&mut [], Some(BETWEEN_NS))?;
            }
            // The kernel's word for that is EINVAL.
            Err(_) if Link::by_index(ifindex).is_err_and(|error| error.is_no_interface()) => return Ok(None),
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}
