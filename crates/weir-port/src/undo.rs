//! What Weir changed outside its own process and must put back, written so that another process can do it.
//!
//! Each change is recorded *before* it is made, with a keeper that outlives a crash (`weir_run::guardian`), and with the hold on the
//! thing that is changed ([`crate::hold`]): what others hold too stays as it is. Putting back is idempotent and content with things that are
//! already gone. It needs no thread, process or new file, and no more descriptors than a few at a time, because it may have to be done
//! where there are none to be had. What belongs to descriptors is not listed, because the kernel
//! takes it back by itself: XDP and tcx programs (links), maps, AF_XDP sockets. With them go the NAPI instances that XDP made, but
//! not what they held: that is [`Undo::Queues`].

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use serde::{Deserialize, Serialize};

use crate::error::{PortError, Result};
use crate::features::TagInsertion;
use crate::forwarding::Setting;
use crate::hold::{Hold, Owner};
use crate::link::{self, Link};
use crate::lock::{DIRECTORY, Lock};
use crate::napi::Deferral;
use crate::netns::NetNs;
use crate::release::Means;
use crate::way_out::nftables;
use crate::{ethtool, features, qdisc, sysctl};

/// One thing to put back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Undo {
    /// Nothing but the hold.
    Hold,
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
    /// Let VLAN tags go beside the frame again.
    TagInsertion {
        /// The interface's number.
        ifindex: u32,
        /// What was on.
        features: Vec<TagInsertion>,
    },
    /// Delete an interface that Weir made.
    Link {
        /// Its number.
        ifindex: u32,
        /// Its name, which must still be the same.
        name: String,
    },
    /// Remove the nftables table of this name.
    NftTable {
        /// Its name, in the `inet` family.
        name: String,
    },
    /// Put a setting back.
    Setting {
        /// Which.
        setting: Setting,
        /// What it was.
        was: u8,
    },
    /// Delete a file that Weir made.
    File {
        /// The file.
        path: PathBuf,
        /// Which, because somebody may have made another one there by now.
        identity: FileIdentity,
    },
}

impl Undo {
    /// Fails unless it is one that Weir may have written: who puts things back does so as root.
    pub fn check(&self) -> io::Result<()> {
        let may_be = match self {
            Undo::File { path, .. } => {
                path.parent() == Some(Path::new(DIRECTORY))
                    && path.extension().is_some_and(|end| end == "sock")
            }
            Undo::NftTable { name } => name.starts_with("weir"),
            Undo::Setting { was, .. } => *was <= 2,
            Undo::Hold
            | Undo::Queues { .. }
            | Undo::Qdisc { .. }
            | Undo::TxChecksum { .. }
            | Undo::TagInsertion { .. }
            | Undo::Link { .. } => true,
        };
        if may_be { Ok(()) } else { Err(io::Error::other(format!("{self:?} is none of Weir's changes"))) }
    }

    /// The interface that it is about, if it is about one alone.
    fn ifindex(&self) -> Option<u32> {
        match self {
            Undo::Queues { ifindex, .. }
            | Undo::Qdisc { ifindex, .. }
            | Undo::TxChecksum { ifindex }
            | Undo::TagInsertion { ifindex, .. }
            | Undo::Link { ifindex, .. } => Some(*ifindex),
            Undo::Hold | Undo::NftTable { .. } | Undo::Setting { .. } | Undo::File { .. } => None,
        }
    }

    /// In this thread's namespace.
    fn apply(&self, means: &mut Means) -> Result<()> {
        match self {
            Undo::Hold => Ok(()),
            Undo::Queues { ifindex, before } => means.release(*ifindex, *before),
            Undo::Qdisc { ifindex, before } => {
                qdisc::remove(*ifindex)?;
                before.as_ref().map_or(Ok(()), |before| qdisc::restore(*ifindex, before))
            }
            Undo::TxChecksum { ifindex } => match Link::by_index(*ifindex) {
                Ok(link) => ethtool::set_tx_checksum(&link.name, true),
                Err(PortError::NoInterface { .. }) => Ok(()),
                Err(error) => Err(error),
            },
            Undo::TagInsertion { ifindex, features } => features::switch(*ifindex, features, true),
            Undo::Link { ifindex, name } => match Link::by_index(*ifindex) {
                Ok(link) if link.name == *name => link::delete(*ifindex),
                Ok(_) | Err(PortError::NoInterface { .. }) => Ok(()),
                Err(error) => Err(error),
            },
            Undo::NftTable { name } => nftables::remove(name),
            Undo::Setting { setting, was } => match setting.path() {
                Ok(path) => sysctl::write_if_there(&path, &was.to_string()),
                Err(PortError::NoInterface { .. }) => Ok(()),
                Err(error) => Err(error),
            },
            Undo::File { path, identity } if FileIdentity::of(path) != Some(*identity) => Ok(()),
            Undo::File { path, .. } => match std::fs::remove_file(path) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    Err(PortError::Kernel { doing: format!("deleting {}", path.display()), source: error })
                }
                _ => Ok(()),
            },
        }
    }
}

/// What tells a file from another that is later made in its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileIdentity {
    /// Its number, which some file systems give to the next file at once.
    inode: u64,
    /// When it was made, as far as the file system tells.
    created_ns: u64,
}

impl FileIdentity {
    /// Of a file itself, not of what a link leads to; `None` if there is none.
    pub fn of(path: &Path) -> Option<FileIdentity> {
        let about = std::fs::symlink_metadata(path).ok()?;
        let created = about.created().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        Some(FileIdentity { inode: about.ino(), created_ns: created.unwrap_or_default().as_nanos() as u64 })
    }
}

/// A change, where it was made, and the hold on what was changed.
pub struct UndoRecord {
    /// The namespace.
    pub netns: NetNs,
    /// What to put back there.
    pub undo: Undo,
    /// On the thing; none where it is nobody else's.
    pub hold: Option<Hold>,
}

impl UndoRecord {
    /// Whether it is of one of these interfaces, each given by its namespace and number.
    pub fn is_of(&self, interfaces: &[(u64, u32)]) -> bool {
        interfaces.iter().any(|&interface| {
            let of = self.undo.ifindex().map(|ifindex| (self.netns.inode(), ifindex));
            of == Some(interface) || self.hold.as_ref().is_some_and(|hold| hold.is_of(interface))
        })
    }

    /// Says to whoever waits for the thing that it is being put back.
    pub fn note_undone(&self) {
        if self.undo == Undo::Hold {
            self.hold.iter().for_each(Hold::note_undone);
        }
    }

    /// Puts the thing back and lets go of it, unless others hold it.
    pub fn put_back(&mut self, means: &mut Means) -> Result<()> {
        let here = NetNs::current()?;
        let entered = if here.is(&self.netns) { Ok(()) } else { self.netns.enter() };
        let done = entered.and_then(|()| self.put_back_here(means));
        if here.is(&self.netns) { done } else { done.and(here.enter()) }
    }

    fn put_back_here(&mut self, means: &mut Means) -> Result<()> {
        let Some(hold) = &self.hold else { return self.undo.apply(means) };
        if self.undo != Undo::Hold {
            // Lest somebody joins meanwhile; but a lock that is not to be had must not leave things as they are.
            let _lock = Lock::take();
            if !hold.is_last() {
                self.hold = None;
                return Ok(());
            }
            self.undo.apply(means)?;
            self.finish();
        } else {
            self.finish();
        }
        Ok(())
    }

    fn finish(&mut self) {
        if let Some(hold) = self.hold.take() {
            hold.finish();
        }
    }
}

/// Where changes are recorded before they are made.
pub trait Keeper {
    /// Remembers `undo` for a namespace; returns when a crash from here on would be put right.
    fn record(&mut self, netns: &NetNs, undo: Undo, hold: Option<Hold>) -> Result<()>;

    /// Puts back what was recorded of these interfaces, each given by its namespace and number, and forgets it: they are gone, or elsewhere.
    /// What cannot be put back now stays recorded.
    fn put_back(&mut self, interfaces: &[(u64, u32)]) -> Result<()>;

    /// Who holds what is changed; none where that is nobody else's.
    fn owner(&self) -> Option<Owner>;

    /// Whether an interface of a namespace goes at the end, so that nobody behind it has to be let go.
    fn deletes(&self, netns: &NetNs, ifindex: u32) -> bool;

    /// Tells whoever waits for this process why it does.
    fn say(&mut self, text: &str);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_weir_changes_is_put_back() {
        let file =
            |path: &str| Undo::File { path: path.into(), identity: FileIdentity { inode: 1, created_ns: 0 } };
        let setting = |was| Undo::Setting { setting: Setting::ForwardAllIpv6, was };
        for (undo, may_be) in [
            (file("/run/weir/office.sock"), true),
            (file("/run/weir/../../etc/passwd.sock"), false),
            (file("/run/weir/holds"), false),
            (file("/etc/shadow"), false),
            (Undo::NftTable { name: "weir0".into() }, true),
            (Undo::NftTable { name: "filter".into() }, false),
            (setting(0), true),
            (setting(7), false),
        ] {
            assert_eq!(undo.check().is_ok(), may_be, "{undo:?}");
        }
    }

    #[test]
    fn a_record_of_another_form_is_refused() {
        for text in [r#"{"setting": {"setting": "../../etc", "was": 0}}"#, r#"{"sysctl": {}}"#, "7"] {
            assert!(serde_json::from_str::<Undo>(text).is_err(), "{text}");
        }
        let undo = Undo::Setting { setting: Setting::ForwardIpv4(7), was: 0 };
        assert_eq!(serde_json::from_str::<Undo>(&serde_json::to_string(&undo).unwrap()).unwrap(), undo);
    }
}
