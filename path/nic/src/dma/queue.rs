//! The two ends of a queue. Indices count all descriptors since the queue was created, and wrap.

use super::layout::{Completion, Descriptor, DeviceMemory, DriverMemory};
use shmem::Fault;
use shmem::sync::fence;
use std::collections::VecDeque;
use std::sync::atomic::Ordering;

/// A queue of a NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueName {
    /// The receive queue with this number; 0 is the shared queue.
    Receive(u32),
    /// The transmit queue.
    Transmit,
}

impl std::fmt::Display for QueueName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Receive(number) => write!(f, "receive queue {number}"),
            Self::Transmit => f.write_str("the transmit queue"),
        }
    }
}

/// Violations of the rules of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Misuse {
    /// No descriptor with this index is posted.
    #[error("completed but not posted")]
    NotPosted,
    /// The descriptor was completed before.
    #[error("completed twice")]
    CompletedTwice,
    /// An earlier descriptor is still posted.
    #[error("completed before index {0}")]
    OutOfOrder(u32),
    /// The device reports more bytes than the buffer, or the longest frame, can have.
    #[error("{len} bytes where {most} fit")]
    TooLong {
        /// Reported bytes.
        len: u32,
        /// Maximum number of bytes.
        most: u32,
    },
    /// A frame continues in the next buffer, although the current one is not full.
    #[error("the frame continues after {len} bytes in a buffer of {most}")]
    PartialBuffer {
        /// Reported bytes.
        len: u32,
        /// Length of the buffer in bytes.
        most: u32,
    },
    /// A frame in a dedicated queue that does not merge continues in the next buffer.
    #[error("the frame continues in the next buffer")]
    UnexpectedContinuation,
    /// The length of the header does not fit the frame or the descriptor.
    #[error("a header of {0} bytes does not fit")]
    BadHeader(u16),
    /// The memory of the queue is inaccessible.
    #[error("the queue's memory is inaccessible")]
    Fault,
}

/// Error that closes a NIC, because its device violates the rules of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{queue}, index {index}: {misuse}")]
pub struct DmaError {
    /// The queue.
    pub queue: QueueName,
    /// Index of the completion.
    pub index: u32,
    /// The violated rule.
    pub misuse: Misuse,
}

/// The driver's end of a queue. `T` identifies a posted buffer.
#[derive(Debug)]
pub struct DriverQueue<M, T> {
    name: QueueName,
    memory: M,
    entries: u32,
    /// Posted buffers with their descriptors, oldest first. This list, not the shared memory,
    /// determines which buffers are posted.
    posted: VecDeque<(T, Descriptor)>,
    /// Index of the next completion.
    taken: u32,
    /// Number of completions that the device has published since `taken`.
    ready: u32,
    /// Index after the last descriptor that [`DriverQueue::needs_wakeup`] has checked.
    checked: u32,
    /// The last index that the driver has acknowledged.
    acknowledged: u32,
    /// Value of `raised` at the last call of [`DriverQueue::is_raised`].
    last_raised: u32,
}

impl<M: DriverMemory, T> DriverQueue<M, T> {
    /// Creates the driver's end of an empty queue whose index words are `start`.
    #[must_use]
    pub fn new(name: QueueName, memory: M, entries: u32, start: u32) -> Self {
        Self {
            name,
            memory,
            entries,
            posted: VecDeque::with_capacity(entries as usize),
            taken: start,
            ready: 0,
            checked: start,
            acknowledged: start,
            last_raised: 0,
        }
    }

    /// Returns the number of descriptors that can be posted.
    #[must_use]
    #[inline]
    pub fn free_entries(&self) -> usize {
        (self.entries as usize).saturating_sub(self.posted.len())
    }

    /// Returns the number of posted descriptors.
    #[must_use]
    #[inline]
    pub fn posted(&self) -> usize {
        self.posted.len()
    }

    /// Returns the slot of an index.
    #[must_use]
    #[inline]
    pub fn slot(&self, index: u32) -> u32 {
        index & (self.entries - 1)
    }

    /// Returns the slot of the next descriptor, which [`DriverQueue::post`] writes.
    #[must_use]
    #[inline]
    pub fn next_slot(&self) -> u32 {
        self.slot(self.taken.wrapping_add(self.posted.len() as u32))
    }

    /// Writes a descriptor; the device sees it after [`DriverQueue::publish`].
    ///
    /// # Errors
    /// Returns the item if the queue is full or its memory is inaccessible.
    #[inline]
    pub fn post(&mut self, item: T, descriptor: Descriptor) -> Result<(), T> {
        let words = descriptor.encode();
        if self.free_entries() == 0 || self.memory.set_descriptor(self.next_slot(), words).is_err()
        {
            return Err(item);
        }
        self.posted.push_back((item, descriptor));
        Ok(())
    }

    /// Publishes all posted descriptors to the device.
    ///
    /// # Errors
    /// Returns an error if the queue's memory is inaccessible.
    #[inline]
    pub fn publish(&mut self) -> Result<(), DmaError> {
        let index = self.taken.wrapping_add(self.posted.len() as u32);
        let published = self.memory.set_posted(index);
        published.map_err(|Fault| self.error(index, Misuse::Fault))
    }

    /// Returns whether the caller must wake a sleeping device, because the descriptor for which the
    /// device waits was published since the last call.
    ///
    /// # Errors
    /// Returns an error if the queue's memory is inaccessible.
    pub fn needs_wakeup(&mut self) -> Result<bool, DmaError> {
        let posted = self.taken.wrapping_add(self.posted.len() as u32);
        let before = std::mem::replace(&mut self.checked, posted);
        if before == posted {
            return Ok(false);
        }
        // This fence separates the write of `posted` from the read of `wake`. A fence in the device
        // separates the write of `wake` from the read of `posted`.
        fence(Ordering::SeqCst);
        let wake = self.memory.wake();
        let wake = wake.map_err(|Fault| self.error(posted, Misuse::Fault))?;
        Ok(wake.wrapping_sub(before) < posted.wrapping_sub(before))
    }

    /// Returns whether the device has raised the queue's interrupt since the last call.
    ///
    /// # Errors
    /// Returns an error if the queue's memory is inaccessible.
    #[inline]
    pub fn is_raised(&mut self) -> Result<bool, DmaError> {
        let raised = self.memory.raised();
        let raised = raised.map_err(|Fault| self.error(self.taken, Misuse::Fault))?;
        Ok(std::mem::replace(&mut self.last_raised, raised) != raised)
    }

    /// Acknowledges all taken completions, so that the next one raises an interrupt. Returns
    /// whether the device has already published more.
    ///
    /// # Errors
    /// Returns an error if the queue's memory is inaccessible.
    pub fn acknowledge(&mut self) -> Result<bool, DmaError> {
        let index = self.taken;
        let is_new = std::mem::replace(&mut self.acknowledged, index) != index;
        let fault = |Fault| self.error(index, Misuse::Fault);
        if is_new {
            self.memory.set_acknowledged(index).map_err(fault)?;
            // This fence separates the write of `acknowledged` from the read of `completed`. A
            // fence in the device separates the write of `completed` from the read of
            // `acknowledged`.
            fence(Ordering::SeqCst);
        }
        let completed = self.memory.completed().map_err(fault)?;
        Ok(completed != index)
    }

    /// Returns the next completion without taking it, or `None` if no buffer is completed.
    ///
    /// # Errors
    /// Returns an error if the device has completed a descriptor other than the oldest posted one
    /// or reports more bytes than the buffer has, or if the queue's memory is inaccessible.
    #[inline]
    pub fn peek(&mut self) -> Result<Option<Completion>, DmaError> {
        let index = self.taken;
        if self.ready == 0 {
            let completed = self.memory.completed();
            let completed = completed.map_err(|Fault| self.error(index, Misuse::Fault))?;
            let ready = completed.wrapping_sub(index);
            if ready as usize > self.posted.len() {
                return Err(self.error(completed, Misuse::NotPosted));
            }
            self.ready = ready;
        }
        if self.ready == 0 {
            return Ok(None);
        }
        let words = self.memory.completion(self.slot(index));
        let words = words.map_err(|Fault| self.error(index, Misuse::Fault))?;
        let completion = Completion::decode(words);
        self.check(&completion)?;
        Ok(Some(completion))
    }

    /// Returns the oldest posted buffer, to which the completion of [`DriverQueue::peek`] belongs.
    #[must_use]
    #[inline]
    pub fn front(&self) -> Option<&(T, Descriptor)> {
        self.posted.front()
    }

    /// Returns the buffer that is `ahead` positions behind the oldest posted one, if the last call
    /// of [`DriverQueue::peek`] knew that the device has completed it.
    #[must_use]
    #[inline]
    pub fn completed(&self, ahead: usize) -> Option<&T> {
        let is_known = ahead < self.ready as usize;
        let posted = self.posted.get(ahead).filter(|_| is_known);
        posted.map(|(item, _)| item)
    }

    /// Takes the completion that [`DriverQueue::peek`] has returned, and returns its buffer.
    #[inline]
    pub fn pop(&mut self) -> Option<(T, Descriptor)> {
        self.ready = self.ready.checked_sub(1)?;
        self.taken = self.taken.wrapping_add(1);
        self.posted.pop_front()
    }

    /// Returns the next completed buffer, if any, with its descriptor and completion. On an error
    /// the buffer stays posted.
    ///
    /// # Errors
    /// See [`DriverQueue::peek`].
    #[inline]
    pub fn take(&mut self) -> Result<Option<(T, Descriptor, Completion)>, DmaError> {
        let Some(completion) = self.peek()? else {
            return Ok(None);
        };
        Ok(self
            .pop()
            .map(|(item, descriptor)| (item, descriptor, completion)))
    }

    fn check(&self, completion: &Completion) -> Result<(), DmaError> {
        let Completion { index, len, .. } = *completion;
        let ahead = index.wrapping_sub(self.taken);
        let misuse = match ahead {
            0 => {
                let most = self.posted.front().map_or(0, |(_, posted)| posted.len);
                if len <= most {
                    return Ok(());
                }
                Misuse::TooLong { len, most }
            }
            _ if (ahead as usize) < self.posted.len() => Misuse::OutOfOrder(self.taken),
            _ if ahead > u32::MAX / 2 => Misuse::CompletedTwice,
            _ => Misuse::NotPosted,
        };
        Err(self.error(index, misuse))
    }

    /// Returns an error of this queue.
    #[must_use]
    pub fn error(&self, index: u32, misuse: Misuse) -> DmaError {
        DmaError {
            queue: self.name,
            index,
            misuse,
        }
    }

    /// Returns the index of the next completion.
    #[must_use]
    pub fn next_index(&self) -> u32 {
        self.taken
    }

    /// Passes all posted buffers to `each`, oldest first, and empties the queue. The caller must
    /// have [reset](super::SoftDevice::reset) the device, which must start at the returned index.
    pub fn withdraw(&mut self, mut each: impl FnMut(T, Descriptor)) -> u32 {
        self.taken = self.taken.wrapping_add(self.posted.len() as u32);
        self.ready = 0;
        for (item, descriptor) in self.posted.drain(..) {
            each(item, descriptor);
        }
        self.taken
    }
}

/// The device's end of a queue.
#[derive(Clone, Copy, Debug)]
pub struct DeviceQueue {
    entries: u32,
    /// Index of the next descriptor.
    taken: u32,
    /// Number of descriptors that the driver has published since `taken`.
    ready: u32,
    /// Number of raised interrupts.
    raised: u32,
}

impl DeviceQueue {
    /// Creates the device's end of a queue that starts at index `start`.
    #[must_use]
    pub const fn new(entries: u32, start: u32) -> Self {
        Self {
            entries,
            taken: start,
            ready: 0,
            raised: 0,
        }
    }

    /// Returns the next descriptor without taking it, or `None` if none is posted. A driver that
    /// publishes more descriptors than the queue has entries only overwrites its own.
    ///
    /// # Errors
    /// Returns an error if the queue's memory is inaccessible.
    pub fn peek(&mut self, memory: &impl DeviceMemory) -> Result<Option<Descriptor>, Fault> {
        if self.ready == 0 {
            self.ready = memory.posted()?.wrapping_sub(self.taken).min(self.entries);
        }
        if self.ready == 0 {
            return Ok(None);
        }
        let words = memory.descriptor(self.taken & (self.entries - 1))?;
        Ok(Some(Descriptor::decode(words)))
    }

    /// Completes the descriptor that the last [`DeviceQueue::peek`] returned.
    ///
    /// # Errors
    /// Returns an error if the queue's memory is inaccessible.
    pub fn complete(
        &mut self,
        memory: &impl DeviceMemory,
        completion: Completion,
    ) -> Result<(), Fault> {
        let index = self.taken;
        let completion = Completion {
            index,
            ..completion
        };
        memory.set_completion(index & (self.entries - 1), completion.encode())?;
        self.taken = index.wrapping_add(1);
        self.ready = self.ready.saturating_sub(1);
        Ok(())
    }

    /// Publishes all completions to the driver.
    ///
    /// # Errors
    /// Returns an error if the queue's memory is inaccessible.
    pub fn publish(&self, memory: &impl DeviceMemory) -> Result<(), Fault> {
        memory.set_completed(self.taken)
    }

    /// Returns whether the device has seen a descriptor that it has not completed.
    #[must_use]
    pub fn has_taken(&self) -> bool {
        self.ready > 0
    }

    /// Returns the number of published completions that the driver has not acknowledged, and the
    /// index that the driver has acknowledged last.
    ///
    /// # Errors
    /// Returns an error if the queue's memory is inaccessible.
    pub fn unacknowledged(&self, memory: &impl DeviceMemory) -> Result<(u32, u32), Fault> {
        // This fence separates `completed` from `acknowledged`: see `DriverQueue::acknowledge`.
        fence(Ordering::SeqCst);
        let index = memory.acknowledged()?;
        Ok((self.taken.wrapping_sub(index).min(self.entries), index))
    }

    /// Increments `raised`, so that the driver takes the published completions. The caller then
    /// wakes the driver.
    ///
    /// # Errors
    /// Returns an error if the queue's memory is inaccessible.
    pub fn raise(&mut self, memory: &impl DeviceMemory) -> Result<(), Fault> {
        self.raised = self.raised.wrapping_add(1);
        memory.set_raised(self.raised)
    }

    /// Publishes an empty queue to a driver that restarts it.
    ///
    /// # Errors
    /// Returns an error if the queue's memory is inaccessible.
    pub fn publish_reset(&self, memory: &impl DeviceMemory) -> Result<(), Fault> {
        memory.set_raised(self.raised)?;
        self.publish(memory)
    }

    /// Sets `wake` before the device sleeps: with `wakes`, the next posted descriptor wakes the
    /// device. Returns whether the driver has already posted descriptors that
    /// [`DeviceQueue::peek`] has not counted; these do not wake the device.
    ///
    /// # Errors
    /// Returns an error if the queue's memory is inaccessible.
    pub fn arm(&self, memory: &impl DeviceMemory, wakes: bool) -> Result<bool, Fault> {
        let next = self.taken.wrapping_add(self.ready);
        // A descriptor that is already posted never wakes the device.
        memory.set_wake(if wakes { next } else { next.wrapping_sub(1) })?;
        // This fence separates `wake` from `posted`: see `DriverQueue::needs_wakeup`.
        fence(Ordering::SeqCst);
        Ok(memory.posted()? != next)
    }
}
