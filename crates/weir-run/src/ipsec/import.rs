//! Associations and policies of the kernel's IPsec as tables of a topology file, and their keys as key files.
//!
//! ```text
//! ip xfrm state, ip xfrm policy --read (`import/printed.rs`)--> Import --> tables for `weir up`
//!                                                                      --> key files (`ipsec/new_key.rs`)
//! ```
//!
//! Rule: everything is taken over, or the first thing that cannot be is told. `ipsec/xfrm.rs` says what can be.
//!
//! Limits: packets that the kernel seals with the key after it was read, nobody sees here: from then on the key is Weir's. The lifetime of
//! an association begins when it runs.

mod printed;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::path::Path;

use weir_ipsec::policy::Selector;
use weir_path::esp::plan::{EspDispatch, EspPlan, PolicyVerb};

use self::printed::Listed;
use super::new_key::{self, NewKey};
use super::xfrm::as_asked;
use crate::topology::routers::MTU_DEFAULT;

/// Associations, policies and keys that were read, and are not in any file yet.
pub struct Import {
    /// The ESP with all associations and policies.
    pub plan: EspPlan,
    /// A line for each thing that is left out.
    pub notes: Vec<String>,
    keys: Vec<NewKey>,
}

/// Reads the output of `ip xfrm state` and `ip xfrm policy`. Key files are to be in `directory`. Where the kernel does not say it, an
/// association from one of the addresses `own` is outbound, and one to them inbound; the policies say it of others.
///
/// # Errors
/// If something cannot be taken over, with its line; no key is in the message.
pub fn read(text: &str, directory: &Path, own: &[IpAddr]) -> Result<Import, String> {
    let Listed { states, policies, last_policy_at, mut notes } = printed::read(text)?;
    let policies = as_asked(policies, |policy| policy.priority);
    let mut taken = BTreeSet::new();
    let (mut associations, mut keys) = (Vec::new(), Vec::new());
    for state in &states {
        let is_inbound = state.direction(policies.iter(), own).ok_or_else(|| {
            format!(
                "{}: the policies do not say whether SPI {:#x} opens or seals: name this gateway's own addresses by --own",
                state.at, state.spi
            )
        })?;
        let end = state.own_end(is_inbound);
        if !own.is_empty() && !own.contains(&end) {
            return Err(format!(
                "{}: {end} is this gateway's end of SPI {:#x} and none of its own addresses: name all of them by --own",
                state.at, state.spi
            ));
        }
        let mut name = format!("{}-{:08x}", if is_inbound { "in" } else { "out" }, state.spi);
        while !taken.insert(name.clone()) {
            name.push('x');
        }
        let (association, key) = state.association(name, is_inbound, directory, &mut notes)?;
        state.require_own(&association, associations.iter())?;
        associations.push(association);
        keys.extend(key);
    }
    let mut plans = Vec::new();
    for policy in &policies {
        if policy.is_inbound.is_none() {
            notes.extend(policy.forwarded(policies.iter()));
            continue;
        }
        if let Some(why) = policy.partly_taken(states.iter().zip(&associations)) {
            return Err(why);
        }
        let plan = policy.policy(states.iter().zip(&associations), &mut notes)?;
        if plan.verb == PolicyVerb::Bypass && !is_of_ike(&plan.selector) {
            let is_last = policy.at == last_policy_at;
            let last = if is_last { "; it is the last policy, so the input may be cut off" } else { "" };
            let [from, to] = [plan.selector.source, plan.selector.destination].map(|prefix| {
                let (address, len) = prefix.parts();
                format!("{address}/{len}")
            });
            notes.push(format!(
                "{}: {from} to {to} passes in the clear: the policy has no tmpl{last}",
                policy.at
            ));
        }
        plans.push(plan);
    }
    let local = associations.iter().map(|of| if of.is_inbound { of.destination } else { of.source });
    let addresses: BTreeSet<IpAddr> = local.collect();
    let plan = EspPlan {
        addresses: addresses.into_iter().collect(),
        mtu_bytes: MTU_DEFAULT,
        associations,
        policies: plans,
        dispatch: EspDispatch::default(),
    };
    Ok(Import { plan, notes, keys })
}

/// Returns whether a policy lets the key exchange itself pass, and nothing else.
fn is_of_ike(selector: &Selector) -> bool {
    const UDP: u8 = 17;
    let is_ike = |ports: &Option<RangeInclusive<u16>>| {
        ports.as_ref().is_some_and(|ports| [500..=500, 4500..=4500].contains(ports))
    };
    selector.protocol == Some(UDP) && (is_ike(&selector.source_ports) || is_ike(&selector.destination_ports))
}

impl Import {
    /// Writes the keys. A file that is there already is left as it is, if it has the same key.
    ///
    /// # Errors
    /// If a file cannot be written, or is another key's. The files before it are whole.
    pub fn write_keys(&self) -> Result<(), String> {
        self.keys.iter().try_for_each(|key| key.write().map(drop))?;
        new_key::sync_directories(self.keys.iter())
    }
}
