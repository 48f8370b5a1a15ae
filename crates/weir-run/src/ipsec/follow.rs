//! An ESP that follows the kernel's IPsec: its associations and policies, as the program that negotiates keys adds and removes them.
//!
//! ```text
//! dump, events --`follow/message.rs`--> Follower --wanted--> EspPlan, key files --`weir sa follow`--> `weir up`
//! ```
//!
//! Rule: an association or policy that cannot be followed is left out with a sentence, and the rest goes on. A policy that cannot be
//! expressed discards the packets that it names. A key with which the kernel has sent, or that another association has, is refused. Names
//! stay: an association that does not change, or whose limits or window alone do, goes on with its numbers. One that changes otherwise and
//! keeps its key, as when a peer moves (MOBIKE), ends first and then begins, with the numbers that are left and a new window.
//!
//! Owner: one thread. Limits: packets that no policy of the kernel's names are dropped here, and pass there. No packet here has the
//! kernel's marks and interface numbers. Nothing is told to the kernel: neither that packets passed, nor that a peer moved, nor that an
//! association is missed (`ACQUIRE`), so IKE is to begin by itself. After a start nobody knows that the kernel has sent with a key that
//! no association had then. A dump shows a policy that was updated as the youngest, so after a start, or after events were lost, it is asked
//! behind its equals, where the kernel may have kept its place. One that is updated and has a younger equal in another list of the kernel's,
//! as 10.1.0.0/24 has in 0.0.0.0/0, goes behind that since Linux 6.12 and did not before; here it does if it lets pass.

mod key_files;
mod message;
mod policy;
mod state;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use weir_path::esp::plan::{AssociationPlan, EspPlan, PolicyVerb};

pub use self::key_files::KeyFiles;
use self::message::{Followed, FollowedPolicy, Heard, StateId, read};
use super::new_key::{self, NewKey};
use super::xfrm::{XfrmPolicy, XfrmState, as_asked};

/// The protocol that stands for all of IPsec's (`IPSEC_PROTO_ANY`), which `setkey -F` flushes.
const PROTOCOL_ANY: u8 = 255;

/// The associations and policies of the kernel, as far as they were told.
pub struct Follower {
    /// The directory of the key files.
    directory: PathBuf,
    /// The youngest first, as the kernel tells them.
    states: Vec<StateEntry>,
    policies: Vec<PolicyEntry>,
    /// The packets that the kernel has sealed, and the highest number that it has received, by the files of their keys. An association that
    /// goes may come again with its key, and with counters that begin anew.
    counted: BTreeMap<PathBuf, [u64; 2]>,
    /// The sentences that were said and still hold.
    told: BTreeSet<String>,
}

struct StateEntry {
    id: StateId,
    at: String,
    state: Followed,
    /// Its name here, once it has one.
    name: Option<String>,
    refused: Option<String>,
}

struct PolicyEntry {
    index: u32,
    is_main: bool,
    at: String,
    policy: FollowedPolicy,
}

/// The outcome of events that were heard.
#[derive(Debug, Default)]
pub struct HeardOutcome {
    /// A line for each event.
    pub lines: Vec<String>,
    /// True if everything is to be read anew.
    pub is_to_dump: bool,
}

/// The plan that an ESP is to have.
pub struct WantedPlan {
    /// The plan, with keys in files that may not be there yet.
    pub plan: EspPlan,
    /// A sentence on each thing that is left out, as far as that is news.
    pub notes: Vec<String>,
    /// The new keys, by the names of their associations.
    keys: Vec<(String, NewKey)>,
}

impl Follower {
    /// A follower that knows nothing yet, and whose keys go into `directory`.
    pub fn new(directory: &Path) -> Follower {
        Follower {
            directory: directory.into(),
            states: Vec::new(),
            policies: Vec::new(),
            counted: BTreeMap::new(),
            told: BTreeSet::new(),
        }
    }

    /// Reads all associations and policies of the kernel. Returns whether to ask it once more, because they were changing.
    ///
    /// # Errors
    /// If the kernel refuses, with its error.
    pub fn dumped(&mut self, bytes: &[u8]) -> Result<bool, i32> {
        let before =
            std::mem::take(&mut self.states).into_iter().filter_map(|entry| Some((entry.id, entry.name?)));
        let names: BTreeMap<StateId, String> = before.collect();
        self.policies.clear();
        // An entry that was told twice, while much changed, counts once.
        let (mut states, mut policies) = (BTreeSet::new(), BTreeSet::new());
        let mut is_whole = true;
        for heard in read(bytes) {
            match heard {
                Heard::State { id, at, state } if states.insert(id) => {
                    note_counts(&mut self.counted, &self.directory, &state);
                    let name = names.get(&id).cloned();
                    self.states.push(StateEntry { id, at, state, name, refused: None });
                }
                Heard::Policy { index, is_main, at, policy } if policies.insert(index) => {
                    self.policies.push(PolicyEntry { index, is_main, at, policy });
                }
                Heard::Failed(0) => {}
                Heard::Failed(code) => return Err(code),
                Heard::Interrupted => is_whole = false,
                _ => {}
            }
        }
        Ok(!is_whole)
    }

    /// Reads events.
    pub fn heard(&mut self, bytes: &[u8]) -> HeardOutcome {
        let mut news = HeardOutcome::default();
        for heard in read(bytes) {
            news.is_to_dump |= matches!(heard, Heard::Migrated | Heard::Interrupted);
            news.lines.extend(self.hear(heard));
        }
        news
    }

    fn hear(&mut self, heard: Heard) -> Option<String> {
        match heard {
            Heard::State { id, at, state } => {
                let line = format!("association {at}");
                let place = self.states.iter().position(|entry| entry.id == id);
                let is_new = |place: usize| matches!(self.states[place].state, Followed::Unfinished);
                match place {
                    Some(place) if !is_new(place) => {
                        let entry = &mut self.states[place];
                        entry.state.update(state);
                        entry.refused = None;
                        return Some(format!("~ {line}"));
                    }
                    Some(place) => drop(self.states.remove(place)),
                    None => {}
                }
                note_counts(&mut self.counted, &self.directory, &state);
                self.states.insert(0, StateEntry { id, at, state, name: None, refused: None });
                Some(format!("+ {line}"))
            }
            Heard::StateGone(id) => {
                let place = self.states.iter().position(|entry| entry.id == id)?;
                Some(format!("- association {}", self.states.remove(place).at))
            }
            Heard::StateExpired { id, is_hard } => {
                let place = self.states.iter().position(|entry| entry.id == id)?;
                match is_hard {
                    true => Some(format!("- association {}: its life is over", self.states.remove(place).at)),
                    false => Some(format!("association {}: a successor is due", self.states[place].at)),
                }
            }
            Heard::StatesFlushed(protocol) => {
                let is_flushed = |of: u8| matches!(protocol, 0 | PROTOCOL_ANY) || of == protocol;
                self.states.retain(|entry| !is_flushed(entry.id.protocol));
                Some("- all associations".into())
            }
            Heard::Counted { id, sealed, received } => {
                let entry = self.states.iter_mut().find(|entry| entry.id == id)?;
                let Followed::State(state) = &mut entry.state else { return None };
                let is_news = sealed > state.sealed;
                state.sealed = state.sealed.max(sealed);
                state.received = state.received.max(received);
                note_counts(&mut self.counted, &self.directory, &entry.state);
                is_news
                    .then(|| format!("association {}: the kernel has sent {sealed} packets by it", entry.at))
            }
            Heard::Policy { index, is_main, at, policy } => {
                let line = policy.is_told().then(|| at.clone());
                let known = self.policies.iter().position(|entry| entry.index == index);
                let place = known.map_or(0, |known| self.place_updated(known, &policy));
                known.into_iter().for_each(|known| drop(self.policies.remove(known)));
                self.policies.insert(place, PolicyEntry { index, is_main, at, policy });
                let sign = if known.is_some() { '~' } else { '+' };
                line.map(|line| format!("{sign} {line}"))
            }
            Heard::PolicyGone(index) => self.policy_goes(index, ""),
            Heard::PolicyExpired { index, is_hard: true } => self.policy_goes(index, ": its life is over"),
            Heard::PolicyExpired { .. } | Heard::Done => None,
            Heard::PoliciesFlushed { is_main } => {
                self.policies.retain(|entry| entry.is_main != is_main);
                Some("- all policies".into())
            }
            Heard::Migrated => Some("MIGRATE: associations have other ends, so all is read anew".into()),
            Heard::Mapping => Some(
                "MAPPING: a peer behind NAT is to be found elsewhere; until IKE says so nothing changes"
                    .into(),
            ),
            Heard::Interrupted => Some("events were lost, so all is read anew".into()),
            Heard::Failed(code) => Some(format!("the kernel says error {code}")),
            Heard::Unclear(name) => {
                Some(format!("a message {name} of the kernel's is passed over: it is too short"))
            }
        }
    }

    /// The place that a policy has once it is updated to `policy`. The kernel puts one with another priority behind its new equals, as a new
    /// one, and leaves it before those of its list otherwise. Where lists or kernels differ, what lets pass is asked last.
    fn place_updated(&self, known: usize, policy: &FollowedPolicy) -> usize {
        match (self.policies[known].policy.policy(), policy.policy()) {
            (Some(before), Some(now)) if before.priority == now.priority => {
                let is_of_list = |other: &PolicyEntry| {
                    other.policy.policy().is_some_and(|other| now.is_listed_with(other))
                };
                match now.lets_pass() {
                    true => self.policies[..known].iter().rposition(is_of_list).map_or(0, |equal| equal + 1),
                    false => known,
                }
            }
            _ => 0,
        }
    }

    fn policy_goes(&mut self, index: u32, why: &str) -> Option<String> {
        let place = self.policies.iter().position(|entry| entry.index == index)?;
        let entry = self.policies.remove(place);
        entry.policy.is_told().then(|| format!("- {}{why}", entry.at))
    }

    /// Leaves an association out that the datapath refused.
    pub fn refuse(&mut self, name: &str, why: String) {
        let named = |entry: &&mut StateEntry| entry.name.as_deref() == Some(name);
        if let Some(entry) = self.states.iter_mut().find(named) {
            entry.refused = Some(why);
        }
    }

    /// Tries refused associations once more: the user of a key may have ended.
    pub fn forget_refusals(&mut self) {
        self.states.iter_mut().for_each(|entry| entry.refused = None);
    }

    /// The plan that an ESP with this running plan is to have, beside associations of these names that are of others.
    pub fn wanted(&mut self, running: &EspPlan, others: &BTreeSet<String>) -> WantedPlan {
        let mut notes = Vec::new();
        let own = &running.addresses;
        let policies = as_asked(self.policies.iter().collect(), |entry: &&PolicyEntry| {
            entry.policy.policy().map_or(0, |policy| policy.priority)
        });
        let known: Vec<&XfrmPolicy> = policies
            .iter()
            .filter_map(|entry| match &entry.policy {
                FollowedPolicy::Policy(policy) => Some(&**policy),
                _ => None,
            })
            .collect();
        let mut taken = others.clone();
        taken.extend(self.states.iter().filter_map(|entry| entry.name.clone()));
        let mut followed: Vec<(&XfrmState, AssociationPlan)> = Vec::new();
        let mut keys = Vec::new();
        // The oldest first: of two that cannot both be, the one that is there stays.
        for entry in self.states.iter_mut().rev() {
            let StateEntry { at, state, name, refused, .. } = entry;
            let state = match state {
                Followed::State(state) => {
                    if let Some(counts) =
                        state.key_file(&self.directory).and_then(|file| self.counted.get(&file))
                    {
                        [state.sealed, state.received] = *counts;
                    }
                    &**state
                }
                Followed::Unfinished => continue,
                Followed::Left(why) => {
                    notes.push(why.clone());
                    continue;
                }
            };
            let association = direction(state, &known, own).and_then(|is_inbound| {
                let called = String::new();
                let (mut plan, key) = state.association(called, is_inbound, &self.directory, &mut notes)?;
                state.require_own(&plan, followed.iter().map(|(_, other)| other))?;
                plan.name = name.get_or_insert_with(|| call(&plan, running, &mut taken)).clone();
                match refused {
                    Some(why) => Err(format!("{at}: {why}")),
                    None => Ok((plan, key)),
                }
            });
            match association {
                Ok((plan, key)) => {
                    keys.extend(key.map(|key| (plan.name.clone(), key)));
                    followed.push((state, plan));
                }
                Err(why) => notes.push(why),
            }
        }
        // The youngest first: the kernel seals with that.
        followed.reverse();
        let mut plans = Vec::new();
        for entry in &policies {
            if let Some(policy) = entry.policy.policy().filter(|policy| policy.is_inbound.is_none()) {
                notes.extend(policy.forwarded(policies.iter().filter_map(|entry| entry.policy.policy())));
                continue;
            }
            let (policy, discards) = match &entry.policy {
                FollowedPolicy::PassedOver => continue,
                FollowedPolicy::Left(why) | FollowedPolicy::LettingPass(_, why) => {
                    notes.push(why.clone());
                    continue;
                }
                FollowedPolicy::Policy(policy) => (policy, None),
                FollowedPolicy::Discarding(policy, why) => (policy, Some(why.clone())),
            };
            let associations = followed.iter().map(|(state, plan)| (*state, plan));
            let said = match discards {
                Some(why) => Err(why),
                None => {
                    notes.extend(policy.partly_taken(associations.clone()));
                    policy.policy(associations, &mut notes)
                }
            };
            plans.push(said.unwrap_or_else(|why| {
                notes.push(why);
                policy.discard()
            }));
        }
        keys.retain(|(name, _)| {
            let of = |plan: &&AssociationPlan| plan.name == *name;
            !followed.iter().any(|(_, plan)| of(&plan) && goes_on(running, plan))
        });
        let told = std::mem::replace(&mut self.told, notes.iter().cloned().collect());
        notes.retain(|note| !told.contains(note));
        let associations = followed.into_iter().map(|(_, plan)| plan).collect();
        let plan = EspPlan { associations, policies: plans, ..running.clone() };
        WantedPlan { plan, notes, keys }
    }
}

/// Notes what the kernel has sealed and received with the key of an association.
fn note_counts(counted: &mut BTreeMap<PathBuf, [u64; 2]>, directory: &Path, state: &Followed) {
    if let Followed::State(state) = state
        && state.sealed.max(state.received) > 0
        && let Some(file) = state.key_file(directory)
    {
        let [sealed, received] = counted.entry(file).or_default();
        (*sealed, *received) = (state.sealed.max(*sealed), state.received.max(*received));
    }
}

/// Returns whether an association opens, if its own end is an address of the ESP.
fn direction(state: &XfrmState, policies: &[&XfrmPolicy], own: &[IpAddr]) -> Result<bool, String> {
    let is_inbound = state.direction(policies.iter().copied(), own).ok_or_else(|| {
        let ends = match own.contains(&state.ends[0]) {
            true => "both ends are addresses",
            false => "neither end is an address",
        };
        format!("{}: {ends} of the esp, and no policy says whether it opens or seals", state.at)
    })?;
    let end = state.own_end(is_inbound);
    match own.contains(&end) {
        true => Ok(is_inbound),
        false => Err(format!("{}: {end} is no address of the esp: write it to its address", state.at)),
    }
}

/// The name of an association: that of the running one with its key, or one made of its direction and SPI.
fn call(plan: &AssociationPlan, running: &EspPlan, taken: &mut BTreeSet<String>) -> String {
    let is_it = |other: &&AssociationPlan| {
        (other.spi, other.is_inbound, &other.key_file) == (plan.spi, plan.is_inbound, &plan.key_file)
    };
    let mut name = format!("{}-{:08x}", if plan.is_inbound { "in" } else { "out" }, plan.spi);
    if let Some(other) = running.associations.iter().find(is_it).filter(|other| !taken.contains(&other.name))
    {
        name.clone_from(&other.name);
    }
    while !taken.insert(name.clone()) {
        name.push('x');
    }
    name
}

impl WantedPlan {
    /// Writes the keys of associations that do not run yet, and notes the files that it makes. Returns those that could not be written,
    /// by the names of their associations.
    pub fn write_keys(&self, files: &mut KeyFiles) -> Vec<(String, String)> {
        let mut failed: Vec<_> = Vec::new();
        for (name, key) in &self.keys {
            match key.write() {
                Ok(true) => files.note_made(key.path()),
                Ok(false) => {}
                Err(why) => failed.push((name.clone(), why)),
            }
        }
        if let Err(why) = new_key::sync_directories(self.keys.iter().map(|(_, key)| key)) {
            failed.extend(self.keys.iter().map(|(name, _)| (name.clone(), why.clone())));
        }
        failed
    }

    /// Returns whether an ESP that runs is as wanted. The order of its associations is no difference, because names tell them apart and no
    /// change of it is made.
    pub fn is_as(&self, running: &EspPlan) -> bool {
        let by_name = |plan: &EspPlan| {
            let mut plan = plan.clone();
            plan.associations.sort_by(|one, other| one.name.cmp(&other.name));
            plan
        };
        by_name(&self.plan) == by_name(running)
    }

    /// The associations that begin, by name: none that runs goes on as they are to be.
    pub fn new_names(&self, running: &EspPlan) -> BTreeSet<String> {
        let new = self.plan.associations.iter().filter(|plan| !goes_on(running, plan));
        new.map(|plan| plan.name.clone()).collect()
    }

    /// The names of new associations whose key runs: the one that has it ends first.
    pub fn renewed_names(&self, running: &EspPlan) -> BTreeSet<String> {
        let keeps_key = |plan: &&AssociationPlan| {
            let has = |other: &AssociationPlan| other.key_file.is_some() && other.key_file == plan.key_file;
            !goes_on(running, plan) && running.associations.iter().any(has)
        };
        self.plan.associations.iter().filter(keeps_key).map(|plan| plan.name.clone()).collect()
    }

    /// The plans of the ESP, one after the other: a key whose association ends and begins anew is given up in between.
    pub fn steps(&self, running: &EspPlan) -> Vec<EspPlan> {
        let kept = self.renewed_names(running);
        match kept.is_empty() {
            true => vec![self.plan.clone()],
            false => vec![without(&self.plan, &kept), self.plan.clone()],
        }
    }
}

/// Returns whether an association that runs goes on by this plan.
fn goes_on(running: &EspPlan, association: &AssociationPlan) -> bool {
    running.associations.iter().any(|running| running.goes_on_as(association))
}

/// A plan without these associations; a policy that had no other discards.
pub fn without(plan: &EspPlan, names: &BTreeSet<String>) -> EspPlan {
    let mut plan = plan.clone();
    plan.associations.retain(|association| !names.contains(&association.name));
    for policy in &mut plan.policies {
        policy.associations.retain(|name| !names.contains(name));
        if policy.verb == PolicyVerb::Protect && policy.associations.is_empty() {
            policy.verb = PolicyVerb::Discard;
        }
    }
    plan
}
