//! Associations and policies of the kernel's IPsec, and their plans here.
//!
//! ```text
//! ip xfrm state, ip xfrm policy --`import/printed.rs`--> XfrmState,  --> AssociationPlan, key file
//! events of the kernel          --`follow/message.rs`--> XfrmPolicy  --> PolicyPlan
//! ```
//!
//! Rule: a key that has sealed a packet is refused, because its numbers would begin again. What the kernel has received with a key counts as
//! received here, up to the highest number, so that nobody sends it once more. A property that a file of Weir cannot express is
//! refused in a sentence that begins with where it was found; nothing of a key is in it. Of a policy of direction `fwd` none is made: the kernel
//! asks it of all that is forwarded, either way, and mostly it is the other half of one of `in`.
//!
//! Limits: a policy in transport mode whose selector holds several peers seals for all of them with the youngest association; the kernel
//! takes that of the packet's addresses. An association whose selector takes a part of what a policy names is none of that policy's.
//!
//! Pure. Source: the kernel's `xfrm_state_find` (which association a policy takes), `xfrm_policy_insert_list` (which policy is asked
//! first), `xfrm_state_look_at`, `xfrm_selector_match` (which packets an association takes), `policy_hash_bysel` and `xfrm_policy_inexact_alloc_chain` (in which list a policy is).

use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use weir_ipsec::algorithm::Algorithm;
use weir_ipsec::keepalive::EVERY_NS_DEFAULT;
use weir_ipsec::lifetime::Lifetime;
use weir_ipsec::policy::{AddressPrefix, Selector};
use weir_ipsec::replay::SIZE_MAX;
use weir_ipsec::tunnel::OuterDontFragment;
use weir_path::esp::plan::{AssociationPlan, PolicyPlan, PolicyVerb};
use zeroize::Zeroizing;

use super::new_key::NewKey;
use crate::topology::associations::{SPI_MIN, WINDOW_DEFAULT};

/// An association of the kernel.
pub(super) struct XfrmState {
    /// The places where the association, its window and its counter were found, for the user to know.
    pub at: String,
    pub window_at: String,
    pub sealed_at: String,
    pub ends: [IpAddr; 2],
    /// The packets that it takes, where these are not all of both families.
    pub selector: Option<Selector>,
    pub spi: u32,
    pub reqid: u32,
    pub is_tunnel: bool,
    /// True if the association opens packets, where the kernel says so (6.10).
    pub is_inbound: Option<bool>,
    pub window: u32,
    pub is_extended: bool,
    /// `nopmtudisc`: DF of the outer header is never set.
    pub is_df_clear: bool,
    pub aead: Option<XfrmKey>,
    pub auth: Option<XfrmKey>,
    pub enc: Option<XfrmKey>,
    pub udp_ports: Option<[u16; 2]>,
    /// After how long without a packet the kernel would send a keepalive, where it would.
    pub keepalive_ns: Option<u64>,
    /// Packets that the kernel has sealed with it.
    pub sealed: u64,
    /// The highest number that the kernel has received with it, if it looks for replays.
    pub received: u64,
    pub lifetime: Lifetime,
    /// A sentence on each property that is left out.
    pub left_out: Vec<String>,
}

/// A key, and its algorithm.
pub(super) struct XfrmKey {
    /// The place where the key was found.
    pub at: String,
    pub name: String,
    /// Hexadecimal digits.
    pub digits: Zeroizing<String>,
    pub icv_bits: u32,
}

/// A policy of the kernel.
pub(super) struct XfrmPolicy {
    /// The place where the policy was found, for the user to know.
    pub at: String,
    pub selector: Selector,
    /// True if the policy is of inbound packets; none if it is of those that the kernel forwards (`fwd`).
    pub is_inbound: Option<bool>,
    pub is_block: bool,
    pub priority: u32,
    pub templates: Vec<XfrmTemplate>,
}

/// The association that a policy asks for.
#[derive(PartialEq, Eq)]
pub(super) struct XfrmTemplate {
    pub ends: [IpAddr; 2],
    /// 0 is any.
    pub spi: u32,
    pub reqid: u32,
    pub is_tunnel: bool,
}

/// Policies in the order in which the kernel asks them, of an order in which it tells them, the youngest first: the lowest number first,
/// and of equal ones the oldest.
pub(super) fn as_asked<T>(mut policies: Vec<T>, priority: impl Fn(&T) -> u32) -> Vec<T> {
    policies.reverse();
    policies.sort_by_key(priority);
    policies
}

/// The sentence on a policy of what the kernel forwards (`fwd`) without a half of direction `in`, with the place where it was found.
pub(super) fn forwarded_alone(at: &str) -> String {
    format!(
        "{at}: a policy of what the kernel forwards (fwd) is left out, because Weir asks those of in and out alone: add it with dir in for what \
         comes in outside, and with dir out for what leaves there"
    )
}

impl XfrmPolicy {
    /// Returns whether packets that it names pass in the clear.
    pub fn lets_pass(&self) -> bool {
        !self.is_block && self.templates.is_empty()
    }

    /// Returns whether it and another have one priority and are in one list of the kernel's, if packets may be of both.
    pub fn is_listed_with(&self, other: &XfrmPolicy) -> bool {
        let rank = |of: &XfrmPolicy| (of.priority, of.is_inbound, list_of(&of.selector));
        rank(self) == rank(other)
            && overlap(&self.selector.source, &other.selector.source)
            && overlap(&self.selector.destination, &other.selector.destination)
    }
}

/// The list of the kernel's that a policy is in, among those of policies that overlap: whether both sides are single hosts, and which sides are
/// wide.
fn list_of(selector: &Selector) -> (bool, [bool; 2]) {
    let sides = [selector.source.parts(), selector.destination.parts()];
    let is_host = |(address, len): (IpAddr, u32)| len == if address.is_ipv4() { 32 } else { 128 };
    let is_wide = |(address, len): (IpAddr, u32)| {
        address.is_unspecified() || len < if address.is_ipv4() { 16 } else { 48 }
    };
    (sides.into_iter().all(is_host), sides.map(is_wide))
}

/// Returns whether an address is of both.
fn overlap(one: &AddressPrefix, other: &AddressPrefix) -> bool {
    let ((one, one_len), (other, other_len)) = (one.parts(), other.parts());
    let common = |address| AddressPrefix::new(address, one_len.min(other_len) as u8);
    common(one) == common(other)
}

/// Returns whether a packet may be of both selectors.
fn share(one: &Selector, other: &Selector) -> bool {
    type Ports = Option<RangeInclusive<u16>>;
    let ports_meet = |one: &Ports, other: &Ports| match (one, other) {
        (Some(one), Some(other)) => one.start() <= other.end() && other.start() <= one.end(),
        _ => true,
    };
    overlap(&one.source, &other.source)
        && overlap(&one.destination, &other.destination)
        && (one.protocol.is_none() || other.protocol.is_none() || one.protocol == other.protocol)
        && ports_meet(&one.source_ports, &other.source_ports)
        && ports_meet(&one.destination_ports, &other.destination_ports)
}

impl XfrmTemplate {
    /// Returns whether an association fits, whatever packets that one takes, of a policy with this selector. A template without an SPI or a
    /// reqid wants any.
    fn wants(&self, selector: &Selector, state: &XfrmState) -> bool {
        self.is_tunnel == state.is_tunnel
            && (self.spi == 0 || self.spi == state.spi)
            && (self.reqid == 0 || self.reqid == state.reqid)
            && self.has_ends(selector, state.ends)
    }

    /// Returns whether an association that fits has the direction of the policy. In transport mode a template that names no ends, with a
    /// wide selector, fits the one of the other direction too.
    fn tells_direction(&self, selector: &Selector, state: &XfrmState) -> bool {
        let [source, destination] = state.ends;
        self.is_tunnel || !self.has_ends(selector, [destination, source])
    }

    /// In place of an unspecified address the kernel takes that of the packet in transport mode, so the selector has to hold it.
    fn has_ends(&self, selector: &Selector, [source, destination]: [IpAddr; 2]) -> bool {
        let fits = |wanted: IpAddr, end: IpAddr, prefix: &AddressPrefix| match wanted.is_unspecified() {
            true => self.is_tunnel || holds(prefix, end),
            false => wanted == end,
        };
        let [from, to] = self.ends;
        fits(from, source, &selector.source) && fits(to, destination, &selector.destination)
    }
}

/// Returns whether an address is one of the prefix.
fn holds(prefix: &AddressPrefix, address: IpAddr) -> bool {
    let (_, len) = prefix.parts();
    u8::try_from(len).ok().and_then(|len| AddressPrefix::new(address, len)).as_ref() == Some(prefix)
}

impl XfrmState {
    /// The file of its key in `directory`, if it has a key that can be used.
    pub(super) fn key_file(&self, directory: &Path) -> Option<PathBuf> {
        let (algorithm, _, digits) = self.algorithm().ok()?;
        let key = NewKey::new(directory, algorithm, digits, None).ok()?;
        Some(key.path().to_path_buf())
    }

    /// Returns whether it opens: as the kernel says, or an address of the gateway's own, or the policies that want it. Policies say nothing
    /// that could be of both directions: a guess could seal with the key by which the peer seals.
    pub(super) fn direction<'a>(
        &self,
        policies: impl Iterator<Item = &'a XfrmPolicy>,
        own: &[IpAddr],
    ) -> Option<bool> {
        let [is_from, is_to] = self.ends.map(|end| own.contains(&end));
        let by_address = (is_from != is_to).then_some(is_to);
        let by_policy = || {
            let mut said =
                policies.filter(|policy| policy.tells_direction(self)).filter_map(|policy| policy.is_inbound);
            let first = said.next()?;
            said.all(|is_inbound| is_inbound == first).then_some(first)
        };
        self.is_inbound.or(by_address).or_else(by_policy)
    }

    /// Returns whether it takes all packets of a selector.
    fn takes(&self, selector: &Selector) -> bool {
        self.selector.as_ref().is_none_or(|own| own.covers(selector))
    }

    /// The end that is the gateway's own.
    pub(super) fn own_end(&self, is_inbound: bool) -> IpAddr {
        self.ends[usize::from(is_inbound)]
    }

    /// The plan of the association, under a name, and the key that is to be in `directory`, if it has one.
    ///
    /// # Errors
    /// If there can be no such plan, with the reason.
    pub(super) fn association(
        &self,
        name: String,
        is_inbound: bool,
        directory: &Path,
        notes: &mut Vec<String>,
    ) -> Result<(AssociationPlan, Option<NewKey>), String> {
        if self.sealed > 0 && !is_inbound {
            return Err(format!(
                "{}: the kernel has sent {} packets with the key of SPI {:#x}, and no number may be used twice with a key: have new \
                 keys agreed on, and take them over before anything is sent",
                self.sealed_at, self.sealed, self.spi
            ));
        }
        if self.spi < SPI_MIN {
            return Err(format!(
                "{}: SPI {:#x} is reserved: an SPI is at least {SPI_MIN:#x}",
                self.at, self.spi
            ));
        }
        let (algorithm, key_at, digits) = self.algorithm()?;
        let key = match algorithm.key_len() {
            0 => None,
            _ => Some(
                NewKey::new(directory, algorithm, digits, is_inbound.then_some(self.received))
                    .map_err(|why| format!("{key_at}: {why}"))?,
            ),
        };
        if self.window > SIZE_MAX {
            notes.push(format!(
                "{}: the replay window has {SIZE_MAX} packets, not {}",
                self.window_at, self.window
            ));
        }
        notes.extend(self.left_out.iter().cloned());
        if is_inbound && self.window == 0 {
            notes.push(format!(
                "{}: the kernel looks for no replays; here the window has {SIZE_MAX} packets",
                self.window_at
            ));
        }
        let window = match (is_inbound, self.window) {
            (false, _) => WINDOW_DEFAULT,
            (true, 0) => SIZE_MAX,
            (true, window) => window.min(SIZE_MAX),
        };
        let [source, destination] = self.ends;
        let dont_fragment =
            if self.is_df_clear { OuterDontFragment::Clear } else { OuterDontFragment::Copied };
        let plan = AssociationPlan {
            name,
            is_inbound,
            spi: self.spi,
            source,
            destination,
            is_tunnel: self.is_tunnel,
            algorithm,
            key_file: key.as_ref().map(|key| key.path().display().to_string()),
            is_extended: self.is_extended,
            window,
            udp_ports: self.udp_ports,
            follows_peer: false,
            keepalive_ns: self
                .udp_ports
                .filter(|_| !is_inbound)
                .map(|_| self.keepalive_ns.unwrap_or(EVERY_NS_DEFAULT)),
            dont_fragment,
            lifetime: self.lifetime,
        };
        Ok((plan, key))
    }

    /// Checks its plan beside others: an SPI leads to one association, and each has a key of its own.
    ///
    /// # Errors
    /// If it cannot be beside one of them, with the reason.
    pub(super) fn require_own<'a>(
        &self,
        plan: &AssociationPlan,
        mut others: impl Iterator<Item = &'a AssociationPlan> + Clone,
    ) -> Result<(), String> {
        let is_same_key =
            |other: &&AssociationPlan| other.key_file.is_some() && other.key_file == plan.key_file;
        if let Some(other) = others.clone().find(is_same_key) {
            return Err(format!(
                "{}: it has the key of {}, and each needs one of its own",
                self.at, other.name
            ));
        }
        match others.find(|other| plan.shares_spi_with(other)) {
            Some(other) => Err(format!("{}: {} has this SPI too", self.at, other.name)),
            None => Ok(()),
        }
    }

    /// Its algorithm, where its key was found, and that one's digits.
    fn algorithm(&self) -> Result<(Algorithm, &str, &str), String> {
        let of = |key: &Option<XfrmKey>| {
            key.as_ref().map(|key| (key.name.clone(), key.digits.len() / 2, key.icv_bits))
        };
        let (found, name) = match (of(&self.aead), of(&self.enc), of(&self.auth)) {
            (Some((name, len, icv_bits)), _, _) => {
                let found = match (name.as_str(), len, icv_bits) {
                    ("rfc4106(gcm(aes))", 20, 128) => Some(Algorithm::Aes128Gcm),
                    ("rfc4106(gcm(aes))", 36, 128) => Some(Algorithm::Aes256Gcm),
                    ("rfc7539esp(chacha20,poly1305)", 36, 128) => Some(Algorithm::ChaCha20Poly1305),
                    _ => None,
                };
                (found, format!("{name} with a key of {len} bytes and an ICV of {icv_bits} bits"))
            }
            (None, Some((name, ..)), auth) => {
                let is_null = ["ecb(cipher_null)", "cipher_null"].contains(&name.as_str());
                let proof = auth.as_ref().map(|(name, len, icv_bits)| (name.as_str(), *len, *icv_bits));
                let found = match proof {
                    None | Some(("digest_null", ..)) => Some(Algorithm::Null),
                    Some(("hmac(sha256)", 32, 128)) => Some(Algorithm::NullHmacSha256),
                    Some(_) => None,
                };
                let with =
                    auth.map_or_else(String::new, |(name, _, bits)| format!(" with {name} of {bits} bits"));
                (found.filter(|_| is_null), format!("{name}{with}"))
            }
            _ => (None, "no encryption, not even cipher_null,".into()),
        };
        let found = found.ok_or_else(|| {
            let known = Algorithm::ALL.map(Algorithm::name).join(", ");
            format!("{}: {name} is not built: Weir has {known}", self.wrong_at())
        })?;
        let key = if self.aead.is_some() { &self.aead } else { &self.auth };
        let key = key.as_ref().filter(|_| found.key_len() > 0);
        Ok(key.map_or((found, &self.at, ""), |key| (found, &key.at, &key.digits)))
    }

    /// The place of the algorithm that is not built: of the encryption, or without it of the proof.
    fn wrong_at(&self) -> &str {
        let is_null = |key: &&XfrmKey| ["ecb(cipher_null)", "cipher_null"].contains(&key.name.as_str());
        let encryption = self.aead.as_ref().or(self.enc.as_ref());
        let wrong = encryption.filter(|key| !is_null(key)).or(self.auth.as_ref()).or(encryption);
        wrong.map_or(&self.at, |key| &key.at)
    }
}

impl XfrmPolicy {
    /// Returns whether an association has its direction, because one of its templates wants it and not the one back too.
    fn tells_direction(&self, state: &XfrmState) -> bool {
        let tells = |template: &XfrmTemplate| {
            template.wants(&self.selector, state) && template.tells_direction(&self.selector, state)
        };
        self.templates.iter().any(tells)
    }

    /// The sentence on a policy of what the kernel forwards; none where one of `policies` says the same of direction `in`.
    pub(super) fn forwarded<'a>(&self, mut policies: impl Iterator<Item = &'a XfrmPolicy>) -> Option<String> {
        let content = |of: &'a XfrmPolicy| (of.is_block, &of.selector, &of.templates);
        let own = (self.is_block, &self.selector, &self.templates);
        let has_half = policies.any(|other| other.is_inbound == Some(true) && content(other) == own);
        (!has_half).then(|| forwarded_alone(&self.at))
    }

    /// The plan that discards what it names.
    pub(super) fn discard(&self) -> PolicyPlan {
        PolicyPlan {
            is_inbound: self.is_inbound.unwrap_or_default(),
            selector: self.selector.clone(),
            verb: PolicyVerb::Discard,
            associations: Vec::new(),
        }
    }

    /// The sentence on the first association that fits but for its selector, which takes a part of the packets that the policy names: the
    /// kernel decides packet by packet.
    pub(super) fn partly_taken<'a>(
        &self,
        mut associations: impl Iterator<Item = (&'a XfrmState, &'a AssociationPlan)>,
    ) -> Option<String> {
        let takes_part = |state: &XfrmState| {
            !state.takes(&self.selector)
                && state.selector.as_ref().is_some_and(|own| share(own, &self.selector))
                && self.templates.iter().any(|template| template.wants(&self.selector, state))
        };
        let (state, _) = associations.find(|(state, association)| {
            Some(association.is_inbound) == self.is_inbound && takes_part(state)
        })?;
        Some(format!(
            "{}: SPI {:#x} takes a part of what this policy names (sel), which cannot be said: make the policy as narrow",
            self.at, state.spi
        ))
    }

    /// The plan of the policy, by the associations that there are, the youngest first: the kernel seals with that.
    ///
    /// # Errors
    /// If there can be no such plan, with the reason.
    pub(super) fn policy<'a>(
        &self,
        associations: impl Iterator<Item = (&'a XfrmState, &'a AssociationPlan)>,
        notes: &mut Vec<String>,
    ) -> Result<PolicyPlan, String> {
        let is_inbound = self.is_inbound.unwrap_or_default();
        let (verb, wanted) = match (self.is_block, &self.templates[..]) {
            (true, _) => (PolicyVerb::Discard, None),
            (false, []) => (PolicyVerb::Bypass, None),
            (false, [template]) => (PolicyVerb::Protect, Some(template)),
            (false, _) => {
                return Err(format!(
                    "{}: several templates nest associations, which is not built: leave one",
                    self.at
                ));
            }
        };
        let fitting = associations.filter(|(state, association)| {
            association.is_inbound == is_inbound
                && state.takes(&self.selector)
                && wanted.is_some_and(|template| template.wants(&self.selector, state))
        });
        let names: Vec<String> = fitting.map(|(_, association)| association.name.clone()).collect();
        // Until there is an association the kernel lets nothing pass either.
        let verb = if wanted.is_some() && names.is_empty() {
            notes.push(format!("{}: no association is there for this policy, so it discards", self.at));
            PolicyVerb::Discard
        } else {
            verb
        };
        Ok(PolicyPlan { is_inbound, selector: self.selector.clone(), verb, associations: names })
    }
}
