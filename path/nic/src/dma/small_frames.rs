//! Small frames of a dedicated queue, for the fast path of the driver domain
//! ([`crate::small_frame`]).

use super::dedicated::RemoteQueue;
use super::layout::Completion;
use super::queue::DmaError;
use crate::buffer::BufferId;
use crate::frame::ETHERNET_BYTES;
use crate::small_frame::{SmallBatch, SmallFrame};

/// The posted buffer of a small frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceivedBuffer {
    /// The buffer.
    pub id: BufferId,
    /// Whether the device has verified the transport checksum.
    pub is_valid: bool,
}

impl RemoteQueue {
    /// Like [`RemoteQueue::receive`], for up to `budget` small frames at the head of the queue:
    /// each lies whole in one buffer, and `takes` accepts it. The next completion, which is not a
    /// small frame, stays for [`RemoteQueue::receive`]. Overwrites `out`, and `buffers` with the
    /// buffer of each frame.
    pub fn receive_small(
        &mut self,
        budget: usize,
        takes: impl Fn(&SmallFrame) -> bool,
        out: &mut SmallBatch,
        buffers: &mut Vec<ReceivedBuffer>,
    ) {
        out.clear();
        buffers.clear();
        if !self.is_started() || !self.link.is_usable() {
            return;
        }
        if let Err(error) = self.take_small_frames(budget, takes, out, buffers) {
            self.link.close(error);
        }
    }

    fn take_small_frames(
        &mut self,
        budget: usize,
        takes: impl Fn(&SmallFrame) -> bool,
        out: &mut SmallBatch,
        buffers: &mut Vec<ReceivedBuffer>,
    ) -> Result<(), DmaError> {
        if !self.partial.is_empty() || !self.is_readable()? {
            return Ok(());
        }
        while buffers.len() < budget {
            let Some(completion) = self.next_completion()? else {
                self.polls = false;
                break;
            };
            let Some(id) = self.read_small_frame(&completion, &takes, out) else {
                break;
            };
            self.queue.pop();
            buffers.push(ReceivedBuffer {
                id,
                is_valid: completion.valid,
            });
        }
        Ok(())
    }

    /// Appends the frame of the next completion to `out` if it is a small frame, and returns its
    /// buffer.
    #[inline]
    fn read_small_frame(
        &self,
        completion: &Completion,
        takes: impl Fn(&SmallFrame) -> bool,
        out: &mut SmallBatch,
    ) -> Option<BufferId> {
        let (buffer, descriptor) = self.queue.front()?;
        let Completion {
            len,
            header_len,
            more,
            error,
            merged,
            ..
        } = *completion;
        let is_whole = !more && !error && merged.is_none();
        let is_split = header_len > 0 || descriptor.header.is_some();
        if !is_whole || is_split || (len as usize) < ETHERNET_BYTES {
            return None;
        }
        out.push(buffer.span.take(len as usize)).ok()?;
        if out.last().is_some_and(takes) {
            return Some(buffer.id);
        }
        out.pop();
        None
    }
}
