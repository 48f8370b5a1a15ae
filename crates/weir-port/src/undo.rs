//! What Weir changed outside its own process and must put back, written so that another process can do it.
//!
//! Each change is recorded *before* it is made, with a keeper that outlives a crash (`weir_run::guardian`). Putting back is
//! idempotent and content with things that are already gone. What belongs to descriptors is not listed, because the kernel
//! takes it back by itself: XDP and tcx programs (links), maps, AF_XDP sockets. With them go the NAPI instances that XDP made, but
//! not what they held: that is [`Undo::Queues`].

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::error::{PortError, Result};
use crate::link::{self, Link};
use crate::napi::Deferral;
use crate::netns::NetNs;
use crate::{ethtool, masquerade, qdisc, release};

/// One thing to put back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Undo {
    /// Let those go on that were held by owning the receive queues of an interface.
    Queues {
        /// The interface's number.
        ifindex: u32,
        /// How the NAPI instances of its queues were deferred.
        before: Deferral,
    },
    /// Remove Weir's qdisc from an interface and put the one before it back.
    Qdisc {
        /// The interface's number.
        ifindex: u32,
        /// What was there, if somebody chose it.
        before: Option<qdisc::Saved>,
    },
    /// Leave checksums to the device again.
    TxChecksum {
        /// The interface's number; its name may change meanwhile.
        ifindex: u32,
    },
    /// Delete an interface that Weir made.
    Link {
        /// Its number.
        ifindex: u32,
        /// Its name, which must still be the same.
        name: String,
    },
    /// Remove the nftables table of this name, and put back the settings that it notes unless another run needs them.
    NftTable {
        /// Its name, in the `inet` family.
        name: String,
    },
    /// Delete a file that Weir made.
    File {
        /// The file.
        path: PathBuf,
    },
}

impl Undo {
    /// Puts the thing back, in this thread's namespace.
    pub fn apply(&self) -> Result<()> {
        match self {
            Undo::Queues { ifindex, before } => release::release(*ifindex, *before),
            Undo::Qdisc { ifindex, before } => {
                qdisc::remove(*ifindex)?;
                before.as_ref().map_or(Ok(()), |before| qdisc::restore(*ifindex, before))
            }
            Undo::TxChecksum { ifindex } => match Link::by_index(*ifindex) {
                Ok(link) => ethtool::set_tx_checksum(&link.name, true),
                Err(PortError::NoInterface { .. }) => Ok(()),
                Err(error) => Err(error),
            },
            Undo::Link { ifindex, name } => match Link::by_index(*ifindex) {
                Ok(link) if link.name == *name => link::delete(*ifindex),
                Ok(_) | Err(PortError::NoInterface { .. }) => Ok(()),
                Err(error) => Err(error),
            },
            Undo::NftTable { name } => masquerade::remove(name),
            Undo::File { path } => match std::fs::remove_file(path) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    Err(PortError::Kernel { doing: format!("deleting {}", path.display()), source: error })
                }
                _ => Ok(()),
            },
        }
    }
}

/// Where changes are recorded before they are made.
pub trait Keeper {
    /// Remembers `undo` for a namespace; returns when a crash from here on would be put right.
    fn record(&mut self, netns: &NetNs, undo: Undo) -> Result<()>;
}
