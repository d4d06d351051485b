//! Transmit buffers of the stack.

use nic::{Buffer, BufferId, Buffers};

/// A supply of buffers that takes the buffers of the next frame in advance.
pub(crate) struct PreparedBuffers<'a> {
    /// The small buffer of the next frame.
    first: Option<Buffer>,
    /// Large buffers for the rest of the next frame.
    more: Vec<Buffer>,
    /// Total length of `more` in bytes.
    more_bytes: usize,
    buffers: &'a mut dyn Buffers,
}

impl<'a> PreparedBuffers<'a> {
    /// Creates a supply that has not taken any buffers yet.
    pub(crate) fn new(buffers: &'a mut dyn Buffers) -> Self {
        Self {
            first: None,
            more: Vec::new(),
            more_bytes: 0,
            buffers,
        }
    }

    /// Takes buffers until a frame of `bytes` bytes fits. Returns false if too few buffers are
    /// free.
    pub(crate) fn prepare(&mut self, bytes: usize) -> bool {
        if self.first.is_none() {
            self.first = self.buffers.take();
        }
        let Some(first) = self.first else {
            return false;
        };
        while first.span.len().saturating_add(self.more_bytes) < bytes {
            let next = self.buffers.take_large().or_else(|| self.buffers.take());
            match next {
                Some(buffer) if !buffer.span.is_empty() => {
                    self.more_bytes += buffer.span.len();
                    self.more.push(buffer);
                }
                _ => return false,
            }
        }
        true
    }

    /// Returns all buffers that were taken in advance to their supply.
    pub(crate) fn release(self) {
        for buffer in self.first.into_iter().chain(self.more) {
            self.buffers.put(buffer.id);
        }
    }
}

impl Buffers for PreparedBuffers<'_> {
    fn take(&mut self) -> Option<Buffer> {
        self.first.take()
    }

    fn take_large(&mut self) -> Option<Buffer> {
        let buffer = self.more.pop()?;
        self.more_bytes -= buffer.span.len();
        Some(buffer)
    }

    fn put(&mut self, id: BufferId) {
        self.buffers.put(id);
    }
}

/// An empty supply, which is a placeholder until the real supply is known.
pub(crate) struct NoBuffers;

impl Buffers for NoBuffers {
    fn take(&mut self) -> Option<Buffer> {
        None
    }

    fn take_large(&mut self) -> Option<Buffer> {
        None
    }

    fn put(&mut self, _id: BufferId) {}
}
