//! The identity of a namespace and an interface, which tells both from later ones of the same numbers.

use serde::{Deserialize, Serialize};

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
}

#[cfg(test)]
mod tests {
    use super::super::{Note, Owner, Thing};
    use super::*;

    #[test]
    fn a_note_is_only_of_the_namespace_and_interface_that_it_names() {
        let identity = |cookie, address, name: &str| Identity {
            namespace: Some(cookie),
            interface: Some(([address; 6], name.into())),
        };
        let thing = Thing { file: "1-2-queue".into(), name: "eth0".into(), identity: identity(7, 1, "eth0") };
        let note = |identity| Note { owner: Owner::this(None), identity, before: true };
        assert!(note(Some(thing.identity.clone())).is_of(&thing));
        for other in [identity(8, 1, "eth0"), identity(7, 2, "eth0"), identity(7, 1, "eth1")] {
            assert!(!note(Some(other)).is_of(&thing));
        }
        let mut earlier = serde_json::to_value(note(None)).unwrap();
        earlier.as_object_mut().unwrap().remove("identity");
        assert!(!serde_json::from_value::<Note<bool>>(earlier).unwrap().is_of(&thing));
    }
}
