//! Acting on what a look found: the events are noted, and the remedies carried out.
//!
//! Rule: a remedy that fails is tried in the next round, because something may just have gone or moved on; so are queues that cannot be
//! owned again (`owning.rs`). What fails for [`FAILING_NS_MAX`] is given up: a wire ends, and a topology goes on without the port, so that no
//! pair ends what others use.
//!
//! Owner: the watcher's thread.

use std::collections::BTreeMap;
use std::sync::Arc;

use weir_port::link::Link;
use weir_port::netns::NetNs;
use weir_port::view::Pair;

use super::ledger::InterfaceEvent;
use super::remedy::Remedy;
use super::{Records, SENDER, Watcher, locked, mending};
use crate::clock::now_ns;
use crate::datapath::Kind;
use crate::moved;

/// The time for which a pair may fail to be put right, in nanoseconds.
const FAILING_NS_MAX: u64 = 2_000_000_000;

/// The remedies for a pair, and where its other end is.
pub(super) struct Finding {
    pub(super) pair: usize,
    /// The namespace of its other end now.
    pub(super) place: Arc<NetNs>,
    /// True if that is another than before.
    pub(super) has_moved: bool,
    /// The remedies for the port, and for its other end.
    pub(super) remedies: [Vec<Remedy>; 2],
}

impl Watcher {
    /// Acts on the findings of a round.
    pub(super) fn act_on(&mut self, findings: Vec<Finding>, records: &Records) {
        let now = now_ns();
        let before = std::mem::take(&mut self.failing_since_ns);
        let mut failing = BTreeMap::new();
        for finding in findings {
            let pair = finding.pair;
            if self.is_over {
                return;
            }
            let acted = self.act(finding, records).map_err(|error| error.to_string());
            let Some(fault) = acted.err().or_else(|| self.owning.fault(pair).cloned()) else { continue };
            let since_ns = *before.get(&pair).unwrap_or(&now);
            if now - since_ns < FAILING_NS_MAX {
                failing.insert(pair, since_ns);
            } else {
                self.give_up(pair, fault, records);
            }
        }
        self.failing_since_ns = failing;
    }

    /// Notes the events of a finding, before drops are booked. A move explains all that comes with it.
    pub(super) fn note(&mut self, finding: &Finding, waiting: &[u64]) {
        let Finding { pair, has_moved, remedies, .. } = finding;
        let now = now_ns();
        if *has_moved {
            return self.ledger.note(InterfaceEvent::Moved, waiting[2 * pair + SENDER], now);
        }
        for (end, remedies) in remedies.iter().enumerate() {
            for remedy in remedies {
                match remedy {
                    Remedy::Follow(event, _) => self.ledger.note(*event, 0, now),
                    Remedy::FillChecksums => self.ledger.note(InterfaceEvent::ChecksumOffload, 0, now),
                    Remedy::TagFrames => self.ledger.note(InterfaceEvent::TagInsertion, 0, now),
                    Remedy::PutProgramFirst => self.ledger.note(InterfaceEvent::ProgramBefore, 0, now),
                    Remedy::PutQueueBack => {
                        self.ledger.note(InterfaceEvent::QueueReplaced, waiting[2 * pair + end], now);
                    }
                    Remedy::Refuse(_) => {}
                }
            }
        }
    }

    /// Carries out the remedies of a finding.
    fn act(&mut self, finding: Finding, records: &Records) -> weir_port::Result<()> {
        let Finding { pair, place, has_moved, remedies } = finding;
        let (Some(port), Some(sender)) = (&self.views[2 * pair], &self.views[2 * pair + SENDER]) else {
            return Ok(());
        };
        let views = [port.clone(), sender.clone()];
        let links = views.each_ref().map(|view| view.link.clone());
        let Some(known) = self.pairs[pair].clone() else { return Ok(()) };
        let mut said = Vec::new();
        let mut is_news = false;
        if has_moved {
            self.go_along(pair, &place, &links[SENDER], records)?;
        }
        let home = NetNs::current()?;
        for (end, (netns, remedies)) in [&home, &*place].into_iter().zip(remedies).enumerate() {
            let is_arranged = has_moved && end == SENDER;
            for remedy in remedies {
                match remedy {
                    Remedy::Follow(_, text) => {
                        is_news = true;
                        said.push(text);
                    }
                    Remedy::Refuse(why) => {
                        self.give_up(pair, why, records);
                        return Ok(());
                    }
                    Remedy::PutProgramFirst => {
                        said.push(mending::put_first(&known.doorbell, netns, &views[end])?);
                    }
                    _ if is_arranged => {}
                    settings => {
                        said.extend(mending::put_right(&settings, self.crew.kind(), netns, &views[end])?)
                    }
                }
            }
        }
        let [port, sender] = links;
        let now = Pair { port, sender_netns: place, sender, ..known };
        if is_news {
            self.crew.follow(pair, now.clone());
        }
        self.pairs[pair] = Some(now);
        said.into_iter().for_each(|text| self.say(text));
        Ok(())
    }

    /// Goes on with a pair whose other end is in another place now. All that happens to the pair from here on is of the new place.
    fn go_along(
        &mut self,
        pair: usize,
        place: &Arc<NetNs>,
        sender: &Link,
        records: &Records,
    ) -> weir_port::Result<()> {
        let Some(known) = &self.pairs[pair] else { return Ok(()) };
        let is_taken = |place| self.is_anothers(pair, place);
        let now = moved::go_along(known, place, sender, &mut *locked(records), is_taken)?;
        self.crew.follow(pair, now.clone());
        // An interface that came up while its other end moved could not be owned again until now.
        self.retake(pair);
        self.say(format!(
            "{}, the other end of {}, is in another network namespace now: going on there",
            sender.name, now.port.name
        ));
        self.pairs[pair] = Some(now);
        Ok(())
    }

    /// Returns whether an end of another pair is known to be in this place, given by its namespace and number.
    fn is_anothers(&self, pair: usize, place: (u64, u32)) -> bool {
        let is_home = NetNs::current().is_ok_and(|home| home.inode() == place.0);
        let others = self.pairs.iter().enumerate().filter(|(other, _)| *other != pair);
        others.filter_map(|(_, other)| other.as_ref()).any(|other| {
            (other.sender_netns.inode(), other.sender.ifindex) == place
                || is_home && other.port.ifindex == place.1
        })
    }

    /// Goes on without a pair that is not fit any more.
    fn give_up(&mut self, pair: usize, why: String, records: &Records) {
        match self.crew.kind() {
            Kind::Wire => self.end(why),
            Kind::Topology => self.refuse(pair, &why, records),
        }
    }
}
