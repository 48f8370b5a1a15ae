//! A hash table of fixed size: for the stations of a bridge and the neighbours of a router.
//!
//! Open addressing with linear probing. With `home` the slot a key hashes to, an entry lies at most [`PROBES_MAX`] slots behind its home,
//! and every slot between is taken; removing an entry moves the ones behind it closer. So a look-up ends at the first free slot and reads
//! [`PROBES_MAX`] slots at most, whatever keys a stranger chooses, and an entry that would lie further is refused.
//!
//! Slots are twice the entries allowed, rounded up to a power of two: probes stay short. The hash is keyed by a seed, so
//! that keys that collide here cannot be prepared.
//!
//! Owner: one worker. Source: Knuth, The Art of Computer Programming 3, section 6.4, algorithm R (removal).
//! Limits: the size never changes; the hash is no cryptographic one.

/// The most slots looked at for one key.
pub const PROBES_MAX: usize = 32;

/// A key of a table.
pub trait TableKey: Copy + Eq {
    /// A number as random as `seed` from the key.
    fn hash(self, seed: u64) -> u64;
}

impl TableKey for u64 {
    #[inline]
    fn hash(self, seed: u64) -> u64 {
        mix(self ^ seed)
    }
}

/// Spreads the bits of `word` over all bits of the result.
#[inline]
pub fn mix(word: u64) -> u64 {
    // The factor is the golden ratio in 64 bits: odd, and without a pattern that addresses could share.
    let product = u128::from(word) * 0x9e37_79b9_7f4a_7c15;
    product as u64 ^ (product >> 64) as u64
}

/// Entries for at most a fixed number of keys.
#[derive(Debug)]
pub struct Table<K, V> {
    slots: Box<[Slot<K, V>]>,
    seed: u64,
    len: usize,
    len_max: usize,
}

/// The enum is no `Option` of a pair, which would keep its tag apart from the room that the pair leaves.
#[derive(Clone, Copy, Debug)]
enum Slot<K, V> {
    Free,
    Taken(K, V),
}

/// The table has as many entries as it may, or too many with nearly this key's hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

impl<K: TableKey, V: Copy> Table<K, V> {
    /// A table for `len_max` entries; `seed` should be random.
    ///
    /// # Panics
    /// If that is more than 2^30.
    pub fn new(len_max: usize, seed: u64) -> Table<K, V> {
        assert!(len_max <= 1 << 30, "a table has at most 2^30 entries");
        let slots = (2 * len_max).next_power_of_two().max(2);
        Table { slots: vec![Slot::Free; slots].into(), seed, len: 0, len_max }
    }

    /// The number of entries.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether there is no entry.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The number of slots that [`Table::slot`] takes.
    pub fn slots(&self) -> usize {
        self.slots.len()
    }

    /// The entry in a slot, for going through all of them.
    pub fn slot(&self, slot: usize) -> Option<(K, V)> {
        match self.slots[slot] {
            Slot::Taken(key, value) => Some((key, value)),
            Slot::Free => None,
        }
    }

    /// The entry of `key`.
    #[inline]
    pub fn get(&self, key: K) -> Option<&V> {
        let home = self.home(key);
        for probe in 0..PROBES_MAX {
            match &self.slots[self.after(home, probe)] {
                Slot::Taken(taken, value) if *taken == key => return Some(value),
                Slot::Taken(..) => {}
                Slot::Free => return None,
            }
        }
        None
    }

    /// The entry of `key`, to be changed.
    #[inline]
    pub fn get_mut(&mut self, key: K) -> Option<&mut V> {
        let slot = self.find(key)?;
        match &mut self.slots[slot] {
            Slot::Taken(_, value) => Some(value),
            Slot::Free => None,
        }
    }

    /// Makes or replaces the entry of `key`.
    pub fn insert(&mut self, key: K, value: V) -> Result<(), Full> {
        for probe in 0..PROBES_MAX.min(self.slots.len()) {
            let slot = self.after(self.home(key), probe);
            match &mut self.slots[slot] {
                Slot::Taken(taken, old) if *taken == key => {
                    *old = value;
                    return Ok(());
                }
                Slot::Taken(..) => {}
                Slot::Free if self.len == self.len_max => return Err(Full),
                free => {
                    *free = Slot::Taken(key, value);
                    self.len += 1;
                    return Ok(());
                }
            }
        }
        Err(Full)
    }

    /// Removes the entry of `key`.
    pub fn remove(&mut self, key: K) -> Option<V> {
        let mut hole = self.find(key)?;
        let (_, value) = self.slot(hole)?;
        self.slots[hole] = Slot::Free;
        self.len -= 1;
        let mut slot = hole;
        loop {
            slot = self.after(slot, 1);
            let Slot::Taken(key, _) = self.slots[slot] else {
                return Some(value);
            };
            // The entry may move into the hole unless its home lies behind the hole.
            if self.distance(self.home(key), slot) >= self.distance(hole, slot) {
                self.slots[hole] = std::mem::replace(&mut self.slots[slot], Slot::Free);
                hole = slot;
            }
        }
    }

    /// Removes every entry for which `keep` is false. The time grows with the size of the table.
    pub fn retain(&mut self, mut keep: impl FnMut(K, &V) -> bool) {
        for slot in 0..self.slots.len() {
            // Removing may move another entry here.
            while let Slot::Taken(key, value) = self.slots[slot] {
                if keep(key, &value) {
                    break;
                }
                self.remove(key);
            }
        }
    }

    #[inline]
    fn find(&self, key: K) -> Option<usize> {
        let home = self.home(key);
        for probe in 0..PROBES_MAX {
            let slot = self.after(home, probe);
            match self.slots[slot] {
                Slot::Taken(taken, _) if taken == key => return Some(slot),
                Slot::Taken(..) => {}
                Slot::Free => return None,
            }
        }
        None
    }

    #[inline]
    fn home(&self, key: K) -> usize {
        key.hash(self.seed) as usize & (self.slots.len() - 1)
    }

    #[inline]
    fn after(&self, slot: usize, steps: usize) -> usize {
        slot.wrapping_add(steps) & (self.slots.len() - 1)
    }

    fn distance(&self, from: usize, to: usize) -> usize {
        to.wrapping_sub(from) & (self.slots.len() - 1)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    /// A key with few hashes, so that entries crowd and wrap around.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    struct Crowded(u8);

    impl TableKey for Crowded {
        fn hash(self, seed: u64) -> u64 {
            u64::from(self.0 % 5) + seed
        }
    }

    proptest! {
        /// The table against a `HashMap`, with homes at the end of the table so that runs wrap.
        #[test]
        fn holds_what_was_put_in(
            operations in prop::collection::vec((0u8..4, 0u8..24, any::<u32>()), 1..300),
            len_max in 1usize..12,
        ) {
            let mut table = Table::new(len_max, 13);
            let mut model = HashMap::new();
            for (operation, key, value) in operations {
                let key = Crowded(key);
                match operation {
                    0 | 1 => {
                        let fits = model.contains_key(&key) || model.len() < len_max;
                        prop_assert_eq!(table.insert(key, value), if fits { Ok(()) } else { Err(Full) });
                        if fits {
                            model.insert(key, value);
                        }
                    }
                    2 => prop_assert_eq!(table.remove(key), model.remove(&key)),
                    _ => {
                        table.retain(|key, _| key.0 as u32 % 7 != value % 7);
                        model.retain(|key, _| key.0 as u32 % 7 != value % 7);
                    }
                }
                prop_assert_eq!(table.len(), model.len());
                for key in (0..24).map(Crowded) {
                    prop_assert_eq!(table.get(key), model.get(&key));
                }
            }
        }
    }

    #[test]
    fn keys_of_one_hash_take_a_bounded_number_of_probes() {
        #[derive(Clone, Copy, PartialEq, Eq)]
        struct Same(usize);
        impl TableKey for Same {
            fn hash(self, _: u64) -> u64 {
                7
            }
        }
        let mut table = Table::new(1000, 0);
        let taken = (0..1000).filter(|&key| table.insert(Same(key), key).is_ok()).count();
        assert_eq!(taken, PROBES_MAX, "what lies further is refused");
        assert!((0..PROBES_MAX).all(|key| table.get(Same(key)) == Some(&key)));
    }
}
