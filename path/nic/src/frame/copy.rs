//! Copies a frame into buffers, other memory, or private bytes.

use super::Frame;
use crate::buffer::{Buffers, Piece};
use shmem::{Fault, Span};

/// Reason why a frame cannot be copied into buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CopyError {
    /// The supply of buffers is exhausted.
    #[error("no buffer is free")]
    NoBuffer,
    /// Memory is inaccessible.
    #[error(transparent)]
    Fault(#[from] Fault),
}

impl Frame {
    /// Copies `bytes` into buffers from `buffers`, and returns the frame.
    ///
    /// # Errors
    /// Returns an error if the supply is exhausted, or its memory is inaccessible. The call has
    /// then returned all buffers that it took.
    pub fn from_bytes(bytes: &[u8], buffers: &mut dyn Buffers) -> Result<Self, CopyError> {
        let mut frame = Self::empty();
        let done = frame.fill(bytes.len(), buffers, |at, span| {
            span.write(bytes.get(at..).unwrap_or(&[]))
        });
        let done = done.and_then(|()| Ok(frame.snapshot()?));
        frame.or_recycle(done, buffers)
    }

    /// Copies this frame, with its snapshot and offloads, into buffers from `buffers`.
    ///
    /// # Errors
    /// Returns an error if the supply is exhausted, or memory is inaccessible. The call has then
    /// returned all buffers that it took.
    pub fn copied(&self, buffers: &mut dyn Buffers) -> Result<Self, CopyError> {
        let mut frame = Self::empty();
        frame.offload = self.offload;
        frame.fixed_id = self.fixed_id;
        frame.token = self.token;
        let done = frame.fill(self.len(), buffers, |at, span| {
            let head = self.header().get(at..).unwrap_or(&[]);
            span.write(head)?;
            let mut rest = span.skip(head.len());
            for part in self.payload_from(at) {
                if rest.is_empty() {
                    break;
                }
                let count = part.len().min(rest.len());
                shmem::copy(rest.take(count), part.take(count))?;
                rest = rest.skip(count);
            }
            Ok(())
        });
        frame.header = self.header;
        frame.header_len = self.header_len;
        frame.or_recycle(done, buffers)
    }

    /// Takes buffers for `len` bytes, and fills each with `write(offset in the frame,
    /// destination)`.
    fn fill(
        &mut self,
        len: usize,
        buffers: &mut dyn Buffers,
        mut write: impl FnMut(usize, Span) -> Result<(), Fault>,
    ) -> Result<(), CopyError> {
        while self.len() < len {
            let at = self.len();
            let taken = if at == 0 {
                buffers.take()
            } else {
                buffers.take_large()
            };
            let buffer = taken
                .or_else(|| buffers.take())
                .ok_or(CopyError::NoBuffer)?;
            let span = buffer.span.take(len - at);
            self.push(Piece {
                span,
                buffer: buffer.id,
            });
            if span.is_empty() {
                return Err(CopyError::NoBuffer);
            }
            write(at, span)?;
        }
        Ok(())
    }

    /// Returns the frame if it is complete; otherwise returns its buffers to the supply.
    fn or_recycle(
        mut self,
        done: Result<(), CopyError>,
        buffers: &mut dyn Buffers,
    ) -> Result<Self, CopyError> {
        if done.is_err() {
            self.recycle(buffers);
        }
        done.map(|()| self)
    }

    /// Copies the first bytes of the frame, beginning with the snapshot, into `dst`, and returns
    /// their number.
    ///
    /// # Errors
    /// Returns an error if the memory is inaccessible.
    pub fn prefix(&self, dst: &mut [u8]) -> Result<usize, Fault> {
        let mut done = self.header().len().min(dst.len());
        if let (Some(to), Some(from)) = (dst.get_mut(..done), self.header().get(..done)) {
            to.copy_from_slice(from);
        }
        for span in self.payload() {
            let Some(to) = dst.get_mut(done..).filter(|to| !to.is_empty()) else {
                break;
            };
            span.read(to)?;
            done += span.len().min(to.len());
        }
        Ok(done)
    }

    /// Copies the frame (snapshot, then payload) into `dst`, truncated to its length, and returns
    /// the number of copied bytes.
    ///
    /// # Errors
    /// Returns an error if the memory is inaccessible.
    pub fn copy_to(&self, dst: Span) -> Result<usize, Fault> {
        let head = self.header().len().min(dst.len());
        dst.write(self.header())?;
        let mut rest = dst.skip(head);
        let mut done = head;
        for span in self.payload() {
            let n = span.len().min(rest.len());
            shmem::copy(rest.take(n), span.take(n))?;
            rest = rest.skip(n);
            done += n;
        }
        Ok(done)
    }

    /// Returns a private copy of the whole frame, for tests, traces and slow paths.
    ///
    /// # Errors
    /// Returns an error if the memory is inaccessible.
    pub fn to_vec(&self) -> Result<Vec<u8>, Fault> {
        let mut bytes = self.header().to_vec();
        for span in self.payload() {
            let at = bytes.len();
            bytes.resize(at + span.len(), 0);
            if let Some(dst) = bytes.get_mut(at..) {
                span.read(dst)?;
            }
        }
        Ok(bytes)
    }
}
