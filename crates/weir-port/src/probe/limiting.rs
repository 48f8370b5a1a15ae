//! The check that this kernel limits in place: a limit made, found, changed and removed on a pair that nobody else sees.

use weir_core::rate::Rate;

use super::scratch::{self, ScratchPair};
use crate::error::Result;
use crate::limit::off::{self, Off};
use crate::limit::record::Direction;
use crate::limit::{self, Asked, NetnsInterface, find, htb};
use crate::netns::NetNs;

const BURST_BYTES: u64 = 20_480;

/// Tries a limit in place.
pub fn limits_in_place(clock_ns: fn() -> u64) -> Result<()> {
    scratch::run(move |answer| {
        // The namespace is kept open, so that it can be found: no process is in it.
        let far_netns = NetNs::new()?;
        let pair = ScratchPair::new(c"weir%d", &far_netns)?;
        let place = NetnsInterface { netns: NetNs::current()?, link: pair.receiver };
        for bits_per_s in [10_000_000, 20_000_000] {
            let asked = Asked {
                name: "probe".into(),
                direction: Direction::There,
                rate: Rate::from_bits_per_s(bits_per_s),
                burst_bytes: Some(BURST_BYTES),
                classes: None,
                moves_at_once: false,
            };
            limit::set(&place, &asked, |_| BURST_BYTES)?;
        }
        let place_again = NetnsInterface { netns: place.netns.try_clone()?, link: place.link.clone() };
        let faults = find::seen_at(place_again)?.map(|seen| seen.faults());
        let removed = off::off(&place, true, clock_ns, &|| false)?;
        if faults.is_none_or(|faults| !faults.is_empty()) || !matches!(removed, Off::Removed { .. }) {
            return Err(htb::without_queues());
        }
        answer(());
        Ok(())
    })
}
