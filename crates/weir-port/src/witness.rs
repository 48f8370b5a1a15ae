//! The look whether anybody but this weir keeps a network namespace alive.
//!
//! A namespace lives as long as processes in it, mounts of it and descriptors of it, and ours are among those: a container's pair would
//! never go if its wire held on to it. The kernel does not list the others, so one of them is looked for, a *witness*, and asked for again
//! and again, which is one `stat(2)`; only when it is gone another is looked for.
//!
//! ```text
//! /proc/PID/ns/net        a process that is in it
//! /proc/PID/root/MOUNT    a mount, of any mount namespace that some process is in
//! /proc/PID/fd/N          a descriptor, of any process that is no weir
//! ```
//!
//! Rule: one look that finds nobody says nothing. A process that hands the namespace on to another and ends may be gone when it is looked at,
//! and the other not there yet when the processes are listed.
//!
//! Limits: a socket that was made inside by a process that is elsewhere keeps a namespace alive and is not seen; nor are processes that
//! other PID namespaces hide.

use std::collections::BTreeSet;
use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::netns::NetNs;
use crate::{mountinfo, sys};

/// The looks in a row that find nobody where nobody is.
const LOOKS: u32 = 3;

/// The process, mount or descriptor that keeps a namespace besides ours.
#[derive(Debug)]
pub struct Witness {
    /// The device and the number that a path must have to be of the namespace.
    identity: (u64, u64),
    /// Processes that do not count.
    without: Vec<u32>,
    path: Option<PathBuf>,
    /// The looks in a row that found nobody.
    found_none: u32,
}

impl Witness {
    /// A witness of `netns`, for which these processes do not count.
    pub fn new(netns: &NetNs, without: &[u32]) -> std::io::Result<Witness> {
        let about = fs::File::from(netns.as_fd().try_clone_to_owned()?).metadata()?;
        Ok(Witness {
            identity: (about.dev(), about.ino()),
            without: without.to_vec(),
            path: None,
            found_none: 0,
        })
    }

    /// Looks for a witness. Returns false if there was none at several looks, this one included.
    pub fn is_there(&mut self) -> bool {
        if self.path.as_deref().is_none_or(|path| !self.is_of(path)) {
            self.path = self.find();
        }
        self.found_none = if self.path.is_some() { 0 } else { self.found_none + 1 };
        self.found_none < LOOKS
    }

    fn is_of(&self, path: &Path) -> bool {
        fs::metadata(path).is_ok_and(|about| (about.dev(), about.ino()) == self.identity)
    }

    fn find(&self) -> Option<PathBuf> {
        let text = format!("net:[{}]", self.identity.1);
        let mut others = Vec::new();
        let mut mount_namespaces = BTreeSet::new();
        let mut mounts = Vec::new();
        for process in sys::processes() {
            let is_ours = self.without.contains(&process);
            let folder = Path::new("/proc").join(process.to_string());
            let inside = folder.join("ns/net");
            if !is_ours && self.is_of(&inside) {
                return Some(inside);
            }
            // Mounts that a process of ours sees count all the same.
            if fs::metadata(folder.join("ns/mnt")).is_ok_and(|about| mount_namespaces.insert(about.ino())) {
                mounts.push(folder.clone());
            }
            if !is_ours {
                others.push(folder);
            }
        }
        let mounted = mounts.iter().flat_map(|folder| mounted_at(folder, &text));
        let open = others.iter().filter(|folder| !is_weir(folder)).flat_map(|folder| open_at(folder, &text));
        mounted.chain(open).find(|path| self.is_of(path))
    }
}

/// The paths at which the mount namespace of a process has mounted the root named `text`.
fn mounted_at(folder: &Path, text: &str) -> Vec<PathBuf> {
    let mounts = fs::read(folder.join("mountinfo")).unwrap_or_default();
    let here = mountinfo::mounts(&mounts).filter(|mount| mount.root == text.as_bytes());
    here.filter_map(|mount| Some(folder.join("root").join(mount.place.strip_prefix("/").ok()?))).collect()
}

fn open_at(folder: &Path, text: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder.join("fd")).into_iter().flatten().flatten();
    let paths = entries.map(|entry| entry.path());
    paths.filter(|path| fs::read_link(path).is_ok_and(|link| link == Path::new(text))).collect()
}

/// Returns whether a process is a weir: its descriptors must not count for another wire.
fn is_weir(folder: &Path) -> bool {
    fs::read_to_string(folder.join("comm")).is_ok_and(|name| name.starts_with("weir"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_with_others_in_it_has_a_witness() {
        let netns = NetNs::current().unwrap();
        let mut witness = Witness::new(&netns, &[std::process::id()]).unwrap();
        // The process that runs this test is in the same namespace.
        assert!(witness.is_there() && witness.is_there());
        let own = Path::new("/proc").join(std::process::id().to_string());
        assert!(!witness.path.unwrap().starts_with(own.join("ns")));
    }

    #[test]
    fn one_look_that_finds_nobody_says_nothing() {
        let netns = NetNs::current().unwrap();
        let mut witness = Witness::new(&netns, &[]).unwrap();
        let there = witness.identity;
        let mut look = |identity| {
            (witness.identity, witness.path) = (identity, None);
            witness.is_there()
        };
        // No namespace has this number.
        let nowhere = (there.0, 0);
        assert!(look(nowhere) && look(nowhere) && look(there), "somebody came in time");
        assert_eq!([look(nowhere), look(nowhere), look(nowhere)], [true, true, false]);
    }
}
