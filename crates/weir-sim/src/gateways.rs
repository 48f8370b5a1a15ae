//! ESP stages for tests of the paths around them: one of two gateways with a tunnel between two networks, and its keys.
//!
//! Pure. Limits: IPv4; its keys are public, and its numbers need no mark on a disk unless a test brings one.

use std::net::IpAddr;

use weir_ipsec::algorithm::{Algorithm, KeyMaterial, Transform};
use weir_ipsec::lifetime::Lifetime;
use weir_ipsec::policy::{AddressPrefix, Selector};
use weir_ipsec::replay::SIZE_MAX;
use weir_ipsec::sequence::SequenceNumbers;
use weir_ipsec::tunnel::OuterDontFragment;
use weir_path::esp::marks::{SequenceMark, Unmarked};
use weir_path::esp::plan::{
    AssociationKey, AssociationNumbers, AssociationPlan, EspChange, EspDispatch, EspPlan, PolicyPlan,
    PolicyVerb,
};
use weir_path::plan::{StageKind, StagePlan};

/// The outer address of each gateway.
pub const GATEWAYS: [[u8; 4]; 2] = [[192, 0, 2, 1], [192, 0, 2, 2]];
/// The address of a station in the network of 16 bits behind each gateway.
pub const STATIONS: [[u8; 4]; 2] = [[10, 1, 0, 2], [10, 2, 0, 2]];
/// The sequence numbers that are reserved at once.
const AHEAD: u64 = 1 << 20;
/// The numbers reserved at once where a test says when a mark is safe.
pub const AHEAD_ASKED: u64 = 64;

/// Gateway `own` of the two, by this algorithm.
pub fn gateway(own: usize, algorithm: Algorithm, dispatch: EspDispatch) -> StagePlan {
    let plan = EspPlan {
        addresses: vec![GATEWAYS[own].into()],
        mtu_bytes: 1500,
        associations: (0..2).map(|from| association(from, own, algorithm)).collect(),
        policies: (0..2).map(|from| policy(from, own)).collect(),
        dispatch,
    };
    StagePlan { name: format!("gw-{own}"), kind: StageKind::Esp(Box::new(plan)) }
}

fn association(from: usize, own: usize, algorithm: Algorithm) -> AssociationPlan {
    let [source, destination] = [from, 1 - from].map(|at| IpAddr::from(GATEWAYS[at]));
    AssociationPlan {
        name: format!("from-{from}"),
        is_inbound: from != own,
        spi: 0x1000 + from as u32,
        source,
        destination,
        is_tunnel: true,
        algorithm,
        key_file: None,
        is_extended: true,
        window: SIZE_MAX,
        udp_ports: None,
        keepalive_ns: None,
        follows_peer: false,
        dont_fragment: OuterDontFragment::Copied,
        lifetime: Lifetime::default(),
    }
}

fn policy(from: usize, own: usize) -> PolicyPlan {
    let network = |of: usize| AddressPrefix::new(STATIONS[of].into(), 16).expect("no longer than an address");
    PolicyPlan {
        is_inbound: from != own,
        selector: Selector {
            source: network(from),
            destination: network(1 - from),
            protocol: None,
            source_ports: None,
            destination_ports: None,
        },
        verb: PolicyVerb::Protect,
        associations: vec![format!("from-{from}")],
    }
}

/// The keys that such a stage needs to begin; `mark` grants its numbers, if it is not to have them at once.
///
/// # Panics
/// If the stage is no ESP.
pub fn keys(stage: &StagePlan, mut mark: Option<Box<dyn SequenceMark>>) -> EspChange {
    let StageKind::Esp(plan) = &stage.kind else { panic!("{} is no ESP", stage.name) };
    let mut key = |association: &AssociationPlan| {
        let AssociationPlan { algorithm, spi, is_extended, .. } = *association;
        let material = KeyMaterial::new(algorithm, &vec![spi as u8; algorithm.key_len()]);
        let ahead = if mark.is_some() { AHEAD_ASKED } else { AHEAD };
        let numbers = match association.is_inbound {
            true => AssociationNumbers::unmarked(),
            false => {
                let mark = mark.take().unwrap_or_else(|| Box::new(Unmarked::default()));
                AssociationNumbers::Sent(SequenceNumbers::from_mark(1, is_extended, ahead), mark)
            }
        };
        let material = material.expect("as long as the algorithm's keys are");
        let transform = Transform::new(algorithm, &material).expect("a key of this algorithm");
        Some(AssociationKey { transform, numbers })
    };
    EspChange { plan: (**plan).clone(), keys: plan.associations.iter().map(&mut key).collect() }
}
