//! Keys of the associations of a path in memory: both ends of an SPI have the same.
//!
//! Rule: they keep nothing secret, for no packet that is sealed by them leaves this process; their numbers need no mark on a disk.

use weir_ipsec::algorithm::{KeyMaterial, Transform};
use weir_ipsec::sequence::SequenceNumbers;
use weir_path::esp::marks::Unmarked;
use weir_path::esp::plan::{AssociationKey, AssociationNumbers, AssociationPlan, EspChange};
use weir_path::plan::{Plan, StageKind};

use crate::ipsec::marks::AHEAD;

/// The place of each ESP stage of a plan, and the change with which it begins.
pub(super) fn of(plan: &Plan) -> impl Iterator<Item = (usize, EspChange)> {
    plan.stages.iter().enumerate().filter_map(|(stage, of)| match &of.kind {
        StageKind::Esp(plan) => {
            let keys = plan.associations.iter().map(|association| Some(key(association))).collect();
            Some((stage, EspChange { plan: (**plan).clone(), keys }))
        }
        _ => None,
    })
}

fn key(association: &AssociationPlan) -> AssociationKey {
    let AssociationPlan { algorithm, spi, is_inbound, is_extended, .. } = *association;
    let bytes = vec![spi as u8; algorithm.key_len()];
    let material = KeyMaterial::new(algorithm, &bytes).expect("as long as the algorithm's keys are");
    AssociationKey {
        transform: Transform::new(algorithm, &material).expect("a key of this algorithm"),
        numbers: match is_inbound {
            true => AssociationNumbers::unmarked(),
            false => {
                let numbers = SequenceNumbers::from_mark(1, is_extended, AHEAD);
                AssociationNumbers::Sent(numbers, Box::new(Unmarked::default()))
            }
        },
    }
}
