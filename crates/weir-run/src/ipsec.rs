//! The inputs of an ESP stage from this machine: the keys of its associations, read from their files, and marks of sequence numbers on
//! disk.
//!
//! ```text
//! plan --keys (`ipsec/key_file.rs`), marks (`ipsec/mark_file.rs`, `ipsec/marks.rs`)--> change --> the worker that has the stage
//! ```
//!
//! Rule: a key is one association's, from its first packet to its last. Two have never the same. An association that stays as it is, or whose
//! limits or window alone change, goes on with its key and its numbers; one that is changed otherwise needs another key. Everything that
//! can fail is done before anything changes.
//!
//! Owner: the process that runs the datapath; asked by one thread at a time. Limits: keys are known by fingerprints alone, so that the same
//! key under two names of another process is not seen, but for the lock on its mark.

pub mod follow;
pub mod import;
mod key_file;
mod mark_file;
pub mod marks;
mod new_key;
#[cfg(test)]
mod tests;
mod xfrm;

use std::collections::BTreeMap;
use std::path::Path;

use weir_ipsec::algorithm::{Algorithm, KeyMaterial, Transform};
use weir_ipsec::sequence::SequenceNumbers;
use weir_path::esp::marks::Unmarked;
use weir_path::esp::plan::{AssociationKey, AssociationNumbers, AssociationPlan, EspChange, EspPlan};
use weir_path::plan::{Plan, StageKind};

use self::mark_file::{MarkFile, MarkKind};
use self::marks::{AHEAD, AHEAD_SHORT, MarkWriter};

type Fingerprint = [u8; 16];

/// The associations that run, by the place of their stage in the plan.
#[derive(Debug, Default)]
pub struct EspKeys {
    stages: BTreeMap<usize, StageKeys>,
    writer: MarkWriter,
}

/// The plan that one stage runs, and its keys.
#[derive(Clone, Debug)]
struct StageKeys {
    plan: EspPlan,
    /// The fingerprint of each association's key, in the order of the plan; none without a key.
    fingerprints: Vec<Option<Fingerprint>>,
}

/// A change that nothing can hinder any more.
#[derive(Debug)]
pub struct PreparedEsp {
    /// The stage, by its place in the plan.
    pub stage: usize,
    /// The change that the worker is to be given.
    pub change: EspChange,
    running: StageKeys,
}

impl EspKeys {
    /// No associations yet; `tell` is told what happens to the marks of those that come.
    pub fn telling(tell: fn(String)) -> EspKeys {
        EspKeys { writer: MarkWriter::telling(tell), ..EspKeys::default() }
    }

    /// The changes with which the ESP stages of a plan begin.
    ///
    /// # Errors
    /// If a key or a mark is wrong, with the reason.
    pub fn prepare_all(&mut self, plan: &Plan) -> Result<Vec<PreparedEsp>, String> {
        let wanted: Vec<_> = esps(plan).map(|(stage, esp)| (stage, esp.clone())).collect();
        let prepared = self.prepare(&wanted)?;
        prepared.iter().for_each(|prepared| self.note(prepared));
        Ok(prepared)
    }

    /// Waits until the marks of associations that have ended are written, and their files let go: for a second at most.
    pub fn settle(&self) {
        self.writer.settle();
    }

    /// Checks the keys of plans that are to run, and changes nothing. Those of associations that have just ended are let go first.
    ///
    /// # Errors
    /// As of [`EspKeys::prepare`], of each association that has a fault.
    pub fn check(&self, wanted: &[(usize, EspPlan)]) -> Result<(), String> {
        self.writer.settle();
        let mut seen = self.running_keys();
        let new = wanted.iter().flat_map(|(stage, plan)| {
            plan.associations.iter().filter(|association| self.running(*stage, association).is_none())
        });
        let told: Vec<_> = new.filter_map(|association| check_new(association, &mut seen).err()).collect();
        if told.is_empty() { Ok(()) } else { Err(told.join("\n")) }
    }

    /// Checks that the associations that go on when these stages become so have their keys in their files, those of other stages too.
    ///
    /// # Errors
    /// If one has not, with its name.
    pub fn check_going_on(&self, wanted: &[(usize, EspPlan)]) -> Result<(), String> {
        for (stage, running) in &self.stages {
            let plan =
                wanted.iter().find(|(place, _)| place == stage).map_or(&running.plan, |(_, plan)| plan);
            for association in &plan.associations {
                if let Some(fingerprint) = self.running(*stage, association) {
                    has_same_key(association, fingerprint)?;
                }
            }
        }
        Ok(())
    }

    /// The changes that make all of these stages what is wanted. The marks of new associations are safe then.
    ///
    /// # Errors
    /// If a key or a mark is wrong, with the reason, a line for each association; nothing has changed then.
    pub fn prepare(&mut self, wanted: &[(usize, EspPlan)]) -> Result<Vec<PreparedEsp>, String> {
        self.check(wanted)?;
        let mut seen = self.running_keys();
        let mut all = Vec::new();
        for (stage, plan) in wanted {
            let (mut keys, mut fingerprints) = (Vec::new(), Vec::new());
            for association in &plan.associations {
                if let Some(fingerprint) = self.running(*stage, association) {
                    fingerprints.push(fingerprint);
                    keys.push(None);
                    continue;
                }
                let (transform, fingerprint) = keyed(association, &mut seen)?;
                let numbers = self.numbers(association, fingerprint).map_err(|why| of(association, why))?;
                fingerprints.push(fingerprint);
                keys.push(Some(AssociationKey { transform, numbers }));
            }
            let running = StageKeys { plan: plan.clone(), fingerprints };
            all.push(PreparedEsp { stage: *stage, change: EspChange { plan: plan.clone(), keys }, running });
        }
        Ok(all)
    }

    /// Notes a change that is about to be made.
    pub fn note(&mut self, prepared: &PreparedEsp) {
        self.stages.insert(prepared.stage, prepared.running.clone());
    }

    /// The plan that a stage runs.
    pub fn plan(&self, stage: usize) -> Option<&EspPlan> {
        self.stages.get(&stage).map(|running| &running.plan)
    }

    /// The key of an association that runs, and goes on by this plan; none if it does not.
    fn running(&self, stage: usize, association: &AssociationPlan) -> Option<Option<Fingerprint>> {
        let StageKeys { plan, fingerprints } = self.stages.get(&stage)?;
        let place = plan.associations.iter().position(|running| running.goes_on_as(association))?;
        Some(fingerprints[place])
    }

    /// The keys that run, each with whose it is.
    fn running_keys(&self) -> BTreeMap<Fingerprint, String> {
        let mut seen = BTreeMap::new();
        for StageKeys { plan, fingerprints } in self.stages.values() {
            for (association, fingerprint) in plan.associations.iter().zip(fingerprints) {
                seen.extend(fingerprint.map(|fingerprint| (fingerprint, association.name.clone())));
            }
        }
        seen
    }

    fn numbers(
        &mut self,
        association: &AssociationPlan,
        fingerprint: Option<Fingerprint>,
    ) -> Result<AssociationNumbers, String> {
        let is_inbound = association.is_inbound;
        let (Some(key), Some(fingerprint)) = (&association.key_file, fingerprint) else {
            return Ok(match is_inbound {
                true => AssociationNumbers::unmarked(),
                false => {
                    AssociationNumbers::Sent(numbers_from(1, association)?, Box::new(Unmarked::default()))
                }
            });
        };
        let kind = mark_kind(association);
        let (file, next) = MarkFile::open(kind, &kind.of_key(Path::new(key))?, fingerprint)?;
        let mut numbers = numbers_from(next, association)?;
        if is_inbound {
            write_first(&file, next)?;
            return Ok(AssociationNumbers::Received(next - 1, Box::new(self.writer.received(file, next))));
        }
        let wanted = numbers.wanted_mark();
        if let Some(mark) = wanted {
            write_first(&file, mark)?;
            numbers.reserve(mark);
        }
        let writer = self.writer.sent(file, wanted.unwrap_or(next), next);
        Ok(AssociationNumbers::Sent(numbers, Box::new(writer)))
    }
}

/// A sentence for each association whose key, or the mark of a key that seals, has no file.
pub fn missing_keys(plan: &Plan) -> Vec<String> {
    let missing = |association: &AssociationPlan| {
        let file = Path::new(association.key_file.as_ref()?);
        let mark = || mark_kind(association).missing_beside(file);
        let why = key_file::missing(file, association.algorithm, association.is_inbound).or_else(mark)?;
        Some(of(association, why))
    };
    esps(plan).flat_map(|(_, esp)| &esp.associations).filter_map(missing).collect()
}

/// The ESP stages of a plan, with their places.
fn esps(plan: &Plan) -> impl Iterator<Item = (usize, &EspPlan)> {
    plan.stages.iter().enumerate().filter_map(|(stage, of)| match &of.kind {
        StageKind::Esp(esp) => Some((stage, &**esp)),
        _ => None,
    })
}

/// Checks the key and the mark of an association that does not run.
///
/// # Errors
/// If one is wrong, with the reason.
fn check_new(association: &AssociationPlan, seen: &mut BTreeMap<Fingerprint, String>) -> Result<(), String> {
    let (_, fingerprint) = keyed(association, seen)?;
    let Some(key) = &association.key_file else { return Ok(()) };
    let kind = mark_kind(association);
    kind.of_key(Path::new(key))
        .and_then(|mark| kind.check_unused(&mark, fingerprint))
        .and_then(|next| numbers_from(next, association).map(drop))
        .map_err(|why| of(association, why))
}

/// Writes a mark before any packet needs it.
fn write_first(file: &MarkFile, next: u64) -> Result<(), String> {
    file.write(next).map(drop).map_err(|error| format!("{}: {error}", file.path().display()))
}

fn mark_kind(association: &AssociationPlan) -> MarkKind {
    if association.is_inbound { MarkKind::Received } else { MarkKind::Sent }
}

/// The numbers of an association from the first that nobody can have used, or received.
///
/// # Errors
/// If there is none left.
fn numbers_from(first: u64, association: &AssociationPlan) -> Result<SequenceNumbers, String> {
    let ahead = if association.is_extended { AHEAD } else { AHEAD_SHORT };
    let numbers = SequenceNumbers::from_mark(first, association.is_extended, ahead);
    match numbers.left() {
        0 => Err("all sequence numbers of this key are used: give it a new key".into()),
        _ => Ok(numbers),
    }
}

/// Returns whether the file of an association that goes on still has the key that it runs with; it may be gone, from `/run` for instance.
fn has_same_key(association: &AssociationPlan, fingerprint: Option<Fingerprint>) -> Result<(), String> {
    let Some(file) = association.key_file.as_ref().filter(|file| Path::new(file).exists()) else {
        return Ok(());
    };
    let material = read_key(file, association)?;
    if Some(material.fingerprint()) == fingerprint {
        return Ok(());
    }
    let why = format!(
        "{file} has another key than the one that runs, and none is exchanged under a name: write a further [[sa]] with it"
    );
    Err(of(association, why))
}

/// The key of an association, if no other has it.
fn keyed(
    association: &AssociationPlan,
    seen: &mut BTreeMap<Fingerprint, String>,
) -> Result<(Transform, Option<Fingerprint>), String> {
    let algorithm: Algorithm = association.algorithm;
    let (material, fingerprint) = match &association.key_file {
        Some(file) => {
            let material = read_key(file, association)?;
            let fingerprint = material.fingerprint();
            if let Some(other) = seen.insert(fingerprint, association.name.clone()) {
                let why = format!(
                    "{file} has the key that \"{other}\" has or had: each association needs a key of its own; one that runs keeps its key if \
                     `window`, `soft` or `hard` alone change"
                );
                return Err(of(association, why));
            }
            (material, Some(fingerprint))
        }
        None => (key_file::none(algorithm).map_err(|why| of(association, why))?, None),
    };
    let transform = Transform::new(algorithm, &material).map_err(|why| of(association, why.to_string()))?;
    Ok((transform, fingerprint))
}

fn read_key(file: &str, association: &AssociationPlan) -> Result<KeyMaterial, String> {
    key_file::read(Path::new(file), association.algorithm, association.is_inbound)
        .map_err(|why| of(association, why))
}

fn of(association: &AssociationPlan, why: String) -> String {
    sentence_begin(&association.name) + &why
}

/// The beginning of each sentence on an association of this name.
pub(crate) fn sentence_begin(association: &str) -> String {
    format!("sa \"{association}\": ")
}
