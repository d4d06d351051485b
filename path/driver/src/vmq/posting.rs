//! Where a queue's frames go.

use nic::vmq::{Backend, Freed};
use nic::{Buffer, BufferId, Buffers, Frame, Pool};
use vif::grants::Grants;
use vif::netback::Netback;

/// Numbers of buffers that a guest has posted have this bit.
const POSTED: u32 = 1 << 31;

/// Where a queue's frames go: into what the guest has posted, or into buffers of this domain's if
/// the guest has posted nothing (more) or must not be written to. Once a batch has used one of this
/// domain's it uses no more of the guest's: frames keep their order.
pub struct Posting<'a> {
    netback: Option<&'a mut Netback<Box<dyn Grants>>>,
    pool: &'a mut Pool,
    /// Room that a frame needs in one piece.
    bytes: usize,
    /// Whether a buffer of this domain's was used.
    bounced: bool,
    to_guest: &'a mut Vec<Frame>,
    to_pool: &'a mut Vec<Frame>,
}

impl<'a> Posting<'a> {
    /// Frames of at most `bytes` bytes go to what `netback` has, and are appended to `to_guest`;
    /// the others go to `pool`, and are appended to `to_pool`.
    pub fn new(
        netback: Option<&'a mut Netback<Box<dyn Grants>>>,
        pool: &'a mut Pool,
        bytes: usize,
        to_guest: &'a mut Vec<Frame>,
        to_pool: &'a mut Vec<Frame>,
    ) -> Self {
        Self {
            netback,
            pool,
            bytes,
            bounced: false,
            to_guest,
            to_pool,
        }
    }
}

impl Backend for Posting<'_> {
    fn alloc(&mut self) -> Option<Buffer> {
        let posted = match &mut self.netback {
            Some(netback) if !self.bounced => netback.post(self.bytes),
            _ => None,
        };
        match posted {
            Some(Buffer { id, span }) => Some(Buffer {
                id: BufferId(id.0 | POSTED),
                span,
            }),
            None => {
                self.bounced = true;
                self.pool.take()
            }
        }
    }

    fn free(&mut self, buffer: BufferId, why: Freed) {
        if buffer.0 & POSTED == 0 {
            self.pool.put(buffer);
        } else if let Some(netback) = &mut self.netback {
            netback.put_back(BufferId(buffer.0 & !POSTED), why == Freed::Fault);
        }
    }

    fn netif_rx(&mut self, mut frame: Frame) {
        let posted = frame
            .pieces
            .iter()
            .any(|piece| piece.buffer.0 & POSTED != 0);
        if posted {
            for piece in &mut frame.pieces {
                piece.buffer.0 &= !POSTED;
            }
            self.to_guest.push(frame);
        } else {
            self.to_pool.push(frame);
        }
    }
}
