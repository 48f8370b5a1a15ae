//! The key files of an ESP that follows the kernel's IPsec: those that were made for it, and those that it has had.
//!
//! Rule: a file goes when no association of the ESP has it, also where the ESP itself has forgotten it: `weir up` may have been started anew,
//! without associations, since. Its mark stays. At the end the files of the plan that was made last stay, also where its associations were
//! taken away since. A file that was neither made nor used here is somebody else's, and stays.
//!
//! Owner: the one who follows.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use weir_path::esp::plan::EspPlan;

/// The key files in one directory that are to go with their associations.
pub struct KeyFiles {
    directory: PathBuf,
    known: BTreeSet<PathBuf>,
    /// The files of the plan that was made last.
    made: BTreeSet<PathBuf>,
}

impl KeyFiles {
    /// No files yet, in this directory.
    pub fn new(directory: &Path) -> KeyFiles {
        KeyFiles { directory: directory.into(), known: BTreeSet::new(), made: BTreeSet::new() }
    }

    /// Notes a file that was made.
    pub(super) fn note_made(&mut self, file: &Path) {
        self.known.insert(file.into());
    }

    /// Notes the files in the directory that an ESP runs with.
    pub fn note_running(&mut self, runs: &EspPlan) {
        let is_here = |file: &PathBuf| file.parent() == Some(&self.directory);
        self.known.extend(files_of(runs).filter(is_here));
    }

    /// Removes the files that no association of this plan has, which was made, and knows them no more. Those that are gone already are
    /// passed over.
    ///
    /// # Errors
    /// If a file could not be removed, with its name. The others are removed then too, and it is tried again the next time.
    pub fn remove_unused(&mut self, made: &EspPlan) -> Result<(), String> {
        self.made = files_of(made).collect();
        self.remove_all_but(&self.made.clone())
    }

    /// Removes the files that no association of this plan has, by which the ESP runs at the end, nor one of the plan that was made last.
    ///
    /// # Errors
    /// As [`KeyFiles::remove_unused`].
    pub fn remove_at_end(&mut self, runs: &EspPlan) -> Result<(), String> {
        self.remove_all_but(&self.made.iter().cloned().chain(files_of(runs)).collect())
    }

    fn remove_all_but(&mut self, used: &BTreeSet<PathBuf>) -> Result<(), String> {
        let mut removed = Ok(());
        self.known.retain(|file| {
            if used.contains(file) {
                return true;
            }
            match std::fs::remove_file(file) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    let why = format!("{}: {error}", file.display());
                    removed = std::mem::replace(&mut removed, Ok(())).and(Err(why));
                    true
                }
                _ => false,
            }
        });
        removed
    }
}

fn files_of(plan: &EspPlan) -> impl Iterator<Item = PathBuf> {
    plan.associations.iter().filter_map(|association| association.key_file.as_ref()).map(PathBuf::from)
}
