//! The thread that keeps a run's way out, and the gate beside it, in the host's ruleset.
//!
//! Owner: [`GateKeeper`], for as long as the run lasts. It must end before the guardian removes the table, which would be taken for a
//! flush.

use std::io;
use std::thread::JoinHandle;

use weir_port::netns::NetNs;
use weir_port::way_out::{NftTable, Stopper, TableEvent, TableWatch};

use crate::{Failure, guarded, output};

/// A table that is kept, until this is dropped.
pub struct GateKeeper {
    stopper: Stopper,
    thread: Option<JoinHandle<()>>,
}

/// Keeps the table of a way out, where there is one.
pub fn keep(host: NetNs, way_out: Option<NftTable>) -> Result<Option<GateKeeper>, Failure> {
    let Some(table) = way_out else { return Ok(None) };
    let watch = TableWatch::new(host, table)?;
    let stopper = watch.stopper();
    let thread = guarded::spawn("weir-gate", move || watch_over(watch))
        .map_err(|error: io::Error| format!("no thread to watch the ruleset by: {error}"))?;
    Ok(Some(GateKeeper { stopper, thread: Some(thread) }))
}

fn watch_over(mut watch: TableWatch) {
    let name = watch.name().to_string();
    loop {
        match watch.wait() {
            TableEvent::Stopped => return,
            TableEvent::PutBack => output::warn(format_args!(
                "somebody changed the nftables table {name}, by which the program reaches the world and nobody else passes: it is \
                 put back"
            )),
            TableEvent::Failed(error) => output::warn(format_args!(
                "somebody removed the nftables table {name}: until it can be put back the program may not reach the world, and this \
                 host forwards what others send by way of it; {error}"
            )),
        }
    }
}

impl Drop for GateKeeper {
    fn drop(&mut self) {
        self.stopper.stop();
        // A thread that panicked keeps nothing any more.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}
