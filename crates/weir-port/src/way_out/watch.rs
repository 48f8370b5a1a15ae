//! Keeps a run's table in place: a user who flushes the ruleset would cut the program off, and leave the host a router for everybody.
//!
//! Rule: the kernel's messages only tell when to look; the ruleset that is found decides. A table of ours with as many rules as it
//! was given is left alone, and any other is made anew. Looks are [`BETWEEN_NS`] apart at least, however often the ruleset changes.
//!
//! Owner: one thread, until [`Stopper::stop`]. To be stopped before the table is removed. Limits: a rule that somebody put in the place of
//! another is not seen; in the moment before a flushed table is back, arriving packets are forwarded.
//!
//! Source: kernel `net/netfilter/nf_tables_api.c:nf_tables_gen_notify`; netlink(7).

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use super::{NftTable, nftables};
use crate::error::{Doing, Result};
use crate::monitor;
use crate::netns::NetNs;
use crate::sys;

/// The least time from one look to the next, in nanoseconds.
const BETWEEN_NS: u64 = 20_000_000;
/// The time until a table that could not be put back is tried again, in nanoseconds.
const AGAIN_NS: u64 = 1_000_000_000;
/// The multicast group `NFNLGRP_NFTABLES`, as a mask.
const NFNLGRP_NFTABLES_MASK: u32 = 1 << 6;

/// The outcome of a change of the ruleset.
#[derive(Debug)]
pub enum TableEvent {
    /// The table was gone, or rules of it, and is back.
    PutBack,
    /// The table was gone and cannot be put back.
    Failed(crate::PortError),
    /// The watch was stopped.
    Stopped,
}

/// The watch over a run's table; see the head of the file.
pub struct TableWatch {
    host: NetNs,
    table: NftTable,
    changes: OwnedFd,
    stop: Arc<OwnedFd>,
    /// False until the first look: changes before the watch began are not told of.
    has_looked: bool,
    has_failed: bool,
}

/// Stops a [`TableWatch`].
#[derive(Clone)]
pub struct Stopper(Arc<OwnedFd>);

impl Stopper {
    /// Has the watch return [`TableEvent::Stopped`] soon.
    pub fn stop(&self) {
        sys::signal_eventfd(&self.0);
    }
}

impl TableWatch {
    /// The watch over the table as it stands in `host`.
    pub fn new(host: NetNs, table: NftTable) -> Result<TableWatch> {
        let changes = host.run(|| monitor::listen(libc::NETLINK_NETFILTER, NFNLGRP_NFTABLES_MASK))?;
        let stop = sys::eventfd().doing(|| "making an event counter".into())?;
        Ok(TableWatch { host, table, changes, stop: Arc::new(stop), has_looked: false, has_failed: false })
    }

    /// The handle that stops this watch.
    pub fn stopper(&self) -> Stopper {
        Stopper(Arc::clone(&self.stop))
    }

    /// The table's name.
    pub fn name(&self) -> &str {
        &self.table.name
    }

    /// Waits for the next event of the table.
    pub fn wait(&mut self) -> TableEvent {
        loop {
            let timeout_ns = match std::mem::replace(&mut self.has_looked, true) {
                true => self.has_failed.then_some(AGAIN_NS),
                false => Some(0),
            };
            let mut fds = [self.changes.as_raw_fd(), self.stop.as_raw_fd()].map(sys::poll_in);
            // An early return, whatever its reason, is seen in the next round.
            let _ = sys::poll(&mut fds, timeout_ns);
            // Several changes in a row are one, and a ruleset that never rests is looked at now and then.
            let _ = sys::poll(&mut [sys::poll_in(self.stop.as_raw_fd())], Some(BETWEEN_NS));
            let stopped = sys::poll(&mut [sys::poll_in(self.stop.as_raw_fd())], Some(0));
            if stopped.is_ok_and(|count| count > 0) {
                return TableEvent::Stopped;
            }
            monitor::drain(&self.changes);
            let (host, table) = (&self.host, &self.table);
            let looked = host.run(|| match nftables::is_whole(table)? {
                true => Ok(false),
                false => nftables::install(table).map(|()| true),
            });
            match looked {
                Ok(false) => self.has_failed = false,
                Ok(true) => {
                    self.has_failed = false;
                    return TableEvent::PutBack;
                }
                Err(error) if !std::mem::replace(&mut self.has_failed, true) => {
                    return TableEvent::Failed(error);
                }
                Err(_) => {}
            }
        }
    }
}
