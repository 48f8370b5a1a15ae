//! Values drawn from bytes: they make a structure out of an input, so that a changed byte changes a value.
//!
//! Rule: the same bytes always give the same values. When they are used up, every value is 0.

/// Bytes not drawn from yet.
pub struct Draw<'a>(&'a [u8]);

impl<'a> Draw<'a> {
    /// The values drawn from the first byte on.
    pub fn new(bytes: &'a [u8]) -> Draw<'a> {
        Draw(bytes)
    }

    /// The rest of the bytes, undrawn.
    pub fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }

    /// Returns whether no byte is left.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The next `len` bytes.
    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        let (drawn, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        let mut bytes = drawn.to_vec();
        bytes.resize(len, 0);
        bytes
    }

    /// The next bytes, as an array.
    pub fn array<const LEN: usize>(&mut self) -> [u8; LEN] {
        let mut bytes = [0; LEN];
        let (drawn, rest) = self.0.split_at(LEN.min(self.0.len()));
        self.0 = rest;
        bytes[..drawn.len()].copy_from_slice(drawn);
        bytes
    }

    /// A byte.
    pub fn u8(&mut self) -> u8 {
        self.array::<1>()[0]
    }

    /// Two bytes.
    pub fn u16(&mut self) -> u16 {
        u16::from_be_bytes(self.array())
    }

    /// Four bytes.
    pub fn u32(&mut self) -> u32 {
        u32::from_be_bytes(self.array())
    }

    /// Eight bytes.
    pub fn u64(&mut self) -> u64 {
        u64::from_be_bytes(self.array())
    }

    /// A number of any size: as often small as large.
    pub fn any_u64(&mut self) -> u64 {
        let bits = u32::from(self.u8() % 65);
        if bits == 0 { 0 } else { self.u64() >> (64 - bits) }
    }

    /// True or false.
    pub fn flag(&mut self) -> bool {
        self.u8() & 1 == 1
    }

    /// One time in `of`.
    pub fn rarely(&mut self, of: u8) -> bool {
        self.u8() % of == of - 1
    }

    /// A number below `end`.
    pub fn below(&mut self, end: usize) -> usize {
        usize::from(self.u16()) % end
    }

    /// One of the values of `all`.
    pub fn pick<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }
}
