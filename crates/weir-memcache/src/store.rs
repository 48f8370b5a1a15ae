//! The items of one worker: found by key, bounded in bytes, the longest unused given up first.
//!
//! ```text
//! table --number--> slots: [cas, flags, expiry, newer, older, bytes --> key value]
//! ```
//!
//! Rule: the bytes of items ([`ITEM_BYTES`] and their key and value each) never exceed the limit; to make room, the items that nobody asked
//! for longest go. An item that has expired, or was there when all were flushed, is none: it goes when it is found, or as the longest
//! unused.
//!
//! Owner: one worker; nothing here is shared, so nothing is locked. Time is given, in seconds since 1970. Source: memcached
//! `doc/protocol.txt`. Limits: 2^32 - 1 items.

use hashbrown::HashTable;

mod slots;

use slots::{ItemSlot, ItemSlots};

/// The longest key, as memcached's.
pub const KEY_BYTES_MAX: usize = 250;

/// The bytes of an item beside its key and value: its slot, its part of the table, and the allocator's share.
pub const ITEM_BYTES: usize = size_of::<ItemSlot>() + 24;

/// The items of one worker.
#[derive(Debug)]
pub struct Store {
    table: HashTable<u32>,
    slots: ItemSlots,
    bytes: usize,
    limit_bytes: usize,
    item_bytes_max: usize,
    last_cas: u64,
    /// Items up to this one were flushed.
    flushed_cas: u64,
    /// The time when all items that are there then are flushed.
    flush_at_s: Option<u32>,
    counts: StoreCounts,
}

/// An item as it is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Item<'s> {
    /// The value.
    pub value: &'s [u8],
    /// The client's own mark.
    pub flags: u32,
    /// The number of the item's change; no two of a key are alike.
    pub cas: u64,
}

/// The condition on which a value is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Condition {
    /// Always.
    Set,
    /// If there is no item.
    Add,
    /// If there is an item.
    Replace,
    /// Behind the value that is there, whose flags and expiry stay.
    Append,
    /// In front of the value that is there.
    Prepend,
    /// If the item still has this change.
    Cas(u64),
}

/// The outcome of storing a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The value is stored.
    Stored,
    /// The condition did not hold.
    NotStored,
    /// The item has been changed since.
    Exists,
    /// There is no item to compare with.
    NotFound,
    /// The item is larger than items may be; the one that was there under its key is gone, unless it was to stay.
    TooLarge,
}

/// The outcome of counting up or down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counted {
    /// The new number.
    To(u64),
    /// There is no such item.
    NotFound,
    /// The value is no number.
    NotANumber,
}

/// The counters of a store.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StoreCounts {
    /// Items that were asked for and found.
    pub get_hits: u64,
    /// Items that were asked for and not found.
    pub get_misses: u64,
    /// Values that came to be stored.
    pub sets: u64,
    /// Items that had to make room.
    pub evictions: u64,
    /// Items that were stored since the start.
    pub total_items: u64,
}

impl Store {
    /// An empty store of so many bytes, whose items take `item_bytes_max` at most.
    pub fn new(limit_bytes: usize, item_bytes_max: usize) -> Store {
        Store {
            table: HashTable::new(),
            slots: ItemSlots::default(),
            bytes: 0,
            limit_bytes,
            item_bytes_max: item_bytes_max.min(limit_bytes),
            last_cas: 0,
            flushed_cas: 0,
            flush_at_s: None,
            counts: StoreCounts::default(),
        }
    }

    /// The item of a key, if there is one.
    pub fn get(&mut self, hash: u64, key: &[u8], now_s: u32) -> Option<Item<'_>> {
        let Some(number) = self.find(hash, key, now_s) else {
            self.counts.get_misses += 1;
            return None;
        };
        self.counts.get_hits += 1;
        self.slots.use_now(number);
        let slot = self.slots.get(number);
        Some(Item { value: slot.value(), flags: slot.flags, cas: slot.cas })
    }

    /// Stores a value if its condition holds. `expires_s` is a time, or 0 for none.
    #[expect(clippy::too_many_arguments, reason = "an item has so many parts")]
    pub fn put(
        &mut self,
        hash: u64,
        key: &[u8],
        condition: Condition,
        flags: u32,
        expires_s: u32,
        value: &[u8],
        now_s: u32,
    ) -> Outcome {
        self.counts.sets += 1;
        let found = self.find(hash, key, now_s);
        match (condition, found) {
            (Condition::Add, Some(number)) => {
                self.slots.use_now(number);
                return Outcome::NotStored;
            }
            (Condition::Replace | Condition::Append | Condition::Prepend, None) => return Outcome::NotStored,
            (Condition::Cas(_), None) => return Outcome::NotFound,
            (Condition::Cas(cas), Some(number)) if self.slots.get(number).cas != cas => {
                return Outcome::Exists;
            }
            _ => {}
        }
        let joined = |number: u32| {
            let there = self.slots.get(number);
            let parts = match condition {
                Condition::Append => [key, there.value(), value],
                _ => [key, value, there.value()],
            };
            (parts.concat(), there.flags, there.expires_s)
        };
        let (bytes, flags, expires_s) = match (condition, found) {
            (Condition::Append | Condition::Prepend, Some(number)) => joined(number),
            _ => ([key, value].concat(), flags, expires_s),
        };
        if self.place(hash, found, bytes, key.len(), flags, expires_s) {
            return Outcome::Stored;
        }
        // As memcached does: a client that asks for the key shall not get the value that was to be replaced.
        if let (Condition::Set | Condition::Replace | Condition::Cas(_), Some(number)) = (condition, found) {
            self.remove(hash, number);
        }
        Outcome::TooLarge
    }

    /// Puts an item in place of the one that was found, if one was; whether it is no larger than items may be.
    fn place(
        &mut self,
        hash: u64,
        found: Option<u32>,
        bytes: Vec<u8>,
        key_bytes: usize,
        flags: u32,
        expires_s: u32,
    ) -> bool {
        let takes = ITEM_BYTES + bytes.len();
        if takes > self.item_bytes_max {
            return false;
        }
        if let Some(number) = found {
            self.remove(hash, number);
        }
        self.make_room(takes);
        self.last_cas += 1;
        let number = self.slots.put(bytes.into(), key_bytes, flags, expires_s, hash, self.last_cas);
        self.table.insert_unique(hash, number, |&number| self.slots.get(number).hash);
        self.bytes += takes;
        self.counts.total_items += 1;
        true
    }

    /// Counts the number in an item up, or down to 0 at the least.
    pub fn count(&mut self, hash: u64, key: &[u8], delta: u64, is_up: bool, now_s: u32) -> Counted {
        let Some(number) = self.find(hash, key, now_s) else { return Counted::NotFound };
        let slot = self.slots.get(number);
        let (flags, expires_s) = (slot.flags, slot.expires_s);
        let Some(value) = number_of(slot.value()) else { return Counted::NotANumber };
        let value = if is_up { value.wrapping_add(delta) } else { value.saturating_sub(delta) };
        let bytes = [key, value.to_string().as_bytes()].concat();
        if !self.place(hash, Some(number), bytes, key.len(), flags, expires_s) {
            // The store has no room for a number.
            self.remove(hash, number);
            return Counted::NotFound;
        }
        Counted::To(value)
    }

    /// Removes an item; whether there was one.
    pub fn delete(&mut self, hash: u64, key: &[u8], now_s: u32) -> bool {
        let found = self.find(hash, key, now_s);
        found.map(|number| self.remove(hash, number)).is_some()
    }

    /// Gives an item another expiry; whether there is one. It is used by that, as memcached's.
    pub fn touch(&mut self, hash: u64, key: &[u8], expires_s: u32, now_s: u32) -> bool {
        let Some(number) = self.find(hash, key, now_s) else { return false };
        self.slots.use_now(number);
        self.slots.get_mut(number).expires_s = expires_s;
        true
    }

    /// Forgets all items that are there at this time.
    pub fn flush_all(&mut self, at_s: u32, now_s: u32) {
        self.flush_if_due(now_s);
        if at_s <= now_s {
            (self.flushed_cas, self.flush_at_s) = (self.last_cas, None);
        } else {
            self.flush_at_s = Some(at_s);
        }
    }

    /// Items, those that have expired and were not found since among them.
    pub fn items(&self) -> usize {
        self.table.len()
    }

    /// The bytes of all items.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The counters.
    pub fn counts(&self) -> StoreCounts {
        self.counts
    }

    fn find(&mut self, hash: u64, key: &[u8], now_s: u32) -> Option<u32> {
        self.flush_if_due(now_s);
        let number = *self.table.find(hash, |&number| self.slots.get(number).key() == key)?;
        let slot = self.slots.get(number);
        let is_over = slot.expires_s != 0 && slot.expires_s <= now_s || slot.cas <= self.flushed_cas;
        if is_over {
            self.remove(hash, number);
        }
        (!is_over).then_some(number)
    }

    fn flush_if_due(&mut self, now_s: u32) {
        if self.flush_at_s.take_if(|at_s| *at_s <= now_s).is_some() {
            self.flushed_cas = self.last_cas;
        }
    }

    fn make_room(&mut self, takes: usize) {
        while self.bytes + takes > self.limit_bytes {
            let number =
                self.slots.oldest().expect("an item that fits alone has room when all others are gone");
            let hash = self.slots.get(number).hash;
            self.remove(hash, number);
            self.counts.evictions += 1;
        }
    }

    fn remove(&mut self, hash: u64, number: u32) {
        if let Ok(entry) = self.table.find_entry(hash, |&other| other == number) {
            entry.remove();
        }
        self.bytes -= ITEM_BYTES + self.slots.remove(number);
    }
}

/// The number that a value has, without sign or anything else; of at most 20 digits.
fn number_of(value: &[u8]) -> Option<u64> {
    let is_short = (1..=20).contains(&value.len()) && value.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(value).ok().filter(|_| is_short)?.parse().ok()
}

#[cfg(test)]
mod tests;
