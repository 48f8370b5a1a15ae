//! The changes that Weir made outside its own process and must put back, written so that another process can do it.
//!
//! Each change is recorded *before* it is made, with a keeper that outlives a crash (`weir_run::guardian`), and with the hold on the thing
//! that is changed ([`crate::hold`]): a thing that others hold too stays as it is. Putting back is idempotent and content with things that
//! are already gone. It needs no thread, process or new file, and no more descriptors than a few at a time, because it may have to be done
//! where there are none to be had. XDP and tcx programs (links), maps and AF_XDP sockets are not listed, because they belong to descriptors
//! and the kernel takes them back by itself. With them go the NAPI instances that XDP made, but not the senders that they held: those are
//! [`Undo::Queues`].

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use serde::{Deserialize, Serialize};

use crate::error::{PortError, Result};
use crate::features::{self, ChecksumOffloads, TagInsertion};
use crate::forwarding::{Setting, SettingBefore};
use crate::hold::{Hold, Owner};
use crate::link::{self, Link};
use crate::lock::{DIRECTORY, Lock};
use crate::napi::Deferral;
use crate::netns::NetNs;
use crate::qdisc;
use crate::release::Means;
use crate::way_out::nftables;

/// One thing to put back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Undo {
    /// Give the hold up; there is nothing else to put back.
    Hold,
    /// Start the senders that were held by owning the receive queues of an interface.
    Queues {
        /// The interface's number.
        ifindex: u32,
        /// The deferral of the NAPI instances of its queues before.
        before: Deferral,
    },
    /// Remove Weir's qdisc from an interface and put the one before it back.
    Qdisc {
        /// The interface's number.
        ifindex: u32,
        /// The qdisc before, if somebody chose it.
        before: Option<qdisc::Saved>,
    },
    /// Leave checksums to the device again.
    TxChecksum {
        /// The interface's number.
        ifindex: u32,
        /// The features that were on.
        features: ChecksumOffloads,
    },
    /// Let VLAN tags go beside the frame again.
    TagInsertion {
        /// The interface's number.
        ifindex: u32,
        /// The features that were on.
        features: Vec<TagInsertion>,
    },
    /// Delete an interface that Weir made.
    Link {
        /// Its number.
        ifindex: u32,
        /// Its name.
        name: String,
        /// Its Ethernet address. It may get another address or name, but not both.
        address: [u8; 6],
    },
    /// Remove the nftables table of this name.
    NftTable {
        /// Its name, in the `inet` family.
        name: String,
    },
    /// Put a setting back.
    Setting {
        /// The setting.
        setting: Setting,
        /// Its state before.
        before: SettingBefore,
    },
    /// Delete a file that Weir made.
    File {
        /// The file.
        path: PathBuf,
        /// The identity of the file, because somebody may have made another one there by now.
        identity: FileIdentity,
    },
}

impl Undo {
    /// The deletion of an interface that Weir has just made.
    pub fn of_link(link: &Link) -> Undo {
        Undo::Link { ifindex: link.ifindex, name: link.name.clone(), address: link.address }
    }

    /// Returns whether senders are held for as long as the process stands that made the change.
    pub fn holds_senders(&self) -> bool {
        matches!(self, Undo::Queues { .. })
    }

    /// Fails unless the record is one that Weir may have written: the process that puts things back does so as root.
    pub fn check(&self) -> io::Result<()> {
        let may_be = match self {
            Undo::File { path, .. } => {
                path.parent() == Some(Path::new(DIRECTORY))
                    && path.extension().is_some_and(|end| end == "sock")
            }
            Undo::NftTable { name } => name.starts_with("weir"),
            Undo::Setting { before, .. } => before.is_sound(),
            Undo::TxChecksum { features, .. } => features.is_sound(),
            Undo::Hold
            | Undo::Queues { .. }
            | Undo::Qdisc { .. }
            | Undo::TagInsertion { .. }
            | Undo::Link { .. } => true,
        };
        if may_be { Ok(()) } else { Err(io::Error::other(format!("{self:?} is none of Weir's changes"))) }
    }

    /// The interface that the record is about, if it is about one alone.
    fn ifindex(&self) -> Option<u32> {
        match self {
            Undo::Queues { ifindex, .. }
            | Undo::Qdisc { ifindex, .. }
            | Undo::TxChecksum { ifindex, .. }
            | Undo::TagInsertion { ifindex, .. }
            | Undo::Link { ifindex, .. } => Some(*ifindex),
            Undo::Hold | Undo::NftTable { .. } | Undo::Setting { .. } | Undo::File { .. } => None,
        }
    }

    /// Puts the thing back in this thread's namespace.
    fn apply(&self, means: &mut Means) -> Result<()> {
        match self {
            Undo::Hold => Ok(()),
            Undo::Queues { ifindex, before } => means.release(*ifindex, *before),
            Undo::Qdisc { ifindex, before } => qdisc::put_back(*ifindex, before.as_ref()).map(drop),
            Undo::TxChecksum { ifindex, features } => features::leave_checksums(*ifindex, features),
            Undo::TagInsertion { ifindex, features } => features::switch(*ifindex, features, true),
            Undo::Link { ifindex, name, address } => match Link::by_index(*ifindex) {
                Ok(link) if link.name == *name || link.address == *address => link::delete(*ifindex),
                Ok(_) | Err(PortError::NoInterface { .. }) => Ok(()),
                Err(error) => Err(error),
            },
            Undo::NftTable { name } => nftables::remove(name).map(drop),
            Undo::Setting { setting, before } => before.put_back(*setting).map(drop),
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

/// The identity that tells a file from another that is later made in its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileIdentity {
    /// Its inode number, which some file systems give to the next file at once.
    inode: u64,
    /// The time when it was made, in nanoseconds, as far as the file system tells.
    created_ns: u64,
}

impl FileIdentity {
    /// The identity of a file itself, not of the target of a link; `None` if there is none.
    pub fn of(path: &Path) -> Option<FileIdentity> {
        let about = std::fs::symlink_metadata(path).ok()?;
        let created = about.created().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        Some(FileIdentity { inode: about.ino(), created_ns: created.unwrap_or_default().as_nanos() as u64 })
    }
}

/// A change, the namespace where it was made, and the hold on the thing that was changed.
pub struct UndoRecord {
    /// The namespace.
    pub netns: NetNs,
    /// The change to put back there.
    pub undo: Undo,
    /// The hold on the thing; `None` where no other process shares it.
    pub hold: Option<Hold>,
}

impl UndoRecord {
    /// Returns whether this is about one of these interfaces, each given by its namespace and number.
    pub fn is_of(&self, interfaces: &[(u64, u32)]) -> bool {
        interfaces.iter().any(|&interface| {
            let of = self.undo.ifindex().map(|ifindex| (self.netns.inode(), ifindex));
            of == Some(interface) || self.hold.as_ref().is_some_and(|hold| hold.is_of(interface))
        })
    }

    /// Says to processes that wait for the thing that it is being put back.
    pub fn note_undone(&self) {
        if self.undo == Undo::Hold {
            self.hold.iter().for_each(Hold::note_undone);
        }
    }

    /// Puts the thing back and gives up its hold, unless others hold it.
    pub fn put_back(&mut self, means: &mut Means) -> Result<()> {
        let here = NetNs::current()?;
        let entered = if here.is(&self.netns) { Ok(()) } else { self.netns.enter() };
        let done = entered.and_then(|()| self.put_back_here(means));
        if here.is(&self.netns) { done } else { done.and(here.enter()) }
    }

    fn put_back_here(&mut self, means: &mut Means) -> Result<()> {
        let Some(hold) = &self.hold else { return self.undo.apply(means) };
        if self.undo != Undo::Hold {
            // The lock keeps others from joining meanwhile; but without it things must not be left as they are.
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

    /// Gives up its hold and puts nothing back: the thing is not there any more.
    pub fn forget(mut self) {
        // As when it is put back.
        let _lock = Lock::take();
        if self.hold.as_ref().is_some_and(Hold::is_last) {
            self.finish();
        }
    }

    fn finish(&mut self) {
        if let Some(hold) = self.hold.take() {
            hold.finish();
        }
    }
}

/// The keeper with which changes are recorded before they are made.
pub trait Keeper {
    /// Records `undo` for a namespace; once this returns, a crash would be put right.
    fn record(&mut self, netns: &NetNs, undo: Undo, hold: Option<Hold>) -> Result<()>;

    /// Puts back the recorded changes of these interfaces, each given by its namespace and number, and forgets them: the interfaces are
    /// gone, or elsewhere. A change that cannot be put back now stays recorded.
    fn put_back(&mut self, interfaces: &[(u64, u32)]) -> Result<()>;

    /// Forgets the recorded changes of these interfaces, each given by its namespace and number, and puts none back: the interfaces have left
    /// those places, and others may have their numbers there by now.
    fn forget(&mut self, interfaces: &[(u64, u32)]) -> Result<()>;

    /// The owner of holds on changed things; `None` where no other process shares them.
    fn owner(&self) -> Option<Owner>;

    /// Returns whether an interface of a namespace is deleted at the end, so that its senders need not be started.
    fn deletes(&self, netns: &NetNs, ifindex: u32) -> bool;

    /// Tells processes that wait for this one why they wait.
    fn say(&mut self, text: &str);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_weir_changes_is_put_back() {
        let file =
            |path: &str| Undo::File { path: path.into(), identity: FileIdentity { inode: 1, created_ns: 0 } };
        let before = |was: u8| serde_json::from_value(was.into()).unwrap();
        let setting = |was| Undo::Setting { setting: Setting::ForwardAllIpv6, before: before(was) };
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
        for text in [r#"{"setting": {"setting": "../../etc", "before": 0}}"#, r#"{"sysctl": {}}"#, "7"] {
            assert!(serde_json::from_str::<Undo>(text).is_err(), "{text}");
        }
        let setting = Setting::ForwardIpv4(7);
        let undo = Undo::Setting { setting, before: SettingBefore::look(setting) };
        assert_eq!(serde_json::from_str::<Undo>(&serde_json::to_string(&undo).unwrap()).unwrap(), undo);
    }
}
