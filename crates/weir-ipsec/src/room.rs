//! A packet and the memory around it, in which headers are put before it and a trailer behind it without a copy to elsewhere.
//!
//! ```text
//! | headroom, never the packet's | free | the packet: len bytes | the rest is free |
//! |<----------- start bytes ----------->|
//! ```
//!
//! Rule: the packet lies within its memory, behind the headroom. It moves only when there is too little before it, and then once, to leave
//! just enough.
//!
//! Owner: the owner of the memory. Limits: bytes that fit neither before nor behind are refused, and then nothing has moved.

use weir_core::drops::DropReason;

/// A packet in its memory.
#[derive(Debug)]
pub struct Room<'a> {
    memory: &'a mut [u8],
    headroom: usize,
    start: usize,
    len: usize,
}

impl<'a> Room<'a> {
    /// The packet of `len` bytes that begins `start` bytes into the memory; `None` if it does not lie within.
    #[inline(always)]
    pub fn new(memory: &'a mut [u8], start: usize, len: usize) -> Option<Room<'a>> {
        Room::behind(memory, 0, start, len)
    }

    /// The same packet, which never begins in the first `headroom` bytes of the memory; `None` also if it does already.
    #[inline(always)]
    pub fn behind(memory: &'a mut [u8], headroom: usize, start: usize, len: usize) -> Option<Room<'a>> {
        let end = start.checked_add(len)?;
        (headroom <= start && end <= memory.len()).then_some(Room { memory, headroom, start, len })
    }

    /// The last bytes before the packet; `None` if there are not so many.
    #[inline(always)]
    pub fn before_mut<const LEN: usize>(&mut self) -> Option<&mut [u8; LEN]> {
        self.memory.get_mut(..self.start)?.last_chunk_mut()
    }

    /// The offset at which the packet begins.
    #[inline(always)]
    pub fn start(&self) -> usize {
        self.start
    }

    /// The length of the packet.
    #[expect(clippy::len_without_is_empty, reason = "an empty packet is as good as any other")]
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.len
    }

    /// The bytes of the packet.
    #[inline(always)]
    pub fn packet(&self) -> &[u8] {
        &self.memory[self.start..self.start + self.len]
    }

    /// The bytes of the packet, to write.
    #[inline(always)]
    pub fn packet_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.len]
    }

    /// Makes the packet longer by `front` bytes before and `back` bytes behind it, which are to be written then.
    #[inline(always)]
    pub fn grow(&mut self, front: usize, back: usize) -> Result<(), DropReason> {
        let len = front.checked_add(self.len).and_then(|len| len.checked_add(back));
        let len = len.filter(|&len| len <= self.memory.len() - self.headroom).ok_or(DropReason::TooLong)?;
        // The least move that keeps it within: before `start` there are the headroom and `front` bytes, behind its end `back`.
        let start = self.start.max(self.headroom + front).min(self.memory.len() - self.len - back);
        if start != self.start {
            self.memory.copy_within(self.start..self.start + self.len, start);
        }
        (self.start, self.len) = (start - front, len);
        Ok(())
    }

    /// Takes `bytes` bytes off the front of the packet, or all.
    #[inline(always)]
    pub fn cut_front(&mut self, bytes: usize) {
        let bytes = bytes.min(self.len);
        (self.start, self.len) = (self.start + bytes, self.len - bytes);
    }

    /// Leaves only the first `len` bytes of the packet.
    #[inline(always)]
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn keeps_the_packet_wherever_it_moves(
            headroom in 0usize..20, before in 0usize..40, len in 0usize..40, behind in 0usize..40,
            front in 0usize..40, back in 0usize..40
        ) {
            let start = headroom + before;
            let mut memory: Vec<u8> = (0..(start + len + behind) as u8).collect();
            let expected = memory[start..start + len].to_vec();
            let mut room = Room::behind(&mut memory, headroom, start, len).unwrap();
            let fits = front + back <= before + behind;
            prop_assert_eq!(room.grow(front, back).is_ok(), fits);
            if fits {
                prop_assert_eq!(room.len(), front + len + back);
                prop_assert!(room.start() >= headroom);
                prop_assert_eq!(&room.packet()[front..front + len], &expected);
                room.cut_front(front);
                room.truncate(len);
            }
            prop_assert_eq!(room.packet(), &expected);
        }
    }

    #[test]
    fn refuses_what_lies_outside() {
        assert!(Room::new(&mut [0; 8], 4, 5).is_none());
        assert!(Room::new(&mut [0; 8], usize::MAX, 2).is_none());
        assert!(Room::behind(&mut [0; 8], 3, 2, 2).is_none());
    }

    #[test]
    fn tells_the_bytes_before_the_packet() {
        let mut memory = [0, 1, 2, 3];
        let mut room = Room::new(&mut memory, 2, 1).unwrap();
        assert_eq!(room.before_mut(), Some(&mut [0, 1]));
        assert!(room.before_mut::<3>().is_none());
    }
}
