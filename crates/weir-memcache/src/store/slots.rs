//! The place of items: slots in blocks, so that growing never copies the items that are there, and a list through them in the order of
//! their use.
//!
//! Owner: one [`super::Store`]. Limits: a slot that was used is kept for the next item, so the blocks are as many as items ever were at
//! once.

/// No slot: the end of a list.
const NONE: u32 = u32::MAX;
const BLOCK: usize = 1024;

/// An item.
#[derive(Debug, Default)]
pub struct ItemSlot {
    /// The key, and the value behind it.
    bytes: Box<[u8]>,
    /// The hash of the key.
    pub hash: u64,
    /// The number of the item's change.
    pub cas: u64,
    /// The client's own mark.
    pub flags: u32,
    /// The time in seconds when it ends; 0 if it does not.
    pub expires_s: u32,
    newer: u32,
    /// The next older item; of a slot that is free, the next free one.
    older: u32,
    key_bytes: u8,
}

/// All slots.
#[derive(Debug)]
pub struct ItemSlots {
    blocks: Vec<Box<[ItemSlot]>>,
    taken: usize,
    free: u32,
    newest: u32,
    oldest: u32,
}

impl Default for ItemSlots {
    fn default() -> ItemSlots {
        ItemSlots { blocks: Vec::new(), taken: 0, free: NONE, newest: NONE, oldest: NONE }
    }
}

impl ItemSlot {
    /// The key by which it is found.
    pub fn key(&self) -> &[u8] {
        &self.bytes[..usize::from(self.key_bytes)]
    }

    /// The value that it holds.
    pub fn value(&self) -> &[u8] {
        &self.bytes[usize::from(self.key_bytes)..]
    }
}

impl ItemSlots {
    /// A slot that is taken.
    pub fn get(&self, number: u32) -> &ItemSlot {
        &self.blocks[number as usize / BLOCK][number as usize % BLOCK]
    }

    /// A slot that is taken, to be changed.
    pub fn get_mut(&mut self, number: u32) -> &mut ItemSlot {
        &mut self.blocks[number as usize / BLOCK][number as usize % BLOCK]
    }

    /// Takes a slot for an item, which is the newest then.
    pub fn put(
        &mut self,
        bytes: Box<[u8]>,
        key_bytes: usize,
        flags: u32,
        expires_s: u32,
        hash: u64,
        cas: u64,
    ) -> u32 {
        let number = self.take();
        let key_bytes = key_bytes as u8;
        *self.get_mut(number) =
            ItemSlot { bytes, hash, cas, flags, expires_s, newer: NONE, older: NONE, key_bytes };
        self.link(number);
        number
    }

    /// Frees a slot. Returns how many bytes its key and value had.
    pub fn remove(&mut self, number: u32) -> usize {
        self.unlink(number);
        let free = std::mem::replace(&mut self.free, number);
        let slot = self.get_mut(number);
        slot.older = free;
        std::mem::take(&mut slot.bytes).len()
    }

    /// Makes an item the newest.
    pub fn use_now(&mut self, number: u32) {
        if self.newest != number {
            self.unlink(number);
            self.link(number);
        }
    }

    /// The item that nobody used for longest.
    pub fn oldest(&self) -> Option<u32> {
        (self.oldest != NONE).then_some(self.oldest)
    }

    fn take(&mut self) -> u32 {
        if self.free != NONE {
            let number = self.free;
            self.free = self.get(number).older;
            return number;
        }
        if self.taken == self.blocks.len() * BLOCK {
            self.blocks.push((0..BLOCK).map(|_| ItemSlot::default()).collect());
        }
        self.taken += 1;
        self.taken as u32 - 1
    }

    fn link(&mut self, number: u32) {
        let before = std::mem::replace(&mut self.newest, number);
        let slot = self.get_mut(number);
        (slot.newer, slot.older) = (NONE, before);
        match before {
            NONE => self.oldest = number,
            before => self.get_mut(before).newer = number,
        }
    }

    fn unlink(&mut self, number: u32) {
        let (newer, older) = (self.get(number).newer, self.get(number).older);
        match newer {
            NONE => self.newest = older,
            newer => self.get_mut(newer).older = older,
        }
        match older {
            NONE => self.oldest = newer,
            older => self.get_mut(older).newer = newer,
        }
    }
}
