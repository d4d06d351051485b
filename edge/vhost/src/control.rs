//! The control queue, for monitors that let the back end serve it.

use crate::memory::VmMemory;
use crate::queue::{CopyDirection, DescriptorChain, RingError, SplitRing};

/// Maximum number of commands executed in one turn.
const COMMANDS_PER_TURN: usize = 16;
/// Bytes of the only supported command: class, command and number of pairs.
const COMMAND: usize = 4;
/// `VIRTIO_NET_CTRL_MQ`, `VIRTIO_NET_CTRL_MQ_VQ_PAIRS_SET`.
const SET_PAIRS: [u8; 2] = [4, 0];
const OK: u8 = 0;
const ERROR: u8 = 1;

/// The driver's settings.
#[derive(Debug)]
pub(crate) struct ControlQueue {
    /// Queue pairs that the driver uses.
    pub(crate) pairs: u16,
    chain: DescriptorChain,
}

impl Default for ControlQueue {
    fn default() -> Self {
        Self {
            // The driver uses only the first pair until it sets another number.
            pairs: 1,
            chain: DescriptorChain::default(),
        }
    }
}

/// The result of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Served {
    /// Commands that were executed or rejected.
    pub(crate) commands: usize,
    /// Whether the driver must be notified.
    pub(crate) is_called: bool,
}

impl ControlQueue {
    /// Executes the driver's commands. The driver may set up to `pairs_max` pairs; the device
    /// rejects every other command.
    pub(crate) fn serve(
        &mut self,
        (queue, memory): (&mut SplitRing, &VmMemory),
        pairs_max: u16,
    ) -> Result<Served, RingError> {
        let mut commands = 0;
        while commands < COMMANDS_PER_TURN {
            let written = match queue.take(memory, CopyDirection::Both, &mut self.chain)? {
                None => break,
                Some(Ok(())) => self.execute(memory, pairs_max),
                Some(Err(_)) => 0,
            };
            queue.put(memory, self.chain.head(), written)?;
            commands += 1;
        }
        let is_called = queue.publish(memory)?;
        Ok(Served {
            commands,
            is_called,
        })
    }

    /// Executes one command, and returns the number of bytes written as its answer.
    fn execute(&mut self, memory: &VmMemory, pairs_max: u16) -> u32 {
        let answer = match self.requested_pairs() {
            Some(pairs) if (1..=pairs_max).contains(&pairs) => {
                self.pairs = pairs;
                OK
            }
            _ => ERROR,
        };
        let (_, writable) = self.chain.halves();
        let place = writable.iter().find(|segment| !segment.span.is_empty());
        let Some(place) = place else { return 0 };
        match place.span.take(1).write(&[answer]) {
            Ok(()) => {
                memory.log_write(place.gpa, 1);
                1
            }
            Err(shmem::Fault) => 0,
        }
    }

    /// Returns the number of pairs that the command sets, or `None` for another command.
    fn requested_pairs(&self) -> Option<u16> {
        let mut bytes = [0; COMMAND];
        let mut left = &mut bytes[..];
        let (readable, _) = self.chain.halves();
        for segment in readable {
            let part = segment.span.take(left.len());
            let (to, rest) = left.split_at_mut(part.len());
            part.read(to).ok()?;
            left = rest;
        }
        let is_whole = left.is_empty();
        let [class, command, low, high] = bytes;
        (is_whole && [class, command] == SET_PAIRS).then(|| u16::from_le_bytes([low, high]))
    }
}
