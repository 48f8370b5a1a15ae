//! The sentences on security associations that reach a limit of their life, or have used all their sequence numbers.
//!
//! Rule: each step of an association is said once. One of the same name with another security parameter index is another.
//!
//! Owner: the watcher. Source: RFC 4301, section 4.4.2.1, "Lifetime of this SA". Limits: a key daemon is told nothing; it hears only of
//! limits that it gave to the kernel.

use std::collections::BTreeMap;

use crate::stats::association::AgedAssociation;

/// The steps that have been said.
#[derive(Debug, Default)]
pub struct Ages {
    said: BTreeMap<(String, u32), &'static str>,
}

impl Ages {
    /// The sentences on what has been reached since the last look; `aged` are all associations that are not alive.
    pub fn news(&mut self, aged: Vec<AgedAssociation>) -> Vec<String> {
        let before = std::mem::take(&mut self.said);
        let mut sentences = Vec::new();
        for AgedAssociation { name, spi, age } in aged {
            let key = (name, spi);
            if before.get(&key) != Some(&age) {
                sentences.push(sentence(&key.0, spi, age));
            }
            self.said.insert(key, age);
        }
        sentences
    }
}

fn sentence(name: &str, spi: u32, age: &str) -> String {
    let what = match age {
        "soft" => "has reached a soft limit: its successor is due",
        "exhausted" => {
            "has used all its sequence numbers, and nothing passes it any more: it needs a successor"
        }
        _ => {
            "has reached a hard limit, and nothing passes it any more: it needs a successor, or another limit"
        }
    };
    format!("association {name} (SPI {spi:#x}) {what}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_step_of_an_association_is_said_once() {
        let aged = |age, spi| AgedAssociation { name: "out".into(), spi, age };
        let mut ages = Ages::default();
        assert!(ages.news(Vec::new()).is_empty());
        let soft = ["association out (SPI 0x1001) has reached a soft limit: its successor is due"];
        assert_eq!(ages.news(vec![aged("soft", 0x1001)]), soft);
        assert!(ages.news(vec![aged("soft", 0x1001)]).is_empty(), "it was said");
        let told = ages.news(vec![aged("expired", 0x1001), aged("soft", 0x1002)]);
        assert_eq!(
            told,
            [
                "association out (SPI 0x1001) has reached a hard limit, and nothing passes it any more: it needs a successor, or another limit",
                "association out (SPI 0x1002) has reached a soft limit: its successor is due"
            ]
        );
        assert!(ages.news(vec![aged("soft", 0x1002)]).is_empty(), "the first has been replaced");
        let told = ages.news(vec![aged("exhausted", 0x1002)]);
        assert!(told[0].contains("(SPI 0x1002) has used all its sequence numbers"), "{told:?}");
    }
}
