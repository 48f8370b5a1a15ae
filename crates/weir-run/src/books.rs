//! The books of one place as they are shown: the packets that it accepted, delivered, dropped by reason and holds, and their bytes.
//!
//! ```text
//! accepted = delivered + dropped + held
//! ```
//!
//! In JSON, packets stand under the plain names, bytes beside them, and the books among the fields of their place.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use weir_core::account::Account;
use weir_core::drops::Count;

/// The books of one place.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "FlatBooks", into = "FlatBooks")]
pub struct Books {
    /// Packets and bytes that came in.
    pub accepted: Count,
    /// Packets and bytes that left as they should.
    pub delivered: Count,
    /// Packets and bytes that are inside, counted there.
    pub held: Count,
    /// Packets and bytes that were dropped, by reason; only reasons that occurred.
    pub dropped: BTreeMap<String, Count>,
}

impl Books {
    /// Books of an account and of the packets counted in the place itself.
    pub fn new(account: &Account, held: Count) -> Books {
        Books {
            accepted: account.accepted,
            delivered: account.delivered,
            held,
            dropped: account
                .dropped
                .occurred()
                .map(|(reason, count)| (reason.name().into(), count))
                .collect(),
        }
    }

    /// Adds another place's books. A sum that overflows, which no wire reaches, is the largest number.
    pub fn merge(&mut self, other: &Books) {
        let add = |mine: &mut Count, theirs: &Count| {
            mine.packets = mine.packets.saturating_add(theirs.packets);
            mine.bytes = mine.bytes.saturating_add(theirs.bytes);
        };
        add(&mut self.accepted, &other.accepted);
        add(&mut self.delivered, &other.delivered);
        add(&mut self.held, &other.held);
        for (reason, amount) in &other.dropped {
            add(self.dropped.entry(reason.clone()).or_default(), amount);
        }
    }

    /// Returns whether accepted = delivered + dropped + held, in packets and in bytes.
    pub fn balance(&self) -> bool {
        u128::from(self.accepted.packets) == self.explained(|amount| amount.packets)
            && u128::from(self.accepted.bytes) == self.explained(|amount| amount.bytes)
    }

    /// Delivered, held and dropped together.
    pub fn explained(&self, of: fn(&Count) -> u64) -> u128 {
        let parts = [&self.delivered, &self.held].into_iter().chain(self.dropped.values());
        parts.map(|amount| u128::from(of(amount))).sum()
    }
}

/// [`Books`] as they stand in JSON: packets under the plain names, bytes beside them.
#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct FlatBooks {
    accepted: u64,
    delivered: u64,
    held: u64,
    dropped: BTreeMap<String, u64>,
    accepted_bytes: u64,
    delivered_bytes: u64,
    held_bytes: u64,
    dropped_bytes: BTreeMap<String, u64>,
}

impl From<Books> for FlatBooks {
    fn from(books: Books) -> FlatBooks {
        let dropped = |pick: fn(&Count) -> u64| {
            books.dropped.iter().map(|(reason, amount)| (reason.clone(), pick(amount))).collect()
        };
        FlatBooks {
            accepted: books.accepted.packets,
            delivered: books.delivered.packets,
            held: books.held.packets,
            dropped: dropped(|amount| amount.packets),
            accepted_bytes: books.accepted.bytes,
            delivered_bytes: books.delivered.bytes,
            held_bytes: books.held.bytes,
            dropped_bytes: dropped(|amount| amount.bytes),
        }
    }
}

impl From<FlatBooks> for Books {
    fn from(flat: FlatBooks) -> Books {
        let bytes_of = |reason: &String| flat.dropped_bytes.get(reason).copied().unwrap_or(0);
        Books {
            accepted: Count { packets: flat.accepted, bytes: flat.accepted_bytes },
            delivered: Count { packets: flat.delivered, bytes: flat.delivered_bytes },
            held: Count { packets: flat.held, bytes: flat.held_bytes },
            dropped: flat
                .dropped
                .iter()
                .map(|(reason, &packets)| (reason.clone(), Count { packets, bytes: bytes_of(reason) }))
                .collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_byte_is_found() {
        let amount = |packets| Count { packets, bytes: packets * 100 };
        let books = Books {
            accepted: amount(10),
            delivered: amount(7),
            held: amount(1),
            dropped: [("too-long".to_string(), amount(2))].into(),
        };
        assert!(books.balance());
        let json = serde_json::to_value(&books).unwrap();
        assert_eq!((&json["accepted"], &json["dropped"]["too-long"]), (&10.into(), &2.into()));
        assert_eq!(serde_json::from_value::<Books>(json).unwrap(), books);
        let mut twice = books.clone();
        twice.merge(&books);
        assert!(twice.balance());
        assert_eq!(twice.dropped["too-long"], amount(4));
        let mut missing = books.clone();
        missing.held.bytes -= 1;
        assert!(!missing.balance());
    }
}
