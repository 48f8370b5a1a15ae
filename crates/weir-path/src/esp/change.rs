//! A change of an ESP stage: associations that go on, begin and end, and the policies.
//!
//! Rule: a change is one step. No packet is decided on by a part of it.
//!
//! Owner: the stage.

use weir_ipsec::esp::UDP_PORT;
use weir_ipsec::policy::{BundleId, Policies, PolicyAction, SecurityPolicy, Selector};

use super::frame::prefix;
use super::plan::{AssociationKey, AssociationPlan, EspChange, PolicyPlan, PolicyVerb};
use super::state::RunningAssociation;
use super::{Esp, OUTSIDE};

impl Esp {
    /// Carries out a change, in one step. Associations without a new key go on; the others end, or begin.
    ///
    /// # Panics
    /// If an association is to go on that does not run, or that cannot go on by its new plan.
    pub(crate) fn change(&mut self, change: EspChange, now_ns: u64) {
        let EspChange { plan, keys } = change;
        self.begin_and_end(plan.associations.into_iter().zip(keys), now_ns);
        (self.addresses, self.plan_bytes) = (plan.addresses, plan.mtu_bytes);
        self.set_way_bytes(OUTSIDE, self.way_bytes[usize::from(OUTSIDE)]);
        self.set_policies(plan.policies);
    }

    /// Notes that the machine slept for so long while the clock stood still: associations that were there then are older by that.
    pub(crate) fn note_asleep(&mut self, slept_ns: u64) {
        self.associations.iter_mut().for_each(|running| running.note_asleep(slept_ns));
    }

    fn begin_and_end(
        &mut self,
        associations: impl Iterator<Item = (AssociationPlan, Option<AssociationKey>)>,
        now_ns: u64,
    ) {
        let mut before = std::mem::take(&mut self.associations);
        let known: Vec<_> = before
            .iter()
            .map(|running| {
                let RunningAssociation { plan, path_mtu, peer, .. } = running;
                ((plan.ends(), plan.udp_ports), plan.peer_in_udp(), *path_mtu, *peer)
            })
            .collect();
        for (plan, key) in associations {
            let association = match key {
                Some(key) => {
                    self.begun += 1;
                    let mut running = RunningAssociation::new(plan, key, self.begun, now_ns);
                    // A new key goes the way that the one before went.
                    let way = (running.plan.ends(), running.plan.udp_ports);
                    let same = known.iter().find(|&&(known, ..)| known == way);
                    // Where none went that way, the peer is where its packets come from.
                    let planned = running.plan.peer_in_udp();
                    let heard = known.iter().filter(|&&(_, known, ..)| known == planned);
                    let heard = heard.filter_map(|&(.., peer)| peer).next_back();
                    if let Some(peer) = same.map_or(heard, |&(.., peer)| peer) {
                        running.send_to(peer);
                    }
                    if let Some(&(.., path_mtu, _)) = same {
                        running.path_mtu = path_mtu;
                    }
                    running
                }
                None => {
                    let place = before.iter().position(|running| running.plan.goes_on_as(&plan));
                    let mut running = before.swap_remove(place.expect("an association goes on that runs"));
                    running.go_on_as(plan);
                    running
                }
            };
            self.associations.push(association);
        }
        let inbound = self.associations.iter().enumerate().filter(|(_, running)| running.plan.is_inbound);
        self.by_spi = inbound.clone().map(|(place, running)| (running.plan.spi, place)).collect();
        self.by_spi.sort_unstable();
        self.udp_ports =
            inbound.filter_map(|(_, running)| running.plan.udp_ports).map(|[_, to]| to).collect();
        if self.udp_ports.is_empty() {
            self.udp_ports.push(UDP_PORT);
        }
        self.udp_ports.sort_unstable();
        self.udp_ports.dedup();
        // One whose limits were raised may live again, and have a keepalive to send.
        self.keepalive_ns = Some(now_ns);
    }

    fn set_policies(&mut self, policies: Vec<PolicyPlan>) {
        self.bundles.clear();
        self.associations.iter_mut().for_each(|running| running.bundles.clear());
        let mut lists = [Vec::new(), Vec::new()];
        for policy in policies {
            let bundle = BundleId(self.bundles.len() as u32);
            let action = match policy.verb {
                PolicyVerb::Bypass => PolicyAction::Bypass,
                PolicyVerb::Discard => PolicyAction::Discard,
                PolicyVerb::Protect => {
                    let place = |name: &String| {
                        self.associations.iter().position(|running| running.plan.name == *name)
                    };
                    let places: Vec<_> = policy.associations.iter().filter_map(place).collect();
                    places.iter().for_each(|&place| self.associations[place].bundles.push(bundle));
                    self.bundles.push(places);
                    PolicyAction::Protect(bundle)
                }
            };
            let list = &mut lists[usize::from(policy.is_inbound)];
            list.push(SecurityPolicy { selector: policy.selector, action });
        }
        // The policies of the gateway's own packets come last.
        for &address in &self.addresses {
            let (any, own) = (prefix(address, 0), prefix(address, if address.is_ipv4() { 32 } else { 128 }));
            for (list, [source, destination]) in lists.iter_mut().zip([[own, any], [any, own]]) {
                let selector = Selector {
                    source,
                    destination,
                    protocol: None,
                    source_ports: None,
                    destination_ports: None,
                };
                list.push(SecurityPolicy { selector, action: PolicyAction::Bypass });
            }
        }
        let [outbound, inbound] = lists;
        (self.outbound, self.inbound) = (Policies::new(outbound), Policies::new(inbound));
    }
}
