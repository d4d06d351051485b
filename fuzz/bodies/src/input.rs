//! Reads numbers from bytes.

/// The remaining bytes, followed by zeros.
#[derive(Debug)]
pub(crate) struct Input<'a> {
    rest: &'a [u8],
}

impl<'a> Input<'a> {
    pub(crate) fn new(rest: &'a [u8]) -> Self {
        Self { rest }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// Returns up to `most` bytes.
    pub(crate) fn bytes(&mut self, most: usize) -> &'a [u8] {
        let (bytes, rest) = self.rest.split_at(most.min(self.rest.len()));
        self.rest = rest;
        bytes
    }

    pub(crate) fn array<const N: usize>(&mut self) -> [u8; N] {
        let bytes = self.bytes(N);
        std::array::from_fn(|i| bytes.get(i).copied().unwrap_or(0))
    }

    pub(crate) fn u8(&mut self) -> u8 {
        u8::from_le_bytes(self.array())
    }

    pub(crate) fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.array())
    }

    pub(crate) fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.array())
    }

    pub(crate) fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.array())
    }

    pub(crate) fn bool(&mut self) -> bool {
        self.u8() & 1 != 0
    }

    /// Returns a number below `n` (at most 256).
    pub(crate) fn below(&mut self, n: usize) -> usize {
        usize::from(self.u8()) % n
    }

    /// Returns mostly a small step from `near`, sometimes any number.
    pub(crate) fn near(&mut self, near: u32) -> u32 {
        match self.u8() {
            255 => self.u32(),
            step => near.wrapping_add(u32::from(step)).wrapping_sub(4),
        }
    }
}
