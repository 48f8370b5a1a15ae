//! The identity of a namespace and an interface, which tells both from later ones of the same numbers.
//!
//! The kernel never gives the cookie of a namespace again. The number of an interface it gives again to whoever asks for that number
//! (`ip link add index N`). An interface may get another name or address meanwhile, so that one of them is the same is enough. Where the
//! kernel has no cookies (before Linux 5.14), both have to be the same.

use std::io;

use serde::{Deserialize, Serialize};

use crate::error::{PortError, Result};
use crate::link::Link;
use crate::netns::NetNs;

/// The namespace and interface that a thing is of, told from later ones of the same numbers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Identity {
    /// [`NetNs::cookie`] of the namespace.
    pub(super) namespace: Option<u64>,
    /// The interface's address and name; `None` of a setting.
    pub(super) interface: Option<([u8; 6], String)>,
}

impl Identity {
    /// The identity of an interface of a namespace, or of the namespace alone.
    pub(super) fn of(netns: &NetNs, link: Option<&Link>) -> Identity {
        let interface = link.map(|link| (link.address, link.name.clone()));
        Identity { namespace: netns.cookie(), interface }
    }

    /// Returns whether it is of this namespace and interface, if their numbers are the same.
    ///
    /// # Errors
    /// If the cookie of the namespace cannot be had now, though it could be when this was noted.
    pub(super) fn is_of(&self, netns: &NetNs, link: Option<&Link>) -> Result<bool> {
        let now = Identity::of(netns, link);
        if self.namespace.is_some() && now.namespace.is_none() {
            return Err(PortError::Kernel {
                doing: format!("asking for the cookie of {}", netns.label()),
                source: io::Error::other("the kernel gives none now"),
            });
        }
        Ok(self.is_same(&now))
    }

    /// Returns whether both are of one interface, if their numbers are the same.
    pub(super) fn is_same(&self, other: &Identity) -> bool {
        match (self.namespace, other.namespace) {
            (Some(own), Some(others)) => own == others && self.is_alike(other),
            _ => self == other,
        }
    }

    /// Returns whether the interfaces have the same name or the same address, or there are none.
    fn is_alike(&self, other: &Identity) -> bool {
        match (&self.interface, &other.interface) {
            (Some((address, name)), Some((others, other_name))) => address == others || name == other_name,
            (own, others) => own == others,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Note, Owner, Thing};
    use super::*;

    #[test]
    fn a_note_is_only_of_the_namespace_and_interface_that_it_names() {
        let identity = |namespace, address, name: &str| Identity {
            namespace,
            interface: Some(([address; 6], name.into())),
        };
        let of = |identity| Thing { file: "1-2-queue".into(), name: "eth0".into(), identity };
        let note = |identity| Note { owner: Owner::this(None), identity, before: true };
        let thing = of(identity(Some(7), 1, "eth0"));
        for same in [thing.identity.clone(), identity(Some(7), 2, "eth0"), identity(Some(7), 1, "renamed")] {
            assert!(note(same).is_of(&thing));
        }
        for other in [identity(Some(8), 1, "eth0"), identity(Some(7), 2, "another")] {
            assert!(!note(other).is_of(&thing));
        }
        let setting = |namespace| Identity { namespace: Some(namespace), interface: None };
        assert!(setting(7).is_same(&setting(7)) && !setting(7).is_same(&setting(8)));
        let without = of(identity(None, 1, "eth0"));
        assert!(note(without.identity.clone()).is_of(&without));
        for other in [identity(None, 2, "eth0"), identity(None, 1, "eth1")] {
            assert!(!note(other).is_of(&without));
        }
        let mut earlier = serde_json::to_value(note(thing.identity)).unwrap();
        earlier.as_object_mut().unwrap().remove("identity");
        assert!(serde_json::from_value::<Note<bool>>(earlier).is_err(), "told as unreadable, and kept");
    }
}
