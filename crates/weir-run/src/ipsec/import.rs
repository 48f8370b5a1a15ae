//! Associations and policies of the kernel's IPsec as tables of a topology file, and their keys as key files.
//!
//! ```text
//! ip xfrm state, ip xfrm policy --read (`import/xfrm.rs`)--> Import --> tables for `weir up`
//!                                                                   --> KEY_FILE, and for what goes out KEY_FILE.sequence
//! ```
//!
//! Rule: a key that has sealed a packet is refused, because its numbers would begin again. A key file is made once, by [`Import::write_keys`];
//! one that is there already must have the same key, and its mark of sequence numbers is never touched.
//!
//! Limits: what the kernel seals with the key after it was read, nobody sees here: from then on it is Weir's. The lifetime of an
//! association begins when it runs.

#[cfg(test)]
mod tests;
mod xfrm;

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use weir_ipsec::replay::SIZE_MAX;
use weir_ipsec::tunnel::OuterDontFragment;
use weir_path::esp::plan::{AssociationPlan, EspDispatch, EspPlan, PolicyPlan, PolicyVerb};
use zeroize::Zeroizing;

use self::xfrm::{Listed, ListedPolicy, ListedState, Template};
use super::marks;
use crate::topology::associations::WINDOW_DEFAULT;
use crate::topology::routers::MTU_DEFAULT;

/// The mark of a key that was never used.
const UNUSED: &str = "1\n";

/// What was read, and is not in any file yet.
pub struct Import {
    /// The ESP that has it all.
    pub plan: EspPlan,
    /// What is left out, a line each.
    pub notes: Vec<String>,
    keys: Vec<NewKey>,
}

struct NewKey {
    path: PathBuf,
    digits: Zeroizing<String>,
    is_inbound: bool,
}

/// Reads what `ip xfrm state` and `ip xfrm policy` print. Key files are to be in `directory`; what comes from one of the addresses `own`
/// goes out, where neither the kernel nor a policy says so.
///
/// # Errors
/// What cannot be taken over, with its line; no key is in it.
pub fn read(text: &str, directory: &Path, own: &[IpAddr]) -> Result<Import, String> {
    let Listed { states, mut policies, mut notes } = xfrm::read(text)?;
    policies.retain(|policy| policy.is_inbound.is_some());
    // The kernel asks the lowest number first.
    policies.sort_by_key(|policy| policy.priority);
    let mut taken = BTreeSet::new();
    let (mut associations, mut keys) = (Vec::new(), Vec::new());
    for state in &states {
        let [source, destination] = state.ends;
        let is_inbound = direction(state, &policies, own).ok_or_else(|| {
            format!(
                "line {}: whether SPI {:#x} opens or seals is said by no policy: name the gateway's own addresses, such as --own {source}",
                state.line, state.spi
            )
        })?;
        if state.sealed > 0 && !is_inbound {
            return Err(format!(
                "line {}: the kernel has sent {} packets with the key of SPI {:#x}, and no number may be used twice with a key: have new \
                 keys agreed on, and import them before anything is sent",
                state.line, state.sealed, state.spi
            ));
        }
        let mut name = format!("{}-{:08x}", if is_inbound { "in" } else { "out" }, state.spi);
        while !taken.insert(name.clone()) {
            name.push('x');
        }
        let (algorithm, digits) = state.algorithm()?;
        let path = directory.join(format!("{name}.key"));
        let key_file = (algorithm.key_len() > 0).then(|| path.display().to_string());
        if key_file.is_some() {
            keys.push(NewKey { path, digits: Zeroizing::new(digits.into()), is_inbound });
        }
        if state.window > SIZE_MAX {
            notes.push(format!(
                "line {}: the replay window has {SIZE_MAX} packets, not {}",
                state.line, state.window
            ));
        }
        let window = if is_inbound && state.window > 0 { state.window.min(SIZE_MAX) } else { WINDOW_DEFAULT };
        associations.push(AssociationPlan {
            name,
            is_inbound,
            spi: state.spi,
            source,
            destination,
            is_tunnel: state.is_tunnel,
            algorithm,
            key_file,
            is_extended: state.is_extended,
            window,
            udp_ports: state.udp_ports,
            keepalive_ns: state
                .udp_ports
                .filter(|_| !is_inbound)
                .map(|_| weir_ipsec::keepalive::EVERY_NS_DEFAULT),
            dont_fragment: if state.is_df_clear {
                OuterDontFragment::Clear
            } else {
                OuterDontFragment::Copied
            },
            lifetime: state.lifetime,
        });
    }
    let mut plans = Vec::new();
    for policy in policies {
        plans.push(policy_plan(policy, &states, &associations, &mut notes)?);
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

/// Whether an association opens: as the kernel says, or a policy that wants it, or an address of its own.
fn direction(state: &ListedState, policies: &[ListedPolicy], own: &[IpAddr]) -> Option<bool> {
    let wants = |policy: &&ListedPolicy| policy.templates.iter().any(|template| template.wants(state));
    let by_address = || {
        let [is_out, is_in] = state.ends.map(|end| own.contains(&end));
        (is_out != is_in).then_some(is_in)
    };
    let by_policy = || policies.iter().find(wants).and_then(|policy| policy.is_inbound);
    state.is_inbound.or_else(by_policy).or_else(by_address)
}

impl Template {
    /// As the kernel's `xfrm_state_find` matches: a template of reqid 0 wants any, and unspecified addresses in transport mode too.
    fn wants(&self, state: &ListedState) -> bool {
        let fits = |(wanted, end): (IpAddr, IpAddr)| wanted.is_unspecified() || wanted == end;
        self.is_tunnel == state.is_tunnel
            && (self.reqid == 0 || self.reqid == state.reqid)
            && self.ends.into_iter().zip(state.ends).all(fits)
    }
}

fn policy_plan(
    policy: ListedPolicy,
    states: &[ListedState],
    associations: &[AssociationPlan],
    notes: &mut Vec<String>,
) -> Result<PolicyPlan, String> {
    let ListedPolicy { line, selector, is_inbound, is_block, templates, .. } = policy;
    let is_inbound = is_inbound.unwrap_or_default();
    let (verb, wanted) = match (is_block, &templates[..]) {
        (true, _) => (PolicyVerb::Discard, None),
        (false, []) => (PolicyVerb::Bypass, None),
        (false, [template]) => (PolicyVerb::Protect, Some(template)),
        (false, _) => {
            return Err(format!(
                "line {line}: several templates nest associations, which is not built: leave one"
            ));
        }
    };
    // The kernel prints the youngest first, and seals with that.
    let fitting = states.iter().zip(associations).filter(|(state, association)| {
        association.is_inbound == is_inbound && wanted.is_some_and(|template| template.wants(state))
    });
    let names: Vec<String> = fitting.map(|(_, association)| association.name.clone()).collect();
    // Until there is one the kernel lets nothing pass either.
    let verb = if wanted.is_some() && names.is_empty() {
        notes.push(format!(
            "line {line}: no association is there for this policy, so it discards: import what both `ip xfrm state` and `ip xfrm policy` \
             print, when IKE is done"
        ));
        PolicyVerb::Discard
    } else {
        verb
    };
    Ok(PolicyPlan { is_inbound, selector, verb, associations: names })
}

impl Import {
    /// Writes the keys. A file that is there already is left as it is, if it has the same key.
    ///
    /// # Errors
    /// What cannot be written, or is another key's. The files before it are whole.
    pub fn write_keys(&self) -> Result<(), String> {
        for key in &self.keys {
            key.write().map_err(|why| format!("{}: {why}", key.path.display()))?;
        }
        // A file is there when its directory says so.
        for directory in self.keys.iter().filter_map(|key| key.path.parent()).collect::<BTreeSet<_>>() {
            let directory = if directory.as_os_str().is_empty() { Path::new(".") } else { directory };
            let synced = File::open(directory).and_then(|directory| directory.sync_all());
            synced.map_err(|why| format!("{}: {why}", directory.display()))?;
        }
        Ok(())
    }
}

impl NewKey {
    fn write(&self) -> Result<(), String> {
        let told = |error: io::Error| error.to_string();
        match std::fs::read_to_string(&self.path).map(Zeroizing::new) {
            Ok(there) if there.trim() == self.digits.as_str() => return Ok(()),
            Ok(_) => return Err("this is another key: name another directory with --keys".into()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(told(error)),
        }
        if !self.is_inbound {
            // First: a key without a mark is refused by whoever runs it; a mark of no number, left by one who was cut off, is as good.
            let mark = marks::path(&self.path);
            match std::fs::read_to_string(&mark) {
                Ok(there) if there == UNUSED => {}
                Ok(_) => return Err(format!("{} is of another key: name another directory", mark.display())),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    create(&mark, UNUSED).map_err(|error| format!("beside it {}: {error}", mark.display()))?
                }
                // Whatever is in it, it is not ours to replace.
                Err(error) => return Err(format!("beside it {}: {error}", mark.display())),
            }
        }
        create(&self.path, &self.digits).map_err(told)
    }
}

/// Makes a file that only its owner can read. It is there as a whole or not at all.
fn create(path: &Path, text: &str) -> io::Result<()> {
    let mut new = path.as_os_str().to_owned();
    new.push(".new");
    // Whoever left it was cut off.
    match std::fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    std::fs::rename(&new, path)
}
